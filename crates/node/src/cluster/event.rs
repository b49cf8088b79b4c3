//! What comes out of the deterministic state: members, views, events.

use std::sync::Arc;

use bytes::Bytes;
use dromon_certify::Verdict;
use dromon_writeset::{Seqno, Uuid, WriteSet};
use serde::{Deserialize, Serialize};

use super::chunked::{ChunkPart, Chunked};
use crate::lacking::Gap;
use crate::messages::{LeaveReason, Need, Position};

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Waits for a state.
    Joiner,
    /// Gives a copy, or is desynced.
    Donor,
    /// Has a state, catches up.
    Joined,
    /// Has caught up.
    Synced,
}

/// One member, as every node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// This incarnation.
    pub uuid: Uuid,
    /// Where its messages in the order come from.
    pub origin: Uuid,
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub incoming: String,
    /// Where the other members reach it.
    pub addr: String,
    /// Its log.
    pub raft_id: u64,
    /// `gmcast.segment`.
    pub segment: u8,
    /// `pc.weight`; see [`crate::electors`].
    pub weight: u8,
    /// Where it stands.
    pub state: MemberState,
    /// Open `Desync`s.
    pub desync: u32,
    /// Whether it ever had a complete state: its word counts in votes on errors.
    pub complete: bool,
    /// Whether its log may count for majorities though it is not complete: it did so
    /// before, and goes on while its database takes a copy.
    pub votes: bool,
    /// Seqno of the view in which it appeared.
    pub joined_at: Seqno,
    /// The log index it starts from.
    pub log_start: u64,
    /// Whether it has no database: it counts for the log's majorities and for
    /// nothing that has to do with data.
    pub witness: bool,
    /// Whether it gives nobody a copy (`gcs.stateless`).
    pub stateless: bool,
}

impl Member {
    /// Whether it has data and may give a copy of it.
    pub fn can_give(&self) -> bool {
        self.complete && !self.witness && !self.stateless
    }
}

/// A view: who belongs to the cluster at a place in the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Its place.
    pub position: Position,
    /// Counts views.
    pub number: i64,
    /// Members in uuid order.
    pub members: Vec<Member>,
}

impl ClusterView {
    /// The place of `uuid` among the members.
    pub fn index_of(&self, uuid: &Uuid) -> Option<usize> {
        self.members.iter().position(|m| m.uuid == *uuid)
    }
}

/// What an entry means for the node.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write set took its place.
    WriteSet {
        /// Its place.
        seqno: Seqno,
        /// The write set.
        write_set: WriteSet,
        /// Whether it commits, and after what.
        verdict: Verdict,
        /// The member that sent it.
        source: Uuid,
        /// The origin under which it travelled.
        origin: Uuid,
        /// The sender's mark.
        tag: u64,
        /// Log index of its first part.
        from: u64,
        /// Of its last one.
        index: u64,
    },
    /// A part of a large write set that is applied in chunks took its place.
    Chunk {
        /// Its place.
        seqno: Seqno,
        /// What it belongs to.
        chunked: Arc<Chunked>,
        /// Which part.
        part: ChunkPart,
        /// What must be finished before it starts.
        depends_on: Seqno,
    },
    /// A part of one will take its place in a while: it may be begun. An
    /// [`Event::Chunk`] says when it takes it.
    Ahead {
        /// Its place.
        place: Seqno,
        /// What it belongs to.
        chunked: Arc<Chunked>,
        /// Which part.
        part: ChunkPart,
        /// What must be finished before it starts.
        depends_on: Seqno,
    },
    /// Seqnos that nobody has: a chunk with a place ahead takes it now.
    Nothing {
        /// The first one.
        first: Seqno,
        /// The last one.
        last: Seqno,
    },
    /// The members changed.
    View {
        /// The new view.
        view: ClusterView,
        /// Who came, and how it gets its data.
        joined: Option<(Uuid, Need)>,
        /// Who left, with names.
        left: Vec<(Member, LeaveReason)>,
    },
    /// A member must give a copy, or a bypass.
    Donate {
        /// Who gives.
        donor: Uuid,
        /// Who gets.
        joiner: Uuid,
        /// Whom it asked for.
        donors: String,
        /// For the donor's server.
        request: Bytes,
        /// No copy: the joiner's database stands there already.
        bypass: Option<Position>,
    },
    /// Nobody can give a copy now: ask again later.
    NoDonor {
        /// Who asked.
        joiner: Uuid,
    },
    /// A copy was given, or failed.
    TransferEnded {
        /// Who gave.
        donor: Uuid,
        /// Who got it.
        joiner: Uuid,
        /// The position given.
        position: Position,
        /// 0, or a negative errno.
        error: i32,
        /// What the donor's database did not have meanwhile.
        gaps: Vec<Gap>,
    },
    /// A member moved on.
    State {
        /// The member.
        uuid: Uuid,
        /// From where.
        from: MemberState,
        /// To where.
        to: MemberState,
    },
    /// A member's `Desync` took its place.
    Desynced {
        /// The member.
        uuid: Uuid,
    },
    /// A member has another weight.
    Weight {
        /// Who.
        uuid: Uuid,
    },
    /// A member's `Resync` took its place.
    Resynced {
        /// The member.
        uuid: Uuid,
    },
    /// Some member failed to apply `seqno` and asks the others.
    VoteAsked {
        /// The event in question.
        seqno: Seqno,
        /// How it failed there.
        digest: u64,
    },
    /// The vote on `seqno` is over.
    VoteDecided {
        /// The event in question.
        seqno: Seqno,
        /// The digest that won; 0 is success, [`NOBODY`](crate::votes::NOBODY) no outcome.
        winner: u64,
    },
    /// Certification forgot what is older.
    Cut {
        /// Up to here.
        seqno: Seqno,
    },
    /// A message that should not be there: the log of this node, or the
    /// sender, is broken. The node must stop.
    Corrupt {
        /// Where.
        index: u64,
        /// What.
        why: String,
    },
}
