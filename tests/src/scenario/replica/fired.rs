//! Tables on which a target does more than it is sent: triggers of its own, and versions that go by its own
//! transactions. Changes of both amid other load; whatever is killed, each is once.

use std::time::Duration;

use anyhow::ensure;
use dromon_sandbox::mysql::Conn;
use dromon_sandbox::mysql::prelude::Queryable;

use crate::scenario::relay::plain::{Load, Server};
use crate::scenario::relay::same;

/// What the target must be started with.
pub const OPTION: &str = "--slave-run-triggers-for-rbr=YES";

/// Both servers have these before anything is followed. `wanted` is what the triggers of the target should
/// write, told by who makes the changes.
const TABLES: [&str; 9] = [
    "SET sql_log_bin = 0",
    "CREATE DATABASE fv",
    "CREATE TABLE fv.fired (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE fv.wanted (at INT AUTO_INCREMENT PRIMARY KEY, id INT, n INT, what VARCHAR(9)) ENGINE=InnoDB",
    // The source's trigger has run: its rows come by themselves.
    "CREATE TABLE fv.paired (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE fv.by_pair (at INT AUTO_INCREMENT PRIMARY KEY, id INT, n INT) ENGINE=InnoDB",
    "CREATE TRIGGER fv.on_paired AFTER INSERT ON fv.paired FOR EACH ROW INSERT INTO fv.by_pair (id, n) VALUES (NEW.id, NEW.n)",
    "CREATE TABLE fv.parent (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE fv.versions (id INT PRIMARY KEY, n INT NOT NULL, p INT, \
     s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e), \
     FOREIGN KEY (p) REFERENCES fv.parent (id) ON DELETE SET NULL ON UPDATE CASCADE) ENGINE=InnoDB WITH SYSTEM VERSIONING",
];

/// The target alone has these.
const TRIGGERS: [&str; 5] = [
    "SET sql_log_bin = 0",
    "CREATE TABLE fv.seen (at INT AUTO_INCREMENT PRIMARY KEY, id INT, n INT, what VARCHAR(9)) ENGINE=InnoDB",
    "CREATE TRIGGER fv.i AFTER INSERT ON fv.fired FOR EACH ROW INSERT INTO fv.seen (id, n, what) VALUES (NEW.id, NEW.n, 'insert')",
    "CREATE TRIGGER fv.u AFTER UPDATE ON fv.fired FOR EACH ROW INSERT INTO fv.seen (id, n, what) VALUES (NEW.id, NEW.n, 'update')",
    "CREATE TRIGGER fv.d AFTER DELETE ON fv.fired FOR EACH ROW INSERT INTO fv.seen (id, n, what) VALUES (OLD.id, OLD.n, 'delete')",
];

/// Tables that are the same by their sums.
const EQUAL: &str = "fv.fired, fv.wanted, fv.paired, fv.by_pair, fv.parent";

/// Rows of each client.
const ROWS: u64 = 20;

/// Makes the tables, and what the target alone has.
pub fn prepare(primary: &Server, target: &Server) -> anyhow::Result<()> {
    primary.run(&TABLES)?;
    target.run(&TABLES)?;
    target.run(&TRIGGERS)
}

/// Clients that change them.
pub fn load(primary: &Server) -> Load {
    Load::of(primary, "fv", 2, Duration::from_millis(3), one)
}

