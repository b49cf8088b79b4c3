//! When the leader waits a moment for more to write at once. Decides only; reads no clock.
//!
//! A write costs every member a sync, two frames and some wake-ups of threads, whether it
//! carries one message or ten. Where many clients commit, waiting for a fraction of what a
//! commit takes anyway saves most of them. Where one client commits, nobody else comes, and
//! waiting only costs it time. So it is found out what waiting brings:
//!
//! * There is somebody to wait for if there were several messages under way together lately
//!   ([`RECENT`] writes); once as many are in this write, there is nobody left. (Those that are
//!   still under way cannot come, and are not taken off: then it is the time that ends.)
//! * Waiting goes on as long as it has brought something lately; else it is tried now and
//!   then ([`PROBE_EVERY`]).
//! * Where cores are idle a write costs nobody anything, and to wait is to be late. So by
//!   itself ([`Gathering::Auto`](crate::types::Gathering)) it is done only where the engine's
//!   thread has to wait for a core ([`Cores`]).
//!
//! The idea is that of a group commit that waits (`commit_siblings` of PostgreSQL, say), with
//! the siblings counted and the result looked at.

use std::time::Duration;

/// Writes looked back at.
const RECENT: usize = 8;
/// Messages that a wait must bring, on average, to be repeated.
const WORTH: f64 = 0.5;
/// Weight of the newest wait in that average: one that brought more than the average, and
/// one that brought less. So a single good one is enough to go on with.
const WEIGHTS: (f64, f64) = (0.5, 0.25);
/// One in so many writes waits although the last ones brought nothing.
const PROBE_EVERY: u32 = 64;

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Messages under way after each of the recent writes.
    peaks: [usize; RECENT],
    at: usize,
    /// What a wait brings, in messages.
    gain: f64,
    /// Writes that did not wait since the last one that did.
    passed: u32,
}

impl Default for Gather {
    fn default() -> Self {
        Gather {
            peaks: [0; RECENT],
            at: 0,
            gain: 1.0,
            passed: 0,
        }
    }
}

impl Gather {
    /// `have` messages can be written now: until there are how many is it worth while to
    /// wait? `None`: not at all.
    pub fn wait_for(&mut self, have: usize) -> Option<usize> {
        let most = self.peaks.iter().copied().max().unwrap_or(0);
        if have >= most {
            return None;
        }
        if self.gain < WORTH && self.passed < PROBE_EVERY {
            self.passed += 1;
            return None;
        }
        self.passed = 0;
        Some(most)
    }

    /// A wait brought so many messages.
    pub fn waited(&mut self, brought: usize) {
        let more = brought as f64 - self.gain;
        let weight = if more > 0.0 { WEIGHTS.0 } else { WEIGHTS.1 };
        self.gain += weight * more;
    }

    /// A write was begun; with it so many messages are under way.
    pub fn written(&mut self, under_way: usize) {
        self.peaks[self.at % RECENT] = under_way;
        self.at += 1;
    }
}

/// A write waits for others at least until so long after the one before. (The runtime's timers
/// end up to a millisecond late.)
pub(crate) const GATHER_MIN: Duration = Duration::from_millis(1);
/// And at most until so long after it.
const GATHER_MAX: Duration = Duration::from_millis(4);
/// In between it waits so many times as long as the engine's thread does for a core: what a
/// commit waits for cores on its way, there and back.
const GATHER_WAITS: u32 = 20;

/// How long after the write before to wait for more, if the engine's thread waits for a core
/// for `core_wait` each time.
pub(crate) fn gather_time(core_wait: Duration) -> Duration {
    (core_wait * GATHER_WAITS).clamp(GATHER_MIN, GATHER_MAX)
}

/// Cores are scarce once the engine's thread waits so long for one, on average, each time
/// it has something to do, in nanoseconds. A commit is passed on about ten times, between
/// threads and nodes, and each time somebody waits.
const SCARCE: u64 = 20_000;
/// No longer scarce below that.
const PLENTY: u64 = 10_000;
/// An average of fewer times says nothing.
const TIMES: u64 = 32;

/// What the kernel says of a thread, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Nanoseconds that it waited for a core.
    pub waited: u64,
    /// How often it was given one.
    pub times: u64,
}

