//! Calls that carry a transaction or a statement in total order isolation.

use std::ffi::{c_int, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use super::border::{
    Misuse, OnPanic, after_panic, array, bytes, call, exclusive, key_parts, optional_bytes, shared,
};
use crate::abi::{
    c_bool, wsrep_buf_t, wsrep_gtid_t, wsrep_key_t, wsrep_po_handle_t, wsrep_t, wsrep_trx_meta_t,
    wsrep_uuid_t, wsrep_ws_handle_t,
};
use crate::provider::Provider;
use crate::recv::ReplayContext;
use crate::slot::{self, TrxSlot};
use crate::types::{DataType, Gtid, KeyType, SEQNO_UNDEFINED, Status, TrxMeta};

const NO_HANDLE: &str = "NULL for the transaction handle";
const NO_META: &str = "NULL for the transaction metadata";
const NO_VICTIM: &str = "NULL for the victim's seqno";
const BAD_ERROR: &str = "an error text of an impossible size";
const LENT_HANDLE: &str = "the handle of a remote event";

/// Keys of up to this many parts need no allocation.
const PARTS_ON_STACK: usize = 4;

/// A handle that a local transaction may be collected in.
///
/// # Safety
/// `handle` is NULL or the server's handle, used by this call alone; its `opaque` is
/// NULL or was made by this crate for a `T`.
unsafe fn local_slot<'a, T>(
    handle: *mut wsrep_ws_handle_t,
) -> Result<(u64, TrxSlot<'a, T>), Misuse> {
    // SAFETY: by the contract above.
    let handle = unsafe { exclusive(handle, NO_HANDLE) }?;
    if slot::is_lent(handle.opaque) {
        return Err(Misuse(LENT_HANDLE));
    }
    // SAFETY: by the contract above, and not lent.
    Ok((handle.trx_id, unsafe { TrxSlot::new(&mut handle.opaque) }))
}

/// Calls `body` with the transaction of a handle that must have one, local or lent.
///
/// # Safety
/// As [`local_slot`], except that other calls may read the handle too.
unsafe fn with_trx<T, R>(
    handle: *const wsrep_ws_handle_t,
    body: impl FnOnce(u64, &Arc<T>) -> Result<R, Misuse>,
) -> Result<R, Misuse> {
    // SAFETY: by the contract above.
    let handle = unsafe { shared(handle, NO_HANDLE) }?;
    // SAFETY: by the contract above; the server holds the object while it calls.
    let trx = unsafe { slot::peek::<T>(handle.opaque) }
        .ok_or(Misuse("a transaction handle without a transaction"))?;
    body(handle.trx_id, &trx)
}

pub(super) unsafe extern "C" fn append_key<P: Provider>(
    h: *mut wsrep_t,
    handle: *mut wsrep_ws_handle_t,
    keys: *const wsrep_key_t,
    count: usize,
    key_type: u32,
    _copy: c_bool,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "append_key", OnPanic::Answer, Status::NodeFail, |it| {
            let key_type = KeyType::from_raw(key_type).ok_or(Misuse("an unknown key type"))?;
            let keys = array(keys, count, "NULL for the keys")?;
            let (trx_id, mut slot) = local_slot::<P::Trx>(handle)?;
            for key in keys {
                let status = if key.key_parts_num <= PARTS_ON_STACK {
                    let parts = array(
                        key.key_parts,
                        key.key_parts_num,
                        "NULL for the parts of a key",
                    )?;
                    let mut slices: [&[u8]; PARTS_ON_STACK] = [&[]; PARTS_ON_STACK];
                    for (slice, part) in slices.iter_mut().zip(parts) {
                        *slice = bytes(part, "NULL for a part of a key")?;
                    }
                    it.provider
                        .append_key(trx_id, &mut slot, &slices[..parts.len()], key_type)
                } else {
                    it.provider
                        .append_key(trx_id, &mut slot, &key_parts(key)?, key_type)
                };
                if status != Status::Ok {
                    return Ok(status);
                }
            }
            Ok(Status::Ok)
        })
    }
}

pub(super) unsafe extern "C" fn append_data<P: Provider>(
    h: *mut wsrep_t,
    handle: *mut wsrep_ws_handle_t,
    data: *const wsrep_buf_t,
    count: usize,
    data_type: u32,
    _copy: c_bool,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "append_data", OnPanic::Answer, Status::NodeFail, |it| {
            let data_type = DataType::from_raw(data_type).ok_or(Misuse("an unknown data type"))?;
            let data = array(data, count, "NULL for the data")?;
            let (trx_id, mut slot) = local_slot::<P::Trx>(handle)?;
            for piece in data {
                let piece = bytes(piece, "NULL for a piece of data")?;
                let status = it.provider.append_data(trx_id, &mut slot, piece, data_type);
                if status != Status::Ok {
                    return Ok(status);
                }
            }
            Ok(Status::Ok)
        })
    }
}

