//! Packets and events, read by their documented layout alone: nothing of the crates is used here.
//!
//! ```text
//! packet   length u24, number u8, 0, event                    numbers little endian
//! event    time u32, type u8, server u32, length u32, end u32, flags u16, body, [CRC-32 of all before]
//! 33, 34   flags u8, uuid 16, number u64, 2, last committed u64, sequence number u64, …
//! ```

use std::sync::LazyLock;

/// Where in an event of types 33 and 34 `last_committed` stands.
pub const LAST_COMMITTED: std::ops::Range<usize> = 19 + 26..19 + 34;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub kind: u8,
    pub end: u32,
    pub flags: u16,
    /// All of its bytes.
    pub raw: Vec<u8>,
    /// `last_committed` and `sequence_number`, if it has them.
    pub clock: Option<(i64, i64)>,
}

impl Got {
    /// Whether the server made it up for the connection.
    pub fn made_up(&self) -> bool {
        self.end == 0 || self.flags & 0x20 != 0
    }

    /// Its bytes with `last_committed` and the checksum out of sight.
    pub fn but_the_clock(&self, checksum: bool) -> Vec<u8> {
        let mut raw = self.raw.clone();
        if self.clock.is_some() {
            raw[LAST_COMMITTED].fill(0);
            let len = raw.len();
            if checksum {
                raw[len - 4..].fill(0);
            }
        }
        raw
    }
}

fn little(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// CRC-32: reflected, polynomial 0xedb88320.
pub fn crc(bytes: &[u8]) -> u32 {
    static BYTES: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let bit = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        let byte = |n| (0..8).fold(n, |crc, _| bit(crc));
        (0..256).map(byte).collect()
    });
    let next = |crc: u32, byte: &u8| crc >> 8 ^ BYTES[(crc as u8 ^ byte) as usize];
    !bytes.iter().fold(u32::MAX, next)
}

/// The packets of a stream, which come numbered; none is longer than 16 MiB here.
pub fn packets(mut bytes: &[u8], mut number: u8) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let len = little(&bytes[..3]) as usize;
        assert!(len < 0xff_ffff, "a long packet");
        assert_eq!(bytes[3], number, "packets come in order");
        number = number.wrapping_add(1);
        out.push(bytes[4..4 + len].to_vec());
        bytes = &bytes[4 + len..];
    }
    out
}

/// The event in a packet.
pub fn event(packet: &[u8], checksum: bool) -> Got {
    assert_eq!(packet[0], 0, "an event");
    event_of(&packet[1..], checksum)
}

/// An event as it stands in a file.
pub fn event_of(raw: &[u8], checksum: bool) -> Got {
    assert_eq!(little(&raw[9..13]) as usize, raw.len(), "its length");
    let kind = raw[4];
    // A format description has its own in any case.
    let has = checksum || kind == 15;
    let body_end = raw.len() - if has { 4 } else { 0 };
    if has {
        let said = little(&raw[body_end..]) as u32;
        assert_eq!(said, crc(&raw[..body_end]), "its checksum");
    }
    let body = &raw[19..body_end];
    let numbered = matches!(kind, 33 | 34) && body.len() >= 42 && body[25] == 2;
    let clock = numbered.then(|| (little(&body[26..34]) as i64, little(&body[34..42]) as i64));
    Got {
        kind,
        end: little(&raw[13..17]) as u32,
        flags: little(&raw[17..19]) as u16,
        raw: raw.to_vec(),
        clock,
    }
}

#[test]
fn a_known_checksum() {
    assert_eq!(crc(b"123456789"), 0xcbf4_3926);
}
