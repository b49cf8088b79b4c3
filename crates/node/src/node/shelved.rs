//! Streams of other nodes that are shelved in this database, as a write set waits for
//! a lock of them that no key names ([`crate::held`], which decides).
//!
//! ```text
//!   delivery   knows what comes of each        tick      who stands still?
//!   applier    the one that is spared: note it, have the server roll it back
//!   appliers   leave its fragments out, apply all of it at its end
//! ```

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use dromon_gates::{QueueItem, Seqno};
use dromon_order::sequencer::{PieceStore, StreamKey};
use dromon_order::{CommittedBody, Order, Part};
use dromon_writeset::{Flags, Head, KeyHash, Uuid, WriteSet};

use super::{Item, Node, Phase, RemoteWriteSet, lock};
use crate::cluster::{ClusterState, ClusterView};
use crate::database::{Applied, Applier, Meta};
use crate::held::{HeldRows, Share, StreamId};
use crate::lacking::StreamNote;
use crate::messages::{Position, kind};
use crate::spool::PieceFiles;
use crate::trx::Trx;
use crate::uniques;

/// To the server this is a write set that failed: it moves the position, and no more.
const NOTHING: Flags =
    Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits() | Flags::ROLLBACK.bits());
/// The rollback of a streaming transaction.
const ROLLBACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());
/// A transaction in one piece.
const WHOLE: Flags = Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits());
/// How often who waits for a rollback looks around.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of log read at a time.
const READ: usize = 4 << 20;

impl Node {
    /// A write set took its place, and none of this node's clients waits for it: it may
    /// be of a stream. On the delivery thread.
    pub(super) fn held_delivered(&self, at: (Seqno, u64), write_set: &WriteSet, passed: bool) {
        let header = write_set.header();
        let flags = header.flags;
        let fragment = passed && flags.is_fragment();
        if self.setup.witness || !(fragment || flags.is_rollback()) {
            return;
        }
        let id = (header.source, header.trx_id);
        let mut held = lock(&self.held);
        self.holds.store(true, Relaxed);
        if fragment {
            let tables = write_set.keys().named_tables();
            if let Some(first) = held.fragment(id, at, flags.starts(), &tables) {
                self.closed.close_strictly(first, tables);
            }
        }
        let commits = fragment && flags.ends();
        if (commits || flags.is_rollback())
            && let Some(first) = held.over(id, at.0, commits)
        {
            self.shelved_is_over(first, at.0, commits);
        }
    }

    /// The view at `seqno` took its place.
    pub(super) fn held_left(&self, seqno: Seqno, view: &ClusterView) {
        let is_member = |uuid: &Uuid| view.members.iter().any(|m| m.uuid == *uuid);
        let mut held = lock(&self.held);
        for first in held.keep_members(seqno, is_member) {
            self.shelved_is_over(first, seqno, false);
        }
    }

    /// What was shelved, and began at `first`, is over at `seqno`. What commits is not
    /// there before that is finished.
    fn shelved_is_over(&self, first: Seqno, seqno: Seqno, commits: bool) {
        lock(&self.chunks).lacking.over(first, seqno);
        if !commits {
            self.closed.open(first);
        }
    }

    /// Has one applier spared, if there are streams that hold rows. Before an applier
    /// takes its next event.
    pub(super) fn spare_applier(&self) {
        if !self.holds.load(Relaxed) {
            return;
        }
        let mut held = lock(&self.held);
        let (spare, through) = held.finished(self.gates.released());
        for first in through {
            self.closed.open(first);
        }
        self.holds.store(!held.is_empty(), Relaxed);
        if self.spared.swap(spare, Relaxed) != spare {
            self.queue.spare_one(spare);
        }
    }

    /// What is kept of a write set while streams are held: the tables that it names,
    /// and whether it looks at neighbours of its rows.
    pub(super) fn locks_of(&self, write_set: &WriteSet) -> (Vec<KeyHash>, bool) {
        match self.holds.load(Relaxed) {
            false => (Vec::new(), false),
            true => (write_set.keys().named_tables(), uniques::touched(write_set)),
        }
    }

    /// What a write set at `seqno` has to wait for that depends on `depends_on`.
    pub(super) fn behind_streams(&self, seqno: Seqno, depends_on: Seqno) -> Seqno {
        match self.holds.load(Relaxed) {
            false => depends_on,
            true => lock(&self.held).depends_on(seqno, depends_on),
        }
    }

