//! Asynchronous replication through a node: from a server without a cluster, by a
//! node, to another server without one. The node in between is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::mysql::Row;
use dromon_sandbox::{Cluster, Node, Start, StopReport};

use super::relay::plain::{Load, PASSWORD, Server, TABLES, USER};
use super::relay::same;
use crate::check;
use crate::facts;
use crate::harness::{Case, JOIN_LIMIT};
use crate::ledger::{self, Told};
use crate::load::{RETRY, Session, code};

/// How long replicas may take to have everything.
const LIMIT: Duration = Duration::from_secs(90);
/// Clients of the primary.
const CLIENTS: u32 = 1;
/// How long a node may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Which domain the cluster's own GTIDs have with `wsrep_gtid_mode`.
const DOMAIN: u32 = 9;
/// Written to by a client of the cluster.
const OWN: &str = "rt.own";

/// What a node that was killed may find already there, brought by the cluster: a row,
/// or none where one should be.
const THERE_ALREADY: [&str; 2] = ["Error_code: 1062", "Error_code: 1032"];

/// What a node says that was killed in the middle of a statement and takes a full copy.
const AMID_A_STATEMENT: &str = "knows better: taking a full copy from it";

/// Once with `wsrep_gtid_mode`, the node killed in every round. Once without it, the node
/// stopped in every round and killed at the end: the server keeps `mysql.gtid_slave_pos`
/// out of write sets, so that what the cluster brings back after a crash comes without
/// the position it belongs to.
pub fn through_a_node(case: &mut Case) -> anyhow::Result<()> {
    for mode in [true, false] {
        chain(case, mode).with_context(|| format!("wsrep_gtid_mode={}", on(mode)))?;
    }
    Ok(())
}

fn on(mode: bool) -> &'static str {
    if mode { "ON" } else { "OFF" }
}

