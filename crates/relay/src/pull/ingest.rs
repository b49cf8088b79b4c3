//! What a primary sends, made into what is stored. Decides; stores nothing itself.
//!
//! | event | becomes |
//! |---|---|
//! | of a group | the same, ending with CRC-32, told its new place; a GTID event with room for a commit id |
//! | format description | the beginning of a file if it says something new, else nothing |
//! | rotate, GTID list, previous GTIDs, checkpoint, stop, encryption, heartbeat | nothing: the relay's files have their own |
//!
//! Of MySQL with GTIDs a new file of the primary begins a new one here, too. Its logical clocks count
//! from the beginning of its file: a parallel replica must not meet two counts in one file. For the
//! same reason another connection begins a new file, unless it goes on with the very file that the
//! last one was in.

use dromon_binlog::hints::{Hint, Hints};
use dromon_binlog::{
    Checksum, Event, EventError, EventType, FILE_MAGIC, Format, Group, GroupName, Grouper, Gtid,
    GtidSet, Payload, Seen, Step, StreamError, flags, format_for_replica, normalise_gtid,
    uuid_text, with_checksum,
};

use super::mirror::Mirror;
use crate::store::{History, Kind, Part, Place};

/// Why what the primary sends cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    /// Damaged, or not understood.
    #[error("What the primary sent cannot be followed. {0}")]
    Stream(#[from] StreamError),
    /// The same.
    #[error("What the primary sent cannot be stored. {0}")]
    Event(#[from] EventError),
    /// Groups without GTIDs.
    #[error(
        "The primary sent a transaction without a GTID of MariaDB. A MariaDB server since 10.0 has them always; of another \
         primary the files are mirrored: set follow = file and begin with an empty directory."
    )]
    Nameless,
    /// Groups without GTIDs of MySQL, or with tags.
    #[error(
        "The primary sent a transaction that has no GTID of MySQL, or one with a tag (MySQL 8.3), which is not known to this \
         build. With follow = mysql_gtid it must have gtid_mode = ON. Nothing of it was stored."
    )]
    NotOfMySql,
    /// A group that is here already.
    #[error(
        "The primary sent {server}:{number}, which the relay has already. This is another history: RESET MASTER was run on the \
         primary, or it is another server. Nothing of it was stored. Begin with an empty directory, or connect to the right \
         primary.",
        server = uuid_text(of)
    )]
    AgainOf {
        /// Its source.
        of: [u8; 16],
        /// Its number there.
        number: u64,
    },
    /// A group that is here already.
    #[error(
        "The primary sent {gtid}, but the relay has {server} up to {seqno} in domain {domain} already. Nothing of it was stored. Either \
         this is another history (RESET MASTER was run on the primary, or it is another server): begin with an empty directory, or \
         connect to the right primary. Or the numbers of server {server} went back (a binlog was replayed there without \
         gtid_strict_mode), which a relay cannot store: let the replicas follow the primary itself until they are past that, then \
         begin the relay with an empty directory and start = the gtid_binlog_pos that the primary has by then.",
        server = gtid.server, domain = gtid.domain
    )]
    Again {
        /// What came.
        gtid: Gtid,
        /// The last one of that server.
        seqno: u64,
    },
    /// A mirror without checksums could not find damage.
    #[error(
        "The primary ({version}) writes no checksums into its binlog. Mirrored files need them: SET GLOBAL binlog_checksum = \
         CRC32 there, then begin with the file that is written then (start)."
    )]
    NoChecksums {
        /// Its version.
        version: String,
    },
    /// A mirror's files are called as the primary's.
    #[error(
        "The primary's file is called {name}, the relay's are {prefix}.NNNNNN. With follow = file they must be called the same: \
         set log_bin to what stands before the dot."
    )]
    Names {
        /// Of the primary's file.
        name: String,
        /// Of the relay's.
        prefix: String,
    },
    /// It does not fit at the end of what is stored.
    #[error(
        "The primary sends what stands at {sent}, but the relay's files end at {end}. Something is missing between, or the \
         primary has lost what it had sent (a crash with sync_binlog = 0), or it is another server. Nothing of it was stored. If the \
         primary is right, begin with an empty directory."
    )]
    Hole {
        /// Where it stands there.
        sent: Place,
        /// Where it would stand here.
        end: Place,
    },
    /// Only MariaDB's GTIDs can be followed in an encrypted binlog.
    #[error(
        "The primary's binlog is encrypted: its events do not stand where its clear ones would. Set follow = gtid."
    )]
    Encrypted,
    /// A server older than checksums.
    #[error("The primary ({version}) is too old: its events cannot have checksums.")]
    Old {
        /// Its version.
        version: String,
    },
}

