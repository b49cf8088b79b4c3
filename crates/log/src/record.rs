//! What the log stores: records, and the identity of a place in the log.

use bytes::Bytes;

/// Largest body of one record, in bytes. Larger payloads travel in pieces.
pub const MAX_BODY: usize = 256 << 20;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position in the log; consecutive records have consecutive indices. Starts at 0.
    pub index: u64,
    /// Raft term in which a leader made the entry.
    pub term: u64,
    /// Raft id of that leader.
    pub leader: u64,
    /// The entry, opaque to the log. At most [`MAX_BODY`] bytes.
    pub body: Bytes,
}

impl Record {
    /// The place of this record.
    pub fn id(&self) -> RecordId {
        RecordId {
            index: self.index,
            term: self.term,
            leader: self.leader,
        }
    }
}

/// A place in the log together with who made the entry there (raft's log id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    /// Position in the log.
    pub index: u64,
    /// Raft term of the entry.
    pub term: u64,
    /// Raft id of the leader that made it.
    pub leader: u64,
}
