//! What the engine needs of a log, and the way to `dromon-log`.
//!
//! Writing goes through [`LogStore::submit`]: operations are carried out one
//! after the other in the order submitted, and each says so when it is done.
//! The consensus relies on that order: "this vote is saved" is taken to mean
//! that everything submitted before it is durable too.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

use bytes::Bytes;
pub use dromon_log::{Record, RecordId};

/// One change of the log.
#[derive(Debug)]
pub enum WriteOp {
    /// Adds records behind the last one. They can be read at once; done when
    /// they are durable (in memory mode: at once).
    Append(Vec<Record>),
    /// Removes the records from this index on.
    TruncateFrom(u64),
    /// May remove records up to this index.
    PurgeTo(u64),
    /// Erases everything, checkpoints too; the next record follows this one.
    Reset(RecordId),
    /// Replaces the small state. Durable when done, in memory mode too.
    SaveMeta(Bytes),
    /// Adds a checkpoint. Durable when done.
    SaveCheckpoint(u64, Bytes),
    /// Removes the checkpoint at this index, if there is one. It may come back after a crash.
    DropCheckpoint(u64),
    /// Removes the checkpoints below this index.
    DropCheckpointsBefore(u64),
}

/// Called once when an operation is done, on any thread: must be quick.
pub type WriteDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Called once with what was read, on any thread: must be quick.
pub type ReadDone = Box<dyn FnOnce(io::Result<Vec<Record>>) + Send>;

/// A log as the engine uses it.
///
/// After a failed write every later one fails too.
pub trait LogStore: Send + Sync + 'static {
    /// Enqueues a change.
    fn submit(&self, op: WriteOp, done: WriteDone);

    /// Index of the first record and of the one that comes next (the same if
    /// the log is empty).
    fn bounds(&self) -> (u64, u64);

    /// Bytes of the records below this index, about.
    fn bytes_before(&self, index: u64) -> u64;

    /// What keeps the log from going on as it should, in sentences, while it goes on all the same.
    fn held_up(&self) -> Option<String> {
        None
    }

    /// Reads records from the start of `range` on, all that there are in it or
    /// at least one, stopping after about `max_bytes`.
    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>>;

    /// The same for a caller that must not wait for the disk: `done` is called at once, or later by somebody who waits
    /// instead.
    fn read_then(&self, range: RangeInclusive<u64>, max_bytes: usize, done: ReadDone) {
        done(self.read(range, max_bytes));
    }

    /// The small state saved last; `None` if there never was one.
    fn load_meta(&self) -> io::Result<Option<Bytes>>;

    /// Indexes of the checkpoints, ascending.
    fn checkpoints(&self) -> io::Result<Vec<u64>>;

    /// The bytes of a checkpoint.
    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes>;

    /// Waits until everything submitted is done, and closes the files.
    fn close(&self);
}

impl fmt::Debug for dyn LogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogStore")
    }
}
