//! The parallel applier: follows the binlog of a primary, or of a relay, into a server, over
//! several connections.
//!
//! ```text
//!  primary or relay ──> source ──> engine ──> target
//!                                  │ schedule   who may start, who may commit
//!                                  │ compile    rows and statements made into SQL
//!                                  └ catalog    the target's tables
//! ```
//!
//! | module | what | without I/O |
//! |---|---|---|
//! | [`schedule`] | order, conflicts, retries | all |
//! | [`compile`] | events to statements | all |
//! | [`value`] | values to literals | all |
//! | [`ahead`] | what is applied beyond a position | all |
//! | [`names`] | tables that statements name | all |
//! | [`tune`] | how many connections, and transactions in one | all |
//! | [`staleness`] | how old what is applied is | all |
//! | [`xa`] | XA transactions between their two phases | all |
//! | [`source`] | whole transactions from a connection | |
//! | [`target`], [`catalog`], [`client`] | the server that is applied to | |
//! | [`engine`] | threads around all of it | |
//!
//! Promises and formats: `docs/replica.md`.

#![forbid(unsafe_code)]

pub mod ahead;
mod beside;
pub mod catalog;
pub mod client;
pub mod compile;
mod config;
pub mod engine;
#[cfg(test)]
mod fake_target;
mod http;
mod made;
pub mod names;
mod run;
pub mod schedule;
pub mod source;
pub mod staleness;
pub mod target;
pub mod tune;
pub mod unit;
pub mod unit_size;
pub mod value;
mod words;
pub mod xa;

pub use config::{Config, REPLICA};
pub use run::{RunError, run};
