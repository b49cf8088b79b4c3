//! What this node has left in its log of large transactions, read when it is applied.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use dromon_gates::Seqno;
use dromon_writeset::{Kept, Payload};

use super::leave::told_to_leave;
use super::{Node, Phase, lock};
use crate::cluster::Chunked;
use crate::in_log::{PieceLog, ReadLog};

/// About so many bytes are read from the log at once.
const READ: usize = 2 << 20;
/// How often it is looked whether there is a log again.
const AGAIN: Duration = Duration::from_millis(20);

impl Node {
    /// The log that this node has when something is read from it.
    pub(super) fn piece_log(self: &Arc<Self>) -> PieceLog {
        let node = Arc::downgrade(self);
        let read: ReadLog = Arc::new(move |from, to| {
            let order = node.upgrade().and_then(|node| node.order());
            let order = order.ok_or("the log is closed")?;
            order.read_log(from, to, READ).map_err(|e| e.to_string())
        });
        PieceLog {
            read,
            left: self.left_in_log.clone(),
        }
    }

    /// Chunk `n` of what was `left` in the log. None: it cannot be read, its place is
    /// passed. On an applier thread.
    pub(super) fn chunk_left(
        &self,
        seqno: Seqno,
        chunked: &Chunked,
        left: &Kept,
        n: usize,
    ) -> Option<Bytes> {
        self.read_left(seqno, || {
            let read = chunked.plan.read_chunk(left, n);
            read.or_else(|why| {
                self.chunk_delivered_again(chunked.id, n)
                    .unwrap_or(Err(why))
            })
        })
    }

    /// A node that joined again was told of it once more, by another log perhaps.
    fn chunk_delivered_again(&self, id: Seqno, n: usize) -> Option<Result<Bytes, String>> {
        let again = lock(&self.chunks).chunked(id)?;
        Some(match again.write_set.payload() {
            Payload::Here(payload) => {
                let none = || format!("there is no chunk {n}");
                match again.plan.is_sound(payload, n) {
                    true => again.plan.chunk(payload, n).ok_or_else(none),
                    false => Err(format!("chunk {n} is not what came")),
                }
            }
            Payload::Elsewhere(kept) => again.plan.read_chunk(kept, n),
        })
    }

    /// All of what was `left` in the log. None as above.
    pub(super) fn whole_left(&self, seqno: Seqno, left: &Kept) -> Option<Bytes> {
        self.read_left(seqno, || self.spooler.collect(left))
    }

    fn read_left(&self, seqno: Seqno, read: impl Fn() -> Result<Bytes, String>) -> Option<Bytes> {
        loop {
            // It may be back just behind a read that failed.
            let before = self.phase();
            let why = match read() {
                Ok(bytes) => return Some(bytes),
                Err(why) => why,
            };
            match self.phase() {
                // What lies ahead was begun, and the log is closed until the node is back.
                now if before == Phase::Rejoining || now == Phase::Rejoining => {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                _ => self.cannot_be_read(seqno, &why),
            }
            return None;
        }
    }

    /// What was ordered at `seqno` cannot be read, as `why` says. A node that leaves has it when it is back.
    pub(super) fn cannot_be_read(&self, seqno: Seqno, why: &str) {
        if !told_to_leave(self.phase()) {
            self.inconsistent(&format!("seqno {seqno} cannot be read again: {why}"));
        }
        self.give_up(seqno);
    }

    /// What has its place at `seqno` is not done here: others may pass, but the position may not. Nor may
    /// the database's own where that is asked at the next start: then nothing behind it is done, either.
    pub(super) fn give_up(&self, seqno: Seqno) {
        let phase = self.phase();
        let keeps = phase == Phase::Inconsistent && self.last_with_data.load(Relaxed);
        match told_to_leave(phase) || keeps {
            true => self.gates.end_before(seqno),
            false => self.gates.pass_commit(seqno),
        }
    }
}
