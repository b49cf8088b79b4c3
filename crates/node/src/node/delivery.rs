//! The delivery thread: committed entries become events for clients, gates
//! and appliers. It never waits for any of them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dromon_certify::Verdict;
use dromon_gates::{QueueItem, Seqno};
use dromon_order::{Committed, CommittedBody, Order};
use dromon_writeset::Uuid;

use super::isolation::note_winner;
use super::leave::Left;
use super::retain::Found;
use super::transfer::NOT_NOW;
use super::{Delivered, Item, Node, Phase, lock};
use crate::cluster::{ClusterState, ClusterView, Event, Member, MemberState};
use crate::database::{View, ViewMember};
use crate::messages::{LeaveReason, Need};
use crate::parents::Parents;
use crate::retention::Mark;
use crate::spool::{PieceFiles, SPOOL_ABOVE};
use crate::thinning;
use crate::uniques::Uniques;
use crate::votes::{NOBODY, is_failure};

/// Half-arrived payloads up to this size may be part of an overdue checkpoint.
const OPEN_BYTES_MAX: u64 = 16 << 20;
/// So much log, or so many entries, behind what was due it is overdue.
const OVERDUE_BYTES: u64 = 96 << 20;
const OVERDUE_ENTRIES: u64 = 150_000;
/// How many index-to-seqno pairs are kept for read indexes.
const RECENT_KEPT: usize = 1 << 16;
/// What is said of a node that `evs.evict` named.
const EXPELLED: &str = "an operator evicted this node from the cluster; restart it, or set wsrep_cluster_address anew, to \
                        join again";

/// State names as tools know them.
pub(super) fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Joiner => "JOINER",
        MemberState::Donor => "DONOR/DESYNCED",
        MemberState::Joined => "JOINED",
        MemberState::Synced => "SYNCED",
    }
}

/// A view for the database.
pub(super) fn to_view(view: &ClusterView, own: &Uuid) -> View {
    View {
        position: view.position,
        number: view.number,
        primary: true,
        own: view.index_of(own),
        members: view.members.iter().map(view_member).collect(),
    }
}

pub(super) fn view_member(m: &Member) -> ViewMember {
    ViewMember {
        uuid: m.uuid,
        name: m.name.clone(),
        incoming: m.incoming.clone(),
    }
}

/// What the delivery thread carries from batch to batch.
struct Course {
    state: ClusterState,
    /// Log bytes up to here, of those that were found too.
    bytes: u64,
    bytes_at_checkpoint: u64,
    /// Of the last one.
    checkpoint_size: u64,
    entries: u64,
    view_seen: bool,
    index: u64,
    /// See [`Node::shorten_found`].
    found: Found,
    /// Nothing more is to be delivered to this node.
    ended: bool,
    uniques: Uniques,
    parents: Parents,
    /// The last fragment that failed: its rollback frees rows, and whoever
    /// changes them next must come after it.
    failed_fragment: Seqno,
}

impl Node {
    /// Runs until the order ends. `state` is that of the checkpoint it starts
    /// at; `again`: the log entries between that one and the newest checkpoint.
    pub(super) fn deliver_all(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        state: ClusterState,
        again: Option<(u64, u64)>,
    ) {
        let mut state = state;
        let pieces = PieceFiles::with_log(self.spooler.clone(), self.piece_log());
        state.set_piece_store(Box::new(pieces), SPOOL_ABOVE as u64);
        let found = self.log_found();
        let bytes = found.bytes_before;
        let mut course = Course {
            state,
            bytes,
            bytes_at_checkpoint: bytes,
            checkpoint_size: 0,
            entries: 0,
            view_seen: false,
            index: 0,
            found,
            ended: false,
            uniques: Uniques::telling(self.unique_tables.clone()),
            parents: Parents::default(),
            failed_fragment: -1,
        };
        let at = course.state.position().seqno;
        lock(&self.delivered).sums.push(at, course.state.sum());
        self.restore_streams(&course.state);
        if let Some((from, to)) = again {
            if !self.deliver_again(order, &mut course, from, to) {
                // What follows means nothing to who lacks that.
                order.stand_down();
                return;
            }
            // They lie before the newest checkpoint.
            course.bytes = bytes;
        }
        order.set_desired(course.state.desired());
        loop {
            let batch = order.next_committed(512, Duration::from_millis(500));
            if lock(&self.delivered).stopped {
                break;
            }
            self.shorten_found(order, &mut course.found, &course.state, course.bytes);
            if batch.is_empty() {
                if order.status().failed.is_some() {
                    break;
                }
                continue;
            }
            for entry in &batch {
                if !course.ended {
                    self.deliver_one(order, &mut course, entry);
                }
            }
            if course.ended {
                order.stand_down();
                break;
            }
            self.checkpoint_if_due(order, &mut course);
        }
    }

