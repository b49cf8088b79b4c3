//! Threads around the schedule: one that reads and plans, workers that apply, one that watches.
//!
//! ```text
//!  Puller ──transactions──> planner ──units──> Scheduler <──> workers ──SQL──> target
//!                              │                   ^
//!                              └ reads the catalog └── monitor: lock waits, samples, status
//! ```
//!
//! All of it is one *session*: it ends when a connection to the target is lost, and the next one
//! begins at the position that the target has then. So whether a commit succeeded whose answer
//! was lost is never guessed.

mod begin;
mod cases;
mod close;
mod fence;
mod gtids;
mod monitor;
mod naming;
mod own;
mod pace;
mod plan;
mod reader;
mod server;
#[cfg(test)]
mod session_tests;
mod settle;
mod shared;
mod status;
mod texts;
mod worker;
mod xa;

use std::panic::{AssertUnwindSafe, catch_unwind};

use dromon_binlog::Position;
use dromon_binlog::hints::Limits;

pub use begin::session;
pub use monitor::Progress;
pub use shared::{Activity, Conflict, Counters, End, Sample, Shared, Stalls, Waits};
pub use status::{Ready, Status};

use crate::client::Account;
use crate::compile::{Compare, Filter};
use crate::schedule::{Mode, Order};
use crate::source::Source;
use crate::tune::Knob;

/// What to do with what may or may not have been done before a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubt {
    /// Do it again; an error that says that it was done is none.
    #[default]
    Again,
    /// Take it for done.
    Skip,
    /// Stop, and let people decide.
    Stop,
}

/// What to do with a row that is not as the source had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Difference {
    /// Stop.
    #[default]
    Stop,
    /// Make it what it is after the change, and count.
    Repair,
}

/// How to apply.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the events come from.
    pub source: Source,
    /// Where they go.
    pub target: Account,
    /// Name of the row in `dromon_replica.position`.
    pub channel: String,
    /// Where a channel begins that is not there yet.
    pub start: Position,
    /// With the oldest that the source has, whatever is there.
    pub beginning: bool,
    /// What runs side by side.
    pub mode: Mode,
    /// Connections that apply.
    pub threads: Knob,
    /// Most transactions of the source in one of the target; none: by what they cost
    /// ([`crate::unit_size`]).
    pub merge: Option<usize>,
    /// Connections that read ahead.
    pub readers: Knob,
    /// The same in bytes of events.
    pub merge_bytes: usize,
    /// Transactions of the source that wait in memory, at most, in bytes.
    pub memory: usize,
    /// What is left out.
    pub filter: Filter,
    /// See [`Difference`].
    pub difference: Difference,
    /// See [`Compare`].
    pub compare: Compare,
    /// See [`Doubt`].
    pub doubt: Doubt,
    /// Transactions of the source are written to the target's binlog.
    pub binlog: bool,
    /// They have their GTIDs there.
    pub source_gtid: bool,
    /// In what order units commit.
    pub order: Order,
}

/// Keys in the history of the planner.
const HISTORY_KEYS: usize = 500_000;

/// How it ends when it is not the newest any more.
pub(crate) const ANOTHER: &str = "Another replica has begun to apply this channel: this one can commit nothing any more, and nothing is doubled.";

/// Limits of write sets.
pub(crate) fn limits() -> Limits {
    Limits {
        history_keys: HISTORY_KEYS,
        ..Limits::default()
    }
}

/// Runs a thread's work: if it panics, the session ends, and the next one begins at what is there.
fn guarded(shared: &Shared, what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        shared.end(End::Again(format!(
            "the thread that {what} has failed; this is an error of the program"
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_target::{Fake, settings};

    #[test]
    fn a_thread_that_fails_ends_the_session() {
        let fake = Fake::new(|_| None);
        let shared = Shared::new(&settings(&fake, &[]), String::new(), 64);
        guarded(&shared, "applies", || {});
        assert!(!shared.lock().has_ended());
        guarded(&shared, "applies", || panic!("a mistake"));
        let end = shared.take_end();
        assert!(
            matches!(&end, End::Again(why) if why.contains("applies")),
            "{end:?}"
        );
    }
}
