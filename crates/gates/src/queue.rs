//! Ordered events on their way to applier threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::positions::Seqno;

/// When an event may be handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Behind everything before it.
    InOrder,
    /// It was begun early: its seqno lies behind those of events that are still to be
    /// pushed, and its thread waits for them.
    LiesAhead,
    /// The rollback of a streaming transaction: before what lies before it, once its
    /// `depends_on` is finished. Its thread then waits for its turn.
    Rollback,
}

/// One event in total order.
#[derive(Debug)]
pub struct QueueItem<T> {
    /// Its seqno; for an event without one, the last seqno before it.
    pub seqno: Seqno,
    /// Whether the seqno is its own.
    pub ordered: bool,
    /// Everything up to here must be finished before it starts.
    pub depends_on: Seqno,
    /// Nothing after it starts before it ends (views, donations, notices), but
    /// rollbacks of streaming transactions.
    pub exclusive: bool,
    /// When it may be handed out.
    pub turn: Turn,
    /// What it holds in memory, in bytes.
    pub bytes: usize,
    /// The event itself.
    pub value: T,
}

/// What an applier thread gets.
#[derive(Debug)]
pub enum Popped<T> {
    /// The next event in order.
    Item(QueueItem<T>),
    /// The deadline passed, or the thread was nudged with [`ApplyQueue::nudge`].
    Nothing,
    /// The queue was closed and is empty: no event will come any more.
    Closed,
}

/// Length of the queue since the last reset of the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Events now.
    pub len: usize,
    /// Bytes held by them now.
    pub bytes: usize,
    /// Longest it has been.
    pub max: usize,
    /// Shortest it has been, seen when events were taken.
    pub min: usize,
    /// Sum of the lengths seen, one sample per event pushed.
    pub sum: u64,
    /// Number of samples in `sum`.
    pub samples: u64,
}

/// A queue that hands events to threads in order of seqno.
///
/// Handing them out in order is what makes parallel apply free of deadlock:
/// the lowest unfinished seqno always has a thread. Pushing never blocks, as
/// delivery must never wait; its producer bounds it by slowing origins and by
/// dropping payloads that can be read again.
///
/// Rollbacks of streaming transactions may come first, as what lies before them may
/// need the rows that they free. For each of them that may still come a thread is
/// kept free ([`ApplyQueue::keep`]), but never the last one that could take what is
/// next in order.
#[derive(Debug)]
pub struct ApplyQueue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<QueueItem<T>>,
    /// The rollbacks among them, and what each depends on.
    rollbacks: BTreeMap<Seqno, Seqno>,
    bytes: usize,
    exclusive_running: bool,
    hold_after: Option<Seqno>,
    /// Ordered events up to here are in the database already.
    floor: Seqno,
    /// Threads that wait here.
    idle: usize,
    /// Threads that have an event whose turn was in order.
    in_order: usize,
    /// Threads that have a rollback, and wait for what lies before it.
    rolling: usize,
    /// So many threads are kept for rollbacks.
    kept: usize,
    /// Everything up to here is finished, as last heard.
    released: Seqno,
    closed: bool,
    nudges: u64,
    stats: QueueStats,
}

impl<T> Default for ApplyQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ApplyQueue<T> {
    /// An empty, open queue.
    pub fn new() -> Self {
        ApplyQueue {
            inner: Mutex::new(Inner {
                items: VecDeque::new(),
                rollbacks: BTreeMap::new(),
                bytes: 0,
                exclusive_running: false,
                hold_after: None,
                floor: Seqno::MIN,
                idle: 0,
                in_order: 0,
                rolling: 0,
                kept: 0,
                released: Seqno::MIN,
                closed: false,
                nudges: 0,
                stats: QueueStats::default(),
            }),
            wake: Condvar::new(),
        }
    }

    /// Appends the next event in order; an ordered one that
    /// [`ApplyQueue::drop_through`] has passed is dropped.
    pub fn push(&self, item: QueueItem<T>) {
        let mut inner = self.lock();
        if item.ordered && item.seqno <= inner.floor {
            return;
        }
        inner.bytes += item.bytes;
        if item.turn == Turn::Rollback {
            inner.rollbacks.insert(item.seqno, item.depends_on);
        }
        inner.items.push_back(item);
        let len = inner.items.len();
        let stats = &mut inner.stats;
        stats.max = stats.max.max(len);
        stats.sum += len as u64 - 1;
        stats.samples += 1;
        drop(inner);
        self.wake.notify_one();
    }

    /// Puts an event before all that wait: it must come first whatever its seqno.
    pub fn push_front(&self, item: QueueItem<T>) {
        let mut inner = self.lock();
        inner.bytes += item.bytes;
        inner.items.push_front(item);
        drop(inner);
        self.wake.notify_one();
    }

    /// Takes the next event, waiting for one until `deadline`. Whoever takes
    /// one must call [`ApplyQueue::done`].
    pub fn pop(&self, deadline: Option<Instant>) -> Popped<T> {
        let mut inner = self.lock();
        inner.idle += 1;
        let popped;
        (inner, popped) = self.pop_idle(inner, deadline);
        inner.idle -= 1;
        popped
    }

