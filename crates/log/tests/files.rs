//! The log on real files.

use bytes::Bytes;
use dromon_log::{Device, DirDevice, Log, LogError, LogOptions, Record, RecordId};
use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

fn open(path: &Path) -> Result<Log, Box<dyn Error>> {
    let options = LogOptions {
        segment_bytes: 256 << 10,
        cache_bytes: 10_000,
        identity: 0xfeed,
        ..LogOptions::default()
    };
    Ok(Log::open(Arc::new(DirDevice::open(path)?), options)?.0)
}

fn record(index: u64) -> Record {
    Record {
        index,
        term: index / 100,
        leader: 3,
        body: Bytes::from(vec![index as u8; (index as usize * 997) % 9000]),
    }
}

#[test]
fn the_bytes_before_a_record_are_known_after_a_start_too() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(dir.path())?;
    for batch in (0..400).map(record).collect::<Vec<_>>().chunks(7) {
        log.append(batch.to_vec())?;
        log.sync()?;
    }
    let (before, all) = (log.reader(), log.reader().bytes());
    drop(log);
    let after = open(dir.path())?.reader();
    let mut truth = 0;
    for index in 0..=400 {
        for reader in [&before, &after] {
            let said = reader.bytes_before(index);
            let fits = said <= truth && truth - said <= (16 << 10) + 9100;
            assert!(fits, "{index}: {said}, and it is {truth}");
        }
        truth += 64 + record(index).body.len().next_multiple_of(8) as u64;
    }
    let headers = all - before.bytes_before(400);
    assert!(
        headers > 0 && headers % 4096 == 0,
        "all but these: {headers}"
    );
    Ok(())
}

#[test]
fn a_log_lives_through_reopening() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(dir.path())?;
    let records: Vec<Record> = (0..400).map(record).collect();
    for batch in records.chunks(7) {
        log.append(batch.to_vec())?;
        log.sync()?;
    }
    log.save_meta("vote", Bytes::from_static(b"term 4 for 3"))?;
    log.checkpoints().save(399, &[5; 100_000])?;
    drop(log);
    let log = open(dir.path())?;
    assert_eq!(log.read(0..u64::MAX, u64::MAX)?, records);
    assert_eq!(log.read(250..260, u64::MAX)?, records[250..260]);
    assert_eq!(log.load_meta("vote").as_deref(), Some(&b"term 4 for 3"[..]));
    assert_eq!(log.checkpoints().load(399)?, vec![5; 100_000]);
    log.close()?;
    let mut log = open(dir.path())?;
    log.truncate_from(300)?;
    log.purge_to(150)?;
    log.append((300..310).map(record).collect())?;
    log.sync()?;
    drop(log);
    let mut log = open(dir.path())?;
    assert_eq!(log.read(151..u64::MAX, u64::MAX)?, records[151..310]);
    log.reset_to(Some(RecordId {
        index: 5000,
        term: 9,
        leader: 1,
    }))?;
    log.append(vec![record(5001)])?;
    log.sync()?;
    drop(log);
    let log = open(dir.path())?;
    assert_eq!(log.read(5001..u64::MAX, u64::MAX)?, vec![record(5001)]);
    assert_eq!(log.reader().term_of(5000), Some(9));
    Ok(())
}

/// The server's SST scripts spare top-level files named *.log and wipe directories.
#[test]
fn all_files_are_regular_top_level_log_files() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(dir.path())?;
    log.append((0..100).map(record).collect())?;
    log.sync()?;
    log.checkpoints().save(50, b"x")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        assert!(entry.file_type()?.is_file());
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    assert!(names.len() >= 4);
    for name in &names {
        assert!(
            name.starts_with("dromon-") && name.ends_with(".log"),
            "{name}"
        );
    }
    assert!(names.contains(&"dromon-0000000000000000.log".to_owned()));
    assert!(names.contains(&"dromon-meta.log".to_owned()));
    assert!(names.contains(&"dromon-ckpt-0000000000000032.log".to_owned()));
    fs::write(dir.path().join("ibdata1"), b"not ours")?;
    fs::write(dir.path().join("dromon-status.log"), b"not ours")?;
    drop(log);
    Log::wipe(&DirDevice::open(dir.path())?)?;
    assert_eq!(fs::read_dir(dir.path())?.count(), 2, "others' files stay");
    Ok(())
}

#[test]
fn a_half_written_record_is_cut() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut log = open(dir.path())?;
    log.append((0..5).map(record).collect())?;
    log.sync()?;
    let end = log.reader().bytes();
    log.append(vec![record(5)])?;
    log.sync()?;
    drop(log);
    // What a power loss in the middle of the last write leaves.
    let path = dir.path().join("dromon-0000000000000000.log");
    let mut bytes = fs::read(&path)?;
    bytes.truncate(end as usize + 500);
    fs::write(&path, &bytes)?;
    let device = Arc::new(DirDevice::open(dir.path())?);
    let (mut log, recovered) = Log::open(device, LogOptions::default())?;
    let torn = recovered.torn.ok_or("the torn end is reported")?;
    assert_eq!((torn.offset, torn.index), (end, 5));
    assert_eq!(recovered.last.map(|id| id.index), Some(4));
    log.append(vec![record(5)])?;
    log.sync()?;
    assert_eq!(log.read(0..6, u64::MAX)?.len(), 6);
    Ok(())
}

#[test]
fn two_owners_of_one_directory_are_refused() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let log = open(dir.path())?;
    let second = DirDevice::open(dir.path()).map(|_| ());
    let e = second.expect_err("it is in use");
    assert_eq!(e.kind(), ErrorKind::WouldBlock);
    assert!(e.to_string().contains("or by an engine of this one"), "{e}");
    drop(log);
    DirDevice::open(dir.path())?;
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_written_is_a_plain_error() -> Result<(), Box<dyn Error>> {
    // Nobody can make files there, not even root, for whom permissions mean nothing.
    let device = Arc::new(DirDevice::open("/proc/self")?);
    let e = match Log::open(device, LogOptions::default()) {
        Ok(_) => return Err("a log in /proc".into()),
        Err(e) => e,
    };
    assert!(matches!(e, LogError::Io { .. }));
    let text = e.to_string();
    assert!(
        text.starts_with("The log could not create dromon-tmp-meta.log:"),
        "{text}"
    );

    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    fs::write(&file, b"")?;
    assert!(DirDevice::open(&file).is_err_and(|e| e.kind() == ErrorKind::NotADirectory));
    let missing = DirDevice::open(dir.path().join("missing"));
    assert!(missing.is_err_and(|e| e.kind() == ErrorKind::NotFound));
    Ok(())
}

#[test]
fn a_write_of_very_many_pieces() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let device = Arc::new(DirDevice::open(dir.path())?);
    let (mut log, _) = Log::open(device, LogOptions::default())?;
    // Bodies this large are written from where they are: two slices each, more in all than
    // the kernel takes at once.
    let records: Vec<Record> = (0..3000)
        .map(|index| Record {
            body: Bytes::from(vec![index as u8; 3001]),
            ..record(index)
        })
        .collect();
    log.append(records.clone())?;
    log.sync()?;
    assert_eq!(log.stats().writes, 1);
    drop(log);
    let device = DirDevice::open(dir.path())?;
    assert_eq!(device.list()?.len(), 2);
    let (log, _) = Log::open(Arc::new(device), LogOptions::default())?;
    assert_eq!(log.read(0..u64::MAX, u64::MAX)?, records);
    Ok(())
}
