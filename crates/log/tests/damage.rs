//! Changed bytes, failing disks, missing files.

mod sample;

use bytes::Bytes;
use dromon_log::{Log, LogError, LogOptions, Record, RecordId, SimDevice};
use sample::{filled, options, places, record};
use std::io::ErrorKind;
use std::sync::Arc;

fn open(device: &SimDevice) -> Result<Log, LogError> {
    Log::open(Arc::new(device.clone()), options()).map(|(log, _)| log)
}

/// Everything a node could read, or why it cannot.
fn everything(device: &SimDevice) -> Result<(Vec<Record>, Option<Bytes>, Bytes), LogError> {
    let log = open(device)?;
    let records = log.read(0..u64::MAX, u64::MAX)?;
    Ok((records, log.load_meta("vote"), log.checkpoints().load(5)?))
}

fn is_segment(name: &str) -> bool {
    name.len() == "dromon-0000000000000000.log".len()
}

/// Flips one bit in every byte of every file (of long runs of zeros, in some) and hands each result to `judge`.
fn flip_every_byte(
    device: &SimDevice,
    mut judge: impl FnMut(&str, u64, Result<(Vec<Record>, Option<Bytes>, Bytes), LogError>),
) {
    let names = dromon_log::Device::list(device).unwrap_or_default();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let content = device.content(&name).unwrap_or_default();
        for offset in places(&content, 1).map(|at| at as u64) {
            let copy = device.fork();
            assert!(copy.flip_bit(&name, offset, offset as u32));
            judge(&name, offset, everything(&copy));
        }
    }
}

#[test]
fn after_a_clean_close_every_flipped_bit_is_harmless_or_refused() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, records) = filled(&device)?;
    log.close()?;
    let (mut refused, mut harmless) = (0, 0);
    flip_every_byte(&device, |name, offset, found| match found {
        Ok((found, vote, state)) => {
            harmless += 1;
            assert_eq!(found, records, "{name} {offset}");
            assert_eq!(vote.as_deref(), Some(&b"a vote"[..]));
            assert_eq!(&state[..], b"a state of the node");
            assert!(!is_segment(name), "every byte of a closed segment counts");
        }
        Err(e) => {
            refused += 1;
            assert!(e.is_corruption(), "{name} {offset}: {e}");
            assert!(e.to_string().contains(name), "{name}: {e}");
        }
    });
    assert!(refused > 5000 && harmless > 100, "{refused} {harmless}");
    Ok(())
}

#[test]
fn after_a_kill_every_flipped_bit_is_harmless_or_refused() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (mut log, records) = filled(&device)?;
    log.mark()?;
    drop(log);
    device.kill();
    flip_every_byte(&device, |name, offset, found| match found {
        Ok((found, vote, _)) => {
            assert_eq!(found, records, "{name} {offset}");
            assert_eq!(vote.as_deref(), Some(&b"a vote"[..]));
        }
        Err(e) => assert!(e.is_corruption(), "{name} {offset}: {e}"),
    });
    Ok(())
}

#[test]
fn after_a_power_loss_only_the_last_synced_group_has_no_witness() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, records) = filled(&device)?;
    drop(log);
    device.crash(4);
    let mut cut = 0;
    flip_every_byte(&device, |name, offset, found| match found {
        Ok((found, _, _)) => {
            assert!(found.len() >= records.len() - 3, "{name} {offset}");
            assert_eq!(found, records[..found.len()], "{name} {offset}");
            cut += usize::from(found.len() < records.len());
        }
        Err(e) => assert!(e.is_corruption(), "{name} {offset}: {e}"),
    });
    assert!(cut > 0, "the test reaches the case it describes");
    Ok(())
}

