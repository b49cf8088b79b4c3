//! Events that a relay makes itself, and the few changes it makes to others.
//!
//! All else is stored and sent on byte for byte. What may be changed, and why:
//!
//! | what | how | why |
//! |---|---|---|
//! | GTID event of MariaDB | [`normalise_gtid`], once, when it is stored | room for a commit id, so that hints can be set in place |
//! | the same | [`patch_gtid`], when it is sent | hints for parallel replicas |
//! | GTID event of MySQL | [`patch_clock`], when it is sent | the same |
//! | any that is stored in another file | [`place`], once, when it is stored | the end position |
//! | format description | [`format_for_replica`], when it is sent | a replica that starts in the middle of a file must not take it for a restart of the primary |
//! | any | [`with_checksum`], when it is sent | a replica that wants no checksums, or a primary that sent none |

use std::borrow::Cow;

use crate::bytes::{put_le, put_lenenc};
use crate::checksum::{self, CRC_LEN, Checksum};
use crate::error::{EventError, Flaw};
use crate::event::{Event, Payload};
use crate::format::Format;
use crate::gtid_event::{GtidEvent, gtid_extra, gtid_flags};
use crate::gtid_list::GtidList;
use crate::gtid_set::GtidSet;
use crate::header::{EventType, FLAGS_AT, HEADER_LEN, Header, flags};
use crate::mysql_gtid::{CLOCK_AT, LogicalClock, MySqlGtid};

/// Where an event that is made will stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file, at this byte.
    At(u64),
    /// In no file: it is made for one replica.
    Nowhere,
}

/// Who makes an event, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    /// Its server id.
    pub server_id: u32,
    /// In seconds since 1970; 0 in what stands nowhere.
    pub timestamp: u32,
    /// What other events of the file or connection have.
    pub checksum: Checksum,
    /// Where it will stand.
    pub place: Place,
}

impl Maker {
    fn event(&self, kind: EventType, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        let artificial = self.place == Place::Nowhere;
        let mut header = Header {
            timestamp: self.timestamp,
            kind,
            server_id: self.server_id,
            len: 0,
            end_pos: 0,
            flags: if artificial { flags::ARTIFICIAL } else { 0 },
        };
        header.encode(&mut out);
        fill(&mut out);
        if let Place::At(at) = self.place {
            header.end_pos = (at + (out.len() + self.checksum.size()) as u64) as u32;
            let mut again = Vec::with_capacity(HEADER_LEN);
            header.encode(&mut again);
            out[..HEADER_LEN].copy_from_slice(&again);
        }
        checksum::seal(&mut out, 0, self.checksum);
        out
    }

    /// Names the next file. Standing nowhere, it tells a replica which file
    /// the events come from that follow.
    pub fn rotate(&self, file: &str, position: u64) -> Vec<u8> {
        self.event(EventType::ROTATE, |out| {
            out.extend_from_slice(&position.to_le_bytes());
            out.extend_from_slice(file.as_bytes());
        })
    }

    /// The beginning of a file, of the format of another one. Its own checksum
    /// it has whatever the others have, if the format knows any.
    pub fn format(&self, format: &Format) -> Vec<u8> {
        let own = format.checksum.map(|_| self.checksum);
        let maker = Maker {
            checksum: match own {
                Some(_) => Checksum::Crc32,
                None => Checksum::Off,
            },
            ..*self
        };
        maker.event(EventType::FORMAT_DESCRIPTION, |out| {
            let format = Format {
                checksum: own,
                ..format.clone()
            };
            format.encode(out);
        })
    }

    /// What came before in all domains.
    pub fn gtid_list(&self, list: &GtidList) -> Vec<u8> {
        self.event(EventType::GTID_LIST, |out| list.encode(out))
    }

    /// What came before, of MySQL.
    pub fn previous_gtids(&self, set: &GtidSet) -> Vec<u8> {
        let mut raw = self.event(EventType::PREVIOUS_GTIDS, |out| set.encode(out));
        // As MySQL writes it: who does not know it may leave it out.
        raw[FLAGS_AT] |= flags::IGNORABLE as u8;
        if self.checksum == Checksum::Crc32 {
            checksum::mend(&mut raw);
        }
        raw
    }

    /// There is nothing to send; the end is at `position` of `file`. Gives
    /// `None` if the position does not fit into its 32 bits, or is 0, which
    /// would say that it stands elsewhere.
    ///
    /// The place of the maker has no meaning here. Servers leave its time at 0.
    pub fn heartbeat(&self, file: &str, position: u64) -> Option<Vec<u8>> {
        let end_pos = u32::try_from(position).ok().filter(|end| *end > 0)?;
        Some(self.beat(end_pos, &[], file))
    }

    /// The same of any position, for replicas of MariaDB 10.2.38, 10.3.29, 10.4.19, 10.5.10 and
    /// later. Others take it for damage.
    pub fn heartbeat_long(&self, file: &str, position: u64) -> Vec<u8> {
        self.beat(0, &position.to_le_bytes(), file)
    }

