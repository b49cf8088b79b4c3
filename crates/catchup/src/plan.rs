//! What is to be measured, and what is refused before anything starts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{bail, ensure};
use dromon_load::bench::refuse_twice;
use dromon_load::paper::refuse_results;
use dromon_sandbox::{Setting, split_settings};

/// What a server's `slave_parallel_threads` and the replica's `threads` are worth trying.
const THREADS_MAX: u32 = 256;
/// Fewer say nothing.
const TRANSACTIONS_MIN: u64 = 50;
const TRANSACTIONS_MAX: u64 = 10_000_000;
const ROWS_MIN: u64 = 1_000;
const ROWS_MAX: u64 = 20_000_000;

/// What the one client commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Updates of single rows.
    W1,
    /// Five rows each.
    W2,
    /// Two rows; every fourth takes one of four hot rows first.
    W3,
    /// Single rows, and a TRUNCATE of another table after each 50.
    W4,
    /// Unique keys and rows with foreign keys that come and go.
    W5,
    /// One to eight rows, then one of four hot rows.
    W6,
}

impl Workload {
    /// All of them, as on the command line.
    pub const ALL: &'static str = "w1,w2,w3,w4,w5,w6";

    /// Transactions unless said otherwise.
    #[must_use]
    pub fn transactions(self) -> u64 {
        match self {
            Self::W1 => 60_000,
            Self::W2 => 12_000,
            Self::W3 => 20_000,
            Self::W4 => 10_000,
            Self::W5 => 10_500,
            Self::W6 => 6_000,
        }
    }

    /// Whether many of its transactions wait for the same few rows.
    #[must_use]
    pub fn is_hot(self) -> bool {
        matches!(self, Self::W3 | Self::W6)
    }

    /// In a few words.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::W1 => "single rows",
            Self::W2 => "5 rows each",
            Self::W3 => "2 rows, a hot one first in every 4th",
            Self::W4 => "single rows, TRUNCATE every 50",
            Self::W5 => "unique and foreign keys",
            Self::W6 => "1 to 8 rows, a hot one last",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::W1 => "w1",
            Self::W2 => "w2",
            Self::W3 => "w3",
            Self::W4 => "w4",
            Self::W5 => "w5",
            Self::W6 => "w6",
        })
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "w1" => Ok(Self::W1),
            "w2" => Ok(Self::W2),
            "w3" => Ok(Self::W3),
            "w4" => Ok(Self::W4),
            "w5" => Ok(Self::W5),
            "w6" => Ok(Self::W6),
            _ => Err(format!("there is no workload {text}. Write {}", Self::ALL)),
        }
    }
}

/// What the replica's server has to live with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Everything fits into memory and commits wait for nothing.
    Memory,
    /// Every commit is synced, and each fsync takes longer.
    SlowCommit,
    /// A fifth of the table fits into memory, and each read of a page takes longer.
    CacheMiss,
}

impl Condition {
    /// All of them, as on the command line.
    pub const ALL: &'static str = "memory,slow-commit,cache-miss";

    /// Whether all rows fit into memory.
    #[must_use]
    pub fn is_warm(self) -> bool {
        self != Self::CacheMiss
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::SlowCommit => "slow-commit",
            Self::CacheMiss => "cache-miss",
        })
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            "slow-commit" => Ok(Self::SlowCommit),
            "cache-miss" => Ok(Self::CacheMiss),
            _ => Err(format!("there is no condition {text}. Write {}", Self::ALL)),
        }
    }
}

/// `slave_parallel_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerMode {
    /// Only commits of one commit group of the primary run side by side.
    Minimal,
    /// Commit groups of the primary run side by side.
    Conservative,
    /// All that may be rolled back runs side by side.
    Optimistic,
    /// The same, and what waited on the primary, too.
    Aggressive,
}

impl fmt::Display for ServerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minimal => "minimal",
            Self::Conservative => "conservative",
            Self::Optimistic => "optimistic",
            Self::Aggressive => "aggressive",
        })
    }
}

