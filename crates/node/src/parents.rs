//! Foreign keys whose two ends name the parent's row differently.
//!
//! A child names its parent's row as the storage engine sees it, the parent names itself as
//! the server sees it. Mostly that is the same, or the origin adds a name that is
//! (`aliases.rs` in `writeset`). Not so where
//!
//! * the foreign key points to a secondary index: one that was added in place has different
//!   numbers in the two, and if the primary key has several columns the engine appends some
//!   of them;
//! * the parent's key is an INET4: named as text by the one, which makes capital letters of
//!   small ones, and as four bytes by the other.
//!
//! Then certification sees no dependency. A child applied before its parent is refused, and
//! the vote puts out the node where all was well. So such a reference waits for the last
//! change in its parent's table, and a change there for the last such reference. Which
//! tables these are is learned from the references themselves: the first one waits for
//! everything before it. An integer looks like an INET4; but where a row is ever changed
//! under a name that folding would alter, there are only integers.
//!
//! This only delays applying; verdicts do not depend on it, so it is no part of the
//! deterministic state.

use std::collections::HashMap;

use dromon_writeset::{Head, KeyHash, Seqno};

/// Tables remembered before those long finished are forgotten.
const TABLES_MAX: usize = 4096;

/// The parents' tables to which a reference came whose name may be another one.
#[derive(Debug, Default)]
pub struct Parents {
    tables: HashMap<KeyHash, Parent>,
}

#[derive(Debug)]
struct Parent {
    /// The last write set that changed rows; or from here on none did.
    changed: Seqno,
    /// The last one with such a reference.
    referenced: Seqno,
    /// Names of four bytes are as they should be.
    unfolded: bool,
}

