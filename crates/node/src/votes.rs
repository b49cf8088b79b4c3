//! Votes on events that some member failed to apply.
//!
//! A member that fails tells the others a digest of its error, through the
//! order; who applied without complaint votes 0. Most votes win; success wins
//! ties. A vote is decided as soon as the missing ballots cannot change it, and
//! is counted again when the members change.

use std::collections::BTreeMap;

use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

/// Open votes and the outcome of recent ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Votes {
    open: BTreeMap<Seqno, BTreeMap<Uuid, u64>>,
    decided: BTreeMap<Seqno, u64>,
}

impl Votes {
    /// Takes a ballot. Answers whether it opened the vote.
    pub fn cast(&mut self, seqno: Seqno, uuid: Uuid, digest: u64) -> bool {
        if self.decided.contains_key(&seqno) {
            return false;
        }
        let opened = !self.open.contains_key(&seqno);
        self.open
            .entry(seqno)
            .or_default()
            .entry(uuid)
            .or_insert(digest);
        opened
    }

    /// Counts the open votes among `voters`; answers those decided now.
    pub fn count(&mut self, voters: &[Uuid]) -> Vec<(Seqno, u64)> {
        let mut now = Vec::new();
        self.open
            .retain(|&seqno, ballots| match decide(ballots, voters) {
                Some(winner) => {
                    now.push((seqno, winner));
                    false
                }
                None => true,
            });
        self.decided.extend(now.iter().copied());
        now
    }

    /// Forgets outcomes up to `seqno`.
    pub fn forget_through(&mut self, seqno: Seqno) {
        self.decided = self.decided.split_off(&(seqno + 1));
    }
}

/// The winner, once the missing ballots cannot change it.
fn decide(ballots: &BTreeMap<Uuid, u64>, voters: &[Uuid]) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::from([(0, 0)]);
    let mut missing = 0;
    for voter in voters {
        match ballots.get(voter) {
            Some(&digest) => *counts.entry(digest).or_insert(0) += 1,
            None => missing += 1,
        }
    }
    let success = counts[&0];
    // Highest count wins; among failures the lowest digest breaks a tie.
    let (mut best, mut best_count) = (0, success);
    let mut second = 0;
    for (&digest, &count) in counts.iter().filter(|(d, _)| **d != 0) {
        if count > best_count {
            second = best_count;
            (best, best_count) = (digest, count);
        } else {
            second = second.max(count);
        }
    }
    if missing == 0 {
        return Some(best);
    }
    // Whoever is second needs all missing ballots and, to beat a failure, a
    // tie is enough only for success.
    let certain = if best == 0 {
        second + missing <= best_count
    } else {
        second + missing < best_count && success + missing < best_count
    };
    certain.then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ballots: &[Option<u64>]) -> Option<u64> {
        let voters: Vec<Uuid> = (0..ballots.len())
            .map(|i| Uuid([i as u8 + 1; 16]))
            .collect();
        let cast = voters
            .iter()
            .zip(ballots)
            .filter_map(|(&v, b)| b.map(|b| (v, b)))
            .collect();
        decide(&cast, &voters)
    }

    #[test]
    fn most_votes_win_and_ties_go_to_success() {
        assert_eq!(run(&[Some(5), Some(0)]), Some(0));
        assert_eq!(run(&[Some(5), Some(5)]), Some(5));
        assert_eq!(run(&[Some(5), Some(5), Some(0)]), Some(5));
        assert_eq!(run(&[Some(5), Some(6), Some(0)]), Some(0));
        assert_eq!(run(&[Some(9)]), Some(9));
    }

    #[test]
    fn decided_early_only_when_certain() {
        assert_eq!(run(&[Some(5), None]), None);
        assert_eq!(run(&[Some(5), None, None]), None);
        assert_eq!(run(&[Some(5), Some(0), Some(0), None]), None.or(Some(0)));
        assert_eq!(run(&[Some(5), Some(5), None]), Some(5));
        assert_eq!(
            run(&[Some(5), Some(5), None, None]),
            None,
            "a tie would go to success"
        );
    }

    #[test]
    fn late_ballots_do_not_open_a_decided_vote() {
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        let mut votes = Votes::default();
        assert!(votes.cast(7, a, 3));
        assert!(!votes.cast(7, b, 3));
        assert_eq!(votes.count(&[a, b]), [(7, 3)]);
        assert!(!votes.cast(7, b, 0));
        assert!(votes.decided.contains_key(&7));
        votes.forget_through(7);
        assert!(votes.decided.is_empty());
    }
}
