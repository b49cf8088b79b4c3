//! Each oracle fires at what it watches over, and at nothing else.

use super::*;

fn placed(txn: u64, passed: bool) -> Placed {
    Placed {
        txn: Some(txn),
        keys: if passed { vec![1] } else { Vec::new() },
        event: txn,
        verdict: passed.to_string(),
        part: Part::None,
    }
}

/// A part of the large transaction 9 on counter 1.
fn part(part: Part) -> Placed {
    let ends = matches!(part, Part::Ends(_));
    Placed {
        txn: ends.then_some(9),
        keys: if ends { vec![1] } else { Vec::new() },
        part,
        ..placed(9, false)
    }
}

fn opens() -> Placed {
    let keys = vec![1];
    part(Part::Opens { txn: 9, keys })
}

fn fired(o: &Oracles) -> Option<Oracle> {
    o.violation().map(|v| v.oracle)
}

fn at(seqno: Seqno, index: u64) -> Option<Place> {
    Some(Place {
        seqno,
        index,
        term: 1,
    })
}

fn with_two() -> Oracles {
    let mut o = Oracles::default();
    o.delivered(0, 1, placed(1, true));
    o.delivered(0, 2, placed(2, false));
    assert_eq!(fired(&o), None);
    o
}

#[test]
fn nobody_touches_what_is_open() {
    let begun = || {
        let mut o = with_two();
        o.delivered(0, 3, opens());
        o.delivered(0, 4, placed(4, false));
        assert_eq!(fired(&o), None);
        o
    };
    let mut o = begun();
    o.delivered(0, 5, part(Part::Ends(3)));
    o.delivered(0, 6, placed(6, true));
    assert_eq!(fired(&o), None);
    let one = LargeCounts {
        begun: 1,
        committed: 1,
        rolled_back: 0,
    };
    assert_eq!(o.large(), one);
    let mut o = begun();
    o.delivered(0, 5, part(Part::Drops(3)));
    o.delivered(0, 6, placed(6, true));
    assert_eq!(fired(&o), None);
    let mut o = begun();
    o.delivered(0, 5, placed(5, true));
    assert_eq!(fired(&o), Some(Oracle::LostUpdate));
    let mut o = begun();
    o.delivered(0, 5, opens());
    assert_eq!(fired(&o), Some(Oracle::LostUpdate));
    let mut o = begun();
    o.taken_back(9);
    assert_eq!(fired(&o), Some(Oracle::ExactlyOnce));
}

#[test]
fn order_gaps_and_copies_are_seen() {
    let mut o = with_two();
    o.delivered(1, 1, placed(2, true));
    assert_eq!(fired(&o), Some(Oracle::SameOrder));
    let mut o = with_two();
    o.delivered(0, 4, placed(4, true));
    assert_eq!(fired(&o), Some(Oracle::Dense));
    let mut o = with_two();
    o.begins(1, 3, 0);
    o.delivered(1, 4, placed(4, true));
    assert_eq!(fired(&o), Some(Oracle::Dense));
    let mut o = with_two();
    o.delivered(0, 3, placed(1, true));
    assert_eq!(fired(&o), Some(Oracle::ExactlyOnce));
    let mut o = with_two();
    o.taken_back(3);
    assert_eq!(fired(&o), None);
    o.delivered(0, 3, placed(3, true));
    assert_eq!(fired(&o), Some(Oracle::ExactlyOnce));
    let mut o = with_two();
    o.taken_back(2);
    assert_eq!(fired(&o), Some(Oracle::ExactlyOnce));
}

#[test]
fn acknowledging_what_failed_or_was_lost_is_seen() {
    let mut o = with_two();
    o.acked(0, 1, at(1, 10));
    assert_eq!(fired(&o), None);
    o.acked(0, 2, at(2, 11));
    assert_eq!(fired(&o), Some(Oracle::Acknowledged));
    let mut o = with_two();
    o.acked(0, 7, None);
    o.finish(2, &[(0, [(1, 1)].into())]);
    assert_eq!(fired(&o), Some(Oracle::Acknowledged));
}

#[test]
fn acknowledging_before_it_is_on_disks_is_seen() {
    let synced = |id| [0, 10, 10, 9, 9, 9][id as usize];
    let sets = |sets: &[&[u64]]| -> Vec<BTreeSet<u64>> {
        sets.iter().map(|s| s.iter().copied().collect()).collect()
    };
    let check = |own, voters: &[&[u64]]| {
        let mut o = with_two();
        o.durable(0, 10, own, &sets(voters), synced);
        fired(&o)
    };
    assert_eq!(check(1, &[&[1, 2, 3]]), None);
    assert_eq!(check(3, &[&[1, 2, 3]]), Some(Oracle::Durable));
    assert_eq!(check(1, &[&[1, 3, 4]]), Some(Oracle::Durable));
    assert_eq!(check(1, &[&[1, 2, 3, 4]]), Some(Oracle::Durable));
    assert_eq!(check(1, &[&[1, 3, 4], &[1, 2]]), None);
    assert_eq!(check(1, &[]), Some(Oracle::Durable));
}

