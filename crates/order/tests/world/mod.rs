//! Engines, a network and logs in memory, and a node that only takes notes.

// Each test binary uses its own part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dromon_log::{Log, LogOptions, SimDevice, WriterHandle};
use dromon_order::disklog::DiskLog;
use dromon_order::logstore::LogStore;
use dromon_order::memlog::MemLog;
use dromon_order::memnet::Hub;
use dromon_order::{
    Delivered, Desired, Engine, EngineConfig, Gathering, NodeHandler, Order, OrderError,
    OrderStatus, RaftId, Reply, Sequencer, Start, inspect,
};
use dromon_writeset::Uuid;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Runs `test` under a paused clock; an hour of it is the limit.
pub fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing from the system");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(3600), test)
            .await
            .expect("the test hangs");
    });
}

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub struct World {
    pub hub: Hub,
    /// Whether the logs lie on simulated disks instead of in memory.
    on_disks: bool,
    seed: u64,
    /// Elections are quicker than `EngineConfig::lan` has them.
    pub quick: bool,
    /// Heartbeat, shortest and longest election time, and lease.
    pub timings: Option<[Duration; 4]>,
    /// Bytes of the newest entries that are kept in memory.
    pub cache_max: Option<usize>,
    /// The engines' `unstored_max`, if set.
    pub unstored_max: Option<usize>,
    /// Starts so far: each has a fresh origin.
    starts: u64,
    nodes: BTreeMap<RaftId, Node>,
    epoch: Instant,
}

struct Node {
    store: Store,
    engine: Arc<Engine>,
    notes: Arc<Notes>,
    delivery: JoinHandle<()>,
    origin: Uuid,
}

/// What a node's log lies on.
#[derive(Clone)]
enum Store {
    Memory(Arc<MemLog>),
    Disk(SimDevice),
}

impl Store {
    /// Opens the log, as a starting process does.
    fn open(&self) -> Arc<dyn LogStore> {
        match self {
            Store::Memory(log) => log.clone(),
            Store::Disk(device) => {
                let options = LogOptions {
                    segment_bytes: 4096,
                    zero_ahead_bytes: 512,
                    ..LogOptions::default()
                };
                let (log, _) = Log::open(Arc::new(device.clone()), options)
                    .expect("what a crash leaves can be opened");
                Arc::new(DiskLog::new(WriterHandle::inline(log)))
            }
        }
    }
}

/// What a node saw.
struct Notes {
    id: RaftId,
    epoch: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    delivered: Vec<(Duration, Delivered)>,
    sequencer: Sequencer,
    heard: Vec<(RaftId, String)>,
    position_lost: bool,
    /// Members of which it was told that their logs went back.
    went_back: Vec<RaftId>,
    last: u64,
    /// The node takes nothing from the engine.
    held: bool,
    /// What the node is called for and panics over.
    panics: Option<Call>,
    ticks: u64,
    /// Why the engine failed, as it was told.
    told_of_failure: Option<String>,
}

/// What an engine calls its node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Tick,
    Status,
}

impl Notes {
    fn called(&self, call: Call) {
        let panics = self.inner.lock().unwrap().panics == Some(call);
        assert!(!panics, "as it was told");
    }
}

impl NodeHandler for Notes {
    fn request(&self, _: &str, body: Bytes, reply: Reply) {
        let text = format!("n{} got {}", self.id, String::from_utf8_lossy(&body));
        reply.send(Bytes::from(text));
    }

    fn message(&self, from: RaftId, body: Bytes) {
        let text = String::from_utf8_lossy(&body).into_owned();
        self.inner.lock().unwrap().heard.push((from, text));
    }

    fn tick(&self) -> Option<Bytes> {
        self.called(Call::Tick);
        self.inner.lock().unwrap().ticks += 1;
        Some(Bytes::from(format!("tick of {}", self.id)))
    }

    fn status(&self, status: &OrderStatus) {
        self.called(Call::Status);
        self.inner.lock().unwrap().told_of_failure = status.failed.clone();
    }

    fn position_lost(&self) {
        self.inner.lock().unwrap().position_lost = true;
    }

    fn went_back(&self, member: RaftId, _: u64) {
        self.inner.lock().unwrap().went_back.push(member);
    }
}

/// The node's state machine knows every origin that will ever be: joins are
/// not what is tested here.
fn sequencer() -> Sequencer {
    let mut s = Sequencer::new();
    for n in 0..1000 {
        s.register(origin(n));
    }
    s
}

