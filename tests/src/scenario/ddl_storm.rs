//! DDL against DML.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;

use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::load::{self, DEADLOCK, RECORD_CHANGED, Writer};

/// Besides the retries: no such table, exists already, unknown table, no such
/// or duplicate column or key, definition changed; interrupted, which the server
/// says to a statement whose transaction had not begun when DDL took its table.
const ALLOWED: &[u16] = &[
    DEADLOCK,
    RECORD_CHANGED,
    1146,
    1050,
    1051,
    1054,
    1060,
    1061,
    1091,
    1317,
    1412,
];

/// One client of db1 and one of db2 change tables while all nodes write them.
pub fn storm(case: &mut Case) -> anyhow::Result<()> {
    set_up(
        case,
        &[
            "CREATE TABLE kept (id INT PRIMARY KEY, v BIGINT NOT NULL)",
            "INSERT INTO kept SELECT seq, 0 FROM seq_1_to_20",
            "CREATE TABLE emptied (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT NOT NULL)",
            "CREATE TABLE left_hand (id INT PRIMARY KEY, v INT NOT NULL)",
            "CREATE TABLE right_hand (id INT PRIMARY KEY, v INT NOT NULL)",
            "INSERT INTO left_hand SELECT seq, 0 FROM seq_1_to_20",
            "INSERT INTO right_hand SELECT seq, 0 FROM seq_1_to_20",
        ],
    )?;
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut writers = vec![
        changer(
            case,
            0,
            &[
                "ALTER TABLE kept ADD COLUMN extra INT NOT NULL DEFAULT 7, ALGORITHM=INPLACE",
                "CREATE TABLE coming (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)",
                "ALTER TABLE kept ADD INDEX by_v (v)",
                "TRUNCATE TABLE emptied",
                "ALTER TABLE kept DROP COLUMN extra, ALGORITHM=COPY",
                "ALTER TABLE kept DROP INDEX by_v",
                "DROP TABLE coming",
            ],
        ),
        changer(
            case,
            1,
            &[
                "RENAME TABLE left_hand TO middle, right_hand TO left_hand, middle TO right_hand",
                "CREATE TABLE coming (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)",
                "TRUNCATE TABLE emptied",
                "DROP TABLE coming",
            ],
        ),
    ];
    for client in 0..6 {
        let node = case.node(client % 3);
        let count = Arc::clone(&acknowledged);
        writers.push(Writer::new(&node, move |s| {
            let id = s.rng.below(20) + 1;
            match s.rng.below(8) {
                0..=2 => {
                    s.exec(&format!("UPDATE kept SET v = v + 1 WHERE id = {id}"))?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                3 | 4 => {
                    // Open for a moment: DDL must find transactions to abort.
                    s.transaction(|s| {
                        s.exec(&format!("UPDATE kept SET v = v + 1 WHERE id = {id}"))?;
                        thread::sleep(Duration::from_millis(3));
                        s.exec("INSERT INTO emptied (v) VALUES (1)")
                    })?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                5 => s
                    .exec("INSERT INTO emptied (v) VALUES (1), (2)")
                    .map(drop)?,
                6 => s.exec("INSERT INTO coming (v) VALUES (1)").map(drop)?,
                _ => s.transaction(|s| {
                    s.exec(&format!("UPDATE left_hand SET v = v + 1 WHERE id = {id}"))?;
                    s.exec(&format!("UPDATE right_hand SET v = v + 1 WHERE id = {id}"))
                        .map(drop)
                })?,
            }
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    check::whole(&case.cluster())?;
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    for node in 0..3 {
        let sum: u64 = ask(case, node, "SELECT CAST(SUM(v) AS UNSIGNED) FROM kept")?;
        ensure!(
            sum == acknowledged,
            "db{} counts {sum}, {acknowledged} increments were acknowledged",
            node + 1
        );
        let (left, right): (u64, u64) = ask(
            case,
            node,
            "SELECT CAST((SELECT SUM(v) FROM left_hand) AS UNSIGNED), CAST((SELECT SUM(v) FROM right_hand) AS UNSIGNED)",
        )?;
        ensure!(
            left == right,
            "db{}: {left} and {right} in two tables that change together",
            node + 1
        );
    }
    case.note(tally.to_string());
    Ok(())
}

/// Runs the statements round and round with a breath between.
fn changer(case: &Case, node: usize, statements: &'static [&'static str]) -> Writer {
    let mut turn = 0;
    Writer::new(&case.node(node), move |s| {
        thread::sleep(Duration::from_millis(30));
        let statement = statements[turn % statements.len()];
        turn += 1;
        s.exec(statement).map(drop)
    })
}
