//! Places where a test can hold threads back.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::net::lock;

/// A place that threads of the toy database pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The server is told of its connection; it has not been brought up.
    Connecting,
    /// The server is given a primary view.
    Viewing,
    /// An applier was not let into commit order; it rolls back next.
    ApplyRefused,
    /// An applier got a write set; no lock is taken yet.
    ApplyStart,
    /// The same, with the end of a streaming transaction or of one in chunks.
    EndStart,
    /// An applier holds its row locks, and enters commit order next.
    ApplyLocked,
    /// An applier is inside commit order.
    ApplyInCommit,
    /// An applier has left commit order, and what it applied is finished next.
    ApplyLeft,
    /// A client's write set passed certification; commit order comes next.
    ClientCertified,
    /// A client is inside commit order.
    ClientInCommit,
    /// A client has left commit order, and releases next.
    ClientLeft,
    /// A client's fragment was refused; its rollback goes out next.
    FragmentRefused,
    /// A statement in total order isolation has had its effect, and ends next.
    DdlRan,
    /// An applier is about to roll a streaming transaction back that is shelved.
    RollsBack,
    /// Its rows are free by now; its fragments leave the streaming log next.
    RolledBack,
    /// A donor has paused the flow.
    DonorPaused,
    /// A donor makes its copy next; it has paused nothing yet.
    DonorCopies,
}

#[derive(Default)]
struct Held {
    on: bool,
    /// Who is held sleeps, as in a wait for a lock; else he runs now and then, as one who works.
    sleeps: bool,
    waiting: usize,
}

/// How often one who works runs.
const WORKS: Duration = Duration::from_millis(20);

/// Which places are closed, and how long passing takes.
#[derive(Default)]
pub struct Holds {
    held: Mutex<HashMap<Point, Held>>,
    changed: Condvar,
    /// State of a generator; 0: no delays.
    jitter: Mutex<u64>,
    /// How long an applier takes before it begins.
    slow: Mutex<Duration>,
}

impl Holds {
    /// Closes a place: who comes there works on, to the eyes of the node.
    pub fn close(&self, point: Point) {
        let mut held = lock(&self.held);
        let held = held.entry(point).or_default();
        (held.on, held.sleeps) = (true, false);
    }

    /// Closes a place: who comes there sleeps.
    pub fn close_asleep(&self, point: Point) {
        let mut held = lock(&self.held);
        let held = held.entry(point).or_default();
        (held.on, held.sleeps) = (true, true);
    }

    /// Opens it again.
    pub fn open(&self, point: Point) {
        lock(&self.held).entry(point).or_default().on = false;
        self.changed.notify_all();
    }

    /// Opens all of them.
    pub fn open_all(&self) {
        for held in lock(&self.held).values_mut() {
            held.on = false;
        }
        self.changed.notify_all();
    }

    /// How many threads wait at a place.
    pub fn waiting(&self, point: Point) -> usize {
        lock(&self.held).get(&point).map_or(0, |h| h.waiting)
    }

    /// From now on passing takes a while, now and then.
    pub fn jitter(&self, seed: u64) {
        *lock(&self.jitter) = seed;
    }

    /// From now on an applier takes so long before it begins.
    pub fn slow(&self, time: Duration) {
        *lock(&self.slow) = time;
    }

    /// Passes a place.
    pub fn pass(&self, point: Point) {
        if point == Point::ApplyStart {
            let slow = *lock(&self.slow);
            std::thread::sleep(slow);
        }
        let nap = {
            let mut state = lock(&self.jitter);
            if *state == 0 {
                0
            } else {
                let drawn = crate::rng::next(&mut state) % 16;
                if drawn < 12 { 0 } else { drawn - 11 }
            }
        };
        if nap > 0 {
            std::thread::sleep(Duration::from_micros(nap * 400));
        }
        let mut held = lock(&self.held);
        held.entry(point).or_default().waiting += 1;
        while let Some(sleeps) = held.get(&point).filter(|h| h.on).map(|h| h.sleeps) {
            held = if sleeps {
                let woken = self.changed.wait(held);
                woken.unwrap_or_else(PoisonError::into_inner)
            } else {
                let woken = self.changed.wait_timeout(held, WORKS);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        held.entry(point).or_default().waiting -= 1;
    }
}
