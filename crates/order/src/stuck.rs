//! A leader whose entries reach nobody, though its heartbeats do.
//!
//! What is small passes and what is long does not: a way with a smaller MTU than its ends believe, and nobody who says so,
//! swallows every full packet. Such a leader keeps its lease, and nothing is committed any more. Nobody else can notice:
//! whoever leads next has another way to the members.

use std::time::Duration;

use crate::network::SLOWEST;
use crate::storage::READ_BYTES;

/// How long it leads on at least before it is to hand over once more: maybe nobody's disk writes.
const AGAIN: Duration = Duration::from_secs(60);
/// In shortest election times, behind the time that one append takes on the slowest way.
const PATIENCE: u32 = 10;

/// What a leader sees of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The end of its log, all of which is on its own disk.
    pub last: u64,
    pub committed: u64,
    /// How far each other voter has stored, summed up.
    pub stored: u64,
    /// A majority was heard within the shortest election time, not counting this node.
    pub heard: bool,
}

/// See the module's words.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    seen: Option<(u64, u64)>,
    since: Duration,
    not_before: Duration,
}

impl Stuck {
    /// Whether to hand over; `piece`: the bytes of the longest message; `seen`: none of one that does not lead, or has entries that are not on its own disk.
    pub fn look(
        &mut self,
        now: Duration,
        election_min: Duration,
        piece: usize,
        seen: Option<Seen>,
    ) -> bool {
        let waits = seen.filter(|seen| seen.last > seen.committed);
        let stands = waits.map(|seen| (seen.committed, seen.stored));
        if stands.is_none() || stands != self.seen {
            (self.seen, self.since) = (stands, now);
            return false;
        }
        let append = READ_BYTES.max(piece) as f64 / f64::from(SLOWEST);
        let patience = Duration::from_secs_f64(append) + election_min * PATIENCE;
        let heard = waits.is_some_and(|seen| seen.heard);
        if !heard || now < self.since + patience || now < self.not_before {
            return false;
        }
        self.not_before = now + AGAIN;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hands_over_if_nothing_is_stored_anywhere_for_long() {
        let s = Duration::from_secs;
        let seen = |committed, stored| Seen {
            last: 10,
            committed,
            stored,
            heard: true,
        };
        let mut stuck = Stuck::default();
        let mut look = |at: u64, seen| stuck.look(s(at), s(1), 1000, seen);
        assert!(!look(0, None));
        assert!(!look(100, Some(seen(10, 20))), "all is committed");
        assert!(!look(200, Some(seen(9, 18))));
        assert!(!look(225, Some(seen(9, 18))));
        assert!(look(226, Some(seen(9, 18))), "16 s for an append, and 10");
        assert!(!look(285, Some(seen(9, 18))), "not at once again");
        assert!(look(286, Some(seen(9, 18))));
        // One stores something, if too little for a majority.
        assert!(!look(400, Some(seen(9, 19))));
        assert!(!look(425, Some(seen(9, 19))));
        assert!(!look(426, None), "it does not lead any more");
        assert!(!look(500, Some(seen(9, 19))));
        let deaf = Seen {
            heard: false,
            ..seen(9, 19)
        };
        assert!(!look(600, Some(deaf)), "it hears nobody: they elect");
        assert!(look(601, Some(seen(9, 19))));
    }
}
