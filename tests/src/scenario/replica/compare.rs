//! Rows of the target that have other values than the source had: nothing is overwritten in silence.

use anyhow::{Context, ensure};

use super::{Replica, equal};
use crate::harness::Case;
use crate::scenario::relay::plain::Server;

const TABLES: &[&str] = &[
    "CREATE DATABASE cm",
    "USE cm",
    "CREATE TABLE one (id INT PRIMARY KEY, v INT, w VARCHAR(20) DEFAULT 'w')",
    "CREATE TABLE many (id INT PRIMARY KEY, v FLOAT, w VARCHAR(20) COLLATE utf8mb4_general_ci DEFAULT 'w')",
    "CREATE TABLE named (k VARCHAR(20) COLLATE utf8mb4_unicode_ci PRIMARY KEY, v DATETIME(3), w INT) CHARACTER SET utf8mb4",
    "CREATE TABLE two (id INT PRIMARY KEY, u INT UNIQUE, v ENUM('a', 'b', 'c'), w BLOB)",
    "CREATE TABLE moves (id INT PRIMARY KEY, v INT)",
    "INSERT INTO one (id, v) SELECT seq, 4 FROM seq_1_to_100",
    "INSERT INTO many (id, v) SELECT seq, 0.1 FROM seq_1_to_100",
    "INSERT INTO named SELECT CONCAT('K', seq), '2024-05-05 05:05:05.123', 0 FROM seq_1_to_100",
    "INSERT INTO two SELECT seq, seq, 'a', 'long' FROM seq_1_to_100",
    "INSERT INTO moves SELECT seq, 4 FROM seq_1_to_100",
];
const ALL: &str = "cm.one, cm.many, cm.named, cm.two, cm.moves";

/// What is done on the target beforehand, what then on the source, and what must be said.
const DIFFERENT: &[(&str, &str, &str)] = &[
    (
        "UPDATE cm.one SET v = 5 WHERE id = 7",
        "UPDATE cm.one SET v = 6 WHERE id = 7",
        "the update of cm.one where `id`=7 (@) finds the row on the target, but with other values than it had on the source before: `v` is '5' instead of '4'.",
    ),
    (
        "UPDATE cm.many SET w = 'W' WHERE id = 50",
        "UPDATE cm.many SET w = CONCAT('x', id), v = v + 1",
        "the update of cm.many where `id`=50 (@) finds the row on the target, but with other values than it had on the source before: \
         `w` is 'W' instead of 'w'.",
    ),
    (
        "UPDATE cm.named SET v = '2024-05-05 05:05:05.124' WHERE k = 'K50'",
        "UPDATE cm.named SET v = NOW(3), w = 1",
        "the update of cm.named where `k`=_utf8mb4'K50' (@) finds the row on the target, but with other values than it had on the source before: \
         `v` is '2024-05-05 05:05:05.124' instead of '2024-05-05 05:05:05.123'.",
    ),
    (
        "UPDATE cm.two SET v = 'b' WHERE id = 50",
        "UPDATE cm.two SET v = 'c'",
        "the update of cm.two where `id`=50 (@) finds the row on the target, but with other values than it had on the source before: \
         `v` is '2' instead of '1'.",
    ),
    // What is already as it shall become differs, too.
    (
        "UPDATE cm.two SET w = REPEAT('y', 5000) WHERE id = 9",
        "UPDATE cm.two SET w = REPEAT('y', 5000) WHERE id IN (7, 9)",
        "the update of cm.two where `id`=9 (@) finds the row on the target, but with other values than it had on the source before: `w` is '7979",
    ),
    (
        "UPDATE cm.two SET w = REPEAT('z', 5000) WHERE id = 9",
        "UPDATE cm.two SET w = NULL WHERE id IN (7, 9)",
        "the update of cm.two where `id`=9 (@) finds the row on the target, but with other values than it had on the source before: `w`.",
    ),
];

/// The same for what an update does not overwrite: how it is afterwards, which must be 1.
const UNTOUCHED: &[(&str, &str, &str)] = &[
    (
        "UPDATE cm.one SET w = 'other' WHERE id = 8",
        "UPDATE cm.one SET v = 60 WHERE id = 8",
        "SELECT v = 60 AND w = 'other' FROM cm.one WHERE id = 8",
    ),
    (
        "UPDATE cm.many SET w = 'other' WHERE id = 8",
        "UPDATE cm.many SET v = v * 2",
        "SELECT ABS(v - 2.2) < 0.01 AND w = 'other' FROM cm.many WHERE id = 8",
    ),
    // It takes along what it had.
    (
        "UPDATE cm.moves SET v = 5 WHERE id = 8",
        "UPDATE cm.moves SET id = id + 1000",
        "SELECT v = 5 FROM cm.moves WHERE id = 1008",
    ),
];

pub fn run(
    case: &mut Case,
    primary: &Server,
    target: &Server,
    replica: &mut Replica,
) -> anyhow::Result<()> {
    primary.run(TABLES)?;
    let log = replica.log.display().to_string();
    ensure!(replica.finish(&[])?, "{log}");
    equal(primary, target, ALL, "before")?;
    for (spoil, change, wanted) in DIFFERENT {
        target.run(&["SET sql_log_bin = 0", spoil])?;
        primary.run(&[change])?;
        ensure!(!replica.finish(&[])?, "{change} overwrote what {spoil} did");
        let said = replica.said()?;
        let last = said
            .lines()
            .rev()
            .find(|line| line.contains("cannot be applied"));
        let last = last.context("nothing was said of the row")?;
        let gtid: String = primary.one("SELECT @@gtid_binlog_pos")?;
        let wanted = wanted.replace('@', &gtid);
        ensure!(last.contains(&wanted), "{last} does not say: {wanted}");
        ensure!(replica.finish(&["difference=repair"])?, "{log}");
        equal(primary, target, ALL, "repaired")?;
    }
    for (spoil, change, holds) in UNTOUCHED {
        target.run(&["SET sql_log_bin = 0", spoil])?;
        primary.run(&[change])?;
        ensure!(
            replica.finish(&[])?,
            "{spoil} stopped {change}, which does not touch it: {log}"
        );
        let holds: Option<u8> = target.one(holds)?;
        ensure!(holds == Some(1), "{change}: another row");
    }
    case.note(format!(
        "{} rows with other values in what an update overwrites: named, then repaired; {} in what it does not: left alone",
        DIFFERENT.len(),
        UNTOUCHED.len()
    ));
    Ok(())
}
