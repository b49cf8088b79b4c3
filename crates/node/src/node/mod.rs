//! The node: the pure state machines, with threads and a database around them.
//!
//! ```text
//!   server's client threads   local.rs     certify, commit order, release; desync; pause.rs;
//!                             giving_way.rs BF abort, replay, rollback, what is lost with the cluster;
//!                             reads.rs     current reads;
//!                             isolation.rs TOI, votes on what failed
//!   delivery thread           delivery.rs  order -> ClusterState -> gates, queue, waiting clients;
//!                             queued.rs    what appliers get, and what it waits for
//!   server's applier threads  apply.rs     queue -> database; transfer.rs copies, given and taken
//!   connect / disconnect      connect.rs   joining; connect_error.rs what is said if not;
//!                             search.rs the own log, the others; halves.rs two primary
//!                             components; founding.rs founding, and what edits of the state file may do; leave.rs leaving;
//!                             open.rs options, the state file;
//!                             reconnect.rs coming back after an eviction; asking.rs several at once
//!   large write sets          chunks.rs    in chunks: who applies them, at what pace they come;
//!                             bulk.rs      as fragments that a client asked for: where these wait;
//!                             shelved.rs   those of other nodes: what has to go so that others can
//!                             standing.rs  clients that are in an applier's way and are not told
//!   order thread              duties.rs    progress reports, requests of other nodes;
//!                             stands.rs    what whoever started the process hears
//!   no database at all        witness.rs   what a witness does otherwise
//! ```
//!
//! Locks are taken in the order `shared`, `pending`, `chunks`, a transaction,
//! `streaming`, `flow`, gates; none is held across a call of the database or of the order that can
//! block.

mod addresses;
mod alone;
mod apply;
mod asking;
mod bulk;
mod chunks;
mod connect;
mod connect_error;
mod delivery;
mod doubt;
mod duties;
mod find;
mod founding;
mod giving_way;
mod halves;
mod history;
mod ids;
mod isolation;
mod large;
mod leading;
mod leave;
mod left;
mod linked;
mod listed;
mod local;
mod marks;
mod open;
mod other_build;
mod pause;
mod queued;
mod reads;
mod reconnect;
mod report;
mod reread;
mod retain;
mod search;
mod service;
mod shelved;
mod standing;
mod stands;
mod transfer;
mod undone;
mod unsaid;
mod unsent;
mod weights;
mod witness;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use dromon_gates::{ApplyQueue, Gates, Waiter};
use dromon_order::sequencer::PieceStore;
use dromon_order::{Checkpoint, EngineConfig, Inspected, LogId, NodeHandler, Order, RaftId, Start};
use dromon_writeset::{Flags, Kept, Seqno, Uuid};

use crate::chain::Sums;
use crate::closed::ClosedTables;
use crate::cluster::{ChunkPart, Chunked, ClusterView, MemberState};
use crate::database::{Database, Level, Standing, View};
use crate::ddl_marks::Marks;
use crate::delayed::{Delayed, FirstSeen};
use crate::digests::Digests;
use crate::durabilities::Durabilities;
use crate::durable::Durable;
use crate::electors::Weighing;
use crate::failed::Failed;
use crate::flow::Flow;
use crate::forks::LogEnd;
use crate::grastate::StateFile;
use crate::held::{HeldRows, StreamId};
use crate::holders::Holders;
use crate::in_log::{Hold, LeftInLog};
use crate::lacking::{Gap, LackingFile};
use crate::messages::{Join, Need, Position};
use crate::options::{ClusterAddress, HostPort, Options, Settings};
use crate::quarantine::Quarantine;
use crate::retention::Mark;
use crate::spool::{MapFile, Spooler};
use crate::stalled::{Losing, Stalled};
use crate::streams::Streams;
use crate::trx::{Trx, TrxMap};
use crate::uniques::SeenTables;
use crate::working::Working;
use shelved::Locks;

pub use asking::AskError;
pub use connect_error::ConnectError;
pub use open::OpenError;
pub use unsaid::ASK_ENGINE;

