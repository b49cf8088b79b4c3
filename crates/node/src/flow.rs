//! Flow control: who is behind, and whether this node must wait for it.
//!
//! A member whose apply queue grows above `gcs.fc_limit` (scaled by the square
//! root of the number of members unless `gcs.fc_single_primary`) asks for a
//! pause, if that lasts (`patience.rs`); below `gcs.fc_factor` times that it takes
//! the wish back. One that catches up may have more, see `catching_up.rs`. Members
//! that do not count (joiners, donors, desynced ones) never hold the others.
//!
//! Before it comes to that, origins slow down: from half the limit on, each
//! write set waits a little, the longer the fuller the fullest queue is, but no
//! longer than that member needs for its whole queue: a limit counts events, and
//! sixteen of them may be a millisecond's work.
//!
//! A member whose log takes less than the cluster writes has a short queue: one that lacks much of the log
//! counts here as one that asks for a pause (`lags.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dromon_gates::Waiter;
use dromon_writeset::{Seqno, Uuid};

use crate::catching_up::CatchingUp;
use crate::lags::{Lacks, Lags};
use crate::messages::Progress;
use crate::patience::Patience;
use crate::quarantine::Seen;
use crate::status::PausedTime;

/// A wish older than this is void.
const REPORT_AGE_MAX: Duration = Duration::from_secs(1);

/// How long a write set waits at most when the fullest queue is at its limit.
const SLOW_MAX: Duration = Duration::from_millis(10);
/// Over about this time a member's rate is averaged, in seconds.
const RATE_OVER: f64 = 0.5;

/// What is known of one member's progress.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The last report.
    pub progress: Progress,
    /// When it came.
    pub at: Instant,
    /// Events it finishes in a second while it has some; 0: not known.
    pub rate: f64,
}

impl Reported {
    /// The rate when `next` comes `after` this report.
    fn next_rate(&self, next: &Progress, after: Duration) -> f64 {
        let busy = self.progress.queue > 0 && next.queue > 0;
        let (seconds, events) = (
            after.as_secs_f64(),
            next.released.saturating_sub(self.progress.released),
        );
        if !busy || seconds <= 0.0 || events < 0 {
            return self.rate;
        }
        let now = events as f64 / seconds;
        if self.rate == 0.0 {
            return now;
        }
        self.rate + (now - self.rate) * (1.0 - (-seconds / RATE_OVER).exp())
    }

    fn slow_down(&self, limits: FlowLimits) -> Duration {
        limits.slow_down(self.progress.queue, self.rate)
    }
}

/// The wishes of all members, this one included.
#[derive(Debug, Default)]
pub struct Flow {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    reports: BTreeMap<Uuid, Reported>,
    /// Members that count, with their names.
    counted: BTreeMap<Uuid, String>,
    /// Members that catch up: only their wish for a pause counts.
    catching_up: BTreeMap<Uuid, String>,
    /// But not here.
    only_synced: bool,
    /// This node's own catching up.
    own: Option<CatchingUp>,
    /// Counted members that nobody here waits for.
    quarantined: BTreeSet<Uuid>,
    opened: Opened,
    paused: PausedTime,
    sent: u64,
    received: u64,
    waiting: Vec<Arc<Waiter>>,
    own_stop: bool,
    own_patience: Patience,
    /// Members that lack some of the log that this node has delivered.
    lags: Lags,
}

/// When the node was opened: time counts from there.
#[derive(Debug)]
struct Opened(Instant);

impl Default for Opened {
    fn default() -> Self {
        Opened(Instant::now())
    }
}

/// Figures for the status.
#[derive(Clone, Debug, Default)]
pub struct FlowStats {
    /// How long origins were held, or slowed, since the node was opened.
    pub paused: Duration,
    /// Fraction of the time since then, or since the last reset.
    pub paused_fraction: f64,
    /// Pause wishes sent.
    pub sent: u64,
    /// Pause wishes received, own ones included.
    pub received: u64,
    /// Whether origins are stopped now.
    pub active: bool,
    /// Whether this node asks for it.
    pub requested: bool,
    /// Names of the members waited for.
    pub waiting_for: Vec<String>,
    /// Names of the counted members not waited for.
    pub quarantined: Vec<String>,
}

/// Where this node's queue stands against the limits.
#[derive(Clone, Copy, Debug)]
pub struct FlowLimits {
    /// Ask for a pause above this.
    pub upper: usize,
    /// Take the wish back at or below this.
    pub lower: usize,
}

impl FlowLimits {
    /// Limits for `members` members.
    pub fn new(limit: u64, factor: f64, single_primary: bool, members: usize) -> Self {
        let scale = if single_primary {
            1.0
        } else {
            (members.max(1) as f64).sqrt()
        };
        let upper = limit as f64 * scale;
        FlowLimits {
            upper: upper as usize,
            lower: (upper * factor) as usize,
        }
    }

