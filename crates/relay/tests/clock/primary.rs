//! A primary like MySQL 5.7 or 8.0 with `gtid_mode` `OFF` or `ON`: its files, what it sends, and what its
//! tables are.

use dromon_binlog::hints::{Action, Catalog, Column, ForeignKey, KeyPart, TableName, TableSchema};
use dromon_binlog::{
    Checksum, CommitInfo, EventType, FILE_MAGIC, Format, GtidSet, Header, LogicalClock, Maker,
    MySqlGtid, Payload, Place as At, Query, Rotate, TableMapParts, encode_event, flags, place,
    version_bytes,
};
use dromon_relay::store::Place;

use crate::model::{Does, Done, Plan, Row, conflict};

const CRC: Checksum = Checksum::Crc32;

pub fn name(number: usize) -> String {
    format!("bin.{number:06}")
}

/// What the files of a version begin with.
pub fn format(version: &str) -> Format {
    let mut post_header_lens = vec![0; 41];
    for (kind, len) in [
        (2, 13),
        (4, 8),
        (15, 95),
        (19, 8),
        (30, 10),
        (31, 10),
        (32, 10),
        (33, 42),
        (34, 42),
    ] {
        post_header_lens[kind - 1] = len;
    }
    Format {
        binlog_version: 4,
        server_version: version_bytes(version),
        created: 0,
        post_header_lens,
        checksum: Some(CRC),
    }
}

/// A primary.
#[derive(Clone, Debug)]
pub struct Primary {
    pub version: &'static str,
    pub files: Vec<Vec<u8>>,
    pub done: Vec<Done>,
    /// Whether `t.u` is unique.
    pub unique: bool,
    sequence: i64,
    pub server_id: u32,
    /// Its transactions are numbered as those of [`SOURCE`].
    gtids: bool,
}

/// Whose all transactions with GTIDs are.
pub const SOURCE: [u8; 16] = [0xaa; 16];
/// When all is committed, in microseconds since 1970: within the second that its events say.
pub const COMMITTED: u64 = 1_700_000_000_123_456;

/// The first so many of them.
pub fn set(transactions: usize) -> GtidSet {
    let mut set = GtidSet::new();
    set.add_interval(SOURCE, 1, transactions as u64 + 1);
    set
}

impl Primary {
    pub fn new(version: &'static str) -> Primary {
        Primary::of(version, 1, false)
    }

    /// The same with `gtid_mode = ON`.
    pub fn with_gtids(version: &'static str, server_id: u32) -> Primary {
        Primary::of(version, server_id, true)
    }

    pub fn has_gtids(&self) -> bool {
        self.gtids
    }

    /// What it has done.
    pub fn executed(&self) -> GtidSet {
        set(self.done.len())
    }

    fn of(version: &'static str, server_id: u32, gtids: bool) -> Primary {
        let mut primary = Primary {
            server_id,
            gtids,
            version,
            files: Vec::new(),
            done: Vec::new(),
            unique: true,
            sequence: 0,
        };
        primary.begin_file();
        primary
    }

    pub fn after(version: &'static str, plans: &[Plan]) -> Primary {
        let mut primary = Primary::new(version);
        for plan in plans {
            primary.does(plan);
        }
        primary
    }

