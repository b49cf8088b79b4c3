//! Counters of the log, for the status.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Number of classes of the sync time histogram.
pub const SYNC_CLASSES: usize = 24;

#[derive(Default)]
pub(crate) struct Stats {
    pub syncs: AtomicU64,
    sync_ns: AtomicU64,
    /// Shortest sync, as its bitwise inverse, so that 0 means none yet.
    sync_ns_min_inverse: AtomicU64,
    sync_ns_max: AtomicU64,
    sync_classes: [AtomicU64; SYNC_CLASSES],
    pub writes: AtomicU64,
    pub bytes: AtomicU64,
    pub records: AtomicU64,
    pub queued_bytes: AtomicU64,
    pub meta_saves: AtomicU64,
}

/// A reading of the log's counters; all count from the opening of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Syncs of records (one covers all records written since the last).
    pub syncs: u64,
    /// Sum of their times, in nanoseconds.
    pub sync_ns_sum: u64,
    /// The shortest, in nanoseconds; 0 if there was none.
    pub sync_ns_min: u64,
    /// The longest, in nanoseconds.
    pub sync_ns_max: u64,
    /// How many took less than 2^n microseconds and not less than half of that; the last
    /// class holds everything longer.
    pub sync_classes: [u64; SYNC_CLASSES],
    /// Write calls for records.
    pub writes: u64,
    /// Bytes written for records, headers and padding included.
    pub bytes: u64,
    /// Records written.
    pub records: u64,
    /// Bytes that wait in the writer's queue at this moment.
    pub queued_bytes: u64,
    /// Changes of the small values.
    pub meta_saves: u64,
}

impl LogStats {
    /// Mean time of a sync, in nanoseconds.
    pub fn sync_ns_avg(&self) -> u64 {
        self.sync_ns_sum.checked_div(self.syncs).unwrap_or(0)
    }

    /// Mean number of records that shared a sync.
    pub fn records_per_sync(&self) -> f64 {
        if self.syncs == 0 {
            return 0.0;
        }
        self.records as f64 / self.syncs as f64
    }
}

impl Stats {
    pub(crate) fn note_sync(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Relaxed);
        self.sync_ns.fetch_add(ns, Relaxed);
        self.sync_ns_min_inverse.fetch_max(!ns, Relaxed);
        self.sync_ns_max.fetch_max(ns, Relaxed);
        let class = (u64::BITS - (ns / 1000).leading_zeros()) as usize;
        self.sync_classes[class.min(SYNC_CLASSES - 1)].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> LogStats {
        let syncs = self.syncs.load(Relaxed);
        let inverse = self.sync_ns_min_inverse.load(Relaxed);
        LogStats {
            syncs,
            sync_ns_sum: self.sync_ns.load(Relaxed),
            sync_ns_min: if inverse == 0 { 0 } else { !inverse },
            sync_ns_max: self.sync_ns_max.load(Relaxed),
            sync_classes: std::array::from_fn(|n| self.sync_classes[n].load(Relaxed)),
            writes: self.writes.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            records: self.records.load(Relaxed),
            queued_bytes: self.queued_bytes.load(Relaxed),
            meta_saves: self.meta_saves.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_are_sorted_by_time() {
        let stats = Stats::default();
        for us in [0, 1, 3, 1000] {
            stats.note_sync(Duration::from_micros(us));
        }
        let read = stats.read();
        assert_eq!((read.sync_ns_min, read.sync_ns_max), (0, 1_000_000));
        assert_eq!(read.sync_ns_avg(), 251_000);
        assert_eq!(read.sync_classes[..3], [1, 1, 1]);
        assert_eq!(read.sync_classes[10], 1);
    }
}
