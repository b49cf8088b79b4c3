//! Two servers that follow each other, a relay that is cut off, and what is too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::mysql::prelude::Queryable;

use super::secure::becomes;
use super::{LIMIT, Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::group::{get, metric};
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{
    Load, PASSWORD, Relay, Server, TABLES as RELAYED, USER, free_port,
};

const TABLES: &str = "bw.keyed, bw.keyless";
/// Rows, and tables: those that a client has made and dropped are gone, too.
const COUNTS: &str = "SELECT COUNT(*), (SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'bw') FROM bw.keyless";

/// Rows of its own, until it is told to end; how many.
fn writes(server: &Server, first: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut conn = server.connect("bw")?;
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let id = first + n;
        conn.query_drop("BEGIN")?;
        conn.query_drop(format!("INSERT INTO keyed VALUES ({id}, {n})"))?;
        conn.query_drop(format!("INSERT INTO keyless VALUES ({id}, {n})"))?;
        conn.query_drop("COMMIT")?;
        if n % 50 == 10 {
            conn.query_drop(format!("CREATE TABLE t{id} (a INT PRIMARY KEY)"))?;
            conn.query_drop(format!("DROP TABLE t{id}"))?;
        }
        n += 1;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(n)
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    both_ways(case)?;
    cut_off(case)?;
    handed_over(case)
}

fn both_ways(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let domain = ["--gtid-domain-id=1"];
    let here = Arc::new(Server::new(&dir, "here", 1, &[])?);
    let there = Arc::new(Server::new(&dir, "there", 2, &domain)?);
    grant(&there)?;
    here.run(&[
        "CREATE DATABASE bw",
        "CREATE TABLE bw.keyed (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE bw.keyless (id INT, v INT)",
    ])?;
    let mut replica = Replica::new(&dir, here.port, there.port, &[])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    here.follow(there.port)?;
    replica.start(&[])?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = [(&here, 1_000_000), (&there, 2_000_000)]
        .into_iter()
        .map(|(server, first)| {
            let (server, stop) = (Arc::clone(server), Arc::clone(&stop));
            thread::spawn(move || writes(&server, first, &stop))
        })
        .collect();
    let until = Instant::now() + case.options.seconds.min(Duration::from_secs(20));
    let mut kills = 0;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(900));
        replica.kill()?;
        replica.start(&[])?;
        kills += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let mut all = 0;
    // All of them have ended before any error ends this: a server lives as long as its clients.
    let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
    for rows in ended {
        all += rows.ok().context("a client panicked")??;
    }
    let counts = || -> anyhow::Result<[(u64, u64); 2]> {
        let count = |server: &Server| server.one(COUNTS);
        Ok([count(&here)?, count(&there)?])
    };
    let all = (all, TABLES.split(',').count() as u64);
    let until = Instant::now() + LIMIT;
    while counts()? != [all, all] {
        ensure!(
            Instant::now() < until,
            "{:?} rows and tables of {all:?}: {}",
            counts()?,
            replica.log.display()
        );
        thread::sleep(Duration::from_millis(200));
    }
    // Nothing goes on round.
    thread::sleep(Duration::from_secs(2));
    ensure!(
        counts()? == [all, all],
        "{:?} rows and tables of {all:?}",
        counts()?
    );
    equal(&here, &there, TABLES, "both ways")?;
    for field in ["Slave_IO_Running", "Slave_SQL_Running"] {
        let is = here.status(field)?;
        let why = here.status("Last_SQL_Error")?;
        ensure!(is == "Yes", "{field} is {is}: {why}");
    }
    case.note(format!(
        "{} transactions on two servers that follow each other, {kills} kills: each once on both, equal",
        all.0
    ));
    replica.kill()?;
    // One that has the target's own number cannot be told from the target.
    let mut itself = Replica::new(&dir, there.port, there.port, &["channel=itself"])?;
    ensure!(!itself.finish(&[])?, "it followed its own target");
    let said = itself.said()?;
    ensure!(said.contains("the same server_id, 2"), "{said}");
    here.run(&["STOP SLAVE"])?;
    here.run(&["INSERT INTO bw.keyless SELECT seq, REPEAT('7', 7) FROM bw.seq_1_to_100000"])?;
    ensure!(
        !replica.finish(&["transaction_max=100K"])?,
        "it held what is too long"
    );
    let said = replica.said()?;
    ensure!(said.contains("raise transaction_max"), "{said}");
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(&here, &there, TABLES, "behind what was too long")?;
    case.note("a source with the target's number, and a transaction longer than allowed: refused");
    Ok(())
}

