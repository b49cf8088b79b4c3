//! When groups came, so that it can be said how far behind someone is.
//!
//! ```text
//!   since 0 ms     since 40 ms    since 95 ms         now
//!   ├ up to 0-1-5 ─┼ up to 0-1-9 ─┼ up to 0-1-12 ─────┤
//!                  └ who has 0-1-7 lacks something since 40 ms at most
//! ```
//!
//! Lag is the age of the oldest thing that is lacking, never less. Times are in
//! milliseconds of a clock that only goes forward.
//!
//! Mostly something is as old as it is here. What was here before the start, or comes late, is older:
//! it was committed after all before it had been made, by the clock of who made it ([`since`]).

use std::collections::VecDeque;

use dromon_binlog::Position;

/// What comes within so many milliseconds is one sample.
const GRAIN_MS: i64 = 20;
/// Most samples.
const MAX: usize = 2048;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    /// When the first group came that was not there before.
    since: i64,
    /// Up to the last one.
    position: Position,
}

/// Samples, oldest first. Old ones are far apart.
#[derive(Clone, Debug, Default)]
pub struct Stamps {
    samples: VecDeque<Sample>,
}

/// Since when something is lacking that comes now: the present time `now`, but for what was made more
/// than two seconds ago. `unix_ms`: the present time since 1970; `made`: when the latest of it and
/// of all before it was made, in seconds since 1970; 0: not known.
pub fn since(now: i64, unix_ms: i64, made: u32) -> i64 {
    // Whole seconds, cut off: below two nothing can be said.
    let age = unix_ms.saturating_sub(i64::from(made) * 1000);
    match made == 0 || age < 2000 {
        true => now,
        false => now.saturating_sub(age),
    }
}

impl Stamps {
    /// All up to this position is here; what is new of it was committed at that time or later.
    pub fn came(&mut self, since: i64, position: Position) {
        if let Some(last) = self.samples.back_mut()
            && since < last.since + GRAIN_MS
        {
            last.since = last.since.min(since);
            last.position = position;
            return;
        }
        self.samples.push_back(Sample { since, position });
        if self.samples.len() > MAX {
            self.thin();
        }
    }

    /// Of the older half every two become one.
    fn thin(&mut self) {
        let older: Vec<Sample> = self.samples.drain(..MAX / 2).collect();
        let pairs = older.chunks(2).rev().filter_map(|pair| {
            let (first, last) = (pair.first()?, pair.last()?);
            Some(Sample {
                since: first.since,
                position: last.position.clone(),
            })
        });
        for sample in pairs {
            self.samples.push_front(sample);
        }
    }

    /// For how many milliseconds someone who has this lacks something; 0: it has all.
    pub fn lag(&self, now: i64, has: &Position) -> u64 {
        // Numbers of a domain may be out of order.
        if self.samples.back().is_none_or(|s| has.covers(&s.position)) {
            return 0;
        }
        let lacks = self
            .samples
            .partition_point(|sample| has.covers(&sample.position));
        match self.samples.get(lacks) {
            None => 0,
            // Something is lacking, though it came this moment.
            Some(sample) => u64::try_from(now - sample.since).unwrap_or(0).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seqno: u64) -> Position {
        format!("0-1-{seqno}").parse().expect("a position")
    }

    #[test]
    fn the_age_of_what_is_lacking() {
        let mut stamps = Stamps::default();
        stamps.came(-5000, at(5));
        assert_eq!(stamps.lag(0, &at(5)), 0);
        assert_eq!(stamps.lag(0, &at(4)), 5000);
        stamps.came(100, at(6));
        stamps.came(110, at(7));
        stamps.came(200, at(9));
        assert_eq!(stamps.lag(1000, &at(5)), 900);
        assert_eq!(stamps.lag(1000, &at(6)), 900, "of one sample");
        assert_eq!(stamps.lag(1000, &at(7)), 800);
        assert_eq!(stamps.lag(1000, &at(8)), 800);
        assert_eq!(stamps.lag(1000, &at(9)), 0);
        assert_eq!(stamps.lag(200, &at(8)), 1, "not nothing");
        assert_eq!(stamps.lag(1000, &at(99)), 0);
        // It comes late.
        stamps.came(-7000, at(10));
        assert_eq!(stamps.lag(1000, &at(9)), 8000);
        assert_eq!(stamps.lag(1000, &at(10)), 0);
    }

    #[test]
    fn what_comes_late() {
        let unix_ms = 1_000_000_500;
        assert_eq!(since(70, unix_ms, 0), 70);
        assert_eq!(since(70, unix_ms, 999_999), 70);
        assert_eq!(since(70, unix_ms, 999_998), 70 - 2500);
        assert_eq!(since(70, unix_ms, 1_000_100), 70, "another clock");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10) })]

        /// Never less than the truth, and bounded.
        #[test]
        fn never_less(steps in proptest::collection::vec(0i64..60, 1..3500), has in 0usize..3500) {
            let mut stamps = Stamps::default();
            let mut times = Vec::new();
            let mut now = 0;
            for step in &steps {
                now += step;
                times.push(now);
                stamps.came(now, at(times.len() as u64));
                prop_assert!(stamps.samples.len() <= MAX);
            }
            let has = has.min(times.len());
            let position = if has == 0 { Position::new() } else { at(has as u64) };
            let lag = stamps.lag(now, &position) as i64;
            match times.get(has) {
                None => prop_assert_eq!(lag, 0),
                Some(came) => prop_assert!(lag >= (now - came).max(1)),
            }
        }
    }
}
