//! What a relay is told: on the command line, and in a file of `key = value` lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dromon_binlog::BinlogState;

use crate::http::Watch;
use crate::net::{ClientTls, ServerTls, TlsError, TlsKeys, TlsWish};
use crate::pull::{Source, Wish};
use crate::serve::{Account, Policy, ServeOptions};
use crate::store::{Limits, StoreOptions, file_number};
use crate::wire::ZSTD_LEVEL_MAX;

/// What was said; nothing is checked yet. The last word of a key counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    said: Vec<Said>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    key: String,
    value: String,
    /// File and line, or the command line.
    place: String,
}

/// What a relay runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the files lie.
    pub dir: PathBuf,
    /// Where replicas connect to.
    pub listen: String,
    /// Messages; none: standard error.
    pub log: Option<PathBuf>,
    /// Where events come from.
    pub source: Source,
    /// How they are stored.
    pub store: StoreOptions,
    /// Where a relay without files begins.
    pub start: BinlogState,
    /// How they are served.
    pub serve: ServeOptions,
    /// What is kept.
    pub keep: Limits,
    /// How long something that was sent counts as needed.
    pub hold: Duration,
    /// A replica that was away for so long is forgotten.
    pub forget: Option<Duration>,
    /// Where HTTP is answered.
    pub http: Option<String>,
    /// As whom replicas are asked what they have applied.
    pub watch: Option<Watch>,
}

impl Config {
    /// Whether anybody shall get hints.
    pub fn hints(&self) -> bool {
        let serve = &self.serve;
        let mut all = serve.policies.values().chain([&serve.policy]);
        all.any(|policy| *policy != Policy::Pass)
    }
}

/// The settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting that must be there is not.
    #[error(
        "no {key} given. Write '{key} = {example}' in the file of --config, or --set {key}={example}"
    )]
    Missing {
        /// Which.
        key: &'static str,
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
    /// Something in it makes no sense.
    #[error("{place}: {why}")]
    Bad {
        /// File and line.
        place: String,
        /// What.
        why: String,
    },
}

/// Every setting, what it is for, and its default.
pub const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "primary",
        "host:port of the primary, or of another relay",
        "",
    ),
    ("user", "account there; it needs REPLICATION SLAVE", ""),
    ("password", "its password", "none"),
    ("password_file", "file with its password, instead", "none"),
    ("dir", "directory for the files", ""),
    ("server_id", "number of its own, as every server has", ""),
    (
        "account",
        "name:password of a replica; may be repeated. A password may be * and 40 digits, as servers store it",
        "",
    ),
    ("listen", "address and port for replicas", "127.0.0.1:3307"),
    (
        "follow",
        "gtid: by GTIDs of MariaDB; file: by file and byte, for MySQL and others without: their files are mirrored",
        "gtid",
    ),
    (
        "start",
        "GTID position to begin behind (follow = file: the primary's file to begin with), if there are no files yet",
        "the beginning",
    ),
    ("log", "file for messages", "standard error"),
    (
        "log_bin",
        "beginning of the names of its files",
        "relay-bin",
    ),
    ("file_size", "a file of this size gets a successor", "256M"),
    (
        "memory",
        "newest events in memory, for all replicas together",
        "32M",
    ),
    (
        "keep_size",
        "purge the oldest files above this size in all",
        "none",
    ),
    (
        "keep_age",
        "purge files whose newest transaction is older",
        "none",
    ),
    (
        "keep_size_hard",
        "purge above this size even what a replica needs",
        "none",
    ),
    (
        "hold",
        "keep what a connected replica was sent for so long",
        "1h",
    ),
    (
        "forget",
        "forget replicas that were away for so long",
        "never",
    ),
    (
        "semi_sync",
        "acknowledge to the primary what is on the disk",
        "on",
    ),
    (
        "heartbeat",
        "how often to hear from a primary that has nothing to send",
        "1s",
    ),
    (
        "dead_after",
        "silence of the primary after which it counts as dead",
        "5s",
    ),
    (
        "backoff_max",
        "longest pause between attempts to connect",
        "10s",
    ),
    (
        "write_timeout",
        "a replica that takes nothing for so long is disconnected",
        "60s",
    ),
    (
        "congestion",
        "TCP congestion control towards replicas, as bbr; system: its own",
        "bbr, if the system has it",
    ),
    ("connections", "most connections at a time", "500"),
    (
        "zstd",
        "level (1 to 9) at which another relay shall compress what this one pulls; off: not asked for and not offered",
        "3",
    ),
    (
        "policy",
        "what parallel replicas may run at once: pass (as the primary says), group (commit ids of MariaDB) or logical_clock (of \
         MySQL 5.7 and later, with follow = file); or SERVER_ID:group and so on for one replica; may be repeated",
        "pass",
    ),
    (
        "http",
        "address and port for /metrics, /status.json, /replica/NAME",
        "off",
    ),
    (
        "watch_user",
        "account on all replicas, to ask them what they have applied",
        "none",
    ),
    ("watch_password", "its password", "none"),
    (
        "watch_password_file",
        "file with its password, instead",
        "none",
    ),
    (
        "watch_tls",
        "off; ca: encrypt, replicas' certificates must be signed by watch_tls_ca; name: and be for the address",
        "off",
    ),
    (
        "watch_tls_ca",
        "certificates (PEM) of who may sign those of replicas",
        "none",
    ),
    (
        "tls_cert",
        "certificate (PEM) for replicas that ask for TLS",
        "none",
    ),
    ("tls_key", "its key", "none"),
    (
        "tls_client_ca",
        "a replica must show a certificate that one of these (PEM) signed",
        "none",
    ),
    ("tls_required", "let nobody in without TLS", "off"),
    (
        "primary_tls",
        "off; ca: encrypt, the primary's certificate must be signed by primary_tls_ca; name: and be for the name of primary",
        "off",
    ),
    (
        "primary_tls_ca",
        "certificates (PEM) of who may sign the primary's",
        "none",
    ),
    (
        "primary_tls_cert",
        "certificate that is shown to the primary",
        "none",
    ),
    ("primary_tls_key", "its key", "none"),
    (
        "report_host",
        "name for the primary's SHOW SLAVE HOSTS",
        "none",
    ),
];

