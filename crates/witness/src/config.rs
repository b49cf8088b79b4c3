//! What a witness is told: garbd's options, and its file of settings.

use std::path::{Path, PathBuf};

/// Where the log lies if nobody says.
pub const DEFAULT_DIR: &str = "/var/lib/dromon-witness";
/// The name if nobody says; garbd's.
const DEFAULT_NAME: &str = "garb";

/// What its file can say.
const KEYS: &[&str] = &[
    "group", "address", "options", "name", "dir", "workdir", "log", "daemon",
];

/// What the command line or a file says; nothing is checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// `--group`: the cluster's name.
    pub group: Option<String>,
    /// `--address`: `gcomm://` and the members.
    pub address: Option<String>,
    /// `--options`: provider options.
    pub options: Option<String>,
    /// `--name`: how members call it.
    pub name: Option<String>,
    /// `--dir`, `--workdir`: where the log lies.
    pub dir: Option<PathBuf>,
    /// `--log`: a file for its messages.
    pub log: Option<PathBuf>,
    /// `--daemon`.
    pub daemon: bool,
    /// `--force-primary`.
    pub force_primary: bool,
}

/// What a witness runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The cluster's name.
    pub group: String,
    /// The cluster's address.
    pub address: String,
    /// Provider options.
    pub options: String,
    /// Its name.
    pub name: String,
    /// Where the log lies.
    pub dir: PathBuf,
    /// Its messages; none: standard error, or the system's log for a daemon.
    pub log: Option<PathBuf>,
    /// Leave the terminal.
    pub daemon: bool,
    /// Go on without a majority once.
    pub force_primary: bool,
}

/// The settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An option that must be there is not.
    #[error(
        "no {what} given. Write --{option} {example} (or '{option} = {example}' in the file of --cfg)"
    )]
    Missing {
        /// In words.
        what: &'static str,
        /// The option.
        option: &'static str,
        /// How it looks.
        example: &'static str,
    },
    /// The file cannot be read.
    #[error("the settings file {} cannot be read: {why}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// A line of it makes no sense.
    #[error("{}, line {line}: {why}", file.display())]
    Line {
        /// Which file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl Given {
    /// Reads a file of settings: garbd's `key = value` lines, or the variables
    /// of its service script (`GALERA_NODES`, `GALERA_GROUP`, ...).
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] and [`ConfigError::Line`].
    pub fn read(file: &Path) -> Result<Given, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|e| ConfigError::Unreadable {
            file: file.to_owned(),
            why: e.to_string(),
        })?;
        Given::parse(&text, file)
    }

    /// Takes the text of such a file.
    ///
    /// # Errors
    /// [`ConfigError::Line`].
    pub fn parse(text: &str, file: &Path) -> Result<Given, ConfigError> {
        let mut given = Given::default();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            given.line(line).map_err(|why| ConfigError::Line {
                file: file.to_owned(),
                line: n + 1,
                why,
            })?;
        }
        Ok(given)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let Some((key, written)) = line.split_once('=') else {
            return Err(no_setting(line, false));
        };
        let (key, written) = (key.trim(), written.trim());
        let value = unquoted(written);
        let text = || Some(value.to_owned());
        let some = |v: &str| Some(v.to_owned()).filter(|v| !v.is_empty());
        match key {
            "group" => self.group = text(),
            "address" => self.address = text(),
            "options" => self.options = text(),
            "name" => self.name = text(),
            "dir" | "workdir" => self.dir = Some(value.into()),
            "log" => self.log = Some(value.into()),
            "daemon" => {
                self.daemon = match value.to_ascii_lowercase().as_str() {
                    "1" | "yes" | "true" | "on" => true,
                    "0" | "no" | "false" | "off" => false,
                    _ => return Err(format!("daemon = {value}: write 1 or 0")),
                }
            }
            "GALERA_GROUP" => self.group = some(value),
            "GALERA_NODES" => {
                let nodes: Vec<_> = value.split_whitespace().collect();
                self.address = (!nodes.is_empty()).then(|| format!("gcomm://{}", nodes.join(",")));
            }
            "GALERA_OPTIONS" => self.options = some(value),
            "LOG_FILE" => self.log = some(value).map(PathBuf::from),
            "WORK_DIR" => self.dir = some(value).map(PathBuf::from),
            "sst" | "donor" | "recv-script" => {
                return Err(format!(
                    "'{key}' is not offered: a witness takes no copy of the data. Take a backup with mariadb-backup on \
                     a data node"
                ));
            }
            _ => return Err(no_setting(key, true)),
        }
        match has_comment(written) {
            true => Err(format!(
                "{key}: a comment stands on a line of its own; behind a value it would be part of it. If it is, put the \
                 whole value in quotes"
            )),
            false => Ok(()),
        }
    }

    /// What this says, and where it says nothing, what `file` says.
    #[must_use]
    pub fn or(self, file: Given) -> Given {
        Given {
            group: self.group.or(file.group),
            address: self.address.or(file.address),
            options: self.options.or(file.options),
            name: self.name.or(file.name),
            dir: self.dir.or(file.dir),
            log: self.log.or(file.log),
            daemon: self.daemon || file.daemon,
            force_primary: self.force_primary || file.force_primary,
        }
    }

    /// Checks that what must be said is said, and fills in the rest.
    ///
    /// # Errors
    /// [`ConfigError::Missing`].
    pub fn settle(self) -> Result<Config, ConfigError> {
        let there = |v: Option<String>, what, option, example| {
            v.filter(|v| !v.trim().is_empty())
                .ok_or(ConfigError::Missing {
                    what,
                    option,
                    example,
                })
        };
        Ok(Config {
            group: there(self.group, "cluster name is", "group", "my_cluster")?,
            address: there(
                self.address,
                "cluster address is",
                "address",
                "gcomm://10.0.0.1,10.0.0.2",
            )?,
            options: self.options.unwrap_or_default(),
            name: self
                .name
                .filter(|n| !n.is_empty())
                .unwrap_or_else(|| DEFAULT_NAME.into()),
            dir: self.dir.unwrap_or_else(|| DEFAULT_DIR.into()),
            log: self.log,
            daemon: self.daemon,
            force_primary: self.force_primary,
        })
    }
}

