//! A database that plays the server's part: rows and row locks, clients,
//! appliers, views and state transfers, as contract B and C describe them.
//!
//! It is also the judge. Whatever the node asks of it is checked, and what a
//! real server would not survive is written down as a violation.

mod applier;
mod client;
mod events;
pub mod holds;
mod lifecycle;
mod locks;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dromon_node::cluster::AHEAD_MAX;
use dromon_node::{Node, Outcome, Position, View};
use dromon_writeset::{Seqno, Uuid};
use serde::{Deserialize, Serialize};

use crate::net::lock;
use crate::world::Report;
pub use client::{End, Session};
use holds::{Holds, Point};

/// A row: its table and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub table: u8,
    pub row: u32,
}

/// Row `row` of table 0.
pub fn row(row: u32) -> Key {
    Key { table: 0, row }
}

/// One changed row: what it holds afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub key: Key,
    pub to: To,
}

/// What a transaction does with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum To {
    Value(i64),
    /// Nothing: a row that it changes refers to this one, which has to stay as it is.
    Same,
}

/// A statement in total order isolation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ddl {
    /// Adds a number to every row of a table.
    Add { table: u8, n: i64 },
    /// Empties a table.
    Truncate { table: u8 },
    /// Adds a row with 1; fails where it is there already.
    Create { key: Key },
    /// Fails on the nodes of this bit mask, with this text, and does nothing.
    Fail { table: u8, nodes: u32, text: String },
}

impl Ddl {
    fn table(&self) -> u8 {
        match self {
            Ddl::Add { table, .. } | Ddl::Truncate { table } | Ddl::Fail { table, .. } => *table,
            Ddl::Create { key } => key.table,
        }
    }
}

/// A streaming transaction: its origin, and its number there.
pub type StreamId = (Uuid, u64);

/// What lies on the disk: it survives a restart, and a copy of it is what a
/// joiner gets.
#[derive(Clone, Debug)]
pub struct Disk {
    pub rows: BTreeMap<Key, i64>,
    /// The streaming log: changes of unfinished transactions.
    pub fragments: BTreeMap<StreamId, Vec<Change>>,
    pub position: Position,
}

impl Disk {
    pub fn empty() -> Self {
        Disk {
            rows: BTreeMap::new(),
            fragments: BTreeMap::new(),
            position: Position::UNDEFINED,
        }
    }

    fn install(&mut self, changes: &[Change]) {
        for change in changes {
            if let To::Value(value) = change.to {
                self.rows.insert(change.key, value);
            }
        }
    }
}

/// Who holds a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// An open transaction of a client.
    Local(u64),
    /// A transaction that must not give way: an applier's, or a replay.
    Ordered(Seqno),
    /// A streaming transaction of another node.
    Streaming(Uuid, u64),
}

/// Where a client's transaction stands, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Between or in statements: whoever aborts it rolls it back.
    Executing,
    /// In `certify` or `commit_order_enter`: it rolls itself back.
    InProvider,
    /// Rolled back by another one; its client has not noticed.
    Aborted,
    /// Rolled back after it got a place, to be replayed or to pass.
    Ordered,
    /// Inside commit order.
    Committing,
}

/// A client's open transaction.
#[derive(Debug)]
struct Local {
    stage: Stage,
    /// Tables it has used.
    tables: BTreeSet<u8>,
    /// A fragment of it was sent.
    streaming: bool,
    /// An abort was accepted while it was in the provider: by whom.
    aborted_by: Option<Seqno>,
    /// It ends with the write set it is about.
    ending: bool,
}

/// The server's states (contract C.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Disconnected,
    Connected,
    Joiner,
    Initialized,
    Joined,
    Donor,
    Synced,
}

/// What took a seqno; must be the same on every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Rows(Uuid, u64),
    Fragment(Uuid, u64),
    Commit(Uuid, u64),
    Rollback(Uuid, u64),
    /// Failed certification.
    Dummy(Uuid, u64),
    Ddl(Uuid),
    View(i64, Vec<Uuid>),
}

impl Entry {
    /// Whether this is a part of a large transaction of another node: at its
    /// origin something else has that place.
    pub fn is_chunk(&self) -> bool {
        match self {
            Entry::Fragment(_, id) | Entry::Commit(_, id) | Entry::Rollback(_, id) => id >> 52 == 1,
            _ => false,
        }
    }

