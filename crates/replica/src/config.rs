//! What a replica is told: on the command line, and in a file of `key = value` lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dromon_binlog::Position;
use dromon_relay::net::{ClientTls, TlsKeys, TlsWish};
use dromon_relay::pull::Wish;

use crate::ahead::SLOTS;
use crate::client::Account;
use crate::compile::Filter;
use crate::engine::{Difference, Doubt, Settings};
use crate::schedule::{Mode, Order};
use crate::source::Source;
use crate::tune::Knob;

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

/// What a replica runs with.
#[derive(Clone, Debug)]
pub struct Config {
    /// How to apply.
    pub settings: Settings,
    /// Messages; none: standard error.
    pub log: Option<PathBuf>,
    /// How it stands, as JSON, rewritten every second.
    pub status: Option<PathBuf>,
    /// Where HTTP is answered.
    pub http: Option<String>,
    /// Ends when it has what the source had.
    pub until_caught_up: bool,
    /// A line of progress every so often; zero: none.
    pub progress: Duration,
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
    ("source", "host:port of the primary, or of a relay", ""),
    (
        "source_user",
        "account there; it needs REPLICATION SLAVE",
        "",
    ),
    ("source_password", "its password", "none"),
    (
        "source_password_file",
        "file with its password, instead",
        "none",
    ),
    (
        "source_tls",
        "off; ca: encrypt, the source's certificate must be signed by source_tls_ca; name: and be for the name of source",
        "off",
    ),
    (
        "source_tls_ca",
        "certificates (PEM) of who may sign the source's",
        "none",
    ),
    (
        "source_tls_cert",
        "certificate that is shown to the source",
        "none",
    ),
    ("source_tls_key", "its key", "none"),
    ("server_id", "number of its own, as every replica has", ""),
    ("target", "host:port of the server to apply to", ""),
    ("target_user", "account there; it needs all privileges", ""),
    ("target_password", "its password", "none"),
    (
        "target_password_file",
        "file with its password, instead",
        "none",
    ),
    (
        "target_tls",
        "off; ca or name: the same for the target",
        "off",
    ),
    (
        "target_tls_ca",
        "certificates (PEM) of who may sign the target's",
        "none",
    ),
    (
        "target_tls_cert",
        "certificate that is shown to the target",
        "none",
    ),
    ("target_tls_key", "its key", "none"),
    (
        "channel",
        "name of its row in dromon_replica.position on the target",
        "default",
    ),
    (
        "start",
        "GTID position to begin behind, if the channel is new",
        "the beginning",
    ),
    (
        "mode",
        "none, database, conservative, optimistic, aggressive or writeset",
        "writeset",
    ),
    (
        "threads",
        "connections that apply; auto: found by trying, from 8 on",
        "auto",
    ),
    (
        "readers",
        "connections that read ahead what will be changed; auto: found by trying, from 0 on",
        "auto",
    ),
    (
        "merge",
        "most transactions of the source in one of the target while there is a backlog; 1: each by itself; auto: found by trying, from 100 on",
        "auto",
    ),
    ("merge_size", "the same in bytes of events", "4M"),
    ("memory", "transactions that wait in memory", "64M"),
    (
        "only",
        "apply only these: databases and database.table, with commas",
        "everything",
    ),
    ("without", "do not apply these", "nothing"),
    (
        "difference",
        "a row that is missing or there already: stop or repair",
        "stop",
    ),
    (
        "compare",
        "how a row is compared before a change: key or row",
        "key",
    ),
    (
        "in_doubt",
        "a DDL during which it died: again, skip or stop",
        "again",
    ),
    (
        "binlog",
        "what is applied is written to the target's binlog",
        "on",
    ),
    (
        "commit_order",
        "strict: as on the source; group: what does not depend on each other commits side by side",
        "strict",
    ),
    (
        "until_caught_up",
        "end when everything the source had is applied",
        "off",
    ),
    (
        "heartbeat",
        "how often to hear from a source that has nothing to send",
        "1s",
    ),
    (
        "dead_after",
        "silence of the source after which it counts as dead",
        "5s",
    ),
    (
        "backoff_max",
        "longest pause between attempts to connect",
        "10s",
    ),
    (
        "progress",
        "how often to write a line of progress; 0s: never",
        "10s",
    ),
    (
        "status",
        "file that says how it stands, as JSON, every second",
        "none",
    ),
    (
        "http",
        "address and port for /metrics, /status.json, /ready",
        "off",
    ),
    ("log", "file for messages", "standard error"),
];

/// Of the settings above, those for TLS towards the source.
const SOURCE_TLS: TlsKeys = TlsKeys {
    mode: "source_tls",
    ca: "source_tls_ca",
    cert: "source_tls_cert",
    key: "source_tls_key",
};

