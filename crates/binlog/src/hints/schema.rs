//! What must be known of the tables before keys can be computed from rows.
//!
//! A [`Catalog`] is a picture of all tables of the primary at one place of the
//! stream. It is made of what `information_schema` says, and says for each
//! table which keys its rows touch, and what else a change of it can touch:
//!
//! ```text
//!  parent <─── child          a row of the child reads the parent's key
//!  parent ───> child          a change of the parent that cascades writes the
//!              │              child, which no event says: all of its table,
//!              ├─> parents    and it reads all other parents of it,
//!              └─> children   and so on below
//! ```
//!
//! A table is *known* if it is in the catalog, its keys name columns that it
//! has, and all tables that a change of it can touch are in the catalog too.

use rustc_hash::{FxHashMap, FxHashSet};
use twox_hash::XxHash3_64;

use super::fold::Equality;
use super::keys::{Modes, Touch};

/// A table's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// Its database.
    pub database: String,
    /// Its name there.
    pub table: String,
}

impl TableName {
    /// Of these parts.
    pub fn new(database: &str, table: &str) -> TableName {
        TableName {
            database: database.into(),
            table: table.into(),
        }
    }
}

/// A column, as `information_schema.COLUMNS` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// COLUMN_NAME.
    pub name: String,
    /// COLUMN_TYPE, as `int(10) unsigned`.
    pub kind: String,
    /// COLLATION_NAME; `None`: no text, or binary.
    pub collation: Option<String>,
    /// Whether its value is computed.
    pub generated: bool,
}

/// A column of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPart {
    /// COLUMN_NAME; `None`: the part is an expression.
    pub column: Option<String>,
    /// SUB_PART: so many characters of it count; 0: all.
    pub prefix: u32,
}

impl KeyPart {
    /// All of a column.
    pub fn of(column: &str) -> KeyPart {
        KeyPart {
            column: Some(column.into()),
            prefix: 0,
        }
    }
}

/// What happens to a child's rows when their parent goes or gets another key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// RESTRICT, NO ACTION: it is refused.
    #[default]
    Refuse,
    /// CASCADE, SET NULL, SET DEFAULT: they change, and no event says so.
    Change,
}

/// A foreign key, at its child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignKey {
    /// The child's columns.
    pub columns: Vec<String>,
    /// The parent.
    pub parent: TableName,
    /// The parent's columns, as many. No unique key need be over them.
    pub parent_columns: Vec<String>,
    /// DELETE_RULE.
    pub on_delete: Action,
    /// UPDATE_RULE.
    pub on_update: Action,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSchema {
    /// Its name, as table maps write it.
    pub name: TableName,
    /// All columns, in their order in rows.
    pub columns: Vec<Column>,
    /// The primary key and all other unique ones.
    pub unique: Vec<Vec<KeyPart>>,
    /// Its foreign keys.
    pub foreign: Vec<ForeignKey>,
    /// It is not a plain table, in which a row is named by its unique keys and
    /// nothing else changes with it: it is system versioned, has a key WITHOUT
    /// OVERLAPS, a unique one of hashes, triggers that a replica runs for rows,
    /// or the like. Rows may have columns that are not among those above.
    pub opaque: bool,
}

/// A part of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub column: usize,
    pub prefix: usize,
    pub equality: Equality,
}

/// A key of a table's rows: a unique one, or one that foreign keys name.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub node: u64,
    pub unique: bool,
    /// `None`: its values do not stand in rows.
    pub parts: Option<Vec<Part>>,
    /// What else is touched if a row gets other values here.
    pub on_change: Vec<Touch>,
}

/// A foreign key, seen from the child.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    pub parent_table: u64,
    pub parent_index: u64,
    /// `None`: its values do not stand in rows, or cannot be compared with
    /// those of the parent.
    pub parts: Option<Vec<Part>>,
    /// All its columns, to know whether one is NULL.
    pub columns: Vec<usize>,
}

