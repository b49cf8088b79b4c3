//! The primary's tables, out of its `information_schema`.
//!
//! Everything must be seen: a foreign key that is not, is a conflict that is not. So the account must
//! see all tables, and whatever looks like a gap is refused.

use std::collections::BTreeMap;

use dromon_binlog::hints::{Action, Catalog, Column, ForeignKey, KeyPart, TableName, TableSchema};

use crate::wire::Row;

/// The account's privileges on everything.
pub const PRIVILEGES: &str = "SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = \
     CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')";
/// All tables.
pub const TABLES: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE \
     TABLE_TYPE NOT IN ('VIEW', 'SYSTEM VIEW') AND TABLE_SCHEMA NOT IN ('information_schema', 'performance_schema')";
/// Their columns.
pub const COLUMNS: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, IS_GENERATED FROM \
     information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN ('information_schema', 'performance_schema') ORDER BY \
     TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION";
/// The same of MySQL, which has no IS_GENERATED.
pub const COLUMNS_OF_MYSQL: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, \
     IF(GENERATION_EXPRESSION = '', 'NEVER', 'ALWAYS') FROM information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN \
     ('information_schema', 'performance_schema') ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION";
/// Whether a privilege on everything may be less than that: MySQL from 8.0.16 on.
pub const PARTIAL_REVOKES: &str = "SHOW GLOBAL VARIABLES LIKE 'partial_revokes'";
/// Their unique keys.
pub const KEYS: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, INDEX_TYPE FROM \
     information_schema.STATISTICS WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA NOT IN ('information_schema', \
     'performance_schema') ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX";
/// The columns of foreign keys.
pub const FOREIGN: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, \
     REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE \
     REFERENCED_TABLE_NAME IS NOT NULL ORDER BY TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION";
/// What they do.
pub const RULES: &str = "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, UPDATE_RULE, DELETE_RULE FROM \
     information_schema.REFERENTIAL_CONSTRAINTS";

/// Why a catalog cannot be made of what the server says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablesError {
    /// The account does not see everything.
    #[error(
        "the account does not see all tables and foreign keys. GRANT SELECT, REFERENCES ON *.* to it, directly, not by a role"
    )]
    Privileges,
    /// It may not see everything, and nobody can tell.
    #[error(
        "partial_revokes is ON there: whether the account sees all tables and foreign keys cannot be known"
    )]
    Revokes,
    /// Something is told of what is not there: it changed meanwhile, or could not be read.
    #[error("information_schema does not fit together at {0}; perhaps a table is being changed")]
    Gap(String),
}

/// Answers to the questions above.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// To [`PRIVILEGES`].
    pub privileges: Vec<Row>,
    /// To [`PARTIAL_REVOKES`]; nothing if there is no such thing.
    pub revokes: Vec<Row>,
    /// To [`TABLES`].
    pub tables: Vec<Row>,
    /// To [`COLUMNS`].
    pub columns: Vec<Row>,
    /// To [`KEYS`].
    pub keys: Vec<Row>,
    /// To [`FOREIGN`].
    pub foreign: Vec<Row>,
    /// To [`RULES`].
    pub rules: Vec<Row>,
}

fn text(row: &Row, n: usize) -> String {
    optional(row, n).unwrap_or_default()
}

fn optional(row: &Row, n: usize) -> Option<String> {
    let cell = row.get(n)?.as_deref()?;
    Some(String::from_utf8_lossy(cell).into_owned())
}

fn name(row: &Row) -> TableName {
    TableName::new(&text(row, 0), &text(row, 1))
}

fn shown(name: &TableName) -> String {
    format!("{}.{}", name.database, name.table)
}

/// As a catalog.
///
/// # Errors
/// [`TablesError`].
pub fn catalog_of(answers: &Answers) -> Result<Catalog, TablesError> {
    tables_of(answers).map(Catalog::new)
}