impl FromStr for ServerMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "minimal" => Ok(Self::Minimal),
            "conservative" => Ok(Self::Conservative),
            "optimistic" => Ok(Self::Optimistic),
            "aggressive" => Ok(Self::Aggressive),
            _ => Err(format!(
                "the server has no mode {text}. Write minimal, conservative, optimistic or aggressive (serial is always measured)"
            )),
        }
    }
}

/// `mode`, `merge` and `compare` of `dromon replica`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaMode {
    /// Which units run side by side.
    pub mode: String,
    /// Most transactions of the source in one of the target; none: `auto`.
    pub merge: Option<u32>,
    /// Nothing of a row is compared but its key, as by the server's own threads (`compare = key`).
    pub key: bool,
}

impl fmt::Display for ReplicaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mode)?;
        if let Some(merge) = self.merge {
            write!(f, ":{merge}")?;
        }
        match self.key {
            true => f.write_str(":key"),
            false => Ok(()),
        }
    }
}

impl FromStr for ReplicaMode {
    type Err = String;

    /// `MODE[:MERGE][:key]`.
    fn from_str(text: &str) -> Result<Self, String> {
        const MODES: [&str; 6] = [
            "none",
            "database",
            "conservative",
            "optimistic",
            "aggressive",
            "writeset",
        ];
        let (most, key) = text
            .strip_suffix(":key")
            .map_or((text, false), |most| (most, true));
        let (mode, merge) = most
            .split_once(':')
            .map_or((most, None), |(mode, merge)| (mode, Some(merge)));
        if !MODES.contains(&mode) {
            return Err(format!(
                "dromon replica has no mode {mode}. Write one of {}, and behind it the most transactions in one if they are not to be found: writeset:1",
                MODES.join(", ")
            ));
        }
        let number = |merge: &str| {
            let merge = merge.parse().ok().filter(|n| (1..=100_000).contains(n));
            merge.ok_or(format!("{text}: merge is a number from 1 to 100000"))
        };
        let merge = merge.map(number).transpose()?;
        Ok(Self {
            mode: mode.to_string(),
            merge,
            key,
        })
    }
}

/// What commit ids a replica gets from the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The primary's.
    Pass,
    /// The relay's own: what may run side by side has one id.
    Group,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Group => "group",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pass" => Ok(Self::Pass),
            "group" => Ok(Self::Group),
            _ => Err(format!("a relay has no policy {text}. Write pass or group")),
        }
    }
}

/// How many apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threads {
    /// So many.
    Fixed(u32),
    /// What `dromon replica` finds best by trying.
    Auto,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(n)) => Ok(Self::Fixed(n)),
            _ => Err(format!("threads are a number or auto, not {text:?}")),
        }
    }
}

/// What catches up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Candidate {
    /// The server itself, without parallel threads: what all others are compared with.
    Serial,
    /// The server's own parallel threads.
    BuiltIn(ServerMode, u32),
    /// The same, conservative, behind `dromon relay`.
    Relay(Policy, u32),
    /// `dromon replica`.
    Replica(ReplicaMode, Threads),
}

impl Candidate {
    /// What it is called in the results, without its threads: a line of a chart.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Serial => "built-in serial".into(),
            Self::BuiltIn(mode, _) => format!("built-in {mode}"),
            Self::Relay(policy, _) => format!("relay {policy}, conservative"),
            Self::Replica(mode, _) => format!("replica {mode}"),
        }
    }

    /// From [`Self::line`] and [`Self::threads`].
    ///
    /// # Errors
    /// When there is no such candidate.
    pub fn read(line: &str, threads: Threads) -> Result<Self, String> {
        if line == "built-in serial" {
            return Ok(Self::Serial);
        }
        if let Some(mode) = line.strip_prefix("replica ") {
            return Ok(Self::Replica(mode.parse()?, threads));
        }
        let Threads::Fixed(threads) = threads else {
            return Err(format!("{line} has a number of threads, not auto"));
        };
        if let Some(mode) = line.strip_prefix("built-in ") {
            return Ok(Self::BuiltIn(mode.parse()?, threads));
        }
        match relay_policy(line) {
            Some(policy) => Ok(Self::Relay(policy.parse()?, threads)),
            None => Err(format!("nobody who catches up is called {line}")),
        }
    }

    /// Threads or connections that apply.
    #[must_use]
    pub fn threads(&self) -> Threads {
        match self {
            Self::Serial => Threads::Fixed(1),
            Self::BuiltIn(_, n) | Self::Relay(_, n) => Threads::Fixed(*n),
            Self::Replica(_, threads) => *threads,
        }
    }

    /// Whether the server applies, without anything of ours.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self, Self::Serial | Self::BuiltIn(..))
    }
}