/// What is wrong with a line, or with what is before its =. In a file that is not of settings that may be a
/// secret, of letters and digits, or with an = of base64 at its end: it is repeated only if it is a name
/// that was mistyped.
fn no_setting(key: &str, equals: bool) -> String {
    let first = key.split(|c: char| c.is_whitespace() || c == ':').next();
    if let Some(key) = KEYS.iter().find(|key| Some(**key) == first) {
        return format!("'{key}' has no = behind it; write {key} = value");
    }
    if !equals {
        return "this is not a setting; write key = value. It is not repeated, as it may be a secret"
            .into();
    }
    let fits = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '-');
    let key = match (1..=32).contains(&key.len()) && key.chars().all(fits) {
        true => format!("'{key}'"),
        false => "what stands before = (not repeated, as it may be a secret)".into(),
    };
    let known = KEYS.join(", ");
    format!("{key} is not a setting of a witness. It knows {known}")
}

/// Whether something stands behind a value that looks like a comment, and not in quotes around the whole.
fn has_comment(written: &str) -> bool {
    let inner = unquoted(written);
    // With one more of them inside these are not its ends.
    let quoted = inner.len() < written.len() && !inner.contains(&written[..1]);
    let mut before = ' ';
    !quoted
        && written.chars().any(|c| {
            let begins = c == '#' && before.is_whitespace();
            before = c;
            begins
        })
}

