//! The keys of a write set as they travel: grouped by table, read in place.
//!
//! ```text
//! keys   := format u8 = 1, version u8 = 1, groups u32, group*
//! group  := depth u8 (1 = database, 2 = table), own u8, name{depth},
//!           if depth = 2: rows u32, row*
//! own    := 0..3 the group's own key with that type, 4 whole table, 255 none;
//!           a whole table with a row that changes nothing was only looked at
//! name   := length u16, bytes (at most 1024)      or 0xffff, digest[16]
//! row    := part+     the first part's type bits are the key's type
//! part   := head u8, bytes
//! head   := bits 0-1 type, bit 2 another part follows,
//!           bits 3-7 length (0..24), 31 = a 16-byte digest follows
//! ```
//!
//! Numbers are little-endian. Only full keys travel; the prefixes of contract
//! D.2 are added by [`Keys::expand`].

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::aliases::folded;
use crate::key::{KeyHash, KeyType, Part, ROW_RAW_MAX};

/// The only key format this build knows.
pub const KEYS_FORMAT: u8 = 1;
/// The only version of it this build knows.
pub const KEYS_VERSION: u8 = 1;

/// Length of the digest by which a server names a row that has no key at all.
pub(crate) const ROW_DIGEST_LEN: usize = 16;
pub(crate) const PREAMBLE_LEN: usize = 6;
pub(crate) const NAME_RAW_MAX: usize = 1024;
pub(crate) const NAME_DIGEST: u16 = 0xffff;
pub(crate) const OWN_WHOLE_TABLE: u8 = 4;
pub(crate) const OWN_NONE: u8 = 255;
pub(crate) const HEAD_TYPE: u8 = 0b11;
pub(crate) const HEAD_MORE: u8 = 0b100;
pub(crate) const HEAD_LEN_SHIFT: u32 = 3;
pub(crate) const HEAD_DIGEST: u8 = 31;

/// Why bytes are not the keys of a write set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Another build wrote them.
    #[error(
        "The keys of a write set are in format {format} version {version}; this build knows only \
         format 1 version 1. A newer node is in the cluster: upgrade this one before it takes part."
    )]
    UnknownVersion {
        /// The format byte found.
        format: u8,
        /// The version byte found.
        version: u8,
    },
    /// The bytes break the format.
    #[error(
        "The keys of a write set are malformed at byte {offset}: {what}. The write set cannot be \
         certified; this node must stop before it diverges."
    )]
    Malformed {
        /// Offset from the start of the keys.
        offset: usize,
        /// The rule that is broken.
        what: &'static str,
    },
}

/// The keys of one write set, validated once, read in place.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    bytes: Bytes,
    groups: u32,
    len: usize,
}

impl Keys {
    /// Checks every byte of `bytes` and takes them as keys; copies nothing.
    pub fn decode(bytes: Bytes) -> Result<Keys, KeysError> {
        let mut c = Cursor { all: &bytes, at: 0 };
        let (Some(format), Some(version), Some(groups)) = (c.u8(), c.u8(), c.u32()) else {
            return Err(c.malformed("shorter than its own preamble"));
        };
        if (format, version) != (KEYS_FORMAT, KEYS_VERSION) {
            return Err(KeysError::UnknownVersion { format, version });
        }
        let mut len = 0;
        for _ in 0..groups {
            let group = c.group()?;
            len += usize::from(group.own != OWN_NONE);
            for _ in 0..group.rows {
                c.row()?;
                len += 1;
            }
        }
        if c.at != bytes.len() {
            return Err(c.malformed("bytes follow the last group"));
        }
        Ok(Keys { bytes, groups, len })
    }

