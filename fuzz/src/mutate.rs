//! A plain mutator: no coverage, the same inputs for the same seed on every machine.

use crate::INPUT_MAX;

/// xorshift64*: enough to choose places and values.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            0
        } else {
            (self.draw() % n as u64) as usize
        }
    }
}

/// Numbers at which code breaks.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Some changes to one of `seeds`.
pub fn mutated(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = seeds
        .get(rng.below(seeds.len()))
        .cloned()
        .unwrap_or_default();
    for _ in 0..=rng.below(6) {
        change(&mut input, seeds, rng);
    }
    input.truncate(INPUT_MAX);
    input
}

fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len());
    match rng.below(8) {
        0 if !input.is_empty() => input[at] ^= 1 << rng.below(8),
        1 if !input.is_empty() => input[at] = rng.draw() as u8,
        2 => {
            let width = [1, 2, 4, 8][rng.below(4)];
            let edge = EDGES[rng.below(EDGES.len())].to_le_bytes();
            let end = (at + width).min(input.len());
            let n = end - at.min(end);
            input[at..end].copy_from_slice(&edge[..n]);
        }
        3 => input.truncate(at),
        4 => {
            let end = (at + 1 + rng.below(16)).min(input.len());
            input.drain(at..end);
        }
        5 => {
            let more: Vec<u8> = (0..=rng.below(16)).map(|_| rng.draw() as u8).collect();
            input.splice(at..at, more);
        }
        6 => {
            let end = (at + 1 + rng.below(64)).min(input.len());
            let copy = input[at..end].to_vec();
            let to = rng.below(input.len() + 1);
            input.splice(to..to, copy);
        }
        _ => {
            // The end of another one.
            if let Some(other) = seeds.get(rng.below(seeds.len())) {
                let from = rng.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let seeds = vec![b"one seed".to_vec(), vec![7; 40]];
        let make = |seed| -> Vec<Vec<u8>> {
            let mut rng = Rng::new(seed);
            (0..200).map(|_| mutated(&seeds, &mut rng)).collect()
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        let different: std::collections::BTreeSet<Vec<u8>> = make(1).into_iter().collect();
        assert!(different.len() > 150, "{}", different.len());
        assert!(mutated(&[], &mut Rng::new(3)).len() <= INPUT_MAX);
    }
}
