//! libdromon.so: the wsrep provider that MariaDB loads.
//!
//! The server's calls go to one [`dromon_node::Node`]; its callbacks are lent
//! to the node as a [`dromon_node::Database`] and, for each applier thread, a
//! [`dromon_node::Applier`]. Nothing is decided here: only types change.

#![forbid(unsafe_code)]

mod convert;
mod home;
mod notify;
mod recover;
mod server;

use std::sync::Arc;
use std::time::Duration;

use dromon_node::tcp::Tcp;
use dromon_node::{Database, FINISH, Node, Outcome, Phase, QUEUE_HERE, Setup, Trx};
use dromon_writeset::{Flags, KeyType as NodeKeyType};
use dromon_wsrep::{
    DataType, Gtid, InitArgs, KeyType, LogLevel, Parameter, Provider, RecvContext, ReplayContext,
    Seqno, Server, StatsVar, Status, TrxMeta, TrxSlot, capability,
};

use convert::{filling, from_gtid, key_type, parameter, stats_var, status, to_gtid, write_meta};
use notify::ServiceManager;
use server::{LentThread, ServerHost, ServerLog};

/// What this provider can do.
const CAPABILITIES: u32 = capability::MULTI_MASTER
    | capability::CERTIFICATION
    | capability::PARALLEL_APPLYING
    | capability::TRX_REPLAY
    | capability::ISOLATION
    | capability::PAUSE
    | capability::CAUSAL_READS
    | capability::INCREMENTAL_WRITESET
    | capability::STREAMING;

/// The highest application protocol: how the server splits row keys.
const PROTOCOL: i32 = 4;

/// The provider: a node, and the way back to the server.
pub struct Dromon {
    node: Arc<Node>,
    server: Server,
}

/// Counts what this library holds, for the status.
#[global_allocator]
static MEMORY: dromon_wsrep::memory::Counting = dromon_wsrep::memory::Counting;

dromon_wsrep::export_provider! {
    provider: Dromon,
    name: "Dromon",
    version: "4.24(rdromon-0.1.0)",
    vendor: "The Dromon authors",
}

impl Dromon {
    fn trx<'a>(&self, trx_id: u64, slot: &'a mut TrxSlot<'_, Trx>) -> &'a Arc<Trx> {
        slot.get_or_insert_with(|| self.node.begin(trx_id))
    }

    fn error(&self, message: &str) {
        self.server.log(LogLevel::Error, message);
    }
}

impl Provider for Dromon {
    type Trx = Trx;

    fn init(args: InitArgs, server: Server) -> Result<Self, Status> {
        if args.proto_ver > PROTOCOL {
            let message = format!(
                "the server speaks application protocol {}, this library up to {PROTOCOL}: a newer library is needed",
                args.proto_ver
            );
            server.log(LogLevel::Error, &message);
            return Err(Status::NodeFail);
        }
        // The server stands in its data directory when it loads this.
        if let Ok(here) = std::env::current_dir()
            && let Some(why) = home::is_apart(&here, args.data_dir.as_ref())
        {
            server.log(LogLevel::Error, &why);
            return Err(Status::NodeFail);
        }
        let setup = Setup {
            name: args.node_name,
            incoming: args.node_incoming,
            address: args.node_address,
            data_dir: args.data_dir,
            position: from_gtid(args.state_id),
            witness: false,
            finish: FINISH,
            queue_here: QUEUE_HERE,
        };
        let manager = Arc::new(ServiceManager::of_environment());
        let db = Arc::new(ServerLog::new(server.clone(), manager.clone()));
        if !db.has_binary_log() {
            let message = "this server has no binary log (log_bin): what a transaction rolls back to a savepoint set \
                           before its first change it may send all the same, and the other nodes then have rows that \
                           it has not. Set log_bin on all nodes";
            server.log(LogLevel::Info, message);
        }
        match Node::open(
            db,
            Box::new(Tcp::new(Arc::new(ServerHost::new(server.clone(), manager)))),
            setup,
            &args.options,
        ) {
            Ok(node) => Ok(Dromon { node, server }),
            Err(e) => {
                server.log(LogLevel::Error, &e.to_string());
                Err(Status::NodeFail)
            }
        }
    }

    fn capabilities(&self) -> u32 {
        CAPABILITIES
    }

    fn options_set(&self, options: &str) -> Status {
        match self.node.set_options(options) {
            Ok(()) => Status::Ok,
            Err(e) => {
                // The server reports an error of its own; a Warning here would
                // only repeat it.
                self.server.log(LogLevel::Info, &e);
                Status::NodeFail
            }
        }
    }

    fn options_get(&self) -> String {
        self.node.options_text()
    }

    fn connect(&self, name: &str, url: &str, donor: &str, bootstrap: bool) -> Status {
        match self.node.connect(name, url, donor, bootstrap) {
            Ok(()) => Status::Ok,
            Err(e) => {
                self.error(&e.to_string());
                Status::NodeFail
            }
        }
    }

    fn disconnect(&self) -> Status {
        self.node.disconnect();
        Status::Ok
    }

    fn recv(&self, ctx: RecvContext<'_, Trx>) -> Status {
        let mut thread = LentThread::new(&ctx, CAPABILITIES, PROTOCOL);
        status(self.node.receive(&mut thread))
    }

