//! How fast do replicas catch up? `dromon bench catchup`.
//!
//! ```text
//!  plan ──> run ──> for each workload a backlog:
//!                     primary: tables, a copy of its data, then one client commits
//!                     for each condition, round and candidate a trial:
//!                       a server on that copy, slowed down, catches up
//!                         │
//!                     figures: medians, speed-up, targets; pure
//!                         │
//!                     report: tables, CSV, chart
//! ```
//!
//! What the numbers mean is in `docs/bench.md`.

#![forbid(unsafe_code)]

mod backlog;
mod chart;
mod figures;
mod plan;
mod program;
mod report;
mod results;
mod run;
mod slow;
mod trial;
mod trials;
mod workload;

pub use figures::{Aim, Line};
pub use plan::{Candidate, Condition, Plan, Policy, ReplicaMode, ServerMode, Threads, Workload};
pub use report::{Entry, Report, write_files};
pub use run::run;
pub use trial::{Measured, Outcome};