    /// With so many events more.
    pub fn beyond(self, allowed: usize) -> Self {
        FlowLimits {
            upper: self.upper.saturating_add(allowed),
            lower: self.lower.saturating_add(allowed),
        }
    }

    /// Of a member that asks for nothing, and takes back what it has asked for.
    pub const NONE: FlowLimits = FlowLimits {
        upper: usize::MAX,
        lower: usize::MAX,
    };

    /// How long an origin lets one write set wait while the queue of some member,
    /// that finishes `rate` events in a second (0: not known), holds `queue`:
    /// nothing up to half the limit, then with the square of the rest.
    pub fn slow_down(&self, queue: u64, rate: f64) -> Duration {
        let upper = self.upper.max(2) as f64;
        let over = (queue as f64 - upper / 2.0) / (upper / 2.0);
        let work = queue as f64 / rate; // infinite if not known
        let most = SLOW_MAX.as_secs_f64().min(work);
        if over <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(most * over.min(1.0).powi(2))
    }
}

impl Flow {
    /// Says which members count, and which catch up. Reports of others are kept, not heeded.
    pub fn set_counted(
        &self,
        counted: BTreeMap<Uuid, String>,
        catching_up: BTreeMap<Uuid, String>,
        all: &[Uuid],
    ) {
        let mut inner = self.lock();
        inner.reports.retain(|u, _| all.contains(u));
        inner.counted = counted;
        inner.catching_up = catching_up;
        inner.update();
    }

    /// Says whether this node's writers wait for synced members only.
    pub fn set_only_synced(&self, only: bool) {
        let mut inner = self.lock();
        inner.only_synced = only;
        inner.update();
    }

    /// Says whether this node, `own`, catches up, and how many events wait here.
    pub fn catch_up(&self, own: &Uuid, catches_up: bool, queue: usize) {
        let mut inner = self.lock();
        if !catches_up {
            inner.own = None;
            return;
        }
        let now = Instant::now();
        let rate = inner.reports.get(own).map_or(0.0, |r| r.rate);
        let member = inner.own.get_or_insert_with(|| CatchingUp::new(now));
        member.look(queue, rate, now);
    }

    /// How many events may wait here beyond the limits while this node catches up. `None`: any number.
    pub fn allowed(&self) -> Option<usize> {
        self.lock().own.as_ref().and_then(CatchingUp::allowed)
    }

    /// Says for whom this node's writers do not wait, though they count.
    pub fn set_quarantined(&self, quarantined: BTreeSet<Uuid>) {
        let mut inner = self.lock();
        inner.quarantined = quarantined;
        inner.update();
    }

    /// Says what the other members lack. Who lacks more than `limit` bytes is waited for.
    pub fn set_lacks(&self, lacks: &[Lacks], limit: u64) {
        let mut inner = self.lock();
        inner.lags.look(lacks, limit, Instant::now());
        inner.update();
    }

    /// Whether large payloads wait for members that lack much of the log.
    pub fn holds_payloads(&self) -> bool {
        let inner = self.lock();
        let mut heard = inner.heard().filter(|(u, _)| inner.waited_for(u));
        heard.any(|(u, _)| inner.lags.much(u))
    }

    /// Whether `uuid` is waited for as it lacks too much of the log.
    pub fn lacks_log(&self, uuid: &Uuid) -> bool {
        self.lock().lacks_log(uuid)
    }

    /// Whether nobody here waits for `uuid`.
    pub fn is_quarantined(&self, uuid: &Uuid) -> bool {
        self.lock().quarantined.contains(uuid)
    }

    /// Every counted member that is heard, and whether it holds the others: it
    /// asks for a pause, or slows them down by a quarter of what it could. And
    /// those that catch up, if this node's writers wait for them.
    pub fn look(&self, limits: FlowLimits) -> Vec<Seen> {
        let inner = self.lock();
        let counted = inner.heard().map(|(uuid, r)| Seen {
            uuid: *uuid,
            holds: inner.asks(uuid) || r.slow_down(limits) >= SLOW_MAX / 4,
            caught_up: !inner.asks(uuid)
                && r.progress.queue <= limits.upper as u64 / 4
                && inner.lags.little(uuid),
        });
        // Seen all the while, or its account would begin anew with each wish.
        let catching_up = inner.catching_up.keys().filter(|_| !inner.only_synced);
        let catching_up = catching_up.map(|uuid| Seen {
            uuid: *uuid,
            holds: inner.asks(uuid),
            caught_up: false,
        });
        counted.chain(catching_up).collect()
    }

