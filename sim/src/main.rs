//! `dromon-sim`: runs seeds and reports.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use dromon_sim::shared::Counts;
use dromon_sim::{Config, Outcome, Plant, run};

/// Deterministic simulation of a whole cluster: the same seed, the same run.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Nodes in the cluster. Not given, the seed decides: five, or three, with or
    /// without a witness among them.
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=9))]
    nodes: Option<u64>,
    /// With --nodes: the last of them is a witness.
    #[arg(long, requires = "nodes")]
    witness: bool,
    /// Large transactions in every run, not only where the seed says so.
    #[arg(long)]
    large: bool,
    /// Members that weigh other than 1 in every run, not only where the seed says so.
    #[arg(long)]
    weights: bool,
    /// Simulated seconds of faults in each run.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// A fault to plant, to see its oracle fire.
    #[arg(long)]
    plant: Option<Plant>,
    /// Print every line of the trace.
    #[arg(long)]
    trace: bool,
    /// Go on after a violation, and list them all.
    #[arg(long)]
    keep_going: bool,
    /// Print a line for each seed.
    #[arg(long)]
    each: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let began = Instant::now();
    let mut total = Total::default();
    for seed in args.start..args.start + args.seeds {
        let drawn = Config::drawn(seed);
        let config = Config {
            nodes: args.nodes.map_or(drawn.nodes, |n| n as usize),
            witness: args.nodes.map_or(drawn.witness, |_| args.witness),
            large: args.large,
            weights: args.weights,
            faults_for: Duration::from_secs(args.seconds),
            plant: args.plant,
            print: args.trace,
            ..drawn
        };
        let one = Instant::now();
        let outcome = run(config);
        total.add(seed, &outcome);
        if args.each {
            println!(
                "seed {seed}: trace {:016x}, {:.2} s, {:?}",
                outcome.trace_hash,
                one.elapsed().as_secs_f64(),
                outcome.counts
            );
        }
        if let Some(violation) = &outcome.violation {
            if !args.trace && !args.keep_going {
                println!("the last events of seed {seed}:");
                for line in &outcome.tail {
                    println!("{line}");
                }
            }
            println!("seed {seed}: VIOLATION of {violation}");
            println!(
                "again: dromon-sim --start {seed} --seeds 1 --nodes {}{}{}{} --seconds {} --trace{}",
                config.nodes,
                if config.witness { " --witness" } else { "" },
                if config.large { " --large" } else { "" },
                if config.weights { " --weights" } else { "" },
                args.seconds,
                args.plant
                    .map(|p| format!(" --plant {p}"))
                    .unwrap_or_default()
            );
            if !args.keep_going {
                break;
            }
        }
    }
    total.print(began.elapsed());
    if total.violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Default)]
struct Total {
    seeds: u64,
    violations: u64,
    counts: Counts,
    worst: Duration,
    worst_seed: u64,
    still: Duration,
    still_seed: u64,
    simulated: Duration,
    hash: u64,
}

impl Total {
    fn add(&mut self, seed: u64, o: &Outcome) {
        self.seeds += 1;
        self.violations += u64::from(o.violation.is_some());
        self.counts.add(&o.counts);
        self.simulated += o.simulated;
        self.hash = self.hash.rotate_left(1) ^ o.trace_hash;
        if o.convergence > self.worst {
            (self.worst, self.worst_seed) = (o.convergence, seed);
        }
        if o.standstill > self.still {
            (self.still, self.still_seed) = (o.standstill, seed);
        }
    }

    fn print(&self, took: Duration) {
        let c = &self.counts;
        println!(
            "{} seeds, {} violations: {} entries, {} acknowledged, {} refused, {} unknown, {} taken back, {} current \
             reads, {} crashes ({} total outages, {} with absences), {} forced recoveries ({} acknowledged given \
             up, {} came by the log, {} took a copy), {} partitions, {} pauses, {} clock jumps, {} backwards, {} disk errors, {} disks that hung, {} deaths during a change of members, {} broken connections, {} \
             elections, {} joins ({} with a copy), {} resumed logs, {} evictions, {} leaves, {} state \
             comparisons; {} large in chunks ({} committed, {} rolled back, {} databases begun between chunks, {} \
             times given whole, {} thrown away, {} copies refused, {} parts with a place ahead, {} places of nobody); {} weights changed ({} times one alone was to vote, {} times none of weight 0); {} told that their history differs; worst convergence {:.1} s (seed {}); longest standstill of a majority {:.1} s (seed {}); {:.0} simulated seconds in {:.1} s; trace \
             {:016x}",
            self.seeds,
            self.violations,
            c.entries,
            c.acked,
            c.refused,
            c.unknown,
            c.taken_back,
            c.reads,
            c.crashes,
            c.outages,
            c.absences,
            c.forced,
            c.given_up,
            c.old_by_log,
            c.old_by_copy,
            c.partitions,
            c.pauses,
            c.jumps,
            c.backs,
            c.disk_errors,
            c.hangs,
            c.changes,
            c.breaks,
            c.elections,
            c.joins,
            c.copies,
            c.resumes,
            c.evictions,
            c.leaves,
            c.digests,
            c.large,
            c.large_committed,
            c.large_rolled_back,
            c.between,
            c.whole,
            c.thrown,
            c.lacking,
            c.ahead,
            c.nobodys,
            c.weights,
            c.alone,
            c.weightless,
            c.unlike,
            self.worst.as_secs_f64(),
            self.worst_seed,
            self.still.as_secs_f64(),
            self.still_seed,
            self.simulated.as_secs_f64(),
            took.as_secs_f64(),
            self.hash,
        );
    }
}
