//! Servers without a cluster, a relay, and clients that write.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::mysql::prelude::{FromRow, Queryable};
use dromon_sandbox::mysql::{Conn, OptsBuilder, Row};

use super::process::Process;

/// Of replicas, on the primary and on the relay.
pub const USER: &str = "repl";
pub const PASSWORD: &str = "not so secret";
/// How long a server may take to start, and a replica to catch up.
const LIMIT: Duration = Duration::from_secs(90);

/// A program, also where root's tools lie.
pub fn program(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{path}:/usr/sbin:/usr/bin"))
        .stdin(Stdio::null());
    command
}

/// The same, within a network namespace.
pub fn program_in(net: Option<&Path>, name: &str) -> Command {
    match net {
        None => program(name),
        Some(net) => {
            let mut command = program("nsenter");
            command
                .arg(format!("--net={}", net.display()))
                .args(["--", name]);
            command
        }
    }
}

/// A free port; those of other tests are elsewhere.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..500 {
        let n = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id() % 40) * 10;
        let port = 34_100 + (n % 800) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from 34100 on")
}

/// A server of its own.
pub struct Server {
    pub name: &'static str,
    pub port: u16,
    dir: PathBuf,
    id: u32,
    more: Vec<String>,
    net: Option<PathBuf>,
    child: Option<Child>,
}

impl Server {
    /// Makes a data directory and starts a server on it.
    pub fn new(base: &Path, name: &'static str, id: u32, more: &[&str]) -> anyhow::Result<Server> {
        Server::within(None, base, name, id, more)
    }

