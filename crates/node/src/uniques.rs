//! Unique indexes and parallel apply.
//!
//! Certification compares keys, but the storage engine locks more: the
//! duplicate check of an insert into a unique secondary index also locks the
//! neighbouring record. Two write sets with different keys in one such index
//! can so block each other, and with commit order that is a deadlock nobody
//! resolves (seen on real servers: a later insert waits for its commit turn
//! holding the gap that an earlier delete needs). Write sets that insert into
//! or delete from unique secondary indexes of one table are therefore applied
//! one after the other.
//!
//! A NULL in such a key drops the key: the row is named by its primary key alone,
//! and has its place in the index all the same, before the values. It locks nothing
//! beside itself, but goes into gaps that others have locked, and lies where they
//! look. So write sets that make or remove rows and name no unique secondary key wait
//! for the last one that did in their table, and it for them; not for one another.
//! An update that leaves the keys alone is none of these, and where no unique
//! secondary key is ever named nobody waits.
//!
//! This only delays applying; verdicts do not depend on it, so it is no part of
//! the deterministic state.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use dromon_writeset::{Head, KeyHash, Made, Seqno};

/// Tables remembered before those long finished are forgotten.
const TABLES_MAX: usize = 4096;

/// Tables with such an index that are known at most, in some 36 MB: what is forgotten is not found out again
/// before somebody names a key of it.
const SEEN_MAX: usize = 1 << 20;

/// The last write sets that made or removed rows, by table.
#[derive(Debug, Default)]
pub struct Uniques {
    last: HashMap<KeyHash, Last>,
    seen: Arc<SeenTables>,
}

#[derive(Debug)]
struct Last {
    /// One that named no unique secondary key.
    plain: Seqno,
    /// One that did.
    unique: Seqno,
}

impl Uniques {
    /// One that says in `seen` which tables have such an index.
    pub fn telling(seen: Arc<SeenTables>) -> Uniques {
        let last = HashMap::new();
        Uniques { last, seen }
    }

    /// What `write_set`, at `seqno`, must wait for on this account; -1 if
    /// nothing. Everything up to `released` is finished.
    pub fn depends_on(&mut self, seqno: Seqno, write_set: &Head, released: Seqno) -> Seqno {
        let mut depends_on = -1;
        let tables = write_set.keys().made_tables();
        self.seen.see(&tables);
        for made in tables {
            let last = self.last.entry(made.table).or_insert(Last {
                plain: -1,
                unique: -1,
            });
            if made.secondary {
                depends_on = depends_on.max(last.unique).max(last.plain);
                last.unique = seqno;
            } else {
                depends_on = depends_on.max(last.unique);
                last.plain = seqno;
            }
        }
        if self.last.len() > TABLES_MAX {
            self.last
                .retain(|_, last| last.unique.max(last.plain) > released);
        }
        // Of keys that name a table twice the second would wait for itself.
        depends_on.min(seqno - 1)
    }
}

/// Tables of which a key of a unique secondary index was seen since the process began: a
/// node knows no definitions, and of rows with a NULL there no such key comes.
#[derive(Debug, Default)]
pub struct SeenTables {
    tables: Mutex<Seen>,
}

/// Those seen lately, and those seen before. One that is seen again is among the former.
#[derive(Debug, Default)]
struct Seen {
    lately: HashSet<KeyHash>,
    before: HashSet<KeyHash>,
}

impl Seen {
    /// Not more than `max` are kept, and those that were not seen for longest go.
    fn add(&mut self, table: KeyHash, max: usize) {
        if self.lately.len() >= max / 2 && !self.lately.contains(&table) {
            self.before = std::mem::take(&mut self.lately);
        }
        self.lately.insert(table);
    }

    fn has(&self, table: &KeyHash) -> bool {
        self.lately.contains(table) || self.before.contains(table)
    }
}

impl SeenTables {
    /// A write set brings these.
    pub fn see(&self, made: &[Made]) {
        let surely = made.iter().filter(|m| m.surely);
        self.add(surely.map(|m| m.table));
    }

    /// These have such an index.
    pub fn add(&self, tables: impl Iterator<Item = KeyHash>) {
        let mut tables = tables.peekable();
        if tables.peek().is_none() {
            return;
        }
        let mut seen = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for table in tables {
            seen.add(table, SEEN_MAX);
        }
    }

