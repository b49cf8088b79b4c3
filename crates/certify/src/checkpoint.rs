//! The state of certification as bytes, for checkpoints and joiners.
//!
//! ```text
//! magic "DCRT", version u8 = 1, zero[3]
//! position i64, floor i64, last_pa_unsafe i64
//! first i64, slots u64, sources u32, keys u64
//! source[16] × sources      in order of first use
//! slot × slots              kind u8 (0 nothing, 1 passed, 2 TOI);
//!                           unless nothing: source u32, trx id u64, conn id u64
//! key × keys                by rising hash: hash[16], mask u8, seqno i64 per bit
//! checksum u64              xxh3-64 of all before
//! ```
//!
//! Numbers are little-endian. Mask bits: the last SHARED, REFERENCE, UPDATE,
//! EXCLUSIVE, then the second source's SHARED and EXCLUSIVE. One state has one
//! encoding: what was overwritten or purged leaves no trace in it.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use dromon_writeset::{KeyHash, Seqno, Uuid};
use twox_hash::XxHash3_64;

use crate::certifier::Certifier;
use crate::index::{Index, NO_REF, Origin, Refs};

const MAGIC: [u8; 4] = *b"DCRT";
const VERSION: u8 = 1;
const SUM_LEN: usize = 8;
const KIND_NOTHING: u8 = 0;
const KIND_PASSED: u8 = 1;
const KIND_TOI: u8 = 2;

/// Why bytes are not a state of certification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Something else.
    #[error(
        "This is no checkpoint of the certification index: it starts with other bytes. The node \
         must take its state from another checkpoint."
    )]
    Magic,
    /// Another build wrote it.
    #[error(
        "The checkpoint of the certification index has version {found}; this build knows only \
         version 1. Upgrade this node, or start it from an older checkpoint."
    )]
    Version {
        /// The version found.
        found: u8,
    },
    /// Bytes were lost or changed.
    #[error(
        "The checkpoint of the certification index is damaged (checksum computed {computed:016x}, \
         stored {stored:016x}). The node must take its state from another checkpoint."
    )]
    Checksum {
        /// Of the bytes there are.
        computed: u64,
        /// At their end.
        stored: u64,
    },
    /// The checksum fits but the content does not.
    #[error(
        "The checkpoint of the certification index contradicts itself: {what}. It was written by a \
         faulty build; take the state from another node."
    )]
    Malformed {
        /// The rule that is broken.
        what: &'static str,
    },
}

