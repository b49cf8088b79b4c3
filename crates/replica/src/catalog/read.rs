//! Reads the target's tables: all of them, or those that statements may have changed.

mod versions;

use std::collections::{BTreeMap, BTreeSet};

use dromon_binlog::hints::{Action, Catalog, Column, ForeignKey, KeyPart, TableName, TableSchema};

use self::versions::versioned;
use super::formula::{Formula, Formulas};
use super::kind::{column_type, digits};
use super::{Care, ColumnInfo, TableInfo, Tables, Touched};
use crate::client::{Client, ClientError};
use crate::value::{put_name, put_text};

/// If more tables may have changed, all are read.
const SOME_MAX: usize = 40;
/// Error of a database that is not there.
const NO_DATABASE: u16 = 1049;

/// What a sequence is called where the types of tables are.
const SEQUENCE: &str = "SEQUENCE";

const SYSTEM: &str = "('information_schema','performance_schema','sys','mysql','dromon_replica')";

#[derive(Clone, Debug, Default)]
struct Raw {
    columns: Vec<(Column, ColumnInfo)>,
    unique: BTreeMap<String, Vec<KeyPart>>,
    /// The others.
    indexes: BTreeMap<String, Vec<KeyPart>>,
    /// Unique ones that are no BTREE: of long columns, the server compares rows by their hashes.
    hashed: BTreeSet<String>,
    /// Columns of indexes of any kind.
    indexed: BTreeSet<String>,
    /// How generated columns are computed.
    formulas: BTreeMap<String, Formula>,
    foreign: BTreeMap<String, ForeignKey>,
    kind: String,
    engine: String,
    triggers: bool,
    /// Periods in a unique key.
    overlaps: bool,
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

/// Of which tables.
#[derive(Clone, Copy)]
enum Scope<'n> {
    All,
    One(&'n TableName),
}

impl Scope<'_> {
    /// A condition. The server opens one table only if both names are compared with constants.
    fn of(self, database: &str, table: &str) -> String {
        match self {
            Scope::All => format!("{database} NOT IN {SYSTEM}"),
            Scope::One(name) => {
                let mut out = format!("{database}=").into_bytes();
                put_text(&mut out, name.database.as_bytes(), 0);
                out.extend_from_slice(format!(" AND {table}=").as_bytes());
                put_text(&mut out, name.table.as_bytes(), 0);
                String::from_utf8_lossy(&out).into_owned()
            }
        }
    }
}

/// The target's tables as they were read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    raw: BTreeMap<TableName, Raw>,
    /// Only their names.
    sequences: BTreeSet<TableName>,
    triggers_run: bool,
    /// See [`Care::triggers_always`].
    triggers_always: bool,
    /// `lower_case_table_names` is set.
    any_case: bool,
}

fn query(client: &mut Client, text: &str) -> Result<Vec<Cells>, ClientError> {
    let rows = client.rows(text)?;
    Ok(rows.into_iter().map(|row| Cells(row.into_iter())).collect())
}

impl Known {
    /// Reads all.
    pub fn read(client: &mut Client) -> Result<Known, ClientError> {
        // Names as they are, whatever the character set of the session.
        client.query(b"SET NAMES utf8mb4")?;
        let mut known = Known::default();
        known.load(client, Scope::All)?;
        let run = query(client, "SELECT @@global.slave_run_triggers_for_rbr")?.pop();
        let run = run.map_or_else(|| "NO".to_owned(), |mut row| row.text());
        known.triggers_run = run != "NO";
        known.triggers_always = run == "ENFORCE";
        let case = query(client, "SELECT @@lower_case_table_names")?.pop();
        known.any_case = case.is_some_and(|mut row| row.text() != "0");
        Ok(known)
    }

