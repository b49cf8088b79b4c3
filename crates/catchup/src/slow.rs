//! A slower disk for a server: a small library in C, built here, that the server loads, and
//! the numbers in a file through which it is told how slow, and says what it did.
//!
//! In C, as replacing functions of the C library is `unsafe` in Rust, and nothing else in this
//! program needs that. It is loaded into servers of measurements only.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

const SOURCE: &str = include_str!("slow_disk.c");
/// Bytes of one number in the file.
const NUMBER: u64 = 8;

/// The library, and the file of its numbers.
#[derive(Debug)]
pub struct SlowDisk {
    library: PathBuf,
    path: PathBuf,
    numbers: File,
}

/// What a server has asked of its disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// fsync and fdatasync.
    pub fsyncs: u64,
    /// Reads of tables while they were slow.
    pub reads: u64,
}

impl SlowDisk {
    /// Builds the library in a directory that servers can read.
    ///
    /// # Errors
    /// When there is no C compiler.
    pub fn build(dir: &Path) -> anyhow::Result<Self> {
        let source = dir.join("slow_disk.c");
        let library = dir.join("slow_disk.so");
        fs::write(&source, SOURCE).with_context(|| format!("writing {}", source.display()))?;
        let out = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-o"])
            .args([&library, &source])
            .stdin(Stdio::null())
            .output()
            .context("A C compiler makes the disk of the servers slow; there is none. Install it: apt-get install gcc libc6-dev")?;
        ensure!(
            out.status.success(),
            "The library that makes disks slow cannot be built: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
        let path = dir.join("slow_disk.numbers");
        let numbers = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .with_context(|| format!("creating {}", path.display()))?;
        numbers.set_len(4 * NUMBER)?;
        // A server may change its user before the library opens it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755))?;
        Ok(Self {
            library,
            path,
            numbers,
        })
    }

    /// For the environment of a server.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("DROMON_SLOW_DISK", self.path.clone().into()),
        ]
    }

    /// From now on each fsync and each read of a table takes so much longer.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, fsync: Duration, read: Duration) -> anyhow::Result<()> {
        for (place, delay) in [(0, fsync), (1, read)] {
            let us = u64::try_from(delay.as_micros())?;
            self.numbers
                .write_all_at(&us.to_ne_bytes(), place * NUMBER)
                .with_context(|| format!("writing {}", self.path.display()))?;
        }
        Ok(())
    }

    /// What was asked of it since it was built.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn asked(&self) -> anyhow::Result<Asked> {
        let number = |place: u64| -> anyhow::Result<u64> {
            let mut bytes = [0; NUMBER as usize];
            self.numbers
                .read_exact_at(&mut bytes, place * NUMBER)
                .with_context(|| format!("reading {}", self.path.display()))?;
            Ok(u64::from_ne_bytes(bytes))
        };
        Ok(Asked {
            fsyncs: number(2)?,
            reads: number(3)?,
        })
    }
}

impl std::ops::Sub for Asked {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            fsyncs: self.fsyncs.saturating_sub(before.fsyncs),
            reads: self.reads.saturating_sub(before.reads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Needs `cc` and `sync` of coreutils, which every Debian that builds this has.
    #[test]
    fn a_program_has_a_slower_disk_and_it_is_counted() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let disk = SlowDisk::build(dir.path()).expect("built");
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("written");
        let sync = || {
            let begin = Instant::now();
            let status = Command::new("sync")
                .arg(&file)
                .envs(disk.environment())
                .status()
                .expect("sync runs");
            assert!(status.success());
            begin.elapsed()
        };
        sync();
        assert_eq!(
            disk.asked().expect("numbers"),
            Asked {
                fsyncs: 1,
                reads: 0
            }
        );
        let slow = Duration::from_millis(300);
        disk.set(slow, Duration::ZERO).expect("set");
        assert!(sync() >= slow);
        assert_eq!(disk.asked().expect("numbers").fsyncs, 2);
    }

    #[test]
    fn only_reads_of_tables_are_slow() {
        const READER: &str = r#"#include <fcntl.h>
            #include <unistd.h>
            int main(int n, char **files)
            {
                char c;
                for (int i = 1; i < n; i++) {
                    int fd = open(files[i], O_RDONLY);
                    if (pread(fd, &c, 1, 0) != 1 || c != '0' + i || close(fd) != 0) return i;
                }
                return 0;
            }"#;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let disk = SlowDisk::build(dir.path()).expect("built");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("reader.c"), READER).expect("written");
        fs::write(at("t.ibd"), "1").expect("written");
        fs::write(at("t.frm"), "2").expect("written");
        let built = Command::new("cc")
            .args([at("reader.c"), "-o".into(), at("reader")])
            .status();
        assert!(built.expect("cc runs").success());
        let read = || {
            let begin = Instant::now();
            let status = Command::new(at("reader"))
                .args([at("t.ibd"), at("t.frm")])
                .envs(disk.environment())
                .status()
                .expect("it runs");
            assert_eq!(status.code(), Some(0), "what is read stays the same");
            begin.elapsed()
        };
        read();
        assert_eq!(disk.asked().expect("numbers"), Asked::default());
        let slow = Duration::from_millis(300);
        disk.set(Duration::ZERO, slow).expect("set");
        assert!(read() >= slow);
        assert_eq!(disk.asked().expect("numbers").reads, 1);
    }

    #[test]
    fn numbers_are_differences() {
        let (a, b) = (
            Asked {
                fsyncs: 7,
                reads: 1,
            },
            Asked {
                fsyncs: 5,
                reads: 1,
            },
        );
        assert_eq!(
            a - b,
            Asked {
                fsyncs: 2,
                reads: 0
            }
        );
    }
}
