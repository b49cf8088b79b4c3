//! Whether this node may stand for election.
//!
//! A candidate saves its vote before it asks anybody, and answers nobody until that is stored. If its disk takes long,
//! another one is elected meanwhile, maybe in the same term; and a candidate of a higher id then takes the elected one
//! for an older leadership, and ends it. So who knows that its disk is slow leaves the election to others, while
//! there are some, for as long as they may take.
//!
//! Who voted votes for nobody else while the one it voted for may still be elected: where storing a vote takes longer than
//! an election, another election would always come before the votes of this one do. So after a slow vote this node neither
//! stands nor says that it would vote, for as long as the rest may take. It is the vote of this one that counts: who has a
//! quick disk hears from those with a slow one that it has to wait.
//!
//! Nothing that is agreed depends on any of it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine_core::{Core, lock};
use crate::raft_types::Raft;
use openraft::async_runtime::WatchReceiver;

/// How long the log took to store something, lately.
#[derive(Default)]
pub(crate) struct DiskTimes(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// When what is under way was handed in; the log carries it out in this order.
    under_way: VecDeque<Instant>,
    /// When the last one was done, and what it took.
    last: Option<(Instant, Duration)>,
    /// Since when the newest vote has been stored, and what that took.
    vote: Option<(Instant, Option<Duration>)>,
}

impl DiskTimes {
    /// Something is handed in.
    pub fn begins(&self) {
        self.lock().under_way.push_back(Instant::now());
    }

    /// The oldest of what is under way is done.
    pub fn ends(&self) {
        let mut times = self.lock();
        if let Some(began) = times.under_way.pop_front() {
            times.last = Some((Instant::now(), began.elapsed()));
        }
    }

    /// What the last one took, if that is not longer ago than `within`, or has taken so far.
    pub fn lately(&self, within: Duration) -> Duration {
        let times = self.lock();
        let waits = times.under_way.front().map(Instant::elapsed);
        let last = times.last.filter(|(at, _)| at.elapsed() < within);
        waits.max(last.map(|(_, took)| took)).unwrap_or_default()
    }

    /// A vote is handed in.
    pub fn vote_begins(&self) {
        self.lock().vote = Some((Instant::now(), None));
    }

    /// It is stored.
    pub fn vote_ends(&self) {
        if let Some((began, took)) = &mut self.lock().vote {
            *took = Some(began.elapsed());
        }
    }

