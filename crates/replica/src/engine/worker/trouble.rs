//! Why a unit was not applied.

use dromon_binlog::Gtid;

use super::super::naming::Name;
use crate::catalog::Tables;
use crate::client::{ClientError, is_of_full_file, may_be_done, of_system, scarce};
use crate::compile::{CompileError, Note};

/// Errors that go away: lock waits, deadlocks, killed queries, too many of something.
const TRANSIENT: [u16; 6] = [LOCK_WAIT, 1213, 1317, 1969, 1040, 1020];
/// Of these, a lock that did not come.
const LOCK_WAIT: u16 = 1205;
/// An option of the server forbids a statement; the text names the option.
const OPTION_FORBIDS: u16 = 1290;
/// A role is granted by an account that has it, but cannot give it away; the text names that account.
const NO_ADMIN: u16 = 1698;
/// What a client is told if rows by BINLOG do not fit a table.
const UNKNOWN: u16 = 1105;
/// Warnings of values that do not fit, or cannot be read, which are errors where a session is strict.
const CUT: [u16; 16] = [
    1139, 1256, 1259, 1264, 1265, 1292, 1300, 1301, 1366, 1406, 1411, 1441, 1916, 1918, 1958, 1977,
];
/// The same, of texts that should be JSON.
const JSON: std::ops::RangeInclusive<u16> = 4035..=4044;

/// Why a unit was not applied.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection.
    Lost(ClientError),
    /// An error of the target.
    Error(u16, String),
    /// The same, of a row whose key is known; the text may have values of it.
    OfRow(u16, String, Box<Note>),
    /// None, where this statement ended with one on the source: all of it was done.
    NoError(u16, String),
    /// Part of it is in the target for good: of so many steps the first ones, if that is known.
    Parts {
        steps: Option<(usize, usize)>,
        trouble: Box<Trouble>,
    },
    /// It failed, and may be done all the same. What is written down of that, and if it could not be, why.
    MayBeDone {
        trouble: Box<Trouble>,
        mark: String,
        unwritten: Option<String>,
    },
    /// The target has run out of this; nothing of the unit is there.
    Short(&'static str, Box<Trouble>),
    /// Another number of rows than there must be.
    Rows(Note, u64),
    /// The same, and the row is not there.
    Missing(Note),
    /// The same, and in which columns the row differs.
    Differs(Note, String),
    /// It cannot be made into statements.
    Compile(CompileError),
    /// A statement of so many bytes.
    Long(usize),
    /// With the source's GTIDs it must be one group of the target's binlog, and why it is not.
    Groups(Gtid, String),
    /// The same, of what was begun before: so many steps of it are there for good, if that is known.
    Begun(Gtid, String, Option<usize>),
    /// It has become several groups, of which this is the last one, if it is another than its own. True: all
    /// of it is in the target, else parts.
    Beside(Gtid, Option<Gtid>, bool),
    /// What comes before it is not there, or another replica has begun.
    Misplaced,
    /// The session has ended.
    Ended,
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Trouble {
        match error.code() {
            Some(code) if !error.is_lost() => Trouble::Error(code, error.to_string()),
            _ => Trouble::Lost(error),
        }
    }
}

impl From<CompileError> for Trouble {
    fn from(error: CompileError) -> Trouble {
        Trouble::Compile(error)
    }
}

/// The column that an error's text says a value is for, if it says one: `… for column 's' at row 1`, or with
/// its table. Before that, and where no column is said, values of the row stand.
fn column(text: &str) -> Option<&str> {
    let (before, row) = text.rsplit_once(" at row ")?;
    let (_, names) = before.rsplit_once("for column ")?;
    let is_row = !row.is_empty() && row.bytes().all(|byte| byte.is_ascii_digit());
    let name = names.strip_suffix(['\'', '`'])?;
    is_row.then(|| name.rsplit(['\'', '`']).next().unwrap_or(name))
}

