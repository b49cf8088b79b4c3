//! What can go wrong, in sentences an operator can act on.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// An error of the log. Cheap to clone: one cause answers many callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused an operation on one of the log's files.
    #[error(
        "The log could not {action} {file}: {source}. {}",
        advice(action, source)
    )]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file's name in the log's directory, or the directory.
        file: String,
        /// The cause.
        source: Arc<io::Error>,
    },

    /// A checkpoint could not be saved; nothing else failed.
    #[error(
        "The checkpoint at index {index} could not be saved (to {action} {file}: {source}). The log \
         goes on, and keeps its older checkpoints and all behind them until a later one can be \
         saved; check the disk (space, health) and how many files the process may open."
    )]
    NotSaved {
        /// The index of the checkpoint.
        index: u64,
        /// What was tried, as a verb.
        action: &'static str,
        /// The file's name in the log's directory, or the directory.
        file: String,
        /// The cause.
        source: Arc<io::Error>,
    },

    /// A new segment could not be begun; nothing failed by that yet.
    #[error(
        "The log could not begin a new segment ({source}). It goes on in the old one for a while and \
         tries again each time; if that lasts, it stops. {}, of which the log has \
         {segments}; raise that (open_files_limit of the server, LimitNOFILE of its service), or find \
         what has them.",
        descriptors()
    )]
    NotBegun {
        /// The cause.
        source: Arc<io::Error>,
        /// Segments that the log has open.
        segments: usize,
    },

    /// An earlier write or fsync failed; the log takes nothing more.
    #[error(
        "The log stopped writing after an earlier failure and takes nothing more until the node \
         restarts. The first cause was: {cause}"
    )]
    Poisoned {
        /// The failure that stopped the log.
        cause: Arc<LogError>,
    },

    /// Stored bytes are not what was written.
    #[error("The log file {file} is damaged at byte {offset}: {what}. Nothing was changed.")]
    Corrupt {
        /// The file's name in the log's directory.
        file: String,
        /// Where in the file, in bytes.
        offset: u64,
        /// What was found and why it cannot be a crash's torn tail.
        what: String,
    },

    /// A checkpoint's bytes are not what was written.
    #[error(
        "The checkpoint file {file} is damaged: {what}. The log's records are not concerned, and a \
         node does without any but the newest; without that one it needs a full copy."
    )]
    CorruptCheckpoint {
        /// The file's name in the log's directory.
        file: String,
        /// What was found.
        what: &'static str,
    },

    /// A file carries a format version this program does not know.
    #[error(
        "The log file {file} has format version {version}, and this program knows versions up to \
         {known}. It was written by a newer version of Dromon; start that one."
    )]
    Version {
        /// The file's name in the log's directory.
        file: String,
        /// The version found.
        version: u32,
        /// The newest version this program reads and writes.
        known: u32,
    },

    /// An append did not continue the log.
    #[error(
        "A record with index {got} was appended to the log where index {expected} comes next. \
         Nothing was written; this is a defect in the caller."
    )]
    NotContiguous {
        /// The index that comes next.
        expected: u64,
        /// The index that came.
        got: u64,
    },

    /// The wanted records were purged.
    #[error(
        "The log no longer holds index {wanted}: it starts at index {first}. Who needs older \
         entries needs a full copy."
    )]
    Purged {
        /// The index asked for.
        wanted: u64,
        /// The first index that is still there.
        first: u64,
    },

    /// An index beyond the end of the log was named.
    #[error(
        "Index {index} lies beyond the log, whose next index is {next}. Nothing was changed; this \
         is a defect in the caller."
    )]
    BeyondEnd {
        /// The index named.
        index: u64,
        /// The index the next record will have.
        next: u64,
    },

    /// Something is larger than the format allows.
    #[error(
        "{what} of {bytes} bytes does not fit the log's limit of {limit} bytes. Nothing was \
         written; this is a defect in the caller."
    )]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },

    /// There is no checkpoint at this index.
    #[error("There is no checkpoint file for index {index} beside the log.")]
    NoCheckpoint {
        /// The index asked for.
        index: u64,
    },

    /// Who looked without the lock saw the log change.
    #[error(
        "The log changed while it was read ({what}): a node is using it. Nothing shows that it is \
         damaged; look again."
    )]
    Changed {
        /// What changed.
        what: String,
    },

    /// The writer was closed.
    #[error("The log was closed and takes nothing more.")]
    Closed,
}

