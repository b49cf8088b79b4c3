//! What every part of one run has in common.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dromon_log::SimDevice;
use dromon_node::forks::LogEnd;
use dromon_order::{Leadership, RaftId};

use crate::database::Database;
use crate::disk::{Speed, Truth};
use crate::large::Large;
use crate::net::Net;
use crate::oracle::{Oracle, Oracles};
use crate::plant::Plant;
use crate::rng::Rng;
use crate::standstill::Electorate;
use crate::trace::Trace;
use crate::weights::Weights;

/// How the nodes of one run are set. Drawn from the seed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many nodes there are.
    pub nodes: usize,
    /// Counters that transactions fight over.
    pub hot_keys: u64,
    /// Client sessions on each node.
    pub clients: usize,
    /// Pause between a client's transactions, at most.
    pub think: Duration,
    /// Threads that apply.
    pub appliers: usize,
    /// A checkpoint at least every so many log entries.
    pub checkpoint_entries: u64,
    /// Log entries kept although nobody needs them.
    pub retain_entries: u64,
    /// The leader orders a cut when it has grown by this much.
    pub cut_step: i64,
    /// How often the database writes itself to its disk.
    pub flush: Duration,
    /// Bodies above this travel in pieces, in bytes.
    pub piece: usize,
    /// Whether the leader gathers what it writes: in two of three seeds.
    pub gathers: bool,
    /// Log entries the engine keeps in memory, in bytes.
    pub cache: usize,
    /// A member silent for this long is evicted.
    pub suspect: Duration,
    /// Whether the node in the last slot has no database: a witness.
    pub witness: bool,
    /// The large transactions, if there are any.
    pub large: Option<Large>,
    /// Whether and how the members weigh other than 1.
    pub weights: Option<Weights>,
}

impl Settings {
    /// A leader silent for this long is replaced; the server's node derives it
    /// from the suspect timeout in the same way, and the grace below.
    pub fn election_min(&self) -> Duration {
        self.suspect / 7
    }

    /// A lease lost for this long makes a node non-primary, in company too: it
    /// happens more often here than with a server.
    pub fn grace(&self) -> Duration {
        self.election_min() * 2
    }

    /// A member whose log stands still for this long is evicted.
    pub fn inactive(&self) -> Duration {
        self.suspect * 3 / 2
    }

    /// Whether the node in `slot` has no database.
    pub fn is_witness(&self, slot: usize) -> bool {
        self.witness && slot + 1 == self.nodes
    }

    /// The settings for a seed, without weights. `large`: with large transactions,
    /// whatever it says.
    pub fn draw(seed: u64, nodes: usize, witness: bool, large: bool) -> Self {
        let mut rng = Rng::new(seed, &[0x5e77]);
        Settings {
            nodes,
            hot_keys: rng.range(4, 24),
            clients: rng.range(1, 3) as usize,
            think: rng.ms(60, 250),
            appliers: rng.range(1, 8) as usize,
            checkpoint_entries: rng.range(40, 400),
            retain_entries: [0, 200, 1_000][rng.below(3) as usize],
            cut_step: rng.range(16, 128) as i64,
            flush: rng.ms(100, 1_500),
            piece: rng.range(1_024, 8_192) as usize,
            gathers: !seed.is_multiple_of(3),
            cache: [4 << 10, 64 << 10, 16 << 20][rng.below(3) as usize],
            suspect: rng.ms(1_600, 3_000),
            witness,
            large: Large::draw(seed, large),
            weights: None,
        }
    }
}

