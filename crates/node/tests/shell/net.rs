//! Ordering engines over a network and logs in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dromon_node::grastate::STATE_FILE;
use dromon_node::messages::{Answer, Request, decode, encode};
use dromon_node::options::{HostPort, Settings};
use dromon_node::spool::MapFile;
use dromon_node::{Aside, AskError, EngineError, Engines, ISOLATED, LogSummary, Position};
use dromon_order::logstore::{LogStore, WriteDone, WriteOp};
use dromon_order::memlog::MemLog;
use dromon_order::memnet::{Cut, Hub, Port};
use dromon_order::sequencer::PieceStore;
use dromon_order::{
    EngineConfig, MakeNetwork, Network, NodeHandler, Order, OrderStatus, RaftId, Reply, Start,
};

use crate::opened::Opened;

/// Locks, whatever a panicking test did before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What who asks gets instead of an answer; takes the words.
pub type Unheard = fn(String) -> AskError;

/// What a thread panics with because a test wants it.
pub const WANTED: &str = "a test wants this panic";

/// The network of one world, with the disks of its nodes.
pub struct Net {
    hub: Hub,
    logs: Mutex<HashMap<PathBuf, Arc<MemLog>>>,
    /// Logs that a bit flipped in.
    damaged: Mutex<BTreeSet<PathBuf>>,
    /// Logs that another build wrote.
    others: Mutex<BTreeSet<PathBuf>>,
    /// Addresses at which another build runs.
    builds: Mutex<BTreeSet<String>>,
    /// Logs that cannot be looked into now.
    shut: Mutex<BTreeSet<PathBuf>>,
    /// An engine has them open.
    pub open: Mutex<BTreeSet<PathBuf>>,
    /// By address: syncs of the database's directory, and whether they fail now.
    syncs: Mutex<HashMap<String, (u64, bool)>>,
    /// By address: syncs of all file systems.
    syncs_all: Mutex<HashMap<String, u64>>,
    /// By address: a disk under the log that is not well.
    pub disks: Mutex<HashMap<String, Ill>>,
    /// By address: what the storage engine there says when it is asked.
    told: Mutex<HashMap<String, dromon_node::Position>>,
    /// By address: what who asks there gets instead of an answer.
    strange: Mutex<BTreeMap<String, Unheard>>,
    /// By name: the addresses of hosts that share it.
    names: Mutex<BTreeMap<String, Vec<String>>>,
    /// Addresses as far away as the other side of the earth.
    far: Mutex<BTreeSet<String>>,
    /// Addresses whose next engine begins its log and does not start.
    failing: Mutex<BTreeSet<String>>,
    /// Whose next engine panics as it starts.
    panicking: Mutex<BTreeSet<String>>,
    /// Whose node panics at its next tick.
    ticking: Mutex<BTreeSet<String>>,
    /// Whose engines start only when they are not here any more; true: one is waiting.
    starting: Mutex<BTreeMap<String, bool>>,
    /// Whose next engine gets so many bytes a second from each of those that run.
    narrowed: Mutex<BTreeMap<String, u32>>,
    /// Addresses where what is read from a spool file next is not what was written.
    spoilt: Mutex<BTreeSet<String>>,
    /// By address: how many spool files were read there.
    spools: Mutex<HashMap<String, u64>>,
    wires: Mutex<Wires>,
    askers: AtomicU64,
    silence: Mutex<Silence>,
    /// Somebody is silent no more, or need wait no more.
    silence_ends: Condvar,
}

/// Addresses without an answer of any kind, as of hosts without power.
#[derive(Default)]
struct Silence {
    /// Who asks there waits all the time that the question may take.
    silent: BTreeSet<String>,
    /// Who waits longer than that: until it is let go.
    held: BTreeSet<String>,
    /// The questions that wait: who asks, whom, what.
    waiting: Vec<(String, String, Bytes)>,
    /// Who was probed and answered: by whom, whom.
    probed: BTreeSet<(String, String)>,
}

/// What is wrong with a disk.
pub enum Ill {
    /// It answers nothing; what it was told waits.
    Hangs(Vec<(Arc<MemLog>, WriteOp, WriteDone)>),
    /// It fails all it is told.
    Fails,
    /// It has room for nothing but records.
    Full,
    /// It takes all, and complains.
    Complains,
}

