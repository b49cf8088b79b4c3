//! A node that is followed: its binary log has what its tables have, after crashes too.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::{JoinPlan, Node, Start};

use super::relay::plain::gtids_of_files;
use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::ledger::{self, Ledger, Numbers};
use crate::load::Session;

const DB: &str = "fb";
/// Clients of each node.
const CLIENTS: usize = 6;
/// Whose GTIDs the cluster's transactions have.
const DOMAIN: &str = "10-";

/// What `first-cluster.md` wants of a node that something follows.
const SETTINGS: [(&str, &str); 8] = [
    ("log_bin", "bin"),
    ("log_slave_updates", "ON"),
    ("wsrep_gtid_mode", "ON"),
    ("wsrep_gtid_domain_id", "10"),
    ("server_id", "10"),
    ("sync_binlog", "1"),
    ("innodb_flush_log_at_trx_commit", "1"),
    ("wsrep_slave_threads", "8"),
];

/// A node is killed under load in every round. Then each node's files have each transaction once,
/// in their order: nothing that a storage engine keeps after a crash is missing there, and nothing
/// that it gave up comes twice.
pub fn followed(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        for (name, value) in SETTINGS {
            *spec = spec.clone().set(name, value);
        }
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    ledger::set_up(cluster.node(0), DB)?;
    let mut numbers = Numbers::new();
    let time = (case.options.seconds / 4).clamp(Duration::from_secs(1), Duration::from_secs(4));
    let rounds = case.options.rounds.max(3);
    for round in 1..=rounds {
        let load = Ledger::open_plain(cluster.nodes(), DB, CLIENTS, &mut numbers);
        thread::sleep(time);
        cluster.node(0).kill()?;
        thread::sleep(Duration::from_millis(500));
        load.close()?;
        let node = cluster.node(0);
        node.start(Start::Join, &[])?;
        node.wait_usable(JOIN_LIMIT)
            .with_context(|| format!("after kill {round} of db1"))?;
    }
    check::settled(&cluster, DB)?;
    check::whole(&cluster)?;
    let wanted = ends_at(cluster.node(0))?;
    let mut count = 0;
    for node in cluster.nodes() {
        let name = node.name();
        let at = ends_at(node)?;
        ensure!(at == wanted, "{name} ends at {at}, db1 at {wanted}");
        let numbers = numbers_of(node).with_context(|| name.to_owned())?;
        let mut before = None;
        for number in &numbers {
            ensure!(
                before.is_none_or(|b| *number == b + 1),
                "{name}: its binary log has {DOMAIN}…-{number} behind {before:?}"
            );
            before = Some(*number);
        }
        // The binary log of one that came by a copy begins where that was.
        ensure!(
            before == Some(wanted),
            "{name} has no more than {before:?} of {wanted}"
        );
        count = numbers.len();
    }
    let mut session = Session::open(cluster.node(0), DB, 0)?;
    let rows: Vec<i64> = session.rows("SELECT id FROM t")?;
    ensure!(rows.iter().collect::<BTreeSet<_>>().len() == rows.len());
    case.progress(format!(
        "{} rows, db1 killed {rounds} times: the binary logs of all three have each of {count} transactions once",
        rows.len()
    ));
    Ok(())
}

/// The number of the last transaction of the cluster in a node's binary log.
fn ends_at(node: &Node) -> anyhow::Result<u64> {
    let text: Option<String> = Session::open(node, "", 0)?.one("SELECT @@gtid_binlog_pos")?;
    let text = text.unwrap_or_default();
    let of = text.split(',').find(|gtid| gtid.starts_with(DOMAIN));
    number(of.with_context(|| format!("no GTID of domain {DOMAIN} in '{text}'"))?)
}

fn number(gtid: &str) -> anyhow::Result<u64> {
    let last = gtid.rsplit('-').next().unwrap_or_default();
    last.parse().with_context(|| format!("the GTID '{gtid}'"))
}

/// Those of the cluster's transactions in a node's files, in their order.
fn numbers_of(node: &Node) -> anyhow::Result<Vec<u64>> {
    let dir = node.record().data_dir;
    let is_one = |path: &PathBuf| {
        let end = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        path.file_stem().is_some_and(|s| s == "bin") && end.bytes().all(|b| b.is_ascii_digit())
    };
    let entries = std::fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(is_one);
    files.sort();
    let all = gtids_of_files(&files)?;
    let of = all.iter().filter(|gtid| gtid.starts_with(DOMAIN));
    of.map(|gtid| number(gtid)).collect()
}
