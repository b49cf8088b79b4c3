//! One candidate on one backlog under one condition.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::Standalone;
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{self, Conn, Row};
use serde_json::Value;

use crate::backlog::{self, Backlog, Ports, RELAY_GROUP, RELAY_PASS, count_of};
use crate::plan::{Candidate, Condition, Plan, Policy};
use crate::program::Program;
use crate::run::Stop;
use crate::slow::SlowDisk;
use crate::workload::DB;

const BUILT_IN: u32 = 11;
const REPLICA: u32 = 77;
/// How often it is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often it is asked whether it still runs.
const RUNS_EVERY: Duration = Duration::from_millis(250);
/// How long fetching a relay log, and catching up when nothing is measured any more, may take.
const LIMIT: Duration = Duration::from_secs(900);
const QUESTION: Duration = Duration::from_secs(300);
/// Of the pool in [`Condition::CacheMiss`]: a fifth of the table's 280 bytes a row.
const POOL_PER_ROW: u64 = 56;
/// Less than that a server does not run with.
const POOL_MIN: u64 = 6 << 20;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Until it had caught up, or [`Plan::limit`].
    pub time: Duration,
    /// Transactions of the source applied in that time.
    pub applied: u64,
    /// It had not caught up.
    pub is_cut: bool,
    /// Of the server, with fetching the events.
    pub cpu_server: Duration,
    /// Of `dromon replica` or `dromon relay`.
    pub cpu_own: Duration,
    /// Transactions of the source that were rolled back and applied again (by the server), or
    /// such of the target (by the replica).
    pub retries: u64,
    /// fsyncs in that time.
    pub fsyncs: u64,
    /// Slow reads in that time.
    pub reads: u64,
}

impl Measured {
    /// Transactions a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.applied as f64 / self.time.as_secs_f64().max(1e-3)
    }

    /// CPU of server and own program, seconds for 1,000 transactions.
    #[must_use]
    pub fn cpu_per_1000(&self) -> f64 {
        let all = self.cpu_server + self.cpu_own;
        all.as_secs_f64() * 1000.0 / self.applied.max(1) as f64
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All tables are the primary's.
    Measured(Measured),
    /// They are not; which.
    Differs(Measured, String),
    /// It stopped, or could not be measured.
    Failed(String),
}

/// Where a trial runs.
pub struct Bench<'a> {
    /// What is measured.
    pub plan: &'a Plan,
    /// The server's directory; made anew.
    pub dir: PathBuf,
    /// Where servers listen.
    pub ports: Ports,
    /// Of the server.
    pub disk: &'a SlowDisk,
    /// Somebody wants the end.
    pub stop: &'a Stop,
}

