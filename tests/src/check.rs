//! What must hold when the storm is over: every node at the same place with the
//! same tables, and nothing bad in the logs.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
pub use dromon_load::rest::{at_rest, drained};
use dromon_sandbox::{Cluster, Node};

use crate::facts;
use crate::harness::Expected;
use crate::load::{self, Session};

/// Log texts that are never right.
const BAD_WORDS: &[&str] = &[
    "BF-BF",
    "BF lock wait long",
    "Conflicting lock on table",
    "mariadbd got signal",
    "mariadbd got exception",
    "Inconsistent by consensus",
    "Inconsistency detected",
    // With whatever reason.
    "This node leaves the cluster",
    "Assertion failure",
    "panicked at",
    // As our library says it, and what comes of it.
    "Panic in thread",
    "The provider panicked",
    ENGINE_FAILED,
];

/// What our library says when its log's disk has failed or is full.
pub const ENGINE_FAILED: &str = "this node's ordering engine failed";

/// How long transactions whose origin is gone may take to go too.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Conflict counters, summed over nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// `wsrep_local_cert_failures`.
    pub cert_failures: i64,
    /// `wsrep_local_bf_aborts`.
    pub bf_aborts: i64,
    /// `wsrep_local_replays`.
    pub replays: i64,
    /// `wsrep_dromon_streamed_asked_for`; each node counts those of all.
    pub streams: i64,
}

impl Conflicts {
    /// The counters of all running nodes now.
    pub fn of(cluster: &Cluster) -> Self {
        let mut sum = Self::default();
        for node in cluster.nodes() {
            if let Ok(status) = node.status(Duration::from_secs(5)) {
                let number = |name| status.number(name).unwrap_or(0);
                sum.cert_failures += number("wsrep_local_cert_failures");
                sum.bf_aborts += number("wsrep_local_bf_aborts");
                sum.replays += number("wsrep_local_replays");
                sum.streams += number("wsrep_dromon_streamed_asked_for");
            }
        }
        sum
    }

    /// Growth since `before`; a restarted node's counters start at zero.
    pub fn since(self, before: Self) -> Self {
        Self {
            cert_failures: (self.cert_failures - before.cert_failures).max(0),
            bf_aborts: (self.bf_aborts - before.bf_aborts).max(0),
            replays: (self.replays - before.replays).max(0),
            streams: (self.streams - before.streams).max(0),
        }
    }

    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        self.cert_failures += other.cert_failures;
        self.bf_aborts += other.bf_aborts;
        self.replays += other.replays;
        self.streams += other.streams;
    }
}

impl std::fmt::Display for Conflicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            cert_failures,
            bf_aborts,
            replays,
            streams: _,
        } = self;
        write!(
            f,
            "{cert_failures} certification failures, {bf_aborts} BF aborts, {replays} replays"
        )
    }
}

/// [`drained`], then the same tables, sequences, definitions and rows of `db` on every running
/// node, indexes, history and what is stored beside tables included.
pub fn settled(cluster: &Cluster, db: &str) -> anyhow::Result<i64> {
    let seqno = drained(cluster)?;
    nothing_open(cluster, OPEN_LIMIT)?;
    facts::equal(cluster, db)?;
    Ok(seqno)
}

/// What streaming transactions of other nodes have left on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenStreams {
    /// Rows of `mysql.wsrep_streaming_log`.
    pub fragments: u64,
    /// Transactions of the engine that changed rows and belong to no client here.
    pub transactions: u64,
}

/// Before that the engine shows the transactions that it showed last.
pub const LOOK_AGAIN: Duration = Duration::from_millis(150);

/// What is there now; not to be asked more often than [`LOOK_AGAIN`].
pub fn open_streams(node: &Node) -> anyhow::Result<OpenStreams> {
    let mut session = Session::open(node, "", 0)?;
    let mut count = |sql: &str| -> anyhow::Result<u64> {
        let row = match session.one(sql) {
            // A server may tell a new client what was meant for the one before it.
            Err(error) if load::code(&error) == Some(load::DEADLOCK) => session.one(sql),
            row => row,
        };
        let row = row.with_context(|| node.name())?;
        row.with_context(|| format!("{sql} returned nothing"))
    };
    Ok(OpenStreams {
        fragments: count("SELECT COUNT(*) FROM mysql.wsrep_streaming_log")?,
        transactions: count(
            "SELECT COUNT(*) FROM information_schema.innodb_trx t \
             LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
             WHERE t.trx_rows_modified > 0 AND (p.id IS NULL OR p.user = 'system user')",
        )?,
    })
}

