//! Events of updates, put together: of each row only what finds it and what it becomes.

use crate::bytes::{bit, bitmap_len};
use crate::column::ColumnType;
use crate::header::EventType;
use crate::rows::{Cell, Image};
use crate::rows_event::{Change, RowsEvent, rows_flags};

/// Rows of one table that are updated, as under `binlog_row_image=MINIMAL`.
#[derive(Clone, Debug)]
pub struct Updates<'t> {
    types: &'t [ColumnType],
    before: Vec<u8>,
    after: Vec<u8>,
    stored: Vec<u8>,
    count: usize,
}

/// One bit for each column that `stands`.
fn bitmap(width: usize, stands: &[usize]) -> Vec<u8> {
    let mut map = vec![0; bitmap_len(width)];
    for n in stands {
        map[n / 8] |= 1 << (n % 8);
    }
    map
}

impl<'t> Updates<'t> {
    /// Of a table with columns of these types. `before`: columns that stand in the images before,
    /// `after`: in those after, in any order.
    ///
    /// # Panics
    /// If one of them is none of the table's.
    pub fn new(types: &'t [ColumnType], before: &[usize], after: &[usize]) -> Updates<'t> {
        let all = before.iter().chain(after);
        assert!(all.max().is_none_or(|n| *n < types.len()), "columns");
        Updates {
            types,
            before: bitmap(types.len(), before),
            after: bitmap(types.len(), after),
            stored: Vec::new(),
            count: 0,
        }
    }

    /// Adds a row. False: it lacks a column, or a value is none of its type; then it is not added.
    #[must_use]
    pub fn row(&mut self, before: &Image<'_>, after: &Image<'_>) -> bool {
        let at = self.stored.len();
        let done = put_image(&mut self.stored, self.types, &self.before, before)
            && put_image(&mut self.stored, self.types, &self.after, after);
        match done {
            true => self.count += 1,
            false => self.stored.truncate(at),
        }
        done
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> usize {
        self.stored.len()
    }

    /// The rows as the last event of a statement, of the table map with this id.
    pub fn event(&self, table_id: u64) -> RowsEvent<'_> {
        RowsEvent::new(
            Change::Update,
            EventType::UPDATE_ROWS_V1,
            (table_id, rows_flags::STATEMENT_END),
            self.types.len(),
            (&self.before, &self.after),
            &self.stored,
        )
    }
}

fn put_image(out: &mut Vec<u8>, types: &[ColumnType], present: &[u8], image: &Image<'_>) -> bool {
    if image.len() != types.len() {
        return false;
    }
    let stands = |n: &usize| bit(present, *n);
    let at = out.len();
    let count = (0..types.len()).filter(stands).count();
    out.resize(at + bitmap_len(count), 0);
    for (nth, n) in (0..types.len()).filter(stands).enumerate() {
        match image[n] {
            Cell::Absent => return false,
            Cell::Null => out[at + nth / 8] |= 1 << (nth % 8),
            Cell::Bytes(bytes) => {
                if !types[n].put(bytes, out) {
                    return false;
                }
            }
        }
    }
    true
}
