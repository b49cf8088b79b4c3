//! A small log of several segments, and where its files are worth damaging.

use bytes::Bytes;
use dromon_log::{Log, LogError, LogOptions, Record, SimDevice};
use std::sync::Arc;

/// Segments of some records each.
pub fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 4096 + 3000,
        zero_ahead_bytes: 600,
        cache_bytes: 1000,
        identity: 7,
        ..LogOptions::default()
    }
}

/// The record at this index.
pub fn record(index: u64) -> Record {
    Record {
        index,
        term: 1 + index / 10,
        leader: 3,
        body: Bytes::from(vec![index as u8 ^ 0x5a; 100 + (index as usize * 37) % 300]),
    }
}

/// A log of some segments, the last batch of three records synced in one go.
pub fn filled(device: &SimDevice) -> Result<(Log, Vec<Record>), LogError> {
    let mut log = Log::open(Arc::new(device.clone()), options())?.0;
    let records: Vec<Record> = (0..24).map(record).collect();
    for batch in records.chunks(3) {
        log.append(batch.to_vec())?;
        log.sync()?;
    }
    log.save_meta("vote", Bytes::from_static(b"a vote"))?;
    log.checkpoints().save(5, b"a state of the node")?;
    Ok((log, records))
}

/// Every `step`th place in a file; of long runs of zeros, some.
pub fn places(content: &[u8], step: usize) -> impl Iterator<Item = usize> {
    (0..content.len()).step_by(step).filter(|at| {
        let around = &content[at.saturating_sub(16)..(at + 16).min(content.len())];
        at % 101 == 0 || around.iter().any(|b| *b != 0)
    })
}
