//! Names for what two write sets have in common.
//!
//! Write sets are hashes. Whoever wants to say which key two transactions meet in goes through the
//! rows of one of them once more, and computes its hashes again until one of them is found.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::column::ColumnType;
use crate::event::{Event, Payload};
use crate::format::Format;
use crate::rows::Cell;
use crate::rows_event::RowsEvent;
use crate::table_map::TableMap;

use super::collect::Use;
use super::keys::WriteSet;
use super::rows::{Found, RowKeys, filled};
use super::schema::{Catalog, Part, TableName};

/// What two write sets have in common, so that they must not run side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Sorted.
    nodes: Vec<u64>,
}

impl Meeting {
    /// Of these two. Of barriers it is not known.
    pub fn of(one: &WriteSet, other: &WriteSet) -> Meeting {
        Meeting {
            nodes: one.meets(other),
        }
    }

    /// How many things: keys mostly.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none, or none is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn has(&self, node: u64) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }
}

/// Where two write sets meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// The table.
    pub table: TableName,
    /// Columns of the key, by their places in the table; empty: all of the table.
    pub columns: Vec<usize>,
    /// Their values, as they stand in rows; empty: any.
    pub values: Vec<(ColumnType, Vec<u8>)>,
}

/// Looks for a name. To be given all events of a transaction, or of several ones in their order.
#[derive(Debug)]
pub struct Namer<'c> {
    catalog: &'c Catalog,
    meeting: &'c Meeting,
    /// As they were last seen, by their ids: most are repeated word for word.
    maps: FxHashMap<u64, (Vec<u8>, Arc<Use>)>,
    rows: RowKeys,
    /// Rows that are still looked at.
    left: usize,
    /// Most bytes of rows that are decompressed.
    bytes: usize,
}

impl<'c> Namer<'c> {
    /// By the catalog from which the write sets were computed. Looks at so many rows at most, and
    /// decompresses no rows of more bytes.
    pub fn new(catalog: &'c Catalog, meeting: &'c Meeting, rows: usize, bytes: usize) -> Namer<'c> {
        Namer {
            catalog,
            meeting,
            maps: FxHashMap::default(),
            rows: RowKeys::default(),
            left: rows,
            bytes,
        }
    }

    /// Whether it has looked at as many rows as it was told, and will find nothing more.
    pub fn is_tired(&self) -> bool {
        self.left == 0
    }

    /// Takes the next event. Gives where the two meet, if this event shows it.
    pub fn event(&mut self, event: &Event<'_>, format: &Format) -> Option<Met> {
        match event.decode(format) {
            Ok(Payload::TableMap(map)) => self.table_map(&map, event, format),
            Ok(Payload::Rows(rows)) => self.changed_rows(&rows),
            _ => None,
        }
    }

    /// What no row shows: a table, or an index, that counts as a whole, because of a foreign key.
    pub fn rest(&self) -> Option<Met> {
        let mut known = self.catalog.known();
        known.find_map(|(n, _)| self.whole(n))
    }

    fn table_map(&mut self, map: &TableMap<'_>, event: &Event<'_>, format: &Format) -> Option<Met> {
        let seen = self.maps.get(&map.table_id);
        if seen.is_some_and(|(body, _)| body == event.body()) {
            return None;
        }
        let of = Arc::new(Use::of(Some(self.catalog), map, format.flavour()));
        self.maps
            .insert(map.table_id, (event.body().to_vec(), Arc::clone(&of)));
        match &*of {
            Use::Unknown(_) => None,
            Use::Whole(n) | Use::Rows(n, _) => self.whole(*n),
        }
    }

    /// Whether they meet in all of a table, or of an index.
    fn whole(&self, n: usize) -> Option<Met> {
        let table = self.catalog.table(n);
        let columns = match self.meeting.has(table.node) {
            true => Vec::new(),
            false => {
                let mut indexes = table.indexes.iter();
                let index = indexes.find(|index| self.meeting.has(index.node))?;
                columns_of(index.parts.as_deref())
            }
        };
        Some(Met {
            table: self.catalog.name(n),
            columns,
            values: Vec::new(),
        })
    }

    fn changed_rows(&mut self, event: &RowsEvent<'_>) -> Option<Met> {
        let of = Arc::clone(&self.maps.get(&event.table_id)?.1);
        let Use::Rows(n, types) = &*of else {
            return None;
        };
        if self.left == 0 {
            return None;
        }
        let data = event.data(self.bytes).ok()?;
        for row in event.rows(&data, types).ok()? {
            let row = row.ok()?;
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            let after = row.after.as_ref();
            let after = after.map(|after| filled(after, row.before.as_ref()));
            for image in row.before.as_deref().into_iter().chain(after.as_deref()) {
                let met = self.image(*n, types, image);
                if met.is_some() {
                    return met;
                }
            }
        }
        None
    }

    /// Whether a row, as it was or as it will be, has a key in which they meet.
    fn image(&mut self, n: usize, types: &[ColumnType], image: &[Cell<'_>]) -> Option<Met> {
        let catalog = self.catalog;
        let table = catalog.table(n);
        for index in &table.indexes {
            let parts = index.parts.as_deref();
            if self.meets(index.node, parts, types, image) {
                return Some(Met {
                    table: catalog.name(n),
                    columns: columns_of(parts),
                    values: values_of(parts, types, image),
                });
            }
        }
        for key in &table.foreign {
            let parts = key.parts.as_deref();
            if self.meets(key.parent_index, parts, types, image) {
                let mut known = catalog.known();
                let (n, parent) = known.find(|(_, table)| table.node == key.parent_table)?;
                let mut indexes = parent.indexes.iter();
                let index = indexes.find(|index| index.node == key.parent_index)?;
                return Some(Met {
                    table: catalog.name(n),
                    columns: columns_of(index.parts.as_deref()),
                    values: values_of(parts, types, image),
                });
            }
        }
        None
    }

    fn meets(
        &mut self,
        node: u64,
        parts: Option<&[Part]>,
        types: &[ColumnType],
        image: &[Cell<'_>],
    ) -> bool {
        match self.rows.find(node, parts, types, image) {
            Found::Value(value) => self.meeting.has(value),
            Found::Vague | Found::Null => false,
        }
    }
}

fn columns_of(parts: Option<&[Part]>) -> Vec<usize> {
    let parts = parts.unwrap_or_default().iter();
    parts.map(|part| part.column).collect()
}

fn values_of(
    parts: Option<&[Part]>,
    types: &[ColumnType],
    image: &[Cell<'_>],
) -> Vec<(ColumnType, Vec<u8>)> {
    let parts = parts.unwrap_or_default().iter();
    let value = |part: &Part| match image[part.column] {
        Cell::Bytes(bytes) => (types[part.column], bytes.to_vec()),
        // A key with one of these has no value.
        Cell::Null | Cell::Absent => (types[part.column], Vec::new()),
    };
    parts.map(value).collect()
}
