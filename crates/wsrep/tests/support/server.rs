//! A pretended server that uses the library the way mariadbd does. It shares nothing with
//! the crate's own `host`: that one is safe and cannot misuse a provider, and what it reads
//! through the crate's structures is read here at the offsets of the interface.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, Status, TrxMeta};

use super::toy::lock;

unsafe extern "C" {
    pub static wsrep_interface_version: *const c_char;
    pub fn wsrep_loader(h: *mut wsrep_t) -> c_int;
    pub fn wsrep_init_allowlist_service_v1(service: *mut wsrep_allowlist_service_v1_t) -> c_int;
    pub fn wsrep_deinit_allowlist_service_v1();
    pub fn wsrep_init_event_service_v1(service: *mut wsrep_event_service_v1_t) -> c_int;
    pub fn wsrep_deinit_event_service_v1();
    pub fn wsrep_init_config_service_v1(service: *mut wsrep_config_service_v1_t) -> c_int;
    pub fn wsrep_deinit_config_service_v1();
    pub fn wsrep_node_isolation_mode_set_v1(mode: u32) -> u32;
}

/// Callbacks received, in order.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Lines logged: level and text.
static LINES: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());
/// The library is one per process, so its tests take turns.
static TURN: Mutex<()> = Mutex::new(());
static HANDLE: AtomicPtr<wsrep_t> = AtomicPtr::new(ptr::null_mut());
/// What every callback answers.
pub static ANSWER: AtomicU32 = AtomicU32::new(0);
/// Bytes of the request that the SST callback hands out.
pub static REQUEST: Mutex<Vec<u8>> = Mutex::new(Vec::new());

pub const APP_CTX: *mut c_void = ptr::without_provenance_mut(0x1111);
pub const RECV_CTX: *mut c_void = ptr::without_provenance_mut(0x2222);
pub const GARBAGE: u8 = 0xA5;

/// A loaded provider, with the functions called as the server calls them.
pub struct Host {
    pub h: *mut wsrep_t,
    _turn: MutexGuard<'static, ()>,
}

pub fn seen() -> Vec<String> {
    std::mem::take(&mut lock(&SEEN))
}

pub fn lines() -> Vec<(u32, String)> {
    std::mem::take(&mut lock(&LINES))
}

impl Host {
    /// Fills memory with garbage and has the provider loaded into it.
    pub fn load() -> Host {
        let turn = lock(&TURN);
        super::toy::calls();
        super::toy::panic_in(None);
        ANSWER.store(0, Ordering::SeqCst);
        seen();
        lines();
        // SAFETY: memory for one `wsrep_t`, which the loader fills.
        let h = unsafe {
            let h = libc::malloc(size_of::<wsrep_t>()).cast::<wsrep_t>();
            h.cast::<u8>().write_bytes(GARBAGE, size_of::<wsrep_t>());
            assert_eq!(wsrep_loader(h), 0);
            h
        };
        HANDLE.store(h, Ordering::SeqCst);
        Host { h, _turn: turn }
    }

    /// Loaded and started.
    pub fn start() -> Host {
        let host = Host::load();
        assert_eq!(host.init("a=1"), Status::Ok);
        super::toy::calls();
        lines();
        host
    }

    pub fn f(&self) -> wsrep_t {
        // SAFETY: loaded; all function pointers are set.
        unsafe { *self.h }
    }

    pub fn init(&self, options: &str) -> Status {
        let options = CString::new(options).unwrap();
        let state_id = Gtid::UNDEFINED;
        let args = args(&options, &state_id);
        // SAFETY: the arguments live through the call.
        unsafe { (self.f().init)(self.h, &args) }
    }

