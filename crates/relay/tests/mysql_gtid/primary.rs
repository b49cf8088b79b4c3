//! A primary like MySQL with `gtid_mode = ON`: its files, and what it sends to whom.

use dromon_binlog::{
    Checksum, EventType, FILE_MAGIC, Format, GroupName, Grouper, GtidSet, Header, LogicalClock,
    Maker, MySqlGtid, Payload, Place, Query, Rotate, Step, encode_event, flags, place,
    version_bytes,
};

pub const CRC: Checksum = Checksum::Crc32;

/// A server, and its number for the transaction.
pub type Name = ([u8; 16], u64);

/// The servers.
pub const A: [u8; 16] = [0xaa; 16];
pub const B: [u8; 16] = [0xbb; 16];

pub fn set(names: &[Name]) -> GtidSet {
    let mut set = GtidSet::new();
    for (source, number) in names {
        set.add(*source, *number);
    }
    set
}

pub fn file_name(number: usize) -> String {
    format!("mysql-bin.{number:06}")
}

pub fn format() -> Format {
    let mut post_header_lens = vec![0; 38];
    for (kind, len) in [(2, 13), (4, 8), (15, 92), (19, 8), (33, 42), (34, 42)] {
        post_header_lens[kind - 1] = len;
    }
    Format {
        binlog_version: 4,
        server_version: version_bytes("5.7.44-log"),
        // It was started then.
        created: 5,
        post_header_lens,
        checksum: Some(CRC),
    }
}

/// A group as it stands in a file: what it is, and its events.
#[derive(Clone, Debug)]
struct Stands {
    name: Name,
    events: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct File {
    before: GtidSet,
    /// Format description and previous GTIDs.
    head: Vec<Vec<u8>>,
    groups: Vec<Stands>,
    /// The name of the next one.
    rotate: Option<Vec<u8>>,
    end: u64,
    sequence: i64,
}

/// A primary.
#[derive(Clone, Debug)]
pub struct Primary {
    pub server_id: u32,
    files: Vec<File>,
    executed: GtidSet,
}

impl Primary {
    /// Its own source of GTIDs.
    pub fn uuid(&self) -> [u8; 16] {
        match self.server_id {
            1 => A,
            _ => B,
        }
    }

    pub fn new(server_id: u32) -> Primary {
        let mut primary = Primary {
            server_id,
            files: Vec::new(),
            executed: GtidSet::new(),
        };
        primary.cut();
        primary
    }

    pub fn executed(&self) -> &GtidSet {
        &self.executed
    }

