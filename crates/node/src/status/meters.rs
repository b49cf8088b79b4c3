//! The accumulators behind the averages in the status.
//!
//! Plain data without clock or lock: whoever owns one tells it what happened
//! and when (`now` is any monotonic time, as a [`Duration`] since a fixed
//! moment). `reset` is `FLUSH STATUS`: it starts averages, extremes and windows
//! anew and leaves totals alone.

use std::time::Duration;

use dromon_writeset::Seqno;

use super::{Latency, QueueFigures, WindowFigures};

/// Length of a queue: now, most, fewest, mean.
#[derive(Clone, Debug, Default)]
pub struct QueueStat {
    current: u64,
    max: u64,
    min: u64,
    sum: u64,
    samples: u64,
}

impl QueueStat {
    /// One more waits; the mean is of those whom each one finds.
    pub fn enters(&mut self) {
        self.sum = self.sum.saturating_add(self.current);
        self.samples += 1;
        self.current += 1;
        self.max = self.max.max(self.current);
    }

    /// One waits no more.
    pub fn leaves(&mut self) {
        self.current = self.current.saturating_sub(1);
        self.min = self.min.min(self.current);
    }

    /// Starts extremes and mean anew from the current length.
    pub fn reset(&mut self) {
        *self = QueueStat {
            current: self.current,
            max: self.current,
            min: self.current,
            sum: 0,
            samples: 0,
        };
    }

    /// The figures to show.
    pub fn figures(&self) -> QueueFigures {
        QueueFigures {
            current: self.current,
            max: self.max,
            min: self.min,
            avg: ratio(self.sum as f64, self.samples),
        }
    }
}

/// In which order seqnos pass a gate.
#[derive(Clone, Debug, Default)]
pub struct WindowStat {
    entered: u64,
    entered_early: u64,
    left: u64,
    left_early: u64,
    distances: u64,
}

impl WindowStat {
    /// `seqno` enters while everything up to `all_left` has left the gate and
    /// `highest` is the highest seqno that has entered so far.
    pub fn enter(&mut self, seqno: Seqno, all_left: Seqno, highest: Seqno) {
        self.entered += 1;
        self.entered_early += u64::from(seqno > all_left + 1);
        self.distances += seqno.max(highest).saturating_sub(all_left).max(0) as u64;
    }

    /// `seqno` leaves; before that, everything up to `all_left` had left.
    pub fn leave(&mut self, seqno: Seqno, all_left: Seqno) {
        self.left += 1;
        self.left_early += u64::from(seqno > all_left + 1);
    }

    /// Starts anew.
    pub fn reset(&mut self) {
        *self = WindowStat::default();
    }

    /// The figures to show.
    pub fn figures(&self) -> WindowFigures {
        WindowFigures {
            oooe: ratio(self.entered_early as f64, self.entered),
            oool: ratio(self.left_early as f64, self.left),
            window: ratio(self.distances as f64, self.entered),
        }
    }
}

/// A mean since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Mean {
    sum: f64,
    samples: u64,
}

impl Mean {
    /// One more value.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.samples += 1;
    }

    /// Starts anew.
    pub fn reset(&mut self) {
        *self = Mean::default();
    }

    /// The mean; 0 without values.
    pub fn value(&self) -> f64 {
        ratio(self.sum, self.samples)
    }
}

/// Time during which writers were held back.
///
/// Both ways of holding back are counted: a stop (`pause` to `resume`) and the
/// short waits of slowed writers (`slow` to `unslow`). It is the time in which anybody was held:
/// many who wait at once fill it no faster than one.
#[derive(Clone, Debug, Default)]
pub struct PausedTime {
    total: Duration,
    /// Somebody is held from then on.
    since: Option<Duration>,
    stopped: bool,
    /// How many writers are slowed now.
    slowed: u64,
    reset_at: Duration,
    total_at_reset: Duration,
}

impl PausedTime {
    /// Counts fractions from `now` on.
    pub fn new(now: Duration) -> PausedTime {
        PausedTime {
            reset_at: now,
            ..PausedTime::default()
        }
    }

    /// Writers stop. A second call changes nothing.
    pub fn pause(&mut self, now: Duration) {
        self.stopped = true;
        self.changed(now);
    }

    /// Writers go on. Without a pause it changes nothing.
    pub fn resume(&mut self, now: Duration) {
        self.stopped = false;
        self.changed(now);
    }

    /// One more writer is slowed.
    pub fn slow(&mut self, now: Duration) {
        self.slowed += 1;
        self.changed(now);
    }

    /// One of them goes on.
    pub fn unslow(&mut self, now: Duration) {
        self.slowed = self.slowed.saturating_sub(1);
        self.changed(now);
    }

