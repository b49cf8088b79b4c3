//! What the consensus library sees of the storage: its traits, over [`Storage`].

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftStateMachine, Snapshot,
};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use tokio::sync::futures::Notified;

use crate::codec::decode_message;
use crate::logstore::WriteOp;
use crate::raft_types::{
    Message, RaftEntry, RaftLeader, RaftLogId, RaftMembers, RaftSnapshotMeta, RaftVote, TypeConfig,
};
use crate::types::RaftId;

use super::{READ_BYTES, Storage, to_record, weight};

/// The library's handle to the log. Each run of appends to a member has one of its own.
#[derive(Clone)]
pub(crate) struct RaftLog {
    storage: Arc<Storage>,
    /// What follows the entries that were read last for a member.
    next: Option<u64>,
}

impl RaftLog {
    pub fn new(storage: Arc<Storage>) -> Self {
        RaftLog {
            storage,
            next: None,
        }
    }
}

impl RaftLogReader<TypeConfig> for RaftLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<RaftEntry>> {
        let (from, to) = inclusive(&range);
        self.storage.read_aside(from, to, usize::MAX).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<RaftEntry>> {
        // A new leader looks by halves where the member is: what is read for such a question, and is not in memory, is one
        // entry, since most of the answers are no.
        let goes_on = self.next == Some(start) || self.storage.in_tail(start);
        let max_bytes = if goes_on { READ_BYTES } else { 0 };
        let to = end.saturating_sub(1);
        let found = self.storage.read_for_others(start, to, max_bytes).await;
        self.next = found.last().map(|e| e.log_id.index + 1);
        Ok(found)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<RaftEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // A batch at a time: the range can be all of a long log.
        let (from, to) = inclusive(&range);
        let storage = self.storage.clone();
        stream::unfold(from, move |at| {
            let storage = storage.clone();
            async move {
                if at > to {
                    return None;
                }
                // What is ready at once would keep all else from running, heartbeats among it, to the end.
                if at > from {
                    tokio::task::yield_now().await;
                }
                let batch = match storage.read_aside(at, to, READ_BYTES).await {
                    Ok(batch) if batch.is_empty() => {
                        vec![Err(io::Error::other(format!("entry {at} is missing")))]
                    }
                    Ok(batch) => batch.into_iter().map(Ok).collect(),
                    Err(e) => vec![Err(e)],
                };
                let next = match batch.last() {
                    Some(Ok(e)) => e.log_id.index + 1,
                    _ => u64::MAX,
                };
                Some((stream::iter(batch), next))
            }
        })
        .flatten()
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.storage.lock().meta.vote)
    }
}

