//! The thread `dromon-read`: reads from the log's files for the engine's thread, which must not wait for a disk.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use dromon_log::LogReader;

use crate::logstore::ReadDone;

/// So many wait, at most: each run of appends to a member has one, and what is applied has one.
const WAITING_MAX: usize = 256;

/// Records that somebody waits for.
pub(super) struct Wanted {
    pub reader: LogReader,
    pub range: Range<u64>,
    pub max_bytes: u64,
    pub done: ReadDone,
}

impl Wanted {
    fn read(self) {
        let found = self.reader.read(self.range, self.max_bytes);
        (self.done)(found.map_err(io::Error::from));
    }
}

/// See the module's words. The thread is there from the first read on until [`close`](Cold::close).
#[derive(Default)]
pub(super) struct Cold(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Runs(SyncSender<Wanted>, JoinHandle<()>),
    Closed,
}

impl Cold {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `wanted` read. Without a thread, or with too many before it, on this one.
    pub fn read(&self, wanted: Wanted) {
        let mut state = self.lock();
        if matches!(*state, State::Idle) {
            let (tx, rx) = sync_channel(WAITING_MAX);
            let thread = thread::Builder::new().name("dromon-read".to_owned());
            if let Ok(thread) = thread.spawn(move || run(&rx)) {
                *state = State::Runs(tx, thread);
            }
        }
        let left = match &*state {
            State::Runs(tx, _) => match tx.try_send(wanted) {
                Ok(()) => return,
                Err(TrySendError::Full(wanted) | TrySendError::Disconnected(wanted)) => wanted,
            },
            State::Idle | State::Closed => wanted,
        };
        drop(state);
        left.read();
    }

    /// Waits until what is wanted is read, and ends the thread.
    pub fn close(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        if let State::Runs(tx, thread) = state {
            drop(tx);
            // It only reads; who waited for more finds the log closed.
            let _ = thread.join();
        }
    }
}

fn run(wanted: &Receiver<Wanted>) {
    while let Ok(wanted) = wanted.recv() {
        wanted.read();
    }
}
