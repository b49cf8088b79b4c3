//! MariaDB's GTIDs and the positions made of them.
//!
//! A GTID is `domain-server-seqno`. Within a domain groups are ordered, and
//! their seqnos rise; between domains there is no order. So a position is one
//! GTID for each domain: the last group of it that was taken. That is what
//! `gtid_slave_pos` holds and what a replica asks for. What a server knows of
//! its own binlog is more ([`BinlogState`]): the last seqno of every server in
//! each domain, and which of them came last.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gtid {
    /// Stream of groups that are ordered among themselves.
    pub domain: u32,
    /// The server on which it was executed first.
    pub server: u32,
    /// Rises within the domain.
    pub seqno: u64,
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.domain, self.server, self.seqno)
    }
}

/// Why a text is no GTID or no position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseGtidError {
    /// Not three numbers.
    #[error(
        "\"{text}\" is no GTID: three numbers are expected, domain-server-sequence, as in 0-1-100"
    )]
    Form {
        /// What was there.
        text: String,
    },
    /// Two GTIDs for one domain.
    #[error("domain {domain} occurs twice in \"{text}\"; a position has one GTID for each domain")]
    Twice {
        /// Which domain.
        domain: u32,
        /// What was there.
        text: String,
    },
    /// The same server twice in one domain.
    #[error("server {server} occurs twice in domain {domain} of \"{text}\"")]
    ServerTwice {
        /// Which domain.
        domain: u32,
        /// Which server.
        server: u32,
        /// What was there.
        text: String,
    },
}

/// Digits only: Rust's own parser takes a plus sign too.
fn number<T: FromStr>(text: &str) -> Option<T> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

impl FromStr for Gtid {
    type Err = ParseGtidError;

    fn from_str(text: &str) -> Result<Gtid, ParseGtidError> {
        let mut parts = text.trim().split('-');
        let mut parse = || {
            let domain = number(parts.next()?)?;
            let server = number(parts.next()?)?;
            let seqno = number(parts.next()?)?;
            parts.next().is_none().then_some(Gtid {
                domain,
                server,
                seqno,
            })
        };
        parse().ok_or_else(|| ParseGtidError::Form {
            text: text.trim().to_owned(),
        })
    }
}

fn list(text: &str) -> impl Iterator<Item = Result<Gtid, ParseGtidError>> {
    let empty = text.trim().is_empty();
    text.split(',').filter(move |_| !empty).map(str::parse)
}

/// One GTID for each domain: everything up to them was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    domains: BTreeMap<u32, Gtid>,
}

/// How far one position is in comparison to another, in one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The same group.
    Equal,
    /// Behind the other.
    Behind,
    /// Ahead of the other.
    Ahead,
    /// The same seqno of different servers: the domain has forked. One of the
    /// two has groups that the other will never have.
    Forked,
}

impl Position {
    /// Of nothing.
    pub fn new() -> Position {
        Position::default()
    }

    /// Takes note of a group. Gives what stood there for its domain.
    pub fn set(&mut self, gtid: Gtid) -> Option<Gtid> {
        self.domains.insert(gtid.domain, gtid)
    }

    /// Forgets a domain.
    pub fn remove(&mut self, domain: u32) -> Option<Gtid> {
        self.domains.remove(&domain)
    }

    /// The last group of a domain.
    pub fn get(&self, domain: u32) -> Option<Gtid> {
        self.domains.get(&domain).copied()
    }

    /// All, by domain.
    pub fn iter(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.domains.values().copied()
    }

    /// Number of domains.
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// Whether there is no domain.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// How far this one is, in this domain. A domain that only one of the two
    /// has is further there; `None` if neither has it.
    pub fn compare(&self, other: &Position, domain: u32) -> Option<Compared> {
        match (self.get(domain), other.get(domain)) {
            (None, None) => None,
            (None, Some(_)) => Some(Compared::Behind),
            (Some(_), None) => Some(Compared::Ahead),
            (Some(a), Some(b)) => Some(match a.seqno.cmp(&b.seqno) {
                std::cmp::Ordering::Less => Compared::Behind,
                std::cmp::Ordering::Greater => Compared::Ahead,
                std::cmp::Ordering::Equal if a.server == b.server => Compared::Equal,
                std::cmp::Ordering::Equal => Compared::Forked,
            }),
        }
    }

