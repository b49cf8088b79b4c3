//! A backlog: a primary, a copy of its data from before, what one client committed since, and a
//! relay that has all of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::bench::Say;
use dromon_sandbox::{Setting, Standalone};
use serde_json::Value;

use crate::plan::{Plan, Policy, Workload};
use crate::program::{Program, relay_status};
use crate::run::Stop;
use crate::workload::{self, DB, TABLES};

/// Server ids. The relay knows by them who is to have hints.
pub const RELAY_PASS: u32 = 12;
/// See [`RELAY_PASS`].
pub const RELAY_GROUP: u32 = 13;
const PRIMARY: u32 = 1;
const RELAY: u32 = 9;
/// How long the relay may take to store what the primary has.
const LIMIT: Duration = Duration::from_secs(300);
/// No question takes longer; checksums read whole tables.
const QUESTION: Duration = Duration::from_secs(300);

/// Checksum of each table; none of one that is not there.
pub type Checksums = BTreeMap<String, Option<u64>>;

/// Ports on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// Of the server that catches up.
    pub target: u16,
    /// The primary's.
    pub primary: u16,
    /// The relay's, for replicas.
    pub relay: u16,
    /// The relay's, for HTTP.
    pub relay_http: u16,
}

/// A primary with a backlog.
pub struct Backlog {
    /// It goes on running.
    pub primary: Standalone,
    /// Stopped when dropped.
    pub relay: Option<Program>,
    /// Data of a server that has nothing of the backlog.
    pub before: PathBuf,
    /// `gtid_binlog_pos` behind it.
    pub goal: String,
    /// Transactions in it.
    pub count: u64,
    /// Of all tables, behind it.
    pub checksums: BTreeMap<String, u64>,
    /// What the relay found out about it, if it has hints.
    pub hints: Option<String>,
}

impl Backlog {
    /// Makes it in a new directory.
    ///
    /// # Errors
    /// When servers do not start, or the client fails.
    pub fn make(
        plan: &Plan,
        workload: Workload,
        dir: &Path,
        ports: Ports,
        stop: &Stop,
        say: Say,
    ) -> anyhow::Result<Self> {
        fs::create_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
        let settings = settings(plan.rows)?;
        let mut primary =
            Standalone::create(&dir.join("primary"), "the primary", ports.primary, settings)?;
        primary.start(&[])?;
        say(&format!(
            "{workload}: filling a table of {} rows",
            plan.rows
        ));
        workload::prepare(&primary, workload, plan.rows, stop)?;
        engine_of_positions(&primary)?;
        primary.stop()?;
        let before = dir.join("before");
        primary.copy_data(&before)?;
        primary.forget_logs()?;
        primary.start(&[])?;
        let relay = match plan.relay.is_empty() {
            true => None,
            false => Some(relay(plan, &primary, dir, ports, stop)?),
        };
        let transactions = plan.transactions(workload);
        say(&format!(
            "{workload}: one client commits {transactions} transactions ({})",
            workload.about()
        ));
        workload::commit(&primary, transactions, stop)?;
        workload::check(&primary, workload, transactions)?;
        let mut conn = primary.connect(QUESTION)?;
        let goal: Vec<String> = primary.rows(&mut conn, "SELECT @@gtid_binlog_pos")?;
        let goal = goal.into_iter().next().unwrap_or_default();
        let count = count_of(&goal).with_context(|| format!("The primary is at {goal:?}"))?;
        let wanted = workload::commits(workload, transactions);
        ensure!(
            wanted.contains(&count),
            "{transactions} transactions became {count} in the binlog; {} to {} were expected",
            wanted.start(),
            wanted.end()
        );
        let found = checksums(&primary)?;
        let whole: Option<BTreeMap<String, u64>> = found
            .iter()
            .map(|(table, sum)| Some((table.clone(), (*sum)?)))
            .collect();
        let checksums =
            whole.with_context(|| format!("The primary gives no checksums: {found:?}"))?;
        let mut backlog = Self {
            primary,
            relay,
            before,
            goal,
            count,
            checksums,
            hints: None,
        };
        if backlog.relay.is_some() {
            backlog.hints = backlog.wait_for_relay(ports, stop)?;
        }
        Ok(backlog)
    }

    /// Fails if primary or relay have ended: without them no trial says anything.
    ///
    /// # Errors
    /// Names who has ended.
    pub fn must_be_there(&self) -> anyhow::Result<()> {
        ensure!(
            self.primary.process().is_some(),
            "The primary of this backlog has ended; run it again with --resume"
        );
        let lives = self.relay.as_ref().is_none_or(Program::is_alive);
        ensure!(
            lives,
            "The relay of this backlog has ended; run it again with --resume"
        );
        Ok(())
    }

