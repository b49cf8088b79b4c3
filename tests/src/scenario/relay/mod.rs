//! A primary, `dromon relay` and replicas, all of them unmodified servers without a cluster.
//! Run by name.

mod crowd;
mod full;
mod garbage;
pub mod group;
mod mysql;
mod mysql_gtid;
pub mod plain;
mod power;
pub mod process;
pub mod same;
pub mod secure;
mod wan;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::mysql::Row;
use dromon_sandbox::mysql::prelude::Queryable;

use crate::harness::{Case, Run, Scenario, Servers};
use plain::{Load, PASSWORD, Relay, Server, TABLES, gtids_of};

/// Those that need a network of their own.
pub const NETS: &[&str] = &["relay_link", "relay_breaks"];

/// Who may have replicas forgotten.
const OPERATOR: &str = "ops";

/// Those that need a disk of their own.
const DISKS: &[&str] = &["relay_power", "relay_full"];

/// The scenarios.
pub fn all() -> Vec<Scenario> {
    let table: Vec<(&str, &str, Run)> = vec![
        (
            "relay_kills",
            "a relay killed and started again under load; a replica moves primary, relay, primary: checksums equal",
            kills,
        ),
        (
            "relay_semi_sync",
            "commits wait for the relay's disk: acknowledged is stored, also when both sides are killed",
            semi_sync,
        ),
        (
            "relay_answers",
            "what a relay answers and refuses, positions by file, a relay behind a relay, a primary killed",
            answers,
        ),
        (
            "relay_group",
            "hints: clients with unique and foreign keys, DDL, tables without keys; conservative replicas run batches without an error",
            group::run,
        ),
        (
            "relay_tls",
            "TLS to the primary and to replicas; neither takes a stranger's certificate or a connection in the clear",
            secure::run,
        ),
        (
            "relay_crowd",
            "five replicas of a relay under sysbench; relay, replicas and the primary's connections killed, replicas moved",
            crowd::run,
        ),
        (
            "relay_power",
            "semi-sync, the relay killed 52 times, its disk without power 13 times: what was acknowledged is there, once",
            power::run,
        ),
        (
            "relay_full",
            "the relay's disk full under load: what is stored is served, and it goes on by itself when there is room; checksums equal",
            full::run,
        ),
        (
            "relay_mysql",
            "MySQL 5.6 without GTIDs: files mirrored byte for byte, replicas moved by file and byte, the relay killed",
            mysql::run,
        ),
        (
            "relay_mysql_gtid",
            "MySQL 5.6 with GTIDs: replicas by MASTER_AUTO_POSITION moved, relays killed, another primary; each GTID once",
            mysql_gtid::run,
        ),
        (
            "relay_garbage",
            "garbage from a primary (to relay and replica) and from replicas: nothing dies or grows, in the end all are equal",
            garbage::run,
        ),
        (
            "relay_link",
            "80 ms, 2 % loss, 100 Mbit/s: relay to relay at least 20 times what a replica gets over cubic",
            wan::throughput,
        ),
        (
            "relay_breaks",
            "the same link broken 100 times under load: nothing lost, nothing doubled, no hand needed",
            wan::breaks,
        ),
    ];
    table
        .into_iter()
        .map(|(name, shows, run)| Scenario {
            name,
            shows,
            servers: Servers::Own,
            run,
            round: match NETS.contains(&name) || DISKS.contains(&name) {
                true => Duration::from_secs(300),
                false => Duration::ZERO,
            },
            timed: false,
        })
        .collect()
}