    fn append_key(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        parts: &[&[u8]],
        kind: KeyType,
    ) -> Status {
        let trx = self.trx(trx_id, slot);
        status(self.node.append_key(trx, parts, key_type(kind)))
    }

    fn append_data(
        &self,
        trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        data: &[u8],
        kind: DataType,
    ) -> Status {
        if kind != DataType::Ordered {
            return Status::Ok; // annotations and unordered data are not applied
        }
        let trx = self.trx(trx_id, slot);
        status(self.node.append_data(trx, data))
    }

    fn certify(
        &self,
        conn_id: u64,
        _trx_id: u64,
        slot: &mut TrxSlot<'_, Trx>,
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        let Some(trx) = slot.get().cloned() else {
            return Status::Ok; // nothing to replicate: gtid stays undefined
        };
        let flags = Flags::from_bits(flags);
        let certify = |m: &mut _| self.node.certify(conn_id, &trx, flags, m);
        status(filling(meta, certify))
    }

    fn commit_order_enter(&self, _trx_id: u64, trx: &Arc<Trx>, _meta: &TrxMeta) -> Status {
        status(self.node.commit_order_enter(trx))
    }

    fn commit_order_leave(
        &self,
        _trx_id: u64,
        trx: &Arc<Trx>,
        _meta: &TrxMeta,
        error: Option<&[u8]>,
    ) -> Status {
        status(self.node.commit_order_leave(trx, error))
    }

    fn release(&self, _trx_id: u64, slot: &mut TrxSlot<'_, Trx>) -> Status {
        let Some(trx) = slot.get().cloned() else {
            return Status::Ok;
        };
        let (keep, outcome) = self.node.release(&trx);
        if !keep {
            slot.take();
        }
        status(outcome)
    }

    fn replay_trx(&self, trx_id: u64, trx: &Arc<Trx>, ctx: ReplayContext<'_, Trx>) -> Status {
        let outcome = self.node.replay(trx, |trx, flags, payload, meta| {
            let mut m = TrxMeta::default();
            write_meta(&mut m, meta);
            let result = ctx.apply(trx, trx_id, flags.bits(), payload, &m);
            dromon_node::Applied {
                ok: result.ok,
                exit: result.exit_loop,
            }
        });
        status(outcome)
    }

    fn abort_certification(&self, bf_seqno: Seqno, victim_trx_id: u64) -> (Status, Seqno) {
        let (outcome, seqno) = self.node.abort(bf_seqno, victim_trx_id);
        (status(outcome), seqno)
    }

    fn rollback(&self, trx_id: u64) -> Status {
        status(self.node.rollback(trx_id))
    }

    fn sync_wait(&self, upto: Option<Gtid>, timeout_s: i32) -> (Status, Gtid) {
        let given = u64::try_from(timeout_s).ok().map(Duration::from_secs);
        let (outcome, position) = match upto {
            Some(upto) => self.node.wait_for(from_gtid(upto), given),
            None => {
                let default = self.node.settings().causal_read_timeout;
                self.node.sync_wait(given.unwrap_or(default))
            }
        };
        (status(outcome), to_gtid(position))
    }

    fn last_committed_id(&self) -> Gtid {
        to_gtid(self.node.last_committed())
    }

    fn to_execute_start(
        &self,
        conn_id: u64,
        keys: &[&[&[u8]]],
        data: &[&[u8]],
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        let whole = Flags::TRX_START | Flags::TRX_END;
        if !Flags::from_bits(flags).contains(whole) {
            return Status::NotImplemented; // statements in two phases
        }
        let keys: Vec<_> = keys
            .iter()
            .map(|parts| (*parts, NodeKeyType::Exclusive))
            .collect();
        let data = data.concat();
        let flags = Flags::from_bits(flags);
        let start = |m: &mut _| self.node.toi_start(conn_id, &keys, &data, flags, m);
        status(filling(meta, start))
    }

    fn to_execute_end(&self, conn_id: u64, error: Option<&[u8]>) -> Status {
        status(self.node.toi_end(conn_id, error))
    }

    fn sst_sent(&self, gtid: Gtid, rcode: i32) -> Status {
        status(self.node.transfer_sent(from_gtid(gtid), rcode))
    }

    fn sst_received(&self, gtid: Gtid, _state: Option<&[u8]>, rcode: i32) -> Status {
        status(self.node.transfer_received(from_gtid(gtid), rcode))
    }

    fn stats_get(&self) -> Vec<StatsVar> {
        self.node.status().into_iter().map(stats_var).collect()
    }

    fn stats_reset(&self) {
        self.node.reset_status();
    }

    fn pause(&self) -> Result<Seqno, Status> {
        self.node.pause().ok_or(Status::NodeFail)
    }

    fn resume(&self) -> Status {
        self.node.resume();
        Status::Ok
    }

    fn desync(&self) -> Status {
        status(self.node.desync())
    }

    fn resync(&self) -> Status {
        status(self.node.resync())
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.node.parameters().into_iter().map(parameter).collect()
    }

    fn close(&self) {
        if self.node.phase() != Phase::Closed {
            self.node.disconnect();
        }
    }
}

/// Kept here so that a new outcome cannot be forgotten in one of two places.
const _: fn(Outcome) -> Status = status;
