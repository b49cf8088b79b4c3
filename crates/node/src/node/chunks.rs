//! Large write sets in chunks, on this node: who applies them how, and at what
//! pace they come.
//!
//! ```text
//!   a client here holds it open    chunks: only their places   end: the client commits
//!   it is noted as lacking         chunks: only their places   end: the whole is applied
//!   else                           chunks: are applied         end: the server commits them
//! ```
//!
//! One member, not the sender if there is another, asks for the next chunk, if
//! the others are not far behind:
//!
//! ```text
//!   nothing else is ordered   while the one before is applied
//!   small ones come           when the one before is applied but for its commit: the next one gets a
//!                             place that lies ahead (`cluster/chunked.rs`), so that they pass it
//!   ... and one applier       when the one before is applied, and they had their turn (`turn.rs`)
//! ```
//!
//! What it asks twice counts once. A node begins with what lies ahead if another
//! of its appliers is left for what comes before.

mod ahead;
mod pace;
mod thrown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_certify::Verdict;
use dromon_gates::{QueueItem, Seqno};
use dromon_writeset::{Flags, Payload, Plan, Uuid, WholeOnly, WriteSet};

use super::large::LargeOpen;
use super::{Item, Locks, Node, Phase, RemoteWriteSet, lock};
use crate::cluster::{CHUNK_CLOSES, ChunkPart, Chunked, ClusterState, Member, chunk_log2};
use crate::lacking::{LACKING_FILE, Lacking};
use crate::messages::Position;
use crate::streams::{TOLD_AGE, next_told};
use crate::trx::{Abandoned, Stage, Trx};
use crate::yielding::Yielding;

/// After so long without a chunk the log says so.
const STUCK: Duration = Duration::from_secs(15);
/// How many chunks a counted member may have before it.
const AHEAD: usize = 4;
/// How long an applier takes for a chunk, until that is known.
const WORK: Duration = Duration::from_millis(50);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Those whose client waits here.
    own: BTreeMap<Seqno, Arc<Trx>>,
    open: BTreeMap<Seqno, Open>,
    /// Those that the server has parts of, and whose end was delivered, but may be held back by a pause.
    ending: Vec<Ending>,
    pub lacking: Lacking,
    /// Those that an earlier process noted: its server may have ended before it had rolled back what it had of them,
    /// and the new one may have that again.
    unsettled: BTreeSet<Seqno>,
    /// Those that streams may wait for.
    met: thrown::MetStreams,
    /// Whether the thread runs that asks.
    pacing: bool,
    /// Counts what the asking thread may wait for.
    changes: u64,
    /// How long after this node asked it the newest took its place.
    way: Duration,
    /// How long it took the newest chunks that lay ahead to be ready to commit.
    work: Duration,
    /// The parts that appliers have since their place lay ahead, the newest last.
    begun: Vec<Begun>,
    /// Places of the chunks that appliers are at, and of which transaction each is.
    at_work: Vec<(Seqno, Seqno)>,
    /// What small ones have.
    yielding: Yielding,
    /// When that was looked at last, and how many there had been.
    looked: Option<(Instant, i64)>,
}

/// A member, the number of a transaction and of a connection there.
pub(super) type Whose = (Uuid, u64, u64);

#[derive(Clone, Copy, Debug)]
struct Ending {
    id: Seqno,
    end: Seqno,
    whose: Whose,
}

/// A part that was begun while its place lay ahead.
#[derive(Clone, Copy, Debug)]
struct Begun {
    place: Seqno,
    /// Which part of which transaction.
    of: (Seqno, ChunkPart),
    /// Since when the server has it.
    at: Option<Instant>,
    /// How long it took until nothing was left of it but to commit.
    ready: Option<Duration>,
}

/// One that is not over.
#[derive(Debug)]
struct Open {
    chunked: Arc<Chunked>,
    /// See [`Item::Chunk`].
    streams: Arc<[Seqno]>,
    next: u32,
    /// Places of the last chunks, the newest last.
    at: Vec<Seqno>,
    /// The place of the newest one, if it lies ahead.
    ahead: Option<Seqno>,
    began: Instant,
    /// When the newest came.
    moved: Instant,
    asked: Option<(u32, Instant)>,
    /// Nobody asked for long, so this node does, to the end.
    taken_over: bool,
    /// The part of which was said that it does not come.
    told: Option<u32>,
    /// The log tells of it when it is so old.
    tell_at: Duration,
}

