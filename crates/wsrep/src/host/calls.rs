//! The functions of the provider's table, one method for each that is used here: safe
//! arguments in, checked answers out. All calls of a provider are in this file.

use std::ffi::{CString, OsStr, c_int};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::ptr;
use std::sync::Arc;

use super::library::text;
use super::{HostError, Inner, NodeConfig, ThreadContext, callbacks, ok};
use crate::abi::*;
use crate::types::{DataType, Gtid, KeyType, Seqno, Status, TrxMeta};

/// The highest application protocol version MariaDB 10.11 speaks.
const PROTO_VER: c_int = 4;

/// A function of the table with its answer as the number it is in C: one that is no
/// [`Status`] must not become a value of that type before it is checked.
trait Numbered {
    type Function;
    fn numbered(self) -> Self::Function;
}

macro_rules! numbered {
    ($($argument:ident)*) => {
        impl<$($argument),*> Numbered for unsafe extern "C" fn(*mut wsrep_t, $($argument),*) -> Status {
            type Function = unsafe extern "C" fn(*mut wsrep_t, $($argument),*) -> u32;
            fn numbered(self) -> Self::Function {
                // SAFETY: the same C function, whose answer is an enum of 32 bits there.
                unsafe { std::mem::transmute::<Self, Self::Function>(self) }
            }
        }
    };
}
numbered!();
numbered!(A);
numbered!(A B);
numbered!(A B C);
numbered!(A B C D);
numbered!(A B C D E);

/// Calls a function of the table that answers a status. Unsafe: the table is not freed and
/// the arguments are what the interface asks for, for as long as it asks.
macro_rules! ask {
    ($inner:ident.$function:ident($($argument:expr),*)) => {{
        let raw = (*$inner.table).$function.numbered()($inner.table $(, $argument)*);
        $inner.answer(stringify!($function), raw)
    }};
}

/// A transaction's handle: made here for a local one, or lent by the provider with a write
/// set it wants applied. What it points to is the provider's alone.
#[repr(transparent)]
pub(super) struct Handle(wsrep_ws_handle_t);

impl Handle {
    /// A transaction the provider does not know yet.
    pub(super) fn new(trx: u64) -> Handle {
        Handle(wsrep_ws_handle_t {
            trx_id: trx,
            opaque: ptr::null_mut(),
        })
    }

    /// Its transaction.
    pub(super) fn trx(&self) -> u64 {
        self.0.trx_id
    }
}

// In what follows: the table is freed by `free` alone, which `Host::close` calls last.
impl Inner {
    fn answer(&self, function: &str, raw: u32) -> Status {
        Status::from_raw(raw).unwrap_or_else(|| {
            self.events.violation(format!(
                "{function} answered {raw}, which is none of the interface's statuses"
            ));
            Status::NodeFail
        })
    }

    // ------------------------------------------------------------ the node

    /// Once, before all others. From then on the provider may call back at any time.
    pub(super) fn init(self: &Arc<Self>, config: &NodeConfig) -> Result<(), HostError> {
        let name = c_string(&config.name)?;
        let address = c_string(&config.address)?;
        let mut data_dir = config.data_dir.clone().into_os_string();
        data_dir.push("/");
        let data_dir = c_os_string(&data_dir)?;
        let options = c_string(&config.options)?;
        let state_id = Gtid::UNDEFINED;
        let args = wsrep_init_args {
            // The callbacks' own share: given back by `free`, so that the address holds
            // until then even if everything else is dropped.
            app_ctx: Arc::into_raw(Arc::clone(self)).cast_mut().cast(),
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
        // SAFETY: all strings outlive the call and the provider copies them; the context
        // stays.
        let status = unsafe { ask!(self.init(&raw const args)) };
        ok("init", status)?;
        // The server asks next what the provider can do.
        // SAFETY: the provider is initialised.
        unsafe { ((*self.table).capabilities)(self.table) };
        Ok(())
    }

    pub(super) fn connect(
        &self,
        cluster: &str,
        url: &str,
        bootstrap: bool,
    ) -> Result<(), HostError> {
        let cluster = c_string(cluster)?;
        let url = c_string(url)?;
        // SAFETY: the strings outlive the call and the provider copies them.
        let status = unsafe {
            ask!(self.connect(
                cluster.as_ptr(),
                url.as_ptr(),
                c"".as_ptr(),
                c_bool::from(bootstrap)
            ))
        };
        ok("connect", status)
    }

    pub(super) fn disconnect(&self) -> Status {
        // SAFETY: no arguments.
        unsafe { ask!(self.disconnect()) }
    }

    pub(super) fn recv(&self, context: &ThreadContext<'_>) -> Status {
        // SAFETY: the context outlives the call; the provider uses it only for callbacks it
        // makes from inside, which do not write to it.
        unsafe { ask!(self.recv(ptr::from_ref(context).cast_mut().cast())) }
    }

    /// Frees the provider; twice, as the server does (contract A.1).
    ///
    /// # Safety
    /// Called once, after `init`; nobody is in a call or makes another one.
    pub(super) unsafe fn free(self: &Arc<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            ((*self.table).free)(self.table);
            ((*self.table).free)(self.table);
        }
        // SAFETY: `init` has left this count, and a freed provider calls nobody back.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(self)) };
    }

