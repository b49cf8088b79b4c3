//! Made-up histories: clean ones must pass, each planted anomaly must be found.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::check::Report;
use super::{Anomaly, Final, Key, Op, Outcome, Txn, Value, check};
use crate::rng::Rng;

use Op::{Append, Read};

fn txn(client: usize, from: u64, to: u64, ops: &[Op]) -> Txn {
    Txn {
        client,
        node: client % 3,
        invoked: from,
        completed: to,
        outcome: Outcome::Committed,
        ops: ops.to_vec(),
    }
}

fn finals(lists: &[(Key, &[Value])]) -> Vec<Final> {
    (0..3)
        .map(|node| Final {
            node,
            lists: lists.iter().map(|(k, l)| (*k, l.to_vec())).collect(),
        })
        .collect()
}

fn names(report: &Report) -> Vec<Anomaly> {
    report.found.keys().copied().collect()
}

/// A history of a store that does what snapshot isolation with current reads
/// promises: transactions overlap, each works on the state at a moment after it
/// was invoked, and fails if another one wrote its lists since.
struct Store {
    rng: Rng,
    now: u64,
    next_value: Value,
    lists: BTreeMap<Key, Vec<Value>>,
    txns: Vec<Txn>,
}

struct Running {
    txn: Txn,
    snapshot: BTreeMap<Key, Vec<Value>>,
    left: u64,
}

const CLIENTS: usize = 6;
const KEYS: u64 = 5;

impl Store {
    fn run(seed: u64, steps: u64) -> Self {
        let mut store = Self {
            rng: Rng::new(seed),
            now: 1,
            next_value: 1,
            lists: BTreeMap::new(),
            txns: Vec::new(),
        };
        let mut running: Vec<Option<Running>> = (0..CLIENTS).map(|_| None).collect();
        for _ in 0..steps {
            let client = store.rng.below(CLIENTS as u64) as usize;
            store.now += 1 + store.rng.below(3);
            match running[client].take() {
                None => running[client] = Some(store.begin(client)),
                Some(r) if r.left == 0 => store.end(r),
                Some(mut r) => {
                    store.step(&mut r);
                    running[client] = Some(r);
                }
            }
        }
        for r in running.into_iter().flatten() {
            store.now += 1;
            store.end(r);
        }
        store
    }

    fn begin(&mut self, client: usize) -> Running {
        let left = 1 + self.rng.below(4);
        Running {
            txn: txn(client, self.now, 0, &[]),
            snapshot: self.lists.clone(),
            left,
        }
    }

    fn step(&mut self, r: &mut Running) {
        r.left -= 1;
        let key = self.rng.below(KEYS);
        if self.rng.chance(50) {
            let mut list = r.snapshot.get(&key).cloned().unwrap_or_default();
            for op in &r.txn.ops {
                if let Append(k, v) = op
                    && *k == key
                {
                    list.push(*v);
                }
            }
            r.txn.ops.push(Read(key, list));
        } else {
            r.txn.ops.push(Append(key, self.next_value));
            self.next_value += 1;
        }
    }

    fn end(&mut self, r: Running) {
        let mut txn = r.txn;
        txn.completed = self.now;
        let nobody = Vec::new();
        let conflict = txn.ops.iter().any(|op| match op {
            Append(k, _) => {
                self.lists.get(k).unwrap_or(&nobody) != r.snapshot.get(k).unwrap_or(&nobody)
            }
            Read(..) => false,
        });
        let unknown = self.rng.chance(5);
        let lost_on_the_way = unknown && self.rng.chance(50);
        if conflict {
            txn.outcome = Outcome::Failed;
        } else if !lost_on_the_way {
            for op in &txn.ops {
                if let Append(k, v) = op {
                    self.lists.entry(*k).or_default().push(*v);
                }
            }
        }
        if unknown {
            txn.outcome = Outcome::Unknown;
        }
        self.txns.push(txn);
    }

    fn finals(&self) -> Vec<Final> {
        (0..3)
            .map(|node| Final {
                node,
                lists: self.lists.clone(),
            })
            .collect()
    }

    fn check(&self) -> Report {
        check(&self.txns, &self.finals())
    }

    /// A committed transaction with an append, chosen by `pick`.
    fn writer(&self, pick: u64) -> Option<(usize, Key, Value)> {
        let all: Vec<_> = self
            .txns
            .iter()
            .enumerate()
            .filter(|(_, t)| t.outcome == Outcome::Committed)
            .flat_map(|(i, t)| {
                t.ops.iter().filter_map(move |op| match op {
                    Append(k, v) => Some((i, *k, *v)),
                    Read(..) => None,
                })
            })
            .collect();
        (!all.is_empty()).then(|| all[(pick % all.len() as u64) as usize])
    }
}

