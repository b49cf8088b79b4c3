//! Streaming transactions of other nodes that hold rows here: threads are kept for
//! their rollbacks, and who stands still because of one asks for its doom
//! ([`crate::held`], which decides).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use dromon_gates::{QueueItem, Seqno, Turn, WaitError, Waiter};
use dromon_writeset::{Flags, KeyHash, Uuid, WriteSet};

use super::{Item, Node, Phase, RemoteWriteSet, lock};
use crate::cluster::{ClusterState, ClusterView, MemberState, OpenStream};
use crate::database::{Applier, Meta};
use crate::held::StreamId;
use crate::messages::{Control, Position, encode, kind};
use crate::trx::Trx;

/// To the server this is a write set that failed: it moves the position, and no more.
pub(super) const NOTHING: Flags =
    Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits() | Flags::ROLLBACK.bits());
/// The rollback of a streaming transaction.
const ROLLBACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());

impl Node {
    /// Delivery begins with `state`.
    pub(super) fn held_from(&self, state: &ClusterState) {
        if self.setup.witness {
            return;
        }
        let own = self.shared().uuid;
        let others = state.open_streams().filter(|s| s.source != own);
        lock(&self.held).start(others);
    }

    /// A write set took its place, and none of this node's clients waits for it: it may
    /// be of a stream. On the delivery thread.
    pub(super) fn held_delivered(
        &self,
        seqno: Seqno,
        write_set: &WriteSet,
        passed: bool,
        rolls_back: bool,
    ) {
        let header = write_set.header();
        let flags = header.flags;
        let of_stream = flags.is_fragment() || flags.is_rollback();
        if self.setup.witness || !of_stream {
            return;
        }
        let id = (header.source, header.trx_id);
        let mut held = lock(&self.held);
        if rolls_back {
            held.goes(id, seqno);
        } else if passed && flags.is_fragment() {
            let tables = write_set.keys().tables();
            held.fragment(id, seqno, flags.starts(), &tables);
        }
        if flags.is_rollback() || (passed && flags.ends()) {
            held.over(id, seqno);
        }
    }

    /// Whether appliers have the fragments of a stream here, and not a client: also of
    /// one of this node's own that it missed while it had lost touch.
    pub(super) fn is_applied_here(&self, id: StreamId) -> bool {
        id.0 != self.shared().uuid || lock(&self.held).knows(id)
    }

    /// The view at `seqno` took its place.
    pub(super) fn held_left(&self, seqno: Seqno, view: &ClusterView) {
        let is_member = |uuid: &Uuid| view.members.iter().any(|m| m.uuid == *uuid);
        lock(&self.held).keep_members(seqno, is_member);
    }

    /// A stream was doomed. On the delivery thread.
    pub(super) fn doom_delivered(&self, seqno: Seqno, stream: &OpenStream, waits: Seqno) {
        self.takes_place(seqno);
        let id = (stream.source, stream.trx_id);
        self.counters.streams_doomed.fetch_add(1, Relaxed);
        let known = lock(&self.streams).doomed(id);
        let whose = match known {
            Some(s) => self.whose_transaction(s.source, s.trx, s.conn),
            None => {
                let name = self.names(&[stream.source]).join("");
                format!("transaction {} on {name}", stream.trx_id)
            }
        };
        self.note(&format!(
            "{whose}, which has come in fragments since seqno {}: doomed at seqno {seqno}, as the write set at {waits} \
             waits for a lock of it on some node; it is rolled back on all nodes, and its client gets a deadlock error \
             (1213) and can run it again",
            stream.first
        ));
        if self.setup.witness {
            return;
        }
        let applied = self.is_applied_here(id);
        if applied {
            lock(&self.held).goes(id, seqno);
        } else {
            self.give_up_doomed(stream.trx_id);
        }
        let (flags, turn, depends_on) = match applied {
            true => (ROLLBACK, Turn::Rollback, stream.first),
            // Its client has it: rolled back, it says so itself.
            false => (NOTHING, Turn::InOrder, seqno - 1),
        };
        self.enqueue(QueueItem {
            seqno,
            ordered: true,
            depends_on,
            exclusive: false,
            turn,
            bytes: 0,
            value: Item::WriteSet(RemoteWriteSet {
                flags,
                source: stream.source,
                trx_id: stream.trx_id,
                conn_id: u64::MAX,
                depends_on,
                payload: Some(Bytes::new()),
                index: 0,
                turn,
                tables: Vec::new(),
            }),
        });
        self.queue_grew();
    }

