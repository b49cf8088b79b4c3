//! A cluster node for any transactional database.
//!
//! [`cluster`] is the deterministic heart: committed entries in, events out.
//! [`node`] puts threads, the order and a [`database::Database`] around it.

#![forbid(unsafe_code)]

mod bulk;
mod catching_up;
pub mod chain;
mod closed;
pub mod cluster;
pub mod database;
pub mod ddl_marks;
mod definitions;
mod delayed;
mod digests;
mod donor;
mod durabilities;
mod durable;
pub mod electors;
pub mod failed;
mod flow;
pub mod forks;
pub mod gone;
pub mod grastate;
mod held;
mod holders;
pub mod in_log;
pub mod lacking;
mod lags;
pub mod last_data;
pub mod logbook;
pub mod messages;
pub mod node;
pub mod options;
mod overflow;
mod parents;
mod patience;
mod quarantine;
pub mod retention;
pub mod spool;
pub mod stalled;
pub mod status;
mod streams;
mod taken;
pub mod tcp;
mod thinning;
mod trx;
mod turn;
mod uniques;
pub mod version;
mod votes;
mod working;
mod yielding;

pub use database::{Applied, Applier, Database, Level, Meta, Outcome, Standing, View, ViewMember};
pub use messages::Position;
pub use node::{
    ASK_ENGINE, Aside, AskError, ConnectError, EngineError, Engines, FINISH, ISOLATED, LogSummary,
    Node, OpenError, Phase, QUEUE_HERE, Setup,
};
pub use trx::Trx;
