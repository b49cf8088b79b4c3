//! Ports on 127.0.0.1 for the nodes.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Result, SandboxError};

/// Below the kernel's ephemeral range, so that no outgoing connection takes one
/// of ours between choosing and listening.
const SEARCH_FROM: u16 = 23306;
const SEARCH_TO: u16 = 32700;
/// Behind the last run that this process chose. Ports of a cluster whose servers are down for a moment look free
/// to whoever starts another one beside it; they are not given again before all others were.
static NEXT: Mutex<u16> = Mutex::new(SEARCH_FROM);
/// How often a port that must be free is looked at before it is called taken.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// The four ports of a node; they follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// SQL clients.
    pub sql: u16,
    /// Group communication (`gmcast.listen_addr`).
    pub group: u16,
    /// Incremental state transfer (`ist.recv_addr`).
    pub ist: u16,
    /// Full state transfer (`wsrep_sst_receive_address`).
    pub sst: u16,
}

impl Ports {
    /// Distance between the SQL ports of neighbouring nodes.
    pub const STRIDE: u16 = 10;

    fn starting_at(sql: u16) -> Self {
        Self {
            sql,
            group: sql + 1,
            ist: sql + 2,
            sst: sql + 3,
        }
    }

    fn named(self) -> [(u16, &'static str); 4] {
        [
            (self.sql, "SQL clients"),
            (self.group, "group communication"),
            (self.ist, "incremental state transfer"),
            (self.sst, "full state transfer"),
        ]
    }

    /// Fails if another process listens on one of the ports.
    ///
    /// # Errors
    /// [`SandboxError::PortTaken`] names the port and its purpose.
    pub fn check_free(self, node: &str) -> Result<()> {
        let mut named = self.named().into_iter();
        named.try_for_each(|(port, purpose)| check_port(port, node, purpose))
    }
}

/// Fails if another process listens there.
pub(crate) fn check_port(port: u16, node: &str, purpose: &'static str) -> Result<()> {
    match is_soon(|| is_free(port)) {
        true => Ok(()),
        false => Err(SandboxError::PortTaken {
            node: node.to_string(),
            port,
            purpose,
        }),
    }
}

/// Whether something is free, now or in a moment: who looks whether a port is holds it meanwhile, and a process that
/// another thread starts has all that is open here until its `exec`.
pub(crate) fn is_soon(mut free: impl FnMut() -> bool) -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        free()
    })
}

/// A listener of a test, on a port that is held for a moment at most.
#[cfg(test)]
pub(crate) fn listen(port: u16) -> TcpListener {
    let mut listener = None;
    is_soon(|| {
        listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        listener.is_some()
    });
    listener.expect("nobody else keeps it")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Ports for `nodes` nodes: from `base` if given (then all must be free), else
/// the first free run at or after `hint`.
pub(crate) fn choose(nodes: usize, base: Option<u16>, hint: Option<u16>) -> Result<Vec<Ports>> {
    let width = u16::try_from(nodes)
        .ok()
        .and_then(|n| n.checked_mul(Ports::STRIDE));
    let Some(width) = width.filter(|w| *w <= SEARCH_TO - SEARCH_FROM) else {
        return Err(SandboxError::BadRequest(format!(
            "{nodes} nodes are more than this machine has ports for"
        )));
    };
    let run = |start: u16| {
        (0..width)
            .step_by(usize::from(Ports::STRIDE))
            .map(move |k| Ports::starting_at(start + k))
    };
    if let Some(base) = base {
        if base < 1024 || base.checked_add(width).is_none() {
            return Err(SandboxError::BadRequest(format!(
                "--port {base} is not possible: {nodes} nodes need the ports from there to {} and ports below 1024 are reserved",
                u32::from(base) + u32::from(width)
            )));
        }
        for (i, ports) in run(base).enumerate() {
            ports.check_free(&format!("db{}", i + 1))?;
        }
        return Ok(run(base).collect());
    }
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let first = hint
        .unwrap_or(0)
        .max(*next)
        .clamp(SEARCH_FROM, SEARCH_TO - width);
    let starts = (first..=SEARCH_TO - width).chain(SEARCH_FROM..first);
    for start in starts.step_by(usize::from(Ports::STRIDE)) {
        if run(start).all(|ports| ports.named().iter().all(|(port, _)| is_free(*port))) {
            *next = match start + width {
                // From the beginning again.
                end if end > SEARCH_TO - width => SEARCH_FROM,
                end => end,
            };
            return Ok(run(start).collect());
        }
    }
    Err(SandboxError::NoFreePorts {
        needed: usize::from(width),
        from: SEARCH_FROM,
        to: SEARCH_TO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_do_not_overlap_and_avoid_a_listener() {
        let first = choose(3, None, None).expect("free ports");
        assert_eq!(first.len(), 3);
        let _taken = listen(first[1].ist);
        let second = choose(3, None, Some(first[0].sql)).expect("free ports");
        assert!(
            second
                .iter()
                .all(|p| p.named().iter().all(|(port, _)| *port != first[1].ist))
        );
    }

    /// Though nobody listens on the first ones at that moment.
    #[test]
    fn ports_are_not_given_twice_in_a_row() {
        let of = |runs: Vec<Ports>| runs.into_iter().map(|p| p.sql).collect::<Vec<_>>();
        let first = of(choose(3, None, None).expect("free ports"));
        let second = of(choose(3, None, None).expect("free ports"));
        assert!(
            second.iter().all(|port| !first.contains(port)),
            "{first:?} {second:?}"
        );
    }

    #[test]
    fn a_taken_port_is_named() {
        let free = choose(1, None, Some(27000)).expect("free ports")[0];
        let _taken = listen(free.sst);
        let error = choose(1, Some(free.sql), None)
            .expect_err("the port is taken")
            .to_string();
        assert!(
            error.contains(&free.sst.to_string()) && error.contains("full state transfer"),
            "{error}"
        );
    }

    /// By another look, or by a process that is just being started.
    #[test]
    fn who_holds_a_port_for_a_moment_does_not_take_it() {
        let mut looks = 0;
        assert!(is_soon(|| {
            looks += 1;
            looks == 3
        }));
        assert_eq!(looks, 3);
        assert!(!is_soon(|| false));
    }

    #[test]
    fn impossible_starts_are_refused() {
        assert!(choose(3, Some(80), None).is_err());
        assert!(choose(3, Some(65530), None).is_err());
        assert!(choose(100_000, None, None).is_err());
    }
}
