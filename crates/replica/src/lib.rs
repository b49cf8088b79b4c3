//! The parallel applier.
#![forbid(unsafe_code)]

pub mod schedule;
