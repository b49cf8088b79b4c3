//! Money moves; none is made, none is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::Node;

use super::nemesis::{Fault, Nemesis};
use super::{Needs, started};
use crate::check;
use crate::harness::{Case, new_database};
use crate::load::{Session, Sql};

const ACCOUNTS: u64 = 10;
const EACH: i64 = 100;
const TELLERS: usize = 2;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const FAULTS: &[Fault] = &[Fault::Kill, Fault::Pause, Fault::KillAll];

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    /// Of each node.
    transfers: [AtomicU64; 3],
    totals: [AtomicU64; 3],
}

/// Tellers on all nodes read two accounts and write them; an auditor on each
/// adds up all of them in one statement, again and again.
pub fn transfers(case: &mut Case) -> anyhow::Result<()> {
    let cluster = started(case, Needs::default(), |_| {})?;
    let accounts = format!("INSERT INTO accounts SELECT seq, {EACH} FROM seq_1_to_{ACCOUNTS}");
    let table = "CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)";
    drop(new_database(
        cluster.node(0),
        &case.db,
        &[table, &accounts],
    )?);
    check::drained(&cluster)?;
    let counts = Arc::new(Counts::default());
    let mut threads = Vec::new();
    for (index, node) in cluster.nodes().iter().enumerate() {
        for role in 0..=TELLERS {
            let (node, db, counts) = (Arc::clone(node), case.db.clone(), Arc::clone(&counts));
            let seed = case.options.seed * 100 + (index * 10 + role) as u64;
            threads.push(thread::spawn(move || {
                let result = serve((index, &node), &db, seed, role == 0, &counts);
                if result.is_err() {
                    counts.stop.store(true, Ordering::Release);
                }
                result
            }));
        }
    }
    let mut nemesis = Nemesis::new(FAULTS, case.options.seed);
    let time = case.options.seconds.min(Duration::from_secs(120));
    let raged = nemesis.rage(case, &cluster, Instant::now() + time);
    counts.stop.store(true, Ordering::Release);
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a teller panicked"))??;
    }
    raged.with_context(|| format!("so far {nemesis}"))?;
    check::settled(&cluster, &case.db)?;
    for index in 0..cluster.nodes().len() {
        let total: i64 = crate::scenario::ask(
            case,
            index,
            "SELECT CAST(SUM(balance) AS SIGNED) FROM accounts",
        )?;
        right(total, &cluster.node(index).name())?;
    }
    // Of each node, faults and all: a sum would not show one that took no part.
    let wanted = time.as_secs().max(1);
    let of = |all: &[AtomicU64; 3]| all.each_ref().map(|n| n.load(Ordering::Relaxed));
    let (transfers, totals) = (of(&counts.transfers), of(&counts.totals));
    for n in 0..3 {
        ensure!(
            transfers[n] >= wanted && totals[n] >= wanted,
            "db{}: only {} transfers, {} totals, at least {wanted} of each were wanted",
            n + 1,
            transfers[n],
            totals[n]
        );
    }
    let sum = |all: [u64; 3]| all.iter().sum::<u64>();
    let (transfers, totals) = (sum(transfers), sum(totals));
    case.progress(nemesis.to_string());
    case.progress(format!(
        "{transfers} transfers acknowledged, {totals} totals taken meanwhile: all {}",
        EACH * ACCOUNTS as i64
    ));
    Ok(())
}

fn right(total: i64, node: &str) -> anyhow::Result<()> {
    let expected = EACH * ACCOUNTS as i64;
    if total != expected {
        bail!("{node} has {total} in all accounts together, not {expected}");
    }
    Ok(())
}

fn serve(
    (index, node): (usize, &Node),
    db: &str,
    seed: u64,
    audits: bool,
    counts: &Counts,
) -> anyhow::Result<()> {
    let mut session: Option<Session> = None;
    while !counts.stop.load(Ordering::Acquire) {
        let Some(open) = session.as_mut() else {
            session = Session::open_impatient(node, db, seed, ANSWER_LIMIT).ok();
            if session.is_none() {
                thread::sleep(Duration::from_millis(30));
            }
            continue;
        };
        let result = if audits {
            thread::sleep(Duration::from_millis(5));
            open.one::<i64>("SELECT CAST(SUM(balance) AS SIGNED) FROM accounts")
                .map(Some)
        } else {
            transfer(open).map(|()| None)
        };
        match result {
            Ok(Some(total)) => {
                right(total.context("no total")?, &node.name())?;
                counts.totals[index].fetch_add(1, Ordering::Relaxed);
            }
            Ok(None) => {
                counts.transfers[index].fetch_add(1, Ordering::Relaxed);
            }
            // Whether it happened or not: the total stays.
            Err(_) => {
                if open.exec("ROLLBACK").is_err() {
                    session = None;
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
    Ok(())
}

fn transfer(session: &mut Session) -> Sql<()> {
    let from = session.rng.below(ACCOUNTS) + 1;
    let to = (from + session.rng.below(ACCOUNTS - 1)) % ACCOUNTS + 1;
    let amount = session.rng.below(20) as i64;
    session.transaction(|s| {
        let mut balance = |id: u64| -> Sql<i64> {
            let found: Option<i64> =
                s.one(&format!("SELECT balance FROM accounts WHERE id = {id}"))?;
            Ok(found.unwrap_or(0))
        };
        let (a, b) = (balance(from)?, balance(to)?);
        s.exec(&format!(
            "UPDATE accounts SET balance = {} WHERE id = {from}",
            a - amount
        ))?;
        s.exec(&format!(
            "UPDATE accounts SET balance = {} WHERE id = {to}",
            b + amount
        ))?;
        Ok(())
    })
}
