//! Acknowledged means that a majority has it on disk, not in memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Node, Start};

use super::{BACK_LIMIT, Needs, all_back, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::load::Session;
use crate::scenario::outage::TABLE;

/// Rows acknowledged by the node that dies.
const ACKNOWLEDGED: i64 = 12;
/// Rows written by the others afterwards.
const AFTERWARDS: i64 = 30;

/// See SAFETY: each round one way. Even rounds: db1 dies, db2 and db3 see it
/// leave, die too and start alone. Odd rounds: all three die at once, db2 and
/// db3 start.
pub fn held_appliers(case: &mut Case) -> anyhow::Result<()> {
    for round in 0..case.options.rounds {
        let lost = one(case, round, None)?;
        ensure!(lost.is_nothing(), "round {}: {lost}", round + 1);
        case.progress(format!("round {}: {lost}", round + 1));
        case.retire_cluster()?;
    }
    if let Some(peer) = case.options.peer.clone() {
        for round in 0..2 {
            // What the peer loses is shown, and is no failure of ours.
            let words = match one(case, round, Some(&peer)) {
                Ok(lost) => lost.to_string(),
                Err(e) => format!("did not get to the end: {e:#}"),
            };
            case.progress(format!("the peer, round {}: {words}", round + 1));
            case.retire_cluster()?;
        }
    }
    Ok(())
}

struct Loss {
    how: &'static str,
    /// Of the rows acknowledged first, missing on a node; the worst node.
    first: usize,
    /// Of the rows written later.
    later: usize,
    /// Rows that some nodes have and others have not.
    differ: usize,
}

impl Loss {
    fn is_nothing(&self) -> bool {
        self.first == 0 && self.later == 0 && self.differ == 0
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} of {ACKNOWLEDGED} acknowledged rows lost, {} of {AFTERWARDS} later ones; {} rows differ between nodes that are all Synced",
            self.how, self.first, self.later, self.differ
        )
    }
}

fn one(case: &mut Case, round: u64, peer: Option<&Path>) -> anyhow::Result<Loss> {
    let cluster = started(case, Needs::default(), |spec| {
        // The strictest setting, with which the peer should be safe.
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "1");
        if let Some(peer) = peer {
            spec.provider = peer.to_path_buf();
        }
    })?;
    let db = case.db.clone();
    let mut first = new_database(cluster.node(0), &db, &[TABLE])?;
    check::drained(&cluster)?;
    // A read lock stands for a disk that is slow to apply.
    let mut held = Vec::new();
    for node in &cluster.nodes()[1..] {
        let mut session = Session::open(node, "", 0)?;
        session.exec("FLUSH TABLES WITH READ LOCK")?;
        held.push(session);
    }
    for id in 1..=ACKNOWLEDGED {
        first
            .exec(&format!("INSERT INTO {db}.t VALUES ({id}, 1)"))
            .context("a majority with held appliers must still acknowledge")?;
    }
    let how = if round.is_multiple_of(2) {
        cluster.node(0).kill()?;
        for node in &cluster.nodes()[1..] {
            wait_for_two(node)?;
        }
        cluster.node(1).kill()?;
        cluster.node(2).kill()?;
        "db1 killed, then db2 and db3"
    } else {
        cluster.kill_all()?;
        "all killed at once"
    };
    drop(held);
    cluster.node(1).start(Start::Join, &[])?;
    cluster.node(2).start(Start::Join, &[])?;
    for node in &cluster.nodes()[1..] {
        node.wait_usable(BACK_LIMIT)
            .with_context(|| format!("{how}; db2 and db3 started"))?;
    }
    let mut second = Session::open(cluster.node(1), "", 0)?;
    for id in 1..=AFTERWARDS {
        second.exec(&format!("INSERT INTO {db}.t VALUES ({}, 2)", 1000 + id))?;
    }
    cluster.node(0).start(Start::Join, &[])?;
    all_back(&cluster)?;
    let loss = losses(&cluster, &db, how)?;
    if loss.is_nothing() {
        check::settled(&cluster, &db)?;
    }
    Ok(loss)
}

/// Waits for the library's word: the server hears of the view only behind the
/// held write sets.
fn wait_for_two(node: &Node) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    let there = |text: &str| {
        text.lines()
            .any(|l| l.contains("New COMPONENT: primary = yes") && l.contains("memb_num = 2"))
    };
    while !there(&node.read_log()?) {
        ensure!(
            Instant::now() < end,
            "{} did not see db1 leave within 30 s: {}",
            node.name(),
            node.log_tail(12)
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn losses(cluster: &Cluster, db: &str, how: &'static str) -> anyhow::Result<Loss> {
    check::at_rest(cluster)?;
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let rows: BTreeSet<i64> = Session::open(node, db, 0)?
            .rows("SELECT id FROM t")?
            .into_iter()
            .collect();
        all.push(rows);
    }
    let missing = |from: i64, count: i64| {
        all.iter()
            .map(|rows| (from..from + count).filter(|id| !rows.contains(id)).count())
            .max()
            .unwrap_or(0)
    };
    let union: BTreeSet<i64> = all.iter().flatten().copied().collect();
    let differ = union
        .iter()
        .filter(|id| !all.iter().all(|rows| rows.contains(id)))
        .count();
    Ok(Loss {
        how,
        first: missing(1, ACKNOWLEDGED),
        later: missing(1001, AFTERWARDS),
        differ,
    })
}