/// The scenario's own directory.
pub fn place(case: &Case) -> anyhow::Result<PathBuf> {
    let dir = case.dir();
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Everybody has the same tables and rows.
fn equal_tables(
    case: &mut Case,
    primary: &Server,
    replicas: &[&Server],
    tables: &str,
) -> anyhow::Result<()> {
    for replica in replicas {
        let took = replica.reaches(primary)?;
        same::all(primary, replica, tables, replica.name)?;
        case.note(format!(
            "{} has all after {:.1} s; checksums equal",
            replica.name,
            took.as_secs_f64()
        ));
    }
    Ok(())
}

/// Everybody has the same rows, and the relay's files the same groups as the primary's.
fn equal(
    case: &mut Case,
    primary: &Server,
    replicas: &[&Server],
    relay: &Relay,
) -> anyhow::Result<()> {
    equal_tables(case, primary, replicas, TABLES)?;
    let (theirs, ours) = (gtids_of(primary)?, relay.gtids()?);
    ensure!(!theirs.is_empty(), "no GTIDs in the primary's files");
    let first = theirs.iter().zip(&ours).position(|(a, b)| a != b);
    ensure!(
        theirs == ours,
        "the primary has {} groups, the relay {}; the first difference is at {first:?}",
        theirs.len(),
        ours.len()
    );
    case.note(format!(
        "{} groups in the relay's files, as in the primary's, in their order",
        ours.len()
    ));
    Ok(())
}

fn kills(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let one = Server::new(&dir, "one", 2, &[])?;
    let two = Server::new(&dir, "two", 3, &[])?;
    Load::prepare(&primary)?;
    let mut relay = Relay::new(
        &dir,
        "relay",
        9,
        primary.port,
        &["file_size=2M", "memory=1M"],
    )?;
    relay.start()?;
    one.follow(relay.port)?;
    two.follow(primary.port)?;
    let load = Load::start(&primary, 3);
    let seconds = case.options.seconds;
    let begin = Instant::now();
    let mut killed = 0;
    let mut moves = 0;
    // On a slow machine, too, one moves to the relay and back.
    while begin.elapsed() < seconds || moves < 2 {
        thread::sleep(Duration::from_millis(300 + killed * 137 % 900));
        relay.kill()?;
        killed += 1;
        thread::sleep(Duration::from_millis(killed * 71 % 400));
        relay.start()?;
        if killed % 2 == 0 {
            moves += 1;
            two.follow(if moves % 2 == 1 {
                relay.port
            } else {
                primary.port
            })?;
        }
    }
    let done = load.stop()?;
    case.note(format!(
        "{done} transactions; the relay was killed {killed} times; two moved {moves} times"
    ));
    // At last through the relay, whoever it followed.
    two.follow(relay.port)?;
    equal(case, &primary, &[&one, &two], &relay)?;
    // And back.
    two.follow(primary.port)?;
    primary.run(&["INSERT INTO rt.t (client, v) VALUES (99, 99)"])?;
    equal(case, &primary, &[&one, &two], &relay)?;
    case.note(format!("{} files", relay.files()?.len()));
    Ok(())
}

fn semi_sync(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let mut primary = Server::new(
        &dir,
        "primary",
        1,
        &[
            "--rpl-semi-sync-master-timeout=600000",
            "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        ],
    )?;
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &["file_size=2M"])?;
    relay.start()?;
    // Semi-sync is off when the relay comes.
    primary.run(&["CREATE DATABASE early"])?;
    let has: String = primary.one("SELECT @@gtid_binlog_pos")?;
    let until = Instant::now() + Duration::from_secs(30);
    while relay.one::<String>("SELECT @@gtid_binlog_pos")? != has {
        ensure!(Instant::now() < until, "the relay gets nothing");
        thread::sleep(Duration::from_millis(50));
    }
    primary.run(&["SET GLOBAL rpl_semi_sync_master_enabled = 1"])?;
    let clients = || -> anyhow::Result<u64> {
        let row: (String, u64) = primary.one("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")?;
        Ok(row.1)
    };
    let until = Instant::now() + Duration::from_secs(30);
    while clients()? == 0 {
        ensure!(
            Instant::now() < until,
            "the relay does not take part in semi-sync"
        );
        thread::sleep(Duration::from_millis(50));
    }
    // Over the connection that was there before.
    for n in 0..10 {
        let began = Instant::now();
        primary.run(&[&format!("CREATE DATABASE later{n}")])?;
        let took = began.elapsed();
        ensure!(
            took < Duration::from_secs(1),
            "semi-sync was switched on, and a commit took {took:?}"
        );
    }
    // Not earlier: a commit waits (rpl_semi_sync_master_wait_no_slave) also if there is nobody who
    // could acknowledge it.
    Load::prepare(&primary)?;
    let load = Load::start(&primary, 3);
    thread::sleep(case.options.seconds.min(Duration::from_secs(5)));
    let before = load.done.load(Ordering::Relaxed);
    ensure!(before > 50, "only {before} transactions were acknowledged");
    // Without the relay nothing is acknowledged.
    relay.kill()?;
    thread::sleep(Duration::from_millis(300));
    let stands = load.done.load(Ordering::Relaxed);
    thread::sleep(Duration::from_secs(2));
    let now = load.done.load(Ordering::Relaxed);
    ensure!(
        now == stands,
        "{} transactions were acknowledged without the relay",
        now - stands
    );
    relay.start()?;
    let until = Instant::now() + Duration::from_secs(30);
    while load.done.load(Ordering::Relaxed) < stands + 50 {
        ensure!(
            Instant::now() < until,
            "commits did not go on with the relay"
        );
        thread::sleep(Duration::from_millis(50));
    }
    let yes: (String, u64) = primary.one("SHOW STATUS LIKE 'Rpl_semi_sync_master_yes_tx'")?;
    case.note(format!(
        "{before} transactions, none while the relay was away, then on; {} acknowledged by it",
        yes.1
    ));
    let done = load.stop()?;
    // The position is that of the last commit that was acknowledged, or of later ones.
    let acknowledged: String = primary.one("SELECT @@gtid_binlog_pos")?;
    relay.kill()?;
    primary.kill()?;
    relay.start()?;
    let stored: String = relay.one("SELECT @@gtid_binlog_pos")?;
    ensure!(
        stored == acknowledged,
        "acknowledged up to {acknowledged}, stored up to {stored}"
    );
    case.note(format!(
        "{done} transactions; both killed: the relay has all of them, up to {stored}"
    ));
    // A replica that never saw the primary gets them from the relay.
    let heir = Server::new(&dir, "heir", 4, &[])?;
    heir.follow(relay.port)?;
    primary.start()?;
    let took = heir.reaches(&primary)?;
    same::all(&primary, &heir, TABLES, "a new replica")?;
    case.note(format!(
        "a new replica of the relay has them after {:.1} s; checksums equal",
        took.as_secs_f64()
    ));
    Ok(())
}

fn answers(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let mut primary = Server::new(
        &dir,
        "primary",
        1,
        &["--log-bin-compress=1", "--binlog-checksum=NONE"],
    )?;
    Load::prepare(&primary)?;
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &["file_size=1M"])?;
    relay.start()?;
    let operated = ["file_size=3M", &format!("admin={OPERATOR}:{PASSWORD}")];
    let mut second = Relay::new(&dir, "second", 10, relay.port, &operated)?;
    second.start()?;
    let one = Server::new(&dir, "one", 2, &["--report-host=one"])?;
    let two = Server::new(&dir, "two", 3, &[])?;
    one.follow(second.port)?;
    // By file and byte, as if it knew no GTIDs.
    two.run(&[
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='repl', MASTER_PASSWORD='{PASSWORD}', \
             MASTER_LOG_FILE='relay-bin.000001', MASTER_LOG_POS=4, MASTER_USE_GTID=no, MASTER_CONNECT_RETRY=1",
            relay.port
        ),
        "START SLAVE",
    ])?;
    let load = Load::start(&primary, 2);
    thread::sleep(case.options.seconds.min(Duration::from_secs(5)));
    let done = load.stop()?;
    one.reaches(&primary)?;
    two.reaches(&primary)?;
    // The primary dies and comes back.
    primary.kill()?;
    thread::sleep(Duration::from_millis(500));
    primary.start()?;
    primary.run(&["INSERT INTO rt.t (client, v) VALUES (98, 98)"])?;
    equal(case, &primary, &[&one, &two], &relay)?;
    ensure!(
        second.gtids()? == relay.gtids()?,
        "the second relay differs from the first"
    );
    case.note(format!("{done} transactions without checksums and compressed, through one relay by file, through two by GTID"));

    let hosts: Vec<(u32, String, u16, u32)> =
        second.connect(PASSWORD)?.query("SHOW SLAVE HOSTS")?;
    ensure!(
        hosts == [(2, "one".to_owned(), one.port, 10)],
        "SHOW SLAVE HOSTS: {hosts:?}"
    );
    let logs: Vec<(String, u64)> = relay.connect(PASSWORD)?.query("SHOW BINARY LOGS")?;
    let (file, position, _, _): (String, u64, String, String) = relay.one("SHOW MASTER STATUS")?;
    ensure!(logs.last() == Some(&(file, position)), "{logs:?}");
    ensure!(logs.len() == relay.files()?.len(), "{logs:?}");
    let theirs: String = primary.one("SELECT @@gtid_binlog_pos")?;
    let ours: String = relay.one("SELECT @@gtid_binlog_pos")?;
    ensure!(theirs == ours, "{theirs} {ours}");
    // Whatever a server has as a replica, in its order, a relay has, too.
    let as_server: Row = one.one("SHOW SLAVE STATUS")?;
    let as_relay: Row = relay.one("SHOW SLAVE STATUS")?;
    let names = |row: &Row| -> Vec<String> {
        let columns = row.columns_ref().iter();
        columns.map(|c| c.name_str().into_owned()).collect()
    };
    ensure!(
        names(&as_relay) == names(&as_server),
        "SHOW SLAVE STATUS: {:?} instead of {:?}",
        names(&as_relay),
        names(&as_server)
    );
    let field = |name: &str| -> anyhow::Result<String> {
        let value: Option<Option<String>> = as_relay.get(name);
        Ok(value.flatten().unwrap_or_default())
    };
    for (name, wanted) in [
        ("Slave_IO_Running", "Yes"),
        ("Master_Port", &*primary.port.to_string()),
        ("Gtid_IO_Pos", &*ours),
        ("Last_IO_Error", ""),
    ] {
        ensure!(field(name)? == wanted, "{name}: {}", field(name)?);
    }
    let refused = relay
        .connect(PASSWORD)?
        .query_drop("INSERT INTO rt.t VALUES (1)")
        .expect_err("a relay writes nothing")
        .to_string();
    ensure!(
        refused.contains("1290") && refused.contains("read-only"),
        "{refused}"
    );
    let refused = relay
        .connect("wrong")
        .err()
        .context("a wrong password")?
        .to_string();
    ensure!(refused.contains("Access denied"), "{refused}");
    case.note("SHOW MASTER STATUS, BINARY LOGS, SLAVE HOSTS, @@gtid_binlog_pos as they are; writes and strangers refused");

    stops_where_told(case, &primary, &one)?;
    forgets(case, &primary, &mut second, &one)?;

    // A replica with a transaction of its own.
    two.run(&[
        "STOP SLAVE",
        "RESET SLAVE ALL",
        "SET SESSION server_id = 77",
        "CREATE DATABASE own",
    ])?;
    let ahead: String = two.one("SELECT @@gtid_binlog_pos")?;
    primary.run(&[
        "INSERT INTO rt.t (client, v) VALUES (97, 97)",
        "INSERT INTO rt.t (client, v) VALUES (96, 96)",
    ])?;
    one.reaches(&primary)?;
    two.run(&[&format!("SET GLOBAL gtid_slave_pos = '{ahead}'")])?;
    two.follow(relay.port)?;
    let until = Instant::now() + Duration::from_secs(30);
    while two.status("Last_IO_Errno")? != "1236" {
        ensure!(Instant::now() < until, "a forked replica was not refused");
        thread::sleep(Duration::from_millis(100));
    }
    let said = two.status("Last_IO_Error")?;
    ensure!(
        said.contains("has executed transactions of its own"),
        "{said}"
    );
    case.note(format!("a forked replica is told: {said}"));
    Ok(())
}

