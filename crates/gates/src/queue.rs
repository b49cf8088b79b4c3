//! Ordered events on their way to applier threads.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::line::{Drained, Front, Line, Overflow};
use crate::positions::Seqno;

/// One event in total order.
#[derive(Debug)]
pub struct QueueItem<T> {
    /// Its seqno; for an event without one, the last seqno before it.
    pub seqno: Seqno,
    /// Whether the seqno is its own.
    pub ordered: bool,
    /// Everything up to here must be finished before it starts.
    pub depends_on: Seqno,
    /// Nothing after it starts before it ends (views, donations, notices).
    pub exclusive: bool,
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
    /// The deadline passed.
    Nothing,
    /// The queue was closed and is empty: no event will come any more.
    Closed,
}

/// Length of the queue since the last reset of the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Events now.
    pub len: usize,
    /// Of these, how many lie elsewhere ([`Overflow`]).
    pub away: usize,
    /// Bytes held by them now.
    pub bytes: usize,
    /// Longest it has been.
    pub max: usize,
    /// Shortest it has been.
    pub min: usize,
    /// Sum of the lengths seen, one sample per event pushed.
    pub sum: u64,
    /// Number of samples in `sum`.
    pub samples: u64,
}

/// A queue that hands events to threads in order of seqno.
///
/// Handing them out in order is what makes parallel apply free of deadlock:
/// the lowest unfinished seqno always has a thread. Pushing waits for no thread that applies, as
/// delivery must never wait; its producer bounds it by slowing origins and by
/// dropping payloads that can be read again, and where nobody may be slowed (a copy is on its
/// way, a pause) most of it lies elsewhere ([`Overflow`]). Who has to do with what lies there waits
/// for its disk, and nobody else does.
#[derive(Debug)]
pub struct ApplyQueue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
    /// For who waits until nobody waits for a place, or until the overflow is back: a wake-up meant
    /// for a thread that takes events must not end here.
    back: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    items: Line<T>,
    /// What comes before all that waits.
    urgent: VecDeque<QueueItem<T>>,
    /// Threads that want an event, and those that have one.
    idle: usize,
    busy: usize,
    /// An idle thread was woken for what waits and has not looked yet. It wakes the next one
    /// if more is left: to wake one for each of a batch would be in vain where those who are
    /// awake already are as quick.
    waking: bool,
    /// A thread that wants an event waits for who has the overflow.
    stalled: bool,
    /// Of those who have one, those whose event waits for its place.
    aside: usize,
    spare: bool,
    exclusive_running: bool,
    hold_after: Option<Seqno>,
    /// Ordered events up to here are in the database already.
    floor: Seqno,
    closed: bool,
    stats: QueueStats,
}

impl<T> Default for ApplyQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ApplyQueue<T> {
    /// An empty, open queue, all of it in memory.
    pub fn new() -> Self {
        ApplyQueue::of(Line::new(usize::MAX, None))
    }

    /// One of which not many more than `here_max` events are in memory, and as many as `overflow`
    /// does not take.
    pub fn with_overflow(here_max: usize, overflow: Box<dyn Overflow<T>>) -> Self {
        ApplyQueue::of(Line::new(here_max, Some(overflow)))
    }

    fn of(items: Line<T>) -> Self {
        ApplyQueue {
            inner: Mutex::new(Inner {
                items,
                urgent: VecDeque::new(),
                idle: 0,
                busy: 0,
                waking: false,
                stalled: false,
                aside: 0,
                spare: false,
                exclusive_running: false,
                hold_after: None,
                floor: Seqno::MIN,
                closed: false,
                stats: QueueStats::default(),
            }),
            wake: Condvar::new(),
            back: Condvar::new(),
        }
    }

    /// Appends the next event in order; an ordered one that
    /// [`ApplyQueue::drop_through`] has passed is dropped, and so is all that comes behind
    /// [`ApplyQueue::close`]. False: the latter, so nobody has it.
    pub fn push(&self, item: QueueItem<T>) -> bool {
        let mut inner = self.lock();
        // What never goes there does not wait for it: a view that says that the majority is lost comes on the thread that
        // sends heartbeats.
        let may_go_there = item.ordered && !item.exclusive;
        while may_go_there && inner.items.is_lent() && inner.items.is_full() {
            self.back.wait(&mut inner);
        }
        if inner.closed || item.ordered && item.seqno <= inner.floor {
            return !inner.closed;
        }
        let write = inner.items.push_back(item);
        let len = inner.items.len();
        let stats = &mut inner.stats;
        stats.max = stats.max.max(len);
        stats.sum += len as u64 - 1;
        stats.samples += 1;
        self.wake_one(&mut inner);
        if write {
            self.elsewhere(&mut inner, |overflow| overflow.write());
        }
        true
    }