/// What to do with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is not stored.
    Nothing,
    /// A file begins with this format description.
    File(Vec<u8>),
    /// It is stored.
    Store(Vec<u8>, Part),
    /// The mirror of the primary's file of this number begins with this format description.
    Mirror(u64, Vec<u8>),
    /// It is stored, though it belongs to no group: in a mirror.
    Between(Vec<u8>),
}

impl Act {
    /// Of a mirror that ended here: where it ends when this is done; `None`: nothing is done.
    fn end(&self, end: Option<Place>) -> Option<Place> {
        match self {
            Act::Nothing | Act::File(_) => None,
            Act::Mirror(file, raw) => Some(Place {
                file: *file,
                at: (FILE_MAGIC.len() + raw.len()) as u64,
            }),
            Act::Store(raw, _) | Act::Between(raw) => end.map(|end| Place {
                file: end.file,
                at: end.at + raw.len() as u64,
            }),
        }
    }
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// First of all: the group that is open will never be finished.
    pub abandon: bool,
    /// What to do.
    pub act: Act,
    /// It is out of the order of its domain's numbers (a primary without gtid_strict_mode).
    pub unordered: Option<Gtid>,
    /// The primary is there: all up to [`Ingest::place`] was sent, or was here before.
    pub heartbeat: bool,
    /// And it has nothing more. MySQL says where it is also behind groups that it leaves out, before it
    /// goes on: there it counts only when the place is no new one.
    pub idle: bool,
    /// When the event was made, in seconds of the primary's clock; 0: it does not say.
    pub time: u32,
    /// Of the group that is whole with it.
    pub hint: Option<Hint>,
}

/// Follows one connection after the other.
#[derive(Debug)]
pub struct Ingest {
    grouper: Grouper,
    /// The primary's file, and where in it the last event ended.
    file: Vec<u8>,
    position: u64,
    hints: Option<Hints>,
    mirror: Option<Mirror>,
    kind: Kind,
    /// Of MySQL with GTIDs: the primary's file whose groups stand in the current one.
    counted: Option<Counted>,
    /// Of MariaDB: the primary's file that began with its last start. Two may be in one second.
    started_in: Option<Vec<u8>>,
    /// No format description has come over this connection.
    fresh: bool,
    /// When the last group was committed on the primary, in milliseconds since 1970, if it says so.
    committed_ms: Option<u64>,
}

/// A file of a primary of MySQL: what tells it from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    name: Vec<u8>,
    /// Of its format description: who made it, and when.
    server_id: u32,
    timestamp: u32,
}

impl Counted {
    /// Whether the same server began it later.
    fn follows(&self, before: &Counted) -> bool {
        self.server_id == before.server_id && self.timestamp > before.timestamp
    }
}

impl Default for Ingest {
    fn default() -> Ingest {
        Ingest::new()
    }
}

impl Ingest {
    /// Before the first connection.
    pub fn new() -> Ingest {
        Ingest {
            grouper: Grouper::of_connection(),
            file: Vec::new(),
            position: 0,
            hints: None,
            mirror: None,
            kind: Kind::MariaDb,
            counted: None,
            started_in: None,
            fresh: true,
            committed_ms: None,
        }
    }

    /// The same, of a primary of MySQL with GTIDs.
    pub fn of_mysql() -> Ingest {
        Ingest {
            kind: Kind::MySql,
            ..Ingest::new()
        }
    }

    /// The same, of a primary whose files of these names are mirrored.
    pub fn mirroring(prefix: &str) -> Ingest {
        Ingest {
            mirror: Some(Mirror::new(prefix.to_owned())),
            kind: Kind::Mirror,
            ..Ingest::new()
        }
    }

    /// The same, and it computes hints, which know all up to what is stored.
    #[must_use]
    pub fn with_hints(self, hints: Hints) -> Ingest {
        Ingest {
            hints: Some(hints),
            ..self
        }
    }

    /// What computes hints.
    pub fn hints(&mut self) -> Option<&mut Hints> {
        self.hints.as_mut()
    }

    /// The connection was lost. What came of an open group is to be taken back.
    pub fn interrupt(&mut self) {
        self.grouper = Grouper::of_connection();
        self.file.clear();
        self.position = 0;
        self.fresh = true;
        self.committed_ms = None;
        if let Some(mirror) = &mut self.mirror {
            mirror.interrupt();
        }
        if let Some(hints) = &mut self.hints {
            hints.interrupt();
        }
    }

    /// The primary's file and the end of the last event in it.
    pub fn place(&self) -> (&[u8], u64) {
        (&self.file, self.position)
    }

    /// When what came last was made, in milliseconds of the primary's clock. MySQL from 8.0 on says when a
    /// group was committed; else it is what the event itself says: whole seconds, `time`.
    pub fn made_ms(&self, time: u32) -> u64 {
        self.committed_ms.unwrap_or(u64::from(time) * 1000)
    }

