//! Coming back after an eviction: the others went on without this node, so it
//! joins again from its position, in the same process and for the same server.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::{QueueItem, Seqno, WaitError};
use dromon_order::{NodeHandler, Order, RaftId, Start, incarnation};
use dromon_writeset::Uuid;

use super::connect::{Found, random_u64};
use super::delivery::to_view;
use super::duties::Handler;
use super::halves::{Parted, parted};
use super::listed::others_listed;
use super::open::COPY_ASKED;
use super::search::other_history;
use super::{Item, Node, Phase, lock};
use crate::database::{View, ViewMember};
use crate::gone::{Apart, heard, log_counts};
use crate::messages::{Control, LeaveReason, Need, Position, Request, decode, encode, kind};

/// How long one question to another member may take.
const ASK: Duration = Duration::from_secs(2);
/// Pause between attempts.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest one, after many by which this node was told that it needs a full copy: another leader's log may reach
/// back further, but whoever is asked reads and sends a checkpoint.
const AGAIN_MAX: Duration = Duration::from_secs(300);
/// How long the join may take to be ordered.
const JOIN: Duration = Duration::from_secs(30);
/// How often the same reason is repeated in the log.
const REPEATED: Duration = Duration::from_secs(60);
/// How long what is ordered may take to finish before the node joins anew.
const DRAIN: Duration = Duration::from_secs(60);
/// How often it is looked meanwhile whether the node leaves.
const DRAIN_LOOK: Duration = Duration::from_millis(200);
/// How often it is looked whether the server has been told of the loss.
const LOOK: Duration = Duration::from_millis(10);

/// What was said within the last minute, so that it is not said over and over.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<String, Instant>);

impl Told {
    /// Whether `why` is news at `now`, or was last said a minute ago.
    pub(super) fn again(&mut self, why: &str, now: Instant) -> bool {
        self.0.retain(|_, at| now - *at < REPEATED);
        let news = !self.0.contains_key(why);
        if news {
            self.0.insert(why.to_owned(), now);
        }
        news
    }
}

/// Why an attempt to join again failed.
struct NotBack {
    why: String,
    /// Of those that were asked nobody can help.
    needs_copy: bool,
}

impl<T: Into<String>> From<T> for NotBack {
    fn from(why: T) -> Self {
        NotBack {
            why: why.into(),
            needs_copy: false,
        }
    }
}

/// The pause before the next attempt, after one that came `pause` after another.
fn next_pause(pause: Duration, needs_copy: bool) -> Duration {
    match needs_copy {
        true => (2 * pause).clamp(AGAIN, AGAIN_MAX),
        false => AGAIN,
    }
}

impl Node {
    /// Says `what` unless it said so within the last minute.
    pub(super) fn note_now_and_then(&self, what: &str) {
        if lock(&self.told).again(what, Instant::now()) {
            self.note(what);
        }
    }

    /// Has the members asked whether they form a primary component without this node: on a
    /// thread of its own, as who is silent takes its time, and what others ask of this node is
    /// answered on the service thread, on which this is. Never two at once.
    pub(super) fn seek_primary(self: &Arc<Self>) {
        let mut seeker = lock(&self.seeker);
        if seeker.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let node = self.clone();
        let thread = std::thread::Builder::new()
            .name("dromon-seek".into())
            .spawn(move || node.seek());
        match thread {
            Ok(thread) => *seeker = Some(thread),
            Err(e) => self.error(&format!(
                "no thread to ask whether the others went on without this node: {e}"
            )),
        }
    }

    /// Whether they are being asked.
    pub(super) fn is_seeking(&self) -> bool {
        lock(&self.seeker)
            .as_ref()
            .is_some_and(|t| !t.is_finished())
    }

    /// Asks them; if so, joins them again, or ends the wait for its data. Until it ends, the engine
    /// that it asks for is not followed by another one.
    fn seek(self: &Arc<Self>) {
        let Some(order) = self.order() else { return };
        // A disk that failed once is not trusted again before somebody says so.
        if self.engine_failed.load(Relaxed) {
            return;
        }
        let awaits_data = self.awaits_data();
        if !(awaits_data || self.phase() == Phase::NonPrimary) || !self.was_evicted(&order) {
            return;
        }
        if awaits_data {
            // What it waits for will not come. Nothing else tells it.
            let mut shared = self.shared();
            shared.removed |= shared.phase == Phase::Joining;
            drop(shared);
            self.changed.notify_all();
            return;
        }
        let mut rejoiner = lock(&self.rejoiner);
        if rejoiner.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let node = self.clone();
        let thread = std::thread::Builder::new()
            .name("dromon-rejoin".into())
            .spawn(move || node.join_again());
        match thread {
            Ok(thread) => *rejoiner = Some(thread),
            Err(e) => self.error(&format!("no thread to join the cluster again: {e}")),
        }
    }

