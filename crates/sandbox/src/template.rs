//! System tables made once per server version, then copied: a cluster starts
//! in seconds.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{IoContext, Result, SandboxError};
use crate::record::random_hex;
use crate::who::ServerUser;

/// The SQL user of every sandbox.
pub(crate) const SQL_USER: &str = "dromon";
/// Raised when the template's content changes.
const EDITION: u32 = 1;

/// A data directory with system tables, and the password of [`SQL_USER`] in it.
#[derive(Debug)]
pub(crate) struct Template {
    data: PathBuf,
    pub password: String,
}

/// The version line of the installed server.
///
/// # Errors
/// [`SandboxError::ProgramMissing`] when mariadbd is not installed.
pub fn server_version() -> Result<String> {
    let out = Command::new(program("mariadbd", "mariadb-server")?)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .at("run", Path::new("mariadbd"))?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// Finds an installed program, also where root's tools lie.
pub(crate) fn program(name: &str, package: &'static str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| {
            fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(|| SandboxError::ProgramMissing {
            program: name.to_string(),
            package,
        })
}

impl Template {
    /// The cached template of this server version, made if there is none.
    pub fn get(user: &ServerUser, version: &str) -> Result<Self> {
        let cache = cache_dir(user)?;
        let plain: String = version
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '.' {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let home = cache.join(format!("template-{EDITION}-{}-{plain}", user.name));
        if let Some(found) = Self::open(&home) {
            return Ok(found);
        }
        // Made aside and renamed into place: a reader never sees half of it,
        // and of two makers the first one wins.
        let aside = cache.join(format!("making-{}", random_hex(6)?));
        let made = Self::make(&aside, user).and_then(|()| match fs::rename(&aside, &home) {
            Ok(()) => Ok(()),
            Err(_) if home.join("password").exists() => Ok(()),
            Err(source) => Err(SandboxError::Io {
                what: "rename",
                path: aside.clone(),
                source,
            }),
        });
        if aside.exists() {
            fs::remove_dir_all(&aside).at("remove", &aside)?;
        }
        made?;
        Self::open(&home).ok_or_else(|| SandboxError::Io {
            what: "read",
            path: home,
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "the template vanished after it was made",
            ),
        })
    }

    fn open(home: &Path) -> Option<Self> {
        let password = fs::read_to_string(home.join("password")).ok()?;
        Some(Self {
            data: home.join("data"),
            password,
        })
    }

    fn make(aside: &Path, user: &ServerUser) -> Result<()> {
        let install = program("mariadb-install-db", "mariadb-server-core")?;
        fs::create_dir(aside).at("create the directory", aside)?;
        // The bootstrap server runs as its own user and must reach its files.
        let work = std::env::temp_dir().join(format!("dromon-install-{}", random_hex(6)?));
        user.create_dir(&work)?;
        let result = Self::install(&install, &work, aside, user);
        fs::remove_dir_all(&work).at("remove", &work)?;
        result
    }

    fn install(install: &Path, work: &Path, aside: &Path, user: &ServerUser) -> Result<()> {
        let password = random_hex(8)?;
        let sql = work.join("users.sql");
        let grants: String = ["localhost", "127.0.0.1"]
            .map(|host| {
                format!(
                    "CREATE USER {SQL_USER}@'{host}' IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO {SQL_USER}@'{host}' WITH GRANT OPTION;\n"
                )
            })
            .concat();
        // The bootstrap server knows no accounts until told to read them.
        user.write(&sql, &format!("FLUSH PRIVILEGES;\n{grants}"))?;
        let data = work.join("data");
        let mut command = Command::new(install);
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg("--auth-root-authentication-method=socket")
            .arg(format!(
                "--auth-root-socket-user={}",
                if user.switched { "root" } else { &user.name }
            ))
            .arg("--skip-test-db")
            .arg("--skip-name-resolve")
            .arg(format!("--extra-file={}", sql.display()))
            .stdin(Stdio::null());
        if user.switched {
            command.arg(format!("--user={}", user.name));
        }
        let out = command.output().at("run", install)?;
        if !out.status.success() || !data.join("mysql").is_dir() {
            let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&out.stderr));
            return Err(SandboxError::InstallDb {
                output: last_lines(&text, 15),
            });
        }
        copy_tree(&data, &aside.join("data"), None)?;
        let secret = aside.join("password");
        fs::write(&secret, password).at("write", &secret)
    }

    /// Copies the system tables to `target`, which must not exist.
    pub fn copy_to(&self, target: &Path, user: &ServerUser) -> Result<()> {
        copy_tree(&self.data, target, Some(user))
    }
}

fn cache_dir(user: &ServerUser) -> Result<PathBuf> {
    let base = if user.switched {
        PathBuf::from("/var/cache")
    } else if let Some(dir) = std::env::var_os("XDG_CACHE_HOME") {
        PathBuf::from(dir)
    } else {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".cache")
    };
    let dir = base.join("dromon");
    fs::create_dir_all(&dir).at("create the directory", &dir)?;
    // The password inside is nobody else's business.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).at("set the mode of", &dir)?;
    Ok(dir)
}

/// Copies directories and regular files, handing them to `owner`.
pub(crate) fn copy_tree(from: &Path, to: &Path, owner: Option<&ServerUser>) -> Result<()> {
    fs::create_dir(to).at("create the directory", to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).at("set the mode of", to)?;
    for entry in fs::read_dir(from).at("read the directory", from)? {
        let entry = entry.at("read the directory", from)?;
        let target = to.join(entry.file_name());
        if entry
            .file_type()
            .at("read the type of", &entry.path())?
            .is_dir()
        {
            copy_tree(&entry.path(), &target, owner)?;
        } else {
            fs::copy(entry.path(), &target).at("copy to", &target)?;
            if let Some(user) = owner.filter(|u| u.switched) {
                chown(&target, Some(user.uid), Some(user.gid))
                    .at("hand over to the server's user", &target)?;
            }
        }
    }
    match owner {
        Some(user) => user.own(to),
        None => Ok(()),
    }
}

/// The last `count` non-empty lines of `text`.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..]
        .iter()
        .map(|l| format!("    {l}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let error = program("no-such-program-here", "some-package").expect_err("it does not exist");
        assert_eq!(
            error.to_string(),
            "no-such-program-here was not found. Install it: apt-get install some-package"
        );
        assert!(program("sh", "dash").is_ok());
    }

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
    fn only_the_last_lines_are_shown() {
        assert_eq!(last_lines("a\n\nb\nc\n", 2), "    b\n    c");
        assert_eq!(last_lines("", 2), "");
    }
}
