//! What is to be measured, and what is refused before anything starts.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{bail, ensure};
use dromon_load::arrivals::Spread;
use dromon_load::bench::refuse_twice;
use dromon_load::paper::refuse_results;
use dromon_sandbox::{SandboxError, Setting, split_settings};

/// Fewer are no large transaction.
const ROWS_MIN: u64 = 1_000;
const ROWS_MAX: u64 = 50_000_000;
const LOAD_MIN: u64 = 1 << 20;
/// A write set larger than this the server refuses (`wsrep_max_ws_size`).
const LOAD_MAX: u64 = (2 << 30) - (64 << 20);
/// What `wsrep_trx_fragment_size` takes.
const FRAGMENT_MAX: u64 = u32::MAX as u64;

/// A library, how it is called in the results, its options, and settings of its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// As in the results.
    pub name: String,
    /// The library.
    pub path: PathBuf,
    /// `wsrep_provider_options` for this library alone.
    pub options: String,
    /// Server settings for this library alone; they win over [`Plan::settings`].
    pub settings: Vec<Setting>,
}

impl Provider {
    /// What is set for it alone, in a line; nothing if nothing is.
    pub(crate) fn differs(&self) -> Option<String> {
        let mut parts = Vec::new();
        if !self.options.is_empty() {
            parts.push(self.options.clone());
        }
        parts.extend(self.settings.iter().map(|s| match &s.value {
            Some(value) => format!("{}={value}", s.name),
            None => s.name.clone(),
        }));
        (!parts.is_empty()).then(|| format!("{}: {}", self.name, parts.join("; ")))
    }
}

impl FromStr for Provider {
    type Err = String;

    /// `[NAME=]PATH[?OPTION=VALUE;…][#SETTING=VALUE;…]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (text, settings) = text.split_once('#').unwrap_or((text, ""));
        let (place, options) = text.split_once('?').unwrap_or((text, ""));
        let (name, path) = match place.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name), path),
            _ => (None, place),
        };
        if path.is_empty() || name == Some("") {
            return Err(
                "write the path of a library, NAME=PATH, PATH?OPTION=VALUE;…, or PATH#SETTING=VALUE;…"
                    .into(),
            );
        }
        let path = PathBuf::from(path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.unwrap_or(stem.strip_prefix("lib").unwrap_or(&stem));
        if let Some(bad) = name.chars().find(|c| c.is_control() || *c == ',') {
            return Err(format!("a name cannot hold {bad:?}"));
        }
        Ok(Self {
            name: name.to_string(),
            path,
            options: options.to_string(),
            settings: settings
                .split(';')
                .filter(|setting| !setting.trim().is_empty())
                .map(|setting| setting.parse().map_err(|e: SandboxError| e.to_string()))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// How the large transaction travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In one go: no streaming.
    Whole,
    /// Streamed by the provider itself (`dromon.auto_stream_size`).
    Auto,
    /// `wsrep_trx_fragment_size`, unit bytes.
    Bytes(u64),
    /// `wsrep_trx_fragment_size`, unit rows.
    Rows(u64),
}

impl Mode {
    /// All that one run compares, unless told otherwise.
    pub const ALL: &'static str = "whole,auto,10k,100k,1M,1000rows";

    /// Unit and size of the server's fragments; none: the server sends one
    /// write set.
    pub(crate) fn fragments(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Whole | Self::Auto => None,
            Self::Bytes(size) => Some(("bytes", size)),
            Self::Rows(size) => Some(("rows", size)),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = match (text, text.strip_suffix("rows")) {
            ("whole", _) => Self::Whole,
            ("auto", _) => Self::Auto,
            (_, Some(rows)) => Self::Rows(rows.parse().map_err(|_| unknown(text))?),
            _ => Self::Bytes(parse_size(text).map_err(|_| unknown(text))?),
        };
        match mode.fragments() {
            Some((_, size)) if size == 0 || size > FRAGMENT_MAX => Err(format!(
                "{text}: a fragment has 1 to {FRAGMENT_MAX} bytes or rows; `whole` sends no fragments"
            )),
            _ => Ok(mode),
        }
    }
}

fn unknown(text: &str) -> String {
    format!(
        "there is no mode {text}. Write whole, auto, a fragment size such as 100k or 1M, or a number of rows such as 1000rows"
    )
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole => f.write_str("whole"),
            Self::Auto => f.write_str("auto"),
            Self::Rows(rows) => write!(f, "{rows}rows"),
            Self::Bytes(size) if size % (1 << 20) == 0 => write!(f, "{}M", size >> 20),
            Self::Bytes(size) if size % (1 << 10) == 0 => write!(f, "{}k", size >> 10),
            Self::Bytes(size) => write!(f, "{size}"),
        }
    }
}

