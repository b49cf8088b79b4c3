//! What a member does beside its transactions: it reports, notices that it has
//! caught up, and as leader cuts, evicts and admits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_gates::Seqno;
use dromon_order::{NodeHandler, Order, OrderStatus, RaftId, Reply};
use dromon_writeset::Uuid;

use super::service::Job;
use super::{CatchingUp, ConnectError, Item, Node, Phase, Shared, lock};
use crate::cluster::{CAUGHT_UP, MemberState};
use crate::messages::{Answer, Control, Progress, Request, decode, encode, kind};
use crate::options::Settings;

/// A node without the majority asks the others this often whether they went on.
const SEEK_AFTER: Duration = Duration::from_secs(3);
/// How often a node that catches up says how far it is.
const CATCH_UP_TOLD: Duration = Duration::from_secs(10);
/// How often whoever started the process hears that it takes longer.
const STARTING_TOLD: Duration = Duration::from_secs(5);
/// A tick this late means that this node itself did not run.
const AWAY: Duration = Duration::from_secs(1);

/// What the `evs.*` options mean here.
///
/// A member silent for `evs.suspect_timeout` is evicted. A leader is replaced
/// when it was silent for `election_max` (so long its voters keep faith) and
/// then for a random time between `election_min` and `election_max`. A node
/// without a lease for `grace` is non-primary; one that hears a majority of
/// the voters waits longer, as they are about to elect; and `grace_led` if it hears
/// the leader among them, and still the same one: nobody is cut off, but their disks
/// are late, and as long as an answer may take no other leader is needed.
///
/// Those of one connection stay as they were when it began: engine and node must
/// go by the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timings {
    pub heartbeat: Duration,
    pub lease: Duration,
    pub election_min: Duration,
    pub election_max: Duration,
    pub grace: Duration,
    pub grace_in_company: Duration,
    pub grace_led: Duration,
}

/// A lease that this node has lost.
#[derive(Clone, Copy)]
pub(super) struct LostLease {
    since: Instant,
    /// The leader then, and its term.
    led: Option<(RaftId, u64)>,
}

impl Timings {
    pub(super) fn of(settings: &Settings) -> Self {
        Self::of_suspect(settings.suspect_timeout, settings.keepalive_period)
    }

    fn of_suspect(suspect: Duration, keepalive: Duration) -> Self {
        let suspect = suspect.max(Duration::from_millis(400));
        let election_min = (suspect / 7).min(Duration::from_secs(3));
        let lease = election_min * 9 / 10;
        Timings {
            heartbeat: (election_min / 5).min(keepalive),
            lease,
            election_min,
            // Narrow: a second candidate costs nothing, as a voter changes over
            // to the one with the higher id in the same term.
            election_max: election_min * 5 / 4,
            grace: election_min * 2,
            grace_in_company: election_min * 3,
            // With the lease that is `suspect`, but for a very long one.
            grace_led: election_min * 7 - lease,
        }
    }

    /// After how long a silence a member is evicted where `suspect` is asked for. Not before it
    /// has turned non-primary by itself, and a new leader could have been elected.
    pub(super) fn evicts_after(&self, suspect: Duration) -> Duration {
        suspect.max(self.lease + self.grace_in_company)
    }

    /// Whether a node that lost its lease so long ago is non-primary. `company`: whom it hears.
    fn is_over(&self, lost: Duration, company: impl FnOnce() -> Company) -> bool {
        lost >= self.grace
            && match company() {
                Company::None => true,
                Company::Majority => lost >= self.grace_in_company,
                Company::Led => lost >= self.grace_led,
            }
    }
}

/// Of whom a node without a lease has reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Not of a majority of the voters.
    None,
    Majority,
    /// Of a majority, and of the leader that it had with the lease and still has.
    Led,
}

/// The node as its order sees it.
pub(super) struct Handler {
    pub node: Weak<Node>,
}