    /// Delivers entries that the newest checkpoint contains already, because
    /// the database does not. False: not all of them.
    fn deliver_again(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        course: &mut Course,
        from: u64,
        to: u64,
    ) -> bool {
        let mut next = from;
        while next <= to {
            if lock(&self.delivered).stopped {
                return false;
            }
            match order.read_log(next, to, 4 << 20) {
                Ok(entries) if !entries.is_empty() => {
                    for entry in &entries {
                        next = entry.index + 1;
                        self.deliver_one(order, course, entry);
                    }
                }
                Ok(_) => break,
                Err(e) => {
                    self.inconsistent(&format!(
                        "the own log cannot be read again from index {next}: {e}"
                    ));
                    return false;
                }
            }
        }
        !course.ended
    }

    fn deliver_one(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        course: &mut Course,
        entry: &Committed,
    ) {
        course.index = entry.index;
        course.entries += 1;
        if let CommittedBody::Message(m) = &entry.body {
            course.bytes += m.body.len() as u64 + 64;
        }
        for event in course.state.deliver(entry) {
            self.event(order, course, event);
        }
        let mut delivered = lock(&self.delivered);
        delivered.index = entry.index;
        delivered.seqno = course.state.position().seqno;
        let pair = (delivered.index, delivered.seqno);
        delivered.recent.push_back(pair);
        for (seqno, sum) in course.state.sums() {
            delivered.sums.push(seqno, sum);
        }
        if delivered.recent.len() > RECENT_KEPT {
            delivered.recent.pop_front();
        }
        let waiting = delivered.waiting > 0;
        drop(delivered);
        if waiting {
            self.delivered_more.notify_all();
        }
    }