/// What the target said of a statement. The server quotes what it does not understand: of one with a
/// password only the number is told, and what its system lacks, unless its text quotes nothing.
pub(super) fn of_statement(code: u16, text: String, secret: bool) -> String {
    match code {
        OPTION_FORBIDS if text.contains("strict-password-validation") => format!(
            "{text} (a hash cannot be validated; the target's own replica threads are exempt from that, the replica, a client, is not: \
             SET GLOBAL strict_password_validation = OFF there)"
        ),
        OPTION_FORBIDS => text,
        NO_ADMIN => format!(
            "{text} (of all privileges none gives a role away, only the role itself does: GRANT role TO target_user WITH ADMIN OPTION on the target, \
             by an account that has it so; if there is none, by a row of mysql.roles_mapping, and FLUSH PRIVILEGES)"
        ),
        _ if secret => match of_system(code, &text) {
            Some((said, _)) => format!("error {code}: {said}"),
            None => format!("error {code}"),
        },
        _ => text,
    }
}

/// What the target said of rows by BINLOG.
pub(super) fn of_events(code: u16, text: String) -> String {
    match code {
        UNKNOWN => format!(
            "{text} (the target tells a client no more: mostly a column of the table has another type there than on the source, to which its \
             slave_type_conversions does not let it convert)"
        ),
        _ => text,
    }
}

pub(super) fn of_row(note: &Note) -> String {
    let change = match note.change {
        Some(dromon_binlog::Change::Insert) => "the insert into",
        Some(dromon_binlog::Change::Update) => "the update of",
        Some(dromon_binlog::Change::Delete) => "the delete from",
        None => "the rows of",
    };
    let key = match note.key.is_empty() {
        true => String::new(),
        false => format!(" where {}", note.key),
    };
    format!("{change} {}{key} ({})", note.table, note.gtid)
}

/// What there may be of a statement that commits by itself, and what is to be done then. `unwritten`: why its mark could
/// not be written down. `full`: it lacks room, or the like; else something is broken.
pub(super) fn of_doubt(
    mark: &str,
    full: bool,
    unwritten: Option<&str>,
    channel: &str,
) -> (String, String) {
    let there = "It may be done nevertheless, all but for a file that tells of it; everything before it is in the target";
    let first = match unwritten {
        None => String::new(),
        Some(why) => format!(
            "That could not be written down ({why}), and the next start would do it again. So before that: UPDATE dromon_replica.position \
             SET doing_binlog = '{mark}' WHERE channel = '{channel}'. "
        ),
    };
    let cause = match full {
        true => "Make room",
        false => "Put right what keeps the target from writing (its error log says more)",
    };
    let then = match mark == crate::target::Doing::PARTS {
        // Steps before it are there.
        true => format!(
            "{cause}. Do what is left of it by hand and start once with in_doubt = skip; or take back what is there by hand, and say so: \
             UPDATE dromon_replica.position SET doing = NULL WHERE channel = '{channel}'."
        ),
        false => format!(
            "{cause} and look at the target, whether what it makes, changes or drops is so (SHOW CREATE TABLE and the like): if it is done, \
             start once with in_doubt = skip (the target's own binlog may lack it, and so may those that follow that); if not, say so, and start again: \
             UPDATE dromon_replica.position SET doing = NULL WHERE channel = '{channel}'."
        ),
    };
    (there.to_owned(), first + &then)
}

impl Trouble {
    /// The same, if it is an error of the target, with the row that it is of.
    pub(super) fn of_row(self, note: &Note) -> Trouble {
        match self {
            Trouble::Error(code, text) => Trouble::OfRow(code, text, Box::new(note.clone())),
            other => other,
        }
    }

    /// Whether it is of a value that a generated column cannot take: not of one that the source sent, for
    /// which the target's column may be too narrow.
    pub(super) fn is_of_computed(&self, tables: &Tables) -> bool {
        let Trouble::OfRow(code, text, note) = self else {
            return false;
        };
        let table = tables.named(&note.table);
        let mut columns = table.iter().flat_map(|table| &table.columns);
        let sent = column(text).and_then(|named| {
            let mut sent = columns.clone().filter(|column| !column.generated);
            sent.find(|column| column.name.eq_ignore_ascii_case(named))
        });
        let cut = CUT.contains(code) || JSON.contains(code);
        cut && columns.any(|column| column.generated) && sent.is_none()
    }

