//! A mark that stays: the primary has lost what is stored here, so nothing more of it is taken, after a
//! restart neither. The operator removes it.

use std::io::{self, IoSlice};

use dromon_log::Device;

use super::error::StoreError;

/// The file. What it says is why.
pub const HALTED: &str = "dromon-relay.halted";

/// Most of it that is read.
const READ_MAX: usize = 4096;

/// Why nothing is to be taken, if that was marked.
pub(super) fn marked(device: &dyn Device) -> Result<Option<StoreError>, StoreError> {
    let file = match device.open(HALTED) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("open", HALTED)(error)),
    };
    let mut bytes = [0; READ_MAX];
    let n = file
        .read_at(&mut bytes, 0)
        .map_err(StoreError::io("read", HALTED))?;
    let why = String::from_utf8_lossy(&bytes[..n]).trim().to_owned();
    Ok(Some(StoreError::Halted { why }))
}

/// Marks it, on the disk.
pub(super) fn mark(device: &dyn Device, why: &str) -> Result<(), StoreError> {
    let made = || {
        let file = device.create(HALTED)?;
        file.write_at(&mut [IoSlice::new(why.as_bytes())], 0)?;
        file.sync_all()?;
        device.sync_dir()
    };
    made().map_err(StoreError::io("write", HALTED))
}
