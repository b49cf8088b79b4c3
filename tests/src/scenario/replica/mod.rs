//! A primary, `dromon replica` and its target, unmodified servers without a cluster. Run by name.

mod catchup;
mod commits;
mod compare;
mod deaths;
mod fired;
mod gtids;
mod kept;
mod lists;
mod mixed;
mod odd;
mod restarts;
mod secure;
mod ways;
mod xa;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::relay::place;
use super::relay::plain::{Load, PASSWORD, Relay, Server, TABLES, USER};
use super::relay::process::Process;
use super::relay::same::{self, all as equal};
use crate::harness::{Case, Run, Scenario, Servers};

/// How long a replica may take to catch up.
const LIMIT: Duration = Duration::from_secs(180);
/// How often it is killed in each round.
const KILLS: u64 = 4;
/// How long a replica that was started may take to apply something, and how much that is:
/// more than its own tables take.
const FIRST: Duration = Duration::from_secs(30);
const ROWS: u64 = 30;

/// The scenarios.
pub fn all() -> Vec<Scenario> {
    let table: Vec<(&str, &str, Run)> = vec![
        (
            "replica_modes",
            "a mixed workload applied in every mode, one by one and merged, the replica killed amid: checksums equal",
            modes,
        ),
        (
            "replica_follows",
            "a replica behind a relay under load, triggers that run on the target and versions by transactions among it; replica, relay and \
             target killed: checksums equal, each change once",
            follows,
        ),
        (
            "replica_differs",
            "rows that are missing, there already or otherwise stop with table, key and GTID, or are repaired; filters",
            differs,
        ),
        (
            "bench_catchup",
            "`dromon bench catchup` with tiny backlogs of all workloads: each candidate catches up, checksums equal, files written",
            catchup::run,
        ),
        (
            "replica_commits",
            "commits side by side, strict and in groups; replica and target killed amid: checksums equal",
            commits::run,
        ),
        (
            "replica_kills",
            "the replica killed 50 times under load in each of three settings: each transaction once, checksums equal",
            deaths::alone,
        ),
        (
            "replica_cluster",
            "the target is a node of a cluster; replica and node killed under load: all nodes have the primary's checksums",
            deaths::cluster,
        ),
        (
            "replica_events",
            "updates of many rows as events of rows, where only the key is compared: all types, keys of all kinds, a missing row named; checksums equal",
            lists::events,
        ),
        (
            "replica_lists",
            "updates of many rows as lists that the target joins: all types, keys of all kinds, a missing row named; checksums equal",
            lists::run,
        ),
        (
            "replica_odd",
            "what is seldom: ROLLBACK of both kinds of tables, temporary tables, statements on tables without transactions that are cut off, long rows, events, savepoints, limits of the target; a replica of \
             the target; the position deleted; the source killed amid temporary tables",
            odd::run,
        ),
        (
            "replica_gtids",
            "the source's GTIDs in the target's binlog: replica and target killed amid, DDL, tables without transactions: each once, in order; a \
             server moves behind the target",
            gtids::run,
        ),
        (
            "replica_ways",
            "two servers that follow each other: each transaction once on both; a relay cut off makes its replica old; what is too long",
            ways::run,
        ),
        (
            "replica_xa",
            "XA transactions that are committed, rolled back, or left prepared for long; the replica killed amid: checksums equal",
            xa::run,
        ),
        (
            "replica_tls",
            "TLS towards source and target, a stranger refused; metrics and readiness over HTTP",
            secure::run,
        ),
    ];
    let scenario = |(name, shows, run)| Scenario {
        name,
        shows,
        servers: Servers::Own,
        run,
        round: Duration::ZERO,
        timed: false,
    };
    table.into_iter().map(scenario).collect()
}

/// A replica.
pub struct Replica {
    program: PathBuf,
    settings: Vec<String>,
    log: PathBuf,
    process: Process,
}

impl Replica {
    pub fn new(base: &Path, source: u16, target: u16, more: &[&str]) -> anyhow::Result<Replica> {
        let here = std::env::current_exe().context("finding this program")?;
        let program = here.with_file_name("dromon");
        ensure!(
            program.is_file(),
            "there is no {}: build it with cargo build --release -p dromon-cli",
            program.display()
        );
        let log = base.join("replica.log");
        let mut settings = vec![
            format!("source=127.0.0.1:{source}"),
            format!("source_user={USER}"),
            format!("source_password={PASSWORD}"),
            "server_id=77".to_owned(),
            format!("target=127.0.0.1:{target}"),
            format!("target_user={USER}"),
            format!("target_password={PASSWORD}"),
            // Whatever the target has, no source here has lost its beginning. A later `start` counts.
            "start=beginning".to_owned(),
            format!("status={}", base.join("replica.json").display()),
            format!("log={}", log.display()),
        ];
        settings.extend(more.iter().map(|m| (*m).to_owned()));
        Ok(Replica {
            program,
            settings,
            log,
            process: Process::new("replica", base, "replica"),
        })
    }

