//! `dromon witness`: a member that votes and stores the log, without a database.
//!
//! The member itself is a [`dromon_node::Node`] that was told so. Here is the
//! process around it: the options and the file of settings that garbd has, its
//! log, its directory, signals, and what it does when it is refused or lost.
//!
//! ```text
//!   config.rs  what was given, on the command line and in the file
//!   place.rs   the directory of the log, and the address others are told
//!   sink.rs    where lines of the log go
//!   run.rs     from the start to the end
//!   daemon.rs  away from the terminal
//! ```

#![forbid(unsafe_code)]

mod config;
mod daemon;
mod place;
mod run;
mod sink;

pub use config::{Config, ConfigError, DEFAULT_DIR, Given};
pub use run::{StartError, heed_hangups, run};
