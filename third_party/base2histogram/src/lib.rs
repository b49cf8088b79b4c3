//! Counts of numbers by their order of magnitude in base two.
//!
//! Stand-in for the crate of the same name, whose licence we cannot link; it
//! was written from openraft's use of it alone. Bucket 0 holds the zeros,
//! bucket k the numbers from 2^(k-1) to 2^k - 1; a percentile is the lower
//! bound of the bucket it falls into.

use std::fmt;
use std::marker::PhantomData;

const BUCKETS: usize = u64::BITS as usize + 1;

/// How often numbers of each magnitude were seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    counts: [u64; BUCKETS],
    _kind: PhantomData<T>,
}

impl<T> Histogram<T> {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Histogram {
            counts: [0; BUCKETS],
            _kind: PhantomData,
        }
    }

    /// Sees `value` once.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Sees `value` `times` times.
    pub fn record_n(&mut self, value: u64, times: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        self.counts[bucket] += times;
    }

    /// How many numbers were seen.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The usual percentiles.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.1),
            p50: self.percentile(0.5),
            p90: self.percentile(0.9),
            p95: self.percentile(0.95),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }

    fn percentile(&self, share: f64) -> u64 {
        let wanted = (self.total() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen > 0 && seen >= wanted {
                return if bucket == 0 { 0 } else { 1 << (bucket - 1) };
            }
        }
        0
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Lower bounds of the buckets of some percentiles: `p99_9` is the 99.9th.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Several named histograms in one text, a line each.
#[derive(Clone, Debug, Default)]
pub struct AsciiChart(Vec<(String, PercentileStats)>);

impl AsciiChart {
    /// An empty chart.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line.
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, name: impl Into<String>, histogram: Histogram) -> Self {
        self.0.push((name.into(), histogram.percentile_stats()));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, stats) in &self.0 {
            writeln!(f, "{name}: {stats}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_lower_bounds() {
        let mut h = Histogram::<()>::new();
        assert_eq!(h.percentile_stats(), PercentileStats::default());
        h.record_n(0, 5);
        h.record_n(100, 5);
        h.record(u64::MAX);
        let s = h.percentile_stats();
        assert_eq!((s.samples, s.p10, s.p90, s.p99), (11, 0, 64, 1 << 63));
    }
}
