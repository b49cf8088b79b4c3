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
//!   small ones come           when the one before is applied, and they had their turn (`turn.rs`)
//! ```
//!
//! What it asks twice counts once.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dromon_certify::Verdict;
use dromon_gates::{QueueItem, Seqno, WaitError, Waiter};
use dromon_order::Order;
use dromon_writeset::{Flags, Plan, Uuid, WholeOnly, WriteSet};

use super::large::LargeOpen;
use super::{Item, Node, Phase, RemoteWriteSet, lock};
use crate::cluster::{
    CHUNK_CLOSES, ChunkPart, Chunked, ClusterState, Member, MemberState, chunk_log2, chunked_id_of,
};
use crate::lacking::{LACKING_FILE, Lacking};
use crate::messages::{Control, Position, encode, kind};
use crate::streams::{TOLD_AGE, next_told};
use crate::trx::{Stage, Trx};
use crate::turn::{Cycle, Turns};

/// A request for a chunk that is not answered by the order within this time is
/// made again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// If nothing was asked for in this time, the next member in line asks, and so on:
/// the first one may be unable to.
const TAKE_OVER: Duration = Duration::from_secs(10);
/// After so long without a chunk the log says so.
const STUCK: Duration = Duration::from_secs(15);
/// How many chunks a counted member may have before it.
const AHEAD: usize = 4;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Those whose client waits here.
    own: BTreeMap<Seqno, Arc<Trx>>,
    open: BTreeMap<Seqno, Open>,
    lacking: Lacking,
    /// Whether the thread runs that asks.
    pacing: bool,
    /// Counts what the asking thread may wait for.
    changes: u64,
    /// How long after this node asked it the newest took its place.
    way: Duration,
}

/// One that is not over.
#[derive(Debug)]
struct Open {
    chunked: Arc<Chunked>,
    next: u32,
    /// Places of the last chunks, the newest last.
    at: Vec<Seqno>,
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
    /// The transaction, how many chunks are out, its age.
    fn so_far(&self) -> (Arc<Chunked>, u32, Duration) {
        (self.chunked.clone(), self.next, self.began.elapsed())
    }
}

/// What the asking thread does next.
enum Step {
    Ask {
        id: Seqno,
        n: u32,
        last: Seqno,
        all_through: Option<Seqno>,
    },
    Wait(Duration),
    End,
}

impl Chunks {
    pub fn new(lacking: Lacking) -> Self {
        Chunks {
            own: BTreeMap::new(),
            open: BTreeMap::new(),
            lacking,
            pacing: false,
            changes: 0,
            way: Duration::ZERO,
        }
    }

