//! Transactions of this node's clients that give way: to an applier, to a statement, or
//! because the cluster is lost. What becomes of them: they are replayed, rolled back here and
//! on the other nodes, or nobody can say.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use dromon_gates::{Before, Seqno};
use dromon_order::Order;
use dromon_writeset::{Flags, Header, KeyCollector, PayloadSum};

use super::{Node, Sent, lock};
use crate::database::{Applied, Meta, Outcome};
use crate::messages::{Position, kind};
use crate::trx::{Abandoned, Body, Stage, Trx};

impl Node {
    /// A transaction that passed must let another one go first.
    pub(super) fn give_way(&self, trx: &Trx, ends: bool) -> Outcome {
        let mut body = trx.lock();
        if ends {
            body.stage = Stage::MustReplay;
            self.will_be_replayed(trx, &body);
            self.gates.withdraw(body.seqno);
            return Outcome::BfAbort;
        }
        let to_ddl = body.gives_way_to_ddl;
        drop(body);
        if to_ddl {
            self.end_stream(trx.id);
        }
        Outcome::TrxFail
    }

    /// The server rolls back the stream `trx_id`. If a fragment of it has a place and did not get through
    /// it, the place is passed: a server does not always let go of the fragment (a KILL amid a trigger
    /// makes it forget its handle), and all behind it would wait for ever.
    fn pass_fragment(&self, trx_id: u64) {
        let Some(trx) = self.trxs.get(trx_id) else {
            return;
        };
        let body = trx.lock();
        if body.seqno < 0 || body.ends() {
            return;
        }
        match body.stage {
            Stage::Certified | Stage::Failed | Stage::Committing => {
                if body.is_fragment_that_passed() {
                    self.fragment_given_up(body.seqno);
                }
                self.gates.cancel(body.seqno);
            }
            Stage::Left => self.gates.release(body.seqno),
            _ => {}
        }
    }

    /// `trx` passed, and will run again: others of this node wait for its tables until then.
    /// Before the server frees the first of its rows.
    pub(super) fn will_be_replayed(&self, trx: &Trx, body: &Body) {
        self.closed.close_for_replay(trx.id, body.all_tables());
    }

    /// Whether the order still has the write set `tag` unsent, and now not any more.
    pub(super) fn take_back(&self, tag: u64) -> bool {
        self.order()
            .is_some_and(|o| o.withdraw(kind::WRITE_SET, tag))
    }

    /// Applies a transaction that gave way, in its place, through `apply`.
    pub fn replay(
        &self,
        trx: &Arc<Trx>,
        apply: impl FnOnce(&Arc<Trx>, Flags, &[u8], &Meta) -> Applied,
    ) -> Outcome {
        let (history, source) = (self.history(), self.shared().uuid);
        let (seqno, depends_on, flags, mut payload, sum, index, meta, tables) = {
            self.wait_verdict(trx, false);
            let mut body = trx.lock();
            if body.abandoned.is_some() && body.stage == Stage::Chunked {
                drop(body);
                self.error(&format!(
                    "transaction {} was to be run again, and this node has lost the cluster: nobody here can tell \
                     whether it commits",
                    trx.id
                ));
                return Outcome::NodeFail;
            }
            if body.stage == Stage::Failed {
                self.counters.local_cert_failures.fetch_add(1, Relaxed);
                return Outcome::TrxFail;
            }
            body.stage = Stage::Replaying;
            let meta = Meta {
                position: Position {
                    history,
                    seqno: body.seqno,
                },
                source,
                trx_id: trx.id,
                conn_id: body.conn,
                depends_on: body.depends_on,
            };
            (
                body.seqno,
                body.depends_on,
                body.flags,
                body.payload.clone(),
                body.payload_sum,
                body.index,
                meta,
                body.all_tables().collect(),
            )
        };
        trx.waiter.clear();
        let entered = self
            .gates
            .wait_not_held(seqno, &trx.waiter, false)
            .and_then(|()| {
                self.gates
                    .enter_apply(seqno, depends_on, &trx.waiter, false)
            });
        if entered.is_err() {
            self.error(&format!(
                "transaction {} was to be run again at seqno {seqno}, and this node leaves before: it is committed on \
                 the others",
                trx.id
            ));
            self.give_up(seqno);
            return Outcome::NodeFail;
        }
        if sum.is_some_and(|sum| PayloadSum::of(&payload) != sum) {
            let Some(again) = self.damaged_spool(seqno, index, meta.source) else {
                return Outcome::NodeFail;
            };
            payload = again;
        }
        let turn = self
            .gates
            .wait_commit_turn(seqno, Before::Left, &trx.waiter, false);
        if turn.is_err() {
            return Outcome::NodeFail;
        }
        // It gave its locks back, and takes them again as an applier would.
        self.takes_locks(seqno, tables, payload.len() as u64);
        let applied = apply(trx, flags, &payload, &meta);
        self.has_locks(seqno);
        if !applied.ok {
            self.outvoted(
                seqno,
                &format!("replay of own transaction {} failed", trx.id),
            );
            return Outcome::NodeFail;
        }
        if trx.lock().failed_alike {
            // Nowhere is it committed: its client must not hear that it is.
            self.counters.local_cert_failures.fetch_add(1, Relaxed);
            return Outcome::TrxFail;
        }
        self.counters.local_replays.fetch_add(1, Relaxed);
        Outcome::Ok
    }

