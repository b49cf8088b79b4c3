//! Every target over its seeds and some changes to them: the same on every machine.

use dromon_fuzz::mutate::{Rng, mutated};
use dromon_fuzz::{TARGETS, check};

/// Changed inputs for each target.
const CHANGED: u64 = 1000;

#[test]
fn every_target_takes_its_seeds_and_changes_to_them() {
    // One after the other: memory is counted for the whole process.
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}", target.name);
        for seed in &seeds {
            check(target, seed);
        }
        let mut rng = Rng::new(1);
        for _ in 0..CHANGED {
            check(target, &mutated(&seeds, &mut rng));
        }
    }
    limits_hold();
    planted_faults_are_found();
}

/// What takes too much memory is found.
fn limits_hold() {
    let greedy = dromon_fuzz::Target {
        name: "greedy",
        run: |data| drop(std::hint::black_box(vec![1u8; data.len() << 20])),
        seeds: Vec::new,
    };
    check(&greedy, &[]);
    let caught = std::panic::catch_unwind(|| check(&greedy, &[0; 64]));
    assert!(caught.is_err(), "64 MiB for 64 bytes");
}

/// A parser with a fault is caught within as many inputs as each target gets here.
fn planted_faults_are_found() {
    let careless = dromon_fuzz::Target {
        name: "careless",
        run: |data| {
            // Trusts a length field.
            if data.len() >= 8 {
                let len = usize::from(data[4]);
                assert!(data[5..].len() >= len, "beyond the end");
            }
        },
        seeds: || vec![b"DROM\x02abcdef".to_vec()],
    };
    let found = std::panic::catch_unwind(|| {
        let mut rng = Rng::new(1);
        for _ in 0..CHANGED {
            check(&careless, &mutated(&(careless.seeds)(), &mut rng));
        }
    });
    assert!(found.is_err(), "the mutator reaches it");
}
