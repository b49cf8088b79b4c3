//! Tables whose changes have to wait here, before they are ordered.
//!
//! *Kindly*: a large transaction keeps them to itself while it is applied in chunks.
//! Whoever changes something there fails certification until it is over
//! (`certify/src/open.rs`), so those who come meanwhile wait. Who slips through fails,
//! as the rule says.
//!
//! *Wholly*: as kindly, by a large transaction of another node whose rows in the table were too
//! many to list. The table itself is its key, so whoever names it fails, also one that has not seen
//! the end: those who come wait until that is finished here. This node's own clients met its
//! row locks, and go on.
//!
//! *Strictly*: a streaming transaction is shelved here (`held.rs`), so its rows are
//! not locked. Nobody on this node may name its tables, also to look at a row there for
//! a foreign key, until it is over.
//!
//! *For a replay*: a client's transaction that has passed gives its rows back, and runs
//! again. Certification lets others of this node pass, since they met its locks. So they
//! wait, from before the first row is free: who took one of its rows meanwhile has to
//! give it up to the replay.

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

/// How waiting for closed tables ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It may go on.
    Free,
    /// It may go on when what is at this place is finished here.
    Behind(Seqno),
    /// It was told to give way.
    Interrupted,
    /// It may not go on.
    Refused,
}

/// What a transaction does with tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    /// Those in which it changes something.
    pub changed: Vec<KeyHash>,
    /// All that its keys name.
    pub named: Vec<KeyHash>,
    /// Fragments of it are out: on other nodes they may hold what the one that closed
    /// a table needs, so it cannot wait.
    pub streams: bool,
    /// This is its end. It waits like others where a large transaction keeps a table that it
    /// names: a node on which its rows are in the way shelves it.
    pub ends: bool,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the place where the one that closed them began.
    kindly: BTreeMap<Seqno, HashSet<KeyHash>>,
    wholly: BTreeMap<Seqno, Wholly>,
    strictly: BTreeMap<Seqno, HashSet<KeyHash>>,
    /// By the server's number of the one that runs again: its place need not be known.
    replays: BTreeMap<u64, HashSet<KeyHash>>,
    waiting: Vec<Arc<Waiter>>,
    /// Counts how often all that wait were sent on.
    cleared: u64,
}

#[derive(Debug)]
struct Wholly {
    tables: HashSet<KeyHash>,
    /// Where the one that closed them ends, once that is ordered.
    end: Option<Seqno>,
}

impl Inner {
    fn wake(&mut self) {
        for waiter in self.waiting.drain(..) {
            waiter.wake();
        }
    }

    fn is_refused(&self, named: &[KeyHash]) -> bool {
        let closed = |t| self.strictly.values().any(|set| set.contains(t));
        named.iter().any(closed)
    }

    fn waits_for_replay(&self, named: &[KeyHash]) -> bool {
        let closed = |t| self.replays.values().any(|set| set.contains(t));
        named.iter().any(closed)
    }

    fn any(&self) -> bool {
        let none = self.kindly.is_empty() && self.wholly.is_empty();
        !(none && self.strictly.is_empty() && self.replays.is_empty())
    }

    fn is_kindly_asked(&self, touches: &Touches) -> bool {
        let closed = |t| self.kindly.values().any(|set| set.contains(t));
        let open = |whole: &Wholly| whole.end.is_none() && whole.names(touches);
        let wholly = || self.wholly.values().any(open);
        match (touches.streams, touches.ends) {
            (true, true) => touches.named.iter().any(closed) || wholly(),
            (true, false) => false,
            (false, _) => touches.changed.iter().any(closed) || wholly(),
        }
    }

    /// The last end that has its place of those that closed something wholly which it `touches`.
    fn ends_behind(&self, touches: &Touches) -> Option<Seqno> {
        let mine = self.wholly.values().filter(|whole| whole.names(touches));
        mine.filter_map(|whole| whole.end).max()
    }
}

impl Wholly {
    fn names(&self, touches: &Touches) -> bool {
        touches.named.iter().any(|t| self.tables.contains(t))
    }
}

impl ClosedTables {
    /// `id` closes these tables kindly, if there are any.
    pub fn close(&self, id: Seqno, tables: &[KeyHash]) {
        if tables.is_empty() {
            return;
        }
        let mut inner = self.lock();
        inner.kindly.insert(id, tables.iter().copied().collect());
        self.any.store(true, Ordering::Release);
    }

