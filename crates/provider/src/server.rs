//! The server as the node's database.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use dromon_node::spool::MapFile;
use dromon_node::tcp::{Brake, Host};
use dromon_node::{Applied, Applier, Database, Level, Meta, Position, Standing, Trx, View};
use dromon_writeset::Flags;
use dromon_wsrep::isolation::{self, Mode};
use dromon_wsrep::{AllowlistKey, LogLevel, MappedFile, RecvContext, Server, TrxMeta};

use crate::convert::{to_gtid, to_view, write_meta};
use crate::notify::ServiceManager;

/// The server's log, and who started the server.
pub(crate) struct ServerLog {
    server: Server,
    manager: Arc<ServiceManager>,
    binary_log: OnceLock<bool>,
}

impl ServerLog {
    pub(crate) fn new(server: Server, manager: Arc<ServiceManager>) -> Self {
        ServerLog {
            server,
            manager,
            binary_log: OnceLock::new(),
        }
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

    /// With `wsrep_gtid_mode` a server learns its domain from an SST script's
    /// answer, and forgets it when it stops. The interface does not tell the mode;
    /// the server's program shows the variable.
    fn wants_bypass(&self) -> bool {
        dromon_wsrep::process::flag(c"wsrep_gtid_mode").unwrap_or_else(|| {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                let text = "this server's program does not show whether wsrep_gtid_mode is on; taken as off: a node \
                            that comes back by the log keeps its own wsrep_gtid_domain_id";
                self.server.log(LogLevel::Info, text);
            });
            false
        })
    }

    /// `log_bin`, which does not change while a server runs.
    fn has_binary_log(&self) -> bool {
        *self
            .binary_log
            .get_or_init(|| dromon_wsrep::process::flag(c"opt_bin_log").unwrap_or(true))
    }

    fn still_starting(&self, doing: &str) {
        self.manager.more_time(doing);
    }

    fn stands(&self, standing: Standing) {
        self.manager.stands(standing);
    }

    /// A server that starts blocks the signals, and takes them when it has started.
    fn told_to_stop(&self) -> bool {
        self.manager.told_to_stop()
    }
}

/// The server as the process around the node's engines.
pub(crate) struct ServerHost {
    server: Server,
    manager: Arc<ServiceManager>,
}

impl ServerHost {
    pub(crate) fn new(server: Server, manager: Arc<ServiceManager>) -> Self {
        ServerHost { server, manager }
    }
}

impl Host for ServerHost {
    fn event(&self, text: &str) {
        self.server.log(LogLevel::Info, text);
    }

    /// The server's allowlist (`wsrep_allowlist`, later `mysql.wsrep_allowlist`).
    fn admit(&self, ip: IpAddr) -> Result<(), String> {
        if self.server.allowed(AllowlistKey::Ip, &ip.to_string()) {
            return Ok(());
        }
        Err(format!(
            "its server's allowlist does not name {ip} (wsrep_allowlist, mysql.wsrep_allowlist)"
        ))
    }

    fn map_file(&self) -> MapFile {
        Arc::new(|file, len| Ok(Bytes::from_owner(MappedFile::open(file, len)?)))
    }

    fn recover_position(&self, data_dir: &Path) -> Result<Position, String> {
        let say = |text: &str| self.server.log(LogLevel::Info, text);
        crate::recover::position(data_dir, &say, &self.manager)
    }

    fn memory(&self) -> (u64, u64) {
        dromon_wsrep::memory::held()
    }

    fn forget_memory_peak(&self) {
        dromon_wsrep::memory::forget_peak();
    }

    fn brake(&self) -> Option<Arc<dyn Brake>> {
        Some(Arc::new(CrashBrake))
    }
}

/// Pulled by the server's handler of fatal signals: while a crashed server writes its
/// report, nobody shall hear of it.
struct CrashBrake;

impl Brake for CrashBrake {
    fn pulled(&self) -> bool {
        isolation::mode() != Mode::NotIsolated
    }

    fn cover(&self, socket: BorrowedFd<'_>) -> bool {
        isolation::register_fd(socket.as_raw_fd())
    }

    fn release(&self, socket: BorrowedFd<'_>) {
        isolation::unregister_fd(socket.as_raw_fd());
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

    /// As the peer ends here: scripts and service managers know it (exit 134).
    fn give_up(&mut self) {
        let text = "this server waits for a copy of the data that will not come; it ends here";
        self.ctx.server().log(LogLevel::Info, text);
        dromon_wsrep::process::abort()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_servers_hook_is_the_brake_of_the_nodes_connections() {
        let brake = CrashBrake;
        let (mut own, mut far) = UnixStream::pair().expect("two sockets");
        assert!(brake.cover(own.as_fd()));
        assert!(!brake.pulled());
        own.write_all(b"x").expect("it stands");
        assert_eq!(isolation::set_mode(1), 0);
        assert!(brake.pulled());
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).expect("its end");
        assert_eq!(seen, b"x");
        assert_eq!(isolation::set_mode(2), 0);
        assert!(brake.pulled());
        assert_eq!(isolation::set_mode(0), 0);
        assert!(!brake.pulled());
        brake.release(own.as_fd());
    }
}
