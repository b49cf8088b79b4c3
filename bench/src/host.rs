//! Loads a provider and plays the server for it. The only module with `unsafe`.
//!
//! [`Host`] makes the calls a server makes, in the order a server makes them;
//! what the provider tells the server arrives at an implementation of [`Events`].
//!
//! ```text
//!   writer thread    transaction()  append_key, append_data, certify,
//!                                   commit_order_enter, leave, release
//!   applier thread   recv()         connected_cb, view_cb, synced_cb, apply_cb
//!                                     apply_cb: commit_order_enter, leave
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, Status, TrxMeta, flags};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

/// The highest application protocol version MariaDB 10.11 speaks.
const PROTO_VER: c_int = 4;
/// `wsrep_view_status_t` of a primary view.
const VIEW_PRIMARY: u32 = 0;
/// `wsrep_key_type_t` of an inserted row.
const KEY_EXCLUSIVE: u32 = 3;
/// `wsrep_data_type_t` of row events.
const DATA_ORDERED: u32 = 0;
/// Callback result "failure".
const CB_FAILURE: wsrep_cb_status_t = 1;
/// The request of a joiner that needs no state: the 8 bytes the server sends
/// with `wsrep_sst_method=skip`, the NUL included.
const TRIVIAL_REQUEST: &[u8; 8] = b"trivial\0";

/// Why a provider could not be used.
#[derive(Debug, Error)]
pub enum HostError {
    /// `dlopen` or `dlsym` refused.
    #[error("The provider {} cannot be loaded: {source}.", path.display())]
    Load {
        path: PathBuf,
        source: libloading::Error,
    },
    /// The loader of the library answered an error.
    #[error("The loader of the provider {} answered error {code}.", path.display())]
    Loader { path: PathBuf, code: c_int },
    /// A function the server needs is NULL.
    #[error("The provider {} left the field at offset {offset} of its table empty.", path.display())]
    MissingField { path: PathBuf, offset: usize },
    /// Another interface version.
    #[error("The provider {} speaks interface version {found}, this program 26.", path.display())]
    Version { path: PathBuf, found: String },
    /// A string with a zero byte in it.
    #[error("The argument '{0}' holds a zero byte and cannot be handed to the provider.")]
    ZeroByte(String),
    /// A call was not answered with OK.
    #[error("The provider answered {status:?} to {call}; its own log lines say why.")]
    Call { call: &'static str, status: Status },
}

/// What a view says, as far as anyone here asks.
#[derive(Clone, Copy, Debug)]
pub struct ViewSummary {
    /// Its place in the total order.
    pub seqno: i64,
    /// Whether this is a view of the primary component.
    pub primary: bool,
    /// Number of members; 0 in the final view.
    pub members: i32,
}

/// A write set while it holds its place in the commit order.
#[derive(Clone, Copy, Debug)]
pub struct Ordered<'a> {
    /// Its place in the total order.
    pub seqno: i64,
    /// The node it comes from.
    pub node: [u8; 16],
    /// Its transaction there.
    pub trx: u64,
    /// Whether it passed certification.
    pub passed: bool,
    /// The data appended to it.
    pub payload: &'a [u8],
}

/// What the provider tells its server. Called from any thread.
pub trait Events: Send + Sync {
    /// A line for the error log; level 0 is fatal, 4 debug.
    fn log(&self, level: u32, line: &str);
    /// The provider joined a group.
    fn connected(&self, view: ViewSummary);
    /// The membership changed; everything ordered before has been released.
    fn view(&self, view: ViewSummary);
    /// The node has caught up with the group.
    fn synced(&self);
    /// Called between `commit_order_enter` and `commit_order_leave`, for local
    /// and remote write sets alike; so never twice at a time if the provider is right.
    fn ordered(&self, write_set: Ordered<'_>);
    /// The local transaction that stands in the way of a remote write set with
    /// this payload, as a row lock would.
    fn victim(&self, payload: &[u8]) -> Option<u64>;
    /// Something that must not happen with a correct provider.
    fn violation(&self, what: String);
}

/// How the node is configured.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// `wsrep_node_name`.
    pub name: String,
    /// `wsrep_node_address`, host and port of the group communication.
    pub address: String,
    /// Where the provider may keep files.
    pub data_dir: PathBuf,
    /// `wsrep_provider_options`.
    pub options: String,
}

/// The call a thread is in, for the report about a hung run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    None,
    Append,
    Certify,
    Enter,
    Leave,
    Release,
    Replay,
    SyncWait,
    Abort,
}

