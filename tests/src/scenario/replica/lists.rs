//! Updates of many rows, which go to the target as lists that it joins: values of all types, keys of
//! all kinds, and a row that is missing.

use std::fs;

use anyhow::{Context, ensure};

use super::mixed::{self, Dice};
use super::{Replica, equal, grant};
use crate::harness::Case;
use crate::scenario::relay::place;
use crate::scenario::relay::plain::Server;

const TABLES: &[&str] = &[
    "CREATE DATABASE ls",
    "USE ls",
    "CREATE TABLE two (a TINYINT UNSIGNED, b SMALLINT, u VARCHAR(20) NOT NULL UNIQUE, n DECIMAL(20,4), PRIMARY KEY (b, a))",
    "CREATE TABLE high (id BIGINT UNSIGNED PRIMARY KEY, v DOUBLE)",
    "CREATE TABLE low (id BIGINT PRIMARY KEY, v FLOAT, w TIMESTAMP(2) DEFAULT CURRENT_TIMESTAMP(2) ON UPDATE CURRENT_TIMESTAMP(2))",
    "CREATE TABLE named (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT) CHARACTER SET utf8mb4",
    "INSERT INTO two SELECT seq, 100 - CAST(seq AS SIGNED) * 3, CONCAT('u', seq), NULL FROM seq_1_to_200",
    "INSERT INTO high SELECT 9223372036854775800 + seq, 0 FROM seq_1_to_100",
    "INSERT INTO low (id, v) SELECT (CAST(seq AS SIGNED) - 100) * 90000000000000000, 0 FROM seq_1_to_200",
    "INSERT INTO named SELECT CONCAT('K', seq), 0 FROM seq_1_to_100",
];

/// Each changes all rows of a table.
const UPDATES: &[&str] = &[
    "UPDATE ls.two SET n = a * -123456789.0123",
    "UPDATE ls.two SET n = IF(a % 2, NULL, a / 3)",
    "UPDATE ls.high SET v = (id % 1000) / 7",
    "UPDATE ls.low SET v = id / 3",
    "UPDATE ls.named SET v = LENGTH(k) * 17",
];

/// Tables, and whether their rows go in lists: not where a key is no number, or none that all numbers
/// compare alike with.
const IN_LISTS: [(&str, bool); 5] = [
    ("mx`.`types", true),
    ("ls`.`two", true),
    ("ls`.`low", true),
    ("ls`.`high", false),
    ("ls`.`named", false),
];
const ALL: &str = "mx.types, ls.two, ls.high, ls.low, ls.named";
const ROWS: u64 = 200;
/// Small transactions on the table of all types.
const SMALL: u64 = 600;

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    grant(&target)?;
    mixed::prepare(&primary)?;
    primary.run(TABLES)?;
    let mut dice = Dice::new(25);
    // What BINLOG must say, and texts too long for lists, are another matter.
    let mut values = |id: u64| -> Vec<String> {
        let all = dice.values().into_iter();
        let said = all.filter(|(name, value)| {
            !matches!((*name, value.as_str()), ("bt" | "bl", _) | ("en", "''"))
        });
        said.map(|(name, value)| format!("{name} = {value}"))
            .chain([format!("id = {id}")])
            .collect()
    };
    let mut statements = vec!["SET sql_mode = ''".to_owned()];
    for id in 1..=ROWS {
        statements.push(format!(
            "INSERT INTO mx.types SET {}",
            values(id).join(", ")
        ));
    }
    all(&primary, &statements)?;
    let what = ["mode=writeset", "threads=2", "merge=10000"];
    let mut replica = Replica::new(&dir, primary.port, target.port, &what)?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    equal(&primary, &target, ALL, "before")?;

    let mut statements = vec!["SET sql_mode = ''".to_owned()];
    for n in 0..SMALL {
        let id = 1 + n * 7 % ROWS;
        statements.push(format!(
            "UPDATE mx.types SET {} WHERE id = {id}",
            values(id).join(", ")
        ));
    }
    statements.extend(UPDATES.iter().map(|&u| u.to_owned()));
    all(&primary, &statements)?;
    target.run(&["SET GLOBAL log_output = 'TABLE', general_log = 1"])?;
    ensure!(replica.finish(&[])?, "{}", replica.log.display());
    target.run(&["SET GLOBAL general_log = 0"])?;
    equal(&primary, &target, ALL, "in lists")?;
    let status = fs::read_to_string(dir.join("replica.json"))?;
    let none = ["\"row_by_row\":0", "\"row_by_row\": 0"];
    ensure!(
        none.iter().any(|text| status.contains(text)),
        "some units failed and were applied row by row: {status}"
    );
    for (table, wanted) in IN_LISTS {
        let found: u64 = target.one(&format!(
            "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE '%UPDATE(SELECT NULL %JOIN `{table}` t FORCE%'"
        ))?;
        ensure!((found > 0) == wanted, "{found} lists for {table}");
    }
    case.note(format!(
        "{SMALL} transactions on all types and {} large ones: equal, none row by row",
        UPDATES.len()
    ));

    target.run(&["SET sql_log_bin = 0", "DELETE FROM ls.two WHERE a = 77"])?;
    primary.run(&["UPDATE ls.two SET n = 1"])?;
    ensure!(!replica.finish(&[])?, "a missing row was not noticed");
    let said = replica.said()?;
    let last = said
        .lines()
        .rev()
        .find(|line| line.contains("cannot be applied"));
    let last = last.context("nothing was said of the missing row")?;
    ensure!(
        [
            "the update of ls.two where `b`=-131 AND `a`=77",
            "is missing"
        ]
        .iter()
        .all(|part| last.contains(part)),
        "the row is not named: {last}"
    );
    ensure!(
        replica.finish(&["difference=repair"])?,
        "{}",
        replica.log.display()
    );
    equal(&primary, &target, ALL, "repaired")?;
    case.note("a row that was missing: named, then repaired");
    Ok(())
}

fn all(server: &Server, statements: &[String]) -> anyhow::Result<()> {
    let list: Vec<&str> = statements.iter().map(String::as_str).collect();
    server.run(&list)
}
