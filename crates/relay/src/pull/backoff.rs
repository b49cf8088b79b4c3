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

#[cfg(test)]
mod tests {
    use super::*;

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
