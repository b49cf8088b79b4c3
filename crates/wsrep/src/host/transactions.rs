//! Local transactions, call by call, as the server makes them, and the rows they fight for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::calls::Handle;
use super::{Inner, Ordered, ThreadContext, lock};
use crate::types::{DataType, Gtid, KeyType, Status, TrxMeta, flags};

/// The first two parts of every key.
const DATABASE: &[u8] = b"bench";
const TABLE: &[u8] = b"t";

/// The call a thread is in, for a report about one that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    /// None of these.
    None,
    /// `append_key` or `append_data`.
    Append,
    /// `certify`.
    Certify,
    /// `commit_order_enter`.
    Enter,
    /// `commit_order_leave`.
    Leave,
    /// `release`.
    Release,
    /// `replay_trx`.
    Replay,
    /// `sync_wait`.
    SyncWait,
    /// `abort_certification`.
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

/// Where a thread is now; written by that thread, read by who watches it.
#[derive(Debug, Default)]
pub struct CallMark(AtomicU8);

impl CallMark {
    pub(super) fn set(&self, call: Call) {
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

/// A local transaction, to be run.
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'a> {
    /// The client connection; one transaction at a time.
    pub conn: u64,
    /// Row keys; database and table are the same for all. Each is inserted.
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

    /// Makes a call that aborts the holder, if there is one; says whether it has. Such a
    /// holder is told once: it is then on its way to its end or its replay.
    pub(super) fn abort(&self, call: impl FnOnce(u64) -> bool) {
        // Held during the call, as the server holds the victim's lock.
        let mut holder = self.lock();
        if let Some(victim) = *holder
            && call(victim)
        {
            *holder = None;
        }
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
    /// Aborted before it was ordered; no other node saw it. Only with a hot row.
    Aborted,
    /// A call gave an answer that a healthy node does not give. Whatever came before, the
    /// transaction was released.
    Refused {
        /// The call.
        call: Call,
        /// Its answer.
        status: Status,
    },
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// From the start of `certify` to the end of `release`.
    pub latency: Duration,
}

/// Runs a transaction from its first key to its release.
pub(super) fn run(
    host: &Inner,
    trx: u64,
    transaction: &Transaction<'_>,
    mark: &CallMark,
) -> Outcome {
    let mut local = Local {
        host,
        handle: Handle::new(trx),
        meta: TrxMeta::UNDEFINED,
        payload: transaction.payload,
        hot_row: transaction.hot_row,
        mark,
    };
    if let Some(row) = transaction.hot_row {
        row.enter(trx);
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

/// A local transaction in progress.
struct Local<'a> {
    host: &'a Inner,
    handle: Handle,
    meta: TrxMeta,
    payload: &'a [u8],
    hot_row: Option<&'a HotRow>,
    mark: &'a CallMark,
}

impl Local<'_> {
    fn append(&mut self, transaction: &Transaction<'_>) -> Result<(), End> {
        self.mark.set(Call::Append);
        for row in transaction.rows {
            let key = [DATABASE, TABLE, row];
            let status = self
                .host
                .append_key(&mut self.handle, key, KeyType::Exclusive);
            refused(Call::Append, status)?;
        }
        let status =
            self.host
                .append_data(&mut self.handle, transaction.payload, DataType::Ordered);
        refused(Call::Append, status)
    }

    /// From `certify` to the end of the commit order.
    fn commit(&mut self, conn: u64) -> End {
        self.mark.set(Call::Certify);
        let whole = flags::TRX_START | flags::TRX_END;
        let status = self
            .host
            .certify(conn, &mut self.handle, whole, &mut self.meta);
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
        match self.host.commit_order_enter(&self.handle, &self.meta) {
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
        let status = HotRow::leave(self.hot_row, self.handle.trx(), || {
            self.host.commit_order_leave(&self.handle, &self.meta)
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
        let status = self.host.commit_order_enter(&self.handle, &self.meta);
        if let Err(end) = refused(Call::Enter, status) {
            return end;
        }
        self.mark.set(Call::SyncWait);
        let upto = Gtid {
            uuid: self.meta.gtid.uuid,
            seqno: self.meta.gtid.seqno - 1,
        };
        let status = self.host.sync_wait(upto, c_int::MAX);
        if let Err(end) = refused(Call::SyncWait, status) {
            return end;
        }
        let here = ordered(&self.meta, false, self.payload);
        self.host.events.ordered(here);
        self.leave(End::CertificationFailed)
    }

    fn replay(&mut self) -> End {
        self.mark.set(Call::Replay);
        let context = ThreadContext {
            host: self.host,
            original: Some(&self.handle),
            mark: self.mark,
        };
        match self.host.replay_trx(&self.handle, &context) {
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
        let trx = self.handle.trx();
        let status = HotRow::leave(self.hot_row, trx, || self.host.release(&mut self.handle));
        match status {
            Status::Ok => end,
            status => End::Refused {
                call: Call::Release,
                status,
            },
        }
    }
}

pub(super) fn ordered<'a>(meta: &TrxMeta, passed: bool, payload: &'a [u8]) -> Ordered<'a> {
    Ordered {
        seqno: meta.gtid.seqno,
        node: meta.stid.node,
        trx: meta.stid.trx,
        passed,
        payload,
    }
}

fn refused(call: Call, status: Status) -> Result<(), End> {
    match status {
        Status::Ok => Ok(()),
        status => Err(End::Refused { call, status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_shows_every_call() {
        let mark = CallMark::default();
        assert_eq!(mark.get(), Call::None);
        for call in [
            Call::Append,
            Call::Certify,
            Call::Enter,
            Call::Leave,
            Call::Release,
            Call::Replay,
            Call::SyncWait,
            Call::Abort,
            Call::None,
        ] {
            mark.set(call);
            assert_eq!(mark.get(), call);
            assert!(!call.name().is_empty());
        }
    }

    #[test]
    fn the_holder_of_a_hot_row_is_aborted_once() {
        let row = HotRow::default();
        let aborts = |row: &HotRow, works| {
            let mut victims = Vec::new();
            row.abort(|victim| {
                victims.push(victim);
                works
            });
            victims
        };
        assert_eq!(aborts(&row, true), []);
        row.enter(3);
        assert_eq!(aborts(&row, false), [3]);
        assert_eq!(aborts(&row, true), [3]);
        assert_eq!(aborts(&row, true), []);
    }

    #[test]
    fn a_transaction_gives_up_only_its_own_hold() {
        let row = HotRow::default();
        row.enter(3);
        row.enter(4);
        HotRow::leave(Some(&row), 3, || ());
        assert_eq!(*row.lock(), Some(4));
        HotRow::leave(Some(&row), 4, || ());
        assert_eq!(*row.lock(), None);
        assert_eq!(HotRow::leave(None, 5, || 7), 7);
    }
}
