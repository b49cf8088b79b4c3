//! Whether a connection still carries anything, by the pings on it (pure).
//!
//! A stateful firewall that was reloaded, or one of several paths that died, drops what
//! a standing connection carries without a word, while a new one would pass. Pongs tell.
//! That they are missing proves nothing by itself: a node that stands still, or a full way,
//! misses them too. So whoever finds a connection silent here has to make a new one first
//! (`out.rs`), which a node that stands still does not greet.

use std::time::Duration;

use tokio::time::Instant;

use crate::network::SLOWEST;

/// The signs of life of one connection.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// From when on an answer is missing.
    waiting: Option<Instant>,
    /// The newest ping.
    newest: u64,
    /// A ping without an answer, and how many bytes went before it.
    mark: Option<(u64, u64)>,
    /// Bytes given to the connection, and how many of them are known to have arrived.
    given: u64,
    arrived: u64,
    doubted: bool,
}

impl Signs {
    /// `bytes` are on their way.
    pub(super) fn given(&mut self, bytes: usize) {
        self.given += bytes as u64;
    }

    /// A ping, numbered upwards, is on its way behind what was given before.
    pub(super) fn pinged(&mut self, ping: u64, now: Instant) {
        self.newest = ping;
        self.waiting.get_or_insert(now);
        self.mark.get_or_insert((ping, self.given));
    }

    /// A ping is due, and what was given before does not leave room for it.
    pub(super) fn stuck(&mut self, now: Instant) {
        self.waiting.get_or_insert(now);
    }

    /// The answer to a ping came.
    pub(super) fn ponged(&mut self, ping: u64, now: Instant) {
        if let Some((_, before)) = self.mark.take_if(|(mark, _)| *mark <= ping) {
            self.arrived = before;
        }
        // Late is not silent.
        self.waiting = (ping < self.newest).then_some(now);
        self.doubted = false;
    }

    /// Another connection to the same node was silent, and a new one was answered: no way is
    /// only slow any more.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
    }

    /// When it counts as silent: `limit` after the first ping without an answer, and a second
    /// later for each [`SLOWEST`] bytes of which nobody knows that they have arrived. `None`: no
    /// answer is missing.
    pub(super) fn silent_at(&self, limit: Duration) -> Option<Instant> {
        let slow = match self.doubted {
            true => 0.0,
            false => (self.given - self.arrived) as f64 / f64::from(SLOWEST),
        };
        Some(self.waiting? + limit + Duration::from_secs_f64(slow))
    }

    /// How long an answer has been missing.
    pub(super) fn silent(&self, now: Instant) -> Duration {
        self.waiting
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn a_connection_is_silent_when_a_pong_is_missing_for_the_limit() {
        let t = Instant::now();
        let at = |s: u64| t + Duration::from_secs(s);
        let mut s = Signs::default();
        assert_eq!(s.silent_at(LIMIT), None, "nothing was asked");
        s.pinged(1, at(0));
        assert_eq!(s.silent_at(LIMIT), Some(at(2)));
        s.ponged(1, at(1));
        assert_eq!(s.silent_at(LIMIT), None);
        // Further pings do not put it off.
        s.pinged(2, at(2));
        s.pinged(3, at(3));
        assert_eq!(s.silent_at(LIMIT), Some(at(4)));
        assert_eq!(s.silent(at(5)), Duration::from_secs(3));
        // A late answer does.
        s.ponged(2, at(5));
        assert_eq!(s.silent_at(LIMIT), Some(at(7)));
        s.ponged(3, at(6));
        assert_eq!(s.silent_at(LIMIT), None);
        assert_eq!(s.silent(at(9)), Duration::ZERO);
    }

    #[test]
    fn a_narrow_way_has_time_for_what_is_on_it() {
        let t = Instant::now();
        let at = |s: u64| t + Duration::from_secs(s);
        let second = SLOWEST as usize;
        let mut s = Signs::default();
        s.given(3 * second);
        s.pinged(1, at(0));
        s.given(5 * second);
        assert_eq!(s.silent_at(LIMIT), Some(at(10)));
        // What went before an answered ping has arrived; what came behind it may not have.
        s.ponged(1, at(4));
        s.pinged(2, at(5));
        assert_eq!(s.silent_at(LIMIT), Some(at(12)));
        s.ponged(2, at(6));
        s.pinged(3, at(7));
        assert_eq!(s.silent_at(LIMIT), Some(at(9)));
    }

    #[test]
    fn no_room_for_a_ping_is_like_one_without_an_answer() {
        let t = Instant::now();
        let mut s = Signs::default();
        s.pinged(1, t);
        s.ponged(1, t);
        s.given(SLOWEST as usize);
        s.stuck(t);
        s.stuck(t + LIMIT);
        let second = Duration::from_secs(1);
        assert_eq!(s.silent_at(LIMIT), Some(t + LIMIT + second));
    }

    #[test]
    fn a_doubted_connection_has_no_more_time_for_bytes_until_it_answers() {
        let t = Instant::now();
        let mut s = Signs::default();
        s.given(100 * SLOWEST as usize);
        s.pinged(1, t);
        s.doubt();
        assert_eq!(s.silent_at(LIMIT), Some(t + LIMIT));
        s.ponged(1, t);
        s.given(SLOWEST as usize);
        s.pinged(2, t);
        let second = Duration::from_secs(1);
        assert_eq!(s.silent_at(LIMIT), Some(t + LIMIT + second));
        s.ponged(2, t);
        s.pinged(3, t);
        assert_eq!(s.silent_at(LIMIT), Some(t + LIMIT));
    }
}
