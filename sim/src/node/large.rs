//! Large transactions in chunks, as the server's node does it: who applies
//! what, what a database lacks, and who asks for the next chunk.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::cluster::{ChunkPart, Chunked, Member, MemberState};
use dromon_node::messages::Control;
use dromon_writeset::{Seqno, Uuid};
use tokio::time::Instant;
use twox_hash::XxHash3_64;

use super::clients::Cargo;
use super::{Entry, Fate, Inner, Phase, Session, Stage, Work};
use crate::database::{Database, LostUpdate, Op};
use crate::large;
use crate::oracle::{Part, Placed};
use crate::plant::Plant;

/// A request for a chunk that is not answered by the order is made again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// If nothing came for so long, the next member in line asks, and so on.
const TAKE_OVER: Duration = Duration::from_secs(2);
/// Counters that only large transactions touch: the first, and how many.
const WIDE_KEYS: (u32, u64) = (2_000, 60);

/// How far a large transaction is, and who asks for the next chunk.
pub(super) struct Pace {
    source: Uuid,
    /// The part that comes next.
    next: u32,
    /// Where the newest stands, and when it came.
    last: Seqno,
    moved: Instant,
    /// That lies ahead.
    ahead: bool,
    asked: Option<(u32, Instant)>,
    /// Nobody asked for long, so this node does, to the end.
    taken_over: bool,
}

impl Session {
    /// A part of a large transaction took its place.
    pub(super) fn chunk(
        self: &Arc<Self>,
        inner: &mut Inner,
        (index, term): (u64, u64),
        (seqno, depends_on): (Seqno, Seqno),
        chunked: Arc<Chunked>,
        part: ChunkPart,
    ) {
        inner.positions.ordered(seqno);
        let id = chunked.id;
        let Some(payload) = self.payload_of(&chunked) else {
            return;
        };
        let txn = match large::decode(&payload) {
            Ok(txn) => txn,
            Err(why) => {
                let what = format_args!("the large payload of seqno {id} cannot be read: {why}");
                return self.shared.unsound(self.host.slot, what);
            }
        };
        let keys: Vec<u32> = txn.ops.iter().map(Op::key).collect();
        self.part_placed(index, seqno, &chunked, part, txn.id, &keys);
        let client = match part {
            ChunkPart::Data(n) => {
                if n == 0 && chunked.source() == self.uuid {
                    self.begins_here(inner, &chunked, &keys);
                }
                let pace = inner.paces.entry(id).or_insert_with(|| Pace {
                    source: chunked.source(),
                    next: 0,
                    last: 0,
                    moved: Instant::now(),
                    ahead: false,
                    asked: None,
                    taken_over: false,
                });
                (pace.next, pace.last, pace.moved) = (n + 1, seqno, Instant::now());
                pace.ahead = false;
                None
            }
            ChunkPart::End | ChunkPart::Rollback => {
                inner.paces.remove(&id);
                let open: Vec<Seqno> = inner.state.chunked().map(|(c, _)| c.id).collect();
                self.host.database().over_but(&open, seqno);
                inner.own_large.remove(&id)
            }
        };
        match client {
            Some(client) if part == ChunkPart::Rollback => {
                // The client rolls back; its place passes by itself.
                inner.positions.cancel(seqno);
                self.catch_up_database(inner);
                let _ = client.tell.send(Fate::Failed);
            }
            local => {
                let own = local.is_some();
                if let Some(begun) = inner.entries.get_mut(&seqno) {
                    // Ahead of its place, which is here.
                    (begun.index, begun.term) = (index, term);
                    return;
                }
                let entry = Entry {
                    index,
                    term,
                    depends_on,
                    stage: if own { Stage::Running } else { Stage::Waiting },
                    work: match own {
                        true => Work::Whole(txn),
                        false => Work::Part(chunked, part),
                    },
                    local,
                };
                inner.order(seqno, entry);
                if own {
                    let pause = inner.rng.ms(0, 3);
                    self.run_for(seqno, pause);
                }
            }
        }
    }

    /// A part of a large transaction will take its place at `place`. Now and then
    /// this node begins with it.
    pub(super) fn chunk_ahead(
        self: &Arc<Self>,
        inner: &mut Inner,
        (index, term): (u64, u64),
        (place, depends_on): (Seqno, Seqno),
        chunked: Arc<Chunked>,
        part: ChunkPart,
    ) {
        let next = match part {
            ChunkPart::Data(n) => n + 1,
            ChunkPart::End | ChunkPart::Rollback => chunked.chunks() + 1,
        };
        if let Some(pace) = inner.paces.get_mut(&chunked.id) {
            (pace.next, pace.last, pace.moved) = (next, place, Instant::now());
            pace.ahead = true;
        }
        self.shared.count(|c| c.ahead += 1);
        let own = inner.own_large.contains_key(&chunked.id);
        if !own && !inner.witness && inner.large_rng.chance(500) {
            let entry = Entry {
                index,
                term,
                depends_on,
                stage: Stage::Waiting,
                work: Work::Part(chunked, part),
                local: None,
            };
            inner.order(place, entry);
        }
    }

