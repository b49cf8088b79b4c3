//! The log behind a thread: many callers' appends share a write and an fdatasync.
//!
//! ```text
//!   append ──┐ accepted: readable         ┌── callback (in order)
//!   append ──┼──> queue (bounded) ──> [ gather · 1 write · 1 fdatasync ]   thread dromon-log
//!   save_meta┘                            └── commands, one by one, in their place
//! ```
//!
//! The logical log (what readers see) changes when a call is accepted, the files follow in
//! the same order. An inline handle does the same work on the caller's thread at once.

use crate::error::LogError;
use crate::log::{Checkpoints, Log, check_key};
use crate::record::{Record, RecordId};
use crate::stats::LogStats;
use crate::view::{LogReader, cost};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Called once with the result, on the log's thread (inline: the caller's). It must be
/// quick and must not call the handle it came from.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

type Command = Box<dyn FnOnce(&mut Log) -> Result<(), LogError> + Send>;

/// What a queued job costs beside its records, in bytes.
const JOB_COST: usize = 64;

/// The writing side of a log, callable from any thread. Clones are the same writer.
///
/// When the last clone is dropped without [`WriterHandle::close`], what is queued is still
/// written, in the background, and the log is not marked as closed.
#[derive(Clone)]
pub struct WriterHandle {
    inner: Arc<Inner>,
}

struct Inner {
    mode: Mode,
    reader: LogReader,
    checkpoints: Checkpoints,
}

enum Mode {
    Thread {
        queue: Arc<Queue>,
        thread: Mutex<Option<JoinHandle<Result<(), LogError>>>>,
    },
    /// `None` after `close`.
    Inline(Box<Mutex<Option<Log>>>),
}

struct Queue {
    state: Mutex<QueueState>,
    /// There is work, or the end.
    work: Condvar,
    /// There is room.
    room: Condvar,
    bytes_max: usize,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    bytes: usize,
    /// No more jobs; `Some(true)`: mark the log as closed.
    end: Option<bool>,
}

enum Job {
    Append {
        records: Vec<Record>,
        generation: u64,
        bytes: usize,
        done: Done,
    },
    Command(Command, Done),
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Job::Append { bytes, .. } => *bytes,
            Job::Command(..) => JOB_COST,
        }
    }
}

