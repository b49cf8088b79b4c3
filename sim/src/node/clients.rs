//! The load: clients that read, think and write, statements that every node
//! runs alone, and reads that must be current.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dromon_node::cluster::{CHUNK_CLOSES, MemberState};
use dromon_node::messages::kind;
use dromon_order::{Order, OrderStatus, RaftId};
use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Seqno};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Fate, Inner, Pending, Phase, Session};
use crate::database::{Op, Txn};
use crate::large;
use crate::net::slot_of;
use crate::plant::Plant;
use crate::rng::Rng;

/// How long a current read may take.
const READ_WAIT: Duration = Duration::from_millis(800);
/// Counters that statements bump, one per table.
const STATEMENT_KEYS: u32 = 1_000;
/// Tables that the counters are spread over.
const TABLES: u32 = 3;

/// How a transaction travels.
#[derive(Clone, Copy)]
pub(super) enum Cargo {
    /// As one write set that every node applies whole.
    Small {
        /// Bytes beside its operations.
        filler: usize,
    },
    /// Applied in chunks of 2 to this many bytes.
    Large {
        /// That many.
        chunk: u8,
    },
}

impl Session {
    /// One client's session: one thing after the other, until the node stops
    /// serving it.
    pub(super) async fn client(self: Arc<Self>, number: u64) {
        loop {
            let pause = {
                let think = self.shared.settings.think.as_millis() as u64;
                self.inner().rng.ms(1, think)
            };
            tokio::time::sleep(pause).await;
            if !self.shared.clients_on.load(Ordering::Relaxed) || !self.serves() {
                continue;
            }
            let dice = self.inner().rng.below(100);
            match dice {
                0..2 => self.statement(number).await,
                2..18 => self.current_read().await,
                _ => self.transaction(number).await,
            }
        }
    }

    /// Whether clients may write here now.
    fn serves(&self) -> bool {
        let inner = self.inner();
        // What this node's clients gave up may be ordered just before it came
        // back; its server is told that it is synced behind all that.
        let back_at = inner.joined.as_ref().map(|(v, _)| v.position.seqno);
        inner.phase == Phase::Joined
            && inner.own_state == MemberState::Synced
            && !inner.held
            && back_at.is_none_or(|at| inner.positions.released() >= at)
    }

    /// Reads a few counters, thinks, and writes them one higher. Like rows in a
    /// database, the counters are locked against this node's other clients:
    /// certification does not compare write sets of one node.
    async fn transaction(self: &Arc<Self>, conn: u64) {
        if self.wants_large() {
            return self.large_transaction(conn).await;
        }
        let (keys, think, filler, last_seen) = {
            let mut inner = self.inner();
            let hot = self.shared.settings.hot_keys;
            let n = inner.rng.range(1, 3);
            let mut keys: Vec<u32> = (0..n).map(|_| inner.rng.below(hot) as u32).collect();
            keys.sort_unstable();
            keys.dedup();
            if keys.iter().any(|k| inner.locks.contains(k)) {
                return;
            }
            inner.locks.extend(&keys);
            let filler = if inner.rng.chance(30) {
                let piece = self.shared.settings.piece as u64;
                inner.rng.range(piece, piece * 4) as usize
            } else {
                inner.rng.below(60) as usize
            };
            let think = inner.rng.ms(0, 15);
            (keys, think, filler, inner.positions.released())
        };
        let cargo = Cargo::Small { filler };
        self.update(conn, &keys, think, cargo, last_seen).await;
        self.inner().locks.retain(|k| !keys.contains(k));
    }

    pub(super) async fn update(
        self: &Arc<Self>,
        conn: u64,
        keys: &[u32],
        think: Duration,
        cargo: Cargo,
        mut last_seen: Seqno,
    ) {
        let ops: Vec<Op> = {
            let db = self.host.database();
            let seen = |key| db.now.rows.get(&key).copied().unwrap_or(0);
            keys.iter()
                .map(|&key| Op::Bump {
                    key,
                    seen: seen(key),
                })
                .collect()
        };
        tokio::time::sleep(think).await;
        let mut set = KeyCollector::new();
        for &key in keys {
            let how = if key % 4 == 0 {
                KeyType::Exclusive
            } else {
                KeyType::Update
            };
            let table = table_name(key);
            let row = format!("k{key}");
            // Three parts: it cannot be refused as empty.
            let _ = set.add(&[b"db", table.as_bytes(), row.as_bytes()], how);
            let parent = format!("p{}", key % 2);
            let _ = set.add(&[b"db", b"parents", parent.as_bytes()], KeyType::Reference);
        }
        let mut flags = Flags::TRX_START | Flags::TRX_END;
        if self.inner().rng.chance(15) {
            flags |= Flags::PA_UNSAFE;
        }
        if self.shared.planted_everywhere(Plant::LateStamp) {
            last_seen = self.inner().positions.released();
        }
        self.send(conn, ops, cargo, flags, last_seen, set).await;
    }

