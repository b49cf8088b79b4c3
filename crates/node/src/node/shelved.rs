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
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_gates::{QueueItem, Seqno, WaitError, Waiter};
use dromon_order::sequencer::{PieceStore, StreamKey};
use dromon_writeset::{Flags, KeyHash, Uuid, WriteSet};

use super::apply::Ended;
use super::{Item, Node, Phase, RemoteWriteSet, lock};
use crate::cluster::{ClusterState, ClusterView};
use crate::database::{Applied, Applier, Meta, Outcome};
use crate::held::{HeldRows, Share, StreamId};
use crate::lacking::StreamNote;
use crate::messages::Position;
use crate::spool::{PieceFiles, SPOOL_ABOVE};
use crate::trx::Trx;

/// To the server this is a write set that failed: it moves the position, and no more.
const NOTHING: Flags =
    Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits() | Flags::ROLLBACK.bits());
/// The rollback of a streaming transaction.
const ROLLBACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());
/// A transaction in one piece.
const WHOLE: Flags = Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits());
/// How long a client that was told "unknown" may take to give back its rows.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// How often who waits for a rollback looks around.
const LOOK: Duration = Duration::from_millis(100);

/// What a write set may have to wait for in this database, beside what it depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    /// The tables that it names; none: not known.
    pub(super) tables: Vec<KeyHash>,
    /// Rows that no key of it names may be in its way: neighbours of its rows, or any of its tables.
    pub(super) neighbours: bool,
    /// Streams whose rows its keys name, by the places where they began: they are in its way.
    pub(super) streams: Vec<Seqno>,
}

impl Locks {
    /// Whether it says more than which tables are named.
    pub(super) fn is_special(&self) -> bool {
        self.neighbours || !self.streams.is_empty()
    }
}

impl Node {
    /// A write set took its place, and none of this node's clients waits for it: it may
    /// be of a stream, which `state` knows if it has begun. On the delivery thread.
    pub(super) fn held_delivered(
        &self,
        state: &ClusterState,
        at: (Seqno, u64),
        write_set: &WriteSet,
        passed: bool,
    ) {
        let header = write_set.header();
        let flags = header.flags;
        let fragment = passed && flags.is_fragment();
        if self.setup.witness || !(fragment || flags.is_rollback()) {
            return;
        }
        let id = (header.source, header.trx_id);
        let own = header.source == self.shared().uuid;
        // Not under the lock: there may be many.
        let rows = match fragment {
            true => write_set.keys().rows(),
            false => Vec::new(),
        };
        let mut held = lock(&self.held);
        self.holds.store(true, Relaxed);
        if own && !fragment {
            held.own_over(id);
        }
        if fragment {
            let tables = write_set.keys().named_tables();
            let begins = begins(state, id, flags);
            if own {
                let (first, tables) = held.comes_alone(id, at, begins);
                self.closed.close_strictly(first, tables);
            }
            if let Some(first) = held.fragment(id, at, begins, &tables) {
                self.closed.close_strictly(first, tables);
            }
            held.made(id, &write_set.keys().made_tables());
            held.names(id, &rows);
        }
        let commits = fragment && flags.ends();
        if (commits || flags.is_rollback())
            && let Some(first) = held.over(id, at.0, commits)
        {
            self.shelved_is_over(first, at.0, commits);
        }
    }

    /// The same, and a client of this node waits for it.
    pub(super) fn own_stream_delivered(
        &self,
        state: &ClusterState,
        at: (Seqno, u64),
        write_set: &WriteSet,
        passed: bool,
    ) {
        let header = write_set.header();
        let flags = header.flags;
        if !flags.is_fragment() {
            return;
        }
        let id = (header.source, header.trx_id);
        let goes_on = passed && !flags.ends();
        // Not under the lock: there may be many.
        let rows = match goes_on {
            true => write_set.keys().rows(),
            false => Vec::new(),
        };
        let mut held = lock(&self.held);
        if !goes_on {
            held.own_over(id);
            return;
        }
        let tables = write_set.keys().named_tables();
        held.own_fragment(id, at, begins(state, id, flags), &tables);
        held.own_names(id, &rows);
    }