/// What the database tells about itself at start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `wsrep_node_name`.
    pub name: String,
    /// `wsrep_node_incoming_address`.
    pub incoming: String,
    /// `wsrep_node_address`.
    pub address: String,
    /// Where state and log files live.
    pub data_dir: PathBuf,
    /// The position the database was started with, or undefined.
    pub position: Position,
    /// Whether there is no database: the node votes and stores the log.
    pub witness: bool,
    /// How long a node that leaves waits until what has its place is finished here: [`FINISH`].
    pub finish: Duration,
    /// So many events wait for appliers in memory; what is beyond that goes to files: [`QUEUE_HERE`].
    pub queue_here: usize,
}

/// As long as servers leave themselves to stop.
pub const FINISH: Duration = Duration::from_secs(60);
/// [`Setup::queue_here`]: some 20 MB, without payloads. Only a node that others do not wait for comes
/// to that.
pub const QUEUE_HERE: usize = 65_536;

/// Why a log is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// What it has stored is not what was written to it.
    Damaged,
    /// It is whole, and of another history or incarnation than the cluster that its node joins.
    OtherHistory,
}

/// Why an engine, or a log, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// What the log has stored is not what was written to it.
    #[error("{0}")]
    Damaged(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<EngineError> for String {
    fn from(error: EngineError) -> String {
        error.to_string()
    }
}

/// Why a node that is cut off asks nobody.
pub const ISOLATED: &str =
    "not asked, as this node is cut off (gmcast.isolate); gmcast.isolate=0 ends that";

/// Makes ordering engines and asks nodes while there is none; tests and the
/// simulation bring their own.
pub trait Engines: Send + Sync {
    /// Starts an engine whose log lies in `dir` and which listens at `listen`.
    fn start(
        &self,
        config: EngineConfig,
        dir: &Path,
        listen: &str,
        start: Start,
        handler: Arc<dyn NodeHandler>,
    ) -> Result<Arc<dyn Order>, EngineError>;

    /// Asks the node at `addr`.
    fn ask(
        &self,
        cluster: &str,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError>;

    /// The id of the log behind the node at `addr`, if that runs and has one.
    fn who_is_at(&self, cluster: &str, addr: &str, timeout: Duration) -> Option<RaftId> {
        let _ = (cluster, addr, timeout);
        None
    }

    /// Where the name in `addr` leads, if to several addresses, and which of them are of this host. Those to which
    /// there is no way are left out.
    fn addresses(&self, addr: &str) -> Vec<(HostPort, bool)> {
        let _ = addr;
        Vec::new()
    }

    /// Reads the files of encryption and secret that `settings` name, for
    /// connections to come; what stands stays. On an error nothing changes. The
    /// answer is worth a line in the log each.
    fn secure(&self, settings: &Settings) -> Result<Vec<String>, String> {
        let _ = settings;
        Ok(Vec::new())
    }

    /// How files become memory.
    fn map_file(&self) -> MapFile;

    /// What the database in `data_dir` contains, asked of it itself after a
    /// crash; an error says why it could not tell.
    fn recover_position(&self, data_dir: &Path) -> Result<Position, String>;

    /// Keeps `data_dir` open for [`sync_data`](Engines::sync_data) from now on: of a write that
    /// fails behind its writer's back the system tells only who had something open then, or
    /// opens it before anybody else was told.
    fn hold_data(&self, data_dir: &Path) -> std::io::Result<()>;

    /// Has the operating system write everything of the file system of
    /// `data_dir` to the disk, and waits for that.
    fn sync_data(&self, data_dir: &Path) -> std::io::Result<()>;

    /// Has what a statement changed in `data_dir` since then, outside of what the storage engines log, written
    /// to the disk, and waits for that.
    fn sync_definitions(&self, data_dir: &Path, since: SystemTime) -> std::io::Result<()>;

    /// Has all file systems written, whatever of a copy lies elsewhere (undo and redo files, a database behind
    /// a symbolic link). Of what fails there nobody hears.
    fn sync_all(&self);

    /// Round trips to the other members now, in seconds.
    fn round_trips(&self) -> Vec<f64>;

    /// The memory this library holds now and held at most, in bytes.
    fn memory(&self) -> (u64, u64);

    /// The most that it held begins anew at what it holds now.
    fn forget_memory_peak(&self);

    /// Cuts this node's transport off, or ends that (`gmcast.isolate`): what
    /// runs, what is started later, and questions, which fail with [`ISOLATED`].
    fn isolate(&self, on: bool);

    /// The running checksum of the history that a log in `dir` has at
    /// `position`: see [`crate::chain::of_log`].
    fn log_sum(
        &self,
        dir: &Path,
        position: Position,
        pieces: (Box<dyn PieceStore>, u64),
    ) -> Result<Option<u64>, String>;

    /// What a log in `dir` says about its members; `None` if there is no log.
    fn inspect(&self, dir: &Path) -> Result<Option<LogSummary>, EngineError>;

    /// Gives the files of a log in `dir` names that nothing here reads and that
    /// tell `why`, and says which. Nothing is deleted.
    fn set_log_aside(&self, dir: &Path, why: Aside) -> Result<String, String>;
}

/// What a log says without being opened for good.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// Its id among the members.
    pub id: RaftId,
    /// Its newest checkpoint.
    pub checkpoint: Checkpoint,
    /// Everybody's addresses by its newest membership entry, this node's included.
    pub members: BTreeMap<RaftId, String>,
    /// Who of them votes.
    pub voters: BTreeSet<RaftId>,
    /// How far it got.
    pub end: LogEnd,
    /// Its last entry.
    pub last: LogId,
    /// Whether messages lie behind its newest checkpoint.
    pub goes_on: bool,
    /// Whether it was kept on the disk from its beginning on (`dromon.durability`).
    pub durable: bool,
}

impl LogSummary {
    /// Whether it counts for majorities, as far as it knows itself.
    pub fn is_voter(&self) -> bool {
        self.voters.contains(&self.id)
    }
}

impl From<Inspected> for LogSummary {
    fn from(found: Inspected) -> LogSummary {
        LogSummary {
            id: found.id,
            checkpoint: found.checkpoint,
            voters: found.members.voters(),
            members: found.members.addrs,
            end: LogEnd {
                last: found.last.leadership(),
                voted: found.voted,
            },
            last: found.last,
            goes_on: found.goes_on,
            durable: found.durable,
        }
    }
}

/// Where the node stands with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected.
    Closed,
    /// Looking for the others, or waiting for the own join to be ordered.
    Connecting,
    /// A member, but the database has no state yet.
    Joining,
    /// A member with a state.
    Joined,
    /// A member that has lost the primary component.
    NonPrimary,
    /// Joining again after the others went on without it.
    Rejoining,
    /// Leaving.
    Leaving,
    /// The data here differs from the others': only a full copy helps.
    Inconsistent,
}