impl Call {
    /// The name of the C function.
    pub fn name(self) -> &'static str {
        match self {
            Call::None => "no call",
            Call::Append => "append_key or append_data",
            Call::Certify => "certify",
            Call::Enter => "commit_order_enter",
            Call::Leave => "commit_order_leave",
            Call::Release => "release",
            Call::Replay => "replay_trx",
            Call::SyncWait => "sync_wait",
            Call::Abort => "abort_certification",
        }
    }
}

/// Where a thread is now; written by that thread, read by the watchdog.
#[derive(Debug, Default)]
pub struct CallMark(AtomicU8);

impl CallMark {
    fn set(&self, call: Call) {
        self.0.store(call as u8, Ordering::Relaxed);
    }

    /// The call the thread is in.
    pub fn get(&self) -> Call {
        const ALL: [Call; 9] = [
            Call::None,
            Call::Append,
            Call::Certify,
            Call::Enter,
            Call::Leave,
            Call::Release,
            Call::Replay,
            Call::SyncWait,
            Call::Abort,
        ];
        ALL.get(usize::from(self.0.load(Ordering::Relaxed)))
            .copied()
            .unwrap_or(Call::None)
    }
}

/// A local transaction.
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'a> {
    /// The client connection.
    pub conn: u64,
    /// Unique within this process.
    pub trx: u64,
    /// Row keys; database and table are the same for all.
    pub rows: &'a [&'a [u8]],
    /// The data of the write set.
    pub payload: &'a [u8],
    /// Whether it may be aborted by remote write sets (it uses a hot row).
    pub abortable: bool,
}

/// How a local transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Committed at the first attempt.
    Committed,
    /// Aborted after it was ordered, replayed and committed.
    Replayed,
    /// Failed certification, at once or in its replay.
    CertificationFailed,
    /// Aborted before it was ordered; no other node saw it.
    Aborted,
    /// A call gave an answer that a healthy node does not give.
    Refused { call: Call, status: Status },
}

/// The end of a transaction and the time from the start of `certify` to the end of `release`.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub end: End,
    pub latency: Duration,
}

/// What `recv` gets as its context; the callbacks of that thread get it back.
struct RecvContext {
    host: *const Host,
    /// The handle of the transaction that is being replayed, else null.
    original: *const wsrep_ws_handle_t,
    mark: *const CallMark,
}

/// A loaded provider and the server it believes to run in.
pub struct Host {
    table: *mut wsrep_t,
    /// Unloaded by `close` only: a provider that was not freed must stay.
    library: ManuallyDrop<Library>,
    events: Arc<dyn Events>,
    about: About,
}

/// How the provider names itself.
#[derive(Clone, Debug)]
pub struct About {
    pub name: String,
    pub version: String,
    pub vendor: String,
}

// SAFETY: `table` is written by `load`, `init` and `close` only, which run before the
// first and after the last other thread uses it; the interface allows its functions to
// be called from any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// The C functions of the table, as offsets: version, functions, three names, free.
const REQUIRED_FIELDS: std::ops::RangeInclusive<usize> = 0..=336 / 8;

impl Host {
    /// Loads the library as the server does. The box must not be moved out of: the
    /// provider holds its address.
    pub fn load(path: &Path, events: Arc<dyn Events>) -> Result<Box<Host>, HostError> {
        let failed = |source| HostError::Load {
            path: path.to_owned(),
            source,
        };
        // SAFETY: loading runs the library's initialisers; the user named the library.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        let mut table = Box::new(MaybeUninit::<wsrep_t>::zeroed());
        let code = {
            // SAFETY: `wsrep_loader` has this type in every provider (contract A.1).
            let loader = unsafe {
                library.get::<unsafe extern "C" fn(*mut wsrep_t) -> c_int>(b"wsrep_loader\0")
            }
            .map_err(failed)?;
            // SAFETY: the table is as large as the interface says and writable.
            unsafe { loader(table.as_mut_ptr()) }
        };
        if code != 0 {
            return Err(HostError::Loader {
                path: path.to_owned(),
                code,
            });
        }
        for field in REQUIRED_FIELDS {
            // SAFETY: the table was zeroed and holds 45 pointer-sized words; `field` is below.
            let word = unsafe { *table.as_ptr().cast::<usize>().add(field) };
            if word == 0 {
                return Err(HostError::MissingField {
                    path: path.to_owned(),
                    offset: field * 8,
                });
            }
        }
        let table = Box::into_raw(table).cast::<wsrep_t>();
        // SAFETY: every pointer of the table that must not be null was checked above, and
        // the strings live as long as the library.
        let (version, about) = unsafe {
            (
                text((*table).version),
                About {
                    name: text((*table).provider_name),
                    version: text((*table).provider_version),
                    vendor: text((*table).provider_vendor),
                },
            )
        };
        let host = Box::new(Host {
            table,
            library: ManuallyDrop::new(library),
            events,
            about,
        });
        if version != "26" {
            return Err(HostError::Version {
                path: path.to_owned(),
                found: version,
            });
        }
        Ok(host)
    }

