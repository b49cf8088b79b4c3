//! Copying directories between users: what lies there may be another one's work, who may change it
//! meanwhile. So nothing is followed, and each name is looked up once.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::error::{IoContext, Result, SandboxError};
use crate::who::ServerUser;

/// What is opened is what has this name, and not what a link there leads to.
const NAMED: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// Copies directories and regular files, handing them to `owner`: each directory when all is in
/// it. Anything else is refused.
pub(crate) fn copy_tree(from: &Path, to: &Path, owner: Option<&ServerUser>) -> Result<()> {
    let source = open_dir(CWD, from.as_os_str(), from)?;
    let owner = owner.filter(|user| user.switched);
    let target = new_dir(CWD, to.as_os_str(), to)?;
    fill(&source, from, target, to, owner)
}

fn fill(
    source: &OwnedFd,
    from: &Path,
    target: OwnedFd,
    to: &Path,
    owner: Option<&ServerUser>,
) -> Result<()> {
    for entry in io_of(Dir::read_from(source)).at("read the directory", from)? {
        let entry = io_of(entry).at("read the directory", from)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if [".", ".."].iter().any(|own| name == *own) {
            continue;
        }
        let (from, to) = (from.join(name), to.join(name));
        let file = open(source, entry.file_name(), &from)?;
        let meta = file.metadata().at("look at", &from)?;
        if meta.is_dir() {
            let inner = new_dir(target.as_fd(), name, &to)?;
            fill(&OwnedFd::from(file), &from, inner, &to, owner)?;
        } else if meta.is_file() && meta.nlink() == 1 {
            copy_file(file, &meta, target.as_fd(), name, &to, owner)?;
        } else {
            return Err(neither(&from));
        }
    }
    hand_over(&File::from(target), to, owner)
}

fn copy_file(
    mut source: File,
    meta: &fs::Metadata,
    dir: BorrowedFd,
    name: &OsStr,
    to: &Path,
    owner: Option<&ServerUser>,
) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NAMED;
    let made = openat(dir, name, flags, Mode::RUSR | Mode::WUSR);
    let mut made = File::from(io_of(made).at("make", to)?);
    io::copy(&mut source, &mut made).at("copy to", to)?;
    let mode = fs::Permissions::from_mode(meta.mode() & 0o777);
    made.set_permissions(mode).at("set the mode of", to)?;
    hand_over(&made, to, owner)
}

fn hand_over(made: &File, path: &Path, owner: Option<&ServerUser>) -> Result<()> {
    match owner {
        Some(user) => {
            fchown(made, Some(user.uid), Some(user.gid)).at("hand over to the server's user", path)
        }
        None => Ok(()),
    }
}

/// A file or directory. A pipe that nobody writes to is not waited for.
fn open(dir: &OwnedFd, name: &CStr, path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | NAMED;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(found) => Ok(found.into()),
        // A link; a socket.
        Err(Errno::LOOP | Errno::NXIO) => Err(neither(path)),
        Err(e) => Err(e.into()).at("open", path),
    }
}

fn open_dir(parent: BorrowedFd, name: &OsStr, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | NAMED;
    io_of(openat(parent, name, flags, Mode::empty())).at("open", path)
}

/// A directory that is the caller's alone, until it is handed over.
fn new_dir(parent: BorrowedFd, name: &OsStr, path: &Path) -> Result<OwnedFd> {
    io_of(mkdirat(parent, name, Mode::RWXU)).at("create the directory", path)?;
    let made = File::from(open_dir(parent, name, path)?);
    let meta = made.metadata().at("look at", path)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(SandboxError::NotOurs {
            path: path.to_path_buf(),
            why: "another directory came into the place of the one just made".into(),
        });
    }
    let mode = fs::Permissions::from_mode(0o700);
    made.set_permissions(mode).at("set the mode of", path)?;
    Ok(made.into())
}

fn neither(path: &Path) -> SandboxError {
    SandboxError::NotOurs {
        path: path.to_path_buf(),
        why: "it is neither a directory nor a file with this name alone".into(),
    }
}

fn io_of<T>(result: rustix::io::Result<T>) -> io::Result<T> {
    result.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn trees_are_copied_whole() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("deep/er")).expect("created");
        fs::write(from.join("deep/er/file"), "x").expect("written");
        let to = dir.path().join("to");
        copy_tree(&from, &to, None).expect("copied");
        assert_eq!(
            fs::read_to_string(to.join("deep/er/file")).expect("there"),
            "x"
        );
        assert!(
            copy_tree(&from, &to, None).is_err(),
            "an existing target is refused"
        );
    }

    #[test]
    fn what_a_link_leads_to_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("precious")).expect("created");
        fs::write(path("precious/shadow"), "kept").expect("written");
        for (name, link) in [("file", "precious/shadow"), ("dir", "precious")] {
            let from = path(&format!("from-{name}"));
            fs::create_dir(&from).expect("created");
            symlink(path(link), from.join("x")).expect("linked");
            let to = path(&format!("to-{name}"));
            let error = copy_tree(&from, &to, None).expect_err(name);
            assert!(matches!(error, SandboxError::NotOurs { .. }), "{error}");
            assert!(!to.join("x").exists(), "{name}");
        }
        let hard = path("from-hard");
        fs::create_dir(&hard).expect("created");
        fs::hard_link(path("precious/shadow"), hard.join("x")).expect("linked");
        let error = copy_tree(&hard, &path("to-hard"), None).expect_err("two names");
        assert!(matches!(error, SandboxError::NotOurs { .. }), "{error}");

        // The same names, as links in the place of what is to be made and of what is read.
        let from = path("from");
        fs::create_dir(&from).expect("created");
        fs::write(from.join("shadow"), "other").expect("written");
        symlink(path("precious"), path("to")).expect("linked");
        assert!(copy_tree(&from, &path("to"), None).is_err());
        symlink(&from, path("from-link")).expect("linked");
        assert!(copy_tree(&path("from-link"), &path("new"), None).is_err());
        let kept = fs::read_to_string(path("precious/shadow")).expect("there");
        assert_eq!(kept, "kept");
    }
}
