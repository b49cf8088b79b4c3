//! Parts whose places lie ahead: an applier begins with one before its place comes, if another is left
//! for what comes before.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use dromon_gates::Seqno;

use super::Begun;
use crate::cluster::{ChunkPart, Chunked};
use crate::node::{Node, Phase, lock};

impl Node {
    /// A part of a large write set will take its place at `place`. On the delivery
    /// thread.
    pub(in crate::node) fn chunk_lies_ahead(
        self: &Arc<Self>,
        place: Seqno,
        chunked: Arc<Chunked>,
        part: ChunkPart,
        depends_on: Seqno,
    ) {
        let history = self.history();
        let n = match part {
            ChunkPart::Data(n) => n,
            ChunkPart::End | ChunkPart::Rollback => chunked.chunks(),
        };
        // Somebody must be left for what comes before it, and the one that is spared. Those that lie ahead
        // wait; who has his place goes on, if no stream holds what he needs.
        let spared = self.will_spare();
        let waiting = match spared {
            true => self.count_ahead(),
            false => self.count_beyond(self.gates.last_ordered()),
        };
        let others = usize::from(spared) + waiting;
        let threads = self.shared().receivers > 1 + others && !self.setup.witness;
        let released = self.gates.released();
        let begins = {
            let mut chunks = lock(&self.chunks);
            let Some(open) = chunks.open.get_mut(&chunked.id) else {
                return; // this node is told no more of it
            };
            open.comes(n, place);
            open.ahead = Some(place);
            let streams = open.streams.clone();
            chunks.way_of(chunked.id, n);
            // An applier may have it since before this node joined again.
            if chunks.begun(place).is_some() {
                drop(chunks);
                self.chunks_changed();
                return;
            }
            // What is not applied here is done at once when it has its place.
            let here = !chunks.lacking.contains(history, chunked.id);
            let begins = (threads && here).then_some(streams);
            if begins.is_some() {
                // What a copy brought was never applied.
                chunks.begun.retain(|b| b.place > released);
                chunks.begun.push(Begun {
                    place,
                    of: (chunked.id, part),
                    at: None,
                    ready: None,
                });
            }
            begins
        };
        // A thread that ended meanwhile may not have seen that this one is to be counted.
        let begins = begins.filter(|_| {
            let left = self.shared().receivers > 1 + others;
            if !left {
                lock(&self.chunks).begun.retain(|b| b.place != place);
            }
            left
        });
        if let Some(streams) = begins {
            self.counters.begun_ahead.fetch_add(1, Relaxed);
            self.queue_chunk(place, chunked, part, streams, depends_on);
        } else {
            self.is_ready_for(place);
        }
        self.chunks_changed();
    }

    /// The server gets what has, or will have, its place at `seqno`.
    pub(in crate::node) fn begun_ahead_starts(&self, seqno: Seqno) {
        {
            let mut chunks = lock(&self.chunks);
            let begun = chunks.begun.iter_mut().find(|b| b.place == seqno);
            let Some(begun) = begun else { return };
            begun.at = Some(Instant::now());
        }
        self.chunks_changed();
    }

    /// Nothing is left of what has, or will have, its place at `seqno` but to
    /// commit.
    pub(in crate::node) fn begun_ahead_is_ready(&self, seqno: Seqno) {
        {
            let mut chunks = lock(&self.chunks);
            let begun = chunks.begun.iter_mut().find(|b| b.place == seqno);
            let Some(begun) = begun.filter(|b| b.ready.is_none()) else {
                return;
            };
            let work = begun.at.map(|at| at.elapsed());
            begun.ready = Some(work.unwrap_or_default());
            let (_, part) = begun.of;
            if let (Some(work), ChunkPart::Data(_)) = (work, part) {
                chunks.work = (chunks.work * 3 + work) / 4;
            }
        }
        self.is_ready_for(seqno);
        self.chunks_changed();
    }

    fn is_ready_for(&self, place: Seqno) {
        // One that lies behind it may have been ready before.
        self.ready_ahead.fetch_max(place, Relaxed);
        self.report_progress();
    }

    /// What appliers have since before its place came, and have not finished.
    pub(in crate::node) fn count_ahead(&self) -> usize {
        self.count_beyond(self.gates.released())
    }

    /// The same with places above `seqno`.
    fn count_beyond(&self, seqno: Seqno) -> usize {
        let chunks = lock(&self.chunks);
        chunks.begun.iter().filter(|b| b.place > seqno).count()
    }

    /// Whether the part at `seqno` was begun with its place still ahead.
    pub(in crate::node) fn is_begun_ahead(&self, seqno: Seqno) -> bool {
        lock(&self.chunks).begun(seqno).is_some()
    }

    /// That is over.
    pub(super) fn begun_ahead_is_over(&self, seqno: Seqno) {
        lock(&self.chunks).begun.retain(|b| b.place != seqno);
    }

    /// `seqno` is taken by a part, or by something else: an applier that has begun
    /// something there before this node joined again must have begun the same. After a
    /// forced recovery of the others it may be another one.
    pub(in crate::node) fn check_kept_ahead(&self, seqno: Seqno, by: Option<(Seqno, ChunkPart)>) {
        if self.kept_ahead.load(Relaxed) != seqno {
            return;
        }
        let begun = lock(&self.chunks).begun(seqno).map(|b| b.of);
        if begun.is_some_and(|of| by != Some(of)) {
            self.inconsistent(&format!(
                "seqno {seqno} was to be a part of the large transaction that began at seqno {}, and is something else \
                 since the others were forced to go on",
                begun.map_or(-1, |(id, _)| id)
            ));
        }
    }

    /// Whether what an applier has for `seqno` is not what takes that place.
    pub(in crate::node) fn is_misplaced(&self, seqno: Seqno) -> bool {
        self.kept_ahead.load(Relaxed) == seqno && self.phase() == Phase::Inconsistent
    }
}