    /// `id` closes these tables wholly, if there are any.
    pub fn close_wholly(&self, id: Seqno, tables: &[KeyHash]) {
        if tables.is_empty() {
            return;
        }
        let tables = tables.iter().copied().collect();
        let mut inner = self.lock();
        inner.wholly.insert(id, Wholly { tables, end: None });
        self.any.store(true, Ordering::Release);
    }

    /// What has its place at `seqno` and comes whole names these tables wholly until it is finished.
    pub fn names_wholly(&self, seqno: Seqno, tables: &[KeyHash]) {
        self.close_wholly(seqno, tables);
        self.ends(seqno, seqno);
    }

    /// `id` ends at `end`, which may not be finished yet.
    pub fn ends(&self, id: Seqno, end: Seqno) {
        if !self.any() {
            return;
        }
        let mut inner = self.lock();
        inner.kindly.remove(&id);
        if let Some(whole) = inner.wholly.get_mut(&id) {
            whole.end = Some(end);
        }
        self.any.store(inner.any(), Ordering::Release);
        inner.wake();
    }

    /// Everything up to `released` is finished.
    pub fn forget_ended(&self, released: Seqno) {
        let mut inner = self.lock();
        let over = |whole: &Wholly| whole.end.is_some_and(|end| end <= released);
        inner.wholly.retain(|_, whole| !over(whole));
        self.any.store(inner.any(), Ordering::Release);
    }

    /// `id` closes these tables strictly, and those that it closed before.
    pub fn close_strictly(&self, id: Seqno, tables: impl IntoIterator<Item = KeyHash>) {
        let mut inner = self.lock();
        inner.strictly.entry(id).or_default().extend(tables);
        self.any.store(true, Ordering::Release);
    }

    /// This node's transaction `trx` is to run again: these tables are closed until it is
    /// through.
    pub fn close_for_replay(&self, trx: u64, tables: impl IntoIterator<Item = KeyHash>) {
        let mut inner = self.lock();
        inner.replays.entry(trx).or_default().extend(tables);
        self.any.store(true, Ordering::Release);
    }

    /// This node's transaction `trx` is through.
    pub fn replayed(&self, trx: u64) {
        if !self.any() {
            return;
        }
        let mut inner = self.lock();
        if inner.replays.remove(&trx).is_some() {
            self.any.store(inner.any(), Ordering::Release);
            inner.wake();
        }
    }

    /// `id` is over.
    pub fn open(&self, id: Seqno) {
        if !self.any() {
            return;
        }
        let mut inner = self.lock();
        let kindly = inner.kindly.remove(&id).is_some() | inner.wholly.remove(&id).is_some();
        if inner.strictly.remove(&id).is_some() || kindly {
            self.any.store(inner.any(), Ordering::Release);
            inner.wake();
        }
    }

    /// Nobody waits any more: this node has lost touch, or left. What is shelved
    /// remains so.
    pub fn send_on(&self) {
        let mut inner = self.lock();
        inner.kindly.clear();
        inner.wholly.clear();
        inner.cleared += 1;
        self.any.store(inner.any(), Ordering::Release);
        inner.wake();
    }

    /// No stream closes any: nothing is shelved.
    pub fn open_strict(&self) {
        let mut inner = self.lock();
        inner.strictly.clear();
        self.any.store(inner.any(), Ordering::Release);
        inner.wake();
    }

    /// Nothing is closed any more.
    pub fn clear(&self) {
        {
            let mut inner = self.lock();
            inner.strictly.clear();
            inner.replays.clear();
        }
        self.send_on();
    }

    /// Whether some table is closed.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether one of `named` was closed, other than kindly.
    pub fn stops(&self, named: &[KeyHash]) -> bool {
        let stops = |inner: &Inner| inner.is_refused(named) || inner.waits_for_replay(named);
        self.any() && stops(&self.lock())
    }