fn chain(case: &mut Case, mode: bool) -> anyhow::Result<()> {
    case.retire_cluster()?;
    let dir = case.dir_beside(&format!("plain-{}", on(mode)))?;
    let cluster = case.own_cluster(|spec| {
        *spec = spec
            .clone()
            .set("log_bin", "bin")
            .set("log_slave_updates", "ON")
            .set("slave_net_timeout", "10")
            .set("master_retry_count", "0")
            // The primary's clients make tables without a primary key too.
            .set("wsrep_mode", "");
        if mode {
            *spec = spec
                .clone()
                .set("wsrep_gtid_mode", "ON")
                .set("wsrep_gtid_domain_id", &DOMAIN.to_string())
                .set("server_id", "100");
        }
    })?;
    start(&cluster, 0, Start::NewCluster, mode)?;
    for index in [1, 2] {
        start(&cluster, index, Start::Join, mode)?;
    }
    let primary = Server::new(&dir, "primary", 1, &[])?;
    // Not strict: after a crash the node may have its GTIDs in another order.
    let replica = Server::new(&dir, "replica", 50, &["--gtid-strict-mode=0"])?;

    let mut first = Session::open(cluster.node(0), "", 0)?;
    for sql in [
        format!("CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'"),
        format!("GRANT REPLICATION SLAVE ON *.* TO {USER}@'%'"),
        format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='{USER}', MASTER_PASSWORD='{PASSWORD}', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1",
            primary.port
        ),
        "START SLAVE".to_owned(),
    ] {
        first.exec(&sql).with_context(|| sql)?;
    }
    Load::prepare(&primary)?;
    primary.run(&[&format!("CREATE TABLE {OWN} (id BIGINT PRIMARY KEY)")])?;
    replica.follow(cluster.node(0).ports().sql)?;
    equal(&cluster, &primary, &replica, LIMIT).context("before any load")?;

    let load = Load::start(&primary, CLIENTS);
    let own = Own::start(&cluster);
    let time = (case.options.seconds / 4).clamp(Duration::from_secs(2), Duration::from_secs(4));
    let began = Instant::now();
    for round in 1..=case.options.rounds {
        thread::sleep(time);
        if mode {
            cluster.node(0).kill()?;
            // GTIDs are the same on every node.
            replica.follow(cluster.node(1).ports().sql)?;
        } else {
            let ended = cluster.node(0).stop(STOP_LIMIT)?;
            ensure!(matches!(ended, StopReport::Ended { .. }), "db1: {ended:?}");
        }
        thread::sleep(Duration::from_secs(1));
        start(&cluster, 0, Start::Join, mode)?;
        replicates(cluster.node(0)).with_context(|| format!("after end {round} of db1"))?;
        if mode {
            replica.follow(cluster.node(0).ports().sql)?;
        }
    }
    thread::sleep(time);
    let done = load.stop()?;
    let told = own.stop()?;
    // Node and replica apply one after the other what the clients wrote side by side.
    let took = equal(&cluster, &primary, &replica, LIMIT + began.elapsed() * 4)?;
    check::whole(&cluster)?;
    ledger::hold_ids(&cluster, "rt", OWN, &told)?;
    let written = told.acknowledged.len();
    case.progress(format!(
        "wsrep_gtid_mode={}: {done} transactions of the primary's clients, {written} of the cluster's; db1 between primary \
         and replica {} {} times; primary, three nodes and replica equal {:.1} s later",
        on(mode),
        if mode { "killed" } else { "stopped" },
        case.options.rounds,
        took.as_secs_f64()
    ));
    if !mode {
        let went = killed_without_the_mode(&cluster, &primary, time)?;
        ledger::hold_ids(&cluster, "rt", OWN, &told)?;
        case.progress(format!("wsrep_gtid_mode=OFF, db1 killed: {went}"));
    }
    drop((primary, replica));
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The node is killed where nobody can promise that it goes on following: it does, or it
/// stops and says that a row is there already. If it was killed in the middle of a
/// statement (DDL) it came back by a full copy, and its donor has no position to give:
/// then the operator says it. The cluster is whole and equal anyway.
fn killed_without_the_mode(
    cluster: &Cluster,
    primary: &Server,
    time: Duration,
) -> anyhow::Result<String> {
    let load = Load::start(primary, CLIENTS);
    thread::sleep(time);
    let mark = cluster.node(0).read_log()?.len();
    cluster.node(0).kill()?;
    thread::sleep(Duration::from_secs(1));
    start_with(cluster, 0, Start::Join, false, &["--skip-slave-start"])?;
    load.stop()?;
    let end: String = primary.one("SELECT @@gtid_binlog_pos")?;
    let mut node = Session::open(cluster.node(0), "", 0)?;
    let kept: Option<String> = node.one("SELECT @@gtid_slave_pos")?;
    if kept.is_none_or(|at| at.is_empty()) {
        let log = cluster.node(0).read_log()?;
        ensure!(
            log.get(mark..)
                .is_some_and(|l| l.contains(AMID_A_STATEMENT)),
            "db1 has lost its position, and was not amid a statement"
        );
        check::settled(cluster, "rt")?;
        check::whole(cluster)?;
        return Ok(
            "amid a statement: it came back by a full copy, without its position".to_owned(),
        );
    }
    node.exec("START SLAVE")?;
    let began = Instant::now();
    let went = loop {
        let mut node = Session::open(cluster.node(0), "", 0)?;
        let at: Option<String> = node.one("SELECT @@gtid_slave_pos")?;
        if at.as_ref() == Some(&end) {
            break "it follows to the end".to_owned();
        }
        let words = slave(cluster.node(0), "Last_SQL_Error")?;
        if !words.is_empty() {
            ensure!(THERE_ALREADY.iter().any(|w| words.contains(w)), "{words}");
            break format!("it stopped following and says why: {words}");
        }
        ensure!(
            began.elapsed() < LIMIT,
            "at {at:?} of {end} after {LIMIT:?}"
        );
        thread::sleep(Duration::from_millis(200));
    };
    Session::open(cluster.node(0), "", 0)?.exec("STOP SLAVE")?;
    check::settled(cluster, "rt")?;
    check::whole(cluster)?;
    Ok(went)
}

/// Starts a node with a GTID domain (and, without the mode, a server id) of its own.
fn start(cluster: &Cluster, index: usize, how: Start, mode: bool) -> anyhow::Result<()> {
    start_with(cluster, index, how, mode, &[])
}

fn start_with(
    cluster: &Cluster,
    index: usize,
    how: Start,
    mode: bool,
    more: &[&str],
) -> anyhow::Result<()> {
    let mut extra = vec![format!("--gtid-domain-id={}", 11 + index)];
    extra.extend(more.iter().map(|option| (*option).to_owned()));
    if !mode {
        extra.push(format!("--server-id={}", 101 + index));
    }
    cluster.node(index).start(how, &extra)?;
    cluster.node(index).wait_usable(JOIN_LIMIT)?;
    Ok(())
}

