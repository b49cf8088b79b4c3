//! What delivery hands to the appliers: write sets, and what they have to wait for; and what
//! of them goes to files while there are too many.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use dromon_certify::Verdict;
use dromon_gates::{QueueItem, Seqno};
use dromon_writeset::{Flags, Payload, WriteSet};

use super::leave::told_to_leave;
use super::{Item, Locks, Node, RemoteWriteSet, lock};
use crate::overflow::{Queued, Spills};
use crate::retention;
use crate::spool::SPOOL_ABOVE;

/// Above this, queued payloads are dropped and read from the log again.
const QUEUE_BYTES_MAX: usize = 128 << 20;
/// Nor are more payloads than this kept in files of their own,
const FILES_KEPT: usize = 16;
/// but for those that are longer: read again they would take memory. In bytes.
const REREAD_MAX: u64 = 16 << 20;

impl Node {
    /// A write set that no client here waits for took its place: an applier gets it, not before
    /// `unseen`, which certification does not see. `from`, `index`: its first and last place in the log. On the delivery
    /// thread.
    pub(super) fn queue_write_set(
        &self,
        seqno: Seqno,
        write_set: &WriteSet,
        verdict: &Verdict,
        unseen: Seqno,
        (from, index): (u64, u64),
    ) {
        if self.setup.witness {
            return;
        }
        let header = write_set.header();
        let (flags, depends_on) = match verdict {
            // Never ahead of what lies before it. That may have to abort the
            // streaming transaction on its way, whose rollback removes the stored
            // fragments and waits for one whose turn to commit has not come.
            Verdict::Passed { .. } if header.flags.is_fragment() => (header.flags, seqno - 1),
            // Nor ahead of a statement: the server maps tables that no key names (of a trigger that did
            // nothing), and a statement on one of these would wait for it, which waits for its turn.
            Verdict::Passed { depends_on } => {
                let behind = unseen
                    .max(*depends_on)
                    .max(self.newest_toi.load(Relaxed))
                    .min(seqno - 1);
                (header.flags, self.behind_streams(seqno, behind))
            }
            // Applied as a note that nothing is to be done: it moves the
            // position in the database.
            Verdict::Failed { .. } => (header.flags | Flags::ROLLBACK, seqno - 1),
        };
        let len = write_set.payload_len();
        self.counters.received.fetch_add(1, Relaxed);
        self.counters.received_bytes.fetch_add(len, Relaxed);
        // What lies in a file takes no memory, nor does what was left in the log.
        let in_memory = if len > SPOOL_ABOVE as u64 {
            0
        } else {
            len as usize
        };
        let keep = match in_memory {
            0 => len > REREAD_MAX || self.spooler.mapped() <= FILES_KEPT,
            _ => self.queue.bytes() < QUEUE_BYTES_MAX,
        };
        // Where the log begins amid its pieces, the first ones were never in it.
        let keep = keep || retention::is_before(&lock(&self.checkpoints), from);
        let (payload, left) = match write_set.payload() {
            Payload::Elsewhere(kept) if verdict.passed() => (None, Some(kept.clone())),
            Payload::Here(payload) if verdict.passed() || in_memory > 0 => {
                (keep.then(|| payload.clone()), None)
            }
            // Nothing of it is read.
            _ => (Some(Bytes::new()), None),
        };
        // The log's own checksum stands for each piece, and not for how they were put together.
        let is_left = left.is_some();
        let sum = ((in_memory == 0 && keep || is_left) && verdict.passed())
            .then(|| write_set.payload_sum());
        let locks = match verdict.passed() {
            true => self.locks_of(write_set),
            false => Locks::default(),
        };
        let bytes = if keep { in_memory } else { 0 };
        // A restart from a checkpoint amid its pieces finds the first ones there; who reads the log does not.
        let amid = || retention::amid(&lock(&self.checkpoints), from, index);
        let hold = (!is_left && amid()).then(|| self.queued_in_log.hold(from));
        self.enqueue(QueueItem {
            seqno,
            ordered: true,
            depends_on,
            exclusive: false,
            bytes,
            value: Item::WriteSet(RemoteWriteSet {
                flags,
                source: header.source,
                trx_id: header.trx_id,
                conn_id: header.conn_id,
                depends_on,
                payload,
                left,
                sum,
                hold,
                index,
                locks,
            }),
        });
        self.queue_grew();
    }
}

impl Node {
    /// What waited in files for an applier, behind `seqno`, cannot be read again. While the node leaves nobody needs it.
    pub(super) fn lost_queued(&self, seqno: Seqno, why: &str) {
        if !told_to_leave(self.phase()) {
            self.inconsistent(&format!(
                "write sets that wait here for an applier cannot be read again from their file in {}: {why}",
                self.settings().base_dir.display()
            ));
        }
        self.pass_lost(seqno);
    }

    /// Nobody passes the places of what was lost there behind `seqno`, and nothing that lies behind them is done here.
    /// What comes before them is: it may be about to commit.
    pub(super) fn pass_lost(&self, seqno: Seqno) {
        // None of them has left.
        self.gates.end_before(seqno.max(self.gates.left()) + 1);
    }
}

impl Spills for Item {
    fn spilled(item: &QueueItem<Item>) -> Option<Queued> {
        let Item::WriteSet(ws) = &item.value else {
            return None;
        };
        // An empty one stands for what need not be read.
        let empty = ws.payload.as_ref().is_some_and(Bytes::is_empty);
        let from_log = ws.left.is_none() && ws.sum.is_none() && ws.hold.is_none() && !empty;
        let keeps = !ws.locks.is_special() && ws.depends_on == item.depends_on;
        (from_log && keeps).then_some(Queued {
            seqno: item.seqno,
            depends_on: ws.depends_on,
            flags: ws.flags,
            source: ws.source,
            trx_id: ws.trx_id,
            conn_id: ws.conn_id,
            index: ws.index,
        })
    }

    fn again(queued: Queued) -> QueueItem<Item> {
        QueueItem {
            seqno: queued.seqno,
            ordered: true,
            depends_on: queued.depends_on,
            exclusive: false,
            bytes: 0,
            value: Item::WriteSet(RemoteWriteSet {
                flags: queued.flags,
                source: queued.source,
                trx_id: queued.trx_id,
                conn_id: queued.conn_id,
                depends_on: queued.depends_on,
                payload: None,
                left: None,
                sum: None,
                hold: None,
                index: queued.index,
                // Which tables it names is not known any more: it may meet any.
                locks: Locks::default(),
            }),
        }
    }

    fn lost(why: String, first: Seqno) -> QueueItem<Item> {
        QueueItem {
            seqno: first - 1,
            ordered: false,
            depends_on: -1,
            exclusive: true,
            bytes: 0,
            value: Item::Lost(why),
        }
    }
}