/// As tables. Rows of one key need not be neighbours: the server sorts names without regard to upper and lower
/// case, by which it may tell databases and tables apart.
///
/// # Errors
/// [`TablesError`].
pub fn tables_of(answers: &Answers) -> Result<Vec<TableSchema>, TablesError> {
    // What foreign keys do is not shown to an account that may only read.
    for wanted in ["SELECT", "REFERENCES"] {
        let has = |row: &Row| text(row, 0).eq_ignore_ascii_case(wanted);
        if !answers.privileges.iter().any(has) {
            return Err(TablesError::Privileges);
        }
    }
    let off = |row: &Row| ["OFF", "0"].contains(&&text(row, 1)[..]);
    if !answers.revokes.iter().all(off) {
        return Err(TablesError::Revokes);
    }
    let mut tables: BTreeMap<TableName, TableSchema> = BTreeMap::new();
    for row in &answers.tables {
        let name = name(row);
        let plain = text(row, 2).eq_ignore_ascii_case("BASE TABLE")
            && text(row, 3).eq_ignore_ascii_case("InnoDB");
        let table = TableSchema {
            name: name.clone(),
            opaque: !plain,
            ..TableSchema::default()
        };
        tables.insert(name, table);
    }
    // Those of views come as well.
    for row in &answers.columns {
        if let Some(table) = tables.get_mut(&name(row)) {
            table.columns.push(Column {
                name: text(row, 2),
                kind: text(row, 3),
                collation: optional(row, 4),
                generated: !text(row, 5).eq_ignore_ascii_case("NEVER"),
            });
        }
    }
    let mut keys: BTreeMap<(TableName, String), Vec<KeyPart>> = BTreeMap::new();
    for row in &answers.keys {
        let of = (name(row), text(row, 2));
        let table = tables
            .get_mut(&of.0)
            .ok_or_else(|| TablesError::Gap(shown(&of.0)))?;
        // Long values are compared by their hashes, in a column that is not shown.
        table.opaque |= !text(row, 5).eq_ignore_ascii_case("BTREE");
        keys.entry(of).or_default().push(KeyPart {
            column: optional(row, 3),
            prefix: text(row, 4).parse().unwrap_or(0),
        });
    }
    for ((name, _), parts) in keys {
        if let Some(table) = tables.get_mut(&name) {
            table.unique.push(parts);
        }
    }
    foreign(answers, &mut tables)?;
    for table in tables.values_mut() {
        if table.columns.is_empty() {
            return Err(TablesError::Gap(shown(&table.name)));
        }
        table.opaque |= table.unique.iter().any(|key| may_overlap(table, key));
    }
    Ok(tables.into_values().collect())
}

fn foreign(
    answers: &Answers,
    tables: &mut BTreeMap<TableName, TableSchema>,
) -> Result<(), TablesError> {
    let action = |word: String| match &word.to_ascii_uppercase()[..] {
        "RESTRICT" | "NO ACTION" => Action::Refuse,
        _ => Action::Change,
    };
    let mut rules = BTreeMap::new();
    for row in &answers.rules {
        let of = (name(row), text(row, 2));
        rules.insert(of, (action(text(row, 3)), action(text(row, 4))));
    }
    let mut keys: BTreeMap<(TableName, String), ForeignKey> = BTreeMap::new();
    for row in &answers.foreign {
        let of = (name(row), text(row, 2));
        let gap = || TablesError::Gap(format!("{}, foreign key {}", shown(&of.0), of.1));
        let (on_update, on_delete) = *rules.get(&of).ok_or_else(gap)?;
        tables.get(&of.0).ok_or_else(gap)?;
        let key = keys.entry(of).or_insert_with(|| ForeignKey {
            parent: TableName::new(&text(row, 4), &text(row, 5)),
            on_delete,
            on_update,
            ..ForeignKey::default()
        });
        key.columns.push(text(row, 3));
        key.parent_columns.push(text(row, 6));
    }
    let count = keys.len();
    for ((name, _), key) in keys {
        if let Some(table) = tables.get_mut(&name) {
            table.foreign.push(key);
        }
    }
    match count == rules.len() {
        true => Ok(()),
        false => Err(TablesError::Gap(format!(
            "foreign keys: {count} have columns, {} have rules",
            rules.len()
        ))),
    }
}

