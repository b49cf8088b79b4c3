//! What appliers are at and may wait for a lock, and for how long the node has stood still
//! there. Decided without a clock: times come in from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use dromon_writeset::Seqno;

/// After a look this late the whole process did not run, so that nobody stood.
const LATE: Duration = Duration::from_millis(500);

/// So long an event is the lowest unfinished one before it is looked at, and again each time.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks it is told of.
const TOLD: u32 = 10;

/// Who is at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The system's number of its thread.
    pub thread: u32,
    /// It runs a statement in total order isolation.
    pub statement: bool,
}

/// Events that are taking their locks.
#[derive(Debug, Default)]
pub struct Working {
    work: BTreeMap<Seqno, Work>,
    stands: Option<Stands>,
    finished: Option<Finished>,
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

/// The highest finished event.
#[derive(Debug)]
struct Finished {
    seqno: Seqno,
    /// When the next one was looked at last, or this one was finished.
    at: Duration,
    looks: u32,
}

impl Working {
    /// `work` takes the locks of the event at `seqno`.
    pub fn begins(&mut self, seqno: Seqno, work: Work) {
        self.work.insert(seqno, work);
    }

    /// It has them, or failed.
    pub fn ends(&mut self, seqno: Seqno) {
        self.work.remove(&seqno);
    }

    /// The one before which nothing else can be finished, if it is taking locks. Everything up
    /// to `released` is finished.
    pub fn lowest(&self, released: Seqno) -> Option<Work> {
        self.work.get(&(released + 1)).copied()
    }

    /// Which event is the lowest unfinished one, each second that it stays so; and whether it is time to tell of
    /// that, once.
    pub fn unfinished(
        &mut self,
        released: Seqno,
        ordered: Seqno,
        now: Duration,
    ) -> Option<(Seqno, bool)> {
        match &mut self.finished {
            Some(f) if f.seqno == released && ordered > released => {
                if now < f.at + LOOK {
                    return None;
                }
                f.at = now;
                f.looks += 1;
                Some((released + 1, f.looks == TOLD))
            }
            _ => {
                self.finished = Some(Finished {
                    seqno: released,
                    at: now,
                    looks: 0,
                });
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
    fn what_stays_unfinished_is_looked_at_and_told_once() {
        let mut working = Working::default();
        let mut at = |released, ordered, now| working.unfinished(released, ordered, ms(now));
        assert_eq!(at(4, 4, 0), None);
        assert_eq!(at(4, 4, 20_000), None, "nothing is to be finished");
        assert_eq!(at(4, 6, 20_100), None);
        assert_eq!(at(4, 6, 20_900), None);
        assert_eq!(at(4, 7, 21_100), Some((5, false)));
        assert_eq!(at(4, 7, 22_000), None);
        for second in 22..30 {
            assert_eq!(at(4, 7, second * 1000 + 200), Some((5, false)));
        }
        assert_eq!(at(4, 7, 30_300), Some((5, true)));
        assert_eq!(at(4, 7, 31_400), Some((5, false)), "told");
        assert_eq!(at(5, 7, 50_100), None);
        assert_eq!(at(5, 7, 51_200), Some((6, false)), "another one");
    }

    #[test]
    fn it_stands_where_the_thread_of_the_lowest_one_sleeps() {
        let mut working = Working::default();
        assert_eq!(working.lowest(4), None);
        assert_eq!(working.stood(4, None, ms(0)), None);
        let write_set = |thread| Work {
            thread,
            statement: false,
        };
        working.begins(5, write_set(77));
        working.begins(6, write_set(78));
        assert_eq!(working.lowest(4), Some(write_set(77)));
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
