//! The addresses of host names.
//!
//! The system's resolver may take longer than whoever asks may wait: with a silent name server before the one that
//! answers it takes some 5 s each time. So a lookup goes on when nobody waits for it any more, whoever needs the same
//! name shares it, and what took long is known for a while. Else no attempt would ever hear an answer.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::aside::{aside, no_thread};
use super::{DEFAULT_PORT, lock, request};
use crate::address::{HostPort, parse_address};
use crate::network::NetError;

/// Host names looked up at once, each on a thread of its own.
static RESOLVING: Semaphore = Semaphore::const_new(256);
/// What took the resolver as long as this is not asked again for [`KEPT`]. What comes at once is not kept: a name
/// may lead elsewhere the next moment.
const SLOW: Duration = Duration::from_millis(500);
const KEPT: Duration = Duration::from_secs(10);

/// The addresses, without a port, or why there are none.
type Answer = Result<Vec<SocketAddr>, Unresolved>;

#[derive(Clone, Debug)]
struct Unresolved {
    why: String,
    /// It is this host's resolver that failed.
    here: bool,
}

/// A name that is looked up, or was.
struct Name {
    answer: watch::Receiver<Option<Answer>>,
    /// So long the answer is known; while there is none yet it has no end.
    until: Option<Instant>,
}

static NAMES: Mutex<BTreeMap<String, Name>> = Mutex::new(BTreeMap::new());

/// The answer of before, or that of the lookup under way.
fn known(
    names: &mut BTreeMap<String, Name>,
    host: &str,
) -> Option<watch::Receiver<Option<Answer>>> {
    let now = Instant::now();
    names.retain(|_, name| match name.until {
        Some(until) => now < until,
        // Of one whose thread panicked nothing will come.
        None => name.answer.has_changed().is_ok(),
    });
    names.get(host).map(|name| name.answer.clone())
}

/// Begins to look `host` up, unless somebody else has.
fn begin(host: &str, turn: impl Send + 'static) -> io::Result<watch::Receiver<Option<Answer>>> {
    let mut names = lock(&NAMES);
    if let Some(answer) = known(&mut names, host) {
        return Ok(answer);
    }
    let (tx, answer) = watch::channel(None);
    let asked = host.to_owned();
    // It waits for the names, which are locked here; its answer comes by another way.
    drop(aside("dromon-resolve", move || {
        // One that hangs keeps its place when nobody waits for it any more.
        let _turn = turn;
        let began = Instant::now();
        let found = look_up(&asked).map_err(|e| Unresolved {
            why: e.to_string(),
            here: is_resolvers_fault(&e),
        });
        let mut names = lock(&NAMES);
        if began.elapsed() < SLOW {
            names.remove(&asked);
        } else if let Some(name) = names.get_mut(&asked) {
            name.until = Some(Instant::now() + KEPT);
        }
        drop(names);
        tx.send_replace(Some(found));
    })?);
    let name = Name {
        answer: answer.clone(),
        until: None,
    };
    names.insert(host.to_owned(), name);
    Ok(answer)
}

fn look_up(host: &str) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if let Some(stand_in) = tests::stand_in(host) {
        return stand_in();
    }
    (host, 0).to_socket_addrs().map(Iterator::collect)
}

/// The addresses of the host of `name`, which stands in `addr`.
pub(super) async fn resolve(addr: &str, name: &HostPort) -> Result<Vec<SocketAddr>, NetError> {
    let not_asked = |why: String| NetError::NotAsked {
        addr: addr.to_owned(),
        why,
    };
    let before = known(&mut lock(&NAMES), &name.host);
    let mut answer = match before {
        Some(answer) => answer,
        None => {
            let turn = RESOLVING.acquire().await;
            begin(&name.host, turn).map_err(|e| not_asked(no_thread(&e)))?
        }
    };
    let answer = answer.wait_for(Option::is_some).await.map(|a| (*a).clone());
    match answer.ok().flatten() {
        Some(Ok(mut found)) => {
            for at in &mut found {
                at.set_port(name.port);
            }
            Ok(found)
        }
        Some(Err(Unresolved { why, here })) => Err(unresolved(addr, why, here)),
        None => Err(not_asked("looking for its name failed".to_owned())),
    }
}

pub(super) fn unresolved(addr: &str, why: String, here: bool) -> NetError {
    NetError::Resolve {
        addr: addr.to_owned(),
        why,
        here,
    }
}

/// Whether it is this host's resolver that failed, as it is not there yet or cannot ask: that a name does not exist is
/// an answer. Of the system's function only its words come here.
fn is_resolvers_fault(e: &io::Error) -> bool {
    let text = e.to_string();
    let faults = [
        "Temporary failure in name resolution",
        "Non-recoverable failure in name resolution",
        "Memory allocation failure",
        // Of musl.
        "Try again",
        "Non-recoverable error",
        "Out of memory",
    ];
    e.raw_os_error().is_some() || faults.iter().any(|fault| text.ends_with(fault))
}

