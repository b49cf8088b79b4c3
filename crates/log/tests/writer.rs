//! The writer: order, sharing of syncs, limits, failures, ends.

use bytes::Bytes;
use dromon_log::{
    Device, DeviceFile, DirDevice, Done, Log, LogError, LogOptions, Record, RecordId, SimDevice,
    WriterHandle,
};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};

fn record(index: u64, term: u64) -> Record {
    Record {
        index,
        term,
        leader: 1,
        body: Bytes::from(format!("record {index} of term {term}").repeat(9)),
    }
}

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        zero_ahead_bytes: 2 << 10,
        cache_bytes: 8 << 10,
        ..LogOptions::default()
    }
}

fn open(device: &SimDevice) -> Result<Log, LogError> {
    Ok(Log::open(Arc::new(device.clone()), options())?.0)
}

fn spawn(log: Log, queue_bytes: usize) -> Result<WriterHandle, LogError> {
    WriterHandle::spawn(log, queue_bytes).map_err(|_| LogError::Closed)
}

type Results = Receiver<(u64, Result<(), LogError>)>;

fn noting(tx: &Sender<(u64, Result<(), LogError>)>, n: u64) -> Done {
    let tx = tx.clone();
    Box::new(move |result| {
        let _ = tx.send((n, result));
    })
}

/// Both kinds of handle over a new simulated device.
fn both(test: impl Fn(&SimDevice, WriterHandle) -> Result<(), LogError>) -> Result<(), LogError> {
    let device = SimDevice::new(1);
    test(&device, WriterHandle::inline(open(&device)?))?;
    let device = SimDevice::new(1);
    test(&device, spawn(open(&device)?, 1 << 20)?)
}

#[test]
fn records_can_be_read_at_once_and_callbacks_come_in_order() -> Result<(), LogError> {
    both(|device, writer| {
        let (tx, rx): (_, Results) = mpsc::channel();
        let reader = writer.reader();
        for n in 0..500 {
            writer.append(vec![record(2 * n, 1), record(2 * n + 1, 1)], noting(&tx, n))?;
            assert_eq!(reader.last_index(), Some(2 * n + 1));
            let last = reader.read(2 * n + 1..u64::MAX, 1)?;
            assert_eq!(last, vec![record(2 * n + 1, 1)]);
        }
        drop(tx);
        let mut expected = 0;
        for (n, result) in rx {
            result?;
            assert_eq!(n, expected);
            expected += 1;
            assert!(writer.durable_index() >= Some(2 * n + 1));
        }
        assert_eq!(expected, 500);
        let stats = writer.stats();
        assert_eq!(stats.records, 1000);
        assert!(stats.syncs > 0 && stats.sync_classes.iter().sum::<u64>() == stats.syncs);
        assert!(stats.bytes > 100_000 && stats.sync_ns_min <= stats.sync_ns_max);
        writer.close()?;
        assert!(matches!(writer.close(), Err(LogError::Closed)));
        let late = writer.append(vec![record(1000, 1)], Box::new(|_| {}));
        assert!(matches!(late, Err(LogError::Closed)));
        let (log, recovered) = Log::open(Arc::new(device.clone()), options())?;
        assert!(recovered.closed_cleanly);
        assert_eq!(log.read(0..u64::MAX, u64::MAX)?.len(), 1000);
        Ok(())
    })
}

