//! `storms`: tests on real servers, one by one or all, with any provider.
//!
//! ```text
//! storms --list                                      what there is
//! storms                                             all of them, short
//! storms --seconds 120 counter range                 two of them, long
//! storms --provider /usr/lib/galera/libgalera_smm.so the peer
//! ```
//!
//! Every statement and every scenario is bounded in time: a hang is a failure
//! with the servers' process lists and stacks, never a hanging test.

#![forbid(unsafe_code)]

mod check;
#[cfg(test)]
mod conformance;
mod facts;
mod harness;
mod history;
mod lab;
mod ledger;
mod report;
mod scenario;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
// Known to the scenarios as `crate::load` and `crate::rng`.
use dromon_load::{rng, storm as load};
use dromon_sandbox::{Setting, SstMethod};

use std::sync::{Mutex, PoisonError};

use harness::{Options, Tally, run_all};
use report::Report;

/// Tests on real servers.
#[derive(Debug, Parser)]
#[command(name = "storms", version, max_term_width = 100)]
struct Args {
    /// Scenarios to run (see --list); none: all.
    names: Vec<String>,
    /// List the scenarios and what each shows.
    #[arg(long)]
    list: bool,
    /// The provider library.
    #[arg(
        long,
        env = "DROMON_TEST_PROVIDER",
        default_value = "target/release/libdromon.so"
    )]
    provider: PathBuf,
    /// Seconds of load in each scenario.
    #[arg(long, env = "DROMON_TEST_SECONDS", default_value = "10")]
    seconds: u64,
    /// Write-then-read pairs in the sync_wait scenario.
    #[arg(long, env = "DROMON_TEST_READS", default_value = "2000")]
    reads: u64,
    /// Size of the big write set in MB.
    #[arg(long, env = "DROMON_TEST_BIG_MB", default_value = "200")]
    big_mb: u64,
    /// The big write set may not halve the small ones' rate nor stop them for a second.
    #[arg(long, env = "DROMON_TEST_BIG_STRICT")]
    big_strict: bool,
    /// Applier threads of each node.
    #[arg(long, default_value = "8")]
    appliers: usize,
    /// How nodes of the shared cluster get their full copy.
    #[arg(long, default_value = "rsync")]
    sst_method: SstMethod,
    /// Provider options for every node, k=v;k=v.
    #[arg(long, env = "DROMON_TEST_PROVIDER_OPTIONS", default_value = "")]
    provider_options: String,
    /// A server setting for every node, name=value; may be repeated.
    #[arg(long = "set", value_name = "SETTING")]
    settings: Vec<Setting>,
    /// Where the clusters lie; user mysql must be able to enter it. Default: a new directory under /tmp.
    #[arg(long, env = "DROMON_TEST_DIR")]
    dir: Option<PathBuf>,
    /// Only the rounds of faults, what `make torture` runs, or those named; their times are judged.
    #[arg(long)]
    torture: bool,
    /// Also, or only, the controls: faults on the peer, and lost updates, that must be seen.
    #[arg(long)]
    control: bool,
    /// Rounds of each scenario that has rounds.
    #[arg(long, env = "DROMON_TEST_ROUNDS", default_value = "2")]
    rounds: u64,
    /// Where the random numbers of the rounds begin.
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Entries to feed again after an outage (refeed).
    #[arg(long, env = "DROMON_TEST_ENTRIES", default_value = "20000")]
    entries: u64,
    /// Rows of the large transaction in origin_dies and cut_off.
    #[arg(long, default_value = "200000")]
    large_rows: u64,
    /// Every third client's transactions are streamed, a fragment for each row or for two.
    #[arg(long)]
    streaming: bool,
    /// Another provider, measured beside the first (pauses, quorum) or hurt in its place (--control).
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Move the packets of a link between two places; started by the scenarios themselves.
    #[arg(long, hide = true)]
    link: Option<String>,
    /// So many scenarios beside each other; those whose times are judged are alone.
    #[arg(long, env = "DROMON_TEST_LANES", default_value = "1")]
    lanes: usize,
    /// Write what was run and what came of it to this file.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Fail unless all scenarios together count this many certification failures.
    #[arg(long, default_value = "0")]
    least_cert_failures: i64,
    /// Fail unless all scenarios together count this many BF aborts.
    #[arg(long, default_value = "0")]
    least_bf_aborts: i64,
    /// Fail unless all scenarios together count this many replays.
    #[arg(long, default_value = "0")]
    least_replays: i64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(text) = &args.link {
        return match lab::emulate(text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("storms: {error:#}");
                ExitCode::from(2)
            }
        };
    }
    if args.list {
        for scenario in scenario::all() {
            println!("{:<18} {}", scenario.name, scenario.shows);
        }
        println!("\nOnly by name, or with --torture:");
        for scenario in scenario::long() {
            println!("{:<18} {}", scenario.name, scenario.shows);
        }
        println!("\nWith --control:");
        for scenario in scenario::torture::control::all() {
            println!("{:<18} {}", scenario.name, scenario.shows);
        }
        println!("\nOnly by name:");
        let by_name = scenario::known().into_iter().chain(scenario::relay::all());
        for scenario in by_name.chain(scenario::replica::all()) {
            println!("{:<18} {}", scenario.name, scenario.shows);
        }
        return ExitCode::SUCCESS;
    }
    match run(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("storms: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> anyhow::Result<bool> {
    let mut chosen = Vec::new();
    for name in &args.names {
        let mut known = scenario::all();
        known.extend(scenario::long());
        known.extend(scenario::torture::control::all());
        known.extend(scenario::known());
        known.extend(scenario::relay::all());
        known.extend(scenario::replica::all());
        let found = known.into_iter().find(|s| s.name == name);
        chosen.push(found.ok_or_else(|| {
            anyhow::anyhow!("there is no scenario {name}; `storms --list` names them")
        })?);
    }
    if args.torture && args.names.is_empty() {
        chosen.extend(scenario::torture::all());
        chosen.extend(scenario::long());
    }
    if args.control && args.names.is_empty() {
        chosen.extend(scenario::torture::control::all());
    }
    if chosen.is_empty() {
        chosen = scenario::all();
    }
    let net = chosen
        .iter()
        .any(|s| scenario::relay::NETS.contains(&s.name));
    if chosen.iter().any(|s| s.round > Duration::ZERO) {
        lab::enter(net);
    }
    if args.streaming {
        load::stream_every_third();
    }
    let options = Options {
        provider: args.provider,
        seconds: Duration::from_secs(args.seconds),
        reads: args.reads,
        big_mb: args.big_mb,
        big_strict: args.big_strict,
        appliers: args.appliers,
        sst_method: args.sst_method,
        provider_options: args.provider_options,
        settings: args.settings,
        dir: args.dir,
        rounds: args.rounds,
        seed: args.seed,
        entries: args.entries,
        large_rows: args.large_rows,
        peer: args.peer,
        times_judged: args.torture,
    };
    let report = args.report.map_or_else(Report::default, |file| {
        Report::new(file, &options, &chosen, args.lanes)
    });
    let tally = Mutex::new(Tally::new(report));
    run_all(&options, &tally, chosen, args.lanes)?;
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (conflicts, streams_count) = (tally.conflicts(), tally.streams_count());
    for (what, found, least) in [
        (
            "streams",
            conflicts.streams,
            i64::from(args.streaming && streams_count),
        ),
        (
            "certification failures",
            conflicts.cert_failures,
            args.least_cert_failures,
        ),
        ("BF aborts", conflicts.bf_aborts, args.least_bf_aborts),
        ("replays", conflicts.replays, args.least_replays),
    ] {
        if found < least {
            tally.fail(&format!(
                "the storms were not hard enough: {found} {what}, at least {least} were asked for"
            ));
        }
    }
    Ok(tally.finish())
}
