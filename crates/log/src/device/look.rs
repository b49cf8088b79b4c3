//! A real directory, only to look at.

use super::{Device, DeviceFile, read_file_at};
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The log files of one directory, opened for reading only and without the lock, so that
/// a running node is not disturbed. Every change is refused.
#[derive(Debug)]
pub struct LookDevice {
    path: PathBuf,
    /// What stands before the log's own names: empty, or that of a log set aside.
    prefix: String,
}

impl LookDevice {
    /// The files in `path` whose names are `prefix` and then the name of a log's file.
    /// `prefix` is empty but for a log that was set aside (`damaged-<seconds>-`, `former-<seconds>-`).
    ///
    /// Errors: it is no directory, or cannot be read.
    pub fn open(path: impl AsRef<Path>, prefix: &str) -> io::Result<LookDevice> {
        let path = path.as_ref().to_path_buf();
        std::fs::read_dir(&path)?;
        Ok(LookDevice {
            path,
            prefix: prefix.to_owned(),
        })
    }
}

fn only_looking<T>() -> io::Result<T> {
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "this directory was opened only to look at it",
    ))
}

impl Device for LookDevice {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // One that is removed meanwhile is not there.
            let file = entry.file_type().is_ok_and(|t| t.is_file());
            if let Ok(name) = entry.file_name().into_string()
                && let Some(own) = name.strip_prefix(&self.prefix)
                && file
            {
                names.push(own.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let file = File::open(self.path.join(format!("{}{name}", self.prefix)))?;
        Ok(Arc::new(LookFile { file }))
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn DeviceFile>> {
        only_looking()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        only_looking()
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        only_looking()
    }

    fn sync_dir(&self) -> io::Result<()> {
        only_looking()
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

struct LookFile {
    file: File,
}

impl DeviceFile for LookFile {
    fn write_at(&self, _: &mut [IoSlice<'_>], _: u64) -> io::Result<()> {
        only_looking()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_file_at(&self.file, buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        only_looking()
    }

    fn sync_all(&self) -> io::Result<()> {
        only_looking()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        only_looking()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        only_looking()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}
