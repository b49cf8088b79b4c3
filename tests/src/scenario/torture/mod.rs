//! Rounds of faults: nodes are killed, held, cut off, lose power, while clients
//! write; then everything that was acknowledged must be there, once, on every
//! node, and every node must have come back by itself.

mod append;
mod bank;
pub mod control;
mod cut;
mod cut_off;
mod deaths;
mod disks;
mod joining;
mod lost;
mod nemesis;
mod origin;
mod orphans;
mod parent;
mod pauses;
mod quorum;
mod refeed;

pub use cut::no_copies;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, ClusterSpec, JoinPlan, Node, Start};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, Run, Scenario, Servers};
use crate::lab::LogDisks;
use crate::ledger::{self, Told};
use crate::rng::Rng;

/// How long the nodes may take to be one cluster again.
const BACK_LIMIT: Duration = Duration::from_secs(90);
/// How long clients may take to get a few writes through.
const WRITE_LIMIT: Duration = Duration::from_secs(45);

/// What `make torture` runs.
pub fn all() -> Vec<Scenario> {
    let table: Vec<(&str, &str, u64, Run)> = vec![
        (
            "kill_all",
            "all nodes killed within 100 ms under load, at innodb_flush_log_at_trx_commit 0, 1, 2 (rounds of each)",
            120,
            deaths::kill_all,
        ),
        (
            "power_cut",
            "all nodes lose power at once under load: what was not synced is gone from their disks",
            60,
            deaths::power_cut,
        ),
        (
            "log_disk",
            "the disk under one node's log fails, hangs, is full, a follower's and the leader's",
            240,
            disks::log_disk,
        ),
        (
            "rolling_kills",
            "one node after the other killed under load, with and without waiting for the one before",
            120,
            deaths::rolling,
        ),
        (
            "kill_leader",
            "the leader killed under load",
            60,
            deaths::leader_dies,
        ),
        (
            "leader_lost",
            "the leader killed under load and its directory emptied: the others have all, then it comes anew",
            120,
            lost::leader_is_lost,
        ),
        (
            "memory_of_one",
            "one of three with dromon.durability=memory: it is killed, then another one; 0 lost",
            180,
            lost::memory_of_one,
        ),
        (
            "kill_joining",
            "a node killed while it catches up, or the leader meanwhile",
            90,
            joining::by_log,
        ),
        (
            "kill_in_sst",
            "donor or joiner killed during a full copy",
            150,
            joining::full_copy,
        ),
        (
            "quorum",
            "appliers of two nodes held, 12 rows acknowledged on the third, which dies; the two die, restart and go on; the third comes back",
            120,
            quorum::held_appliers,
        ),
        (
            "orphans",
            "a streaming transaction is open when its origin dies, and when all do: its rows can be written, its fragments are gone",
            120,
            orphans::streams,
        ),
        (
            "large_parent",
            "RENAME, ALTER, TRUNCATE, DROP of a foreign key's parent amid the chunks of a large UPDATE of its child: nobody leaves",
            120,
            parent::amid_child,
        ),
        (
            "append",
            "list-append clients under pause, kill, kill-all, partition and power cut; their history is checked",
            1,
            append::under_faults,
        ),
        (
            "bank",
            "transfers under kills and pauses: the total stays, on every node at every moment",
            1,
            bank::transfers,
        ),
        (
            "pauses",
            "longest pause of writes when one of three is killed, held or cut off; what the one cut off answers",
            150,
            pauses::one_of_three,
        ),
        (
            "refeed",
            "all killed with many entries to feed again: how soon writes flow, with and without galera_recovery",
            300,
            refeed::after_outage,
        ),
    ];
    table.into_iter().map(own_scenario).collect()
}

/// A large transaction whose origin dies halfway; it takes long.
pub fn origin_dies() -> Scenario {
    own_scenario((
        "origin_dies",
        "the origin killed when half of a large UPDATE is out, automatic and native streaming: all equal, nothing locked",
        300,
        origin::dies,
    ))
}

/// A node that is cut off amid a large transaction; it takes long.
pub fn cut_off() -> Scenario {
    own_scenario((
        "cut_off",
        "a node cut off amid a large UPDATE and small ones: it comes back by itself, or is stopped and started; all equal",
        120,
        cut_off::amid_large,
    ))
}

/// Whose limits are seconds, and what is promised to users.
const TIMED: [&str; 3] = ["orphans", "pauses", "refeed"];

/// One whose rounds may take so many seconds each, on a cluster of its own.
fn own_scenario((name, shows, round, run): (&'static str, &'static str, u64, Run)) -> Scenario {
    Scenario {
        name,
        shows,
        servers: Servers::Own,
        run,
        round: Duration::from_secs(round),
        timed: TIMED.contains(&name),
    }
}

/// What a scenario's cluster needs beyond signals.
#[derive(Debug, Clone, Copy, Default)]
struct Needs {
    disks: bool,
    log_disks: bool,
    network: bool,
}

