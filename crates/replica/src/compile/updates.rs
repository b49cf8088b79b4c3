//! Updates of many rows by one statement: the target joins a list of what they shall be.
//!
//! ```text
//! UPDATE (SELECT NULL k0, NULL v0, NULL b0 FROM DUAL WHERE 0 UNION ALL VALUES(7,'a','x'),(9,'b','y'))n
//! STRAIGHT_JOIN db.t t FORCE INDEX(PRIMARY) ON t.id=n.k0 AND t.v<=>n.b0 SET t.v=n.v0
//! ```
//!
//! `b0` is what was there before, if that is compared ([`Compare`]).
//!
//! Against `INSERT … ON DUPLICATE KEY UPDATE` a row costs the target a fourth less, and only what
//! changes goes there. Each row is found by its primary key and nothing else is locked: the list
//! comes first, and the index is named.

use dromon_binlog::{Cell, Change, ColumnType, Gtid, Value};

use super::compare::{Compare, is_set, put_before, put_column};
use super::rows::Cells;
use super::writer::{Writer, compared, put_cell, put_stored};
use super::{Expect, note};
use crate::catalog::TableInfo;
use crate::value::{Unfit, put_name};

/// Fewer rows are not worth the two temporary tables that the target makes for it.
const LEAST: usize = 24;
/// The same, against statements for each row.
const LEAST_COMPARED: usize = 12;
/// Most rows in one statement.
const ROWS_MAX: usize = 2000;
/// A text with more bytes may make a temporary table one on disk.
const TEXT_MAX: usize = 250;

/// Half of what a temporary table in memory may take by default, in bytes.
const MEMORY: usize = 8 << 20;
/// The same as [`LEAST_COMPARED`] where a TEXT, BLOB or JSON changes: then one of the temporary tables is
/// one on disk.
const LEAST_ON_DISK: usize = 64;

/// -0 as a FLOAT has it in a row.
const MINUS_ZERO: [u8; 4] = (-0f32).to_le_bytes();

/// A row before and after.
pub(super) type Update<'r, 'a> = (&'r Cells<'a>, &'r Cells<'a>);

/// Which rows go in lists, and the rest.
pub(super) fn split<'r, 'a>(
    compare: Compare,
    table: &TableInfo,
    types: &[ColumnType],
    rows: &[Update<'r, 'a>],
) -> (Vec<Update<'r, 'a>>, Vec<Update<'r, 'a>>) {
    let none = || (Vec::new(), rows.to_vec());
    let on_disk = changed(table, rows)
        .iter()
        .any(|n| matches!(types[*n], ColumnType::Blob { .. }));
    let least = match (compare, on_disk) {
        (Compare::Key, false) => LEAST,
        // An insert that finds its rows takes half as long.
        (Compare::Key, true) if table.unique.is_empty() => return none(),
        (_, true) => LEAST_ON_DISK,
        (_, false) => LEAST_COMPARED,
    };
    if rows.len() < least || table.key.is_empty() {
        return none();
    }
    let fits = |columns: &[usize], row: &Update<'_, '_>| {
        let mut columns = columns.iter();
        let keys = table
            .key
            .iter()
            .all(|n| key(compare, table, types, row.0, *n));
        keys && columns.all(|n| exact(compare, table, types, row, *n))
    };
    if compare == Compare::Key {
        let columns = changed(table, rows);
        return match rows.iter().all(|row| fits(&columns, row)) {
            true => (rows.to_vec(), Vec::new()),
            false => none(),
        };
    }
    // A row must not keep all others out of the list: first those go that change what no list says,
    // then those with long texts in what others change.
    type Both<T> = (Vec<T>, Vec<T>);
    let own = |row: &Update<'r, 'a>| fits(&changed(table, &[*row]), row);
    let (some, mut rest): Both<Update<'r, 'a>> = rows.iter().partition(|row| own(row));
    let columns = changed(table, &some);
    let (listed, long): Both<Update<'r, 'a>> = some.iter().partition(|row| fits(&columns, row));
    rest.extend(long);
    match listed.len() < least {
        true => none(),
        false => (listed, rest),
    }
}

