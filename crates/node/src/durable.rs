//! What of the database's work is certainly on its disk.
//!
//! The log is shortened only behind this. The node cannot see how the database
//! flushes, so it goes by the slowest way there is: the database writes its own
//! log to the operating system every second or so, by the wall clock, and the
//! operating system keeps that for itself until it is told to sync.
//!
//! ```text
//!   released      +1    +2          +11 s              database may rely on
//!   ───●───────────────────────────────●──── sync ─────●──────────────────>
//!      noted            aged in time that this process had     it is durable
//! ```
//!
//! [`Durable`] decides and knows no clock; a thread of the node syncs.

use std::collections::VecDeque;
use std::time::Duration;

use dromon_writeset::Seqno;

/// How long after its release an event is taken to have left the database's memory.
pub const AGE: Duration = Duration::from_secs(10);
/// How often what is released is noted.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// The pause between two syncs: each writes out the whole file system.
const SYNC_PAUSE: Duration = Duration::from_secs(5);
/// A call that comes later than this counts for this much: whoever was
/// stopped does not know whether the database ran meanwhile.
const GAP_MAX: Duration = Duration::from_secs(1);

/// Why nothing more becomes durable now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The wall clock stands before a time that it has shown already.
    Clock,
    /// A sync failed: what it should have written may be lost, and a later one
    /// would not tell.
    SyncFailed,
}

/// Follows one database from its start on.
#[derive(Debug)]
pub struct Durable {
    /// (own time, released then), ascending; those younger than [`AGE`], and one older.
    notes: VecDeque<(Duration, Seqno)>,
    /// Time this process was seen to run.
    time: Duration,
    last_call: Option<Duration>,
    synced: Seqno,
    syncing: Option<Seqno>,
    last_sync: Option<Duration>,
    /// The latest wall clock time seen.
    wall: Duration,
    /// How far the wall clock stands before it now.
    behind: Duration,
    failed: bool,
}

impl Default for Durable {
    fn default() -> Self {
        Durable {
            notes: VecDeque::new(),
            time: Duration::ZERO,
            last_call: None,
            synced: -1,
            syncing: None,
            last_sync: None,
            wall: Duration::ZERO,
            behind: Duration::ZERO,
            failed: false,
        }
    }
}

impl Durable {
    /// The database has another beginning (a copy, another connection): nothing
    /// of it is known to be on disk, not even what it started with. A sync that
    /// failed stays so.
    pub fn restart(&mut self) {
        *self = Durable {
            time: self.time,
            last_call: self.last_call,
            last_sync: self.last_sync,
            wall: self.wall,
            behind: self.behind,
            failed: self.failed,
            ..Durable::default()
        };
    }

    /// To be called several times a second. `now`: monotonic; `wall`: since any
    /// fixed date; `released`: the last seqno finished; `useful(a, b)`: whether
    /// it would help anybody to know that not only `a`, but `b` is durable.
    /// Some: sync now, and say how it went to [`synced`](Durable::synced).
    pub fn tick(
        &mut self,
        now: Duration,
        wall: Duration,
        released: Seqno,
        useful: impl FnOnce(Seqno, Seqno) -> bool,
    ) -> Option<Seqno> {
        let passed = now.saturating_sub(self.last_call.replace(now).unwrap_or(now));
        self.time += passed.min(GAP_MAX);
        self.behind = self.wall.saturating_sub(wall);
        self.wall = self.wall.max(wall);
        if !self.behind.is_zero() {
            // The database's clock is this one: what it has not written by now
            // it will not write before the clock is back. All ages begin anew.
            self.notes.clear();
        }
        let due = |(at, _): &(Duration, Seqno)| self.time - *at >= NOTED_EVERY;
        if self.notes.back().is_none_or(due) {
            self.notes.push_back((self.time, released));
        }
        while self.notes.get(1).is_some_and(|n| self.aged(n.0)) {
            self.notes.pop_front();
        }
        let aged = self.notes.front().filter(|n| self.aged(n.0));
        let seqno = aged.map(|n| n.1)?;
        let paused = self.last_sync.is_some_and(|at| self.time - at < SYNC_PAUSE);
        let wanted = seqno > self.synced && useful(self.synced, seqno);
        if self.syncing.is_some() || self.failed || paused || !wanted {
            return None;
        }
        self.syncing = Some(seqno);
        self.last_sync = Some(self.time);
        Some(seqno)
    }

