//! Real engines: over TCP, with the log on disk.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dromon_log::{DirDevice, FileKind, Log, LogOptions, SoonRead, WriterHandle, kind_by_name};
use dromon_order::disklog::DiskLog;
use dromon_order::logstore::LogStore;
use dromon_order::network::{NetError, Presence};
use dromon_order::sequencer::PieceStore;
use dromon_order::tcp::{
    Admit, Security, SecurityConfig, TcpConfig, TcpNetwork, TlsFiles, request_blocking, who_is_at,
};
use dromon_order::wire::{Identity, Refusal, RefusalCode};
use dromon_order::{
    EngineConfig, MakeNetwork, Network, NodeHandler, Order, OrderError, RaftId, Start,
};
use dromon_writeset::Uuid;

pub use dromon_order::tcp::Brake;

use crate::messages::Position;
use crate::node::{Aside, AskError, EngineError, Engines, ISOLATED, LogSummary};
use crate::options::{HostPort, Settings};
use crate::spool::MapFile;

/// The process around a real node.
pub trait Host: Send + Sync {
    /// A line about a connection made or lost.
    fn event(&self, text: &str);

    /// Whether a node at `ip` may connect; if not, why, in half a sentence.
    fn admit(&self, ip: IpAddr) -> Result<(), String>;

    /// How files become memory.
    fn map_file(&self) -> MapFile;

    /// See [`Engines::recover_position`].
    fn recover_position(&self, data_dir: &Path) -> Result<Position, String>;

    /// See [`Engines::memory`].
    fn memory(&self) -> (u64, u64);

    /// See [`Engines::forget_memory_peak`].
    fn forget_memory_peak(&self);

    /// What may cut the process off at any moment, as a handler of signals.
    fn brake(&self) -> Option<Arc<dyn Brake>>;
}

/// How long a round of questions waits for the addresses of one name; a later one has them.
const RESOLVE: Duration = Duration::from_secs(1);

/// The engines of a real node.
pub struct Tcp {
    host: Arc<dyn Host>,
    network: Arc<Mutex<Option<Arc<TcpNetwork>>>>,
    isolated: Arc<AtomicBool>,
    security: Arc<Security>,
    /// The directory of the database.
    data: Mutex<Option<Arc<File>>>,
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tcp").finish_non_exhaustive()
    }
}

impl Tcp {
    /// Engines in the process of `host`.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Tcp {
            security: Security::under(host.brake()),
            host,
            network: Arc::default(),
            isolated: Arc::default(),
            data: Mutex::default(),
        }
    }

    fn held_data(&self, dir: &Path) -> std::io::Result<Arc<File>> {
        let mut held = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = &*held {
            return Ok(data.clone());
        }
        let data = Arc::new(File::open(dir)?);
        *held = Some(data.clone());
        Ok(data)
    }
}

fn admit(host: Arc<dyn Host>) -> Admit {
    Arc::new(move |_, ip| {
        let answer = host.admit(ip);
        answer.map_err(|why| Refusal::new(RefusalCode::NotAllowed, why))
    })
}

/// Somebody without a log who asks.
fn asking(cluster: &str) -> Identity {
    Identity {
        cluster: cluster.to_owned(),
        history: Uuid::NIL,
        raft_id: 0,
        addr: String::new(),
    }
}

impl Engines for Tcp {
    fn start(
        &self,
        config: EngineConfig,
        dir: &Path,
        listen: &str,
        start: Start,
        handler: Arc<dyn NodeHandler>,
    ) -> Result<Arc<dyn Order>, EngineError> {
        let store: Arc<dyn LogStore> = Arc::new(open_log_with(
            dir,
            config.durable,
            true,
            config.soon.clone(),
        )?);
        let who = Identity {
            cluster: config.cluster.clone(),
            history: Uuid::NIL,
            raft_id: 0,
            addr: config.addr.clone(),
        };
        let listen = listen.to_owned();
        let seed = config.fresh_id;
        // Of evs.suspect_timeout it is 3/7: a connection that died alone costs no membership.
        let silent_after = config.election_min * 3;
        let silent_after = silent_after.clamp(Duration::from_secs(1), Duration::from_secs(3));
        let host = self.host.clone();
        let place = self.network.clone();
        let security = self.security.clone();
        let isolated = self.isolated.clone();
        let make: MakeNetwork = Box::new(move |raft_id| {
            let mut tcp = TcpConfig::new(listen, Identity { raft_id, ..who }, seed);
            tcp.security = security;
            tcp.silent_after = silent_after;
            tcp.admit = Some(admit(host.clone()));
            tcp.events = Some(Arc::new(move |event| {
                host.event(&event.to_string());
            }));
            let network = TcpNetwork::bind(tcp).map_err(|e| e.to_string())?;
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock: an order that comes meanwhile finds the network, or is seen here.
            network.set_isolated(isolated.load(Ordering::Relaxed));
            *place = Some(network.clone());
            Ok(network as Arc<dyn Network>)
        });
        dromon_order::start(config, store, make, handler, start).map_err(order_error)
    }