    /// The transaction of a client here was doomed: it learns of it at its next call, or
    /// in the one that it is in.
    fn give_up_doomed(&self, trx_id: u64) {
        let Some(trx) = self.trxs.get(trx_id) else {
            return; // its rollback is on its way
        };
        trx.lock().doomed = true;
        trx.waiter.interrupt();
    }

    /// Begins with the rollback at `seqno`, once the fragment of it that is being
    /// applied here is finished.
    pub(super) fn rollback_begins(
        &self,
        seqno: Seqno,
        id: StreamId,
        first: Seqno,
        waiter: &Arc<Waiter>,
    ) -> Result<(), WaitError> {
        let applied = lock(&self.held).rollback_begins(id);
        let depends_on = applied.unwrap_or(first).max(first);
        self.gates.begin_ahead(seqno, depends_on, waiter)
    }

    /// Keeps as many threads for rollbacks as there may come. Before an applier takes
    /// its next event.
    pub(super) fn keep_threads(&self) {
        let mut held = lock(&self.held);
        let was_empty = held.is_empty();
        let released = self.gates.released();
        let kept = held.finished(released);
        if !was_empty {
            self.queue.keep(kept, released);
        }
    }

    /// An applier is about to hand `ws` to the server.
    pub(super) fn work_begins(&self, seqno: Seqno, ws: &mut RemoteWriteSet, bytes: u64) {
        // An end has all the locks that it needs.
        let waits = !ws.flags.is_rollback() && (ws.flags.starts() || !ws.flags.ends());
        if waits {
            self.takes_locks(seqno, std::mem::take(&mut ws.tables), bytes);
        }
    }

    /// Something takes its locks at `seqno`, and may wait for them. It names `tables`; none:
    /// not known.
    pub(super) fn takes_locks(&self, seqno: Seqno, tables: Vec<KeyHash>, bytes: u64) {
        let mut held = lock(&self.held);
        if !held.is_empty() {
            held.works(seqno, tables, bytes);
        }
    }

    /// It needs no lock any more.
    pub(super) fn work_ends(&self, seqno: Seqno) {
        let mut held = lock(&self.held);
        if !held.is_empty() {
            held.worked(seqno);
        }
    }

    /// Asks for dooms, if this node stands still because of streams.
    pub(super) fn look_for_standstill(&self) {
        let (phase, state) = {
            let shared = self.shared();
            (shared.phase, shared.own_state)
        };
        let takes_part = matches!(state, MemberState::Joined | MemberState::Synced);
        let order = self.order().filter(|o| o.status().primary);
        let (Phase::Joined, true, Some(order)) = (phase, takes_part, order) else {
            return;
        };
        let now = self.opened_at.elapsed();
        let stuck = {
            let mut held = lock(&self.held);
            let released = self.gates.released();
            held.stuck(released, now)
        };
        let Some((waits, doomed)) = stuck else { return };
        for (source, trx_id) in doomed {
            let doom = Control::Doom {
                source,
                trx_id,
                waits,
            };
            if order.propose(kind::CONTROL, 0, encode(&doom)).is_err() {
                lock(&self.held).not_asked((source, trx_id));
            }
        }
    }

    /// The database stands at `seqno`, which is delivered, and no event is applied yet. Others rolled back
    /// what it may still have: what was doomed below that, if this was its node or the
    /// database is a copy of that one's. Whoever comes next may need the rows. False: the
    /// database refused.
    pub(super) fn settle_streams(&self, applier: &mut dyn Applier, seqno: Seqno) -> bool {
        let left = lock(&self.held).unsettled(seqno);
        for (source, trx_id) in left {
            let name = self.names(&[source]).join("");
            self.note(&format!(
                "streaming transaction {trx_id} of {name} was doomed before seqno {seqno}: this database may have it, \
                 so it is rolled back first"
            ));
            let meta = Meta {
                position: Position {
                    history: *lock(&self.history),
                    seqno,
                },
                source,
                trx_id,
                conn_id: u64::MAX,
                depends_on: seqno - 1,
            };
            let trx = Trx::remote(trx_id, seqno);
            if !applier.apply(&trx, ROLLBACK, &[], &meta).ok {
                return false;
            }
        }
        true
    }
}
