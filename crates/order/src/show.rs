//! What lies in a log, taken apart for people and tools: no engine, no log opened.

use bytes::Bytes;

use crate::codec;
use crate::raft_types::{RaftEntry, RaftLeader, RaftLogId, from_raft_log_id};
use crate::sequencer::Committed;
use crate::types::{Checkpoint, LogId, OrderError, RaftId};

/// Under which name an engine's [`SmallState`] lies among the log's small values.
pub const SMALL_STATE: &str = crate::disklog::META_KEY;

/// What an engine remembers beside its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallState {
    /// Whose log this is.
    pub id: RaftId,
    /// The newest vote: term, for whom, and whether that one is known to lead.
    pub vote: Option<(u64, RaftId, bool)>,
    /// Known to be committed, and durable here.
    pub committed: Option<LogId>,
    /// The last entry gone from the front.
    pub purged: Option<LogId>,
}

/// Reads the value named [`SMALL_STATE`]. `None`: the log was being made new and holds
/// nothing to go on with.
pub fn small_state(value: Bytes) -> Result<Option<SmallState>, OrderError> {
    let meta = codec::decode_meta(value).map_err(|e| OrderError::Log(e.to_string()))?;
    Ok(meta.map(|m| SmallState {
        id: m.id,
        vote: m
            .vote
            .map(|v| (v.leader_id.term, v.leader_id.node_id, v.committed)),
        committed: m.committed.as_ref().map(from_raft_log_id),
        purged: m.purged.as_ref().map(from_raft_log_id),
    }))
}

/// Reads the content of a checkpoint's file.
pub fn checkpoint(content: Bytes) -> Result<Checkpoint, OrderError> {
    codec::decode_checkpoint(content).map_err(|e| OrderError::Log(e.to_string()))
}

/// Reads the body of the log's record at `place`. Whether the entry is committed, the
/// record does not say.
pub fn entry(place: LogId, body: Bytes) -> Result<Committed, OrderError> {
    let log_id = RaftLogId {
        leader_id: RaftLeader {
            term: place.term,
            node_id: place.leader,
        },
        index: place.index,
    };
    let payload = codec::decode_payload(body)
        .map_err(|e| OrderError::Log(format!("entry {}: {e}", place.index)))?;
    crate::storage::to_committed(RaftEntry { log_id, payload })
}
