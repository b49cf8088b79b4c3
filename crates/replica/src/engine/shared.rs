//! What the threads of a session share.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dromon_binlog::Gtid;
use dromon_binlog::hints::WriteSet;

use super::Settings;
use super::close::{COMMITS, GRACE};
use super::naming::{Budget, Name};
use super::reader::ReadAhead;
use crate::client::{Client, ClientError, Cut};
use crate::schedule::{After, Scheduler, State, Yield};
use crate::target::too_long;
use crate::tune::{Tuner, Which};
use crate::unit::{Alone, Form, Unit};
use crate::unit_size::{FIRST, UnitSize};

/// Condition variables for turns; unit n waits at n modulo this.
pub(super) const TURNS: usize = 64;
/// Units under way until it is known how large they should be: one to learn from, and one that is
/// there when it has committed.
const FIRST_WINDOW: usize = 2;
/// Of so many units, from the first that has not committed on, statements are made before they may
/// start.
const MADE_AHEAD: usize = 4;
/// Conflicts that are remembered by name.
const REMEMBERED: usize = 20;

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Told,
    /// A new one may do better.
    Again(String),
    /// The same, when there is more of something.
    Waits(Waits),
    /// People must look.
    Fatal(String),
}

/// Something has run out that comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// What. Nothing of any row stands in it.
    pub what: &'static str,
    /// The unit that needs it; none: the session itself does.
    pub at: Option<String>,
    /// What showed it, for the log.
    pub why: String,
}

impl fmt::Display for Waits {
    /// Without why.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits { what, at, .. } = self;
        match at {
            Some(unit) => write!(f, "{what} (for {unit})"),
            None => f.write_str(what),
        }
    }
}

impl End {
    /// A new session may do better, as this error may be over then; not so with a position that is too long.
    /// `why`: all that is to be said.
    pub(super) fn again(error: &ClientError, why: String) -> End {
        match (error.scarce(), too_long(error)) {
            (Some(what), _) => End::Waits(Waits {
                what,
                at: None,
                why,
            }),
            (None, Some(then)) => {
                End::Fatal(format!("The position cannot be written: {why}. {then}."))
            }
            (None, None) => End::Again(why),
        }
    }
}

/// Something that may have been done before.
#[derive(Clone, Debug)]
pub(super) struct InDoubt {
    pub gtid: Gtid,
    /// It surely was not.
    pub sure: bool,
    /// So many statements of it have committed, the first ones.
    pub steps: usize,
}

/// A connection, and what its session is.
pub(super) struct Session {
    pub client: Client,
    /// It is not that of [`crate::target::ROWS`].
    pub dirty: bool,
    /// It passes for the client of the source that its last statement was of.
    pub client_of_source: bool,
    /// Its time zone is the target's.
    pub local: bool,
    /// The format description that BINLOG has.
    pub form: Option<Arc<Form>>,
    /// As which server it writes; none: as the target.
    pub server: Option<u32>,
}

impl Session {
    /// Over a connection that is as it must be.
    pub(super) fn of(client: Client) -> Session {
        Session {
            client,
            dirty: false,
            client_of_source: false,
            local: false,
            form: None,
            server: None,
        }
    }
}

/// Two units that could not run side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What gave way.
    pub later: String,
    /// What it gave way to.
    pub earlier: String,
    /// `keys`, `lock` or `error`.
    pub how: &'static str,
    /// A table and an index; tables; or a kind of error. Without values of rows: anybody may ask.
    pub what: String,
    /// The same with the values of the key, or the whole error; for the log.
    pub whole: String,
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} gave way", self.later)?;
        if !self.earlier.is_empty() {
            write!(f, " to {}", self.earlier)?;
        }
        write!(f, " ({}): {}", self.how, self.whole)
    }
}

