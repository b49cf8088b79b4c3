//! The witness beside the nodes: start, hurt, stop.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::{IoContext, LogTail, Result, SandboxError};
use crate::ports::check_port;
use crate::process::{BadEnd, ProcessId, StopReport, log_mark, logged_since};
use crate::record::{ClusterRecord, Store};
use crate::secure;
use crate::status::{ProcessView, WitnessStatus};
use crate::template::last_lines;
use crate::who::ServerUser;

/// Its name among the members, and of its directory.
pub(crate) const NAME: &str = "witness";
const LOG_LINES_SHOWN: usize = 12;
/// What a killed process gets to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// A witness as recorded in `cluster.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WitnessRecord {
    /// Everything of it lies here, its log too.
    pub dir: PathBuf,
    /// Its messages.
    pub log: PathBuf,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// The `dromon` program that was asked for.
    pub program: PathBuf,
    /// The copy that runs.
    pub program_copy: PathBuf,
    /// Its process; none when it was stopped by us or never started.
    pub process: Option<ProcessId>,
}

/// `NAME=value` that marks its process.
fn marker(cluster: &ClusterRecord) -> (&'static str, String) {
    ("DROMON_SANDBOX_NODE", format!("{}/{NAME}", cluster.id))
}

/// A `dromon witness` of a cluster.
#[derive(Debug)]
pub struct Witness {
    store: Arc<Store>,
    user: ServerUser,
    child: Mutex<Option<Child>>,
}

impl Witness {
    pub(crate) fn new(store: Arc<Store>, user: ServerUser) -> Self {
        Self {
            store,
            user,
            child: Mutex::new(None),
        }
    }

    /// What is recorded of it.
    ///
    /// # Panics
    /// Never: a cluster has this handle only if it has the record.
    #[must_use]
    pub fn record(&self) -> WitnessRecord {
        let cluster = self.store.get();
        cluster.witness.clone().expect("recorded at creation")
    }

    /// Its process, if it is alive.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        self.reap();
        self.record().process.filter(|p| p.is_alive())
    }

    /// Starts it; returns as soon as its process exists. `extra` are further
    /// command line options for this start only.
    ///
    /// # Errors
    /// When it runs already or the program is missing.
    pub fn start(&self, extra: &[&str]) -> Result<()> {
        let record = self.record();
        if let Some(process) = self.process() {
            return Err(SandboxError::StillRunning {
                node: NAME.into(),
                pid: process.pid,
            });
        }
        let cluster = self.store.get().clone();
        let mut command = Command::new(&record.program_copy);
        command
            .args(["witness", "--name", NAME, "--group", &cluster.name])
            .args(["--address", &cluster.address()])
            .args(["--options", &options(&cluster, record.port)])
            .arg("--dir")
            .arg(record.dir.join("log"))
            .args(extra);
        self.user
            .surround(&mut command, &record.dir, &record.log, marker(&cluster))?;
        if self.user.switched {
            command.uid(self.user.uid).gid(self.user.gid);
        }
        let child = command.spawn().at("run", &record.program_copy)?;
        let process = ProcessId::of_child(&child);
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        self.set_process(Some(process?))
    }

    /// Fails if another process listens on its port.
    pub(crate) fn check_port(&self) -> Result<()> {
        check_port(self.record().port, NAME, "group communication")
    }

    /// Fails if it was started and has ended.
    pub(crate) fn refuse_ended(&self) -> Result<()> {
        let status = self.reap();
        let record = self.record();
        if record.process.is_none_or(ProcessId::is_alive) {
            return Ok(());
        }
        let how = match status {
            Some(status) => BadEnd::of_status(status)
                .unwrap_or(BadEnd::Code(0))
                .to_string(),
            None => "its exit status went to another process".into(),
        };
        Err(SandboxError::WitnessEnded {
            how,
            log: Box::new(LogTail {
                path: record.log,
                lines: self.log_tail(LOG_LINES_SHOWN),
            }),
        })
    }

    /// Asks it to leave and end (SIGTERM) and waits; kills it after `limit`.
    ///
    /// # Errors
    /// When the process cannot be signalled.
    pub fn stop(&self, limit: Duration) -> Result<StopReport> {
        let Some(process) = self.process() else {
            self.set_process(None)?;
            return Ok(StopReport::WasDown);
        };
        let log = self.record().log;
        let mark = log_mark(&log);
        let report = process.end(limit)?;
        let report = report.judged(self.reap(), &logged_since(&log, mark));
        self.set_process(None)?;
        Ok(report)
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// [`SandboxError::NotRunning`] if there is nothing to kill.
    pub fn kill(&self) -> Result<()> {
        let process = self.process().ok_or_else(|| SandboxError::NotRunning {
            node: NAME.into(),
            log: self.record().log,
        })?;
        process.signal(Signal::KILL)?;
        process.wait_killed(GONE_LIMIT)?;
        self.reap();
        self.set_process(None)
    }

    /// How it is.
    #[must_use]
    pub fn describe(&self) -> WitnessStatus {
        self.reap();
        let record = self.record();
        WitnessStatus {
            name: NAME.into(),
            pid: record.process.filter(|p| p.is_alive()).map(|p| p.pid),
            process: ProcessView::of(record.process.map(ProcessId::state)),
            port: record.port,
        }
    }

    /// The last lines of its messages.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read(self.record().log).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&text), lines)
    }

    fn set_process(&self, process: Option<ProcessId>) -> Result<()> {
        let mut cluster = self.store.get();
        match cluster.witness.as_mut() {
            Some(witness) if witness.process != process => witness.process = process,
            _ => return Ok(()),
        }
        cluster.save_process(process)
    }

    /// Reaps it if it was our child and has ended; says how.
    fn reap(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_mut()?.try_wait().ok()?
    }
}

/// Its options: what the nodes have, and its own port.
fn options(cluster: &ClusterRecord, port: u16) -> String {
    let mut options = format!("gmcast.listen_addr=tcp://127.0.0.1:{port}");
    if cluster.tls {
        options += &secure::options(cluster, NAME);
    }
    if !cluster.provider_options.is_empty() {
        options.push(';');
        options.push_str(&cluster.provider_options);
    }
    options
}

/// The record of a witness in the cluster's directory `dir`.
pub(crate) fn record(dir: &Path, program: &Path, port: u16) -> WitnessRecord {
    let home = dir.join(NAME);
    WitnessRecord {
        log: home.join("witness.log"),
        port,
        program: program.to_owned(),
        program_copy: dir.join("lib").join("dromon"),
        process: None,
        dir: home,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn it_has_the_options_of_the_nodes_and_its_own_certificate() {
        let mut cluster = sample();
        cluster.provider = "/x/libdromon.so".into();
        cluster.tls = true;
        cluster.provider_options = "evs.suspect_timeout=PT3S".into();
        let text = options(&cluster, 23327);
        assert!(text.starts_with("gmcast.listen_addr=tcp://127.0.0.1:23327;socket.ssl=yes;"));
        assert!(
            text.contains("/tls/witness.key;dromon.secret_file="),
            "{text}"
        );
        assert!(text.ends_with(";evs.suspect_timeout=PT3S"), "{text}");
    }
}
