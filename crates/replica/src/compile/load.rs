//! LOAD DATA that the source logged as a statement: its file, and how it is run here. Without I/O.
//!
//! ```text
//!  source    LOAD DATA INFILE '/tmp/a.txt' REPLACE INTO TABLE `t` FIELDS …
//!                     ╰────── named by the event ─────╯
//!  here      LOAD DATA LOCAL INFILE 'dromon' REPLACE INTO TABLE `t` FIELDS …
//! ```
//!
//! With LOCAL the target asks this side for the file. LOCAL also makes an error of every row a
//! warning, as IGNORE does. So where the source had neither, its answer is looked at: no row may be
//! left out, and where sql_mode is strict no value may be changed.

use std::sync::Arc;

use dromon_binlog::{Duplicates, Event, EventType, FileBlock, Gtid, LoadQuery, StatusVar};
use rustc_hash::FxHashMap;

use super::default_database::asks_database;
use super::statement::{Before, NO_BACKSLASH_ESCAPES, lacks, wording};
use super::{CompileError, Load, Op, Options};
use crate::client::FILE;

/// Bits of sql_mode.
const STRICT_TRANS_TABLES: u64 = 1 << 21;
const STRICT_ALL_TABLES: u64 = 1 << 22;

/// So that the answer says in English how many rows were left out, and no note takes the place of a
/// warning.
const TELL: &[u8] = b";SET lc_messages='en_US',sql_notes=0,max_error_count=65535";

/// Files of a transaction that are not loaded yet.
#[derive(Debug, Default)]
pub(super) struct Files(FxHashMap<u32, Vec<u8>>);

impl Files {
    /// A block comes.
    ///
    /// # Errors
    /// It is of a file that has not begun.
    pub(super) fn block(&mut self, kind: EventType, block: &FileBlock<'_>) -> Result<(), String> {
        if kind == EventType::BEGIN_LOAD_QUERY {
            self.0.insert(block.file, block.bytes.to_vec());
            return Ok(());
        }
        let file = self.0.get_mut(&block.file).ok_or_else(|| {
            format!(
                "a block of file {} for LOAD DATA comes without the beginning of that file",
                block.file
            )
        })?;
        file.extend_from_slice(block.bytes);
        Ok(())
    }

    /// Its LOAD DATA failed and changed nothing.
    pub(super) fn delete(&mut self, file: u32) {
        self.0.remove(&file);
    }

    /// The statement. `None`: its table is left out. `transactional`: on the source all tables of
    /// its transaction were.
    pub(super) fn load(
        &mut self,
        load: &LoadQuery<'_>,
        event: &Event<'_>,
        gtid: Gtid,
        transactional: bool,
        before: &mut Before,
        options: &Options<'_>,
    ) -> Result<Option<Op>, CompileError> {
        let unsupported = |what| CompileError::Unsupported { gtid, what };
        let file = self.0.remove(&load.file);
        let (query, collations) = (&load.query, options.collations);
        let mut op = before.statement_of(query, load.status(), event, gtid, collations)?;
        let Op::Statement {
            setup,
            text,
            load: with,
            ..
        } = &mut op
        else {
            return Ok(None);
        };
        *text = with_own_file(load).map_err(|what| unsupported(what.into()))?;
        let how = wording(load.status(), collations);
        let wanted = options.filter.wants_statement_of(text, query.database, how);
        if !wanted.map_err(unsupported)? {
            return Ok(None);
        }
        let asks = || asks_database(text, query.database, how);
        if let Some(why) = lacks(load.status(), collations).or_else(asks) {
            return Err(unsupported(why.into()));
        }
        let file = file.ok_or_else(|| {
            unsupported(format!(
                "its LOAD DATA is of file {}, no block of which came",
                load.file
            ))
        })?;
        if query.error != 0 {
            return Err(unsupported(format!(
                "its LOAD DATA ended with error {} on the source, after a part of its file; how far it came is not known here",
                query.error
            )));
        }
        let mode = load.status().flatten().find_map(|var| match var {
            StatusVar::SqlMode(mode) => Some(mode),
            _ => None,
        });
        let has = |bit| mode.unwrap_or(0) & bit != 0;
        if has(NO_BACKSLASH_ESCAPES) && text.contains(&b'\\') {
            return Err(unsupported(
                "its LOAD DATA ran under sql_mode NO_BACKSLASH_ESCAPES: in that mode what the source logged of it says something else"
                    .into(),
            ));
        }
        if may_be_xml(load.parts()[2], &file) {
            return Err(unsupported(
                "it may be LOAD XML: the source logs that as a LOAD DATA, which reads the file in another way. Load it there again \
                 under binlog_format=ROW"
                    .into(),
            ));
        }
        let whole = load.duplicates == Duplicates::Error;
        if whole {
            setup.extend_from_slice(TELL);
        }
        *with = Some(Load {
            file: Arc::new(file),
            whole,
            strict: whole && (has(STRICT_ALL_TABLES) || has(STRICT_TRANS_TABLES) && transactional),
        });
        Ok(Some(op))
    }
}

/// The statement with the file that this side has.
fn with_own_file(load: &LoadQuery<'_>) -> Result<Vec<u8>, &'static str> {
    let [begin, name, behind] = load.parts();
    let upper = name.to_ascii_uppercase();
    let upper = upper.trim_ascii();
    if !upper.ends_with(b"INTO") || !upper.windows(7).any(|word| word == b"INFILE ") {
        return Err("where its LOAD DATA should name a file stands something else");
    }
    let how: &[u8] = match load.duplicates {
        Duplicates::Error => b"",
        Duplicates::Ignore => b" IGNORE",
        Duplicates::Replace => b" REPLACE",
    };
    let file = FILE.as_bytes();
    Ok([begin, b" LOCAL INFILE '", file, b"'", how, b" INTO", behind].concat())
}

/// Of ROWS IDENTIFIED BY '<row>' the source says LINES TERMINATED BY '<row>', and no more.
fn may_be_xml(behind: &[u8], file: &[u8]) -> bool {
    const LINES: &[u8] = b" LINES TERMINATED BY '";
    let at = behind.windows(LINES.len()).position(|part| part == LINES);
    let end = at.map_or(&b""[..], |at| &behind[at + LINES.len()..]);
    let tags = file.trim_ascii_start().starts_with(b"<");
    end.starts_with(b"<") || tags && !end.starts_with(b"\\n") && !end.starts_with(b"\\r")
}
