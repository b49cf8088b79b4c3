//! Makes the log's membership what the node wants, one step at a time.
//!
//! The plan is a pure function: members now, members wanted, progress of each;
//! the leader calls it again and again and carries out the step it returns. A
//! new leader goes on where the old one stopped, because nothing but the log
//! says how far things are.
//!
//! Order of steps: finish a change an earlier leader began; leave the lead if
//! this node is to go, has gone or is to have no vote, and if no other voter may
//! lead, first give votes to those that are to have them; remove who is gone and,
//! if alive, knows it: to others nothing is sent any more, not even that they have
//! left (voters and others in one change, so that several dead ones cost one
//! agreement); correct addresses; add who is missing, without a vote; give votes
//! to those that have caught up; take votes away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;

use crate::raft_types::Node;
use crate::types::{Desired, Members, PeerStatus, RaftId};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Change the log's membership; `retain`: former voters stay as members.
    Change {
        changes: ChangeMembers<RaftId, Node>,
        retain: bool,
    },
    /// Hand leadership to this member.
    HandOver(RaftId),
}

/// What the leader knows.
pub(crate) struct Picture<'a> {
    pub me: RaftId,
    /// By the newest membership entry in the log.
    pub members: &'a Members,
    /// Whether that entry is committed.
    pub settled: bool,
    pub desired: &'a BTreeMap<RaftId, Desired>,
    /// This node takes nothing more from the log: what it wants stays old.
    pub stood_down: bool,
    /// `desired` follows from the log up to here.
    pub processed: u64,
    /// Where the log ended when this node's leadership began.
    pub led_from: u64,
    pub peers: &'a BTreeMap<RaftId, PeerStatus>,
    /// For how long this leader has known of members that they are gone.
    pub gone_for: &'a BTreeMap<RaftId, Duration>,
    /// Where the log ended a heartbeat ago ([`LogEnd`]): what came since may be on its
    /// way to anybody.
    pub log_was: u64,
    /// A member not heard from for this long is not promoted.
    pub fresh: Duration,
}

/// A member that lacks at most this many entries has caught up.
const LAG_MAX: u64 = 256;

/// Where the log ended lately.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    was: Option<u64>,
    /// What will be that next, and when it was seen.
    next: Option<(Duration, u64)>,
}

impl LogEnd {
    /// It ends at `last` now, and is looked at every `pause` or so. Answers where it ended
    /// at least `ago` before; `last` if it was not looked at about then.
    pub fn look(&mut self, now: Duration, last: u64, ago: Duration, pause: Duration) -> u64 {
        let age = |(seen, _): &(Duration, u64)| now.saturating_sub(*seen);
        if self.next.as_ref().is_none_or(|next| age(next) >= ago) {
            let lately = self.next.filter(|next| age(next) < ago + 2 * pause);
            self.was = lately.map(|(_, end)| end);
            self.next = Some((now, last));
        }
        self.was.unwrap_or(last)
    }
}

