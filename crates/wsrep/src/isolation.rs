//! The emergency brake: a crashing server cuts this node off from the others.
//!
//! The server's signal handler calls it in the middle of anything, so it uses only
//! atomics and `shutdown(2)`: no lock, no allocation, no log. Sockets are shut down,
//! not closed: their owners close them, and a number closed here could be reused
//! under them. The reverse holds too: while the hook is at a number, its owner waits
//! with the close, so what is shut down is never somebody else's.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// How many sockets can be registered at a time.
pub const FDS_MAX: usize = 2048;

const FREE: RawFd = -1;
/// The hook is at this number just now.
const fn busy(fd: RawFd) -> RawFd {
    -2 - fd
}
const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;

static MODE: AtomicU32 = AtomicU32::new(0);
static FDS: [AtomicI32; FDS_MAX] = [const { AtomicI32::new(FREE) }; FDS_MAX];
/// Places at and above this one were never used.
static FDS_USED: AtomicUsize = AtomicUsize::new(0);

/// Whether this node may talk to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It may.
    NotIsolated,
    /// It must not; registered sockets were shut down.
    Isolated,
    /// It must not, and must consider itself disconnected.
    ForceDisconnect,
}

/// The mode the server has set.
pub fn mode() -> Mode {
    match MODE.load(Ordering::Acquire) {
        0 => Mode::NotIsolated,
        1 => Mode::Isolated,
        _ => Mode::ForceDisconnect,
    }
}

/// Registers a socket that isolation shall shut down; at once, if the node is isolated
/// already. `false` if the table is full or the number is negative: the socket is then
/// not covered.
pub fn register_fd(fd: RawFd) -> bool {
    if fd < 0 {
        return false;
    }
    for (place, slot) in FDS.iter().enumerate() {
        let taken = slot.compare_exchange(FREE, fd, Ordering::SeqCst, Ordering::Relaxed);
        if taken.is_ok() {
            FDS_USED.fetch_max(place + 1, Ordering::SeqCst);
            // The hook sets the mode first and reads the table second, this does the
            // reverse: one of the two sees the other.
            if MODE.load(Ordering::SeqCst) != 0 {
                shut_down(fd);
            }
            return true;
        }
    }
    false
}

/// Takes a socket out again. Call it before the socket is closed. If the hook is at that
/// socket, waits until it is not.
pub fn unregister_fd(fd: RawFd) {
    if fd < 0 {
        return;
    }
    for slot in &FDS[..FDS_USED.load(Ordering::SeqCst)] {
        loop {
            match slot.compare_exchange(fd, FREE, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                // On another thread: one that runs above this one has ended.
                Err(now) if now == busy(fd) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
    }
}

/// What the exported hook does. Async-signal-safe. Returns 0, or 1 for an unknown mode.
pub fn set_mode(mode: u32) -> u32 {
    if mode > 2 {
        return INVALID_VALUE;
    }
    MODE.store(mode, Ordering::SeqCst);
    if mode != 0 {
        for slot in &FDS[..FDS_USED.load(Ordering::SeqCst)] {
            let fd = slot.load(Ordering::SeqCst);
            // One that has just gone, or that another crashing thread is at, is skipped.
            if fd >= 0
                && slot
                    .compare_exchange(fd, busy(fd), Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                shut_down(fd);
                slot.store(fd, Ordering::SeqCst);
            }
        }
    }
    SUCCESS
}

/// `shutdown(2)` in both directions, with `errno` left as it was.
fn shut_down(fd: RawFd) {
    // SAFETY: both calls are async-signal-safe and take no memory of ours; a number that
    // is no socket is answered with an error.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::shutdown(fd, libc::SHUT_RDWR);
        *errno = saved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    // One test: mode and table belong to the process.
    #[test]
    fn isolation_cuts_registered_sockets_and_later_ones_and_nothing_else() {
        let (mut covered, mut far) = UnixStream::pair().unwrap();
        let (mut released, mut released_far) = UnixStream::pair().unwrap();
        assert!(!register_fd(-1));
        assert!(register_fd(released.as_raw_fd()));
        assert!(register_fd(covered.as_raw_fd()));
        unregister_fd(released.as_raw_fd());
        assert_eq!(mode(), Mode::NotIsolated);

        assert_eq!(set_mode(3), INVALID_VALUE);
        assert_eq!(mode(), Mode::NotIsolated);
        covered.write_all(b"x").unwrap();

        assert_eq!(set_mode(1), SUCCESS);
        assert_eq!(mode(), Mode::Isolated);
        assert!(covered.write_all(b"y").is_err());
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, b"x");

        released.write_all(b"z").unwrap();
        let mut one = [0];
        released_far.read_exact(&mut one).unwrap();
        assert_eq!(&one, b"z");

        let (mut late, _late_far) = UnixStream::pair().unwrap();
        assert!(register_fd(late.as_raw_fd()));
        assert!(late.write_all(b"w").is_err());

        assert_eq!(set_mode(2), SUCCESS);
        assert_eq!(mode(), Mode::ForceDisconnect);
        assert_eq!(set_mode(0), SUCCESS);
        unregister_fd(covered.as_raw_fd());
        unregister_fd(late.as_raw_fd());
        assert!(FDS.iter().all(|slot| slot.load(Ordering::SeqCst) == FREE));

        // Nobody closes a number while the hook is at it.
        let (held, _held_far) = UnixStream::pair().unwrap();
        let fd = held.as_raw_fd();
        assert!(register_fd(fd));
        let slot = FDS.iter().find(|s| s.load(Ordering::SeqCst) == fd);
        let slot = slot.expect("it is registered");
        slot.store(busy(fd), Ordering::SeqCst);
        let owner = std::thread::spawn(move || unregister_fd(fd));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!owner.is_finished());
        slot.store(fd, Ordering::SeqCst);
        owner.join().unwrap();
        assert_eq!(slot.load(Ordering::SeqCst), FREE);

        // A full table says so and recovers; these numbers are no open files.
        for fd in 0..FDS_MAX {
            assert!(register_fd(1_000_000 + fd as RawFd));
        }
        assert!(!register_fd(5_000_000));
        for fd in 0..FDS_MAX {
            unregister_fd(1_000_000 + fd as RawFd);
        }
        assert!(register_fd(5_000_000));
        unregister_fd(5_000_000);
    }
}