/// A table, prepared.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub node: u64,
    pub columns: Vec<Column>,
    pub unique: Vec<Vec<KeyPart>>,
    pub indexes: Vec<Index>,
    pub foreign: Vec<Foreign>,
    /// A row names no key, or not all that changes with it.
    pub opaque: bool,
    /// It may have columns at its end that are not shown.
    pub hides: bool,
    /// What is touched at most, whatever happens to its rows.
    pub whole: Vec<Touch>,
    /// What is touched beside it when a row is deleted.
    pub on_delete: Vec<Touch>,
    /// Columns without which no key can be computed.
    pub needed: Vec<usize>,
}

/// All tables of the primary.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// By database, 0, table.
    by_name: FxHashMap<Vec<u8>, usize>,
    /// Upper and lower case of names are the same: they are kept in lower case.
    any_case: bool,
    /// `None`: not known.
    tables: Vec<Option<Table>>,
}

/// Bytes of a name for hashing. A server may fold names to lower case, so `T`
/// and `t` count as one.
fn node_of(kind: u8, parts: &[&str]) -> u64 {
    let mut bytes = vec![kind];
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.to_ascii_lowercase().as_bytes());
    }
    XxHash3_64::oneshot(&bytes)
}

fn table_node(name: &TableName) -> u64 {
    node_of(b't', &[&name.database, &name.table])
}

fn index_node(name: &TableName, parts: &[KeyPart]) -> u64 {
    let prefixes: Vec<String> = parts.iter().map(|p| p.prefix.to_string()).collect();
    let mut all = vec![name.database.as_str(), name.table.as_str()];
    for (part, prefix) in parts.iter().zip(&prefixes) {
        all.push(part.column.as_deref().unwrap_or(""));
        all.push(prefix);
    }
    node_of(b'i', &all)
}

fn whole_parts(columns: &[String]) -> Vec<KeyPart> {
    columns.iter().map(|name| KeyPart::of(name)).collect()
}

fn name_bytes(database: &[u8], table: &[u8]) -> Vec<u8> {
    [database, &[0], table].concat()
}

impl Catalog {
    /// Of all tables there are. A table that is missing is not known, and
    /// neither are those whose changes can touch it.
    pub fn new(tables: Vec<TableSchema>) -> Catalog {
        let mut by_name = FxHashMap::default();
        for (n, table) in tables.iter().enumerate() {
            let (database, table) = (&table.name.database, &table.name.table);
            by_name.insert(name_bytes(database.as_bytes(), table.as_bytes()), n);
        }
        let mut graph = Graph {
            tables: &tables,
            by_name: &by_name,
            references: vec![Vec::new(); tables.len()],
        };
        for (child, table) in tables.iter().enumerate() {
            for key in &table.foreign {
                if let Some(parent) = graph.find(&key.parent) {
                    graph.references[parent].push((child, key));
                }
            }
        }
        let prepared = (0..tables.len()).map(|n| graph.prepare(n)).collect();
        Catalog {
            by_name,
            any_case: false,
            tables: prepared,
        }
    }

    /// The same, where upper and lower case of names are the same (`lower_case_table_names`). Names must be
    /// in lower case.
    #[must_use]
    pub fn of_any_case(self) -> Catalog {
        Catalog {
            any_case: true,
            ..self
        }
    }

    /// The table of this name, if it is known.
    pub(crate) fn find(&self, database: &[u8], table: &[u8]) -> Option<usize> {
        let name = name_bytes(database, table);
        let n = match (self.any_case, std::str::from_utf8(&name)) {
            (true, Ok(text)) => *self.by_name.get(text.to_lowercase().as_bytes())?,
            _ => *self.by_name.get(&name)?,
        };
        self.tables[n].as_ref().map(|_| n)
    }

    /// One that was found.
    pub(crate) fn table(&self, n: usize) -> &Table {
        self.tables[n].as_ref().expect("only known ones are found")
    }

    /// The name of a table that was found.
    pub(super) fn name(&self, n: usize) -> TableName {
        let named = self.by_name.iter().find(|(_, at)| **at == n);
        let text = named.map_or("".into(), |(name, _)| String::from_utf8_lossy(name));
        match text.split_once('\0') {
            Some((database, table)) => TableName::new(database, table),
            None => TableName::default(),
        }
    }