    /// Something takes its locks at `seqno`, and may wait for them. It names `tables`;
    /// none: not known.
    pub(super) fn takes_locks(&self, seqno: Seqno, tables: Vec<KeyHash>, bytes: u64) {
        if self.holds.load(Relaxed) {
            lock(&self.held).works(seqno, tables, bytes);
        }
    }

    /// It needs no lock any more.
    pub(super) fn has_locks(&self, seqno: Seqno) {
        if self.holds.load(Relaxed) {
            lock(&self.held).worked(seqno);
        }
    }

    /// Has streams shelved, if this node stands still because of them.
    pub(super) fn look_for_standstill(&self) {
        if !self.holds.load(Relaxed) {
            return;
        }
        let now = self.opened_at.elapsed();
        let stuck = {
            let mut held = lock(&self.held);
            held.stuck(self.gates.released(), now)
        };
        let Some((waits, streams)) = stuck else {
            return;
        };
        if self.shared().receivers < 2 {
            return; // nobody is left to do it
        }
        self.queue.push_urgent(QueueItem {
            seqno: waits,
            ordered: false,
            depends_on: -1,
            exclusive: false,
            bytes: 0,
            value: Item::Shelve { waits, streams },
        });
    }

    /// The write set at `waits` has waited for too long, perhaps for these. On an
    /// applier thread. True: the database wants it back.
    pub(super) fn shelve_all(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waits: Seqno,
        streams: &[StreamId],
    ) -> bool {
        let mut exit = false;
        for id in streams {
            exit |= self.shelve(applier, waits, *id);
        }
        exit
    }

    /// The only applier is about to apply `ws`: if that may wait for a stream, nobody
    /// could help it.
    pub(super) fn shelve_before(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        seqno: Seqno,
        ws: &RemoteWriteSet,
    ) {
        if !ws.neighbours || self.shared().receivers > 1 {
            return;
        }
        let met = lock(&self.held).met_by(&ws.tables, self.gates.released());
        for id in met.into_iter().filter(|id| *id != (ws.source, ws.trx_id)) {
            self.shelve(applier, seqno, id);
        }
    }

    /// Shelves a stream, as the write set at `waits` needs a lock of it. True: the
    /// database wants the thread back.
    fn shelve(self: &Arc<Self>, applier: &mut dyn Applier, waits: Seqno, id: StreamId) -> bool {
        let leaving = {
            let mut held = lock(&self.held);
            // What comes behind it, and may end streams too, looks here when it is
            // released: see `wait_none_goes`.
            let released = self.gates.released();
            let waiting = (released < waits).then(|| held.goes(id, released));
            let Some(leaving) = waiting.flatten() else {
                return false;
            };
            leaving
        };
        let name = self.names(&[id.0]).join("");
        let whose = format!("streaming transaction {} of {name}", id.1);
        let first_log = self.order().map_or(u64::MAX, |o| o.status().first_log);
        if first_log > leaving.index && !leaving.rolled_back {
            lock(&self.held).stays(id);
            self.held_changed.notify_all();
            self.warn(&format!(
                "the write set at seqno {waits} waits for a lock of {whose}, which cannot be shelved: it began at log \
                 index {}, and this node's log begins at {first_log}. This node stands still, and the others with it, \
                 until that transaction is rolled back: end its client on {name}",
                leaving.index
            ));
            return false;
        }
        let note = StreamNote {
            source: id.0,
            trx: id.1,
            index: leaving.index,
        };
        let history = *lock(&self.history);
        lock(&self.chunks)
            .lacking
            .add_stream(history, leaving.first, note);
        // Its rows are free from here on.
        self.closed.close_strictly(leaving.first, leaving.tables);
        let noted = self.note_lacking();
        let rolled_back = noted.then(|| self.roll_back_shelved(applier, id));
        let Some(Applied { ok: true, exit }) = rolled_back else {
            // The node leaves: nothing of it goes on.
            self.held_changed.notify_all();
            return false;
        };
        let (over, tables) = {
            let mut held = lock(&self.held);
            (held.gone(id), held.tables_of(id))
        };
        self.closed.close_strictly(leaving.first, tables);
        if let Some((seqno, commits)) = over {
            self.shelved_is_over(leaving.first, seqno, commits);
        }
        self.held_changed.notify_all();
        self.counters.streams_shelved.fetch_add(1, Relaxed);
        self.note(&format!(
            "{whose}, which has come in fragments since seqno {}: shelved here, as the write set at seqno {waits} needs a \
             lock of it that no key names. It is rolled back in this database alone and applied whole at its end; until \
             then writers of this node wait for its tables",
            leaving.first
        ));
        exit
    }

