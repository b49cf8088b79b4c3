//! Updates of many rows by one statement: the target joins a list of what they shall be.
//!
//! ```text
//! UPDATE (SELECT NULL k0, NULL v0 FROM DUAL WHERE 0 UNION ALL VALUES(7,'a'),(9,'b'))n
//! STRAIGHT_JOIN db.t t FORCE INDEX(PRIMARY) ON t.id=n.k0 SET t.v=n.v0
//! ```
//!
//! Against `INSERT … ON DUPLICATE KEY UPDATE` a row costs the target a fourth less, and only what
//! changes goes there. Each row is found by its primary key and nothing else is locked: the list
//! comes first, and the index is named.

use dromon_binlog::{Change, ColumnType, Gtid, Value};

use super::rows::Cells;
use super::writer::{STATEMENT_BYTES, Writer, put_cell};
use super::{Expect, note};
use crate::catalog::TableInfo;
use crate::value::{Text, Unfit, put_name};

/// Fewer rows are not worth the two temporary tables that the target makes for it.
const LEAST: usize = 24;
/// Most rows in one statement.
const ROWS_MAX: usize = 2000;
/// A text with more bytes may make a temporary table one on disk.
const TEXT_MAX: usize = 250;

/// A row before and after.
pub(super) type Update<'r, 'a> = (&'r Cells<'a>, &'r Cells<'a>);

/// Whether the list says the same as literals would: keys are whole numbers, which compare alike
/// in any form, and what changes has a form in the list that is exact.
pub(super) fn fit(table: &TableInfo, types: &[ColumnType], rows: &[Update<'_, '_>]) -> bool {
    let number = |n: &usize| matches!(types.get(*n), Some(ColumnType::Int { .. }));
    if rows.len() < LEAST || table.key.is_empty() || !table.key.iter().all(number) {
        return false;
    }
    let key = |row: &Cells<'_>| {
        table.key.iter().all(|n| {
            let value = row[*n].value(types[*n], table.columns[*n].unsigned, 8);
            match value {
                Some(Ok(Value::Int(_))) => true,
                Some(Ok(Value::UInt(n))) => i64::try_from(n).is_ok(),
                _ => false,
            }
        })
    };
    let changed = changed(table, rows);
    let exact = |n: usize| match types[n] {
        // With the highest bit they are decimals in the list, which are taken for names.
        ColumnType::Bit { .. } | ColumnType::Set { bytes: 8 } => false,
        ColumnType::Int { .. }
        | ColumnType::Float
        | ColumnType::Double
        | ColumnType::Decimal { .. }
        | ColumnType::Year
        | ColumnType::Date
        | ColumnType::Time { .. }
        | ColumnType::DateTime { .. }
        | ColumnType::Timestamp { .. }
        | ColumnType::Enum { .. }
        | ColumnType::Set { .. } => true,
        _ => rows
            .iter()
            .all(|(_, after)| after[n].bytes().is_none_or(|bytes| bytes.len() <= TEXT_MAX)),
    };
    changed.iter().all(|n| exact(*n)) && rows.iter().all(|(before, _)| key(before))
}

/// Columns that a statement on these rows says.
fn changed(table: &TableInfo, rows: &[Update<'_, '_>]) -> Vec<usize> {
    let columns = table.columns.iter().enumerate();
    columns
        .filter(|(n, column)| {
            let differs = |(before, after): &Update<'_, '_>| before[*n] != after[*n];
            !column.generated && (column.on_update || rows.iter().any(differs))
        })
        .map(|(n, _)| n)
        .collect()
}

/// Adds the statements. Rows are [`fit`].
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
        let mut text = b"UPDATE(SELECT ".to_vec();
        for n in 0..table.key.len() {
            text.extend_from_slice(format!("NULL k{n},").as_bytes());
        }
        for n in 0..columns.len() {
            text.extend_from_slice(format!("NULL v{n},").as_bytes());
        }
        text.pop();
        text.extend_from_slice(b" FROM DUAL WHERE 0 UNION ALL VALUES");
        let mut taken = 0;
        for (before, after) in most {
            if taken > 0 && text.len() > STATEMENT_BYTES {
                break;
            }
            text.push(b'(');
            for n in &table.key {
                let unsigned = table.columns[*n].unsigned;
                put_cell(&mut text, types[*n], before[*n], unsigned, Text::Stored)?;
                text.push(b',');
            }
            for n in &columns {
                let unsigned = table.columns[*n].unsigned;
                put_cell(&mut text, types[*n], after[*n], unsigned, Text::Stored)?;
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
            put_name(&mut text, table.columns[*n].name.as_bytes());
            text.extend_from_slice(format!("=n.k{nth}").as_bytes());
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
            mend: None,
        };
        writer.add(&text, expect);
        rows = &rows[taken..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dromon_binlog::Cell;

    use super::*;
    use crate::catalog::ColumnInfo;
    use crate::compile::tests::{folded, rows};

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
            padded: None,
            on_update: false,
        };
        let table = TableInfo {
            name: "d.t".into(),
            quoted: b"t".to_vec(),
            column_list: Vec::new(),
            columns: vec![column("id"), column("v")],
            key: vec![0],
            unique: Vec::new(),
            indexes: Vec::new(),
            related: false,
            plain: true,
            transactional: true,
        };
        let high = [255u8; 8];
        let row = |v| vec![Cell::Bytes(&high), Cell::Bytes(v)];
        let (before, after) = (row(before), row(after));
        let rows: Vec<Update<'_, '_>> = vec![(&before, &after); LEAST];
        fit(&table, &[ColumnType::Int { bytes: 8 }, kind], &rows)
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
}
