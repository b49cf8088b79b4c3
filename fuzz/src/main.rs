//! Runs the fuzzers: `dromon-fuzz [--executions N] [--seconds N] [--seed N] [TARGET…]`.
//!
//! Built plainly, it drives the targets with its own mutator, one after the other, each
//! for so many executions or seconds, and prints how many there were. Built with the
//! feature `libfuzzer` (see `fuzz/run`) its main function is libFuzzer's, and the target
//! comes from the environment: `DROMON_FUZZ`, and `DROMON_FUZZ_SEEDS`, the folder into
//! which its seeds are written first.

#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
mod with_coverage {
    use std::sync::OnceLock;

    use dromon_fuzz::{TARGETS, Target, check};

    static TARGET: OnceLock<&'static Target> = OnceLock::new();

    fn begin() {
        let name = std::env::var("DROMON_FUZZ").unwrap_or_default();
        let target = TARGETS
            .iter()
            .find(|t| t.name == name)
            .unwrap_or_else(|| panic!("DROMON_FUZZ names no target: '{name}'"));
        if let Ok(dir) = std::env::var("DROMON_FUZZ_SEEDS") {
            for (n, seed) in (target.seeds)().into_iter().enumerate() {
                std::fs::write(format!("{dir}/seed-{n}"), seed).expect("the folder can be written");
            }
        }
        TARGET.get_or_init(|| target);
    }

    libfuzzer_sys::fuzz_target!(init: begin(), |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            check(target, data);
        }
    });
}

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::process::ExitCode {
    plain::main()
}

#[cfg(not(feature = "libfuzzer"))]
mod plain {
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    use dromon_fuzz::mutate::{Rng, mutated};
    use dromon_fuzz::{TARGETS, Target, check};

    struct Limits {
        executions: u64,
        seconds: u64,
        seed: u64,
    }

    pub fn main() -> ExitCode {
        let mut limits = Limits {
            executions: u64::MAX,
            seconds: 10,
            seed: 1,
        };
        let mut names = Vec::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let number = match word.as_str() {
                "--executions" => &mut limits.executions,
                "--seconds" => &mut limits.seconds,
                "--seed" => &mut limits.seed,
                _ => {
                    names.push(word);
                    continue;
                }
            };
            let Some(n) = words.next().and_then(|n| n.parse().ok()) else {
                eprintln!("dromon-fuzz: {word} wants a number");
                return ExitCode::from(2);
            };
            *number = n;
        }
        let known = |n: &String| TARGETS.iter().any(|t| t.name == n.as_str());
        if let Some(name) = names.iter().find(|n| !known(n)) {
            let all: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
            eprintln!(
                "dromon-fuzz: no target '{name}'; there are {}",
                all.join(", ")
            );
            return ExitCode::from(2);
        }
        let chosen = |t: &&Target| names.is_empty() || names.iter().any(|n| n == t.name);
        let mut all = 0;
        for target in TARGETS.iter().filter(chosen) {
            all += run(target, &limits);
        }
        println!("{all} executions, nothing found");
        ExitCode::SUCCESS
    }

    fn run(target: &Target, limits: &Limits) -> u64 {
        let seeds = (target.seeds)();
        let mut rng = Rng::new(limits.seed);
        let begin = Instant::now();
        let until = begin + Duration::from_secs(limits.seconds);
        let mut n = 0;
        while n < limits.executions && Instant::now() < until {
            let input = mutated(&seeds, &mut rng);
            let caught = std::panic::catch_unwind(|| check(target, &input));
            if caught.is_err() {
                let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
                eprintln!(
                    "{}, seed {}, execution {n}: {hex}",
                    target.name, limits.seed
                );
                std::process::exit(1);
            }
            n += 1;
        }
        let took = begin.elapsed().as_secs_f64().max(0.001);
        println!(
            "{:<15} {n:>10} executions, {:>8.0} a second",
            target.name,
            n as f64 / took
        );
        n
    }
}
