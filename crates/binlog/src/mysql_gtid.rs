//! MySQL's GTIDs.
//!
//! ```text
//!  0  flags u8            25  mark u8 = 2           from MySQL 5.7 on
//!  1  source uuid, 16     26  last committed u64
//! 17  number u64          34  sequence number u64
//!                         42  commit time, 7 bytes, microseconds; bit 55: the
//!                             next one is there too          from MySQL 8.0 on
//!                             commit time at the origin, 7 bytes
//!                             length of the transaction
//!                             server version u32; bit 31: the next one too
//!                             version of the origin u32
//!                             commit ticket u64
//! ```

use crate::bytes::{Reader, put_le, put_lenenc};
use crate::error::{EventError, Flaw};
use crate::header::EventType;

/// Where the logical clock stands in the body.
pub(crate) const CLOCK_AT: usize = 26;
const CLOCK_MARK: u8 = 2;
const ORIGINAL_TIME: u64 = 1 << 55;
const ORIGINAL_VERSION: u32 = 1 << 31;

/// Who may run beside whom, on a MySQL replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalClock {
    /// May start when the transaction with this sequence number, and all
    /// before it, have committed. 0: it waits for all before it.
    pub last_committed: i64,
    /// Its own, from 1 on in each file; 0: the primary counts none.
    pub sequence_number: i64,
}

impl LogicalClock {
    /// What a replica may be told of a transaction that has these numbers from
    /// its primary and others from a hint.
    ///
    /// Each last committed number says alone, whatever others are told, that
    /// none of those behind it conflicts. So the smaller of the two holds. But 0
    /// says nothing of the kind (a replica waits for all then), except of the
    /// first one. The sequence number stays; a hint of another one is none.
    #[must_use]
    pub fn hinted(self, hint: LogicalClock) -> LogicalClock {
        let mine = self.last_committed;
        let theirs = hint.last_committed;
        let fits = hint.sequence_number == self.sequence_number;
        let sound = (0..self.sequence_number).contains(&mine);
        let is_hint = fits && sound && (1..self.sequence_number).contains(&theirs);
        match is_hint && (mine == 0 || theirs < mine) {
            true => hint,
            false => self,
        }
    }

    /// Whether a replica may run it beside the one before it.
    pub fn beside_the_last(self) -> bool {
        self.last_committed > 0 && self.last_committed < self.sequence_number.saturating_sub(1)
    }
}

/// What MySQL 8.0 adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// When it was committed on this server, in microseconds since 1970.
    pub time: u64,
    /// When at its origin, if that is another time.
    pub original_time: Option<u64>,
    /// Bytes of the whole transaction, this event included.
    pub length: u64,
    /// As 80036.
    pub server_version: Option<u32>,
    /// Of the origin, if another.
    pub original_version: Option<u32>,
}

/// Begin of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MySqlGtid<'a> {
    /// 1: statements may be in it.
    pub flags: u8,
    /// The server that first had it; zeros if anonymous.
    pub source: [u8; 16],
    /// Its number there; 0 if anonymous.
    pub number: u64,
    /// From MySQL 5.7 on.
    pub clock: Option<LogicalClock>,
    /// From MySQL 8.0 on.
    pub commit: Option<CommitInfo>,
    /// What later versions add.
    pub tail: &'a [u8],
    /// Whether it has no GTID.
    pub anonymous: bool,
}

impl<'a> MySqlGtid<'a> {
    pub(crate) fn decode(r: &mut Reader<'a>, kind: EventType) -> Result<MySqlGtid<'a>, EventError> {
        let flags = r.u8("flags")?;
        let source = r.array("source")?;
        let number = r.u64("number")?;
        let clock = match r.peek_rest().first() {
            Some(&CLOCK_MARK) => {
                r.u8("mark")?;
                Some(LogicalClock {
                    last_committed: r.u64("last committed")? as i64,
                    sequence_number: r.u64("sequence number")? as i64,
                })
            }
            _ => None,
        };
        let commit = match clock {
            Some(_) if r.left() >= 7 => Some(CommitInfo::decode(r)?),
            _ => None,
        };
        Ok(MySqlGtid {
            flags,
            source,
            number,
            clock,
            commit,
            tail: r.rest(),
            anonymous: kind == EventType::ANONYMOUS_GTID,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.flags);
        out.extend_from_slice(&self.source);
        out.extend_from_slice(&self.number.to_le_bytes());
        if let Some(clock) = self.clock {
            out.push(CLOCK_MARK);
            out.extend_from_slice(&clock.last_committed.to_le_bytes());
            out.extend_from_slice(&clock.sequence_number.to_le_bytes());
        }
        if let Some(commit) = self.commit {
            commit.encode(out);
        }
        out.extend_from_slice(self.tail);
    }
}

impl CommitInfo {
    fn decode(r: &mut Reader<'_>) -> Result<CommitInfo, EventError> {
        let time = r.le(7, "commit time")?;
        let original_time = match time & ORIGINAL_TIME {
            0 => None,
            _ => Some(r.le(7, "commit time of the origin")?),
        };
        let length = match r.left() {
            0 => return Err(r.error(short("length of the transaction"))),
            _ => r.lenenc("length of the transaction")?,
        };
        // 8.0.2 to 8.0.13 end here.
        let version = match r.left() {
            0 => None,
            _ => Some(r.u32("server version")?),
        };
        let original_version = match version {
            Some(v) if v & ORIGINAL_VERSION != 0 => Some(r.u32("version of the origin")?),
            _ => None,
        };
        Ok(CommitInfo {
            time: time & !ORIGINAL_TIME,
            original_time,
            length,
            server_version: version.map(|v| v & !ORIGINAL_VERSION),
            original_version,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mark = self.original_time.map_or(0, |_| ORIGINAL_TIME);
        put_le(out, self.time & !ORIGINAL_TIME | mark, 7);
        if let Some(time) = self.original_time {
            put_le(out, time, 7);
        }
        put_lenenc(out, self.length);
        if let Some(version) = self.server_version {
            let mark = self.original_version.map_or(0, |_| ORIGINAL_VERSION);
            put_le(out, u64::from(version & !ORIGINAL_VERSION | mark), 4);
            if let Some(version) = self.original_version {
                put_le(out, u64::from(version), 4);
            }
        }
    }
}

fn short(field: &'static str) -> Flaw {
    Flaw::Short {
        field,
        need: 1,
        have: 0,
    }
}

/// A source as MySQL writes it, with hyphens.
pub fn uuid_text(source: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (n, byte) in source.iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