    /// Puts an event before all that wait: it must come first whatever its seqno.
    pub fn push_front(&self, item: QueueItem<T>) {
        let mut inner = self.lock_whole();
        inner.items.push_front(item);
        self.wake_one(&mut inner);
    }

    /// Has an idle thread look, unless one is about to.
    fn wake_one(&self, inner: &mut Inner<T>) {
        if inner.idle == 0 || inner.waking {
            return;
        }
        inner.waking = true;
        // Before others can see that somebody is about to look.
        self.wake.notify_one();
    }

    /// Has the overflow do `work`, which may take as long as a disk does: without the lock meanwhile.
    /// `None`: there is none.
    fn elsewhere<R>(
        &self,
        inner: &mut MutexGuard<'_, Inner<T>>,
        work: impl FnOnce(&mut dyn Overflow<T>) -> R,
    ) -> Option<R> {
        let mut overflow = inner.items.lend()?;
        let done = MutexGuard::unlocked(inner, || work(&mut *overflow));
        inner.items.is_back(overflow);
        if std::mem::take(&mut inner.stalled) {
            self.wake.notify_all();
        }
        self.back.notify_all();
        Some(done)
    }

    /// Gives an event to the next idle thread, whatever else waits, runs or is held.
    /// It has no place in the order.
    pub fn push_urgent(&self, item: QueueItem<T>) {
        let mut inner = self.lock();
        inner.urgent.push_back(item);
        drop(inner);
        self.wake.notify_all();
    }

    /// Whether the last idle thread is left for what is urgent. If there is but one
    /// thread, it takes whatever comes.
    pub fn spare_one(&self, spare: bool) {
        let was = std::mem::replace(&mut self.lock().spare, spare);
        if was && !spare {
            self.wake.notify_all();
        }
    }

    /// Whether something urgent waits.
    pub fn has_urgent(&self) -> bool {
        !self.lock().urgent.is_empty()
    }

    /// `ahead`: the event that this thread took may wait for what comes behind it in the
    /// queue. It does not count beside the one that is spared.
    pub fn sets_aside(&self, ahead: bool) {
        if ahead {
            self.lock().aside += 1;
            self.wake.notify_all();
        }
    }

    /// That is over.
    pub fn is_back(&self, ahead: bool) {
        if ahead {
            self.lock().aside -= 1;
            self.back.notify_all();
        }
    }

