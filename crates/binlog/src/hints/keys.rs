//! Keys of a transaction: which things it touches, and how.
//!
//! Things form a tree of tables, indexes and values, and who touches one says
//! so to all above it, as lock managers do it:
//!
//! ```text
//!                     table      index      value
//!  a row is written   BELOW-W    BELOW-W    WRITE
//!  a parent is read   BELOW-R    BELOW-R    READ
//!  all of an index    BELOW-W    WRITE      -         its value is not known
//!  all of a table     WRITE      -          -
//! ```
//!
//! Two touches of one thing conflict as the table of [`Modes::conflicting`]
//! says. A thing is known by a hash of 64 bits; that two have the same only
//! makes a conflict that is none.

use rustc_hash::FxHashMap;
use twox_hash::XxHash3_64;

use crate::header::EventType;

use super::schema::TableName;

/// Seed of names that are none of tables.
const NAMED: u64 = 0x6e61_6d65;

/// Fewer keys are not put together before the end.
const LEAST_KEPT: usize = 512;

/// How a thing is touched: a set of modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes(u8);

impl Modes {
    /// It is changed.
    pub const WRITE: Modes = Modes(1);
    /// It must be there, or must not.
    pub const READ: Modes = Modes(2);
    /// Something below it is changed.
    pub const BELOW_WRITE: Modes = Modes(4);
    /// Something below it is read.
    pub const BELOW_READ: Modes = Modes(8);

    /// Each alone, in the order of [`Last`].
    const EACH: [Modes; 4] = [
        Modes::WRITE,
        Modes::READ,
        Modes::BELOW_WRITE,
        Modes::BELOW_READ,
    ];

    fn has(self, other: Modes) -> bool {
        self.0 & other.0 != 0
    }

    fn with(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    /// Those of others that conflict with one of these.
    pub(crate) fn conflicting(self) -> Modes {
        let mut all = Modes::default();
        if self.has(Modes::WRITE) {
            all = Modes(15);
        }
        if self.has(Modes::READ) {
            all = all.with(Modes::WRITE).with(Modes::BELOW_WRITE);
        }
        if self.has(Modes::BELOW_WRITE) {
            all = all.with(Modes::WRITE).with(Modes::READ);
        }
        if self.has(Modes::BELOW_READ) {
            all = all.with(Modes::WRITE);
        }
        all
    }
}

/// A thing and how it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub node: u64,
    pub modes: Modes,
}

impl Touch {
    pub(crate) fn new(node: u64, modes: Modes) -> Touch {
        Touch { node, modes }
    }
}

/// When a thing was last touched, by mode: numbers of transactions, 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last([u64; 4]);

impl Last {
    /// The newest one that conflicts.
    pub(crate) fn conflict(&self, modes: Modes) -> u64 {
        let against = modes.conflicting();
        let mine = Modes::EACH.iter().zip(self.0);
        mine.filter(|(mode, _)| against.has(**mode))
            .map(|(_, at)| at)
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn touch(&mut self, modes: Modes, at: u64) {
        for (mode, last) in Modes::EACH.iter().zip(&mut self.0) {
            if modes.has(*mode) {
                *last = at;
            }
        }
    }

    pub(crate) fn newest(&self) -> u64 {
        self.0.into_iter().max().unwrap_or(0)
    }
}

/// Why a transaction is a barrier: all before it come before it, all after it
/// behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// It is no transaction but a statement, a DDL mostly.
    Standalone,
    /// A statement stands in it, whose effect cannot be seen.
    Statement,
    /// Tables without transactions took part.
    NotTransactional,
    /// A phase of an XA transaction.
    Xa,
    /// The client, or the primary, forbade to run it beside others.
    Forbidden,
    /// It has no name, so that its primary is too old for hints.
    Nameless,
    /// Rows of a table whose schema is not known.
    UnknownTable(TableName),
    /// An event that this build does not know, or does not look into.
    UnknownEvent(EventType),
    /// It has more keys than are kept for one transaction.
    TooLarge,
    /// Its events do not fit together.
    Damaged,
}

/// What a transaction touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteSet(pub(crate) Result<Vec<Touch>, Barrier>);

impl Default for WriteSet {
    /// Of nothing.
    fn default() -> WriteSet {
        WriteSet(Ok(Vec::new()))
    }
}

impl WriteSet {
    /// Why it is a barrier, if it is one.
    pub fn barrier(&self) -> Option<&Barrier> {
        self.0.as_ref().err()
    }

    /// Number of things touched; a barrier has none of its own.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }

