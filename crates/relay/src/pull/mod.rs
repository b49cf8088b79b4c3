//! The relay as a replica of its primary.
//!
//! ```text
//!   primary ──TCP──> link ──packets──> session, then ingest ──> store ── fsync ──> acknowledgement
//!                     └── any break: backoff, and from the stored position again
//! ```
//!
//! The position asked for is always that of the store, so nothing is missing and nothing doubled
//! whatever broke. What came of a group that was not whole is taken back first.

mod ask;
mod backoff;
mod cluster;
mod connection;
mod desk;
mod entry;
mod following;
mod hinted;
mod ingest;
mod link;
mod lost;
mod mirror;
mod offers;
mod position;
mod session;
mod tables;

pub use ask::{AskError, Asker, Login};
pub use backoff::{Attempts, Backoff, Lived};
pub use cluster::Node;
pub use connection::{Connection, Fault};
pub use desk::{Desk, ReadTables, read_for_ever};
pub use entry::{Entry, EntryStep};
pub use following::Following;
pub use hinted::HintTook;
pub use ingest::{Act, Ingest, IngestError, Taken};
pub use link::{PullError, Puller, Source, Took, take};
pub use offers::Offers;
pub use position::{AskedServer, PositionError, PositionKind};
pub(crate) use session::quoted;
pub use session::{Primary, Sent, Session, SessionError, Step, Wish, follow, sent};
pub use tables::{TablesError, catalog_of, tables_of};