    /// Waits until nothing that it `touches` is closed, or `deadline` has passed.
    pub fn wait(&self, waiter: &Arc<Waiter>, touches: &Touches, deadline: Instant) -> Passage {
        let mut inner = self.lock();
        let cleared = inner.cleared;
        let mut in_time = true;
        loop {
            let refused = inner.is_refused(&touches.named);
            let replay = inner.waits_for_replay(&touches.named);
            if !(refused || replay || inner.is_kindly_asked(touches)) {
                return match inner.ends_behind(touches) {
                    Some(end) if !touches.streams || touches.ends => Passage::Behind(end),
                    _ => Passage::Free,
                };
            }
            if waiter.interrupted() {
                return Passage::Interrupted;
            }
            if !in_time || inner.cleared != cleared || (refused && touches.streams) {
                return match refused || replay {
                    true => Passage::Refused,
                    false => Passage::Free,
                };
            }
            inner.waiting.push(waiter.clone());
            drop(inner);
            in_time = waiter.wait(true, Some(deadline));
            inner = self.lock();
            inner.waiting.retain(|w| !Arc::ptr_eq(w, waiter));
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

    fn changes(on: &[u128]) -> Touches {
        let tables: Vec<_> = on.iter().copied().map(table).collect();
        Touches {
            changed: tables.clone(),
            named: tables,
            streams: false,
            ends: true,
        }
    }

    /// Waits on a thread of its own; the answer comes out of the receiver.
    fn waits(
        tables: &Arc<ClosedTables>,
        waiter: &Arc<Waiter>,
        touches: Touches,
        limit: Duration,
    ) -> mpsc::Receiver<Passage> {
        let (tx, rx) = mpsc::channel();
        let (tables, waiter) = (tables.clone(), waiter.clone());
        std::thread::spawn(move || {
            let _ = tx.send(tables.wait(&waiter, &touches, Instant::now() + limit));
        });
        rx
    }

    fn nothing_yet(rx: &mpsc::Receiver<Passage>) {
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn where_nothing_is_shelved_any_more_a_large_one_keeps_its_tables() {
        let tables = ClosedTables::default();
        tables.close(5, &[table(1)]);
        tables.close_strictly(6, [table(2)]);
        tables.open_strict();
        assert!(tables.any());
        assert!(!tables.stops(&[table(2)]));
        assert!(tables.lock().is_kindly_asked(&changes(&[1])));
        tables.open(5);
        assert!(!tables.any());
    }

    #[test]
    fn who_needs_a_closed_table_waits_until_it_is_open() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        let now = tables.wait(&waiter, &changes(&[1]), Instant::now());
        assert_eq!(now, Passage::Free);
        tables.close(5, &[]);
        assert!(!tables.any());
        tables.close(7, &[table(1), table(2)]);
        tables.close(9, &[table(3)]);
        assert!(tables.any());
        let other = tables.wait(&waiter, &changes(&[4]), Instant::now() + LONG);
        assert_eq!(other, Passage::Free);
        let rx = waits(&tables, &waiter, changes(&[4, 2, 3]), LONG);
        nothing_yet(&rx);
        tables.open(8);
        tables.open(7);
        nothing_yet(&rx);
        tables.open(9);
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free));
        assert!(!tables.any());
        assert!(tables.lock().waiting.is_empty());
    }