    /// The others went on without this node: it is non-primary until it has
    /// joined them again.
    pub(super) fn evicted(&self, seqno: Seqno) {
        let own = {
            let mut shared = self.shared();
            // This view comes again when the node has joined again.
            shared.ends_at = Some(seqno - 1);
            if shared.phase == Phase::Joining {
                // Who waits for a copy gives up; who needs none comes here again.
                shared.removed = true;
                drop(shared);
                self.changed.notify_all();
                return;
            }
            if !matches!(shared.phase, Phase::Joined | Phase::NonPrimary) {
                return;
            }
            shared.phase = Phase::NonPrimary;
            let uuid = shared.uuid;
            shared.join.as_ref().map(|j| ViewMember {
                uuid,
                name: j.name.clone(),
                incoming: j.incoming.clone(),
            })
        };
        self.flow.clear();
        self.closed.send_on();
        self.abandon_pending();
        self.push_non_primary(own.into_iter().collect());
    }

    /// The server's view of a lost cluster.
    pub(super) fn push_non_primary(&self, members: Vec<ViewMember>) {
        let seqno = self.gates.last_ordered();
        // As the peer words it: readers of logs look for that.
        self.note(&format!(
            "New COMPONENT: primary = no, bootstrap = no, my_idx = 0, memb_num = 1; seqno {seqno}"
        ));
        let view = View {
            position: Position {
                history: self.history(),
                seqno,
            },
            number: -1,
            primary: false,
            own: (!members.is_empty()).then_some(0),
            members,
        };
        self.push_notice(seqno, Item::View(view));
        self.changed.notify_all();
    }

    /// Who leads does not have what this node needs next of the log: it may have become a member by a copy, later than
    /// this one, or its disk has lost that. The data here is sound, and another leader's log may reach back to it. So a node
    /// that runs leaves and joins again from its position; one that starts ends, and its next start asks anew.
    /// On the engine's thread, and more than once.
    pub(super) fn log_is_gone(&self) {
        if self.is_witness() {
            self.inconsistent("the others have dropped the log this node still needs");
            return;
        }
        let why = "the log of the member that leads does not give what this node needs next: that one became a member \
                   later, has dropped it, or cannot read it";
        {
            let mut shared = self.shared();
            let runs = matches!(shared.phase, Phase::Joined | Phase::NonPrimary);
            if !(runs && shared.brought_up) {
                let starts = runs || matches!(shared.phase, Phase::Joining | Phase::Rejoining);
                let first = starts && shared.join_failed.replace(why.into()).is_none();
                drop(shared);
                if first {
                    self.changed.notify_all();
                }
                return;
            }
        }
        let news = lock(&self.told).again(why, Instant::now());
        if self.phase() != Phase::Joined && !news {
            return; // it has done so
        }
        if news {
            self.warn(&format!(
                "{why}. Nothing is wrong with the data here. This node leaves and joins again from its position; if nobody's \
                 log reaches back to that, it needs a full copy, and says so"
            ));
        }
        // Its log is to count no more: who is not among the members is told so, and joins again.
        let uuid = self.shared().uuid;
        if let Some(order) = self.order() {
            let reason = LeaveReason::Graceful;
            // If it is not ordered, it is asked for again when the leader says so again.
            let _ = order.propose(kind::CONTROL, 0, encode(&Control::Leave { uuid, reason }));
        }
        self.goes_non_primary(|phase| phase == Phase::Joined);
    }

    /// Whether this node is a member that does not have its data yet.
    pub(super) fn awaits_data(&self) -> bool {
        let shared = self.shared();
        shared.phase == Phase::Joining && shared.joined.is_some()
    }

    /// Whether this node is a member, and its database is still to come as a copy.
    pub(super) fn waits_for_copy(&self) -> bool {
        let shared = self.shared();
        shared.phase == Phase::Joining && matches!(&shared.joined, Some((_, Need::Copy)))
    }