    fn event(&self, kind: EventType, payload: &Payload<'_>) -> Vec<u8> {
        let header = Header {
            timestamp: 1_700_000_000,
            kind,
            server_id: self.server_id,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        encode_event(&header, payload, &format(self.version))
    }

    fn add(&mut self, kind: EventType, payload: &Payload<'_>) {
        let mut raw = self.event(kind, payload);
        let file = self.files.last_mut().expect("a file");
        place(&mut raw, CRC, file.len() as u64).expect("it fits");
        file.extend_from_slice(&raw);
    }

    fn begin_file(&mut self) {
        if !self.files.is_empty() {
            let next = name(self.files.len() + 1);
            let rotate = Rotate {
                position: 4,
                file: next.as_bytes(),
            };
            self.add(EventType::ROTATE, &Payload::Rotate(rotate));
        }
        self.files.push(FILE_MAGIC.to_vec());
        let format = format(self.version);
        self.add(
            EventType::FORMAT_DESCRIPTION,
            &Payload::Format(Box::new(format)),
        );
        let executed = if self.gtids { self.done.len() } else { 0 };
        let previous = Payload::PreviousGtids(set(executed));
        self.add(EventType::PREVIOUS_GTIDS, &previous);
        self.sequence = 0;
    }

    fn statement(&mut self, text: &str) {
        let query = Query {
            thread_id: 1,
            exec_seconds: 0,
            error: 0,
            status: &[],
            database: b"d",
            stored: text.as_bytes(),
            compressed: false,
        };
        self.add(EventType::QUERY, &Payload::Query(query));
    }

    /// A transaction.
    pub fn does(&mut self, plan: &Plan) {
        if plan.file {
            self.begin_file();
        }
        self.sequence += 1;
        let file = self.files.len();
        let mut earlier = self.done.iter().rev().take_while(|d| d.file == file);
        let newest = earlier.find(|d| conflict(&d.does, &plan.does, self.unique));
        let last_committed = plan
            .style
            .last_committed(newest.map_or(0, |d| d.sequence), self.sequence);
        let begin = self.files[file - 1].len();
        let gtid = MySqlGtid {
            flags: 1,
            source: if self.gtids { SOURCE } else { [0; 16] },
            number: match self.gtids {
                true => self.done.len() as u64 + 1,
                false => 0,
            },
            clock: Some(LogicalClock {
                last_committed,
                sequence_number: self.sequence,
            }),
            commit: plan.modern.then_some(CommitInfo {
                time: COMMITTED,
                original_time: None,
                length: 300,
                server_version: Some(80_036),
                original_version: None,
            }),
            tail: &[],
            anonymous: !self.gtids,
        };
        let kind = match self.gtids {
            true => EventType::MYSQL_GTID,
            false => EventType::ANONYMOUS_GTID,
        };
        self.add(kind, &Payload::MySqlGtid(gtid));
        let before = self.unique;
        match &plan.does {
            Does::Ddl => {
                self.unique = !self.unique;
                self.statement("ALTER TABLE t ADD UNIQUE (u)");
            }
            Does::Statement => {
                self.statement("BEGIN");
                self.statement("UPDATE t SET u = u + 1");
                self.add(EventType::XID, &Payload::Xid(7));
            }
            Does::Rows(rows) => {
                self.statement("BEGIN");
                self.add(
                    EventType::ROWS_QUERY,
                    &Payload::Annotate(b"INSERT INTO t VALUES (1, 1)"),
                );
                for row in rows {
                    self.row(*row);
                }
                self.add(EventType::XID, &Payload::Xid(7));
            }
        }
        self.done.push(Done {
            does: plan.does.clone(),
            unique: before,
            file,
            begin,
            end: self.files[file - 1].len(),
            last_committed,
            sequence: self.sequence,
        });
    }

    fn row(&mut self, row: Row) {
        let (id, table, cells) = match row {
            Row::T { id, u } => (10u64, "t", vec![id, u]),
            Row::C { id, pid } => (11, "c", vec![id, pid]),
            Row::N { x } => (12, "n", vec![x]),
        };
        let map = TableMapParts {
            table_id: id,
            database: b"d",
            table: table.as_bytes(),
            types: &vec![3; cells.len()],
            meta: &[],
            nullable: &[0],
            optional: &[],
        };
        let map = map.table_map().expect("a table");
        self.add(EventType::TABLE_MAP, &Payload::TableMap(Box::new(map)));
        let mut body = id.to_le_bytes()[..6].to_vec();
        // The end of its statement; no extra data; all columns; none is NULL.
        body.extend([1, 0, 2, 0, cells.len() as u8, 0xff, 0]);
        body.extend(cells.iter().flat_map(|cell| cell.to_le_bytes()));
        self.add(EventType::WRITE_ROWS_V2, &Payload::Other(&body));
    }

    /// Transactions of a file, from 1 on.
    pub fn of_file(&self, number: usize) -> Vec<&Done> {
        self.done.iter().filter(|d| d.file == number).collect()
    }

    /// The end of the first so many transactions.
    pub fn place(&self, transactions: usize) -> Place {
        match transactions.checked_sub(1).map(|n| &self.done[n]) {
            None => Place { file: 1, at: 4 },
            Some(done) => Place {
                file: done.file as u64,
                at: done.end as u64,
            },
        }
    }

    /// Its end.
    pub fn end(&self) -> Place {
        Place {
            file: self.files.len() as u64,
            at: self.files[self.files.len() - 1].len() as u64,
        }
    }

    /// What it sends to a replica that has the first so many transactions: files from the last one on
    /// before which the replica has everything, without the groups that it has.
    pub fn send_behind(&self, has: usize) -> Vec<Vec<u8>> {
        let before = |number: usize| self.done.iter().filter(|d| d.file < number).count();
        let first = (1..=self.files.len()).rfind(|number| before(*number) <= has);
        let mut out = Vec::new();
        for number in first.expect("nothing is purged")..=self.files.len() {
            let skipped = |at: usize| {
                let mut had = self.done[..has].iter().filter(|d| d.file == number);
                had.any(|d| (d.begin..d.end).contains(&at))
            };
            out.push(self.turn(number, 4));
            let events = self.events(number).into_iter();
            out.extend(events.filter(|(at, _)| !skipped(*at)).map(|(_, raw)| raw));
        }
        out
    }

    /// That it has nothing more.
    pub fn heartbeat(&self) -> Vec<u8> {
        let maker = Maker {
            server_id: 1,
            timestamp: 0,
            checksum: CRC,
            place: At::Nowhere,
        };
        let end = self.end();
        let event = maker.heartbeat(&name(end.file as usize), end.at);
        event.expect("not beyond 4 GiB")
    }

    /// The events of a file, with their places.
    pub fn events(&self, number: usize) -> Vec<(usize, Vec<u8>)> {
        let file = &self.files[number - 1];
        let mut at = 4;
        let mut out = Vec::new();
        while at < file.len() {
            let len = u32::from_le_bytes(file[at + 9..at + 13].try_into().expect("4 bytes"));
            let end = at + len as usize;
            out.push((at, file[at..end].to_vec()));
            at = end;
        }
        out
    }

    /// That what comes next stands there.
    fn turn(&self, number: usize, at: u64) -> Vec<u8> {
        let header = Header {
            timestamp: 0,
            kind: EventType::ROTATE,
            server_id: self.server_id,
            len: 0,
            end_pos: 0,
            flags: flags::ARTIFICIAL,
        };
        let to = name(number);
        let rotate = Payload::Rotate(Rotate {
            position: at,
            file: to.as_bytes(),
        });
        encode_event(&header, &rotate, &format(self.version))
    }

    /// What it sends to a replica that asks for what stands behind a place.
    pub fn send(&self, from: Place) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for number in from.file as usize..=self.files.len() {
            let at = match number as u64 == from.file {
                true => from.at,
                false => 4,
            };
            out.push(self.turn(number, at));
            if at > 4 {
                // Made up: without a place.
                let payload = Payload::Format(Box::new(format(self.version)));
                out.push(self.event(EventType::FORMAT_DESCRIPTION, &payload));
            }
            let events = self.events(number).into_iter();
            out.extend(
                events
                    .filter(|(begins, _)| *begins as u64 >= at)
                    .map(|(_, raw)| raw),
            );
        }
        out
    }
}

/// The tables.
pub fn catalog(unique: bool) -> Catalog {
    let column = |name: &str| Column {
        name: name.into(),
        kind: "int(11)".into(),
        collation: None,
        generated: false,
    };
    let table = |name: &str, columns: &[&str], keys: &[&str]| TableSchema {
        name: TableName::new("d", name),
        columns: columns.iter().map(|c| column(c)).collect(),
        unique: keys.iter().map(|key| vec![KeyPart::of(key)]).collect(),
        ..TableSchema::default()
    };
    let keys: &[&str] = if unique { &["id", "u"] } else { &["id"] };
    let mut child = table("c", &["id", "pid"], &["id"]);
    child.foreign.push(ForeignKey {
        columns: vec!["pid".into()],
        parent: TableName::new("d", "t"),
        parent_columns: vec!["id".into()],
        on_delete: Action::Refuse,
        on_update: Action::Refuse,
    });
    Catalog::new(vec![
        table("t", &["id", "u"], keys),
        child,
        table("n", &["x"], &[]),
    ])
}