    /// How many keys there are; prefixes not counted.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size on the wire in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The keys as they were added, grouped by table; no prefixes.
    pub fn iter(&self) -> impl Iterator<Item = Key<'_>> {
        let mut cursor = self.body();
        let mut group: Option<Group<'_>> = None;
        let mut own_due = false;
        let mut rows_left = 0;
        std::iter::from_fn(move || {
            loop {
                if let Some(g) = &group {
                    if std::mem::take(&mut own_due) {
                        return Some(g.own_key());
                    }
                    if rows_left > 0 {
                        rows_left -= 1;
                        let row = cursor.row().ok()?;
                        return Some(g.row_key(row, row_type(row)));
                    }
                }
                if cursor.at == cursor.all.len() {
                    return None;
                }
                let g = cursor.group().ok()?;
                own_due = g.own != OWN_NONE;
                rows_left = g.rows;
                group = Some(g);
            }
        })
    }

    /// Calls `f` for every key and every prefix of one, with its hash.
    ///
    /// Prefixes are SHARED (contract D.2); only the last part carries the
    /// key's own type. A prefix may come more than once. The order is that of
    /// the wire, hence the same on all nodes. Stops when `f` breaks.
    pub fn expand<'a, B>(
        &'a self,
        mut f: impl FnMut(Expanded<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut cursor = self.body();
        let mut shared_db = None;
        for _ in 0..self.groups {
            // Decoding has seen every byte, so the parser cannot fail here.
            let Ok(group) = cursor.group() else { break };
            let db = KeyHash::ROOT.child(group.names[0]);
            let mut table = db;
            if group.depth == 2 {
                if shared_db != Some(db) {
                    shared_db = Some(db);
                    f(Expanded::prefix(db, db, group.prefix_key(1)))?;
                }
                table = db.child(group.names[1]);
            }
            if group.depth == 2 && (group.rows > 0 || group.own == OWN_NONE) {
                f(Expanded::prefix(table, table, group.prefix_key(2)))?;
            }
            if group.own != OWN_NONE {
                f(Expanded {
                    hash: table,
                    table,
                    key: group.own_key(),
                })?;
            }
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                let mut hash = table;
                let mut parts = Cursor { all: row, at: 0 };
                while let Ok((part, more)) = parts.part() {
                    hash = hash.child(part);
                    if !more {
                        f(Expanded {
                            hash,
                            table,
                            key: group.row_key(row, row_type(row)),
                        })?;
                        break;
                    }
                    f(Expanded::prefix(
                        hash,
                        table,
                        group.row_key(&row[..parts.at], KeyType::Shared),
                    ))?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// The tables named, in the order of the wire.
    pub fn named_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|_| true)
    }

    /// The tables in which something is changed, in the order of the wire.
    pub fn changed_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|key| key.changes)
    }

    /// The tables that stand for their rows, which were too many to list.
    pub fn whole_tables(&self) -> Vec<KeyHash> {
        self.tables_if(|key| key.whole_table)
    }

    /// The tables in which keys are made or removed, in the order of the wire.
    pub fn made_tables(&self) -> Vec<Made> {
        let mut cursor = self.body();
        let mut tables = Vec::new();
        for _ in 0..self.groups {
            let Ok(group) = cursor.group() else { break };
            // What too many rows to list were is not known.
            let mut secondary = group.own == OWN_WHOLE_TABLE && !group.looked_at;
            let (mut made, mut surely) = (secondary, false);
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                if row_type(row) == KeyType::Exclusive {
                    made = true;
                    let index = index_of(row);
                    secondary |= index != Some(0);
                    surely |= index.is_some_and(|i| i != 0);
                }
            }
            if made {
                let names = group.names.into_iter();
                let table = names.fold(KeyHash::ROOT, KeyHash::child);
                tables.push(Made {
                    table,
                    secondary,
                    surely,
                });
            }
        }
        tables
    }

    /// What it does in tables as far as foreign keys go, whose rows may have another name
    /// there; in the order of the wire.
    pub fn kinships(&self) -> Vec<Kinship> {
        let mut cursor = self.body();
        let mut found = Vec::new();
        for _ in 0..self.groups {
            let Ok(group) = cursor.group() else { break };
            let mut kinship = Kinship {
                table: KeyHash::ROOT,
                changes: false,
                by_index: false,
                by_short: false,
                unfolded: false,
            };
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                let key_type = row_type(row);
                let (index, folds) = match (Cursor { all: row, at: 0 }).part() {
                    Ok((Part::Raw([index, short @ ..]), _)) => {
                        let folds = short.len() == 4 && short.iter().any(|b| folded(*b) != *b);
                        (*index, folds)
                    }
                    _ => (0, false),
                };
                kinship.changes |= key_type.changes();
                if key_type == KeyType::Reference {
                    kinship.by_index |= index != 0;
                    kinship.by_short |= folds;
                } else if key_type.changes() {
                    // Another index may well be a number.
                    kinship.unfolded |= folds && index == 0;
                }
            }
            if kinship.changes || kinship.by_index || kinship.by_short {
                let names = group.names.into_iter();
                kinship.table = names.fold(KeyHash::ROOT, KeyHash::child);
                found.push(kinship);
            }
        }
        found
    }

    /// The rows named, in the order of the wire; no whole tables, no prefixes.
    pub fn rows(&self) -> Vec<RowKey> {
        let mut cursor = self.body();
        let mut keys = Vec::new();
        for _ in 0..self.groups {
            let Ok(group) = cursor.group() else { break };
            let names = group.names.into_iter();
            let table = names.fold(KeyHash::ROOT, KeyHash::child);
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                let mut parts = Cursor { all: row, at: 0 };
                let parts = std::iter::from_fn(|| parts.part().ok().map(|(part, _)| part));
                keys.push(RowKey {
                    table,
                    row: parts.fold(table, KeyHash::child),
                    key_type: row_type(row),
                });
            }
        }
        keys
    }

    /// Whether a row may be named that no index finds: of these a server gives a digest of all that
    /// they hold. (Some key of an index may be as long.)
    pub fn names_by_digest(&self) -> bool {
        let mut cursor = self.body();
        for _ in 0..self.groups {
            let Ok(group) = cursor.group() else { break };
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                let only = Cursor { all: row, at: 0 }.part();
                if matches!(only, Ok((Part::Raw(bytes), false)) if bytes.len() == ROW_DIGEST_LEN) {
                    return true;
                }
            }
        }
        false
    }

    /// The tables with a key of which `counts` says so.
    fn tables_if(&self, counts: impl Fn(Key<'_>) -> bool) -> Vec<KeyHash> {
        let mut cursor = self.body();
        let mut tables = Vec::new();
        for _ in 0..self.groups {
            let Ok(group) = cursor.group() else { break };
            let mut named = group.own != OWN_NONE && counts(group.own_key());
            for _ in 0..group.rows {
                let Ok(row) = cursor.row() else { break };
                named |= counts(group.row_key(row, row_type(row)));
            }
            if named && group.depth == 2 {
                let names = group.names.into_iter();
                tables.push(names.fold(KeyHash::ROOT, KeyHash::child));
            }
        }
        tables
    }

    fn body(&self) -> Cursor<'_> {
        Cursor {
            all: &self.bytes,
            at: PREAMBLE_LEN,
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A table in which a write set makes or removes keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Which one.
    pub table: KeyHash,
    /// Some of these keys are, or may be, of another unique index than the primary one.
    /// If not, the rows may still have a place in such an index: a key with a NULL in it is
    /// not named.
    pub secondary: bool,
    /// One of them is of such an index for sure.
    pub surely: bool,
}

/// What a write set does in a table, as far as foreign keys go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinship {
    /// Which one.
    pub table: KeyHash,
    /// It changes rows there, key or not.
    pub changes: bool,
    /// It looks at rows there for a foreign key on another index than the primary one.
    pub by_index: bool,
    /// As that, by a key of four bytes that latin1_swedish_ci would change.
    pub by_short: bool,
    /// It changes a row that is named by such bytes.
    pub unfolded: bool,
}

