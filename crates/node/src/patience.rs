//! How long a member's queue may be above its limit before the member asks for a pause.
//!
//! A limit of some events is reached within milliseconds, and a disk may take longer than that
//! for one of them: then every writer of the cluster would stand still for one member's moment.
//! So a member has an account of time:
//!
//! ```text
//!   full ──╮        ╭───────── earned: a tenth of the time below the limit
//!           ╲      ╱
//!            ╲   ╱             spent: the time above it
//!             ╲╱
//!   empty ────────────────     the member asks for a pause, as with `gcs.fc_limit` alone
//! ```
//!
//! Who cannot keep up at all soon has nothing left, and then the limit counts to the event. Nor
//! does the queue grow without bound meanwhile ([`MOST`]).
//!
//! Time in which a member's turn is at the end of a large transaction is not spent: its server may
//! have to copy all of that into its binary log, or to remove what it stored of it, and that says
//! nothing of the pace to come.

use std::time::{Duration, Instant};

/// So many times its limit may wait at a member whose account is not empty.
pub const MOST: usize = 256;
/// One in so many seconds below the limit is earned.
const EARNED: u32 = 10;

/// One member's account.
#[derive(Debug, Default)]
pub struct Patience {
    /// What is left of `most`, as of when, and whether the queue was above the limit then;
    /// `None`: nobody has looked yet.
    account: Option<(Duration, Instant, bool)>,
}

impl Patience {
    /// The queue holds `queue` events, more than `upper` are too many, and the account holds
    /// `most` at most; at an `end` of a large transaction no time is spent (unless `most` is none).
    /// Answers whether the member bears it: it asks for no pause yet.
    pub fn bears(
        &mut self,
        (queue, upper): (usize, usize),
        end: bool,
        most: Duration,
        now: Instant,
    ) -> bool {
        let above = queue > upper;
        let end = end && !most.is_zero();
        let left = match self.account {
            None => most,
            Some((left, _, true)) if end => left,
            Some((left, at, true)) => left.saturating_sub(now.saturating_duration_since(at)),
            Some((left, at, false)) => left + now.saturating_duration_since(at) / EARNED,
        };
        let left = left.min(most);
        self.account = Some((left, now, above));
        let bears = end || !left.is_zero();
        !above || (bears && queue <= upper.saturating_mul(MOST))
    }

    /// Whether the time since the last look counts as time above the limit.
    pub fn counts_above(&self) -> bool {
        self.account.is_some_and(|(.., above)| above)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_millis(50);

    /// How long a member that stands still from now on bears it, while events come.
    fn borne(member: &mut Patience, now: &mut Instant, most: Duration) -> Duration {
        let begin = *now;
        while member.bears((28, 27), false, most, *now) {
            *now += STEP;
        }
        *now - begin
    }

    #[test]
    fn a_moment_is_borne_and_the_next_one_when_it_is_earned() {
        let mut now = Instant::now();
        let mut member = Patience::default();
        assert!(member.bears((27, 27), false, SECOND, now));
        assert_eq!(borne(&mut member, &mut now, SECOND), SECOND);
        assert!(
            !member.bears((28, 27), false, SECOND, now),
            "and what comes then is not"
        );
        // It has caught up: after three seconds it bears a third of one.
        member.bears((0, 27), false, SECOND, now);
        now += 3 * SECOND;
        assert_eq!(
            borne(&mut member, &mut now, SECOND),
            Duration::from_millis(300)
        );
        // After an hour it does not bear more than ever.
        member.bears((0, 27), false, SECOND, now);
        now += 3600 * SECOND;
        assert_eq!(borne(&mut member, &mut now, SECOND), SECOND);
    }

    #[test]
    fn the_end_of_a_large_one_costs_no_patience() {
        let mut now = Instant::now();
        let mut member = Patience::default();
        for _ in 0..1000 {
            assert!(member.bears((28, 27), true, SECOND, now));
            now += STEP;
        }
        assert!(!member.bears((27 * MOST + 1, 27), true, SECOND, now));
        // Behind it all of the account is there, and who had spent it has no more than before.
        assert_eq!(borne(&mut member, &mut now, SECOND), SECOND);
        assert!(member.bears((28, 27), true, SECOND, now));
        now += STEP;
        assert!(!member.bears((28, 27), false, SECOND, now));
        // Who wants the limit to count has that.
        assert!(!Patience::default().bears((28, 27), true, Duration::ZERO, now));
    }

    #[test]
    fn no_queue_is_longer_than_so_many_limits() {
        let now = Instant::now();
        let mut member = Patience::default();
        assert!(member.bears((27 * MOST, 27), false, SECOND, now));
        assert!(!member.bears((27 * MOST + 1, 27), false, SECOND, now));
        assert!(
            member.bears((100, 27), false, SECOND, now),
            "the account is not empty"
        );
        // A member that asks for nothing has no limit.
        assert!(member.bears((usize::MAX, usize::MAX), false, SECOND, now));
    }

    #[test]
    fn with_none_the_limit_counts_to_the_event() {
        let mut now = Instant::now();
        let mut member = Patience::default();
        for _ in 0..100 {
            assert!(member.bears((27, 27), false, Duration::ZERO, now));
            assert!(!member.bears((28, 27), false, Duration::ZERO, now));
            now += SECOND;
        }
        // It is set at run time, to less and to more.
        assert!(member.bears((0, 27), false, SECOND, now));
        now += 100 * SECOND;
        assert!(member.bears((28, 27), false, SECOND, now));
        assert!(!member.bears((28, 27), false, Duration::ZERO, now));
    }

    proptest! {
        /// Whatever happens, of any time no more is borne than a full account and a tenth of it,
        /// but for what passes until the next look.
        #[test]
        fn never_more_than_is_there(
            queues in proptest::collection::vec((0usize..60, 1u32..100), 1..60),
            most in 0u64..3_000,
        ) {
            const LOOK: Duration = Duration::from_millis(10);
            let most = Duration::from_millis(most);
            let mut now = Instant::now();
            let mut member = Patience::default();
            let (mut borne, mut there) = (Duration::ZERO, most);
            for (queue, looks) in queues {
                for _ in 0..looks {
                    if member.bears((queue, 27), false, most, now) && queue > 27 {
                        borne += LOOK;
                    }
                    now += LOOK;
                    there += LOOK / EARNED;
                }
                there += LOOK;
                prop_assert!(borne <= there, "{borne:?} of {there:?}");
            }
        }
    }
}
