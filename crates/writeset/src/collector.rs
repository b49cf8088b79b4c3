//! Collects the keys of a transaction while the client works.

use std::cmp::Reverse;

use bytes::BufMut;
use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::aliases::aliases;
use crate::key::{KeyHash, KeyType, Part, ROW_RAW_MAX};
use crate::keys::{
    HEAD_DIGEST, HEAD_LEN_SHIFT, HEAD_MORE, HEAD_TYPE, KEYS_FORMAT, KEYS_VERSION, NAME_DIGEST,
    NAME_RAW_MAX, OWN_NONE, OWN_WHOLE_TABLE, PREAMBLE_LEN, ROW_DIGEST_LEN, row_len,
};

/// Above this many keys on one table they become one key on the table.
pub const KEY_ESCALATION_DEFAULT: usize = 200_000;

/// Above this many bytes of keys in one transaction its largest tables become keys, whatever
/// is allowed to each of them.
///
/// So no transaction is refused for its keys, and they take a bounded part of the memory. (Names
/// of tables alone cannot be shortened so; there would have to be some hundred thousand.)
pub const KEY_BYTES_MAX: usize = 60 << 20;

/// A key of no parts was given.
///
/// In the interface it means the whole server; the server never sends it and
/// nothing here would honour it, so it must not be dropped in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "A key without any part was given; it would lock the whole cluster, which this provider does \
     not do. The transaction cannot be certified and must be rolled back."
)]
pub struct EmptyKeyError;

/// The distinct keys of one transaction, each with its strongest type.
///
/// Rows lie in memory as they will travel, so encoding is a copy. The order on
/// the wire is that of first addition, table by table: the same calls give the
/// same bytes.
#[derive(Debug)]
pub struct KeyCollector {
    tables: Vec<Table>,
    /// Positions in `tables` by name.
    by_name: HashTable<u32>,
    /// The table of the last addition: most calls in a row hit one table.
    last: usize,
    /// The row under construction.
    scratch: Vec<u8>,
    escalation: usize,
    bytes_max: usize,
    keys: usize,
    bytes: usize,
}

impl Default for KeyCollector {
    fn default() -> Self {
        KeyCollector::new()
    }
}

impl KeyCollector {
    /// An empty collector that escalates above [`KEY_ESCALATION_DEFAULT`].
    pub fn new() -> Self {
        KeyCollector::with_escalation(KEY_ESCALATION_DEFAULT)
    }

    /// An empty collector that lists at most `escalation` row keys of a table.
    ///
    /// One more and the table gets a single EXCLUSIVE key for all its rows
    /// ([`crate::Key::whole_table`]); the listed ones are freed. Where all of them are
    /// only looked at (foreign keys), one stays and says so.
    pub fn with_escalation(escalation: usize) -> Self {
        KeyCollector {
            tables: Vec::new(),
            by_name: HashTable::new(),
            last: 0,
            scratch: Vec::new(),
            escalation,
            bytes_max: KEY_BYTES_MAX,
            keys: 0,
            bytes: PREAMBLE_LEN,
        }
    }

