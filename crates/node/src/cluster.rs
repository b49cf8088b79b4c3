//! The deterministic state of the cluster: committed entries in, events out.
//!
//! Every node runs the same entries through this and gets the same events. It
//! knows no clock, no thread, no own identity and no configuration. Checkpoints
//! of it let a node start in the middle of the log.

use std::collections::BTreeMap;

use bytes::Bytes;
use dromon_certify::{Certifier, LISTED_MAX};
use dromon_order::sequencer::{Part, PieceStore, StoreError};
use dromon_order::{Committed, CommittedBody, Delivered, Desired, Leadership, Sequencer};
use dromon_writeset::{Flags, Seqno, Uuid, WriteSet};
use serde::{Deserialize, Serialize};

use crate::chain::{self, Taken};
use crate::donor;
use crate::electors::Weighing;
use crate::forks::Forks;
use crate::lacking::Gap;
use crate::messages::{Control, Join, LeaveReason, Need, Position, decode, kind};
use crate::votes::{Cast, Votes};

mod chunked;
mod event;
mod format;
mod streams;
mod transfers;

pub use chunked::{
    AHEAD_MAX, CHUNK_CLOSES, CHUNK_MAX, CHUNK_MIN, ChunkPart, Chunked, chunk_log2,
    id_of as chunked_id_of, trx_id as chunked_trx_id,
};
use chunked::{Ahead, Open};
pub use event::{ClusterView, Event, Member, MemberState};
pub use streams::OpenStream;

/// How many seqnos a departed incarnation is remembered, so that late copies
/// of its messages cannot bring it back.
const DEPARTED_KEPT: Seqno = 1 << 20;

/// Without cuts (a member is far behind) the index still forgets this often,
/// in seqnos.
const PURGE_EVERY: Seqno = 1024;

/// Nor does it hold more keys than this, which take some 350 MB, but of this many newest seqnos: who commits
/// may not have seen those. One write set takes no more than half of it.
const KEYS_MAX: usize = 2 * LISTED_MAX;
const KEYS_KEPT: Seqno = 32;

/// While a large payload is on its way, others pass it: the index reaches back
/// to its beginning, but no further than this, in seqnos.
const WINDOW_MAX: Seqno = 1 << 20;

/// A member counts as caught up when no more than this many events wait.
pub const CAUGHT_UP: Seqno = 64;

/// The deterministic state.
#[derive(Debug)]
pub struct ClusterState {
    history: Uuid,
    seqno: Seqno,
    /// The running checksum of all that took a seqno.
    sum: u64,
    /// Those after each seqno that the last entry took.
    sums: Vec<u64>,
    view_number: i64,
    members: BTreeMap<Uuid, Member>,
    /// Joiner to donor.
    transfers: BTreeMap<Uuid, Uuid>,
    departed: BTreeMap<Uuid, Seqno>,
    cut: Seqno,
    votes: Votes,
    /// What wins a vote: the word of the member that was first.
    vote_policy: u8,
    forks: Forks,
    /// For each payload half arrived: index of its first piece, seqno there.
    arriving: BTreeMap<u64, Seqno>,
    /// What is applied in chunks, by the seqno of the first one.
    chunked: BTreeMap<Seqno, Open>,
    /// The part of one of them whose place lies ahead.
    ahead: Option<Ahead>,
    /// Bytes ordered since `chunked` was empty last.
    chunked_span: u64,
    /// How many keys are remembered; the same everywhere.
    keys_max: usize,
    /// Streaming transactions that clients asked for, by member and number there.
    streams: BTreeMap<(Uuid, u64), OpenStream>,
    certifier: Certifier,
    sequencer: Sequencer,
}

/// The part of the state that is encoded here; certifier and sequencer bring
/// their own encodings. That of the certifier follows.
#[derive(Serialize, Deserialize)]
struct Saved {
    format: u8,
    history: Uuid,
    seqno: Seqno,
    sum: u64,
    view_number: i64,
    members: Vec<Member>,
    transfers: Vec<(Uuid, Uuid)>,
    departed: Vec<(Uuid, Seqno)>,
    cut: Seqno,
    votes: Votes,
    vote_policy: u8,
    forks: Forks,
    arriving: BTreeMap<u64, Seqno>,
    /// Empty in a checkpoint: none is taken meanwhile.
    chunked: Vec<(Seqno, u32)>,
    ahead: Option<(Seqno, u32, Seqno)>,
    streams: Vec<OpenStream>,
}

