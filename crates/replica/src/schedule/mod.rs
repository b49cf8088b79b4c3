//! Who may start, and who may commit. Without I/O and clocks.
//!
//! A *unit* is what is applied in one transaction of the target: one or several transactions of
//! the source. Units are numbered from 1 on in the source's order and commit as [`Order`] says.
//!
//! ```text
//!                     start         executed         commit            placed      committed
//!   push ──> waiting ──────> running ──────> executed ─────> committing ─────> placed ──────> gone
//!               ^               │  doomed        │                └───── committed ───────────^
//!               │  given back   v                v
//!               └───────────────┴────────────────┘
//! ```
//!
//! * A commit may be confirmed before that of an earlier unit. It counts when all before it do.
//! * A unit starts when what it comes [`After`] is done. What of it comes after later ones than the
//!   rest it does last, when these have executed.
//! * The later one gives way: one that has executed before an earlier one with which it
//!   conflicts, or that holds a lock which an earlier one waits for, is rolled back and applied
//!   again when the earlier one has committed.
//! * A unit keeps its worker until it has committed, and the last free worker is kept for the
//!   earliest unit that has none. So the first of all that have not committed always has a worker
//!   or can have one, nobody dooms it, and it comes to its end.

mod place;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use place::{Facts, Mode, ParseModeError, Placer};

/// Whether two units must not run side by side.
pub trait Conflicts {
    /// Whether these two conflict.
    fn conflicts(&self, other: &Self) -> bool;
}

impl Conflicts for std::sync::Arc<dromon_binlog::hints::WriteSet> {
    fn conflicts(&self, other: &Self) -> bool {
        self.conflicts_with(other)
    }
}

/// What must be done before a unit may start. 0: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// This unit and all before it have committed.
    pub committed: u64,
    /// This unit and all before it have executed all but their commit.
    pub executed: u64,
    /// The same, before what it does last: until then it does the rest ([`Scheduler::may_finish`]).
    pub last: u64,
}

impl After {
    /// Of each transaction of the unit, whether its rows are done last: all that conflict with one behind
    /// which the unit does not begin. `last_before`: what [`Placer::last_before`] said of each. Nothing: no
    /// rows are.
    pub fn comes_last(&self, last_before: &[u64]) -> Vec<bool> {
        match self.last > self.executed {
            true => last_before.iter().map(|n| *n > self.executed).collect(),
            false => Vec::new(),
        }
    }
}

/// Where a unit is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not started, or was rolled back.
    Waiting,
    /// A worker applies it.
    Running,
    /// The same, but it must be rolled back for an earlier one, which has this number.
    Doomed(u64),
    /// All but the commit is done.
    Executed,
    /// Its commit is under way.
    Committing,
    /// The same, and none of a later unit can come before it any more.
    Placed,
    /// It has committed, an earlier one has not yet, as far as is known.
    Committed,
}

impl State {
    /// All but the commit is done, or more.
    pub fn has_executed(self) -> bool {
        match self {
            State::Waiting | State::Running | State::Doomed(_) => false,
            State::Executed | State::Committing | State::Placed | State::Committed => true,
        }
    }
}

/// When a unit may commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// When no later one can come before those before it.
    #[default]
    Strict,
    /// When all before it have executed, and those of them with which it conflicts by its keys have
    /// committed. In what order the others commit does not matter for what comes of it. Locks do not tell that: a
    /// unit holds none on rows that are in the end as they were. The one so many before it must have
    /// committed, too, with all before that.
    Group(u64),
}

/// What to do with a unit that has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Wait for the commit.
    Keep,
    /// Roll it back: it came before this earlier one, with which it conflicts.
    GiveWay(u64),
}

/// What to do with a unit that failed. It must be rolled back in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Apply it again when [`Scheduler::may_restart`] says so: others were under way.
    Again,
    /// It failed alone, with all before it committed: the error is its own.
    Own,
}

/// How a unit that holds a lock is made to give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    /// It is running: what its connection does must be ended.
    Kill,
    /// It waits for its commit: its worker will roll it back when it looks.
    Told,
}

#[derive(Clone, Debug)]
struct Slot<K> {
    after: After,
    keys: K,
    state: State,
    /// It has a worker, since it started for the first time.
    started: bool,
    /// Set when it was rolled back: may be applied again when this one has committed.
    again_after: u64,
    /// All before it had committed when it began.
    clean: bool,
    attempts: u32,
    /// Since it executed, where commits are not in order: the last earlier unit with which it conflicts
    /// and that has not committed. 0: none.
    behind: u64,
}

/// Units between being read and having committed.
#[derive(Clone, Debug)]
pub struct Scheduler<K> {
    order: Order,
    workers: usize,
    /// So many are to be busy at most.
    limit: usize,
    busy: usize,
    committed: u64,
    /// From `committed + 1` on.
    slots: VecDeque<Slot<K>>,
}

