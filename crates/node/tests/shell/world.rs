//! A cluster of toy databases, and what tests do with it.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, mpsc};
use std::time::{Duration, Instant};

use dromon_node::ddl_marks::MARKS_FILE;
use dromon_node::grastate::{GraState, STATE_FILE, VIEW_FILE};
use dromon_node::lacking::LACKING_FILE;
use dromon_node::{Database, FINISH, Level, Node, Outcome, Position, QUEUE_HERE, Setup, Standing};
use dromon_order::memlog::MemLog;
use tempfile::TempDir;

use crate::net::{Net, WANTED, lock};
use crate::toy::{Db, Disk};

/// By which the marks of statements know the database's files.
const DATA_FILE: &str = "ibdata1";
/// By then a test hangs: none is so slow, not even where ten run beside it on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(40);
/// By then what must not happen would have happened.
const MOMENT: Duration = Duration::from_millis(300);
/// Log lines kept for a failure.
const LINES: usize = 400;

/// What went on, for whoever reads a failure.
pub struct Report {
    /// Whether databases have a log of their own behind commit order.
    pub binary_log: AtomicBool,
    began: Instant,
    lines: Mutex<VecDeque<String>>,
    violations: Mutex<Vec<String>>,
    /// Whoever says this stays there until it is over.
    held: Mutex<Option<(&'static str, Hold)>>,
}

/// A place where somebody is held.
type Hold = Arc<(Mutex<bool>, Condvar)>;

impl Report {
    /// From now on whoever says `text` stays there.
    pub fn hold(&self, text: &'static str) {
        *lock(&self.held) = Some((text, Hold::default()));
    }

    /// Nobody is held any more.
    pub fn let_go(&self) {
        if let Some((_, hold)) = lock(&self.held).take() {
            *lock(&hold.0) = true;
            hold.1.notify_all();
        }
    }

    fn stay(&self, said: &str) {
        let held = lock(&self.held).clone();
        if let Some((_, hold)) = held.filter(|(text, _)| said.contains(text)) {
            let over = lock(&hold.0);
            drop(hold.1.wait_while(over, |over| !*over));
        }
    }

    /// A line for the log.
    pub fn line(&self, who: &str, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        let line = format!("{at:8.3} {who} {text}");
        if std::env::var_os("TOY_LOG").is_some() {
            eprintln!("{line}");
        }
        let mut lines = lock(&self.lines);
        lines.push_back(line);
        if lines.len() > LINES {
            lines.pop_front();
        }
    }

    /// Something that must not happen.
    pub fn violation(&self, what: &str) {
        self.line("VIOLATION", what);
        lock(&self.violations).push(what.to_owned());
    }

    /// Whether somebody said `text` lately.
    pub fn said(&self, text: &str) -> bool {
        lock(&self.lines).iter().any(|line| line.contains(text))
    }

    /// How many of the lines kept are of `who` and say `text`.
    pub fn times(&self, who: &str, text: &str) -> usize {
        let says = |line: &&String| line.contains(&format!(" {who} ")) && line.contains(text);
        lock(&self.lines).iter().filter(says).count()
    }

    /// What `who` has told whoever started it: that it still starts, or how it stands.
    pub fn standings(&self, who: &str) -> Vec<String> {
        let who = format!(" {who} ");
        let told = |line: &String| {
            let text = line.split_once(&who)?.1;
            let told = text.starts_with("still starting: ") || text.starts_with("stands: ");
            told.then(|| text.to_owned())
        };
        lock(&self.lines).iter().filter_map(told).collect()
    }

    /// What must not happen and has.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }
}

struct Lines {
    name: String,
    report: Arc<Report>,
    words: bool,
    told_to_stop: Arc<AtomicBool>,
}

impl Database for Lines {
    fn log(&self, level: Level, message: &str) {
        let line = format!("{level:?}: {message}");
        if message.contains("the state that decides about write sets is not the same") {
            self.report.violation(&line);
        }
        self.report.line(&self.name, &line);
        self.report.stay(&line);
    }

    fn wants_bypass(&self) -> bool {
        self.words
    }

    fn has_binary_log(&self) -> bool {
        self.report.binary_log.load(Ordering::Relaxed)
    }