    /// The same with another bound than [`KEY_BYTES_MAX`], for tests.
    pub fn within(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Adds a full key: database, table, row key; fewer or more parts too.
    ///
    /// A key that is there already keeps the stronger type.
    pub fn add(&mut self, parts: &[&[u8]], key_type: KeyType) -> Result<(), EmptyKeyError> {
        self.put_in(parts, key_type)?;
        if self.bytes > self.bytes_max {
            self.shorten();
        }
        Ok(())
    }

    fn put_in(&mut self, parts: &[&[u8]], key_type: KeyType) -> Result<(), EmptyKeyError> {
        let (db, name, row) = match parts {
            [] => return Err(EmptyKeyError),
            [db] => (*db, None, &[][..]),
            [db, name, row @ ..] => (*db, Some(*name), row),
        };
        let at = self.table(db, name);
        let table = &mut self.tables[at];
        table.changed |= key_type.changes();
        if let (KeyType::Exclusive, Some(row)) = (key_type, row.first()) {
            table.made = true;
            // The server puts the number of the index first; 0 is the primary one.
            table.secondary |= row.first() != Some(&0);
        }
        if let [only] = row {
            table.by_digest |= key_type.changes() && only.len() == ROW_DIGEST_LEN;
        }
        if table.own == OWN_WHOLE_TABLE {
            if table.changed && table.row_count > 0 {
                table.forget_rows();
                self.recount();
            }
            return Ok(());
        }
        if row.is_empty() {
            if table.own == OWN_NONE {
                self.keys += 1;
                table.own = key_type as u8;
            } else {
                table.own = table.own.max(key_type as u8);
            }
            return Ok(());
        }
        put_row(&mut self.scratch, row);
        let before = table.rows.len();
        if table.add_row(&self.scratch, key_type, self.escalation) {
            self.keys += 1;
            self.bytes += table.rows.len() - before;
        } else if table.own == OWN_WHOLE_TABLE {
            self.recount();
        }
        Ok(())
    }

    /// Adds a key of the server's, and the further names that its row needs so that a child
    /// and its parent meet (`aliases.rs`).
    pub fn add_names(&mut self, parts: &[&[u8]], key_type: KeyType) -> Result<(), EmptyKeyError> {
        self.add(parts, key_type)?;
        let [db, table, row] = *parts else {
            return Ok(());
        };
        let mut added = Ok(());
        aliases(row, key_type, |name| {
            added = self.add(&[db, table, name], key_type);
        });
        added
    }

    /// How many distinct keys there are.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// Whether no key was added.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Their size on the wire in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Key parts of all levels, each counted once, with one for the cluster that
    /// stands above the databases: what users of the peer know as the number of
    /// keys. Rows are counted up to where their table's were too many to list.
    pub fn parts(&self) -> usize {
        let mut dbs: Vec<&[u8]> = self.tables.iter().map(|t| &*t.db).collect();
        dbs.sort_unstable();
        dbs.dedup();
        let tables = self.tables.iter().filter(|t| t.name.is_some()).count();
        let rows: usize = self.tables.iter().map(|t| t.rows_seen as usize).sum();
        1 + dbs.len() + tables + rows
    }

    /// On how many tables the row keys were too many to list.
    pub fn escalated_tables(&self) -> usize {
        self.tables
            .iter()
            .filter(|t| t.own == OWN_WHOLE_TABLE)
            .count()
    }

    /// Forgets all keys, for the next fragment.
    pub fn clear(&mut self) {
        *self = KeyCollector::with_escalation(self.escalation).within(self.bytes_max);
    }

    /// Whether a row was made, removed or moved in another unique index than the
    /// primary one. (Rows without a primary key count as such.)
    pub fn secondary(&self) -> bool {
        self.tables.iter().any(|t| t.secondary)
    }

    /// The tables in which that was so.
    pub fn secondary_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|t| t.secondary)
    }

    /// Whether rows may have been changed that no index finds ([`crate::Keys::names_by_digest`]).
    pub fn changes_by_digest(&self) -> bool {
        self.tables.iter().any(|t| t.by_digest)
    }

    /// The tables in which a row was made, removed or moved in any unique index.
    pub fn made_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|t| t.made)
    }

    /// The tables in which something is changed, in the order of first addition.
    pub fn changed_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|t| t.changed)
    }

    /// The tables named, in the order of first addition.
    pub fn named_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|_| true)
    }

    fn tables_if(&self, counts: impl Fn(&Table) -> bool) -> Vec<KeyHash> {
        let tables = self.tables.iter().filter(|t| counts(t));
        let hash = |t: &Table| Some(KeyHash::of(&[&t.db, t.name.as_deref()?]));
        tables.filter_map(hash).collect()
    }

    /// Appends the keys in the format of [`crate::Keys`]: [`Self::bytes`] bytes.
    pub(crate) fn put(&self, out: &mut impl BufMut) {
        out.put_u8(KEYS_FORMAT);
        out.put_u8(KEYS_VERSION);
        out.put_u32_le(self.tables.len() as u32);
        for table in &self.tables {
            table.put(out);
        }
    }

    /// The position of the table (or database), made if it is new.
    fn table(&mut self, db: &[u8], name: Option<&[u8]>) -> usize {
        if self.tables.get(self.last).is_some_and(|t| t.is(db, name)) {
            return self.last;
        }
        let hash = name_hash(db, name);
        let tables = &self.tables;
        self.last = match self
            .by_name
            .find(hash, |&i| tables[i as usize].is(db, name))
        {
            Some(&i) => i as usize,
            None => {
                let table = Table::new(db, name);
                self.bytes += table.wire_len();
                self.tables.push(table);
                let at = self.tables.len() - 1;
                let tables = &self.tables;
                self.by_name.insert_unique(hash, at as u32, |&i| {
                    let t = &tables[i as usize];
                    name_hash(&t.db, t.name.as_deref())
                });
                at
            }
        };
        self.last
    }

    /// The largest tables stand for their rows, until there is some room again.
    fn shorten(&mut self) {
        let enough = self.bytes_max - self.bytes_max / 8;
        let mut listed: Vec<&mut Table> = self.tables.iter_mut().filter(|t| t.lists()).collect();
        listed.sort_by_key(|t| Reverse(t.rows.len()));
        let mut bytes = self.bytes;
        for table in listed {
            if bytes <= enough {
                break;
            }
            let before = table.rows.len();
            table.escalate_as_it_is();
            bytes -= before - table.rows.len();
        }
        self.recount();
    }

    fn recount(&mut self) {
        self.keys = self.tables.iter().map(Table::keys).sum();
        self.bytes = PREAMBLE_LEN + self.tables.iter().map(Table::wire_len).sum::<usize>();
    }
}