/// Counts of all sessions.
#[derive(Debug, Default)]
pub struct Counters {
    /// Transactions of the source that are applied.
    pub transactions: AtomicU64,
    /// Transactions of the target that they took.
    pub units: AtomicU64,
    /// Transactions of the source of which the filter left out all.
    pub left_out: AtomicU64,
    /// Transactions of the source that change a table without a unique key.
    pub keyless: AtomicU64,
    /// Bytes of events.
    pub bytes: AtomicU64,
    /// Units rolled back because an earlier one conflicts by its keys.
    pub by_keys: AtomicU64,
    /// The same because an earlier one waited for a lock.
    pub by_lock: AtomicU64,
    /// The same because of an error while earlier ones were under way.
    pub by_error: AtomicU64,
    /// Units that were tried row by row.
    pub singles: AtomicU64,
    /// Rows that were put right.
    pub repaired: AtomicU64,
    /// Keys that were read ahead.
    pub read_ahead: AtomicU64,
    /// Times that connections, transactions in one or readers were changed.
    pub tuned: AtomicU64,
    /// Units that ran alone, by [`Alone`].
    pub alone: [AtomicU64; Alone::ALL.len()],
    /// Sessions.
    pub sessions: AtomicU64,
    /// Time of all workers together, in microseconds, by [`Activity`].
    pub workers: [AtomicU64; Activity::ALL.len()],
}

/// What a worker does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The target executes its unit.
    Execute,
    /// Its unit waits for its turn to commit: the order of commits costs that.
    Turn,
    /// Its unit commits.
    Commit,
    /// Its unit gave way, and waits to be executed again.
    Again,
    /// Its unit waits for earlier ones before it does what it does last.
    Last,
}

impl Activity {
    /// All of them, by name.
    pub const ALL: [(Activity, &'static str); 5] = [
        (Activity::Execute, "execute"),
        (Activity::Turn, "turn"),
        (Activity::Commit, "commit"),
        (Activity::Again, "again"),
        (Activity::Last, "last"),
    ];
}

impl Counters {
    pub(super) fn spent(&self, activity: Activity, time: Duration) {
        self.workers[activity as usize].fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Time by what the first unit that had not committed was doing, in microseconds: it is looked at
/// often, and what is dropped each time adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Nothing was there to apply, and the source had nothing.
    pub source_us: u64,
    /// Nothing was there to apply, but the source had more or was away.
    pub network_us: u64,
    /// A DDL or another statement alone.
    pub ddl_us: u64,
    /// Another unit that runs alone.
    pub alone_us: u64,
    /// It was applied again after a conflict.
    pub conflict_us: u64,
    /// It waited for a lock.
    pub lock_us: u64,
    /// The target was executing it.
    pub target_us: u64,
    /// The same, and it was reading pages from its disk.
    pub page_us: u64,
    /// The target was committing it.
    pub commit_us: u64,
    /// It waited for a worker, or to be planned.
    pub worker_us: u64,
}

impl Stalls {
    /// All of them, by name.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("source", self.source_us),
            ("network", self.network_us),
            ("ddl", self.ddl_us),
            ("alone", self.alone_us),
            ("conflict", self.conflict_us),
            ("lock", self.lock_us),
            ("target", self.target_us),
            ("page", self.page_us),
            ("commit", self.commit_us),
            ("worker", self.worker_us),
        ]
    }
}

/// What the first unit is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// There is none.
    Nothing,
    /// It runs alone.
    Alone(Alone),
    /// Its state, and how often it was begun.
    Unit(State, u32),
}

pub(super) struct Core {
    pub scheduler: Scheduler<Arc<WriteSet>>,
    /// From the first on that has not committed.
    pub units: VecDeque<Arc<Unit>>,
    /// Bytes of their events.
    bytes: usize,
    /// The position up to which every commit was confirmed.
    pub base: String,
    /// By worker.
    pub running: Vec<Option<u64>>,
    /// By worker.
    pub connections: Vec<u32>,
    /// The connection of what runs alone.
    pub alone: u32,
    /// A unit that waited for a lock, and the connection that had it, which is none of the session's.
    pub stranger: Option<(u64, u32)>,
    /// Workers that wait to apply theirs again.
    pub restarting: usize,
    /// Units whose workers wait amid executing them, for earlier ones.
    pub halfway: BTreeSet<u64>,
    pub conflicts: VecDeque<Conflict>,
    /// What may be spent on their names.
    pub names: Budget,
    /// What units cost.
    pub size: UnitSize,
    /// When a commit was confirmed last.
    last_commit: Option<Instant>,
    end: Option<End>,
}

