//! Events out of a stream of bytes, and groups out of events.
//!
//! A *group* is what a replica takes or leaves as a whole: a transaction, or a
//! statement that stands alone. [`cut_event`] finds where an event ends;
//! [`Grouper`] takes one event after the other, checks it, and says where
//! groups begin and end. It keeps no bytes, however large a group is.
//!
//! ```text
//!              GTID          all but these         XID, XA PREPARE,
//!            ┌────────> open ─────────────> open ──COMMIT, ROLLBACK──┐
//!   between ─┤                                                       ├─> between
//!            │  GTID that stands alone,            a statement       │
//!            └────────> open ─────────────────────────────────────── ┘
//! ```
//!
//! Without GTIDs of MariaDB a group begins with whatever is not about files,
//! and BEGIN says that it does not end with its first statement.

use crate::bytes::Reader;
use crate::checksum::{self, Checksum};
use crate::error::EventError;
use crate::event::{Event, Payload};
use crate::format::Format;
use crate::gtid::Gtid;
use crate::gtid_event::gtid_flags;
use crate::header::{EventType, FILE_MAGIC, HEADER_LEN, Header, flags};
use crate::query::Query;

/// Longest event that servers make or take, in bytes: max_allowed_packet
/// cannot be more.
pub const EVENT_MAX: u32 = 1 << 30;

/// Why a stream of events cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Not a binlog at all.
    #[error(
        "The file begins with {found:02x?}; a binlog begins with fe 62 69 6e. It is something else, or encrypted as a whole."
    )]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// An event is damaged or not understood.
    #[error("At byte {at} of the stream: {error} What follows was not read.")]
    Event {
        /// Where the event begins.
        at: u64,
        /// What is wrong with it.
        error: EventError,
    },
    /// An event is longer than allowed.
    #[error(
        "At byte {at} of the stream a {kind} event claims to have {len} bytes; {max} are allowed."
    )]
    TooLong {
        /// Where the event begins.
        at: u64,
        /// Its type.
        kind: EventType,
        /// What it claims.
        len: u32,
        /// What is allowed.
        max: u32,
    },
    /// The positions in a file do not follow each other.
    #[error(
        "At byte {at} of the file a {kind} event says that it ends at {said}, modulo 2^32, but it ends at {end}. A part of the file is missing or doubled."
    )]
    Place {
        /// Where the event begins.
        at: u64,
        /// Its type.
        kind: EventType,
        /// In its header.
        said: u32,
        /// Where it ends.
        end: u64,
    },
    /// The rest of the file is encrypted.
    #[error(
        "The file is encrypted from byte {at} on (key version {key_version}). Only its server can read it: take its events over the replication protocol."
    )]
    Encrypted {
        /// Where encrypted events begin.
        at: u64,
        /// Of the key.
        key_version: u32,
    },
    /// No format description came first.
    #[error(
        "At byte {at} of the stream stands a {kind} event, but no format description came before it."
    )]
    NoFormat {
        /// Where the event begins.
        at: u64,
        /// Its type.
        kind: EventType,
    },
}

/// The beginning of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut<'a> {
    /// It begins with this event.
    Event(&'a [u8]),
    /// The event goes on behind the end: so many bytes are needed from its
    /// beginning, as far as can be told.
    More {
        /// Bytes.
        need: usize,
    },
}

/// Checks the first four bytes of a file.
pub fn check_magic(file: &[u8]) -> Result<(), StreamError> {
    let first = &file[..file.len().min(FILE_MAGIC.len())];
    match first == FILE_MAGIC {
        true => Ok(()),
        false => Err(StreamError::Magic {
            found: first.to_vec(),
        }),
    }
}

/// Cuts the first event off `bytes`, which begin at byte `at` of the stream
/// and need not end with an event. Only its length is looked at.
pub fn cut_event(bytes: &[u8], at: u64, max: u32) -> Result<Cut<'_>, StreamError> {
    if bytes.len() < HEADER_LEN {
        return Ok(Cut::More { need: HEADER_LEN });
    }
    let header = Header::decode(bytes).map_err(|error| StreamError::Event { at, error })?;
    if header.len > max {
        return Err(StreamError::TooLong {
            at,
            kind: header.kind,
            len: header.len,
            max,
        });
    }
    let len = header.len as usize;
    Ok(match bytes.get(..len) {
        Some(event) => Cut::Event(event),
        None => Cut::More { need: len },
    })
}

