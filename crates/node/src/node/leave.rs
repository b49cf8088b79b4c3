//! Leaving the cluster, and closing what one connection opened.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::Seqno;
use dromon_order::{Order, incarnation};

use super::apply::Ended;
use super::service::Job;
use super::{Item, Node, Phase, Shared, lock};
use crate::cluster::MemberState;
use crate::database::{Applier, Outcome};
use crate::durable::Held;
use crate::gone::{heard, log_counts};
use crate::messages::{Control, LeaveReason, Need, Position, Request, decode, encode, kind};
use crate::options::Durability;
use crate::trx::Stage;

/// How long a leaver waits for its departure to be ordered.
const LEAVE: Duration = Duration::from_secs(10);
/// And for its log to be taken out of the members.
const GONE: Duration = Duration::from_secs(5);
/// The name of the delivery thread.
pub(super) const DELIVERY: &str = "dromon-delivery";
/// How long the only member waits for the verdict on what its clients have sent.
const SENT: Duration = Duration::from_secs(3);
/// How long delivery may take to end: it may wait for a disk.
const DELIVERS: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// A sync asked for by nobody: only its failure counts.
const UNASKED: Seqno = -1;

/// What the log here has behind the position at which the database stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// Nothing that was acknowledged.
    Nothing,
    /// What the others have, too, or no start goes on from.
    Others,
    /// What may be nowhere else.
    Only,
}

/// Where the own leave has its place in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The last seqno before it: what comes later is the others'.
    pub behind: Seqno,
    /// Nobody was left then.
    pub last: bool,
}

impl Shared {
    /// Where the database stands before it is brought up, if that is known: a copy may have begun to overwrite it.
    fn stands_at(&self) -> Option<Position> {
        if self.join_failed.is_some() {
            return None; // in the midst of something
        }
        let (view, need) = self.joined.as_ref()?;
        let founded = Position {
            history: view.position.history,
            seqno: view.position.seqno - 1,
        };
        match need {
            _ if self.starts_at.is_some() => self.starts_at,
            Need::Copy => None,
            Need::Log if self.position.is_defined() => Some(self.position),
            Need::Log => (view.members.len() == 1).then_some(founded),
        }
    }

    /// Whether the last view names no other member.
    fn is_alone(&self) -> bool {
        let members = self.view.as_ref().map_or(&[][..], |v| &v.members);
        members.iter().all(|m| m.uuid == self.uuid)
    }
}

