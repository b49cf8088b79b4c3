//! The columns of a table, sent before its rows.
//!
//! ```text
//! table id, 6 bytes (4 in early MySQL 5.1), flags u16
//! length u8, database, 0       length u8, table, 0
//! number of columns            type u8 of each
//! length, metadata of the types
//! one bit for each column: may be NULL
//! optional fields: type u8, length, value
//! ```
//!
//! Which optional fields there are depends on `binlog_row_metadata`: none, or
//! signs and character sets (MINIMAL), or names and the primary key too (FULL).
//! Other keys are never in them.

use crate::bytes::{Reader, bit, bitmap_len, put_le, put_len_u8, put_lenenc};
use crate::column::ColumnType;
use crate::error::EventError;
use crate::format::Flavour;
use crate::header::{EventType, HEADER_LEN};
use crate::rows_event::COLUMNS_MAX;

/// A table's name and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMap<'a> {
    /// By which rows name it, until the end of their statement.
    pub table_id: u64,
    /// See [`TableMap::has_triggers`].
    pub flags: u16,
    /// Its database.
    pub database: &'a [u8],
    /// Its name.
    pub table: &'a [u8],
    types: &'a [u8],
    meta: &'a [u8],
    nullable: &'a [u8],
    optional: &'a [u8],
    /// Where `meta` and `optional` begin in the event.
    meta_at: usize,
    optional_at: usize,
}

/// A column of a primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its place in the table, from 0 on.
    pub column: usize,
    /// Characters of it that count; 0: all.
    pub prefix: u64,
}

/// The optional fields of a table map. `None`: the primary did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// For each column: whether it is an unsigned number.
    pub unsigned: Option<Vec<bool>>,
    /// Names of the columns.
    pub names: Option<Vec<&'a [u8]>>,
    /// The primary key, in its order.
    pub primary_key: Option<Vec<KeyColumn>>,
    /// For each column: number of its collation, if it is a text or binary.
    pub collations: Option<Vec<Option<u64>>>,
    /// For each column: number of its collation, if it is an ENUM or SET.
    pub enum_collations: Option<Vec<Option<u64>>>,
    /// Values of the ENUM columns, in the order of these.
    pub enum_values: Option<Vec<Vec<&'a [u8]>>>,
    /// Values of the SET columns, in the order of these.
    pub set_values: Option<Vec<Vec<&'a [u8]>>>,
    /// Kinds of the geometry columns, in the order of these.
    pub geometry_types: Option<Vec<u64>>,
    /// For each column: whether `SELECT *` shows it (MySQL).
    pub visible: Option<Vec<bool>>,
}

/// MariaDB counts its own flags from this end.
const HAS_TRIGGERS: u16 = 1 << 14;

impl<'a> TableMap<'a> {
    /// Whether the source says that triggers ran there for these rows: what they wrote is in the binlog, too.
    pub fn has_triggers(&self) -> bool {
        self.flags & HAS_TRIGGERS != 0
    }

