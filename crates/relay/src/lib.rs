//! The binlog server: pulls from a primary, stores crash-safely, serves replicas.
//!
//! ```text
//!   primary ──> pull ──> store ──> serve ──> replicas
//!                          │
//!                        files that mariadb-binlog reads
//! ```
//!
//! | module | what | without I/O |
//! |---|---|---|
//! | [`wire`] | the client/server protocol as packets | all |
//! | [`pull`] | the relay as a replica | `session`, `ingest`, `backoff` |
//! | [`store`] | files, their index, what may be purged | `places`, `tail`, `purge`, `mark` |
//! | [`serve`] | the relay as a primary | `session`, `sql`, `feed`, `registry` |
//! | [`given`] | settings as they are given; `dromon replica` reads its own with it, too | |
//! | [`http`] | how it stands, for monitoring and load balancers | `page`, `status` |
//! | [`net`] | sockets, TLS | |
//! | `watch` | what replicas have applied | |
//! | `clock` | a wall clock that jumps, beside one that does not; time that passes while the machine sleeps | all but `Clock`, `Moment` |
//!
//! Formats and promises: `docs/relay.md`.

#![forbid(unsafe_code)]

mod anew;
mod clock;
mod config;
mod descriptors;
pub mod given;
mod housekeeping;
pub mod http;
pub mod log;
pub mod net;
pub mod pull;
mod run;
pub mod serve;
pub mod store;
mod watch;
pub mod wire;

pub use clock::{Clock, Moment, Now};
pub use config::{Config, RELAY};
pub use given::{ConfigError, Given};
pub use run::{RunError, run};
