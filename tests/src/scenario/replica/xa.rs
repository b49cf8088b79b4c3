//! XA transactions of the source: decided at once, much later, or not; the replica killed amid.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{Conn, Error};

use super::{KILLS, Replica, amid, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{Load, Server, TABLES};

/// Clients with XA transactions.
const CLIENTS: u64 = 3;
/// Rows of each: one that is prepared keeps others off its row.
const ROWS: u64 = 12;
/// Held back, of each client, at most.
const HELD: usize = 6;

/// Transactions between both phases of one whose first phase is not known.
const BETWEEN: u64 = 300;

const OWN: &str = "xt.a, xt.b";

/// The same numbers in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        // Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Begun, by kind of end.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    committed: u64,
    rolled_back: u64,
    late: u64,
    given_up: u64,
}

/// Decides one that another session has prepared, as soon as that has gone.
fn decide(conn: &mut Conn, how: &str, name: &str) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match conn.query_drop(format!("{how} {name}")) {
            Err(Error::MySqlError(error)) if error.code == 1397 && Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done.with_context(|| format!("{how} {name}")),
        }
    }
}

/// One client; all of its transactions are decided at the end.
fn client(primary: &Server, number: u64, stop: &AtomicBool) -> anyhow::Result<Counts> {
    let mut random = Numbers(number);
    let mut counts = Counts::default();
    let mut held: Vec<(String, u64)> = Vec::new();
    let mut conn = primary.connect("xt")?;
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = number * ROWS + random.below(ROWS);
        if held.iter().any(|(_, kept)| *kept == row) || held.len() >= HELD {
            let at = random.below(held.len() as u64) as usize;
            let (name, _) = held.swap_remove(at);
            let how = ["XA COMMIT", "XA COMMIT", "XA ROLLBACK"][random.below(3) as usize];
            decide(&mut conn, how, &name)?;
            counts.late += 1;
            continue;
        }
        let name = format!("'g{number}-{n}','b'");
        // Statements of what is prepared are refused behind what others commit.
        let (one_phase, format) = match random.below(8) {
            0 => (true, "STATEMENT"),
            _ => (false, "ROW"),
        };
        conn.query_drop(format!("SET binlog_format={format}"))?;
        // Some are too long for one row of what is kept.
        let pad = match random.below(40) {
            0 => 700_000,
            1..=4 => 20_000,
            _ => 20,
        };
        let b = match random.below(3) {
            0 => format!("DELETE FROM b WHERE a = {row}"),
            _ => format!("REPLACE INTO b VALUES ({row}, {row}, {n})"),
        };
        let a = format!(
            "INSERT INTO a VALUES ({row}, {n}, REPEAT('\\'', {pad})) ON DUPLICATE KEY UPDATE v = {n}, pad = VALUES(pad)"
        );
        conn.query_drop(format!("XA START {name}"))?;
        let done = conn.query_drop(a).and_then(|()| conn.query_drop(b));
        let ended = conn.query_drop(format!("XA END {name}"));
        if done.is_err() || ended.is_err() {
            // A neighbour's lock, of one that is prepared.
            conn.query_drop(format!("XA ROLLBACK {name}"))?;
            counts.given_up += 1;
            continue;
        }
        if one_phase {
            conn.query_drop(format!("XA COMMIT {name} ONE PHASE"))?;
            counts.committed += 1;
            continue;
        }
        conn.query_drop(format!("XA PREPARE {name}"))?;
        match random.below(6) {
            0..=2 => {
                conn.query_drop(format!("XA COMMIT {name}"))?;
                counts.committed += 1;
            }
            3 => {
                conn.query_drop(format!("XA ROLLBACK {name}"))?;
                counts.rolled_back += 1;
            }
            _ => {
                held.push((name, row));
                // A session that has one prepared can do nothing else.
                conn = primary.connect("xt")?;
            }
        }
    }
    for (name, _) in held {
        decide(&mut conn, "XA COMMIT", &name)?;
        counts.late += 1;
    }
    Ok(counts)
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Arc::new(Server::new(
        &dir,
        "primary",
        1,
        &["--max-allowed-packet=64M", "--innodb-lock-wait-timeout=1"],
    )?);
    let mut target = Server::new(&dir, "target", 2, &["--sync-binlog=1"])?;
    grant(&target)?;
    Load::prepare(&primary)?;
    primary.run(&[
        "CREATE DATABASE xt",
        "CREATE TABLE xt.a (id INT PRIMARY KEY, v INT, pad LONGTEXT)",
        "CREATE TABLE xt.b (a INT PRIMARY KEY, u INT UNIQUE, v INT)",
    ])?;
    let load = Load::start(&primary, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (primary, stop) = (Arc::clone(&primary), Arc::clone(&stop));
            thread::spawn(move || client(&primary, n, &stop))
        })
        .collect();
    thread::sleep(case.options.seconds.min(Duration::from_secs(30)));
    stop.store(true, Ordering::Relaxed);
    let mut all = Counts::default();
    // All of them have ended before any error ends this: a server lives as long as its clients.
    let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
    for counts in ended {
        let counts = counts.ok().context("a client panicked")??;
        all.committed += counts.committed;
        all.rolled_back += counts.rolled_back;
        all.late += counts.late;
        all.given_up += counts.given_up;
    }
    let done = load.stop()?;
    ensure!(
        all.committed > 0 && all.rolled_back > 0 && all.late > 0,
        "too little was done: {all:?}"
    );
    // One that stays.
    primary.run(&[
        "XA START 'stays'",
        "INSERT INTO xt.a VALUES (5000, 1, '')",
        "XA END 'stays'",
        "XA PREPARE 'stays'",
    ])?;
    case.note(format!("{done} transactions and {all:?}"));
    let ways = [
        &["mode=writeset"][..],
        &["mode=optimistic", "commit_order=group", "merge=3"],
        // Next to nothing has room here: what is kept is read again.
        &["mode=writeset", "merge=1", "memory=64K"],
        &["mode=conservative", "commit_order=group", "binlog=off"],
        &["mode=none", "difference=repair"],
    ];
    let mut hits = 0;
    for way in ways {
        target.run(&[
            "DROP DATABASE IF EXISTS rt",
            "DROP DATABASE IF EXISTS xt",
            "DROP DATABASE IF EXISTS dromon_replica",
        ])?;
        let mut replica = Replica::new(&dir, primary.port, target.port, way)?;
        hits += amid(&mut replica, &mut target, KILLS * 2, way)?;
        ensure!(replica.finish(&[])?, "{way:?}: {}", replica.log.display());
        let there: u64 = target.one("SELECT COUNT(*) FROM xt.a WHERE id = 5000")?;
        let kept: String = target.one("SELECT GROUP_CONCAT(xid) FROM dromon_replica.prepared")?;
        ensure!(
            there == 0 && kept == "X'7374617973',X'',1",
            "{way:?}: {there}, {kept}"
        );
        equal(
            &primary,
            &target,
            &format!("{TABLES}, {OWN}"),
            &way.join(" "),
        )?;
    }
    case.note(format!(
        "{} ways, {} kills each, {hits} in all amid: checksums equal, and what is not decided is kept",
        ways.len(),
        KILLS * 2
    ));
    decided(case, &primary, &target, &dir)
}