fn origin(n: u64) -> Uuid {
    let mut u = Uuid::NIL;
    u.0[..8].copy_from_slice(&(n + 1).to_le_bytes());
    u
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            hub: Hub::new(seed, ms(1), ms(2)),
            on_disks: false,
            seed,
            quick: false,
            timings: None,
            cache_max: None,
            unstored_max: None,
            starts: 0,
            nodes: BTreeMap::new(),
            epoch: Instant::now(),
        }
    }

    pub async fn three_on_disks(seed: u64) -> World {
        let mut w = World::new(seed);
        w.on_disks = true;
        w.grow(3).await;
        w
    }

    pub async fn three(seed: u64) -> World {
        let mut w = World::new(seed);
        w.grow(3).await;
        w
    }

    /// Bootstraps node 1 and lets 2..=n join.
    pub async fn grow(&mut self, n: u64) {
        self.bootstrap(1).await;
        let checkpoint = self
            .order(1)
            .load_checkpoint(None)
            .expect("the log can be read")
            .expect("bootstrap saves one");
        for id in 2..=n {
            let checkpoint = checkpoint.clone();
            self.start(
                id,
                Start::Join {
                    checkpoint,
                    term: 0,
                },
            )
            .await;
        }
        let all: Vec<u64> = (1..=n).collect();
        for id in 1..=n {
            self.want(id, &all, &[]);
        }
        self.wait_voters(1, &all).await;
        self.wait_primary(&all).await;
    }

    pub async fn bootstrap(&mut self, id: RaftId) {
        let genesis = Bytes::from_static(b"genesis");
        self.start(
            id,
            Start::Bootstrap {
                genesis,
                after: None,
            },
        )
        .await;
    }

    pub async fn resume(&mut self, id: RaftId) {
        self.start(id, Start::Resume).await;
    }

    pub async fn start(&mut self, id: RaftId, start: Start) {
        let store = match self.nodes.get(&id) {
            Some(old) => old.store.clone(),
            None if self.on_disks => Store::Disk(SimDevice::new(self.seed ^ id)),
            None => Store::Memory(Arc::new(MemLog::new())),
        };
        let origin = origin(self.starts);
        self.starts += 1;
        let log = store.open();
        let saved = match &start {
            Start::Bootstrap { .. } => Bytes::new(),
            Start::Join { checkpoint, .. } => checkpoint.sequencer.clone(),
            Start::Resume => {
                let found = inspect(&log).expect("the log can be read");
                found.expect("there is something").checkpoint.sequencer
            }
        };
        let sequencer = if saved.is_empty() {
            sequencer()
        } else {
            Sequencer::decode(saved).expect("it was encoded")
        };
        let addr = format!("n{id}:1");
        let mut config = EngineConfig {
            seed: Some(self.seed * 1000 + self.starts),
            gather: match self.seed.is_multiple_of(2) {
                true => Gathering::Always,
                false => Gathering::Never,
            },
            ..EngineConfig::lan("test", id, origin, &addr)
        };
        if self.quick {
            (config.election_min, config.election_max) = (ms(200), ms(400));
            config.lease = ms(180);
        }
        if let Some([heartbeat, min, max, lease]) = self.timings {
            (config.heartbeat, config.lease) = (heartbeat, lease);
            (config.election_min, config.election_max) = (min, max);
        }
        config.cache_max = self.cache_max.unwrap_or(config.cache_max);
        config.unstored_max = self.unstored_max.unwrap_or(config.unstored_max);
        let notes = Arc::new(Notes {
            id,
            epoch: self.epoch,
            inner: Mutex::new(Inner {
                sequencer,
                ..Inner::default()
            }),
        });
        let port = self.hub.port(id, &addr);
        let engine = Engine::start_in(config, log, port, notes.clone(), start)
            .await
            .expect("the engine starts");
        let delivery = tokio::spawn(deliver(engine.clone(), notes.clone()));
        let node = Node {
            store,
            engine,
            notes,
            delivery,
            origin,
        };
        self.nodes.insert(id, node);
    }

    pub async fn stop(&mut self, id: RaftId) {
        let n = self.node(id);
        n.engine.stopped().await;
        n.delivery.abort();
    }

    pub async fn kill(&mut self, id: RaftId) {
        let n = self.node(id);
        n.delivery.abort();
        n.engine.kill().await;
    }

    fn node(&self, id: RaftId) -> &Node {
        &self.nodes[&id]
    }

    pub fn order(&self, id: RaftId) -> &dyn Order {
        &*self.node(id).engine
    }

    pub fn log(&self, id: RaftId) -> &MemLog {
        match &self.node(id).store {
            Store::Memory(log) => log,
            Store::Disk(_) => panic!("this world's logs lie on disks"),
        }
    }

    pub fn disk(&self, id: RaftId) -> &SimDevice {
        match &self.node(id).store {
            Store::Disk(device) => device,
            Store::Memory(_) => panic!("this world's logs lie in memory"),
        }
    }

    pub fn origin(&self, id: RaftId) -> Uuid {
        self.node(id).origin
    }

    pub fn status(&self, id: RaftId) -> OrderStatus {
        self.order(id).status()
    }

    /// Proposes the text `id:n`.
    pub fn propose(&mut self, id: RaftId, n: u64) {
        let body = Bytes::from(format!("{id}:{n}"));
        self.order(id)
            .propose(1, n, body)
            .expect("there is room for a few");
    }

    pub fn want(&self, at: RaftId, voters: &[RaftId], others: &[RaftId]) {
        let all = voters.iter().map(|id| (*id, true));
        let desired = all
            .chain(others.iter().map(|id| (*id, false)))
            .map(|(id, voter)| {
                let addr = format!("n{id}:1");
                (id, Desired { addr, voter })
            })
            .collect();
        self.order(at).set_desired(desired);
    }

    /// Saves a checkpoint where the node is now.
    pub fn checkpoint(&self, id: RaftId, state: &'static [u8]) -> u64 {
        let (at, sequencer) = {
            let inner = self.node(id).notes.inner.lock().unwrap();
            let state = inner.sequencer.encode().expect("pieces are in memory");
            (inner.last, state)
        };
        self.order(id)
            .save_checkpoint(at, sequencer, Bytes::from_static(state))
            .expect("the log takes it");
        at
    }

    pub async fn read_index(&self, id: RaftId, timeout: Duration) -> Result<u64, OrderError> {
        let (tx, rx) = oneshot::channel();
        let done = Box::new(move |r| {
            let _ = tx.send(r);
        });
        self.order(id).read_index_then(timeout, done);
        rx.await.expect("every question is answered")
    }

    pub async fn go_alone(&self, id: RaftId) {
        let outcome = self.go_alone_if(id, &self.status(id)).await;
        outcome.expect("the log takes the entry");
    }

    /// The same, decided on what was `seen` earlier.
    pub async fn go_alone_if(&self, id: RaftId, seen: &OrderStatus) -> Result<(), OrderError> {
        let (tx, rx) = oneshot::channel();
        let done = Box::new(move |r| {
            let _ = tx.send(r);
        });
        self.order(id).go_alone_then(seen, done);
        rx.await.expect("it is answered")
    }

    pub async fn request(
        &self,
        id: RaftId,
        addr: &str,
        text: &'static str,
        timeout: Duration,
    ) -> Result<Bytes, OrderError> {
        let (tx, rx) = oneshot::channel();
        let done = Box::new(move |r| {
            let _ = tx.send(r);
        });
        let body = Bytes::from_static(text.as_bytes());
        self.order(id).request_then(addr, body, timeout, done);
        rx.await.expect("every question is answered")
    }

    pub fn heard(&self, id: RaftId) -> Vec<(RaftId, String)> {
        self.node(id).notes.inner.lock().unwrap().heard.clone()
    }

    /// Whether the node takes nothing from its engine for now.
    pub fn hold(&self, id: RaftId, held: bool) {
        self.node(id).notes.inner.lock().unwrap().held = held;
    }

    /// From now on the node panics whenever it is called for this.
    pub fn panic_in(&self, id: RaftId, call: Call) {
        self.node(id).notes.inner.lock().unwrap().panics = Some(call);
    }

    /// How often the node was called for its tick.
    pub fn ticks(&self, id: RaftId) -> u64 {
        self.node(id).notes.inner.lock().unwrap().ticks
    }

    /// Why the engine failed, as the node was told.
    pub fn told_of_failure(&self, id: RaftId) -> Option<String> {
        let inner = self.node(id).notes.inner.lock().unwrap();
        inner.told_of_failure.clone()
    }

    pub fn position_lost(&self, id: RaftId) -> bool {
        self.node(id).notes.inner.lock().unwrap().position_lost
    }

    pub fn went_back(&self, id: RaftId) -> Vec<RaftId> {
        self.node(id).notes.inner.lock().unwrap().went_back.clone()
    }

    pub fn bodies(&self, id: RaftId) -> Vec<Bytes> {
        let inner = self.node(id).notes.inner.lock().unwrap();
        inner
            .delivered
            .iter()
            .map(|(_, d)| d.body.clone())
            .collect()
    }

    pub fn texts(&self, id: RaftId) -> Vec<String> {
        let text = |b: Bytes| String::from_utf8_lossy(&b).into_owned();
        self.bodies(id).into_iter().map(text).collect()
    }

    pub fn last_index(&self, id: RaftId) -> u64 {
        self.node(id).notes.inner.lock().unwrap().last
    }

    /// Everything delivered on every node, with index, term and time.
    pub fn trace(&self) -> String {
        let mut out = String::new();
        for (id, n) in &self.nodes {
            for (at, d) in &n.notes.inner.lock().unwrap().delivered {
                let text = String::from_utf8_lossy(&d.body);
                out += &format!("{id} {at:?} {} {} {text}\n", d.index, d.term);
            }
        }
        out
    }

    pub fn assert_same(&self, ids: &[RaftId]) {
        let first = self.bodies(ids[0]);
        for id in ids {
            assert!(
                self.bodies(*id) == first,
                "node {id} differs from {}",
                ids[0]
            );
        }
    }

    /// Each of `origins` proposed 0..n; all of it was delivered once, in order.
    pub fn assert_exactly_once(&self, at: &[RaftId], origins: &[RaftId], n: u64) {
        for node in at {
            let texts = self.texts(*node);
            for id in origins {
                let own: Vec<_> = texts
                    .iter()
                    .filter(|t| t.starts_with(&format!("{id}:")))
                    .cloned()
                    .collect();
                let expected: Vec<_> = (0..n).map(|i| format!("{id}:{i}")).collect();
                assert_eq!(own, expected, "origin {id} at node {node}");
            }
        }
    }

    pub async fn wait(&self, condition: impl Fn(&World) -> bool, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !condition(self) {
            if Instant::now() > deadline {
                let status: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|(id, n)| {
                        let seen = n.notes.inner.lock().unwrap().delivered.len();
                        format!(
                            "{id} ({}): {seen} delivered, {:?}\n",
                            n.origin,
                            self.status(*id)
                        )
                    })
                    .collect();
                panic!("it never comes true that {what}:\n{}", status.concat());
            }
            sleep(ms(5)).await;
        }
    }

    pub async fn wait_delivered(&self, ids: &[RaftId], n: usize) {
        let all = |w: &World| ids.iter().all(|id| w.bodies(*id).len() >= n);
        self.wait(all, &format!("{ids:?} deliver {n}")).await;
        for id in ids {
            assert_eq!(self.bodies(*id).len(), n, "node {id} delivered more");
        }
    }

    pub async fn wait_primary(&self, ids: &[RaftId]) {
        let all = |w: &World| ids.iter().all(|id| w.status(*id).primary);
        self.wait(all, &format!("{ids:?} are primary")).await;
    }

    pub async fn wait_voters(&self, at: RaftId, voters: &[RaftId]) {
        let there = |w: &World| {
            let m = w.status(at).members;
            m.configs.len() == 1 && m.voters() == voters.iter().copied().collect()
        };
        self.wait(there, &format!("{voters:?} vote at {at}")).await;
    }

    pub async fn wait_members(&self, at: RaftId, members: &[RaftId]) {
        let there = |w: &World| {
            let m = w.status(at).members;
            m.configs.len() == 1 && m.addrs.keys().eq(members.iter())
        };
        self.wait(there, &format!("{members:?} are the members at {at}"))
            .await;
    }

    pub async fn wait_leader(&self, ids: &[RaftId], leader: RaftId) {
        let there = |w: &World| {
            ids.iter()
                .all(|id| w.status(*id).leader.is_some_and(|l| l.0 == leader))
                && w.status(leader).is_leader
        };
        self.wait(there, &format!("{leader} leads {ids:?}")).await;
    }

    /// Waits until all of `ids` agree on a confirmed leader.
    pub async fn leader(&self, ids: &[RaftId]) -> RaftId {
        let agreed = |w: &World| {
            let first = w.status(ids[0]).leader?.0;
            let all = ids
                .iter()
                .all(|id| w.status(*id).leader.is_some_and(|l| l.0 == first));
            (all && ids.contains(&first) && w.status(first).is_leader).then_some(first)
        };
        self.wait(
            |w| agreed(w).is_some(),
            &format!("{ids:?} agree on a leader"),
        )
        .await;
        agreed(self).expect("it was just there")
    }
}

/// What the node's delivery thread does, as a task.
async fn deliver(engine: Arc<Engine>, notes: Arc<Notes>) {
    loop {
        engine.committed_ready().await;
        while notes.inner.lock().unwrap().held {
            sleep(ms(1)).await;
        }
        let entries = engine.next_committed(100, Duration::ZERO);
        if entries.is_empty() {
            // The engine is closed.
            return;
        }
        let at = notes.epoch.elapsed();
        let mut inner = notes.inner.lock().unwrap();
        for c in &entries {
            assert_eq!(
                c.index,
                if inner.last == 0 {
                    c.index
                } else {
                    inner.last + 1
                }
            );
            inner.last = c.index;
            if let Some(d) = inner.sequencer.accept(c).expect("pieces stay in memory") {
                inner.delivered.push((at, d));
            }
        }
    }
}