#[test]
fn commands_happen_in_their_place() -> Result<(), LogError> {
    both(|device, writer| {
        let reader = writer.reader();
        for round in 1..40 {
            let next = reader.next_index();
            let batch = (next..next + 20).map(|n| record(n, round)).collect();
            writer.append(batch, Box::new(|_| {}))?;
            writer.truncate_from(next + 10)?;
            assert_eq!(reader.next_index(), next + 10);
            assert_eq!(writer.durable_index(), Some(next + 9));
            writer.append(vec![record(next + 10, round + 100)], Box::new(|_| {}))?;
            writer.save_meta("round", Bytes::from(round.to_le_bytes().to_vec()))?;
            assert_eq!(writer.load_meta("round").map(|b| b[0]), Some(round as u8));
            if round % 8 == 0 {
                writer.purge_to(next)?;
                assert_eq!(reader.first_index(), Some(next + 1));
                writer.checkpoints().save(next, b"state")?;
                writer.checkpoints().drop_before(next)?;
            }
        }
        let from = reader.first_index().unwrap_or(0);
        let before = reader.read(from..u64::MAX, u64::MAX)?;
        let base = reader.last_purged();
        writer.remove_meta("round")?;
        writer.append_wait(vec![record(reader.next_index(), 7)])?;
        drop(writer);
        // The thread may still be on its way out.
        device.crash(5);
        let log = open(device)?;
        assert_eq!(log.reader().last_purged(), base);
        assert_eq!(log.reader().first_index(), Some(from));
        let after = log.read(from..log.reader().next_index() - 1, u64::MAX)?;
        assert_eq!(after, before);
        assert_eq!(log.load_meta("round"), None);
        assert_eq!(log.checkpoints().list()?.len(), 1);
        Ok(())
    })
}

#[test]
fn a_reset_starts_the_log_elsewhere() -> Result<(), LogError> {
    both(|device, writer| {
        writer.append((0..300).map(|n| record(n, 1)).collect(), Box::new(|_| {}))?;
        let id = RecordId {
            index: 1000,
            term: 4,
            leader: 2,
        };
        writer.reset_to(Some(id))?;
        assert_eq!(writer.reader().last_id(), Some(id));
        assert_eq!(writer.durable_index(), Some(1000));
        writer.append_wait(vec![record(1001, 5)])?;
        assert_eq!(writer.durable_index(), Some(1001));
        drop(writer);
        device.crash(1);
        let log = open(device)?;
        assert_eq!(log.reader().last_purged(), Some(id));
        assert_eq!(log.read(1001..u64::MAX, u64::MAX)?, vec![record(1001, 5)]);
        Ok(())
    })
}

#[test]
fn many_appends_share_a_sync() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (log, _) = Log::open(
        Arc::new(DirDevice::open(dir.path())?),
        LogOptions::default(),
    )?;
    let writer = WriterHandle::spawn(log, 1 << 20)?;
    // The first callback holds the thread until everything else is queued.
    let barrier = Arc::new(Barrier::new(2));
    let theirs = barrier.clone();
    let hold = Box::new(move |_| {
        theirs.wait();
        theirs.wait();
    });
    writer.append(vec![record(0, 1)], hold)?;
    barrier.wait();
    let (tx, rx): (_, Results) = mpsc::channel();
    for n in 1..200 {
        writer.append(vec![record(n, 1)], noting(&tx, n))?;
    }
    assert!(writer.stats().queued_bytes > 0);
    barrier.wait();
    drop(tx);
    for (_, result) in rx {
        result?;
    }
    let stats = writer.stats();
    assert_eq!((stats.syncs, stats.writes, stats.records), (2, 2, 200));
    assert_eq!(stats.queued_bytes, 0);
    writer.close()?;
    Ok(())
}

#[test]
fn a_full_queue_makes_the_caller_wait() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let writer = spawn(open(&device)?, 4000)?;
    let barrier = Arc::new(Barrier::new(2));
    let theirs = barrier.clone();
    let hold = Box::new(move |_| {
        theirs.wait();
        theirs.wait();
    });
    writer.append(vec![record(0, 1)], hold)?;
    barrier.wait();
    let sent = Arc::new(AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..200 {
                if writer.append(vec![record(n, 1)], Box::new(|_| {})).is_ok() {
                    sent.store(n, Ordering::SeqCst);
                }
            }
        });
        // The sender gets as far as the queue is long, and no farther.
        while writer.stats().queued_bytes < 3500 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(sent.load(Ordering::SeqCst) < 20);
        assert!(writer.stats().queued_bytes <= 4000);
        barrier.wait();
    });
    assert_eq!(sent.load(Ordering::SeqCst), 199);
    writer.close()?;
    assert_eq!(open(&device)?.reader().next_index(), 200);
    Ok(())
}

