//! Where a primary's binlog ends, asked around the reading of its tables.
//!
//! What a position covers must be seen in the tables that are read behind it. A server that changes a
//! table first and writes its binlog then, both under the table's metadata lock, does that by itself:
//! MariaDB, and MySQL up to 5.7, where `information_schema` waits for that lock too. MySQL from 8.0 on
//! writes its binlog first, and `information_schema` waits for nobody: a statement may stand before the
//! end of the binlog while tables are shown as they were. So its backup lock is taken for a moment
//! around the first reading of the position: it waits for all such statements that are under way.
//!
//! By GTIDs of MySQL the position is `gtid_executed`, and a transaction is in that only when it is over.
//! So what it covers is seen in the tables; but tables may show what it does not cover yet. Whatever is
//! seen stands in the binlog, so it has its GTID, which is in `gtid_owned` until it is in
//! `gtid_executed`. The second reading waits for those that were owned when the tables had been read.

use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::hints::Reached;
use dromon_binlog::{GtidSet, Position};

use super::ask::{AskError, Asker};
use super::session::{SessionError, owned as owned_of};
use crate::store::{Place, file_number};
use crate::wire::Row;

/// Longest answer.
const ANSWER_MAX: usize = 1 << 20;
/// So long is waited for what is being committed (it stands in a message), and so often it is looked.
const OWNED_TIME: Duration = Duration::from_secs(5);
const OWNED_LOOK: Duration = Duration::from_millis(50);
/// Most of a set that stands in a message.
const SHOWN: usize = 200;

/// By what positions of a primary are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PositionKind {
    /// GTIDs of MariaDB.
    ByGtid,
    /// Sets of GTIDs of MySQL.
    BySet,
    /// File and byte; what stands before the dot in the files' names.
    ByFile(String),
}

/// Why there is no position.
#[derive(Debug, thiserror::Error)]
pub enum PositionError {
    /// It cannot be asked.
    #[error("{0}")]
    Ask(#[from] AskError),
    /// Another server.
    #[error("the server there has the id {found}, the events come from {expected}")]
    Another {
        /// Its id.
        found: String,
        /// That of the primary.
        expected: u32,
    },
    /// It refused the lock.
    #[error(
        "its backup lock cannot be had for a moment, without which it may show tables as they were before its last \
         statements ({0}). GRANT BACKUP_ADMIN ON *.* to the account"
    )]
    Lock(AskError),
    /// What was being committed while the tables were read still is.
    #[error(
        "{0} is being committed there for 5 s, or belongs to a session that has set GTID_NEXT and does nothing; what the tables \
         show of it cannot be told"
    )]
    Owned(String),
    /// So is something of which it cannot be said what it is.
    #[error(
        "its gtid_owned, '{0}', cannot be read; GTIDs with tags (MySQL 8.3) are not known to this build"
    )]
    Unreadable(String),
    /// Its files are called otherwise.
    #[error("its binlog file is called {found}, the relay's are {prefix}.NNNNNN")]
    Names {
        /// As it says.
        found: String,
        /// Of the relay's.
        prefix: String,
    },
}

/// A server whose position is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedServer {
    kind: PositionKind,
    version: String,
}

fn cell(rows: &[Row], n: usize) -> String {
    let cell = rows.first().and_then(|row| row.get(n)?.as_deref());
    String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
}

impl AskedServer {
    /// Of the server behind this connection, which must have this id.
    ///
    /// # Errors
    /// [`PositionError::Ask`], [`PositionError::Another`].
    pub fn new(
        asker: &mut Asker,
        kind: PositionKind,
        expected: u32,
    ) -> Result<AskedServer, PositionError> {
        let rows = asker.ask("SELECT @@GLOBAL.server_id, @@GLOBAL.version", ANSWER_MAX)?;
        let found = cell(&rows, 0);
        if found != expected.to_string() {
            return Err(PositionError::Another { found, expected });
        }
        Ok(AskedServer {
            kind,
            version: cell(&rows, 1),
        })
    }

