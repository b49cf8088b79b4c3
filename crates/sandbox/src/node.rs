//! One server: start, wait, ask, hurt, stop.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, OptsBuilder};
use rustix::process::Signal;

use crate::config::PID_FILE;
use crate::error::{During, IoContext, Left, LogTail, Result, SandboxError};
use crate::ports::Ports;
use crate::process::{BadEnd, ProcessId, ProcessState, StopReport, log_mark, logged_since, marked};
use crate::record::{NodeRecord, Store};
use crate::status::{NodeStatus, ProcessView, WsrepStatus};
use crate::template::{last_lines, program};
use crate::who::ServerUser;

/// How long a killed server may keep its ports.
const EXIT_LIMIT: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(50);
const LOG_LINES_SHOWN: usize = 12;
/// What a helper of a dead server gets before we give up on it.
const HELPER_LIMIT: Duration = Duration::from_secs(5);

/// How a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With `--wsrep-new-cluster`: the first node.
    NewCluster,
    /// Joins (or comes back to) the cluster.
    Join,
}

/// One server of a cluster.
#[derive(Debug)]
pub struct Node {
    index: usize,
    store: Arc<Store>,
    user: ServerUser,
    /// The process handle when this very process started the server: it must be
    /// reaped here.
    child: Mutex<Option<Child>>,
}

impl Node {
    pub(crate) fn new(index: usize, store: Arc<Store>, user: ServerUser) -> Self {
        Self {
            index,
            store,
            user,
            child: Mutex::new(None),
        }
    }

    /// What is recorded of the node.
    #[must_use]
    pub fn record(&self) -> NodeRecord {
        self.store.get().nodes[self.index].clone()
    }

    /// Node name: db1, db2, …
    #[must_use]
    pub fn name(&self) -> String {
        self.record().name
    }