    /// How the provider names itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Hands the provider its configuration and the callbacks.
    pub fn init(&self, config: &NodeConfig) -> Result<(), HostError> {
        let name = c_string(&config.name)?;
        let address = c_string(&config.address)?;
        let data_dir = c_string(&format!("{}/", config.data_dir.display()))?;
        let options = c_string(&config.options)?;
        let state_id = Gtid::UNDEFINED;
        let args = wsrep_init_args {
            app_ctx: ptr::from_ref(self).cast_mut().cast(),
            node_name: name.as_ptr(),
            node_address: address.as_ptr(),
            node_incoming: address.as_ptr(),
            data_dir: data_dir.as_ptr(),
            options: options.as_ptr(),
            proto_ver: PROTO_VER,
            state_id: &raw const state_id,
            state: ptr::null(),
            logger_cb: Some(logger_cb),
            connected_cb: Some(connected_cb),
            view_cb: Some(view_cb),
            sst_request_cb: Some(sst_request_cb),
            encrypt_cb: None,
            apply_cb: Some(apply_cb),
            unordered_cb: None,
            sst_donate_cb: Some(sst_donate_cb),
            synced_cb: Some(synced_cb),
        };
        // The logger has no context argument, so it finds the host here.
        LOGGER.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
        // SAFETY: all strings outlive the call and the provider copies them.
        let status = unsafe { ((*self.table).init)(self.table, &raw const args) };
        ok("init", status)?;
        // SAFETY: the provider is initialised.
        unsafe { ((*self.table).capabilities)(self.table) };
        Ok(())
    }

    /// Joins the group, or founds it.
    pub fn connect(&self, cluster: &str, url: &str, bootstrap: bool) -> Result<(), HostError> {
        let cluster = c_string(cluster)?;
        let url = c_string(url)?;
        // SAFETY: the strings outlive the call and the provider copies them.
        let status = unsafe {
            ((*self.table).connect)(
                self.table,
                cluster.as_ptr(),
                url.as_ptr(),
                c"".as_ptr(),
                c_bool::from(bootstrap),
            )
        };
        ok("connect", status)
    }

    /// Lends the calling thread to the provider until the node has left the group.
    pub fn recv(&self, mark: &CallMark) -> Status {
        let context = RecvContext {
            host: self,
            original: ptr::null(),
            mark,
        };
        // SAFETY: the context lives on this stack until `recv` returns; the provider uses
        // it only for callbacks it makes from inside this call.
        unsafe { ((*self.table).recv)(self.table, ptr::from_ref(&context).cast_mut().cast()) }
    }

    /// The seqno up to which everything is released.
    pub fn last_committed(&self) -> Result<i64, HostError> {
        let mut gtid = Gtid::UNDEFINED;
        // SAFETY: the provider writes one gtid.
        let status = unsafe { ((*self.table).last_committed_id)(self.table, &raw mut gtid) };
        ok("last_committed_id", status)?;
        Ok(gtid.seqno)
    }

    /// The options in force, `key = value; ...`.
    pub fn options(&self) -> String {
        // SAFETY: the provider gives a string of C `malloc`, or NULL.
        unsafe {
            let options = ((*self.table).options_get)(self.table);
            if options.is_null() {
                return String::new();
            }
            let copy = text(options);
            libc::free(options.cast());
            copy
        }
    }

    /// The status variables, values as text.
    pub fn stats(&self) -> Vec<(String, String)> {
        let mut stats = Vec::new();
        // SAFETY: the array ends with an entry without name (contract B.12) and stays
        // valid until `stats_free`; the type says which member of the union is set.
        unsafe {
            let array = ((*self.table).stats_get)(self.table);
            if array.is_null() {
                return stats;
            }
            let mut var = array.cast_const();
            while !(*var).name.is_null() {
                let value = match (*var).var_type {
                    WSREP_VAR_STRING if (*var).value.string.is_null() => String::new(),
                    WSREP_VAR_STRING => text((*var).value.string),
                    WSREP_VAR_INT64 => (*var).value.int64.to_string(),
                    _ => (*var).value.double.to_string(),
                };
                stats.push((text((*var).name), value));
                var = var.add(1);
            }
            ((*self.table).stats_free)(self.table, array);
        }
        stats
    }

