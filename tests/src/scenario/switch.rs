//! The whole cluster changes its library, and changes back, as README tells people to.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Left};

use super::outage::{TABLE, nothing_lost};
use super::torture::control::PEER;
use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::Session;

/// How long a server may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Rows that each node writes under each library.
const ROWS: i64 = 40;

/// Founded with the peer's library, over to the library under test, back, and over once more; each time all are
/// stopped in order and one line is changed. The history and all rows go on, and every node writes under each.
pub fn over_and_back(case: &mut Case) -> anyhow::Result<()> {
    let ours = case.options.provider.clone();
    let peer = case.options.peer.clone().unwrap_or(PathBuf::from(PEER));
    ensure!(
        peer.is_file(),
        "the peer is not there ({}; package galera-4, or --peer): nothing was shown",
        peer.display()
    );
    let options = case.options.provider_options.clone();
    let cluster = case.own_cluster(|spec| {
        spec.provider.clone_from(&peer);
        // Those of the provider under test are not the peer's.
        spec.provider_options.clear();
    })?;
    ensure!(
        !cluster.record().is_dromon(),
        "the peer must be another one"
    );
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    drop(new_database(cluster.node(0), &case.db, &[TABLE])?);
    let history = cluster.node(0).status(JOIN_LIMIT)?;
    let history = history.get("wsrep_cluster_state_uuid").to_string();
    let mut rows = BTreeSet::new();
    for (round, library) in [&peer, &ours, &peer, &ours].into_iter().enumerate() {
        if round > 0 {
            stop_in_order(&cluster, &history)?;
            if round == 3 {
                forget_logs(&cluster)?;
            }
            let of_it = if library == &ours {
                options.clone()
            } else {
                String::new()
            };
            change(&cluster, library, of_it)?;
            // The marked one by --wsrep-new-cluster.
            cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
        }
        let ran = cluster.record().is_dromon();
        ensure!(ran == (library == &ours), "the line was not changed");
        for node in cluster.nodes() {
            let status = node.status(JOIN_LIMIT)?;
            let now = status.get("wsrep_cluster_state_uuid");
            ensure!(
                now == history,
                "{}: history {now}, was {history}",
                node.name()
            );
            let name = status.get("wsrep_provider_name");
            ensure!(
                (name == "Dromon") == ran,
                "{} runs with {name}",
                node.name()
            );
        }
        write_from_all(&cluster, &case.db, &mut rows)?;
        check::settled(&cluster, &case.db)?;
    }
    for node in cluster.nodes() {
        nothing_lost(node, &case.db, &rows)?;
    }
    case.note(format!(
        "to {} and back and to it again, all stopped in order: the history goes on, {} rows of all nodes there",
        ours.display(),
        rows.len()
    ));
    check::whole(&cluster)
}

/// One after the other. The last one alone is marked so, and all have the history.
fn stop_in_order(cluster: &Cluster, history: &str) -> anyhow::Result<()> {
    let last = cluster.nodes().len() - 1;
    for node in cluster.nodes() {
        node.stop(STOP_LIMIT)?;
    }
    for (index, node) in cluster.nodes().iter().enumerate() {
        let left: Left = node.left().context("it has no grastate.dat")?;
        ensure!(
            left.is_safe == (index == last) && left.seqno != "-1" && left.uuid == history,
            "{} left {left:?} of history {history}",
            node.name()
        );
    }
    Ok(())
}

fn change(cluster: &Cluster, library: &Path, options: String) -> anyhow::Result<()> {
    let name = library.file_name().context("a library has a name")?;
    cluster.change_settings(|record| {
        record.provider_copy = record.dir.join("lib").join(name);
        record.provider = library.to_path_buf();
        record.provider_options = options;
    })?;
    Ok(())
}

/// What the first time with the library left, as README says.
fn forget_logs(cluster: &Cluster) -> anyhow::Result<()> {
    let mut removed = 0;
    for node in cluster.nodes() {
        for entry in fs::read_dir(node.record().data_dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("dromon-") && name.ends_with(".log") {
                fs::remove_file(&path)?;
                removed += 1;
            }
        }
    }
    ensure!(removed >= cluster.nodes().len(), "there were no logs");
    Ok(())
}

/// Rows with the next numbers, from each node.
fn write_from_all(cluster: &Cluster, db: &str, rows: &mut BTreeSet<i64>) -> anyhow::Result<()> {
    for (index, node) in cluster.nodes().iter().enumerate() {
        let mut session = Session::open(node, db, index as u64)?;
        for _ in 0..ROWS {
            let next = i64::try_from(rows.len())?;
            session.exec(&format!("INSERT INTO t VALUES ({next}, {index})"))?;
            rows.insert(next);
        }
    }
    Ok(())
}
