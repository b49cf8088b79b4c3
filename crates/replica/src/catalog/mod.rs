//! What tables the target has: for keys, and for statements.
//!
//! The catalog is the target's own. Where a unit is applied everything before it has been, and
//! what may change a table runs alone: so the target's tables are those that the source had when
//! it wrote the rows.

mod formula;
mod kind;
mod read;
mod touched;

use std::sync::Arc;

use dromon_binlog::hints::{Catalog, TableName};
use dromon_binlog::{ColumnType, TableMap};
use rustc_hash::{FxHashMap, FxHashSet};

pub use read::Known;
pub use touched::Touched;

/// A column, as statements need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Whether it is an unsigned number.
    pub unsigned: bool,
    /// Its value is computed: no statement may say it.
    pub generated: bool,
    /// Character set of a text.
    pub charset: Option<String>,
    /// Its collation.
    pub collation: Option<String>,
    /// A YEAR(2), which says two digits.
    pub short_year: bool,
    /// Bytes of a BINARY.
    pub padded: Option<usize>,
    /// It changes when others do, unless a statement says its value.
    pub on_update: bool,
    /// It counts rows that say nothing for it (AUTO_INCREMENT).
    pub auto_increment: bool,
    /// How its values look in a row; `None`: not known.
    pub stored: Option<ColumnType>,
    /// Digits of a FLOAT or DOUBLE, in all and behind the point, if it has some: it rounds to them.
    pub digits: Option<(u8, u8)>,
}

/// A table, as statements need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Database and table, for people.
    pub name: String,
    /// The same in backticks.
    pub quoted: Vec<u8>,
    /// Names of the columns that statements give, in backticks, with commas.
    pub column_list: Vec<u8>,
    /// In their order in rows.
    pub columns: Vec<ColumnInfo>,
    /// Columns of the primary key; empty: rows cannot be named by statements.
    pub key: Vec<usize>,
    /// Columns of other unique keys.
    pub unique: Vec<usize>,
    /// Other indexes that can be searched by what rows say: names, and columns.
    pub indexes: Vec<(String, Vec<usize>)>,
    /// All keys whose parts are columns: names, and columns, the primary key and unique ones first.
    pub keys: Vec<(String, Vec<usize>)>,
    /// It has foreign keys, or is named by some.
    pub related: bool,
    /// Statements do what the rows say: nothing else happens with them.
    pub plain: bool,
    /// Something is computed with its rows that goes by the session: triggers, columns that depend on the
    /// time zone.
    pub local: bool,
    /// A change of it can be rolled back.
    pub transactional: bool,
    /// What is looked after where its rows are applied.
    pub care: Care,
}

/// What is odd about a table and does not show in a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Care {
    /// It has triggers, which run for rows that are applied ([`Care::fires`]). They may read and write any table.
    pub triggers_run: bool,
    /// They do also where the source has run its own (`ENFORCE`).
    pub triggers_always: bool,
    /// A change of it makes versions of rows that go by the target's transactions: several of the source in one
    /// leave fewer of them.
    pub versions: bool,
    /// It has no unique key.
    pub keyless: bool,
}

impl Care {
    /// Whether triggers of the target run for rows of this table of the source.
    pub fn fires(&self, map: &TableMap<'_>) -> bool {
        self.triggers_run && (self.triggers_always || !map.has_triggers())
    }
}

/// Database, 0, name.
fn place(name: &TableName) -> Vec<u8> {
    [name.database.as_bytes(), &[0], name.table.as_bytes()].concat()
}

/// All tables by database, 0, name.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    by_name: FxHashMap<Vec<u8>, Arc<TableInfo>>,
    /// Sequences, by the same.
    sequences: FxHashSet<Vec<u8>>,
    /// Upper and lower case of names are the same: they are kept in lower case.
    any_case: bool,
    /// By which their keys are computed.
    catalog: Arc<Catalog>,
}

impl Tables {
    /// By which the keys of their rows are computed.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// With this catalog.
    #[must_use]
    pub fn with_catalog(self, catalog: impl Into<Arc<Catalog>>) -> Tables {
        Tables {
            catalog: catalog.into(),
            ..self
        }
    }

    /// With these sequences.
    #[must_use]
    pub fn with_sequences<'n>(self, names: impl IntoIterator<Item = &'n TableName>) -> Tables {
        Tables {
            sequences: names.into_iter().map(place).collect(),
            ..self
        }
    }

    /// A name as it is looked up.
    fn spelled(&self, database: &[u8], table: &[u8]) -> Vec<u8> {
        let name = [database, &[0], table].concat();
        match (self.any_case, std::str::from_utf8(&name)) {
            (true, Ok(text)) => text.to_lowercase().into_bytes(),
            _ => name,
        }
    }

    /// The table of this name.
    pub fn find(&self, database: &[u8], table: &[u8]) -> Option<&Arc<TableInfo>> {
        self.by_name.get(&self.spelled(database, table))
    }

    /// Whether a sequence has this name.
    pub fn is_sequence(&self, database: &[u8], table: &[u8]) -> bool {
        !self.sequences.is_empty() && self.sequences.contains(&self.spelled(database, table))
    }

    /// Whether there are any.
    pub(crate) fn has_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// The table that is shown as this.
    pub(crate) fn named(&self, shown: &str) -> Option<&TableInfo> {
        let mut all = self.by_name.values();
        all.find(|table| table.name == shown).map(|table| &**table)
    }

    /// Whether changes of every one can be rolled back.
    pub fn can_be_rolled_back(&self) -> bool {
        self.by_name.values().all(|table| table.transactional)
    }

    /// The same tables, but upper and lower case of names are the same (`lower_case_table_names`).
    #[must_use]
    pub fn of_any_case(self) -> Tables {
        let lower = |name: Vec<u8>| String::from_utf8_lossy(&name).to_lowercase().into_bytes();
        let named = self.by_name.into_iter();
        Tables {
            by_name: named.map(|(name, info)| (lower(name), info)).collect(),
            sequences: self.sequences.into_iter().map(lower).collect(),
            any_case: true,
            catalog: self.catalog,
        }
    }

    /// Of these tables.
    pub fn of(tables: impl IntoIterator<Item = (TableName, TableInfo)>) -> Tables {
        let keyed = tables.into_iter();
        let keyed = keyed.map(|(name, info)| (place(&name), Arc::new(info)));
        Tables {
            by_name: keyed.collect(),
            sequences: FxHashSet::default(),
            any_case: false,
            catalog: Arc::default(),
        }
    }
}
