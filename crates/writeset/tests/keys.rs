//! Collecting keys, carrying them, and what certification sees of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use dromon_writeset::KeyType::{Exclusive, Reference, Update};
use dromon_writeset::{
    EmptyKeyError, Flags, Head, Header, KeyCollector, KeyHash, KeyType, Part, ROW_RAW_MAX, Uuid,
    encode,
};
use proptest::prelude::*;

const HEADER: Header = Header {
    flags: Flags::from_bits(0x41),
    source: Uuid([1; 16]),
    trx_id: 1,
    conn_id: 2,
    last_seen: 3,
    prev_fragment: -1,
    chunk: 0,
};

fn carried(keys: &KeyCollector) -> Head {
    let bytes = encode(&HEADER, keys, b"");
    assert_eq!(
        bytes.len(),
        dromon_writeset::prefix_len(keys),
        "the size is known beforehand"
    );
    Head::decode(&bytes).expect("what encode wrote can be read")
}

/// (table text, row text, type, prefix, whole table) of all expanded keys.
fn expanded(head: &Head) -> Vec<(String, String, KeyType, bool, bool)> {
    let mut out = Vec::new();
    let flow: ControlFlow<()> = head.keys().expand(|e| {
        assert_eq!(e.hash, e.key.hash(), "the chain and the parts agree");
        out.push((
            e.key.table_text(),
            e.key.row_text(),
            e.key.key_type,
            e.key.prefix,
            e.key.whole_table,
        ));
        ControlFlow::Continue(())
    });
    assert!(flow.is_continue());
    out
}

fn collect(keys: &[(&[&[u8]], KeyType)]) -> KeyCollector {
    let mut c = KeyCollector::new();
    for (parts, t) in keys {
        c.add(parts, *t).expect("the key has parts");
    }
    c
}

#[test]
fn prefixes_are_shared_and_only_the_leaf_has_the_type() {
    let keys = collect(&[
        (&[b"d", b"t", b"r1"], KeyType::Exclusive),
        (&[b"d", b"t", b"r2"], KeyType::Update),
        (&[b"d", b"u"], KeyType::Exclusive),
        (&[b"e"], KeyType::Exclusive),
    ]);
    assert_eq!(keys.len(), 4);
    let row = |t: &str, r: &str, k, p| (t.to_string(), r.to_string(), k, p, false);
    assert_eq!(
        expanded(&carried(&keys)),
        [
            row("d", "", KeyType::Shared, true),
            row("d.t", "", KeyType::Shared, true),
            row("d.t", "r1", KeyType::Exclusive, false),
            row("d.t", "r2", KeyType::Update, false),
            row("d.u", "", KeyType::Exclusive, false),
            row("e", "", KeyType::Exclusive, false),
        ]
    );
}

#[test]
fn a_table_key_beside_row_keys_keeps_the_prefix() {
    let keys = collect(&[
        (&[b"d", b"t"], KeyType::Update),
        (&[b"d", b"t", b"r"], KeyType::Update),
    ]);
    let types: Vec<_> = expanded(&carried(&keys)).iter().map(|e| e.2).collect();
    use KeyType::{Shared as S, Update as U};
    assert_eq!(types, [S, S, U, U]);
}

#[test]
fn keys_of_more_than_three_parts_have_all_prefixes() {
    let long = [b'x'; 30];
    let keys = collect(&[(&[b"d", b"t", b"a", &long, b"c"], KeyType::Exclusive)]);
    let head = carried(&keys);
    let got: Vec<_> = expanded(&head)
        .into_iter()
        .map(|e| (e.1, e.2, e.3))
        .collect();
    let hash = Part::Digest(Part::digest(&long)).printable().into_owned();
    assert_eq!(
        got,
        [
            (String::new(), KeyType::Shared, true),
            (String::new(), KeyType::Shared, true),
            ("a".into(), KeyType::Shared, true),
            (format!("a/{hash}"), KeyType::Shared, true),
            (format!("a/{hash}/c"), KeyType::Exclusive, false),
        ]
    );
    let key = head.keys().iter().next().expect("one key");
    assert_eq!(
        key.hash(),
        KeyHash::of(&[b"d", b"t", b"a", &long, b"c"]),
        "a digest on the way does not change the hash"
    );
}