    /// Reads again what statements may have changed. Gives how many tables were read; `None`: all.
    pub fn read_again(
        &mut self,
        client: &mut Client,
        touched: &Touched,
    ) -> Result<Option<usize>, ClientError> {
        let Touched::Some { databases, names } = touched else {
            *self = Known::read(client)?;
            return Ok(None);
        };
        client.query(b"SET NAMES utf8mb4")?;
        let mut changed: BTreeSet<TableName> = BTreeSet::new();
        let mut gone: BTreeSet<TableName> = BTreeSet::new();
        // Names as they stand in the catalog, if a statement may write them in any case.
        let databases: BTreeSet<String> = match self.any_case {
            true => databases.iter().map(|name| self.spelled(name)).collect(),
            false => databases.clone(),
        };
        for database in &databases {
            // Views are not kept: they would always be new.
            let mut text = b"SHOW FULL TABLES FROM ".to_vec();
            put_name(&mut text, database.as_bytes());
            text.extend_from_slice(
                b" WHERE Table_type IN ('BASE TABLE','SYSTEM VERSIONED','SEQUENCE')",
            );
            // Names alone: no table is opened for them.
            let there = match query(client, &String::from_utf8_lossy(&text)) {
                Ok(rows) => rows,
                Err(error) if error.code() == Some(NO_DATABASE) => Vec::new(),
                Err(error) => return Err(error),
            };
            let (sequences, there): (Vec<_>, Vec<_>) = there
                .into_iter()
                .map(|mut row| (TableName::new(database, &row.text()), row.text()))
                .partition(|(_, kind)| kind == SEQUENCE);
            self.sequences.retain(|name| &name.database != database);
            self.sequences
                .extend(sequences.into_iter().map(|(name, _)| name));
            let there: BTreeSet<TableName> = there.into_iter().map(|(name, _)| name).collect();
            let before = self.raw.keys().filter(|name| &name.database == database);
            gone.extend(before.filter(|name| !there.contains(*name)).cloned());
            changed.extend(there.into_iter().filter(|name| {
                !self.raw.contains_key(name) || names.contains(&name.table.to_lowercase())
            }));
        }
        // What refers to a table that has another name now, or is another one.
        let moved = |name: &TableName| gone.contains(name) || changed.contains(name);
        let referring = self.raw.iter().filter(|(name, of)| {
            !gone.contains(*name) && of.foreign.values().any(|key| moved(&key.parent))
        });
        let referring: Vec<TableName> = referring.map(|(name, _)| name.clone()).collect();
        changed.extend(referring);
        if changed.len() > SOME_MAX {
            *self = Known::read(client)?;
            return Ok(None);
        }
        for name in gone.iter().chain(&changed) {
            self.raw.remove(name);
        }
        for name in &changed {
            self.load(client, Scope::One(name))?;
        }
        Ok(Some(changed.len()))
    }

    /// For statements, and with the catalog for hints.
    pub fn prepare(&self) -> Tables {
        let (catalog, tables) = prepare(
            &self.raw,
            (self.triggers_run, self.triggers_always),
            self.any_case,
        );
        let tables = tables.with_sequences(&self.sequences);
        match self.any_case {
            true => tables.with_catalog(catalog.of_any_case()).of_any_case(),
            false => tables.with_catalog(catalog),
        }
    }

    /// Whether the target takes upper and lower case of names for the same.
    pub fn is_of_any_case(&self) -> bool {
        self.any_case
    }

