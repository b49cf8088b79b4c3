//! Updates of many rows, which go to the target as lists that it joins: values of all types, keys of
//! all kinds, and a row that is missing.

use std::fs;
use std::path::Path;

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
    "CREATE TABLE wide (k CHAR(20) CHARACTER SET utf16 COLLATE utf16_unicode_ci, j DATETIME(3), v INT, PRIMARY KEY (j, k))",
    "CREATE TABLE bytes (k BINARY(6), d DECIMAL(20, 5), t TIME(2), v INT, PRIMARY KEY (t, d, k))",
    "CREATE TABLE odd (id INT PRIMARY KEY, y YEAR(2), f FLOAT(7,2), d DOUBLE(10,3), b BIT(64), u CHAR(10) CHARACTER SET ucs2, h INT INVISIBLE, \
     g INT AS (h + 1) STORED, x MEDIUMTEXT CHARACTER SET latin1, e ENUM('1', '2', '0'), s SET('1', '2', '0') NOT NULL)",
    "INSERT INTO two SELECT seq, 100 - CAST(seq AS SIGNED) * 3, CONCAT('u', seq), NULL FROM seq_1_to_200",
    "INSERT INTO high SELECT 9223372036854775800 + seq, 0 FROM seq_1_to_100",
    "INSERT INTO low (id, v) SELECT (CAST(seq AS SIGNED) - 100) * 90000000000000000, 0 FROM seq_1_to_200",
    "INSERT INTO named SELECT CONCAT('K', seq), 0 FROM seq_1_to_100",
    "INSERT INTO wide SELECT CONCAT('ä', seq), '2024-05-05 05:05:05.5' + INTERVAL seq MICROSECOND, 0 FROM seq_1_to_100",
    "INSERT INTO bytes SELECT LEFT(CONCAT('\\0\\0', CHAR(seq), '\\0', seq), 6), -seq / 3, SEC_TO_TIME(-seq), 0 FROM seq_1_to_100",
    "SET sql_mode = ''",
    "INSERT INTO odd (id, y, f, d, b, u, h, x, e, s) SELECT seq, 1 + seq % 90, seq / 7, -seq / 7, ~seq, CONCAT(seq, ' '), seq, NULL, 'wrong', seq % 8 FROM seq_1_to_100",
];

/// Each changes all rows of a table.
const UPDATES: &[&str] = &[
    "UPDATE ls.two SET n = a * -123456789.0123",
    "UPDATE ls.two SET n = IF(a % 2, NULL, a / 3)",
    "UPDATE ls.high SET v = (id % 1000) / 7",
    "UPDATE ls.low SET v = id / 3",
    "UPDATE ls.named SET v = LENGTH(k) * 17",
    "UPDATE ls.wide SET v = 5",
    "UPDATE ls.bytes SET v = 5",
    "UPDATE ls.odd SET f = f + 1, d = d + 1, u = CONCAT('x', u), h = h + 1, e = 1 + id % 3, s = (s + 1) % 8",
    // Of 70 a text that a list takes: with fewer than 64 it is none.
    "UPDATE ls.odd SET f = NULL, u = NULL, e = NULL, x = REPEAT('é', 180 + id)",
];

/// What goes otherwise, or together with lists, each applied by itself.
const OTHERS: &[&[&str]] = &[
    &["UPDATE ls.odd SET y = y + 1, b = b + 1"],
    &["UPDATE ls.odd SET f = 8, x = IF(id % 5, NULL, REPEAT('é', 9000 + id))"],
    &["UPDATE ls.odd SET f = 9, x = 'short', e = '0'"],
    // All of a row goes to another key, and is compared.
    &[
        "UPDATE ls.odd SET id = id + 1000, f = 7",
        "UPDATE ls.named SET k = CONCAT(k, ' moved')",
        "UPDATE mx.types SET id = id + 1000",
    ],
];