/// What was kept all the time, and what was not known.
fn decided(
    case: &mut Case,
    primary: &Server,
    target: &Server,
    dir: &std::path::Path,
) -> anyhow::Result<()> {
    let mut replica = Replica::new(dir, primary.port, target.port, &["mode=writeset"])?;
    replica.start(&[])?;
    replica.reaches(primary, target)?;
    let status = dir.join("replica.json");
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = std::fs::read_to_string(&status)?;
        if text.contains("\"prepared\": 1") || text.contains("\"prepared\":1") {
            break;
        }
        ensure!(Instant::now() < until, "the status does not tell: {text}");
        thread::sleep(Duration::from_millis(200));
    }
    primary.run(&["XA COMMIT 'stays'"])?;
    replica.reaches(primary, target)?;
    replica.kill()?;
    equal(primary, target, OWN, "what was kept")?;
    let kept: u64 = target.one("SELECT COUNT(*) FROM dromon_replica.prepared")?;
    ensure!(kept == 0, "{kept} rows are kept still");
    primary.run(&[
        "XA START 'before'",
        "INSERT INTO xt.a VALUES (5001, 1, '')",
        "XA END 'before'",
        "XA PREPARE 'before'",
    ])?;
    let start: String = primary.one("SELECT CONCAT('start=', @@gtid_binlog_pos)")?;
    // It takes them all before the first ones are there.
    let mut conn = primary.connect("xt")?;
    for n in 0..BETWEEN {
        conn.query_drop(format!("INSERT INTO a VALUES ({}, 1, '')", 6000 + n))?;
    }
    let before: String = primary.one("SELECT @@gtid_binlog_pos")?;
    primary.run(&["XA COMMIT 'before'"])?;
    let mut late = Replica::new(dir, primary.port, target.port, &["channel=late", &start])?;
    ensure!(!late.finish(&[])?, "it committed what it does not know");
    let applied: String =
        target.one("SELECT gtid_pos FROM dromon_replica.position WHERE channel = 'late'")?;
    let there: u64 = target.one("SELECT COUNT(*) FROM xt.a WHERE id >= 6000")?;
    ensure!(
        applied == before && there == BETWEEN,
        "not all before it is there: {there} of {BETWEEN} rows, at {applied} instead of {before}"
    );
    let said = late.said()?;
    ensure!(
        said.contains("X'6265666f7265',X'',1") && said.contains("came before this channel"),
        "{said}"
    );
    // The other channel had both, and applies what came between them once more.
    target.run(&["DELETE FROM xt.a WHERE id >= 6000"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(primary, target, OWN, "in the end")?;
    case.note(format!(
        "what was kept comes when it is decided; a first phase that came too early is told, with {BETWEEN} transactions before the second one applied"
    ));
    statements(case, primary, target, &mut replica)
}

/// Logged as statements: right if nobody came in between, also for a replica that was not there then; else refused, as is
/// a rollback that leaves something. What it says to do by hand is enough to go on.
fn statements(
    case: &mut Case,
    primary: &Server,
    target: &Server,
    replica: &mut Replica,
) -> anyhow::Result<()> {
    const TABLES: &str = "xt.s, xt.m";
    const STANDS: &str = "SELECT gtid_pos FROM dromon_replica.position WHERE channel = 'default'";
    primary.run(&[
        "CREATE TABLE xt.s (id INT PRIMARY KEY, grp INT, v INT) ENGINE=InnoDB",
        "CREATE TABLE xt.m (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE xt.o (id INT PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO xt.s VALUES (0, 4, 0), (1, 5, 0), (2, 6, 0), (3, 7, 0), (8, 8, 0)",
    ])?;
    let prepare = |format: &str, group: u32, more: &str| {
        primary.run(&[
            "USE xt",
            &format!("SET binlog_format = {format}"),
            "XA START 'by'",
            &format!("DELETE FROM s WHERE grp = {group}"),
            more,
            "XA END 'by'",
            "XA PREPARE 'by'",
        ])
    };
    let decide = |how: &str| decide(&mut primary.connect("")?, how, "'by'");
    for (format, group) in [("MIXED", 5), ("STATEMENT", 6)] {
        prepare(format, group, "DO 0")?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        decide("XA COMMIT")?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        equal(primary, target, TABLES, format)?;
    }
    // What others do to another table is no reason to refuse it.
    prepare("MIXED", 4, "DO 0")?;
    primary.run(&[
        "INSERT INTO xt.o VALUES (1), (2)",
        "DELETE FROM xt.o WHERE id = 1",
    ])?;
    decide("XA COMMIT")?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(primary, target, "xt.s, xt.m, xt.o", "another table")?;
    let deleted: u64 = target.one("SELECT COUNT(*) FROM xt.s WHERE grp = 4")?;
    ensure!(deleted == 0, "its statement was not run");
    for (format, more, between, how, says, by_hand) in [
        (
            "MIXED",
            "DO 0",
            "INSERT INTO xt.s VALUES (9, 7, 1)",
            "XA COMMIT",
            "and others committed since its XA PREPARE",
            "DELETE FROM xt.s WHERE id = 3",
        ),
        (
            "STATEMENT",
            "INSERT INTO m VALUES (1)",
            "DO 0",
            "XA ROLLBACK",
            "not all of its tables can be rolled back",
            "INSERT INTO xt.m VALUES (1)",
        ),
    ] {
        prepare(format, 7, more)?;
        // What it looked for is not locked any more.
        primary.run(&["SET innodb_lock_wait_timeout = 1", between])?;
        let before: String = primary.one("SELECT @@gtid_binlog_pos")?;
        decide(how)?;
        ensure!(!replica.finish(&[])?, "{how}: it was not refused");
        let have: String = target.one(STANDS)?;
        let said = replica.said()?;
        ensure!(
            said.contains(says) && have == before,
            "{how}: {have}, {said}"
        );
        let behind: String = primary.one("SELECT @@gtid_binlog_pos")?;
        target.run(&[
            by_hand,
            r"DELETE FROM dromon_replica.prepared WHERE xid = 'X\'6279\',X\'\',1'",
            &format!(
                "UPDATE dromon_replica.position SET gtid_pos = '{behind}' WHERE channel = 'default'"
            ),
        ])?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        equal(primary, target, TABLES, how)?;
    }
    case.note("statements of XA transactions that nobody came behind are run, also beside another table; others refused");
    Ok(())
}
