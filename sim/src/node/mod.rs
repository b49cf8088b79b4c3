//! A cluster node that is stepped: the real order engine and the real
//! deterministic state, with tasks on the node's own simulated clock where the
//! server's node has threads.
//!
//! ```text
//!   process ── session ── session ── …        (a session: one engine, one membership)
//!                 │
//!   engine ──> deliver ──> ClusterState ──> entries ──> Positions ──> database
//!                 ▲                            │
//!   clients ── propose        own ones: the waiting client; others: appliers
//! ```
//!
//! [`start`] finds or founds the cluster, [`deliver`] takes what is ordered,
//! [`apply`] commits it, [`large`] does so in chunks, read from the log by [`left`], [`duties`] answers, reports, leads and comes back,
//! [`alone`] goes on without a majority, [`clients`] make the load.

mod alone;
mod apply;
mod clients;
mod deliver;
mod duties;
mod large;
mod left;
mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use dromon_gates::Positions;
use dromon_node::Position;
use dromon_node::cluster::{ChunkPart, Chunked, ClusterState, ClusterView, MemberState};
use dromon_node::electors::Weighing;
use dromon_node::in_log::LeftInLog;
use dromon_node::messages::{Control, LeaveReason, Need, Progress, encode, kind};
use dromon_node::stalled::Stalled;
use dromon_order::{Engine, Leadership, Order, RaftId};
use dromon_writeset::{Seqno, Uuid};
use futures_util::FutureExt;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) use start::history;

use crate::database::{Image, Txn};
use crate::disk::SimStore;
use crate::plant::Plant;
use crate::rng::Rng;
use crate::shared::{Host, Shared, lock};

/// Why a process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It left the cluster as asked.
    Left,
    /// Its engine died, of a failing disk for instance.
    Died,
}

/// One process of a node, from its start to its death.
pub struct Process {
    shared: Arc<Shared>,
    host: Arc<Host>,
    /// Whether to found the cluster, once.
    founder: AtomicBool,
    leave: AtomicBool,
    leave_wake: Notify,
    inner: Mutex<ProcessInner>,
}

struct ProcessInner {
    rng: Rng,
    exit: Option<Exit>,
    session: Option<Arc<Session>>,
    /// The log of this node is no longer among the members'.
    log_is_gone: bool,
}

/// What the world may see of a running node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Whether it is a synced member of the primary component with nothing left
    /// to do.
    pub settled: bool,
    /// Whether it is a synced member of the primary component.
    pub serves: bool,
    /// Its position.
    pub position: Position,
    /// Its log's name, and those that vote by it, committed or not.
    pub id: RaftId,
    /// See `id`.
    pub voters: BTreeSet<RaftId>,
    /// Whether it leads, and in which term.
    pub leads: Option<Leadership>,
    /// How many members it sees.
    pub members: usize,
    /// Whether it hears a majority.
    pub primary: bool,
    /// Whether it has a state with which it could go on alone.
    pub complete: bool,
    /// Whether something is being applied in chunks, and whether it comes from a
    /// client here.
    pub open: bool,
    /// See `open`.
    pub sends: bool,
    /// Everything, for the report.
    pub text: String,
}

impl Process {
    /// A process on `host`, its `birth`th. `founder`: it founds the cluster.
    pub fn new(shared: Arc<Shared>, host: Arc<Host>, birth: u64, founder: bool) -> Arc<Self> {
        let rng = Rng::new(shared.seed, &[0x0de, host.slot as u64, birth]);
        Arc::new(Process {
            shared,
            host,
            founder: AtomicBool::new(founder),
            leave: AtomicBool::new(false),
            leave_wake: Notify::new(),
            inner: Mutex::new(ProcessInner {
                rng,
                exit: None,
                session: None,
                log_is_gone: false,
            }),
        })
    }

