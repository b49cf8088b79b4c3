//! A node's log on a disk that takes its time and forgets like one.
//!
//! The real log (`dromon-log` on its simulated device, behind the engine's own
//! adapter) does the work; this only delays it. What waits here was never
//! written: a crash takes it, or tears it in the middle.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dromon_log::{Log, LogError, LogOptions, SimDevice, WriterHandle};
use dromon_order::disklog::DiskLog;
use dromon_order::logstore::{LogStore, Record, WriteDone, WriteOp};
use tokio::sync::Notify;

use crate::rng::Rng;

/// How slow a disk is; shared by all logs that live on it one after the other.
#[derive(Debug, Default)]
pub struct Speed {
    extra_ms: AtomicU64,
}

impl Speed {
    /// Every write takes up to this much longer from now on.
    pub fn set_extra(&self, extra: Duration) {
        self.extra_ms
            .store(extra.as_millis() as u64, Ordering::Relaxed);
    }

    /// How much longer, in milliseconds.
    pub fn extra_ms(&self) -> u64 {
        self.extra_ms.load(Ordering::Relaxed)
    }
}

/// What has really happened to one process's log, whatever its engine was told.
#[derive(Debug, Default)]
pub struct Truth {
    synced: AtomicU64,
    failed: AtomicBool,
    went_on: AtomicBool,
}

impl Truth {
    /// Last index on the disk for good.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    /// Whether a write or a sync of the log has failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the log took something after that.
    pub fn went_on(&self) -> bool {
        self.went_on.load(Ordering::Relaxed)
    }

    /// An operation on the log came out as `ok`.
    fn done(&self, effect: Effect, ok: bool) {
        match effect {
            Effect::Beside => return,
            Effect::Nothing => {}
            Effect::Extends(last) if ok => self.synced.store(last, Ordering::Relaxed),
            Effect::Extends(_) => {}
            // Also if it failed: it may have done a part.
            Effect::Ends(last) => {
                self.synced.fetch_min(last, Ordering::Relaxed);
            }
            Effect::Begins(last) => {
                let last = if ok { last } else { 0 };
                self.synced.store(last, Ordering::Relaxed);
            }
        }
        if !ok {
            self.failed.store(true, Ordering::Relaxed);
        } else if self.failed() {
            self.went_on.store(true, Ordering::Relaxed);
        }
    }
}

/// What an operation does to the end of the log.
#[derive(Clone, Copy)]
enum Effect {
    /// It is about other files.
    Beside,
    Nothing,
    Extends(u64),
    Ends(u64),
    Begins(u64),
}

fn effect(op: &WriteOp) -> Effect {
    match op {
        WriteOp::Append(records) => match records.last() {
            Some(last) => Effect::Extends(last.index),
            None => Effect::Nothing,
        },
        WriteOp::TruncateFrom(index) => Effect::Ends(index.saturating_sub(1)),
        WriteOp::Reset(last) => Effect::Begins(last.index),
        WriteOp::PurgeTo(_) | WriteOp::SaveMeta(_) => Effect::Nothing,
        WriteOp::SaveCheckpoint(..)
        | WriteOp::DropCheckpoint(_)
        | WriteOp::DropCheckpointsBefore(_) => Effect::Beside,
    }
}

/// What a store tells its engine that is not true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// Appends are called durable before they are.
    pub early: bool,
    /// Failures are called success.
    pub deaf: bool,
}

/// One process's log. See the module's words.
pub struct SimStore {
    state: Mutex<State>,
    log: DiskLog,
    device: SimDevice,
    speed: Arc<Speed>,
    wake: Notify,
    truth: Arc<Truth>,
    /// Planted.
    lies: Lies,
}

struct State {
    queue: VecDeque<(WriteOp, WriteDone)>,
    /// Operations are carried out at once: nobody could wait otherwise.
    inline: bool,
    dead: bool,
    rng: Rng,
}