    /// The first chunk of what came from this node: if its client still waits,
    /// the database has the whole, open.
    fn begins_here(&self, inner: &mut Inner, chunked: &Chunked, keys: &[u32]) {
        let Some(client) = inner.pending.remove(&chunked.tag) else {
            return;
        };
        let history = inner.state.position().history;
        self.host.database().lacks(history, chunked.id);
        inner.own_large.insert(chunked.id, client);
        if self.shared.planted_everywhere(Plant::LocksDropped) {
            inner.locks.retain(|k| !keys.contains(k));
        }
    }

    fn part_placed(
        &self,
        index: u64,
        seqno: Seqno,
        chunked: &Chunked,
        part: ChunkPart,
        txn: u64,
        keys: &[u32],
    ) {
        let id = chunked.id;
        self.note(format_args!(
            "seqno {seqno} at {index}: txn {txn}, {part:?} of {} chunks from {id} on",
            chunked.chunks()
        ));
        let header = chunked.write_set.header();
        let words = [
            header.trx_id,
            header.last_seen as u64,
            chunked.write_set.payload_sum(),
            id as u64,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let ends = part == ChunkPart::End;
        let placed = Placed {
            txn: ends.then_some(txn),
            keys: if ends { keys.to_vec() } else { Vec::new() },
            event: XxHash3_64::oneshot_with_seed(index, &bytes),
            verdict: format!("{part:?} of {}", chunked.chunks()),
            part: match part {
                ChunkPart::Data(0) => Part::Opens {
                    txn,
                    keys: keys.to_vec(),
                },
                ChunkPart::Data(_) => Part::None,
                ChunkPart::End => Part::Ends(id),
                ChunkPart::Rollback => Part::Drops(id),
            },
        };
        let mut oracles = self.shared.oracles();
        oracles.delivered(self.host.slot, seqno, placed);
    }

    /// The database does `part` in its turn. Answers which transaction it
    /// committed, if it did, and whether that overwrote what it had not seen.
    pub(super) fn part(
        &self,
        db: &mut Database,
        history: Uuid,
        seqno: Seqno,
        chunked: &Chunked,
        part: ChunkPart,
    ) -> (u64, Result<(), LostUpdate>) {
        let id = chunked.id;
        let lacking = db.is_lacking(history, id);
        match part {
            ChunkPart::Data(n) if lacking => {
                // Before the position can pass it.
                if n == 0 && !self.shared.planted_everywhere(Plant::LackingForgotten) {
                    db.write_notes();
                }
                db.now.pass(seqno);
            }
            ChunkPart::Data(n) => {
                let chunk = self.chunk_of(chunked, n as usize).unwrap_or_default();
                match large::rows(&chunk) {
                    Ok(rows) => db.now.chunk(seqno, id, chunked.source(), &rows),
                    Err(why) => {
                        let what = format_args!("chunk {n} of seqno {id} cannot be applied: {why}");
                        self.shared.unsound(self.host.slot, what);
                        db.now.pass(seqno);
                    }
                }
            }
            ChunkPart::End if lacking => {
                self.shared.count(|c| c.whole += 1);
                // It could be read when it was ordered.
                if let Some(Ok(txn)) = self.payload_of(chunked).map(|p| large::decode(&p)) {
                    return (txn.id, db.now.commit(seqno, &txn));
                }
            }
            ChunkPart::End => return db.now.end(seqno, id),
            ChunkPart::Rollback => {
                if !lacking && !self.shared.planted_everywhere(Plant::RollbackIgnored) {
                    db.now.uncommitted.remove(&id);
                }
                db.now.pass(seqno);
            }
        }
        (0, Ok(()))
    }

    /// Now and then what was just committed needs a lock that no key names: the
    /// server throws away what it has of a large transaction.
    pub(super) fn throw_away(&self, inner: &mut Inner) {
        let Some(large) = self.shared.settings.large else {
            return;
        };
        let history = inner.state.position().history;
        let mut db = self.host.database();
        let Some(id) = db.now.uncommitted.keys().next().copied() else {
            return;
        };
        // Its end may have its place already.
        let is_open = inner.state.chunked().any(|(c, _)| c.id == id);
        let missed = !is_open && self.shared.planted_everywhere(Plant::EndMissed);
        if inner
            .large_rng
            .chance(if missed { 500 } else { large.thrown })
        {
            self.note(format_args!("throws away the chunks from {id} on"));
            self.shared.count(|c| c.thrown += 1);
            let durably = !self.shared.planted_everywhere(Plant::RowsComeBack);
            db.throw_away(
                history,
                id,
                is_open || missed,
                inner.positions.last_ordered(),
                durably,
            );
        }
    }

    /// Asks for the next chunks of what is open.
    pub(super) async fn pace(self: Arc<Self>) {
        let Some(large) = self.shared.settings.large else {
            return;
        };
        loop {
            let pause = {
                let most = large.pause.as_millis() as u64;
                self.inner().large_rng.ms(1, most)
            };
            tokio::time::sleep(pause).await;
            let next = {
                let mut inner = self.inner();
                let ahead = match inner.large_rng.below(3) {
                    0 => 0,
                    _ => inner.large_rng.range(1, 40) as u32,
                };
                self.next_chunk(&mut inner).map(|next| (next, ahead))
            };
            if let Some(((id, n), ahead)) = next {
                // If it cannot be said now: again in a while.
                self.say(&Control::Chunk { id, n, ahead });
            }
        }
    }

    /// The part that this node is to ask for now: see `asks_after`. Several large
    /// transactions take turns.
    fn next_chunk(&self, inner: &mut Inner) -> Option<(Seqno, u32)> {
        let silent = self.shared.planted(Plant::AskerSilent, self.host.slot);
        if inner.phase != Phase::Joined || inner.held || silent {
            return None;
        }
        let mut paces = std::mem::take(&mut inner.paces);
        let mut due = None;
        for (id, pace) in &mut paces {
            let Some(after) = self.asks_after(inner, pace.source) else {
                continue;
            };
            if !pace.taken_over && pace.moved.elapsed() < after {
                continue;
            }
            pace.taken_over = !after.is_zero();
            let asked = pace.asked.filter(|(n, _)| *n == pace.next);
            let again = asked.is_none_or(|(_, at)| at.elapsed() >= ASK_AGAIN);
            if again && due.is_none_or(|(last, _)| pace.last < last) {
                due = Some((pace.last, *id));
            }
        }
        let next = due.and_then(|(last, id)| {
            // What came behind the one before goes first.
            let behind = inner.positions.last_ordered() > last;
            let through = if behind { last } else { last - 1 };
            let pace = paces.get_mut(&id)?;
            // What lies ahead may be as far as it gets.
            let turn = pace.ahead || inner.positions.released() >= through;
            turn.then(|| {
                pace.asked = Some((pace.next, Instant::now()));
                (id, pace.next)
            })
        });
        inner.paces = paces;
        next
    }

    /// How long no chunk of what `source` sent must have come, for this node to
    /// ask for the next one. None: it never does.
    fn asks_after(&self, inner: &Inner, source: Uuid) -> Option<Duration> {
        let able = |m: &Member| m.state == MemberState::Synced;
        let rank = |m: &Member| (!m.complete, !able(m), m.uuid == source, m.uuid);
        let with_data = || inner.state.members().filter(|m| !m.witness);
        let own = with_data().find(|m| m.uuid == self.uuid)?;
        let before = with_data().filter(|m| rank(m) < rank(own)).count();
        let never = before > 0 && self.shared.planted_everywhere(Plant::AskerSilent);
        (!never).then_some(TAKE_OVER * before as u32)
    }

    /// Whether the next transaction is a large one.
    pub(super) fn wants_large(&self) -> bool {
        let large = self.shared.settings.large;
        large.is_some_and(|l| self.inner().large_rng.chance(l.permille))
    }

    /// Like `transaction`, with many counters, of which some are fought over.
    pub(super) async fn large_transaction(self: &Arc<Self>, conn: u64) {
        let Some(large) = self.shared.settings.large else {
            return;
        };
        let (keys, think, last_seen) = {
            let mut inner = self.inner();
            let hot = self.shared.settings.hot_keys;
            let rng = &mut inner.large_rng;
            let few = rng.range(0, 2);
            let many = rng.range(6, 15);
            let mut keys: Vec<u32> = (0..few).map(|_| rng.below(hot) as u32).collect();
            keys.extend((0..many).map(|_| WIDE_KEYS.0 + rng.below(WIDE_KEYS.1) as u32));
            keys.sort_unstable();
            keys.dedup();
            let first = rng.below(keys.len() as u64) as usize;
            keys.rotate_left(first);
            let think = rng.ms(0, 30);
            if keys.iter().any(|k| inner.locks.contains(k)) {
                return;
            }
            inner.locks.extend(&keys);
            (keys, think, inner.positions.released())
        };
        let cargo = Cargo::Large { chunk: large.chunk };
        self.update(conn, &keys, think, cargo, last_seen).await;
        self.inner().locks.retain(|k| !keys.contains(k));
    }
}
