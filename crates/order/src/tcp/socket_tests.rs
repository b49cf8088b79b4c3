//! The brake, and strangers that hold connections.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;

use socket2::SockRef;

use super::tests::{SOON, addr, all_up, config, identity, peers, until};
use super::*;

/// A brake with a copy of each socket, so that numbers do not matter.
#[derive(Default)]
struct Hand {
    pulled: AtomicBool,
    covered: Mutex<HashMap<RawFd, OwnedFd>>,
}

impl Hand {
    fn pull(&self, on: bool) {
        self.pulled.store(on, Ordering::SeqCst);
        if on {
            lock(&self.covered).values().for_each(cut);
        }
    }
}

fn cut(socket: &OwnedFd) {
    // One whose other end is gone already says so.
    let _ = SockRef::from(socket).shutdown(std::net::Shutdown::Both);
}

impl Brake for Hand {
    fn pulled(&self) -> bool {
        self.pulled.load(Ordering::SeqCst)
    }

    fn cover(&self, socket: BorrowedFd<'_>) -> bool {
        let copy = socket.try_clone_to_owned().expect("a descriptor");
        let mut covered = lock(&self.covered);
        if self.pulled() {
            cut(&copy);
        }
        let old = covered.insert(socket.as_raw_fd(), copy);
        assert!(old.is_none(), "a number is released before it comes again");
        true
    }

    fn release(&self, socket: BorrowedFd<'_>) {
        let known = lock(&self.covered).remove(&socket.as_raw_fd());
        assert!(known.is_some());
    }
}

#[tokio::test]
async fn the_brake_ends_every_connection_at_once_and_lets_none_be_made() {
    let hand = Arc::new(Hand::default());
    let (mut c, _) = config(1);
    c.security = Security::under(Some(hand.clone()));
    let a = TcpNetwork::bind(c).unwrap();
    let b = TcpNetwork::bind(config(2).0).unwrap();
    a.set_peers(peers(&[(2, &b)]));
    b.set_peers(peers(&[(1, &a)]));
    until("both up", || all_up(&a, 2) && all_up(&b, 1)).await;

    let from = Instant::now();
    hand.pull(true);
    let sent = a.send(2, Lane::Raft, Bytes::from_static(b"vote").into());
    assert!(matches!(sent, Err(SendError::Disconnected { .. })));
    until("b sees it", || b.peers_status()[&1].up == [false; 3]).await;
    assert!(from.elapsed() < Duration::from_secs(1));
    until("a sees it", || a.peers_status()[&2].up == [false; 3]).await;
    // Whoever came first was sent away; since then nobody listens.
    let broken = b.request(&addr(&a), Bytes::new(), SOON).await;
    assert!(broken.is_err());
    let r = b.request(&addr(&a), Bytes::new(), SOON).await;
    assert!(matches!(r, Err(NetError::Refused { .. })), "{r:?}");
    let r = a.request(&addr(&b), Bytes::new(), SOON).await;
    assert_eq!(r, Err(NetError::Closed("cut off")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(a.peers_status()[&2].up, [false; 3]);
    assert_eq!(b.peers_status()[&1].up, [false; 3]);

    hand.pull(false);
    until("back", || all_up(&a, 2) && all_up(&b, 1)).await;
    a.stop();
    drop(a);
    until("all released", || lock(&hand.covered).is_empty()).await;
}

fn from(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 9))
}

#[test]
fn the_place_with_most_silent_ones_gives_way_and_peers_are_spared() {
    let table = InboundTable::default();
    let enter = |host| table.enter(from(host));
    let crowd: Vec<u64> = (0..GREETING_AT_ONCE - 2)
        .map(|_| enter(1).unwrap().0)
        .collect();
    let (few, _) = enter(2).unwrap();
    let (peer, _) = enter(3).unwrap();
    table.lives(7, Some(from(3).ip()));
    // Others, and the crowd itself, take the places of the crowd, the oldest first.
    let here = |id: &u64| table.lock().conns.contains_key(id);
    assert_eq!(enter(4).unwrap().1, Some(from(1)));
    assert_eq!(enter(1).unwrap().1, Some(from(1)));
    assert!(!crowd[..2].iter().any(here) && crowd[2..].iter().all(here));
    assert!(here(&few) && here(&peer));
    // Those that have greeted do not count and do not go.
    table.greeted(crowd[2]);
    assert_eq!(enter(5).unwrap().1, None);
    assert_eq!(enter(5).unwrap().1, Some(from(1)));
    assert!(here(&crowd[2]) && !here(&crowd[3]));

    // As many places as connections: the oldest of those that are no peer's.
    let table = InboundTable::default();
    let enter = |host| table.enter(from(host));
    table.lives(7, Some(from(0).ip()));
    for host in 0..GREETING_AT_ONCE as u8 {
        assert_eq!(enter(host).unwrap().1, None);
    }
    assert_eq!(enter(200).unwrap().1, Some(from(1)));
    assert_eq!(enter(0).unwrap().1, Some(from(2)));

    // Peers give way to peers only, and only while they are.
    let table = InboundTable::default();
    let enter = |host| table.enter(from(host));
    table.lives(7, Some(from(1).ip()));
    table.lives(8, Some(from(2).ip()));
    for _ in 0..GREETING_AT_ONCE {
        enter(1).unwrap();
    }
    assert_eq!(enter(3), None);
    assert_eq!(enter(2).unwrap().1, Some(from(1)));
    table.keep_homes(|id| id == 8);
    assert_eq!(enter(3).unwrap().1, Some(from(1)));
}

