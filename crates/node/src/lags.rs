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
//! Nobody waits while it delivers nothing at all: its disk hangs then, and who is as good as gone holds
//! nobody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_writeset::{Seqno, Uuid};

/// Who delivers nothing for so long hangs. A batch on a narrow way takes a while.
const MOVES_WITHIN: Duration = Duration::from_secs(3);

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
            });
            if lag.now.ordered != l.ordered {
                lag.moved = now;
            }
            lag.now = *l;
        }
    }

    /// Whether writers wait for `uuid`.
    pub fn too_much(&self, uuid: &Uuid) -> bool {
        self.lacks(uuid, self.limit)
    }

    /// Whether large payloads do.
    pub fn much(&self, uuid: &Uuid) -> bool {
        self.lacks(uuid, self.limit / 2)
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
}
