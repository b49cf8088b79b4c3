//! The engine: openraft on one thread, behind [`Order`].
//!
//! ```text
//!                    propose                       next_committed
//!                       │                                ▲
//!                 ┌─────▼─────┐                    ┌─────┴─────┐
//!                 │  outbox   │                    │  storage  │<── durable ── log thread
//!                 └─────┬─────┘                    └─────▲─────┘
//!               forward │  (to whoever leads)            │ append, apply
//!   network ◄───────────┼───────────── route ──┐         │
//!                       │                      ▼         │
//!                       └──> write_intake ──> consensus core ──> engine_net ──> network
//! ```
//!
//! All of it runs on the thread `dromon-order`, or inside a simulation's
//! runtime ([`Engine::start_in`]). Other threads only push into bounded queues
//! and read positions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use dromon_writeset::Uuid;
use openraft::{Config, SnapshotPolicy};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::checked::Sums;
use crate::codec::Wire;
use crate::cores::watch_cores;
use crate::engine_core::{Core, Outbox, PendingRead, lock};
use crate::engine_net::Clients;
use crate::engine_tasks::{
    forward, hand_over, is_at, leave_the_lead, read_indexes, reconcile, route, tick, watch,
};
use crate::intake::{intake, write_intake};
use crate::logstore::LogStore;
use crate::network::{Lane, NetError, Network};
use crate::pending::{PendingLimits, PendingQueue, PushError};
use crate::raft_types::Raft;
use crate::runtime::{seeded, spawn};
use crate::sequencer::Committed;
use crate::storage::{RaftLog, StateMachine, Storage, forgetful, saved_id};
use crate::types::{
    BoxFuture, Checkpoint, Desired, Done, EngineConfig, Gathering, LogId, NodeHandler, Order,
    OrderError, OrderStatus, RaftId, Start,
};

/// Orders from other threads that wait to be carried out, at most.
const COMMANDS_MAX: usize = 4096;
/// How long a clean stop may take before the thread is left to itself.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The engine's handle. See the module's words.
pub struct Engine {
    core: Arc<Core>,
    commands: mpsc::Sender<Command>,
    stopping: AtomicBool,
    stopped: Arc<Stopped>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Two events, each of which happens once: the stop is asked for, the stop is
/// complete.
#[derive(Default)]
struct Stopped {
    asked: Notify,
    yes: AtomicBool,
    wake: Notify,
}

enum Command {
    Request {
        addr: String,
        body: Bytes,
        timeout: Duration,
        done: Done<Bytes>,
    },
    Cast(Bytes),
    Transfer(Option<RaftId>),
    Alone(Seen, Done<()>),
    Purge(u64),
}

/// What somebody has seen who wants to go on alone.
struct Seen {
    primary: bool,
    term: u64,
    last: LogId,
}

impl Seen {
    fn of(status: &OrderStatus) -> Self {
        Seen {
            primary: status.primary,
            term: status.term,
            last: status.last,
        }
    }

