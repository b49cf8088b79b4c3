//! Hints for parallel replicas: which transactions may run side by side, by
//! what they write.
//!
//! ```text
//!  events ──> Collector ──> WriteSet ──> History ──> Placed ──┬─> Batches    commit id
//!                 ^          or barrier                       └─> FileClock  logical clock
//!                 │
//!              Catalog: tables, unique keys, foreign keys
//! ```
//!
//! [`Hints`] is all of it in one. It decides from the stream alone, without
//! clock and I/O, within limits that it is given; the same stream and catalogs
//! give the same hints.
//!
//! A wrong hint stops a replica, a missing one costs some speed. So a
//! transaction is taken as touching all it might touch, and as a barrier where
//! that cannot be said. The rules, and why each is safe: `docs/hints.md`.

mod collect;
mod fold;
mod history;
mod keys;
mod name;
mod rows;
mod schema;
mod statement;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use collect::Collector;
pub use history::{Batches, FileClock, History, Placed};
pub use keys::{Barrier, Union, WriteSet};
pub use name::{Meeting, Met, Namer};
pub use schema::{Action, Catalog, Column, ForeignKey, KeyPart, TableName, TableSchema};

use crate::event::Payload;
use crate::format::Format;
use crate::gtid::Position;
use crate::gtid_set::GtidSet;
use crate::mysql_gtid::LogicalClock;
use crate::stream::{Group, GroupName, Seen, Step};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys in the history of one domain; about 100 bytes each.
    pub history_keys: usize,
    /// Values of one table in one transaction; more are all of the table.
    pub table_keys: usize,
    /// Keys of one transaction; more make it a barrier.
    pub transaction_keys: usize,
    /// Tables in one transaction, and table maps that are remembered.
    pub tables: usize,
    /// Bytes of what is decompressed at once; more are all of the table.
    pub bytes: usize,
    /// Transactions under one commit id.
    pub batch: usize,
    /// Domains that are followed at a time. Groups of others have no commit id.
    pub domains: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            history_keys: 500_000,
            table_keys: 20_000,
            transaction_keys: 100_000,
            tables: 4096,
            bytes: 64 << 20,
            batch: 32,
            domains: 64,
        }
    }
}

/// A domain rests when none of so many groups for each domain that is followed was its own.
const REST_GROUPS: u64 = 32;

/// What was found out about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The group.
    pub group: Group,
    /// Its place in its domain.
    pub placed: Placed,
    /// For MariaDB: its commit id. `None`: it shall have none; if it has one
    /// that cannot be taken away, give it its own seqno.
    pub commit_id: Option<u64>,
    /// For MySQL: its numbers in the file. `None`: its primary gave it none, or
    /// numbers that do not follow those of the one before it.
    pub clock: Option<LogicalClock>,
    /// Why nothing may run beside it, if so.
    pub barrier: Option<Barrier>,
}

/// One domain: a sequence of transactions that replicas keep in order. MySQL
/// has one alone, in which numbers are those of its files.
#[derive(Clone, Debug)]
struct Domain {
    history: History,
    batches: Batches,
    file: FileClock,
    /// When a group of it came last, in groups of the stream.
    used: u64,
}

impl Domain {
    fn after(limits: Limits, last: u64) -> Domain {
        Domain {
            history: History::after(last, limits.history_keys),
            batches: Batches::new(limits.batch),
            file: FileClock::default(),
            used: 0,
        }
    }

    /// Whether a transaction to which the primary gave this sequence number is
    /// the next one of the file.
    fn follows(&self, sequence: u64) -> bool {
        self.file.next(self.history.last()) == sequence
    }
}

/// Up to where a stream has come, or what a server has: by GTIDs of MariaDB or
/// places that rise, or as a set of GTIDs of MySQL. One of the two is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The newest of each domain.
    pub position: Position,
    /// All of MySQL.
    pub set: GtidSet,
}

impl From<Position> for Reached {
    fn from(position: Position) -> Reached {
        Reached {
            position,
            ..Reached::default()
        }
    }
}

impl From<GtidSet> for Reached {
    fn from(set: GtidSet) -> Reached {
        Reached {
            set,
            ..Reached::default()
        }
    }
}

impl Reached {
    /// Whether all of `other` is reached.
    pub fn covers(&self, other: &Reached) -> bool {
        self.position.covers(&other.position) && other.set.is_subset(&self.set)
    }
}