    /// Whether a leader of the others says that this node's log is not among
    /// theirs any more.
    pub(super) fn was_evicted(&self, order: &Arc<dyn Order>) -> bool {
        let (cluster, address) = {
            let shared = self.shared();
            (shared.cluster.clone(), shared.address.clone())
        };
        let history = self.history();
        let status = order.status();
        let ours = (history, incarnation(status.term));
        let named: Vec<String> = status.members.addrs.into_values().collect();
        // The word of one of another incarnation counts if none of this one's is there.
        let mut left_behind = false;
        let counts =
            self.log_counts_at(
                &cluster,
                named.clone(),
                status.id,
                ours,
                |addr, apart| match apart {
                    Apart::History(theirs) => self.tell_other_history(addr, theirs, history),
                    Apart::Incarnation => left_behind = true,
                },
            );
        if let Some(counts) = counts {
            return !counts;
        }
        if left_behind {
            return true;
        }
        // All members may have been replaced since, at other addresses. Of these, and whom they name, those of another
        // incarnation decide nothing: the log's own may come yet.
        let settings = self.settings();
        let mut listed = self.each_address(&others_listed(&address, &settings), &settings);
        listed.retain(|addr| !named.contains(addr));
        self.log_counts_at(&cluster, listed, status.id, ours, |_, _| ()) == Some(false)
    }

    /// What leaders at `addrs`, and whom they name, say of the log `id` of `ours`; `apart`: of those who have no say.
    fn log_counts_at(
        &self,
        cluster: &str,
        mut addrs: Vec<String>,
        id: RaftId,
        ours: (Uuid, u32),
        mut apart: impl FnMut(&str, Apart),
    ) -> Option<bool> {
        let body = encode(&Request::Gone { raft_id: id });
        let own = self.own_addr();
        addrs.retain(|addr| *addr != own);
        let said = self.ask_all(cluster, &addrs, &body, ASK);
        let mut said: HashMap<_, _> = addrs.iter().cloned().zip(said).collect();
        log_counts(addrs, &own, |addr| {
            let ask = |request: &Request| {
                // Not said yet: what is asked behind a yes, and by whom one of them takes for the leader.
                let now = || self.engines.ask(cluster, addr, encode(request), ASK);
                let answer = match request {
                    Request::Gone { .. } => said.remove(addr).unwrap_or_else(now),
                    _ => now(),
                };
                decode(&answer.ok()?)
            };
            heard(id, ours, ask).unwrap_or_else(|other| {
                apart(addr, other);
                None
            })
        })
    }

    /// Another cluster has taken the place of a member.
    fn tell_other_history(&self, addr: &str, theirs: Uuid, ours: Uuid) {
        let why = format!(
            "{addr}, where this node's log has a member, leads a cluster of this name but of another history ({theirs}; \
             here {ours}). Nothing here is given up for it: this node goes on waiting for the members of its own \
             history. If that cluster was founded by mistake (galera_new_cluster on an empty data directory), stop it, \
             and start the other nodes only then: one that starts while it answers takes a full copy of it. If it is the \
             one to keep, stop this node, {}, and start it again",
            match self.is_witness() {
                true => "move its dromon-*.log files away".to_owned(),
                false => format!("{COPY_ASKED} (it takes a full copy)"),
            }
        );
        if lock(&self.told).again(&why, Instant::now()) {
            self.warn(&why);
        }
    }

    /// Where the others reach this node, once it has asked to join.
    pub(super) fn own_addr(&self) -> String {
        let shared = self.shared();
        let own = shared.join.as_ref().map(|j| j.addr.clone());
        own.unwrap_or_default()
    }

