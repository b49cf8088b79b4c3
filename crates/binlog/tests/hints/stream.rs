//! Tables, rows and transactions as events, through a grouper into hints.

use dromon_binlog::hints::{Column, Hint, Hints, KeyPart, Limits, TableName, TableSchema};
use dromon_binlog::{
    CRC_LEN, Checksum, EventType, Format, Grouper, Gtid, GtidEvent, LogicalClock, MySqlGtid,
    Payload, Position, TableMapParts, encode_event, gtid_flags,
};

use mysql_common::binlog::consts::TransactionPayloadCompressionType;
use mysql_common::binlog::events::TransactionPayloadEvent;
use mysql_common::proto::MySerialize;

use crate::support::{event, format, format_event, gtid, header, mariadb, query};

/// A value of one of the two types that these tests use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Val {
    Null,
    Int(i32),
    Text(String),
}

pub type Row = Vec<Val>;

pub fn int(n: i32) -> Val {
    Val::Int(n)
}

pub fn text(t: &str) -> Val {
    Val::Text(t.into())
}

/// A changed row: its table, before, after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub table: usize,
    pub before: Option<Row>,
    pub after: Option<Row>,
}

pub fn insert(table: usize, row: Row) -> Change {
    Change {
        table,
        before: None,
        after: Some(row),
    }
}

pub fn update(table: usize, before: Row, after: Row) -> Change {
    Change {
        table,
        before: Some(before),
        after: Some(after),
    }
}

pub fn delete(table: usize, row: Row) -> Change {
    Change {
        table,
        before: Some(row),
        after: None,
    }
}

pub fn column(name: &str, kind: &str, collation: Option<&str>) -> Column {
    Column {
        name: name.into(),
        kind: kind.into(),
        collation: collation.map(Into::into),
        generated: false,
    }
}

pub fn whole(name: &str) -> KeyPart {
    KeyPart::of(name)
}

pub fn table(name: &str, columns: Vec<Column>, unique: Vec<Vec<KeyPart>>) -> TableSchema {
    TableSchema {
        name: TableName::new("db", name),
        columns,
        unique,
        ..TableSchema::default()
    }
}

fn is_text(column: &Column) -> bool {
    column.kind.starts_with("varchar")
}

fn bitmap(bits: impl Iterator<Item = bool>) -> Vec<u8> {
    let mut map = Vec::new();
    for (n, set) in bits.enumerate() {
        if n % 8 == 0 {
            map.push(0);
        }
        map[n / 8] |= u8::from(set) << (n % 8);
    }
    map
}

fn image(row: &Row, present: &[bool]) -> Vec<u8> {
    let cells = || row.iter().zip(present).filter(|(_, p)| **p).map(|(v, _)| v);
    let mut out = bitmap(cells().map(|v| *v == Val::Null));
    for value in cells() {
        match value {
            Val::Null => {}
            Val::Int(n) => out.extend(n.to_le_bytes()),
            Val::Text(t) => {
                out.push(t.len() as u8);
                out.extend(t.as_bytes());
            }
        }
    }
    out
}

/// A byte of the stream, as a place that hints know.
pub fn place(at: u64) -> Position {
    let mut position = Position::new();
    position.set(Gtid {
        domain: 0,
        server: 0,
        seqno: at,
    });
    position
}

/// A stream that is written and read at once.
pub struct Stream {
    pub hints: Hints,
    pub schemas: Vec<TableSchema>,
    /// Optional fields of all table maps.
    pub optional: Vec<u8>,
    grouper: Grouper,
    format: Format,
    seqno: u64,
    /// Groups begin as those of MySQL without GTIDs.
    anonymous: bool,
}

impl Stream {
    pub fn new(schemas: Vec<TableSchema>, limits: Limits) -> Stream {
        Stream::of(schemas, limits, mariadb(Checksum::Crc32))
    }

    /// The same of MySQL 5.7, without GTIDs.
    pub fn mysql(schemas: Vec<TableSchema>, limits: Limits) -> Stream {
        let format = format("5.7.44-log", Some(Checksum::Crc32));
        Stream {
            anonymous: true,
            ..Stream::of(schemas, limits, format)
        }
    }

