//! The server's applier threads: they bring the database to the cluster's
//! state, then apply what comes from the order.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_gates::{Before, Popped, QueueItem, Seqno, WaitError, Waiter};
use dromon_writeset::{Flags, PayloadSum};

use super::delivery::{to_view, view_member};
use super::leave::{ended, told_to_leave};
use super::transfer::{Bypass, NoCopy};
use super::{Item, Node, Phase, RemoteWriteSet, Shared, lock};
use crate::cluster::{ClusterView, MemberState};
use crate::database::{Applier, Meta, Outcome, View};
use crate::flow::FlowLimits;
use crate::held::Share;
use crate::messages::{Control, LeaveReason, Need, Position, encode, kind};
use crate::trx::Trx;

/// How long that may take which is rolled back as its place will never come.
const ROLLS_BACK: Duration = Duration::from_secs(10);
/// How often the last view looks whether what it waits for will not come.
const FINAL_LOOK: Duration = Duration::from_millis(200);

/// Why an applier thread goes back to the database.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// Whether it was counted out of the receivers already.
    pub(super) counted_out: bool,
}

impl Ended {
    pub(super) fn with(outcome: Outcome) -> Self {
        Ended {
            outcome,
            counted_out: false,
        }
    }
}

/// What bringing up ended with.
enum BroughtUp {
    Ready,
    Left,
    /// The same as inconsistent, amid the start of the server: what it waits for does not come, and its last view
    /// does not end that.
    NeverStarts,
    /// The copy this server waits for will never be whole.
    NoCopy(String),
    Failed(String),
}

impl Node {
    /// Serves as an applier until the node leaves the cluster, or until the
    /// database wants the thread back.
    pub fn receive(self: &Arc<Self>, applier: &mut dyn Applier) -> Outcome {
        {
            let mut shared = self.shared();
            if shared.phase == Phase::Closed {
                return Outcome::Fatal;
            }
            shared.receivers += 1;
        }
        let ended = self.receive_inner(applier);
        if !ended.counted_out {
            let mut shared = self.shared();
            shared.receivers = shared.receivers.saturating_sub(1);
        }
        self.changed.notify_all();
        ended.outcome
    }

    fn receive_inner(self: &Arc<Self>, applier: &mut dyn Applier) -> Ended {
        let stop = Ended::with;
        let first = {
            let mut shared = self.shared();
            let first = !shared.bringing_up;
            shared.bringing_up = true;
            first
        };
        if first {
            match self.bring_up(applier) {
                BroughtUp::Ready => {}
                BroughtUp::Left => {
                    self.deliver_final(applier, self.final_view(self.gates.released()));
                    return stop(Outcome::Ok);
                }
                BroughtUp::NeverStarts => return self.never_starts(applier),
                BroughtUp::NoCopy(why) => return self.not_brought_up(applier, why, true),
                BroughtUp::Failed(why) => return self.not_brought_up(applier, why, false),
            }
        }
        let waiter = Node::waiter();
        loop {
            self.spare_applier();
            match self.queue.pop(None) {
                Popped::Item(item) => {
                    let exclusive = item.exclusive;
                    let ended = self.item(applier, &waiter, item);
                    self.queue.done(exclusive);
                    self.queue_shrank();
                    if let Some(ended) = ended {
                        return ended;
                    }
                }
                Popped::Nothing => {}
                Popped::Closed => return stop(Outcome::ConnFail),
            }
        }
    }

