//! How long a large transaction pauses between two chunks, so that small ones keep most of
//! their pace where there is not enough for both. Pure: times and counts come from outside.
//!
//! ```text
//!   pace of small ones   ▇▇▇▇▇▇▇▇ ▂▂▂▂▂▂ ▇▇▇▇▇▇ ▂▂▂▂▂▂ ▇▇▇▇▇▇
//!                        before   chunk  pause  chunk  pause      chunk and pause together: KEPT of before
//! ```
//!
//! Where small ones want less than this node can do they hardly notice a chunk, and there is no
//! pause. What they had before is forgotten with time, and learnt anew in a longer pause now and
//! then (a *probe*): who wants less by now, or is kept by something else, does not hold the
//! large one up for long.

use std::time::Duration;

/// What small ones keep of their pace, in the long run.
const KEPT: f64 = 0.76;
/// A pause is at most so many times as long as the chunk took.
const LONGEST: f64 = 2.5;
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Over so long the pace before is measured: what was held up comes in bursts.
const STRETCH: Duration = Duration::from_secs(1);
/// A probe lasts so long. What the chunk has kept waiting comes in its first half.
const PROBE: Duration = Duration::from_millis(300);
/// The next one comes after so long,
const PROBE_AGAIN: Duration = Duration::from_secs(3);
/// or, while they seem to have what they want, after so long.
const PROBE_LATE: Duration = Duration::from_secs(15);
/// For fewer a second nobody pauses.
const FEW: f64 = 20.0;
/// What was seen so long ago counts half.
const HALF_LIFE: Duration = Duration::from_secs(20);
/// While chunks are applied, what they want rises by no more than this part of it a second:
/// who fell behind while the large one was on its way catches up for as long as it takes.
const RISE: f64 = 0.01;
/// Unless two probes find so many times that: there are more of them now.
const MORE: f64 = 2.0;
/// Over so long the pace beside chunks is smoothed: clients with a plan of their own fall behind
/// by one, and catch up by the next.
const SMOOTH: Duration = Duration::from_millis(300);

/// The pace of small ones on this node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yielding {
    /// The most that they had of late, a second.
    before: f64,
    /// Since the last look: how long, and how many.
    looked: (Duration, u64),
    /// While chunks are applied, smoothed.
    beside: Option<f64>,
    /// How long ago the last probe was, and what it found.
    probed: Option<Duration>,
    found: f64,
    /// What a pause is longer by, in chunks, as small ones have less in it than they had before.
    more: f64,
    /// While chunks are applied, and until a stretch behind them: what they want is no more than
    /// this.
    most: f64,
    /// Who was kept waiting comes until so much of the next stretch is over.
    catching_up: Duration,
}

/// What follows a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The next one.
    None,
    /// So long nothing.
    Wait(Duration),
    /// The same; the pace in its second half is to be [found](Yielding::found).
    Probe(Duration),
}

impl Yielding {
    /// In the last `time`, which ended now, `passed` small ones took their place.
    pub fn look(&mut self, time: Duration, passed: u64) {
        if time.is_zero() {
            return;
        }
        self.probed = self.probed.map(|ago| ago + time);
        if self.beside.is_some() {
            if self.before >= FEW {
                let lacking = KEPT - pace((time, passed)) / self.before;
                let more = self.more + lacking * time.as_secs_f64() / SMOOTH.as_secs_f64();
                self.more = more.clamp(0.0, LONGEST);
            }
            self.most *= 1.0 + RISE * time.as_secs_f64();
            // Who catches up has more than it wants, for a moment.
            self.learn(time, passed, STRETCH * 3);
            self.before = self.before.min(self.most);
            return;
        }
        self.before *= 0.5f64.powf(time.as_secs_f64() / HALF_LIFE.as_secs_f64());
        let rest = self.catching_up.saturating_sub(time);
        if !std::mem::replace(&mut self.catching_up, rest).is_zero() {
            return;
        }
        if self.learn(time, passed, STRETCH) {
            self.most = 0.0;
        }
    }

    /// What they have over `stretch`, they want. Whether one is over.
    fn learn(&mut self, time: Duration, passed: u64, stretch: Duration) -> bool {
        self.looked.0 += time;
        self.looked.1 += passed;
        let over = self.looked.0 >= stretch;
        if over {
            self.before = self.before.max(pace(self.looked));
            self.looked = (Duration::ZERO, 0);
        }
        over
    }