impl NodeHandler for Handler {
    fn request(&self, _from: &str, body: Bytes, reply: Reply) {
        let Some(node) = self.node.upgrade() else {
            return;
        };
        let Some(request) = decode::<Request>(&body) else {
            reply.send(encode(&Answer::Refused(
                "the request cannot be decoded".into(),
            )));
            return;
        };
        let job = Job::Request { request, reply };
        if let Some(services) = node.services() {
            // If it is full the reply is dropped: the asker knows and tries again.
            let _ = services.try_send(job);
        }
    }

    fn message(&self, from: RaftId, body: Bytes) {
        if let (Some(node), Some(progress)) = (self.node.upgrade(), decode::<Progress>(&body))
            && node.is_members(from, &progress.uuid)
        {
            node.compare(&progress);
            node.flow.report(progress);
            node.look_applied();
            node.chunks_changed();
        }
    }

    fn tick(&self) -> Option<Bytes> {
        let node = self.node.upgrade()?;
        // If it could not be started, or ended while a chunk came.
        node.start_pacing();
        node.tell_stuck();
        node.tell_old();
        node.end_dropped_streams();
        node.tick()
    }

    fn spoilt(&self, kind: u8, tag: u64) {
        if kind == kind::WRITE_SET
            && let Some(node) = self.node.upgrade()
        {
            node.own_spoilt(tag);
        }
    }

    fn status(&self, status: &OrderStatus) {
        if let Some(node) = self.node.upgrade() {
            node.status_changed(status);
        }
    }

    fn went_back(&self, member: RaftId, index: u64) {
        if let Some(node) = self.node.upgrade() {
            node.member_went_back(member, index);
        }
    }

    fn reaches_nobody(&self) {
        if let Some(node) = self.node.upgrade() {
            node.warn(
                "this node leads, and what it orders was stored by nobody for long, though its heartbeats are answered: does \
                 the way from here to the others swallow large packets (MTU; VPN or tunnel without ICMP), or do all their \
                 disks hang? Leadership is handed over. Commits that wait are not lost",
            );
        }
    }

    fn position_lost(&self) {
        if let Some(node) = self.node.upgrade() {
            node.log_is_gone();
        }
    }
}

impl Node {
    /// Notices a lost lease, and its return. A short loss (an election, a busy
    /// machine) is waited out: nothing unsafe can be acknowledged meanwhile,
    /// since only a majority acknowledges.
    fn status_changed(&self, status: &OrderStatus) {
        let lost = {
            let mut lost = lock(&self.primary_lost);
            if status.primary {
                *lost = None;
            } else {
                lost.get_or_insert_with(|| LostLease {
                    since: Instant::now(),
                    led: led_by(status),
                });
            }
            *lost
        };
        let lost_for = lost.map(|lost| lost.since.elapsed());
        let flip = match (self.phase(), lost_for) {
            // No lease comes back to an engine that has failed.
            (Phase::Joined, Some(_)) if status.failed.is_some() => true,
            (Phase::Joined, Some(lost)) => self.timings().is_over(lost, || self.company(status)),
            (Phase::NonPrimary, None) => true,
            _ => false,
        };
        let leaving = matches!(
            self.phase(),
            Phase::Leaving | Phase::Closed | Phase::Inconsistent
        );
        let mut first = false;
        if let Some(why) = &status.failed
            && !leaving
        {
            first = !self.engine_failed.swap(true, Relaxed);
            if first {
                self.error(&format!(
                    "this node's ordering engine failed: {why}. Nothing was acknowledged that is not safe on a majority; \
                     the others go on. When the cause is gone, restart this server"
                ));
            }
            self.never_hears(why);
        }
        self.maybe_seek(lost_for);
        if flip && let Some(services) = self.services() {
            let job = Job::Lease {
                primary: status.primary,
            };
            // A full queue only delays this: the next tick asks again. Of an engine that failed this may be the last word.
            if let Err(TrySendError::Full(job)) = services.try_send(job)
                && first
            {
                let late = std::thread::Builder::new().name("dromon-late".into());
                // Without a thread it is left to the next tick, too. It ends with the service.
                let _ = late.spawn(move || drop(services.send(job)));
            }
        }
    }