/// What one connection to the cluster is about.
#[derive(Debug)]
struct Shared {
    phase: Phase,
    uuid: Uuid,
    /// The last view delivered (not necessarily seen by the database yet).
    view: Option<ClusterView>,
    /// The view in which this node appeared, and how it gets its data.
    joined: Option<(ClusterView, Need)>,
    /// The view that was current at the database's position.
    base: Option<ClusterView>,
    own_state: MemberState,
    /// The server was told that it may serve, and of no loss since.
    told_synced: bool,
    position: Position,
    /// Where the database stands once it has its copy, or needs none: nothing behind it is applied before it is brought up.
    starts_at: Option<Position>,
    /// Set once the state transfer has a result.
    received: Option<Result<Position, i32>>,
    /// Set when a request found no donor.
    no_donor: bool,
    /// This one gives nothing now, but later perhaps.
    not_now: Option<Uuid>,
    /// A donor that failed, and how.
    transfer_failed: Option<(Uuid, i32)>,
    /// The donor has given all, and this is what its database did not have meanwhile.
    transfer_gaps: Option<Vec<Gap>>,
    brought_up: bool,
    bringing_up: bool,
    own_leave: bool,
    /// Where that was.
    left: Option<leave::Left>,
    final_delivered: bool,
    receivers: usize,
    sync_asked: bool,
    /// Own `Desync`s proposed, and those that took their place.
    desyncs_asked: u64,
    desyncs_seen: u64,
    /// Those that the server has not ended: a return must not forget them.
    desyncs_open: u64,
    /// It is back with some of them open, and its server has not been told that it may serve.
    is_back_desynced: bool,
    join_failed: Option<String>,
    donating: Option<Uuid>,
    rejoin_asked: Option<Instant>,
    /// Delivery to this node ended behind this seqno: it was evicted.
    ends_at: Option<Seqno>,
    /// Who joins again has finished what was ordered before: from then on `position` is the database's.
    drained: bool,
    /// The others removed it before it had its data.
    removed: bool,
    /// The server was told to give a copy and has not said how it ended.
    donation_open: bool,
    /// The same since an earlier connection: which of two had ended the server would not say.
    donation_left: bool,
    /// `wsrep_sst_donor`.
    donors: String,
    cluster: String,
    address: ClusterAddress,
    /// How this node presents itself.
    join: Option<Join>,
    /// It left as the only member.
    last: bool,
    /// Why it is not back in the cluster yet, after an eviction.
    stays_out: Option<String>,
    /// Whether its tables have the effect of the next statement nobody knows.
    in_doubt: bool,
}