#[test]
fn the_strongest_type_stays() {
    for first in KeyType::ALL {
        for second in KeyType::ALL {
            for parts in [&[&b"d"[..], b"t", b"r"][..], &[b"d", b"t"], &[b"d"]] {
                let keys = collect(&[(parts, first), (parts, second)]);
                assert_eq!(keys.len(), 1);
                let head = carried(&keys);
                let types: Vec<_> = head.keys().iter().map(|k| k.key_type).collect();
                assert_eq!(types, [first.max(second)]);
            }
        }
    }
}

#[test]
fn too_many_keys_of_a_table_become_one() {
    let mut keys = KeyCollector::with_escalation(3);
    for row in 0..3u8 {
        keys.add(&[b"d", b"t", &[row]], KeyType::Shared)
            .expect("parts");
        keys.add(&[b"d", b"u", &[row]], KeyType::Update)
            .expect("parts");
    }
    keys.add(&[b"d", b"t", &[2]], KeyType::Update)
        .expect("a repetition does not count");
    assert_eq!((keys.len(), keys.escalated_tables()), (6, 0));
    assert_eq!(
        keys.parts(),
        1 + 1 + 2 + 6,
        "cluster, database, tables, rows"
    );
    keys.add(&[b"d", b"t", &[3]], KeyType::Shared)
        .expect("parts");
    assert_eq!((keys.len(), keys.escalated_tables()), (4, 1));
    let size = keys.bytes();
    keys.add(&[b"d", b"t", &[4]], KeyType::Exclusive)
        .expect("parts");
    keys.add(&[b"d", b"t"], KeyType::Shared).expect("parts");
    assert_eq!(
        (keys.len(), keys.bytes()),
        (4, size),
        "the table's key covers all"
    );
    assert_eq!(keys.parts(), 10, "what was listed once still counts");

    let head = carried(&keys);
    let first = head.keys().iter().next().expect("four keys");
    assert!(first.whole_table);
    assert_eq!(
        (first.key_type, first.table_text().as_str()),
        (KeyType::Exclusive, "d.t")
    );
    assert_eq!(head.keys().iter().filter(|k| k.whole_table).count(), 1);
    assert_eq!(first.hash(), KeyHash::of(&[b"d", b"t"]));
}

/// Many tables with as many rows as are allowed to each.
#[test]
fn where_all_keys_are_too_many_the_largest_tables_become_keys() {
    const MAX: usize = 20_000;
    let mut keys = KeyCollector::with_escalation(usize::MAX).within(MAX);
    keys.add(&[b"d", b"small", b"row"], KeyType::Update)
        .expect("parts");
    let mut most = 0;
    for row in 0..1000u32 {
        for table in 0..10u8 {
            // The last one is only looked at, and is the largest.
            let (name, long) = ([table], [&row.to_be_bytes()[..], &[7; 16]].concat());
            let (row, key_type) = match table {
                9 => (&long[..], KeyType::Reference),
                _ => (&long[..5], KeyType::Update),
            };
            keys.add(&[b"d", &name, row], key_type).expect("parts");
            most = most.max(keys.bytes());
            assert!(keys.bytes() <= MAX);
        }
    }
    assert!(most > MAX - 100, "no sooner than it has to be");
    assert_eq!(keys.escalated_tables(), 7, "three have room");
    let head = carried(&keys);
    assert_eq!(
        (keys.len(), keys.bytes()),
        (head.keys().len(), head.keys().byte_len())
    );
    let table = |name: &[u8]| KeyHash::of(&[b"d", name]);
    let mut changed = vec![table(b"small")];
    changed.extend((0..9u8).map(|t| table(&[t])));
    for got in [keys.changed_tables(), head.keys().changed_tables()] {
        assert_eq!(got, changed);
    }
    assert_eq!(head.keys().whole_tables().len(), 7);
    assert_eq!(head.keys().rows().len(), 1 + 1 + 3 * 1000);
    keys.clear();
    for row in 0..10_000u32 {
        keys.add(&[b"d", b"t", &row.to_be_bytes()], KeyType::Update)
            .expect("parts");
        assert!(keys.bytes() <= MAX);
    }
}