    fn beat(&self, end_pos: u32, position: &[u8], file: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let header = Header {
            timestamp: self.timestamp,
            kind: EventType::HEARTBEAT,
            server_id: self.server_id,
            len: 0,
            end_pos,
            // As MariaDB sends it, though it stands in no file.
            flags: 0,
        };
        header.encode(&mut out);
        out.extend_from_slice(position);
        out.extend_from_slice(file.as_bytes());
        checksum::seal(&mut out, 0, self.checksum);
        out
    }

    /// The same for replicas of MySQL 8.0.26 and later that asked for it.
    pub fn heartbeat_v2(&self, file: &str, position: u64) -> Vec<u8> {
        let maker = Maker {
            timestamp: 0,
            place: Place::Nowhere,
            ..*self
        };
        maker.event(EventType::HEARTBEAT_V2, |out| {
            out.push(1);
            put_lenenc(out, file.len() as u64);
            out.extend_from_slice(file.as_bytes());
            let mut number = Vec::new();
            put_lenenc(&mut number, position);
            out.push(2);
            put_lenenc(out, number.len() as u64);
            out.extend_from_slice(&number);
            out.push(0);
        })
    }

    /// The end of a file whose server stops.
    pub fn stop(&self) -> Vec<u8> {
        self.event(EventType::STOP, |_| {})
    }
}

/// The event with another checksum, or none. Its end position stays that of
/// the file it comes from.
///
/// A format description keeps its own checksum, mended if the primary did not;
/// the byte in it which speaks of the others is changed.
pub fn with_checksum<'a>(event: &Event<'a>, wanted: Checksum) -> Result<Cow<'a, [u8]>, EventError> {
    if event.kind() == EventType::FORMAT_DESCRIPTION {
        let format = Format::read(event.raw())?;
        if format.checksum.is_none() && wanted == Checksum::Crc32 {
            return Err(EventError {
                kind: event.kind(),
                offset: HEADER_LEN,
                flaw: Flaw::Unsupported("a server so old knows no checksums"),
            });
        }
        let fits = format.checksum.is_none() || checksum::verify(event.raw()).is_ok();
        if fits && format.checksum() == wanted {
            return Ok(Cow::Borrowed(event.raw()));
        }
        let mut out = event.raw().to_vec();
        let at = out.len() - CRC_LEN - 1;
        out[at] = wanted.number();
        checksum::mend(&mut out);
        return Ok(Cow::Owned(out));
    }
    if event.checksum() == wanted {
        return Ok(Cow::Borrowed(event.raw()));
    }
    let without = event.raw().len() - event.checksum().size();
    let mut out = event.raw()[..without].to_vec();
    checksum::seal(&mut out, 0, wanted);
    Ok(Cow::Owned(out))
}

/// Where the end position stands.
const END_POS_AT: usize = 13;

/// Tells an event, in place, at which byte of a file it stands now, and mends
/// its checksum. It must have been checked before, as an [`Event`].
pub fn place(raw: &mut [u8], checksum: Checksum, at: u64) -> Result<(), EventError> {
    let event = Event::parse_unverified(raw, checksum)?;
    let has_checksum = event.checksum() == Checksum::Crc32;
    let end = at + raw.len() as u64;
    raw[END_POS_AT..END_POS_AT + 4].copy_from_slice(&(end as u32).to_le_bytes());
    if has_checksum {
        checksum::mend(raw);
    }
    Ok(())
}

/// The format description of a file for a replica: the file counts as closed,
/// and one that starts in the middle is told neither that the primary was
/// restarted nor a position.
pub fn format_for_replica(event: &Event<'_>, from_beginning: bool) -> Result<Vec<u8>, EventError> {
    const CREATED_AT: usize = HEADER_LEN + 52;
    let format = Format::read(event.raw())?;
    let mut out = event.raw().to_vec();
    out[FLAGS_AT] &= !(flags::IN_USE as u8);
    if !from_beginning {
        out[CREATED_AT..CREATED_AT + 4].fill(0);
        out[END_POS_AT..END_POS_AT + 4].fill(0);
    }
    if format.checksum.is_some() {
        checksum::mend(&mut out);
    }
    Ok(out)
}

/// Hints in MariaDB's GTID event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GtidHint {
    /// Groups in sequence with the same one run in parallel, without doubt.
    pub commit_id: Option<u64>,
    /// Those of [`GtidHint::FLAGS`] which shall be set; the others of them are
    /// cleared. `None`: they stay as they are.
    pub flags: Option<u8>,
}

impl GtidHint {
    /// The flags that a hint can change. The others say what the group is.
    pub const FLAGS: u8 = gtid_flags::TRANSACTIONAL
        | gtid_flags::ALLOW_PARALLEL
        | gtid_flags::WAITED
        | gtid_flags::DDL;
}

/// Bytes of a commit id.
const COMMIT_ID_LEN: usize = 8;

