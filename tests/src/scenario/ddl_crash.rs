//! Nodes die in the middle of DDL that must not run twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, JoinPlan, Start};

use crate::check;
use crate::harness::{Case, JOIN_LIMIT, new_database};
use crate::load::Session;
use crate::rng::Rng;
use crate::scenario::torture::no_copies;

/// Crashes, one after the other on the same cluster: of one node, of all, by turns.
const ROUNDS: u64 = 8;
/// How long a client waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Tables that each RENAME moves on by one place: so many renames are lost, or come
/// twice, before that is not seen.
const TABLES: u64 = 8;

/// Said by the one that does, where nobody knows whether it has its effect.
const RUNS_AGAIN: &str = "this node runs it again";

/// What one client did until it was told to stop, or until its node died.
#[derive(Default)]
struct Done {
    /// Turns of the tables acknowledged.
    turns: u64,
    /// Columns added, acknowledged.
    columns: BTreeSet<String>,
    /// The statement whose answer never came: a column's name, or none for a turn.
    unknown: Option<Option<String>>,
}

/// One client turns a ring of tables by RENAME and adds columns, one statement after
/// the other, while a node, or all nodes, are killed and started again. Each
/// acknowledged statement has had its effect once, the one without an answer
/// once or not at all, and alike on all nodes. Only where all died within a statement one may
/// run it again that had its effect there already (docs/node.md): it says so.
pub fn crashes(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    let mut tables = vec!["CREATE TABLE wide (id INT PRIMARY KEY)".to_owned()];
    for n in 0..TABLES {
        tables.push(format!("CREATE TABLE r{n} (was INT PRIMARY KEY)"));
        tables.push(format!("INSERT INTO r{n} VALUES ({n})"));
    }
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    drop(new_database(cluster.node(0), &case.db, &tables)?);
    let mut rng = Rng::new(0xdd1);
    let (mut turned, mut columns) = (0, BTreeSet::from(["id".to_owned()]));
    let (mut turns, mut added, mut twice) = (0, 0, 0);
    let count = |words: &str| -> anyhow::Result<usize> {
        let logs = cluster.nodes().iter().map(|n| n.read_log());
        logs.map(|log| Ok(log?.matches(words).count())).sum()
    };
    for round in 0..ROUNDS {
        let all = round % 2 == 1;
        let again = count(RUNS_AGAIN)?;
        let done = one_round(case, &cluster, round, all, &mut rng)?;
        ensure!(done.turns > 0, "no statement was acknowledged");
        check::settled(&cluster, &case.db)?;
        let (now_turned, now_columns) = state(case, &cluster)?;
        let unknown = done.unknown == Some(None);
        let again = unknown && count(RUNS_AGAIN)? > again;
        let once = is_explained(turned, done.turns, u64::from(unknown), now_turned);
        twice += usize::from(again && !once);
        ensure!(
            once || again && is_explained(turned, done.turns, 2, now_turned),
            "round {round}: the tables were at {turned} of {TABLES} and are at {now_turned} after {} acknowledged turns{}",
            done.turns,
            if unknown {
                " and one without an answer"
            } else {
                ""
            }
        );
        columns.extend(done.columns.iter().cloned());
        let more: Vec<_> = now_columns.difference(&columns).collect();
        let unknown: Vec<_> = done.unknown.iter().flatten().collect();
        ensure!(
            columns.is_subset(&now_columns) && (more.is_empty() || more == unknown),
            "round {round}: columns {now_columns:?} where {columns:?} were acknowledged ({unknown:?} unknown)"
        );
        turns += done.turns;
        added += done.columns.len();
        (turned, columns) = (now_turned, now_columns);
    }
    // Its server must die within what is a thousandth of a second at most.
    ensure!(
        twice < (ROUNDS / 2) as usize,
        "each outage had a statement run twice"
    );
    case.note(format!(
        "{} crashes of one node, {} of all; {turns} renames and {added} columns acknowledged, each there once; at a \
         restart {} statements were passed, {} copied, {} run again, {twice} of these for the second time",
        ROUNDS / 2,
        ROUNDS / 2,
        count("its place is passed, it is not run again")?,
        count("knows better: taking a full copy from it")?,
        count(RUNS_AGAIN)?,
    ));
    check::whole(&cluster)
}

/// CREATE TABLE ... SELECT moves no position on its origin, and is committed as a table before its rows: who is
/// killed right behind it has it once and whole, without a copy, and so have all if all are.
pub fn create_select(case: &mut Case) -> anyhow::Result<()> {
    let cluster = case.own_cluster(|spec| {
        *spec = spec.clone().set("innodb_flush_log_at_trx_commit", "0");
    })?;
    cluster.start_all(JoinPlan::OneByOne, JOIN_LIMIT)?;
    drop(new_database(cluster.node(0), &case.db, &[])?);
    let kinds = [
        "CREATE TABLE",
        "CREATE TABLE IF NOT EXISTS",
        "CREATE OR REPLACE TABLE",
    ];
    let mut tables = 0;
    for (who, kind) in kinds.iter().enumerate() {
        for killed in [vec![who], vec![(who + 1) % 3], vec![0, 1, 2]] {
            tables += 1;
            let mut session = Session::open(cluster.node(who), &case.db, 0)?;
            session.exec(&format!(
                "{kind} filled{tables} (id INT PRIMARY KEY) SELECT seq id FROM seq_1_to_1000"
            ))?;
            let marks = check::log_marks(&cluster);
            for node in &killed {
                cluster.node(*node).kill()?;
            }
            for node in &killed {
                cluster.node(*node).start(Start::Join, &[])?;
            }
            for node in cluster.nodes() {
                node.wait_usable(JOIN_LIMIT)?;
            }
            check::settled(&cluster, &case.db)?;
            no_copies(&cluster, &marks)?;
            for node in cluster.nodes() {
                let mut session = Session::open(node, &case.db, 0)?;
                let rows: Option<u64> =
                    session.one(&format!("SELECT COUNT(*) FROM filled{tables}"))?;
                ensure!(
                    rows == Some(1000),
                    "{}: filled{tables} has {rows:?} rows of 1000",
                    node.name()
                );
            }
        }
    }
    for node in cluster.nodes() {
        ensure!(
            !node.read_log()?.contains("Inconsistency detected"),
            "{} took a table that it had for an error",
            node.name()
        );
    }
    case.note(format!("{tables} tables, each there once, no copy"));
    check::whole(&cluster)
}