    /// Whether this group was taken, by its seqno.
    pub fn has(&self, gtid: Gtid) -> bool {
        self.get(gtid.domain)
            .is_some_and(|last| last.seqno >= gtid.seqno)
    }

    /// Whether all that the other has was taken, by the seqnos.
    pub fn covers(&self, other: &Position) -> bool {
        other.iter().all(|gtid| self.has(gtid))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.iter())
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, gtids: impl Iterator<Item = Gtid>) -> fmt::Result {
    for (n, gtid) in gtids.enumerate() {
        let comma = if n == 0 { "" } else { "," };
        write!(f, "{comma}{gtid}")?;
    }
    Ok(())
}

impl FromStr for Position {
    type Err = ParseGtidError;

    /// As in `gtid_slave_pos`: GTIDs with commas between, or nothing.
    fn from_str(text: &str) -> Result<Position, ParseGtidError> {
        let mut position = Position::new();
        for gtid in list(text) {
            let gtid = gtid?;
            if position.set(gtid).is_some() {
                return Err(ParseGtidError::Twice {
                    domain: gtid.domain,
                    text: text.to_owned(),
                });
            }
        }
        Ok(position)
    }
}

/// What a binlog contains: for every domain the last seqno of each server in
/// it, and which server was the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinlogState {
    domains: BTreeMap<u32, Domain>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain {
    servers: BTreeMap<u32, u64>,
    last: u32,
}

impl Domain {
    /// Its last group. `domain`: its own number.
    fn last(&self, domain: u32) -> Gtid {
        Gtid {
            domain,
            server: self.last,
            seqno: self.servers[&self.last],
        }
    }
}

impl BinlogState {
    /// Of an empty binlog.
    pub fn new() -> BinlogState {
        BinlogState::default()
    }

    /// Takes note of a group that stands behind all others.
    pub fn add(&mut self, gtid: Gtid) {
        let domain = self.domains.entry(gtid.domain).or_insert_with(|| Domain {
            servers: BTreeMap::new(),
            last: gtid.server,
        });
        domain.servers.insert(gtid.server, gtid.seqno);
        domain.last = gtid.server;
    }

    /// The last group of each domain: `gtid_binlog_pos`.
    pub fn position(&self) -> Position {
        let mut position = Position::new();
        for gtid in self.lasts() {
            position.set(gtid);
        }
        position
    }

    /// The last group of each domain, by domain.
    pub fn lasts(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.domains
            .iter()
            .map(|(domain, state)| state.last(*domain))
    }

    /// The last group of a domain.
    pub fn last(&self, domain: u32) -> Option<Gtid> {
        self.domains.get(&domain).map(|state| state.last(domain))
    }

    /// Bytes of memory that it takes, about: a domain has a map of its own.
    pub fn weight(&self) -> usize {
        let domains = self.domains.values();
        domains.map(|state| 200 + 32 * state.servers.len()).sum()
    }

    /// The last seqno of a server in a domain.
    pub fn get(&self, domain: u32, server: u32) -> Option<u64> {
        self.domains.get(&domain)?.servers.get(&server).copied()
    }

    /// All of it, by domain and server, but each domain's last group behind the
    /// others of the domain, as in `gtid_binlog_state` and in a GTID list.
    pub fn iter(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.domains.iter().flat_map(|(domain, state)| {
            let others = state.servers.iter().filter(|(s, _)| **s != state.last);
            let last = state.servers.get_key_value(&state.last);
            others.chain(last).map(|(server, seqno)| Gtid {
                domain: *domain,
                server: *server,
                seqno: *seqno,
            })
        })
    }

    /// From the order of [`BinlogState::iter`].
    pub fn from_gtids(gtids: impl IntoIterator<Item = Gtid>) -> BinlogState {
        let mut state = BinlogState::new();
        for gtid in gtids {
            state.add(gtid);
        }
        state
    }
}

impl fmt::Display for BinlogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.iter())
    }
}

impl FromStr for BinlogState {
    type Err = ParseGtidError;

