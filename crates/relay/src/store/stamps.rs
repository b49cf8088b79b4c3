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

use dromon_binlog::{Gtid, Position};

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
    /// The highest numbers so far, where numbers of a domain may be out of order.
    highest: Position,
}

impl Sample {
    /// Whether someone who has this has all up to the last one. In doubt not.
    fn is_had(&self, has: &Position) -> bool {
        self.position.iter().all(|last| {
            let highest = self.highest.get(last.domain).map_or(0, |gtid| gtid.seqno);
            has.get(last.domain).is_some_and(|has| {
                // A server's own numbers rise. Behind a number of another one all that came is only if it
                // is above all of them.
                has.server == last.server && has.seqno >= last.seqno || has.seqno > highest
            })
        })
    }
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
        let mut highest = position.clone();
        for before in self.samples.back().iter().flat_map(|s| s.highest.iter()) {
            let higher = |gtid: Gtid| gtid.seqno >= before.seqno;
            if !highest.get(before.domain).is_some_and(higher) {
                highest.set(before);
            }
        }
        if let Some(last) = self.samples.back_mut()
            && since < last.since + GRAIN_MS
        {
            last.since = last.since.min(since);
            last.position = position;
            last.highest = highest;
            return;
        }
        self.samples.push_back(Sample {
            since,
            position,
            highest,
        });
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
                highest: last.highest.clone(),
            })
        });
        for sample in pairs {
            self.samples.push_front(sample);
        }
    }

    /// For how many milliseconds someone who has this lacks something; 0: it has all.
    pub fn lag(&self, now: i64, has: &Position) -> u64 {
        // Numbers of a domain may be out of order: the last that is had, and all before it are.
        let had = self.samples.iter().rposition(|sample| sample.is_had(has));
        match self.samples.get(had.map_or(0, |had| had + 1)) {
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

    /// Two servers write in one domain of a primary without gtid_strict_mode.
    #[test]
    fn numbers_out_of_order() {
        let of = |text: &str| text.parse::<Position>().expect("a position");
        let mut stamps = Stamps::default();
        stamps.came(100, of("0-1-97,5-1-1"));
        stamps.came(200, of("0-1-99,5-1-1"));
        stamps.came(300, of("0-2-50,5-1-1"));
        let lag = |stamps: &Stamps, has: &str| stamps.lag(1000, &of(has));
        assert_eq!(lag(&stamps, "0-2-50,5-1-1"), 0, "it has all");
        for (has, expected) in [
            ("0-1-99,5-1-1", 700),
            ("0-1-98,5-1-1", 800),
            ("0-1-97,5-1-1", 800),
            ("0-1-96,5-1-1", 900),
            ("0-2-49,5-1-1", 900),
            ("0-2-50", 900),
            ("0-1-100,5-1-1", 0),
        ] {
            assert_eq!(lag(&stamps, has), expected, "{has}");
        }
        stamps.came(400, of("0-2-60,5-1-1"));
        assert_eq!(lag(&stamps, "0-2-50,5-1-1"), 600);
        assert_eq!(lag(&stamps, "0-2-55,5-1-1"), 600);
        assert_eq!(lag(&stamps, "0-1-99,5-1-1"), 700);
        assert_eq!(lag(&stamps, "0-2-60,5-1-1"), 0);
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
