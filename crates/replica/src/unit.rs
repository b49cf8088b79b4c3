//! What is applied in one transaction.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use dromon_binlog::hints::WriteSet;
use dromon_binlog::{
    Checksum, Ending, Event, EventError, EventType, Format, Group, Gtid, Payload,
    format_for_replica,
};
use rustc_hash::FxHashSet;

use crate::ahead::Ahead;
use crate::catalog::Tables;
use crate::compile::{CompileError, Filter, Op};
use crate::names::changes_rows;

/// Most bytes of events for which there is room before they come.
const LIKELY: usize = 16 << 10;

/// Events as they came, one behind the other in one piece: what one thread makes and another one
/// frees costs least as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// So many bytes come of what of them is compressed.
    unpacked: usize,
}

impl Events {
    /// With room for as many and as long ones as others have, within reason.
    pub fn like(other: &Events) -> Events {
        Events {
            bytes: Vec::with_capacity(other.bytes.len().min(LIKELY)),
            ends: Vec::with_capacity(other.ends.len().min(LIKELY / 64)),
            unpacked: 0,
        }
    }

    /// One more, which was checked.
    pub fn push(&mut self, event: &[u8]) {
        self.bytes.extend_from_slice(event);
        self.ends.push(self.bytes.len());
    }

    /// Of what is compressed in the last one come so many bytes.
    pub fn unpacks(&mut self, bytes: usize) {
        self.unpacked = self.unpacked.saturating_add(bytes);
    }

    /// Bytes that they take, with what comes of what is compressed.
    pub fn weight(&self) -> usize {
        self.bytes.len().saturating_add(self.unpacked)
    }

    /// None are left.
    pub fn clear(&mut self) {
        self.unpacked = 0;
        self.bytes.clear();
        self.ends.clear();
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All of them, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(a, b)| &self.bytes[a..*b])
    }
}

impl<E: AsRef<[u8]>> FromIterator<E> for Events {
    fn from_iter<I: IntoIterator<Item = E>>(all: I) -> Events {
        let mut events = Events::default();
        all.into_iter().for_each(|one| events.push(one.as_ref()));
        events
    }
}

/// How events look that came over one connection.
#[derive(Clone, Debug)]
pub struct Form {
    /// What their format description says.
    pub format: Format,
    /// The same as a whole event, for BINLOG statements: without the time at which the server was started. A target
    /// of MariaDB 10.6 may roll back what its session has under way when it is told one.
    pub raw: Vec<u8>,
}

impl Form {
    /// Of a format description.
    ///
    /// # Errors
    /// It is none.
    pub fn of(event: &Event<'_>) -> Result<Form, EventError> {
        let format = Format::decode(event.raw()).or_else(|_| {
            // Over a connection its own checksum may be stale.
            match event.decode(&Format::unknown())? {
                Payload::Format(format) => Ok(*format),
                _ => Ok(Format::unknown()),
            }
        })?;
        Ok(Form {
            format,
            raw: format_for_replica(event, false)?,
        })
    }
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
    pub events: Events,
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
        self.events.iter().map(parse)
    }

    /// What its events end with.
    pub fn checksum(&self) -> Checksum {
        self.form.format.checksum()
    }

    /// Whether rows stand in it.
    pub fn has_rows(&self) -> bool {
        // The type stands in the header's fifth byte.
        let kind = |raw: &[u8]| raw.get(4) == Some(&EventType::TABLE_MAP.0);
        self.events.iter().any(kind)
    }

    /// Bytes of its events, with what comes of what is compressed in them.
    pub fn bytes(&self) -> usize {
        self.events.weight()
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
    /// Rows for which triggers run.
    Triggers,
    /// Rows whose versions go by transactions.
    Versions,
}

impl Alone {
    /// All of them.
    pub const ALL: [Alone; 6] = [
        Alone::Statement,
        Alone::NotTransactional,
        Alone::Within,
        Alone::UnknownTable,
        Alone::Triggers,
        Alone::Versions,
    ];

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
            Alone::Triggers => "triggers",
            Alone::Versions => "versions",
        }
    }
}

/// What kinds of tables there are among some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Some whose changes can be rolled back.
    pub transactional: bool,
    /// Some whose changes cannot.
    pub not_transactional: bool,
}