/// A row of SHOW KNOWN REPLICAS: server id, host, port, whether it is connected, since when not, and the
/// oldest file that it needs, and whether that is gone.
type KnownReplica = (u32, String, u16, String, String, String, String);

/// FORGET REPLICA: not while it is here; then for good, though the relay is killed. When it comes back it
/// is served.
fn forgets(
    case: &mut Case,
    primary: &Server,
    relay: &mut Relay,
    replica: &Server,
) -> anyhow::Result<()> {
    let known = |relay: &Relay| -> anyhow::Result<Vec<KnownReplica>> {
        Ok(relay.connect(PASSWORD)?.query("SHOW KNOWN REPLICAS")?)
    };
    let refused = |user: &str| -> anyhow::Result<String> {
        let mut conn = relay.connect_as(user, PASSWORD)?;
        let answer: Result<Vec<Row>, _> = conn.query("FORGET REPLICA 2");
        Ok(answer.err().context("it was forgotten")?.to_string())
    };
    let text = refused(OPERATOR)?;
    ensure!(text.contains("Replica 2 (one) is connected"), "{text}");
    replica.run(&["STOP SLAVE"])?;
    let until = Instant::now() + Duration::from_secs(30);
    while known(relay)?.iter().any(|k| k.0 == 2 && k.3 == "Yes") {
        ensure!(Instant::now() < until, "it counts as connected");
        thread::sleep(Duration::from_millis(50));
    }
    let text = refused(plain::USER)?;
    ensure!(text.contains("1227"), "{text}");
    let mut operator = relay.connect_as(OPERATOR, PASSWORD)?;
    let said: Option<(u32, String, String, String)> = operator.query_first("FORGET REPLICA 2")?;
    let said = said.context("no answer")?.3;
    drop(operator);
    relay.kill()?;
    relay.start()?;
    let left = known(relay)?;
    ensure!(left.iter().all(|k| k.0 != 2), "it is known again: {left:?}");
    replica.run(&["START SLAVE"])?;
    primary.run(&["INSERT INTO rt.t (client, v) VALUES (94, 1)"])?;
    replica.reaches(primary)?;
    let again = known(relay)?;
    ensure!(again.iter().any(|k| k.0 == 2 && k.3 == "Yes"), "{again:?}");
    case.note(format!("FORGET REPLICA, lasting over a kill: {said}"));
    Ok(())
}

