//! `dromon bench catchup`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use dromon_catchup::{
    Condition, Plan, Policy, ReplicaMode, ServerMode, Threads, Workload, write_files,
};
use dromon_sandbox::Setting;

use super::told;
use crate::output;

/// Options of `dromon bench catchup`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What the numbers mean: docs/bench.md. Exit codes: 0 measured, 1 refused, a candidate failed or its tables are not the primary's, 2 words that are not known.\n\nExamples:\n  dromon bench catchup --out catchup\n  dromon bench catchup --out catchup --resume\n  dromon bench catchup --workloads w1 --conditions slow-commit --threads 8,32 --built-in optimistic --relay none --limit 20\n  dromon bench catchup --workloads w1,w6 --conditions cache-miss --replica writeset:1,writeset:100,optimistic:1"
)]
pub struct Catchup {
    /// What one client commits, with commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = Workload::ALL)]
    workloads: Vec<Workload>,
    /// What the replica's server has to live with.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = Condition::ALL)]
    conditions: Vec<Condition>,
    /// Numbers of threads; auto: those that dromon replica finds by itself.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,auto"
    )]
    threads: Vec<Threads>,
    /// The server's own modes, or none: minimal, conservative, optimistic, aggressive. Serial is always measured.
    #[arg(long, value_name = "LIST", value_parser = List::<ServerMode>::read, default_value = "minimal,conservative,optimistic,aggressive")]
    built_in: List<ServerMode>,
    /// Modes of dromon replica, how many transactions it merges, and key if it compares nothing else, as the server's own threads; or none.
    #[arg(long, value_name = "MODE[:MERGE][:key],…", value_parser = List::<ReplicaMode>::read, default_value = "writeset")]
    replica: List<ReplicaMode>,
    /// Conservative servers behind dromon relay with these policies, or none: group, pass.
    #[arg(long, value_name = "LIST", value_parser = List::<Policy>::read, default_value = "group")]
    relay: List<Policy>,
    /// Transactions of each workload [default: 60000, 12000, 20000, 10000, 10500, 6000].
    #[arg(long, value_name = "N")]
    transactions: Option<u64>,
    /// Rows of the table.
    #[arg(long, value_name = "N", default_value = "300000")]
    rows: u64,
    /// What each fsync takes longer in slow-commit.
    #[arg(long, value_name = "MS", default_value = "4", value_parser = clap::value_parser!(u64).range(..=1000))]
    fsync_ms: u64,
    /// What each read of a table's page takes longer in cache-miss.
    #[arg(long, value_name = "MS", default_value = "2", value_parser = clap::value_parser!(u64).range(..=1000))]
    read_ms: u64,
    /// Seconds after which a candidate is cut: what it did until then counts.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Times everything is done; the tables then give medians.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// Where the servers lie; user mysql must be able to enter it [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// First of 40 ports [default: free ones].
    #[arg(long)]
    port: Option<u16>,
    /// Write each trial as it is measured, the speed-up (CSV), the tables and a chart (SVG) into this new directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with what --out holds: measure what it lacks, and report all of it.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Further settings of the replica's server, name=value.
    #[arg(last = true, value_name = "SETTING")]
    settings: Vec<Setting>,
}

/// Words with commas between them; `none` is an empty one.
#[derive(Debug, Clone)]
struct List<T>(Vec<T>);

impl<T: std::str::FromStr<Err = String>> List<T> {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(Vec::new())),
            _ => text
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map(Self),
        }
    }
}

impl Catchup {
    fn plan(&self, program: PathBuf) -> Plan {
        Plan {
            program,
            workloads: self.workloads.clone(),
            conditions: self.conditions.clone(),
            threads: self.threads.clone(),
            built_in: self.built_in.0.clone(),
            replica: self.replica.0.clone(),
            relay: self.relay.0.clone(),
            transactions: self.transactions,
            rows: self.rows,
            fsync: Duration::from_millis(self.fsync_ms),
            read: Duration::from_millis(self.read_ms),
            limit: Duration::from_secs(self.limit),
            rounds: self.rounds.into(),
            settings: self.settings.clone(),
            dir: self.dir.clone(),
            port: self.port,
            out: self.out.clone(),
            resume: self.resume,
        }
    }

    /// Measures, prints the tables, writes the files.
    pub fn run(&self) -> ExitCode {
        let plan = self.plan(this_program());
        match dromon_catchup::run(&plan, &|line| output::tell(line)) {
            Ok(report) => {
                let files = plan.out.as_ref().map(|out| write_files(&report, out));
                told(&report.table(), files, report.is_good())
            }
            Err(error) => {
                output::tell(format_args!("dromon: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// The program that runs, even if another one was built in its place meanwhile: all of a run is
/// measured with one.
fn this_program() -> PathBuf {
    format!("/proc/{}/exe", std::process::id()).into()
}

#[cfg(test)]
mod tests {
    use super::super::Experiment;
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    fn plan(args: &[&str]) -> Plan {
        let all = ["dromon", "bench", "catchup"].iter().chain(args);
        let cli = Cli::try_parse_from(all).expect("accepted");
        let Command::Bench(args) = cli.command else {
            panic!("it is bench");
        };
        match args.experiment {
            Experiment::Catchup(catchup) => catchup.plan("dromon".into()),
            Experiment::Stall(_) => panic!("it is catchup"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_docs() {
        let plan = plan(&[]);
        assert_eq!((plan.workloads.len(), plan.conditions.len()), (6, 3));
        assert_eq!(plan.threads[8..], [Threads::Fixed(256), Threads::Auto]);
        // Serial, four modes, hints and the replica, each with nine numbers of threads; its own.
        let count = plan.candidates().len();
        assert_eq!(count, 1 + 9 * 6 + 1);
        let page = include_str!("../../../../docs/bench.md");
        assert!(page.contains(&format!("\nconditions and {count} candidates,")));
        assert_eq!((plan.rows, plan.rounds), (300_000, 1));
        assert_eq!(plan.fsync, Duration::from_millis(4));
        assert_eq!(plan.read, Duration::from_millis(2));
        assert!(plan.check().is_ok());
    }

    #[test]
    fn whoever_is_not_wanted_is_none() {
        let plan = plan(&[
            "--built-in",
            "none",
            "--relay",
            "none",
            "--replica",
            "writeset:1,none",
            "--threads",
            "4",
        ]);
        let names: Vec<String> = plan.candidates().iter().map(|c| c.line()).collect();
        assert_eq!(
            names,
            ["built-in serial", "replica writeset:1", "replica none"]
        );
    }
}
