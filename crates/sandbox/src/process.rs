//! Processes named by id and start time, so that a recycled id is never
//! signalled. Signals go through a pidfd, which cannot change its meaning
//! between the check and the signal.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::{Result, SandboxError};

/// A process that cannot be confused with a later one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub started: u64,
}

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReport {
    /// There was no process.
    WasDown,
    /// Another one runs on its data, which we did not start. It was left alone.
    ByHand {
        /// Its process id.
        pid: i32,
    },
    /// It ended by itself after SIGTERM.
    Ended {
        /// From the signal to the end of the process.
        took: Duration,
    },
    /// It ended by itself after SIGTERM, but not cleanly.
    Failed {
        /// From the signal to the end of the process.
        took: Duration,
        /// How it ended.
        how: BadEnd,
    },
    /// It did not end within the limit and was killed.
    Killed {
        /// The limit.
        after: Duration,
    },
}

/// How a process ended that should have ended cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadEnd {
    /// By this signal.
    Signal(i32),
    /// With this exit code.
    Code(i32),
    /// A thread of it panicked, says its log.
    Panic,
}

impl fmt::Display for BadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Panic => write!(f, "a panic"),
        }
    }
}

/// SIGTERM's number.
const TERM: i32 = 15;

impl BadEnd {
    /// What the status says; none of the end that was asked for.
    pub(crate) fn of_status(status: ExitStatus) -> Option<Self> {
        match status.signal() {
            // It was told to end before it listened.
            Some(TERM) => None,
            Some(signal) => Some(Self::Signal(signal)),
            None if status.success() => None,
            None => Some(Self::Code(status.code().unwrap_or(-1))),
        }
    }

    /// What a server or witness has logged of its end. Of one that is not our child nothing else
    /// tells; and a server that catches its signal may end with a mere code.
    fn of_log(text: &str) -> Option<Self> {
        let got = text.split("mariadbd got signal ").nth(1);
        let number = got.map(|rest| rest.split_whitespace().next()?.parse().ok());
        match number {
            Some(signal) => Some(Self::Signal(signal.unwrap_or(-1))),
            None => PANICS
                .iter()
                .any(|w| text.contains(w))
                .then_some(Self::Panic),
        }
    }
}

/// The length of a log now, for [`logged_since`].
pub(crate) fn log_mark(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |m| m.len())
}

/// What was written to a log behind the mark; all of it, if it is a new one.
pub(crate) fn logged_since(log: &Path, mark: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let mark = usize::try_from(mark).unwrap_or(usize::MAX);
    String::from_utf8_lossy(bytes.get(mark..).unwrap_or(&bytes)).into_owned()
}

/// What is logged of a panic: by our library, and by Rust.
const PANICS: [&str; 2] = ["Panic in thread", "panicked at"];

impl StopReport {
    /// The same, if neither the status (of a child of ours) nor what was logged since the stop says
    /// that the end was a bad one.
    pub(crate) fn judged(self, status: Option<ExitStatus>, logged: &str) -> Self {
        let Self::Ended { took } = self else {
            return self;
        };
        match BadEnd::of_log(logged).or_else(|| BadEnd::of_status(status?)) {
            Some(how) => Self::Failed { took, how },
            None => self,
        }
    }
}

/// What the kernel gets to end a killed process, at least.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait in one call of the system.
const ONE_POLL: Duration = Duration::from_secs(3600);

/// Unit of the times in `/proc/PID/stat`, per second; Linux shows programs
/// this one whatever it uses inside.
const TICKS_PER_SECOND: u64 = 100;

/// What a process has used since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time on a core, user and system, all threads.
    pub cpu: Duration,
    /// The most memory it had at once, in bytes (resident; see
    /// [`ProcessId::forget_memory_peak`]).
    pub memory_peak: u64,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It runs or sleeps.
    Running,
    /// It was stopped by SIGSTOP.
    Stopped,
    /// It has ended (or its id belongs to another process by now).
    Gone,
}