    /// The same, within a network namespace.
    pub fn within(
        net: Option<&Path>,
        base: &Path,
        name: &'static str,
        id: u32,
        more: &[&str],
    ) -> anyhow::Result<Server> {
        let dir = base.join(name);
        // In a common one each server that starts removes the temporary tables of all.
        let temporary = dir.join("tmp");
        fs::create_dir_all(&temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777))?;
        let out = program("mariadb-install-db")
            .env("TMPDIR", &temporary)
            .args(["--no-defaults", "--user=mysql", "--skip-test-db"])
            .arg("--auth-root-authentication-method=normal")
            .arg(format!("--datadir={}", dir.join("data").display()))
            .output()
            .context("running mariadb-install-db")?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        ensure!(out.status.success(), "mariadb-install-db: {text}");
        let mut server = Server {
            name,
            port: free_port()?,
            dir,
            id,
            more: more.iter().map(|m| (*m).to_owned()).collect(),
            net: net.map(Path::to_owned),
            child: None,
        };
        server.start()?;
        // Not for the binlog: every server makes its own.
        server.run(&[
            "SET sql_log_bin = 0",
            &format!("CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'"),
            &format!("GRANT REPLICATION SLAVE ON *.* TO {USER}@'%'"),
        ])?;
        Ok(server)
    }

    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn socket(&self) -> PathBuf {
        self.data().join("s")
    }

    pub fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("server.log"))?;
        let child = program_in(self.net.as_deref(), "mariadbd")
            .args([
                "--no-defaults",
                "--user=mysql",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
            ])
            .arg(format!("--datadir={}", self.data().display()))
            .arg(format!("--tmpdir={}", self.dir.join("tmp").display()))
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--port={}", self.port))
            .arg(format!("--server-id={}", self.id))
            .args([
                "--log-bin=bin",
                "--binlog-format=ROW",
                "--log-slave-updates",
                "--gtid-strict-mode=1",
            ])
            .args([
                "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=16M",
                "--slave-net-timeout=10",
            ])
            .arg("--performance-schema=0")
            .args(&self.more)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("running mariadbd")?;
        self.child = Some(child);
        let until = Instant::now() + LIMIT;
        while self.connect("").is_err() {
            ensure!(
                Instant::now() < until,
                "{} did not start: {}",
                self.name,
                self.dir.display()
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub fn connect(&self, db: &str) -> anyhow::Result<Conn> {
        connect(&self.socket(), db)
    }

    pub fn run(&self, statements: &[&str]) -> anyhow::Result<()> {
        let mut conn = self.connect("")?;
        for statement in statements {
            conn.query_drop(statement)
                .with_context(|| format!("{}: {statement}", self.name))?;
        }
        Ok(())
    }

    pub fn one<T: FromRow>(&self, sql: &str) -> anyhow::Result<T> {
        let value = self.connect("")?.query_first(sql)?;
        value.with_context(|| format!("{sql} gave nothing on {}", self.name))
    }

    /// Lets it follow whoever listens at this port.
    pub fn follow(&self, port: u16) -> anyhow::Result<()> {
        self.follow_at("127.0.0.1", port)
    }

    /// Lets it follow whoever listens there.
    pub fn follow_at(&self, host: &str, port: u16) -> anyhow::Result<()> {
        let change = format!(
            "CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='{USER}', \
             MASTER_PASSWORD='{PASSWORD}', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, \
             MASTER_HEARTBEAT_PERIOD=1"
        );
        match self.run(&["STOP SLAVE", &change, "START SLAVE"]) {
            // Killed amid an earlier one, it has files that name a relay log which is gone. Its position is in a table.
            Err(e) if format!("{e:#}").contains("ERROR 1201 ") => {
                self.run(&["RESET SLAVE", &change, "START SLAVE"])
            }
            other => other,
        }
    }

    /// A field of SHOW SLAVE STATUS.
    pub fn status(&self, field: &str) -> anyhow::Result<String> {
        let row: Row = self.one("SHOW SLAVE STATUS")?;
        let value: Option<Option<String>> = row.get(field);
        Ok(value
            .with_context(|| format!("no {field}"))?
            .unwrap_or_default())
    }

    /// Waits until it has everything that the other one has.
    pub fn reaches(&self, other: &Server) -> anyhow::Result<Duration> {
        let wanted: String = other.one("SELECT @@gtid_binlog_pos")?;
        let begin = Instant::now();
        let (mut last, mut since) = (String::new(), Instant::now());
        loop {
            let have: String = self.one("SELECT @@gtid_slave_pos")?;
            if have == wanted {
                return Ok(begin.elapsed());
            }
            // On a busy machine it may take long, if only it goes on.
            if have != last {
                (last, since) = (have.clone(), Instant::now());
            }
            if since.elapsed() > LIMIT {
                let (io, sql) = (
                    self.status("Last_IO_Error")?,
                    self.status("Last_SQL_Error")?,
                );
                bail!(
                    "{} is at {have}, not at {wanted}. IO: {io} SQL: {sql}",
                    self.name
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn checksums(&self, tables: &str) -> anyhow::Result<Vec<(String, Option<u64>)>> {
        let mut conn = self.connect("")?;
        Ok(conn.query(format!("CHECKSUM TABLE {tables}"))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test's data: nothing of it is needed any more.
        let _ = self.kill();
    }
}

pub fn connect(socket: &Path, db: &str) -> anyhow::Result<Conn> {
    let limit = Some(Duration::from_secs(60));
    let options = OptsBuilder::new()
        .socket(Some(socket.to_string_lossy()))
        .user(Some("root"))
        .db_name(Some(db).filter(|db| !db.is_empty()))
        .read_timeout(limit)
        .write_timeout(limit)
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 30));
    Ok(Conn::new(options)?)
}

/// A relay.
pub struct Relay {
    pub port: u16,
    /// Where it is reached from here.
    pub host: String,
    /// Its network namespace.
    pub net: Option<PathBuf>,
    pub dir: PathBuf,
    program: PathBuf,
    settings: Vec<String>,
    process: Process,
}

impl Relay {
    /// Prepares one that follows whoever listens at a port. Does not start it.
    pub fn new(
        base: &Path,
        name: &str,
        id: u32,
        primary: u16,
        more: &[&str],
    ) -> anyhow::Result<Relay> {
        let here = std::env::current_exe().context("finding this program")?;
        let program = here.with_file_name("dromon");
        ensure!(
            program.is_file(),
            "there is no {}: build it with cargo build --release -p dromon-cli",
            program.display()
        );
        let port = free_port()?;
        let dir = base.join(name);
        let mut settings = vec![
            format!("primary=127.0.0.1:{primary}"),
            format!("user={USER}"),
            format!("password={PASSWORD}"),
            format!("account={USER}:{PASSWORD}"),
            format!("server_id={id}"),
            format!("dir={}", dir.display()),
            format!("listen=127.0.0.1:{port}"),
            format!("log={}", base.join(format!("{name}.log")).display()),
        ];
        settings.extend(more.iter().map(|m| (*m).to_owned()));
        Ok(Relay {
            port,
            host: "127.0.0.1".into(),
            net: None,
            dir,
            program,
            settings,
            process: Process::new("relay", base, name),
        })
    }

    /// Its process.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.process.pid()
    }

    /// From its next start on.
    pub fn set(&mut self, setting: &str) {
        self.settings.push(setting.to_owned());
    }

    /// Without looking whether it lets anybody in.
    pub fn start_unseen(&mut self) -> anyhow::Result<()> {
        let mut command = program_in(self.net.as_deref(), &self.program.to_string_lossy());
        command.arg("relay");
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        self.process.start(command)
    }

    /// Starts it with one more setting, this time.
    pub fn start_with(&mut self, setting: &str) -> anyhow::Result<()> {
        self.settings.push(setting.to_owned());
        let started = self.start();
        self.settings.pop();
        started
    }

    /// Stops it in its tracks (SIGSTOP), and waits until it stands.
    pub fn hold(&self) -> anyhow::Result<()> {
        let pid = self.pid()?;
        let sent = program("kill").args(["-STOP", &pid.to_string()]).status()?;
        ensure!(sent.success(), "kill -STOP {pid}: {sent}");
        let until = Instant::now() + Duration::from_secs(5);
        let stands = || -> anyhow::Result<bool> {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
            for task in tasks {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                let state = stat.rsplit(") ").next().unwrap_or_default();
                if !state.starts_with('T') {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        while !stands()? {
            ensure!(Instant::now() < until, "the relay did not stop");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub fn start(&mut self) -> anyhow::Result<()> {
        self.start_unseen()?;
        let until = Instant::now() + LIMIT;
        while self.connect(PASSWORD).is_err() {
            ensure!(
                Instant::now() < until,
                "the relay did not start: {}",
                self.dir.display()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// `kill -9`; no relay ends by itself.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()
    }

    pub fn connect(&self, password: &str) -> anyhow::Result<Conn> {
        self.connect_as(USER, password)
    }

    pub fn connect_as(&self, user: &str, password: &str) -> anyhow::Result<Conn> {
        let limit = Some(Duration::from_secs(60));
        let options = OptsBuilder::new()
            .ip_or_hostname(Some(&self.host))
            .tcp_port(self.port)
            .user(Some(user))
            .pass(Some(password))
            .read_timeout(limit)
            .write_timeout(limit)
            .prefer_socket(false)
            .max_allowed_packet(Some(1 << 30));
        Ok(Conn::new(options)?)
    }

    pub fn one<T: FromRow>(&self, sql: &str) -> anyhow::Result<T> {
        let value = self.connect(PASSWORD)?.query_first(sql)?;
        value.with_context(|| format!("{sql} gave nothing"))
    }

    /// Its files, oldest first.
    pub fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = fs::read_dir(&self.dir)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_stem().is_some_and(|stem| stem == "relay-bin"))
            .collect();
        files.sort();
        Ok(files)
    }

    /// See [`gtids_of_files`].
    pub fn gtids(&self) -> anyhow::Result<Vec<String>> {
        gtids_of_files(&self.files()?)
    }
}

/// `mariadb-binlog` reads these files through and finds their checksums good. Gives the GTIDs, also one that
/// comes twice or too early: that is for the caller to say.
pub fn gtids_of_files(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    // It wants to be told where the first file begins, if that is not at nothing.
    let text = decoded(
        files,
        &["--skip-gtid-strict-mode", "--verify-binlog-checksum"],
    )?;
    Ok(gtids_in(&text))
}

/// What `mariadb-binlog` says of these files with some options more.
pub fn decoded(files: &[PathBuf], options: &[&str]) -> anyhow::Result<String> {
    let out = program("mariadb-binlog")
        .arg("--no-defaults")
        .args(options)
        .arg("--base64-output=DECODE-ROWS")
        .args(files)
        .output()
        .context("running mariadb-binlog")?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(
        out.status.success() && !said.contains("ERROR"),
        "mariadb-binlog: {said}"
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The GTIDs in what `mariadb-binlog` prints.
pub fn gtids_in(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter_map(|l| l.split_once("\tGTID ")?.1.split(' ').next());
    lines.map(str::to_owned).collect()
}

/// The GTIDs in a server's own files.
pub fn gtids_of(server: &Server) -> anyhow::Result<Vec<String>> {
    let mut files: Vec<PathBuf> = fs::read_dir(server.data())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_stem().is_some_and(|s| s == "bin")
                && path.extension().is_some_and(|e| e != "index")
        })
        .filter(|path| path.extension().is_some_and(|e| e != "state"))
        .collect();
    files.sort();
    let out = program("mariadb-binlog")
        .args(["--no-defaults", "--base64-output=DECODE-ROWS"])
        .args(files)
        .output()
        .context("running mariadb-binlog")?;
    ensure!(
        out.status.success(),
        "mariadb-binlog on the primary's files failed"
    );
    Ok(gtids_in(&String::from_utf8_lossy(&out.stdout)))
}

/// Clients that write to a server until told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// Transactions acknowledged.
    pub done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// The tables that the clients write to.
pub const TABLES: &str = "rt.t, rt.u";

impl Load {
    /// Makes the tables.
    pub fn prepare(server: &Server) -> anyhow::Result<()> {
        server.run(&[
            "CREATE DATABASE rt",
            "CREATE TABLE rt.t (id INT AUTO_INCREMENT PRIMARY KEY, client INT, v INT, s VARCHAR(200), KEY (v))",
            "CREATE TABLE rt.u (id INT PRIMARY KEY, n BIGINT)",
            "INSERT INTO rt.u SELECT seq, 0 FROM rt.seq_1_to_100",
        ])
    }

    pub fn start(server: &Server, clients: u32) -> Load {
        Load::paced(server, clients, Duration::ZERO)
    }

    /// The same, with a pause after each transaction.
    pub fn paced(server: &Server, clients: u32, pause: Duration) -> Load {
        Load::of(server, "rt", clients, pause, one)
    }

    /// Clients of a database whose transactions are these: of a client, and how many it has begun.
    pub fn of(
        server: &Server,
        db: &'static str,
        clients: u32,
        pause: Duration,
        one: impl Fn(&mut Conn, u32, u64) -> anyhow::Result<()> + Copy + Send + 'static,
    ) -> Load {
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let threads = (0..clients)
            .map(|client| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                let socket = server.socket();
                thread::spawn(move || {
                    let mut conn = connect(&socket, db)?;
                    let mut n = u64::from(client);
                    while !stop.load(Ordering::Acquire) {
                        n += 1;
                        match one(&mut conn, client, n) {
                            // Clients may meet, on a slow machine more so: the server has rolled back.
                            Err(e) if is_deadlock(&e) => continue,
                            other => other?,
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(pause);
                    }
                    Ok(())
                })
            })
            .collect();
        Load {
            stop,
            done,
            threads,
        }
    }

    pub fn stop(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

fn is_deadlock(error: &anyhow::Error) -> bool {
    use dromon_sandbox::mysql::Error;
    matches!(error.downcast_ref(), Some(Error::MySqlError(e)) if e.code == 1213)
}

/// A transaction; now and then a large one, a DDL, one that does nothing.
fn one(conn: &mut Conn, client: u32, n: u64) -> anyhow::Result<()> {
    let key = n * 7 % 100 + 1;
    match n % 50 {
        0 => conn.query_drop(format!(
            "INSERT INTO t (client, v, s) SELECT {client}, seq, REPEAT('x', 150) FROM rt.seq_1_to_2000"
        ))?,
        10 if client == 0 => {
            conn.query_drop(format!("CREATE OR REPLACE TABLE d{} (a INT)", n % 3))?
        }
        20 => {
            conn.query_drop("BEGIN")?;
            for k in 0..5 {
                conn.query_drop(format!("INSERT INTO t (client, v) VALUES ({client}, {k})"))?;
            }
            conn.query_drop("COMMIT")?;
        }
        30 => conn.query_drop(format!(
            "DELETE FROM t WHERE client = {client} AND v > 100 LIMIT 1500"
        ))?,
        // Clients meet here: each takes one row, so none waits for two.
        n if n % 2 == 0 => conn.query_drop(format!(
            "UPDATE u SET n = n + {client} + 1 WHERE id = {key}"
        ))?,
        _ => conn.query_drop(format!(
            "INSERT INTO t (client, v, s) VALUES ({client}, {}, 'small')",
            n % 90
        ))?,
    }
    Ok(())
}
