//! One event: a checked view of its bytes, and what its body says.

use crate::bytes::Reader;
use crate::checksum::{self, Checksum};
use crate::control::{Checkpoint, Heartbeat, Rotate, StartEncryption};
use crate::error::{EventError, Flaw};
use crate::format::Format;
use crate::gtid_event::{GtidEvent, XaPrepare};
use crate::gtid_list::GtidList;
use crate::gtid_set::GtidSet;
use crate::header::{EventType, HEADER_LEN, Header};
use crate::load::{FileBlock, LoadQuery};
use crate::mysql_gtid::MySqlGtid;
use crate::query::Query;
use crate::rows_event::RowsEvent;
use crate::table_map::TableMap;

/// The bytes of one event. Making one checks length and checksum, so that
/// whoever has one may store or pass on its bytes; [`Event::parse_unverified`]
/// takes the caller's word for the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    header: Header,
    raw: &'a [u8],
    body: &'a [u8],
    checksum: Checksum,
}

impl<'a> Event<'a> {
    /// The event that `raw` is, neither more nor less. A format description
    /// says itself whether it has a checksum; for all others it is `checksum`.
    pub fn parse(raw: &'a [u8], checksum: Checksum) -> Result<Event<'a>, EventError> {
        let event = Event::parse_unverified(raw, checksum)?;
        if event.checksum == Checksum::Crc32 {
            checksum::verify(raw)?;
        }
        Ok(event)
    }

    /// The same for what a primary sends. Of a format description that says
    /// that the others have no checksums, its own is not looked at: servers do
    /// not mend it after the changes that they make while sending.
    pub fn parse_sent(raw: &'a [u8], checksum: Checksum) -> Result<Event<'a>, EventError> {
        let event = Event::parse_unverified(raw, checksum)?;
        let stale = event.kind() == EventType::FORMAT_DESCRIPTION
            && Format::read(raw)?.checksum == Some(Checksum::Off);
        if event.checksum == Checksum::Crc32 && !stale {
            checksum::verify(raw)?;
        }
        Ok(event)
    }

    /// The same without computing any checksum, only for bytes that the caller
    /// verified before: when they were stored, or a moment ago.
    pub fn parse_unverified(raw: &'a [u8], checksum: Checksum) -> Result<Event<'a>, EventError> {
        let header = Header::decode(raw)?;
        if header.len as usize != raw.len() {
            return Err(EventError {
                kind: header.kind,
                offset: 9,
                flaw: Flaw::Length {
                    said: header.len,
                    have: raw.len(),
                },
            });
        }
        let checksum = match header.kind {
            EventType::FORMAT_DESCRIPTION => match Format::read(raw)?.checksum {
                Some(_) => Checksum::Crc32,
                None => Checksum::Off,
            },
            _ => checksum,
        };
        let event = match checksum {
            Checksum::Off => raw,
            Checksum::Crc32 => checksum::split(raw)?.0,
        };
        Ok(Event {
            header,
            raw,
            body: &event[HEADER_LEN..],
            checksum,
        })
    }

    /// The common header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What it is.
    pub fn kind(&self) -> EventType {
        self.header.kind
    }

    /// All its bytes, checksum included.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// What is between header and checksum.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// What this event has at its end.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// What the body says. A type without a reader here is
    /// [`Payload::Other`]; that is no error.
    pub fn decode(&self, format: &Format) -> Result<Payload<'a>, EventError> {
        let kind = self.header.kind;
        let mut r = Reader::new(self.body, HEADER_LEN, kind);
        Ok(match kind {
            EventType::FORMAT_DESCRIPTION => Payload::Format(Box::new(Format::read(self.raw)?)),
            EventType::ROTATE => Payload::Rotate(Rotate::decode(&mut r)?),
            EventType::STOP => {
                r.end()?;
                Payload::Stop
            }
            EventType::HEARTBEAT => Payload::Heartbeat(Heartbeat::decode_v1(&mut r, &self.header)?),
            EventType::HEARTBEAT_V2 => Payload::Heartbeat(Heartbeat::decode_v2(&mut r)?),
            EventType::QUERY | EventType::QUERY_COMPRESSED => {
                Payload::Query(Query::decode(&mut r, kind)?)
            }
            EventType::BEGIN_LOAD_QUERY | EventType::APPEND_BLOCK => {
                Payload::FileBlock(FileBlock::decode(&mut r)?)
            }
            EventType::DELETE_FILE => {
                let file = r.u32("file")?;
                r.end()?;
                Payload::DeleteFile(file)
            }
            EventType::EXECUTE_LOAD_QUERY => Payload::LoadQuery(LoadQuery::decode(&mut r)?),
            EventType::XID => {
                let xid = r.u64("transaction id")?;
                r.end()?;
                Payload::Xid(xid)
            }
            EventType::XA_PREPARE => Payload::XaPrepare(XaPrepare::decode(&mut r)?),
            EventType::TABLE_MAP => Payload::TableMap(Box::new(TableMap::decode(
                &mut r,
                format.table_id_len(kind),
            )?)),
            EventType::GTID => Payload::Gtid(GtidEvent::decode(&mut r, &self.header)?),
            EventType::GTID_LIST => Payload::GtidList(GtidList::decode(&mut r)?),
            EventType::ANNOTATE_ROWS | EventType::ROWS_QUERY => {
                if kind == EventType::ROWS_QUERY {
                    // A length that is only right for short texts.
                    r.u8("length")?;
                }
                Payload::Annotate(r.rest())
            }
            EventType::BINLOG_CHECKPOINT => Payload::Checkpoint(Checkpoint::decode(&mut r)?),
            EventType::START_ENCRYPTION => {
                Payload::StartEncryption(StartEncryption::decode(&mut r)?)
            }
            EventType::MYSQL_GTID | EventType::ANONYMOUS_GTID => {
                Payload::MySqlGtid(MySqlGtid::decode(&mut r, kind)?)
            }
            EventType::PREVIOUS_GTIDS => Payload::PreviousGtids(GtidSet::read(&mut r)?),
            _ if RowsEvent::is(kind) => {
                Payload::Rows(RowsEvent::decode(&mut r, kind, format.table_id_len(kind))?)
            }
            _ => Payload::Other(self.body),
        })
    }
}

/// What the body of an event says.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload<'a> {
    /// The first event of a file.
    Format(Box<Format>),
    /// The next file.
    Rotate(Rotate<'a>),
    /// The server stopped.
    Stop,
    /// The primary is there and has nothing to send.
    Heartbeat(Heartbeat<'a>),
    /// A statement.
    Query(Query<'a>),
    /// A block of a file for LOAD DATA.
    FileBlock(FileBlock<'a>),
    /// That file is not needed after all: its LOAD DATA failed and changed nothing.
    DeleteFile(u32),
    /// LOAD DATA of such a file.
    LoadQuery(LoadQuery<'a>),
    /// Commit; the number is the primary's own.
    Xid(u64),
    /// Prepare of an XA transaction, or its only phase; ends its group.
    XaPrepare(XaPrepare<'a>),
    /// The columns of a table.
    TableMap(Box<TableMap<'a>>),
    /// Changed rows.
    Rows(RowsEvent<'a>),
    /// Begin of a group of MariaDB.
    Gtid(GtidEvent<'a>),
    /// The state of all domains.
    GtidList(GtidList),
    /// The statement behind rows, as the client sent it.
    Annotate(&'a [u8]),
    /// Begin of XA recovery.
    Checkpoint(Checkpoint<'a>),
    /// What follows in a file is encrypted; nothing of it can be read here.
    StartEncryption(StartEncryption),
    /// Begin of a transaction of MySQL.
    MySqlGtid(MySqlGtid<'a>),
    /// All GTIDs of MySQL before this file.
    PreviousGtids(GtidSet),
    /// The body of a type that has no reader here.
    Other(&'a [u8]),
}

impl Payload<'_> {
    /// Writes the body as a server of this format would.
    ///
    /// # Panics
    /// If a name or the status variables are longer than a length field can
    /// say; nothing that was decoded is.
    pub fn encode(&self, kind: EventType, format: &Format, out: &mut Vec<u8>) {
        match self {
            Payload::Format(format) => format.encode(out),
            Payload::Rotate(rotate) => rotate.encode(out),
            Payload::Stop => {}
            Payload::Heartbeat(heartbeat) if kind == EventType::HEARTBEAT_V2 => {
                heartbeat.encode_v2(out);
            }
            Payload::Heartbeat(heartbeat) => heartbeat.encode_v1(out),
            Payload::Query(query) => query.encode(out),
            Payload::FileBlock(block) => block.encode(out),
            Payload::DeleteFile(file) => out.extend_from_slice(&file.to_le_bytes()),
            Payload::LoadQuery(load) => load.encode(out),
            Payload::Xid(xid) => out.extend_from_slice(&xid.to_le_bytes()),
            Payload::XaPrepare(prepare) => prepare.encode(out),
            Payload::TableMap(map) => map.encode(format.table_id_len(kind), out),
            Payload::Rows(rows) => rows.encode(format.table_id_len(kind), out),
            Payload::Gtid(gtid) => gtid.encode(out),
            Payload::GtidList(list) => list.encode(out),
            Payload::Annotate(text) => {
                if kind == EventType::ROWS_QUERY {
                    out.push(text.len() as u8);
                }
                out.extend_from_slice(text);
            }
            Payload::Checkpoint(checkpoint) => checkpoint.encode(out),
            Payload::StartEncryption(start) => start.encode(out),
            Payload::MySqlGtid(gtid) => gtid.encode(out),
            Payload::PreviousGtids(set) => set.encode(out),
            Payload::Other(body) => out.extend_from_slice(body),
        }
    }
}

/// A whole event of such a header and body. Its length is set and its checksum
/// computed; the other fields of the header are taken as they are.
///
/// # Panics
/// As [`Payload::encode`].
pub fn encode_event(header: &Header, payload: &Payload<'_>, format: &Format) -> Vec<u8> {
    let checksum = match payload {
        Payload::Format(own) if own.checksum.is_some() => Checksum::Crc32,
        Payload::Format(_) => Checksum::Off,
        _ => format.checksum(),
    };
    let mut out = Vec::new();
    header.encode(&mut out);
    payload.encode(header.kind, format, &mut out);
    checksum::seal(&mut out, 0, checksum);
    out
}