/// Whether the server's own database is named, perhaps.
fn names_system(text: &[u8]) -> bool {
    text.windows(5)
        .any(|part| part.eq_ignore_ascii_case(b"mysql"))
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
    /// Of each transaction, whether its rows come when all is done with which it conflicts; the others
    /// need not wait for that. Empty: nobody need wait.
    pub last: Vec<bool>,
    /// Bytes of its events.
    pub bytes: usize,
    /// Of its transactions, how many the filter leaves out altogether.
    pub left_out: u64,
    /// Of its transactions, how many change a table without a unique key.
    pub keyless: u64,
    /// Its statements.
    pub made: Made,
}

/// The statements of a unit, which somebody makes before it may start, if there is time.
#[derive(Debug, Default)]
pub struct Made {
    claimed: AtomicBool,
    ops: OnceLock<Result<Vec<Op>, CompileError>>,
}

impl Made {
    /// Whether nobody has begun; whoever asks begins.
    pub fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }

    /// They; made now if they are not. Who comes while another one makes them waits for them.
    pub fn get(
        &self,
        make: impl FnOnce() -> Result<Vec<Op>, CompileError>,
    ) -> Result<&[Op], CompileError> {
        self.claimed.store(true, Ordering::Relaxed);
        self.ops.get_or_init(make).as_deref().map_err(Clone::clone)
    }
}

impl Unit {
    /// Tables that its rows are of, as `database.table`.
    pub fn table_names(&self) -> BTreeSet<String> {
        let mut seen = FxHashSet::default();
        let mut names = BTreeSet::new();
        for transaction in &self.transactions {
            for event in transaction.events().flatten() {
                // The same ones come again and again.
                let is_map = event.kind() == EventType::TABLE_MAP;
                if is_map
                    && seen.insert(event.body())
                    && let Ok(Payload::TableMap(map)) = event.decode(&transaction.form.format)
                {
                    let text = |name| String::from_utf8_lossy(name).into_owned();
                    names.insert(format!("{}.{}", text(map.database), text(map.table)));
                }
            }
        }
        names
    }

    /// Of what kinds the target's tables are that its rows change.
    pub fn kinds(&self, filter: &Filter) -> Kinds {
        let mut kinds = Kinds::default();
        for transaction in &self.transactions {
            for event in transaction.events().flatten() {
                if let Ok(Payload::TableMap(map)) = event.decode(&transaction.form.format)
                    && filter.wants(map.database, map.table)
                {
                    let table = self.tables.find(map.database, map.table);
                    match table.is_none_or(|table| table.transactional) {
                        true => kinds.transactional = true,
                        false => kinds.not_transactional = true,
                    }
                }
            }
        }
        kinds
    }

    /// Whether something of it may stay when it is rolled back, or is lost with its session. Temporary
    /// tables do not: nobody else has them.
    pub fn may_stay(&self, ops: &[Op], filter: &Filter) -> bool {
        let statements = ops.iter().filter_map(|op| match op {
            Op::Statement { setup, text, .. } if !op.is_place() => Some((setup, text)),
            _ => None,
        });
        let mut statements = statements.peekable();
        if statements.peek().is_some() {
            // Of the server's own tables nothing is known.
            let is_fit = |(setup, text): (&Vec<u8>, &Vec<u8>)| {
                changes_rows(text) && !names_system(setup) && !names_system(text)
            };
            return !(self.tables.can_be_rolled_back() && statements.all(is_fit));
        }
        let mut maps = self.transactions.iter().flat_map(|transaction| {
            let format = &transaction.form.format;
            let maps = transaction.events().flatten();
            maps.filter_map(|event| match event.decode(format) {
                Ok(Payload::TableMap(map)) => Some((map.database.to_vec(), map.table.to_vec())),
                _ => None,
            })
        });
        maps.any(|(database, table)| {
            let known = self.tables.find(&database, &table);
            filter.wants(&database, &table) && known.is_none_or(|table| !table.transactional)
        })
    }

    /// Its first and last GTID, for people.
    pub fn name(&self) -> String {
        match (self.transactions.first(), self.transactions.last()) {
            (Some(a), Some(b)) if a.gtid != b.gtid => format!("{} to {}", a.gtid, b.gtid),
            (Some(a), _) => a.gtid.to_string(),
            _ => String::new(),
        }
    }
}