    fn changed(&mut self, now: Duration) {
        if self.stopped || self.slowed > 0 {
            self.since.get_or_insert(now);
        } else if let Some(since) = self.since.take() {
            self.total += now.saturating_sub(since);
        }
    }

    /// Part of the time since the last reset, 0 to 1.
    pub fn fraction(&self, now: Duration) -> f64 {
        let held = self.total(now).saturating_sub(self.total_at_reset);
        let whole = now.saturating_sub(self.reset_at);
        if whole.is_zero() {
            return 0.0;
        }
        (held.as_secs_f64() / whole.as_secs_f64()).min(1.0)
    }

    /// Starts the fraction anew; the total stays.
    pub fn reset(&mut self, now: Duration) {
        self.total_at_reset = self.total(now);
        self.reset_at = now;
    }

    /// Whether writers are stopped now.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// How long in all.
    pub fn total(&self, now: Duration) -> Duration {
        let running = self.since.map_or(Duration::ZERO, |s| now.saturating_sub(s));
        self.total + running
    }
}

/// Seconds a [`Rate`] looks back.
const RATE_SECONDS: u64 = 10;

/// Events per second over the last ten seconds.
///
/// One bucket per second: the window is ten whole seconds and the running one.
#[derive(Clone, Debug)]
pub struct Rate {
    started: Duration,
    /// Bucket of a second and the second it holds.
    buckets: [(u64, u64); RATE_SECONDS as usize + 1],
}

impl Rate {
    /// Counts from `now` on.
    pub fn new(now: Duration) -> Rate {
        Rate {
            started: now,
            buckets: [(0, 0); RATE_SECONDS as usize + 1],
        }
    }

    /// `count` events happened at `now`.
    pub fn add(&mut self, now: Duration, count: u64) {
        let second = now.as_secs();
        let bucket = &mut self.buckets[(second % (RATE_SECONDS + 1)) as usize];
        if bucket.1 != second {
            *bucket = (0, second);
        }
        bucket.0 = bucket.0.saturating_add(count);
    }

    /// Events per second in the window that ends at `now`.
    pub fn per_second(&self, now: Duration) -> f64 {
        let second = now.as_secs();
        let oldest = second.saturating_sub(RATE_SECONDS);
        let events: u64 = self
            .buckets
            .iter()
            .filter(|b| (oldest..=second).contains(&b.1))
            .map(|b| b.0)
            .sum();
        let begin = self.started.max(Duration::from_secs(oldest));
        let window = now.saturating_sub(begin).as_secs_f64();
        // In the first moments a single event is not a thousand per second.
        events as f64 / window.max(1.0)
    }
}

/// Shortest, mean, longest and spread of round trips.
///
/// Mean and spread by Welford's method, which needs no list of samples.
#[derive(Clone, Debug, Default)]
pub struct LatencyStat {
    min: f64,
    max: f64,
    mean: f64,
    squares: f64,
    samples: u64,
}

impl LatencyStat {
    /// One more round trip.
    pub fn add(&mut self, round_trip: Duration) {
        let seconds = round_trip.as_secs_f64();
        self.samples += 1;
        if self.samples == 1 {
            self.min = seconds;
            self.max = seconds;
        }
        self.min = self.min.min(seconds);
        self.max = self.max.max(seconds);
        let before = seconds - self.mean;
        self.mean += before / self.samples as f64;
        self.squares += before * (seconds - self.mean);
    }

    /// Starts anew.
    pub fn reset(&mut self) {
        *self = LatencyStat::default();
    }

    /// The five numbers to show, in seconds.
    pub fn figures(&self) -> Latency {
        Latency {
            min: self.min,
            avg: self.mean,
            max: self.max,
            stddev: ratio(self.squares, self.samples).max(0.0).sqrt(),
            samples: self.samples,
        }
    }
}

