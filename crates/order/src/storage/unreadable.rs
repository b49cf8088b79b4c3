//! Entries of the own log that others need and that cannot be read.
//!
//! A member may be behind what this node reads itself, so damage there is found by who has to send it. It ends
//! nobody's engine: the member that needs it is told that its position is lost
//! ([`NodeHandler::position_lost`]), and somebody else's log, or a copy, has what it lacks. Then nobody may ask for
//! the entry again: so whoever asks what is lost has it read once more now and then, and what is purged is nobody's need.
//!
//! [`NodeHandler::position_lost`]: crate::NodeHandler::position_lost

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many tries, some milliseconds apart: an entry counts as lost then. What fails sooner may be a
/// want of memory or files.
const LOST_AFTER: u32 = 100;
/// Of more than so many the first ones are forgotten.
const KEPT: usize = 64;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<BTreeMap<u64, Entry>>);

#[derive(Debug)]
struct Entry {
    tries: u32,
    why: String,
    /// How often it was told of since it was read.
    told: u32,
}

/// What is lost is read again when it was told of so often: some seconds, for a node that looks ten times in one.
const READ_AGAIN: u32 = 50;

impl Unreadable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one at `index` was read.
    pub fn was_read(&self, index: u64) {
        self.lock().remove(&index);
    }

    /// It could not be.
    pub fn failed(&self, index: u64, why: String) {
        let mut entries = self.lock();
        if entries.len() >= KEPT && !entries.contains_key(&index) {
            entries.pop_first();
        }
        let tries = entries.get(&index).map_or(0, |e| e.tries);
        let tries = tries.saturating_add(1);
        entries.insert(
            index,
            Entry {
                tries,
                why,
                told: 0,
            },
        );
    }

    /// The log begins behind `upto` now.
    pub fn purged(&self, upto: u64) {
        let mut entries = self.lock();
        *entries = entries.split_off(&upto.saturating_add(1));
    }

    /// Whether the one at `index` is lost.
    pub fn is_lost(&self, index: u64) -> bool {
        let entries = self.lock();
        entries.get(&index).is_some_and(|e| e.tries >= LOST_AFTER)
    }

    /// The last one that is lost, why, and whether it is to be read again now.
    pub fn lost(&self) -> Option<(u64, String, bool)> {
        let mut entries = self.lock();
        let mut lost = entries.iter_mut().rev();
        let (index, e) = lost.find(|(_, e)| e.tries >= LOST_AFTER)?;
        e.told = e.told.saturating_add(1);
        Some((*index, e.why.clone(), e.told >= READ_AGAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_now_and_then_is_not_lost() {
        let entries = Unreadable::default();
        for _ in 0..10 {
            (1..LOST_AFTER).for_each(|_| entries.failed(7, "no memory".into()));
            assert!(!entries.is_lost(7) && entries.lost().is_none());
            entries.was_read(7);
        }
        for index in [7, 9] {
            (0..LOST_AFTER).for_each(|_| entries.failed(index, format!("damage {index}")));
        }
        assert!(entries.is_lost(7) && !entries.is_lost(8) && entries.is_lost(9));
        assert_eq!(entries.lost(), Some((9, "damage 9".into(), false)));
        entries.was_read(9);
        assert_eq!(entries.lost(), Some((7, "damage 7".into(), false)));
        let again = (1..READ_AGAIN).filter_map(|_| entries.lost()).map(|l| l.2);
        assert_eq!(again.filter(|again| *again).count(), 1);
        entries.purged(6);
        assert!(entries.is_lost(7));
        entries.purged(7);
        assert!(entries.lost().is_none());
        (10..1000).for_each(|index| entries.failed(index, String::new()));
        assert!(entries.lock().len() <= KEPT);
    }
}
