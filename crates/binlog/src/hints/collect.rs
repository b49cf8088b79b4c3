//! Write sets out of a stream of events.
//!
//! A [`Collector`] sees every event that a [`crate::Grouper`] took, and gives
//! the write set of a group when its last event has come. Whatever it does not
//! understand makes the group a barrier.
//!
//! ```text
//!             GTID            table map        rows          COMMIT, XID
//!  Building ────────> keys ────────────> ... ───────> keys ─────────────> WriteSet
//!      │ DDL, XA, …      │ no schema       │ statement, unknown event
//!      └─────────────────┴─────────────────┴──> barrier ────────────────> WriteSet
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::bytes::bit;
use crate::column::ColumnType;
use crate::event::{Event, Payload};
use crate::format::{Flavour, Format};
use crate::gtid::Gtid;
use crate::gtid_event::{GtidEvent, gtid_extra, gtid_flags};
use crate::header::{EventType, flags};
use crate::packed;
use crate::rows_event::RowsEvent;
use crate::stream::{Ending, Group, GroupName, Seen, Step};
use crate::table_map::TableMap;

use super::Limits;
use super::fold::hides_its_width;
use super::keys::{Barrier, KeyCollector, WriteSet};
use super::rows::{RowKeys, touch_all};
use super::schema::{Catalog, Table, TableName};
use super::statement::{Meaning, meaning};

/// How much of a table's rows can be read.
#[derive(Clone, Debug)]
pub(super) enum Use {
    /// Nothing is known of it.
    Unknown(TableName),
    /// Its rows do not help: it is touched as a whole.
    Whole(usize),
    /// Keys come out of rows of these columns.
    Rows(usize, Vec<ColumnType>),
}

impl Use {
    /// What the catalog knows of a table, if that is the table.
    pub(super) fn of(catalog: Option<&Catalog>, map: &TableMap<'_>, flavour: Flavour) -> Use {
        let unknown = || {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            Use::Unknown(TableName {
                database: text(map.database),
                table: text(map.table),
            })
        };
        let Some(catalog) = catalog else {
            return unknown();
        };
        let Some(n) = catalog.find(map.database, map.table) else {
            return unknown();
        };
        let table = catalog.table(n);
        let width = table.columns.len();
        let types = map.columns();
        if map.width() != width {
            let more = types.as_ref().ok().and_then(|types| types.get(width..));
            if !table.hides || !more.is_some_and(are_hidden) {
                return unknown();
            }
        }
        // A type that is not known here, or fields that do not fit.
        let Ok(types) = types else {
            return Use::Whole(n);
        };
        let Ok(metadata) = map.metadata(&types, flavour) else {
            return Use::Whole(n);
        };
        if let Some(names) = &metadata.names {
            let mut both = names.iter().zip(&table.columns);
            let other =
                both.any(|(name, column)| !name.eq_ignore_ascii_case(column.name.as_bytes()));
            if other || !names.iter().skip(width).all(|name| is_hidden(name)) {
                return unknown();
            }
        }
        if let Some(key) = &metadata.primary_key {
            // Of a versioned table it ends with the end of a row's time.
            let shown = key.iter().map(|part| part.column).filter(|n| *n < width);
            let columns: Vec<usize> = shown.collect();
            if !has_key(table, &columns) {
                return unknown();
            }
        }
        let hidden =
            |(column, of): (&ColumnType, &super::Column)| hides_its_width(*column, &of.kind);
        match table.opaque || types.iter().zip(&table.columns).any(hidden) {
            true => Use::Whole(n),
            false => Use::Rows(n, types),
        }
    }
}

/// Whether a row may end with columns of these types that a server does not show: from when to when it was true,
/// if the table is versioned, and a hash of each long unique key.
fn are_hidden(types: &[ColumnType]) -> bool {
    let time = |kind: &ColumnType| {
        matches!(
            kind,
            ColumnType::Timestamp { .. } | ColumnType::OldTimestamp
        )
    };
    let hashes = match types {
        [from, to, hashes @ ..] if time(from) && time(to) => hashes,
        _ => types,
    };
    hashes
        .iter()
        .all(|kind| *kind == ColumnType::Int { bytes: 8 })
}

/// Whether one of them is called so.
fn is_hidden(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name == b"row_start" || name == b"row_end" || name.starts_with(b"db_row_hash_")
}

/// A table map that was looked at, to be found again: most are repeated word
/// for word.
#[derive(Clone, Debug)]
struct Known {
    body: Vec<u8>,
    of: Arc<Use>,
}

