//! The relay as a primary of its replicas.
//!
//! ```text
//!   replica ──TCP──> server ──> connection ── login, statements: session
//!                                   └── dump: Cursor ── stored events ──> feed ──> packets
//! ```
//!
//! A thread for each connection. What it holds is bounded: a piece of a file (or a shared one of
//! the tail), the event that is being sent, and 64 KiB of what goes out. A replica that takes
//! nothing for the time of `write_timeout` is disconnected.

mod connection;
mod dump;
mod feed;
mod logins;
mod quiet;
mod registry;
mod replica_list;
mod server;
mod session;
mod sql;
mod upstream;
mod wants;

pub use feed::{Feed, FeedError, Policy};
pub(crate) use registry::KNOWN_MAX;
pub use registry::{Called, Forgotten, Known, Registry, Unforgettable};
pub(crate) use replica_list::REPLICAS;
pub(crate) use server::NOT_TOLD;
pub use server::{Account, ServeOptions, Server};
pub use session::{Facts, Host, Listing, Reply, Session, errors};
pub use wants::{From, Wants};
