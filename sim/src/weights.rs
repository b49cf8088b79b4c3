//! Weights of the members (`pc.weight`), in the runs that have some.

use std::time::Duration;

use crate::rng::Rng;

/// The weights there are. Most are 1, so that now and then one outweighs all others.
const WEIGHTS: [u8; 9] = [0, 0, 1, 1, 1, 1, 2, 4, 5];

/// How the members weigh.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Between two changes of one member's weight, at most.
    pub pause: Duration,
}

impl Weights {
    /// Whether and how the run of `seed` has some. `always`: it has.
    pub fn draw(seed: u64, always: bool) -> Option<Self> {
        let mut rng = stream(seed, &[]);
        (rng.chance(300) || always).then(|| Weights {
            pause: rng.ms(2_000, 20_000),
        })
    }

    /// What the node in `slot` weighs when it starts.
    pub fn configured(seed: u64, slot: usize) -> u8 {
        any(&mut stream(seed, &[slot as u64]))
    }
}

/// Random numbers that nothing else gets.
pub fn stream(seed: u64, labels: &[u64]) -> Rng {
    let labels: Vec<u64> = [0x3e16].iter().chain(labels).copied().collect();
    Rng::new(seed, &labels)
}

/// One of the weights.
pub fn any(rng: &mut Rng) -> u8 {
    rng.pick(&WEIGHTS).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_runs_have_weights_and_in_some_of_these_one_outweighs_all_others() {
        let with: Vec<u64> = (0..1_000)
            .filter(|seed| Weights::draw(*seed, false).is_some())
            .collect();
        assert!((250..350).contains(&with.len()), "{}", with.len());
        let outweighs = |seed: &&u64| {
            let all: Vec<u8> = (0..5)
                .map(|slot| Weights::configured(**seed, slot))
                .collect();
            let sum: u32 = all.iter().map(|w| u32::from(*w)).sum();
            all.iter().any(|w| 2 * u32::from(*w) > sum)
        };
        let count = with.iter().filter(outweighs).count();
        assert!(count * 20 > with.len(), "{count}");
    }
}