    pub fn start(&mut self, more: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("replica");
        for setting in self
            .settings
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
        {
            command.args(["--set", setting]);
        }
        self.process.start(command)
    }

    /// `kill -9`, while it follows: it does not end by itself.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()
    }

    /// Runs it until it has written something to the target and `after` has passed, and
    /// kills it then, or together with the target. False if that was too late: it had
    /// caught up, and ended well.
    fn kill_amid(
        &mut self,
        target: &mut Server,
        more: &[&str],
        after: Duration,
        both: bool,
    ) -> anyhow::Result<bool> {
        let before = written(target)?;
        self.start(&[&["until_caught_up=on"], more].concat())?;
        let until = Instant::now() + FIRST;
        while written(target)? < before + ROWS {
            if self.process.is_over()? {
                return self.process.kill_if_it_runs();
            }
            ensure!(
                Instant::now() < until,
                "nothing was written for {FIRST:?}: {}",
                self.log.display()
            );
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(after);
        if both {
            target.kill()?;
        }
        let hit = self.process.kill_if_it_runs()?;
        if both {
            target.start()?;
        }
        Ok(hit)
    }

    pub fn pid(&self) -> anyhow::Result<u32> {
        self.process.pid()
    }

    /// Waits until the target has what the primary has.
    pub fn reaches(&self, primary: &Server, target: &Server) -> anyhow::Result<()> {
        let wanted: String = primary.one("SELECT @@gtid_binlog_pos")?;
        let until = Instant::now() + LIMIT;
        loop {
            let have: String = target.one("SELECT gtid_pos FROM dromon_replica.position")?;
            if have == wanted {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "at {have}, not at {wanted}: {}",
                self.log.display()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs until everything that the source has is applied. Gives whether it ended well.
    fn finish(&mut self, more: &[&str]) -> anyhow::Result<bool> {
        let all = [&["until_caught_up=on"], more].concat();
        self.start(&all)?;
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status.success());
            }
            if Instant::now() > until {
                bail!("the replica did not catch up: {}", self.log.display());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }
}

/// Rows that were ever written on a server.
fn written(server: &Server) -> anyhow::Result<u64> {
    server.one(
        "SELECT CAST(SUM(VARIABLE_VALUE) AS UNSIGNED) FROM information_schema.GLOBAL_STATUS \
         WHERE VARIABLE_NAME IN ('HANDLER_WRITE', 'HANDLER_UPDATE', 'HANDLER_DELETE')",
    )
}

/// What a replica's account needs.
pub fn grant(target: &Server) -> anyhow::Result<()> {
    target.run(&[
        "SET sql_log_bin = 0",
        &format!("GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION"),
    ])
}

/// A table of which all rows are gone again. What counts them is no part of a checksum.
const COUNTED: [&str; 4] = [
    "CREATE TABLE mx.counted (id INT AUTO_INCREMENT PRIMARY KEY, v INT) ENGINE=InnoDB",
    "INSERT INTO mx.counted (v) VALUES (1)",
    "INSERT INTO mx.counted (v) VALUES (2)",
    "DELETE FROM mx.counted",
];

/// The number of its next row.
fn next_counted(server: &Server) -> anyhow::Result<u64> {
    server.one(
        "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'mx' AND TABLE_NAME = 'counted'",
    )
}

fn modes(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let options = ["--max-allowed-packet=64M", mixed::ZONE];
    let primary = Server::new(&dir, "primary", 1, &options)?;
    let mut target = Server::new(&dir, "target", 2, &options)?;
    grant(&target)?;
    mixed::prepare(&primary)?;
    let count = case.options.seconds.as_secs().max(5) * 60;
    let done = mixed::run(&primary, 3, count)?;
    case.note(format!("{done} statements"));
    primary.run(&COUNTED)?;
    let next = next_counted(&primary)?;
    let tables = mixed::tables(&primary)?;
    let computed = mixed::computed(&primary)?;
    let modes = [
        "none",
        "database",
        "conservative",
        "optimistic",
        "aggressive",
        "writeset",
    ];
    let ways = [
        &["merge=1"][..],
        &["merge=1", "binlog=off"],
        &["merge=1", "commit_order=group"],
        &["merge=100"],
        &["merge=100", "commit_order=group"],
    ];
    let (mut rounds, mut hits) = (0, 0);
    for (n, mode) in modes.into_iter().enumerate() {
        // One by one in every mode, the other ways in turn.
        let others = [1 + n % 4, 1 + (n + 2) % 4];
        for (_, way) in ways
            .iter()
            .enumerate()
            .filter(|(n, _)| *n == 0 || others.contains(n))
        {
            target.run(&[
                "DROP DATABASE IF EXISTS mx",
                "DROP DATABASE IF EXISTS mx2",
                "DROP DATABASE IF EXISTS dromon_replica",
            ])?;
            let mode = format!("mode={mode}");
            let what = [&[mode.as_str()], *way].concat();
            rounds += 1;
            let mut replica = Replica::new(&dir, primary.port, target.port, &what)?;
            hits += amid(&mut replica, &mut target, KILLS, &what)?;
            ensure!(replica.finish(&[])?, "{what:?}: {}", replica.log.display());
            equal(&primary, &target, &tables, &what.join(" "))?;
            let have = mixed::computed(&target)?;
            ensure!(have == computed, "{what:?}: {have} instead of {computed}");
            let have = next_counted(&target)?;
            ensure!(have == next, "{what:?}: the next row is {have}, not {next}");
        }
    }
    case.note(format!(
        "{rounds} times {KILLS} kills, {hits} of them amid, then checksums equal: {tables}"
    ));
    Ok(())
}

/// So many kills amid; how many were not too late. The first one is at its first rows.
fn amid(
    replica: &mut Replica,
    target: &mut Server,
    kills: u64,
    what: &[&str],
) -> anyhow::Result<u64> {
    let mut hits = 0;
    for n in 0..kills {
        let after = Duration::from_millis(n * 37 % 120);
        hits += u64::from(replica.kill_amid(target, &[], after, false)?);
    }
    ensure!(hits > 0, "{what:?}: each of {kills} kills came too late");
    Ok(hits)
}

fn follows(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let options = ["--sync-binlog=1", fired::OPTION];
    let mut target = Server::new(&dir, "target", 2, &options)?;
    grant(&target)?;
    Load::prepare(&primary)?;
    fired::prepare(&primary, &target)?;
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &["file_size=2M"])?;
    relay.start()?;
    let mut replica = Replica::new(&dir, relay.port, target.port, &["threads=4"])?;
    replica.start(&[])?;
    let load = Load::start(&primary, 3);
    let firing = fired::load(&primary);
    let begin = Instant::now();
    let mut round = 0u64;
    // On a slow machine, too, each of the three dies.
    while begin.elapsed() < case.options.seconds || round < 3 {
        thread::sleep(Duration::from_millis(400 + round * 137 % 600));
        match round % 3 {
            0 => {
                replica.kill()?;
                replica.start(&[])?;
            }
            1 => {
                relay.kill()?;
                relay.start()?;
            }
            _ => {
                target.kill()?;
                target.start()?;
            }
        }
        round += 1;
    }
    let done = load.stop()? + firing.stop()?;
    replica.reaches(&primary, &target)?;
    equal(&primary, &target, TABLES, "behind a relay")?;
    case.note(format!(
        "{done} transactions, {round} kills of replica, relay and target; checksums equal"
    ));
    case.note(fired::check(&primary, &target)?);
    Ok(())
}

fn differs(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    grant(&target)?;
    primary.run(&[
        "CREATE DATABASE df",
        "CREATE DATABASE other",
        "CREATE TABLE df.t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE df.left_out (id INT PRIMARY KEY)",
        "INSERT INTO df.t SELECT seq, 0 FROM df.seq_1_to_100",
        "INSERT INTO df.left_out VALUES (1)",
    ])?;
    let mut replica = Replica::new(
        &dir,
        primary.port,
        target.port,
        &["without=df.left_out, other"],
    )?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    let left_out: u64 = target.one(
        "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'df' AND TABLE_NAME = 'left_out'",
    )?;
    ensure!(left_out == 0, "a table that is left out was made");
    target.run(&[
        "DELETE FROM df.t WHERE id = 7",
        "INSERT INTO df.t VALUES (200, 5)",
    ])?;
    let all: Vec<String> = (1..=50)
        .map(|n| format!("UPDATE df.t SET v = v + {n} WHERE id = {n}"))
        .collect();
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.push("INSERT INTO df.t VALUES (200, 6)");
    // Of statements the default database counts.
    all.extend(["USE other", "CREATE TABLE o (id INT)"]);
    // Of those that name their tables, these count: the target does not have this one.
    all.extend([
        "USE df",
        "ALTER TABLE df.left_out ADD v INT",
        "CREATE TABLE other.p (id INT)",
    ]);
    primary.run(&all)?;
    for merge in ["merge=1", "merge=100"] {
        ensure!(!replica.finish(&[merge])?, "a missing row did not stop it");
        let said = replica.said()?;
        ensure!(said.contains("the update of df.t where `id`=7 ("), "{said}");
    }
    ensure!(
        replica.finish(&["difference=repair"])?,
        "it was not repaired"
    );
    same::rows(&primary, &target, "df.t", "after the repair")?;
    ensure!(
        replica.said()?.contains("repaired rows: 2"),
        "{}",
        replica.log.display()
    );
    let other: u64 = target
        .one("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'other'")?;
    ensure!(
        other == 0,
        "a statement in a database that is left out was applied"
    );
    case.note(
        "a missing row and one too many: named, then repaired; a table and a database left out",
    );
    compare::run(case, &primary, &target, &mut replica)
}
