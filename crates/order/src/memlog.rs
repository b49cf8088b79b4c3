//! A log in memory that forgets nothing it was told until it is dropped.
//!
//! For tests and simulations of the engine: several engines can be started
//! one after the other on the same [`MemLog`], as a node restarts on its disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dromon_log::LogError;
use tokio::time::Instant;

use crate::engine_core::lock;
use crate::logstore::{LogStore, ReadDone, Record, WriteDone, WriteOp};

/// See the module's words.
#[derive(Default)]
pub struct MemLog {
    state: Mutex<State>,
    /// Who is not told of what was written, while it hangs.
    hanging: Mutex<Option<Vec<Untold>>>,
    /// What each write takes, in a runtime, and who is to be told then.
    slow: Mutex<Slow>,
    late: Arc<Mutex<VecDeque<Untold>>>,
    /// Reads that nobody is to wait for, while they stall.
    stalled: Mutex<Option<Vec<Unread>>>,
}

/// How slow the disk is.
#[derive(Default)]
struct Slow {
    takes: Option<Duration>,
    /// What was handed in last begins and ends then. Appends only, or not.
    last: Option<(Instant, Instant, bool)>,
}

impl Slow {
    /// When what is handed in now is done: behind what is there; appends that wait are one write.
    fn done_at(&mut self, append: bool) -> Option<Instant> {
        let takes = self.takes?;
        let now = Instant::now();
        if let Some((begins, ends, true)) = self.last
            && append
            && begins > now
        {
            return Some(ends);
        }
        let begins = self.last.map_or(now, |(_, ends, _)| ends.max(now));
        let ends = begins + takes;
        self.last = Some((begins, ends, append));
        Some(ends)
    }
}

/// What is to be read, and who is to be told.
type Unread = (RangeInclusive<u64>, usize, ReadDone);

/// Who is to be told what.
type Untold = (WriteDone, io::Result<()>);

#[derive(Clone, Debug, Default)]
struct State {
    first: u64,
    records: Vec<Record>,
    meta: Option<Bytes>,
    checkpoints: BTreeMap<u64, Bytes>,
    /// Those of them in which a bit changed.
    damaged: BTreeSet<u64>,
    /// Records below this index are damaged.
    damaged_records: Range<u64>,
    /// Said to everyone once set.
    broken: Option<String>,
    /// The next purge breaks it.
    purge_breaks: bool,
    /// The same for who reads.
    unreadable: Option<String>,
}

impl MemLog {
    /// An empty log.
    pub fn new() -> Self {
        MemLog::default()
    }

    /// From now on every write fails, as on a dead disk.
    pub fn break_with(&self, why: &str) {
        self.lock().broken = Some(why.to_owned());
    }

    /// The next purge fails, and every write after it.
    pub fn break_purges(&self) {
        self.lock().purge_breaks = true;
    }

    /// From now on no record can be read, as on a disk with bad sectors.
    pub fn break_reads(&self, why: &str) {
        self.lock().unreadable = Some(why.to_owned());
    }

    /// A bit changes in the checkpoint at `index`.
    pub fn damage_checkpoint(&self, index: u64) {
        self.lock().damaged.insert(index);
    }

    /// Bits change in these records.
    pub fn damage_records(&self, indexes: Range<u64>) {
        self.lock().damaged_records = indexes;
    }