/// One that is only looked at keeps a row that says so, until it is changed after all.
#[test]
fn a_table_that_becomes_a_key_for_others_sake_may_be_changed_later() {
    let mut keys = KeyCollector::new().within(150);
    for row in 0..40u8 {
        keys.add(&[b"d", b"parent", &[0, row]], KeyType::Reference)
            .expect("parts");
    }
    keys.add(&[b"d", b"t", &[7; 24]], KeyType::Update)
        .expect("parts");
    let parent = KeyHash::of(&[b"d", b"parent"]);
    let t = KeyHash::of(&[b"d", b"t"]);
    assert_eq!(keys.escalated_tables(), 1);
    assert_eq!(carried(&keys).keys().changed_tables(), [t]);
    keys.add(&[b"d", b"parent", &[0, 1]], KeyType::Exclusive)
        .expect("parts");
    assert_eq!(carried(&keys).keys().changed_tables(), [parent, t]);
}

#[test]
fn a_key_without_parts_is_refused() {
    let mut keys = KeyCollector::new();
    assert_eq!(keys.add(&[], KeyType::Exclusive), Err(EmptyKeyError));
    assert!(keys.is_empty());
}

#[test]
fn clear_forgets_all_but_the_limit() {
    let mut keys = KeyCollector::with_escalation(1);
    let empty = keys.bytes();
    for round in 0..2 {
        keys.add(&[b"d", b"t", b"1"], KeyType::Update)
            .expect("parts");
        assert_eq!(
            (keys.len(), keys.escalated_tables()),
            (1, 0),
            "round {round}"
        );
        keys.add(&[b"d", b"t", b"2"], KeyType::Update)
            .expect("parts");
        assert_eq!(keys.escalated_tables(), 1);
        keys.clear();
        assert!(keys.is_empty());
        assert_eq!(keys.bytes(), empty);
    }
}

/// Names up to the limit, beyond it, and row keys around theirs.
#[test]
fn lengths_at_the_limits() {
    for len in [0, 1, ROW_RAW_MAX, ROW_RAW_MAX + 1, 1024, 1025, 70_000] {
        let part = vec![b'p'; len];
        let keys = collect(&[(&[&part, &part, &part], KeyType::Update)]);
        let head = carried(&keys);
        let key = head.keys().iter().next().expect("one key");
        assert_eq!(
            key.hash(),
            KeyHash::of(&[&part, &part, &part]),
            "length {len}"
        );
        assert!(head.keys().byte_len() < 2200, "long parts do not travel");
    }
}

type Spec = Vec<(Vec<Vec<u8>>, KeyType)>;

fn key_specs() -> impl Strategy<Value = Spec> {
    let part = prop_oneof![
        4 => prop::collection::vec(0u8..2, 0..2),
        1 => prop::collection::vec(0u8..2, 23..27),
    ];
    let key = (prop::collection::vec(part, 1..6), 0u8..4);
    let key = key.prop_map(|(parts, t)| (parts, KeyType::ALL[t as usize]));
    prop::collection::vec(key, 0..60)
}

