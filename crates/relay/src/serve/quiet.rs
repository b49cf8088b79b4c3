//! What happens again and again is said now and then, so that nobody fills the log from outside. No clock
//! here: the time is told.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// So long the same is not said again.
const PAUSE: Duration = Duration::from_secs(10);
/// Of so many it is known when they were said. More are counted as one.
const MAX: usize = 1024;

/// From where, and what.
type Key = (Option<IpAddr>, u16);

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    said: BTreeMap<Key, Said>,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    at: Duration,
    /// Not said since then.
    since: u64,
}

impl Quiet {
    /// Something of this number happened to somebody from there, at this time of a clock that only goes
    /// forward. Gives whether to say it, and how often it was not said before.
    pub fn says(&mut self, from: IpAddr, what: u16, now: Duration) -> Option<u64> {
        let mut key = (Some(from), what);
        if !self.said.contains_key(&key) && self.said.len() >= MAX {
            self.said
                .retain(|_, said| now.saturating_sub(said.at) < PAUSE);
            if self.said.len() >= MAX {
                key = (None, what);
            }
        }
        match self.said.get_mut(&key) {
            Some(said) if now.saturating_sub(said.at) < PAUSE => {
                said.since += 1;
                None
            }
            said => {
                let before = said.map_or(0, |said| said.since);
                self.said.insert(key, Said { at: now, since: 0 });
                Some(before)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn once_in_a_while() {
        let mut quiet = Quiet::default();
        let from = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
        let at = Duration::from_secs;
        assert_eq!(quiet.says(from(1), 5, at(0)), Some(0));
        for _ in 0..100 {
            assert_eq!(quiet.says(from(1), 5, at(9)), None);
        }
        assert_eq!(quiet.says(from(2), 5, at(9)), Some(0), "another one");
        assert_eq!(quiet.says(from(1), 6, at(9)), Some(0), "something else");
        assert_eq!(quiet.says(from(1), 5, at(10)), Some(100));
        assert_eq!(quiet.says(from(1), 5, at(11)), None);
        // Very many addresses.
        let mut lines = 0;
        for n in 0..100_000 {
            lines += u32::from(quiet.says(from(n), 5, at(12)).is_some());
        }
        assert!(lines <= 1025 && quiet.said.len() <= MAX + 1, "{lines}");
    }
}
