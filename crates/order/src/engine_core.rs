//! What the tasks of one engine share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::raft::{StreamAppendResult, VoteResponse};
use openraft::{Instant as _, ServerState};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::candidate::SLOW_VOTE;
use crate::codec::Wire;
use crate::confirm::{Confirm, Question};
use crate::cores::CoreWait;
use crate::deaf::keeps_silent;
use crate::lease::Lease;
use crate::network::{Lane, Network, SendError};
use crate::pending::PendingQueue;
use crate::raft_types::{Raft, TypeConfig, from_raft_members};
use crate::runtime::spawn;
use crate::storage::Storage;
use crate::types::{
    Desired, Done, EngineConfig, Members, NodeHandler, OrderError, OrderStatus, PeerStatus, RaftId,
};
use crate::whereabouts::Whereabouts;

/// That a member's log went back is told once within this time.
const TOLD_BACK: Duration = Duration::from_secs(60);

/// An answer to an append, on its way to the session that waits for it.
pub(crate) type AppendAnswer = (u64, StreamAppendResult<TypeConfig>);

/// Everything the engine's tasks and its handle have in common.
pub(crate) struct Core {
    pub config: EngineConfig,
    pub id: RaftId,
    pub net: Arc<dyn Network>,
    pub handler: Arc<dyn NodeHandler>,
    pub storage: Arc<Storage>,
    raft: Mutex<Option<Raft>>,
    /// See [`incarnation`](crate::types::incarnation).
    incarnation: AtomicU32,
    pub outbox: Arc<Outbox>,
    lease: Mutex<Lease>,
    waiting: Mutex<Waiting>,
    confirm: Mutex<Confirm>,
    /// A member has accepted an append.
    accepted: Notify,
    /// When something of a member came in last.
    heard: Mutex<BTreeMap<RaftId, Duration>>,
    /// When the node's tick was due last.
    pub ticked: Mutex<Duration>,
    /// What the log takes, if electing a leader takes so long that this may be why.
    pub too_slow: Mutex<Option<Duration>>,
    /// When somebody asked last for this node's vote with a log that is shorter than its own.
    pub needed: Mutex<Option<Duration>>,
    /// When the node was told that these members' logs went back.
    told_back: Mutex<BTreeMap<RaftId, Duration>>,
    pub reads: Mutex<Vec<PendingRead>>,
    pub reads_wake: Notify,
    pub desired: Mutex<BTreeMap<RaftId, Desired>>,
    pub desired_wake: Notify,
    /// Whom this node left behind when it went on alone: they come back under other ids.
    left_behind: Mutex<BTreeSet<RaftId>>,
    stood_down: AtomicBool,
    /// What the node wants of the members follows from the log up to here.
    processed: AtomicU64,
    /// It has said so anew, and `processed` has not moved since.
    desired_moved: AtomicBool,
    /// Addresses of leaders and candidates that the log does not name (yet), or has
    /// elsewhere.
    pub whereabouts: Mutex<Whereabouts>,
    /// Something that [`status`](Core::status) shows may have changed.
    pub status_wake: Notify,
    failed: Mutex<Option<String>>,
    /// `failed` is set.
    failed_wake: Notify,
    pub core_wait: CoreWait,
    /// Messages that came while the leader waited for more to write.
    pub gathered: AtomicU64,
    /// Nothing more may be written.
    pub killed: AtomicBool,
    /// One consensus was stopped for another: its end is no failure.
    changing: AtomicBool,
    epoch: Instant,
}

/// Own messages on their way to the leader.
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    pub wake: Notify,
    epoch: Instant,
}

/// See [`Outbox`].
pub(crate) struct OutboxState {
    pub queue: PendingQueue,
    /// To whom the queue sends now.
    pub leader: Option<(RaftId, u64)>,
    /// Numbers the batches sent.
    pub round: u64,
    /// Refusals of older rounds are stale.
    pub round_base: u64,
    /// Highest number sent since the queue was last taken back, and how often
    /// it had been taken back then.
    pub sent_high: (u64, u64),
}

