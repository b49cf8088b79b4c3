//! Comparing a joiner's history with the cluster's: see [`crate::chain`].

use std::collections::BTreeMap;
use std::sync::Arc;

use dromon_order::{Order, OrderError};
use dromon_writeset::Seqno;

use super::open::COPY_ASKED;
use super::{Node, Phase, lock};
use crate::chain::{Compared, count};
use crate::cluster::ClusterState;
use crate::forks::LogEnd;
use crate::in_log::PieceLog;
use crate::messages::{Need, Position};
use crate::options::Settings;
use crate::spool::{PieceFiles, SPOOL_ABOVE};

/// Bytes of log read at a time.
const READ: usize = 4 << 20;

/// What this node knows of sums beside the newest ones.
#[derive(Debug, Default)]
pub(super) struct Recounts {
    /// That of the data this node comes with, once its own log was asked. The
    /// log may be gone by the next attempt to join.
    own: Option<(Position, Option<u64>)>,
    /// How far that log got.
    end: Option<LogEnd>,
    /// What came of comparing it was said already.
    told: bool,
    /// The log is read again for a joiner.
    running: bool,
    /// What came of it, by seqno: joiners ask more than once.
    done: BTreeMap<Seqno, Result<Option<u64>, String>>,
}

/// How many results are kept for joiners to come for.
const DONE: usize = 16;

impl Node {
    /// The sum at `position`, where this node's data stands, as its own log
    /// has it.
    pub(super) fn own_sum(&self, position: Position, settings: &Settings) -> Option<u64> {
        if !position.is_defined() || self.is_witness() {
            return None;
        }
        if let Some((at, sum)) = lock(&self.recounts).own
            && at == position
        {
            return sum;
        }
        let sum = match self.log_sum(position, settings) {
            Ok(sum) => sum,
            Err(why) => {
                self.note(&format!(
                    "this node's log does not tell the checksum of the history at {position}: {why}"
                ));
                None
            }
        };
        lock(&self.recounts).own = Some((position, sum));
        sum
    }

    /// The sum at `position` in the log here, which is not open. `None`: it does not reach there.
    pub(super) fn log_sum(
        &self,
        position: Position,
        settings: &Settings,
    ) -> Result<Option<u64>, String> {
        let pieces = PieceFiles::with_log(self.spooler.clone(), PieceLog::unread());
        let pieces = (Box::new(pieces) as Box<_>, SPOOL_ABOVE as u64);
        self.engines.log_sum(&settings.log_dir, position, pieces)
    }

    /// A new connection of the server: its data may be other data.
    pub(super) fn forget_sum(&self) {
        let mut recounts = lock(&self.recounts);
        (recounts.own, recounts.told) = (None, false);
    }

    /// Another log: what was counted in the one before says nothing of it.
    pub(super) fn forget_recounts(&self) {
        lock(&self.recounts).done.clear();
    }

    /// Remembers the sum at `position` before the log is given up.
    pub(super) fn keep_sum(&self, position: Position) {
        let sum = lock(&self.delivered).sums.at(position.seqno);
        let mut recounts = lock(&self.recounts);
        (recounts.own, recounts.told) = (sum.map(|sum| (position, Some(sum))), false);
        recounts.end = None;
    }

    /// How far the own log got. Of a node that joins again: before its first attempt, as its data is of that log, and
    /// to open a log is to read all of it.
    pub(super) fn log_end_before(&self, settings: &Settings) -> Option<LogEnd> {
        let again = self.phase() == Phase::Rejoining;
        let kept = lock(&self.recounts).end.filter(|_| again);
        kept.or_else(|| {
            let end = self.own_log_end(settings);
            lock(&self.recounts).end = end.filter(|_| again);
            end
        })
    }

    /// Says once what came of comparing this node's history at `position`, of
    /// which it says `sum`, with that of the cluster that `addr` leads.
    pub(super) fn tell_compared(
        &self,
        addr: &str,
        position: Position,
        sum: Option<u64>,
        need: Need,
        compared: Compared,
    ) {
        let unproved = need == Need::Log && sum.is_none() && !self.is_witness();
        if !compared.differs() && !unproved
            || std::mem::replace(&mut lock(&self.recounts).told, true)
        {
            return;
        }
        match compared {
            Compared::Differs { ours, yours } => self.warn(&unlike(addr, position, ours, yours)),
            // A first start with a restored backup, or all files that could tell were removed.
            _ if self.never_saved() => self.warn(&format!(
                "{}. There is no grastate.dat either. If both were removed so that this node takes a full copy, that does \
                 not come of it: stop this node, {COPY_ASKED}, and start it again",
                unproved_text(position)
            )),
            _ => self.note(&unproved_text(position)),
        }
    }

