//! How the relay stands, over HTTP: for Prometheus, people, and load balancers.
//!
//! ```text
//! GET /metrics                       Prometheus' text format
//! GET /status.json                   all of it
//! GET /replica/NAME?max_lag=SECONDS  200: send readers there; 503: do not, and why
//! ```
//!
//! One request for each connection, which is closed behind the answer. Requests that are larger or
//! slower than the limits are refused. [`listen`], [`request`] and [`Families`] know nothing of relays.

mod asked;
mod families;
mod judge;
mod listen;
mod metrics;
mod page;
mod questions;
mod server;
mod status;

pub use crate::watch::Watch;
pub use asked::{Asked, asked};
pub use families::Families;
pub use judge::{Judged, judge};
pub use listen::{Answer, listen};
pub use metrics::metrics;
pub use page::{Request, Response, request};
pub use questions::{Questions, Told, Who};
pub use server::HttpServer;
pub use status::{Heard, HintStatus, PrimaryStatus, ReplicaStatus, Status, primary_lag_ms};
