//! Where the pulling thread and the one that reads the primary's tables meet.
//!
//! ```text
//!   pull ──wants──> Desk ──> reads: position, tables, position ──> Desk ──> pull: Hints::offer
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dromon_binlog::hints::{Catalog, Reached};

use super::ask::{AskError, Asker, Login};
use super::position::{PositionError, PositionKind, Whereabouts};
use super::tables::{
    Answers, COLUMNS, COLUMNS_OF_MYSQL, FOREIGN, KEYS, PARTIAL_REVOKES, PRIVILEGES, RULES, TABLES,
    TablesError, catalog_of,
};
use crate::log::{Level, Log};

/// Longest answer: some hundred thousand tables.
const ANSWER_MAX: usize = 256 << 20;
/// Between two readings, at least; and so many times as long as one took.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_TIMES: u32 = 5;
/// After a failure.
const FAILED: Duration = Duration::from_secs(10);
/// About views, which are no tables: they, or what they name, may not be used, or are gone.
const OF_VIEWS: &[&[u8]] = &[b"1142", b"1143", b"1305", b"1356", b"1370", b"1449"];

/// Tables, and the primary's position before and after they were read: GTIDs of MariaDB, a set of those
/// of MySQL, or [`crate::store::Place::as_position`].
#[derive(Debug)]
pub struct ReadTables {
    /// Read while events came over this one of the connections to the primary.
    pub connection: u64,
    /// Before.
    pub before: Reached,
    /// After.
    pub after: Reached,
    /// The tables.
    pub catalog: Catalog,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

/// Whose tables are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    server_id: u32,
    connection: u64,
}

#[derive(Debug, Default)]
struct State {
    wanted: Option<Wanted>,
    read: Option<ReadTables>,
    count: u64,
    error: Option<String>,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tables are wanted, or not, of the server that events come from, over this one of the
    /// connections to it.
    pub fn want(&self, wanted: bool, server_id: u32, connection: u64) {
        let mut state = self.state();
        let of = Wanted {
            server_id,
            connection,
        };
        let wanted = (wanted && state.read.is_none()).then_some(of);
        if state.wanted != wanted {
            state.wanted = wanted;
            self.changed.notify_all();
        }
    }

    /// What was read, if something was. What was read under another connection is dropped: a primary
    /// that crashed in between may have lost what it shows, and used its numbers again.
    pub fn take(&self, connection: u64) -> Option<ReadTables> {
        let read = self.state().read.take();
        read.filter(|read| read.connection == connection)
    }

    /// It was read.
    pub(super) fn put(&self, read: ReadTables) {
        let mut state = self.state();
        state.wanted = None;
        state.read = Some(read);
        state.count += 1;
        state.error = None;
    }

    /// How often tables were read, and why that failed last.
    pub fn told(&self) -> (u64, Option<String>) {
        let state = self.state();
        (state.count, state.error.clone())
    }

    fn wait(&self) -> Wanted {
        let mut state = self.state();
        loop {
            if let Some(wanted) = state.wanted {
                return wanted;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Why tables cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    Ask(#[from] AskError),
    #[error("{0}")]
    Tables(#[from] TablesError),
    #[error("{0}")]
    Position(#[from] PositionError),
    #[error("it warns: {0}")]
    Warned(String),
}

/// Reads tables when they are wanted, until the process ends. `kind`: by what positions are told.
pub fn read_for_ever(desk: &Arc<Desk>, login: &Login, kind: &PositionKind, log: &Log) {
    let mut said = String::new();
    loop {
        let wanted = desk.wait();
        let began = Instant::now();
        let result = read(login, kind, wanted);
        let pause = match result {
            Ok(read) => {
                desk.put(read);
                said.clear();
                PAUSE.max(began.elapsed() * PAUSE_TIMES)
            }
            Err(error) => {
                let text = format!(
                    "The primary's tables cannot be read: {error}. Until they can, replicas get no hints of their own and run \
                     as parallel as the primary did; nothing is wrong with the data."
                );
                if text != said {
                    log.say(Level::Warning, &text);
                    said.clone_from(&text);
                }
                desk.state().error = Some(error.to_string());
                match error {
                    // It passes.
                    ReadError::Tables(TablesError::Gap(_)) | ReadError::Warned(_) => {
                        PAUSE.max(began.elapsed() * PAUSE_TIMES)
                    }
                    _ => FAILED,
                }
            }
        };
        thread::sleep(pause);
    }
}

fn read(login: &Login, kind: &PositionKind, wanted: Wanted) -> Result<ReadTables, ReadError> {
    let mut asker = Asker::connect(login)?;
    // A copy, so that a table which is being changed cannot hold it up for long.
    asker.ask("SET lock_wait_timeout = 5, NAMES utf8mb4", 4096)?;
    let whereabouts = Whereabouts::new(&mut asker, kind.clone(), wanted.server_id)?;
    let before = whereabouts.settled(&mut asker)?;
    let mut ask = |statement: &str| -> Result<_, ReadError> {
        let rows = asker.ask(statement, ANSWER_MAX)?;
        if asker.warnings() > 0 {
            let warnings = asker.ask("SHOW WARNINGS", 1 << 20)?;
            let cell = |row: &crate::wire::Row, n: usize| row.get(n).cloned().flatten();
            // One of the others says that a table was skipped as it is being changed.
            let real = warnings.iter().find(|row| {
                let code = cell(row, 1).unwrap_or_default();
                !OF_VIEWS.contains(&&code[..])
            });
            if let Some(row) = real {
                let text = cell(row, 2).unwrap_or_default();
                return Err(ReadError::Warned(
                    String::from_utf8_lossy(&text).into_owned(),
                ));
            }
        }
        Ok(rows)
    };
    let (columns, revokes) = match whereabouts.is_mysql() {
        true => (COLUMNS_OF_MYSQL, ask(PARTIAL_REVOKES)?),
        false => (COLUMNS, Vec::new()),
    };
    let answers = Answers {
        privileges: ask(PRIVILEGES)?,
        revokes,
        tables: ask(TABLES)?,
        columns: ask(columns)?,
        keys: ask(KEYS)?,
        foreign: ask(FOREIGN)?,
        rules: ask(RULES)?,
    };
    let after = whereabouts.behind_all(&mut asker)?;
    Ok(ReadTables {
        connection: wanted.connection,
        before,
        after,
        catalog: catalog_of(&answers)?,
    })
}
