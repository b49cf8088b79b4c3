//! What a primary sends, made into what is stored. Decides; stores nothing itself.
//!
//! | event | becomes |
//! |---|---|
//! | of a group | the same, ending with CRC-32, told its new place; a GTID event with room for a commit id |
//! | format description | the beginning of a file if it says something new, else nothing |
//! | rotate, GTID list, checkpoint, stop, encryption, heartbeat | nothing: the relay's files have their own |

use dromon_binlog::hints::{Hint, Hints};
use dromon_binlog::{
    BinlogState, Checksum, Event, EventError, EventType, FILE_MAGIC, Format, Group, GroupName,
    Grouper, Gtid, Payload, Seen, Step, StreamError, flags, format_for_replica, normalise_gtid,
    with_checksum,
};

use super::mirror::Mirror;
use crate::store::{Part, Place};

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
    /// A group that is here already.
    #[error(
        "The primary sent {gtid}, but the relay has {server} up to {seqno} in domain {domain} already. This is another history: RESET \
         MASTER was run on the primary, or it is another server. Nothing of it was stored. Begin with an empty directory, or \
         connect to the right primary.",
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
    /// The primary has nothing more: all up to [`Ingest::place`] was sent, or was here before.
    pub heartbeat: bool,
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
        }
    }

    /// The same, of a primary whose files of these names are mirrored.
    pub fn mirroring(prefix: &str) -> Ingest {
        Ingest {
            mirror: Some(Mirror::new(prefix.to_owned())),
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

    /// An event as it was sent. `state`: what is stored; `current`: the format of the current file;
    /// `end`: of what is stored, whether or not it is whole.
    pub fn event(
        &mut self,
        raw: &[u8],
        state: &BinlogState,
        current: Option<&Format>,
        end: Option<Place>,
    ) -> Result<Taken, IngestError> {
        let seen = self.grouper.event(raw)?;
        let event = seen.event;
        let mut taken = Taken {
            abandon: seen.abandoned.is_some(),
            act: Act::Nothing,
            unordered: None,
            heartbeat: event.kind() == EventType::HEARTBEAT,
            time: match event.header().kind {
                // Of its file's beginning.
                EventType::FORMAT_DESCRIPTION | EventType::GTID_LIST => 0,
                _ => event.header().timestamp,
            },
            hint: None,
        };
        let header = *event.header();
        if header.end_pos != 0 && !header.has(flags::ARTIFICIAL) {
            // 32 bits of it are sent.
            let low = u64::from(header.end_pos);
            let high = self.position & !0xffff_ffff;
            self.position = match low < self.position & 0xffff_ffff {
                true if header.kind != EventType::FORMAT_DESCRIPTION => high + (1 << 32) + low,
                _ => high + low,
            };
        }
        if let Some(mirror) = &mut self.mirror {
            let mut taken = mirror.event(&seen, &self.grouper, end)?;
            if event.kind() == EventType::ROTATE && header.has(flags::ARTIFICIAL) {
                self.between(&event, current)?;
            }
            taken.hint = self.look_mirrored(&seen, &taken.act, end);
            return Ok(taken);
        }
        let part = match seen.step {
            Step::Between => {
                taken.act = self.between(&event, current)?;
                self.look(&seen);
                return Ok(taken);
            }
            Step::Begin(group) => {
                let gtid = name(&group, header.kind)?;
                if let Some(gtid) = gtid {
                    taken.unordered = ordered(gtid, state)?;
                }
                Part::Begin
            }
            Step::Within => Part::Within,
            Step::End(group, _) => Part::End(name(&group, header.kind)?, group.timestamp),
            Step::Alone(group, _) => Part::Alone(name(&group, header.kind)?, group.timestamp),
        };
        taken.act = Act::Store(stored(&event)?, part);
        taken.hint = self.look(&seen);
        Ok(taken)
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

    fn between(&mut self, event: &Event<'_>, current: Option<&Format>) -> Result<Act, IngestError> {
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
                let format = Format::decode(event.raw())?;
                if format.checksum.is_none() {
                    return Err(IngestError::Old {
                        version: format.version_text(),
                    });
                }
                let known = current.is_some_and(|current| {
                    let restarted = format.created != 0 && format.created != current.created;
                    !restarted
                        && current.server_version == format.server_version
                        && current.post_header_lens == format.post_header_lens
                });
                if known {
                    return Ok(Act::Nothing);
                }
                let closed = format_for_replica(event, true)?;
                let closed = Event::parse(&closed, Checksum::Crc32)?;
                let secured = with_checksum(&closed, Checksum::Crc32)?;
                Ok(Act::File(secured.into_owned()))
            }
            _ => Ok(Act::Nothing),
        }
    }
}

/// The name of a group; an incident has none.
fn name(group: &Group, kind: EventType) -> Result<Option<Gtid>, IngestError> {
    match group.name {
        GroupName::MariaDb(gtid) => Ok(Some(gtid)),
        GroupName::Nameless if kind == EventType::INCIDENT => Ok(None),
        GroupName::Nameless | GroupName::MySql { .. } => Err(IngestError::Nameless),
    }
}

/// Refuses what is here already. Gives the GTID if it is not the highest of its domain.
fn ordered(gtid: Gtid, state: &BinlogState) -> Result<Option<Gtid>, IngestError> {
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
