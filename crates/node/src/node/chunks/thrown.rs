//! What is thrown away here of a large transaction that is applied in chunks. All of it is applied again, whole, at its
//! end.
//!
//! ```text
//!   the server   it is in the way of a statement, by a lock that no key names
//!   this node    it is in the way of the end of a stream
//! ```
//!
//! Certification lets a stream and a large one of another node name the same row, if one of them changes it and the
//! other one refers to it. Where they meet the stream goes: it is shelved, or gives way at its own node. But if its end
//! was on its way when the first chunk took its place, it lies between the chunks. All of the stream, applied there,
//! needs the row again, which the large one keeps until its own end: that lies behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use dromon_writeset::{Seqno, Uuid, WriteSet};

use super::super::{Node, lock};
use crate::cluster::{Chunked, chunked_id_of, chunked_trx_id};
use crate::database::Applier;
use crate::held::StreamId;
use crate::trx::Stage;

/// Large ones that meet streams, by where they began.
#[derive(Debug, Default)]
pub(super) struct MetStreams(BTreeMap<Seqno, Met>);

#[derive(Debug)]
struct Met {
    /// The member that it comes from.
    source: Uuid,
    /// Where those streams began.
    streams: Vec<Seqno>,
    /// Where it is over, once that is known.
    end: Option<Seqno>,
}

impl MetStreams {
    /// The first part of `id` took its place.
    pub fn begins(&mut self, id: Seqno, source: Uuid, streams: &[Seqno]) {
        if !streams.is_empty() {
            let met = Met {
                source,
                streams: streams.to_vec(),
                end: None,
            };
            self.0.insert(id, met);
        }
    }

    /// `id` is over at `seqno`. Everything up to `released` is finished.
    pub fn ends(&mut self, id: Seqno, seqno: Seqno, released: Seqno) {
        if let Some(met) = self.0.get_mut(&id) {
            met.end = Some(seqno);
        }
        self.0.retain(|_, m| m.end.is_none_or(|end| end > released));
    }

    /// Those amid which `seqno` lies, and that meet the stream which began at `first`, with their members.
    fn amid(&self, seqno: Seqno, first: Seqno) -> Vec<(Seqno, Uuid)> {
        let begun = self.0.range(..seqno);
        let open = begun.filter(|(_, m)| m.end.is_none_or(|end| end > seqno));
        let met = open.filter(|(_, m)| m.streams.contains(&first));
        met.map(|(id, m)| (*id, m.source)).collect()
    }
}

impl Node {
    /// The server throws away what it applied of transaction `victim`. True if
    /// that is one that comes in chunks: it is applied whole in the end.
    pub(in crate::node) fn thrown_away(&self, victim: u64) -> bool {
        let Some(id) = chunked_id_of(victim) else {
            return false;
        };
        if self.is_to_lack(id) {
            self.note(&format!(
                "the server gives up what it has of the large transaction that began at seqno {id}; it is applied \
                 whole at its end"
            ));
            self.note_lacking();
        }
        true
    }

    /// From here on this database lacks what it has of `id`; not durably yet. False: it did before.
    fn is_to_lack(&self, id: Seqno) -> bool {
        let history = self.history();
        let mut chunks = lock(&self.chunks);
        let known = chunks.lacking.contains(history, id);
        if !known {
            let is_open = chunks.open.contains_key(&id);
            let (delivered, from) = (self.gates.last_ordered(), self.gates.told());
            (chunks.lacking).thrown_away(history, id, is_open, delivered, from);
        }
        !known
    }

    /// An applier is about to apply all of `stream` at `seqno`, where that ends: what is in its way is thrown away.
    /// Everything before is finished, and every chunk behind waits for it. False: the node leaves.
    pub(in crate::node) fn throw_before(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        seqno: Seqno,
        stream: StreamId,
    ) -> bool {
        let Some(first) = lock(&self.held).first_of(stream) else {
            return true;
        };
        let amid = lock(&self.chunks).met.amid(seqno, first);
        amid.into_iter()
            .all(|(id, source)| self.throw(applier, seqno, id, source))
    }

    fn throw(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        seqno: Seqno,
        id: Seqno,
        source: Uuid,
    ) -> bool {
        if !self.is_to_lack(id) {
            return self.settle_noted(applier, id, source);
        }
        self.note(&format!(
            "what is here of the large transaction that began at seqno {id} is rolled back in this database alone: it \
             is in the way of a streaming transaction that commits at seqno {seqno}. It is applied whole at its end"
        ));
        // Before the server lets go of the first row.
        self.note_lacking() && self.roll_back_chunks(applier, id, source)
    }

