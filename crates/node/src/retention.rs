//! How far the log may be shortened: to a checkpoint that everybody can start
//! from who may still have to. A pure decision.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use dromon_writeset::Seqno;

/// A checkpoint that a start could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its place in the log.
    pub index: u64,
    /// The last seqno contained.
    pub seqno: Seqno,
    /// Log bytes before it: those of the log that was found, and what this process delivered.
    pub bytes_before: u64,
}

/// From which log index on somebody needs the log, and whether he is given up
/// once that is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The checkpoint he would start from.
    pub index: u64,
    /// The others go on without waiting for him.
    pub quarantined: bool,
}

/// Where nodes were told to begin that are no members yet: until their joins are ordered nobody
/// else knows that the log is needed from there on. Indexes, ascending, and as of when.
#[derive(Debug, Default)]
pub struct Promises(Vec<(u64, Instant)>);

/// Whoever asks more often than this is not served better.
const PROMISES: usize = 64;

impl Promises {
    /// Somebody is told to begin at `index`.
    pub fn make(&mut self, index: u64, now: Instant) {
        let at = self.0.partition_point(|(i, _)| *i <= index);
        self.0.insert(at, (index, now));
        self.0.truncate(PROMISES);
    }

    /// One of them is a member now, and speaks for itself. Which one is not known, so the highest
    /// promise is taken for its: the lowest of those that still come is never below what is left.
    pub fn joined(&mut self) {
        self.0.pop();
    }

    /// The lowest index that was promised within the last `time`; older ones are forgotten.
    pub fn lowest(&mut self, time: Duration, now: Instant) -> Option<u64> {
        self.0.retain(|(_, at)| now.duration_since(*at) < time);
        self.0.first().map(|(index, _)| *index)
    }
}

const LAG_LEAST: u64 = 4 << 20;
const LAG_MOST: u64 = 64 << 20;

/// What limits a log, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So much stays, for members to come (`gcache.size`).
    pub floor: u64,
    /// A member in quarantine holds no more than this (`dromon.log_max`), but for what it has not stored itself.
    pub max: u64,
}

impl Limits {
    /// Any other member holds no more than this, but for what it has not stored itself. Beside what stays
    /// anyway: of a node that was just started nobody knows how little it needs.
    pub fn for_member(&self) -> u64 {
        self.max.saturating_add(self.floor)
    }

    /// Writers wait for a member that has not delivered more than this: a dead leader's majority needs what
    /// that one lacks first.
    pub fn lag(&self) -> u64 {
        (self.floor / 2).clamp(LAG_LEAST, LAG_MOST)
    }
}

/// The newest of `marks` (ascending) to which the log may be shortened now,
/// `bytes` having been delivered; `None`: it stays as it is. `own` is what this
/// node itself needs: no limit overrules that.
pub fn keep(
    marks: &VecDeque<Mark>,
    bytes: u64,
    own: u64,
    others: &[Need],
    limits: Limits,
) -> Option<u64> {
    let heeded = others
        .iter()
        .filter(|n| !n.quarantined || !exceeds(marks, bytes, n.index, limits.max));
    let need = heeded.map(|n| n.index).fold(own, u64::min);
    let fits = |m: &&Mark| m.index <= need && bytes.saturating_sub(m.bytes_before) >= limits.floor;
    let keep = marks.iter().rev().find(fits)?.index;
    marks
        .front()
        .is_some_and(|m| m.index < keep)
        .then_some(keep)
}

/// From which index on the log is needed for streaming transactions, given where these begin:
/// for those that are shelved whatever it costs, for each that is open as long as no
/// more than `max` bytes were delivered since the checkpoint before it.
pub fn for_streams(
    marks: &VecDeque<Mark>,
    bytes: u64,
    shelved: Option<u64>,
    open: impl Iterator<Item = u64>,
    max: u64,
) -> Option<u64> {
    let before = |begins: u64| begins.saturating_sub(1);
    let bearable = |index: &u64| !exceeds(marks, bytes, *index, max);
    let open = open.map(before).filter(bearable);
    open.chain(shelved.map(before)).min()
}

