//! For whom the log is long: members that would need much of it if they were started again, and for
//! how many of them it is kept no more. Decides what is said of that, knows no clock and no names.

use std::collections::BTreeSet;

use dromon_writeset::Uuid;

use crate::retention::Limits;

/// What a member needs, as a node sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Who.
    pub uuid: Uuid,
    /// Bytes of this node's log from there on.
    pub bytes: u64,
    /// This node's log reaches back to there.
    pub reaches: bool,
}

/// Something to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It needs more than is kept for it.
    Beyond(Uuid),
    /// It needs little again.
    Back(Uuid),
}

/// Members by what they need.
#[derive(Debug, Default)]
pub struct Holders {
    beyond: BTreeSet<Uuid>,
    /// The log was shortened though these would need it.
    cut_off: BTreeSet<Uuid>,
    much: Vec<Uuid>,
}

impl Holders {
    /// The log is not kept any more for what `uuid` would need.
    pub fn cut_off(&mut self, uuid: Uuid) {
        self.cut_off.insert(uuid);
    }

    /// A look at all members. Who is not `seen` any more is forgotten.
    pub fn look(&mut self, seen: &[Seen], limits: Limits) -> Vec<Change> {
        let is_seen = |uuid: &Uuid| seen.iter().any(|s| s.uuid == *uuid);
        self.beyond.retain(is_seen);
        let cut_off = std::mem::take(&mut self.cut_off);
        let little = limits.floor.saturating_add(limits.max / 2);
        let mut changes = Vec::new();
        self.much.clear();
        for s in seen {
            let beyond = self.beyond.contains(&s.uuid);
            // Of one whose beginning is not here nobody can tell how much it needs; a node that has
            // joined just now has the beginnings of few.
            let much = s.reaches && s.bytes > little;
            let most = s.reaches && s.bytes > limits.for_member();
            if !beyond && (most || cut_off.contains(&s.uuid)) {
                self.beyond.insert(s.uuid);
                changes.push(Change::Beyond(s.uuid));
            } else if beyond && s.reaches && !much {
                self.beyond.remove(&s.uuid);
                changes.push(Change::Back(s.uuid));
            }
            if much || self.beyond.contains(&s.uuid) {
                self.much.push(s.uuid);
            }
        }
        changes
    }

    /// Who needs much, as of the last look.
    pub fn much(&self) -> &[Uuid] {
        &self.much
    }

    /// The node has left.
    pub fn clear(&mut self) {
        *self = Holders::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        floor: 100,
        max: 1000,
    };

    fn seen(n: u8, bytes: u64, reaches: bool) -> Seen {
        Seen {
            uuid: Uuid([n; 16]),
            bytes,
            reaches,
        }
    }

    #[test]
    fn who_needs_much_is_named_and_who_needs_too_much_is_told_once() {
        let (mut h, one) = (Holders::default(), Uuid([1; 16]));
        assert_eq!(h.look(&[seen(1, 600, true)], LIMITS), []);
        assert_eq!(h.much(), []);
        assert_eq!(h.look(&[seen(1, 1100, true), seen(2, 0, true)], LIMITS), []);
        assert_eq!(h.much(), [one]);
        let look = |h: &mut Holders, bytes, reaches| h.look(&[seen(1, bytes, reaches)], LIMITS);
        assert_eq!(look(&mut h, 1101, true), [Change::Beyond(one)]);
        assert_eq!(look(&mut h, 2000, true), []);
        // The log was shortened: what is left says nothing of what it needs.
        assert_eq!(look(&mut h, 200, false), []);
        assert_eq!(h.much(), [one]);
        assert_eq!(look(&mut h, 1000, true), [], "still much");
        assert_eq!(look(&mut h, 600, true), [Change::Back(one)]);
        assert_eq!(h.much(), []);
    }

    #[test]
    fn who_was_cut_off_between_two_looks_is_told_and_who_left_is_forgotten() {
        let (mut h, one) = (Holders::default(), Uuid([1; 16]));
        assert_eq!(
            h.look(&[seen(1, 5000, false)], LIMITS),
            [],
            "it began elsewhere"
        );
        h.cut_off(one);
        assert_eq!(
            h.look(&[seen(1, 200, false)], LIMITS),
            [Change::Beyond(one)]
        );
        assert_eq!(h.look(&[], LIMITS), []);
        assert_eq!(h.much(), []);
        h.cut_off(one);
        assert_eq!(h.look(&[], LIMITS), []);
        assert_eq!(
            h.look(&[seen(1, 0, true)], LIMITS),
            [],
            "another life of it"
        );
    }
}