    fn aged(&self, at: Duration) -> bool {
        self.time - at >= AGE
    }

    /// The sync that was asked for at `seqno` has ended. One asked for before a
    /// [`restart`](Durable::restart) counts for nothing, but its failure does.
    pub fn synced(&mut self, seqno: Seqno, ok: bool) {
        self.failed |= !ok;
        if self.syncing == Some(seqno) {
            self.syncing = None;
            if ok {
                self.synced = self.synced.max(seqno);
            }
        }
    }

    /// The sync could not be begun: it is asked for again.
    pub fn not_begun(&mut self) {
        self.syncing = None;
    }

    /// The last seqno that no crash can take from the database; -1: none known.
    pub fn seqno(&self) -> Seqno {
        self.synced
    }

    /// How far the wall clock stands before a time that it has shown.
    pub fn behind(&self) -> Duration {
        self.behind
    }

    /// Why this does not go on.
    pub fn held(&self) -> Option<Held> {
        match (self.failed, !self.behind.is_zero()) {
            (true, _) => Some(Held::SyncFailed),
            (false, true) => Some(Held::Clock),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_millis(100);

    /// A database that flushes once a second of the wall clock, as its engine
    /// does, over an operating system that writes when told to.
    #[derive(Default)]
    struct Model {
        released: Seqno,
        flushed_at: Duration,
        written: Seqno,
        on_disk: Seqno,
        now: Duration,
        wall: Duration,
        /// Asked for, and the step in which it ends.
        sync: Option<(Seqno, u32, bool)>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Move {
        /// This many transactions, then a step of time.
        Work(i64),
        /// The wall clock is set, by this many seconds.
        Clock(i64),
        /// The process is stopped for this many seconds.
        Stop(u64),
        /// The next sync takes this many steps, and may fail.
        Sync(u32, bool),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            60 => (0..3i64).prop_map(Move::Work),
            1 => (-60..60i64).prop_map(Move::Clock),
            1 => (1..40u64).prop_map(Move::Stop),
            2 => (0..30u32, prop::bool::weighted(0.1)).prop_map(|(n, fails)| Move::Sync(n, fails)),
        ];
        // Steps repeat, so that enough time passes.
        prop::collection::vec((one, 1..25usize), 1..80).prop_map(|all| {
            all.into_iter()
                .flat_map(|(m, n)| std::iter::repeat_n(m, n))
                .collect()
        })
    }

    impl Model {
        /// Time passes for a process that runs.
        fn step(&mut self, durable: &mut Durable, sync: &mut (u32, bool), failed: &mut bool) {
            self.now += STEP;
            self.wall += STEP;
            if let Some((seqno, left, fails)) = self.sync.take() {
                if left == 0 {
                    if fails {
                        *failed = true;
                    } else {
                        // What was written when it began at least; the model gives no more.
                        self.on_disk = self.on_disk.max(seqno);
                    }
                    durable.synced(seqno, !fails);
                } else {
                    self.sync = Some((seqno, left - 1, fails));
                }
            }
            if let Some(seqno) = durable.tick(self.now, self.wall, self.released, |_, _| true) {
                assert!(self.sync.is_none(), "one at a time");
                assert!(!*failed, "after a failure a sync proves nothing");
                assert!(
                    seqno <= self.written,
                    "{seqno} is to be synced, but the engine has written only {}",
                    self.written
                );
                self.sync = Some((seqno, sync.0, sync.1));
            }
            // Behind it: the engine's thread is the slower one.
            let since = self.wall.checked_sub(self.flushed_at);
            if since.is_some_and(|s| s >= Duration::from_secs(1)) {
                self.written = self.released;
                self.flushed_at = self.wall;
            }
            assert!(durable.seqno() <= self.on_disk);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_called_durable_that_is_not(moves in moves()) {
            let mut durable = Durable::default();
            let mut m = Model { wall: Duration::from_secs(1_000_000), ..Model::default() };
            let (mut sync, mut failed) = ((0, false), false);
            for one in moves {
                match one {
                    Move::Work(n) => {
                        m.released += n;
                        m.step(&mut durable, &mut sync, &mut failed);
                    }
                    Move::Clock(by) if by < 0 => m.wall -= Duration::from_secs(by.unsigned_abs()),
                    Move::Clock(by) => m.wall += Duration::from_secs(by.unsigned_abs()),
                    Move::Stop(n) => {
                        m.now += Duration::from_secs(n);
                        m.wall += Duration::from_secs(n);
                    }
                    Move::Sync(steps, fails) => sync = (steps, fails),
                }
            }
        }
    }

    /// Runs for `seconds` and answers what was to be synced.
    fn run(
        durable: &mut Durable,
        from: u64,
        seconds: u64,
        wall: i64,
        released: Seqno,
    ) -> Option<Seqno> {
        let mut asked = None;
        for tenth in 0..seconds * 10 {
            let now = Duration::from_secs(from) + STEP * u32::try_from(tenth).expect("short");
            let wall = Duration::from_secs((1000 + wall).unsigned_abs()) + now;
            if let Some(seqno) = durable.tick(now, wall, released, |a, b| a < b) {
                asked = asked.or(Some(seqno));
                durable.synced(seqno, true);
            }
        }
        asked
    }

    #[test]
    fn released_then_aged_then_synced() {
        let mut d = Durable::default();
        assert_eq!(run(&mut d, 0, 9, 0, 7), None);
        assert_eq!((d.seqno(), d.held()), (-1, None));
        assert_eq!(run(&mut d, 9, 3, 0, 8), Some(7));
        assert_eq!(d.seqno(), 7);
        assert_eq!(run(&mut d, 12, 20, 0, 8), Some(8));
        assert_eq!(run(&mut d, 32, 20, 0, 8), None, "nothing new");
        d.restart();
        assert_eq!(d.seqno(), -1, "another database");
    }

    #[test]
    fn a_clock_that_falls_back_holds_until_it_has_passed_its_old_time() {
        let mut d = Durable::default();
        run(&mut d, 0, 20, 0, 5);
        assert_eq!(d.seqno(), 5);
        assert_eq!(run(&mut d, 20, 29, -30, 9), None);
        assert_eq!(d.held(), Some(Held::Clock));
        assert_eq!(
            run(&mut d, 49, 10, -30, 9),
            None,
            "it is back, but ages begin anew"
        );
        assert_eq!(d.held(), None);
        assert_eq!(run(&mut d, 59, 10, -30, 9), Some(9));
    }

    #[test]
    fn a_sync_that_failed_holds_for_good() {
        let mut d = Durable::default();
        run(&mut d, 0, 20, 0, 5);
        let asked = (0..200).find_map(|n| {
            let now = Duration::from_secs(20) + STEP * n;
            d.tick(now, Duration::from_secs(1000) + now, 6, |_, _| true)
        });
        assert_eq!(asked, Some(6));
        d.synced(6, false);
        assert_eq!(run(&mut d, 60, 60, 0, 99), None);
        assert_eq!((d.seqno(), d.held()), (5, Some(Held::SyncFailed)));
        d.restart();
        assert_eq!(d.held(), Some(Held::SyncFailed));
    }

    #[test]
    fn a_sync_of_the_database_before_counts_for_nothing() {
        let mut d = Durable::default();
        let asked = (0..200).find_map(|n| d.tick(STEP * n, STEP * n, 900, |_, _| true));
        assert_eq!(asked, Some(900));
        d.restart();
        d.synced(900, true);
        assert_eq!(d.seqno(), -1);
    }

    #[test]
    fn time_in_which_the_process_did_not_run_ages_nothing() {
        let mut d = Durable::default();
        assert_eq!(run(&mut d, 0, 5, 0, 3), None);
        assert_eq!(run(&mut d, 1000, 4, 0, 3), None);
        assert_eq!(run(&mut d, 1004, 4, 0, 3), Some(3));
    }
}
