//! Total order among the members of a cluster.
//!
//! [`Order`] is what the node sees: it proposes messages, and takes them back
//! in one sequence that is the same on every member and survives whatever a
//! majority survives. Behind the trait stand openraft (the consensus), our log
//! (durability), our transport, and four thin layers of our own: forwarding to
//! the leader with exactly-once delivery, the primary lease, checkpoints, and
//! the membership reconciler. `docs/order.md` explains the room.

#![forbid(unsafe_code)]

pub mod address;
mod candidate;
mod checked;
mod codec;
mod confirm;
mod cores;
mod deaf;
pub mod disklog;
pub mod engine;
mod engine_core;
mod engine_net;
mod engine_tasks;
#[cfg(test)]
mod exactly_once_tests;
#[doc(hidden)]
pub mod fuzzed;
mod gather;
mod inbox;
mod intake;
mod lease;
pub mod logstore;
mod membership;
pub mod memlog;
pub mod memnet;
pub mod message;
pub mod network;
mod pacing;
pub mod pending;
mod proof;
mod raft_types;
mod refusal;
mod runtime;
pub mod sequencer;
pub mod show;
mod storage;
mod stored;
mod stuck;
pub mod tcp;
pub mod types;
mod whereabouts;
pub mod wire;

pub use checked::Sums;
pub use engine::{Engine, MakeNetwork, start};
pub use network::{Frame, Inbound, Lane, LinkStatus, NetError, Network, Presence, SendError};
pub use sequencer::{Committed, CommittedBody, Delivered, Part, RawMessage, Sequencer};
pub use storage::{Inspected, inspect};
pub use stored::Stored;
pub use types::{
    BoxFuture, Checkpoint, Desired, Done, EngineConfig, Gathering, Leadership, LogId, Members,
    NodeHandler, Order, OrderError, OrderStatus, PeerStatus, RaftId, Reply, Start, incarnation,
};