impl Shared {
    /// Whether the others do not wait for this node because its server asked for that.
    fn is_desynced(&self) -> bool {
        self.own_state == MemberState::Donor && self.desyncs_open > 0 && !self.donation_open
    }

    fn closed() -> Self {
        Shared {
            phase: Phase::Closed,
            uuid: Uuid::NIL,
            view: None,
            joined: None,
            base: None,
            own_state: MemberState::Joiner,
            told_synced: false,
            position: Position::UNDEFINED,
            starts_at: None,
            received: None,
            no_donor: false,
            not_now: None,
            transfer_failed: None,
            transfer_gaps: None,
            brought_up: false,
            bringing_up: false,
            own_leave: false,
            left: None,
            final_delivered: false,
            receivers: 0,
            sync_asked: false,
            desyncs_asked: 0,
            desyncs_seen: 0,
            desyncs_open: 0,
            is_back_desynced: false,
            join_failed: None,
            donating: None,
            rejoin_asked: None,
            ends_at: None,
            drained: false,
            removed: false,
            donation_open: false,
            donation_left: false,
            donors: String::new(),
            cluster: String::new(),
            address: ClusterAddress::default(),
            join: None,
            last: false,
            stays_out: None,
            in_doubt: false,
        }
    }
}

/// Own write sets on their way.
#[derive(Debug, Default)]
struct Pending {
    next_tag: u64,
    sent: HashMap<u64, Sent>,
}

impl Pending {
    fn add(&mut self, tag: u64, sent: Sent) {
        self.sent.insert(tag, sent);
    }

    fn take(&mut self, tag: u64) -> Option<Sent> {
        self.sent.remove(&tag)
    }

    fn take_all(&mut self) -> Vec<(u64, Sent)> {
        self.sent.drain().collect()
    }
}

#[derive(Debug)]
struct Sent {
    trx: Arc<Trx>,
    last_seen: Seqno,
}

/// An event for an applier thread.
#[derive(Debug)]
enum Item {
    WriteSet(RemoteWriteSet),
    Chunk {
        chunked: Arc<Chunked>,
        part: ChunkPart,
        /// See [`Locks::streams`]. What comes behind the first chunk names none of its rows.
        streams: Arc<[Seqno]>,
    },
    View(View),
    /// The node is in the cluster again: this is where.
    Connected(View),
    /// The node has left: the last view.
    Final(View),
    Donate {
        joiner: Uuid,
        request: Bytes,
        /// No copy: the joiner's database stands there.
        bypass: Option<Position>,
    },
    Synced,
    /// The write set at `waits` needs locks that these hold, perhaps.
    Shelve {
        waits: Seqno,
        streams: Vec<StreamId>,
    },
    VoteRequest {
        seqno: Seqno,
    },
    /// Most members failed at `seqno`: who did not fail like them must leave.
    VoteLost {
        seqno: Seqno,
        /// It decided alone: nobody else could say.
        alone: bool,
    },
    /// What waited in files cannot be read again.
    Lost(String),
}

/// The way from the database's position to where the node joined.
#[derive(Debug)]
struct CatchingUp {
    from: Seqno,
    to: Seqno,
    told: Instant,
}