proptest! {
    /// The collector against a map: the same set of keys with the strongest
    /// types arrives, its counters are right, equal input gives equal bytes.
    #[test]
    fn arrives_as_added(spec in key_specs()) {
        let mut want: BTreeMap<KeyHash, KeyType> = BTreeMap::new();
        let (mut keys, mut again) = (KeyCollector::new(), KeyCollector::new());
        for (parts, t) in &spec {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            keys.add(&parts, *t).expect("parts");
            again.add(&parts, *t).expect("parts");
            let e = want.entry(KeyHash::of(&parts)).or_insert(*t);
            *e = (*e).max(*t);
        }
        prop_assert_eq!(encode(&HEADER, &keys, b"x"), encode(&HEADER, &again, b"x"));
        let head = carried(&keys);
        let got: BTreeMap<_, _> = head.keys().iter().map(|k| (k.hash(), k.key_type)).collect();
        prop_assert_eq!(head.keys().len(), want.len(), "no key arrives twice");
        prop_assert_eq!(keys.len(), want.len());
        prop_assert_eq!(got, want);
        prop_assert_eq!(head.keys().byte_len(), keys.bytes());
    }

    /// Expansion against the definition: every proper prefix SHARED, every key
    /// with its type and its table, nothing else.
    #[test]
    fn expands_to_all_prefixes(spec in key_specs()) {
        let mut keys = KeyCollector::new();
        let mut leaves: BTreeMap<KeyHash, KeyType> = BTreeMap::new();
        let mut prefixes = BTreeSet::new();
        let (mut tables, mut changed) = (BTreeMap::new(), BTreeSet::new());
        for (parts, t) in &spec {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            keys.add(&parts, *t).expect("parts");
            let e = leaves.entry(KeyHash::of(&parts)).or_insert(*t);
            *e = (*e).max(*t);
            for n in 1..parts.len() {
                prefixes.insert(KeyHash::of(&parts[..n]));
            }
            let table = KeyHash::of(&parts[..parts.len().min(2)]);
            for n in 2..=parts.len() {
                tables.insert(KeyHash::of(&parts[..n]), table);
            }
            if parts.len() > 1 && t.changes() {
                changed.insert(table);
            }
        }
        let head = carried(&keys);
        let mut got_leaves = BTreeMap::new();
        let mut got_prefixes = BTreeSet::new();
        let flow: ControlFlow<()> = head.keys().expand(|e| {
            assert_eq!(e.table, tables.get(&e.hash).copied().unwrap_or(e.hash));
            if e.key.prefix {
                assert_eq!(e.key.key_type, KeyType::Shared);
                got_prefixes.insert(e.hash);
            } else {
                got_leaves.insert(e.hash, e.key.key_type);
            }
            ControlFlow::Continue(())
        });
        prop_assert!(flow.is_continue());
        prop_assert_eq!(got_leaves, leaves);
        prop_assert_eq!(got_prefixes, prefixes);
        for got in [keys.changed_tables(), head.keys().changed_tables()] {
            prop_assert_eq!(got.len(), changed.len(), "no table twice");
            prop_assert_eq!(&BTreeSet::from_iter(got), &changed);
        }
    }
}

#[test]
fn a_table_whose_rows_are_too_many_to_list_is_changed() {
    let mut keys = KeyCollector::with_escalation(1);
    for row in [b"\x00one", b"\x00two"] {
        keys.add(&[b"d", b"t", row], Update).expect("a key");
    }
    keys.add(&[b"d", b"parent", b"\x00one"], Reference)
        .expect("a key");
    let table = KeyHash::of(&[b"d", b"t"]);
    assert_eq!(keys.changed_tables(), [table]);
    assert_eq!(carried(&keys).keys().changed_tables(), [table]);
}

#[test]
fn rows_in_other_unique_indexes_than_the_primary_one_are_noticed() {
    let added = |row: &[u8], t| {
        let mut keys = KeyCollector::with_escalation(1);
        keys.add(&[b"d", b"t", b"\x00one"], Exclusive)
            .expect("a key");
        keys.add(&[b"d", b"t", b"\x00two"], Exclusive)
            .expect("a key");
        // The table stands for all its rows by now.
        keys.add(&[b"d", b"t", row], t).expect("a key");
        keys
    };
    assert!(!added(b"\x00three", Exclusive).secondary());
    assert!(!added(b"\x01three", Update).secondary());
    let mut keys = added(b"\x01three", Exclusive);
    assert!(keys.secondary());
    let table = KeyHash::of(&[b"d", b"t"]);
    keys.add(&[b"d", b"u", b"\x00one"], Exclusive)
        .expect("a key");
    keys.add(&[b"d", b"v", b"\x00one"], Update).expect("a key");
    assert_eq!(keys.secondary_tables(), [table]);
    let made = [table, KeyHash::of(&[b"d", b"u"])];
    assert_eq!(keys.made_tables(), made);
    keys.clear();
    assert!(!keys.secondary());
}

