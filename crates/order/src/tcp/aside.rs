//! Work that blocks, each on a thread of its own.
//!
//! The runtime has a pool for that, which panics where no thread can be made, in the task that asked. A process at
//! its limit of threads would lose a link by it that nobody makes again. So they are made here, and whoever gets none
//! goes without.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Begins `work` on a thread named `name`. What it answers comes over the channel, unless it panics.
///
/// # Errors
/// No thread can be made. Then `work` was dropped.
pub(super) fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    #[cfg(test)]
    if tests::NONE_LEFT.get() {
        return Err(tests::none_left());
    }
    let (tx, rx) = oneshot::channel();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // Whoever asked may have gone.
            let _ = tx.send(work());
        })?;
    Ok(rx)
}

/// What is said where there is none.
pub(super) fn no_thread(e: &io::Error) -> String {
    format!("no thread could be started: {e}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// The process is at its limit, for what this thread asks for.
        pub(in crate::tcp) static NONE_LEFT: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn none_left() -> io::Error {
        const EAGAIN: i32 = 11;
        io::Error::from_raw_os_error(EAGAIN)
    }

    #[tokio::test]
    async fn the_answer_comes_over_the_channel_and_a_panic_ends_it() {
        let name = || thread::current().name().map(str::to_owned);
        let answer = aside("dromon-x", name).expect("a thread").await;
        assert_eq!(answer.expect("an answer").as_deref(), Some("dromon-x"));
        let broken = aside::<()>("dromon-x", || panic!("as a test wants it"));
        assert!(broken.expect("a thread").await.is_err());
    }
}
