//! The device under the log: named files in one directory, real or simulated.
//!
//! The log asks little of it, and says what it relies on: a write is durable after the
//! file's `sync_data`; a new, removed or renamed name after `sync_dir`; a rename replaces
//! its target as one step; nothing else.

mod closer;
mod dir;
mod look;
mod sim;

pub use closer::{ClosedLater, Closer};
pub use dir::DirDevice;
pub use look::LookDevice;
pub use sim::SimDevice;

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// One directory of regular files. Names are plain file names, no paths.
pub trait Device: Send + Sync + 'static {
    /// Names of all regular files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>>;
    /// Makes a new, empty file; an error if the name exists.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>>;
    /// Removes a name. Open handles keep working.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes all changes of names durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Where this is, for messages.
    fn place(&self) -> String;
}

/// An open file. Reads may run beside one writer.
pub trait DeviceFile: Send + Sync {
    /// Writes all the slices one after another at `offset`, growing the file if needed.
    /// After an error any part may have been written.
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Fills `buf` from `offset`; fewer bytes are returned only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Makes all writes so far durable, with the length where it is needed to read them.
    fn sync_data(&self) -> io::Result<()>;
    /// As `sync_data`, and all of the file's attributes.
    fn sync_all(&self) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room and extends the file with zeros to at least `len`. Best effort: a
    /// device that cannot do it leaves the file as it is.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// What is stored of these bytes will hardly be read soon: memory that holds it may go
    /// to others. Best effort.
    fn release(&self, _bytes: Range<u64>) {}
    /// Of what is stored, memory is given up, so that the next read comes from the disk. A sync that
    /// fails leaves writes in memory that look stored and are not; nobody writes them again. For a file that was
    /// just synced; best effort.
    fn reread(&self) {}
    /// It was removed, and is read by those who have it open, through this handle, at most.
    fn removed(&self) {}
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the length is zero.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// [`DeviceFile::read_at`] of a real file.
fn read_file_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes one buffer at `offset`.
pub(crate) fn write_one(file: &dyn DeviceFile, buf: &[u8], offset: u64) -> io::Result<()> {
    file.write_at(&mut [IoSlice::new(buf)], offset)
}