impl Parents {
    /// What `write_set`, at `seqno`, must wait for on this account; -1 if nothing. Everything
    /// up to `released` is finished.
    pub fn depends_on(&mut self, seqno: Seqno, write_set: &Head, released: Seqno) -> Seqno {
        if write_set.flags().is_toi() {
            // Keys and types may be others behind it.
            self.tables.clear();
            return -1;
        }
        let mut depends_on = -1;
        for kinship in write_set.keys().kinships() {
            let doubtful = kinship.by_index || kinship.by_short;
            let parent = match self.tables.get_mut(&kinship.table) {
                Some(parent) => parent,
                None if doubtful => self.tables.entry(kinship.table).or_insert(Parent {
                    changed: seqno - 1,
                    referenced: -1,
                    unfolded: false,
                }),
                None => continue,
            };
            parent.unfolded |= kinship.unfolded;
            let doubtful = kinship.by_index || (kinship.by_short && !parent.unfolded);
            if doubtful {
                depends_on = depends_on.max(parent.changed);
            }
            if kinship.changes {
                depends_on = depends_on.max(parent.referenced);
                parent.changed = seqno;
            }
            if doubtful {
                parent.referenced = seqno;
            }
        }
        if self.tables.len() > TABLES_MAX {
            self.tables
                .retain(|_, parent| parent.changed.max(parent.referenced) > released);
        }
        // Of keys that name a table twice the second would wait for itself.
        depends_on.min(seqno - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_writeset::KeyType::{Exclusive, Reference, Update};
    use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid, WriteSet, encode};

    fn write_set(keys: &[(&[u8], &[u8], KeyType)]) -> WriteSet {
        with(keys, Flags::TRX_START | Flags::TRX_END)
    }

    fn with(keys: &[(&[u8], &[u8], KeyType)], flags: Flags) -> WriteSet {
        let mut collector = KeyCollector::new();
        for (table, row, key_type) in keys {
            collector
                .add_names(&[b"d", table, row], *key_type)
                .expect("a key");
        }
        let header = Header {
            flags,
            source: Uuid([1; 16]),
            trx_id: 1,
            conn_id: 1,
            last_seen: 0,
            prev_fragment: -1,
            chunk: 0,
        };
        WriteSet::decode(encode(&header, &collector, b"x")).expect("own encoding")
    }

    fn parent(row: &'static [u8], key_type: KeyType) -> WriteSet {
        write_set(&[(b"p", row, key_type)])
    }

    fn child(row: &'static [u8]) -> WriteSet {
        write_set(&[(b"p", row, Reference), (b"c", b"\0abcd", Exclusive)])
    }

    #[test]
    fn a_reference_by_a_secondary_index_waits_for_the_parents_table_and_it_for_that() {
        let mut parents = Parents::default();
        let mut next = (10..).map(|seqno| (seqno, seqno - 1));
        let mut depends_on = |write_set: &WriteSet| {
            let (seqno, before) = next.next().expect("endless");
            (parents.depends_on(seqno, write_set, 0), before)
        };
        // Nobody has pointed there yet.
        assert_eq!(depends_on(&parent(b"\x01AAAA", Exclusive)).0, -1); // 10
        // What is under way from before is not known.
        assert_eq!(depends_on(&child(b"\x02AAAA")).0, 10); // 11
        assert_eq!(depends_on(&child(b"\x02BBBB")).0, 10); // 12: nor is it here
        assert_eq!(depends_on(&parent(b"\x01BBBB", Exclusive)).0, 12); // 13
        assert_eq!(depends_on(&parent(b"\0BBBB", Update)).0, 12); // 14: not for one another
        assert_eq!(depends_on(&child(b"\x02BBBB")).0, 14); // 15
        // By the primary key the names are the same, and certification sees to it.
        assert_eq!(depends_on(&child(b"\0AAAA")).0, -1); // 16
        // Of a long one the index is told beside it.
        let long: &[u8] = &[vec![2], vec![b'A'; 40]].concat();
        let (waits, before) = depends_on(&write_set(&[(b"q", long, Reference)]));
        assert_eq!(waits, before);
        // One that does both waits for others only.
        let both = [
            (&b"p"[..], &b"\x01CCCC"[..], Exclusive),
            (&b"p"[..], &b"\x02CCCC"[..], Reference),
        ];
        assert_eq!(depends_on(&write_set(&both)).0, 15); // 18
        assert_eq!(depends_on(&parent(b"\x01DDDD", Exclusive)).0, 18);
        // A statement may change the definition.
        let flags = Flags::TRX_START | Flags::TRX_END | Flags::ISOLATION;
        let (toi, _) = depends_on(&with(&[(b"other", b"\0", Exclusive)], flags));
        assert_eq!(toi, -1);
        let (waits, before) = depends_on(&child(b"\x02AAAA"));
        assert_eq!(waits, before);
    }

    #[test]
    fn four_bytes_may_be_an_inet4_until_a_row_shows_that_they_are_a_number() {
        let mut parents = Parents::default();
        // 97.98.99.100, which its own row calls ABCD.
        assert_eq!(parents.depends_on(1, &parent(b"\0ABCD", Exclusive), 0), -1);
        assert_eq!(parents.depends_on(2, &child(b"\0abcd"), 0), 1);
        assert_eq!(parents.depends_on(3, &parent(b"\0EFGH", Exclusive), 0), 2);
        assert_eq!(parents.depends_on(4, &child(b"\0efgh"), 0), 3);
        // Without such bytes both have one name.
        assert_eq!(parents.depends_on(5, &child(b"\0\x0a\0\0\x01"), 0), -1);
        // A number, in another index.
        assert_eq!(parents.depends_on(6, &parent(b"\x01abcd", Update), 0), 4);
        assert_eq!(parents.depends_on(7, &child(b"\0efgh"), 0), 6);
        // No INET4 is ever named like this.
        assert_eq!(parents.depends_on(8, &parent(b"\0abcd", Update), 0), 7);
        assert_eq!(parents.depends_on(9, &child(b"\0efgh"), 0), -1);
        assert_eq!(parents.depends_on(10, &parent(b"\0abcd", Update), 0), 7);
    }

    #[test]
    fn nothing_is_kept_for_ever_and_what_was_forgotten_is_waited_for() {
        let mut parents = Parents::default();
        for n in 0..20_000u32 {
            let name = n.to_le_bytes();
            let seqno = Seqno::from(n) + 1;
            let reference = write_set(&[(&name, b"\x01a", Reference)]);
            assert_eq!(parents.depends_on(seqno, &reference, seqno - 10), seqno - 1);
            assert!(parents.tables.len() <= TABLES_MAX + 1);
        }
        let first = write_set(&[(&0u32.to_le_bytes(), b"\x01a", Reference)]);
        assert_eq!(parents.depends_on(20_001, &first, 20_000), 20_000);
    }
}
