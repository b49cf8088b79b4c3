//! A small generator, so that a seed names a run.

/// The next number (SplitMix64: Steele, Lea, Flood, Fast Splittable
/// Pseudorandom Number Generators, 2014).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A generator of its own for each thread of a test.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        next(&mut self.0) % n.max(1)
    }

    /// Once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
