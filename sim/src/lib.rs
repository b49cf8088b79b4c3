//! Deterministic simulation of a whole cluster.
//!
//! One seed makes one run: the real order engine, log, certification, cluster
//! state and gates of several nodes, over a simulated network, simulated disks
//! and simulated clocks, with a toy database on top, clients that fight over a
//! few counters, and faults. Oracles watch all the time. The same seed gives
//! the same run to the byte. `docs/simulation.md` is the page on it.

#![forbid(unsafe_code)]

pub mod database;
pub mod directed;
pub mod disk;
pub mod faults;
pub mod large;
pub mod net;
pub mod node;
pub mod oracle;
pub mod plant;
pub mod rng;
pub mod shared;
pub mod standstill;
pub mod trace;
pub mod weights;
pub mod world;

pub use directed::Directed;
pub use oracle::{Oracle, Violation};
pub use plant::Plant;
pub use world::{Config, Outcome, run};
