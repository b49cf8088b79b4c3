//! A server of its own, in no cluster: a primary, or a replica on a copy of its data.
//!
//! ```text
//! DIR/data/        data directory          DIR/server.log   server's log
//! DIR/log/         binlog and relay log, so that a copy of the data carries none of them
//! DIR/s            socket
//! ```

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, OptsBuilder};

use crate::config::Setting;
use crate::copy::copy_tree;
use crate::error::{During, IoContext, LogTail, Result, SandboxError};
use crate::ports;
use crate::process::{ProcessId, with_environment};
use crate::template::{SQL_USER, Template, last_lines, program, server_version};
use crate::who::{ServerUser, first_unreachable};

const POLL_EVERY: Duration = Duration::from_millis(20);
const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(120);
const LOG_LINES_SHOWN: usize = 12;
/// What marks the environment of a server; its value is the directory. What else belongs to an
/// experiment may be marked by it, too: see [`end_left_behind`].
pub const MARKER: &str = "DROMON_STANDALONE";

/// So many ports that nobody listens on: from `base` on, else the first free ones.
///
/// # Errors
/// When a port from `base` on is taken, or none is free.
pub fn free_ports(count: usize, base: Option<u16>) -> Result<Vec<u16>> {
    let found = ports::choose(count, base, None)?;
    Ok(found.into_iter().map(|p| p.sql).collect())
}

/// Ends all processes that are marked by a directory below this one: what a program left behind
/// that was killed itself. Their number.
///
/// # Errors
/// When one cannot be signalled.
pub fn end_left_behind(below: &Path) -> Result<usize> {
    let begins = |entry: &[u8]| {
        let value = entry.strip_prefix(MARKER.as_bytes());
        let value = value.and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|dir| Path::new(OsStr::from_bytes(dir)).starts_with(below))
    };
    let left = with_environment(begins);
    for process in &left {
        process.end(STOP_LIMIT)?;
    }
    Ok(left.len())
}

/// A server in no cluster. It is killed when dropped; its files stay.
#[derive(Debug)]
pub struct Standalone {
    name: String,
    dir: PathBuf,
    port: u16,
    settings: Vec<Setting>,
    user: ServerUser,
    password: String,
    child: Option<Child>,
}

impl Standalone {
    /// Prepares one with system tables only, in a new directory. Does not start it.
    ///
    /// # Errors
    /// When the directory is there already, or the servers' user cannot enter it.
    pub fn create(dir: &Path, name: &str, port: u16, settings: Vec<Setting>) -> Result<Self> {
        let user = ServerUser::find()?;
        let template = Template::get(&user, &server_version()?, &settings)?;
        let password = template.password.clone();
        Self::prepare(dir, name, port, settings, user, password, |data, user| {
            template.copy_to(data, user)
        })
    }