/// Where the name in `addr` leads, if to several addresses: each of them, and whether it is one of this host. Those to
/// which this host has no way, as it has one version of IP only, are left out. None: it leads to one, or is none, or
/// could not be looked up within `limit`. Blocks this thread.
pub fn addresses(addr: &str, limit: Duration) -> Vec<(HostPort, bool)> {
    let Ok(name) = parse_address(addr, DEFAULT_PORT) else {
        return Vec::new();
    };
    if name.ip().is_some() {
        return Vec::new();
    }
    let found = request::blocking(addr, async {
        let found = timeout(limit, resolve(addr, &name)).await;
        found.unwrap_or_else(|_| Ok(Vec::new()))
    });
    let mut found = found.unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    if found.len() < 2 {
        return Vec::new();
    }
    let each = found.into_iter();
    each.filter_map(|at| Some((host_port(at), is_here(at)?)))
        .collect()
}

fn host_port(at: SocketAddr) -> HostPort {
    let host = match at {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        _ => at.ip().to_string(),
    };
    HostPort {
        host,
        port: at.port(),
    }
}

/// Whether `at` is an address of this host: the system has what is sent there come from the same one. Nothing is sent.
/// That a socket can be bound to it says nothing where the system lets any be bound. `None`: there is no way there.
fn is_here(at: SocketAddr) -> Option<bool> {
    let any: IpAddr = match at {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(at).ok()?;
    let from = socket.local_addr().ok()?;
    Some(at.ip().is_loopback() || from.ip() == at.ip())
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::network::Presence;

    type StandIn = Arc<dyn Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync>;

    /// By name: what is asked instead of the system.
    static STAND_INS: Mutex<BTreeMap<String, StandIn>> = Mutex::new(BTreeMap::new());

    pub(super) fn stand_in(host: &str) -> Option<StandIn> {
        lock(&STAND_INS).get(host).cloned()
    }

    /// From now on `look_up` says what `host` is.
    pub(in crate::tcp) fn name(
        host: &str,
        look_up: impl Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) {
        lock(&STAND_INS).insert(host.to_owned(), Arc::new(look_up));
    }

    pub(in crate::tcp) fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().expect("a number"), 0)
    }

    #[test]
    fn a_name_that_does_not_exist_is_told_from_a_resolver_that_cannot_say() {
        let by = |detail: &str| {
            let words = format!("failed to lookup address information: {detail}");
            is_resolvers_fault(&io::Error::other(words))
        };
        assert!(by("Temporary failure in name resolution"));
        assert!(by("Non-recoverable failure in name resolution"));
        assert!(is_resolvers_fault(&io::Error::from_raw_os_error(24)));
        assert!(!by("Name or service not known"));
        assert!(!by("No address associated with hostname"));
        assert!(!by("Name does not resolve"), "of musl");
        let gone = unresolved("db2:4567", "Name or service not known".into(), false);
        assert_eq!(gone.presence(), Presence::Nobody);
    }

    #[test]
    fn of_a_name_with_several_addresses_each_is_told_and_which_are_of_this_host() {
        const LIMIT: Duration = Duration::from_secs(60);
        let told = |addr: &str| -> Vec<(String, bool)> {
            let all = addresses(addr, LIMIT).into_iter();
            all.map(|(at, here)| (at.to_string(), here)).collect()
        };
        name("several.test", || {
            Ok(vec![at("127.0.0.3"), at("127.0.0.2"), at("127.0.0.3")])
        });
        let both = [("127.0.0.2:77", true), ("127.0.0.3:77", true)];
        let both = both.map(|(at, here)| (at.to_owned(), here));
        assert_eq!(told("several.test:77"), both);
        name("one.test", || Ok(vec![at("127.0.0.2"), at("127.0.0.2")]));
        name("none.test", || {
            Err(io::Error::other("Name or service not known"))
        });
        for addr in ["one.test:77", "none.test:77", "10.0.0.1:77", "a:b:c"] {
            assert_eq!(told(addr), [], "{addr}");
        }
    }

    #[test]
    fn a_lookup_under_way_is_shared() {
        let (ends, lookup) = std::sync::mpsc::channel::<()>();
        let (lookup, begun) = (Mutex::new(lookup), Arc::new(Mutex::new(0)));
        let count = begun.clone();
        name("shared.test", move || {
            *lock(&count) += 1;
            let _ = lock(&lookup).recv();
            Ok(vec![at("127.0.0.2")])
        });
        let asked = |port| {
            let host = "shared.test".to_owned();
            let name = HostPort { host, port };
            async move { resolve("shared.test", &name).await }
        };
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let ends = async move { drop(ends) };
            let (one, other, ()) = tokio::join!(asked(1), asked(2), ends);
            assert_eq!(one, Ok(vec!["127.0.0.2:1".parse().expect("one")]));
            assert_eq!(other, Ok(vec!["127.0.0.2:2".parse().expect("one")]));
        });
        assert_eq!(*lock(&begun), 1);
    }
}
