//! The engine's log on a disk (or a simulated one): `dromon-log`.

mod cold;

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use dromon_log::{LogError, WriterHandle};

use crate::logstore::{LogStore, ReadDone, Record, WriteDone, WriteOp};

use cold::{Cold, Wanted};

/// Under which name the engine's small state lies beside the log.
pub(crate) const META_KEY: &str = "order";

/// [`LogStore`] over a [`WriterHandle`], threaded or inline.
///
/// Closing it lets the handle go, and with it the lock on the directory, so
/// that the next engine can open the log while this one is still referred to.
#[derive(Clone)]
pub struct DiskLog(Arc<Opened>);

struct Opened {
    log: RwLock<Option<WriterHandle>>,
    cold: Cold,
}

impl DiskLog {
    /// The engine's view of `log`. Others may read it, but only the engine
    /// may change it from now on.
    pub fn new(log: WriterHandle) -> Self {
        DiskLog(Arc::new(Opened {
            log: RwLock::new(Some(log)),
            cold: Cold::default(),
        }))
    }

    /// The log below; `None` once closed.
    pub fn writer(&self) -> Option<WriterHandle> {
        self.0
            .log
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

    /// An inline log's reads are inline, too: with a thread no run would be like another.
    fn read_then(&self, range: RangeInclusive<u64>, max_bytes: usize, done: ReadDone) {
        match self.open() {
            Ok(log) if log.has_thread() => self.0.cold.read(Wanted {
                reader: log.reader(),
                range: *range.start()..range.end().saturating_add(1),
                max_bytes: max_bytes as u64,
                done,
            }),
            _ => done(self.read(range, max_bytes)),
        }
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
            .log
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.0.cold.close();
        if let Some(log) = log {
            // What was acknowledged is on the disk whatever this says.
            let _ = log.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use dromon_log::{Log, SimDevice};

    use super::*;

    fn log_of_ten() -> Log {
        let (mut log, _) =
            Log::open(Arc::new(SimDevice::new(1)), Default::default()).expect("a new log");
        let record = |index| Record {
            index,
            term: 1,
            leader: 1,
            body: Bytes::from_static(b"body"),
        };
        log.append((0..10).map(record).collect())
            .expect("it follows");
        log.sync().expect("it is stored");
        log
    }

    /// What is read from 3 on, and on which thread that was said.
    fn read(log: &DiskLog) -> (io::Result<Vec<Record>>, Option<String>) {
        let (tx, rx) = channel();
        let done = Box::new(move |found| {
            let name = thread::current().name().map(str::to_owned);
            tx.send((found, name)).expect("it is waited for");
        });
        log.read_then(3..=7, 1 << 20, done);
        rx.recv().expect("it is said")
    }

    #[test]
    fn who_must_not_wait_for_the_disk_has_a_thread_read() {
        let handle = WriterHandle::spawn(log_of_ten(), 1 << 20).expect("a thread");
        let log = DiskLog::new(handle);
        for _ in 0..3 {
            let (found, thread) = read(&log);
            let indexes: Vec<_> = found
                .expect("it is there")
                .iter()
                .map(|r| r.index)
                .collect();
            assert_eq!(indexes, [3, 4, 5, 6, 7]);
            assert_eq!(thread.as_deref(), Some("dromon-read"));
        }
        log.close();
        let (found, thread) = read(&log);
        assert!(found.is_err(), "it is closed");
        assert_eq!(thread.as_deref(), thread::current().name());
    }

    #[test]
    fn what_is_wanted_is_read_before_the_log_is_closed() {
        let handle = WriterHandle::spawn(log_of_ten(), 1 << 20).expect("a thread");
        let log = DiskLog::new(handle);
        let (tx, rx) = channel();
        for _ in 0..WANTED {
            let tx = tx.clone();
            let done = Box::new(move |found: io::Result<Vec<Record>>| {
                tx.send(found.is_ok()).expect("it is waited for");
            });
            log.read_then(0..=9, 1 << 20, done);
        }
        log.close();
        drop(tx);
        assert_eq!(rx.iter().filter(|read| *read).count(), WANTED);
    }

    /// More than may wait.
    const WANTED: usize = 1000;

    #[test]
    fn an_inline_log_reads_at_once() {
        let log = DiskLog::new(WriterHandle::inline(log_of_ten()));
        let (found, thread) = read(&log);
        assert_eq!(found.map(|r| r.len()).ok(), Some(5));
        assert_eq!(thread.as_deref(), thread::current().name());
        log.close();
    }
}
