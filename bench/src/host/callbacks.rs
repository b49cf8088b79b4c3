//! What the provider calls: the C side of [`Events`](super::Events).

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use dromon_wsrep::abi::*;

use super::{CB_FAILURE, Host, RecvContext, ViewSummary, lock};

/// `wsrep_view_status_t` of a primary view.
const VIEW_PRIMARY: u32 = 0;
/// What a joiner asks a donor for: method and address, each with its NUL. There is no
/// state to copy, so nobody looks at it. (`trivial` would name that case, but with it
/// Galera 26.4.23 waits for ever for the certification index of its donor.)
const SST_REQUEST: &[u8] = b"nothing\0nowhere\0";

/// The host the logger writes to: its callback has no context argument.
pub(super) static LOGGER: AtomicPtr<Host> = AtomicPtr::new(ptr::null_mut());

/// Runs the body of a callback; a panic must not unwind into the provider.
fn border<T>(name: &str, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => {
            eprintln!("dromon-bench: a panic in {name}; the process ends");
            std::process::abort();
        }
    }
}

pub(super) unsafe extern "C-unwind" fn logger_cb(level: u32, line: *const c_char) {
    border("logger_cb", || {
        let host = LOGGER.load(Ordering::Acquire);
        if host.is_null() || line.is_null() {
            return;
        }
        // SAFETY: the pointer is reset before the host goes; the line ends with a zero byte.
        let (host, line) = unsafe { (&*host, CStr::from_ptr(line)) };
        host.events.log(level, &line.to_string_lossy());
    });
}

pub(super) unsafe extern "C-unwind" fn connected_cb(
    app: *mut c_void,
    view: *const wsrep_view_info_t,
) -> wsrep_cb_status_t {
    border("connected_cb", || {
        // SAFETY: `app` is what `init` was given, the view is valid during the call.
        let (host, view, gtid) = unsafe {
            (
                &*app.cast::<Host>(),
                summary(view),
                (&raw const (*view).state_id).read(),
            )
        };
        *lock(&host.connected) = gtid;
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
        let (host, view) = unsafe { (&*app.cast::<Host>(), summary(view)) };
        // The server asks this in every primary view.
        if view.primary
            && let Err(error) = host.last_committed()
        {
            host.events
                .violation(format!("In view {}: {error}", view.seqno));
        }
        host.events.view(view);
        CB_SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn sst_request_cb(
    app: *mut c_void,
    request: *mut *mut c_void,
    len: *mut usize,
) -> wsrep_cb_status_t {
    border("sst_request_cb", || {
        // SAFETY: `app` is what `init` was given.
        let host = unsafe { &*app.cast::<Host>() };
        // SAFETY: the provider frees the request with C `free`; both results are writable.
        unsafe {
            let copy = libc::malloc(SST_REQUEST.len());
            if copy.is_null() {
                return CB_FAILURE;
            }
            ptr::copy_nonoverlapping(SST_REQUEST.as_ptr(), copy.cast::<u8>(), SST_REQUEST.len());
            *request = copy;
            *len = SST_REQUEST.len();
        }
        host.transfer("sst-joiner", Host::sst_received)
    })
}

pub(super) unsafe extern "C-unwind" fn sst_donate_cb(
    app: *mut c_void,
    _recv: *mut c_void,
    _request: *const wsrep_buf_t,
    gtid: *const wsrep_gtid_t,
    _state: *const wsrep_buf_t,
    _bypass: c_bool,
) -> wsrep_cb_status_t {
    border("sst_donate_cb", || {
        // SAFETY: `app` is what `init` was given, the position is valid during the call.
        let (host, gtid) = unsafe { (&*app.cast::<Host>(), *gtid) };
        host.transfer("sst-donor", move |host| host.sst_sent(gtid))
    })
}

pub(super) unsafe extern "C-unwind" fn synced_cb(app: *mut c_void) -> wsrep_cb_status_t {
    border("synced_cb", || {
        // SAFETY: `app` is what `init` was given.
        unsafe { &*app.cast::<Host>() }.events.synced();
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
        // pointers outlive that call; the other arguments are valid during this one, and
        // the data buffer may be NULL or empty.
        unsafe {
            let context = &*recv.cast::<RecvContext>();
            let payload = match data.as_ref() {
                Some(data) if !data.ptr.is_null() && data.len > 0 => {
                    std::slice::from_raw_parts(data.ptr.cast::<u8>(), data.len)
                }
                _ => &[],
            };
            if !exit_loop.is_null() {
                *exit_loop = 0;
            }
            let replay = !context.original.is_null();
            let handle = if replay { context.original } else { handle };
            (*context.host).apply(handle, flags, payload, &*meta, &*context.mark, replay)
        }
    })
}

/// # Safety
/// The pointer is not null and the header of the view can be read; it may have no members.
unsafe fn summary(view: *const wsrep_view_info_t) -> ViewSummary {
    // SAFETY: the caller's promise. Fields are read one by one because a view without
    // members is shorter than the Rust structure.
    unsafe {
        ViewSummary {
            seqno: (&raw const (*view).state_id).read().seqno,
            primary: (&raw const (*view).status).read() == VIEW_PRIMARY,
            members: (&raw const (*view).memb_num).read(),
        }
    }
}
