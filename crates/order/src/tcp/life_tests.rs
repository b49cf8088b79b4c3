//! Connections that fall silent, with a proxy in between that holds what it is to pass on.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::tests::{Events, addr, all_up, config, next_frame, until};
use super::*;

/// Which of the connections through it, counted from the first one, are held.
pub(super) struct Proxy {
    pub(super) at: SocketAddr,
    held: watch::Sender<Range<usize>>,
    pub(super) made: watch::Receiver<usize>,
}

impl Proxy {
    pub(super) async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (held, holding) = watch::channel(0..0);
        let (counting, made) = watch::channel(0);
        tokio::spawn(async move {
            for number in 0.. {
                let (near, _) = listener.accept().await.unwrap();
                counting.send_replace(number + 1);
                tokio::spawn(pass_on(near, target, number, holding.clone()));
            }
        });
        Proxy { at, held, made }
    }

    pub(super) fn hold(&self, which: Range<usize>) {
        self.held.send_replace(which);
    }
}

/// Never closes by itself: neither end hears that nothing passes.
async fn pass_on(
    near: TcpStream,
    target: SocketAddr,
    number: usize,
    mut held: watch::Receiver<Range<usize>>,
) {
    if held.wait_for(|h| !h.contains(&number)).await.is_err() {
        return;
    }
    let far = TcpStream::connect(target).await.unwrap();
    let (near, far) = (near.into_split(), far.into_split());
    let one = |(mut from, mut to): (
        tokio::net::tcp::OwnedReadHalf,
        tokio::net::tcp::OwnedWriteHalf,
    )| {
        let mut held = held.clone();
        async move {
            let mut buf = vec![0; 64 << 10];
            while let Ok(n) = from.read(&mut buf).await {
                let free = held.wait_for(|h| !h.contains(&number)).await.is_ok();
                if n == 0 || !free || to.write_all(&buf[..n]).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::join!(one((near.0, far.1)), one((far.0, near.1)));
}

/// Node 1, whose links to node 2 go through a proxy.
async fn behind_a_proxy() -> (Arc<TcpNetwork>, Events, Arc<TcpNetwork>, Proxy) {
    let (mut c, events) = config(1);
    c.silent_after = Duration::from_millis(150);
    // Nothing but the pings may find it.
    c.dead_after = Duration::from_secs(600);
    let (a, b) = (
        TcpNetwork::bind(c).unwrap(),
        TcpNetwork::bind(config(2).0).unwrap(),
    );
    let proxy = Proxy::to(b.local_addr()).await;
    a.set_peers([(2, proxy.at.to_string())].into());
    until("up", || all_up(&a, 2)).await;
    assert_ne!(addr(&b), proxy.at.to_string());
    (a, events, b, proxy)
}

pub(super) fn lost(events: &Events) -> Vec<(Lane, NetError)> {
    let events = lock(events);
    let lost = |e: &TransportEvent| match e {
        TransportEvent::Lost { lane, why, .. } => Some((*lane, why.clone())),
        _ => None,
    };
    events.iter().filter_map(lost).collect()
}

#[tokio::test]
async fn connections_that_fall_silent_are_replaced_where_new_ones_pass() {
    let (a, events, b, proxy) = behind_a_proxy().await;
    proxy.hold(0..*proxy.made.borrow());
    // What the old one swallows counts as on its way, and may be slow.
    a.send(2, Lane::Bulk, Bytes::from(vec![1; 40 << 20]).into())
        .unwrap();
    until("all three were replaced", || {
        let lost = lost(&events);
        Lane::ALL.iter().all(|lane| {
            lost.iter()
                .any(|(l, why)| l == lane && matches!(why, NetError::Silent { .. }))
        })
    })
    .await;
    until("up again", || all_up(&a, 2)).await;
    let text = lost(&events)[0].1.to_string();
    assert!(text.contains("drops what the old one carries"), "{text}");
    for lane in Lane::ALL {
        a.send(2, lane, Bytes::from_static(b"again").into())
            .unwrap();
    }
    for _ in Lane::ALL {
        assert_eq!(&next_frame(&b).await.2[..], b"again");
    }
}

#[tokio::test]
async fn a_node_that_stands_still_keeps_its_connections() {
    let (a, events, b, proxy) = behind_a_proxy().await;
    let before = *proxy.made.borrow();
    proxy.hold(0..usize::MAX);
    a.send(2, Lane::Node, Bytes::from_static(b"late").into())
        .unwrap();
    // It looks for a way several times; nobody greets there.
    until("attempts", || *proxy.made.borrow() >= before + 9).await;
    assert_eq!(lost(&events), []);
    // The old ones go on; the attempts are still not answered.
    proxy.hold(before..usize::MAX);
    assert_eq!(&next_frame(&b).await.2[..], b"late");
    until("pongs again", || {
        let quiet = a.peers_status()[&2].silent;
        quiet.is_some_and(|s| s < Duration::from_millis(100))
    })
    .await;
    assert_eq!(lost(&events), []);
    assert!(all_up(&a, 2));
}
