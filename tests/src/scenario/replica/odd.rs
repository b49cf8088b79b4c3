//! What is seldom on a primary, a target with limits for its users, and a replica of the target.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{LIMIT, Replica, equal, grant, kept, restarts};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::Server;

/// Limits that count for users, not for what is applied.
const LIMITS: &[&str] = &[
    "SET GLOBAL autocommit = 0",
    "SET GLOBAL sql_safe_updates = 1",
    "SET GLOBAL max_join_size = 10",
    "SET GLOBAL max_statement_time = 1",
    "SET GLOBAL idle_transaction_timeout = 1",
    "SET GLOBAL idle_write_transaction_timeout = 1",
];

/// Without them.
const NO_LIMITS: &[&str] = &[
    "SET SESSION autocommit = 1",
    "SET GLOBAL autocommit = 1",
    "SET GLOBAL sql_safe_updates = 0",
    "SET GLOBAL max_join_size = DEFAULT",
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
    // Files, loaded by statements: of many blocks, several in a transaction, with everything that may
    // stand in one.
    "CREATE TABLE big (id INT PRIMARY KEY, v VARCHAR(80), n INT AUTO_INCREMENT, KEY (n))",
    "CREATE TABLE elsewhere.big LIKE big",
    "SELECT seq, CONCAT('line ', seq, REPEAT('z', 40)) INTO OUTFILE 'big.txt' FROM seq_1_to_20000",
    "SELECT seq, 'it''s \\\\ \"more\"' INTO OUTFILE 'few.txt' FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' FROM seq_19990_to_20010",
    "SET binlog_format = STATEMENT",
    "SET @c = 'x'",
    "LOAD DATA INFILE 'big.txt' INTO TABLE big (id, v)",
    "LOAD DATA INFILE 'big.txt' INTO TABLE elsewhere.big (id, v)",
    "BEGIN",
    "INSERT INTO inno VALUES (50)",
    "LOAD DATA INFILE 'few.txt' REPLACE INTO TABLE big FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' (id, v)",
    "LOAD DATA INFILE 'few.txt' IGNORE INTO TABLE od.big CHARACTER SET latin1 FIELDS TERMINATED BY ',' ENCLOSED BY '\"' \
     LINES STARTING BY '20' TERMINATED BY '\\n' IGNORE 5 LINES (@a, @b) SET id = @a + 30000, v = CONCAT(@b, @c)",
    "LOAD DATA INFILE 'few.txt' INTO TABLE keyless_my FIELDS TERMINATED BY ',' (id, @x)",
    "COMMIT",
    "LOAD DATA LOW_PRIORITY INFILE 'few.txt' INTO TABLE my FIELDS TERMINATED BY ',' (id, @x)",
    "CREATE TEMPORARY TABLE tmp (id INT PRIMARY KEY)",
    "LOAD DATA CONCURRENT INFILE 'few.txt' INTO TABLE tmp FIELDS TERMINATED BY ',' (id, @x)",
    "INSERT INTO inno SELECT id FROM tmp",
    "DROP TEMPORARY TABLE tmp",
    "SET binlog_format = ROW",
    // In a list that the target joins, however few rows it lets others join.
    "UPDATE big SET v = 'joined' WHERE id <= 500",
    // More than a packet takes: one event, one literal, one statement.
    "CREATE TABLE k (b LONGBLOB)",
    "INSERT INTO k VALUES (REPEAT('x', 14000000))",
    "CREATE TABLE q (id INT PRIMARY KEY, b LONGBLOB)",
    "INSERT INTO q VALUES (1, REPEAT('''', 10000000))",
    // User variables: one that is longer in hexadecimal than a packet, and such with backslashes, whatever these are to the session.
    "SET binlog_format = STATEMENT",
    "SET @b = REPEAT('x', 9000000)",
    "INSERT INTO q VALUES (2, @b)",
    "CREATE TABLE vars (id INT PRIMARY KEY, s VARCHAR(40) CHARACTER SET sjis, b VARBINARY(40))",
    "SET @s = _sjis x'955c5c27835c', @z = x'005c27e0a4ff5c'",
    "BEGIN",
    "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "INSERT INTO vars VALUES (1, @s, @z)",
    "SET sql_mode = DEFAULT",
    "INSERT INTO vars VALUES (2, @s, CONCAT(@z, 'it\\'s'))",
    "COMMIT",
    "SET binlog_format = ROW",
    "CREATE TABLE many (a INT, b VARCHAR(200))",
    "INSERT INTO many SELECT seq, REPEAT('y', 150) FROM seq_1_to_120000",
    "CREATE TABLE copy AS SELECT * FROM many",
    "BEGIN",
    "SAVEPOINT s",
    "INSERT INTO inno VALUES (100)",
    "SAVEPOINT t",
    "INSERT INTO inno VALUES (101)",
    "COMMIT",
    "ALTER DATABASE CHARACTER SET utf8mb4",
    // From a database that is left out.
    "USE elsewhere",
    "CREATE TABLE x (id INT PRIMARY KEY)",
    "INSERT INTO x VALUES (1)",
    "ALTER TABLE od.inno ADD c INT DEFAULT 3",
];