    /// Prepares one on a copy of what [`Self::copy_data`] made of this one's data.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_like(
        &self,
        data: &Path,
        dir: &Path,
        name: &str,
        port: u16,
        settings: Vec<Setting>,
    ) -> Result<Self> {
        let (user, password) = (self.user.clone(), self.password.clone());
        Self::prepare(dir, name, port, settings, user, password, |to, user| {
            copy_tree(data, to, Some(user))
        })
    }

    fn prepare(
        dir: &Path,
        name: &str,
        port: u16,
        settings: Vec<Setting>,
        user: ServerUser,
        password: String,
        fill: impl FnOnce(&Path, &ServerUser) -> Result<()>,
    ) -> Result<Self> {
        if let Some(blocker) = first_unreachable(dir)? {
            return Err(SandboxError::DirectoryClosed {
                path: dir.to_path_buf(),
                blocker,
                user: user.name,
            });
        }
        user.create_dir_with(dir, || {
            user.create_dir(&dir.join("log"))?;
            // In a common one each server that starts removes the temporary tables of all.
            user.create_dir(&dir.join("tmp"))?;
            fill(&dir.join("data"), &user)
        })?;
        Ok(Self {
            name: name.to_string(),
            dir: dir.to_path_buf(),
            port,
            settings,
            user,
            password,
            child: None,
        })
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Copies the data of the stopped server, without its binlog, to a new directory.
    ///
    /// # Errors
    /// When it runs, or the copy fails.
    pub fn copy_data(&self, to: &Path) -> Result<()> {
        self.must_be_down()?;
        copy_tree(&self.data(), to, None)
    }

    /// Removes binlog and relay log of the stopped server: its history begins anew.
    ///
    /// # Errors
    /// When it runs, or they cannot be removed.
    pub fn forget_logs(&self) -> Result<()> {
        self.must_be_down()?;
        let logs = self.dir.join("log");
        fs::remove_dir_all(&logs).at("remove", &logs)?;
        self.user.create_dir(&logs)
    }

    fn must_be_down(&self) -> Result<()> {
        match self.process() {
            Some(process) => Err(SandboxError::StillRunning {
                node: self.name.clone(),
                pid: process.pid,
            }),
            None => Ok(()),
        }
    }

    /// Starts it and waits until it answers. `environment` is added to its own.
    ///
    /// # Errors
    /// When it ends meanwhile, or does not answer in time.
    pub fn start(&mut self, environment: &[(&str, OsString)]) -> Result<()> {
        self.must_be_down()?;
        let log = self.dir.join("server.log");
        let mut command = Command::new(program("mariadbd", "mariadb-server")?);
        command.arg("--no-defaults");
        if self.user.switched {
            command.arg(format!("--user={}", self.user.name));
        }
        command
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            .arg(format!("--datadir={}", self.data().display()))
            .arg(format!("--tmpdir={}", self.dir.join("tmp").display()))
            .arg(format!("--socket={}", self.dir.join("s").display()))
            .arg(format!("--port={}", self.port))
            .arg(format!("--log-bin={}", self.dir.join("log/bin").display()))
            .arg(format!(
                "--relay-log={}",
                self.dir.join("log/relay").display()
            ));
        for Setting { name, value } in &self.settings {
            command.arg(match value {
                Some(value) => format!("--{name}={value}"),
                None => format!("--{name}"),
            });
        }
        let marker = (MARKER, self.dir.display().to_string());
        self.user.surround(&mut command, &self.dir, &log, marker)?;
        for (name, value) in environment {
            command.env(name, value);
        }
        self.child = Some(command.spawn().at("run", Path::new("mariadbd"))?);
        let begin = Instant::now();
        loop {
            let refused = match self.connect(START_LIMIT) {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            };
            let status = self.child.as_mut().and_then(|c| c.try_wait().ok()?);
            if let Some(status) = status {
                let how = match status.signal() {
                    Some(signal) => format!("signal {signal}"),
                    None => format!("exit code {}", status.code().unwrap_or(-1)),
                };
                return Err(SandboxError::NodeEnded {
                    node: self.name.clone(),
                    during: During::Starting,
                    how,
                    log: self.log_end(),
                });
            }
            if begin.elapsed() > START_LIMIT {
                return Err(SandboxError::NotInTime {
                    node: self.name.clone(),
                    wanted: "ready",
                    waited: START_LIMIT,
                    now: refused,
                    log: self.log_end(),
                });
            }
            thread::sleep(POLL_EVERY);
        }
    }

    fn log_end(&self) -> Box<LogTail> {
        let path = self.dir.join("server.log");
        let text = fs::read(&path).unwrap_or_default();
        Box::new(LogTail {
            lines: last_lines(&String::from_utf8_lossy(&text), LOG_LINES_SHOWN),
            path,
        })
    }

    /// The server's process, if it is alive.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        let found = ProcessId::of_child(self.child.as_ref()?).ok()?;
        Some(found).filter(|p| p.is_alive())
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// When the process cannot be signalled.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(process) = self.process() {
            process.end(STOP_LIMIT)?;
        }
        self.kill();
        Ok(())
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Where clients and replicas reach it on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Name and password of an account with all privileges, over the socket and 127.0.0.1.
    #[must_use]
    pub fn account(&self) -> (&'static str, &str) {
        (SQL_USER, &self.password)
    }

    /// Connects over the socket. `limit` bounds each read and write, so also
    /// each statement.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] with the driver's error.
    pub fn connect(&self, limit: Duration) -> Result<Conn> {
        let options = OptsBuilder::new()
            .socket(Some(self.dir.join("s").to_string_lossy()))
            .user(Some(SQL_USER))
            .pass(Some(&self.password))
            .read_timeout(Some(limit))
            .write_timeout(Some(limit))
            // Both keep the driver from asking the server first.
            .prefer_socket(false)
            .max_allowed_packet(Some(1 << 30));
        Conn::new(options).map_err(|e| self.failed("connect", e))
    }

    /// Runs statements on a connection, dropping their rows.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] names server and statement.
    pub fn run(&self, conn: &mut Conn, statements: &[&str]) -> Result<()> {
        for statement in statements {
            conn.query_drop(statement)
                .map_err(|e| self.failed(statement, e))?;
        }
        Ok(())
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// [`SandboxError::Sql`] names server and statement.
    pub fn rows<T: FromRow>(&self, conn: &mut Conn, statement: &str) -> Result<Vec<T>> {
        conn.query(statement).map_err(|e| self.failed(statement, e))
    }

    fn failed(&self, statement: &str, source: mysql::Error) -> SandboxError {
        SandboxError::Sql {
            node: self.name.clone(),
            statement: statement.into(),
            source: Box::new(source),
        }
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_below_a_directory_is_ended() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut started: Vec<Child> = ["a", "a/b", "ab"]
            .iter()
            .map(|dir| {
                Command::new("sleep")
                    .arg("60")
                    .env(MARKER, home.path().join(dir))
                    .spawn()
                    .expect("sleep starts")
            })
            .collect();
        // The environment is only visible once the child has called exec.
        let begin = Instant::now();
        let mut ended = 0;
        while ended < 2 && begin.elapsed() < Duration::from_secs(5) {
            ended += end_left_behind(&home.path().join("a")).expect("ended");
        }
        assert_eq!(ended, 2, "those of a and of a/b");
        for child in &mut started[..2] {
            assert!(!child.wait().expect("its end").success());
        }
        let other = &mut started[2];
        assert!(other.try_wait().expect("asked").is_none(), "ab is another");
        other.kill().expect("killed");
        other.wait().expect("its end");
    }
}
