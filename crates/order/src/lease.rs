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
///
/// A process that stood still (SIGSTOP, a virtual machine) finds in its sockets what its leader said meanwhile, all at
/// once, and nothing in it says how old it is. So when a lease has run out, the same leader's word renews it only if it
/// goes on for [`APART`] of a heartbeat: what is found lies closer together. Another leader's word counts at once, unless
/// this process is known to have stood ([`Lease::stood`]): then that leader may be an old one, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Term and leader of the newest leadership heard of.
    leadership: (u64, u64),
    /// The newest one whose promise counted.
    counted: (u64, u64),
    until: Duration,
    /// The first promise that came since it ran out, and the last one.
    since: Option<(Duration, Duration)>,
    /// This process stood still, and no promise has counted since.
    stood: bool,
}

/// See [`Lease`].
const APART: f64 = 0.5;
/// After a silence of so many heartbeats it begins again.
const GAP: u32 = 4;

impl Lease {
    /// A leader of `leadership` (term, id) promised `left` at `now`. Promises
    /// of older leaderships do not count.
    pub fn promised(
        &mut self,
        leadership: (u64, u64),
        left: Duration,
        now: Duration,
        heartbeat: Duration,
    ) {
        if leadership < self.leadership {
            return;
        }
        self.leadership = leadership;
        if left.is_zero() {
            return;
        }
        // That of another leadership is new at least since then.
        if now >= self.until && (leadership == self.counted || self.stood) {
            let first = match self.since {
                // Who stood still again begins again.
                Some((first, last)) if now < last + heartbeat * GAP => first,
                _ => now,
            };
            self.since = Some((first, now));
            if now - first < heartbeat.mul_f64(APART) {
                return;
            }
        }
        self.since = None;
        self.stood = false;
        self.counted = leadership;
        self.until = self.until.max(now + left);
    }

    /// This process had no time for so long that what it finds may be old.
    pub fn stood(&mut self) {
        self.stood = true;
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

    const HEARTBEAT: Duration = ms(20);

    #[test]
    fn runs_out_and_is_renewed() {
        let mut l = Lease::default();
        assert_eq!(l.left(ms(0)), ms(0));
        l.promised((1, 7), ms(100), ms(50), HEARTBEAT);
        assert_eq!(l.left(ms(60)), ms(90));
        // A frame that was longer under way promises less; the longer one holds.
        l.promised((1, 7), ms(10), ms(61), HEARTBEAT);
        assert_eq!(l.left(ms(61)), ms(89));
        assert_eq!(l.left(ms(150)), ms(0));
    }

    #[test]
    fn an_old_leader_promises_nothing() {
        let mut l = Lease::default();
        l.promised((2, 7), ms(10), ms(0), HEARTBEAT);
        l.promised((1, 9), ms(1000), ms(0), HEARTBEAT);
        assert_eq!(l.left(ms(20)), ms(0));
    }

    #[test]
    fn what_waited_in_a_socket_renews_nothing() {
        let mut l = Lease::default();
        l.promised((1, 7), ms(90), ms(0), HEARTBEAT);
        for stood in [1_000, 5_000] {
            // All of it comes within less than half a heartbeat.
            for i in 0..stood / 20 {
                let now = ms(stood) + ms(9) * i as u32 / (stood / 20) as u32;
                l.promised((1, 7), ms(90), now, HEARTBEAT);
                assert_eq!(l.left(now), ms(0));
            }
        }
        // The leader is there, and busy: it promises with each append.
        for now in 5_009..5_010 {
            l.promised((1, 7), ms(90), ms(now), HEARTBEAT);
            assert_eq!(l.left(ms(now)), ms(0));
        }
        l.promised((1, 7), ms(90), ms(5_010), HEARTBEAT);
        assert_eq!(l.left(ms(5_010)), ms(90));
    }

    #[test]
    fn a_new_leader_need_not_say_it_twice() {
        let mut l = Lease::default();
        l.promised((1, 7), ms(90), ms(0), HEARTBEAT);
        // It has no majority yet.
        l.promised((2, 8), ms(0), ms(500), HEARTBEAT);
        assert_eq!(l.left(ms(500)), ms(0));
        l.promised((2, 8), ms(90), ms(501), HEARTBEAT);
        assert_eq!(l.left(ms(501)), ms(90));
    }

    /// It was elected, and perhaps replaced, while this process stood still.
    #[test]
    fn what_waited_of_a_new_leader_renews_nothing() {
        let mut l = Lease::default();
        l.promised((1, 7), ms(90), ms(0), HEARTBEAT);
        l.stood();
        for now in 5_000..5_010 {
            l.promised((2, 8), ms(90), ms(now), HEARTBEAT);
            assert_eq!(l.left(ms(now)), ms(0));
        }
        l.promised((2, 8), ms(90), ms(5_010), HEARTBEAT);
        assert_eq!(l.left(ms(5_010)), ms(90));
        // That is over.
        l.promised((3, 9), ms(90), ms(6_000), HEARTBEAT);
        assert_eq!(l.left(ms(6_000)), ms(90));
    }

    #[test]
    fn heartbeats_of_which_some_are_lost_renew_it() {
        let mut l = Lease::default();
        l.promised((1, 7), ms(90), ms(0), HEARTBEAT);
        l.promised((1, 7), ms(90), ms(1_000), HEARTBEAT);
        l.promised((1, 7), ms(90), ms(1_070), HEARTBEAT);
        assert_eq!(l.left(ms(1_070)), ms(90));
    }
}
