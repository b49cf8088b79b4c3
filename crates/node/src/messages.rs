//! What nodes say to each other: in the order, by request, and by cast.
//!
//! All of it is encoded with postcard. The order's messages decide, so their
//! encoding belongs to the format that the feature level guards; see
//! `docs/wire.md`.

use dromon_order::{Leadership, LogId};
use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

use crate::chain::Compared;
use crate::forks::LogEnd;
use crate::lacking::Gap;

/// Kinds of messages in the order.
pub mod kind {
    /// An encoded write set.
    pub const WRITE_SET: u8 = 1;
    /// A [`Control`](super::Control) message.
    pub const CONTROL: u8 = 2;
}

/// A position in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Which history.
    pub history: Uuid,
    /// The last seqno contained.
    pub seqno: Seqno,
}

impl Position {
    /// No position: no data, or nobody knows.
    pub const UNDEFINED: Position = Position {
        history: Uuid::NIL,
        seqno: -1,
    };

    /// What a line of a server started with `--wsrep-recover` tells: `Recovered
    /// position: <uuid>:<seqno>[,...]`.
    pub fn in_recovered_line(line: &str) -> Option<Position> {
        let (_, rest) = line.split_once("Recovered position:")?;
        let gtid = rest.trim().split(',').next()?;
        let (uuid, seqno) = gtid.split_once(':')?;
        let position = Position {
            history: uuid.parse().ok()?,
            seqno: seqno.trim().parse().ok()?,
        };
        Some(position)
    }

    /// Whether this names a place in a history.
    pub fn is_defined(&self) -> bool {
        !self.history.is_nil() && self.seqno >= 0
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.history, self.seqno)
    }
}

/// How a joiner gets its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Need {
    /// From the log: its position is kept there (IST).
    Log,
    /// A full copy from a donor (SST).
    Copy,
}

/// Who wants to be a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// This incarnation of the node.
    pub uuid: Uuid,
    /// The origin under which its messages travel.
    pub origin: Uuid,
    /// `wsrep_node_name`.
    pub name: String,
    /// `wsrep_node_incoming_address`.
    pub incoming: String,
    /// Where its order transport is reached.
    pub addr: String,
    /// Its log.
    pub raft_id: u64,
    /// `gmcast.segment`.
    pub segment: u8,
    /// `pc.weight`; see [`crate::electors`].
    pub weight: u8,
    /// What its database holds.
    pub position: Position,
    /// How it gets the rest.
    pub need: Need,
    /// Last log index contained in the checkpoint it starts from.
    pub log_start: u64,
    /// `gcs.vote_policy`. That of the first member counts for all, as long as
    /// there is a member with data.
    pub vote_policy: u8,
    /// Whether it votes and stores the log, but has no database.
    pub witness: bool,
    /// `gcs.stateless`: it gives nobody a copy.
    pub stateless: bool,
}

/// Why a member leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaveReason {
    /// It asked to.
    Graceful,
    /// It was silent for too long.
    Evicted,
    /// An operator evicted it.
    Expelled,
    /// Its data differs from the others'.
    Inconsistent,
    /// It lost touch and comes back under the same incarnation.
    Rejoins,
}

/// A control message in the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// A node becomes a member.
    Join(Join),
    /// A member leaves.
    Leave {
        /// Who.
        uuid: Uuid,
        /// Why.
        reason: LeaveReason,
    },
    /// The leader found a member silent. Void if ordered under another leadership:
    /// then the leader was the one that had been away.
    Evict {
        /// Who.
        uuid: Uuid,
        /// Who found it, and when.
        by: Leadership,
    },
    /// A member that had lost the primary component comes back: it leaves and
    /// joins in one step, so that its streaming transactions are settled.
    Rejoin {
        /// Who.
        uuid: Uuid,
        /// Everything up to here is finished in its database; the lowest number, if it is to catch up first
        /// whatever it has.
        released: Seqno,
    },
    /// A joiner asks for a full copy.
    StateRequest {
        /// Who asks.
        joiner: Uuid,
        /// `wsrep_sst_donor`: names in order of preference.
        donors: String,
        /// Opaque to us; goes to the donor's server.
        request: Vec<u8>,
    },
    /// A donation ended.
    StateSent {
        /// Who gave.
        donor: Uuid,
        /// Who asked.
        joiner: Uuid,
        /// The position given, or undefined.
        position: Position,
        /// 0, or a negative errno.
        error: i32,
        /// What the donor's database did not have meanwhile.
        gaps: Vec<Gap>,
    },
    /// The member has a complete state and catches up.
    Joined {
        /// Who.
        uuid: Uuid,
    },
    /// The member has caught up.
    Synced {
        /// Who.
        uuid: Uuid,
    },
    /// The member wants to fall behind without slowing the others.
    Desync {
        /// Who.
        uuid: Uuid,
    },
    /// The end of one `Desync`.
    Resync {
        /// Who.
        uuid: Uuid,
    },
    /// No write set to come has seen less than this: forget what is older.
    Cut {
        /// Everything up to here may be forgotten.
        seqno: Seqno,
    },
    /// How applying `seqno` ended at a member, after some member failed it.
    Vote {
        /// Who.
        uuid: Uuid,
        /// The event in question.
        seqno: Seqno,
        /// 0 for success, else a digest of the error.
        digest: u64,
    },
    /// `pc.weight` changed.
    Weight {
        /// Who.
        uuid: Uuid,
        /// The new weight.
        weight: u8,
    },
    /// The next chunk of a large write set is to take a place.
    Chunk {
        /// The seqno of its first chunk.
        id: Seqno,
        /// Which one, from 1; behind the last one it commits. Void if it is not
        /// the next one. Behind that one it is no part: what has a place ahead
        /// takes it.
        n: u32,
        /// How many may take theirs before it: it can be begun at once, and they
        /// pass it meanwhile. 0: it takes the next place.
        ahead: u32,
    },
    /// A member that comes back by the log asks for a bypass: a transfer that
    /// only tells what no write set does.
    BypassRequest {
        /// Who asks.
        joiner: Uuid,
        /// `wsrep_sst_donor`; here an order of preference and no more.
        donors: String,
        /// Opaque to us; goes to the donor's server.
        request: Vec<u8>,
        /// What the joiner's database holds: the donor's server passes it back.
        position: Position,
    },
}

