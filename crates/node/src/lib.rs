//! A cluster node for any transactional database.

#![forbid(unsafe_code)]

pub mod grastate;
pub mod options;
pub mod status;
