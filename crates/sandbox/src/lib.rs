//! Starts, hurts and stops local clusters of real servers.
//!
//! A [`Cluster`] is a directory: one sub-directory per node (`db1`, `db2`, …)
//! and `cluster.json`, which says how each node is reached and which process
//! runs it. Another process opens the same directory later and stops exactly
//! what was started, by process id and start time, never by name.
//!
//! ```text
//! DIR/cluster.json        what was started (mode 0600: it holds the password)
//! DIR/cluster.lock        held while a cluster is being made, changed, started, stopped or removed
//! DIR/lib/<provider>.so   the copy that the servers load
//! DIR/db1/my.cnf          settings          DIR/db1/client.cnf  how to connect
//! DIR/db1/data/           data directory    DIR/db1/error.log   server's log
//! DIR/db1/mysqld.sock     socket
//! DIR/witness/log/        log of the witness, if there is one; DIR/witness/witness.log its messages
//! ```
//!
//! A [`Standalone`] is a server in no cluster. Servers listen on 127.0.0.1 only. Started by root they run as user mysql,
//! otherwise as the caller.

#![forbid(unsafe_code)]

mod cluster;
mod config;
mod copy;
mod error;
mod node;
mod ports;
mod process;
mod record;
mod secure;
mod standalone;
mod status;
mod template;
mod who;
mod witness;

pub use cluster::{Cluster, JoinPlan};
pub use config::{ClusterSpec, QUICK_START, Setting, SstMethod, split_settings};
pub use error::{During, Left, LogTail, Result, SandboxError};
pub use mysql;
pub use node::{Node, Start};
pub use ports::Ports;
pub use process::{BadEnd, ProcessId, ProcessState, StopReport, Usage};
pub use record::{ClusterRecord, Hold, NodeNetwork, NodeRecord, is_ours};
pub use standalone::{MARKER, Standalone, end_left_behind, free_ports};
pub use status::{ClusterStatus, NodeStatus, ProcessView, Verdict, WitnessStatus, WsrepStatus};
pub use template::server_version;
pub use who::{first_unreachable, reachable_by_server};
pub use witness::{Witness, WitnessRecord};