#[derive(Default)]
struct Wires {
    /// By address: the engine that listens there now.
    ports: BTreeMap<String, (RaftId, Arc<Port>)>,
    /// By address: whether the newest process there lives.
    alive: BTreeMap<String, Arc<AtomicBool>>,
    /// Pairs of addresses that cannot talk.
    cuts: BTreeSet<(String, String)>,
    /// Addresses whose nodes are isolated by their own wish.
    isolated: BTreeSet<String>,
    /// By address: the newest engine there.
    orders: BTreeMap<String, Weak<dyn Order>>,
}

impl Net {
    /// A network without delays.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Net {
            hub: Hub::new(seed, Duration::ZERO, Duration::ZERO),
            logs: Mutex::default(),
            damaged: Mutex::default(),
            others: Mutex::default(),
            builds: Mutex::default(),
            shut: Mutex::default(),
            open: Mutex::default(),
            syncs: Mutex::default(),
            syncs_all: Mutex::default(),
            disks: Mutex::default(),
            told: Mutex::default(),
            strange: Mutex::default(),
            names: Mutex::default(),
            far: Mutex::default(),
            failing: Mutex::default(),
            panicking: Mutex::default(),
            ticking: Mutex::default(),
            starting: Mutex::default(),
            narrowed: Mutex::default(),
            spoilt: Mutex::default(),
            spools: Mutex::default(),
            wires: Mutex::default(),
            askers: AtomicU64::new(1),
            silence: Mutex::default(),
            silence_ends: Condvar::new(),
        })
    }

    /// The engines of a new process at `addr`.
    pub fn engines(self: &Arc<Self>, addr: &str) -> Box<dyn Engines> {
        let alive = Arc::new(AtomicBool::new(true));
        lock(&self.wires)
            .alive
            .insert(addr.to_owned(), alive.clone());
        Box::new(MemEngines {
            net: self.clone(),
            addr: addr.to_owned(),
            alive,
        })
    }

    /// Cuts each of `a` off from each of `b`; nobody is told.
    pub fn cut(&self, a: &[String], b: &[String]) {
        let mut wires = lock(&self.wires);
        for x in a {
            for y in b.iter().filter(|y| *y != x) {
                wires.cuts.insert((x.clone(), y.clone()));
                wires.cuts.insert((y.clone(), x.clone()));
            }
        }
        self.apply_cuts(&wires);
    }

    /// From now on the log at `to` gets so many bytes a second from each of `from`.
    pub fn narrow(&self, from: &[String], to: &str, rate: u32) {
        for x in from {
            self.hub.narrow(self.log_id(x), self.log_id(to), rate);
        }
    }

    /// The next engine at `to` gets so many bytes a second from each of those that run.
    pub fn narrow_next(&self, to: &str, rate: u32) {
        lock(&self.narrowed).insert(to.to_owned(), rate);
    }

    /// Which log the newest engine at `addr` runs on.
    pub fn log_id(&self, addr: &str) -> RaftId {
        let wires = lock(&self.wires);
        wires.ports.get(addr).expect("an engine ran there").0
    }

    /// How often the database at `addr` was synced.
    pub fn syncs(&self, addr: &str) -> u64 {
        lock(&self.syncs).get(addr).map_or(0, |s| s.0)
    }

    /// How often the node at `addr` had all file systems written.
    pub fn syncs_all(&self, addr: &str) -> u64 {
        lock(&self.syncs_all).get(addr).copied().unwrap_or_default()
    }

    /// From now on syncs of the database at `addr` fail.
    pub fn fail_syncs(&self, addr: &str) {
        lock(&self.syncs).entry(addr.to_owned()).or_default().1 = true;
    }

    /// They succeed again, whatever was lost.
    pub fn let_syncs(&self, addr: &str) {
        lock(&self.syncs).entry(addr.to_owned()).or_default().1 = false;
    }

    /// From now on the disk under the log at `addr` answers nothing.
    pub fn hang_log(&self, addr: &str) {
        lock(&self.disks).insert(addr.to_owned(), Ill::Hangs(Vec::new()));
    }

    /// From now on the others hear no more of the log at `addr`: they say that another one of its identity runs, for so long.
    pub fn displace(&self, addr: &str, since: Duration) {
        self.hub.displace(self.log_id(addr), since);
    }

    /// From now on who asks at `addr` gets this error, whatever runs there.
    pub fn speak_strangely(&self, addr: &str, error: Unheard) {
        lock(&self.strange).insert(addr.to_owned(), error);
    }

    /// From now on `name` stands for all of `addrs`.
    pub fn name(&self, name: &str, addrs: &[String]) {
        lock(&self.names).insert(name.to_owned(), addrs.to_vec());
    }

    /// Who takes a connection of `asker` to `addr`: of those with one name the asker itself, else the first one.
    fn taker(&self, asker: &str, addr: &str) -> String {
        let named = lock(&self.names).get(addr).cloned().unwrap_or_default();
        let wires = lock(&self.wires);
        let mut there = named.iter().filter(|a| wires.ports.contains_key(*a));
        let nearest = there.clone().find(|a| *a == asker).or(there.next());
        nearest.cloned().unwrap_or_else(|| addr.to_owned())
    }

    /// From now on a question to `addr` takes six round trips of 250 ms.
    pub fn move_far(&self, addr: &str) {
        lock(&self.far).insert(addr.to_owned());
    }

    /// What runs there answers again.
    pub fn speak_plainly(&self, addr: &str) {
        lock(&self.strange).remove(addr);
    }

    /// From now on the disk under the log at `addr` fails all it is told.
    pub fn fail_log(&self, addr: &str) {
        lock(&self.disks).insert(addr.to_owned(), Ill::Fails);
    }

    /// From now on the disk under the log at `addr` has no room for checkpoints.
    pub fn fill_log(&self, addr: &str) {
        lock(&self.disks).insert(addr.to_owned(), Ill::Full);
    }

    /// From now on the log at `addr` takes all, and says that it is held up.
    pub fn hold_up_log(&self, addr: &str) {
        lock(&self.disks).insert(addr.to_owned(), Ill::Complains);
    }

    /// The disk is well again, and does what it was told meanwhile.
    pub fn mend_log(&self, addr: &str) {
        let mut disks = lock(&self.disks);
        if let Some(Ill::Hangs(told)) = disks.remove(addr) {
            for (log, op, done) in told {
                log.submit(op, done);
            }
        }
    }

    /// From now on nothing at `addrs` answers, and nothing says so.
    pub fn silence(&self, addrs: &[String]) {
        lock(&self.silence).silent.extend(addrs.iter().cloned());
    }

    /// Something is at `addr` again.
    pub fn end_silence(&self, addr: &str) {
        lock(&self.silence).silent.remove(addr);
        self.silence_ends.notify_all();
    }

    /// From now on what `asker` asks of who is silent ends only when it is let go.
    pub fn hold_questions(&self, asker: &str) {
        lock(&self.silence).held.insert(asker.to_owned());
    }

    /// They end.
    pub fn let_questions(&self, asker: &str) {
        lock(&self.silence).held.remove(asker);
        self.silence_ends.notify_all();
    }

    /// How many questions of `asker` wait at those who are silent.
    pub fn questions(&self, asker: &str) -> usize {
        let silence = lock(&self.silence);
        let own = silence.waiting.iter().filter(|(who, ..)| who == asker);
        own.count()
    }

    /// Whether a probe of `asker` waits at `addr`.
    pub fn probes(&self, asker: &str, addr: &str) -> bool {
        let probe = (asker.to_owned(), addr.to_owned(), encode(&Request::Probe));
        lock(&self.silence).waiting.contains(&probe)
    }

    /// Whether the node at `addr` has answered a probe of `asker`.
    pub fn has_probed(&self, asker: &str, addr: &str) -> bool {
        let pair = (asker.to_owned(), addr.to_owned());
        lock(&self.silence).probed.contains(&pair)
    }

    /// Asks the node at `addr` who it is, and whether it has answered.
    pub fn is_answered(&self, addr: &str) -> bool {
        let n = self.askers.fetch_add(1, Ordering::Relaxed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime of this thread");
        runtime.block_on(async {
            let port = self.hub.port(n, &format!("asker-{n}"));
            let answer = port
                .request(addr, encode(&Request::Probe), Duration::from_secs(5))
                .await;
            port.stop();
            answer.is_ok()
        })
    }

    /// Waits as `asker` for the node at `addr`, if that is silent. True: in vain.
    fn waits_in_vain(&self, asker: &str, addr: &str, body: &Bytes, timeout: Duration) -> bool {
        let question = (asker.to_owned(), addr.to_owned(), body.clone());
        let mut silence = lock(&self.silence);
        if !silence.silent.contains(addr) {
            return false;
        }
        silence.waiting.push(question.clone());
        let (mut silence, _) = self
            .silence_ends
            .wait_timeout_while(silence, timeout, |s| s.silent.contains(addr))
            .unwrap_or_else(PoisonError::into_inner);
        silence = self
            .silence_ends
            .wait_while(silence, |s| {
                s.held.contains(asker) && s.silent.contains(addr)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let at = silence.waiting.iter().position(|q| *q == question);
        silence.waiting.remove(at.expect("it was put there"));
        true
    }

    /// The next engine at `addr` makes its log ready and then does not start.
    pub fn fail_start(&self, addr: &str) {
        lock(&self.failing).insert(addr.to_owned());
    }

    /// The next engine of the node there panics as it starts.
    pub fn panic_at_start(&self, addr: &str) {
        lock(&self.panicking).insert(addr.to_owned());
    }

    /// The node there panics at its next tick.
    pub fn panic_at_tick(&self, addr: &str) {
        lock(&self.ticking).insert(addr.to_owned());
    }

    /// Engines of the node there take as long to start as the test likes.
    pub fn hold_start(&self, addr: &str) {
        lock(&self.starting).insert(addr.to_owned(), false);
    }

    /// Whether one is held.
    pub fn holds_start(&self, addr: &str) -> bool {
        lock(&self.starting).get(addr).copied().unwrap_or(false)
    }

    /// They start.
    pub fn let_start(&self, addr: &str) {
        lock(&self.starting).remove(addr);
    }

    /// The storage engine at `addr`, when it is asked, says that it stands at `position`.
    pub fn tell(&self, addr: &str, position: dromon_node::Position) {
        lock(&self.told).insert(addr.to_owned(), position);
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        lock(&self.wires).cuts.clear();
        self.hub.heal();
    }

    /// The node at `addr` falls silent for good, as if its process were killed.
    pub fn kill(&self, addr: &str) {
        let wires = lock(&self.wires);
        if let Some(alive) = wires.alive.get(addr) {
            alive.store(false, Ordering::Release);
        }
        if let Some((_, port)) = wires.ports.get(addr) {
            port.stop();
        }
    }

    /// Whether the engine at `addr` knows of no change of voters under way.
    pub fn voters_settled(&self, addr: &str) -> bool {
        let order = lock(&self.wires).orders.get(addr).and_then(Weak::upgrade);
        order.is_some_and(|o| o.status().members.configs.len() == 1)
    }

    /// Asks the node that leads to hand leadership to the one at `to`.
    pub fn hand_over(&self, leader: &str, to: &str) {
        let order = lock(&self.wires).orders.get(leader).and_then(Weak::upgrade);
        let order = order.expect("an engine that runs");
        let members = order.status().members.addrs;
        let heir = members.iter().find(|(_, addr)| *addr == to);
        order.transfer_leader(Some(*heir.expect("a member").0));
    }

    fn apply_cuts(&self, wires: &Wires) {
        for (x, y) in &wires.cuts {
            if let (Some((a, _)), Some((b, _))) = (wires.ports.get(x), wires.ports.get(y)) {
                self.hub.cut(&[*a], &[*b], Cut::Silent);
            }
        }
        for addr in &wires.isolated {
            if let Some((_, port)) = wires.ports.get(addr) {
                port.set_isolated(true);
            }
        }
    }

    fn plug(&self, addr: &str, id: RaftId) -> Arc<Port> {
        let port = self.hub.port(id, addr);
        let mut wires = lock(&self.wires);
        if let Some(rate) = lock(&self.narrowed).remove(addr) {
            for (from, _) in wires.ports.values() {
                self.hub.narrow(*from, id, rate);
            }
        }
        wires.ports.insert(addr.to_owned(), (id, port.clone()));
        self.apply_cuts(&wires);
        port
    }

    /// The log in `from` lies in `to` from now on.
    pub fn move_log(&self, from: &Path, to: &Path) {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.remove(from) {
            logs.insert(to.to_owned(), log);
        }
    }

    /// A bit changes in each checkpoint but the newest that `wanted` names by its place among
    /// them, the oldest being 0. How many.
    pub fn damage_checkpoints(&self, dir: &Path, wanted: impl Fn(usize) -> bool) -> usize {
        let logs = lock(&self.logs);
        let log = logs.get(dir).expect("there is a log");
        let mut there = log.checkpoints().expect("they are listed");
        there.pop();
        let hit: Vec<_> = (0..).zip(there).filter(|(n, _)| wanted(*n)).collect();
        for (_, index) in &hit {
            log.damage_checkpoint(*index);
        }
        hit.len()
    }

    /// Bits change in all records below `index` of the log in `dir`.
    pub fn damage_records(&self, dir: &Path, indexes: Range<u64>) {
        let logs = lock(&self.logs);
        let log = logs.get(dir).expect("there is a log");
        log.damage_records(indexes);
    }

    /// A copy of the log in `dir`.
    pub fn copy_log(&self, dir: &Path) -> MemLog {
        lock(&self.logs).get(dir).expect("there is a log").copy()
    }

    /// The log in `dir` is gone.
    pub fn lose_log(&self, dir: &Path) {
        assert!(lock(&self.logs).remove(dir).is_some(), "there is a log");
    }

    /// `log` lies in `dir` from now on.
    pub fn put_log(&self, dir: &Path, log: MemLog) {
        lock(&self.logs).insert(dir.to_owned(), Arc::new(log));
    }

    /// What is read from a spool file at `addr` next is not what was written.
    pub fn spoil_next_spool(&self, addr: &str) {
        lock(&self.spoilt).insert(addr.to_owned());
    }

    /// How many spool files were read at `addr`.
    pub fn spools(&self, addr: &str) -> u64 {
        lock(&self.spools).get(addr).copied().unwrap_or(0)
    }

    /// Flips a bit in the log in `dir`.
    pub fn damage_log(&self, dir: &Path) {
        assert!(lock(&self.logs).contains_key(dir), "there is a log");
        lock(&self.damaged).insert(dir.to_owned());
    }

    /// From now on the log in `dir` is one of another build, or, if not `other`, of this one.
    pub fn of_other_build(&self, dir: &Path, other: bool) {
        match other {
            true => lock(&self.others).insert(dir.to_owned()),
            false => lock(&self.others).remove(dir),
        };
    }

    /// From now on another build runs at `addr`.
    pub fn runs_other_build(&self, addr: &str) {
        lock(&self.builds).insert(addr.to_owned());
    }

    /// What the node at `addr` answers, if another build may run there.
    fn of_its_build(&self, addr: &str, answer: Bytes) -> Bytes {
        if !lock(&self.builds).contains(addr) {
            return answer;
        }
        match decode(&answer) {
            Some(Answer::State {
                need,
                compared,
                mut checkpoint,
                term,
            }) => {
                checkpoint.node[0] -= 1; // the format
                encode(&Answer::State {
                    need,
                    compared,
                    checkpoint,
                    term,
                })
            }
            _ => answer,
        }
    }

    /// While `on`, nobody can look into the log in `dir`: there is nothing wrong with it.
    pub fn shut_log(&self, dir: &Path, on: bool) {
        let mut shut = lock(&self.shut);
        match on {
            true => shut.insert(dir.to_owned()),
            false => shut.remove(dir),
        };
    }

    fn whole(&self, dir: &Path) -> Result<(), EngineError> {
        match lock(&self.damaged).contains(dir) {
            true => Err(EngineError::Damaged("a bit has changed.".into())),
            false => Ok(()),
        }
    }

    fn log(&self, dir: &Path) -> Arc<MemLog> {
        lock(&self.logs)
            .entry(dir.to_owned())
            .or_insert_with(|| Arc::new(MemLog::new()))
            .clone()
    }
}

/// A node that may panic at its tick.
struct Ticks {
    net: Arc<Net>,
    addr: String,
    node: Arc<dyn NodeHandler>,
}

impl NodeHandler for Ticks {
    fn request(&self, from: &str, body: Bytes, reply: Reply) {
        self.node.request(from, body, reply);
    }

    fn message(&self, from: RaftId, body: Bytes) {
        self.node.message(from, body);
    }

    fn tick(&self) -> Option<Bytes> {
        assert!(!lock(&self.net.ticking).remove(&self.addr), "{WANTED}");
        self.node.tick()
    }

    fn spoilt(&self, kind: u8, tag: u64) {
        self.node.spoilt(kind, tag);
    }

    fn went_back(&self, member: RaftId, index: u64) {
        self.node.went_back(member, index);
    }

    fn status(&self, status: &OrderStatus) {
        self.node.status(status);
    }

    fn position_lost(&self) {
        self.node.position_lost();
    }
}

struct MemEngines {
    net: Arc<Net>,
    addr: String,
    alive: Arc<AtomicBool>,
}

impl Engines for MemEngines {
    /// No files here: `/refused` stands for one that cannot be used.
    fn secure(&self, settings: &Settings) -> Result<Vec<String>, String> {
        if settings.secret_file == Path::new("/refused") {
            return Err("dromon.secret_file=/refused: it cannot be used".to_owned());
        }
        Ok(Vec::new())
    }

    fn start(
        &self,
        config: EngineConfig,
        dir: &Path,
        _listen: &str,
        start: Start,
        handler: Arc<dyn NodeHandler>,
    ) -> Result<Arc<dyn Order>, EngineError> {
        assert_eq!(config.addr, self.addr, "the node announces another address");
        if !self.alive.load(Ordering::Acquire) {
            return Err(EngineError::Other("this process was killed".to_owned()));
        }
        self.net.whole(dir)?;
        assert!(!lock(&self.net.panicking).remove(&self.addr), "{WANTED}");
        while let Some(waits) = lock(&self.net.starting).get_mut(&self.addr) {
            *waits = true;
            std::thread::sleep(Duration::from_millis(2));
        }
        let store: Arc<dyn LogStore> = Arc::new(Opened {
            net: self.net.clone(),
            addr: self.addr.clone(),
            dir: dir.to_owned(),
            log: self.net.log(dir),
            alive: self.alive.clone(),
        });
        lock(&self.net.open).insert(dir.to_owned());
        let (net, addr) = (self.net.clone(), self.addr.clone());
        let make: MakeNetwork = Box::new(move |id| Ok(net.plug(&addr, id) as Arc<dyn Network>));
        let handler = Arc::new(Ticks {
            net: self.net.clone(),
            addr: self.addr.clone(),
            node: handler,
        });
        let order = dromon_order::start(config, store, make, handler, start)
            .map_err(|e| EngineError::Other(e.to_string()))?;
        if lock(&self.net.failing).remove(&self.addr) {
            order.stop();
            return Err(EngineError::Other("the port is taken".to_owned()));
        }
        let mut wires = lock(&self.net.wires);
        wires
            .orders
            .insert(self.addr.clone(), Arc::downgrade(&order));
        Ok(order)
    }

    fn ask(
        &self,
        _cluster: &str,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError> {
        if !self.alive.load(Ordering::Acquire) {
            return Err(AskError::Unreachable("this process was killed".to_owned()));
        }
        let addr = &*self.net.taker(&self.addr, addr);
        let pair = (self.addr.clone(), addr.to_owned());
        let strange = lock(&self.net.strange).get(addr).copied();
        if let Some(error) = strange {
            return Err(error(format!("{addr} cannot be asked so")));
        }
        {
            let wires = lock(&self.net.wires);
            if wires.isolated.contains(&self.addr) {
                return Err(AskError::Unreachable(ISOLATED.to_owned()));
            }
            if wires.cuts.contains(&pair) || wires.isolated.contains(addr) {
                return Err(AskError::Unreachable(format!("{addr} is cut off")));
            }
        }
        if self.net.waits_in_vain(&self.addr, addr, &body, timeout) {
            return Err(AskError::Unreachable(format!("{addr} did not answer")));
        }
        if timeout < Duration::from_millis(1500) && lock(&self.net.far).contains(addr) {
            return Err(AskError::Unreachable(format!("{addr} did not answer")));
        }
        let n = self.net.askers.fetch_add(1, Ordering::Relaxed);
        let unreachable = |e: &dyn std::fmt::Display| AskError::Unreachable(e.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|e| unreachable(&e))?;
        runtime.block_on(async {
            // Ids of engines are random and large.
            let port = self.net.hub.port(n, &format!("asker-{n}"));
            let is_probe = body == encode(&Request::Probe);
            let answer = port.request(addr, body, timeout).await;
            port.stop();
            if is_probe && answer.is_ok() {
                lock(&self.net.silence).probed.insert(pair);
            }
            let answer = answer.map(|answer| self.net.of_its_build(addr, answer));
            answer.map_err(|e| unreachable(&e))
        })
    }

    fn addresses(&self, addr: &str) -> Vec<(HostPort, bool)> {
        let named = lock(&self.net.names).get(addr).cloned().unwrap_or_default();
        let at = |a: &String| dromon_order::address::parse_address(a, 0).expect("an address");
        named.iter().map(|a| (at(a), *a == self.addr)).collect()
    }

    fn map_file(&self) -> MapFile {
        let (net, addr) = (self.net.clone(), self.addr.clone());
        Arc::new(move |file, len| {
            *lock(&net.spools).entry(addr.clone()).or_default() += 1;
            let mut bytes = vec![0; usize::try_from(len).map_err(std::io::Error::other)?];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
            if let Some(last) = bytes.last_mut().filter(|_| lock(&net.spoilt).remove(&addr)) {
                *last ^= 1;
            }
            Ok(Bytes::from(bytes))
        })
    }

    fn recover_position(&self, _data_dir: &Path) -> Result<dromon_node::Position, String> {
        let told = lock(&self.net.told).get(&self.addr).copied();
        told.ok_or_else(|| "a toy database has nobody to ask".into())
    }

    fn hold_data(&self, _data_dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self, _data_dir: &Path) -> io::Result<()> {
        let mut syncs = lock(&self.net.syncs);
        let (count, fails) = syncs.entry(self.addr.clone()).or_default();
        *count += 1;
        match fails {
            true => Err(io::Error::other("the toy's disk is broken")),
            false => Ok(()),
        }
    }

    fn sync_definitions(&self, data_dir: &Path, _since: SystemTime) -> io::Result<()> {
        self.sync_data(data_dir)
    }

    fn sync_all(&self) {
        *lock(&self.net.syncs_all)
            .entry(self.addr.clone())
            .or_default() += 1;
    }

    fn round_trips(&self) -> Vec<f64> {
        Vec::new()
    }

    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    fn forget_memory_peak(&self) {}

    fn isolate(&self, on: bool) {
        let mut wires = lock(&self.net.wires);
        if on {
            wires.isolated.insert(self.addr.clone());
        } else {
            wires.isolated.remove(&self.addr);
        }
        if let Some((_, port)) = wires.ports.get(&self.addr) {
            port.set_isolated(on);
        }
    }

    fn inspect(&self, dir: &Path) -> Result<Option<LogSummary>, EngineError> {
        self.net.whole(dir)?;
        if lock(&self.net.open).contains(dir) {
            return Err(EngineError::Other("The directory is locked.".into()));
        }
        if lock(&self.net.shut).contains(dir) {
            return Err(EngineError::Other("Too many open files.".into()));
        }
        let store: Arc<dyn LogStore> = self.net.log(dir);
        let found = dromon_order::inspect(&store);
        let found = found.map_err(|e| EngineError::Other(e.to_string()))?;
        let mut found = found.map(LogSummary::from);
        if let Some(log) = found
            .as_mut()
            .filter(|_| lock(&self.net.others).contains(dir))
        {
            let mut node = log.checkpoint.node.to_vec();
            node[0] -= 1; // the format
            log.checkpoint.node = node.into();
        }
        Ok(found)
    }

    fn log_sum(
        &self,
        dir: &Path,
        position: Position,
        pieces: (Box<dyn PieceStore>, u64),
    ) -> Result<Option<u64>, String> {
        self.net.whole(dir).map_err(|e| e.to_string())?;
        let store: Arc<dyn LogStore> = self.net.log(dir);
        dromon_node::chain::of_log(&store, position, Some(pieces))
    }

    fn set_log_aside(&self, dir: &Path, why: Aside) -> Result<String, String> {
        if why == Aside::OtherHistory {
            let log = lock(&self.net.logs).remove(dir).expect("there is a log");
            let former = dir.join("former");
            lock(&self.net.logs).insert(former, log);
            return Ok("the toy's memory".into());
        }
        if let Ok(state) = std::fs::read_to_string(dir.join(STATE_FILE)) {
            // Killed behind this, it must not join by the log.
            let nil = dromon_writeset::Uuid::NIL.to_string();
            assert!(state.contains(&nil), "{state}");
        }
        lock(&self.net.logs).remove(dir);
        let was = lock(&self.net.damaged).remove(dir);
        assert!(was, "a log that is whole was given up");
        Ok("the toy's memory".into())
    }
}
