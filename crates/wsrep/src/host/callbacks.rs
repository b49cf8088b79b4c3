//! What the provider calls, and what the server does then: the C side of [`Events`].

use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex};

use super::calls::Handle;
use super::transactions::{Call, ordered};
use super::{Events, Inner, ThreadContext, ViewSummary, lock};
use crate::abi::*;
use crate::types::{Seqno, Status, TrxMeta, flags};
use crate::view::ViewStatus;

/// Callback result "failure".
pub(super) const CB_FAILURE: wsrep_cb_status_t = 1;

/// Who hears the log of this process's provider: that callback has no context argument.
/// Set while there is a provider.
pub(super) static LOGGER: Mutex<Option<Arc<dyn Events>>> = Mutex::new(None);

/// Runs the body of a callback; a panic must not unwind into the provider.
fn border<T>(name: &str, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => {
            // Not `eprintln`, which panics itself when nobody reads.
            let _ = writeln!(
                std::io::stderr(),
                "A panic in {name}, which the provider called; the process ends."
            );
            std::process::abort();
        }
    }
}

pub(super) unsafe extern "C-unwind" fn logger_cb(level: u32, line: *const c_char) {
    border("logger_cb", || {
        // Not held during the call: several threads log, and `close` takes it too.
        let events = lock(&LOGGER).clone();
        let Some(events) = events else { return };
        if line.is_null() {
            return;
        }
        // SAFETY: the line ends with a zero byte.
        let line = unsafe { CStr::from_ptr(line) };
        events.log(level, &line.to_string_lossy());
    });
}

