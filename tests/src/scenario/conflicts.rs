//! Storms in which the nodes write the same rows: every acknowledged change is
//! counted and must be there afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;

use super::{QUICK_START_MODE, ask, set_mode, set_up};
use crate::check;
use crate::harness::Case;
use crate::load::{self, DEADLOCK, RECORD_CHANGED, RETRY, Writer};

type Count = Arc<AtomicU64>;

fn counted(count: &Count, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

/// Two nodes, five clients each, one row: single statements, transactions, and
/// read-modify-write, which snapshot isolation must keep from losing updates.
pub fn counter(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE c (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            "INSERT INTO c VALUES (1, 0)",
        ],
    )?;
    let acknowledged = Count::default();
    let mut writers = Vec::new();
    for client in 0..10 {
        let count = Arc::clone(&acknowledged);
        writers.push(Writer::new(&case.node(client % 2), move |s| {
            const INCREMENT: &str = "UPDATE c SET v = v + 1 WHERE id = 1";
            match client / 2 {
                0 | 1 => s.exec(INCREMENT).map(drop)?,
                2 | 3 => s.transaction(|s| s.exec(INCREMENT).map(drop))?,
                _ => s.transaction(|s| {
                    let v: Option<u64> = s.one("SELECT v FROM c WHERE id = 1")?;
                    s.exec(&format!(
                        "UPDATE c SET v = {} WHERE id = 1",
                        v.unwrap_or(0) + 1
                    ))
                    .map(drop)
                })?,
            }
            counted(&count, 1);
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    for node in 0..3 {
        let value: u64 = ask(case, node, "SELECT v FROM c WHERE id = 1")?;
        ensure!(
            value == acknowledged,
            "db{} counts {value}, {acknowledged} increments were acknowledged",
            node + 1
        );
    }
    case.note(tally.to_string());
    Ok(())
}

/// Three nodes: range updates, inserts into the ranges, and rows that move in
/// the index. Gap locks collide where certification keys do not: replays.
pub fn ranges(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE r (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v BIGINT NOT NULL, KEY (k))",
            "INSERT INTO r (k, v) SELECT seq % 200, 0 FROM seq_1_to_1000",
        ],
    )?;
    let (changed, inserted) = (Count::default(), Count::default());
    let mut writers = Vec::new();
    for node in 0..3 {
        for _ in 0..2 {
            let count = Arc::clone(&changed);
            writers.push(Writer::new(&case.node(node), move |s| {
                let low = s.rng.below(190);
                let sql = format!(
                    "UPDATE r SET v = v + 1 WHERE k BETWEEN {low} AND {}",
                    low + 5
                );
                let rows = s.transaction(|s| s.exec(&sql))?;
                counted(&count, rows);
                Ok(())
            }));
        }
        let count = Arc::clone(&inserted);
        writers.push(Writer::new(&case.node(node), move |s| {
            let (a, b) = (s.rng.below(200), s.rng.below(200));
            s.exec(&format!("INSERT INTO r (k, v) VALUES ({a}, 0), ({b}, 0)"))?;
            counted(&count, 2);
            Ok(())
        }));
        writers.push(Writer::new(&case.node(node), |s| {
            let (id, k) = (s.rng.below(1000) + 1, s.rng.below(200));
            s.exec(&format!("UPDATE r SET k = {k} WHERE id = {id}"))
                .map(drop)
        }));
    }
    let tally = load::blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let (changed, inserted) = (
        changed.load(Ordering::Relaxed),
        inserted.load(Ordering::Relaxed),
    );
    let (sum, rows): (u64, u64) = ask(case, 1, "SELECT CAST(SUM(v) AS UNSIGNED), COUNT(*) FROM r")?;
    ensure!(
        sum == changed,
        "the rows were changed {sum} times, {changed} changes were acknowledged"
    );
    ensure!(
        rows == 1000 + inserted,
        "there are {rows} rows, {} were acknowledged",
        1000 + inserted
    );
    case.note(tally.to_string());
    Ok(())
}

/// Children are counted in their parent in the same transaction, while parents
/// vanish, come back and change their id, cascading.
pub fn foreign_keys(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062, 1451, 1452];
    const PARENTS: u64 = 40;
    set_up(
        case,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY, n INT NOT NULL)",
            "CREATE TABLE child (id BIGINT AUTO_INCREMENT PRIMARY KEY, pid INT NOT NULL, KEY (pid), \
             FOREIGN KEY (pid) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "INSERT INTO parent SELECT seq, 0 FROM seq_1_to_40",
        ],
    )?;
    let mut writers = Vec::new();
    for client in 0..9 {
        writers.push(Writer::new(&case.node(client % 3), move |s| {
            let (id, other) = (s.rng.below(PARENTS) + 1, s.rng.below(PARENTS) + 1);
            match s.rng.below(20) {
                0 | 1 => s
                    .exec(&format!("DELETE FROM parent WHERE id = {id}"))
                    .map(drop),
                2..=5 => s
                    .exec(&format!("INSERT INTO parent VALUES ({id}, 0)"))
                    .map(drop),
                6 | 7 => s
                    .exec(&format!("UPDATE parent SET id = {other} WHERE id = {id}"))
                    .map(drop),
                _ => s.transaction(|s| {
                    if s.exec(&format!("UPDATE parent SET n = n + 1 WHERE id = {id}"))? > 0 {
                        s.exec(&format!("INSERT INTO child (pid) VALUES ({id})"))?;
                    }
                    Ok(())
                }),
            }
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    for node in 0..3 {
        let orphans: u64 = ask(
            case,
            node,
            "SELECT COUNT(*) FROM child LEFT JOIN parent ON parent.id = pid WHERE parent.id IS NULL",
        )?;
        ensure!(
            orphans == 0,
            "db{} has {orphans} children without parent",
            node + 1
        );
        let wrong: u64 = ask(
            case,
            node,
            "SELECT COUNT(*) FROM parent WHERE n <> (SELECT COUNT(*) FROM child WHERE pid = parent.id)",
        )?;
        ensure!(
            wrong == 0,
            "db{} has {wrong} parents that miscount their children",
            node + 1
        );
    }
    let children: u64 = ask(case, 0, "SELECT COUNT(*) FROM child")?;
    case.note(format!("{tally}; {children} children left"));
    Ok(())
}

/// Rows that replace one another through two unique secondary keys.
pub fn unique_keys(case: &mut Case) -> anyhow::Result<()> {
    const ALLOWED: &[u16] = &[DEADLOCK, RECORD_CHANGED, 1062];
    const VALUES: u64 = 60;
    set_up(
        case,
        &[
            "CREATE TABLE u (id INT PRIMARY KEY, a INT NOT NULL, b INT NOT NULL, v INT NOT NULL, UNIQUE (a), UNIQUE (b))",
        ],
    )?;
    let mut writers = Vec::new();
    for client in 0..9 {
        writers.push(Writer::new(&case.node(client % 3), |s| {
            let (id, a, b) = (
                s.rng.below(VALUES),
                s.rng.below(VALUES),
                s.rng.below(VALUES),
            );
            match s.rng.below(10) {
                0..=4 => s.exec(&format!("REPLACE INTO u VALUES ({id}, {a}, {b}, 0)")),
                5 | 6 => s.exec(&format!(
                    "INSERT INTO u VALUES ({id}, {a}, {b}, 0) ON DUPLICATE KEY UPDATE v = v + 1"
                )),
                7 => s.transaction(|s| {
                    s.exec(&format!("REPLACE INTO u VALUES ({id}, {a}, {b}, 1)"))?;
                    s.exec(&format!("REPLACE INTO u VALUES ({a}, {b}, {id}, 2)"))
                }),
                8 => s.exec(&format!("DELETE FROM u WHERE b = {b}")),
                _ => s.exec(&format!("UPDATE u SET a = {a} WHERE id = {id}")),
            }
            .map(drop)
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    for node in 0..3 {
        let (rows, a, b): (u64, u64, u64) = ask(
            case,
            node,
            "SELECT COUNT(*), COUNT(DISTINCT a), COUNT(DISTINCT b) FROM u IGNORE INDEX (a, b)",
        )?;
        ensure!(
            rows == a && rows == b,
            "db{} has {rows} rows, {a} values of a, {b} values of b",
            node + 1
        );
    }
    case.note(tally.to_string());
    Ok(())
}

/// Rows without an identity: increments by key, and inserts against deletes.
pub fn no_primary_key(case: &mut Case) -> anyhow::Result<()> {
    set_mode(case, "")?;
    set_up(
        case,
        &[
            "CREATE TABLE n (k INT NOT NULL, v BIGINT NOT NULL, KEY (k))",
            "CREATE TABLE m (k INT NOT NULL, v BIGINT NOT NULL)",
            "INSERT INTO n SELECT seq % 50, 0 FROM seq_1_to_100",
        ],
    )?;
    let (changed, inserted) = (Count::default(), Count::default());
    let mut writers = Vec::new();
    for node in 0..3 {
        for _ in 0..2 {
            let count = Arc::clone(&changed);
            writers.push(Writer::new(&case.node(node), move |s| {
                let k = s.rng.below(50);
                let rows = s.exec(&format!("UPDATE n SET v = v + 1 WHERE k = {k}"))?;
                counted(&count, rows);
                Ok(())
            }));
        }
        let count = Arc::clone(&inserted);
        writers.push(Writer::new(&case.node(node), move |s| {
            let k = s.rng.below(10);
            if s.rng.chance(50) {
                s.exec(&format!("INSERT INTO m VALUES ({k}, 1)"))?;
                counted(&count, 1);
            } else {
                let rows = s.exec(&format!("DELETE FROM m WHERE k = {k} LIMIT 3"))?;
                // Counted down in two's complement; the sum never goes below zero.
                counted(&count, rows.wrapping_neg());
            }
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, RETRY, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    let changed = changed.load(Ordering::Relaxed);
    let sum: u64 = ask(case, 2, "SELECT CAST(SUM(v) AS UNSIGNED) FROM n")?;
    ensure!(
        sum == changed,
        "the rows were changed {sum} times, {changed} changes were acknowledged"
    );
    let inserted = inserted.load(Ordering::Relaxed);
    let rows: u64 = ask(case, 2, "SELECT COUNT(*) FROM m")?;
    ensure!(
        rows == inserted,
        "there are {rows} rows, inserts less deletes acknowledged are {inserted}"
    );
    set_mode(case, QUICK_START_MODE)?;
    case.note(tally.to_string());
    Ok(())
}
