//! Looking at a log agrees with opening it, and changes nothing.

mod sample;

use dromon_log::{
    Device, DirDevice, End, Log, LogError, Look, LookDevice, Record, Seen, SimDevice, Totals,
    WriterHandle,
};
use sample::{filled, options, places, record};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn walk(device: &SimDevice) -> Result<(Vec<Record>, Totals), LogError> {
    let look = Look::whole(Arc::new(device.clone()), 0)?;
    let mut found = Vec::new();
    let totals = look.walk(&mut |seen| {
        if let Seen::Record { record, .. } = seen {
            found.push(record);
        }
        ControlFlow::Continue(())
    })?;
    Ok((found, totals))
}

/// Bytes of every file.
fn contents(device: &SimDevice) -> Vec<(String, Vec<u8>)> {
    let names = device.list().unwrap_or_default();
    let content = |n: String| (device.content(&n).unwrap_or_default(), n);
    names
        .into_iter()
        .map(content)
        .map(|(c, n)| (n, c))
        .collect()
}

/// Flips a bit in every `step`th byte of every segment (in some of long runs of zeros) and
/// holds what a look finds against what opening finds. Returns (refused, torn, the same).
fn agree_on_flips(device: &SimDevice, step: usize) -> (u32, u32, u32) {
    let (mut refused, mut torn, mut same) = (0, 0, 0);
    let names = device.list().unwrap_or_default();
    for name in names.iter().filter(|n| n.starts_with("dromon-0")) {
        let content = device.content(name).unwrap_or_default();
        for offset in places(&content, step) {
            let copy = device.fork();
            assert!(copy.flip_bit(name, offset as u64, offset as u32));
            let before = contents(&copy);
            let seen = walk(&copy);
            assert!(contents(&copy) == before, "looking changes nothing");
            let opened = Log::open(Arc::new(copy.clone()), options());
            match (seen, opened) {
                (Err(a), Err(b)) => {
                    refused += 1;
                    assert!(a.is_corruption(), "{a}");
                    assert_eq!(a.to_string(), b.to_string(), "{name} {offset}");
                }
                (Ok((records, totals)), Ok((log, recovered))) => {
                    let there = log.read(0..u64::MAX, u64::MAX).expect("a log that opens");
                    assert_eq!(records, there, "{name} {offset}");
                    assert_eq!(totals.last, recovered.last);
                    let cut = match totals.end {
                        End::Torn { file, offset } => Some((file, offset)),
                        _ => None,
                    };
                    torn += u32::from(cut.is_some());
                    same += u32::from(cut.is_none());
                    assert_eq!(cut, recovered.torn.map(|t| (t.file, t.offset)));
                }
                (seen, opened) => panic!(
                    "{name} {offset}: looking says {:?}, opening {:?}",
                    seen.map(|s| s.1),
                    opened.map(|o| o.1)
                ),
            }
        }
    }
    (refused, torn, same)
}

#[test]
fn every_flipped_bit_is_found_as_opening_finds_it() -> Result<(), LogError> {
    let closed = SimDevice::new(1);
    let (log, records) = filled(&closed)?;
    log.close()?;
    let (found, totals) = walk(&closed)?;
    assert_eq!(found, records);
    assert_eq!(totals.end, End::Closed);
    assert_eq!((totals.first, totals.records), (Some(0), 24));
    let (refused, torn, same) = agree_on_flips(&closed, 1);
    assert!(refused > 5000, "{refused}");
    assert_eq!((torn, same), (0, 0), "every byte of a closed log counts");

    let killed = SimDevice::new(1);
    let (mut log, _) = filled(&killed)?;
    log.mark()?;
    drop(log);
    killed.kill();
    assert_eq!(walk(&killed)?.1.end, End::Open);
    assert!(agree_on_flips(&killed, 5).0 > 1000);

    let crashed = SimDevice::new(1);
    let (log, _) = filled(&crashed)?;
    drop(log);
    crashed.crash(4);
    let (refused, torn, _) = agree_on_flips(&crashed, 5);
    assert!(refused > 600 && torn > 2, "{refused} {torn}");
    Ok(())
}

