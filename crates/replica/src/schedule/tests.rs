//! Units in a small database with row locks: whatever the workers do in whatever order, it ends as
//! if they had been applied one after the other.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

mod crash;

/// The keys that it says it has; not all that it touches.
#[derive(Clone, Debug)]
struct Keys(BTreeSet<u8>);

impl Conflicts for Keys {
    fn conflicts(&self, other: &Keys) -> bool {
        !self.0.is_disjoint(&other.0)
    }
}

#[derive(Clone, Debug)]
struct Unit {
    rows: Vec<u8>,
    /// Of the rows, those that it names as keys.
    named: usize,
    /// Of the rows, those that it writes before what it does last.
    first: usize,
    after: After,
}

/// What a worker does with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Has written so many rows.
    Writing(usize),
    Executed,
    /// Its commit was sent; whether it holds its place, whether the target did it.
    Committing(bool, bool),
    RolledBack,
}

#[derive(Debug, Default)]
struct World {
    committed: BTreeMap<u8, Vec<u64>>,
    /// Row -> who has it locked.
    locks: BTreeMap<u8, u64>,
    /// Rows as the units under way have them.
    dirty: BTreeMap<(u64, u8), Vec<u64>>,
    workers: BTreeMap<u64, Doing>,
}

impl World {
    /// Locks a row and appends the own number to it. Gives who has it otherwise.
    fn write(&mut self, n: u64, row: u8) -> Result<(), u64> {
        match self.locks.get(&row) {
            Some(other) if *other != n => return Err(*other),
            _ => {}
        }
        self.locks.insert(row, n);
        let now = self.committed.get(&row).cloned().unwrap_or_default();
        self.dirty.entry((n, row)).or_insert(now).push(n);
        Ok(())
    }

    fn end(&mut self, n: u64, commit: bool) {
        self.locks.retain(|_, holder| *holder != n);
        let mine: Vec<(u64, u8)> = self.dirty.keys().filter(|k| k.0 == n).copied().collect();
        for key in mine {
            let value = self.dirty.remove(&key).expect("it is there");
            if commit {
                self.committed.insert(key.1, value);
            }
        }
    }
}

fn roll_back(world: &mut World, scheduler: &mut Scheduler<Keys>, n: u64) -> Failed {
    world.end(n, false);
    let failed = scheduler.failed(n);
    world.workers.insert(n, Doing::RolledBack);
    failed
}