/// Whether a key may be one WITHOUT OVERLAPS, which is not shown: such a key ends with both ends of
/// a period.
fn may_overlap(table: &TableSchema, key: &[KeyPart]) -> bool {
    let [.., one, two] = key else { return false };
    let kind = |part: &KeyPart| {
        let column = table
            .columns
            .iter()
            .find(|c| Some(&c.name) == part.column.as_ref())?;
        let kind = column.kind.to_ascii_lowercase();
        let times = ["date", "timestamp"];
        times.iter().any(|t| kind.starts_with(t)).then_some(kind)
    };
    matches!((kind(one), kind(two)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<Row> {
        let cell = |c: &str| (c != "NULL").then(|| c.as_bytes().to_vec());
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        lines
            .map(|l| l.split('|').map(|c| cell(c.trim())).collect())
            .collect()
    }

    fn answers() -> Answers {
        Answers {
            privileges: rows("REPLICATION SLAVE\nSELECT\nREFERENCES"),
            revokes: rows("partial_revokes|OFF"),
            tables: rows(
                "d|c|BASE TABLE|InnoDB
                 d|p|BASE TABLE|InnoDB
                 d|h|SYSTEM VERSIONED|InnoDB
                 d|l|BASE TABLE|InnoDB
                 d|m|BASE TABLE|MyISAM
                 d|o|BASE TABLE|InnoDB
                 d|s|SEQUENCE|InnoDB",
            ),
            columns: rows(
                "d|c|id|int(11)|NULL|NEVER
                 d|c|p1|int(11)|NULL|NEVER
                 d|c|p2|varchar(9)|utf8mb4_general_ci|NEVER
                 d|c|g|int(11)|NULL|ALWAYS
                 d|h|id|int(11)|NULL|NEVER
                 d|l|id|int(11)|NULL|NEVER
                 d|l|t|text|utf8mb4_general_ci|NEVER
                 d|m|id|int(11)|NULL|NEVER
                 d|o|id|int(11)|NULL|NEVER
                 d|o|a|date|NULL|NEVER
                 d|o|b|date|NULL|NEVER
                 d|p|a|int(11)|NULL|NEVER
                 d|p|b|varchar(9)|utf8mb4_general_ci|NEVER
                 d|s|next_not_cached_value|bigint(21)|NULL|NEVER
                 d|v|of_a_view|int(11)|NULL|NEVER",
            ),
            keys: rows(
                "d|c|PRIMARY|id|NULL|BTREE
                 d|c|u|p2|3|BTREE
                 d|c|u|id|NULL|BTREE
                 d|l|PRIMARY|id|NULL|BTREE
                 d|l|t|t|NULL|HASH
                 d|o|PRIMARY|id|NULL|BTREE
                 d|o|PRIMARY|b|NULL|BTREE
                 d|o|PRIMARY|a|NULL|BTREE
                 d|p|PRIMARY|a|NULL|BTREE
                 d|p|PRIMARY|b|NULL|BTREE",
            ),
            foreign: rows("d|c|fk|p1|d|p|a\nd|c|fk|p2|d|p|b"),
            rules: rows("d|c|fk|CASCADE|NO ACTION"),
        }
    }

    #[test]
    fn all_that_is_said() {
        let tables = tables_of(&answers()).expect("it fits together");
        let find = |name: &str| {
            tables
                .iter()
                .find(|t| t.name.table == name)
                .expect("it is there")
        };
        let c = find("c");
        assert!(!c.opaque && c.columns.len() == 4 && c.columns[3].generated);
        assert_eq!(
            c.unique,
            [
                vec![KeyPart::of("id")],
                vec![
                    KeyPart {
                        column: Some("p2".into()),
                        prefix: 3
                    },
                    KeyPart::of("id")
                ]
            ]
        );
        assert_eq!(
            c.foreign,
            [ForeignKey {
                columns: vec!["p1".into(), "p2".into()],
                parent: TableName::new("d", "p"),
                parent_columns: vec!["a".into(), "b".into()],
                on_delete: Action::Refuse,
                on_update: Action::Change,
            }]
        );
        assert!(!find("p").opaque);
        for name in ["h", "l", "m", "o", "s"] {
            assert!(find(name).opaque, "{name}");
        }
        let catalog = catalog_of(&answers()).expect("the same");
        assert!(catalog.knows(&TableName::new("d", "c")));
        assert!(!catalog.knows(&TableName::new("d", "v")));
    }

    /// Of databases whose names differ in upper and lower case alone, rows come in turn.
    #[test]
    fn names_that_differ_in_case_alone() {
        let in_turn = |rows_of: &[Row]| {
            let twin = |row: &Row| {
                let mut twin = row.clone();
                for cell in twin.iter_mut().flatten().filter(|cell| *cell == b"d") {
                    *cell = b"D".to_vec();
                }
                [row.clone(), twin]
            };
            rows_of.iter().flat_map(twin).collect::<Vec<Row>>()
        };
        let once = answers();
        let twice = Answers {
            tables: in_turn(&once.tables),
            columns: in_turn(&once.columns),
            keys: in_turn(&once.keys),
            foreign: in_turn(&once.foreign),
            rules: in_turn(&once.rules),
            ..once.clone()
        };
        let once = tables_of(&once).expect("it fits together");
        let twice = tables_of(&twice).expect("the same");
        assert_eq!(twice.len(), 2 * once.len());
        assert_eq!(twice[once.len()..], once);
        let upper = |table: &TableSchema| {
            let mut table = table.clone();
            table.name.database = "D".into();
            for key in &mut table.foreign {
                key.parent.database = "D".into();
            }
            table
        };
        assert_eq!(
            twice[..once.len()],
            once.iter().map(upper).collect::<Vec<_>>()
        );
    }

    #[test]
    fn gaps_are_refused() {
        let check = |change: &dyn Fn(&mut Answers)| {
            let mut answers = answers();
            change(&mut answers);
            tables_of(&answers).expect_err("a gap").to_string()
        };
        for some in ["REPLICATION SLAVE", "SELECT", "REFERENCES"] {
            let blind = check(&|a| a.privileges = rows(some));
            assert!(blind.contains("GRANT SELECT, REFERENCES"), "{blind}");
        }
        let partly = check(&|a| a.revokes = rows("partial_revokes|ON"));
        assert!(partly.contains("partial_revokes"), "{partly}");
        assert!(check(&|a| a.columns.retain(|r| text(r, 1) != "m")).contains("d.m"));
        assert!(check(&|a| a.tables.retain(|r| text(r, 1) != "p")).contains("d.p"));
        assert!(check(&|a| a.rules.clear()).contains("fk"));
        assert!(check(&|a| a.foreign.clear()).contains("0 have columns, 1 have rules"));
    }
}
