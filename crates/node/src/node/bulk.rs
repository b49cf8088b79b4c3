//! Fragments that a client asked for wait for the others here, before they are
//! ordered ([`crate::bulk`]): in `certify`, where nothing is held that the order,
//! or who comes later, needs. Who needs a row of the transaction interrupts it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_gates::{Seqno, Waiter};
use dromon_writeset::{Header, Uuid};

use super::{Node, lock};
use crate::bulk::{Bulk, Client, Limits, Next, SMALL};
use crate::streams::Stream;
use crate::trx::Trx;

/// Who waits looks again at least so often: a report may be lost, or whoever did
/// not send one is not waited for any more.
const LOOK: Duration = Duration::from_millis(200);
/// A member reports what it has applied after so many fragments,
const REPORT_PARTS: u32 = 2;
/// or so many bytes, or when nothing else waits in its queue.
const REPORT_BYTES: u64 = 24 << 10;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Streaming {
    bulk: Bulk,
    waiting: Vec<Arc<Waiter>>,
    /// Fragments applied here since the last report, and their bytes.
    unreported: (u32, u64),
}

impl Node {
    /// Waits until the fragment that `trx` is about to send may be ordered; at
    /// once if it is none. False: the wait was interrupted, or the node serves
    /// no clients any more.
    pub(super) fn wait_bulk(&self, trx: &Trx) -> bool {
        let (client, len) = {
            let body = trx.lock();
            // The end is small, and frees what the transaction holds.
            if !body.flags.is_fragment() || body.flags.ends() {
                return true;
            }
            (body.conn, body.data.len())
        };
        let client = (self.shared().uuid, client);
        let ready = self.opened_at.elapsed();
        let mut waited = false;
        let passed = loop {
            if trx.waiter.interrupted() || !self.serving() {
                break false;
            }
            self.look_applied();
            let limits = self.bulk_limits();
            let now = self.opened_at.elapsed();
            let until = {
                let mut streaming = lock(&self.streaming);
                match streaming.bulk.next(client, len, ready, now, &limits) {
                    Next::Go => {
                        streaming.bulk.goes(client, len, ready, now, &limits);
                        break true;
                    }
                    next => {
                        waited = true;
                        streaming.waiting.push(trx.waiter.clone());
                        match next {
                            Next::At(time) => time.min(now + LOOK),
                            _ => now + LOOK,
                        }
                    }
                }
            };
            // Whoever ends the service wakes those that were there by then.
            if self.serving() {
                trx.waiter.wait(true, Some(self.opened_at + until));
            }
            let mut streaming = lock(&self.streaming);
            streaming.waiting.retain(|w| !Arc::ptr_eq(w, &trx.waiter));
        };
        if waited {
            let held = self.opened_at.elapsed() - ready;
            let nanos = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
            self.counters.bulk_held_ns.fetch_add(nanos, Relaxed);
            lock(&self.streams).held((client.0, trx.id), held);
        }
        passed
    }

    fn bulk_limits(&self) -> Limits {
        Limits {
            queue: self.flow_limits().upper,
            share: self.settings().bulk_bound,
            chunked: self.count_chunked(),
        }
    }

    /// How many clients stream large amounts now.
    pub(super) fn count_streaming(&self) -> usize {
        let now = self.opened_at.elapsed();
        lock(&self.streaming).bulk.active(now)
    }

    /// How many clients of this node wait with a fragment.
    pub(super) fn bulk_waiting(&self) -> usize {
        lock(&self.streaming).waiting.len()
    }

    /// A write set took its place. On the delivery thread.
    pub(super) fn bulk_delivered(&self, seqno: Seqno, header: &Header, bytes: u64, passed: bool) {
        let flags = header.flags;
        let mut streaming = lock(&self.streaming);
        if !flags.is_fragment() {
            if !flags.is_rollback() && bytes < SMALL {
                streaming.bulk.small();
            }
            return;
        }
        if passed && !flags.ends() {
            let now = self.opened_at.elapsed();
            let client = (header.source, header.conn_id);
            streaming.bulk.ordered(client, seqno, bytes, now);
        }
    }

    /// A streaming transaction is over.
    pub(super) fn bulk_ended(&self, stream: &Stream) {
        lock(&self.streaming)
            .bulk
            .ended((stream.source, stream.conn));
    }

    /// A fragment of another node is applied here: its origin may wait for that.
    pub(super) fn fragment_applied(&self, client: Client, bytes: u64) {
        let none_waits = self.queue.is_empty();
        let due = {
            let mut streaming = lock(&self.streaming);
            if !streaming.bulk.is_large(client) {
                return;
            }
            let (parts, sum) = streaming.unreported;
            let (parts, sum) = (parts + 1, sum + bytes);
            let due = parts >= REPORT_PARTS || sum >= REPORT_BYTES || none_waits;
            streaming.unreported = if due { (0, 0) } else { (parts, sum) };
            due
        };
        if due {
            self.report_progress();
        }
    }

    /// Another member may have applied more, or is not waited for any more.
    pub(super) fn look_applied(&self) {
        if lock(&self.streaming).bulk.is_empty() {
            return;
        }
        let own: Uuid = self.shared().uuid;
        let upto = self.flow.lowest_released_but(&own);
        let now = self.opened_at.elapsed();
        if lock(&self.streaming).bulk.applied(upto, now) {
            self.wake_bulk();
        }
    }

    /// Those that wait look again.
    pub(super) fn wake_bulk(&self) {
        for waiter in lock(&self.streaming).waiting.drain(..) {
            waiter.wake();
        }
    }

    /// A new connection to the cluster begins.
    pub(super) fn forget_bulk(&self) {
        lock(&self.streaming).bulk.clear();
        self.wake_bulk();
    }
}
