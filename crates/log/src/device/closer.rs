//! Closing files on a thread of its own, bit by bit.
//!
//! Whoever closes a removed file last gives its room back to the file system: 0.2 s of a
//! processor for a gigabyte, and meanwhile every fdatasync on that disk is late. The log's
//! thread must not, as commits wait for it; and several gigabytes at once must not either.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many bytes of a removed file are given back at once.
const STEP: u64 = 8 << 20;
/// Then comes a rest, so many times as long as that took,
const REST: u32 = 9;
/// but no longer than this.
const REST_MAX: Duration = Duration::from_millis(50);
/// No rests while more than so many wait: room must not be wanted faster than it comes back.
const WAITING: usize = 64;

/// Drops what it is given (open files, mapped memory) on a thread of its own, in order. The
/// thread begins with the first one; dropping the closer waits until all are dropped, which
/// then takes no rests.
///
/// What waits is not bounded here: it is what was open before, and comes no faster than
/// files are removed.
#[derive(Default)]
pub struct Closer {
    waiting: Arc<AtomicUsize>,
    thread: Mutex<Option<Thread>>,
}

enum Dropped {
    Any(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Send>),
    /// It is removed, and nobody else has it open.
    Removed(File),
}

struct Thread {
    queue: Sender<Dropped>,
    /// Never sent to; its end is the closer's.
    open: Sender<()>,
    handle: JoinHandle<()>,
}

impl Closer {
    /// Drops `what` soon. It must not be, or hold, the last reference to this closer.
    pub fn later(&self, what: impl Send + 'static) {
        self.queue(Dropped::Any(Box::new(what)));
    }

    fn queue(&self, what: Dropped) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = start(self.waiting.clone());
        }
        // Without a thread it is dropped here.
        if let Some(thread) = &*thread {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let _ = thread.queue.send(what);
        }
    }
}

fn start(waiting: Arc<AtomicUsize>) -> Option<Thread> {
    let (queue, dropped) = channel();
    let (open, end) = channel();
    let handle = std::thread::Builder::new()
        .name("dromon-close".into())
        .spawn(move || {
            for what in dropped {
                if let Dropped::Removed(file) = what {
                    // Where that is not possible, all of it goes with the handle.
                    let _ = shrink(&file, &end, &waiting);
                }
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        })
        .ok()?;
    Some(Thread {
        queue,
        open,
        handle,
    })
}

/// Cuts a removed file step by step, until `end` hangs up or too many wait.
fn shrink(file: &File, end: &Receiver<()>, waiting: &AtomicUsize) -> io::Result<()> {
    let seen = file.metadata()?;
    if seen.nlink() > 0 {
        return Ok(());
    }
    let mut len = seen.len();
    while len > STEP && waiting.load(Ordering::Relaxed) <= WAITING {
        let began = Instant::now();
        len -= STEP;
        file.set_len(len)?;
        let rest = (began.elapsed() * REST).min(REST_MAX);
        if end.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    Ok(())
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get_mut().take() {
            drop((thread.queue, thread.open));
            let _ = thread.handle.join();
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
    removed: AtomicBool,
    closer: Arc<Closer>,
}

impl ClosedLater {
    /// `file`, to be closed by `closer`.
    pub fn new(file: File, closer: Arc<Closer>) -> ClosedLater {
        ClosedLater {
            file: Some(file),
            removed: AtomicBool::new(false),
            closer,
        }
    }

    /// The file has no name any more: it may be cut before it is closed. Nobody may have
    /// another handle on it by then, or map it, but who gives these to the same closer before.
    pub fn removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// The file.
    pub fn get(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Drop for ClosedLater {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            match *self.removed.get_mut() {
                true => self.closer.queue(Dropped::Removed(file)),
                false => self.closer.later(file),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn a_removed_file_is_given_back_and_one_with_a_name_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let closer = Arc::new(Closer::default());
        let len = 3 * STEP + 5;
        let make = |name: &str| {
            let path = dir.path().join(name);
            let file = File::create_new(&path).expect("made");
            file.set_len(len).expect("room");
            (path, file)
        };
        let (kept, file) = make("kept");
        let mistaken = ClosedLater::new(file, closer.clone());
        mistaken.removed();
        drop(mistaken);
        let remove = |name: &str, say: bool| {
            let (path, file) = make(name);
            std::fs::remove_file(path).expect("removed");
            let other = file.try_clone().expect("another handle");
            let later = ClosedLater::new(file, closer.clone());
            if say {
                later.removed();
            }
            other
        };
        let unsaid = remove("unsaid", false);
        let other = remove("removed", true);
        let left = || other.metadata().expect("open").len();
        let end = Instant::now() + Duration::from_secs(20);
        while left() > STEP && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(left() <= STEP, "{} bytes are left", left());
        drop(closer);
        assert_eq!(unsaid.metadata().expect("open").len(), len);
        assert_eq!(kept.metadata().expect("there").len(), len);
    }

    #[test]
    fn the_end_takes_no_rests() {
        let dir = tempfile::tempdir().expect("a directory");
        let (open, end) = channel();
        drop::<Sender<()>>(open);
        let path = dir.path().join("removed");
        let file = File::create_new(&path).expect("made");
        file.set_len(100 * STEP).expect("room");
        std::fs::remove_file(path).expect("removed");
        let cut = |waiting: usize| {
            shrink(&file, &end, &AtomicUsize::new(waiting)).expect("cut");
            file.metadata().expect("open").len() / STEP
        };
        assert_eq!(cut(1), 99);
        assert_eq!(cut(WAITING + 1), 99, "it goes with its handle");
    }
}