impl Certifier {
    /// The state as bytes; equal states give equal bytes.
    ///
    /// Takes time in proportion to the index and sorts its keys.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode_behind(&mut out);
        out.into()
    }

    /// The same behind what is in `out`: of a large index nobody wants a second copy.
    pub fn encode_behind(&self, out: &mut Vec<u8>) {
        let slots = self.index.slots();
        let mut numbers: HashMap<Uuid, u32> = HashMap::new();
        let mut sources = Vec::new();
        let mut slot_bytes = BytesMut::with_capacity(slots.len() * 21);
        let slot_count = slots.len();
        for origin in slots {
            let Some(o) = origin else {
                slot_bytes.put_u8(KIND_NOTHING);
                continue;
            };
            let number = *numbers.entry(o.source).or_insert_with(|| {
                sources.push(o.source);
                sources.len() as u32 - 1
            });
            slot_bytes.put_u8(if o.toi { KIND_TOI } else { KIND_PASSED });
            slot_bytes.put_u32_le(number);
            slot_bytes.put_u64_le(o.trx_id);
            slot_bytes.put_u64_le(o.conn_id);
        }
        let mut entries: Vec<_> = self.index.entries().collect();
        entries.sort_unstable_by_key(|(hash, _)| *hash);

        let begin = out.len();
        out.reserve(128 + sources.len() * 16 + slot_bytes.len() + entries.len() * 40);
        out.put_slice(&MAGIC);
        out.put_u8(VERSION);
        out.put_slice(&[0; 3]);
        out.put_i64_le(self.position);
        out.put_i64_le(self.floor);
        out.put_i64_le(self.last_pa_unsafe);
        out.put_i64_le(self.index.lowest().unwrap_or(self.position + 1));
        out.put_u64_le(slot_count as u64);
        out.put_u32_le(sources.len() as u32);
        out.put_u64_le(entries.len() as u64);
        sources.iter().for_each(|s| out.put_slice(&s.0));
        out.put_slice(&slot_bytes);
        for (hash, refs) in &entries {
            put_entry(out, *hash, refs);
        }
        let sum = XxHash3_64::oneshot(&out[begin..]);
        out.put_u64_le(sum);
    }

    /// The state that [`Self::encode`] wrote; everything is checked.
    pub fn decode(bytes: &[u8]) -> Result<Certifier, CheckpointError> {
        if bytes.get(..4) != Some(&MAGIC) {
            return Err(CheckpointError::Magic);
        }
        match bytes.get(4) {
            Some(&VERSION) => {}
            Some(&found) => return Err(CheckpointError::Version { found }),
            None => return Err(malformed("it ends after four bytes")),
        }
        let (body, stored) = bytes
            .split_last_chunk::<SUM_LEN>()
            .ok_or(malformed("it is shorter than its checksum"))?;
        let stored = u64::from_le_bytes(*stored);
        let computed = XxHash3_64::oneshot(body);
        if computed != stored {
            return Err(CheckpointError::Checksum { computed, stored });
        }
        decode_body(body)
    }

    /// A digest of the state: equal on all nodes that took the same calls,
    /// restarted or not. Cheaper than [`Self::encode`]: it does not sort.
    pub fn digest(&self) -> u64 {
        let mut buf = BytesMut::with_capacity(128);
        // A sum does not depend on the order in which the map gives its keys.
        let mut keys = 0u64;
        for (hash, refs) in self.index.entries() {
            buf.clear();
            put_entry(&mut buf, hash, &refs);
            keys = keys.wrapping_add(XxHash3_64::oneshot(&buf));
        }
        let mut slots = 0u64;
        for origin in self.index.slots() {
            buf.clear();
            buf.put_u64_le(slots);
            if let Some(o) = origin {
                buf.put_slice(&o.source.0);
                buf.put_u64_le(o.trx_id);
                buf.put_u64_le(o.conn_id);
                buf.put_u8(u8::from(o.toi));
            }
            slots = XxHash3_64::oneshot(&buf);
        }
        buf.clear();
        buf.put_i64_le(self.position);
        buf.put_i64_le(self.floor);
        buf.put_i64_le(self.last_pa_unsafe);
        buf.put_i64_le(self.index.lowest().unwrap_or(self.position + 1));
        buf.put_u64_le(slots);
        buf.put_u64_le(keys);
        XxHash3_64::oneshot(&buf)
    }
}

fn put_entry(out: &mut impl BufMut, hash: KeyHash, refs: &Refs) {
    let all = refs.all();
    let mask = (0..all.len())
        .filter(|i| all[*i] != NO_REF)
        .fold(0u8, |m, i| m | 1 << i);
    out.put_u128_le(hash.0);
    out.put_u8(mask);
    all.into_iter()
        .filter(|s| *s != NO_REF)
        .for_each(|s| out.put_i64_le(s));
}