    /// Whether it is so `now`, too, but for a lease that has run out.
    fn holds(&self, now: &OrderStatus) -> bool {
        self.term == now.term && self.last == now.last && (self.primary || !now.primary)
    }
}

/// Makes the transport for the member of this id, inside the engine's runtime.
/// The error is a sentence for the operator.
pub type MakeNetwork = Box<dyn FnOnce(RaftId) -> Result<Arc<dyn Network>, String> + Send>;

/// Starts an engine on a thread of its own and waits until it runs.
pub fn start(
    config: EngineConfig,
    store: Arc<dyn LogStore>,
    network: MakeNetwork,
    handler: Arc<dyn NodeHandler>,
    start: Start,
) -> Result<Arc<dyn Order>, OrderError> {
    let (tx, rx) = std_mpsc::sync_channel::<Result<Arc<Engine>, OrderError>>(1);
    let failed = |what: &str, e: std::io::Error| {
        OrderError::Refused(format!("the ordering engine cannot start: {what}: {e}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| failed("no runtime", e))?;
    let thread = thread::Builder::new()
        .name("dromon-order".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                let made = match make_network(&config, &store, &start, network) {
                    Ok(net) => Engine::start_in(config, store, net, handler, start).await,
                    Err(e) => Err(e),
                };
                let stopped = made.as_ref().ok().map(|e| e.stopped.clone());
                if tx.send(made).is_ok()
                    && let Some(stopped) = stopped
                {
                    stopped.wait().await;
                }
            });
            // Whatever still runs has nothing to say any more.
            runtime.shutdown_background();
        })
        .map_err(|e| failed("no thread", e))?;
    let engine = rx.recv().unwrap_or(Err(OrderError::Stopped))?;
    *lock(&engine.thread) = Some(thread);
    Ok(engine)
}

fn make_network(
    config: &EngineConfig,
    store: &Arc<dyn LogStore>,
    start: &Start,
    network: MakeNetwork,
) -> Result<Arc<dyn Network>, OrderError> {
    let id = match start {
        Start::Resume => saved_id(store)?,
        Start::Bootstrap { .. } | Start::Join { .. } => config.fresh_id,
    };
    network(id).map_err(OrderError::Refused)
}

impl Stopped {
    fn set(&self) {
        self.yes.store(true, Ordering::Release);
        self.wake.notify_waiters();
    }

    async fn wait(&self) {
        loop {
            let notified = self.wake.notified();
            if self.yes.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

impl Engine {
    /// Starts an engine inside the current (single-threaded) runtime.
    ///
    /// With `config.seed`, a paused clock, and a network and log that depend
    /// on nothing else, the same inputs give the same run.
    pub async fn start_in(
        config: EngineConfig,
        store: Arc<dyn LogStore>,
        net: Arc<dyn Network>,
        handler: Arc<dyn NodeHandler>,
        start: Start,
    ) -> Result<Arc<Engine>, OrderError> {
        let seed = config.seed.unwrap_or_else(random_seed);
        seeded(seed, Self::start_seeded(config, store, net, handler, start)).await
    }

    async fn start_seeded(
        config: EngineConfig,
        store: Arc<dyn LogStore>,
        net: Arc<dyn Network>,
        handler: Arc<dyn NodeHandler>,
        start: Start,
    ) -> Result<Arc<Engine>, OrderError> {
        raft_config(&config)?;
        if !config.durable && matches!(start, Start::Resume) {
            return Err(forgetful());
        }
        let epoch = Instant::now();
        let limits = PendingLimits {
            piece_bytes: config.piece,
            max_bytes: config.pending_max,
            resend_after: config.resend,
            bulk_share: config.bulk_share,
            ..PendingLimits::default()
        };
        let outbox = Arc::new(Outbox::new(PendingQueue::new(config.origin, limits), epoch));
        let observer = outbox.clone();
        let storage = Storage::open(
            store,
            &start,
            (config.fresh_id, config.durable),
            &config.addr,
            config.cache_max,
            Box::new(move |m| {
                let now = observer.now();
                let mut s = observer.lock();
                if m.origin == s.queue.origin() {
                    s.queue.on_committed(m.oseq, now);
                    drop(s);
                    observer.wake.notify_one();
                } else if matches!(m.part, crate::sequencer::Part::Whole) {
                    s.queue.saw_small();
                }
            }),
        )?;
        let id = storage.id();
        let core = Core::new(config, id, net, handler, storage.clone(), outbox, epoch);
        let raft = new_raft(&core).await?;
        core.set_raft(raft.clone());

        let (commands, command_rx) = mpsc::channel(COMMANDS_MAX);
        let stopped = Arc::new(Stopped::default());
        let tasks = start_tasks(&core, &raft);
        let commander = obey(
            core.clone(),
            raft.clone(),
            command_rx,
            tasks,
            stopped.clone(),
        );
        core.supervise("command", commander);
        spawn(end_if_failed(core.clone(), stopped.clone()));
        elect_if_alone(&core, &raft).await;
        Ok(Arc::new(Engine {
            core,
            commands,
            stopping: AtomicBool::new(false),
            stopped,
            thread: Mutex::new(None),
        }))
    }

    /// [`Order::stop`] for callers inside the runtime.
    pub async fn stopped(&self) {
        self.begin_stop();
        self.stopped.wait().await;
    }

    /// Dies like a process that is killed: nothing more is written or sent.
    /// For simulations; the transport must be cut off by the caller.
    pub async fn kill(&self) {
        self.stopping.store(true, Ordering::Release);
        self.core.killed.store(true, Ordering::Release);
        self.core.fail("killed".to_owned());
        if let Some(raft) = self.core.raft() {
            // Whatever it says, it does not run any more.
            let _ = raft.shutdown().await;
        }
        self.core.net.stop();
    }

    fn begin_stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.core.storage.close();
            self.stopped.asked.notify_one();
        }
    }

    fn command(&self, command: Command) {
        if let Err(e) = self.commands.try_send(command) {
            let (why, command) = match e {
                mpsc::error::TrySendError::Full(c) => (
                    OrderError::Refused(format!(
                        "{COMMANDS_MAX} orders already wait for the ordering engine; it is overloaded"
                    )),
                    c,
                ),
                mpsc::error::TrySendError::Closed(c) => (OrderError::Stopped, c),
            };
            match command {
                Command::Request { done, .. } => done(Err(why)),
                Command::Alone(_, done) => done(Err(why)),
                _ => {}
            }
        }
    }

    fn running(&self) -> Result<(), OrderError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(OrderError::Stopped);
        }
        self.core.alive()
    }
}

