//! Commits side by side, of units of which only what came of their rows is written, and crashes amid them: after
//! each the rest is cut into units of other sizes, and it ends as if one transaction after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{Keys, keys};
use crate::schedule::*;

/// Few, and with few values: so that often nothing comes of what a unit does to one.
const ROWS: u8 = 3;

/// A row gets another value. It had this one on the source before; 0: there is no such row.
#[derive(Clone, Copy, Debug)]
struct Write {
    row: u8,
    before: u8,
    after: u8,
}

/// What comes of a unit, row by row.
#[derive(Clone, Debug)]
struct Work {
    /// Transactions of the source, by number.
    of: Vec<usize>,
    /// Rows that are in the end as they were are not written, and not locked.
    writes: VecDeque<Write>,
    done: Vec<Write>,
}

fn work(all: &[Write], of: Vec<usize>) -> Work {
    let mut net: BTreeMap<u8, Write> = BTreeMap::new();
    for n in &of {
        let write = all[*n];
        net.entry(write.row).or_insert(write).after = write.after;
    }
    net.retain(|_, write| write.before != write.after);
    Work {
        of,
        writes: net.into_values().collect(),
        done: Vec::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Writing,
    Executed,
    /// Sent; whether the target has done it.
    Committing(bool),
    RolledBack,
}

struct Run<'a> {
    all: &'a [Write],
    scheduler: Scheduler<Keys>,
    units: Vec<Work>,
    workers: BTreeMap<u64, Doing>,
    locks: BTreeMap<u8, u64>,
}

impl<'a> Run<'a> {
    /// Of what is not there yet, in units of so many transactions. What is there ends a unit.
    fn new(all: &'a [Write], there: &BTreeSet<usize>, size: usize, workers: usize) -> Run<'a> {
        let mut run = Run {
            all,
            scheduler: Scheduler::new(workers, Order::Group(8)),
            units: Vec::new(),
            workers: BTreeMap::new(),
            locks: BTreeMap::new(),
        };
        let mut of = Vec::new();
        for n in 0..=all.len() {
            let ends = n == all.len() || there.contains(&n) || of.len() == size;
            if ends && !of.is_empty() {
                let rows: Vec<u8> = of.iter().map(|n: &usize| all[*n].row).collect();
                run.scheduler.push(After::default(), keys(&rows));
                run.units.push(work(all, std::mem::take(&mut of)));
            }
            if n < all.len() && !there.contains(&n) {
                of.push(n);
            }
        }
        run
    }

    fn roll_back(&mut self, n: u64) -> Failed {
        self.locks.retain(|_, holder| *holder != n);
        let unit = &mut self.units[n as usize - 1];
        *unit = work(self.all, std::mem::take(&mut unit.of));
        self.workers.insert(n, Doing::RolledBack);
        self.scheduler.failed(n)
    }

    /// A worker goes on. An error: the unit fails though nothing is under way before it.
    fn step(
        &mut self,
        n: u64,
        table: &mut BTreeMap<u8, u8>,
        there: &mut BTreeSet<usize>,
    ) -> Result<(), String> {
        match self.workers[&n] {
            Doing::Writing => {
                let Some(write) = self.units[n as usize - 1].writes.front().copied() else {
                    match self.scheduler.executed(n) {
                        Executed::Keep => {
                            self.workers.insert(n, Doing::Executed);
                        }
                        Executed::GiveWay(_) => {
                            self.roll_back(n);
                        }
                    }
                    return Ok(());
                };
                match self.locks.get(&write.row) {
                    Some(holder) => {
                        let holder = *holder;
                        if self.scheduler.blocked(n, holder) == Some(Yield::Kill) {
                            self.roll_back(holder);
                        }
                    }
                    None if table.get(&write.row).copied().unwrap_or(0) == write.before => {
                        self.locks.insert(write.row, n);
                        let unit = &mut self.units[n as usize - 1];
                        unit.done.extend(unit.writes.pop_front());
                    }
                    None => {
                        if self.roll_back(n) == Failed::Own {
                            return Err(format!("{write:?} finds {table:?}"));
                        }
                    }
                }
            }
            Doing::Executed => {
                if let Some(State::Doomed(_)) = self.scheduler.state(n) {
                    self.roll_back(n);
                } else if self.scheduler.commit(n) {
                    self.workers.insert(n, Doing::Committing(false));
                }
            }
            Doing::Committing(false) => {
                let unit = &self.units[n as usize - 1];
                table.extend(unit.done.iter().map(|write| (write.row, write.after)));
                there.extend(&unit.of);
                self.locks.retain(|_, holder| *holder != n);
                self.workers.insert(n, Doing::Committing(true));
            }
            Doing::Committing(true) => {
                self.scheduler.committed(n);
                self.workers.remove(&n);
            }
            Doing::RolledBack => {
                if self.scheduler.may_restart(n) {
                    self.scheduler.restart(n);
                    self.workers.insert(n, Doing::Writing);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]

    #[test]
    fn as_if_one_after_the_other_after_crashes(
        source in prop::collection::vec((0u8..ROWS, 0u8..2), 1..20),
        workers in 2usize..6,
        sizes in prop::collection::vec(1usize..5, 1..6),
        commits in prop::collection::vec(1usize..6, 0..6),
        choices in prop::collection::vec(any::<u16>(), 1..200),
    ) {
        let mut now: BTreeMap<u8, u8> = BTreeMap::new();
        let all: Vec<Write> = source.iter().map(|(row, after)| Write {
            row: *row,
            before: now.insert(*row, *after).unwrap_or(0),
            after: *after,
        }).collect();
        let mut seed = 0u64;
        let mut steps = 0;
        let mut choose = move |of: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1 + u64::from(choices[steps % choices.len()]));
            steps += 1;
            (seed >> 33) as usize % of
        };
        let mut table: BTreeMap<u8, u8> = BTreeMap::new();
        let mut there: BTreeSet<usize> = BTreeSet::new();
        for run in 0..=commits.len() {
            // It dies when the target has done so many commits, known or not.
            let mut left = commits.get(run).copied().unwrap_or(usize::MAX);
            let mut run = Run::new(&all, &there, sizes[run % sizes.len()], workers);
            let mut count = 0;
            while !run.scheduler.is_empty() && left > 0 {
                count += 1;
                prop_assert!(count < 100_000, "it does not end: {:?}", run.scheduler);
                if choose(2) == 0 && let Some(n) = run.scheduler.start() {
                    run.workers.insert(n, Doing::Writing);
                }
                let busy: Vec<u64> = run.workers.keys().copied().collect();
                if !busy.is_empty() {
                    let before = there.len();
                    let done = run.step(busy[choose(busy.len())], &mut table, &mut there);
                    prop_assert!(done.is_ok(), "{done:?} in {all:?}, of which there are {there:?}");
                    left -= usize::from(there.len() > before);
                }
            }
        }
        prop_assert_eq!(there.len(), all.len());
        let value = |of: &BTreeMap<u8, u8>, row: u8| of.get(&row).copied().unwrap_or(0);
        for row in 0..ROWS {
            prop_assert_eq!(value(&table, row), value(&now, row), "row {} of {:?}", row, all);
        }
    }
}