    /// Waits until no thread has an event that waits for its place, at most until
    /// `deadline`. False: there still is one.
    pub fn wait_none_aside(&self, deadline: Instant) -> bool {
        let mut inner = self.lock();
        while inner.aside > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.back.wait_for(&mut inner, left);
        }
        true
    }

    /// Takes the next event, waiting for one until `deadline`. Whoever took one
    /// must call [`ApplyQueue::done`].
    pub fn pop(&self, deadline: Option<Instant>) -> Popped<T> {
        let mut inner = self.lock();
        inner.idle += 1;
        let popped = self.pop_idle(&mut inner, deadline);
        inner.idle -= 1;
        let took = matches!(popped, Popped::Item(_));
        inner.busy += usize::from(took);
        if took && inner.items.len() > 0 {
            // Another thread may go on with the next one.
            self.wake_one(&mut inner);
        }
        popped
    }

    fn pop_idle(
        &self,
        inner: &mut MutexGuard<'_, Inner<T>>,
        deadline: Option<Instant>,
    ) -> Popped<T> {
        loop {
            match inner.take() {
                Took::Item(item) => return Popped::Item(item),
                Took::Away(n) => {
                    let kept = self.elsewhere(inner, |overflow| overflow.pop(n));
                    inner.items.fetched(kept);
                    // Who was woken meanwhile may have been this one.
                    inner.waking = false;
                    continue;
                }
                Took::Nothing => {}
            }
            if inner.closed && inner.items.len() == 0 && !inner.exclusive_running {
                return Popped::Closed;
            }
            match deadline {
                None => self.wake.wait(inner),
                Some(deadline) if Instant::now() < deadline => {
                    self.wake.wait_until(inner, deadline);
                }
                Some(_) => return Popped::Nothing,
            }
            // Whoever was woken, somebody looks now.
            inner.waking = false;
        }
    }

    /// The event that this thread took, `exclusive` or not, has ended.
    pub fn done(&self, exclusive: bool) {
        let mut inner = self.lock();
        inner.busy -= 1;
        if exclusive {
            inner.exclusive_running = false;
        }
        if exclusive || inner.spare {
            drop(inner);
            self.wake.notify_all();
        }
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
        let mut inner = self.lock_whole();
        inner.floor = seqno;
        let here = inner.items.drop_here(seqno);
        let away = self.elsewhere(&mut inner, |overflow| overflow.drop_through(seqno));
        let away = away.unwrap_or(0);
        inner.items.drop_away(away);
        inner.is_shorter();
        here + away
    }

    /// Drops everything that waits. Answers it, oldest first.
    pub fn clear(&self) -> Drained<T> {
        let mut inner = self.lock_whole();
        inner.urgent.clear();
        let fresh = inner.items.fresh();
        let items = std::mem::replace(&mut inner.items, fresh);
        inner.is_shorter();
        drop(inner);
        self.wake.notify_all();
        Drained(items)
    }

    /// No event is taken in any more; threads end when it is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Opens a closed queue again, empty and without holds. A thread that still has an
    /// exclusive event keeps the others waiting until it is done.
    pub fn reopen(&self) {
        let mut inner = self.lock_whole();
        inner.items = inner.items.fresh();
        inner.is_shorter();
        inner.urgent.clear();
        inner.spare = false;
        inner.hold_after = None;
        inner.floor = Seqno::MIN;
        inner.closed = false;
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Threads that wait for an event, or are about to look for one.
    pub fn idle(&self) -> usize {
        self.lock().idle
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an exclusive event waits, or a thread has one.
    pub fn has_exclusive(&self) -> bool {
        let inner = self.lock();
        inner.exclusive_running || inner.items.has_exclusive()
    }

    /// Bytes held by the events that wait.
    pub fn bytes(&self) -> usize {
        self.lock().items.bytes()
    }

    /// Length statistics.
    pub fn stats(&self) -> QueueStats {
        let inner = self.lock();
        QueueStats {
            len: inner.items.len(),
            away: inner.items.away(),
            bytes: inner.items.bytes(),
            ..inner.stats
        }
    }

    /// Starts averages and extremes anew, from the length that it has.
    pub fn reset_stats(&self) {
        let mut inner = self.lock();
        let len = inner.items.len();
        inner.stats = QueueStats {
            max: len,
            min: len,
            ..QueueStats::default()
        };
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock()
    }

    /// The same, while nobody has the overflow: it may take as long as a disk does.
    fn lock_whole(&self) -> MutexGuard<'_, Inner<T>> {
        let mut inner = self.lock();
        while inner.items.is_lent() {
            self.back.wait(&mut inner);
        }
        inner
    }
}

/// What a thread gets of the queue at once.
enum Took<T> {
    Item(QueueItem<T>),
    Nothing,
    /// The next ones lie in the overflow, so many at least.
    Away(usize),
}

impl<T> Inner<T> {
    fn take(&mut self) -> Took<T> {
        if let Some(item) = self.urgent.pop_front() {
            return Took::Item(item);
        }
        let last = self.idle == 1 && self.busy > self.aside;
        if self.exclusive_running || (self.spare && last) {
            return Took::Nothing;
        }
        match self.items.front() {
            Front::Away(_) if self.items.is_lent() => {
                self.stalled = true;
                return Took::Nothing;
            }
            Front::Away(n) => return Took::Away(n),
            Front::Here(seqno) if self.hold_after.is_none_or(|at| seqno <= at) => {}
            Front::Here(_) | Front::Nothing => return Took::Nothing,
        }
        let Some(item) = self.items.pop_here() else {
            return Took::Nothing;
        };
        self.is_shorter();
        self.exclusive_running = item.exclusive;
        Took::Item(item)
    }