    /// An applier is about to take `ws`, everything before which is finished. If it is of a stream of
    /// this node that lost its client on the way: the server has taken back the rows, and may have
    /// made the stream its appliers'. It lets go of that first. False: the node leaves.
    pub(super) fn drop_what_came_alone(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        ws: &RemoteWriteSet,
    ) -> bool {
        let id = (ws.source, ws.trx_id);
        if !ws.flags.is_fragment() || !self.holds.load(Relaxed) {
            return true;
        }
        let Some((first, begins)) = lock(&self.held).untold(id) else {
            return true;
        };
        let first_log = self.order().map_or(u64::MAX, |o| o.status().first_log);
        if ws.flags.ends() && first_log > begins {
            self.inconsistent(&format!(
                "streaming transaction {} of this node committed on the others though its client was told that nobody knew, and \
                 its rows were taken back here. It began at log index {begins}, and the log here only at {first_log}: a full \
                 copy brings it",
                id.1
            ));
            return false;
        }
        // As long as it is the client's the server would not find it.
        let until = Instant::now() + CLIENT_PATIENCE;
        while self.trxs.get(id.1).is_some() && Instant::now() < until {
            if matches!(self.phase(), Phase::Inconsistent | Phase::Closed) {
                return false;
            }
            let held = lock(&self.held);
            drop(self.held_changed.wait_timeout(held, LOOK));
        }
        let note = StreamNote {
            source: id.0,
            trx: id.1,
            index: begins,
        };
        let (history, told) = (self.history(), self.gates.told());
        lock(&self.chunks)
            .lacking
            .add_stream(history, first, note, told);
        if !self.note_lacking() {
            return false;
        }
        if !self.roll_back_shelved(applier, id).ok {
            return false;
        }
        let over = lock(&self.held).told(id);
        if let Some((seqno, commits)) = over {
            self.shelved_is_over(first, seqno, commits);
        }
        self.note(&format!(
            "streaming transaction {} of this node, which has come in fragments since seqno {first}, was ordered though its client was told that nobody knew, and its rows were taken back here: what comes of it is applied whole at its end, if that comes",
            id.1
        ));
        true
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

    /// Whether an applier is spared, or will be: a stream whose first fragment nobody has applied
    /// yet has its rows soon.
    pub(super) fn will_spare(&self) -> bool {
        self.holds.load(Relaxed) && lock(&self.held).will_hold_rows()
    }

    /// What is kept of a write set that passed while streams are held. On the delivery thread.
    pub(super) fn locks_of(&self, write_set: &WriteSet) -> Locks {
        if !self.holds.load(Relaxed) {
            return Locks::default();
        }
        let made = write_set.keys().made_tables();
        let neighbours = lock(&self.held).meets_neighbours(&made);
        Locks {
            tables: write_set.keys().named_tables(),
            neighbours: neighbours || write_set.looks_around(),
            streams: self.streams_met_by(write_set),
        }
    }

    /// The streams whose rows the keys of a write set name that passed and comes now, by their first
    /// fragments. On the delivery thread.
    pub(super) fn streams_met_by(&self, write_set: &WriteSet) -> Vec<Seqno> {
        // Most streams name none that anybody else may name.
        if !self.holds.load(Relaxed) || !lock(&self.held).names_rows() {
            return Vec::new();
        }
        let rows = write_set.keys().rows();
        let met = lock(&self.held).meets_rows(&rows);
        met.into_iter().collect()
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
        self.work_begins(seqno);
        if self.holds.load(Relaxed) {
            lock(&self.held).works(seqno, tables, bytes);
        }
    }

    /// It needs no lock any more.
    pub(super) fn has_locks(&self, seqno: Seqno) {
        self.work_ends(seqno);
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
        let asked = self.queue.has_urgent();
        let (stuck, left) = {
            let mut held = lock(&self.held);
            let stuck = held.due_to_shelve(self.gates.released(), now, asked);
            (stuck, held.nobody_shelves(now))
        };
        if let Some((waits, streams)) = left {
            self.tell_nobody_shelves(waits, &streams);
        }
        let Some((waits, streams)) = stuck else {
            return;
        };
        // It may be a client that waits, and the only applier is free.
        self.queue.push_urgent(QueueItem {
            seqno: waits,
            ordered: false,
            depends_on: -1,
            exclusive: false,
            bytes: 0,
            value: Item::Shelve { waits, streams },
        });
    }

    /// The write set at `waits` has waited for too long, perhaps for these, and no applier is left.
    fn tell_nobody_shelves(&self, waits: Seqno, streams: &[StreamId]) {
        let whose = |id: &StreamId| {
            let name = self.names(&[id.0]).join("");
            format!("{} of {name}", id.1)
        };
        let whose: Vec<_> = streams.iter().map(whose).collect();
        let threads = self.shared().receivers;
        self.warn(&format!(
            "the write set at seqno {waits} waits, as it seems for a lock of streaming transaction {}, and no applier \
             thread is left that could roll that back here (wsrep_slave_threads={threads}): this node stands still, and \
             the others with it. SET GLOBAL wsrep_slave_threads={} on this node ends it; leave it so while clients stream",
            whose.join(", "),
            threads + 1
        ));
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
        let locks = &ws.locks;
        if (!locks.neighbours && locks.streams.is_empty()) || !self.is_alone() {
            return;
        }
        let met = {
            let (held, released) = (lock(&self.held), self.gates.released());
            match locks.neighbours {
                // By their tables these are among them.
                true => held.met_by(&locks.tables, released),
                false => held.that_began(&locks.streams, released),
            }
        };
        for id in met.into_iter().filter(|id| *id != (ws.source, ws.trx_id)) {
            self.shelve(applier, seqno, id);
        }
    }

    /// Whether there is but one applier, but for those that wait for their places: then nobody
    /// can be spared for streams that are in its way.
    fn is_alone(&self) -> bool {
        let ahead = self.count_ahead();
        self.shared().receivers < 2 + ahead
    }

    /// The database wants this thread back. The last one must stay whatever it says, and
    /// another one beside what waits for a place that lies ahead, or is spared: then the wish is
    /// forgotten, as the database counts anew with the next one.
    pub(super) fn may_end(&self) -> Option<Ended> {
        let ahead = self.count_ahead();
        let (mut may, left) = {
            let mut shared = self.shared();
            let may = shared.receivers > 1 + ahead;
            shared.receivers -= usize::from(may);
            (may, shared.receivers)
        };
        // Another thread that has begun since believes that this one is there, and may wait for a
        // stream. Delivery tells of that under this lock before anybody can begin.
        let streams = !lock(&self.held).is_empty();
        // Nobody else may come by before the others have all taken something, which may wait for a
        // stream: one has to be idle, and stays so from here on.
        if may && streams {
            self.spare_applier();
        }
        let nobody = streams && self.queue.idle() == 0;
        // And what lies ahead may have been begun since: who begins it looks again, too.
        let ahead = self.count_ahead().max(ahead);
        if may && (nobody || left < 1 + ahead || (left < 2 + ahead && streams)) {
            self.shared().receivers += 1;
            may = false;
        }
        may.then_some(Ended {
            outcome: Outcome::Ok,
            counted_out: true,
        })
    }

    /// The only applier is about to go on at `seqno`, and would wait there for clients of
    /// this node. One that runs again may have to wait for a stream: it looks after that.
    /// True: the database wants the thread back.
    pub(super) fn wait_for_clients(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        waiter: &Arc<Waiter>,
        seqno: Seqno,
    ) -> bool {
        let mut exit = false;
        while self.spared.load(Relaxed) && self.is_alone() {
            let by = Some(Instant::now() + LOOK);
            let waited = self.gates.wait_released(seqno - 1, waiter, false, by);
            if waited != Err(WaitError::TimedOut) {
                break;
            }
            let now = self.opened_at.elapsed();
            let stuck = lock(&self.held).stuck(self.gates.released(), now);
            if let Some((waits, streams)) = stuck {
                exit |= self.shelve_all(applier, waits, &streams);
            }
        }
        exit
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
        let lost = leaving.lost || first_log > leaving.begins;
        if lost && !leaving.rolled_back {
            lock(&self.held).stays(id);
            self.held_changed.notify_all();
            self.warn(&format!(
                "the write set at seqno {waits} waits for a lock of {whose}, which cannot be shelved: it began at log \
                 index {}, and this node's log begins at {first_log}. This node stands still, and the others with it, \
                 until that transaction is rolled back: end its client on {name}",
                leaving.begins
            ));
            return false;
        }
        let note = StreamNote {
            source: id.0,
            trx: id.1,
            index: leaving.begins,
        };
        let (history, told) = (self.history(), self.gates.told());
        lock(&self.chunks)
            .lacking
            .add_stream(history, leaving.first, note, told);
        // Its rows are free from here on.
        self.closed.close_strictly(leaving.first, leaving.tables);
        let noted = self.note_lacking();
        let rolled_back = noted.then(|| self.roll_back_shelved(applier, id));
        let Some(Applied { ok: true, exit }) = rolled_back else {
            // The node leaves: nothing of it goes on.
            self.held_changed.notify_all();
            return false;
        };
        let over = {
            let mut held = lock(&self.held);
            // With what came meanwhile; delivery closes what comes from here on.
            let over = held.gone(id);
            let tables = held.tables_of(id);
            self.closed.close_strictly(leaving.first, tables);
            over
        };
        if let Some((seqno, commits)) = over {
            self.shelved_is_over(leaving.first, seqno, commits);
        }
        self.held_changed.notify_all();
        self.counters.streams_shelved.fetch_add(1, Relaxed);
        // There may be very many of them.
        if lock(&self.told).again("shelved", Instant::now()) {
            self.note(&format!(
                "{whose}, which has come in fragments since seqno {}: shelved here, as the write set at seqno {waits} needs \
                 a lock of it, or may need one. It is rolled back in this database alone and applied whole at its end; \
                 until then writers of this node wait for its tables. (Others within a minute are not told one by one: \
                 wsrep_dromon_streams_shelved counts them.)",
                leaving.first
            ));
        }
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
    pub(super) fn roll_back_shelved(
        self: &Arc<Self>,
        applier: &mut dyn Applier,
        id: StreamId,
    ) -> Applied {
        let meta = Meta {
            position: Position {
                history: self.history(),
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
        self.spare_applier();
        let shelved = lock(&self.held).shelved();
        shelved
            .into_iter()
            .all(|id| self.roll_back_shelved(applier, id).ok)
    }

    /// The database is a full copy: its donor had shelved nothing.
    pub(super) fn forget_shelved(&self) {
        lock(&self.held).copied();
        self.closed.open_strict();
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
            Share::Lost => return Err("the log does not reach back to its first fragment".into()),
            Share::Nothing => {
                (ws.flags, ws.payload) = (NOTHING, Some(Bytes::new()));
                ws.locks = Locks::default();
            }
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
                    |bytes: &Bytes| files.append(key, None, bytes).map_err(|e| e.to_string());
                append(&Bytes::new())?;
                for index in parts {
                    append(&self.payload_from_log(*index, ws.source)?)?;
                }
                append(&end)?;
                let payload = files.read(key).map_err(|e| e.to_string())?;
                let takes_time = payload.len() > SPOOL_ABOVE;
                if takes_time || lock(&self.told).again("applied whole", Instant::now()) {
                    self.note(&format!(
                        "{}, shelved here: its {:.1} MB are applied whole at its end, seqno {seqno}",
                        self.whose_transaction(ws.source, ws.trx_id, ws.conn_id),
                        payload.len() as f64 / 1e6
                    ));
                }
                (ws.flags, ws.payload) = (WHOLE, Some(payload));
                ws.locks = Locks {
                    tables: lock(&self.held).tables_of((ws.source, ws.trx_id)),
                    neighbours: true,
                    streams: Vec::new(),
                };
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

    /// Delivery begins with `state`. What was shelved before is shelved still, and of what is
    /// open there the beginning is not delivered.
    pub(super) fn restore_streams(&self, state: &ClusterState) {
        if self.setup.witness {
            return;
        }
        let at = state.position();
        let (database, own) = {
            let shared = self.shared();
            (shared.position, shared.uuid)
        };
        let mut held = lock(&self.held);
        let notes = lock(&self.chunks).lacking.streams(database);
        let open = |first: Seqno| state.open_streams().any(|s| s.first == first);
        for (first, note) in &notes {
            if *first > at.seqno {
                held.noted((note.source, note.trx), *first, note.index);
            } else if !open(*first) {
                lock(&self.chunks).lacking.over(*first, at.seqno);
            }
        }
        for s in state.open_streams() {
            // Such a note may be older than the end that this database has.
            // And of its own the server has taken back the rows.
            let shelved = notes.iter().any(|(first, _)| *first == s.first) || s.source == own;
            held.lost((s.source, s.trx_id), s.first, s.begins, shelved);
        }
        if !held.is_empty() {
            self.holds.store(true, Relaxed);
        }
    }

    /// Whether the `database`, which stands there, needs a full copy if delivery is to begin
    /// with `state`: what is shelved has fragments before that.
    pub(super) fn lacks_fragments(&self, database: Position, state: &ClusterState) -> bool {
        let notes = lock(&self.chunks).lacking.streams(database);
        let mut notes = notes.iter();
        notes.any(|(first, note)| lacks_beginning(state, *first, note))
    }

    /// The newest checkpoint before the streams that are open in `state`, if there are
    /// some, and the log reaches back so far: who begins there gets all of them.
    pub(super) fn mark_before_streams(&self, state: &ClusterState) -> Option<u64> {
        let from = state.streams_from()?;
        let marks = lock(&self.checkpoints);
        let before = marks.iter().rev().find(|m| m.index < from);
        before.map(|m| m.index)
    }

    /// A connection to the cluster begins.
    pub(super) fn forget_held(&self) {
        let mut held = lock(&self.held);
        *held = HeldRows::default();
        // Appliers look again; the queue spares nobody.
        self.holds.store(true, Relaxed);
        self.spared.store(false, Relaxed);
    }
}

/// Where a stream begins in the log, if this fragment of it is the first one.
fn begins(state: &ClusterState, id: StreamId, flags: Flags) -> Option<u64> {
    let begun = state.open_stream(id).filter(|_| flags.starts());
    begun.map(|s| s.begins)
}

/// Whether the stream of a note, which began at `first`, is open in `state`. If it is not,
/// though it began before that, it was over there, and in a database that stands there.
fn lacks_beginning(state: &ClusterState, first: Seqno, note: &StreamNote) -> bool {
    let open = state.open_stream((note.source, note.trx));
    open.is_some_and(|s| s.first == first)
}
