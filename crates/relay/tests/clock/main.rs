//! Logical clocks in mirrored files and beside GTIDs: from a primary like MySQL 5.7 through the relay to a replica.
//!
//! No server here can take what comes out. So it is read by a decoder that was written from the
//! layout in docs/binlog.md and shares no code with the crates, and held against a model of what a
//! replica may then run side by side.

#[path = "../common/mod.rs"]
mod common;
mod decoder;
mod gtids;
mod model;
mod over_tcp;
mod placed;
mod primary;
mod served;
mod stored;