    /// Asks transaction `victim` to give way to the one at `bf_seqno` (-1: a
    /// statement in total order isolation). Answers with the victim's seqno.
    pub fn abort(&self, bf_seqno: Seqno, victim: u64) -> (Outcome, Seqno) {
        if self.thrown_away(victim) {
            return (Outcome::Ok, -1);
        }
        let Some(trx) = self.trxs.get(victim) else {
            // The server knows the victim; it just has not written anything.
            return (Outcome::Ok, -1);
        };
        let mut body = trx.lock();
        let seqno = body.seqno;
        if body.must_abort {
            // A server does not ask twice: one that still works after that was marked in
            // place of another node's, of the same number, and its server knows nothing
            // of it.
            return match body.stage {
                Stage::Executing if body.gives_way_to_ddl => (Outcome::Ok, seqno),
                _ => (Outcome::NotAllowed, seqno),
            };
        }
        let refused = match body.stage {
            Stage::Executing | Stage::Waiting | Stage::Sent | Stage::Chunked => false,
            Stage::Certified => body.ends() && bf_seqno >= 0 && seqno < bf_seqno,
            Stage::Committing | Stage::Left => body.ends(),
            Stage::Failed | Stage::MustReplay | Stage::Replaying => true,
        };
        if refused {
            return (Outcome::NotAllowed, seqno);
        }
        body.must_abort = true;
        body.gives_way_to_ddl = bf_seqno < 0;
        if body.stage == Stage::Certified && body.ends() {
            // Its server may replay it without another word.
            self.will_be_replayed(&trx, &body);
        }
        // What is on its way comes first (`give_way`), and an end that passed stands.
        let over = match body.stage {
            Stage::Sent | Stage::Chunked => false,
            Stage::Certified => !body.ends(),
            _ => true,
        } && body.gives_way_to_ddl;
        drop(body);
        if over {
            self.end_stream(victim);
        }
        trx.waiter.interrupt();
        (Outcome::Ok, seqno)
    }

    /// The client's transaction `trx_id` will not go on: if fragments of it are out,
    /// and nobody has told the others, this does.
    ///
    /// A server that aborts one for a statement in total order isolation tells
    /// nobody: each is to find out by itself. But the statement may have met a
    /// table that the transaction has only read: then the others keep what it
    /// changed, with its locks, and apply past them whatever its node lets in there
    /// next. So the rollback goes out before the server frees the first lock.
    pub(super) fn end_stream(&self, trx_id: u64) {
        let id = (self.shared().uuid, trx_id);
        if lock(&self.streams).is_open(id) {
            // What cannot be sent now is found by `end_dropped_streams`.
            let _ = self.send_rollback(trx_id);
        }
    }

