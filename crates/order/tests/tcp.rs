//! Three engines as they run in a server: threads, sockets, files.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_log::{DirDevice, Log, LogOptions, WriterHandle};
use dromon_order::disklog::DiskLog;
use dromon_order::tcp::{Security, TcpConfig, TcpNetwork, who_is_at};
use dromon_order::wire::Identity;
use dromon_order::{
    Desired, EngineConfig, NodeHandler, Order, OrderStatus, RaftId, Reply, Sequencer, Start,
};
use dromon_writeset::Uuid;

struct Quiet;

impl NodeHandler for Quiet {
    fn request(&self, _: &str, body: Bytes, reply: Reply) {
        reply.send(body);
    }
    fn message(&self, _: RaftId, _: Bytes) {}
    fn tick(&self) -> Option<Bytes> {
        None
    }
    fn status(&self, _: &OrderStatus) {}
    fn position_lost(&self) {}
}

struct Node {
    id: RaftId,
    addr: String,
    order: Arc<dyn Order>,
    delivered: Arc<Mutex<Vec<Bytes>>>,
    ended: Arc<AtomicBool>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn origin(n: u8) -> Uuid {
    Uuid([n; 16])
}

/// Each once, and below those that the system gives to connections: it may be taken seconds later.
fn free_port() -> u16 {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 9_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(50);
    (0..COUNT)
        .map(|_| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
        .map(|n| (FIRST + n % COUNT) as u16)
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port is free")
}

fn start(dir: &Path, id: RaftId, birth: u8, port: u16, start: Start) -> Node {
    let device = DirDevice::open(dir).expect("the directory is there");
    let (log, _) = Log::open(Arc::new(device), LogOptions::default()).expect("the log opens");
    let writer = WriterHandle::spawn(log, 64 << 20).expect("a thread can be made");
    let store = Arc::new(DiskLog::new(writer));
    let addr = format!("127.0.0.1:{port}");
    let config = EngineConfig::lan("tcp test", id, origin(birth), &addr);
    let listen = addr.clone();
    let network = Box::new(move |raft_id| {
        let who = Identity {
            cluster: "tcp test".to_owned(),
            raft_id,
            addr: listen.clone(),
            ..Identity::default()
        };
        let net = TcpNetwork::bind(TcpConfig::new(listen, who, raft_id));
        net.map(|n| n as Arc<dyn dromon_order::Network>)
            .map_err(|e| e.to_string())
    });
    let order = dromon_order::start(config, store, network, Arc::new(Quiet), start)
        .expect("the engine starts");
    let delivered = Arc::new(Mutex::new(Vec::new()));
    let ended = Arc::new(AtomicBool::new(false));
    let (theirs, notes, end) = (order.clone(), delivered.clone(), ended.clone());
    thread::spawn(move || deliver(&*theirs, &notes, &end));
    Node {
        id: order.status().id,
        addr,
        order,
        delivered,
        ended,
    }
}

/// A cluster of three, and where their logs lie.
fn three(dirs: &[tempfile::TempDir], ports: &[u16]) -> [Node; 3] {
    let genesis = Bytes::from_static(b"genesis");
    let after = None;
    let founds = Start::Bootstrap { genesis, after };
    let a = start(dirs[0].path(), 11, 1, ports[0], founds);
    wait("the first is primary", || a.order.status().primary);
    let checkpoint = a.order.load_checkpoint(None).expect("the log can be read");
    let checkpoint = checkpoint.expect("bootstrap saves one");
    let join = |i: usize, id, birth| {
        let (checkpoint, term) = (checkpoint.clone(), 0);
        let joins = Start::Join { checkpoint, term };
        start(dirs[i].path(), id, birth, ports[i], joins)
    };
    let b = join(1, 22, 2);
    let c = join(2, 33, 3);
    for n in [&a, &b, &c] {
        n.order.set_desired(desired(&[&a, &b, &c]));
    }
    wait("all three vote", || {
        a.order.status().members.voters().len() == 3
    });
    [a, b, c]
}

/// The node's delivery thread.
fn deliver(order: &dyn Order, notes: &Mutex<Vec<Bytes>>, end: &AtomicBool) {
    let mut sequencer = Sequencer::new();
    for n in 1..=9 {
        sequencer.register(origin(n));
    }
    while !end.load(Ordering::Relaxed) {
        for c in order.next_committed(1000, Duration::from_millis(50)) {
            if let Some(d) = sequencer.accept(&c).expect("pieces stay in memory") {
                notes.lock().unwrap().push(d.body);
            }
        }
    }
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(150);
    while !condition() {
        assert!(Instant::now() < deadline, "it never comes true that {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn desired(nodes: &[&Node]) -> std::collections::BTreeMap<RaftId, Desired> {
    let d = |n: &&Node| {
        let addr = n.addr.clone();
        (n.id, Desired { addr, voter: true })
    };
    nodes.iter().map(d).collect()
}

#[test]
fn three_nodes_over_sockets_and_files_agree_and_one_comes_back() {
    let dirs: Vec<_> = (0..3)
        .map(|_| tempfile::tempdir().expect("a directory can be made"))
        .collect();
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let [a, b, c] = three(&dirs, &ports);

    let each = 300;
    thread::scope(|s| {
        for n in [&a, &b, &c] {
            s.spawn(move || {
                for i in 0..each {
                    let body = Bytes::from(format!("{}:{i}", n.id));
                    n.order.propose(1, 0, body).expect("there is room");
                    if i % 50 == 0 {
                        n.order
                            .read_index(Duration::from_secs(10))
                            .expect("a majority is there");
                    }
                }
            });
        }
    });
    let count = |n: &Node| n.delivered.lock().unwrap().len();
    wait("all is delivered everywhere", || {
        [&a, &b, &c].iter().all(|n| count(n) == 3 * each)
    });
    let seen = |n: &Node| n.delivered.lock().unwrap().clone();
    assert_eq!(seen(&a), seen(&b));
    assert_eq!(seen(&a), seen(&c));

    let echo = a.order.request(
        &b.addr,
        Bytes::from_static(b"hello"),
        Duration::from_secs(10),
    );
    assert_eq!(echo.as_deref(), Ok(&b"hello"[..]));

    let port = ports[2];
    c.order.stop();
    drop(c);
    for i in 0..10 {
        let body = Bytes::from(format!("late {i}"));
        a.order.propose(1, 0, body).expect("there is room");
    }
    wait("the two go on", || count(&b) == 3 * each + 10);
    let c = start(dirs[2].path(), 0, 4, port, Start::Resume);
    assert_eq!(c.order.status().id, 33, "the log knows whose it is");
    wait("the third catches up", || count(&c) == 3 * each + 10);
    assert_eq!(seen(&a), seen(&c));

    // Whoever leads, the others go on without it.
    let (leader, rest): (Vec<&Node>, Vec<&Node>) = [&a, &b, &c]
        .into_iter()
        .partition(|n| n.order.status().is_leader);
    leader[0].order.stop();
    rest[0]
        .order
        .propose(1, 0, Bytes::from_static(b"last"))
        .expect("there is room");
    wait("the rest deliver it", || {
        rest.iter()
            .all(|n| seen(n).last().is_some_and(|b| &b[..] == b"last"))
    });
    for n in rest {
        n.order.stop();
    }
}

/// The log names the old address, and there is no leader to correct it before it is
/// elected. The third one stays out.
#[test]
fn a_majority_of_which_one_has_moved_elects() {
    let dirs: Vec<_> = (0..3)
        .map(|_| tempfile::tempdir().expect("a directory can be made"))
        .collect();
    let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
    for n in three(&dirs, &ports) {
        n.order.stop();
    }
    let a = start(dirs[0].path(), 0, 4, ports[3], Start::Resume);
    let b = start(dirs[1].path(), 0, 5, ports[1], Start::Resume);
    let nodes = [&a, &b];
    wait("they have a majority", || {
        nodes.iter().all(|n| n.order.status().primary)
    });
    // Who asks it something asks there.
    assert_eq!(b.order.linked(), [(11, a.addr.clone())].into());
    assert_ne!(b.order.status().members.addrs[&11], a.addr);
    // Longer than a word about an address counts: the link stands.
    thread::sleep(Duration::from_secs(9));
    for n in nodes {
        n.order
            .propose(1, 0, Bytes::from_static(b"moved"))
            .expect("there is room");
    }
    wait("both deliver", || {
        let count = |n: &&Node| n.delivered.lock().unwrap().len();
        nodes.iter().all(|n| count(n) == 2)
    });
    // The log learns of it as of any change.
    for n in nodes {
        n.order.set_desired(desired(&[&a, &b]));
    }
    wait("the log has the address", || {
        let named = b.order.status().members.addrs.get(&11).cloned();
        named.as_ref() == Some(&a.addr)
    });
    for n in nodes {
        n.order.stop();
    }
}

/// Each is where the log has the other one. The third one stays out.
#[test]
fn two_that_swapped_addresses_elect_once_one_is_told() {
    let dirs: Vec<_> = (0..3)
        .map(|_| tempfile::tempdir().expect("a directory can be made"))
        .collect();
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    for n in three(&dirs, &ports) {
        n.order.stop();
    }
    let a = start(dirs[0].path(), 0, 4, ports[1], Start::Resume);
    let b = start(dirs[1].path(), 0, 5, ports[0], Start::Resume);
    thread::sleep(Duration::from_secs(3));
    assert!([&a, &b].iter().all(|n| !n.order.status().primary));
    assert_eq!(a.order.linked(), [].into(), "who is there is not who was");
    a.order.found_at(22, &b.addr);
    wait("they have a majority", || {
        [&a, &b].iter().all(|n| n.order.status().primary)
    });
    assert_eq!(a.order.linked(), [(22, b.addr.clone())].into());
    assert_eq!(b.order.linked(), [(11, a.addr.clone())].into());
    for n in [a, b] {
        n.order.stop();
    }
}

/// Nobody is where any log has it. One word about one other is enough for each pair:
/// who is asked hears where the asker is.
#[test]
fn members_that_all_moved_elect_once_one_is_told_where_another_is() {
    let dirs: Vec<_> = (0..3)
        .map(|_| tempfile::tempdir().expect("a directory can be made"))
        .collect();
    let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
    for n in three(&dirs, &ports) {
        n.order.stop();
    }
    let resume = |i: usize| start(dirs[i].path(), 0, 4 + i as u8, ports[3 + i], Start::Resume);
    let [a, b, c] = [resume(0), resume(1), resume(2)];
    let who = Identity {
        cluster: "tcp test".to_owned(),
        ..Identity::default()
    };
    let tell = |to: &Node, about: &Node| {
        let limit = Duration::from_secs(5);
        let id = who_is_at(&about.addr, &who, &Security::default(), limit);
        assert_eq!(id, Ok(about.id));
        to.order.found_at(about.id, &about.addr);
        to.order.found_at(77, "127.0.0.1:9");
    };
    thread::sleep(Duration::from_secs(3));
    assert!([&a, &b, &c].iter().all(|n| !n.order.status().primary));
    tell(&a, &b);
    wait("two have a majority", || {
        [&a, &b].iter().all(|n| n.order.status().primary)
    });
    tell(&c, if a.order.status().is_leader { &a } else { &b });
    wait("the third follows", || c.order.status().primary);
    for n in [a, b, c] {
        assert!(!n.order.status().peers.contains_key(&77), "no member");
        n.order.stop();
    }
}
