//! The consensus library's storage: our log, and a "state machine" that only
//! remembers how far the log is committed.
//!
//! ```text
//!   append ──> tail (newest entries, in memory) ──> LogStore ──durable──┐
//!                  │                                                    v
//!   commit ──> applied index ────────────> handed out: min(applied, durable)
//! ```
//!
//! Nothing is queued for delivery: the delivery thread reads entries by index,
//! from the tail while it keeps up, else from the log again. So a slow reader
//! costs no memory and nothing ever waits for it.

mod raft_traits;
mod reading;
mod unreadable;

use unreadable::Unreadable;

pub(crate) use raft_traits::{RaftLog, StateMachine};

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_log::LogError;
use openraft::EntryPayload;
use tokio::sync::{Notify, oneshot};
use twox_hash::XxHash3_64;

use crate::candidate::DiskTimes;
use crate::codec::{
    Meta, decode_checkpoint, decode_message, decode_meta, decode_payload, encode_checkpoint,
    encode_meta, encode_payload,
};
use crate::logstore::{LogStore, Record, RecordId, WriteOp};
use crate::raft_types::{
    RaftEntry, RaftLeader, RaftLogId, RaftMembers, RaftMembership, RaftSnapshotMeta, RaftVote,
    from_raft_log_id, from_raft_members, to_raft_log_id, to_raft_members,
};
use crate::sequencer::{Committed, CommittedBody, RawMessage};
use crate::types::{Checkpoint, Leadership, LogId, OrderError, RaftId, Start, incarnation};

/// A batch read for replication or delivery stops after about this many bytes.
pub(crate) const READ_BYTES: usize = 1 << 20;

/// Told of every committed message, in order, before it is handed out.
pub(crate) type Observer = Box<dyn Fn(&RawMessage) + Send + Sync>;

/// The log and everything that stands or falls with it.
pub(crate) struct Storage {
    store: Arc<dyn LogStore>,
    /// Newest entries kept in memory, in bytes.
    tail_max: usize,
    state: Mutex<State>,
    /// Signalled when there may be more to hand out.
    ready: Condvar,
    ready_async: Arc<Notify>,
    /// Notified when something appended is stored.
    stored: Notify,
    unreadable: Unreadable,
    /// How long it takes to store something.
    pub disk: DiskTimes,
    observer: Observer,
}

struct State {
    meta: Meta,
    /// The newest entries, contiguous up to the last.
    tail: VecDeque<RaftEntry>,
    tail_bytes: usize,
    last: RaftLogId,
    durable: u64,
    /// Bytes appended and not stored yet.
    unstored: usize,
    applied: RaftLogId,
    delivered: u64,
    /// Whether somebody sleeps on `ready`.
    reader_sleeps: bool,
    /// Committed membership entries by index, from the newest checkpoint on;
    /// the first one is in force at that checkpoint.
    members: BTreeMap<u64, RaftMembers>,
    /// What is told to members whose position is gone.
    snapshot: RaftSnapshotMeta,
    /// Nothing more will be handed out.
    closed: bool,
    /// See [`Storage::write_failed`].
    write_failed: Option<String>,
}

impl State {
    fn has_more(&self) -> bool {
        self.closed || self.applied.index.min(self.durable) > self.delivered
    }
}

/// What a log holds, before an engine is started on it.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// Whose log it is.
    pub id: RaftId,
    /// The newest checkpoint.
    pub checkpoint: Checkpoint,
    /// The last entry.
    pub last: LogId,
    /// Whether messages lie behind the newest checkpoint, and not only changes of the members.
    pub goes_on: bool,
    /// The latest leadership it has voted for, or has an entry of.
    pub voted: Leadership,
    /// The newest members named anywhere in the log, committed or not.
    pub members: crate::types::Members,
    /// Whether it was kept on the disk from its beginning on. Only then it can be resumed.
    pub durable: bool,
}

