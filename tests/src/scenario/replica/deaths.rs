//! The replica killed again and again under load, and a target that is a node of a cluster.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::mysql::Conn;
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::{Cluster, JoinPlan, Start};

use super::{LIMIT, Replica, equal, grant};
use crate::check;
use crate::facts;
use crate::harness::{Case, JOIN_LIMIT};
use crate::load::Session;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::{Load, PASSWORD, Server, USER};
use crate::scenario::relay::process::nothing_panicked;
use crate::scenario::relay::same;

/// Kills under each setting.
const KILLS: u64 = 50;
/// How long a replica that was started may take to apply something.
const FIRST: Duration = Duration::from_secs(30);
const TABLES: &str = "dk.keyed, dk.keyless, dk.counter";
const CLIENTS: u32 = 3;

fn prepare(primary: &Server) -> anyhow::Result<()> {
    primary.run(&[
        "CREATE DATABASE dk",
        "CREATE TABLE dk.keyed (client INT, id INT, n INT, PRIMARY KEY (client, id))",
        "CREATE TABLE dk.keyless (client INT, id INT)",
        "CREATE TABLE dk.counter (id INT PRIMARY KEY, n BIGINT)",
        "INSERT INTO dk.counter SELECT seq, 0 FROM dk.seq_1_to_50",
    ])
}

/// Clients whose transactions leave a trace if they come twice: a second row, or a key that is there.
fn load(primary: &Server) -> anyhow::Result<Load> {
    let last: u64 = primary.one("SELECT COALESCE(MAX(id), 0) FROM dk.keyed")?;
    let one = move |conn: &mut Conn, client: u32, n: u64| {
        let id = last + n;
        conn.query_drop("BEGIN")?;
        conn.query_drop(format!("INSERT INTO keyed VALUES ({client}, {id}, 0)"))?;
        // One row that all take, so that nobody waits for two.
        let row = 1 + id % 50;
        conn.query_drop(format!("UPDATE counter SET n = n + 1 WHERE id = {row}"))?;
        if id.is_multiple_of(4) {
            conn.query_drop(format!("INSERT INTO keyless VALUES ({client}, {id})"))?;
        }
        conn.query_drop("COMMIT")?;
        if client == 0 && id % 300 == 7 {
            conn.query_drop(format!("CREATE TABLE d{id} (a INT PRIMARY KEY)"))?;
            conn.query_drop(format!("DROP TABLE d{id}"))?;
        }
        Ok(())
    };
    // A replica that is killed all the time must come along.
    let pause = Duration::from_millis(2);
    Ok(Load::of(primary, "dk", CLIENTS, pause, one))
}

/// Each insert once, and as many increments as transactions.
fn once(target: &Server, what: &str) -> anyhow::Result<()> {
    let (rows, keyless, pairs, sum): (u64, u64, u64, u64) = target.one(
        "SELECT (SELECT COUNT(*) FROM dk.keyed), (SELECT COUNT(*) FROM dk.keyless), \
         (SELECT COUNT(DISTINCT client, id) FROM dk.keyless), (SELECT CAST(SUM(n) AS UNSIGNED) FROM dk.counter)",
    )?;
    let wanted: u64 = target.one("SELECT COUNT(*) FROM dk.keyed WHERE id % 4 = 0")?;
    ensure!(
        sum == rows && keyless == wanted && pairs == wanted,
        "{what}: {rows} transactions, {sum} increments; {keyless} rows without a key, {pairs} different, of {wanted}"
    );
    Ok(())
}

/// Starts and kills the replica under load, each time after it has applied something.
fn kills(
    replica: &mut Replica,
    position: impl Fn() -> anyhow::Result<String>,
    kills: u64,
) -> anyhow::Result<()> {
    for n in 0..kills {
        let before = position()?;
        replica.start(&[])?;
        let until = Instant::now() + FIRST;
        while position()? == before {
            ensure!(
                Instant::now() < until,
                "start {n}: nothing was applied beyond {before} for {FIRST:?}: {}",
                replica.log.display()
            );
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(n * 83 % 250));
        replica.kill()?;
    }
    Ok(())
}

