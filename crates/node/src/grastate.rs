//! The files that tools read and edit: `grastate.dat` and `gvwstate.dat`.
//!
//! `grastate.dat` says which history this node's data belongs to, at which
//! position, and whether the cluster may be founded again from here:
//!
//! ```text
//!   # GALERA saved state
//!   version: 2.1
//!   uuid:    d020a5d7-e5f0-11f1-a7d7-c647bc4b6adc      nil: no usable data
//!   seqno:   42                                        -1: running, or crashed
//!   safe_to_bootstrap: 0
//! ```
//!
//! Operators, resource agents and Kubernetes operators look for these lines and
//! change the last one, so the shape is fixed: one `key: value` per line with one
//! colon. The log of this node is what counts; an edit is a request to be checked
//! against it.
//!
//! `gvwstate.dat` names the members of the last primary view. It exists while a
//! node runs and after a crash, and is gone after an orderly shutdown.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use dromon_writeset::{Seqno, Uuid};

/// Name of the state file in its directory.
pub const STATE_FILE: &str = "grastate.dat";
/// Name of the view file in its directory.
pub const VIEW_FILE: &str = "gvwstate.dat";

/// Files longer than this are not ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What `grastate.dat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraState {
    /// History of the data; nil: none that can be used.
    pub uuid: Uuid,
    /// Last committed position after an orderly shutdown, else -1.
    pub seqno: Seqno,
    /// A cluster may be founded from this node.
    pub safe_to_bootstrap: bool,
}

/// A node that has never been in a cluster.
impl Default for GraState {
    fn default() -> GraState {
        GraState {
            uuid: Uuid::NIL,
            seqno: -1,
            safe_to_bootstrap: true,
        }
    }
}

/// The file's text.
impl fmt::Display for GraState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# GALERA saved state")?;
        writeln!(f, "version: 2.1")?;
        writeln!(f, "uuid:    {}", self.uuid)?;
        writeln!(f, "seqno:   {}", self.seqno)?;
        writeln!(f, "safe_to_bootstrap: {}", u8::from(self.safe_to_bootstrap))
    }
}

/// Which line of a file is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} {problem}")]
pub struct ParseError {
    /// Counted from 1. A missing line is reported as the one behind the last.
    pub line: usize,
    /// A clause that goes on after "line N".
    pub problem: String,
}

impl GraState {
    /// Parses the file's text.
    ///
    /// Blank lines, lines that begin with `#` and keys of other versions are
    /// skipped. An empty text is a node that has never joined. Without a
    /// `safe_to_bootstrap` line the answer is no.
    ///
    /// # Errors
    /// The first line that is malformed, double, or missing.
    pub fn parse(text: &str) -> Result<GraState, ParseError> {
        let mut uuid = None;
        let mut seqno = None;
        let mut safe = None;
        let mut version = None;
        let mut last = 0;
        let mut keys = 0;
        for (line, key, value) in pairs(text) {
            let (key, value) = (key?, value);
            last = line;
            keys += 1;
            let wrong = |what: &str| {
                Err(ParseError {
                    line,
                    problem: format!("has '{value}' for {key}, which must be {what}"),
                })
            };
            let double = match key {
                "uuid" => match value.parse::<Uuid>() {
                    Ok(v) => uuid.replace(v).is_some(),
                    Err(_) => return wrong("a uuid such as 00000000-0000-0000-0000-000000000000"),
                },
                "seqno" => match value.parse::<Seqno>() {
                    Ok(v) if v >= -1 => seqno.replace(v).is_some(),
                    _ => return wrong("-1 or a position"),
                },
                "safe_to_bootstrap" => match value {
                    "0" => safe.replace(false).is_some(),
                    "1" => safe.replace(true).is_some(),
                    _ => return wrong("0 or 1"),
                },
                "version" => match value.split('.').next() {
                    Some("2") => version.replace(()).is_some(),
                    _ => return wrong("2.1 (any 2.x can be read)"),
                },
                _ => false,
            };
            if double {
                return Err(ParseError {
                    line,
                    problem: format!("says {key} a second time"),
                });
            }
        }
        if keys == 0 {
            return Ok(GraState::default());
        }
        let missing = |key: &str| ParseError {
            line: last + 1,
            problem: format!("should follow with '{key}:', but the file ends"),
        };
        Ok(GraState {
            uuid: uuid.ok_or_else(|| missing("uuid"))?,
            seqno: seqno.ok_or_else(|| missing("seqno"))?,
            safe_to_bootstrap: safe.unwrap_or(false),
        })
    }
}

