//! The checksum at the end of an event.
//!
//! CRC-32 (that of zlib), little endian, over header and body. A format
//! description has one always, with the flag IN_USE counted as clear, as the
//! server clears it in place when it closes the file.

use crate::error::{EventError, Flaw};
use crate::header::{EventType, FLAGS_AT, HEADER_LEN, Header, LENGTH_AT, flags};

/// Size in bytes of a CRC-32.
pub const CRC_LEN: usize = 4;

/// How the events of a file or connection are secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Not at all.
    #[default]
    Off,
    /// With CRC-32.
    Crc32,
}

impl Checksum {
    /// The number in a format description.
    pub fn number(self) -> u8 {
        match self {
            Checksum::Off => 0,
            Checksum::Crc32 => 1,
        }
    }

    /// By the number in a format description.
    pub fn from_number(n: u8) -> Option<Checksum> {
        match n {
            0 => Some(Checksum::Off),
            1 => Some(Checksum::Crc32),
            _ => None,
        }
    }

    /// Bytes it takes at the end of an event.
    pub fn size(self) -> usize {
        match self {
            Checksum::Off => 0,
            Checksum::Crc32 => CRC_LEN,
        }
    }
}

/// The CRC-32 of an event without its checksum.
pub fn crc32(event: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let is_format = event.get(4) == Some(&EventType::FORMAT_DESCRIPTION.0);
    if is_format && event.len() >= HEADER_LEN {
        let cleared = event[FLAGS_AT] & !(flags::IN_USE as u8);
        hasher.update(&event[..FLAGS_AT]);
        hasher.update(&[cleared]);
        hasher.update(&event[FLAGS_AT + 1..]);
    } else {
        hasher.update(event);
    }
    hasher.finalize()
}

/// Splits an event that ends with a CRC-32 and verifies it. Gives the event
/// without it, and the checksum.
pub fn verify(event: &[u8]) -> Result<(&[u8], u32), EventError> {
    let (rest, stored) = split(event)?;
    let computed = crc32(rest);
    if computed != stored {
        return Err(EventError {
            kind: EventType(event[4]),
            offset: rest.len(),
            flaw: Flaw::Checksum { computed, stored },
        });
    }
    Ok((rest, stored))
}

/// The same without looking whether it fits.
pub(crate) fn split(event: &[u8]) -> Result<(&[u8], u32), EventError> {
    let header = Header::decode(event)?;
    match event.split_last_chunk::<CRC_LEN>() {
        Some((rest, crc)) if rest.len() >= HEADER_LEN => Ok((rest, u32::from_le_bytes(*crc))),
        _ => Err(EventError {
            kind: header.kind,
            offset: HEADER_LEN,
            flaw: Flaw::Short {
                field: "checksum",
                need: CRC_LEN,
                have: event.len().saturating_sub(HEADER_LEN),
            },
        }),
    }
}

/// Computes the checksum of a changed event anew, in place.
///
/// # Panics
/// If the event is shorter than a header and a checksum: it was parsed before.
pub fn mend(event: &mut [u8]) {
    assert!(event.len() >= HEADER_LEN + CRC_LEN, "parsed before");
    let at = event.len() - CRC_LEN;
    let crc = crc32(&event[..at]);
    event[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Ends an event that begins at `begin` of `out`: writes its length into its
/// header, and the checksum behind it.
pub(crate) fn seal(out: &mut Vec<u8>, begin: usize, checksum: Checksum) {
    let len = out.len() - begin + checksum.size();
    let len = u32::try_from(len).expect("events made here are short");
    out[begin + LENGTH_AT..begin + LENGTH_AT + 4].copy_from_slice(&len.to_le_bytes());
    if checksum == Checksum::Crc32 {
        let crc = crc32(&out[begin..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }
}
