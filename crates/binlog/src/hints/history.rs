//! Which transactions must have come before: from all keys of the newest ones.
//!
//! ```text
//!  spans    of each transaction kept, oldest first: its number, how many keys
//!  order    their keys, one after the other
//!  entries  key -> number of the last transaction that touched it, by mode
//!
//!      forgotten, <= floor          kept                        next
//!  ──────────────────────────┬─────┬─────┬───────────┬─────┬─────────
//!   counts as in conflict    │  3  │  1  │    5      │  2  │
//!   with whatever comes      └─────┴─────┴───────────┴─────┘
//!                              at most `capacity` keys in all
//! ```
//!
//! The history ages: if a new transaction's keys find no room, the oldest
//! transactions are forgotten one by one, and all up to there count as in
//! conflict with everything. So an answer is never too small, and nothing is
//! ever forgotten all at once; only a barrier makes all before it needless.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::mysql_gtid::LogicalClock;

use super::keys::{Last, WriteSet};

/// A transaction's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number in the stream, from 1 on.
    pub number: u64,
    /// This one and all before it must have committed before it may run; 0:
    /// none. Always less than `number`.
    pub after: u64,
}

/// The keys of the newest transactions of a stream.
#[derive(Clone, Debug)]
pub struct History {
    entries: FxHashMap<u64, Last>,
    order: VecDeque<u64>,
    spans: VecDeque<(u64, usize)>,
    /// Up to here everything counts as in conflict with what follows.
    floor: u64,
    last: u64,
    capacity: usize,
}

impl History {
    /// Of a stream of which nothing is known, with so many keys at most.
    pub fn new(capacity: usize) -> History {
        History::after(0, capacity)
    }

    /// The same, of one whose last transaction had this number: what comes
    /// depends on it.
    pub fn after(last: u64, capacity: usize) -> History {
        History {
            entries: FxHashMap::default(),
            order: VecDeque::new(),
            spans: VecDeque::new(),
            floor: last,
            last,
            capacity,
        }
    }

    /// Number of the last transaction.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Number of keys kept.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none are kept.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// All transactions up to this one count as in conflict with those to come.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The last transaction so far that conflicts with this one: it and all before it must have
    /// committed before this one may run. 0: none.
    pub fn last_before(&self, set: &WriteSet) -> u64 {
        let Ok(touches) = &set.0 else {
            return self.last;
        };
        let newest = touches.iter().filter_map(|touch| {
            let last = self.entries.get(&touch.node)?;
            Some(last.conflict(touch.modes))
        });
        newest.fold(self.floor, u64::max)
    }

    /// Takes the next transaction of the stream.
    pub fn take(&mut self, set: &WriteSet) -> Placed {
        let after = self.last_before(set);
        self.last += 1;
        let number = self.last;
        let Ok(touches) = &set.0 else {
            self.close(number);
            return Placed { number, after };
        };
        if touches.len() > self.capacity {
            self.close(number);
            return Placed { number, after };
        }
        while self.order.len() + touches.len() > self.capacity {
            self.forget_oldest();
        }
        for touch in touches {
            let last = self.entries.entry(touch.node).or_default();
            last.touch(touch.modes, number);
            self.order.push_back(touch.node);
        }
        if !touches.is_empty() {
            self.spans.push_back((number, touches.len()));
        }
        Placed { number, after }
    }

    /// All up to now comes before all to come: keys that follow do not mean
    /// what they meant.
    pub fn settle(&mut self) {
        self.close(self.last);
    }

    fn close(&mut self, number: u64) {
        self.entries.clear();
        self.order.clear();
        self.spans.clear();
        self.floor = number;
    }

    fn forget_oldest(&mut self) {
        let Some((number, keys)) = self.spans.pop_front() else {
            return;
        };
        self.floor = number;
        for node in self.order.drain(..keys) {
            if self
                .entries
                .get(&node)
                .is_some_and(|last| last.newest() <= number)
            {
                self.entries.remove(&node);
            }
        }
    }
}

/// Numbers for MySQL's replicas, which begin anew with every file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileClock {
    before: u64,
}

impl FileClock {
    /// A file begins behind the transaction of this number.
    pub fn begin_file(last: u64) -> FileClock {
        FileClock { before: last }
    }

    /// The sequence number of the transaction that follows the one of this
    /// number.
    pub fn next(&self, last: u64) -> u64 {
        debug_assert!(last >= self.before);
        last - self.before + 1
    }

    /// The numbers of a transaction of this file. What it must wait for in
    /// files before it counts as done: a replica waits at the end of each.
    ///
    /// Only the first one gets 0. To a replica that does not mean that there is
    /// nothing to wait for, but that nobody knows: it waits for all.
    pub fn clock(&self, placed: Placed) -> LogicalClock {
        debug_assert!(placed.number > self.before);
        let sequence = placed.number - self.before;
        let least = u64::from(sequence > 1);
        LogicalClock {
            last_committed: placed.after.saturating_sub(self.before).max(least) as i64,
            sequence_number: sequence as i64,
        }
    }
}

/// Batches of transactions in sequence that do not conflict with each other,
/// each under one commit id.
///
/// A batch is called after the seqno of its first transaction, which has the
/// domain almost to itself. Where two neighbours would be called alike, or
/// could be as it is not known what came before, the later one is a single
/// transaction without a commit id.
#[derive(Clone, Debug)]
pub struct Batches {
    open: Option<Open>,
    /// The commit id before this one; `None`: there may be any.
    before: Option<u64>,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Number of its first transaction.
    first: u64,
    id: u64,
    size: usize,
}

/// No batch is called so.
const NO_ID: u64 = 0;

impl Batches {
    /// With at most so many transactions in one.
    pub fn new(max: usize) -> Batches {
        Batches {
            open: None,
            before: None,
            max,
        }
    }

    /// The commit id of the next transaction, which has this seqno. `None`: it
    /// shall have none.
    pub fn take(&mut self, placed: Placed, set: &WriteSet, seqno: u64) -> Option<u64> {
        if let Some(open) = &mut self.open
            && set.barrier().is_none()
            && placed.after < open.first
            && open.size < self.max
        {
            open.size += 1;
            return Some(open.id);
        }
        let alike = self.before.is_none_or(|before| before == seqno);
        self.open = match set.barrier().is_some() || alike || seqno == NO_ID {
            true => None,
            false => Some(Open {
                first: placed.number,
                id: seqno,
                size: 1,
            }),
        };
        let id = self.open.map(|open| open.id);
        self.before = Some(id.unwrap_or(NO_ID));
        id
    }
}