    /// The node's ports.
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.record().ports
    }

    /// The server's process, if it is alive.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        self.reap();
        self.record().process.filter(|p| p.is_alive())
    }

    /// Starts the server; returns as soon as its process exists.
    ///
    /// `extra` are further command line options for this start only.
    ///
    /// # Errors
    /// When the node runs already, a port is taken or the server is missing.
    pub fn start(&self, start: Start, extra: &[String]) -> Result<()> {
        let record = self.record();
        self.make_way()?;
        let server = program("mariadbd", "mariadb-server")?;
        let mut command = match &record.network {
            None => Command::new(server),
            // nsenter becomes the server: the process id stays.
            Some(network) => {
                let mut command = Command::new(program("nsenter", "util-linux")?);
                command.arg(format!("--net={}", network.namespace.display()));
                command.arg("--").arg(server);
                command
            }
        };
        command.arg(format!(
            "--defaults-file={}",
            record.dir.join("my.cnf").display()
        ));
        if self.user.switched {
            command.arg(format!("--user={}", self.user.name));
        }
        if start == Start::NewCluster {
            command.arg("--wsrep-new-cluster");
        }
        command.args(extra);
        self.launch(command)
    }

    /// The same by a command of the caller's, which must become the server (`exec`)
    /// with the node's `my.cnf`, and switch users by itself: for instance the line
    /// of a service manager.
    ///
    /// # Errors
    /// When the node runs already, a port is taken or the command cannot be run.
    pub fn start_by(&self, command: Command) -> Result<()> {
        self.make_way()?;
        self.launch(command)
    }

    /// Fails if the node runs; waits until nothing of it is left.
    fn make_way(&self) -> Result<()> {
        let record = self.record();
        if let Some(process) = self.process() {
            return Err(SandboxError::StillRunning {
                node: record.name,
                pid: process.pid,
            });
        }
        self.kill_helpers()?;
        await_ports(&record, record.log.exists())
    }

    /// Fails if somebody else has a port of the node, which does not run. What its own server left behind is
    /// killed: a joiner's script goes on listening for its donor.
    pub(crate) fn check_ports(&self) -> Result<()> {
        let record = self.record();
        let helpers = self.kill_helpers()?;
        await_ports(&record, helpers > 0 || record.process.is_some())
    }

    fn launch(&self, mut command: Command) -> Result<()> {
        let record = self.record();
        let marker = self.store.get().marker(self.index);
        self.user
            .surround(&mut command, &record.dir, &record.log, marker)?;
        let child = command.spawn().at("run", Path::new("mariadbd"))?;
        let process = ProcessId::of_child(&child);
        *self.child() = Some(child);
        self.store.set_process(self.index, Some(process?))
    }

    /// Waits until clients may use the node (Synced, ready, primary).
    ///
    /// # Errors
    /// When the server ends meanwhile or `limit` passes.
    pub fn wait_usable(&self, limit: Duration) -> Result<Duration> {
        self.wait_for("Synced", limit, WsrepStatus::is_usable)
    }

    /// Waits until the status satisfies `reached`; returns how long it took.
    /// `wanted` completes the sentence "was not …".
    ///
    /// # Errors
    /// When the server ends meanwhile or `limit` passes.
    pub fn wait_for(
        &self,
        wanted: &'static str,
        limit: Duration,
        reached: impl Fn(&WsrepStatus) -> bool,
    ) -> Result<Duration> {
        let begin = Instant::now();
        let mut now;
        let ran = self.record().process.is_some();
        loop {
            self.fail_if_ended(During::Becoming(wanted), ran)?;
            match self.status(Duration::from_secs(2)) {
                Ok(status) if reached(&status) => return Ok(begin.elapsed()),
                Ok(status) => now = format!("it is {}", status.state()),
                Err(e) => now = format!("it does not answer: {e}"),
            }
            if begin.elapsed() > limit {
                let record = self.record();
                return Err(SandboxError::NotInTime {
                    node: record.name,
                    wanted,
                    waited: limit,
                    now,
                    log: self.log_end(),
                });
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// `ran`: it had a process. Then none is recorded only if somebody here has ended it.
    pub(crate) fn fail_if_ended(&self, during: During, ran: bool) -> Result<()> {
        match self.record().process {
            Some(process) if process.is_alive() => return Ok(()),
            None if !ran => return Ok(()),
            _ => {}
        }
        let how = self
            .reap()
            .unwrap_or_else(|| "its exit status went to another process".into());
        let record = self.record();
        Err(SandboxError::NodeEnded {
            node: record.name,
            during,
            how,
            log: self.log_end(),
        })
    }

    /// Connects over the socket. `limit` bounds each read and write, so also
    /// each statement.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] with the driver's error.
    pub fn connect(&self, limit: Duration) -> Result<Conn> {
        let (record, user, password) = {
            let cluster = self.store.get();
            (
                cluster.nodes[self.index].clone(),
                cluster.user.clone(),
                cluster.password.clone(),
            )
        };
        let options = OptsBuilder::new()
            .socket(Some(record.socket.to_string_lossy()))
            .user(Some(user))
            .pass(Some(password))
            .read_timeout(Some(limit))
            .write_timeout(Some(limit))
            // Both keep the driver from asking the server: a SELECT waits for the
            // other nodes, and a node that is not ready refuses it.
            .prefer_socket(false)
            .max_allowed_packet(Some(1 << 30));
        Conn::new(options).map_err(|e| SandboxError::Sql {
            node: record.name,
            statement: "connect".into(),
            source: Box::new(e),
        })
    }

    /// The `wsrep_*` status variables.
    ///
    /// # Errors
    /// When the node does not answer within `limit` per step.
    pub fn status(&self, limit: Duration) -> Result<WsrepStatus> {
        let mut conn = self.connect(limit)?;
        // Also SHOW obeys wsrep_sync_wait; a node that cannot prove that it is
        // current must still say how it is.
        self.run(&mut conn, "SET SESSION wsrep_sync_wait = 0")?;
        let rows = self.rows(&mut conn, "SHOW GLOBAL STATUS LIKE 'wsrep_%'")?;
        Ok(WsrepStatus::from_rows(rows))
    }

    /// The server's version, as the one that runs says.
    ///
    /// # Errors
    /// When the node does not answer within `limit` per step.
    pub fn server_version(&self, limit: Duration) -> Result<String> {
        let mut conn = self.connect(limit)?;
        // As in Self::status.
        self.run(&mut conn, "SET SESSION wsrep_sync_wait = 0")?;
        let statement = "SHOW GLOBAL VARIABLES LIKE 'version'";
        let rows: Vec<(String, String)> = self.rows(&mut conn, statement)?;
        Ok(rows.into_iter().next().unwrap_or_default().1)
    }

    /// Runs a statement, dropping its rows.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] names node and statement.
    pub fn run(&self, conn: &mut Conn, statement: &str) -> Result<()> {
        conn.query_drop(statement)
            .map_err(|e| self.failed(statement, e))
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] names node and statement.
    pub fn rows<T: FromRow>(&self, conn: &mut Conn, statement: &str) -> Result<Vec<T>> {
        conn.query(statement).map_err(|e| self.failed(statement, e))
    }

    fn failed(&self, statement: &str, source: mysql::Error) -> SandboxError {
        SandboxError::Sql {
            node: self.name(),
            statement: statement.into(),
            source: Box::new(source),
        }
    }

    /// The node's view of itself, within `limit` whatever state it is in.
    #[must_use]
    pub fn describe(self: &Arc<Self>, limit: Duration) -> NodeStatus {
        self.reap();
        let record = self.record();
        let own = record.process.filter(|p| p.is_alive());
        let by_hand = || started_by_hand(&record.dir, &record.data_dir);
        let at_work = own.or_else(by_hand);
        let state = at_work.or(record.process).map(ProcessId::state);
        let process = ProcessView::of(state);
        let mut status = NodeStatus {
            name: record.name,
            pid: at_work.map(|p| p.pid),
            process,
            wsrep: None,
            silence: None,
        };
        match state {
            Some(ProcessState::Running) => {
                // A thread, because a timeout per read does not bound the whole.
                let (sender, receiver) = mpsc::channel();
                let node = Arc::clone(self);
                thread::spawn(move || {
                    let _ = sender.send(node.status(limit)); // the asker may have given up
                });
                match receiver.recv_timeout(limit) {
                    Ok(Ok(wsrep)) => status.wsrep = Some(wsrep),
                    Ok(Err(SandboxError::Sql { source, .. })) => {
                        status.silence = Some(source.to_string())
                    }
                    Ok(Err(e)) => status.silence = Some(e.to_string()),
                    Err(_) => {
                        status.silence = Some(format!("no answer within {} ms", limit.as_millis()))
                    }
                }
            }
            Some(ProcessState::Stopped) => status.silence = Some("held by SIGSTOP".into()),
            Some(ProcessState::Gone) => status.silence = Some("its process has ended".into()),
            None => status.silence = Some("not started".into()),
        }
        status
    }

    /// Asks the server to end (SIGTERM) and waits; kills it after `limit`.
    ///
    /// # Errors
    /// When the process cannot be signalled, or is there even after SIGKILL; it
    /// stays recorded then.
    pub fn stop(&self, limit: Duration) -> Result<StopReport> {
        let Some(process) = self.process() else {
            self.forget()?;
            let record = self.record();
            let by_hand = started_by_hand(&record.dir, &record.data_dir);
            return Ok(by_hand.map_or(StopReport::WasDown, |p| StopReport::ByHand { pid: p.pid }));
        };
        let log = self.record().log;
        let mark = log_mark(&log);
        let report = process.end(limit)?;
        // A child of before may have been another one.
        let is_child = |c: &Child| i64::from(c.id()) == i64::from(process.pid);
        let ours = self.child().as_ref().is_some_and(is_child);
        let status = ours.then(|| self.end_of_child()).flatten();
        let report = report.judged(status, &logged_since(&log, mark));
        self.forget()?;
        Ok(report)
    }

    /// Kills the server (SIGKILL) and everything it had started.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] if there is nothing to kill.
    pub fn kill(&self) -> Result<()> {
        let process = self.running()?;
        process.signal(Signal::KILL)?;
        self.bury(process)
    }

    /// Sends SIGKILL and does not wait for the end; [`Self::bury`] does.
    pub(crate) fn strike(&self) -> Result<ProcessId> {
        let process = self.running()?;
        process.signal(Signal::KILL)?;
        Ok(process)
    }

    /// Waits for a killed server's end and kills what it had started.
    pub(crate) fn bury(&self, process: ProcessId) -> Result<()> {
        process.wait_killed(HELPER_LIMIT)?;
        self.forget()
    }

    /// Holds the server (SIGSTOP): when this returns it does nothing any more.
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] if there is nothing to hold.
    pub fn pause(&self) -> Result<()> {
        self.running()?.hold(HELPER_LIMIT)
    }

    /// Lets a held server go on (SIGCONT).
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] if there is no process.
    pub fn resume(&self) -> Result<()> {
        self.running()?.signal(Signal::CONT).map(drop)
    }

    fn running(&self) -> Result<ProcessId> {
        self.process().ok_or_else(|| {
            let record = self.record();
            SandboxError::NotRunning {
                node: record.name,
                log: record.log,
            }
        })
    }

    /// The whole error log, as far as it is text.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_log(&self) -> Result<String> {
        let path = self.record().log;
        fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .at("read", &path)
    }

    fn log_end(&self) -> Box<LogTail> {
        Box::new(LogTail {
            path: self.record().log,
            lines: self.log_tail(LOG_LINES_SHOWN),
        })
    }

    /// The last lines of the error log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.read_log()
            .map(|text| last_lines(&text, lines))
            .unwrap_or_default()
    }

    /// How the stopped node was left; none if it was in no cluster before.
    #[must_use]
    pub fn left(&self) -> Option<Left> {
        if !self.has_history() {
            return None;
        }
        let record = self.record();
        let path = record.data_dir.join("grastate.dat");
        let text = fs::read_to_string(path).unwrap_or_default();
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(k, _)| k.trim() == key);
            found.map_or_else(|| "unknown".into(), |(_, v)| v.trim().to_string())
        };
        Some(Left {
            node: record.name,
            data_dir: record.data_dir,
            uuid: value("uuid"),
            seqno: value("seqno"),
            is_safe: value("safe_to_bootstrap") == "1",
            log: None,
        })
    }

    /// True if the node was part of a cluster before (the state file of one
    /// that never joined is missing or empty).
    #[must_use]
    pub fn has_history(&self) -> bool {
        fs::metadata(self.record().data_dir.join("grastate.dat")).is_ok_and(|m| m.len() > 0)
    }

    /// Runs `mariadbd --wsrep-recover` on the stopped node and returns the
    /// storage engine's position as `uuid:seqno`.
    ///
    /// # Errors
    /// When the node runs or the server prints no position.
    pub fn recovered_position(&self) -> Result<String> {
        const PHRASE: &str = "WSREP: Recovered position:";
        let record = self.record();
        if let Some(process) = self.process() {
            return Err(SandboxError::StillRunning {
                node: record.name,
                pid: process.pid,
            });
        }
        let mut command = Command::new(program("mariadbd", "mariadb-server")?);
        command.arg(format!(
            "--defaults-file={}",
            record.dir.join("my.cnf").display()
        ));
        if self.user.switched {
            command.arg(format!("--user={}", self.user.name));
        }
        command
            // By its binary log a server may keep a later transaction without an earlier one.
            .args(["--wsrep-recover", "--skip-log-bin", "--disable-log-error"])
            .stdin(Stdio::null());
        let out = command.output().at("run", Path::new("mariadbd"))?;
        let text = String::from_utf8_lossy(&out.stderr);
        text.lines()
            .find_map(|line| line.split_once(PHRASE))
            .map(|(_, position)| position.trim().to_string())
            .ok_or_else(|| SandboxError::NodeEnded {
                node: record.name,
                during: During::Recovering,
                how: out.status.to_string(),
                log: Box::new(LogTail {
                    path: record.log,
                    lines: last_lines(&text, LOG_LINES_SHOWN),
                }),
            })
    }

    /// Clears what is known of an ended process, helpers included.
    fn forget(&self) -> Result<()> {
        self.reap();
        self.kill_helpers()?;
        self.store.set_process(self.index, None)
    }

    /// Kills what a dead server left behind (transfer scripts, rsync, socat). Says how many.
    fn kill_helpers(&self) -> Result<usize> {
        let (name, value) = self.store.get().marker(self.index);
        let helpers = marked(&format!("{name}={value}"));
        for helper in &helpers {
            helper.signal(Signal::KILL)?;
            helper.wait_gone(HELPER_LIMIT)?;
        }
        Ok(helpers.len())
    }

    /// Reaps the server if it was our child and has ended; says how.
    fn reap(&self) -> Option<String> {
        let status = self.end_of_child()?;
        Some(
            BadEnd::of_status(status)
                .unwrap_or(BadEnd::Code(0))
                .to_string(),
        )
    }

    /// How the server ended, if it was our child; it is reaped.
    fn end_of_child(&self) -> Option<ExitStatus> {
        // The handle stays: a second asker gets the same answer.
        self.child().as_mut()?.try_wait().ok()?
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails if a port of the node stays taken. `waits`: of what was killed a thread may still be on its way out,
/// with its sockets.
fn await_ports(record: &NodeRecord, waits: bool) -> Result<()> {
    let until = Instant::now() + EXIT_LIMIT;
    loop {
        let free = record.ports.check_free(&record.name);
        if free.is_ok() || !waits || Instant::now() >= until {
            return free;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The server on the data in `data_dir` that somebody else started, with the configuration in `dir`.
fn started_by_hand(dir: &Path, data_dir: &Path) -> Option<ProcessId> {
    let pid = fs::read_to_string(dir.join(PID_FILE)).ok()?;
    let process = ProcessId::of(pid.trim().parse().ok()?).ok()?;
    // It works in its data directory; the number may have been given to another one since.
    let works_in = fs::read_link(format!("/proc/{}/cwd", process.pid)).ok()?;
    (works_in == data_dir.canonicalize().ok()?).then_some(process)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::sample;

    /// Puts a shell in the place of the node's server.
    pub(crate) fn shell(node: &Node, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        node.launch(command).expect("started");
    }

    #[test]
    fn a_server_that_was_started_by_hand_is_seen() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("made");
        let begin = |within: &Path| {
            let mut command = Command::new("sleep");
            command.arg("600").current_dir(within);
            command.spawn().expect("it runs")
        };
        let (mut server, mut other) = (begin(&data), begin(dir.path()));
        let mut seen = Vec::new();
        for pid in [server.id(), other.id()] {
            let file = dir.path().join(PID_FILE);
            fs::write(file, format!("{pid}\n")).expect("written");
            seen.push(started_by_hand(dir.path(), &data).map(|p| p.pid as u32));
        }
        let ids = [&mut server, &mut other].map(|child| {
            child.kill().expect("it ran");
            child.wait().expect("it ended");
            child.id()
        });
        assert_eq!(seen, [Some(ids[0]), None], "the other one works elsewhere");
    }

    /// A node whose server is a shell that runs `script`; it says "ready" in its log when a signal
    /// meets its traps.
    fn server(dir: &Path, script: &str) -> Node {
        let mut record = sample();
        // Its processes are told from those of other tests by it.
        record.id = crate::record::random_hex(8).expect("random");
        record.dir = dir.to_path_buf();
        record.nodes[0].dir = dir.to_path_buf();
        record.nodes[0].log = dir.join("error.log");
        let user = ServerUser {
            name: "own".into(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
            switched: false,
        };
        let node = Node::new(0, Arc::new(Store::new(record)), user);
        shell(
            &node,
            &format!("{script}\necho ready; while :; do sleep 0.05; done"),
        );
        let begin = Instant::now();
        while !node.read_log().expect("it is there").contains("ready") {
            assert!(begin.elapsed() < Duration::from_secs(60), "it never began");
            thread::sleep(Duration::from_millis(5));
        }
        node
    }

    #[test]
    fn a_server_that_dies_while_it_stops_did_not_just_end() {
        let how = |script: &str, ours: bool| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let node = server(dir.path(), script);
            if !ours {
                // As if another process had started it; a thread reaps it instead of init.
                let mut child = node.child().take().expect("it is there");
                thread::spawn(move || child.wait());
            }
            match node.stop(Duration::from_secs(60)).expect("stopped") {
                StopReport::Failed { how, .. } => Some(how),
                StopReport::Ended { .. } => None,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(how("trap 'exit 0' TERM", true), None);
        let crashes = "trap 'kill -SEGV $$' TERM";
        assert_eq!(how(crashes, true), Some(BadEnd::Signal(11)));
        assert_eq!(how("trap 'exit 3' TERM", true), Some(BadEnd::Code(3)));
        // What an earlier process said is in the past.
        let said = "echo mariadbd got signal 6; trap 'exit 0' TERM";
        assert_eq!(how(said, true), None);
        let says = "trap 'echo mariadbd got signal 6; exit 0' TERM";
        assert_eq!(how(says, false), Some(BadEnd::Signal(6)));
    }
}