    fn is_shorter(&mut self) {
        self.stats.min = self.stats.min.min(self.items.len());
    }
}

#[cfg(test)]
mod away;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::ROOM_KEPT;

    pub(super) fn item(seqno: Seqno, exclusive: bool) -> QueueItem<&'static str> {
        QueueItem {
            seqno,
            ordered: true,
            depends_on: 0,
            exclusive,
            bytes: 10,
            value: "x",
        }
    }

    fn now() -> Option<Instant> {
        Some(Instant::now())
    }

    /// As a thread does that has nothing else.
    pub(super) fn popped(q: &ApplyQueue<&'static str>) -> Option<Seqno> {
        match q.pop(now()) {
            Popped::Item(i) => Some(i.seqno),
            Popped::Nothing | Popped::Closed => None,
        }
    }

    #[test]
    fn an_exclusive_event_that_is_not_done_holds_what_comes_after_the_queue_was_opened_again() {
        let q = ApplyQueue::new();
        q.push(item(1, true));
        assert_eq!(popped(&q), Some(1));
        q.push(item(2, false));
        q.close();
        q.reopen();
        assert!(q.has_exclusive());
        q.push(item(3, false));
        assert_eq!(popped(&q), None);
        q.done(true);
        assert!(!q.has_exclusive());
        assert_eq!(popped(&q), Some(3));
        q.push(item(4, true));
        assert!(q.has_exclusive());
    }

    #[test]
    fn extremes_begin_anew_at_the_length_that_it_has() {
        let q = ApplyQueue::new();
        for seqno in 1..=4 {
            q.push(item(seqno, false));
        }
        let extremes = |q: &ApplyQueue<&'static str>| (q.stats().min, q.stats().max);
        assert_eq!(extremes(&q), (0, 4), "it was empty");
        assert_eq!(popped(&q), Some(1));
        q.reset_stats();
        assert_eq!(extremes(&q), (3, 3));
        assert_eq!((q.stats().sum, q.stats().samples), (0, 0));
        assert_eq!(popped(&q), Some(2));
        q.push(item(5, false));
        assert_eq!(extremes(&q), (2, 3));
        q.push(item(6, false));
        q.drop_through(5);
        assert_eq!(extremes(&q), (1, 4));
        q.clear();
        assert_eq!(extremes(&q), (0, 4));
    }

    #[test]
    fn what_a_long_queue_needed_is_given_back() {
        let room = |q: &ApplyQueue<&'static str>| q.lock().items.room();
        let q = ApplyQueue::new();
        for seqno in 1..=100_000 {
            q.push(item(seqno, false));
        }
        assert!(room(&q) >= 100_000);
        for seqno in 1..=99_000 {
            assert_eq!(popped(&q), Some(seqno));
        }
        assert!(room(&q) < 2 * ROOM_KEPT, "{}", room(&q));
        for seqno in 100_001..=200_000 {
            q.push(item(seqno, false));
        }
        assert_eq!(q.drop_through(199_999), 100_999);
        assert!(room(&q) < 2 * ROOM_KEPT, "{}", room(&q));
        assert_eq!(popped(&q), Some(200_000));
        assert_eq!(popped(&q), None);
    }

    #[test]
    fn the_last_idle_thread_is_left_for_what_is_urgent() {
        let q = ApplyQueue::new();
        for s in 1..=4 {
            q.push(item(s, s == 2));
        }
        q.spare_one(true);
        assert_eq!(popped(&q), Some(1), "there may be one thread only");
        assert_eq!(popped(&q), None, "the other one is left");
        q.push_urgent(item(9, false));
        assert_eq!(popped(&q), Some(9));
        q.done(false);
        q.done(false);
        assert_eq!(popped(&q), Some(2), "both are idle");
        q.hold_after(2);
        q.push_urgent(item(9, false));
        assert_eq!(popped(&q), Some(9), "beside an exclusive one, and a hold");
        q.done(false);
        q.resume();
        q.done(true);
        q.spare_one(false);
        assert_eq!((popped(&q), popped(&q)), (Some(3), Some(4)));
    }

    #[test]
    fn who_waits_for_its_place_leaves_the_other_one_to_what_comes_before() {
        let q = ApplyQueue::new();
        for s in 1..=3 {
            q.push(item(s, false));
        }
        q.spare_one(true);
        assert_eq!(popped(&q), Some(1));
        q.sets_aside(true);
        assert_eq!(popped(&q), Some(2), "the first may wait for it");
        q.done(false);
        assert!(!q.wait_none_aside(Instant::now()));
        q.is_back(true);
        assert!(q.wait_none_aside(Instant::now()));
        assert_eq!(popped(&q), None);
        q.done(false);
        assert_eq!(popped(&q), Some(3));
    }

    #[test]
    fn whoever_comes_back_takes_what_the_spare_one_left() {
        let q = std::sync::Arc::new(ApplyQueue::new());
        q.spare_one(true);
        q.push(item(1, false));
        assert_eq!(popped(&q), Some(1));
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = {
            let q = q.clone();
            std::thread::spawn(move || {
                for _ in 0..2 {
                    if let Popped::Item(i) = q.pop(None) {
                        let _ = tx.send(i.seqno);
                        q.done(false);
                    }
                }
            })
        };
        q.push(item(2, false));
        let soon = std::time::Duration::from_millis(50);
        assert!(rx.recv_timeout(soon).is_err(), "it is the spare one");
        q.push_urgent(item(9, false));
        assert_eq!(rx.recv(), Ok(9));
        assert!(rx.recv_timeout(soon).is_err());
        // The other one ends: now it is the only one.
        q.done(false);
        assert_eq!(rx.recv(), Ok(2));
        assert!(thread.join().is_ok());
    }

    #[test]
    fn each_that_waits_gets_a_thread_while_one_is_idle() {
        let q = std::sync::Arc::new(ApplyQueue::new());
        let (took, taken) = std::sync::mpsc::channel();
        // Nobody ends before all have begun.
        let all = std::sync::Arc::new(std::sync::Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (q, took, all) = (q.clone(), took.clone(), all.clone());
                std::thread::spawn(move || {
                    while let Popped::Item(i) = q.pop(None) {
                        let _ = took.send(i.seqno);
                        all.wait();
                        q.done(false);
                    }
                })
            })
            .collect();
        let soon = std::time::Duration::from_secs(10);
        for round in 0..200 {
            for n in 1..=4 {
                q.push(item(round * 4 + n, false));
            }
            let mut seen: Vec<Seqno> = (0..4)
                .map_while(|_| taken.recv_timeout(soon).ok())
                .collect();
            seen.sort_unstable();
            let expected: Vec<Seqno> = (1..=4).map(|n| round * 4 + n).collect();
            assert_eq!(seen, expected);
        }
        q.close();
        assert!(threads.into_iter().all(|t| t.join().is_ok()));
    }

    #[test]
    fn an_exclusive_event_holds_later_ones() {
        let q = ApplyQueue::new();
        q.push(item(1, false));
        q.push(item(2, true));
        q.push(item(3, false));
        assert_eq!(popped(&q), Some(1));
        assert_eq!(popped(&q), Some(2));
        assert_eq!(popped(&q), None);
        q.done(true);
        assert_eq!(popped(&q), Some(3));
    }

    #[test]
    fn a_pause_holds_later_ones_and_a_position_drops_earlier_ones() {
        let q = ApplyQueue::new();
        for s in 1..=4 {
            q.push(item(s, false));
        }
        assert_eq!(q.drop_through(1), 1);
        q.push(item(1, false));
        q.hold_after(2);
        assert_eq!(popped(&q), Some(2));
        assert_eq!(popped(&q), None);
        assert_eq!((q.len(), q.bytes()), (2, 20));
        q.resume();
        assert_eq!(popped(&q), Some(3));
    }

    #[test]
    fn closed_only_after_the_last_event() {
        let q = ApplyQueue::new();
        q.push(item(1, true));
        q.close();
        assert!(!q.push(item(2, false)));
        assert_eq!(q.len(), 1, "nobody would take it");
        assert_eq!(popped(&q), Some(1));
        assert!(
            matches!(q.pop(now()), Popped::Nothing),
            "the exclusive one still runs"
        );
        q.done(true);
        assert!(matches!(q.pop(now()), Popped::Closed));
    }
}