    fn still_starting(&self, doing: &str) {
        self.report
            .line(&self.name, &format!("still starting: {doing}"));
    }

    fn stands(&self, standing: Standing) {
        self.report
            .line(&self.name, &format!("stands: {standing:?}"));
    }

    fn told_to_stop(&self) -> bool {
        self.told_to_stop.load(Ordering::Relaxed)
    }
}

/// A cluster that a test runs.
pub struct World {
    pub net: Arc<Net>,
    pub report: Arc<Report>,
    dirs: TempDir,
    data_dirs: Mutex<BTreeMap<usize, PathBuf>>,
    options: String,
    /// By node: what it is started with besides.
    pub own_options: Mutex<BTreeMap<usize, &'static str>>,
    /// By node: which address it takes for its own, if that is not where it is.
    pub own_addresses: Mutex<BTreeMap<usize, String>>,
    /// Every database there ever was, the newest of each address last.
    all: Arc<Mutex<Vec<Arc<Db>>>>,
    /// Those that nobody must talk to any more.
    crashed: Mutex<Vec<Arc<Db>>>,
    /// By place: the newest witness there.
    witnesses: Mutex<BTreeMap<usize, Arc<Node>>>,
    starts: AtomicU64,
    /// Whether databases opened from now on want the word of a donor.
    pub words: AtomicBool,
    /// How long nodes opened from now on, that leave, wait until all is finished.
    pub finish: Mutex<Duration>,
    /// So many events wait in memory at nodes opened from now on.
    pub queue_here: AtomicUsize,
    /// Whether servers that start are told to stop.
    pub told_to_stop: Arc<AtomicBool>,
}

/// Fails unless the databases of two nodes are the same. Of a stream that one of them
/// has shelved it has nothing until the end, and the whole from then on.
fn same(one: &Db, other: &Db) {
    let names = format!("{} and {}", one.name, other.name);
    let (ours, theirs) = (one.disk(), other.disk());
    let (our_shelved, their_shelved) = (one.shelved(), other.shelved());
    assert_eq!(ours.rows, theirs.rows, "rows of {names}");
    let open = |disk: &Disk| {
        let mut open = disk.fragments.clone();
        open.retain(|id, _| !our_shelved.contains(id) && !their_shelved.contains(id));
        open
    };
    assert_eq!(open(&ours), open(&theirs), "streaming log of {names}");
    let ours = one.journal();
    for (seqno, theirs) in other.journal() {
        let Some(ours) = ours.get(&seqno) else {
            continue;
        };
        let alike = *ours == theirs
            || ours.is_chunk()
            || theirs.is_chunk()
            || ours.stands_for(&theirs, &our_shelved)
            || theirs.stands_for(ours, &their_shelved);
        assert!(alike, "seqno {seqno} is {ours:?} and {theirs:?} on {names}");
    }
}

/// The addresses of these nodes.
pub fn addrs(ns: &[usize]) -> Vec<String> {
    ns.iter().map(|n| World::addr(*n)).collect()
}

/// What threads of the library panicked with, in any test of this process: each goes on without the
/// duties of such a thread, and most tests do not miss them.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            if name.starts_with("dromon-") && !info.to_string().contains(WANTED) {
                lock(&PANICS).push(format!("{name}: {info}"));
            }
            former(info);
        }));
    });
}

/// Runs a test in a world of `count` nodes that are synced.
/// Whatever goes wrong, the state of everything is printed.
pub fn run(count: usize, options: &str, body: impl FnOnce(&World) + Send + 'static) {
    watch_panics();
    let world = Arc::new(World::new(options));
    let (tx, rx) = mpsc::channel();
    let inside = world.clone();
    let thread = std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| {
            inside.found(count);
            body(&inside);
            inside.end();
        }));
        // Nobody listens any more once the limit has passed.
        let _ = tx.send(result);
    });
    match rx.recv_timeout(LIMIT) {
        Ok(Ok(())) => drop(thread.join()),
        Ok(Err(panic)) => {
            eprintln!("{}", world.dump());
            resume_unwind(panic);
        }
        Err(_) => {
            eprintln!("{}", world.dump());
            panic!("the test did not end within {LIMIT:?}; what everybody was doing stands above");
        }
    }
}