#[derive(Debug)]
struct Table {
    db: Box<[u8]>,
    /// None: this is the key of a database.
    name: Option<Box<[u8]>>,
    /// As on the wire.
    own: u8,
    /// As on the wire.
    rows: Vec<u8>,
    row_count: u32,
    /// As `row_count`, and not forgotten when it is.
    rows_seen: u32,
    /// Offsets into `rows`.
    index: HashTable<u32>,
    /// One of its keys is of something that is changed.
    changed: bool,
    /// One of its row keys is EXCLUSIVE.
    made: bool,
    /// One of those is of another index than the primary one.
    secondary: bool,
    /// One of those that change something may be the digest of a row.
    by_digest: bool,
}

impl Table {
    fn new(db: &[u8], name: Option<&[u8]>) -> Self {
        Table {
            db: db.into(),
            name: name.map(Into::into),
            own: OWN_NONE,
            rows: Vec::new(),
            row_count: 0,
            rows_seen: 0,
            index: HashTable::new(),
            changed: false,
            made: false,
            secondary: false,
            by_digest: false,
        }
    }

    fn is(&self, db: &[u8], name: Option<&[u8]>) -> bool {
        self.name.as_deref() == name && *self.db == *db
    }

    fn keys(&self) -> usize {
        self.row_count as usize + usize::from(self.own != OWN_NONE)
    }

    fn wire_len(&self) -> usize {
        let names = name_len(&self.db) + self.name.as_deref().map_or(0, |n| name_len(n) + 4);
        2 + names + self.rows.len()
    }

    /// Whether it has rows that need not travel one by one.
    fn lists(&self) -> bool {
        self.own != OWN_WHOLE_TABLE && self.row_count > 0
    }