/// Adds a transaction at the end, after everything else.
fn later(store: &mut Store, client: usize, ops: &[Op]) -> usize {
    let (from, to) = (store.now + 10, store.now + 20);
    store.now = to;
    store.txns.push(txn(client, from, to, ops));
    store.txns.len() - 1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_store_that_keeps_its_word_passes(seed: u64, steps in 10u64..2000) {
        let report = Store::run(seed, steps).check();
        prop_assert!(report.is_clean(), "{report}: {:#?}", report.examples);
    }

    #[test]
    fn a_lost_write_is_found(seed: u64, pick: u64) {
        let mut store = Store::run(seed, 400);
        let (_, key, value) = store.writer(pick).expect("somebody wrote");
        // As if the power had gone: nobody sees it any more.
        for t in &mut store.txns {
            for op in &mut t.ops {
                if let Read(k, list) = op && *k == key {
                    list.retain(|v| *v != value);
                }
            }
        }
        store.lists.get_mut(&key).expect("written").retain(|v| *v != value);
        let report = store.check();
        prop_assert!(report.found.contains_key(&Anomaly::LostWrite), "{report}");
    }

    #[test]
    fn a_lost_tail_is_found(seed: u64, pick: u64) {
        let mut store = Store::run(seed, 400);
        let (_, key, value) = store.writer(pick).expect("somebody wrote");
        // From an acknowledged append on: the last ones alone may be of an
        // unknown end, and those may be missing.
        let list = store.lists.get_mut(&key).expect("written");
        let at = list.iter().position(|v| *v == value).expect("acknowledged");
        list.truncate(at);
        let report = store.check();
        // Divergence, if somebody had read it.
        let found = |a| report.found.contains_key(&a);
        prop_assert!(found(Anomaly::LostWrite) || found(Anomaly::Divergence), "{report}");
    }

    #[test]
    fn a_tail_of_unknown_end_that_nobody_read_may_be_missing(seed: u64) {
        let mut store = Store::run(seed, 400);
        let txn = later(&mut store, 99, &[Append(1000, 1_000_000)]);
        store.txns[txn].outcome = Outcome::Unknown;
        store.lists.insert(1000, vec![]);
        prop_assert_eq!(names(&store.check()), vec![]);
        later(&mut store, 100, &[Read(1000, vec![1_000_000])]);
        prop_assert!(!store.check().is_clean());
    }

    #[test]
    fn an_aborted_write_is_found(seed: u64, pick: u64) {
        let mut store = Store::run(seed, 400);
        let (t, ..) = store.writer(pick).expect("somebody wrote");
        store.txns[t].outcome = Outcome::Failed;
        let report = store.check();
        prop_assert!(report.found.contains_key(&Anomaly::AbortedRead), "{report}");
    }

    #[test]
    fn a_node_that_differs_is_found(seed: u64, pick: u64, node in 0usize..3) {
        let store = Store::run(seed, 400);
        let (_, key, _) = store.writer(pick).expect("somebody wrote");
        let mut finals = store.finals();
        finals[node].lists.get_mut(&key).expect("written").pop();
        let report = check(&store.txns, &finals);
        prop_assert!(report.found.contains_key(&Anomaly::Divergence), "{report}");
    }

    #[test]
    fn a_write_done_twice_is_found(seed: u64, pick: u64) {
        let mut store = Store::run(seed, 400);
        let (_, key, value) = store.writer(pick).expect("somebody wrote");
        store.lists.get_mut(&key).expect("written").push(value);
        prop_assert!(store.check().found.contains_key(&Anomaly::Duplicate));
    }

    #[test]
    fn an_old_read_is_found(seed: u64, pick: u64) {
        let mut store = Store::run(seed, 400);
        let (_, key, _) = store.writer(pick).expect("somebody wrote");
        let whole = store.lists[&key].clone();
        // A new client: no session of its own can be broken.
        later(&mut store, 99, &[Append(1000, 1_000_000)]);
        store.lists.insert(1000, vec![1_000_000]);
        later(&mut store, 100, &[Read(1000, vec![])]);
        prop_assert_eq!(names(&store.check()), vec![Anomaly::StaleRead]);
        store.txns.pop();
        later(&mut store, 100, &[Read(key, whole), Read(1000, vec![1_000_000])]);
        prop_assert_eq!(names(&store.check()), vec![]);
    }

    #[test]
    fn a_session_that_goes_back_is_found(seed: u64) {
        let mut store = Store::run(seed, 400);
        store.lists.insert(1000, vec![1_000_000]);
        later(&mut store, 99, &[Append(1000, 1_000_000)]);
        later(&mut store, 100, &[Read(1000, vec![1_000_000])]);
        later(&mut store, 100, &[Read(1000, vec![])]);
        prop_assert_eq!(names(&store.check()), vec![Anomaly::NonMonotonic]);
    }

    #[test]
    fn a_lost_update_is_found(seed: u64) {
        let mut store = Store::run(seed, 400);
        let (now, lists) = (store.now, &mut store.lists);
        lists.insert(1000, vec![1_000_001, 1_000_002]);
        for (client, value) in [(99, 1_000_001), (100, 1_000_002)] {
            store.txns.push(txn(client, now + 1, now + 9, &[Read(1000, vec![]), Append(1000, value)]));
        }
        let found = names(&store.check());
        prop_assert!(found.contains(&Anomaly::P4), "{found:?}");
    }
}

