//! The engine's log on a disk (or a simulated one): `dromon-log`.

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use dromon_log::{LogError, WriterHandle};

use crate::logstore::{LogStore, Record, WriteDone, WriteOp};

/// Under which name the engine's small state lies beside the log.
pub(crate) const META_KEY: &str = "order";

/// [`LogStore`] over a [`WriterHandle`], threaded or inline.
///
/// Closing it lets the handle go, and with it the lock on the directory, so
/// that the next engine can open the log while this one is still referred to.
#[derive(Clone)]
pub struct DiskLog(Arc<RwLock<Option<WriterHandle>>>);

impl DiskLog {
    /// The engine's view of `log`. Others may read it, but only the engine
    /// may change it from now on.
    pub fn new(log: WriterHandle) -> Self {
        DiskLog(Arc::new(RwLock::new(Some(log))))
    }

    /// The log below; `None` once closed.
    pub fn writer(&self) -> Option<WriterHandle> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn open(&self) -> Result<WriterHandle, LogError> {
        self.writer().ok_or(LogError::Closed)
    }
}

/// Lets `done` be called by whoever learns the outcome: the log's thread, or
/// the caller if nothing was taken.
fn hand_in(done: WriteDone, submit: impl FnOnce(dromon_log::Done) -> Result<(), LogError>) {
    let slot = Arc::new(Mutex::new(Some(done)));
    let take = move |slot: &Mutex<Option<WriteDone>>| {
        slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let theirs = slot.clone();
    let outcome = submit(Box::new(move |result| {
        if let Some(done) = take(&theirs) {
            done(result.map_err(io::Error::from));
        }
    }));
    if let Err(e) = outcome
        && let Some(done) = take(&slot)
    {
        done(Err(e.into()));
    }
}

impl LogStore for DiskLog {
    fn submit(&self, op: WriteOp, done: WriteDone) {
        let log = match self.open() {
            Ok(log) => log,
            Err(e) => return done(Err(e.into())),
        };
        match op {
            WriteOp::Append(records) => hand_in(done, |d| log.append(records, d)),
            WriteOp::TruncateFrom(index) => hand_in(done, |d| log.truncate_from_then(index, d)),
            WriteOp::PurgeTo(index) => hand_in(done, |d| log.purge_to_then(index, d)),
            WriteOp::Reset(last) => {
                if let Err(e) = log.checkpoints().drop_before(u64::MAX) {
                    return done(Err(e.into()));
                }
                hand_in(done, |d| log.reset_to_then(Some(last), d));
            }
            WriteOp::SaveMeta(bytes) => hand_in(done, |d| log.save_meta_then(META_KEY, bytes, d)),
            // Checkpoints are written on the calling thread: they are large,
            // and the log must not wait for them.
            WriteOp::SaveCheckpoint(index, bytes) => {
                done(log.checkpoints().save(index, &bytes).map_err(Into::into));
            }
            WriteOp::DropCheckpoint(index) => {
                done(log.checkpoints().drop_one(index).map_err(Into::into));
            }
            WriteOp::DropCheckpointsBefore(index) => {
                done(log.checkpoints().drop_before(index).map_err(Into::into));
            }
        }
    }

    fn bounds(&self) -> (u64, u64) {
        let Some(log) = self.writer() else {
            return (0, 0);
        };
        let reader = log.reader();
        let next = reader.next_index();
        (reader.first_index().unwrap_or(next), next)
    }

    fn bytes_before(&self, index: u64) -> u64 {
        let log = self.writer();
        log.map_or(0, |log| log.reader().bytes_before(index))
    }

    fn held_up(&self) -> Option<String> {
        let why = self.writer()?.reader().held_up()?;
        Some(why.to_string())
    }

    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        let end = range.end().saturating_add(1);
        let records = self
            .open()?
            .reader()
            .read(*range.start()..end, max_bytes as u64)?;
        Ok(records)
    }

    fn load_meta(&self) -> io::Result<Option<Bytes>> {
        Ok(self.open()?.load_meta(META_KEY))
    }

    fn checkpoints(&self) -> io::Result<Vec<u64>> {
        Ok(self.open()?.checkpoints().list()?)
    }

    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes> {
        Ok(self.open()?.checkpoints().load(index)?)
    }

    fn close(&self) {
        let log = self
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(log) = log {
            // What was acknowledged is on the disk whatever this says.
            let _ = log.close();
        }
    }
}