    fn event(self: &Arc<Self>, order: &Arc<dyn Order>, course: &mut Course, event: Event) {
        match event {
            Event::WriteSet {
                seqno,
                write_set,
                verdict,
                source: _,
                origin,
                tag,
                from,
                index,
            } => {
                self.takes_place(seqno, None);
                self.count_certified(seqno, write_set.header().last_seen, &verdict);
                if let Some(conflict) = verdict.conflict()
                    && self.settings().log_conflicts
                {
                    self.log_conflict(&course.state, seqno, &write_set, conflict);
                }
                if write_set.header().flags.is_toi() {
                    self.newest_toi.store(seqno, Relaxed);
                }
                self.newest_small.store(seqno, Relaxed);
                self.count_small.fetch_add(1, Relaxed);
                self.stream_delivered(seqno, &write_set, verdict.passed());
                let own = self
                    .shared()
                    .join
                    .as_ref()
                    .is_some_and(|j| j.origin == origin);
                let sent = if own {
                    lock(&self.pending).take(tag)
                } else {
                    None
                };
                if own && tag == 0 {
                    lock(&self.delivered).rollbacks_seen += 1;
                }
                // Local ones too: a remote one may have to wait for them.
                let unseen = match verdict.passed() {
                    true => {
                        let released = self.gates.released();
                        let unique = course.uniques.depends_on(seqno, &write_set, released);
                        unique.max(course.parents.depends_on(seqno, &write_set, released))
                    }
                    false => -1,
                };
                let unseen = unseen.max(course.failed_fragment);
                let flags = write_set.header().flags;
                if !verdict.passed() && flags.is_fragment() {
                    course.failed_fragment = seqno;
                }
                if sent.is_some() && verdict.passed() && write_set.header().chunk != 0 {
                    self.tell_whole(&write_set);
                }
                let passed = match &verdict {
                    Verdict::Passed { depends_on } => Some(*depends_on),
                    Verdict::Failed { .. } => None,
                };
                match sent {
                    Some(sent) => {
                        let at = (seqno, index);
                        self.own_stream_delivered(&course.state, at, &write_set, passed.is_some());
                        self.own_delivered(&sent.trx, seqno, index, passed);
                    }
                    None => {
                        let passed = passed.is_some();
                        self.held_delivered(&course.state, (seqno, index), &write_set, passed);
                        let certifier = course.state.certifier();
                        let by_tables = passed && certifier.counts_by_tables(write_set.head());
                        if by_tables && !self.setup.witness {
                            // Who has not seen this place fails, whatever rows he touches.
                            let tables = write_set.keys().named_tables();
                            self.closed.names_wholly(seqno, &tables);
                        }
                        self.queue_write_set(seqno, &write_set, &verdict, unseen, (from, index));
                    }
                }
            }
            Event::Chunk {
                seqno,
                chunked,
                part,
                depends_on,
            } => self.chunk_delivered(&course.state, seqno, chunked, part, depends_on),
            Event::Ahead {
                place,
                chunked,
                part,
                depends_on,
            } => self.chunk_lies_ahead(place, chunked, part, depends_on),
            Event::Nothing { first, last } => {
                for seqno in first..=last {
                    self.takes_place(seqno, None);
                    self.gates.cancel(seqno);
                }
            }
            Event::View { view, joined, left } => {
                self.view_delivered(order, course, view, joined, left);
            }
            Event::Donate {
                donor,
                joiner,
                donors,
                request,
                bypass,
            } => {
                let names = self.name_pair(&course.state, joiner, donor);
                self.note(&format!(
                    "Member {} requested state transfer from '{}'. Selected {} as donor.",
                    names.0,
                    match donors.trim() {
                        "" => "*any*",
                        donors => donors,
                    },
                    names.1
                ));
                if donor == self.shared().uuid {
                    self.shared().donating = Some(joiner);
                    if bypass.is_none() {
                        self.gates.hold(course.state.position().seqno);
                    }
                    let item = Item::Donate {
                        joiner,
                        request,
                        bypass,
                    };
                    self.push_notice(course.state.position().seqno, item);
                }
            }
            Event::NoDonor { joiner } => {
                let mut shared = self.shared();
                if joiner == shared.uuid {
                    shared.no_donor = true;
                    drop(shared);
                    self.changed.notify_all();
                }
            }
            Event::TransferEnded {
                donor,
                joiner,
                error,
                gaps,
                ..
            } => {
                let names = self.name_pair(&course.state, joiner, donor);
                let result = if error == 0 { "complete" } else { "FAILED" };
                self.note(&format!(
                    "{}: State transfer to {} {result}.",
                    names.1, names.0
                ));
                let mut shared = self.shared();
                if joiner == shared.uuid && error == NOT_NOW {
                    shared.no_donor = true;
                    shared.not_now = Some(donor);
                } else if joiner == shared.uuid && error != 0 {
                    shared.transfer_failed = Some((donor, error));
                } else if joiner == shared.uuid {
                    shared.transfer_gaps = Some(gaps);
                }
                if donor == shared.uuid {
                    shared.donating = None;
                }
                drop(shared);
                self.changed.notify_all();
            }
            Event::State { uuid, from, to } => {
                self.state_changed(order, &course.state, uuid, from, to);
            }
            Event::Desynced { uuid } => {
                self.publish(order, &course.state);
                let mut shared = self.shared();
                // Before it joined again that was counted already.
                if uuid == shared.uuid && shared.joined.is_some() {
                    shared.desyncs_seen += 1;
                }
                drop(shared);
                self.changed.notify_all();
            }
            Event::Resynced { .. } | Event::Weight { .. } => self.publish(order, &course.state),
            Event::VoteAsked { seqno, digest } => {
                self.vote_asked(seqno, digest);
                let item = QueueItem {
                    seqno: course.state.position().seqno,
                    ordered: false,
                    depends_on: seqno,
                    exclusive: false,
                    bytes: 0,
                    value: Item::VoteRequest { seqno },
                };
                self.enqueue(item);
            }
            Event::VoteDecided { seqno, winner } => {
                self.note(&match winner {
                    NOBODY => format!(
                        "Vote on seqno {seqno} ends without an outcome: of those asked nobody else is left"
                    ),
                    winner => format!("Vote on seqno {seqno} decided: {winner:016x}"),
                });
                let released = self.gates.released();
                // Who votes late is told once more; who is there by then had no say.
                let again = note_winner(&mut lock(&self.votes), seqno, winner, released);
                lock(&self.own_ballots).asked.remove(&seqno);
                self.vote_decided.notify_all();
                if is_failure(winner) && !again {
                    let alone = course.state.voters().len() < 2;
                    self.enqueue(QueueItem {
                        seqno: course.state.position().seqno,
                        ordered: false,
                        depends_on: seqno,
                        exclusive: false,
                        bytes: 0,
                        value: Item::VoteLost { seqno, alone },
                    });
                }
            }
            Event::Cut { .. } => {}
            Event::Corrupt { index, why } => {
                course.ended = true;
                self.inconsistent(&format!(
                    "log entry {index}: {why}. This node stops; its database is intact up to seqno {}",
                    self.gates.released()
                ));
            }
        }
        let index = course.state.certifier().stats();
        let closed = index.keys - index.open_keys;
        self.counters.cert_index.store(index.keys as u64, Relaxed);
        self.counters.cert_closed.store(closed as u64, Relaxed);
    }

