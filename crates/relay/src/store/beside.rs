//! Hints, kept beside the files of events: for each group which commit id a parallel replica shall
//! see.
//!
//! ```text
//! dromon-relay.hints.000007    beside the 7th file; records of 36 bytes, in the order of the groups
//!
//! 0   place u64       where the group begins in the file of events
//! 8   seqno u64       its GTID
//! 16  domain u32
//! 20  server u32
//! 24  commit id u64   0: it shall have none
//! 32  CRC-32          of the number of the file as u64, and all above
//! ```
//!
//! A record is written when its group is on the disk, and is not synced: one that is lost makes its
//! group go without a hint. One that is found counts only if place and GTID are those of the group.

use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::Gtid;
use dromon_log::{Device, DeviceFile};

use super::error::StoreError;
use super::mark::Place;
use super::names::file_name;

const PREFIX: &str = "dromon-relay.hints";
/// Bytes of a record.
pub const RECORD: usize = 36;
/// Records read at once.
const AT_ONCE: usize = 512;

/// What a replica shall see of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hinted {
    /// Where the group begins in its file.
    pub at: u64,
    /// Its name.
    pub gtid: Gtid,
    /// Its commit id; `None`: none.
    pub commit_id: Option<u64>,
}

/// The name of the file beside that of a number.
pub fn beside(number: u64) -> String {
    file_name(PREFIX, number)
}

/// A record.
pub fn encode(file: u64, hinted: &Hinted) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(&hinted.at.to_le_bytes());
    out[8..16].copy_from_slice(&hinted.gtid.seqno.to_le_bytes());
    out[16..20].copy_from_slice(&hinted.gtid.domain.to_le_bytes());
    out[20..24].copy_from_slice(&hinted.gtid.server.to_le_bytes());
    out[24..32].copy_from_slice(&hinted.commit_id.unwrap_or(0).to_le_bytes());
    let sum = sum(file, &out[..32]);
    out[32..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn sum(file: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&file.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

/// Reads a record. `None`: it is none of this file.
pub fn decode(file: u64, bytes: &[u8; RECORD]) -> Option<Hinted> {
    let u64_at = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_le_bytes(*b));
    let u32_at = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_le_bytes(*b));
    if u32_at(32)? != sum(file, &bytes[..32]) {
        return None;
    }
    Some(Hinted {
        at: u64_at(0)?,
        gtid: Gtid {
            seqno: u64_at(8)?,
            domain: u32_at(16)?,
            server: u32_at(20)?,
        },
        commit_id: u64_at(24).filter(|id| *id != 0),
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

    /// The hint of the group that begins at a place; `None`: there is none.
    pub fn look(&mut self, place: Place, gtid: Gtid) -> Option<Hinted> {
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
                        return (hinted.gtid == gtid).then_some(hinted);
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
