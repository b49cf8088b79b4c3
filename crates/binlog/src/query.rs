//! Statements.
//!
//! ```text
//!  0  connection u32          13  status variables
//!  4  seconds it took u32         default database, a zero byte
//!  8  length of the database u8   statement to the end; if compressed as in
//!  9  error code u16              compress.rs
//! 11  length of the status u16
//! ```

use std::borrow::Cow;

use crate::bytes::{Reader, put_len_u8};
use crate::compress;
use crate::error::{EventError, Flaw};
use crate::header::{EventType, HEADER_LEN};

/// Of a compressed statement so many bytes are looked at.
const BEGIN_LEN: usize = 64;

/// A statement with what it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The connection on the primary; names temporary tables.
    pub thread_id: u32,
    /// How long it ran, in seconds.
    pub exec_seconds: u32,
    /// The error it ended with; 0: none.
    pub error: u16,
    /// The bytes of the status variables, see [`Query::status`].
    pub status: &'a [u8],
    /// The default database.
    pub database: &'a [u8],
    /// The statement as it stands in the event.
    pub stored: &'a [u8],
    /// Whether that is compressed.
    pub compressed: bool,
}

impl<'a> Query<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>, kind: EventType) -> Result<Query<'a>, EventError> {
        Query::body(Query::head(r)?, r, kind)
    }

    /// The first 13 bytes.
    pub(crate) fn head(r: &mut Reader<'a>) -> Result<Head, EventError> {
        Ok(Head {
            thread_id: r.u32("thread id")?,
            exec_seconds: r.u32("execution time")?,
            database_len: r.u8("length of the database")?,
            error: r.u16("error code")?,
            status_len: r.u16("length of the status")?,
        })
    }

    /// From the status variables on.
    pub(crate) fn body(
        head: Head,
        r: &mut Reader<'a>,
        kind: EventType,
    ) -> Result<Query<'a>, EventError> {
        let status = r.take(usize::from(head.status_len), "status")?;
        let database = r.take(usize::from(head.database_len), "database")?;
        r.zero("end of the database")?;
        Ok(Query {
            thread_id: head.thread_id,
            exec_seconds: head.exec_seconds,
            error: head.error,
            status,
            database,
            stored: r.rest(),
            compressed: kind == EventType::QUERY_COMPRESSED,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        self.encode_body(out);
    }

    pub(crate) fn encode_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.thread_id.to_le_bytes());
        out.extend_from_slice(&self.exec_seconds.to_le_bytes());
        put_len_u8(out, self.database.len());
        out.extend_from_slice(&self.error.to_le_bytes());
        let status_len = u16::try_from(self.status.len()).expect("a status of at most 64 KiB");
        out.extend_from_slice(&status_len.to_le_bytes());
    }

    pub(crate) fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.status);
        out.extend_from_slice(self.database);
        out.push(0);
        out.extend_from_slice(self.stored);
    }

    /// The statement, if it is at most `max` bytes where it is compressed.
    pub fn text(&self, max: usize) -> Result<Cow<'a, [u8]>, EventError> {
        if !self.compressed {
            return Ok(Cow::Borrowed(self.stored));
        }
        match compress::decompress(self.stored, max) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(damage) => Err(EventError {
                kind: EventType::QUERY_COMPRESSED,
                offset: HEADER_LEN + 14 + self.status.len() + self.database.len(),
                flaw: Flaw::Compressed(damage),
            }),
        }
    }

    /// What the statement begins with, whether or not it is compressed, and however long it is: at least as much as
    /// tells of what kind it is. Empty if its compression is damaged.
    pub fn begin(&self) -> Cow<'a, [u8]> {
        match self.compressed {
            false => Cow::Borrowed(self.stored),
            true => Cow::Owned(compress::begin(self.stored, BEGIN_LEN)),
        }
    }

    /// What the statement depends on, in the order of the event.
    pub fn status(&self) -> StatusVars<'a> {
        self.status_at(HEADER_LEN + 13, EventType::QUERY)
    }

    /// The same for a type of event in which they stand at another byte.
    pub(crate) fn status_at(&self, base: usize, kind: EventType) -> StatusVars<'a> {
        StatusVars {
            reader: Reader::new(self.status, base, kind),
        }
    }
}

/// The fixed part.
pub(crate) struct Head {
    thread_id: u32,
    exec_seconds: u32,
    database_len: u8,
    error: u16,
    status_len: u16,
}