    pub(super) fn count_certified(&self, seqno: Seqno, last_seen: Seqno, verdict: &Verdict) {
        let c = &self.counters;
        c.certified.fetch_add(1, Relaxed);
        c.cert_interval_sum
            .fetch_add((seqno - last_seen - 1).max(0) as u64, Relaxed);
        if let Verdict::Passed { depends_on } = verdict {
            c.cert_distance_sum
                .fetch_add((seqno - depends_on).max(0) as u64, Relaxed);
        }
    }

    fn log_conflict(
        &self,
        state: &ClusterState,
        seqno: Seqno,
        write_set: &dromon_writeset::WriteSet,
        conflict: &dromon_certify::Conflict,
    ) {
        let name = |uuid: &Uuid| {
            state
                .members()
                .find(|m| m.uuid == *uuid)
                .map_or_else(|| uuid.to_string(), |m| m.name.clone())
        };
        let header = write_set.header();
        let of = |trx_id: u64| match trx_id {
            u64::MAX => "a statement (DDL)".to_owned(),
            id => format!("transaction {id}"),
        };
        self.note(&format!(
            "trx conflict for table {} key {}: seqno {seqno} (node {}, {}, connection {}) fails against seqno {} (node \
             {}, {}, connection {})",
            conflict.table,
            conflict.key,
            name(&header.source),
            of(header.trx_id),
            header.conn_id,
            conflict.seqno,
            name(&conflict.source),
            of(conflict.trx_id),
            conflict.conn_id,
        ));
    }

    /// Something without a seqno that waits for everything before it.
    pub(super) fn push_notice(&self, seqno: Seqno, item: Item) {
        self.enqueue(QueueItem {
            seqno,
            ordered: false,
            depends_on: seqno,
            exclusive: true,
            bytes: 0,
            value: item,
        });
    }

    fn name_pair(&self, state: &ClusterState, a: Uuid, b: Uuid) -> (String, String) {
        let name = |uuid: Uuid| {
            let found = state.members().enumerate().find(|(_, m)| m.uuid == uuid);
            found.map_or_else(
                || format!("({uuid})"),
                |(i, m)| format!("{i}.0 ({})", m.name),
            )
        };
        (name(a), name(b))
    }