    /// Its tables and sequences, as `database.table`: not views, and not those of the server's own databases.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let names = self.raw.keys().chain(&self.sequences);
        names.map(|name| format!("{}.{}", name.database, name.table))
    }

    /// A database as its tables are kept by, whatever its case in a statement.
    fn spelled(&self, database: &str) -> String {
        let lower = database.to_lowercase();
        let mut known = self.raw.keys().map(|name| &name.database);
        match known.find(|name| name.to_lowercase() == lower) {
            Some(name) => name.clone(),
            None => lower,
        }
    }

    fn load(&mut self, client: &mut Client, scope: Scope<'_>) -> Result<(), ClientError> {
        let plain = scope.of("TABLE_SCHEMA", "TABLE_NAME");
        let mut loaded: BTreeMap<TableName, Raw> = BTreeMap::new();
        for mut row in query(
            client,
            &format!(
                "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES \
             WHERE {plain} AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED', '{SEQUENCE}')"
            ),
        )? {
            let name = TableName::new(&row.text(), &row.text());
            let kind = row.text();
            if kind == SEQUENCE {
                self.sequences.insert(name);
                continue;
            }
            let of = loaded.entry(name).or_default();
            of.kind = kind;
            of.engine = row.text();
        }
        if loaded.is_empty() {
            return Ok(());
        }
        for mut row in query(
            client,
            &format!(
                "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, \
             IS_GENERATED, CHARACTER_OCTET_LENGTH, GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE {plain} \
             ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
            ),
        )? {
            let Some(of) = loaded.get_mut(&TableName::new(&row.text(), &row.text())) else {
                continue;
            };
            let (name, kind) = (row.text(), row.text());
            let (charset, collation) = (row.maybe(), row.maybe());
            let extra = row.text().to_ascii_lowercase();
            let generated = row.text() == "ALWAYS";
            let octets = row.maybe().and_then(|n| n.parse().ok());
            if generated {
                let stored = !extra.contains("virtual");
                let text = row.text();
                of.formulas.insert(name.clone(), Formula { stored, text });
            }
            let info = ColumnInfo {
                name: name.clone(),
                unsigned: kind.contains("unsigned"),
                generated,
                charset: charset.filter(|_| !kind.starts_with("enum") && !kind.starts_with("set")),
                collation: collation.clone(),
                short_year: kind == "year(2)",
                padded: kind
                    .strip_prefix("binary(")
                    .and_then(|rest| rest.strip_suffix(')')?.parse().ok()),
                on_update: extra.contains("on update"),
                auto_increment: extra.contains("auto_increment"),
                stored: column_type(&kind, octets),
                digits: digits(&kind),
            };
            let column = Column {
                name,
                kind,
                collation,
                generated,
            };
            of.columns.push((column, info));
        }
        for mut row in query(
            client,
            &format!(
                "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NON_UNIQUE, INDEX_TYPE \
             FROM information_schema.STATISTICS WHERE {plain} \
             ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
            ),
        )? {
            let Some(of) = loaded.get_mut(&TableName::new(&row.text(), &row.text())) else {
                continue;
            };
            let index = row.text();
            let part = KeyPart {
                column: row.maybe(),
                prefix: row.maybe().and_then(|n| n.parse().ok()).unwrap_or(0),
            };
            of.indexed.extend(part.column.clone());
            let (unique, kind) = (row.text() == "0", row.text());
            if unique && kind != "BTREE" {
                of.hashed.insert(index.clone());
            }
            let indexes = match (unique, kind.as_str()) {
                (true, _) => &mut of.unique,
                (false, "BTREE") => &mut of.indexes,
                _ => continue,
            };
            indexes.entry(index).or_default().push(part);
        }
        // Not joined there: a join does not look up one table, it opens them all.
        let mut rules: BTreeMap<(TableName, String), (Action, Action)> = BTreeMap::new();
        for mut row in query(
            client,
            &format!(
                "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE \
             FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE {}",
                scope.of("CONSTRAINT_SCHEMA", "TABLE_NAME")
            ),
        )? {
            let name = TableName::new(&row.text(), &row.text());
            let constraint = row.text();
            let mut action = || match row.text().as_str() {
                "RESTRICT" | "NO ACTION" => Action::Refuse,
                _ => Action::Change,
            };
            rules.insert((name, constraint), (action(), action()));
        }
        for mut row in query(
            client,
            &format!(
                "SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, \
             REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE \
             WHERE REFERENCED_TABLE_NAME IS NOT NULL AND {plain} \
             ORDER BY TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION"
            ),
        )? {
            let name = TableName::new(&row.text(), &row.text());
            let (constraint, column) = (row.text(), row.text());
            let parent = TableName::new(&row.text(), &row.text());
            let parent_column = row.text();
            let Some(of) = loaded.get_mut(&name) else {
                continue;
            };
            let of_both = (name, constraint);
            // One that came between the two questions may do anything.
            let rule = rules.get(&of_both).cloned();
            let (on_delete, on_update) = rule.unwrap_or((Action::Change, Action::Change));
            let key = of.foreign.entry(of_both.1).or_default();
            key.columns.push(column);
            key.parent = parent;
            key.parent_columns.push(parent_column);
            (key.on_delete, key.on_update) = (on_delete, on_update);
        }
        for mut row in query(
            client,
            &format!(
                "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS WHERE {}",
                scope.of("EVENT_OBJECT_SCHEMA", "EVENT_OBJECT_TABLE")
            ),
        )? {
            if let Some(of) = loaded.get_mut(&TableName::new(&row.text(), &row.text())) {
                of.triggers = true;
            }
        }
        for (name, of) in &mut loaded {
            if may_overlap(of) {
                let mut text = b"SHOW CREATE TABLE ".to_vec();
                put_name(&mut text, name.database.as_bytes());
                text.push(b'.');
                put_name(&mut text, name.table.as_bytes());
                for mut row in query(client, &String::from_utf8_lossy(&text))? {
                    row.text();
                    of.overlaps = row.text().contains("WITHOUT OVERLAPS");
                }
            }
        }
        self.raw.append(&mut loaded);
        Ok(())
    }
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

