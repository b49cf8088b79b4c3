//! What a replica is told: on the command line, and in a file of `key = value` lines.

use std::path::PathBuf;
use std::time::Duration;

use dromon_binlog::Position;
use dromon_relay::given::{ConfigError, Given, Known, duration, size};
use dromon_relay::net::TlsKeys;
use dromon_relay::pull::Wish;

use crate::ahead::SLOTS;
use crate::client::Account;
use crate::compile::{Compare, Filter};
use crate::engine::{Difference, Doubt, Settings};
use crate::schedule::{Mode, Order};
use crate::source::Source;
use crate::target::CONNECTIONS_MAX;
use crate::tune::Knob;

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

/// What a replica can be told.
pub static REPLICA: Known = Known {
    program: "replica",
    settings: SETTINGS,
};

const SETTINGS: &[(&str, &str, &str)] = &[
    ("source", "host:port of the primary, or of a relay", ""),
    (
        "source_user",
        "account there; it needs REPLICATION SLAVE",
        "",
    ),
    ("source_password", "its password", "(none)"),
    (
        "source_password_file",
        "file with its password, instead",
        "(none)",
    ),
    (
        "source_tls",
        "off; ca: encrypt, the source's certificate must be signed by source_tls_ca; name: and be for the name of source",
        "off",
    ),
    (
        "source_tls_ca",
        "certificates (PEM) of who may sign the source's",
        "(none)",
    ),
    (
        "source_tls_cert",
        "certificate that is shown to the source",
        "(none)",
    ),
    ("source_tls_key", "its key", "(none)"),
    ("server_id", "number of its own, as every replica has", ""),
    ("target", "host:port of the server to apply to", ""),
    ("target_user", "account there; it needs all privileges", ""),
    ("target_password", "its password", "(none)"),
    (
        "target_password_file",
        "file with its password, instead",
        "(none)",
    ),
    (
        "target_tls",
        "off; ca or name: the same for the target",
        "off",
    ),
    (
        "target_tls_ca",
        "certificates (PEM) of who may sign the target's",
        "(none)",
    ),
    (
        "target_tls_cert",
        "certificate that is shown to the target",
        "(none)",
    ),
    ("target_tls_key", "its key", "(none)"),
    (
        "report_host",
        "name in the source's SHOW SLAVE HOSTS, and of a relay's /replica/NAME",
        "(none)",
    ),
    (
        "report_port",
        "port beside it: a relay with watch_user asks the target there, at the address that the replica comes from",
        "(the target's)",
    ),
    (
        "channel",
        "name of its row in dromon_replica.position on the target",
        "default",
    ),
    (
        "start",
        "GTID position to begin behind, if the channel is new; or beginning",
        "(the beginning, of a target that is empty)",
    ),
    (
        "mode",
        "none, database, conservative, optimistic, aggressive or writeset",
        "writeset",
    ),
    (
        "threads",
        "connections that apply; auto: 1 to 16, found by trying; it begins with 8",
        "auto",
    ),
    (
        "readers",
        "connections that read ahead what will be changed; auto: none, and while the target reads pages up to 32, found by trying",
        "auto",
    ),
    (
        "merge",
        "most transactions of the source in one of the target while there is a backlog; 1: each by itself; auto: by what commits and transactions cost",
        "auto",
    ),
    ("merge_size", "the same in bytes of events", "4M"),
    ("memory", "transactions that wait in memory", "64M"),
    (
        "transaction_max",
        "longest transaction of the source in bytes of events; it is held in memory as a whole",
        "1G",
    ),
    (
        "only",
        "apply only these: databases and database.table, with commas",
        "(everything)",
    ),
    ("without", "do not apply these", "(nothing)"),
    (
        "difference",
        "a row that is missing, there already or differs in what is compared: stop or repair",
        "stop",
    ),
    (
        "compare",
        "what of a row is compared before a change: key; changed: of an update what it overwrites, too; row: all, one statement for each row",
        "changed",
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
        "source_gtid",
        "each transaction has its GTID of the source in the target's binlog, too; needs merge = 1",
        "off",
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
        "(none)",
    ),
    (
        "http",
        "address and port for /metrics, /status.json, /ready",
        "off",
    ),
    ("log", "file for messages", "(standard error)"),
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

impl Config {
    /// Checks that what must be said is said, and fills in the rest.
    ///
    /// # Errors
    /// All of [`ConfigError`].
    pub fn settle(given: &Given) -> Result<Config, ConfigError> {
        let address = given.server("source")?;
        let (heartbeat, dead_after) = given.silence()?;
        let source_tls = given.client_tls(SOURCE_TLS)?;
        let channel = given.text("channel").unwrap_or_else(|| "default".into());
        let target = given.server("target")?;
        // A relay that wants to know what is applied asks there.
        let own_port = target.rsplit(':').next().and_then(|port| port.parse().ok());
        let report_port = number(given, "report_port", 1, 65_535)?
            .and_then(|port| u16::try_from(port).ok())
            .or(own_port)
            .unwrap_or_default();
        let start = given.parsed("start", |text| match text {
            "beginning" => Ok(None),
            text => text
                .parse::<Position>()
                .map(Some)
                .map_err(|e| format!("{e}. It is a GTID position, or beginning")),
        })?;
        let settings = Settings {
            source: Source {
                address,
                wish: Wish {
                    user: given.must("source_user", "repl")?,
                    password: given.password("source_password", "source_password_file")?,
                    server_id: given.server_id("201")?,
                    report_host: given.text("report_host").unwrap_or_default(),
                    report_port,
                    heartbeat,
                    semi_sync: false,
                    tls: source_tls.is_some(),
                    zstd: None,
                    position: String::new(),
                    file: None,
                    executed: None,
                    channel: Some(channel.clone()),
                },
                tls: source_tls,
                dead_after,
                backoff_max: given.time("backoff_max", 10)?,
                transaction_max: given.parsed("transaction_max", bytes)?.unwrap_or(1 << 30),
            },
            target: Account {
                address: target,
                user: given.must("target_user", "dromon")?,
                tls: given.client_tls(TARGET_TLS)?,
                password: given.password("target_password", "target_password_file")?,
                patience: Duration::from_secs(10),
            },
            channel,
            beginning: start == Some(None),
            start: start.flatten().unwrap_or_default(),
            mode: given
                .parsed("mode", |text| {
                    text.parse::<Mode>().map_err(|e| e.to_string())
                })?
                .unwrap_or_default(),
            threads: knob(given, "threads", (&[1, 2, 4, 8, 16], 8), 1, CONNECTIONS_MAX)?,
            merge: number(given, "merge", 1, 100_000)?,
            readers: knob(
                given,
                "readers",
                (&[0, 2, 4, 8, 16, 32], 0),
                0,
                CONNECTIONS_MAX,
            )?,
            merge_bytes: given.parsed("merge_size", bytes)?.unwrap_or(4 << 20),
            memory: given.parsed("memory", bytes)?.unwrap_or(64 << 20),
            filter: Filter::new(
                given.parsed("only", names)?.unwrap_or_default(),
                given.parsed("without", names)?.unwrap_or_default(),
            ),
            difference: choice(
                given,
                "difference",
                &[("stop", Difference::Stop), ("repair", Difference::Repair)],
                Difference::Stop,
            )?,
            compare: choice(
                given,
                "compare",
                &[
                    ("key", Compare::Key),
                    ("changed", Compare::Changed),
                    ("row", Compare::Row),
                ],
                Compare::Changed,
            )?,
            doubt: choice(
                given,
                "in_doubt",
                &[
                    ("again", Doubt::Again),
                    ("skip", Doubt::Skip),
                    ("stop", Doubt::Stop),
                ],
                Doubt::Again,
            )?,
            binlog: given.switch("binlog", true)?,
            source_gtid: given.switch("source_gtid", false)?,
            order: choice(
                given,
                "commit_order",
                &[("strict", Order::Strict), ("group", Order::Group(SLOTS))],
                Order::Strict,
            )?,
        };
        if let Some(why) = cannot_have_gtids(&settings) {
            return Err(given.bad("source_gtid", why));
        }
        if settings.channel.len() > 64 {
            return Err(ConfigError::Bad {
                place: "channel".into(),
                why: "a name has at most 64 bytes".into(),
            });
        }
        Ok(Config {
            settings,
            log: given.text("log").map(PathBuf::from),
            status: given.text("status").map(PathBuf::from),
            http: given.http("127.0.0.1:9308")?,
            until_caught_up: given.switch("until_caught_up", false)?,
            progress: given
                .parsed("progress", or_never)?
                .unwrap_or(Duration::from_secs(10)),
        })
    }
}

/// Why the source's GTIDs cannot be in the target's binlog with these settings.
fn cannot_have_gtids(settings: &Settings) -> Option<&'static str> {
    match settings {
        Settings {
            source_gtid: false, ..
        } => None,
        Settings { binlog: false, .. } => {
            Some("nothing is in the target's binlog with binlog = off: leave one of the two out")
        }
        Settings {
            order: Order::Group(_),
            ..
        } => Some(
            "with commit_order = group they would be out of order there, and whoever follows the target would miss transactions: use \
             commit_order = strict",
        ),
        Settings { merge: Some(1), .. } => None,
        _ => Some("several transactions in one would have one GTID: set merge = 1, too"),
    }
}