    pub fn recv(&self) -> Status {
        // SAFETY: as the server calls it.
        unsafe { (self.f().recv)(self.h, RECV_CTX) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: as the server does it: `free` twice, then the structure.
        unsafe {
            let free = self.f().free;
            free(self.h);
            free(self.h);
            libc::free(self.h.cast());
        }
        super::toy::panic_in(None);
    }
}

pub fn args(options: &CStr, state_id: &Gtid) -> wsrep_init_args {
    wsrep_init_args {
        app_ctx: APP_CTX,
        node_name: c"eins".as_ptr(),
        node_address: c"127.0.0.1:24510".as_ptr(),
        node_incoming: c"AUTO".as_ptr(),
        data_dir: c"/var/lib/mysql/".as_ptr(),
        options: options.as_ptr(),
        proto_ver: 4,
        state_id,
        state: ptr::null(),
        logger_cb: Some(logger),
        connected_cb: Some(connected),
        view_cb: Some(view),
        sst_request_cb: Some(sst_request),
        encrypt_cb: None,
        apply_cb: Some(apply),
        unordered_cb: None,
        sst_donate_cb: Some(sst_donate),
        synced_cb: Some(synced),
    }
}

pub fn buf(bytes: &[u8]) -> wsrep_buf_t {
    wsrep_buf_t {
        ptr: bytes.as_ptr().cast(),
        len: bytes.len(),
    }
}

pub fn handle(trx_id: u64) -> wsrep_ws_handle_t {
    wsrep_ws_handle_t {
        trx_id,
        opaque: ptr::null_mut(),
    }
}

fn note(text: String) -> u32 {
    lock(&SEEN).push(text);
    ANSWER.load(Ordering::SeqCst)
}

unsafe extern "C-unwind" fn logger(level: u32, text: *const c_char) {
    // SAFETY: the interface promises NUL-terminated text.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
    // Also where a failing test shows it: the library takes the panics of tests too.
    eprintln!("[{level}] {text}");
    lock(&LINES).push((level, text));
}

/// Reads a view byte by byte at the offsets of the contract.
unsafe fn read_view(view: *const wsrep_view_info_t) -> String {
    let base = view.cast::<u8>();
    // SAFETY: the provider passes a whole view with `memb_num` members.
    unsafe {
        let word = |at: usize| base.add(at).cast::<i32>().read();
        let count = word(44);
        let members: Vec<String> = (0..count as usize)
            .map(|i| {
                let member = base.add(56 + 304 * i);
                format!(
                    "{:02x}:{}:{}",
                    member.read(),
                    CStr::from_ptr(member.add(16).cast()).to_str().unwrap(),
                    CStr::from_ptr(member.add(48).cast()).to_str().unwrap(),
                )
            })
            .collect();
        format!(
            "{:02x}:{} view {} status {} caps {:#x} own {} count {count} proto {} [{}]",
            base.read(),
            base.add(16).cast::<i64>().read(),
            base.add(24).cast::<i64>().read(),
            word(32),
            word(36),
            word(40),
            word(48),
            members.join(" "),
        )
    }
}

unsafe extern "C-unwind" fn connected(app: *mut c_void, view: *const wsrep_view_info_t) -> u32 {
    assert_eq!(app, APP_CTX);
    // SAFETY: the provider's view.
    note(format!("connected {}", unsafe { read_view(view) }))
}

unsafe extern "C-unwind" fn view(
    app: *mut c_void,
    ctx: *mut c_void,
    view: *const wsrep_view_info_t,
    state: *const c_char,
    state_len: usize,
) -> u32 {
    assert_eq!((app, ctx), (APP_CTX, RECV_CTX));
    // The server asks for its position in here.
    let mut gtid = Gtid::UNDEFINED;
    // SAFETY: the handle is loaded, the view and the state are the provider's.
    unsafe {
        let h = HANDLE.load(Ordering::SeqCst);
        assert_eq!(((*h).last_committed_id)(h, &mut gtid), Status::Ok);
        let state = if state.is_null() {
            format!("NULL/{state_len}")
        } else {
            let state = std::slice::from_raw_parts(state.cast::<u8>(), state_len);
            String::from_utf8_lossy(state).into_owned()
        };
        note(format!(
            "view {} state {state} last {}",
            read_view(view),
            gtid.seqno
        ))
    }
}

unsafe extern "C-unwind" fn sst_request(
    app: *mut c_void,
    request: *mut *mut c_void,
    len: *mut usize,
) -> u32 {
    assert_eq!(app, APP_CTX);
    let bytes = lock(&REQUEST);
    if !bytes.is_empty() {
        // SAFETY: both results are the provider's; the copy fits.
        unsafe {
            let copy = libc::malloc(bytes.len());
            ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len());
            *request = copy;
            *len = bytes.len();
        }
    }
    note("sst_request".into())
}