/// Measures one candidate.
pub fn run(
    bench: &Bench,
    backlog: &Backlog,
    condition: Condition,
    candidate: &Candidate,
) -> Outcome {
    let outcome = measure(bench, backlog, condition, candidate);
    // The next one must not start slowly; if this fails, its own setting fails, too.
    let _ = bench.disk.set(Duration::ZERO, Duration::ZERO);
    match outcome {
        Ok((measured, None)) => Outcome::Measured(measured),
        Ok((measured, Some(why))) => Outcome::Differs(measured, why),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn measure(
    bench: &Bench,
    backlog: &Backlog,
    condition: Condition,
    candidate: &Candidate,
) -> anyhow::Result<(Measured, Option<String>)> {
    let plan = bench.plan;
    bench.disk.set(Duration::ZERO, Duration::ZERO)?;
    if bench.dir.exists() {
        fs::remove_dir_all(&bench.dir)
            .with_context(|| format!("removing {}", bench.dir.display()))?;
    }
    let mut settings = match condition {
        Condition::Memory => backlog::common(id(candidate), backlog::pool_for(plan.rows), false)?,
        Condition::SlowCommit => {
            backlog::common(id(candidate), backlog::pool_for(plan.rows), true)?
        }
        Condition::CacheMiss => {
            let pool = (plan.rows * POOL_PER_ROW).max(POOL_MIN);
            backlog::common(id(candidate), pool, false)?
        }
    };
    settings.extend(plan.settings.iter().cloned());
    let mut server = backlog.primary.create_like(
        &backlog.before,
        &bench.dir,
        "the replica's server",
        bench.ports.target,
        settings,
    )?;
    server.start(&bench.disk.environment())?;
    let mut conn = server.connect(QUESTION)?;
    if condition.is_warm() {
        server.run(
            &mut conn,
            &[
                &format!("SELECT SUM(v) FROM {DB}.t FORCE INDEX (PRIMARY)"),
                &format!("SELECT SUM(k) FROM {DB}.t FORCE INDEX (k)"),
            ],
        )?;
    }
    let cpu_before = cpu_of(&server)?;
    let own_before = backlog.relay.as_ref().and_then(Program::usage);
    let mut racer = Racer::ready(bench, backlog, candidate, &server, &mut conn)?;
    let asked_before = bench.disk.asked()?;
    match condition {
        Condition::Memory => {}
        Condition::SlowCommit => bench.disk.set(plan.fsync, Duration::ZERO)?,
        Condition::CacheMiss => bench.disk.set(Duration::ZERO, plan.read)?,
    }
    let begin = Instant::now();
    racer.go(bench, &server, &mut conn)?;
    let is_there = racer.wait(bench, backlog, &mut conn, begin, plan.limit)?;
    let time = begin.elapsed();
    let applied = match is_there {
        true => backlog.count,
        false => count_of(&racer.position(&mut conn)?).unwrap_or(0),
    };
    let cpu_server = cpu_of(&server)?.saturating_sub(cpu_before);
    let asked = bench.disk.asked()? - asked_before;
    let own = match &racer {
        Racer::Replica { program, .. } => program.as_ref().and_then(Program::usage),
        Racer::BuiltIn => None,
    };
    let cpu_own = match (candidate, own) {
        (Candidate::Replica(..), Some(usage)) => usage.cpu,
        (Candidate::Relay(..), _) => {
            let now = backlog.relay.as_ref().and_then(Program::usage);
            let spent = now
                .zip(own_before)
                .map(|(n, b)| n.cpu.saturating_sub(b.cpu));
            spent.context("The relay has ended")?
        }
        (Candidate::Replica(..), None) => bail!("The replica has ended"),
        _ => Duration::ZERO,
    };
    // What is left is applied at full speed, so that all of it can be compared.
    bench.disk.set(Duration::ZERO, Duration::ZERO)?;
    if !is_there {
        server.run(
            &mut conn,
            &["SET GLOBAL sync_binlog = 0, innodb_flush_log_at_trx_commit = 0"],
        )?;
        let reached = racer.wait(bench, backlog, &mut conn, Instant::now(), LIMIT)?;
        ensure!(
            reached,
            "It does not catch up, though its disk is not slow any more"
        );
    }
    let retries = racer.retries(&server, &mut conn)?;
    let measured = Measured {
        time,
        applied,
        is_cut: !is_there,
        cpu_server,
        cpu_own,
        retries,
        fsyncs: asked.fsyncs,
        reads: asked.reads,
    };
    let wrong = slow_enough(plan, condition, &measured);
    ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    let differs = different(&backlog.checksums, &backlog::checksums(&server)?);
    drop(conn);
    server.kill();
    Ok((measured, differs))
}

/// A disk that was not slow measures something else.
fn slow_enough(plan: &Plan, condition: Condition, measured: &Measured) -> Option<String> {
    let (delay, count) = match condition {
        Condition::Memory => return None,
        Condition::SlowCommit => (plan.fsync, measured.fsyncs),
        Condition::CacheMiss => (plan.read, measured.reads),
    };
    (count == 0 && !delay.is_zero())
        .then(|| format!("Its disk was not slow ({condition}): nothing of it was asked"))
}

fn different(wanted: &[(String, Option<u64>)], have: &[(String, Option<u64>)]) -> Option<String> {
    let wrong: Vec<&str> = wanted
        .iter()
        .filter(|w| !have.contains(w))
        .map(|(table, _)| table.as_str())
        .collect();
    (!wrong.is_empty()).then(|| format!("not as on the primary: {}", wrong.join(", ")))
}

fn id(candidate: &Candidate) -> u32 {
    match candidate {
        Candidate::Relay(Policy::Pass, _) => RELAY_PASS,
        Candidate::Relay(Policy::Group, _) => RELAY_GROUP,
        _ => BUILT_IN,
    }
}

fn cpu_of(server: &Standalone) -> anyhow::Result<Duration> {
    let usage = server.process().and_then(|p| p.usage());
    Ok(usage.context("The replica's server has ended")?.cpu)
}

/// Who applies.
enum Racer {
    /// The server's own threads.
    BuiltIn,
    /// `dromon replica`; started when the clock starts.
    Replica {
        program: Option<Program>,
        settings: Vec<String>,
        log: PathBuf,
        status: PathBuf,
    },
}

impl Racer {
    /// All that comes before the clock starts.
    fn ready(
        bench: &Bench,
        backlog: &Backlog,
        candidate: &Candidate,
        server: &Standalone,
        conn: &mut Conn,
    ) -> anyhow::Result<Self> {
        let (user, password) = backlog.primary.account();
        let (mode, threads, source) = match candidate {
            Candidate::Serial => ("none".to_string(), 0, bench.ports.primary),
            Candidate::BuiltIn(mode, n) => (mode.to_string(), *n, bench.ports.primary),
            Candidate::Relay(_, n) => ("conservative".to_string(), *n, bench.ports.relay),
            Candidate::Replica(how, threads) => {
                let log = bench.dir.join("replica.log");
                let status = bench.dir.join("replica.json");
                let settings = vec![
                    format!("source=127.0.0.1:{}", bench.ports.primary),
                    format!("source_user={user}"),
                    format!("source_password={password}"),
                    format!("server_id={REPLICA}"),
                    format!("target=127.0.0.1:{}", bench.ports.target),
                    format!("target_user={user}"),
                    format!("target_password={password}"),
                    format!("mode={}", how.mode),
                    format!(
                        "merge={}",
                        how.merge.map_or("auto".into(), |n| n.to_string())
                    ),
                    format!("threads={threads}"),
                    format!("status={}", status.display()),
                    format!("log={}", log.display()),
                ];
                return Ok(Self::Replica {
                    program: None,
                    settings,
                    log,
                    status,
                });
            }
        };
        server.run(
            conn,
            &[
                &format!("SET GLOBAL slave_parallel_threads = {threads}"),
                &format!("SET GLOBAL slave_parallel_mode = {mode}"),
                // A server that gives up, or looks ahead too little, is not at its best.
                "SET GLOBAL slave_transaction_retries = 1000000",
                "SET GLOBAL slave_parallel_max_queued = 1048576",
                &format!(
                    "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={source}, MASTER_USER='{user}', \
                     MASTER_PASSWORD='{password}', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
                ),
                "START SLAVE IO_THREAD",
            ],
        )?;
        let begin = Instant::now();
        loop {
            let status = slave_status(conn)?;
            if text(&status, "Gtid_IO_Pos") == backlog.goal {
                return Ok(Self::BuiltIn);
            }
            let error = text(&status, "Last_IO_Error");
            ensure!(
                error.is_empty() && begin.elapsed() < LIMIT,
                "It does not fetch the backlog: {error}"
            );
            bench.stop.check()?;
            thread::sleep(LOOK_EVERY);
        }
    }

    fn go(&mut self, bench: &Bench, server: &Standalone, conn: &mut Conn) -> anyhow::Result<()> {
        match self {
            Self::BuiltIn => server.run(conn, &["START SLAVE SQL_THREAD"])?,
            Self::Replica {
                program, settings, ..
            } => {
                let printed = bench.dir.join("replica.out");
                let started = Program::start(&bench.plan.program, "replica", settings, &printed)?;
                *program = Some(started);
            }
        }
        Ok(())
    }

    /// What is applied.
    fn position(&self, conn: &mut Conn) -> anyhow::Result<String> {
        let sql = match self {
            Self::BuiltIn => "SELECT @@gtid_slave_pos",
            Self::Replica { .. } => "SELECT gtid_pos FROM dromon_replica.position",
        };
        match conn.query_first::<Option<String>, _>(sql) {
            Ok(found) => Ok(found.flatten().unwrap_or_default()),
            // The table is not there before the replica has made it.
            Err(mysql::Error::MySqlError(_)) => Ok(String::new()),
            Err(error) => Err(error).context("The replica's server does not answer"),
        }
    }

    /// Waits until it has caught up; false if time is up.
    fn wait(
        &mut self,
        bench: &Bench,
        backlog: &Backlog,
        conn: &mut Conn,
        begin: Instant,
        limit: Duration,
    ) -> anyhow::Result<bool> {
        let mut looked = Instant::now();
        loop {
            if self.position(conn)? == backlog.goal {
                return Ok(true);
            }
            if begin.elapsed() >= limit {
                return Ok(false);
            }
            if looked.elapsed() >= RUNS_EVERY {
                looked = Instant::now();
                bench.stop.check()?;
                self.must_run(conn)?;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn must_run(&mut self, conn: &mut Conn) -> anyhow::Result<()> {
        match self {
            Self::BuiltIn => {
                let status = slave_status(conn)?;
                ensure!(
                    text(&status, "Slave_SQL_Running") == "Yes",
                    "The server stopped applying: {}",
                    text(&status, "Last_SQL_Error")
                );
                Ok(())
            }
            Self::Replica { program, log, .. } => match program {
                Some(program) => program.must_run(log),
                None => Ok(()),
            },
        }
    }

    /// What was applied again. Ends the replica, as it says so at its end.
    fn retries(&mut self, server: &Standalone, conn: &mut Conn) -> anyhow::Result<u64> {
        match self {
            Self::BuiltIn => {
                let sql = "SHOW GLOBAL STATUS LIKE 'Slave_retried_transactions'";
                let rows: Vec<(String, String)> = server.rows(conn, sql)?;
                let value = rows.first().and_then(|(_, n)| n.parse().ok());
                value.context("The server does not tell Slave_retried_transactions")
            }
            Self::Replica {
                program, status, ..
            } => {
                if let Some(program) = program.take() {
                    program.end()?;
                }
                conflicts(status)
            }
        }
    }
}

fn conflicts(status: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(status)
        .with_context(|| format!("reading the replica's status, {}", status.display()))?;
    let value: Value = serde_json::from_str(&text)?;
    let of = |why: &str| value["conflicts"][why].as_u64();
    let all = ["keys", "lock", "error"].map(of);
    let sum: Option<u64> = all.into_iter().sum();
    sum.context("The replica's status does not tell conflicts")
}

fn slave_status(conn: &mut Conn) -> anyhow::Result<Row> {
    let row: Option<Row> = conn.query_first("SHOW SLAVE STATUS")?;
    row.context("SHOW SLAVE STATUS is empty")
}

fn text(row: &Row, field: &str) -> String {
    row.get::<Option<String>, _>(field)
        .flatten()
        .unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::tests::sample;

    pub(crate) fn measured(seconds: u64, applied: u64) -> Measured {
        Measured {
            time: Duration::from_secs(seconds),
            applied,
            is_cut: false,
            cpu_server: Duration::from_secs(2),
            cpu_own: Duration::from_secs(1),
            retries: 7,
            fsyncs: 10,
            reads: 0,
        }
    }

    #[test]
    fn rates_are_of_what_was_applied() {
        let m = measured(4, 1000);
        assert_eq!(m.rate(), 250.0);
        assert_eq!(m.cpu_per_1000(), 3.0);
    }

    #[test]
    fn tables_that_differ_are_named() {
        let sums = |a, b| vec![("d.a".to_string(), a), ("d.b".to_string(), b)];
        assert_eq!(
            different(&sums(Some(1), Some(2)), &sums(Some(1), Some(2))),
            None
        );
        let found = different(&sums(Some(1), Some(2)), &sums(Some(1), Some(3)));
        assert_eq!(found.as_deref(), Some("not as on the primary: d.b"));
        let found = different(&sums(Some(1), Some(2)), &sums(Some(1), None)[..1]);
        assert_eq!(found.as_deref(), Some("not as on the primary: d.b"));
    }

    #[test]
    fn a_disk_that_was_not_slow_is_noticed() {
        let plan = sample();
        let mut m = measured(1, 1);
        assert_eq!(slow_enough(&plan, Condition::Memory, &m), None);
        assert_eq!(slow_enough(&plan, Condition::SlowCommit, &m), None);
        assert!(slow_enough(&plan, Condition::CacheMiss, &m).is_some());
        m.fsyncs = 0;
        assert!(slow_enough(&plan, Condition::SlowCommit, &m).is_some());
    }

    #[test]
    fn conflicts_of_all_kinds_are_added() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("status");
        let write = |text: &str| fs::write(&file, text).expect("written");
        write(r#"{"conflicts": {"keys": 1, "lock": 2, "error": 4, "last": []}}"#);
        assert_eq!(conflicts(&file).expect("read"), 7);
        write(r#"{"conflicts": {"keys": 1}}"#);
        assert!(conflicts(&file).is_err());
    }
}
