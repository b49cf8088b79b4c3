//! Rows that streams look at for a foreign key, or change without changing their keys: of
//! these a write set may name the same ones, and pass certification (`certify/src/matrix.rs`,
//! "d"). Where it is applied it needs a lock that the stream keeps until its end.
//!
//! ```text
//!   the stream            a write set behind it
//!   UPDATE of a parent    REFERENCE, SHARED     inserts a child
//!   REFERENCE, SHARED     UPDATE, EXCLUSIVE     changes the parent
//! ```
//!
//! A row counts by half of its hash: two with one half cost what is shelved without need.

use std::collections::BTreeSet;

use dromon_writeset::{KeyHash, KeyType, RowKey, Seqno};

/// A stream that names more rows than this counts as one that names all rows of their tables.
const ROWS_MAX: usize = 1 << 16;

/// See the module's text. Streams go by the place of their first fragment.
#[derive(Debug, Default)]
pub(super) struct NamedRows {
    looked_at: BTreeSet<(u64, Seqno)>,
    updated: BTreeSet<(u64, Seqno)>,
}

/// What one stream has in them.
#[derive(Debug, Default)]
pub(super) struct OfStream {
    looked_at: Vec<u64>,
    updated: Vec<u64>,
    /// The tables of these, and whether they stand for all rows in them.
    tables: BTreeSet<(u64, bool)>,
    wide: bool,
}

fn half(hash: KeyHash) -> u64 {
    hash.0 as u64
}

impl NamedRows {
    /// The stream that began at `first` names these.
    pub fn add(&mut self, first: Seqno, of: &mut OfStream, rows: &[RowKey]) {
        for key in rows {
            // Who names such a row, too, fails certification, or has met the lock at its own node.
            if key.key_type == KeyType::Exclusive {
                continue;
            }
            let changes = key.key_type.changes();
            let table = half(key.table);
            of.tables.insert((table, changes));
            let row = match of.wide {
                true => table,
                false => half(key.row),
            };
            self.insert(first, of, row, changes);
            if of.looked_at.len() + of.updated.len() > ROWS_MAX {
                self.widen(first, of);
            }
        }
    }

    fn insert(&mut self, first: Seqno, of: &mut OfStream, row: u64, changes: bool) {
        let (all, own) = match changes {
            true => (&mut self.updated, &mut of.updated),
            false => (&mut self.looked_at, &mut of.looked_at),
        };
        if all.insert((row, first)) {
            own.push(row);
        }
    }

    fn widen(&mut self, first: Seqno, of: &mut OfStream) {
        self.remove(first, of);
        of.wide = true;
        for (table, changes) in of.tables.clone() {
            self.insert(first, of, table, changes);
        }
    }

    /// That stream is over.
    pub fn remove(&mut self, first: Seqno, of: &mut OfStream) {
        for row in std::mem::take(&mut of.looked_at) {
            self.looked_at.remove(&(row, first));
        }
        for row in std::mem::take(&mut of.updated) {
            self.updated.remove(&(row, first));
        }
    }

    /// What is here of that stream goes over to `to`.
    pub fn hand_over(&mut self, to: &mut NamedRows, first: Seqno, of: &OfStream) {
        for row in &of.looked_at {
            self.looked_at.remove(&(*row, first));
            to.looked_at.insert((*row, first));
        }
        for row in &of.updated {
            self.updated.remove(&(*row, first));
            to.updated.insert((*row, first));
        }
    }