    /// An event as it was sent. `state`: what is stored; `current`: the format of the current file;
    /// `end`: of what is stored, whether or not it is whole.
    pub fn event(
        &mut self,
        raw: &[u8],
        state: &History,
        current: Option<&Format>,
        end: Option<Place>,
    ) -> Result<Taken, IngestError> {
        let seen = self.grouper.event(raw)?;
        let event = seen.event;
        if let Step::Begin(_) | Step::Alone(..) | Step::Between = seen.step {
            self.committed_ms = committed_ms(&event);
        }
        let mut taken = Taken {
            abandon: seen.abandoned.is_some(),
            act: Act::Nothing,
            unordered: None,
            heartbeat: is_heartbeat(event.kind()),
            idle: false,
            time: match event.header().kind {
                // Of its file's beginning.
                EventType::FORMAT_DESCRIPTION
                | EventType::GTID_LIST
                | EventType::PREVIOUS_GTIDS => 0,
                _ => event.header().timestamp,
            },
            hint: None,
        };
        let header = *event.header();
        let before = self.position;
        if let Some((file, position)) = whole_place(&event, &self.file) {
            if self.file != file {
                self.file = file.to_vec();
            }
            self.position = position;
        } else if header.end_pos != 0 && !header.has(flags::ARTIFICIAL) {
            // 32 bits of it are sent.
            let low = u64::from(header.end_pos);
            let high = self.position & !0xffff_ffff;
            self.position = match low < self.position & 0xffff_ffff {
                true if header.kind != EventType::FORMAT_DESCRIPTION => high + (1 << 32) + low,
                _ => high + low,
            };
        }
        let leaves_out = self.kind == Kind::MySql && self.position != before;
        taken.idle = taken.heartbeat && !leaves_out;
        if let Some(mirror) = &mut self.mirror {
            let mut taken = mirror.event(&seen, &self.grouper, end)?;
            if event.kind() == EventType::ROTATE && header.has(flags::ARTIFICIAL) {
                self.between(&event, current, state)?;
            }
            taken.hint = self.look_mirrored(&seen, &taken.act, end);
            return Ok(taken);
        }
        let part = match seen.step {
            Step::Between => {
                taken.act = self.between(&event, current, state)?;
                self.look(&seen);
                return Ok(taken);
            }
            Step::Begin(group) => {
                match self.name(&group, header.kind)? {
                    GroupName::MariaDb(gtid) => taken.unordered = ordered(gtid, state)?,
                    GroupName::MySql { source, number }
                        if state.mysql.contains(&source, number) =>
                    {
                        return Err(IngestError::AgainOf { of: source, number });
                    }
                    _ => {}
                }
                Part::Begin
            }
            Step::Within => Part::Within,
            Step::End(group, _) => Part::End(self.name(&group, header.kind)?, group.timestamp),
            Step::Alone(group, _) => Part::Alone(self.name(&group, header.kind)?, group.timestamp),
        };
        taken.act = Act::Store(stored(&event)?, part);
        taken.hint = self.look(&seen);
        Ok(taken)
    }

    /// The primary is in the file that begins with this event. Gives the one before, if that is known.
    fn counts_in(&mut self, event: &Event<'_>) -> (Option<Counted>, Counted) {
        let header = event.header();
        let file = Counted {
            name: self.file.clone(),
            server_id: header.server_id,
            timestamp: header.timestamp,
        };
        (self.counted.replace(file.clone()), file)
    }

    /// The name of a group; an incident of MariaDB has none.
    fn name(&self, group: &Group, kind: EventType) -> Result<GroupName, IngestError> {
        match (self.kind, group.name) {
            (Kind::MySql, GroupName::MySql { number, .. }) if GtidSet::is_number(number) => {
                Ok(group.name)
            }
            (Kind::MySql, _) => Err(IngestError::NotOfMySql),
            (_, GroupName::MariaDb(_)) => Ok(group.name),
            (_, GroupName::Nameless) if kind == EventType::INCIDENT => Ok(group.name),
            (_, GroupName::Nameless | GroupName::MySql { .. }) => Err(IngestError::Nameless),
        }
    }

    fn look(&mut self, seen: &Seen<'_>) -> Option<Hint> {
        let hints = self.hints.as_mut()?;
        hints.event(seen, self.grouper.format()?)
    }

    /// As [`Ingest::look`], in files in which the places are names.
    fn look_mirrored(&mut self, seen: &Seen<'_>, act: &Act, end: Option<Place>) -> Option<Hint> {
        let hints = self.hints.as_mut()?;
        if let Act::Mirror(..) = act {
            hints.begin_file();
        }
        let end = act.end(end).filter(|_| self.grouper.open().is_none());
        let end = end.map(Place::as_position);
        hints.event_at(seen, self.grouper.format()?, end)
    }

