//! What of a log is going to be read soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// From which index on records are going to be read soon. The log leaves those to the kernel's
/// memory that it would drop else. Clones are the same.
#[derive(Clone, Debug)]
pub struct SoonRead(Arc<AtomicU64>);

impl Default for SoonRead {
    fn default() -> Self {
        SoonRead(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl SoonRead {
    /// Those from `from` on; `None`: none.
    pub fn set(&self, from: Option<u64>) {
        self.0.store(from.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The first one; the highest number if there is none.
    pub fn from(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
