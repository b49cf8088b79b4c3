//! Everything dies at once, and comes back by itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use dromon_sandbox::{Cluster, JoinPlan, Node, Start};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::{RETRY, Session, code};
use crate::rng::Rng;

/// How long a server may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Outages, one after the other on the same cluster.
const ROUNDS: u64 = 2;
/// Clients on each node.
const CLIENTS: u64 = 3;
/// How long the members may take to be one cluster again.
pub(super) const BACK_LIMIT: Duration = Duration::from_secs(60);
/// Where clients write: which row, and from which node.
pub(super) const TABLE: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, node INT NOT NULL)";

/// All three nodes are killed under load, at
/// `innodb_flush_log_at_trx_commit=0`, and started again in random order. No
/// operator does anything else; no acknowledged row is missing. In even rounds
/// the third is started only after a write on the first two.
pub fn all_killed(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
        // Where the engines stand they say in Notes, which this would hide.
        *spec = spec.clone().set("silent_startup", "ON");
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    drop(new_database(cluster.node(0), &case.db, &[TABLE])?);
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
            nothing_lost(node, &case.db, &acknowledged)?;
        }
        case.note(format!(
            "round {}: {written} rows acknowledged, all three killed; started in the order {order}, written to again \
             {:.1} s after the second start; 0 lost",
            round + 1,
            back.as_secs_f64()
        ));
    }
    // What `dromon up` does beside two that run.
    cluster.node(1).kill()?;
    let took = cluster.start_missing(JOIN_LIMIT)?;
    let ran: Vec<usize> = (0..took.len()).filter(|i| took[*i].is_zero()).collect();
    ensure!(
        ran == [0, 2],
        "started again: not only the second, {took:?}"
    );
    check::settled(&cluster, &case.db)?;
    case.note(format!(
        "one killed, and what did not run started: Synced {:.1} s later",
        took[1].as_secs_f64()
    ));
    check::whole(&cluster)
}

/// Two of three are stopped in order, the third goes on alone and is killed under load; all are started as usual, the
/// third last. Then all are stopped in order, and started so again. No operator does anything else.
pub fn last_one(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    drop(new_database(cluster.node(0), &case.db, &[TABLE])?);
    let last = cluster.node(2);
    for node in &cluster.nodes()[..2] {
        node.stop(STOP_LIMIT)?;
    }
    let mut session = Session::open_within(last, &case.db, 2, Duration::from_secs(30))?;
    let mut acknowledged = BTreeSet::new();
    let until = Instant::now()
        + (case.options.seconds / 3).clamp(Duration::from_secs(1), Duration::from_secs(5));
    while Instant::now() < until {
        let id = acknowledged.len() as i64;
        session.exec(&format!("INSERT INTO t VALUES ({id}, 2)"))?;
        acknowledged.insert(id);
    }
    last.kill()?;
    for killed in [true, false] {
        if !killed {
            for node in cluster.nodes() {
                node.stop(STOP_LIMIT)?;
            }
        }
        let began = Instant::now();
        // Those that left before wait for it.
        for node in cluster.nodes() {
            node.start(Start::Join, &[])?;
        }
        for node in cluster.nodes() {
            node.wait_usable(JOIN_LIMIT)?;
            nothing_lost(node, &case.db, &acknowledged)?;
        }
        let took = began.elapsed().as_secs_f64();
        // Usable is what they say of themselves.
        for node in cluster.nodes() {
            let id = i64::try_from(acknowledged.len())?;
            Session::open(node, &case.db, 3)?.exec(&format!("INSERT INTO t VALUES ({id}, 3)"))?;
            acknowledged.insert(id);
        }
        case.note(format!(
            "{} rows acknowledged by the last one, which was {}; all started as usual: usable after {took:.1} s, 0 lost",
            acknowledged.len(),
            match killed {
                true => "killed",
                false => "stopped in order",
            }
        ));
        check::settled(&cluster, &case.db)?;
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
    let now = order.len() - usize::from(round.is_multiple_of(2));
    let mut second = Instant::now();
    for (nth, node) in order[..now].iter().enumerate() {
        if nth == 1 {
            second = Instant::now();
        }
        cluster.node(*node).start(Start::Join, &[])?;
        thread::sleep(Duration::from_millis(rng.below(1500)));
    }
    let back = written_after(second, cluster.node(order[0]), db, -1 - round as i64)?;
    for node in &order[now..] {
        cluster.node(*node).start(Start::Join, &[])?;
    }
    for node in cluster.nodes() {
        node.wait_usable(JOIN_LIMIT)?;
    }
    let mut names: Vec<String> = order.iter().map(|n| cluster.node(*n).name()).collect();
    if now < order.len() {
        names[now] += " after the first write";
    }
    Ok((names.join(", "), back))
}

/// Waits until a row can be written to the node; how long that was after `since`.
pub(super) fn written_after(
    since: Instant,
    node: &Node,
    db: &str,
    id: i64,
) -> anyhow::Result<Duration> {
    loop {
        let session = Session::open_within(node, db, 0, Duration::from_secs(5));
        // What an attempt before wrote, of which nobody was told, may be there.
        let done = session.map(|mut s| s.exec(&format!("REPLACE INTO t VALUES ({id}, 9)")));
        if matches!(done, Ok(Ok(_))) {
            return Ok(since.elapsed());
        }
        ensure!(
            since.elapsed() < BACK_LIMIT,
            "no write succeeded on {} within {BACK_LIMIT:?}",
            node.name()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// Fails unless the node has all rows that were acknowledged.
pub(super) fn nothing_lost(
    node: &Node,
    db: &str,
    acknowledged: &BTreeSet<i64>,
) -> anyhow::Result<()> {
    let mut session = Session::open_within(node, db, 0, Duration::from_secs(30))?;
    let there: BTreeSet<i64> = session
        .rows::<i64>("SELECT id FROM t")?
        .into_iter()
        .collect();
    let lost: Vec<&i64> = acknowledged.difference(&there).collect();
    ensure!(
        lost.is_empty(),
        "{} of {} acknowledged rows are lost on {}: {:?}",
        lost.len(),
        acknowledged.len(),
        node.name(),
        lost.iter().take(10).collect::<Vec<_>>()
    );
    Ok(())
}
