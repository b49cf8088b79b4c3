//! A file system for each node that can lose power.
//!
//! Each data directory is an ext4 file system of its own on a loop device.
//! `EXT4_IOC_SHUTDOWN` without flushing the journal makes it forget what was
//! not synced, as a power cut does; mounting it again replays its journal.
//! The servers are held (SIGSTOP) meanwhile and killed before they go on.
//!
//! What was written with `O_DIRECT` passes the page cache and would survive
//! without a sync. So the log under test must not use it
//! ([`log_files_direct`]), and InnoDB is told not to for its own
//! (`innodb_log_file_buffering=ON`). At each cut a file that was synced must
//! survive and one that was not must be gone: otherwise the cut was none.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dromon_sandbox::{Cluster, Node, ProcessState};

use super::{required, run};

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`, for each argument.
/// In Perl (part of every Debian), as an ioctl of one's own is unsafe in Rust.
const SHUT_DOWN: &str = r#"my $how = pack("L", 2);
for (@ARGV) {
    open(my $dir, "<", $_) or die "$_: $!\n";
    ioctl($dir, 0x8004587d, $how) or die "EXT4_IOC_SHUTDOWN $_: $!\n";
}"#;
/// Size of a file system; the image is sparse.
const BYTES: u64 = 3 << 30;
const O_DIRECT: u64 = 0o40_000;
const SYNCED: &str = "dromon-test-synced";
const UNSYNCED: &str = "dromon-test-unsynced";

/// An ext4 file system in a file, and where it is mounted.
pub(super) struct Disk {
    image: PathBuf,
    pub(super) mounted_on: PathBuf,
}

/// The file systems of a cluster's nodes; each is unmounted when dropped.
pub struct Disks(Vec<Disk>);

impl Disks {
    /// Puts the data directories of a cluster that was not started yet on file
    /// systems of their own.
    pub fn give(cluster: &Cluster) -> anyhow::Result<Self> {
        required("A power cut")?;
        let mut disks = Self(Vec::new());
        for node in cluster.nodes() {
            let record = node.record();
            let plain = record.dir.join("data.plain");
            fs::rename(&record.data_dir, &plain)?;
            let disk = Disk::make(&record.dir.join("disk.img"), BYTES, &record.data_dir)?;
            let (from, to) = (format!("{}/.", text(&plain)?), text(&disk.mounted_on)?);
            run("cp", &["-a", &from, to], "")?;
            run("sync", &["-f", to], "")?;
            fs::remove_dir_all(&plain)?;
            disk.write(SYNCED)?.sync_all()?;
            disks.0.push(disk);
        }
        Ok(disks)
    }

    /// Stores all that the servers and their scripts have written so far.
    pub fn sync(&self) -> anyhow::Result<()> {
        for disk in &self.0 {
            run("sync", &["-f", text(&disk.mounted_on)?], "")?;
        }
        Ok(())
    }

    /// All nodes lose power at once. Returns once their file systems are mounted
    /// again; the servers are down.
    pub fn power_cut(&self, cluster: &Cluster) -> anyhow::Result<()> {
        for node in cluster.nodes() {
            node.pause()?;
        }
        for node in cluster.nodes() {
            held(node)?;
        }
        for disk in &self.0 {
            disk.before_cut()?;
        }
        let points = self
            .0
            .iter()
            .map(|d| text(&d.mounted_on))
            .collect::<anyhow::Result<Vec<_>>>()?;
        shut_down(&points).context("the power cut could not be made")?;
        cluster.kill_all()?;
        for disk in &self.0 {
            disk.after_cut()?;
        }
        Ok(())
    }
}

/// The file system of one program that is no node.
pub struct PlainDisk(Disk);

impl PlainDisk {
    /// Makes an empty one in the sparse file `image` and mounts it on `place`, which is created.
    pub fn make(image: &Path, place: &Path) -> anyhow::Result<Self> {
        Self::make_of(BYTES, image, place)
    }

    /// The same, of so many bytes.
    pub fn make_of(bytes: u64, image: &Path, place: &Path) -> anyhow::Result<Self> {
        required("A power cut")?;
        let disk = Disk::make(image, bytes, place)?;
        disk.write(SYNCED)?.sync_all()?;
        Ok(Self(disk))
    }

    /// It loses power. Whoever uses it is held; `kill` ends it before it is mounted again.
    pub fn power_cut(&self, kill: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.0.before_cut()?;
        shut_down(&[text(&self.0.mounted_on)?]).context("the power cut could not be made")?;
        kill()?;
        self.0.after_cut()
    }
}

/// The file systems mounted there do nothing more, and forget what was not synced.
pub(super) fn shut_down(points: &[&str]) -> anyhow::Result<()> {
    run("perl", &[&["-e", SHUT_DOWN][..], points].concat(), "").map(drop)
}

impl Disk {
    /// Makes an empty one of `bytes` in the sparse file `image` and mounts it on
    /// `mounted_on`, which is created.
    pub(super) fn make(image: &Path, bytes: u64, mounted_on: &Path) -> anyhow::Result<Self> {
        File::create(image)?.set_len(bytes)?;
        run(
            "mkfs.ext4",
            &[
                "-q",
                "-F",
                "-m",
                "0",
                "-N",
                "20000",
                "-J",
                "size=32",
                text(image)?,
            ],
            "",
        )?;
        fs::create_dir(mounted_on)?;
        let disk = Self {
            image: image.to_owned(),
            mounted_on: mounted_on.to_owned(),
        };
        disk.mount()?;
        // A directory there would be a database to the server.
        fs::remove_dir(disk.mounted_on.join("lost+found"))?;
        Ok(disk)
    }

    pub(super) fn mount(&self) -> anyhow::Result<()> {
        // The system itself writes late, so that nothing unsynced survives by chance.
        run(
            "mount",
            &[
                "-o",
                "loop,commit=300",
                text(&self.image)?,
                text(&self.mounted_on)?,
            ],
            "",
        )?;
        Ok(())
    }

    pub(super) fn unmount(&self) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match run("umount", &[text(&self.mounted_on)?], "") {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Something that must survive, and something that must not.
    fn before_cut(&self) -> anyhow::Result<()> {
        // A full copy may have removed it. Not written at each cut: to sync
        // it carries other changes to the disk.
        if !self.mounted_on.join(SYNCED).exists() {
            self.write(SYNCED)?.sync_all()?;
        }
        self.write(UNSYNCED)?;
        Ok(())
    }

    /// Mounts it again, and sees that the cut was one.
    fn after_cut(&self) -> anyhow::Result<()> {
        self.unmount()?;
        self.mount()?;
        let left = |name| fs::read(self.mounted_on.join(name)).unwrap_or_default();
        ensure!(
            left(SYNCED) == SYNCED.as_bytes(),
            "the power cut took what was synced: this machine's file system cannot be used for the test"
        );
        ensure!(
            left(UNSYNCED) != UNSYNCED.as_bytes(),
            "the power cut was none: {} kept what was not synced",
            self.mounted_on.display()
        );
        if self.mounted_on.join(UNSYNCED).exists() {
            fs::remove_file(self.mounted_on.join(UNSYNCED))?;
        }
        Ok(())
    }

    fn write(&self, name: &str) -> anyhow::Result<File> {
        let mut file = File::create(self.mounted_on.join(name))?;
        file.write_all(name.as_bytes())?;
        Ok(file)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Ok(point) = text(&self.mounted_on) {
            // Lazily: a server that a failed test left behind may still use it.
            let _ = run("umount", &["-l", point], "");
        }
    }
}

pub(super) fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is not text")
}

/// Waits until every thread of the server is stopped.
pub(super) fn held(node: &Node) -> anyhow::Result<()> {
    let process = node.process().context("the server ended before the cut")?;
    let end = Instant::now() + Duration::from_secs(5);
    while process.state() != ProcessState::Stopped {
        if Instant::now() > end {
            bail!("{} did not stop for the power cut", node.name());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Of the provider's log files that a running server has open: how many there
/// are, and how many are open with `O_DIRECT`.
pub fn log_files_direct(node: &Node) -> anyhow::Result<(usize, usize)> {
    let process = node.process().context("the server does not run")?;
    let (mut all, mut direct) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{}/fd", process.pid))?.flatten() {
        let is_log = fs::read_link(entry.path()).is_ok_and(|target| {
            let name = target.file_name().map(|n| n.to_string_lossy().into_owned());
            name.is_some_and(|n| n.starts_with("dromon-") && n.ends_with(".log"))
        });
        if !is_log {
            continue;
        }
        let fd = entry.file_name();
        let info = fs::read_to_string(format!(
            "/proc/{}/fdinfo/{}",
            process.pid,
            fd.to_string_lossy()
        ))?;
        let flags = info
            .lines()
            .find_map(|l| l.strip_prefix("flags:"))
            .and_then(|f| u64::from_str_radix(f.trim(), 8).ok())
            .context("no flags of an open file")?;
        all += 1;
        direct += usize::from(flags & O_DIRECT != 0);
    }
    Ok((all, direct))
}
