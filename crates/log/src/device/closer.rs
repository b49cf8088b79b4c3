//! Closing files on a thread of its own.
//!
//! Whoever closes a removed file last gives its room back to the file system, which takes
//! some 0.2 s of a processor for a gigabyte. The log's thread must not: commits wait for it.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Drops what it is given (open files, mapped memory) on a thread of its own, in order. The
/// thread begins with the first one; dropping the closer waits until all are dropped.
///
/// What waits is not bounded here: it is what was open before.
#[derive(Default)]
pub struct Closer {
    thread: Mutex<Option<Thread>>,
}

type Dropped = Box<dyn Send>;

struct Thread {
    queue: Sender<Dropped>,
    handle: JoinHandle<()>,
}

impl Closer {
    /// Drops `what` soon. It must not be, or hold, the last reference to this closer.
    pub fn later(&self, what: impl Send + 'static) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = start();
        }
        // Without a thread it is dropped here.
        if let Some(thread) = &*thread {
            let _ = thread.queue.send(Box::new(what));
        }
    }
}

fn start() -> Option<Thread> {
    let (queue, dropped) = channel::<Dropped>();
    let handle = std::thread::Builder::new()
        .name("dromon-close".into())
        .spawn(move || dropped.into_iter().for_each(drop))
        .ok()?;
    Some(Thread { queue, handle })
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some(Thread { queue, handle }) = self.thread.get_mut().take() {
            drop(queue);
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closer").finish_non_exhaustive()
    }
}

/// A file that a [`Closer`] closes.
#[derive(Debug)]
pub struct ClosedLater {
    /// There until it is dropped.
    file: Option<File>,
    closer: Arc<Closer>,
}

impl ClosedLater {
    /// `file`, to be closed by `closer`.
    pub fn new(file: File, closer: Arc<Closer>) -> ClosedLater {
        let file = Some(file);
        ClosedLater { file, closer }
    }

    /// The file.
    pub fn get(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Drop for ClosedLater {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.closer.later(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{ThreadId, current};

    struct Told(Sender<ThreadId>, Option<Receiver<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            if let Some(go) = &self.1 {
                let _ = go.recv();
            }
            let _ = self.0.send(current().id());
        }
    }

    #[test]
    fn who_hands_over_does_not_wait_and_the_end_does() {
        let (told, dropped) = channel();
        let (go, wait) = channel();
        let closer = Closer::default();
        closer.later(Told(told.clone(), Some(wait)));
        closer.later(Told(told, None));
        assert!(
            dropped.try_recv().is_err(),
            "the first one is being dropped"
        );
        go.send(()).expect("it waits for this");
        drop(closer);
        let threads: Vec<_> = dropped.try_iter().collect();
        assert_eq!(threads.len(), 2, "all are gone with the closer");
        assert!(threads.iter().all(|t| *t != current().id()));
    }
}