    /// Until it has all of it; what it found out.
    fn wait_for_relay(&self, ports: Ports, stop: &Stop) -> anyhow::Result<Option<String>> {
        let begin = Instant::now();
        loop {
            let status = relay_status(ports.relay_http).unwrap_or_default();
            let have = status["gtid_binlog_pos"].as_str().unwrap_or_default();
            if have == self.goal {
                return Ok(hints(&status["hints"]));
            }
            ensure!(
                begin.elapsed() < LIMIT,
                "The relay is at {have:?}, not at {}",
                self.goal
            );
            stop.check()?;
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What a relay's status says of its hints; none if it computes none.
fn hints(status: &Value) -> Option<String> {
    let number = |name: &str| status[name].as_u64();
    let (groups, joined) = (number("groups")?, number("joined_groups")?);
    let barriers = number("barriers")?;
    Some(format!(
        "by the relay's hints {joined} of {groups} may run beside the one before, {barriers} are barriers"
    ))
}

/// Settings that primary and replicas share.
pub fn settings(rows: u64) -> anyhow::Result<Vec<Setting>> {
    common(PRIMARY, pool_for(rows), false)
}

/// Bytes of a buffer pool that holds the table and what is made of it.
pub fn pool_for(rows: u64) -> u64 {
    (rows * 600).max(128 << 20)
}

/// Settings of a server; `synced`: its commits wait for the disk.
pub fn common(id: u32, pool: u64, synced: bool) -> anyhow::Result<Vec<Setting>> {
    let sync = u8::from(synced);
    let list = [
        format!("server-id={id}"),
        "binlog-format=ROW".into(),
        "log-slave-updates=1".into(),
        "gtid-strict-mode=1".into(),
        "performance-schema=0".into(),
        "skip-slave-start=1".into(),
        "max-connections=700".into(),
        format!("innodb-buffer-pool-size={pool}"),
        "innodb-buffer-pool-dump-at-shutdown=0".into(),
        "innodb-buffer-pool-load-at-startup=0".into(),
        "innodb-log-file-size=96M".into(),
        format!("innodb-flush-log-at-trx-commit={sync}"),
        format!("sync-binlog={sync}"),
    ];
    let parsed: Result<Vec<Setting>, _> = list.iter().map(|s| s.parse()).collect();
    Ok(parsed?)
}

/// A replica's position is written with each transaction: in InnoDB that costs least.
fn engine_of_positions(server: &Standalone) -> anyhow::Result<()> {
    let mut conn = server.connect(QUESTION)?;
    Ok(server.run(
        &mut conn,
        &["ALTER TABLE mysql.gtid_slave_pos ENGINE=InnoDB"],
    )?)
}

/// A relay that has read the primary's tables.
fn relay(
    plan: &Plan,
    primary: &Standalone,
    dir: &Path,
    ports: Ports,
    stop: &Stop,
) -> anyhow::Result<Program> {
    let (user, password) = primary.account();
    let mut settings = vec![
        format!("primary=127.0.0.1:{}", ports.primary),
        format!("user={user}"),
        format!("password={password}"),
        format!("account={user}:{password}"),
        format!("server_id={RELAY}"),
        format!("dir={}", dir.join("relay").display()),
        format!("listen=127.0.0.1:{}", ports.relay),
        format!("http=127.0.0.1:{}", ports.relay_http),
        format!("log={}", dir.join("relay.log").display()),
    ];
    let hints = plan.relay.contains(&Policy::Group);
    if hints {
        settings.push(format!("policy={RELAY_GROUP}:group"));
    }
    let mut relay = Program::start(&plan.program, "relay", &settings, &dir.join("relay.out"))?;
    let begin = Instant::now();
    loop {
        let status = relay_status(ports.relay_http).unwrap_or_default();
        let ready = match hints {
            true => &status["hints"]["catalog"],
            false => &status["primary"]["connected"],
        };
        if ready.as_bool() == Some(true) {
            return Ok(relay);
        }
        relay.must_run(&dir.join("relay.log"))?;
        ensure!(
            begin.elapsed() < LIMIT,
            "The relay does not read the primary's tables; its messages are in {}",
            dir.join("relay.log").display()
        );
        stop.check()?;
        thread::sleep(Duration::from_millis(50));
    }
}

/// Checksums of all tables.
pub fn checksums(server: &Standalone) -> anyhow::Result<Checksums> {
    let mut conn = server.connect(QUESTION)?;
    let tables: Vec<String> = TABLES.iter().map(|t| format!("{DB}.{t}")).collect();
    let sql = format!("CHECKSUM TABLE {}", tables.join(", "));
    let rows: Vec<(String, Option<u64>)> = server.rows(&mut conn, &sql)?;
    Ok(rows.into_iter().collect())
}

/// Transactions up to a position of one domain: its log began with the first one.
pub fn count_of(position: &str) -> Option<u64> {
    match position.rsplit_once('-') {
        Some((_, seqno)) if !position.contains(',') => seqno.parse().ok(),
        None if position.is_empty() => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_of_one_domain_counts_transactions() {
        assert_eq!(count_of(""), Some(0));
        assert_eq!(count_of("0-1-60000"), Some(60_000));
        assert_eq!(count_of("0-1-5,1-1-7"), None);
        assert_eq!(count_of("nothing"), None);
    }

    #[test]
    fn hints_are_told_if_there_are_any() {
        let status = serde_json::json!({"groups": 9, "joined_groups": 7, "barriers": 1});
        let told = hints(&status).expect("hints");
        assert!(
            told.contains("7 of 9") && told.contains("1 are barriers"),
            "{told}"
        );
        assert_eq!(hints(&Value::Null), None);
    }

    #[test]
    fn a_pool_holds_the_table() {
        assert_eq!(pool_for(1000), 128 << 20);
        assert!(pool_for(1_000_000) > 400 * 1_000_000);
    }
}