/// What this process knows of its own part in votes.
#[derive(Debug, Default)]
struct OwnBallots {
    /// Digests of what failed here; what is not named succeeded.
    failed: BTreeMap<Seqno, u64>,
    /// What came before was not applied by this process.
    from: Option<Seqno>,
    /// What the members are asked about, and this node has not answered; and how it failed where it
    /// did first.
    asked: BTreeMap<Seqno, u64>,
    /// Fragments of clients of this node that had a place, and were rolled back here instead: so is their
    /// stream, everywhere, whatever became of them.
    given_up: BTreeSet<Seqno>,
}

#[derive(Debug)]
struct RemoteWriteSet {
    flags: Flags,
    source: Uuid,
    trx_id: u64,
    conn_id: u64,
    depends_on: Seqno,
    /// `None` if it must be read from the log again.
    payload: Option<Bytes>,
    /// What was left in the log of it, instead of the payload.
    left: Option<Kept>,
    /// What checksum it must have, if it lies in a file.
    sum: Option<u64>,
    /// Its first pieces stay in the log.
    hold: Option<Hold>,
    index: u64,
    /// What it may have to wait for.
    locks: Locks,
}

/// Maps log indexes to seqnos for read indexes.
#[derive(Debug, Default)]
struct Delivered {
    index: u64,
    seqno: Seqno,
    /// (index, seqno after it), ascending, the recent ones.
    recent: VecDeque<(u64, Seqno)>,
    /// The running checksum of the history at the recent ones.
    sums: Sums,
    stopped: bool,
    /// Threads in [`Node::wait_delivery`].
    waiting: usize,
    /// Own rollbacks of streaming transactions sent, and delivered.
    rollbacks_sent: u64,
    rollbacks_seen: u64,
}

/// Counters for the status.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub replicated: AtomicU64,
    pub replicated_bytes: AtomicU64,
    pub repl_keys: AtomicU64,
    pub repl_keys_bytes: AtomicU64,
    pub repl_data_bytes: AtomicU64,
    pub repl_other_bytes: AtomicU64,
    pub received: AtomicU64,
    pub received_bytes: AtomicU64,
    pub local_commits: AtomicU64,
    pub local_cert_failures: AtomicU64,
    pub local_replays: AtomicU64,
    pub causal_reads: AtomicU64,
    pub bulk_held_ns: AtomicU64,
    pub streamed_automatic: AtomicU64,
    /// Parts of large transactions that were begun here before their place came.
    pub begun_ahead: AtomicU64,
    pub streamed_asked_for: AtomicU64,
    /// Streaming transactions that were shelved here.
    pub streams_shelved: AtomicU64,
    pub cert_distance_sum: AtomicU64,
    pub cert_interval_sum: AtomicU64,
    pub certified: AtomicU64,
    pub cert_index: AtomicU64,
    /// Of the keys in it those that a cut may take away.
    pub cert_closed: AtomicU64,
}