    /// The streams that have a lock which a write set needs that names these.
    pub fn met_by(&self, rows: &[RowKey]) -> BTreeSet<Seqno> {
        let mut met = BTreeSet::new();
        for key in rows {
            let held = match key.key_type.changes() {
                true => &self.looked_at,
                false => &self.updated,
            };
            for row in [half(key.row), half(key.table)] {
                let of_row = held.range((row, Seqno::MIN)..=(row, Seqno::MAX));
                met.extend(of_row.map(|(_, first)| *first));
            }
        }
        met
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.looked_at.is_empty() && self.updated.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeyType::{Exclusive, Reference, Shared, Update};
    use dromon_writeset::Part;
    use proptest::prelude::*;

    fn key(table: u8, row: u32, key_type: KeyType) -> RowKey {
        let table = KeyHash::ROOT.child(Part::Raw(&[table]));
        RowKey {
            table,
            row: table.child(Part::Raw(&row.to_le_bytes())),
            key_type,
        }
    }

    #[test]
    fn who_looks_at_what_is_changed_or_changes_what_is_looked_at_needs_a_lock() {
        let all = [Shared, Reference, Update, Exclusive];
        let meets = |held, new| {
            let mut named = NamedRows::default();
            named.add(5, &mut OfStream::default(), &[key(1, 1, held)]);
            assert!(named.met_by(&[key(1, 2, new), key(2, 1, new)]).is_empty());
            let met = named.met_by(&[key(1, 1, new)]);
            assert!(met.iter().all(|first| *first == 5));
            !met.is_empty()
        };
        let found = all.map(|held| all.map(|new| meets(held, new)));
        let (no, yes) = (false, true);
        assert_eq!(
            found,
            [
                [no, no, yes, yes],
                [no, no, yes, yes],
                [yes, yes, no, no],
                [no, no, no, no],
            ]
        );
    }

    #[test]
    fn whoever_needs_locks_of_several_is_told_of_all() {
        let mut named = NamedRows::default();
        let mut of = [OfStream::default(), OfStream::default()];
        named.add(5, &mut of[0], &[key(1, 1, Reference)]);
        named.add(
            8,
            &mut of[1],
            &[key(1, 1, Reference), key(1, 2, Update), key(1, 3, Update)],
        );
        let of_rows = |named: &NamedRows, rows: &[RowKey]| -> Vec<Seqno> {
            named.met_by(rows).into_iter().collect()
        };
        assert_eq!(of_rows(&named, &[key(1, 1, Update)]), [5, 8]);
        let looks = [key(1, 2, Reference), key(1, 3, Reference)];
        assert_eq!(of_rows(&named, &looks), [8]);
        named.remove(8, &mut of[1]);
        assert_eq!(of_rows(&named, &[key(1, 1, Update)]), [5]);
        assert_eq!(of_rows(&named, &looks), [0; 0]);
        named.remove(5, &mut of[0]);
        assert!(named.is_empty());
    }

    #[test]
    fn of_one_that_names_very_many_rows_the_tables_are_kept() {
        let mut named = NamedRows::default();
        let mut of = OfStream::default();
        let many = ROWS_MAX as u32;
        let rows: Vec<_> = (0..many).map(|n| key(1, n, Update)).collect();
        named.add(5, &mut of, &rows);
        named.add(5, &mut of, &rows);
        assert_eq!(of.updated.len(), ROWS_MAX, "each counts once");
        let met = |named: &NamedRows, k| !named.met_by(&[k]).is_empty();
        assert!(met(&named, key(1, 7, Reference)));
        assert!(!met(&named, key(1, many, Reference)));
        named.add(5, &mut of, &[key(2, 1, Reference)]);
        named.add(5, &mut of, &[key(3, 1, Update)]);
        assert!(named.looked_at.len() + named.updated.len() <= 3);
        assert!(met(&named, key(1, many, Reference)));
        assert!(!met(&named, key(1, 7, Update)), "it looks at none there");
        assert!(met(&named, key(2, 9, Update)) && !met(&named, key(2, 1, Reference)));
        assert!(met(&named, key(3, 9, Reference)));
        named.remove(5, &mut of);
        assert!(named.is_empty());
    }

    fn any_key() -> impl Strategy<Value = RowKey> {
        let key_type = prop::sample::select(KeyType::ALL.to_vec());
        (0u8..2, 0u32..4, key_type).prop_map(|(table, row, t)| key(table, row, t))
    }

    proptest! {
        /// It names what certification lets pass, and has pass after the stream.
        #[test]
        fn it_is_what_the_matrix_calls_a_dependency(
            streams in prop::collection::vec(prop::collection::vec(any_key(), 0..6), 0..5),
            rows in prop::collection::vec(any_key(), 0..6),
        ) {
            use dromon_certify::{Rule, rule};
            let mut named = NamedRows::default();
            let mut expected = BTreeSet::new();
            for (first, keys) in streams.iter().enumerate() {
                named.add(first as Seqno, &mut OfStream::default(), keys);
                let depends = |held: &RowKey, new: &RowKey| {
                    held.row == new.row && rule(held.key_type, new.key_type) == Rule::Depend
                };
                if keys.iter().any(|h| rows.iter().any(|n| depends(h, n))) {
                    expected.insert(first as Seqno);
                }
            }
            let met = named.met_by(&rows);
            prop_assert!(expected.is_subset(&met));
        }
    }
}