/// Applies as the server does: enters and leaves commit order with the handle it got.
unsafe extern "C-unwind" fn apply(
    ctx: *mut c_void,
    handle: *const wsrep_ws_handle_t,
    flags: u32,
    payload: *const wsrep_buf_t,
    meta: *const TrxMeta,
    exit_loop: *mut u8,
) -> u32 {
    assert_eq!(ctx, RECV_CTX);
    // SAFETY: all pointers are the provider's and valid during the call.
    unsafe {
        let payload = &*payload;
        let text = if payload.ptr.is_null() {
            format!("NULL/{}", payload.len)
        } else {
            let bytes = std::slice::from_raw_parts(payload.ptr.cast::<u8>(), payload.len);
            String::from_utf8_lossy(bytes).into_owned()
        };
        let h = HANDLE.load(Ordering::SeqCst);
        // The server keeps a copy of the handle.
        let mut copy = *handle;
        assert!(!copy.opaque.is_null());
        assert_eq!(((*h).commit_order_enter)(h, &copy, meta), Status::Ok);
        let error = wsrep_buf_t {
            ptr: ptr::null(),
            len: 0,
        };
        assert_eq!(
            ((*h).commit_order_leave)(h, &copy, meta, &error),
            Status::Ok
        );
        // It should not release it, and must not be able to by mistake.
        assert_eq!(((*h).release)(h, &mut copy), Status::Ok);
        *exit_loop = 1;
        note(format!(
            "apply {} {flags:#x} {text} {} depends {}",
            copy.trx_id,
            (*meta).gtid.seqno,
            (*meta).depends_on
        ))
    }
}

unsafe extern "C-unwind" fn sst_donate(
    app: *mut c_void,
    ctx: *mut c_void,
    request: *const wsrep_buf_t,
    gtid: *const Gtid,
    state: *const wsrep_buf_t,
    bypass: u8,
) -> u32 {
    assert_eq!((app, ctx), (APP_CTX, RECV_CTX));
    // SAFETY: all pointers are the provider's and valid during the call.
    unsafe {
        let request = &*request;
        // The server reads texts: one NUL must follow the declared length.
        let bytes = std::slice::from_raw_parts(request.ptr.cast::<u8>(), request.len + 1);
        note(format!(
            "sst_donate {:?} at {} state {:?} {} bypass {bypass}",
            String::from_utf8_lossy(bytes),
            (*gtid).seqno,
            (*state).ptr,
            (*state).len,
        ))
    }
}

unsafe extern "C-unwind" fn synced(app: *mut c_void) -> u32 {
    assert_eq!(app, APP_CTX);
    note("synced".into())
}

pub unsafe extern "C-unwind" fn allowlist(
    ctx: *mut c_void,
    key: u32,
    value: *const wsrep_buf_t,
) -> u32 {
    assert_eq!(ctx, APP_CTX);
    // SAFETY: the provider promises NUL-terminated text.
    let (text, len) = unsafe { (CStr::from_ptr((*value).ptr.cast()), (*value).len) };
    assert_eq!(text.count_bytes(), len);
    note(format!("allowlist {key} {}", text.to_str().unwrap()));
    if text == c"CN=friend" {
        Status::Ok as u32
    } else {
        Status::NotAllowed as u32
    }
}

pub unsafe extern "C-unwind" fn event(ctx: *mut c_void, name: *const c_char, json: *const c_char) {
    assert_eq!(ctx, APP_CTX);
    // SAFETY: the provider promises NUL-terminated text.
    let (name, json) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(json)) };
    note(format!(
        "event {} {}",
        name.to_str().unwrap(),
        json.to_str().unwrap()
    ));
}

/// Writes down one parameter; the last two names stop the loop with an odd answer.
pub unsafe extern "C-unwind" fn parameter(
    parameter: *const wsrep_parameter_t,
    ctx: *mut c_void,
) -> u32 {
    assert_eq!(ctx, APP_CTX);
    // SAFETY: the provider's structure; the flags say which member is set.
    unsafe {
        let parameter = &*parameter;
        let name = CStr::from_ptr(parameter.name).to_str().unwrap();
        let value = match parameter.flags & !3 {
            4 => parameter.value.as_bool.to_string(),
            8 => parameter.value.as_integer.to_string(),
            16 => parameter.value.as_double.to_string(),
            _ => format!("{:?}", CStr::from_ptr(parameter.value.as_string)),
        };
        note(format!("parameter {name} {} {value}", parameter.flags))
    }
}
