//! The relay as a replica of its primary.
//!
//! ```text
//!   primary ──TCP──> link ──packets──> session, then ingest ──> store ── fsync ──> acknowledgement
//!                     └── any break: backoff, and from the stored position again
//! ```
//!
//! The position asked for is always that of the store, so nothing is missing and nothing doubled
//! whatever broke. What came of a group that was not whole is taken back first.

mod backoff;
mod ingest;
mod link;
mod session;

pub use backoff::Backoff;
pub use ingest::{Act, Ingest, IngestError, Taken};
pub(crate) use link::prepare;
pub use link::{Following, PullError, Puller, Source, Took, take};
pub use session::{Primary, Sent, Session, SessionError, Step, Wish, follow, sent};
