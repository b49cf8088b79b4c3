//! The log when the process may open no more files for a while.

use bytes::Bytes;
use dromon_log::{Device, DeviceFile, Log, LogError, LogOptions, Record, SimDevice};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// `EMFILE`
const TOO_MANY: i32 = 24;
/// `EACCES`
const REFUSED: i32 = 13;
const SEGMENT: u64 = 16 << 10;

/// A directory in which nothing can be created or listed, if it says so.
#[derive(Clone)]
struct Short {
    inner: SimDevice,
    create: Arc<AtomicI32>,
    list: Arc<AtomicI32>,
}

impl Short {
    fn new() -> Short {
        Short {
            inner: SimDevice::new(7),
            create: Arc::default(),
            list: Arc::default(),
        }
    }

    fn open(&self) -> Result<Log, LogError> {
        let options = LogOptions {
            segment_bytes: SEGMENT,
            cache_bytes: 1000,
            ..LogOptions::default()
        };
        Ok(Log::open(Arc::new(self.clone()), options)?.0)
    }

    fn segments(&self) -> usize {
        let names = self.inner.list().unwrap_or_default();
        let all = names.iter().filter(|n| n.starts_with("dromon-0"));
        all.count()
    }
}

fn allowed(code: &AtomicI32) -> io::Result<()> {
    match code.load(Relaxed) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

impl Device for Short {
    fn list(&self) -> io::Result<Vec<String>> {
        allowed(&self.list)?;
        self.inner.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        self.inner.open(name)
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        allowed(&self.create)?;
        self.inner.create(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }
    fn place(&self) -> String {
        self.inner.place()
    }
}

fn records(from: u64, to: u64) -> Vec<Record> {
    let record = |index| Record {
        index,
        term: 1,
        leader: 1,
        body: Bytes::from(vec![index as u8; 1000 + index as usize % 7]),
    };
    (from..to).map(record).collect()
}

fn all(log: &Log) -> Result<Vec<Record>, LogError> {
    log.read(0..u64::MAX, u64::MAX)
}

#[test]
fn without_a_descriptor_it_goes_on_in_the_old_segment() -> Result<(), Box<dyn Error>> {
    for crashes in [false, true] {
        let device = Short::new();
        let mut log = device.open()?;
        log.append(records(0, 10))?;
        log.sync()?;
        device.create.store(TOO_MANY, Relaxed);
        // Some of these fit, the others would begin a segment.
        log.append(records(10, 50))?;
        log.append(records(50, 60))?;
        log.sync()?;
        assert_eq!(log.reader().durable_index(), Some(59));
        assert_eq!(device.segments(), 1);
        let why = log.reader().held_up().ok_or("not said")?.to_string();
        assert!(why.contains("files open"), "{why}");
        assert_eq!(all(&log)?, records(0, 60));
        if crashes {
            drop(log);
            device.inner.crash(3);
            device.create.store(0, Relaxed);
            log = device.open()?;
            assert_eq!(all(&log)?, records(0, 60), "acknowledged");
        }
        // What is beyond its size goes like any other.
        log.truncate_from(55)?;
        log.append(records(55, 60))?;
        log.sync()?;
        assert_eq!(device.segments(), 1 + usize::from(crashes));
        device.create.store(0, Relaxed);
        log.append(records(60, 70))?;
        log.sync()?;
        assert!(log.reader().held_up().is_none());
        assert!(device.segments() >= 2);
        assert_eq!(all(&log)?, records(0, 70));
        log.purge_to(59)?;
        log.close()?;
        let log = device.open()?;
        assert_eq!(log.read(60..u64::MAX, u64::MAX)?, records(60, 70));
    }
    Ok(())
}

#[test]
fn it_does_not_go_on_so_for_ever() -> Result<(), Box<dyn Error>> {
    let device = Short::new();
    let mut log = device.open()?;
    device.create.store(TOO_MANY, Relaxed);
    let mut written = 0;
    let stopped = loop {
        log.append(records(written, written + 5))?;
        match log.sync() {
            Ok(()) => written += 5,
            Err(e) => break e,
        }
        assert!(written * 1000 < 20 * SEGMENT, "{written} records");
    };
    assert!(written * 1100 > 15 * SEGMENT, "{written} records");
    assert!(
        stopped.to_string().contains("open_files_limit"),
        "{stopped}"
    );
    assert!(log.reader().poisoned().is_some());
    drop(log);
    device.create.store(0, Relaxed);
    assert_eq!(
        all(&device.open()?)?[..written as usize],
        records(0, written)
    );
    Ok(())
}

#[test]
fn whatever_else_is_in_the_way_stops_it() -> Result<(), Box<dyn Error>> {
    let device = Short::new();
    let mut log = device.open()?;
    device.create.store(REFUSED, Relaxed);
    log.append(records(0, 50))?;
    assert!(log.sync().is_err());
    assert!(log.reader().poisoned().is_some());
    Ok(())
}

#[test]
fn checkpoints_that_cannot_be_listed_stay_and_the_log_goes_on() -> Result<(), Box<dyn Error>> {
    let device = Short::new();
    let mut log = device.open()?;
    log.append(records(0, 10))?;
    log.sync()?;
    let checkpoints = log.checkpoints();
    checkpoints.save(3, b"three")?;
    checkpoints.save(6, b"six")?;
    device.list.store(TOO_MANY, Relaxed);
    assert!(checkpoints.drop_before(6).is_err());
    assert!(log.reader().poisoned().is_none());
    device.list.store(0, Relaxed);
    log.append(records(10, 20))?;
    log.sync()?;
    assert_eq!(checkpoints.list()?, [3, 6]);
    checkpoints.drop_before(6)?;
    assert_eq!(checkpoints.list()?, [6]);
    for index in [8, 9] {
        checkpoints.save(index, b"one more")?;
    }
    for index in [8, 7] {
        checkpoints.drop_one(index)?;
        assert_eq!(
            checkpoints.list()?,
            [6, 9],
            "{index}, if there is such a one"
        );
    }
    Ok(())
}