    /// What storing the newest vote took, or has taken so far, until what comes behind it may be done as well.
    pub fn vote_lately(&self) -> Duration {
        let Some((began, took)) = self.lock().vote else {
            return Duration::ZERO;
        };
        let since = began.elapsed();
        let took = took.unwrap_or(since);
        match since <= took + (took * REST).min(REST_MAX) {
            true => took,
            false => Duration::ZERO,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Times> {
        // Nothing below it panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
struct Picture {
    /// What the own disk took lately.
    disk: Duration,
    /// Another voter is heard that does not lead.
    heir: bool,
    /// Since when there is no lease.
    without: Duration,
    /// Another one asked for a vote lately whose log is shorter.
    needed: bool,
    /// Whom this node voted for may still be elected.
    voted: bool,
}

impl Picture {
    /// The election's shortest and longest time.
    fn may_stand(self, (min, max): (Duration, Duration)) -> bool {
        let free = self.disk <= min / 2 || !self.heir || self.needed;
        !self.voted && (free || self.without >= max * LEFT_TO_OTHERS)
    }
}

/// So many of the longest election times the others may take.
const LEFT_TO_OTHERS: u32 = 3;
/// What a disk took says so many of them later how it is now.
const LATELY: u32 = 10;

/// Behind a vote come the votes of others, and who was elected is stored by it and by them: so many times as long as this
/// one took, with one to spare,
const REST: u32 = 3;
/// and not more than this, or a disk that hung once would cost too much.
const REST_MAX: Duration = Duration::from_secs(10);
/// A vote is slow that took longer than such a part of the shortest election time: a candidate stores its own before it
/// asks, and begins anew after that time.
pub(crate) const SLOW_VOTE: u32 = 3;

/// Since when this node is without a lease.
#[derive(Default)]
pub(crate) struct Candidacy(Option<Duration>);

impl Candidacy {
    /// Lets the consensus stand for election, or not.
    pub fn look(&mut self, core: &Core, raft: &Raft) {
        let now = core.now();
        self.0 = match core.lease_left().is_zero() {
            true => Some(self.0.unwrap_or(now)),
            false => None,
        };
        let (min, max) = (core.config.election_min, core.config.election_max);
        let (voters, leader) = {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            let voters: Vec<_> = m.membership_config.voter_ids().collect();
            (voters, m.current_leader)
        };
        let mut others = (voters.iter()).filter(|id| **id != core.id && Some(**id) != leader);
        let lately = |at: Duration| now < at + max * LEFT_TO_OTHERS;
        let picture = Picture {
            disk: core.storage.disk.lately(max * LATELY),
            heir: others.any(|id| core.heard_within(*id, max)),
            without: self.0.map_or(Duration::ZERO, |at| now - at),
            needed: lock(&core.needed).is_some_and(lately),
            voted: core.voted_slowly(),
        };
        let late = picture.disk > min / 2 && picture.without >= max * LEFT_TO_OTHERS;
        {
            let mut told = lock(&core.too_slow);
            // As it was when it was seen, until there is a leader.
            *told = told
                .filter(|_| self.0.is_some())
                .or(late.then_some(picture.disk));
        }
        raft.runtime_config().elect(picture.may_stand((min, max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const ELECTION: (Duration, Duration) = (ms(700), ms(900));

    #[test]
    fn who_is_slow_leaves_it_to_others_while_there_are_some() {
        let slow = Picture {
            disk: ms(351),
            heir: true,
            without: ms(2699),
            needed: false,
            voted: false,
        };
        assert!(!slow.may_stand(ELECTION));
        let disk = ms(350);
        assert!(Picture { disk, ..slow }.may_stand(ELECTION));
        let heir = false;
        assert!(Picture { heir, ..slow }.may_stand(ELECTION));
        let needed = true;
        assert!(Picture { needed, ..slow }.may_stand(ELECTION));
        let without = ms(2700);
        assert!(Picture { without, ..slow }.may_stand(ELECTION));
        let voted = true;
        for picture in [
            Picture { voted, ..slow },
            Picture {
                disk,
                voted,
                ..slow
            },
            Picture {
                heir,
                voted,
                ..slow
            },
            Picture {
                needed,
                voted,
                ..slow
            },
            Picture {
                without,
                voted,
                ..slow
            },
        ] {
            assert!(!picture.may_stand(ELECTION), "{picture:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vote_counts_for_as_long_as_the_rest_may_take() {
        let times = DiskTimes::default();
        let sleep = tokio::time::sleep;
        assert_eq!(times.vote_lately(), ms(0));
        times.vote_begins();
        sleep(ms(500)).await;
        assert_eq!(times.vote_lately(), ms(500));
        sleep(ms(500)).await;
        times.vote_ends();
        sleep(ms(3000)).await;
        assert_eq!(times.vote_lately(), ms(1000));
        sleep(ms(1)).await;
        assert_eq!(times.vote_lately(), ms(0));
        // A disk that hung.
        times.vote_begins();
        sleep(ms(60_000)).await;
        times.vote_ends();
        sleep(ms(10_000)).await;
        assert_eq!(times.vote_lately(), ms(60_000));
        sleep(ms(1)).await;
        assert_eq!(times.vote_lately(), ms(0));
        // And is quick again.
        times.vote_begins();
        sleep(ms(2)).await;
        times.vote_ends();
        assert_eq!(times.vote_lately(), ms(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_disk_takes_is_known_before_it_is_done() {
        let times = DiskTimes::default();
        let sleep = tokio::time::sleep;
        times.begins();
        sleep(ms(300)).await;
        times.begins();
        assert_eq!(times.lately(ms(1000)), ms(300));
        times.ends();
        sleep(ms(10)).await;
        assert_eq!(times.lately(ms(1000)), ms(300));
        sleep(ms(400)).await;
        assert_eq!(times.lately(ms(1000)), ms(410));
        times.ends();
        times.ends();
        assert_eq!(times.lately(ms(1000)), ms(410));
        sleep(ms(1000)).await;
        assert_eq!(times.lately(ms(1000)), ms(0));
    }
}