#[test]
fn every_crash_is_judged_as_opening_judges_it() -> Result<(), LogError> {
    let mut torn = 0;
    for seed in 0..300 {
        let device = SimDevice::new(seed);
        let (mut log, _) = filled(&device)?;
        log.append((24..40).map(record).collect())?;
        device.power_off_after(1 + seed % 9);
        let _ = log.sync();
        drop(log);
        device.crash(seed);
        let (found, totals) = walk(&device)?;
        torn += u32::from(matches!(totals.end, End::Torn { .. }));
        let (log, recovered) = Log::open(Arc::new(device.clone()), options())?;
        assert_eq!(found, log.read(0..u64::MAX, u64::MAX)?, "seed {seed}");
        assert_eq!(
            recovered.torn.is_some(),
            matches!(totals.end, End::Torn { .. })
        );
    }
    assert!(torn > 20, "the test reaches the case it describes: {torn}");
    Ok(())
}

#[test]
fn what_is_missing_has_its_words() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let nothing = walk(&device).expect_err("an empty directory");
    assert!(nothing.to_string().contains("dromon-meta.log"), "{nothing}");
    let (log, _) = filled(&device)?;
    log.close()?;
    for name in ["dromon-meta.log", "dromon-0000000000000000.log"] {
        let copy = device.fork();
        copy.remove(name).expect("it is there");
        let e = walk(&copy).expect_err("a file is gone");
        assert!(e.is_corruption() && e.to_string().contains(name), "{e}");
    }
    // One of the two copies of the small values.
    let copy = device.fork();
    assert!(copy.flip_bit("dromon-meta.log", 40, 0));
    let look = Look::whole(Arc::new(copy), 0)?;
    assert!(!look.small().expect("small values").both_whole);
    assert!(look.checkpoint(5).is_ok());
    assert!(look.checkpoint(6).is_err());
    Ok(())
}

#[test]
fn a_segment_by_itself_needs_no_other_file() -> Result<(), LogError> {
    let device = SimDevice::new(1);
    let (log, records) = filled(&device)?;
    log.close()?;
    let names = Look::whole(Arc::new(device.clone()), 0)?
        .segments()
        .to_vec();
    device.remove("dromon-meta.log").expect("it is there");
    let mut found = Vec::new();
    for name in &names {
        let look = Look::segment(Arc::new(device.clone()), name, 0);
        look.walk(&mut |seen| {
            if let Seen::Record { record, .. } = seen {
                found.push(record);
            }
            ControlFlow::Continue(())
        })?;
    }
    assert!(names.len() >= 3);
    assert_eq!(found, records);
    Ok(())
}

/// A log under a writer that appends, truncates, purges and closes all the time is never
/// found damaged, and never held up.
#[test]
fn a_log_in_use_is_read_beside_its_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = DirDevice::open(dir.path()).expect("a directory");
    let mut log = Log::open(Arc::new(device), options()).expect("a new log").0;
    log.append(vec![record(0)]).expect("room");
    log.sync().expect("a disk");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = WriterHandle::spawn(log, 1 << 20).expect("a thread");
    let stopped = stop.clone();
    let busy = std::thread::spawn(move || {
        let mut next = 1;
        while !stopped.load(Ordering::Relaxed) {
            let records = (next..next + 5).map(record).collect();
            let (tx, rx) = std::sync::mpsc::channel();
            let done = Box::new(move |r: Result<(), LogError>| drop(tx.send(r)));
            writer.append(records, done).expect("accepted");
            rx.recv().expect("an answer").expect("a disk");
            next += 5;
            if next % 40 == 1 {
                writer.truncate_from(next - 3).expect("the end");
                next -= 3;
            }
            if next % 7 == 0 && next > 200 {
                writer.purge_to(next - 150).expect("the front");
            }
        }
        writer.close().expect("a disk");
        next
    });
    let (mut whole, mut changed, mut records) = (0, 0, 0);
    let begin = std::time::Instant::now();
    while whole < 20 && begin.elapsed() < std::time::Duration::from_secs(60) {
        let device = Arc::new(LookDevice::open(dir.path(), "").expect("a directory"));
        let walked =
            Look::whole(device, 20).and_then(|look| look.walk(&mut |_| ControlFlow::Continue(())));
        match walked {
            Ok(totals) => {
                whole += 1;
                records += totals.records;
            }
            Err(LogError::Changed { .. }) => changed += 1,
            Err(e) => panic!("a healthy log is called damaged: {e}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let next = busy.join().expect("the writer");
    assert!(whole >= 20 && records > 0, "{whole} {changed} {records}");
    let device = Arc::new(LookDevice::open(dir.path(), "").expect("a directory"));
    let look = Look::whole(device, 0).expect("a closed log");
    let totals = look
        .walk(&mut |_| ControlFlow::Continue(()))
        .expect("whole");
    assert_eq!(totals.end, End::Closed);
    assert_eq!(totals.last.map(|l| l.index), Some(next - 1));
}