/// The next step, if there is one to take now.
pub(crate) fn plan(p: &Picture<'_>) -> Option<Step> {
    if !p.settled || (p.desired.is_empty() && !p.stood_down) {
        return None;
    }
    if p.members.configs.len() > 1 {
        // Agreed half-way; asking for nothing ends it. Who only lost its vote stays a member; who
        // is gone is taken out by the next step.
        return change(ChangeMembers::AddVoterIds(BTreeSet::new()), true);
    }
    let voters = p.members.voters();
    let wanted_voter = |id: &RaftId| p.desired.get(id).is_some_and(|d| d.voter);
    let heir = |of_any: bool| {
        let others = voters.iter().filter(|id| **id != p.me);
        others
            .filter(|id| (of_any || wanted_voter(id)) && caught_up(p, **id))
            .max_by_key(|id| (wanted_voter(id), p.peers.get(id).map_or(0, |s| s.matched)))
            .map(|id| Step::HandOver(*id))
    };

    // Whom it wanted may be outside by now, and others may have come.
    if p.stood_down {
        return heir(true).or_else(|| votes_for_heirs(p, &voters));
    }
    if is_stale(p) {
        return None;
    }
    if !wanted_voter(&p.me) {
        // The only voter is to lose its vote, or has left: who is to lead next
        // has none yet.
        let prepares = || names_right(p).or_else(|| votes(p, &voters));
        return heir(false).or_else(prepares);
    }

    let gone: BTreeSet<RaftId> = p
        .members
        .addrs
        .keys()
        .filter(|id| !p.desired.contains_key(id) && knows_it_is_gone(p, **id))
        .copied()
        .collect();
    if !gone.is_empty() {
        // This node stays a voter, so the rest is never empty.
        let (gone_voters, gone_others): (BTreeSet<_>, BTreeSet<_>) =
            gone.into_iter().partition(|id| voters.contains(id));
        let mut steps = Vec::new();
        let rest = voters.iter().filter(|id| !gone_voters.contains(id));
        if !gone_voters.is_empty() && most_are_heard(p, rest) {
            steps.push(ChangeMembers::RemoveVoters(gone_voters));
        }
        if !gone_others.is_empty() {
            steps.push(ChangeMembers::RemoveNodes(gone_others));
        }
        if !steps.is_empty() {
            return change(one_or_batch(steps), false);
        }
    }

    let named = names_right(p);
    if named.is_some() {
        return named;
    }

    // First, so that there are not fewer copies on the way than before or after.
    let given = votes(p, &voters);
    if given.is_some() {
        return given;
    }
    let demoted: BTreeSet<RaftId> = voters
        .iter()
        .filter(|id| p.desired.contains_key(id) && !wanted_voter(id))
        .copied()
        .collect();
    let rest = voters.iter().filter(|id| !demoted.contains(id));
    if !demoted.is_empty() && most_are_heard(p, rest) {
        return change(ChangeMembers::RemoveVoters(demoted), true);
    }
    None
}

fn change(changes: ChangeMembers<RaftId, Node>, retain: bool) -> Option<Step> {
    Some(Step::Change { changes, retain })
}

/// Corrects addresses, then adds who is missing.
fn names_right(p: &Picture<'_>) -> Option<Step> {
    let node = |d: &Desired| Node {
        addr: d.addr.clone(),
    };
    let moved: BTreeMap<RaftId, Node> = p
        .desired
        .iter()
        .filter(|(id, d)| p.members.addrs.get(id).is_some_and(|a| *a != d.addr))
        .map(|(id, d)| (*id, node(d)))
        .collect();
    if !moved.is_empty() {
        return change(ChangeMembers::SetNodes(moved), true);
    }

    let missing: BTreeMap<RaftId, Node> = p
        .desired
        .iter()
        .filter(|(id, _)| !p.members.addrs.contains_key(id))
        .map(|(id, d)| (*id, node(d)))
        .collect();
    if !missing.is_empty() {
        return change(ChangeMembers::AddNodes(missing), true);
    }
    None
}

/// Gives votes to those that are to have them and have caught up.
fn votes(p: &Picture<'_>, voters: &BTreeSet<RaftId>) -> Option<Step> {
    let wanted = p.desired.iter().filter(|(_, d)| d.voter);
    promote(p, voters, wanted.map(|(id, _)| *id))
}

/// The same for a node that has stood down and is the only voter. Its wishes are
/// old: if they name nobody else, anybody may follow who was a member.
fn votes_for_heirs(p: &Picture<'_>, voters: &BTreeSet<RaftId>) -> Option<Step> {
    let alone = voters.iter().all(|id| *id == p.me);
    let others = || p.desired.iter().filter(|(id, _)| **id != p.me);
    let named = others().any(|(_, d)| d.voter);
    let heirs = others().filter(|(_, d)| alone && (d.voter || !named));
    promote(p, voters, heirs.map(|(id, _)| *id))
}

