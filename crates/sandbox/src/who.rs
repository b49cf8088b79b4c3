//! As whom the servers run, and what that user can reach.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{IoContext, Result, SandboxError};

/// The user a server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Root starts the servers and hands their files over.
    pub switched: bool,
}

impl ServerUser {
    /// User mysql when root asks, else the caller.
    pub fn find() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        if uid == 0 {
            return lookup(&passwd, |name, _| name == "mysql")
                .map(|(name, uid, gid)| Self {
                    name,
                    uid,
                    gid,
                    switched: true,
                })
                .ok_or(SandboxError::UserMissing {
                    user: "mysql".into(),
                });
        }
        let gid = rustix::process::getegid().as_raw();
        let name =
            lookup(&passwd, |_, u| u == uid).map_or_else(|| uid.to_string(), |found| found.0);
        Ok(Self {
            name,
            uid,
            gid,
            switched: false,
        })
    }

    /// Makes `path` the server's own.
    pub fn own(&self, path: &Path) -> Result<()> {
        if !self.switched {
            return Ok(());
        }
        chown(path, Some(self.uid), Some(self.gid)).at("hand over to the server's user", path)
    }

    /// Where a process of a cluster runs, where its words go, and what marks it.
    pub fn surround(
        &self,
        command: &mut Command,
        dir: &Path,
        log: &Path,
        (name, value): (&str, String),
    ) -> Result<()> {
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .at("open", log)?;
        self.own(log)?;
        let err = out.try_clone().at("open", log)?;
        // A group of its own: Ctrl-C in the terminal is for us, not for the servers.
        command
            .env(name, value)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        Ok(())
    }

    /// Gives the group of `path` to the server and lets it read.
    pub fn let_read(&self, path: &Path) -> Result<()> {
        if self.switched {
            chown(path, None, Some(self.gid)).at("hand over to the server's group", path)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o640)).at("set the mode of", path)
    }

    /// Creates a directory that only the server (and root) can enter.
    pub fn create_dir(&self, path: &Path) -> Result<()> {
        fs::create_dir(path).at("create the directory", path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o750)).at("set the mode of", path)?;
        self.own(path)
    }

    fn can_enter(&self, meta: &fs::Metadata) -> bool {
        let mode = meta.mode();
        if self.uid == 0 {
            true
        } else if meta.uid() == self.uid {
            mode & 0o100 != 0
        } else if meta.gid() == self.gid {
            mode & 0o010 != 0
        } else {
            mode & 0o001 != 0
        }
    }
}

fn lookup(passwd: &str, wanted: impl Fn(&str, u32) -> bool) -> Option<(String, u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        wanted(name, uid).then(|| (name.to_string(), uid, gid))
    })
}

/// The first folder above (or at) `path` that the servers' user cannot enter.
/// Folders that do not exist yet count as enterable: we create them.
///
/// # Errors
/// When user mysql is missing or the current directory cannot be read.
pub fn first_unreachable(path: &Path) -> Result<Option<PathBuf>> {
    let user = ServerUser::find()?;
    let absolute = std::path::absolute(path).at("find the absolute name of", path)?;
    let mut so_far = PathBuf::new();
    for part in absolute.components() {
        so_far.push(part);
        // The link's target counts, hence metadata() and not symlink_metadata().
        match fs::metadata(&so_far) {
            Ok(meta) if meta.is_dir() && !user.can_enter(&meta) => return Ok(Some(so_far)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(None)
}

/// True when the servers' user can enter `path` (or could once it is created).
#[must_use]
pub fn reachable_by_server(path: &Path) -> bool {
    matches!(first_unreachable(path), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwd_lines_are_found_by_name_and_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken line\nmysql:x:102:105::/nonexistent:/bin/false\n";
        let mysql = Some(("mysql".to_string(), 102, 105));
        assert_eq!(lookup(passwd, |name, _| name == "mysql"), mysql);
        assert_eq!(lookup(passwd, |_, uid| uid == 102), mysql);
        assert_eq!(lookup(passwd, |name, _| name == "nobody"), None);
    }

    #[test]
    fn a_closed_folder_is_named() {
        let user = ServerUser {
            name: "other".into(),
            uid: 4_000_000,
            gid: 4_000_000,
            switched: true,
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(!user.can_enter(&fs::metadata(dir.path()).expect("metadata")));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
        assert!(user.can_enter(&fs::metadata(dir.path()).expect("metadata")));
    }
}
