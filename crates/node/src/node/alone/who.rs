//! Who goes on without a majority by its options: by votes and weights, and who of several first.

use dromon_order::{LogId, OrderStatus, RaftId};
use dromon_writeset::Uuid;

use super::{Reached, Refused};
use crate::cluster::Member;

/// Whether this node and one other have the votes.
pub(super) fn are_two(status: &OrderStatus) -> bool {
    status.members.voters().len() == 2 && status.members.is_voter(status.id)
}

/// Those of `reached` that come before a node of this `id` whose log ends with `own`.
pub(super) fn before(
    own: LogId,
    id: RaftId,
    reached: &[Reached],
) -> impl Iterator<Item = &Reached> {
    let before = move |r: &&Reached| !r.failed && (r.last, r.id) > (own, id);
    reached.iter().filter(before)
}

/// Whether the member with the log `id` may go on by its options, if it has them: who waits for its data, or
/// has none, never does.
pub(super) fn serves(members: &[Member], id: RaftId) -> bool {
    let serves = |m: &Member| m.raft_id == id && m.complete && !m.witness;
    members.iter().any(serves)
}

/// Whether those who are here may go on, with so many of all votes in each configuration; by their weight, if not
/// by `ignore_sb`.
pub(super) fn by_votes(configs: &[(usize, usize)], ignore_sb: bool) -> Result<(), Refused> {
    // Exactly half: nobody else can have a majority.
    if let Some((here, all)) = configs.iter().find(|(here, all)| 2 * here < *all) {
        return Err(format!("only {here} of {all} members that vote are here").into());
    }
    if configs.iter().all(|(here, all)| 2 * here > *all) {
        return Err(Refused {
            why: "a majority of the votes is here: it elects a leader as soon as its disks and links allow".into(),
            leads_on: true,
        });
    }
    // Who is left behind in this half votes until he has noticed, and could make a majority of the other half.
    let other = configs.iter().find(|config| **config != (1, 2));
    match other.filter(|_| !ignore_sb) {
        None => Ok(()),
        Some((here, all)) => Err(format!(
            "{here} of {all} members that vote are here, and by pc.weight only one of two goes on. If the others are down \
             and stay so, SET GLOBAL wsrep_provider_options='pc.bootstrap=yes' on one of these makes these primary"
        )
        .into()),
    }
}

