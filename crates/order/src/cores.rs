//! How long the engine's thread waits for a core: what decides whether the leader gathers
//! ([`crate::gather`]) if it is left to that.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::sleep;

use crate::engine_core::Core;
use crate::gather::{Cores, Reading, gather_time};

/// How often the thread's account is read.
const EVERY: Duration = Duration::from_millis(100);

/// What is known of it, for all threads.
#[derive(Debug, Default)]
pub(crate) struct CoreWait {
    scarce: AtomicBool,
    nanos: AtomicU64,
}

impl CoreWait {
    /// How long after the write before the leader may wait for more. None: the cores are
    /// not scarce.
    pub fn gather(&self) -> Option<Duration> {
        let scarce = self.scarce.load(Relaxed);
        scarce.then(|| gather_time(self.mean()))
    }

    /// How long the thread waited lately, on average, each time it had something to do.
    /// Zero: it is not measured.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }
}

/// Reads the account of the thread that it runs on, for ever. Where the kernel keeps none
/// the cores are never scarce.
pub(crate) async fn watch_cores(core: Arc<Core>) {
    let Ok(file) = File::open("/proc/thread-self/schedstat") else {
        return std::future::pending().await;
    };
    let mut cores = Cores::default();
    loop {
        if let Some(reading) = read(&file) {
            let scarce = cores.read(reading);
            core.core_wait.scarce.store(scarce, Relaxed);
            core.core_wait.nanos.store(cores.wait(), Relaxed);
        }
        sleep(EVERY).await;
    }
}

/// Three numbers: nanoseconds that the thread ran, that it waited for a core, and how
/// often it was given one.
fn read(file: &File) -> Option<Reading> {
    let mut text = [0; 96];
    let len = file.read_at(&mut text, 0).ok()?;
    let mut numbers = std::str::from_utf8(text.get(..len)?)
        .ok()?
        .split_ascii_whitespace()
        .skip(1)
        .map_while(|n| n.parse().ok());
    Some(Reading {
        waited: numbers.next()?,
        times: numbers.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_an_account() {
        // Without it in the kernel there is nothing to test.
        let Ok(file) = File::open("/proc/thread-self/schedstat") else {
            return;
        };
        let before = read(&file).expect("three numbers");
        if before.times == 0 {
            return; // it is there, and switched off
        }
        std::thread::sleep(Duration::from_millis(5));
        let after = read(&file).expect("three numbers");
        assert!(after.times > before.times, "{before:?} {after:?}");
        assert!(after.waited >= before.waited, "{before:?} {after:?}");
    }
}