    /// From now on nobody is told that anything is written, as on a disk that hangs. In turn
    /// all are told.
    pub fn hang(&self, hangs: bool) {
        let told = {
            let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *hanging, hangs.then(Vec::new))
        };
        for (done, result) in told.into_iter().flatten() {
            done(result);
        }
    }

    /// From now on each write inside a tokio runtime takes so long, one after the other.
    pub fn slow_down(&self, takes: Duration) {
        lock(&self.slow).takes = Some(takes);
    }

    /// From now on what [`LogStore::read_then`] is asked for is not read, as on a disk that stalls. In turn all of it is.
    pub fn stall_reads(&self, stalls: bool) {
        let left = {
            let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *stalled, stalls.then(Vec::new))
        };
        for (range, max_bytes, done) in left.into_iter().flatten() {
            done(self.read(range, max_bytes));
        }
    }

    /// How many reads stall.
    pub fn stalled_reads(&self) -> usize {
        let stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.as_ref().map_or(0, Vec::len)
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> usize {
        self.lock().records.iter().map(|r| r.body.len()).sum()
    }

    /// Another log with the same content, as on a copy of the disk.
    pub fn copy(&self) -> Self {
        MemLog {
            state: Mutex::new(self.lock().clone()),
            hanging: Mutex::default(),
            slow: Mutex::default(),
            late: Arc::default(),
            stalled: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn write(&mut self, op: WriteOp) -> io::Result<()> {
        if self.purge_breaks && matches!(op, WriteOp::PurgeTo(_)) {
            self.broken = Some("bad sector".to_owned());
        }
        if let Some(why) = &self.broken {
            return Err(io::Error::other(why.clone()));
        }
        match op {
            WriteOp::Append(records) => {
                for r in records {
                    if r.index != self.next() {
                        return Err(io::Error::other(format!(
                            "record {} does not follow {}",
                            r.index,
                            self.next()
                        )));
                    }
                    self.records.push(r);
                }
            }
            WriteOp::TruncateFrom(index) => {
                let keep = index.saturating_sub(self.first) as usize;
                self.records.truncate(keep);
            }
            WriteOp::PurgeTo(index) => {
                let gone = (index + 1).saturating_sub(self.first) as usize;
                let gone = gone.min(self.records.len());
                self.records.drain(..gone);
                self.first += gone as u64;
            }
            WriteOp::Reset(last) => {
                self.records.clear();
                self.checkpoints.clear();
                self.first = last.index + 1;
            }
            WriteOp::SaveMeta(bytes) => self.meta = Some(bytes),
            WriteOp::SaveCheckpoint(index, bytes) => {
                self.damaged.remove(&index);
                self.checkpoints.insert(index, bytes);
            }
            WriteOp::DropCheckpoint(index) => {
                self.checkpoints.remove(&index);
            }
            WriteOp::DropCheckpointsBefore(index) => {
                self.checkpoints = self.checkpoints.split_off(&index);
            }
        }
        Ok(())
    }
}

impl LogStore for MemLog {
    fn submit(&self, op: WriteOp, done: WriteDone) {
        // As on a disk: checkpoints are written by who saves them.
        let behind = !matches!(
            op,
            WriteOp::SaveCheckpoint(..)
                | WriteOp::DropCheckpoint(_)
                | WriteOp::DropCheckpointsBefore(_)
        );
        let append = matches!(op, WriteOp::Append(_));
        let result = self.lock().write(op);
        let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = hanging.as_mut() {
            return waiting.push((done, result));
        }
        drop(hanging);
        if !behind {
            return done(result);
        }
        let Some(at) = lock(&self.slow).done_at(append) else {
            return done(result);
        };
        let late = self.late.clone();
        lock(&late).push_back((done, result));
        tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            // Whose turn it is.
            let told = lock(&late).pop_front();
            if let Some((done, result)) = told {
                done(result);
            }
        });
    }

    fn bounds(&self) -> (u64, u64) {
        let s = self.lock();
        (s.first, s.next())
    }

    fn bytes_before(&self, index: u64) -> u64 {
        let s = self.lock();
        let below = s.records.iter().take_while(|r| r.index < index);
        below.map(|r| r.body.len() as u64 + 64).sum()
    }

    fn read(&self, range: RangeInclusive<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        let s = self.lock();
        if let Some(why) = &s.unreadable {
            return Err(io::Error::other(why.clone()));
        }
        if s.damaged_records.contains(range.start()) {
            return Err(LogError::Corrupt {
                file: format!("dromon-{:016x}.log", s.first),
                offset: 0,
                what: format!("record {} cannot be read", range.start()),
            }
            .into());
        }
        let mut out = Vec::new();
        let mut bytes = 0;
        for index in range {
            let Some(i) = index.checked_sub(s.first) else {
                continue;
            };
            let Some(r) = s.records.get(i as usize) else {
                break;
            };
            if s.damaged_records.contains(&index) {
                break;
            }
            if !out.is_empty() && bytes + r.body.len() > max_bytes {
                break;
            }
            bytes += r.body.len();
            out.push(r.clone());
        }
        Ok(out)
    }

    fn read_then(&self, range: RangeInclusive<u64>, max_bytes: usize, done: ReadDone) {
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = stalled.as_mut() {
            return waiting.push((range, max_bytes, done));
        }
        drop(stalled);
        done(self.read(range, max_bytes));
    }

    fn load_meta(&self) -> io::Result<Option<Bytes>> {
        Ok(self.lock().meta.clone())
    }

    fn checkpoints(&self) -> io::Result<Vec<u64>> {
        Ok(self.lock().checkpoints.keys().copied().collect())
    }

    fn load_checkpoint(&self, index: u64) -> io::Result<Bytes> {
        let s = self.lock();
        if s.damaged.contains(&index) {
            let file = format!("dromon-ckpt-{index:016x}.log");
            let what = "the content's checksum does not match";
            return Err(LogError::CorruptCheckpoint { file, what }.into());
        }
        s.checkpoints.get(&index).cloned().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no checkpoint {index}"),
            )
        })
    }

    fn close(&self) {}
}