#[test]
fn a_failed_sync_fails_every_append_from_then_on() -> Result<(), LogError> {
    both(|device, writer| {
        writer.append_wait(vec![record(0, 1)])?;
        device.fail_sync(1, ErrorKind::Other);
        let first = writer.append_wait(vec![record(1, 1)]);
        assert!(matches!(first, Err(LogError::Io { .. })), "{first:?}");
        let later = writer.append_wait(vec![record(2, 1)]);
        assert!(later.is_err_and(|e| e.is_poisoned()));
        assert!(
            writer
                .save_meta("vote", Bytes::new())
                .is_err_and(|e| e.is_poisoned())
        );
        assert!(writer.truncate_from(0).is_err_and(|e| e.is_poisoned()));
        assert!(
            writer
                .checkpoints()
                .save(1, b"x")
                .is_err_and(|e| e.is_poisoned())
        );
        assert_eq!(writer.durable_index(), Some(0), "it never counts as stable");
        assert_eq!(writer.reader().read(0..1, 1)?, vec![record(0, 1)]);
        assert!(writer.close().is_err_and(|e| e.is_poisoned()));
        device.crash(3);
        assert_eq!(open(device)?.read(0..1, 1)?, vec![record(0, 1)]);
        Ok(())
    })
}

/// What a failed sync should have stored lies in memory, where a restarted process finds it. It is not on
/// the disk, and no later sync stores it.
#[test]
fn what_a_failed_sync_left_in_memory_does_not_count_after_a_restart() -> Result<(), LogError> {
    for seed in 0..100 {
        let device = SimDevice::new(seed);
        let writer = spawn(open(&device)?, 1 << 20)?;
        let before: Vec<Record> = (0..10).map(|n| record(n, 1)).collect();
        writer.append_wait(before.clone())?;
        writer.save_meta("vote", Bytes::from_static(b"one"))?;
        device.fail_sync(1, ErrorKind::Other);
        match seed % 2 {
            0 => assert!(writer.append_wait(vec![record(10, 1)]).is_err()),
            _ => assert!(
                writer
                    .save_meta("vote", Bytes::from_static(b"two"))
                    .is_err()
            ),
        }
        assert!(writer.close().is_err());
        device.kill();
        let writer = spawn(open(&device)?, 1 << 20)?;
        assert_eq!(writer.reader().next_index(), 10);
        let vote = writer.load_meta("vote");
        // Others hear that it has this one.
        let after = vec![record(10, 2), record(11, 2)];
        writer.append_wait(after.clone())?;
        drop(writer);
        device.crash(seed);
        let log = open(&device)?;
        assert_eq!(log.read(0..u64::MAX, u64::MAX)?, [before, after].concat());
        assert_eq!(log.load_meta("vote"), vote);
    }
    Ok(())
}

#[test]
fn memory_mode_does_not_wait_for_the_disk() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let memory = LogOptions {
        sync: false,
        ..options()
    };
    let (log, _) = Log::open(Arc::new(device.clone()), memory.clone())?;
    let writer = spawn(log, 1 << 20)?;
    let syncs = device.syncs();
    for n in 0..50 {
        writer.append_wait(vec![record(n, 1)])?;
    }
    assert_eq!(device.syncs(), syncs);
    assert_eq!(writer.durable_index(), Some(49));
    writer.save_meta("vote", Bytes::from_static(b"v"))?;
    assert!(device.syncs() > syncs, "votes are synced all the same");
    drop(writer.reader());
    writer.close()?;
    device.crash(2);
    let (log, recovered) = Log::open(Arc::new(device), memory)?;
    assert!(recovered.closed_cleanly);
    assert_eq!(log.reader().next_index(), 50);
    Ok(())
}