    #[test]
    fn who_names_a_table_that_is_closed_wholly_waits_and_comes_behind_the_end() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        tables.close_wholly(4, &[]);
        assert!(!tables.any());
        tables.close_wholly(7, &[table(1)]);
        let looks = Touches {
            named: vec![table(1)],
            ends: true,
            ..Touches::default()
        };
        let streams = Touches {
            streams: true,
            ends: false,
            ..looks.clone()
        };
        let rx = waits(&tables, &waiter, looks.clone(), LONG);
        nothing_yet(&rx);
        let now = |touches: &Touches| tables.wait(&waiter, touches, Instant::now() + LONG);
        assert_eq!(now(&changes(&[2])), Passage::Free);
        assert_eq!(now(&streams), Passage::Free);
        tables.ends(7, 20);
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Behind(20)));
        // Also who comes before that is finished.
        assert_eq!(now(&looks), Passage::Behind(20));
        assert_eq!(now(&changes(&[2])), Passage::Free);
        tables.forget_ended(19);
        assert_eq!(now(&looks), Passage::Behind(20));
        tables.forget_ended(20);
        assert!(!tables.any());
        assert_eq!(now(&looks), Passage::Free);
        // One that is rolled back leaves nothing behind.
        tables.close_wholly(30, &[table(1)]);
        tables.open(30);
        assert!(!tables.any());
        tables.close_wholly(40, &[table(1)]);
        tables.send_on();
        assert!(!tables.any());
        // What comes whole has its place when it comes.
        tables.names_wholly(50, &[table(1)]);
        assert_eq!(now(&looks), Passage::Behind(50));
        assert_eq!(now(&streams), Passage::Free);
        tables.forget_ended(50);
        assert!(!tables.any());
    }

    #[test]
    fn an_interrupt_a_deadline_and_the_end_of_the_membership_end_it() {
        let tables = Arc::new(ClosedTables::default());
        tables.close(7, &[table(1)]);
        let waiter = Arc::new(Waiter::new());
        let rx = waits(&tables, &waiter, changes(&[1]), LONG);
        nothing_yet(&rx);
        waiter.interrupt();
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Interrupted));
        let waiter = Arc::new(Waiter::new());
        let rx = waits(&tables, &waiter, changes(&[1]), Duration::from_millis(20));
        let luck = "it tries its luck";
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free), "{luck}");
        let rx = waits(&tables, &waiter, changes(&[1]), LONG);
        nothing_yet(&rx);
        tables.clear();
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free));
        assert!(tables.lock().waiting.is_empty());
    }

    #[test]
    fn who_streams_does_not_wait_but_is_refused_where_that_is_strict() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        tables.close(7, &[table(1)]);
        tables.close_strictly(8, [table(2)]);
        let streams = |on: &[u128]| Touches {
            streams: true,
            ends: false,
            ..changes(on)
        };
        let long = Instant::now() + LONG;
        assert_eq!(tables.wait(&waiter, &streams(&[1]), long), Passage::Free);
        let strict = tables.wait(&waiter, &streams(&[1, 2]), long);
        assert_eq!(strict, Passage::Refused);
    }

    #[test]
    fn the_end_of_a_stream_waits_also_for_what_it_changed_before() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        tables.close(7, &[table(1)]);
        let end = Touches {
            named: vec![table(1)],
            streams: true,
            ..changes(&[])
        };
        let rx = waits(&tables, &waiter, end, LONG);
        nothing_yet(&rx);
        tables.open(7);
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free));
    }

    #[test]
    fn everybody_waits_for_a_replay() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        tables.close_for_replay(7, [table(1)]);
        let streams = Touches {
            streams: true,
            ..changes(&[1])
        };
        let rx = waits(&tables, &waiter, streams, LONG);
        nothing_yet(&rx);
        tables.send_on();
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Refused));
        assert!(tables.stops(&[table(1)]) && !tables.stops(&[table(2)]));
        tables.close_for_replay(7, [table(3)]);
        assert!(tables.stops(&[table(1)]) && tables.stops(&[table(3)]));
        let rx = waits(&tables, &waiter, changes(&[1]), LONG);
        nothing_yet(&rx);
        tables.replayed(8);
        tables.open(7);
        nothing_yet(&rx);
        tables.replayed(7);
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free));
        assert!(!tables.any());
    }

    #[test]
    fn what_is_closed_strictly_refuses_who_only_looks_and_who_has_waited() {
        let tables = Arc::new(ClosedTables::default());
        let waiter = Arc::new(Waiter::new());
        tables.close_strictly(7, [table(1)]);
        tables.close_strictly(7, [table(2)]);
        let looks = Touches {
            named: vec![table(1)],
            ..changes(&[])
        };
        let rx = waits(&tables, &waiter, looks.clone(), Duration::from_millis(20));
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Refused));
        assert!(tables.stops(&[table(3), table(2)]) && !tables.stops(&[table(3)]));
        let rx = waits(&tables, &waiter, looks.clone(), LONG);
        nothing_yet(&rx);
        tables.send_on();
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Refused));
        assert!(tables.stops(&[table(1)]), "it is still shelved");
        let rx = waits(&tables, &waiter, looks, LONG);
        nothing_yet(&rx);
        tables.open(7);
        assert_eq!(rx.recv_timeout(LONG), Ok(Passage::Free));
        assert!(!tables.any());
        tables.close_strictly(9, [table(1)]);
        tables.close_for_replay(10, [table(1)]);
        tables.clear();
        assert!(!tables.stops(&[table(1)]) && !tables.any());
    }
}
