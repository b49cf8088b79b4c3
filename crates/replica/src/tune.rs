//! Numbers that are found by trying: connections, readers ahead. Without I/O and clocks.
//!
//! While there is a backlog, time is cut into periods. A neighbouring level of one number is
//! tried for a period, between two periods at the present one:
//!
//! ```text
//!   rate   ▁▁▁▁▁ ▃▃▃▃▃ ▁▁▁▁▁         more than a step dearer is worth: taken
//!          before tried after        a cheaper one is taken if next to nothing is lost
//! ```
//!
//! So what changes by itself meanwhile does not count as a gain. Where nothing is gained it is
//! tried less and less often, until the rate itself changes.

/// What a dearer level must gain.
const GAIN: f64 = 1.05;
/// What a cheaper level may lose.
const LOSS: f64 = 0.98;
/// A rate that differs by so much is that of another work.
const OTHER: f64 = 1.5;
/// Periods between attempts, at most.
const PAUSE_MAX: u32 = 64;
/// If more than this part of what was begun is rolled back, less is begun.
const WASTE: f64 = 0.5;

/// A number and the levels that it may have, the cheapest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    levels: Vec<usize>,
    at: usize,
    /// It is worth nothing now: stays where it is cheapest.
    off: bool,
}

impl Knob {
    /// The level in the middle: from there the best is never far.
    fn middle(&self) -> usize {
        self.levels.len() / 2
    }

    /// From a first level; with one level it is fixed.
    pub fn new(levels: &[usize], first: usize) -> Knob {
        let at = levels.iter().position(|level| *level == first);
        assert!(at.is_some(), "the first level is one of them");
        Knob {
            levels: levels.to_vec(),
            at: at.unwrap_or(0),
            off: false,
        }
    }

    /// The dearest.
    pub fn max(&self) -> usize {
        self.levels[self.levels.len() - 1]
    }

    /// Where it is.
    pub fn level(&self) -> usize {
        self.levels[self.at]
    }

    /// Whether it can move.
    pub fn is_fixed(&self) -> bool {
        self.levels.len() == 1
    }

    /// Always the same.
    pub fn fixed(level: usize) -> Knob {
        Knob::new(&[level], level)
    }

    fn moved(&self, up: bool) -> Option<usize> {
        let to = match up {
            true => self.at + 1,
            false => self.at.checked_sub(1)?,
        };
        (to < self.levels.len() && !self.off).then_some(to)
    }
}

/// Which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Connections that apply.
    Threads,
    /// Connections that read ahead.
    Readers,
}

const ALL: [Which; 2] = [Which::Threads, Which::Readers];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// So many periods pass before the next attempt.
    Pause(u32),
    /// The period before an attempt.
    Before,
    /// At another level; the rate before.
    Tried { before: f64 },
    /// Back; the rates before and there.
    After { before: f64, tried: f64 },
}

/// Finds them.
#[derive(Clone, Debug)]
pub struct Tuner {
    knobs: [Knob; 2],
    phase: Phase,
    /// What is tried next: the number, and whether upwards.
    next: usize,
    /// Attempts in a row that gained nothing.
    vain: u32,
    /// The rate when something was gained last.
    known: f64,
    moves: u64,
}

impl Tuner {
    /// Of both numbers. Nobody reads ahead before [`Tuner::reads`] says that it is worth something.
    pub fn new(threads: Knob, mut readers: Knob) -> Tuner {
        readers.off = !readers.is_fixed();
        Tuner {
            knobs: [threads, readers],
            phase: Phase::Before,
            next: 0,
            vain: 0,
            known: 0.0,
            moves: 0,
        }
    }

    /// What to use now.
    pub fn level(&self, which: Which) -> usize {
        let knob = &self.knobs[which as usize];
        let tried = match self.phase {
            Phase::Tried { .. } => self.attempt().filter(|(k, _)| *k == which as usize),
            _ => None,
        };
        knob.levels[tried.map_or(knob.at, |(_, to)| to)]
    }

    /// How often a level was changed for good.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether reading ahead can be worth anything: there are pages that must be read. `mostly`: that
    /// is what it waits for most of the time. Then many are tried at once.
    pub fn reads(&mut self, worth: bool, mostly: bool) {
        let knob = &mut self.knobs[Which::Readers as usize];
        let settled = matches!(self.phase, Phase::Before | Phase::Pause(_));
        if knob.is_fixed() || knob.off != worth || !settled {
            return;
        }
        knob.off = !worth;
        knob.at = if worth && mostly { knob.middle() } else { 0 };
        if worth {
            self.vain = 0;
            self.phase = Phase::Before;
        }
    }

    /// There was no backlog in this period: nothing is learnt from it.
    pub fn idle(&mut self) {
        self.phase = Phase::Before;
    }

    fn attempt(&self) -> Option<(usize, usize)> {
        let (which, up) = (self.next / 2 % ALL.len(), self.next.is_multiple_of(2));
        self.knobs[which].moved(up).map(|to| (which, to))
    }

