//! What tables the target has: for keys, and for statements.
//!
//! The catalog is the target's own. Where a unit is applied everything before it has been, and
//! what may change a table runs alone: so the target's tables are those that the source had when
//! it wrote the rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use dromon_binlog::hints::{Action, Catalog, Column, ForeignKey, KeyPart, TableName, TableSchema};
use rustc_hash::FxHashMap;

use crate::client::{Client, ClientError};
use crate::value::put_name;

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
    /// Bytes of a BINARY.
    pub padded: Option<usize>,
    /// It changes when others do, unless a statement says its value.
    pub on_update: bool,
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
    /// It has foreign keys, or is named by some.
    pub related: bool,
    /// Statements do what the rows say: nothing else happens with them.
    pub plain: bool,
    /// A change of it can be rolled back.
    pub transactional: bool,
}

/// All tables by database, 0, name.
#[derive(Clone, Debug, Default)]
pub struct Tables(FxHashMap<Vec<u8>, Arc<TableInfo>>);

impl Tables {
    /// The table of this name.
    pub fn find(&self, database: &[u8], table: &[u8]) -> Option<&Arc<TableInfo>> {
        self.0.get(&[database, &[0], table].concat())
    }

    /// Of these tables.
    pub fn of(tables: impl IntoIterator<Item = (TableName, TableInfo)>) -> Tables {
        let keyed = tables.into_iter().map(|(name, info)| {
            let key = [name.database.as_bytes(), &[0], name.table.as_bytes()].concat();
            (key, Arc::new(info))
        });
        Tables(keyed.collect())
    }
}

const SYSTEM: &str = "('information_schema','performance_schema','sys','mysql','dromon_replica')";

#[derive(Debug, Default)]
struct Raw {
    columns: Vec<(Column, ColumnInfo)>,
    unique: BTreeMap<String, Vec<KeyPart>>,
    foreign: BTreeMap<String, ForeignKey>,
    kind: String,
    engine: String,
    triggers: bool,
    /// Periods in a unique key.
    overlaps: bool,
    referenced: bool,
}

struct Cells(std::vec::IntoIter<Option<Vec<u8>>>);

impl Cells {
    fn text(&mut self) -> String {
        self.maybe().unwrap_or_default()
    }

    fn maybe(&mut self) -> Option<String> {
        let cell = self.0.next().flatten()?;
        Some(String::from_utf8_lossy(&cell).into_owned())
    }
}

/// Reads all of the target's tables.
pub fn read(client: &mut Client) -> Result<(Catalog, Tables), ClientError> {
    let mut raw: BTreeMap<TableName, Raw> = BTreeMap::new();
    let mut query = |text: &str| -> Result<Vec<Cells>, ClientError> {
        let rows = client.rows(text)?;
        Ok(rows.into_iter().map(|row| Cells(row.into_iter())).collect())
    };
    // Names as they are, whatever the character set of the session.
    query("SET NAMES utf8mb4")?;
    for mut row in query(&format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA NOT IN {SYSTEM} AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    ))? {
        let name = TableName::new(&row.text(), &row.text());
        let of = raw.entry(name).or_default();
        of.kind = row.text();
        of.engine = row.text();
    }
    for mut row in query(&format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, \
         IS_GENERATED FROM information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN {SYSTEM} \
         ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
    ))? {
        let Some(of) = raw.get_mut(&TableName::new(&row.text(), &row.text())) else {
            continue;
        };
        let (name, kind) = (row.text(), row.text());
        let (charset, collation, extra) = (row.maybe(), row.maybe(), row.text());
        let generated = row.text() == "ALWAYS";
        let info = ColumnInfo {
            name: name.clone(),
            unsigned: kind.contains("unsigned"),
            generated,
            charset: charset.filter(|_| !kind.starts_with("enum") && !kind.starts_with("set")),
            padded: kind
                .strip_prefix("binary(")
                .and_then(|rest| rest.strip_suffix(')')?.parse().ok()),
            on_update: extra.to_ascii_lowercase().contains("on update"),
        };
        let column = Column {
            name,
            kind,
            collation,
            generated,
        };
        of.columns.push((column, info));
    }
    for mut row in query(&format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA NOT IN {SYSTEM} AND NON_UNIQUE = 0 ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
    ))? {
        let Some(of) = raw.get_mut(&TableName::new(&row.text(), &row.text())) else {
            continue;
        };
        let parts = of.unique.entry(row.text()).or_default();
        parts.push(KeyPart {
            column: row.maybe(),
            prefix: row.maybe().and_then(|n| n.parse().ok()).unwrap_or(0),
        });
    }
    for mut row in query(&format!(
        "SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA, \
         k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME, r.DELETE_RULE, r.UPDATE_RULE \
         FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r \
         ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME AND r.TABLE_NAME = k.TABLE_NAME \
         WHERE k.REFERENCED_TABLE_NAME IS NOT NULL AND k.TABLE_SCHEMA NOT IN {SYSTEM} \
         ORDER BY k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.ORDINAL_POSITION"
    ))? {
        let name = TableName::new(&row.text(), &row.text());
        let (constraint, column) = (row.text(), row.text());
        let parent = TableName::new(&row.text(), &row.text());
        let parent_column = row.text();
        let mut action = || match row.text().as_str() {
            "RESTRICT" | "NO ACTION" => Action::Refuse,
            _ => Action::Change,
        };
        let (on_delete, on_update) = (action(), action());
        if let Some(of) = raw.get_mut(&parent) {
            of.referenced = true;
        }
        let Some(of) = raw.get_mut(&name) else {
            continue;
        };
        let key = of.foreign.entry(constraint).or_default();
        key.columns.push(column);
        key.parent = parent;
        key.parent_columns.push(parent_column);
        (key.on_delete, key.on_update) = (on_delete, on_update);
    }
    for mut row in
        query("SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS")?
    {
        if let Some(of) = raw.get_mut(&TableName::new(&row.text(), &row.text())) {
            of.triggers = true;
        }
    }
    for (name, of) in &mut raw {
        if may_overlap(of) {
            let mut text = b"SHOW CREATE TABLE ".to_vec();
            put_name(&mut text, name.database.as_bytes());
            text.push(b'.');
            put_name(&mut text, name.table.as_bytes());
            for mut row in query(&String::from_utf8_lossy(&text))? {
                row.text();
                of.overlaps = row.text().contains("WITHOUT OVERLAPS");
            }
        }
    }
    let run: Option<Cells> = query("SELECT @@global.slave_run_triggers_for_rbr")?.pop();
    let run = run.is_some_and(|mut row| row.text() != "NO");
    Ok(prepare(raw, run))
}