    /// Whether nothing is touched: it conflicts with barriers only.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_ok_and(Vec::is_empty)
    }

    /// A thing that is no row is changed, too: all that name it come one after the other.
    pub fn name(&mut self, name: &[u8]) {
        let Ok(mine) = &mut self.0 else { return };
        let node = XxHash3_64::oneshot_with_seed(NAMED, name);
        match mine.binary_search_by_key(&node, |touch| touch.node) {
            Ok(at) => mine[at].modes = mine[at].modes.with(Modes::WRITE),
            Err(at) => mine.insert(at, Touch::new(node, Modes::WRITE)),
        }
    }

    /// In what the two meet; of barriers nothing is known.
    pub(super) fn meets(&self, other: &WriteSet) -> Vec<u64> {
        let (Ok(mine), Ok(theirs)) = (&self.0, &other.0) else {
            return Vec::new();
        };
        let (few, many) = match mine.len() < theirs.len() {
            true => (mine, theirs),
            false => (theirs, mine),
        };
        let met = few.iter().filter(|touch| {
            let same = many.binary_search_by_key(&touch.node, |other| other.node);
            same.is_ok_and(|at| touch.modes.conflicting().has(many[at].modes))
        });
        met.map(|touch| touch.node).collect()
    }

    /// Whether the two must not run side by side, from all their keys.
    ///
    /// [`super::History`] says the same faster, for many.
    pub fn conflicts_with(&self, other: &WriteSet) -> bool {
        let (Ok(mine), Ok(theirs)) = (&self.0, &other.0) else {
            return true;
        };
        mine.iter().any(|touch| {
            let same = theirs.binary_search_by_key(&touch.node, |other| other.node);
            same.is_ok_and(|at| touch.modes.conflicting().has(theirs[at].modes))
        })
    }
}

/// What several transactions touch together.
///
/// Their keys are kept one behind the other, and put together when they have doubled: so that
/// many transactions cost as much each as few.
#[derive(Debug)]
pub struct Union {
    touches: Vec<Touch>,
    /// As many were left when they were put together last.
    kept: usize,
    max: usize,
    barrier: Option<Barrier>,
}

impl Union {
    /// Keys at most; more are a barrier.
    pub fn new(max: usize) -> Union {
        Union {
            touches: Vec::new(),
            kept: 0,
            max,
            barrier: None,
        }
    }

    /// What this one touches, too. A barrier stays one.
    pub fn add(&mut self, set: &WriteSet) {
        if self.barrier.is_some() {
            return;
        }
        match &set.0 {
            Ok(touches) => self.touches.extend_from_slice(touches),
            Err(barrier) => self.barrier = Some(barrier.clone()),
        }
        if self.touches.len() > self.kept.max(LEAST_KEPT) * 2 {
            self.put_together();
        }
    }

    /// Keys so far, some of them twice.
    pub fn len(&self) -> usize {
        self.touches.len()
    }

    /// Whether nothing is touched.
    pub fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }

    fn put_together(&mut self) {
        // In order of their coming most are sorted already: each set is.
        self.touches.sort_by_key(|touch| touch.node);
        self.touches.dedup_by(|next, kept| {
            let same = next.node == kept.node;
            if same {
                kept.modes = kept.modes.with(next.modes);
            }
            same
        });
        self.kept = self.touches.len();
        if self.kept > self.max {
            self.barrier.get_or_insert(Barrier::TooLarge);
        }
    }

    /// All of it.
    pub fn finish(mut self) -> WriteSet {
        self.put_together();
        WriteSet(match self.barrier {
            Some(barrier) => Err(barrier),
            None => Ok(self.touches),
        })
    }
}

/// Collects the keys of one transaction within limits.
#[derive(Debug, Default)]
pub(crate) struct KeyCollector {
    /// Value: modes, and the table whose values are counted if it is a value.
    nodes: FxHashMap<u64, (Modes, Option<u64>)>,
    tables: FxHashMap<u64, Counted>,
    table_max: usize,
    max: usize,
    /// More than `max`.
    pub(crate) too_large: bool,
}

#[derive(Debug, Default)]
struct Counted {
    values: usize,
    /// All of it is written.
    written: bool,
    /// All of it is read.
    read: bool,
}

/// What came of adding a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It counts.
    Yes,
    /// There are too many of its table: all of it must be taken.
    Many,
}

impl KeyCollector {
    /// At most so many values of one table, and so many things in all.
    pub(crate) fn new(table_max: usize, max: usize) -> KeyCollector {
        KeyCollector {
            table_max,
            max,
            ..KeyCollector::default()
        }
    }

    /// A table, an index, or all of either.
    pub(crate) fn touch(&mut self, touch: Touch) {
        let node = self.nodes.entry(touch.node).or_default();
        node.0 = node.0.with(touch.modes);
        self.too_large |= self.nodes.len() > self.max;
    }

