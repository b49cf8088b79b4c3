//! The other side of the border: loads a provider's library and plays the server for it.
//!
//! Behind the feature `host`, which no provider needs: `libdromon.so`, built alone, has
//! nothing of this module in it. Programs that measure or try providers use it.
//!
//! ```text
//!   Library::load ──> init ──> Host ── connect ── ... ── disconnect ── close
//!                               │
//!      writer threads           ├─ transaction   append_key, append_data, certify,
//!                               │                commit_order_enter, leave, release
//!      applier threads          └─ recv          connected_cb, view_cb, synced_cb,
//!                                                apply_cb: commit_order_enter, leave
//!                                   │
//!      Events  <────────────────────┘            what the provider told the server
//! ```
//!
//! # The order of calls
//!
//! 1. [`Library::load`], then [`Library::init`], which gives the [`Host`].
//! 2. [`Host::connect`].
//! 3. [`Host::recv`] on one thread, and on more once the node is synced, as a server does
//!    with its appliers. Each call lasts until the node has left the group.
//! 4. [`Host::transaction`] on any number of other threads, once the node is synced.
//! 5. [`Host::disconnect`], when no transaction runs; the `recv` calls return.
//! 6. [`Host::close`], for which the host must be owned: no other call can be under way.
//!
//! A host that is dropped without `close` leaves the provider running, and all it may
//! still use in memory.
//!
//! State transfers are played too: request, donor, `sst_sent` and `sst_received` are real,
//! only that nothing is copied. The donor leaves its position in a file in the joiner's
//! directory, so the nodes must share a file system; and as it writes where the request says,
//! they must trust each other.
//!
//! # What is sound, and what the caller vouches for
//!
//! Loading a library runs foreign code, and nothing can be checked about that code. So
//! [`Library::load`] rests on a promise: **the named file is a provider that keeps to the
//! interface, version 26.** It is the promise that a database administrator makes with
//! `wsrep_provider`, in the same process and with the same consequences. It is given by
//! choosing the file; that the function is not marked `unsafe` is a concession to callers
//! without `unsafe`, as with [`MappedFile`](crate::MappedFile). A program must not take the
//! path from where somebody else can write.
//!
//! With such a library nothing that safe code does with this module is undefined:
//!
//! * nothing can be called before `init`, `init` comes once, and nothing after `close`:
//!   the types say so;
//! * what the provider keeps an address of (its table, the context of its callbacks) stays
//!   where it is until `close` has freed the provider, and for ever without `close`;
//! * a process has one provider at a time, as in a server: its logger has no context;
//! * transaction ids are given out here, and handles never leave this module, so none is
//!   used twice or with a pointer that is not the provider's;
//! * an answer that is none of the interface's statuses is reported and counts as
//!   [`Status::NodeFail`]; text that is no UTF-8 is replaced;
//! * no panic crosses into the provider: one in [`Events`] ends the process, if the
//!   provider called.
//!
//! What can go wrong is waiting: a provider that hangs hangs its caller. [`CallMark`] shows
//! where.

mod callbacks;
mod calls;
mod library;
mod transactions;
mod transfer;

use std::ffi::c_int;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libloading::os::unix::Library as Object;
use thiserror::Error;

use crate::abi::wsrep_t;
use crate::types::{Seqno, Status, Uuid};

pub use library::{About, Library, Loader};
pub use transactions::{Call, CallMark, End, HotRow, Outcome, Transaction};

