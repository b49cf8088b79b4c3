//! The files of a log: a real one, changed here and there, its checksums put right or not.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use dromon_log::{Device, End, Log, LogError, LogOptions, Look, Record, Seen, SimDevice, fuzzed};

use super::Target;
use crate::bytes_in::Input;

/// Opening a log and looking at one agree, on any files, and neither breaks.
///
/// The input is a list of changes: file, what, where (two bytes), with what (eight bytes).
pub const LOG_FILES: Target = Target {
    name: "log_files",
    run,
    seeds: || {
        let change = |file: u8, what: u8, at: u16, with: u64| {
            [&[file, what][..], &at.to_le_bytes(), &with.to_le_bytes()].concat()
        };
        vec![
            Vec::new(),
            change(0, 0, 4100, 1),
            change(0, 1, 4096 + 32, u64::MAX),
            [change(1, 1, 32, 77), change(1, 7, 0, 0)].concat(),
            [change(4, 1, 57, 5), change(4, 7, 0, 0)].concat(),
            change(2, 2, 5000, 0),
            change(3, 3, 0, 0),
            change(2, 4, 9000, 3),
        ]
    },
};

type Files = Vec<(String, Vec<u8>)>;

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 4096 + 2000,
        zero_ahead_bytes: 600,
        cache_bytes: 1000,
        identity: 7,
        ..LogOptions::default()
    }
}

/// A killed log of three segments with a checkpoint and a value.
fn real() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| make().expect("a disk without faults"))
}

fn make() -> Result<Files, LogError> {
    let device = SimDevice::new(1);
    let mut log = Log::open(Arc::new(device.clone()), options())?.0;
    for index in 0..14 {
        log.append(vec![Record {
            index,
            term: 1 + index / 5,
            leader: 3,
            body: Bytes::from(vec![index as u8; 50 + 40 * index as usize]),
        }])?;
        log.sync()?;
    }
    log.save_meta("order", Bytes::from_static(b"a vote"))?;
    log.checkpoints().save(5, b"a state")?;
    log.purge_to(1)?;
    log.mark()?;
    drop(log);
    let names = device.list().unwrap_or_default();
    let content = |n: &String| device.content(n).unwrap_or_default();
    Ok(names.iter().map(|n| (n.clone(), content(n))).collect())
}

fn changed(data: &[u8]) -> Files {
    let mut files = real().clone();
    let mut input = Input::new(data);
    for _ in 0..16 {
        if input.is_empty() || files.is_empty() {
            break;
        }
        let (file, what) = (usize::from(input.u8()) % files.len(), input.u8() % 8);
        let (at, with) = (usize::from(input.u16()), input.u64());
        let bytes = &mut files[file].1;
        let end = (at + 8).min(bytes.len());
        match what {
            0 if at < bytes.len() => bytes[at] ^= with as u8,
            1 | 5 if at < end => bytes[at..end].copy_from_slice(&with.to_le_bytes()[..end - at]),
            2 => bytes.truncate(at),
            3 => drop(files.remove(file)),
            4 => bytes.extend(std::iter::repeat_n(with as u8, at.min(4096))),
            6 => {
                // A copy of a part of the file at another place of it.
                let from = (with as usize % bytes.len().max(1)) & !7;
                let part = bytes[from..(from + 256).min(bytes.len())].to_vec();
                let to = (at & !7).min(bytes.len());
                let n = part.len().min(bytes.len() - to);
                bytes[to..to + n].copy_from_slice(&part[..n]);
            }
            7 => files.iter_mut().for_each(|(_, b)| fuzzed::seal(b)),
            _ => {}
        }
    }
    files
}

fn disk(files: &Files) -> SimDevice {
    let device = SimDevice::new(1);
    for (name, bytes) in files {
        let file = device.create(name).expect("a new file");
        file.write_at(&mut [IoSlice::new(bytes)], 0).expect("room");
        file.sync_all().expect("a disk");
    }
    device.sync_dir().expect("a disk");
    device
}

fn run(data: &[u8]) {
    let device = disk(&changed(data));
    let mut seen = Vec::new();
    let looked = Look::whole(Arc::new(device.clone()), 0).and_then(|look| {
        for index in look.checkpoints() {
            let _ = look.checkpoint(*index);
        }
        let totals = look.walk(&mut |s| {
            if let Seen::Record { record, .. } = s {
                seen.push(record);
            }
            ControlFlow::Continue(())
        })?;
        Ok((totals, look.small()))
    });
    let opened = Log::open(Arc::new(device.clone()), options());
    match (looked, opened) {
        (Ok((totals, small)), Ok((log, recovered))) => {
            if totals.end == End::Resetting {
                return;
            }
            // A log may begin in the middle of its first segment.
            let first = small
                .and_then(|s| s.purged)
                .map_or(0, |p| p.index.saturating_add(1));
            seen.retain(|r| r.index >= first);
            let there = log
                .read(first..u64::MAX, u64::MAX)
                .expect("a log that opens");
            assert_eq!(there, seen);
            let torn = matches!(totals.end, End::Torn { .. });
            assert_eq!(torn, recovered.torn.is_some());
        }
        (Err(_), Ok((_, recovered))) => assert!(recovered.created, "looking refuses it"),
        (Ok(_), Err(e)) => panic!("looking takes it, opening says: {e}"),
        (Err(_), Err(_)) => {}
    }
}