    fn of(schemas: Vec<TableSchema>, limits: Limits, format: Format) -> Stream {
        let mut stream = Stream {
            hints: Hints::new(limits),
            schemas,
            optional: Vec::new(),
            grouper: Grouper::of_connection(),
            seqno: 0,
            format: format.clone(),
            anonymous: false,
        };
        assert!(stream.raw(&format_event(&format)).is_none());
        stream
    }

    /// One event, as it is.
    pub fn raw(&mut self, raw: &[u8]) -> Option<Hint> {
        let seen = self.grouper.event(raw).unwrap();
        if !self.anonymous {
            return self.hints.event(&seen, &self.format);
        }
        let whole = self.grouper.open().is_none();
        let end = whole.then(|| place(self.grouper.at()));
        self.hints.event_at(&seen, &self.format, end)
    }

    /// Where the next event begins.
    pub fn at(&self) -> u64 {
        self.grouper.at()
    }

    pub fn made(&self, kind: EventType, payload: &Payload<'_>) -> Vec<u8> {
        event(kind, payload, &self.format)
    }

    pub fn statement(&self, text: &str) -> Vec<u8> {
        self.made(EventType::QUERY, &Payload::Query(query(text)))
    }

    /// The next GTID.
    pub fn begin(&mut self, flags: u8) -> Vec<u8> {
        self.seqno += 1;
        if self.anonymous {
            let sequence = self.seqno as i64;
            return self.begin_anonymous(sequence - 1, sequence);
        }
        self.made(EventType::GTID, &Payload::Gtid(gtid(self.seqno, flags)))
    }

    /// As MySQL begins a group that it calls by these numbers.
    pub fn begin_anonymous(&self, last_committed: i64, sequence_number: i64) -> Vec<u8> {
        let gtid = MySqlGtid {
            flags: 0,
            source: [0; 16],
            number: 0,
            clock: Some(LogicalClock {
                last_committed,
                sequence_number,
            }),
            commit: None,
            tail: &[],
            anonymous: true,
        };
        self.made(EventType::ANONYMOUS_GTID, &Payload::MySqlGtid(gtid))
    }

    pub fn begin_in(&mut self, domain: u32) -> Vec<u8> {
        self.seqno += 1;
        let mut event: GtidEvent<'_> = gtid(self.seqno, ORDINARY);
        event.gtid.domain = domain;
        self.made(EventType::GTID, &Payload::Gtid(event))
    }

    /// Table map and rows of a change. `present`: columns that are there.
    pub fn rows(&self, change: &Change, present: Option<&[bool]>) -> Vec<Vec<u8>> {
        let all = vec![true; self.schemas[change.table].columns.len()];
        let present = present.unwrap_or(&all);
        self.some_rows(change, [present, present])
    }

    /// The same, with other columns after than before.
    pub fn some_rows(&self, change: &Change, present: [&[bool]; 2]) -> Vec<Vec<u8>> {
        let schema = &self.schemas[change.table];
        let columns = &schema.columns;
        let types: Vec<u8> = columns
            .iter()
            .map(|c| match c.kind.as_str() {
                _ if is_text(c) => 15,
                "datetime(3)" => 12,
                "timestamp(6)" => 17,
                "bigint(20)" => 8,
                _ => 3,
            })
            .collect();
        let meta: Vec<u8> = columns
            .iter()
            .flat_map(|c| match c.kind.as_str() {
                _ if is_text(c) => vec![200, 0],
                "timestamp(6)" => vec![6],
                _ => Vec::new(),
            })
            .collect();
        let id = change.table as u64 + 10;
        let map = TableMapParts {
            table_id: id,
            database: schema.name.database.as_bytes(),
            table: schema.name.table.as_bytes(),
            types: &types,
            meta: &meta,
            nullable: &bitmap(columns.iter().map(|_| true)),
            optional: &self.optional,
        };
        let map = map.table_map().unwrap();
        let kind = match (&change.before, &change.after) {
            (None, Some(_)) => EventType::WRITE_ROWS_V1,
            (Some(_), Some(_)) => EventType::UPDATE_ROWS_V1,
            _ => EventType::DELETE_ROWS_V1,
        };
        let mut body = id.to_le_bytes()[..6].to_vec();
        body.extend([1, 0, columns.len() as u8]);
        let before = change.before.iter().map(|row| (row, present[0]));
        let after = change.after.iter().map(|row| (row, present[1]));
        let images: Vec<_> = before.chain(after).collect();
        for (_, present) in &images {
            body.extend(bitmap(present.iter().copied()));
        }
        for (row, present) in &images {
            body.extend(image(row, present));
        }
        vec![
            self.made(EventType::TABLE_MAP, &Payload::TableMap(Box::new(map))),
            encode_event(&header(kind), &Payload::Other(&body), &self.format),
        ]
    }

