//! Controls: faults that must be seen. The same rounds, clients and checks on
//! what is known to lose rows or updates; a control that finds nothing wrong
//! fails, as the rounds that it stands for could then not find anything either.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Start};

use super::cut;
use super::deaths::{LEAST_ROWS, set_flush};
use super::{
    Needs, WRITE_LIMIT, all_back_restarted, append, load_time, own_scenario, started, wipe,
};
use crate::check;
use crate::harness::{Case, JOIN_LIMIT, Run, Scenario};
use crate::history::{Anomaly, check as check_history};
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::Session;
use crate::rng::Rng;

/// Debian's package galera-4.
pub const PEER: &str = "/usr/lib/galera/libgalera_smm.so";
const CLIENTS: usize = 3;
const RESTARTS: usize = 4;
/// How long a node gets to find out that its log does not reach back far enough.
const ALONE: Duration = Duration::from_secs(20);

/// What `storms --control` runs.
pub fn all() -> Vec<Scenario> {
    let table: Vec<(&str, &str, u64, Run)> = vec![
        (
            "control_kill_all",
            "kill_all on the peer at innodb_flush_log_at_trx_commit 0: acknowledged rows must be found missing",
            120,
            kill_all,
        ),
        (
            "control_power_cut",
            "power_cut on the peer at innodb_flush_log_at_trx_commit 0: acknowledged rows must be found missing",
            120,
            power_cut,
        ),
        (
            "control_cut",
            "a log cut while the engine keeps more in memory than it may: the rounds of kill_all must see it",
            60,
            cut_too_far,
        ),
        (
            "control_lost_update",
            "append with innodb_snapshot_isolation=OFF: the checker must find lost updates",
            30,
            lost_update,
        ),
    ];
    table.into_iter().map(own_scenario).collect()
}

fn kill_all(case: &mut Case) -> anyhow::Result<()> {
    rows_are_lost(case, Needs::default(), |_, cluster| {
        Ok(cluster.kill_all().map(drop)?)
    })
}

fn power_cut(case: &mut Case) -> anyhow::Result<()> {
    let needs = Needs {
        disks: true,
        ..Needs::default()
    };
    rows_are_lost(case, needs, |case, cluster| case.disks().power_cut(cluster))
}

/// Rounds in which `strike` takes all nodes of the peer's cluster at once. Passes
/// if rows that were acknowledged are missing afterwards.
fn rows_are_lost(
    case: &mut Case,
    needs: Needs,
    strike: impl Fn(&Case, &Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let peer = case.options.peer.clone().unwrap_or(PathBuf::from(PEER));
    ensure!(
        peer.is_file(),
        "the peer is not there ({}; package galera-4, or --peer): nothing was shown",
        peer.display()
    );
    let cluster = started(case, needs, |spec| {
        spec.provider = peer;
        // Those of the provider under test are not the peer's.
        spec.provider_options.clear();
    })?;
    ensure!(
        !cluster.record().is_dromon(),
        "the peer must be another one"
    );
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut lost, mut all) = (Numbers::new(), 0, 0);
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        if needs.disks {
            // The peer does not store a full copy that it took: such a loss is
            // not the one to be found.
            case.disks().sync()?;
        }
        set_flush(&cluster, 0)?;
        let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        thread::sleep(load_time(case, &mut rng));
        clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
        ensure!(cluster.running() == 3, "a node had ended by itself");
        strike(case, &cluster)?;
        let mut told = Told::default();
        let words = clients.close_into(&mut told)?;
        let first = found_again(&cluster)?;
        let missing = missing(&cluster, &case.db, &told)?;
        if !missing.is_empty() {
            is_seen(ledger::hold_against(&cluster, &case.db, &told))?;
        }
        case.progress(format!(
            "round {}: {words}; all down at once, {first} had most and founded the cluster anew; {} lost",
            round + 1,
            missing.len()
        ));
        lost += missing.len();
        all += told.acknowledged.len();
    }
    ensure!(
        lost > 0,
        "none of {all} acknowledged rows was found missing, though the peer stores nothing before it acknowledges: \
         the round cannot see a loss"
    );
    case.progress(format!(
        "in all {lost} of {all} acknowledged rows lost, as must be: the round sees a loss"
    ));
    Ok(())
}