#[test]
fn changed_rows_that_may_be_named_by_a_digest_are_noticed() {
    let added = |row: &[u8], t| {
        let mut keys = KeyCollector::with_escalation(1);
        // The table stands for all its rows by then.
        for row in [b"\x00one", b"\x00two", row] {
            keys.add(&[b"d", b"t", row], t).expect("a key");
        }
        keys
    };
    let digest = &[7; 16];
    assert!(added(digest, Update).changes_by_digest());
    assert!(added(digest, Exclusive).changes_by_digest());
    assert!(!added(digest, Reference).changes_by_digest());
    assert!(!added(&digest[1..], Update).changes_by_digest());
    let mut keys = added(digest, Update);
    keys.clear();
    assert!(!keys.changes_by_digest());
}

#[test]
fn where_rows_are_made_the_write_set_tells_whether_a_secondary_key_is_named() {
    let made = |rows: &[(&[u8], KeyType)]| {
        let mut keys = KeyCollector::with_escalation(3);
        for (row, key_type) in rows {
            keys.add(&[b"d", b"t", row], *key_type).expect("a key");
        }
        let found = carried(&keys).keys().made_tables();
        let table = KeyHash::of(&[b"d", b"t"]);
        assert!(found.iter().all(|m| m.table == table));
        found.iter().map(|m| m.secondary).collect::<Vec<_>>()
    };
    let long = [0u8; 40];
    assert!(made(&[(b"\x00a", Update), (b"\x01a", Update)]).is_empty());
    assert!(made(&[(b"\x00a", Reference)]).is_empty());
    assert_eq!(made(&[(b"\x00a", Exclusive), (b"\x01b", Update)]), [false]);
    assert_eq!(
        made(&[(b"\x00a", Exclusive), (b"\x01b", Exclusive)]),
        [true]
    );
    assert_eq!(
        made(&[(&long, Exclusive)]),
        [true],
        "it may be of any index"
    );
    let many: Vec<_> = [b"\x00a", b"\x00b", b"\x00c", b"\x00d"]
        .map(|row| (&row[..], Exclusive))
        .into();
    assert_eq!(made(&many), [true], "of all rows nothing is known");
}

#[test]
fn rows_that_a_server_names_by_a_digest_are_noticed() {
    let named = |row: &[&[u8]]| {
        let mut keys = KeyCollector::new();
        keys.add(&[b"d", b"t", b"\x00one"], Update).expect("a key");
        let parts: Vec<&[u8]> = [&b"d"[..], b"u"].iter().chain(row).copied().collect();
        keys.add(&parts, Update).expect("a key");
        carried(&keys).keys().names_by_digest()
    };
    let digest = [7; 16];
    assert!(named(&[&digest]));
    for len in [15, 17, 40] {
        assert!(!named(&[&vec![7; len]]), "{len}");
    }
    assert!(!named(&[&digest, b"more"]) && !named(&[]));
}

#[test]
fn a_table_of_which_very_many_rows_are_only_looked_at_is_not_changed() {
    let parent = |row: &'static [u8]| [&b"d"[..], b"parent", row];
    let mut keys = KeyCollector::with_escalation(2);
    keys.add(&[b"d", b"child", b"\x00one"], Exclusive)
        .expect("a key");
    for row in [b"\x00one", b"\x00two", b"\x00six", b"\x00ten"] {
        keys.add(&parent(row), Reference).expect("a key");
    }
    let child = KeyHash::of(&[b"d", b"child"]);
    let table = KeyHash::of(&[b"d", b"parent"]);
    let head = carried(&keys);
    assert_eq!(keys.escalated_tables(), 1);
    assert_eq!(keys.changed_tables(), [child]);
    assert_eq!(head.keys().changed_tables(), [child]);
    assert_eq!(head.keys().made_tables().len(), 1);
    assert_eq!(head.keys().named_tables(), [child, table]);
    assert_eq!(
        (keys.len(), keys.bytes()),
        (head.keys().len(), head.keys().byte_len())
    );
    let whole = head.keys().iter().find(|k| k.whole_table);
    let whole = whole.expect("the parents are too many to list");
    assert!(whole.key_type == Exclusive && !whole.changes);
    // One of them is changed after all.
    keys.add(&parent(b"\x00one"), Update).expect("a key");
    let head = carried(&keys);
    assert_eq!(keys.changed_tables(), [child, table]);
    assert_eq!(head.keys().changed_tables(), [child, table]);
    assert_eq!(
        (keys.len(), keys.bytes()),
        (head.keys().len(), head.keys().byte_len())
    );
    assert_eq!(head.keys().len(), 2);
}