    /// Handles one event. Some: the thread must go back to the database.
    fn item(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waiter: &Arc<Waiter>,
        item: QueueItem<Item>,
    ) -> Option<Ended> {
        let QueueItem {
            seqno,
            depends_on,
            value,
            ..
        } = item;
        if let Item::Shelve { waits, streams } = value {
            // What a pause waits for may need it.
            let exit = self.shelve_all(applier, waits, &streams);
            return exit.then(|| self.may_end()).flatten();
        }
        if let Item::Lost(why) = value {
            self.lost_queued(seqno, &why);
            return None;
        }
        // What lies ahead waits for what others have yet to take, also in a pause.
        let ahead = matches!(value, Item::Chunk { .. }) && self.is_begun_ahead(seqno);
        self.queue.sets_aside(ahead);
        let held = match &value {
            // They have no place, and a server that learns amid a pause that it is no donor any more, or not synced, does
            // not end the pause, or the desync that goes with it. A donor's hold is not theirs: what ends it comes behind.
            Item::Synced => self.gates.wait_not_paused(seqno + 1, waiter),
            Item::View(v) if !v.primary => self.gates.wait_not_paused(seqno + 1, waiter),
            // What a vote is about counts: it may lie before a pause.
            Item::VoteRequest { seqno } | Item::VoteLost { seqno, .. } => {
                self.gates.wait_not_held(*seqno, waiter, false)
            }
            _ => self.gates.wait_not_held(seqno, waiter, false),
        };
        let ended = if held.is_err() && !matches!(value, Item::Final(_)) {
            self.stays_behind(seqno, &value);
            None
        } else {
            let waits = match &value {
                Item::WriteSet(_) => Some(seqno),
                Item::Chunk { .. } => (!ahead).then_some(seqno),
                Item::View(view) => view.primary.then_some(seqno),
                Item::Donate { .. } => Some(seqno + 1),
                Item::Synced => Some(depends_on + 1),
                Item::VoteRequest { seqno } | Item::VoteLost { seqno, .. } => Some(seqno + 1),
                Item::Shelve { .. } | Item::Connected(_) | Item::Final(_) | Item::Lost(_) => None,
            };
            let exit = waits.is_some_and(|before| self.wait_for_clients(applier, waiter, before));
            let ended = self.ordered_item(applier, waiter, seqno, depends_on, value);
            ended.or_else(|| exit.then(|| self.may_end()).flatten())
        };
        self.queue.is_back(ahead);
        ended
    }

    /// This node leaves amid a pause, and `value` lies behind that: its place is passed, and it is
    /// not finished here. It comes again when this node is back.
    fn stays_behind(&self, seqno: Seqno, value: &Item) {
        match value {
            Item::WriteSet(_) => self.gates.pass_commit(seqno),
            Item::View(view) if view.primary => self.gates.pass_commit(seqno),
            Item::Chunk { .. } => {
                self.gates.pass_commit(seqno);
                self.chunk_applied(seqno);
            }
            Item::Donate { .. } => self.gates.unhold(seqno),
            _ => {}
        }
    }

