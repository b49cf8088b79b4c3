//! One candidate on one backlog under one condition.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::{machine, rest};
use dromon_sandbox::Standalone;
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{self, Conn, Row};
use serde_json::Value;

use crate::backlog::{self, Backlog, Checksums, Ports, RELAY_GROUP, RELAY_PASS, count_of};
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
const PAGE: u64 = 16 << 10;
/// Of that pool a tenth is to be free, as of one of 240 MB by default.
const FREE_PART: u64 = 10;
/// The least that a server takes.
const LRU_MIN: u64 = 100;

/// How long it is waited behind the clock until nobody uses a processor.
const REST_LIMIT: Duration = Duration::from_secs(10);

/// What was measured. Times are whole milliseconds, as they are written down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Until it had caught up, or [`Plan::limit`].
    pub time: Duration,
    /// Transactions of the source applied in that time.
    pub applied: u64,
    /// It had not caught up.
    pub is_cut: bool,
    /// Of the server, for what was applied: with its part of fetching the events before the clock
    /// began, and with what was left to do behind it.
    pub cpu_server: Duration,
    /// The same of `dromon replica`, or of `dromon relay`.
    pub cpu_own: Duration,
    /// Transactions of the source that were rolled back and applied again in that time (by the
    /// server), or such of the target (by the replica).
    pub retries: u64,
    /// fsyncs in that time.
    pub fsyncs: u64,
    /// Slow reads in that time.
    pub reads: u64,
    /// What others than the trial's processes used of processors in that time; nought if it is not
    /// known.
    pub others: Duration,
}

impl Measured {
    /// Transactions a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.applied as f64 / self.time.as_secs_f64().max(1e-3)
    }

    /// Processors that others used.
    #[must_use]
    pub fn others(&self) -> f64 {
        self.others.as_secs_f64() / self.time.as_secs_f64().max(1e-3)
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

impl Outcome {
    /// What was measured, whatever came of the tables.
    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Self::Measured(m) | Self::Differs(m, _) => Some(m),
            Self::Failed(_) => None,
        }
    }
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
///
/// # Errors
/// What is no fault of the candidate: its server could not be made or started.
pub fn run(
    bench: &Bench,
    backlog: &Backlog,
    condition: Condition,
    candidate: &Candidate,
) -> anyhow::Result<Outcome> {
    bench.disk.set(Duration::ZERO, Duration::ZERO)?;
    let server = target(bench, backlog, condition, candidate)?;
    let outcome = measure(bench, backlog, condition, candidate, server);
    // The next one must not start slowly; if this fails, its own setting fails, too.
    let _ = bench.disk.set(Duration::ZERO, Duration::ZERO);
    Ok(match outcome {
        Ok((measured, None)) => Outcome::Measured(measured),
        Ok((measured, Some(why))) => Outcome::Differs(measured, why),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    })
}

fn measure(
    bench: &Bench,
    backlog: &Backlog,
    condition: Condition,
    candidate: &Candidate,
    mut server: Standalone,
) -> anyhow::Result<(Measured, Option<String>)> {
    let plan = bench.plan;
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
    let relay = match candidate {
        Candidate::Relay(..) => backlog.relay.as_ref(),
        _ => None,
    };
    let before = Cpu::of(&server, relay)?;
    let mut racer = Racer::ready(bench, backlog, candidate, &server, &mut conn)?;
    let fetched = Cpu::of(&server, relay)?;
    // The copy that the server runs on, and what it fetched: beside the first commits that would cost the
    // fast ones most.
    rest::written(&bench.dir)?;
    let asked_before = bench.disk.asked()?;
    match condition {
        Condition::Memory => {}
        Condition::SlowCommit => bench.disk.set(plan.fsync, Duration::ZERO)?,
        Condition::CacheMiss => bench.disk.set(Duration::ZERO, plan.read)?,
    }
    let begin = Instant::now();
    let others_before = others(backlog, fetched, relay);
    racer.go(bench, &server, &mut conn)?;
    let is_there = racer.wait(bench, backlog, &mut conn, begin, plan.limit)?;
    let time = begin.elapsed();
    let at_end = racer.cpu(&server, relay)?;
    let others_after = others(backlog, at_end, relay);
    let applied = match is_there {
        true => backlog.count,
        false => {
            let position = racer.position(&mut conn)?;
            count_of(&position).with_context(|| format!("Its position is {position:?}"))?
        }
    };
    let asked = bench.disk.asked()? - asked_before;
    // Who was cut goes on: that is not counted.
    let cut = match is_there {
        true => None,
        false => Some((at_end, racer.retries(&server, &mut conn)?)),
    };
    // What is left is done at full speed, so that all of it can be compared.
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
    let (until, retries) = match cut {
        Some(cut) => {
            racer.end()?;
            cut
        }
        None => {
            let until = at_rest(bench, || racer.cpu(&server, relay))?;
            racer.end()?;
            (until, racer.retries(&server, &mut conn)?)
        }
    };
    let share = applied as f64 / backlog.count.max(1) as f64;
    let cpu = until.since(fetched).plus_part(fetched.since(before), share);
    let measured = Measured {
        time: whole_ms(time),
        applied,
        is_cut: !is_there,
        cpu_server: whole_ms(cpu.server),
        cpu_own: whole_ms(cpu.own),
        retries,
        fsyncs: asked.fsyncs,
        reads: asked.reads,
        others: whole_ms(others_after.saturating_sub(others_before)),
    };
    let wrong = slow_enough(plan, condition, &measured);
    ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    let differs = different(&backlog.checksums, &backlog::checksums(&server)?);
    drop(conn);
    server.kill();
    Ok((measured, differs))
}