    /// The sum at `seqno` in this node's log, at or behind its checkpoint at
    /// `index`. `None`: what lies between cannot be read. The error is for who asked: it is
    /// to ask again.
    pub(super) fn sum_at(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        index: u64,
        seqno: Seqno,
    ) -> Result<Option<u64>, String> {
        if let Some(sum) = lock(&self.delivered).sums.at(seqno) {
            return Ok(Some(sum));
        }
        let mut recounts = lock(&self.recounts);
        match recounts.done.get(&seqno) {
            Some(Ok(sum)) => return Ok(*sum),
            Some(Err(_)) => {
                let failed = recounts.done.remove(&seqno);
                return failed.unwrap_or_else(|| Err("ask again".into()));
            }
            None => {}
        }
        if !recounts.running {
            let (order, spooler) = (order.clone(), self.spooler.clone());
            let node = Arc::downgrade(self);
            let to = lock(&self.delivered).index;
            let run = move || {
                let pieces = PieceFiles::with_log(spooler, PieceLog::unread());
                let result = recount(&order, (index, to), seqno, pieces);
                let Some(node) = node.upgrade() else { return };
                let result = result.or_else(|e| node.unless_damaged(index, e));
                let same = node.order().is_some_and(|o| Arc::ptr_eq(&o, &order));
                let mut recounts = lock(&node.recounts);
                recounts.running = false;
                if recounts.done.len() == DONE {
                    recounts.done.clear();
                }
                if same {
                    recounts.done.insert(seqno, result);
                }
            };
            let thread = std::thread::Builder::new().name("dromon-chain".into());
            thread.spawn(run).map_err(|e| e.to_string())?;
            recounts.running = true;
        }
        Err("compares your history with the cluster's; ask again".into())
    }

    /// Says that the history behind the checkpoint at `index` cannot be compared, if that is
    /// because of damage: asking again would not help.
    fn unless_damaged(&self, index: u64, e: Uncounted) -> Result<Option<u64>, String> {
        let why = match e {
            Uncounted::Damaged(why) => why,
            Uncounted::Other(why) => return Err(why),
        };
        self.warn(&format!(
            "this node's log behind its checkpoint at {index} cannot be read: {why} A node that comes back and would need \
             it takes a full copy. Nothing acknowledged is lost; check the disk, and start this node again when it can be \
             spared"
        ));
        Ok(None)
    }
}

/// Why a sum could not be counted again.
enum Uncounted {
    /// What the log has stored there is damaged.
    Damaged(String),
    Other(String),
}

impl From<OrderError> for Uncounted {
    fn from(e: OrderError) -> Self {
        match e {
            OrderError::Damaged(why) => Uncounted::Damaged(why),
            e => Uncounted::Other(e.to_string()),
        }
    }
}

fn recount(
    order: &Arc<dyn Order>,
    (index, to): (u64, u64),
    seqno: Seqno,
    pieces: PieceFiles,
) -> Result<Option<u64>, Uncounted> {
    let other = |why: String| Uncounted::Other(why);
    let checkpoint = order.load_checkpoint(Some(index))?;
    let checkpoint =
        checkpoint.ok_or_else(|| other("the checkpoint below your position is gone".into()))?;
    let state = ClusterState::decode(&checkpoint.sequencer, &checkpoint.node);
    let mut state = state.map_err(|e| other(e.to_string()))?;
    state.set_piece_store(Box::new(pieces), SPOOL_ABOVE as u64);
    let mut next = checkpoint.log_id.index + 1;
    let mut damaged = false;
    let sum = count(state, seqno, || {
        if next > to {
            return Ok(Vec::new());
        }
        let entries = order.read_log(next, to, READ).map_err(|e| {
            damaged = matches!(e, OrderError::Damaged(_));
            e.to_string()
        })?;
        next = entries.last().map_or(next, |e| e.index + 1);
        Ok(entries)
    });
    match sum {
        Ok(Some(sum)) => Ok(Some(sum)),
        Ok(None) => Err(other(format!("the log has no seqno {seqno} yet"))),
        Err(why) if damaged => Err(Uncounted::Damaged(why)),
        Err(why) => Err(other(why)),
    }
}

/// For who has data of another history under the cluster's name.
fn unlike(addr: &str, position: Position, ours: u64, yours: u64) -> String {
    format!(
        "this node's data stands at {position}, but what it holds is not what the cluster has up to there: the running \
         checksum of the history at seqno {} is {yours:016x} by this node's log and {ours:016x} by that of {addr}. Both \
         began as one history and went on apart, as a copy of a node does that ran by itself. This node takes a full \
         copy; what only it had is given up",
        position.seqno
    )
}

/// For who has no log that goes with its data.
fn unproved_text(position: Position) -> String {
    format!(
        "this node's data stands at {position}, and it has no log that tells the checksum of its history there (a \
         backup, or a log that was removed): it cannot be compared with the cluster's. It is taken to be the same as \
         history and seqno are; if that is not sure, empty the data directory, and this node takes a full copy"
    )
}
