//! A total outage with much to feed again: how soon writes flow.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Start};

use super::{Needs, all_back, nothing_lost, seconds, shuffled, started};
use crate::harness::Case;
use crate::ledger::{self, Ledger, Numbers, Told};
use crate::load::Session;
use crate::rng::Rng;

/// From the start of the last process that is needed until a write succeeds.
const LIMIT: Duration = Duration::from_secs(15);
const BACK_LIMIT: Duration = Duration::from_secs(180);
const CLIENTS: usize = 6;
/// What the slowest machine writes in a second.
const SLOWEST: u64 = 200;

/// The engine keeps its log in memory (flush 0, once in 45 minutes), so that a
/// kill takes nearly all of it and the provider's log must bring it again. In
/// odd rounds the position is asked for first and given, as `galera_recovery` and
/// systemd do. In every other one the third node is held back until two have written.
pub fn after_outage(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |spec| {
        *spec = spec
            .clone()
            .set("innodb_flush_log_at_trx_commit", "0")
            .set("innodb_flush_log_at_timeout", "2700")
            .set("innodb_log_buffer_size", "256M")
            .set("innodb_log_file_size", "512M");
    })?;
    ledger::set_up(cluster.node(0), &case.db)?;
    let (mut numbers, mut told) = (Numbers::new(), Told::default());
    let mut slowest = Duration::ZERO;
    for round in 0..case.options.rounds {
        let mut rng = Rng::new(case.options.seed + round);
        let asked = round % 2 == 1;
        let two_first = two_first(round);
        for node in cluster.nodes() {
            // Else the engine's log is full after some rounds, and is written to make room.
            Session::open(node, "", 0)?.exec("SET GLOBAL innodb_log_checkpoint_now = ON")?;
        }
        let clients = Ledger::open_plain(cluster.nodes(), &case.db, CLIENTS, &mut numbers);
        let entries = case.options.entries;
        wait_unwritten(&cluster, entries)?;
        let last = cluster
            .node(0)
            .status(Duration::from_secs(10))?
            .last_committed();
        cluster.kill_all()?;
        told.add(clients.close()?);
        // Also without galera_recovery it must be known how much there is to do.
        let positions = (0..3)
            .map(|n| cluster.node(n).recovered_position())
            .collect::<Result<Vec<_>, _>>()?;
        let to_feed: Vec<i64> = positions
            .iter()
            .map(|p| last - seqno(p).unwrap_or(0))
            .collect();
        let order = shuffled(&cluster, &mut rng);
        let id = WRITTEN - round as i64;
        let given = asked.then_some(&positions[..]);
        let flow = start_all(&cluster, case, &order, given, two_first, id, &mut rng)?;
        let back = all_back(&cluster)?;
        told.acknowledged.insert(id);
        nothing_lost(&cluster, &case.db, &told)?;
        slowest = slowest.max(flow);
        // An engine may write its log for a reason of its own; not those of a majority.
        let mut sorted = to_feed.clone();
        sorted.sort_unstable();
        let most_need = sorted.get((sorted.len() - 1) / 2).copied().unwrap_or(0);
        let names: Vec<String> = order.iter().map(|i| cluster.node(*i).name()).collect();
        case.progress(format!(
            "round {}, {} galera_recovery, order {}{}: {to_feed:?} entries to feed again on db1 to db3; \
             writes flow {} after the second start, all Synced {} later; 0 lost",
            round + 1,
            if asked { "with" } else { "without" },
            names.join(", "),
            if two_first { " (the third after the first write)" } else { "" },
            seconds(flow),
            seconds(back)
        ));
        let limit = case.options.limit(LIMIT);
        if cluster.record().is_dromon() {
            ensure!(
                most_need >= entries as i64,
                "most nodes had only {most_need} entries or fewer to be fed again, {entries} were asked for: the test \
                 showed less than it should"
            );
            ensure!(
                flow < limit,
                "writes flowed {} after the second start; the limit is {}",
                seconds(flow),
                seconds(limit)
            );
        }
    }
    case.progress(format!(
        "in all {told}; 0 lost; writes flow within {} at most",
        seconds(slowest)
    ));
    Ok(())
}

/// Waits until the engines of a majority have that many entries only in memory:
/// one that was idle before still writes its log when the load begins.
fn wait_unwritten(cluster: &Cluster, entries: u64) -> anyhow::Result<()> {
    let mut engines = cluster
        .nodes()
        .iter()
        .map(|node| Ok((Session::open(node, "", 0)?, 0, 0)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let end = Instant::now() + Duration::from_secs(60 + 2 * entries / SLOWEST);
    loop {
        let mut unwritten = Vec::new();
        for (session, written, committed_then) in &mut engines {
            let now = status(session, "Innodb_lsn_flushed")?;
            let committed = status(session, "wsrep_last_committed")?;
            if now != *written {
                (*written, *committed_then) = (now, committed);
            }
            unwritten.push(committed.saturating_sub(*committed_then));
        }
        unwritten.sort_unstable();
        if unwritten[(unwritten.len() - 1) / 2] >= entries {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "the engines write their logs again and again: {unwritten:?} entries only in memory, {entries} were \
             wanted on most"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

fn status(session: &mut Session, name: &str) -> anyhow::Result<u64> {
    let row: Option<(String, u64)> = session.one(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
    Ok(row.with_context(|| format!("no status {name}"))?.1)
}

/// Id of the first row written after an outage, less the round.
const WRITTEN: i64 = -1;

fn seqno(position: &str) -> Option<i64> {
    let after = position.split_once(':')?.1;
    after.split(',').next()?.trim().parse().ok()
}

/// Whether two must do without the third until they have written: by turns with
/// rounds of all three, and of those asked for their position as of the others.
fn two_first(round: u64) -> bool {
    (round + round / 2).is_multiple_of(2)
}

/// Starts all in this order, the third, if so, after the first write; when that
/// succeeded, from the second start on.
fn start_all(
    cluster: &Cluster,
    case: &Case,
    order: &[usize],
    positions: Option<&[String]>,
    two_first: bool,
    id: i64,
    rng: &mut Rng,
) -> anyhow::Result<Duration> {
    let mut second = Instant::now();
    let start = |index: usize| {
        let extra = positions.map(|p| format!("--wsrep-start-position={}", p[index]));
        let extra: Vec<String> = extra.into_iter().collect();
        cluster.node(index).start(Start::Join, &extra)
    };
    let now = order.len() - usize::from(two_first);
    for (nth, &index) in order[..now].iter().enumerate() {
        if nth == 1 {
            second = Instant::now();
        }
        start(index)?;
        thread::sleep(Duration::from_millis(rng.below(800)));
    }
    while second.elapsed() < BACK_LIMIT {
        for &index in &order[..now] {
            let written =
                Session::open_within(cluster.node(index), &case.db, 0, Duration::from_secs(5))
                    .is_ok_and(|mut s| {
                        s.exec(&format!("INSERT INTO t VALUES ({id}, 0, '')"))
                            .is_ok()
                    });
            if written {
                let flow = second.elapsed();
                order[now..].iter().try_for_each(|index| start(*index))?;
                return Ok(flow);
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("no write succeeded within {BACK_LIMIT:?} of the second start")
}
