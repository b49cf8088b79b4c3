//! What every call into the provider passes through: finding the instance, catching
//! panics, checking pointers.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread;

use crate::abi;
use crate::provider::Provider;
use crate::server::{self, Server};
use crate::types::LogLevel;

/// More parts than this in one key are taken for garbage (MariaDB sends three).
const KEY_PARTS_MAX: usize = 1024;

/// What `wsrep_t.ctx` points to between `init` and `free`. It is never dropped, so
/// that a late call cannot touch freed memory.
pub(super) struct Instance<P> {
    pub(super) server: Server,
    pub(super) provider: P,
    /// `free` has begun.
    pub(super) closing: AtomicBool,
}

/// The server passed something the interface forbids; the text names it.
pub(super) struct Misuse(pub(super) &'static str);

/// What a panic in a call does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPanic {
    /// The call answers with its failure value.
    Answer,
    /// The process ends: a seqno is or may be held, and losing it hangs the server for ever.
    Abort,
}

/// The `ctx` field, which one thread may clear while others read it.
///
/// # Safety
/// `h` is NULL or the server's loaded `wsrep_t`, alive for `'a`.
pub(super) unsafe fn ctx_of<'a>(h: *mut abi::wsrep_t) -> Option<&'a AtomicPtr<c_void>> {
    if h.is_null() || !h.is_aligned() {
        return None;
    }
    // SAFETY: `h` is valid; the field is a pointer, aligned, and used by us alone.
    Some(unsafe { AtomicPtr::from_ptr(&raw mut (*h).ctx) })
}

/// The instance of a handle: `None` before `init` and after `free`.
///
/// # Safety
/// As [`ctx_of`], and `h` was loaded for this `P`.
pub(super) unsafe fn instance<P: Provider>(h: *mut abi::wsrep_t) -> Option<&'static Instance<P>> {
    // SAFETY: by the contract above.
    let ctx = unsafe { ctx_of(h) }?.load(Ordering::Acquire);
    // SAFETY: `ctx` is NULL or an `Instance<P>` leaked by `init`.
    unsafe { ctx.cast_const().cast::<Instance<P>>().as_ref() }
}

/// Runs the body of one call. The answer is `failure` if there is no instance, if the
/// arguments are wrong, or if the body panics and `on_panic` does not say abort.
///
/// # Safety
/// As [`instance`].
pub(super) unsafe fn call<P: Provider, R>(
    h: *mut abi::wsrep_t,
    name: &'static str,
    on_panic: OnPanic,
    failure: R,
    body: impl FnOnce(&'static Instance<P>) -> Result<R, Misuse>,
) -> R {
    // SAFETY: by the contract above.
    let Some(instance) = (unsafe { instance::<P>(h) }) else {
        return failure;
    };
    match panic::catch_unwind(AssertUnwindSafe(|| body(instance))) {
        Ok(Ok(answer)) => answer,
        Ok(Err(Misuse(what))) => {
            instance.server.log(
                LogLevel::Error,
                &format!(
                    "The server called {name} with {what}, which the wsrep interface forbids; \
                     the call is refused. The server has a defect or is of an unknown version."
                ),
            );
            failure
        }
        Err(payload) => {
            after_panic(&instance.server, name, payload, on_panic);
            failure
        }
    }
}

/// Logs what a caught panic means, and ends the process if it must.
pub(super) fn after_panic(
    server: &Server,
    name: &str,
    payload: Box<dyn Any + Send>,
    on_panic: OnPanic,
) {
    // Its destructor may panic, and nobody needs it.
    std::mem::forget(payload);
    match on_panic {
        OnPanic::Answer => server.log(
            LogLevel::Error,
            &format!(
                "The provider panicked in {name} (the line above says where); the call failed \
                 and the node goes on. Please report this defect."
            ),
        ),
        OnPanic::Abort => {
            server.log(
                LogLevel::Fatal,
                &format!(
                    "The provider panicked in {name} (the line above says where) and may hold a \
                     place in the commit order that nobody could release. The process ends now; \
                     restart it. Please report this defect."
                ),
            );
            std::process::abort();
        }
    }
}

/// From now on panics of any thread of this library go to the server's log.
pub(super) fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let message = format!(
                "Panic in thread '{}' at {}: {}",
                thread::current().name().unwrap_or("of the server"),
                info.location()
                    .map_or_else(|| Cow::Borrowed("?"), |place| place.to_string().into()),
                panic_text(info.payload()),
            );
            if !server::log_current(LogLevel::Error, &message) {
                former(info);
            }
        }));
    });
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(no text)"
    }
}