    fn pop_idle<'a>(
        &self,
        mut inner: MutexGuard<'a, Inner<T>>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, Inner<T>>, Popped<T>) {
        let nudges = inner.nudges;
        loop {
            if let Some(item) = inner.take() {
                // Another thread may go on with the next one.
                if !inner.items.is_empty() {
                    self.wake.notify_one();
                }
                return (inner, Popped::Item(item));
            }
            if inner.closed && inner.items.is_empty() && !inner.exclusive_running {
                return (inner, Popped::Closed);
            }
            if inner.nudges != nudges {
                return (inner, Popped::Nothing);
            }
            inner = match deadline {
                None => self
                    .wake
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let now = Instant::now();
                    if now >= deadline {
                        return (inner, Popped::Nothing);
                    }
                    let waited = self.wake.wait_timeout(inner, deadline - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// An event that was taken has ended.
    pub fn done(&self, turn: Turn, exclusive: bool) {
        let mut inner = self.lock();
        // One of before `reopen` may end late.
        match turn {
            Turn::InOrder => inner.in_order = inner.in_order.saturating_sub(1),
            Turn::Rollback => inner.rolling = inner.rolling.saturating_sub(1),
            Turn::LiesAhead => {}
        }
        let next_waits = inner.in_order == 0 && !inner.items.is_empty();
        if exclusive {
            inner.exclusive_running = false;
            drop(inner);
            self.wake.notify_all();
        } else if next_waits {
            // Its thread may not come back.
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// Up to `threads` of the threads are kept for rollbacks of streaming transactions
    /// from now on; everything up to `released` is finished.
    pub fn keep(&self, threads: usize, released: Seqno) {
        let mut inner = self.lock();
        let more_may_come = threads < inner.kept || !inner.rollbacks.is_empty();
        inner.kept = threads;
        inner.released = released.max(inner.released);
        drop(inner);
        if more_may_come {
            self.wake.notify_all();
        }
    }

    /// Threads that have a rollback: they wait for what lies before it.
    pub fn rollbacks_out(&self) -> usize {
        self.lock().rolling
    }

    /// Holds back everything with a seqno above `seqno`.
    pub fn hold_after(&self, seqno: Seqno) {
        self.lock().hold_after = Some(seqno);
    }

    /// Ends the hold.
    pub fn resume(&self) {
        self.lock().hold_after = None;
        self.wake.notify_all();
    }

    /// Drops the ordered events up to `seqno`, now and later: the database has
    /// them already. Events without a seqno of their own stay.
    pub fn drop_through(&self, seqno: Seqno) -> usize {
        let mut inner = self.lock();
        inner.floor = seqno;
        let before = inner.items.len();
        inner.items.retain(|i| !i.ordered || i.seqno > seqno);
        inner.rollbacks.retain(|s, _| *s > seqno);
        inner.bytes = inner.items.iter().map(|i| i.bytes).sum();
        before - inner.items.len()
    }

    /// Drops everything that waits. Answers it, oldest first.
    pub fn clear(&self) -> Vec<QueueItem<T>> {
        let mut inner = self.lock();
        inner.bytes = 0;
        inner.rollbacks.clear();
        let items = inner.items.drain(..).collect();
        drop(inner);
        self.wake.notify_all();
        items
    }

    /// No event will be pushed any more; threads end when it is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Opens a closed queue again, empty and without holds.
    pub fn reopen(&self) {
        let mut inner = self.lock();
        inner.items.clear();
        inner.rollbacks.clear();
        inner.bytes = 0;
        inner.exclusive_running = false;
        inner.hold_after = None;
        inner.floor = Seqno::MIN;
        inner.in_order = 0;
        inner.rolling = 0;
        inner.kept = 0;
        inner.released = Seqno::MIN;
        inner.closed = false;
    }

    /// Makes the waiting threads return [`Popped::Nothing`].
    pub fn nudge(&self) {
        self.lock().nudges += 1;
        self.wake.notify_all();
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held by the events that wait.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Length statistics.
    pub fn stats(&self) -> QueueStats {
        let inner = self.lock();
        QueueStats {
            len: inner.items.len(),
            bytes: inner.bytes,
            ..inner.stats
        }
    }

    /// Zeroes averages and extremes.
    pub fn reset_stats(&self) {
        self.lock().stats = QueueStats::default();
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // No step leaves the queue half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inner<T> {
    fn take(&mut self) -> Option<QueueItem<T>> {
        let item = self.items.remove(self.next()?)?;
        self.rollbacks.remove(&item.seqno);
        self.bytes -= item.bytes;
        self.exclusive_running |= item.exclusive;
        match item.turn {
            Turn::InOrder => self.in_order += 1,
            Turn::Rollback => self.rolling += 1,
            Turn::LiesAhead => {}
        }
        Some(item)
    }

    /// Which event a thread that waits may take; see `docs/gates.md`.
    fn next(&self) -> Option<usize> {
        let held = |seqno| self.hold_after.is_some_and(|at| seqno > at);
        // Whoever parks leaves one for what is next in order.
        let one_left = self.in_order > 0 || self.idle > 1;
        let mut ready = self.rollbacks.iter();
        let ready = ready.find(|(_, depends_on)| **depends_on <= self.released);
        if let Some((seqno, _)) = ready.filter(|(s, _)| one_left && !held(**s)) {
            let is_it = |i: &QueueItem<T>| i.seqno == *seqno && i.turn == Turn::Rollback;
            return self.items.iter().position(is_it);
        }
        if self.exclusive_running {
            return None;
        }
        let first = self.items.front()?;
        if held(first.seqno) {
            return None;
        }
        if first.turn == Turn::LiesAhead && !one_left {
            // Its thread would be missing for what comes before its place.
            let next = self.items.get(1);
            return Some(usize::from(next.is_some_and(|i| i.seqno < first.seqno)));
        }
        let may = first.turn != Turn::InOrder || self.in_order == 0 || self.idle > self.kept;
        may.then_some(0)
    }
}

#[cfg(test)]
mod tests;
