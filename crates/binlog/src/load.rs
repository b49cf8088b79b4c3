//! LOAD DATA as a statement: blocks of its file, then the statement.
//!
//! ```text
//! begin 17, append 9   file u32, block to the end
//! delete 11            file u32
//! execute 18
//!  0  as a statement's first 13 bytes      26  as a statement from 13 on; never
//! 13  file u32                                 compressed
//! 17  begin of the file's name u32
//! 21  its end u32
//! 25  duplicates u8
//! ```
//!
//! Begin and end are bytes of the statement. MariaDB writes it anew: what stands
//! there is ` INFILE '…' INTO`, with LOCAL, REPLACE or IGNORE where they belong.

use crate::bytes::Reader;
use crate::error::{EventError, Flaw};
use crate::header::{EventType, HEADER_LEN};
use crate::query::{Query, StatusVars};

/// A block of a file. BEGIN_LOAD_QUERY begins the file, APPEND_BLOCK goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBlock<'a> {
    /// Which file, until it is loaded or deleted.
    pub file: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl<'a> FileBlock<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<FileBlock<'a>, EventError> {
        Ok(FileBlock {
            file: r.u32("file")?,
            bytes: r.rest(),
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.file.to_le_bytes());
        out.extend_from_slice(self.bytes);
    }
}

/// What LOAD DATA does with a row whose key is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// It ends with an error.
    Error,
    /// It leaves the row out: IGNORE, or the file came from the client.
    Ignore,
    /// It takes the new row: REPLACE.
    Replace,
}

/// LOAD DATA of the blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadQuery<'a> {
    /// The statement. What it depends on: [`LoadQuery::status`].
    pub query: Query<'a>,
    /// Which file.
    pub file: u32,
    /// Where in the statement the file is named.
    pub name_begin: u32,
    /// Where that ends.
    pub name_end: u32,
    /// What becomes of duplicates.
    pub duplicates: Duplicates,
}

impl<'a> LoadQuery<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<LoadQuery<'a>, EventError> {
        let bad = |at: usize, field, value: u32| EventError {
            kind: EventType::EXECUTE_LOAD_QUERY,
            offset: HEADER_LEN + at,
            flaw: Flaw::Value {
                field,
                value: u64::from(value),
            },
        };
        let head = Query::head(r)?;
        let file = r.u32("file")?;
        let begin = r.u32("begin of the file's name")?;
        let end = r.u32("end of the file's name")?;
        let duplicates = match r.u8("duplicates")? {
            0 => Duplicates::Error,
            1 => Duplicates::Ignore,
            2 => Duplicates::Replace,
            other => return Err(bad(25, "duplicates", u32::from(other))),
        };
        let query = Query::body(head, r, EventType::EXECUTE_LOAD_QUERY)?;
        if end as usize > query.stored.len() {
            return Err(bad(21, "end of the file's name", end));
        }
        if begin > end {
            return Err(bad(17, "begin of the file's name", begin));
        }
        Ok(LoadQuery {
            query,
            file,
            name_begin: begin,
            name_end: end,
            duplicates,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.query.encode_head(out);
        out.extend_from_slice(&self.file.to_le_bytes());
        out.extend_from_slice(&self.name_begin.to_le_bytes());
        out.extend_from_slice(&self.name_end.to_le_bytes());
        out.push(match self.duplicates {
            Duplicates::Error => 0,
            Duplicates::Ignore => 1,
            Duplicates::Replace => 2,
        });
        self.query.encode_body(out);
    }

    /// What the statement depends on, in the order of the event.
    pub fn status(&self) -> StatusVars<'a> {
        self.query
            .status_at(HEADER_LEN + 26, EventType::EXECUTE_LOAD_QUERY)
    }

    /// The statement before, in and behind the place where the file is named.
    pub fn parts(&self) -> [&'a [u8]; 3] {
        let text = self.query.stored;
        // What was made by hand may say anything.
        let end = (self.name_end as usize).min(text.len());
        let begin = (self.name_begin as usize).min(end);
        [&text[..begin], &text[begin..end], &text[end..]]
    }
}