fn decode_body(body: &[u8]) -> Result<Certifier, CheckpointError> {
    let mut r = Reader { rest: &body[5..] };
    if r.array::<3>()? != [0; 3] {
        return Err(malformed("reserved bytes are in use"));
    }
    let [position, floor, last_pa_unsafe, first] = [r.i64()?, r.i64()?, r.i64()?, r.i64()?];
    if !(0..Seqno::MAX).contains(&position) {
        return Err(malformed("its position is not a seqno"));
    }
    if !(0..=position).contains(&floor) || !(0..=position).contains(&last_pa_unsafe) {
        return Err(malformed(
            "its cut or its last PA_UNSAFE lies outside its history",
        ));
    }
    if first <= floor || first > position + 1 {
        return Err(malformed("its first write set lies outside its index"));
    }
    let slot_count = r.u64()?;
    if slot_count != first.abs_diff(position + 1) {
        return Err(malformed("its write sets do not reach its position"));
    }
    let source_count = r.u32()?;
    let key_count = r.u64()?;

    let mut sources = r.room(u64::from(source_count), 16)?;
    for _ in 0..source_count {
        sources.push(Uuid(r.array()?));
    }
    let distinct: HashSet<Uuid> = sources.iter().copied().collect();
    if distinct.len() != sources.len() {
        return Err(malformed("it lists a node twice"));
    }
    let mut origins = r.room(slot_count, 1)?;
    let mut used = 0;
    for _ in 0..slot_count {
        origins.push(r.origin(&sources, &mut used)?);
    }
    if used != sources.len() {
        return Err(malformed("it lists a node that no write set comes from"));
    }
    let mut entries: Vec<(KeyHash, Refs)> = r.room(key_count, 25)?;
    for _ in 0..key_count {
        let (hash, refs) = r.entry(first, position)?;
        if entries.last().is_some_and(|(before, _)| *before >= hash) {
            return Err(malformed("its keys are not in order"));
        }
        entries.push((hash, refs));
    }
    if !r.rest.is_empty() {
        return Err(malformed("bytes follow its last key"));
    }
    let index = Index::restore(first, origins, entries)
        .ok_or(malformed("a key names a seqno without a write set"))?;
    Ok(Certifier::with(index, position, floor, last_pa_unsafe))
}

fn malformed(what: &'static str) -> CheckpointError {
    CheckpointError::Malformed { what }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(malformed("it is cut short"))?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, CheckpointError> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, CheckpointError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, CheckpointError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, CheckpointError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Memory for `count` things of at least `size` bytes each, if that many
    /// can still come.
    fn room<T>(&self, count: u64, size: u64) -> Result<Vec<T>, CheckpointError> {
        if count.saturating_mul(size) > self.rest.len() as u64 {
            return Err(malformed("it announces more than it holds"));
        }
        Ok(Vec::with_capacity(count as usize))
    }

    fn origin(
        &mut self,
        sources: &[Uuid],
        used: &mut usize,
    ) -> Result<Option<Origin>, CheckpointError> {
        let toi = match self.u8()? {
            KIND_NOTHING => return Ok(None),
            KIND_PASSED => false,
            KIND_TOI => true,
            _ => return Err(malformed("a write set is of no known kind")),
        };
        let number = self.u32()? as usize;
        let source = *sources
            .get(number)
            .ok_or(malformed("a write set comes from an unlisted node"))?;
        if number > *used {
            return Err(malformed("its nodes are not listed in the order of use"));
        }
        *used = (*used).max(number + 1);
        Ok(Some(Origin {
            source,
            trx_id: self.u64()?,
            conn_id: self.u64()?,
            toi,
        }))
    }

    fn entry(&mut self, first: Seqno, position: Seqno) -> Result<(KeyHash, Refs), CheckpointError> {
        let hash = KeyHash(u128::from_le_bytes(self.array()?));
        let mask = self.u8()?;
        if !(1..1 << 6).contains(&mask) {
            return Err(malformed("a key has an impossible set of types"));
        }
        let mut all = [NO_REF; 6];
        for (bit, seqno) in all.iter_mut().enumerate() {
            if mask & 1 << bit != 0 {
                *seqno = self.i64()?;
                if !(first..=position).contains(seqno) {
                    return Err(malformed("a key's seqno lies outside the index"));
                }
            }
        }
        let [shared, _, _, exclusive, other_shared, other_exclusive] = all;
        let newer = |last, other| other == NO_REF || other < last;
        if !newer(shared, other_shared) || !newer(exclusive, other_exclusive) {
            return Err(malformed("a key's second source is above its first"));
        }
        Ok((hash, Refs::from_all(all)))
    }
}
