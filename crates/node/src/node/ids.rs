//! Fresh identifiers.

use dromon_writeset::Uuid;

/// A fresh identifier for this incarnation. It begins with the time, so that
/// members stand in views in the order in which they were started.
pub(super) fn incarnation_uuid() -> Uuid {
    let Uuid(mut bytes) = random_uuid();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.map_or(0, |d| d.as_millis() as u64);
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6] = bytes[6] & 0x0f | 0x70;
    Uuid(bytes)
}

/// A fresh identifier.
pub(super) fn random_uuid() -> Uuid {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    if read.is_err() {
        // Every hasher of the standard library is keyed anew by the system.
        use std::hash::{BuildHasher, Hasher};
        for chunk in bytes.chunks_mut(8) {
            let n = std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish();
            chunk.copy_from_slice(&n.to_le_bytes());
        }
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

pub(super) fn random_u64() -> u64 {
    let Uuid(b) = random_uuid();
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[10], b[11]]).max(1)
}