fn promote(
    p: &Picture<'_>,
    voters: &BTreeSet<RaftId>,
    ids: impl Iterator<Item = RaftId>,
) -> Option<Step> {
    let ready: BTreeSet<RaftId> = ids
        .filter(|id| p.members.addrs.contains_key(id))
        .filter(|id| !voters.contains(id) && caught_up(p, *id))
        .collect();
    match ready.is_empty() {
        true => None,
        false => change(ChangeMembers::AddVoterIds(ready), true),
    }
}

/// Whether what is wanted may be older than what is.
///
/// After a restart the node goes through old entries again, and wants on the
/// way what it wanted then: to take the vote from a member that was still
/// joining, say. Carried out after an outage, with one node missing, that asks
/// for a majority which is not there, and ends the cluster's life until the
/// missing one comes.
fn is_stale(p: &Picture<'_>) -> bool {
    let agreed = p.members.log_id.map_or(0, |id| id.index);
    p.processed < p.led_from.max(agreed)
}

/// Whether a member that is gone has been told how far the log is agreed since this node
/// knows that, or does not listen: it has been silent, or its node has another id by now.
/// The vote of a dead one is not left in the log any longer than it must be.
fn knows_it_is_gone(p: &Picture<'_>, id: RaftId) -> bool {
    let addr = p.members.addrs.get(&id);
    if p.desired.values().any(|d| addr == Some(&d.addr)) {
        return true;
    }
    let silent = p.peers.get(&id).and_then(|s| s.silent);
    let told = |silent| p.gone_for.get(&id).is_some_and(|gone| silent < *gone);
    silent.is_none_or(|silent| silent >= p.fresh || told(silent))
}

/// Whether these could agree now. A change that leaves them alone as voters
/// needs them: begun without, it is never finished, and nothing after it.
fn most_are_heard<'a>(p: &Picture<'_>, voters: impl Iterator<Item = &'a RaftId>) -> bool {
    let (mut heard, mut all) = (0, 0);
    for id in voters {
        all += 1;
        let peer = p.peers.get(id).and_then(|s| s.silent);
        heard += usize::from(*id == p.me || peer.is_some_and(|silent| silent < p.fresh));
    }
    heard * 2 > all
}

fn caught_up(p: &Picture<'_>, id: RaftId) -> bool {
    p.peers.get(&id).is_some_and(|s| {
        s.matched + LAG_MAX >= p.log_was && s.silent.is_some_and(|silent| silent < p.fresh)
    })
}