fn relay_policy(line: &str) -> Option<&str> {
    line.strip_prefix("relay ")?.strip_suffix(", conservative")
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial => f.write_str("built-in serial"),
            other => write!(f, "{}, {} threads", other.line(), other.threads()),
        }
    }
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `dromon` program, for relay and replica.
    pub program: PathBuf,
    /// What is committed.
    pub workloads: Vec<Workload>,
    /// What the replica's server has to live with.
    pub conditions: Vec<Condition>,
    /// Thread counts of all that has threads, and whether the replica finds its own.
    pub threads: Vec<Threads>,
    /// The server's own modes, besides serial.
    pub built_in: Vec<ServerMode>,
    /// Modes of `dromon replica`.
    pub replica: Vec<ReplicaMode>,
    /// Conservative servers behind a relay, with these.
    pub relay: Vec<Policy>,
    /// Transactions of each workload; none: [`Workload::transactions`].
    pub transactions: Option<u64>,
    /// Rows of the table.
    pub rows: u64,
    /// What each fsync takes longer in [`Condition::SlowCommit`].
    pub fsync: Duration,
    /// What each read of a page takes longer in [`Condition::CacheMiss`].
    pub read: Duration,
    /// The most a candidate is measured for; what it did until then counts.
    pub limit: Duration,
    /// Times everything is done.
    pub rounds: usize,
    /// Settings of the replica's server.
    pub settings: Vec<Setting>,
    /// Where the servers lie; none: a new directory for temporary files.
    pub dir: Option<PathBuf>,
    /// First port; none: free ones are looked for.
    pub port: Option<u16>,
    /// Where tables, CSV and charts go.
    pub out: Option<PathBuf>,
    /// `out` holds results already: what they lack is measured.
    pub resume: bool,
}