    fn between(
        &mut self,
        event: &Event<'_>,
        current: Option<&Format>,
        state: &History,
    ) -> Result<Act, IngestError> {
        match event.kind() {
            EventType::ROTATE => {
                let format = self.grouper.format().cloned();
                let format = format.unwrap_or_else(Format::unknown);
                if let Payload::Rotate(rotate) = event.decode(&format)? {
                    self.file = rotate.file.to_vec();
                    self.position = rotate.position;
                }
                Ok(Act::Nothing)
            }
            EventType::FORMAT_DESCRIPTION => {
                // Without checksums its own one is stale, and was not looked at.
                let format = Format::of(event)?;
                if format.checksum.is_none() {
                    return Err(IngestError::Old {
                        version: format.version_text(),
                    });
                }
                // None stands in it amid a file, or where one follows another by itself.
                let before = match format.created {
                    0 => None,
                    _ => self.started_in.replace(self.file.clone()),
                };
                let elsewhere = before.is_some_and(|file| file != self.file);
                let known = current.is_some_and(|current| {
                    let restarted = format.created != 0 && format.created != current.created;
                    !restarted
                        && !elsewhere
                        && current.server_version == format.server_version
                        && current.post_header_lens == format.post_header_lens
                });
                let fresh = std::mem::take(&mut self.fresh);
                let (known, again) = match self.kind {
                    Kind::MySql => {
                        let (before, now) = self.counts_in(event);
                        let same = before.as_ref() == Some(&now) && current.is_some();
                        // MySQL may say again that it was started, long ago: replicas would drop temporary
                        // tables that are in use. A file that was begun since the last one is news.
                        let news = before.is_some_and(|before| now.follows(&before));
                        (same, fresh && !news && !state.mysql.is_empty())
                    }
                    Kind::MariaDb | Kind::Mirror => (known, false),
                };
                if known {
                    return Ok(Act::Nothing);
                }
                if let (Kind::MySql, Some(hints)) = (self.kind, &mut self.hints) {
                    // Sequence numbers begin anew, with those of another file of the primary.
                    hints.begin_file();
                }
                let closed = format_for_replica(event, !again)?;
                let closed = Event::parse(&closed, Checksum::Crc32)?;
                let secured = with_checksum(&closed, Checksum::Crc32)?;
                Ok(Act::File(secured.into_owned()))
            }
            _ => Ok(Act::Nothing),
        }
    }
}

/// When the group that begins with this event was committed on the primary, if it says so.
fn committed_ms(event: &Event<'_>) -> Option<u64> {
    let says = [EventType::MYSQL_GTID, EventType::ANONYMOUS_GTID].contains(&event.kind());
    match says.then(|| event.decode(&Format::unknown())) {
        Some(Ok(Payload::MySqlGtid(gtid))) => gtid.commit.map(|commit| commit.time / 1000),
        _ => None,
    }
}

/// That the primary is there and has nothing more; newer ones of MySQL say it in another way.
pub(super) fn is_heartbeat(kind: EventType) -> bool {
    kind == EventType::HEARTBEAT || kind == EventType::HEARTBEAT_V2
}

/// Where the primary is, of a heartbeat that says all of it: MariaDB's beyond 4 GiB, MySQL's second kind, and one of
/// another file than this. A primary says that its next file follows before it has made that; if it takes
/// long, it sends heartbeats of the one before.
fn whole_place<'a>(event: &Event<'a>, file: &[u8]) -> Option<(&'a [u8], u64)> {
    let decoded = is_heartbeat(event.kind()).then(|| event.decode(&Format::unknown()));
    let Some(Ok(Payload::Heartbeat(beat))) = decoded else {
        return None;
    };
    let long = event.kind() == EventType::HEARTBEAT_V2 || event.header().end_pos == 0;
    let is_place = !beat.file.is_empty() && beat.position > 0;
    (is_place && (long || beat.file != file)).then_some((beat.file, beat.position))
}

/// Refuses what is here already. Gives the GTID if it is not the highest of its domain.
fn ordered(gtid: Gtid, state: &History) -> Result<Option<Gtid>, IngestError> {
    let state = &state.mariadb;
    if let Some(seqno) = state.get(gtid.domain, gtid.server)
        && seqno >= gtid.seqno
    {
        return Err(IngestError::Again { gtid, seqno });
    }
    let last = state.position().get(gtid.domain);
    Ok(last.filter(|last| last.seqno >= gtid.seqno).map(|_| gtid))
}

fn stored(event: &Event<'_>) -> Result<Vec<u8>, IngestError> {
    if event.kind() != EventType::GTID {
        return Ok(with_checksum(event, Checksum::Crc32)?.into_owned());
    }
    let roomy = normalise_gtid(event)?;
    let roomy = Event::parse_unverified(&roomy, event.checksum())?;
    Ok(with_checksum(&roomy, Checksum::Crc32)?.into_owned())
}
