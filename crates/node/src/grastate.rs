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
use std::io::{self, Read, Seek, SeekFrom};
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
        "The state file {path} cannot be written: {source}. It may still say what it said \
         before, which is out of date. Free space on that file system or give the server's user \
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
    new: bool,
    /// What this process has synced. What else is read may be in memory only: an earlier process was killed before its
    /// sync, or that failed.
    synced: Option<String>,
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
            Ok(state) => Ok(StateFile {
                path,
                file,
                state,
                new: pairs(&text).next().is_none(),
                synced: None,
            }),
            Err(problem) => Err(StateFileError::Malformed { path, problem }),
        }
    }

    /// What the file says.
    pub fn state(&self) -> GraState {
        self.state
    }

    /// Whether nobody has written to it yet.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This node runs with data of history `uuid`: position -1, so that after a
    /// crash nobody trusts an old one.
    ///
    /// # Errors
    /// The file cannot be written; it may say what it said before.
    pub fn mark_running(&mut self, uuid: Uuid) -> Result<(), StateFileError> {
        let seqno = -1;
        self.write(GraState {
            uuid,
            seqno,
            ..self.state
        })
    }

    /// All three lines at once.
    ///
    /// # Errors
    /// As [`StateFile::mark_running`].
    pub fn write(&mut self, state: GraState) -> Result<(), StateFileError> {
        if self.was_replaced() {
            self.file = open_locked(&self.path)?;
            self.synced = None;
        }
        let text = state.to_string();
        self.store(text).map_err(|source| StateFileError::Write {
            path: self.path.clone(),
            source,
        })?;
        self.state = state;
        self.new = false;
        Ok(())
    }

    fn store(&mut self, text: String) -> io::Result<()> {
        // Read again and not only remembered: somebody may have edited it.
        if self.synced.as_ref() == Some(&text) && read_text(&self.file)? == text {
            return Ok(());
        }
        // Written also if it reads so: after a sync that failed, a second one alone has nothing to do.
        self.synced = None;
        rewrite(&self.file, &text)?;
        self.synced = Some(text);
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

fn read_text(mut file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    const UUID: &str = "d020a5d7-e5f0-11f1-a7d7-c647bc4b6adc";
    const TEXT: &str = "# GALERA saved state\nversion: 2.1\n\
        uuid:    d020a5d7-e5f0-11f1-a7d7-c647bc4b6adc\nseqno:   42\nsafe_to_bootstrap: 0\n";

    fn uuid() -> Uuid {
        UUID.parse().expect("a uuid")
    }

    fn at(seqno: Seqno, safe: bool) -> GraState {
        GraState {
            uuid: uuid(),
            seqno,
            safe_to_bootstrap: safe,
        }
    }

    #[test]
    fn the_text_has_the_peers_shape() {
        assert_eq!(at(42, false).to_string(), TEXT);
        for line in TEXT.lines().skip(1) {
            assert_eq!(line.matches(':').count(), 1, "{line}");
        }
    }

    #[test]
    fn edited_texts_are_read() {
        for (text, state) in [
            ("", GraState::default()),
            ("\n# nothing yet\n  \n", GraState::default()),
            (TEXT, at(42, false)),
            (&TEXT.replace('\n', "\r\n"), at(42, false)),
            (&TEXT.replace("strap: 0", "strap: 1"), at(42, true)),
            (&format!("{TEXT}   "), at(42, false)),
            (
                &format!("\n# by hand\n{TEXT}\ncert_index:\n"),
                at(42, false),
            ),
            (&format!("uuid:{UUID}\nseqno:-1"), at(-1, false)),
            (&TEXT.replace(UUID, &UUID.to_uppercase()), at(42, false)),
        ] {
            assert_eq!(GraState::parse(text), Ok(state), "{text}");
        }
    }

    #[test]
    fn damaged_texts_name_the_line() {
        for (text, message) in [
            (
                TEXT.replace("42", "4x2"),
                "line 4 has '4x2' for seqno, which must be -1 or a position",
            ),
            (
                TEXT.replace("42", "-2"),
                "line 4 has '-2' for seqno, which must be -1 or a position",
            ),
            (
                TEXT.replace(UUID, "d020"),
                "line 3 has 'd020' for uuid, which must be a uuid such as \
                 00000000-0000-0000-0000-000000000000",
            ),
            (
                TEXT.replace("strap: 0", "strap: yes"),
                "line 5 has 'yes' for safe_to_bootstrap, which must be 0 or 1",
            ),
            (
                TEXT.replace("2.1", "3.0"),
                "line 2 has '3.0' for version, which must be 2.1 (any 2.x can be read)",
            ),
            (
                format!("{TEXT}seqno: 7\n"),
                "line 6 says seqno a second time",
            ),
            (
                TEXT.replace("seqno:   ", "seqno "),
                "line 4 is 'seqno 42' and not 'key: value'",
            ),
            (
                "\0\0\0".into(),
                "line 1 is '\\0\\0\\0' and not 'key: value'",
            ),
            (
                "version: 2.1\n".into(),
                "line 2 should follow with 'uuid:', but the file ends",
            ),
            (
                format!("uuid: {UUID}\n"),
                "line 2 should follow with 'seqno:', but the file ends",
            ),
        ] {
            let error = GraState::parse(&text).expect_err(&text);
            assert_eq!(error.to_string(), message);
        }
    }

    fn on_disk(dir: &Path) -> String {
        fs::read_to_string(dir.join(STATE_FILE)).expect("the state file")
    }

    #[test]
    fn a_life_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let mut file = StateFile::open(dir).expect("a new file");
        assert_eq!(file.state(), GraState::default());
        assert_eq!(on_disk(dir), "");

        file.mark_running(uuid()).expect("written");
        assert_eq!(GraState::parse(&on_disk(dir)), Ok(at(-1, true)));
        file.write(at(-1, false)).expect("written");
        assert_eq!(GraState::parse(&on_disk(dir)), Ok(at(-1, false)));
        file.mark_running(Uuid::NIL).expect("written");
        assert!(on_disk(dir).contains("uuid:    00000000-0000-0000-0000-000000000000\n"));
        file.write(at(123456789, false)).expect("written");
        assert_eq!(on_disk(dir), at(123456789, false).to_string());
        // Shorter than before: nothing of the longer text stays.
        file.write(at(42, false)).expect("written");
        assert_eq!(on_disk(dir), TEXT);

        drop(file);
        let file = StateFile::open(dir).expect("the same file");
        assert_eq!(file.state(), at(42, false));
        assert_eq!(file.path(), dir.join(STATE_FILE));
    }

    #[test]
    fn a_second_server_is_kept_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = StateFile::open(dir.path()).expect("a new file");
        let error = StateFile::open(dir.path()).expect_err("locked");
        assert!(matches!(error, StateFileError::Locked { .. }));
        let message = error.to_string();
        assert!(message.contains("another server runs on this data directory"));
        drop(first);
        StateFile::open(dir.path()).expect("free again");
    }

    #[test]
    fn a_replaced_or_removed_file_is_written_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let mut file = StateFile::open(dir).expect("a new file");
        file.write(at(42, false)).expect("written");
        // As sed -i does it.
        fs::write(dir.join("draft"), TEXT.replace("strap: 0", "strap: 1")).expect("written");
        fs::rename(dir.join("draft"), dir.join(STATE_FILE)).expect("renamed");
        file.write(at(43, false)).expect("written");
        assert_eq!(on_disk(dir), at(43, false).to_string());
        fs::remove_file(dir.join(STATE_FILE)).expect("removed");
        file.write(at(43, false)).expect("written");
        assert_eq!(on_disk(dir), at(43, false).to_string());
        // As an editor that writes in place does it.
        fs::write(dir.join(STATE_FILE), "").expect("written");
        file.write(at(43, false)).expect("written");
        assert_eq!(on_disk(dir), at(43, false).to_string());
        assert!(StateFile::open(dir).is_err(), "the new file is locked too");
    }

    /// Whoever wrote it may have been killed before the sync, or its sync failed.
    #[test]
    fn what_another_process_wrote_is_written_and_synced_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        fs::write(dir.join(STATE_FILE), TEXT).expect("written");
        let is_written = |file: &mut StateFile| {
            let named = File::open(dir.join(STATE_FILE)).expect("the state file");
            named.set_modified(UNIX_EPOCH).expect("it is ours");
            file.write(at(42, false)).expect("written");
            assert_eq!(on_disk(dir), TEXT);
            let modified = named.metadata().and_then(|m| m.modified());
            modified.expect("a time") != UNIX_EPOCH
        };
        let mut file = StateFile::open(dir).expect("it is there");
        assert!(is_written(&mut file));
        assert!(!is_written(&mut file), "this process has synced it");
        fs::write(dir.join(STATE_FILE), "").expect("written");
        assert!(is_written(&mut file), "edited");
        assert!(!is_written(&mut file));
        drop(file);
        let mut file = StateFile::open(dir).expect("it is there");
        assert!(
            is_written(&mut file),
            "by another process, for all it knows"
        );
        // As an editor does it.
        fs::write(dir.join("draft"), TEXT).expect("written");
        fs::rename(dir.join("draft"), dir.join(STATE_FILE)).expect("renamed");
        assert!(is_written(&mut file), "replaced");
    }

    #[test]
    fn errors_say_file_meaning_and_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(STATE_FILE);
        fs::write(&path, TEXT.replace("42", "?")).expect("written");
        let error = StateFile::open(dir.path()).expect_err("damaged");
        assert_eq!(
            error.to_string(),
            format!(
                "The state file {} is damaged: line 4 has '?' for seqno, which must be -1 or a \
                 position. The data itself is not affected. Correct that line, or remove the \
                 file: this node then takes its position from elsewhere, or a full copy from the \
                 cluster",
                path.display()
            )
        );
        // What could not be understood is left for the operator as it was.
        assert_eq!(on_disk(dir.path()), TEXT.replace("42", "?"));
        let gone = dir.path().join("gone");
        let message = StateFile::open(&gone)
            .expect_err("no directory")
            .to_string();
        assert!(message.contains("cannot be read"), "{message}");
        assert!(message.contains("does not start"), "{message}");
    }

    fn view() -> ViewState {
        ViewState {
            my_uuid: uuid(),
            view_id: (uuid(), 7),
            bootstrap: true,
            members: vec![(uuid(), 0), (Uuid([1; 16]), 2)],
        }
    }

    #[test]
    fn the_view_file_comes_and_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        assert_eq!(ViewState::read(dir).expect("no file"), None);
        ViewState::remove(dir).expect("nothing to remove");
        view().write(dir).expect("written");
        assert_eq!(
            fs::read_to_string(dir.join(VIEW_FILE)).expect("the file"),
            format!(
                "my_uuid: {UUID}\n#vwbeg\nview_id: 3 {UUID} 7\nbootstrap: 1\nmember: {UUID} 0\n\
                 member: 01010101-0101-0101-0101-010101010101 2\n#vwend\n"
            )
        );
        assert_eq!(ViewState::read(dir).expect("whole"), Some(view()));
        let names = fs::read_dir(dir).expect("a directory").count();
        assert_eq!(names, 1, "no draft stays");
        ViewState::remove(dir).expect("removed");
        assert_eq!(ViewState::read(dir).expect("no file"), None);
    }

    #[test]
    fn damaged_views_name_the_line() {
        let text = view().to_string();
        for (text, message) in [
            (
                String::new(),
                "line 1 should follow with '#vwend', but the file ends",
            ),
            (
                text.replace("#vwend\n", ""),
                "line 7 should follow with '#vwend', but the file ends",
            ),
            (
                text.replace(" 2\n", "\n"),
                "line 6 has '01010101-0101-0101-0101-010101010101' for member",
            ),
            (
                text.replace("trap: 1", "trap: 2"),
                "line 4 has '2' for bootstrap",
            ),
            (
                text.replace("view_id: 3", "view_id: "),
                &format!("line 3 has '{UUID} 7' for view_id"),
            ),
            (
                "#vwend".into(),
                "line 2 should follow with 'my_uuid:', but the file ends",
            ),
        ] {
            let error = ViewState::parse(&text).expect_err(&text);
            assert_eq!(error.to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn states_read_back(bytes in any::<[u8; 16]>(), seqno in -1..i64::MAX, safe in any::<bool>()) {
            let state = GraState { uuid: Uuid(bytes), seqno, safe_to_bootstrap: safe };
            prop_assert_eq!(GraState::parse(&state.to_string()), Ok(state));
        }

        #[test]
        fn views_read_back(
            mine in any::<[u8; 16]>(),
            number in any::<u64>(),
            bootstrap in any::<bool>(),
            members in prop::collection::vec((any::<[u8; 16]>(), any::<u8>()), 0..6),
        ) {
            let view = ViewState {
                my_uuid: Uuid(mine),
                view_id: (Uuid(mine), number),
                bootstrap,
                members: members.into_iter().map(|(u, s)| (Uuid(u), s)).collect(),
            };
            prop_assert_eq!(ViewState::parse(&view.to_string()), Ok(view));
        }

        #[test]
        fn no_text_panics(text in "[ -~\\n\\r\\t:äß]{0,200}", cut in 0usize..120) {
            let _ = GraState::parse(&text);
            let _ = ViewState::parse(&text);
            let whole = TEXT.get(..cut.min(TEXT.len())).unwrap_or(TEXT);
            let _ = GraState::parse(&format!("{whole}{text}"));
            let _ = ViewState::parse(&format!("{}{text}", view()));
        }
    }
}