    /// Waits until no stream is being rolled back: a view or a statement, all before which
    /// is finished, may end the same one.
    pub(super) fn wait_none_goes(&self) {
        let mut held = lock(&self.held);
        while held.some_go() && !matches!(self.phase(), Phase::Inconsistent | Phase::Closed) {
            let waited = self.held_changed.wait_timeout(held, LOOK);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has the server roll back what it has of a stream, in no place of the order.
    fn roll_back_shelved(self: &Arc<Self>, applier: &mut dyn Applier, id: StreamId) -> Applied {
        let meta = Meta {
            position: Position {
                history: *lock(&self.history),
                seqno: -1,
            },
            source: id.0,
            trx_id: id.1,
            conn_id: u64::MAX,
            depends_on: -1,
        };
        let trx = Trx::remote(id.1, -1);
        let applied = applier.apply(&trx, ROLLBACK, &[], &meta);
        if !applied.ok {
            self.inconsistent(&format!(
                "the server refused to roll back streaming transaction {} of member {}, which others wait for",
                id.1, id.0
            ));
        }
        applied
    }

    /// The database has its position, and nothing is applied yet: what an earlier process
    /// shelved its server may have recovered. False: the server refused.
    pub(super) fn settle_shelved(self: &Arc<Self>, applier: &mut dyn Applier) -> bool {
        let shelved = lock(&self.held).shelved();
        shelved
            .into_iter()
            .all(|id| self.roll_back_shelved(applier, id).ok)
    }

    /// The database is a full copy: its donor had shelved nothing.
    pub(super) fn forget_shelved(&self) {
        lock(&self.held).copied();
        self.closed.clear();
    }

    /// What an applier does with `ws`, which may be a fragment; everything before it is
    /// finished. Waits while its stream is being rolled back. `None`: the node leaves.
    pub(super) fn share_of(&self, ws: &RemoteWriteSet) -> Option<Share> {
        // A rollback, or a fragment that failed, ends it on the server.
        let rolls_back = ws.flags.is_rollback() && !ws.flags.contains(WHOLE);
        if !(ws.flags.is_fragment() || rolls_back) || !self.holds.load(Relaxed) {
            return Some(Share::Apply);
        }
        let id = (ws.source, ws.trx_id);
        let mut held = lock(&self.held);
        loop {
            let share = match rolls_back {
                true => held.ends_early(id),
                false => held.begins(id, ws.index, ws.flags.ends()),
            };
            match share {
                Share::Wait => {}
                share => return Some(share),
            }
            if matches!(self.phase(), Phase::Inconsistent | Phase::Closed) {
                return None;
            }
            let waited = self.held_changed.wait_timeout(held, LOOK);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes of `ws` what the server is given of a shelved stream.
    pub(super) fn share_out(
        &self,
        seqno: Seqno,
        ws: &mut RemoteWriteSet,
        share: &Share,
    ) -> Result<(), String> {
        match share {
            Share::Apply | Share::Wait => {}
            Share::Nothing => (ws.flags, ws.payload) = (NOTHING, Some(Bytes::new())),
            Share::Whole(parts) => {
                let end = match ws.payload.take() {
                    Some(payload) => payload,
                    None => self.payload_from_log(ws.index, ws.source)?,
                };
                let mut files = PieceFiles::new(self.spooler.clone());
                let key = StreamKey {
                    origin: ws.source,
                    stream: ws.trx_id,
                };
                let mut append =
                    |bytes: &Bytes| files.append(key, bytes).map_err(|e| e.to_string());
                append(&Bytes::new())?;
                for index in parts {
                    append(&self.payload_from_log(*index, ws.source)?)?;
                }
                append(&end)?;
                let payload = files.read(key).map_err(|e| e.to_string())?;
                self.note(&format!(
                    "{}, shelved here: its {:.1} MB are applied whole at its end, seqno {seqno}",
                    self.whose_transaction(ws.source, ws.trx_id, ws.conn_id),
                    payload.len() as f64 / 1e6
                ));
                (ws.flags, ws.payload) = (WHOLE, Some(payload));
                ws.tables = lock(&self.held).tables_of((ws.source, ws.trx_id));
                ws.neighbours = true;
            }
        }
        Ok(())
    }

    /// An applier is through with that.
    pub(super) fn share_ended(&self, id: StreamId, share: &Share) {
        if *share == Share::Apply && self.holds.load(Relaxed) {
            lock(&self.held).ended(id);
        }
    }

    /// From where on this node's log is needed for streams: for those that are shelved,
    /// and for all that may be.
    pub(super) fn streams_need_log(&self) -> (Option<u64>, Option<u64>) {
        lock(&self.held).needs_log()
    }

    /// Delivery begins behind log index `begin`, with `state`: what an earlier process
    /// shelved is shelved still. The error is a sentence for the operator.
    pub(super) fn restore_shelved(
        &self,
        order: &Arc<dyn Order>,
        state: &ClusterState,
        begin: u64,
    ) -> Result<(), String> {
        let at = state.position();
        let notes = lock(&self.chunks).lacking.streams(at.history);
        for (first, note) in notes {
            let id = (note.source, note.trx);
            let found = match has_stayed(state, first, &note) {
                true => self.find_fragments(order, id, note.index, begin)?,
                false => None,
            };
            match found {
                Some((parts, tables)) => {
                    let mut held = lock(&self.held);
                    self.holds.store(true, Relaxed);
                    held.noted(id, first, parts, &tables);
                    self.closed.close_strictly(first, tables);
                }
                None => lock(&self.chunks).lacking.over(first, at.seqno),
            }
        }
        Ok(())
    }

    /// Whether this database needs a full copy, if its log is to begin behind index `begin`
    /// with `state`: what is shelved has fragments before that.
    pub(super) fn lacks_fragments(&self, state: &ClusterState, begin: u64) -> bool {
        let at = state.position();
        let notes = lock(&self.chunks).lacking.streams(at.history);
        let lacks = |(first, note): &(Seqno, StreamNote)| {
            note.index <= begin && has_stayed(state, *first, note)
        };
        notes.iter().any(lacks)
    }

    /// Where the fragments of a stream lie in the log from index `from` to `to`, and the tables
    /// that they name. `None`: it ends there.
    #[allow(clippy::type_complexity)]
    fn find_fragments(
        &self,
        order: &Arc<dyn Order>,
        id: StreamId,
        from: u64,
        to: u64,
    ) -> Result<Option<(Vec<u64>, Vec<KeyHash>)>, String> {
        let first_log = order.status().first_log;
        if from <= to && first_log > from {
            return Err(format!(
                "streaming transaction {} of member {} was shelved here, and this node's log does not reach back to its \
                 first fragment any more (index {from}; it begins at {first_log}): this database needs a full copy",
                id.1, id.0
            ));
        }
        let (mut parts, mut tables) = (Vec::new(), Vec::new());
        let (mut next, mut newest) = (from, 0);
        while next <= to {
            let entries = order.read_log(next, to, READ).map_err(|e| e.to_string())?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                next = entry.index + 1;
                let CommittedBody::Message(m) = entry.body else {
                    continue;
                };
                if m.kind != kind::WRITE_SET {
                    continue;
                }
                let body = match m.part {
                    Part::Whole => m.body,
                    Part::Piece { stream, i, n } if i + 1 == n => {
                        self.gather_pieces(order, entry.index, m.origin, stream, n)?
                    }
                    Part::Piece { .. } => continue,
                };
                let head = Head::decode(&body).map_err(|e| e.to_string())?;
                let header = head.header();
                // What was sent twice counts once.
                if (header.source, header.trx_id) != id || m.oseq <= newest {
                    continue;
                }
                newest = m.oseq;
                if header.flags.is_rollback() || header.flags.ends() {
                    return Ok(None);
                }
                if header.flags.is_fragment() {
                    parts.push(entry.index);
                    tables.extend(head.keys().named_tables());
                }
            }
        }
        Ok(Some((parts, tables)))
    }

    /// A connection to the cluster begins.
    pub(super) fn forget_held(&self) {
        let mut held = lock(&self.held);
        *held = HeldRows::default();
        // Appliers look again, and spare nobody.
        self.holds.store(true, Relaxed);
    }
}

/// Whether the node of a stream that began at `first` is still there, as far as `state`
/// knows: who left took it along, also if it came back meanwhile.
fn has_stayed(state: &ClusterState, first: Seqno, note: &StreamNote) -> bool {
    let mut members = state.members();
    first > state.position().seqno || members.any(|m| m.uuid == note.source && m.joined_at <= first)
}