impl Core {
    fn new(scheduler: Scheduler<Arc<WriteSet>>, workers: usize, base: String) -> Core {
        Core {
            scheduler,
            units: VecDeque::new(),
            bytes: 0,
            base,
            running: vec![None; workers],
            connections: vec![0; workers],
            alone: 0,
            stranger: None,
            restarting: 0,
            halfway: BTreeSet::new(),
            conflicts: VecDeque::new(),
            names: Budget::new(Instant::now()),
            size: UnitSize::default(),
            last_commit: None,
            end: None,
        }
    }

    pub(super) fn unit(&self, n: u64) -> Option<&Arc<Unit>> {
        let at = n.checked_sub(self.scheduler.last_committed() + 1)?;
        self.units.get(at as usize)
    }

    /// The next unit.
    pub(super) fn push(&mut self, after: After, unit: Arc<Unit>) {
        let keys = Arc::clone(&unit.keys);
        self.bytes += unit.bytes;
        self.units.push_back(unit);
        self.scheduler.push(after, keys);
    }

    /// Whether there is room for another unit: fewer than so many, and fewer bytes. One that waits
    /// for a worker is always allowed.
    pub(super) fn has_room(&self, units: usize, bytes: usize) -> bool {
        let few = self.units.len() < units;
        few && (self.bytes < bytes || self.units.len() < FIRST_WINDOW)
    }

