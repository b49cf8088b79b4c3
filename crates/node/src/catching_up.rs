//! How long the queue of a member that catches up may be, so that it does catch up.
//!
//! After a join the queue holds what was ordered meanwhile. While writers order as fast as the member
//! applies, it never becomes shorter. So from some seconds on the length that it may have shrinks:
//!
//! ```text
//!   queue │╲   ╱╲      allowed: never more than it has been, and a fourth of the
//!         │ ╲ ╱  ╲__   member's rate less each second
//!         │  ╳    ╲ ╲__
//!         │       queue╲_
//!         └──────┼──────────> time
//!              GRACE
//! ```
//!
//! Above that the member asks for a pause. Writers are left three fourths of its rate, and it has
//! caught up after four times as long as it would take if nobody wrote.

use std::time::{Duration, Instant};

/// A member that is this new to catching up holds nobody: most need no longer, and its pages are
/// not in memory yet.
pub const GRACE: Duration = Duration::from_secs(10);
/// This part of what it finishes must bring it closer.
const CLOSER: f64 = 0.25;

/// What one member that catches up may have in its queue.
#[derive(Clone, Debug)]
pub struct CatchingUp {
    since: Instant,
    /// Events, and as of when; none within the grace.
    allowed: Option<(f64, Instant)>,
}

impl CatchingUp {
    /// It begins to catch up.
    pub fn new(now: Instant) -> Self {
        CatchingUp {
            since: now,
            allowed: None,
        }
    }

    /// Its queue holds so many events, and it finishes `rate` of them in a second (0: not known).
    pub fn look(&mut self, queue: usize, rate: f64, now: Instant) {
        if now.duration_since(self.since) < GRACE {
            return;
        }
        let queue = queue as f64;
        let allowed = self.allowed.map_or(queue, |(allowed, at)| {
            let closer = CLOSER * rate * now.duration_since(at).as_secs_f64();
            (allowed - closer).max(0.0).min(queue)
        });
        self.allowed = Some((allowed, now));
    }

    /// How many events may wait, beyond what may wait with a member that has caught up. `None`:
    /// any number.
    pub fn allowed(&self) -> Option<usize> {
        self.allowed.map(|(allowed, _)| allowed as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    /// Writers want `offered` events a second, and wait while more wait than is allowed and
    /// `limit`. When the queue was empty, and what they could order until then, a second.
    fn catch_up(mut queue: f64, rate: f64, offered: f64, limit: f64) -> Option<(Duration, f64)> {
        let begin = Instant::now();
        let mut member = CatchingUp::new(begin);
        let mut ordered = 0.0;
        for n in 0..36_000u32 {
            let passed = STEP * n;
            member.look(queue as usize, rate, begin + passed);
            let most = member.allowed().map_or(f64::MAX, |a| a as f64 + limit);
            let more = (offered * STEP.as_secs_f64()).min((most - queue).max(0.0));
            ordered += more;
            queue = (queue + more - rate * STEP.as_secs_f64()).max(0.0);
            if queue < limit.min(64.0) {
                return Some((passed, ordered / passed.as_secs_f64().max(0.1)));
            }
        }
        None
    }

    #[test]
    fn it_holds_nobody_at_first() {
        let begin = Instant::now();
        let mut member = CatchingUp::new(begin);
        for n in 0..100 {
            member.look(n * 1000, 10.0, begin + STEP * n as u32);
            assert_eq!(member.allowed(), None);
        }
        member.look(7, 10.0, begin + GRACE);
        assert_eq!(member.allowed(), Some(7));
    }

    #[test]
    fn it_catches_up_and_leaves_writers_most() {
        // As fast as it applies, and three times as fast: without a bound, never.
        for offered in [1000.0, 3000.0] {
            let (took, each) = catch_up(20_000.0, 1000.0, offered, 100.0).expect("it catches up");
            let alone = (20_000.0 + GRACE.as_secs_f64() * (offered - 1000.0)) / 1000.0;
            let most = GRACE.as_secs_f64() + alone / CLOSER;
            assert!(took.as_secs_f64() < most + 2.0, "{took:?} of {most}");
            assert!(each > 700.0, "{each} a second");
        }
    }

    #[test]
    fn who_comes_closer_by_itself_holds_nobody() {
        let (took, each) = catch_up(20_000.0, 1000.0, 500.0, 100.0).expect("it catches up");
        assert!((38..42).contains(&took.as_secs()), "{took:?}");
        assert!(each > 499.0, "{each} a second");
    }

    #[test]
    fn of_one_that_stands_still_the_queue_may_be_no_longer_than_it_is() {
        let begin = Instant::now();
        let mut member = CatchingUp::new(begin);
        for n in 0..100u32 {
            member.look(500 + n as usize, 0.0, begin + GRACE + STEP * n);
        }
        assert_eq!(member.allowed(), Some(500));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Never more than any queue that was seen, and never more than before.
        #[test]
        fn it_only_shrinks(steps in prop::collection::vec((0usize..100_000, 0.0f64..1e5, 0u64..20_000), 1..60)) {
            let mut now = Instant::now();
            let mut member = CatchingUp::new(now);
            let mut before = None;
            for (queue, rate, millis) in steps {
                now += Duration::from_millis(millis);
                member.look(queue, rate, now);
                let allowed = member.allowed();
                prop_assert!(allowed.is_none_or(|a| a <= queue));
                prop_assert!(before.is_none_or(|b| allowed.is_some_and(|a| a <= b)));
                before = allowed;
            }
        }
    }
}
