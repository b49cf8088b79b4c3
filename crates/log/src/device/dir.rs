//! A real directory.

use super::{ClosedLater, Closer, Device, DeviceFile, read_file_at};
use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Advice;

use crate::error::no_descriptor;

/// Linux takes at most this many slices in one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// Files in one directory of the file system. Holds an advisory lock (`flock`) on the
/// directory as long as it lives, so that two processes never write one log.
#[derive(Debug)]
pub struct DirDevice {
    path: PathBuf,
    /// The directory itself: for fsync, and bearer of the lock.
    dir: File,
    closer: Arc<Closer>,
    /// A descriptor that is given up for the log's next file when the process has no other:
    /// whoever has them all, the log must go on.
    spare: Mutex<Option<File>>,
}

impl DirDevice {
    /// Opens an existing directory and locks it.
    ///
    /// Errors: the directory is missing or unreadable; `WouldBlock` when another process
    /// (or another `DirDevice` of this one) has it.
    pub fn open(path: impl AsRef<Path>) -> io::Result<DirDevice> {
        let path = path.as_ref().to_path_buf();
        let dir = File::open(&path)?;
        if !dir.metadata()?.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is not a directory.", path.display()),
            ));
        }
        match dir.try_lock() {
            Ok(()) => Ok(DirDevice {
                spare: Mutex::new(File::open(&path).ok()),
                path,
                dir,
                closer: Arc::default(),
            }),
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!(
                    "The directory {} is locked by another process that uses the log in it, or by an \
                     engine of this one that has not ended yet, as on a disk that hangs. Two \
                     writers would destroy the log. Stop the other process first; if there is none, \
                     this one must be restarted if it does not end soon.",
                    path.display()
                ),
            )),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, file: File) -> Arc<dyn DeviceFile> {
        Arc::new(DirFile(ClosedLater::new(file, self.closer.clone())))
    }

    /// Opens something; with the spare descriptor, if there is no other one. It is taken again
    /// as soon as that goes.
    fn with_spare<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut opened = open();
        if opened.as_ref().err().is_some_and(no_descriptor) {
            let spare = self.spare.lock().take();
            if spare.is_some() {
                drop(spare);
                opened = open();
            }
        }
        let mut spare = self.spare.lock();
        if spare.is_none() {
            *spare = File::open(&self.path).ok();
        }
        opened
    }

    /// [`Device::list`], once.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if is_file(entry.file_type())?
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o660);
        options
    }
}

/// Where the directory does not tell the types (XFS with `ftype=0`, NFS), each is asked for by itself: what was removed
/// meanwhile, as the server's own files are at any time, is not there.
fn is_file(asked: io::Result<FileType>) -> io::Result<bool> {
    match asked {
        Ok(found) => Ok(found.is_file()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

impl Device for DirDevice {
    fn list(&self) -> io::Result<Vec<String>> {
        self.with_spare(|| self.names())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let file = self.with_spare(|| DirDevice::options().open(self.path.join(name)))?;
        Ok(self.file(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let mut options = DirDevice::options();
        options.create_new(true);
        let file = self.with_spare(|| options.open(self.path.join(name)))?;
        Ok(self.file(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

struct DirFile(ClosedLater);

impl DeviceFile for DirFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let file = self.0.get()?;
        let mut rest = slices;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let batch = rest.len().min(SLICES_MAX);
            match rustix::io::pwritev(file, &rest[..batch], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_file_at(self.0.get()?, buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.get()?.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.get()?.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.get()?.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if self.len()? >= len {
            return Ok(());
        }
        // Without room or support the log still works, growing write by write; a disk
        // that is really full says so at the write.
        let _ = rustix::fs::fallocate(self.0.get()?, rustix::fs::FallocateFlags::empty(), 0, len);
        Ok(())
    }

    fn reread(&self) {
        if let Ok(file) = self.0.get() {
            let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
        }
    }

    fn release(&self, bytes: Range<u64>) {
        let len = NonZeroU64::new(bytes.end.saturating_sub(bytes.start));
        if let (Some(len), Ok(file)) = (len, self.0.get()) {
            let _ = rustix::fs::fadvise(file, bytes.start, Some(len), Advice::DontNeed);
        }
    }

    fn removed(&self) {
        self.0.removed();
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.get()?.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_while_the_directory_is_listed_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |path: &Path| std::fs::symlink_metadata(path).map(|m| m.file_type());
        let file = dir.path().join("file");
        std::fs::write(&file, b"").expect("room");
        assert!(is_file(of(&file)).expect("there"));
        assert!(!is_file(of(dir.path())).expect("there"));
        std::fs::remove_file(&file).expect("there");
        assert!(!is_file(of(&file)).expect("it is only gone"));
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(is_file(Err(other)).is_err());
    }
}