/// By which name the primary calls a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupName {
    /// It has none: the primary is older than GTIDs, or was told so.
    Nameless,
    /// MariaDB's.
    MariaDb(Gtid),
    /// MySQL's.
    MySql {
        /// The server that first had it.
        source: [u8; 16],
        /// Its number there.
        number: u64,
    },
}

/// What a group ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The commit of a transaction in engines that can.
    Xid,
    /// COMMIT as a statement: tables without transactions took part.
    Commit,
    /// ROLLBACK as a statement: what cannot be rolled back remains.
    Rollback,
    /// XA PREPARE: it is committed, or not, by a later group.
    XaPrepare,
    /// XA COMMIT … ONE PHASE (MySQL): the same event, but it is committed.
    XaOnePhase,
    /// A statement that stands alone: DDL, XA COMMIT and others.
    Statement,
    /// All of it was in one compressed event (MySQL 8).
    Payload,
}

/// A group of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// Flags of MariaDB's GTID event, else 0: see [`gtid_flags`].
    pub flags: u8,
    /// MariaDB's commit id.
    pub commit_id: Option<u64>,
    /// When it began, in seconds since 1970.
    pub timestamp: u32,
    /// Where its first event begins, in bytes of the stream.
    pub begin: u64,
    /// Where its last event so far ends.
    pub end: u64,
    /// Number of its events so far.
    pub events: u64,
}

impl Group {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// What an event is in the order of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It belongs to no group: it is about files, or a heartbeat.
    Between,
    /// The first of a group.
    Begin(Group),
    /// A further one.
    Within,
    /// The last one.
    End(Group, Ending),
    /// The only one.
    Alone(Group, Ending),
}

/// What [`Grouper::event`] makes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The event, checked.
    pub event: Event<'a>,
    /// Its place.
    pub step: Step,
    /// A group that was open and will never be finished: the primary died
    /// while writing it. What came of it must be dropped.
    pub abandoned: Option<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Ends with a commit.
    Transaction,
    /// Ends with its first statement.
    Statement,
    /// Its first statement says which of the two.
    Undecided,
}

/// Follows a stream of events and finds its groups.
#[derive(Clone, Debug)]
pub struct Grouper {
    format: Option<Format>,
    at: u64,
    settled: u64,
    places: bool,
    open: Option<(Group, Mode)>,
}

impl Grouper {
    /// Of a file, from its beginning. The first event stands at byte 4. Events
    /// must stand where they say.
    pub fn of_file() -> Grouper {
        Grouper {
            format: None,
            at: FILE_MAGIC.len() as u64,
            settled: FILE_MAGIC.len() as u64,
            places: true,
            open: None,
        }
    }

    /// Of a file from a position on at which a group begins, its format being
    /// known from its beginning.
    pub fn of_file_from(position: u64, format: Format) -> Grouper {
        Grouper {
            format: Some(format),
            at: position,
            settled: position,
            places: true,
            open: None,
        }
    }

    /// Of what a primary sends. Bytes are counted from 0 on.
    ///
    /// Of a file that is encrypted the primary sends all in clear, and
    /// nevertheless the event START_ENCRYPTION: whoever stores what it sent
    /// must leave that one out.
    pub fn of_connection() -> Grouper {
        Grouper {
            format: None,
            at: 0,
            settled: 0,
            places: false,
            open: None,
        }
    }

    /// What the last format description said.
    pub fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    /// Where the next event begins, in bytes of the stream.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Up to where the stream is whole: no group is open there. If the stream
    /// ends, or cannot be read on, its torn tail begins here.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// The group that has begun and not ended.
    pub fn open(&self) -> Option<Group> {
        self.open.map(|(group, _)| group)
    }

    /// The connection was lost, and the next one begins elsewhere. Gives the
    /// group of which only a part has come.
    pub fn interrupt(&mut self) -> Option<Group> {
        self.format = None;
        self.open.take().map(|(group, _)| group)
    }

