//! Keys out of rows: what a changed row touches.

use std::borrow::Cow;

use twox_hash::XxHash3_64;

use crate::column::ColumnType;
use crate::rows::{Cell, Image, Row};

use super::fold::{Folded, fold};
use super::keys::{Added, KeyCollector, Modes, Touch};
use super::schema::{Foreign, Index, Part, Table};

/// What an image says of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// This value.
    Value(u64),
    /// One that is not known.
    Vague,
    /// A part of it is NULL: it equals no other.
    Null,
}

/// Computes keys of rows. Has a buffer, to be used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowKeys {
    buffer: Vec<u8>,
}

impl RowKeys {
    pub(super) fn find(
        &mut self,
        node: u64,
        parts: Option<&[Part]>,
        types: &[ColumnType],
        image: &[Cell<'_>],
    ) -> Found {
        let Some(parts) = parts else {
            return Found::Vague;
        };
        self.buffer.clear();
        self.buffer.extend_from_slice(&node.to_le_bytes());
        let mut vague = false;
        for part in parts {
            match image[part.column] {
                Cell::Null => return Found::Null,
                Cell::Absent => vague = true,
                Cell::Bytes(bytes) => {
                    let column = types[part.column];
                    let folded = fold(column, part.equality, part.prefix, bytes, &mut self.buffer);
                    vague |= folded == Folded::Vague;
                }
            }
        }
        match vague {
            true => Found::Vague,
            false => Found::Value(XxHash3_64::oneshot(&self.buffer)),
        }
    }

    /// Adds what a row touches. Afterwards all of the table may count as
    /// written, as there are too many values of it, or one has no name.
    pub(crate) fn add(
        &mut self,
        table: &Table,
        types: &[ColumnType],
        row: &Row<'_>,
        keys: &mut KeyCollector,
    ) {
        let after = row
            .after
            .as_ref()
            .map(|after| filled(after, row.before.as_ref()));
        let after = after.as_deref();
        for image in row.before.as_deref().into_iter().chain(after) {
            self.written(table, types, image, keys);
            for key in &table.foreign {
                self.read(key, types, image, keys);
            }
        }
        match (&row.before, after) {
            (Some(_), None) => touch_all(&table.on_delete, keys),
            (Some(before), Some(after)) => {
                for index in table.indexes.iter().filter(|i| !i.on_change.is_empty()) {
                    if changes(index, before, after) {
                        touch_all(&index.on_change, keys);
                    }
                }
            }
            _ => {}
        }
    }

    /// A version of a row: it was there, or will be.
    fn written(
        &mut self,
        table: &Table,
        types: &[ColumnType],
        image: &[Cell<'_>],
        keys: &mut KeyCollector,
    ) {
        let mut named = false;
        for index in &table.indexes {
            if keys.is_written(table.node) {
                return;
            }
            let found = self.find(index.node, index.parts.as_deref(), types, image);
            named |= index.unique && found != Found::Null;
            match found {
                Found::Null => {}
                Found::Vague => {
                    keys.touch(Touch::new(table.node, Modes::BELOW_WRITE));
                    keys.touch(Touch::new(index.node, Modes::WRITE));
                }
                Found::Value(value) => {
                    if keys.value(table.node, index.node, value, true) == Added::Many {
                        touch_all(&table.whole, keys);
                        return;
                    }
                }
            }
        }
        // Two transactions that change this row have nothing in common so far.
        if !named {
            touch_all(&table.whole, keys);
        }
    }

    /// The row that a foreign key names: it must be there as long as this one.
    fn read(
        &mut self,
        key: &Foreign,
        types: &[ColumnType],
        image: &[Cell<'_>],
        keys: &mut KeyCollector,
    ) {
        if key.columns.iter().any(|n| image[*n] == Cell::Null) {
            return;
        }
        match self.find(key.parent_index, key.parts.as_deref(), types, image) {
            Found::Null => {}
            Found::Vague => {
                keys.touch(Touch::new(key.parent_table, Modes::BELOW_READ));
                keys.touch(Touch::new(key.parent_index, Modes::READ));
            }
            Found::Value(value) => {
                if keys.value(key.parent_table, key.parent_index, value, false) == Added::Many {
                    keys.all_read(key.parent_table);
                }
            }
        }
    }
}

/// The image after an update: what does not stand in it stayed as it was.
pub(super) fn filled<'i, 'a>(
    after: &'i Image<'a>,
    before: Option<&Image<'a>>,
) -> Cow<'i, [Cell<'a>]> {
    match before {
        Some(before) if after.contains(&Cell::Absent) => {
            let both = after.iter().zip(before);
            let cell = both.map(|(after, before)| match after {
                Cell::Absent => *before,
                cell => *cell,
            });
            Cow::Owned(cell.collect())
        }
        _ => Cow::Borrowed(after),
    }
}

/// Whether an update gives a row other values in this index, by their bytes:
/// what equals only by its collation counts as another.
fn changes(index: &Index, before: &[Cell<'_>], after: &[Cell<'_>]) -> bool {
    let Some(parts) = &index.parts else {
        return true;
    };
    parts
        .iter()
        .any(|part| before[part.column] != after[part.column])
}

/// All of these tables.
pub(crate) fn touch_all(touches: &[Touch], keys: &mut KeyCollector) {
    for touch in touches {
        match touch.modes {
            Modes::WRITE => keys.all_written(touch.node),
            _ => keys.all_read(touch.node),
        }
    }
}