    /// A period is over: what was done in it, in any unit, and the part of what was begun that was
    /// rolled back.
    pub fn period(&mut self, rate: f64, waste: f64) {
        if waste > WASTE {
            let threads = &mut self.knobs[Which::Threads as usize];
            if let Some(to) = threads.moved(false) {
                threads.at = to;
                self.moves += 1;
                self.phase = Phase::Before;
                return;
            }
        }
        self.phase = match self.phase {
            Phase::Pause(left) => {
                let other = rate > self.known * OTHER || rate * OTHER < self.known;
                match left.checked_sub(1) {
                    Some(left) if left > 0 && !other => Phase::Pause(left),
                    _ => {
                        if other {
                            self.vain = 0;
                        }
                        Phase::Before
                    }
                }
            }
            Phase::Before => {
                // The next one that can be tried, if there is any.
                let tries = (0..2 * ALL.len()).find(|_| {
                    self.next += 1;
                    self.attempt().is_some()
                });
                match tries {
                    Some(_) => Phase::Tried { before: rate },
                    None => Phase::Pause(PAUSE_MAX),
                }
            }
            Phase::Tried { before } => Phase::After {
                before,
                tried: rate,
            },
            Phase::After { before, tried } => self.judge(before.midpoint(rate), tried),
        };
    }

    fn judge(&mut self, here: f64, there: f64) -> Phase {
        self.known = here.max(1.0);
        let Some((which, to)) = self.attempt() else {
            return Phase::Before;
        };
        let knob = &mut self.knobs[which];
        let wanted = if to > knob.at { GAIN } else { LOSS };
        if there >= here * wanted && here > 0.0 {
            knob.at = to;
            self.moves += 1;
            self.vain = 0;
            self.known = there;
            // Further in the same direction.
            self.next = self.next.wrapping_sub(1);
            return Phase::Before;
        }
        self.vain += 1;
        match self.vain / 6 {
            0 => Phase::Before,
            rounds => Phase::Pause((1 << rounds.min(6)).min(PAUSE_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
    const READERS: [usize; 6] = [0, 2, 4, 8, 16, 32];

    fn tuner() -> Tuner {
        Tuner::new(Knob::new(&THREADS, 8), Knob::new(&READERS, 0))
    }

    fn levels(t: &Tuner) -> [usize; 2] {
        ALL.map(|which| t.level(which))
    }

    /// Where it is when nothing is being tried.
    fn settled(t: &Tuner) -> [usize; 2] {
        ALL.map(|which| {
            let knob = &t.knobs[which as usize];
            knob.levels[knob.at]
        })
    }

    #[test]
    fn finds_the_best_of_a_hill() {
        let mut t = tuner();
        t.reads(true, false);
        // Best with 4 connections and 8 readers.
        let near =
            |level: usize, best: f64| 1.0 / (1.0 + ((level.max(1) as f64 / best).ln()).abs());
        for _ in 0..400 {
            let [a, b] = levels(&t);
            t.period(1e4 * near(a, 4.0) * near(b, 8.0), 0.0);
        }
        assert_eq!(settled(&t), [4, 8]);
    }

    #[test]
    fn what_brings_nothing_is_given_up() {
        let mut t = tuner();
        t.reads(true, false);
        for _ in 0..600 {
            t.period(1000.0, 0.0);
        }
        assert_eq!(settled(&t), [1, 0]);
        // And is tried seldom.
        let tried = (0..500).filter(|_| {
            t.period(1000.0, 0.0);
            matches!(t.phase, Phase::Tried { .. })
        });
        assert!(tried.count() < 30);
    }

    #[test]
    fn a_rate_that_rises_by_itself_is_no_gain() {
        let mut t = tuner();
        t.reads(true, false);
        let mut rate = 1000.0;
        for _ in 0..60 {
            rate += 20.0;
            // Each dearer level costs a little.
            let [a, b] = levels(&t);
            t.period(rate / (1.0 + 0.01 * (a + b) as f64), 0.0);
        }
        assert_eq!(settled(&t)[1], 0);
        assert!(settled(&t)[0] <= 2);
    }

    #[test]
    fn waste_takes_connections_away() {
        let mut t = tuner();
        t.period(1000.0, 0.9);
        t.period(1000.0, 0.9);
        assert_eq!(settled(&t)[0], 2);
        assert_eq!(t.moves(), 2);
    }

    #[test]
    fn no_readers_where_nothing_is_read() {
        let mut t = tuner();
        t.reads(false, false);
        for _ in 0..100 {
            assert_eq!(t.level(Which::Readers), 0);
            t.period(1000.0, 0.0);
        }
        let mut unknown = tuner();
        unknown.period(1000.0, 0.0);
        assert_eq!(unknown.level(Which::Readers), 0);
        unknown.idle();
        unknown.reads(true, true);
        assert_eq!(
            unknown.level(Which::Readers),
            8,
            "many at once, then it is tried"
        );
        unknown.reads(false, false);
        assert_eq!(unknown.level(Which::Readers), 0);
        let mut fixed = Tuner::new(Knob::fixed(4), Knob::fixed(3));
        for n in 0..100 {
            fixed.period(f64::from(n), 0.1);
            assert_eq!(levels(&fixed), [4, 3]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn only_levels_that_there_are(steps in prop::collection::vec((0u8..8, 0.0f64..1e6, 0.0f64..1.0), 0..300)) {
            let mut t = tuner();
            for (what, rate, waste) in steps {
                match what {
                    0 => t.idle(),
                    1 => t.reads(rate > 5e5, rate > 7e5),
                    _ => t.period(rate, waste * waste),
                }
                let [a, b] = levels(&t);
                prop_assert!(THREADS.contains(&a) && READERS.contains(&b));
            }
        }
    }
}