    /// Whether one of `tables` has such an index.
    pub fn any(&self, tables: &[KeyHash]) -> bool {
        let seen = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.iter().any(|t| seen.has(t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid, WriteSet, encode};

    fn write_set(keys: &[(&[u8], &[u8], KeyType)]) -> WriteSet {
        let mut collector = KeyCollector::new();
        for (table, row, key_type) in keys {
            collector
                .add(&[b"d", table, row], *key_type)
                .expect("a key");
        }
        let header = Header {
            flags: Flags::TRX_START | Flags::TRX_END,
            source: Uuid([1; 16]),
            trx_id: 1,
            conn_id: 1,
            last_seen: 0,
            prev_fragment: -1,
            chunk: 0,
        };
        WriteSet::decode(encode(&header, &collector, b"x")).expect("own encoding")
    }

    #[test]
    fn only_unique_secondary_indexes_of_the_same_table_order_write_sets() {
        let mut uniques = Uniques::default();
        let primary = write_set(&[(b"t", b"\x00a", KeyType::Exclusive)]);
        let unique = write_set(&[
            (b"t", b"\x00b", KeyType::Exclusive),
            (b"t", b"\x01b", KeyType::Exclusive),
        ]);
        let other = write_set(&[(b"u", b"\x01b", KeyType::Exclusive)]);
        let update = write_set(&[(b"t", b"\x01c", KeyType::Update)]);
        assert_eq!(uniques.depends_on(1, &primary, 0), -1);
        assert_eq!(uniques.depends_on(2, &unique, 0), 1);
        assert_eq!(uniques.depends_on(3, &primary, 0), 2);
        assert_eq!(uniques.depends_on(4, &other, 0), -1);
        assert_eq!(
            uniques.depends_on(5, &update, 0),
            -1,
            "an unchanged key moves no record"
        );
        assert_eq!(uniques.depends_on(6, &unique, 0), 3);
        assert_eq!(uniques.depends_on(7, &unique, 0), 6);
    }

    #[test]
    fn a_long_key_may_be_of_any_index() {
        let mut uniques = Uniques::default();
        let long = [0u8; 40];
        let ws = write_set(&[(b"t", &long, KeyType::Exclusive)]);
        assert_eq!(uniques.depends_on(1, &ws, 0), -1);
        assert_eq!(uniques.depends_on(2, &ws, 0), 1);
    }

    #[test]
    fn rows_with_a_null_in_the_key_wait_for_those_without_and_not_for_one_another() {
        let mut uniques = Uniques::default();
        let null = |n: u8| write_set(&[(b"t", &[0, n], KeyType::Exclusive)]);
        let value = write_set(&[
            (b"t", b"\x00v", KeyType::Exclusive),
            (b"t", b"\x01v", KeyType::Exclusive),
        ]);
        let kept = write_set(&[(b"t", b"\x00k", KeyType::Update)]);
        assert_eq!(uniques.depends_on(1, &null(1), 0), -1);
        assert_eq!(uniques.depends_on(2, &null(2), 0), -1);
        assert_eq!(uniques.depends_on(3, &value, 0), 2, "it locks their gap");
        assert_eq!(
            uniques.depends_on(4, &null(4), 0),
            3,
            "they go into its gap"
        );
        assert_eq!(uniques.depends_on(5, &null(5), 0), 3, "side by side");
        assert_eq!(uniques.depends_on(6, &kept, 0), -1, "no record moves");
        assert_eq!(uniques.depends_on(7, &value, 0), 5);
    }

    #[test]
    fn where_no_unique_key_is_named_nobody_waits_and_nothing_is_kept_for_ever() {
        let mut uniques = Uniques::default();
        for n in 0..20_000u32 {
            let name = n.to_le_bytes();
            let seqno = Seqno::from(n) + 1;
            let one = write_set(&[(&name, b"\x00a", KeyType::Exclusive)]);
            assert_eq!(uniques.depends_on(seqno, &one, seqno - 10), -1);
        }
        assert!(uniques.last.len() <= TABLES_MAX);
    }

    #[test]
    fn a_table_is_known_by_the_first_key_that_is_surely_of_such_an_index() {
        let seen = Arc::new(SeenTables::default());
        let mut uniques = Uniques::telling(seen.clone());
        let table = [KeyHash::of(&[b"d", b"t"])];
        let long = [1u8; 40];
        let unsure = [
            write_set(&[(b"t", b"\x00a", KeyType::Exclusive)]),
            write_set(&[(b"t", &long, KeyType::Exclusive)]),
            write_set(&[(b"u", b"\x01a", KeyType::Exclusive)]),
        ];
        for (seqno, write_set) in (1..).zip(&unsure) {
            uniques.depends_on(seqno, write_set, 0);
            assert!(!seen.any(&table));
        }
        uniques.depends_on(4, &write_set(&[(b"t", b"\x01a", KeyType::Exclusive)]), 0);
        assert!(seen.any(&table));
    }

    #[test]
    fn ten_thousand_tables_stay_known() {
        let seen = SeenTables::default();
        for n in 0..10_000 {
            seen.add([KeyHash(n)].into_iter());
        }
        for n in 0..10_000 {
            assert!(seen.any(&[KeyHash(n)]), "table {n}");
        }
        assert!(!seen.any(&[KeyHash(10_000)]));
    }

    #[test]
    fn of_too_many_tables_those_in_use_stay_known() {
        let mut seen = Seen::default();
        let used = KeyHash(0);
        for n in 0..100 {
            seen.add(KeyHash(n), 8);
            seen.add(used, 8);
            assert!(seen.has(&used) && seen.has(&KeyHash(n)));
            assert!(n < 2 || seen.has(&KeyHash(n - 2)), "half of them stay");
            assert!(seen.lately.len() + seen.before.len() <= 8);
        }
        assert!(!seen.has(&KeyHash(50)));
    }
}
