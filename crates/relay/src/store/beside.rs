//! Hints, kept beside the files of events: for each group how a parallel replica may run it.
//!
//! ```text
//! dromon-relay.hints.000007    beside the 7th file; records of 36 bytes, in the order of the groups
//!
//!     of MariaDB                              of MySQL
//! 0   place u64: where the group begins in the file of events
//! 8   seqno u64       its GTID                sequence number u64
//! 16  domain u32                              checksum of its first event u32
//! 20  server u32                              0 u32
//! 24  commit id u64   0: it shall have none   last committed u64
//! 32  CRC-32 of: number of the file u64,      "clock", number of the file u64,
//!     and all above                           and all above
//! ```
//!
//! A record is written when its group is on the disk, and is not synced: one that is lost makes its
//! group go without a hint. One that is found counts only if place and GTID are those of the group, or
//! place and the checksum of the first event, which MySQL's groups have instead of a name.

use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::{Gtid, LogicalClock};
use dromon_log::{Device, DeviceFile};

use super::error::StoreError;
use super::mark::Place;
use super::names::file_name;

const PREFIX: &str = "dromon-relay.hints";
/// Bytes of a record.
pub const RECORD: usize = 36;
/// Records read at once.
const AT_ONCE: usize = 512;

/// Of groups without names: no record of the one kind can be taken for one of the other.
const CLOCK: &[u8] = b"clock";

/// By what a group is known, beside its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKey {
    /// Its GTID of MariaDB.
    Gtid(Gtid),
    /// It has none: the CRC-32 with which its first event ends.
    First(u32),
}

/// What a replica shall see of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Of a group of MariaDB: its commit id; `None`: none.
    Batch(Option<u64>),
    /// Of one of MySQL.
    Clock(LogicalClock),
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hinted {
    /// Where the group begins in its file.
    pub at: u64,
    /// Which it is: a batch has a GTID, a clock has none.
    pub key: GroupKey,
    /// What was found out about it.
    pub said: Said,
}

/// The name of the file beside that of a number.
pub fn beside(number: u64) -> String {
    file_name(PREFIX, number)
}

/// A record, as it stands in its file.
///
/// # Panics
/// If a batch is known by its first event, or a clock by a GTID.
pub fn encode(file: u64, hinted: &Hinted) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &hinted.at.to_le_bytes());
    let kind: &[u8] = match (hinted.key, hinted.said) {
        (GroupKey::Gtid(gtid), Said::Batch(commit_id)) => {
            put(8, &gtid.seqno.to_le_bytes());
            put(16, &gtid.domain.to_le_bytes());
            put(20, &gtid.server.to_le_bytes());
            put(24, &commit_id.unwrap_or(0).to_le_bytes());
            &[]
        }
        (GroupKey::First(checksum), Said::Clock(clock)) => {
            put(8, &clock.sequence_number.to_le_bytes());
            put(16, &checksum.to_le_bytes());
            put(24, &clock.last_committed.to_le_bytes());
            CLOCK
        }
        (key, said) => panic!("no group known by {key:?} has {said:?}"),
    };
    let sum = sum(kind, file, &out[..32]);
    out[32..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn sum(kind: &[u8], file: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(kind);
    crc.update(&file.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

/// Reads a record. `None`: it is none of this file.
pub fn decode(file: u64, bytes: &[u8; RECORD]) -> Option<Hinted> {
    let u64_at = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
    let u32_at = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_le_bytes(*b));
    let is = |kind: &[u8]| u32_at(32) == Some(sum(kind, file, &bytes[..32]));
    let (key, said) = if is(&[]) {
        let gtid = Gtid {
            seqno: u64_at(8)?,
            domain: u32_at(16)?,
            server: u32_at(20)?,
        };
        let commit_id = u64_at(24).filter(|id| *id != 0);
        (GroupKey::Gtid(gtid), Said::Batch(commit_id))
    } else if is(CLOCK) {
        let clock = LogicalClock {
            last_committed: u64_at(24)? as i64,
            sequence_number: u64_at(8)? as i64,
        };
        (GroupKey::First(u32_at(16)?), Said::Clock(clock))
    } else {
        return None;
    };
    Some(Hinted {
        at: u64_at(0)?,
        key,
        said,
    })
}

/// Removes the file beside that of a number, if there is one.
pub(super) fn remove(device: &dyn Device, number: u64) -> Result<(), StoreError> {
    let name = beside(number);
    match device.remove(&name) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", &name)(e))
        }
        _ => Ok(()),
    }
}

/// Writes records of one file.
pub(super) struct Beside {
    number: u64,
    file: Option<(Arc<dyn DeviceFile>, u64)>,
}

impl Beside {
    /// Of the file of a number.
    pub(super) fn of(number: u64) -> Beside {
        Beside { number, file: None }
    }