    /// Nothing is delivered here any more, as the engine failed (`why`): who waits for its data hears neither of the
    /// donor nor that the others removed it. Not before the join is ordered: whoever waits for that asks the engine.
    fn never_hears(&self, why: &str) {
        {
            let mut shared = self.shared();
            let waits = shared.phase == Phase::Joining && shared.joined.is_some();
            if !waits || shared.brought_up || shared.join_failed.is_some() {
                return;
            }
            let why = why.trim_end_matches('.');
            shared.join_failed = Some(format!("this node's ordering engine failed: {why}"));
        }
        self.changed.notify_all();
    }

    /// The times that the engine goes by.
    pub(super) fn timings(&self) -> Timings {
        *lock(&self.timings)
    }

    /// Says what `evs.suspect_timeout` and `evs.keepalive_period`, which were set just now,
    /// do before the next connection.
    pub(super) fn note_timings(&self, settings: &Settings) {
        let timings = self.timings();
        if Timings::of(settings) == timings {
            return;
        }
        self.note(&format!(
            "evs.suspect_timeout, evs.keepalive_period: a silent member is removed after {:.1} s from now on. Heartbeats, \
             elections and the primary lease follow with the next connection of this node (a restart, or SET GLOBAL \
             wsrep_cluster_address); until then no member is removed sooner than after {:.1} s",
            timings.evicts_after(settings.suspect_timeout).as_secs_f64(),
            timings.evicts_after(Duration::ZERO).as_secs_f64(),
        ));
    }

    /// Whose reports came within the time of an election.
    fn company(&self, status: &OrderStatus) -> Company {
        let Some(view) = self.shared().view.clone() else {
            return Company::None;
        };
        let fresh = self.timings().election_min;
        let heard = |id: &RaftId| {
            let member = view.members.iter().find(|m| m.raft_id == *id);
            let silent = member.and_then(|m| self.flow.silent(&m.uuid));
            *id == status.id || silent.is_some_and(|s| s < fresh)
        };
        let majority =
            |ids: &BTreeSet<RaftId>| 2 * ids.iter().filter(|id| heard(id)).count() > ids.len();
        let configs = &status.members.configs;
        if configs.is_empty() || !configs.iter().all(majority) {
            return Company::None;
        }
        let led = lock(&self.primary_lost).and_then(|lost| lost.led);
        // An engine that failed leads nobody and follows nobody.
        let stays = status.failed.is_none() && led_by(status) == led;
        match led {
            Some((leader, _)) if stays && heard(&leader) => Company::Led,
            _ => Company::Majority,
        }
    }

    /// On the engine's thread.
    fn member_went_back(&self, member: RaftId, index: u64) {
        let named = {
            let shared = self.shared();
            let members = shared.view.iter().flat_map(|v| &v.members);
            let found = members.into_iter().find(|m| m.raft_id == member);
            found.map_or_else(|| format!("{member:x}"), |m| m.name.clone())
        };
        self.warn(&format!(
            "the log of {named} went back in time: it lacks entry {index} and what follows, which it had said was stored. Its disk \
             lost that (a write cache that does not survive a power cut?), or its files were put back from an older copy. \
             It is sent all of it again now, and nothing acknowledged is lost as long as this node, which leads, lives until \
             then. But what a majority had stored was on one node less than that: check the disk there, and let the node \
             join anew, without its dromon-*.log, if this is seen again"
        ));
    }

    fn maybe_seek(&self, lost_for: Option<Duration>) {
        let alone = self.phase() == Phase::NonPrimary || self.awaits_data();
        let long = alone && lost_for.is_some_and(|l| l >= SEEK_AFTER);
        let mut sought = lock(&self.sought);
        if !long || sought.is_some_and(|at| at.elapsed() < SEEK_AFTER) {
            return;
        }
        if self.is_seeking() {
            return;
        }
        *sought = Some(Instant::now());
        if let Some(services) = self.services() {
            // A full queue only delays this.
            let _ = services.try_send(Job::Seek);
        }
    }

