//! What can go wrong with the stored files.

use std::io;
use std::sync::Arc;

use dromon_binlog::EventType;
use rustix::io::Errno;

use super::halt::HALTED;

/// An error of the store. Cheap to clone: one cause answers many.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation.
    #[error(
        "The relay could not {action} {file}: {source}. It stores nothing more; what it acknowledged is on \
         the disk. Check the disk (space, permissions, health) and start the relay again."
    )]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        file: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The same, of something that nothing which is stored depends on.
    #[error("The relay could not {action} {file}: {source}.")]
    Access {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        file: String,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The primary lost what is stored here.
    #[error(
        "{why} The transactions that it has lost are on the relay and its replicas, and not on the primary. Either make one of the replicas the primary, or give relay and replicas new copies of the primary's data (the relay an empty directory). If the primary itself gets them again (it was restored, and catches up with another server), wait until it has them. Then remove {HALTED} from the relay's directory, and start the relay again."
    )]
    Halted {
        /// How that is known.
        why: String,
    },
    /// A defect.
    #[error(
        "The thread that pulls has panicked, which is a defect of the relay. It stores nothing more; start it again."
    )]
    Panicked,
    /// An earlier write or fsync failed.
    #[error("The relay stopped storing after an earlier failure: {0}")]
    Ended(Arc<StoreError>),
    /// Stored bytes are not what was written.
    #[error(
        "The file {file} is damaged at byte {at}: {what} Nothing of it from there on is served and nothing was \
         changed. Move this file and all later ones away and start the relay again: it pulls them again from the \
         primary, if that has them still."
    )]
    Damaged {
        /// Its name.
        file: String,
        /// Where.
        at: u64,
        /// What was found.
        what: String,
    },
    /// The directory is of the other kind.
    #[error(
        "The files in the directory were written with follow = {here}; they cannot go on otherwise. Nothing was changed. Set \
         follow = {here}, or begin with an empty directory."
    )]
    Kind {
        /// What they were written with.
        here: &'static str,
    },
    /// The same, and nothing says of which one.
    #[error(
        "The relay did not write {file} with follow = gtid: it has a {found} event where a {list} event would stand. \
         With follow = mysql_gtid the empty file dromon-relay.mysql lies beside such files, with follow = file \
         dromon-relay.mirror, and neither is there. Nothing was changed. Put back the one that was there and set follow as it \
         was, or begin with an empty directory.",
        list = EventType::GTID_LIST
    )]
    Unmarked {
        /// The first one.
        file: String,
        /// The event behind its format description.
        found: EventType,
    },
    /// The directory has files of another name.
    #[error(
        "There are files in the directory which the relay wrote with another log_bin ({file}), and none with log_bin = {wanted}. \
         Beside them it would begin with nothing. Nothing was changed. Set log_bin = {here}, or begin with an empty directory."
    )]
    Prefix {
        /// One of them.
        file: String,
        /// What they were written with.
        here: String,
        /// What is set now.
        wanted: String,
    },
    /// A file in the middle is not there.
    #[error(
        "The file {file} is missing between others. Put it back, or move all later ones away: the relay pulls \
         them again from the primary."
    )]
    Missing {
        /// Its name.
        file: String,
    },
    /// A file was asked for that was purged, or never was.
    #[error("There is no file {file} here (any more).")]
    NoFile {
        /// Its name.
        file: String,
    },
    /// Nothing can be stored before a format description.
    #[error(
        "An event came before any format description. Nothing was stored; this is a defect of the relay."
    )]
    NoFormat,
    /// An event cannot be stored.
    #[error("An event cannot be stored: {0}")]
    Event(#[from] dromon_binlog::EventError),
}

impl StoreError {
    /// An [`StoreError::Io`].
    pub fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> StoreError {
        let file = file.to_owned();
        move |source| StoreError::Io {
            action,
            file,
            source: Arc::new(source),
        }
    }

    /// A [`StoreError::Access`].
    pub fn access(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> StoreError {
        let io = StoreError::io(action, file);
        move |source| io(source).passing()
    }

    /// The same error where it does not end the storing.
    #[must_use]
    pub fn passing(self) -> StoreError {
        match self {
            StoreError::Io {
                action,
                file,
                source,
            } => StoreError::Access {
                action,
                file,
                source,
            },
            other => other,
        }
    }

    /// Whether the disk was full: when there is room again, all that was stored is as it was.
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Io { source, .. } | StoreError::Access { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            StoreError::Ended(cause) => cause.is_full(),
            _ => false,
        }
    }

    /// Whether descriptors or memory were short, which passes.
    pub fn is_shortage(&self) -> bool {
        let source = match self {
            StoreError::Io { source, .. } | StoreError::Access { source, .. } => source,
            StoreError::Ended(cause) => return cause.is_shortage(),
            _ => return false,
        };
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        let code = source.raw_os_error();
        short.iter().any(|e| code == Some(e.raw_os_error()))
    }

    /// Whether the relay can go on by itself when this is over: a start takes nothing on trust that is not
    /// known to be on the disk, and finds the files as they were.
    pub fn passes(&self) -> bool {
        self.is_full() || self.is_shortage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes() {
        let of = |code: i32| StoreError::io("create", "a")(io::Error::from_raw_os_error(code));
        for short in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let error = of(short.raw_os_error());
            assert!(error.is_shortage() && error.passes() && !error.is_full());
            // Whoever comes to the store after the first one is told so.
            let ended = StoreError::Ended(Arc::new(error));
            assert!(ended.is_shortage() && ended.passes());
        }
        let full = StoreError::Ended(Arc::new(of(Errno::NOSPC.raw_os_error())));
        assert!(full.passes() && !full.is_shortage());
        for lasting in [of(Errno::IO.raw_os_error()), StoreError::Panicked] {
            assert!(!lasting.passes());
            assert!(!StoreError::Ended(Arc::new(lasting)).passes());
        }
    }
}
