//! A cluster node for any transactional database.

#![forbid(unsafe_code)]
