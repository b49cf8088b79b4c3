//! Checkpoints: whole states of the node, one file each, beside the log.
//!
//! A file gets its name only when it is complete and synced, so one that exists is whole;
//! its checksum is verified when it is read.

use crate::device::{Device, write_one};
use crate::error::LogError;
use crate::format::{parse_hex16, u32_at, u64_at};
use bytes::Bytes;
use std::io;

pub(crate) const TEMP: &str = "dromon-tmp-ckpt.log";
pub(crate) const MAGIC: [u8; 8] = *b"DROMCKP\n";
const VERSION: u32 = 1;
const HEADER: usize = 64;

/// The name of the checkpoint at `index`.
pub(crate) fn checkpoint_name(index: u64) -> String {
    format!("dromon-ckpt-{index:016x}.log")
}

/// The index in a checkpoint's name, if it is one.
pub(crate) fn parse_checkpoint_name(name: &str) -> Option<u64> {
    parse_hex16(name.strip_prefix("dromon-ckpt-")?.strip_suffix(".log")?)
}

/// Indices of the checkpoints there are, ascending.
pub(crate) fn list(device: &dyn Device) -> Result<Vec<u64>, LogError> {
    let names = device
        .list()
        .map_err(|e| LogError::io("list", &device.place(), e))?;
    let mut found: Vec<u64> = names
        .iter()
        .filter_map(|n| parse_checkpoint_name(n))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Why a checkpoint is not there.
pub(crate) enum Unsaved {
    /// Nothing else was touched.
    Alone(LogError),
    /// The names of other files may be lost with it.
    Names(LogError),
}

/// Writes a checkpoint; complete and durable when this returns. What a failure leaves of it
/// is removed, as far as that goes.
pub(crate) fn save(
    device: &dyn Device,
    identity: u128,
    index: u64,
    body: &[u8],
) -> Result<(), Unsaved> {
    write(device, identity, index, body).map_err(|e| {
        // If not now, then before the next one.
        let _ = device.remove(TEMP);
        Unsaved::Alone(match e {
            LogError::Io {
                action,
                file,
                source,
            } => LogError::NotSaved {
                index,
                action,
                file,
                source,
            },
            e => e,
        })
    })?;
    device
        .sync_dir()
        .map_err(|e| Unsaved::Names(LogError::io("sync", &device.place(), e)))
}

fn write(device: &dyn Device, identity: u128, index: u64, body: &[u8]) -> Result<(), LogError> {
    let mut header = [0u8; HEADER];
    header[0..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&identity.to_le_bytes());
    header[32..40].copy_from_slice(&index.to_le_bytes());
    header[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[48..52].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let crc = crc32c::crc32c(&header[..60]);
    header[60..64].copy_from_slice(&crc.to_le_bytes());

    let names = device
        .list()
        .map_err(|e| LogError::io("list", &device.place(), e))?;
    if names.iter().any(|n| n == TEMP) {
        device
            .remove(TEMP)
            .map_err(|e| LogError::io("remove", TEMP, e))?;
    }
    let file = device
        .create(TEMP)
        .map_err(|e| LogError::io("create", TEMP, e))?;
    write_one(&*file, &header, 0).map_err(|e| LogError::io("write", TEMP, e))?;
    write_one(&*file, body, HEADER as u64).map_err(|e| LogError::io("write", TEMP, e))?;
    file.sync_all().map_err(|e| LogError::io("sync", TEMP, e))?;
    // Whole by now: whoever finds the name in spite of an error finds a good one.
    device
        .rename(TEMP, &checkpoint_name(index))
        .map_err(|e| LogError::io("rename", TEMP, e))
}

/// Reads a checkpoint and verifies it.
pub(crate) fn load(device: &dyn Device, identity: u128, index: u64) -> Result<Bytes, LogError> {
    let name = checkpoint_name(index);
    let names = device
        .list()
        .map_err(|e| LogError::io("list", &device.place(), e))?;
    if !names.contains(&name) {
        return Err(LogError::NoCheckpoint { index });
    }
    let file = device
        .open(&name)
        .map_err(|e| LogError::io("open", &name, e))?;
    let len = file.len().map_err(|e| LogError::io("measure", &name, e))?;
    let mut bytes = vec![0; len as usize];
    let got = file
        .read_at(&mut bytes, 0)
        .map_err(|e| LogError::io("read", &name, e))?;
    bytes.truncate(got);
    let (own, content) = verify(&name, bytes)?;
    if own != (identity, index) {
        return Err(LogError::CorruptCheckpoint {
            file: name,
            what: "it was made for another log or another index",
        });
    }
    Ok(content)
}

/// Checks the bytes of a checkpoint's file: the log and the index it is of, and its content.
pub(crate) fn verify(name: &str, bytes: Vec<u8>) -> Result<((u128, u64), Bytes), LogError> {
    let damaged = |what| LogError::CorruptCheckpoint {
        file: name.to_owned(),
        what,
    };
    if bytes.len() < HEADER
        || bytes[0..8] != MAGIC
        || crc32c::crc32c(&bytes[..60]) != u32_at(&bytes, 60)
    {
        return Err(damaged("the header's checksum does not match"));
    }
    let version = u32_at(&bytes, 8);
    if version != VERSION {
        return Err(LogError::Version {
            file: name.to_owned(),
            version,
            known: VERSION,
        });
    }
    let mut identity = [0; 16];
    identity.copy_from_slice(&bytes[16..32]);
    let index = u64_at(&bytes, 32);
    if u64_at(&bytes, 40) != (bytes.len() - HEADER) as u64 {
        return Err(damaged("its length is not what its header says"));
    }
    if crc32c::crc32c(&bytes[HEADER..]) != u32_at(&bytes, 48) {
        return Err(damaged("the content's checksum does not match"));
    }
    let content = Bytes::from(bytes).slice(HEADER..);
    Ok(((u128::from_le_bytes(identity), index), content))
}

/// Puts the right checksums into the bytes of a checkpoint's file.
pub(crate) fn seal(file: &mut [u8]) {
    if file.len() < HEADER {
        return;
    }
    let content = crc32c::crc32c(&file[HEADER..]);
    file[48..52].copy_from_slice(&content.to_le_bytes());
    let header = crc32c::crc32c(&file[..60]);
    file[60..64].copy_from_slice(&header.to_le_bytes());
}

/// Removes a checkpoint. Not durably.
pub(crate) fn remove(device: &dyn Device, index: u64) -> Result<(), LogError> {
    let name = checkpoint_name(index);
    match device.remove(&name) {
        // Somebody else was first; that is all that was wanted.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| LogError::io("remove", &name, e)),
    }
}

/// Removes these checkpoints, durably, and with them what was removed before.
pub(crate) fn remove_all(device: &dyn Device, old: &[u64]) -> Result<(), LogError> {
    for index in old {
        remove(device, *index)?;
    }
    // Also if there is none: the log behind those that were removed one by one goes next.
    device
        .sync_dir()
        .map_err(|e| LogError::io("sync", &device.place(), e))
}