/// Carries out what other threads ask for, and at last the stop.
async fn obey(
    core: Arc<Core>,
    mut raft: Raft,
    mut commands: mpsc::Receiver<Command>,
    mut tasks: Vec<JoinHandle<()>>,
    stopped: Arc<Stopped>,
) {
    loop {
        let command = tokio::select! {
            biased;
            () = stopped.asked.notified() => break,
            command = commands.recv() => command,
        };
        match command {
            // The last handle is gone.
            None => break,
            Some(Command::Request {
                addr,
                body,
                timeout,
                done,
            }) => {
                let answer = core.net.request(&addr, body, timeout);
                spawn(async move {
                    done(answer.await.map_err(|e| match e {
                        NetError::TimedOut { addr, timeout, .. } => {
                            OrderError::Timeout { addr, timeout }
                        }
                        e => OrderError::Unreachable {
                            addr,
                            why: e.to_string(),
                        },
                    }));
                });
            }
            Some(Command::Cast(body)) => core.cast(&Wire::Cast(body)),
            Some(Command::Transfer(to)) => hand_over(&core, to).await,
            // Nothing comes in between this look and the change.
            Some(Command::Alone(seen, done)) if !seen.holds(&core.status()) => {
                done(Err(OrderError::NotAsSeen));
            }
            Some(Command::Alone(_, done)) => {
                // Refused: nothing was changed.
                if let Err(e) = core.storage.term_alone() {
                    done(Err(e));
                    continue;
                }
                let outcome = go_alone(&core, &mut raft, &mut tasks).await;
                if let Err(e) = &outcome {
                    core.fail(e.to_string());
                    // Like any other engine that failed it tells the node so, and answers who asks.
                    if tasks.is_empty() {
                        tasks = start_tasks(&core, &raft);
                    }
                }
                done(outcome);
            }
            Some(Command::Purge(index)) => {
                let raft = raft.clone();
                spawn(async move { purge(&raft, index).await });
            }
        }
    }
    commands.close();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Request { done, .. } => done(Err(OrderError::Stopped)),
            Command::Alone(_, done) => done(Err(OrderError::Stopped)),
            _ => {}
        }
    }
    // First who would report the end as a failure; then no more decisions, no
    // more words, no more bytes.
    for task in tasks {
        task.abort();
        // Cancelled, as asked.
        let _ = task.await;
    }
    let _ = raft.shutdown().await;
    core.net.stop();
    core.drop_reads();
    if !core.killed.load(Ordering::Acquire) {
        core.storage.shut();
    }
    stopped.set();
}