    pub(crate) fn decode(r: &mut Reader<'a>, id_len: usize) -> Result<TableMap<'a>, EventError> {
        let table_id = r.le(id_len, "table id")?;
        let flags = r.u16("flags")?;
        let database = r.short_bytes("database")?;
        r.zero("end of the database")?;
        let table = r.short_bytes("table")?;
        r.zero("end of the table")?;
        let columns = r.lenenc_len("number of columns")?;
        if columns > COLUMNS_MAX {
            return Err(r.bad("number of columns", columns as u64));
        }
        let types = r.take(columns, "types of the columns")?;
        let meta_len = r.lenenc_len("length of the metadata")?;
        let meta_at = r.offset();
        let meta = r.take(meta_len, "metadata of the columns")?;
        let nullable = r.take(bitmap_len(columns), "bits of columns")?;
        let optional_at = r.offset();
        Ok(TableMap {
            table_id,
            flags,
            database,
            table,
            types,
            meta,
            nullable,
            optional: r.rest(),
            meta_at,
            optional_at,
        })
    }

    pub(crate) fn encode(&self, id_len: usize, out: &mut Vec<u8>) {
        put_le(out, self.table_id, id_len);
        put_le(out, u64::from(self.flags), 2);
        for name in [self.database, self.table] {
            put_len_u8(out, name.len());
            out.extend_from_slice(name);
            out.push(0);
        }
        put_lenenc(out, self.types.len() as u64);
        out.extend_from_slice(self.types);
        put_lenenc(out, self.meta.len() as u64);
        out.extend_from_slice(self.meta);
        out.extend_from_slice(self.nullable);
        out.extend_from_slice(self.optional);
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.types.len()
    }

    /// Whether a column may be NULL.
    pub fn is_nullable(&self, column: usize) -> bool {
        bit(self.nullable, column)
    }

    /// The types of all columns. Fails for a type that is unknown here.
    pub fn columns(&self) -> Result<Vec<ColumnType>, EventError> {
        let mut meta = Reader::new(self.meta, self.meta_at, EventType::TABLE_MAP);
        let columns = self
            .types
            .iter()
            .map(|number| ColumnType::decode(*number, &mut meta))
            .collect::<Result<_, _>>()?;
        meta.end()?;
        Ok(columns)
    }

    /// The optional fields. `columns` are those of [`TableMap::columns`];
    /// MariaDB and MySQL differ in which columns they count. Fields of an
    /// unknown kind are skipped.
    pub fn metadata(
        &self,
        columns: &[ColumnType],
        flavour: Flavour,
    ) -> Result<Metadata<'a>, EventError> {
        let mut r = Reader::new(self.optional, self.optional_at, EventType::TABLE_MAP);
        let mut found = Metadata::default();
        while r.left() > 0 {
            let kind = r.u8("kind of an optional field")?;
            let len = r.lenenc_len("length of an optional field")?;
            let at = r.offset();
            let value = r.take(len, "optional field")?;
            let mut field = r.within(value, at);
            found.read(kind, &mut field, columns, flavour)?;
        }
        Ok(found)
    }
}

const IS_ENUM: fn(ColumnType) -> bool =
    |c| matches!(c, ColumnType::Enum { .. } | ColumnType::Set { .. });

impl<'a> Metadata<'a> {
    fn read(
        &mut self,
        kind: u8,
        r: &mut Reader<'a>,
        columns: &[ColumnType],
        flavour: Flavour,
    ) -> Result<(), EventError> {
        let has_charset = |column: ColumnType| column.has_charset(flavour);
        match kind {
            1 => self.unsigned = Some(bits_of(r, columns, ColumnType::has_sign)?),
            2 => self.collations = Some(default_and_others(r, columns, has_charset)?),
            3 => self.collations = Some(one_each(r, columns, has_charset)?),
            4 => {
                let mut names = Vec::new();
                while r.left() > 0 {
                    let len = r.lenenc_len("length of a name")?;
                    names.push(r.take(len, "name of a column")?);
                }
                if names.len() != columns.len() {
                    return Err(r.bad("number of names", names.len() as u64));
                }
                self.names = Some(names);
            }
            5 => self.set_values = Some(values(r)?),
            6 => self.enum_values = Some(values(r)?),
            7 => {
                let mut kinds = Vec::new();
                while r.left() > 0 {
                    kinds.push(r.lenenc("kind of geometry")?);
                }
                self.geometry_types = Some(kinds);
            }
            8 => self.primary_key = Some(key(r, columns.len(), false)?),
            9 => self.primary_key = Some(key(r, columns.len(), true)?),
            10 => self.enum_collations = Some(default_and_others(r, columns, IS_ENUM)?),
            11 => self.enum_collations = Some(one_each(r, columns, IS_ENUM)?),
            12 => self.visible = Some(bits_of(r, columns, |_| true)?),
            _ => {}
        }
        Ok(())
    }
}