impl Node {
    /// Leaves the cluster and gives the database its last view.
    pub fn disconnect(self: &Arc<Self>) {
        let (mut phase, alone) = {
            let mut shared = self.shared();
            let phase = shared.phase;
            if phase == Phase::Closed {
                return;
            }
            if phase != Phase::Inconsistent {
                shared.phase = Phase::Leaving;
            }
            let alone = shared.is_alone();
            shared.last = alone;
            (phase, alone)
        };
        self.changed.notify_all();
        let rejoiner = lock(&self.rejoiner).take();
        if let Some(thread) = rejoiner {
            // It sees the phase and ends.
            let _ = thread.join();
        }
        // The cluster went on without it.
        let put_out = phase == Phase::Rejoining;
        if put_out && !self.shared().drained {
            // It leaves as one that has not begun to: what is ordered is still to be finished, and the gates know
            // where the database is.
            phase = Phase::NonPrimary;
        }
        if phase == Phase::Rejoining {
            self.queue.clear();
            self.queue.resume();
        }
        // Whoever paused it may wait for the end of this.
        self.gates.end_at_pause();
        let given = self.shared().final_delivered;
        if let Some(at) = self.gates.ends_at().filter(|_| !given) {
            self.note(&format!(
                "this server is paused at seqno {at} and leaves there: what is ordered behind that comes with the next start"
            ));
        }
        self.flow.clear();
        self.closed.send_on();
        self.wake_bulk();
        let order = self.order();
        let (joined, left) = {
            let shared = self.shared();
            let left = shared.own_leave;
            (shared.joined.is_some() && !left, left)
        };
        let can_say =
            matches!(phase, Phase::Joined | Phase::Joining | Phase::Rejoining) && joined && !alone;
        if let Some(order) = order.as_ref().filter(|_| can_say) {
            self.hand_over(order);
            self.say_leave(LeaveReason::Graceful);
        }
        // Else what comes behind the last view would move the database beyond the position that is written down.
        let ended = self.shared().own_leave || phase == Phase::Inconsistent || {
            if alone {
                self.wait_sent();
            }
            let ended = self.end_delivery();
            self.abandon_sent_by(order.as_ref(), false);
            ended
        };
        self.end_receivers(phase);
        let last = {
            let shared = self.shared();
            // Others may have left first while this one was leaving.
            alone || shared.left.is_some_and(|left| left.last)
        };
        let busy = self.shared().receivers > 0;
        let inconsistent = self.phase() == Phase::Inconsistent;
        // One whose data is inconsistent has said so itself, and an operator may have put it
        // out; its vote may still be needed to take it from the voters.
        let gone = match &order {
            Some(order) if (can_say || inconsistent || left) && !last => self.wait_gone(order),
            _ => last,
        };
        self.close_engine();
        let left = self.shared().left;
        let position = match left.filter(|_| self.setup.witness) {
            // It has no database: what came before its leave is in its log.
            Some(left) => self.last_committed_at(left.behind),
            None if phase == Phase::Rejoining => self.shared().position,
            None => self.last_committed(),
        };
        let moves = busy || !ended || self.moves_beyond(position.seqno);
        // A log that may have forgotten something is not gone on with, and a witness has no database that could lack it.
        let kept = self.settings().durability == Durability::Majority && !self.setup.witness;
        let whole = self.has_nothing_behind(position.seqno, alone, gone, order.as_ref());
        let behind = match whole {
            true if kept || left.is_some() => Behind::Nothing,
            false if kept && !put_out && (left.is_none() || last) => Behind::Only,
            _ => Behind::Others,
        };
        if inconsistent {
            // It has said so itself.
        } else if !self.shared().brought_up {
            if !busy && !self.setup.witness {
                self.save_not_begun(alone, gone);
            }
        } else if moves {
            // Its position is the database's own word.
            self.note(&format!(
                "the database may still move beyond seqno {}: the next start asks the storage engine how far it is",
                position.seqno
            ));
            self.save_running_as(last || self.alone());
        } else if self.is_on_the_disk() {
            if behind == Behind::Only {
                self.note(&format!(
                    "the database stops at seqno {}, and the log here may have more that was acknowledged: grastate.dat has \
                     no seqno, and the next start goes on from that log (only this build of the library does)",
                    position.seqno
                ));
            }
            self.save_stopped(position, last, behind);
        } else {
            // The next start asks the engine.
            self.save_running_as(last || self.alone());
        }
        self.shared().phase = Phase::Closed;
        self.changed.notify_all();
        self.tell_left(inconsistent);
    }

    /// Waits until what clients have sent has its place, for a while: nothing more is sent.
    fn wait_sent(&self) {
        let deadline = Instant::now() + SENT;
        while !lock(&self.pending).sent.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }

    /// Has delivery end: from then on nothing is ordered here, and what is on its way is in the log at most. False: it
    /// did not end in time.
    pub(super) fn end_delivery(&self) -> bool {
        lock(&self.delivered).stopped = true;
        self.delivered_more.notify_all();
        let deadline = Instant::now() + DELIVERS;
        let goes = || {
            let threads = lock(&self.threads);
            let mut delivery = threads
                .iter()
                .filter(|t| t.thread().name() == Some(DELIVERY));
            delivery.any(|t| !t.is_finished())
        };
        while goes() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Whether a client has brought the database beyond `seqno`, or still may.
    fn moves_beyond(&self, seqno: Seqno) -> bool {
        let in_commit = |stage| {
            matches!(
                stage,
                Stage::Certified
                    | Stage::Committing
                    | Stage::Left
                    | Stage::MustReplay
                    | Stage::Replaying
            )
        };
        self.gates.is_finished_beyond()
            || lock(&self.toi).values().any(|t| t.lock().seqno > seqno)
            || self.trxs.any(|t| {
                let body = t.lock();
                body.seqno > seqno && in_commit(body.stage)
            })
    }

    /// The server refuses the view at which its engines were to start: it ends its own start (a port that is taken, a
    /// file that cannot be read). Nothing was applied, so its data is as good as before.
    pub(super) fn start_failed(&self, applier: &mut dyn Applier) -> Ended {
        self.error(
            "the server refused its first view: it has ended its own start, and its other lines in this log say why. Its \
             data is as it was, and counts as before: mend that, and start it again in the same way",
        );
        {
            let mut shared = self.shared();
            shared.brought_up = false;
            if self.was_up.load(Relaxed) {
                // Not before the engines ran: they may have moved.
                shared.join_failed = Some("the server refused its first view".into());
            }
        }
        self.leave_not_begun();
        self.deliver_final(applier, self.final_view(self.gates.released()));
        self.changed.notify_all();
        Ended::with(Outcome::Fatal)
    }

    /// Has everything that the database wrote synced: the engine itself does that later, when it ends, and
    /// the position of an orderly stop is believed where the engine stands before it (power that fails in
    /// between). Not believed where a sync failed before: the system tells that once.
    fn is_on_the_disk(&self) -> bool {
        let dir = self.setup.data_dir.display();
        let why = match self.sync_files(UNASKED) {
            Err(e) => format!("could not be synced: {e}"),
            Ok(()) if lock(&self.durable).held() == Some(Held::SyncFailed) => {
                "could not be synced before, and a later sync does not tell what that lost".into()
            }
            Ok(()) => return true,
        };
        self.error(&format!(
            "the file system of {dir} {why}. The next start asks the storage engine how far it is"
        ));
        false
    }

    /// Whether the log here has nothing behind `seqno`, where the database ends, on which others may rest. `gone`: they
    /// have said that it does not count any more, or nobody else is there.
    fn has_nothing_behind(
        &self,
        seqno: Seqno,
        alone: bool,
        gone: bool,
        order: Option<&Arc<dyn Order>>,
    ) -> bool {
        let left = self.shared().left;
        if let Some(left) = left {
            return gone && seqno >= left.behind;
        }
        // Who heard last of a majority does not know of all that this one stored for it.
        let delivered = lock(&self.delivered).index;
        let knows_all = |order: &Arc<dyn Order>| order.status().last.index <= delivered;
        seqno >= self.gates.last_ordered() && (alone || order.is_some_and(knows_all))
    }

    /// This node leaves before its server was brought up: nothing that was ordered has been applied since.
    fn save_not_begun(&self, alone: bool, gone: bool) {
        let (stands_at, joined_at, alone) = {
            let shared = self.shared();
            // It may have joined others since it was told to leave.
            let joined = shared.joined.as_ref();
            let others = joined.is_some_and(|(view, _)| view.members.len() > 1);
            let joined_at = joined.map(|(view, _)| view.position.seqno);
            (shared.stands_at(), joined_at, alone && !others)
        };
        if let Some(position) = stands_at {
            // Its own join brings the database nothing.
            let at = position.seqno + i64::from(joined_at == Some(position.seqno + 1));
            let behind = match self.has_nothing_behind(at, alone, gone, None) {
                true => Behind::Nothing,
                false if alone && self.settings().durability == Durability::Majority => {
                    Behind::Only
                }
                false => Behind::Others,
            };
            self.save_stopped(position, alone, behind);
        } else if !self.was_up.load(Relaxed) {
            // As if it had not been connected: the next time the position is asked for again.
            self.connected_before.store(false, Relaxed);
        }
    }

    /// Why a node in `phase` that waits to be joined will not be. (A witness that is inconsistent takes the log anew.)
    pub(super) fn never_joins(&self, phase: Phase) -> Option<&'static str> {
        match phase {
            Phase::Leaving | Phase::Closed => Some("told to leave meanwhile"),
            Phase::Inconsistent if !self.setup.witness => {
                Some("this node left as inconsistent before it had joined; why stands above")
            }
            _ => None,
        }
    }

    /// The server cannot be brought up: the others are neither to count this node nor to keep
    /// their log for it.
    pub(super) fn leave_not_begun(&self) {
        let goes = {
            let shared = self.shared();
            !shared.removed && !shared.is_alone()
        };
        if goes {
            self.say_leave(LeaveReason::Graceful);
        }
    }

    /// The server cannot be brought up, as `why` says; `waits`: for a copy that never comes.
    pub(super) fn not_brought_up(
        &self,
        applier: &mut dyn Applier,
        why: String,
        waits: bool,
    ) -> Ended {
        self.error(&why);
        self.leave_not_begun();
        if waits {
            applier.give_up();
        }
        self.deliver_final(applier, self.final_view(self.gates.released()));
        self.shared().join_failed = Some(why);
        self.changed.notify_all();
        Ended::with(Outcome::Fatal)
    }

    /// This node leaves as inconsistent, and its server waits for what starts its engines.
    pub(super) fn never_starts(&self, applier: &mut dyn Applier) -> Ended {
        // Its process may end next, and whoever found it out may not have come to writing that down.
        self.save_inconsistent();
        if let Some(order) = self.order() {
            self.wait_gone(&order);
        }
        applier.give_up();
        self.deliver_final(applier, self.final_view(self.gates.released()));
        Ended::with(Outcome::Fatal)
    }

