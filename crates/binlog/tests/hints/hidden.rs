//! Columns that `information_schema` does not show, and table maps have.

use dromon_binlog::hints::{Barrier, TableSchema};

use crate::rules::{numbers, sizes, stream};
use crate::stream::{Stream, Val, column, insert, int};

const TIME: &str = "timestamp(6)";
const HASH: &str = "bigint(20)";

fn opaque(name: &str) -> TableSchema {
    TableSchema {
        opaque: true,
        ..numbers(name, &["id", "v"], &[&["id"]])
    }
}

/// A stream of two tables that the catalog knows with two columns each. The rows of the first have more, of
/// these types.
fn with_more(table: TableSchema, more: &[&str]) -> Stream {
    let mut s = stream(vec![table, numbers("n", &["id", "v"], &[&["id"]])]);
    let hidden = more.iter().map(|kind| column("hidden", kind, None));
    s.schemas[0].columns.extend(hidden);
    s
}

/// The first table's row.
fn row(s: &Stream, n: i32) -> Vec<Val> {
    let mut row = vec![int(n), int(n)];
    row.resize(s.schemas[0].columns.len(), Val::Null);
    row
}

fn barrier(s: &mut Stream) -> Option<Barrier> {
    let change = insert(0, row(s, 1));
    s.transaction(std::slice::from_ref(&change)).barrier
}

/// System versioned, with unique keys of long values, and both: as a whole.
#[test]
fn tables_with_hidden_columns_are_one_key() {
    for more in [
        &[TIME, TIME][..],
        &[HASH],
        &[HASH, HASH],
        &[TIME, TIME, HASH],
    ] {
        let mut s = with_more(opaque("o"), more);
        assert_eq!(barrier(&mut s), None, "{more:?}");
        let changed = |s: &Stream, n| insert(0, row(s, n));
        let two = [changed(&s, 1), changed(&s, 2)];
        assert_eq!(sizes(&mut s, &two), [1, 1], "{more:?}");
        let beside = [changed(&s, 3), insert(1, vec![int(3), int(3)])];
        assert_eq!(sizes(&mut s, &beside), [2], "{more:?}");
    }
}

/// A table that has more columns since, or is not known for having any that are hidden.
#[test]
fn other_columns_are_not_known() {
    for more in [
        &["int(11)"][..],
        &[TIME],
        &[HASH, TIME, TIME],
        &[TIME, TIME, "int(11)"],
    ] {
        let mut s = with_more(opaque("o"), more);
        let unknown = barrier(&mut s);
        assert!(
            matches!(unknown, Some(Barrier::UnknownTable(_))),
            "{more:?}: {unknown:?}"
        );
    }
    for plain in [
        numbers("p", &["id", "v"], &[&["id"]]),
        numbers("p", &["id", "v"], &[]),
    ] {
        let mut s = with_more(plain, &[TIME, TIME]);
        assert!(barrier(&mut s).is_some());
    }
    let mut s = with_more(opaque("o"), &[]);
    s.schemas[0].columns.truncate(1);
    let change = insert(0, vec![int(1)]);
    assert!(
        s.transaction(std::slice::from_ref(&change))
            .barrier
            .is_some()
    );
}

/// As `binlog_row_metadata = FULL` says what they are called, and of which columns the primary key is.
#[test]
fn hidden_columns_that_have_names() {
    for (names, key, known) in [
        (
            &[&b"id"[..], b"v", b"row_start", b"row_end"],
            &[0, 3][..],
            true,
        ),
        (
            &[b"id", b"v", b"DB_ROW_HASH_1", b"DB_ROW_HASH_2"],
            &[0],
            true,
        ),
        (&[b"id", b"w", b"row_start", b"row_end"], &[0, 3], false),
        (&[b"id", b"v", b"row_start", b"w"], &[0, 3], false),
        (&[b"id", b"v", b"row_start", b"row_end"], &[1, 3], false),
    ] {
        let more = match names[2].starts_with(b"DB") {
            true => [HASH, HASH],
            false => [TIME, TIME],
        };
        let mut s = with_more(opaque("o"), &more);
        let sized = |name: &&[u8]| [&[name.len() as u8][..], name].concat();
        let all: Vec<u8> = names.iter().flat_map(sized).collect();
        s.optional = [&[4, all.len() as u8], &all[..], &[8, key.len() as u8], key].concat();
        assert_eq!(barrier(&mut s).is_none(), known, "{names:?} {key:?}");
    }
}