/// A cluster node.
pub struct Node {
    db: Arc<dyn Database>,
    engines: Box<dyn Engines>,
    setup: Setup,
    options: Mutex<Options>,
    settings: RwLock<Arc<Settings>>,
    /// What was last said of the files of encryption and secret.
    secured: Mutex<Vec<String>>,
    /// None: a witness.
    state_file: Mutex<Option<StateFile>>,
    gates: Gates,
    queue: ApplyQueue<Item>,
    trxs: TrxMap,
    spooler: Spooler,
    toi: Mutex<HashMap<u64, Arc<Trx>>>,
    pending: Mutex<Pending>,
    unsent: unsent::Unsent,
    /// How often all that was pending was given up. A client holds it while it looks and
    /// proposes: so nothing that is given up is numbered behind what is proposed then.
    /// Taken before `shared` and `pending`.
    given_up: RwLock<u64>,
    chunks: Mutex<chunks::Chunks>,
    streams: Mutex<Streams>,
    /// Those of other nodes that hold rows here. Taken before `chunks`, the gates and
    /// the queue.
    held: Mutex<HeldRows>,
    /// The seqno of a client's transaction whose thread waited for the client at the last look, -1 if none.
    over: AtomicI64,
    /// What appliers take locks for.
    working: Mutex<Working>,
    /// Whether there may be some: most write sets see only this. Changed under `held`.
    holds: AtomicBool,
    /// One of them was shelved, or stays.
    held_changed: Condvar,
    /// An applier is spared because of them. Changed under `held`.
    spared: AtomicBool,
    /// The place of the view with which this node came back, until its appliers are through; 0: they
    /// are. Set before the phase.
    back_at: AtomicI64,
    /// What is shelved is rolled back behind the first view.
    settles_at_view: AtomicBool,
    streaming: Mutex<bulk::Streaming>,
    /// The newest place that a statement in total order isolation took.
    newest_toi: AtomicI64,
    /// The newest place that a write set or a statement took, not as a chunk.
    newest_small: AtomicI64,
    /// How many of them took a place.
    count_small: AtomicI64,
    /// See [`crate::messages::Progress::ready`].
    ready_ahead: AtomicI64,
    /// The place of what an applier goes on with since before this node joined again; 0: none.
    kept_ahead: AtomicI64,
    going_alone: alone::GoingAlone,
    /// It was said that the log here was kept in memory only.
    forgetful_told: AtomicBool,
    /// It was said that the log is held up.
    log_held_up: AtomicBool,
    /// Whether its slowness keeps a leader from being elected.
    log_too_slow: AtomicBool,
    /// What is said once a minute at most.
    told: Mutex<reconnect::Told>,
    /// The other addresses of names, as they were told.
    addresses_told: Mutex<addresses::Told>,
    /// The same of one that another build wrote.
    unread_told: AtomicBool,
    durabilities: Mutex<Durabilities>,
    /// Taken before `chunks`, and kept during the I/O.
    lacking_file: Mutex<LackingFile>,
    /// Something changed in `chunks`, or a member reported.
    chunks_more: Condvar,
    shared: Mutex<Shared>,
    changed: Condvar,
    order: RwLock<Option<Arc<dyn Order>>>,
    delivered: Mutex<Delivered>,
    delivered_more: Condvar,
    votes: Mutex<BTreeMap<Seqno, u64>>,
    vote_decided: Condvar,
    own_ballots: Mutex<OwnBallots>,
    /// What failed in earlier processes, too.
    failed: Mutex<Failed>,
    catching_up: Mutex<Option<CatchingUp>>,
    checkpoints: Mutex<VecDeque<Mark>>,
    /// What is read from the log when it is applied.
    left_in_log: Arc<LeftInLog>,
    /// The same of what is queued without its payload, and no restart would need.
    queued_in_log: Arc<LeftInLog>,
    flow: Flow,
    slow: Mutex<(Quarantine, Option<Instant>)>,
    /// The same account of this node itself, as the others keep it.
    own_slow: Mutex<Quarantine>,
    /// Bytes of log that others have delivered, and this node has not; an estimate.
    own_lack: AtomicU64,
    /// Who needs much log, and when that was looked at.
    holders: Mutex<(Holders, Option<Instant>)>,
    counters: Counters,
    progress_number: AtomicU64,
    digests: Mutex<Digests>,
    recounts: Mutex<history::Recounts>,
    delayed: Mutex<Delayed>,
    /// When this process opened the node: monotonic time counts from there.
    opened_at: Instant,
    durable: Mutex<Durable>,
    /// Held by who syncs the database's files.
    syncs: Mutex<()>,
    ddl_marks: Mutex<Marks>,
    refed: Mutex<doubt::Refed>,
    syncer: Mutex<Option<std::sync::mpsc::SyncSender<Seqno>>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    services: Mutex<Option<std::sync::mpsc::SyncSender<service::Job>>>,
    history: Mutex<Uuid>,
    cut_asked: Mutex<Seqno>,
    evicting: Mutex<HashMap<Uuid, Instant>>,
    promised: Mutex<crate::retention::Promises>,
    /// As leader: of whom it was said last that it is not evicted, and when.
    kept_told: Mutex<Option<(Uuid, Instant)>>,
    /// What was said last of who votes because of weights.
    weighing_told: Mutex<Weighing>,
    /// When this node last told the others what it weighs.
    weight_told: Mutex<Option<Instant>>,
    primary_lost: Mutex<Option<duties::LostLease>>,
    /// Those of the newest connection.
    timings: Mutex<duties::Timings>,
    sought: Mutex<Option<Instant>>,
    last_tick: Mutex<Option<Instant>>,
    first_seen: Mutex<FirstSeen>,
    /// Tables that large ones keep to themselves.
    closed: ClosedTables,
    /// Tables known to have a unique index besides the primary one.
    unique_tables: Arc<SeenTables>,
    /// As leader: whose log stands still.
    stalled: Mutex<Stalled>,
    losing: Mutex<Losing>,
    connected_before: AtomicBool,
    /// The database was brought up once: its engines run.
    was_up: AtomicBool,
    /// It has caught up once: whoever started the process need not wait any more.
    was_synced: AtomicBool,
    /// When that one heard last that more time is needed.
    starting_told: Mutex<Option<Instant>>,
    /// How it heard last that this node stands, if not that more time is needed.
    standing_told: Mutex<Option<Standing>>,
    engine_failed: AtomicBool,
    rejoiner: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Asks the others whether they went on without this node.
    seeker: Mutex<Option<std::thread::JoinHandle<()>>>,
    beside: Mutex<halves::Beside>,
    /// A witness: when it last handed leadership on, and how long it waits
    /// before it does so again.
    handed_over: Mutex<Option<(Instant, Duration)>>,
    /// Go on without a majority when it connects: `--force-primary`, or founding though the own log names others.
    force_primary: AtomicBool,
    /// It did so: the others are to be dropped once it is in.
    went_alone: AtomicBool,
    /// This node was told to found, or to go on without others.
    forced_here: AtomicBool,
    /// It founds a cluster on its own log, which names nobody else.
    founds_alone: AtomicBool,
    /// What the storage engine said where the state file says something else.
    engine_word: Mutex<Option<Position>>,
    /// It was asked and said nothing, and the data has not been given up since.
    engine_silent: AtomicBool,
    /// The state file was removed, by which operators ask for a full copy.
    wants_copy: AtomicBool,
    /// A witness: its log leads nowhere any more.
    forget_log: AtomicBool,
    /// It leaves as inconsistent, and nobody else has data: what it has is kept.
    last_with_data: AtomicBool,
    /// The pause that stands began while a copy was given.
    copy_pause: AtomicBool,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.setup.name)
            .finish_non_exhaustive()
    }
}