    /// A part of `chunked` comes, and what lies before is finished. False: the node leaves.
    pub(in crate::node) fn settle_chunks(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        chunked: &Chunked,
    ) -> bool {
        self.settle_noted(applier, chunked.id, chunked.source())
    }

    /// If an earlier process noted that the database lacks `id`: its server may have again what it had of it, as the note
    /// comes before the rollback. It lets go of that before it gets the whole, or what needs a row of it.
    fn settle_noted(self: &Arc<Self>, applier: &mut dyn Applier, id: Seqno, source: Uuid) -> bool {
        let history = self.history();
        let unsettled = {
            let mut chunks = lock(&self.chunks);
            chunks.unsettled.remove(&id) && chunks.lacking.contains(history, id)
        };
        !unsettled || self.roll_back_chunks(applier, id, source)
    }

    /// Has the server roll back what it has of `id`, which came from `source`.
    fn roll_back_chunks(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        id: Seqno,
        source: Uuid,
    ) -> bool {
        lock(&self.held).rolls_back(true);
        let applied = self.roll_back_shelved(applier, (source, chunked_trx_id(id)));
        lock(&self.held).rolls_back(false);
        self.held_changed.notify_all();
        applied.ok
    }

    /// The last end, not finished here, of these streams: a part that is ordered now and meets them lies behind it.
    pub(super) fn end_before(&self, streams: &[Seqno]) -> Seqno {
        match streams.is_empty() {
            true => -1,
            false => lock(&self.held).last_end_of(streams),
        }
    }

    /// The first chunk of `write_set` takes its place at `seqno`. Whether it meets a stream of a client here whose end
    /// may be on its way: that lies behind, and would have to run again between the chunks. Where an end was not sent
    /// yet it is not sent any more, as the chunk has that stream give way. On the delivery thread.
    pub(super) fn ends_amid(&self, seqno: Seqno, write_set: &WriteSet) -> bool {
        if seqno <= self.gates.released() || !lock(&self.held).own_names_rows() {
            return false;
        }
        let rows = write_set.keys().rows();
        let met = lock(&self.held).own_met_by(&rows);
        // Each of them is told.
        let sent = met.into_iter().filter(|trx| !self.refuse_end(*trx));
        sent.count() > 0
    }

    /// The client's stream `trx_id` does not end by a commit any more: its client is told of a deadlock. False: its end
    /// may have been sent.
    fn refuse_end(&self, trx_id: u64) -> bool {
        let trx = self.trxs.get(trx_id);
        // The order waits for this: who is just being sent counts as one who has been.
        let Some(mut body) = trx.as_ref().and_then(|trx| trx.try_lock()) else {
            return false;
        };
        let unsent = matches!(body.stage, Stage::Executing | Stage::Waiting);
        if !unsent && body.ends() {
            return false;
        }
        body.refused = true;
        let waits = body.stage == Stage::Waiting;
        drop(body);
        if let Some(trx) = trx.filter(|_| waits) {
            trx.waiter.interrupt();
        }
        self.note_now_and_then(
            "a streaming transaction of a client of this node has a row that a large transaction needs, which is applied \
             here in chunks: it does not commit any more (error 1213), and its client may try again",
        );
        true
    }

    /// Whether the server has thrown away what the chunk at `seqno`, which failed here, belongs to: then it failed for
    /// that, and there is nothing that the members could be asked.
    pub(in crate::node) fn was_thrown_away(&self, seqno: Seqno) -> bool {
        let history = self.history();
        let chunks = lock(&self.chunks);
        let of = chunks.at_work.iter().find(|(place, _)| *place == seqno);
        of.is_some_and(|(_, id)| chunks.lacking.contains(history, *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_has_begun_before_and_is_over_behind() {
        let mut met = MetStreams::default();
        met.begins(10, Uuid([1; 16]), &[4, 7]);
        met.begins(20, Uuid([2; 16]), &[7]);
        met.begins(30, Uuid([3; 16]), &[]);
        let amid = |met: &MetStreams, seqno, first| -> Vec<Seqno> {
            let found = met.amid(seqno, first);
            found.iter().map(|(id, _)| *id).collect()
        };
        assert_eq!(amid(&met, 9, 7), []);
        assert_eq!(amid(&met, 15, 7), [10]);
        assert_eq!(amid(&met, 25, 7), [10, 20]);
        assert_eq!(amid(&met, 40, 4), [10]);
        assert_eq!(amid(&met, 40, 5), []);
        met.ends(10, 35, 5);
        met.ends(30, 36, 5);
        assert_eq!(amid(&met, 34, 7), [10, 20]);
        assert_eq!(amid(&met, 36, 7), [20]);
        met.ends(20, 50, 35);
        assert_eq!(met.0.len(), 1, "the other one is finished here");
    }
}
