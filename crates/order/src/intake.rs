//! What members want written, on its way into the leader's log.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::codec::Wire;
use crate::engine_core::Core;
use crate::gather::{GATHER_MIN, Gather};
use crate::network::Lane;
use crate::raft_types::{Message, Raft};
use crate::runtime::spawn;
use crate::types::{Gathering, RaftId};

/// Batches waiting to be written, at most.
const BATCHES: usize = 1024;
/// So many bytes are worth a write of their own.
const GATHER_BYTES: usize = 64 << 10;

/// A batch of messages to be written, and who sent it.
pub(crate) struct Intake {
    pub from: RaftId,
    pub round: u64,
    pub messages: Vec<Message>,
}

/// The channel into [`write_intake`].
pub(crate) fn intake() -> (mpsc::Sender<Intake>, mpsc::Receiver<Intake>) {
    mpsc::channel(BATCHES)
}

/// Batches that go into the log together.
#[derive(Default)]
struct Write {
    messages: Vec<Message>,
    bytes: usize,
    /// Whose they are, and of which round.
    senders: Vec<(RaftId, u64)>,
}

impl Write {
    fn add(&mut self, batch: Intake) {
        self.bytes += batch.messages.iter().map(|m| m.0.len()).sum::<usize>();
        self.senders.push((batch.from, batch.round));
        self.messages.extend(batch.messages);
    }

    /// Adds what is there already.
    fn add_waiting(&mut self, rx: &mut mpsc::Receiver<Intake>) {
        while self.bytes < GATHER_BYTES
            && let Ok(batch) = rx.try_recv()
        {
            self.add(batch);
        }
    }

    /// Adds what comes until there are `wanted` messages, or `until`. Answers how many came.
    async fn add_coming(
        &mut self,
        rx: &mut mpsc::Receiver<Intake>,
        wanted: usize,
        until: Instant,
    ) -> usize {
        let had = self.messages.len();
        while self.bytes < GATHER_BYTES
            && self.messages.len() < wanted
            && let Ok(Some(batch)) = timeout_at(until, rx.recv()).await
        {
            self.add(batch);
        }
        self.messages.len() - had
    }
}

/// Writes batches into the log, in the order they came, several at once where that pays
/// ([`Gather`]). The consensus refuses in silence when it may not write (no longer or not
/// yet leader, no answer from a majority lately), so the first outcome is waited for.
pub(crate) async fn write_intake(core: Arc<Core>, raft: Raft, mut rx: mpsc::Receiver<Intake>) {
    let mut pays = Gather::default();
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut before = Instant::now();
    while let Some(first) = rx.recv().await {
        if wait_for_disk(&core, &raft).await > core.config.resend / 2 {
            // Who waits so long sends again. One copy of it is to be written.
            let mut senders = BTreeSet::from([(first.from, first.round)]);
            while let Ok(batch) = rx.try_recv() {
                senders.insert((batch.from, batch.round));
            }
            refuse(&core, senders);
            continue;
        }
        let gather = match core.config.gather {
            Gathering::Never => None,
            Gathering::Always => Some(GATHER_MIN),
            Gathering::Auto => core.core_wait.gather(),
        };
        let mut write = Write::default();
        write.add(first);
        if let Some(time) = gather {
            write.add_waiting(&mut rx);
            let until = before + time;
            if write.bytes < GATHER_BYTES
                && Instant::now() < until
                && let Some(wanted) = pays.wait_for(write.messages.len())
            {
                let brought = write.add_coming(&mut rx, wanted, until).await;
                core.gathered.fetch_add(brought as u64, Relaxed);
                pays.waited(brought);
            }
        }
        before = Instant::now();
        let Write {
            messages, senders, ..
        } = write;
        let count = messages.len();
        pays.written(under_way.fetch_add(count, Relaxed) + count);
        let outcomes = raft.client_write_many(messages).await;
        let (core, under_way) = (core.clone(), under_way.clone());
        spawn(async move {
            // All that is written at once is taken or none of it. What is taken and lost
            // later is lost to a new leader, to whom it will be sent again.
            let taken = match outcomes {
                Ok(mut outcomes) => matches!(outcomes.next().await, Some(Ok(Ok(_)))),
                Err(_) => false,
            };
            under_way.fetch_sub(count, Relaxed);
            if taken {
                return;
            }
            refuse(&core, senders);
        });
    }
}

/// Tells senders that what they sent in a round was not taken.
fn refuse(core: &Core, senders: impl IntoIterator<Item = (RaftId, u64)>) {
    for (from, round) in senders {
        if from == core.id {
            core.outbox.refused(Some(round));
        } else {
            let _ = core.send(from, Lane::Raft, &Wire::Refused { round });
        }
    }
}

/// While this node leads and its own disk lags far behind, nothing more is taken. A majority
/// of the others would go on without it; but what the disk has not stored lies in memory, and
/// in the end the engine would have to wait where nothing may wait. Answers how long it took.
async fn wait_for_disk(core: &Core, raft: &Raft) -> Duration {
    let began = Instant::now();
    loop {
        let mut stored = pin!(core.storage.stored());
        // Before looking, so that nothing falls between.
        stored.as_mut().enable();
        let leads = || raft.metrics().borrow_watched().state == ServerState::Leader;
        if core.storage.unstored() <= core.config.unstored_max || !leads() {
            return began.elapsed();
        }
        // It may be deposed meanwhile.
        let _ = timeout(core.config.heartbeat, stored).await;
    }
}
