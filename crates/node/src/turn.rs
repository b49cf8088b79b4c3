//! How long small transactions have between two chunks of a large one where they
//! cannot pass it while it is applied: on a node with one applier thread. Pure: the
//! times come from outside.
//!
//! ```text
//!   asked     in its turn      applied                       next one asked for
//!   ──●─ way ─────●──────────────●─────────────────────────────●──────
//!                  <── blocked ──> <─────────── turn ──────────>
//!       small ones pass   none       those that waited, and more
//! ```
//!
//! If clients take all that this node can do, the turn is [`PART`] times as long as
//! the chunk kept them waiting. If they want less, it ends as soon as they are at
//! [`SHARE`] of the pace that they have between chunks, the chunk's time included:
//! then the large one takes what they leave. That pace is measured in full turns,
//! of which there is one in [`PROBE`].
//!
//! With a share set (`dromon.bulk_share`) no turn is shorter than what makes the
//! chunk's time that share of both.

use std::time::Duration;

/// Small ones have at most this many times as long as they waited for the chunk.
pub const PART: f64 = 1.5;
/// They have at most so long.
pub const YIELD: Duration = Duration::from_millis(250);
/// Of their own pace they are left so much.
pub const SHARE: f64 = 0.9;
/// One in so many turns is full, to measure.
pub const PROBE: u32 = 8;
/// What a share asks for is never longer.
const LEAST_MAX: Duration = Duration::from_secs(2);
/// Shorter stretches say nothing of a pace.
const MEASURE_MIN: Duration = Duration::from_millis(4);

/// What happened since a chunk was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cycle {
    /// Since it was asked for.
    pub elapsed: Duration,
    /// Small ones that committed here in that time.
    pub passed: u64,
    /// How long it kept others from committing.
    pub blocked: Duration,
    /// From the request to its place.
    pub way: Duration,
    /// Since it was applied.
    pub turn: Duration,
    /// What part of the time chunks may take, above 0, at most 1, if that is set.
    pub share: Option<f64>,
}

/// What the turns before have taught.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The pace between chunks, a second.
    free: Option<f64>,
    short: u32,
}

impl Turns {
    /// None: the next chunk may be asked for. Else that is to be looked at again
    /// when so many small ones have passed in this cycle, or so much time.
    pub fn wait(&self, c: &Cycle) -> Option<(u64, Duration)> {
        let least = c.share.map_or(Duration::ZERO, |share| {
            c.blocked.mul_f64(1.0 / share - 1.0).min(LEAST_MAX)
        });
        if let Some(left) = least.checked_sub(c.turn).filter(|l| !l.is_zero()) {
            return Some((u64::MAX, left));
        }
        // Small ones pass on the way, too.
        let full = c.blocked.mul_f64(PART).saturating_sub(c.way).min(YIELD);
        let left = full.checked_sub(c.turn).filter(|l| !l.is_zero())?;
        match self.free {
            Some(free) if self.short < PROBE => {
                let due = (free * SHARE * c.elapsed.as_secs_f64()).ceil() as u64;
                (c.passed < due).then_some((due, left))
            }
            _ => Some((u64::MAX, left)),
        }
    }