const FORMAT: u8 = 17;

/// A checkpoint could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the saved cluster state cannot be read ({0}); this node needs a full copy from another member"
)]
pub struct StateError(String);

impl ClusterState {
    /// The state before the first entry of a history that stands at `position`.
    pub fn genesis(position: Position) -> Self {
        ClusterState {
            history: position.history,
            seqno: position.seqno,
            sum: chain::root(position),
            sums: Vec::new(),
            view_number: 0,
            members: BTreeMap::new(),
            transfers: BTreeMap::new(),
            departed: BTreeMap::new(),
            cut: position.seqno,
            votes: Votes::default(),
            vote_policy: 0,
            forks: Forks::default(),
            arriving: BTreeMap::new(),
            chunked: BTreeMap::new(),
            ahead: None,
            chunked_span: 0,
            keys_max: KEYS_MAX,
            streams: BTreeMap::new(),
            certifier: Certifier::new(position.seqno),
            sequencer: Sequencer::default(),
        }
    }

    /// The same for a log that takes the place of one whose last entry was made
    /// `by` this one.
    pub fn genesis_after(position: Position, by: Leadership) -> Self {
        let mut state = Self::genesis(position);
        state.forks = Forks::after(by);
        state
    }

    /// The same with the running checksum that an earlier log had there.
    pub fn with_sum(mut self, sum: u64) -> Self {
        self.sum = sum;
        self
    }

