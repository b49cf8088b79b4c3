//! What two servers without a cluster have in common, beyond the rows of the tables that a load writes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure};
use dromon_sandbox::mysql::prelude::Queryable;

use super::plain::Server;
use crate::facts;

/// The same tables, and beside them the same triggers, routines and events, in all schemas that are named in
/// the list of tables; the same sums of these, and the same history of those that have one.
pub fn all(wanted: &Server, has: &Server, tables: &str, what: &str) -> anyhow::Result<()> {
    for db in schemas(tables) {
        compare(&definitions(wanted, db)?, &definitions(has, db)?, db, what)?;
    }
    rows(wanted, has, tables, what)?;
    for db in schemas(tables) {
        compare(&histories(wanted, db)?, &histories(has, db)?, db, what)?;
    }
    Ok(())
}

/// The same sums of these tables alone: the other server was told to leave something out.
pub fn rows(wanted: &Server, has: &Server, tables: &str, what: &str) -> anyhow::Result<()> {
    sums_are_equal(&wanted.checksums(tables)?, &has.checksums(tables)?, what)
}

/// How everything in a schema is defined.
pub fn definitions(server: &Server, db: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut conn = server.connect("")?;
    facts::definitions(db, |sql| Ok(conn.query(sql)?))
}

fn histories(server: &Server, db: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut conn = server.connect("")?;
    let all = facts::histories(db, |sql| Ok(conn.query(sql)?))?;
    let line = |(name, rows): (String, Vec<String>)| {
        (name, format!("{} rows: {}", rows.len(), rows.join("; ")))
    };
    Ok(all.into_iter().map(line).collect())
}

/// Both have the same, under the same names.
pub fn compare(
    wanted: &BTreeMap<String, String>,
    has: &BTreeMap<String, String>,
    db: &str,
    what: &str,
) -> anyhow::Result<()> {
    if let Some(name) = facts::first_difference(wanted, has) {
        bail!(
            "{what}: in {db}, {name} is {:?} instead of {:?}",
            has.get(&name),
            wanted.get(&name)
        );
    }
    Ok(())
}

/// Each table has a sum, the same one. A table that is missing has none, on both sides as well.
pub fn sums_are_equal(
    wanted: &[(String, Option<u64>)],
    has: &[(String, Option<u64>)],
    what: &str,
) -> anyhow::Result<()> {
    ensure!(
        !wanted.is_empty() && wanted.iter().all(|(_, sum)| sum.is_some()),
        "{what}: no checksums: {wanted:?}"
    );
    ensure!(
        wanted.len() == has.len(),
        "{what}: {has:?} instead of {wanted:?}"
    );
    for (wanted, has) in wanted.iter().zip(has) {
        ensure!(wanted == has, "{what}: {has:?} instead of {wanted:?}");
    }
    Ok(())
}

fn schemas(tables: &str) -> BTreeSet<&str> {
    let names = tables.split(',').map(str::trim);
    names
        .filter_map(|name| Some(name.split_once('.')?.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_missing_on_both_is_not_equal() {
        let sum = |sum| vec![("d.t".to_owned(), sum)];
        assert!(sums_are_equal(&sum(Some(7)), &sum(Some(7)), "x").is_ok());
        for (wanted, has) in [
            (sum(None), sum(None)),
            (sum(Some(7)), sum(None)),
            (sum(Some(7)), sum(Some(8))),
            (sum(Some(7)), Vec::new()),
            (Vec::new(), Vec::new()),
        ] {
            assert!(
                sums_are_equal(&wanted, &has, "x").is_err(),
                "{wanted:?} {has:?}"
            );
        }
    }

    #[test]
    fn one_too_many_and_another_index_are_found() {
        let map = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect()
        };
        let wanted = map(&[("table t", "KEY (a)")]);
        assert!(compare(&wanted, &wanted, "d", "x").is_ok());
        for (has, words) in [
            (
                map(&[("table t", "KEY (a)"), ("table d7", "")]),
                "table d7 is Some",
            ),
            (map(&[("table t", "KEY (b)")]), "table t is Some"),
            (map(&[]), "table t is None"),
        ] {
            let error = compare(&wanted, &has, "d", "x").expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn schemas_of_a_list() {
        let all: Vec<&str> = schemas("b.t, a.u,a.v").into_iter().collect();
        assert_eq!(all, ["a", "b"]);
    }
}