/// Lines with content as (number, key, value); a line without a colon is an
/// error in place of its key.
fn pairs(text: &str) -> impl Iterator<Item = (usize, Result<&str, ParseError>, &str)> {
    text.lines().enumerate().filter_map(|(at, whole)| {
        let line = at + 1;
        let whole = whole.trim();
        if whole.is_empty() || whole.starts_with('#') {
            return None;
        }
        Some(match whole.split_once(':') {
            Some((key, value)) => (line, Ok(key.trim()), value.trim()),
            None => {
                let short: String = whole.chars().take(40).collect();
                let problem = format!("is '{}' and not 'key: value'", short.escape_debug());
                (line, Err(ParseError { line, problem }), "")
            }
        })
    })
}

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// It cannot be opened or read.
    #[error(
        "The state file {path} cannot be read: {source}. Without it this node does not know what \
         its data is, so it does not start. Give the server's user read and write access to it"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error(
        "The state file {path} is locked by another process: another server runs on this data \
         directory. This node does not start, so that two of them cannot damage the data. Stop \
         the other one"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be understood.
    #[error(
        "The state file {path} is damaged: {problem}. The data itself is not affected. Correct \
         that line, or remove the file: this node then takes its position from elsewhere, or a \
         full copy from the cluster"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: ParseError,
    },
    /// It cannot be written.
    #[error(
        "The state file {path} cannot be written: {source}. It still says what it said before, \
         which may be out of date. Free space on that file system or give the server's user \
         write access, then restart this node"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// `grastate.dat`, open and locked for the life of this value.
///
/// The file is rewritten in place and synced, because tools hold it open. If
/// somebody has replaced or removed it meanwhile (an editor does), the new file
/// is taken over before the next write.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    state: GraState,
}

impl StateFile {
    /// Opens, locks and reads the file in `dir`; an absent one is made, empty.
    ///
    /// # Errors
    /// Unreadable, locked by another process, or damaged.
    pub fn open(dir: &Path) -> Result<StateFile, StateFileError> {
        let path = dir.join(STATE_FILE);
        let file = open_locked(&path)?;
        let text = read_text(&file).map_err(|source| StateFileError::Read {
            path: path.clone(),
            source,
        })?;
        match GraState::parse(&text) {
            Ok(state) => Ok(StateFile { path, file, state }),
            Err(problem) => Err(StateFileError::Malformed { path, problem }),
        }
    }

    /// What the file says.
    pub fn state(&self) -> GraState {
        self.state
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This node runs with data of history `uuid`: position -1, so that after a
    /// crash nobody trusts an old one.
    ///
    /// # Errors
    /// The file cannot be written; it says what it said before.
    pub fn mark_running(&mut self, uuid: Uuid) -> Result<(), StateFileError> {
        let seqno = -1;
        self.write(GraState {
            uuid,
            seqno,
            ..self.state
        })
    }

    /// The data is not consistent for a while (a DDL runs, a copy arrives) or
    /// for good: no history, no position. A crash now means a full copy.
    ///
    /// # Errors
    /// As [`StateFile::mark_running`].
    pub fn mark_unsafe(&mut self) -> Result<(), StateFileError> {
        self.mark_running(Uuid::NIL)
    }

    /// The data is complete at this position and stands still (orderly
    /// shutdown, pause).
    ///
    /// # Errors
    /// As [`StateFile::mark_running`].
    pub fn mark_safe(&mut self, uuid: Uuid, seqno: Seqno) -> Result<(), StateFileError> {
        self.write(GraState {
            uuid,
            seqno,
            ..self.state
        })
    }

    /// Whether a cluster may be founded from this node.
    ///
    /// # Errors
    /// As [`StateFile::mark_running`].
    pub fn set_safe_to_bootstrap(&mut self, safe: bool) -> Result<(), StateFileError> {
        self.write(GraState {
            safe_to_bootstrap: safe,
            ..self.state
        })
    }

    /// All three lines at once.
    ///
    /// # Errors
    /// As [`StateFile::mark_running`].
    pub fn write(&mut self, state: GraState) -> Result<(), StateFileError> {
        let replaced = self.was_replaced();
        if state == self.state && !replaced {
            return Ok(());
        }
        if replaced {
            self.file = open_locked(&self.path)?;
        }
        rewrite(&self.file, &state.to_string()).map_err(|source| StateFileError::Write {
            path: self.path.clone(),
            source,
        })?;
        self.state = state;
        Ok(())
    }

    /// The name no longer leads to the open file.
    fn was_replaced(&self) -> bool {
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(named), Ok(open)) => named.dev() != open.dev() || named.ino() != open.ino(),
            (Err(e), _) => e.kind() == io::ErrorKind::NotFound,
            // The write that follows meets the same trouble and reports it.
            (Ok(_), Err(_)) => false,
        }
    }
}

fn open_locked(path: &Path) -> Result<File, StateFileError> {
    let read = |source| StateFileError::Read {
        path: path.to_path_buf(),
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(read)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StateFileError::Locked {
            path: path.to_path_buf(),
        }),
        Err(TryLockError::Error(source)) => Err(read(source)),
    }
}

