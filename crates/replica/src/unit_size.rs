//! How many transactions of the source make one of the target, by what both cost. Without I/O and
//! clocks.
//!
//! Units are executed side by side and commit one after the other:
//!
//! ```text
//!   worker 1  ▒▒▒▒▒▒▒▒▒▒▒▒▒█          ▒  executes: so much for each transaction
//!   worker 2    ▒▒▒▒▒▒▒▒▒▒▒▒ █        █  commits: as much for one transaction as for many
//!   worker 3      ▒▒▒▒▒▒▒▒▒▒   █
//! ```
//!
//! With n transactions in one, commits let n / commit through, workers threads / execute. Where
//! commits could do [`SPARE`] times what workers can, larger units let no more through. They meet
//! each other more often, and lose more when one gives way: slow reads make them small.
//!
//! Where a transaction costs next to nothing there are many in one all the same ([`ROUND`]): rows
//! in the order of their keys lie the closer the more there are, share a statement, and what
//! changes several times is written once. Where the target is far behind a unit may take part of
//! that time ([`SHARE`]): nobody sees it later for that. Units that give way take it back.

use std::time::Duration;

/// Before anything is known.
pub const FIRST: usize = 20;
/// Fewer only if more have not come.
pub const LEAST: usize = 4;
/// More gain nothing.
const MOST: usize = 10_000;
/// So long a unit may be executed in any case, in seconds.
const ROUND: f64 = 0.06;
/// And so much of the time by which the target is behind,
const SHARE: f64 = 0.05;
/// but no longer than this, in seconds: it is what is done again after a kill.
const LONGEST: f64 = 1.0;
/// Where more of the units than this give way, the next are to be shorter.
const WASTE: f64 = 0.05;
/// Commits shall be able to do so many times what workers can.
const SPARE: f64 = 3.0;
/// Weight of one more in the mean.
const WEIGHT: f64 = 0.125;
/// One that took so many times the mean counts as no more: a disk that was busy with other things
/// for a moment says little.
const OUTLIER: f64 = 4.0;
/// Nothing takes less, in seconds.
const TICK: f64 = 1e-6;

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, seconds: f64) {
        let x = seconds.max(TICK);
        self.0 = Some(match self.0 {
            None => x,
            Some(mean) => mean + WEIGHT * (x.min(mean * OUTLIER) - mean),
        });
    }
}

/// What a transaction and a commit cost of late.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitSize {
    /// Of one transaction of the source, in seconds.
    execute: Mean,
    /// In seconds.
    commit: Mean,
    /// By how much the target is behind, in seconds.
    behind: f64,
    /// What of [`SHARE`] was taken back.
    halved: u32,
}

impl UnitSize {
    /// The target is behind by so much.
    pub fn behind(&mut self, by: Duration) {
        self.behind = by.as_secs_f64();
    }

    /// In the time that is over this part of the units gave way.
    pub fn wasted(&mut self, part: f64) {
        self.halved = match part > WASTE {
            true => (self.halved + 1).min(8),
            false => self.halved.saturating_sub(1),
        };
    }

    /// How long a unit may be executed though commits do not ask for it, in seconds.
    fn round(&self) -> f64 {
        let share = SHARE / f64::from(1 << self.halved);
        (self.behind * share).clamp(ROUND, LONGEST)
    }

    /// A unit of so many transactions was executed in this time.
    pub fn executed(&mut self, transactions: usize, took: Duration) {
        self.execute
            .add(took.as_secs_f64() / transactions.max(1) as f64);
    }

    /// A unit committed, and this was the time since it came, or since the one before it had
    /// committed if that was later.
    pub fn committed(&mut self, took: Duration) {
        self.commit.add(took.as_secs_f64());
    }

    /// Whether it is known what they cost. Until then few should be under way: what was made of
    /// [`FIRST`] each commits so, one after the other, however slow the disk is.
    pub fn is_known(&self) -> bool {
        self.execute.0.is_some() && self.commit.0.is_some()
    }