/// A group that has begun.
#[derive(Debug)]
struct Building {
    keys: KeyCollector,
    barrier: Option<Barrier>,
    /// Tables named so far, by their ids.
    maps: FxHashMap<u64, Arc<Use>>,
}

/// Statements that have begun and not ended are remembered up to so many; each is a connection of the primary.
const ALTERS_MAX: usize = 1024;

/// Computes write sets.
#[derive(Debug)]
pub struct Collector {
    limits: Limits,
    catalog: Option<Arc<Catalog>>,
    seen: FxHashMap<u64, Known>,
    open: Option<Building>,
    rows: RowKeys,
    /// An event made it forget, since somebody asked.
    lost: bool,
    /// ALTERs that a primary writes in two parts have begun in these groups: domain and seqno, and the server.
    alters: BTreeMap<(u32, u64), u32>,
}

impl Collector {
    /// Without a catalog, so that all rows are barriers.
    pub fn new(limits: Limits) -> Collector {
        Collector {
            limits,
            catalog: None,
            seen: FxHashMap::default(),
            open: None,
            rows: RowKeys::default(),
            lost: false,
            alters: BTreeMap::new(),
        }
    }

    /// From the next group on the tables are as this catalog says.
    ///
    /// That must be true: it was read from the primary when the primary had
    /// done all before this place of the stream, and nothing has changed a
    /// table's columns or keys since this place until it was read. Of a group
    /// that is open nothing is known any more, and keys have another meaning
    /// from here on: see [`super::History::settle`].
    pub fn learn(&mut self, catalog: impl Into<Arc<Catalog>>) {
        self.clear();
        self.catalog = Some(catalog.into());
    }