    /// Whether a server that has shelved the streams in `shelved` may have this where
    /// others have `other`: nothing in place of a part, the whole in place of the end.
    pub fn stands_for(&self, other: &Entry, shelved: &BTreeSet<StreamId>) -> bool {
        let (id, right) = match (self, other) {
            (Entry::Dummy(s, t), Entry::Fragment(source, id) | Entry::Rollback(source, id)) => {
                ((s, t), (source, id))
            }
            (Entry::Rows(s, t), Entry::Commit(source, id)) => ((s, t), (source, id)),
            _ => return false,
        };
        id == right && shelved.contains(&(*id.0, *id.1))
    }
}

struct Inner {
    disk: Disk,
    locks: HashMap<Key, Owner>,
    /// Rows that must stay as they are, and for whom.
    shared: HashMap<Key, Vec<Owner>>,
    /// Tables under a statement in total order isolation.
    ddl: HashSet<u8>,
    locals: BTreeMap<u64, Local>,
    state: State,
    ready: bool,
    own: Option<Uuid>,
    /// Seqno of the view of the connection.
    connected_at: Seqno,
    /// The last primary view, and whether the primary component was lost since.
    last_primary: Option<View>,
    lost_primary: bool,
    views: Vec<View>,
    finals: usize,
    gave_up: usize,
    synced: usize,
    donations: usize,
    /// What no write set tells: own setting, until a donor says otherwise.
    word: usize,
    /// How often its word was asked for.
    words: usize,
    /// Whether the engines run: they start once for each process.
    initialized: bool,
    /// Rollback fragments that could not be sent.
    rollbacks: Vec<u64>,
    /// Places of own fragments that were given up: no position comes of them.
    may_skip: BTreeSet<Seqno>,
    journal: BTreeMap<Seqno, Entry>,
    /// Places that nobody took.
    nobodys: BTreeSet<Seqno>,
    in_commit: Option<Seqno>,
    applying: BTreeSet<Seqno>,
    /// Streaming transactions that it threw away, and up to where all was finished when its node knew that.
    thrown: BTreeMap<StreamId, Seqno>,
    /// Rows at which applying fails, with which text.
    fails: HashMap<Key, String>,
    /// Whoever changes such a row here needs these, too, as with a unique index: no key
    /// tells it.
    neighbours: HashMap<Key, Vec<Key>>,
    /// Who waits for a streaming transaction because of that, or where one of the two only refers to a
    /// row, and who ever did.
    blocked: usize,
    waited: usize,
    /// The rows of unfinished streaming transactions are locked, since this connection
    /// began.
    recovered: bool,
    /// Of an earlier process of this server: a part failed, so others may have its rows, and the
    /// streaming log had it still, as its rollback was yet to come. It may not go on.
    must_end: BTreeSet<StreamId>,
    /// Streaming transactions of others that an applier works on, and at which place.
    streams_at_work: BTreeMap<StreamId, Seqno>,
    /// Those that this process rolled back without a place.
    shelved: BTreeSet<StreamId>,
    /// How often `certify` refused something without a place.
    unplaced: usize,
    /// What a `Copy` request must answer.
    copy: Copying,
    /// Applier threads that should end.
    spare_appliers: usize,
    /// Streams of clients that are gone: appliers have them by name, and their rows were taken back.
    adopted: BTreeSet<StreamId>,
}

/// How the database behaves in a state transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    Works,
    /// As donor: refuses, or breaks off.
    DonorFails,
    /// As donor: it goes on meanwhile, and says the position at which it was asked
    /// (mariabackup); the copy stands where it was made.
    DonorGoesOn,
    /// As donor: it makes its copy within the call (mysqldump), and pauses nothing.
    DonorStays,
    /// As joiner: its script ends with an error.
    JoinerFails,
}

/// A toy database.
pub struct Db {
    pub n: usize,
    pub name: String,
    pub addr: String,
    pub holds: Holds,
    pub appliers: AtomicUsize,
    /// Its process was killed: nobody waits for anything here any more.
    pub crashed: AtomicBool,
    /// Its own start fails: it refuses primary views.
    pub refuses_views: AtomicBool,
    /// It gets its last view while appliers are at work: its node has waited for them in vain.
    pub leaves_early: AtomicBool,
    report: Arc<Report>,
    others: Arc<Mutex<Vec<Arc<Db>>>>,
    node: OnceLock<Arc<Node>>,
    inner: Mutex<Inner>,
    changed: Condvar,
    next_id: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
    returned: Mutex<Vec<Outcome>>,
}

