//! How long this node may count itself to the primary component.
//!
//! The leader is primary while a majority answered it less than the lease ago.
//! Its heartbeats and appends say what is left of that, and a follower is primary
//! until the last such promise runs out on its own monotonic clock. So a node
//! that is cut off knows within lease plus heartbeat, and one that merely lost
//! its leader keeps calm until then. Nothing about the order's safety depends
//! on it: it decides when to stop waiting and to tell the clients.

use std::time::Duration;

/// A follower's view of the lease. Times are since any fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Term and leader of the newest leadership heard of.
    leadership: (u64, u64),
    until: Duration,
}

impl Lease {
    /// A leader of `leadership` (term, id) promised `left` at `now`. Promises
    /// of older leaderships do not count.
    pub fn promised(&mut self, leadership: (u64, u64), left: Duration, now: Duration) {
        if leadership < self.leadership {
            return;
        }
        self.leadership = leadership;
        self.until = self.until.max(now + left);
    }

    /// What is left at `now`.
    pub fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn runs_out_and_is_renewed() {
        let mut l = Lease::default();
        assert_eq!(l.left(ms(0)), ms(0));
        l.promised((1, 7), ms(100), ms(50));
        assert_eq!(l.left(ms(60)), ms(90));
        // A frame that was longer under way promises less; the longer one holds.
        l.promised((1, 7), ms(10), ms(61));
        assert_eq!(l.left(ms(61)), ms(89));
        assert_eq!(l.left(ms(150)), ms(0));
    }

    #[test]
    fn an_old_leader_promises_nothing() {
        let mut l = Lease::default();
        l.promised((2, 7), ms(10), ms(0));
        l.promised((1, 9), ms(1000), ms(0));
        assert_eq!(l.left(ms(20)), ms(0));
    }
}
