//! Where a primary's binlog ends, asked around the reading of its tables.
//!
//! What a position covers must be seen in the tables that are read behind it. A server that changes a
//! table first and writes its binlog then, both under the table's metadata lock, does that by itself:
//! MariaDB, and MySQL up to 5.7, where `information_schema` waits for that lock too. MySQL from 8.0 on
//! writes its binlog first, and `information_schema` waits for nobody: a statement may stand before the
//! end of the binlog while tables are shown as they were. So its backup lock is taken for a moment
//! around the first reading of the position: it waits for all such statements that are under way.

use dromon_binlog::Position;

use super::ask::{AskError, Asker};
use super::session::SessionError;
use crate::store::{Place, file_number};
use crate::wire::Row;

/// Longest answer.
const ANSWER_MAX: usize = 1 << 20;

/// By what positions of a primary are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PositionKind {
    /// GTIDs of MariaDB.
    ByGtid,
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
pub struct Whereabouts {
    kind: PositionKind,
    version: String,
}

fn cell(rows: &[Row], n: usize) -> String {
    let cell = rows.first().and_then(|row| row.get(n)?.as_deref());
    String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
}

impl Whereabouts {
    /// Of the server behind this connection, which must have this id.
    ///
    /// # Errors
    /// [`PositionError::Ask`], [`PositionError::Another`].
    pub fn new(
        asker: &mut Asker,
        kind: PositionKind,
        expected: u32,
    ) -> Result<Whereabouts, PositionError> {
        let rows = asker.ask("SELECT @@GLOBAL.server_id, @@GLOBAL.version", ANSWER_MAX)?;
        let found = cell(&rows, 0);
        if found != expected.to_string() {
            return Err(PositionError::Another { found, expected });
        }
        Ok(Whereabouts {
            kind,
            version: cell(&rows, 1),
        })
    }

    /// Whether it is told by files.
    pub fn by_file(&self) -> bool {
        self.kind != PositionKind::ByGtid
    }

    /// Its position; all that it covers is seen in tables that are read from now on.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn settled(&self, asker: &mut Asker) -> Result<Position, PositionError> {
        if !self.by_file() || !binlog_first(&self.version) {
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

    /// Its position.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn position(&self, asker: &mut Asker) -> Result<Position, PositionError> {
        match &self.kind {
            PositionKind::ByGtid => {
                let rows = asker.ask("SELECT @@GLOBAL.gtid_binlog_pos", ANSWER_MAX)?;
                let text = cell(&rows, 0);
                let none = |_| AskError::NoPosition { text: text.clone() };
                Ok(text.parse().map_err(none)?)
            }
            PositionKind::ByFile(prefix) => {
                let rows = asker.ask(status_of(&self.version), ANSWER_MAX)?;
                place(&cell(&rows, 0), &cell(&rows, 1), prefix).map(Place::as_position)
            }
        }
    }
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