    /// This node's report, and when due the duties of a member and a leader.
    fn tick(&self) -> Option<Bytes> {
        let order = self.order()?;
        let status = order.status();
        self.status_changed(&status);
        self.follow_database();
        self.look_at_log(&status);
        self.look_not_alone();
        self.look_beside(&status);
        self.tell_progress();
        self.tell_standing();
        self.flow.expire();
        if self.was_away() {
            self.flow.forgive_silence();
            lock(&self.stalled).forgive(Instant::now());
            lock(&self.losing).forgive(Instant::now());
        }
        self.look_at_small();
        self.look_for_delays();
        self.look_for_durability();
        self.look_for_lacks(&order);
        self.look_for_slow();
        self.look_for_holders(&order);
        self.look_for_standstill();
        self.look_for_cycles();
        self.look_for_unfinished();
        self.say_finished();
        // Tables of what was shelved and is through are opened, also if no applier has work.
        self.spare_applier();
        self.ask_synced(&order);
        self.keep_weight();
        // Nothing that a leader decides needs a database; one that waits for its copy is better no leader.
        let lacks_data = self.waits_for_copy();
        let knows = lacks_data || self.phase() == Phase::Joined;
        if status.is_leader && status.primary && knows {
            self.lead(&order);
            if self.setup.witness || lacks_data || status.unreadable.is_some() {
                self.hand_to_data(&order, &status);
            }
        } else {
            let (now, nobody) = (Instant::now(), std::iter::empty());
            lock(&self.first_seen).look(now, nobody);
            lock(&self.stalled).look(now, 0, std::iter::empty());
            lock(&self.losing).look(now, 0, std::iter::empty());
        }
        Some(encode(&self.progress()?))
    }

    /// Says when the log begins to be held up, and when it is no more.
    fn look_at_log(&self, status: &OrderStatus) {
        let slow = status.log_too_slow;
        if self.log_too_slow.swap(slow.is_some(), Relaxed) != slow.is_some()
            && let Some(takes) = slow
        {
            self.warn(&format!(
                "electing a leader takes long, as this node's log took {:.1} s to store something: a candidate and who votes \
                 for it store their votes first, and then who was elected. Put the log (dromon-*.log) on a faster disk",
                takes.as_secs_f64(),
            ));
        }
        let held_up = status.log_held_up.is_some();
        if self.log_held_up.swap(held_up, Relaxed) == held_up {
            return;
        }
        match &status.log_held_up {
            Some(why) => self.warn(why),
            None => self.note("the log is held up no more"),
        }
    }

    /// Begins to tell how the way from `from` to `to` goes.
    pub(super) fn catch_up(&self, from: Seqno, to: Seqno) {
        let mut catching_up = lock(&self.catching_up);
        *catching_up = (to > from).then(|| CatchingUp {
            from,
            to,
            told: Instant::now(),
        });
        drop(catching_up);
        self.note_progress(from, to, from);
    }

    /// Tools look for these words.
    fn note_progress(&self, from: Seqno, to: Seqno, at: Seqno) {
        let (done, all) = ((at.min(to) - from).max(0), (to - from).max(0));
        let percent = 100.0 * done as f64 / all.max(1) as f64;
        self.note(&format!(
            "Receiving IST: {percent:.1}% ({done}/{all} events) complete"
        ));
    }

    fn tell_progress(&self) {
        if matches!(self.phase(), Phase::Inconsistent | Phase::Closed) {
            *lock(&self.catching_up) = None;
            return;
        }
        let (from, to, at) = {
            let mut catching_up = lock(&self.catching_up);
            let Some(way) = catching_up.as_mut() else {
                return;
            };
            let (from, to, at) = (way.from, way.to, self.gates.released());
            if at >= to {
                *catching_up = None;
            } else if way.told.elapsed() >= CATCH_UP_TOLD {
                way.told = Instant::now();
            } else {
                return;
            }
            (from, to, at)
        };
        self.note_progress(from, to, at);
    }

    /// Whether `from` is the log of the member `uuid`. One that joins again keeps its uuid: what it said before is of
    /// a log that it has given up.
    fn is_members(&self, from: RaftId, uuid: &Uuid) -> bool {
        let shared = self.shared();
        let mut members = shared.view.iter().flat_map(|v| &v.members);
        members.any(|m| m.uuid == *uuid && m.raft_id == from)
    }