/// Locks, also after a panic elsewhere: every holder leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    /// Waits for a change of `shared`, at most until `deadline`.
    fn wait_shared<'a>(
        &self,
        guard: MutexGuard<'a, Shared>,
        deadline: Instant,
    ) -> MutexGuard<'a, Shared> {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .min(Duration::from_secs(3600));
        self.changed
            .wait_timeout(guard, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn order(&self) -> Option<Arc<dyn Order>> {
        self.order
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_order(&self, order: Option<Arc<dyn Order>>) {
        *self.order.write().unwrap_or_else(PoisonError::into_inner) = order;
    }

    /// The options in use.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn note(&self, message: &str) {
        self.db.log(Level::Note, message);
    }

    fn warn(&self, message: &str) {
        self.db.log(Level::Warning, message);
    }

    fn error(&self, message: &str) {
        self.db.log(Level::Error, message);
    }

    /// Where the node stands.
    pub fn phase(&self) -> Phase {
        self.shared().phase
    }

    /// History and last finished seqno.
    pub fn last_committed(&self) -> Position {
        let history = self.history();
        if history.is_nil() {
            return Position::UNDEFINED;
        }
        let seqno = self.gates.released();
        // While it joins again the gates may stand at a checkpoint, below the database.
        let shared = self.shared();
        let stands = match shared.phase == Phase::Rejoining && shared.drained {
            true => shared.position.seqno.max(seqno),
            false => seqno,
        };
        Position {
            history,
            seqno: stands,
        }
    }

    /// The position at `seqno` of this node's history.
    fn last_committed_at(&self, seqno: Seqno) -> Position {
        Position {
            history: self.history(),
            seqno,
        }
    }

    fn waiter() -> Arc<Waiter> {
        Arc::new(Waiter::new())
    }
}