impl LogError {
    pub(crate) fn io(action: &'static str, file: &str, source: io::Error) -> LogError {
        LogError::Io {
            action,
            file: file.to_owned(),
            source: Arc::new(source),
        }
    }

    pub(crate) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> LogError {
        LogError::Corrupt {
            file: file.to_owned(),
            offset,
            what: what.into(),
        }
    }

    /// Whether this says that stored bytes are damaged (not that the disk refused): they are not
    /// what was written, or are gone. Disks say so of a bad sector, and file systems that keep
    /// checksums of any changed bit.
    pub fn is_corruption(&self) -> bool {
        match self {
            LogError::Corrupt { .. } | LogError::CorruptCheckpoint { .. } => true,
            LogError::Io { action, source, .. } => {
                let gone = [Errno::IO, Errno::BADMSG, Errno::UCLEAN];
                reads(action)
                    && gone
                        .iter()
                        .any(|e| source.raw_os_error() == Some(e.raw_os_error()))
            }
            _ => false,
        }
    }

    /// Whether the log has stopped for good.
    pub fn is_poisoned(&self) -> bool {
        matches!(self, LogError::Poisoned { .. })
    }
}

/// Whether what was tried changes nothing.
fn reads(action: &str) -> bool {
    ["read", "open", "measure", "list"].contains(&action)
}

/// Whether the process, or the machine, has too much open, or no memory for one more.
pub(crate) fn is_short(e: &io::Error) -> bool {
    let code = e.raw_os_error();
    no_descriptor(e) || code == Some(Errno::NOMEM.raw_os_error())
}

/// Whether there is no file descriptor left.
pub(crate) fn no_descriptor(e: &io::Error) -> bool {
    let none = [Errno::MFILE, Errno::NFILE];
    none.iter()
        .any(|n| e.raw_os_error() == Some(n.raw_os_error()))
}

/// How many files may be open, as the begin of a sentence.
fn descriptors() -> String {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => format!("This process may have {limit} files open"),
        None => "This process may have any number of files open, and the machine some".to_owned(),
    }
}

/// What a failure means, and what to do.
fn advice(action: &str, source: &io::Error) -> &'static str {
    match reads(action) {
        true if is_short(source) => {
            "Nothing was changed; this process, or the machine, has too many files open, or too \
             little memory."
        }
        false if is_short(source) => {
            "Nothing that was not yet acknowledged counts as stored; this process, or the machine, \
             has too many files open (raise open_files_limit), or too little memory: restart the \
             node."
        }
        true => "Nothing was changed; check the disk (health, permissions).",
        false => {
            "Nothing that was not yet acknowledged counts as stored; check the disk (space, \
             permissions, health) and restart the node."
        }
    }
}

impl From<LogError> for io::Error {
    fn from(e: LogError) -> io::Error {
        let kind = match &e {
            LogError::Io { source, .. }
            | LogError::NotSaved { source, .. }
            | LogError::NotBegun { source, .. } => source.kind(),
            LogError::Corrupt { .. }
            | LogError::CorruptCheckpoint { .. }
            | LogError::Version { .. } => io::ErrorKind::InvalidData,
            LogError::NoCheckpoint { .. } | LogError::Purged { .. } => io::ErrorKind::NotFound,
            LogError::NotContiguous { .. }
            | LogError::BeyondEnd { .. }
            | LogError::TooLarge { .. } => io::ErrorKind::InvalidInput,
            LogError::Poisoned { .. } | LogError::Changed { .. } | LogError::Closed => {
                io::ErrorKind::Other
            }
        };
        io::Error::new(kind, e)
    }
}