fn gtid_of<'a>(event: &Event<'a>) -> Result<GtidEvent<'a>, EventError> {
    match event.decode(&Format::unknown())? {
        Payload::Gtid(gtid) => Ok(gtid),
        _ => Err(EventError {
            kind: event.kind(),
            offset: 4,
            flaw: Flaw::Unsupported("a GTID event of MariaDB was expected here"),
        }),
    }
}

/// Whether behind the parts stands nothing but padding.
fn is_plain(gtid: &GtidEvent<'_>) -> bool {
    let known = gtid
        .extra
        .is_none_or(|extra| extra.flags & !gtid_extra::KNOWN == 0);
    known && gtid.tail.iter().all(|b| *b == 0)
}

/// Whether a commit id can be set and taken away in place.
///
/// Without room one that stands there can still be exchanged for another.
pub fn has_room(event: &Event<'_>) -> Result<bool, EventError> {
    let gtid = gtid_of(event)?;
    Ok(is_plain(&gtid) && (gtid.commit_id.is_some() || gtid.tail.len() >= COMMIT_ID_LEN))
}

/// A GTID event with room for a commit id: itself if it has one, else with
/// zeros behind its parts, which servers ignore. It says what it said before.
///
/// An event with parts that this build does not know is left as it is, as
/// nobody can say where they end: see [`has_room`].
pub fn normalise_gtid<'a>(event: &Event<'a>) -> Result<Cow<'a, [u8]>, EventError> {
    let gtid = gtid_of(event)?;
    if has_room(event)? || !is_plain(&gtid) {
        return Ok(Cow::Borrowed(event.raw()));
    }
    let roomy = GtidEvent {
        tail: &[0; COMMIT_ID_LEN],
        ..gtid
    };
    let mut out = event.raw()[..HEADER_LEN].to_vec();
    roomy.encode(&mut out);
    checksum::seal(&mut out, 0, event.checksum());
    Ok(Cow::Owned(out))
}

/// Changes the hints of a GTID event in place. Neither its length nor anything
/// but the hints and the checksum changes. It must have been checked before, as
/// an [`Event`].
///
/// Fails, and changes nothing, if there is no room: see [`normalise_gtid`].
pub fn patch_gtid(raw: &mut [u8], checksum: Checksum, hint: GtidHint) -> Result<(), EventError> {
    let event = Event::parse_unverified(raw, checksum)?;
    let old = gtid_of(&event)?;
    let no_room = EventError {
        kind: event.kind(),
        offset: HEADER_LEN,
        flaw: Flaw::Unsupported("it has no room for a commit id"),
    };
    let mut new = old;
    if let Some(flags) = hint.flags {
        new.flags = old.flags & !GtidHint::FLAGS | flags & GtidHint::FLAGS;
    }
    new.commit_id = hint.commit_id;
    let mut longer = Vec::new();
    match (old.commit_id, hint.commit_id) {
        (Some(_), Some(_)) | (None, None) => {}
        (None, Some(_)) => {
            if !is_plain(&old) || old.tail.len() < COMMIT_ID_LEN {
                return Err(no_room);
            }
            new.tail = &old.tail[COMMIT_ID_LEN..];
        }
        (Some(_), None) => {
            if !is_plain(&old) {
                return Err(no_room);
            }
            longer.resize(old.tail.len() + COMMIT_ID_LEN, 0);
            new.tail = &longer;
        }
    }
    let mut body = Vec::with_capacity(event.body().len());
    new.encode(&mut body);
    let range = HEADER_LEN..HEADER_LEN + event.body().len();
    // By what was checked above, and as no body is read that is too short.
    assert_eq!(body.len(), range.len(), "a hint changes no length");
    let has_checksum = event.checksum() == Checksum::Crc32;
    raw[range].copy_from_slice(&body);
    if has_checksum {
        checksum::mend(raw);
    }
    Ok(())
}

/// Sets the logical clock of a GTID event of MySQL (5.7 and later) in place. It
/// must have been checked before, as an [`Event`].
pub fn patch_clock(
    raw: &mut [u8],
    checksum: Checksum,
    clock: LogicalClock,
) -> Result<(), EventError> {
    let event = Event::parse_unverified(raw, checksum)?;
    let no_clock = |what| EventError {
        kind: event.kind(),
        offset: HEADER_LEN,
        flaw: Flaw::Unsupported(what),
    };
    match event.decode(&Format::unknown())? {
        Payload::MySqlGtid(MySqlGtid { clock: Some(_), .. }) => {}
        Payload::MySqlGtid(_) => {
            return Err(no_clock(
                "it has no logical clock; MySQL has one from 5.7 on",
            ));
        }
        _ => return Err(no_clock("a GTID event of MySQL was expected here")),
    }
    let mut bytes = Vec::with_capacity(16);
    put_le(&mut bytes, clock.last_committed as u64, 8);
    put_le(&mut bytes, clock.sequence_number as u64, 8);
    let at = HEADER_LEN + CLOCK_AT;
    raw[at..at + 16].copy_from_slice(&bytes);
    if checksum == Checksum::Crc32 {
        checksum::mend(raw);
    }
    Ok(())
}
