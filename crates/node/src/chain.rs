//! A running checksum of the history: whether two logs agree up to a seqno.
//!
//! A server remembers of its data nothing but history and seqno, and two of
//! them can have the same with other data: a copy of a machine that ran by
//! itself for a while, a state file edited by hand. The log knows better.
//!
//! ```text
//!   seqno      100        101            102              103
//!              │   write set, passed  write set, failed  view
//!   sum     s100 ──H──> s101 ───H────> s102 ────H─────> s103
//!                  └ checksum of its header, which covers keys and payload
//! ```
//!
//! Whoever joins by the log says the sum that its own log has at its position;
//! the leader compares it with that of the cluster's log there. A checkpoint
//! keeps the sum at its place, from which the next ones follow.

use std::collections::VecDeque;
use std::sync::Arc;

use dromon_order::logstore::LogStore;
use dromon_order::sequencer::PieceStore;
use dromon_order::{Committed, OrderError, Stored};
use dromon_writeset::Seqno;
use serde::{Deserialize, Serialize};

use crate::cluster::{ChunkPart, ClusterState, ClusterView};
use crate::messages::Position;

/// How many of the newest sums a node has at hand; older ones it counts again.
const KEPT: usize = 1 << 17;

/// Bytes of log read at a time.
const READ: usize = 4 << 20;

/// What takes a seqno, as far as the sum is concerned.
#[derive(Clone, Copy, Debug)]
pub enum Taken<'a> {
    /// A write set.
    WriteSet {
        /// The checksum of its header.
        sum: u64,
        /// Whether it commits.
        passed: bool,
        /// Whether this is the first chunk of it only.
        cut: bool,
    },
    /// A part of one that is applied in chunks.
    Chunk {
        /// The seqno of its first chunk.
        id: Seqno,
        /// Which part; the first one comes as a write set that is cut.
        part: ChunkPart,
    },
    /// A view.
    View(&'a ClusterView),
    /// Nothing: it was kept for somebody who did not come before a chunk took its
    /// place ahead.
    Nothing,
}

/// The sum at `position` for a history of which nothing before it is known.
pub fn root(position: Position) -> u64 {
    let Position { history, seqno } = position;
    let mut words = [0; 24];
    words[..16].copy_from_slice(&history.0);
    words[16..].copy_from_slice(&seqno.to_le_bytes());
    twox_hash::XxHash3_64::oneshot(&words)
}

/// The sum at `seqno`, which `taken` takes, after `before` at the one before.
pub fn next(before: u64, seqno: Seqno, taken: Taken<'_>) -> u64 {
    let (kind, what): (u64, [u64; 2]) = match taken {
        Taken::WriteSet { sum, passed, cut } => (1, [sum, u64::from(passed) | u64::from(cut) << 1]),
        Taken::Chunk { id, part } => {
            let part = match part {
                ChunkPart::Data(n) => u64::from(n),
                ChunkPart::End => 1 << 32,
                ChunkPart::Rollback => 2 << 32,
            };
            (2, [id as u64, part])
        }
        Taken::View(view) => {
            // Plain types into memory: nothing that could fail.
            let bytes = postcard::to_allocvec(view).unwrap_or_default();
            (3, [twox_hash::XxHash3_64::oneshot(&bytes), 0])
        }
        Taken::Nothing => (4, [0, 0]),
    };
    let mut words = [0; 40];
    let all = [before, seqno as u64, kind, what[0], what[1]];
    for (to, word) in words.chunks_exact_mut(8).zip(all) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    twox_hash::XxHash3_64::oneshot(&words)
}

/// What came of comparing a joiner's sum with the cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compared {
    /// They are the same: so is all that lies before.
    Same,
    /// There was nothing to compare.
    Unknown,
    /// They differ: the joiner's data is of another history under the same name.
    Differs {
        /// The cluster's sum.
        ours: u64,
        /// The joiner's.
        yours: u64,
    },
}

impl Compared {
    /// Compares `yours`, if there is one, with `ours`.
    pub fn of(ours: u64, yours: Option<u64>) -> Compared {
        match yours {
            None => Compared::Unknown,
            Some(yours) if yours == ours => Compared::Same,
            Some(yours) => Compared::Differs { ours, yours },
        }
    }

    /// Whether the joiner must not go on from what it has.
    pub fn differs(&self) -> bool {
        matches!(self, Compared::Differs { .. })
    }
}

/// The newest sums, one for each seqno.
#[derive(Debug, Default)]
pub struct Sums {
    /// Seqno of the last one.
    newest: Seqno,
    sums: VecDeque<u64>,
}

impl Sums {
    /// The next sum, or, if `seqno` does not follow, the first one of a new row.
    pub fn push(&mut self, seqno: Seqno, sum: u64) {
        if seqno != self.newest + 1 {
            self.sums.clear();
        }
        if self.sums.len() == KEPT {
            self.sums.pop_front();
        }
        self.newest = seqno;
        self.sums.push_back(sum);
    }

    /// The sum at `seqno`, if it is at hand.
    pub fn at(&self, seqno: Seqno) -> Option<u64> {
        let back = usize::try_from(self.newest.checked_sub(seqno)?).ok()?;
        let place = self.sums.len().checked_sub(back + 1)?;
        self.sums.get(place).copied()
    }
}

/// Counts the sum at `seqno` again: runs what follows `state` through it, as
/// `read` brings it. `None`: it stands behind it, or the entries end before.
pub fn count(
    mut state: ClusterState,
    seqno: Seqno,
    mut read: impl FnMut() -> Result<Vec<Committed>, String>,
) -> Result<Option<u64>, String> {
    let mut at = state.position().seqno;
    if at == seqno {
        return Ok(Some(state.sum()));
    }
    while at < seqno {
        let entries = read()?;
        if entries.is_empty() {
            return Ok(None);
        }
        for entry in &entries {
            state.deliver(entry);
            for (taken, sum) in state.sums() {
                if taken == seqno {
                    return Ok(Some(sum));
                }
                at = taken;
            }
        }
    }
    Ok(None)
}

/// The sum that the log in `store` has at `position`. `None`: it does not
/// reach there, or is of another history. Large payloads go to `pieces`, if
/// they have more than so many bytes.
pub fn of_log(
    store: &Arc<dyn LogStore>,
    position: Position,
    pieces: Option<(Box<dyn PieceStore>, u64)>,
) -> Result<Option<u64>, String> {
    let stored = Stored::new(store.clone());
    let checkpoints = stored.checkpoints().map_err(|e| e.to_string())?;
    for index in checkpoints.into_iter().rev() {
        let checkpoint = match stored.checkpoint(index) {
            Ok(checkpoint) => checkpoint,
            // An older one does as well, with more to read.
            Err(OrderError::Damaged(_)) => continue,
            Err(e) => return Err(e.to_string()),
        };
        let Some(at) = ClusterState::peek_position(&checkpoint.node) else {
            return Ok(None);
        };
        if at.history != position.history || at.seqno > position.seqno {
            continue;
        }
        let state = ClusterState::decode(&checkpoint.sequencer, &checkpoint.node);
        let mut state = state.map_err(|e| e.to_string())?;
        if let Some((store, above)) = pieces {
            state.set_piece_store(store, above);
        }
        let mut next = index + 1;
        return count(state, position.seqno, || {
            let entries = stored.read(next, READ).map_err(|e| e.to_string())?;
            next = entries.last().map_or(next, |e| e.index + 1);
            Ok(entries)
        });
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