impl Open {
    /// Its part `n` is known to come, at `place`.
    fn comes(&mut self, n: u32, place: Seqno) {
        self.next = n + 1;
        self.moved = Instant::now();
        self.at.push(place);
        if self.at.len() > AHEAD {
            self.at.remove(0);
        }
    }

    /// Its end lies ahead, or was asked for.
    fn is_ending(&self) -> bool {
        let chunks = self.chunked.chunks();
        let asked = self.asked.is_some_and(|(n, _)| n >= chunks);
        asked || self.ahead.is_some() && self.next > chunks
    }

    /// The transaction, how many chunks are out, its age.
    fn so_far(&self) -> (Arc<Chunked>, u32, Duration) {
        (
            self.chunked.clone(),
            self.chunks_out(),
            self.began.elapsed(),
        )
    }

    /// Its end is no chunk.
    fn chunks_out(&self) -> u32 {
        self.next.min(self.chunked.chunks())
    }
}

fn whose(chunked: &Chunked) -> Whose {
    let header = chunked.write_set.header();
    (header.source, header.trx_id, header.conn_id)
}

impl Chunks {
    pub fn new(lacking: Lacking) -> Self {
        Chunks {
            own: BTreeMap::new(),
            open: BTreeMap::new(),
            ending: Vec::new(),
            unsettled: lacking.in_chunks(),
            lacking,
            met: thrown::MetStreams::default(),
            pacing: false,
            changes: 0,
            way: Duration::ZERO,
            work: WORK,
            begun: Vec::new(),
            at_work: Vec::new(),
            yielding: Yielding::default(),
            looked: None,
        }
    }

    /// What was begun ahead, and is not over.
    fn begun(&self, place: Seqno) -> Option<&Begun> {
        self.begun.iter().find(|b| b.place == place)
    }

    /// Whether the server has parts of `id`, with the locks that it took for them: for a client that waits, or in
    /// an applier.
    fn is_here(&self, history: Uuid, id: Seqno) -> bool {
        self.own.contains_key(&id) || !self.lacking.contains(history, id)
    }

    /// One that is begun at `at`, and over only behind that.
    pub fn keeps_tables(&self, history: Uuid, at: Seqno) -> Option<Whose> {
        let here = |id: Seqno| id <= at && self.is_here(history, id);
        let mut open = self.open.values().filter(|o| here(o.chunked.id));
        let mut ending = self.ending.iter();
        let ends = ending.find(|e| e.id <= at && at < e.end);
        (open.next().map(|o| whose(&o.chunked))).or(ends.map(|e| e.whose))
    }

    /// The end of `chunked` is delivered, at `end`.
    fn ends(&mut self, history: Uuid, chunked: &Chunked, end: Seqno, released: Seqno) {
        self.ending.retain(|e| e.end > released);
        if self.is_here(history, chunked.id) {
            self.ending.push(Ending {
                id: chunked.id,
                end,
                whose: whose(chunked),
            });
        }
    }

    /// What comes behind `released` ends one.
    fn end_is_next(&self, released: Seqno) -> bool {
        self.ending.iter().any(|e| e.end == released + 1)
    }

    /// Part `n` of `id` is known to come: how long after it was asked for.
    fn way_of(&mut self, id: Seqno, n: u32) {
        let asked = self.open.get(&id).and_then(|o| o.asked);
        if let Some((_, at)) = asked.filter(|(m, _)| *m == n) {
            self.way = at.elapsed();
        }
    }

    /// Whether `member` is the source of one that is not over: it gives no copy.
    pub fn is_source(&self, member: &Uuid) -> bool {
        let mut open = self.open.values();
        open.any(|o| o.chunked.source() == *member)
    }

    /// What is known of transaction `id`, if it is not over.
    pub fn chunked(&self, id: Seqno) -> Option<Arc<Chunked>> {
        self.open.get(&id).map(|o| o.chunked.clone())
    }

