//! Does one large transaction stop the small ones? `dromon bench stall`.
//!
//! ```text
//!  plan ──> run ──> for each round, provider and mode a trial:
//!                     large, alone            how long, how many seqnos
//!                     small + large beside    commits, samples, marks
//!                        │
//!                     figures: pure, from what was recorded
//!                        │
//!                     report: table, CSV, chart
//! ```
//!
//! What the numbers mean is in `docs/bench.md`.

#![forbid(unsafe_code)]

mod chart;
mod csv;
mod figures;
mod large;
mod plan;
mod report;
mod run;
mod sampler;
mod table;
mod tables;
mod trial;
mod work;

use std::time::{Duration, Instant};

pub use figures::{Figures, Times};
pub use plan::{Large, Mode, Pace, Plan, Provider, Small, parse_size};
pub use report::{Entry, Report, write_files};
pub use run::run;
pub use sampler::Sample;
pub use trial::{Marks, Outcome, Trace};
pub use work::Commit;

/// Time since a trial's zero: one clock for clients, samples and marks.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// Waits until `moment`, not at all if it has passed.
    fn sleep_until(self, moment: Duration) {
        std::thread::sleep(moment.saturating_sub(self.now()));
    }
}