/// [`KILLS`] under each setting.
pub fn alone(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    grant(&target)?;
    prepare(&primary)?;
    let ways = [
        &[][..],
        &["merge=1", "commit_order=group", "threads=8"],
        &["mode=optimistic", "merge=1", "threads=8"],
    ];
    for way in ways {
        let mut replica = Replica::new(&dir, primary.port, target.port, way)?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        let clients = load(&primary)?;
        // Where commits go side by side it is written now and then only.
        let position = || -> anyhow::Result<String> {
            target.one("SELECT CAST(SUM(n) AS CHAR) FROM dk.counter")
        };
        let killed = kills(&mut replica, position, KILLS);
        let done = clients.stop()?;
        killed?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        let what = if way.is_empty() {
            "as it is set".to_owned()
        } else {
            way.join(" ")
        };
        equal(&primary, &target, TABLES, &what)?;
        once(&target, &what)?;
        case.progress(format!(
            "{what}: {done} transactions, the replica killed {KILLS} times under load: each once, checksums equal"
        ));
    }
    Ok(())
}

/// The target is a node, without a binlog and with one; the replica and the node are killed in turn.
pub fn cluster(case: &mut Case) -> anyhow::Result<()> {
    for logs in [false, true] {
        let what = if logs {
            "with a binlog"
        } else {
            "without a binlog"
        };
        into_a_node(case, logs).context(what)?;
    }
    Ok(())
}

fn into_a_node(case: &mut Case, logs: bool) -> anyhow::Result<()> {
    case.retire_cluster()?;
    let dir = case.dir_beside("plain")?;
    let cluster = case.own_cluster(|spec| {
        // The primary's clients write to a table without a key, too.
        *spec = spec.clone().set("wsrep_mode", "");
        if logs {
            *spec = spec
                .clone()
                .set("log_bin", "bin")
                .set("log_slave_updates", "ON");
        }
    })?;
    cluster.start_all(JoinPlan::Together, JOIN_LIMIT)?;
    // The nodes have number 1.
    let primary = Server::new(&dir, "primary", 41, &[])?;
    prepare(&primary)?;
    for sql in [
        format!("CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'"),
        format!("GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION"),
    ] {
        Session::open(cluster.node(0), "", 0)?.exec(&sql)?;
    }
    check::drained(&cluster)?;
    let mut replica = Replica::new(&dir, primary.port, cluster.node(0).ports().sql, &[])?;
    ensure!(
        !replica.finish(&["binlog=off"])?,
        "it kept from the other nodes what it applies"
    );
    let said = replica.said()?;
    ensure!(said.contains("the other nodes would get nothing"), "{said}");
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    let clients = load(&primary)?;
    let rounds = case.options.rounds;
    let done = (|| -> anyhow::Result<()> {
        for _ in 0..rounds {
            kills(&mut replica, || position(&cluster, 1), 5)?;
            replica.start(&[])?;
            thread::sleep(Duration::from_secs(1));
            // It goes on by itself when the node is back.
            cluster.node(0).kill()?;
            thread::sleep(Duration::from_secs(1));
            cluster.node(0).start(Start::Join, &[])?;
            cluster.node(0).wait_usable(JOIN_LIMIT)?;
            let before = position(&cluster, 1)?;
            let until = Instant::now() + LIMIT;
            while position(&cluster, 1)? == before {
                ensure!(
                    Instant::now() < until,
                    "it did not go on: {}",
                    replica.log.display()
                );
                thread::sleep(Duration::from_millis(100));
            }
            replica.kill()?;
        }
        Ok(())
    })();
    let count = clients.stop()?;
    done?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    check::settled(&cluster, "dk")?;
    check::settled(&cluster, "dromon_replica")?;
    check::whole(&cluster)?;
    let wanted = (
        same::definitions(&primary, "dk")?,
        primary.checksums(TABLES)?,
    );
    for node in cluster.nodes() {
        let (mut session, name) = (Session::open(node, "", 0)?, node.name());
        let have = facts::definitions("dk", |sql| Ok(session.rows(sql)?))?;
        same::compare(&wanted.0, &have, "dk", &name)?;
        let have: Vec<(String, Option<u64>)> = session.rows(&format!("CHECKSUM TABLE {TABLES}"))?;
        same::sums_are_equal(&wanted.1, &have, &name)?;
    }
    case.progress(format!(
        "{} a binlog: {count} transactions into a node; the replica killed {} times, the node {rounds} times: all nodes have \
         the primary's checksums",
        if logs { "with" } else { "without" },
        rounds * 6
    ));
    drop((replica, primary));
    nothing_panicked(&dir)?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// How far a node has it.
fn position(cluster: &Cluster, index: usize) -> anyhow::Result<String> {
    let mut session = Session::open(cluster.node(index), "", 0)?;
    let at: Option<String> = session.one("SELECT CAST(SUM(n) AS CHAR) FROM dk.counter")?;
    Ok(at.unwrap_or_default())
}