    /// Runs a whole local transaction on the calling thread.
    pub fn transaction(&self, transaction: &Transaction<'_>, mark: &CallMark) -> Outcome {
        let mut local = Local {
            host: self,
            handle: wsrep_ws_handle_t {
                trx_id: transaction.trx,
                opaque: ptr::null_mut(),
            },
            meta: TrxMeta::UNDEFINED,
            payload: transaction.payload,
            abortable: transaction.abortable,
            mark,
        };
        let appended = local.append(transaction);
        let started = Instant::now();
        let end = match appended {
            Ok(()) => local.commit(transaction.conn),
            Err(end) => end,
        };
        let end = local.release(end);
        mark.set(Call::None);
        Outcome {
            end,
            latency: started.elapsed(),
        }
    }

    /// Leaves the group; returns once the provider says so. The `recv` calls end.
    pub fn disconnect(&self) -> Result<(), HostError> {
        // SAFETY: the provider is initialised.
        ok("disconnect", unsafe {
            ((*self.table).disconnect)(self.table)
        })
    }

    /// Frees the provider twice, as the server does, and unloads it. No other thread may
    /// use the host any more, which owning it proves.
    #[expect(
        clippy::boxed_local,
        reason = "the provider calls back to this address"
    )]
    pub fn close(mut self: Box<Self>) {
        // SAFETY: nobody else can call the provider; `free` may be called twice (contract A.1).
        unsafe {
            ((*self.table).free)(self.table);
            ((*self.table).free)(self.table);
        }
        LOGGER.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: done once, as `self` ends here; nothing of the library is in use any more.
        unsafe { ManuallyDrop::drop(&mut self.library) };
        // SAFETY: allocated by `load` as a box of this layout; the library that used it is gone.
        drop(unsafe { Box::from_raw(self.table.cast::<MaybeUninit<wsrep_t>>()) });
    }

    fn commit_order_enter(&self, handle: *const wsrep_ws_handle_t, meta: &TrxMeta) -> Status {
        // SAFETY: callers pass a handle the provider gave them or filled.
        unsafe { ((*self.table).commit_order_enter)(self.table, handle, meta) }
    }

    fn commit_order_leave(&self, handle: *const wsrep_ws_handle_t, meta: &TrxMeta) -> Status {
        let no_error = wsrep_buf_t {
            ptr: ptr::null(),
            len: 0,
        };
        // SAFETY: as for enter; the empty buffer says that nothing failed here.
        unsafe { ((*self.table).commit_order_leave)(self.table, handle, meta, &raw const no_error) }
    }

    /// Applies one remote write set, or the replay of a local one.
    fn apply(
        &self,
        handle: *const wsrep_ws_handle_t,
        flags: u32,
        payload: &[u8],
        meta: &TrxMeta,
        mark: &CallMark,
        replay: bool,
    ) -> wsrep_cb_status_t {
        let passed = flags & flags::ROLLBACK == 0;
        if passed
            && !replay
            && let Some(victim) = self.events.victim(payload)
        {
            mark.set(Call::Abort);
            let mut victim_seqno = -1;
            // SAFETY: any transaction id may be named, also one that is gone.
            unsafe {
                ((*self.table).abort_certification)(
                    self.table,
                    meta.gtid.seqno,
                    victim,
                    &raw mut victim_seqno,
                )
            };
        }
        mark.set(Call::Enter);
        let status = self.commit_order_enter(handle, meta);
        if status != Status::Ok {
            self.events.violation(format!(
                "commit_order_enter of remote write set {} answered {status:?}",
                meta.gtid.seqno
            ));
            return CB_FAILURE;
        }
        self.events.ordered(ordered(meta, passed, payload));
        mark.set(Call::Leave);
        let status = self.commit_order_leave(handle, meta);
        mark.set(Call::None);
        if status != Status::Ok {
            self.events.violation(format!(
                "commit_order_leave of remote write set {} answered {status:?}",
                meta.gtid.seqno
            ));
            return CB_FAILURE;
        }
        CB_SUCCESS
    }
}

