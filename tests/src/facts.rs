//! What a database holds on a node, to be compared with the others: the rows and definitions of
//! tables of all kinds, and what is stored beside them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context, ensure};
use dromon_sandbox::mysql::Row;
use dromon_sandbox::{Cluster, Node};

use crate::load::Session;

const LIMIT: Duration = Duration::from_secs(120);

/// Fails if two running nodes do not have the same in `db`.
pub fn equal(cluster: &Cluster, db: &str) -> anyhow::Result<()> {
    let mut first: Option<(String, BTreeMap<String, Facts>)> = None;
    for node in cluster.nodes().iter().filter(|n| n.process().is_some()) {
        let facts =
            of(node, db).with_context(|| format!("checking what {db} has on {}", node.name()))?;
        match &first {
            None => first = Some((node.name(), facts)),
            Some((name, expected)) => compare(db, (name, expected), (&node.name(), &facts))?,
        }
    }
    Ok(())
}

/// One table, or one thing that is stored beside them.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    checksum: Option<u64>,
    /// Of a table with history: how many rows that is, and what they hold.
    history: Option<(usize, u64)>,
    definition: String,
}

type Side<'a> = (&'a str, &'a BTreeMap<String, Facts>);

fn compare(db: &str, first: Side<'_>, other: Side<'_>) -> anyhow::Result<()> {
    let ((reference, expected), (node, facts)) = (first, other);
    let names = |f: &BTreeMap<String, Facts>| f.keys().cloned().collect::<Vec<_>>();
    ensure!(
        names(expected) == names(facts),
        "{reference} and {node} have different things in {db}: {:?} and {:?}",
        names(expected),
        names(facts)
    );
    for (name, fact) in facts {
        ensure!(
            &expected[name] == fact,
            "{db}, {name} differs: on {reference} {:?}, on {node} {fact:?}",
            expected[name]
        );
    }
    Ok(())
}

fn of(node: &Node, db: &str) -> anyhow::Result<BTreeMap<String, Facts>> {
    let mut session = Session::open_within(node, db, 0, LIMIT)?;
    let mut all: BTreeMap<String, Facts> = definitions(db, |sql| Ok(session.rows(sql)?))?
        .into_iter()
        .map(|(name, definition)| {
            let facts = Facts {
                checksum: None,
                history: None,
                definition,
            };
            (name, facts)
        })
        .collect();
    let tables: Vec<(String, String)> = session.rows(&tables_of(db))?;
    for (table, kind) in tables {
        let name = of_table(&table);
        let facts = all
            .get_mut(&name)
            .with_context(|| format!("{db}.{table} has come meanwhile"))?;
        if kind == "SEQUENCE" {
            facts.definition += &sequence(&mut session, &table)?;
        } else if kind != "VIEW" {
            facts.checksum = Some(checked(&mut session, db, &table)?);
        }
        if kind == VERSIONED {
            let rows = history(db, &table, &facts.definition, |sql| Ok(session.rows(sql)?))?;
            let mut hasher = DefaultHasher::new();
            rows.hash(&mut hasher);
            facts.history = Some((rows.len(), hasher.finish()));
        }
    }
    Ok(all)
}

/// What `information_schema` calls a table with history.
const VERSIONED: &str = "SYSTEM VERSIONED";

fn tables_of(db: &str) -> String {
    format!(
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = '{db}' ORDER BY 1"
    )
}

fn of_table(table: &str) -> String {
    format!("table {table}")
}

/// The tables of `db` and what is stored beside them, by kind and name: how each is defined. It asks by
/// `query`, of any server.
pub fn definitions(
    db: &str,
    mut query: impl FnMut(&str) -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for row in query(&tables_of(db))? {
        let (table, _) = two_of(row)?;
        let sql = format!("SHOW CREATE TABLE `{db}`.`{table}`");
        let row = query(&sql)?.pop();
        let (_, definition) = two_of(row.with_context(|| format!("{sql} returned nothing"))?)?;
        all.insert(of_table(&table), without_counter(&definition));
    }
    for (what, sql) in BESIDE {
        for row in query(&sql.replace("{db}", db))? {
            let (name, definition) = two_of(row)?;
            all.insert(format!("{what} {name}"), definition);
        }
    }
    Ok(all)
}

/// The rows that are and were, of each table of `db` with history.
pub fn histories(
    db: &str,
    mut query: impl FnMut(&str) -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let all = definitions(db, &mut query)?;
    let mut found = BTreeMap::new();
    for row in query(&tables_of(db))? {
        let (table, kind) = two_of(row)?;
        if kind == VERSIONED {
            let definition = all.get(&of_table(&table)).map_or("", String::as_str);
            let rows = history(db, &table, definition, &mut query)?;
            found.insert(of_table(&table), rows);
        }
    }
    Ok(found)
}

/// The first thing that is not the same on both, and how it is there.
pub fn first_difference<T: PartialEq>(
    wanted: &BTreeMap<String, T>,
    have: &BTreeMap<String, T>,
) -> Option<String> {
    let names = wanted.keys().chain(have.keys());
    names
        .filter(|name| wanted.get(*name) != have.get(*name))
        .min()
        .cloned()
}

