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
    open: BTreeMap<Seqno, Open>,
    decided: BTreeMap<Seqno, u64>,
}

/// A vote under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    /// Who was asked: members that came later may never see the question.
    asked: Vec<Uuid>,
    ballots: BTreeMap<Uuid, u64>,
}

/// What became of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// It opened the vote.
    Opened,
    /// It was counted.
    Counted,
    /// The vote was over.
    Late {
        /// What had won.
        winner: u64,
    },
}

impl Votes {
    /// Takes a ballot; `voters` are asked if it is the first.
    pub fn cast(&mut self, seqno: Seqno, uuid: Uuid, digest: u64, voters: &[Uuid]) -> Cast {
        if let Some(&winner) = self.decided.get(&seqno) {
            return Cast::Late { winner };
        }
        let opened = !self.open.contains_key(&seqno);
        let vote = self.open.entry(seqno).or_default();
        if opened {
            vote.asked = voters.to_vec();
        }
        if !vote.asked.contains(&uuid) {
            vote.asked.push(uuid);
        }
        vote.ballots.entry(uuid).or_insert(digest);
        if opened { Cast::Opened } else { Cast::Counted }
    }

    /// Whether there is or was a vote on `seqno`.
    pub fn knows(&self, seqno: Seqno) -> bool {
        self.open.contains_key(&seqno) || self.decided.contains_key(&seqno)
    }

    /// Counts the open votes among those asked who are still `voters`; answers
    /// those decided now.
    pub fn count(&mut self, voters: &[Uuid]) -> Vec<(Seqno, u64)> {
        let mut now = Vec::new();
        self.open.retain(|&seqno, vote| {
            let asked: Vec<Uuid> = vote
                .asked
                .iter()
                .filter(|u| voters.contains(u))
                .copied()
                .collect();
            match decide(&vote.ballots, &asked) {
                Some(winner) => {
                    now.push((seqno, winner));
                    false
                }
                None => true,
            }
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
    fn late_ballots_hear_the_outcome() {
        let (a, b, c) = (Uuid([1; 16]), Uuid([2; 16]), Uuid([3; 16]));
        let mut votes = Votes::default();
        assert_eq!(votes.cast(7, a, 3, &[a, b]), Cast::Opened);
        assert_eq!(votes.count(&[a, b, c]), [], "b was asked and is silent");
        assert_eq!(votes.cast(7, b, 3, &[a, b, c]), Cast::Counted);
        assert_eq!(
            votes.count(&[a, b, c]),
            [(7, 3)],
            "c came later and was not asked"
        );
        assert_eq!(votes.cast(7, c, 0, &[a, b, c]), Cast::Late { winner: 3 });
        votes.forget_through(7);
        assert!(!votes.knows(7));
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        let mut votes = Votes::default();
        votes.cast(9, a, 5, &[a, b]);
        assert_eq!(votes.count(&[a, b]), []);
        assert_eq!(votes.count(&[a]), [(9, 5)]);
    }
}
