//! Votes on events that some member failed to apply.
//!
//! A member that fails tells the others a digest of its error, through the
//! order; who applied without complaint votes 0. What wins is a matter of the
//! cluster's policy (`gcs.vote_policy`): with 0 most votes win, and success wins
//! ties; with N success wins as soon as N members have it, and only if they
//! cannot be found it is as with 0. A vote is decided as soon as the missing
//! ballots cannot change it, and is counted again when the members change. If others have left
//! and the only one that is left failed, nobody may know who has what: there is no outcome then,
//! as there is none for who is alone from the beginning.

use std::collections::BTreeMap;

use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

/// In place of a winner: of those asked nobody is left, or only one, who failed.
pub const NOBODY: u64 = u64::MAX;

/// Whether a failure has won.
pub fn is_failure(winner: u64) -> bool {
    winner != 0 && winner != NOBODY
}

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
    /// those decided now by `policy`.
    pub fn count(&mut self, voters: &[Uuid], policy: u8) -> Vec<(Seqno, u64)> {
        let mut now = Vec::new();
        self.open.retain(|&seqno, vote| {
            let asked: Vec<Uuid> = vote
                .asked
                .iter()
                .filter(|u| voters.contains(u))
                .copied()
                .collect();
            let left_alone = asked.len() == 1 && vote.asked.len() > 1;
            match decide(&vote.ballots, &asked, policy) {
                Some(winner) => {
                    let none = asked.is_empty() || left_alone && winner != 0;
                    now.push((seqno, if none { NOBODY } else { winner }));
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
fn decide(ballots: &BTreeMap<Uuid, u64>, voters: &[Uuid], policy: u8) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::from([(0, 0)]);
    let mut missing = 0;
    for voter in voters {
        match ballots.get(voter) {
            Some(&digest) => *counts.entry(digest).or_insert(0) += 1,
            None => missing += 1,
        }
    }
    let success = counts[&0];
    let enough = usize::from(policy);
    if enough > 0 && success >= enough {
        return Some(0);
    }
    if enough > 0 && success + missing >= enough {
        return None; // they may still be found
    }
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
    use proptest::prelude::*;

    fn run(ballots: &[Option<u64>]) -> Option<u64> {
        under(0, ballots)
    }

    fn under(policy: u8, ballots: &[Option<u64>]) -> Option<u64> {
        let voters: Vec<Uuid> = (0..ballots.len())
            .map(|i| Uuid([i as u8 + 1; 16]))
            .collect();
        let cast = voters
            .iter()
            .zip(ballots)
            .filter_map(|(&v, b)| b.map(|b| (v, b)))
            .collect();
        decide(&cast, &voters, policy)
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
    fn with_a_number_so_many_successes_are_enough() {
        // One is enough, against any majority, at once.
        assert_eq!(under(1, &[Some(0), Some(5), Some(5)]), Some(0));
        assert_eq!(under(1, &[Some(0), None, None]), Some(0));
        assert_eq!(under(1, &[Some(5), Some(5), None]), None, "it may succeed");
        assert_eq!(under(1, &[Some(5), Some(5), Some(5)]), Some(5));
        // Two of three.
        assert_eq!(under(2, &[Some(0), Some(5), Some(5)]), Some(5));
        assert_eq!(under(2, &[Some(0), Some(5), None]), None);
        assert_eq!(under(2, &[Some(0), None, Some(0)]), Some(0));
        assert_eq!(
            under(2, &[Some(5), Some(5), None]),
            Some(5),
            "two cannot be found"
        );
        // More than there are: as with 0.
        assert_eq!(under(9, &[Some(0), Some(5), Some(0)]), Some(0));
        assert_eq!(under(9, &[Some(0), Some(5)]), Some(0));
        assert_eq!(under(3, &[Some(0), Some(5), Some(5), Some(0)]), Some(0));
    }

    /// What the documentation says, of a vote in which everybody has voted.
    fn rule(policy: u8, ballots: &[u64]) -> u64 {
        let votes_for = |d: u64| ballots.iter().filter(|b| **b == d).count();
        if policy > 0 && votes_for(0) >= usize::from(policy) {
            return 0;
        }
        let most = ballots.iter().map(|b| votes_for(*b)).max().unwrap_or(0);
        let mut winners: Vec<u64> = ballots.to_vec();
        winners.retain(|b| votes_for(*b) == most);
        winners.into_iter().min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn a_decision_stands_whatever_the_missing_ballots_say(
            policy in 0..6u8,
            said in prop::collection::vec(prop::option::of(0..4u64), 1..7),
        ) {
            let missing = said.iter().filter(|b| b.is_none()).count();
            let decided = under(policy, &said);
            if missing == 0 {
                let all: Vec<u64> = said.iter().flatten().copied().collect();
                prop_assert_eq!(decided, Some(rule(policy, &all)));
            } else if let Some(winner) = decided {
                for mut case in 0..5usize.pow(missing as u32) {
                    let all = said.iter().map(|b| b.unwrap_or_else(|| {
                        let ballot = case % 5;
                        case /= 5;
                        ballot as u64
                    }));
                    let all: Vec<u64> = all.collect();
                    prop_assert_eq!(rule(policy, &all), winner, "{:?}", all);
                }
            }
        }
    }

    #[test]
    fn late_ballots_hear_the_outcome() {
        let (a, b, c) = (Uuid([1; 16]), Uuid([2; 16]), Uuid([3; 16]));
        let mut votes = Votes::default();
        assert_eq!(votes.cast(7, a, 3, &[a, b]), Cast::Opened);
        assert_eq!(votes.count(&[a, b, c], 0), [], "b was asked and is silent");
        assert_eq!(votes.cast(7, b, 3, &[a, b, c]), Cast::Counted);
        assert_eq!(
            votes.count(&[a, b, c], 0),
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
        assert_eq!(votes.count(&[a, b], 0), []);
        assert_eq!(votes.count(&[a], 0), [(9, NOBODY)], "b may have its rows");
        let late = Cast::Late { winner: NOBODY };
        assert_eq!(votes.cast(9, a, 5, &[a]), late);
    }

    #[test]
    fn one_that_is_left_and_has_it_wins_and_two_that_failed_do() {
        let (a, b, c) = (Uuid([1; 16]), Uuid([2; 16]), Uuid([3; 16]));
        let mut votes = Votes::default();
        votes.cast(9, a, 5, &[a, b]);
        assert_eq!(votes.count(&[b], 0), [], "it has not said yet");
        votes.cast(9, b, 0, &[b]);
        assert_eq!(votes.count(&[b], 0), [(9, 0)]);
        votes.cast(10, a, 5, &[a, b, c]);
        votes.cast(10, b, 5, &[a, b, c]);
        assert_eq!(votes.count(&[a, b], 0), [(10, 5)]);
        votes.cast(11, a, 5, &[a, b]);
        assert_eq!(votes.count(&[], 0), [(11, NOBODY)]);
        votes.cast(12, a, 5, &[a]);
        assert_eq!(
            votes.count(&[a], 0),
            [(12, 5)],
            "it was alone when it asked"
        );
    }
}