    fn event(&self, kind: EventType, time: u32, payload: &Payload<'_>) -> Vec<u8> {
        let header = Header {
            timestamp: time,
            kind,
            server_id: self.server_id,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        encode_event(&header, payload, &format())
    }

    fn put(file: &mut File, mut raw: Vec<u8>) -> Vec<u8> {
        place(&mut raw, CRC, file.end).expect("it fits");
        file.end += raw.len() as u64;
        raw
    }

    /// Begins a file.
    pub fn cut(&mut self) {
        let next = file_name(self.files.len() + 1);
        let rotate = Payload::Rotate(Rotate {
            position: 4,
            file: next.as_bytes(),
        });
        let rotate = self.event(EventType::ROTATE, 1000, &rotate);
        if let Some(last) = self.files.last_mut() {
            last.rotate = Some(Primary::put(last, rotate));
        }
        let mut file = File {
            before: self.executed.clone(),
            head: Vec::new(),
            groups: Vec::new(),
            rotate: None,
            end: FILE_MAGIC.len() as u64,
            sequence: 0,
        };
        let made = 1000 + self.files.len() as u32;
        let begins = Payload::Format(Box::new(format()));
        let begins = self.event(EventType::FORMAT_DESCRIPTION, made, &begins);
        let previous = Payload::PreviousGtids(self.executed.clone());
        let previous = self.event(EventType::PREVIOUS_GTIDS, made, &previous);
        for raw in [begins, previous] {
            let raw = Primary::put(&mut file, raw);
            file.head.push(raw);
        }
        self.files.push(file);
    }

    /// A transaction, which says in which file of whom it stands.
    pub fn does(&mut self, name: Name, size: usize) {
        let number = self.files.len();
        let tag = format!("{}/{number}/{}", self.server_id, "x".repeat(size));
        let query = Query {
            thread_id: 1,
            exec_seconds: 0,
            error: 0,
            status: &[],
            database: b"d",
            stored: b"BEGIN",
            compressed: false,
        };
        let sequence = self.files[number - 1].sequence + 1;
        let gtid = MySqlGtid {
            flags: 1,
            source: name.0,
            number: name.1,
            clock: Some(LogicalClock {
                last_committed: sequence - 1,
                sequence_number: sequence,
            }),
            commit: None,
            tail: &[],
            anonymous: false,
        };
        let events = [
            (EventType::MYSQL_GTID, Payload::MySqlGtid(gtid)),
            (EventType::QUERY, Payload::Query(query)),
            (EventType::ROWS_QUERY, Payload::Annotate(tag.as_bytes())),
            (EventType::XID, Payload::Xid(7)),
        ];
        let events = events.map(|(kind, payload)| self.event(kind, 1000, &payload));
        let file = self.files.last_mut().expect("a file");
        file.sequence = sequence;
        let events = events.map(|raw| Primary::put(file, raw)).to_vec();
        file.groups.push(Stands { name, events });
        self.executed.add(name.0, name.1);
    }

    /// That it is there; what comes next stands at this byte.
    fn heartbeat(&self, number: usize, at: u64) -> Vec<u8> {
        let maker = Maker {
            server_id: self.server_id,
            timestamp: 0,
            checksum: CRC,
            place: Place::Nowhere,
        };
        let event = maker.heartbeat(&file_name(number), at);
        event.expect("not beyond 4 GiB")
    }

    /// The same, behind all that there is.
    pub fn idle(&self) -> Vec<u8> {
        let last = self.files.last().expect("a file");
        self.heartbeat(self.files.len(), last.end)
    }

    /// What it sends to a replica that has this set: files from the last one on before which the
    /// replica has everything, each as a whole, without the groups that it has. Grows with what the
    /// primary does.
    pub fn send(&self, has: &GtidSet) -> Vec<Vec<u8>> {
        let fits = |file: &File| file.before.is_subset(has);
        let first = self
            .files
            .iter()
            .rposition(fits)
            .expect("nothing is purged");
        let mut out = Vec::new();
        for (n, file) in self.files.iter().enumerate().skip(first) {
            let header = Header {
                timestamp: 0,
                kind: EventType::ROTATE,
                server_id: self.server_id,
                len: 0,
                end_pos: 0,
                flags: flags::ARTIFICIAL,
            };
            let name = file_name(n + 1);
            let rotate = Payload::Rotate(Rotate {
                position: 4,
                file: name.as_bytes(),
            });
            out.push(encode_event(&header, &rotate, &format()));
            out.extend(file.head.iter().cloned());
            for group in &file.groups {
                match has.contains(&group.name.0, group.name.1) {
                    false => out.extend(group.events.iter().cloned()),
                    // Where it is, after what it leaves out.
                    true => {
                        let last = group.events.last().expect("events");
                        let header = Header::decode(last).expect("an event");
                        out.push(self.heartbeat(n + 1, header.end_pos.into()));
                    }
                }
            }
            out.extend(file.rotate.clone());
        }
        out
    }
}

/// What a replica makes of what it is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// The groups.
    pub names: Vec<Name>,
    /// Where each says that it stood.
    pub tags: Vec<String>,
    /// The sets of previous GTIDs, and how many groups came before each.
    pub previous: Vec<(usize, GtidSet)>,
    /// Format descriptions that say that the primary was started.
    pub started: usize,
    /// Files that were named.
    pub files: Vec<String>,
}

impl Got {
    pub fn of(events: &[Vec<u8>]) -> Got {
        let mut got = Got::default();
        let mut grouper = Grouper::of_connection();
        for raw in events {
            let seen = grouper.event(raw).expect("a stream that can be followed");
            assert_eq!(seen.abandoned, None, "no group is left unfinished");
            let format = grouper.format().cloned().unwrap_or_else(Format::unknown);
            match seen.event.decode(&format).expect("readable") {
                Payload::PreviousGtids(set) => got.previous.push((got.names.len(), set)),
                Payload::Annotate(text) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    let tag = text.rsplit_once('/').expect("a tag").0;
                    got.tags.push(tag.to_owned());
                }
                Payload::Format(format) => got.started += usize::from(format.created != 0),
                Payload::Rotate(rotate) => {
                    got.files
                        .push(String::from_utf8_lossy(rotate.file).into_owned());
                }
                _ => {}
            }
            if let Step::Begin(group) = seen.step {
                match group.name {
                    GroupName::MySql { source, number } => got.names.push((source, number)),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(grouper.open().is_none(), "the last group is whole");
        got
    }
}
