//! The process: its end, and for programs with a host what it has used.

/// Ends the process with SIGABRT, without the server's handler for it: that one
/// writes a report of a crash, and this is none. For a server that waits for a
/// copy which will never come: taken down in order it would first go through the
/// end of engines that were never started.
pub fn abort() -> ! {
    // SAFETY: restoring a signal's default action touches no memory of ours.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
    }
    std::process::abort()
}

/// What this process has used since its start.
#[cfg(feature = "host")]
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// User and system time.
    pub cpu: std::time::Duration,
    /// Peak resident memory, bytes.
    pub rss_max_bytes: u64,
    /// Context switches, voluntary and not.
    pub switches: u64,
}

/// Asks the kernel what this process has used.
#[cfg(feature = "host")]
pub fn usage() -> Usage {
    use std::time::Duration;

    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure; zeroes are a valid value should it fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs())
            + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        rss_max_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
        switches: usage.ru_nvcsw.unsigned_abs() + usage.ru_nivcsw.unsigned_abs(),
    }
}

/// Ends the process without running exit handlers: those of a loaded provider could
/// wait for threads that hang.
#[cfg(feature = "host")]
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no conditions.
    unsafe { libc::_exit(code) }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;

    #[test]
    fn usage_grows_with_the_work() {
        let before = usage();
        let begun = std::time::Instant::now();
        let mut sum = 0_u64;
        while begun.elapsed().as_millis() < 20 {
            sum = sum.wrapping_add(1);
        }
        assert!(sum > 0);
        let after = usage();
        assert!(after.cpu > before.cpu);
        assert!(after.rss_max_bytes > 64 << 10);
        assert!(after.switches >= before.switches);
    }
}
