//! When a leader that hears nobody keeps silent (pure).
//!
//! A leader may be heard and not hear: a firewall before its port, while what it says goes over its own connections. Its
//! word would keep those who hear it from electing another one. So when nothing of a majority has come for
//! the longest election time it says nothing, for as long as an election takes; then it says something for a moment, as
//! who is new, or not told of its vote yet, says nothing unless asked; and so on until it hears a majority again. If the
//! others cannot elect anybody without it, silence is of no use.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::types::RaftId;

/// So many of the longest election times it is silent: faith ends after one, a candidate stands within another one.
const SILENT: u32 = 4;
/// For so many heartbeats it says something.
const SAYS: u32 = 3;

/// Whether `me`, which leads these voters, keeps silent. `silent_for`: since when nothing of one came in.
pub(crate) fn keeps_silent(
    me: RaftId,
    configs: &[BTreeSet<RaftId>],
    silent_for: impl Fn(RaftId) -> Duration,
    (heartbeat, election_max): (Duration, Duration),
) -> bool {
    let others = |c: &BTreeSet<RaftId>| c.iter().filter(|id| **id != me).count();
    if !configs.iter().all(|c| 2 * others(c) > c.len()) {
        return false;
    }
    let majority_silent_for = |c: &BTreeSet<RaftId>| {
        let silence = |id: &RaftId| match *id == me {
            true => Duration::ZERO,
            false => silent_for(*id),
        };
        let mut silences: Vec<Duration> = c.iter().map(silence).collect();
        silences.sort_unstable();
        silences.get(c.len() / 2).copied().unwrap_or_default()
    };
    let Some(age) = configs.iter().map(majority_silent_for).max() else {
        return false;
    };
    let Some(over) = age.checked_sub(election_max) else {
        return false;
    };
    let (silent, says) = (election_max * SILENT, heartbeat * SAYS);
    over.as_nanos() % (silent + says).as_nanos().max(1) < silent.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Member 1 leads, and has heard nothing of the others for so long.
    fn silent(configs: &[&[RaftId]], ages: &[u64]) -> bool {
        let configs: Vec<_> = configs
            .iter()
            .map(|c| c.iter().copied().collect())
            .collect();
        let age = |id: RaftId| ms(ages[id as usize - 2]);
        keeps_silent(1, &configs, age, (ms(100), ms(1000)))
    }

    #[test]
    fn who_hears_a_majority_speaks() {
        assert!(!silent(&[&[1, 2, 3]], &[999, 60_000]));
        assert!(silent(&[&[1, 2, 3]], &[1000, 60_000]));
        assert!(!silent(&[&[1, 2, 3, 4, 5]], &[10, 10, 60_000, 60_000]));
        assert!(silent(&[&[1, 2, 3, 4, 5]], &[10, 2000, 2000, 2000]));
        // Of each set of voters.
        assert!(silent(&[&[1, 2, 3], &[1, 4, 5]], &[10, 10, 2000, 2000]));
        assert!(!silent(&[], &[]));
    }

    #[test]
    fn it_speaks_for_a_moment_now_and_then() {
        let all: &[&[RaftId]] = &[&[1, 2, 3]];
        for (age, is) in [
            (4999, true),
            (5000, false),
            (5299, false),
            (5300, true),
            (9299, true),
            (9300, false),
        ] {
            assert_eq!(silent(all, &[age, age]), is, "{age}");
        }
    }

    #[test]
    fn who_is_needed_for_an_election_speaks() {
        assert!(!silent(&[&[1]], &[]));
        assert!(!silent(&[&[1, 2]], &[2000]));
        assert!(!silent(&[&[1], &[1, 2]], &[2000]));
        assert!(!silent(&[&[1, 2, 3], &[1, 2]], &[2000, 2000]));
        assert!(silent(&[&[2, 3]], &[2000, 2000]), "its own vote is gone");
    }
}