    /// Whether it is asked as MySQL is.
    pub fn is_mysql(&self) -> bool {
        self.kind != PositionKind::ByGtid
    }

    /// Its position; all that it covers is seen in tables that are read from now on. Of domains that are not in
    /// MariaDB's binlog it is what the server has executed as a replica.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn settled(&self, asker: &mut Asker) -> Result<Reached, PositionError> {
        if self.kind == PositionKind::ByGtid {
            let mut reached = self.position(asker)?;
            let executed = gtids(asker, "SELECT @@GLOBAL.gtid_slave_pos")?;
            with_domains_of(&mut reached.position, &executed);
            return Ok(reached);
        }
        if !binlog_first(&self.version) {
            return self.position(asker);
        }
        let lock = |asker: &mut Asker, statement| match asker.ask(statement, ANSWER_MAX) {
            Ok(_) => Ok(()),
            Err(error @ AskError::Session(SessionError::Refused { .. })) => {
                Err(PositionError::Lock(error))
            }
            Err(error) => Err(error.into()),
        };
        lock(asker, "LOCK INSTANCE FOR BACKUP")?;
        let position = self.position(asker)?;
        lock(asker, "UNLOCK INSTANCE")?;
        Ok(position)
    }

    /// Its position; it covers all that was seen in tables that have been read.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn behind_all(&self, asker: &mut Asker) -> Result<Reached, PositionError> {
        if self.kind == PositionKind::BySet {
            let began = Instant::now();
            let mut waits_for = owned(asker)?;
            while !waits_for.is_empty() {
                if began.elapsed() > OWNED_TIME {
                    return Err(PositionError::Owned(waits_for.shown(SHOWN)));
                }
                thread::sleep(OWNED_LOOK);
                let over = waits_for.minus(&owned(asker)?);
                waits_for = waits_for.minus(&over);
            }
        }
        self.position(asker)
    }

    fn position(&self, asker: &mut Asker) -> Result<Reached, PositionError> {
        match &self.kind {
            PositionKind::ByGtid => {
                let position = gtids(asker, "SELECT @@GLOBAL.gtid_binlog_pos")?;
                Ok(position.into())
            }
            PositionKind::BySet => {
                let rows = asker.ask("SELECT @@GLOBAL.gtid_executed", ANSWER_MAX)?;
                let text = cell(&rows, 0);
                let none = |_| AskError::NoPosition { text: text.clone() };
                let executed: GtidSet = text.parse().map_err(none)?;
                Ok(executed.into())
            }
            PositionKind::ByFile(prefix) => {
                let rows = asker.ask(status_of(&self.version), ANSWER_MAX)?;
                let place = place(&cell(&rows, 0), &cell(&rows, 1), prefix)?;
                Ok(place.as_position().into())
            }
        }
    }
}

fn gtids(asker: &mut Asker, select: &str) -> Result<Position, AskError> {
    let rows = asker.ask(select, ANSWER_MAX)?;
    let text = cell(&rows, 0);
    let none = |_| AskError::NoPosition { text: text.clone() };
    text.parse().map_err(none)
}

/// Takes over the domains that a position lacks.
fn with_domains_of(position: &mut Position, other: &Position) {
    for gtid in other.iter() {
        if position.get(gtid.domain).is_none() {
            position.set(gtid);
        }
    }
}

/// What is being committed.
fn owned(asker: &mut Asker) -> Result<GtidSet, PositionError> {
    let rows = asker.ask("SELECT @@GLOBAL.gtid_owned", ANSWER_MAX)?;
    let text = cell(&rows, 0);
    whole(&text).ok_or(PositionError::Unreadable(text))
}

/// What `gtid_owned` says; `None`: not all of it can be read.
pub(super) fn whole(text: &str) -> Option<GtidSet> {
    let set = owned_of(text);
    let count = |(begin, end): &(u64, u64)| end - begin;
    let read: u64 = set.iter().flat_map(|(_, list)| list).map(count).sum();
    // Each has its thread behind it.
    let said = text.matches('#').count() as u64;
    (read == said && (said > 0 || text.trim().is_empty())).then_some(set)
}

