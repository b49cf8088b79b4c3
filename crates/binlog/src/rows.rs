//! Rows out of an event: which columns each has, and their bytes.
//!
//! ```text
//! image   one bit for each column that stands in it: is NULL
//!         the values of those that stand in it and are not NULL
//! ```
//!
//! An insert has one image after, a delete one before, an update both.

use crate::bytes::{Reader, bit, bitmap_len};
use crate::column::ColumnType;
use crate::error::{EventError, Flaw};
use crate::rows_event::{Change, RowsEvent};
use crate::value::{Value, ValueError};

/// What an image says of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// Nothing: `binlog_row_image` is not FULL.
    Absent,
    /// NULL.
    Null,
    /// The value's bytes, without the length in front of them.
    Bytes(&'a [u8]),
}

impl<'a> Cell<'a> {
    /// The value's bytes, if it has some.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Cell::Bytes(bytes) => Some(bytes),
            Cell::Absent | Cell::Null => None,
        }
    }

    /// The value, if there is one. `unsigned`, `max`: see [`Value::decode`].
    pub fn value(
        self,
        column: ColumnType,
        unsigned: bool,
        max: usize,
    ) -> Option<Result<Value<'a>, ValueError>> {
        match self {
            Cell::Absent => None,
            Cell::Null => Some(Ok(Value::Null)),
            Cell::Bytes(bytes) => Some(Value::decode(column, bytes, unsigned, max)),
        }
    }
}

/// The cells of all columns of a table.
pub type Image<'a> = Vec<Cell<'a>>;

/// One changed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// What it was; of updates and deletes.
    pub before: Option<Image<'a>>,
    /// What it became; of updates and inserts.
    pub after: Option<Image<'a>>,
}

/// The rows of an event, one by one. It ends after an error.
///
/// Rows whose images have no column at all (an insert of defaults alone, under
/// `binlog_row_image=MINIMAL`) take no bytes: how many there are, and which,
/// cannot be told from the event. They are an error.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    reader: Reader<'a>,
    columns: &'a [ColumnType],
    change: Change,
    present: &'a [u8],
    present_after: &'a [u8],
    /// Rows take no bytes.
    countless: bool,
}

impl<'a> RowsEvent<'a> {
    /// Its rows. `data` are those of [`RowsEvent::data`], `columns` those of
    /// the table map with its table id.
    pub fn rows<'d>(
        &'d self,
        data: &'d [u8],
        columns: &'d [ColumnType],
    ) -> Result<Rows<'d>, EventError> {
        let reader = self.reader(data);
        if columns.len() != self.width {
            return Err(reader.error(Flaw::Value {
                field: "number of columns, being that of another table map,",
                value: self.width as u64,
            }));
        }
        if columns.iter().any(|column| !column.is_possible()) {
            return Err(reader.error(Flaw::Unsupported("no table has such columns")));
        }
        let (present, present_after) = match self.change {
            Change::Insert => (&[][..], self.columns),
            Change::Delete => (self.columns, &[][..]),
            Change::Update => (self.columns, self.columns_after),
        };
        let none = |map| !(0..self.width).any(|n| bit(map, n));
        Ok(Rows {
            reader,
            columns,
            change: self.change,
            present,
            present_after,
            // An event without a table has no rows: it ends a statement.
            countless: self.width > 0 && none(present) && none(present_after),
        })
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, EventError>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.reader.left();
        if std::mem::take(&mut self.countless) {
            let flaw = Flaw::Unsupported("no column stands in its rows: nobody can count them");
            let error = self.reader.error(flaw);
            self.reader.rest();
            return Some(Err(error));
        }
        if left == 0 {
            return None;
        }
        let row = match self.row() {
            // Without a table it would go on for ever.
            Ok(_) if self.reader.left() == left => {
                Err(self.reader.error(Flaw::Excess { count: left }))
            }
            row => row,
        };
        if row.is_err() {
            self.reader.rest();
        }
        Some(row)
    }
}

impl<'a> Rows<'a> {
    fn row(&mut self) -> Result<Row<'a>, EventError> {
        let before = match self.change {
            Change::Insert => None,
            _ => Some(self.image(self.present)?),
        };
        let after = match self.change {
            Change::Delete => None,
            _ => Some(self.image(self.present_after)?),
        };
        Ok(Row { before, after })
    }

    fn image(&mut self, present: &[u8]) -> Result<Image<'a>, EventError> {
        let count = (0..self.columns.len()).filter(|n| bit(present, *n)).count();
        let nulls = self.reader.take(bitmap_len(count), "bits of NULLs")?;
        let mut nth = 0;
        let mut cells = Vec::with_capacity(self.columns.len());
        for (n, column) in self.columns.iter().enumerate() {
            cells.push(if !bit(present, n) {
                Cell::Absent
            } else {
                nth += 1;
                match bit(nulls, nth - 1) {
                    true => Cell::Null,
                    false => Cell::Bytes(column.take(&mut self.reader)?),
                }
            });
        }
        Ok(cells)
    }
}