    /// Something that every node runs itself, alone, at its place.
    async fn statement(self: &Arc<Self>, conn: u64) {
        let (table, last_seen) = {
            let mut inner = self.inner();
            let table = inner.rng.below(u64::from(TABLES)) as u32;
            (table, inner.positions.released())
        };
        let mut set = KeyCollector::new();
        let name = table_name(table);
        // Two parts: it cannot be refused as empty.
        let _ = set.add(&[b"db", name.as_bytes()], KeyType::Exclusive);
        let ops = vec![Op::Add {
            key: STATEMENT_KEYS + table,
        }];
        let flags = Flags::TRX_START | Flags::TRX_END | Flags::ISOLATION;
        let cargo = Cargo::Small { filler: 0 };
        self.send(conn, ops, cargo, flags, last_seen, set).await;
    }

    /// Sends a write set and waits for what becomes of it.
    async fn send(
        self: &Arc<Self>,
        conn: u64,
        ops: Vec<Op>,
        cargo: Cargo,
        flags: Flags,
        last_seen: Seqno,
        set: KeyCollector,
    ) {
        if !self.serves() {
            return;
        }
        let Some(engine) = self.engine() else { return };
        let id = self.shared.oracles().new_txn();
        let (filler, chunk) = match cargo {
            Cargo::Small { filler } => (noise(id, filler), 0),
            Cargo::Large { chunk } => (Vec::new(), chunk),
        };
        let txn = Txn { id, ops, filler };
        let payload = match chunk {
            0 => postcard::to_allocvec(&txn).unwrap_or_default(),
            _ => large::encode(&txn, chunk),
        };
        let header = Header {
            flags,
            source: self.uuid,
            trx_id: if flags.is_toi() { u64::MAX } else { id },
            conn_id: conn,
            last_seen,
            prev_fragment: -1,
            chunk: match chunk {
                1.. if id.is_multiple_of(5) => chunk | CHUNK_CLOSES,
                _ => chunk,
            },
        };
        let body = dromon_writeset::encode(&header, &set, &payload);
        let (tell, told) = oneshot::channel();
        let voters = engine.status().members.configs;
        let tag = {
            let mut inner = self.inner();
            inner.next_tag += 1;
            let tag = inner.next_tag;
            let pending = Pending {
                last_seen,
                txn: id,
                voters,
                tell,
            };
            inner.pending.insert(tag, pending);
            tag
        };
        let slot = self.host.slot;
        if self.shared.planted(Plant::RefusesWrites, slot)
            || engine.propose(kind::WRITE_SET, tag, body).is_err()
        {
            self.inner().pending.remove(&tag);
            // Its client is told that it was rolled back.
            self.shared.oracles().taken_back(id);
            return;
        }
        if self.shared.planted_everywhere(Plant::AckAtPropose) {
            self.shared.oracles().acked(self.host.slot, id, None);
        }
        // `Err`: the node gave up waiting, and nobody knows.
        match told.await {
            Ok(Fate::Failed) => self.shared.count(|c| c.refused += 1),
            Ok(Fate::Committed) | Err(_) => {}
        }
    }

