//! The brake, and strangers that hold connections.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;

use socket2::SockRef;

use super::tests::{SOON, addr, all_up, config, peers, until};
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
    let r = b.request(&addr(&a), Bytes::new(), SOON).await;
    assert!(matches!(r, Err(NetError::Broken { .. })), "{r:?}");
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
