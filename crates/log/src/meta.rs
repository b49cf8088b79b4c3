//! The small durable values beside the log: `dromon-meta.log`.
//!
//! Two slots hold the same state. A change is written and synced to slot 0, then to slot
//! 1, and only then counts. A crash in between leaves at least one whole slot, old or new;
//! and once a change counts, damage to either slot loses nothing, because the other one has
//! it too. (With slots that alternate, one flipped bit could bring back an older vote.)

use crate::checkpoint;
use crate::device::{Device, DeviceFile, write_one};
use crate::error::LogError;
use crate::format::{u32_at, u64_at};
use crate::record::RecordId;
use crate::segment;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The file's name.
pub(crate) const META_NAME: &str = "dromon-meta.log";
const META_TEMP: &str = "dromon-tmp-meta.log";
pub(crate) const MAGIC: [u8; 8] = *b"DROMMET\n";
const VERSION: u32 = 1;
const SLOT: u64 = 64 << 10;
const HEADER: usize = 32;
/// Longest key, in bytes.
pub const META_KEY_MAX: usize = 32;
/// Sum of all keys and values, in bytes, with 8 bytes of overhead each.
pub const META_BYTES_MAX: usize = 48 << 10;

/// All of the log's small state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetaState {
    pub identity: u128,
    /// Segments are being replaced: whatever segments there are count for nothing.
    pub resetting: bool,
    pub purged: Option<RecordId>,
    /// Where the log ended when it was closed; none while it is open.
    pub closed: Option<Closed>,
    pub values: BTreeMap<String, Bytes>,
}

/// The end of a log that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub next: u64,
    pub chain: u32,
}

/// The open file and the state in it.
pub(crate) struct MetaStore {
    file: Arc<dyn DeviceFile>,
    sequence: u64,
    state: MetaState,
}

impl MetaStore {
    /// Makes the file with this state; it gets its name only when it is complete.
    pub(crate) fn create(device: &dyn Device, state: MetaState) -> Result<MetaStore, LogError> {
        let file = device
            .create(META_TEMP)
            .map_err(|e| LogError::io("create", META_TEMP, e))?;
        let mut store = MetaStore {
            file,
            sequence: 0,
            state: MetaState::default(),
        };
        store.save(state)?;
        store
            .file
            .sync_all()
            .map_err(|e| LogError::io("sync", META_TEMP, e))?;
        device
            .rename(META_TEMP, META_NAME)
            .map_err(|e| LogError::io("rename", META_TEMP, e))?;
        device
            .sync_dir()
            .map_err(|e| LogError::io("sync", &device.place(), e))?;
        Ok(store)
    }

    /// Reads the file. The flag says whether a slot had to be restored from the other.
    pub(crate) fn open(device: &dyn Device) -> Result<(MetaStore, bool), LogError> {
        let file = device
            .open(META_NAME)
            .map_err(|e| LogError::io("open", META_NAME, e))?;
        let (sequence, state, whole) = read(&*file)?;
        let mut store = MetaStore {
            file,
            sequence,
            state,
        };
        if !whole {
            store.save(store.state.clone())?;
        }
        Ok((store, !whole))
    }

    pub(crate) fn state(&self) -> &MetaState {
        &self.state
    }

    /// Replaces the state; durable when this returns. After an error nobody may go on.
    pub(crate) fn save(&mut self, state: MetaState) -> Result<(), LogError> {
        let slot = encode_slot(self.sequence + 1, &state)?;
        for n in 0..2 {
            write_one(&*self.file, &slot, n * SLOT)
                .map_err(|e| LogError::io("write", META_NAME, e))?;
            self.file
                .sync_data()
                .map_err(|e| LogError::io("sync", META_NAME, e))?;
        }
        self.sequence += 1;
        self.state = state;
        Ok(())
    }
}

