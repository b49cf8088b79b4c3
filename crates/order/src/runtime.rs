//! The asynchronous runtime of the consensus library: tokio, with everything
//! random in it under our seed.
//!
//! Two things must not depend on chance when a run is to be repeated. Random
//! numbers: [`DeterministicRng`] derives them from a seed that travels from
//! task to task, so every task must be spawned through [`spawn`]. And the order
//! in which tasks that watch one value wake up: tokio's watch channel spreads
//! its waiters at random, so there is a plain one here that wakes them in the
//! order they came.

use std::any::type_name;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use openraft_rt::deterministic_rng::DeterministicRng;
use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft_rt::{AsyncRuntime, OptionalSend, OptionalSync};
use openraft_rt_tokio::TokioRuntime;
use tokio::sync::Notify;

type Seeded = DeterministicRng<TokioRuntime>;

/// Runs `future` with its random numbers, and those of all tasks it spawns,
/// derived from `seed`.
pub(crate) fn seeded<F: Future>(seed: u64, future: F) -> impl Future<Output = F::Output> {
    Seeded::scope(seed, future)
}

/// Runs `future` as a task that inherits the random seed. Panics outside of
/// [`seeded`].
pub(crate) fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Seeded::spawn(future)
}

/// How long a candidate waits for a vote, at most.
pub(crate) const VOTE_PATIENCE: Duration = Duration::from_secs(30);

/// In pauses between heartbeats: how long one waits for its answer.
const HEARTBEAT_PATIENCE: u32 = 3;

/// How long the library waits for what a task of its own asks somebody. Nothing but the kind of the answer tells questions
/// apart here.
///
/// By itself it waits for a vote no longer than the shortest election time, however long storing it takes there, though a
/// vote counts for as long as its candidate stands. So the question ends itself (`Client::vote`).
///
/// And for the answer to a heartbeat no longer than until the next one: where the way there and back takes longer, none
/// would ever count, and a leader would have no lease while nothing is written. The next one to that member waits for it,
/// so this is well below the shortest election time, which is five pauses.
fn patience<R>(wanted: Duration) -> Duration {
    let answer = type_name::<R>();
    match answer {
        _ if answer.contains("::VoteResponse<") => wanted.max(VOTE_PATIENCE * 2),
        _ if answer.contains("::StreamAppendError<") => wanted * HEARTBEAT_PATIENCE,
        _ => wanted,
    }
}

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Runtime(Seeded);

impl AsyncRuntime for Runtime {
    type JoinError = <Seeded as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Seeded as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Seeded as AsyncRuntime>::Sleep;
    type Instant = <Seeded as AsyncRuntime>::Instant;
    type TimeoutError = <Seeded as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Seeded as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <Seeded as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <Seeded as AsyncRuntime>::Mpsc;
    type Watch = FairWatch;
    type Oneshot = <Seeded as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Seeded as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Seeded::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Seeded::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Seeded::sleep_until(deadline)
    }

    fn timeout<R, F>(duration: Duration, future: F) -> Self::Timeout<R, F>
    where
        F: Future<Output = R> + OptionalSend,
    {
        Seeded::timeout(patience::<R>(duration), future)
    }

    fn timeout_at<R, F>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F>
    where
        F: Future<Output = R> + OptionalSend,
    {
        Seeded::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        Seeded::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        Seeded::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Runtime(Seeded::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Seeded::spawn_blocking(f)
    }
}

/// Watch channels that wake their waiters in the order they came.
pub(crate) struct FairWatch;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Notify,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end.
pub(crate) struct FairSender<T>(Arc<Shared<T>>);

/// The receiving end, and the newest version it has seen.
pub(crate) struct FairReceiver<T>(Arc<Shared<T>>, u64);

impl Watch for FairWatch {
    type Sender<T: OptionalSend + OptionalSync> = FairSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = FairReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (FairSender<T>, FairReceiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            changed: Notify::new(),
        });
        (FairSender(shared.clone()), FairReceiver(shared, 0))
    }
}

impl<T> Clone for FairSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        FairSender(self.0.clone())
    }
}

impl<T> Drop for FairSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<FairWatch, T> for FairSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|v| {
            *v = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !modify(&mut value) {
                return false;
            }
            self.0.version.fetch_add(1, Ordering::AcqRel);
        }
        self.0.changed.notify_waiters();
        true
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> FairReceiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        FairReceiver(self.0.clone(), self.0.version.load(Ordering::Acquire))
    }
}

impl<T> Clone for FairReceiver<T> {
    fn clone(&self) -> Self {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        FairReceiver(self.0.clone(), self.1)
    }
}

impl<T> Drop for FairReceiver<T> {
    fn drop(&mut self) {
        self.0.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<FairWatch, T> for FairReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registers before looking, so that no change falls between.
            changed.as_mut().enable();
            let newest = self.0.version.load(Ordering::Acquire);
            if newest != self.1 {
                self.1 = newest;
                return Ok(());
            }
            if self.0.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            changed.await;
        }
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.0.read();
        self.1 = self.0.version.load(Ordering::Acquire);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_shows_the_newest_value_and_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without I/O needs nothing from the system");
        runtime.block_on(async {
            let (tx, mut rx) = FairWatch::channel(1);
            let mut late = tx.subscribe();
            assert!(tx.send(2).is_ok());
            assert!(!tx.send_if_modified(|_| false));
            assert_eq!(rx.changed().await, Ok(()));
            assert_eq!((*rx.borrow_watched(), *late.borrow_and_update()), (2, 2));
            let waiter = tokio::spawn(async move {
                let first = late.changed().await;
                let value = *late.borrow_watched();
                (first, value, late.changed().await)
            });
            tokio::task::yield_now().await;
            assert!(tx.send(3).is_ok());
            tokio::task::yield_now().await;
            drop(tx.clone());
            drop(tx);
            let seen = waiter.await.expect("it does not panic");
            assert_eq!(seen, (Ok(()), 3, Err(RecvError(()))));
            assert_eq!(rx.changed().await, Ok(()));
            assert_eq!(rx.changed().await, Err(RecvError(())));
        });
    }

    #[test]
    fn sending_to_nobody_fails() {
        let (tx, rx) = FairWatch::channel(1);
        drop(rx);
        assert_eq!(tx.send(2), Err(SendError(2)));
    }
}