/// Why a provider could not be used.
#[derive(Debug, Error)]
pub enum HostError {
    /// The file is not there, or is no library that fits into this process.
    #[error("The provider {} cannot be loaded: {source}.", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the system's loader says.
        source: libloading::Error,
    },
    /// A library, but not a provider.
    #[error("The library {} has no function wsrep_loader, so it is no provider.", path.display())]
    NoLoader {
        /// The file.
        path: PathBuf,
    },
    /// The loader function of the library answered an error.
    #[error("The loader of the provider {} answered error {code}.", path.display())]
    Loader {
        /// The file.
        path: PathBuf,
        /// Its answer, an `errno` value.
        code: c_int,
    },
    /// A function the server needs is NULL.
    #[error("The provider {} left the field at offset {offset} of its table empty.", path.display())]
    MissingField {
        /// The file.
        path: PathBuf,
        /// Where the field is in `wsrep_t`, bytes.
        offset: usize,
    },
    /// Another interface version.
    #[error("The provider {} speaks interface version {found}, this program 26.", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What its table says.
        found: String,
    },
    /// A string with a zero byte in it.
    #[error("The argument '{0}' holds a zero byte and cannot be handed to the provider.")]
    ZeroByte(String),
    /// Another provider was initialised and not closed.
    #[error("A provider runs in this process already; there can be one at a time.")]
    Busy,
    /// A call was not answered with OK.
    #[error("The provider answered {status:?} to {call}; its own log lines say why.")]
    Call {
        /// The C function.
        call: &'static str,
        /// Its answer.
        status: Status,
    },
}

/// How a node is configured.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// `wsrep_node_name`.
    pub name: String,
    /// `wsrep_node_address`, host and port of the group communication.
    pub address: String,
    /// Where the provider may keep files; an existing directory. A donor leaves the
    /// position of its state there too.
    pub data_dir: PathBuf,
    /// `wsrep_provider_options`.
    pub options: String,
}

/// What a view says, as far as anyone here asks.
#[derive(Clone, Copy, Debug)]
pub struct ViewSummary {
    /// Its place in the total order.
    pub seqno: Seqno,
    /// Whether this is a view of the primary component.
    pub primary: bool,
    /// Number of members; 0 in the final view.
    pub members: i32,
}

/// A write set while it holds its place in the commit order.
#[derive(Clone, Copy, Debug)]
pub struct Ordered<'a> {
    /// Its place in the total order.
    pub seqno: Seqno,
    /// The node it comes from.
    pub node: Uuid,
    /// Its transaction there.
    pub trx: u64,
    /// Whether it passed certification.
    pub passed: bool,
    /// The data appended to it; may be empty for one that failed.
    pub payload: &'a [u8],
}

/// What the provider tells its server. Called from any thread, several at a time.
///
/// A panic ends the process where the provider called, so implementations should have
/// none. They must not call the host: the provider waits for them.
pub trait Events: Send + Sync {
    /// A line for the error log; level 0 is fatal, 1 an error, 4 debug. Other numbers
    /// are handed on as they come.
    fn log(&self, level: u32, line: &str);
    /// The provider joined a group.
    fn connected(&self, view: ViewSummary);
    /// The membership changed; everything ordered before has been released.
    fn view(&self, view: ViewSummary);
    /// The node has caught up with the group.
    fn synced(&self);
    /// Called between `commit_order_enter` and `commit_order_leave`, for local and remote
    /// write sets alike; so never twice at a time if the provider is right.
    fn ordered(&self, write_set: Ordered<'_>);
    /// The hot row that a remote write set with this payload changes. The local transaction
    /// that has it is aborted.
    fn hot_row(&self, payload: &[u8]) -> Option<&HotRow>;
    /// Something that must not happen with a correct provider.
    fn violation(&self, what: String);
}

/// What host, callbacks and transfers share. The provider holds its address.
struct Inner {
    /// Filled by the loader; written by the provider alone from then on.
    table: *mut wsrep_t,
    /// None if the provider is linked into this program. Unloaded by `close` only.
    object: ManuallyDrop<Option<Object>>,
    events: Arc<dyn Events>,
    /// Where a donor leaves the position of the state this node asked for.
    transfer_file: PathBuf,
    /// The threads of state transfers; `None` once the host closes.
    transfers: Mutex<Option<Vec<transfer::Thread>>>,
    next_trx: AtomicU64,
    /// For threads that must keep it.
    me: Weak<Inner>,
}

// SAFETY: `table` is the only field that is not Send and Sync by itself. It is a plain
// address here: the provider alone reads and writes behind it, but for the functions, which
// do not change after loading, and the interface lets any thread call them. `Library`, which
// has the table before, owns it alone.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An initialised provider and the server it believes to run in.
///
/// All calls but [`close`](Host::close) may be made from any thread at any time; which of
/// them a provider answers well at a time is said [above](self#the-order-of-calls).
pub struct Host {
    inner: Arc<Inner>,
    about: About,
}

impl Host {
    /// How the provider names itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Joins the group `cluster` by the addresses in `url` (`gcomm://host:port,...`), or
    /// founds it. Returns before the node is synced: [`recv`](Host::recv) does the rest.
    ///
    /// # Errors
    ///
    /// [`HostError::ZeroByte`]; [`HostError::Call`] if the provider cannot join.
    pub fn connect(&self, cluster: &str, url: &str, bootstrap: bool) -> Result<(), HostError> {
        self.inner.connect(cluster, url, bootstrap)
    }