proptest! {
    /// Whoever counts what is changed counts the same, whatever is too many to list.
    #[test]
    fn both_ends_tell_the_same_tables(
        spec in key_specs(),
        escalation in 0usize..4,
        bytes in 0usize..200,
    ) {
        let mut keys = KeyCollector::with_escalation(escalation).within(bytes);
        let mut changed = BTreeSet::new();
        for (parts, t) in &spec {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            keys.add(&parts, *t).expect("parts");
            if parts.len() > 1 && t.changes() {
                changed.insert(KeyHash::of(&parts[..2]));
            }
        }
        let head = carried(&keys);
        prop_assert_eq!(keys.len(), head.keys().len());
        prop_assert_eq!(keys.bytes(), head.keys().byte_len());
        for got in [keys.changed_tables(), head.keys().changed_tables()] {
            prop_assert_eq!(got.len(), changed.len(), "no table twice");
            prop_assert_eq!(&BTreeSet::from_iter(got), &changed);
        }
    }

    #[test]
    fn rows_are_the_keys_below_their_tables(spec in key_specs(), escalation in 0usize..4) {
        let mut keys = KeyCollector::with_escalation(escalation);
        for (parts, t) in &spec {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            keys.add(&parts, *t).expect("parts");
        }
        let head = carried(&keys);
        let mut expected = Vec::new();
        let flow: ControlFlow<()> = head.keys().expand(|e| {
            if !e.key.prefix && e.hash != e.table {
                expected.push((e.table, e.hash, e.key.key_type));
            }
            ControlFlow::Continue(())
        });
        prop_assert!(flow.is_continue());
        let rows = head.keys().rows().into_iter();
        let rows: Vec<_> = rows.map(|r| (r.table, r.row, r.key_type)).collect();
        prop_assert_eq!(rows, expected);
    }
}

#[test]
fn a_row_that_has_two_names_is_added_by_both() {
    let added = |names: bool, row: &[u8], key_type| {
        let mut keys = KeyCollector::new();
        let parts: [&[u8]; 3] = [b"d", b"t", row];
        match names {
            true => keys.add_names(&parts, key_type),
            false => keys.add(&parts, key_type),
        }
        .expect("a key");
        let mut rows: Vec<_> = carried(&keys).keys().rows();
        rows.retain(|row| row.key_type == key_type);
        rows.into_iter().map(|row| row.row).collect::<Vec<_>>()
    };
    // A UUID, as a child names its parent, and as that names itself.
    let (child, parent) = (b"\0\x01abcdefghijklmno", b"\0\x01ABCDEFGHIJKLMNO");
    let named = added(true, parent, Exclusive);
    assert_eq!(named, added(false, parent, Exclusive));
    assert!(!added(false, child, Reference).contains(&named[0]));
    assert!(added(true, child, Reference).contains(&named[0]));
    assert_eq!(added(true, child, Reference).len(), 2);
    let mut keys = KeyCollector::new();
    assert!(keys.add_names(&[], Exclusive).is_err());
    keys.add_names(&[b"d"], Reference).expect("a key");
    keys.add_names(&[b"d", b"t", child, child], Reference)
        .expect("a key");
    assert_eq!(keys.len(), 2);
}
