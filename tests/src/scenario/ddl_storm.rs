//! DDL against DML.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;

use super::floors::Floors;
use super::{ask, set_up};
use crate::check;
use crate::harness::Case;
use crate::load::{self, DEADLOCK, RECORD_CHANGED, Session, Sql, Writer};

const NO_SUCH_TABLE: u16 = 1146;

/// Besides the retries: no such table, exists already, unknown table, no such
/// or duplicate column or key, definition changed; interrupted, which the server
/// says to a statement whose transaction had not begun when DDL took its table.
const ALLOWED: &[u16] = &[
    DEADLOCK,
    RECORD_CHANGED,
    NO_SUCH_TABLE,
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
    let mut floors = Floors::default();
    let mut writers = vec![
        changer(
            case,
            &mut floors,
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
            &mut floors,
            1,
            &[
                "RENAME TABLE left_hand TO middle, right_hand TO left_hand, middle TO right_hand",
                "CREATE TABLE coming (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)",
                "TRUNCATE TABLE emptied",
                "DROP TABLE coming",
            ],
        ),
    ];
    let kept_lacked = Arc::new(AtomicU64::new(0));
    for client in 0..6 {
        let node = client % 3;
        let count = Arc::clone(&acknowledged);
        let lacked = Arc::clone(&kept_lacked);
        let [kept, both, emptied, came, hands] = [
            "increments",
            "increments with a row in a table that is emptied",
            "rows in it alone",
            "rows in a table that comes and goes",
            "changes of both hands",
        ]
        .map(|kind| floors.of(node, kind));
        writers.push(Writer::new(&case.node(node), move |s| {
            let id = s.rng.below(20) + 1;
            match s.rng.below(8) {
                0..=2 => {
                    increment(s, id, &lacked)?;
                    count.fetch_add(1, Ordering::Relaxed);
                    kept.one();
                }
                3 | 4 => {
                    // Open for a moment: DDL must find transactions to abort.
                    s.transaction(|s| {
                        increment(s, id, &lacked)?;
                        thread::sleep(Duration::from_millis(3));
                        s.exec("INSERT INTO emptied (v) VALUES (1)")
                    })?;
                    count.fetch_add(1, Ordering::Relaxed);
                    both.one();
                }
                5 => emptied.rows(s.exec("INSERT INTO emptied (v) VALUES (1), (2)")?),
                6 => came.rows(s.exec("INSERT INTO coming (v) VALUES (1)")?),
                _ => hands.rows(s.transaction(|s| {
                    s.exec(&format!("UPDATE left_hand SET v = v + 1 WHERE id = {id}"))?;
                    s.exec(&format!("UPDATE right_hand SET v = v + 1 WHERE id = {id}"))
                })?),
            }
            Ok(())
        }));
    }
    let tally = load::blow(&case.db, writers, ALLOWED, case.options.seconds)?;
    check::settled(&case.cluster(), &case.db)?;
    check::whole(&case.cluster())?;
    let lacked = kept_lacked.load(Ordering::Relaxed);
    ensure!(
        lacked == 0,
        "{lacked} times a table was said not to be there (error 1146) that nobody drops"
    );
    floors.are_reached(case.options.seconds)?;
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
    case.note(format!("{tally}; {}", floors.words()));
    Ok(())
}

/// One more in the table that stays; how often it was said not to be there.
fn increment(s: &mut Session, id: u64, lacked: &AtomicU64) -> Sql<()> {
    let done = s.exec(&format!("UPDATE kept SET v = v + 1 WHERE id = {id}"));
    if let Err(error) = &done
        && load::code(error) == Some(NO_SUCH_TABLE)
    {
        lacked.fetch_add(1, Ordering::Relaxed);
    }
    done.map(drop)
}

/// Runs the statements round and round with a breath between. Each one succeeds now and then;
/// one of those that make and drop the table that both clients do.
fn changer(
    case: &Case,
    floors: &mut Floors,
    node: usize,
    statements: &'static [&'static str],
) -> Writer {
    let mut turn = 0;
    let kind = |s: &&'static str| match s.contains(" TABLE coming") {
        true => "CREATE and DROP of the table that comes and goes",
        false => *s,
    };
    let done: Vec<_> = (statements.iter().map(kind))
        .map(|kind| floors.of(node, kind))
        .collect();
    Writer::new(&case.node(node), move |s| {
        thread::sleep(Duration::from_millis(30));
        let nth = turn % statements.len();
        turn += 1;
        s.exec(statements[nth])?;
        done[nth].one();
        Ok(())
    })
}