/// Reads both slots: the newer one's number and state, and whether both are whole and alike.
pub(crate) fn read(file: &dyn DeviceFile) -> Result<(u64, MetaState, bool), LogError> {
    let mut slots = Vec::new();
    for n in 0..2 {
        let mut buf = vec![0; SLOT as usize];
        let got = file
            .read_at(&mut buf, n * SLOT)
            .map_err(|e| LogError::io("read", META_NAME, e))?;
        buf.truncate(got);
        slots.push(decode_slot(&buf)?);
    }
    let newest = slots.iter().flatten().max_by_key(|s| s.0).cloned();
    let Some((sequence, state)) = newest else {
        return Err(LogError::corrupt(
            META_NAME,
            0,
            "neither of the two copies of the log's state (vote, start of the log) has a \
             correct checksum, and a crash can damage only one of them",
        ));
    };
    let whole = slots
        .iter()
        .all(|s| s.as_ref().is_some_and(|s| s.0 == sequence));
    Ok((sequence, state, whole))
}

/// Removes what an interrupted creation left.
pub(crate) fn is_temp(name: &str) -> bool {
    [META_TEMP, segment::TEMP, checkpoint::TEMP].contains(&name)
}

/// Whether the values fit; checked before anything is written.
pub(crate) fn check_size(values: &BTreeMap<String, Bytes>) -> Result<(), LogError> {
    let bytes: usize = values.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
    if bytes > META_BYTES_MAX {
        return Err(LogError::TooLarge {
            what: "The set of small values beside the log",
            bytes: bytes as u64,
            limit: META_BYTES_MAX as u64,
        });
    }
    Ok(())
}

fn encode_slot(sequence: u64, state: &MetaState) -> Result<Vec<u8>, LogError> {
    check_size(&state.values)?;
    let mut p = Vec::new();
    p.extend_from_slice(&state.identity.to_le_bytes());
    let flags = u8::from(state.resetting)
        | u8::from(state.purged.is_some()) << 1
        | u8::from(state.closed.is_some()) << 2;
    p.push(flags);
    let purged = state.purged.unwrap_or(RecordId {
        index: 0,
        term: 0,
        leader: 0,
    });
    for n in [purged.index, purged.term, purged.leader] {
        p.extend_from_slice(&n.to_le_bytes());
    }
    let closed = state.closed.unwrap_or(Closed { next: 0, chain: 0 });
    p.extend_from_slice(&closed.next.to_le_bytes());
    p.extend_from_slice(&closed.chain.to_le_bytes());
    p.extend_from_slice(&(state.values.len() as u32).to_le_bytes());
    for (key, value) in &state.values {
        p.extend_from_slice(&(key.len() as u32).to_le_bytes());
        p.extend_from_slice(key.as_bytes());
        p.extend_from_slice(&(value.len() as u32).to_le_bytes());
        p.extend_from_slice(value);
    }
    let mut slot = vec![0; HEADER];
    slot[0..8].copy_from_slice(&MAGIC);
    slot[8..12].copy_from_slice(&VERSION.to_le_bytes());
    slot[12..16].copy_from_slice(&(p.len() as u32).to_le_bytes());
    slot[16..24].copy_from_slice(&sequence.to_le_bytes());
    let crc = slot_crc(&slot, &p);
    slot[28..32].copy_from_slice(&crc.to_le_bytes());
    slot.extend_from_slice(&p);
    Ok(slot)
}

fn slot_crc(header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..28]), payload)
}