/// A number, or `auto`: one of these levels, and where it begins.
fn knob(
    given: &Given,
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
    let found = given.parsed(key, parse)?;
    Ok(found.unwrap_or_else(|| Knob::new(auto.0, auto.1)))
}

/// A number, or `auto`: none.
fn number(given: &Given, key: &str, from: usize, to: usize) -> Result<Option<usize>, ConfigError> {
    let parse = |text: &str| match (text, text.parse()) {
        ("auto", _) => Ok(None),
        (_, Ok(n)) if (from..=to).contains(&n) => Ok(Some(n)),
        _ => Err(format!("write auto, or a number from {from} to {to}")),
    };
    Ok(given.parsed(key, parse)?.flatten())
}

/// Databases and tables. What can be no name of any would leave out, or not, in silence.
fn names(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty()).map(|name| {
        let quoted = |part: &str| part.starts_with(['`', '\'', '"']);
        let wrong = if name.contains(['%', '*']) {
            "there are no wildcards"
        } else if name.split('.').any(quoted) {
            "names are not quoted"
        } else if name.starts_with('.') || name.ends_with('.') {
            "a part of it is missing"
        } else {
            return Ok(name.to_owned());
        };
        Err(format!(
            "{name}: {wrong}. Name databases, or each database.table, with commas: shop, crm.clients"
        ))
    });
    names.collect()
}

