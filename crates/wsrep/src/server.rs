//! The handle around the server's callbacks that need no thread of the server's, and
//! around its services.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use crate::abi;
use crate::recv::succeeded;
use crate::services;
use crate::types::{AllowlistKey, CallbackFailed, LogLevel};
use crate::view::{View, ViewBuffer};

/// The server as the provider sees it. Cheap to clone, usable from every thread.
///
/// It goes silent when the server has taken the provider down: `log` and `event` drop
/// their text and the other calls fail.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    callbacks: Callbacks,
    closed: AtomicBool,
}

/// What the server passed to `init`, each function checked to be there.
pub(crate) struct Callbacks {
    pub(crate) app_ctx: *mut c_void,
    pub(crate) logger: abi::wsrep_log_cb_t,
    pub(crate) connected: abi::wsrep_connected_cb_t,
    pub(crate) view: abi::wsrep_view_cb_t,
    pub(crate) sst_request: abi::wsrep_sst_request_cb_t,
    pub(crate) apply: abi::wsrep_apply_cb_t,
    pub(crate) sst_donate: abi::wsrep_sst_donate_cb_t,
    pub(crate) synced: abi::wsrep_synced_cb_t,
}

// SAFETY: `app_ctx` is the server's own object; it is only handed back to callbacks,
// which the interface allows from any thread.
unsafe impl Send for Callbacks {}
// SAFETY: as above; nothing here is changed after `init`.
unsafe impl Sync for Callbacks {}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("closed", &self.inner.closed.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new(callbacks: Callbacks) -> Server {
        Server {
            inner: Arc::new(Inner {
                callbacks,
                closed: AtomicBool::new(false),
            }),
        }
    }

    /// Writes a message to the server's error log: one line, or, where it is longer than
    /// the server takes, several, all but the first marked with `… `. Line breaks and NULs
    /// become spaces. Never panics; must not be called from a signal handler.
    pub fn log(&self, level: LogLevel, message: &str) {
        let Ok(callbacks) = self.callbacks("logger") else {
            return;
        };
        for line in log_lines(message) {
            // SAFETY: the callback is the server's own; `line` ends with NUL.
            unsafe { (callbacks.logger)(level as u32, line.as_ptr().cast()) }
        }
    }

    /// Tells the server that this node is in the component of `view`, own index included.
    /// Call it from a receiving thread.
    pub fn connected(&self, view: &View) -> Result<(), CallbackFailed> {
        let callbacks = self.callbacks("connected")?;
        let buffer = ViewBuffer::new(view);
        // SAFETY: the callback is the server's own; the buffer outlives the call.
        let answer = unsafe { (callbacks.connected)(callbacks.app_ctx, buffer.as_ptr()) };
        succeeded(answer, "connected")
    }

    /// Tells the server that this node has caught up. Call it from a receiving thread.
    pub fn synced(&self) -> Result<(), CallbackFailed> {
        let callbacks = self.callbacks("synced")?;
        // SAFETY: the callback is the server's own.
        let answer = unsafe { (callbacks.synced)(callbacks.app_ctx) };
        succeeded(answer, "synced")
    }

    /// Asks the server for the request a donor needs, byte for byte. Empty: the server
    /// is running already and cannot take a full copy. Call it from a receiving thread.
    pub fn sst_request(&self) -> Result<Vec<u8>, CallbackFailed> {
        let callbacks = self.callbacks("sst_request")?;
        let mut request: *mut c_void = ptr::null_mut();
        let mut len = 0_usize;
        // SAFETY: the callback is the server's own; both results are ours to write to.
        let answer = unsafe { (callbacks.sst_request)(callbacks.app_ctx, &mut request, &mut len) };
        let usable = answer == abi::CB_SUCCESS
            && (len == 0 || (!request.is_null() && isize::try_from(len).is_ok()));
        let bytes = if usable && len > 0 {
            // SAFETY: the server says that `len` bytes are there.
            unsafe { std::slice::from_raw_parts(request.cast::<u8>(), len) }.to_vec()
        } else {
            Vec::new()
        };
        if len > 0 {
            // SAFETY: by the interface the buffer is from C `malloc` and now ours; NULL is allowed.
            unsafe { libc::free(request) };
        }
        if usable {
            Ok(bytes)
        } else {
            Err(CallbackFailed {
                callback: "sst_request",
            })
        }
    }

    /// Whether the server's allowlist lets a peer in. `true` if the server offers no
    /// allowlist; `false` for text with a NUL inside. Reads tables of the server: never
    /// call it with a lock held.
    pub fn allowed(&self, key: AllowlistKey, value: &str) -> bool {
        self.callbacks("allowlist").is_ok() && services::allowed(key, value)
    }

    /// Sends an event (`name` is `progress` or `event`, `json` its value) if the server listens.
    pub fn event(&self, name: &str, json: &str) {
        if self.callbacks("event").is_ok() {
            services::event(name, json);
        }
    }

    /// The callbacks, as long as the server may be called.
    pub(crate) fn callbacks(&self, callback: &'static str) -> Result<&Callbacks, CallbackFailed> {
        if self.inner.closed.load(Ordering::Acquire) {
            Err(CallbackFailed { callback })
        } else {
            Ok(&self.inner.callbacks)
        }
    }

    /// From here on nothing is called any more.
    pub(crate) fn shut(&self) {
        self.inner.closed.store(true, Ordering::Release);
        let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
        if current
            .as_ref()
            .is_some_and(|server| Arc::ptr_eq(&server.inner, &self.inner))
        {
            *current = None;
        }
    }

    /// Makes this the server that panics of any thread are reported to.
    pub(crate) fn make_current(&self) {
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(self.clone());
    }
}