    /// Lends the calling thread to the provider until the node has left the group. The mark
    /// says in which call the thread is while it applies.
    pub fn recv(&self, mark: &CallMark) -> Status {
        self.inner.recv(&ThreadContext {
            host: &self.inner,
            original: None,
            mark,
        })
    }

    /// The seqno up to which everything is released.
    ///
    /// # Errors
    ///
    /// [`HostError::Call`] if the provider has no position.
    pub fn last_committed(&self) -> Result<Seqno, HostError> {
        self.inner.last_committed_id().map(|gtid| gtid.seqno)
    }

    /// The options in force, `key = value; ...`.
    pub fn options(&self) -> String {
        self.inner.options_get()
    }

    /// The status variables, in the provider's order, values as text.
    pub fn stats(&self) -> Vec<(String, String)> {
        self.inner.stats_get()
    }

    /// Runs a whole local transaction on the calling thread, from its first key to its
    /// release, and says how it ended. The mark says in which call it is meanwhile.
    ///
    /// A panic in [`Events::ordered`] leaves the transaction in the commit order, where
    /// all later ones wait behind it.
    pub fn transaction(&self, transaction: &Transaction<'_>, mark: &CallMark) -> Outcome {
        let trx = self.inner.next_trx.fetch_add(1, Ordering::Relaxed);
        transactions::run(&self.inner, trx, transaction, mark)
    }

    /// Leaves the group; returns once the provider says so. The `recv` calls end.
    ///
    /// # Errors
    ///
    /// [`HostError::Call`] if the provider refuses.
    pub fn disconnect(&self) -> Result<(), HostError> {
        ok("disconnect", self.inner.disconnect())
    }

    /// Frees the provider, twice as the server does, and unloads it. Waits for what is left
    /// of a state transfer, at most half a minute. Leave the group before: what a provider
    /// does that is freed while connected is its own affair.
    pub fn close(self) {
        let transfers = lock(&self.inner.transfers).take();
        for transfer in transfers.into_iter().flatten() {
            // A panic in it has been printed, and the node was never synced then.
            let _ = transfer.join();
        }
        // SAFETY: this is the only host of the table and it is owned, so no thread is in a
        // call: those of `recv` and `transaction` borrow it, those of transfers have ended
        // and no more are started.
        unsafe { self.inner.free() };
        *lock(&callbacks::LOGGER) = None;
        let Some(inner) = Arc::into_inner(self.inner) else {
            // A thread of a transfer that could not be joined; better kept than gone.
            return;
        };
        let table = inner.table;
        drop(ManuallyDrop::into_inner(inner.object));
        // SAFETY: made by `Library` as a box of this type; the library that used it is gone.
        drop(unsafe { Box::from_raw(table.cast::<MaybeUninit<wsrep_t>>()) });
    }
}

/// What `recv` and `replay_trx` get as their context; the callbacks they make get it back.
struct ThreadContext<'a> {
    host: &'a Inner,
    /// The handle of the transaction that is being replayed.
    original: Option<&'a calls::Handle>,
    mark: &'a CallMark,
}

/// A panic in a callback ends the process, and the others leave the data whole, so a
/// poisoned lock is no reason to stop here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ok(call: &'static str, status: Status) -> Result<(), HostError> {
    match status {
        Status::Ok => Ok(()),
        status => Err(HostError::Call { call, status }),
    }
}