    /// All tables that are known, with their numbers.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, &Table)> {
        let all = self.tables.iter().enumerate();
        all.filter_map(|(n, table)| Some((n, table.as_ref()?)))
    }

    /// Whether a table is known, that is, whether its rows need be no barrier.
    pub fn knows(&self, name: &TableName) -> bool {
        self.find(name.database.as_bytes(), name.table.as_bytes())
            .is_some()
    }
}

/// The tables as they came, while they are prepared.
struct Graph<'a> {
    tables: &'a [TableSchema],
    by_name: &'a FxHashMap<Vec<u8>, usize>,
    /// Of each table: the foreign keys that name it, and their tables.
    references: Vec<Vec<(usize, &'a ForeignKey)>>,
}

impl Graph<'_> {
    fn find(&self, name: &TableName) -> Option<usize> {
        let name = name_bytes(name.database.as_bytes(), name.table.as_bytes());
        self.by_name.get(&name).copied()
    }

    fn column(&self, table: usize, name: &str) -> Option<usize> {
        let columns = &self.tables[table].columns;
        columns
            .iter()
            .position(|c| c.name.eq_ignore_ascii_case(name))
    }

    /// What a change of rows that no event shows can touch, starting with all
    /// rows of these tables: the tables, all their parents, and those below
    /// them. `None`: some are not there.
    fn spread(&self, from: Vec<usize>) -> Option<Vec<Touch>> {
        let mut todo = from;
        // Of few tables mostly, or of none, while there may be very many.
        let mut written = FxHashSet::default();
        let mut touches = Vec::new();
        while let Some(n) = todo.pop() {
            if !written.insert(n) {
                continue;
            }
            let table = &self.tables[n];
            touches.push(Touch::new(table_node(&table.name), Modes::WRITE));
            for key in &table.foreign {
                let parent = self.find(&key.parent)?;
                let parent = table_node(&self.tables[parent].name);
                touches.push(Touch::new(parent, Modes::READ));
            }
            for (child, key) in &self.references[n] {
                if [key.on_delete, key.on_update].contains(&Action::Change) {
                    todo.push(*child);
                }
            }
        }
        Some(touches)
    }

    fn part(&self, table: usize, part: &KeyPart) -> Option<Option<Part>> {
        let Some(name) = &part.column else {
            return Some(None);
        };
        let n = self.column(table, name)?;
        let column = &self.tables[table].columns[n];
        Some((!column.generated).then(|| Part {
            column: n,
            prefix: part.prefix as usize,
            equality: Equality::of(column.collation.as_deref()),
        }))
    }

    /// `None`: it names a column that is not there. `Some(None)`: its values
    /// do not stand in rows.
    fn parts(&self, table: usize, parts: &[KeyPart]) -> Option<Option<Vec<Part>>> {
        let parts: Vec<Option<Part>> = parts
            .iter()
            .map(|part| self.part(table, part))
            .collect::<Option<_>>()?;
        Some(parts.into_iter().collect())
    }

    fn prepare(&self, n: usize) -> Option<Table> {
        let schema = &self.tables[n];
        let whole = self.spread(vec![n])?;
        let mut indexes: Vec<Index> = Vec::new();
        let mut add = |parts: &[KeyPart], unique: bool| {
            let node = index_node(&schema.name, parts);
            if let Some(at) = indexes.iter().position(|index| index.node == node) {
                return Some(at);
            }
            indexes.push(Index {
                node,
                unique,
                parts: self.parts(n, parts)?,
                on_change: Vec::new(),
            });
            Some(indexes.len() - 1)
        };
        for parts in &schema.unique {
            add(parts, true)?;
        }
        let mut changed_with: Vec<(usize, usize)> = Vec::new();
        let mut deleted_with = Vec::new();
        for (child, key) in &self.references[n] {
            let at = add(&whole_parts(&key.parent_columns), false)?;
            if key.on_update == Action::Change {
                changed_with.push((at, *child));
            }
            if key.on_delete == Action::Change {
                deleted_with.push(*child);
            }
        }
        for (at, index) in indexes.iter_mut().enumerate() {
            let children = changed_with.iter().filter(|(of, _)| *of == at);
            index.on_change = self.spread(children.map(|(_, child)| *child).collect())?;
        }
        let foreign: Vec<Foreign> = schema
            .foreign
            .iter()
            .map(|key| self.foreign(n, key))
            .collect::<Option<_>>()?;
        let named = indexes.iter().any(|index| index.unique);
        let needed = indexes
            .iter()
            .filter_map(|index| index.parts.as_ref())
            .flatten()
            .map(|part| part.column)
            .chain(foreign.iter().flat_map(|key| key.columns.iter().copied()))
            .collect();
        Some(Table {
            node: table_node(&schema.name),
            columns: schema.columns.clone(),
            unique: schema.unique.clone(),
            opaque: schema.opaque || !named,
            hides: schema.opaque,
            on_delete: self.spread(deleted_with)?,
            indexes,
            foreign,
            whole,
            needed,
        })
    }

    fn foreign(&self, child: usize, key: &ForeignKey) -> Option<Foreign> {
        let parent = self.find(&key.parent)?;
        if key.columns.len() != key.parent_columns.len() || key.columns.is_empty() {
            return None;
        }
        let column = |table: usize, name: &String| self.column(table, name);
        let mine: Vec<usize> = key
            .columns
            .iter()
            .map(|name| column(child, name))
            .collect::<Option<_>>()?;
        let theirs: Vec<usize> = key
            .parent_columns
            .iter()
            .map(|name| column(parent, name))
            .collect::<Option<_>>()?;
        let alike = mine.iter().zip(&theirs).all(|(mine, theirs)| {
            let mine = &self.tables[child].columns[*mine];
            let theirs = &self.tables[parent].columns[*theirs];
            folds_alike(mine, theirs)
        });
        let parts = self.parts(child, &whole_parts(&key.columns))?;
        let parent_name = &self.tables[parent].name;
        Some(Foreign {
            parent_table: table_node(parent_name),
            parent_index: index_node(parent_name, &whole_parts(&key.parent_columns)),
            parts: parts.filter(|_| alike),
            columns: mine,
        })
    }
}

