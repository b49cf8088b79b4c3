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
use super::position::{AskedServer, PositionError, PositionKind};
use super::tables::{
    Answers, COLUMNS, COLUMNS_OF_MYSQL, FOREIGN, KEYS, PARTIAL_REVOKES, PRIVILEGES, RULES, TABLES,
    TablesError, catalog_of,
};
use crate::log::{Level, Log};
use crate::wire::Row;

/// Longest answer: some hundred thousand tables.
const ANSWER_MAX: usize = 256 << 20;
/// Between two readings, at least; and so many times as long as one took.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_TIMES: u32 = 5;
/// So many readings of no use in a row are followed by a longer pause, which doubles with each further one.
const UNUSED: u32 = 4;
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(120);
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
    /// Readings since something was found out about a group.
    unused: u32,
    error: Option<String>,
}

/// How long nothing is read after so many readings in a row that were of no use: each costs the primary
/// something, and where all is compressed, or every other statement changes a table, none ever is.
fn rest_after(unused: u32) -> Duration {
    match unused.checked_sub(UNUSED) {
        None => Duration::ZERO,
        Some(n) => REST_MAX.min(REST * 2_u32.saturating_pow(n)),
    }
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
    /// that crashed in between may have lost what it shows, and used its numbers again. `used`: since the last
    /// call something was found out about a group.
    pub fn take(&self, connection: u64, used: bool) -> Option<ReadTables> {
        let mut state = self.state();
        if used && std::mem::take(&mut state.unused) > 0 {
            self.changed.notify_all();
        }
        let read = state.read.take();
        read.filter(|read| read.connection == connection)
    }

    /// It was read.
    pub(super) fn put(&self, read: ReadTables) {
        let mut state = self.state();
        state.wanted = None;
        state.read = Some(read);
        state.count += 1;
        state.unused = state.unused.saturating_add(1);
        state.error = None;
    }

    /// Waits as long as it is to be after what was read last, less if that turns out to be of use.
    fn rest(&self) {
        let state = self.state();
        let pause = rest_after(state.unused);
        let useless = |state: &mut State| state.unused > 0;
        // What it gives says only which of the two it was.
        drop(self.changed.wait_timeout_while(state, pause, useless));
    }

    /// What was read is of no use, for this reason.
    pub(super) fn is_useless(&self, why: String) {
        self.state().error = Some(why);
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
                desk.rest();
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

/// Why what was read may not be all, of an answer with so many warnings, which were told then.
fn warned(counted: u16, told: &[Row]) -> Option<String> {
    let cell = |row: &Row, n: usize| row.get(n).cloned().flatten().unwrap_or_default();
    // One of the others says that a table was skipped as it is being changed.
    let real = |row: &&Row| !OF_VIEWS.contains(&&cell(row, 1)[..]);
    if let Some(row) = told.iter().find(real) {
        return Some(String::from_utf8_lossy(&cell(row, 2)).into_owned());
    }
    (told.len() < usize::from(counted)).then(|| {
        format!(
            "{counted} times, and tells only {} of them: what the others say of the tables is not known",
            told.len()
        )
    })
}

/// For a copy, so that a table which is being changed cannot hold it up for long. All warnings are told,
/// so that none hides behind others, and all rows, whatever limit the server has for its clients.
const SET: &str = "SET lock_wait_timeout = 5, max_error_count = 65535, sql_select_limit = 18446744073709551615, NAMES utf8mb4";

fn read(login: &Login, kind: &PositionKind, wanted: Wanted) -> Result<ReadTables, ReadError> {
    let mut asker = Asker::connect(login)?;
    asker.ask(SET, 4096)?;
    let source = AskedServer::new(&mut asker, kind.clone(), wanted.server_id)?;
    let before = source.settled(&mut asker)?;
    let mut ask = |statement: &str| -> Result<_, ReadError> {
        let rows = asker.ask(statement, ANSWER_MAX)?;
        let counted = asker.warnings();
        if counted > 0 {
            let told = asker.ask("SHOW WARNINGS", ANSWER_MAX)?;
            if let Some(text) = warned(counted, &told) {
                return Err(ReadError::Warned(text));
            }
        }
        Ok(rows)
    };
    let (columns, revokes) = match source.is_mysql() {
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
    let after = source.behind_all(&mut asker)?;
    Ok(ReadTables {
        connection: wanted.connection,
        before,
        after,
        catalog: catalog_of(&answers)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables that a limit hides would be none.
    #[test]
    fn all_rows_are_told() {
        assert!(SET.contains("sql_select_limit = 18446744073709551615,"));
    }

    #[test]
    fn readings_of_no_use() {
        let desk = Desk::default();
        let read = || ReadTables {
            connection: 1,
            before: Reached::default(),
            after: Reached::default(),
            catalog: Catalog::new(Vec::new()),
        };
        let mut pauses = Vec::new();
        for _ in 0..10 {
            desk.put(read());
            assert!(desk.take(1, false).is_some());
            pauses.push(rest_after(desk.state().unused).as_secs());
        }
        assert_eq!(pauses, [0, 0, 0, 10, 20, 40, 80, 120, 120, 120]);
        thread::scope(|scope| {
            // It ends, minutes early.
            scope.spawn(|| desk.rest());
            assert!(desk.take(1, true).is_none());
        });
        desk.put(read());
        assert_eq!(rest_after(desk.state().unused), Duration::ZERO);
    }

    #[test]
    fn warnings_that_are_not_told() {
        let row = |code: &str, text: &str| -> Row {
            ["Warning", code, text]
                .map(|cell| Some(cell.as_bytes().to_vec()))
                .into()
        };
        let views = vec![row("1356", "a view"); 64];
        assert_eq!(warned(64, &views), None, "about views alone");
        let hidden = warned(65, &views).expect("one is not told");
        assert!(hidden.contains("65 times, and tells only 64"), "{hidden}");
        let mut all = views.clone();
        all.push(row("1205", "skipped"));
        assert_eq!(warned(65, &all).as_deref(), Some("skipped"));
    }
}
