//! Events made into statements. Without I/O.
//!
//! ```text
//!  rows of plain tables     folded: what came of each row in the unit, by primary key, then
//!                           DELETE … IN, lists of updates, INSERT of many rows
//!  plain tables with        in the source's order: foreign keys, or a unique key changes hands
//!  other keys
//!  all other tables         BINLOG '…': the server's own applier, which knows everything
//!  statements               as they are, with the session that they had
//! ```
//!
//! Of a unit of which some transactions come last ([`Unit::last`]) the updates of rows that these do not touch
//! come first, then [`Op::Last`], then the rest. Where a row is deleted or inserted, or the order counts,
//! all of that is rest.
//!
//! A statement says how many rows it must change, and changes only those that are as they were on
//! the source ([`Compare`]). If it changes another number, or fails, the unit is rolled back and
//! compiled again in [`Style::Single`], in which every row is a statement of its own, in the
//! source's order: then the row, its table and its GTID can be named.

mod compare;
mod default_database;
mod event;
mod fold;
mod images;
mod invoker;
mod load;
mod one_table;
mod parts;
mod reads;
mod rows;
mod statement;
#[cfg(test)]
pub(crate) mod tests;
mod updates;
mod writer;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use dromon_binlog::{Change, EventError, Gtid};
use rustc_hash::FxHashSet;

pub use compare::Compare;
pub(crate) use default_database::{Asks, asks, may_name_others};
pub(crate) use one_table::{Touched, touched};
pub use reads::reads;
pub use rows::compile;
pub(crate) use rows::{binlog_statement, in_fragments, is_frame, is_place, is_savepoint};
pub use statement::Collations;
pub(crate) use statement::is_announced;

use crate::catalog::TableInfo;
use crate::names::{About, Unclear, about_of};
#[cfg(doc)]
use crate::unit::Unit;
use crate::words::Wording;

/// How rows become statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As few statements as possible.
    Folded,
    /// One for each row.
    Single,
}

/// The replica's own database, in lower case: a server may take no notice of that.
pub(crate) const OWN: &[u8] = b"dromon_replica";

/// Which tables are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// If there are any: only these databases, and tables `database.table`.
    pub only: Vec<String>,
    /// Not these.
    pub without: Vec<String>,
    /// Upper and lower case of names are the same: they are kept in lower case.
    any_case: bool,
}

fn names(list: &[String], database: &[u8], table: Option<&[u8]>) -> bool {
    list.iter().any(|name| {
        let name = name.as_bytes();
        let dotted = table.map(|table| [database, b".", table].concat());
        name == database || dotted.is_some_and(|dotted| dotted == name)
    })
}

/// As a server with `lower_case_table_names` compares it.
fn lower(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("only", &self.only), ("without", &self.without)];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts
            .map(|(what, names)| format!("{what} {}", names.join(", ")))
            .collect();
        f.write_str(&parts.join("; "))
    }
}

impl Filter {
    /// These, as they are written.
    pub fn new(only: Vec<String>, without: Vec<String>) -> Filter {
        Filter {
            only,
            without,
            any_case: false,
        }
    }

    /// The same, but upper and lower case of names are the same (`lower_case_table_names`).
    #[must_use]
    pub fn of_any_case(&self) -> Filter {
        let lower = |names: &[String]| names.iter().map(|name| name.to_lowercase()).collect();
        Filter {
            only: lower(&self.only),
            without: lower(&self.without),
            any_case: true,
        }
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.only.is_empty() && self.without.is_empty()
    }

    /// Those of its names that are none of these, `database` and `database.table`.
    pub fn not_among(&self, there: impl IntoIterator<Item = String>) -> Vec<&str> {
        let there = there.into_iter().map(|name| match self.any_case {
            true => name.to_lowercase(),
            false => name,
        });
        let there: FxHashSet<String> = there.collect();
        let names = self.only.iter().chain(&self.without).map(String::as_str);
        names.filter(|name| !there.contains(*name)).collect()
    }

    fn has(&self, list: &[String], database: &[u8], table: Option<&[u8]>) -> bool {
        match self.any_case && !list.is_empty() {
            true => names(list, &lower(database), table.map(lower).as_deref()),
            false => names(list, database, table),
        }
    }

    /// Whether rows of this table are applied.
    pub fn wants(&self, database: &[u8], table: &[u8]) -> bool {
        let own = database.eq_ignore_ascii_case(OWN);
        let only = self.only.is_empty() || self.has(&self.only, database, Some(table));
        only && !own && !self.has(&self.without, database, Some(table))
    }

    /// As [`Filter::wants_statement_of`], if it is not known how the statement is written.
    ///
    /// # Errors
    /// The same.
    pub fn wants_statement(&self, text: &[u8], database: &[u8]) -> Result<bool, String> {
        self.wants_statement_of(text, database, Wording::default())
    }

