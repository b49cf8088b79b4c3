//! The checkpoints that a start could use, and those of them that cannot be read.
//!
//! Opening a log does not read its checkpoints, and a node never needs an older one but to go
//! back: to a database that lags, or for a joiner. So a damaged one is passed over. Only the newest
//! must be whole when a node starts.

use std::collections::VecDeque;
use std::sync::Arc;

use dromon_order::{Checkpoint, Order, OrderError};
use dromon_writeset::Uuid;

use super::{ConnectError, Node, lock};
use crate::cluster::ClusterState;
use crate::retention::Mark;
use crate::thinning;

impl Node {
    /// The checkpoints in a log that was just opened, as far as they are of `history` and can be
    /// read.
    pub(super) fn marks_found(
        &self,
        order: &Arc<dyn Order>,
        history: Uuid,
    ) -> Result<VecDeque<Mark>, ConnectError> {
        let engine = |e: OrderError| ConnectError::Engine(e.to_string());
        let indexes = order.checkpoints().map_err(engine)?;
        let newest = indexes.last().copied();
        let mut marks = VecDeque::new();
        for index in indexes {
            let checkpoint = match order.load_checkpoint(Some(index)) {
                Ok(checkpoint) => checkpoint,
                Err(OrderError::Damaged(why)) if newest != Some(index) => {
                    self.tell_unreadable(index, &why);
                    continue;
                }
                Err(e) => return Err(engine(e)),
            };
            let at = checkpoint
                .as_ref()
                .and_then(|c| ClusterState::peek_position(&c.node));
            if let (Some(c), Some(at)) = (checkpoint, at)
                && at.history == history
            {
                marks.push_back(Mark {
                    index: c.log_id.index,
                    seqno: at.seqno,
                    bytes_before: order.log_bytes_before(c.log_id.index + 1),
                });
            }
        }
        Ok(marks)
    }

    /// The newest checkpoint that `fits` and can be read.
    pub(super) fn newest_mark(
        &self,
        order: &Arc<dyn Order>,
        fits: impl Fn(&Mark) -> bool,
    ) -> Result<Option<Checkpoint>, String> {
        loop {
            // Not under the lock: this waits for the disk.
            let found = {
                let marks = lock(&self.checkpoints);
                marks.iter().rev().find(|m| fits(m)).map(|m| m.index)
            };
            let Some(index) = found else { return Ok(None) };
            match order.load_checkpoint(Some(index)) {
                Err(OrderError::Damaged(why)) => self.forget_mark(index, &why),
                Ok(Some(checkpoint)) => return Ok(Some(checkpoint)),
                Ok(None) => return Err("the log is being shortened; ask again".into()),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Nobody begins at the checkpoint at `index` any more.
    pub(super) fn forget_mark(&self, index: u64, why: &str) {
        lock(&self.checkpoints).retain(|m| m.index != index);
        self.tell_unreadable(index, why);
    }

    /// Drops checkpoints that lie closer together than anybody needs them. The log behind them stays.
    pub(super) fn thin_marks(&self, order: &Arc<dyn Order>) {
        // Not under the lock: this waits for the disk.
        let superfluous = {
            let mut marks = lock(&self.checkpoints);
            let found = thinning::superfluous(&marks);
            marks.retain(|m| !found.contains(&m.index));
            found
        };
        for index in superfluous {
            if let Err(e) = order.drop_checkpoint(index) {
                // Then it goes with the log behind it.
                return self.warn(&format!(
                    "the checkpoint at log index {index} could not be removed: {e}"
                ));
            }
        }
    }

    fn tell_unreadable(&self, index: u64, why: &str) {
        self.warn(&format!(
            "the checkpoint at log index {index} cannot be read, so this node does without it: {why} Nothing acknowledged \
             is lost; the file goes when the log is shortened, and nothing is to be done about it. A bit that changed on \
             a disk is a reason to check that disk"
        ));
    }
}