pub(super) unsafe extern "C" fn certify<P: Provider>(
    h: *mut wsrep_t,
    conn_id: u64,
    handle: *mut wsrep_ws_handle_t,
    flags: u32,
    meta: *mut wsrep_trx_meta_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        ordering::<P>(h, "certify", meta, |provider, meta| {
            let (trx_id, mut slot) = local_slot::<P::Trx>(handle)?;
            Ok(provider.certify(conn_id, trx_id, &mut slot, flags, meta))
        })
    }
}

pub(super) unsafe extern "C" fn to_execute_start<P: Provider>(
    h: *mut wsrep_t,
    conn_id: u64,
    keys: *const wsrep_key_t,
    keys_count: usize,
    data: *const wsrep_buf_t,
    data_count: usize,
    flags: u32,
    meta: *mut wsrep_trx_meta_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        ordering::<P>(h, "to_execute_start", meta, |provider, meta| {
            let keys = array(keys, keys_count, "NULL for the keys")?
                .iter()
                .map(|key| key_parts(key))
                .collect::<Result<Vec<_>, _>>()?;
            let keys: Vec<&[&[u8]]> = keys.iter().map(Vec::as_slice).collect();
            let data = array(data, data_count, "NULL for the data")?
                .iter()
                .map(|piece| bytes(piece, "NULL for a piece of data"))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(provider.to_execute_start(conn_id, &keys, &data, flags, meta))
        })
    }
}

/// Runs a call during which the event may be ordered: the metadata goes back to the
/// server whatever happens, and a panic after ordering aborts.
///
/// # Safety
/// As [`call`]; `meta` is NULL or the server's, used by this call alone.
unsafe fn ordering<P: Provider>(
    h: *mut wsrep_t,
    name: &'static str,
    meta: *mut wsrep_trx_meta_t,
    body: impl FnOnce(&P, &mut TrxMeta) -> Result<Status, Misuse>,
) -> Status {
    // SAFETY: by the contract above.
    if let Ok(meta) = unsafe { exclusive(meta, NO_META) } {
        // Before anything can fail: "not ordered" is what the server must read then.
        meta.gtid = Gtid::UNDEFINED;
        meta.depends_on = SEQNO_UNDEFINED;
    }
    // SAFETY: by the contract above.
    unsafe {
        call::<P, _>(h, name, OnPanic::Answer, Status::NodeFail, |it| {
            // The author works on a copy: the server may look at its own meanwhile.
            let mut filled = *shared(meta.cast_const(), NO_META)?;
            let answer = panic::catch_unwind(AssertUnwindSafe(|| body(&it.provider, &mut filled)));
            let ordered = filled.gtid.seqno != SEQNO_UNDEFINED;
            if !ordered {
                // The server looks at the uuid too.
                filled.gtid = Gtid::UNDEFINED;
            }
            *exclusive(meta, NO_META)? = filled;
            answer.unwrap_or_else(|payload| {
                let on_panic = if ordered {
                    OnPanic::Abort
                } else {
                    OnPanic::Answer
                };
                after_panic(&it.server, name, payload, on_panic);
                Ok(Status::NodeFail)
            })
        })
    }
}

pub(super) unsafe extern "C" fn to_execute_end<P: Provider>(
    h: *mut wsrep_t,
    conn_id: u64,
    error: *const wsrep_buf_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(
            h,
            "to_execute_end",
            OnPanic::Abort,
            Status::NodeFail,
            |it| {
                let error = optional_bytes(error, BAD_ERROR)?;
                Ok(it.provider.to_execute_end(conn_id, error))
            },
        )
    }
}

pub(super) unsafe extern "C" fn commit_order_enter<P: Provider>(
    h: *mut wsrep_t,
    handle: *const wsrep_ws_handle_t,
    meta: *const wsrep_trx_meta_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(
            h,
            "commit_order_enter",
            OnPanic::Abort,
            Status::NodeFail,
            |it| {
                let meta = *shared(meta, NO_META)?;
                with_trx::<P::Trx, _>(handle, |trx_id, trx| {
                    Ok(it.provider.commit_order_enter(trx_id, trx, &meta))
                })
            },
        )
    }
}