// ---------------------------------------------------------------- pointer checks

/// # Safety
/// `pointer` is NULL or valid for reads during `'a`.
pub(super) unsafe fn shared<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T, Misuse> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Misuse(what));
    }
    // SAFETY: non-null and aligned; valid by the contract.
    Ok(unsafe { &*pointer })
}

/// # Safety
/// `pointer` is NULL or valid for reads and writes during `'a`, and only used by this call.
pub(super) unsafe fn exclusive<'a, T>(
    pointer: *mut T,
    what: &'static str,
) -> Result<&'a mut T, Misuse> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Misuse(what));
    }
    // SAFETY: non-null and aligned; valid and ours by the contract.
    Ok(unsafe { &mut *pointer })
}

/// # Safety
/// `pointer` is NULL or valid for reads of `count` elements during `'a`.
pub(super) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    what: &'static str,
) -> Result<&'a [T], Misuse> {
    if count == 0 {
        return Ok(&[]);
    }
    let fits = count
        .checked_mul(size_of::<T>())
        .is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if pointer.is_null() || !pointer.is_aligned() || !fits {
        return Err(Misuse(what));
    }
    // SAFETY: non-null, aligned, of a possible size; valid by the contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// # Safety
/// What `buf` describes is NULL or valid for reads during `'a`.
pub(super) unsafe fn bytes<'a>(
    buf: &abi::wsrep_buf_t,
    what: &'static str,
) -> Result<&'a [u8], Misuse> {
    // SAFETY: by the contract above.
    unsafe { array(buf.ptr.cast::<u8>(), buf.len, what) }
}

/// A buffer that may be missing: its pointer or its data are NULL. An empty one that
/// points somewhere is there.
///
/// # Safety
/// `pointer` is NULL or valid, and so is what it describes, during `'a`.
pub(super) unsafe fn optional_bytes<'a>(
    pointer: *const abi::wsrep_buf_t,
    what: &'static str,
) -> Result<Option<&'a [u8]>, Misuse> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract above.
    let buf = unsafe { shared(pointer, what) }?;
    if buf.ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract above.
    unsafe { bytes(buf, what) }.map(Some)
}

/// # Safety
/// `key` describes valid parts during `'a`.
pub(super) unsafe fn key_parts<'a>(key: &abi::wsrep_key_t) -> Result<Vec<&'a [u8]>, Misuse> {
    if key.key_parts_num > KEY_PARTS_MAX {
        return Err(Misuse("a key of more than 1024 parts"));
    }
    // SAFETY: by the contract above.
    let parts = unsafe {
        array(
            key.key_parts,
            key.key_parts_num,
            "NULL for the parts of a key",
        )
    }?;
    parts
        .iter()
        // SAFETY: by the contract above.
        .map(|part| unsafe { bytes(part, "NULL for a part of a key") })
        .collect()
}

/// # Safety
/// `pointer` is NULL or a NUL-terminated text valid during `'a`.
pub(super) unsafe fn text<'a>(
    pointer: *const c_char,
    what: &'static str,
) -> Result<Cow<'a, str>, Misuse> {
    if pointer.is_null() {
        return Err(Misuse(what));
    }
    // SAFETY: non-null, NUL-terminated by the contract.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy())
}

/// NULL reads as no text.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_text<'a>(pointer: *const c_char) -> Cow<'a, str> {
    // SAFETY: by the contract above.
    unsafe { text(pointer, "") }.unwrap_or_default()
}