impl WriterHandle {
    /// Starts the thread `dromon-log`. It inherits the signal mask of the calling thread:
    /// inside a server, block all signals around this call. At most `queue_bytes` wait in
    /// the queue (one larger append is taken when the queue is empty).
    pub fn spawn(log: Log, queue_bytes: usize) -> std::io::Result<WriterHandle> {
        let reader = log.reader();
        let checkpoints = log.checkpoints();
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            bytes_max: queue_bytes,
        });
        let theirs = queue.clone();
        let thread = thread::Builder::new()
            .name("dromon-log".to_owned())
            .spawn(move || run(&theirs, log))?;
        Ok(WriterHandle {
            inner: Arc::new(Inner {
                mode: Mode::Thread {
                    queue,
                    thread: Mutex::new(Some(thread)),
                },
                reader,
                checkpoints,
            }),
        })
    }

    /// A handle without a thread: every call does its work before it returns, callbacks
    /// included. For simulations.
    pub fn inline(log: Log) -> WriterHandle {
        WriterHandle {
            inner: Arc::new(Inner {
                reader: log.reader(),
                checkpoints: log.checkpoints(),
                mode: Mode::Inline(Box::new(Mutex::new(Some(log)))),
            }),
        }
    }

    /// Whether it works on a thread of its own.
    pub fn has_thread(&self) -> bool {
        matches!(self.inner.mode, Mode::Thread { .. })
    }

    /// Takes records that continue the log. They can be read when this returns; `done` is
    /// called when they are stable (memory mode: written), in the order of the appends.
    /// Waits while the queue is full. After an error nothing was taken, and `done` is not
    /// called.
    pub fn append(&self, records: Vec<Record>, done: Done) -> Result<(), LogError> {
        match &self.inner.mode {
            Mode::Thread { queue, .. } => {
                let bytes = JOB_COST + records.iter().map(cost).sum::<usize>();
                self.submit(queue, bytes, |reader| {
                    let generation = reader.shared.accept(&records)?;
                    Ok(Job::Append {
                        records,
                        generation,
                        bytes,
                        done,
                    })
                })
            }
            Mode::Inline(slot) => {
                let result = {
                    let mut slot = slot.lock();
                    let log = slot.as_mut().ok_or(LogError::Closed)?;
                    log.append(records)?;
                    let result = log.sync();
                    if result.is_ok() {
                        // A failure has stopped the log, and the next call says so.
                        let _ = log.mark();
                    }
                    result
                };
                done(result);
                Ok(())
            }
        }
    }

    /// [`Log::truncate_from`], after everything queued before; `done` when it is durable.
    /// Readers see it at once.
    pub fn truncate_from_then(&self, index: u64, done: Done) -> Result<(), LogError> {
        self.command(
            done,
            |reader| reader.shared.change(|view| view.truncate(index)),
            move |log, ()| log.truncate_files(index),
        )
    }

    /// [`Log::purge_to`], after everything queued before; `done` when it is durable.
    /// Readers see it at once.
    pub fn purge_to_then(&self, index: u64, done: Done) -> Result<(), LogError> {
        self.command(
            done,
            |reader| reader.shared.change(|view| view.purge(index)),
            |log, purged| match purged {
                Some(id) => log.purge_files(id),
                None => Ok(()),
            },
        )
    }

    /// [`Log::reset_to`], after everything queued before; `done` when it is durable.
    /// Readers see it at once.
    pub fn reset_to_then(&self, id: Option<RecordId>, done: Done) -> Result<(), LogError> {
        self.command(
            done,
            |reader| {
                reader.shared.change(|view| {
                    view.reset(id);
                    Ok(())
                })
            },
            move |log, ()| log.reset_files(id),
        )
    }

    /// [`Log::save_meta`], after everything queued before; `done` when it is durable.
    pub fn save_meta_then(&self, key: &str, value: Bytes, done: Done) -> Result<(), LogError> {
        check_key(key)?;
        let key = key.to_owned();
        self.command(done, |_| Ok(()), move |log, ()| log.save_meta(&key, value))
    }

    /// [`Log::remove_meta`], after everything queued before; `done` when it is durable.
    pub fn remove_meta_then(&self, key: &str, done: Done) -> Result<(), LogError> {
        let key = key.to_owned();
        self.command(done, |_| Ok(()), move |log, ()| log.remove_meta(&key))
    }

    /// Appends and waits until the records are stable.
    pub fn append_wait(&self, records: Vec<Record>) -> Result<(), LogError> {
        wait(|done| self.append(records, done))
    }

    /// Truncates and waits until it is durable.
    pub fn truncate_from(&self, index: u64) -> Result<(), LogError> {
        wait(|done| self.truncate_from_then(index, done))
    }

    /// Purges and waits until it is durable.
    pub fn purge_to(&self, index: u64) -> Result<(), LogError> {
        wait(|done| self.purge_to_then(index, done))
    }

    /// Resets and waits until it is durable.
    pub fn reset_to(&self, id: Option<RecordId>) -> Result<(), LogError> {
        wait(|done| self.reset_to_then(id, done))
    }

    /// Saves a small value and waits until it is durable.
    pub fn save_meta(&self, key: &str, value: Bytes) -> Result<(), LogError> {
        wait(|done| self.save_meta_then(key, value, done))
    }

    /// Removes a small value and waits until that is durable.
    pub fn remove_meta(&self, key: &str) -> Result<(), LogError> {
        wait(|done| self.remove_meta_then(key, done))
    }

    /// A small value as last saved.
    pub fn load_meta(&self, key: &str) -> Option<Bytes> {
        self.inner.reader.load_meta(key)
    }

    /// A handle that reads beside the writer.
    pub fn reader(&self) -> LogReader {
        self.inner.reader.clone()
    }

    /// The checkpoints beside the log. Saving one runs on the calling thread.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.inner.checkpoints
    }

    /// Every index up to and with this one is stable (memory mode: written).
    pub fn durable_index(&self) -> Option<u64> {
        self.inner.reader.durable_index()
    }

    /// Why the log has stopped, if it has.
    pub fn poisoned(&self) -> Option<LogError> {
        self.inner.reader.poisoned()
    }

    /// The log's counters.
    pub fn stats(&self) -> LogStats {
        self.inner.reader.shared.stats.read()
    }

    /// Writes what is queued, marks the log as closed and ends the thread. A second call
    /// returns [`LogError::Closed`]. Must not be called from a callback.
    pub fn close(&self) -> Result<(), LogError> {
        match &self.inner.mode {
            Mode::Thread { queue, thread } => {
                let Some(thread) = thread.lock().take() else {
                    return Err(LogError::Closed);
                };
                queue.end(true);
                thread.join().unwrap_or(Err(LogError::Closed))
            }
            Mode::Inline(slot) => match slot.lock().take() {
                Some(log) => log.close(),
                None => Err(LogError::Closed),
            },
        }
    }

    /// Changes the logical log with `now` and, in its turn, the files with `later`.
    fn command<T: Send + 'static>(
        &self,
        done: Done,
        now: impl FnOnce(&LogReader) -> Result<T, LogError>,
        later: impl FnOnce(&mut Log, T) -> Result<(), LogError> + Send + 'static,
    ) -> Result<(), LogError> {
        match &self.inner.mode {
            Mode::Thread { queue, .. } => self.submit(queue, JOB_COST, |reader| {
                let value = now(reader)?;
                Ok(Job::Command(Box::new(move |log| later(log, value)), done))
            }),
            Mode::Inline(slot) => {
                let result = {
                    let mut slot = slot.lock();
                    let log = slot.as_mut().ok_or(LogError::Closed)?;
                    self.inner.reader.shared.usable()?;
                    let value = now(&self.inner.reader)?;
                    later(log, value)
                };
                done(result);
                Ok(())
            }
        }
    }

    /// Waits for room, then makes and queues a job. The job is made under the queue's lock,
    /// so that the logical log changes in the order in which the files will.
    fn submit(
        &self,
        queue: &Queue,
        bytes: usize,
        make: impl FnOnce(&LogReader) -> Result<Job, LogError>,
    ) -> Result<(), LogError> {
        let reader = &self.inner.reader;
        let mut state = queue.state.lock();
        while state.end.is_none() && state.bytes > 0 && state.bytes + bytes > queue.bytes_max {
            queue.room.wait(&mut state);
        }
        if state.end.is_some() {
            return Err(LogError::Closed);
        }
        reader.shared.usable()?;
        state.jobs.push_back(make(reader)?);
        state.bytes += bytes;
        reader
            .shared
            .stats
            .queued_bytes
            .store(state.bytes as u64, Relaxed);
        queue.work.notify_one();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Mode::Thread { queue, .. } = &self.mode {
            queue.end(false);
        }
    }
}

