//! What of a row is compared before it changes, besides its key, so that nothing is overwritten that
//! is not as the source had it.

use std::fmt::Write;

use dromon_binlog::{Cell, ColumnType, Value};
use sha2::{Digest, Sha256};

use super::rows::Cells;
use super::writer::{compared, put_cell, put_where};
use crate::catalog::TableInfo;
use crate::value::{Text, Unfit, VALUE_MAX, put_name, put_text};

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compare {
    /// The key.
    Key,
    /// Of an update what it overwrites, too.
    #[default]
    Changed,
    /// All of the row, one statement for each.
    Row,
}

/// A longer text goes as its SHA-256: with both values a statement might be longer than the target
/// takes.
const SAID_MAX: usize = 1024;
/// A longer text is not shown to people.
const SHOWN_MAX: usize = 64;

/// Whether an update says the value of this column.
pub(super) fn is_set(table: &TableInfo, n: usize, before: &Cells<'_>, after: &Cells<'_>) -> bool {
    let column = &table.columns[n];
    !column.generated && (column.on_update || before[n] != after[n])
}

/// Columns that are compared, without the key's. An image may lack some of them.
pub(super) fn columns(
    compare: Compare,
    table: &TableInfo,
    before: &Cells<'_>,
    after: Option<&Cells<'_>>,
) -> Vec<usize> {
    let wanted = |n: usize| match (compare, after) {
        (Compare::Key, _) | (Compare::Changed, None) => false,
        (Compare::Changed, Some(after)) => is_set(table, n, before, after),
        (Compare::Row, _) => true,
    };
    let others =
        (0..table.columns.len()).filter(|n| !table.key.contains(n) && !table.columns[*n].generated);
    others
        .filter(|n| before[*n] != Cell::Absent && wanted(*n))
        .collect()
}

/// A column, so that it is compared byte by byte: what a collation takes for equal may differ.
/// `of`: what stands before its name.
pub(super) fn put_column(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    n: usize,
    of: &[u8],
) {
    let number = types[n] == ColumnType::Set { bytes: 8 };
    if table.columns[n].charset.is_some() {
        out.extend_from_slice(b"BINARY ");
    } else if number {
        // Alone it would be a signed number.
        out.push(b'(');
    }
    out.extend_from_slice(of);
    put_name(out, table.columns[n].name.as_bytes());
    if number {
        out.extend_from_slice(b"|0)");
    }
}

/// The value that is compared with it.
pub(super) fn put_before(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    n: usize,
    cell: Cell<'_>,
) -> Result<(), Unfit> {
    let column = &table.columns[n];
    if let (ColumnType::Enum { .. }, Cell::Bytes(bytes)) = (types[n], cell)
        && bytes.iter().all(|b| *b == 0)
    {
        // The empty value of a wrong one: it can be compared, though not stored.
        out.push(b'0');
        return Ok(());
    }
    let text = match column.charset {
        Some(_) => Text::Stored,
        None => compared(table, n),
    };
    put_cell(out, types[n], cell, column.unsigned, text)
}

/// That a column is as it was.
pub(super) fn put_same(
    out: &mut Vec<u8>,
    table: &TableInfo,
    types: &[ColumnType],
    n: usize,
    cell: Cell<'_>,
) -> Result<(), Unfit> {
    if let Some(bytes) = text(types[n], cell).filter(|bytes| bytes.len() > SAID_MAX) {
        out.extend_from_slice(b"SHA2(");
        put_name(out, table.columns[n].name.as_bytes());
        out.extend_from_slice(b",256)<=>'");
        let hash = Sha256::digest(&bytes);
        let hex = hash.iter().fold(String::new(), |mut hex, b| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{b:02x}");
            hex
        });
        out.extend_from_slice(hex.as_bytes());
        out.push(b'\'');
        return Ok(());
    }
    put_column(out, table, types, n, b"");
    out.extend_from_slice(b"<=>");
    put_before(out, table, types, n, cell)
}