/// One thing that a statement depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusVar<'a> {
    /// Bits of foreign_key_checks, unique_checks, autocommit and others.
    Flags(u32),
    /// sql_mode.
    SqlMode(u64),
    /// Always "std".
    Catalog(&'a [u8]),
    /// auto_increment_increment and auto_increment_offset.
    AutoIncrement(u16, u16),
    /// Numbers of character_set_client, collation_connection, collation_server.
    Charset(u16, u16, u16),
    /// time_zone.
    TimeZone(&'a [u8]),
    /// Number of lc_time_names.
    LcTimeNames(u16),
    /// Number of the database's collation.
    DatabaseCharset(u16),
    /// Tables that a multi-table update changes, one bit for each.
    UpdatedTables(u64),
    /// Of no meaning today.
    MasterDataWritten(u32),
    /// User and host that a definition names.
    Invoker(&'a [u8], &'a [u8]),
    /// Databases it touches; `None`: too many to name.
    Databases(Option<Vec<&'a [u8]>>),
    /// Microseconds of the time at which it began.
    Microseconds(u32),
    /// explicit_defaults_for_timestamp (MySQL).
    ExplicitTimestampDefaults(bool),
    /// The DDL's own transaction number.
    DdlXid(u64),
    /// Number of default_collation_for_utf8mb4 (MySQL).
    Utf8mb4Collation(u16),
    /// sql_require_primary_key (MySQL).
    RequirePrimaryKey(u8),
    /// default_table_encryption (MySQL).
    TableEncryption(u8),
    /// Extra flags of the group's GTID event, and the seqno at which an ALTER
    /// began if this is its end.
    AlterPhase(u8, Option<u64>),
    /// Default collations of character sets (MariaDB 11): pairs of numbers.
    CollationMap(Vec<(u16, u16)>),
    /// A code unknown here; nothing behind it can be read.
    Unknown(u8, &'a [u8]),
}

/// The status variables of a statement, one by one. It ends after an error.
#[derive(Clone, Debug)]
pub struct StatusVars<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for StatusVars<'a> {
    type Item = Result<StatusVar<'a>, EventError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.left() == 0 {
            return None;
        }
        let var = self.read();
        if var.is_err() {
            self.reader.rest();
        }
        Some(var)
    }
}

impl<'a> StatusVars<'a> {
    fn read(&mut self) -> Result<StatusVar<'a>, EventError> {
        let r = &mut self.reader;
        Ok(match r.u8("status code")? {
            0 => StatusVar::Flags(r.u32("flags")?),
            1 => StatusVar::SqlMode(r.u64("sql_mode")?),
            2 => {
                let name = r.short_bytes("catalog")?;
                r.zero("end of the catalog")?;
                StatusVar::Catalog(name)
            }
            3 => StatusVar::AutoIncrement(r.u16("increment")?, r.u16("offset")?),
            4 => StatusVar::Charset(
                r.u16("character set")?,
                r.u16("character set")?,
                r.u16("character set")?,
            ),
            5 => StatusVar::TimeZone(r.short_bytes("time zone")?),
            6 => StatusVar::Catalog(r.short_bytes("catalog")?),
            7 => StatusVar::LcTimeNames(r.u16("lc_time_names")?),
            8 => StatusVar::DatabaseCharset(r.u16("character set")?),
            9 => StatusVar::UpdatedTables(r.u64("updated tables")?),
            10 => StatusVar::MasterDataWritten(r.u32("length")?),
            11 => StatusVar::Invoker(r.short_bytes("user")?, r.short_bytes("host")?),
            12 => StatusVar::Databases(databases(r)?),
            13 | 128 => StatusVar::Microseconds(r.le(3, "microseconds")? as u32),
            16 => StatusVar::ExplicitTimestampDefaults(r.u8("switch")? != 0),
            17 | 129 => StatusVar::DdlXid(r.u64("transaction id")?),
            18 => StatusVar::Utf8mb4Collation(r.u16("collation")?),
            19 => StatusVar::RequirePrimaryKey(r.u8("switch")?),
            20 => StatusVar::TableEncryption(r.u8("switch")?),
            130 => {
                use crate::gtid_event::gtid_extra::{COMMIT_ALTER, ROLLBACK_ALTER};
                let flags = r.u8("extra flags")?;
                let begin = match flags & (COMMIT_ALTER | ROLLBACK_ALTER) {
                    0 => None,
                    _ => Some(r.u64("seqno of the begin")?),
                };
                StatusVar::AlterPhase(flags, begin)
            }
            131 => {
                let n = r.u8("number of collations")?;
                let pair = |_| Ok((r.u16("character set")?, r.u16("collation")?));
                StatusVar::CollationMap((0..n).map(pair).collect::<Result<_, _>>()?)
            }
            other => StatusVar::Unknown(other, r.rest()),
        })
    }
}

/// More databases than this are not named.
const DATABASES_MANY: u8 = 254;

fn databases<'a>(r: &mut Reader<'a>) -> Result<Option<Vec<&'a [u8]>>, EventError> {
    let n = r.u8("number of databases")?;
    if n == DATABASES_MANY {
        return Ok(None);
    }
    let mut names = Vec::new();
    for _ in 0..n {
        let rest = r.peek_rest();
        let len = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
        names.push(r.take(len, "database")?);
        r.zero("end of the database")?;
    }
    Ok(Some(names))
}