#[test]
fn stale_reads_are_seen() {
    let mut o = with_two();
    o.acked(0, 1, at(1, 10));
    let floor = o.read_begins(1);
    o.read_index(1, floor, 10, false);
    o.read_done(1, floor, 1);
    assert_eq!(fired(&o), None);
    o.read_index(1, floor, 9, false);
    assert_eq!(fired(&o), Some(Oracle::ReadIndex));
    let mut o = with_two();
    o.read_index(1, floor, 10, true);
    assert_eq!(fired(&o), Some(Oracle::ReadIndex));
    let mut o = with_two();
    o.read_done(1, floor, 0);
    assert_eq!(fired(&o), Some(Oracle::ReadIndex));
}

#[test]
fn states_and_contents_are_compared() {
    let mut o = with_two();
    o.digest(0, 5, 1);
    o.digest(1, 5, 1);
    o.committed(0, 1, 7);
    o.committed(1, 1, 7);
    o.finish(2, &[(0, [(1, 1)].into()), (1, [(1, 1)].into())]);
    assert_eq!(fired(&o), None);
    let mut other = with_two();
    other.digest(0, 5, 1);
    other.digest(1, 5, 2);
    assert_eq!(fired(&other), Some(Oracle::StateDigest));
    let mut other = with_two();
    other.committed(0, 1, 7);
    other.committed(1, 1, 8);
    assert_eq!(fired(&other), Some(Oracle::Contents));
    let mut other = with_two();
    other.finish(2, &[(0, [(1, 1)].into()), (1, [(1, 2)].into())]);
    assert_eq!(fired(&other), Some(Oracle::Contents));
    let mut other = with_two();
    other.finish(2, &[(0, [(1, 2)].into())]);
    assert_eq!(fired(&other), Some(Oracle::LostUpdate));
    let mut other = with_two();
    other.finish(1, &[(0, [(1, 1)].into())]);
    assert_eq!(fired(&other), Some(Oracle::Dense));
}

/// Node 0 has delivered two, node 1 only the first and in its log the
/// entries of `holds`; node 0 has acknowledged both and dies.
fn parted(holds: impl Fn(u64) -> Option<u64>) -> Oracles {
    let mut o = Oracles::default();
    o.begins(0, 0, 0);
    o.begins(1, 0, 0);
    o.delivered(0, 1, placed(1, true));
    o.delivered(0, 2, placed(2, true));
    o.delivered(1, 1, placed(1, true));
    o.committed(0, 1, 7);
    o.committed(0, 2, 8);
    o.acked(0, 1, at(1, 10));
    o.acked(0, 2, at(2, 11));
    o.forks(1, 10, holds);
    o.forked(1, 4);
    assert_eq!(fired(&o), None);
    o
}

#[test]
fn a_forced_recovery_gives_up_what_the_log_it_goes_on_with_has_not() {
    let mut o = parted(|_| None);
    assert_eq!((o.given_up(), o.recoveries()), (1, 1));
    let floor = o.read_begins(1);
    o.read_done(1, floor, 1);
    o.delivered(1, 2, placed(3, true));
    o.begins(0, 1, 4);
    o.delivered(0, 2, placed(3, true));
    o.finish(2, &[(0, [(1, 2)].into()), (1, [(1, 2)].into())]);
    assert_eq!(fired(&o), None);
    // Another entry at the same place, of another term.
    assert_eq!(parted(|_| Some(9)).given_up(), 1);
}

#[test]
fn a_forced_recovery_keeps_what_that_log_has() {
    let mut o = parted(|i| (i == 11).then_some(1));
    assert_eq!(o.given_up(), 0);
    o.delivered(1, 2, placed(3, true));
    o.finish(2, &[(1, [(1, 2)].into())]);
    assert_eq!(fired(&o), Some(Oracle::Acknowledged));
}

#[test]
fn two_incarnations_are_never_mixed() {
    // By a database of the old one that goes on in the new.
    let mut o = parted(|_| None);
    o.delivered(1, 2, placed(3, true));
    o.committed(1, 2, 9);
    assert_eq!(fired(&o), None);
    o.begins(0, 2, 4);
    o.committed(0, 2, 8);
    assert_eq!(fired(&o), Some(Oracle::Contents));
    // By a node that goes on serving in the old one.
    let mut o = parted(|_| None);
    o.delivered(0, 3, placed(4, true));
    o.acked(0, 4, at(3, 12));
    assert_eq!(fired(&o), Some(Oracle::OneLine));
    // Or stays there.
    let mut o = parted(|_| None);
    o.finish(1, &[(0, [(1, 1)].into()), (1, [(1, 1)].into())]);
    assert_eq!(fired(&o), Some(Oracle::OneLine));
    // Or comes from nowhere.
    let mut o = parted(|_| None);
    o.begins(0, 1, 5);
    assert_eq!(fired(&o), Some(Oracle::OneLine));
}

#[test]
fn a_recovery_that_came_to_nothing_changes_nothing() {
    let mut o = parted(|_| None);
    o.forks(1, 10, |_| None);
    o.not_forked();
    o.begins(1, 1, 4);
    o.delivered(1, 2, placed(3, true));
    assert_eq!((fired(&o), o.recoveries()), (None, 1));
}