/// The bytes of a text.
fn text(column: ColumnType, cell: Cell<'_>) -> Option<Vec<u8>> {
    let Cell::Bytes(bytes) = cell else {
        return None;
    };
    match Value::decode(column, bytes, false, VALUE_MAX) {
        Ok(Value::Bytes(text)) => Some(text.into_owned()),
        _ => None,
    }
}

/// A question that says in words in which of these columns a row differs; no row if it is not
/// there.
pub(super) fn question(
    table: &TableInfo,
    types: &[ColumnType],
    before: &Cells<'_>,
    columns: &[usize],
) -> Result<Vec<u8>, Unfit> {
    let mut out = b"SELECT CONCAT_WS(', '".to_vec();
    for n in columns {
        out.extend_from_slice(b",IF(");
        put_same(&mut out, table, types, *n, before[*n])?;
        out.extend_from_slice(b",NULL,CONCAT(");
        let mut name = Vec::new();
        put_name(&mut name, table.columns[*n].name.as_bytes());
        let bytes = text(types[*n], before[*n]);
        if bytes.as_ref().is_some_and(|bytes| bytes.len() > SHOWN_MAX) {
            put_text(&mut out, &name, 0);
        } else {
            let mut found = name.clone();
            let mut wanted = Vec::new();
            put_before(&mut wanted, table, types, *n, before[*n])?;
            let charset = table.columns[*n].charset.as_deref();
            let (begin, end): (&[u8], &[u8]) = match (types[*n], charset) {
                (_, Some(charset)) => {
                    if bytes.is_some() {
                        wanted.splice(..0, format!("_{charset}").into_bytes());
                    }
                    (b"LEFT(CONVERT(", b" USING utf8mb4),64)")
                }
                // Else it would be shown with six digits, and the other one with all.
                (ColumnType::Float, _) => (b"(", b"+0e0)"),
                (ColumnType::Enum { .. } | ColumnType::Set { .. } | ColumnType::Bit { .. }, _) => {
                    (b"(", b"|0)")
                }
                _ if is_text(types[*n]) => (b"HEX(LEFT(", b",64))"),
                _ => (b"(", b")"),
            };
            found.splice(..0, begin.iter().copied());
            found.extend_from_slice(end);
            wanted.splice(..0, begin.iter().copied());
            wanted.extend_from_slice(end);
            name.extend_from_slice(b" is ");
            put_text(&mut out, &name, 0);
            out.extend_from_slice(b",QUOTE(");
            out.extend_from_slice(&found);
            out.extend_from_slice(b"),' instead of ',QUOTE(");
            out.extend_from_slice(&wanted);
            out.push(b')');
        }
        out.extend_from_slice(b"))");
    }
    out.extend_from_slice(b")FROM ");
    out.extend_from_slice(&table.quoted);
    out.extend_from_slice(b" WHERE ");
    put_where(&mut out, table, types, before, &table.key)?;
    Ok(out)
}

