//! What is applied in one transaction.

use std::sync::Arc;

use dromon_binlog::hints::WriteSet;
use dromon_binlog::{Checksum, Ending, Event, EventError, EventType, Format, Group, Gtid};

use crate::ahead::Ahead;
use crate::catalog::Tables;

/// An event as it came: a packet, and where in it the event begins.
#[derive(Clone, Debug)]
pub struct Raw {
    packet: Vec<u8>,
    at: usize,
}

impl Raw {
    /// The event begins at byte `at` of the packet, and was checked.
    pub fn new(packet: Vec<u8>, at: usize) -> Raw {
        Raw { packet, at }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.packet[self.at..]
    }
}

/// How events look that came over one connection.
#[derive(Clone, Debug)]
pub struct Form {
    /// What their format description says.
    pub format: Format,
    /// The same as a whole event, for BINLOG statements.
    pub raw: Vec<u8>,
}

/// What belongs to a transaction besides its events: changes of the replica's own tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// All that name the same come one after the other.
    pub name: Vec<u8>,
    /// Statements, and how many rows each must change.
    pub statements: Vec<(Vec<u8>, u64)>,
}

/// A transaction of the source, or a statement that stands alone.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its name.
    pub gtid: Gtid,
    /// What its GTID event says.
    pub group: Group,
    /// What it ended with.
    pub ending: Ending,
    /// All its events, the GTID event first.
    pub events: Vec<Raw>,
    /// How they look.
    pub form: Arc<Form>,
    /// What is done besides.
    pub own: Option<Own>,
}

impl Transaction {
    /// Its events, which were checked when they came.
    pub fn events(&self) -> impl Iterator<Item = Result<Event<'_>, EventError>> {
        let checksum = self.checksum();
        let parse = move |raw| Event::parse_unverified(raw, checksum);
        self.events.iter().map(Raw::bytes).map(parse)
    }

    /// What its events end with.
    pub fn checksum(&self) -> Checksum {
        self.form.format.checksum()
    }

    /// Whether rows stand in it.
    pub fn has_rows(&self) -> bool {
        // The type stands in the header's fifth byte.
        let kind = |raw: &Raw| raw.bytes().get(4) == Some(&EventType::TABLE_MAP.0);
        self.events.iter().any(kind)
    }

    /// Bytes of its events.
    pub fn bytes(&self) -> usize {
        self.events.iter().map(|raw| raw.bytes().len()).sum()
    }
}

/// Why a unit runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alone {
    /// A DDL, or another statement that stands for itself: it commits by itself.
    Statement,
    /// Tables without transactions take part.
    NotTransactional,
    /// A statement within a transaction.
    Within,
    /// Rows of a table that the target does not have, or has otherwise.
    UnknownTable,
}

impl Alone {
    /// Whether it cannot be rolled back.
    pub fn is_final(self) -> bool {
        matches!(self, Alone::Statement | Alone::NotTransactional)
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Alone::Statement => "ddl",
            Alone::NotTransactional => "not_transactional",
            Alone::Within => "statement",
            Alone::UnknownTable => "unknown_table",
        }
    }
}

/// One or several transactions of the source that are applied in one of the target.
#[derive(Debug)]
pub struct Unit {
    /// In the source's order.
    pub transactions: Vec<Transaction>,
    /// The position before it.
    pub before: String,
    /// The position when it has committed.
    pub position: String,
    /// What of the source it is.
    pub ahead: Ahead,
    /// The target has it already: it committed before an earlier one, and then there was a crash.
    pub done: bool,
    /// The target's tables when it is applied.
    pub tables: Arc<Tables>,
    /// Why nothing runs beside it, if so.
    pub alone: Option<Alone>,
    /// What it touches.
    pub keys: Arc<WriteSet>,
    /// Bytes of its events.
    pub bytes: usize,
}

impl Unit {
    /// Its first and last GTID, for people.
    pub fn name(&self) -> String {
        match (self.transactions.first(), self.transactions.last()) {
            (Some(a), Some(b)) if a.gtid != b.gtid => format!("{} to {}", a.gtid, b.gtid),
            (Some(a), _) => a.gtid.to_string(),
            _ => String::new(),
        }
    }
}
