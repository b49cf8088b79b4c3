//! The trait an author implements: every function of the interface that MariaDB
//! calls, with safe arguments.

use std::sync::Arc;

use crate::recv::{RecvContext, ReplayContext};
use crate::server::Server;
use crate::slot::TrxSlot;
use crate::types::{
    DataType, Gtid, InitArgs, KeyType, Parameter, Seqno, StatsVar, Status, TrxMeta,
};

/// A wsrep provider.
///
/// Methods are called from many threads of the server at once; see the contract
/// (section B.1) for which of them may block. Threads of the server have stacks of
/// about 290 KiB. Call back into the server only from inside [`recv`](Provider::recv)
/// or [`replay_trx`](Provider::replay_trx), never while holding a lock.
///
/// After [`close`](Provider::close) no method is called; the value itself is never dropped.
pub trait Provider: Send + Sync + Sized + 'static {
    /// What a transaction handle refers to, for local transactions and for events
    /// handed to the server alike. Its alignment must be at least 2.
    type Trx: Send + Sync + 'static;

    /// Starts the provider. An error stops the server's start; leave nothing running then.
    fn init(args: InitArgs, server: Server) -> Result<Self, Status>;

    /// Bits of [`capability`](crate::capability); constant.
    fn capabilities(&self) -> u32;

    /// Sets options from text like `a=1; b=2`. Anything but OK makes the SET fail.
    fn options_set(&self, options: &str) -> Status;

    /// All options as `key = value; ` items.
    fn options_get(&self) -> String;

    /// Connects to the cluster. OK only inside a primary component. No callbacks from here.
    /// `url` and `donor` are verbatim; `bootstrap` asks for a new cluster.
    fn connect(&self, name: &str, url: &str, donor: &str, bootstrap: bool) -> Status;

    /// Leaves the cluster; one final view must be delivered by a receiving thread.
    fn disconnect(&self) -> Status;

    /// Lends a thread of the server to the provider until the connection ends.
    /// A panic in here aborts the process.
    fn recv(&self, ctx: RecvContext<'_, Self::Trx>) -> Status;

    /// Adds one key (its parts, outermost first) to a transaction.
    fn append_key(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Self::Trx>,
        parts: &[&[u8]],
        key_type: KeyType,
    ) -> Status;

    /// Adds data to a transaction; everything added forms one buffer.
    fn append_data(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Self::Trx>,
        data: &[u8],
        data_type: DataType,
    ) -> Status;

    /// Orders and certifies a transaction. `meta` arrives with `gtid` undefined,
    /// `depends_on` -1 and the server's `stid`. Fill in `gtid` as soon as the write set
    /// is ordered: it goes to the server whatever the answer is, and from then on a
    /// panic aborts the process instead of losing the seqno.
    fn certify(
        &self,
        conn_id: u64,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Self::Trx>,
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status;

    /// Waits until every lower seqno has left commit order. For local transactions and
    /// for events handed to the server; OK or BF_ABORT. A panic aborts the process.
    fn commit_order_enter(&self, trx_id: u64, trx: &Arc<Self::Trx>, meta: &TrxMeta) -> Status;

    /// Lets the next seqno enter. `error` describes a failure here, and the answer is
    /// then the cluster's verdict. A panic aborts the process.
    fn commit_order_leave(
        &self,
        trx_id: u64,
        trx: &Arc<Self::Trx>,
        meta: &TrxMeta,
        error: Option<&[u8]>,
    ) -> Status;

    /// The transaction is finished, or one fragment of it. The slot is never empty
    /// here; take the object out unless more fragments follow. A panic aborts the process.
    fn release(&self, trx_id: u64, slot: &mut TrxSlot<'_, Self::Trx>) -> Status;

    /// Applies an aborted but ordered transaction again. OK or TRX_FAIL; anything else
    /// makes the server abort. A panic aborts the process.
    fn replay_trx(
        &self,
        trx_id: u64,
        trx: &Arc<Self::Trx>,
        ctx: ReplayContext<'_, Self::Trx>,
    ) -> Status;

    /// Asks to abort a local transaction for one that must win. Must not block. Returns
    /// the victim's seqno too, -1 if it is not ordered. OK means the victim will be told,
    /// and is also the answer for an unknown victim.
    fn abort_certification(&self, bf_seqno: Seqno, victim_trx_id: u64) -> (Status, Seqno);

    /// Sends a rollback fragment for a streaming transaction. Must not wait.
    fn rollback(&self, trx_id: u64) -> Status;

    /// Waits until the given position (or, with `None`, everything committed anywhere
    /// before the call) is released here. `timeout_s` is -1 for the default and may be
    /// `i32::MAX`. Returns the released position, undefined on failure.
    fn sync_wait(&self, upto: Option<Gtid>, timeout_s: i32) -> (Status, Gtid);

    /// The released position.
    fn last_committed_id(&self) -> Gtid;

    /// Orders a statement in total order isolation and waits until it may run. Keys as
    /// lists of parts; the data in pieces that belong together. `meta` as in `certify`.
    fn to_execute_start(
        &self,
        conn_id: u64,
        keys: &[&[&[u8]]],
        data: &[&[u8]],
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status;

    /// Ends the isolated statement; `error` as in `commit_order_leave`. A panic aborts the process.
    fn to_execute_end(&self, conn_id: u64, error: Option<&[u8]>) -> Status;

    /// The donor's script finished: `rcode` 0 with the position sent, or a negative error.
    fn sst_sent(&self, gtid: Gtid, rcode: i32) -> Status;

    /// The joiner's storage engine is at `gtid`; `rcode` is negative on failure.
    fn sst_received(&self, gtid: Gtid, state: Option<&[u8]>, rcode: i32) -> Status;

    /// The status variables now. Called at any time after `init`, also when disconnected.
    fn stats_get(&self) -> Vec<StatsVar>;

    /// Zeroes averages, minima and maxima, not counters.
    fn stats_reset(&self);

    /// Stops the flow at an event boundary and returns the released seqno.
    fn pause(&self) -> Result<Seqno, Status>;

    /// Ends the pause. Called under a server lock: must not block or call back.
    fn resume(&self) -> Status;

    /// Takes this node out of flow control; counted.
    fn desync(&self) -> Status;

    /// Undoes one `desync`. Called under a server lock: must not block or call back.
    fn resync(&self) -> Status;

    /// The options, typed, for servers that make system variables of them.
    fn parameters(&self) -> Vec<Parameter>;

    /// The end: leave the cluster if connected, join every own thread. Called at most once.
    fn close(&self);
}
