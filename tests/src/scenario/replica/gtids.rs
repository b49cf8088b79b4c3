//! The source's GTIDs in the target's binlog, each once; a server moves behind the target.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{Load, Server, gtids_of};

const TABLES: &str = "rt.t, rt.u, rt.m, rt.kept";

/// What the load has none of: a table without transactions, several names at once.
fn seldom(primary: &Server, n: u64) -> anyhow::Result<()> {
    primary.run(&[
        &format!("INSERT INTO rt.m SELECT seq, {n} FROM rt.seq_1_to_20"),
        "UPDATE rt.m SET v = v + 1 WHERE id < 3",
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO rt.m VALUES (7, 7)",
        "SET SESSION binlog_format = ROW",
        "CREATE TABLE rt.a (id INT)",
        "CREATE TABLE IF NOT EXISTS rt.a (id INT)",
        "CREATE TABLE rt.b LIKE rt.a",
        "RENAME TABLE rt.a TO rt.c, rt.b TO rt.a",
        "DROP TABLE rt.a, rt.c",
        "DROP TABLE IF EXISTS rt.nowhere",
        &format!("ALTER TABLE rt.kept COMMENT '{n}'"),
    ])
}

/// No replica has them any more when it was killed.
fn temporary(primary: &Server) -> anyhow::Result<()> {
    primary.run(&[
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE rt.tmp (a INT)",
        "INSERT INTO rt.tmp VALUES (1)",
        "INSERT INTO rt.m SELECT a, a FROM rt.tmp",
        "DROP TEMPORARY TABLE rt.tmp",
    ])
}

fn same(primary: &Server, target: &Server, what: &str) -> anyhow::Result<usize> {
    let (wanted, have) = (gtids_of(primary)?, gtids_of(target)?);
    let differs = wanted.iter().zip(&have).position(|(a, b)| a != b);
    ensure!(
        wanted == have,
        "{what}: {} groups instead of {}, and the first difference is at {differs:?}: {:?} instead of {:?}",
        have.len(),
        wanted.len(),
        differs.map(|n| &have[n]),
        differs.map(|n| &wanted[n])
    );
    Ok(wanted.len())
}

/// What was under way when the replica was killed comes to its end, since nobody ends it; then what is
/// in the binlog is all of it. A replica cannot know that of rows of tables without transactions.
fn whole(target: &Server) -> anyhow::Result<Vec<&'static str>> {
    let there = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'dromon_replica' AND TABLE_NAME = 'position'";
    if target.one::<u64>(there)? == 0 {
        return Ok(Vec::new());
    }
    let runs = "SELECT COUNT(*) FROM information_schema.PROCESSLIST p JOIN dromon_replica.position d ON p.ID = d.doing_connection \
                WHERE p.COMMAND = 'Query' AND p.ID <> CONNECTION_ID()";
    while target.one::<u64>(runs)? > 0 {
        thread::sleep(Duration::from_millis(50));
    }
    let logged = "SELECT COUNT(*) FROM dromon_replica.position WHERE doing_binlog LIKE '%=' AND FIND_IN_SET(doing, @@gtid_binlog_pos) > 0";
    Ok(match target.one::<u64>(logged)? {
        0 => Vec::new(),
        _ => vec!["in_doubt=skip"],
    })
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let durable = ["--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"];
    let mut target = Server::new(&dir, "target", 2, &durable)?;
    let ignores = ["--replicate-wild-ignore-table=dromon_replica.%"];
    let moved = Server::new(&dir, "moved", 3, &ignores)?;
    grant(&target)?;
    Load::prepare(&primary)?;
    primary.run(&[
        "CREATE TABLE rt.m (id INT, v INT) ENGINE=MyISAM",
        "CREATE TABLE rt.kept (id INT PRIMARY KEY)",
        // More than one BINLOG has otherwise.
        "INSERT INTO rt.m SELECT seq, seq FROM rt.seq_1_to_200000",
    ])?;
    moved.follow(primary.port)?;
    let settings = ["source_gtid=on", "merge=1", "threads=8"];
    let mut replica = Replica::new(&dir, primary.port, target.port, &settings)?;
    let load = Load::start(&primary, 3);
    let begin = Instant::now();
    let mut kills = 0u64;
    while begin.elapsed() < case.options.seconds.min(Duration::from_secs(30)) {
        replica.start(&whole(&target)?)?;
        seldom(&primary, kills)?;
        thread::sleep(Duration::from_millis(300 + kills * 373 % 900));
        replica.kill()?;
        kills += 1;
    }
    let done = load.stop()?;
    temporary(&primary)?;
    ensure!(
        replica.finish(&whole(&target)?)?,
        "{}",
        replica.log.display()
    );
    let groups = same(&primary, &target, "the replica killed")?;
    equal(&primary, &target, TABLES, "the replica killed")?;
    case.note(format!(
        "{done} transactions, {kills} kills of the replica: {groups} groups, each with its GTID, in order"
    ));
    moved.run(&["STOP SLAVE"])?;
    // Rows of tables without transactions may be half there when a server dies.
    let load = Load::start(&primary, 3);
    for n in 0..6 {
        replica.start(&[])?;
        thread::sleep(Duration::from_millis(700 + n * 373 % 900));
        target.kill()?;
        replica.kill()?;
        target.start()?;
    }
    load.stop()?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    let groups = same(&primary, &target, "the target killed")?;
    equal(&primary, &target, TABLES, "the target killed")?;
    moved.follow(target.port)?;
    moved.reaches(&target)?;
    equal(&primary, &moved, TABLES, "moved behind the target")?;
    // It logs no temporary tables, and nothing twice.
    let (mut all, logged) = (gtids_of(&primary)?.into_iter(), gtids_of(&moved)?);
    let odd = logged.iter().find(|gtid| !all.any(|other| other == **gtid));
    ensure!(
        odd.is_none(),
        "moved behind the target: {odd:?} is out of order"
    );
    case.note(format!(
        "6 kills of the target: {groups} groups; a server of the primary moved behind the target by GTID, equal"
    ));
    refused(&primary, &target, &mut replica)?;
    case.note("what would be several groups, and a target that writes in the same domain: refused");
    Ok(())
}

fn refused(primary: &Server, target: &Server, replica: &mut Replica) -> anyhow::Result<()> {
    primary.run(&["CREATE TABLE rt.made AS SELECT 1 AS a"])?;
    ensure!(!replica.finish(&[])?, "several groups were not refused");
    let said = replica.said()?;
    ensure!(
        said.contains("several groups in the target's binlog"),
        "{said}"
    );
    // As it says.
    let gtid: String = primary.one("SELECT @@gtid_binlog_pos")?;
    let number = gtid.rsplit('-').next().context("a GTID")?;
    target.run(&[
        "SET SESSION gtid_domain_id = 0, server_id = 1",
        &format!("SET SESSION gtid_seq_no = {number}"),
        "CREATE TABLE rt.made AS SELECT 1 AS a",
        "SET SESSION sql_log_bin = 0",
        &format!("UPDATE dromon_replica.position SET gtid_pos = '{gtid}'"),
    ])?;
    primary.run(&["INSERT INTO rt.made VALUES (2)"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    same(primary, target, "done by hand")?;
    target.run(&["CREATE TABLE rt.own (a INT)"])?;
    primary.run(&["INSERT INTO rt.made VALUES (3)"])?;
    ensure!(!replica.finish(&[])?, "it came out of order");
    let said = replica.said()?;
    ensure!(
        said.contains("give it a gtid_domain_id of its own"),
        "{said}"
    );
    Ok(())
}