/// Counts of one run, for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Seqnos delivered (once each).
    pub entries: u64,
    /// Transactions acknowledged.
    pub acked: u64,
    /// Transactions that failed certification, as their clients saw it.
    pub refused: u64,
    /// Transactions whose clients never learnt the outcome.
    pub unknown: u64,
    /// Write sets taken back before they were sent.
    pub taken_back: u64,
    /// Read indexes answered.
    pub reads: u64,
    /// Processes killed, with or without power.
    pub crashes: u64,
    /// All nodes killed at once.
    pub outages: u64,
    /// Partitions of any kind.
    pub partitions: u64,
    /// Connections that broke.
    pub breaks: u64,
    /// Nodes that got no time for a while.
    pub pauses: u64,
    /// Clocks that jumped.
    pub jumps: u64,
    /// Clocks that fell behind.
    pub backs: u64,
    /// Outages of all nodes after which some stayed away.
    pub absences: u64,
    /// Forced recoveries: incarnations begun without a majority.
    pub forced: u64,
    /// Acknowledged transactions that these gave up.
    pub given_up: u64,
    /// Nodes of an older incarnation that came by the log.
    pub old_by_log: u64,
    /// Nodes of an older incarnation that took a full copy.
    pub old_by_copy: u64,
    /// Disks that failed an operation or were full.
    pub disk_errors: u64,
    /// Disks that hung.
    pub hangs: u64,
    /// Members put out whose log stood still.
    pub stood_still: u64,
    /// Weights that members gave themselves.
    pub weights: u64,
    /// How often a leader heard that one member is to vote alone.
    pub alone: u64,
    /// And that those of weight 0 are to have no vote.
    pub weightless: u64,
    /// Nodes that died while the membership was being changed.
    pub changes: u64,
    /// Changes of leadership.
    pub elections: u64,
    /// Joins delivered.
    pub joins: u64,
    /// Of these, with a full copy.
    pub copies: u64,
    /// Logs continued after a crash.
    pub resumes: u64,
    /// Members evicted.
    pub evictions: u64,
    /// Members that left by themselves.
    pub leaves: u64,
    /// Comparisons of state digests.
    pub digests: u64,
    /// Large transactions whose first chunk had its place.
    pub large: u64,
    /// Of these, how many committed.
    pub large_committed: u64,
    /// Of these, how many were rolled back at a place of their own.
    pub large_rolled_back: u64,
    /// Processes whose database began with uncommitted chunks.
    pub between: u64,
    /// How often a database was given a large one whole at its end, as it lacked
    /// the chunks and no client there committed it.
    pub whole: u64,
    /// How often a server threw away what it had of a large one.
    pub thrown: u64,
    /// Chunks that had their place ahead.
    pub ahead: u64,
    /// Places that nobody took before one of them.
    pub nobodys: u64,
    /// Copies that were refused, as chunks would be lacking in them.
    pub lacking: u64,
    /// How often a leader told a copy that ran by itself that its history differs.
    pub unlike: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, o: &Counts) {
        self.entries += o.entries;
        self.acked += o.acked;
        self.refused += o.refused;
        self.unknown += o.unknown;
        self.taken_back += o.taken_back;
        self.reads += o.reads;
        self.crashes += o.crashes;
        self.outages += o.outages;
        self.partitions += o.partitions;
        self.breaks += o.breaks;
        self.pauses += o.pauses;
        self.jumps += o.jumps;
        self.backs += o.backs;
        self.absences += o.absences;
        self.forced += o.forced;
        self.given_up += o.given_up;
        self.old_by_log += o.old_by_log;
        self.old_by_copy += o.old_by_copy;
        self.disk_errors += o.disk_errors;
        self.hangs += o.hangs;
        self.stood_still += o.stood_still;
        self.weights += o.weights;
        self.alone += o.alone;
        self.weightless += o.weightless;
        self.changes += o.changes;
        self.elections += o.elections;
        self.joins += o.joins;
        self.copies += o.copies;
        self.resumes += o.resumes;
        self.evictions += o.evictions;
        self.leaves += o.leaves;
        self.digests += o.digests;
        self.large += o.large;
        self.large_committed += o.large_committed;
        self.large_rolled_back += o.large_rolled_back;
        self.between += o.between;
        self.whole += o.whole;
        self.thrown += o.thrown;
        self.ahead += o.ahead;
        self.nobodys += o.nobodys;
        self.lacking += o.lacking;
        self.unlike += o.unlike;
    }
}

/// What every part of one run has in common.
pub struct Shared {
    /// The seed.
    pub seed: u64,
    /// How the nodes are set.
    pub settings: Settings,
    /// The fault planted, if any.
    pub plant: Option<Plant>,
    /// The network.
    pub net: Net,
    /// Whether clients begin transactions.
    pub clients_on: AtomicBool,
    /// Whether a disk was lost and not all are members again.
    pub wiped: AtomicBool,
    now_us: AtomicU64,
    trace: Mutex<Trace>,
    oracles: Mutex<Oracles>,
    /// By member of the order, the newest of its logs.
    disks: Mutex<BTreeMap<RaftId, Arc<Truth>>>,
    electorate: Mutex<Electorate>,
    counts: Mutex<Counts>,
}

