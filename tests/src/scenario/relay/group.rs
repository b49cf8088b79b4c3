//! Hints on real replicas, and what the relay says over HTTP meanwhile.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{Conn, OptsBuilder};

use super::plain::{PASSWORD, Relay, Server, USER, connect, decoded, free_port};
use super::{equal_tables, place};
use crate::harness::Case;

const TABLES: &str = "g.parent, g.child, g.note, g.uniq, g.bare, g.acc, g.shape";
/// What clients may run into: a row that is there or not, a lock, a table that is changed.
const USUAL: &[u16] = &[1205, 1213, 1061, 1091, 1054, 1136, 1020];

/// Clients that write all kinds of things.
struct Work {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Work {
    fn prepare(server: &Server) -> anyhow::Result<()> {
        server.run(&[
            "CREATE DATABASE g",
            "CREATE TABLE g.parent (id INT PRIMARY KEY, code VARCHAR(20) NOT NULL UNIQUE, v INT)",
            "CREATE TABLE g.child (id INT AUTO_INCREMENT PRIMARY KEY, parent INT, u INT, UNIQUE (parent, u), FOREIGN KEY \
             (parent) REFERENCES g.parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE g.note (id INT AUTO_INCREMENT PRIMARY KEY, code VARCHAR(20), FOREIGN KEY (code) REFERENCES \
             g.parent (code) ON UPDATE CASCADE ON DELETE SET NULL)",
            "CREATE TABLE g.uniq (id INT PRIMARY KEY, a INT UNIQUE, b VARCHAR(30) UNIQUE)",
            "CREATE TABLE g.bare (a INT, b INT)",
            "CREATE TABLE g.acc (id INT PRIMARY KEY, n BIGINT)",
            "CREATE TABLE g.shape (id INT PRIMARY KEY, a INT, b INT)",
            "INSERT INTO g.parent SELECT seq, CONCAT('c', seq), 0 FROM g.seq_1_to_200",
            "INSERT INTO g.uniq SELECT seq, seq, CONCAT('b', seq) FROM g.seq_1_to_200",
            "INSERT INTO g.acc SELECT seq, 0 FROM g.seq_1_to_2000",
            "INSERT INTO g.shape SELECT seq, seq, seq FROM g.seq_1_to_50",
        ])
    }