/// A server with the data from before the backlog, running.
fn target(
    bench: &Bench,
    backlog: &Backlog,
    condition: Condition,
    candidate: &Candidate,
) -> anyhow::Result<Standalone> {
    let plan = bench.plan;
    if bench.dir.exists() {
        fs::remove_dir_all(&bench.dir)
            .with_context(|| format!("removing {}", bench.dir.display()))?;
    }
    let (pool, synced) = match condition {
        Condition::Memory => (backlog::pool_for(plan.rows), false),
        Condition::SlowCommit => (backlog::pool_for(plan.rows), true),
        Condition::CacheMiss => ((plan.rows * POOL_PER_ROW).max(POOL_MIN), false),
    };
    let mut settings = backlog::common(id(candidate), pool, synced)?;
    if condition == Condition::CacheMiss {
        // By default the server keeps 1,536 pages free, more than this pool has: it would throw
        // out what it has just read, which no pool of a size that is used does.
        let free = (pool / PAGE / FREE_PART).max(LRU_MIN);
        settings.push(format!("innodb-lru-scan-depth={free}").parse()?);
    }
    settings.extend(plan.settings.iter().cloned());
    let mut server = backlog.primary.create_like(
        &backlog.before,
        &bench.dir,
        "the replica's server",
        bench.ports.target,
        settings,
    )?;
    server.start(&bench.disk.environment())?;
    Ok(server)
}

/// What was used when nobody uses a processor any more, or when that has been waited for long enough.
fn at_rest(bench: &Bench, cpu: impl Fn() -> anyhow::Result<Cpu>) -> anyhow::Result<Cpu> {
    let mut last = cpu()?;
    rest::idle(1, REST_LIMIT, || {
        bench.stop.check()?;
        last = cpu()?;
        Ok(last.all())
    })?;
    Ok(last)
}

/// What processors were used for so far besides the trial: the machine's work without that of who
/// applies (with this relay, if any), of the primary and of a relay that nobody asks.
fn others(backlog: &Backlog, own: Cpu, relay: Option<&Program>) -> Duration {
    let primary = backlog.primary.process().and_then(|p| p.usage());
    let idle = match relay {
        Some(_) => None,
        None => backlog.relay.as_ref().and_then(Program::usage),
    };
    let beside = [primary, idle].into_iter().flatten().map(|u| u.cpu).sum();
    let all = machine::busy().unwrap_or_default();
    all.saturating_sub(own.all()).saturating_sub(beside)
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Time on a processor: of the replica's server, and of the program of ours that takes part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cpu {
    server: Duration,
    own: Duration,
}

