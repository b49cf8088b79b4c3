//! This crate's private parsers for the fuzzers in `fuzz/`: each takes any bytes and, if
//! they mean something, says the same again in bytes.

use bytes::Bytes;
use dromon_writeset::Uuid;
use openraft::EntryPayload;
use openraft::raft::StreamAppendError;

use crate::codec::{self, Wire};
use crate::proof::{About, Accepting, Connecting, Secret};
use crate::raft_types::{
    AppendRequest, RaftEntry, RaftLeader, RaftLogId, RaftPayload, RaftVote, to_raft_members,
};
use crate::sequencer::{Part, RawMessage};
use crate::types::{Checkpoint, LogId, Members};

/// A frame's body between engines.
pub fn engine_message(body: Bytes) -> Option<Bytes> {
    let (incarnation, wire) = Wire::decode(body).ok()?;
    Some(wire.encode(incarnation).to_bytes())
}

/// The body of a record in the log.
pub fn log_entry(body: Bytes) -> Option<Bytes> {
    let payload = codec::decode_payload(body).ok()?;
    if let EntryPayload::Normal(m) = &payload {
        let raw = codec::decode_message(m).ok()?;
        return Some(codec::encode_message(&raw).0);
    }
    Some(codec::encode_payload(&payload))
}

/// A checkpoint, as it lies on the disk and travels to joiners.
pub fn checkpoint(body: Bytes) -> Option<Bytes> {
    let checkpoint = codec::decode_checkpoint(body).ok()?;
    Some(codec::encode_checkpoint(&checkpoint))
}

/// What the engine remembers beside its log.
pub fn small_state(body: Bytes) -> Option<Bytes> {
    let meta = codec::decode_meta(body).ok()?;
    Some(codec::encode_meta(meta.as_ref()))
}

/// Whether a stranger without the secret, who says `first` and then `second`, is believed
/// by a node that accepts or by one that connects. Never, or something is broken.
pub fn stranger_is_believed(first: &[u8], second: &[u8]) -> bool {
    let Some(secret) = Secret::new(b"a secret of enough bytes that nobody outside knows") else {
        return true;
    };
    let about = || About {
        cluster: "fuzzed".to_owned(),
        channel: None,
    };
    let accepted = Accepting::new(secret.clone(), about(), [1; 32], first)
        .is_ok_and(|(a, _)| a.check(second).is_ok());
    let (mut connecting, _) = Connecting::new(secret, about(), [2; 32]);
    let connected = connecting.prove(first).is_ok() && connecting.check(second).is_ok();
    accepted || connected
}

/// Whether these bytes pass for a certificate here.
pub fn is_certificate(der: &[u8]) -> bool {
    crate::tcp::certificate_dates(der).is_some()
}

fn id(index: u64) -> RaftLogId {
    RaftLogId {
        leader_id: RaftLeader {
            term: 3,
            node_id: 7,
        },
        index,
    }
}

fn vote() -> RaftVote {
    RaftVote {
        leader_id: id(1).leader_id,
        committed: true,
    }
}

fn members() -> Members {
    Members {
        log_id: Some(LogId::default()),
        configs: vec![[1, 2].into(), [2].into()],
        addrs: [(1, "a:1".to_owned()), (2, "b:2".to_owned())].into(),
    }
}

fn payloads() -> Vec<RaftPayload> {
    let message = |part, len| {
        codec::encode_message(&RawMessage {
            origin: Uuid([9; 16]),
            oseq: 5,
            kind: 2,
            tag: 77,
            part,
            body: Bytes::from(vec![0xab; len]),
        })
    };
    let piece = Part::Piece {
        stream: 1,
        i: 0,
        n: 2,
    };
    let mut all = vec![
        EntryPayload::Blank,
        EntryPayload::Normal(message(Part::Whole, 10)),
        EntryPayload::Normal(message(piece, 1500)),
    ];
    if let Ok(stored) = to_raft_members(&members()) {
        all.push(EntryPayload::Membership(stored.membership().clone()));
    }
    all
}

/// Messages of every kind.
pub fn engine_message_seeds() -> Vec<Vec<u8>> {
    let entries = payloads().into_iter().zip(1..);
    let entries: Vec<RaftEntry> = entries
        .map(|(payload, n)| RaftEntry {
            log_id: id(n),
            payload,
        })
        .collect();
    let messages = vec![codec::encode_message(&RawMessage {
        origin: Uuid([9; 16]),
        oseq: 1,
        kind: 1,
        tag: 0,
        part: Part::Whole,
        body: Bytes::from_static(b"a body"),
    })];
    let appended = |result| Wire::Appended {
        session: 1,
        seq: 2,
        result,
    };
    let all = [
        Wire::Append {
            session: 1,
            seq: 2,
            lease_us: 3,
            addr: "a:1".to_owned(),
            request: AppendRequest {
                vote: vote(),
                prev_log_id: None,
                entries,
                leader_commit: Some(id(1)),
            },
        },
        appended(Ok(Some(id(4)))),
        appended(Err(StreamAppendError::Conflict(id(4)))),
        appended(Err(StreamAppendError::HigherVote(vote()))),
        Wire::Vote {
            id: 1,
            pre: true,
            transfer: false,
            addr: "b:2".to_owned(),
            vote: vote(),
            last: Some(id(1)),
        },
        Wire::Voted {
            id: 1,
            granted: true,
            vote: vote(),
            last: None,
        },
        Wire::TransferLeader {
            vote: vote(),
            to: 2,
            last: Some(id(2)),
        },
        Wire::PositionLost { vote: vote() },
        Wire::Forward { round: 4, messages },
        Wire::Refused { round: 4 },
        Wire::ReadIndex { id: 6 },
        Wire::ReadIndexIs {
            id: 6,
            index: Some(9),
        },
        Wire::AskTransfer { to: 0 },
        Wire::Cast(Bytes::from_static(b"hello")),
    ];
    all.iter()
        .map(|w| w.encode(7).to_bytes().to_vec())
        .collect()
}

/// Entries of every kind.
pub fn log_entry_seeds() -> Vec<Vec<u8>> {
    let all = payloads();
    all.iter()
        .map(|p| codec::encode_payload(p).to_vec())
        .collect()
}

/// A checkpoint.
pub fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let checkpoint = Checkpoint {
        log_id: LogId::default(),
        members: members(),
        sequencer: Bytes::from_static(b"sequencer"),
        node: Bytes::from_static(b"node"),
    };
    vec![codec::encode_checkpoint(&checkpoint).to_vec()]
}

/// The small state of a log in use, and of one being made.
pub fn small_state_seeds() -> Vec<Vec<u8>> {
    let meta = codec::Meta {
        id: 5,
        vote: Some(vote()),
        committed: Some(id(8)),
        purged: None,
        durable: true,
    };
    vec![
        codec::encode_meta(Some(&meta)).to_vec(),
        codec::encode_meta(None).to_vec(),
    ]
}