/// Bytes, with k, M or G behind the number: 1024, 1024², 1024³.
///
/// # Errors
/// A sentence that says what to write.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is not a size; write for instance 500k, 200M or 1G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// The large transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Large {
    /// One UPDATE of all rows of a table.
    Update {
        /// Rows in the table.
        rows: u64,
    },
    /// One LOAD DATA into an empty table.
    Load {
        /// Bytes of the file.
        bytes: u64,
    },
}

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Update { rows } => write!(f, "UPDATE of {rows} rows"),
            Self::Load { bytes } => write!(f, "LOAD DATA of {:.1} MB", *bytes as f64 / 1e6),
        }
    }
}

/// How fast the small transactions come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each client sends the next one when it has the answer.
    Closed,
    /// At a part of what the cluster did in closed loop just before.
    Share {
        /// Above 0, at most 1.
        part: f64,
        /// How arrivals are spread.
        spread: Spread,
    },
    /// At a number per second, all clients together.
    Rate {
        /// Above 0.
        per_second: f64,
        /// How arrivals are spread.
        spread: Spread,
    },
}

/// The load of small transactions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Small {
    /// UPDATE of one row by primary key.
    Clients {
        /// Connections, spread over all nodes.
        clients: usize,
        /// How fast they go.
        pace: Pace,
    },
    /// sysbench oltp_read_write, closed loop.
    Sysbench {
        /// Its threads, spread over all nodes.
        threads: u32,
    },
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Libraries to measure, one after the other. Empty with `cluster`.
    pub providers: Vec<Provider>,
    /// The directory of a running cluster to use instead.
    pub cluster: Option<PathBuf>,
    /// Where clusters are made; none: a new directory for temporary files.
    pub dir: Option<PathBuf>,
    /// Where samples, events, summary and charts go.
    pub out: Option<PathBuf>,
    /// Servers in a cluster.
    pub nodes: usize,
    /// `wsrep_slave_threads`.
    pub appliers: usize,
    /// Server settings.
    pub settings: Vec<Setting>,
    /// The large transaction; it runs on the first node.
    pub large: Large,
    /// What runs beside it.
    pub small: Small,
    /// How the large one travels.
    pub modes: Vec<Mode>,
    /// Times all of it is done.
    pub rounds: usize,
    /// How long the small ones run alone before.
    pub before: Duration,
    /// And after.
    pub after: Duration,
    /// The most the large one may take.
    pub limit: Duration,
    /// Value for `dromon.auto_stream_size` in mode auto; none: what the
    /// provider says by itself.
    pub auto_stream_size: Option<u64>,
}

impl Plan {
    /// Refuses what cannot be measured, before anything is started or written.
    ///
    /// # Errors
    /// A sentence that says what to do instead.
    pub fn check(&self) -> anyhow::Result<()> {
        match (&self.cluster, self.providers.is_empty()) {
            (Some(_), false) => bail!(
                "A running cluster has its library already. Give either --cluster or --provider"
            ),
            (None, true) => bail!(
                "Name what is to be measured: --provider PATH (several are measured one after the other), or --cluster DIR for a running cluster"
            ),
            _ => {}
        }
        for (i, provider) in self.providers.iter().enumerate() {
            let path = &provider.path;
            ensure!(
                fs::metadata(path).is_ok_and(|m| m.is_file()),
                "There is no provider library at {}. Nothing was started",
                path.display()
            );
            ensure!(
                self.providers[..i].iter().all(|p| p.name != provider.name),
                "Two providers are called {}. Name them: --provider one=PATH --provider other=PATH",
                provider.name
            );
        }
        let (settings, options) = split_settings(&self.settings)?;
        let mut given = options.is_some();
        for provider in &self.providers {
            given |= split_settings(&provider.settings)?.1.is_some();
        }
        ensure!(
            !given,
            "wsrep_provider_options differ from library to library: give them with it, --provider 'PATH?OPTION=VALUE;…'"
        );
        ensure!(
            self.cluster.is_none() || settings.is_empty(),
            "A running cluster has its settings already; leave {} out, or start one with --provider",
            settings.first().map_or("", |s| s.name.as_str())
        );
        self.check_large()?;
        self.check_small()?;
        ensure!(
            !self.modes.is_empty() && self.rounds > 0,
            "Nothing would be measured: name at least one mode and one round"
        );
        refuse_twice("mode", &self.modes)?;
        ensure!(
            self.nodes >= 2,
            "A large transaction stalls others where it is applied: at least two nodes are needed"
        );
        match &self.out {
            Some(out) => refuse_results(out),
            None => Ok(()),
        }
    }

