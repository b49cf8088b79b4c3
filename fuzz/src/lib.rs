//! Fuzzers for every parser of what comes from the network or a disk.
//!
//! A [`Target`] is a function over bytes that must neither panic, nor take more memory
//! than its input justifies, nor much time; what it can read it must be able to say again
//! alike. [`check`] runs one input under these limits. The same targets run under
//! libFuzzer (`fuzz/run`, which adds coverage), under the plain mutator of [`mutate`]
//! (`cargo run -p dromon-fuzz`), and once over their seeds in `cargo test`.
//! `docs/fuzzing.md` lists them.

pub mod bytes_in;
pub mod mutate;
pub mod targets;

use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;

pub use targets::{TARGETS, Target};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Longest input tried, in bytes.
pub const INPUT_MAX: usize = 16 << 10;
/// Memory an input may take beside its own share, in bytes.
const MEMORY_BASE: usize = 4 << 20;
/// Memory an input may take for each of its bytes.
const MEMORY_EACH: usize = 256;
/// Time an input may take, the machine being slow and the build a debug one.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Runs one input. Panics if the target does, or if it goes beyond memory or time.
pub fn check(target: &Target, input: &[u8]) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let begin = Instant::now();
    (target.run)(input);
    let took = begin.elapsed();
    let peak = MEMORY.peak_usage().saturating_sub(before);
    let allowed = MEMORY_BASE + MEMORY_EACH * input.len();
    assert!(
        peak <= allowed,
        "{}: an input of {} bytes took {peak} bytes of memory; {allowed} are allowed",
        target.name,
        input.len()
    );
    assert!(
        took <= TIME_MAX,
        "{}: an input of {} bytes took {took:?}",
        target.name,
        input.len()
    );
}
