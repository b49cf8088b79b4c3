//! The write set on the wire and in the log.
//!
//! ```text
//!  0  magic "DW"        40  last_seen i64       72  checksum of the keys
//!  2  version u8 = 1    48  prev_fragment i64   80  checksum of the payload
//!  3  chunk u8          56  keys length u64     88  checksum of bytes 0..88
//!  4  flags u32         64  payload length u64  96  keys, then payload
//!  8  source[16]
//! 24  trx id u64
//! 32  conn id u64
//! ```
//!
//! Numbers are little-endian, checksums xxh3-64. Header, keys and payload are
//! covered separately: a header can be restamped without reading the rest, and
//! a payload that lies in a file can be checked later, as it is read.

use std::fmt;
use std::hash::Hasher;
use std::ops::Deref;

use bytes::{BufMut, Bytes, BytesMut};
use twox_hash::XxHash3_64;

use crate::arrival::Arrived;
use crate::collector::KeyCollector;
use crate::flags::Flags;
use crate::ids::{Seqno, Uuid};
use crate::keys::{Keys, KeysError};
use crate::payload::Payload;

/// The only write-set version this build knows.
pub const WRITESET_VERSION: u8 = 1;
/// Size in bytes of what stands before the keys.
pub const HEADER_LEN: usize = 96;

const MAGIC: [u8; 2] = *b"DW";
const LAST_SEEN_AT: usize = 40;
const HEADER_SUM_AT: usize = 88;

/// What travels about a write set beside its keys and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// As the server gave them, ISOLATION added for TOI.
    pub flags: Flags,
    /// The node it comes from, in its present incarnation.
    pub source: Uuid,
    /// The transaction, numbered by its server; all ones for TOI.
    pub trx_id: u64,
    /// The client connection, numbered by its server.
    pub conn_id: u64,
    /// The highest seqno released at the origin when it was sent.
    pub last_seen: Seqno,
    /// The seqno of the same transaction's previous fragment, -1 if none.
    pub prev_fragment: Seqno,
    /// May be applied in chunks of about 2 to this many bytes; 0: only whole. The
    /// highest bit is free for who applies them.
    pub chunk: u8,
}

/// Why bytes are not a write set.
///
/// Everything but a version unknown here means that bytes were damaged on the
/// way or on disk. A node that cannot read what the others certify must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Less than a header.
    #[error(
        "A write set is cut short: {have} bytes, but its header alone has 96. It is damaged; this \
         node must stop and fetch it again."
    )]
    TooShort {
        /// Bytes there are.
        have: usize,
    },
    /// Not a write set at all.
    #[error(
        "A write set starts with the bytes {found:02x?} instead of \"DW\". This is something else \
         or damaged; this node must stop."
    )]
    Magic {
        /// The first two bytes.
        found: [u8; 2],
    },
    /// Another build wrote it.
    #[error(
        "A write set has version {found}; this build knows only version 1. A newer node is in the \
         cluster: upgrade this one before it takes part."
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// A checksum does not fit.
    #[error(
        "The {part} of a write set does not match its checksum (computed {computed:016x}, stored \
         {stored:016x}). It is damaged; this node must stop and fetch it again."
    )]
    Checksum {
        /// `header`, `keys` or `payload`.
        part: &'static str,
        /// Of the bytes there are.
        computed: u64,
        /// In the header.
        stored: u64,
    },
    /// The lengths do not add up.
    #[error(
        "A write set says it has {keys} bytes of keys and {payload} bytes of payload, but {have} \
         bytes follow its header. It is damaged; this node must stop and fetch it again."
    )]
    Length {
        /// Declared length of the keys.
        keys: u64,
        /// Declared length of the payload.
        payload: u64,
        /// Bytes behind the header.
        have: usize,
    },
    /// The keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// The checksum of a payload, computed as its chunks pass by.
pub struct PayloadSum {
    hasher: twox_hash::xxhash3_64::Hasher,
    len: u64,
}

impl Default for PayloadSum {
    fn default() -> Self {
        PayloadSum::new()
    }
}

impl PayloadSum {
    /// Of no bytes yet.
    pub fn new() -> Self {
        PayloadSum {
            hasher: twox_hash::xxhash3_64::Hasher::new(),
            len: 0,
        }
    }

    /// The checksum of a whole payload.
    pub fn of(payload: &[u8]) -> u64 {
        XxHash3_64::oneshot(payload)
    }

    /// Takes the next chunk.
    pub fn update(&mut self, chunk: &[u8]) {
        self.hasher.write(chunk);
        self.len += chunk.len() as u64;
    }

    /// Bytes seen so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no byte was seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The checksum of all bytes seen so far.
    pub fn sum(&self) -> u64 {
        self.hasher.finish()
    }
}