/// Each server's transactions begin at a multiple of this.
const IDS: u64 = 1_000_000;

/// How long anything in the toy waits before it says that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Db {
    /// A database on `disk`, not connected to anything.
    pub fn new(
        n: usize,
        addr: &str,
        start: u64,
        disk: Disk,
        report: Arc<Report>,
        others: Arc<Mutex<Vec<Arc<Db>>>>,
    ) -> Arc<Self> {
        Arc::new(Db {
            n,
            name: format!("n{n}"),
            addr: addr.to_owned(),
            holds: Holds::default(),
            appliers: AtomicUsize::new(4),
            crashed: AtomicBool::new(false),
            refuses_views: AtomicBool::new(false),
            leaves_early: AtomicBool::new(false),
            report,
            others,
            node: OnceLock::new(),
            inner: Mutex::new(Inner {
                disk,
                locks: HashMap::new(),
                shared: HashMap::new(),
                ddl: HashSet::new(),
                locals: BTreeMap::new(),
                state: State::Disconnected,
                ready: false,
                own: None,
                connected_at: 0,
                last_primary: None,
                lost_primary: false,
                views: Vec::new(),
                finals: 0,
                gave_up: 0,
                synced: 0,
                donations: 0,
                word: n,
                words: 0,
                initialized: false,
                rollbacks: Vec::new(),
                may_skip: BTreeSet::new(),
                journal: BTreeMap::new(),
                nobodys: BTreeSet::new(),
                in_commit: None,
                applying: BTreeSet::new(),
                thrown: BTreeMap::new(),
                fails: HashMap::new(),
                neighbours: HashMap::new(),
                blocked: 0,
                waited: 0,
                recovered: false,
                must_end: BTreeSet::new(),
                streams_at_work: BTreeMap::new(),
                shelved: BTreeSet::new(),
                unplaced: 0,
                copy: Copying::Works,
                spare_appliers: 0,
                adopted: BTreeSet::new(),
            }),
            changed: Condvar::new(),
            next_id: AtomicU64::new(n as u64 * IDS + start * 100_000 + 1),
            threads: Mutex::default(),
            returned: Mutex::default(),
        })
    }

    /// Gives it its node.
    pub fn set_node(&self, node: Arc<Node>) {
        assert!(self.node.set(node).is_ok(), "a database has one node");
    }

    /// Its node.
    pub fn node(&self) -> &Arc<Node> {
        self.node.get().expect("set right after it was made")
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Waits for a change of the database.
    fn wait<'a>(&self, guard: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed
            .wait_timeout(guard, Duration::from_millis(200))
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn hangs(&self, since: Instant) -> bool {
        since.elapsed() > PATIENCE || self.crashed.load(Ordering::Relaxed)
    }

    /// Writes down what must not happen.
    pub fn violation(&self, what: impl AsRef<str>) {
        if self.crashed.load(Ordering::Relaxed) {
            return; // a process that was killed halfway
        }
        self.report
            .violation(&format!("{}: {}", self.name, what.as_ref()));
    }

    /// What is on disk now.
    pub fn disk(&self) -> Disk {
        self.lock().disk.clone()
    }

    /// A committed value, 0 if there is none.
    pub fn read(&self, key: Key) -> i64 {
        self.lock().disk.rows.get(&key).copied().unwrap_or(0)
    }

    /// Where the storage engine stands.
    pub fn position(&self) -> Position {
        self.lock().disk.position
    }

    pub fn state(&self) -> State {
        self.lock().state
    }

    /// Whether clients are served.
    pub fn ready(&self) -> bool {
        self.lock().ready && !self.crashed.load(Ordering::Relaxed)
    }

    pub fn own(&self) -> Option<Uuid> {
        self.lock().own
    }

    /// Places that nobody took, as this server was told.
    pub fn nobodys(&self) -> BTreeSet<Seqno> {
        self.lock().nobodys.clone()
    }

    pub fn journal(&self) -> BTreeMap<Seqno, Entry> {
        self.lock().journal.clone()
    }

    pub fn views(&self) -> Vec<View> {
        self.lock().views.clone()
    }

    /// Members in the last view.
    pub fn size(&self) -> usize {
        self.lock().views.last().map_or(0, |v| v.members.len())
    }

    /// Final views so far.
    pub fn finals(&self) -> usize {
        self.lock().finals
    }

    /// How often a copy it waited for was given up.
    pub fn gave_up(&self) -> usize {
        self.lock().gave_up
    }

    /// How often it was told that it is synced.
    pub fn synced(&self) -> usize {
        self.lock().synced
    }

    /// How often it was asked to give a copy.
    pub fn donations(&self) -> usize {
        self.lock().donations
    }

    /// What it takes for the cluster's word.
    pub fn word(&self) -> usize {
        self.lock().word
    }

    /// How often its word was asked for.
    pub fn words(&self) -> usize {
        self.lock().words
    }

    /// What the applier threads came back with.
    pub fn returned(&self) -> Vec<Outcome> {
        lock(&self.returned).clone()
    }

    /// How many threads it has lent, and one that lends them.
    pub fn threads(&self) -> usize {
        lock(&self.threads).len()
    }

    /// From now on applying a change of this row fails with `text`.
    pub fn fail_at(&self, key: Key, text: &str) {
        self.lock().fails.insert(key, text.to_owned());
    }

    /// From now on whoever changes `key` here needs `next` too, which no key tells.
    pub fn neighbour(&self, key: Key, next: Key) {
        self.lock().neighbours.entry(key).or_default().push(next);
    }

    /// How many wait for a streaming transaction because of that, or of a row that one refers to.
    pub fn blocked(&self) -> usize {
        self.lock().blocked
    }

    /// How many ever did.
    pub fn waited(&self) -> usize {
        self.lock().waited
    }

    /// How many rows are locked.
    pub fn locked(&self) -> usize {
        let inner = self.lock();
        inner.locks.len() + inner.shared.len()
    }

    /// The streaming transactions that it was told to roll back without a place.
    pub fn shelved(&self) -> BTreeSet<StreamId> {
        self.lock().shelved.clone()
    }

    /// Whether `certify` refused something for the sake of one that is shelved, and
    /// none ever was; nor did an applier stand.
    pub fn refused_for_nothing(&self) -> bool {
        let inner = self.lock();
        let said = |text| self.report.times(&self.name, text) > 0;
        let stood = || {
            said("waits for a lock that a client") || said("does not commit any more (error 1213)")
        };
        inner.unplaced > 0 && inner.shelved.is_empty() && !stood()
    }

    /// Makes donations fail, or work again.
    pub fn set_copying(&self, how: Copying) {
        self.lock().copy = how;
    }

    /// Asks for `n` applier threads less.
    pub fn fewer_appliers(&self, n: usize) {
        self.lock().spare_appliers += n;
    }

    /// The server rolls back what it has of others' streaming transactions.
    pub fn throw_streaming_away(&self) {
        let mut inner = self.lock();
        let all: Vec<_> = inner.disk.fragments.keys().copied().collect();
        for (source, id) in all {
            let _ = self.node().abort(-1, id);
            inner.disk.fragments.remove(&(source, id));
            let released = self.node().last_committed().seqno;
            inner.thrown.insert((source, id), released);
            inner.free(Owner::Streaming(source, id));
        }
    }

    /// Streaming transactions that are open here.
    pub fn streaming(&self) -> usize {
        self.lock().disk.fragments.len()
    }

    /// Places of what appliers work on now.
    pub fn applying(&self) -> BTreeSet<Seqno> {
        self.lock().applying.clone()
    }

    /// A status variable as text.
    pub fn stat(&self, name: &str) -> String {
        use dromon_node::status::StatusValue;
        let found = self.node().status().into_iter().find(|v| v.name == name);
        match found.map(|v| v.value) {
            Some(StatusValue::Str(s)) => s,
            Some(StatusValue::Int(n)) => n.to_string(),
            Some(StatusValue::Double(d)) => d.to_string(),
            None => panic!("there is no status variable {name}"),
        }
    }

    /// A status variable that counts.
    pub fn count(&self, name: &str) -> i64 {
        let text = self.stat(name);
        text.parse()
            .unwrap_or_else(|_| panic!("status variable {name} is {text}, no whole number"))
    }

    /// Everything a person needs to see why a test hangs.
    pub fn dump(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        let node = self.node();
        let _ = writeln!(
            out,
            "== {} phase {:?} last committed {} receivers came back {:?}",
            self.name,
            node.phase(),
            node.last_committed().seqno,
            self.returned()
        );
        for v in node.status() {
            let wanted = [
                "local_state_comment",
                "local_recv_queue",
                "local_send_queue",
                "dromon_under_way",
                "dromon_recv_in_files",
                "flow_control_active",
                "flow_control_requested",
                "dromon_leader",
                "dromon_term",
                "dromon_voters",
                "dromon_waiting_for",
                "dromon_log_last",
                "dromon_log_committed",
                "open_transactions",
                "desync_count",
            ];
            if wanted.contains(&v.name.as_ref()) {
                let _ = write!(out, "{}={:?} ", v.name, v.value);
            }
        }
        let _ = writeln!(out);
        // A holder that hangs must not make the dump hang.
        match self.inner.try_lock() {
            Ok(inner) => {
                let _ = writeln!(
                    out,
                    "   state {:?} ready {} position {} in_commit {:?} applying {:?} finals {}",
                    inner.state,
                    inner.ready,
                    inner.disk.position.seqno,
                    inner.in_commit,
                    inner.applying,
                    inner.finals
                );
                let _ = writeln!(out, "   locals {:?}", inner.locals);
                let _ = writeln!(
                    out,
                    "   locks {:?} shared {:?} ddl {:?}",
                    inner.locks, inner.shared, inner.ddl
                );
                let _ = writeln!(out, "   fragments {:?}", inner.disk.fragments);
                let _ = writeln!(
                    out,
                    "   blocked {} of {} ever, at work {:?}, shelved {:?}",
                    inner.blocked, inner.waited, inner.streams_at_work, inner.shelved
                );
                let last: Vec<_> = inner.journal.iter().rev().take(6).collect();
                let _ = writeln!(out, "   journal ends {last:?}");
            }
            Err(_) => {
                let _ = writeln!(out, "   its lock is held");
            }
        }
        for point in [
            Point::ApplyStart,
            Point::ApplyLocked,
            Point::ApplyInCommit,
            Point::ApplyLeft,
            Point::ClientCertified,
            Point::ClientInCommit,
            Point::ClientLeft,
            Point::FragmentRefused,
            Point::RollsBack,
            Point::RolledBack,
            Point::DonorPaused,
        ] {
            let n = self.holds.waiting(point);
            if n > 0 {
                let _ = writeln!(out, "   {n} threads at {point:?}");
            }
        }
        out
    }
}