/// A field of the node's SHOW SLAVE STATUS.
fn slave(node: &Node, field: &str) -> anyhow::Result<String> {
    let row: Option<Row> = Session::open(node, "", 0)?.one("SHOW SLAVE STATUS")?;
    let row = row.with_context(|| format!("{} follows nobody", node.name()))?;
    let value: Option<Option<String>> = row.get(field);
    Ok(value
        .with_context(|| format!("no {field}"))?
        .unwrap_or_default())
}

/// Waits until the node follows the primary again by itself.
fn replicates(node: &Node) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let (io, sql) = (
            slave(node, "Slave_IO_Running")?,
            slave(node, "Slave_SQL_Running")?,
        );
        if io == "Yes" && sql == "Yes" {
            return Ok(());
        }
        let (io_error, sql_error) = (
            slave(node, "Last_IO_Error")?,
            slave(node, "Last_SQL_Error")?,
        );
        ensure!(
            sql_error.is_empty() && Instant::now() < end,
            "{} does not follow the primary: IO {io} {io_error:?}, SQL {sql} {sql_error:?}",
            node.name()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// Also what the load makes and drops is the same on all three: the first thing that is not.
fn defined_otherwise(
    node: &Node,
    primary: &Server,
    replica: &Server,
) -> anyhow::Result<Option<String>> {
    let wanted = same::definitions(primary, "rt")?;
    let mut session = Session::open(node, "", 0)?;
    let through = facts::definitions("rt", |sql| Ok(session.rows(sql)?))?;
    let last = same::definitions(replica, "rt")?;
    Ok(facts::first_difference(&wanted, &through).or(facts::first_difference(&wanted, &last)))
}

/// Waits until all three kinds of servers have the same tables and rows.
fn equal(
    cluster: &Cluster,
    primary: &Server,
    replica: &Server,
    limit: Duration,
) -> anyhow::Result<Duration> {
    let tables = format!("{TABLES}, {OWN}");
    let begin = Instant::now();
    loop {
        replicates(cluster.node(0))?;
        // The cluster's own rows are not on the primary.
        let wanted = primary.checksums(TABLES)?;
        let node = |index: usize| -> anyhow::Result<Vec<(String, Option<u64>)>> {
            Ok(Session::open(cluster.node(index), "", 0)?
                .rows(&format!("CHECKSUM TABLE {tables}"))?)
        };
        let nodes = (0..3).map(node).collect::<anyhow::Result<Vec<_>>>()?;
        let last = replica.checksums(&tables)?;
        // A table may go while it is looked at.
        let differs = defined_otherwise(cluster.node(0), primary, replica)
            .unwrap_or_else(|error| Some(format!("{error:#}")));
        let same = differs.is_none()
            && nodes[0].iter().all(|(_, sum)| sum.is_some())
            && nodes[0].starts_with(&wanted)
            && nodes.iter().all(|n| *n == last);
        if same {
            check::settled(cluster, "rt")?;
            return Ok(begin.elapsed());
        }
        let (io, sql) = (
            replica.status("Last_IO_Error")?,
            replica.status("Last_SQL_Error")?,
        );
        if begin.elapsed() > limit || !sql.is_empty() {
            bail!(
                "not equal after {:.0} s: primary {wanted:?}, nodes {nodes:?}, replica {last:?}, defined otherwise {differs:?}; the replica says {io:?} {sql:?}",
                begin.elapsed().as_secs_f64()
            );
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// A client of db2 that writes what the primary does not have.
struct Own {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<anyhow::Result<Told>>,
}

impl Own {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (node, ended) = (Arc::clone(cluster.node(1)), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut session = Session::open(&node, "", 0)?;
            let mut told = Told::default();
            for id in 1i64.. {
                if ended.load(Ordering::Acquire) {
                    break;
                }
                let answer = session.exec(&format!("INSERT INTO {OWN} VALUES ({id})"));
                told.note(id, &answer);
                match answer {
                    Ok(_) => {}
                    // While the others elect, or a conflict: the next one.
                    Err(e) if code(&e).is_some_and(|c| RETRY.contains(&c) || c == 1047) => {}
                    Err(e) => return Err(e).context("the cluster's client"),
                }
                thread::sleep(Duration::from_millis(5));
            }
            Ok(told)
        });
        Self { stop, thread }
    }

    fn stop(self) -> anyhow::Result<Told> {
        self.stop.store(true, Ordering::Release);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the cluster's client panicked"))?
    }
}