    /// A member reported. Answers false for a report older than one seen.
    pub fn report(&self, progress: Progress) -> bool {
        let mut inner = self.lock();
        let before = inner.reports.get(&progress.uuid);
        if before.is_some_and(|r| r.progress.number >= progress.number) {
            return false;
        }
        let was = before.is_some_and(|r| r.progress.stop);
        let at = Instant::now();
        let rate = before.map_or(0.0, |r| r.next_rate(&progress, at - r.at));
        if progress.stop && !was {
            inner.received += 1;
        }
        let reported = Reported { progress, at, rate };
        inner.reports.insert(reported.progress.uuid, reported);
        inner.update();
        true
    }

    /// Decides this node's own wish, which bears a long queue for `most` in a row. Answers
    /// whether it changed: then the others must be told now.
    /// At an `end` of a large transaction it does not begin to ask for a pause, unless the queue is far too long.
    pub fn own(&self, queue: usize, limits: FlowLimits, end: bool, most: Duration) -> bool {
        let mut inner = self.lock();
        let queued = (queue, limits.upper);
        let bears = (inner.own_patience).bears(queued, end, most, Instant::now());
        let stop = if inner.own_stop {
            queue > limits.lower
        } else {
            !bears
        };
        if stop == inner.own_stop {
            return false;
        }
        inner.own_stop = stop;
        inner.sent += u64::from(stop);
        true
    }

    /// Whether this node's account counts the time since it was looked at as time above the limit.
    pub fn counts_above(&self) -> bool {
        self.lock().own_patience.counts_above()
    }

    /// This node's own wish.
    pub fn own_stop(&self) -> bool {
        self.lock().own_stop
    }

