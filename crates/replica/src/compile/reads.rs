//! Reads of what a unit will touch, so that its pages are in memory when it comes.
//!
//! Nothing depends on what they find: they only make the target read pages, of the primary key and
//! of each other index whose entry changes, at the place where an entry is and where it will be.

use std::collections::BTreeSet;

use dromon_binlog::ColumnType;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Options;
use super::rows::{Cells, Piece, pieces};
use super::writer::put_where;
use crate::catalog::TableInfo;
use crate::unit::Unit;
use crate::value::{Unfit, put_name};

/// Keys in a statement: a few, so that several connections share the work of a unit.
const KEYS: usize = 4;

/// Conditions of one index of a table.
struct Wanted<'a> {
    table: &'a TableInfo,
    /// Of the primary key: none.
    index: Option<usize>,
    conditions: BTreeSet<Vec<u8>>,
}

type Found<'a> = FxHashMap<(*const TableInfo, Option<usize>), Wanted<'a>>;

fn want<'a>(
    found: &mut Found<'a>,
    table: &'a TableInfo,
    types: &[ColumnType],
    index: Option<usize>,
    image: &Cells<'_>,
) -> Result<(), Unfit> {
    let mut condition = Vec::new();
    if let Some(n) = index {
        put_where(&mut condition, table, types, image, &table.indexes[n].1)?;
        condition.extend_from_slice(b" AND ");
    }
    put_where(&mut condition, table, types, image, &table.key)?;
    let of = found
        .entry((std::ptr::from_ref(table), index))
        .or_insert_with(|| Wanted {
            table,
            index,
            conditions: BTreeSet::new(),
        });
    of.conditions.insert(condition);
    Ok(())
}

fn row<'a>(
    found: &mut Found<'a>,
    table: &'a TableInfo,
    types: &[ColumnType],
    before: Option<&Cells<'_>>,
    after: Option<&Cells<'_>>,
) -> Result<(), Unfit> {
    for image in before.iter().chain(after.iter()) {
        want(found, table, types, None, image)?;
    }
    for (n, (_, columns)) in table.indexes.iter().enumerate() {
        if let (Some(a), Some(b)) = (before, after)
            && columns.iter().chain(&table.key).all(|c| a[*c] == b[*c])
        {
            continue;
        }
        for image in before.iter().chain(after.iter()) {
            want(found, table, types, Some(n), image)?;
        }
    }
    Ok(())
}

/// Statements that read what a unit touches, and how many keys each reads. A unit that cannot be
/// read ahead gives none.
pub fn reads(unit: &Unit, options: &Options<'_>) -> Vec<(Vec<u8>, usize)> {
    let Ok(pieces) = pieces(unit, options, &FxHashSet::default()) else {
        return Vec::new();
    };
    let mut found = Found::default();
    for piece in &pieces {
        let Piece::Rows(part) = piece else { continue };
        let Ok(rows) = part.event.rows(&part.data, &part.types) else {
            continue;
        };
        for image in rows.flatten() {
            let (before, after) = (image.before.as_ref(), image.after.as_ref());
            // What no literal says is not read ahead.
            let _ = row(&mut found, &part.table, &part.types, before, after);
        }
    }
    let mut all = Vec::new();
    let mut wanted: Vec<Wanted<'_>> = found.into_values().collect();
    wanted.sort_by(|a, b| (&a.table.name, a.index).cmp(&(&b.table.name, b.index)));
    for one in &wanted {
        let conditions: Vec<&Vec<u8>> = one.conditions.iter().collect();
        for some in conditions.chunks(KEYS) {
            let mut text = b"SELECT COUNT(*) FROM ".to_vec();
            text.extend_from_slice(&one.table.quoted);
            text.extend_from_slice(b" FORCE INDEX(");
            match one.index {
                None => text.extend_from_slice(b"PRIMARY"),
                Some(n) => put_name(&mut text, one.table.indexes[n].0.as_bytes()),
            }
            text.extend_from_slice(b") WHERE ");
            for (n, condition) in some.iter().enumerate() {
                text.extend_from_slice(if n == 0 { b"(" } else { b" OR (" });
                text.extend_from_slice(condition);
                text.push(b')');
            }
            all.push((text, some.len()));
        }
    }
    all
}
