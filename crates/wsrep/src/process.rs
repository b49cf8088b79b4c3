//! The end of the server's process.

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
