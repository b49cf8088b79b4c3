//! System tables made once per server version (and settings that count only as they
//! are made), then copied: a cluster starts in seconds.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::{Setting, plain};
use crate::copy::copy_tree;
use crate::error::{IoContext, Result, SandboxError};
use crate::record::random_hex;
use crate::who::{ServerUser, reachable_by_server};

/// The SQL user of every sandbox.
pub(crate) const SQL_USER: &str = "dromon";
/// Raised when the template's content changes.
const EDITION: u32 = 1;

/// What a storage engine is given as it is made, and must be given ever after.
const OF_THE_MAKING: [&str; 3] = [
    "innodb_page_size",
    "innodb_data_file_path",
    "innodb_undo_tablespaces",
];

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
    /// The cached template of this server version for servers with these settings, made if there
    /// is none.
    pub fn get(user: &ServerUser, version: &str, settings: &[Setting]) -> Result<Self> {
        let cache = cache_dir(user)?;
        let options = of_the_making(settings);
        let named = options.iter().fold(version.to_owned(), |all, o| all + o);
        let plain: String = named
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
        let made =
            Self::make(&aside, user, &options).and_then(|()| match fs::rename(&aside, &home) {
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

    fn make(aside: &Path, user: &ServerUser, options: &[String]) -> Result<()> {
        let install = program("mariadb-install-db", "mariadb-server-core")?;
        fs::create_dir(aside).at("create the directory", aside)?;
        // The bootstrap server runs as its own user and must reach its files.
        let work =
            work_place(std::env::temp_dir()).join(format!("dromon-install-{}", random_hex(6)?));
        user.create_dir(&work)?;
        let result = Self::install(&install, &work, aside, user, options);
        fs::remove_dir_all(&work).at("remove", &work)?;
        result
    }

    fn install(
        install: &Path,
        work: &Path,
        aside: &Path,
        user: &ServerUser,
        options: &[String],
    ) -> Result<()> {
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
            .args(options)
            .current_dir(work)
            .env("TMPDIR", work)
            .stdin(Stdio::null());
        // As that user altogether: what root did in a directory of its could be led elsewhere.
        if user.switched {
            command.uid(user.uid).gid(user.gid);
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

/// Where the servers' user can work for a moment: a caller's own temporary directory may be closed.
/// Those settings as options, each as it was given last, in one order.
fn of_the_making(settings: &[Setting]) -> Vec<String> {
    let last = |wanted: &&str| {
        let given = settings.iter().rev();
        given
            .filter(|setting| plain(&setting.name) == **wanted)
            .find_map(|setting| Some(format!("--{wanted}={}", setting.value.as_ref()?)))
    };
    OF_THE_MAKING.iter().filter_map(last).collect()
}

fn work_place(usual: PathBuf) -> PathBuf {
    let others = ["/tmp", "/var/tmp"].map(PathBuf::from);
    let mut all = [usual.clone()].into_iter().chain(others);
    all.find(|dir| dir.is_dir() && reachable_by_server(dir))
        .unwrap_or(usual)
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
    use std::os::unix::fs::MetadataExt;

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
    fn system_tables_are_made_by_the_user_whose_they_are() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let aside = dir.path().join("aside");
        let Ok(user) = ServerUser::find() else {
            panic!("the servers' user is missing: install mariadb-server");
        };
        Template::make(&aside, &user, &["--innodb_page_size=4096".into()]).expect("made");
        let made = Template::open(&aside).expect("whole");
        let to = dir.path().join("data");
        made.copy_to(&to, &user).expect("copied");
        for name in ["", "ibdata1", "mysql", "mysql/global_priv.frm"] {
            let owner = fs::metadata(to.join(name)).expect(name).uid();
            assert_eq!(owner, user.uid, "{name}");
        }
        // The size stands in the flags of the first page: 512 bytes times two to that.
        let head = fs::read(to.join("ibdata1")).expect("there");
        assert_eq!(head[38 + 16..38 + 20], [0, 0, 0, 0x13], "4k, in full_crc32");
    }

    #[test]
    fn what_an_engine_is_made_with_is_taken_from_the_settings() {
        let of = |given: &[&str]| {
            let settings: Vec<Setting> = given.iter().map(|s| s.parse().expect(s)).collect();
            of_the_making(&settings)
        };
        assert!(of(&["max_connections=5", "skip-slave-start"]).is_empty());
        assert_eq!(
            of(&["innodb-page-size=4k", "Innodb_Page_Size=8k", "port=1"]),
            ["--innodb_page_size=8k"]
        );
        assert_eq!(
            of(&["innodb_page_size=4k", "innodb_data_file_path=a:1M"]),
            ["--innodb_page_size=4k", "--innodb_data_file_path=a:1M"]
        );
    }

    #[test]
    fn a_closed_place_for_temporary_files_is_passed_over() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let closed = dir.path().to_path_buf();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("closed");
        let user = ServerUser::find().expect("mariadb-server is installed");
        let expected = match user.switched {
            true => PathBuf::from("/tmp"),
            false => closed.clone(),
        };
        assert_eq!(work_place(closed), expected);
        let gone = dir.path().join("gone");
        assert_eq!(work_place(gone), PathBuf::from("/tmp"));
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        assert_eq!(last_lines("a\n\nb\nc\n", 2), "    b\n    c");
        assert_eq!(last_lines("", 2), "");
    }
}