/// What is stored beside tables: a name and all that makes it what it is. When something was made
/// is each node's own, and whether an event runs, which it does on one node only.
const BESIDE: [(&str, &str); 4] = [
    (
        "trigger",
        "SELECT trigger_name, CONCAT_WS('|', event_manipulation, event_object_table, action_order, action_timing, \
         action_statement, sql_mode, definer, character_set_client, collation_connection, database_collation) \
         FROM information_schema.triggers WHERE trigger_schema = '{db}'",
    ),
    (
        "routine",
        "SELECT CONCAT(routine_type, ' ', specific_name), CONCAT_WS('|', dtd_identifier, routine_definition, \
         is_deterministic, sql_data_access, security_type, sql_mode, routine_comment, definer, character_set_client, \
         collation_connection, database_collation) FROM information_schema.routines WHERE routine_schema = '{db}'",
    ),
    (
        "parameter",
        "SELECT CONCAT(specific_name, ' ', routine_type, ' ', ordinal_position), CONCAT_WS('|', parameter_mode, \
         parameter_name, dtd_identifier) FROM information_schema.parameters WHERE specific_schema = '{db}'",
    ),
    (
        "event",
        "SELECT event_name, CONCAT_WS('|', definer, time_zone, event_definition, event_type, execute_at, \
         interval_value, interval_field, sql_mode, starts, ends, on_completion, event_comment, character_set_client, \
         collation_connection, database_collation) FROM information_schema.events WHERE event_schema = '{db}'",
    ),
];

/// The sum over its rows, of a table whose indexes agree.
fn checked(session: &mut Session, db: &str, table: &str) -> anyhow::Result<u64> {
    let row: Option<(String, Option<u64>)> =
        session.one(&format!("CHECKSUM TABLE `{table}` EXTENDED"))?;
    let verdicts: Vec<(String, String, String, String)> =
        session.rows(&format!("CHECK TABLE `{table}`"))?;
    for (_, _, kind, text) in &verdicts {
        ensure!(
            kind != "error" && kind != "Error",
            "CHECK TABLE {db}.{table}: {text}"
        );
    }
    row.and_then(|r| r.1)
        .with_context(|| format!("{db}.{table} has no checksum"))
}

/// What a sequence is set to and has given. One that nodes share (`INCREMENT BY 0`) goes on at each node's
/// own offset: its next value is each node's own.
fn sequence(session: &mut Session, table: &str) -> anyhow::Result<String> {
    let sql = format!(
        "SELECT CONCAT_WS('|', IF(increment = 0, 'own', next_not_cached_value), minimum_value, maximum_value, \
         start_value, increment, cache_size, cycle_option, cycle_count) FROM `{table}`"
    );
    let row: Option<String> = session.one(&sql)?;
    Ok(format!("; {row:?}"))
}

/// The rows that are and were, in some order of their own; `CHECKSUM TABLE` sees nothing of those that were.
fn history(
    db: &str,
    table: &str,
    definition: &str,
    mut query: impl FnMut(&str) -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<Vec<String>> {
    let hidden = match definition.contains("AS ROW START") {
        true => "",
        false => ", row_start, row_end",
    };
    let sql = format!("SELECT *{hidden} FROM `{db}`.`{table}` FOR SYSTEM_TIME ALL");
    let mut rows: Vec<String> = (query(&sql)?.into_iter())
        .map(|row| format!("{:?}", row.unwrap()))
        .collect();
    rows.sort_unstable();
    Ok(rows)
}

/// The first two columns; SHOW CREATE TABLE has more for a view.
fn two_of(mut row: Row) -> anyhow::Result<(String, String)> {
    let mut take = |i| row.take(i).context("a row of too few columns");
    Ok((take(0)?, take(1)?))
}

/// The next auto-increment value is each node's own business.
fn without_counter(definition: &str) -> String {
    definition
        .split(' ')
        .filter(|word| !word.starts_with("AUTO_INCREMENT="))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_compare_without_the_counter() {
        let with = "CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB AUTO_INCREMENT=17 DEFAULT CHARSET=utf8mb4";
        let without = "CREATE TABLE `t` (\n  `id` int\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";
        assert_eq!(without_counter(with), without);
    }

    #[test]
    fn each_difference_is_named() {
        let facts = |definition: &str, history| Facts {
            checksum: Some(7),
            history,
            definition: definition.to_owned(),
        };
        let one = |name: &str, fact| BTreeMap::from([(name.to_owned(), fact)]);
        let first = one("table t", facts("x", Some((3, 9))));
        let with = |other| compare("d", ("db1", &first), ("db2", &other));
        assert!(with(one("table t", facts("x", Some((3, 9))))).is_ok());
        for (other, words) in [
            (
                one("table t", facts("y", Some((3, 9)))),
                "d, table t differs",
            ),
            (
                one("table t", facts("x", Some((2, 9)))),
                "d, table t differs",
            ),
            (
                one("event t", facts("x", Some((3, 9)))),
                "different things in d",
            ),
        ] {
            let error = with(other).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