    /// As in `gtid_binlog_state`.
    fn from_str(text: &str) -> Result<BinlogState, ParseGtidError> {
        let mut state = BinlogState::new();
        for gtid in list(text) {
            let gtid = gtid?;
            if state.get(gtid.domain, gtid.server).is_some() {
                return Err(ParseGtidError::ServerTwice {
                    domain: gtid.domain,
                    server: gtid.server,
                    text: text.to_owned(),
                });
            }
            state.add(gtid);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gtid() -> impl Strategy<Value = Gtid> {
        (0u32..3, 1u32..4, 0u64..20).prop_map(|(domain, server, seqno)| Gtid {
            domain,
            server,
            seqno,
        })
    }

    proptest! {
        #[test]
        fn a_gtid_as_text(domain: u32, server: u32, seqno: u64) {
            let gtid = Gtid { domain, server, seqno };
            prop_assert_eq!(gtid.to_string().parse(), Ok(gtid));
        }

        #[test]
        fn any_text(text in "[0-9,+ -]{0,30}") {
            if let Ok(gtid) = text.parse::<Gtid>() {
                prop_assert_eq!(gtid.to_string().parse::<Gtid>(), Ok(gtid));
            }
            if let Ok(position) = text.parse::<Position>() {
                prop_assert_eq!(position.to_string().parse::<Position>(), Ok(position));
            }
        }

        /// Against a list of all groups in their order.
        #[test]
        fn the_state_of_a_binlog(log in proptest::collection::vec(gtid(), 0..40)) {
            let state = BinlogState::from_gtids(log.iter().copied());
            for domain in 0..3 {
                let last = log.iter().rev().find(|g| g.domain == domain).copied();
                prop_assert_eq!(state.position().get(domain), last);
                for server in 1..4 {
                    let of = log.iter().rev().find(|g| g.domain == domain && g.server == server);
                    prop_assert_eq!(state.get(domain, server), of.map(|g| g.seqno));
                }
            }
            prop_assert_eq!(&BinlogState::from_gtids(state.iter()), &state);
            prop_assert_eq!(state.to_string().parse::<BinlogState>(), Ok(state));
        }

        /// Against sets of seqnos.
        #[test]
        fn comparing(a in proptest::collection::vec(gtid(), 0..4), b in proptest::collection::vec(gtid(), 0..4)) {
            let position = |gtids: &[Gtid]| {
                let mut position = Position::new();
                gtids.iter().for_each(|g| { position.set(*g); });
                position
            };
            let (a, b) = (position(&a), position(&b));
            let taken = |p: &Position, d| p.get(d).map_or(0, |g| g.seqno + 1);
            let mut covers = true;
            for d in 0..3 {
                let expected = match (taken(&a, d), taken(&b, d)) {
                    (0, 0) => None,
                    (x, y) if x < y => Some(Compared::Behind),
                    (x, y) if x > y => Some(Compared::Ahead),
                    _ if a.get(d) == b.get(d) => Some(Compared::Equal),
                    _ => Some(Compared::Forked),
                };
                covers &= taken(&a, d) >= taken(&b, d);
                prop_assert_eq!(a.compare(&b, d), expected);
            }
            prop_assert_eq!(a.covers(&b), covers);
        }
    }

    #[test]
    fn texts() {
        let position: Position = " 1-2-3 , 0-1-100".parse().unwrap();
        assert_eq!(position.to_string(), "0-1-100,1-2-3");
        assert_eq!("".parse::<Position>().unwrap(), Position::new());
        for wrong in [
            "1-2",
            "1-2-3-4",
            "1-2-x",
            "1-2-+3",
            "1-2-3,",
            "--",
            "4294967296-1-1",
        ] {
            assert!(wrong.parse::<Position>().is_err(), "{wrong}");
        }
        assert_eq!(
            "0-1-1,0-2-2".parse::<Position>().unwrap_err().to_string(),
            "domain 0 occurs twice in \"0-1-1,0-2-2\"; a position has one GTID for each domain"
        );
        let state: BinlogState = "0-2-7,0-1-9,5-1-1".parse().unwrap();
        assert_eq!(state.position().to_string(), "0-1-9,5-1-1");
        assert_eq!(state.to_string(), "0-2-7,0-1-9,5-1-1");
        assert!("0-1-1,0-1-2".parse::<BinlogState>().is_err());
    }
}
