//! When the leader waits a moment for more to write at once. Decides only; reads no clock.
//!
//! A write costs every member a sync, two frames and some wake-ups of threads, whether it
//! carries one message or ten. Where many clients commit, waiting for a fraction of what a
//! commit takes anyway saves most of them. Where one client commits, nobody else comes, and
//! waiting only costs it time. So it is found out what waiting brings:
//!
//! * There is somebody to wait for if there were several messages under way together lately
//!   ([`RECENT`] writes); once as many have come, there is nobody left.
//! * Waiting goes on as long as it has brought something lately; else it is tried now and
//!   then ([`PROBE_EVERY`]).
//!
//! The idea is that of a group commit that waits (`commit_siblings` of PostgreSQL, say), with
//! the siblings counted and the result looked at.

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

#[cfg(test)]
mod tests {
    use super::*;

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
