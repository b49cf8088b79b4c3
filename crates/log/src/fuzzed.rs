//! For the fuzzers in `fuzz/`: makes changed bytes of a log's file pass their checksums,
//! so that what stands behind the checksums is tried, too.

use crate::checkpoint;
use crate::format::{SEGMENT_HEADER, SEGMENT_MAGIC, SegmentKey, frame_len, u32_at, u64_at};
use crate::meta;

/// Puts the right checksums, and in a segment the right chain, wherever the file's kind
/// wants them. What is no file of a log stays as it is.
pub fn seal(bytes: &mut [u8]) {
    match bytes.get(..8) {
        Some(m) if m == SEGMENT_MAGIC => seal_segment(bytes),
        Some(m) if m == meta::MAGIC => meta::seal(bytes),
        Some(m) if m == checkpoint::MAGIC => checkpoint::seal(bytes),
        _ => {}
    }
}

fn seal_segment(bytes: &mut [u8]) {
    let head = SEGMENT_HEADER as usize;
    if bytes.len() < head {
        return;
    }
    let crc = crc32c::crc32c(&bytes[..head - 4]);
    bytes[head - 4..head].copy_from_slice(&crc.to_le_bytes());
    let mut identity = [0; 16];
    identity.copy_from_slice(&bytes[16..32]);
    let key = SegmentKey::new(u128::from_le_bytes(identity), u64_at(bytes, 32));
    let mut chain = u32_at(bytes, 48);
    let mut at = head;
    while let Some(frame) = bytes.get_mut(at..).filter(|f| f.len() >= 64) {
        if frame[..4] != *b"DRec" {
            return;
        }
        let len = frame_len(u32_at(frame, 4) as usize) as usize;
        if let Some(body) = frame.get(64..len) {
            let crc = crc32c::crc32c(body);
            frame[44..48].copy_from_slice(&crc.to_le_bytes());
        }
        frame[40..44].copy_from_slice(&chain.to_le_bytes());
        chain = key.header_crc(at as u64, &frame[..60]);
        frame[60..64].copy_from_slice(&chain.to_le_bytes());
        at += len;
    }
}
