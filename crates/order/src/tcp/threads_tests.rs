//! A process at its limit of threads, and tasks that panic.

use std::io::Write;
use std::sync::atomic::AtomicBool;

use super::aside::tests::NONE_LEFT;
use super::names::tests::{at, name};
use super::tests::{SOON, all_up, config, identity, next_frame, until};
use super::*;
use crate::network::Presence;

/// `n` under a name, which has to be resolved.
fn by_name(id: RaftId, n: &TcpNetwork) -> BTreeMap<RaftId, String> {
    BTreeMap::from([(id, format!("localhost:{}", n.local_addr().port()))])
}

fn anybody() -> Option<Admit> {
    Some(Arc::new(|_, _| Ok(())))
}

fn nobody_there(n: &TcpNetwork) -> bool {
    lock(&n.shared.inbound.0).conns.is_empty()
}

/// In such a one whoever asks the runtime for a thread panics.
#[test]
fn names_and_the_allowlist_need_no_thread_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(1 << 60)
        .build()
        .expect("it makes none yet");
    runtime.block_on(async {
        let a = TcpNetwork::bind(config(1).0).unwrap();
        let (mut c, _) = config(2);
        c.admit = anybody();
        let b = TcpNetwork::bind(c).unwrap();
        a.set_peers(by_name(2, &b));
        until("up", || all_up(&a, 2)).await;
    });
}

#[tokio::test]
async fn want_of_threads_that_passes_costs_no_link() {
    let (a, b) = (config(1).0, config(2).0);
    let a = TcpNetwork::bind(a).unwrap();
    let b = TcpNetwork::bind(b).unwrap();
    NONE_LEFT.set(true);
    a.set_peers(by_name(2, &b));
    let told = || {
        let why = a.peers_status()[&2].last_error.clone();
        why.is_some_and(|why| why.contains("about the node that asks"))
    };
    until("told", told).await;
    let at = by_name(2, &b).remove(&2).unwrap();
    let asked = a.request(&at, Bytes::new(), SOON).await;
    assert!(
        matches!(&asked, Err(NetError::NotAsked { why, .. }) if why.starts_with("no thread")),
        "{asked:?}"
    );
    NONE_LEFT.set(false);
    until("up", || all_up(&a, 2)).await;
}

#[tokio::test]
async fn want_of_threads_for_the_allowlist_takes_no_places() {
    let (mut c, events) = config(1);
    c.admit = anybody();
    let a = TcpNetwork::bind(c).unwrap();
    let at = a.local_addr().to_string();
    NONE_LEFT.set(true);
    // More than there is room for.
    for _ in 0..GREETING_AT_ONCE + 1 {
        let r = request(&at, &identity(5), &Security::default(), Bytes::new(), SOON).await;
        assert!(
            matches!(&r, Err(NetError::Rejected { refusal, .. }) if refusal.code == RefusalCode::Busy),
            "{r:?}"
        );
    }
    until("all left", || nobody_there(&a)).await;
    assert_eq!(a.shared.admitting.available_permits(), ADMITTING_AT_ONCE);
    let told = |e: &TransportEvent| matches!(e, TransportEvent::CannotAccept { why } if why.starts_with("no thread"));
    assert_eq!(lock(&events).iter().filter(|e| told(e)).count(), 1);
    NONE_LEFT.set(false);
    let b = TcpNetwork::bind(config(2).0).unwrap();
    b.set_peers(BTreeMap::from([(1, at)]));
    until("up", || all_up(&b, 1)).await;
}

#[tokio::test]
async fn a_link_whose_task_panics_is_made_again() {
    let (mut c, events) = config(1);
    let broken = Arc::new(AtomicBool::new(true));
    let panics = broken.clone();
    c.events = Some(Arc::new(move |e| {
        let made = matches!(e, TransportEvent::Connected { .. });
        lock(&events).push(e);
        assert!(
            !made || !panics.load(Ordering::Relaxed),
            "as a test wants it"
        );
    }));
    let a = TcpNetwork::bind(c).unwrap();
    let b = TcpNetwork::bind(config(2).0).unwrap();
    a.set_peers(BTreeMap::from([(2, b.local_addr().to_string())]));
    // Whoever uses the link hears of its end; that it came is overtaken by that.
    let next = tokio::time::timeout(SOON, a.recv()).await;
    assert!(
        matches!(next, Ok(Some(Inbound::Link { up: false, .. }))),
        "{next:?}"
    );
    let status = a.peers_status();
    assert!(status[&2].last_error.is_some(), "{status:?}");
    broken.store(false, Ordering::Relaxed);
    until("up", || all_up(&a, 2)).await;
    a.send(2, Lane::Raft, Bytes::from_static(b"vote").into())
        .unwrap();
    assert_eq!(&next_frame(&b).await.2[..], b"vote");
}

#[tokio::test]
async fn a_connection_whose_task_panics_leaves_its_place() {
    let (mut c, _) = config(1);
    let said = Arc::new(AtomicBool::new(false));
    let saying = said.clone();
    c.events = Some(Arc::new(move |_| {
        saying.store(true, Ordering::Relaxed);
        panic!("as a test wants it");
    }));
    let a = TcpNetwork::bind(c).unwrap();
    let mut stranger = std::net::TcpStream::connect(a.local_addr()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    until("told", || said.load(Ordering::Relaxed)).await;
    until("left", || nobody_there(&a)).await;
}

/// Each lookup takes longer than one attempt may.
#[tokio::test]
async fn a_name_that_takes_long_to_look_up_leads_there_in_the_end() {
    let limit = Duration::from_millis(400);
    let a = TcpNetwork::bind(config(1).0).unwrap();
    name("slow.test", move || {
        std::thread::sleep(limit * 2);
        Ok(vec![at("127.0.0.1")])
    });
    let there = format!("slow.test:{}", a.local_addr().port());
    let who = identity(5);
    let open = Security::default();
    let ask = || request(&there, &who, &open, Bytes::new(), limit);
    let began = Instant::now();
    // Then somebody is asked.
    while let Err(e @ NetError::Resolving { .. }) = ask().await {
        assert_eq!(e.presence(), Presence::Resolving, "nobody knows yet");
        assert!(began.elapsed() < SOON, "it never leads there");
    }
}
