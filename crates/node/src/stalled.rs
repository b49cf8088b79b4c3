//! Which members answer, but store nothing, or less than is written: their disk hangs, or the way to them
//! carries too little.
//!
//! An answer to a ping shows that a process runs. A member is worth its vote only
//! if what it is sent reaches its disk, so the leader looks at that: whose log
//! stands still below what a majority has, for how long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_order::RaftId;

/// Whether a member may have good reason to stand still: it is no voter yet, or is
/// given a checkpoint first, as the log begins behind what it has. 0: it has stored
/// nothing for this leader yet, whatever it has.
pub fn begins(voter: bool, matched: u64, first_log: u64) -> bool {
    !voter || matched > 0 && matched + 1 < first_log
}

/// By log: how far it is durable, and since when it stands there.
#[derive(Debug, Default)]
pub struct Stalled(BTreeMap<RaftId, (u64, Instant)>);

impl Stalled {
    /// `matched`: how far the other members' logs are durable; `committed`: what a
    /// majority has. Nobody, if this node does not lead.
    pub fn look(
        &mut self,
        now: Instant,
        committed: u64,
        matched: impl Iterator<Item = (RaftId, u64)>,
    ) {
        let before = std::mem::take(&mut self.0);
        let behind = matched.filter(|(_, at)| *at < committed);
        let since = |(id, at)| match before.get(&id) {
            Some(stood) if stood.0 == at => (id, *stood),
            _ => (id, (at, now)),
        };
        self.0 = behind.map(since).collect();
    }

    /// How long this log stands still; zero if it lacks nothing.
    pub fn for_long(&self, now: Instant, log: RaftId) -> Duration {
        let stands = self.0.get(&log);
        stands.map_or(Duration::ZERO, |(_, since)| now.duration_since(*since))
    }

    /// This node itself was away: what it did not see is nobody's fault.
    pub fn forgive(&mut self, now: Instant) {
        for (_, since) in self.0.values_mut() {
            *since = now;
        }
    }
}

/// Who lacks more of the log than is kept for a member, and does not gain: the log of all others would
/// grow for it without bound.
#[derive(Debug, Default)]
pub struct Losing(BTreeMap<RaftId, (u64, Instant)>);

impl Losing {
    /// `lacks`: how many bytes of log the other members' logs lack, which may be `most`. Nobody, if this
    /// node does not lead.
    pub fn look(&mut self, now: Instant, most: u64, lacks: impl Iterator<Item = (RaftId, u64)>) {
        let before = std::mem::take(&mut self.0);
        let since = |(id, lacks): (RaftId, u64)| match before.get(&id) {
            Some(least) if least.0 <= lacks => (id, *least),
            _ => (id, (lacks, now)),
        };
        self.0 = lacks.filter(|(_, l)| *l > most).map(since).collect();
    }

    /// How long this log has not come nearer to the others, and how many bytes it lacked at best;
    /// `None`: it lacks little.
    pub fn for_long(&self, now: Instant, log: RaftId) -> Option<(Duration, u64)> {
        let (least, since) = self.0.get(&log)?;
        Some((now.duration_since(*since), *least))
    }

    /// This node itself was away: what it did not see is nobody's fault.
    pub fn forgive(&mut self, now: Instant) {
        for (_, since) in self.0.values_mut() {
            *since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_given_a_checkpoint_first_begins() {
        assert!(begins(false, 50, 10));
        assert!(begins(true, 8, 10));
        assert!(!begins(true, 9, 10));
        // The leader of before, whose disk has hung since.
        assert!(!begins(true, 0, 10));
    }

    #[test]
    fn only_who_lacks_something_and_does_not_move_stands_still() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let mut stalled = Stalled::default();
        let mut look = |second, committed, logs: &[(RaftId, u64)]| {
            stalled.look(at(second), committed, logs.iter().copied());
            [1, 2, 3].map(|id| stalled.for_long(at(second), id).as_secs())
        };
        // Nothing is written: nobody can be seen to hang.
        assert_eq!(look(0, 10, &[(1, 10), (2, 10)]), [0, 0, 0]);
        assert_eq!(look(60, 10, &[(1, 10), (2, 10)]), [0, 0, 0]);
        // Both are behind for a moment; one moves.
        assert_eq!(look(61, 20, &[(1, 10), (2, 10)]), [0, 0, 0]);
        assert_eq!(look(62, 30, &[(1, 20), (2, 10)]), [0, 1, 0]);
        assert_eq!(look(70, 90, &[(1, 80), (2, 10)]), [0, 9, 0]);
        // A little is something.
        assert_eq!(look(71, 99, &[(1, 99), (2, 11)]), [0, 0, 0]);
        assert_eq!(look(80, 99, &[(1, 99), (2, 11), (3, 0)]), [0, 9, 0]);
        assert_eq!(look(84, 99, &[(1, 99), (2, 11), (3, 0)]), [0, 13, 4]);
        // It has all: what it had to catch up counts no more.
        assert_eq!(look(85, 99, &[(1, 99), (2, 99), (3, 0)]), [0, 0, 5]);
        assert_eq!(look(86, 100, &[(1, 99), (2, 99), (3, 0)]), [0, 0, 6]);
        // It left, and is new when it comes back.
        assert_eq!(look(87, 100, &[(1, 100)]), [0, 0, 0]);
        assert_eq!(look(90, 100, &[(1, 100), (3, 0)]), [0, 0, 0]);
        assert_eq!(look(95, 100, &[(1, 100), (3, 0)]), [0, 0, 5]);
        stalled.forgive(at(96));
        assert_eq!(stalled.for_long(at(97), 3).as_secs(), 1);
    }

    #[test]
    fn who_lacks_much_and_does_not_gain_loses() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let mut losing = Losing::default();
        let mut look = |second, lacks: &[(RaftId, u64)]| {
            losing.look(at(second), 100, lacks.iter().copied());
            [1, 2].map(|id| {
                losing
                    .for_long(at(second), id)
                    .map(|(t, l)| (t.as_secs(), l))
            })
        };
        assert_eq!(look(0, &[(1, 100), (2, 101)]), [None, Some((0, 101))]);
        assert_eq!(
            look(5, &[(1, 101), (2, 101)]),
            [Some((0, 101)), Some((5, 101))]
        );
        assert_eq!(
            look(9, &[(1, 500), (2, 900)]),
            [Some((4, 101)), Some((9, 101))]
        );
        // Who has come nearer than ever begins anew; who is near enough is forgotten.
        assert_eq!(look(10, &[(1, 100), (2, 102)]), [None, Some((10, 101))]);
        assert_eq!(look(11, &[(1, 101)]), [Some((0, 101)), None]);
        losing.forgive(at(20));
        assert_eq!(
            losing.for_long(at(21), 1),
            Some((Duration::from_secs(1), 101))
        );
    }
}
