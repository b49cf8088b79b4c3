//! Watches a session: locks that stand in the way, what takes the time, how far it is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_binlog::Position;
use dromon_relay::Clock;
use dromon_relay::log::{Level, Log};

use super::naming::Name;
use super::pace::Pace;
use super::shared::{Conflict, Sample, Stalls, Waits};
use super::texts::plain;
use super::{ANOTHER, Counters, End, Settings, Shared, Status};
use crate::client::{Client, Cut};
use crate::schedule::State;
use crate::source::{Link, Told};
use crate::staleness::Staleness;
use crate::target::Channel;
use crate::tune::Knob;
use crate::unit::{Alone, Unit};
use crate::unit_size::FIRST;

/// How often it looks what the first unit is doing.
const TICK: Duration = Duration::from_millis(10);
/// A unit that has been executing for so long may wait for a lock.
const PATIENCE: Duration = Duration::from_millis(60);
/// The target itself answers no more often than this.
const LOCKS_EVERY: Duration = Duration::from_millis(110);
/// How often the target is asked whether it is there, and whose the channel is, also while nothing is to be applied.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// A target that has not answered for so long is not taken for one that is there.
const SILENT: Duration = Duration::from_secs(10);
/// The time at which the process began, in milliseconds: a relay may be behind since long before.
const BEGAN_MS: u64 = 1 << 40;
/// Seconds by which the source's clock may be ahead of the own one.
const CLOCKS: u64 = 2;
/// Seconds over which a rate is taken.
const RATE_SECONDS: usize = 10;

const LOCK_WAITS: &str = "SELECT r.trx_mysql_thread_id, b.trx_mysql_thread_id, l.lock_table, l.lock_index, l.lock_data \
    FROM information_schema.INNODB_LOCK_WAITS w \
    JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id \
    JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id \
    LEFT JOIN information_schema.INNODB_LOCKS l ON l.lock_id = w.requested_lock_id";

#[derive(Debug, Default)]
struct Stand {
    position: Position,
    /// Where this run began.
    start: Position,
    /// Where the source is, as far as is known.
    goal: Position,
    goal_known: bool,
    staleness: Staleness,
    stalls: Stalls,
    conflicts: VecDeque<Conflict>,
    link: Option<Arc<Link>>,
    /// The connection of a session that begins.
    beginning: Option<Cut>,
    shared: Option<Arc<Shared>>,
    /// (transactions, seconds): one each second.
    history: VecDeque<(u64, Instant)>,
    /// When the newest applied transaction was committed on the source, in seconds since 1970.
    stamp: u32,
    said_end: Option<String>,
    /// The position is the target's.
    attached: bool,
    /// What it waits for, and since when.
    waits: Option<(Waits, Instant)>,
    /// When the session that runs has last heard of the target.
    answered: Option<Instant>,
}

/// How it stands, over all sessions.
#[derive(Debug)]
pub struct Progress {
    /// Counts.
    pub counters: Counters,
    began: Instant,
    /// By which questions are as old as they are, whatever the machine did meanwhile.
    clock: Clock,
    state: Mutex<Stand>,
    told: AtomicU64,
    /// Of this process's last session; none if it is not known.
    pub(super) epoch: Mutex<Option<u64>>,
    /// This process has made the channel's row, and nothing was applied since.
    pub(super) is_new: AtomicBool,
    /// It was said that the target does not let columns be made wider.
    pub(super) told_of_columns: AtomicBool,
    /// The source takes upper and lower case of names for the same, if that is known.
    pub(super) any_case: Mutex<Option<bool>>,
    /// What was said of the source.
    pub(super) told_of_source: Arc<Mutex<Told>>,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            counters: Counters::default(),
            began: Instant::now(),
            clock: Clock::default(),
            state: Mutex::default(),
            told: AtomicU64::new(0),
            epoch: Mutex::default(),
            is_new: AtomicBool::new(false),
            told_of_columns: AtomicBool::new(false),
            any_case: Mutex::default(),
            told_of_source: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Stand> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything is to end.
    pub fn tell_to_end(&self) {
        self.told.store(1, Ordering::Release);
        let (shared, beginning) = {
            let state = self.lock();
            (state.shared.clone(), state.beginning.clone())
        };
        if let Some(shared) = &shared {
            shared.end(End::Told);
        }
        if let Some(cut) = beginning {
            // Nothing is begun that could not be begun again.
            cut.cut();
            shared.iter().for_each(|shared| shared.cut());
        }
    }

