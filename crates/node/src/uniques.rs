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
//! This only delays applying; verdicts do not depend on it, so it is no part of
//! the deterministic state.

use std::collections::HashMap;

use dromon_writeset::{Head, KeyHash, KeyType, Part, Seqno};

/// Tables remembered before those long finished are forgotten.
const TABLES_MAX: usize = 4096;

/// The last write set that touched a unique secondary index, by table.
#[derive(Debug, Default)]
pub struct Uniques {
    last: HashMap<KeyHash, Seqno>,
}

impl Uniques {
    /// What `write_set`, at `seqno`, must wait for on this account; -1 if
    /// nothing. Everything up to `released` is finished.
    pub fn depends_on(&mut self, seqno: Seqno, write_set: &Head, released: Seqno) -> Seqno {
        let mut depends_on = -1;
        for table in unique_tables(write_set) {
            if let Some(last) = self.last.insert(table, seqno)
                && last != seqno
            {
                depends_on = depends_on.max(last);
            }
        }
        if self.last.len() > TABLES_MAX {
            self.last.retain(|_, last| *last > released);
        }
        depends_on
    }
}

/// Whether it inserts into or deletes from some unique secondary index.
pub fn touched(write_set: &Head) -> bool {
    unique_tables(write_set).next().is_some()
}

/// The table of each key of a unique secondary index that it inserts or deletes.
fn unique_tables(write_set: &Head) -> impl Iterator<Item = KeyHash> {
    write_set.keys().iter().filter_map(|key| {
        let mut parts = key.parts();
        let (db, table, row) = (parts.next()?, parts.next()?, parts.next()?);
        let unique = key.key_type == KeyType::Exclusive && !is_primary(row);
        unique.then(|| KeyHash::ROOT.child(db).child(table))
    })
}

/// Whether the row key is of the primary key: the server puts the index number
/// first. Of a long key only a digest is known; it may be any index.
fn is_primary(row: Part<'_>) -> bool {
    matches!(row, Part::Raw(bytes) if bytes.first() == Some(&0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_writeset::{Flags, Header, KeyCollector, Uuid, WriteSet, encode};

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
        assert_eq!(uniques.depends_on(2, &unique, 0), -1);
        assert_eq!(uniques.depends_on(3, &primary, 0), -1);
        assert_eq!(uniques.depends_on(4, &other, 0), -1);
        assert_eq!(
            uniques.depends_on(5, &update, 0),
            -1,
            "an unchanged key moves no record"
        );
        assert_eq!(uniques.depends_on(6, &unique, 0), 2);
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
}
