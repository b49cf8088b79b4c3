//! Prints appends and fsyncs per second on a real disk.
//!
//! ```text
//! cargo run --release -p dromon-log --example appends -- [directory] [callers] [bytes] [seconds]
//! ```
//! Each caller appends one record and waits until it is durable, like a client that commits.

use bytes::Bytes;
use dromon_log::{DirDevice, Log, LogError, LogOptions, Record, WriterHandle};
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let mut number = |default: u64| args.next().map_or(Ok(default), |a| a.parse());
    let (callers, bytes, seconds) = (number(8)?, number(1000)?, number(3)?);

    let directory = directory.join(format!("dromon-appends-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let result = run(&directory, callers, bytes, seconds);
    std::fs::remove_dir_all(&directory)?;
    result
}

fn run(directory: &PathBuf, callers: u64, bytes: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    for sync in [true, false] {
        let options = LogOptions {
            sync,
            ..LogOptions::default()
        };
        let device = Arc::new(DirDevice::open(directory)?);
        Log::wipe(&*device)?;
        let (log, _) = Log::open(device, options)?;
        let writer = WriterHandle::spawn(log, 64 << 20)?;
        let body = Bytes::from(vec![7; bytes as usize]);
        let next = Mutex::new(0);
        let done = AtomicU64::new(0);
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        std::thread::scope(|s| {
            let callers: Vec<_> = (0..callers)
                .map(|_| s.spawn(|| append_until(end, &writer, &body, &next, &done)))
                .collect();
            callers
                .into_iter()
                .try_for_each(|c| c.join().unwrap_or(Err(LogError::Closed)))
        })?;
        let time = start.elapsed().as_secs_f64();
        let stats = writer.stats();
        let appends = done.load(Ordering::Relaxed) as f64 / time;
        println!(
            "{}: {callers} callers, {bytes} bytes: {appends:.0} appends/s, {:.0} fsyncs/s, \
             {:.1} records per fsync, fsync avg {} us min {} us max {} us, {:.1} MB/s",
            if sync { "durable" } else { "memory " },
            stats.syncs as f64 / time,
            stats.records_per_sync(),
            stats.sync_ns_avg() / 1000,
            stats.sync_ns_min / 1000,
            stats.sync_ns_max / 1000,
            stats.bytes as f64 / time / 1e6,
        );
        writer.close()?;
        drop(writer);
        let start = Instant::now();
        let device = Arc::new(DirDevice::open(directory)?);
        let (_, recovered) = Log::open(device, LogOptions::default())?;
        println!(
            "         opened again: {} MB verified in {} ms",
            recovered.bytes / 1_000_000,
            start.elapsed().as_millis(),
        );
    }
    Ok(())
}

fn append_until(
    end: Instant,
    writer: &WriterHandle,
    body: &Bytes,
    next: &Mutex<u64>,
    done: &AtomicU64,
) -> Result<(), LogError> {
    while Instant::now() < end {
        let (tx, rx) = mpsc::sync_channel(1);
        {
            // The index is given and the record queued as one step.
            let mut next = next.lock().unwrap_or_else(|e| e.into_inner());
            let record = Record {
                index: *next,
                term: 1,
                leader: 1,
                body: body.clone(),
            };
            let tell = Box::new(move |result| {
                let _ = tx.send(result);
            });
            writer.append(vec![record], tell)?;
            *next += 1;
        }
        rx.recv().unwrap_or(Err(LogError::Closed))?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
