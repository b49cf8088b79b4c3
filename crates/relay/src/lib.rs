//! The binlog server: pulls from a primary, stores crash-safely, serves replicas.

#![forbid(unsafe_code)]

pub mod log;
pub mod pull;
pub mod store;
pub mod wire;