    fn ordered_item(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waiter: &Arc<Waiter>,
        seqno: Seqno,
        depends_on: Seqno,
        value: Item,
    ) -> Option<Ended> {
        match value {
            Item::Shelve { .. } | Item::Lost(_) => None,
            Item::WriteSet(ws) => self.apply_write_set(applier, waiter, seqno, ws),
            Item::Chunk {
                chunked,
                part,
                streams,
            } => {
                // What comes before may make the server throw away what it has.
                let before = self.gates.wait_released(depends_on, waiter, false, None);
                let goes_on = before.is_ok() && self.settle_chunks(applier, &chunked);
                let ended = if goes_on {
                    self.begun_ahead_starts(seqno);
                    let ws = self.chunk_to_apply(seqno, depends_on, &chunked, part, &streams);
                    ws.and_then(|ws| self.apply_write_set(applier, waiter, seqno, ws))
                } else {
                    self.give_up(seqno);
                    None
                };
                self.chunk_applied(seqno);
                ended
            }
            Item::View(view) if !view.primary => {
                // Nothing follows the last one.
                if !self.shared().final_delivered {
                    self.wait_none_goes();
                    self.shared().told_synced = false;
                    applier.view(&view);
                }
                None
            }
            Item::View(view) => {
                if self
                    .gates
                    .wait_released(seqno - 1, waiter, false, None)
                    .is_err()
                {
                    self.gates.pass_commit(seqno);
                    return None;
                }
                self.wait_none_goes();
                let starts = self.settles_at_view.swap(false, Relaxed);
                let seen = applier.view(&view);
                if starts {
                    if !seen {
                        return Some(self.start_failed(applier));
                    }
                    self.was_up.store(true, Relaxed);
                    // If it fails the node leaves.
                    self.settle_shelved(applier);
                } else if !seen {
                    self.inconsistent(&format!("the database refused the view at seqno {seqno}"));
                }
                self.gates.leave_and_release(seqno);
                self.save_view_state();
                if let Some(order) = self.order() {
                    // At once: clients of a node that is back wait for it.
                    self.ask_synced(&order);
                }
                None
            }
            Item::Connected(view) => {
                if !applier.connected(&view) {
                    self.warn("the server refused the view of its new connection");
                }
                None
            }
            Item::Final(mut view) => {
                let ends_at = self.gates.ends_at().unwrap_or(seqno);
                let seqno = seqno.min(ends_at);
                view.position.seqno = view.position.seqno.min(ends_at);
                let deadline = Instant::now() + self.setup.finish;
                // What is inconsistent is never finished here.
                let over = || self.phase() == Phase::Inconsistent;
                let mut waited = Err(WaitError::TimedOut);
                while waited == Err(WaitError::TimedOut) && !over() && Instant::now() < deadline {
                    let by = deadline.min(Instant::now() + FINAL_LOOK);
                    waited = self.gates.wait_released(seqno, waiter, false, Some(by));
                }
                if waited.is_err() && !over() {
                    self.warn(&format!(
                        "leaving before everything up to seqno {seqno} is finished here; finished: {}",
                        self.gates.released()
                    ));
                }
                self.deliver_final(applier, view);
                Some(Ended::with(Outcome::Ok))
            }
            Item::Donate {
                joiner,
                request,
                bypass,
            } => {
                self.donate(applier, waiter, seqno, joiner, &request, bypass);
                None
            }
            Item::Synced => {
                let done = self.gates.wait_released(depends_on, waiter, false, None);
                let serves = {
                    let shared = self.shared();
                    // Who gives a copy next was synced before; behind it nobody would say so.
                    let gives_next = shared.own_state == MemberState::Donor
                        && shared.donating.is_some()
                        && !shared.donation_open;
                    shared.own_state == MemberState::Synced || shared.is_desynced() || gives_next
                };
                if done.is_ok() && serves {
                    applier.synced();
                    self.shared().told_synced = true;
                }
                None
            }
            Item::VoteRequest { seqno } => {
                if self.gates.wait_released(seqno, waiter, false, None).is_ok() {
                    self.say_finished();
                }
                None
            }
            Item::VoteLost { seqno, alone } => {
                if self.gates.wait_released(seqno, waiter, false, None).is_ok() {
                    self.check_own_ballot(seqno, alone);
                }
                None
            }
        }
    }