    /// Whether it may go away by itself.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Trouble::Error(code, _) | Trouble::OfRow(code, ..) if TRANSIENT.contains(code))
    }

    /// What the target has run out of, if that is it.
    pub(super) fn scarce(&self) -> Option<&'static str> {
        match self {
            Trouble::Error(code, text) | Trouble::OfRow(code, text, _) => scarce(*code, text),
            _ => None,
        }
    }

    /// Whether a file had no room that smaller statements may not need.
    pub(super) fn is_of_full_file(&self) -> bool {
        matches!(self, Trouble::Error(code, text) | Trouble::OfRow(code, text, _) if is_of_full_file(*code, text))
    }

    /// The same trouble, of a unit of which nothing is in the target.
    pub(super) fn rolled_back(self) -> Trouble {
        match self.scarce() {
            Some(what) => Trouble::Short(what, Box::new(self)),
            None => self,
        }
    }

    /// Whether a statement that commits by itself may have done all it was to do nevertheless.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            Trouble::Error(code, text) | Trouble::OfRow(code, text, _) => may_be_done(*code, text),
            _ => false,
        }
    }

    /// Whether it waited for a lock in vain.
    pub(super) fn is_of_lock(&self) -> bool {
        matches!(
            self,
            Trouble::Error(LOCK_WAIT, _) | Trouble::OfRow(LOCK_WAIT, ..)
        )
    }

    /// Whether `difference = repair` puts it right.
    pub(super) fn can_be_repaired(&self) -> bool {
        matches!(
            self,
            Trouble::Rows(..)
                | Trouble::Missing(_)
                | Trouble::Differs(..)
                | Trouble::OfRow(1062, ..)
        )
    }

    /// With what the text says, of rows and statements too.
    pub(super) fn name(&self) -> Name {
        let open = match self {
            Trouble::Error(code, _) | Trouble::OfRow(code, ..) | Trouble::NoError(code, _) => {
                format!("error {code}")
            }
            Trouble::Rows(note, _) | Trouble::Missing(note) | Trouble::Differs(note, _) => {
                format!("{}: a row is missing, or differs", note.table)
            }
            _ => "another error".into(),
        };
        let whole = self.text();
        Name { open, whole }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Trouble::Lost(error) => error.to_string(),
            Trouble::Error(_, text) => text.clone(),
            Trouble::OfRow(_, text, note) => format!("{}: {text}", of_row(note)),
            Trouble::NoError(code, statement) => format!(
                "a statement ended with error {code} on the source, after a part of what it was to do, and with none here: what it met on the \
                 source is not on the target (statement: {statement})"
            ),
            Trouble::Parts { trouble, .. }
            | Trouble::MayBeDone { trouble, .. }
            | Trouble::Short(_, trouble) => trouble.text(),
            Trouble::Rows(note, rows) => format!(
                "{} changed {rows} rows instead of one: on the target the row {}",
                of_row(note),
                match note.change {
                    Some(dromon_binlog::Change::Update) =>
                        "is missing, differs, or is already as it shall become",
                    _ => "is missing",
                }
            ),
            Trouble::Missing(note) => format!("{}: the row is missing on the target", of_row(note)),
            Trouble::Differs(note, how) => format!(
                "{} finds the row on the target, but with other values than it had on the source before: {how}",
                of_row(note)
            ),
            Trouble::Compile(error) => error.to_string(),
            Trouble::Long(bytes) => format!(
                "it needs a statement of {bytes} bytes, and the target takes none so long: raise its max_allowed_packet"
            ),
            Trouble::Beside(gtid, ..) => format!(
                "in the target's binlog it is several groups, of which only one is {gtid} (source_gtid = on): tables without transactions took \
                 part on the target, and have gone into its binlog by themselves"
            ),
            Trouble::Groups(gtid, why) | Trouble::Begun(gtid, why, _) => format!(
                "it would be several groups in the target's binlog, of which only one can be {gtid} (source_gtid = on): {why}"
            ),
            Trouble::Misplaced => {
                "what comes before it is not there (was its connection ended?)".into()
            }
            Trouble::Ended => "the session has ended".into(),
        }
    }
}
