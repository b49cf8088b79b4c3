//! What a relay is told: on the command line, and in a file of `key = value` lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use dromon_binlog::{BinlogState, GtidSet};

use crate::given::{ConfigError, Given, Known, duration, number, or_none, size};
use crate::http::Watch;
use crate::net::{ClientTls, ServerTls, TlsKeys};
use crate::pull::{Source, Wish};
use crate::serve::{Account, Policy, ServeOptions};
use crate::store::{History, Kind, Limits, StoreOptions, file_number};
use crate::wire::ZSTD_LEVEL_MAX;

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
    pub start: History,
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

/// What a relay can be told.
pub static RELAY: Known = Known {
    program: "relay",
    settings: SETTINGS,
};

const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "primary",
        "host:port of the primary, or of another relay",
        "",
    ),
    ("user", "account there; it needs REPLICATION SLAVE", ""),
    ("password", "its password", "(none)"),
    ("password_file", "file with its password, instead", "(none)"),
    ("dir", "directory for the files", ""),
    ("server_id", "number of its own, as every server has", ""),
    (
        "account",
        "name:password of a replica; may be repeated. A password may be * and 40 digits, as servers store it",
        "",
    ),
    (
        "account_file",
        "file with lines name:password of replicas, too; may be repeated",
        "(none)",
    ),
    (
        "admin",
        "name:password of an operator, who may have replicas forgotten (FORGET REPLICA); may be repeated",
        "(none)",
    ),
    (
        "admin_file",
        "file with lines name:password of operators, too; may be repeated",
        "(none)",
    ),
    ("listen", "address and port for replicas", "127.0.0.1:3307"),
    (
        "follow",
        "gtid: by GTIDs of MariaDB; mysql_gtid: by those of MySQL (gtid_mode = ON); file: by file and byte, for MySQL and others \
         without: their files are mirrored",
        "gtid",
    ),
    (
        "start",
        "GTID position to begin behind (follow = mysql_gtid: set of GTIDs; follow = file: the primary's file to begin with), if there \
         are no files yet",
        "(the beginning)",
    ),
    ("log", "file for messages", "(standard error)"),
    (
        "log_bin",
        "beginning of the names of its files",
        "relay-bin",
    ),
    (
        "file_size",
        "a file of this size (4K to 3G) gets a successor",
        "256M",
    ),
    (
        "memory",
        "newest events in memory, for all replicas together",
        "32M",
    ),
    (
        "keep_size",
        "purge the oldest files above this size in all",
        "(none)",
    ),
    (
        "keep_age",
        "purge files whose newest transaction is older",
        "(none)",
    ),
    (
        "keep_size_hard",
        "purge above this size even what a replica needs",
        "(none)",
    ),
    (
        "hold",
        "keep what a connected replica was sent for so long",
        "1d",
    ),
    (
        "forget",
        "forget replicas that were away for so long",
        "(never)",
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
        "(bbr, if the system has it)",
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
         MySQL 5.7 and later, with follow = mysql_gtid or file); or SERVER_ID:group and so on for one replica; may be repeated",
        "pass",
    ),
    (
        "http",
        "address and port for /metrics, /status.json, /replica/NAME",
        "off",
    ),
    (
        "watch_user",
        "account on all replicas, to ask them what they have applied; what they have not is kept",
        "(none)",
    ),
    ("watch_password", "its password", "(none)"),
    (
        "watch_password_file",
        "file with its password, instead",
        "(none)",
    ),
    (
        "watch_tls",
        "off; ca: encrypt, replicas' certificates must be signed by watch_tls_ca; name: and be for the address",
        "off",
    ),
    (
        "watch_tls_ca",
        "certificates (PEM) of who may sign those of replicas",
        "(none)",
    ),
    (
        "tls_cert",
        "certificate (PEM) for replicas that ask for TLS",
        "(none)",
    ),
    ("tls_key", "its key", "(none)"),
    (
        "tls_client_ca",
        "a replica must show a certificate that one of these (PEM) signed",
        "(none)",
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
        "(none)",
    ),
    (
        "primary_tls_cert",
        "certificate that is shown to the primary",
        "(none)",
    ),
    ("primary_tls_key", "its key", "(none)"),
    (
        "report_host",
        "name for the primary's SHOW SLAVE HOSTS",
        "(none)",
    ),
];

/// Of the settings above, those for TLS towards the primary.
const PRIMARY_TLS: TlsKeys = TlsKeys {
    mode: "primary_tls",
    ca: "primary_tls_ca",
    cert: "primary_tls_cert",
    key: "primary_tls_key",
};