impl SimStore {
    /// Opens the log on `device` as a process does that has just started.
    pub fn open(
        device: &SimDevice,
        speed: Arc<Speed>,
        rng: Rng,
        lies: Lies,
    ) -> Result<Arc<SimStore>, LogError> {
        let mut rng = rng;
        let options = LogOptions {
            segment_bytes: 128 << 10,
            sync: true,
            zero_ahead_bytes: 4 << 10,
            cache_bytes: 64 << 10,
            identity: u128::from(rng.u64()),
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(device.clone()), options)?;
        let log = DiskLog::new(WriterHandle::inline(log));
        let truth = Truth::default();
        // What it found it has synced.
        let last = log.bounds().1.saturating_sub(1);
        truth.synced.store(last, Ordering::Relaxed);
        Ok(Arc::new(SimStore {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                inline: true,
                dead: false,
                rng,
            }),
            log,
            device: device.clone(),
            speed,
            wake: Notify::new(),
            truth: Arc::new(truth),
            lies,
        }))
    }

    /// What has really happened to it.
    pub fn truth(&self) -> &Arc<Truth> {
        &self.truth
    }

    /// Hands `op` to the real log.
    fn carry_out(&self, op: WriteOp, done: WriteDone) {
        let (effect, truth, lies) = (effect(&op), self.truth.clone(), self.lies);
        let witnessed = Box::new(move |result: io::Result<()>| {
            truth.done(effect, result.is_ok());
            done(if lies.deaf { Ok(()) } else { result });
        });
        self.log.submit(op, witnessed);
    }

    /// From now on operations are carried out at once (`true`), or one after
    /// the other by [`run`](SimStore::run).
    pub fn set_inline(&self, inline: bool) {
        self.lock().inline = inline;
        if inline {
            self.drain(usize::MAX);
        }
    }

    /// The disk: takes what waits, works for a while, is done with it.
    pub async fn run(self: Arc<Self>) {
        loop {
            let (n, pause) = {
                let mut s = self.lock();
                if s.dead {
                    return;
                }
                let extra = self.speed.extra_ms();
                // A disk that lies has a large cache.
                let extra = if self.lies.early { extra + 400 } else { extra };
                let pause = s.rng.ms(0, 3) + s.rng.ms(extra / 2, extra);
                // A log that has failed refuses at once, however slow its disk.
                let refused = self.truth.failed() && !self.lies.deaf;
                let pause = if refused { Duration::ZERO } else { pause };
                (s.queue.len(), pause)
            };
            if n == 0 {
                self.wake.notified().await;
                continue;
            }
            tokio::time::sleep(pause).await;
            self.drain(n);
        }
    }

    /// The process dies. With `power` lost the device forgets what was not
    /// synced, else the operating system writes it out.
    pub fn crash(&self, power: bool, seed: u64) {
        let torn = {
            let mut s = self.lock();
            s.dead = true;
            s.rng.chance(500)
        };
        if power && torn {
            // The power goes somewhere in the middle of what waits.
            let n = self.lock().rng.range(1, 4);
            self.device.power_off_after(n);
            self.write_queued(usize::MAX);
        }
        // Whoever waits for these is dead too.
        drop(std::mem::take(&mut self.lock().queue));
        if power {
            self.device.crash(seed);
        } else {
            self.device.kill();
        }
    }

    fn drain(&self, n: usize) {
        if !self.lock().dead {
            self.write_queued(n);
        }
    }

    /// Carries out the first `n` operations that wait; appends that stand
    /// together share one write and one sync.
    fn write_queued(&self, n: usize) {
        let mut left = n;
        while left > 0 {
            let Some((op, done)) = self.lock().queue.pop_front() else {
                return;
            };
            left -= 1;
            let WriteOp::Append(mut records) = op else {
                self.carry_out(op, done);
                continue;
            };
            let mut all = vec![done];
            while left > 0 {
                let mut s = self.lock();
                if !matches!(s.queue.front(), Some((WriteOp::Append(_), _))) {
                    break;
                }
                let Some((WriteOp::Append(more), done)) = s.queue.pop_front() else {
                    break;
                };
                left -= 1;
                records.extend(more);
                all.push(done);
            }
            let together = Box::new(move |result: io::Result<()>| {
                for done in all {
                    let copy = match &result {
                        Ok(()) => Ok(()),
                        Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
                    };
                    done(copy);
                }
            });
            self.carry_out(WriteOp::Append(records), together);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole operations go in and out under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What waits, as a reader sees it: from where on it covers the log below, and
/// its records.
fn overlay(queue: &VecDeque<(WriteOp, WriteDone)>) -> Option<(u64, Vec<Record>)> {
    let mut from = None;
    let mut records: Vec<Record> = Vec::new();
    for (op, _) in queue {
        let start = match op {
            WriteOp::Append(more) => {
                records.extend(more.iter().cloned());
                more.first().map(|r| r.index)
            }
            WriteOp::TruncateFrom(index) => {
                records.retain(|r| r.index < *index);
                Some(*index)
            }
            _ => None,
        };
        from = match (from, start) {
            (Some(a), Some(b)) => Some(std::cmp::min::<u64>(a, b)),
            (a, b) => a.or(b),
        };
    }
    from.map(|from| (from, records))
}

impl LogStore for SimStore {
    fn submit(&self, op: WriteOp, done: WriteDone) {
        let mut s = self.lock();
        if s.dead {
            return;
        }
        match op {
            // Beside the queue, as the real log does it.
            WriteOp::SaveCheckpoint(..)
            | WriteOp::DropCheckpoint(_)
            | WriteOp::DropCheckpointsBefore(_)
                if !self.lies.early =>
            {
                drop(s);
                self.carry_out(op, done);
            }
            op if s.inline => {
                drop(s);
                self.carry_out(op, done);
            }
            WriteOp::Append(_)
            | WriteOp::SaveCheckpoint(..)
            | WriteOp::DropCheckpoint(_)
            | WriteOp::DropCheckpointsBefore(_)
                if self.lies.early =>
            {
                s.queue.push_back((op, Box::new(|_| {})));
                drop(s);
                self.wake.notify_one();
                done(Ok(()));
            }
            op => {
                s.queue.push_back((op, done));
                drop(s);
                self.wake.notify_one();
            }
        }
    }

    fn bounds(&self) -> (u64, u64) {
        let (first, next) = self.log.bounds();
        match overlay(&self.lock().queue) {
            Some((from, records)) => (first, from + records.len() as u64),
            None => (first, next),
        }
    }

    fn bytes_before(&self, index: u64) -> u64 {
        self.log.bytes_before(index)
    }

    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        let (start, end) = range.into_inner();
        let Some((from, records)) = overlay(&self.lock().queue) else {
            return self.log.read(start..=end, max_bytes);
        };
        if start < from {
            return self.log.read(start..=end.min(from - 1), max_bytes);
        }
        let mut bytes = 0;
        let mut out: Vec<Record> = Vec::new();
        for r in records {
            if r.index < start || r.index > end {
                continue;
            }
            bytes += r.body.len();
            if !out.is_empty() && bytes > max_bytes {
                break;
            }
            out.push(r);
        }
        Ok(out)
    }

    fn load_meta(&self) -> io::Result<Option<Bytes>> {
        self.log.load_meta()
    }

    fn checkpoints(&self) -> io::Result<Vec<u64>> {
        self.log.checkpoints()
    }

    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes> {
        self.log.load_checkpoint(index)
    }

    fn close(&self) {
        self.drain(usize::MAX);
        self.log.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u64) -> Record {
        Record {
            index,
            term: 1,
            leader: 1,
            body: Bytes::from(vec![index as u8; 700]),
        }
    }

    fn open(device: &SimDevice, early: bool) -> Arc<SimStore> {
        let lies = Lies {
            early,
            ..Lies::default()
        };
        let store = SimStore::open(device, Arc::default(), Rng::new(1, &[]), lies);
        store.expect("the simulated disk is in order")
    }

    fn indexes(store: &SimStore) -> Vec<u64> {
        let read = store.read(0..=100, 1 << 20).expect("the disk works");
        read.iter().map(|r| r.index).collect()
    }

    /// Appends 0..3 durably and 3..6 not; answers how often `done` was called.
    fn fill(store: &Arc<SimStore>) -> Arc<AtomicU64> {
        let called = Arc::new(AtomicU64::new(0));
        let count = || {
            let called = called.clone();
            Box::new(move |r: io::Result<()>| {
                assert!(r.is_ok());
                called.fetch_add(1, Ordering::Relaxed);
            })
        };
        store.submit(WriteOp::Append((0..3).map(record).collect()), count());
        store.set_inline(false);
        store.submit(WriteOp::Append((3..5).map(record).collect()), count());
        store.submit(WriteOp::TruncateFrom(4), count());
        store.submit(WriteOp::Append(vec![record(4), record(5)]), count());
        called
    }

    #[test]
    fn what_waits_can_be_read_and_is_not_called_durable() {
        let device = SimDevice::new(1);
        let store = open(&device, false);
        let called = fill(&store);
        assert_eq!(called.load(Ordering::Relaxed), 1);
        assert_eq!(store.truth().synced(), 2);
        assert_eq!(store.bounds(), (0, 6));
        assert_eq!(
            indexes(&store),
            [0, 1, 2],
            "a batch ends where the queue begins"
        );
        let tail = store.read(3..=100, 1 << 20).expect("the disk works");
        assert_eq!(tail.len(), 3);
        store.set_inline(true);
        assert_eq!(called.load(Ordering::Relaxed), 4);
        assert_eq!(store.truth().synced(), 5);
        assert_eq!(indexes(&store), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_crash_keeps_what_was_durable_and_nothing_false() {
        for seed in 0..50 {
            let device = SimDevice::new(seed);
            let store = open(&device, false);
            fill(&store);
            store.crash(seed % 2 == 0, seed);
            let after = indexes(&open(&device, false));
            let whole: Vec<u64> = (0..after.len() as u64).collect();
            assert_eq!(after, whole);
            assert!((3..=6).contains(&after.len()), "{after:?}");
        }
    }

    #[test]
    fn the_planted_lie_loses_what_it_called_durable() {
        let device = SimDevice::new(3);
        let store = open(&device, true);
        store.set_inline(false);
        let called = Arc::new(AtomicU64::new(0));
        let theirs = called.clone();
        let done = Box::new(move |_| {
            theirs.fetch_add(1, Ordering::Relaxed);
        });
        store.submit(WriteOp::Append(vec![record(0)]), done);
        assert_eq!(called.load(Ordering::Relaxed), 1);
        assert_eq!(store.truth().synced(), 0);
        store.crash(false, 3);
        assert_eq!(indexes(&open(&device, false)), [] as [u64; 0]);
    }

    /// Appends 0..3, of which the second fails; answers what was said.
    fn fail_second(store: &SimStore) -> Vec<bool> {
        let said = Arc::new(Mutex::new(Vec::new()));
        for index in 0..3 {
            if index == 1 {
                store.device.fail_sync(1, io::ErrorKind::Other);
            }
            let said = said.clone();
            let done = Box::new(move |r: io::Result<()>| said.lock().unwrap().push(r.is_ok()));
            store.submit(WriteOp::Append(vec![record(index)]), done);
        }
        let said = said.lock().unwrap();
        said.clone()
    }

    #[test]
    fn after_a_failed_sync_the_log_takes_nothing_more() {
        let device = SimDevice::new(4);
        let store = open(&device, false);
        assert_eq!(fail_second(&store), [true, false, false]);
        let truth = store.truth();
        assert_eq!(
            (truth.synced(), truth.failed(), truth.went_on()),
            (0, true, false)
        );
    }

    #[test]
    fn the_planted_deafness_is_known_to_the_truth() {
        let deaf = Lies {
            deaf: true,
            ..Lies::default()
        };
        let device = SimDevice::new(5);
        let store = SimStore::open(&device, Arc::default(), Rng::new(1, &[]), deaf)
            .expect("the simulated disk is in order");
        assert_eq!(fail_second(&store), [true, true, true]);
        assert_eq!((store.truth().synced(), store.truth().failed()), (0, true));
        store.truth().done(Effect::Nothing, true);
        assert!(store.truth().went_on());
    }
}
