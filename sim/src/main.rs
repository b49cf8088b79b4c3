//! `dromon-sim`: runs seeds and reports.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use dromon_sim::shared::Counts;
use dromon_sim::{Config, Directed, Outcome, Plant, run};

/// Simulated seconds of faults in a run.
const FAULTS_SECONDS: u64 = 30;
/// So many seeds say whether every kind of event is among them.
const JUDGED_SEEDS: u64 = 100;

/// Deterministic simulation of a whole cluster: the same seed, the same run.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// How many seeds to run. From 100 on, if nothing else is asked for, every kind of event must be among them.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
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
    /// No faults but that the leader hears nobody for 20 seconds, again and again, while it is heard.
    #[arg(long)]
    deaf: bool,
    /// A plan that takes the place of the random faults, for as many nodes as it is made for.
    #[arg(long, conflicts_with_all = ["nodes", "deaf"])]
    plan: Option<Directed>,
    /// Simulated seconds of faults in each run; behind such a plan, of none.
    #[arg(long, default_value_t = FAULTS_SECONDS)]
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
        let drawn = match args.plan {
            Some(plan) => Config::directed(seed, plan),
            None => Config::drawn(seed),
        };
        let config = Config {
            nodes: args.nodes.map_or(drawn.nodes, |n| n as usize),
            witness: args.nodes.map_or(drawn.witness, |_| args.witness),
            large: args.large,
            weights: args.weights,
            deaf: args.deaf,
            faults_for: Duration::from_secs(args.seconds),
            plant: args.plant,
            print: args.trace,
            ..drawn
        };
        let one = Instant::now();
        let outcome = run(config);
        total.add(seed, &outcome);
        total.witnesses += u64::from(config.witness);
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
                "again: dromon-sim --start {seed} --seeds 1{}{}{}{} --seconds {} --trace{}",
                match (args.plan, config.witness) {
                    (Some(plan), _) => format!(" --plan {plan}"),
                    (None, true) => format!(" --nodes {} --witness", config.nodes),
                    (None, false) => format!(" --nodes {}", config.nodes),
                },
                if config.large { " --large" } else { "" },
                if config.weights { " --weights" } else { "" },
                if config.deaf { " --deaf" } else { "" },
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
    // Who asks for another kind of runs, or for less of faults, gets other events.
    let whole = args.nodes.is_none()
        && args.plant.is_none()
        && !args.deaf
        && args.plan.is_none()
        && args.seconds >= FAULTS_SECONDS;
    let lacking = match whole && total.violations == 0 {
        true => total.lacking(),
        false => Vec::new(),
    };
    for (what, found, least) in &lacking {
        println!(
            "runs in which too little happens prove nothing: {found} {what}, at least {least} are wanted"
        );
    }
    if total.violations == 0 && lacking.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Default)]
struct Total {
    seeds: u64,
    violations: u64,
    /// Runs with a witness among the members.
    witnesses: u64,
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

    /// What happened too seldom: found, and wanted.
    fn lacking(&self) -> Vec<(&'static str, u64, u64)> {
        let c = &self.counts;
        // The least among 200 seeds: a quarter, or less, of what there is. Copies that are
        // refused are too few to be asked for.
        let least = [
            ("runs with a witness", self.witnesses, 20),
            ("acknowledged", c.acked, 30_000),
            ("refused", c.refused, 10_000),
            ("unknown", c.unknown, 200),
            ("taken back", c.taken_back, 100),
            ("current reads", c.reads, 8_000),
            ("crashes", c.crashes, 400),
            ("total outages", c.outages, 30),
            ("with absences", c.absences, 15),
            ("forced recoveries", c.forced, 8),
            ("acknowledged given up", c.given_up, 20),
            ("came by the log", c.old_by_log, 6),
            ("took a copy", c.old_by_copy, 10),
            ("partitions", c.partitions, 150),
            ("pauses", c.pauses, 100),
            ("clock jumps", c.jumps, 12),
            ("backwards", c.backs, 15),
            ("disk errors", c.disk_errors, 60),
            ("disks that hung", c.hangs, 8),
            ("deaths during a change of members", c.changes, 1),
            ("broken connections", c.breaks, 5_000),
            ("elections", c.elections, 250),
            ("joins", c.joins, 600),
            ("joins with a copy", c.copies, 200),
            ("resumed logs", c.resumes, 400),
            ("evictions", c.evictions, 120),
            ("leaves", c.leaves, 6),
            ("state comparisons", c.digests, 10_000),
            ("large in chunks", c.large, 700),
            ("large committed", c.large_committed, 400),
            ("large rolled back", c.large_rolled_back, 200),
            ("databases begun between chunks", c.between, 50),
            ("times given whole", c.whole, 100),
            ("thrown away", c.thrown, 150),
            ("parts with a place ahead", c.ahead, 8_000),
            ("places of nobody", c.nobodys, 100_000),
            ("weights changed", c.weights, 200),
            ("times one alone was to vote", c.alone, 40),
            ("times none of weight 0", c.weightless, 40),
            ("told that their history differs", c.unlike, 1),
        ];
        if self.seeds < JUDGED_SEEDS {
            return Vec::new();
        }
        let scaled = least.map(|(what, found, least)| (what, found, least * self.seeds / 200));
        (scaled.into_iter())
            .filter(|(_, found, least)| found < least)
            .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_without_an_event_are_found_from_100_seeds_on() {
        let mut total = Total {
            seeds: 99,
            ..Total::default()
        };
        assert_eq!(total.lacking(), []);
        total.seeds = 100;
        let lacking = total.lacking();
        assert!(lacking.contains(&("with absences", 0, 7)), "{lacking:?}");
        total.counts.absences = 7;
        assert!(total.lacking().iter().all(|l| l.0 != "with absences"));
    }

    #[test]
    fn no_seeds_are_refused() {
        assert!(Args::try_parse_from(["dromon-sim", "--seeds", "0"]).is_err());
        assert!(Args::try_parse_from(["dromon-sim", "--seeds", "1"]).is_ok());
    }
}