/// The same towards the target.
const TARGET_TLS: TlsKeys = TlsKeys {
    mode: "target_tls",
    ca: "target_tls_ca",
    cert: "target_tls_cert",
    key: "target_tls_key",
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
            if !line.is_empty() && !line.starts_with('#') {
                given.line(line, format!("{}, line {}", file.display(), n + 1))?;
            }
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
                "'{key}' is not a setting of a replica. It knows {}",
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

    fn parsed<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let parsed = self.get(key).map(|said| {
            parse(&said.value).map_err(|why| ConfigError::Bad {
                place: said.place.clone(),
                why: format!("{key} = {}: {why}", said.value),
            })
        });
        parsed.transpose()
    }

    fn address(&self, key: &'static str) -> Result<String, ConfigError> {
        let found = self.parsed(key, |text| match text.contains(':') {
            true => Ok(text.to_owned()),
            false => Err("write host:port, as in db1:3306".into()),
        })?;
        found.ok_or(ConfigError::Missing {
            key,
            example: "db1:3306",
        })
    }

    fn password(&self, key: &str, file_key: &str) -> Result<String, ConfigError> {
        let Some(file) = self.get(file_key) else {
            return Ok(self.text(key).unwrap_or_default());
        };
        let bad = |why: String| ConfigError::Bad {
            place: file.place.clone(),
            why: format!("{file_key} = {}: {why}", file.value),
        };
        if self.get(key).is_some() {
            return Err(bad(format!("there is {key}, too; write one of the two")));
        }
        let text = fs::read_to_string(&file.value).map_err(|e| bad(e.to_string()))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    fn tls(&self, keys: TlsKeys) -> Result<Option<ClientTls>, ConfigError> {
        let place = |key: &str| self.get(key).map_or("settings".into(), |s| s.place.clone());
        ClientTls::wished(keys, |key| self.text(key)).map_err(|error| match error {
            TlsWish::Bad { key, why } => ConfigError::Bad {
                place: place(key),
                why: format!("{key} = {}: {why}", self.text(key).unwrap_or_default()),
            },
            TlsWish::File(error) => ConfigError::Bad {
                place: place(error.key),
                why: error.to_string(),
            },
        })
    }

    /// A number, or `auto`: one of these levels, and where it begins.
    fn knob(
        &self,
        key: &str,
        auto: (&[usize], usize),
        from: usize,
        to: usize,
    ) -> Result<Knob, ConfigError> {
        let parse = |text: &str| match (text, text.parse()) {
            ("auto", _) => Ok(Knob::new(auto.0, auto.1)),
            (_, Ok(n)) if (from..=to).contains(&n) => Ok(Knob::fixed(n)),
            _ => Err(format!("write auto, or a number from {from} to {to}")),
        };
        let found = self.parsed(key, parse)?;
        Ok(found.unwrap_or_else(|| Knob::new(auto.0, auto.1)))
    }

    fn duration(&self, key: &str, default: Duration) -> Result<Duration, ConfigError> {
        Ok(self.parsed(key, duration)?.unwrap_or(default))
    }

    fn list(&self, key: &str) -> Vec<String> {
        let text = self.text(key).unwrap_or_default();
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        default: T,
    ) -> Result<T, ConfigError> {
        let parse = |text: &str| {
            let found = choices.iter().find(|(name, _)| *name == text);
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            found
                .map(|(_, value)| *value)
                .ok_or(format!("write one of {}", names.join(", ")))
        };
        Ok(self.parsed(key, parse)?.unwrap_or(default))
    }

    /// Checks that what must be said is said, and fills in the rest.
    ///
    /// # Errors
    /// All of [`ConfigError`].
    pub fn settle(&self) -> Result<Config, ConfigError> {
        let must = |key, example| self.text(key).ok_or(ConfigError::Missing { key, example });
        let switch = [("on", true), ("off", false), ("1", true), ("0", false)];
        let server_id = self.parsed("server_id", |text| match text.parse::<u32>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err("write a number above 0".into()),
        })?;
        let dead_after = self.duration("dead_after", Duration::from_secs(5))?;
        let source_tls = self.tls(SOURCE_TLS)?;
        let settings = Settings {
            source: Source {
                address: self.address("source")?,
                wish: Wish {
                    user: must("source_user", "repl")?,
                    password: self.password("source_password", "source_password_file")?,
                    server_id: server_id.ok_or(ConfigError::Missing {
                        key: "server_id",
                        example: "201",
                    })?,
                    report_host: String::new(),
                    report_port: 0,
                    heartbeat: self.duration("heartbeat", Duration::from_secs(1))?,
                    semi_sync: false,
                    tls: source_tls.is_some(),
                    zstd: None,
                    position: String::new(),
                    file: None,
                },
                tls: source_tls,
                dead_after,
                backoff_max: self.duration("backoff_max", Duration::from_secs(10))?,
            },
            target: Account {
                address: self.address("target")?,
                user: must("target_user", "dromon")?,
                tls: self.tls(TARGET_TLS)?,
                password: self.password("target_password", "target_password_file")?,
                patience: Duration::from_secs(10),
            },
            channel: self.text("channel").unwrap_or_else(|| "default".into()),
            start: self
                .parsed("start", |text| {
                    text.parse::<Position>().map_err(|e| e.to_string())
                })?
                .unwrap_or_default(),
            mode: self
                .parsed("mode", |text| {
                    text.parse::<Mode>().map_err(|e| e.to_string())
                })?
                .unwrap_or_default(),
            threads: self.knob("threads", (&[1, 2, 4, 8, 16], 8), 1, 512)?,
            merge: self.knob("merge", (&[10, 30, 100, 300, 1000], 100), 1, 100_000)?,
            readers: self.knob("readers", (&[0, 2, 4, 8, 16], 0), 0, 512)?,
            merge_bytes: self.parsed("merge_size", size)?.unwrap_or(4 << 20),
            memory: self.parsed("memory", size)?.unwrap_or(64 << 20),
            filter: Filter {
                only: self.list("only"),
                without: self.list("without"),
            },
            difference: self.choice(
                "difference",
                &[("stop", Difference::Stop), ("repair", Difference::Repair)],
                Difference::Stop,
            )?,
            whole_rows: self.choice("compare", &[("key", false), ("row", true)], false)?,
            doubt: self.choice(
                "in_doubt",
                &[
                    ("again", Doubt::Again),
                    ("skip", Doubt::Skip),
                    ("stop", Doubt::Stop),
                ],
                Doubt::Again,
            )?,
            binlog: self.choice("binlog", &switch, true)?,
            order: self.choice(
                "commit_order",
                &[("strict", Order::Strict), ("group", Order::Group(SLOTS))],
                Order::Strict,
            )?,
        };
        if settings.channel.len() > 64 {
            return Err(ConfigError::Bad {
                place: "channel".into(),
                why: "a name has at most 64 bytes".into(),
            });
        }
        Ok(Config {
            settings,
            log: self.text("log").map(PathBuf::from),
            status: self.text("status").map(PathBuf::from),
            http: self
                .parsed("http", |text| match text {
                    "off" => Ok(None),
                    text if text.contains(':') => Ok(Some(text.to_owned())),
                    _ => Err("write address:port, as in 127.0.0.1:9308".into()),
                })?
                .flatten(),
            until_caught_up: self.choice("until_caught_up", &switch, false)?,
            progress: self.duration("progress", Duration::from_secs(10))?,
        })
    }
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let n: Option<usize> = digits.trim().parse().ok();
    n.and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| "write a size, as in 64M".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    for (unit, ms) in units {
        if let Some(n) = text.strip_suffix(unit)
            && let Ok(n) = n.trim().parse::<u32>()
        {
            return Ok(Duration::from_millis(u64::from(n) * ms));
        }
    }
    Err("write a time, as in 500ms, 10s or 5m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [&str; 5] = [
        "source=a:1",
        "source_user=r",
        "server_id=7",
        "target=b:2",
        "target_user=t",
    ];

    fn settled(lines: &[&str]) -> Result<Config, String> {
        let mut given = Given::default();
        for line in NEEDED.iter().chain(lines) {
            given.line(line, "here".into()).map_err(|e| e.to_string())?;
        }
        given.settle().map_err(|e| e.to_string())
    }

    #[test]
    fn settings() {
        let config = settled(&[]).expect("enough");
        assert_eq!(config.settings.mode, Mode::WriteSet);
        let s = &config.settings;
        assert_eq!(
            (s.threads.level(), s.merge.level(), s.readers.level()),
            (8, 100, 0)
        );
        assert!(!s.threads.is_fixed() && !s.merge.is_fixed() && !s.readers.is_fixed());
        let config = settled(&[
            "mode=none",
            "threads = 1",
            "merge=100",
            "only=a, b.c",
            "memory=1G",
        ]);
        let config = config.expect("fine");
        assert_eq!(config.settings.mode, Mode::None);
        assert_eq!(config.settings.filter.only, ["a", "b.c"]);
        assert_eq!(config.settings.memory, 1 << 30);
        for (line, why) in [
            ("mode=fast", "'fast' is no mode"),
            ("threads=0", "auto, or a number from 1 to 512"),
            ("readers=many", "auto, or a number"),
            ("heartbeat=10", "write a time"),
            ("merge_size=x", "write a size"),
            ("target=b", "write host:port"),
            ("threats=8", "is not a setting"),
            ("difference=ignore", "one of stop, repair"),
            ("http=9308", "write address:port"),
            ("source_tls=ca", "there is no source_tls_ca"),
            ("target_tls=on", "write off, ca or name"),
            (
                "target_tls_ca=/nowhere/ca",
                "it has no effect: write target_tls = ca",
            ),
            (
                "target_password_file=/nowhere/at/all",
                "target_password_file",
            ),
        ] {
            let error = settled(&[line]).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
        let missing = Given::default().settle().expect_err("nothing");
        assert!(missing.to_string().contains("no source given"), "{missing}");
    }
}