fn is_text(column: ColumnType) -> bool {
    matches!(
        column,
        ColumnType::Char { .. } | ColumnType::VarChar { .. } | ColumnType::Blob { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Style;
    use crate::compile::tests::{changed, rows};

    /// Row by row it is asked in words what differs.
    #[test]
    fn one_update_and_its_question() {
        let update = rows("plain", &[(Some((7, Some("it's"))), Some((7, None)))]);
        let all = changed(vec![update], Style::Single);
        let text = r"UPDATE `d`.`plain` FORCE INDEX(PRIMARY) SET `v`=NULL WHERE `id`=7 AND BINARY `v`<=>'it\'s' -- 1";
        let look = r"SELECT CONCAT_WS(', ',IF(BINARY `v`<=>'it\'s',NULL,CONCAT('`v` is ',QUOTE(LEFT(CONVERT(`v` USING utf8mb4),64)),' instead of ',QUOTE(LEFT(CONVERT(_latin1'it\'s' USING utf8mb4),64)))))FROM `d`.`plain` WHERE `id`=7";
        assert_eq!(all, [(text.to_owned(), Some(look.to_owned()))]);
        // Of a delete only the key counts.
        let delete = rows("plain", &[(Some((7, Some("a"))), None)]);
        let all = changed(vec![delete], Style::Single);
        let text = "DELETE FROM `d`.`plain` WHERE `id`=7 -- 1";
        assert_eq!(all, [(text.to_owned(), None)]);
    }

    /// What an update of the key takes along is compared.
    #[test]
    fn rows_that_move() {
        let (a, b) = (Some("a"), Some("b"));
        let statements = |name| {
            vec![
                rows(name, &[(Some((1, a)), Some((2, a)))]),
                rows(name, &[(Some((8, b)), Some((9, None)))]),
                rows(name, &[(Some((5, a)), None)]),
            ]
        };
        let texts = |style| {
            let all = changed(statements("plain"), style).into_iter();
            all.map(|(text, _)| text).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(Style::Folded),
            [
                "DELETE FROM `d`.`plain` WHERE `id` IN(5) -- 1",
                "DELETE FROM `d`.`plain` WHERE (`id`=1 AND BINARY `v`<=>'a') OR(`id`=8 AND BINARY `v`<=>'b') -- 2",
                "INSERT INTO `d`.`plain`(`id`,`v`)VALUES(2,'a'),(9,NULL) -- 2",
            ]
        );
        assert_eq!(
            texts(Style::Single)[..2],
            [
                "UPDATE `d`.`plain` SET `id`=2 WHERE `id`=1 -- 1",
                "UPDATE `d`.`plain` FORCE INDEX(PRIMARY) SET `id`=9,`v`=NULL WHERE `id`=8 AND BINARY `v`<=>'b' -- 1",
            ]
        );
    }

    /// As literals: a column of this type, and its bytes in a row.
    fn same(column: ColumnType, change: fn(&mut TableInfo), bytes: Cell<'_>) -> String {
        let mut table = crate::compile::tests::table("t");
        table.columns[1].charset = None;
        change(&mut table);
        let mut out = Vec::new();
        let types = [ColumnType::Int { bytes: 4 }, column];
        put_same(&mut out, &table, &types, 1, bytes).expect("it can be said");
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn values_that_are_compared_otherwise() {
        let plain = |column, bytes: &[u8]| same(column, |_| {}, Cell::Bytes(bytes));
        assert_eq!(plain(ColumnType::Enum { bytes: 2 }, &[0, 0]), "`v`<=>0");
        assert_eq!(plain(ColumnType::Set { bytes: 1 }, &[5]), "`v`<=>5");
        assert_eq!(
            plain(ColumnType::Set { bytes: 8 }, &[255; 8]),
            "(`v`|0)<=>18446744073709551615"
        );
        assert_eq!(
            plain(ColumnType::Float, &0.1f32.to_le_bytes()),
            "`v`<=>1.0000000149011612e-1"
        );
        let text = ColumnType::Blob { len_bytes: 2 };
        let null = same(
            text,
            |t| t.columns[1].charset = Some("ucs2".into()),
            Cell::Null,
        );
        assert_eq!(null, "BINARY `v`<=>NULL");
        let padded = |t: &mut TableInfo| t.columns[1].padded = Some(3);
        let char = ColumnType::Char { bytes: 3 };
        let padded = same(char, padded, Cell::Bytes(b"a"));
        assert_eq!(padded, "`v`<=>'a\0\0'");
        let hash = plain(text, &[b'a'; SAID_MAX + 1]);
        assert!(
            hash.starts_with("SHA2(`v`,256)<=>'") && hash.len() == 17 + 64 + 1,
            "{hash}"
        );
    }
}
