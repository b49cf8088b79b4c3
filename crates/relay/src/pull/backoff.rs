//! How long to wait before the next attempt.

use std::time::Duration;

/// Doubles from attempt to attempt, up to a limit, with jitter, so that many relays do not come
/// back to a primary at one moment.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
    failures: u32,
}

impl Backoff {
    /// From `first` up to `limit`.
    pub fn new(first: Duration, limit: Duration) -> Backoff {
        Backoff {
            first,
            limit,
            failures: 0,
        }
    }

    /// An attempt failed: wait so long. `random` is any number.
    pub fn failed(&mut self, random: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let whole = doubled.min(self.limit);
        // Between a half and the whole.
        whole / 2 + (whole / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// An attempt succeeded.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Attempts that failed since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// A primary that looks in its files for the place to go on sends nothing, for so long at most at first. As
/// replicas wait (slave_net_timeout).
const SEARCHES: Duration = Duration::from_secs(60);
/// And at last: its files may be large, and its disk slow.
const SEARCHES_MAX: Duration = Duration::from_secs(1800);
/// A connection over which events could come for so long was a success.
const LIVED: Duration = Duration::from_secs(10);

/// How a connection was that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lived {
    /// It was asked for events.
    pub asked: bool,
    /// A group or a heartbeat came: the place was found.
    pub found: bool,
    /// It brought something whole.
    pub brought: bool,
    /// It ended as nothing came.
    pub silent: bool,
    /// How long it was there.
    pub lasted: Duration,
}

/// The attempts to get events.
#[derive(Clone, Debug)]
pub struct Attempts {
    backoff: Backoff,
    searches: Duration,
}

impl Attempts {
    /// See [`Backoff::new`].
    pub fn new(first: Duration, limit: Duration) -> Attempts {
        Attempts {
            backoff: Backoff::new(first, limit),
            searches: SEARCHES,
        }
    }

    /// So long the next connection may be silent before the place is found.
    pub fn searches(&self) -> Duration {
        self.searches
    }

    /// One ended: wait so long. `random` is any number.
    pub fn ended(&mut self, lived: Lived, random: u32) -> Duration {
        // What brings something on is worth coming back for at once, however short it lives. One that ends
        // before the place is found is not, however long that took: it is looked for anew from the beginning.
        if lived.brought || lived.found && lived.lasted > LIVED {
            self.backoff.succeeded();
        }
        if lived.found {
            self.searches = SEARCHES;
        } else if lived.asked && lived.silent {
            self.searches = (self.searches * 2).min(SEARCHES_MAX);
        }
        self.backoff.failed(random)
    }

    /// Attempts that failed since the last success.
    pub fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_ends_in_silence() {
        let (first, limit) = (Duration::from_millis(100), Duration::from_secs(10));
        let mut attempts = Attempts::new(first, limit);
        let searched = |lasted| Lived {
            asked: true,
            silent: true,
            lasted,
            ..Lived::default()
        };
        let mut minutes = Vec::new();
        for n in 1..=8 {
            let patience = attempts.searches();
            minutes.push(patience.as_secs() / 60);
            let pause = attempts.ended(searched(patience), u32::MAX);
            assert_eq!(pause, limit.min(first * (1 << (n - 1))));
            assert_eq!(attempts.failures(), n);
        }
        assert_eq!(minutes, [1, 2, 4, 8, 16, 30, 30, 30]);
        // A refusal at its end is none either, and no reason for more patience.
        let mut refused = Attempts::new(first, limit);
        let late = Lived {
            silent: false,
            ..searched(Duration::from_secs(50))
        };
        refused.ended(late, 0);
        assert!(refused.ended(late, u32::MAX) > first);
        assert_eq!(refused.searches(), SEARCHES);
        // Nor is a host that does not answer at all.
        let silent = Lived {
            asked: false,
            ..searched(Duration::from_secs(50))
        };
        refused.ended(silent, 0);
        assert_eq!((refused.searches(), refused.failures()), (SEARCHES, 3));
        // The place was found.
        let found = Lived {
            found: true,
            ..searched(Duration::from_secs(11))
        };
        assert_eq!(attempts.ended(found, u32::MAX), first);
        assert_eq!(attempts.searches(), SEARCHES);
        let short = Lived {
            lasted: Duration::from_secs(1),
            ..found
        };
        assert!(attempts.ended(short, u32::MAX) > first);
        let brought = Lived {
            brought: true,
            ..short
        };
        assert_eq!(attempts.ended(brought, u32::MAX), first);
    }

    #[test]
    fn grows_to_the_limit_for_ever() {
        let (first, limit) = (Duration::from_millis(100), Duration::from_secs(10));
        let mut least = Backoff::new(first, limit);
        let mut most = Backoff::new(first, limit);
        let mut before = Duration::ZERO;
        for n in 0..10_000u32 {
            let (a, b) = (least.failed(0), most.failed(u32::MAX));
            assert!(
                b <= limit && b >= before && a * 2 >= b.min(limit) && a <= b,
                "{n}"
            );
            before = b;
        }
        assert_eq!(before, limit);
        most.succeeded();
        assert!(most.failed(7) <= first);
    }
}