impl Config {
    /// Checks that what must be said is said, and fills in the rest.
    ///
    /// # Errors
    /// All of [`ConfigError`].
    pub fn settle(given: &Given) -> Result<Config, ConfigError> {
        let address = given.server("primary")?;
        let server_id = given.server_id("101")?;
        let zstd = given.parsed("zstd", zstd)?.unwrap_or(Some(3));
        let listen = given
            .text("listen")
            .unwrap_or_else(|| "127.0.0.1:3307".into());
        let Some(port) = listen
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
        else {
            return Err(given.bad("listen", "write address:port, as in 0.0.0.0:3307"));
        };
        let (heartbeat, dead_after) = given.silence()?;
        let tls = given.client_tls(PRIMARY_TLS)?;
        let watch_tls = watch_tls(given)?;
        if watch_tls.is_some() && given.get("watch_user").is_none() {
            return Err(given.bad("watch_tls", "it has no effect: there is no watch_user"));
        }
        let kind = given.parsed("follow", follow)?.unwrap_or_default();
        let (policy, policies) = policies(given, kind)?;
        let server_tls = server_tls(given)?;
        let tls_required = given.switch("tls_required", false)?;
        if tls_required && server_tls.is_none() {
            return Err(given.bad("tls_required", "nobody could come in: there is no tls_cert"));
        }
        let http = given.http("127.0.0.1:9307")?;
        let defaults = StoreOptions::default();
        let prefix = given.text("log_bin").unwrap_or(defaults.prefix);
        if prefix.contains(['/', ' ', '\'']) || prefix.len() > 200 {
            return Err(given.bad("log_bin", "it must be a file name without a directory"));
        }
        let file_max = given
            .parsed("file_size", size)?
            .unwrap_or(defaults.file_max);
        if !(4096..=3 << 30).contains(&file_max) {
            return Err(given.bad("file_size", "it must be between 4K and 3G"));
        }
        if kind.by_place() && given.get("watch_user").is_some() {
            let why = match kind {
                Kind::MySql => "replicas of MySQL are not asked; what they were sent counts",
                _ => {
                    "with follow = file replicas have no GTIDs to ask for; what they were sent counts"
                }
            };
            return Err(given.bad("watch_user", why));
        }
        let start_file = |name: &str| {
            file_number(&prefix, name).ok_or(format!(
                "with follow = file write the name of a file, as {prefix}.000001; log_bin is what stands before the dot"
            ))
        };
        let start_file = match kind {
            Kind::Mirror => given.parsed("start", start_file)?,
            Kind::MariaDb | Kind::MySql => None,
        };
        Ok(Config {
            dir: given.must("dir", "/var/lib/dromon-relay")?.into(),
            listen,
            log: given.text("log").map(PathBuf::from),
            source: Source {
                address,
                wish: Wish {
                    user: given.must("user", "repl")?,
                    password: given.password("password", "password_file")?,
                    tls: tls.is_some(),
                    server_id,
                    report_host: given.text("report_host").unwrap_or_default(),
                    report_port: port,
                    heartbeat,
                    semi_sync: given.switch("semi_sync", true)?,
                    zstd,
                    position: String::new(),
                    file: None,
                    executed: None,
                    channel: None,
                },
                tls,
                dead_after,
                backoff_max: given.time("backoff_max", 10)?,
                start_file,
            },
            store: StoreOptions {
                prefix,
                file_max,
                tail_max: given
                    .parsed("memory", size)?
                    .map_or(defaults.tail_max, |m| m as usize),
                server_id,
                kind,
                ..defaults
            },
            start: match kind {
                Kind::Mirror => History::default(),
                Kind::MariaDb => given
                    .parsed("start", |text| {
                        text.parse::<BinlogState>().map_err(|e| e.to_string())
                    })?
                    .unwrap_or_default()
                    .into(),
                Kind::MySql => given
                    .parsed("start", |text| {
                        text.parse::<GtidSet>().map_err(|e| e.to_string())
                    })?
                    .unwrap_or_default()
                    .into(),
            },
            serve: ServeOptions {
                server_id,
                accounts: accounts(given)?,
                policy,
                policies,
                congestion: given.text("congestion"),
                tls: server_tls,
                tls_required,
                zstd: zstd.is_some(),
                connections_max: given.parsed("connections", number)?.unwrap_or(500) as usize,
                write_timeout: given.time("write_timeout", 60)?,
                heartbeat: Duration::from_secs(30),
            },
            keep: Limits {
                size: given.parsed("keep_size", or_none(limit))?.flatten(),
                age: given
                    .parsed("keep_age", or_none(seconds))?
                    .flatten()
                    .map(|d| d.as_secs()),
                size_hard: given.parsed("keep_size_hard", or_none(limit))?.flatten(),
            },
            hold: given
                .parsed("hold", seconds)?
                .unwrap_or(Duration::from_secs(86400)),
            forget: given.parsed("forget", or_none(seconds))?.flatten(),
            http,
            watch: match given.text("watch_user") {
                None => None,
                Some(user) => Some(Watch {
                    user,
                    password: given.password("watch_password", "watch_password_file")?,
                    tls: watch_tls,
                }),
            },
        })
    }
}