    /// The transactions whose clients wait here: their outcome cannot be known now. If they commit
    /// after all, they are applied whole. Those that gave way stay, if they are `kept`: their server
    /// is bound to run them again, and would end rather than not know.
    pub fn abandon(&mut self, kept: bool) -> Vec<Arc<Trx>> {
        let own = std::mem::take(&mut self.own);
        // Marked in the same step: who gives way in between would be replayed, and be told nothing.
        let stays = |trx: &Trx| {
            let mut body = trx.lock();
            let stays = kept && body.must_abort;
            if !stays {
                body.abandoned = Some(Abandoned::Sent);
            }
            stays
        };
        let (stay, gone) = own.into_iter().partition(|(_, trx)| stays(trx));
        self.own = stay;
        BTreeMap::into_values(gone).collect()
    }

    /// Those of a client here that are not `open` any more, though nobody said how they ended: the
    /// cluster goes on from before they began.
    pub fn abandon_lost(&mut self, open: &[Seqno]) -> Vec<Arc<Trx>> {
        let own = std::mem::take(&mut self.own);
        let (stay, gone) = own.into_iter().partition(|(id, _)| open.contains(id));
        self.own = stay;
        BTreeMap::into_values(gone).collect()
    }
}

impl Node {
    /// A part of a large write set took its place. On the delivery thread.
    pub(super) fn chunk_delivered(
        self: &Arc<Self>,
        state: &ClusterState,
        seqno: Seqno,
        chunked: Arc<Chunked>,
        part: ChunkPart,
        depends_on: Seqno,
    ) {
        // Before its place lets it end.
        let begun = lock(&self.chunks).begun(seqno).is_some();
        let id = chunked.id;
        self.takes_place(seqno, Some((id, part)));
        let first = part == ChunkPart::Data(0);
        let sent = match first && self.is_own_origin(chunked.origin) {
            true => lock(&self.pending).take(chunked.tag),
            false => None,
        };
        // One that lost touch may have come back in the same step.
        let of_source = |m: &Member| m.uuid == chunked.source() && m.joined_at <= seqno;
        let left = !state.members().any(of_source);
        self.tell_chunk(seqno, &chunked, part, left);
        let history = self.history();
        let is_own = sent.is_some();
        match part {
            ChunkPart::Data(0) => {
                if !state.closes(id).is_empty() {
                    self.unique_tables.see(chunked.made());
                }
                self.close_tables(state, &chunked);
            }
            ChunkPart::Data(_) => {}
            ChunkPart::End => {
                let by_tables = state.certifier().counts_by_tables(&chunked.write_set);
                if by_tables && !self.is_own_origin(chunked.origin) {
                    // From here on whoever touches them and has not seen this place fails.
                    self.closed.close_wholly(id, chunked.tables());
                }
                self.closed.ends(id, seqno);
            }
            ChunkPart::Rollback => self.closed.open(id),
        }
        if first {
            let last_seen = chunked.write_set.header().last_seen;
            self.count_certified(seqno, last_seen, &Verdict::Passed { depends_on });
            self.counters.streamed_automatic.fetch_add(1, Relaxed);
        }
        let streams = match first {
            true => self.streams_met_by(&chunked.write_set),
            false => Vec::new(),
        };
        // One that could not run again between the chunks.
        let whole = first && !is_own && self.ends_amid(seqno, &chunked.write_set);
        let (client, streams) = {
            let mut chunks = lock(&self.chunks);
            if let Some(sent) = sent {
                sent.trx.lock().stage = Stage::Chunked;
                // It may have been told to give way before.
                sent.trx.waiter.wake();
                chunks.lacking.add(history, id);
                chunks.own.insert(id, sent.trx);
            }
            if whole {
                chunks.lacking.add(history, id);
            }
            if first {
                chunks.met.begins(id, chunked.source(), &streams);
            }
            match part {
                ChunkPart::Data(n) => {
                    let open = chunks.open.entry(id).or_insert_with(|| Open {
                        chunked: chunked.clone(),
                        streams: streams.into(),
                        next: 0,
                        at: Vec::new(),
                        ahead: None,
                        began: Instant::now(),
                        moved: Instant::now(),
                        asked: None,
                        taken_over: false,
                        told: None,
                        tell_at: TOLD_AGE,
                    });
                    let streams = open.streams.clone();
                    if open.ahead.take().is_some() {
                        open.moved = Instant::now();
                    } else {
                        open.comes(n, seqno);
                        chunks.way_of(id, n);
                    }
                    (None, streams)
                }
                ChunkPart::End | ChunkPart::Rollback => {
                    chunks.ends(history, &chunked, seqno, self.gates.released());
                    chunks.met.ends(id, seqno, self.gates.released());
                    let streams = chunks.open.remove(&id).map(|o| o.streams);
                    let open: Vec<Seqno> = state.chunked().map(|(c, _)| c.id).collect();
                    chunks.lacking.over_but(&open, seqno);
                    (chunks.own.remove(&id), streams.unwrap_or_default())
                }
            }
        };
        self.chunks_changed();
        match self.phase() {
            // It missed how the others were told.
            Phase::NonPrimary if is_own => self.abandon_pending(),
            Phase::Inconsistent if is_own => self.abandon_sent_by(self.order().as_ref(), false),
            _ => {}
        }
        self.start_pacing();
        if let Some(trx) = client {
            let passed = (part == ChunkPart::End).then_some(seqno - 1);
            self.own_delivered(&trx, seqno, chunked.index, passed);
        } else if !self.setup.witness {
            if let ChunkPart::Data(n) = part {
                let c = &self.counters;
                c.received.fetch_add(1, Relaxed);
                let bytes = chunked.plan.chunk_len(n as usize) as u64;
                c.received_bytes.fetch_add(bytes, Relaxed);
            }
            if !begun {
                self.queue_chunk(seqno, chunked, part, streams, depends_on);
            }
        }
    }

