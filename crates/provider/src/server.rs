//! The server as the node's database.

use std::sync::Arc;

use dromon_node::{Applied, Applier, Database, Level, Meta, Position, Trx, View};
use dromon_writeset::Flags;
use dromon_wsrep::{LogLevel, RecvContext, Server, TrxMeta};

use crate::convert::{to_gtid, to_view, write_meta};

/// The server's log.
pub(crate) struct ServerLog {
    server: Server,
}

impl ServerLog {
    pub(crate) fn new(server: Server) -> Self {
        ServerLog { server }
    }
}

impl Database for ServerLog {
    fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Error => LogLevel::Error,
            Level::Warning => LogLevel::Warn,
            Level::Note => LogLevel::Info,
            Level::Debug => LogLevel::Debug,
        };
        self.server.log(level, message);
    }
}

/// One applier thread of the server.
pub(crate) struct LentThread<'a, 'b> {
    ctx: &'a RecvContext<'b, Trx>,
    capabilities: u32,
    protocol: i32,
}

impl<'a, 'b> LentThread<'a, 'b> {
    pub(crate) fn new(ctx: &'a RecvContext<'b, Trx>, capabilities: u32, protocol: i32) -> Self {
        LentThread {
            ctx,
            capabilities,
            protocol,
        }
    }
}

impl Applier for LentThread<'_, '_> {
    fn connected(&mut self, view: &View) -> bool {
        self.ctx
            .server()
            .connected(&to_view(view, self.capabilities, self.protocol))
            .is_ok()
    }

    fn state_request(&mut self) -> Option<Vec<u8>> {
        self.ctx.server().sst_request().ok()
    }

    fn view(&mut self, view: &View) -> bool {
        self.ctx
            .view(&to_view(view, self.capabilities, self.protocol), None)
            .is_ok()
    }

    fn apply(&mut self, trx: &Arc<Trx>, flags: Flags, payload: &[u8], meta: &Meta) -> Applied {
        let mut m = TrxMeta::default();
        write_meta(&mut m, meta);
        let result = self.ctx.apply(trx, trx.id, flags.bits(), payload, &m);
        Applied {
            ok: result.ok,
            exit: result.exit_loop,
        }
    }

    fn donate(&mut self, request: &[u8], position: Position, bypass: bool) -> bool {
        self.ctx
            .sst_donate(request, to_gtid(position), None, bypass)
            .is_ok()
    }

    fn synced(&mut self) {
        if self.ctx.server().synced().is_err() {
            let text = "the server did not take the notice that this node is synced";
            self.ctx.server().log(LogLevel::Warn, text);
        }
    }
}