fn one_round(
    case: &Case,
    cluster: &Arc<Cluster>,
    round: u64,
    all: bool,
    rng: &mut Rng,
) -> anyhow::Result<Done> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut session = Session::open_within(cluster.node(0), &case.db, round, ANSWER_LIMIT)?;
    let client = {
        let stop = stop.clone();
        thread::spawn(move || work(&mut session, round, &stop))
    };
    thread::sleep(Duration::from_millis(1500 + rng.below(700)));
    if all {
        cluster.kill_all()?;
        let mut order = [0, 1, 2];
        order.rotate_left(rng.below(3) as usize);
        for node in order {
            cluster.node(node).start(Start::Join, &[])?;
            thread::sleep(Duration::from_millis(rng.below(1000)));
        }
        for node in cluster.nodes() {
            node.wait_usable(JOIN_LIMIT)?;
        }
    } else {
        let victim = cluster.node(1 + rng.below(2) as usize);
        victim.kill()?;
        victim.start(Start::Join, &[])?;
        victim.wait_usable(JOIN_LIMIT)?;
    }
    stop.store(true, Ordering::Release);
    let done = client.join().expect("a client does not panic");
    ensure!(
        all || done.unknown.is_none(),
        "a statement failed on a node that lives"
    );
    Ok(done)
}

fn work(session: &mut Session, round: u64, stop: &AtomicBool) -> Done {
    let mut done = Done::default();
    let places: Vec<String> = (1..TABLES).map(|n| format!("r{n} TO r{}", n - 1)).collect();
    let turn = format!(
        "RENAME TABLE r0 TO aside, {}, aside TO r{}",
        places.join(", "),
        TABLES - 1
    );
    for i in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let column = (i % 10 == 9).then(|| format!("c{round}_{i}"));
        let statement = match &column {
            Some(name) => format!("ALTER TABLE wide ADD COLUMN {name} INT"),
            None => turn.clone(),
        };
        match (session.exec(&statement), column) {
            (Ok(_), Some(name)) => drop(done.columns.insert(name)),
            (Ok(_), None) => done.turns += 1,
            (Err(_), column) => {
                done.unknown = Some(column);
                break;
            }
        }
        // A table takes some thousand columns only.
        thread::sleep(Duration::from_millis(3));
    }
    done
}

/// Whether each acknowledged turn was done once, and the one without an answer `most` times at most.
fn is_explained(before: u64, acknowledged: u64, most: u64, now: u64) -> bool {
    let more = (now + TABLES - (before + acknowledged) % TABLES) % TABLES;
    more <= most
}

/// How far the ring has turned, and which columns there are: alike on all nodes.
fn state(case: &Case, cluster: &Cluster) -> anyhow::Result<(u64, BTreeSet<String>)> {
    let mut states = Vec::new();
    for node in cluster.nodes() {
        let mut session = Session::open_within(node, &case.db, 0, ANSWER_LIMIT)?;
        let mut was = Vec::new();
        for n in 0..TABLES {
            let row: Option<u64> = session.one(&format!("SELECT was FROM r{n}"))?;
            was.push(row.with_context(|| format!("a row in r{n}"))?);
        }
        let turned = was[0];
        ensure!(
            (turned..).zip(&was).all(|(n, was)| *was == n % TABLES),
            "{}: a rename was done in part: the tables hold {was:?}",
            node.name()
        );
        let columns: Vec<String> = session.rows(&format!(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = '{}' AND table_name = 'wide'",
            case.db
        ))?;
        states.push((turned, columns.into_iter().collect::<BTreeSet<_>>()));
    }
    ensure!(
        states.windows(2).all(|s| s[0] == s[1]),
        "the nodes differ: {states:?}"
    );
    states.pop().context("a node")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_is_there_once() {
        for (before, acknowledged) in [(0, 3), (6, 5), (7, 80)] {
            let at = |more: u64| (before + acknowledged + more) % TABLES;
            for most in 0..3 {
                let ok = |now| is_explained(before, acknowledged, most, now);
                assert!(ok(at(0)));
                assert_eq!(ok(at(1)), most >= 1, "done, though nobody knows");
                assert_eq!(ok(at(2)), most >= 2, "done twice");
                assert!(!ok(at(3)));
                assert!(!ok(at(TABLES - 1)), "lost");
            }
        }
    }
}