impl ProcessId {
    /// Reads the identity of a running process.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: i32) -> Result<Self> {
        let Stat { started, .. } = read_stat(pid).map_err(|source| SandboxError::Process {
            what: "find the start time of",
            pid,
            source,
        })?;
        Ok(Self { pid, started })
    }

    /// That of a child which was not waited for yet.
    pub(crate) fn of_child(child: &Child) -> Result<Self> {
        let pid = i32::try_from(child.id())
            .map_err(|_| SandboxError::BadRequest("impossible process id".into()))?;
        Self::of(pid)
    }

    /// What the process does now.
    #[must_use]
    pub fn state(self) -> ProcessState {
        match read_stat(self.pid) {
            Ok(stat) if stat.started == self.started => match stat.state {
                // Its first thread has ended; the others may still hold its ports.
                'Z' if stat.threads > 1 => ProcessState::Running,
                'Z' | 'X' => ProcessState::Gone,
                'T' | 't' => ProcessState::Stopped,
                _ => ProcessState::Running,
            },
            _ => ProcessState::Gone,
        }
    }

    /// True until the process has ended.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self.state() != ProcessState::Gone
    }

    /// What it has used so far; none if it has ended.
    #[must_use]
    pub fn usage(self) -> Option<Usage> {
        let stat = read_stat(self.pid)
            .ok()
            .filter(|s| s.started == self.started)?;
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        Some(Usage {
            cpu: Duration::from_millis(stat.cpu_ticks * 1000 / TICKS_PER_SECOND),
            memory_peak: parse_memory_peak(&text)?,
        })
    }

    /// Lets [`Usage::memory_peak`] begin anew at what the process has now.
    /// False if this user may not, or the process has ended.
    pub fn forget_memory_peak(self) -> bool {
        self.is_alive() && fs::write(format!("/proc/{}/clear_refs", self.pid), "5").is_ok()
    }

    /// Holds the process (SIGSTOP), and waits, for `limit` at most, until none of its threads does
    /// anything any more: the signal is there before they have noticed.
    ///
    /// # Errors
    /// When the system refuses, for instance for another user's process.
    pub(crate) fn hold(self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        let held = self.signal(Signal::STOP)?;
        while held && !self.is_held() && begin.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether it was stopped, and no thread of it has yet to notice. One that waits for a disk stops
    /// when that is over.
    fn is_held(self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return true;
        };
        let of = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("stat")).ok()?;
            Some(parse_stat(&text)?.state)
        };
        let states: Vec<char> = tasks.flatten().filter_map(of).collect();
        let stopped = |state: &char| matches!(state, 'T' | 't' | 'Z' | 'X');
        states.iter().any(stopped) && states.iter().all(|s| stopped(s) || *s == 'D')
    }

    /// Sends a signal; false if the process is gone already.
    ///
    /// # Errors
    /// When the system refuses, for instance for another user's process.
    pub(crate) fn signal(self, signal: Signal) -> Result<bool> {
        let Some(fd) = self.open()? else {
            return Ok(false);
        };
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(e) => Err(SandboxError::Process {
                what: "signal",
                pid: self.pid,
                source: e.into(),
            }),
        }
    }

    /// Asks it to end (SIGTERM) and waits; kills it after `limit`. A child stays to be
    /// waited for.
    ///
    /// # Errors
    /// When it cannot be signalled, or is there even after SIGKILL.
    pub fn end(self, limit: Duration) -> Result<StopReport> {
        let begin = Instant::now();
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)?; // a held process sees SIGTERM only when it goes on
        if self.wait_gone(limit)? {
            return Ok(StopReport::Ended {
                took: begin.elapsed(),
            });
        }
        self.signal(Signal::KILL)?;
        self.wait_killed(KILL_LIMIT)?;
        Ok(StopReport::Killed { after: limit })
    }

    /// Waits until it is gone after SIGKILL.
    ///
    /// # Errors
    /// [`SandboxError::OutlivesKill`] after `limit`: it still has its files and ports.
    pub(crate) fn wait_killed(self, limit: Duration) -> Result<()> {
        match self.wait_gone(limit)? {
            true => Ok(()),
            false => Err(SandboxError::OutlivesKill {
                pid: self.pid,
                waited: limit,
            }),
        }
    }

    /// Waits until the process has ended; false if `limit` passes first.
    pub(crate) fn wait_gone(self, limit: Duration) -> Result<bool> {
        let Some(fd) = self.open()? else {
            return Ok(true);
        };
        let begin = Instant::now();
        loop {
            // No sum with the clock: whatever limit is asked for fits.
            let left = limit.saturating_sub(begin.elapsed()).min(ONE_POLL);
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if begin.elapsed() < limit => {}
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    return Err(SandboxError::Process {
                        what: "wait for",
                        pid: self.pid,
                        source: e.into(),
                    });
                }
            }
        }
    }

    fn open(self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => {
                return Err(SandboxError::Process {
                    what: "open",
                    pid: self.pid,
                    source: e.into(),
                });
            }
        };
        // The fd pins the process; only now does the start time prove which one.
        Ok(self.is_alive().then_some(fd))
    }
}

/// A process that has a file in `dir` open, as far as we may look. Its id can be given again once it has ended.
pub(crate) fn who_is_in(dir: &Path) -> Option<i32> {
    let dir = dir.canonicalize().ok()?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|file| fs::read_link(file.path()).is_ok_and(|to| to.starts_with(&dir)))
    })
}

/// Some fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    /// User and system time.
    cpu_ticks: u64,
    threads: u64,
    started: u64,
}

fn read_stat(pid: i32) -> io::Result<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/PID/stat"))
}

/// The command name (field 2) may itself hold blanks and brackets, so fields
/// are counted after its last bracket.
fn parse_stat(text: &str) -> Option<Stat> {
    let after = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        cpu_ticks: number(11)? + number(12)?,
        threads: number(17)?,
        started: number(19)?,
    })
}