/// Whether the target finds a row by this column of its key as by a literal. Whole numbers compare
/// alike in any form.
fn key(
    compare: Compare,
    table: &TableInfo,
    types: &[ColumnType],
    before: &Cells<'_>,
    n: usize,
) -> bool {
    match types.get(n) {
        Some(ColumnType::Int { .. }) => {
            match before[n].value(types[n], table.columns[n].unsigned, 8) {
                Some(Ok(Value::Int(_))) => true,
                Some(Ok(Value::UInt(n))) => i64::try_from(n).is_ok(),
                _ => false,
            }
        }
        _ if compare == Compare::Key => false,
        Some(
            ColumnType::Decimal { .. }
            | ColumnType::Date
            | ColumnType::Time { .. }
            | ColumnType::DateTime { .. }
            | ColumnType::Timestamp { .. },
        ) => true,
        Some(ColumnType::Char { .. } | ColumnType::VarChar { .. }) => is_short(before[n]),
        _ => false,
    }
}

/// Whether the list says a column as literals would.
fn exact(
    compare: Compare,
    table: &TableInfo,
    types: &[ColumnType],
    (before, after): &Update<'_, '_>,
    n: usize,
) -> bool {
    match types[n] {
        // With the highest bit they are decimals in the list, which are taken for names.
        ColumnType::Bit { .. } | ColumnType::Set { bytes: 8 } => false,
        // -0 is 0 there, on the way from one temporary table to the other.
        ColumnType::Float => after[n] != Cell::Bytes(&MINUS_ZERO),
        // 99 is not 1999 there.
        ColumnType::Year => compare == Compare::Key || !table.columns[n].short_year,
        ColumnType::Int { .. }
        | ColumnType::Double
        | ColumnType::Decimal { .. }
        | ColumnType::Date
        | ColumnType::Time { .. }
        | ColumnType::DateTime { .. }
        | ColumnType::Timestamp { .. }
        | ColumnType::Enum { .. }
        | ColumnType::Set { .. } => true,
        _ => is_short(after[n]) && (compare == Compare::Key || is_short(before[n])),
    }
}

fn is_short(cell: Cell<'_>) -> bool {
    cell.bytes().is_none_or(|bytes| bytes.len() <= TEXT_MAX)
}

/// Columns that a statement on these rows says.
pub(super) fn changed(table: &TableInfo, rows: &[Update<'_, '_>]) -> Vec<usize> {
    let columns = 0..table.columns.len();
    let set = |n: usize| move |(before, after): &Update<'_, '_>| is_set(table, n, before, after);
    columns.filter(|n| rows.iter().any(set(*n))).collect()
}

/// Of these columns those that can be compared: not the key's, nor what images lack.
fn others(table: &TableInfo, columns: &[usize], rows: &[Update<'_, '_>]) -> Vec<usize> {
    let there = |n: usize| rows.iter().all(|(before, _)| before[n] != Cell::Absent);
    let others = columns.iter().copied();
    others
        .filter(|n| !table.key.contains(n) && there(*n))
        .collect()
}

/// How many rows the target holds in memory until it has found all: it makes room for the longest
/// values of what changes.
fn in_memory(types: &[ColumnType], columns: &[usize]) -> usize {
    let widths = columns.iter().map(|n| match types[*n] {
        ColumnType::Char { bytes } | ColumnType::VarChar { bytes } => usize::from(bytes),
        _ => 8,
    });
    (MEMORY / widths.sum::<usize>().max(1)).max(LEAST)
}

