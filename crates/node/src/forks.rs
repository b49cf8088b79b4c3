//! Where a cluster parted: which positions of which logs are still ours.
//!
//! A forced recovery begins a new incarnation of the cluster with what one
//! node's log holds ([`dromon_order::incarnation`]). Whoever was not there may
//! have gone on in the old one. Its database can follow our log only if
//! everything in it is in our log too; the server remembers nothing but
//! history and seqno, so its log must tell.
//!
//! ```text
//!   incarnation 0   1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6      the others' log
//!                           └── fork {leader of 4, seqno 4}
//!   incarnation 1               └─ 5'─ 6'─ 7'  ours
//! ```
//!
//! Raft gives the proof: in one incarnation, two logs that end in entries of
//! the same leadership are the same up to the shorter one's end; and who leads has
//! everything that was committed under earlier leaderships. (The term alone tells
//! less: it may have several leaders.)

use dromon_order::Leadership;
use dromon_writeset::Seqno;
use serde::{Deserialize, Serialize};

/// Forks remembered; who comes from before the oldest takes a full copy.
const KEPT: usize = 64;

/// The end of an earlier incarnation in our log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Who made the last entry before it.
    pub by: Leadership,
    /// The last seqno before it.
    pub seqno: Seqno,
}

/// How far a joiner's own log got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// Who made its last entry.
    pub last: Leadership,
    /// The latest leadership it has voted for, or has an entry of.
    pub voted: Leadership,
}

/// All forks of our log, oldest first, and the leadership it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forks {
    forks: Vec<Fork>,
    by: Leadership,
}

impl Forks {
    /// For a log that takes the place of one whose last entry was made `by` this one.
    pub fn after(by: Leadership) -> Self {
        Forks {
            forks: Vec::new(),
            by,
        }
    }

    /// Who made the last entry.
    pub fn last(&self) -> Leadership {
        self.by
    }

    /// An entry made `by` this one comes, behind `seqno`.
    pub fn entry(&mut self, by: Leadership, seqno: Seqno) {
        if by.incarnation() != self.by.incarnation() {
            if self.forks.len() == KEPT {
                self.forks.remove(0);
            }
            self.forks.push(Fork { by: self.by, seqno });
        }
        self.by = by;
    }

    /// Whether everything that a database at `seqno` of the same history holds
    /// is in our log. `end`: its own log's, if it has one.
    pub fn shares(&self, end: Option<LogEnd>, seqno: Seqno) -> bool {
        let Some(end) = end else {
            // From before there was a log, or it was lost: only what every
            // incarnation has in common is surely ours. Where forks may have been
            // forgotten, nobody knows how far that goes.
            return self.forks.len() < KEPT && self.forks.first().is_none_or(|f| seqno <= f.seqno);
        };
        if end.last.incarnation() == self.by.incarnation() {
            return true; // the consensus answers for it
        }
        self.parted_from(end).is_some_and(|last| seqno <= last)
    }

    /// The last seqno that a log with this `end`, of an earlier incarnation, has in common with ours.
    /// `None`: nobody knows one.
    pub fn parted_from(&self, end: LogEnd) -> Option<Seqno> {
        let of_it = |f: &&Fork| f.by.incarnation() == end.last.incarnation();
        let fork = self.forks.iter().find(of_it)?;
        // Its commits were made by leaders up to `end.voted`.
        let ours = end.last == fork.by || end.voted <= fork.by;
        ours.then_some(fork.seqno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn by(incarnation: u64, n: u64, leader: u64) -> Leadership {
        Leadership {
            term: (incarnation << 32) | n,
            leader,
        }
    }

    const fn term(incarnation: u64, n: u64) -> Leadership {
        by(incarnation, n, 1)
    }

    const fn end(last: Leadership, voted: Leadership) -> Option<LogEnd> {
        Some(LogEnd { last, voted })
    }

    #[test]
    fn an_unparted_log_takes_everybody() {
        let mut f = Forks::default();
        f.entry(term(0, 1), 0);
        f.entry(term(0, 3), 17);
        assert!(f.shares(None, 900));
        assert!(f.shares(end(term(0, 2), term(0, 5)), 900));
    }

    #[test]
    fn who_went_on_beyond_the_fork_is_not_ours() {
        let mut f = Forks::default();
        f.entry(term(0, 4), 10);
        f.entry(term(7, 0), 100);
        f.entry(term(7, 1), 100);
        let old = term(0, 4);
        assert!(f.shares(end(old, old), 100), "it stopped where we parted");
        assert!(f.shares(end(old, old), 60));
        assert!(
            !f.shares(end(old, old), 101),
            "it has more than we took along"
        );
        assert!(f.shares(end(term(7, 1), term(7, 1)), 5000), "one of us");
        assert!(
            !f.shares(end(term(9, 1), term(9, 1)), 5),
            "it parted elsewhere"
        );
    }

    #[test]
    fn later_leaders_of_the_others_may_have_overwritten_what_we_took_along() {
        let mut f = Forks::default();
        f.entry(term(0, 4), 10);
        f.entry(term(7, 0), 100);
        assert!(!f.shares(end(term(0, 5), term(0, 5)), 90));
        // Its log ends earlier, but a leader of term 5 may have told it what
        // is committed.
        assert!(!f.shares(end(term(0, 3), term(0, 5)), 90));
        assert!(f.shares(end(term(0, 3), term(0, 4)), 90));
        // Entries of our last term: whatever it voted for since, they are ours.
        assert!(f.shares(end(term(0, 4), term(0, 6)), 90));
    }

    #[test]
    fn a_term_of_two_leaders_is_two_logs() {
        let (first, second) = (by(0, 4, 1), by(0, 4, 2));
        // The second one took the term over from the first.
        let mut f = Forks::default();
        f.entry(second, 10);
        f.entry(by(7, 0, 2), 100);
        assert!(
            f.shares(end(first, first), 90),
            "the second had what the first committed"
        );
        assert!(f.shares(end(second, second), 90));
        // We have what the first one wrote, and maybe not what the second committed.
        let mut f = Forks::default();
        f.entry(first, 10);
        f.entry(by(7, 0, 1), 100);
        assert!(!f.shares(end(second, second), 90));
        assert!(
            !f.shares(end(term(0, 3), second), 90),
            "the second one may have told it what is committed"
        );
        assert!(f.shares(end(first, second), 90));
    }

    #[test]
    fn without_a_log_only_the_common_trunk_counts() {
        let mut f = Forks::after(term(3, 9));
        f.entry(term(5, 0), 40);
        f.entry(term(8, 0), 90);
        assert!(f.shares(None, 40));
        assert!(!f.shares(None, 41));
        assert!(!f.shares(end(term(5, 2), term(5, 2)), 70));
        assert!(f.shares(end(term(5, 0), term(5, 0)), 70));
        assert!(!f.shares(end(term(3, 9), term(3, 9)), 41));
        assert!(f.shares(end(term(3, 9), term(3, 9)), 40));
    }

    #[test]
    fn once_forks_are_forgotten_there_is_no_common_trunk() {
        let mut f = Forks::default();
        let seqnos = std::iter::once(10).chain((5..).map(|n| n * 100));
        for (incarnation, seqno) in (1..=65).zip(seqnos) {
            f.entry(term(incarnation, 0), seqno);
            let trunk = incarnation < 64;
            assert_eq!(f.shares(None, 9), trunk, "{incarnation}");
            assert!(
                !f.shares(None, 300),
                "{incarnation}: of an abandoned branch"
            );
        }
        assert!(f.shares(end(term(65, 0), term(65, 0)), 300), "one of us");
    }
}
