//! Whole runs: without violations, with everything in them, the same again.

use std::time::Duration;

use dromon_sim::shared::Counts;
use dromon_sim::{Config, run};

fn config(seed: u64, nodes: usize, seconds: u64) -> Config {
    Config {
        nodes,
        faults_for: Duration::from_secs(seconds),
        ..Config::new(seed)
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hashes: Vec<u64> = (500..504)
        .map(|seed| {
            let first = run(config(seed, 5, 12));
            let again = run(config(seed, 5, 12));
            assert_eq!(
                (first.trace_hash, first.counts),
                (again.trace_hash, again.counts),
                "seed {seed}"
            );
            first.trace_hash
        })
        .collect();
    let mut different = hashes.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), hashes.len(), "other seeds give other runs");
}

#[test]
fn the_same_seed_gives_the_same_run_with_large_transactions() {
    let large = Config {
        large: true,
        ..config(505, 5, 12)
    };
    let (first, again) = (run(large), run(large));
    assert_eq!(
        (first.trace_hash, first.counts),
        (again.trace_hash, again.counts)
    );
    assert!(first.counts.large_committed > 5, "{:?}", first.counts);
}

#[test]
fn the_thread_it_runs_on_makes_no_difference() {
    let here = run(config(510, 3, 8)).trace_hash;
    let there = std::thread::spawn(|| {
        // Whatever ran before on this thread must not matter.
        run(config(511, 3, 3));
        run(config(510, 3, 8)).trace_hash
    });
    assert_eq!(there.join().ok(), Some(here));
}

#[test]
fn faults_of_every_kind_break_no_promise() {
    let mut all = Counts::default();
    for seed in 700..740 {
        let outcome = run(config(seed, 5, 20));
        assert_eq!(outcome.violation, None, "seed {seed}");
        assert!(outcome.convergence < Duration::from_secs(40));
        all.add(&outcome.counts);
    }
    // A run in which nothing happened proves nothing.
    let happened = [
        all.acked > 3_000,
        all.refused > 300,
        all.reads > 500,
        all.crashes > 20,
        all.outages > 0,
        all.partitions > 10,
        all.pauses > 5,
        all.jumps > 5,
        all.backs > 5,
        all.forced > 2,
        all.disk_errors > 5,
        all.hangs > 2,
        all.stood_still > 0,
        all.changes > 0,
        all.breaks > 200,
        all.elections > 20,
        all.joins > 60,
        all.copies > 20,
        all.resumes > 20,
        all.evictions > 5,
        all.leaves > 0,
        all.digests > 500,
        all.large > 200,
        all.large_committed > 100,
        all.large_rolled_back > 30,
        all.between > 5,
        all.whole > 20,
        all.thrown > 10,
        all.ahead > 1_000,
        all.nobodys > 10_000,
    ];
    assert!(happened.iter().all(|h| *h), "{all:?}");
}

#[test]
fn clusters_of_two_and_three_and_seven() {
    for (seed, nodes) in [(705, 2), (701, 3), (702, 3), (703, 7)] {
        let outcome = run(config(seed, nodes, 10));
        assert_eq!(outcome.violation, None, "{nodes} nodes, seed {seed}");
        assert!(outcome.counts.acked > 50);
    }
}

/// Those who hear a leader keep faith in it.
#[test]
fn a_leader_that_hears_nobody_costs_the_others_an_election() {
    for (seed, nodes) in [(720, 3), (721, 3), (722, 5), (723, 5)] {
        let deaf = Config {
            deaf: true,
            ..config(seed, nodes, 80)
        };
        let outcome = run(deaf);
        assert_eq!(outcome.violation, None, "{nodes} nodes, seed {seed}");
        let stood = outcome.standstill;
        assert!(stood < Duration::from_secs(5), "seed {seed}: {stood:?}");
        assert!(outcome.counts.partitions >= 3 && outcome.counts.elections >= 3);
    }
}
