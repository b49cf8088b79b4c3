//! Write sets: keys, flags, the wire codec and its checksums.

#![forbid(unsafe_code)]

mod ids;

pub use ids::{ParseUuidError, Seqno, Uuid};