/// What a disk cannot read it says, and so do file systems that have a checksum of it.
#[test]
fn what_cannot_be_read_is_damage_and_no_other_refusal_is() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, _) = filled(&device)?;
    log.close()?;
    for name in dromon_log::Device::list(&device).unwrap_or_default() {
        let copy = device.fork();
        assert!(copy.make_unreadable(&name, 60));
        let found = everything(&copy).err();
        let said = found.as_ref().map(LogError::to_string).unwrap_or_default();
        assert!(found.is_some_and(|e| e.is_corruption()), "{name}: {said}");
        let words = format!("The log could not read {name}: ");
        assert!(said.starts_with(&words), "{said}");
        assert!(said.ends_with("Nothing was changed; check the disk (health, permissions)."));
    }
    for (action, error, damage) in [
        ("read", 5, true),
        ("read", 74, true),
        ("open", 117, true),
        ("read", 24, false),
        ("open", 13, false),
        ("write", 5, false),
        ("sync", 5, false),
    ] {
        let e = LogError::Io {
            action,
            file: "dromon-meta.log".to_owned(),
            source: Arc::new(std::io::Error::from_raw_os_error(error)),
        };
        assert_eq!(e.is_corruption(), damage, "{e}");
    }
    Ok(())
}

#[test]
fn several_torn_records_are_cut_though_later_ones_are_whole() -> Result<(), LogError> {
    let mut torn_before_whole = 0;
    for seed in 0..200 {
        let device = SimDevice::new(seed);
        let mut log = Log::open(Arc::new(device.clone()), LogOptions::default())?.0;
        log.append((0..4).map(record).collect())?;
        log.sync()?;
        // One write over many sectors that is never synced.
        log.append(
            (4..12)
                .map(|index| Record {
                    body: Bytes::from(vec![index as u8; 700]),
                    ..record(index)
                })
                .collect(),
        )?;
        device.power_off_after(2);
        assert!(log.sync().is_err());
        drop(log);
        device.crash(seed);
        let before = device
            .content("dromon-0000000000000000.log")
            .unwrap_or_default();
        let (log, recovered) = Log::open(Arc::new(device.clone()), LogOptions::default())?;
        let next = log.reader().next_index();
        assert!((4..=12).contains(&next));
        if let Some(torn) = recovered.torn {
            assert_eq!(torn.index, next);
            let behind = &before[torn.offset as usize..];
            let whole = behind.windows(4).filter(|w| *w == b"DRec").count();
            torn_before_whole += usize::from(whole > 1);
        }
    }
    assert!(torn_before_whole > 20, "{torn_before_whole}");
    Ok(())
}

/// Raft brings the same entry again after the crash: byte for byte the torn one. What was
/// written behind the torn one must not follow it as if it had been appended again.
#[test]
fn what_was_behind_a_torn_record_does_not_come_back() -> Result<(), LogError> {
    let mut same = 0;
    for seed in 0..300 {
        let device = SimDevice::new(seed);
        let mut log = Log::open(Arc::new(device.clone()), LogOptions::default())?.0;
        log.append((0..4).map(record).collect())?;
        log.sync()?;
        let long = |index| Record {
            body: Bytes::from(vec![index as u8; 700]),
            ..record(index)
        };
        log.append((4..12).map(long).collect())?;
        device.power_off_after(2);
        assert!(log.sync().is_err());
        drop(log);
        device.crash(seed);
        let (mut log, recovered) = Log::open(Arc::new(device.clone()), LogOptions::default())?;
        let next = log.reader().next_index();
        if recovered.torn.is_none() || next == 12 {
            continue;
        }
        same += usize::from(next == 4);
        log.append(vec![long(next)])?;
        log.sync()?;
        drop(log);
        device.kill();
        let (log, _) = Log::open(Arc::new(device.clone()), LogOptions::default())?;
        assert_eq!(log.reader().next_index(), next + 1, "seed {seed}");
    }
    assert!(same > 20, "{same}");
    Ok(())
}

#[test]
fn a_missing_file_is_noticed() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, _) = filled(&device)?;
    drop(log);
    device.kill();
    let names = dromon_log::Device::list(&device).unwrap_or_default();
    let segments: Vec<&String> = names.iter().filter(|n| is_segment(n)).collect();
    assert!(segments.len() >= 3);
    for name in &segments[..segments.len() - 1] {
        let copy = device.fork();
        assert!(dromon_log::Device::remove(&copy, name).is_ok());
        let found = everything(&copy);
        assert!(found.is_err_and(|e| e.is_corruption()), "{name}");
    }
    let copy = device.fork();
    assert!(dromon_log::Device::remove(&copy, "dromon-meta.log").is_ok());
    assert!(everything(&copy).is_err_and(|e| e.is_corruption()));
    // After a clean close the last segment is missed too.
    open(&device)?.close()?;
    let copy = device.fork();
    assert!(dromon_log::Device::remove(&copy, segments[segments.len() - 1]).is_ok());
    assert!(everything(&copy).is_err_and(|e| e.is_corruption()));
    Ok(())
}