    /// Most transactions in a unit, if so many are executed at a time.
    pub fn most(&self, threads: usize) -> usize {
        match (self.execute.0, self.commit.0) {
            (Some(execute), Some(commit)) => {
                let most = (SPARE * commit * threads as f64).max(self.round()) / execute;
                (most as usize).clamp(LEAST, MOST)
            }
            _ => FIRST,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// After many units of its own size: a commit, and what one transaction and one unit take.
    fn settled(commit: Duration, one: Duration, unit: Duration, threads: usize) -> usize {
        let mut size = UnitSize::default();
        for _ in 0..100 {
            let most = size.most(threads);
            size.executed(most, unit + one * u32::try_from(most).expect("few"));
            size.committed(commit);
        }
        size.most(threads)
    }

    #[test]
    fn a_slow_disk_makes_them_large_and_slow_reads_small() {
        let unit = micros(200);
        let slow = settled(micros(8_000), micros(20), unit, 8);
        assert!((9_000..MOST).contains(&slow), "{slow}");
        assert_eq!(settled(micros(20_000), micros(20), unit, 8), MOST);
        // A round's worth of them, though commits alone would do with a sixth.
        let in_memory = settled(micros(400), micros(20), unit, 8);
        assert!((2_700..3_000).contains(&in_memory), "{in_memory}");
        let reading = settled(micros(400), micros(4_000), unit, 8);
        assert!((10..=15).contains(&reading), "{reading}");
        assert_eq!(settled(micros(400), micros(40_000), unit, 8), LEAST);
        let both = settled(micros(8_000), micros(4_000), unit, 8);
        assert!((40..60).contains(&both), "{both}");
    }

    #[test]
    fn at_first_and_one_by_one() {
        let mut size = UnitSize::default();
        assert_eq!(size.most(8), FIRST);
        size.committed(micros(1));
        assert_eq!(size.most(8), FIRST);
        assert!(!size.is_known());
        size.executed(1, Duration::ZERO);
        assert!(size.is_known());
        assert!((LEAST..=MOST).contains(&size.most(1)));
    }

    #[test]
    fn far_behind_they_are_long_unless_they_give_way() {
        let mut size = UnitSize::default();
        for _ in 0..20 {
            size.executed(100, micros(20_000));
            size.committed(micros(100));
        }
        assert_eq!(size.most(8), 300);
        size.behind(Duration::from_millis(1_200));
        assert_eq!(size.most(8), 300);
        size.behind(Duration::from_secs(10));
        assert_eq!(size.most(8), 2_500);
        size.behind(Duration::from_secs(86_400));
        assert_eq!(size.most(8), 5_000);
        size.behind(Duration::from_secs(10));
        for (waste, most) in [
            (0.1, 1_250),
            (0.2, 625),
            (0.04, 1_250),
            (0.0, 2_500),
            (0.0, 2_500),
        ] {
            size.wasted(waste);
            assert_eq!(size.most(8), most);
        }
        (0..20).for_each(|_| size.wasted(1.0));
        assert_eq!(size.most(8), 300);
    }

    #[test]
    fn one_long_commit_says_little() {
        let mut size = UnitSize::default();
        for _ in 0..20 {
            size.executed(10, micros(10_000));
            size.committed(micros(1_000));
        }
        let before = size.most(8);
        size.committed(Duration::from_secs(5));
        assert!(size.most(8) <= before * 3 / 2);
        // Many do.
        for _ in 0..60 {
            size.committed(micros(100_000));
        }
        assert!(size.most(8) > before * 20);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever it is told, it stays in its bounds, and more workers never make units smaller.
        #[test]
        fn bounds(steps in prop::collection::vec((0usize..2000, 0u64..10_000_000_000, any::<bool>()), 0..100), threads in 1usize..512, behind in 0u64..1_000_000) {
            let mut size = UnitSize::default();
            size.behind(Duration::from_secs(behind));
            for (transactions, nanos, commit) in steps {
                let took = Duration::from_nanos(nanos);
                match commit {
                    true => size.committed(took),
                    false => size.executed(transactions, took),
                }
                let most = size.most(threads);
                prop_assert!((LEAST..=MOST).contains(&most));
                prop_assert!(size.most(threads + 1) >= most);
            }
        }
    }
}