    fn queue_chunk(
        &self,
        seqno: Seqno,
        chunked: Arc<Chunked>,
        part: ChunkPart,
        streams: Arc<[Seqno]>,
        depends_on: Seqno,
    ) {
        // A statement may make the server throw away what it has, by a lock that no key names. (One that comes
        // later finds the part in its place: nothing but whole transactions passes it, `cluster.rs`.)
        let depends_on = depends_on.max(self.newest_toi.load(Relaxed));
        // So may this node, for the end of a stream (`thrown.rs`).
        let depends_on = depends_on.max(self.end_before(&streams).min(seqno - 1));
        self.enqueue(QueueItem {
            seqno,
            ordered: true,
            depends_on,
            exclusive: false,
            bytes: 0,
            value: Item::Chunk {
                chunked,
                part,
                streams,
            },
        });
        self.queue_grew();
    }

    /// This node is a member, perhaps again: who waited was sent on when it lost touch, and
    /// who comes from here on waits as on the others.
    pub(super) fn close_again(&self, state: &ClusterState) {
        for (chunked, _) in state.chunked() {
            self.close_tables(state, chunked);
        }
    }

    /// `chunked` is open: who would fail by it waits.
    fn close_tables(&self, state: &ClusterState, chunked: &Chunked) {
        self.closed.close(chunked.id, state.closes(chunked.id));
        if !self.is_own_origin(chunked.origin) {
            let whole = chunked.write_set.keys().whole_tables();
            self.closed.close_wholly(chunked.id, &whole);
        }
    }

    fn is_own_origin(&self, origin: Uuid) -> bool {
        let shared = self.shared();
        shared.join.as_ref().is_some_and(|j| j.origin == origin)
    }

    /// `left`: the node that it came from is no member any more, or was none meanwhile.
    fn tell_chunk(&self, seqno: Seqno, chunked: &Chunked, part: ChunkPart, left: bool) {
        let who = self.whose(chunked);
        let took = || {
            let chunks = lock(&self.chunks);
            let began = chunks.open.get(&chunked.id).map(|o| o.began);
            began.map_or(0.0, |at| at.elapsed().as_secs_f64())
        };
        match part {
            ChunkPart::Data(0) => self.note(&format!(
                "{who}: its {:.1} MB are applied in {} chunks from seqno {seqno} on (automatic: it is above \
                 dromon.auto_stream_size); others pass them{}",
                chunked.write_set.payload_len() as f64 / 1e6,
                chunked.chunks(),
                match chunked.write_set.header().chunk & CHUNK_CLOSES {
                    0 => "",
                    _ => ", but for those that change its tables: it inserts into or deletes from a unique index that \
                          is not the primary key, or changes rows of a table without any index, so they wait until it is \
                          over, or get error 1213 after 50 s; streams with fragments out get it at once",
                }
            )),
            ChunkPart::Data(_) => {}
            ChunkPart::End => self.note(&format!(
                "{who}: the last chunk is out; it commits at seqno {seqno}, {:.1} s after the first",
                took()
            )),
            ChunkPart::Rollback => self.note(&format!(
                "{who}, applied in chunks from seqno {} on: rolled back at seqno {seqno}, {:.1} s after the first; \
                 nothing of it remains on any node: {}",
                chunked.id,
                took(),
                match left {
                    true => "its node left the cluster or lost touch with it, so its client was not told that it committed",
                    false => "a statement (DDL) on one of its tables comes first; its client gets error 1213 and can \
                              run it again",
                }
            )),
        }
    }

