//! What appliers are at and may wait for a lock, and for how long the node has stood still
//! there. Decided without a clock: times come in from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use dromon_writeset::Seqno;

/// So many bytes of a write set per second are taken for work.
pub const BYTES_PER_SECOND: f64 = (1 << 20) as f64;

/// Write sets that are taking their locks.
#[derive(Debug, Default)]
pub struct Working {
    /// How many bytes each has.
    work: BTreeMap<Seqno, u64>,
    /// Since when the lowest unfinished event is this one of them.
    stands: Option<(Seqno, Duration)>,
}

impl Working {
    /// The write set at `seqno`, of so many bytes, takes its locks.
    pub fn begins(&mut self, seqno: Seqno, bytes: u64) {
        self.work.insert(seqno, bytes);
    }

    /// It has them, or failed.
    pub fn ends(&mut self, seqno: Seqno) {
        self.work.remove(&seqno);
    }

    /// The write set at which this node stands still, if it does, and for how long beyond what
    /// its size takes. To be asked again and again: it counts from the first time. Everything up
    /// to `released` is finished.
    pub fn stood(&mut self, released: Seqno, now: Duration) -> Option<(Seqno, Duration)> {
        let lowest = released + 1;
        let Some(bytes) = self.work.get(&lowest) else {
            self.stands = None;
            return None;
        };
        let since = match self.stands {
            Some((seqno, since)) if seqno == lowest => since,
            _ => now,
        };
        self.stands = Some((lowest, since));
        let works = Duration::from_secs_f64(*bytes as f64 / BYTES_PER_SECOND);
        let stood = now.saturating_sub(since).checked_sub(works)?;
        Some((lowest, stood))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn it_stands_where_the_lowest_one_waits() {
        let mut working = Working::default();
        assert_eq!(working.stood(4, ms(0)), None);
        working.begins(5, 100);
        working.begins(6, 100);
        assert_eq!(working.stood(4, ms(10)), None, "it has only begun");
        let (seqno, stood) = working.stood(4, ms(2010)).expect("it stands");
        assert_eq!(seqno, 5);
        assert!(stood > ms(1990) && stood < ms(2000), "{stood:?}");
        working.ends(5);
        assert_eq!(working.stood(4, ms(2020)), None, "it has its locks");
        assert_eq!(
            working.stood(5, ms(2030)),
            None,
            "the next one is lowest only now"
        );
        assert!(working.stood(5, ms(3030)).is_some_and(|(n, _)| n == 6));
        working.ends(6);
        working.begins(7, 100);
        assert_eq!(working.stood(5, ms(9000)), None, "6 is about to finish");
    }

    #[test]
    fn what_is_large_takes_its_time() {
        let mut working = Working::default();
        working.begins(5, 5 << 20);
        assert_eq!(working.stood(4, ms(0)), None);
        assert_eq!(working.stood(4, ms(4999)), None);
        assert_eq!(working.stood(4, ms(6000)), Some((5, ms(1000))));
    }
}