impl Shared {
    /// A run at its beginning.
    pub fn new(seed: u64, settings: Settings, plant: Option<Plant>, print: bool) -> Arc<Self> {
        Arc::new(Shared {
            seed,
            net: Net::new(seed, settings.nodes),
            settings,
            plant,
            clients_on: AtomicBool::new(true),
            wiped: AtomicBool::new(false),
            now_us: AtomicU64::new(0),
            trace: Mutex::new(Trace::new(print)),
            oracles: Mutex::default(),
            disks: Mutex::default(),
            electorate: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// The world's time, in microseconds since the beginning.
    pub fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    /// Moves the world's time.
    pub fn set_now_us(&self, now_us: u64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }

    /// Whether `plant` is planted on `slot`, as a fault of one node.
    pub fn planted(&self, plant: Plant, slot: usize) -> bool {
        self.plant == Some(plant) && slot == Plant::SLOT
    }

    /// Whether `plant` is planted on all nodes.
    pub fn planted_everywhere(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// Adds a line to the trace.
    pub fn note(&self, slot: Option<usize>, what: std::fmt::Arguments<'_>) {
        lock(&self.trace).line(self.now_us(), slot, what);
    }

    /// The trace.
    pub fn trace(&self) -> MutexGuard<'_, Trace> {
        lock(&self.trace)
    }

    /// The oracles.
    pub fn oracles(&self) -> MutexGuard<'_, Oracles> {
        lock(&self.oracles)
    }

    /// The log of member `id` goes on as one of which `truth` is known; answers
    /// what it had synced before.
    pub fn log_opened(&self, id: RaftId, truth: Arc<Truth>) -> u64 {
        let before = lock(&self.disks).insert(id, truth);
        before.map_or(0, |t| t.synced())
    }

    /// What member `id` has on its disk for good.
    pub fn synced(&self, id: RaftId) -> u64 {
        lock(&self.disks).get(&id).map_or(0, |t| t.synced())
    }

    /// Who the members are, as far as the log says.
    pub fn electorate(&self) -> MutexGuard<'_, Electorate> {
        lock(&self.electorate)
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.counts));
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    /// Something happened that must not happen at all.
    pub fn unsound(&self, slot: usize, what: std::fmt::Arguments<'_>) {
        self.note(Some(slot), format_args!("UNSOUND {what}"));
        let what = format!("node {slot}: {what}");
        self.oracles().fire(Oracle::Sound, what);
    }
}

/// What of a node outlives its processes.
pub struct Host {
    /// Where the node is: its number.
    pub slot: usize,
    /// The disk with the log.
    pub device: SimDevice,
    /// How slow that is.
    pub speed: Arc<Speed>,
    /// How slow the database is at applying.
    pub applying: Speed,
    /// The database, with its own disk.
    pub database: Mutex<Database>,
    /// What has really happened to the log of the present process.
    pub truth: Mutex<Arc<Truth>>,
    /// The node left the cluster in good order before its process ended.
    pub left_cleanly: AtomicBool,
    /// A failure of the disk was injected, or a full one was met: the engine may die of it.
    pub disk_failed: AtomicBool,
    /// The disk is full: whoever writes now fails.
    pub disk_full: AtomicBool,
    /// Whose log is on the disk; 0: nobody's.
    pub raft_id: AtomicU64,
    /// What the log of a copy that ran by itself says, until its first start here.
    pub claim: Mutex<Option<Claim>>,
    /// The sum in it, for good.
    pub apart: AtomicU64,
}

/// What a joiner says of a log that no disk here has.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// How far it got.
    pub end: LogEnd,
    /// The running checksum of the history at the database's position.
    pub sum: u64,
}

impl Host {
    /// A machine with empty disks.
    pub fn new(seed: u64, slot: usize) -> Arc<Self> {
        Arc::new(Host {
            slot,
            device: SimDevice::new(Rng::new(seed, &[0xd15c, slot as u64]).u64()),
            speed: Arc::default(),
            applying: Speed::default(),
            database: Mutex::default(),
            truth: Mutex::default(),
            left_cleanly: AtomicBool::new(false),
            disk_failed: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            raft_id: AtomicU64::new(0),
            claim: Mutex::default(),
            apart: AtomicU64::new(0),
        })
    }

    /// Whether its log may fail, or have failed, by a fault of the disk that was injected.
    pub fn disk_may_fail(&self) -> bool {
        self.disk_failed.load(Ordering::Relaxed) || self.disk_full.load(Ordering::Relaxed)
    }

    /// The disk is not full any more. Who has met it may die of it yet; who has not is well again.
    pub fn has_room(&self) {
        self.device.set_capacity(None);
        self.disk_full.store(false, Ordering::Relaxed);
        if lock(&self.truth).failed() {
            self.disk_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Its data comes with a log whose last entry was made `by` this one, and with this sum.
    pub fn claims(&self, by: Leadership, sum: u64) {
        let end = LogEnd {
            last: by,
            voted: by,
        };
        *lock(&self.claim) = Some(Claim { end, sum });
        self.apart.store(sum, Ordering::Relaxed);
    }

    /// The sum in the log of a copy that ran by itself, if one came here.
    pub fn apart(&self) -> Option<u64> {
        match self.apart.load(Ordering::Relaxed) {
            0 => None,
            sum => Some(sum),
        }
    }

    /// The database.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.database)
    }
}

/// A lock that survives a panic elsewhere: the panic ends the run.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
