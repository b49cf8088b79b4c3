//! Why a node is not let in, as it travels in the answer to its greeting.

use crate::types::RaftId;

/// Why a node is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// The cluster names differ.
    WrongCluster,
    /// No protocol version is spoken by both.
    NoCommonVersion,
    /// This raft id was removed from the membership.
    Evicted,
    /// The address is not on the list of those allowed.
    NotAllowed,
    /// The secret is missing or wrong.
    BadSecret,
    /// The histories differ.
    WrongHistory,
    /// Too many connections.
    Busy,
    /// The node is cut off by its operator, or stopping.
    Closed,
    /// It is the same node, or one with the same raft id.
    OwnId,
    /// A code of a newer version.
    Other(u16),
}

impl RefusalCode {
    pub(crate) fn code(self) -> u16 {
        match self {
            RefusalCode::WrongCluster => 1,
            RefusalCode::NoCommonVersion => 2,
            RefusalCode::Evicted => 3,
            RefusalCode::NotAllowed => 4,
            RefusalCode::BadSecret => 5,
            RefusalCode::WrongHistory => 6,
            RefusalCode::Busy => 7,
            RefusalCode::Closed => 8,
            RefusalCode::OwnId => 9,
            RefusalCode::Other(c) => c,
        }
    }

    pub(crate) fn from_code(c: u16) -> Self {
        match c {
            1 => RefusalCode::WrongCluster,
            2 => RefusalCode::NoCommonVersion,
            3 => RefusalCode::Evicted,
            4 => RefusalCode::NotAllowed,
            5 => RefusalCode::BadSecret,
            6 => RefusalCode::WrongHistory,
            7 => RefusalCode::Busy,
            8 => RefusalCode::Closed,
            9 => RefusalCode::OwnId,
            c => RefusalCode::Other(c),
        }
    }
}

/// A refusal as it travels: a code for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Which of the reasons.
    pub code: RefusalCode,
    /// The refusing side's words; printable, at most 1024 bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal for `code` in the words `text`.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Refusal {
            code,
            text: text.into(),
        }
    }

    /// The cluster names differ.
    pub fn wrong_cluster(own: &str, theirs: &str) -> Self {
        Refusal::new(
            RefusalCode::WrongCluster,
            format!(
                "its cluster is named \"{own}\", the connecting node's \"{theirs}\"; set \
                 wsrep_cluster_name alike on all nodes of one cluster"
            ),
        )
    }

    /// They differ, and nothing is told.
    pub fn other_cluster() -> Self {
        Refusal::new(
            RefusalCode::WrongCluster,
            "it is of another cluster (wsrep_cluster_name)",
        )
    }

    /// No version is spoken by both.
    pub fn no_common_version(own: (u16, u16), theirs: (u16, u16)) -> Self {
        Refusal::new(
            RefusalCode::NoCommonVersion,
            format!(
                "it speaks protocol versions {} to {}, the connecting node {} to {}; upgrade the older one; all nodes \
                 must be stopped cleanly for that (docs/wire.md)",
                own.0, own.1, theirs.0, theirs.1
            ),
        )
    }

    /// Another run of the connecting member is heard at `at`.
    pub fn two_of_one(id: RaftId, at: &str) -> Self {
        Refusal::new(
            RefusalCode::OwnId,
            format!(
                "it hears another running node as member {id:x}, at {at}: one is a copy of the other, and only one may take part. Stop the copy; with its dromon-*.log moved away it joins as a new member"
            ),
        )
    }

    /// The connecting node's raft id was evicted.
    pub fn evicted(id: RaftId) -> Self {
        Refusal::new(
            RefusalCode::Evicted,
            format!(
                "member {id:x} was removed from the cluster; the node must join again under a new identity"
            ),
        )
    }
}
