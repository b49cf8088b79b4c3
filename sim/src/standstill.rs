//! Whether the cluster stands still: a majority of the members is up, healthy
//! and connected, and yet nothing is acknowledged.
//!
//! The world says every now and then how the machines are; the nodes say, as
//! they deliver it, who the members are. A group counts if it is a majority of
//! the logs that should vote (by the cluster's state) and of those that do (by
//! the log's own membership): one may lag the other for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dromon_order::RaftId;

/// How long a majority may be up, healthy and connected without anything being
/// acknowledged.
pub const LIMIT: Duration = Duration::from_secs(15);

/// Who the members are, by the newest entry of the log that anybody delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Electorate {
    /// Log index and members whose logs should count.
    wanted: (u64, BTreeSet<RaftId>),
    /// Log index and members whose logs do count; while the voters change, a
    /// majority of each set must agree.
    voters: (u64, Vec<BTreeSet<RaftId>>),
}

impl Electorate {
    /// Behind the entry at `index` these should count.
    pub fn wanted(&mut self, index: u64, ids: BTreeSet<RaftId>) {
        if index >= self.wanted.0 {
            self.wanted = (index, ids);
        }
    }

    /// From the entry at `index` on these count.
    pub fn voters(&mut self, index: u64, configs: Vec<BTreeSet<RaftId>>) {
        if index >= self.voters.0 {
            self.voters = (index, configs);
        }
    }

    /// From `index` on, `id` is the only one.
    pub fn alone(&mut self, index: u64, id: RaftId) {
        self.wanted = (index, [id].into());
        self.voters = (index, vec![[id].into()]);
    }

    /// Whether the others could go on if the log of `id` were gone.
    pub fn can_spare(&self, id: RaftId) -> bool {
        self.sets()
            .all(|set| 2 * set.iter().filter(|other| **other != id).count() > set.len())
    }

    /// A majority of each of these is needed.
    fn sets(&self) -> impl Iterator<Item = &BTreeSet<RaftId>> {
        std::iter::once(&self.wanted.1).chain(&self.voters.1)
    }

    /// Whether the members `ids` are enough.
    fn suffice(&self, ids: &[RaftId]) -> bool {
        self.sets().all(|set| {
            let n = set.iter().filter(|id| ids.contains(id)).count();
            2 * n > set.len()
        })
    }
}

/// One machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whose log it has; 0: nobody's.
    pub id: RaftId,
    /// It runs, on time, with a disk that works.
    pub well: bool,
    /// It has a database that could serve.
    pub data: bool,
}

/// Watches for standing still.
#[derive(Debug, Default)]
pub struct Standstill {
    /// Since when each group (a bit for each slot) would do.
    since: BTreeMap<u32, u64>,
    acked: usize,
    acked_us: u64,
    worst: Duration,
}

impl Standstill {
    /// The longest time that a group that would do got nothing done.
    pub fn worst(&self) -> Duration {
        self.worst
    }

    /// Begins anew: nobody writes meanwhile.
    pub fn forget(&mut self) {
        self.since.clear();
    }

    /// Looks at the world at `now_us`, when `acked` transactions have been
    /// acknowledged since the beginning. `linked`: both ways between two slots
    /// are open and fast. Answers who stands still, if somebody does.
    pub fn look(
        &mut self,
        now_us: u64,
        acked: usize,
        electorate: &Electorate,
        health: &[Health],
        linked: impl Fn(usize, usize) -> bool,
    ) -> Option<Vec<usize>> {
        if acked != self.acked {
            (self.acked, self.acked_us) = (acked, now_us);
        }
        let since = std::mem::take(&mut self.since);
        let mut stands = None;
        for group in 1u32..1 << health.len() {
            let slots: Vec<usize> = (0..health.len()).filter(|s| group >> s & 1 == 1).collect();
            if !self::will_do(&slots, electorate, health, &linked) {
                continue;
            }
            let from = *self.since.entry(group).or_insert_with(|| {
                let known = since.get(&group);
                known.copied().unwrap_or(now_us)
            });
            let still = Duration::from_micros(now_us - from.max(self.acked_us));
            self.worst = self.worst.max(still);
            if still > LIMIT {
                stands.get_or_insert(slots);
            }
        }
        stands
    }
}