impl fmt::Debug for PayloadSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadSum")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The size in bytes of what [`encode`] makes of these.
pub fn encoded_len(keys: &KeyCollector, payload_len: u64) -> u64 {
    prefix_len(keys) as u64 + payload_len
}

/// The size in bytes of what [`encode_prefix`] makes of these.
pub fn prefix_len(keys: &KeyCollector) -> usize {
    HEADER_LEN + keys.bytes()
}

/// One contiguous write set, stamped with the header's `last_seen`.
pub fn encode(header: &Header, keys: &KeyCollector, payload: &[u8]) -> Bytes {
    encode_chunks(header, keys, &[payload])
}

/// As [`encode`], for a payload that was collected in several chunks.
pub fn encode_chunks(header: &Header, keys: &KeyCollector, chunks: &[&[u8]]) -> Bytes {
    let (len, sum) = match chunks {
        [one] => (one.len() as u64, PayloadSum::of(one)),
        _ => {
            let mut sum = PayloadSum::new();
            chunks.iter().for_each(|c| sum.update(c));
            (sum.len(), sum.sum())
        }
    };
    let payload_len: usize = chunks.iter().map(|c| c.len()).sum();
    let mut out = BytesMut::with_capacity(prefix_len(keys) + payload_len);
    put_prefix(&mut out, header, keys, len, sum);
    chunks.iter().for_each(|c| out.put_slice(c));
    out.freeze()
}

/// The part of a write set before its payload, for a payload that already lies
/// in a file: the payload's bytes must follow it without a gap.
///
/// `payload_len` in bytes; `payload_sum` as [`PayloadSum`] computes it.
pub fn encode_prefix(
    header: &Header,
    keys: &KeyCollector,
    payload_len: u64,
    payload_sum: u64,
) -> Bytes {
    let mut out = BytesMut::with_capacity(prefix_len(keys));
    put_prefix(&mut out, header, keys, payload_len, payload_sum);
    out.freeze()
}

/// Replaces the `last_seen` of an encoded write set (or prefix) before it is
/// sent again. Copies only if the buffer is shared.
pub fn restamp(bytes: Bytes, last_seen: Seqno) -> Result<Bytes, DecodeError> {
    RawHeader::read(&bytes)?;
    let mut out = bytes
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    out[LAST_SEEN_AT..LAST_SEEN_AT + 8].copy_from_slice(&last_seen.to_le_bytes());
    seal(&mut out);
    Ok(out.freeze())
}

fn put_prefix(out: &mut BytesMut, header: &Header, keys: &KeyCollector, len: u64, sum: u64) {
    out.put_slice(&MAGIC);
    out.put_u8(WRITESET_VERSION);
    out.put_u8(header.chunk);
    out.put_u32_le(header.flags.bits());
    out.put_slice(&header.source.0);
    out.put_u64_le(header.trx_id);
    out.put_u64_le(header.conn_id);
    out.put_i64_le(header.last_seen);
    out.put_i64_le(header.prev_fragment);
    out.put_u64_le(keys.bytes() as u64);
    out.put_u64_le(len);
    // The checksum of the keys and that of the header come when both are there.
    out.put_u64_le(0);
    out.put_u64_le(sum);
    out.put_u64_le(0);
    debug_assert_eq!(out.len(), HEADER_LEN);
    keys.put(out);
    assert_eq!(
        out.len(),
        HEADER_LEN + keys.bytes(),
        "the key collector miscounts its bytes"
    );
    let keys_sum = XxHash3_64::oneshot(&out[HEADER_LEN..]);
    out[72..80].copy_from_slice(&keys_sum.to_le_bytes());
    seal(out);
}

