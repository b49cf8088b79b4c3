//! Whose logs vote: what `pc.weight` makes of the members.
//!
//! The log knows no weights: each voter has one vote. But some weights come to the
//! same as votes for some and none for others:
//!
//! ```text
//!   one weighs more than all others together   only its log votes
//!   some weigh nothing                         these have no vote
//!   any others                                 one vote each
//! ```
//!
//! Of two members both vote whatever they weigh: so what is acknowledged is on both
//! disks, and the heavier one goes on by forced recovery if the other is lost. A
//! member without a complete state or without data, as a witness, is never the
//! only voter: it could serve nobody.

use std::collections::BTreeSet;

use dromon_order::RaftId;
use dromon_writeset::Uuid;

use crate::cluster::Member;

/// From so many members on weights take votes away.
const ENOUGH: usize = 3;

/// What the weights of the members come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Weighing {
    /// One vote each.
    #[default]
    Even,
    /// This member alone votes.
    Sole(Uuid),
    /// These, of weight 0, do not vote.
    NotTheWeightless(BTreeSet<Uuid>),
}

impl Weighing {
    /// What it is among `members`.
    pub fn of<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> Self {
        if members.clone().count() < ENOUGH {
            return Weighing::Even;
        }
        let total: u64 = members.clone().map(|m| u64::from(m.weight)).sum();
        let mut serving = members.clone().filter(|m| m.complete && !m.witness);
        let mut heavy = serving.clone();
        if let Some(m) = heavy.find(|m| 2 * u64::from(m.weight) > total) {
            return Weighing::Sole(m.uuid);
        }
        let weightless = members.filter(|m| m.weight == 0);
        match weightless.clone().any(may_vote) && serving.any(|m| m.weight > 0) {
            true => Weighing::NotTheWeightless(weightless.map(|m| m.uuid).collect()),
            false => Weighing::Even,
        }
    }

    /// Whether the log of `member` is to vote.
    pub fn votes(&self, member: &Member) -> bool {
        may_vote(member)
            && match self {
                Weighing::Even => true,
                Weighing::Sole(uuid) => member.uuid == *uuid,
                Weighing::NotTheWeightless(these) => !these.contains(&member.uuid),
            }
    }
}

/// Whether it would vote if all weighed the same.
fn may_vote(m: &Member) -> bool {
    m.complete || m.votes
}