const ALL: &str =
    "od.inno, od.my, od.keyless_my, od.r, od.v, od.k, od.q, od.many, od.copy, od.big, od.vars";

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let mut primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    let below = Server::new(&dir, "below", 3, &["--max-allowed-packet=64M"])?;
    grant(&target)?;
    below.follow(target.port)?;
    // What its thread asks at the beginning the limits do not allow.
    let until = Instant::now() + LIMIT;
    while below.status("Slave_IO_Running")? != "Yes" {
        ensure!(Instant::now() < until, "it does not follow the target");
        thread::sleep(Duration::from_millis(50));
    }
    target.run(LIMITS)?;
    primary.run(STATEMENTS)?;
    // It fails on its first row: the file is deleted again.
    let fails = "LOAD DATA INFILE '/KEYS' INTO TABLE od.my FIELDS TERMINATED BY ',' (id, @x)"
        .replace("/KEYS", &few(&primary));
    let statement = "SET binlog_format = STATEMENT";
    ensure!(primary.run(&[statement, &fails]).is_err(), "a key twice");
    let mut replica = Replica::new(&dir, primary.port, target.port, &["only=od"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    let said = replica.said()?;
    ensure!(said.contains("tried row by row: 0;"), "{said}");
    target.run(NO_LIMITS)?;
    equal(&primary, &target, ALL, "seldom things")?;
    let event: String = target.one(
        "SELECT STATUS FROM information_schema.EVENTS WHERE EVENT_SCHEMA = 'od' AND EVENT_NAME = 'e'",
    )?;
    ensure!(event == "SLAVESIDE_DISABLED", "the event is {event}");
    let charset: String = target.one(
        "SELECT DEFAULT_CHARACTER_SET_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'od'",
    )?;
    ensure!(charset == "utf8mb4", "od has {charset}");
    below.reaches(&target)?;
    equal(
        &primary,
        &below,
        "od.r, od.k, od.q, od.many",
        "below the target",
    )?;
    case.note("statements, temporary tables, long rows, events, savepoints, limits of the target: applied; a replica of the target follows");
    computed(&primary, &target, &mut replica)?;
    case.note("generated columns that a source without a strict sql_mode had cut to fit");
    loads(&primary, &target, &mut replica)?;
    case.note(
        "LOAD DATA: no row is left out in silence, nothing without local_infile, no LOAD XML",
    );
    kept::run(case, &primary, &target, &mut replica)?;
    gone(&primary, &target, &mut replica)?;
    case.note("no commit without the channel's row, and nothing doubled behind it");
    restarts::run(&mut primary, &target, &mut replica)?;
    case.note("the source killed amid temporary tables: none of before is read");
    Ok(())
}

/// Generated columns into which their values do not fit. Checksums do not count here: the same rows have many.
fn computed(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    primary.run(&[
        "CREATE TABLE od.cut (id INT PRIMARY KEY, n INT, s TINYINT AS (n) STORED, x TINYINT AS (n) VIRTUAL, w VARCHAR(3) AS (t) STORED, \
         t VARCHAR(9), j INT AS (JSON_EXTRACT(t, '$.a')) VIRTUAL, KEY (x), KEY (j)) ENGINE=InnoDB",
        "CREATE TABLE od.shown (id INT PRIMARY KEY, n INT, x TINYINT AS (n) VIRTUAL) ENGINE=InnoDB",
        "SET sql_mode = ''",
        "INSERT INTO od.cut (id, n, t) VALUES (1, 1000, 'abc'), (2, 1, 'a')",
        "INSERT INTO od.shown (id, n) VALUES (1, 1000)",
        "INSERT INTO od.cut (id, n, t) VALUES (3, 3, 'abcdef')",
        "UPDATE od.cut SET n = -1000 WHERE id = 2",
        "UPDATE od.shown SET n = 2000",
        "DELETE FROM od.cut WHERE id = 1",
    ])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    for what in [
        "GROUP_CONCAT(id, ' ', n, ' ', s, ' ', w, ' ', t, ' ', IFNULL(j, '-') ORDER BY id) FROM od.cut",
        "GROUP_CONCAT(id, ' ', x ORDER BY id) FROM od.cut FORCE INDEX (x)",
        "GROUP_CONCAT(id, ' ', n, ' ', x ORDER BY id) FROM od.shown",
    ] {
        let all = format!("SELECT {what}");
        let (wanted, have): (String, String) = (primary.one(&all)?, target.one(&all)?);
        ensure!(have == wanted, "{what}: {have} instead of {wanted}");
    }
    Ok(())
}

/// The file of a few rows.
fn few(primary: &Server) -> String {
    let file = primary.data().join("od").join("few.txt");
    file.display().to_string()
}

/// What LOCAL would hide, and what cannot be applied.
fn loads(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    let fails = |replica: &mut Replica, why: &str| -> anyhow::Result<()> {
        ensure!(!replica.finish(&[])?, "it passed: {why}");
        let said = replica.said()?;
        let last = said
            .lines()
            .rfind(|line| line.contains(" cannot be applied: "));
        let last = last.unwrap_or_default();
        ensure!(last.contains(why), "{last}, not {why}");
        Ok(())
    };
    let load = format!(
        "LOAD DATA INFILE '{}' INTO TABLE od.loaded FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' (id, v)",
        few(primary)
    );
    primary.run(&["CREATE TABLE od.loaded (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE=InnoDB"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    // A row that is there already, and a column that is too short.
    target.run(&["INSERT INTO od.loaded VALUES (20000, 'here')"])?;
    primary.run(&["SET binlog_format = STATEMENT", &load])?;
    fails(replica, "Duplicate entry '20000'")?;
    let rows: u64 = target.one("SELECT COUNT(*) FROM od.loaded")?;
    ensure!(rows == 1, "{rows} rows of a file that cannot be loaded");
    target.run(&[
        "DELETE FROM od.loaded",
        "ALTER TABLE od.loaded MODIFY v VARCHAR(5)",
    ])?;
    fails(replica, "Data truncated for column 'v'")?;
    target.run(&[
        "ALTER TABLE od.loaded MODIFY v VARCHAR(20)",
        "SET GLOBAL local_infile = OFF",
    ])?;
    fails(replica, "local_infile = ON on the target")?;
    target.run(&["SET GLOBAL local_infile = ON"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(primary, target, "od.loaded", "a file")?;
    // Its binlog says LOAD DATA.
    let file = primary.data().join("od").join("rows.xml");
    fs::write(&file, "<r><row id='1' v='one'/></r>")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    let xml = format!("LOAD XML INFILE '{}' INTO TABLE od.xml", file.display());
    primary.run(&[
        "CREATE TABLE od.xml (id INT PRIMARY KEY, v VARCHAR(20))",
        "SET binlog_format = STATEMENT",
        &xml,
    ])?;
    fails(replica, "it may be LOAD XML")?;
    let passes = replica.finish(&["without=od.xml"])?;
    ensure!(passes, "{}", replica.log.display());
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
    let ended = loop {
        if let Some(status) = replica.process.ended()? {
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