    /// A group of these events, ended by a commit.
    pub fn group(&mut self, begin: Vec<u8>, events: Vec<Vec<u8>>) -> Hint {
        assert!(self.raw(&begin).is_none());
        if self.anonymous {
            let raw = self.statement("BEGIN");
            assert!(self.raw(&raw).is_none());
        }
        for raw in events {
            assert!(self.raw(&raw).is_none());
        }
        let commit = self.made(EventType::XID, &Payload::Xid(1));
        self.raw(&commit).expect("a group ends")
    }

    /// An ordinary transaction.
    pub fn transaction(&mut self, changes: &[Change]) -> Hint {
        let events = changes.iter().flat_map(|c| self.rows(c, None)).collect();
        let begin = self.begin(ORDINARY);
        self.group(begin, events)
    }

    /// An ordinary transaction of MySQL, compressed as a whole.
    pub fn packed(&mut self, changes: &[Change]) -> Hint {
        let mut events = vec![self.statement("BEGIN")];
        events.extend(changes.iter().flat_map(|c| self.rows(c, None)));
        events.push(self.made(EventType::XID, &Payload::Xid(1)));
        self.packed_group(&packed(&events))
    }

    /// A group that has such a body.
    pub fn packed_group(&mut self, body: &[u8]) -> Hint {
        let begin = self.begin(ORDINARY);
        assert!(self.raw(&begin).is_none());
        let raw = self.made(EventType::TRANSACTION_PAYLOAD, &Payload::Other(body));
        self.raw(&raw).expect("a group ends")
    }

    /// A statement that stands alone.
    pub fn alone(&mut self, text: &str) -> Hint {
        let begin = self.begin(gtid_flags::STANDALONE | gtid_flags::DDL);
        assert!(self.raw(&begin).is_none());
        let raw = self.statement(text);
        self.raw(&raw).expect("a group ends")
    }
}

/// These events, compressed, as another library writes that. They lose their checksums.
pub fn packed(events: &[Vec<u8>]) -> Vec<u8> {
    let mut raw = Vec::new();
    for event in events {
        let len = event.len() - CRC_LEN;
        let begin = raw.len();
        raw.extend(&event[..len]);
        raw[begin + 9..begin + 13].copy_from_slice(&(len as u32).to_le_bytes());
    }
    let data = zstd::encode_all(&raw[..], 3).unwrap();
    let zstd = TransactionPayloadCompressionType::ZSTD;
    let event = TransactionPayloadEvent::new(data.len() as u64, zstd, raw.len() as u64, data);
    let mut body = Vec::new();
    event.serialize(&mut body);
    body
}

pub const ORDINARY: u8 = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;

/// The batches of these hints as a replica sees them: neighbours with the same
/// commit id.
pub fn batches(hints: &[Hint]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    for (n, hint) in hints.iter().enumerate() {
        let joins = n > 0 && hint.commit_id.is_some() && hint.commit_id == hints[n - 1].commit_id;
        match all.last_mut() {
            Some(last) if joins => last.push(n),
            _ => all.push(vec![n]),
        }
    }
    all
}
