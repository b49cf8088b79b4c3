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
    paused_since: Option<Instant>,
    paused: Duration,
    paused_at_reset: Duration,
    reset_at: Option<Instant>,
    sent: u64,
    received: u64,
    waiting: Vec<Arc<Waiter>>,
    own_stop: bool,
    own_patience: Patience,
    /// Members that lack some of the log that this node has delivered.
    lags: Lags,
}

/// Figures for the status.
#[derive(Clone, Debug, Default)]
pub struct FlowStats {
    /// How long origins were held, since start.
    pub paused: Duration,
    /// Fraction of the time since the last reset.
    pub paused_fraction: f64,
    /// Pause wishes sent.
    pub sent: u64,
    /// Pause wishes received, own ones included.
    pub received: u64,
    /// Whether origins are held now.
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
        fullest.is_none_or(|(queue, rate)| slow(waiter, limits().slow_down(queue, rate)))
    }

    /// Waits until no counted member asks for a pause. Answers false if the waiter
    /// was interrupted first.
    pub fn wait_unpaused(&self, waiter: &Arc<Waiter>) -> bool {
        let mut inner = self.lock();
        loop {
            if inner.paused_since.is_none() {
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
        let mut inner = self.lock();
        let now = Instant::now();
        let reset_at = *inner.reset_at.get_or_insert(now);
        let paused = inner.total(now);
        let window = now.duration_since(reset_at).as_secs_f64();
        let since = paused.saturating_sub(inner.paused_at_reset).as_secs_f64();
        FlowStats {
            paused,
            paused_fraction: if window > 0.0 {
                (since / window).min(1.0)
            } else {
                0.0
            },
            sent: inner.sent,
            received: inner.received,
            active: inner.paused_since.is_some(),
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
        let now = Instant::now();
        inner.paused_at_reset = inner.total(now);
        inner.reset_at = Some(now);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each method leaves the maps whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for `time`; false if interrupted.
fn slow(waiter: &Arc<Waiter>, time: Duration) -> bool {
    let until = Instant::now() + time;
    while !waiter.interrupted() {
        if Instant::now() >= until {
            return true;
        }
        waiter.wait(true, Some(until));
    }
    time.is_zero()
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

    fn total(&self, now: Instant) -> Duration {
        self.paused
            + self
                .paused_since
                .map_or(Duration::ZERO, |s| now.duration_since(s))
    }

    fn update(&mut self) {
        let held = self.holders().next().is_some();
        match (held, self.paused_since) {
            (true, None) => self.paused_since = Some(Instant::now()),
            (false, Some(since)) => {
                self.paused += since.elapsed();
                self.paused_since = None;
                for waiter in self.waiting.drain(..) {
                    waiter.wake();
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(n: u8, number: u64, stop: bool, safe: Seqno) -> Progress {
        Progress {
            uuid: Uuid([n; 16]),
            ordered: 0,
            released: 0,
            safe,
            needs_log: 0,
            ready: 0,
            queue: 0,
            stop,
            number,
            digest: (0, 0),
            durable: true,
        }
    }

    fn counted(ns: &[u8]) -> BTreeMap<Uuid, String> {
        ns.iter()
            .map(|&n| (Uuid([n; 16]), format!("n{n}")))
            .collect()
    }

    #[test]
    fn who_lacks_much_of_the_log_is_waited_for_while_it_moves() {
        let flow = Flow::default();
        let [a, b] = [1, 2].map(|n| Uuid([n; 16]));
        flow.set_counted(counted(&[1, 2]), BTreeMap::new(), &[a, b]);
        let limits = FlowLimits::new(16, 0.5, true, 2);
        let lacks = |ordered, bytes| {
            let b = Lacks {
                uuid: b,
                ordered,
                bytes,
            };
            flow.report(progress(2, ordered as u64, false, 0));
            flow.set_lacks(&[b], 100);
            let seen = flow.look(limits).remove(0);
            (
                flow.stats().active,
                flow.holds_payloads(),
                seen.holds,
                seen.caught_up,
            )
        };
        assert_eq!(lacks(1, 25), (false, false, false, true));
        assert_eq!(lacks(2, 26), (false, false, false, false));
        assert_eq!(lacks(3, 51), (false, true, false, false));
        assert_eq!(lacks(4, 101), (true, true, true, false));
        assert_eq!(flow.stats().waiting_for, ["n2"]);
        assert!(flow.lacks_log(&b) && !flow.lacks_log(&a));
        assert_eq!(lacks(5, 100), (false, true, false, false));
        // Small ones that are let go each time may keep it there for ever.
        flow.lock().lags.payloads_waited(&b);
        assert!(!flow.holds_payloads());
        assert_eq!(lacks(5, 101), (true, true, true, false));
        assert_eq!(lacks(5, 100), (false, false, false, false));
        assert_eq!(lacks(5, 50), (false, false, false, false));
        assert_eq!(lacks(5, 100), (false, true, false, false));
        // For a moment more it may have been away.
        assert_eq!(lacks(6, 101), (true, true, true, false));
        flow.lock().lags.stands(&b);
        assert_eq!(lacks(6, 101), (false, false, false, false));
        assert_eq!(lacks(7, 101), (true, true, true, false));
        // Whoever is not waited for, or does not count.
        flow.set_quarantined([b].into());
        assert_eq!((flow.stats().active, flow.holds_payloads()), (false, false));
        flow.set_quarantined(BTreeSet::new());
        assert!(flow.stats().active);
        flow.set_counted(counted(&[1]), counted(&[2]), &[a, b]);
        assert_eq!((flow.stats().active, flow.holds_payloads()), (false, false));
    }

    #[test]
    fn what_all_others_have_finished() {
        let flow = Flow::default();
        let all = [1, 2, 3].map(|n| Uuid([n; 16]));
        flow.set_counted(counted(&[1, 2, 3]), BTreeMap::new(), &all);
        let lowest = || flow.lowest_released_but(&all[0]);
        assert_eq!(lowest(), Some(Seqno::MIN), "nobody is heard");
        for (n, released) in [(1, 3), (2, 7), (3, 5)] {
            flow.report(Progress {
                released,
                ..progress(n, 1, false, 0)
            });
        }
        assert_eq!(lowest(), Some(5));
        assert_eq!(flow.lowest_released(), Some(3));
        flow.set_quarantined(BTreeSet::from([all[2]]));
        assert_eq!(lowest(), Some(7));
        flow.set_counted(counted(&[1, 3]), BTreeMap::new(), &all);
        assert_eq!(lowest(), None, "nobody else counts");
    }

    /// Else the time until the next report would be spent as well.
    #[test]
    fn who_is_below_the_limit_again_is_looked_at_once() {
        let flow = Flow::default();
        let limits = FlowLimits::new(4, 1.0, true, 3);
        let most = Duration::from_millis(200);
        for _ in 0..4 {
            assert!(!flow.own(5, limits, false, most) && flow.counts_above());
            assert!(!flow.own(4, limits, false, most) && !flow.counts_above());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(!flow.own_stop());
    }

    #[test]
    fn only_counted_members_hold_the_others() {
        let flow = Flow::default();
        flow.set_counted(
            counted(&[1]),
            BTreeMap::new(),
            &[Uuid([1; 16]), Uuid([2; 16])],
        );
        flow.report(progress(2, 1, true, 0));
        assert!(!flow.stats().active);
        flow.set_counted(
            counted(&[1, 2]),
            BTreeMap::new(),
            &[Uuid([1; 16]), Uuid([2; 16])],
        );
        assert_eq!(flow.stats().waiting_for, ["n2"]);
        assert!(
            !flow.report(progress(2, 1, false, 0)),
            "a late copy changes nothing"
        );
        assert!(flow.stats().active);
        flow.set_counted(counted(&[1]), BTreeMap::new(), &[Uuid([1; 16])]);
        assert!(!flow.stats().active, "a departed member holds nobody");
    }

    #[test]
    fn a_waiting_origin_is_woken_or_interrupted() {
        let flow = Arc::new(Flow::default());
        flow.set_counted(counted(&[1]), BTreeMap::new(), &[Uuid([1; 16])]);
        flow.report(progress(1, 1, true, 0));
        let interrupted = Arc::new(Waiter::new());
        interrupted.interrupt();
        let limits = || FlowLimits::new(16, 1.0, true, 2);
        assert!(!flow.wait(&interrupted, limits));
        let thread = {
            let flow = flow.clone();
            std::thread::spawn(move || flow.wait(&Arc::new(Waiter::new()), limits))
        };
        flow.report(progress(1, 2, false, 0));
        assert_eq!(thread.join().ok(), Some(true));
    }

    #[test]
    fn the_own_wish_has_two_limits() {
        let flow = Flow::default();
        let limits = FlowLimits::new(16, 0.5, false, 4);
        assert_eq!((limits.upper, limits.lower), (32, 16));
        assert!(!flow.own(32, limits, false, Duration::ZERO));
        assert!(flow.own(33, limits, false, Duration::ZERO));
        assert!(!flow.own(17, limits, false, Duration::ZERO));
        assert!(flow.own(16, limits, false, Duration::ZERO));
    }

    #[test]
    fn origins_slow_down_before_they_stop() {
        let limits = FlowLimits::new(100, 1.0, true, 3);
        for rate in [0.0, 10.0, 1e6] {
            assert_eq!(limits.slow_down(0, rate), Duration::ZERO);
            assert_eq!(limits.slow_down(50, rate), Duration::ZERO);
            let steps: Vec<_> = (50..=100).map(|q| limits.slow_down(q, rate)).collect();
            assert!(steps.windows(2).all(|w| w[0] < w[1]), "{steps:?}");
        }
        for rate in [0.0, 10.0] {
            assert_eq!(limits.slow_down(75, rate), SLOW_MAX / 4);
            assert_eq!(limits.slow_down(1000, rate), SLOW_MAX);
        }
        assert_eq!(
            limits.slow_down(100, 50_000.0),
            Duration::from_millis(2),
            "no longer than the queue's work takes"
        );
    }

    #[test]
    fn a_members_rate_is_that_of_its_busy_time() {
        let report = |queue, released| Progress {
            queue,
            released,
            ..progress(1, 1, false, 0)
        };
        let mut r = Reported {
            progress: report(5, 1000),
            at: Instant::now(),
            rate: 0.0,
        };
        let tenth = Duration::from_millis(100);
        assert_eq!(r.next_rate(&report(0, 1500), tenth), 0.0, "it ran out");
        r.rate = r.next_rate(&report(5, 1500), tenth);
        assert_eq!(r.rate, 5000.0);
        assert_eq!(r.next_rate(&report(0, 1000), tenth), 5000.0, "idle");
        let stuck = r.next_rate(&report(5, 1000), tenth);
        assert!(stuck > 4000.0 && stuck < 4200.0, "{stuck}");
        let longer = r.next_rate(&report(5, 1000), Duration::from_secs(10));
        assert!(longer < 0.01, "{longer}");
    }

    #[test]
    fn only_full_queues_of_counted_members_slow_an_origin_down() {
        let flow = Flow::default();
        flow.set_counted(
            counted(&[1]),
            BTreeMap::new(),
            &[Uuid([1; 16]), Uuid([2; 16])],
        );
        let full = |n| Progress {
            queue: 40,
            ..progress(n, 1, false, 0)
        };
        let limits = || FlowLimits::new(40, 1.0, true, 2);
        let interrupted = Arc::new(Waiter::new());
        interrupted.interrupt();
        flow.report(full(2));
        assert!(flow.wait(&interrupted, limits), "it did not wait at all");
        flow.report(full(1));
        assert!(!flow.wait(&interrupted, limits), "it would have waited");
        assert!(flow.wait(&Arc::new(Waiter::new()), limits));
    }

    #[test]
    fn nobody_waits_for_who_is_in_quarantine() {
        let flow = Flow::default();
        flow.set_counted(
            counted(&[1, 2]),
            BTreeMap::new(),
            &[Uuid([1; 16]), Uuid([2; 16])],
        );
        flow.report(progress(2, 1, true, 0));
        let limits = FlowLimits::new(16, 1.0, true, 2);
        assert!(flow.look(limits).iter().all(|s| s.holds && !s.caught_up));
        assert!(flow.stats().active);
        flow.set_quarantined([Uuid([2; 16])].into());
        let stats = flow.stats();
        assert!(!stats.active);
        assert_eq!(
            (stats.waiting_for.len(), stats.quarantined),
            (0, vec!["n2".to_owned()])
        );
        assert!(flow.wait(&Arc::new(Waiter::new()), || limits));
        flow.set_quarantined(BTreeSet::new());
        assert_eq!(flow.stats().waiting_for, ["n2"]);
    }

    #[test]
    fn nothing_is_safe_until_all_have_reported() {
        let flow = Flow::default();
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        flow.report(progress(1, 1, false, 10));
        assert_eq!(flow.safe(&[a, b]), None);
        flow.report(progress(2, 1, false, 7));
        assert_eq!(flow.safe(&[a, b]), Some(7));
    }

    #[test]
    fn who_catches_up_holds_only_by_its_wish() {
        let flow = Flow::default();
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        flow.set_counted(counted(&[1]), counted(&[2]), &[a, b]);
        let behind = |number, stop| Progress {
            queue: 50_000,
            ..progress(2, number, stop, 0)
        };
        let limits = FlowLimits::new(16, 1.0, true, 2);
        let interrupted = Arc::new(Waiter::new());
        interrupted.interrupt();
        flow.report(progress(1, 1, false, 0));
        flow.report(behind(1, false));
        assert!(flow.wait(&interrupted, || limits), "its queue says nothing");
        assert!(flow.look(limits).iter().all(|s| !s.holds));
        assert_eq!(flow.look(limits).len(), 2);
        assert_eq!(flow.lowest_released(), Some(0));
        flow.report(behind(2, true));
        assert!(!flow.wait(&interrupted, || limits));
        assert_eq!(flow.stats().waiting_for, ["n2"]);
        assert!(flow.look(limits).iter().any(|s| s.uuid == b && s.holds));
        flow.set_only_synced(true);
        assert!(flow.wait(&interrupted, || limits));
        assert!(flow.look(limits).iter().all(|s| s.uuid == a));
        flow.set_only_synced(false);
        flow.set_counted(counted(&[1, 2]), BTreeMap::new(), &[a, b]);
        assert!(flow.stats().active, "it has caught up, and still asks");
        flow.set_counted(counted(&[1]), BTreeMap::new(), &[a]);
        assert!(!flow.stats().active);
    }

    #[test]
    fn the_own_catching_up() {
        let flow = Flow::default();
        let own = Uuid([1; 16]);
        flow.catch_up(&own, true, 500);
        assert_eq!(flow.allowed(), None, "it has just begun");
        if let Some(member) = &mut flow.lock().own {
            member.look(400, 0.0, Instant::now() + crate::catching_up::GRACE);
        }
        assert_eq!(flow.allowed(), Some(400));
        let limits = FlowLimits::new(16, 0.5, true, 2).beyond(400);
        assert!(
            !flow.own(416, limits, false, Duration::ZERO)
                && flow.own(417, limits, false, Duration::ZERO)
        );
        assert!(
            !flow.own(409, limits, false, Duration::ZERO)
                && flow.own(408, limits, false, Duration::ZERO)
        );
        assert!(
            flow.own(417, limits, false, Duration::ZERO)
                && flow.own(417, FlowLimits::NONE, false, Duration::ZERO)
        );
        assert!(!flow.own(1_000_000, FlowLimits::NONE, false, Duration::ZERO));
        flow.catch_up(&own, false, 300);
        assert_eq!(flow.allowed(), None);
    }
}