/// For all, and for some.
fn policies(given: &Given, kind: Kind) -> Result<(Policy, BTreeMap<u32, Policy>), ConfigError> {
    let mut all = Policy::Pass;
    let mut policies = BTreeMap::new();
    for said in given.all("policy") {
        let bad = |why: &str| said.bad(why);
        let (id, word) = match said.value.split_once(':') {
            None => (None, said.value.as_str()),
            Some((id, word)) => (
                Some(number(id.trim()).map_err(|why| bad(&why))?),
                word.trim(),
            ),
        };
        let policy = match word {
            "pass" => Policy::Pass,
            "group" if kind == Kind::MySql => {
                return Err(bad(
                    "it is for MariaDB: transactions of MySQL have no commit ids. Write pass, or for MySQL 5.7 and later \
                     logical_clock",
                ));
            }
            "group" if kind == Kind::Mirror => {
                return Err(bad(
                    "it is for MariaDB's GTIDs; mirrored files (follow = file) have none. Write pass, or for MySQL 5.7 and \
                     later logical_clock",
                ));
            }
            "group" => Policy::Group,
            "logical_clock" if kind == Kind::MariaDb => {
                return Err(bad(
                    "it is for MySQL 5.7 and later (follow = mysql_gtid, or file for mirrored files). For MariaDB (follow = gtid) write \
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

fn server_tls(given: &Given) -> Result<Option<ServerTls>, ConfigError> {
    let clients = given.file("tls_client_ca");
    match (given.file("tls_cert"), given.file("tls_key")) {
        (None, None) if clients.is_some() => Err(given.bad(
            "tls_client_ca",
            "it has no effect: there is no tls_cert, so nobody can come with TLS",
        )),
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => ServerTls::load(&cert, &key, clients.as_deref())
            .map(Some)
            .map_err(|e| given.unusable(&e)),
        (Some(_), None) => Err(given.bad("tls_cert", "there is no tls_key with it")),
        (None, Some(_)) => Err(given.bad("tls_key", "there is no tls_cert with it")),
    }
}

fn watch_tls(given: &Given) -> Result<Option<ClientTls>, ConfigError> {
    let named = match given.text("watch_tls").as_deref() {
        None | Some("off") if given.get("watch_tls_ca").is_some() => {
            return Err(given.bad(
                "watch_tls_ca",
                "it has no effect: write watch_tls = ca, or name, too",
            ));
        }
        None | Some("off") => return Ok(None),
        Some("ca") => false,
        Some("name") => true,
        Some(_) => return Err(given.bad("watch_tls", "write off, ca or name")),
    };
    let Some(ca) = given.file("watch_tls_ca") else {
        return Err(given.bad(
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
        .map_err(|e| given.unusable(&e))
}

/// What is said of accounts in settings and in files: the kind, where, and what.
fn named(
    given: &Given,
    key: &'static str,
    file_key: &str,
) -> Result<Vec<(&'static str, String, String)>, ConfigError> {
    let direct = given
        .all(key)
        .filter(|s| !s.value.is_empty())
        .map(|s| (key, s.place.clone(), s.value.clone()));
    let mut all: Vec<_> = direct.collect();
    for file in given.all(file_key).filter(|s| !s.value.is_empty()) {
        let text = fs::read_to_string(&file.value).map_err(|e| file.bad(&e.to_string()))?;
        for (n, line) in text.lines().map(str::trim).enumerate() {
            if !line.is_empty() && !line.starts_with('#') {
                all.push((
                    key,
                    format!("{}, line {}", file.value, n + 1),
                    line.to_owned(),
                ));
            }
        }
    }
    Ok(all)
}

fn accounts(given: &Given) -> Result<Vec<Account>, ConfigError> {
    let mut accounts: Vec<Account> = Vec::new();
    let said = [
        named(given, "account", "account_file")?,
        named(given, "admin", "admin_file")?,
    ];
    for (key, place, value) in said.concat() {
        let admin = key == "admin";
        let bad = |why: &str| ConfigError::Bad {
            place: place.clone(),
            why: format!("{key}: {why}"),
        };
        let (name, password) = value
            .split_once(':')
            .ok_or_else(|| bad("write name:password"))?;
        if name.is_empty() || password.is_empty() {
            return Err(bad("neither name nor password may be empty"));
        }
        if accounts.iter().any(|a| a.name == name && a.admin != admin) {
            return Err(bad(&format!(
                "'{name}' is an account of replicas, too. Choose another name: a replica's password must not do for FORGET REPLICA"
            )));
        }
        accounts.retain(|a| a.name != name);
        accounts.push(Account {
            name: name.to_owned(),
            password: password.parse().map_err(bad)?,
            admin,
        });
    }
    match accounts.iter().all(|a| a.admin) {
        true => Err(ConfigError::Missing {
            key: "account",
            example: "repl:secret",
        }),
        false => Ok(accounts),
    }
}

/// What the files are.
fn follow(text: &str) -> Result<Kind, String> {
    let kinds = [Kind::MariaDb, Kind::MySql, Kind::Mirror];
    let found = kinds.into_iter().find(|kind| kind.follow() == text);
    found.ok_or_else(|| "write gtid, mysql_gtid or file".into())
}

/// A size that is not to be exceeded. To servers 0 is no limit; here everything would be above it.
fn limit(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("everything is above that; for no limit write none".into()),
        limit => Ok(limit),
    }
}

/// A time that is counted in seconds: less would be none.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time.as_secs() {
        0 => Err("it is counted in seconds; write 1s or more".into()),
        _ => Ok(time),
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

#[cfg(test)]
mod tests;
