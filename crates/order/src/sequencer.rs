//! The shapes of messages in the order.

use bytes::Bytes;
use dromon_writeset::Uuid;

use crate::types::RaftId;

/// Whether a message is complete or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole message.
    Whole,
    /// A piece of a large one.
    Piece {
        /// Which large message of the origin.
        stream: u64,
        /// Which piece, from 0.
        i: u32,
        /// How many there are.
        n: u32,
    },
}

/// One message as it lies in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMessage {
    /// Who sent it.
    pub origin: Uuid,
    /// Its number among the origin's messages and pieces: 1, 2, 3, …
    pub oseq: u64,
    /// What it is to the node.
    pub kind: u8,
    /// Free for the node.
    pub tag: u64,
    /// Whole or a piece.
    pub part: Part,
    /// Payload.
    pub body: Bytes,
}

/// What a committed entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedBody {
    /// Nothing: a new leader's first entry.
    Blank,
    /// The members changed.
    Membership {
        /// Who votes, in id order.
        voters: Vec<RaftId>,
        /// Who only stores, in id order.
        learners: Vec<RaftId>,
    },
    /// A message.
    Message(RawMessage),
}

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its index in the log.
    pub index: u64,
    /// The term in which it was made.
    pub term: u64,
    /// What it holds.
    pub body: CommittedBody,
}
