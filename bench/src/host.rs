//! Loads a provider and plays the server for it. `unsafe` is here and in the two
//! modules below, [`callbacks`] and [`local`], and nowhere else in this program.
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

mod callbacks;
mod local;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, Status, TrxMeta, Uuid, flags};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

/// The highest application protocol version MariaDB 10.11 speaks.
const PROTO_VER: c_int = 4;
/// Callback result "failure".
const CB_FAILURE: wsrep_cb_status_t = 1;
/// How often and how long a joiner looks for the position of its donor.
const SST_RETRY: Duration = Duration::from_millis(10);
const SST_LIMIT: Duration = Duration::from_secs(30);

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
    /// The hot row a write set with this payload changes.
    fn hot_row(&self, payload: &[u8]) -> Option<&HotRow>;
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
    /// The row it shares with others, so that remote write sets may abort it.
    pub hot_row: Option<&'a HotRow>,
}

/// A row that many transactions change. It holds the local transaction that would have
/// its row lock in a database; the mutex stands for the lock the server holds on a
/// transaction while it aborts, orders or releases it.
#[derive(Debug, Default)]
pub struct HotRow(Mutex<Option<u64>>);

impl HotRow {
    fn lock(&self) -> MutexGuard<'_, Option<u64>> {
        lock(&self.0)
    }

    /// A later transaction takes the row over; the earlier one is then safe.
    fn enter(&self, trx: u64) {
        *self.lock() = Some(trx);
    }

    /// Makes a call for a transaction during which and after which it is not aborted.
    fn leave<T>(row: Option<&HotRow>, trx: u64, call: impl FnOnce() -> T) -> T {
        let Some(row) = row else { return call() };
        let mut holder = row.lock();
        let answer = call();
        holder.take_if(|holder| *holder == trx);
        answer
    }
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
    /// Where a donor leaves the position of the state this node asked for.
    transfer_file: OnceLock<PathBuf>,
    /// The threads of state transfers.
    transfers: Mutex<Vec<JoinHandle<()>>>,
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
            transfer_file: OnceLock::new(),
            transfers: Mutex::default(),
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
            logger_cb: Some(callbacks::logger_cb),
            connected_cb: Some(callbacks::connected_cb),
            view_cb: Some(callbacks::view_cb),
            sst_request_cb: Some(callbacks::sst_request_cb),
            encrypt_cb: None,
            apply_cb: Some(callbacks::apply_cb),
            unordered_cb: None,
            sst_donate_cb: Some(callbacks::sst_donate_cb),
            synced_cb: Some(callbacks::synced_cb),
        };
        self.transfer_file
            .get_or_init(|| config.data_dir.join("state-transfer"));
        // The logger has no context argument, so it finds the host here.
        callbacks::LOGGER.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
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
        local::run(self, transaction, mark)
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
        for transfer in lock(&self.transfers).drain(..) {
            // A panic in it has been printed, and the node was never synced then.
            let _ = transfer.join();
        }
        // SAFETY: nobody else can call the provider; `free` may be called twice (contract A.1).
        unsafe {
            ((*self.table).free)(self.table);
            ((*self.table).free)(self.table);
        }
        callbacks::LOGGER.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: done once, as `self` ends here; nothing of the library is in use any more.
        unsafe { ManuallyDrop::drop(&mut self.library) };
        // SAFETY: allocated by `load` as a box of this layout; the library that used it is gone.
        drop(unsafe { Box::from_raw(self.table.cast::<MaybeUninit<wsrep_t>>()) });
    }

    /// Starts the server's side of a state transfer on a thread of its own, as the server
    /// does with its script.
    fn transfer(&self, name: &str, run: impl FnOnce(&Host) + Send + 'static) -> wsrep_cb_status_t {
        struct Shared(*const Host);
        // SAFETY: `Host` may be used from any thread.
        unsafe impl Send for Shared {}
        let shared = Shared(self);
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let shared = shared;
            // SAFETY: `close` joins this thread before the host goes, and without
            // `close` the host is never freed while callbacks can come.
            run(unsafe { &*shared.0 });
        });
        match started {
            Ok(thread) => {
                lock(&self.transfers).push(thread);
                CB_SUCCESS
            }
            Err(error) => {
                self.events
                    .violation(format!("the thread {name} cannot be started: {error}"));
                CB_FAILURE
            }
        }
    }

    /// The donor's side: hands its position over, then says so. There is nothing to copy.
    fn donate(&self, file: &Path, gtid: Gtid) {
        let mut position = gtid.uuid.0.to_vec();
        position.extend(gtid.seqno.to_le_bytes());
        // Renamed into place, so that the joiner never reads half of it.
        let draft = file.with_extension("draft");
        let written = fs::write(&draft, position).and_then(|()| fs::rename(&draft, file));
        if let Err(error) = written {
            self.events.violation(format!(
                "the donor could not write {}: {error}",
                file.display()
            ));
        }
        // SAFETY: the position outlives the call.
        let status = unsafe { ((*self.table).sst_sent)(self.table, &raw const gtid, 0) };
        if status != Status::Ok {
            self.events
                .violation(format!("sst_sent at {gtid} answered {status:?}"));
        }
    }

    /// The joiner's side: waits for the position, then says that the state is there.
    fn receive(&self) {
        let Some(file) = self.transfer_file.get() else {
            return;
        };
        let deadline = Instant::now() + SST_LIMIT;
        let mut last = "no donor has handed over its position".to_owned();
        while Instant::now() < deadline {
            if let Some(gtid) = read_position(file) {
                // SAFETY: the position outlives the call; the state may be NULL.
                let status = unsafe {
                    ((*self.table).sst_received)(self.table, &raw const gtid, ptr::null(), 0)
                };
                if status == Status::Ok {
                    return;
                }
                last = format!("sst_received at {gtid} answers {status:?}");
            }
            thread::sleep(SST_RETRY);
        }
        self.events
            .violation(format!("after {} s {last}", SST_LIMIT.as_secs()));
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

    /// Aborts the local transaction that holds a row a remote write set needs.
    fn abort_holder(&self, row: &HotRow, bf_seqno: i64) {
        // Held during the call, as the server holds the victim's lock.
        let mut holder = row.lock();
        let Some(victim) = *holder else { return };
        let mut victim_seqno = -1;
        // SAFETY: any transaction id may be named, also one the provider has not seen yet.
        let status = unsafe {
            ((*self.table).abort_certification)(self.table, bf_seqno, victim, &raw mut victim_seqno)
        };
        if status == Status::Ok {
            // It is told once; from now on it is on its way to its end or its replay.
            *holder = None;
        }
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
            && let Some(row) = self.events.hot_row(payload)
        {
            mark.set(Call::Abort);
            self.abort_holder(row, meta.gtid.seqno);
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

// ---------------------------------------------------------------- small things

/// What this process has used since its start.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// Peak resident memory, bytes.
    pub rss_max_bytes: u64,
    /// Context switches, voluntary and not.
    pub switches: u64,
}

/// Asks the kernel what this process has used.
pub fn usage() -> Usage {
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
    Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        rss_max_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
        switches: usage.ru_nvcsw.unsigned_abs() + usage.ru_nivcsw.unsigned_abs(),
    }
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

fn ordered<'a>(meta: &TrxMeta, passed: bool, payload: &'a [u8]) -> Ordered<'a> {
    Ordered {
        seqno: meta.gtid.seqno,
        node: meta.stid.node.0,
        trx: meta.stid.trx,
        passed,
        payload,
    }
}

/// What a donor left: 16 bytes of uuid, 8 of seqno.
fn read_position(file: &Path) -> Option<Gtid> {
    let position = fs::read(file).ok()?;
    let (uuid, seqno) = position.split_first_chunk::<16>()?;
    Some(Gtid {
        uuid: Uuid(*uuid),
        seqno: i64::from_le_bytes(seqno.try_into().ok()?),
    })
}

/// A panic in a callback ends the process, so a poisoned lock is no reason to stop here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