/// A local transaction in progress. The handle must stay where it is: a replay
/// refers to it by address.
struct Local<'a> {
    host: &'a Host,
    handle: wsrep_ws_handle_t,
    meta: TrxMeta,
    payload: &'a [u8],
    abortable: bool,
    mark: &'a CallMark,
}

impl Local<'_> {
    fn append(&mut self, transaction: &Transaction<'_>) -> Result<(), End> {
        self.mark.set(Call::Append);
        let table = self.host.table;
        for row in transaction.rows {
            let parts = [buffer(b"bench"), buffer(b"t"), buffer(row)];
            let key = wsrep_key_t {
                key_parts: parts.as_ptr(),
                key_parts_num: parts.len(),
            };
            // SAFETY: key and parts outlive the call; copy = 1 makes the provider copy them.
            let status = unsafe {
                ((*table).append_key)(
                    table,
                    &raw mut self.handle,
                    &raw const key,
                    1,
                    KEY_EXCLUSIVE,
                    1,
                )
            };
            refused(Call::Append, status)?;
        }
        let data = buffer(transaction.payload);
        // SAFETY: as for the key.
        let status = unsafe {
            ((*table).append_data)(
                table,
                &raw mut self.handle,
                &raw const data,
                1,
                DATA_ORDERED,
                1,
            )
        };
        refused(Call::Append, status)
    }

    /// From `certify` to the end of the commit order.
    fn commit(&mut self, conn: u64) -> End {
        self.mark.set(Call::Certify);
        let table = self.host.table;
        let whole = flags::TRX_START | flags::TRX_END;
        // SAFETY: handle and metadata are ours and outlive the call.
        let status = unsafe {
            ((*table).certify)(table, conn, &raw mut self.handle, whole, &raw mut self.meta)
        };
        match status {
            Status::Ok => self.ordered(),
            Status::BfAbort => self.replay(),
            Status::TrxFail if !self.meta.gtid.is_undefined() => self.pass_failed(),
            // Aborted before it got a place: CONN_FAIL is also the answer of a node without
            // a group, so it counts as an abort only where aborts happen.
            Status::TrxFail | Status::ConnFail if self.abortable => End::Aborted,
            status => End::Refused {
                call: Call::Certify,
                status,
            },
        }
    }

    fn ordered(&mut self) -> End {
        self.mark.set(Call::Enter);
        match self
            .host
            .commit_order_enter(&raw const self.handle, &self.meta)
        {
            Status::Ok => {
                let here = ordered(&self.meta, true, self.payload);
                self.host.events.ordered(here);
                self.leave(End::Committed)
            }
            Status::BfAbort => self.replay(),
            status => End::Refused {
                call: Call::Enter,
                status,
            },
        }
    }

    fn leave(&mut self, end: End) -> End {
        self.mark.set(Call::Leave);
        match self
            .host
            .commit_order_leave(&raw const self.handle, &self.meta)
        {
            Status::Ok => end,
            status => End::Refused {
                call: Call::Leave,
                status,
            },
        }
    }

    /// Gives the seqno of a failed transaction its place in the commit order.
    fn pass_failed(&mut self) -> End {
        self.mark.set(Call::Enter);
        let status = self
            .host
            .commit_order_enter(&raw const self.handle, &self.meta);
        if let Err(end) = refused(Call::Enter, status) {
            return end;
        }
        self.mark.set(Call::SyncWait);
        let mut upto = Gtid {
            uuid: self.meta.gtid.uuid,
            seqno: self.meta.gtid.seqno - 1,
        };
        let table = self.host.table;
        // SAFETY: the position is ours; the last argument may be NULL (contract B.10).
        let status =
            unsafe { ((*table).sync_wait)(table, &raw mut upto, c_int::MAX, ptr::null_mut()) };
        if let Err(end) = refused(Call::SyncWait, status) {
            return end;
        }
        let here = ordered(&self.meta, false, self.payload);
        self.host.events.ordered(here);
        self.leave(End::CertificationFailed)
    }

    fn replay(&mut self) -> End {
        self.mark.set(Call::Replay);
        let context = RecvContext {
            host: self.host,
            original: &raw const self.handle,
            mark: self.mark,
        };
        let table = self.host.table;
        // SAFETY: handle and context outlive the call; the provider calls `apply_cb` on
        // this thread with this context.
        let status = unsafe {
            ((*table).replay_trx)(
                table,
                &raw const self.handle,
                ptr::from_ref(&context).cast_mut().cast(),
            )
        };
        match status {
            Status::Ok => End::Replayed,
            Status::TrxFail => self.pass_failed(),
            status => End::Refused {
                call: Call::Replay,
                status,
            },
        }
    }

    fn release(&mut self, end: End) -> End {
        self.mark.set(Call::Release);
        let table = self.host.table;
        // SAFETY: the handle is ours; the provider drops what it points to.
        match unsafe { ((*table).release)(table, &raw mut self.handle) } {
            Status::Ok => end,
            status => End::Refused {
                call: Call::Release,
                status,
            },
        }
    }
}

