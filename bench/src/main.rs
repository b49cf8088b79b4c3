//! `dromon-bench`: measures wsrep providers through their C interface.
//!
//! ```text
//!   main      arguments, rounds, output
//!   cluster   one run: three child processes, limits on every wait
//!   node      a child process: writers, appliers, the measured time
//!   server    what the toy server remembers: order, hot rows, log
//!   figures   medians, ranges, ratios, the table
//!   protocol  what the processes say to one another
//! ```
//!
//! The C border, which loads the provider and makes the server's calls, is
//! `dromon_wsrep::host`.

#![forbid(unsafe_code)]

mod cluster;
mod figures;
mod node;
mod protocol;
mod server;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;

use crate::cluster::Plan;
use crate::figures::{Figures, Line, Outcome, Run};
use crate::node::{Load, NodeArgs};
use crate::protocol::Provider;

/// Measures wsrep providers through their C interface, without a database.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Runs clusters of toy servers and prints a table.
    Core(Core),
    /// One node of such a cluster; started by `core`.
    #[command(hide = true)]
    Node {
        #[command(flatten)]
        args: NodeArgs,
        /// Writer threads.
        #[arg(long)]
        writers: usize,
    },
}

#[derive(clap::Args, Debug)]
struct Core {
    /// NAME=LIBRARY or NAME=LIBRARY?OPTION=VALUE;OPTION=VALUE. Several may be given; they
    /// are run in turn, and the first is what the others are compared with.
    #[arg(long = "provider", required = true, value_parser = parse_provider)]
    providers: Vec<ProviderArgument>,
    /// Processes in the cluster; all of them write.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Writer threads per node; several numbers are measured one after the other.
    #[arg(long, default_value = "1,8,64", value_delimiter = ',')]
    writers: Vec<usize>,
    /// Measured time of a run.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Time before it, during which the writers run already.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Runs of each provider and number of writers.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    load: Load,
    /// Where the nodes keep their files; must be on the disk that is to be measured.
    /// The system's temporary directory if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Also write everything to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Do not remove the nodes' files after good runs either.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Debug, Serialize)]
struct ProviderArgument {
    name: String,
    library: PathBuf,
    options: String,
}

fn parse_provider(argument: &str) -> Result<ProviderArgument, String> {
    let (name, rest) = argument
        .split_once('=')
        .ok_or("it must look like NAME=LIBRARY")?;
    let (library, options) = rest.split_once('?').unwrap_or((rest, ""));
    let library = std::fs::canonicalize(library)
        .map_err(|error| format!("the library '{library}' cannot be found: {error}"))?;
    Ok(ProviderArgument {
        name: name.to_owned(),
        library,
        options: options.to_owned(),
    })
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Action::Node { args, writers } => node::run(&args, writers),
        Action::Core(core) => match measure(&core) {
            Ok(code) => code,
            Err(message) => {
                eprintln!("{message}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Everything that goes to the JSON file.
#[derive(Serialize)]
struct Everything<'a> {
    command: Vec<String>,
    machine: &'a Machine,
    providers: &'a [ProviderArgument],
    about: &'a [Option<Provider>],
    lines: &'a [Line],
    runs: &'a [Run],
}

fn measure(core: &Core) -> Result<ExitCode, String> {
    let length = |seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| format!("{seconds} seconds are no time to measure: {error}."))
    };
    let (warmup, seconds) = (length(core.warmup)?, length(core.seconds)?);
    let root = core.dir.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::look(&root);
    let mut about: Vec<Option<Provider>> = vec![None; core.providers.len()];
    let mut runs = Vec::new();
    for writers in &core.writers {
        for round in 0..core.rounds {
            for index in turn(core.providers.len(), round) {
                let provider = &core.providers[index];
                let load_before = load_average();
                let dir = tempfile::Builder::new()
                    .prefix("dromon-bench-")
                    .tempdir_in(&root)
                    .map_err(|error| {
                        format!("No directory can be made in {}: {error}.", root.display())
                    })?;
                let result = cluster::run(&Plan {
                    library: &provider.library,
                    options: &provider.options,
                    nodes: core.nodes as usize,
                    writers: *writers,
                    warmup,
                    measure: seconds,
                    load: &core.load,
                    dir: dir.path(),
                });
                let outcome = match result {
                    Ok(result) => {
                        let figures = Figures::new(&result);
                        about[index] = Some(result.provider);
                        if core.keep {
                            eprintln!("files: {}", dir.keep().display());
                        }
                        Outcome::Figures(Box::new(figures))
                    }
                    Err(error) => Outcome::Failed {
                        message: error.to_string(),
                        logs: cluster::logs(&dir.keep(), core.nodes as usize),
                    },
                };
                let run = Run {
                    provider: index,
                    writers: *writers,
                    round,
                    load_before,
                    outcome,
                };
                progress(&provider.name, &run);
                runs.push(run);
            }
        }
    }
    let names: Vec<(String, String)> = core
        .providers
        .iter()
        .zip(&about)
        .map(|(provider, about)| (provider.name.clone(), figures::durable(about.as_ref())))
        .collect();
    let lines = figures::lines(&names, &core.writers, &runs);
    print(core, &machine, &about, &lines);
    if let Some(path) = &core.json {
        let everything = Everything {
            command: std::env::args().collect(),
            machine: &machine,
            providers: &core.providers,
            about: &about,
            lines: &lines,
            runs: &runs,
        };
        let json = serde_json::to_vec_pretty(&everything)
            .map_err(|error| format!("The figures cannot be written as JSON: {error}."))?;
        std::fs::write(path, json)
            .map_err(|error| format!("{} cannot be written: {error}.", path.display()))?;
    }
    let failed = lines.iter().any(|line| line.failed_runs > 0);
    Ok(ExitCode::from(u8::from(failed)))
}

/// The order of the providers in a round: A, B, C, then C, B, A, so that a slow drift of
/// the machine hits all of them alike.
fn turn(providers: usize, round: usize) -> Vec<usize> {
    let forth = 0..providers;
    if round.is_multiple_of(2) {
        forth.collect()
    } else {
        forth.rev().collect()
    }
}

fn progress(name: &str, run: &Run) {
    let Run { writers, round, .. } = run;
    match &run.outcome {
        Outcome::Figures(f) => eprintln!(
            "{name}, {writers} writers, round {}: {:.0} ws/s, p50 {:.2} ms, p99 {:.2} ms, \
             {:.2} CPU s/100k, load {:.1}",
            round + 1,
            f.per_second,
            f.p50_ms,
            f.p99_ms,
            f.cpu_seconds_per_100k,
            run.load_before,
        ),
        Outcome::Failed { message, logs } => {
            eprintln!("{name}, {writers} writers, round {}: {message}", round + 1);
            for log in logs {
                eprintln!("  log: {}", log.display());
            }
        }
    }
}

fn print(core: &Core, machine: &Machine, about: &[Option<Provider>], lines: &[Line]) {
    println!(
        "{} processes on 127.0.0.1, {} bytes and {} row(s) per write set, {} appliers each, \
         {} s measured after {} s, {} round(s), providers in turn.",
        core.nodes,
        core.load.size.max(server::TAG_BYTES),
        core.load.rows.max(1),
        core.load.appliers.max(1),
        core.seconds,
        core.warmup,
        core.rounds,
    );
    println!(
        "{} cores, Linux {}, load average {:.1} before and {:.1} after, files on {}.",
        machine.cores,
        machine.kernel,
        machine.load_before,
        load_average(),
        machine.filesystem,
    );
    if core.load.conflicts > 0 {
        println!(
            "{} % of the transactions take the lock of one of {} hot rows, half of them change it.",
            core.load.conflicts, core.load.hot_rows
        );
    }
    for (argument, about) in core.providers.iter().zip(about) {
        if let Some(about) = about {
            let options = match argument.options.as_str() {
                "" => "default options",
                options => options,
            };
            println!(
                "{}: {} {} by {}, {options}.",
                argument.name, about.name, about.version, about.vendor
            );
        }
    }
    println!(
        "durable: whether a commit waits for the disk. One that does is not like for like \
         with one that does not.\n"
    );
    let base = core.providers.first().map_or("", |p| p.name.as_str());
    println!(
        "{}",
        figures::markdown(lines, base, core.load.conflicts > 0)
    );
    println!("\n{}", figures::threads_markdown(lines));
}

/// What the figures depend on besides the provider.
#[derive(Serialize)]
struct Machine {
    cores: usize,
    kernel: String,
    load_before: f64,
    filesystem: String,
}

impl Machine {
    fn look(dir: &Path) -> Machine {
        let kernel = rustix::system::uname();
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.release().to_string_lossy().into_owned(),
            load_before: load_average(),
            filesystem: filesystem(dir).unwrap_or_else(|| "an unknown file system".to_owned()),
        }
    }
}

/// Type of the file system a directory is on, by the longest mount point above it.
fn filesystem(dir: &Path) -> Option<String> {
    let dir = std::fs::canonicalize(dir).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let kind = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((Path::new(fields.next()?), fields.next()?))
        })
        .filter(|(point, _)| dir.starts_with(point))
        .max_by_key(|(point, _)| point.components().count())?
        .1;
    Some(match kind {
        "tmpfs" | "ramfs" => format!("{kind} (memory: syncing costs nothing here)"),
        kind => kind.to_owned(),
    })
}

/// Processes wanting to run, mean of the last minute.
fn load_average() -> f64 {
    std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_provider_has_a_name_a_library_and_options() {
        let provider = parse_provider("me=/dev/null?a.b=c;d=e").expect("a provider");
        assert_eq!(provider.name, "me");
        assert_eq!(provider.library, Path::new("/dev/null"));
        assert_eq!(provider.options, "a.b=c;d=e");
        assert!(parse_provider("/dev/null").is_err());
        assert!(parse_provider("me=/no/such/library.so").is_err());
    }

    #[test]
    fn rounds_go_forth_and_back() {
        assert_eq!(turn(3, 0), [0, 1, 2]);
        assert_eq!(turn(3, 1), [2, 1, 0]);
        assert_eq!(turn(3, 2), [0, 1, 2]);
    }
}