fn ratio(part: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_queue_resets_to_its_current_length() {
        let mut q = QueueStat::default();
        assert_eq!(q.figures(), QueueFigures::default());
        for _ in 0..4 {
            q.enters();
        }
        q.leaves();
        let seen = q.figures();
        assert_eq!((seen.current, seen.max, seen.min), (3, 4, 0));
        assert!((seen.avg - 6.0 / 4.0).abs() < 1e-9, "0, 1, 2, 3 were found");
        q.reset();
        let seen = q.figures();
        assert_eq!((seen.current, seen.max, seen.min, seen.avg), (3, 3, 3, 0.0));
        q.leaves();
        q.enters();
        let seen = q.figures();
        assert_eq!((seen.current, seen.max, seen.min, seen.avg), (3, 3, 2, 2.0));
    }

    #[test]
    fn strict_order_shows_zero_zero_one() {
        let mut w = WindowStat::default();
        for seqno in 1..=100 {
            w.enter(seqno, seqno - 1, seqno - 1);
            w.leave(seqno, seqno - 1);
        }
        let figures = WindowFigures {
            oooe: 0.0,
            oool: 0.0,
            window: 1.0,
        };
        assert_eq!(w.figures(), figures);
    }

    #[test]
    fn parallel_passing_shows_in_the_window() {
        let mut w = WindowStat::default();
        // 1, 2, 3 enter together; 3 leaves first, then 1, then 2.
        w.enter(1, 0, 0);
        w.enter(2, 0, 1);
        w.enter(3, 0, 2);
        w.leave(3, 0);
        w.leave(1, 0);
        w.leave(2, 1);
        let f = w.figures();
        assert!((f.oooe - 2.0 / 3.0).abs() < 1e-9);
        assert!((f.oool - 1.0 / 3.0).abs() < 1e-9);
        assert!((f.window - 2.0).abs() < 1e-9);
        w.reset();
        assert_eq!(w.figures(), WindowFigures::default());
    }

    #[test]
    fn paused_time_survives_a_reset_as_total_only() {
        let mut p = PausedTime::new(ms(1000));
        assert_eq!(p.fraction(ms(1000)), 0.0);
        p.pause(ms(1500));
        p.pause(ms(1700));
        assert_eq!(p.total(ms(2000)), ms(500));
        assert_eq!(p.fraction(ms(2000)), 0.5);
        // In the middle of a pause.
        p.reset(ms(2000));
        assert_eq!(p.fraction(ms(2500)), 1.0);
        p.resume(ms(2500));
        p.resume(ms(2600));
        assert_eq!(p.fraction(ms(3000)), 0.5);
        assert_eq!(p.total(ms(3000)), ms(1000));
    }

    #[test]
    fn many_slowed_writers_are_not_more_than_all_the_time() {
        let mut p = PausedTime::new(ms(0));
        for n in 0..50 {
            p.slow(ms(n));
        }
        assert!(!p.stopped());
        assert_eq!(p.total(ms(500)), ms(500));
        assert_eq!(p.fraction(ms(500)), 1.0);
        for n in 0..50 {
            p.unslow(ms(500 + n));
        }
        assert_eq!(p.total(ms(1000)), ms(549));
        assert!((p.fraction(ms(1000)) - 0.549).abs() < 1e-9);
    }

    #[test]
    fn who_is_slowed_amid_a_stop_counts_once() {
        let mut p = PausedTime::new(ms(0));
        p.slow(ms(100));
        p.pause(ms(200));
        p.unslow(ms(300));
        assert!(p.stopped());
        p.slow(ms(400));
        p.resume(ms(500));
        assert!(!p.stopped());
        p.unslow(ms(600));
        assert_eq!(p.total(ms(1000)), ms(500));
    }

    #[test]
    fn a_rate_forgets_after_ten_seconds() {
        let mut r = Rate::new(ms(5000));
        assert_eq!(r.per_second(ms(5000)), 0.0);
        r.add(ms(5100), 10);
        assert_eq!(r.per_second(ms(5200)), 10.0);
        for second in 6..40 {
            r.add(ms(second * 1000), 100);
        }
        assert!((r.per_second(ms(40_000)) - 100.0).abs() < 1e-9);
        assert!(r.per_second(ms(45_000)) < 60.0);
        assert_eq!(r.per_second(ms(51_000)), 0.0);
        // A late wake-up after a long silence must not see the old buckets.
        r.add(ms(500_000), 7);
        assert!(r.per_second(ms(500_000)) <= 0.7);
    }

    #[test]
    fn latency_has_mean_and_spread() {
        let mut l = LatencyStat::default();
        assert_eq!(l.figures(), Latency::default());
        for n in [2, 4, 4, 4, 5, 5, 7, 9] {
            l.add(ms(n));
        }
        let f = l.figures();
        assert_eq!((f.min, f.max, f.samples), (0.002, 0.009, 8));
        assert!((f.avg - 0.005).abs() < 1e-9 && (f.stddev - 0.002).abs() < 1e-9);
        l.reset();
        assert_eq!(l.figures(), Latency::default());
    }

    #[test]
    fn a_mean_is_zero_without_values() {
        let mut m = Mean::default();
        assert_eq!(m.value(), 0.0);
        m.add(1.0);
        m.add(4.0);
        assert_eq!(m.value(), 2.5);
        m.reset();
        assert_eq!(m.value(), 0.0);
    }
}