/// A row that a write set names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey {
    /// Its table.
    pub table: KeyHash,
    /// The whole key.
    pub row: KeyHash,
    /// What the transaction does with it.
    pub key_type: KeyType,
}

/// A key or a prefix of one, as certification sees it.
#[derive(Clone, Copy, Debug)]
pub struct Expanded<'a> {
    /// What is looked up.
    pub hash: KeyHash,
    /// The table it belongs to; of a database: that itself.
    pub table: KeyHash,
    /// What it stands for; for a prefix a SHARED key of fewer parts.
    pub key: Key<'a>,
}

impl<'a> Expanded<'a> {
    fn prefix(hash: KeyHash, table: KeyHash, key: Key<'a>) -> Self {
        Expanded {
            hash,
            table,
            key: Key {
                prefix: true,
                ..key
            },
        }
    }
}

/// One key of a write set, borrowed from it.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    names: [Part<'a>; 2],
    depth: u8,
    row: &'a [u8],
    /// What the transaction does with the key.
    pub key_type: KeyType,
    /// Set for a prefix that stands only for the keys below it.
    pub prefix: bool,
    /// Set for the EXCLUSIVE key of a table that stands for all rows changed
    /// or looked at in it, because they were too many to list.
    pub whole_table: bool,
    /// Whether something is changed that it stands for: as its type says, but where all
    /// rows of a whole table were only looked at.
    pub changes: bool,
}

