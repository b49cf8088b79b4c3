//! Everything dies at once, and comes back by itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Node, Start};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT};
use crate::load::{RETRY, Session, code};
use crate::rng::Rng;

/// Outages, one after the other on the same cluster.
const ROUNDS: u64 = 2;
/// Clients on each node.
const CLIENTS: u64 = 3;
/// How long the nodes may take to be one cluster again.
const BACK_LIMIT: Duration = Duration::from_secs(60);

/// All three nodes are killed under load, at
/// `innodb_flush_log_at_trx_commit=0`, and started again in random order. No
/// operator does anything else; no acknowledged row is missing.
pub fn all_killed(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut first = Session::open_within(cluster.node(0), "", 0, Duration::from_secs(30))?;
    first.exec(&format!("CREATE DATABASE {}", case.db))?;
    first.exec(&format!(
        "CREATE TABLE {}.t (id BIGINT PRIMARY KEY, node INT NOT NULL)",
        case.db
    ))?;
    drop(first);
    let mut acknowledged = BTreeSet::new();
    let time = (case.options.seconds / 3).clamp(Duration::from_secs(2), Duration::from_secs(20));
    for round in 0..ROUNDS {
        let before = acknowledged.len();
        acknowledged.extend(until_killed(case, &cluster, round, time)?);
        let written = acknowledged.len() - before;
        ensure!(written > 100, "only {written} rows were acknowledged");
        let (order, back) = start_anew(&cluster, &case.db, round)?;
        check::settled(&cluster, &case.db)?;
        for node in cluster.nodes() {
            let missing = missing(node, &case.db, &acknowledged)?;
            ensure!(
                missing.is_empty(),
                "{} of {} acknowledged rows are lost on {}: {:?}",
                missing.len(),
                acknowledged.len(),
                node.name(),
                missing.iter().take(10).collect::<Vec<_>>()
            );
        }
        case.note(format!(
            "round {}: {written} rows acknowledged, all three killed; started in the order {order}, written to again \
             {:.1} s after the second start; 0 lost",
            round + 1,
            back.as_secs_f64()
        ));
    }
    check::whole(&cluster)
}

/// Inserts from all nodes until all are killed; answers what was acknowledged.
fn until_killed(
    case: &Case,
    cluster: &Arc<Cluster>,
    round: u64,
    time: Duration,
) -> anyhow::Result<Vec<i64>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let killed = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for (n, node) in cluster.nodes().iter().enumerate() {
        for c in 0..CLIENTS {
            let mut session = Session::open_within(node, &case.db, 0, Duration::from_secs(30))?;
            let (all, killed) = (all.clone(), killed.clone());
            let base = (((round * 3 + n as u64) * CLIENTS + c) * 10_000_000) as i64;
            clients.push(thread::spawn(move || -> anyhow::Result<()> {
                for i in 0.. {
                    let id = base + i;
                    let outcome = session.exec(&format!("INSERT INTO t VALUES ({id}, {n})"));
                    match outcome {
                        Ok(_) => all.lock().unwrap_or_else(PoisonError::into_inner).push(id),
                        Err(e) if code(&e).is_some_and(|c| RETRY.contains(&c)) => {}
                        // Unknown: it may be there or not.
                        Err(_) if killed.load(Ordering::Acquire) => break,
                        // The others go down first.
                        Err(_) => {
                            thread::sleep(Duration::from_millis(50));
                            if killed.load(Ordering::Acquire) {
                                break;
                            }
                            anyhow::bail!("an insert failed before anything was killed");
                        }
                    }
                }
                Ok(())
            }));
        }
    }
    thread::sleep(time);
    killed.store(true, Ordering::Release);
    cluster.kill_all()?;
    for client in clients {
        client.join().expect("a client does not panic")?;
    }
    let all = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(all)
}

/// Starts the nodes in an order that `round` decides; answers the order and
/// how long after the second start a write succeeded.
fn start_anew(cluster: &Cluster, db: &str, round: u64) -> anyhow::Result<(String, Duration)> {
    let mut rng = Rng::new(round + 77);
    let mut order = [0, 1, 2];
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut second = Instant::now();
    for (nth, node) in order.iter().enumerate() {
        if nth == 1 {
            second = Instant::now();
        }
        cluster.node(*node).start(Start::Join, &[])?;
        thread::sleep(Duration::from_millis(rng.below(1500)));
    }
    let mut back = None;
    while back.is_none() && second.elapsed() < BACK_LIMIT {
        let written = Session::open_within(cluster.node(order[0]), db, 0, Duration::from_secs(5))
            .map(|mut s| s.exec(&format!("INSERT INTO t VALUES ({}, 9)", -1 - round as i64)));
        if matches!(written, Ok(Ok(_))) {
            back = Some(second.elapsed());
        } else {
            thread::sleep(Duration::from_millis(100));
        }
    }
    let back = back
        .with_context(|| format!("no write succeeded within {BACK_LIMIT:?} of the second start"))?;
    for node in cluster.nodes() {
        node.wait_usable(JOIN_LIMIT)?;
    }
    let names: Vec<String> = order.iter().map(|n| cluster.node(*n).name()).collect();
    Ok((names.join(", "), back))
}

fn missing(node: &Arc<Node>, db: &str, acknowledged: &BTreeSet<i64>) -> anyhow::Result<Vec<i64>> {
    let mut session = Session::open_within(node, db, 0, Duration::from_secs(30))?;
    let there: BTreeSet<i64> = session
        .rows::<i64>("SELECT id FROM t")?
        .into_iter()
        .collect();
    Ok(acknowledged.difference(&there).copied().collect())
}