    /// Leaves the engine that nobody listens to and joins with a new one.
    fn join_again(self: Arc<Self>) {
        {
            let mut shared = self.shared();
            if shared.phase != Phase::NonPrimary {
                return;
            }
            shared.phase = Phase::Rejoining;
            shared.drained = false;
        }
        // No tick may come before it is back.
        self.tell_standing();
        self.note("the others went on without this node; joining them again");
        let deadline = Instant::now() + DRAIN;
        // First of all: what came behind `target` later would be applied now, and again when it has joined.
        let ended = self.end_delivery();
        let ends_at = self.shared().ends_at;
        let target = ends_at.unwrap_or_else(|| self.gates.last_ordered());
        if !ended || !self.drains(target, deadline) || !self.has_told_server(deadline) {
            if self.phase() == Phase::Rejoining {
                self.note(
                    "what was ordered is not finished here yet; waiting for it before joining again",
                );
            }
            let mut shared = self.shared();
            if shared.phase == Phase::Rejoining {
                shared.phase = Phase::NonPrimary;
            }
            return;
        }
        let position = self.last_committed_at(target);
        {
            let mut shared = self.shared();
            (shared.position, shared.drained) = (position, true);
            shared.ends_at = None;
        }
        self.keep_sum(position);
        self.queue.hold_after(Seqno::MIN);
        // The address it was started with may name nobody (a founder's) or
        // not everybody.
        let known = self.members_of_log();
        self.close_engine();
        let mut told = Told::default();
        let mut pause = Duration::ZERO;
        while self.phase() == Phase::Rejoining {
            let tried = catch_unwind(AssertUnwindSafe(|| self.try_join_again(&known)));
            match tried
                .unwrap_or_else(|_| Err("it failed at that; its message stands above".into()))
            {
                Ok(true) => {
                    self.shared().stays_out = None;
                    return;
                }
                Ok(false) => {}
                Err(NotBack { why, needs_copy }) => {
                    pause = next_pause(pause, needs_copy);
                    if told.again(&why, Instant::now()) {
                        self.note(&format!("not back in the cluster yet: {why}"));
                    }
                    self.shared().stays_out = Some(why);
                }
            }
            self.close_engine();
            let mut shared = self.shared();
            let until = Instant::now() + pause;
            while shared.phase == Phase::Rejoining && Instant::now() < until {
                shared = self.wait_shared(shared, until);
            }
        }
        match self.phase() {
            // Told to leave meanwhile. An engine that was begun has moved them to where its log begins.
            Phase::Leaving | Phase::Closed => self.gates.restart(position.seqno),
            // Its last views are in the queue, which holds everything; and who has begun what lies ahead waits for a
            // place that does not come.
            Phase::Inconsistent => {
                self.gates.close_at(position.seqno);
                self.queue.resume();
            }
            _ => {}
        }
    }

    /// Waits until everything up to `target` is finished here, until `deadline` at most: what a pause holds back is
    /// not before that ends.
    fn drains(&self, target: Seqno, deadline: Instant) -> bool {
        let waiter = Node::waiter();
        loop {
            let by = deadline.min(Instant::now() + DRAIN_LOOK);
            match self.gates.wait_released(target, &waiter, false, Some(by)) {
                Ok(()) => return self.phase() == Phase::Rejoining,
                Err(WaitError::TimedOut) if Instant::now() < deadline => {}
                Err(_) => return false,
            }
            if self.phase() != Phase::Rejoining {
                return false;
            }
        }
    }

