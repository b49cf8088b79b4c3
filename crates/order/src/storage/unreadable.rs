//! Entries of the own log that others need and that cannot be read.
//!
//! A member may be behind what this node reads itself, so damage there is found by who has to send it. It ends
//! nobody's engine: the member that needs it is told that its position is lost
//! ([`NodeHandler::position_lost`]), and somebody else's log, or a copy, has what it lacks.
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
}

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
        entries.insert(index, Entry { tries, why });
    }

    /// Whether the one at `index` is lost.
    pub fn is_lost(&self, index: u64) -> bool {
        let entries = self.lock();
        entries.get(&index).is_some_and(|e| e.tries >= LOST_AFTER)
    }

    /// The last one that is lost, and why.
    pub fn lost(&self) -> Option<(u64, String)> {
        let entries = self.lock();
        let lost = entries.iter().rev().find(|(_, e)| e.tries >= LOST_AFTER);
        lost.map(|(index, e)| (*index, e.why.clone()))
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
        assert_eq!(entries.lost(), Some((9, "damage 9".into())));
        entries.was_read(9);
        assert_eq!(entries.lost(), Some((7, "damage 7".into())));
        (10..1000).for_each(|index| entries.failed(index, String::new()));
        assert!(entries.lock().len() <= KEPT);
    }
}
