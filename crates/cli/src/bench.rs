//! `dromon bench`.

mod catchup;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use dromon_load::arrivals::Spread;
use dromon_sandbox::Setting;
use dromon_stall::{Large, Mode, Pace, Plan, Provider, Small, parse_size, write_files};

use crate::output::{self, Output};

/// Rows of the large UPDATE.
const ROWS: u64 = 300_000;
/// Beside sysbench.
const ROWS_SYSBENCH: u64 = 1_000_000;

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Does one large transaction stop the small ones?
    Stall(Box<Stall>),
    /// How fast do replicas catch up, MariaDB's own and dromon's?
    Catchup(Box<catchup::Catchup>),
}

/// Options of `dromon bench stall`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What the numbers mean: docs/bench.md. Exit codes: 0 measured, 1 refused or a mode failed, 2 words that are not known.\n\nExamples:\n  dromon bench stall --provider target/release/libdromon.so --provider /usr/lib/galera/libgalera_smm.so --out stall\n  dromon bench stall --provider target/release/libdromon.so --offered 0.4 --rows 2500000 --modes whole,auto,1M\n  dromon bench stall --cluster .dromon --load-data 200M"
)]
struct Stall {
    /// A library to measure, with provider options and server settings of its own; several are measured one after the other.
    #[arg(
        long = "provider",
        value_name = "[NAME=]PATH[?OPTION=VALUE;…][#SETTING=VALUE;…]"
    )]
    providers: Vec<Provider>,
    /// Use the running cluster in this directory (`dromon up`) instead.
    #[arg(long, value_name = "DIR")]
    cluster: Option<PathBuf>,
    /// Where clusters are made; user mysql must be able to enter it. Default: a new directory under /tmp.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write samples, events, summary (CSV), the tables and a chart (SVG) into this new directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Rows of the large UPDATE [default: 300000, beside sysbench 1000000].
    #[arg(long, conflicts_with = "load_data")]
    rows: Option<u64>,
    /// One LOAD DATA of this size instead of the UPDATE.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    load_data: Option<u64>,
    /// How the large one travels, with commas: whole, auto, fragment sizes, numbers of rows.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = Mode::ALL)]
    modes: Vec<Mode>,
    /// Closed loop: each client sends the next one when it has its answer (the default).
    #[arg(long, conflicts_with_all = ["offered", "rate"])]
    closed: bool,
    /// Open loop at this part of what the cluster does in closed loop, for instance 0.4.
    #[arg(long, value_name = "PART", conflicts_with_all = ["rate", "sysbench"])]
    offered: Option<f64>,
    /// Open loop at this many transactions per second.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "sysbench")]
    rate: Option<f64>,
    /// Open loop with equal distances instead of random ones.
    #[arg(long)]
    fixed_rate: bool,
    /// Clients with small transactions, spread over all nodes.
    #[arg(long, default_value = "8")]
    clients: usize,
    /// sysbench oltp_read_write as the small transactions.
    #[arg(long)]
    sysbench: bool,
    /// Threads of sysbench, spread over all nodes.
    #[arg(long, default_value = "32")]
    threads: u32,
    /// Servers in a cluster.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(2..=9))]
    nodes: u8,
    /// Applier threads of each node.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u16).range(1..=512))]
    appliers: u16,
    /// Times everything is done; the tables then give medians and the worst.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// Seconds the small ones run alone before.
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    before: u64,
    /// And after.
    #[arg(long, value_name = "SECONDS", default_value = "3")]
    after: u64,
    /// Seconds the large one may take.
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = clap::value_parser!(u64).range(10..=86_400))]
    limit: u64,
    /// dromon.auto_stream_size in mode auto [default: as the provider has it].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    auto_stream_size: Option<u64>,
    /// Further server settings, name=value.
    #[arg(last = true, value_name = "SETTING")]
    settings: Vec<Setting>,
}

