//! `dromon relay` and `dromon replica` as processes of their own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use dromon_sandbox::{MARKER, ProcessId, Usage};
use serde_json::Value;

/// How long it may take to end when asked.
const END_LIMIT: Duration = Duration::from_secs(20);
const LINES_SHOWN: usize = 3;

/// A process of the `dromon` program. It is killed when dropped.
pub struct Program {
    what: &'static str,
    child: Child,
    process: ProcessId,
}

impl Program {
    /// Starts `dromon WHAT` with settings; what it prints goes to a file. Passwords are among the
    /// settings: none stands in the list of processes, or in a file.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(
        program: &Path,
        what: &'static str,
        settings: &[String],
        printed: &Path,
    ) -> anyhow::Result<Self> {
        let out =
            File::create(printed).with_context(|| format!("creating {}", printed.display()))?;
        let (file, mut to) = io::pipe().context("making a pipe")?;
        // Far less than a pipe holds.
        for setting in settings {
            writeln!(to, "{setting}")?;
        }
        drop(to);
        let mut command = Command::new(program);
        command
            .args([what, "--config", "/dev/stdin"])
            .stdin(Stdio::from(file));
        // So that it is found if this process is killed.
        command.env(MARKER, printed.parent().unwrap_or(printed));
        let child = command
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("running {} {what}", program.display()))?;
        let process = ProcessId::of(i32::try_from(child.id())?)?;
        Ok(Self {
            what,
            child,
            process,
        })
    }

    /// Fails with its last words if it has ended.
    ///
    /// # Errors
    /// Those words.
    pub fn must_run(&mut self, log: &Path) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" / ");
        bail!("dromon {} ended ({status}): {last}", self.what)
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// `relay` or `replica`.
    #[must_use]
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// What it has used so far.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.process.usage()
    }

    /// Asks it to end, and waits.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.process.end(END_LIMIT)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a relay says at this port of 127.0.0.1; none while it does not listen.
pub fn relay_status(port: u16) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    stream
        .write_all(b"GET /status.json HTTP/1.1\r\nHost: relay\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What a program is told, and what everybody can see of that.
    #[test]
    fn no_password_in_the_list_of_processes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("dromon"), "#!/bin/sh\necho \"$*\"\ncat\n").expect("writable");
        fs::set_permissions(path("dromon"), fs::Permissions::from_mode(0o700)).expect("its mode");
        let settings = ["user=u", "password=geheim"].map(String::from);
        let out = path("relay.out");
        let started = Program::start(&path("dromon"), "relay", &settings, &out);
        let mut program = started.expect("it runs");
        program.child.wait().expect("it ends");
        let printed = fs::read_to_string(&out).expect("there");
        let (seen, told) = printed.split_once('\n').expect("a line");
        assert_eq!(seen, "relay --config /dev/stdin");
        assert_eq!(told, "user=u\npassword=geheim\n");
    }
}
