//! Seeded random numbers: the only chance there is in a run.

use std::time::Duration;

/// A generator; the same seed gives the same numbers.
///
/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of its own for the part of a run named by `labels`, so that
    /// a draw more or less in one part does not change the others.
    pub fn new(seed: u64, labels: &[u64]) -> Self {
        let mut rng = Rng(seed);
        for label in labels {
            rng.0 = rng.u64() ^ label.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        rng.u64();
        rng
    }

    /// Any number.
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.u64() % n }
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `permille` of 1000 cases.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of `items`, if there is any.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len() as u64) as usize).copied()
    }

    /// A time of `low..=high` milliseconds.
    pub fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.range(low, high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_give_streams_of_their_own() {
        let draw = |labels: &[u64]| Rng::new(7, labels).u64();
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(draw(&[1]), draw(&[1, 0]));
    }

    #[test]
    fn ranges_are_inclusive() {
        let mut rng = Rng::new(1, &[]);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.range(3, 5)).collect();
        assert_eq!(seen, [3, 4, 5].into());
    }
}