    fn start(server: &Server, clients: u64) -> Work {
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let threads = (0..clients)
            .map(|client| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                let socket = server.socket();
                thread::spawn(move || {
                    let mut conn = connect(&socket, "g")?;
                    conn.query_drop("SET innodb_lock_wait_timeout = 2")?;
                    let mut dice = Dice(client * 7919 + 1);
                    while !stop.load(Ordering::Acquire) {
                        one(&mut conn, client, &mut dice)?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        Work {
            stop,
            done,
            threads,
        }
    }

    fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

/// Numbers by chance, the same in each run (xorshift; Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn try_it(conn: &mut Conn, statement: &str) -> anyhow::Result<bool> {
    match conn.query_drop(statement) {
        Ok(()) => Ok(true),
        // 23000: a key or a foreign key is in the way.
        Err(dromon_sandbox::mysql::Error::MySqlError(e))
            if e.state == "23000" || USUAL.contains(&e.code) =>
        {
            Ok(false)
        }
        Err(e) => Err(e).with_context(|| statement.to_owned()),
    }
}

/// A transaction.
fn one(conn: &mut Conn, client: u64, dice: &mut Dice) -> anyhow::Result<()> {
    let (p, q, n) = (dice.throw(200) + 1, dice.throw(200) + 1, dice.throw(1000));
    let statement = match dice.throw(40) {
        0 => format!("INSERT INTO parent VALUES ({p}, CONCAT('c', {q}), {n})"),
        1 => format!("DELETE FROM parent WHERE id = {p}"),
        2 => format!("UPDATE parent SET code = CONCAT('c', {q}) WHERE id = {p}"),
        3 => format!("UPDATE parent SET id = {q} WHERE id = {p}"),
        4 | 5 => format!("UPDATE parent SET v = v + 1 WHERE id = {p}"),
        6..=9 => format!("INSERT INTO child (parent, u) VALUES ({p}, {})", n % 5),
        10 => format!("DELETE FROM child WHERE parent = {p} AND u = {}", n % 5),
        11 => format!(
            "UPDATE child SET parent = {q} WHERE parent = {p} AND u = {}",
            n % 5
        ),
        12 | 13 => format!("INSERT INTO note (code) VALUES (CONCAT('c', {p}))"),
        14 => format!("DELETE FROM note WHERE code = CONCAT('C', {p}) LIMIT 3"),
        15 | 16 => format!("UPDATE uniq SET a = {} WHERE id = {q}", n % 250),
        17 => format!(
            "REPLACE INTO uniq VALUES ({p}, {q}, CONCAT('B', {}))",
            n % 250
        ),
        18 => format!("DELETE FROM uniq WHERE id = {p}"),
        19 => format!("INSERT IGNORE INTO uniq VALUES ({p}, {p}, CONCAT('b', {p}))"),
        20 => format!("INSERT INTO bare VALUES ({client}, {n})"),
        21 => format!("UPDATE bare SET b = b + 1 WHERE a = {client} LIMIT 2"),
        22 => format!("DELETE FROM bare WHERE a = {client} LIMIT 1"),
        23 => {
            try_it(conn, "BEGIN")?;
            let good = try_it(conn, &format!("UPDATE acc SET n = n - 1 WHERE id = {p}"))?
                && try_it(
                    conn,
                    &format!("INSERT INTO child (parent, u) VALUES ({q}, {})", n % 9),
                )?
                && try_it(
                    conn,
                    &format!("UPDATE acc SET n = n + 1 WHERE id = {}", q + 200),
                )?;
            if good { "COMMIT" } else { "ROLLBACK" }.to_owned()
        }
        24 if client == 0 && n < 60 => match n % 4 {
            0 => "ALTER TABLE shape ADD UNIQUE KEY ub (b)".to_owned(),
            1 => "ALTER TABLE shape DROP KEY ub".to_owned(),
            2 => "CREATE OR REPLACE TABLE other (id INT PRIMARY KEY)".to_owned(),
            _ => "ALTER TABLE shape ADD COLUMN IF NOT EXISTS c INT".to_owned(),
        },
        25 => format!("UPDATE shape SET b = {n} WHERE id = {}", p % 50 + 1),
        _ => format!(
            "UPDATE acc SET n = n + {n} WHERE id = {}",
            dice.throw(2000) + 1
        ),
    };
    try_it(conn, &statement)?;
    Ok(())
}

/// The relay's account, with SELECT and REFERENCES on all tables, is shown all foreign keys.
fn sees_foreign_keys(server: &Server) -> anyhow::Result<()> {
    let options = OptsBuilder::new()
        .ip_or_hostname(Some("127.0.0.1"))
        .tcp_port(server.port)
        .user(Some(USER))
        .pass(Some(PASSWORD))
        .prefer_socket(false);
    let mut conn = Conn::new(options)?;
    for (sql, expected) in [
        (
            "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS",
            2,
        ),
        (
            "SELECT COUNT(*) FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL",
            2,
        ),
        (
            "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'g' AND NON_UNIQUE = 0",
            11,
        ),
    ] {
        let found: Option<u64> = conn.query_first(sql)?;
        ensure!(found == Some(expected), "{sql}: {found:?}");
    }
    Ok(())
}

/// A page of the relay: its code and its body.
pub fn get(port: u16, target: &str) -> anyhow::Result<(u16, String)> {
    get_at("127.0.0.1", port, target)
}

/// The same of a relay elsewhere.
pub fn get_at(host: &str, port: u16, target: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect((host, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: relay\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    let code = head.split(' ').nth(1).context("no code")?.parse()?;
    Ok((code, body.to_owned()))
}

/// The value of one metric.
pub fn metric(port: u16, start: &str) -> anyhow::Result<f64> {
    let (_, text) = get(port, "/metrics")?;
    let line = text.lines().find(|l| l.starts_with(start));
    let line = line.with_context(|| format!("no {start} in {text}"))?;
    Ok(line.rsplit(' ').next().context("no value")?.parse()?)
}

/// Groups, and those with the commit id of the one before, in what a replica received.
fn received(server: &Server) -> anyhow::Result<(u64, u64)> {
    let mut files: Vec<PathBuf> = fs::read_dir(server.data())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| p.file_stem().is_some_and(|s| s == "got"))
        .filter(|p| {
            p.extension()
                .is_some_and(|e| e.to_string_lossy().parse::<u32>().is_ok())
        })
        .collect();
    files.sort();
    // Its files begin anew with each of the relay's.
    let text = decoded(&files, &["--skip-gtid-strict-mode"])?;
    let (mut groups, mut joined, mut last) = (0, 0, None);
    for line in text.lines().filter_map(|l| l.split_once("\tGTID ")) {
        let id = line.1.split(' ').find_map(|w| w.strip_prefix("cid="));
        groups += 1;
        joined += u64::from(id.is_some() && id == last.as_deref());
        last = id.map(str::to_owned);
    }
    Ok((groups, joined))
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &["--sync-binlog=0"])?;
    let conservative = [
        "--slave-parallel-mode=conservative",
        "--slave-parallel-threads=8",
        "--relay-log=got",
        "--relay-log-purge=0",
        "--report-host=parallel",
    ];
    let one = Server::new(&dir, "one", 2, &conservative)?;
    let two = Server::new(&dir, "two", 3, &conservative[..4])?;
    primary.run(&[
        "SET sql_log_bin = 0",
        &format!("GRANT SELECT, REFERENCES ON *.* TO {USER}@'%'"),
    ])?;
    Work::prepare(&primary)?;
    sees_foreign_keys(&primary)?;
    let http = free_port()?;
    let listen = format!("http=127.0.0.1:{http}");
    let more = [
        "file_size=2M",
        "policy=group",
        "policy=77:pass",
        listen.as_str(),
        &format!("watch_user={USER}"),
        &format!("watch_password={PASSWORD}"),
    ];
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &more)?;
    relay.start()?;
    one.follow(relay.port)?;
    let until = Instant::now() + Duration::from_secs(30);
    while metric(http, "dromon_relay_hints_catalog ")? == 0.0 {
        ensure!(
            Instant::now() < until,
            "the tables were not read: {}",
            get(http, "/status.json")?.1
        );
        thread::sleep(Duration::from_millis(50));
    }
    let (code, body) = get(http, "/replica/parallel?max_lag=30")?;
    ensure!(code == 200, "{body}");
    // It asks of its own accord, too, and the first time soon after the replica came.
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let (_, body) = get(http, "/status.json")?;
        if body.contains("\"applied_file\": \"relay-bin.") {
            break;
        }
        ensure!(Instant::now() < until, "the replica was not asked: {body}");
        thread::sleep(Duration::from_millis(50));
    }

    let work = Work::start(&primary, 6);
    let half = case.options.seconds / 2;
    thread::sleep(half);
    // What is known of batches outlives the relay.
    relay.kill()?;
    relay.start()?;
    thread::sleep(half);
    let done = work.stop()?;
    one.reaches(&primary)?;
    let (groups, joined) = (
        metric(http, "dromon_relay_hints_groups_total")?,
        metric(http, "dromon_relay_hints_joined_total")?,
    );
    let barriers = metric(http, "dromon_relay_hints_barriers_total")?;
    let catalogs = metric(http, "dromon_relay_hints_catalogs_total")?;
    case.note(format!(
        "{done} transactions; since the restart {groups} looked at: {joined} may run beside the one before, {barriers} \
         barriers, tables read {catalogs} times"
    ));
    // All of it from the files, with the hints beside them.
    two.follow(relay.port)?;
    let took = two.reaches(&primary)?;
    equal_tables(case, &primary, &[&one, &two], TABLES)?;
    for replica in [&one, &two] {
        let (groups, joined) = received(replica)?;
        case.note(format!(
            "{}: {joined} of {groups} groups had the commit id of the one before",
            replica.name
        ));
        ensure!(
            groups > 100 && joined * 5 > groups,
            "hardly anything was parallel"
        );
        for field in ["Last_SQL_Errno", "Last_IO_Errno"] {
            let errno = replica.status(field)?;
            ensure!(errno == "0", "{}: {field} {errno}", replica.name);
        }
    }
    case.note(format!(
        "two has all of it after {:.1} s",
        took.as_secs_f64()
    ));

    // Lag, as a load balancer asks for it.
    let good = |name: &str, lag: &str| get(http, &format!("/replica/{name}?max_lag={lag}"));
    let (code, body) = good("parallel", "5")?;
    ensure!(
        code == 200 && body.contains("\"applied_lag_ms\": 0"),
        "{code} {body}"
    );
    one.run(&["STOP SLAVE SQL_THREAD"])?;
    primary.run(&["INSERT INTO g.bare VALUES (-1, -1)"])?;
    thread::sleep(Duration::from_millis(1500));
    let (code, body) = good("2", "1")?;
    ensure!(code == 503, "it applies nothing, but: {body}");
    let (code, body) = good("3", "1")?;
    ensure!(code == 200, "{body}");
    one.run(&["START SLAVE SQL_THREAD"])?;
    one.reaches(&primary)?;
    // What a replica has just said counts for 0.2 s (docs/relay.md).
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        let (code, body) = good("2", "1")?;
        if code == 200 {
            break;
        }
        ensure!(Instant::now() < until, "{body}");
        thread::sleep(Duration::from_millis(50));
    }
    one.run(&["STOP SLAVE"])?;
    let until = Instant::now() + Duration::from_secs(10);
    while good("2", "1000")?.0 != 503 {
        ensure!(Instant::now() < until, "it is not connected, but good");
        thread::sleep(Duration::from_millis(100));
    }
    let (code, _) = good("nobody", "1")?;
    ensure!(code == 503);
    let (code, _) = get(http, "/else")?;
    ensure!(code == 404);
    let (code, body) = get(http, "/status.json")?;
    ensure!(
        code == 200 && body.contains("\"policy\": \"group\""),
        "{body}"
    );
    if !metric(http, "dromon_relay_storing")?.eq(&1.0) {
        bail!("it does not store");
    }
    case.note("/replica/NAME: 200, 503 when the SQL thread stands, 503 when it is away");
    Ok(())
}