    fn publish(&self, order: &Arc<dyn Order>, state: &ClusterState) {
        order.set_desired(state.desired());
        let all: Vec<Uuid> = state.members().map(|m| m.uuid).collect();
        let named = |wanted| -> BTreeMap<Uuid, String> {
            let some = state.members().filter(|m| m.state == wanted && !m.witness);
            some.map(|m| (m.uuid, m.name.clone())).collect()
        };
        let (counted, catching_up) = (named(MemberState::Synced), named(MemberState::Joined));
        lock(&self.digests).members(&all);
        self.flow.set_counted(counted, catching_up, &all);
        let mut shared = self.shared();
        let mut view = state.view();
        if let Some(old) = &shared.view {
            // Between views the view's own place does not move.
            if old.number == view.number {
                view.position = old.position;
            }
        }
        shared.view = Some(view);
        drop(shared);
        self.changed.notify_all();
        self.tell_weighing(state);
    }

    /// Says what this node is going to catch up with.
    pub(super) fn tell_receiver(&self, from: Seqno, to: Seqno) {
        let addr = self.settings().advertised.to_string();
        self.note(&format!("IST receiver addr using tcp://{addr}"));
        self.note(&format!(
            "Prepared IST receiver for {from}-{to}, listening at: tcp://{addr}"
        ));
    }

    /// Says, where the leader runs, to whom the log goes from now on.
    fn tell_sender(
        &self,
        order: &Arc<dyn Order>,
        view: &ClusterView,
        joined: Option<(Uuid, Need)>,
        own: Uuid,
    ) {
        let joiner = joined.filter(|(uuid, _)| *uuid != own);
        let joiner = joiner.and_then(|(uuid, _)| view.members.iter().find(|m| m.uuid == uuid));
        if let Some(m) = joiner
            && order.status().is_leader
        {
            self.note(&format!(
                "async IST sender starting to serve tcp://{} sending the log from index {} on, seqno {} and what follows \
                 included",
                m.addr,
                m.log_start + 1,
                view.position.seqno
            ));
        }
    }