    /// The first unit that waits and whose statements nobody makes.
    pub(super) fn not_made(&self) -> Option<Arc<Unit>> {
        let mut near = self.units.iter().take(MADE_AHEAD);
        let unit = near.find(|unit| unit.alone.is_none() && !unit.done && unit.made.claim())?;
        Some(Arc::clone(unit))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    pub(super) fn is_committing(&self) -> bool {
        self.scheduler.is_committing()
    }

    /// The unit that is under way and that no rollback takes back, if there is one: it is the first.
    pub(super) fn last_begun(&self) -> Option<Arc<Unit>> {
        let (first, _) = self.scheduler.head()?;
        let unit = self.unit(first)?;
        let begun = self.running.contains(&Some(first));
        let is_final = unit.alone.is_some_and(Alone::is_final);
        (begun && is_final).then(|| Arc::clone(unit))
    }

    /// How long it is waited for what is under way when it has ended; `None`: until that has come to its end.
    /// The next session would wait for what no rollback takes back, too, and then perhaps not know
    /// whether it was done.
    pub(super) fn patience(&self, told: bool) -> Option<Duration> {
        match (self.last_begun(), &self.end) {
            (Some(_), Some(End::Again(_) | End::Waits(_))) if !told => None,
            (Some(_), _) => Some(GRACE),
            (None, _) if self.is_committing() => Some(COMMITS),
            (None, _) => Some(Duration::ZERO),
        }
    }

    /// A commit was confirmed that was sent then. Gives the units that have committed now, with
    /// all before them.
    pub(super) fn committed(&mut self, n: u64, sent: Instant) -> Vec<Arc<Unit>> {
        // Until the one before it had committed it only waited for that.
        let now = Instant::now();
        let began = self.last_commit.map_or(sent, |last| last.max(sent));
        self.size.committed(now - began);
        self.last_commit = Some(now);
        let many = self.scheduler.committed(n);
        let gone: Vec<Arc<Unit>> = self.units.drain(..many).collect();
        self.bytes -= gone.iter().map(|unit| unit.bytes).sum::<usize>();
        if let Some(last) = gone.last() {
            self.base.clone_from(&last.position);
        }
        gone
    }

    pub(super) fn sample(&self) -> Sample {
        match (self.scheduler.head(), self.units.front()) {
            (Some((n, state)), Some(unit)) => match unit.alone {
                Some(alone) => Sample::Alone(alone),
                None => Sample::Unit(state, self.scheduler.attempts(n)),
            },
            _ => Sample::Nothing,
        }
    }

    /// Remembers who gave way.
    pub(super) fn conflict(
        &mut self,
        later: u64,
        earlier: Option<u64>,
        how: &'static str,
        name: Name,
    ) {
        let of = |n: u64| self.unit(n).map_or(String::new(), |unit| unit.name());
        let conflict = Conflict {
            later: of(later),
            earlier: earlier.map_or(String::new(), of),
            how,
            what: name.open,
            whole: name.whole,
        };
        if self.conflicts.len() == REMEMBERED {
            self.conflicts.pop_front();
        }
        self.conflicts.push_back(conflict);
    }
}

/// What the threads of a session share.
pub struct Shared {
    core: Mutex<Core>,
    /// Free workers wait here.
    pub(super) start: Condvar,
    /// Units that have executed, or were rolled back, wait here.
    pub(super) turns: [Condvar; TURNS],
    /// The planner waits here.
    pub(super) room: Condvar,
    /// Every thread has ended.
    pub(super) ended: AtomicBool,
    /// What is read ahead.
    pub(super) ahead: ReadAhead,
    /// Most transactions of the source in one of the target, now.
    pub(super) merge: AtomicUsize,
    merge_adapts: bool,
    /// Connections that apply, now.
    pub(super) threads: AtomicUsize,
    /// Connections that read ahead, now.
    pub(super) readers: AtomicUsize,
    /// The session of units that run alone, whoever applies them: temporary tables are its own.
    alone: Mutex<Option<Session>>,
    /// XA transactions that are prepared and not decided.
    pub(super) prepared: AtomicUsize,
    /// Transactions of the target's own that came back from the source in this session.
    pub(super) came_back: AtomicUsize,
    /// The planner reads the catalog, or waits for what it needs for that.
    pub(super) reading: AtomicBool,
    /// Ends its connections; none: they are ended, and any that comes later.
    cuts: Mutex<Option<Vec<Cut>>>,
}

impl Shared {
    pub(super) fn new(settings: &Settings, base: String, pages_ahead: usize) -> Shared {
        let workers = settings.threads.max();
        let mut scheduler = Scheduler::new(workers, settings.order);
        scheduler.set_limit(settings.threads.level());
        Shared {
            core: Mutex::new(Core::new(scheduler, workers, base)),
            start: Condvar::new(),
            turns: std::array::from_fn(|_| Condvar::new()),
            room: Condvar::new(),
            ended: AtomicBool::new(false),
            ahead: ReadAhead::new(pages_ahead),
            merge: AtomicUsize::new(settings.merge.unwrap_or(FIRST)),
            merge_adapts: settings.merge.is_none(),
            threads: AtomicUsize::new(settings.threads.level()),
            readers: AtomicUsize::new(settings.readers.level()),
            alone: Mutex::new(None),
            prepared: AtomicUsize::new(0),
            came_back: AtomicUsize::new(0),
            reading: AtomicBool::new(false),
            cuts: Mutex::new(Some(Vec::new())),
        }
    }

    /// One more connection.
    pub(super) fn connected(&self, cut: Cut) {
        match &mut *self.cuts.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(cuts) => {
                cuts.retain(|cut| !cut.is_over());
                cuts.push(cut);
            }
            None => cut.cut(),
        }
    }

