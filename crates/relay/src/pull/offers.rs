//! Tables that were read wait here until their place in the stream is reached.
//!
//! [`Hints`] compares places by the numbers of GTIDs. That is right as long as these rise in each
//! domain. Where several servers write into one domain without gtid_strict_mode they need not:
//!
//! ```text
//!   0-1-99   0-2-50 (a DDL)   0-1-100        the order in which they were committed
//!                 read here ──┘              position 0-2-50: 0-1-99 looks as if it was behind it
//! ```
//!
//! So an offer waits until the very group has come that stands in it, and with a group out of order
//! everything is forgotten that was read, or begun to be read, before it.

use dromon_binlog::hints::{Hints, Limits};
use dromon_binlog::{BinlogState, Position};

use super::desk::ReadTables;

/// See the module.
#[derive(Debug, Default)]
pub struct Offers {
    held: Option<ReadTables>,
    /// What is read next may have been begun before a group out of order came.
    stale: bool,
}

impl Offers {
    /// A group out of its domain's order has come, as a whole. `position`: all up to there has.
    pub fn unordered(&mut self, hints: &mut Hints, limits: Limits, position: Position) {
        *hints = Hints::behind(limits, position);
        self.held = None;
        self.stale = true;
    }

    /// Tables that were read, or nothing. `state`: all groups that have come.
    pub fn take(&mut self, read: Option<ReadTables>, hints: &mut Hints, state: &BinlogState) {
        if let Some(read) = read
            && !std::mem::take(&mut self.stale)
        {
            self.held = Some(read);
        }
        let has_come = |read: &mut ReadTables| {
            let mut after = read.after.position.iter();
            after.all(|g| state.get(g.domain, g.server).is_some_and(|n| n >= g.seqno))
        };
        if let Some(read) = self.held.take_if(has_come) {
            hints.offer(read.before, read.after, read.catalog);
        }
    }

    /// What waits was read over a connection that is no more: its server may have had what never comes.
    pub fn withdraw(&mut self) {
        self.held = None;
    }

    /// Whether tables wait.
    pub fn waits(&self) -> bool {
        self.held.is_some()
    }
}
