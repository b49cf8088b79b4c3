//! A local transaction, call by call, as the server makes them.

use std::ffi::c_int;
use std::ptr;
use std::time::Instant;

use dromon_wsrep::abi::*;
use dromon_wsrep::{Gtid, Status, TrxMeta, flags};

use super::{Call, CallMark, End, Host, HotRow, Outcome, RecvContext, Transaction, ordered};

/// `wsrep_key_type_t` of an inserted row.
const KEY_EXCLUSIVE: u32 = 3;
/// `wsrep_data_type_t` of row events.
const DATA_ORDERED: u32 = 0;

/// Runs a transaction from its first key to its release.
pub(super) fn run(host: &Host, transaction: &Transaction<'_>, mark: &CallMark) -> Outcome {
    let mut local = Local {
        host,
        handle: wsrep_ws_handle_t {
            trx_id: transaction.trx,
            opaque: ptr::null_mut(),
        },
        meta: TrxMeta::UNDEFINED,
        payload: transaction.payload,
        hot_row: transaction.hot_row,
        mark,
    };
    if let Some(row) = transaction.hot_row {
        row.enter(transaction.trx);
    }
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

/// A local transaction in progress. The handle must stay where it is: a replay
/// refers to it by address.
struct Local<'a> {
    host: &'a Host,
    handle: wsrep_ws_handle_t,
    meta: TrxMeta,
    payload: &'a [u8],
    hot_row: Option<&'a HotRow>,
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
            Status::TrxFail | Status::ConnFail if self.hot_row.is_some() => End::Aborted,
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
        let status = HotRow::leave(self.hot_row, self.handle.trx_id, || {
            self.host
                .commit_order_leave(&raw const self.handle, &self.meta)
        });
        match status {
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
        let (row, trx) = (self.hot_row, self.handle.trx_id);
        let status = HotRow::leave(row, trx, || {
            // SAFETY: the handle is ours; the provider drops what it points to.
            unsafe { ((*table).release)(table, &raw mut self.handle) }
        });
        match status {
            Status::Ok => end,
            status => End::Refused {
                call: Call::Release,
                status,
            },
        }
    }
}

fn buffer(bytes: &[u8]) -> wsrep_buf_t {
    wsrep_buf_t {
        ptr: bytes.as_ptr().cast(),
        len: bytes.len(),
    }
}

fn refused(call: Call, status: Status) -> Result<(), End> {
    match status {
        Status::Ok => Ok(()),
        status => Err(End::Refused { call, status }),
    }
}
