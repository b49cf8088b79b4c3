//! As whom the servers run, and what that user can reach.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::io::Errno;

use crate::error::{IoContext, Result, SandboxError};

/// The user a server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All its groups, as far as they are known: of the caller the system knows them.
    pub groups: Vec<u32>,
    /// Root starts the servers and hands their files over.
    pub switched: bool,
}

/// The name of a user of this machine.
pub(crate) fn name_of(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    lookup(&passwd, |_, u| u == uid).map(|found| found.0)
}

impl ServerUser {
    /// User mysql when root asks, else the caller.
    pub fn find() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        if uid == 0 {
            return lookup(&passwd, |name, _| name == "mysql")
                .map(|(name, uid, gid)| {
                    let file = fs::read_to_string("/etc/group").unwrap_or_default();
                    Self {
                        groups: groups_of(&file, &name, gid),
                        name,
                        uid,
                        gid,
                        switched: true,
                    }
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
            groups: vec![gid],
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
        // The directory may be the server's, which could have put a link there.
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(log)
            .at("open", log)?;
        let meta = out.metadata().at("look at", log)?;
        if !meta.is_file() || meta.nlink() != 1 {
            return Err(SandboxError::NotOurs {
                path: log.to_path_buf(),
                why: "it is not a file with this name alone".into(),
            });
        }
        if self.switched {
            fchown(&out, Some(self.uid), Some(self.gid))
                .at("hand over to the server's user", log)?;
        }
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

    /// Writes a file that the server can read, in the place of what is there. Nothing is followed
    /// that lies there: the directory may be the server's.
    pub fn write(&self, path: &Path, text: &str) -> Result<()> {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        match fs::remove_file(&fresh) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).at("remove", &fresh);
            }
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)
            .at("write", &fresh)?;
        file.write_all(text.as_bytes()).at("write", &fresh)?;
        if self.switched {
            fchown(&file, None, Some(self.gid)).at("hand over to the server's group", &fresh)?;
            let mode = fs::Permissions::from_mode(0o640);
            file.set_permissions(mode).at("set the mode of", &fresh)?;
        }
        fs::rename(&fresh, path).at("replace", path)
    }

    /// Creates a directory that only the server (and root) can enter.
    pub fn create_dir(&self, path: &Path) -> Result<()> {
        self.make_dir(path, Some(self.uid))
    }

    /// Creates a directory whose files the server can use, and in which only the caller can make
    /// any.
    pub fn create_caller_dir(&self, path: &Path) -> Result<()> {
        self.make_dir(path, None)
    }

    /// Creates a directory, lets `fill` put into it what it needs, and only then hands it over:
    /// until then the server's user can neither add nor exchange anything there.
    pub fn create_dir_with(&self, path: &Path, fill: impl FnOnce() -> Result<()>) -> Result<()> {
        self.create_caller_dir(path)?;
        fill()?;
        match self.switched {
            true => fchown(open_dir(path)?, Some(self.uid), Some(self.gid))
                .at("hand over to the server's user", path),
            false => Ok(()),
        }
    }

    fn make_dir(&self, path: &Path, owner: Option<u32>) -> Result<()> {
        fs::create_dir(path).at("create the directory", path)?;
        let made = open_dir(path)?;
        let mode = if self.switched { 0o750 } else { 0o700 };
        let mode = fs::Permissions::from_mode(mode);
        made.set_permissions(mode).at("set the mode of", path)?;
        match self.switched {
            true => fchown(&made, owner, Some(self.gid)).at("hand over to the server's user", path),
            false => Ok(()),
        }
    }

    fn can_enter(&self, path: &Path, meta: &fs::Metadata) -> bool {
        if !self.switched {
            // The servers are what the caller is: the system knows its groups, and more.
            let asked = accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
            match asked {
                Ok(()) => return true,
                Err(Errno::ACCESS) => return false,
                Err(_) => {} // an old kernel may not know the question
            }
        }
        let folder = (meta.mode(), meta.uid(), meta.gid());
        may_enter(folder, self.uid, &self.groups)
    }
}

/// Opens the directory of this name, not one that a link there leads to.
fn open_dir(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::DIRECTORY).bits() as i32)
        .open(path)
        .at("open", path)
}

/// Whether a user with these groups may enter a folder of this mode, user and group.
fn may_enter((mode, owner, group): (u32, u32, u32), uid: u32, groups: &[u32]) -> bool {
    if uid == 0 {
        true
    } else if owner == uid {
        mode & 0o100 != 0
    } else if groups.contains(&group) {
        mode & 0o010 != 0
    } else {
        mode & 0o001 != 0
    }
}