impl Cpu {
    /// Of processes so far.
    fn of(server: &Standalone, own: Option<&Program>) -> anyhow::Result<Self> {
        let server = server.process().and_then(|p| p.usage());
        let own = match own {
            Some(program) => {
                let usage = program.usage();
                usage
                    .with_context(|| format!("dromon {} has ended", program.what()))?
                    .cpu
            }
            None => Duration::ZERO,
        };
        Ok(Self {
            server: server.context("The replica's server has ended")?.cpu,
            own,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            own: self.own.saturating_sub(before.own),
        }
    }

    /// With a part of something else, 0 to 1.
    fn plus_part(self, other: Self, part: f64) -> Self {
        Self {
            server: self.server + other.server.mul_f64(part),
            own: self.own + other.own.mul_f64(part),
        }
    }

    fn all(self) -> Duration {
        self.server + self.own
    }
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

fn different(wanted: &BTreeMap<String, u64>, have: &Checksums) -> Option<String> {
    let wrong: Vec<&str> = wanted
        .iter()
        .filter(|(table, sum)| have.get(*table) != Some(&Some(**sum)))
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
                    // The target is a copy from before the primary's first binlog.
                    "start=beginning".into(),
                    format!("mode={}", how.mode),
                    format!(
                        "merge={}",
                        how.merge.map_or("auto".into(), |n| n.to_string())
                    ),
                    format!("compare={}", if how.key { "key" } else { "changed" }),
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
                let has = text(&status, "Parallel_Mode");
                ensure!(has == mode, "Its mode is {has:?} and should be {mode}");
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

    /// Time on a processor so far, of all that take part.
    fn cpu(&self, server: &Standalone, relay: Option<&Program>) -> anyhow::Result<Cpu> {
        match self {
            Self::BuiltIn => Cpu::of(server, relay),
            Self::Replica { program, .. } => Cpu::of(server, program.as_ref()),
        }
    }

    /// Ends the replica, which says at its end what it has done.
    fn end(&mut self) -> anyhow::Result<()> {
        match self {
            Self::BuiltIn => Ok(()),
            Self::Replica { program, .. } => program.take().map_or(Ok(()), Program::end),
        }
    }

    /// What was applied again so far; a replica that runs says so once a second.
    fn retries(&self, server: &Standalone, conn: &mut Conn) -> anyhow::Result<u64> {
        match self {
            Self::BuiltIn => {
                let sql = "SHOW GLOBAL STATUS LIKE 'Slave_retried_transactions'";
                let rows: Vec<(String, String)> = server.rows(conn, sql)?;
                let value = rows.first().and_then(|(_, n)| n.parse().ok());
                value.context("The server does not tell Slave_retried_transactions")
            }
            // It has run for less than that second.
            Self::Replica {
                program: Some(_),
                status,
                ..
            } if !status.exists() => Ok(0),
            Self::Replica { status, .. } => conflicts(status),
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
            others: Duration::from_millis(seconds * 20),
        }
    }

    #[test]
    fn rates_are_of_what_was_applied() {
        let m = measured(4, 1000);
        assert_eq!(m.rate(), 250.0);
        assert_eq!(m.cpu_per_1000(), 3.0);
        assert_eq!(m.others(), 0.02);
    }

    #[test]
    fn tables_that_differ_are_named() {
        let wanted: BTreeMap<String, u64> = [("d.a".to_string(), 1), ("d.b".to_string(), 2)].into();
        let have = |sums: &[(&str, Option<u64>)]| -> Checksums {
            sums.iter()
                .map(|(t, sum)| ((*t).to_string(), *sum))
                .collect()
        };
        let found = different(&wanted, &have(&[("d.a", Some(1)), ("d.b", Some(2))]));
        assert_eq!(found, None);
        for other in [
            have(&[("d.a", Some(1)), ("d.b", Some(3))]),
            have(&[("d.a", Some(1)), ("d.b", None)]),
            have(&[("d.a", Some(1))]),
        ] {
            let found = different(&wanted, &other);
            assert_eq!(found.as_deref(), Some("not as on the primary: d.b"));
        }
    }

    #[test]
    fn fetching_counts_for_the_part_that_was_applied() {
        let cpu = |server, own| Cpu {
            server: Duration::from_millis(server),
            own: Duration::from_millis(own),
        };
        let (before, fetched, until) = (cpu(100, 50), cpu(500, 90), cpu(900, 90));
        let quarter = until.since(fetched).plus_part(fetched.since(before), 0.25);
        assert_eq!(quarter, cpu(500, 10));
        assert_eq!(quarter.all(), Duration::from_millis(510));
        assert_eq!(
            whole_ms(Duration::from_micros(7_999)),
            Duration::from_millis(7)
        );
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
