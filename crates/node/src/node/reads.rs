//! Reads that see what was acknowledged before them, anywhere.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dromon_order::{Order, OrderError};
use dromon_writeset::Uuid;

use super::{Node, Phase, lock};
use crate::database::Outcome;
use crate::messages::Position;

/// How long a current read waits for a node that joins the others again.
const REJOIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long one question for the read index may take before it is asked again.
const READ_STEP: Duration = Duration::from_secs(1);
/// How often who waits for the answer looks whether this node is still primary.
const READ_LOOK: Duration = Duration::from_millis(50);

impl Node {
    /// A causal read: everything acknowledged anywhere before this call is
    /// visible here when it returns Ok.
    pub fn sync_wait(&self, timeout: Duration) -> (Outcome, Position) {
        let deadline = Instant::now() + timeout;
        self.wait_rejoined(deadline);
        let Some(order) = self.order().filter(|_| self.serving()) else {
            return (Outcome::ConnFail, self.last_committed());
        };
        self.counters.causal_reads.fetch_add(1, Relaxed);
        if let Err(outcome) = self.wait_rollbacks(deadline) {
            return (outcome, self.last_committed());
        }
        let index = match self.read_index(&order, deadline) {
            Ok(index) => index,
            Err(outcome) => return (outcome, self.last_committed()),
        };
        let seqno = loop {
            // What the index covers may not have come when this node was cut off.
            if let Some(seqno) = self.seqno_at(index, deadline.min(Instant::now() + READ_LOOK)) {
                break seqno;
            }
            if !self.serving() {
                return (Outcome::ConnFail, self.last_committed());
            }
            if Instant::now() >= deadline {
                return (Outcome::TrxFail, self.last_committed());
            }
        };
        let waited = self
            .gates
            .wait_released(seqno, &Node::waiter(), false, Some(deadline));
        let outcome = if waited.is_ok() {
            Outcome::Ok
        } else {
            Outcome::TrxFail
        };
        (outcome, self.last_committed())
    }

    /// Waits until the rollbacks this node has sent so far are delivered: its
    /// own clients must not read what they have rolled back.
    fn wait_rollbacks(&self, deadline: Instant) -> Result<(), Outcome> {
        let sent = lock(&self.delivered).rollbacks_sent;
        loop {
            let delivered = lock(&self.delivered);
            // Counted anew when the node joins again: what was sent before does not come.
            if delivered.rollbacks_seen >= sent.min(delivered.rollbacks_sent) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Outcome::TrxFail);
            }
            drop(self.wait_delivery(delivered, left.min(READ_LOOK)));
            if !self.serving() {
                return Err(Outcome::ConnFail);
            }
        }
    }

    /// The others may count a node already that is joining them again.
    fn wait_rejoined(&self, deadline: Instant) {
        let deadline = deadline.min(Instant::now() + REJOIN_PATIENCE);
        let mut shared = self.shared();
        while shared.phase == Phase::Rejoining && Instant::now() < deadline {
            let look = deadline.min(Instant::now() + READ_LOOK);
            shared = self.wait_shared(shared, look);
        }
    }

    /// An index that covers everything acknowledged before. A node that turns
    /// non-primary says so at once.
    fn read_index(&self, order: &Arc<dyn Order>, deadline: Instant) -> Result<u64, Outcome> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let step = left.min(READ_STEP);
            let (tx, rx) = mpsc::sync_channel(1);
            // The order answers in time; this is for one that hangs.
            let until = Instant::now() + 2 * READ_STEP + step;
            order.read_index_then(
                step,
                Box::new(move |answer| {
                    // Who asked may have gone.
                    let _ = tx.send(answer);
                }),
            );
            let answer = loop {
                match rx.recv_timeout(READ_LOOK) {
                    Ok(answer) => break answer,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Outcome::ConnFail),
                    Err(_) if !self.serving() => return Err(Outcome::ConnFail),
                    Err(_) if Instant::now() >= until => break Err(OrderError::NoMajority(step)),
                    Err(_) => {}
                }
            };
            match answer {
                Ok(index) => return Ok(index),
                Err(OrderError::NoMajority(_) | OrderError::Timeout { .. }) => {
                    if !self.serving() {
                        return Err(Outcome::ConnFail);
                    }
                    if left <= READ_STEP {
                        return Err(Outcome::TrxFail);
                    }
                }
                // The engine may be on its way to go on alone.
                Err(OrderError::Failed(_) | OrderError::Unreachable { .. })
                    if self.serving() && left > READ_LOOK =>
                {
                    std::thread::sleep(READ_LOOK);
                }
                Err(_) => return Err(Outcome::ConnFail),
            }
        }
    }

    /// The cluster's history. A guard of it lives as long as the statement in which it is taken, which may
    /// take `shared`; another thread has `shared` and asks for this.
    pub(super) fn history(&self) -> Uuid {
        *lock(&self.history)
    }

    /// Waits until everything up to `upto` is finished here. Works inside
    /// commit order.
    pub fn wait_for(&self, upto: Position, timeout: Option<Duration>) -> (Outcome, Position) {
        if upto.history != self.history() {
            return (Outcome::TrxMissing, self.last_committed());
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let waited = self
            .gates
            .wait_released(upto.seqno, &Node::waiter(), false, deadline);
        self.look_for_undone_inside(upto.seqno);
        let outcome = if waited.is_ok() {
            Outcome::Ok
        } else {
            Outcome::TrxFail
        };
        (outcome, self.last_committed())
    }
}