    fn ask(
        &self,
        cluster: &str,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, AskError> {
        if self.isolated.load(Ordering::Relaxed) {
            return Err(AskError::Unreachable(ISOLATED.into()));
        }
        let who = asking(cluster);
        request_blocking(addr, &who, &self.security, body, timeout).map_err(ask_error)
    }

    fn who_is_at(&self, cluster: &str, addr: &str, timeout: Duration) -> Option<RaftId> {
        if self.isolated.load(Ordering::Relaxed) {
            return None;
        }
        let id = who_is_at(addr, &asking(cluster), &self.security, timeout);
        id.ok().filter(|id| *id != 0)
    }

    fn addresses(&self, addr: &str) -> Vec<(HostPort, bool)> {
        dromon_order::tcp::addresses(addr, RESOLVE)
    }

    fn secure(&self, settings: &Settings) -> Result<Vec<String>, String> {
        let tls = &settings.tls;
        let config = SecurityConfig {
            tls: tls.enabled.then(|| TlsFiles {
                ca: tls.ca.clone(),
                cert: tls.cert.clone(),
                key: tls.key.clone(),
                password_file: tls.password_file.clone(),
                cipher: tls.cipher.clone(),
            }),
            dynamic: tls.dynamic,
            secret_file: Some(settings.secret_file.clone()).filter(|f| !f.as_os_str().is_empty()),
        };
        self.security.load(&config).map_err(|e| e.to_string())
    }

    fn map_file(&self) -> MapFile {
        self.host.map_file()
    }

    fn recover_position(&self, data_dir: &Path) -> Result<Position, String> {
        self.host.recover_position(data_dir)
    }

    fn hold_data(&self, data_dir: &Path) -> std::io::Result<()> {
        self.held_data(data_dir).map(|_| ())
    }

    fn sync_data(&self, data_dir: &Path) -> std::io::Result<()> {
        // Always the same one: what another process was told of meanwhile, it is told, too.
        Ok(rustix::fs::syncfs(self.held_data(data_dir)?)?)
    }

    fn sync_definitions(&self, data_dir: &Path, since: SystemTime) -> std::io::Result<()> {
        crate::definitions::sync_changed(data_dir, since)
    }

    fn sync_all(&self) {
        rustix::fs::sync();
    }

    fn round_trips(&self) -> Vec<f64> {
        let network = self
            .network
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let peers = network.map(|n| n.peers_status()).unwrap_or_default();
        peers
            .values()
            .filter_map(|p| p.rtt)
            .map(|d| d.as_secs_f64())
            .collect()
    }

    fn memory(&self) -> (u64, u64) {
        self.host.memory()
    }

    fn forget_memory_peak(&self) {
        self.host.forget_memory_peak();
    }

    fn isolate(&self, on: bool) {
        let network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        self.isolated.store(on, Ordering::Relaxed);
        if let Some(network) = network.as_ref() {
            network.set_isolated(on);
        }
    }

    fn inspect(&self, dir: &Path) -> Result<Option<LogSummary>, EngineError> {
        if !has_log(dir).map_err(EngineError::Other)? {
            return Ok(None);
        }
        let store: Arc<dyn LogStore> = Arc::new(open_log(dir, true, false)?);
        let found = dromon_order::inspect(&store);
        store.close();
        Ok(found.map_err(order_error)?.map(LogSummary::from))
    }

    fn log_sum(
        &self,
        dir: &Path,
        position: Position,
        pieces: (Box<dyn PieceStore>, u64),
    ) -> Result<Option<u64>, String> {
        if !has_log(dir)? {
            return Ok(None);
        }
        let store = open_log(dir, true, false).map_err(|e| e.to_string())?;
        let store: Arc<dyn LogStore> = Arc::new(store);
        let sum = crate::chain::of_log(&store, position, Some(pieces));
        store.close();
        sum
    }

    fn set_log_aside(&self, dir: &Path, why: Aside) -> Result<String, String> {
        set_aside(dir, why).map_err(|e| format!("{}: {e}", dir.display()))
    }
}

/// Bytes that may wait for the log's thread.
const LOG_QUEUE_BYTES: usize = 256 << 20;

/// A directory that cannot be read, as by a process without descriptors, says nothing; one that is not there has none.
fn has_log(dir: &Path) -> Result<bool, String> {
    match log_files(dir) {
        Ok(names) => Ok(!names.is_empty()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(format!("the log in {}: {e}", dir.display())),
    }
}

/// The names of a log's files in `dir`, as they are to go: without the first one, which says
/// whose log it is and for whom it voted, no part of the others is taken for a log.
fn log_files(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // Names of ours are plain letters.
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if kind_by_name(&name).is_some() {
            names.push(name);
        }
    }
    names.sort_by_key(|name| match kind_by_name(name) {
        Some(FileKind::SmallValues) => 0,
        Some(FileKind::Checkpoint) => 1,
        _ => 2,
    });
    Ok(names)
}

/// Renames a log's files. The end of the names stays, for which the server's
/// copy scripts spare them. Half done it is a damaged log: it could be a whole, shorter one, which
/// votes and has forgotten, if what says whose it is did not go first.
fn set_aside(dir: &Path, why: Aside) -> std::io::Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let word = match why {
        Aside::Damaged => "damaged",
        Aside::OtherHistory => "former",
    };
    let prefix = format!("{word}-{}-", now.map_or(0, |d| d.as_secs()));
    for name in log_files(dir)? {
        std::fs::rename(dir.join(&name), dir.join(format!("{prefix}{name}")))?;
        if kind_by_name(&name) == Some(FileKind::SmallValues) {
            File::open(dir)?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()?;
    Ok(format!("{prefix}dromon-*.log in {}", dir.display()))
}

/// Opens the log in `dir`: with a thread that writes to it, or only to look.
fn open_log(dir: &Path, durable: bool, thread: bool) -> Result<DiskLog, EngineError> {
    open_log_with(dir, durable, thread, SoonRead::default())
}

fn open_log_with(
    dir: &Path,
    durable: bool,
    thread: bool,
    soon: SoonRead,
) -> Result<DiskLog, EngineError> {
    let other = |why: String| EngineError::Other(why);
    let device =
        DirDevice::open(dir).map_err(|e| other(format!("the log in {}: {e}", dir.display())))?;
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let options = LogOptions {
        sync: durable,
        // Tells this log from another one; any number that is not used twice.
        identity: seed.map_or(1, |d| d.as_nanos()) << 32 | u128::from(std::process::id()),
        soon,
        ..LogOptions::default()
    };
    let opened = Log::open(Arc::new(device), options);
    let (log, _) = opened.map_err(|e| match e.is_corruption() {
        true => EngineError::Damaged(e.to_string()),
        false => other(e.to_string()),
    })?;
    let writer = if thread {
        WriterHandle::spawn(log, LOG_QUEUE_BYTES).map_err(|e| other(e.to_string()))?
    } else {
        WriterHandle::inline(log)
    };
    Ok(DiskLog::new(writer))
}

/// Damage that shows only when what was opened is read is damage, too.
fn order_error(e: OrderError) -> EngineError {
    match e {
        OrderError::Damaged(why) => EngineError::Damaged(why),
        e => EngineError::Other(e.to_string()),
    }
}

/// What a failed question means to who looks for others.
fn ask_error(e: NetError) -> AskError {
    let text = e.to_string();
    let code = match &e {
        NetError::Rejected { refusal, .. } => Some(refusal.code),
        _ => None,
    };
    let stays = matches!(e, NetError::Misbehaved(_))
        || matches!(
            code,
            Some(RefusalCode::WrongCluster | RefusalCode::NotAllowed | RefusalCode::BadSecret)
        );
    match e.presence() {
        _ if code == Some(RefusalCode::NoCommonVersion) => AskError::OtherVersion(text),
        Presence::Other if stays => AskError::Refused(text),
        Presence::Nobody | Presence::Other => AskError::Unreachable(text),
        Presence::Unlooked => AskError::Unlooked(text),
        Presence::Resolving => AskError::Resolving(text),
        Presence::Silent => AskError::Silent(text),
        Presence::Untold if stays => AskError::ShutOut(text),
        Presence::Untold => AskError::Barred(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Database, Level};
    use crate::ddl_marks::{MARKS_FILE, Marks};
    use crate::grastate::STATE_FILE;
    use crate::lacking::{LACKING_FILE, LackingFile};
    use crate::node::{FINISH, Node, QUEUE_HERE, Setup};
    use dromon_order::logstore::{Record, WriteOp};
    use std::os::fd::BorrowedFd;

    /// A process whose brake is pulled.
    struct Crashing;

    impl Host for Crashing {
        fn event(&self, _: &str) {}

        fn admit(&self, _: IpAddr) -> Result<(), String> {
            Ok(())
        }

        fn map_file(&self) -> MapFile {
            Arc::new(|_, _| Err(std::io::Error::other("none here")))
        }

        fn recover_position(&self, _: &Path) -> Result<Position, String> {
            Err("none here".to_owned())
        }

        fn memory(&self) -> (u64, u64) {
            (0, 0)
        }

        fn forget_memory_peak(&self) {}

        fn brake(&self) -> Option<Arc<dyn Brake>> {
            Some(Arc::new(Crashing))
        }
    }

    impl Brake for Crashing {
        fn pulled(&self) -> bool {
            true
        }

        fn cover(&self, _: BorrowedFd<'_>) -> bool {
            true
        }

        fn release(&self, _: BorrowedFd<'_>) {}
    }

    #[test]
    fn the_brake_of_the_process_counts_for_questions_too() {
        let tcp = Tcp::new(Arc::new(Crashing));
        let asked = tcp.ask("c", "127.0.0.1:1", Bytes::new(), Duration::from_secs(1));
        assert!(
            matches!(&asked, Err(AskError::Unreachable(why)) if why.contains("cut off")),
            "{asked:?}"
        );
    }

    /// Of a failed write another process may have been told meanwhile: then only who was there
    /// before is told, too.
    #[test]
    fn the_database_is_synced_by_what_was_opened_at_the_start() {
        let tcp = Tcp::new(Arc::new(Crashing));
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        assert!(tcp.sync_data(&data).is_err(), "there is none");
        std::fs::create_dir(&data).expect("room");
        tcp.hold_data(&data).expect("it is there");
        // Whoever opened it now would get nothing.
        std::fs::remove_dir(&data).expect("it is empty");
        tcp.sync_data(&data).expect("it is open");
        let held = || tcp.held_data(&data).expect("it is open");
        assert!(Arc::ptr_eq(&held(), &held()));
    }

    /// A database that keeps what it is told.
    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl Database for Lines {
        fn log(&self, _: Level, message: &str) {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(message.to_owned());
        }
    }

    fn setup(dir: &Path, witness: bool) -> Setup {
        Setup {
            name: "w".into(),
            incoming: String::new(),
            address: "127.0.0.1".into(),
            data_dir: dir.to_owned(),
            position: Position::UNDEFINED,
            witness,
            finish: FINISH,
            queue_here: QUEUE_HERE,
        }
    }

    #[test]
    fn a_node_that_cannot_note_statements_does_not_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let marks = dir.path().join(MARKS_FILE);
        std::os::unix::fs::symlink("/nowhere/marks", &marks).expect("a link");
        let open = |witness| {
            let tcp = Box::new(Tcp::new(Arc::new(Crashing)));
            let opened = Node::open(
                Arc::new(Lines::default()),
                tcp,
                setup(dir.path(), witness),
                "",
            );
            opened.err().map(|e| e.to_string())
        };
        let why = open(false).expect("it would leave at the first one");
        assert!(
            why.contains(MARKS_FILE) && why.contains("cannot be written"),
            "{why}"
        );
        assert_eq!(open(true), None, "it runs none");
        std::fs::remove_file(&marks).expect("it is a link");
        assert_eq!(open(false), None);
    }

    #[test]
    fn notes_that_are_gone_are_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let notes = dir.path().join(LACKING_FILE);
        let open = || {
            let tcp = Box::new(Tcp::new(Arc::new(Crashing)));
            let lines = Arc::new(Lines::default());
            let opened = Node::open(lines, tcp, setup(dir.path(), false), "");
            opened.err().map(|e| e.to_string())
        };
        assert_eq!(open(), None, "nothing was ever noted");
        let (file, mut lacking) = LackingFile::open(dir.path()).expect("none are there");
        let mut marks = Marks::open(dir.path(), dir.path()).expect("readable");
        lacking.add(Uuid([7; 16]), 5);
        // As they are stored.
        file.make().expect("room");
        marks.set_notes(true).expect("room");
        assert_eq!(open(), None, "a crash before they are written");
        let noted = lacking.unwritten(0).expect("one is new");
        file.write(&noted).expect("room");
        assert_eq!(open(), None);
        std::fs::remove_file(&notes).expect("it is there");
        let why = open().expect("nobody knows what was in it");
        assert!(
            why.contains(LACKING_FILE) && why.contains("is gone"),
            "{why}"
        );
        let state = "# GALERA saved state\nversion: 2.1\nuuid:    00000000-0000-0000-0000-000000000000\n\
                     seqno:   -1\nsafe_to_bootstrap: 0\n";
        std::fs::write(dir.path().join(STATE_FILE), state).expect("room");
        assert_eq!(open(), None, "a copy was asked for");
        assert!(notes.is_file());
    }

    #[test]
    fn what_stands_before_a_secret_that_cannot_be_used_is_in_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let setup = setup(dir.path(), true);
        let lines = Arc::new(Lines::default());
        let tcp = Box::new(Tcp::new(Arc::new(Crashing)));
        let node = Node::open(lines.clone(), tcp, setup, "").expect("nothing is wrong");
        let refused = node.set_options(
            "evs.suspect_timeout=PT7S;gmcast.isolate=1;dromon.secret_file=/nowhere/secret;\
             evs.inactive_timeout=PT19S;gmcast.isolate=0",
        );
        let why = refused.expect_err("there is no such file");
        assert!(why.contains("/nowhere/secret"), "{why}");
        let settings = node.settings();
        assert_eq!(settings.suspect_timeout, Duration::from_secs(7));
        assert_eq!(settings.inactive_timeout, Duration::from_secs(15), "behind");
        assert!(settings.secret_file.as_os_str().is_empty());
        let lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let orders: Vec<&String> = lines.iter().filter(|l| l.starts_with("gmcast.")).collect();
        assert!(
            matches!(orders[..], [one] if one.contains("is cut off")),
            "{orders:?}"
        );
    }

    #[test]
    fn who_may_be_there_is_not_taken_for_gone() {
        let addr = || "10.0.0.2:4567".to_owned();
        let rejected = |code| {
            ask_error(NetError::Rejected {
                addr: addr(),
                refusal: Refusal::new(code, "no"),
            })
        };
        let not_encrypted = |other_protocol| {
            ask_error(NetError::NotEncrypted {
                addr: addr(),
                why: "its certificate has expired".into(),
                other_protocol,
            })
        };
        let timed_out = |taken| {
            ask_error(NetError::TimedOut {
                addr: addr(),
                what: "answer",
                taken,
                timeout: Duration::from_secs(3),
            })
        };
        let (why, proof) = ("reset".to_owned(), "it has no secret");
        for there in [
            not_encrypted(false),
            rejected(RefusalCode::Busy),
            ask_error(NetError::NotProven {
                addr: addr(),
                why: proof,
            }),
            ask_error(NetError::Broken { addr: addr(), why }),
            ask_error(NetError::NoAnswer { addr: addr() }),
        ] {
            assert!(matches!(there, AskError::Barred(_)), "{there:?}");
        }
        let listed = rejected(RefusalCode::NotAllowed);
        assert!(matches!(listed, AskError::ShutOut(_)), "{listed:?}");
        let version = rejected(RefusalCode::NoCommonVersion);
        assert!(matches!(version, AskError::OtherVersion(_)), "{version:?}");
        assert!(matches!(timed_out(true), AskError::Silent(_)));
        let looking = ask_error(NetError::Resolving {
            addr: addr(),
            limit: Duration::from_secs(3),
        });
        assert!(matches!(looking, AskError::Resolving(_)), "{looking:?}");
        for gone in [
            timed_out(false),
            not_encrypted(true),
            ask_error(NetError::Refused { addr: addr() }),
        ] {
            assert!(matches!(gone, AskError::Unreachable(_)), "{gone:?}");
        }
        let other = rejected(RefusalCode::WrongCluster);
        assert!(matches!(other, AskError::Refused(_)), "{other:?}");
    }

    fn append(log: &DiskLog, index: u64) {
        let (tx, rx) = std::sync::mpsc::channel();
        let record = Record {
            index,
            term: 1,
            leader: 1,
            body: Bytes::from(vec![7; 500]),
        };
        let done = Box::new(move |result: std::io::Result<()>| {
            let _ = tx.send(result.is_ok());
        });
        log.submit(WriteOp::Append(vec![record]), done);
        assert!(rx.recv().expect("an answer"));
    }

    /// Three segments, and the process is gone.
    fn crashed_log(dir: &Path) {
        let device = DirDevice::open(dir).expect("a directory");
        let options = LogOptions {
            segment_bytes: 16 << 10,
            ..LogOptions::default()
        };
        let (mut log, _) = Log::open(Arc::new(device), options).expect("a new log");
        for index in 0..60 {
            let record = Record {
                index,
                term: 1,
                leader: 1,
                body: Bytes::from(vec![7; 500]),
            };
            log.append(vec![record]).expect("room");
            log.sync().expect("room");
        }
        let state = log.checkpoints().save(7, b"a state");
        state.expect("room");
    }

    #[test]
    fn a_log_half_set_aside_is_no_shorter_log() {
        let whole = tempfile::tempdir().expect("a directory");
        crashed_log(whole.path());
        let names = log_files(whole.path()).expect("a directory");
        assert!(names.len() >= 5, "{names:?}");
        assert_eq!(names[0], "dromon-meta.log");
        let (small, others) = names.split_at(1);
        for seed in 0..others.len() {
            // Whatever comes next in the directory.
            let mut order = others.to_vec();
            order.rotate_left(seed);
            for gone in 1..order.len() {
                let dir = tempfile::tempdir().expect("a directory");
                for name in small.iter().chain(&order).skip(gone) {
                    let from = whole.path().join(name);
                    std::fs::copy(from, dir.path().join(name)).expect("room");
                }
                let left = log_files(dir.path()).expect("a directory");
                if !left.iter().any(|n| n.starts_with("dromon-0")) {
                    continue;
                }
                let opened = open_log(dir.path(), true, false).map(|_| ());
                assert!(matches!(opened, Err(EngineError::Damaged(_))), "{left:?}");
                set_aside(dir.path(), Aside::Damaged).expect("the rest follows");
                assert_eq!(has_log(dir.path()), Ok(false));
            }
        }
    }

    #[test]
    fn files_that_are_only_named_like_the_logs_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let theirs = ["dromon-1.log", "dromon-1-slow.log", "dromon-tmp-1.log"];
        for name in theirs {
            std::fs::write(dir.path().join(name), b"a server's").expect("room");
        }
        assert_eq!(has_log(dir.path()), Ok(false));
        crashed_log(dir.path());
        set_aside(dir.path(), Aside::Damaged).expect("a directory that can be written");
        assert_eq!(has_log(dir.path()), Ok(false));
        for name in theirs {
            let content = std::fs::read(dir.path().join(name));
            assert_eq!(content.expect("it is there"), b"a server's", "{name}");
        }
    }