/// Looks into a log without starting an engine on it. `None`: there is nothing
/// to resume from.
pub fn inspect(store: &Arc<dyn LogStore>) -> Result<Option<Inspected>, OrderError> {
    let Some(meta) = load_meta(store)? else {
        return Ok(None);
    };
    let Some(index) = newest_checkpoint(store)? else {
        // One is stored before it says whose log it is, and purging leaves one.
        return match meta.durable {
            true => Err(OrderError::Damaged(
                "it has no checkpoint: whoever copied or removed files there left out those that a log begins with \
                 (dromon-ckpt-*)."
                    .to_owned(),
            )),
            false => Ok(None),
        };
    };
    let checkpoint = load_checkpoint(store, index)?;
    if meta.durable {
        reaches(store, index)?;
    }
    let (first, next) = store.bounds();
    let mut last = to_raft_log_id(checkpoint.log_id);
    let mut members = checkpoint.members.clone();
    let mut goes_on = false;
    let mut at = first.max(index + 1);
    while at < next {
        let batch = read_store(store, at, next - 1, READ_BYTES).map_err(log_error)?;
        let Some(end) = batch.last() else { break };
        at = end.log_id.index + 1;
        last = end.log_id;
        for e in batch {
            match e.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(_) => goes_on = true,
                EntryPayload::Membership(m) => {
                    members = from_raft_members(&RaftMembers::new(Some(e.log_id), m));
                }
            }
        }
    }
    Ok(Some(Inspected {
        durable: meta.durable,
        id: meta.id,
        checkpoint,
        last: from_raft_log_id(&last),
        goes_on,
        voted: meta
            .vote
            .map_or(last.leader_id, |v| v.leader_id.max(last.leader_id))
            .into(),
        members,
    }))
}

