//! Measures three engines in one process, over TCP and files.
//!
//! ```text
//! cargo run --release -p dromon-order --example order_speed -- \
//!     [proposers per node] [seconds] [bytes] [disk|memory] [plain|tls]
//! ```
//!
//! Each proposer waits until its own message is delivered on its node, then
//! sends the next one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_log::{DirDevice, Log, LogOptions, WriterHandle};
use dromon_order::disklog::DiskLog;
use dromon_order::tcp::{Security, SecurityConfig, TcpConfig, TcpNetwork, TlsFiles};
use dromon_order::wire::Identity;
use dromon_order::{
    CommittedBody, Desired, EngineConfig, Network, NodeHandler, Order, OrderStatus, RaftId, Reply,
    Start,
};
use dromon_writeset::Uuid;

struct Quiet;

impl NodeHandler for Quiet {
    fn request(&self, _: &str, _: Bytes, _: Reply) {}
    fn message(&self, _: RaftId, _: Bytes) {}
    fn tick(&self) -> Option<Bytes> {
        None
    }
    fn status(&self, _: &OrderStatus) {}
    fn position_lost(&self) {}
}

type Waiters = Arc<Mutex<BTreeMap<u64, mpsc::SyncSender<()>>>>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (proposers, seconds, bytes) = (number(0, 1), number(1, 5), number(2, 1024));
    let sync = args.get(3).map(String::as_str) != Some("memory");
    let security = Security::open();
    let tls = args.get(4).is_some_and(|a| a == "tls");
    if tls {
        let pki = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pki");
        let files = TlsFiles {
            ca: pki.join("ca.pem"),
            cert: pki.join("node.pem"),
            key: pki.join("node.key"),
            ..TlsFiles::default()
        };
        let config = SecurityConfig {
            tls: Some(files),
            ..SecurityConfig::default()
        };
        security.load(&config).expect("the files can be read");
    }
    let dirs: Vec<_> = (0..3)
        .map(|_| tempfile::tempdir().expect("a directory can be made"))
        .collect();
    let mut nodes: Vec<(Arc<dyn Order>, String, Waiters)> = Vec::new();
    let stop = Arc::new(AtomicBool::new(false));
    for (i, dir) in dirs.iter().enumerate() {
        let device = DirDevice::open(dir.path()).expect("the directory is there");
        let options = LogOptions {
            sync,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(device), options).expect("the log opens");
        let writer = WriterHandle::spawn(log, 64 << 20).expect("a thread can be made");
        let addr = {
            let l = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
            l.local_addr().expect("it is bound").to_string()
        };
        let start = match nodes.first() {
            None => Start::Bootstrap {
                genesis: Bytes::new(),
                after: None,
            },
            Some((first, ..)) => Start::Join {
                checkpoint: first
                    .load_checkpoint(None)
                    .expect("the log can be read")
                    .expect("bootstrap saves one"),
                term: 0,
            },
        };
        let id = i as u64 + 1;
        let origin = Uuid([id as u8; 16]);
        let config = EngineConfig::lan("speed", id, origin, &addr);
        let listen = addr.clone();
        let security = security.clone();
        let network = Box::new(move |raft_id| {
            let who = Identity {
                cluster: "speed".to_owned(),
                raft_id,
                addr: listen.clone(),
                ..Identity::default()
            };
            let mut config = TcpConfig::new(listen, who, raft_id);
            config.security = security;
            let net = TcpNetwork::bind(config);
            net.map(|n| n as Arc<dyn Network>)
                .map_err(|e| e.to_string())
        });
        let store = Arc::new(DiskLog::new(writer));
        let order = dromon_order::start(config, store, network, Arc::new(Quiet), start)
            .expect("the engine starts");
        let waiters = Waiters::default();
        let (theirs, wake, end) = (order.clone(), waiters.clone(), stop.clone());
        thread::spawn(move || deliver(&*theirs, origin, &wake, &end));
        nodes.push((order, addr, waiters));
    }
    let desired: BTreeMap<RaftId, Desired> = (1..)
        .zip(&nodes)
        .map(|(id, (_, addr, _))| {
            let addr = addr.clone();
            (id, Desired { addr, voter: true })
        })
        .collect();
    for (order, ..) in &nodes {
        order.set_desired(desired.clone());
    }
    while nodes[0].0.status().members.voters().len() < 3 || !nodes[2].0.status().primary {
        thread::sleep(Duration::from_millis(10));
    }

    let latencies = Mutex::new(Vec::new());
    let next_tag = AtomicU64::new(1);
    let cpu_before = cpu_seconds();
    let began = Instant::now();
    thread::scope(|s| {
        for (order, _, waiters) in &nodes {
            for _ in 0..proposers {
                s.spawn(|| {
                    let body = Bytes::from(vec![7; bytes as usize]);
                    let mut own = Vec::new();
                    while began.elapsed() < Duration::from_secs(seconds) {
                        let tag = next_tag.fetch_add(1, Ordering::Relaxed);
                        let (tx, rx) = mpsc::sync_channel(1);
                        waiters.lock().expect("nobody panics").insert(tag, tx);
                        let at = Instant::now();
                        order.propose(1, tag, body.clone()).expect("there is room");
                        rx.recv().expect("it is delivered");
                        own.push(at.elapsed());
                    }
                    latencies.lock().expect("nobody panics").extend(own);
                });
            }
        }
    });
    let took = began.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu_before;
    let mut all = latencies.into_inner().expect("nobody panics");
    all.sort();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{proposers} proposers per node, {bytes} bytes, {}, {}: {:.0}/s, p50 {:.2} ms, p99 {:.2} ms, \
         {:.2} CPU s per 100k",
        if sync { "disk" } else { "memory" },
        if tls { "TLS" } else { "plain" },
        all.len() as f64 / took,
        at(0.5),
        at(0.99),
        cpu / all.len() as f64 * 1e5,
    );
    stop.store(true, Ordering::Relaxed);
    for (order, ..) in &nodes {
        order.stop();
    }
}

fn deliver(order: &dyn Order, origin: Uuid, waiters: &Waiters, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        for c in order.next_committed(512, Duration::from_millis(100)) {
            if let CommittedBody::Message(m) = c.body
                && m.origin == origin
                && let Some(tx) = waiters.lock().expect("nobody panics").remove(&m.tag)
            {
                // The proposer waits for exactly this.
                let _ = tx.send(());
            }
        }
    }
}

/// CPU time of this process so far, in seconds (Linux: ticks are 1/100 s).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(") ").next().unwrap_or_default();
    let field = |i: usize| -> f64 {
        let text = after.split(' ').nth(i);
        text.and_then(|t| t.parse().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) / 100.0
}
