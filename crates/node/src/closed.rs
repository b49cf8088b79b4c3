//! Tables that a large transaction keeps to itself while it is applied in chunks.
//!
//! Whoever changes something there fails certification until it is over
//! (`certify/src/open.rs`), so those who come meanwhile wait here, before they are
//! ordered. It is only a kindness: who slips through fails, as the rule says.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dromon_gates::Waiter;
use dromon_writeset::{KeyHash, Seqno};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct ClosedTables {
    /// Whether there are any: most commits see only this.
    any: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the large transaction that closed them.
    closed: BTreeMap<Seqno, HashSet<KeyHash>>,
    waiting: Vec<Arc<Waiter>>,
}

impl Inner {
    fn wake(&mut self) {
        for waiter in self.waiting.drain(..) {
            waiter.wake();
        }
    }
}

impl ClosedTables {
    /// `id` closes these tables, if there are any.
    pub fn close(&self, id: Seqno, tables: &[KeyHash]) {
        if tables.is_empty() {
            return;
        }
        let mut inner = self.lock();
        inner.closed.insert(id, tables.iter().copied().collect());
        self.any.store(true, Ordering::Release);
    }

    /// `id` is over.
    pub fn open(&self, id: Seqno) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut inner = self.lock();
        if inner.closed.remove(&id).is_some() {
            self.any.store(!inner.closed.is_empty(), Ordering::Release);
            inner.wake();
        }
    }

    /// Nobody waits any more: this node has lost touch, or left.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.closed.clear();
        self.any.store(false, Ordering::Release);
        inner.wake();
    }

    /// Whether some table is closed.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Waits until none of `tables` is closed, or `deadline` has passed. Answers
    /// false if the waiter was interrupted first.
    pub fn wait(&self, waiter: &Arc<Waiter>, tables: &[KeyHash], deadline: Instant) -> bool {
        let mut inner = self.lock();
        loop {
            let closed = |t| inner.closed.values().any(|set| set.contains(t));
            if !tables.iter().any(closed) {
                return true;
            }
            if waiter.interrupted() {
                return false;
            }
            inner.waiting.push(waiter.clone());
            drop(inner);
            let in_time = waiter.wait(true, Some(deadline));
            inner = self.lock();
            inner.waiting.retain(|w| !Arc::ptr_eq(w, waiter));
            if !in_time {
                return true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every step leaves it whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    fn table(n: u128) -> KeyHash {
        KeyHash(n)
    }

    /// Waits on a thread of its own; the answer comes out of the receiver.
    fn waits(
        tables: &Arc<ClosedTables>,
        waiter: &Arc<Waiter>,
        on: Vec<KeyHash>,
        limit: Duration,
    ) -> mpsc::Receiver<bool> {
        let (tx, rx) = mpsc::channel();
        let (tables, waiter) = (tables.clone(), waiter.clone());
        std::thread::spawn(move || {
            let _ = tx.send(tables.wait(&waiter, &on, Instant::now() + limit));
        });
        rx
    }

    fn nothing_yet(rx: &mpsc::Receiver<bool>) {
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn who_needs_a_closed_table_waits_until_it_is_open() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        assert!(tables.wait(&waiter, &[table(1)], Instant::now()));
        tables.close(5, &[]);
        assert!(!tables.any());
        tables.close(7, &[table(1), table(2)]);
        tables.close(9, &[table(3)]);
        assert!(tables.any());
        assert!(tables.wait(&waiter, &[table(4)], Instant::now() + LONG));
        let rx = waits(&tables, &waiter, vec![table(4), table(2), table(3)], LONG);
        nothing_yet(&rx);
        tables.open(8);
        tables.open(7);
        nothing_yet(&rx);
        tables.open(9);
        assert_eq!(rx.recv_timeout(LONG), Ok(true));
        assert!(!tables.any());
        assert!(tables.lock().waiting.is_empty());
    }

    #[test]
    fn an_interrupt_a_deadline_and_the_end_of_the_membership_end_it() {
        let tables = Arc::new(ClosedTables::default());
        tables.close(7, &[table(1)]);
        let waiter = Arc::new(Waiter::new());
        let rx = waits(&tables, &waiter, vec![table(1)], LONG);
        nothing_yet(&rx);
        waiter.interrupt();
        assert_eq!(rx.recv_timeout(LONG), Ok(false));
        let waiter = Arc::new(Waiter::new());
        let rx = waits(&tables, &waiter, vec![table(1)], Duration::from_millis(20));
        assert_eq!(rx.recv_timeout(LONG), Ok(true), "it tries its luck");
        let rx = waits(&tables, &waiter, vec![table(1)], LONG);
        nothing_yet(&rx);
        tables.clear();
        assert_eq!(rx.recv_timeout(LONG), Ok(true));
        assert!(tables.lock().waiting.is_empty());
    }
}