    fn view_delivered(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        course: &mut Course,
        view: ClusterView,
        joined: Option<(Uuid, Need)>,
        left: Vec<(Member, LeaveReason)>,
    ) {
        let seqno = view.position.seqno;
        course.view_seen = true;
        lock(&self.digests).taken(seqno, course.state.digest());
        let own = self.shared().uuid;
        for (member, reason) in &left {
            let why = match reason {
                LeaveReason::Graceful => "left",
                LeaveReason::Evicted => "was silent and is evicted",
                LeaveReason::Expelled => "was evicted by an operator",
                LeaveReason::Inconsistent => "left: its data is inconsistent",
                LeaveReason::Rejoins => "comes back, started anew or after it had lost touch",
            };
            self.note(&format!(
                "forgetting {} ({}): it {why}",
                member.uuid, member.name
            ));
        }
        let my_index = view.index_of(&own).map_or(-1, |i| i as i64);
        self.note(&format!(
            "New COMPONENT: primary = yes, bootstrap = {}, my_idx = {my_index}, memb_num = {}; seqno {seqno}: {}",
            match view.number {
                1 => "yes",
                _ => "no",
            },
            view.members.len(),
            view.members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ")
        ));
        self.tell_sender(order, &view, joined, own);
        if joined.is_some_and(|(uuid, _)| uuid != own) {
            lock(&self.promised).joined();
        }
        self.streams_left(&view);
        self.held_left(seqno, &view);
        self.publish(order, &course.state);
        if joined.is_some_and(|(uuid, _)| uuid == own) {
            self.compare_policies(course.state.vote_policy());
            self.close_again(&course.state);
        }
        let left_self = left.iter().find(|(m, _)| m.uuid == own).map(|(_, r)| *r);
        let rejoins = left_self == Some(LeaveReason::Rejoins);
        // What befell this node before it joined (again) is only history now.
        let present = self.shared().joined.is_some();
        // A leave that it asked for to join again is no end, either: its server stays.
        let comes_back = match left_self {
            Some(LeaveReason::Evicted) => true,
            Some(LeaveReason::Graceful) => {
                matches!(self.phase(), Phase::NonPrimary | Phase::Rejoining)
            }
            _ => false,
        };
        if comes_back && present {
            course.ended = true;
            self.evicted(seqno);
            return;
        }
        self.takes_place(seqno, None);
        let (mut is_back, mut leaves_last) = (false, false);
        {
            let mut shared = self.shared();
            let origin = shared.join.as_ref().map(|j| j.origin);
            let joined = joined.filter(|(uuid, _)| {
                let member = view.members.iter().find(|m| m.uuid == *uuid);
                *uuid == own && member.map(|m| m.origin) == origin
            });
            if let Some((_, need)) = joined
                && shared.joined.is_none()
            {
                shared.joined = Some((view.clone(), need));
                shared.own_state = course
                    .state
                    .members()
                    .find(|m| m.uuid == own)
                    .map_or(MemberState::Joiner, |m| m.state);
            }
            if shared.joined.is_none() && seqno <= shared.position.seqno {
                shared.base = Some(view.clone());
            }
            if left_self.is_some() && !rejoins && shared.joined.is_some() {
                shared.own_leave = true;
                // Others may leave while this one still finishes what it has: they are later.
                leaves_last = view.members.is_empty();
                shared.left = Some(Left {
                    behind: seqno - 1,
                    last: leaves_last,
                });
            }
            if joined.is_some() && shared.rejoin_asked.is_some() {
                self.back_at.store(seqno, Relaxed);
                if shared.phase == Phase::NonPrimary {
                    shared.phase = Phase::Joined;
                }
                shared.rejoin_asked = None;
                shared.sync_asked = false;
                // A donor still is one.
                let member = course.state.members().find(|m| m.uuid == own);
                shared.own_state = member.map_or(MemberState::Joined, |m| m.state);
                is_back = true;
            }
        }
        if joined.is_some_and(|(uuid, _)| uuid == own) {
            let open: Vec<Seqno> = course.state.chunked().map(|(c, _)| c.id).collect();
            self.abandon_lost(&open);
        }
        if is_back {
            self.desync_again(order, false);
            self.tell_receiver(self.gates.released() + 1, seqno);
        }
        self.changed.notify_all();
        if leaves_last {
            self.save_left_last();
        }
        if left_self.is_some() && !rejoins && present {
            self.own_leave_delivered(seqno, left_self);
            return;
        }
        // One without this node too: the server must not see the same primary
        // view twice in a row (contract B.6).
        let value = Item::View(to_view(&view, &own));
        self.enqueue(QueueItem {
            seqno,
            ordered: true,
            depends_on: seqno - 1,
            exclusive: true,
            bytes: 0,
            value,
        });
    }

    fn compare_policies(&self, cluster: u8) {
        let own = self.settings().vote_policy;
        if own != cluster {
            self.note(&format!(
                "gcs.vote_policy={own} has no effect: the first node of this cluster set it to {cluster}, and that \
                 counts for all as long as one of them is left"
            ));
        }
    }

    fn state_changed(
        &self,
        order: &Arc<dyn Order>,
        state: &ClusterState,
        uuid: Uuid,
        from: MemberState,
        to: MemberState,
    ) {
        self.publish(order, state);
        let own = {
            let shared = self.shared();
            // What it was before it joined (again) is only history now.
            uuid == shared.uuid && shared.joined.is_some()
        };
        let (name, _) = self.name_pair(state, uuid, uuid);
        match (from, to) {
            (_, MemberState::Synced) => self.note(&format!("Member {name} synced with group.")),
            (_, MemberState::Donor) => {
                self.note(&format!("Member {name} desyncs itself from group"))
            }
            (MemberState::Donor, _) => {
                self.note(&format!("Member {name} resyncs itself to group."))
            }
            _ => {}
        }
        if !own {
            return;
        }
        self.note(&format!(
            "Shifting {} -> {} (TO: {})",
            state_name(from),
            state_name(to),
            state.position().seqno
        ));
        {
            let mut shared = self.shared();
            shared.own_state = to;
            shared.sync_asked = false;
        }
        self.changed.notify_all();
        if to == MemberState::Synced {
            self.push_notice(state.position().seqno, Item::Synced);
        }
        self.ask_synced(order);
    }