    fn apply_write_set(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waiter: &Arc<Waiter>,
        seqno: Seqno,
        mut ws: RemoteWriteSet,
    ) -> Option<Ended> {
        if self.phase() == Phase::Inconsistent
            || self
                .gates
                .enter_apply(seqno, ws.depends_on, waiter, false)
                .is_err()
        {
            self.give_up(seqno);
            return None;
        }
        // Held until this is through: the log stays as long.
        let left = ws.left.take();
        if let Some(left) = &left {
            ws.payload = Some(self.whole_left(seqno, left)?);
        }
        if let (Some(payload), Some(sum)) = (&ws.payload, ws.sum)
            && PayloadSum::of(payload) != sum
        {
            ws.payload = Some(self.damaged_spool(seqno, ws.index, ws.source)?);
        }
        let stream = (ws.source, ws.trx_id);
        let goes_on = self.drop_what_came_alone(applier, &ws);
        let Some(share) = self.share_of(&ws).filter(|_| goes_on) else {
            self.give_up(seqno);
            return None;
        };
        if matches!(share, Share::Whole(_)) && !self.throw_before(applier, seqno, stream) {
            self.give_up(seqno);
            return None;
        }
        if let Err(why) = self.share_out(seqno, &mut ws, &share) {
            self.inconsistent(&format!(
                "a shelved streaming transaction cannot be read again for its end at seqno {seqno}: {why}"
            ));
            self.gates.pass_commit(seqno);
            return None;
        }
        self.shelve_before(applier, seqno, &ws);
        let payload = match ws.payload.take() {
            Some(payload) => payload,
            None => match self.payload_from_log(ws.index, ws.source) {
                Ok(payload) => payload,
                Err(why) => {
                    self.cannot_be_read(seqno, &why);
                    return None;
                }
            },
        };
        let statement = ws.flags.contains(Flags::ISOLATION) && !ws.flags.is_rollback();
        if statement {
            self.statement_comes(seqno);
        }
        let done = statement && self.is_done(seqno);
        if done {
            ws.flags = Flags::TRX_START | Flags::TRX_END | Flags::ROLLBACK;
        }
        let marked = statement && !done;
        if marked {
            self.wait_none_goes();
        }
        if marked && !self.ddl_begins(seqno) {
            self.gates.pass_commit(seqno);
            return None;
        }
        let trx = Trx::remote(ws.trx_id, seqno);
        if marked {
            trx.lock().flags = ws.flags;
        }
        let failed = ws.flags.is_rollback() && ws.flags.ends();
        let meta = Meta {
            position: Position {
                history: self.history(),
                seqno,
            },
            source: ws.source,
            trx_id: ws.trx_id,
            conn_id: ws.conn_id,
            depends_on: if failed { -1 } else { ws.depends_on },
        };
        // The end of a stream has all the locks that it needs, but for what was changed since
        // the last fragment: that comes with it.
        let has_all = ws.flags.ends() && !ws.flags.starts() && payload.is_empty();
        if !(statement || has_all || ws.flags.is_rollback()) {
            let tables = std::mem::take(&mut ws.locks.tables);
            self.takes_locks(seqno, tables, payload.len() as u64);
        }
        if marked {
            self.statement_begins(seqno);
        }
        let payload = self.as_it_comes_again(seqno, ws.flags, payload);
        let applied = applier.apply(&trx, ws.flags, &payload, &meta);
        self.has_locks(seqno);
        if marked {
            self.ddl_ended(seqno, applied.ok);
        }
        if self.gates.left() < seqno {
            // The server gave up before commit order: the place is passed for it.
            self.begun_ahead_is_ready(seqno);
            let turn = self
                .gates
                .wait_commit_turn(seqno, Before::Left, waiter, false);
            if turn.is_ok() {
                self.gates.leave(seqno);
            }
        }
        // Before what comes next of its stream may begin.
        self.share_ended(stream, &share);
        if applied.ok {
            self.gates.release(seqno);
            if ws.flags.is_fragment() {
                self.fragment_applied((ws.source, ws.conn_id), payload.len() as u64);
            }
        } else if seqno > self.gates.last_ordered() || self.gates.is_beyond_end(seqno) {
            // It lay ahead, and this node ends before its place came, or amid a pause before it.
            self.gates.pass_commit(seqno);
        } else {
            self.outvoted(seqno, "applying it failed here and not elsewhere");
            // Not finished here, ever: the position must not pass it.
        }
        applied.exit.then(|| self.may_end()).flatten()
    }

    /// What was kept in a file for seqno `seqno` is not what came: it is read from the log. None:
    /// nor is it there, and the node leaves.
    pub(super) fn damaged_spool(
        &self,
        seqno: Seqno,
        index: u64,
        source: dromon_writeset::Uuid,
    ) -> Option<Bytes> {
        self.warn(&format!(
            "what lies in a spool file for seqno {seqno} is not what came (its checksum differs): look after the disk and \
             the memory of this machine. Nothing is lost: it is read from the log again"
        ));
        let again = self.payload_from_log(index, source);
        if let Err(why) = &again {
            self.cannot_be_read(seqno, why);
        }
        again.ok()
    }

    pub(super) fn at(&self, seqno: Seqno) -> Position {
        Position {
            history: self.history(),
            seqno,
        }
    }

    pub(super) fn deliver_final(&self, applier: &mut dyn Applier, view: View) {
        // The server must see the last view exactly once.
        {
            let mut shared = self.shared();
            if shared.final_delivered {
                return;
            }
            shared.final_delivered = true;
        }
        // What was begun ahead of its place will never have it, and is rolled back first:
        // at this view the server lets go of all streams, whoever works on them.
        match self.phase() {
            // Its data is worth nothing: what is on its way passes. (The last one's gates have ended already.)
            Phase::Inconsistent => self.gates.close(),
            _ => self.gates.close_at(view.position.seqno),
        }
        self.drop_queued();
        self.queue.resume();
        if !self.queue.wait_none_aside(Instant::now() + ROLLS_BACK) {
            self.warn("an applier has not come back in time from what it had begun ahead of its place; nothing of that is committed, \
                 and this node leaves all the same");
        }
        self.wait_none_goes();
        applier.view(&view);
        self.queue.close();
        self.drop_queued(); // what has come meanwhile
        self.changed.notify_all();
    }