/// Ends the consensus of an engine that has failed: as long as that leads, nobody
/// else is elected, and as long as it answers, nobody removes this member. The
/// transport stays, so that others can still ask what is in this log.
async fn end_if_failed(core: Arc<Core>, stopped: Arc<Stopped>) {
    tokio::select! {
        biased;
        () = stopped.wait() => return,
        () = core.has_failed() => {}
    }
    let Some(raft) = core.raft() else { return };
    if core.killed.load(Ordering::Acquire) {
        return;
    }
    // What does not come about within this time does so by an election.
    let _ = timeout(core.config.election_min, leave_the_lead(&core, &raft)).await;
    let _ = raft.shutdown().await;
}

async fn new_raft(core: &Arc<Core>) -> Result<Raft, OrderError> {
    Raft::new(
        core.id,
        Arc::new(raft_config(&core.config)?),
        Clients(core.clone()),
        RaftLog::new(core.storage.clone()),
        StateMachine(core.storage.clone()),
    )
    .await
    .map_err(|e| OrderError::Log(e.to_string()))
}

/// Everything that works with one consensus.
fn start_tasks(core: &Arc<Core>, raft: &Raft) -> Vec<JoinHandle<()>> {
    let (intake_tx, intake_rx) = intake();
    let both = || (core.clone(), raft.clone());
    let inbound = route(core.clone(), raft.clone(), intake_tx.clone());
    let write = write_intake(core.clone(), raft.clone(), intake_rx);
    let (for_reads, for_status, for_members) = (both(), both(), both());
    let mut tasks = vec![
        core.supervise("inbound", inbound),
        core.supervise("write", write),
        core.supervise("forward", forward(core.clone(), intake_tx)),
        core.supervise("read index", read_indexes(for_reads.0, for_reads.1)),
        core.supervise("tick", tick(core.clone())),
        core.supervise("status", watch(for_status.0, for_status.1)),
        core.supervise("membership", reconcile(for_members.0, for_members.1)),
    ];
    if core.config.gather == Gathering::Auto {
        tasks.push(core.supervise("cores", watch_cores(core.clone())));
    }
    tasks
}

/// Puts a consensus of this node alone in the place of the one that has lost
/// its majority. The log, what is delivered and what waits to be ordered stay.
async fn go_alone(
    core: &Arc<Core>,
    raft: &mut Raft,
    tasks: &mut Vec<JoinHandle<()>>,
) -> Result<(), OrderError> {
    core.alive()?;
    let others = core.other_members();
    // First who would report its end as a failure.
    for task in tasks.drain(..) {
        task.abort();
        // Cancelled, as asked.
        let _ = task.await;
    }
    core.change_raft();
    let _ = raft.shutdown().await;
    core.storage
        .go_alone(&core.config.addr)
        .await
        .map_err(|e| OrderError::Log(e.to_string()))?;
    // Not before: the old consensus would have removed the others.
    core.want_alone(&others);
    *raft = new_raft(core).await?;
    core.set_raft(raft.clone());
    if core.failure().is_some() {
        // Meanwhile: the old one was ended instead of it.
        let _ = raft.shutdown().await;
    }
    core.outbox.refused(None);
    *tasks = start_tasks(core, raft);
    elect_if_alone(core, raft).await;
    core.status_wake.notify_one();
    Ok(())
}

/// Lets the consensus know of the newer checkpoint, then lets it purge.
async fn purge(raft: &Raft, index: u64) {
    if raft.trigger().snapshot().await.is_err() {
        return;
    }
    let known = raft
        .wait(Some(Duration::from_secs(5)))
        .metrics(
            |m| m.snapshot.as_ref().is_some_and(|s| s.index >= index),
            "checkpoint taken over",
        )
        .await;
    if known.is_ok() {
        // An error means the consensus is dead, which the status says.
        let _ = raft.trigger().purge_log(index).await;
    }
}

/// The only voter need not wait for anybody.
async fn elect_if_alone(core: &Core, raft: &Raft) {
    let voters: Vec<RaftId> = raft.voter_ids().collect();
    if voters == [core.id] {
        let _ = raft.trigger().elect(false).await;
    }
}