/// Of the settings above, those for TLS towards the primary.
const PRIMARY_TLS: TlsKeys = TlsKeys {
    mode: "primary_tls",
    ca: "primary_tls_ca",
    cert: "primary_tls_cert",
    key: "primary_tls_key",
};

impl Given {
    /// Reads a file of settings.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`], [`ConfigError::Bad`].
    pub fn read(file: &Path) -> Result<Given, ConfigError> {
        let text = fs::read_to_string(file).map_err(|e| ConfigError::Unreadable {
            file: file.to_owned(),
            why: e.to_string(),
        })?;
        let mut given = Given::default();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}, line {}", file.display(), n + 1);
            given.line(line, place)?;
        }
        Ok(given)
    }

    /// Adds `key=value`, said at a place.
    ///
    /// # Errors
    /// [`ConfigError::Bad`].
    pub fn line(&mut self, line: &str, place: String) -> Result<(), ConfigError> {
        let Some((key, value)) = line.split_once('=') else {
            let why = format!("'{line}' is not a setting; write key = value");
            return Err(ConfigError::Bad { place, why });
        };
        let (key, value) = (key.trim(), value.trim());
        if !SETTINGS.iter().any(|(name, _, _)| *name == key) {
            let names: Vec<&str> = SETTINGS.iter().map(|(name, _, _)| *name).collect();
            let why = format!(
                "'{key}' is not a setting of a relay. It knows {}",
                names.join(", ")
            );
            return Err(ConfigError::Bad { place, why });
        }
        self.said.push(Said {
            key: key.to_owned(),
            value: value.to_owned(),
            place,
        });
        Ok(())
    }

    /// What `more` says, too, and first.
    #[must_use]
    pub fn and(mut self, more: Given) -> Given {
        self.said.extend(more.said);
        self
    }

    fn get(&self, key: &str) -> Option<&Said> {
        let said = self.said.iter().rev().find(|s| s.key == key)?;
        (!said.value.is_empty()).then_some(said)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(|s| s.value.clone())
    }

    fn must(&self, key: &'static str, example: &'static str) -> Result<String, ConfigError> {
        self.text(key).ok_or(ConfigError::Missing { key, example })
    }

    fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(key)
            .map(|said| {
                parse(&said.value).map_err(|why| ConfigError::Bad {
                    place: said.place.clone(),
                    why: format!("{key} = {}: {why}", said.value),
                })
            })
            .transpose()
    }

    /// Checks that what must be said is said, and fills in the rest.
    ///
    /// # Errors
    /// All of [`ConfigError`].
    pub fn settle(&self) -> Result<Config, ConfigError> {
        let address = self.must("primary", "db1:3306")?;
        if !address.contains(':') {
            return Err(self.bad("primary", "write host:port, as in db1:3306"));
        }
        let server_id = match self.parsed("server_id", number)? {
            None => {
                return Err(ConfigError::Missing {
                    key: "server_id",
                    example: "101",
                });
            }
            Some(0) => return Err(self.bad("server_id", "it must be above 0")),
            Some(id) => id,
        };
        let zstd = self.parsed("zstd", zstd)?.unwrap_or(Some(3));
        let listen = self
            .text("listen")
            .unwrap_or_else(|| "127.0.0.1:3307".into());
        let Some(port) = listen
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
        else {
            return Err(self.bad("listen", "write address:port, as in 0.0.0.0:3307"));
        };
        let heartbeat = self.duration("heartbeat", 1)?;
        let dead_after = self.duration("dead_after", 5)?;
        if dead_after <= heartbeat {
            return Err(self.bad(
                "dead_after",
                "it must be longer than heartbeat, better three times as long",
            ));
        }
        let tls = self.primary_tls()?;
        let watch_tls = self.watch_tls()?;
        if watch_tls.is_some() && self.get("watch_user").is_none() {
            return Err(self.bad("watch_tls", "it has no effect: there is no watch_user"));
        }
        let mirror = self.parsed("follow", follow)?.unwrap_or(false);
        let (policy, policies) = self.policies(mirror)?;
        let server_tls = self.server_tls()?;
        let tls_required = self.parsed("tls_required", switch)?.unwrap_or(false);
        if tls_required && server_tls.is_none() {
            return Err(self.bad("tls_required", "nobody could come in: there is no tls_cert"));
        }
        let http = self.text("http").filter(|http| http != "off");
        if http.as_ref().is_some_and(|http| !http.contains(':')) {
            return Err(self.bad("http", "write address:port, as in 127.0.0.1:9307"));
        }
        let defaults = StoreOptions::default();
        let prefix = self.text("log_bin").unwrap_or(defaults.prefix);
        if prefix.contains(['/', ' ', '\'']) || prefix.len() > 200 {
            return Err(self.bad("log_bin", "it must be a file name without a directory"));
        }
        let file_max = self.parsed("file_size", size)?.unwrap_or(defaults.file_max);
        if !(4096..=3 << 30).contains(&file_max) {
            return Err(self.bad("file_size", "it must be between 4K and 3G"));
        }
        if mirror && self.get("watch_user").is_some() {
            let why =
                "with follow = file replicas have no GTIDs to ask for; what they were sent counts";
            return Err(self.bad("watch_user", why));
        }
        let start_file = |name: &str| {
            file_number(&prefix, name).ok_or(format!(
                "with follow = file write the name of a file, as {prefix}.000001; log_bin is what stands before the dot"
            ))
        };
        let start_file = match mirror {
            true => self.parsed("start", start_file)?,
            false => None,
        };
        Ok(Config {
            dir: self.must("dir", "/var/lib/dromon-relay")?.into(),
            listen,
            log: self.text("log").map(PathBuf::from),
            source: Source {
                address,
                wish: Wish {
                    user: self.must("user", "repl")?,
                    password: self.password("password", "password_file")?,
                    tls: tls.is_some(),
                    server_id,
                    report_host: self.text("report_host").unwrap_or_default(),
                    report_port: port,
                    heartbeat,
                    semi_sync: self.parsed("semi_sync", switch)?.unwrap_or(true),
                    zstd,
                    position: String::new(),
                    file: None,
                },
                tls,
                dead_after,
                backoff_max: self.duration("backoff_max", 10)?,
                start_file,
            },
            store: StoreOptions {
                prefix,
                file_max,
                tail_max: self
                    .parsed("memory", size)?
                    .map_or(defaults.tail_max, |m| m as usize),
                server_id,
                mirror,
                ..defaults
            },
            start: match mirror {
                true => BinlogState::new(),
                false => self
                    .parsed("start", |text| {
                        text.parse::<BinlogState>().map_err(|e| e.to_string())
                    })?
                    .unwrap_or_default(),
            },
            serve: ServeOptions {
                server_id,
                accounts: self.accounts()?,
                policy,
                policies,
                congestion: self.text("congestion"),
                tls: server_tls,
                tls_required,
                zstd: zstd.is_some(),
                connections_max: self.parsed("connections", number)?.unwrap_or(500) as usize,
                write_timeout: self.duration("write_timeout", 60)?,
                heartbeat: Duration::from_secs(30),
            },
            keep: Limits {
                size: self.parsed("keep_size", size)?,
                age: self.parsed("keep_age", duration)?.map(|d| d.as_secs()),
                size_hard: self.parsed("keep_size_hard", size)?,
            },
            hold: self.duration("hold", 3600)?,
            forget: self.parsed("forget", duration)?,
            http,
            watch: match self.text("watch_user") {
                None => None,
                Some(user) => Some(Watch {
                    user,
                    password: self.password("watch_password", "watch_password_file")?,
                    tls: watch_tls,
                }),
            },
        })
    }

    /// For all, and for some. `mirror`: files are mirrored.
    fn policies(&self, mirror: bool) -> Result<(Policy, BTreeMap<u32, Policy>), ConfigError> {
        let mut all = Policy::Pass;
        let mut policies = BTreeMap::new();
        for said in self.said.iter().filter(|s| s.key == "policy") {
            let bad = |why: &str| ConfigError::Bad {
                place: said.place.clone(),
                why: format!("policy = {}: {why}", said.value),
            };
            let (id, word) = match said.value.split_once(':') {
                None => (None, said.value.as_str()),
                Some((id, word)) => (
                    Some(number(id.trim()).map_err(|why| bad(&why))?),
                    word.trim(),
                ),
            };
            let policy = match word {
                "pass" => Policy::Pass,
                "group" if mirror => {
                    return Err(bad(
                        "it is for MariaDB's GTIDs; mirrored files (follow = file) have none. Write pass, or for MySQL 5.7 and \
                         later logical_clock",
                    ));
                }
                "group" => Policy::Group,
                "logical_clock" if !mirror => {
                    return Err(bad(
                        "it is for MySQL 5.7 and later, whose files are mirrored (follow = file). For MariaDB (follow = gtid) write \
                         pass or group",
                    ));
                }
                "logical_clock" => Policy::LogicalClock,
                _ => return Err(bad("write pass, group or logical_clock")),
            };
            match id {
                None => all = policy,
                Some(id) => {
                    policies.insert(id, policy);
                }
            }
        }
        Ok((all, policies))
    }

    fn file(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    fn server_tls(&self) -> Result<Option<ServerTls>, ConfigError> {
        let clients = self.file("tls_client_ca");
        match (self.file("tls_cert"), self.file("tls_key")) {
            (None, None) if clients.is_some() => Err(self.bad(
                "tls_client_ca",
                "it has no effect: there is no tls_cert, so nobody can come with TLS",
            )),
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => ServerTls::load(&cert, &key, clients.as_deref())
                .map(Some)
                .map_err(|e| self.unusable(&e)),
            (Some(_), None) => Err(self.bad("tls_cert", "there is no tls_key with it")),
            (None, Some(_)) => Err(self.bad("tls_key", "there is no tls_cert with it")),
        }
    }

    fn watch_tls(&self) -> Result<Option<ClientTls>, ConfigError> {
        let named = match self.text("watch_tls").as_deref() {
            None | Some("off") if self.get("watch_tls_ca").is_some() => {
                return Err(self.bad(
                    "watch_tls_ca",
                    "it has no effect: write watch_tls = ca, or name, too",
                ));
            }
            None | Some("off") => return Ok(None),
            Some("ca") => false,
            Some("name") => true,
            Some(_) => return Err(self.bad("watch_tls", "write off, ca or name")),
        };
        let Some(ca) = self.file("watch_tls_ca") else {
            return Err(self.bad(
                "watch_tls",
                "there is no watch_tls_ca: without it anybody could pass for a replica",
            ));
        };
        // Nothing of the relay's own is shown to replicas.
        let keys = TlsKeys {
            mode: "watch_tls",
            ca: "watch_tls_ca",
            cert: "watch_tls_cert",
            key: "watch_tls_key",
        };
        ClientTls::load(keys, &ca, named, None)
            .map(Some)
            .map_err(|e| self.unusable(&e))
    }

    fn primary_tls(&self) -> Result<Option<ClientTls>, ConfigError> {
        ClientTls::wished(PRIMARY_TLS, |key| self.text(key)).map_err(|error| match error {
            TlsWish::Bad { key, why } => self.bad(key, &why),
            TlsWish::File(error) => self.unusable(&error),
        })
    }

    fn unusable(&self, error: &TlsError) -> ConfigError {
        ConfigError::Bad {
            place: self
                .get(error.key)
                .map_or("settings".into(), |s| s.place.clone()),
            why: error.to_string(),
        }
    }

    fn bad(&self, key: &str, why: &str) -> ConfigError {
        let said = self.get(key);
        ConfigError::Bad {
            place: said.map_or("settings".into(), |s| s.place.clone()),
            why: format!("{key} = {}: {why}", said.map_or("", |s| &s.value)),
        }
    }

    fn duration(&self, key: &str, default_secs: u64) -> Result<Duration, ConfigError> {
        let found = self.parsed(key, duration)?;
        Ok(found.unwrap_or(Duration::from_secs(default_secs)))
    }

    fn password(&self, key: &str, file_key: &str) -> Result<String, ConfigError> {
        let Some(file) = self.get(file_key) else {
            return Ok(self.text(key).unwrap_or_default());
        };
        if self.get(key).is_some() {
            return Err(self.bad(file_key, "there is a password, too; write one of the two"));
        }
        let text = fs::read_to_string(&file.value).map_err(|e| ConfigError::Bad {
            place: file.place.clone(),
            why: format!("{file_key} = {}: {e}", file.value),
        })?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    fn accounts(&self) -> Result<Vec<Account>, ConfigError> {
        let mut accounts: Vec<Account> = Vec::new();
        for said in self.said.iter().filter(|s| s.key == "account") {
            let bad = |why: &str| ConfigError::Bad {
                place: said.place.clone(),
                why: format!("account: {why}"),
            };
            let (name, password) = said
                .value
                .split_once(':')
                .ok_or_else(|| bad("write name:password"))?;
            if name.is_empty() || password.is_empty() {
                return Err(bad("neither name nor password may be empty"));
            }
            accounts.retain(|a| a.name != name);
            accounts.push(Account {
                name: name.to_owned(),
                password: password.parse().map_err(bad)?,
            });
        }
        match accounts.is_empty() {
            true => Err(ConfigError::Missing {
                key: "account",
                example: "repl:secret",
            }),
            false => Ok(accounts),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a number".to_owned())
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

/// Whether files are mirrored.
fn follow(text: &str) -> Result<bool, String> {
    match text {
        "gtid" => Ok(false),
        "file" => Ok(true),
        _ => Err("write gtid or file".into()),
    }
}

/// A level, or none.
fn zstd(text: &str) -> Result<Option<u8>, String> {
    match text.parse::<u8>() {
        Ok(level @ 1..=ZSTD_LEVEL_MAX) => Ok(Some(level)),
        Err(_) if text.eq_ignore_ascii_case("off") => Ok(None),
        _ => Err(format!("write off, or a level from 1 to {ZSTD_LEVEL_MAX}")),
    }
}

/// A number with a unit behind it.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let factor = units.iter().find(|(u, _)| u.eq_ignore_ascii_case(unit))?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// `1048576`, `256M`.
fn size(text: &str) -> Result<u64, String> {
    let units = [
        ("", 1),
        ("K", 1 << 10),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("T", 1 << 40),
    ];
    with_unit(text, &units).ok_or_else(|| "write a size, as in 256M or 10G".into())
}

/// `500ms`, `10s`, `7d`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    match with_unit(text, &units) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err("write a time, as in 500ms, 10s, 5m, 2h or 7d".into()),
    }
}

#[cfg(test)]
mod tests;
