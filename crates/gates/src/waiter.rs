//! One waiting thread: woken, or interrupted.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

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
        self.state.lock().woken = true;
        self.wake.notify_one();
    }

    /// Interrupts this and every later interruptible wait.
    pub fn interrupt(&self) {
        self.state.lock().interrupted = true;
        self.wake.notify_one();
    }

    /// Whether it was interrupted.
    pub fn interrupted(&self) -> bool {
        self.state.lock().interrupted
    }

    /// Forgets an interrupt.
    pub fn clear(&self) {
        *self.state.lock() = Flags::default();
    }

    /// Sleeps until woken, interrupted (if `interruptible`) or past `deadline`.
    /// Answers false when the deadline passed first.
    pub fn wait(&self, interruptible: bool, deadline: Option<Instant>) -> bool {
        let mut flags = self.state.lock();
        loop {
            if flags.woken || (interruptible && flags.interrupted) {
                flags.woken = false;
                return true;
            }
            match deadline {
                None => self.wake.wait(&mut flags),
                Some(deadline) => {
                    if Instant::now() >= deadline {
                        return false;
                    }
                    self.wake.wait_until(&mut flags, deadline);
                }
            }
        }
    }
}
