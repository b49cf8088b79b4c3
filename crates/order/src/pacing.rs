//! Holds large messages back so that small ones keep their rate.
//!
//! While nobody sends small messages, pieces follow one another as fast as they
//! are ordered. Otherwise they go in bursts, and after each burst there is a
//! pause, so that bursts take no more than their share of the time:
//!
//! ```text
//!   share 0.4   ██▁▁▁██▁▁▁██▁▁▁    █ pieces under way: `took`
//!                                  ▁ pause: took * (1 / share - 1)
//! ```
//!
//! What a burst costs the others (disk, network, cores) need not be known: it
//! is in the time it takes.

use std::time::Duration;

/// So many small messages during a burst or the pause before it count as load.
const LOAD: u64 = 4;
/// A burst that took long for another reason does not cost more than this.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// See the module's words. Times are those of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    share: f64,
    /// Since when pieces are under way.
    began: Option<Duration>,
    /// Bytes of the burst so far.
    bytes: usize,
    /// Small messages ordered, by anybody, since the last burst ended.
    small: u64,
    /// There was load at the end of the last burst.
    loaded: bool,
    /// No burst begins before.
    from: Duration,
}

impl Pacing {
    pub fn new(share: f64) -> Self {
        Pacing {
            share: share.clamp(0.01, 1.0),
            began: None,
            bytes: 0,
            small: 0,
            loaded: false,
            from: Duration::ZERO,
        }
    }

    /// What part of the time bursts may take under load: 0.01 to 1.
    pub fn set_share(&mut self, share: f64) {
        self.share = share.clamp(0.01, 1.0);
    }

    /// Whether a piece of `len` bytes may go now, if a burst is `most` bytes.
    pub fn may_go(&self, len: usize, most: usize, now: Duration) -> bool {
        match self.began {
            None => now >= self.from,
            Some(_) => !self.under_load() || self.bytes + len <= most,
        }
    }

    /// A piece goes.
    pub fn goes(&mut self, len: usize, now: Duration) {
        self.began.get_or_insert(now);
        self.bytes += len;
    }

    /// A small message was ordered.
    pub fn small(&mut self) {
        self.small += 1;
    }

    /// No piece is under way any more.
    pub fn all_ordered(&mut self, now: Duration) {
        let Some(began) = self.began.take() else {
            return;
        };
        self.loaded = self.small >= LOAD;
        if self.loaded {
            let took = now.saturating_sub(began);
            self.from = now + took.mul_f64(1.0 / self.share - 1.0).min(PAUSE_MAX);
        }
        self.small = 0;
        self.bytes = 0;
    }

    /// When the pause ends, or has ended, unless a burst is under way.
    pub fn ends(&self) -> Option<Duration> {
        self.began.is_none().then_some(self.from)
    }

    fn under_load(&self) -> bool {
        self.loaded || self.small >= LOAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn alone_nothing_is_held_back() {
        let mut p = Pacing::new(0.5);
        for i in 0..100u64 {
            assert!(p.may_go(10, 30, ms(i)));
            p.goes(10, ms(i));
        }
        p.all_ordered(ms(100));
        assert!(p.may_go(10, 30, ms(100)));
        assert!(p.ends() <= Some(ms(100)));
    }

    #[test]
    fn under_load_bursts_take_their_share() {
        let mut p = Pacing::new(0.25);
        let (mut now, mut busy) = (0, 0);
        while now < 10_000 {
            let mut sent = 0;
            (0..10).for_each(|_| p.small());
            while p.may_go(10, 40, ms(now)) {
                p.goes(10, ms(now));
                sent += 1;
            }
            if sent > 0 {
                assert_eq!(sent, 4, "a burst ends");
                busy += 20;
                now += 20;
                p.all_ordered(ms(now));
            } else {
                now = p.ends().expect("it waits for that").as_millis() as u64;
            }
        }
        let share = busy as f64 / now as f64;
        assert!((0.23..0.27).contains(&share), "{share}");
    }

    #[test]
    fn a_burst_ends_when_load_comes_in_the_middle_of_it() {
        let mut p = Pacing::new(0.5);
        for _ in 0..10 {
            p.goes(10, ms(1));
        }
        assert!(p.may_go(10, 40, ms(2)));
        (0..LOAD).for_each(|_| p.small());
        assert!(!p.may_go(10, 40, ms(2)));
        p.all_ordered(ms(11));
        assert_eq!(p.ends(), Some(ms(21)));
        assert!(!p.may_go(10, 40, ms(20)));
        assert!(p.may_go(10, 40, ms(21)));
    }

    #[test]
    fn a_hiccup_costs_no_long_pause() {
        let mut p = Pacing::new(0.01);
        p.goes(10, ms(0));
        (0..9).for_each(|_| p.small());
        p.all_ordered(ms(60_000));
        assert_eq!(p.ends(), Some(ms(60_000) + PAUSE_MAX));
    }
}
