//! Open loop: when transactions are wanted, whether or not the ones before
//! are done, and what is owed at the end.

use std::time::Duration;

use crate::rng::Rng;

/// How arrivals are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Independent of each other: exponential distances.
    Poisson,
    /// Equal distances.
    Fixed,
}

/// The moments at which one client wants to begin a transaction, since the
/// run's zero. The same seed gives the same moments.
#[derive(Debug, Clone)]
pub struct Arrivals {
    spread: Spread,
    mean: f64,
    next: f64,
    rng: Rng,
}

impl Arrivals {
    /// `per_second` arrivals, which must be above 0. Clients with different
    /// seeds do not arrive together.
    ///
    /// # Panics
    /// When the rate is not above 0.
    #[must_use]
    pub fn new(spread: Spread, per_second: f64, seed: u64) -> Self {
        assert!(per_second > 0.0, "somebody arrives");
        let mean = 1.0 / per_second;
        let mut rng = Rng::new(seed);
        let next = match spread {
            Spread::Poisson => exponential(&mut rng, mean),
            Spread::Fixed => rng.fraction() * mean,
        };
        Self {
            spread,
            mean,
            next,
            rng,
        }
    }

    /// All arrivals before `end`.
    #[must_use]
    pub fn until(self, end: Duration) -> Vec<Duration> {
        self.take_while(|moment| *moment < end).collect()
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    /// Never none.
    fn next(&mut self) -> Option<Duration> {
        let now = Duration::from_secs_f64(self.next);
        self.next += match self.spread {
            Spread::Poisson => exponential(&mut self.rng, self.mean),
            Spread::Fixed => self.mean,
        };
        Some(now)
    }
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    // 1 - x is never 0, so the logarithm is finite.
    -(1.0 - rng.fraction()).ln() * mean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_fixed_rate_has_equal_distances_and_each_client_its_own_begin() {
        let all = Arrivals::new(Spread::Fixed, 50.0, 1).until(MINUTE);
        assert_eq!(all.len(), 3000);
        let distances = all.windows(2).map(|w| (w[1] - w[0]).as_secs_f64());
        assert!(distances.into_iter().all(|d| (d - 0.02).abs() < 1e-6));
        let other = Arrivals::new(Spread::Fixed, 50.0, 2).until(MINUTE);
        assert_ne!(all[0], other[0]);
    }

    #[test]
    fn poisson_arrivals_keep_the_rate_and_vary() {
        let all = Arrivals::new(Spread::Poisson, 100.0, 3).until(MINUTE);
        // Six standard deviations.
        assert!((5535..6465).contains(&all.len()), "{}", all.len());
        let per_second = series::slices(&all, &(Duration::ZERO..MINUTE), Duration::from_secs(1));
        let mean = all.len() as f64 / 60.0;
        let spread: f64 = per_second
            .iter()
            .map(|n| (*n as f64 - mean).powi(2))
            .sum::<f64>()
            / 60.0;
        // The variance of a Poisson process is its mean.
        assert!((40.0..200.0).contains(&spread), "{spread}");
        assert!(all.is_sorted());
    }

    #[test]
    fn the_same_seed_gives_the_same_moments() {
        let draw = |seed| Arrivals::new(Spread::Poisson, 9.0, seed).until(MINUTE);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