    /// A turn is over. `tail`: its last third and how many passed in that, if it
    /// was full; before that come those that waited.
    pub fn over(&mut self, tail: Option<(Duration, u64)>) {
        self.short += 1;
        let Some((time, passed)) = tail.filter(|(t, _)| *t >= MEASURE_MIN) else {
            return;
        };
        let pace = passed as f64 / time.as_secs_f64();
        self.free = Some(self.free.map_or(pace, |f| f * 0.7 + pace * 0.3));
        self.short = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Chunks of 20 ms, a way of 1 ms, clients that want `offered` a second of the
    /// `most` that are possible between chunks. How many a second they get, and
    /// which part of the time the chunks have.
    fn run(offered: f64, most: f64) -> (f64, f64) {
        let mut turns = Turns::default();
        let (mut waiting, mut done, mut time, mut chunks) = (0.0, 0.0, 0.0, 0.0);
        // A millisecond in which small ones may commit, or not.
        let step = |open: bool, waiting: &mut f64| {
            // As many clients as that wait at most.
            *waiting = (*waiting + offered / 1000.0).min(400.0);
            let passed = waiting.min(if open { most / 1000.0 } else { 0.0 });
            *waiting -= passed;
            passed
        };
        for _ in 0..500 {
            let mut c = Cycle {
                blocked: MS(20),
                way: MS(1),
                ..Cycle::default()
            };
            let mut passed = step(true, &mut waiting);
            for _ in 0..20 {
                passed += step(false, &mut waiting);
            }
            c.elapsed = MS(21);
            let mut tail = (Duration::ZERO, 0.0);
            loop {
                c.passed = passed as u64;
                if turns.wait(&c).is_none() {
                    break;
                }
                let now = step(true, &mut waiting);
                if c.turn >= MS(19) {
                    tail = (tail.0 + MS(1), tail.1 + now);
                }
                passed += now;
                c.elapsed += MS(1);
                c.turn += MS(1);
            }
            let full = c.turn >= MS(29);
            turns.over(full.then_some((tail.0, tail.1 as u64)));
            done += passed;
            time += c.elapsed.as_secs_f64();
            chunks += 0.020;
        }
        (done / time, chunks / time)
    }

    #[test]
    fn who_wants_little_gets_it_and_the_large_one_the_rest() {
        let (got, chunks) = run(1600.0, 4000.0);
        assert!(got > 1600.0 * 0.9, "{got}");
        assert!(chunks > 0.5, "{chunks} of the time");
        let (got, chunks) = run(200.0, 4000.0);
        assert!(got > 200.0 * 0.85, "{got}");
        assert!(chunks > 0.7, "{chunks} of the time");
    }

    #[test]
    fn who_wants_all_gets_the_larger_part() {
        let (got, chunks) = run(8000.0, 4000.0);
        assert!(got > 4000.0 * 0.55, "{got}");
        assert!(chunks > 0.35, "{chunks} of the time");
    }

    #[test]
    fn a_share_makes_turns_no_shorter_than_it_says() {
        let mut turns = Turns::default();
        turns.over(Some((MS(10), 1)));
        let cycle = |turn, share| Cycle {
            elapsed: MS(21) + turn,
            passed: 1000,
            blocked: MS(20),
            way: MS(1),
            turn,
            share,
        };
        assert_eq!(turns.wait(&cycle(MS(0), None)), None);
        assert_eq!(turns.wait(&cycle(MS(0), Some(1.0))), None);
        let wait = turns.wait(&cycle(MS(10), Some(0.25)));
        assert_eq!(wait, Some((u64::MAX, MS(50))));
        assert_eq!(turns.wait(&cycle(MS(60), Some(0.25))), None);
        let hiccup = Cycle {
            blocked: MS(60_000),
            ..cycle(MS(0), Some(0.01))
        };
        assert_eq!(turns.wait(&hiccup), Some((u64::MAX, LEAST_MAX)));
    }

    #[test]
    fn more_than_is_known_of_is_found_out() {
        let mut turns = Turns::default();
        turns.over(Some((MS(10), 1)));
        let quick = Cycle {
            elapsed: MS(25),
            passed: 3,
            blocked: MS(20),
            way: MS(1),
            turn: MS(4),
            share: None,
        };
        assert_eq!(turns.wait(&quick), None);
        for _ in 0..PROBE {
            turns.over(None);
        }
        assert_eq!(turns.wait(&quick), Some((u64::MAX, MS(25))));
        turns.over(Some((MS(10), 40)));
        assert!(turns.wait(&quick).is_some_and(|(due, _)| due > 3));
    }
}