/// `VmHWM` of `/proc/PID/status`, in bytes.
fn parse_memory_peak(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// All processes whose environment holds `marker` (as `NAME=value`): what a
/// server started for us (transfer scripts, rsync, socat) inherits it.
pub(crate) fn marked(marker: &str) -> Vec<ProcessId> {
    with_environment(|entry| entry == marker.as_bytes())
}

/// All processes that have such an entry (`NAME=value`) in their environment.
pub(crate) fn with_environment(is_wanted: impl Fn(&[u8]) -> bool) -> Vec<ProcessId> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|b| *b == 0).any(&is_wanted))
        })
        .filter_map(|pid| ProcessId::of(pid).ok())
        .filter(|process| process.is_alive())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn stat_lines_with_odd_names_are_read() {
        let line = "42 (a) b (c)) T 1 42 42 0 -1 4194560 1 0 0 0 31 7 0 0 20 0 1 0 98765 0 0";
        let stat = Stat {
            state: 'T',
            cpu_ticks: 38,
            threads: 1,
            started: 98765,
        };
        assert_eq!(parse_stat(line), Some(stat));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn the_use_of_a_process_is_read() {
        let text = "Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t   12 kB\n";
        assert_eq!(parse_memory_peak(text), Some(12 * 1024));
        assert_eq!(parse_memory_peak("Name:\tx\n"), None);
        let own = ProcessId::of(std::process::id().cast_signed()).expect("it runs");
        let before = own.usage().expect("it runs");
        assert!(before.memory_peak > 0);
        let begin = Instant::now();
        while own.usage().expect("it runs").cpu == before.cpu {
            assert!(begin.elapsed() < Duration::from_secs(60), "no time passes");
        }
        let other = ProcessId {
            started: own.started + 1,
            ..own
        };
        assert_eq!(other.usage(), None);
    }

    #[test]
    fn a_process_is_stopped_continued_and_killed_by_identity() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env("DROMON_TEST_MARK", "one")
            .spawn()
            .expect("sleep starts");
        let id = ProcessId::of(i32::try_from(child.id()).expect("a pid")).expect("it runs");
        assert_eq!(id.state(), ProcessState::Running);
        assert!(!id.is_held());
        id.hold(Duration::from_secs(5)).expect("allowed");
        assert!(id.is_held());
        assert_eq!(id.state(), ProcessState::Stopped);
        assert!(!id.wait_gone(Duration::from_millis(20)).expect("poll"));
        // As if SIGKILL had not ended it yet.
        let error = id
            .wait_killed(Duration::from_millis(20))
            .expect_err("alive");
        assert!(
            matches!(error, SandboxError::OutlivesKill { .. }),
            "{error}"
        );

        let other = ProcessId {
            started: id.started + 1,
            ..id
        };
        assert_eq!(other.state(), ProcessState::Gone);
        assert!(
            !other.signal(Signal::KILL).expect("nothing to signal"),
            "a recycled id must not be signalled"
        );

        assert!(id.signal(Signal::KILL).expect("allowed"));
        assert!(id.wait_gone(Duration::MAX).expect("poll"));
        child.wait().expect("reaped");
        assert_eq!(id.state(), ProcessState::Gone);
    }

    #[test]
    fn a_bad_end_is_told_by_the_status_or_the_log() {
        let ended = StopReport::Ended {
            took: Duration::from_secs(2),
        };
        let how = |status: Option<i32>, logged: &str| match ended
            .judged(status.map(ExitStatus::from_raw), logged)
        {
            StopReport::Failed { how, .. } => Some(how),
            _ => None,
        };
        let done = "[Note] /usr/sbin/mariadbd: Shutdown complete\n";
        let crash = "261127 18:00:00 [ERROR] /usr/sbin/mariadbd got signal 11 ;\nmore\n";
        assert_eq!(how(Some(0), done), None);
        assert_eq!(how(None, done), None);
        assert_eq!(how(Some(11), done), Some(BadEnd::Signal(11)));
        assert_eq!(how(Some(3 << 8), done), Some(BadEnd::Code(3)));
        assert_eq!(how(None, crash), Some(BadEnd::Signal(11)));
        assert_eq!(how(Some(1 << 8), crash), Some(BadEnd::Signal(11)));
        for words in [
            "[ERROR] WSREP: Panic in thread 'x' at a.rs:1:2: no\n",
            "thread 'x' panicked at a.rs:1:2\n",
        ] {
            assert_eq!(how(Some(0), words), Some(BadEnd::Panic));
        }
        let killed = StopReport::Killed {
            after: Duration::from_secs(2),
        };
        assert_eq!(killed.judged(Some(ExitStatus::from_raw(9)), crash), killed);
    }

    #[test]
    fn marked_processes_are_found_by_environment() {
        let value = format!("two-{}", std::process::id());
        let mut child = Command::new("sleep")
            .arg("60")
            .env("DROMON_TEST_MARK", &value)
            .spawn()
            .expect("sleep starts");
        // The environment is only visible once the child has called exec.
        let marker = format!("DROMON_TEST_MARK={value}");
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut found = marked(&marker);
        while found.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            found = marked(&marker);
        }
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(
            found.iter().map(|p| p.pid).collect::<Vec<_>>(),
            vec![i32::try_from(child.id()).expect("a pid")]
        );
        assert!(marked(&marker).is_empty());
    }
}