/// The relay goes on and hears nothing.
fn cut_off(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?.join("cut");
    let mut primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    grant(&target)?;
    primary.run(&[
        "CREATE DATABASE bw",
        "CREATE TABLE bw.keyed (id INT PRIMARY KEY)",
    ])?;
    let watched = free_port()?;
    let watch = [
        format!("http=127.0.0.1:{watched}"),
        format!("watch_user={USER}"),
        format!("watch_password={PASSWORD}"),
    ];
    let watch = watch.each_ref().map(String::as_str);
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &watch)?;
    relay.start()?;
    let http = free_port()?;
    let setting = format!("http=127.0.0.1:{http}");
    let mut replica = Replica::new(&dir, relay.port, target.port, &[&setting])?;
    replica.start(&[])?;
    let code =
        || -> anyhow::Result<u16> { Ok(get(http, "/ready?max_lag=3").map_or(0, |got| got.0)) };
    becomes("readiness", || Ok(code()? == 200))?;
    // The relay asks the target what is applied.
    let judged = || -> anyhow::Result<u16> {
        Ok(get(watched, "/replica/77?max_lag=1").map_or(0, |got| got.0))
    };
    becomes("a good judgement", || Ok(judged()? == 200))?;
    let mut holder = target.connect("bw")?;
    holder.query_drop("LOCK TABLES keyed READ")?;
    primary.run(&["INSERT INTO bw.keyed VALUES (1)"])?;
    becomes("a bad judgement", || Ok(judged()? == 503))?;
    holder.query_drop("UNLOCK TABLES")?;
    becomes("a good judgement again", || Ok(judged()? == 200))?;
    case.note("a relay asks the target of a replica what is applied there");
    primary.kill()?;
    becomes("the end of readiness behind a relay", || Ok(code()? == 503))?;
    let lag = metric(http, "dromon_replica_lag_seconds")?;
    ensure!(lag >= 3.0, "{lag} s");
    primary.start()?;
    becomes("readiness again", || Ok(code()? == 200))?;
    case.note("a relay that is cut off from its primary makes its replica old");
    Ok(())
}

/// From the server's own threads to a replica, and back.
fn handed_over(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?.join("over");
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &["--gtid-domain-id=1"])?;
    grant(&target)?;
    Load::prepare(&primary)?;
    let load = Load::start(&primary, 2);
    target.follow(primary.port)?;
    thread::sleep(Duration::from_secs(1));
    // Not beside them, as after a restart of the target that starts them again.
    let mut beside = Replica::new(&dir, primary.port, target.port, &["channel=beside"])?;
    beside.start(&[])?;
    let mut ended = None;
    becomes(
        "the end of a replica beside the server's own threads",
        || {
            ended = beside.process.ended()?;
            Ok(ended.is_some())
        },
    )?;
    let said = beside.said()?;
    ensure!(
        ended.is_some_and(|status| !status.success()) && said.contains("own replica threads"),
        "{said}"
    );
    target.run(&["STOP SLAVE"])?;
    // Nor from the source's oldest transaction on.
    let mut without = Replica::new(&dir, primary.port, target.port, &["start="])?;
    ensure!(!without.finish(&[])?, "{}", without.log.display());
    let said = without.said()?;
    ensure!(
        said.contains("start is empty") && said.contains("gtid_slave_pos is 0-1-"),
        "{said}"
    );
    let start: String = target.one("SELECT CONCAT('start=', @@GLOBAL.gtid_slave_pos)")?;
    ensure!(start.starts_with("start=0-1-"), "{start}");
    // What was refused left nothing: the same channel takes the start that it is given now.
    let settings = [
        "channel=beside",
        "commit_order=group",
        "merge=1",
        "threads=8",
        &start,
    ];
    let mut replica = Replica::new(&dir, primary.port, target.port, &settings)?;
    for _ in 0..3 {
        replica.start(&[])?;
        thread::sleep(Duration::from_millis(900));
        replica.kill()?;
    }
    let done = load.stop()?;
    // What is ahead of the position comes into it.
    ensure!(
        replica.finish(&["commit_order=strict"])?,
        "{}",
        replica.log.display()
    );
    equal(&primary, &target, RELAYED, "by the replica")?;
    let position: String = target.one(
        "SELECT CONCAT_WS(',', gtid_pos, @@GLOBAL.gtid_binlog_pos) FROM dromon_replica.position",
    )?;
    // Of the target's binlog its own domain counts.
    let mine = position.split(',').filter(|gtid| gtid.starts_with("1-"));
    let theirs = position.split(',').take(1);
    let all: Vec<&str> = theirs.chain(mine).collect();
    target.run(&[
        &format!("SET GLOBAL gtid_slave_pos = '{}'", all.join(",")),
        "START SLAVE",
    ])?;
    let load = Load::start(&primary, 2);
    thread::sleep(Duration::from_secs(1));
    let after = load.stop()?;
    let wanted: String = primary.one("SELECT @@gtid_binlog_pos")?;
    becomes("all by the server's own threads", || {
        let has: String = target.one("SELECT @@GLOBAL.gtid_slave_pos")?;
        Ok(has.split(',').any(|gtid| gtid == wanted))
    })?;
    equal(
        &primary,
        &target,
        RELAYED,
        "by the server's own threads again",
    )?;
    case.note(format!(
        "{done} transactions by the server's own threads and a replica that was killed, {after} by its own threads again: equal"
    ));
    Ok(())
}