/// Computes hints for all groups of a stream.
#[derive(Debug)]
pub struct Hints {
    limits: Limits,
    collector: Collector,
    domains: BTreeMap<u32, Domain>,
    /// Groups that came.
    groups: u64,
    /// Of the open group, as MySQL wrote it.
    own: Option<LogicalClock>,
    /// Up to here the stream was seen.
    at: Reached,
    /// Up to the last groups that may have changed a table.
    changed: Reached,
    offer: Option<Offer>,
    /// What is offered next may have been read before a table changed.
    stale: bool,
}

/// A catalog that was read while the primary stood somewhere else.
#[derive(Debug)]
struct Offer {
    before: Reached,
    after: Reached,
    catalog: Catalog,
}

impl Hints {
    /// Knowing nothing: all rows are barriers until [`Hints::learn`].
    pub fn new(limits: Limits) -> Hints {
        Hints {
            limits,
            collector: Collector::new(limits),
            domains: BTreeMap::new(),
            groups: 0,
            own: None,
            at: Reached::default(),
            changed: Reached::default(),
            offer: None,
            stale: false,
        }
    }

    /// The same, of a stream that goes on behind this position: GTIDs of
    /// MariaDB, a set of those of MySQL, or a place as [`Hints::event_at`] wants
    /// it. Which groups before it changed a table is not known.
    pub fn behind(limits: Limits, position: impl Into<Reached>) -> Hints {
        let at = position.into();
        Hints {
            at: at.clone(),
            changed: at,
            ..Hints::new(limits)
        }
    }

    /// See [`Collector::learn`].
    ///
    /// No batch goes on over it: the statement that changed a table stands in
    /// one domain, and keys of the others have another meaning as well.
    pub fn learn(&mut self, catalog: Catalog) {
        self.collector.learn(catalog);
        for domain in self.domains.values_mut() {
            domain.history.settle();
        }
    }

    /// A catalog that was read from the primary, with its position before and
    /// after that (`gtid_binlog_pos` of MariaDB, `gtid_executed` of MySQL; else the
    /// end of its binlog, as a place of [`Hints::event_at`]). It is learnt when the stream
    /// has passed the second, if no group behind the first one may have changed
    /// a table; else it is dropped. A later offer takes the place of one that
    /// still waits. The next one after a group without a name that may have
    /// changed a table (an incident) is dropped, too: no position tells whether
    /// it was read before.
    pub fn offer(
        &mut self,
        before: impl Into<Reached>,
        after: impl Into<Reached>,
        catalog: Catalog,
    ) {
        if std::mem::take(&mut self.stale) {
            self.offer = None;
            return;
        }
        self.offer = Some(Offer {
            before: before.into(),
            after: after.into(),
            catalog,
        });
        self.weigh_offer();
    }

    /// What waits was read from a server whose stream does not go on: it may have
    /// had what never comes.
    pub fn withdraw(&mut self) {
        self.offer = None;
    }

    /// Up to the last groups that may have changed a table: an offer whose first position does not cover them is
    /// dropped.
    pub fn changed(&self) -> &Reached {
        &self.changed
    }

    /// Whether an offer waits. If not, and without a catalog, it is time to
    /// read one.
    pub fn has_offer(&self) -> bool {
        self.offer.is_some()
    }

    fn weigh_offer(&mut self) {
        let Some(offer) = self.offer.take() else {
            return;
        };
        // Whether it shows what that group did cannot be said; nor what the open one does, which has
        // changed a table and not ended (CREATE OR REPLACE TABLE … SELECT).
        if self.collector.has_lost() || !offer.before.covers(&self.changed) {
            return;
        }
        // No keys that are being built are in it. The end of that makes it void.
        match self.at.covers(&offer.after) && !self.collector.alters() {
            true => self.learn(offer.catalog),
            false => self.offer = Some(offer),
        }
    }

    /// Whether tables are known. After a statement that may have changed one
    /// they are not, until the next [`Hints::learn`].
    pub fn has_catalog(&self) -> bool {
        self.collector.catalog().is_some()
    }

    /// The connection was lost: the open group will come again.
    pub fn interrupt(&mut self) {
        self.collector.interrupt();
        self.own = None;
    }

    /// What follows is written into a new file, in which MySQL's numbers begin
    /// anew.
    pub fn begin_file(&mut self) {
        for domain in self.domains.values_mut() {
            domain.file = FileClock::begin_file(domain.history.last());
        }
    }

