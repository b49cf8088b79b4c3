//! What the provider calls: the C side of [`Events`](super::Events).

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use dromon_wsrep::abi::*;

use super::{CB_FAILURE, Host, RecvContext, ViewSummary};

/// `wsrep_view_status_t` of a primary view.
const VIEW_PRIMARY: u32 = 0;
/// First part of a request for state.
const SST_METHOD: &[u8] = b"bench\0";
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
        let (host, view) = unsafe { (&*app.cast::<Host>(), summary(view)) };
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

/// Asks for state as a server does: method and address, each with its NUL. The address
/// is a file here. (A request `trivial` would name the case that there is nothing to
/// copy, but with it Galera 26.4.23 waits for ever for its donor's certification index.)
pub(super) unsafe extern "C-unwind" fn sst_request_cb(
    app: *mut c_void,
    request: *mut *mut c_void,
    len: *mut usize,
) -> wsrep_cb_status_t {
    border("sst_request_cb", || {
        // SAFETY: `app` is what `init` was given.
        let host = unsafe { &*app.cast::<Host>() };
        let mut text = SST_METHOD.to_vec();
        if let Some(file) = host.transfer_file.get() {
            text.extend(file.as_os_str().as_bytes());
        }
        text.push(0);
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
        host.transfer("sst-joiner", Host::receive)
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
        let (host, gtid, request) = unsafe { (&*app.cast::<Host>(), *gtid, bytes(request)) };
        let file = request
            .strip_prefix(SST_METHOD)
            .and_then(|rest| rest.strip_suffix(b"\0"))
            .map(|file| PathBuf::from(OsStr::from_bytes(file)));
        let Some(file) = file else {
            host.events.violation(format!(
                "the donor got the request {:?}, which no joiner made",
                String::from_utf8_lossy(request)
            ));
            return CB_FAILURE;
        };
        host.transfer("sst-donor", move |host| host.donate(&file, gtid))
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
            let payload = bytes(data);
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