/// A transaction. Each client has its own rows, so that all changes of a row have an order.
fn one(conn: &mut Conn, client: u32, n: u64) -> anyhow::Result<()> {
    let first = u64::from(client) * 1000;
    // In ten transactions all that there is happens to one row, and then to another one.
    let round = n / 10;
    let id = first + round * 3 % ROWS;
    let other = first + (round * 3 + 3) % ROWS;
    conn.query_drop("BEGIN")?;
    match n % 10 {
        0 | 5 => {
            conn.query_drop(format!("INSERT IGNORE INTO fired VALUES ({id}, {n})"))?;
            if conn.affected_rows() == 1 {
                told(conn, id, "insert")?;
            }
        }
        1 | 6 => {
            // Of one statement, and of another table beside it.
            conn.query_drop(format!(
                "UPDATE fired SET n = n + 1 WHERE id IN ({id}, {other}) ORDER BY id"
            ))?;
            for id in [id.min(other), id.max(other)] {
                told(conn, id, "update")?;
            }
            conn.query_drop(format!("UPDATE parent SET n = n + 1 WHERE id = {id}"))?;
        }
        2 => {
            told(conn, id, "delete")?;
            conn.query_drop(format!("DELETE FROM fired WHERE id = {id}"))?;
        }
        3 => conn.query_drop(format!(
            "INSERT INTO paired VALUES ({}, {n})",
            first * 1000 + n
        ))?,
        4 => {
            conn.query_drop(format!("INSERT IGNORE INTO parent VALUES ({id}, {n})"))?;
            conn.query_drop(format!(
                "INSERT IGNORE INTO versions (id, n, p) VALUES ({id}, {n}, {id})"
            ))?;
        }
        7 => conn.query_drop(format!(
            "UPDATE versions SET n = {n} WHERE id IN ({id}, {other})"
        ))?,
        8 if round.is_multiple_of(3) => {
            conn.query_drop(format!("DELETE FROM versions WHERE id = {id}"))?;
        }
        // The rows that name it get versions by it.
        _ => match round % 2 {
            0 => conn.query_drop(format!("DELETE FROM parent WHERE id = {id}"))?,
            _ => conn.query_drop(format!(
                "UPDATE IGNORE parent SET id = {other} WHERE id = {id}"
            ))?,
        },
    }
    conn.query_drop("COMMIT")?;
    Ok(())
}

/// Says what a trigger of the target should write.
fn told(conn: &mut Conn, id: u64, what: &str) -> anyhow::Result<()> {
    let sql = format!(
        "INSERT INTO wanted (id, n, what) SELECT id, n, '{what}' FROM fired WHERE id = {id}"
    );
    Ok(conn.query_drop(sql)?)
}

/// Each change has run the target's triggers once, in its order, and has made one version. Says how many.
pub fn check(primary: &Server, target: &Server) -> anyhow::Result<String> {
    same::rows(primary, target, EQUAL, "triggers and versions")?;
    let changes = "ORDER BY id, at";
    let wanted: Vec<(u64, i64, String)> = all(
        target,
        &format!("SELECT id, n, what FROM fv.wanted {changes}"),
    )?;
    let seen: Vec<(u64, i64, String)> = all(
        target,
        &format!("SELECT id, n, what FROM fv.seen {changes}"),
    )?;
    are_one("what triggers wrote", &wanted, &seen)?;
    // When each began and ended is a number of the server's own.
    let versions = "SELECT id, n, p, e = 18446744073709551615 FROM fv.versions FOR SYSTEM_TIME ALL ORDER BY id, s, e";
    let of = |server| all::<(u64, i64, Option<u64>, bool)>(server, versions);
    let (wanted, have) = (of(primary)?, of(target)?);
    are_one("versions", &wanted, &have)?;
    ensure!(
        seen.len() > 50 && wanted.iter().filter(|row| !row.3).count() > 50,
        "nothing was tried: {} changes, {} versions",
        seen.len(),
        wanted.len()
    );
    Ok(format!(
        "{} changes ran triggers of the target, {} versions by transactions",
        seen.len(),
        wanted.len()
    ))
}

fn all<T: dromon_sandbox::mysql::prelude::FromRow>(
    server: &Server,
    sql: &str,
) -> anyhow::Result<Vec<T>> {
    Ok(server.connect("")?.query(sql)?)
}

fn are_one<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: &[T],
    have: &[T],
) -> anyhow::Result<()> {
    let pairs = wanted.iter().zip(have);
    if let Some((wanted, have)) = pairs.into_iter().find(|(wanted, have)| wanted != have) {
        anyhow::bail!("{what}: {have:?} instead of {wanted:?}");
    }
    ensure!(
        wanted.len() == have.len(),
        "{what}: {} instead of {}",
        have.len(),
        wanted.len()
    );
    Ok(())
}
