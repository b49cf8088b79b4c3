//! What a statement (DDL) changed in the data directory outside of the storage engines' logs, brought to the disk.
//!
//! The server makes a database's directory and `db.opt` without a sync, and renames and removes definition
//! files without one of their directory (10.11, watched). Once a statement counts as over, its place is passed
//! after a crash and it is not run again: by then all of that must be there.
//!
//! ```text
//!   data directory        changed since: synced
//!     └── a database      changed since: its db.opt and *.par, then itself
//!                         else: its db.opt, if that was
//! ```

use std::fs::{File, metadata, read_dir};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

/// A database's own file: its character set and collation.
const DB_OPT: &str = "db.opt";
/// The names of a table's partitions.
const PARTITIONS: &str = "par";
/// File systems keep times in steps, and behind the clock.
const STEP: Duration = Duration::from_secs(2);

/// Syncs what was changed in `data_dir` since then, and in the databases there. An error is of the file system;
/// what goes away meanwhile is none.
pub fn sync_changed(data_dir: &Path, since: SystemTime) -> io::Result<()> {
    let since = since.checked_sub(STEP).unwrap_or(SystemTime::UNIX_EPOCH);
    for entry in read_dir(data_dir)? {
        let path = entry?.path();
        // A database may be a symbolic link.
        if if_usable(metadata(&path))?.is_some_and(|m| m.is_dir()) {
            sync_database(&path, since)?;
        }
    }
    sync(data_dir, since).map(drop)
}

fn sync_database(dir: &Path, since: SystemTime) -> io::Result<()> {
    sync(&dir.join(DB_OPT), since)?;
    if !is_changed(dir, since)? {
        return Ok(());
    }
    let Some(entries) = if_usable(read_dir(dir))? else {
        return Ok(());
    };
    for entry in entries {
        let Some(entry) = if_usable(entry)? else {
            continue;
        };
        let path = entry.path();
        if path.extension().is_some_and(|e| e == PARTITIONS) {
            sync(&path, since)?;
        }
    }
    sync(dir, since).map(drop)
}

fn is_changed(path: &Path, since: SystemTime) -> io::Result<bool> {
    let changed = if_usable(metadata(path).and_then(|m| m.modified()))?;
    Ok(changed.is_some_and(|at| at >= since))
}

/// `None`: it is gone, a link to nothing, or another user's, and so no database (lost+found). Any other error, as of a
/// process without descriptors, says nothing about what lies there.
fn if_usable<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), NotFound | PermissionDenied | NotADirectory) => Ok(None),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::LOOP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Answers whether there was something to sync.
fn sync(path: &Path, since: SystemTime) -> io::Result<bool> {
    if !is_changed(path, since)? {
        return Ok(false);
    }
    match File::open(path) {
        Ok(file) => file.sync_all().map(|()| true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &Path, at: SystemTime) {
        let file = File::open(path).expect("it is there");
        file.set_modified(at).expect("it is ours");
    }

    #[test]
    fn what_was_changed_since_is_synced_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let now = SystemTime::now();
        let before = now - Duration::from_secs(60);
        for db in [&old, &new] {
            std::fs::create_dir(db).expect("room");
            std::fs::write(db.join(DB_OPT), "default-character-set=latin1").expect("room");
        }
        set(&old.join(DB_OPT), before);
        set(&old, before);
        let is_due = |path: &Path| sync(path, now - STEP).expect("a sound disk");
        assert!(is_due(&new) && is_due(&new.join(DB_OPT)));
        assert!(!is_due(&old) && !is_due(&old.join(DB_OPT)));
        assert!(!is_due(&dir.path().join("gone")));
        for to in ["circle", "nowhere", "new/db.opt/below"] {
            let link = dir.path().join(to.replace('/', "-"));
            let to = if to == "circle" {
                link.clone()
            } else {
                dir.path().join(to)
            };
            std::os::unix::fs::symlink(to, link).expect("room");
        }
        sync_changed(dir.path(), now).expect("a sound disk");
        // What is set anew there changes no directory.
        set(&old.join(DB_OPT), now);
        assert!(is_due(&old.join(DB_OPT)) && !is_due(&old));
        let missing = sync_changed(&dir.path().join("gone"), now);
        assert!(missing.is_err(), "the data directory itself must be there");
    }
}