    /// Takes the next event. Gives the hint of the group that ends with it.
    pub fn event(&mut self, seen: &Seen<'_>, format: &Format) -> Option<Hint> {
        let hint = self.take(seen, format)?;
        let changed = self.collector.take_lost();
        match hint.group.name {
            GroupName::MariaDb(gtid) => {
                self.at.position.set(gtid);
                if changed {
                    self.changed.position.set(gtid);
                }
            }
            GroupName::MySql { source, number } => {
                self.at.set.add(source, number);
                // Sets have no order, so nothing less than all up to there will do.
                if changed {
                    self.changed.set.clone_from(&self.at.set);
                }
            }
            GroupName::Nameless => {
                // What waits is the one that was read; else it may be under way.
                if changed {
                    self.stale = self.offer.take().is_none();
                }
                return Some(hint);
            }
        }
        self.weigh_offer();
        Some(hint)
    }

    /// The same, of a stream without GTIDs. `end`: where in the
    /// primary's files the event ends, if no group is open there. Places are
    /// numbers that grow with the stream: the seqno of one domain.
    pub fn event_at(
        &mut self,
        seen: &Seen<'_>,
        format: &Format,
        end: Option<Position>,
    ) -> Option<Hint> {
        let hint = self.take(seen, format);
        if let Some(end) = end {
            let end = Reached::from(end);
            if self.collector.take_lost() {
                self.changed = end.clone();
            }
            self.at = end;
            self.weigh_offer();
        }
        hint
    }

    fn take(&mut self, seen: &Seen<'_>, format: &Format) -> Option<Hint> {
        if let Step::Begin(_) | Step::Alone(..) = seen.step {
            self.own = own_clock(seen, format);
        }
        let set = self.collector.event(seen, format)?;
        // Of a group whose beginning was not seen there is none.
        let own = self.own.take();
        let (Step::End(group, _) | Step::Alone(group, _)) = seen.step else {
            return None;
        };
        let (domain, seqno) = match group.name {
            GroupName::MariaDb(gtid) => (gtid.domain, gtid.seqno),
            GroupName::MySql { number, .. } => (0, number),
            GroupName::Nameless => (0, 0),
        };
        Some(self.place(group, (domain, seqno), set, own))
    }

    /// Whether this domain is followed, or can be from here on. The one that was used longest ago goes for it,
    /// if it rests: were it put out in any case, domains in turn would put out one another, and none of them
    /// would have a batch.
    fn makes_room(&mut self, domain: u32) -> bool {
        if self.domains.len() < self.limits.domains || self.domains.contains_key(&domain) {
            return true;
        }
        let oldest = self.domains.iter().min_by_key(|(_, of)| of.used);
        let Some((oldest, used)) = oldest.map(|(id, of)| (*id, of.used)) else {
            return false;
        };
        let rests = (self.groups - used) / REST_GROUPS >= self.limits.domains as u64;
        if rests {
            self.domains.remove(&oldest);
        }
        rests
    }

    fn place(
        &mut self,
        group: Group,
        (domain, seqno): (u32, u64),
        set: WriteSet,
        own: Option<LogicalClock>,
    ) -> Hint {
        self.groups += 1;
        let limits = self.limits;
        // Of a domain that finds no room each group is the first one: it has no commit id.
        let mut alone = Domain::after(limits, 0);
        let of = match self.makes_room(domain) {
            true => {
                let of = self.domains.entry(domain);
                of.or_insert_with(|| Domain::after(limits, 0))
            }
            false => &mut alone,
        };
        of.used = self.groups;
        let sequence = own.and_then(|own| u64::try_from(own.sequence_number).ok());
        let sequence = sequence.filter(|sequence| *sequence > 0);
        let follows = sequence.is_some_and(|sequence| of.follows(sequence));
        if let (Some(sequence), false) = (sequence, follows) {
            // It begins in the middle of a file, or some are missing. Whatever
            // comes depends on all before.
            let used = of.used;
            *of = Domain {
                used,
                ..Domain::after(limits, sequence - 1)
            };
        }
        let placed = of.history.take(&set);
        Hint {
            group,
            placed,
            commit_id: of.batches.take(placed, &set, seqno),
            clock: follows.then(|| of.file.clock(placed)),
            barrier: set.0.err(),
        }
    }
}

/// The numbers that MySQL gave a group, out of its first event.
fn own_clock(seen: &Seen<'_>, format: &Format) -> Option<LogicalClock> {
    match seen.event.decode(format) {
        Ok(Payload::MySqlGtid(gtid)) => gtid.clock,
        _ => None,
    }
}
