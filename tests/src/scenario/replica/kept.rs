//! What no rollback takes back, and transactions that only look so: the replica killed amid them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{LIMIT, Replica, equal};
use crate::harness::Case;
use crate::scenario::relay::plain::Server;

const TABLES: &[&str] = &[
    "CREATE TABLE od.acc (id INT PRIMARY KEY, v BIGINT) ENGINE=InnoDB",
    "INSERT INTO od.acc VALUES (1, 100), (2, 100)",
    "CREATE TABLE od.sums (id INT PRIMARY KEY, v BIGINT) ENGINE=MyISAM",
    "INSERT INTO od.sums VALUES (1, 1), (2, 1), (3, 1)",
];

/// A statement on each row of which a server works for a while.
const SLOW: &str = "BENCHMARK(3000000, MD5('x'))";

pub fn run(
    case: &mut Case,
    primary: &Server,
    target: &Server,
    replica: &mut Replica,
) -> anyhow::Result<()> {
    primary.run(TABLES)?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    whole(primary, target, replica)?;
    to_its_end(primary, target, replica)?;
    in_part(primary, target, replica)?;
    cut_off(primary, target, replica)?;
    case.note(
        "a transaction with a temporary table is one; a statement on MyISAM is done once, or its part is told",
    );
    Ok(())
}

/// Connection that runs the slow statement.
fn slow(target: &Server, replica: &Replica) -> anyhow::Result<u64> {
    let until = Instant::now() + LIMIT;
    loop {
        let id: u64 = target.one(
            "SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%BENCHMARK%' AND ID <> CONNECTION_ID()",
        )?;
        if id > 0 {
            return Ok(id);
        }
        ensure!(
            Instant::now() < until,
            "nothing slow: {}",
            replica.log.display()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Half of it is never seen, and killed amid it is done once.
fn whole(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    let last = format!("UPDATE od.acc SET v = v + 1 + {SLOW} WHERE id = 2");
    primary.run(&[
        "USE od",
        "SET binlog_format = STATEMENT",
        "BEGIN",
        "CREATE TEMPORARY TABLE od.tmp (id INT)",
        "INSERT INTO od.tmp VALUES (1)",
        "UPDATE od.acc SET v = v - 1 WHERE id IN (SELECT id FROM od.tmp)",
        &last,
        "COMMIT",
    ])?;
    replica.start(&[])?;
    slow(target, replica)?;
    let half: i64 = target.one("SELECT v FROM od.acc WHERE id = 1")?;
    replica.kill()?;
    ensure!(half == 100, "half of a transaction was seen: {half}");
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(primary, target, "od.acc", "a temporary table amid")
}

/// The target goes on without the replica.
fn to_its_end(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    let update = format!("UPDATE od.sums SET v = v + 1 + {SLOW}");
    primary.run(&["USE od", "SET binlog_format = STATEMENT", &update])?;
    replica.start(&[])?;
    slow(target, replica)?;
    replica.kill()?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    let said = replica.said()?;
    ensure!(said.contains("; it was done to its end."), "{said}");
    equal(primary, target, "od.sums", "to its end")
}

/// Somebody ends its connection.
fn in_part(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    let update = format!("UPDATE od.sums SET v = v + 1 + {SLOW}");
    primary.run(&["USE od", "SET binlog_format = STATEMENT", &update])?;
    replica.start(&["until_caught_up=on"])?;
    let id = slow(target, replica)?;
    // Its table is locked, so nobody can look: some rows of three.
    thread::sleep(Duration::from_millis(1500));
    target.run(&[&format!("KILL CONNECTION {id}")])?;
    let wanted = "all of it is there, or a part";
    ensure!(!replica.finish(&[])?, "it passed");
    let said = replica.said()?;
    ensure!(said.contains(wanted), "{said}");
    by_hand(primary, target)?;
    let skip = replica.finish(&["in_doubt=skip"])?;
    ensure!(skip, "{}", replica.log.display());
    equal(primary, target, "od.sums", "after a part")
}

/// The primary ends it.
fn cut_off(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    let update = format!("UPDATE od.sums SET v = v + 1 + {SLOW}");
    let ended = primary.run(&[
        "USE od",
        "SET binlog_format = STATEMENT, max_statement_time = 2",
        &update,
    ]);
    ensure!(ended.is_err(), "it was not ended");
    let logged: String = primary.one("SELECT @@gtid_binlog_pos")?;
    ensure!(!replica.finish(&[])?, "it passed");
    let said = replica.said()?;
    ensure!(
        said.contains("cut off by error 1969 on the source"),
        "{said}"
    );
    by_hand(primary, target)?;
    target.run(&[
        "SET sql_log_bin = 0",
        &format!("UPDATE dromon_replica.position SET gtid_pos = '{logged}'"),
    ])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(primary, target, "od.sums", "behind what was cut off")
}

/// Makes the table what it is on the primary.
fn by_hand(primary: &Server, target: &Server) -> anyhow::Result<()> {
    for id in 1..=3 {
        let v: i64 = primary.one(&format!("SELECT v FROM od.sums WHERE id = {id}"))?;
        target.run(&[
            "SET sql_log_bin = 0",
            &format!("UPDATE od.sums SET v = {v} WHERE id = {id}"),
        ])?;
    }
    Ok(())
}