#[test]
fn a_file_of_another_log_is_refused() -> Result<(), LogError> {
    let (ours, theirs) = (SimDevice::new(1), SimDevice::new(2));
    filled(&ours)?.0.close()?;
    let other = LogOptions {
        identity: 8,
        ..options()
    };
    let (mut log, _) = Log::open(Arc::new(theirs.clone()), other)?;
    log.reset_to(Some(record(20).id()))?;
    drop(log);
    let name = "dromon-0000000000000015.log";
    let bytes = theirs.content(name).unwrap_or_default();
    let names = dromon_log::Device::list(&ours).unwrap_or_default();
    let last = names.iter().rfind(|n| is_segment(n));
    let last = last.map_or("", String::as_str);
    let file = dromon_log::Device::open(&ours, last).map_err(|_| LogError::Closed)?;
    let written = file.write_at(&mut [std::io::IoSlice::new(&bytes[..4096])], 0);
    assert!(written.is_ok());
    let e = everything(&ours).err().map(|e| e.to_string());
    assert!(
        e.as_ref().is_some_and(|e| e.contains("belongs to the log")),
        "{e:?}"
    );
    Ok(())
}

#[test]
fn files_of_a_newer_version_are_refused_by_that_name() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    filled(&device)?.0.close()?;
    let names = dromon_log::Device::list(&device).unwrap_or_default();
    let first = names.iter().find(|n| is_segment(n)).cloned();
    // Name, bytes under the checksum, place of the checksum: docs/log.md.
    let segment = (first.unwrap_or_default(), 4092, 4092);
    let meta = ("dromon-meta.log".to_owned(), 28, 28);
    for (name, covered, crc_at) in [segment, meta] {
        let copy = device.fork();
        let mut bytes = copy.content(&name).unwrap_or_default();
        bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
        let mut crc = crc32c::crc32c(&bytes[..covered]);
        if name == "dromon-meta.log" {
            let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap_or_default()) as usize;
            crc = crc32c::crc32c_append(crc, &bytes[32..32 + len]);
        }
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        let file = dromon_log::Device::open(&copy, &name).map_err(|_| LogError::Closed)?;
        assert!(
            file.write_at(&mut [std::io::IoSlice::new(&bytes)], 0)
                .is_ok()
        );
        let before = copy.fork();
        let e = everything(&copy).err().map(|e| e.to_string());
        let told = format!("{name} has format version 2, and this program knows versions up to 1");
        assert!(
            e.as_ref()
                .is_some_and(|e| e.contains(&told) && e.contains("newer version of Dromon")),
            "{name}: {e:?}"
        );
        for name in &names {
            assert_eq!(copy.content(name), before.content(name), "{name} changed");
        }
    }
    Ok(())
}

#[test]
fn damage_found_while_reading_is_an_error_and_changes_nothing() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, records) = filled(&device)?;
    assert!(device.flip_bit("dromon-0000000000000000.log", 4096 + 64 + 3, 1));
    let first = log.read(0..1, u64::MAX);
    assert!(first.is_err_and(|e| e.is_corruption()));
    assert_eq!(log.read(1..24, u64::MAX)?, records[1..]);
    assert!(log.reader().poisoned().is_none());
    Ok(())
}