    /// Adds `row` (type bits zero) or strengthens it; whether it was new.
    fn add_row(&mut self, row: &[u8], key_type: KeyType, escalation: usize) -> bool {
        let hash = XxHash3_64::oneshot(row);
        let rows = &mut self.rows;
        let same = |&at: &u32| {
            let at = at as usize;
            rows.get(at..at + row.len())
                .is_some_and(|r| r[0] & !HEAD_TYPE == row[0] && r[1..] == row[1..])
        };
        if let Some(&at) = self.index.find(hash, same) {
            let head = &mut rows[at as usize];
            *head = *head & !HEAD_TYPE | (*head & HEAD_TYPE).max(key_type as u8);
            return false;
        }
        // Offsets are 32 bits wide, whatever limit the caller set.
        let fits = u32::try_from(rows.len() + row.len()).is_ok();
        if self.row_count as usize >= escalation || !fits {
            self.escalate(row, key_type);
            return false;
        }
        let at = rows.len() as u32;
        rows.extend_from_slice(row);
        rows[at as usize] |= key_type as u8;
        self.row_count += 1;
        self.rows_seen = self.row_count;
        let rows = &self.rows;
        self.index.insert_unique(hash, at, |&at| {
            let at = at as usize;
            row_hash(&rows[at..at + row_len(rows, at)])
        });
        true
    }

    /// The table stands for its rows. If they were only looked at, `row` stays beside it
    /// and says so.
    fn escalate(&mut self, row: &[u8], key_type: KeyType) {
        self.own = OWN_WHOLE_TABLE;
        self.forget_rows();
        if !self.changed {
            self.rows.extend_from_slice(row);
            self.rows[0] |= key_type as u8;
            self.row_count = 1;
        }
    }

    /// The same; of its rows the first one may stay.
    fn escalate_as_it_is(&mut self) {
        let first = self.rows[..row_len(&self.rows, 0)].to_vec();
        // Its type is in it already.
        self.escalate(&first, KeyType::Shared);
    }

    fn forget_rows(&mut self) {
        self.rows = Vec::new();
        self.row_count = 0;
        self.index = HashTable::new();
    }

    fn put(&self, out: &mut impl BufMut) {
        out.put_u8(if self.name.is_some() { 2 } else { 1 });
        out.put_u8(self.own);
        put_name(out, &self.db);
        if let Some(name) = &self.name {
            put_name(out, name);
            out.put_u32_le(self.row_count);
            out.put_slice(&self.rows);
        }
    }
}

/// Writes the parts below the table as one row, type bits zero.
fn put_row(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.clear();
    for (i, part) in parts.iter().enumerate() {
        let more = if i + 1 < parts.len() { HEAD_MORE } else { 0 };
        if part.len() <= ROW_RAW_MAX {
            out.push((part.len() as u8) << HEAD_LEN_SHIFT | more);
            out.extend_from_slice(part);
        } else {
            out.push(HEAD_DIGEST << HEAD_LEN_SHIFT | more);
            out.extend_from_slice(&Part::digest(part));
        }
    }
}

/// The hash of a row as [`put_row`] made it, whatever its type bits.
fn row_hash(row: &[u8]) -> u64 {
    if row.len() <= 64 {
        let mut copy = [0u8; 64];
        copy[..row.len()].copy_from_slice(row);
        copy[0] &= !HEAD_TYPE;
        XxHash3_64::oneshot(&copy[..row.len()])
    } else {
        let mut copy = row.to_vec();
        copy[0] &= !HEAD_TYPE;
        XxHash3_64::oneshot(&copy)
    }
}

fn name_hash(db: &[u8], name: Option<&[u8]>) -> u64 {
    let seed = XxHash3_64::oneshot(db);
    name.map_or(seed, |n| XxHash3_64::oneshot_with_seed(seed, n))
}

fn name_len(name: &[u8]) -> usize {
    2 + if name.len() <= NAME_RAW_MAX {
        name.len()
    } else {
        16
    }
}

fn put_name(out: &mut impl BufMut, name: &[u8]) {
    if name.len() <= NAME_RAW_MAX {
        out.put_u16_le(name.len() as u16);
        out.put_slice(name);
    } else {
        out.put_u16_le(NAME_DIGEST);
        out.put_slice(&Part::digest(name));
    }
}