    /// Brings the database from where it is to where events can be applied.
    fn bring_up(self: &Arc<Self>, applier: &mut dyn Applier) -> BroughtUp {
        let (view, need) = {
            let mut shared = self.shared();
            loop {
                if told_to_leave(shared.phase) {
                    return BroughtUp::Left;
                }
                if let Some(joined) = shared.joined.clone() {
                    break joined;
                }
                if ended(shared.phase) {
                    return BroughtUp::Left;
                }
                shared = self.wait_shared(shared, Instant::now() + Duration::from_secs(1));
            }
        };
        let (own, position) = {
            let shared = self.shared();
            (shared.uuid, shared.position)
        };
        if !applier.connected(&to_view(&view, &own)) {
            return BroughtUp::Failed("the server refused the connection's view".into());
        }
        let joined_at = view.position.seqno;
        // Data of another incarnation may stand at the same seqno.
        let lacks_nothing = need == Need::Log
            && position.seqno + 1 == joined_at
            && position.history == view.position.history;
        let alone = view.members.len() == 1 && !position.is_defined();
        let fresh = alone && need == Need::Log;
        let by_log = need == Need::Log && !fresh && !lacks_nothing;
        if !fresh && !lacks_nothing {
            let from = match need {
                Need::Log => position.seqno + 1,
                Need::Copy => 0,
            };
            self.tell_receiver(from, joined_at);
        }
        if by_log {
            self.note(&format!(
                "IST receiver: catching up from the log, seqnos {} to {joined_at} ({} events), no copy needed",
                position.seqno + 1,
                joined_at - position.seqno
            ));
            self.catch_up(position.seqno, joined_at);
        }
        let bypass = match by_log || (lacks_nothing && !fresh) {
            true => self.bypass(applier, &view, own, position),
            false => Ok(Bypass::None),
        };
        let told_at = match bypass {
            Ok(Bypass::Done(at)) => Some(at),
            Ok(Bypass::None) => None,
            Ok(Bypass::Left) => return self.left_unstarted(),
            Err(NoCopy::Never(why)) => return BroughtUp::NoCopy(why),
            Err(NoCopy::NotNow(why)) => return BroughtUp::Failed(why),
        };
        if let Some(at) = told_at {
            self.applied_from(at.seqno, false);
            if !self.start_at(at.seqno) {
                return BroughtUp::Left;
            }
            self.propose_joined(own);
        } else if fresh || lacks_nothing {
            self.applied_from(joined_at - 1, fresh);
            if !self.start_at(joined_at - 1) {
                return self.left_unstarted();
            }
        } else if by_log {
            // A server told to bootstrap forgets its position with the first
            // view, and writes it again only if it has not been reached yet.
            self.gates.reset(position.seqno - 1);
            let base = self.base_view(&view, position, &own);
            if !applier.view(&base) {
                return BroughtUp::Failed("the server refused the view at its own position".into());
            }
            self.applied_from(position.seqno, false);
            if !self.start_at(position.seqno) {
                return BroughtUp::Left;
            }
            self.propose_joined(own);
        } else {
            match self.take_copy(applier, &view, own) {
                Ok(Some(position)) => {
                    self.forget_marks();
                    self.forget_shelved();
                    if let Err(why) = self.forget_lacking() {
                        return BroughtUp::Failed(why);
                    }
                    self.applied_from(position.seqno, true);
                    if !self.start_at(position.seqno) {
                        return BroughtUp::Left;
                    }
                    self.propose_joined(own);
                }
                Ok(None) => return self.left_unstarted(),
                Err(NoCopy::Never(why)) => return BroughtUp::NoCopy(why),
                Err(NoCopy::NotNow(why)) => return BroughtUp::Failed(why),
            }
        }
        let goes_on = by_log && !self.was_up.load(Relaxed);
        self.comes_again(if goes_on { joined_at } else { 0 });
        // A server knows nothing of streams before its first view, which is yet to come then.
        let at_view = told_at.is_none() && (fresh || lacks_nothing);
        self.settles_at_view.store(at_view, Relaxed);
        if !at_view && !self.settle_shelved(applier) {
            return BroughtUp::Failed("the server refused to roll back what was shelved".into());
        }
        let mut shared = self.shared();
        // Who says so looks behind that whether this was brought up: one of the two gives the last view.
        let left = told_to_leave(shared.phase);
        // Some engines start at the view that is yet to come.
        self.was_up.fetch_or(!at_view, Relaxed);
        if left {
            return BroughtUp::Left;
        }
        if shared.phase == Phase::Joining {
            self.back_at.store(0, Relaxed);
            shared.phase = Phase::Joined;
        }
        shared.brought_up = true;
        shared.in_doubt = false;
        let ended_at = shared.ends_at;
        drop(shared);
        self.wants_copy.store(false, Relaxed);
        self.save_running();
        self.changed.notify_all();
        if let Some(at) = ended_at {
            self.evicted(at + 1);
        }
        // Before all of them take something.
        self.spare_applier();
        self.queue.resume();
        if let Some(order) = self.order() {
            self.ask_synced(&order);
        }
        BroughtUp::Ready
    }