/// Whether the member `own` is heavier than the other one that votes and all that are not here: those whose logs
/// this one does not name yet, too. Who is here and has no vote may be with the other one as well, which hears
/// nothing of this one: it counts for neither, or both could be the heavier one.
pub(super) fn by_weight(
    members: &[Member],
    own: Uuid,
    votes: impl Fn(&Member) -> bool,
    is_here: impl Fn(&Member) -> bool,
) -> Result<(), Refused> {
    let weight_of = |some: &dyn Fn(&&Member) -> bool| -> u64 {
        let some = members.iter().filter(some);
        some.map(|m| u64::from(m.weight)).sum()
    };
    let weight = weight_of(&|m| m.uuid == own);
    let rest = weight_of(&|m| m.uuid != own && (votes(m) || !is_here(m)));
    let neither = weight_of(&|m| m.uuid != own && !votes(m) && is_here(m));
    if weight > rest {
        return Ok(());
    }
    let mut why = format!("weight {weight} of {} is here", weight + rest);
    if neither > 0 {
        why += &format!(
            ". Members without a vote that are here (weight {neither}) count for neither, as the other one may reach them, too"
        );
    }
    Err(why.into())
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;
    use crate::cluster::MemberState;
    use crate::cluster::tests::member;

    #[test]
    fn where_a_majority_is_or_others_vote_too_nobody_goes_on_by_weight() {
        let waits =
            |configs: &[_], ignore_sb| by_votes(configs, ignore_sb).err().map(|r| r.leads_on);
        for ignore_sb in [true, false] {
            assert_eq!(waits(&[(1, 2)], ignore_sb), None);
            // A slow election, however the weights are.
            assert_eq!(waits(&[(2, 3)], ignore_sb), Some(true));
            assert_eq!(waits(&[(2, 2), (2, 3)], ignore_sb), Some(true));
            assert_eq!(waits(&[(1, 3)], ignore_sb), Some(false));
            assert_eq!(waits(&[(1, 2), (1, 3)], ignore_sb), Some(false));
        }
        for config in [&[(2, 4)][..], &[(1, 2), (2, 3)], &[(2, 3), (2, 4)]] {
            assert_eq!(waits(config, true), None);
            assert_eq!(waits(config, false), Some(false));
        }
    }

    #[test]
    fn all_members_weigh_whether_or_not_this_log_names_them() {
        let mut all: Vec<Member> = (1..=3u8)
            .map(|n| member(n, &format!("n{n}"), MemberState::Synced))
            .collect();
        // Two of them vote.
        let refused = |all: &[Member], n: u8, here: &[u8]| {
            let votes = |m: &Member| m.uuid.0[0] <= 2;
            let is_here = |m: &Member| here.contains(&m.uuid.0[0]);
            let goes_on = by_weight(all, Uuid([n; 16]), votes, is_here);
            goes_on.err().map(|refused| refused.why)
        };
        all[0].weight = 2;
        assert_eq!(refused(&all[..2], 1, &[]), None);
        let less = |weights: &str| Some(format!("weight {weights} is here"));
        assert_eq!(refused(&all[..2], 2, &[]), less("1 of 3"));
        // One has joined.
        assert_eq!(refused(&all, 1, &[]), less("2 of 4"));
        assert_eq!(refused(&all, 1, &[3]), None, "it counts for neither");
        // Another one has the address of the other one that votes.
        all[1].weight = 3;
        assert!(refused(&all, 1, &[2, 3]).is_some());
    }

    /// Both may reach the third, whose vote is not there to tell which of them goes on.
    #[test]
    fn one_without_a_vote_makes_neither_of_two_the_heavier_one() {
        let mut all: Vec<Member> = (1..=3u8)
            .map(|n| member(n, &format!("n{n}"), MemberState::Joiner))
            .collect();
        for weights in [[1, 1, 2], [2, 2, 1], [3, 2, 2], [2, 1, 1], [1, 3, 9]] {
            for (m, weight) in all.iter_mut().zip(weights) {
                m.weight = weight;
            }
            for at in [&[][..], &[1], &[2], &[1, 2]] {
                let goes_on = |n: u8| {
                    let is_here = |m: &Member| m.uuid.0[0] == 3 && at.contains(&n);
                    let votes = |m: &Member| m.uuid.0[0] <= 2;
                    by_weight(&all, Uuid([n; 16]), votes, is_here).is_ok()
                };
                assert!(!goes_on(1) || !goes_on(2), "{weights:?}, reached by {at:?}");
            }
        }
    }

    #[test]
    fn of_those_with_the_same_log_the_highest_id_goes_first() {
        let reached = |id| Reached {
            addr: format!("n{id}"),
            id,
            primary: false,
            last: at(5, 1, 90),
            failed: id == 4,
            history: Uuid::NIL,
            leader: None,
        };
        let all = [1, 3, 4, 2].map(reached);
        let first = |id| -> Vec<_> {
            let before = before(at(5, 1, 90), id, &all);
            before.map(|r| r.id).collect()
        };
        assert!(first(3).is_empty());
        assert_eq!((first(2), first(1)), (vec![3], vec![3, 2]));
        assert!(
            before(at(5, 1, 91), 0, &all).next().is_none(),
            "it has more"
        );
    }

    #[test]
    fn who_has_no_data_does_not_go_on_by_its_options() {
        let of = |n: u8, complete, witness| Member {
            raft_id: n.into(),
            complete,
            // Of one that takes a copy, too.
            votes: true,
            witness,
            ..member(n, "m", MemberState::Joined)
        };
        let all = [of(1, true, false), of(2, false, false), of(3, true, true)];
        assert_eq!(
            [1, 2, 3, 4].map(|id| serves(&all, id)),
            [true, false, false, false]
        );
    }
}
