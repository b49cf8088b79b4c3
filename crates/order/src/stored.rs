//! A log at rest: what lies in it, read without an engine.

use std::sync::Arc;

use crate::logstore::LogStore;
use crate::sequencer::Committed;
use crate::storage::{load_checkpoint, load_meta, log_error, read_store, to_committed};
use crate::types::{Checkpoint, OrderError};

/// See the module's words.
#[derive(Debug)]
pub struct Stored(Arc<dyn LogStore>);

impl Stored {
    /// The log in `store`, which no engine writes meanwhile.
    pub fn new(store: Arc<dyn LogStore>) -> Stored {
        Stored(store)
    }

    /// Indexes of its checkpoints, ascending. None: it was being made new, or
    /// there is nothing in it.
    pub fn checkpoints(&self) -> Result<Vec<u64>, OrderError> {
        match load_meta(&self.0)? {
            Some(_) => self.0.checkpoints().map_err(log_error),
            None => Ok(Vec::new()),
        }
    }

    /// One of them.
    pub fn checkpoint(&self, index: u64) -> Result<Checkpoint, OrderError> {
        load_checkpoint(&self.0, index)
    }

    /// The entries from `from` on, about `max_bytes` of them, at least one;
    /// none: there are no more. Whether one is committed, the log does not say.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<Committed>, OrderError> {
        let (first, next) = self.0.bounds();
        if from < first || from >= next {
            return Ok(Vec::new());
        }
        let entries = read_store(&self.0, from, next - 1, max_bytes).map_err(log_error)?;
        entries.into_iter().map(to_committed).collect()
    }
}