    /// How bringing up ends if this node leaves before that has started the server's engines; they may run since an
    /// earlier connection.
    fn left_unstarted(&self) -> BroughtUp {
        match self.phase() == Phase::Inconsistent && !self.was_up.load(Relaxed) {
            true => BroughtUp::NeverStarts,
            false => BroughtUp::Left,
        }
    }

    /// This process applies what comes after `seqno`; `copied`: what it did
    /// before is gone.
    fn applied_from(&self, seqno: Seqno, copied: bool) {
        {
            let mut own = lock(&self.own_ballots);
            // Of what comes again the new try counts.
            own.failed.split_off(&(seqno + 1));
            if copied || own.from.is_none() {
                own.from = Some(seqno);
            }
        }
        self.knows_failed(seqno, copied);
    }

    /// The database stands at `seqno`: what it has is dropped, the rest flows. False: this
    /// node leaves as inconsistent, and nothing flows any more.
    fn start_at(&self, seqno: Seqno) -> bool {
        let at = self.at(seqno);
        self.shared().starts_at = Some(at);
        self.gates.reset(seqno);
        self.queue.drop_through(seqno);
        // Looked at behind the reset: who leaves later than that closes the gates itself.
        let leaves = self.phase() == Phase::Inconsistent;
        if leaves {
            self.gates.close();
        }
        !leaves
    }

    /// The view for a database that starts at `position`: those who were
    /// members there, and this node.
    fn base_view(
        &self,
        joined: &ClusterView,
        position: Position,
        own: &dromon_writeset::Uuid,
    ) -> View {
        let base = self.shared().base.clone();
        let number = base.as_ref().map_or(joined.number - 1, |b| b.number).max(1);
        let mut members: Vec<_> = base.map(|b| b.members).unwrap_or_default();
        for m in &joined.members {
            // Streaming transactions of present members must survive the start.
            if !members.iter().any(|k| k.uuid == m.uuid) {
                members.push(m.clone());
            }
        }
        members.sort_by_key(|m| m.uuid);
        View {
            position,
            number,
            primary: true,
            own: members.iter().position(|m| m.uuid == *own),
            members: members.iter().map(view_member).collect(),
        }
    }

    pub(super) fn propose_joined(&self, uuid: dromon_writeset::Uuid) {
        if let Some(order) = self.order() {
            // If it is lost with the connection, so is the membership.
            let _ = order.propose(kind::CONTROL, 0, encode(&Control::Joined { uuid }));
        }
    }

    /// The apply queue grew: maybe the others must pause. Never blocks.
    pub(super) fn queue_grew(&self) {
        self.flow_check();
    }

    fn queue_shrank(&self) {
        self.flow_check();
    }

    fn flow_check(&self) {
        let len = self.queue.len();
        let stop = self.flow.own_stop();
        if !stop && len <= self.flow_limits().upper && !self.flow.counts_above() {
            return;
        }
        let state = self.shared().own_state;
        if self.flow_own(len, state) {
            self.report_progress();
        }
    }

    /// How many events wait here when this node asks for a pause, and when it takes that back.
    pub(super) fn own_limits(&self, state: MemberState) -> FlowLimits {
        match (state, self.flow.allowed()) {
            (MemberState::Synced, _) => self.flow_limits(),
            (MemberState::Joined, Some(more)) => self.flow_limits().beyond(more),
            (MemberState::Joiner | MemberState::Donor | MemberState::Joined, _) => FlowLimits::NONE,
        }
    }