fn choice<T: Copy>(
    given: &Given,
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
    Ok(given.parsed(key, parse)?.unwrap_or(default))
}

/// Bytes.
fn bytes(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?).map_err(|_| "this machine has not so much".into())
}

/// A time; `0s` is never.
fn or_never(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" | "never" => Ok(Duration::ZERO),
        _ => duration(text),
    }
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
        let mut given = Given::new(&REPLICA);
        for line in NEEDED.iter().chain(lines) {
            given.line(line, "here".into()).map_err(|e| e.to_string())?;
        }
        Config::settle(&given).map_err(|e| e.to_string())
    }

    #[test]
    fn settings() {
        let config = settled(&[]).expect("enough");
        assert_eq!(config.settings.mode, Mode::WriteSet);
        let s = &config.settings;
        assert_eq!(
            (s.threads.level(), s.merge, s.readers.level()),
            (8, None, 0)
        );
        assert!(!s.threads.is_fixed() && !s.readers.is_fixed());
        assert_eq!(s.compare, Compare::Changed);
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
        assert_eq!(config.settings.merge, Some(100));
        for (line, why) in [
            ("mode=fast", "'fast' is no mode"),
            ("threads=0", "auto, or a number from 1 to 512"),
            ("readers=many", "auto, or a number"),
            ("merge=0", "auto, or a number from 1 to 100000"),
            ("heartbeat=10", "write a time"),
            ("heartbeat=5s", "longer than heartbeat"),
            ("merge_size=x", "write a size"),
            ("target=b", "write host:port"),
            ("threats=8", "is not a setting"),
            ("only=shop.%", "there are no wildcards"),
            ("only=a, shop.*", "shop.*: there are no wildcards"),
            ("without=shop.log_%", "there are no wildcards"),
            ("only=`shop`", "names are not quoted"),
            ("only=shop.\"t\"", "names are not quoted"),
            ("without=shop.", "a part of it is missing"),
            ("difference=ignore", "one of stop, repair"),
            ("compare=all", "one of key, changed, row"),
            ("http=9308", "write address:port"),
            ("source_gtid=on", "set merge = 1"),
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
        let missing = Config::settle(&Given::new(&REPLICA)).expect_err("nothing");
        assert!(missing.to_string().contains("no source given"), "{missing}");
    }

    #[test]
    fn defaults_can_be_written_or_are_empty() {
        for (key, _, default) in SETTINGS {
            let value = match default.strip_prefix('(') {
                Some(_) => "",
                None if default.is_empty() => continue,
                None => default,
            };
            let said = settled(&[&format!("{key} = {value}")]).expect(key);
            let unsaid = settled(&[]).expect("enough");
            assert_eq!(format!("{said:?}"), format!("{unsaid:?}"), "{key}");
        }
        let progress = settled(&["progress = never"]).expect("a word").progress;
        assert_eq!(progress, Duration::ZERO);
    }

    /// The source's GTIDs in the target's binlog, and what cannot give them.
    #[test]
    fn gtids_of_the_source() {
        let with = |lines: &[&str]| settled(&[&["source_gtid=on"], lines].concat());
        let config = with(&["merge=1"]).expect("fine");
        assert!(config.settings.source_gtid);
        assert!(!settled(&[]).expect("enough").settings.source_gtid);
        for (lines, why) in [
            (&["merge=2"][..], "set merge = 1"),
            (&["merge=auto"], "set merge = 1"),
            (&["merge=1", "commit_order=group"], "commit_order = strict"),
            (&["merge=1", "binlog=off"], "binlog = off"),
        ] {
            let error = with(lines).expect_err("it cannot");
            assert!(error.contains(why), "{lines:?}: {error}");
        }
    }
}