/// [`for_member`] of one that reports, and has `delivered` so much: of one in quarantine less is kept, but what its log
/// lacks it needs as a voter, whoever leads next.
pub fn for_reported(
    marks: &VecDeque<Mark>,
    bytes: u64,
    (index, quarantined): (u64, bool),
    delivered: Seqno,
    limits: Limits,
) -> u64 {
    let most = match quarantined {
        true => limits.max,
        false => limits.for_member(),
    };
    for_member(marks, bytes, index, delivered, most)
}

/// From which index on the log is needed for a member that would begin at `index` if it were started again:
/// beyond `max`, from the first one that it may lack, as it has `delivered` what lies before and
/// so has that in its own log.
pub fn for_member(
    marks: &VecDeque<Mark>,
    bytes: u64,
    index: u64,
    delivered: Seqno,
    max: u64,
) -> u64 {
    match exceeds(marks, bytes, index, max) {
        // The mark at `delivered` may lie behind entries without a seqno that have not come yet.
        true => index.max(restart_from(marks, delivered - 1)),
        false => index,
    }
}

/// Whether the order may still need the log of somebody whom the `view` does not
/// name: a member by an agreement that is `in_force` until the one without it is
/// settled. What is cut behind such a one can never be given to it again, and
/// its vote may be the one that is missing after an outage.
pub fn misses_somebody(in_force: &BTreeSet<u64>, view: impl Iterator<Item = u64>) -> bool {
    !in_force.is_subset(&view.collect())
}

/// Whether more than `max` bytes were delivered since the checkpoint at `index`.
pub fn exceeds(marks: &VecDeque<Mark>, bytes: u64, index: u64, max: u64) -> bool {
    let from = marks.iter().rev().find(|m| m.index <= index);
    from.or(marks.front())
        .is_some_and(|m| bytes.saturating_sub(m.bytes_before) > max)
}

/// The newest of `marks` from which a database that may fall back to `durable`
/// can be brought forward again; the oldest if none is that old.
pub fn restart_from(marks: &VecDeque<Mark>, durable: Seqno) -> u64 {
    let mark = marks.iter().rev().find(|m| m.seqno <= durable);
    mark.or(marks.front()).map_or(0, |m| m.index)
}

/// Whether what lies from log index `from` to `index` may be lost in part before it is released: one of `marks` lies amid it. A
/// database that has all up to that one is brought forward from there, and what lies before it goes.
pub fn amid(marks: &VecDeque<Mark>, from: u64, index: u64) -> bool {
    marks.iter().any(|m| from <= m.index && m.index < index)
}

