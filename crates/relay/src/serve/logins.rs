//! Who is logging in. Decides who ends when there are too many; ends nobody itself.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::net::share;

/// So many may be logging in beside as many as may be served: all replicas come back at one moment when the
/// relay was restarted.
const MORE: usize = 128;

/// Those that log in, oldest first.
#[derive(Debug)]
pub(super) struct Logins<T> {
    max: usize,
    all: VecDeque<Login<T>>,
    /// How many from where.
    from: BTreeMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Login<T> {
    number: u32,
    from: IpAddr,
    what: T,
}

impl<T> Logins<T> {
    /// Where so many connections are served at most.
    pub fn new(connections: usize) -> Logins<T> {
        Logins {
            max: connections.saturating_add(MORE),
            all: VecDeque::new(),
            from: BTreeMap::new(),
        }
    }

    /// How many there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Somebody comes. Gives who must end, and from where that is: with one too many the oldest one of whoever
    /// has most of them, so that a stranger keeps nobody out.
    pub fn comes(&mut self, number: u32, from: IpAddr, what: T) -> Option<(IpAddr, T)> {
        let from = share(from);
        *self.from.entry(from).or_default() += 1;
        self.all.push_back(Login { number, from, what });
        if self.all.len() <= self.max {
            return None;
        }
        let most = self.from.values().copied().max()?;
        let has_most = |l: &Login<T>| self.from.get(&l.from) == Some(&most);
        let at = self.all.iter().position(has_most)?;
        self.take(at).map(|login| (login.from, login.what))
    }

    /// The login is over, one way or the other.
    pub fn over(&mut self, number: u32) {
        if let Some(at) = self.all.iter().position(|l| l.number == number) {
            self.take(at);
        }
    }

    fn take(&mut self, at: usize) -> Option<Login<T>> {
        let login = self.all.remove(at)?;
        if let Some(count) = self.from.get_mut(&login.from) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&login.from);
            }
        }
        Some(login)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn who_ends() {
        let mut logins = Logins::new(500);
        let from = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
        // A fleet that comes back.
        for n in 0..500 {
            assert_eq!(logins.comes(n, from(n), n), None);
        }
        // A stranger, who takes the rest, and more; and another replica.
        let stranger = from(9000);
        for n in 1000..1128 {
            assert_eq!(logins.comes(n, stranger, n), None);
        }
        for n in 1128..2000 {
            assert_eq!(logins.comes(n, stranger, n), Some((stranger, n - 128)));
        }
        assert_eq!(logins.comes(500, from(500), 500), Some((stranger, 1872)));
        // One host has many addresses.
        let six = |n: u32| -> IpAddr { format!("2001:db8::{n:x}").parse().expect("an address") };
        for n in 3000..3300 {
            let (ends, _) = logins.comes(n, six(n), n).expect("too many");
            assert!(ends == stranger || ends == six(0), "{ends}");
        }
        // When they are over there is room again.
        for n in 0..4000 {
            logins.over(n);
        }
        assert!(logins.all.is_empty() && logins.from.is_empty());
    }
}
