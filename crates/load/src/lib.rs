//! Clients of a local cluster: sessions, writers that repeat a step, sysbench; when a cluster has
//! come to rest. And what experiments have in common: rates, gaps and percentiles of what was seen,
//! rounds and places, what it was measured on, and what it is written down with. The tests on real
//! servers and `dromon bench` stand on it.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod bench;
pub mod machine;
pub mod paper;
pub mod rest;
pub mod rng;
pub mod series;
pub mod storm;
pub mod sysbench;