    /// A session begins over this connection, and may wait for the target.
    pub(super) fn beginning(&self, cut: Cut) {
        self.lock().beginning = Some(cut.clone());
        if self.is_told() {
            cut.cut();
        }
    }

    /// Whoever is told to end now ends it in good order.
    pub(super) fn has_begun(&self) {
        self.lock().beginning = None;
    }

    /// All threads and connections are there. Whether there is enough for a unit is known when that has committed.
    pub(crate) fn session_has_all(&self) {
        let waits = &mut self.lock().waits;
        waits.take_if(|(waits, _)| waits.at.is_none());
    }

    /// A session ended, and this is waited for before the next one.
    pub(crate) fn waits(&self, waits: Waits) {
        let mut state = self.lock();
        let since = match &state.waits {
            Some((before, since)) if before.what == waits.what && before.at == waits.at => *since,
            _ => Instant::now(),
        };
        state.waits = Some((waits, since));
    }

    /// Whether everything is to end.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire) != 0
    }

    pub(super) fn attach(&self, shared: &Arc<Shared>) {
        self.counters.sessions.fetch_add(1, Ordering::Relaxed);
        self.lock().shared = Some(Arc::clone(shared));
        if self.is_told() {
            shared.end(End::Told);
        }
    }

    pub(super) fn detach(&self) {
        let mut state = self.lock();
        state.shared = None;
        state.answered = None;
        state.link = None;
        state.beginning = None;
    }

    pub(super) fn link(&self, link: &Arc<Link>) {
        self.lock().link = Some(Arc::clone(link));
    }

    /// A session begins at this position of the target. Gives where it was before, if it has less now: how
    /// old that is is not known.
    pub(super) fn position(&self, position: &Position) -> Option<Position> {
        let mut state = self.lock();
        let lost = (!position.covers(&state.position)).then(|| state.position.clone());
        if lost.is_some() {
            state.staleness.went_back();
            state.stamp = 0;
        }
        if state.start.is_empty() {
            state.start = position.clone();
        }
        state.position = position.clone();
        state.attached = true;
        lost
    }

    /// Where the source is, which was asked then. `behind`: in milliseconds, of a relay behind its own
    /// primary; `None`: it does not know.
    pub fn goal(&self, asked: Instant, goal: Position, behind: Option<u64>) {
        let asked_ms = self.clock.before_ms(asked);
        let mut state = self.lock();
        // An answer that waited here while the machine slept is from before that.
        if let (Some(behind), Some(asked_ms)) = (behind, asked_ms) {
            let asked_ms = (BEGAN_MS + asked_ms).saturating_sub(behind);
            state.staleness.answered(asked_ms, goal.clone());
        }
        state.goal = goal;
        state.goal_known = true;
    }

    /// Whether this process has committed a unit.
    pub(super) fn has_applied(&self) -> bool {
        self.counters.units.load(Ordering::Relaxed) > 0
    }

    /// A unit has committed.
    pub(super) fn applied(&self, unit: &Unit) {
        let counters = &self.counters;
        let many = unit.transactions.len() as u64;
        counters.transactions.fetch_add(many, Ordering::Relaxed);
        counters.units.fetch_add(1, Ordering::Relaxed);
        counters
            .left_out
            .fetch_add(unit.left_out, Ordering::Relaxed);
        counters.keyless.fetch_add(unit.keyless, Ordering::Relaxed);
        counters
            .bytes
            .fetch_add(unit.bytes as u64, Ordering::Relaxed);
        if let Some(alone) = unit.alone {
            counters.alone[alone as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.lock();
        state.waits = None;
        for transaction in &unit.transactions {
            state.position.set(transaction.gtid);
        }
        if let Some(last) = unit.transactions.last() {
            // A clock that was wrong makes no readers believe that nothing is old.
            let of = last.group.timestamp;
            if u64::from(of) <= unix_ms() / 1000 + CLOCKS {
                state.stamp = of;
            }
        }
    }

    /// Whether the source has nothing more, as far as is known.
    pub fn is_there(&self) -> bool {
        let state = self.lock();
        // What it was refused for has perhaps no GTID.
        let refused = |link: &Arc<Link>| link.refused.load(Ordering::Acquire);
        state.goal_known
            && state.attached
            && state.position.covers(&state.goal)
            && !state.link.as_ref().is_some_and(refused)
    }

    /// Once a second.
    pub fn second(&self) {
        let done = self.counters.transactions.load(Ordering::Relaxed);
        self.clock.now_ms();
        let mut state = self.lock();
        if state.history.len() > RATE_SECONDS {
            state.history.pop_front();
        }
        state.history.push_back((done, Instant::now()));
    }

    /// What it says at the end of a run.
    pub fn set_end(&self, text: &str) {
        self.lock().said_end = Some(text.to_owned());
    }

    /// Who gave way last.
    pub fn conflict(&self) -> Option<Conflict> {
        self.lock().conflicts.back().cloned()
    }

    /// Time by cause so far.
    pub fn stalls(&self) -> Stalls {
        self.lock().stalls
    }

    /// A line for people.
    pub fn line(&self) -> String {
        let (percent, rate, eta) = self.numbers();
        let (position, waits) = {
            let state = self.lock();
            let waits = state.waits.as_ref().map(|(waits, _)| waits.to_string());
            (state.position.to_string(), waits)
        };
        let waits = waits.map_or(String::new(), |what| format!(". It waits for {what}"));
        let done = self.counters.transactions.load(Ordering::Relaxed);
        let percent = percent.map_or("?".into(), |p| format!("{p:.1}"));
        let eta = eta.map_or("?".into(), |s| format!("{s:.0}"));
        format!("{percent} %, {done} transactions, {rate:.0}/s, ETA {eta} s, {position}{waits}")
    }

    /// Percent of this run, transactions a second, seconds to go.
    fn numbers(&self) -> (Option<f64>, f64, Option<f64>) {
        let state = self.lock();
        let rate = match (state.history.front(), state.history.back()) {
            (Some((a, from)), Some((b, to))) if to > from => {
                (b - a) as f64 / (*to - *from).as_secs_f64()
            }
            _ => 0.0,
        };
        if state.goal.is_empty() {
            return (None, rate, None);
        }
        let (mut all, mut left) = (0u64, 0u64);
        for goal in state.goal.iter() {
            let at = |p: &Position| p.get(goal.domain).map_or(0, |g| g.seqno).min(goal.seqno);
            all += goal.seqno - at(&state.start);
            left += goal.seqno - at(&state.position);
        }
        let percent = match all {
            0 => 100.0,
            // A target that lost its last commits is where it was before this run.
            _ => 100.0 * all.saturating_sub(left) as f64 / all as f64,
        };
        let eta = match left {
            0 => Some(0.0),
            _ if rate > 0.0 => Some(left as f64 / rate),
            _ => None,
        };
        (Some(percent), rate, eta)
    }

    /// All of it, for programs.
    pub fn status(&self, settings: &Settings) -> Status {
        let (percent, rate, eta_s) = self.numbers();
        let c = &self.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let lag_ms = self.lag_ms();
        let state = self.lock();
        let link = state.link.as_ref();
        let level = |of: fn(&Shared) -> &AtomicUsize, first: &Knob| {
            let shared = state.shared.as_ref();
            shared.map_or(first.level(), |s| of(s).load(Ordering::Relaxed))
        };
        Status {
            channel: settings.channel.clone(),
            source: settings.source.address.clone(),
            target: settings.target.address.clone(),
            mode: settings.mode.to_string(),
            threads: level(|s| &s.threads, &settings.threads),
            merge: state
                .shared
                .as_ref()
                .map_or(settings.merge.unwrap_or(FIRST), |s| {
                    s.merge.load(Ordering::Relaxed)
                }),
            readers: level(|s| &s.readers, &settings.readers),
            tuned: get(&c.tuned),
            read_ahead: get(&c.read_ahead),
            connected: link.is_some_and(|l| l.connected.load(Ordering::Relaxed)),
            applying: state.shared.is_some()
                && state.answered.is_none_or(|at| at.elapsed() < SILENT),
            position: state.position.clone(),
            goal: state.goal.clone(),
            caught_up: state.goal_known && state.position.covers(&state.goal),
            lag_ms,
            percent,
            rate,
            eta_s,
            uptime: self.began.elapsed(),
            sessions: get(&c.sessions),
            transactions: get(&c.transactions),
            units: get(&c.units),
            left_out: get(&c.left_out),
            keyless: get(&c.keyless),
            bytes: get(&c.bytes),
            waiting: link.map_or(0, |l| l.waiting.load(Ordering::Relaxed)),
            prepared: level(|s| &s.prepared, &Knob::fixed(0)),
            came_back: level(|s| &s.came_back, &Knob::fixed(0)),
            by_keys: get(&c.by_keys),
            by_lock: get(&c.by_lock),
            by_error: get(&c.by_error),
            conflicts: state.conflicts.iter().cloned().collect(),
            singles: get(&c.singles),
            repaired: get(&c.repaired),
            alone: std::array::from_fn(|n| get(&c.alone[n])),
            stalls: state.stalls,
            workers: std::array::from_fn(|n| get(&c.workers[n])),
            waits_for: state.waits.as_ref().map(|(waits, _)| waits.to_string()),
            waits: state.waits.as_ref().map(|(_, since)| since.elapsed()),
            ended: state.said_end.clone(),
        }
    }

    /// How old what is applied is at most.
    pub(super) fn lag_ms(&self) -> Option<u64> {
        let now_ms = BEGAN_MS + self.clock.now_ms();
        let mut state = self.lock();
        let Stand {
            staleness,
            position,
            stamp,
            ..
        } = &mut *state;
        // Until anything that the source said is applied, the clocks must do.
        let by_clocks = || unix_ms().saturating_sub(u64::from(*stamp) * 1000);
        match staleness.age_ms(now_ms, position) {
            Some(age) => Some(age),
            None => (*stamp > 0).then(by_clocks),
        }
    }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

/// How long the head has been what it is.
struct Head {
    number: u64,
    since: Instant,
    locked: bool,
}

/// Until the session ends. `epoch`: the session's.
pub(super) fn run(
    mut client: Client,
    (channel, epoch): (&Channel, u64),
    shared: &Shared,
    settings: &Settings,
    progress: &Progress,
    log: &Log,
) {
    let mut pace = Pace::new(settings, progress);
    let mut head = Head {
        number: 0,
        since: Instant::now(),
        locked: false,
    };
    let mut last = Instant::now();
    let mut looked = Instant::now();
    let mut alive = Instant::now();
    loop {
        progress.lock().answered = Some(Instant::now());
        thread::sleep(TICK);
        let (sample, number, ended) = {
            let mut core = shared.lock();
            if core.has_ended() {
                let conflicts = std::mem::take(&mut core.conflicts);
                progress.lock().conflicts = conflicts;
            }
            let number = core.scheduler.last_committed() + 1;
            (core.sample(), number, core.has_ended())
        };
        if ended {
            return;
        }
        let now = Instant::now();
        if number != head.number {
            head = Head {
                number,
                since: now,
                locked: false,
            };
        }
        let reading = shared.reading.load(Ordering::Relaxed);
        let passed = (now - last).as_micros() as u64;
        last = now;
        let pages = pace.reads_pages;
        count(progress, sample, head.locked, reading, pages, passed);
        if let Err(error) = pace.tick(&mut client, shared, progress, sample) {
            let why = format!("the target cannot be asked how it is: {error}");
            return shared.end(End::again(&error, why));
        }
        // Nobody else hears that it is gone while nothing comes: what is applied would be taken for as new as before. Nor
        // that another replica has begun, if that does not see these connections: over another node of a cluster.
        if alive.elapsed() > ALIVE_EVERY {
            alive = Instant::now();
            match channel.epoch(&mut client) {
                Ok(Some(newest)) if newest > epoch => {
                    return shared.end(End::Fatal(ANOTHER.into()));
                }
                // Without its row, or with an older one that was put back, it ends when something comes.
                Ok(_) => {}
                Err(error) => {
                    let why = format!("the target does not answer any more: {error}");
                    return shared.end(End::again(&error, why));
                }
            }
        }
        let may_wait = matches!(sample, Sample::Unit(State::Running, _) | Sample::Alone(_));
        if may_wait && head.since.elapsed() > PATIENCE && looked.elapsed() > LOCKS_EVERY {
            looked = now;
            match look(&mut client, shared, log) {
                Ok(locked) => head.locked = locked,
                Err(error) => {
                    let why = format!("the target's locks cannot be seen: {error}");
                    return shared.end(End::again(&error, why));
                }
            }
            let conflicts = shared.lock().conflicts.clone();
            progress.lock().conflicts = conflicts;
        }
    }
}

fn count(progress: &Progress, sample: Sample, locked: bool, reading: bool, pages: bool, us: u64) {
    let mut state = progress.lock();
    // It has more, as far as is known, or cannot be asked.
    let has_more = state.goal_known && !state.position.covers(&state.goal);
    let away = !state
        .link
        .as_ref()
        .is_some_and(|link| link.connected.load(Ordering::Relaxed));
    let s = &mut state.stalls;
    let counter = match sample {
        Sample::Nothing if reading => &mut s.ddl_us,
        Sample::Nothing if has_more || away => &mut s.network_us,
        Sample::Nothing => &mut s.source_us,
        Sample::Alone(Alone::Statement) => &mut s.ddl_us,
        Sample::Alone(_) => &mut s.alone_us,
        Sample::Unit(State::Waiting, 0) => &mut s.worker_us,
        Sample::Unit(state, _) if state.has_executed() => &mut s.commit_us,
        Sample::Unit(..) if locked => &mut s.lock_us,
        Sample::Unit(_, attempts) if attempts > 1 => &mut s.conflict_us,
        Sample::Unit(..) if pages => &mut s.page_us,
        Sample::Unit(..) => &mut s.target_us,
    };
    *counter += us;
}

/// A lock as the target names it: table, index, and the values of the record's key, as far as
/// it tells them.
fn lock_name(table: &str, index: &str, data: &str) -> Name {
    let name = Name::from(format!("{table} {index}").trim_end());
    match data.is_empty() {
        true => name,
        false => name.with(&plain(data.as_bytes())),
    }
}

/// Looks for units that wait for locks of later ones, and lets the later ones give way. Gives
/// whether anything of ours waits.
fn look(
    client: &mut Client,
    shared: &Shared,
    log: &Log,
) -> Result<bool, crate::client::ClientError> {
    let rows = client.rows(LOCK_WAITS)?;
    let mut kill = Vec::new();
    let mut any = false;
    {
        let mut core = shared.lock();
        for row in rows {
            let text = |n: usize| {
                let cell = row.get(n).and_then(|c| c.as_deref()).unwrap_or_default();
                String::from_utf8_lossy(cell).into_owned()
            };
            let (waits, holds) = (text(0).parse().unwrap_or(0), text(1).parse().unwrap_or(0));
            let unit_of = |id: u32| {
                let at = core.connections.iter().position(|c| *c == id)?;
                core.running[at]
            };
            let (waiter, holder) = (unit_of(waits), unit_of(holds));
            any |= waiter.is_some();
            let is_ours = |id: u32| id == core.alone || core.connections.contains(&id);
            if is_ours(waits) && !is_ours(holds) {
                // What runs alone is the first one.
                let first = core.scheduler.last_committed() + 1;
                core.stranger = Some((waiter.unwrap_or(first), holds));
            }
            let (Some(waiter), Some(holder)) = (waiter, holder) else {
                continue;
            };
            let what = lock_name(&text(2), &text(3), &text(4));
            if shared.blocks(&mut core, waiter, holder, what) {
                kill.push(holds);
            }
        }
    }
    for id in kill {
        // It may have ended by itself meanwhile.
        if let Err(error) = client.query(format!("KILL QUERY {id}").as_bytes())
            && error.is_lost()
        {
            log.say(
                Level::Warning,
                &format!("A statement could not be ended: {error}."),
            );
            return Err(error);
        }
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::tests::unit;
    use crate::fake_target::{Fake, Reply, settings};

    /// Parts of a millisecond are not dropped each time that it is looked.
    #[test]
    fn time_adds_up() {
        let progress = Progress::default();
        for _ in 0..1000 {
            let sample = Sample::Unit(State::Running, 1);
            count(&progress, sample, false, false, false, 900);
        }
        assert_eq!(progress.stalls().target_us, 900_000);
    }

    /// A target that comes back without its last commits.
    #[test]
    fn percent_of_a_target_that_went_back() {
        let progress = Progress::default();
        let at = |seqno: u64| -> Position { format!("0-1-{seqno}").parse().expect("a position") };
        progress.goal(Instant::now(), at(20), None);
        for (seqno, wanted) in [(10, 0.0), (15, 50.0), (5, 0.0), (20, 100.0)] {
            let _ = progress.position(&at(seqno));
            assert_eq!(progress.numbers().0, Some(wanted), "{seqno}");
        }
    }

    /// One that hangs is not ready, though its connections stand.
    #[test]
    fn a_target_that_hangs() {
        let fake = Fake::new(|_| None);
        let settings = settings(&fake, &[]);
        let progress = Progress::default();
        let applying = || progress.status(&settings).applying;
        assert!(!applying());
        let shared = Arc::new(Shared::new(&settings, String::new(), 64));
        progress.attach(&shared);
        assert!(applying());
        progress.lock().answered = Some(Instant::now());
        assert!(applying());
        // The clock of a machine that was just started does not go back so far.
        if let Some(before) = Instant::now().checked_sub(SILENT) {
            progress.lock().answered = Some(before);
            assert!(!applying());
        }
        progress.detach();
        progress.attach(&shared);
        assert!(applying(), "that was another session");
    }

    /// What is waited for is said until it is there: for a session when that is under way, for a unit when it has
    /// committed. How long counts over all sessions.
    #[test]
    fn what_it_waits_for() {
        let waits = |at: Option<&str>| Waits {
            what: "room",
            at: at.map(String::from),
            why: "a value of a row".into(),
        };
        let fake = Fake::new(|_| None);
        let settings = settings(&fake, &[]);
        let progress = Progress::default();
        let said = || progress.status(&settings).waits_for;
        assert_eq!(said(), None);
        progress.waits(waits(None));
        assert_eq!(said().as_deref(), Some("room"));
        progress.session_has_all();
        assert_eq!(said(), None);
        progress.waits(waits(Some("0-1-5")));
        let since = progress.lock().waits.as_ref().map(|(_, since)| *since);
        progress.session_has_all();
        progress.waits(waits(Some("0-1-5")));
        assert_eq!(said().as_deref(), Some("room (for 0-1-5)"));
        let now = progress.lock().waits.as_ref().map(|(_, since)| *since);
        assert_eq!(now, since);
        progress.applied(&unit(Vec::new()));
        assert_eq!(said(), None);
        assert!(!progress.line().contains("waits"));
    }

    /// What the source was refused for may have no GTID, and is not passed over.
    #[test]
    fn who_is_refused_has_not_caught_up() {
        let progress = Progress::default();
        let at = |seqno: u64| -> Position { format!("0-1-{seqno}").parse().expect("a position") };
        let link = Arc::new(Link::default());
        progress.link(&link);
        progress.goal(Instant::now(), at(10), None);
        let _ = progress.position(&at(9));
        assert!(!progress.is_there());
        let _ = progress.position(&at(10));
        assert!(progress.is_there());
        link.refused.store(true, Ordering::Release);
        assert!(!progress.is_there());
    }

    /// Locks of connections that are none of the session's: they are remembered, and nobody is ended for them.
    #[test]
    fn who_has_the_lock() {
        let waits = Arc::new(Mutex::new(("5", "4711")));
        let asked = Arc::clone(&waits);
        let fake = Fake::new(move |text| {
            let (waits, holds) = *asked.lock().expect("nobody panics");
            let row = [waits, holds, "`d`.`t`", "PRIMARY", "7"].map(String::from);
            (text == LOCK_WAITS).then(|| Reply::Row(row.to_vec()))
        });
        let settings = settings(&fake, &[]);
        let mut client = Client::connect(&settings.target).expect("a target");
        let shared = Shared::new(&settings, String::new(), 64);
        {
            let mut core = shared.lock();
            (core.connections[0], core.running[0], core.alone) = (5, Some(3), 6);
        }
        for (pair, wanted) in [
            (("5", "4711"), Some((3, 4711))),
            (("6", "4711"), Some((1, 4711))),
            (("5", "6"), None),
            (("4711", "5"), None),
            (("4711", "4712"), None),
        ] {
            *waits.lock().expect("nobody panics") = pair;
            shared.lock().stranger = None;
            look(&mut client, &shared, &Log::terminal()).expect("answers");
            assert_eq!(shared.lock().stranger, wanted, "{pair:?}");
        }
        assert!(fake.said().iter().all(|text| text == LOCK_WAITS));
    }

    /// The same is as old as what it lacks, until an answer of the source is reached.
    #[test]
    fn lag_of_a_target_that_went_back() {
        let progress = Progress::default();
        let at = |seqno: u64| -> Position { format!("0-1-{seqno}").parse().expect("a position") };
        assert_eq!(progress.position(&at(10)), None);
        progress.goal(Instant::now(), at(10), Some(0));
        progress.lock().stamp = 1 << 30;
        assert!(progress.lag_ms().is_some());
        assert_eq!(progress.position(&at(10)), None);
        assert!(progress.lag_ms().is_some(), "it has what it had");
        assert_eq!(progress.position(&at(4)), Some(at(10)));
        assert_eq!(progress.lag_ms(), None);
        progress.goal(Instant::now(), at(12), Some(0));
        assert_eq!(progress.lag_ms(), None);
        assert_eq!(progress.position(&at(12)), None);
        assert!(progress.lag_ms().is_some());
    }

    /// The time for which the machine slept counts, though the clock that nobody sets stood still, until an answer
    /// to a question from behind it is reached.
    #[test]
    fn lag_of_a_machine_that_slept() {
        let progress = Progress::default();
        let hour = 3_600_000;
        let at = |seqno: u64| -> Position { format!("0-1-{seqno}").parse().expect("a position") };
        let sleeps = || progress.clock.sleeps(3_600_000);
        let _ = progress.position(&at(10));
        progress.goal(Instant::now(), at(10), Some(0));
        assert!(progress.lag_ms().is_some_and(|lag| lag < hour));
        sleeps();
        assert!(progress.lag_ms().is_some_and(|lag| lag >= hour));
        // What was asked before says nothing of now.
        let asked = Instant::now();
        sleeps();
        progress.goal(asked, at(10), Some(0));
        assert!(progress.lag_ms().is_some_and(|lag| lag >= 2 * hour));
        // Of what is asked now nothing is known until it is reached.
        thread::sleep(Duration::from_millis(3));
        progress.goal(Instant::now(), at(20), Some(0));
        assert!(progress.lag_ms().is_some_and(|lag| lag >= 2 * hour));
        let _ = progress.position(&at(20));
        assert!(progress.lag_ms().is_some_and(|lag| lag < hour));
    }

    /// A transaction that was committed under a clock that was ahead is not what all behind it is as old as.
    #[test]
    fn lag_behind_a_transaction_from_the_future() {
        let progress = Progress::default();
        let now = unix_ms() / 1000;
        for (timestamp, wanted) in [
            (now - 3600, 3_600_000),
            (now + 3600, 3_600_000),
            (now - 60, 60_000),
        ] {
            let mut of = unit(vec![Vec::new()]);
            of.transactions[0].group.timestamp = timestamp as u32;
            progress.applied(&of);
            let lag = progress.lag_ms().expect("it is known by the clocks");
            assert!((wanted..wanted + 30_000).contains(&lag), "{lag}");
        }
    }

    #[test]
    fn a_lock_has_a_name() {
        let name = lock_name("`d`.`t`", "PRIMARY", "5, 'x'");
        assert_eq!(name.whole, "`d`.`t` PRIMARY (5, 'x')");
        assert_eq!(name.open, "`d`.`t` PRIMARY");
        // What is waited for may be gone when it is looked up.
        assert_eq!(lock_name("`d`.`t`", "", "").whole, "`d`.`t`");
        let long = lock_name("t", "i", &"ä".repeat(101));
        assert_eq!(long.whole, format!("t i ({})", "ä".repeat(100)));
    }
}