    /// Whether a statement with this default database is applied: by the tables that it is about, or
    /// the database. Of others the default database counts.
    ///
    /// # Errors
    /// It is about tables that are applied, and about others; or that cannot be seen.
    pub(crate) fn wants_statement_of(
        &self,
        text: &[u8],
        database: &[u8],
        wording: Wording,
    ) -> Result<bool, String> {
        // That of a replica upstream is no affair of this one's.
        let names_own = || {
            text.windows(OWN.len())
                .any(|part| part.eq_ignore_ascii_case(OWN))
        };
        if self.is_empty() && !names_own() {
            return Ok(!database.eq_ignore_ascii_case(OWN));
        }
        let tables = match about_of(text, database, wording) {
            Err(Unclear) if !self.is_empty() => {
                return Err(
                    "it cannot be seen which tables it is about, and some are left out (only, without): do on the \
                     target by hand what is to be there of it, and set gtid_pos in dromon_replica.position behind it"
                        .into(),
                );
            }
            // The source names a database that is made, altered or dropped as the default one.
            Ok(About::Unknown) | Err(Unclear) => return Ok(self.wants_database(database)),
            Ok(About::Database(name)) => return Ok(self.wants_database(name.as_bytes())),
            Ok(About::Tables(tables)) => tables,
        };
        let (some, others): (Vec<_>, Vec<_>) = tables
            .iter()
            .partition(|(database, table)| self.wants(database.as_bytes(), table.as_bytes()));
        match (some.first(), others.first()) {
            (Some((a, b)), Some((c, d))) => Err(format!(
                "it is about {a}.{b}, which is applied, and about {c}.{d}, which is not (only, without, or a replica's own)"
            )),
            (some, _) => Ok(some.is_some()),
        }
    }

    fn wants_database(&self, database: &[u8]) -> bool {
        let spelled = match self.any_case {
            true => lower(database),
            false => database.to_vec(),
        };
        let mut only = self.only.iter();
        let part = |name: &String| name.as_bytes().split(|b| *b == b'.').next() == Some(&spelled);
        let only = self.only.is_empty() || only.any(part);
        only && !database.eq_ignore_ascii_case(OWN) && !self.has(&self.without, database, None)
    }
}

/// What is asked of every unit.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// How.
    pub style: Style,
    /// What is left out.
    pub filter: &'a Filter,
    /// What of a row is compared before it changes.
    pub compare: Compare,
    /// A packet has at most about so many bytes.
    pub packet_max: usize,
    /// The target takes no longer packet, in bytes.
    pub longest: usize,
    /// Rows of one statement on tables without transactions stay together, however many they are.
    pub whole: bool,
    /// Many updates may be one event of rows: the target does not pass over rows that it lacks.
    pub events: bool,
    /// Tables with generated columns go by BINLOG, which brings what is stored.
    pub computed: bool,
    /// Collations by number.
    pub collations: &'a Collations,
}

/// Of what row a statement is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The transaction; of a folded statement the first one that it is of.
    pub gtid: Gtid,
    /// Database and table.
    pub table: String,
    /// What happens.
    pub change: Option<Change>,
    /// The condition that finds it; empty if there are several.
    pub key: String,
}

/// What a statement must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// So many rows must change; `None`: any number.
    pub rows: Option<u64>,
    /// Which row.
    pub note: Note,
    /// Statements that put the row into the state that it has after the change, whatever it is now.
    pub mend: Vec<Vec<u8>>,
    /// A question that says in which columns the row differs from what it was on the source, if more
    /// than its key is compared; no row if it is missing.
    pub look: Option<Vec<u8>>,
}

/// What a LOAD DATA is run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// All of the file.
    pub file: Arc<Vec<u8>>,
    /// No row of it may be left out.
    pub whole: bool,
    /// No value of it may be changed to fit.
    pub strict: bool,
}

/// A step of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// What follows waits for earlier units with which the unit conflicts; what comes before it does not.
    Last,
    /// A packet of statements on rows.
    Rows {
        /// The statements.
        text: Vec<u8>,
        /// As many.
        expects: Vec<Expect>,
    },
    /// A BINLOG statement. The format description must have been sent the same way.
    Binlog {
        /// The statement.
        text: Vec<u8>,
        /// Its table.
        note: Note,
        /// Something may be computed with it that goes by the session: it is to be the target's time zone.
        local: bool,
    },
    /// A statement of the source.
    Statement {
        /// What comes before it, in a packet of its own.
        setup: Vec<u8>,
        /// Where in it a database is chosen; empty: nowhere.
        uses: Range<usize>,
        /// It.
        text: Vec<u8>,
        /// The file that it loads, if it is a LOAD DATA.
        load: Option<Load>,
        /// The error that it ended with on the source; 0: none.
        error: u16,
        /// The transaction.
        gtid: Gtid,
    },
}

impl Op {
    /// Whether it only names a place in its transaction, or goes back to one.
    pub(crate) fn is_place(&self) -> bool {
        matches!(self, Op::Statement { text, .. } if is_place(text))
    }

    /// What is sent of it.
    fn sent(&self) -> &[u8] {
        match self {
            Op::Last => &[],
            Op::Rows { text, .. } | Op::Binlog { text, .. } | Op::Statement { text, .. } => text,
        }
    }
}

/// Whether the same statements are sent of both, in the same packets.
pub(crate) fn are_sent_alike(one: &[Op], other: &[Op]) -> bool {
    let [one, other] =
        [one, other].map(|ops| ops.iter().map(Op::sent).filter(|text| !text.is_empty()));
    one.eq(other)
}

/// A unit cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// An event.
    #[error("{gtid}: {error}")]
    Event {
        /// Of this transaction.
        gtid: Gtid,
        /// What is wrong.
        error: EventError,
    },
    /// Something that is not offered.
    #[error("{gtid} cannot be applied: {what}")]
    Unsupported {
        /// Which.
        gtid: Gtid,
        /// Why.
        what: String,
    },
}

fn note(gtid: Gtid, table: &TableInfo, change: Change, key: &[u8]) -> Note {
    Note {
        gtid,
        table: table.name.clone(),
        change: Some(change),
        key: String::from_utf8_lossy(key).into_owned(),
    }
}