/// Whether equal values of the two give the same bytes.
fn folds_alike(a: &Column, b: &Column) -> bool {
    let same_kind = comparable(&a.kind) == comparable(&b.kind);
    // Texts of one collation, however long.
    let texts = a.collation.is_some() && is_text(&a.kind) && is_text(&b.kind);
    a.collation == b.collation && (same_kind || texts)
}

fn is_text(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    kind.starts_with("char") || kind.starts_with("varchar") || kind.contains("text")
}

/// A COLUMN_TYPE without what changes no value: how wide a whole number is
/// shown.
fn comparable(kind: &str) -> String {
    let kind = kind.to_ascii_lowercase();
    let word = kind.split(['(', ' ']).next().unwrap_or("");
    match word.ends_with("int") {
        true => format!("{word} {}", kind.contains("unsigned")),
        false => kind,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// What one table touches takes no longer to find where there are very many others.
    #[test]
    fn one_of_very_many_tables() {
        let took = |count: usize| {
            let tables = vec![TableSchema::default(); count];
            let by_name = FxHashMap::default();
            let graph = Graph {
                tables: &tables,
                by_name: &by_name,
                references: vec![Vec::new(); count],
            };
            // The best of some: others use the machine, too.
            let once = |_| {
                let began = Instant::now();
                for _ in 0..200 {
                    let touched = graph.spread(vec![0]).expect("it is there");
                    assert_eq!(touched.len(), 1);
                    assert_eq!(graph.spread(Vec::new()).map(|t| t.len()), Some(0));
                }
                began.elapsed()
            };
            (0..10).map(once).min().expect("some")
        };
        let (alone, among) = (took(1), took(500_000));
        assert!(among < alone * 5, "{alone:?}, but {among:?} among others");
    }
}