    /// Tells the others that this node goes, and waits until that is ordered.
    pub(super) fn say_leave(&self, reason: LeaveReason) {
        let Some(order) = self.order() else { return };
        if self.engine_failed.load(Relaxed) {
            return; // silence evicts it
        }
        let uuid = self.shared().uuid;
        // If it is not ordered, silence evicts this node.
        let leave = encode(&Control::Leave { uuid, reason });
        let _ = order.propose(kind::CONTROL, 0, leave);
        let deadline = Instant::now() + LEAVE;
        let mut shared = self.shared();
        while !shared.own_leave && Instant::now() < deadline {
            shared = self.wait_shared(shared, deadline);
        }
    }

    /// A leader hands leadership on before it goes. The only voter cannot yet: the
    /// others get votes when its leave is ordered.
    fn hand_over(&self, order: &Arc<dyn Order>) {
        let status = order.status();
        let heirs = status.members.voters();
        if !status.is_leader || heirs.iter().all(|id| *id == status.id) {
            return;
        }
        order.transfer_leader(None);
        let deadline = Instant::now() + Duration::from_secs(3);
        while order.status().is_leader && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes sure the server gets its final view and its threads back.
    fn end_receivers(&self, phase: Phase) {
        let deadline = Instant::now() + self.setup.finish;
        let mut shared = self.shared();
        if !shared.own_leave && phase != Phase::Inconsistent {
            let released = self.gates.released();
            let seqno = match phase {
                Phase::Rejoining => released,
                _ => shared.ends_at.unwrap_or_else(|| self.gates.last_ordered()),
            };
            let brought_up = shared.brought_up;
            drop(shared);
            if brought_up {
                let view = self.final_view(seqno);
                self.push_notice(seqno, Item::Final(view));
            }
            shared = self.shared();
        }
        while shared.receivers > 0 && Instant::now() < deadline {
            shared = self.wait_shared(shared, deadline);
        }
        if shared.receivers > 0 {
            let n = shared.receivers;
            drop(shared);
            self.warn(&format!("{n} applier threads did not come back in time"));
        }
    }

    /// Waits until the others' log does not count this one any more, so that
    /// their majority does not need it. False: nobody has said so in time.
    fn wait_gone(&self, order: &Arc<dyn Order>) -> bool {
        let raft_id = order.status().id;
        let history = self.history();
        let own = self.own_addr();
        let deadline = Instant::now() + GONE;
        while Instant::now() < deadline {
            let status = order.status();
            let leader = status.leader.map(|(_, addr)| addr);
            let mut addrs: Vec<String> = leader.into_iter().collect();
            addrs.extend(status.members.addrs.into_values());
            addrs.retain(|addr| *addr != own);
            if addrs.is_empty() {
                return true;
            }
            let counts = log_counts(addrs, &own, |addr| {
                let ask = |request: &Request| {
                    let answer = order.request(addr, encode(request), Duration::from_secs(1));
                    decode(&answer.ok()?)
                };
                let ours = (history, incarnation(status.term));
                heard(raft_id, ours, ask).ok().flatten()
            });
            if counts == Some(false) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.note("left before the others confirmed that this node's vote no longer counts");
        false
    }

    pub(super) fn close_engine(&self) {
        lock(&self.delivered).stopped = true;
        self.delivered_more.notify_all();
        let sender = lock(&self.services).take();
        *lock(&self.syncer) = None;
        let order = self.order();
        if let Some(order) = &order {
            order.stop();
        }
        if let Some(sender) = sender {
            // The thread ends at this, or when the sender is gone.
            let _ = sender.try_send(Job::Stop);
        }
        let threads: Vec<_> = lock(&self.threads).drain(..).collect();
        let me = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != me {
                // A panic there was logged where it happened.
                let _ = thread.join();
            }
        }
        // Behind the service thread, which starts it.
        let seeker = lock(&self.seeker).take();
        if let Some(thread) = seeker {
            let _ = thread.join();
        }
        self.end_beside();
        self.set_order(None);
        // Who joins again hears of the rest then.
        let again = self.phase() == Phase::Rejoining;
        self.abandon_sent_by(order.as_ref(), again);
        self.flow.clear();
        self.closed.clear();
        let mut shared = self.shared();
        shared.own_state = MemberState::Joiner;
    }
}

/// Whether this node was told to leave. One that is inconsistent has its last views on their way.
pub(super) fn told_to_leave(phase: Phase) -> bool {
    matches!(phase, Phase::Leaving | Phase::Closed)
}

/// Whether a node that waits to be brought up need not wait any more.
pub(super) fn ended(phase: Phase) -> bool {
    matches!(phase, Phase::Leaving | Phase::Closed | Phase::Inconsistent)
}