/// Whether what begins at log index `from` does so before the oldest of `marks`, which may be where this log begins.
pub fn is_before(marks: &VecDeque<Mark>, from: u64) -> bool {
    marks.front().is_some_and(|m| from <= m.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marks(steps: &[(u64, i64, u64)]) -> VecDeque<Mark> {
        let mut at = Mark {
            index: 0,
            seqno: 0,
            bytes_before: 0,
        };
        let mut all = VecDeque::new();
        for (index, seqno, bytes) in steps {
            at.index += index + 1;
            at.seqno += seqno;
            at.bytes_before += bytes;
            all.push_back(at);
        }
        all
    }

    fn need(index: u64) -> Need {
        Need {
            index,
            quarantined: false,
        }
    }

    const ANY: Limits = Limits {
        floor: 0,
        max: u64::MAX,
    };

    #[test]
    fn what_begins_where_the_log_does_or_before_is_not_in_it() {
        let marks = marks(&[(10, 4, 100), (10, 4, 100)]);
        let oldest = marks[0].index;
        assert!(is_before(&marks, oldest) && !is_before(&marks, oldest + 1));
        assert!(!is_before(&VecDeque::new(), 1), "all of it is in the log");
    }

    #[test]
    fn each_promise_is_kept_for_its_time() {
        let begin = Instant::now();
        let at = |second| begin + Duration::from_secs(second);
        let mut promises = Promises::default();
        let lowest = |p: &mut Promises, second| p.lowest(Duration::from_secs(60), at(second));
        assert_eq!(lowest(&mut promises, 0), None);
        promises.make(90, at(10));
        promises.make(50, at(0));
        assert_eq!(
            lowest(&mut promises, 59),
            Some(50),
            "the later one does not end it"
        );
        assert_eq!(lowest(&mut promises, 60), Some(90));
        promises.make(90, at(65));
        assert_eq!(lowest(&mut promises, 120), Some(90), "it was made again");
        assert_eq!(lowest(&mut promises, 125), None);
    }

    #[test]
    fn who_has_joined_leaves_the_promises_of_the_others() {
        let now = Instant::now();
        let time = Duration::from_secs(60);
        let mut promises = Promises::default();
        promises.joined();
        for index in [70, 50, 90] {
            promises.make(index, now);
        }
        for left in [Some(50), Some(50), None] {
            promises.joined();
            assert_eq!(promises.lowest(time, now), left);
        }
        for index in (0..1000).rev() {
            promises.make(index, now);
        }
        assert_eq!(
            (promises.0.len(), promises.lowest(time, now)),
            (PROMISES, Some(0))
        );
    }

    #[test]
    fn the_neediest_decides() {
        let m = marks(&[(9, 10, 0), (9, 10, 100), (9, 10, 100)]);
        assert_eq!(keep(&m, 300, 30, &[need(30)], ANY), Some(30));
        assert_eq!(keep(&m, 300, 30, &[need(29)], ANY), Some(20));
        assert_eq!(keep(&m, 300, 12, &[need(30)], ANY), None, "it begins there");
        assert_eq!(keep(&m, 300, 5, &[], ANY), None);
        let floor = Limits { floor: 150, ..ANY };
        assert_eq!(keep(&m, 300, 30, &[], floor), Some(20));
    }

    #[test]
    fn only_who_is_in_quarantine_can_be_given_up() {
        let m = marks(&[(9, 10, 0), (9, 10, 100), (9, 10, 100)]);
        let max = |max| Limits { floor: 0, max };
        let slow = Need {
            index: 10,
            quarantined: true,
        };
        assert_eq!(keep(&m, 300, 30, &[slow], max(300)), None);
        assert_eq!(keep(&m, 300, 30, &[slow], max(299)), Some(30));
        assert_eq!(keep(&m, 300, 30, &[need(10)], max(1)), None);
        assert_eq!(
            keep(&m, 300, 10, &[slow], max(1)),
            None,
            "what is not durable here stays"
        );
    }

    #[test]
    fn a_member_that_stands_holds_what_it_lacks_and_little_else() {
        let m = marks(&[(9, 10, 0), (9, 10, 100), (9, 10, 100)]);
        let from = |index, delivered, max| for_member(&m, 300, index, delivered, max);
        assert_eq!(from(10, 30, 300), 10, "that may be much");
        assert_eq!(from(10, 31, 299), 30, "it has that itself");
        assert_eq!(from(10, 30, 299), 20, "perhaps not all up to the mark");
        assert_eq!(from(10, 5, 299), 10);
        assert_eq!(from(25, 12, 0), 25);
    }

    #[test]
    fn one_in_quarantine_holds_what_its_log_lacks() {
        let m = marks(&[(9, 10, 0), (9, 10, 100), (9, 10, 100)]);
        let limits = |floor| Limits { floor, max: 150 };
        let from = |delivered| for_reported(&m, 300, (10, true), delivered, limits(0));
        let kept = |index| {
            let needs = [Need {
                index,
                quarantined: false,
            }];
            keep(&m, 300, 30, &needs, limits(0))
        };
        assert_eq!(from(15), 10, "nobody else may have it when this one dies");
        assert_eq!(kept(from(15)), None);
        assert_eq!(from(31), 30, "it only applies slowly");
        assert_eq!(kept(from(31)), Some(30));
        let of = |quarantined| for_reported(&m, 300, (10, quarantined), 31, limits(300));
        assert_eq!((of(true), of(false)), (30, 10));
    }

    #[test]
    fn who_is_out_of_the_view_is_heeded_until_that_is_agreed() {
        let in_force = [1, 2, 3].into();
        assert!(misses_somebody(&in_force, [1, 2].into_iter()));
        assert!(!misses_somebody(&in_force, [1, 2, 3, 4].into_iter()));
    }

    #[test]
    fn for_streams_the_log_reaches_back_to_before_they_begin_but_not_for_ever() {
        let m = marks(&[(9, 10, 0), (9, 10, 100), (9, 10, 100)]);
        let need = |shelved, open: &[u64], max| {
            let need = for_streams(&m, 300, shelved, open.iter().copied(), max)?;
            keep(&m, 300, need, &[], ANY).or(Some(10))
        };
        assert_eq!(need(None, &[], 1000), None);
        assert_eq!(need(None, &[35, 31], 1000), Some(30));
        assert_eq!(
            need(None, &[35, 30], 1000),
            Some(20),
            "it begins with the mark"
        );
        assert_eq!(need(None, &[35, 15], 1000), Some(10));
        assert_eq!(
            need(None, &[35, 15], 299),
            Some(30),
            "the old one costs too much"
        );
        assert_eq!(need(None, &[25, 15], 100), None);
        assert_eq!(
            need(Some(15), &[35], 100),
            Some(10),
            "that one has to be there"
        );
    }

    proptest! {
        #[test]
        fn nobody_heeded_loses_what_he_needs(
            steps in prop::collection::vec((0..20u64, 0..20i64, 0..200u64), 0..12),
            more in 0..500u64,
            own in 0..200u64,
            others in prop::collection::vec((0..200u64, any::<bool>()), 0..4),
            floor in 0..600u64,
            max in 0..1500u64,
        ) {
            let marks = marks(&steps);
            let bytes = marks.back().map_or(0, |m| m.bytes_before) + more;
            let others: Vec<Need> = others
                .into_iter()
                .map(|(index, quarantined)| Need { index, quarantined })
                .collect();
            let limits = Limits { floor, max };
            if let Some(keep) = keep(&marks, bytes, own, &others, limits) {
                let kept: VecDeque<Mark> = marks.iter().copied().filter(|m| m.index >= keep).collect();
                prop_assert!(kept.len() < marks.len() && kept.front().is_some_and(|m| m.index == keep));
                prop_assert!(own >= keep);
                prop_assert!(bytes - kept[0].bytes_before >= floor);
                for n in &others {
                    let lost = n.index < keep;
                    prop_assert!(!lost || n.quarantined && exceeds(&marks, bytes, n.index, max));
                }
            }
        }

        #[test]
        fn what_waits_for_an_applier_is_there_whole_or_known_to_lie_around_a_checkpoint(
            steps in prop::collection::vec((0..20u64, 0..20i64, 0..200u64), 1..12),
            (from, entries) in (0..150u64, 0..60u64),
            short in 1..50i64,
            bytes in 0..3000u64,
        ) {
            let marks = marks(&steps);
            let (from, index) = (marks[0].index + 1 + from, marks[0].index + 1 + from + entries);
            // It takes its place with its last piece, and is not released.
            let before = marks.iter().rev().find(|m| m.index < index);
            let seqno = before.map_or(0, |m| m.seqno) + 1;
            let later = marks.iter().filter(|m| m.index >= index);
            let marks: VecDeque<Mark> = marks
                .iter()
                .filter(|m| m.index < index)
                .copied()
                .chain(later.map(|m| Mark { seqno: m.seqno + 1, ..*m }))
                .collect();
            let own = restart_from(&marks, seqno - short);
            if let Some(keep) = keep(&marks, bytes, own, &[], ANY) {
                prop_assert!(keep < from || amid(&marks, from, index));
            }
        }

        #[test]
        fn a_restart_finds_a_checkpoint_at_or_below_what_is_durable(
            steps in prop::collection::vec((0..20u64, 0..20i64, 0..200u64), 1..12),
            durable in -1..300i64,
        ) {
            let marks = marks(&steps);
            let from = restart_from(&marks, durable);
            let found = marks.iter().find(|m| m.index == from).expect("one of them");
            prop_assert!(found.seqno <= durable || found.index == marks[0].index);
            prop_assert!(!marks.iter().any(|m| m.index > from && m.seqno <= durable));
        }
    }
}