/// What one node asks another directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who are you, and do you belong to a primary component?
    Probe,
    /// The state to start from, for a database at `position`.
    State {
        /// What the database holds.
        position: Position,
        /// How far its own log got, if it has one.
        log: Option<LogEnd>,
        /// The running checksum of the history there, if its own log tells it.
        sum: Option<u64>,
        /// Whether it has no database.
        witness: bool,
    },
    /// Order this node's join.
    Join(Join),
    /// This member leaves: order it.
    Leave {
        /// Who.
        uuid: Uuid,
        /// Why.
        reason: LeaveReason,
    },
    /// Is this log no longer among the members'?
    Gone {
        /// The log that left.
        raft_id: u64,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To a probe.
    Info {
        /// It stopped while its server ran a statement in total order isolation,
        /// and does not know whether its tables have the effect.
        in_doubt: bool,
        /// The node that answers.
        uuid: Uuid,
        /// Its name.
        name: String,
        /// Whether it belongs to a primary component now.
        primary: bool,
        /// Where the leader is, if known.
        leader: Option<String>,
        /// The history and the last seqno ordered.
        position: Position,
        /// Every member's address; none if its ordering engine has failed: before it is
        /// started again its log neither votes nor elects.
        members: Vec<String>,
        /// The last entry in its log.
        last: LogId,
    },
    /// A checkpoint to start from.
    State {
        /// Whether the log reaches back to the database's position.
        need: Need,
        /// Whether its sum is that of the cluster's log.
        compared: Compared,
        /// The checkpoint.
        checkpoint: CheckpointParts,
        /// The leader's term.
        term: u64,
    },
    /// Done, or will be.
    Ok,
    /// Ask this one instead.
    NotLeader {
        /// The leader, if known.
        leader: Option<String>,
    },
    /// No, and why.
    Refused(String),
    /// This node leads a primary component and cannot say yet, and why: ask it
    /// again. To a probe: it is about to become one by itself.
    Wait(String),
}

/// A checkpoint in a form that travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointParts {
    /// Term, leader and index of its last entry.
    pub log_id: (u64, u64, u64),
    /// The membership entry's place, if there was one.
    pub members_id: Option<(u64, u64, u64)>,
    /// Voter sets.
    pub configs: Vec<Vec<u64>>,
    /// Addresses of all.
    pub addrs: Vec<(u64, String)>,
    /// Encoded sequencer.
    pub sequencer: Vec<u8>,
    /// Encoded cluster state.
    pub node: Vec<u8>,
}

/// What every member tells all others, several times a second and whenever
/// its wish for a pause changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Who.
    pub uuid: Uuid,
    /// Last seqno delivered.
    pub ordered: Seqno,
    /// Last seqno finished.
    pub released: Seqno,
    /// No write set of this member to come has seen less than this.
    pub safe: Seqno,
    /// The log index that a restart of this member would need.
    pub needs_log: u64,
    /// Events waiting for an applier.
    pub queue: u64,
    /// The newest place of a chunk that lay ahead for which nothing but its commit
    /// is left to this member, or of which it does nothing before.
    pub ready: Seqno,
    /// Whether the others should pause.
    pub stop: bool,
    /// Number of this report, to tell a late one from a new one.
    pub number: u64,
    /// Seqno of the last view and digest of the deterministic state there.
    pub digest: (Seqno, u64),
    /// Whether its log waits for the disk (`dromon.durability`).
    pub durable: bool,
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> bytes::Bytes {
    // Serialising these plain types into memory has no way to fail.
    postcard::to_allocvec(message).unwrap_or_default().into()
}

/// Decodes a message; `None` if the bytes are not one.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip() {
        let m = Control::StateSent {
            donor: Uuid([1; 16]),
            joiner: Uuid([2; 16]),
            position: Position {
                history: Uuid([3; 16]),
                seqno: 77,
            },
            error: -110,
            gaps: vec![Gap {
                first: 5,
                from: 6,
                until: Seqno::MAX,
            }],
        };
        assert_eq!(decode::<Control>(&encode(&m)), Some(m));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_not_trusted(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Control>(&bytes);
            let _ = decode::<Request>(&bytes);
            if let Some(answer) = decode::<Answer>(&bytes) {
                prop_assert!(encode(&answer).len() <= bytes.len() + 64);
            }
        }
    }
}
