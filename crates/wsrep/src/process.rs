//! The process: its end, what its program shows of itself, and for programs with a host
//! what it has used.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Ends the process with SIGABRT, without the server's handler for it: that one
/// writes a report of a crash, and this is none. For a server that waits for a
/// copy which will never come: taken down in order it would first go through the
/// end of engines that were never started. Nor does it leave a core file.
///
/// The first process of a container, which none of its own signals ends by default, exits as if by that one: else
/// it would go on to an instruction that traps, and the server's handler would take that for a crash.
pub fn abort() -> ! {
    /// What shells and container runtimes show of SIGABRT.
    const ABORTED: c_int = 128 + libc::SIGABRT;
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a limit that the kernel copies; restoring a signal's default action touches no memory of ours, and
    // `_exit` has no conditions.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        let traps = [libc::SIGSEGV, libc::SIGILL, libc::SIGBUS, libc::SIGTRAP];
        for signal in [libc::SIGABRT].into_iter().chain(traps) {
            libc::signal(signal, libc::SIG_DFL);
        }
        if libc::getpid() == 1 {
            libc::_exit(ABORTED);
        }
    }
    std::process::abort()
}

/// Whether the process was told to end (SIGTERM, SIGQUIT) and has not heeded it: the signal is
/// pending. While a server starts, its threads block both, and nobody takes them before it has
/// started. False on a thread that blocks neither.
pub fn told_to_stop() -> bool {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is ours to write to; zeroes are a valid one should it fail, the empty one.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        let set = set.assume_init();
        libc::sigismember(&set, libc::SIGTERM) == 1 || libc::sigismember(&set, libc::SIGQUIT) == 1
    }
}

/// Starts `command`, and has the kernel kill what was started when the calling thread ends, with
/// its process or without.
pub fn spawn_with_thread(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    let ends_with_it = move || {
        // SAFETY: both ask the kernel only, and may be called after a fork.
        let (asked, parent_now) = unsafe {
            let asked = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            (asked, libc::getppid())
        };
        match (asked, u32::try_from(parent_now) == Ok(parent)) {
            (0, true) => Ok(()),
            // It ended before it could be asked for.
            (0, false) => Err(io::ErrorKind::Interrupted.into()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(ends_with_it) }.spawn()
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

/// The value now of a global flag of this process's program, or of a library it
/// is linked with: a variable of one byte. `None` if there is no such symbol, or
/// if it is anything but a variable of one byte.
pub fn flag(name: &CStr) -> Option<bool> {
    let address = one_byte_variable(name)?;
    // SAFETY: an object of one byte lies there, and what the program is linked
    // with is never unloaded. It may change at any time: read as an atomic.
    let value = unsafe { AtomicU8::from_ptr(address.cast()) }.load(Ordering::Relaxed);
    Some(value != 0)
}

fn one_byte_variable(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: asks for the program itself; `name` ends with NUL. The handle
    // counts a reference to what is never unloaded.
    let address = unsafe {
        let program = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
        if program.is_null() {
            return None;
        }
        let address = libc::dlsym(program, name.as_ptr());
        libc::dlclose(program);
        address
    };
    if address.is_null() {
        return None;
    }
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let mut entry: *mut c_void = ptr::null_mut();
    // SAFETY: both results are ours to write to; the entry that is answered
    // belongs to the symbol table of what is never unloaded.
    let symbol = unsafe {
        if libc::dladdr1(address, &mut info, &mut entry, RTLD_DL_SYMENT) == 0 || entry.is_null() {
            return None;
        }
        entry.cast::<libc::Elf64_Sym>().read()
    };
    let variable = symbol.st_info & 0xf == STT_OBJECT && symbol.st_size == 1;
    (variable && info.dli_saddr == address).then_some(address)
}

/// Asks `dladdr1` for the symbol table's entry.
const RTLD_DL_SYMENT: c_int = 1;
/// A symbol that is a variable, in an entry's lower four bits.
const STT_OBJECT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "host")]
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

    #[test]
    fn a_signal_that_nobody_heeds_is_seen() {
        for signal in [libc::SIGTERM, libc::SIGQUIT] {
            assert!(!told_to_stop());
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: the set is initialised before it is read; the signal is sent to this thread
            // alone, which blocks it until it has taken it.
            unsafe {
                libc::sigemptyset(set.as_mut_ptr());
                let mut set = set.assume_init();
                libc::sigaddset(&mut set, signal);
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
                libc::pthread_kill(libc::pthread_self(), signal);
                assert!(told_to_stop());
                let mut taken = 0;
                libc::sigwait(&set, &mut taken);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
                assert_eq!(taken, signal);
            }
            assert!(!told_to_stop());
        }
    }

    /// What the next test has of it, as a process of its own.
    const ABORTS: &str = "DROMON_TEST_ABORTS";

    #[test]
    fn the_first_process_of_a_container_ends_as_any_other_does() {
        use std::os::unix::process::ExitStatusExt;

        extern "C" fn reports(_: c_int) {
            // SAFETY: `_exit` has no conditions.
            unsafe { libc::_exit(99) }
        }
        if std::env::var_os(ABORTS).is_some() {
            let handler: extern "C" fn(c_int) = reports;
            for signal in [libc::SIGSEGV, libc::SIGABRT] {
                // SAFETY: the handler does nothing that must not be done in one.
                unsafe { libc::signal(signal, handler as libc::sighandler_t) };
            }
            abort();
        }
        let own = std::env::current_exe().expect("this test");
        let name = std::thread::current().name().map(str::to_owned);
        let test = [name.as_deref().expect("its name"), "--exact", "--nocapture"];
        let outside = Command::new(&own).args(test).env(ABORTS, "1").status();
        let outside = outside.expect("it starts");
        assert_eq!(outside.signal(), Some(libc::SIGABRT));
        assert!(!outside.core_dumped());
        const FIRST: [&str; 3] = ["--fork", "--pid", "--"];
        let may = Command::new("unshare").args(FIRST).arg("true").status();
        if !may.is_ok_and(|may| may.success()) {
            return; // nobody may make another first process here
        }
        let mut inside = Command::new("unshare");
        let inside = inside.args(FIRST).arg(&own).args(test);
        let inside = inside.env(ABORTS, "1").status().expect("it starts");
        assert_eq!(inside.code(), Some(134));
    }

    #[test]
    fn what_was_started_ends_with_its_thread() {
        use std::os::unix::process::ExitStatusExt;

        let starts = || spawn_with_thread(Command::new("sleep").arg("60")).expect("it starts");
        let child = std::thread::spawn(starts).join();
        let ended = child.expect("no panic").wait().expect("it ends");
        assert_eq!(ended.signal(), Some(libc::SIGKILL));
        let mut own = starts();
        assert_eq!(own.try_wait().expect("it is there"), None);
        own.kill().and_then(|()| own.wait()).expect("it ends");
    }

    #[test]
    fn only_a_variable_of_one_byte_is_a_flag() {
        // The C library's own: whether this process has one thread. It has two.
        let other = std::thread::spawn(|| flag(c"__libc_single_threaded"));
        assert_eq!(other.join().expect("no panic"), Some(false));
        assert_eq!(flag(c"environ"), None, "a pointer");
        assert_eq!(flag(c"malloc"), None, "a function");
        assert_eq!(flag(c"no_such_symbol_anywhere"), None);
    }
}