type Fault = (&'static str, fn(&SimDevice));

/// The kinds of failure, each with a way to provoke it.
fn faults() -> Vec<Fault> {
    vec![
        ("sync", |d| d.fail_sync(1, ErrorKind::Other)),
        ("write", |d| d.fail_write(1, ErrorKind::Other)),
        ("full", |d| d.set_capacity(Some(0))),
    ]
}

#[test]
fn after_a_failure_nothing_is_written_and_the_first_cause_is_told() -> Result<(), LogError> {
    type Call = fn(&mut Log) -> Result<(), LogError>;
    let calls: Vec<(&str, Call)> = vec![
        ("append", |log| {
            log.append(vec![Record {
                body: Bytes::from(vec![1; 9000]),
                ..record(24)
            }])?;
            log.sync()
        }),
        ("truncate", |log| {
            log.truncate_from(20)?;
            log.append(vec![record(20)])?;
            log.sync()
        }),
        ("purge", |log| log.purge_to(15)),
        ("reset", |log| log.reset_to(Some(record(40).id()))),
        ("meta", |log| {
            log.save_meta("vote", Bytes::from_static(b"other"))
        }),
    ];
    let mut poisoned = 0;
    for (fault, provoke) in faults() {
        for (name, call) in &calls {
            let device = SimDevice::new(1);
            let (mut log, records) = filled(&device)?;
            provoke(&device);
            let Err(first) = call(&mut log) else {
                // Replacing bytes in place needs no room.
                assert_eq!(fault, "full", "{name}");
                continue;
            };
            poisoned += 1;
            assert!(
                matches!(first, LogError::Io { .. }),
                "{fault} {name}: {first}"
            );
            device.set_capacity(None);
            let changes = device.changes();
            let next = log.reader().next_index();
            for (later, call) in &calls {
                match call(&mut log) {
                    Err(LogError::Poisoned { cause }) => {
                        assert_eq!(cause.to_string(), first.to_string());
                    }
                    other => panic!("{later} after {fault} in {name}: {other:?}"),
                }
            }
            assert!(
                log.append(vec![record(next)])
                    .is_err_and(|e| e.is_poisoned())
            );
            assert!(log.mark().is_err_and(|e| e.is_poisoned()));
            assert_eq!(device.changes(), changes, "nothing was tried again");
            assert!(log.reader().poisoned().is_some());
            assert!(log.close().is_err_and(|e| e.is_poisoned()));
            // What was acknowledged before is still there.
            device.crash(9);
            let log = open(&device)?;
            if !["truncate", "purge", "reset"].contains(name) {
                assert_eq!(log.read(0..24, u64::MAX)?, records);
                assert!(log.load_meta("vote").is_some());
            }
        }
    }
    assert!(poisoned >= 11, "{poisoned}");
    Ok(())
}

#[test]
fn a_note_for_which_there_is_no_room_is_done_without() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (mut log, records) = filled(&device)?;
    // As on a file system that copies on writing.
    device.set_capacity(Some(0));
    log.mark()?;
    device.set_capacity(None);
    log.append(vec![record(24)])?;
    log.sync()?;
    drop(log);
    device.kill();
    assert_eq!(open(&device)?.read(0..24, u64::MAX)?, records);
    Ok(())
}

/// A checkpoint takes a file of its own; the log's have their room and are open.
#[test]
fn a_checkpoint_that_cannot_be_saved_leaves_the_log_at_work() -> Result<(), LogError> {
    let no_more_room: Fault = ("no more room", |d| {
        let names = dromon_log::Device::list(d).unwrap_or_default();
        let lens = names.iter().map(|n| d.content(n).map_or(0, |c| c.len()));
        d.set_capacity(Some(lens.sum::<usize>() as u64));
    });
    let failing = faults().into_iter().filter(|(fault, _)| *fault != "full");
    for (fault, provoke) in failing.chain([no_more_room]) {
        let device = SimDevice::new(1);
        let (mut log, mut records) = filled(&device)?;
        let before = log.checkpoints().list()?;
        provoke(&device);
        let saved = log.checkpoints().save(9, &[1; 9000]);
        assert!(
            matches!(saved, Err(LogError::NotSaved { index: 9, .. })),
            "{fault}: {saved:?}"
        );
        assert_eq!(log.checkpoints().list()?, before, "{fault}");
        let names = dromon_log::Device::list(&device).unwrap_or_default();
        assert!(!names.iter().any(|n| n.contains("tmp")), "{names:?}");
        // Within the room that it has.
        log.append(vec![record(24)])?;
        log.sync()?;
        log.mark()?;
        records.push(record(24));
        device.set_capacity(None);
        log.checkpoints().save(9, &[2; 9000])?;
        drop(log);
        device.crash(9);
        let log = open(&device)?;
        assert_eq!(log.read(0..25, u64::MAX)?, records);
        assert_eq!(&log.checkpoints().load(9)?[..], &[2; 9000]);
    }
    Ok(())
}