    fn check_large(&self) -> anyhow::Result<()> {
        match self.large {
            Large::Update { rows } => {
                ensure!(
                    rows >= ROWS_MIN,
                    "{rows} rows are too few for a large transaction; give --rows {ROWS_MIN} or more (300000 shows a stall)"
                );
                ensure!(
                    rows <= ROWS_MAX,
                    "{rows} rows are more than one write set holds; give at most --rows {ROWS_MAX}"
                );
            }
            Large::Load { bytes } => {
                ensure!(
                    bytes >= LOAD_MIN,
                    "A file of {bytes} bytes is too small for a large transaction; give --load-data 1M or more"
                );
                ensure!(
                    bytes <= LOAD_MAX,
                    "The server refuses write sets of 2 GB (wsrep_max_ws_size); give at most --load-data {}M",
                    LOAD_MAX >> 20
                );
            }
        }
        Ok(())
    }

    fn check_small(&self) -> anyhow::Result<()> {
        match self.small {
            Small::Clients { clients, pace } => {
                ensure!(
                    clients >= self.nodes,
                    "{clients} clients cannot be spread over {} nodes; give --clients {} or more",
                    self.nodes,
                    self.nodes
                );
                match pace {
                    Pace::Closed => {}
                    Pace::Share { part, .. } => ensure!(
                        part > 0.0 && part <= 1.0,
                        "--offered {part} is not a part of what the cluster can do; give a number above 0, at most 1, for instance 0.4"
                    ),
                    Pace::Rate { per_second, .. } => ensure!(
                        per_second > 0.0 && per_second <= 1e6,
                        "--rate {per_second} is not a number of transactions per second; give for instance 200"
                    ),
                }
            }
            Small::Sysbench { threads } => ensure!(
                threads as usize >= self.nodes,
                "{threads} threads cannot be spread over {} nodes; give --threads {} or more",
                self.nodes,
                self.nodes
            ),
        }
        ensure!(
            self.before >= Duration::from_secs(1),
            "The small transactions need at least one second alone, to compare with: --before 5"
        );
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Plan {
        Plan {
            providers: vec!["/bin/sh".parse().expect("a path")],
            cluster: None,
            dir: None,
            out: None,
            nodes: 3,
            appliers: 8,
            settings: Vec::new(),
            large: Large::Update { rows: 300_000 },
            small: Small::Clients {
                clients: 8,
                pace: Pace::Closed,
            },
            modes: vec![Mode::Whole],
            rounds: 1,
            before: Duration::from_secs(5),
            after: Duration::from_secs(3),
            limit: Duration::from_secs(900),
            auto_stream_size: None,
        }
    }

    #[test]
    fn modes_are_read_and_written_alike() {
        for name in Mode::ALL.split(',') {
            let mode: Mode = name.parse().expect("a mode");
            assert_eq!(mode.to_string(), name);
        }
        assert_eq!("10k".parse(), Ok(Mode::Bytes(10240)));
        assert_eq!("1000rows".parse(), Ok(Mode::Rows(1000)));
        for bad in ["", "none", "0", "0rows", "rows", "10x", "5G", "-1k"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn providers_have_names_and_options_of_their_own() {
        let read = |text: &str| {
            let p: Provider = text.parse().expect("a provider");
            let all: Vec<String> = p.settings.iter().map(|s| format!("{s:?}")).collect();
            assert_eq!(all.len(), text.matches('#').count(), "{text}: {all:?}");
            (p.name, p.path.display().to_string(), p.options)
        };
        let said = |a: &str, b: &str, c: &str| (a.to_string(), b.to_string(), c.to_string());
        assert_eq!(
            read("/a/libdromon.so"),
            said("dromon", "/a/libdromon.so", "")
        );
        assert_eq!(
            read("memory=/a/libdromon.so?dromon.durability=memory"),
            said("memory", "/a/libdromon.so", "dromon.durability=memory")
        );
        assert_eq!(read("./x=y/z.so"), said("z", "./x=y/z.so", ""));
        let text = "flush=/a/libg.so?b=c;d=e#innodb_flush_log_at_trx_commit=1";
        assert_eq!(read(text), said("flush", "/a/libg.so", "b=c;d=e"));
        let p: Provider = text.parse().expect("a provider");
        let setting = Setting::new("innodb_flush_log_at_trx_commit", "1");
        assert_eq!(p.settings, [setting]);
        let differs = "flush: b=c;d=e; innodb_flush_log_at_trx_commit=1";
        assert_eq!(p.differs().as_deref(), Some(differs));
        let p: Provider = "/a/b.so#x=1;skip-y;".parse().expect("a provider");
        assert_eq!(p.settings.len(), 2);
        assert_eq!(p.differs().as_deref(), Some("b: x=1; skip-y"));
        for bad in ["", "a=", "=b", "a,b=c", "#a=b", "a#b c=d"] {
            assert!(bad.parse::<Provider>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("200M"), Ok(200 << 20));
        assert_eq!(parse_size("7"), Ok(7));
        for bad in ["", "M", "1T", "1.5G", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        assert!(sample().check().is_ok());
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut plan = sample();
            change(&mut plan);
            plan.check().expect_err("refused").to_string()
        };
        let pace = |pace| move |p: &mut Plan| p.small = Small::Clients { clients: 8, pace };
        let share = |part| Pace::Share {
            part,
            spread: Spread::Poisson,
        };
        let table: Vec<(String, &str)> = vec![
            (
                refused(&|p| p.large = Large::Update { rows: 999 }),
                "--rows 1000",
            ),
            (
                refused(&|p| p.large = Large::Load { bytes: 9 }),
                "--load-data 1M",
            ),
            (
                refused(&|p| p.large = Large::Load { bytes: 2 << 30 }),
                "wsrep_max_ws_size",
            ),
            (refused(&pace(share(0.0))), "--offered 0"),
            (refused(&pace(share(1.5))), "for instance 0.4"),
            (refused(&pace(share(f64::NAN))), "--offered NaN"),
            (
                refused(&|p| p.small = Small::Sysbench { threads: 2 }),
                "--threads 3",
            ),
            (refused(&|p| p.nodes = 9), "--clients 9"),
            (refused(&|p| p.nodes = 1), "at least two nodes"),
            (refused(&|p| p.modes = vec![]), "at least one mode"),
            (
                refused(&|p| p.modes = vec![Mode::Auto, Mode::Auto]),
                "named twice",
            ),
            (refused(&|p| p.before = Duration::ZERO), "--before"),
            (refused(&|p| p.providers.clear()), "--cluster DIR"),
            (
                refused(&|p| p.cluster = Some("/x".into())),
                "either --cluster or",
            ),
            (
                refused(&|p| p.providers[0].path = "/nothing.so".into()),
                "/nothing.so",
            ),
            (
                refused(&|p| p.providers.push(p.providers[0].clone())),
                "called sh",
            ),
            (refused(&|p| p.out = Some("/bin/sh".into())), "is a file"),
            (
                refused(&|p| p.out = Some("/proc".into())),
                "nothing was touched",
            ),
            (
                refused(&|p| p.settings = vec![Setting::new("wsrep_provider_options", "a=b")]),
                "PATH?OPTION",
            ),
        ];
        for (said, wanted) in table {
            assert!(said.contains(wanted), "{wanted:?} is missing in: {said}");
        }
    }
}