    /// This node's own departure came through the order.
    fn own_leave_delivered(&self, seqno: Seqno, reason: Option<LeaveReason>) {
        if self.phase() == Phase::Inconsistent {
            return; // its last views are on their way; this one would come between
        }
        if reason == Some(LeaveReason::Expelled) {
            self.note(EXPELLED);
            self.shared().stays_out = Some(EXPELLED.into());
        }
        let view = self.final_view(seqno - 1);
        let item = Item::Final(view);
        self.enqueue(QueueItem {
            seqno: seqno - 1,
            ordered: false,
            depends_on: seqno - 1,
            exclusive: true,
            bytes: 0,
            value: item,
        });
        let mut shared = self.shared();
        if shared.phase == Phase::Joined {
            shared.phase = Phase::Leaving;
        }
        drop(shared);
        self.abandon_pending();
        self.changed.notify_all();
    }

    pub(super) fn final_view(&self, seqno: Seqno) -> View {
        let position = crate::messages::Position {
            history: self.history(),
            seqno,
        };
        View {
            position,
            number: -1,
            primary: false,
            own: None,
            members: Vec::new(),
        }
    }

    fn checkpoint_if_due(&self, order: &Arc<dyn Order>, course: &mut Course) {
        let (bytes, entries) = thinning::due(course.checkpoint_size, self.settings().log_max);
        let due = course.view_seen
            || course.bytes - course.bytes_at_checkpoint >= bytes
            || course.entries >= entries;
        // A half-arrived payload would be part of it: wait until it is whole,
        // but not for ever.
        let overdue = course.entries >= entries + OVERDUE_ENTRIES
            || course.bytes - course.bytes_at_checkpoint >= bytes + OVERDUE_BYTES;
        let open = course.state.open_pieces_from().is_some();
        let small = course.state.open_bytes() <= OPEN_BYTES_MAX;
        // What is applied in chunks would be part of it whole.
        let chunked = course.state.has_chunked();
        if !due || chunked || (open && !(overdue && small)) {
            return;
        }
        let state = course.state.checkpoint().map_err(|e| e.to_string());
        let saved = state.and_then(|(sequencer, node)| {
            course.checkpoint_size = (sequencer.len() + node.len()) as u64;
            let saved = order.save_checkpoint(course.index, sequencer, node);
            saved.map_err(|e| e.to_string())
        });
        // If it failed, too, not again at once: what is in its way would still be.
        course.view_seen = false;
        course.entries = 0;
        course.bytes_at_checkpoint = course.bytes;
        if let Err(e) = saved {
            if !lock(&self.delivered).stopped {
                self.warn(&format!("no checkpoint at log index {}: {e}", course.index));
            }
            return;
        }
        let mut marks = lock(&self.checkpoints);
        marks.push_back(Mark {
            index: course.index,
            seqno: course.state.position().seqno,
            bytes_before: course.bytes,
        });
        drop(marks);
        self.purge_log(order, &course.state, course.bytes);
        self.thin_marks(order);
    }

    /// Waits until something more is delivered, or the end; `limit` at most.
    pub(super) fn wait_delivery<'a>(
        &self,
        mut delivered: MutexGuard<'a, Delivered>,
        limit: Duration,
    ) -> MutexGuard<'a, Delivered> {
        delivered.waiting += 1;
        let waited = self.delivered_more.wait_timeout(delivered, limit);
        let mut delivered = waited.unwrap_or_else(PoisonError::into_inner).0;
        delivered.waiting -= 1;
        delivered
    }

    /// The last seqno at or before log index `index`, once that is delivered.
    pub(super) fn seqno_at(&self, index: u64, deadline: Instant) -> Option<Seqno> {
        let mut delivered = lock(&self.delivered);
        while delivered.index < index {
            let now = Instant::now();
            if delivered.stopped || now >= deadline {
                return None;
            }
            delivered = self.wait_delivery(delivered, deadline - now);
        }
        let at = delivered.recent.partition_point(|(i, _)| *i <= index);
        // Older than what is remembered: the present is late enough.
        let pair = if at == 0 {
            None
        } else {
            delivered.recent.get(at - 1)
        };
        Some(pair.map_or(delivered.seqno, |(_, s)| *s))
    }
}