    fn whose(&self, chunked: &Chunked) -> String {
        let (source, trx, conn) = whose(chunked);
        self.whose_transaction(source, trx, conn)
    }

    /// A large write set of a client here could not be cut.
    pub(super) fn tell_whole(&self, write_set: &WriteSet) {
        let header = write_set.header();
        let payload = write_set.payload().here();
        let bytes = write_set.payload_len();
        let chunk = 1 << chunk_log2(header.chunk);
        let why = match payload.map(|p| Plan::of(p, chunk)) {
            // Hardly more than a chunk.
            Some(Err(WholeOnly::Short)) if bytes <= 2 * chunk as u64 => return,
            Some(Err(WholeOnly::Short)) => "it is one row, or few, and a row is not parted".to_owned(),
            Some(Err(why)) => why.to_string(),
            Some(Ok(_)) | None => "its node gives a copy, or the others are joining, or large transactions that are not over \
                      have kept the log from being shortened for long"
                .to_owned(),
        };
        self.note_whole(header.trx_id, header.conn_id, bytes, &why);
    }

    /// A large transaction of a client here goes whole, because of `why`.
    pub(super) fn note_whole(&self, trx: u64, conn: u64, bytes: u64, why: &str) {
        let others = {
            let shared = self.shared();
            let mut members = shared.view.iter().flat_map(|v| &v.members);
            members.any(|m| m.uuid != shared.uuid && !m.witness)
        };
        if others {
            self.note(&format!(
                "transaction {trx} of connection {conn}: its {:.1} MB are applied whole by the other nodes, and hold \
                 later commits up there meanwhile: {why}. Smaller transactions avoid that",
                bytes as f64 / 1e6
            ));
        }
    }

    /// What is applied in chunks now.
    pub(super) fn open_chunked(&self) -> Vec<LargeOpen> {
        let open: Vec<_> = {
            let chunks = lock(&self.chunks);
            chunks.open.values().map(Open::so_far).collect()
        };
        open.iter().map(|o| self.of_chunked(o)).collect()
    }

    fn of_chunked(&self, (chunked, next, age): &(Arc<Chunked>, u32, Duration)) -> LargeOpen {
        LargeOpen {
            whose: self.whose(chunked),
            parts: format!("{next} of {} chunks", chunked.chunks()),
            bytes: chunked.write_set.payload_len(),
            age: *age,
            by: "automatic",
            held: Duration::ZERO,
        }
    }

    /// Those that have become so old that the log tells of them.
    pub(super) fn old_chunked(&self) -> Vec<LargeOpen> {
        let old: Vec<_> = {
            let mut chunks = lock(&self.chunks);
            let open = chunks.open.values_mut();
            let old = open.filter(|o| o.began.elapsed() >= o.tell_at);
            old.map(|o| {
                o.tell_at = next_told(o.began.elapsed());
                o.so_far()
            })
            .collect()
        };
        old.iter().map(|o| self.of_chunked(o)).collect()
    }

    /// How many there are.
    pub(super) fn count_chunked(&self) -> usize {
        lock(&self.chunks).open.len()
    }

    /// Says of which no chunk has come for long.
    pub(super) fn tell_stuck(&self) {
        let serving = self.serving();
        let stuck: Vec<_> = {
            let mut chunks = lock(&self.chunks);
            if !serving {
                // It is this node that is cut off; others may have gone on.
                for open in chunks.open.values_mut() {
                    open.moved = Instant::now();
                }
            }
            let waits = |o: &&mut Open| o.moved.elapsed() >= STUCK && o.told != Some(o.next);
            let open = chunks.open.values_mut().filter(waits);
            open.map(|o| {
                o.told = Some(o.next);
                (o.chunked.clone(), o.chunks_out(), o.moved.elapsed())
            })
            .collect()
        };
        for (chunked, next, since) in stuck {
            self.warn(&format!(
                "{}: nothing came after {next} of its {} chunks for {:.0} s. Its client waits in COMMIT and keeps its \
                 locks; who touches its rows on another node gets error 1213. Look for a member that does not apply: \
                 paused (FLUSH TABLES WITH READ LOCK, BACKUP STAGE), with a full disk, or slow \
                 (wsrep_dromon_waiting_for)",
                self.whose(&chunked),
                chunked.chunks(),
                since.as_secs_f64()
            ));
        }
    }