/// Readers see, at any moment, a log whose records agree with one another: no gap, no
/// term running backwards, no bytes of another record, while the writer truncates, purges
/// and rolls under them.
#[test]
fn readers_beside_a_busy_writer() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let writer = spawn(open(&device)?, 64 << 10)?;
    let stop = AtomicBool::new(false);
    let total = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let reader = writer.reader();
                let mut turn = 0;
                while !stop.load(Ordering::SeqCst) {
                    turn += 1;
                    let first = reader.last_purged().map_or(0, |id| id.index + 1);
                    let from = first + turn % 50;
                    match reader.read(from..u64::MAX, 40_000) {
                        Ok(records) => {
                            let mut term = 0;
                            for (index, r) in (from..).zip(&records) {
                                assert!(r.term >= term);
                                term = r.term;
                                assert_eq!(*r, record(index, r.term));
                            }
                            total.fetch_add(records.len() as u64, Ordering::SeqCst);
                        }
                        Err(LogError::Purged { .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        let mut next = 0;
        for term in 1..150 {
            let batch = (next..next + 60).map(|n| record(n, term)).collect();
            assert!(writer.append(batch, Box::new(|_| {})).is_ok());
            next += 60 - term % 45;
            assert!(writer.truncate_from(next).is_ok());
            if term % 20 == 0 {
                assert!(writer.purge_to(next - 100).is_ok());
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(total.load(Ordering::SeqCst) > 1000);
    writer.close()
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A device that does something before its next read.
struct Hooked {
    device: SimDevice,
    hook: Hook,
}

struct HookedFile {
    file: Arc<dyn DeviceFile>,
    hook: Hook,
}

impl Hooked {
    fn file(&self, file: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
        let hook = self.hook.clone();
        Arc::new(HookedFile { file, hook })
    }
}

impl Device for Hooked {
    fn list(&self) -> io::Result<Vec<String>> {
        self.device.list()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(self.file(self.device.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(self.file(self.device.create(name)?))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.device.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.device.rename(from, to)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.device.sync_dir()
    }
    fn place(&self) -> String {
        self.device.place()
    }
}

impl DeviceFile for HookedFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_at(slices, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let hook = self.hook.lock().ok().and_then(|mut h| h.take());
        if let Some(hook) = hook {
            hook();
        }
        self.file.read_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// While a reader is between finding a record's place and reading it, the log changes.
#[test]
fn a_reader_overtaken_by_a_change_reads_the_log_as_it_is_then() -> Result<(), LogError> {
    type Change = fn(&WriterHandle) -> Result<(), LogError>;
    let changes: [(&str, Change, Vec<Record>); 4] = [
        ("cut below", |w| w.truncate_from(2), vec![]),
        (
            "cut inside",
            |w| w.truncate_from(8),
            (5..8).map(|n| record(n, 1)).collect(),
        ),
        (
            "replaced",
            |w| {
                w.truncate_from(5)?;
                w.append_wait((5..7).map(|n| record(n, 2)).collect())
            },
            (5..7).map(|n| record(n, 2)).collect(),
        ),
        (
            "purged",
            |w| w.purge_to(30),
            (5..15).map(|n| record(n, 1)).collect(),
        ),
    ];
    for (name, change, expected) in changes {
        let hook = Hook::default();
        let device = Arc::new(Hooked {
            device: SimDevice::new(1),
            hook: hook.clone(),
        });
        let small = LogOptions {
            segment_bytes: 8 << 10,
            cache_bytes: 0,
            ..LogOptions::default()
        };
        let writer = spawn(Log::open(device, small)?.0, 1 << 20)?;
        writer.append_wait((0..60).map(|n| record(n, 1)).collect())?;
        let theirs = writer.clone();
        if let Ok(mut hook) = hook.lock() {
            *hook = Some(Box::new(move || {
                assert!(change(&theirs).is_ok());
            }));
        }
        let found = writer.reader().read(5..15, u64::MAX)?;
        assert_eq!(found, expected, "{name}");
        assert!(
            hook.lock().is_ok_and(|h| h.is_none()),
            "the change happened"
        );
        writer.close()?;
    }
    Ok(())
}