    /// Takes the next event. After an error nothing has changed.
    pub fn event<'a>(&mut self, raw: &'a [u8]) -> Result<Seen<'a>, StreamError> {
        let at = self.at;
        let bad = |error| StreamError::Event { at, error };
        let header = Header::decode(raw).map_err(bad)?;
        let checksum = self.checksum_of(&header, raw)?;
        let event = match self.places {
            true => Event::parse(raw, checksum),
            false => Event::parse_sent(raw, checksum),
        }
        .map_err(bad)?;
        let end = at + raw.len() as u64;
        let placed = self.places && header.end_pos != 0 && !header.has(flags::ARTIFICIAL);
        if placed && header.end_pos != end as u32 {
            return Err(StreamError::Place {
                at,
                kind: header.kind,
                said: header.end_pos,
                end,
            });
        }
        let (step, abandoned) = self.step(&event, end).map_err(|error| match error {
            Refused::Event(error) => bad(error),
            Refused::Encrypted(key_version) => StreamError::Encrypted {
                at: end,
                key_version,
            },
        })?;
        self.at = end;
        if self.open.is_none() {
            self.settled = end;
        }
        Ok(Seen {
            event,
            step,
            abandoned,
        })
    }

    /// Over a connection an artificial rotate comes before the format
    /// description that it announces, so that only its bytes can tell whether
    /// it has a checksum. A file begins with the format description.
    fn checksum_of(&self, header: &Header, raw: &[u8]) -> Result<Checksum, StreamError> {
        let sent = !self.places;
        let rotate = sent && header.kind == EventType::ROTATE && header.has(flags::ARTIFICIAL);
        if rotate && checksum::verify(raw).is_ok() {
            return Ok(Checksum::Crc32);
        }
        match &self.format {
            Some(format) => Ok(format.checksum()),
            None if rotate || header.kind == EventType::FORMAT_DESCRIPTION => Ok(Checksum::Off),
            // Between the rotate and the format description.
            None if sent && header.kind == EventType::HEARTBEAT => {
                Ok(match checksum::verify(raw) {
                    Ok(_) => Checksum::Crc32,
                    Err(_) => Checksum::Off,
                })
            }
            None => Err(StreamError::NoFormat {
                at: self.at,
                kind: header.kind,
            }),
        }
    }

    fn step(&mut self, event: &Event<'_>, end: u64) -> Result<(Step, Option<Group>), Refused> {
        let kind = event.kind();
        match kind {
            EventType::HEARTBEAT | EventType::HEARTBEAT_V2 | EventType::IGNORABLE => {
                Ok((self.passing(end), None))
            }
            EventType::FORMAT_DESCRIPTION => {
                self.format = Some(Format::read(event.raw())?);
                Ok((Step::Between, self.abandon()))
            }
            // A primary says so to a replica whose position is in a hole, also
            // between a GTID and what follows it.
            EventType::GTID_LIST if event.header().has(flags::ARTIFICIAL) => {
                Ok((self.passing(end), None))
            }
            EventType::ROTATE
            | EventType::STOP
            | EventType::GTID_LIST
            | EventType::PREVIOUS_GTIDS
            | EventType::BINLOG_CHECKPOINT => Ok((Step::Between, self.abandon())),
            EventType::START_ENCRYPTION => match self.payload(event)? {
                // A primary sends this one too, but what follows in clear.
                Payload::StartEncryption(start) if self.places => {
                    Err(Refused::Encrypted(start.key_version))
                }
                _ => Ok((Step::Between, self.abandon())),
            },
            EventType::GTID
            | EventType::MYSQL_GTID
            | EventType::ANONYMOUS_GTID
            | EventType::MYSQL_GTID_TAGGED => {
                let (group, mode) = self.begin(event, end)?;
                let abandoned = self.abandon();
                self.open = Some((group, mode));
                Ok((Step::Begin(group), abandoned))
            }
            _ => Ok((self.inside(event, end)?, None)),
        }
    }

    /// An event that may stand anywhere.
    fn passing(&mut self, end: u64) -> Step {
        if let Some((group, _)) = &mut self.open {
            group.end = end;
        }
        Step::Between
    }

    fn abandon(&mut self) -> Option<Group> {
        self.open.take().map(|(group, _)| group)
    }

    fn payload<'a>(&self, event: &Event<'a>) -> Result<Payload<'a>, EventError> {
        match &self.format {
            Some(format) => event.decode(format),
            None => event.decode(&Format::unknown()),
        }
    }

    fn nameless(&self, event: &Event<'_>, end: u64) -> Group {
        Group {
            name: GroupName::Nameless,
            flags: 0,
            commit_id: None,
            timestamp: event.header().timestamp,
            begin: self.at,
            end,
            events: 1,
        }
    }

    fn begin(&self, event: &Event<'_>, end: u64) -> Result<(Group, Mode), EventError> {
        let mut group = self.nameless(event, end);
        let mode = match self.payload(event)? {
            Payload::Gtid(gtid) => {
                group.name = GroupName::MariaDb(gtid.gtid);
                group.flags = gtid.flags;
                group.commit_id = gtid.commit_id;
                match gtid.flags & (gtid_flags::STANDALONE | gtid_flags::COMPLETED_XA) {
                    0 => Mode::Transaction,
                    _ => Mode::Statement,
                }
            }
            Payload::MySqlGtid(gtid) => {
                if !gtid.anonymous {
                    group.name = GroupName::MySql {
                        source: gtid.source,
                        number: gtid.number,
                    };
                }
                Mode::Undecided
            }
            _ => Mode::Undecided,
        };
        Ok((group, mode))
    }

    /// An event of a group, or the first one of a group without a name.
    fn inside(&mut self, event: &Event<'_>, end: u64) -> Result<Step, EventError> {
        let first = self.open.is_none();
        let (mut group, mut mode) = match self.open {
            Some((group, mode)) => (
                Group {
                    end,
                    events: group.events + 1,
                    ..group
                },
                mode,
            ),
            None => (self.nameless(event, end), Mode::Undecided),
        };
        let ending = self.ending(event, &mut mode)?;
        group.end = end;
        self.open = match ending {
            Some(_) => None,
            None => Some((group, mode)),
        };
        Ok(match (first, ending) {
            (true, None) => Step::Begin(group),
            (true, Some(ending)) => Step::Alone(group, ending),
            (false, None) => Step::Within,
            (false, Some(ending)) => Step::End(group, ending),
        })
    }

    /// Whether the group ends with this event, and with what.
    fn ending(&self, event: &Event<'_>, mode: &mut Mode) -> Result<Option<Ending>, EventError> {
        Ok(match event.kind() {
            EventType::XID => Some(Ending::Xid),
            EventType::XA_PREPARE => match self.payload(event)? {
                Payload::XaPrepare(prepare) if prepare.one_phase => Some(Ending::XaOnePhase),
                _ => Some(Ending::XaPrepare),
            },
            EventType::TRANSACTION_PAYLOAD => Some(Ending::Payload),
            EventType::INCIDENT if *mode != Mode::Transaction => Some(Ending::Statement),
            EventType::EXECUTE_LOAD_QUERY => {
                (*mode != Mode::Transaction).then_some(Ending::Statement)
            }
            EventType::TABLE_MAP if *mode == Mode::Undecided => {
                *mode = Mode::Transaction;
                None
            }
            EventType::QUERY => {
                let mut r = Reader::new(event.body(), HEADER_LEN, event.kind());
                let query = Query::decode(&mut r, event.kind())?;
                by_statement(query.stored, mode)
            }
            // BEGIN, COMMIT and ROLLBACK are too short to be compressed.
            EventType::QUERY_COMPRESSED => {
                (*mode != Mode::Transaction).then_some(Ending::Statement)
            }
            _ => None,
        })
    }
}

fn by_statement(text: &[u8], mode: &mut Mode) -> Option<Ending> {
    let is = |word: &[u8]| text.eq_ignore_ascii_case(word);
    match mode {
        Mode::Transaction if is(b"COMMIT") => Some(Ending::Commit),
        Mode::Transaction if is(b"ROLLBACK") => Some(Ending::Rollback),
        Mode::Transaction => None,
        Mode::Statement => Some(Ending::Statement),
        Mode::Undecided => {
            let xa = text
                .get(..9)
                .is_some_and(|t| t.eq_ignore_ascii_case(b"XA START "));
            if is(b"BEGIN") || xa {
                *mode = Mode::Transaction;
                return None;
            }
            Some(Ending::Statement)
        }
    }
}

enum Refused {
    Event(EventError),
    Encrypted(u32),
}

impl From<EventError> for Refused {
    fn from(error: EventError) -> Refused {
        Refused::Event(error)
    }
}