    /// What the server is given for a part; None: nothing, its place is passed.
    /// On an applier thread.
    pub(super) fn chunk_to_apply(
        &self,
        seqno: Seqno,
        depends_on: Seqno,
        chunked: &Chunked,
        part: ChunkPart,
        streams: &[Seqno],
    ) -> Option<RemoteWriteSet> {
        let header = chunked.write_set.header();
        let history = self.history();
        let lacking = lock(&self.chunks).lacking.contains(history, chunked.id);
        let mut ws = RemoteWriteSet {
            flags: chunked.flags(part),
            source: header.source,
            trx_id: chunked.trx_id(),
            conn_id: header.conn_id,
            depends_on,
            payload: Some(bytes::Bytes::new()),
            left: None,
            sum: None,
            hold: None,
            index: chunked.index,
            locks: Locks::default(),
        };
        match part {
            ChunkPart::Data(n) if lacking => {
                // Before the position can pass it.
                if n == 0 && !self.note_lacking() {
                    self.gates.pass_commit(seqno);
                    return None;
                }
                ws.flags = Flags::TRX_START | Flags::TRX_END | Flags::ROLLBACK;
                ws.trx_id = header.trx_id;
            }
            ChunkPart::Data(n) => {
                let n = n as usize;
                lock(&self.chunks).at_work.push((seqno, chunked.id));
                ws.payload = match chunked.write_set.payload() {
                    Payload::Elsewhere(left) => Some(self.chunk_left(seqno, chunked, left, n)?),
                    Payload::Here(payload) if chunked.plan.is_sound(payload, n) => {
                        chunked.plan.chunk(payload, n)
                    }
                    Payload::Here(_) => {
                        let again = self.damaged_spool(seqno, chunked.index, header.source)?;
                        chunked.plan.chunk(&again, n)
                    }
                };
                ws.locks = self.locks_of_chunked(chunked, streams);
            }
            ChunkPart::End if lacking => {
                ws.flags = header.flags;
                ws.trx_id = header.trx_id;
                ws.payload = chunked.write_set.payload().here().cloned();
                ws.left = chunked.write_set.payload().elsewhere().cloned();
                ws.sum = Some(chunked.write_set.payload_sum());
                // It may have been begun ahead, as the end of what was here: now it is done when
                // it has its place.
                self.begun_ahead_is_ready(seqno);
                ws.depends_on = seqno - 1;
                ws.locks = self.locks_of_chunked(chunked, streams);
            }
            ChunkPart::End => {}
            ChunkPart::Rollback if lacking => {
                ws.flags = Flags::TRX_START | Flags::TRX_END | Flags::ROLLBACK;
                ws.trx_id = header.trx_id;
            }
            ChunkPart::Rollback => ws.conn_id = u64::MAX,
        }
        Some(ws)
    }

    /// The same as `locks_of`.
    fn locks_of_chunked(&self, chunked: &Chunked, streams: &[Seqno]) -> Locks {
        if !self.holds.load(Relaxed) {
            return Locks::default();
        }
        let neighbours = lock(&self.held).meets_neighbours(chunked.made());
        Locks {
            tables: chunked.tables().to_vec(),
            neighbours: neighbours || chunked.looks_around(),
            streams: streams.to_vec(),
        }
    }

    /// Makes durable what this database does not get in chunks. False: that
    /// failed, and the node leaves.
    pub(super) fn note_lacking(&self) -> bool {
        let durable = lock(&self.durable).seqno();
        let stored = self.store_lacking(durable);
        if let Err(e) = &stored {
            self.inconsistent(&format!(
                "{LACKING_FILE} in {} cannot be written: {e}. After a crash nobody could tell what this database has \
                 of a large transaction that is under way",
                self.settings().base_dir.display()
            ));
        }
        stored.is_ok()
    }