    /// How many connections it would end.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        let cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.as_ref().map_or(0, Vec::len)
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.take().iter().flatten().for_each(Cut::cut);
    }

    /// Most units under way, planned ones included, as far as that depends on what is known of
    /// them.
    pub(super) fn window(&self, core: &Core) -> usize {
        match self.merge_adapts && !core.size.is_known() {
            true => FIRST_WINDOW,
            false => usize::MAX,
        }
    }

    /// How large units are from now on.
    pub(super) fn resize(&self, core: &Core) {
        if self.merge_adapts {
            let threads = self.threads.load(Ordering::Relaxed);
            let mut most = core.size.most(threads);
            if self.readers.load(Ordering::Relaxed) > 0 {
                most = most.min(self.ahead.most());
            }
            self.merge.store(most, Ordering::Relaxed);
        }
    }

    /// What was found best.
    pub(super) fn tune(&self, tuner: &Tuner) {
        let set = |to: &AtomicUsize, which| {
            let level = tuner.level(which);
            to.swap(level, Ordering::Relaxed) != level
        };
        if set(&self.readers, Which::Readers) {
            self.ahead.wake();
        }
        if set(&self.threads, Which::Threads) {
            let level = self.threads.load(Ordering::Relaxed);
            self.lock().scheduler.set_limit(level);
            self.start.notify_all();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'c>(
        &self,
        on: &Condvar,
        core: MutexGuard<'c, Core>,
    ) -> MutexGuard<'c, Core> {
        on.wait(core).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep_alone(&self, session: Session) {
        self.lock().alone = session.client.id;
        *self.alone() = Some(session);
    }

    /// Nobody waits here: what runs alone is one unit at a time.
    pub(super) fn alone(&self) -> MutexGuard<'_, Option<Session>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `waiter` waits for a lock of `holder`. True if the holder must give way, and its statement be ended
    /// for that. What waits for something else is told.
    pub(super) fn blocks(&self, core: &mut Core, waiter: u64, holder: u64, lock: Name) -> bool {
        let Some(how) = core.scheduler.blocked(waiter, holder) else {
            return false;
        };
        core.conflict(holder, Some(waiter), "lock", lock);
        // It may wait for its turn, or amid executing; then there is no statement.
        self.turns[holder as usize % TURNS].notify_all();
        how == Yield::Kill && !core.halfway.contains(&holder)
    }

    /// Wakes those that may commit now.
    pub(super) fn wake_ready(&self, core: &Core) {
        for n in core.scheduler.ready() {
            self.turns[n as usize % TURNS].notify_all();
        }
    }

    /// Ends the session; the first reason counts.
    pub fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.start.notify_all();
        self.room.notify_all();
        self.ahead.wake();
        self.turns.iter().for_each(Condvar::notify_all);
    }

    /// Whatever ends it already: no session may follow.
    pub fn end_for_good(&self, end: End) {
        self.lock().end = Some(end.clone());
        self.end(end);
    }

    pub(super) fn take_end(&self) -> End {
        let end = self.lock().end.take();
        end.unwrap_or_else(|| End::Again("it ended without a reason".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::tests::{rows, unit};
    use crate::schedule::Order;

    fn core() -> Core {
        Core::new(Scheduler::new(2, Order::Strict), 0, String::new())
    }

    fn some(bytes: usize) -> Arc<Unit> {
        let mut of = unit(vec![rows("plain", &[(None, Some((1, None)))])]);
        of.bytes = bytes;
        Arc::new(of)
    }

    /// What is planned is bounded by number and by bytes, and two are always allowed.
    #[test]
    fn room() {
        let mut core = core();
        for n in 0..3 {
            assert_eq!(core.has_room(9, 100), n < 2, "{n}");
            core.push(After::default(), some(150));
        }
        assert!(core.has_room(9, 1000) && !core.has_room(3, 1000));
        let first = core.scheduler.start().expect("the first one may start");
        core.scheduler.executed(first);
        assert!(core.scheduler.commit(first));
        assert_eq!(core.committed(first, Instant::now()).len(), 1);
        assert_eq!(core.bytes, 300);
    }

    /// Whose statements are made before it may start: each once, the nearest first.
    #[test]
    fn statements_are_made_ahead_once() {
        let mut core = core();
        for _ in 0..MADE_AHEAD + 1 {
            core.push(After::default(), some(1));
        }
        for at in 0..MADE_AHEAD {
            let one = core.not_made().expect("one is left");
            assert!(Arc::ptr_eq(&one, &core.units[at]));
        }
        assert!(core.not_made().is_none(), "the next one is too far away");
        let far = &core.units[MADE_AHEAD];
        let mut made = 0;
        for _ in 0..2 {
            let ops = far.made.get(|| {
                made += 1;
                Ok(Vec::new())
            });
            assert_eq!(ops.map(<[_]>::len), Ok(0));
        }
        assert_eq!(made, 1);
        assert!(!far.made.claim(), "they are made");
    }
}