    /// Whether an event that may have changed a table has come since this was
    /// asked last.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// The same, and whoever asks next is told, too.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost
    }

    /// From here on nothing is known of any table.
    fn forget(&mut self) {
        self.lost = true;
        self.catalog = None;
        self.clear();
    }

    fn clear(&mut self) {
        self.seen.clear();
        if let Some(open) = &mut self.open {
            open.maps.clear();
            open.barrier.get_or_insert(Barrier::Damaged);
        }
    }

    /// Whether an ALTER has begun and not ended (`binlog_alter_two_phase`). A replica builds its keys meanwhile, beside
    /// the transactions that come, and no catalog shows them.
    pub fn alters(&self) -> bool {
        !self.alters.is_empty()
    }

    /// The catalog, unless a statement came that may have changed a table.
    pub fn catalog(&self) -> Option<&Catalog> {
        self.catalog.as_deref()
    }

    /// The connection was lost: the open group will come again.
    pub fn interrupt(&mut self) {
        self.open = None;
    }

    /// Takes the next event. Gives the write set of the group that ends with
    /// it.
    pub fn event(&mut self, seen: &Seen<'_>, format: &Format) -> Option<WriteSet> {
        if seen.abandoned.is_some() {
            self.open = None;
        }
        match &seen.step {
            Step::Between => {
                self.between(&seen.event);
                return None;
            }
            Step::Begin(group) | Step::Alone(group, _) => self.begin(group, seen.event.kind()),
            Step::Within | Step::End(..) => {}
        }
        if self.open.is_none() {
            // It began before this collector did.
            self.open = Some(self.building(Some(Barrier::Damaged)));
        }
        let ending = match &seen.step {
            Step::End(_, ending) | Step::Alone(_, ending) => Some(*ending),
            _ => None,
        };
        if ending == Some(Ending::Statement) {
            self.bar(Barrier::Standalone);
        }
        self.inside(&seen.event, format);
        self.end(ending?)
    }

    /// What had begun when a primary was started anew never ends.
    fn between(&mut self, event: &Event<'_>) {
        if let EventType::FORMAT_DESCRIPTION = event.kind()
            && let Ok(Payload::Format(format)) = event.decode(&Format::unknown())
            && format.created != 0
        {
            self.alters.clear();
        }
    }

    fn building(&self, barrier: Option<Barrier>) -> Building {
        Building {
            keys: KeyCollector::new(self.limits.table_keys, self.limits.transaction_keys),
            barrier,
            maps: FxHashMap::default(),
        }
    }

    fn bar(&mut self, why: Barrier) {
        if let Some(open) = &mut self.open {
            open.barrier.get_or_insert(why);
            // None of them will be asked for.
            open.keys = KeyCollector::default();
        }
    }

    fn begin(&mut self, group: &Group, kind: EventType) {
        let missing = |flag| group.flags & flag == 0;
        let barrier = match group.name {
            // It has the event that a hint goes into.
            GroupName::Nameless if kind == EventType::ANONYMOUS_GTID => None,
            GroupName::Nameless => Some(Barrier::Nameless),
            GroupName::MySql { .. } => None,
            GroupName::MariaDb(_) => {
                let xa = gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA;
                if !missing(gtid_flags::STANDALONE) || !missing(gtid_flags::DDL) {
                    Some(Barrier::Standalone)
                } else if !missing(xa) {
                    Some(Barrier::Xa)
                } else if missing(gtid_flags::TRANSACTIONAL) {
                    Some(Barrier::NotTransactional)
                } else if missing(gtid_flags::ALLOW_PARALLEL) {
                    Some(Barrier::Forbidden)
                } else {
                    None
                }
            }
        };
        self.open = Some(self.building(barrier));
    }

    fn end(&mut self, ending: Ending) -> Option<WriteSet> {
        match ending {
            // What a payload ends with was seen in it.
            Ending::Xid | Ending::Statement | Ending::Payload => {}
            Ending::Commit | Ending::Rollback => self.bar(Barrier::NotTransactional),
            Ending::XaPrepare | Ending::XaOnePhase => self.bar(Barrier::Xa),
        }
        let open = self.open.take()?;
        Some(match open.barrier {
            Some(why) => WriteSet(Err(why)),
            None => open.keys.finish(),
        })
    }

    fn inside(&mut self, event: &Event<'_>, format: &Format) {
        if event.header().has(flags::MTS_ISOLATE) {
            self.bar(Barrier::Forbidden);
        }
        let Ok(payload) = event.decode(format) else {
            // Whatever it was.
            self.forget();
            return self.bar(Barrier::Damaged);
        };
        match payload {
            Payload::Gtid(begins) => self.alter(&begins),
            Payload::MySqlGtid(_) | Payload::Annotate(_) => {}
            Payload::Xid(_) | Payload::XaPrepare(_) => {}
            Payload::Query(query) => {
                let text = query.text(self.limits.bytes);
                let meaning = text.map_or(Meaning::Schema, |text| meaning(&text));
                match meaning {
                    Meaning::Frame => {}
                    Meaning::Xa => self.bar(Barrier::Xa),
                    Meaning::Rows => self.bar(Barrier::Statement),
                    Meaning::Schema => {
                        self.bar(Barrier::Statement);
                        self.forget();
                    }
                }
            }
            Payload::TableMap(map) => self.table_map(&map, event, format.flavour()),
            Payload::Rows(rows) => self.changed_rows(&rows),
            Payload::Other(body) if event.kind() == EventType::TRANSACTION_PAYLOAD => {
                self.unpack(body, format);
            }
            _ => self.other(event.kind()),
        }
    }

    /// A transaction that was compressed as a whole. What of it cannot be read may have changed a table
    /// (`CREATE TABLE … SELECT`).
    fn unpack(&mut self, body: &[u8], format: &Format) {
        let raw = packed::unpack(body, self.limits.bytes).unwrap_or_default();
        let mut rest = &raw[..];
        let mut last = None;
        while let Some((event, behind)) = packed::first(rest) {
            if event.kind() == EventType::TRANSACTION_PAYLOAD {
                break;
            }
            self.inside(&event, format);
            last = Some(event.kind());
            rest = behind;
        }
        match last {
            Some(EventType::XID) if rest.is_empty() => {}
            // COMMIT, as where tables without transactions took part.
            Some(EventType::QUERY) if rest.is_empty() => self.bar(Barrier::NotTransactional),
            Some(EventType::XA_PREPARE) if rest.is_empty() => self.bar(Barrier::Xa),
            _ => self.other(EventType::TRANSACTION_PAYLOAD),
        }
    }

    fn alter(&mut self, begins: &GtidEvent<'_>) {
        let Gtid {
            domain,
            server,
            seqno,
        } = begins.gtid;
        if !self.alters.is_empty() {
            // Who was made the primary amid one has only its beginning in its binlog, for ever.
            self.alters
                .retain(|(of, _), by| *of != domain || *by == server);
        }
        let Some(extra) = begins.extra else { return };
        if extra.flags & gtid_extra::START_ALTER != 0 {
            self.alters.insert((domain, seqno), server);
            if self.alters.len() > ALTERS_MAX {
                self.alters.pop_first();
            }
        }
        if extra.flags & (gtid_extra::COMMIT_ALTER | gtid_extra::ROLLBACK_ALTER) != 0 {
            self.alters.remove(&(domain, extra.alter_begin));
        }
    }

    fn other(&mut self, kind: EventType) {
        match kind {
            // Parts of a statement, and rows in a form that is not read here.
            EventType::INTVAR
            | EventType::RAND
            | EventType::USER_VAR
            | EventType::BEGIN_LOAD_QUERY
            | EventType::APPEND_BLOCK
            | EventType::DELETE_FILE
            | EventType::EXECUTE_LOAD_QUERY => self.bar(Barrier::Statement),
            EventType::PARTIAL_UPDATE_ROWS
            | EventType::PRE_GA_WRITE_ROWS
            | EventType::PRE_GA_UPDATE_ROWS
            | EventType::PRE_GA_DELETE_ROWS => self.bar(Barrier::UnknownEvent(kind)),
            _ => {
                self.bar(Barrier::UnknownEvent(kind));
                self.forget();
            }
        }
    }

    fn table_map(&mut self, map: &TableMap<'_>, event: &Event<'_>, flavour: Flavour) {
        let of = match self.seen.get(&map.table_id) {
            Some(seen) if seen.body == event.body() => seen.of.clone(),
            _ => {
                let of = Arc::new(Use::of(self.catalog.as_deref(), map, flavour));
                if self.seen.len() >= self.limits.tables {
                    self.seen.clear();
                }
                let known = Known {
                    body: event.body().to_vec(),
                    of: of.clone(),
                };
                self.seen.insert(map.table_id, known);
                of
            }
        };
        let Some(open) = &mut self.open else { return };
        open.maps.insert(map.table_id, of);
        if open.maps.len() > self.limits.tables {
            self.bar(Barrier::TooLarge);
        }
    }

    fn changed_rows(&mut self, event: &RowsEvent<'_>) {
        let Some(open) = &mut self.open else { return };
        if open.barrier.is_some() {
            return;
        }
        // Of no table: it ends a statement.
        if event.width == 0 && event.stored.is_empty() {
            return;
        }
        let (Some(of), Some(catalog)) = (open.maps.get(&event.table_id), &self.catalog) else {
            let why = match open.maps.get(&event.table_id).map(|of| &**of) {
                Some(Use::Unknown(name)) => Barrier::UnknownTable(name.clone()),
                _ => Barrier::Damaged,
            };
            return self.bar(why);
        };
        let why = match &**of {
            Use::Unknown(name) => Some(Barrier::UnknownTable(name.clone())),
            Use::Whole(n) => {
                touch_all(&catalog.table(*n).whole, &mut open.keys);
                None
            }
            Use::Rows(n, types) => {
                let table = catalog.table(*n);
                let limit = self.limits.bytes;
                if !add_rows(event, table, types, &mut self.rows, &mut open.keys, limit) {
                    touch_all(&table.whole, &mut open.keys);
                }
                None
            }
        };
        if let Some(why) = why {
            self.bar(why);
        } else if open.keys.too_large {
            self.bar(Barrier::TooLarge);
        }
    }
}

/// Whether a unique key is over these columns.
fn has_key(table: &Table, columns: &[usize]) -> bool {
    table.unique.iter().any(|parts| {
        let names = parts.iter().map(|part| part.column.as_deref());
        let theirs = columns.iter().map(|n| &table.columns[*n].name);
        parts.len() == columns.len()
            && names
                .zip(theirs)
                .all(|(name, other)| name.is_some_and(|name| name.eq_ignore_ascii_case(other)))
    })
}

/// Adds the keys of all rows. False: not all of them could be read, or columns
/// are missing in them.
fn add_rows(
    event: &RowsEvent<'_>,
    table: &Table,
    types: &[ColumnType],
    row_keys: &mut RowKeys,
    keys: &mut KeyCollector,
    limit: usize,
) -> bool {
    // What lacks after an update is as it was before.
    if !table.needed.iter().all(|n| bit(event.columns, *n)) {
        return false;
    }
    let Ok(data) = event.data(limit) else {
        return false;
    };
    let Ok(rows) = event.rows(&data, types) else {
        return false;
    };
    for row in rows {
        let Ok(row) = row else { return false };
        row_keys.add(table, types, &row, keys);
        if keys.too_large {
            break;
        }
    }
    true
}
