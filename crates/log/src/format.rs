//! Bytes on disk: segment headers and record frames. `docs/log.md` draws them.
//!
//! All numbers are little endian. Every frame header carries its own CRC-32C, started
//! from a key made of the log's identity, the segment and the byte offset: a frame that
//! was copied or left over anywhere else is never valid here.

use crate::error::LogError;

/// Version of segments and frames.
pub(crate) const VERSION: u32 = 1;
/// Size of a segment's header block; the first frame begins here.
pub(crate) const SEGMENT_HEADER: u64 = 4096;
/// Size of a frame's header.
pub(crate) const FRAME_HEADER: u64 = 64;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: u64 = 8;

pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"DROMSEG\n";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"DRec");
const KIND_RECORD: u8 = 1;
const KIND_MARK: u8 = 2;

/// The name of the segment that begins with `first`.
pub(crate) fn segment_name(first: u64) -> String {
    format!("dromon-{first:016x}.log")
}

/// The first index of the segment with this name, if it is a segment's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("dromon-")?.strip_suffix(".log")?;
    parse_hex16(digits)
}

/// Sixteen lower-case hex digits, nothing else.
pub(crate) fn parse_hex16(digits: &str) -> Option<u64> {
    let plain = digits.len() == 16
        && digits
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !plain {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// What stands at the head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: u128,
    /// Index of the first record.
    pub first: u64,
    /// Every index below this was on stable storage when the segment was made.
    pub durable_end: u64,
    /// Chain value of the record before the first one.
    pub chain: u32,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = vec![0u8; SEGMENT_HEADER as usize];
        b[0..8].copy_from_slice(&SEGMENT_MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..32].copy_from_slice(&self.identity.to_le_bytes());
        b[32..40].copy_from_slice(&self.first.to_le_bytes());
        b[40..48].copy_from_slice(&self.durable_end.to_le_bytes());
        b[48..52].copy_from_slice(&self.chain.to_le_bytes());
        let end = b.len() - 4;
        let crc = crc32c::crc32c(&b[..end]);
        b[end..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Checks and reads a header block. `file` is only for the message.
    pub(crate) fn decode(file: &str, b: &[u8]) -> Result<SegmentHeader, LogError> {
        let end = SEGMENT_HEADER as usize - 4;
        if b.len() < SEGMENT_HEADER as usize {
            return Err(LogError::corrupt(
                file,
                b.len() as u64,
                "the file ends inside the segment header, which is written completely before the \
                 file gets its name",
            ));
        }
        if crc32c::crc32c(&b[..end]) != u32_at(b, end) || b[0..8] != SEGMENT_MAGIC {
            return Err(LogError::corrupt(
                file,
                0,
                "the checksum of the segment header does not match, and the header is written \
                 completely before the file gets its name",
            ));
        }
        let version = u32_at(b, 8);
        if version != VERSION {
            return Err(LogError::Version {
                file: file.to_owned(),
                version,
                known: VERSION,
            });
        }
        let mut identity = [0u8; 16];
        identity.copy_from_slice(&b[16..32]);
        Ok(SegmentHeader {
            identity: u128::from_le_bytes(identity),
            first: u64_at(b, 32),
            durable_end: u64_at(b, 40),
            chain: u32_at(b, 48),
        })
    }
}

/// What binds frames to their segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey(u32);

impl SegmentKey {
    pub(crate) fn new(identity: u128, first: u64) -> SegmentKey {
        let crc = crc32c::crc32c(&identity.to_le_bytes());
        SegmentKey(crc32c::crc32c_append(crc, &first.to_le_bytes()))
    }

    pub(crate) fn header_crc(self, offset: u64, header: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(self.0, &offset.to_le_bytes());
        crc32c::crc32c_append(crc, header)
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A record with a body.
    Record,
    /// No record: says how far the log was durable. The next record overwrites it.
    Mark,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub kind: FrameKind,
    pub body_len: u32,
    /// Index of the record; for a mark the index of the next record.
    pub index: u64,
    pub term: u64,
    pub leader: u64,
    /// Every index below this was on stable storage before this frame was written.
    pub durable_end: u64,
    /// Chain value of the record before.
    pub chain: u32,
    /// CRC-32C of the body and its padding.
    pub body_crc: u32,
}

impl FrameHeader {
    /// Bytes from the start of this frame to the start of the next.
    pub(crate) fn frame_len(&self) -> u64 {
        frame_len(self.body_len as usize)
    }

    /// The header's bytes and its checksum, which is the chain value of the record after.
    pub(crate) fn encode(&self, key: SegmentKey, offset: u64) -> ([u8; 64], u32) {
        let mut b = [0u8; 64];
        b[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        b[8..16].copy_from_slice(&self.index.to_le_bytes());
        b[16..24].copy_from_slice(&self.term.to_le_bytes());
        b[24..32].copy_from_slice(&self.leader.to_le_bytes());
        b[32..40].copy_from_slice(&self.durable_end.to_le_bytes());
        b[40..44].copy_from_slice(&self.chain.to_le_bytes());
        b[44..48].copy_from_slice(&self.body_crc.to_le_bytes());
        b[48] = match self.kind {
            FrameKind::Record => KIND_RECORD,
            FrameKind::Mark => KIND_MARK,
        };
        b[49] = VERSION as u8;
        let crc = key.header_crc(offset, &b[..60]);
        b[60..64].copy_from_slice(&crc.to_le_bytes());
        (b, crc)
    }

    /// Reads a header at `offset`; `None` unless it was written for exactly this place.
    /// `b` has at least 64 bytes.
    pub(crate) fn decode(key: SegmentKey, offset: u64, b: &[u8]) -> Option<(FrameHeader, u32)> {
        if u32_at(b, 0) != FRAME_MAGIC {
            return None;
        }
        let crc = u32_at(b, 60);
        if key.header_crc(offset, &b[..60]) != crc || b[49] != VERSION as u8 {
            return None;
        }
        let kind = match b[48] {
            KIND_RECORD => FrameKind::Record,
            KIND_MARK => FrameKind::Mark,
            _ => return None,
        };
        let header = FrameHeader {
            kind,
            body_len: u32_at(b, 4),
            index: u64_at(b, 8),
            term: u64_at(b, 16),
            leader: u64_at(b, 24),
            durable_end: u64_at(b, 32),
            chain: u32_at(b, 40),
            body_crc: u32_at(b, 44),
        };
        Some((header, crc))
    }
}

/// Bytes a body occupies together with its header and padding.
pub(crate) fn frame_len(body: usize) -> u64 {
    FRAME_HEADER + (body as u64).next_multiple_of(ALIGN)
}

/// Zero bytes after a body of this length.
pub(crate) fn padding(body: usize) -> usize {
    body.next_multiple_of(ALIGN as usize) - body
}

/// CRC-32C of a body and its padding.
pub(crate) fn body_crc(body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(body), &[0u8; 8][..padding(body.len())])
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut n = [0u8; 8];
    n.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(segment_name(255), "dromon-00000000000000ff.log");
        assert_eq!(parse_segment_name("dromon-00000000000000ff.log"), Some(255));
        for other in [
            "dromon-meta.log",
            "dromon-ff.log",
            "dromon-00000000000000FF.log",
            "dromon-+0000000000000ff.log",
            "dromon-00000000000000ff.log.bak",
        ] {
            assert_eq!(parse_segment_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_frame_is_valid_only_at_its_own_place() {
        let header = FrameHeader {
            kind: FrameKind::Record,
            body_len: 5,
            index: 7,
            term: 2,
            leader: 9,
            durable_end: 7,
            chain: 11,
            body_crc: body_crc(b"hello"),
        };
        let key = SegmentKey::new(1, 0);
        let (bytes, crc) = header.encode(key, 4096);
        assert_eq!(FrameHeader::decode(key, 4096, &bytes), Some((header, crc)));
        assert_eq!(FrameHeader::decode(key, 4104, &bytes), None);
        assert_eq!(
            FrameHeader::decode(SegmentKey::new(2, 0), 4096, &bytes),
            None
        );
        assert_eq!(
            FrameHeader::decode(SegmentKey::new(1, 1), 4096, &bytes),
            None
        );
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(key, 4096, &bad), None, "bit {bit}");
        }
    }

    #[test]
    fn every_bit_of_a_segment_header_counts() {
        let header = SegmentHeader {
            identity: 77,
            first: 12,
            durable_end: 12,
            chain: 3,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode("f", &bytes).ok(), Some(header));
        for bit in (0..bytes.len() * 8).step_by(13) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode("f", &bad).is_err(), "bit {bit}");
        }
    }
}
