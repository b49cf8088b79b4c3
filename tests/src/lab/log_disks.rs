//! A file system for each node's log alone (`gcache.dir`) that can fail, hang
//! and fill up under the running server, while its data stays whole.
//!
//! | fault | how | what the log sees |
//! |---|---|---|
//! | errors | `EXT4_IOC_SHUTDOWN` | EIO for every write and sync; what was not synced is gone |
//! | hangs | `fsfreeze` | writes and syncs do not return before it thaws |
//! | full | a file takes the room | ENOSPC |

use std::fs;

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Node};

use super::disks::{Disk, held, shut_down, text};
use super::{required, run};

/// Size of a file system; the image is sparse.
const BYTES: u64 = 1 << 30;
const FILLER: &str = "dromon-test-filler";
/// What is left free when it is filled: the log must meet the end while it runs.
const LEFT_FREE: u64 = 2 << 20;
/// Written to see whether the fault is there.
const PROBE: &str = "dromon-test-probe";

/// What can happen to a log's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFault {
    /// Every write and sync fails.
    Errors,
    /// No write and no sync returns.
    Hangs,
    /// There is no room any more.
    Full,
}

impl LogFault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Errors, Self::Hangs, Self::Full];

    /// In a sentence after "its log's disk".
    pub fn name(self) -> &'static str {
        match self {
            Self::Errors => "failed (EIO)",
            Self::Hangs => "hung",
            Self::Full => "was full (ENOSPC)",
        }
    }

    /// What the server's log says of it in the system's words; none: it waits.
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Errors => Some("Input/output error"),
            Self::Hangs => None,
            Self::Full => Some("No space left on device"),
        }
    }
}

/// The file systems of all nodes' logs; unmounted when dropped.
pub struct LogDisks(Vec<Disk>);

impl LogDisks {
    /// The provider option that puts each node's log there, whose server's
    /// working directory is its data directory.
    pub const OPTION: &str = "gcache.dir=../log";

    /// Mounts one beside each data directory of a cluster that was not started yet.
    pub fn give(cluster: &Cluster) -> anyhow::Result<Self> {
        required("A fault of a disk")?;
        let mut disks = Self(Vec::new());
        for node in cluster.nodes() {
            let record = node.record();
            let disk = Disk::make(&record.dir.join("log.img"), BYTES, &record.dir.join("log"))?;
            // The server's user must be able to write there.
            let like = format!("--reference={}", text(&record.data_dir)?);
            run("chown", &[&like, text(&disk.mounted_on)?], "")?;
            disks.0.push(disk);
        }
        Ok(disks)
    }

    /// Causes the fault under node `index`; it lasts until [`Hurt::mended`], or
    /// until what is returned is dropped.
    pub fn hurt(&self, index: usize, fault: LogFault) -> anyhow::Result<Hurt<'_>> {
        let disk = &self.0[index];
        let point = text(&disk.mounted_on)?;
        let logs = fs::read_dir(&disk.mounted_on)?
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().ends_with(".log"))
            .count();
        ensure!(
            logs > 0,
            "no log lies in {point}: the fault would show nothing"
        );
        let hurt = Hurt { disk, fault };
        match fault {
            LogFault::Errors => {
                shut_down(&[point])?;
                let probe = fs::write(disk.mounted_on.join(PROBE), "x");
                ensure!(
                    probe.is_err(),
                    "{point} can be written although it was shut down"
                );
            }
            // From here on even we would wait.
            LogFault::Hangs => drop(run("fsfreeze", &["--freeze", point], "")?),
            LogFault::Full => hurt.fill(LEFT_FREE)?,
        }
        Ok(hurt)
    }
}

/// A fault that lasts.
pub struct Hurt<'a> {
    disk: &'a Disk,
    fault: LogFault,
}

impl Hurt<'_> {
    /// Takes what room there is again: a log that was cut back at its end has
    /// some, and a server that found it could come back.
    pub fn stays_full(&self) -> anyhow::Result<()> {
        match self.fault {
            LogFault::Full => self.fill(0),
            LogFault::Errors | LogFault::Hangs => Ok(()),
        }
    }

    /// Takes what room a log made that was cut at its beginning, but for what was left at first:
    /// else one that is cut as fast as it is written never comes to its end.
    pub fn fills_up(&self) {
        if self.fault == LogFault::Full {
            // The log may be faster; then there is less to take the next time.
            let _ = self.fill(LEFT_FREE);
        }
    }

    fn fill(&self, leave: u64) -> anyhow::Result<()> {
        let point = text(&self.disk.mounted_on)?;
        let free = run("stat", &["--file-system", "--format=%a %S", point], "")?;
        let free: Vec<u64> = free.split_whitespace().flat_map(str::parse).collect();
        let [blocks, size] = free[..] else {
            bail!("stat says {free:?}")
        };
        let filler = self.disk.mounted_on.join(FILLER);
        let has = fs::metadata(&filler).map_or(0, |m| m.len());
        let more = (blocks * size).saturating_sub(leave);
        if more > 0 {
            let (from, more) = (has.to_string(), more.to_string());
            let arguments = ["--offset", &from, "--length", &more, text(&filler)?];
            // The server may have been faster; then there is less.
            if let Err(e) = run("fallocate", &arguments, "")
                && leave > 0
            {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Takes the server down, if it is not yet, and makes the file system what it was.
    pub fn mended(self, node: &Node) -> anyhow::Result<()> {
        match self.fault {
            LogFault::Errors => {
                ensure!(node.process().is_none(), "{} still runs", node.name());
                self.disk.unmount()?;
                self.disk.mount()?;
            }
            LogFault::Hangs => {
                // It must not go on when its disk does: whoever pulls out a disk
                // that hangs ends the server with it.
                node.pause()?;
                self.thaw()?;
                held(node)?;
                node.kill()?;
            }
            LogFault::Full => {
                let filler = self.disk.mounted_on.join(FILLER);
                fs::remove_file(filler).context("making room")?;
            }
        }
        Ok(())
    }

    fn thaw(&self) -> anyhow::Result<()> {
        let point = text(&self.disk.mounted_on)?;
        run("fsfreeze", &["--unfreeze", point], "").map(drop)
    }
}

impl Drop for Hurt<'_> {
    fn drop(&mut self) {
        // Also in a test that failed: a server that waits for it cannot be killed.
        if self.fault == LogFault::Hangs {
            let _ = self.thaw();
        }
    }
}