/// The logs that are to vote.
pub fn electors<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> BTreeSet<RaftId> {
    let weighing = Weighing::of(members.clone());
    let voting = members.filter(|m| weighing.votes(m));
    voting.map(|m| m.raft_id).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::MemberState;
    use crate::cluster::tests::member;

    /// Complete members of these weights, with logs 1, 2, 3 and so on.
    fn weighing(weights: &[u8]) -> Vec<Member> {
        let one = |(n, weight): (u8, &u8)| Member {
            weight: *weight,
            raft_id: n.into(),
            complete: true,
            ..member(n, "m", MemberState::Synced)
        };
        (1..).zip(weights).map(one).collect()
    }

    fn voters(members: &[Member]) -> Vec<u64> {
        electors(members.iter()).into_iter().collect()
    }

    fn of(weights: &[u8]) -> Vec<u64> {
        voters(&weighing(weights))
    }

    #[test]
    fn one_that_outweighs_all_others_votes_alone() {
        assert_eq!(of(&[1, 3, 1]), [2]);
        assert_eq!(of(&[2, 1, 1]), [1, 2, 3], "as heavy as the others together");
        assert_eq!(of(&[4, 1, 1, 1]), [1]);
        assert_eq!(of(&[255, 255, 255]), [1, 2, 3]);
        assert_eq!(of(&[1, 0, 0]), [1]);
    }

    #[test]
    fn who_weighs_nothing_does_not_vote_if_others_do() {
        assert_eq!(of(&[1, 0, 1]), [1, 3]);
        assert_eq!(of(&[2, 0, 1, 1]), [1, 3, 4]);
        assert_eq!(of(&[0, 0, 0]), [1, 2, 3]);
    }

    /// Who waits for a change of votes, or tells of it, compares two of these.
    #[test]
    fn another_one_of_weight_0_is_another_weighing() {
        let weighing_of = |weights: &[u8]| Weighing::of(weighing(weights).iter());
        let one = weighing_of(&[1, 0, 1, 1]);
        let two = weighing_of(&[1, 0, 0, 1]);
        assert_ne!(one, two);
        assert_ne!(two, weighing_of(&[1, 1, 0, 1]));
        assert_eq!(one, weighing_of(&[2, 0, 2, 2]), "the same voters");
    }

    #[test]
    fn of_one_and_two_all_vote() {
        for weights in [[3, 1], [1, 0], [0, 0]] {
            assert_eq!(of(&weights), [1, 2]);
            assert_eq!(of(&weights[..1]), [1]);
        }
    }

    #[test]
    fn who_could_serve_nobody_is_not_the_only_voter() {
        let mut members = weighing(&[1, 1, 5]);
        members[2].witness = true;
        assert_eq!(voters(&members), [1, 2, 3]);
        members[2].witness = false;
        members[2].complete = false;
        assert_eq!(voters(&members), [1, 2], "a joiner has no vote");
        members[2].votes = true;
        assert_eq!(
            voters(&members),
            [1, 2, 3],
            "it takes a copy: its log votes"
        );
        members[2].complete = true;
        assert_eq!(voters(&members), [3]);
        // Weight that nobody with data has takes no vote from those that have data.
        let mut members = weighing(&[0, 0, 1]);
        members[2].witness = true;
        assert_eq!(voters(&members), [1, 2, 3]);
        members[2].witness = false;
        members[2].complete = false;
        members[2].votes = true;
        assert_eq!(voters(&members), [1, 2, 3]);
    }

    /// What a joiner weighs counts against the heavy one, though it has no vote yet.
    #[test]
    fn all_members_are_weighed() {
        let mut members = weighing(&[3, 1, 2]);
        members[2].complete = false;
        assert_eq!(voters(&members), [1, 2]);
        members[2].weight = 1;
        assert_eq!(voters(&members), [1]);
    }

    fn cluster() -> impl Strategy<Value = Vec<Member>> {
        let one = (0..6u8, any::<[bool; 3]>());
        prop::collection::vec(one, 1..7).prop_map(|all| {
            let mut members = weighing(&all.iter().map(|(w, _)| *w).collect::<Vec<_>>());
            for (m, (_, [complete, votes, witness])) in members.iter_mut().zip(all) {
                (m.complete, m.votes, m.witness) = (complete, votes, witness);
            }
            members
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Every set of members against a naive count of votes and weights.
        #[test]
        fn a_majority_of_votes_is_what_weights_mean(members in cluster()) {
            let weighing = Weighing::of(members.iter());
            let voters = electors(members.iter());
            let could = |m: &&Member| m.complete || m.votes;
            prop_assert_eq!(voters.is_empty(), members.iter().filter(could).count() == 0);
            prop_assert!(members.iter().filter(|m| voters.contains(&m.raft_id)).all(|m| could(&m)));
            let total: u32 = members.iter().map(|m| u32::from(m.weight)).sum();
            let wins = |set: u32| {
                let inside = |m: &&Member| set >> (m.raft_id - 1) & 1 == 1;
                let votes = members.iter().filter(|m| voters.contains(&m.raft_id));
                let weight: u32 = members.iter().filter(inside).map(|m| u32::from(m.weight)).sum();
                (2 * votes.filter(inside).count() > voters.len(), 2 * weight > total)
            };
            let everybody = (1u32 << members.len()) - 1;
            for set in 0..=everybody {
                let (by_votes, by_weight) = wins(set);
                prop_assert!(!by_votes || !wins(everybody & !set).0, "two majorities");
                if let Weighing::Sole(_) = weighing {
                    prop_assert_eq!(by_votes, by_weight);
                }
                // Who weighs nothing makes no difference, as by weight.
                if let Weighing::NotTheWeightless(_) = weighing {
                    for m in members.iter().filter(|m| m.weight == 0) {
                        prop_assert_eq!(wins(set | 1 << (m.raft_id - 1)).0, by_votes);
                    }
                }
            }
            if weighing == Weighing::Even {
                prop_assert_eq!(voters.len(), members.iter().filter(could).count());
            }
            // The only voter that weights make can serve.
            if let Weighing::Sole(uuid) = weighing {
                let serves = |m: &&Member| m.uuid == uuid && m.complete && !m.witness;
                prop_assert!(members.iter().any(|m| serves(&m)));
            }
        }
    }
}