impl World {
    fn new(options: &str) -> Self {
        World {
            net: Net::new(1),
            report: Arc::new(Report {
                // TOY_BINLOG: all databases have one.
                binary_log: AtomicBool::new(std::env::var_os("TOY_BINLOG").is_some()),
                began: Instant::now(),
                lines: Mutex::default(),
                violations: Mutex::default(),
                held: Mutex::default(),
            }),
            dirs: TempDir::new().expect("a directory for tests"),
            data_dirs: Mutex::default(),
            options: options.to_owned(),
            own_options: Mutex::default(),
            own_addresses: Mutex::default(),
            all: Arc::default(),
            crashed: Mutex::default(),
            witnesses: Mutex::default(),
            starts: AtomicU64::new(0),
            words: AtomicBool::new(false),
            finish: Mutex::new(FINISH),
            // TOY_QUEUE: so many.
            queue_here: AtomicUsize::new(
                std::env::var("TOY_QUEUE").map_or(QUEUE_HERE, |n| n.parse().expect("a number")),
            ),
            told_to_stop: Arc::default(),
        }
    }

    /// The address of node `n`, counted from 1.
    pub fn addr(n: usize) -> String {
        format!("10.0.0.{n}:4567")
    }

    /// The address of the cluster.
    pub fn url() -> String {
        let addrs: Vec<_> = (1..=5).map(Self::addr).collect();
        format!("gcomm://{}", addrs.join(","))
    }

    /// A data directory for a new process of node `n`: empty, or with what the
    /// process before left. (The old one may still hold its lock, as it lives
    /// in this very process.)
    fn new_dir(&self, n: usize, start: u64, empty: bool) -> PathBuf {
        let dir = self.dirs.path().join(format!("n{n}-{start}"));
        std::fs::create_dir(&dir).expect("a directory for a node");
        // Of a process that was killed.
        std::fs::write(dir.join("dromon-spool-1-0.log"), b"").expect("room");
        let before = lock(&self.data_dirs).insert(n, dir.clone());
        if let Some(before) = before.filter(|_| !empty) {
            for name in [STATE_FILE, VIEW_FILE, MARKS_FILE, LACKING_FILE] {
                // There need not be one.
                let _ = std::fs::copy(before.join(name), dir.join(name));
            }
            self.net.move_log(&before, &dir);
            std::fs::hard_link(before.join(DATA_FILE), dir.join(DATA_FILE)).expect("the data");
        } else {
            std::fs::write(dir.join(DATA_FILE), b"").expect("room");
        }
        dir
    }

    /// Other files of a database are put in place of those of node `n`, which does not run.
    pub fn exchange_data(&self, n: usize) {
        let dir = self.data_dir(n);
        std::fs::write(dir.join("copy"), b"").expect("room");
        std::fs::rename(dir.join("copy"), dir.join(DATA_FILE)).expect("it is renamed");
    }

    /// Where node `n` has its files.
    pub fn data_dir(&self, n: usize) -> PathBuf {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        dir.expect("a node that was started")
    }

    /// Runs `f` while nothing can be made in the directory of node `n`.
    pub fn without_dir<T>(&self, n: usize, f: impl FnOnce() -> T) -> T {
        let dir = self.data_dir(n);
        let away = dir.with_extension("away");
        std::fs::rename(&dir, &away).expect("it is renamed");
        let done = f();
        std::fs::rename(&away, &dir).expect("it is renamed back");
        done
    }

    /// What a node's state file says.
    pub fn state_file(&self, n: usize) -> String {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        let path = dir.expect("a node that was started").join(STATE_FILE);
        std::fs::read_to_string(path).expect("the state file")
    }

