//! A program that runs beside the servers, and is killed now and then: one that has
//! ended by itself was not killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail, ensure};

/// How the files end that hold what such programs wrote to stderr.
const ERRORS: &str = "stderr";
/// Of its end, in a complaint.
const SHOWN: usize = 600;

/// `dromon relay` or `dromon replica`.
pub struct Process {
    what: &'static str,
    errors: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Starts nothing. What it will write to stderr is kept in `dir`.
    pub fn new(what: &'static str, dir: &Path, name: &str) -> Self {
        Self {
            what,
            errors: dir.join(format!("{name}.{ERRORS}")),
            child: None,
        }
    }

    pub fn start(&mut self, mut command: Command) -> anyhow::Result<()> {
        let errors = File::options()
            .create(true)
            .append(true)
            .open(&self.errors)
            .with_context(|| self.errors.display().to_string())?;
        command.stdin(Stdio::null()).stderr(errors);
        let child = command.spawn();
        self.child = Some(child.with_context(|| format!("running the {}", self.what))?);
        Ok(())
    }

    pub fn pid(&self) -> anyhow::Result<u32> {
        let child = self.child.as_ref();
        let child = child.with_context(|| format!("the {} does not run", self.what))?;
        Ok(child.id())
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> anyhow::Result<bool> {
        let child = self.child.as_mut();
        let child = child.with_context(|| format!("the {} was not started", self.what))?;
        Ok(child.try_wait()?.is_some())
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = self.child.as_mut() else {
            bail!("the {} was not started", self.what);
        };
        let ended = child.try_wait()?;
        if ended.is_some() {
            self.child = None;
        }
        Ok(ended)
    }

    /// `kill -9`. An error if it has ended by itself.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let hit = self.kill_if_it_runs()?;
        ensure!(
            hit,
            "the {} had ended by itself, and well, before it was killed{}",
            self.what,
            self.last_words()
        );
        Ok(())
    }

    /// `kill -9`. False if it was too late: what it had to do was done, and it had ended
    /// well. An error if it had ended otherwise.
    pub fn kill_if_it_runs(&mut self) -> anyhow::Result<bool> {
        if let Some(status) = self.ended()? {
            ensure!(
                status.success(),
                "the {} had ended by itself ({status}) before it was killed{}",
                self.what,
                self.last_words()
            );
            return Ok(false);
        }
        self.end()?;
        Ok(true)
    }

    /// Ends it, whatever it does.
    pub fn end(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.errors).unwrap_or_default();
        let from = text.len().saturating_sub(SHOWN);
        match text.get(from..).unwrap_or(&text).trim() {
            "" => String::new(),
            words => format!(": {words}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test's own process.
        let _ = self.end();
    }
}

/// Fails if one of the programs that ran in a directory, or in one within it, has
/// panicked: a thread may, and its process goes on, or is killed.
pub fn nothing_panicked(dir: &Path) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let inner = || fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = inner().map(|e| e.path()).filter(|p| p.is_dir());
    for dir in dirs.chain([dir.to_owned()]) {
        let files = fs::read_dir(&dir).into_iter().flatten().flatten();
        found.extend(
            files
                .map(|e| e.path())
                .filter(|p| p.extension().is_some_and(|e| e == ERRORS)),
        );
    }
    for file in found {
        let text = fs::read(&file).map(|t| String::from_utf8_lossy(&t).into_owned())?;
        let mut lines = text.lines().skip_while(|l| !l.contains("panicked"));
        if let Some(line) = lines.next() {
            let why = lines.next().unwrap_or_default();
            bail!("{}: {line} {why}", file.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("dromon-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("within")).expect("a directory");
        dir
    }

    fn run(dir: &Path, script: &str, ends: bool) -> Process {
        let mut process = Process::new("script", &dir.join("within"), "script");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        process.start(command).expect("a shell");
        let id = process.pid().expect("it runs");
        // A process that has ended is waited for by its parent only.
        while ends && {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("its state");
            !stat.contains(") Z ")
        } {
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    #[test]
    fn who_has_ended_by_itself_was_not_killed() {
        let dir = dir("ended");
        let mut runs = run(&dir, "exec sleep 100", false);
        assert!(runs.kill_if_it_runs().expect("it is killed"));
        assert!(run(&dir, "exec sleep 100", false).kill().is_ok());
        let mut done = run(&dir, "exit 0", true);
        assert!(!done.kill_if_it_runs().expect("it ended well"));
        assert!(run(&dir, "exit 0", true).kill().is_err());
        let mut failed = run(&dir, "echo 'no such day' >&2; exit 3", true);
        let error = failed.kill_if_it_runs().expect_err("it failed").to_string();
        assert!(error.contains("no such day"), "{error}");
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn a_panic_is_found() {
        let dir = dir("panicked");
        drop(run(&dir, "echo fine >&2", true));
        assert!(nothing_panicked(&dir).is_ok());
        drop(run(
            &dir,
            "echo \"thread 'x' panicked at a.rs:1:\" >&2",
            true,
        ));
        let error = nothing_panicked(&dir).expect_err("a panic").to_string();
        assert!(error.contains("a.rs:1"), "{error}");
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
