//! The C ABI of the wsrep provider interface, version 26, made safe.
//!
//! ```text
//!   mariadbd                         this crate                        the author
//!   wsrep_loader  ----------------> export_provider!
//!   wsrep_t functions ------------> entry::*  check, copy, catch ----> trait Provider
//!   callbacks     <---------------- Server, RecvContext, ReplayContext <--- Provider
//!   services      <---------------- Server::allowed / event, config, isolation
//! ```
//!
//! An author implements [`Provider`] and writes [`export_provider!`] once, in a
//! cdylib. All `unsafe` of the project lives here: the border itself, [`mapped`], the one
//! place that maps files, [`process`], which looks at the program around this library, and
//! behind the feature `host` the module of that name, which loads a provider and plays the
//! server for it.
//!
//! What the border promises the author:
//!
//! * every argument was checked and is valid for the duration of the call; a NULL
//!   or unknown value where the interface forbids it never arrives (the server gets
//!   `NODE_FAIL` and a line in its log);
//! * `release` with an empty handle does not arrive at all (it is called for nearly
//!   every statement);
//! * a provider value is never dropped: [`Provider::close`] is its end, so a late call
//!   of the server can never touch freed memory.
//!
//! What it promises the server:
//!
//! * no panic crosses the border. It is logged with its place, then the call answers
//!   `NODE_FAIL`, or the process aborts where a seqno would be lost: in `recv`,
//!   `commit_order_enter`, `commit_order_leave`, `release`, `replay_trx`,
//!   `to_execute_end`, and in `certify` and `to_execute_start` once the write set
//!   has its seqno.

pub mod abi;
#[cfg(feature = "host")]
pub mod host;
pub mod isolation;
pub mod mapped;
pub mod memory;
pub mod process;

mod entry;
mod export;
mod provider;
mod recv;
mod server;
mod services;
mod slot;
mod types;
mod view;

pub use mapped::MappedFile;
pub use provider::Provider;
pub use recv::{ApplyResult, RecvContext, ReplayContext};
pub use server::Server;
pub use slot::TrxSlot;
pub use types::{
    AllowlistKey, CONN_ID_UNDEFINED, CallbackFailed, DataType, Gtid, InitArgs, KeyType, LogLevel,
    Parameter, ParameterValue, SEQNO_UNDEFINED, Seqno, StatsValue, StatsVar, Status, Stid,
    TRX_ID_UNDEFINED, TrxMeta, Uuid, capability, flags,
};
pub use view::{MemberInfo, View, ViewStatus};

/// What [`export_provider!`] expands to; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::entry::{get_parameters, load};
    pub use crate::export::{InterfaceVersion, c_text};
    pub use crate::services::{
        deinit_allowlist, deinit_event, init_allowlist, init_config, init_event,
    };
}
