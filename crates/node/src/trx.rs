//! A transaction of this node, or an event the server is applying.
//!
//! ```text
//!  Executing ─certify─> Waiting ─sent─> Sent ─delivered─> Certified ─enter─> Committing ─leave─> Left ─release─> gone
//!      ^                   │ BF           │                  │ BF               ^
//!      │                   v              └──> Failed ──enter┼──> Committing    │
//!      │              (not ordered)                          v                  │
//!      └── next fragment                                MustReplay ─> Replaying ┘
//!
//!  Sent ─first chunk─> Chunked ─end─> Certified, or ─rollback─> Failed
//!                        │ BF: the server rolls back and replays; the replay waits for the end
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use bytes::Bytes;
use dromon_gates::Waiter;
use dromon_writeset::{Flags, KeyCollector, KeyHash, Seqno};

use crate::spool::Collected;

/// What the object stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A transaction of one of this node's clients.
    Local,
    /// A statement in total order isolation of one of this node's clients.
    Toi,
    /// An event that came from the order and is being applied.
    Remote,
}

/// What is known of a write set that its node waits for no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// Nothing: it was sent, and may be ordered now or later.
    Sent,
    /// It was not sent, and never will be.
    TakenBack,
    /// What was to be sent is not what the client wrote: it is not ordered, now or later.
    Spoilt,
}

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Collecting keys and data.
    Executing,
    /// In `certify`, not yet handed to the order.
    Waiting,
    /// Handed to the order.
    Sent,
    /// Passed certification, and is applied elsewhere in chunks: its own place
    /// comes behind the last one.
    Chunked,
    /// Ordered, and passed certification.
    Certified,
    /// Ordered, and failed certification.
    Failed,
    /// Gave way after it passed; will be replayed.
    MustReplay,
    /// Being replayed.
    Replaying,
    /// Inside the commit gate.
    Committing,
    /// Has left the commit gate.
    Left,
}

/// A transaction or event; shared between the server's handle and the node.
#[derive(Debug)]
pub struct Trx {
    /// The server's number for it; unique only within this process.
    pub id: u64,
    /// What it stands for.
    pub kind: Kind,
    /// What its thread sleeps on.
    pub waiter: Arc<Waiter>,
    /// It waits for a table that is closed, before it is sent.
    pub waits_for_table: AtomicBool,
    body: Mutex<Body>,
}

/// The changing part.
#[derive(Debug)]
pub struct Body {
    /// How far it has got.
    pub stage: Stage,
    /// Keys collected.
    pub keys: KeyCollector,
    /// Data collected.
    pub data: Collected,
    /// Flags of the write set last sent.
    pub flags: Flags,
    /// The connection that sent it.
    pub conn: u64,
    /// Its place; -1 if not ordered.
    pub seqno: Seqno,
    /// Its dependency; -1 if it failed or is not ordered.
    pub depends_on: Seqno,
    /// Another transaction asked it to give way.
    pub must_abort: bool,
    /// That was a statement in total order isolation, which tells nobody else.
    pub gives_way_to_ddl: bool,
    /// It waits, before it is sent or as it failed, and may be in an applier's way (`node/standing.rs`).
    pub refused: bool,
    /// Applying it failed, here and everywhere.
    pub failed_alike: bool,
    /// Nobody waits for its place any more.
    pub abandoned: Option<Abandoned>,
    /// The data as sent, for a replay.
    pub payload: Bytes,
    /// Its checksum, if it lies in a file.
    pub payload_sum: Option<u64>,
    /// Where the write set is in the log, once it is ordered.
    pub index: u64,
    /// Seqno of its last fragment; -1 if none was ordered.
    pub last_fragment: Seqno,
    /// The tables that its fragments name.
    pub tables: BTreeSet<KeyHash>,
    /// The thread that has brought it through commit order, by the system's number.
    pub thread: u32,
    /// When a large write set was handed to the order.
    pub sent_at: Option<Instant>,
}

impl Trx {
    /// A transaction that has not done anything yet.
    pub fn local(id: u64, kind: Kind, key_escalation: usize) -> Arc<Self> {
        Arc::new(Trx {
            id,
            kind,
            waiter: Arc::new(Waiter::new()),
            waits_for_table: AtomicBool::new(false),
            body: Mutex::new(Body {
                stage: Stage::Executing,
                keys: KeyCollector::with_escalation(key_escalation),
                data: Collected::default(),
                flags: Flags::NONE,
                conn: u64::MAX,
                seqno: -1,
                depends_on: -1,
                must_abort: false,
                gives_way_to_ddl: false,
                refused: false,
                failed_alike: false,
                abandoned: None,
                payload: Bytes::new(),
                payload_sum: None,
                index: 0,
                last_fragment: -1,
                tables: BTreeSet::new(),
                thread: 0,
                sent_at: None,
            }),
        })
    }

