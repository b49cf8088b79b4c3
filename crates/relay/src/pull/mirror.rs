//! What a primary without GTIDs of MariaDB sends, made into files that equal its own. Decides;
//! stores nothing itself.
//!
//! Such a primary can only be asked for what stands behind a byte of a file. So its files are
//! mirrored: the same numbers, every event at its byte. Then the end of what is stored *is* the
//! position, and no crash can part the two; and a replica may go from the primary to the relay and
//! back with the coordinates that it has.
//!
//! | event | becomes |
//! |---|---|
//! | made up by the primary (rotate, format description, …), heartbeat | nothing |
//! | format description of a new file | the beginning of the file of that number |
//! | all else, also rotate, stop and previous GTIDs | the same bytes, if they fit at the end |

use dromon_binlog::{
    Checksum, Event, EventType, Format, GroupName, Grouper, Payload, Seen, Step, flags,
    format_for_replica,
};

use super::ingest::{Act, IngestError, Taken};
use crate::store::{Part, Place, file_number};

/// Where the primary is, as it says.
#[derive(Debug)]
pub(super) struct Mirror {
    /// What the names of its files begin with.
    prefix: String,
    /// Its current file.
    number: Option<u64>,
}

impl Mirror {
    pub(super) fn new(prefix: String) -> Mirror {
        Mirror {
            prefix,
            number: None,
        }
    }

    /// The next connection begins anew.
    pub(super) fn interrupt(&mut self) {
        self.number = None;
    }

    /// Takes an event. `end`: of what is stored, whether or not it is whole.
    pub(super) fn event(
        &mut self,
        seen: &Seen<'_>,
        grouper: &Grouper,
        end: Option<Place>,
    ) -> Result<Taken, IngestError> {
        let event = &seen.event;
        let header = event.header();
        let made_up = header.end_pos == 0 || header.has(flags::ARTIFICIAL);
        let mut taken = Taken {
            abandon: seen.abandoned.is_some(),
            act: Act::Nothing,
            unordered: None,
            heartbeat: super::ingest::is_heartbeat(event.kind()),
            idle: super::ingest::is_heartbeat(event.kind()),
            time: match event.kind() {
                EventType::FORMAT_DESCRIPTION => 0,
                _ => header.timestamp,
            },
            hint: None,
        };
        taken.act = match event.kind() {
            EventType::HEARTBEAT | EventType::HEARTBEAT_V2 => Act::Nothing,
            EventType::ROTATE if made_up => {
                self.turn(event, grouper, end)?;
                Act::Nothing
            }
            EventType::FORMAT_DESCRIPTION => self.begin(event, end)?,
            EventType::START_ENCRYPTION => return Err(IngestError::Encrypted),
            _ if made_up => Act::Nothing,
            _ => {
                self.fits(event, end, taken.abandon)?;
                let raw = event.raw().to_vec();
                match seen.step {
                    Step::Between => Act::Between(raw),
                    Step::Begin(_) => Act::Store(raw, Part::Begin),
                    Step::Within => Act::Store(raw, Part::Within),
                    Step::End(group, _) => {
                        Act::Store(raw, Part::End(GroupName::Nameless, group.timestamp))
                    }
                    Step::Alone(group, _) => {
                        Act::Store(raw, Part::Alone(GroupName::Nameless, group.timestamp))
                    }
                }
            }
        };
        Ok(taken)
    }

    /// It says which file it goes on with, and where.
    fn turn(
        &mut self,
        event: &Event<'_>,
        grouper: &Grouper,
        end: Option<Place>,
    ) -> Result<(), IngestError> {
        let format = grouper.format().cloned();
        let format = format.unwrap_or_else(Format::unknown);
        let Payload::Rotate(rotate) = event.decode(&format)? else {
            return Ok(());
        };
        let name = String::from_utf8_lossy(rotate.file).into_owned();
        let number = file_number(&self.prefix, &name).ok_or_else(|| IngestError::Names {
            name: name.clone(),
            prefix: self.prefix.clone(),
        })?;
        let there = Place {
            file: number,
            at: rotate.position,
        };
        let follows = match end {
            None => there.at == 4,
            Some(end) if end.file == number => there.at == end.at,
            Some(end) => number == end.file + 1 && there.at == 4,
        };
        if !follows {
            return Err(hole(there, end));
        }
        self.number = Some(number);
        Ok(())
    }

    fn begin(&self, event: &Event<'_>, end: Option<Place>) -> Result<Act, IngestError> {
        let format = Format::of(event)?;
        if format.checksum != Some(Checksum::Crc32) {
            return Err(IngestError::NoChecksums {
                version: format.version_text(),
            });
        }
        let Some(number) = self.number else {
            return Err(hole(Place::default(), end));
        };
        // It comes again at each connection.
        if end.is_some_and(|end| end.file == number) {
            return Ok(Act::Nothing);
        }
        Ok(Act::Mirror(number, format_for_replica(event, true)?))
    }

    /// Its place on the primary must be that at which it will stand here.
    fn fits(
        &self,
        event: &Event<'_>,
        end: Option<Place>,
        abandons: bool,
    ) -> Result<(), IngestError> {
        let len = event.raw().len() as u64;
        let said = u64::from(event.header().end_pos);
        let here = end.filter(|end| Some(end.file) == self.number);
        // Within a file a group that nothing became of would still stand there.
        let fits = !abandons && here.is_some_and(|end| (end.at + len) & 0xffff_ffff == said);
        match fits {
            true => Ok(()),
            false => Err(hole(
                Place {
                    file: self.number.unwrap_or(0),
                    at: said.saturating_sub(len),
                },
                end,
            )),
        }
    }
}

fn hole(sent: Place, end: Option<Place>) -> IngestError {
    IngestError::Hole {
        sent,
        end: end.unwrap_or_default(),
    }
}