impl Stall {
    fn plan(&self) -> Plan {
        let spread = match self.fixed_rate {
            true => Spread::Fixed,
            false => Spread::Poisson,
        };
        let pace = match (self.offered, self.rate) {
            (Some(part), _) => Pace::Share { part, spread },
            (None, Some(per_second)) => Pace::Rate { per_second, spread },
            (None, None) => Pace::Closed,
        };
        let (small, rows) = match self.sysbench {
            true => (
                Small::Sysbench {
                    threads: self.threads,
                },
                ROWS_SYSBENCH,
            ),
            false => (
                Small::Clients {
                    clients: self.clients,
                    pace,
                },
                ROWS,
            ),
        };
        let large = match self.load_data {
            Some(bytes) => Large::Load { bytes },
            None => Large::Update {
                rows: self.rows.unwrap_or(rows),
            },
        };
        Plan {
            providers: self.providers.clone(),
            cluster: self.cluster.clone(),
            dir: self.dir.clone(),
            out: self.out.clone(),
            nodes: self.nodes.into(),
            appliers: self.appliers.into(),
            settings: self.settings.clone(),
            large,
            small,
            modes: self.modes.clone(),
            rounds: self.rounds.into(),
            before: Duration::from_secs(self.before),
            after: Duration::from_secs(self.after),
            limit: Duration::from_secs(self.limit),
            auto_stream_size: self.auto_stream_size,
        }
    }
}

/// Measures, prints the tables, writes the files.
pub fn run(args: &Args) -> ExitCode {
    let stall = match &args.experiment {
        Experiment::Stall(stall) => stall,
        Experiment::Catchup(catchup) => return catchup.run(),
    };
    let plan = stall.plan();
    let report = match dromon_stall::run(&plan, &|line| output::tell(line)) {
        Ok(report) => report,
        Err(error) => {
            output::tell(format_args!("dromon: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    let files = plan.out.as_ref().map(|out| write_files(&report, out));
    told(&report.table(), files, report.is_good())
}

/// Prints what came of an experiment, and where its files are.
fn told<E: std::fmt::Display>(
    table: &str,
    files: Option<Result<Vec<PathBuf>, E>>,
    is_good: bool,
) -> ExitCode {
    output::tell("");
    let mut out = Output::new();
    out.text(table);
    let mut code = u8::from(!is_good);
    match files {
        Some(Ok(files)) => {
            out.line("");
            files.iter().for_each(|f| out.line(f.display()));
        }
        Some(Err(error)) => {
            output::tell(format_args!("dromon: {error:#}"));
            code = 1;
        }
        None => {}
    }
    out.end(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    fn plan(args: &[&str]) -> Plan {
        let all = ["dromon", "bench", "stall"].iter().chain(args);
        let cli = Cli::try_parse_from(all).expect("accepted");
        let Command::Bench(args) = cli.command else {
            panic!("it is bench");
        };
        match args.experiment {
            Experiment::Stall(stall) => stall.plan(),
            Experiment::Catchup(_) => panic!("it is stall"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_docs() {
        let plan = plan(&[]);
        assert_eq!(plan.large, Large::Update { rows: 300_000 });
        assert_eq!(
            plan.small,
            Small::Clients {
                clients: 8,
                pace: Pace::Closed
            }
        );
        assert_eq!((plan.nodes, plan.appliers, plan.rounds), (3, 8, 1));
        assert_eq!(plan.modes.len(), 6);
    }

    #[test]
    fn pace_and_size_follow_the_words() {
        let open = plan(&["--offered", "0.4", "--fixed-rate", "--load-data", "200M"]);
        assert_eq!(open.large, Large::Load { bytes: 200 << 20 });
        assert_eq!(
            open.small,
            Small::Clients {
                clients: 8,
                pace: Pace::Share {
                    part: 0.4,
                    spread: Spread::Fixed
                }
            }
        );
        let sysbench = plan(&["--sysbench", "--modes", "whole,1M"]);
        assert_eq!(sysbench.large, Large::Update { rows: 1_000_000 });
        assert_eq!(sysbench.small, Small::Sysbench { threads: 32 });
        assert_eq!(sysbench.modes, [Mode::Whole, Mode::Bytes(1 << 20)]);
    }
}