/// Bits for those columns that `counts`, the first one in the highest bit.
fn bits_of(
    r: &mut Reader<'_>,
    columns: &[ColumnType],
    counts: impl Fn(ColumnType) -> bool,
) -> Result<Vec<bool>, EventError> {
    let n = columns.iter().filter(|c| counts(**c)).count();
    let bits = r.take(bitmap_len(n), "bits of columns")?;
    r.end()?;
    let mut next = 0;
    Ok(columns
        .iter()
        .map(|column| {
            let mine = counts(*column);
            let set = mine && bits[next / 8] >> (7 - next % 8) & 1 == 1;
            next += usize::from(mine);
            set
        })
        .collect())
}

/// A number for all, and pairs of which of those that `counts` has another.
fn default_and_others(
    r: &mut Reader<'_>,
    columns: &[ColumnType],
    counts: impl Fn(ColumnType) -> bool,
) -> Result<Vec<Option<u64>>, EventError> {
    let usual = r.lenenc("collation")?;
    let mine: Vec<usize> = (0..columns.len()).filter(|n| counts(columns[*n])).collect();
    let mut all = vec![None; columns.len()];
    mine.iter().for_each(|n| all[*n] = Some(usual));
    while r.left() > 0 {
        let which = r.lenenc("number of a column")?;
        let other = r.lenenc("collation")?;
        match usize::try_from(which).ok().and_then(|n| mine.get(n)) {
            Some(n) => all[*n] = Some(other),
            None => return Err(r.bad("number of a text column", which)),
        }
    }
    Ok(all)
}

/// A number for each of those that `counts`.
fn one_each(
    r: &mut Reader<'_>,
    columns: &[ColumnType],
    counts: impl Fn(ColumnType) -> bool,
) -> Result<Vec<Option<u64>>, EventError> {
    let all = columns
        .iter()
        .map(|column| match counts(*column) {
            true => r.lenenc("collation").map(Some),
            false => Ok(None),
        })
        .collect::<Result<_, _>>()?;
    r.end()?;
    Ok(all)
}

fn values<'a>(r: &mut Reader<'a>) -> Result<Vec<Vec<&'a [u8]>>, EventError> {
    let mut all = Vec::new();
    while r.left() > 0 {
        let n = r.lenenc_len("number of values")?;
        let mut of_one = Vec::new();
        for _ in 0..n {
            let len = r.lenenc_len("length of a value")?;
            of_one.push(r.take(len, "value")?);
        }
        all.push(of_one);
    }
    Ok(all)
}

fn key(r: &mut Reader<'_>, width: usize, prefixes: bool) -> Result<Vec<KeyColumn>, EventError> {
    let mut key = Vec::new();
    while r.left() > 0 {
        let n = r.lenenc("column of the primary key")?;
        let column = match usize::try_from(n) {
            Ok(column) if column < width => column,
            _ => return Err(r.bad("column of the primary key", n)),
        };
        let prefix = match prefixes {
            true => r.lenenc("prefix of the primary key")?,
            false => 0,
        };
        key.push(KeyColumn { column, prefix });
    }
    Ok(key)
}

/// What a table map is made of, for whoever writes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableMapParts<'a> {
    /// By which rows name it.
    pub table_id: u64,
    /// Its database, at most 255 bytes.
    pub database: &'a [u8],
    /// Its name, at most 255 bytes.
    pub table: &'a [u8],
    /// Numbers of the columns' types.
    pub types: &'a [u8],
    /// Their metadata.
    pub meta: &'a [u8],
    /// One bit for each column: may be NULL.
    pub nullable: &'a [u8],
    /// The optional fields.
    pub optional: &'a [u8],
}

impl<'a> TableMapParts<'a> {
    /// The table map, if its parts fit together.
    pub fn table_map(&self) -> Option<TableMap<'a>> {
        let fits = self.types.len() <= COLUMNS_MAX
            && self.nullable.len() == bitmap_len(self.types.len())
            && self.database.len() <= 255
            && self.table.len() <= 255;
        fits.then_some(TableMap {
            table_id: self.table_id,
            flags: 1,
            database: self.database,
            table: self.table,
            types: self.types,
            meta: self.meta,
            nullable: self.nullable,
            optional: self.optional,
            meta_at: HEADER_LEN,
            optional_at: HEADER_LEN,
        })
    }
}