    /// The running checksum of the history up to here.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The seqnos that the last entry took, each with the sum there.
    pub fn sums(&self) -> impl Iterator<Item = (Seqno, u64)> + '_ {
        let first = self.seqno + 1 - self.sums.len() as Seqno;
        (first..).zip(self.sums.iter().copied())
    }

    /// The seqno just counted goes to `taken`.
    fn takes(&mut self, taken: Taken<'_>) {
        self.sum = chain::next(self.sum, self.seqno, taken);
        self.sums.push(self.sum);
    }

    /// Where this log parted from others.
    pub fn forks(&self) -> &Forks {
        &self.forks
    }

    /// History and last seqno.
    pub fn position(&self) -> Position {
        Position {
            history: self.history,
            seqno: self.seqno,
        }
    }

    /// The members in uuid order.
    pub fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.members.values()
    }

    /// The view as it stands.
    pub fn view(&self) -> ClusterView {
        ClusterView {
            position: self.position(),
            number: self.view_number,
            members: self.members.values().cloned().collect(),
        }
    }

    /// The members the log should have.
    pub fn desired(&self) -> BTreeMap<u64, Desired> {
        let weighing = Weighing::of(self.members());
        let one = |m: &Member| {
            let addr = m.addr.clone();
            let voter = weighing.votes(m);
            (m.raft_id, Desired { addr, voter })
        };
        self.members().map(one).collect()
    }

    /// What wins a vote: see [`crate::messages::Join::vote_policy`].
    pub fn vote_policy(&self) -> u8 {
        self.vote_policy
    }

    /// The last ordered cut.
    pub fn cut(&self) -> Seqno {
        self.cut
    }

    /// The certification index, for status variables.
    pub fn certifier(&self) -> &Certifier {
        &self.certifier
    }

    /// Whether something is applied in chunks: no checkpoint may be taken.
    pub fn has_chunked(&self) -> bool {
        !self.chunked.is_empty()
    }

    /// Lowest log index of a payload that has not arrived whole.
    pub fn open_pieces_from(&self) -> Option<u64> {
        self.sequencer.open_pieces_from()
    }

    /// Where half-arrived payloads above `above` bytes are kept.
    pub fn set_piece_store(&mut self, store: Box<dyn PieceStore>, above: u64) {
        self.sequencer.set_store(store, above);
    }

    /// A digest of everything that decides.
    pub fn digest(&self) -> u64 {
        let mut bytes = self.encode_own();
        bytes.extend_from_slice(&self.certifier.digest().to_le_bytes());
        bytes.extend_from_slice(&self.sequencer.digest().to_le_bytes());
        twox_hash::XxHash3_64::oneshot(&bytes)
    }

    fn encode_own(&self) -> Vec<u8> {
        let saved = Saved {
            format: FORMAT,
            history: self.history,
            seqno: self.seqno,
            sum: self.sum,
            view_number: self.view_number,
            members: self.members.values().cloned().collect(),
            transfers: self.transfers.iter().map(|(&j, &d)| (j, d)).collect(),
            departed: self.departed.iter().map(|(&u, &s)| (u, s)).collect(),
            cut: self.cut,
            votes: self.votes.clone(),
            vote_policy: self.vote_policy,
            forks: self.forks.clone(),
            arriving: self.arriving.clone(),
            chunked: self.chunked().map(|(c, next)| (c.id, next)).collect(),
            ahead: self.ahead(),
            streams: self.streams.values().copied().collect(),
        };
        postcard::to_allocvec(&saved).unwrap_or_default()
    }

    /// The state for a checkpoint: (sequencer, everything else). An error: a half-arrived
    /// payload cannot be read.
    pub fn checkpoint(&self) -> Result<(Bytes, Bytes), StoreError> {
        let mut node = self.encode_own();
        self.certifier.encode_behind(&mut node);
        Ok((self.sequencer.encode()?, Bytes::from(node)))
    }

    /// The same where all is in memory, so that nothing can fail.
    pub fn encode(&self) -> (Bytes, Bytes) {
        self.checkpoint().unwrap_or_default()
    }

    /// Reads a checkpoint back. An empty `sequencer` is that of a genesis.
    pub fn decode(sequencer: &[u8], node: &[u8]) -> Result<Self, StateError> {
        if let Some(format) = Self::other_format(node) {
            let why = format!("format {format} where this version knows {FORMAT}");
            return Err(StateError(why));
        }
        let (saved, certifier): (Saved, _) =
            postcard::take_from_bytes(node).map_err(|e| StateError(format!("node part: {e}")))?;
        if !saved.chunked.is_empty() {
            let why = "it was taken while a write set was applied in chunks";
            return Err(StateError(why.into()));
        }
        let certifier = Certifier::decode(certifier)
            .map_err(|e| StateError(format!("certification index: {e}")))?;
        let sequencer = if sequencer.is_empty() {
            Sequencer::default()
        } else {
            Sequencer::decode(Bytes::copy_from_slice(sequencer))
                .map_err(|e| StateError(format!("sequencer: {e}")))?
        };
        Ok(ClusterState {
            history: saved.history,
            seqno: saved.seqno,
            sum: saved.sum,
            sums: Vec::new(),
            view_number: saved.view_number,
            members: saved.members.into_iter().map(|m| (m.uuid, m)).collect(),
            transfers: saved.transfers.into_iter().collect(),
            departed: saved.departed.into_iter().collect(),
            cut: saved.cut,
            votes: saved.votes,
            vote_policy: saved.vote_policy,
            forks: saved.forks,
            arriving: saved.arriving,
            chunked: BTreeMap::new(),
            ahead: None,
            chunked_span: 0,
            keys_max: KEYS_MAX,
            streams: (saved.streams.into_iter())
                .map(|s| ((s.source, s.trx_id), s))
                .collect(),
            certifier,
            sequencer,
        })
    }

    /// Runs one committed entry. Entries must come in log order, without gaps.
    pub fn deliver(&mut self, entry: &Committed) -> Vec<Event> {
        let events = self.run(entry);
        // Not before: one that this entry made whole counts to the end of its own delivery.
        if !self.arriving.is_empty() {
            let open = self.sequencer.open_pieces_from().unwrap_or(u64::MAX);
            self.arriving.retain(|index, _| *index >= open);
        }
        events
    }

    fn run(&mut self, entry: &Committed) -> Vec<Event> {
        self.sums.clear();
        self.forks.entry(entry.leadership(), self.seqno);
        if let CommittedBody::Message(m) = &entry.body
            && m.kind == kind::CONTROL
            && m.oseq == 1
            && let Some(Control::Join(join)) = decode(&m.body)
            && join.origin == m.origin
            && !self.departed.contains_key(&join.origin)
            && !self.members.contains_key(&join.uuid)
        {
            // The first message of a node that starts on its own log.
            self.sequencer.register(m.origin);
        }
        if let CommittedBody::Message(m) = &entry.body
            && matches!(m.part, Part::Piece { i: 0, .. })
        {
            self.arriving.insert(entry.index, self.seqno);
        }
        let message = match self.sequencer.accept(entry) {
            Ok(Some(message)) => message,
            Ok(None) => return Vec::new(),
            Err(e) => {
                return vec![Event::Corrupt {
                    index: entry.index,
                    why: e.to_string(),
                }];
            }
        };
        self.chunked_span = match self.chunked.is_empty() {
            true => 0,
            false => self.chunked_span + message.len,
        };
        match message.kind {
            kind::WRITE_SET => self.write_set(message),
            kind::CONTROL => match decode::<Control>(&message.body) {
                Some(control) => self.control(control, entry.leadership()),
                None => vec![Event::Corrupt {
                    index: message.index,
                    why: format!(
                        "a control message of {} bytes cannot be decoded",
                        message.len
                    ),
                }],
            },
            other => vec![Event::Corrupt {
                index: message.index,
                why: format!("messages of kind {other} are unknown to this version"),
            }],
        }
    }

    /// How far back a write set may have seen the order.
    fn window(&self) -> Seqno {
        let since = self.arriving.first_key_value();
        let on_its_way = since.map_or(0, |(_, seqno)| self.seqno - seqno);
        (on_its_way + dromon_certify::MAX_LENGTH).min(WINDOW_MAX)
    }

    fn write_set(&mut self, message: Delivered) -> Vec<Event> {
        let Delivered {
            origin, tag, index, ..
        } = message;
        let arrived = message.arrived;
        let decoded = match &arrived {
            Some(arrived) => WriteSet::decode_arrived(message.body, arrived),
            None => WriteSet::decode(message.body),
        };
        let write_set = match decoded {
            Ok(ws) => ws,
            Err(e) => {
                return vec![Event::Corrupt {
                    index,
                    why: format!("a write set of origin {origin}: {e}"),
                }];
            }
        };
        let mut events = Vec::new();
        let plan = self.plan_of(&write_set, arrived.as_ref());
        if plan.is_some() || !passes_ahead(write_set.flags()) {
            self.place_ahead(&mut events);
        }
        // From the place that comes next: those ahead may have taken many.
        self.certifier.set_window(self.window());
        if let Some(plan) = plan {
            events.push(self.open_chunked(origin, tag, index, write_set, plan));
            self.forget_old();
            return events;
        }
        if write_set.flags().is_toi() && !self.chunked.is_empty() {
            self.yield_to(&write_set, &mut events);
        }
        self.seqno += 1;
        let verdict = match self.unlawful(write_set.header()) {
            Some(reason) => self.certifier.refuse(self.seqno, reason),
            None => self.certifier.certify(self.seqno, write_set.head()),
        };
        self.takes(Taken::WriteSet {
            sum: write_set.sum(),
            passed: verdict.passed(),
            cut: false,
        });
        self.stream_placed(
            self.seqno,
            message.from,
            write_set.header(),
            verdict.passed(),
        );
        self.forget_old();
        let source = write_set.header().source;
        events.push(Event::WriteSet {
            seqno: self.seqno,
            write_set,
            verdict,
            source,
            origin,
            tag,
            from: message.from,
            index,
        });
        self.place_if_reached(&mut events);
        events
    }

    fn forget_old(&mut self) {
        if self.seqno % PURGE_EVERY == 0 {
            // Nothing this far back can decide any more: see `MAX_LENGTH`.
            let window = self.window();
            self.certifier.purge(self.seqno - window);
        }
        self.certifier.keep_within(self.keys_max, KEYS_KEPT);
    }

    fn control(&mut self, control: Control, ordered_by: Leadership) -> Vec<Event> {
        let mut events = Vec::new();
        // The others look at, or change, what a chunk's place decides.
        if !matches!(
            control,
            Control::Chunk { .. } | Control::Cut { .. } | Control::Vote { .. }
        ) {
            self.place_ahead(&mut events);
        }
        events.extend(self.carry_out(control, ordered_by));
        events
    }

    fn carry_out(&mut self, control: Control, ordered_by: Leadership) -> Vec<Event> {
        match control {
            Control::Join(join) => self.join(join),
            Control::Leave { uuid, reason } => self.leave(uuid, reason),
            Control::Evict { uuid, by } if by == ordered_by => {
                self.leave(uuid, LeaveReason::Evicted)
            }
            Control::Evict { .. } => Vec::new(),
            Control::Rejoin { uuid, released } => self.rejoin(uuid, released),
            Control::Chunk { id, n, ahead } => self.next_chunk(id, n, ahead),
            Control::StateRequest {
                joiner,
                donors,
                request,
            } => self.state_request(joiner, &donors, request, None),
            Control::BypassRequest {
                joiner,
                donors,
                request,
                position,
            } => {
                // A few bytes: from whom they come matters little.
                let donors = format!("{donors},");
                self.state_request(joiner, &donors, request, Some(position))
            }
            Control::StateSent {
                donor,
                joiner,
                position,
                error,
                gaps,
            } => self.state_sent(donor, joiner, position, error, gaps),
            Control::Joined { uuid } => match self.members.get_mut(&uuid) {
                Some(m) if m.state == MemberState::Joiner => {
                    // Its donor is free only when it says so itself.
                    m.complete = true;
                    self.move_to(uuid, MemberState::Joined)
                }
                _ => Vec::new(),
            },
            Control::Synced { uuid } => match self.members.get(&uuid) {
                Some(m) if m.state == MemberState::Joined => {
                    self.move_to(uuid, MemberState::Synced)
                }
                _ => Vec::new(),
            },
            Control::Desync { uuid } => match self.members.get_mut(&uuid) {
                Some(m) => {
                    m.desync += 1;
                    let synced = matches!(m.state, MemberState::Synced | MemberState::Joined);
                    let mut events = Vec::new();
                    if synced {
                        events = self.move_to(uuid, MemberState::Donor);
                    }
                    events.push(Event::Desynced { uuid });
                    events
                }
                None => Vec::new(),
            },
            Control::Resync { uuid } => match self.members.get_mut(&uuid) {
                Some(m) => {
                    m.desync = m.desync.saturating_sub(1);
                    let mut events = self.donor_free(uuid);
                    events.push(Event::Resynced { uuid });
                    events
                }
                None => Vec::new(),
            },
            Control::Cut { seqno } => {
                if seqno <= self.cut {
                    return Vec::new();
                }
                self.cut = seqno;
                self.certifier.purge(seqno);
                self.votes.forget_through(seqno);
                vec![Event::Cut { seqno }]
            }
            Control::Vote {
                uuid,
                seqno,
                digest,
            } => {
                let applies = self.members.get(&uuid).is_some_and(|m| !m.witness);
                if !applies || seqno > self.seqno {
                    return Vec::new();
                }
                if seqno <= self.cut && !self.votes.knows(seqno) {
                    // Everybody else finished it long ago.
                    return vec![Event::VoteDecided { seqno, winner: 0 }];
                }
                let voters = self.voters();
                let mut events = match self.votes.cast(seqno, uuid, digest, &voters) {
                    Cast::Opened => vec![Event::VoteAsked { seqno, digest }],
                    Cast::Counted => Vec::new(),
                    Cast::Late { winner } => vec![Event::VoteDecided { seqno, winner }],
                };
                events.extend(self.count_votes());
                events
            }
            Control::Weight { uuid, weight } => {
                let Some(m) = self.members.get_mut(&uuid) else {
                    return Vec::new();
                };
                m.weight = weight;
                vec![Event::Weight { uuid }]
            }
        }
    }

    fn next_view(&mut self, events: &mut Vec<Event>) -> ClusterView {
        self.roll_back_orphans(events);
        self.forget_streams_left();
        self.seqno += 1;
        self.view_number += 1;
        self.certifier.view(self.seqno);
        self.departed
            .retain(|_, at| self.seqno - *at < DEPARTED_KEPT);
        let view = self.view();
        self.takes(Taken::View(&view));
        view
    }

    fn join(&mut self, join: Join) -> Vec<Event> {
        if self.members.contains_key(&join.uuid) {
            return Vec::new(); // asked twice
        }
        if self.departed.contains_key(&join.origin) {
            return Vec::new(); // a late copy: that incarnation has left since
        }
        // An earlier incarnation of the same node did not say good-bye.
        let replaced: Vec<Uuid> = self
            .members
            .values()
            .filter(|m| m.addr == join.addr || m.raft_id == join.raft_id)
            .map(|m| m.uuid)
            .collect();
        // The same log under a new incarnation: it keeps its vote, and its
        // database goes on from where that log leads.
        let kept = join.need == Need::Log
            && self
                .members
                .values()
                .any(|m| m.raft_id == join.raft_id && m.complete);
        let votes = self
            .members
            .values()
            .any(|m| m.raft_id == join.raft_id && (m.complete || m.votes));
        let mut events = Vec::new();
        let mut left = Vec::new();
        for uuid in replaced {
            events.extend(self.remove(uuid, &mut left, LeaveReason::Rejoins));
        }
        self.roll_back_orphans(&mut events);
        // The first member with data has the state by definition, and so has whoever
        // lacks nothing but this view. Who needs a copy waits for somebody who has it.
        let founds = join.need == Need::Log && !join.witness;
        let first = founds && !self.members.values().any(|m| m.complete);
        let has_all = join.position == self.position();
        let complete = first || kept || (has_all && join.need == Need::Log);
        if first {
            self.vote_policy = join.vote_policy;
        }
        self.sequencer.register(join.origin);
        let member = Member {
            uuid: join.uuid,
            origin: join.origin,
            name: join.name,
            incoming: join.incoming,
            addr: join.addr,
            raft_id: join.raft_id,
            segment: join.segment,
            weight: join.weight,
            state: if complete {
                MemberState::Joined
            } else {
                MemberState::Joiner
            },
            desync: 0,
            complete,
            votes,
            joined_at: self.seqno + 1,
            log_start: join.log_start,
            witness: join.witness,
            stateless: join.stateless,
        };
        self.members.insert(join.uuid, member);
        let view = self.next_view(&mut events);
        events.push(Event::View {
            view,
            joined: Some((join.uuid, join.need)),
            left,
        });
        if first {
            events.extend(self.move_to(join.uuid, MemberState::Synced));
        }
        events.extend(self.count_votes());
        events
    }

    fn leave(&mut self, uuid: Uuid, reason: LeaveReason) -> Vec<Event> {
        let mut left = Vec::new();
        let mut events = self.remove(uuid, &mut left, reason);
        if left.is_empty() {
            return Vec::new(); // gone already
        }
        let view = self.next_view(&mut events);
        events.push(Event::View {
            view,
            joined: None,
            left,
        });
        events.extend(self.count_votes());
        events
    }

    fn rejoin(&mut self, uuid: Uuid, released: Seqno) -> Vec<Event> {
        let Some(mut member) = self.members.remove(&uuid) else {
            return Vec::new();
        };
        // Its clients were told that nobody knows what came of that, and their rows are free: others there may
        // have changed them since, which certification takes for ordered by the locks of their node.
        self.sequencer.drop_open(member.origin);
        let lacks = self.seqno.saturating_sub(released);
        let still_synced = member.state == MemberState::Synced && lacks <= CAUGHT_UP;
        // The copy that it gives goes on: it is of a position that stays what it
        // is, and the process that makes it has not ended.
        let mut events = self.break_transfers(|joiner, _| *joiner == uuid);
        let gives = self.transfers.values().any(|donor| *donor == uuid);
        let left = vec![(member.clone(), LeaveReason::Rejoins)];
        let view = self.next_view(&mut events);
        events.push(Event::View {
            view,
            joined: None,
            left,
        });
        if member.complete {
            member.state = match gives {
                true => MemberState::Donor,
                false => MemberState::Joined,
            };
        }
        member.desync = 0;
        member.joined_at = self.seqno + 1;
        self.members.insert(uuid, member);
        let view = self.next_view(&mut events);
        events.push(Event::View {
            view,
            joined: Some((uuid, Need::Log)),
            left: Vec::new(),
        });
        if still_synced {
            // There is next to nothing to catch up with: its server need not wait
            // until it has asked.
            events.extend(self.move_to(uuid, MemberState::Synced));
        }
        events.extend(self.count_votes());
        events
    }

    fn remove(
        &mut self,
        uuid: Uuid,
        left: &mut Vec<(Member, LeaveReason)>,
        reason: LeaveReason,
    ) -> Vec<Event> {
        let Some(member) = self.members.remove(&uuid) else {
            return Vec::new();
        };
        self.sequencer.forget(member.origin);
        self.departed.insert(member.origin, self.seqno);
        left.push((member, reason));
        self.break_transfers(|joiner, donor| *joiner == uuid || *donor == uuid)
    }

    /// Bytes of payloads that have not arrived whole.
    pub fn open_bytes(&self) -> u64 {
        self.sequencer.open_bytes()
    }

    fn state_request(
        &mut self,
        joiner: Uuid,
        donors: &str,
        request: Vec<u8>,
        bypass: Option<Position>,
    ) -> Vec<Event> {
        let Some(member) = self.members.get(&joiner) else {
            return Vec::new();
        };
        // Who needs no copy may be complete, as its log says.
        let waits = match member.state {
            MemberState::Joiner => true,
            MemberState::Joined => bypass.is_some(),
            MemberState::Donor | MemberState::Synced => false,
        };
        if !waits || self.transfers.contains_key(&joiner) {
            return Vec::new();
        }
        let busy = |u: &Uuid| self.transfers.values().any(|d| d == u) || self.sends_chunked(u);
        let Some(donor) = donor::choose(member, donors, self.members.values(), busy) else {
            return vec![Event::NoDonor { joiner }];
        };
        self.transfers.insert(joiner, donor);
        let mut events = self.move_to(donor, MemberState::Donor);
        events.push(Event::Donate {
            donor,
            joiner,
            donors: donors.to_owned(),
            request: request.into(),
            bypass,
        });
        events
    }

    fn state_sent(
        &mut self,
        donor: Uuid,
        joiner: Uuid,
        position: Position,
        error: i32,
        gaps: Vec<Gap>,
    ) -> Vec<Event> {
        if self.transfers.get(&joiner) != Some(&donor) {
            return Vec::new();
        }
        self.transfers.remove(&joiner);
        let mut events = vec![Event::TransferEnded {
            donor,
            joiner,
            position,
            error,
            gaps,
        }];
        events.extend(self.donor_free(donor));
        events
    }

    /// Moves a donor on when it gives to nobody and is not desynced any more.
    fn donor_free(&mut self, uuid: Uuid) -> Vec<Event> {
        let busy = self.transfers.values().any(|&d| d == uuid);
        match self.members.get(&uuid) {
            Some(m) if m.state == MemberState::Donor && m.desync == 0 && !busy => {
                self.move_to(uuid, MemberState::Joined)
            }
            _ => Vec::new(),
        }
    }

    fn move_to(&mut self, uuid: Uuid, to: MemberState) -> Vec<Event> {
        match self.members.get_mut(&uuid) {
            Some(m) if m.state != to => {
                let from = std::mem::replace(&mut m.state, to);
                vec![Event::State { uuid, from, to }]
            }
            _ => Vec::new(),
        }
    }

    /// Who is asked when applying an event failed somewhere.
    pub(crate) fn voters(&self) -> Vec<Uuid> {
        let appliers = self.members.values().filter(|m| m.complete && !m.witness);
        appliers.map(|m| m.uuid).collect()
    }

    fn count_votes(&mut self) -> Vec<Event> {
        let voters = self.voters();
        self.votes
            .count(&voters, self.vote_policy)
            .into_iter()
            .map(|(seqno, winner)| Event::VoteDecided { seqno, winner })
            .collect()
    }
}

/// Whether a write set may take a place before a chunk that lies ahead: a whole
/// transaction that runs beside others.
fn passes_ahead(flags: Flags) -> bool {
    flags.without(Flags::IMPLICIT_DEPS) == Flags::TRX_START | Flags::TRX_END
}

#[cfg(test)]
pub(crate) mod tests;