fn seal(out: &mut [u8]) {
    let sum = XxHash3_64::oneshot(&out[..HEADER_SUM_AT]);
    out[HEADER_SUM_AT..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// All of a write set but its payload: what certification needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    header: Header,
    keys: Keys,
    payload_len: u64,
    payload_sum: u64,
    sum: u64,
}

impl Head {
    /// Reads header and keys from the front of a write set and verifies them.
    ///
    /// Whatever of the payload follows is ignored. Copies nothing.
    pub fn decode(bytes: &Bytes) -> Result<Head, DecodeError> {
        let raw = RawHeader::read(bytes)?;
        let have = bytes.len() - HEADER_LEN;
        let keys_len = usize::try_from(raw.keys_len).ok().filter(|n| *n <= have);
        let Some(keys_len) = keys_len else {
            let (keys, payload) = (raw.keys_len, raw.payload_len);
            return Err(DecodeError::Length {
                keys,
                payload,
                have,
            });
        };
        let keys = bytes.slice(HEADER_LEN..HEADER_LEN + keys_len);
        check_sum("keys", &keys, raw.keys_sum)?;
        Ok(Head {
            header: raw.header,
            keys: Keys::decode(keys)?,
            payload_len: raw.payload_len,
            payload_sum: raw.payload_sum,
            sum: raw.sum,
        })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The flags of the header.
    pub fn flags(&self) -> Flags {
        self.header.flags
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether who applies it looks at more rows of its tables than it names, as no index finds
    /// those: such a one is not applied in parallel.
    pub fn looks_around(&self) -> bool {
        self.header.flags.pa_unsafe() && self.keys.names_by_digest()
    }

    /// Size of the payload in bytes.
    pub fn payload_len(&self) -> u64 {
        self.payload_len
    }

    /// Checksum of the payload, as [`PayloadSum`] computes it.
    pub fn payload_sum(&self) -> u64 {
        self.payload_sum
    }

    /// Checksum of the header, which holds those of keys and payload: of all.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Where in the write set the payload starts, in bytes.
    pub fn payload_offset(&self) -> usize {
        HEADER_LEN + self.keys.byte_len()
    }
}

/// A whole write set; its head is reached through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteSet {
    head: Head,
    payload: Payload,
}

impl WriteSet {
    /// Reads a write set and verifies all of it; copies nothing.
    pub fn decode(bytes: Bytes) -> Result<WriteSet, DecodeError> {
        let head = Head::decode(&bytes)?;
        let at = head.payload_offset();
        let have = bytes.len() - at;
        if u64::try_from(have) != Ok(head.payload_len) {
            return Err(DecodeError::Length {
                keys: head.keys.byte_len() as u64,
                payload: head.payload_len,
                have: bytes.len() - HEADER_LEN,
            });
        }
        let payload = bytes.slice(at..);
        check_sum("payload", &payload, head.payload_sum)?;
        let payload = Payload::Here(payload);
        Ok(WriteSet { head, payload })
    }

    /// As [`WriteSet::decode`], for bytes that were looked at when they came: if they are those,
    /// by their header, their payload is not read again. So who keeps it where it may be
    /// damaged must look at it when it is used ([`Plan::is_sound`](crate::Plan::is_sound),
    /// [`Head::payload_sum`]).
    ///
    /// If the payload was left elsewhere, `bytes` are header and keys, and it is not read here.
    pub fn decode_arrived(bytes: Bytes, arrived: &Arrived) -> Result<WriteSet, DecodeError> {
        let head = Head::decode(&bytes)?;
        if let Some(kept) = arrived.kept() {
            arrived.check(&head)?;
            let payload = Payload::Elsewhere(kept.clone());
            return Ok(WriteSet { head, payload });
        }
        let payload = bytes.slice(head.payload_offset()..);
        if !arrived.is_of(&head) || u64::try_from(payload.len()) != Ok(head.payload_len) {
            return WriteSet::decode(bytes);
        }
        let payload = Payload::Here(payload);
        Ok(WriteSet { head, payload })
    }

    /// Header and keys.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What the server appended, for its `apply_cb`.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }
}

impl Deref for WriteSet {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

fn check_sum(part: &'static str, bytes: &[u8], stored: u64) -> Result<(), DecodeError> {
    let computed = XxHash3_64::oneshot(bytes);
    if computed == stored {
        return Ok(());
    }
    Err(DecodeError::Checksum {
        part,
        computed,
        stored,
    })
}

pub(crate) struct RawHeader {
    pub(crate) header: Header,
    pub(crate) keys_len: u64,
    payload_len: u64,
    keys_sum: u64,
    payload_sum: u64,
    pub(crate) sum: u64,
}

impl RawHeader {
    pub(crate) fn read(bytes: &[u8]) -> Result<RawHeader, DecodeError> {
        let Some(h) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(DecodeError::TooShort { have: bytes.len() });
        };
        if h[..2] != MAGIC {
            return Err(DecodeError::Magic {
                found: [h[0], h[1]],
            });
        }
        // Before the checksum: another version may compute it otherwise.
        if h[2] != WRITESET_VERSION {
            return Err(DecodeError::Version { found: h[2] });
        }
        check_sum("header", &h[..HEADER_SUM_AT], u64_at(h, HEADER_SUM_AT))?;
        let mut source = [0; 16];
        source.copy_from_slice(&h[8..24]);
        Ok(RawHeader {
            header: Header {
                flags: Flags::from_bits(u64_at(h, 4) as u32),
                source: Uuid(source),
                trx_id: u64_at(h, 24),
                conn_id: u64_at(h, 32),
                last_seen: u64_at(h, LAST_SEEN_AT) as i64,
                prev_fragment: u64_at(h, 48) as i64,
                chunk: h[3],
            },
            keys_len: u64_at(h, 56),
            payload_len: u64_at(h, 64),
            keys_sum: u64_at(h, 72),
            payload_sum: u64_at(h, 80),
            sum: u64_at(h, HEADER_SUM_AT),
        })
    }
}

fn u64_at(h: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut b = [0; 8];
    b.copy_from_slice(&h[at..at + 8]);
    u64::from_le_bytes(b)
}