impl<'a> Key<'a> {
    /// The parts from the database down.
    pub fn parts(&self) -> impl Iterator<Item = Part<'a>> + use<'a> {
        let mut row = Cursor {
            all: self.row,
            at: 0,
        };
        self.names
            .into_iter()
            .take(self.depth as usize)
            .chain(std::iter::from_fn(move || {
                row.part().ok().map(|(part, _)| part)
            }))
    }

    /// `database.table`, or the database alone, for people.
    pub fn table_text(&self) -> String {
        let names: Vec<_> = self.names[..self.depth as usize]
            .iter()
            .map(Part::printable)
            .collect();
        names.join(".")
    }

    /// The parts below the table for people; empty if the key is the table's.
    pub fn row_text(&self) -> String {
        let parts: Vec<_> = self
            .parts()
            .skip(self.depth as usize)
            .map(|p| p.printable())
            .collect();
        parts.join("/")
    }

    /// The hash of this key.
    pub fn hash(&self) -> KeyHash {
        self.parts().fold(KeyHash::ROOT, KeyHash::child)
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key_type, self.table_text())?;
        if self.depth == 2 && !self.row.is_empty() {
            write!(f, " {}", self.row_text())?;
        }
        f.write_str(if self.whole_table {
            " (whole table)"
        } else {
            ""
        })
    }
}

fn row_type(row: &[u8]) -> KeyType {
    row.first()
        .and_then(|h| KeyType::from_u8(h & HEAD_TYPE))
        .unwrap_or(KeyType::Exclusive)
}

/// The index that a row key is of, 0 the primary one: the server puts its number first. Of
/// a long key only a digest is known; it may be of any.
fn index_of(row: &[u8]) -> Option<u8> {
    match (Cursor { all: row, at: 0 }).part() {
        Ok((Part::Raw(bytes), _)) => bytes.first().copied(),
        _ => None,
    }
}

/// The length in bytes of the row that starts at `at`; validated bytes only.
pub(crate) fn row_len(rows: &[u8], at: usize) -> usize {
    let mut c = Cursor { all: rows, at };
    c.row().map_or(0, <[u8]>::len)
}

struct Group<'a> {
    depth: u8,
    own: u8,
    names: [Part<'a>; 2],
    rows: u32,
    /// The whole table, in which nothing is changed.
    looked_at: bool,
}