    /// Forgets everything: the node has left.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.reports.clear();
        inner.counted.clear();
        inner.catching_up.clear();
        inner.own = None;
        inner.quarantined.clear();
        inner.own_stop = false;
        inner.own_patience = Patience::default();
        inner.lags = Lags::default();
        inner.update();
    }

    /// Waits until no counted member asks for a pause, and a little more if one
    /// is close to that. Answers false if the waiter was interrupted first.
    pub fn wait(&self, waiter: &Arc<Waiter>, limits: impl FnOnce() -> FlowLimits) -> bool {
        if !self.wait_unpaused(waiter) {
            return false;
        }
        let fullest = self.lock().fullest_queue();
        let Some((queue, rate)) = fullest else {
            return true;
        };
        let time = limits().slow_down(queue, rate);
        time.is_zero() || self.slow(waiter, time)
    }

    /// Waits for `time`, which counts as held; false if interrupted.
    fn slow(&self, waiter: &Arc<Waiter>, time: Duration) -> bool {
        self.lock().slowed(true);
        let waited = sleep(waiter, time);
        self.lock().slowed(false);
        waited
    }

    /// Waits until no counted member asks for a pause. Answers false if the waiter
    /// was interrupted first.
    pub fn wait_unpaused(&self, waiter: &Arc<Waiter>) -> bool {
        let mut inner = self.lock();
        loop {
            if !inner.paused.stopped() {
                return true;
            }
            if waiter.interrupted() {
                return false;
            }
            inner.waiting.push(waiter.clone());
            drop(inner);
            waiter.wait(true, None);
            inner = self.lock();
            inner.waiting.retain(|w| !Arc::ptr_eq(w, waiter));
        }
    }

    /// The lowest position that a counted member which is heard has finished.
    pub fn lowest_released(&self) -> Option<Seqno> {
        let inner = self.lock();
        inner
            .heard()
            .filter(|(u, _)| !inner.quarantined.contains(u))
            .map(|(_, r)| r.progress.released)
            .min()
    }

    /// The same of all members but `own`; `None`: nobody else counts. If none of
    /// them is heard, it is this node that is cut off.
    pub fn lowest_released_but(&self, own: &Uuid) -> Option<Seqno> {
        let inner = self.lock();
        let other = |u: &Uuid| u != own && !inner.quarantined.contains(u);
        let heard = inner.heard().filter(|(u, _)| other(u));
        let lowest = heard.map(|(_, r)| r.progress.released).min();
        let some = inner.counted.keys().any(other);
        lowest.or(some.then_some(Seqno::MIN))
    }

    /// The newest place ahead for which every counted member that is heard is ready.
    pub fn lowest_ready(&self) -> Option<Seqno> {
        let inner = self.lock();
        inner
            .heard()
            .filter(|(u, _)| !inner.quarantined.contains(u))
            .map(|(_, r)| r.progress.ready.max(r.progress.released))
            .min()
    }

    /// The last report of every member.
    pub fn reports(&self) -> Vec<Reported> {
        self.lock().reports.values().cloned().collect()
    }

    /// A member whose last report is old holds nobody: it may be gone.
    pub fn expire(&self) {
        self.lock().update();
    }

    /// This node itself was away: nobody's silence during it counts. The last wish for a pause of one that
    /// is dead holds the others once more, as long as a wish does.
    pub fn forgive_silence(&self) {
        let now = Instant::now();
        for report in self.lock().reports.values_mut() {
            report.at = now;
        }
    }

    /// Whether the log of `uuid` waits for its disk; `None` if it never spoke.
    pub fn durable(&self, uuid: &Uuid) -> Option<bool> {
        let inner = self.lock();
        inner.reports.get(uuid).map(|r| r.progress.durable)
    }

    /// How long `uuid` has been silent; `None` if it never spoke.
    pub fn silent(&self, uuid: &Uuid) -> Option<Duration> {
        self.lock().reports.get(uuid).map(|r| r.at.elapsed())
    }

    /// The lowest `safe` of the given members; `None` if one has not reported.
    pub fn safe(&self, members: &[Uuid]) -> Option<Seqno> {
        let inner = self.lock();
        let mut low = None;
        for uuid in members {
            let safe = inner.reports.get(uuid)?.progress.safe;
            low = Some(low.map_or(safe, |l: Seqno| l.min(safe)));
        }
        low
    }

    /// Figures for the status.
    pub fn stats(&self) -> FlowStats {
        let inner = self.lock();
        let now = inner.now();
        FlowStats {
            paused: inner.paused.total(now),
            paused_fraction: inner.paused.fraction(now),
            sent: inner.sent,
            received: inner.received,
            active: inner.paused.stopped(),
            requested: inner.own_stop,
            waiting_for: inner.holders().map(|(_, name)| name.clone()).collect(),
            quarantined: {
                let names = inner.counted.iter();
                let names = names.filter(|(u, _)| inner.quarantined.contains(u));
                names.map(|(_, name)| name.clone()).collect()
            },
        }
    }

    /// Starts the averages anew.
    pub fn reset_stats(&self) {
        let mut inner = self.lock();
        let now = inner.now();
        inner.paused.reset(now);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each method leaves the maps whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for `time`; false if interrupted.
fn sleep(waiter: &Arc<Waiter>, time: Duration) -> bool {
    let until = Instant::now() + time;
    while !waiter.interrupted() {
        if Instant::now() >= until {
            return true;
        }
        waiter.wait(true, Some(until));
    }
    false
}

impl Inner {
    /// Reports of members that count and are heard.
    fn heard(&self) -> impl Iterator<Item = (&Uuid, &Reported)> {
        let counted = |uuid| self.counted.contains_key(uuid);
        let reports = self.reports.iter();
        reports.filter(move |(u, r)| counted(*u) && r.at.elapsed() < REPORT_AGE_MAX)
    }

    /// The fullest queue of a member that counts and is heard, and its rate, if
    /// it holds anything.
    fn fullest_queue(&self) -> Option<(u64, f64)> {
        let counted = self.heard().filter(|(u, _)| self.waited_for(u));
        let queues = counted.map(|(_, r)| (r.progress.queue, r.rate));
        queues.max_by_key(|q| q.0).filter(|q| q.0 > 0)
    }

    fn holders(&self) -> impl Iterator<Item = (&Uuid, &String)> {
        let counted = self.counted.iter().filter(|(u, _)| self.waited_for(u));
        let counted = counted.filter(|(u, _)| self.asks(u));
        counted.chain(self.holding_back())
    }

    /// Members that catch up and ask for a pause, if that counts here.
    fn holding_back(&self) -> impl Iterator<Item = (&Uuid, &String)> {
        let catching_up = self.catching_up.iter();
        catching_up.filter(|(u, _)| !self.only_synced && self.asks(u))
    }

    fn asks(&self, uuid: &Uuid) -> bool {
        let report = self.reports.get(uuid);
        let stop = |r: &Reported| r.progress.stop || self.lacks_log(uuid);
        report.is_some_and(|r| stop(r) && r.at.elapsed() < REPORT_AGE_MAX)
    }

    fn lacks_log(&self, uuid: &Uuid) -> bool {
        self.counted.contains_key(uuid) && self.lags.too_much(uuid)
    }

    fn waited_for(&self, uuid: &Uuid) -> bool {
        self.counted.contains_key(uuid) && !self.quarantined.contains(uuid)
    }

    /// Since the node was opened.
    fn now(&self) -> Duration {
        self.opened.0.elapsed()
    }

    fn slowed(&mut self, begins: bool) {
        let now = self.now();
        match begins {
            true => self.paused.slow(now),
            false => self.paused.unslow(now),
        }
    }

    fn update(&mut self) {
        let held = self.holders().next().is_some();
        let now = self.now();
        match (held, self.paused.stopped()) {
            (true, false) => self.paused.pause(now),
            (false, true) => {
                self.paused.resume(now);
                for waiter in self.waiting.drain(..) {
                    waiter.wake();
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