/// A started cluster of three.
fn started(
    case: &mut Case,
    needs: Needs,
    change: impl FnOnce(&mut ClusterSpec),
) -> anyhow::Result<Arc<Cluster>> {
    let cluster = case.own_cluster(|spec| {
        let own = std::mem::take(&mut spec.settings);
        *spec = spec
            .clone()
            .set("innodb_log_file_size", "48M")
            // Longer than a node is held: an applier that wakes up and finds its
            // wait for a row over would look like one that hung.
            .set("innodb_lock_wait_timeout", "10");
        if needs.disks {
            // What of the engine's log was not synced is gone after a power cut. Its pages are
            // written past the page cache, as they are by default: with fsync a plain server, without any
            // library, comes back with damaged indexes now and then (docs/torture.md).
            *spec = spec
                .clone()
                .set("innodb_flush_method", "O_DIRECT")
                .set("innodb_log_file_buffering", "ON");
        }
        spec.settings.extend(own);
        if needs.log_disks {
            add_option(&mut spec.provider_options, LogDisks::OPTION);
        }
        change(spec);
    })?;
    if needs.disks {
        case.give_disks()?;
    }
    if needs.log_disks {
        case.give_log_disks()?;
    }
    if needs.network {
        case.give_network()?;
    }
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    Ok(cluster)
}

/// Adds a provider option to a list of them.
pub fn add_option(list: &mut String, option: &str) {
    if !list.is_empty() {
        list.push(';');
    }
    list.push_str(option);
}

/// A random permutation of the nodes.
fn shuffled(cluster: &Cluster, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cluster.nodes().len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    order
}

/// Starts what is down, in random order with random gaps.
fn start_down(cluster: &Cluster, rng: &mut Rng) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for index in shuffled(cluster, rng) {
        let node = cluster.node(index);
        if node.process().is_none() {
            if !names.is_empty() {
                thread::sleep(Duration::from_millis(rng.below(1500)));
            }
            node.start(Start::Join, &[])?;
            names.push(node.name());
        }
    }
    Ok(names)
}

/// Waits until all nodes are usable members of the whole cluster. None may have
/// ended: no operator does anything.
fn all_back(cluster: &Cluster) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    for node in cluster.nodes() {
        node.wait_for("a member of the whole cluster", BACK_LIMIT, |s| {
            s.is_usable() && s.size() == cluster.nodes().len() as i64
        })?;
    }
    Ok(begin.elapsed())
}

/// The same, starting again what ends by itself, as a service manager would.
/// Answers how often that was.
fn all_back_restarted(cluster: &Cluster, most: usize) -> anyhow::Result<usize> {
    let (end, mut restarts) = (Instant::now() + BACK_LIMIT * 2, 0);
    loop {
        let mut usable = 0;
        for node in cluster.nodes() {
            if node.process().is_none() {
                ensure!(
                    restarts < most,
                    "{} ended again after {restarts} restarts: {}",
                    node.name(),
                    node.log_tail(12)
                );
                restarts += 1;
                thread::sleep(Duration::from_secs(1));
                node.start(Start::Join, &[])?;
            } else if node
                .status(Duration::from_secs(2))
                .is_ok_and(|s| s.is_usable() && s.size() == cluster.nodes().len() as i64)
            {
                usable += 1;
            }
        }
        if usable == cluster.nodes().len() {
            return Ok(restarts);
        }
        if Instant::now() > end {
            bail!(
                "only {usable} nodes are usable again {} s later",
                BACK_LIMIT.as_secs() * 2
            );
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The tables are equal on all nodes, and as the clients were told; and each node takes writes.
fn nothing_lost(cluster: &Cluster, db: &str, told: &Told) -> anyhow::Result<()> {
    check::settled(cluster, db)?;
    ledger::hold_against(cluster, db, told)?;
    ledger::takes_writes(cluster, db)
}

/// Who leads; a provider without a leader: anybody.
fn leader(cluster: &Cluster, rng: &mut Rng) -> anyhow::Result<usize> {
    let count = cluster.nodes().len();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let said = cluster.nodes().iter().find_map(|n| {
            let status = n.status(Duration::from_secs(2)).ok()?;
            Some(status.get("wsrep_dromon_leader").to_string())
        });
        let said = said.context("no node answers")?;
        let record = cluster.record();
        if !record.is_dromon() {
            return Ok(rng.below(count as u64) as usize);
        }
        let found = record
            .nodes
            .iter()
            .position(|n| said.ends_with(&format!("{}:{}", n.address(), n.ports.group)));
        if let Some(found) = found.filter(|f| cluster.node(*f).process().is_some()) {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "no node leads ({said:?})");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Empties the data directory of a node that is down.
fn wipe(node: &Node) -> anyhow::Result<()> {
    ensure!(node.process().is_none(), "{} runs", node.name());
    let dir = node.record().data_dir;
    for entry in std::fs::read_dir(&dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Load before a fault: long enough for writes of every age to be on their way.
fn load_time(case: &Case, rng: &mut Rng) -> Duration {
    let most = (case.options.seconds / 4).clamp(Duration::from_secs(1), Duration::from_secs(4));
    most / 2 + Duration::from_millis(rng.below(most.as_millis() as u64 / 2))
}

/// A time in a sentence.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