    /// An event from the order, ready to be applied.
    pub fn remote(id: u64, seqno: Seqno) -> Arc<Self> {
        let trx = Trx::local(id, Kind::Remote, usize::MAX);
        {
            let mut body = trx.lock();
            body.seqno = seqno;
            body.stage = Stage::Certified;
        }
        trx
    }

    /// The changing part.
    pub fn lock(&self) -> MutexGuard<'_, Body> {
        // A panic inside leaves a transaction that can still be rolled back.
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same if nobody has it now. A client that writes to a disk has it as long as that takes.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Body>> {
        match self.body.try_lock() {
            Ok(body) => Some(body),
            Err(TryLockError::Poisoned(body)) => Some(body.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Body {
    /// Whether its commit is the end of the transaction.
    pub fn ends(&self) -> bool {
        self.flags.ends()
    }

    /// Whether it is a fragment that passed: to roll it back here is this node's own doing, which the others
    /// hear of by another write set. One that was refused is nobody's everywhere.
    pub fn is_fragment_that_passed(&self) -> bool {
        self.seqno >= 0 && self.depends_on >= 0 && !self.ends()
    }

    /// The tables that it must leave to a stream that is shelved here. A statement in
    /// total order isolation ends that stream.
    pub fn names(&self) -> Vec<KeyHash> {
        match self.flags.is_toi() {
            true => Vec::new(),
            false => self.keys.named_tables(),
        }
    }

    /// The tables that it names, in this write set and in its fragments before.
    pub fn all_tables(&self) -> impl Iterator<Item = KeyHash> {
        let before = self.tables.iter().copied();
        before.chain(self.keys.named_tables())
    }

    /// Makes it ready for the next fragment.
    pub fn next_fragment(&mut self) {
        self.tables.extend(self.keys.named_tables());
        self.keys.clear();
        self.data = Collected::default();
        self.payload = Bytes::new();
        self.payload_sum = None;
        self.last_fragment = self.seqno;
        self.seqno = -1;
        self.depends_on = -1;
        self.stage = Stage::Executing;
    }
}

const SHARDS: usize = 16;

/// The transactions of this node by the server's number.
#[derive(Debug)]
pub struct TrxMap {
    shards: [Mutex<HashMap<u64, Arc<Trx>>>; SHARDS],
}

impl Default for TrxMap {
    fn default() -> Self {
        TrxMap {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
        }
    }
}

impl TrxMap {
    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, Arc<Trx>>> {
        // Only whole insertions and removals happen under the lock.
        self.shards[id as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a transaction.
    pub fn insert(&self, trx: Arc<Trx>) {
        self.shard(trx.id).insert(trx.id, trx);
    }

    /// Finds one.
    pub fn get(&self, id: u64) -> Option<Arc<Trx>> {
        self.shard(id).get(&id).cloned()
    }

    /// Forgets one, if it is still this one that goes by its number.
    pub fn remove(&self, trx: &Arc<Trx>) {
        let mut shard = self.shard(trx.id);
        if shard.get(&trx.id).is_some_and(|t| Arc::ptr_eq(t, trx)) {
            shard.remove(&trx.id);
        }
    }

    /// Whether `is` holds for one of them.
    pub fn any(&self, is: impl Fn(&Trx) -> bool) -> bool {
        (0..SHARDS).any(|i| self.shard(i as u64).values().any(|t| is(t)))
    }

    /// Those of which `is` holds.
    pub fn all(&self, is: impl Fn(&Trx) -> bool) -> Vec<Arc<Trx>> {
        let mut all = Vec::new();
        for i in 0..SHARDS {
            let shard = self.shard(i as u64);
            all.extend(shard.values().filter(|t| is(t)).cloned());
        }
        all
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        (0..SHARDS).map(|i| self.shard(i as u64).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fragment_that_passed_is_given_up_here() {
        let trx = Trx::local(1, Kind::Remote, usize::MAX);
        let mut body = trx.lock();
        assert!(!body.is_fragment_that_passed(), "it has no place");
        (body.seqno, body.depends_on) = (7, 3);
        assert!(body.is_fragment_that_passed());
        body.depends_on = -1;
        assert!(!body.is_fragment_that_passed(), "it was refused");
        (body.depends_on, body.flags) = (3, Flags::TRX_END);
        assert!(!body.is_fragment_that_passed(), "it is the end");
    }
}
