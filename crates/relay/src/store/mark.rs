//! Up to where the files are known to be on the disk.
//!
//! ```text
//!  0  "DRMK"          8  number of the file u64
//!  4  version u32 = 1 16  its end u64
//!                     24  CRC-32 of all before u32
//! ```
//!
//! Written after each fsync of a file of events, in place, and itself synced only when a
//! file begins or the store is closed. So it may say less than is true, never more:
//! damage below it is damage, what is unreadable above it is what a crash left of an
//! unfinished write.

use std::fmt;

use dromon_binlog::{Gtid, Position};

/// Length of the mark in bytes.
pub const LEN: usize = 28;
/// Name of its file.
pub const NAME: &str = "dromon-relay.mark";

const MAGIC: [u8; 8] = *b"DRMK\x01\0\0\0";

/// A place in the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the file.
    pub file: u64,
    /// Byte in it.
    pub at: u64,
}

/// Bits of a place's byte in [`Place::as_position`].
const AT_BITS: u32 = 40;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {} byte {}", self.file, self.at)
    }
}

impl Place {
    /// A mirror has no GTIDs: so that how far somebody is behind is counted as elsewhere, its places
    /// are numbers that grow.
    pub fn as_position(self) -> Position {
        let mut position = Position::new();
        position.set(Gtid {
            domain: 0,
            server: 0,
            seqno: self.file << AT_BITS | self.at,
        });
        position
    }

    /// From [`Place::as_position`].
    pub fn of_position(position: &Position) -> Option<Place> {
        let seqno = position.get(0)?.seqno;
        Some(Place {
            file: seqno >> AT_BITS,
            at: seqno & ((1 << AT_BITS) - 1),
        })
    }
}

/// As it stands in its file.
pub fn encode(place: Place) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&place.file.to_le_bytes());
    out[16..24].copy_from_slice(&place.at.to_le_bytes());
    let crc = crc32fast::hash(&out[..24]);
    out[24..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// What it says; `None` if it was never wholly written.
pub fn decode(bytes: &[u8]) -> Option<Place> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    let crc = crc32fast::hash(&bytes[..24]);
    let u64_at = |at: usize| {
        let mut n = [0; 8];
        n.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(n)
    };
    (bytes[..8] == MAGIC && bytes[24..] == crc.to_le_bytes()).then(|| Place {
        file: u64_at(8),
        at: u64_at(16),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_and_damaged() {
        let place = Place {
            file: 7,
            at: 1 << 40,
        };
        let bytes = encode(place);
        assert_eq!(decode(&bytes), Some(place));
        for bit in 0..LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        assert_eq!(decode(&bytes[..27]), None);
        assert_eq!(decode(&[]), None);
    }
}