/// Adds the statements, of rows that [`split`] gave.
pub(super) fn write(
    writer: &mut Writer<'_>,
    table: &TableInfo,
    types: &[ColumnType],
    gtid: Gtid,
    mut rows: &[Update<'_, '_>],
) -> Result<(), Unfit> {
    while !rows.is_empty() {
        let most = &rows[..rows.len().min(ROWS_MAX)];
        let columns = changed(table, most);
        let most = &most[..most.len().min(in_memory(types, &columns))];
        let compared_too = match writer.compare() {
            Compare::Key => Vec::new(),
            _ => others(table, &columns, most),
        };
        let mut text = b"UPDATE(SELECT ".to_vec();
        for n in 0..table.key.len() {
            text.extend_from_slice(format!("NULL k{n},").as_bytes());
        }
        for n in 0..columns.len() {
            text.extend_from_slice(format!("NULL v{n},").as_bytes());
        }
        for n in 0..compared_too.len() {
            text.extend_from_slice(format!("NULL b{n},").as_bytes());
        }
        text.pop();
        text.extend_from_slice(b" FROM DUAL WHERE 0 UNION ALL VALUES");
        let mut taken = 0;
        for (before, after) in most {
            if taken > 0 && text.len() > writer.statement_bytes() {
                break;
            }
            text.push(b'(');
            for n in &table.key {
                let unsigned = table.columns[*n].unsigned;
                put_cell(
                    &mut text,
                    types[*n],
                    before[*n],
                    unsigned,
                    compared(table, *n),
                )?;
                text.push(b',');
            }
            for n in &columns {
                put_stored(&mut text, table, types, *n, after[*n])?;
                text.push(b',');
            }
            for n in &compared_too {
                put_before(&mut text, table, types, *n, before[*n])?;
                text.push(b',');
            }
            text.pop();
            text.extend_from_slice(b"),");
            taken += 1;
        }
        text.pop();
        text.extend_from_slice(b")n STRAIGHT_JOIN ");
        text.extend_from_slice(&table.quoted);
        text.extend_from_slice(b" t FORCE INDEX(PRIMARY)ON ");
        for (nth, n) in table.key.iter().enumerate() {
            text.extend_from_slice(if nth > 0 { b" AND t." } else { b"t." });
            let column = &table.columns[*n];
            put_name(&mut text, column.name.as_bytes());
            text.extend_from_slice(format!("=n.k{nth}").as_bytes());
            if let (Some(_), Some(collation)) = (&column.charset, &column.collation) {
                // Of two columns neither's counts more.
                text.extend_from_slice(format!(" COLLATE {collation}").as_bytes());
            }
        }
        for (nth, n) in compared_too.iter().enumerate() {
            text.extend_from_slice(b" AND ");
            put_column(&mut text, table, types, *n, b"t.");
            text.extend_from_slice(format!("<=>n.b{nth}").as_bytes());
        }
        text.extend_from_slice(b" SET ");
        for (nth, n) in columns.iter().enumerate() {
            text.extend_from_slice(if nth > 0 { b",t." } else { b"t." });
            put_name(&mut text, table.columns[*n].name.as_bytes());
            text.extend_from_slice(format!("=n.v{nth}").as_bytes());
        }
        let expect = Expect {
            rows: Some(taken as u64),
            note: note(gtid, table, Change::Update, b""),
            mend: Vec::new(),
            look: None,
        };
        writer.add(&text, expect);
        rows = &rows[taken..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::ColumnInfo;
    use crate::compile::Style;
    use crate::compile::tests::{changed, folded, rows};
    use crate::compile::writer::STATEMENT_BYTES;

    const HEAD: &str = "UPDATE(SELECT NULL k0,NULL v0 FROM DUAL WHERE 0 UNION ALL VALUES";

    fn tail(table: &str, rows: usize) -> String {
        format!(
            ")n STRAIGHT_JOIN `d`.`{table}` t FORCE INDEX(PRIMARY)ON t.`id`=n.k0 SET t.`v`=n.v0 -- {rows}"
        )
    }

    /// Updates of so many rows of a table, the last ones first, each a statement.
    fn updates(table: &str, count: usize, text: &str) -> Vec<String> {
        let row = |id| {
            let id = id as i32 - 5;
            rows(table, &[(Some((id, Some("a"))), Some((id, Some(text))))])
        };
        folded((0..count).rev().map(row).collect())
    }

    fn list(count: usize, text: &str) -> String {
        let rows: Vec<String> = (0..count as i64)
            .map(|n| format!("({},'{text}')", n - 5))
            .collect();
        rows.join(",")
    }

    #[test]
    fn many_are_one_statement_in_the_order_of_their_keys() {
        let all = updates("plain", LEAST, "b");
        assert_eq!(
            all,
            [format!(
                "{HEAD}{}{}",
                list(LEAST, "b"),
                tail("plain", LEAST)
            )]
        );
        let few = updates("plain", LEAST - 1, "b");
        assert!(few[0].contains("ON DUPLICATE KEY UPDATE"), "{few:?}");
    }

    #[test]
    fn other_unique_keys_stay_as_they_are_or_in_order() {
        let row = |id| rows("also", &[(Some((id, Some("a"))), Some((id, None)))]);
        let many = folded((0..LEAST as i32).map(row).collect());
        assert_eq!(many.len(), 1, "{many:?}");
        assert!(many[0].ends_with(&tail("also", LEAST)), "{many:?}");
        // The column that changes is unique.
        assert_eq!(updates("unique", LEAST, "b").len(), LEAST);
    }

    #[test]
    fn long_lists_are_several() {
        let all = updates("plain", ROWS_MAX + 7, "b");
        assert_eq!(all.len(), 2);
        assert!(all[0].ends_with(&tail("plain", ROWS_MAX)));
        assert!(all[1].ends_with(&tail("plain", 7)));
        let long = "x".repeat(TEXT_MAX);
        let all = updates("plain", ROWS_MAX, &long);
        assert!(all.len() > 1 && all.iter().all(|one| one.starts_with(HEAD)));
        let most = STATEMENT_BYTES + 2 * TEXT_MAX;
        assert!(all.iter().all(|one| one.len() < most));
        let of = |one: &String| {
            let rows = one.rsplit(" -- ").next();
            rows.and_then(|n| n.parse::<usize>().ok())
                .expect("a number")
        };
        assert_eq!(all.iter().map(of).sum::<usize>(), ROWS_MAX);
    }

    /// A temporary table of the target makes room for the longest values.
    #[test]
    fn as_many_rows_as_stay_in_memory() {
        let of = |kind| in_memory(&[ColumnType::Int { bytes: 4 }, kind], &[1]);
        assert!(of(ColumnType::Int { bytes: 8 }) > ROWS_MAX);
        assert!(of(ColumnType::VarChar { bytes: 1020 }) > ROWS_MAX);
        assert_eq!(of(ColumnType::VarChar { bytes: 16_000 }), 524);
        assert_eq!(
            in_memory(&[ColumnType::VarChar { bytes: 65_000 }; 90], &[7; 90]),
            LEAST
        );
    }

    /// With a TEXT one of them is on disk.
    #[test]
    fn texts_and_blobs_need_more_rows() {
        let kind = ColumnType::Blob { len_bytes: 2 };
        let (before, after) = ([1, 0, b'a'], [1, 0, b'b']);
        let many = |count: usize, compare, unique: &[usize]| {
            let mut table = crate::compile::tests::table("t");
            table.unique = unique.to_vec();
            let ids: Vec<[u8; 4]> = (0..count as u32).map(u32::to_le_bytes).collect();
            let row = |id, v| vec![Cell::Bytes(id), Cell::Bytes(v)];
            let images: Vec<_> = (ids.iter())
                .map(|id| (row(&id[..], &before[..]), row(&id[..], &after[..])))
                .collect();
            let rows: Vec<Update<'_, '_>> = images.iter().map(|(a, b)| (a, b)).collect();
            let types = [ColumnType::Int { bytes: 4 }, kind];
            split(compare, &table, &types, &rows).0.len()
        };
        assert_eq!(many(LEAST_ON_DISK - 1, Compare::Changed, &[]), 0);
        assert_eq!(many(LEAST_ON_DISK, Compare::Changed, &[]), LEAST_ON_DISK);
        assert_eq!(many(500, Compare::Key, &[]), 0);
        assert_eq!(many(500, Compare::Key, &[0]), 500);
    }

    /// What a list might say in another way than a literal.
    #[test]
    fn other_keys_and_long_texts_go_as_before() {
        let longer = updates("plain", LEAST, &"x".repeat(TEXT_MAX + 1));
        assert!(longer[0].contains("ON DUPLICATE KEY UPDATE"));
        // Its primary key is the text.
        let row = |id: i32| {
            let text = format!("k{id}");
            rows(
                "text",
                &[(Some((id, Some(&text))), Some((id + 1, Some(&text))))],
            )
        };
        let text = folded((0..LEAST as i32).map(row).collect());
        assert!(text[0].contains("ON DUPLICATE KEY UPDATE"), "{text:?}");
    }

    /// Two columns, the second one of this type, and how it changes in all rows.
    fn is_fit(kind: ColumnType, unsigned: bool, before: &[u8], after: &[u8]) -> bool {
        let column = |name: &str| ColumnInfo {
            name: name.into(),
            unsigned,
            generated: false,
            charset: None,
            collation: None,
            short_year: false,
            digits: None,
            padded: None,
            on_update: false,
            auto_increment: false,
            stored: None,
        };
        let table = TableInfo {
            name: "d.t".into(),
            quoted: b"t".to_vec(),
            column_list: Vec::new(),
            columns: vec![column("id"), column("v")],
            key: vec![0],
            unique: Vec::new(),
            indexes: Vec::new(),
            keys: Vec::new(),
            related: false,
            plain: true,
            local: false,
            transactional: true,
            care: crate::catalog::Care::default(),
        };
        let high = [255u8; 8];
        let row = |v| vec![Cell::Bytes(&high), Cell::Bytes(v)];
        let (before, after) = (row(before), row(after));
        let rows: Vec<Update<'_, '_>> = vec![(&before, &after); LEAST];
        let types = [ColumnType::Int { bytes: 8 }, kind];
        split(Compare::Key, &table, &types, &rows).1.is_empty()
    }

    #[test]
    fn numbers_that_would_be_decimals() {
        let of = |kind| is_fit(kind, false, &[0; 8], &[1; 8]);
        assert!(of(ColumnType::Int { bytes: 8 }));
        assert!(of(ColumnType::Set { bytes: 4 }));
        assert!(!of(ColumnType::Set { bytes: 8 }));
        assert!(!of(ColumnType::Bit { bits: 64 }));
        // A key above the largest signed number.
        let int = ColumnType::Int { bytes: 8 };
        assert!(!is_fit(int, true, &[0; 8], &[1; 8]));
    }

    #[test]
    fn minus_zero_goes_by_itself() {
        let of = |n: f32| is_fit(ColumnType::Float, false, &[0; 4], &n.to_le_bytes());
        assert!(of(0.0) && of(-0.1) && !of(-0.0));
    }

    /// Updates of so many rows from `a` to `b`, but for some to a text of their own, what changes
    /// compared.
    fn compared_updates(table: &str, count: i32, others: &[(i32, &str)]) -> Vec<String> {
        let row = |id| {
            let other = others.iter().find(|(of, _)| *of == id);
            let to = other.map_or("b", |(_, text)| text);
            rows(table, &[(Some((id, Some("a"))), Some((id, Some(to))))])
        };
        let all = changed((0..count).map(row).collect(), Style::Folded);
        all.into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn what_changes_is_compared_in_the_list() {
        let count = LEAST_COMPARED as i32;
        let all = compared_updates("plain", count, &[]);
        let list: Vec<String> = (0..count).map(|id| format!("({id},'b','a')")).collect();
        assert_eq!(
            all,
            [format!(
                "UPDATE(SELECT NULL k0,NULL v0,NULL b0 FROM DUAL WHERE 0 UNION ALL VALUES{})n STRAIGHT_JOIN `d`.`plain` t \
                 FORCE INDEX(PRIMARY)ON t.`id`=n.k0 AND BINARY t.`v`<=>n.b0 SET t.`v`=n.v0 -- {count}",
                list.join(",")
            )]
        );
        let few = compared_updates("plain", count - 1, &[]);
        assert_eq!(few.len(), LEAST_COMPARED - 1);
        assert_eq!(
            few[0],
            "UPDATE `d`.`plain` FORCE INDEX(PRIMARY) SET `v`='b' WHERE `id`=0 AND BINARY `v`<=>'a' -- 1"
        );
    }

    /// A row whose text is too long goes by itself.
    #[test]
    fn one_long_text_among_many() {
        let count = LEAST_COMPARED as i32;
        let long = "x".repeat(TEXT_MAX + 1);
        let all = compared_updates("plain", count + 1, &[(3, &long)]);
        assert_eq!(all.len(), 2);
        assert!(!all[0].contains("(3,") && all[0].ends_with(&format!("-- {count}")));
        assert!(
            all[1].contains(&long) && all[1].contains("WHERE `id`=3 AND"),
            "{all:?}"
        );
        // Too few are left for a list.
        let all = compared_updates("plain", count, &[(3, &long)]);
        assert_eq!(all.len(), LEAST_COMPARED);
    }

    proptest! {
        /// However long their texts are.
        #[test]
        fn each_row_goes_once(lens in prop::collection::vec(prop::sample::select(vec![1, TEXT_MAX, TEXT_MAX + 1]), 0..40)) {
            let texts: Vec<String> = lens.iter().map(|len| "x".repeat(*len)).collect();
            let others: Vec<(i32, &str)> = (0..).zip(texts.iter().map(String::as_str)).collect();
            let all = compared_updates("plain", lens.len() as i32, &others);
            let short = lens.iter().filter(|len| **len <= TEXT_MAX).count();
            let listed = if short < LEAST_COMPARED { 0 } else { short };
            prop_assert_eq!(all.len(), lens.len() - listed + usize::from(listed > 0));
            for (id, len) in lens.iter().enumerate() {
                let in_list = |one: &&String| one.contains(&format!("({id},'x"));
                let alone = |one: &&String| one.contains(&format!("WHERE `id`={id} AND BINARY `v`<=>'a'"));
                let expected = usize::from(listed > 0 && *len <= TEXT_MAX);
                prop_assert_eq!(all.iter().filter(in_list).count(), expected);
                prop_assert_eq!(all.iter().filter(alone).count(), 1 - expected);
            }
        }
    }

    /// A key of text is compared as its column does.
    #[test]
    fn texts_as_keys() {
        let row = |id: i32| {
            let text = format!("k{id}");
            rows(
                "text",
                &[(Some((id, Some(&text))), Some((id + 1, Some(&text))))],
            )
        };
        let all = changed((0..LEAST_COMPARED as i32).map(row).collect(), Style::Folded);
        assert_eq!(all.len(), 1);
        let text = &all[0].0;
        assert!(text.contains("VALUES(_latin1'k0',1,0),"), "{text}");
        let on = "ON t.`v`=n.k0 COLLATE latin1_bin AND t.`id`<=>n.b0 SET t.`id`=n.v0";
        assert!(text.contains(on), "{text}");
    }
}
