//! Waits until a cluster has nothing left to do.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use dromon_sandbox::{Cluster, WsrepStatus};

use crate::storm::STATEMENT_LIMIT;

/// How long the nodes may take to apply what is left.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(90);

/// Waits until nothing moves any more ([`at_rest`]) and the storage engine's
/// checkpoint has arrived at the same seqno on every node. Returns the seqno.
///
/// # Errors
/// When that does not come within [`DRAIN_LIMIT`]; says where each node is.
pub fn drained(cluster: &Cluster) -> anyhow::Result<i64> {
    wait(cluster, DRAIN_LIMIT, |s, seqno| {
        s.engine_checkpoint().is_none_or(|c| c == seqno)
    })
}

/// Waits until all nodes are usable, the receive queues are empty and
/// `wsrep_last_committed` is the same everywhere, twice in a row.
///
/// # Errors
/// When that does not come within [`DRAIN_LIMIT`]; says where each node is.
pub fn at_rest(cluster: &Cluster) -> anyhow::Result<i64> {
    at_rest_within(cluster, DRAIN_LIMIT)
}

/// [`at_rest`] with another limit.
///
/// # Errors
/// When that does not come within `limit`; says where each node is.
pub fn at_rest_within(cluster: &Cluster, limit: Duration) -> anyhow::Result<i64> {
    wait(cluster, limit, |_, _| true)
}

fn wait(
    cluster: &Cluster,
    limit: Duration,
    further: impl Fn(&WsrepStatus, i64) -> bool,
) -> anyhow::Result<i64> {
    let end = Instant::now() + limit;
    let mut before = None;
    loop {
        let now = positions(cluster)?;
        let first = now[0].1.last_committed();
        let calm = now.iter().all(|(_, s)| {
            s.is_usable()
                && s.last_committed() == first
                && s.number("wsrep_local_recv_queue").unwrap_or(0) == 0
                && further(s, first)
        });
        if calm && before == Some(first) {
            return Ok(first);
        }
        if Instant::now() > end {
            let list: Vec<String> = now.iter().map(|(name, s)| place(name, s)).collect();
            bail!(
                "the nodes did not come to rest within {} s: {}",
                limit.as_secs(),
                list.join("; ")
            );
        }
        before = calm.then_some(first);
        thread::sleep(Duration::from_millis(100));
    }
}

fn positions(cluster: &Cluster) -> anyhow::Result<Vec<(String, WsrepStatus)>> {
    let running = cluster.nodes().iter().filter(|n| n.process().is_some());
    let all: Vec<_> = running
        .map(|n| Ok((n.name(), n.status(STATEMENT_LIMIT)?)))
        .collect::<anyhow::Result<_>>()?;
    ensure!(!all.is_empty(), "no node runs any more");
    Ok(all)
}

fn place(name: &str, status: &WsrepStatus) -> String {
    format!(
        "{name} is {} at {} (engine {}, {} to apply)",
        status.state(),
        status.last_committed(),
        status.get("wsrep_se_checkpoint"),
        status.get("wsrep_local_recv_queue")
    )
}