    /// A chunk took `time`, and `passed` small ones came meanwhile. How long a pause should
    /// follow.
    pub fn pause(&mut self, time: Duration, passed: u64) -> Pause {
        let time = time.max(Duration::from_millis(1));
        let now = pace((time, passed));
        let old = (-time.as_secs_f64() / SMOOTH.as_secs_f64()).exp();
        if self.beside.is_none() {
            // A stop at the end of the last large one is not what they want.
            self.most = self.most.max(self.before);
            if self.most < FEW {
                self.most = f64::INFINITY;
            }
        }
        let beside = self.beside.unwrap_or(self.before) * old + now * (1.0 - old);
        self.beside = Some(beside);
        let lacking = KEPT * self.before - beside;
        let lacks = lacking > 0.0 && self.before >= FEW;
        let again = match lacks || self.found.min(self.most) > self.before {
            true => PROBE_AGAIN,
            false => PROBE_LATE,
        };
        let due = match self.probed {
            None => lacks,
            Some(ago) => ago >= again,
        };
        if due && (lacks || beside >= FEW) {
            self.probed = Some(Duration::ZERO);
            return Pause::Probe(PROBE);
        }
        if !lacks {
            return Pause::None;
        }
        // If they have in the pause what they had before, and more as long as they have not.
        let times = lacking / ((1.0 - KEPT) * self.before) + self.more;
        Pause::Wait(time.mul_f64(times.min(LONGEST)).min(PAUSE_MAX))
    }

    /// In the second half of a probe, `time`, `passed` came: that is what they want, or can. Who
    /// still catches up has more than that, so more than before must be found twice.
    pub fn found(&mut self, time: Duration, passed: u64) {
        let found = pace((time.max(Duration::from_millis(1)), passed));
        let last = std::mem::replace(&mut self.found, found);
        self.probed = Some(Duration::ZERO);
        let twice = found.min(last);
        if twice > self.most * MORE {
            self.most = twice;
        }
        self.before = found.min(last.max(self.before)).min(self.most);
    }

    /// Nothing large is applied any more.
    pub fn over(&mut self) {
        if self.beside.take().is_some() {
            self.catching_up = STRETCH;
        }
        (self.probed, self.more) = (None, 0.0);
        if self.most.is_infinite() {
            self.most = 0.0;
        }
    }
}