    /// The whole life of the process.
    pub async fn live(self: Arc<Self>) {
        loop {
            match start::session(&self).await {
                Ended::Exit(exit) => {
                    self.note(format_args!("process ends: {exit:?}"));
                    lock(&self.inner).exit = Some(exit);
                    return;
                }
                Ended::Again { log_is_gone } => {
                    lock(&self.inner).log_is_gone = log_is_gone;
                    let pause = self.rng().ms(50, 300);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Asks the node to leave the cluster and end.
    pub fn leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
        self.leave_wake.notify_one();
    }

    /// How the process ended, if it did.
    pub fn exit(&self) -> Option<Exit> {
        lock(&self.inner).exit
    }

    /// What can be seen of it. To be called inside its runtime.
    pub fn picture(&self) -> Option<Picture> {
        let session = lock(&self.inner).session.clone()?;
        session.picture()
    }

    /// The process dies; nothing of it runs any more. With `power` lost, its
    /// disks forget what was not synced.
    pub fn crash(&self, power: bool) {
        self.shared.net.unplug(self.host.slot);
        let seed = self.rng().u64();
        let session = lock(&self.inner).session.take();
        match session.as_ref().and_then(|s| lock(&s.store).take()) {
            Some(store) => store.crash(power, seed),
            None if power => self.host.device.crash(seed),
            None => self.host.device.kill(),
        }
        let mut database = self.host.database();
        database.crash();
        if self.shared.planted_everywhere(Plant::ChunksLost) {
            database.now.uncommitted.clear();
        }
    }

    fn rng(&self) -> Rng {
        let mut inner = lock(&self.inner);
        let seed = inner.rng.u64();
        Rng::new(seed, &[])
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.shared.note(Some(self.host.slot), what);
    }
}

/// How a session ended.
enum Ended {
    /// The process is done.
    Exit(Exit),
    /// Another session follows. `log_is_gone`: with a new log.
    Again { log_is_gone: bool },
}

/// Where a session stands; as the server's node counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not a member with data yet.
    Joining,
    /// A member.
    Joined,
    /// Lost the majority.
    NonPrimary,
    /// Was asked to leave.
    Leaving,
}

/// One engine and what hangs on it.
struct Session {
    /// It has no database.
    witness: bool,
    process: Arc<Process>,
    shared: Arc<Shared>,
    host: Arc<Host>,
    uuid: Uuid,
    addr: String,
    engine: OnceLock<Arc<Engine>>,
    /// What its log must keep of large transactions.
    left: Arc<LeftInLog>,
    store: Mutex<Option<Arc<SimStore>>>,
    inner: Mutex<Inner>,
    /// Something that a task may wait for has changed.
    changed: Notify,
    /// The session is to end.
    over: Notify,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Inner {
    /// It has no database.
    witness: bool,
    rng: Rng,
    phase: Phase,
    state: ClusterState,
    /// Last log index delivered.
    index: u64,
    /// Where seqnos stand in the log, ascending; for read indexes.
    seqnos: Vec<(u64, Seqno)>,
    positions: Positions,
    /// Ordered and not released.
    entries: BTreeMap<Seqno, Entry>,
    /// The database has no position yet: nothing is handed to it.
    held: bool,
    pending: BTreeMap<u64, Pending>,
    next_tag: u64,
    /// For the choices about large transactions.
    large_rng: Rng,
    /// Large transactions of clients that wait here, by their first seqno.
    own_large: BTreeMap<Seqno, Pending>,
    /// The pace of those that are not over.
    paces: BTreeMap<Seqno, large::Pace>,
    /// Counters that this node's clients hold.
    locks: BTreeSet<u32>,
    /// Somebody else has to order its join.
    joins_by_leader: bool,
    joined: Option<(ClusterView, Need)>,
    own_state: MemberState,
    own_leave: Option<LeaveReason>,
    /// The others go on without it; nothing more is delivered here.
    evicted: bool,
    no_donor: bool,
    transfer_failed: bool,
    received: Option<Image>,
    /// Copies to be given: from which seqno on, to whom, where.
    donations: Vec<(Seqno, Uuid, String)>,
    marks: VecDeque<Mark>,
    entries_since_checkpoint: u64,
    view_seen: bool,
    reports: BTreeMap<Uuid, (Progress, Instant)>,
    /// Since when each member is known.
    known: BTreeMap<Uuid, Instant>,
    stalled: Stalled,
    evicting: BTreeMap<Uuid, Instant>,
    cut_asked: Seqno,
    sync_asked: bool,
    primary_lost: Option<Instant>,
    rejoin_asked: bool,
    last_tick: Option<Instant>,
    /// What is ordered up to here is in the database already.
    floor: Seqno,
    report_number: u64,
    /// Members that a forced recovery has left behind.
    forced_out: BTreeSet<RaftId>,
    /// Who was evicted and counts on for a while ([`Plant::CutBehind`]), since when.
    half_removed: BTreeMap<RaftId, Instant>,
    /// What the weights came to when it looked last.
    weighing: Weighing,
    /// A witness that leads: when it last asked another one to.
    handed_over: Option<Instant>,
    /// Planted: numbers given to messages instead of their own.
    renumbered: BTreeMap<Uuid, u64>,
    ended: Option<Ended>,
}

/// A checkpoint in the log.
#[derive(Clone, Copy, Debug)]
struct Mark {
    index: u64,
    seqno: Seqno,
}

/// A client that waits for its write set.
struct Pending {
    last_seen: Seqno,
    txn: u64,
    /// The sets of voters when it was sent.
    voters: Vec<BTreeSet<RaftId>>,
    tell: oneshot::Sender<Fate>,
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    Failed,
}

/// An event at its seqno.
struct Entry {
    index: u64,
    term: u64,
    depends_on: Seqno,
    stage: Stage,
    work: Work,
    local: Option<Pending>,
}

/// What the database does at a seqno.
enum Work {
    /// Counts it.
    Nothing,
    /// Commits a transaction.
    Whole(Txn),
    /// Does its part of a large one.
    Part(Arc<Chunked>, ChunkPart),
    /// Takes note of who the members are.
    View(BTreeSet<Uuid>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For an applier and its dependency.
    Waiting,
    /// Somebody works on it.
    Running,
    /// For its turn in commit order.
    Ready,
    /// In the database; not released.
    Left,
}

impl Session {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    fn engine(&self) -> Option<&Arc<Engine>> {
        self.engine.get()
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.shared.note(Some(self.host.slot), what);
    }

    /// Runs `task` until the session ends. A panic in it ends the run.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let (shared, slot) = (self.shared.clone(), self.host.slot);
        let handle = tokio::spawn(async move {
            let outcome = std::panic::AssertUnwindSafe(task).catch_unwind().await;
            if let Err(panic) = outcome {
                let why = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                shared.unsound(slot, format_args!("panic: {}", why.unwrap_or_default()));
            }
        });
        let mut tasks = lock(&self.tasks);
        tasks.retain(|t| !t.is_finished());
        tasks.push(handle);
    }

    /// Ends the session; the first reason counts.
    fn end(&self, how: Ended, why: &str) {
        let mut inner = self.inner();
        if inner.ended.is_none() {
            inner.ended = Some(how);
            drop(inner);
            self.note(format_args!("session ends: {why}"));
            self.over.notify_one();
        }
    }

    /// Hands a control message of this node to the order.
    fn say(&self, control: &Control) -> bool {
        self.engine()
            .is_some_and(|e| e.propose(kind::CONTROL, 0, encode(control)).is_ok())
    }

    /// Waits until `ready` answers something, or for `limit`.
    async fn wait<T>(
        &self,
        limit: Duration,
        mut ready: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registers before looking, so that no change falls between.
            changed.as_mut().enable();
            if let Some(found) = ready(&mut self.inner()) {
                return Some(found);
            }
            tokio::time::timeout_at(deadline, changed).await.ok()?;
        }
    }

    fn picture(&self) -> Option<Picture> {
        let status = self.engine()?.status();
        let inner = self.inner();
        let at = inner.state.position();
        let serves = inner.phase == Phase::Joined
            && inner.own_state == MemberState::Synced
            && !inner.held
            && status.primary;
        let settled = serves
            && inner.pending.is_empty()
            && !inner.state.has_chunked()
            && inner.positions.released() == at.seqno
            && inner.index == status.committed
            && status.pending == 0;
        Some(Picture {
            settled,
            serves,
            position: at,
            id: status.id,
            voters: status.members.voters(),
            leads: status.is_leader.then_some(status.leads()),
            members: inner.state.members().count(),
            primary: status.primary,
            complete: matches!(inner.phase, Phase::Joined | Phase::NonPrimary)
                && !inner.held
                && !inner.evicted,
            open: inner.state.has_chunked(),
            sends: !inner.own_large.is_empty(),
            text: format!(
                "{:?} {:?} held {} at {} released {} left {} next {:?} index {} of {} (log to {}) pending {} ({} in the \
                 order) open {:?} primary {} leader {:x?} id {:x} voters {:x?} of {:x?} members {:?} failed {:?}",
                inner.phase,
                inner.own_state,
                inner.held,
                at.seqno,
                inner.positions.released(),
                inner.positions.left(),
                inner
                    .entries
                    .iter()
                    .next()
                    .map(|(s, e)| (*s, e.stage, e.depends_on)),
                inner.index,
                status.committed,
                status.last.index,
                inner.pending.len(),
                status.pending,
                inner
                    .state
                    .chunked()
                    .map(|(c, n)| (c.id, n))
                    .collect::<Vec<_>>(),
                status.primary,
                status.leader.as_ref().map(|l| l.0),
                status.id,
                status.members.configs,
                status.members.addrs,
                inner
                    .state
                    .members()
                    .map(|m| (m.name.as_str(), m.state, m.complete))
                    .collect::<Vec<_>>(),
                status.failed,
            ),
        })
    }
}