fn is_time(kind: &str) -> bool {
    ["date", "timestamp"].iter().any(|k| kind.starts_with(k))
}

/// Whether two dates or times stand in one unique key. Only then can it be one over a period.
fn may_overlap(of: &Raw) -> bool {
    of.unique.values().any(|parts| {
        let times = parts.iter().filter(|part| {
            let name = part.column.as_deref();
            let mut columns = of.columns.iter();
            columns.any(|(c, _)| Some(c.name.as_str()) == name && is_time(&c.kind))
        });
        times.count() >= 2
    })
}

/// Types whose values statements can say.
const KINDS: [&str; 27] = [
    "tinyint",
    "smallint",
    "mediumint",
    "int",
    "bigint",
    "decimal",
    "float",
    "double",
    "year",
    "date",
    "time",
    "datetime",
    "timestamp",
    "bit",
    "enum",
    "set",
    "char",
    "varchar",
    "binary",
    "varbinary",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "tinyblob",
    "blob",
    "mediumblob",
];
/// Types whose values can stand in a WHERE so that an index finds them exactly.
const KEY_KINDS: [&str; 16] = [
    "tinyint",
    "smallint",
    "mediumint",
    "int",
    "bigint",
    "decimal",
    "date",
    "time",
    "datetime",
    "timestamp",
    "char",
    "varchar",
    "binary",
    "varbinary",
    "bit",
    "longblob",
];

fn word(kind: &str) -> &str {
    kind.split(['(', ' ']).next().unwrap_or("")
}

fn prepare(raw: BTreeMap<TableName, Raw>, triggers_run: bool) -> (Catalog, Tables) {
    let mut schemas = Vec::new();
    let mut infos = Vec::new();
    for (name, of) in raw {
        let place = |column: &Option<String>| {
            let column = column.as_deref()?;
            of.columns.iter().position(|(c, _)| c.name == column)
        };
        let transactional = of.engine.eq_ignore_ascii_case("innodb");
        let odd = of.kind != "BASE TABLE" || of.overlaps;
        let kinds = of.columns.iter().all(|(c, _)| {
            let kind = word(&c.kind);
            (KINDS.contains(&kind) || kind == "longblob") && !c.kind.contains("COMPRESSED")
        });
        let key = of.unique.get("PRIMARY").and_then(|parts| {
            let columns = parts.iter().map(|part| {
                let n = place(&part.column).filter(|_| part.prefix == 0)?;
                let (column, _) = &of.columns[n];
                let fit = KEY_KINDS.contains(&word(&column.kind)) && !column.generated;
                fit.then_some(n)
            });
            columns.collect::<Option<Vec<usize>>>()
        });
        let mut unique: Vec<usize> = Vec::new();
        let mut hidden = false;
        for (index, parts) in &of.unique {
            for part in parts.iter().filter(|_| index != "PRIMARY") {
                match place(&part.column).filter(|n| !of.columns[*n].0.generated) {
                    Some(n) => unique.push(n),
                    None => hidden = true,
                }
            }
        }
        if hidden {
            // Any change may change it.
            unique = (0..of.columns.len()).collect();
        }
        unique.sort_unstable();
        unique.dedup();
        let mut quoted = Vec::new();
        put_name(&mut quoted, name.database.as_bytes());
        quoted.push(b'.');
        put_name(&mut quoted, name.table.as_bytes());
        let columns: Vec<ColumnInfo> = of.columns.iter().map(|(_, info)| info.clone()).collect();
        let mut column_list = Vec::new();
        for column in columns.iter().filter(|c| !c.generated) {
            if !column_list.is_empty() {
                column_list.push(b',');
            }
            put_name(&mut column_list, column.name.as_bytes());
        }
        infos.push((
            name.clone(),
            TableInfo {
                name: format!("{}.{}", name.database, name.table),
                quoted,
                column_list,
                columns,
                plain: key.is_some() && kinds && !odd && !of.triggers && transactional,
                key: key.unwrap_or_default(),
                unique,
                related: of.referenced || !of.foreign.is_empty(),
                transactional,
            },
        ));
        schemas.push(TableSchema {
            name,
            columns: of.columns.into_iter().map(|(column, _)| column).collect(),
            unique: of.unique.into_values().collect(),
            foreign: of.foreign.into_values().collect(),
            opaque: odd || of.triggers && triggers_run,
        });
    }
    (Catalog::new(schemas), Tables::of(infos))
}