    /// The transactions whose clients wait here: their outcome cannot be known
    /// any more. If they commit after all, they are applied whole.
    pub fn abandon(&mut self) -> Vec<Arc<Trx>> {
        std::mem::take(&mut self.own).into_values().collect()
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
        self.takes_place(seqno);
        let id = chunked.id;
        let first = part == ChunkPart::Data(0);
        let sent = match first && self.is_own_origin(chunked.origin) {
            true => lock(&self.pending).take(chunked.tag),
            false => None,
        };
        // One that lost touch may have come back in the same step.
        let of_source = |m: &Member| m.uuid == chunked.source() && m.joined_at <= seqno;
        let left = !state.members().any(of_source);
        self.tell_chunk(seqno, &chunked, part, left);
        let history = *lock(&self.history);
        let is_own = sent.is_some();
        match part {
            ChunkPart::Data(0) => self.closed.close(id, state.closes(id)),
            ChunkPart::Data(_) => {}
            ChunkPart::End | ChunkPart::Rollback => self.closed.open(id),
        }
        if first {
            let last_seen = chunked.write_set.header().last_seen;
            self.count_certified(seqno, last_seen, &Verdict::Passed { depends_on });
            self.counters.streamed_automatic.fetch_add(1, Relaxed);
        }
        let client = {
            let mut chunks = lock(&self.chunks);
            if let Some(sent) = sent {
                sent.trx.lock().stage = Stage::Chunked;
                // It may have been told to give way before.
                sent.trx.waiter.wake();
                chunks.lacking.add(history, id);
                chunks.own.insert(id, sent.trx);
            }
            match part {
                ChunkPart::Data(n) => {
                    let asked = chunks.open.get(&id).and_then(|o| o.asked);
                    if let Some((_, at)) = asked.filter(|(m, _)| *m == n) {
                        chunks.way = at.elapsed();
                    }
                    let open = chunks.open.entry(id).or_insert_with(|| Open {
                        chunked: chunked.clone(),
                        next: 0,
                        at: Vec::new(),
                        began: Instant::now(),
                        moved: Instant::now(),
                        asked: None,
                        taken_over: false,
                        told: None,
                        tell_at: TOLD_AGE,
                    });
                    open.next = n + 1;
                    open.moved = Instant::now();
                    open.at.push(seqno);
                    if open.at.len() > AHEAD {
                        open.at.remove(0);
                    }
                    None
                }
                ChunkPart::End | ChunkPart::Rollback => {
                    chunks.open.remove(&id);
                    let open: Vec<Seqno> = state.chunked().map(|(c, _)| c.id).collect();
                    chunks.lacking.over_but(&open, seqno);
                    chunks.own.remove(&id)
                }
            }
        };
        self.chunks_changed();
        if is_own && self.phase() == Phase::NonPrimary {
            // It missed how the others were told.
            self.abandon_pending();
        }
        self.start_pacing();
        if let Some(trx) = client {
            let passed = (part == ChunkPart::End).then_some(seqno - 1);
            self.own_delivered(&trx, seqno, passed);
        } else if !self.setup.witness {
            if let ChunkPart::Data(n) = part {
                let c = &self.counters;
                c.received.fetch_add(1, Relaxed);
                let bytes = chunked.plan.chunk_len(n as usize) as u64;
                c.received_bytes.fetch_add(bytes, Relaxed);
            }
            self.enqueue(QueueItem {
                seqno,
                ordered: true,
                depends_on,
                exclusive: false,
                bytes: 0,
                value: Item::Chunk { chunked, part },
            });
            self.queue_grew();
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
                          is not the primary key, so they wait until it is over",
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
        let header = chunked.write_set.header();
        self.whose_transaction(header.source, header.trx_id, header.conn_id)
    }

    /// A large write set of a client here could not be cut.
    pub(super) fn tell_whole(&self, write_set: &WriteSet) {
        let header = write_set.header();
        let why = match Plan::of(write_set.payload(), 1 << chunk_log2(header.chunk)) {
            Err(WholeOnly::Short) => return,
            Err(why) => why.to_string(),
            Ok(_) => "its node gives a copy, or the others are joining, or large transactions that are not over \
                      have kept the log from being shortened for long"
                .to_owned(),
        };
        let bytes = write_set.payload_len();
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
                (o.chunked.clone(), o.next, o.moved.elapsed())
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
    ) -> Option<RemoteWriteSet> {
        let header = chunked.write_set.header();
        let history = *lock(&self.history);
        let lacking = lock(&self.chunks).lacking.contains(history, chunked.id);
        let mut ws = RemoteWriteSet {
            flags: chunked.flags(part),
            source: header.source,
            trx_id: chunked.trx_id(),
            conn_id: header.conn_id,
            depends_on,
            payload: Some(bytes::Bytes::new()),
            index: chunked.index,
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
                let payload = chunked.write_set.payload();
                ws.payload = chunked.plan.chunk(payload, n as usize);
            }
            ChunkPart::End if lacking => {
                ws.flags = header.flags;
                ws.trx_id = header.trx_id;
                ws.payload = Some(chunked.write_set.payload().clone());
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

    /// Makes durable what this database does not get in chunks. False: that
    /// failed, and the node leaves.
    fn note_lacking(&self) -> bool {
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
            file.write(&notes)?;
            lock(&self.chunks).lacking.written(notes);
        }
        Ok(())
    }

    /// The database is a fresh copy, with all that its donor had. The error is a
    /// sentence for the operator.
    pub(super) fn forget_lacking(&self) -> Result<(), String> {
        lock(&self.chunks).lacking.clear();
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
        let chunks = lock(&self.chunks);
        let is_open = |id| chunks.open.contains_key(&id);
        chunks.lacking.lacks_at(position, is_open)
    }

    /// The server throws away what it applied of transaction `victim`. True if
    /// that is one that comes in chunks: it is applied whole in the end.
    pub(super) fn thrown_away(&self, victim: u64) -> bool {
        let Some(id) = chunked_id_of(victim) else {
            return false;
        };
        let history = *lock(&self.history);
        let known = {
            let mut chunks = lock(&self.chunks);
            let known = chunks.lacking.contains(history, id);
            if !known {
                let is_open = chunks.open.contains_key(&id);
                let delivered = self.gates.last_ordered();
                chunks.lacking.thrown_away(history, id, is_open, delivered);
            }
            known
        };
        if !known {
            self.note(&format!(
                "the server gives up what it has of the large transaction that began at seqno {id}; it is applied \
                 whole at its end"
            ));
            self.note_lacking();
        }
        true
    }

    /// What is applied in chunks belongs to a connection to the cluster.
    pub(super) fn forget_chunks(&self) {
        lock(&self.chunks).open.clear();
        self.chunks_changed();
    }

    /// Wakes the thread that asks.
    pub(super) fn chunks_changed(&self) {
        lock(&self.chunks).changes += 1;
        self.chunks_more.notify_all();
    }

    /// Waits for a change after `seen`.
    fn wait_chunks(&self, seen: u64, limit: Duration) {
        let chunks = lock(&self.chunks);
        if chunks.changes == seen {
            drop(self.chunks_more.wait_timeout(chunks, limit));
        }
    }

    /// Starts the thread that asks, if there is something to ask for.
    pub(super) fn start_pacing(self: &Arc<Self>) {
        let mut chunks = lock(&self.chunks);
        if chunks.open.is_empty() || std::mem::replace(&mut chunks.pacing, true) {
            return;
        }
        drop(chunks);
        let node = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name("dromon-chunks".into())
            .spawn(move || pace(&node));
        if let Err(e) = thread {
            lock(&self.chunks).pacing = false;
            self.warn(&format!(
                "no thread that asks for the chunks of large transactions could be started: {e}; tried again every \
                 second. Until then they wait, with their clients, unless another member asks"
            ));
        }
    }

    /// How long no chunk of what `source` sent must have come, for this node to
    /// ask for the next one. None: it never does.
    fn asks_after(&self, source: Uuid) -> Option<Duration> {
        let shared = self.shared();
        let view = shared.view.as_ref()?;
        let able =
            |m: &Member| m.state == MemberState::Synced && !self.flow.is_quarantined(&m.uuid);
        let rank = |m: &Member| (!m.complete, !able(m), m.uuid == source, m.uuid);
        let with_data = || view.members.iter().filter(|m| !m.witness);
        let own = with_data().find(|m| m.uuid == shared.uuid)?;
        let before = with_data().filter(|m| rank(m) < rank(own)).count() as u32;
        Some(TAKE_OVER * before)
    }

    /// What to do next, and the change up to which that was looked at.
    fn next_step(&self) -> (Step, u64) {
        let (sources, seen) = {
            let mut chunks = lock(&self.chunks);
            if chunks.open.is_empty() {
                chunks.pacing = false;
                return (Step::End, 0);
            }
            let of = |o: &Open| (o.chunked.id, o.chunked.source());
            let sources: Vec<_> = chunks.open.values().map(of).collect();
            (sources, chunks.changes)
        };
        let after = |(id, source): &(Seqno, Uuid)| Some((*id, self.asks_after(*source)?));
        let after: Vec<(Seqno, Duration)> = sources.iter().filter_map(after).collect();
        let mut chunks = lock(&self.chunks);
        let mut mine = Vec::new();
        for (id, after) in after {
            let open = chunks.open.get_mut(&id);
            if let Some(open) = open.filter(|o| o.taken_over || o.moved.elapsed() >= after) {
                open.taken_over = !after.is_zero();
                mine.push(id);
            }
        }
        let due = |o: &Open| match o.asked {
            Some((n, at)) => n != o.next || at.elapsed() >= ASK_AGAIN,
            None => true,
        };
        let open = mine.iter().filter_map(|id| chunks.open.get(id));
        // The one that has waited longest: large ones share.
        let next = open.filter(|o| due(o)).min_by_key(|o| o.at.last().copied());
        let step = match next {
            None => Step::Wait(ASK_AGAIN / 4),
            Some(o) => Step::Ask {
                id: o.chunked.id,
                n: o.next,
                last: o.at.last().copied().unwrap_or(o.chunked.id),
                all_through: (o.at.len() == AHEAD).then(|| o.at[0]),
            },
        };
        (step, seen)
    }

    /// Asks for part `n` of `id` when it is its time.
    fn ask_for_chunk(&self, order: &Arc<dyn Order>, id: Seqno, n: u32) {
        // An error means full, or stopped: again in a while, as without an answer.
        let _ = order.propose(kind::CONTROL, 0, encode(&Control::Chunk { id, n }));
        if let Some(open) = lock(&self.chunks).open.get_mut(&id) {
            open.asked = Some((n, Instant::now()));
        }
    }

    /// A part is through here: who asks for the next one is told.
    pub(super) fn chunk_applied(&self) {
        self.report_progress();
        self.chunks_changed();
    }

    /// What part of the time chunks may take, if that is set: all of them together
    /// as much as so many clients that stream.
    fn chunks_share(&self) -> Option<f64> {
        let share = self.settings().bulk_bound?;
        let (chunked, streaming) = (self.count_chunked().max(1), self.count_streaming());
        Some(share * chunked as f64 / (chunked + streaming) as f64)
    }

    /// Waits until the chunk behind that at `last` may come (see the module's
    /// text), and that at `all_through` is applied everywhere.
    fn wait_for_turn(
        &self,
        waiter: &Arc<Waiter>,
        turns: &mut Turns,
        (since, at): (Instant, Seqno),
        last: Seqno,
        all_through: Option<Seqno>,
    ) -> bool {
        let by = |wait| Some(Instant::now() + wait);
        let through = |seqno, wait| {
            self.gates
                .wait_released(seqno, waiter, false, by(wait))
                .is_ok()
        };
        if !through(last - 1, ASK_AGAIN) {
            return false;
        }
        let in_its_turn = Instant::now();
        if self.newest_small.load(Relaxed) > last {
            if !through(last, ASK_AGAIN) {
                return false;
            }
            let applied = Instant::now();
            let share = self.chunks_share();
            let mut cycle = Cycle {
                blocked: applied - in_its_turn,
                way: lock(&self.chunks).way,
                share,
                ..Cycle::default()
            };
            let mut tail = None;
            loop {
                let released = self.gates.released();
                cycle.elapsed = since.elapsed();
                cycle.turn = applied.elapsed();
                // The chunk is one of them.
                cycle.passed = (released - at - 1).max(0) as u64;
                let Some((passed, left)) = turns.wait(&cycle) else {
                    break;
                };
                // Those that waited come first: at what pace others come, says the last third.
                let measured = passed == u64::MAX && tail.is_none();
                let until = at.saturating_add_unsigned(passed.saturating_add(1));
                let by = Some(Instant::now() + if measured { left * 2 / 3 } else { left });
                if self.gates.wait_released(until, waiter, false, by) == Err(WaitError::Closed) {
                    return false;
                }
                if measured {
                    tail = Some((Instant::now(), self.gates.released()));
                }
            }
            let now = self.gates.released();
            turns.over(tail.map(|(from, at)| (from.elapsed(), (now - at).max(0) as u64)));
        }
        let deadline = Instant::now() + ASK_AGAIN;
        while let Some(all) = all_through {
            let seen = lock(&self.chunks).changes;
            if self.flow.lowest_released().is_none_or(|low| low >= all) {
                break;
            }
            if Instant::now() >= deadline {
                return false;
            }
            // Reports wake it.
            self.wait_chunks(seen, ASK_AGAIN / 4);
        }
        self.flow.wait_unpaused(waiter)
    }
}

/// Asks for chunks until nothing is open.
fn pace(node: &Weak<Node>) {
    let waiter = Arc::new(Waiter::new());
    let mut turns = Turns::default();
    // When a chunk was asked for last, and what was finished then.
    let mut asked = None;
    loop {
        let Some(node) = node.upgrade() else { return };
        let (step, seen) = node.next_step();
        match step {
            Step::End => return,
            Step::Wait(time) => node.wait_chunks(seen, time),
            Step::Ask {
                id,
                n,
                last,
                all_through,
            } => match node.order() {
                Some(order) if node.serving() => {
                    let now = || (Instant::now(), node.gates.released());
                    let since = *asked.get_or_insert_with(now);
                    match node.wait_for_turn(&waiter, &mut turns, since, last, all_through) {
                        true => {
                            asked = Some(now());
                            node.ask_for_chunk(&order, id, n);
                        }
                        // The gates may be closed already.
                        false => node.wait_chunks(seen, ASK_AGAIN / 4),
                    }
                }
                _ => node.wait_chunks(seen, ASK_AGAIN / 4),
            },
        }
    }
}