/// A read index somebody waits for.
pub(crate) struct PendingRead {
    pub deadline: Instant,
    pub timeout: Duration,
    pub done: Done<u64>,
}

/// Questions on their way to other members.
#[derive(Default)]
struct Waiting {
    next: u64,
    appends: BTreeMap<u64, (RaftId, Lane, mpsc::Sender<AppendAnswer>)>,
    votes: BTreeMap<u64, oneshot::Sender<VoteResponse<TypeConfig>>>,
    reads: BTreeMap<u64, oneshot::Sender<Option<u64>>>,
}

/// A lock that survives a panic elsewhere: what is locked here is changed in
/// single assignments, and the engine reports the panic as its failure.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outbox {
    pub fn new(queue: PendingQueue, epoch: Instant) -> Self {
        Outbox {
            state: Mutex::new(OutboxState {
                queue,
                leader: None,
                round: 0,
                round_base: 0,
                sent_high: (0, 0),
            }),
            wake: Notify::new(),
            epoch,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, OutboxState> {
        lock(&self.state)
    }

    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The leader did not take `round` (`None`: the way to it broke).
    pub fn refused(&self, round: Option<u64>) {
        let now = self.now();
        let mut s = self.lock();
        if round.is_some_and(|r| r < s.round_base) {
            return;
        }
        s.round_base = s.round + 1;
        s.queue.on_refused(now);
        drop(s);
        self.wake.notify_one();
    }
}

impl Core {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        config: EngineConfig,
        id: RaftId,
        net: Arc<dyn Network>,
        handler: Arc<dyn NodeHandler>,
        storage: Arc<Storage>,
        outbox: Arc<Outbox>,
        epoch: Instant,
    ) -> Arc<Core> {
        let incarnation = storage.incarnation();
        Arc::new(Core {
            config,
            id,
            net,
            handler,
            storage,
            raft: Mutex::default(),
            incarnation: AtomicU32::new(incarnation),
            outbox,
            lease: Mutex::default(),
            waiting: Mutex::default(),
            confirm: Mutex::default(),
            accepted: Notify::new(),
            heard: Mutex::default(),
            ticked: Mutex::default(),
            too_slow: Mutex::default(),
            needed: Mutex::default(),
            told_back: Mutex::default(),
            reads: Mutex::default(),
            reads_wake: Notify::new(),
            desired: Mutex::default(),
            desired_wake: Notify::new(),
            left_behind: Mutex::default(),
            stood_down: AtomicBool::new(false),
            processed: AtomicU64::new(0),
            desired_moved: AtomicBool::new(false),
            whereabouts: Mutex::default(),
            status_wake: Notify::new(),
            failed: Mutex::default(),
            failed_wake: Notify::new(),
            core_wait: CoreWait::default(),
            gathered: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            epoch,
        })
    }

    /// Whom the node wants as members, from now on.
    pub fn set_desired(&self, mut members: BTreeMap<RaftId, Desired>) {
        // Held: whoever goes on alone meanwhile is not wished otherwise after it.
        let left = lock(&self.left_behind);
        members.retain(|id, _| !left.contains(id));
        *lock(&self.desired) = members;
        drop(left);
        self.desired_moved.store(true, Ordering::Release);
        self.desired_wake.notify_one();
    }

    /// From now on this node alone is wanted, and who joins it later: not `others`.
    pub fn want_alone(&self, others: &[RaftId]) {
        let mut left = lock(&self.left_behind);
        left.extend(others);
        let addr = self.config.addr.clone();
        let own = Desired { addr, voter: true };
        *lock(&self.desired) = [(self.id, own)].into();
    }

    /// The node takes nothing more.
    pub fn stand_down(&self) {
        self.stood_down.store(true, Ordering::Release);
        self.desired_wake.notify_one();
    }

    /// Whether it said so.
    pub fn stood_down(&self) -> bool {
        self.stood_down.load(Ordering::Acquire)
    }

    /// The node is done with everything handed out so far.
    pub fn node_asks_for_more(&self) {
        let (.., handed_out) = self.storage.positions();
        self.processed.store(handed_out, Ordering::Release);
        if self.desired_moved.swap(false, Ordering::AcqRel) {
            self.desired_wake.notify_one();
        }
    }

    /// What the node wants of the members follows from the log up to here.
    pub fn processed(&self) -> u64 {
        self.processed.load(Ordering::Acquire)
    }

    /// Completes the core; before it, [`raft`](Core::raft) has nothing.
    /// Whatever an earlier one had under way is forgotten.
    pub fn set_raft(&self, raft: Raft) {
        *lock(&self.raft) = Some(raft);
        self.incarnation
            .store(self.storage.incarnation(), Ordering::Release);
        *lock(&self.lease) = Lease::default();
        let mut waiting = lock(&self.waiting);
        waiting.appends.clear();
        waiting.votes.clear();
        waiting.reads.clear();
        self.changing.store(false, Ordering::Release);
    }

    /// From now on, until [`set_raft`](Core::set_raft), the end of the
    /// consensus is as it should be.
    pub fn change_raft(&self) {
        self.changing.store(true, Ordering::Release);
    }

    /// The consensus, once it runs.
    pub fn raft(&self) -> Option<Raft> {
        lock(&self.raft).clone()
    }

    /// Whose frames this engine listens to.
    pub fn incarnation(&self) -> u32 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Time since the engine was made, on the monotonic (or simulated) clock.
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The moment `at` after the engine was made.
    pub fn instant(&self, at: Duration) -> Instant {
        self.epoch + at
    }

    /// Marks the engine dead; the first reason stays.
    pub fn fail(&self, why: String) {
        lock(&self.failed).get_or_insert(why);
        self.storage.close();
        self.status_wake.notify_one();
        self.failed_wake.notify_one();
    }

    /// Ends when the engine is dead. For one caller.
    pub async fn has_failed(&self) {
        while self.failure().is_none() {
            self.failed_wake.notified().await;
        }
    }

    /// Why the engine is dead, if it is.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    /// `Err` if the engine is dead.
    pub fn alive(&self) -> Result<(), OrderError> {
        match self.failure() {
            Some(why) => Err(OrderError::Failed(why)),
            None => Ok(()),
        }
    }

    /// Sends to one member; what cannot be sent is lost, as on any network.
    pub fn send(&self, to: RaftId, lane: Lane, wire: &Wire) -> Result<(), SendError> {
        self.net.send(to, lane, wire.encode(self.incarnation()))
    }

    /// Sends to every other member.
    pub fn cast(&self, wire: &Wire) {
        let frame = wire.encode(self.incarnation());
        for id in self.other_members() {
            // Best effort: the node repeats what matters.
            let _ = self.net.send(id, Lane::Node, frame.clone());
        }
    }

    /// Members by the newest entry, without this one.
    pub fn other_members(&self) -> Vec<RaftId> {
        let Some(raft) = self.raft() else {
            return Vec::new();
        };
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics
            .membership_config
            .nodes()
            .map(|(id, _)| *id)
            .filter(|id| *id != self.id)
            .collect()
    }

    /// The leader this node knows, and its term.
    pub fn leader(&self) -> Option<(RaftId, u64)> {
        let raft = self.raft()?;
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        m.current_leader.map(|id| (id, m.current_term))
    }

    /// What is left of the lease: as leader by the majority's last answers, as
    /// follower by the leader's last promise.
    pub fn lease_left(&self) -> Duration {
        if self.failure().is_some() {
            return Duration::ZERO;
        }
        let Some(raft) = self.raft() else {
            return Duration::ZERO;
        };
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        if m.running_state.is_err() {
            return Duration::ZERO;
        }
        if m.state == ServerState::Leader {
            let alone = m
                .membership_config
                .voter_ids()
                .all(|voter| voter == self.id);
            let acked = match m.last_quorum_acked {
                Some(_) if alone => return self.config.lease,
                Some(at) => at,
                None => return Duration::ZERO,
            };
            return self.config.lease.saturating_sub(acked.elapsed());
        }
        lock(&self.lease).left(self.now())
    }

    /// Something of `member` came in.
    pub fn hears(&self, member: RaftId) {
        lock(&self.heard).insert(member, self.now());
    }

    /// Whether something of `member` came in within this time.
    pub fn heard_within(&self, member: RaftId, within: Duration) -> bool {
        let heard = lock(&self.heard).get(&member).copied();
        heard.is_some_and(|at| self.now() < at + within)
    }

    /// Whether this leader hears nobody, and keeps silent for that ([`keeps_silent`]).
    pub fn deaf(&self) -> bool {
        let Some(raft) = self.raft() else {
            return false;
        };
        let (now, heard) = (self.now(), lock(&self.heard));
        let silent_for = |id| now.saturating_sub(heard.get(&id).copied().unwrap_or_default());
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        let configs = m.membership_config.membership().get_joint_config();
        let times = (self.config.heartbeat, self.config.election_max);
        keeps_silent(self.id, configs, silent_for, times)
    }

    /// Whether storing this node's newest vote was slow, and whoever got it may still be elected.
    pub fn voted_slowly(&self) -> bool {
        self.storage.disk.vote_lately() > self.config.election_min / SLOW_VOTE
    }

    /// Own messages get numbers only while a majority seems to be in reach:
    /// what has none can still be taken back. To be called when that may have
    /// changed.
    pub fn hold_or_send(&self) {
        let held = self.lease_left().is_zero() || !self.linked();
        let news = self.outbox.lock().queue.hold(held);
        if news && !held {
            self.outbox.wake.notify_one();
        }
    }

    /// Whether the links stand without which nothing of this node is ordered:
    /// those to a majority, or the one to the leader.
    fn linked(&self) -> bool {
        let Some(raft) = self.raft() else {
            return false;
        };
        let (leader, members) = {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            (m.current_leader, from_raft_members(&m.membership_config))
        };
        let links = self.net.peers_status();
        let up = |id: &RaftId| {
            let link = links.get(id).map(|l| l.up[Lane::Bulk.index()]);
            *id == self.id || link.unwrap_or(false)
        };
        match leader {
            Some(id) if id == self.id => members
                .configs
                .iter()
                .all(|c| 2 * c.iter().filter(|id| up(id)).count() > c.len()),
            Some(id) => up(&id),
            None => false,
        }
    }

    /// A leader's frame came in.
    pub fn promised(&self, leadership: (u64, RaftId), left: Duration) {
        let now = self.now();
        let stood = self.is_late(now);
        let mut lease = lock(&self.lease);
        if stood {
            lease.stood();
        }
        let was_out = lease.left(now).is_zero();
        // Never believe more than this node's own setting.
        let left = left.min(self.config.lease);
        lease.promised(leadership, left, now, self.config.heartbeat);
        if was_out && !lease.left(now).is_zero() {
            drop(lease);
            self.status_wake.notify_one();
        }
    }

    /// Whether the node's tick is long overdue: this process got no time.
    fn is_late(&self, now: Duration) -> bool {
        now > *lock(&self.ticked) + self.config.tick + self.config.heartbeat
    }

    /// The node's tick is due. Whoever sees first that it is late says so.
    pub fn ticks(&self) {
        let now = self.now();
        if self.is_late(now) {
            lock(&self.lease).stood();
        }
        *lock(&self.ticked) = now;
    }

    /// A picture of everything.
    pub fn status(&self) -> OrderStatus {
        let failed = self.failure();
        let (first_log, last, durable, committed, delivered) = self.storage.positions();
        let pending = self.outbox.lock().queue.status();
        let mut status = OrderStatus {
            id: self.id,
            first_log,
            last,
            durable,
            committed,
            delivered,
            pending: pending.count,
            pending_bytes: pending.bytes,
            core_wait: self.core_wait.mean(),
            gathered: self.gathered.load(Ordering::Relaxed),
            log_held_up: self.storage.held_up(),
            log_too_slow: *lock(&self.too_slow),
            unreadable: self.storage.lost_entry(),
            ..OrderStatus::default()
        };
        if let Some(raft) = self.raft() {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            status.term = m.current_term;
            status.members = from_raft_members(&m.membership_config);
            status.in_force = from_raft_members(&m.committed_membership_config)
                .addrs
                .into_keys()
                .chain(status.members.addrs.keys().copied())
                .collect();
            status.leader = m.current_leader.map(|id| {
                let addr = status.members.addrs.get(&id).cloned();
                (id, addr.unwrap_or_default())
            });
            let leads = m.state == ServerState::Leader;
            status.is_leader = leads && m.last_quorum_acked.is_some();
            if leads {
                status.peers = peers_of(&m);
            }
            if let Err(fatal) = &m.running_state
                && !self.changing.load(Ordering::Acquire)
            {
                status.failed = Some(fatal.to_string());
            }
        }
        status.lease_left = self.lease_left();
        status.primary = !status.lease_left.is_zero();
        if failed.is_some() {
            status.failed = failed;
        }
        if status.failed.is_some() {
            status.primary = false;
            status.is_leader = false;
        }
        status
    }

    /// Runs `task` in the background. Its panic is the engine's failure, not
    /// the process's.
    pub fn supervise(
        self: &Arc<Self>,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        use futures_util::FutureExt;
        let core = self.clone();
        spawn(async move {
            let outcome = std::panic::AssertUnwindSafe(task).catch_unwind().await;
            if let Err(panic) = outcome {
                let why = panic
                    .downcast_ref::<&str>()
                    .map(|s| (*s).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "no reason given".to_owned());
                core.fail(format!("its {name} task panicked: {why}"));
            }
        })
    }

    /// Tells who waits for a read index that the engine was stopped.
    pub fn drop_reads(&self) {
        for read in std::mem::take(&mut *lock(&self.reads)) {
            (read.done)(Err(OrderError::Stopped));
        }
    }

    /// Opens a session of appends to a member.
    pub fn open_session(
        &self,
        to: RaftId,
        lane: Lane,
        window: usize,
    ) -> (u64, mpsc::Receiver<AppendAnswer>) {
        let (tx, rx) = mpsc::channel(window);
        let mut w = lock(&self.waiting);
        w.next += 1;
        let session = w.next;
        w.appends.insert(session, (to, lane, tx));
        (session, rx)
    }

    /// Closes a session.
    pub fn close_session(&self, session: u64) {
        lock(&self.waiting).appends.remove(&session);
    }

    /// Hands an answer to its session. Only the member asked may answer.
    pub fn append_answered(&self, from: RaftId, session: u64, answer: AppendAnswer) {
        if let Some((to, _, tx)) = lock(&self.waiting).appends.get(&session)
            && *to == from
        {
            // A full channel means more answers than questions: the session
            // sees its end and begins anew.
            let _ = tx.try_send(answer);
        }
    }

    /// The link of `lane` to `peer` broke: its sessions end.
    pub fn link_broke(&self, peer: RaftId, lane: Lane) {
        lock(&self.waiting)
            .appends
            .retain(|_, (to, l, _)| *to != peer || *l != lane);
    }

    /// Asks whether this node still leads; see [`Confirm`].
    pub fn question(&self) -> Question {
        lock(&self.confirm).ask()
    }

    /// The mark for an append that is made now.
    pub fn mark(&self) -> Question {
        lock(&self.confirm).mark()
    }

    /// `member` has accepted an append made in `term` under `mark`.
    pub fn accepted(&self, member: RaftId, term: u64, mark: Question) {
        lock(&self.confirm).accepted(member, term, mark);
        self.accepted.notify_waiters();
    }

    /// `member` says to a leader of `term` that it has not got the entry at `index`. If it had said before that it is
    /// stored, the node is told, once in a while.
    pub fn lacks(&self, member: RaftId, term: u64, index: u64) {
        let Some(raft) = self.raft() else { return };
        let had = {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            let matched = m.replication.as_ref().and_then(|r| r.get(&member));
            m.current_term == term && matched.copied().flatten().is_some_and(|l| l.index >= index)
        };
        if !had {
            return;
        }
        let now = self.now();
        let mut told = lock(&self.told_back);
        told.retain(|_, at| now < *at + TOLD_BACK);
        if let Entry::Vacant(e) = told.entry(member) {
            e.insert(now);
            drop(told);
            self.handler.went_back(member, index);
        }
    }

    /// Ends when a majority has followed this node in `term` since `question`.
    pub async fn confirmed(&self, question: Question, term: u64) {
        let Some(raft) = self.raft() else {
            return std::future::pending().await;
        };
        loop {
            let mut news = std::pin::pin!(self.accepted.notified());
            // Before looking, so that nothing falls between.
            news.as_mut().enable();
            let members = from_raft_members(&raft.metrics().borrow_watched().membership_config);
            if lock(&self.confirm).confirmed(question, term, self.id, &members) {
                return;
            }
            news.await;
        }
    }

    /// The members are these now.
    pub fn forget_answers(&self, members: &Members) {
        lock(&self.confirm).retain(members);
        lock(&self.heard).retain(|id, _| members.is_voter(*id));
    }

    /// Announces a vote question; the answer comes out of the receiver.
    pub fn expect_vote(&self) -> (u64, oneshot::Receiver<VoteResponse<TypeConfig>>) {
        let (tx, rx) = oneshot::channel();
        let mut w = lock(&self.waiting);
        w.next += 1;
        let id = w.next;
        w.votes.retain(|_, tx| !tx.is_closed());
        w.votes.insert(id, tx);
        (id, rx)
    }

    /// Hands a vote to who waits for it.
    pub fn voted(&self, id: u64, response: VoteResponse<TypeConfig>) {
        if let Some(tx) = lock(&self.waiting).votes.remove(&id) {
            let _ = tx.send(response);
        }
    }

    /// Announces a read-index question.
    pub fn expect_read(&self) -> (u64, oneshot::Receiver<Option<u64>>) {
        let (tx, rx) = oneshot::channel();
        let mut w = lock(&self.waiting);
        w.next += 1;
        let id = w.next;
        w.reads.retain(|_, tx| !tx.is_closed());
        w.reads.insert(id, tx);
        (id, rx)
    }

    /// Hands a read index to who waits for it.
    pub fn read_index_is(&self, id: u64, index: Option<u64>) {
        if let Some(tx) = lock(&self.waiting).reads.remove(&id) {
            let _ = tx.send(index);
        }
    }
}

/// What a leader's metrics say about the others.
pub(crate) fn peers_of(m: &openraft::RaftMetrics<TypeConfig>) -> BTreeMap<RaftId, PeerStatus> {
    let mut peers = BTreeMap::new();
    let Some(replication) = &m.replication else {
        return peers;
    };
    for (id, matched) in replication.iter().filter(|(id, _)| **id != m.id) {
        let heard = m.heartbeat.as_ref().and_then(|h| h.get(id).copied());
        peers.insert(
            *id,
            PeerStatus {
                matched: matched.as_ref().map_or(0, |l| l.index),
                silent: heard.flatten().map(|at| at.elapsed()),
            },
        );
    }
    peers
}
