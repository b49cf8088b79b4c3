//! Waits until a cluster, or a server alone, has nothing left to do.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, WsrepStatus};

use crate::storm::STATEMENT_LIMIT;

/// How long the nodes may take to apply what is left.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(90);
/// For how long [`settled`] waits for what servers have put off.
pub const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// A process that uses less of a processor than this …
const IDLE_CPU: Duration = Duration::from_millis(20);
/// … in this time is idle.
const IDLE_TIME: Duration = Duration::from_millis(300);

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

/// [`at_rest_within`], and then until the servers have done what they put off: no process of theirs is
/// busy any more ([`idle`]) and all files are on the disk ([`written`]). False if one is still busy after
/// [`IDLE_LIMIT`].
///
/// # Errors
/// When the nodes do not come to rest within `limit`, or a server has ended.
pub fn settled(cluster: &Cluster, limit: Duration) -> anyhow::Result<bool> {
    at_rest_within(cluster, limit)?;
    let processes: Vec<_> = cluster.nodes().iter().filter_map(|n| n.process()).collect();
    let is_idle = idle(processes.len(), IDLE_LIMIT, || {
        let usages = processes.iter().map(|p| Some(p.usage()?.cpu));
        let sum: Option<Duration> = usages.sum();
        sum.context("a server has ended")
    })?;
    written(&cluster.record().dir)?;
    Ok(is_idle)
}

/// Waits until processes are idle, all together; false if they are not within `limit`. `cpu` is the time
/// that they have used of processors so far. What was put off, such as removing old versions of rows, is
/// work, too, and whoever was fast has put off more of it.
///
/// # Errors
/// What `cpu` fails with.
pub fn idle(
    processes: usize,
    limit: Duration,
    cpu: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<bool> {
    let least = IDLE_CPU * u32::try_from(processes).unwrap_or(u32::MAX);
    idle_by(least, IDLE_TIME, limit, cpu)
}

fn idle_by(
    least: Duration,
    time: Duration,
    limit: Duration,
    mut cpu: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<bool> {
    let begin = Instant::now();
    let mut last = cpu()?;
    loop {
        thread::sleep(time);
        let now = cpu()?;
        if now.saturating_sub(last) <= least {
            return Ok(true);
        }
        if begin.elapsed() >= limit {
            return Ok(false);
        }
        last = now;
    }
}

/// Has the files of a directory written to the disk, and all others of its file system: what was there
/// before is not written beside what is measured next.
///
/// # Errors
/// When `sync` fails.
pub fn written(dir: &Path) -> anyhow::Result<()> {
    let out = Command::new("sync").arg("-f").arg(dir).output();
    let out = out.context("running sync")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "sync -f {} ({}): {}",
        dir.display(),
        out.status,
        said.trim()
    );
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_works_on_what_was_put_off_is_waited_for() {
        // Busy four times, then by as much as nobody counts.
        let mut used = [0, 50, 90, 130, 160, 166, 400].into_iter();
        let cpu = || Ok(MS * used.next().expect("no more is asked"));
        let is_idle = idle_by(MS * 20, MS, MS * 60_000, cpu);
        assert!(is_idle.expect("all answer"));
        assert_eq!(used.next(), Some(400), "the first calm look was enough");
    }

    #[test]
    fn who_is_never_idle_is_not_waited_for_without_end() {
        let mut used = Duration::ZERO;
        let cpu = || {
            used += MS * 21;
            Ok(used)
        };
        assert!(!idle_by(MS * 20, MS, MS * 10, cpu).expect("all answer"));
        assert!(used >= MS * 42);
    }

    #[test]
    fn who_has_ended_is_no_rest() {
        let cpu = || bail!("it has ended");
        assert!(idle_by(MS, MS, MS, cpu).is_err());
    }

    #[test]
    fn a_directory_that_is_not_there_cannot_be_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        written(dir.path()).expect("written");
        assert!(written(&dir.path().join("none")).is_err());
    }
}
