//! Two clocks: the one that people and NTP set, and the one that nobody does. Here they are compared; only
//! [`Clock`] and [`Moment`] read them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970. It may jump, in either direction.
    pub unix: u64,
    /// Seconds since the relay's start. It only goes forward.
    pub up: u64,
}

/// So far apart the two may move at once, in seconds.
const SLACK: i64 = 60;

/// So long a time further ahead must have stood until it is believed, in seconds.
const STOOD: u64 = 3600;

/// Seconds since 1970 by which files grow old. They do not come back when a clock does: a time that is
/// suddenly far ahead counts when it has stood for an hour, one that goes back counts at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Believed {
    /// The relay's start, as is believed.
    start: i64,
    /// The start as a time further ahead would have it, and since when.
    ahead: Option<(i64, u64)>,
}

impl Believed {
    /// `newest`: when the newest of what is stored was made. It is later than that; how much, the clock
    /// must show by standing, as it may not be set yet.
    pub fn new(newest: u64, now: Now) -> Believed {
        let unix = now.unix.min(newest);
        Believed {
            start: start(Now { unix, ..now }),
            ahead: None,
        }
    }

    /// What the time is.
    pub fn at(&mut self, now: Now) -> u64 {
        let said = start(now);
        if said <= self.start.saturating_add(SLACK) {
            (self.start, self.ahead) = (said, None);
        } else {
            match self.ahead {
                Some((as_before, since)) if said.abs_diff(as_before) <= SLACK.unsigned_abs() => {
                    if now.up.saturating_sub(since) >= STOOD {
                        (self.start, self.ahead) = (said, None);
                    }
                }
                _ => self.ahead = Some((said, now.up)),
            }
        }
        self.start
            .saturating_add_unsigned(now.up)
            .max(0)
            .unsigned_abs()
    }
}

/// When the clock of `up` stood at 0, as the other one has it.
fn start(now: Now) -> i64 {
    let signed = |secs: u64| i64::try_from(secs).unwrap_or(i64::MAX);
    signed(now.unix).saturating_sub(signed(now.up))
}

/// Two clocks that are read within this are read at once.
const AT_ONCE: Duration = Duration::from_millis(500);

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

/// By so much more the other clock must have gone on for the machine to have slept, in milliseconds.
const NAP_MS: i64 = 2000;

/// A clock that only goes forward, and goes on while the machine sleeps or is stopped, which the one that nobody
/// sets does not. A clock that is set forward looks like that: more time may have passed than it says, not less.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awake {
    /// By how much the other one was ahead when they were read last.
    ahead_ms: Option<i64>,
    slept_ms: u64,
    /// Up to when it may have slept, by the clock that nobody sets.
    woke_ms: Option<u64>,
}

impl Awake {
    /// Now. `up_ms`: by the clock that nobody sets; `unix_ms`: since 1970. To be asked often.
    pub fn at(&mut self, up_ms: u64, unix_ms: u64) -> u64 {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead = signed(unix_ms).saturating_sub(signed(up_ms));
        let more = self
            .ahead_ms
            .map_or(0, |before| ahead.saturating_sub(before));
        if more >= NAP_MS {
            self.slept_ms = self.slept_ms.saturating_add(more.unsigned_abs());
            self.woke_ms = Some(up_ms);
        }
        self.ahead_ms = Some(ahead);
        up_ms.saturating_add(self.slept_ms)
    }

    /// When that was, of which `up_ms` is known; `None`: the machine may have slept since.
    pub fn before(&self, up_ms: u64) -> Option<u64> {
        let since = self.woke_ms.is_none_or(|woke| up_ms > woke);
        since.then(|| up_ms.saturating_add(self.slept_ms))
    }
}

/// Such a clock, which begins at 0.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    awake: Mutex<Awake>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            began: Instant::now(),
            awake: Mutex::default(),
        }
    }
}

impl Clock {
    fn awake(&self) -> MutexGuard<'_, Awake> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, awake: &mut Awake) -> u64 {
        let mut before = self.began.elapsed();
        loop {
            let unix_ms = unix_ms();
            let after = self.began.elapsed();
            // Kept from running between the two, it has not slept.
            if after - before < AT_ONCE {
                return awake.at(before.as_millis() as u64, unix_ms);
            }
            before = after;
        }
    }

    /// Now, in milliseconds. To be asked often.
    pub fn now_ms(&self) -> u64 {
        self.read(&mut self.awake())
    }

    /// When that was; `None`: the machine may have slept since.
    pub fn before_ms(&self, at: Instant) -> Option<u64> {
        let mut awake = self.awake();
        self.read(&mut awake);
        let up = at.saturating_duration_since(self.began);
        awake.before(up.as_millis() as u64)
    }

    /// As if the machine slept now for so many milliseconds: for tests.
    #[doc(hidden)]
    pub fn sleeps(&self, ms: u32) {
        let mut awake = self.awake();
        self.read(&mut awake);
        awake.ahead_ms = awake.ahead_ms.map(|ahead| ahead - i64::from(ms));
    }
}