    // ------------------------------------------------------------ what it says of itself

    pub(super) fn last_committed_id(&self) -> Result<Gtid, HostError> {
        let mut gtid = Gtid::UNDEFINED;
        // SAFETY: the provider writes one gtid.
        let status = unsafe { ask!(self.last_committed_id(&raw mut gtid)) };
        ok("last_committed_id", status)?;
        Ok(gtid)
    }

    pub(super) fn options_get(&self) -> String {
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

    pub(super) fn stats_get(&self) -> Vec<(String, String)> {
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

    // ------------------------------------------------------------ transactions

    pub(super) fn append_key<const N: usize>(
        &self,
        handle: &mut Handle,
        parts: [&[u8]; N],
        key_type: KeyType,
    ) -> Status {
        let parts = parts.map(buffer);
        let key = wsrep_key_t {
            key_parts: parts.as_ptr(),
            key_parts_num: parts.len(),
        };
        // SAFETY: key and parts outlive the call; copy = 1 makes the provider copy them.
        unsafe { ask!(self.append_key(&raw mut handle.0, &raw const key, 1, key_type as u32, 1)) }
    }

    pub(super) fn append_data(
        &self,
        handle: &mut Handle,
        data: &[u8],
        data_type: DataType,
    ) -> Status {
        let data = buffer(data);
        // SAFETY: as for the key.
        unsafe {
            ask!(self.append_data(&raw mut handle.0, &raw const data, 1, data_type as u32, 1))
        }
    }

    pub(super) fn certify(
        &self,
        conn: u64,
        handle: &mut Handle,
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        // SAFETY: handle and metadata outlive the call.
        unsafe { ask!(self.certify(conn, &raw mut handle.0, flags, ptr::from_mut(meta))) }
    }

    pub(super) fn commit_order_enter(&self, handle: &Handle, meta: &TrxMeta) -> Status {
        // SAFETY: as above; the provider only reads them.
        unsafe { ask!(self.commit_order_enter(&raw const handle.0, ptr::from_ref(meta))) }
    }

    pub(super) fn commit_order_leave(&self, handle: &Handle, meta: &TrxMeta) -> Status {
        let no_error = wsrep_buf_t {
            ptr: ptr::null(),
            len: 0,
        };
        // SAFETY: as for enter; the empty buffer says that nothing failed here.
        unsafe {
            ask!(self.commit_order_leave(
                &raw const handle.0,
                ptr::from_ref(meta),
                &raw const no_error
            ))
        }
    }

    /// The provider calls `apply_cb` on this thread with this context.
    pub(super) fn replay_trx(&self, handle: &Handle, context: &ThreadContext<'_>) -> Status {
        // SAFETY: handle and context outlive the call; nobody writes to them.
        unsafe {
            ask!(self.replay_trx(
                &raw const handle.0,
                ptr::from_ref(context).cast_mut().cast()
            ))
        }
    }

    /// The provider drops what the handle points to.
    pub(super) fn release(&self, handle: &mut Handle) -> Status {
        // SAFETY: the handle is a local one.
        unsafe { ask!(self.release(&raw mut handle.0)) }
    }

    /// Waits until everything up to there is released.
    pub(super) fn sync_wait(&self, mut upto: Gtid, timeout_s: c_int) -> Status {
        // SAFETY: the position is ours; the last argument may be NULL (contract B.10).
        unsafe { ask!(self.sync_wait(&raw mut upto, timeout_s, ptr::null_mut())) }
    }

    /// Any victim may be named, also one the provider has not seen yet.
    pub(super) fn abort_certification(&self, bf_seqno: Seqno, victim_trx: u64) -> Status {
        let mut victim_seqno = -1;
        // SAFETY: the provider writes one seqno.
        unsafe { ask!(self.abort_certification(bf_seqno, victim_trx, &raw mut victim_seqno)) }
    }

    // ------------------------------------------------------------ state transfer

    pub(super) fn sst_sent(&self, position: Gtid) -> Status {
        // SAFETY: the position outlives the call.
        unsafe { ask!(self.sst_sent(&raw const position, 0)) }
    }

    pub(super) fn sst_received(&self, position: Gtid) -> Status {
        // SAFETY: the position outlives the call; the state may be NULL.
        unsafe { ask!(self.sst_received(&raw const position, ptr::null(), 0)) }
    }
}

fn buffer(bytes: &[u8]) -> wsrep_buf_t {
    wsrep_buf_t {
        ptr: bytes.as_ptr().cast(),
        len: bytes.len(),
    }
}

fn c_string(text: &str) -> Result<CString, HostError> {
    c_os_string(OsStr::new(text))
}

fn c_os_string(text: &OsStr) -> Result<CString, HostError> {
    CString::new(text.to_owned().into_vec())
        .map_err(|_| HostError::ZeroByte(String::from_utf8_lossy(text.as_bytes()).into_owned()))
}
