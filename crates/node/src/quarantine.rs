//! Which members keep the others waiting, and for how long: who does so for
//! too long is named, or not waited for any more (`dromon.slow_node`).
//!
//! Each origin decides for itself: this is about waiting only, nothing that the
//! members must agree on depends on it. Time comes in from outside.
//!
//! ```text
//!   held back   ████░███████░░██████          a member's queue is (nearly) at the limit
//!   account     ╱╲╱───╱──╲──╱── 5 s ──> named, or in quarantine, until it has caught up
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use dromon_writeset::Uuid;

/// How long, all in all, a member may hold the others; time in which it does
/// not hold them counts against it.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A look that comes later than this counts for this much.
const GAP_MAX: Duration = Duration::from_secs(1);

/// A counted member as an origin sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Who.
    pub uuid: Uuid,
    /// It asks for a pause, or its queue slows the others down a good deal.
    pub holds: bool,
    /// Next to nothing waits there.
    pub caught_up: bool,
}

/// Something to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has held the others for too long.
    Slow(Uuid),
    /// It has caught up.
    CaughtUp(Uuid),
}

/// Accounts of all members.
#[derive(Debug, Default)]
pub struct Quarantine {
    members: BTreeMap<Uuid, Account>,
}

#[derive(Debug, Default)]
struct Account {
    held: Duration,
    slow: bool,
}

impl Quarantine {
    /// `passed` since the last look. Who is not `seen` any more is forgotten.
    pub fn look(&mut self, passed: Duration, seen: &[Seen]) -> Vec<Change> {
        let passed = passed.min(GAP_MAX);
        self.members
            .retain(|uuid, _| seen.iter().any(|s| s.uuid == *uuid));
        let mut changes = Vec::new();
        for s in seen {
            let account = self.members.entry(s.uuid).or_default();
            account.held = match s.holds {
                true => (account.held + passed).min(PATIENCE),
                false => account.held.saturating_sub(passed),
            };
            if !account.slow && account.held >= PATIENCE {
                account.slow = true;
                changes.push(Change::Slow(s.uuid));
            } else if account.slow && s.caught_up {
                *account = Account::default();
                changes.push(Change::CaughtUp(s.uuid));
            }
        }
        changes
    }

    /// Those that are slow and have not caught up since.
    pub fn slow(&self) -> impl Iterator<Item = Uuid> + '_ {
        let slow = self.members.iter().filter(|(_, a)| a.slow);
        slow.map(|(uuid, _)| *uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: Duration = Duration::from_millis(100);

    fn seen(n: u8, holds: bool, caught_up: bool) -> Seen {
        Seen {
            uuid: Uuid([n; 16]),
            holds,
            caught_up,
        }
    }

    fn slow(q: &Quarantine) -> Vec<u8> {
        q.slow().map(|u| u.0[0]).collect()
    }

    #[test]
    fn who_holds_the_others_for_five_seconds_is_slow_until_it_has_caught_up() {
        let mut q = Quarantine::default();
        for _ in 0..49 {
            assert_eq!(q.look(STEP, &[seen(1, true, false)]), []);
        }
        let one = Uuid([1; 16]);
        assert_eq!(q.look(STEP, &[seen(1, true, false)]), [Change::Slow(one)]);
        for _ in 0..200 {
            assert_eq!(q.look(STEP, &[seen(1, false, false)]), [], "still behind");
        }
        assert_eq!(slow(&q), [1]);
        let ends = q.look(STEP, &[seen(1, false, true)]);
        assert_eq!(ends, [Change::CaughtUp(one)]);
        assert_eq!(slow(&q), []);
    }

    #[test]
    fn now_and_then_is_not_slow_but_most_of_the_time_is() {
        let mut q = Quarantine::default();
        for n in 0..600 {
            q.look(
                STEP,
                &[seen(1, n % 2 == 0, false), seen(2, n % 3 != 0, false)],
            );
        }
        assert_eq!(slow(&q), [2]);
    }

    #[test]
    fn who_left_is_forgotten_and_a_stopped_looker_learns_little() {
        let mut q = Quarantine::default();
        for _ in 0..4 {
            q.look(Duration::from_secs(900), &[seen(1, true, false)]);
        }
        assert_eq!(slow(&q), [], "it was this node that was away");
        q.look(Duration::from_secs(900), &[seen(1, true, false)]);
        assert_eq!(slow(&q), [1]);
        q.look(STEP, &[]);
        assert_eq!(slow(&q), []);
    }

    proptest! {
        #[test]
        fn slow_only_after_enough_and_told_by_turns(
            steps in prop::collection::vec((0..1500u64, any::<bool>(), prop::bool::weighted(0.1)), 1..200),
        ) {
            let mut q = Quarantine::default();
            let mut is_slow = false;
            let mut held = Duration::ZERO;
            for (ms, holds, caught_up) in steps {
                let passed = Duration::from_millis(ms);
                if holds {
                    held += passed.min(GAP_MAX);
                }
                for change in q.look(passed, &[seen(1, holds, caught_up)]) {
                    match change {
                        Change::Slow(_) => {
                            prop_assert!(!is_slow && held >= PATIENCE);
                            is_slow = true;
                        }
                        Change::CaughtUp(_) => {
                            prop_assert!(is_slow && caught_up);
                            is_slow = false;
                            held = Duration::ZERO;
                        }
                    }
                }
                prop_assert_eq!(slow(&q).is_empty(), !is_slow);
            }
        }
    }
}