fn raft_config(c: &EngineConfig) -> Result<Config, OrderError> {
    let ms = |d: Duration| d.as_millis() as u64;
    Config {
        cluster_name: c.cluster.clone(),
        election_timeout_min: ms(c.election_min),
        election_timeout_max: ms(c.election_max),
        heartbeat_interval: ms(c.heartbeat),
        // Checkpoints are ours, and so is when to purge.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: u64::MAX,
        max_payload_entries: 4096,
        enable_pre_vote: Some(true),
        // The newest commit is not always on disk, so a restarted leader must
        // be elected again.
        enable_leader_restore: Some(false),
        // Whose disk lost what it had stored is sent it again, as by any later leader, and `went_back` says so. Without
        // this the leader would ask for the same place for ever, and a member that lacks entries would keep its vote.
        allow_log_reversion: Some(true),
        backoff: "200ms".to_owned(),
        ..Config::default()
    }
    .validate()
    .map_err(|e| OrderError::Refused(format!("the timing settings do not fit together: {e}")))
}

/// Different at every call and in every process.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

impl Engine {
    fn push(
        &self,
        push: impl FnOnce(&mut PendingQueue) -> Result<u64, PushError>,
    ) -> Result<u64, OrderError> {
        self.running()?;
        let n = push(&mut self.core.outbox.lock().queue).map_err(|e| match e {
            PushError::Full {
                bytes, max_bytes, ..
            } => OrderError::Full {
                bytes,
                limit: max_bytes,
            },
            e => OrderError::Refused(e.to_string()),
        })?;
        self.core.outbox.wake.notify_one();
        Ok(n)
    }
}

impl Order for Engine {
    fn propose(&self, kind: u8, tag: u64, body: Bytes) -> Result<u64, OrderError> {
        self.push(|queue| queue.push(kind, tag, body))
    }

    fn propose_checked(
        &self,
        kind: u8,
        tag: u64,
        body: Bytes,
        sums: Sums,
    ) -> Result<u64, OrderError> {
        if body.len() > self.core.config.piece {
            return self.push(|queue| queue.push_checked(kind, tag, body, sums));
        }
        // What is sent is what was compared.
        let body = Bytes::copy_from_slice(&body);
        match sums.are_of(&body) {
            true => self.propose(kind, tag, body),
            false => Err(OrderError::Spoilt),
        }
    }

    fn withdraw(&self, kind: u8, tag: u64) -> bool {
        self.core.outbox.lock().queue.withdraw(kind, tag)
    }

    fn set_origin(&self, origin: Uuid) {
        let mut s = self.core.outbox.lock();
        s.queue.reset(origin);
        s.round_base = s.round + 1;
        s.sent_high = (0, u64::MAX);
    }

    fn set_bulk_share(&self, share: f64) {
        self.core.outbox.lock().queue.set_bulk_share(share);
    }

    fn hold_pieces(&self, held: bool) {
        let news = self.core.outbox.lock().queue.hold_pieces(held);
        if news && !held {
            self.core.outbox.wake.notify_one();
        }
    }

    fn next_committed(&self, max: usize, timeout: Duration) -> Vec<Committed> {
        self.core.node_asks_for_more();
        match self.core.storage.next_committed(max, timeout) {
            Ok(entries) => entries,
            Err(e) => {
                if !self.stopping.load(Ordering::Acquire) {
                    self.core.fail(e.to_string());
                }
                Vec::new()
            }
        }
    }