/// Tables, and whether their rows go in lists: not where a key is a number that not all numbers compare
/// alike with.
const IN_LISTS: [(&str, bool); 8] = [
    ("mx`.`types", true),
    ("ls`.`two", true),
    ("ls`.`low", true),
    ("ls`.`high", false),
    ("ls`.`named", true),
    ("ls`.`wide", true),
    ("ls`.`bytes", true),
    ("ls`.`odd", true),
];
const ALL: &str = "mx.types, ls.two, ls.high, ls.low, ls.named, ls.wide, ls.bytes, ls.odd";
const ROWS: u64 = 200;
/// Small transactions on the table of all types.
const SMALL: u64 = 600;

pub fn run(case: &mut Case) -> anyhow::Result<()> {
    by(case, false)
}

/// Where only the key is compared: as events of rows.
pub fn events(case: &mut Case) -> anyhow::Result<()> {
    by(case, true)
}

fn by(case: &mut Case, events: bool) -> anyhow::Result<()> {
    let dir = place(case)?;
    let primary = Server::new(&dir, "primary", 1, &[])?;
    let target = Server::new(&dir, "target", 2, &[])?;
    grant(&target)?;
    mixed::prepare(&primary)?;
    primary.run(TABLES)?;
    let mut dice = Dice::new(25);
    // What BINLOG must say, and texts too long for lists, are another matter. Each row gets all of the rest: what it had
    // before may be of that kind.
    let mut values = |id: u64| -> Vec<String> {
        let said = dice.values().into_iter().filter_map(|(name, value)| {
            let value = match (name, value.as_str()) {
                ("bt" | "bl", _) => return None,
                ("en", "''") => "'a'".to_owned(),
                ("fl", "999999.99" | "-0.005") | ("f", "-1e-60") => "1".to_owned(),
                _ => value,
            };
            Some(format!("{name} = {value}"))
        });
        said.chain([format!("id = {id}")]).collect()
    };
    let mut statements = vec!["SET sql_mode = ''".to_owned()];
    for id in 1..=ROWS {
        let mut values = values(id);
        if id % 5 == 0 {
            // By BINLOG; updates then find it there before.
            values.retain(|value| !value.starts_with("en ="));
            values.push("en = ''".to_owned());
        }
        statements.push(format!("INSERT INTO mx.types SET {}", values.join(", ")));
    }
    all(&primary, &statements)?;
    let compare = if events {
        "compare=key"
    } else {
        "compare=changed"
    };
    let what = ["mode=writeset", "threads=2", "merge=10000", compare];
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
    none_row_by_row(&dir)?;
    for (table, wanted) in IN_LISTS {
        let found: u64 = target.one(&format!(
            "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE '%UPDATE(SELECT NULL %JOIN `{table}` t FORCE%'"
        ))?;
        ensure!(
            (found > 0) == (wanted && !events),
            "{found} lists for {table}"
        );
    }
    let found: u64 =
        target.one("SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'BINLOG %'")?;
    // The first is the format description, and the other two tables have computed columns.
    ensure!(!events || found > 6, "{found} events of rows");
    case.note(format!(
        "{SMALL} transactions on all types and {} large ones: equal, none row by row",
        UPDATES.len()
    ));

    for statements in OTHERS {
        primary.run(statements)?;
        ensure!(replica.finish(&[])?, "{}", replica.log.display());
        equal(&primary, &target, ALL, statements[0])?;
        none_row_by_row(&dir)?;
    }

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

fn none_row_by_row(dir: &Path) -> anyhow::Result<()> {
    let status = fs::read_to_string(dir.join("replica.json"))?;
    let none = ["\"row_by_row\":0", "\"row_by_row\": 0"];
    ensure!(
        none.iter().any(|text| status.contains(text)),
        "some units failed and were applied row by row: {status}"
    );
    Ok(())
}

fn all(server: &Server, statements: &[String]) -> anyhow::Result<()> {
    let list: Vec<&str> = statements.iter().map(String::as_str).collect();
    server.run(&list)
}