// ---------------------------------------------------------------- callbacks

/// The host the logger writes to: its callback has no context argument.
static LOGGER: AtomicPtr<Host> = AtomicPtr::new(ptr::null_mut());

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

unsafe extern "C-unwind" fn logger_cb(level: u32, line: *const c_char) {
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

unsafe extern "C-unwind" fn connected_cb(
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

unsafe extern "C-unwind" fn view_cb(
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

unsafe extern "C-unwind" fn sst_request_cb(
    _app: *mut c_void,
    request: *mut *mut c_void,
    len: *mut usize,
) -> wsrep_cb_status_t {
    border("sst_request_cb", || {
        // SAFETY: the provider frees the request with C `free`; both results are writable.
        unsafe {
            let copy = libc::malloc(TRIVIAL_REQUEST.len());
            if copy.is_null() {
                return CB_FAILURE;
            }
            ptr::copy_nonoverlapping(
                TRIVIAL_REQUEST.as_ptr(),
                copy.cast::<u8>(),
                TRIVIAL_REQUEST.len(),
            );
            *request = copy;
            *len = TRIVIAL_REQUEST.len();
        }
        CB_SUCCESS
    })
}

unsafe extern "C-unwind" fn sst_donate_cb(
    app: *mut c_void,
    _recv: *mut c_void,
    _request: *const wsrep_buf_t,
    gtid: *const wsrep_gtid_t,
    _state: *const wsrep_buf_t,
    bypass: c_bool,
) -> wsrep_cb_status_t {
    border("sst_donate_cb", || {
        // SAFETY: `app` is what `init` was given, the position is valid during the call.
        let (host, gtid) = unsafe { (&*app.cast::<Host>(), *gtid) };
        host.events.violation(format!(
            "a donation was asked for at {gtid} (bypass {bypass}), though nobody needs state"
        ));
        CB_FAILURE
    })
}

unsafe extern "C-unwind" fn synced_cb(app: *mut c_void) -> wsrep_cb_status_t {
    border("synced_cb", || {
        // SAFETY: `app` is what `init` was given.
        unsafe { &*app.cast::<Host>() }.events.synced();
        CB_SUCCESS
    })
}

unsafe extern "C-unwind" fn apply_cb(
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

// ---------------------------------------------------------------- small things

/// CPU time (user and system) this process has used, and its peak resident bytes.
pub fn usage() -> (Duration, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure; zeroes are a valid value should it fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs())
            + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    (
        time(usage.ru_utime) + time(usage.ru_stime),
        usage.ru_maxrss.unsigned_abs() * 1024,
    )
}

/// Ends the process without running the provider's exit handlers, which could wait
/// for threads that hang.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no conditions.
    unsafe { libc::_exit(code) }
}

/// A copy of a C string.
///
/// # Safety
/// The pointer is not null and the string ends with a zero byte.
unsafe fn text(string: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
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

fn ordered<'a>(meta: &TrxMeta, passed: bool, payload: &'a [u8]) -> Ordered<'a> {
    Ordered {
        seqno: meta.gtid.seqno,
        node: meta.stid.node.0,
        trx: meta.stid.trx,
        passed,
        payload,
    }
}

fn buffer(bytes: &[u8]) -> wsrep_buf_t {
    wsrep_buf_t {
        ptr: bytes.as_ptr().cast(),
        len: bytes.len(),
    }
}

fn c_string(text: &str) -> Result<CString, HostError> {
    CString::new(text).map_err(|_| HostError::ZeroByte(text.to_owned()))
}

fn ok(call: &'static str, status: Status) -> Result<(), HostError> {
    match status {
        Status::Ok => Ok(()),
        status => Err(HostError::Call { call, status }),
    }
}

fn refused(call: Call, status: Status) -> Result<(), End> {
    match status {
        Status::Ok => Ok(()),
        status => Err(End::Refused { call, status }),
    }
}