fn pace((time, passed): (Duration, u64)) -> f64 {
    passed as f64 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Duration = Duration::from_millis(30);

    fn count(pace: f64, time: Duration) -> u64 {
        (pace * time.as_secs_f64()).round() as u64
    }

    /// Small ones have `alone` a second, and `beside` while a chunk is applied. Answers what
    /// they have in the last of so many seconds, and what part of it is pauses.
    fn run(y: &mut Yielding, alone: f64, beside: f64, seconds: u64) -> (f64, f64) {
        let (mut at, mut last) = (Duration::ZERO, (Duration::ZERO, Duration::ZERO, 0));
        let end = Duration::from_secs(seconds);
        while at < end {
            let passed = count(beside, CHUNK);
            let pause = match y.pause(CHUNK, passed) {
                Pause::None => Duration::ZERO,
                Pause::Wait(time) => time,
                Pause::Probe(time) => {
                    y.found(time / 2, count(alone, time / 2));
                    time
                }
            };
            let rest = count(alone, pause);
            y.look(CHUNK + pause, passed + rest);
            at += CHUNK + pause;
            if at + Duration::from_secs(1) > end {
                last = (
                    last.0 + CHUNK + pause,
                    last.1 + pause,
                    last.2 + passed + rest,
                );
            }
        }
        let all = last.0.as_secs_f64();
        (last.2 as f64 / all, last.1.as_secs_f64() / all)
    }

    fn before(pace: f64) -> Yielding {
        let mut y = Yielding::default();
        for _ in 0..20 {
            y.look(
                Duration::from_millis(100),
                count(pace, Duration::from_millis(100)),
            );
        }
        y
    }

    #[test]
    fn small_ones_that_take_all_keep_their_part() {
        for beside in [400.0, 1000.0, 1800.0] {
            let (pace, _) = run(&mut before(3000.0), 3000.0, beside, 20);
            assert!((0.66..0.85).contains(&(pace / 3000.0)), "{beside}: {pace}");
        }
    }

    #[test]
    fn pauses_grow_if_small_ones_have_less_in_them_than_before() {
        let mut y = before(3000.0);
        let mut last = (0, Duration::ZERO);
        for n in 0..800 {
            let passed = count(1400.0, CHUNK);
            let pause = match y.pause(CHUNK, passed) {
                Pause::None => Duration::ZERO,
                Pause::Wait(time) => time,
                Pause::Probe(time) => {
                    y.found(time / 2, count(3000.0, time / 2));
                    time
                }
            };
            let rest = count(2600.0, pause);
            y.look(CHUNK + pause, passed + rest);
            if n >= 400 {
                last = (last.0 + passed + rest, last.1 + CHUNK + pause);
            }
        }
        let pace = last.0 as f64 / last.1.as_secs_f64();
        assert!((0.71..0.8).contains(&(pace / 3000.0)), "{pace}");
    }

    #[test]
    fn one_probe_that_saw_nobody_is_not_the_end() {
        // 3,000 a second are wanted. A disk that stood still, and all is as before.
        let mut y = before(3000.0);
        run(&mut y, 3000.0, 1000.0, 5);
        y.found(PROBE / 2, 0);
        assert_eq!(y.pause(CHUNK, count(1000.0, CHUNK)), Pause::None);
        run(&mut y, 3000.0, 1000.0, 40);
        let (pace, _) = run(&mut y, 3000.0, 1000.0, 5);
        assert!(pace > 0.66 * 3000.0, "{pace}");
    }

    #[test]
    fn who_hardly_notices_is_left_no_pause() {
        let (pace, pauses) = run(&mut before(1200.0), 1200.0, 1100.0, 5);
        assert!(pauses == 0.0 && pace > 1000.0, "{pace} {pauses}");
    }

    #[test]
    fn who_falls_behind_and_catches_up_is_left_no_pause() {
        // 1,200 a second are wanted; two chunks of four let nobody pass, the next one
        // those that waited, too.
        let mut y = before(1200.0);
        let all = count(1200.0, CHUNK);
        for passed in [all, 0, 0, all * 3].into_iter().cycle().take(200) {
            assert_eq!(y.pause(CHUNK, passed), Pause::None);
            y.look(CHUNK, passed);
        }
        // Probes see those who still come late, and so do the chunks.
        let found = |y: &mut Yielding, pace| {
            y.found(Duration::from_millis(150), count(pace, PROBE / 2));
        };
        for _ in 0..3 {
            found(&mut y, 2300.0);
            assert_eq!(y.pause(CHUNK, count(1200.0, CHUNK)), Pause::None);
            y.look(STRETCH, 2200);
        }
        // 200 chunks and three seconds.
        assert!(y.before < 1200.0 * 1.12, "{}", y.before);
        // Many more than that, twice, have come since.
        found(&mut y, 3000.0);
        assert!(y.before < 1200.0 * 1.12, "{}", y.before);
        found(&mut y, 3000.0);
        assert_eq!(y.before, 3000.0);
        y.found(Duration::from_millis(150), 180);
        // Those who come late when it is over do not count as what is wanted ever after.
        y.over();
        y.look(STRETCH, 3000);
        y.look(STRETCH, 1200);
        assert_eq!(y.pause(CHUNK, count(900.0, CHUNK)), Pause::None);
    }

    #[test]
    fn who_comes_while_it_runs_has_a_part_in_time() {
        let mut y = before(1200.0);
        let (early, _) = run(&mut y, 2200.0, 800.0, 8);
        run(&mut y, 2200.0, 800.0, 100);
        let (late, _) = run(&mut y, 2200.0, 800.0, 5);
        assert!(early < 1400.0 && late > 0.66 * 2200.0, "{early} {late}");
        // Three times as many: that is soon seen.
        let mut y = before(1000.0);
        run(&mut y, 3000.0, 700.0, 15);
        let (soon, _) = run(&mut y, 3000.0, 700.0, 5);
        assert!(soon > 0.66 * 3000.0, "{soon}");
    }

    #[test]
    fn a_stop_at_the_end_of_one_does_not_bind_the_next() {
        let mut y = before(3000.0);
        run(&mut y, 3000.0, 1000.0, 5);
        y.found(PROBE / 2, 0);
        y.over();
        run(&mut y, 3000.0, 1000.0, 15);
        let (pace, _) = run(&mut y, 3000.0, 1000.0, 5);
        assert!(pace > 0.66 * 3000.0, "{pace}");
    }

    #[test]
    fn what_is_lost_for_another_reason_is_not_waited_for() {
        // They have left, or are kept by something else: pauses bring nothing.
        let (_, pauses) = run(&mut before(3000.0), 300.0, 280.0, 10);
        assert!(pauses < 0.15, "{pauses}");
        let (_, pauses) = run(&mut before(3000.0), 0.0, 0.0, 10);
        assert!(pauses < 0.15, "{pauses}");
    }

    #[test]
    fn nobody_there_means_no_pause() {
        let mut y = Yielding::default();
        assert_eq!(y.pause(CHUNK, 0), Pause::None);
        let (pace, _) = run(&mut y, 3000.0, 1000.0, 30);
        assert!(pace >= 1000.0, "what it never saw it does not miss: {pace}");
    }

    #[test]
    fn a_pause_is_bounded() {
        let mut y = before(1e6);
        let first = (0..10)
            .map(|_| y.pause(CHUNK, 0))
            .find(|p| *p != Pause::None);
        assert_eq!(first, Some(Pause::Probe(PROBE)));
        let last = (0..100).map(|_| y.pause(CHUNK, 0)).last();
        assert!(matches!(last, Some(Pause::Wait(time)) if time <= CHUNK.mul_f64(LONGEST)));
        assert_eq!(y.pause(Duration::from_secs(60), 0), Pause::Wait(PAUSE_MAX));
    }
}