#[test]
fn a_checkpoint_whose_name_may_not_last_stops_the_log() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (mut log, _) = filled(&device)?;
    // The first sync is that of its content.
    device.fail_sync(2, ErrorKind::Other);
    let saved = log.checkpoints().save(9, &[1; 9000]);
    assert!(matches!(saved, Err(LogError::Io { .. })), "{saved:?}");
    assert!(log.append(vec![record(24)]).is_err_and(|e| e.is_poisoned()));
    Ok(())
}

#[test]
fn wrong_calls_change_nothing_and_stop_nothing() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (mut log, records) = filled(&device)?;
    log.purge_to(4)?;
    let gap = log.append(vec![record(24), record(26)]);
    assert!(matches!(
        gap,
        Err(LogError::NotContiguous {
            expected: 25,
            got: 26
        })
    ));
    assert!(matches!(
        log.truncate_from(25),
        Err(LogError::BeyondEnd { .. })
    ));
    assert!(matches!(log.truncate_from(3), Err(LogError::Purged { .. })));
    assert!(matches!(log.purge_to(24), Err(LogError::BeyondEnd { .. })));
    log.purge_to(2)?;
    let long = "k".repeat(dromon_log::META_KEY_MAX + 1);
    assert!(matches!(
        log.save_meta(&long, Bytes::new()),
        Err(LogError::TooLarge { .. })
    ));
    let large = Bytes::from(vec![0; dromon_log::META_BYTES_MAX]);
    assert!(matches!(
        log.save_meta("k", large),
        Err(LogError::TooLarge { .. })
    ));
    assert!(matches!(
        log.checkpoints().load(6),
        Err(LogError::NoCheckpoint { index: 6 })
    ));
    assert_eq!(log.read(5..24, u64::MAX)?, records[5..]);
    log.append(vec![record(24)])?;
    log.sync()
}

#[test]
fn places_terms_and_sizes() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (mut log, records) = filled(&device)?;
    let reader = log.reader();
    assert_eq!(reader.identity(), 7);
    assert_eq!(
        (reader.first_index(), reader.last_index()),
        (Some(0), Some(23))
    );
    assert_eq!(reader.term_of(9), Some(1));
    assert_eq!(reader.term_of(10), Some(2));
    assert_eq!(reader.term_of(24), None);
    let bytes = reader.bytes();
    log.purge_to(20)?;
    assert!(reader.bytes() < bytes);
    assert_eq!(reader.last_purged(), Some(records[20].id()));
    assert_eq!(reader.term_of(20), Some(3));
    assert_eq!(reader.term_of(19), None);
    let id = RecordId {
        index: 99,
        term: 8,
        leader: 2,
    };
    log.reset_to(Some(id))?;
    assert_eq!((reader.first_index(), reader.last_index()), (None, None));
    assert_eq!(reader.last_id(), Some(id));
    assert_eq!(reader.next_index(), 100);
    log.reset_to(None)?;
    assert_eq!((reader.last_id(), reader.next_index()), (None, 0));
    assert_eq!(log.load_meta("vote").as_deref(), Some(&b"a vote"[..]));
    Log::wipe(&device)?;
    assert!(dromon_log::Device::list(&device).is_ok_and(|n| n.is_empty()));
    Ok(())
}

#[test]
fn no_checkpoint_comes_back_in_front_of_a_log_that_was_purged() -> Result<(), LogError> {
    for seed in 0..20 {
        let device = SimDevice::new(seed);
        let mut log = open(&device)?;
        log.append((0..10).map(record).collect())?;
        log.sync()?;
        let checkpoints = log.checkpoints();
        for index in [3, 6] {
            checkpoints.save(index, b"a state of the node")?;
        }
        checkpoints.drop_one(3)?;
        // It is the last word before the log behind 3 goes, and finds nothing to remove.
        checkpoints.drop_before(6)?;
        log.purge_to(6)?;
        device.crash(seed);
        drop(log);
        let log = open(&device)?;
        assert_eq!(log.reader().first_index(), Some(7), "{seed}");
        assert_eq!(log.checkpoints().list()?, [6], "{seed}");
    }
    Ok(())
}
