//! What each unit comes after, by mode.

use std::fmt;
use std::str::FromStr;

use dromon_binlog::hints::{History, WriteSet};
use rustc_hash::FxHashMap;

use super::After;

/// How much runs side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    None,
    /// What is in different databases.
    Database,
    /// What the primary committed together.
    Conservative,
    /// Everything, but for what its primary found waiting for locks.
    Optimistic,
    /// Everything.
    Aggressive,
    /// What does not conflict by its keys.
    #[default]
    WriteSet,
}

const NAMES: [(&str, Mode); 6] = [
    ("none", Mode::None),
    ("database", Mode::Database),
    ("conservative", Mode::Conservative),
    ("optimistic", Mode::Optimistic),
    ("aggressive", Mode::Aggressive),
    ("writeset", Mode::WriteSet),
];

/// Not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no mode; there are none, database, conservative, optimistic, aggressive and writeset"
)]
pub struct ParseModeError(String);

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Mode, ParseModeError> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| ParseModeError(text.into()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, mode)| mode == self);
        f.write_str(found.map_or("?", |(name, _)| name))
    }
}

/// What is known of a unit.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Nothing may run beside it, in any mode: DDL, statements, tables without transactions.
    pub alone: bool,
    /// The primary forbade to run it beside others, or saw it wait for a lock.
    pub careful: bool,
    /// The commit group on the primary, if all of it was one: domain and commit id.
    pub commit_group: Option<(u32, u64)>,
    /// Databases of its tables.
    pub databases: &'a [Vec<u8>],
    /// Its keys.
    pub set: &'a WriteSet,
    /// What [`Placer::last_before`] said of each of its transactions, or nothing.
    pub last_before: &'a [u64],
    /// So many units are applied at a time.
    pub threads: usize,
}

/// Behind which unit this one, `number`, may begin, by keys, and behind which it may do what it does last, which is
/// what conflicts with later ones than the first. They are equal if it does nothing last. `all`: the last one with
/// which anything of it conflicts.
///
/// ```text
///   n - 2   ▒▒▒▒▒▒▒▒▒▒▓            ▓  is done last
///   n - 1     ▒▒▒▒▒▒▒▒·▓
///   n           ▒▒▒▒▒▒··▓
/// ```
///
/// What is done last is done one unit after the other. If it is a third of each, three units keep that up,
/// and a fourth beside them would wait. So a unit begins beside as many as it can while their number, it
/// among them, times what it does last is not more than all of it.
fn in_two(last_before: &[u64], all: u64, number: u64, threads: usize) -> (u64, u64) {
    let mut sorted = last_before.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    if sorted.first() != Some(&all) {
        return (all, all);
    }
    // No more are applied at a time than there are workers.
    let gone = number.saturating_sub(threads as u64);
    let mut begin = all;
    for (last, before) in sorted.iter().enumerate() {
        let beside = number - (*before).max(gone);
        if last as u64 * beside > sorted.len() as u64 {
            break;
        }
        begin = *before;
    }
    (begin.max(gone).min(all), all)
}

/// Places one unit after the other.
#[derive(Debug)]
pub struct Placer {
    mode: Mode,
    last: u64,
    /// The last unit that ran alone.
    alone: u64,
    history: History,
    databases: FxHashMap<Vec<u8>, u64>,
    /// The present commit group, and the last unit before it.
    group: Option<((u32, u64), u64)>,
}

impl Placer {
    /// With at most so many keys in its history.
    pub fn new(mode: Mode, history_keys: usize) -> Placer {
        Placer {
            mode,
            last: 0,
            alone: 0,
            history: History::new(history_keys),
            databases: FxHashMap::default(),
            group: None,
        }
    }

    /// Keys that come mean something else than those before: a table has changed.
    pub fn settle(&mut self) {
        self.history.settle();
    }

    /// The last unit so far that conflicts with a transaction of the next one by its keys, where that
    /// decides.
    pub fn last_before(&self, set: &WriteSet) -> Option<u64> {
        (self.mode == Mode::WriteSet).then(|| self.history.last_before(set))
    }

    /// What the next unit comes after.
    pub fn place(&mut self, facts: &Facts<'_>) -> After {
        let before = self.last;
        self.last += 1;
        let number = self.last;
        let floor = self.alone;
        let by_keys = self.history.take(facts.set).after;
        let group = match (self.group, facts.commit_group) {
            (Some((id, from)), Some(mine)) if id == mine && !facts.alone => Some((mine, from)),
            (_, mine) => mine.map(|mine| (mine, before)),
        };
        self.group = group;
        let mut by_database = 0;
        for name in facts.databases {
            let last = self.databases.insert(name.clone(), number);
            by_database = by_database.max(last.unwrap_or(0));
        }
        if facts.alone {
            self.alone = number;
            self.databases.clear();
            self.group = None;
        }
        if facts.alone || self.mode == Mode::None {
            return After {
                committed: before,
                ..After::default()
            };
        }
        let barrier = facts.set.barrier().is_some();
        match self.mode {
            Mode::None => unreachable!("above"),
            // A transaction of which nothing can be seen may touch any database.
            Mode::Database if facts.databases.is_empty() => After {
                committed: before,
                ..After::default()
            },
            Mode::Database => After {
                committed: floor.max(by_database),
                ..After::default()
            },
            Mode::Conservative => After {
                committed: floor,
                executed: group.map_or(before, |(_, from)| from),
                last: 0,
            },
            Mode::Optimistic => After {
                committed: match facts.careful || barrier {
                    true => before,
                    false => floor,
                },
                ..After::default()
            },
            Mode::Aggressive => After {
                committed: floor,
                ..After::default()
            },
            // What it conflicts with need not have committed: it holds its locks, and this one
            // waits for them in the target, with all else done. Nor need it have executed before what
            // has no key in common with it.
            Mode::WriteSet => {
                let (executed, last) = in_two(facts.last_before, by_keys, number, facts.threads);
                After {
                    committed: floor,
                    executed,
                    last,
                }
            }
        }
    }
}
