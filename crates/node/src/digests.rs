//! Comparing the deterministic state of the members.
//!
//! Whatever decides about write sets must be the same on all members after the
//! same entry of the log. Each member takes a digest of it at every view and
//! sends it with its progress; here these are compared. A difference means that
//! the members may decide differently from then on, so it must not go unsaid.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dromon_writeset::{Seqno, Uuid};

/// Own digests remembered: a member may be some views behind.
const KEPT: usize = 16;

/// A seqno of a view and the digest of the state there; seqno -1: none yet.
pub(crate) type At = (Seqno, u64);

/// Own digests, and what the others said last.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    own: VecDeque<At>,
    others: BTreeMap<Uuid, At>,
    told: BTreeSet<(Uuid, Seqno)>,
}

/// Two members differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub seqno: Seqno,
    pub own: u64,
    pub other: u64,
    /// How many others have this node's digest there, and how many do not.
    pub agree: usize,
    pub differ: usize,
}

impl Digests {
    /// This node's state at a view.
    pub fn taken(&mut self, seqno: Seqno, digest: u64) {
        self.own.push_back((seqno, digest));
        while self.own.len() > KEPT {
            self.own.pop_front();
        }
    }

    /// The newest own one, for the progress report.
    pub fn newest(&self) -> At {
        self.own.back().copied().unwrap_or((-1, 0))
    }

    /// What another member said. Answers each difference once.
    pub fn reported(&mut self, uuid: Uuid, at: At) -> Option<Difference> {
        self.others.insert(uuid, at);
        let own = self.own_at(at.0)?;
        if own == at.1 || !self.told.insert((uuid, at.0)) {
            return None;
        }
        let there = self.others.values().filter(|o| o.0 == at.0);
        let (agree, differ): (Vec<At>, Vec<At>) = there.copied().partition(|o| o.1 == own);
        Some(Difference {
            seqno: at.0,
            own,
            other: at.1,
            agree: agree.len(),
            differ: differ.len(),
        })
    }

    /// Members whose last word differs from this node's state at that view.
    pub fn differing(&self) -> Vec<Uuid> {
        let differs = |at: &At| self.own_at(at.0).is_some_and(|own| own != at.1);
        let found = self.others.iter().filter(|(_, at)| differs(at));
        found.map(|(uuid, _)| *uuid).collect()
    }

    /// Forgets who is no member any more.
    pub fn members(&mut self, all: &[Uuid]) {
        self.others.retain(|uuid, _| all.contains(uuid));
        self.told.retain(|(uuid, _)| all.contains(uuid));
    }

    fn own_at(&self, seqno: Seqno) -> Option<u64> {
        let found = self
            .own
            .iter()
            .rev()
            .find(|own| own.0 == seqno && seqno > 0);
        found.map(|own| own.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    #[test]
    fn only_the_same_view_is_compared() {
        let mut d = Digests::default();
        assert_eq!(d.newest(), (-1, 0));
        assert_eq!(d.reported(uuid(1), (-1, 0)), None);
        assert_eq!(d.reported(uuid(1), (7, 5)), None, "not there yet");
        d.taken(7, 5);
        d.taken(9, 6);
        assert_eq!(d.newest(), (9, 6));
        for at in [(7, 5), (9, 6), (8, 1), (11, 1), (-1, 0), (0, 3)] {
            assert_eq!(d.reported(uuid(1), at), None, "{at:?}");
            assert!(d.differing().is_empty());
        }
    }

    #[test]
    fn a_difference_is_told_once_for_each_member_and_view() {
        let mut d = Digests::default();
        d.taken(7, 5);
        assert_eq!(d.reported(uuid(1), (7, 5)), None);
        let difference = Difference {
            seqno: 7,
            own: 5,
            other: 4,
            agree: 1,
            differ: 1,
        };
        assert_eq!(d.reported(uuid(2), (7, 4)), Some(difference.clone()));
        assert_eq!(d.reported(uuid(2), (7, 4)), None, "said already");
        assert_eq!(d.differing(), [uuid(2)]);
        let both = Difference {
            differ: 2,
            ..difference.clone()
        };
        assert_eq!(d.reported(uuid(3), (7, 4)), Some(both));
        d.taken(8, 1);
        // It still differs at 7 for all that is known, and then at 8.
        assert_eq!(d.differing(), [uuid(2), uuid(3)]);
        assert!(d.reported(uuid(2), (8, 2)).is_some());
        // The same state again: nothing differs any more.
        d.taken(9, 3);
        assert_eq!(d.reported(uuid(2), (9, 3)), None);
        d.members(&[uuid(2)]);
        assert!(d.differing().is_empty());
        assert!(d.reported(uuid(3), (7, 4)).is_some(), "a new life");
    }

    #[test]
    fn what_lies_far_back_is_forgotten() {
        let mut d = Digests::default();
        for seqno in 1..=100 {
            d.taken(seqno, seqno as u64);
        }
        assert_eq!(d.own.len(), KEPT);
        assert_eq!(d.reported(uuid(1), (5, 6)), None);
        assert!(d.reported(uuid(1), (100, 6)).is_some());
    }
}