fn prepare(
    raw: &BTreeMap<TableName, Raw>,
    (triggers_run, triggers_always): (bool, bool),
    any_case: bool,
) -> (Catalog, Tables) {
    let mut schemas = Vec::new();
    let mut infos = Vec::new();
    // As they are compared.
    let spelled = |name: &TableName| match any_case {
        true => TableName::new(&name.database.to_lowercase(), &name.table.to_lowercase()),
        false => name.clone(),
    };
    let foreign = |of: &Raw| -> Vec<ForeignKey> {
        let keys = of.foreign.values().cloned();
        keys.map(|key| ForeignKey {
            parent: spelled(&key.parent),
            ..key
        })
        .collect()
    };
    let parents: BTreeSet<TableName> = raw
        .values()
        .flat_map(foreign)
        .map(|key| key.parent)
        .collect();
    let versioned = versioned(raw, spelled, foreign);
    for (name, of) in raw {
        let triggers_run = of.triggers && triggers_run;
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
        let formulas = Formulas {
            columns: of.columns.iter().map(|(column, _)| column).collect(),
            of: &of.formulas,
        };
        // Rows by BINLOG bring what is stored, and what is in an index is computed in the target's zone.
        let computed = formulas.differ(&of.indexed);
        // A partition may go by any of them.
        let zoned = formulas.differ(&formulas.of.keys().cloned().collect());
        let searched = |parts: &Vec<KeyPart>| {
            let columns = parts.iter().map(|part| {
                let n = place(&part.column).filter(|_| part.prefix == 0)?;
                let (column, _) = &of.columns[n];
                let fit = KEY_KINDS.contains(&word(&column.kind)) && !column.generated;
                fit.then_some(n)
            });
            columns.collect::<Option<Vec<usize>>>()
        };
        let key = of.unique.get("PRIMARY").and_then(searched);
        // The server looks nothing up in one of hashes, it reads all of the table.
        let found_in = |name: &String| name != "PRIMARY" && !of.hashed.contains(name);
        let others = of.unique.iter().filter(|(name, _)| found_in(name));
        let indexes: Vec<(String, Vec<usize>)> = others
            .chain(&of.indexes)
            .filter_map(|(name, parts)| Some((name.clone(), searched(parts)?)))
            .collect();
        let named = of.unique.iter().chain(&of.indexes);
        let mut keys: Vec<(String, Vec<usize>)> = named
            .filter_map(|(name, parts)| {
                let columns = parts.iter().map(|part| place(&part.column));
                Some((name.clone(), columns.collect::<Option<_>>()?))
            })
            .collect();
        // Of several over the same columns this one is known best.
        keys.sort_by_key(|(name, _)| name != "PRIMARY");
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
                plain: key.is_some() && kinds && !odd && !computed && !of.triggers && transactional,
                local: zoned || triggers_run,
                key: key.unwrap_or_default(),
                unique,
                indexes,
                keys,
                related: parents.contains(&spelled(name)) || !of.foreign.is_empty(),
                transactional,
                care: Care {
                    triggers_run,
                    triggers_always,
                    versions: versioned.contains(&spelled(name)),
                    keyless: of.unique.is_empty(),
                },
            },
        ));
        schemas.push(TableSchema {
            name: spelled(name),
            columns: of
                .columns
                .iter()
                .map(|(column, _)| column.clone())
                .collect(),
            unique: of.unique.values().cloned().collect(),
            foreign: foreign(of),
            opaque: odd || !of.hashed.is_empty() || triggers_run,
        });
    }
    (Catalog::new(schemas), Tables::of(infos))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dromon_binlog::hints::{Barrier, Collector, Limits};
    use dromon_binlog::{Checksum, Ending, Event, Format, Seen, Step, gtid_flags};

    use super::*;
    use crate::compile::tests::{event, unit, xid};
    use crate::fake_target::{Fake, Reply, cell};

    fn known(any_case: bool) -> Known {
        let name = TableName::new("shop", "t");
        Known {
            raw: BTreeMap::from([(name, Raw::default())]),
            sequences: BTreeSet::new(),
            triggers_run: false,
            triggers_always: false,
            any_case,
        }
    }

    /// Names of tables that are read again after a statement; the others are asked for by name only.
    fn read_again(known: &mut Known, statement: &str) -> Vec<String> {
        let fake = Fake::new(|text| match text {
            _ if text.starts_with("SHOW FULL TABLES FROM `shop`") => Some(cell("t")),
            _ if text.starts_with("SHOW FULL TABLES") => Some(Reply::Fail(NO_DATABASE)),
            _ if text.starts_with("SELECT") => Some(Reply::Nothing),
            _ => None,
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let touched = Touched::by(statement.as_bytes(), b"test");
        known.read_again(&mut client, &touched).expect("answers");
        let mut said = fake.said();
        said.retain(|text| text.contains("FROM information_schema.TABLES"));
        said
    }

    /// A database whose name a statement writes in another case.
    #[test]
    fn names_in_any_case() {
        let said = read_again(&mut known(true), "ALTER TABLE SHOP.T MODIFY b INT AFTER c");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].contains("TABLE_SCHEMA='shop' AND TABLE_NAME='t'"),
            "{said:?}"
        );
        // Where case counts these are others.
        let said = read_again(&mut known(false), "ALTER TABLE SHOP.T MODIFY b INT AFTER c");
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn rows_in_any_case() {
        let tables = known(true).prepare();
        assert!(tables.find(b"Shop", b"T").is_some() && tables.find(b"shop", b"u").is_none());
        // One that another one names in its own spelling.
        let mut both = known(true);
        let key = ForeignKey {
            parent: TableName::new("Shop", "T"),
            ..ForeignKey::default()
        };
        let child = both.raw.entry(TableName::new("shop", "c")).or_default();
        child.foreign.insert("f".into(), key);
        let tables = both.prepare();
        assert!(tables.find(b"shop", b"t").expect("it is there").related);
        let tables = known(false).prepare();
        assert!(tables.find(b"Shop", b"T").is_none() && tables.find(b"shop", b"t").is_some());
    }

    /// Sequences are known by name, and by which statements they come and go.
    #[test]
    fn sequences() {
        let fake = Fake::new(|text| {
            let rows = |all: &[&[&str]]| {
                let row = |cells: &&[&str]| cells.iter().map(|c| (*c).into()).collect();
                Reply::Rows(all.iter().map(row).collect())
            };
            Some(match text {
                _ if text.contains("FROM information_schema.TABLES ") => {
                    rows(&[&["shop", "s", "SEQUENCE", "InnoDB"]])
                }
                _ if text.starts_with("SHOW FULL TABLES FROM `shop`") => {
                    rows(&[&["r", "SEQUENCE"]])
                }
                _ if text.starts_with("SELECT") => Reply::Nothing,
                _ => return None,
            })
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let mut known = Known::read(&mut client).expect("answers");
        let is = |known: &Known, name: &[u8]| known.prepare().is_sequence(b"shop", name);
        assert!(is(&known, b"s") && !is(&known, b"r"));
        assert!(known.prepare().find(b"shop", b"s").is_none());
        assert!(known.names().eq(["shop.s".to_owned()]));
        let touched = Touched::by(b"RENAME TABLE shop.s TO shop.r", b"test");
        known.read_again(&mut client, &touched).expect("answers");
        assert!(is(&known, b"r") && !is(&known, b"s"));
        known.any_case = true;
        assert!(is(&known, b"R"));
    }

    /// A table with a primary key, a TIMESTAMP, and a date `d` computed by `formula`.
    fn with_computed(
        formula: &'static str,
        extra: &'static str,
        index: Option<&'static str>,
        triggers: bool,
        run: bool,
    ) -> TableInfo {
        let rows = |all: Vec<Vec<&str>>| {
            let row = |cells: Vec<&str>| cells.into_iter().map(String::from).collect();
            Reply::Rows(all.into_iter().map(row).collect())
        };
        let fake = Fake::new(move |text| {
            Some(match text {
                _ if text.contains("FROM information_schema.TABLES ") => {
                    rows(vec![vec!["shop", "t", "BASE TABLE", "InnoDB"]])
                }
                _ if text.contains("FROM information_schema.COLUMNS ") => {
                    let no = ["NEVER", "", ""];
                    let column = |name, kind| vec!["shop", "t", name, kind, "", "", ""];
                    let with = |head: Vec<&'static str>, tail: [&'static str; 3]| {
                        head.into_iter().chain(tail).collect::<Vec<_>>()
                    };
                    let mut computed = column("d", "date");
                    computed[6] = extra;
                    rows(vec![
                        with(column("id", "int(11)"), no),
                        with(column("ts", "timestamp"), no),
                        with(computed, ["ALWAYS", "", formula]),
                    ])
                }
                _ if text.contains("FROM information_schema.STATISTICS ") => {
                    let key = vec!["shop", "t", "PRIMARY", "id", "", "0", "BTREE"];
                    let other = index.map(|kind| vec!["shop", "t", "k", "d", "", "1", kind]);
                    rows([Some(key), other].into_iter().flatten().collect())
                }
                _ if triggers && text.contains("FROM information_schema.TRIGGERS ") => {
                    rows(vec![vec!["shop", "t"]])
                }
                _ if text.starts_with("SELECT") => Reply::Nothing,
                _ => return None,
            })
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let mut known = Known {
            triggers_run: run,
            ..Known::default()
        };
        known.load(&mut client, Scope::All).expect("answers");
        let tables = known.prepare();
        TableInfo::clone(tables.find(b"shop", b"t").expect("a table"))
    }

    /// What the target's zone has a part in, and is kept, goes by BINLOG; other tables do not.
    #[test]
    fn columns_that_are_computed_by_the_zone() {
        let is_plain = |extra, index| {
            let table = with_computed("cast(`ts` as date)", extra, index, false, false);
            // Where they go by BINLOG nevertheless, a partition may go by it.
            assert!(table.local, "{extra}");
            table.plain
        };
        assert!(is_plain("VIRTUAL GENERATED", None));
        assert!(!is_plain("STORED GENERATED", None));
        assert!(!is_plain("VIRTUAL GENERATED", Some("BTREE")));
        assert!(!is_plain("VIRTUAL GENERATED", Some("FULLTEXT")));
        // Triggers, only where they run.
        for run in [false, true] {
            let table = with_computed("'2024-05-06'", "VIRTUAL GENERATED", None, true, run);
            assert!(!table.plain && table.local == run);
        }
    }

    /// Nothing is read ahead by an index that the server does not look rows up in.
    #[test]
    fn indexes_of_hashes() {
        let fake = Fake::new(|text| {
            let rows = |all: &[&[&str]]| {
                let row = |cells: &&[&str]| cells.iter().map(|c| (*c).into()).collect();
                Reply::Rows(all.iter().map(row).collect())
            };
            Some(match text {
                _ if text.contains("FROM information_schema.TABLES ") => {
                    rows(&[&["shop", "t", "BASE TABLE", "InnoDB"]])
                }
                _ if text.contains("FROM information_schema.COLUMNS ") => rows(&[
                    &["shop", "t", "id", "int(11)", "", "", "", "NEVER", ""],
                    &["shop", "t", "v", "varchar(3000)", "", "", "", "NEVER", ""],
                    &["shop", "t", "w", "int(11)", "", "", "", "NEVER", ""],
                ]),
                _ if text.contains("FROM information_schema.STATISTICS ") => rows(&[
                    &["shop", "t", "PRIMARY", "id", "", "0", "BTREE"],
                    &["shop", "t", "u", "v", "", "0", "HASH"],
                    &["shop", "t", "w", "w", "", "0", "BTREE"],
                ]),
                _ if text.starts_with("SELECT") => Reply::Nothing,
                _ => return None,
            })
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let mut known = Known::default();
        known.load(&mut client, Scope::All).expect("answers");
        let tables = known.prepare();
        let table = tables.find(b"shop", b"t").expect("a table");
        assert_eq!(table.indexes, [("w".to_owned(), vec![2])]);
        assert_eq!(table.unique, [1, 2]);
        let names: Vec<&String> = table.keys.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PRIMARY", "u", "w"]);
        assert_eq!(barrier(&tables), None);
    }

    /// Why nothing may run beside a row of `shop.t`, as a server writes it that has a hash of `v` in a column of
    /// its own.
    fn barrier(tables: &Tables) -> Option<Barrier> {
        let map = b"\x07\0\0\0\0\0\x01\0\x04shop\0\x01t\0\x04\x03\x0f\x03\x08\x02\xb8\x0b\x0e";
        // All but the first are NULL.
        let row = b"\x07\0\0\0\0\0\x01\0\x04\x0f\x0e\x01\0\0\0";
        let events = vec![event(19, map), event(23, row), xid()];
        let mut group = unit(vec![events.clone()]).transactions[0].group;
        group.flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
        let steps = [
            Step::Begin(group),
            Step::Within,
            Step::End(group, Ending::Xid),
        ];
        let mut collector = Collector::new(Limits::default());
        collector.learn(Arc::clone(tables.catalog()));
        let sets = events.iter().zip(steps).filter_map(|(raw, step)| {
            let seen = Seen {
                event: Event::parse_unverified(raw, Checksum::Off).expect("an event"),
                step,
                abandoned: None,
            };
            collector.event(&seen, &Format::unknown())
        });
        let set = sets.last().expect("it ends");
        set.barrier().cloned()
    }

    /// Digits of a number, which it rounds to.
    #[test]
    fn columns_with_digits() {
        let of = |kind: &'static str| {
            let fake = Fake::new(move |text| {
                let row = |cells: &[&str]| Reply::Row(cells.iter().map(|c| (*c).into()).collect());
                Some(match text {
                    _ if text.contains("FROM information_schema.TABLES ") => {
                        row(&["shop", "t", "BASE TABLE", "InnoDB"])
                    }
                    _ if text.contains("FROM information_schema.COLUMNS ") => {
                        row(&["shop", "t", "a", kind, "", "", "", "NEVER", ""])
                    }
                    _ if text.starts_with("SELECT") => Reply::Nothing,
                    _ => return None,
                })
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let mut known = Known::default();
            known.load(&mut client, Scope::All).expect("answers");
            let tables = known.prepare();
            let columns = &tables.find(b"shop", b"t").expect("a table").columns;
            columns[0].digits
        };
        assert_eq!((of("float(8,2)"), of("float")), (Some((8, 2)), None));
    }

    /// What EXTRA says of a column.
    #[test]
    fn columns_that_count_or_change_by_themselves() {
        let of = |extra: &'static str| {
            let fake = Fake::new(move |text| {
                let row = |cells: &[&str]| Reply::Row(cells.iter().map(|c| (*c).into()).collect());
                Some(match text {
                    _ if text.contains("FROM information_schema.TABLES ") => {
                        row(&["shop", "t", "BASE TABLE", "InnoDB"])
                    }
                    _ if text.contains("FROM information_schema.COLUMNS ") => {
                        row(&["shop", "t", "a", "int(11)", "", "", extra, "NEVER", ""])
                    }
                    _ if text.starts_with("SELECT") => Reply::Nothing,
                    _ => return None,
                })
            });
            let mut client = Client::connect(&fake.account()).expect("a target");
            let mut known = Known::default();
            known.load(&mut client, Scope::All).expect("answers");
            let tables = known.prepare();
            let column = &tables.find(b"shop", b"t").expect("a table").columns[0];
            (column.auto_increment, column.on_update)
        };
        assert_eq!(of("auto_increment"), (true, false));
        assert_eq!(of("on update current_timestamp()"), (false, true));
        assert_eq!(of(""), (false, false));
    }
}