    pub(super) fn flow_limits(&self) -> FlowLimits {
        self.flow_limits_in(&self.shared())
    }

    pub(super) fn flow_limits_in(&self, shared: &Shared) -> FlowLimits {
        let members = shared.view.as_ref().map_or(1, |v| {
            v.members.iter().filter(|m| !m.witness).count().max(1)
        });
        let s = self.settings();
        FlowLimits::new(s.fc_limit, s.fc_factor, s.fc_single_primary, members)
    }

    /// The members do not agree on `seqno`, and this one is in the minority.
    /// Tools know the words in front.
    pub(super) fn outvoted(&self, seqno: Seqno, why: &str) {
        self.leave_inconsistent(&format!(
            "Inconsistency detected: Inconsistent by consensus on {}: {why}",
            self.at(seqno)
        ));
    }

    /// The data here is not what the others have, or cannot become it.
    pub(super) fn inconsistent(&self, why: &str) {
        self.leave_inconsistent(&format!("Inconsistency detected: {why}"));
    }

    /// Leaves the others, touches nothing.
    pub(super) fn leave_inconsistent(&self, what: &str) {
        let (uuid, seqno, own) = {
            let mut shared = self.shared();
            if matches!(shared.phase, Phase::Inconsistent | Phase::Closed) {
                let leaves = shared.phase == Phase::Inconsistent;
                drop(shared);
                if leaves {
                    // Whoever was first may not have come to it yet, and the caller's place is
                    // not to be passed before.
                    self.save_inconsistent();
                    if self.last_with_data.load(Relaxed) {
                        self.gates.close_at(self.gates.released());
                    }
                }
                return;
            }
            let last = !self.setup.witness && shared.is_last_with_data();
            self.last_with_data.store(last, Relaxed);
            shared.phase = Phase::Inconsistent;
            // Now: once the others hear of it there is a view without this node.
            let uuid = shared.uuid;
            let own = shared
                .view
                .as_ref()
                .and_then(|v| v.members.iter().find(|m| m.uuid == uuid).map(view_member));
            (uuid, self.gates.released(), own)
        };
        let last = self.last_with_data.load(Relaxed);
        let next = match self.setup.witness {
            _ if last => {
                "This node ends, and keeps what it has, as no other member with data is there. Mend what stands in the lines \
                 before, then start it again as the first one (galera_new_cluster): what its database lacks comes \
                 from its log. Should it end here again, the other nodes' data is older than this one's"
            }
            true => {
                "This node leaves the cluster; the others go on, nothing acknowledged is lost. It takes the log anew from them"
            }
            false => {
                "This node leaves the cluster; the others go on, nothing acknowledged is lost. Start it again: it will take \
                 a full copy"
            }
        };
        self.error(&format!("{what}. {next}"));
        self.forget_log
            .store(self.setup.witness, std::sync::atomic::Ordering::Relaxed);
        self.save_inconsistent();
        match last {
            // Its log is fed to it again, from where its database stands then: nothing may come in behind what it lacks.
            true => self.gates.close_at(self.gates.released()),
            false => self.gates.nothing_more_is_sure(),
        }
        if let Some(order) = self.order().filter(|_| !last) {
            let reason = LeaveReason::Inconsistent;
            // If nobody hears it, silence evicts this node.
            let _ = order.propose(kind::CONTROL, 0, encode(&Control::Leave { uuid, reason }));
        }
        self.abandon_sent_by(self.order().as_ref(), false);
        let position = Position {
            history: self.history(),
            seqno,
        };
        let alone = View {
            position,
            number: -1,
            primary: false,
            own: own.as_ref().map(|_| 0),
            members: own.into_iter().collect(),
        };
        let last = self.final_view(seqno);
        self.drop_queued();
        let push = |seqno, value| {
            self.enqueue(QueueItem {
                seqno,
                ordered: false,
                depends_on: -1,
                exclusive: true,
                bytes: 0,
                value,
            });
        };
        if alone.own.is_some() {
            push(-1, Item::View(alone));
        } // else the server would take it for the last one
        push(-1, Item::Final(last));
        self.gates.close();
        self.changed.notify_all();
    }
}
