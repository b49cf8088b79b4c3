//! Streaming transactions whose origin dies: what they did goes away everywhere,
//! with their locks and their fragments.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Node, Start};

use super::{Needs, all_back, leader, seconds, start_down, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::load::{RETRY, Session, code};
use crate::rng::Rng;

/// Rows that the transaction changes, each in a fragment of its own.
const ROWS: u64 = 40;
/// From the death, or from the return of all, until others may write them.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the fragments may take to be everywhere.
const SPREAD: Duration = Duration::from_secs(20);
/// Lock wait timeout: the row is held, try again.
const HELD: u16 = 1205;

/// A round: a transaction of 40 fragments is open when its origin is killed (the leader in
/// odd rounds), then another one when all are.
pub fn streams(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    new_database(
        cluster.node(0),
        &case.db,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            &format!("INSERT INTO t SELECT seq, 0 FROM seq_1_to_{ROWS}"),
        ],
    )?;
    check::drained(&cluster)?;
    let limit = case.options.limit(LIMIT);
    let mut writes = 0;
    let mut slowest = [Duration::ZERO; 2];
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        for node in cluster.nodes() {
            Session::open(node, "", 0)?.exec(&format!(
                "SET GLOBAL innodb_flush_log_at_trx_commit = {}",
                round % 3
            ))?;
        }
        let leads = leader(&cluster, &mut rng)?;
        let origin = if round % 2 == 1 {
            leads
        } else {
            (leads + 1) % cluster.nodes().len()
        };
        let open = stream(&cluster, origin, &case.db)?;
        cluster.node(origin).kill()?;
        let died = Instant::now();
        let others: Vec<&Node> = others(&cluster, origin);
        writes += write_all(&others, &case.db, died, limit)
            .with_context(|| format!("after the death of {}", cluster.node(origin).name()))?;
        check::nothing_open(&cluster, limit.saturating_sub(died.elapsed()))?;
        let alone = died.elapsed();
        drop(open);
        cluster.node(origin).start(Start::Join, &[])?;
        all_back(&cluster)?;
        rolled_back(&cluster, &case.db, writes)?;

        let origin = rng.below(cluster.nodes().len() as u64) as usize;
        let open = stream(&cluster, origin, &case.db)?;
        cluster.kill_all()?;
        drop(open);
        let order = start_down(&cluster, &mut rng)?.join(", ");
        all_back(&cluster)?;
        let back = Instant::now();
        let nodes: Vec<&Node> = cluster.nodes().iter().map(|n| &**n).collect();
        writes += write_all(&nodes, &case.db, back, limit).context("after all were killed")?;
        check::nothing_open(&cluster, limit.saturating_sub(back.elapsed()))?;
        let together = back.elapsed();
        rolled_back(&cluster, &case.db, writes)?;
        slowest = [slowest[0].max(alone), slowest[1].max(together)];
        case.progress(format!(
            "round {}: the origin killed ({}), its {ROWS} rows written by the others and its fragments gone after {}; \
             all killed, started as {order}: the same {} after all were back",
            round + 1,
            if round % 2 == 1 { "it led" } else { "another led" },
            seconds(alone),
            seconds(together)
        ));
    }
    case.progress(format!(
        "in all {} streaming transactions of {ROWS} fragments undone, {writes} later writes of the same rows; gone within {} \
         of their origin's death, {} of the return of all",
        2 * case.options.rounds,
        seconds(slowest[0]),
        seconds(slowest[1])
    ));
    Ok(())
}

fn others(cluster: &Cluster, origin: usize) -> Vec<&Node> {
    let all = cluster.nodes().iter().enumerate();
    all.filter(|(i, _)| *i != origin)
        .map(|(_, n)| &**n)
        .collect()
}

/// Opens a transaction on `origin` that changes all rows; returns once the others
/// have its fragments.
fn stream(cluster: &Cluster, origin: usize, db: &str) -> anyhow::Result<Session> {
    let mut session = Session::open(cluster.node(origin), db, 0)?;
    session.exec("SET SESSION wsrep_trx_fragment_unit = 'rows'")?;
    session.exec("SET SESSION wsrep_trx_fragment_size = 1")?;
    session.exec("BEGIN")?;
    for id in 1..=ROWS {
        session.exec(&format!("UPDATE t SET v = v + 1000000 WHERE id = {id}"))?;
    }
    let end = Instant::now() + SPREAD;
    for node in others(cluster, origin) {
        // Without this nothing would be shown by none being there later.
        loop {
            let open = check::open_streams(node)?;
            if open.fragments >= ROWS && open.transactions > 0 {
                break;
            }
            ensure!(
                Instant::now() < end,
                "{} has {} fragments and {} open transactions of a stream of {ROWS} fragments",
                node.name(),
                open.fragments,
                open.transactions
            );
            thread::sleep(check::LOOK_AGAIN);
        }
    }
    Ok(session)
}

/// Writes each row on each of the nodes, however often it takes; how many writes.
fn write_all(nodes: &[&Node], db: &str, since: Instant, limit: Duration) -> anyhow::Result<u64> {
    let mut writes = 0;
    for node in nodes {
        let mut session = Session::open(node, db, 0)?;
        session.exec("SET SESSION innodb_lock_wait_timeout = 1")?;
        for id in 1..=ROWS {
            let sql = format!("UPDATE t SET v = v + 1 WHERE id = {id}");
            while let Err(error) = session.exec(&sql) {
                let number = code(&error);
                // 1047: not yet a majority without the dead one.
                let again = number.is_some_and(|c| RETRY.contains(&c) || [HELD, 1047].contains(&c));
                ensure!(again, "row {id} on {}: {error}", node.name());
                ensure!(
                    since.elapsed() < limit,
                    "row {id} on {} cannot be written {} later: {error}",
                    node.name(),
                    seconds(since.elapsed())
                );
                thread::sleep(Duration::from_millis(20));
            }
            writes += 1;
        }
    }
    Ok(writes)
}

/// Nothing of the streams is left in the rows.
fn rolled_back(cluster: &Cluster, db: &str, writes: u64) -> anyhow::Result<()> {
    check::settled(cluster, db)?;
    for node in cluster.nodes() {
        let sum: Option<u64> = Session::open(node, db, 0)?.one("SELECT SUM(v) FROM t")?;
        ensure!(
            sum == Some(writes),
            "the rows of {} have {sum:?}, {writes} writes were acknowledged",
            node.name()
        );
    }
    Ok(())
}