    /// Delivery needs `chunks`: nothing is written while that is locked.
    fn store_lacking(&self, durable: Seqno) -> std::io::Result<()> {
        let file = lock(&self.lacking_file);
        let unwritten = lock(&self.chunks).lacking.unwritten(durable);
        if let Some(notes) = unwritten {
            let none = notes.is_empty();
            if !none {
                // Else a crash between the two would look as if somebody had removed it.
                file.make()?;
                lock(&self.ddl_marks).set_notes(true)?;
            }
            file.write(&notes)?;
            lock(&self.chunks).lacking.written(notes);
            if none {
                lock(&self.ddl_marks).set_notes(false)?;
            }
        }
        Ok(())
    }

    /// The database is a fresh copy, with all that its donor had. The error is a
    /// sentence for the operator.
    pub(super) fn forget_lacking(&self) -> Result<(), String> {
        {
            let mut chunks = lock(&self.chunks);
            chunks.lacking.clear();
            chunks.unsettled.clear();
        }
        self.store_lacking(0).map_err(|e| {
            format!(
                "{LACKING_FILE} in {} cannot be written: {e}. It tells of the database that was here before the full \
                 copy, and must not be taken for the copy's. Make that directory writable; then start this node again",
                self.settings().base_dir.display()
            )
        })
    }

    /// Whether this database at `position` lacks what others have in chunks by
    /// then, so that a copy of it would.
    pub(super) fn lacks_chunks(&self, position: Position) -> bool {
        let held = lock(&self.held);
        let chunks = lock(&self.chunks);
        let is_open = |id| chunks.open.contains_key(&id) || held.is_open(id);
        chunks.lacking.lacks_at(position, is_open)
    }

    /// What is applied in chunks belongs to a connection to the cluster. If the node joins
    /// again, its appliers go on with what they have begun ahead: all but `unbegun`, which
    /// no applier had yet. None: it does not join again.
    pub(super) fn forget_chunks(&self, unbegun: Option<&[Seqno]>) {
        let released = self.gates.released();
        {
            let mut chunks = lock(&self.chunks);
            chunks.open.clear();
            chunks.ending.clear();
            chunks.met = thrown::MetStreams::default();
            let goes_on = |b: &Begun| {
                let begun = unbegun.is_some_and(|u| !u.contains(&b.place));
                begun && b.place > released
            };
            chunks.begun.retain(goes_on);
            let kept = chunks.begun.last().map_or(0, |b| b.place);
            self.kept_ahead.store(kept, Relaxed);
        }
        self.chunks_changed();
    }

    /// Wakes the thread that asks.
    pub(super) fn chunks_changed(&self) {
        lock(&self.chunks).changes += 1;
        self.chunks_more.notify_all();
    }

    /// Whether the turn is at the end of a large transaction here.
    pub(super) fn is_at_an_end(&self) -> bool {
        lock(&self.chunks).end_is_next(self.gates.released())
    }

    /// Waits for a change after `seen`.
    fn wait_chunks(&self, seen: u64, limit: Duration) {
        let chunks = lock(&self.chunks);
        if chunks.changes == seen {
            drop(self.chunks_more.wait_timeout(chunks, limit));
        }
    }

    /// The part at `seqno` is through here: who asks for the next one is told.
    pub(super) fn chunk_applied(&self, seqno: Seqno) {
        self.begun_ahead_is_over(seqno);
        lock(&self.chunks)
            .at_work
            .retain(|(place, _)| *place != seqno);
        self.report_progress();
        self.chunks_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_a_pause_holds_back_keeps_its_tables() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, lacking) = crate::lacking::LackingFile::open(dir.path()).expect("no file yet");
        let mut chunks = Chunks::new(lacking);
        let history = Uuid([7; 16]);
        let mut ending = |id, end| {
            let whose = (history, id as u64, 1);
            chunks.ending.push(Ending { id, end, whose });
        };
        ending(5, 9);
        ending(7, 12);
        let keeps = |at| chunks.keeps_tables(history, at).map(|whose| whose.1);
        let all: Vec<_> = [4, 5, 8, 9, 11, 12].map(keeps).into();
        assert_eq!(all, [None, Some(5), Some(5), Some(7), Some(7), None]);
        let next: Vec<_> = [7, 8, 9, 10, 11, 12].map(|r| chunks.end_is_next(r)).into();
        assert_eq!(next, [false, true, false, false, true, false]);
    }
}