impl Plan {
    /// Refuses what cannot be measured, before anything is started or written.
    ///
    /// # Errors
    /// A sentence that says what to do instead.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            !self.workloads.is_empty() && !self.conditions.is_empty() && self.rounds > 0,
            "Nothing would be measured: name at least one workload, one condition and one round"
        );
        refuse_twice("workload", &self.workloads)?;
        refuse_twice("condition", &self.conditions)?;
        refuse_twice("number of threads", &self.threads)?;
        refuse_twice("mode of the server", &self.built_in)?;
        refuse_twice("policy", &self.relay)?;
        let names: Vec<String> = self.replica.iter().map(ToString::to_string).collect();
        refuse_twice("mode of the replica", &names)?;
        let others = self.built_in.len() + self.replica.len() + self.relay.len();
        ensure!(
            others == 0 || !self.threads.is_empty(),
            "Name at least one number of threads, for instance --threads 1,8,32"
        );
        let servers = self.built_in.len() + self.relay.len();
        ensure!(
            servers == 0 || self.numbers().next().is_some(),
            "A server finds no number of threads by itself, only the replica does: name one besides auto, --threads 8,auto, or leave out the \
             servers with threads, --built-in none --relay none"
        );
        if let Some(bad) = self.numbers().find(|n| !(1..=THREADS_MAX).contains(n)) {
            bail!("{bad} threads cannot be measured; give numbers from 1 to {THREADS_MAX}");
        }
        if let Some(n) = self.transactions {
            ensure!(
                (TRANSACTIONS_MIN..=TRANSACTIONS_MAX).contains(&n),
                "{n} transactions are no backlog; give --transactions {TRANSACTIONS_MIN} to {TRANSACTIONS_MAX}"
            );
        }
        ensure!(
            (ROWS_MIN..=ROWS_MAX).contains(&self.rows),
            "A table of {} rows cannot be used; give --rows {ROWS_MIN} to {ROWS_MAX}",
            self.rows
        );
        ensure!(
            self.limit >= Duration::from_secs(1),
            "A candidate needs at least a second: --limit 60"
        );
        for (condition, delay, option) in [
            (Condition::SlowCommit, self.fsync, "--fsync-ms 4"),
            (Condition::CacheMiss, self.read, "--read-ms 2"),
        ] {
            // What takes no longer is not counted either, so that nothing is known of it.
            ensure!(
                !self.conditions.contains(&condition) || !delay.is_zero(),
                "A disk that is not slow says nothing of {condition}: {option}, or leave it out of --conditions"
            );
        }
        let (_, options) = split_settings(&self.settings)?;
        ensure!(
            options.is_none(),
            "These servers are in no cluster: leave wsrep_provider_options out"
        );
        match &self.out {
            Some(out) if !self.resume => refuse_results(out),
            None if self.resume => {
                bail!("There is nothing to go on with: name the results, --out DIR")
            }
            _ => Ok(()),
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.iter().filter_map(|threads| match threads {
            Threads::Fixed(n) => Some(*n),
            Threads::Auto => None,
        })
    }

    /// Everything that is compared, serial first.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut all = vec![Candidate::Serial];
        let threads = || self.numbers();
        for mode in &self.built_in {
            all.extend(threads().map(|n| Candidate::BuiltIn(*mode, n)));
        }
        for policy in &self.relay {
            all.extend(threads().map(|n| Candidate::Relay(*policy, n)));
        }
        for mode in &self.replica {
            let threads = self.threads.iter().copied();
            all.extend(threads.map(|n| Candidate::Replica(mode.clone(), n)));
        }
        all
    }

    /// Transactions of a workload.
    #[must_use]
    pub fn transactions(&self, workload: Workload) -> u64 {
        self.transactions.unwrap_or(workload.transactions())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Plan {
        Plan {
            program: "/bin/true".into(),
            workloads: vec![Workload::W1],
            conditions: vec![Condition::Memory],
            threads: vec![Threads::Fixed(1), Threads::Fixed(8)],
            built_in: vec![ServerMode::Optimistic],
            replica: vec!["writeset".parse().expect("a mode")],
            relay: vec![Policy::Group],
            transactions: Some(100),
            rows: 1000,
            fsync: Duration::from_millis(4),
            read: Duration::from_millis(2),
            limit: Duration::from_secs(60),
            rounds: 1,
            settings: Vec::new(),
            dir: None,
            port: None,
            out: None,
            resume: false,
        }
    }

    #[test]
    fn names_are_read_and_written_alike() {
        for name in Workload::ALL.split(',') {
            let workload: Workload = name.parse().expect("a workload");
            assert_eq!(workload.to_string(), name);
        }
        for name in Condition::ALL.split(',') {
            let condition: Condition = name.parse().expect("a condition");
            assert_eq!(condition.to_string(), name);
        }
        for name in ["minimal", "conservative", "optimistic", "aggressive"] {
            let mode: ServerMode = name.parse().expect("a mode");
            assert_eq!(mode.to_string(), name);
        }
        for name in ["pass", "group"] {
            let policy: Policy = name.parse().expect("a policy");
            assert_eq!(policy.to_string(), name);
        }
        for bad in ["", "w0", "W1", "serial"] {
            assert!(bad.parse::<Workload>().is_err() && bad.parse::<ServerMode>().is_err());
            assert!(bad.parse::<Condition>().is_err() && bad.parse::<Policy>().is_err());
        }
    }

    #[test]
    fn a_mode_of_the_replica_may_say_how_many_are_merged() {
        let mode: ReplicaMode = "optimistic:1".parse().expect("a mode");
        assert_eq!((mode.mode.as_str(), mode.merge), ("optimistic", Some(1)));
        let mode: ReplicaMode = "none".parse().expect("a mode");
        assert_eq!((mode.mode.as_str(), mode.merge), ("none", None));
        for (text, merge) in [("writeset:key", None), ("writeset:300:key", Some(300))] {
            let mode: ReplicaMode = text.parse().expect("a mode");
            assert_eq!((mode.merge, mode.key), (merge, true));
            assert_eq!(mode.to_string(), text);
        }
        for bad in [
            "",
            "group",
            "writeset:0",
            "writeset:x",
            ":5",
            "key",
            "writeset:key:5",
        ] {
            assert!(bad.parse::<ReplicaMode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn all_are_compared_with_serial() {
        let names: Vec<String> = sample()
            .candidates()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            names,
            [
                "built-in serial",
                "built-in optimistic, 1 threads",
                "built-in optimistic, 8 threads",
                "relay group, conservative, 1 threads",
                "relay group, conservative, 8 threads",
                "replica writeset, 1 threads",
                "replica writeset, 8 threads",
            ]
        );
    }

    /// Only the replica finds its threads by itself.
    #[test]
    fn auto_is_beside_the_numbers() {
        let mut plan = sample();
        plan.threads = vec![Threads::Fixed(8), Threads::Auto];
        let names: Vec<String> = plan.candidates().iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "built-in serial",
                "built-in optimistic, 8 threads",
                "relay group, conservative, 8 threads",
                "replica writeset, 8 threads",
                "replica writeset, auto threads",
            ]
        );
        plan.check().expect("fine");
        (plan.threads, plan.built_in, plan.relay) = (vec![Threads::Auto], Vec::new(), Vec::new());
        plan.check().expect("nobody else has threads");
        for text in ["auto", "8"] {
            let threads: Threads = text.parse().expect("threads");
            assert_eq!(threads.to_string(), text);
        }
        for bad in ["", "Auto", "-1", "8x"] {
            assert!(bad.parse::<Threads>().is_err(), "{bad}");
        }
    }

    #[test]
    fn candidates_are_read_as_they_are_written() {
        let mut plan = sample();
        plan.threads.push(Threads::Auto);
        plan.built_in = ["minimal", "conservative", "optimistic", "aggressive"]
            .map(|m| m.parse().expect("a mode"))
            .to_vec();
        plan.relay = vec![Policy::Pass, Policy::Group];
        plan.replica = ["none", "writeset:1", "optimistic:100"]
            .map(|m| m.parse().expect("a mode"))
            .to_vec();
        for candidate in plan.candidates() {
            let read = Candidate::read(&candidate.line(), candidate.threads());
            assert_eq!(read, Ok(candidate));
        }
        for bad in [
            "",
            "built-in",
            "built-in x",
            "relay group",
            "relay x, conservative",
            "replica x",
        ] {
            assert!(Candidate::read(bad, Threads::Fixed(1)).is_err(), "{bad}");
        }
        let why = Candidate::read("built-in optimistic", Threads::Auto).expect_err("no auto");
        assert!(why.contains("not auto"), "{why}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(sample().check().is_ok());
        let refused = |change: fn(&mut Plan), word: &str| {
            let mut plan = sample();
            change(&mut plan);
            let error = plan.check().expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(|p| p.workloads.clear(), "at least one workload");
        refused(|p| p.rounds = 0, "one round");
        refused(|p| p.threads.clear(), "--threads");
        refused(|p| p.threads.push(Threads::Fixed(257)), "257 threads");
        refused(|p| p.threads.push(Threads::Fixed(8)), "8 is named twice");
        refused(|p| p.threads = vec![Threads::Auto], "besides auto");
        refused(
            |p| p.threads = vec![Threads::Auto, Threads::Auto],
            "auto is named twice",
        );
        refused(|p| p.workloads.push(Workload::W1), "w1 is named twice");
        refused(|p| p.transactions = Some(3), "3 transactions");
        refused(|p| p.rows = 3, "3 rows");
        refused(|p| p.limit = Duration::ZERO, "--limit");
        refused(
            |p| (p.conditions, p.read) = (vec![Condition::CacheMiss], Duration::ZERO),
            "--read-ms",
        );
        refused(
            |p| (p.conditions, p.fsync) = (vec![Condition::SlowCommit], Duration::ZERO),
            "--fsync-ms",
        );
        refused(
            |p| p.settings = vec!["port=1".parse().expect("a setting")],
            "port",
        );
        refused(|p| p.out = Some("/bin/true".into()), "is a file");
        refused(|p| p.resume = true, "--out DIR");
    }
}