fn units() -> impl Strategy<Value = Vec<Unit>> {
    let one = (
        prop::collection::vec(0u8..6, 1..4),
        0usize..4,
        0usize..4,
        any::<[u16; 3]>(),
    );
    prop::collection::vec(one, 1..25).prop_map(|all| {
        let mut units = Vec::new();
        for (n, (rows, named, first, [a, b, c])) in all.into_iter().enumerate() {
            let n = n as u64;
            // Often nothing, sometimes a barrier, sometimes anything.
            let pick = |r: u16| match r % 4 {
                0 | 1 => 0,
                2 => n,
                _ => u64::from(r) % (n + 1),
            };
            units.push(Unit {
                named: named.min(rows.len()),
                first: first.min(rows.len()),
                rows,
                after: After {
                    committed: pick(a),
                    executed: pick(b),
                    last: pick(c),
                },
            });
        }
        units
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn as_if_one_after_the_other(
        units in units(),
        workers in 1usize..5,
        strict in any::<bool>(),
        ahead in 1u64..6,
        choices in prop::collection::vec(any::<u16>(), 1..200),
    ) {
        let order_of = if strict { Order::Strict } else { Order::Group(ahead) };
        let mut scheduler = Scheduler::new(workers, order_of);
        let mut world = World::default();
        let mut order = Vec::new();
        let mut pushed = 0;
        let mut seed = 0u64;
        let mut steps = 0;
        let mut choose = move |of: usize| {
            // The given choices, mixed so that they do not repeat.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1 + u64::from(choices[steps % choices.len()]));
            steps += 1;
            (seed >> 33) as usize % of
        };
        let mut count = 0;
        while scheduler.last_committed() < units.len() as u64 {
            count += 1;
            prop_assert!(count < 100_000, "it does not end: {scheduler:?} {world:?}");
            prop_assert!(scheduler.busy() <= workers);
            if pushed < units.len() && choose(3) == 0 {
                let unit = &units[pushed];
                let keys = Keys(unit.rows[..unit.named].iter().copied().collect());
                pushed += 1;
                prop_assert_eq!(scheduler.push(unit.after, keys), pushed as u64);
            }
            if choose(20) == 0 {
                scheduler.set_limit(choose(5));
            }
            if choose(2) == 0 && let Some(n) = scheduler.start() {
                let after = units[n as usize - 1].after;
                prop_assert!(scheduler.last_committed() >= after.committed);
                for earlier in 1..=after.executed {
                    prop_assert!(scheduler.state(earlier).is_none_or(State::has_executed));
                }
                world.workers.insert(n, Doing::Writing(0));
            }
            let busy: Vec<u64> = world.workers.keys().copied().collect();
            if busy.is_empty() {
                continue;
            }
            let n = busy[choose(busy.len())];
            let unit = &units[n as usize - 1];
            match world.workers[&n] {
                Doing::Writing(done) if done == unit.first && !scheduler.may_finish(n) => {
                    prop_assert!(n > scheduler.last_committed() + 1, "the first one waits for nothing");
                    if let Some(State::Doomed(by)) = scheduler.state(n) {
                        prop_assert!(by < n);
                        roll_back(&mut world, &mut scheduler, n);
                    }
                }
                Doing::Writing(done) if done < unit.rows.len() => {
                    if done == unit.first {
                        let mut before = 1..=unit.after.last;
                        prop_assert!(before.all(|m| scheduler.state(m).is_none_or(State::has_executed)));
                    }
                    // Now and then something else goes wrong, also alone.
                    if choose(40) == 0 {
                        if roll_back(&mut world, &mut scheduler, n) == Failed::Own {
                            scheduler.again(n);
                        }
                        continue;
                    }
                    match world.write(n, unit.rows[done]) {
                        Ok(()) => {
                            world.workers.insert(n, Doing::Writing(done + 1));
                        }
                        Err(holder) => match scheduler.blocked(n, holder) {
                            // Who waits amid executing is told, as nothing runs that could be ended.
                            Some(Yield::Kill) => {
                                let first = units[holder as usize - 1].first;
                                if world.workers[&holder] != Doing::Writing(first) {
                                    roll_back(&mut world, &mut scheduler, holder);
                                }
                            }
                            Some(Yield::Told) | None => {}
                        },
                    }
                }
                Doing::Writing(_) => match scheduler.executed(n) {
                    Executed::Keep => {
                        world.workers.insert(n, Doing::Executed);
                    }
                    Executed::GiveWay(by) => {
                        prop_assert!(by < n);
                        prop_assert_eq!(roll_back(&mut world, &mut scheduler, n), Failed::Again);
                    }
                },
                Doing::Executed => {
                    if let Some(State::Doomed(by)) = scheduler.state(n) {
                        prop_assert!(by < n);
                        roll_back(&mut world, &mut scheduler, n);
                    } else if scheduler.commit(n) {
                        let mut before = scheduler.last_committed() + 1..n;
                        match strict {
                            true => prop_assert!(before.all(|m| matches!(scheduler.state(m), Some(State::Placed | State::Committed)))),
                            false => {
                                prop_assert!(before.clone().all(|m| scheduler.state(m).is_some_and(State::has_executed)));
                                prop_assert!(n <= scheduler.last_committed() + ahead);
                                let keys_of = |m: u64| {
                                    let unit = &units[m as usize - 1];
                                    keys(&unit.rows[..unit.named])
                                };
                                prop_assert!(before.all(|m| scheduler.state(m) == Some(State::Committed) || !keys_of(m).conflicts(&keys_of(n))));
                            }
                        }
                        world.workers.insert(n, Doing::Committing(false, false));
                    }
                }
                // The target makes them wait for each other: one lock that all of them take.
                Doing::Committing(false, false) if strict => {
                    let first = world.workers.iter().all(|(m, doing)| {
                        *m >= n || !matches!(doing, Doing::Committing(_, false))
                    });
                    if first {
                        scheduler.placed(n);
                        world.workers.insert(n, Doing::Committing(true, false));
                    }
                }
                Doing::Committing(placed, false) => {
                    world.end(n, true);
                    order.push(n);
                    world.workers.insert(n, Doing::Committing(placed, true));
                }
                // Whose answer comes first is open.
                Doing::Committing(_, true) => {
                    let before = scheduler.last_committed();
                    let gone = scheduler.committed(n);
                    prop_assert_eq!(scheduler.last_committed(), before + gone as u64);
                    world.workers.remove(&n);
                }
                Doing::RolledBack => {
                    if scheduler.may_restart(n) {
                        scheduler.restart(n);
                        world.workers.insert(n, Doing::Writing(0));
                    }
                }
            }
        }
        if !strict {
            order.sort_unstable();
        }
        prop_assert_eq!(&order, &(1..=units.len() as u64).collect::<Vec<_>>());
        let mut naive: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
        for (n, unit) in units.iter().enumerate() {
            for row in &unit.rows {
                naive.entry(*row).or_default().push(n as u64 + 1);
            }
        }
        prop_assert_eq!(&world.committed, &naive);
        prop_assert!(scheduler.is_empty() && scheduler.busy() == 0 && world.locks.is_empty());
    }
}

#[test]
fn commits_side_by_side() {
    let four = |order| {
        let mut s = Scheduler::new(8, order);
        for row in 1..=4 {
            s.push(After::default(), keys(&[row]));
            s.start();
        }
        for n in [1, 2, 4] {
            s.executed(n);
        }
        s
    };
    let mut s = four(Order::Strict);
    assert_eq!(s.ready().collect::<Vec<_>>(), [1]);
    assert!(!s.commit(2) && s.commit(1) && !s.commit(2));
    s.placed(1);
    assert!(s.commit(2) && s.is_committing());
    s.placed(2);
    // The third has not executed.
    assert!(!s.commit(4));
    assert_eq!(s.committed(2), 0);
    assert_eq!((s.last_committed(), s.busy()), (0, 3));
    assert_eq!(s.committed(1), 2);
    assert_eq!((s.last_committed(), s.len()), (2, 2));

    let mut s = four(Order::Group(3));
    assert_eq!(s.ready().collect::<Vec<_>>(), [1, 2]);
    assert!(s.commit(2) && !s.commit(4));
    s.executed(3);
    assert_eq!(s.ready().collect::<Vec<_>>(), [1, 3]);
    assert!(s.commit(3) && !s.commit(4), "the first has not committed");
    assert_eq!(s.committed(3), 0);
    assert!(s.commit(1));
    assert_eq!(s.committed(1), 1);
    assert!(s.commit(4));
    assert_eq!((s.committed(4), s.committed(2)), (0, 3));
    assert!(s.is_empty() && !s.is_committing());
}

/// A unit that has executed need not hold a lock on each row of its keys: what came of one may be nothing.
#[test]
fn commits_side_by_side_of_what_has_a_key_in_common() {
    let mut s = Scheduler::new(8, Order::Group(8));
    for rows in [&[1u8][..], &[2], &[1, 2], &[3]] {
        s.push(After::default(), keys(rows));
        s.start();
    }
    for n in 1..=4 {
        assert_eq!(s.executed(n), Executed::Keep);
    }
    assert_eq!(s.ready().collect::<Vec<_>>(), [1, 2, 4]);
    assert!(s.commit(2) && s.commit(4) && !s.commit(3));
    assert_eq!(s.committed(2), 0);
    // The first one has it in common, too.
    assert!(!s.commit(3) && s.commit(1) && !s.commit(3));
    assert_eq!(s.committed(1), 2);
    assert!(s.commit(3));
    assert_eq!((s.committed(4), s.committed(3)), (0, 2));
    // In order nothing of that counts.
    let mut s = Scheduler::new(8, Order::Strict);
    for _ in 0..2 {
        s.push(After::default(), keys(&[1]));
        s.start();
    }
    s.executed(1);
    s.executed(2);
    assert!(s.commit(1));
    s.placed(1);
    assert!(s.commit(2));
}

fn keys(rows: &[u8]) -> Keys {
    Keys(rows.iter().copied().collect())
}

#[test]
fn the_last_worker_is_kept_for_the_earliest() {
    let mut s = Scheduler::new(2, Order::Strict);
    let behind = |committed| After {
        committed,
        ..After::default()
    };
    s.push(behind(0), keys(&[1]));
    s.push(behind(1), keys(&[1]));
    s.push(behind(0), keys(&[2]));
    assert_eq!(s.start(), Some(1));
    // The third could run, but the second has no worker yet.
    assert_eq!(s.start(), None);
    assert_eq!(s.executed(1), Executed::Keep);
    assert!(s.commit(1));
    assert_eq!(s.committed(1), 1);
    assert_eq!(s.start(), Some(2));
    assert_eq!(s.start(), Some(3));
}

#[test]
fn fewer_workers() {
    let mut s = Scheduler::new(4, Order::Strict);
    for row in 1..=6 {
        s.push(After::default(), keys(&[row]));
    }
    assert_eq!(
        (s.start(), s.start(), s.start()),
        (Some(1), Some(2), Some(3))
    );
    s.set_limit(2);
    assert_eq!(s.start(), None);
    for n in 1..=3 {
        s.executed(n);
        assert!(s.commit(n));
        s.placed(n);
    }
    s.committed(1);
    s.committed(2);
    assert_eq!((s.start(), s.start()), (Some(4), None));
    // One that all others may wait for can always start.
    let mut s = Scheduler::new(3, Order::Strict);
    s.push(After::default(), keys(&[1]));
    let behind = After {
        committed: 1,
        ..After::default()
    };
    s.push(behind, keys(&[2]));
    s.push(After::default(), keys(&[3]));
    assert_eq!((s.start(), s.start()), (Some(1), Some(3)));
    s.executed(1);
    assert!(s.commit(1));
    s.committed(1);
    s.set_limit(1);
    assert_eq!(s.start(), Some(2));
}

#[test]
fn the_later_one_gives_way() {
    let mut s = Scheduler::new(4, Order::Strict);
    for rows in [&[1u8][..], &[1], &[2]] {
        s.push(After::default(), keys(rows));
    }
    assert_eq!(
        (s.start(), s.start(), s.start()),
        (Some(1), Some(2), Some(3))
    );
    assert_eq!(s.executed(3), Executed::Keep);
    assert_eq!(s.executed(2), Executed::GiveWay(1));
    assert_eq!(s.failed(2), Failed::Again);
    assert!(!s.may_restart(2));
    // A lock that no key names.
    assert_eq!(s.blocked(3, 1), None);
    assert_eq!(s.blocked(1, 3), Some(Yield::Told));
    assert_eq!(s.blocked(1, 3), None);
    assert_eq!(s.failed(3), Failed::Again);
    assert_eq!(s.executed(1), Executed::Keep);
    assert!(!s.commit(2));
    assert!(s.commit(1));
    assert_eq!(s.blocked(0, 1), None, "nobody stops a commit");
    s.committed(1);
    assert!(s.may_restart(2) && s.may_restart(3));
}

/// It begins beside one with which it conflicts, and does last what it has in common with it.
#[test]
fn the_last_of_it_waits() {
    let mut s = Scheduler::new(4, Order::Strict);
    s.push(After::default(), keys(&[1]));
    let last = After {
        last: 1,
        ..After::default()
    };
    s.push(last, keys(&[1, 2]));
    assert_eq!((s.start(), s.start()), (Some(1), Some(2)));
    assert!(s.may_finish(1) && !s.may_finish(2));
    assert_eq!(s.executed(1), Executed::Keep);
    assert!(s.may_finish(2));
    assert_eq!(s.executed(2), Executed::Keep);
    // Whoever waits so may hold a lock that no key names.
    s.push(last, keys(&[3]));
    s.push(After { last: 3, ..last }, keys(&[4]));
    assert_eq!((s.start(), s.start()), (Some(3), Some(4)));
    assert!(s.may_finish(3) && !s.may_finish(4));
    assert_eq!(s.blocked(3, 4), Some(Yield::Kill));
    assert_eq!(s.state(4), Some(State::Doomed(3)));
    assert_eq!(s.failed(4), Failed::Again);
}

#[test]
fn an_error_of_its_own() {
    let mut s = Scheduler::new(4, Order::Strict);
    s.push(After::default(), keys(&[1]));
    s.push(After::default(), keys(&[2]));
    assert_eq!((s.start(), s.start()), (Some(1), Some(2)));
    // It may be because the first one had not committed.
    assert_eq!(s.failed(2), Failed::Again);
    assert_eq!(s.executed(1), Executed::Keep);
    assert!(s.commit(1));
    s.committed(1);
    s.restart(2);
    assert_eq!(s.failed(2), Failed::Own);
    assert_eq!(s.attempts(2), 2);
}

mod placing {
    use dromon_binlog::hints::{Union, WriteSet};
    use proptest::prelude::*;

    use super::super::*;

    fn facts<'a>(set: &'a WriteSet, databases: &'a [Vec<u8>]) -> Facts<'a> {
        Facts {
            alone: false,
            careful: false,
            commit_group: None,
            databases,
            set,
            last_before: &[],
            threads: 100,
        }
    }

    fn named(name: u8) -> WriteSet {
        let mut set = WriteSet::default();
        set.name(&[name]);
        set
    }

    fn after(committed: u64, executed: u64, last: u64) -> After {
        After {
            committed,
            executed,
            last,
        }
    }

    #[test]
    fn modes() {
        let set = WriteSet::default();
        let (a, b) = (vec![b"a".to_vec()], vec![b"b".to_vec()]);
        let place = |mode: Mode| -> Vec<After> {
            let mut placer = Placer::new(mode, 1000);
            let in_group = |id, db| Facts {
                commit_group: Some((0, id)),
                ..facts(&set, db)
            };
            vec![
                placer.place(&in_group(1, &a)),
                placer.place(&in_group(1, &b)),
                placer.place(&Facts {
                    careful: true,
                    ..in_group(2, &a)
                }),
                placer.place(&Facts {
                    alone: true,
                    ..facts(&set, &[])
                }),
                placer.place(&in_group(3, &b)),
            ]
        };
        let (c, e) = (|n| after(n, 0, 0), |n| after(0, n, 0));
        assert_eq!(place(Mode::None), [c(0), c(1), c(2), c(3), c(4)]);
        assert_eq!(place(Mode::Database), [c(0), c(0), c(1), c(3), c(4)]);
        assert_eq!(
            place(Mode::Conservative),
            [e(0), e(0), e(2), c(3), after(4, 4, 0)]
        );
        assert_eq!(place(Mode::Optimistic), [c(0), c(0), c(2), c(3), c(4)]);
        assert_eq!(place(Mode::Aggressive), [c(0), c(0), c(0), c(3), c(4)]);
        assert_eq!(place(Mode::WriteSet), [c(0), c(0), c(0), c(3), c(4)]);
    }

    /// Behind what it conflicts with, when that has its locks.
    #[test]
    fn write_sets() {
        let (a, b) = (named(1), named(2));
        let mut placer = Placer::new(Mode::WriteSet, 1000);
        let mut place = |set| placer.place(&facts(set, &[]));
        let all: Vec<After> = [&a, &b, &a, &b, &a].map(&mut place).into();
        assert_eq!(all, [0, 0, 1, 2, 3].map(|n| after(0, n, n)));
    }

    /// Transactions that conflict with newer units than the others are done last: half of all beside one unit,
    /// a third beside two. If they are more, it begins later.
    #[test]
    fn some_are_done_last() {
        let together = |names: &[u8]| {
            let mut union = Union::new(100);
            names.iter().for_each(|name| union.add(&named(*name)));
            union.finish()
        };
        let place = |mode: Mode, threads: usize, units: &[&[u8]]| -> Vec<After> {
            let mut placer = Placer::new(mode, 1000);
            let one = |names: &&[u8]| {
                let before = names.iter().filter_map(|n| placer.last_before(&named(*n)));
                let before: Vec<u64> = before.collect();
                placer.place(&Facts {
                    last_before: &before,
                    threads,
                    ..facts(&together(names), &[])
                })
            };
            units.iter().map(one).collect()
        };
        let six: &[u8] = &[1, 2, 3, 4, 5, 6];
        let third = |threads, unit: &[u8]| {
            let all = place(Mode::WriteSet, threads, &[six, &[11, 12, 13, 14], unit]);
            assert_eq!(all[..2], [after(0, 0, 0); 2]);
            all[2]
        };
        assert_eq!(third(8, &[11, 2, 3, 4, 5, 6]), after(0, 1, 2));
        assert_eq!(third(8, &[11, 12, 13, 4, 5, 6]), after(0, 1, 2));
        assert_eq!(third(8, &[11, 12, 13, 14, 5, 6]), after(0, 2, 2));
        assert_eq!(third(8, &[11, 30, 31]), after(0, 0, 2));
        assert_eq!(third(8, &[11, 30]), after(0, 2, 2));
        assert_eq!(third(8, &[11, 1, 30]), after(0, 1, 2));
        assert_eq!(third(8, &[11]), after(0, 2, 2));
        // Only one can be under way beside it; none.
        assert_eq!(third(2, &[11, 30]), after(0, 1, 2));
        assert_eq!(third(1, &[11, 30]), after(0, 2, 2));
        let others = place(Mode::Aggressive, 8, &[six, &[11], &[11, 30]]);
        assert_eq!(others, [after(0, 0, 0); 3]);
    }

    proptest! {
        /// It begins behind all with which transactions conflict that are not done last. Those are the fewer
        /// the more units may be under way with it.
        #[test]
        fn in_two(units in prop::collection::vec(prop::collection::vec(0u8..60, 1..30), 1..20), threads in 1usize..20) {
            let mut placer = Placer::new(Mode::WriteSet, 1000);
            for (before, names) in units.iter().enumerate() {
                let mut union = Union::new(100);
                let mut last_before = Vec::new();
                for name in names {
                    let set = named(*name);
                    union.add(&set);
                    last_before.extend(placer.last_before(&set));
                }
                let after = placer.place(&Facts { last_before: &last_before, threads, ..facts(&union.finish(), &[]) });
                prop_assert_eq!(after.last, last_before.iter().copied().max().unwrap_or(0));
                prop_assert!(after.executed <= after.last);
                let flags = after.comes_last(&last_before);
                let last = flags.iter().filter(|last| **last).count();
                // Who is not done last has nothing in common with those beside which the unit begins.
                for (nth, name) in names.iter().enumerate() {
                    let beside = &units[after.executed as usize..before];
                    let common = beside.iter().any(|other| other.contains(name));
                    prop_assert!(!common || after.executed == after.last || flags[nth], "{name} in {units:?}");
                    prop_assert!(!common || after.executed < after.last);
                }
                let number = before as u64 + 1;
                prop_assert!(last as u64 * (number - after.executed) <= names.len() as u64);
                prop_assert!(after.executed >= number.saturating_sub(threads as u64).min(after.last));
            }
        }
    }

    /// All of it has more keys than are looked at, though no transaction has: it comes after all before it,
    /// and no part of it can be told to come last.
    #[test]
    fn too_many_together() {
        let mut placer = Placer::new(Mode::WriteSet, 1000);
        placer.place(&facts(&named(9), &[]));
        let mut union = Union::new(3);
        let names = [1, 2, 3, 4];
        let before: Vec<u64> = names
            .iter()
            .filter_map(|n| placer.last_before(&named(*n)))
            .collect();
        names.iter().for_each(|n| union.add(&named(*n)));
        assert_eq!(before, [0; 4]);
        let placed = placer.place(&Facts {
            last_before: &before,
            ..facts(&union.finish(), &[])
        });
        assert_eq!(placed, after(0, 1, 1));
        assert_eq!(placed.comes_last(&before), Vec::<bool>::new());
    }

    #[test]
    fn names() {
        for mode in [
            "none",
            "database",
            "conservative",
            "optimistic",
            "aggressive",
            "writeset",
        ] {
            assert_eq!(mode.parse::<Mode>().expect("a mode").to_string(), mode);
        }
        assert!("minimal".parse::<Mode>().is_err());
    }
}