/// START SLAVE UNTIL master_gtid_pos: amid what comes, and where it is already.
fn stops_where_told(case: &mut Case, primary: &Server, replica: &Server) -> anyhow::Result<()> {
    replica.run(&["STOP SLAVE"])?;
    primary.run(&["INSERT INTO rt.t (client, v) VALUES (95, 1)"])?;
    let stop: String = primary.one("SELECT @@gtid_binlog_pos")?;
    let load = Load::start(primary, 2);
    thread::sleep(Duration::from_secs(1));
    let more = load.stop()?;
    for _ in 0..2 {
        replica.run(&[&format!("START SLAVE UNTIL master_gtid_pos = '{stop}'")])?;
        let until = Instant::now() + Duration::from_secs(60);
        while replica.status("Slave_SQL_Running")? != "No"
            || replica.status("Slave_IO_Running")? != "No"
        {
            ensure!(
                Instant::now() < until,
                "it did not stop at {stop}: it has {}",
                replica.one::<String>("SELECT @@gtid_slave_pos")?
            );
            thread::sleep(Duration::from_millis(50));
        }
        let has: String = replica.one("SELECT @@gtid_slave_pos")?;
        ensure!(has == stop, "it stopped at {has}, not at {stop}");
        for field in ["Last_IO_Error", "Last_SQL_Error"] {
            let said = replica.status(field)?;
            ensure!(said.is_empty(), "{field}: {said}");
        }
    }
    replica.run(&["START SLAVE"])?;
    replica.reaches(primary)?;
    same::all(primary, replica, TABLES, "after it was stopped")?;
    case.note(format!(
        "a replica stopped where START SLAVE UNTIL said, twice, and had the other {more} transactions when it went on"
    ));
    Ok(())
}
