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
//!
//! A primary may not name a domain any more in which the relay has groups (FLUSH BINARY LOGS DELETE_DOMAIN_ID). If it
//! wrote the last of them itself it has had them, and its tables show what they did. Of another server's that
//! cannot be said: the primary may be about to execute them, and sends them to nobody who has them.

use dromon_binlog::hints::{Hints, Limits};
use dromon_binlog::{BinlogState, Gtid, Position};

use super::desk::ReadTables;

/// Tables of no use in a row after which it is said why.
const USELESS: u32 = 3;

/// See the module.
#[derive(Debug, Default)]
pub struct Offers {
    held: Option<ReadTables>,
    /// What is read next may have been begun before a group out of order came.
    stale: bool,
    /// What the primary had written itself and the relay had, of each domain the last group, when tables were wanted.
    own: Option<Position>,
    /// Of a domain that the primary does not name: what keeps tables from being used, and how often it did so.
    lacks: Option<(Gtid, u32)>,
}

impl Offers {
    /// A group out of its domain's order has come, as a whole. `position`: all up to there has.
    pub fn unordered(&mut self, hints: &mut Hints, limits: Limits, position: Position) {
        *hints = Hints::behind(limits, position);
        self.held = None;
        self.stale = true;
    }

    /// Tables are wanted of this server; those that were wanted before have been taken. `position`: all up to
    /// there has come.
    pub fn wanted(&mut self, server_id: u32, position: impl FnOnce() -> Position) {
        let own = |gtid: &Gtid| gtid.server == server_id;
        self.own.get_or_insert_with(|| {
            let mut written = Position::new();
            position().iter().filter(own).for_each(|gtid| {
                written.set(gtid);
            });
            written
        });
    }

    /// Tables that were read, or nothing. `state`: all groups that have come. Gives why they are of no
    /// use, if that was so again and again, and whether it is new.
    pub fn take(
        &mut self,
        read: Option<ReadTables>,
        hints: &mut Hints,
        state: &BinlogState,
    ) -> Option<(String, bool)> {
        if let Some(mut read) = read {
            // It was begun to be read later.
            for gtid in self.own.take().unwrap_or_default().iter() {
                if read.before.position.get(gtid.domain).is_none() {
                    read.before.position.set(gtid);
                }
            }
            if !std::mem::take(&mut self.stale) {
                self.held = Some(read);
            }
        }
        let has_come = |read: &mut ReadTables| {
            let mut after = read.after.position.iter();
            after.all(|g| state.get(g.domain, g.server).is_some_and(|n| n >= g.seqno))
        };
        let read = self.held.take_if(has_come)?;
        let named = &read.before.position;
        let unnamed = |gtid: &Gtid| named.get(gtid.domain).is_none();
        let lacks = hints.changed().position.iter().find(unnamed);
        let before = self.lacks.map_or(0, |(_, times)| times);
        self.lacks = lacks.map(|gtid| (gtid, before.saturating_add(1)));
        hints.offer(read.before, read.after, read.catalog);
        let (gtid, times) = self.lacks.filter(|(_, times)| *times >= USELESS)?;
        Some((why(gtid), times == USELESS))
    }

    /// What waits was read over a connection that is no more: its server may have had what never comes.
    pub fn withdraw(&mut self) {
        self.held = None;
        self.own = None;
        self.lacks = None;
    }

    /// Whether tables wait.
    pub fn waits(&self) -> bool {
        self.held.is_some()
    }
}

fn why(gtid: Gtid) -> String {
    format!(
        "neither its gtid_binlog_pos nor its gtid_slave_pos names domain {}, in which the relay has {gtid}. If its data has that \
         (the domain was dropped with DELETE_DOMAIN_ID), let its gtid_slave_pos name it",
        gtid.domain
    )
}