    /// Sends the rollbacks that could not be sent.
    pub(super) fn end_dropped_streams(&self) {
        if !self.serving() {
            return;
        }
        let own = self.shared().uuid;
        let is_known = |trx_id| self.trxs.get(trx_id).is_some();
        let dropped = lock(&self.streams).dropped(own, is_known);
        for trx_id in dropped {
            let _ = self.send_rollback(trx_id);
        }
    }

    /// Sends the rollback of a streaming transaction, without waiting.
    pub fn rollback(&self, trx_id: u64) -> Outcome {
        self.pass_fragment(trx_id);
        self.send_rollback(trx_id)
    }

    fn send_rollback(&self, trx_id: u64) -> Outcome {
        let Some(order) = self.order().filter(|_| self.serving()) else {
            return Outcome::ConnFail;
        };
        let header = Header {
            flags: Flags::ROLLBACK | Flags::PA_UNSAFE,
            source: self.shared().uuid,
            trx_id,
            conn_id: u64::MAX,
            last_seen: self.gates.released(),
            prev_fragment: -1,
            chunk: 0,
        };
        let bytes = dromon_writeset::encode(&header, &KeyCollector::new(), &[]);
        // Counted first: it may be delivered before `propose` returns.
        lock(&self.delivered).rollbacks_sent += 1;
        match order.propose(kind::WRITE_SET, 0, bytes) {
            Ok(_) => {
                lock(&self.streams).rollback_sent((header.source, trx_id));
                Outcome::Ok
            }
            Err(_) => {
                let mut delivered = lock(&self.delivered);
                delivered.rollbacks_sent = delivered.rollbacks_sent.saturating_sub(1);
                Outcome::ConnFail
            }
        }
    }

    /// Fails every own write set whose outcome cannot be known now. Those that the order has not
    /// sent yet are taken back: they have none. A large one that gave way waits for what the order
    /// says, as long as this node may hear it.
    pub(super) fn abandon_pending(&self) {
        self.abandon_sent_by(self.order().as_ref(), true);
    }

    /// The node is back, and these large ones are open.
    pub(super) fn abandon_lost(&self, open: &[Seqno]) {
        let lost = lock(&self.chunks).abandon_lost(open);
        Self::abandon_chunked(lost);
    }

    fn abandon_chunked(all: Vec<Arc<Trx>>) {
        for trx in all {
            // Those were sent.
            trx.lock().abandoned = Some(Abandoned::Sent);
            trx.waiter.wake();
        }
    }

    /// [`abandon_pending`](Self::abandon_pending), also when it is not this node's order any more.
    /// Not `kept`: this node hears no more of the order.
    pub(super) fn abandon_sent_by(&self, order: Option<&Arc<dyn Order>>, kept: bool) {
        self.abandon_if(order, kept, || true);
    }

    /// The same if `is_due` says so. Whoever sees what that has changed proposes behind
    /// all that is given up.
    pub(super) fn abandon_if(
        &self,
        order: Option<&Arc<dyn Order>>,
        kept: bool,
        is_due: impl FnOnce() -> bool,
    ) -> bool {
        let sent = {
            let mut given_up = self
                .given_up
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if !is_due() {
                return false;
            }
            *given_up += 1;
            lock(&self.pending).take_all()
        };
        for (tag, Sent { trx, .. }) in sent {
            let taken_back = order.is_some_and(|o| o.withdraw(kind::WRITE_SET, tag));
            trx.lock().abandoned = Some(match taken_back {
                true => Abandoned::TakenBack,
                false => Abandoned::Sent,
            });
            trx.waiter.wake();
        }
        self.wake_bulk();
        let gone = lock(&self.chunks).abandon(kept);
        Self::abandon_chunked(gone);
        true
    }
}