/// Whether cores are scarce.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    before: Option<Reading>,
    wait: u64,
    scarce: bool,
}

impl Cores {
    /// Takes a new reading. Answers whether cores are scarce.
    pub fn read(&mut self, now: Reading) -> bool {
        let before = *self.before.get_or_insert(now);
        let times = now.times.saturating_sub(before.times);
        if times < TIMES {
            return self.scarce;
        }
        self.before = Some(now);
        self.wait = now.waited.saturating_sub(before.waited) / times;
        let limit = if self.scarce { PLENTY } else { SCARCE };
        self.scarce = self.wait >= limit;
        self.scarce
    }

    /// Nanoseconds that the thread waited, on average, between the last two readings that
    /// said something.
    pub fn wait(&self) -> u64 {
        self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcer_cores_are_the_longer_it_may_wait() {
        let us = Duration::from_micros;
        assert_eq!(gather_time(us(20)), us(1_000));
        assert_eq!(gather_time(us(100)), us(2_000));
        assert_eq!(gather_time(us(5_000)), us(4_000));
    }

    #[test]
    fn cores_are_scarce_when_a_thread_waits_for_one() {
        let mut cores = Cores::default();
        let mut now = Reading::default();
        let mut after = |times, wait| {
            now.times += times;
            now.waited += times * wait;
            (cores.read(now), cores.wait())
        };
        assert_eq!(
            after(500, 90_000),
            (false, 0),
            "what was before says nothing"
        );
        assert_eq!(after(500, 15_000), (false, 15_000));
        assert_eq!(after(500, 20_000), (true, 20_000));
        assert_eq!(after(500, 15_000), (true, 15_000), "no to and fro");
        assert_eq!(after(10, 0), (true, 15_000), "too few");
        assert_eq!(after(490, 10_205), (true, 10_000), "with those before");
        assert_eq!(after(500, 9_000), (false, 9_000));
        assert_eq!(after(500, 15_000), (false, 15_000));
    }

    /// One write of `have` messages, for which others come while it waits.
    fn write(g: &mut Gather, have: usize, others: usize, before: usize) -> bool {
        let target = g.wait_for(have);
        let mut all = have;
        if let Some(target) = target {
            let brought = others.min(target - have);
            g.waited(brought);
            all += brought;
        }
        g.written(before + all);
        target.is_some()
    }

    #[test]
    fn a_single_client_never_waits() {
        let mut g = Gather::default();
        assert!((0..1000).all(|_| !write(&mut g, 1, 0, 0)));
    }

    #[test]
    fn several_clients_are_waited_for_until_all_have_come() {
        let mut g = Gather::default();
        assert!(!write(&mut g, 1, 0, 0));
        assert!(!write(&mut g, 1, 0, 1), "the second one overtakes nobody");
        assert_eq!(g.wait_for(1), Some(2));
        g.waited(1);
        g.written(3);
        assert_eq!(g.wait_for(1), Some(3));
        assert_eq!(g.wait_for(3), None);
    }

    #[test]
    fn who_waits_in_vain_stops_and_tries_again_later() {
        let mut g = Gather::default();
        // Every fourth write meets one of somebody else; nobody comes while it waits.
        let waits = (0..1000)
            .filter(|i| write(&mut g, 1, 0, usize::from(i % 4 == 0)))
            .count();
        assert!((10..=25).contains(&waits), "{waits} of 1000 waited");
        // More clients: the next try finds them, and from then on it waits.
        let waits: Vec<bool> = (0..200).map(|_| write(&mut g, 1, 2, 1)).collect();
        let first = waits.iter().position(|w| *w);
        assert!(
            first.is_some_and(|i| i <= PROBE_EVERY as usize),
            "{first:?}"
        );
        let after = waits.iter().skip(PROBE_EVERY as usize + 4);
        assert!(after.copied().all(|w| w));
    }

    #[test]
    fn those_who_went_are_forgotten() {
        let mut g = Gather::default();
        for _ in 0..20 {
            write(&mut g, 2, 6, 0);
        }
        g.written(9);
        for _ in 0..RECENT {
            write(&mut g, 1, 0, 0);
        }
        assert_eq!(g.wait_for(1), None);
    }
}