impl<K: Conflicts> Scheduler<K> {
    /// For so many workers, at least one.
    pub fn new(workers: usize, order: Order) -> Scheduler<K> {
        Scheduler {
            order,
            workers: workers.max(1),
            limit: workers.max(1),
            busy: 0,
            committed: 0,
            slots: VecDeque::new(),
        }
    }

    /// At most so many workers are to be busy from now on; more only for the first unit that has
    /// not committed, for which all others may wait.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, self.workers);
    }

    /// Units that have not committed.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether all have committed.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The last unit that has committed.
    pub fn last_committed(&self) -> u64 {
        self.committed
    }

    /// The first one that has not, if there is one, and where it is.
    pub fn head(&self) -> Option<(u64, State)> {
        self.slots.front().map(|s| (self.committed + 1, s.state))
    }

    /// Where a unit is; `None`: it has committed, or never was.
    pub fn state(&self, n: u64) -> Option<State> {
        self.slot(n).map(|s| s.state)
    }

    /// How often it was begun.
    pub fn attempts(&self, n: u64) -> u32 {
        self.slot(n).map_or(0, |s| s.attempts)
    }

    /// Units that have a worker.
    pub fn busy(&self) -> usize {
        self.busy
    }

    fn index(&self, n: u64) -> Option<usize> {
        let at = n.checked_sub(self.committed + 1)?;
        usize::try_from(at).ok().filter(|at| *at < self.slots.len())
    }

    fn slot(&self, n: u64) -> Option<&Slot<K>> {
        self.index(n).map(|at| &self.slots[at])
    }

    fn slot_mut(&mut self, n: u64) -> &mut Slot<K> {
        let at = self.index(n).expect("a unit that has not committed");
        &mut self.slots[at]
    }

    /// Adds the next unit. Gives its number.
    pub fn push(&mut self, after: After, keys: K) -> u64 {
        let number = self.committed + self.slots.len() as u64 + 1;
        assert!(
            after.committed < number && after.executed < number && after.last < number,
            "a unit comes after earlier ones only"
        );
        self.slots.push_back(Slot {
            after,
            keys,
            state: State::Waiting,
            started: false,
            again_after: 0,
            clean: false,
            attempts: 0,
            behind: 0,
        });
        number
    }

    /// All up to here have executed.
    fn executed_up_to(&self) -> u64 {
        let done = self.slots.iter().take_while(|s| s.state.has_executed());
        self.committed + done.count() as u64
    }

    /// A worker is free: the unit that it shall apply, if there is one.
    pub fn start(&mut self) -> Option<u64> {
        if self.busy >= self.workers {
            return None;
        }
        let executed = self.executed_up_to();
        let crowded = self.busy >= self.limit;
        let last_free = self.busy + 1 >= self.limit;
        let committed = self.committed;
        let mut unstarted = self
            .slots
            .iter_mut()
            .enumerate()
            .filter(|(_, s)| !s.started);
        let may = |s: &Slot<K>| s.after.committed <= committed && s.after.executed <= executed;
        let (at, slot) = match last_free {
            true => unstarted
                .next()
                .filter(|(at, s)| may(s) && (!crowded || *at == 0))?,
            false => unstarted.find(|(_, s)| may(s))?,
        };
        slot.started = true;
        slot.state = State::Running;
        slot.clean = at == 0;
        slot.attempts = 1;
        self.busy += 1;
        Some(committed + 1 + at as u64)
    }

    /// Whether a unit that is running may do what it does last. While it waits for that it can be
    /// doomed as ever. It waits for earlier ones only, and the first one for nothing.
    pub fn may_finish(&self, n: u64) -> bool {
        self.slot(n)
            .is_some_and(|s| s.after.last <= self.executed_up_to())
    }

    /// Whether a unit that was rolled back may be applied again. Its worker still has it.
    pub fn may_restart(&self, n: u64) -> bool {
        self.slot(n).is_some_and(|s| {
            s.started && s.state == State::Waiting && s.again_after <= self.committed
        })
    }

    /// It is applied again.
    pub fn restart(&mut self, n: u64) {
        assert!(self.may_restart(n), "unit {n} may not restart yet");
        let clean = n == self.committed + 1;
        let slot = self.slot_mut(n);
        slot.state = State::Running;
        slot.clean = clean;
        slot.attempts += 1;
    }

    /// A worker has done all but the commit.
    pub fn executed(&mut self, n: u64) -> Executed {
        if let State::Doomed(by) = self.slot_mut(n).state {
            return Executed::GiveWay(by);
        }
        let at = self.index(n).expect("checked above");
        let mine = &self.slots[at].keys;
        // An earlier one that has executed too held its locks meanwhile: there is no conflict.
        let earlier = self
            .slots
            .iter()
            .take(at)
            .rposition(|s| !s.state.has_executed() && s.keys.conflicts(mine));
        match earlier {
            Some(m) => {
                let by = self.committed + 1 + m as u64;
                self.slot_mut(n).state = State::Doomed(by);
                Executed::GiveWay(by)
            }
            None => {
                let behind = self.conflicts_before(at, at);
                let slot = &mut self.slots[at];
                slot.state = State::Executed;
                slot.behind = behind;
                Executed::Keep
            }
        }
    }

    /// Of the units before `below` the last one that has not committed and conflicts with the one at
    /// `at`, where that counts; 0: none. Each pair is looked at once, unless it was rolled back.
    fn conflicts_before(&self, at: usize, below: usize) -> u64 {
        if self.order == Order::Strict {
            return 0;
        }
        let mine = &self.slots[at].keys;
        let mut earlier = self.slots.iter().take(below);
        let last = earlier.rposition(|s| s.state != State::Committed && s.keys.conflicts(mine));
        last.map_or(0, |m| self.committed + 1 + m as u64)
    }

    /// Units that may commit now, in their order.
    pub fn ready(&self) -> impl Iterator<Item = u64> + '_ {
        let (last, before): (u64, fn(State) -> bool) = match self.order {
            Order::Strict => (u64::MAX, |s| matches!(s, State::Placed | State::Committed)),
            Order::Group(ahead) => (self.committed + ahead, State::has_executed),
        };
        let mut clear = true;
        let numbered = (self.committed + 1..=last).zip(&self.slots);
        numbered
            .map_while(move |(n, slot)| {
                let mine = clear && slot.state == State::Executed && slot.behind == 0;
                clear &= before(slot.state);
                (mine || clear).then_some((n, mine))
            })
            .filter_map(|(n, mine)| mine.then_some(n))
    }

    /// Whether it is this unit's turn to commit. If so it counts as committing, and nothing can
    /// stop it any more.
    pub fn commit(&mut self, n: u64) -> bool {
        let mine = self.state(n) == Some(State::Executed) && self.ready().any(|m| m == n);
        if mine {
            self.slot_mut(n).state = State::Committing;
        }
        mine
    }

    /// No commit of a later unit can come before its own any more.
    pub fn placed(&mut self, n: u64) {
        let slot = self.slot_mut(n);
        assert_eq!(slot.state, State::Committing, "unit {n}");
        slot.state = State::Placed;
    }

    /// Its commit was confirmed. Gives how many units have committed now, with all before them,
    /// that had not before.
    pub fn committed(&mut self, n: u64) -> usize {
        let slot = self.slot_mut(n);
        assert!(
            matches!(slot.state, State::Committing | State::Placed),
            "unit {n} was not committing"
        );
        slot.state = State::Committed;
        self.busy -= 1;
        let at = self.index(n).expect("checked above");
        for later in at + 1..self.slots.len() {
            if self.slots[later].behind == n {
                self.slots[later].behind = self.conflicts_before(later, at);
            }
        }
        let done = self
            .slots
            .iter()
            .take_while(|s| s.state == State::Committed);
        let done = done.count();
        self.slots.drain(..done);
        self.committed += done as u64;
        done
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        let under_way = |s: &Slot<K>| matches!(s.state, State::Committing | State::Placed);
        self.slots.iter().any(under_way)
    }

    /// It failed, or was ended, and is rolled back.
    pub fn failed(&mut self, n: u64) -> Failed {
        let head = n == self.committed + 1;
        let slot = self.slot_mut(n);
        let by = match slot.state {
            State::Doomed(by) => Some(by),
            State::Running | State::Executed => None,
            State::Waiting | State::Committing | State::Placed | State::Committed => {
                panic!("unit {n} was not under way")
            }
        };
        slot.state = State::Waiting;
        match by {
            Some(by) => slot.again_after = by,
            None if head && slot.clean => return Failed::Own,
            None => slot.again_after = n - 1,
        }
        Failed::Again
    }

    /// Takes back that a unit's own error ended it: it is applied again.
    pub fn again(&mut self, n: u64) {
        let slot = self.slot_mut(n);
        assert!(slot.started && slot.state == State::Waiting, "unit {n}");
        slot.again_after = n - 1;
    }

    /// A unit waits for a lock that another one holds. The later one gives way; `None`: there is
    /// nothing to do.
    pub fn blocked(&mut self, waiter: u64, holder: u64) -> Option<Yield> {
        if waiter >= holder || self.slot(waiter).is_none() {
            return None;
        }
        let slot = self.slot_mut(holder);
        let how = match slot.state {
            State::Running => Yield::Kill,
            State::Executed => Yield::Told,
            State::Waiting
            | State::Doomed(_)
            | State::Committing
            | State::Placed
            | State::Committed => return None,
        };
        slot.state = State::Doomed(waiter);
        Some(how)
    }
}