    /// A read that must see everything acknowledged before it began.
    async fn current_read(self: &Arc<Self>) {
        let Some(engine) = self.engine().cloned() else {
            return;
        };
        let slot = self.host.slot;
        self.shared.oracles().read_asked(slot);
        if self.shared.planted(Plant::ReadsUnanswered, slot) {
            return;
        }
        let began_us = self.shared.now_us();
        let floor = self.shared.oracles().read_begins(slot);
        let deadline = Instant::now() + READ_WAIT;
        let status = engine.status();
        let leads = self.shared.planted_everywhere(Plant::LeaderRead) && status.is_leader;
        let index = if leads || self.shared.planted_everywhere(Plant::LocalRead) {
            status.committed
        } else {
            let (tx, rx) = oneshot::channel();
            engine.read_index_then(
                READ_WAIT,
                Box::new(move |answer| {
                    // A reader that went away does not ask any more.
                    let _ = tx.send(answer);
                }),
            );
            match rx.await {
                Ok(Ok(index)) => index,
                _ => return,
            }
        };
        let heard = self.shared.net.may_have_answered(slot, began_us);
        let answered = may_answer(slot, &status, &engine.status(), &heard);
        self.shared
            .oracles()
            .read_index(slot, floor, index, !answered);
        self.shared.count(|c| c.reads += 1);
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(wanted) = self.wait(left, |i| seqno_at(i, index)).await else {
            return;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let reached = self
            .wait(left, |i| {
                let released = i.positions.released();
                (released >= wanted).then_some(released)
            })
            .await;
        if let (Some(seqno), true) = (reached, self.serves()) {
            self.note(format_args!("reads at {seqno} by index {index}"));
            self.shared.oracles().read_done(slot, floor, seqno);
        }
        // Readers do not come all at once.
        let pause = self.inner().rng.ms(1, 5);
        let _ = timeout_at(deadline, tokio::time::sleep(pause)).await;
    }
}

/// Whether the node in `slot` may know a current index, with `heard` those that
/// may have answered it since the question. `before` and `after` are what its
/// order knew then and knows now.
///
/// A leader needs a majority of the voters; whoever else asks needs the
/// leader, whoever that is.
fn may_answer(
    slot: usize,
    before: &OrderStatus,
    after: &OrderStatus,
    heard: &BTreeSet<usize>,
) -> bool {
    let same = before.term == after.term && before.members == after.members;
    if !(before.is_leader && after.is_leader && same) {
        return !heard.is_empty() || after.members.voters().len() <= 1;
    }
    let spoke = |id: &RaftId| {
        let addr = after.members.addrs.get(id);
        let at = addr.and_then(|a| slot_of(a));
        at.is_none_or(|at| at == slot || heard.contains(&at))
    };
    let mut configs = after.members.configs.iter();
    configs.all(|voters| 2 * voters.iter().filter(|id| spoke(id)).count() > voters.len())
}

/// The last seqno at or before log index `index`, once that is delivered.
fn seqno_at(inner: &mut Inner, index: u64) -> Option<Seqno> {
    if inner.index < index {
        return None;
    }
    let at = inner.seqnos.partition_point(|(i, _)| *i <= index);
    let pair = at.checked_sub(1).and_then(|at| inner.seqnos.get(at));
    // Older than the session: the present is late enough.
    Some(pair.map_or(inner.state.position().seqno, |(_, s)| *s))
}

fn table_name(key: u32) -> String {
    format!("t{}", key % TABLES)
}

fn noise(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(id, &[0xf111]);
    (0..len).map(|_| rng.u64() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::addr_of;

    /// Five voters, of which number `n` stands at slot `n - 1`.
    fn status(is_leader: bool, term: u64) -> OrderStatus {
        let mut status = OrderStatus {
            is_leader,
            term,
            ..OrderStatus::default()
        };
        status.members.configs = vec![(1..=5).collect()];
        status.members.addrs = (1..=5).map(|id| (id, addr_of(id as usize - 1))).collect();
        status
    }

    #[test]
    fn a_leader_needs_a_majority_and_others_need_somebody() {
        let none = BTreeSet::new();
        let one = BTreeSet::from([3]);
        let two = BTreeSet::from([3, 4]);
        let (leads, follows) = (status(true, 2), status(false, 2));
        assert!(!may_answer(0, &leads, &leads, &one));
        assert!(may_answer(0, &leads, &leads, &two));
        assert!(!may_answer(0, &follows, &follows, &none));
        assert!(may_answer(0, &follows, &follows, &one));
        // It may have asked another leader before it led itself.
        assert!(may_answer(0, &follows, &leads, &one));
        assert!(may_answer(0, &status(true, 1), &leads, &one));
        let mut joint = leads.clone();
        joint.members.configs.push(BTreeSet::from([1]));
        assert!(may_answer(0, &joint, &joint, &two));
        assert!(!may_answer(0, &joint, &joint, &one));
        joint.members.configs = vec![BTreeSet::from([1])];
        assert!(may_answer(0, &joint, &joint, &none), "it is alone");
    }
}
