//! Clients of a local cluster: sessions, writers that repeat a step, sysbench;
//! when a cluster has come to rest; and rates, gaps and percentiles of what
//! the clients saw; what that is written down with. The tests on real servers and `dromon bench` stand on it.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod paper;
pub mod rest;
pub mod rng;
pub mod series;
pub mod storm;
pub mod sysbench;