    /// Whether all of a table is written already.
    pub(crate) fn is_written(&self, table: u64) -> bool {
        self.tables.get(&table).is_some_and(|t| t.written)
    }

    /// A value of an index of a table, written or read.
    pub(crate) fn value(&mut self, table: u64, index: u64, value: u64, write: bool) -> Added {
        let counted = self.tables.entry(table).or_default();
        if counted.written || counted.read && !write {
            return Added::Yes;
        }
        let (here, below) = match write {
            true => (Modes::WRITE, Modes::BELOW_WRITE),
            false => (Modes::READ, Modes::BELOW_READ),
        };
        if !self.nodes.contains_key(&value) {
            if counted.values >= self.table_max {
                return Added::Many;
            }
            counted.values += 1;
        }
        self.touch(Touch::new(table, below));
        self.touch(Touch::new(index, below));
        let node = self.nodes.entry(value).or_insert((here, Some(table)));
        node.0 = node.0.with(here);
        self.too_large |= self.nodes.len() > self.max;
        Added::Yes
    }

    /// All of a table is written, so that no values of it need be kept.
    pub(crate) fn all_written(&mut self, table: u64) {
        let counted = self.tables.entry(table).or_default();
        if !std::mem::replace(&mut counted.written, true) && counted.values > 0 {
            self.nodes.retain(|_, (_, of)| *of != Some(table));
        }
        self.touch(Touch::new(table, Modes::WRITE));
    }

    /// All of a table is read, so that no values of it need be kept that are
    /// read alone.
    pub(crate) fn all_read(&mut self, table: u64) {
        let counted = self.tables.entry(table).or_default();
        if !std::mem::replace(&mut counted.read, true) && counted.values > 0 {
            self.nodes
                .retain(|_, (modes, of)| *of != Some(table) || modes.has(Modes::WRITE));
        }
        self.touch(Touch::new(table, Modes::READ));
    }

    /// Sorted, so that the same transaction always gives the same.
    pub(crate) fn finish(self) -> WriteSet {
        if self.too_large {
            return WriteSet(Err(Barrier::TooLarge));
        }
        let mut touches: Vec<Touch> = self
            .nodes
            .into_iter()
            .map(|(node, (modes, _))| Touch::new(node, modes))
            .collect();
        touches.sort_unstable_by_key(|touch| touch.node);
        WriteSet(Ok(touches))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set() -> impl Strategy<Value = WriteSet> {
        proptest::collection::btree_map(0u64..8, 1u8..16, 0..6).prop_map(|all| {
            let touch = |(node, modes)| Touch::new(node, Modes(modes));
            WriteSet(Ok(all.into_iter().map(touch).collect()))
        })
    }

    #[test]
    fn what_has_the_same_name() {
        let named = |name: &[u8]| {
            let mut set = WriteSet::default();
            set.name(name);
            set
        };
        let (mut a, b) = (named(b"a"), named(b"b"));
        assert!(a.conflicts_with(&named(b"a")) && !a.conflicts_with(&b));
        a.name(b"b");
        a.name(b"b");
        assert_eq!(a.len(), 2);
        assert!(a.conflicts_with(&b));
        let mut barrier = WriteSet(Err(Barrier::Xa));
        barrier.name(b"a");
        assert!(barrier.barrier().is_some());
    }

    proptest! {
        /// What conflicts with one of several conflicts with all together, and nothing else.
        #[test]
        fn together(sets in proptest::collection::vec(set(), 0..400), other in set()) {
            let all = union(&sets, 8);
            let either = sets.iter().any(|set| set.conflicts_with(&other));
            prop_assert_eq!(all.conflicts_with(&other), either);
            let mut nodes: Vec<u64> = sets.iter().filter_map(|set| set.0.as_ref().ok()).flatten().map(|t| t.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            prop_assert_eq!(all.len(), nodes.len());
            if let Some(less) = nodes.len().checked_sub(1) {
                let small = union(&sets, less);
                prop_assert_eq!(small.barrier(), Some(&Barrier::TooLarge));
            }
        }

        #[test]
        fn a_barrier_among_them(before in set(), behind in set()) {
            let barrier = WriteSet(Err(Barrier::Xa));
            let all = union(&[before, barrier, behind], 100);
            prop_assert_eq!(all.barrier(), Some(&Barrier::Xa));
        }
    }

    fn union(sets: &[WriteSet], max: usize) -> WriteSet {
        let mut all = Union::new(max);
        sets.iter().for_each(|set| all.add(set));
        all.finish()
    }
}