    #[test]
    fn a_damaged_log_is_told_from_other_errors_and_makes_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        assert_eq!(has_log(dir), Ok(false));
        let log = open_log(dir, true, true).expect("a new log");
        for index in 0..20 {
            append(&log, index);
        }
        log.close();
        let segment = log_files(dir).expect("a directory");
        let segment = segment.iter().find(|n| n.starts_with("dromon-0"));
        let segment = segment.expect("a segment").clone();
        let mut bytes = std::fs::read(dir.join(&segment)).expect("a file");
        bytes[5000] ^= 1;
        std::fs::write(dir.join(&segment), &bytes).expect("a file");

        let refused = open_log(dir, true, true)
            .map(|_| ())
            .expect_err("a changed bit");
        assert!(matches!(&refused, EngineError::Damaged(why) if why.contains(&segment)));
        let names = set_aside(dir, Aside::Damaged).expect("a directory that can be written");
        assert!(names.starts_with("damaged-"), "{names}");
        assert_eq!(has_log(dir), Ok(false));
        let kept = std::fs::read_dir(dir).expect("a directory").flatten();
        let kept = kept
            .map(|e| e.path())
            .find(|p| p.to_string_lossy().ends_with(&segment));
        let kept = std::fs::read(kept.expect("it is renamed")).expect("a file");
        assert!(kept == bytes, "nothing else changed");
        open_log(dir, true, false).expect("a new log beside them");
        let names = set_aside(dir, Aside::OtherHistory).expect("a directory that can be written");
        assert!(names.starts_with("former-"), "{names}");

        let later = order_error(OrderError::Damaged("dromon-ckpt-7".into()));
        assert!(matches!(later, EngineError::Damaged(_)));
        let other = order_error(OrderError::Log("the disk refuses".into()));
        assert!(matches!(other, EngineError::Other(_)));

        let missing = open_log(&dir.join("nowhere"), true, false);
        assert!(matches!(missing.map(|_| ()), Err(EngineError::Other(_))));
    }
}