/// The server of this process (there is one), for reports that have no other way to it.
static CURRENT: RwLock<Option<Server>> = RwLock::new(None);

/// Logs through the server of this process. `false` if there is none to log to.
pub(crate) fn log_current(level: LogLevel, message: &str) -> bool {
    // Never wait here: the caller may be a panic inside `make_current`.
    let server = match CURRENT.try_read() {
        Ok(current) => current.clone(),
        Err(TryLockError::Poisoned(current)) => current.into_inner().clone(),
        Err(TryLockError::WouldBlock) => None,
    };
    match server {
        Some(server) => {
            server.log(level, message);
            true
        }
        None => false,
    }
}

/// Most bytes of a line. The server writes each into 1024, with a word of its own before
/// it, and drops the rest; what to do stands at the end.
const LINE: usize = 1000;
/// Begins a line that goes on with the text of the one before.
const GOES_ON: &str = "… ";

/// The message as NUL-terminated lines. They end at blanks where those are near enough.
fn log_lines(message: &str) -> Vec<Vec<u8>> {
    let text = message.trim_end().replace(['\0', '\n', '\r'], " ");
    let mut lines = Vec::new();
    let (mut mark, mut rest) = ("", text.as_str());
    loop {
        let (piece, after) = rest.split_at(piece_end(rest, LINE - mark.len()));
        let mut line = Vec::with_capacity(mark.len() + piece.len() + 1);
        line.extend_from_slice(mark.as_bytes());
        line.extend_from_slice(piece.as_bytes());
        line.push(0);
        debug_assert!(CStr::from_bytes_with_nul(&line).is_ok());
        lines.push(line);
        if after.is_empty() {
            return lines;
        }
        (mark, rest) = (GOES_ON, after);
    }
}

/// Where a line of at most `room` bytes with the begin of `text` ends.
fn piece_end(text: &str, room: usize) -> usize {
    if text.len() <= room {
        return text.len();
    }
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text[..end].rfind(' ') {
        Some(blank) if blank >= room / 2 => blank + 1,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_no_break_and_one_nul() {
        assert_eq!(log_lines("a\nb\0c\r\nd\n"), [b"a b c  d\0"]);
        assert_eq!(log_lines(""), [b"\0"]);
    }

    /// Without their marks and NULs.
    fn pieces(message: &str) -> Vec<String> {
        let lines = log_lines(message).into_iter().enumerate();
        let text = |(i, line): (usize, Vec<u8>)| {
            assert!(line.len() <= LINE + 1, "{} bytes", line.len());
            let line = CStr::from_bytes_with_nul(&line).expect("one NUL");
            let line = line.to_str().expect("whole characters");
            let mark = if i == 0 { "" } else { GOES_ON };
            line.strip_prefix(mark).expect("the mark").to_owned()
        };
        lines.map(text).collect()
    }

    #[test]
    fn a_long_text_goes_into_several_lines() {
        let long = "x".repeat(LINE);
        assert_eq!(pieces(&long), [long.as_str()]);
        assert_eq!(pieces(&format!("{long}\n")), [long.as_str()]);
        assert_eq!(pieces(&format!("{long}y")), [long.as_str(), "y"]);
        // A line break is as good a place as a blank.
        let first = "x".repeat(LINE - 100);
        let (two, blank) = (format!("{first}\n{long}"), format!("{first} "));
        assert_eq!(pieces(&two)[0], blank);
        assert_eq!(pieces(&two).concat(), two.replace('\n', " "));
        // No character is torn, whatever comes before it, and a blank too far back is none.
        for before in 0..4 {
            for wide in ["ä", "…", "🦭"] {
                let text = format!("a {}{}", "x".repeat(before), wide.repeat(2000));
                let pieces = pieces(&text);
                assert!(pieces.len() <= text.len() / (LINE - 10) + 1, "{wide}");
                assert_eq!(pieces.concat(), text);
            }
        }
    }
}