    /// Cuts off what stands behind the end of the events.
    pub(super) fn cut(&mut self, device: &dyn Device, end: u64) -> Result<(), StoreError> {
        let name = beside(self.number);
        let file = match device.open(&name) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(StoreError::io("open", &name))?,
        };
        let len = file.len().map_err(StoreError::io("look at", &name))?;
        let mut keep = len - len % RECORD as u64;
        let mut record = [0; RECORD];
        while keep > 0 {
            let from = keep - RECORD as u64;
            file.read_at(&mut record, from)
                .map_err(StoreError::io("read", &name))?;
            if decode(self.number, &record).is_some_and(|hinted| hinted.at < end) {
                break;
            }
            keep = from;
        }
        if keep < len {
            file.set_len(keep).map_err(StoreError::io("cut", &name))?;
            file.sync_all().map_err(StoreError::io("sync", &name))?;
        }
        self.file = Some((file, keep));
        Ok(())
    }

    /// Adds records.
    pub(super) fn add(&mut self, device: &dyn Device, all: &[Hinted]) -> Result<(), StoreError> {
        if all.is_empty() {
            return Ok(());
        }
        let name = beside(self.number);
        let (file, end) = match &mut self.file {
            Some(file) => file,
            none => {
                let made = device
                    .create(&name)
                    .map_err(StoreError::io("create", &name))?;
                none.insert((made, 0))
            }
        };
        let bytes: Vec<u8> = all.iter().flat_map(|h| encode(self.number, h)).collect();
        file.write_at(&mut [IoSlice::new(&bytes)], *end)
            .map_err(StoreError::io("write", &name))?;
        *end += bytes.len() as u64;
        Ok(())
    }
}

/// Reads hints, one file after the other, forward. Whatever cannot be read is no hint.
pub struct HintReader {
    device: Arc<dyn Device>,
    number: u64,
    file: Option<Arc<dyn DeviceFile>>,
    /// The record that follows `piece`.
    next: u64,
    piece: Vec<u8>,
    at: usize,
    /// Groups since it was looked whether the file is there.
    absent: u32,
}

/// After so many groups it is looked again.
const ABSENT: u32 = 64;

impl HintReader {
    pub(super) fn new(device: Arc<dyn Device>) -> HintReader {
        HintReader {
            device,
            number: 0,
            file: None,
            next: 0,
            piece: Vec::new(),
            at: 0,
            absent: 0,
        }
    }

    /// The hint of the group that begins at a place and is known by this; `None`: there is none.
    pub fn look(&mut self, place: Place, key: GroupKey) -> Option<Said> {
        self.absent += u32::from(self.file.is_none());
        if self.number != place.file || self.absent >= ABSENT {
            self.absent = 0;
            self.turn(place);
        }
        loop {
            while let Some(record) = self.piece[self.at..].first_chunk() {
                match decode(self.number, record) {
                    Some(hinted) if hinted.at > place.at => return None,
                    Some(hinted) if hinted.at == place.at => {
                        self.at += RECORD;
                        return (hinted.key == key).then_some(hinted.said);
                    }
                    _ => self.at += RECORD,
                }
            }
            let mut piece = vec![0; AT_ONCE * RECORD];
            let file = self.file.as_ref()?;
            let n = file
                .read_at(&mut piece, self.next * RECORD as u64)
                .unwrap_or(0);
            // One that is being written is not whole.
            piece.truncate(n - n % RECORD);
            self.next += (piece.len() / RECORD) as u64;
            self.piece = piece;
            self.at = 0;
            if self.piece.is_empty() {
                return None;
            }
        }
    }

    fn turn(&mut self, place: Place) {
        self.number = place.file;
        self.file = self.device.open(&beside(place.file)).ok();
        self.piece.clear();
        self.at = 0;
        self.next = 0;
        let Some(file) = &self.file else { return };
        // The last record before the place; a damaged one counts as behind it.
        let (mut low, mut high) = (0, file.len().unwrap_or(0) / RECORD as u64);
        let mut record = [0; RECORD];
        while low < high {
            let middle = low + (high - low) / 2;
            let read = file.read_at(&mut record, middle * RECORD as u64);
            let before = read.is_ok_and(|n| n == RECORD)
                && decode(self.number, &record).is_some_and(|hinted| hinted.at < place.at);
            match before {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        self.next = low;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(commit_id: Option<u64>) -> Hinted {
        let gtid = Gtid {
            domain: 1,
            server: 2,
            seqno: 3,
        };
        Hinted {
            at: 4,
            key: GroupKey::Gtid(gtid),
            said: Said::Batch(commit_id),
        }
    }

    fn clock() -> Hinted {
        let clock = LogicalClock {
            last_committed: 5,
            sequence_number: 9,
        };
        Hinted {
            at: 1 << 33,
            key: GroupKey::First(0xdead_beef),
            said: Said::Clock(clock),
        }
    }

    #[test]
    fn there_and_back_and_damaged() {
        for hinted in [batch(Some(7)), batch(None), clock()] {
            let bytes = encode(3, &hinted);
            assert_eq!(decode(3, &bytes), Some(hinted));
            assert_eq!(decode(4, &bytes), None, "of another file");
            for bit in 0..RECORD * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(3, &bad), None, "bit {bit}");
            }
        }
    }

    /// Records of MariaDB's groups stand as they did before there were others.
    #[test]
    fn bytes_that_were_written_before() {
        let fields = [
            &4u64.to_le_bytes()[..],
            &3u64.to_le_bytes(),
            &1u32.to_le_bytes(),
            &2u32.to_le_bytes(),
            &7u64.to_le_bytes(),
        ]
        .concat();
        let sum = crc32fast::hash(&[&3u64.to_le_bytes()[..], &fields].concat());
        let bytes = encode(3, &batch(Some(7)));
        assert_eq!(bytes[..], [&fields[..], &sum.to_le_bytes()].concat());
    }

    #[test]
    #[should_panic(expected = "no group known by")]
    fn kinds_are_not_mixed() {
        let mixed = Hinted {
            said: clock().said,
            ..batch(None)
        };
        encode(3, &mixed);
    }
}
