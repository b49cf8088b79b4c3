//! Members that lack some of the log that this node has delivered.
//!
//! A member whose log, or the way to it, takes less than the cluster writes has a short apply queue: it
//! applies what comes. Without a bound the logs of all others would grow with what it lacks, and after a
//! leader's death nothing would commit before it has all of that.
//!
//! ```text
//!   lacks   0 ───────── 1/4 ───────── 1/2 ──────────── limit ──────────>
//!           has caught up             large payloads   all writers wait
//!                                     wait for it      for it
//! ```
//!
//! If small ones alone keep it above a half, large payloads go on beside them: they would never get a turn.
//!
//! Nobody waits while it delivers nothing at all: its disk hangs then, and who is as good as gone holds
//! nobody.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use dromon_writeset::{Seqno, Uuid};

/// Who delivers nothing for so long hangs. A batch on a narrow way takes a while.
const MOVES_WITHIN: Duration = Duration::from_secs(3);
/// Large payloads wait no longer in one go while small ones do not.
const PAYLOADS_WAIT: Duration = Duration::from_secs(1);

/// What a member lacks of the log that this node has delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacks {
    /// Who.
    pub uuid: Uuid,
    /// Up to where it has delivered.
    pub ordered: Seqno,
    /// How many bytes of log lie behind that.
    pub bytes: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Lags {
    members: BTreeMap<Uuid, Lag>,
    /// Bytes.
    limit: u64,
}

#[derive(Debug)]
struct Lag {
    now: Lacks,
    /// When it delivered more, last.
    moved: Instant,
    /// Since when it lacks more than half of the limit.
    much_since: Option<Instant>,
}

impl Lags {
    /// What the members lack now. Who does not come is forgotten.
    pub fn look(&mut self, lacks: &[Lacks], limit: u64, now: Instant) {
        self.limit = limit;
        self.members
            .retain(|uuid, _| lacks.iter().any(|l| l.uuid == *uuid));
        for l in lacks {
            let lag = self.members.entry(l.uuid).or_insert(Lag {
                now: *l,
                moved: now,
                much_since: None,
            });
            if lag.now.ordered != l.ordered {
                lag.moved = now;
            }
            lag.now = *l;
            match l.bytes > limit / 2 {
                true => lag.much_since = lag.much_since.or(Some(now)),
                false => lag.much_since = None,
            }
        }
    }

    /// Whether writers wait for `uuid`.
    pub fn too_much(&self, uuid: &Uuid) -> bool {
        self.lacks(uuid, self.limit)
    }

    /// Whether large payloads do.
    pub fn much(&self, uuid: &Uuid) -> bool {
        let lag = self.members.get(uuid);
        let for_long = lag
            .and_then(|l| l.much_since)
            .is_some_and(|since| since.elapsed() >= PAYLOADS_WAIT);
        let most = if for_long { self.limit } else { self.limit / 2 };
        self.lacks(uuid, most)
    }

    /// Whether it has (nearly) all.
    pub fn little(&self, uuid: &Uuid) -> bool {
        let lag = self.members.get(uuid);
        lag.is_none_or(|l| l.now.bytes <= self.limit / 4)
    }

    fn lacks(&self, uuid: &Uuid, limit: u64) -> bool {
        let lag = self.members.get(uuid);
        lag.is_some_and(|l| l.now.bytes > limit && l.moved.elapsed() < MOVES_WITHIN)
    }

    #[cfg(test)]
    pub fn stands(&mut self, uuid: &Uuid) {
        let lag = self.members.get_mut(uuid).expect("a member");
        lag.moved -= MOVES_WITHIN;
    }

    #[cfg(test)]
    pub fn payloads_waited(&mut self, uuid: &Uuid) {
        let since = self.members.get_mut(uuid).map(|l| &mut l.much_since);
        *since.expect("a member").as_mut().expect("it lacks much") -= PAYLOADS_WAIT;
    }
}

/// The index of the log up to which a member has it that has delivered up to `ordered`: by the places that
/// are remembered (`recent`: index, seqno after it), and behind these by checkpoints, as if it had reached
/// the next one. None: nothing is remembered.
pub(crate) fn place_of(
    recent: &VecDeque<(u64, Seqno)>,
    marks: &[(u64, Seqno)],
    ordered: Seqno,
) -> Option<u64> {
    let behind = recent.partition_point(|(_, seqno)| *seqno <= ordered);
    let (oldest, _) = *recent.front()?;
    match behind.checked_sub(1) {
        Some(at) => recent.get(at).map(|(index, _)| *index),
        None => {
            let next = marks.iter().find(|(_, seqno)| *seqno > ordered);
            Some(next.map_or(oldest, |(index, _)| oldest.min(*index)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_what_is_remembered_stands_at_a_checkpoint() {
        let recent = VecDeque::from([(500, 480), (501, 481), (503, 482)]);
        let marks = [(100, 90), (200, 190), (502, 481)];
        let place = |ordered| place_of(&recent, &marks, ordered);
        assert_eq!(place(482), Some(503));
        assert_eq!(place(481), Some(501));
        assert_eq!(place(480), Some(500));
        assert_eq!(place(479), Some(500));
        assert_eq!(place(190), Some(500));
        assert_eq!(place(189), Some(200));
        assert_eq!(place(95), Some(200));
        assert_eq!(place(3), Some(100));
        assert_eq!(place_of(&recent, &[], 3), Some(500));
        assert_eq!(place_of(&VecDeque::new(), &marks, 3), None);
    }
}
