//! Reads ahead of the workers what their units will touch.
//!
//! Units that have not executed are looked at in their order, the first one too: its worker reads
//! one page after the other, and these many at a time. How many of them are at work is found by
//! trying ([`crate::tune`]). What is read and not applied yet is bounded by a part of the target's
//! buffer pool.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{End, Progress, Settings, Shared};
use crate::client::{Client, ClientError};
use crate::compile::{Collations, Options, Style, reads};
use crate::schedule::State;
use crate::unit::Unit;

/// How long one that has nothing to do sleeps before it looks again.
const IDLE: Duration = Duration::from_millis(20);
/// The same for those that are not wanted now.
const UNWANTED: Duration = Duration::from_millis(500);

/// Reads of a unit.
struct Read {
    unit: u64,
    text: Vec<u8>,
    keys: usize,
}

#[derive(Default)]
struct Queue {
    /// The next unit to look at.
    next: u64,
    reads: VecDeque<Read>,
    /// Units that were looked at and have not committed, and their keys.
    units: VecDeque<(u64, usize)>,
    keys: usize,
}

/// What is to be read.
pub(super) struct ReadAhead {
    queue: Mutex<Queue>,
    more: Condvar,
    /// Those that are not wanted now wait here.
    unwanted: Condvar,
    keys_max: usize,
}

impl ReadAhead {
    /// At most about so many keys are read and not applied yet.
    pub(super) fn new(keys_max: usize) -> ReadAhead {
        ReadAhead {
            queue: Mutex::default(),
            more: Condvar::new(),
            unwanted: Condvar::new(),
            keys_max,
        }
    }

    pub(super) fn wake(&self) {
        self.more.notify_all();
        self.unwanted.notify_all();
    }

    /// The next read, if there is one now.
    fn next(
        &self,
        shared: &Shared,
        compiled: impl FnOnce(&Unit) -> Vec<(Vec<u8>, usize)>,
    ) -> Option<Read> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let unit = {
            let core = shared.lock();
            // Of one that has executed nothing need be read any more.
            let of_use = |n: u64| {
                core.scheduler
                    .state(n)
                    .is_some_and(|state| !state.has_executed())
            };
            while let Some(read) = queue.reads.pop_front() {
                if of_use(read.unit) {
                    return Some(read);
                }
            }
            let committed = core.scheduler.last_committed();
            while queue.units.front().is_some_and(|(n, _)| *n <= committed) {
                let gone = queue.units.pop_front();
                queue.keys -= gone.map_or(0, |(_, keys)| keys);
            }
            if queue.keys >= self.keys_max {
                return None;
            }
            let from = queue.next.max(committed + 1);
            let found = (from..)
                .map_while(|n| Some((n, core.unit(n)?)))
                .find(|(n, unit)| unit.alone.is_none() && !unit.done && of_use(*n));
            let (n, unit) = found?;
            queue.next = n + 1;
            (n, Arc::clone(unit))
        };
        let (n, unit) = unit;
        for (text, keys) in compiled(&unit) {
            queue.keys += keys;
            queue.reads.push_back(Read {
                unit: n,
                text,
                keys,
            });
        }
        let keys: usize = queue.reads.iter().map(|read| read.keys).sum();
        queue.units.push_back((n, keys));
        if queue.reads.len() > 1 {
            self.more.notify_all();
        }
        queue.reads.pop_front()
    }

    fn wait(&self, on: &Condvar, at_most: Duration) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever was woken looks for itself.
        drop(on.wait_timeout(queue, at_most));
    }
}

/// One of those who read.
pub(super) struct Reader {
    pub number: usize,
    pub settings: Settings,
    pub collations: Collations,
    pub packet_max: usize,
    pub progress: Arc<Progress>,
}

impl Reader {
    /// Until the session ends. It connects when it is wanted for the first time.
    pub(super) fn run(self, shared: &Shared) {
        if let Err(error) = self.read(shared) {
            // They are of no use without the target, as all others.
            shared.end(End::Again(format!("reading ahead: {error}")));
        }
    }

    fn read(&self, shared: &Shared) -> Result<(), ClientError> {
        let mut client: Option<Client> = None;
        loop {
            if shared.lock().has_ended() {
                return Ok(());
            }
            if self.number >= shared.readers.load(Ordering::Relaxed) {
                let ahead = &shared.ahead;
                ahead.wait(&ahead.unwanted, UNWANTED);
                continue;
            }
            let options = Options {
                style: Style::Folded,
                filter: &self.settings.filter,
                whole_rows: false,
                packet_max: self.packet_max,
                longest: self.packet_max,
                collations: &self.collations,
            };
            let Some(next) = shared.ahead.next(shared, |unit| reads(unit, &options)) else {
                shared.ahead.wait(&shared.ahead.more, IDLE);
                continue;
            };
            let connected = match &mut client {
                Some(connected) => connected,
                None => client.insert(super::connect_to_read(&self.settings)?),
            };
            match connected.query(&next.text) {
                Ok(_) => {
                    let counter = &self.progress.counters.read_ahead;
                    counter.fetch_add(next.keys as u64, Ordering::Relaxed);
                }
                // A table that is not there any more; a read that was ended.
                Err(error) if !error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the target is executing the first unit.
pub(super) fn is_executing(state: State) -> bool {
    matches!(state, State::Running | State::Doomed(_))
}