    /// More time is needed to come up, for what `doing` says.
    pub(super) fn still_starting(&self, doing: &str) {
        if self.was_synced.load(Relaxed) {
            return;
        }
        {
            let mut told = lock(&self.starting_told);
            if told.is_some_and(|at| at.elapsed() < STARTING_TOLD) {
                return;
            }
            *told = Some(Instant::now());
        }
        *lock(&self.standing_told) = None;
        self.db.still_starting(doing);
    }

    /// Ends a wait amid the start if the process is to end.
    pub(super) fn unless_told_to_stop(&self, doing: &'static str) -> Result<(), ConnectError> {
        match self.db.told_to_stop() {
            true => Err(ConnectError::ToldToStop(doing)),
            false => Ok(()),
        }
    }

    /// Whether this node got no time to run for a while (stopped, starved).
    fn was_away(&self) -> bool {
        let now = Instant::now();
        let before = lock(&self.last_tick).replace(now);
        before.is_some_and(|at| now.duration_since(at) >= AWAY)
    }

    fn progress(&self) -> Option<Progress> {
        // A report is a sign of life, and this member has none to give.
        if self.engine_failed.load(Relaxed) {
            return None;
        }
        let (uuid, state, gives) = {
            let shared = self.shared();
            shared.joined.as_ref()?;
            (shared.uuid, shared.own_state, shared.donation_open)
        };
        let len = self.queue.len();
        // The script of a donor whose joiner is gone may stand for a quarter of an hour, and hold what is applied.
        let stands = gives || self.gates.paused_at().is_some();
        let catches_up = state == MemberState::Joined && !stands;
        self.flow.catch_up(&uuid, catches_up, len);
        self.flow_own(len, state);
        let safe = {
            let pending = lock(&self.pending);
            let released = self.gates.released();
            pending
                .sent
                .values()
                .map(|s| s.last_seen)
                .fold(released, Seqno::min)
        };
        let progress = Progress {
            uuid,
            // Not the gates' word: a copy may be ahead of the own log.
            ordered: lock(&self.delivered).seqno,
            released: self.gates.released(),
            safe,
            needs_log: self.needs_log(),
            queue: len as u64,
            ready: self.ready_ahead.load(Relaxed),
            stop: self.flow.own_stop(),
            number: self.progress_number.fetch_add(1, Relaxed) + 1,
            digest: lock(&self.digests).newest(),
            durable: self.waits_for_disk(),
        };
        self.flow.report(progress.clone());
        Some(progress)
    }

    /// Decides whether this node, with so many events in its queue, asks for a pause. Answers
    /// whether that changed.
    pub(super) fn flow_own(&self, len: usize, state: MemberState) -> bool {
        let patience = self.settings().stall_patience;
        let limits = self.own_limits(state);
        let end = len > limits.upper && self.is_at_an_end();
        self.flow.own(len, limits, end, patience)
    }

    /// Tells the others now: the wish for a pause has changed.
    pub(super) fn report_progress(&self) {
        if let (Some(order), Some(progress)) = (self.order(), self.progress()) {
            order.cast(encode(&progress));
        }
    }

    /// Whether this node is in the component, goes on, and has nearly all of what was ordered.
    fn has_caught_up(&self, shared: &Shared) -> bool {
        let joined = shared.joined.as_ref();
        shared.phase == Phase::Joined
            && shared.brought_up
            && self.gates.paused_at().is_none()
            && (self.gates.last_ordered() - self.gates.released() <= CAUGHT_UP
                || self.is_waited_for(shared))
            && joined.is_some_and(|(v, _)| self.gates.released() >= v.position.seqno)
    }

    /// Whether this node catches up and the others wait for it already as for one that has: while
    /// they write, its queue stays as long as theirs may be, which may be long.
    fn is_waited_for(&self, shared: &Shared) -> bool {
        let lower = self.flow_limits_in(shared).lower;
        self.flow.allowed() == Some(0) && self.queue.len() <= lower
    }