    /// Somebody edits the state file of node `n`, which does not run: in the line
    /// `key`, `value` stands now. Counts for the next start.
    pub fn edit_state_file(&self, n: usize, key: &str, value: &str) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        let path = dir.expect("a node that was started").join(STATE_FILE);
        let text = std::fs::read_to_string(&path).expect("the state file");
        let edited: Vec<String> = text
            .lines()
            .map(|line| match line.split_once(':') {
                Some((name, _)) if name == key => format!("{key}: {value}"),
                _ => line.to_owned(),
            })
            .collect();
        std::fs::write(&path, edited.join("\n") + "\n").expect("room");
    }

    /// Somebody writes a state file for node `n`, which does not run.
    pub fn write_state_file(&self, n: usize, position: Position) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        let path = dir.expect("a node that was started").join(STATE_FILE);
        let state = GraState {
            uuid: position.history,
            seqno: position.seqno,
            safe_to_bootstrap: false,
        };
        std::fs::write(path, state.to_string()).expect("room");
    }

    /// Somebody removes the state file of node `n`, which does not run.
    pub fn remove_state_file(&self, n: usize) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        let path = dir.expect("a node that was started").join(STATE_FILE);
        std::fs::remove_file(path).expect("the state file");
    }

    /// A bit changes in the log of node `n`, which has been opened last.
    pub fn damage_log(&self, n: usize) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        self.net.damage_log(&dir.expect("a node that was started"));
    }

    /// A copy of the log of node `n`, as its last process left it.
    pub fn copy_log(&self, n: usize) -> MemLog {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        self.net.copy_log(&dir.expect("a node that was started"))
    }

    /// The log of node `n`, which does not run, is removed.
    pub fn lose_log(&self, n: usize) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        self.net.lose_log(&dir.expect("a node that was started"));
    }

    /// The next process of node `n`, or the one that is not connected yet, finds `log`.
    pub fn put_log(&self, n: usize, log: MemLog) {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        self.net
            .put_log(&dir.expect("a node that was started"), log);
    }

    /// What a node's view file says; `None`: there is none.
    pub fn view_file(&self, n: usize) -> Option<String> {
        let dir = lock(&self.data_dirs).get(&n).cloned();
        let path = dir.expect("a node that was started").join(VIEW_FILE);
        std::fs::read_to_string(path).ok()
    }

    /// Starts a server on `disk`; it is not connected yet. `recovered`: the
    /// position that the server was told to start from.
    pub fn open(&self, n: usize, disk: Disk, recovered: Position) -> Arc<Db> {
        let addr = Self::addr(n);
        let empty = !disk.position.is_defined();
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let db = Db::new(n, &addr, start, disk, self.report.clone(), self.all.clone());
        let addr = lock(&self.own_addresses).get(&n).cloned().unwrap_or(addr);
        let setup = Setup {
            name: db.name.clone(),
            incoming: format!("10.0.0.{n}:3306"),
            address: addr.clone(),
            data_dir: self.new_dir(n, start, empty),
            position: recovered,
            witness: false,
            finish: *lock(&self.finish),
            queue_here: self.queue_here.load(Ordering::Relaxed),
        };
        let log = Arc::new(Lines {
            name: db.name.clone(),
            report: self.report.clone(),
            words: self.words.load(Ordering::Relaxed),
            told_to_stop: self.told_to_stop.clone(),
        });
        let own = lock(&self.own_options).get(&n).copied().unwrap_or_default();
        let options = format!("{};{own}", self.options);
        let node = Node::open(log, self.net.engines(&addr), setup, &options)
            .unwrap_or_else(|e| panic!("n{n}: {e}"));
        db.set_node(node);
        lock(&self.all).push(db.clone());
        db
    }

    /// Starts an empty server and has it join.
    pub fn join(&self, n: usize) -> Arc<Db> {
        let db = self.open(n, Disk::empty(), Position::UNDEFINED);
        db.connect(&Self::url(), false)
            .unwrap_or_else(|e| panic!("n{n}: {e}"));
        self.synced(&db);
        db
    }

    /// Starts a witness at place `n`; it is not connected yet. `empty`: without
    /// the log that the one before left.
    pub fn open_witness(&self, n: usize, empty: bool) -> Arc<Node> {
        let addr = Self::addr(n);
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let setup = Setup {
            name: format!("n{n}"),
            incoming: String::new(),
            address: addr.clone(),
            data_dir: self.new_dir(n, start, empty),
            position: Position::UNDEFINED,
            witness: true,
            finish: *lock(&self.finish),
            queue_here: self.queue_here.load(Ordering::Relaxed),
        };
        let log = Arc::new(Lines {
            name: format!("n{n}"),
            report: self.report.clone(),
            words: self.words.load(Ordering::Relaxed),
            told_to_stop: self.told_to_stop.clone(),
        });
        let node = Node::open(log, self.net.engines(&addr), setup, &self.options)
            .unwrap_or_else(|e| panic!("n{n}: {e}"));
        lock(&self.witnesses).insert(n, node.clone());
        node
    }

    /// Starts a witness without a log and has it join.
    pub fn join_witness(&self, n: usize) -> Arc<Node> {
        self.connect_witness(self.open_witness(n, true))
    }

    /// The same with the log that the one before left.
    pub fn restart_witness(&self, n: usize) -> Arc<Node> {
        self.connect_witness(self.open_witness(n, false))
    }

    fn connect_witness(&self, node: Arc<Node>) -> Arc<Node> {
        node.connect("toys", &Self::url(), "", false)
            .unwrap_or_else(|e| panic!("the witness: {e}"));
        self.until("the witness hears a majority", || node.is_primary());
        node
    }

    /// The newest witness at place `n`.
    pub fn witness(&self, n: usize) -> Arc<Node> {
        let all = lock(&self.witnesses);
        all.get(&n).cloned().expect("a witness that was started")
    }

    /// The witness at place `n` dies without a word.
    pub fn crash_witness(&self, n: usize) {
        self.net.kill(&Self::addr(n));
        lock(&self.witnesses).remove(&n);
        self.report.line(&format!("n{n}"), "crashes");
    }

    /// Node `n` dies without a word. Its database stays here as it is, to be
    /// looked at; its threads find nobody any more.
    pub fn crash(&self, n: usize) {
        let db = self.db(n);
        db.crashed.store(true, Ordering::Relaxed);
        self.net.kill(&db.addr);
        let mut crashed = lock(&self.crashed);
        crashed.push(db.clone());
        drop(crashed);
        lock(&self.all).retain(|d| !Arc::ptr_eq(d, &db));
        self.report.line(&db.name, "crashes");
    }

    /// The same with so many applier threads.
    pub fn joins_with(&self, n: usize, appliers: usize) -> Arc<Db> {
        let db = self.open(n, Disk::empty(), Position::UNDEFINED);
        db.appliers.store(appliers, Ordering::Relaxed);
        db.connect(&Self::url(), false)
            .unwrap_or_else(|e| panic!("n{n}: {e}"));
        self.synced(&db);
        db
    }

    /// What a crashed node's engine had.
    pub fn crashed_disk(&self, n: usize) -> Disk {
        let crashed = lock(&self.crashed);
        let db = crashed.iter().rev().find(|d| d.n == n);
        db.expect("a node that crashed").disk()
    }

    /// Starts a crashed node on what its engine had, from the position that its
    /// server found there; it is not connected yet.
    pub fn open_again(&self, n: usize) -> Arc<Db> {
        let disk = self.crashed_disk(n);
        let position = disk.position;
        self.open(n, disk, position)
    }

    fn found(&self, count: usize) {
        let first = self.open(1, Disk::empty(), Position::UNDEFINED);
        first.connect("gcomm://", true).expect("a new cluster");
        self.synced(&first);
        for n in 2..=count {
            self.join(n);
        }
        self.voters(count);
    }

    /// Waits until every running node knows `count` voters, and of no change
    /// of them that is under way: it would need the majority of before, too.
    pub fn voters(&self, count: usize) {
        self.until("all nodes vote", || {
            self.members().iter().all(|d| {
                d.stat("dromon_voters") == count.to_string() && self.net.voters_settled(&d.addr)
            })
        });
    }

    /// The newest database of node `n`.
    pub fn db(&self, n: usize) -> Arc<Db> {
        let addr = Self::addr(n);
        let all = lock(&self.all);
        let found = all.iter().rev().find(|d| d.addr == addr).cloned();
        found.unwrap_or_else(|| panic!("there is no n{n}"))
    }

    /// The databases that are members or mean to be.
    pub fn members(&self) -> Vec<Arc<Db>> {
        let mut newest = BTreeMap::new();
        for db in lock(&self.all).iter() {
            newest.insert(db.n, db.clone());
        }
        newest
            .into_values()
            .filter(|d| d.node().phase() != dromon_node::Phase::Closed)
            .collect()
    }

    /// Who leads, as `db` sees it.
    pub fn leader(&self, db: &Db) -> usize {
        let mut found = None;
        self.until("somebody leads", || {
            let addr = db.stat("dromon_leader");
            found = (1..=5).find(|n| Self::addr(*n) == addr);
            found.is_some()
        });
        found.expect("just seen")
    }

    /// Waits for `condition`.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let since = Instant::now();
        while !condition() {
            if since.elapsed() >= PATIENCE {
                // They may be why.
                let violations = self.report.violations();
                panic!("waited in vain until {what}; violations: {violations:#?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether `condition` comes true within a moment: for what must not.
    pub fn soon(&self, mut condition: impl FnMut() -> bool) -> bool {
        let since = Instant::now();
        while !condition() {
            if since.elapsed() > MOMENT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits until clients are served.
    pub fn synced(&self, db: &Db) {
        self.until(&format!("{} is synced", db.name), || {
            db.ready() && db.stat("local_state_comment") == "Synced"
        });
    }

    /// Waits until `slow`, whose appliers are all held at their start, has
    /// made everybody wait for it.
    pub fn stopped_by(&self, slow: &Db) {
        self.until(&format!("{} has stopped the others", slow.name), || {
            let held = slow.holds.waiting(crate::toy::holds::Point::ApplyStart);
            let limit = slow.node().settings().fc_limit;
            held == slow.appliers.load(Ordering::Relaxed)
                && slow.count("local_recv_queue") > limit as i64
                && self
                    .members()
                    .iter()
                    .all(|db| db.stat("flow_control_active") == "true")
        });
    }

    /// Waits until everything ordered is finished everywhere, and checks that
    /// it is the same everywhere.
    pub fn settle(&self) -> Position {
        let members = self.members();
        let since = Instant::now();
        let position = loop {
            let mut at = Vec::new();
            for db in &members {
                let (outcome, position) = db.node().sync_wait(Duration::from_secs(20));
                assert_eq!(outcome, Outcome::Ok, "a current read on {}", db.name);
                assert_eq!(
                    position,
                    db.node().last_committed(),
                    "what sync_wait and last_committed say on {}",
                    db.name
                );
                at.push((db.position(), position));
            }
            let all: Vec<_> = at.iter().flat_map(|(a, b)| [*a, *b]).collect();
            if all.windows(2).all(|w| w[0] == w[1]) {
                break all[0];
            }
            assert!(
                since.elapsed() < PATIENCE,
                "the nodes do not meet at one position: {at:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        for db in &members {
            let nobodys = db.nobodys();
            for other in &members {
                let taken = other
                    .journal()
                    .into_iter()
                    .find(|(s, _)| nobodys.contains(s));
                assert_eq!(
                    taken, None,
                    "nobody's on {}, not on {}",
                    db.name, other.name
                );
            }
        }
        for db in &members[1..] {
            same(&members[0], db);
        }
        self.check();
        position
    }

    /// Fails if anything happened that must not.
    pub fn check(&self) {
        let violations = self.report.violations();
        assert!(
            violations.is_empty(),
            "violations:\n  {}",
            violations.join("\n  ")
        );
    }

    fn end(&self) {
        for db in lock(&self.all).iter() {
            db.holds.open_all();
            let name = &db.name;
            assert!(
                !db.refused_for_nothing(),
                "{name} refused to order something and has shelved nothing"
            );
        }
        self.check();
        for db in self.members() {
            db.disconnect();
        }
        for witness in lock(&self.witnesses).values() {
            witness.disconnect();
        }
        self.check();
        let panics = lock(&PANICS);
        assert!(panics.is_empty(), "in this test or beside it: {panics:?}");
    }

    /// The state of everything.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for line in lock(&self.report.lines).iter() {
            out.push_str(line);
            out.push('\n');
        }
        let all: Vec<_> = lock(&self.all).clone();
        for db in all {
            out.push_str(&db.dump());
        }
        let violations = self.report.violations();
        if !violations.is_empty() {
            out.push_str(&format!("violations: {violations:#?}\n"));
        }
        out
    }
}