    /// Waits until the server has seen all that it was to be told, until `deadline` at most: it may be giving a copy
    /// within the call, under which nothing may change, and knows nothing of the loss before that ends.
    fn has_told_server(&self, deadline: Instant) -> bool {
        while self.queue.has_exclusive() {
            if self.phase() != Phase::Rejoining || Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Why a running server, whose data is at `position`, cannot join the cluster that was `found`, if so.
    pub(super) fn why_copy(&self, found: &Found, position: Position) -> Option<String> {
        let theirs = found.state.position().history;
        if found.differs {
            return Some(format!(
                "this node's data at {position} is of another history than the cluster's there: it needs a full copy, \
                 so its server must be restarted"
            ));
        }
        if found.need == Need::Log {
            return None;
        }
        let leader = found.leader.as_deref().unwrap_or_default();
        Some(match position.is_defined() {
            false => format!(
                "where this node's data stands is not known: the cluster led by {leader} has it take a full copy, so its \
                 server must be restarted"
            ),
            true if position.history != theirs => {
                format!("{leader} {}", other_history(theirs, position))
            }
            true => self.left_out(found, position).unwrap_or_else(|| {
                format!(
                    "the others' log does not reach back to {position}: this node needs a full copy, so its server must \
                     be restarted"
                )
            }),
        })
    }

    /// Why this node needs a full copy where the cluster that was `found` left behind what it has.
    fn left_out(&self, found: &Found, position: Position) -> Option<String> {
        let Start::Join { term, .. } = found.start else {
            return None;
        };
        let end = self.log_end_before(&self.settings());
        let Parted { ours, theirs } = parted(end, term, &found.state, position.seqno)?;
        Some(format!(
            "the cluster led by {} is of incarnation {theirs} of this history, and this node's log ended in incarnation \
             {ours}: a node was forced to go on without the others, and what is here at {position} is not all in that \
             cluster. If it is wanted, stop that cluster before this server is restarted. If not: this node needs a full \
             copy, so its server must be restarted",
            found.leader.as_deref().unwrap_or_default()
        ))
    }

    /// False: it was told to leave meanwhile.
    fn try_join_again(self: &Arc<Self>, known: &[String]) -> Result<bool, NotBack> {
        let settings = self.settings();
        let (position, cluster, address, join) = {
            let shared = self.shared();
            (
                shared.position,
                shared.cluster.clone(),
                shared.address.clone(),
                shared.join.clone(),
            )
        };
        let mut join = join.ok_or("this node never joined")?;
        let mut position = position;
        let mut found: Found = self
            .find_cluster(&cluster, &address, &settings, position, false, known)
            .map_err(|e| e.to_string())?;
        self.settle(&mut found, &mut position);
        let copy = self.why_copy(&found, position);
        if let Some(why) = copy {
            return Err(NotBack {
                why,
                needs_copy: true,
            });
        }
        if let Start::Join { term, .. } = found.start
            && (self.log_end_before(&settings))
                .is_some_and(|end| end.last.incarnation() != incarnation(term))
        {
            let kept = self.keep_former_log(&settings, &found, position, None);
            kept.map_err(|e| e.to_string())?;
        }
        join.origin = super::connect::random_uuid();
        // It may have been set since.
        join.weight = settings.weight;
        join.position = position;
        join.need = Need::Log;
        join.log_start = found.log_start;
        let config = self.engine_config(&cluster, &settings, join.origin, random_u64());
        {
            let mut shared = self.shared();
            shared.joined = None;
            // What was asked for before is delivered without being counted, or never was ordered.
            shared.desyncs_seen = shared.desyncs_asked;
            shared.base = None;
            (shared.own_leave, shared.left) = (false, None);
            shared.sync_asked = false;
            // The log that it was asked of is gone.
            shared.rejoin_asked = None;
            // Of an attempt before.
            shared.join_failed = None;
        }
        self.reset_for(&found, true);
        self.queue.drop_through(position.seqno);
        let handler: Arc<dyn NodeHandler> = Arc::new(Handler {
            node: Arc::downgrade(self),
        });
        let order = self.engines.start(
            config,
            &settings.log_dir,
            &settings.listen.to_string(),
            found.start.clone(),
            handler,
        )?;
        join.raft_id = order.status().id;
        self.set_order(Some(order.clone()));
        self.start_service().map_err(|e| e.to_string())?;
        let uuid = join.uuid;
        self.shared().join = Some(join.clone());
        self.start_delivery(&order, found.state, None)
            .map_err(|e| e.to_string())?;
        self.get_joined(&order, JOIN, join, found.leader, &address, &cluster)
            .map_err(|e| e.to_string())?;
        let view = {
            let mut shared = self.shared();
            if shared.phase != Phase::Rejoining {
                return Ok(false);
            }
            let view = shared.joined.as_ref().map(|(view, _)| to_view(view, &uuid));
            let at = view.as_ref().map_or(0, |view| view.position.seqno);
            self.back_at.store(at, Relaxed);
            shared.phase = Phase::Joined;
            view
        };
        if self.setup.witness {
            self.propose_joined(uuid);
            self.note("joined the cluster again");
            return Ok(true);
        }
        if let Some(view) = &view {
            self.tell_receiver(position.seqno + 1, view.position.seqno);
            self.catch_up(position.seqno, view.position.seqno);
        }
        self.gates.reset(position.seqno);
        self.queue.drop_through(position.seqno);
        // Looked at behind the reset, which opens them.
        if self.phase() == Phase::Inconsistent {
            self.gates.close();
        }
        if let Some(view) = view {
            self.queue.push_front(QueueItem {
                seqno: position.seqno,
                ordered: false,
                depends_on: position.seqno,
                exclusive: true,
                bytes: 0,
                value: Item::Connected(view),
            });
        }
        self.propose_joined(uuid);
        self.desync_again(&order, true);
        // Before all of them take something.
        self.spare_applier();
        self.queue.resume();
        self.note(&format!(
            "joined the cluster again; catching up from seqno {}",
            position.seqno + 1
        ));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_a_copy_asks_ever_more_seldom() {
        let mut pause = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pause = next_pause(pause, true);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(next_pause(pause, false), AGAIN, "something else");
    }

    #[test]
    fn a_reason_is_said_once_and_then_once_a_minute() {
        let (mut told, began) = (Told::default(), Instant::now());
        let at = |s| began + Duration::from_secs(s);
        assert!(told.again("a full copy", at(0)));
        assert!(!told.again("a full copy", at(2)));
        assert!(!told.again("a full copy", at(59)));
        assert!(told.again("nobody answers", at(59)), "another reason");
        assert!(told.again("a full copy", at(61)));
        assert!(!told.again("a full copy", at(120)));
        assert!(told.again("a full copy", at(121)));
    }
}