impl<'a> Group<'a> {
    fn own_key(&self) -> Key<'a> {
        let key_type = KeyType::from_u8(self.own).unwrap_or(KeyType::Exclusive);
        Key {
            key_type,
            changes: key_type.changes() && !self.looked_at,
            whole_table: self.own == OWN_WHOLE_TABLE,
            prefix: false,
            ..self.prefix_key(self.depth)
        }
    }

    fn prefix_key(&self, depth: u8) -> Key<'a> {
        Key {
            names: self.names,
            depth,
            row: &[],
            key_type: KeyType::Shared,
            changes: false,
            prefix: true,
            whole_table: false,
        }
    }

    fn row_key(&self, row: &'a [u8], key_type: KeyType) -> Key<'a> {
        Key {
            row,
            key_type,
            changes: key_type.changes(),
            prefix: false,
            ..self.prefix_key(self.depth)
        }
    }
}

/// Reads the format; every length is checked before it is used.
struct Cursor<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let got = self.all.get(self.at..)?.get(..n)?;
        self.at += n;
        Some(got)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn digest(&mut self) -> Option<[u8; 16]> {
        self.take(16).and_then(|b| b.try_into().ok())
    }

    fn malformed(&self, what: &'static str) -> KeysError {
        KeysError::Malformed {
            offset: self.at,
            what,
        }
    }

    fn group(&mut self) -> Result<Group<'a>, KeysError> {
        let (Some(depth), Some(own)) = (self.u8(), self.u8()) else {
            return Err(self.malformed("cut short inside a group"));
        };
        if !matches!(depth, 1 | 2) {
            return Err(self.malformed("a group is neither a database nor a table"));
        }
        let own_ok = match own {
            0..=3 => true,
            OWN_WHOLE_TABLE | OWN_NONE => depth == 2,
            _ => false,
        };
        if !own_ok {
            return Err(self.malformed("a group's own key has no valid type"));
        }
        let mut names = [Part::Raw(&[]); 2];
        for name in names.iter_mut().take(depth as usize) {
            *name = self.name()?;
        }
        let mut rows = 0;
        if depth == 2 {
            rows = self
                .u32()
                .ok_or_else(|| self.malformed("cut short before the rows"))?;
        }
        let looks = |row: &[u8]| !row.is_empty() && !row_type(row).changes();
        let looked_at = own == OWN_WHOLE_TABLE && rows > 0 && looks(&self.all[self.at..]);
        Ok(Group {
            depth,
            own,
            names,
            rows,
            looked_at,
        })
    }

    fn name(&mut self) -> Result<Part<'a>, KeysError> {
        let part = match self.u16() {
            Some(NAME_DIGEST) => self.digest().map(Part::Digest),
            Some(n) if n as usize <= NAME_RAW_MAX => self.take(n as usize).map(Part::Raw),
            Some(_) => return Err(self.malformed("a name is longer than 1024 bytes")),
            None => None,
        };
        part.ok_or_else(|| self.malformed("cut short inside a name"))
    }

    /// One row's bytes, all its parts.
    fn row(&mut self) -> Result<&'a [u8], KeysError> {
        let start = self.at;
        while self.part()?.1 {}
        Ok(&self.all[start..self.at])
    }

    /// One part and whether another follows.
    #[inline]
    fn part(&mut self) -> Result<(Part<'a>, bool), KeysError> {
        let head = self
            .u8()
            .ok_or_else(|| self.malformed("cut short before a row key"))?;
        let part = match head >> HEAD_LEN_SHIFT {
            HEAD_DIGEST => self.digest().map(Part::Digest),
            n if n as usize <= ROW_RAW_MAX => self.take(n as usize).map(Part::Raw),
            _ => return Err(self.malformed("a row key is longer than 24 bytes")),
        };
        let part = part.ok_or_else(|| self.malformed("cut short inside a row key"))?;
        Ok((part, head & HEAD_MORE != 0))
    }
}
