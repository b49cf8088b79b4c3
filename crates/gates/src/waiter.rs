//! One waiting thread: woken, or interrupted.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// What a thread of one transaction (or one applier) sleeps on.
///
/// An interrupt stays until [`Waiter::clear`]; a wake-up is consumed by the
/// wait that sees it.
#[derive(Debug, Default)]
pub struct Waiter {
    state: Mutex<Flags>,
    wake: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct Flags {
    woken: bool,
    interrupted: bool,
}

impl Waiter {
    /// A waiter nobody has woken.
    pub fn new() -> Self {
        Waiter::default()
    }

    /// Wakes the thread, now or at its next wait.
    pub fn wake(&self) {
        self.lock().woken = true;
        self.wake.notify_one();
    }

    /// Interrupts this and every later interruptible wait.
    pub fn interrupt(&self) {
        self.lock().interrupted = true;
        self.wake.notify_one();
    }

    /// Whether it was interrupted.
    pub fn interrupted(&self) -> bool {
        self.lock().interrupted
    }

    /// Forgets an interrupt.
    pub fn clear(&self) {
        *self.lock() = Flags::default();
    }

    /// Sleeps until woken, interrupted (if `interruptible`) or past `deadline`.
    /// Answers false when the deadline passed first.
    pub fn wait(&self, interruptible: bool, deadline: Option<Instant>) -> bool {
        let mut flags = self.lock();
        loop {
            if flags.woken || (interruptible && flags.interrupted) {
                flags.woken = false;
                return true;
            }
            flags = match deadline {
                None => self
                    .wake
                    .wait(flags)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let now = Instant::now();
                    if now >= deadline {
                        return false;
                    }
                    self.wake
                        .wait_timeout(flags, deadline - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Flags> {
        // Two booleans are valid whatever a panicking holder did.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