pub(super) unsafe extern "C-unwind" fn connected_cb(
    app: *mut c_void,
    view: *const wsrep_view_info_t,
) -> wsrep_cb_status_t {
    border("connected_cb", || {
        // SAFETY: `app` is what `init` was given, the view is valid during the call.
        let (host, view) = unsafe { (inner(app), summary(view)) };
        host.events.connected(view);
        CB_SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn view_cb(
    app: *mut c_void,
    _recv: *mut c_void,
    view: *const wsrep_view_info_t,
    _state: *const c_char,
    _len: usize,
) -> wsrep_cb_status_t {
    border("view_cb", || {
        // SAFETY: as in `connected_cb`.
        let (host, view) = unsafe { (inner(app), summary(view)) };
        // The server asks this in every primary view.
        if view.primary
            && let Err(error) = host.last_committed_id()
        {
            host.events
                .violation(format!("In view {}: {error}", view.seqno));
        }
        host.events.view(view);
        CB_SUCCESS
    })
}

/// Gives the request for a state to the provider and begins to wait for that state.
pub(super) unsafe extern "C-unwind" fn sst_request_cb(
    app: *mut c_void,
    request: *mut *mut c_void,
    len: *mut usize,
) -> wsrep_cb_status_t {
    border("sst_request_cb", || {
        // SAFETY: `app` is what `init` was given.
        let host = unsafe { inner(app) };
        let text = host.transfer_request();
        // SAFETY: the provider frees the request with C `free`; both results are writable.
        unsafe {
            let copy = libc::malloc(text.len());
            if copy.is_null() {
                return CB_FAILURE;
            }
            ptr::copy_nonoverlapping(text.as_ptr(), copy.cast::<u8>(), text.len());
            *request = copy;
            *len = text.len();
        }
        host.begin_to_receive()
    })
}

pub(super) unsafe extern "C-unwind" fn sst_donate_cb(
    app: *mut c_void,
    _recv: *mut c_void,
    request: *const wsrep_buf_t,
    gtid: *const wsrep_gtid_t,
    _state: *const wsrep_buf_t,
    _bypass: c_bool,
) -> wsrep_cb_status_t {
    border("sst_donate_cb", || {
        // SAFETY: `app` is what `init` was given; request and position are valid during
        // the call.
        let (host, gtid, request) = unsafe { (inner(app), *gtid, bytes(request)) };
        host.begin_to_donate(request, gtid)
    })
}

pub(super) unsafe extern "C-unwind" fn synced_cb(app: *mut c_void) -> wsrep_cb_status_t {
    border("synced_cb", || {
        // SAFETY: `app` is what `init` was given.
        unsafe { inner(app) }.events.synced();
        CB_SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn apply_cb(
    recv: *mut c_void,
    handle: *const wsrep_ws_handle_t,
    flags: u32,
    data: *const wsrep_buf_t,
    meta: *const wsrep_trx_meta_t,
    exit_loop: *mut c_bool,
) -> wsrep_cb_status_t {
    border("apply_cb", || {
        // SAFETY: `recv` is the context this thread gave to `recv` or `replay_trx`, whose
        // references outlive that call; the other arguments are valid during this one, and
        // the data buffer may be NULL or empty. `Handle` is transparent.
        unsafe {
            let context = &*recv.cast_const().cast::<ThreadContext<'_>>();
            if !exit_loop.is_null() {
                *exit_loop = 0;
            }
            let handle = &*handle.cast::<Handle>();
            apply(context, handle, flags, bytes(data), &*meta)
        }
    })
}

/// Applies one remote write set, or the replay of a local one.
fn apply(
    context: &ThreadContext<'_>,
    handle: &Handle,
    flags: u32,
    payload: &[u8],
    meta: &TrxMeta,
) -> wsrep_cb_status_t {
    let ThreadContext {
        host,
        original,
        mark,
    } = context;
    let passed = flags & flags::ROLLBACK == 0;
    if passed
        && original.is_none()
        && let Some(row) = host.events.hot_row(payload)
    {
        mark.set(Call::Abort);
        let seqno = meta.gtid.seqno;
        row.abort(|victim| host.abort_certification(seqno, victim) == Status::Ok);
    }
    // A replay goes on with the handle of the transaction it repeats.
    let handle = original.unwrap_or(handle);
    mark.set(Call::Enter);
    let status = host.commit_order_enter(handle, meta);
    if status != Status::Ok {
        return complain(host, "commit_order_enter", meta.gtid.seqno, status);
    }
    host.events.ordered(ordered(meta, passed, payload));
    mark.set(Call::Leave);
    let status = host.commit_order_leave(handle, meta);
    mark.set(Call::None);
    if status != Status::Ok {
        return complain(host, "commit_order_leave", meta.gtid.seqno, status);
    }
    CB_SUCCESS
}

fn complain(host: &Inner, call: &str, seqno: Seqno, status: Status) -> wsrep_cb_status_t {
    host.events.violation(format!(
        "{call} of remote write set {seqno} answered {status:?}"
    ));
    CB_FAILURE
}

/// # Safety
/// The pointer is the context given to `init`, and the provider was not freed since.
unsafe fn inner<'a>(app: *mut c_void) -> &'a Inner {
    // SAFETY: the caller's promise; `Inner::init` has left a count for as long.
    unsafe { &*app.cast_const().cast::<Inner>() }
}

/// # Safety
/// The pointer is not null and the header of the view can be read; it may have no members.
unsafe fn summary(view: *const wsrep_view_info_t) -> ViewSummary {
    // SAFETY: the caller's promise. Fields are read one by one because a view without
    // members is shorter than the Rust structure.
    unsafe {
        ViewSummary {
            seqno: (&raw const (*view).state_id).read().seqno,
            primary: (&raw const (*view).status).read() == ViewStatus::Primary as u32,
            members: (&raw const (*view).memb_num).read(),
        }
    }
}

/// # Safety
/// The pointer is null, or the buffer and what it points to can be read for `'a`.
unsafe fn bytes<'a>(buffer: *const wsrep_buf_t) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe {
        match buffer.as_ref() {
            Some(buffer) if !buffer.ptr.is_null() && buffer.len > 0 => {
                std::slice::from_raw_parts(buffer.ptr.cast::<u8>(), buffer.len)
            }
            _ => &[],
        }
    }
}