/// What SHOW MASTER STATUS says.
fn place(name: &str, byte: &str, prefix: &str) -> Result<Place, PositionError> {
    let none = || AskError::NoPosition {
        text: format!("'{name}' '{byte}'"),
    };
    let at = byte.parse().map_err(|_| none())?;
    let names = || PositionError::Names {
        found: name.to_owned(),
        prefix: prefix.to_owned(),
    };
    let file = file_number(prefix, name).ok_or_else(names)?;
    Ok(Place { file, at })
}

/// As a pair: 8.4.3 is (8, 4).
fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether a server writes a statement into its binlog before its tables are seen to be changed. One
/// of an unknown kind counts as such.
fn binlog_first(version: &str) -> bool {
    !version.contains("MariaDB") && !(1..8).contains(&release(version).0)
}

/// MySQL has renamed it, and then taken the old name away.
fn status_of(version: &str) -> &'static str {
    match !version.contains("MariaDB") && release(version) >= (8, 2) {
        true => "SHOW BINARY LOG STATUS",
        false => "SHOW MASTER STATUS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, first, status) in [
            ("5.7.44-log", false, "SHOW MASTER STATUS"),
            ("5.6.24", false, "SHOW MASTER STATUS"),
            ("8.0.36-28", true, "SHOW MASTER STATUS"),
            ("8.1.0", true, "SHOW MASTER STATUS"),
            ("8.2.0", true, "SHOW BINARY LOG STATUS"),
            ("8.4.3", true, "SHOW BINARY LOG STATUS"),
            ("9.1.0-commercial", true, "SHOW BINARY LOG STATUS"),
            ("10.11.19-MariaDB-log", false, "SHOW MASTER STATUS"),
            ("8-weird", true, "SHOW MASTER STATUS"),
            ("", true, "SHOW MASTER STATUS"),
        ] {
            assert_eq!(binlog_first(version), first, "{version}");
            assert_eq!(status_of(version), status, "{version}");
        }
    }

    #[test]
    fn what_was_executed_as_a_replica() {
        let parsed = |text: &str| text.parse::<Position>().expect("a position");
        let mut position = parsed("0-1-9,2-1-3");
        with_domains_of(&mut position, &parsed("0-2-8,5-2-7"));
        assert_eq!(position, parsed("0-1-9,2-1-3,5-2-7"));
    }

    #[test]
    fn what_is_being_committed() {
        const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        const B: &str = "4e11fa47-71ca-11e1-9e33-c80aa9429562";
        for (text, set) in [
            ("", Some(String::new())),
            (&format!("{A}:7#3:8#12")[..], Some(format!("{A}:7-8"))),
            (&format!("{A}:7#3{B}:1#4"), Some(format!("{A}:7,{B}:1"))),
            (&format!("{A}:tag:7#3"), None),
            (&format!("{A}:1#2:tag:7#3"), None),
            (&format!("{A}:7"), None),
            (&format!("{A}:x#3"), None),
            ("something", None),
        ] {
            assert_eq!(whole(text).map(|set| set.to_string()), set, "{text}");
        }
    }

    #[test]
    fn places() {
        let said = |name: &str, byte: &str| place(name, byte, "mysql-bin");
        let good = said("mysql-bin.000042", "6000000000").expect("a place");
        assert_eq!(
            good,
            Place {
                file: 42,
                at: 6_000_000_000
            }
        );
        for (name, byte, expected) in [
            ("", "", "gave '' '' as its position"),
            ("mysql-bin.000042", "", "which is none"),
            ("mysql-bin.000042", "x", "which is none"),
            (
                "bin.000042",
                "4",
                "is called bin.000042, the relay's are mysql-bin.NNNNNN",
            ),
        ] {
            let error = said(name, byte).expect_err(name).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