    /// A node that is back with a desync open is a donor to the others, and is not asked for as synced. Its
    /// server serves nobody before it is told that it is: as soon as it has caught up.
    fn tell_desynced(&self) {
        {
            let mut shared = self.shared();
            let untold = shared.is_back_desynced && shared.is_desynced();
            if !(untold && self.has_caught_up(&shared)) {
                return;
            }
            shared.is_back_desynced = false;
        }
        let seqno = self.gates.last_ordered();
        self.push_notice(seqno, Item::Synced);
    }

    pub(super) fn ask_synced(&self, order: &Arc<dyn Order>) {
        self.tell_desynced();
        let uuid = {
            let mut shared = self.shared();
            let ready = shared.own_state == MemberState::Joined
                && !shared.sync_asked
                && !shared.donation_open
                // Who stands still on purpose would hold up the others.
                && shared.desyncs_open == 0
                && self.has_caught_up(&shared);
            if !ready {
                return;
            }
            shared.sync_asked = true;
            shared.uuid
        };
        if order
            .propose(kind::CONTROL, 0, encode(&Control::Synced { uuid }))
            .is_err()
        {
            self.shared().sync_asked = false;
        }
    }

    /// The primary lease was lost or came back. On the service thread.
    pub(super) fn lease_changed(self: &Arc<Self>, primary: bool) {
        let Some(order) = self.order() else { return };
        if !primary {
            let failed = order.status().failed.is_some();
            if self.phase() == Phase::Joined && !failed && self.may_go_alone() {
                self.try_alone();
            } else {
                self.lost_primary();
            }
        } else {
            self.going_alone.majority_is_back();
            self.rejoin(&order);
        }
    }

    /// The lease is lost and stays lost: clients are refused.
    pub(super) fn lost_primary(&self) {
        let Some(order) = self.order() else { return };
        let status = order.status();
        // Heartbeats are answered when what was sent before them is stored.
        let unstored =
            self.company(&status) == Company::Led && status.last.index > status.committed;
        if !self.goes_non_primary(|phase| phase == Phase::Joined && !order.status().primary) {
            return;
        }
        match unstored {
            true => self.warn(&format!(
                "a majority is heard, but does not store: the disks of its logs hang, or take longer than evs.suspect_timeout \
                 allows ({}). This node is non-primary, refuses writes and current reads, and comes back by itself when a \
                 majority stores again",
                self.who_stores_not(&status)
            )),
            false => self.note(
                "this node has lost contact with the majority: it is non-primary, refuses writes and current \
                 reads, and comes back by itself when the majority can be reached again",
            ),
        }
    }

    /// Whose disk is late, as far as it is known here.
    fn who_stores_not(&self, status: &OrderStatus) -> String {
        if status.durable < status.last.index {
            return "this node's is one of them".to_owned();
        }
        let shared = self.shared();
        let members = shared.view.iter().flat_map(|v| &v.members);
        let lacks = |id: &RaftId| {
            let peer = status.peers.get(id);
            peer.is_some_and(|p| p.matched < status.last.index)
        };
        let names: Vec<&str> = members
            .filter(|m| status.members.is_voter(m.raft_id) && lacks(&m.raft_id))
            .map(|m| m.name.as_str())
            .collect();
        match (names.is_empty(), status.leader.as_ref()) {
            (false, _) => format!("they are behind: {}", names.join(", ")),
            (true, Some((_, addr))) => format!("the leader at {addr} knows whose"),
            (true, None) => "whose is not known here".to_owned(),
        }
    }

    /// Refuses its clients, and tells its server, if that `is_due` in the phase that it is in. False: it is not.
    pub(super) fn goes_non_primary(&self, is_due: impl FnOnce(Phase) -> bool) -> bool {
        let order = self.order();
        let mut own = None;
        let begins = || {
            let mut shared = self.shared();
            if !is_due(shared.phase) {
                return false;
            }
            shared.phase = Phase::NonPrimary;
            let uuid = shared.uuid;
            own = shared
                .view
                .as_ref()
                .and_then(|v| v.members.iter().find(|m| m.uuid == uuid).cloned());
            true
        };
        if !self.abandon_if(order.as_ref(), true, begins) {
            return false;
        }
        self.flow.clear();
        self.closed.send_on();
        self.push_non_primary(own.iter().map(super::delivery::view_member).collect());
        true
    }