impl Inner {
    /// The storage engine's position with what was given up right behind it.
    fn reached(&self) -> Position {
        let mut at = self.disk.position;
        while self.may_skip.contains(&(at.seqno + 1)) {
            at.seqno += 1;
        }
        at
    }

    /// The storage engine's position moves to `seqno`: always the next one,
    /// except for places that were given up.
    fn advance(&mut self, history: Uuid, seqno: Seqno, entry: Entry) -> Result<(), String> {
        let at = self.disk.position;
        let mut expected = at.seqno + 1;
        while self.may_skip.remove(&expected) {
            expected += 1;
        }
        // Before a part of a large one there may be places that nobody took: then
        // nobody did on any node (`World::settle`).
        let part = matches!(entry, Entry::Dummy(..) | Entry::Rows(..)) || entry.is_chunk();
        if part && at.history == history && seqno - expected <= AHEAD_MAX.into() {
            for missing in expected..seqno {
                if !self.may_skip.remove(&missing) {
                    self.nobodys.insert(missing);
                }
            }
            expected = seqno.max(expected);
        }
        let right = at.history == history && seqno == expected;
        if let Some(other) = self.journal.insert(seqno, entry.clone())
            && other != entry
        {
            return Err(format!("seqno {seqno} was {other:?} and is now {entry:?}"));
        }
        self.disk.position = Position { history, seqno };
        if right {
            Ok(())
        } else {
            Err(format!(
                "{entry:?} takes {history}:{seqno} after {at}; expected was seqno {expected}"
            ))
        }
    }
}