/// Without a secret anybody can greet as a peer.
#[test]
fn who_claims_to_be_a_peer_does_not_take_its_place() {
    let table = InboundTable::default();
    let enter = |host| table.enter(from(host));
    table.lives(7, Some(from(1).ip()));
    table.was_seen(7, from(9).ip());
    for _ in 0..GREETING_AT_ONCE {
        enter(9).unwrap();
    }
    assert_eq!(enter(3), None);
    assert_eq!(enter(1).unwrap().1, Some(from(9)));
    // It moves, or comes from elsewhere than where it is looked for.
    table.lives(7, None);
    assert_eq!(enter(3).unwrap().1, Some(from(1)));
    table.was_seen(7, from(1).ip());
    assert_eq!(enter(1).unwrap().1, Some(from(9)));
}

#[test]
fn a_network_of_version_6_is_one_place() {
    let ip = |text: &str| place(text.parse().expect("an address"));
    assert_eq!(ip("2001:db8:0:1::1"), ip("2001:db8:0:1:ff::2"));
    assert_ne!(ip("2001:db8:0:1::1"), ip("2001:db8:0:2::1"));
    assert_eq!(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
    assert_ne!(ip("10.0.0.1"), ip("10.0.0.2"));
}

/// Holds as many silent connections as there is room for, from another address of
/// this machine, and makes each anew that ends.
fn crowd(at: SocketAddr, go_on: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    use socket2::{Domain, Protocol, Socket, Type};
    let silent = move || -> std::io::Result<Socket> {
        let s = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        s.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
        s.connect(&at.into())?;
        s.set_nonblocking(true)?;
        Ok(s)
    };
    std::thread::spawn(move || {
        let mut held: Vec<Socket> = Vec::new();
        while go_on.load(Ordering::Relaxed) {
            held.retain(|s| {
                let end = std::io::Read::read(&mut &*s, &mut [0]);
                matches!(end, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
            });
            while held.len() < GREETING_AT_ONCE {
                held.push(silent().expect("a connection"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_place_with_silent_connections_keeps_no_peer_out() {
    let (mut c, events) = config(1);
    c.greet_timeout = Duration::from_secs(3);
    let a = TcpNetwork::bind(c).unwrap();
    let go_on = Arc::new(AtomicBool::new(true));
    let strangers = crowd(a.local_addr(), go_on.clone());
    let full = || lock(&a.shared.inbound.0).conns.len() >= GREETING_AT_ONCE;
    until("full", full).await;

    let b = TcpNetwork::bind(config(2).0).unwrap();
    let start = Instant::now();
    b.set_peers(peers(&[(1, &a)]));
    until("up all the same", || all_up(&b, 1)).await;
    assert!(start.elapsed() < Duration::from_secs(2));
    let named = || {
        let gone = |e: &TransportEvent| matches!(e, TransportEvent::GaveWay { addr } if addr.starts_with("127.0.0.2:"));
        lock(&events).iter().any(gone)
    };
    until("they are named", named).await;
    assert!(lock(&a.shared.inbound.0).conns.len() <= GREETING_AT_ONCE + 3);
    go_on.store(false, Ordering::Relaxed);
    strangers.join().unwrap();
}

#[tokio::test]
async fn a_look_into_the_allowlist_that_hangs_is_answered_as_busy() {
    let (mut c, _) = config(1);
    let hangs = Arc::new(AtomicBool::new(true));
    let hanging = hangs.clone();
    c.admit = Some(Arc::new(move |_, _| {
        // A test that fails ends, too.
        let start = Instant::now();
        while hanging.load(Ordering::Relaxed) && start.elapsed() < SOON * 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }));
    let n = TcpNetwork::bind(c).unwrap();
    let at = addr(&n);
    let ask = async || {
        let start = Instant::now();
        let r = request(&at, &identity(5), &Security::default(), Bytes::new(), SOON).await;
        assert!(
            matches!(&r, Err(NetError::Rejected { refusal, .. }) if refusal.code == RefusalCode::Busy),
            "{r:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(2));
    };
    // More than are looked for at once, and none leaves a place taken.
    for _ in 0..ADMITTING_AT_ONCE + 1 {
        ask().await;
    }
    until("all left", || lock(&n.shared.inbound.0).conns.is_empty()).await;
    assert_eq!(n.shared.admitting.available_permits(), 0);
    hangs.store(false, Ordering::Relaxed);
    let b = TcpNetwork::bind(config(2).0).unwrap();
    b.set_peers(peers(&[(1, &n)]));
    until("up", || all_up(&b, 1)).await;
}