pub(super) unsafe extern "C" fn commit_order_leave<P: Provider>(
    h: *mut wsrep_t,
    handle: *const wsrep_ws_handle_t,
    meta: *const wsrep_trx_meta_t,
    error: *const wsrep_buf_t,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(
            h,
            "commit_order_leave",
            OnPanic::Abort,
            Status::NodeFail,
            |it| {
                let meta = *shared(meta, NO_META)?;
                let error = optional_bytes(error, BAD_ERROR)?;
                with_trx::<P::Trx, _>(handle, |trx_id, trx| {
                    Ok(it.provider.commit_order_leave(trx_id, trx, &meta, error))
                })
            },
        )
    }
}

pub(super) unsafe extern "C" fn release<P: Provider>(
    h: *mut wsrep_t,
    handle: *mut wsrep_ws_handle_t,
) -> Status {
    // Called for nearly every statement with nothing to release: nothing else is
    // touched then. A lent handle is not the server's to release; its `apply` ends it.
    if !handle.is_null() && handle.is_aligned() {
        // SAFETY: non-null, aligned, and the server's for the call.
        let opaque = unsafe { (*handle).opaque };
        if opaque.is_null() || slot::is_lent(opaque) {
            return Status::Ok;
        }
    }
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "release", OnPanic::Abort, Status::NodeFail, |it| {
            let (trx_id, mut slot) = local_slot::<P::Trx>(handle)?;
            Ok(it.provider.release(trx_id, &mut slot))
        })
    }
}

pub(super) unsafe extern "C" fn replay_trx<P: Provider>(
    h: *mut wsrep_t,
    handle: *const wsrep_ws_handle_t,
    ctx: *mut c_void,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        call::<P, _>(h, "replay_trx", OnPanic::Abort, Status::NodeFail, |it| {
            if ctx.is_null() {
                return Err(Misuse("NULL for the applier context"));
            }
            with_trx::<P::Trx, _>(handle, |trx_id, trx| {
                let ctx = ReplayContext::new(&it.server, ctx);
                Ok(it.provider.replay_trx(trx_id, trx, ctx))
            })
        })
    }
}

pub(super) unsafe extern "C" fn abort_certification<P: Provider>(
    h: *mut wsrep_t,
    bf_seqno: i64,
    victim_trx_id: u64,
    victim_seqno: *mut i64,
) -> Status {
    // SAFETY: all pointers are the server's and valid for the call.
    unsafe {
        if let Ok(victim_seqno) = exclusive(victim_seqno, NO_VICTIM) {
            *victim_seqno = SEQNO_UNDEFINED;
        }
        call::<P, _>(
            h,
            "abort_certification",
            OnPanic::Answer,
            Status::NodeFail,
            |it| {
                let victim_seqno = exclusive(victim_seqno, NO_VICTIM)?;
                let (status, seqno) = it.provider.abort_certification(bf_seqno, victim_trx_id);
                *victim_seqno = seqno;
                Ok(status)
            },
        )
    }
}

pub(super) unsafe extern "C" fn rollback<P: Provider>(
    h: *mut wsrep_t,
    trx_id: u64,
    _data: *const wsrep_buf_t,
) -> Status {
    // SAFETY: the handle is the server's.
    unsafe {
        call::<P, _>(h, "rollback", OnPanic::Answer, Status::NodeFail, |it| {
            Ok(it.provider.rollback(trx_id))
        })
    }
}

// MariaDB calls none of the following.

pub(super) unsafe extern "C" fn assign_read_view(
    _h: *mut wsrep_t,
    _handle: *mut wsrep_ws_handle_t,
    _gtid: *const wsrep_gtid_t,
) -> Status {
    Status::NotImplemented
}

pub(super) unsafe extern "C" fn free_connection(_h: *mut wsrep_t, _conn_id: u64) -> Status {
    Status::Ok
}

pub(super) unsafe extern "C" fn preordered_collect(
    _h: *mut wsrep_t,
    _handle: *mut wsrep_po_handle_t,
    _data: *const wsrep_buf_t,
    _count: usize,
    _copy: c_bool,
) -> Status {
    Status::NotImplemented
}

pub(super) unsafe extern "C" fn preordered_commit(
    _h: *mut wsrep_t,
    _handle: *mut wsrep_po_handle_t,
    _source: *const wsrep_uuid_t,
    _flags: u32,
    _pa_range: c_int,
    _commit: c_bool,
) -> Status {
    Status::NotImplemented
}