    fn committed_ready(&self) -> BoxFuture<'static, ()> {
        self.core.node_asks_for_more();
        let storage = self.core.storage.clone();
        Box::pin(async move {
            let signal = storage.ready_signal();
            loop {
                let notified = signal.notified();
                tokio::pin!(notified);
                // Registers before looking, so that no signal falls between.
                notified.as_mut().enable();
                if storage.has_committed() {
                    return;
                }
                notified.await;
            }
        })
    }

    fn read_index_then(&self, timeout: Duration, done: Done<u64>) {
        if let Err(e) = self.running() {
            return done(Err(e));
        }
        lock(&self.core.reads).push(PendingRead {
            deadline: Instant::now() + timeout,
            timeout,
            done,
        });
        if self.commands.is_closed() {
            // The stop went by meanwhile and will not come again.
            self.core.drop_reads();
        }
        self.core.reads_wake.notify_one();
    }

    fn set_desired(&self, members: BTreeMap<RaftId, Desired>) {
        self.core.set_desired(members);
    }

    fn found_at(&self, id: RaftId, addr: &str) {
        if self.core.other_members().contains(&id) {
            is_at(&self.core, id, addr);
        }
    }

    fn linked(&self) -> BTreeMap<RaftId, String> {
        let members = self.core.other_members();
        let links = self.core.net.peers_status().into_iter();
        links
            .filter(|(id, l)| members.contains(id) && l.up[Lane::Raft.index()])
            .map(|(id, l)| (id, l.addr))
            .collect()
    }

    fn displaced(&self) -> Option<(Duration, String)> {
        let members = self.core.other_members();
        let links = self.core.net.peers_status().into_iter();
        let links = links.filter(|(id, _)| members.contains(id));
        let links: Vec<_> = links.map(|(_, l)| l).collect();
        if links.iter().any(|l| l.up.contains(&true)) {
            return None;
        }
        let displaced = links.into_iter();
        let displaced = displaced.filter_map(|l| Some((l.displaced?, l.last_error?)));
        displaced.max_by_key(|(since, _)| *since)
    }

    fn stand_down(&self) {
        self.core.stand_down();
    }

    fn save_checkpoint(&self, index: u64, sequencer: Bytes, node: Bytes) -> Result<(), OrderError> {
        self.core.storage.save_checkpoint(index, sequencer, node)
    }

    fn checkpoints(&self) -> Result<Vec<u64>, OrderError> {
        self.core.storage.checkpoints()
    }

    fn load_checkpoint(&self, at_most: Option<u64>) -> Result<Option<Checkpoint>, OrderError> {
        self.core.storage.load_checkpoint(at_most)
    }

    fn log_bytes_before(&self, index: u64) -> u64 {
        self.core.storage.bytes_before(index)
    }

    fn drop_checkpoint(&self, index: u64) -> Result<(), OrderError> {
        self.running()?;
        self.core.storage.drop_checkpoint(index)
    }

    fn purge_to(&self, index: u64) -> Result<(), OrderError> {
        self.running()?;
        if let Some(at) = self.core.storage.prepare_purge(index)? {
            self.command(Command::Purge(at));
        }
        Ok(())
    }

    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<Committed>, OrderError> {
        self.core.storage.read_committed(from, to, max_bytes)
    }

    fn read_stored(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Result<Vec<Committed>, OrderError> {
        self.core.storage.read_stored(from, to, max_bytes)
    }

    fn status(&self) -> OrderStatus {
        self.core.status()
    }

    fn request_then(&self, addr: &str, body: Bytes, timeout: Duration, done: Done<Bytes>) {
        self.command(Command::Request {
            addr: addr.to_owned(),
            body,
            timeout,
            done,
        });
    }

    fn cast(&self, body: Bytes) {
        self.command(Command::Cast(body));
    }

    fn transfer_leader(&self, to: Option<RaftId>) {
        self.command(Command::Transfer(to));
    }

    fn go_alone_then(&self, seen: &OrderStatus, done: Done<()>) {
        match self.running() {
            Ok(()) => self.command(Command::Alone(Seen::of(seen), done)),
            Err(e) => done(Err(e)),
        }
    }

    fn stop(&self) {
        self.begin_stop();
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        if thread.thread().id() == thread::current().id() {
            // Called by the node's handler: the thread ends after it returns.
            return;
        }
        let deadline = std::time::Instant::now() + STOP_PATIENCE;
        while !thread.is_finished() && std::time::Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        if thread.is_finished() {
            // A panic was reported as the engine's failure already.
            let _ = thread.join();
        }
    }
}