/// Runs a call with a callback and waits for the callback.
fn wait(call: impl FnOnce(Done) -> Result<(), LogError>) -> Result<(), LogError> {
    let (tx, rx) = mpsc::sync_channel(1);
    call(Box::new(move |result| {
        // The receiver waits below.
        let _ = tx.send(result);
    }))?;
    rx.recv().unwrap_or(Err(LogError::Closed))
}

impl Queue {
    fn end(&self, mark: bool) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(mark);
        }
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Waits for jobs: all appends up to the next command, or one command. Marks the
    /// log once before it sleeps. No jobs: the end, and whether to mark the log as closed.
    fn take(&self, log: &mut Log) -> Result<Vec<Job>, bool> {
        let mut idle = false;
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if let Some(mark) = state.end {
                return Err(mark);
            }
            if idle {
                self.work.wait(&mut state);
                continue;
            }
            idle = true;
            drop(state);
            // A failure has stopped the log, and the next call says so.
            let _ = log.mark();
            state = self.state.lock();
        }
        let appends = state
            .jobs
            .iter()
            .take_while(|job| matches!(job, Job::Append { .. }))
            .count();
        let jobs: Vec<Job> = state.jobs.drain(..appends.max(1)).collect();
        state.bytes -= jobs.iter().map(Job::bytes).sum::<usize>();
        let queued = &log.shared.stats.queued_bytes;
        queued.store(state.bytes as u64, Relaxed);
        self.room.notify_all();
        Ok(jobs)
    }
}

/// If the thread ends in any way, nobody must wait for it.
struct Ending<'a>(&'a Queue);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(false);
        // Dropping the jobs drops their callbacks, and who waits for one sees that.
        let jobs = std::mem::take(&mut self.0.state.lock().jobs);
        drop(jobs);
    }
}

/// The thread.
fn run(queue: &Queue, mut log: Log) -> Result<(), LogError> {
    let _ending = Ending(queue);
    loop {
        let jobs = match queue.take(&mut log) {
            Ok(jobs) => jobs,
            Err(true) => return log.close(),
            Err(false) => return Ok(()),
        };
        let mut callbacks = Vec::with_capacity(jobs.len());
        for job in jobs {
            match job {
                Job::Append {
                    records,
                    generation,
                    done,
                    ..
                } => {
                    log.stage(records, generation);
                    callbacks.push(done);
                }
                Job::Command(command, done) => done(command(&mut log)),
            }
        }
        if callbacks.is_empty() {
            continue;
        }
        let result = log.sync();
        for done in callbacks {
            done(result.clone());
        }
        log.release_stored();
    }
}
