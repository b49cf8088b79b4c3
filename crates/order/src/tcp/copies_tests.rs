//! Two running nodes of one identity: a member, and a copy of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::life_tests::{Proxy, lost};
use super::tests::{Events, SOON, addr, all_up, config, next_frame, until};
use super::*;

fn node(raft_id: RaftId) -> (Arc<TcpNetwork>, Events) {
    let (mut c, events) = config(raft_id);
    // Nobody is silent on a machine that is busy, either.
    c.silent_after = SOON;
    (TcpNetwork::bind(c).unwrap(), events)
}

/// Node `raft_id`, with links to node 2.
fn linked(raft_id: RaftId, to: &TcpNetwork) -> (Arc<TcpNetwork>, Events) {
    let (n, events) = node(raft_id);
    n.set_peers([(2, addr(to))].into());
    (n, events)
}

fn refused_as_a_copy(n: &TcpNetwork) -> bool {
    let status = n.peers_status();
    let why = status[&2].last_error.as_ref();
    why.is_some_and(|why| why.contains("another running node as member 1"))
}

#[tokio::test]
async fn a_copy_of_a_member_ends_none_of_its_links() {
    let (b, refusing) = node(2);
    let (original, events) = linked(1, &b);
    until("up", || all_up(&original, 2)).await;
    original
        .send(2, Lane::Raft, Bytes::from_static(b"first").into())
        .unwrap();
    next_frame(&b).await;
    let (copy, _) = linked(1, &b);
    until("it is refused", || refused_as_a_copy(&copy)).await;
    // Many attempts long: they come every 100 ms at least.
    for i in 0..60u8 {
        for lane in Lane::ALL {
            let frame = Bytes::copy_from_slice(&[i]);
            original
                .send(2, lane, frame.into())
                .expect("its link is up");
            assert_eq!(next_frame(&b).await.2[..], [i]);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(lost(&events), []);
    assert_eq!(copy.peers_status()[&2].up, [false; 3]);
    let displaced = |n: &TcpNetwork| n.peers_status()[&2].displaced;
    let most = Duration::from_millis(10 * 60);
    until("for all that time", || {
        displaced(&copy).is_some_and(|since| since >= most)
    })
    .await;
    assert_eq!(displaced(&original), None);
    let said = lock(&refusing).first().map(ToString::to_string);
    let said = said.expect("it is said here, too");
    assert!(
        said.contains("this node hears another running node as member 1, at 127.0.0.1:"),
        "{said}"
    );
    // A member that is restarted comes in as soon as its old connections are closed.
    drop(original);
    until("the only one is let in", || all_up(&copy, 2)).await;
    assert_eq!(displaced(&copy), None);
}

#[tokio::test]
async fn a_member_that_is_back_at_its_address_puts_an_end_to_a_copy_that_came_first() {
    let (b, _) = node(2);
    let (copy, _) = linked(1, &b);
    until("nobody else is there", || all_up(&copy, 2)).await;
    let (original, events) = node(1);
    b.set_peers([(1, addr(&original))].into());
    until("found at its address", || all_up(&b, 1)).await;
    original.set_peers([(2, addr(&b))].into());
    until("up", || all_up(&original, 2)).await;
    until("the copy is out", || refused_as_a_copy(&copy)).await;
    assert_eq!(lost(&events), []);
    assert!(all_up(&original, 2));
}

#[tokio::test]
async fn a_restarted_member_does_not_wait_for_connections_that_are_silent() {
    let (mut c, _) = config(2);
    c.silent_after = Duration::from_millis(150);
    let b = TcpNetwork::bind(c).unwrap();
    let proxy = Proxy::to(b.local_addr()).await;
    // The machine is switched off: nothing of it comes any more, no end either.
    let (before, _) = node(1);
    before.set_peers([(2, proxy.at.to_string())].into());
    until("up", || all_up(&before, 2)).await;
    proxy.hold(0..usize::MAX);
    let (again, _) = linked(1, &b);
    until("it is let in", || all_up(&again, 2)).await;
}

/// As a node that is started anew does until its former member is forgotten.
#[tokio::test]
async fn who_connects_to_itself_says_nothing_of_it_and_a_copy_is_told_of() {
    let (one, events) = node(1);
    one.set_peers([(2, addr(&one))].into());
    let met = |n: &TcpNetwork, words: &str| {
        let status = n.peers_status();
        let why = status[&2].last_error.as_ref();
        why.is_some_and(|why| why.contains(words))
    };
    until("it meets itself", || met(&one, "is this node itself")).await;
    let said = lock(&events).clone();
    assert_eq!(said.len(), 0, "{said:?}");
    let (copy, told) = linked(1, &one);
    until("it is refused", || met(&copy, "or a copy of it")).await;
    until("both say so", || {
        !lock(&events).is_empty() && !lock(&told).is_empty()
    })
    .await;
}