/// Without the quotes around it.
fn unquoted(text: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Given, ConfigError> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("garb.cnf");
        std::fs::write(&file, text).expect("written");
        Given::read(&file)
    }

    #[test]
    fn garbds_file() {
        let given = read(
            "# arbitrator\n\ngroup = shop\naddress=gcomm://10.0.0.1,10.0.0.2?gmcast.segment=1\n\
             options = gmcast.listen_addr=tcp://0.0.0.0:4667;socket.ssl=yes\nworkdir = /var/lib/w\nlog = \"/var/log/w.log\"\n\
             daemon = 1\n",
        )
        .expect("a good file");
        let config = given.settle().expect("all is there");
        assert_eq!(config.group, "shop");
        assert_eq!(config.address, "gcomm://10.0.0.1,10.0.0.2?gmcast.segment=1");
        assert_eq!(
            config.options,
            "gmcast.listen_addr=tcp://0.0.0.0:4667;socket.ssl=yes"
        );
        assert_eq!(config.name, "garb");
        assert_eq!(config.dir, Path::new("/var/lib/w"));
        assert_eq!(config.log.as_deref(), Some(Path::new("/var/log/w.log")));
        assert!(config.daemon);
    }

    #[test]
    fn the_file_of_its_service() {
        let given = read(
            "GALERA_NODES=\"10.0.0.1:4567 10.0.0.2:4567\"\nGALERA_GROUP=\"shop\"\nGALERA_OPTIONS=\"\"\nLOG_FILE=\"\"\n",
        )
        .expect("a good file");
        assert_eq!(
            given.address.as_deref(),
            Some("gcomm://10.0.0.1:4567,10.0.0.2:4567")
        );
        let config = given.settle().expect("all is there");
        assert_eq!(
            (config.log, config.options.as_str(), config.dir.as_path()),
            (None, "", Path::new(DEFAULT_DIR))
        );
    }

    /// The indented blocks of a page that follow a line with `words`, one after the other.
    fn block<'a>(page: &'a str, words: &str) -> Vec<&'a str> {
        let lines = page.lines().skip_while(|line| !line.contains(words));
        let lines = lines.skip(1).skip_while(|line| !line.starts_with("    "));
        let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
        lines.map(str::trim).collect()
    }

    #[test]
    fn what_the_page_says_of_a_service_fits_together() {
        let page = include_str!("../../../docs/witness.md");
        let first = include_str!("../../../docs/first-cluster.md");
        let config = read(&block(page, "`/etc/dromon-witness.cnf`:").join("\n"))
            .and_then(Given::settle)
            .expect("the page's file is good");
        assert_eq!(config.dir, Path::new(DEFAULT_DIR));
        let unit = block(page, "`/etc/systemd/system/dromon-witness.service`");
        let value = |key: &str| {
            let found = unit.iter().find_map(|line| line.strip_prefix(key));
            found.unwrap_or_else(|| panic!("{key} in {unit:?}"))
        };
        let start = value("ExecStart=");
        let program = start.split(' ').next().expect("a word");
        for page in [page, first] {
            let installed = format!("install -m 755 target/release/dromon {program}");
            assert!(page.contains(&installed), "{installed}");
        }
        assert!(start.ends_with("--cfg /etc/dromon-witness.cnf"), "{start}");
        let user = value("User=");
        let made = page.lines().find(|line| line.contains("useradd"));
        assert!(made.is_some_and(|line| line.ends_with(user)), "{user}");
        let state = Path::new("/var/lib").join(value("StateDirectory="));
        assert_eq!(state, Path::new(DEFAULT_DIR));
        assert_eq!(value("ExecReload="), "/bin/kill -HUP $MAINPID");
        // What is done by hand leaves nothing that the service cannot read.
        let by_hand = block(page, "If A never comes back").join("\n");
        let forced = format!("runuser -u {user} -- {start} --force-primary");
        let said = format!("systemctl stop dromon-witness\n{forced}");
        assert_eq!(by_hand.trim(), said);
        let back = block(page, "**Once B is `Synced`**").join("\n");
        assert_eq!(back.trim(), "systemctl start dromon-witness");
    }

    #[test]
    fn the_command_line_comes_first() {
        let file = read("group = a\nname = x\n").expect("a good file");
        let line = Given {
            group: Some("b".into()),
            ..Given::default()
        };
        let both = line.or(file);
        assert_eq!(
            (both.group.as_deref(), both.name.as_deref()),
            (Some("b"), Some("x"))
        );
    }

    /// Another file than that of the settings: what it holds goes to the terminal, or to the journal.
    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        for (line, secret) in [
            ("hunter", "hunter"),
            ("hunter2:x", "hunter2"),
            ("c2VjcmV0cw==", "c2VjcmV0cw"),
            ("options socket.ssl=yes hunter2", "hunter2"),
            ("name hunter2", "hunter2"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(", line 1: "), "{error}");
            assert!(!error.contains(secret), "{line}: {error}");
        }
    }

    #[test]
    fn comments_stand_alone() {
        for line in [
            "dir = /d # main",
            "workdir=/d\t#main",
            "log = # none",
            "options = a=b; #c",
            "GALERA_GROUP=\"shop\" # the shop",
            "name = \"a\" # \"b\"",
        ] {
            let said = read(&format!("# all\n{line}\n"))
                .expect_err(line)
                .to_string();
            let words = [", line 2: ", "line of its own", "in quotes"];
            assert!(words.iter().all(|w| said.contains(w)), "{said}");
        }
        for (line, dir) in [
            ("dir = /d#main", "/d#main"),
            ("dir = \"/d # main\"", "/d # main"),
            ("dir = '/d # main'", "/d # main"),
        ] {
            let given = read(line).expect(line);
            assert_eq!(given.dir.as_deref(), Some(Path::new(dir)));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("group\n", "line 1: 'group' has no = behind it"),
            ("hello\n", "line 1: this is not a setting"),
            ("options a=b\n", "line 1: 'options' has no = behind it"),
            ("\n\ngruop = x\n", "line 3: 'gruop' is not a setting"),
            ("sst = backup\n", "takes no copy"),
            ("daemon = maybe\n", "write 1 or 0"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
        let missing = Given::read(Path::new("/nowhere/garb.cnf")).expect_err("no file");
        assert!(missing.to_string().contains("/nowhere/garb.cnf"));
        let none = Given::default().settle().expect_err("no group").to_string();
        assert!(none.contains("--group"), "{none}");
        let group = Given {
            group: Some("g".into()),
            address: Some(" ".into()),
            ..Given::default()
        };
        let none = group.settle().expect_err("no address").to_string();
        assert!(none.contains("--address gcomm://"), "{none}");
    }
}