/// The groups of a user, as a server gets them that is started as it: its own, and those of `/etc/group`
/// that name it.
fn groups_of(file: &str, name: &str, own: u32) -> Vec<u32> {
    let named = file.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        let mut members = fields.next()?.split(',');
        members.any(|member| member.trim() == name).then_some(gid)
    });
    [own].into_iter().chain(named).collect()
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
            Ok(meta) if meta.is_dir() && !user.can_enter(&so_far, &meta) => {
                return Ok(Some(so_far));
            }
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

    /// As root, the servers' user is another one.
    fn user() -> ServerUser {
        let switched = rustix::process::geteuid().is_root();
        let id = |own: u32| if switched { 65_534 } else { own };
        ServerUser {
            name: "other".into(),
            uid: id(rustix::process::geteuid().as_raw()),
            gid: id(rustix::process::getegid().as_raw()),
            groups: Vec::new(),
            switched,
        }
    }

    #[test]
    fn links_in_a_servers_directory_are_not_followed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (user, node) = (user(), dir.path().join("db1"));
        user.create_dir(&node).expect("made");
        let precious = dir.path().join("shadow");
        fs::write(&precious, "kept").expect("written");
        let before = fs::metadata(&precious).expect("it is there");
        for name in ["error.log", "my.cnf", "my.cnf.new"] {
            std::os::unix::fs::symlink(&precious, node.join(name)).expect("linked");
        }
        fs::hard_link(&precious, node.join("hard.log")).expect("linked");
        for name in ["error.log", "hard.log"] {
            let mut command = Command::new("true");
            let refused = user.surround(&mut command, &node, &node.join(name), ("A", "b".into()));
            assert!(refused.is_err(), "{name}");
        }
        user.write(&node.join("my.cnf"), "[mysqld]")
            .expect("written");
        let written = fs::symlink_metadata(node.join("my.cnf")).expect("it is there");
        assert!(written.is_file());
        let after = fs::metadata(&precious).expect("it is there");
        let facts = |m: &fs::Metadata| (m.uid(), m.gid(), m.mode(), m.len());
        assert_eq!(facts(&before), facts(&after));
    }

    #[test]
    fn a_directory_is_the_servers_only_when_it_is_filled() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (user, node) = (user(), dir.path().join("db1"));
        let owner = || fs::metadata(&node).expect("it is there").uid();
        user.create_dir_with(&node, || {
            assert_eq!(owner(), rustix::process::geteuid().as_raw());
            user.create_dir(&node.join("tmp"))
        })
        .expect("made");
        assert_eq!(owner(), user.uid);
        let failed = user.create_dir_with(&dir.path().join("db2"), || {
            Err(SandboxError::BadRequest("no".into()))
        });
        assert!(failed.is_err());
        let left = fs::metadata(dir.path().join("db2")).expect("it is there");
        assert_eq!(left.uid(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn what_holds_the_password_is_nobody_elses_business() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let user = user();
        let node = dir.path().join("db1");
        user.create_dir(&node).expect("made");
        user.write(&node.join("client.cnf"), "password")
            .expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        let expected = if user.switched {
            (0o750, 0o640)
        } else {
            (0o700, 0o600)
        };
        assert_eq!((mode(&node), mode(&node.join("client.cnf"))), expected);
        let own = ServerUser {
            switched: false,
            ..user
        };
        let other = dir.path().join("db2");
        own.create_dir(&other).expect("made");
        own.write(&other.join("client.cnf"), "password")
            .expect("written");
        assert_eq!(
            (mode(&other), mode(&other.join("client.cnf"))),
            (0o700, 0o600)
        );
    }

    #[test]
    fn groups_are_found_by_their_members() {
        let file = "root:x:0:\nbroken line\nmysql:x:105:\nwww:x:33:alice,mysql\ndata:x:900:mysqld,x\nbin:x:2:mysql\n";
        assert_eq!(groups_of(file, "mysql", 105), [105, 33, 2]);
        assert_eq!(groups_of("", "mysql", 105), [105]);
    }

    #[test]
    fn owner_groups_and_others_have_their_own_bits() {
        let folder = |mode| (mode, 10, 20);
        for (uid, groups, bit) in [
            (10, &[20, 30][..], 0o100),
            (11, &[20], 0o010),
            (11, &[30, 20], 0o010),
            (11, &[30], 0o001),
            (11, &[], 0o001),
        ] {
            assert!(may_enter(folder(bit), uid, groups), "{uid} {groups:?}");
            assert!(!may_enter(folder(0o777 & !bit), uid, groups), "{uid}");
            assert!(may_enter(folder(0), 0, groups), "root");
        }
    }

    #[test]
    fn a_closed_folder_is_named() {
        let user = ServerUser {
            name: "other".into(),
            uid: 4_000_000,
            gid: 4_000_000,
            groups: Vec::new(),
            switched: true,
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(!user.can_enter(dir.path(), &fs::metadata(dir.path()).expect("metadata")));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
        assert!(user.can_enter(dir.path(), &fs::metadata(dir.path()).expect("metadata")));
    }
}