/// What an operator of the peer does after an outage: asks each node how far it
/// has come, founds on the best, and lets the others take a full copy of it, as
/// the peer cannot always bring them up by its log here. Answers its name.
fn found_again(cluster: &Cluster) -> anyhow::Result<String> {
    let mut best: Option<(i64, usize, String)> = None;
    for (index, node) in cluster.nodes().iter().enumerate() {
        let position = node.recovered_position()?;
        let seqno = position
            .split_once(':')
            .and_then(|(_, rest)| rest.split(',').next()?.trim().parse().ok())
            .with_context(|| format!("{} stands at {position}", node.name()))?;
        if best.as_ref().is_none_or(|(most, ..)| seqno > *most) {
            best = Some((seqno, index, position));
        }
    }
    let (_, best, position) = best.context("no node")?;
    for node in cluster.nodes() {
        // What it would found the old cluster by itself with, or wait for.
        let view = node.record().data_dir.join("gvwstate.dat");
        if view.exists() {
            fs::remove_file(view)?;
        }
    }
    let first = cluster.node(best);
    let state = first.record().data_dir.join("grastate.dat");
    let text = fs::read_to_string(&state)?;
    let text = text.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1");
    fs::write(&state, text)?;
    let start = format!("--wsrep-start-position={position}");
    first.start(Start::NewCluster, &[start])?;
    first.wait_usable(JOIN_LIMIT)?;
    for node in cluster.nodes() {
        if node.process().is_none() {
            wipe(node)?;
            node.start(Start::Join, &[])?;
            node.wait_usable(JOIN_LIMIT)?;
        }
    }
    all_back_restarted(cluster, RESTARTS)?;
    Ok(first.name())
}

/// The rounds' own check must fail, and for the rows that are lost.
fn is_seen(held: anyhow::Result<()>) -> anyhow::Result<()> {
    let words = match held {
        Ok(()) => "nothing".to_string(),
        Err(error) => format!("{error:#}"),
    };
    ensure!(
        words.contains("acknowledged rows are lost"),
        "acknowledged rows are missing on all nodes, and the check of the rounds says: {words}"
    );
    Ok(())
}

/// Rows acknowledged that no node has.
fn missing(cluster: &Cluster, db: &str, told: &Told) -> anyhow::Result<Vec<i64>> {
    check::at_rest(cluster)?;
    let mut there = BTreeSet::new();
    for node in cluster.nodes() {
        let rows: Vec<i64> = Session::open(node, db, 0)?.rows("SELECT id FROM t")?;
        there.extend(rows);
    }
    Ok(told.acknowledged.difference(&there).copied().collect())
}

/// An engine that writes its log once in 45 minutes, not within the 10 s that the
/// library counts on: what is cut is not in the databases when all are killed.
fn cut_too_far(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |spec| {
        *spec = spec
            .clone()
            .set("innodb_flush_log_at_timeout", "2700")
            .set("innodb_log_buffer_size", "512M")
            .set("innodb_log_file_size", "2G");
    })?;
    ledger::set_up(cluster.node(0), &case.db)?;
    set_flush(&cluster, 0)?;
    let mut numbers = Numbers::new();
    let clients = Ledger::open(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
    clients.wait_more(LEAST_ROWS, WRITE_LIMIT)?;
    let mut cut = cut::until_cut(&cluster, &case.db)?;
    cluster.kill_all()?;
    cut.stop_writing();
    let told = clients.close()?;
    let marks = check::log_marks(&cluster);
    for node in cluster.nodes() {
        node.start(Start::Join, &[])?;
        // It ends, or becomes a member; with nobody else there it can only wait.
        let _ = node.wait_usable(ALONE);
        if let Err(found) = cut::copies(&cluster, &marks) {
            case.progress(format!(
                "{told}; {}all killed; found, as must be: {found}",
                cut.words
            ));
            // It may have ended, as its log says why.
            let _ = node.stop(ALONE);
            return Ok(());
        }
    }
    bail!(
        "no database stood before the beginning of its log: the rounds cannot see one that was cut too far"
    )
}

/// The clients of `append` without any fault, but with reads that do not hold
/// until the commit.
fn lost_update(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |spec| {
        *spec = spec
            .clone()
            .set("innodb_snapshot_isolation", "OFF")
            .set("wsrep_sync_wait", "1");
    })?;
    let time = case.options.seconds.min(Duration::from_secs(60));
    let (history, calm) = append::clients_during(case, &cluster, || {
        thread::sleep(time);
        Ok(())
    })?;
    calm?;
    check::settled(&cluster, &case.db)?;
    let report = check_history(&history, &append::finals(&cluster, &case.db)?);
    case.progress(report.to_string());
    let count = |anomaly| report.found.get(&anomaly).copied().unwrap_or(0);
    for never in [Anomaly::LostWrite, Anomaly::Torn, Anomaly::Divergence] {
        ensure!(count(never) == 0, "{report}");
    }
    ensure!(
        count(Anomaly::P4) > 0,
        "no lost update among {} transactions without snapshot isolation: the checker cannot see one",
        report.committed
    );
    case.progress(format!(
        "{} lost updates, as must be: the checker sees them",
        count(Anomaly::P4)
    ));
    Ok(())
}