/// Overlapping transactions, so that real time says nothing.
fn overlapping(all: &[&[Op]]) -> Vec<Txn> {
    all.iter()
        .enumerate()
        .map(|(client, ops)| txn(client, 1, 100, ops))
        .collect()
}

#[test]
fn write_cycle() {
    let txns = overlapping(&[
        &[Append(1, 11), Append(2, 12)],
        &[Append(1, 21), Append(2, 22)],
    ]);
    let report = check(&txns, &finals(&[(1, &[11, 21]), (2, &[22, 12])]));
    assert_eq!(names(&report), vec![Anomaly::G0], "{:?}", report.examples);
}

#[test]
fn appends_of_one_transaction_with_another_between() {
    let txns = overlapping(&[&[Append(1, 11), Append(1, 12)], &[Append(1, 21)]]);
    let report = check(&txns, &finals(&[(1, &[11, 21, 12])]));
    assert!(report.found.contains_key(&Anomaly::G0), "{report}");
}

#[test]
fn circular_information_flow() {
    let txns = overlapping(&[
        &[Append(1, 11), Read(2, vec![22])],
        &[Append(2, 22), Read(1, vec![11])],
    ]);
    let report = check(&txns, &finals(&[(1, &[11]), (2, &[22])]));
    assert_eq!(names(&report), vec![Anomaly::G1c]);
}

#[test]
fn read_skew() {
    let txns = overlapping(&[
        &[Append(1, 11), Append(2, 12)],
        &[Read(1, vec![]), Read(2, vec![12])],
    ]);
    let report = check(&txns, &finals(&[(1, &[11]), (2, &[12])]));
    assert_eq!(names(&report), vec![Anomaly::GSingle]);
}

#[test]
fn long_fork() {
    // Two writers, two readers who see one each: snapshots in no order.
    let txns = overlapping(&[
        &[Append(1, 11)],
        &[Append(2, 22)],
        &[Read(1, vec![11]), Read(2, vec![])],
        &[Read(1, vec![]), Read(2, vec![22])],
    ]);
    let report = check(&txns, &finals(&[(1, &[11]), (2, &[22])]));
    assert_eq!(names(&report), vec![Anomaly::SnapshotCycle]);
}

#[test]
fn write_skew_is_allowed() {
    let txns = overlapping(&[
        &[Read(1, vec![]), Append(2, 12)],
        &[Read(2, vec![]), Append(1, 21)],
    ]);
    let report = check(&txns, &finals(&[(1, &[21]), (2, &[12])]));
    assert!(report.is_clean(), "{report}");
}

#[test]
fn intermediate_read() {
    let txns = overlapping(&[&[Append(1, 11), Append(1, 12)], &[Read(1, vec![11])]]);
    let report = check(&txns, &finals(&[(1, &[11, 12])]));
    assert!(
        report.found.contains_key(&Anomaly::IntermediateRead),
        "{report}"
    );
}

#[test]
fn internal_inconsistency() {
    for ops in [
        vec![Append(1, 11), Read(1, vec![])],
        vec![Read(1, vec![]), Read(1, vec![5]), Append(2, 11)],
    ] {
        let txns = overlapping(&[&ops, &[Append(1, 5)]]);
        let report = check(&txns, &finals(&[(1, &[5, 11]), (2, &[11])]));
        assert!(report.found.contains_key(&Anomaly::Internal), "{report}");
    }
}

#[test]
fn torn_and_unwritten() {
    let mut txns = overlapping(&[&[Append(1, 11), Append(2, 12)]]);
    txns[0].outcome = Outcome::Unknown;
    let report = check(&txns, &finals(&[(1, &[11])]));
    assert_eq!(names(&report), vec![Anomaly::Torn]);
    let report = check(&txns, &finals(&[(1, &[11, 77]), (2, &[12])]));
    assert_eq!(names(&report), vec![Anomaly::Unwritten]);
}

#[test]
fn unknown_may_be_there_or_not() {
    let mut txns = overlapping(&[&[Append(1, 11)], &[Read(1, vec![])]]);
    txns[0].outcome = Outcome::Unknown;
    assert!(check(&txns, &finals(&[])).is_clean());
    let report = check(&txns, &finals(&[(1, &[11])]));
    assert!(report.is_clean() && report.unknown_there == 1, "{report}");
}

#[test]
fn an_unknown_end_is_no_moment_in_real_time() {
    // It may have committed after the read.
    let mut txns = vec![
        txn(0, 1, 2, &[Append(1, 11)]),
        txn(1, 10, 20, &[Read(1, vec![])]),
    ];
    txns[0].outcome = Outcome::Unknown;
    assert!(check(&txns, &finals(&[(1, &[11])])).is_clean());
}

#[test]
fn a_list_nobody_appended_to_may_be_read_by_a_transaction_of_unknown_end() {
    let mut txns = overlapping(&[&[Read(2, vec![]), Append(1, 11)]]);
    txns[0].outcome = Outcome::Unknown;
    let report = check(&txns, &finals(&[(1, &[11])]));
    assert!(report.is_clean() && report.unknown_there == 1, "{report}");
}