/// Puts the right checksum into each slot that has room for what it says it holds.
pub(crate) fn seal(file: &mut [u8]) {
    for n in 0..2 {
        let Some(slot) = file
            .get_mut((n * SLOT) as usize..)
            .filter(|s| s.len() >= HEADER)
        else {
            return;
        };
        let end = HEADER + u32_at(slot, 12) as usize;
        if let Some(payload) = slot.get(HEADER..end) {
            let crc = slot_crc(slot, payload);
            slot[28..32].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// `None` if the slot is torn or damaged.
fn decode_slot(slot: &[u8]) -> Result<Option<(u64, MetaState)>, LogError> {
    if slot.len() < HEADER || slot[0..8] != MAGIC {
        return Ok(None);
    }
    let len = u32_at(slot, 12) as usize;
    let Some(payload) = slot.get(HEADER..HEADER + len) else {
        return Ok(None);
    };
    if slot_crc(slot, payload) != u32_at(slot, 28) {
        return Ok(None);
    }
    let version = u32_at(slot, 8);
    if version != VERSION {
        return Err(LogError::Version {
            file: META_NAME.to_owned(),
            version,
            known: VERSION,
        });
    }
    Ok(decode_payload(payload).map(|state| (u64_at(slot, 16), state)))
}

fn decode_payload(payload: &[u8]) -> Option<MetaState> {
    let mut p = payload;
    let mut identity = [0; 16];
    identity.copy_from_slice(take(&mut p, 16)?);
    let flags = take(&mut p, 1)?[0];
    let numbers = take(&mut p, 36)?;
    let purged = RecordId {
        index: u64_at(numbers, 0),
        term: u64_at(numbers, 8),
        leader: u64_at(numbers, 16),
    };
    let closed = Closed {
        next: u64_at(numbers, 24),
        chain: u32_at(numbers, 32),
    };
    let count = u32_at(take(&mut p, 4)?, 0);
    let mut values = BTreeMap::new();
    for _ in 0..count {
        let len = u32_at(take(&mut p, 4)?, 0) as usize;
        let key = std::str::from_utf8(take(&mut p, len)?).ok()?.to_owned();
        let len = u32_at(take(&mut p, 4)?, 0) as usize;
        values.insert(key, Bytes::copy_from_slice(take(&mut p, len)?));
    }
    Some(MetaState {
        identity: u128::from_le_bytes(identity),
        resetting: flags & 1 != 0,
        purged: (flags & 2 != 0).then_some(purged),
        closed: (flags & 4 != 0).then_some(closed),
        values,
    })
}

fn take<'a>(p: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, rest) = p.split_at_checked(n)?;
    *p = rest;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimDevice;

    fn state(n: u64) -> MetaState {
        MetaState {
            identity: 5,
            resetting: false,
            purged: Some(RecordId {
                index: n,
                term: 2,
                leader: 3,
            }),
            closed: Some(Closed { next: 9, chain: 1 }),
            values: BTreeMap::from([("vote".to_owned(), Bytes::from(vec![n as u8; 40]))]),
        }
    }

    #[test]
    fn every_crash_leaves_the_old_or_the_new_state() -> Result<(), LogError> {
        for change in 1..=4 {
            for seed in 0..60 {
                let d = SimDevice::new(seed);
                let mut store = MetaStore::create(&d, state(1))?;
                store.save(state(2))?;
                d.power_off_after(change);
                assert!(store.save(state(3)).is_err());
                d.crash(seed);
                let (store, _) = MetaStore::open(&d)?;
                let found = store.state().clone();
                assert!(found == state(2) || found == state(3));
                let (again, repaired) = MetaStore::open(&d)?;
                assert_eq!(again.state(), &found);
                assert!(!repaired, "the first open made both slots equal");
            }
        }
        Ok(())
    }

    #[test]
    fn a_flipped_bit_never_brings_back_an_older_vote() -> Result<(), LogError> {
        let d = SimDevice::new(1);
        let mut store = MetaStore::create(&d, state(1))?;
        store.save(state(2))?;
        let len = encode_slot(2, &state(2))?.len() as u64;
        for slot in 0..2 {
            for byte in 0..len {
                let at = slot * SLOT + byte;
                assert!(d.flip_bit(META_NAME, at, 3));
                let (store, repaired) = MetaStore::open(&d)?;
                assert!(repaired, "byte {at}");
                assert_eq!(store.state(), &state(2));
            }
        }
        assert!(d.flip_bit(META_NAME, 40, 0) && d.flip_bit(META_NAME, SLOT + 40, 0));
        assert!(MetaStore::open(&d).is_err_and(|e| e.is_corruption()));
        Ok(())
    }
}
