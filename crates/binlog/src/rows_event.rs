//! Events that carry changed rows.
//!
//! ```text
//! table id, 6 bytes (4 in early MySQL 5.1), flags u16
//! version 2: length u16, itself included, and extra data
//! number of columns
//! one bit for each column: stands in the rows (of an update: in those before)
//! an update: one bit for each column: stands in the rows after
//! rows to the end; if compressed as in compress.rs
//! ```

use std::borrow::Cow;

use crate::bytes::{Reader, bitmap_len, put_le, put_lenenc};
use crate::compress;
use crate::error::{EventError, Flaw};
use crate::header::EventType;

/// What happened to the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They were inserted: each is one image, that after.
    Insert,
    /// They were updated: each is two images, before and after.
    Update,
    /// They were deleted: each is one image, that before.
    Delete,
}

/// Flags of events with rows.
pub mod rows_flags {
    /// The last of its statement: table ids end here.
    pub const STATEMENT_END: u16 = 1;
    /// foreign_key_checks was off.
    pub const NO_FOREIGN_KEYS: u16 = 2;
    /// unique_checks was off.
    pub const RELAXED_UNIQUE: u16 = 4;
}

/// Changed rows of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsEvent<'a> {
    /// What happened to them.
    pub change: Change,
    /// 1 or 2.
    pub version: u8,
    /// Whether `stored` is compressed.
    pub compressed: bool,
    /// Names the table map before it.
    pub table_id: u64,
    /// See [`rows_flags`].
    pub flags: u16,
    /// Version 2: extra data, without their length.
    pub extra: &'a [u8],
    /// Number of columns of the table.
    pub width: usize,
    /// Which columns stand in the images: of an update in those before.
    pub columns: &'a [u8],
    /// Of an update: which stand in the images after. Else empty.
    pub columns_after: &'a [u8],
    /// The rows as they stand in the event.
    pub stored: &'a [u8],
    kind: EventType,
    stored_at: usize,
}

/// What servers allow.
pub(crate) const COLUMNS_MAX: usize = 4096;

/// Change, version, compressed.
fn nature(kind: EventType) -> Option<(Change, u8, bool)> {
    use Change::{Delete, Insert, Update};
    Some(match kind {
        EventType::WRITE_ROWS_V1 => (Insert, 1, false),
        EventType::UPDATE_ROWS_V1 => (Update, 1, false),
        EventType::DELETE_ROWS_V1 => (Delete, 1, false),
        EventType::WRITE_ROWS_V2 => (Insert, 2, false),
        EventType::UPDATE_ROWS_V2 => (Update, 2, false),
        EventType::DELETE_ROWS_V2 => (Delete, 2, false),
        EventType::WRITE_ROWS_COMPRESSED_V1 => (Insert, 1, true),
        EventType::UPDATE_ROWS_COMPRESSED_V1 => (Update, 1, true),
        EventType::DELETE_ROWS_COMPRESSED_V1 => (Delete, 1, true),
        EventType::WRITE_ROWS_COMPRESSED_V2 => (Insert, 2, true),
        EventType::UPDATE_ROWS_COMPRESSED_V2 => (Update, 2, true),
        EventType::DELETE_ROWS_COMPRESSED_V2 => (Delete, 2, true),
        _ => return None,
    })
}

impl<'a> RowsEvent<'a> {
    /// Of version 1, not compressed. `columns`: of an update those of the images before and after.
    pub(crate) fn new(
        change: Change,
        kind: EventType,
        (table_id, flags): (u64, u16),
        width: usize,
        (columns, columns_after): (&'a [u8], &'a [u8]),
        stored: &'a [u8],
    ) -> RowsEvent<'a> {
        RowsEvent {
            change,
            version: 1,
            compressed: false,
            table_id,
            flags,
            extra: &[],
            width,
            columns,
            columns_after,
            stored,
            kind,
            stored_at: 0,
        }
    }

    /// Whether such events carry rows that can be read here.
    pub fn is(kind: EventType) -> bool {
        nature(kind).is_some()
    }

    pub(crate) fn decode(
        r: &mut Reader<'a>,
        kind: EventType,
        id_len: usize,
    ) -> Result<RowsEvent<'a>, EventError> {
        let Some((change, version, compressed)) = nature(kind) else {
            return Err(r.error(Flaw::Unsupported("it carries no rows")));
        };
        let table_id = r.le(id_len, "table id")?;
        let flags = r.u16("flags")?;
        let extra = match version {
            1 => &[][..],
            _ => {
                let len = r.u16("length of the extra data")?;
                match len.checked_sub(2) {
                    Some(n) => r.take(usize::from(n), "extra data")?,
                    None => return Err(r.bad("length of the extra data", u64::from(len))),
                }
            }
        };
        let width = r.lenenc_len("number of columns")?;
        if width > COLUMNS_MAX {
            return Err(r.bad("number of columns", width as u64));
        }
        let columns = r.take(bitmap_len(width), "bits of columns")?;
        let columns_after = match change {
            Change::Update => r.take(bitmap_len(width), "bits of columns")?,
            _ => &[],
        };
        let stored_at = r.offset();
        Ok(RowsEvent {
            change,
            version,
            compressed,
            table_id,
            flags,
            extra,
            width,
            columns,
            columns_after,
            stored: r.rest(),
            kind,
            stored_at,
        })
    }

    pub(crate) fn encode(&self, id_len: usize, out: &mut Vec<u8>) {
        put_le(out, self.table_id, id_len);
        put_le(out, u64::from(self.flags), 2);
        if self.version == 2 {
            put_le(out, self.extra.len() as u64 + 2, 2);
            out.extend_from_slice(self.extra);
        }
        put_lenenc(out, self.width as u64);
        out.extend_from_slice(self.columns);
        out.extend_from_slice(self.columns_after);
        out.extend_from_slice(self.stored);
    }

    /// The bytes of the rows, if they are at most `max` where they are
    /// compressed.
    pub fn data(&self, max: usize) -> Result<Cow<'a, [u8]>, EventError> {
        // A statement that changed nothing may end with an empty event.
        if !self.compressed || self.stored.is_empty() {
            return Ok(Cow::Borrowed(self.stored));
        }
        match compress::decompress(self.stored, max) {
            Ok(data) => Ok(Cow::Owned(data)),
            Err(damage) => Err(EventError {
                kind: self.kind,
                offset: self.stored_at,
                flaw: Flaw::Compressed(damage),
            }),
        }
    }

    /// A reader of its rows' bytes.
    pub(crate) fn reader<'d>(&self, data: &'d [u8]) -> Reader<'d> {
        Reader::new(data, self.stored_at, self.kind)
    }
}