fn will_do(
    slots: &[usize],
    electorate: &Electorate,
    health: &[Health],
    linked: impl Fn(usize, usize) -> bool,
) -> bool {
    if !slots.iter().all(|&s| health[s].well) || !slots.iter().any(|&s| health[s].data) {
        return false;
    }
    let ids: Vec<RaftId> = slots.iter().map(|&s| health[s].id).collect();
    // Everybody in it is needed for something: others make groups of their own.
    let all_count = ids
        .iter()
        .all(|id| electorate.sets().any(|set| set.contains(id)));
    all_count
        && electorate.suffice(&ids)
        && slots
            .iter()
            .all(|&a| slots.iter().all(|&b| a == b || linked(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn electorate(wanted: &[u64], voters: &[u64]) -> Electorate {
        let mut e = Electorate::default();
        e.wanted(1, wanted.iter().copied().collect());
        e.voters(1, vec![voters.iter().copied().collect()]);
        e
    }

    /// Member `s + 1` in slot `s`; the first `data` of them have databases.
    fn machines(well: &[bool], data: usize) -> Vec<Health> {
        let one = |(s, &well): (usize, &bool)| Health {
            id: s as u64 + 1,
            well,
            data: s < data,
        };
        well.iter().enumerate().map(one).collect()
    }

    /// Whether `health` stands still after longer than the limit.
    fn stands(
        e: &Electorate,
        health: &[Health],
        linked: impl Fn(usize, usize) -> bool + Copy,
    ) -> bool {
        let mut s = Standstill::default();
        let limit = LIMIT.as_micros() as u64;
        assert_eq!(s.look(0, 5, e, health, linked), None);
        assert_eq!(s.look(limit, 5, e, health, linked), None, "not yet");
        s.look(limit + 50_000, 5, e, health, linked).is_some()
    }

    #[test]
    fn two_of_three_must_do_and_one_need_not() {
        let three = electorate(&[1, 2, 3], &[1, 2, 3]);
        let all = |_, _| true;
        assert!(stands(&three, &machines(&[true, true, false], 3), all));
        assert!(!stands(&three, &machines(&[true, false, false], 3), all));
        // A witness counts for the majority; alone with a log it serves nobody.
        assert!(stands(&three, &machines(&[true, false, true], 2), all));
        assert!(!stands(&three, &machines(&[false, true, true], 1), all));
    }

    #[test]
    fn a_group_must_hear_one_another() {
        let three = electorate(&[1, 2, 3], &[1, 2, 3]);
        let health = machines(&[true, true, false], 3);
        assert!(!stands(&three, &health, |a, b| (a, b) != (1, 0)));
        let all = machines(&[true; 5], 5);
        let five = electorate(&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]);
        // A ring: each hears two others, but no three hear each other.
        let ring = |a: usize, b: usize| (a + 1) % 5 == b || (b + 1) % 5 == a;
        assert!(!stands(&five, &all, ring));
        assert!(stands(&five, &all, |a, b| a < 3 && b < 3));
    }

    #[test]
    fn both_memberships_count() {
        let all = |_, _| true;
        let up = machines(&[false, true, true], 3);
        assert!(!stands(&electorate(&[1, 2, 3], &[1, 2]), &up, all));
        assert!(!stands(&electorate(&[1], &[1, 2, 3]), &up, all));
        assert!(stands(&electorate(&[2, 3], &[1, 2, 3]), &up, all));
    }

    /// Between the two entries of a change the old voters and the new ones count.
    #[test]
    fn while_the_voters_change_both_sets_count() {
        let mut e = electorate(&[1, 2, 3], &[1, 2]);
        e.voters(2, vec![[1, 2].into(), [1, 2, 3].into()]);
        let all = |_, _| true;
        assert!(!stands(&e, &machines(&[false, true, true], 3), all));
        assert!(stands(&e, &machines(&[true, true, false], 3), all));
        assert!(!e.can_spare(1) && e.can_spare(3) && e.can_spare(9));
        e.voters(3, vec![[1, 2, 3].into()]);
        assert!(stands(&e, &machines(&[false, true, true], 3), all));
        assert!(e.can_spare(1));
    }

    #[test]
    fn an_acknowledgement_or_another_group_begins_the_time_anew() {
        let e = electorate(&[1, 2, 3], &[1, 2, 3]);
        let up = machines(&[true, true, false], 3);
        let all = |_, _| true;
        let limit = LIMIT.as_micros() as u64;
        let mut s = Standstill::default();
        s.look(0, 5, &e, &up, all);
        assert_eq!(s.look(limit / 2, 6, &e, &up, all), None);
        assert_eq!(s.look(limit + 50_000, 6, &e, &up, all), None);
        assert_eq!(s.worst(), Duration::from_micros(limit / 2 + 50_000));
        let other = machines(&[true, false, true], 3);
        s.look(limit * 2, 6, &e, &other, all);
        assert_eq!(s.look(limit * 2 + 50_000, 6, &e, &up, all), None);
    }

    #[test]
    fn older_news_does_not_count() {
        let mut e = electorate(&[1, 2, 3], &[1, 2, 3]);
        let before = e.clone();
        e.wanted(0, [9].into());
        e.voters(0, vec![[9].into()]);
        assert_eq!(e, before);
        e.alone(7, 2);
        assert!(e.suffice(&[2]) && !e.suffice(&[1, 3]));
        e.wanted(3, [1, 2, 3].into());
        assert!(e.suffice(&[2]));
    }
}