fn one_or_batch(mut steps: Vec<ChangeMembers<RaftId, Node>>) -> ChangeMembers<RaftId, Node> {
    match steps.pop() {
        Some(only) if steps.is_empty() => only,
        Some(last) => {
            steps.push(last);
            ChangeMembers::Batch(steps)
        }
        None => ChangeMembers::Batch(steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LogId;

    fn members(voters: &[u64], others: &[u64]) -> Members {
        Members {
            log_id: None,
            configs: vec![voters.iter().copied().collect()],
            addrs: voters
                .iter()
                .chain(others)
                .map(|id| (*id, format!("n{id}:1")))
                .collect(),
        }
    }

    fn desired(voters: &[u64], others: &[u64]) -> BTreeMap<RaftId, Desired> {
        let d = |id: &u64, voter| {
            (
                *id,
                Desired {
                    addr: format!("n{id}:1"),
                    voter,
                },
            )
        };
        voters
            .iter()
            .map(|id| d(id, true))
            .chain(others.iter().map(|id| d(id, false)))
            .collect()
    }

    /// All have been told since whoever is gone was.
    fn gone_for(members: &Members) -> BTreeMap<RaftId, Duration> {
        let long = |id: &RaftId| (*id, Duration::from_millis(500));
        members.addrs.keys().map(long).collect()
    }

    fn step(
        members: &Members,
        desired: &BTreeMap<RaftId, Desired>,
        behind: &[u64],
    ) -> Option<Step> {
        let peers = members
            .addrs
            .keys()
            .filter(|id| **id != 1)
            .map(|id| {
                let matched = if behind.contains(id) { 0 } else { 10_000 };
                let silent = Some(Duration::from_millis(10));
                (*id, PeerStatus { matched, silent })
            })
            .collect();
        plan(&Picture {
            me: 1,
            members,
            settled: true,
            desired,
            stood_down: false,
            processed: 10_001,
            led_from: 10_001,
            peers: &peers,
            gone_for: &gone_for(members),
            log_was: 10_001,
            fresh: Duration::from_secs(1),
        })
    }

    fn set(ids: &[u64]) -> BTreeSet<u64> {
        ids.iter().copied().collect()
    }

    fn nodes(ids: &[u64]) -> BTreeMap<u64, Node> {
        ids.iter()
            .map(|id| {
                let addr = format!("n{id}:1");
                (*id, Node { addr })
            })
            .collect()
    }

    #[test]
    fn a_joiner_is_added_then_promoted_when_it_has_caught_up() {
        let want = desired(&[1, 2], &[]);
        assert_eq!(
            step(&members(&[1], &[]), &want, &[]),
            change(ChangeMembers::AddNodes(nodes(&[2])), true)
        );
        assert_eq!(step(&members(&[1], &[2]), &want, &[2]), None);
        assert_eq!(
            step(&members(&[1], &[2]), &want, &[]),
            change(ChangeMembers::AddVoterIds(set(&[2])), true)
        );
        assert_eq!(step(&members(&[1, 2], &[]), &want, &[]), None);
    }

    /// Four hundred entries are under way all the time.
    #[test]
    fn who_is_only_as_far_behind_as_it_is_far_away_has_caught_up() {
        let ms = Duration::from_millis;
        let end_at = |t: u64| 10_000 + 5 * t;
        let (m, want) = (members(&[1], &[2]), desired(&[1, 2], &[]));
        let plan_at = |end: &mut LogEnd, t: u64, matched: u64| {
            let silent = Some(ms(10));
            plan(&Picture {
                me: 1,
                members: &m,
                settled: true,
                desired: &want,
                stood_down: false,
                processed: 10_000,
                led_from: 10_000,
                peers: &[(2, PeerStatus { matched, silent })].into(),
                gone_for: &BTreeMap::new(),
                log_was: end.look(ms(t), end_at(t), ms(100), ms(200)),
                fresh: ms(1000),
            })
        };
        let promoted = change(ChangeMembers::AddVoterIds(set(&[2])), true);
        let mut end = LogEnd::default();
        assert_eq!(plan_at(&mut end, 1000, end_at(920)), None, "the first look");
        assert_eq!(plan_at(&mut end, 1010, end_at(930)), None);
        assert_eq!(plan_at(&mut end, 1200, end_at(1120)), promoted);
        assert_eq!(plan_at(&mut end, 1210, end_at(1130)), promoted);
        // What a second brings is too much.
        assert_eq!(plan_at(&mut end, 1400, end_at(400)), None);
        // And so is what it lacks if nobody looked for long.
        assert_eq!(plan_at(&mut end, 9000, end_at(7000)), None);
        assert_eq!(plan_at(&mut end, 9200, end_at(9120)), promoted);
    }

    #[test]
    fn all_who_are_gone_go_in_one_change() {
        assert_eq!(
            step(&members(&[1, 2, 3], &[4]), &desired(&[1], &[]), &[]),
            change(
                ChangeMembers::Batch(vec![
                    ChangeMembers::RemoveVoters(set(&[2, 3])),
                    ChangeMembers::RemoveNodes(set(&[4])),
                ]),
                false
            )
        );
        assert_eq!(
            step(&members(&[1], &[4]), &desired(&[1], &[]), &[]),
            change(ChangeMembers::RemoveNodes(set(&[4])), false)
        );
    }

    #[test]
    fn who_is_gone_and_alive_is_told_first() {
        let m = members(&[1, 2, 3], &[]);
        let want = desired(&[1, 3], &[]);
        let ms = Duration::from_millis;
        let plan_of = |want: &BTreeMap<RaftId, Desired>, silent, gone: Option<Duration>| {
            let peer = |id, silent| {
                let matched = 10_000;
                (id, PeerStatus { matched, silent })
            };
            plan(&Picture {
                me: 1,
                members: &m,
                settled: true,
                desired: want,
                stood_down: false,
                processed: 10_001,
                led_from: 10_001,
                peers: &[peer(2, silent), peer(3, Some(ms(10)))].into(),
                gone_for: &gone.map(|gone| (2, gone)).into_iter().collect(),
                log_was: 10_001,
                fresh: Duration::from_secs(1),
            })
        };
        let removes = |silent, gone| plan_of(&want, silent, gone);
        let removed = change(ChangeMembers::RemoveVoters(set(&[2])), false);
        assert_eq!(removes(Some(ms(10)), Some(ms(11))), removed);
        assert_eq!(removes(Some(ms(10)), Some(ms(10))), None, "not told since");
        assert_eq!(removes(Some(ms(10)), None), None);
        assert_eq!(removes(Some(ms(1000)), Some(ms(500))), removed, "dead");
        assert_eq!(removes(None, Some(ms(0))), removed, "never seen");
        let mut back = want.clone();
        let addr = m.addrs[&2].clone();
        back.insert(4, Desired { addr, voter: true });
        let step = plan_of(&back, Some(ms(10)), None);
        assert_eq!(step, removed, "its node is back under another id");
    }

    #[test]
    fn a_leader_that_is_to_go_hands_over_first_and_alone_stays() {
        let m = members(&[1, 2, 3], &[]);
        assert_eq!(
            step(&m, &desired(&[2, 3], &[]), &[2]),
            Some(Step::HandOver(3))
        );
        assert_eq!(
            step(&m, &desired(&[2, 3], &[1]), &[2]),
            Some(Step::HandOver(3))
        );
        assert_eq!(step(&m, &desired(&[2, 3], &[]), &[2, 3]), None);
        assert_eq!(step(&members(&[1], &[]), &desired(&[], &[1]), &[]), None);
    }

    #[test]
    fn votes_are_taken_and_addresses_corrected() {
        assert_eq!(
            step(&members(&[1, 2], &[]), &desired(&[1], &[2]), &[]),
            change(ChangeMembers::RemoveVoters(set(&[2])), true)
        );
        let mut m = members(&[1, 2], &[]);
        m.addrs.insert(2, "old:1".to_owned());
        assert_eq!(
            step(&m, &desired(&[1, 2], &[]), &[]),
            change(ChangeMembers::SetNodes(nodes(&[2])), true)
        );
    }

    #[test]
    fn nothing_is_begun_before_the_last_change_is_settled_or_anything_is_wanted() {
        let m = members(&[1], &[]);
        let want = desired(&[1, 2], &[]);
        let peers = BTreeMap::new();
        let mut p = Picture {
            me: 1,
            members: &m,
            settled: false,
            desired: &want,
            stood_down: false,
            processed: 5,
            led_from: 5,
            peers: &peers,
            gone_for: &gone_for(&m),
            log_was: 5,
            fresh: Duration::from_secs(1),
        };
        assert_eq!(plan(&p), None);
        let none = BTreeMap::new();
        p.settled = true;
        p.desired = &none;
        assert_eq!(plan(&p), None);
        let mut joint = members(&[1, 2], &[]);
        joint.configs.push(set(&[1]));
        p.members = &joint;
        p.desired = &want;
        assert_eq!(
            plan(&p),
            change(ChangeMembers::AddVoterIds(BTreeSet::new()), true)
        );
    }
    /// A node that was down goes through its log again, and wants on the way
    /// what it wanted long ago.
    #[test]
    fn what_was_wanted_before_the_newest_agreement_or_leadership_is_not_done() {
        let mut m = members(&[1, 2, 3], &[]);
        let then = desired(&[1, 2], &[3]);
        let peers = [2, 3].map(|id| {
            let silent = Some(Duration::from_millis(10));
            (
                id,
                PeerStatus {
                    matched: 40,
                    silent,
                },
            )
        });
        let peers = peers.into();
        let at = |index| LogId {
            term: 1,
            leader: 1,
            index,
        };
        let mut picture = |agreed, processed, led_from| {
            m.log_id = Some(at(agreed));
            plan(&Picture {
                me: 1,
                members: &m,
                settled: true,
                desired: &then,
                stood_down: false,
                processed,
                led_from,
                peers: &peers,
                gone_for: &gone_for(&m),
                log_was: 41,
                fresh: Duration::from_secs(1),
            })
        };
        assert_eq!(picture(20, 12, 0), None, "older than the agreement");
        assert_eq!(picture(20, 30, 41), None, "older than the leadership");
        assert!(picture(20, 41, 41).is_some());
    }

    /// Its leadership began behind the last entry that its node took: its wishes
    /// are stale for ever.
    #[test]
    fn who_has_stood_down_hands_over_whatever_it_wanted() {
        let mut m = members(&[1, 2, 3], &[]);
        let at = |matched, silent| PeerStatus {
            matched,
            silent: Some(Duration::from_millis(silent)),
        };
        let step = |m: &Members, wanted: &BTreeMap<RaftId, Desired>, peers: [PeerStatus; 2]| {
            plan(&Picture {
                me: 1,
                members: m,
                settled: true,
                desired: wanted,
                stood_down: true,
                processed: 12,
                led_from: 41,
                peers: &[2, 3].into_iter().zip(peers).collect(),
                gone_for: &gone_for(m),
                log_was: 1_041,
                fresh: Duration::from_secs(1),
            })
        };
        let both = || [at(1_040, 10), at(1_041, 10)];
        assert_eq!(
            step(&m, &desired(&[2], &[]), both()),
            Some(Step::HandOver(2))
        );
        // Nobody is wanted: the most advanced one.
        for wanted in [desired(&[], &[]), desired(&[1], &[])] {
            assert_eq!(step(&m, &wanted, both()), Some(Step::HandOver(3)));
        }
        let slow = [at(1_040, 10), at(40, 10)];
        assert_eq!(step(&m, &desired(&[3], &[]), slow), Some(Step::HandOver(2)));
        let nobody = [at(1_040, 5_000), at(40, 10)];
        assert_eq!(step(&m, &desired(&[2, 3], &[]), nobody), None);
        // A change that was begun is finished first.
        m.configs.push(set(&[1, 2]));
        assert_eq!(
            step(&m, &desired(&[2], &[]), both()),
            change(ChangeMembers::AddVoterIds(BTreeSet::new()), true)
        );
    }

    #[test]
    fn no_vote_is_taken_that_the_rest_could_not_do_without() {
        let m = members(&[1, 2, 3], &[]);
        let silent = |ids: &[u64], want: &BTreeMap<RaftId, Desired>| {
            let peers = [2, 3].map(|id| {
                let silent = match ids.contains(&id) {
                    true => Duration::from_secs(5),
                    false => Duration::from_millis(10),
                };
                (
                    id,
                    PeerStatus {
                        matched: 5,
                        silent: Some(silent),
                    },
                )
            });
            plan(&Picture {
                me: 1,
                members: &m,
                settled: true,
                desired: want,
                stood_down: false,
                processed: 5,
                led_from: 5,
                peers: &peers.into(),
                gone_for: &gone_for(&m),
                log_was: 5,
                fresh: Duration::from_secs(1),
            })
        };
        for want in [desired(&[1, 2], &[]), desired(&[1, 2], &[3])] {
            assert_eq!(
                silent(&[2], &want),
                None,
                "1 alone is no majority of 1 and 2"
            );
            assert!(silent(&[3], &want).is_some());
            assert!(silent(&[], &want).is_some());
        }
        // Both go at once: then 1 needs nobody.
        assert!(silent(&[2], &desired(&[1], &[])).is_some());
    }

    /// What a change makes of the members, as the consensus library does it.
    fn carried_out(m: &Members, changes: ChangeMembers<u64, Node>, retain: bool) -> Members {
        let mut voters = m.configs.last().cloned().unwrap_or_default();
        let mut addrs = m.addrs.clone();
        if !retain {
            let lost: BTreeSet<u64> = m.voters().difference(&voters).copied().collect();
            addrs.retain(|id, _| !lost.contains(id));
        }
        let all = match changes {
            ChangeMembers::Batch(all) => all,
            one => vec![one],
        };
        for one in all {
            match one {
                ChangeMembers::AddVoterIds(ids) => {
                    assert!(
                        ids.iter().all(|id| addrs.contains_key(id)),
                        "no such member"
                    );
                    voters.extend(ids);
                }
                ChangeMembers::RemoveVoters(ids) => {
                    voters.retain(|id| !ids.contains(id));
                    addrs.retain(|id, _| retain || !ids.contains(id));
                }
                ChangeMembers::AddNodes(nodes) | ChangeMembers::SetNodes(nodes) => {
                    addrs.extend(nodes.into_iter().map(|(id, n)| (id, n.addr)));
                }
                ChangeMembers::RemoveNodes(ids) => addrs.retain(|id, _| !ids.contains(id)),
                other => panic!("not planned for: {other:?}"),
            }
        }
        Members {
            log_id: None,
            configs: vec![voters],
            addrs,
        }
    }

    /// The same if the leader is lost between the two steps of a change of voters.
    fn half_carried_out(m: &Members, changes: ChangeMembers<u64, Node>, retain: bool) -> Members {
        let done = carried_out(m, changes, retain);
        if m.configs.len() > 1 || done.configs == m.configs {
            return done;
        }
        let mut addrs = m.addrs.clone();
        addrs.extend(done.addrs);
        let configs = vec![m.voters(), done.configs[0].clone()];
        Members {
            log_id: None,
            configs,
            addrs,
        }
    }

    /// Follows the plan with `leader` first until there is nothing to do. Everybody
    /// hears everybody. `stood_down`: who takes nothing more, and what it wants.
    /// Whoever is wanted stays a member all the time. With `halves` each change of voters is
    /// finished by a plan of its own.
    fn follow(
        mut m: Members,
        want: &BTreeMap<RaftId, Desired>,
        mut leader: u64,
        stood_down: Option<(u64, &BTreeMap<RaftId, Desired>)>,
        halves: bool,
    ) -> (Members, u64) {
        for _ in 0..20 {
            let peers = m.addrs.keys().filter(|id| **id != leader).map(|id| {
                let silent = Some(Duration::from_millis(10));
                (*id, PeerStatus { matched: 9, silent })
            });
            let down = stood_down.filter(|(id, _)| *id == leader);
            let next = plan(&Picture {
                me: leader,
                members: &m,
                settled: true,
                desired: down.map_or(want, |(_, old)| old),
                stood_down: down.is_some(),
                processed: 9,
                led_from: 9,
                peers: &peers.collect(),
                gone_for: &gone_for(&m),
                log_was: 9,
                fresh: Duration::from_secs(1),
            });
            match next {
                None => return (m, leader),
                Some(Step::HandOver(to)) => {
                    assert!(m.is_voter(to) && to != leader);
                    leader = to;
                }
                Some(Step::Change { changes, retain }) => {
                    let next = match halves {
                        true => half_carried_out(&m, changes, retain),
                        false => carried_out(&m, changes, retain),
                    };
                    let wanted = m.addrs.keys().filter(|id| want.contains_key(id));
                    let thrown: Vec<_> = wanted.filter(|id| !next.addrs.contains_key(id)).collect();
                    assert!(thrown.is_empty(), "{thrown:?} are wanted, from {m:?}");
                    m = next;
                    assert!(m.is_voter(leader), "a leader takes its own vote");
                }
            }
        }
        panic!("no end: {m:?}, wanted {want:?}");
    }

    /// Of `all`, those whose bits are set in `bits`.
    fn some(bits: u32) -> Vec<u64> {
        (1..=4).filter(|id| bits >> (id - 1) & 1 == 1).collect()
    }

    #[test]
    fn from_any_voters_the_plan_leads_to_any_others() {
        for (now, then) in (1..16u32).flat_map(|a| (1..16).map(move |b| (a, b))) {
            for (also_now, also_then) in (0..16u32).flat_map(|a| (0..16).map(move |b| (a, b))) {
                if now & also_now != 0 || then & also_then != 0 {
                    continue;
                }
                let want = desired(&some(then), &some(also_then));
                let m = members(&some(now), &some(also_now));
                for (leader, halves) in some(now).into_iter().flat_map(|l| [(l, false), (l, true)])
                {
                    let (end, last) = follow(m.clone(), &want, leader, None, halves);
                    let named: BTreeSet<u64> = end.addrs.keys().copied().collect();
                    assert_eq!(end.voters(), set(&some(then)), "from {m:?} led by {leader}");
                    assert_eq!(named, set(&some(then | also_then)));
                    assert!(end.is_voter(last));
                }
            }
        }
    }

    /// It has left, or can read no more, and what it wants may be of before that.
    #[test]
    fn whoever_has_stood_down_does_not_keep_the_lead() {
        for now in 1..16u32 {
            for leader in some(now) {
                let m = members(&some(now), &some(!now & 15));
                let others = set(&some(15 & !(1 << (leader - 1))));
                let rest: Vec<u64> = others.iter().copied().collect();
                let new = desired(&rest, &[]);
                let sole = desired(&[leader], &rest);
                for old in [&new, &sole, &desired(&[1, 2, 3, 4], &[])] {
                    let down = Some((leader, old));
                    let (end, last) = follow(m.clone(), &new, leader, down, false);
                    assert_eq!(end.voters(), others, "from {m:?} led by {leader}");
                    assert_ne!(last, leader);
                }
            }
        }
    }

    #[test]
    fn the_only_voter_gives_votes_before_it_goes() {
        let m = members(&[1], &[2, 3]);
        // 3 has not caught up: it does not have to be waited for.
        assert_eq!(
            step(&m, &desired(&[2, 3], &[]), &[3]),
            change(ChangeMembers::AddVoterIds(set(&[2])), true)
        );
        assert_eq!(step(&m, &desired(&[2, 3], &[]), &[2, 3]), None);
        let m = members(&[1, 2], &[3]);
        assert_eq!(
            step(&m, &desired(&[2, 3], &[1]), &[]),
            Some(Step::HandOver(2))
        );
        assert_eq!(
            step(&m, &desired(&[3], &[1, 2]), &[]),
            change(ChangeMembers::AddVoterIds(set(&[3])), true)
        );
        // One that it does not know as a member yet is made one.
        assert_eq!(
            step(&members(&[1], &[]), &desired(&[4], &[1]), &[]),
            change(ChangeMembers::AddNodes(nodes(&[4])), true)
        );
    }

    #[test]
    fn votes_are_given_before_others_are_taken() {
        assert_eq!(
            step(&members(&[1, 2], &[3]), &desired(&[1, 3], &[2]), &[]),
            change(ChangeMembers::AddVoterIds(set(&[3])), true)
        );
        assert_eq!(
            step(&members(&[1, 2, 3], &[]), &desired(&[1, 3], &[2]), &[]),
            change(ChangeMembers::RemoveVoters(set(&[2])), true)
        );
    }
}