    /// Comes back after a lost lease: an ordered leave and join in one.
    fn rejoin(&self, order: &Arc<dyn Order>) {
        let uuid = {
            let mut shared = self.shared();
            // The order delivers it in the end: once is enough.
            if shared.phase != Phase::NonPrimary || shared.rejoin_asked.is_some() {
                return;
            }
            shared.rejoin_asked = Some(Instant::now());
            shared.uuid
        };
        self.note("the majority can be reached again; rejoining");
        // Who stands still on purpose would hold up the others, were it synced at once.
        let released = match self.gates.paused_at() {
            Some(_) => Seqno::MIN,
            None => self.gates.released(),
        };
        let rejoin = encode(&Control::Rejoin { uuid, released });
        if order.propose(kind::CONTROL, 0, rejoin).is_err() {
            self.shared().rejoin_asked = None;
        }
    }
}

/// The leader that this node knows, and its term.
fn led_by(status: &OrderStatus) -> Option<(RaftId, u64)> {
    let (leader, _) = status.leader.as_ref()?;
    Some((*leader, status.term))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_timings() -> Timings {
        let ms = Duration::from_millis;
        Timings::of_suspect(ms(5000), ms(1000))
    }

    #[test]
    fn nobody_waits_three_seconds_by_default() {
        let t = default_timings();
        let second = Duration::from_secs(1);
        assert!(t.election_max * 2 < second * 9 / 5, "{t:?}");
        assert!(t.lease + t.grace + t.heartbeat < second * 9 / 4, "{t:?}");
        assert!(t.lease + t.grace_in_company <= second * 3, "{t:?}");
    }

    #[test]
    fn times_fit_together_whatever_is_set() {
        for suspect in [0, 400, 3000, 5000, 14_000, 300_000] {
            for keepalive in [10, 1000] {
                let ms = Duration::from_millis;
                let t = Timings::of_suspect(ms(suspect), ms(keepalive));
                // No voter takes part in replacing a leader who may still
                // believe in its lease.
                assert!(t.lease < t.election_max, "{t:?}");
                assert!(t.lease > t.heartbeat * 4, "{t:?}");
                // Those who elect are not non-primary before they can be done.
                let elected = t.election_max * 2 + t.election_min / 2;
                assert!(t.lease + t.grace_in_company > elected, "{t:?}");
            }
        }
    }

    /// What is set while the engine runs changes none of its times: they still fit.
    #[test]
    fn nobody_is_evicted_who_is_primary_whatever_is_set() {
        let ms = Duration::from_millis;
        for started in [0, 400, 3000, 5000, 14_000, 300_000] {
            let t = Timings::of_suspect(ms(started), ms(1000));
            for set in [100, 400, 1000, 5000, 300_000] {
                let evicts = t.evicts_after(ms(set));
                assert!(evicts >= ms(set), "{set}: {t:?}");
                assert!(evicts >= t.lease + t.grace_in_company, "{set}: {t:?}");
                let elected = t.election_max * 2 + t.election_min / 2;
                assert!(evicts > elected, "{set}: {t:?}");
            }
            // As it was asked for, where it was asked for at the start.
            let asked = ms(started.max(400));
            assert_eq!(t.evicts_after(asked), asked, "{t:?}");
        }
    }

    #[test]
    fn who_hears_a_majority_waits_longer() {
        let t = default_timings();
        assert!(!t.is_over(t.grace - Duration::from_millis(1), || unreachable!()));
        assert!(t.is_over(t.grace, || Company::None));
        assert!(!t.is_over(t.grace, || Company::Majority));
        assert!(t.is_over(t.grace_in_company, || Company::Majority));
    }

    #[test]
    fn who_hears_its_leader_waits_until_a_silent_one_would_be_evicted() {
        let t = default_timings();
        assert!(t.is_over(t.grace_in_company, || Company::None));
        assert!(!t.is_over(t.grace_in_company, || Company::Led));
        assert!(t.is_over(t.grace_led, || Company::Led));
        let all = t.lease + t.grace_led;
        let suspect = Duration::from_secs(5);
        assert!(all <= suspect && all > suspect * 9 / 10, "{all:?}");
    }
}
