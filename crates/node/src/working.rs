//! What appliers are at and may wait for a lock, and for how long the node has stood still
//! there. Decided without a clock: times come in from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use dromon_writeset::Seqno;

/// After a look this late the whole process did not run, so that nobody stood.
const LATE: Duration = Duration::from_millis(500);

/// After so long it is told who has left commit order and is not finished.
const UNFINISHED: Duration = Duration::from_secs(10);
/// And again after each of these.
const AGAIN: Duration = Duration::from_secs(1);

/// Write sets that are taking their locks.
#[derive(Debug, Default)]
pub struct Working {
    /// The thread that is at each.
    work: BTreeMap<Seqno, u32>,
    stands: Option<Stands>,
    /// The highest finished one, since when, and when [`Working::unfinished`] told of it last.
    finished: Option<(Seqno, Duration, Option<Duration>)>,
}

/// The lowest unfinished event is one that takes its locks.
#[derive(Debug)]
struct Stands {
    seqno: Seqno,
    /// How often its thread had run.
    runs: u64,
    since: Duration,
    looked: Duration,
}

impl Working {
    /// Thread `thread` takes the locks of the write set at `seqno`.
    pub fn begins(&mut self, seqno: Seqno, thread: u32) {
        self.work.insert(seqno, thread);
    }

    /// It has them, or failed.
    pub fn ends(&mut self, seqno: Seqno) {
        self.work.remove(&seqno);
    }

    /// The thread before which nothing else can be finished, if it is taking locks. Everything up
    /// to `released` is finished.
    pub fn lowest(&self, released: Seqno) -> Option<u32> {
        self.work.get(&(released + 1)).copied()
    }

    /// Which event has been the lowest unfinished one for [`UNFINISHED`], and whether that is told of it for
    /// the first time.
    pub fn unfinished(
        &mut self,
        released: Seqno,
        ordered: Seqno,
        now: Duration,
    ) -> Option<(Seqno, bool)> {
        match &mut self.finished {
            Some((seqno, since, told)) if *seqno == released && ordered > released => {
                let due = told.map_or(*since + UNFINISHED, |at| at + AGAIN);
                if now < due {
                    return None;
                }
                Some((released + 1, told.replace(now).is_none()))
            }
            _ => {
                self.finished = Some((released, now, None));
                None
            }
        }
    }

    /// The write set at which this node stands still, and for how long its thread has slept there.
    /// To be asked every 100 ms or so: it counts from the first time. `runs`: how often
    /// [`Working::lowest`] has run.
    pub fn stood(
        &mut self,
        released: Seqno,
        runs: Option<u64>,
        now: Duration,
    ) -> Option<(Seqno, Duration)> {
        let seqno = released + 1;
        let Some(runs) = runs.filter(|_| self.work.contains_key(&seqno)) else {
            self.stands = None;
            return None;
        };
        match &mut self.stands {
            Some(s) if s.seqno == seqno && s.runs == runs && now <= s.looked + LATE => {
                s.looked = now;
                Some((seqno, now.saturating_sub(s.since)))
            }
            _ => {
                self.stands = Some(Stands {
                    seqno,
                    runs,
                    since: now,
                    looked: now,
                });
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn what_stays_unfinished_is_told() {
        let mut working = Working::default();
        let mut at = |released, ordered, now| working.unfinished(released, ordered, ms(now));
        assert_eq!(at(4, 4, 0), None);
        assert_eq!(at(4, 4, 20_000), None, "nothing is to be finished");
        assert_eq!(at(4, 6, 20_100), None);
        assert_eq!(at(4, 6, 29_900), None);
        assert_eq!(at(4, 7, 30_100), Some((5, true)));
        assert_eq!(at(4, 7, 30_900), None, "told");
        assert_eq!(at(4, 7, 31_100), Some((5, false)));
        assert_eq!(at(4, 7, 32_000), None);
        assert_eq!(at(5, 7, 50_100), None);
        assert_eq!(at(5, 7, 60_100), Some((6, true)), "another one");
    }

    #[test]
    fn it_stands_where_the_thread_of_the_lowest_one_sleeps() {
        let mut working = Working::default();
        assert_eq!(working.lowest(4), None);
        assert_eq!(working.stood(4, None, ms(0)), None);
        working.begins(5, 77);
        working.begins(6, 78);
        assert_eq!(working.lowest(4), Some(77));
        assert_eq!(working.stood(4, Some(3), ms(10)), None, "the first look");
        assert_eq!(working.stood(4, Some(3), ms(500)), Some((5, ms(490))));
        assert_eq!(working.stood(4, Some(3), ms(900)), Some((5, ms(890))));
        assert_eq!(working.stood(4, Some(3), ms(2010)), None, "nobody ran");
        assert_eq!(working.stood(4, Some(3), ms(2015)), Some((5, ms(5))));
        assert_eq!(working.stood(4, Some(4), ms(2020)), None, "it works");
        assert_eq!(working.stood(4, Some(4), ms(2030)), Some((5, ms(10))));
        working.ends(5);
        assert_eq!(working.lowest(4), None, "it has its locks");
        assert_eq!(working.stood(4, None, ms(2040)), None);
        assert_eq!(working.stood(5, Some(4), ms(3030)), None, "another one");
        assert_eq!(working.stood(5, Some(4), ms(3040)), Some((6, ms(10))));
        assert_eq!(working.stood(5, None, ms(3050)), None, "its thread is gone");
    }
}