fn inclusive(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(i) => *i,
        Bound::Excluded(i) => i + 1,
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(i) => *i,
        // An empty range below 0 reads index 0 only, which is never a record.
        Bound::Excluded(i) => i.saturating_sub(1),
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogStorage<TypeConfig> for RaftLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let s = self.storage.lock();
        Ok(LogState {
            last_purged_log_id: s.meta.purged,
            last_log_id: Some(s.last),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        self.storage.lock().meta.vote = Some(*vote);
        let meta = self.storage.meta_to_save();
        self.storage.disk.vote_begins();
        let saved = self.storage.submit(WriteOp::SaveMeta(meta)).await;
        self.storage.disk.vote_ends();
        saved
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> io::Result<()> {
        // Saved along with the next vote and at a clean stop: an fsync for each
        // commit would double the cost, and after a crash the leader tells.
        let mut s = self.storage.lock();
        if let Some(c) = committed
            && c.index <= s.durable
        {
            s.meta.committed = Some(c);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<RaftLogId>> {
        let s = self.storage.lock();
        Ok(s.meta.committed.filter(|c| *c <= s.last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = Vec::new();
        let mut bytes = 0;
        let last = {
            let mut s = self.storage.lock();
            for e in entries {
                records.push(to_record(&e));
                s.last = e.log_id;
                bytes += weight(&e);
                s.tail.push_back(e);
            }
            s.tail_bytes += bytes;
            s.unstored += bytes;
            while s.tail_bytes > self.storage.tail_max
                && let Some(gone) = s.tail.pop_front()
            {
                s.tail_bytes -= weight(&gone);
            }
            s.last.index
        };
        let storage = self.storage.clone();
        storage.disk.begins();
        self.storage.store.submit(
            WriteOp::Append(records),
            Box::new(move |result| {
                storage.disk.ends();
                storage.not_unstored(bytes);
                if result.is_ok() {
                    storage.set_durable(last);
                }
                callback.io_completed(result);
            }),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        let next = last.map_or(0, |l| l.index + 1);
        {
            let mut s = self.storage.lock();
            if let Some(last) = last {
                s.last = last;
            }
            while let Some(e) = s.tail.pop_back() {
                if e.log_id.index < next {
                    s.tail.push_back(e);
                    break;
                }
                s.tail_bytes -= weight(&e);
            }
        }
        self.storage.submit(WriteOp::TruncateFrom(next)).await?;
        let mut s = self.storage.lock();
        s.durable = s.durable.min(next.saturating_sub(1));
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        {
            let mut s = self.storage.lock();
            s.meta.purged = s.meta.purged.max(Some(upto));
            if s.last < upto {
                s.last = upto;
                s.durable = upto.index;
            }
            while s.tail.front().is_some_and(|e| e.log_id.index <= upto.index) {
                if let Some(gone) = s.tail.pop_front() {
                    s.tail_bytes -= weight(&gone);
                }
            }
        }
        self.storage.unreadable().purged(upto.index);
        // First the mark, then the deed: what is below the mark is not read again. Nobody waits for either: after a crash
        // there is more of the log than was said, and a leader must say something meanwhile.
        let meta = self.storage.meta_to_save();
        self.storage.hand_in(WriteOp::SaveMeta(meta));
        self.storage.hand_in(WriteOp::PurgeTo(upto.index));
        Ok(())
    }
}

/// The library's state machine: remembers positions, members and nothing else.
pub(crate) struct StateMachine(pub Arc<Storage>);

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = ();
    type SnapshotBuilder = SnapshotToken;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, RaftMembers)> {
        let s = self.0.lock();
        let members = s
            .members
            .last_key_value()
            .map(|(_, m)| m.clone())
            .unwrap_or_default();
        Ok((Some(s.applied), members))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut unseen = 0;
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            if let EntryPayload::Normal(m) = &entry.payload {
                self.observe(m, &entry.log_id)?;
            }
            {
                let mut s = self.0.lock();
                if let EntryPayload::Membership(m) = entry.payload {
                    let stored = RaftMembers::new(Some(entry.log_id), m);
                    s.members.insert(entry.log_id.index, stored);
                }
                s.applied = entry.log_id;
            }
            if let Some(responder) = responder {
                responder.send(());
            }
            unseen += 1;
            if unseen == 64 {
                unseen = 0;
                self.0.wake();
            }
        }
        self.0.wake();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotToken {
        SnapshotToken(self.0.clone())
    }

    async fn install_snapshot(&mut self, _: &RaftSnapshotMeta, _: ()) -> io::Result<()> {
        Err(io::Error::other(
            "a position is never installed into a running engine; the node must join anew",
        ))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        Ok(Some(self.0.snapshot()))
    }
}

impl StateMachine {
    fn observe(&self, m: &Message, at: &RaftLogId) -> io::Result<()> {
        let raw = decode_message(m)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("entry {at}: {e}")))?;
        (self.0.observer)(&raw);
        Ok(())
    }
}

impl Storage {
    /// Bytes appended and not stored yet.
    pub fn unstored(&self) -> usize {
        self.lock().unstored
    }

    /// Ends when something appended is stored.
    pub fn stored(&self) -> Notified<'_> {
        self.stored.notified()
    }

    /// So many bytes that were appended are stored, or will never be.
    fn not_unstored(&self, bytes: usize) {
        self.lock().unstored -= bytes;
        self.stored.notify_waiters();
    }
}

/// A "snapshot" is nothing but the position of the newest checkpoint.
pub(crate) struct SnapshotToken(Arc<Storage>);

type RaftSnapshot = Snapshot<RaftLeader, RaftId, crate::raft_types::Node, ()>;

impl Storage {
    fn snapshot(&self) -> RaftSnapshot {
        Snapshot {
            meta: self.lock().snapshot.clone(),
            snapshot: (),
        }
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotToken {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        Ok(self.0.snapshot())
    }
}