impl Storage {
    /// Prepares the log for `start`. Waits for the disk.
    pub fn open(
        store: Arc<dyn LogStore>,
        start: &Start,
        (fresh_id, durable): (RaftId, bool),
        addr: &str,
        tail_max: usize,
        observer: Observer,
    ) -> Result<Arc<Storage>, OrderError> {
        let (meta, checkpoint) = match start {
            Start::Bootstrap { genesis, after } => {
                let checkpoint = Checkpoint {
                    log_id: LogId::default(),
                    members: crate::types::Members {
                        log_id: Some(LogId::default()),
                        configs: vec![[fresh_id].into()],
                        addrs: [(fresh_id, addr.to_owned())].into(),
                    },
                    sequencer: Bytes::new(),
                    node: genesis.clone(),
                };
                // A log that takes another one's place is of a later incarnation.
                let vote = (*after)
                    .map(|term| next_incarnation(term, fresh_id))
                    .transpose()?
                    .map(|term| vote_for(term, fresh_id));
                let meta = begin_new(&store, (fresh_id, durable), vote, &checkpoint)?;
                (meta, checkpoint)
            }
            Start::Join { checkpoint, term } => {
                let base = u64::from(incarnation(*term)) << 32;
                let vote = (base > checkpoint.log_id.term).then(|| vote_for(base, 0));
                (
                    begin_new(&store, (fresh_id, durable), vote, checkpoint)?,
                    checkpoint.clone(),
                )
            }
            Start::Resume => {
                let meta = load_meta(&store)?.ok_or_else(nothing)?;
                if !meta.durable {
                    return Err(forgetful());
                }
                let newest = newest_checkpoint(&store)?.ok_or_else(nothing)?;
                let checkpoint = load_checkpoint(&store, newest)?;
                reaches(&store, newest)?;
                (meta, checkpoint)
            }
        };
        let mut meta = meta;
        let applied = to_raft_log_id(checkpoint.log_id);
        let (_, next) = store.bounds();
        let last = if next > applied.index + 1 {
            read_store(&store, next - 1, next - 1, 0)
                .map_err(log_error)?
                .first()
                .map(|e| e.log_id)
                .ok_or_else(|| OrderError::Log(format!("its last entry {} is missing", next - 1)))?
        } else {
            applied
        };
        let voted = meta.vote.map_or(0, |v| v.leader_id.term);
        if last.leader_id.term > voted && matches!(start, Start::Resume) {
            // It went alone and crashed before its vote was saved, too.
            meta.vote = Some(RaftVote {
                leader_id: last.leader_id,
                committed: false,
            });
        }
        let members = to_raft_members(&checkpoint.members).map_err(OrderError::Log)?;
        Ok(Arc::new(Storage {
            store,
            tail_max,
            state: Mutex::new(State {
                meta,
                tail: VecDeque::new(),
                tail_bytes: 0,
                last,
                durable: last.index,
                unstored: 0,
                applied,
                delivered: applied.index,
                reader_sleeps: false,
                snapshot: RaftSnapshotMeta {
                    last_log_id: Some(applied),
                    last_membership: members.clone(),
                },
                members: [(applied.index, members)].into(),
                closed: false,
                write_failed: None,
            }),
            ready: Condvar::new(),
            ready_async: Arc::new(Notify::new()),
            stored: Notify::new(),
            unreadable: Unreadable::default(),
            disk: DiskTimes::default(),
            observer,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Changes under the lock are assignments that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose log this is.
    pub fn id(&self) -> RaftId {
        self.lock().meta.id
    }

    /// (first index in the log, last, durable, applied, delivered)
    pub fn positions(&self) -> (u64, LogId, u64, u64, u64) {
        let (first, _) = self.store.bounds();
        let s = self.lock();
        let purged = s.meta.purged.map_or(0, |p| p.index + 1);
        (
            first.max(purged),
            from_raft_log_id(&s.last),
            s.durable,
            s.applied.index,
            s.delivered,
        )
    }

    /// The next entries for the delivery thread; see
    /// [`Order::next_committed`](crate::types::Order::next_committed).
    pub fn next_committed(
        &self,
        max: usize,
        timeout: Duration,
    ) -> Result<Vec<Committed>, OrderError> {
        let deadline = Instant::now() + timeout;
        let mut s = self.lock();
        // One that comes after the end waits in vain, so that a caller that
        // does not look at the status does not spin.
        let ended_before = s.closed;
        let (from, to) = loop {
            let to = s.applied.index.min(s.durable);
            if max == 0 || (s.closed && !ended_before) {
                return Ok(Vec::new());
            }
            if to > s.delivered && !s.closed {
                let from = s.delivered + 1;
                break (from, to.min(s.delivered.saturating_add(max as u64)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            s.reader_sleeps = true;
            s = match self.ready.wait_timeout(s, left) {
                Ok((s, _)) => s,
                Err(poisoned) => poisoned.into_inner().0,
            };
            s.reader_sleeps = false;
        };
        drop(s);
        let out = self.read_committed(from, to, READ_BYTES)?;
        if let Some(last) = out.last() {
            // One reader only, so nobody moved it meanwhile.
            self.lock().delivered = last.index;
        }
        Ok(out)
    }

    /// Whether there is something to hand out (or never will be again).
    pub fn has_committed(&self) -> bool {
        self.lock().has_more()
    }

    /// Signalled when [`has_committed`](Storage::has_committed) may have become true.
    pub fn ready_signal(&self) -> Arc<Notify> {
        self.ready_async.clone()
    }

    /// Entries `from..=to` as the node sees them.
    pub fn read_committed(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Result<Vec<Committed>, OrderError> {
        let (_, _, _, applied, _) = self.positions();
        if to > applied {
            return Err(OrderError::Refused(format!(
                "index {to} was asked for, but only {applied} is known to be committed"
            )));
        }
        self.read_stored(from, to, max_bytes)
    }

    /// The same of entries that need not be committed.
    pub fn read_stored(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Result<Vec<Committed>, OrderError> {
        let (first, ..) = self.positions();
        if from < first {
            return Err(OrderError::Purged {
                wanted: from,
                first,
            });
        }
        let entries = self.read(from, to, max_bytes).map_err(log_error)?;
        if entries.is_empty() && from <= to {
            return Err(OrderError::Log(format!("entry {from} is missing")));
        }
        entries.into_iter().map(to_committed).collect()
    }

    /// The incarnation this log is in.
    pub fn incarnation(&self) -> u32 {
        let s = self.lock();
        let voted = s.meta.vote.map_or(0, |v| v.leader_id.term);
        incarnation(voted.max(s.last.leader_id.term))
    }

    /// The first term of the incarnation in which this node would go alone.
    pub fn term_alone(&self) -> Result<u64, OrderError> {
        let s = self.lock();
        let voted = s.meta.vote.map_or(0, |v| v.leader_id.term);
        next_incarnation(voted.max(s.last.leader_id.term), s.meta.id)
    }

    /// Appends an entry of the next incarnation that makes this node, which
    /// listens at `addr`, the only member. No consensus may run on the log.
    pub async fn go_alone(self: &Arc<Self>, addr: &str) -> io::Result<()> {
        let term = self.term_alone().map_err(io::Error::other)?;
        let (entry, vote) = {
            let s = self.lock();
            let vote = vote_for(term, s.meta.id);
            let node = crate::raft_types::Node {
                addr: addr.to_owned(),
            };
            let members = RaftMembership::new(
                vec![[s.meta.id].into()],
                BTreeMap::from([(s.meta.id, node)]),
            )
            .map_err(|e| io::Error::other(e.to_string()))?;
            let entry = RaftEntry {
                log_id: RaftLogId {
                    leader_id: vote.leader_id,
                    index: s.last.index + 1,
                },
                payload: EntryPayload::Membership(members),
            };
            (entry, vote)
        };
        // The entry first: a crash after it leaves a log that knows where it
        // belongs (see `open`).
        let record = to_record(&entry);
        self.submit(WriteOp::Append(vec![record])).await?;
        let index = entry.log_id.index;
        {
            let mut s = self.lock();
            s.last = entry.log_id;
            s.tail_bytes += weight(&entry);
            s.tail.push_back(entry);
            s.meta.vote = Some(vote);
        }
        self.set_durable(index);
        let meta = self.meta_to_save();
        self.submit(WriteOp::SaveMeta(meta)).await
    }

    /// Ends delivery.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake();
    }

    /// Saves what a restart needs, and closes the log.
    pub fn shut(&self) {
        let meta = self.meta_to_save();
        let _ = wait_for(&self.store, WriteOp::SaveMeta(meta));
        self.store.close();
    }

    /// Saves a checkpoint at `index`, which was handed out before.
    pub fn save_checkpoint(
        &self,
        index: u64,
        sequencer: Bytes,
        node: Bytes,
    ) -> Result<(), OrderError> {
        let (delivered, base) = {
            let s = self.lock();
            (s.delivered, s.snapshot.last_log_id)
        };
        if index > delivered {
            return Err(OrderError::Refused(format!(
                "a checkpoint at index {index} was to be saved, but only {delivered} was delivered"
            )));
        }
        let log_id = match base {
            Some(b) if b.index == index => b,
            _ => self
                .read(index, index, 0)
                .map_err(log_error)?
                .first()
                .map(|e| e.log_id)
                .ok_or_else(|| OrderError::Log(format!("entry {index} is missing")))?,
        };
        let members = self
            .lock()
            .members
            .range(..=index)
            .next_back()
            .map(|(_, m)| from_raft_members(m))
            .ok_or_else(|| {
                OrderError::Refused(format!(
                    "the members at index {index} are not known any more"
                ))
            })?;
        let bytes = encode_checkpoint(&Checkpoint {
            log_id: from_raft_log_id(&log_id),
            members,
            sequencer,
            node,
        });
        wait_for(&self.store, WriteOp::SaveCheckpoint(index, bytes)).map_err(log_error)
    }

    /// Indexes of the checkpoints.
    pub fn checkpoints(&self) -> Result<Vec<u64>, OrderError> {
        self.store.checkpoints().map_err(log_error)
    }

    /// Bytes of the entries below `index`, about.
    pub fn bytes_before(&self, index: u64) -> u64 {
        self.store.bytes_before(index)
    }

    /// See [`LogStore::held_up`].
    pub fn held_up(&self) -> Option<String> {
        self.store.held_up()
    }

    /// The newest checkpoint at or below `at_most`.
    pub fn load_checkpoint(&self, at_most: Option<u64>) -> Result<Option<Checkpoint>, OrderError> {
        let wanted = self
            .checkpoints()?
            .into_iter()
            .rfind(|i| at_most.is_none_or(|m| *i <= m));
        wanted
            .map(|index| load_checkpoint(&self.store, index))
            .transpose()
    }

    /// Drops the checkpoint at `index`, unless a start would begin there.
    pub fn drop_checkpoint(&self, index: u64) -> Result<(), OrderError> {
        if newest_checkpoint(&self.store)?.is_none_or(|newest| newest <= index) {
            return Err(OrderError::Refused(format!(
                "the checkpoint at index {index} is the newest one: a start begins there"
            )));
        }
        wait_for(&self.store, WriteOp::DropCheckpoint(index)).map_err(log_error)
    }

    /// Makes the newest checkpoint at or below `index` the one to start from, if
    /// none is newer, and drops older ones. Returns up to where the log may then
    /// be purged.
    pub fn prepare_purge(&self, index: u64) -> Result<Option<u64>, OrderError> {
        let Some(c) = self.load_checkpoint(Some(index))? else {
            return Ok(None);
        };
        let at = c.log_id.index;
        {
            let mut s = self.lock();
            // A start takes the newest one there is, whatever lies before it in the log.
            if s.snapshot.last_log_id.is_none_or(|id| id.index < at) {
                s.snapshot = RaftSnapshotMeta {
                    last_log_id: Some(to_raft_log_id(c.log_id)),
                    last_membership: to_raft_members(&c.members).map_err(OrderError::Log)?,
                };
            }
            if let Some((&base, _)) = s.members.range(..=at).next_back() {
                s.members = s.members.split_off(&base);
            }
        }
        wait_for(&self.store, WriteOp::DropCheckpointsBefore(at)).map_err(log_error)?;
        Ok(Some(at))
    }

    /// What others need and cannot be sent.
    pub fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    fn set_durable(&self, index: u64) {
        self.lock().durable = index;
        self.wake();
    }

    /// Wakes the reader if there is something for it. Twice for each batch nothing is
    /// there yet: committed and not durable here, or the other way round.
    fn wake(&self) {
        let sleeps = {
            let s = self.lock();
            s.reader_sleeps && s.has_more()
        };
        if sleeps {
            self.ready.notify_all();
        }
        self.ready_async.notify_waiters();
    }

    fn meta_to_save(&self) -> Bytes {
        encode_meta(Some(&self.lock().meta))
    }

    /// Hands in what nobody waits for. If it fails, [`write_failed`](Storage::write_failed) says so.
    fn hand_in(self: &Arc<Self>, op: WriteOp) {
        let storage = self.clone();
        self.disk.begins();
        self.store.submit(
            op,
            Box::new(move |result| {
                storage.disk.ends();
                if let Err(e) = result {
                    storage.lock().write_failed.get_or_insert(e.to_string());
                }
            }),
        );
    }

    /// Why something could not be written that nobody waited for.
    pub fn write_failed(&self) -> Option<String> {
        self.lock().write_failed.clone()
    }

    async fn submit(self: &Arc<Self>, op: WriteOp) -> io::Result<()> {
        let (tx, rx) = oneshot::channel();
        let storage = self.clone();
        self.disk.begins();
        self.store.submit(
            op,
            Box::new(move |r| {
                storage.disk.ends();
                // A receiver that went away no longer cares.
                let _ = tx.send(r);
            }),
        );
        rx.await
            .unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
    }
}

/// What an entry weighs in memory.
pub(crate) fn weight(e: &RaftEntry) -> usize {
    64 + match &e.payload {
        EntryPayload::Normal(m) => m.0.len(),
        EntryPayload::Blank => 0,
        EntryPayload::Membership(_) => 256,
    }
}

pub(crate) fn log_error(e: io::Error) -> OrderError {
    let cause = e.get_ref().and_then(|e| e.downcast_ref::<LogError>());
    match cause.is_some_and(LogError::is_corruption) {
        true => OrderError::Damaged(e.to_string()),
        false => OrderError::Log(e.to_string()),
    }
}

fn wait_for(store: &Arc<dyn LogStore>, op: WriteOp) -> io::Result<()> {
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    store.submit(
        op,
        Box::new(move |r| {
            let _ = tx.send(r);
        }),
    );
    rx.recv()
        .unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
}

/// Erases the log and begins it anew behind `checkpoint`. A crash on the way
/// leaves a log that says it holds nothing.
fn begin_new(
    store: &Arc<dyn LogStore>,
    (id, durable): (RaftId, bool),
    vote: Option<RaftVote>,
    checkpoint: &Checkpoint,
) -> Result<Meta, OrderError> {
    let at = to_raft_log_id(checkpoint.log_id);
    let meta = Meta {
        id,
        vote,
        committed: Some(at),
        purged: Some(at),
        durable,
    };
    let ops = [
        WriteOp::SaveMeta(encode_meta(None)),
        WriteOp::Reset(RecordId {
            index: at.index,
            term: at.leader_id.term,
            leader: at.leader_id.node_id,
        }),
        WriteOp::SaveCheckpoint(at.index, encode_checkpoint(checkpoint)),
        WriteOp::SaveMeta(encode_meta(Some(&meta))),
    ];
    for op in ops {
        wait_for(store, op).map_err(log_error)?;
    }
    Ok(meta)
}

/// The first term of the incarnation after that of `term`. Two nodes that go
/// alone at once, which nothing can prevent, come into different ones; so do
/// nodes that do it one after the other on different sides. The step depends on
/// where a node comes from, too: by its id alone, two steps of one node could
/// make one of another (`models/src/bootstrap.rs`).
///
/// Errors: there are no more of them. What came then would be older than what is.
fn next_incarnation(term: u64, id: RaftId) -> Result<u64, OrderError> {
    let now = incarnation(term);
    let drawn = XxHash3_64::oneshot_with_seed(id, &now.to_le_bytes());
    let step = 1 + (drawn & 0xf_ffff);
    let next = u32::try_from(u64::from(now) + step).map_err(|_| {
        OrderError::Refused(
            "this cluster was forced to go on without a majority so often (some thousand times) that the \
             numbers for it are used up: it can be founded anew only, with an empty log"
                .to_owned(),
        )
    })?;
    Ok(u64::from(next) << 32)
}

fn vote_for(term: u64, id: RaftId) -> RaftVote {
    RaftVote {
        leader_id: RaftLeader { term, node_id: id },
        committed: false,
    }
}

fn to_record(e: &RaftEntry) -> Record {
    Record {
        index: e.log_id.index,
        term: e.log_id.leader_id.term,
        leader: e.log_id.leader_id.node_id,
        body: encode_payload(&e.payload),
    }
}

/// Whose log it is, if it can be resumed.
pub(crate) fn saved_id(store: &Arc<dyn LogStore>) -> Result<RaftId, OrderError> {
    Ok(load_meta(store)?.ok_or_else(nothing)?.id)
}

fn nothing() -> OrderError {
    OrderError::Log("it holds nothing to resume from; bootstrap or join instead".to_owned())
}

/// Why a log that was kept in memory only is not gone on with.
pub(crate) fn forgetful() -> OrderError {
    OrderError::Refused(
        "a log kept in memory only cannot be resumed: the node may have forgotten what it \
         acknowledged; it must join under a new id"
            .to_owned(),
    )
}

fn newest_checkpoint(store: &Arc<dyn LogStore>) -> Result<Option<u64>, OrderError> {
    Ok(store.checkpoints().map_err(log_error)?.last().copied())
}

/// Whether the log holds all that lies before its checkpoint at `index`, which was saved
/// behind what was stored: else something that was acknowledged is gone.
fn reaches(store: &Arc<dyn LogStore>, index: u64) -> Result<(), OrderError> {
    let (_, next) = store.bounds();
    if next > index {
        return Ok(());
    }
    Err(OrderError::Damaged(format!(
        "it ends before index {next}, but the checkpoint at {index} beside it shows that it had stored more: the disk, or \
         whoever copied or removed files there, lost the end of it."
    )))
}

pub(crate) fn load_meta(store: &Arc<dyn LogStore>) -> Result<Option<Meta>, OrderError> {
    match store.load_meta().map_err(log_error)? {
        None => Ok(None),
        Some(bytes) => decode_meta(bytes).map_err(|e| OrderError::Log(e.to_string())),
    }
}

pub(crate) fn load_checkpoint(
    store: &Arc<dyn LogStore>,
    index: u64,
) -> Result<Checkpoint, OrderError> {
    let bytes = store.load_checkpoint(index).map_err(log_error)?;
    decode_checkpoint(bytes).map_err(|e| OrderError::Log(format!("checkpoint {index}: {e}")))
}

pub(crate) fn read_store(
    store: &Arc<dyn LogStore>,
    from: u64,
    to: u64,
    max_bytes: usize,
) -> io::Result<Vec<RaftEntry>> {
    to_entries(store.read(from..=to, max_bytes)?, from)
}

/// What was read from `from` on.
fn to_entries(records: Vec<Record>, from: u64) -> io::Result<Vec<RaftEntry>> {
    let mut out = Vec::with_capacity(records.len());
    for (r, expected) in records.into_iter().zip(from..) {
        if r.index != expected {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("entry {expected} is missing; the log has {} there", r.index),
            ));
        }
        let log_id = RaftLogId {
            leader_id: RaftLeader {
                term: r.term,
                node_id: r.leader,
            },
            index: r.index,
        };
        let payload = decode_payload(r.body).map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidData, format!("entry {log_id}: {e}"))
        })?;
        out.push(RaftEntry { log_id, payload });
    }
    Ok(out)
}

pub(crate) fn to_committed(e: RaftEntry) -> Result<Committed, OrderError> {
    let body = match &e.payload {
        EntryPayload::Blank => CommittedBody::Blank,
        EntryPayload::Normal(m) => CommittedBody::Message(
            decode_message(m)
                .map_err(|err| OrderError::Log(format!("entry {}: {err}", e.log_id)))?,
        ),
        EntryPayload::Membership(m) => {
            let voters: std::collections::BTreeSet<RaftId> = m.voter_ids().collect();
            let (voters, learners) = m
                .nodes()
                .map(|(id, node)| (*id, node.addr.clone()))
                .partition(|(id, _)| voters.contains(id));
            let configs = m.get_joint_config().clone();
            CommittedBody::Membership {
                voters,
                learners,
                configs,
            }
        }
    };
    Ok(Committed {
        index: e.log_id.index,
        term: e.log_id.leader_id.term,
        leader: e.log_id.leader_id.node_id,
        body,
    })
}

#[cfg(test)]
mod tests;
