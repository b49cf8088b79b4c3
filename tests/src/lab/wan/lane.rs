//! One direction of a link: what becomes of each packet. Decides; moves none itself.

use std::time::Duration;

use crate::rng::Rng;

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// From one end to the other.
    pub delay: Duration,
    /// Of a thousand packets, so many are lost in each direction.
    pub lost_of_1000: u64,
    /// Bits that pass in a second in each direction.
    pub bits_per_second: u64,
    /// Bytes that wait for their turn; what comes while there are more is dropped.
    pub queue_bytes: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It comes out at this time.
    Arrives(Duration),
    /// By chance.
    Lost,
    /// Too many wait.
    Dropped,
}

/// One direction.
#[derive(Debug)]
pub struct Lane {
    line: Line,
    /// When the last packet has left the queue.
    free_at: Duration,
    dice: Rng,
}

impl Lane {
    /// With nothing on its way.
    pub fn new(line: Line, seed: u64) -> Lane {
        Lane {
            line,
            free_at: Duration::ZERO,
            dice: Rng::new(seed),
        }
    }

    /// A packet comes at a time, which is not before that of the one before.
    pub fn packet(&mut self, now: Duration, bytes: u64) -> Fate {
        if self.dice.below(1000) < self.line.lost_of_1000 {
            return Fate::Lost;
        }
        let begins = self.free_at.max(now);
        if self.sending(self.line.queue_bytes) < begins - now {
            return Fate::Dropped;
        }
        self.free_at = begins + self.sending(bytes);
        Fate::Arrives(self.free_at + self.line.delay)
    }

    fn sending(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 8 * 1_000_000_000 / self.line.bits_per_second.max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: Line = Line {
        delay: Duration::from_millis(40),
        lost_of_1000: 0,
        bits_per_second: 100_000_000,
        queue_bytes: 100_000,
    };

    proptest! {
        /// Against a queue that is emptied byte by byte: nothing overtakes, nothing comes early,
        /// never more than the queue holds.
        #[test]
        fn as_a_queue(gaps in proptest::collection::vec((0u64..300, 40u64..1500), 1..300)) {
            let line = Line { queue_bytes: 9000, ..LINE };
            let mut lane = Lane::new(line, 1);
            // 12.5 bytes leave in a microsecond; counted in half bytes.
            let (mut now, mut waiting, mut last) = (0u64, 0u64, Duration::ZERO);
            for (gap, bytes) in gaps {
                now += gap;
                waiting = waiting.saturating_sub(gap * 25);
                let fate = lane.packet(Duration::from_micros(now), bytes);
                if waiting > 9000 * 2 {
                    prop_assert_eq!(fate, Fate::Dropped);
                    continue;
                }
                waiting += bytes * 2;
                let due = Duration::from_micros(now) + Duration::from_nanos(waiting * 40) + line.delay;
                prop_assert_eq!(fate, Fate::Arrives(due));
                prop_assert!(due >= last);
                last = due;
            }
        }
    }

    #[test]
    fn loses_as_many_as_it_should() {
        let line = Line {
            lost_of_1000: 20,
            ..LINE
        };
        let mut lane = Lane::new(line, 7);
        let lost = (0..100_000u64)
            .filter(|n| lane.packet(Duration::from_millis(*n), 1500) == Fate::Lost)
            .count();
        assert!((1800..2200).contains(&lost), "{lost}");
    }
}