/// When something was, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    up: Instant,
    unix_ms: u64,
}

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        Moment {
            up: Instant::now(),
            unix_ms: unix_ms(),
        }
    }

    /// How long ago that is, in milliseconds, with what the machine slept.
    pub fn elapsed_ms(&self) -> u64 {
        let up_ms = self.up.elapsed().as_millis() as u64;
        passed(up_ms, unix_ms().saturating_sub(self.unix_ms))
    }

    /// As if it were so many milliseconds ago, and the machine had slept: for tests.
    #[doc(hidden)]
    pub fn slept(self, ms: u32) -> Moment {
        let unix_ms = self.unix_ms - u64::from(ms);
        Moment { unix_ms, ..self }
    }
}

/// What has passed, if the clock that nobody sets and the other one say this.
fn passed(up_ms: u64, unix_ms: u64) -> u64 {
    match unix_ms.saturating_sub(up_ms) >= NAP_MS.unsigned_abs() {
        true => unix_ms,
        false => up_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_700_000_000;

    fn at(unix: u64, up: u64) -> Now {
        Now { unix, up }
    }

    #[test]
    fn a_clock_that_is_right() {
        let mut believed = Believed::new(T - 5, at(T, 0));
        for up in 0..10_000 {
            // Slewed, and stepped a little.
            let unix = T + up + up / 2000 + up / 5000 * 30;
            assert_eq!(believed.at(at(unix, up)), unix);
        }
    }

    #[test]
    fn a_moment_ahead_counts_for_nothing() {
        let mut believed = Believed::new(T, at(T, 0));
        for up in 0..20_000 {
            let wrong = up % 1000 < 900 && up > 500;
            let unix = T + up + u64::from(wrong) * 400_000_000;
            assert_eq!(believed.at(at(unix, up)), T + up, "{up}");
        }
        // Jumps from one wrong time to another are none that stands.
        for up in 20_000..40_000 {
            let unix = T + up + 1000 * (1 + up / 3000);
            assert_eq!(believed.at(at(unix, up)), T + up, "{up}");
        }
    }

    #[test]
    fn what_stands_for_an_hour_counts() {
        let mut believed = Believed::new(T, at(T, 0));
        for up in 0..4000 {
            let unix = T + up + u64::from(up >= 100) * 86_400;
            let wanted = T + up + u64::from(up >= 100 + STOOD) * 86_400;
            assert_eq!(believed.at(at(unix, up)), wanted, "{up}");
        }
        // Back at once: what is kept for too long goes later.
        assert_eq!(believed.at(at(T + 4000, 4000)), T + 4000);
    }

    #[test]
    fn started_before_the_clock_was_set() {
        let mut believed = Believed::new(T, at(2 * T, 3));
        for up in 3..60 {
            assert_eq!(believed.at(at(2 * T + up - 3, up)), T + up - 3);
        }
        assert_eq!(believed.at(at(T + 1000, 60)), T + 57, "and then it was");
        assert_eq!(believed.at(at(T + 4540, 3600)), T + 3597);
        assert_eq!(believed.at(at(T + 4600, 3660)), T + 4600);
        let mut before_1970 = Believed::new(0, at(0, 50));
        assert_eq!(before_1970.at(at(0, 60)), 0);
    }

    /// What it slept counts; a clock that is slewed, or set back, does not.
    #[test]
    fn a_machine_that_sleeps() {
        let mut awake = Awake::default();
        let t = T * 1000;
        assert_eq!(awake.at(5, t), 5);
        for second in 1..10_000 {
            let slewed = second / 2;
            assert_eq!(
                awake.at(second * 1000, t + second * 1000 + slewed),
                second * 1000
            );
        }
        let (up, unix) = (10_000_000, t + 10_005_000);
        assert_eq!(awake.at(up, unix), up);
        assert_eq!(awake.before(up - 50), Some(up - 50));
        // An hour of sleep, of which one clock knows nothing.
        let slept = 3_600_000;
        assert_eq!(awake.at(up + 100, unix + slept + 100), up + slept + 100);
        assert_eq!(awake.before(up - 50), None, "asked before, or amid it");
        assert_eq!(awake.before(up + 100), None);
        assert_eq!(awake.before(up + 101), Some(up + slept + 101));
        assert_eq!(awake.at(up + 200, unix + 200), up + slept + 200, "set back");
        assert_eq!(awake.at(up + 300, unix + 300), up + slept + 300);
        // And twice.
        assert_eq!(awake.at(up + 400, unix + slept), up + 2 * slept);
    }

    #[test]
    fn a_clock_of_a_machine_that_sleeps() {
        let clock = Clock::default();
        let (asked, hour) = (Instant::now(), 3_600_000);
        assert!(clock.now_ms() < u64::from(hour) && clock.before_ms(asked).is_some());
        clock.sleeps(hour);
        assert!(clock.now_ms() >= u64::from(hour));
        assert_eq!(clock.before_ms(asked), None);
    }

    #[test]
    fn moments_and_sleep() {
        for (up, unix, wanted) in [(500, 3_600_500, 3_600_500), (500, 2499, 500), (500, 0, 500)] {
            assert_eq!(passed(up, unix), wanted);
        }
        let hour = 3_600_000;
        assert!(Moment::now().elapsed_ms() < hour);
        assert!(Moment::now().slept(3_600_000).elapsed_ms() >= hour);
    }
}
