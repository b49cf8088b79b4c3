//! What is seldom on a primary, a target with limits for its users, and a replica of the target.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{LIMIT, Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::Server;

/// Limits that count for users, not for what is applied.
const LIMITS: &[&str] = &[
    "SET GLOBAL autocommit = 0",
    "SET GLOBAL sql_safe_updates = 1",
    "SET GLOBAL max_statement_time = 1",
    "SET GLOBAL idle_transaction_timeout = 1",
    "SET GLOBAL idle_write_transaction_timeout = 1",
];

/// Without them.
const NO_LIMITS: &[&str] = &[
    "SET SESSION autocommit = 1",
    "SET GLOBAL autocommit = 1",
    "SET GLOBAL sql_safe_updates = 0",
    "SET GLOBAL max_statement_time = 0",
    "SET GLOBAL idle_transaction_timeout = 0",
    "SET GLOBAL idle_write_transaction_timeout = 0",
];

const STATEMENTS: &[&str] = &[
    "CREATE DATABASE od",
    "CREATE DATABASE elsewhere",
    "USE od",
    "CREATE TABLE inno (id INT PRIMARY KEY) ENGINE=InnoDB",
    "CREATE TABLE my (id INT PRIMARY KEY) ENGINE=MyISAM",
    "CREATE TABLE keyless_my (id INT) ENGINE=MyISAM",
    // A table that is another one behind its statement.
    "CREATE TABLE r (a INT PRIMARY KEY, b INT)",
    "INSERT INTO r VALUES (7, 8)",
    "CREATE OR REPLACE TABLE r (b INT PRIMARY KEY, a INT) AS SELECT 1 AS b, 2 AS a",
    // A transaction that cannot be taken back as a whole.
    "SET binlog_format = STATEMENT",
    "BEGIN",
    "INSERT INTO inno VALUES (1)",
    "INSERT INTO my SELECT id FROM inno",
    "ROLLBACK",
    "INSERT INTO keyless_my VALUES (1), (2)",
    // Temporary tables, over several transactions.
    "CREATE TEMPORARY TABLE tmp AS SELECT 5 AS id",
    "INSERT INTO inno SELECT id FROM tmp",
    "INSERT INTO inno SELECT id + 1 FROM tmp",
    "UPDATE tmp SET id = 9",
    "INSERT INTO inno SELECT id FROM tmp",
    "DROP TEMPORARY TABLE tmp",
    "SET binlog_format = ROW",
    "CREATE TABLE v (a INT PRIMARY KEY) WITH SYSTEM VERSIONING",
    "INSERT INTO v VALUES (1)",
    "SET system_versioning_alter_history = KEEP",
    "ALTER TABLE v ADD b INT",
    "CREATE EVENT e ON SCHEDULE EVERY 1 HOUR DO SET @x = 1",
    "ALTER EVENT e COMMENT 'do it'",
    // More than a packet takes: one event, one literal, one statement.
    "CREATE TABLE k (b LONGBLOB)",
    "INSERT INTO k VALUES (REPEAT('x', 14000000))",
    "CREATE TABLE q (id INT PRIMARY KEY, b LONGBLOB)",
    "INSERT INTO q VALUES (1, REPEAT('''', 10000000))",
    "CREATE TABLE many (a INT, b VARCHAR(200))",
    "INSERT INTO many SELECT seq, REPEAT('y', 150) FROM seq_1_to_120000",
    "CREATE TABLE copy AS SELECT * FROM many",
    "BEGIN",
    "SAVEPOINT s",
    "INSERT INTO inno VALUES (100)",
    "SAVEPOINT t",
    "INSERT INTO inno VALUES (101)",
    "COMMIT",
    // From a database that is left out.
    "USE elsewhere",
    "CREATE TABLE x (id INT PRIMARY KEY)",
    "INSERT INTO x VALUES (1)",
    "ALTER TABLE od.inno ADD c INT DEFAULT 3",
];

const ALL: &str = "od.inno, od.my, od.keyless_my, od.r, od.v, od.k, od.q, od.many, od.copy";

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    let below = Server::new(&dir, "below", 3, &["--max-allowed-packet=64M"])?;
    grant(&target)?;
    below.follow(target.port)?;
    target.run(LIMITS)?;
    primary.run(STATEMENTS)?;
    let mut replica = Replica::new(&dir, primary.port, target.port, &["only=od"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    target.run(NO_LIMITS)?;
    equal(&primary, &target, ALL, "seldom things")?;
    let event: String = target.one(
        "SELECT STATUS FROM information_schema.EVENTS WHERE EVENT_SCHEMA = 'od' AND EVENT_NAME = 'e'",
    )?;
    ensure!(event == "SLAVESIDE_DISABLED", "the event is {event}");
    below.reaches(&target)?;
    equal(
        &primary,
        &below,
        "od.r, od.k, od.q, od.many",
        "below the target",
    )?;
    case.note("statements, temporary tables, long rows, events, savepoints, limits of the target: applied; a replica of the target follows");
    gone(&primary, &target, &mut replica)?;
    case.note("no commit without the channel's row, and nothing doubled behind it");
    Ok(())
}

/// Somebody deletes the channel's row.
fn gone(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    replica.start(&[])?;
    let until = Instant::now() + LIMIT;
    primary.run(&["INSERT INTO od.inno (id) VALUES (200)"])?;
    while target.one::<u64>("SELECT COUNT(*) FROM od.inno WHERE id = 200")? == 0 {
        ensure!(Instant::now() < until, "{}", replica.log.display());
        thread::sleep(Duration::from_millis(50));
    }
    target.run(&["DELETE FROM dromon_replica.position WHERE channel = 'default'"])?;
    primary.run(&["INSERT INTO od.inno (id) VALUES (201)"])?;
    let child = replica.child.as_mut().context("started above")?;
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < until, "it goes on without its row");
        thread::sleep(Duration::from_millis(50));
    };
    ensure!(!ended.success(), "it ended well without its row");
    let there: u64 = target.one("SELECT COUNT(*) FROM od.inno WHERE id = 201")?;
    ensure!(there == 0, "a commit without a position");
    let said = replica.said()?;
    let start = said
        .rsplit("start with start = ")
        .next()
        .unwrap_or_default();
    let start = start.split(',').next().unwrap_or_default();
    ensure!(start.starts_with("0-1-"), "{said}");
    let start = format!("start={start}");
    ensure!(replica.finish(&[&start])?, "{}", replica.log.display());
    equal(primary, target, "od.inno", "behind a lost position")
}