fn read_text(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    // Foreign bytes become a damaged line, which is reported by its number.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One write that also covers what a longer text would leave behind, so that no
/// moment shows a mixture; then the exact length; then to disk.
fn rewrite(file: &File, text: &str) -> io::Result<()> {
    let old = usize::try_from(file.metadata()?.len().min(FILE_BYTES_MAX)).unwrap_or(0);
    let mut bytes = text.as_bytes().to_vec();
    let exact = bytes.len();
    bytes.resize(exact.max(old), b' ');
    file.write_all_at(&bytes, 0)?;
    file.set_len(exact as u64)?;
    file.sync_all()
}

/// What `gvwstate.dat` says: the last primary view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewState {
    /// This node in that view.
    pub my_uuid: Uuid,
    /// The view's first member and number.
    pub view_id: (Uuid, u64),
    /// The view was made by force.
    pub bootstrap: bool,
    /// Members with their segments.
    pub members: Vec<(Uuid, u8)>,
}

/// How the format spells the kind of a primary view.
const PRIMARY_VIEW: u8 = 3;

/// The file's text.
impl fmt::Display for ViewState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, number) = self.view_id;
        writeln!(f, "my_uuid: {}", self.my_uuid)?;
        writeln!(f, "#vwbeg")?;
        writeln!(f, "view_id: {PRIMARY_VIEW} {first} {number}")?;
        writeln!(f, "bootstrap: {}", u8::from(self.bootstrap))?;
        for (uuid, segment) in &self.members {
            writeln!(f, "member: {uuid} {segment}")?;
        }
        writeln!(f, "#vwend")
    }
}

impl ViewState {
    /// Parses the file's text. Only a text that ends with `#vwend` is complete.
    ///
    /// # Errors
    /// The first line that is malformed or missing.
    pub fn parse(text: &str) -> Result<ViewState, ParseError> {
        let mut my_uuid = None;
        let mut view_id = None;
        let mut bootstrap = false;
        let mut members = Vec::new();
        for (line, key, value) in pairs(text) {
            let key = key?;
            let mut words = value.split_whitespace();
            let understood = match key {
                "my_uuid" => value.parse().map(|v| my_uuid = Some(v)).is_ok(),
                "view_id" => (|| {
                    words.next()?.parse::<u8>().ok()?;
                    let first: Uuid = words.next()?.parse().ok()?;
                    view_id = Some((first, words.next()?.parse().ok()?));
                    words.next().is_none().then_some(())
                })()
                .is_some(),
                "bootstrap" => match value {
                    "0" | "1" => {
                        bootstrap = value == "1";
                        true
                    }
                    _ => false,
                },
                "member" => (|| {
                    let uuid: Uuid = words.next()?.parse().ok()?;
                    members.push((uuid, words.next()?.parse().ok()?));
                    words.next().is_none().then_some(())
                })()
                .is_some(),
                _ => true,
            };
            if !understood {
                return Err(ParseError {
                    line,
                    problem: format!("has '{}' for {key}", value.escape_debug()),
                });
            }
        }
        let missing = |key: &str| ParseError {
            line: text.lines().count() + 1,
            problem: format!("should follow with '{key}', but the file ends"),
        };
        if text.lines().last().map(str::trim) != Some("#vwend") {
            return Err(missing("#vwend"));
        }
        Ok(ViewState {
            my_uuid: my_uuid.ok_or_else(|| missing("my_uuid:"))?,
            view_id: view_id.ok_or_else(|| missing("view_id:"))?,
            bootstrap,
            members,
        })
    }

    /// Reads the file in `dir`; `None`: there is none (orderly shutdown).
    ///
    /// # Errors
    /// Unreadable or damaged.
    pub fn read(dir: &Path) -> Result<Option<ViewState>, StateFileError> {
        let path = dir.join(VIEW_FILE);
        let text = match File::open(&path).and_then(|file| read_text(&file)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateFileError::Read { path, source }),
        };
        match ViewState::parse(&text) {
            Ok(view) => Ok(Some(view)),
            Err(problem) => Err(StateFileError::Malformed { path, problem }),
        }
    }

    /// Replaces the file in `dir`, all of it or nothing, and syncs it.
    ///
    /// # Errors
    /// It cannot be written; the old one stays.
    pub fn write(&self, dir: &Path) -> Result<(), StateFileError> {
        let path = dir.join(VIEW_FILE);
        let draft = dir.join(format!("{VIEW_FILE}.tmp"));
        let store = || -> io::Result<()> {
            let file = File::create(&draft)?;
            file.write_all_at(self.to_string().as_bytes(), 0)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(dir)?.sync_all()
        };
        store().map_err(|source| StateFileError::Write {
            path: path.clone(),
            source,
        })
    }

    /// Removes the file in `dir`, as an orderly shutdown does. An absent one is
    /// no error.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    pub fn remove(dir: &Path) -> Result<(), StateFileError> {
        let path = dir.join(VIEW_FILE);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(StateFileError::Write { path, source: e })
            }
            _ => Ok(()),
        }
    }
}