/// Waits until no running node has anything open that belongs to another one.
pub fn nothing_open(cluster: &Cluster, limit: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + limit;
    for node in cluster.nodes().iter().filter(|n| n.process().is_some()) {
        loop {
            let open = open_streams(node)?;
            if open.fragments == 0 && open.transactions == 0 {
                break;
            }
            ensure!(
                Instant::now() < end,
                "{} still has {} fragments in its streaming log and {} open transactions of no client",
                node.name(),
                open.fragments,
                open.transactions
            );
            thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(())
}

/// How many large transactions each node has begun to apply in chunks so far.
pub fn streamed(cluster: &Cluster) -> anyhow::Result<Vec<i64>> {
    let of = |node: &Arc<Node>| {
        let status = node.status(load::STATEMENT_LIMIT)?;
        let count = status.number("wsrep_dromon_streamed_automatic");
        count.with_context(|| format!("{} does not count what it streams", node.name()))
    };
    cluster.nodes().iter().map(of).collect()
}

/// Length of each node's log, to look only at what comes later.
pub fn log_marks(cluster: &Cluster) -> Vec<usize> {
    cluster
        .nodes()
        .iter()
        .map(|n| n.read_log().map_or(0, |text| text.len()))
        .collect()
}

/// What a node has logged since the mark.
pub fn log_since(node: &Node, mark: usize) -> String {
    let text = node.read_log().unwrap_or_default();
    // Lossy decoding may move the mark into a character; the start will do then.
    text.get(mark..).map_or(text.clone(), str::to_string)
}

/// Fails if a node has logged one of the words that are never right, in a line
/// that was not expected there.
pub fn logs_clean(cluster: &Cluster, marks: &[usize], expected: &[Expected]) -> anyhow::Result<()> {
    for (index, (node, mark)) in cluster.nodes().iter().zip(marks).enumerate() {
        let text = log_since(node, *mark);
        let is_right = |line: &str| {
            expected
                .iter()
                .any(|(i, w)| *i == index && line.contains(w))
        };
        if let Some(line) = text.lines().find(|l| is_bad(l) && !is_right(l)) {
            bail!("{} logged: {line}", node.name());
        }
    }
    // It is nobody's number, and nothing bad is expected of it.
    let witness = cluster.witness().map(|w| w.log_tail(usize::MAX));
    if let Some(line) = witness
        .iter()
        .flat_map(|log| log.lines())
        .find(|l| is_bad(l))
    {
        bail!("the witness logged: {line}");
    }
    Ok(())
}

fn is_bad(line: &str) -> bool {
    BAD_WORDS.iter().any(|w| line.contains(w))
}

/// Fails if a node, or the witness, has ended by itself: the checks of what running nodes have leave it out.
/// Whoever is stopped or killed on purpose is no longer recorded as running.
pub fn none_gone(cluster: &Cluster) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        ensure!(
            node.process().is_some() || node.record().process.is_none(),
            "{} has ended by itself: {}",
            node.name(),
            node.log_tail(4)
        );
    }
    if let Some(witness) = cluster.witness() {
        ensure!(
            witness.process().is_some() || witness.record().process.is_none(),
            "the witness has ended by itself: {}",
            witness.log_tail(4)
        );
    }
    Ok(())
}

/// Fails unless all nodes run, are usable and see one another.
pub fn whole(cluster: &Cluster) -> anyhow::Result<()> {
    let witness = usize::from(cluster.witness().is_some());
    let size = i64::try_from(cluster.nodes().len() + witness)?;
    for node in cluster.nodes() {
        let status = node.status(Duration::from_secs(10))?;
        ensure!(
            status.is_usable() && status.size() == size,
            "{} is {} in a cluster of {} ({})",
            node.name(),
            status.state(),
            status.size(),
            status.get("wsrep_cluster_status")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_and_panics_are_never_right() {
        for line in [
            "261127 18:00:00 [ERROR] /usr/sbin/mariadbd got signal 11 ;",
            "2026-11-27 18:00:00 0 [ERROR] WSREP: Panic in thread 'apply 1' at a.rs:1:2: no",
            "thread 'apply 1' panicked at a.rs:1:2:",
        ] {
            assert!(is_bad(line), "{line}");
        }
        assert!(!is_bad("[Note] /usr/sbin/mariadbd: Shutdown complete"));
    }

    #[test]
    fn conflicts_grow_from_a_mark() {
        let before = Conflicts {
            cert_failures: 5,
            bf_aborts: 5,
            replays: 5,
            streams: 5,
        };
        let after = Conflicts {
            cert_failures: 9,
            bf_aborts: 5,
            replays: 1,
            streams: 7,
        };
        let grown = after.since(before);
        assert_eq!(
            grown,
            Conflicts {
                cert_failures: 4,
                bf_aborts: 0,
                replays: 0,
                streams: 2
            }
        );
    }
}
