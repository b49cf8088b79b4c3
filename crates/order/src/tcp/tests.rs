//! The transport over real loopback sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use dromon_writeset::Uuid;

use super::*;
use crate::wire::{
    FRAME_HEADER, FrameKind, HelloAnswer, Misbehaviour, Purpose, RefusalCode, VERSION_MAX,
    frame_header, read_frame, read_greeting,
};

pub(super) const SOON: Duration = Duration::from_secs(20);

pub(super) fn identity(raft_id: RaftId) -> Identity {
    Identity {
        cluster: "test".to_owned(),
        history: Uuid([9; 16]),
        raft_id,
        ..Identity::default()
    }
}

pub(super) type Events = Arc<Mutex<Vec<TransportEvent>>>;

pub(super) fn config(raft_id: RaftId) -> (TcpConfig, Events) {
    let events = Events::default();
    let sink = events.clone();
    let config = TcpConfig {
        events: Some(Arc::new(move |e| lock(&sink).push(e))),
        greet_timeout: Duration::from_millis(300),
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(100),
        ping_every: Duration::from_millis(50),
        ..TcpConfig::new("127.0.0.1:0", identity(raft_id), raft_id)
    };
    (config, events)
}

fn node(raft_id: RaftId) -> Arc<TcpNetwork> {
    TcpNetwork::bind(config(raft_id).0).unwrap()
}

pub(super) fn addr(n: &TcpNetwork) -> String {
    n.local_addr().to_string()
}

pub(super) fn peers(of: &[(RaftId, &TcpNetwork)]) -> BTreeMap<RaftId, String> {
    of.iter().map(|(id, n)| (*id, addr(n))).collect()
}

pub(super) async fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let from = Instant::now();
    while !true_now() {
        assert!(from.elapsed() < SOON, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(super) fn all_up(n: &TcpNetwork, peer: RaftId) -> bool {
    n.peers_status()
        .get(&peer)
        .is_some_and(|s| s.up == [true; 3])
}

pub(super) async fn next_frame(n: &TcpNetwork) -> (RaftId, Lane, Bytes) {
    loop {
        match tokio::time::timeout(SOON, n.recv()).await {
            Ok(Some(Inbound::Frame { from, lane, body })) => return (from, lane, body),
            Ok(Some(Inbound::Link { .. })) => {}
            other => panic!("no frame but {other:?}"),
        }
    }
}

async fn pair() -> (Arc<TcpNetwork>, Arc<TcpNetwork>) {
    let (a, b) = (node(1), node(2));
    a.set_peers(peers(&[(1, &a), (2, &b)]));
    b.set_peers(peers(&[(1, &a), (2, &b)]));
    until("both up", || all_up(&a, 2) && all_up(&b, 1)).await;
    (a, b)
}

#[tokio::test]
async fn frames_arrive_in_order_per_lane_whatever_their_parts() {
    let (a, b) = pair().await;
    let big = Bytes::from(vec![7; 10_000]);
    for i in 0..500u32 {
        for lane in Lane::ALL {
            let mut f = Frame::new();
            f.push(Bytes::copy_from_slice(&i.to_le_bytes()));
            if i % 3 == 0 {
                f.push(big.clone());
            }
            f.push(Bytes::copy_from_slice(&[lane.index() as u8]));
            a.send(2, lane, f).unwrap();
        }
    }
    let mut next = [0u32; 3];
    for _ in 0..1500 {
        let (from, lane, body) = next_frame(&b).await;
        let want = &mut next[lane.index()];
        assert_eq!(from, 1);
        assert_eq!(body[..4], want.to_le_bytes());
        assert_eq!(body[body.len() - 1], lane.index() as u8);
        assert_eq!(body.len(), if *want % 3 == 0 { 10_005 } else { 5 });
        *want += 1;
    }
    assert_eq!(next, [500; 3]);
    assert!(
        a.try_recv()
            .is_none_or(|i| matches!(i, Inbound::Link { .. }))
    );
    assert_eq!(
        a.send(5, Lane::Raft, Frame::new()),
        Err(SendError::UnknownPeer { to: 5 })
    );
}

#[tokio::test]
async fn the_largest_frame_passes_and_a_larger_one_does_not() {
    let (a, b) = pair().await;
    let body = Bytes::from(vec![3; FRAME_MAX]);
    a.send(2, Lane::Bulk, body.clone().into()).unwrap();
    let (_, _, got) = next_frame(&b).await;
    assert!(got == body);
    let over: Frame = [body, Bytes::from_static(b"x")].into_iter().collect();
    assert!(matches!(
        a.send(2, Lane::Bulk, over),
        Err(SendError::TooLarge { .. })
    ));
}

#[tokio::test]
async fn status_shows_sign_of_life_and_round_trip() {
    let (a, _b) = pair().await;
    until("a round trip", || a.peers_status()[&2].rtt.is_some()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let s = &a.peers_status()[&2];
    assert!(s.silent.unwrap() < Duration::from_millis(190), "{s:?}");
    assert!(s.rtt.unwrap() < Duration::from_secs(1));
    assert!(!a.peers_status().contains_key(&1), "not to itself");
}

/// A server of one connection that sends `bytes` after reading the greeting,
/// then holds the connection.
fn fake(bytes: Vec<u8>, close: bool) -> String {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut s, _) = l.accept().unwrap();
        let mut buf = [0; 4096];
        let _ = s.read(&mut buf);
        s.write_all(&bytes).unwrap();
        if close {
            s.shutdown(std::net::Shutdown::Write).unwrap();
        }
        // What is still unread when a socket closes makes the end a reset.
        while matches!(s.read(&mut buf), Ok(n) if n > 0) {}
    });
    at
}

fn answer(verdict: Result<u16, Refusal>) -> Vec<u8> {
    HelloAnswer {
        verdict,
        versions: (1, 1),
        who: identity(77),
        instance: 0,
    }
    .encode()
    .to_vec()
}

fn frame(kind: FrameKind, flags: u8, body: &[u8]) -> Vec<u8> {
    let f = Frame::from(Bytes::copy_from_slice(body));
    [&frame_header(kind, flags, &f)[..], body].concat()
}

async fn ask(at: &str) -> Result<Bytes, NetError> {
    let limit = Duration::from_millis(500);
    let from = Instant::now();
    let r = request(
        at,
        &identity(0),
        &Security::default(),
        Bytes::from_static(b"?"),
        limit,
    )
    .await;
    assert!(from.elapsed() < limit + Duration::from_secs(1));
    r
}

#[tokio::test]
async fn each_fault_of_the_other_end_has_its_own_words_in_time() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_at = closed.local_addr().unwrap().to_string();
    drop(closed);
    let mut flipped = answer(Ok(VERSION_MAX));
    flipped[20] ^= 1;
    let mut long = answer(Ok(VERSION_MAX));
    long[8..12].copy_from_slice(&5000u32.to_le_bytes());
    let good = |rest: &[u8]| [&answer(Ok(VERSION_MAX))[..], rest].concat();
    let mut bad_sum = frame(FrameKind::Answer, 1, b"abc");
    *bad_sum.last_mut().unwrap() ^= 1;

    let cases = [
        (closed_at, "refused the connection: no node listens there"),
        ("no-such-host.invalid:1".into(), "no-such-host.invalid"),
        ("127.0.0.1:port".into(), "is not a usable address"),
        (
            fake(b"\x4a\0\0\0\x0a5.5.5-10.11.6".into(), false),
            "like a MariaDB or MySQL server",
        ),
        (
            fake(b"HTTP/1.1 400 Bad Request\r\n\r\n".into(), false),
            "like HTTP",
        ),
        (fake(vec![0xEE; 40], false), "does not speak this protocol"),
        (fake(vec![], false), "did not greet within 500ms"),
        (
            fake(vec![], true),
            "ended the connection without a greeting",
        ),
        (
            fake(answer(Ok(VERSION_MAX))[..30].into(), true),
            "ended inside a message",
        ),
        (fake(flipped, false), "a greeting with a wrong checksum"),
        (fake(long, false), "announced a greeting of 5000 bytes"),
        (
            fake(answer(Ok(9)), false),
            "chose a version that was not offered",
        ),
        (
            fake(
                answer(Err(Refusal::no_common_version((3, 4), (1, 1)))),
                true,
            ),
            "speaks protocol versions 3 to 4, the connecting node 1 to 1",
        ),
        (
            fake(answer(Err(Refusal::evicted(0x1f))), true),
            "member 1f was removed",
        ),
        (fake(good(&[]), false), "did not answer within 500ms"),
        (fake(good(&[]), true), "it ended the connection"),
        (
            fake(good(&bad_sum), false),
            "a frame of 3 bytes with a wrong checksum",
        ),
        (
            fake(good(&[0xFF; 12]), false),
            "announced a frame of 4294967295 bytes",
        ),
        (
            fake(good(&frame(FrameKind::Data, 0, b"x")), false),
            "a frame of type 1 that does not belong here",
        ),
        (
            fake(good(&frame(FrameKind::NoAnswer, 0, b"")), false),
            "gave no answer",
        ),
    ];
    for (at, words) in cases {
        let text = ask(&at).await.unwrap_err().to_string();
        assert!(text.contains(words), "wanted \"{words}\", got \"{text}\"");
        assert!(text.contains(&at), "does not name {at}: \"{text}\"");
    }
    // An answer in several frames is put together.
    let two = [
        frame(FrameKind::Answer, 0, b"ab"),
        frame(FrameKind::Answer, 1, b"cd"),
    ];
    let at = fake(good(&two.concat()), false);
    assert_eq!(ask(&at).await, Ok(Bytes::from_static(b"abcd")));
}

#[tokio::test]
async fn a_node_refuses_the_wrong_ones_and_says_why() {
    let (mut c, events) = config(1);
    c.admit = Some(Arc::new(|h: &Hello, ip: IpAddr| {
        assert!(ip.is_loopback());
        match h.who.raft_id {
            0x2f => Err(Refusal::evicted(0x2f)),
            _ => Ok(()),
        }
    }));
    let n = TcpNetwork::bind(c).unwrap();
    let at = addr(&n);
    let refused = async |who: Identity| {
        let r = request(&at, &who, &Security::default(), Bytes::new(), SOON).await;
        match r {
            Err(NetError::Rejected { refusal, .. }) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    };
    let other = Identity {
        cluster: "other".to_owned(),
        ..identity(5)
    };
    let r = refused(other).await;
    assert_eq!(r.code, RefusalCode::WrongCluster);
    assert!(r.text.contains("\"test\"") && r.text.contains("\"other\""));
    assert_eq!(refused(identity(1)).await.code, RefusalCode::OwnId);
    let r = refused(identity(0x2f)).await;
    assert_eq!(r.code, RefusalCode::Evicted);
    assert_eq!(refused(identity(1)).await.code, RefusalCode::OwnId);
    // Each reason is told once a minute, not at every attempt.
    let seen = lock(&events).clone();
    assert_eq!(seen.len(), 3);
    let text = seen[0].to_string();
    assert!(
        text.contains("this node's cluster is named \"test\""),
        "{text}"
    );
}

#[tokio::test]
async fn versions_without_overlap_are_refused_with_both_ranges() {
    let n = node(1);
    let mut hello = Hello::new(Purpose::Request, identity(5));
    (hello.version_min, hello.version_max) = (8, 9);
    let got = raw(&n, hello.encode().to_vec()).await;
    let body = read_greeting(&mut BytesMut::from(&got[..]))
        .unwrap()
        .unwrap();
    let r = HelloAnswer::decode(body).unwrap().verdict.unwrap_err();
    assert_eq!(r.code, RefusalCode::NoCommonVersion);
    assert!(
        r.text
            .contains("versions 2 to 2, the connecting node 8 to 9"),
        "{}",
        r.text
    );
    // One node at a time, as for a restart, is not the way.
    assert!(
        r.text
            .ends_with("must be stopped cleanly for that (docs/wire.md)"),
        "{}",
        r.text
    );
}

/// Sends bytes to a node's port and returns what came back until it closed.
async fn raw(n: &TcpNetwork, bytes: Vec<u8>) -> Vec<u8> {
    let at = n.local_addr();
    let talk = move || {
        let mut s = TcpStream::connect(at).unwrap();
        s.set_read_timeout(Some(SOON)).unwrap();
        s.write_all(&bytes).unwrap();
        let mut got = Vec::new();
        match s.read_to_end(&mut got) {
            Ok(_) => {}
            // It closed before it had read everything.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(e) => panic!("the node did not close: {e}"),
        }
        got
    };
    tokio::task::spawn_blocking(talk).await.unwrap()
}

#[tokio::test]
async fn garbage_on_the_port_is_named_closed_and_harmless() {
    let lane = Hello::new(Purpose::Lane(Lane::Raft), identity(3)).encode();
    let nobody = Hello::new(Purpose::Lane(Lane::Raft), identity(0)).encode();
    let with = |rest: &[u8]| [&lane[..], rest].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), "like HTTP"),
        (vec![0; 100_000], "does not speak this protocol"),
        (nobody.to_vec(), "a member's link needs its identity"),
        (with(&[0xFF; 12]), "announced a frame"),
        (with(&frame(FrameKind::Pong, 0, b"")), "a frame of type 3"),
        (
            with(&frame(FrameKind::Ping, 0, b"short")),
            "a frame of type 2",
        ),
        (lane[..12].to_vec(), "did not greet within 300ms"),
        (vec![], "did not greet within 300ms"),
    ];
    for (bytes, words) in cases {
        let (c, events) = config(1);
        let n = TcpNetwork::bind(c).unwrap();
        raw(&n, bytes).await;
        until(words, || !lock(&events).is_empty()).await;
        let text = lock(&events)[0].to_string();
        assert!(text.contains(words), "wanted \"{words}\", got \"{text}\"");
        assert!(
            text.contains("127.0.0.1:"),
            "does not name the address: {text}"
        );
        // The port serves others as before.
        let b = node(2);
        b.set_peers(peers(&[(1, &n)]));
        until("up", || all_up(&b, 1)).await;
        assert!(lock(&n.shared.inbound.0).conns.len() <= 3);
    }
}

#[tokio::test]
async fn a_restarted_peer_is_found_again_and_shows_as_a_new_epoch() {
    let (a, b) = pair().await;
    let at = b.local_addr();
    drop(b);
    until("down", || a.peers_status()[&2].up == [false; 3]).await;
    assert!(matches!(
        a.send(2, Lane::Raft, Bytes::from_static(b"x").into()),
        Err(SendError::Disconnected { .. })
    ));
    until("a reason", || a.peers_status()[&2].last_error.is_some()).await;
    let (mut c, _) = config(2);
    c.listen = at.to_string();
    let b = TcpNetwork::bind(c).unwrap();
    until("up again", || all_up(&a, 2)).await;
    let again = TransportEvent::Connected {
        peer: 0x2f,
        lane: Lane::Raft,
        addr: at.to_string(),
        encrypted: false,
    };
    assert_eq!(
        again.to_string(),
        format!("connection established to 2f tcp://{at} (raft lane)")
    );
    a.send(2, Lane::Node, Bytes::from_static(b"hi").into())
        .unwrap();
    assert_eq!(next_frame(&b).await.2, Bytes::from_static(b"hi"));
    let mut last = BTreeMap::new();
    while let Some(i) = a.try_recv() {
        if let Inbound::Link {
            lane, epoch, up, ..
        } = i
        {
            last.insert(lane, (epoch, up));
        }
    }
    assert_eq!(last.values().collect::<Vec<_>>(), [&(2, true); 3]);
}

#[tokio::test]
async fn another_node_at_a_peers_address_is_not_taken_for_it() {
    let (a, b) = (node(1), node(2));
    a.set_peers([(0x99, addr(&b))].into());
    until("a reason", || a.peers_status()[&0x99].last_error.is_some()).await;
    let s = &a.peers_status()[&0x99];
    assert_eq!(s.up, [false; 3]);
    let text = s.last_error.as_ref().unwrap();
    assert!(text.contains("is now member 2, not 99"), "{text}");
    // Told who really is there, it connects.
    a.set_peers(peers(&[(2, &b)]));
    until("up", || all_up(&a, 2)).await;
}

#[tokio::test]
async fn queues_are_bounded_and_bulk_does_not_stand_before_votes() {
    let (a, b) = pair().await;
    let chunk = Bytes::from(vec![1; 1 << 20]);
    // Nobody takes anything at b: the way fills up, then the queue.
    let mut sent = 0;
    let from = Instant::now();
    loop {
        match a.send(2, Lane::Bulk, chunk.clone().into()) {
            Ok(()) => sent += 1,
            Err(SendError::Full { queued, limit, .. }) => {
                assert!(queued <= limit);
                let moved = sent;
                tokio::time::sleep(Duration::from_millis(100)).await;
                if a.send(2, Lane::Bulk, chunk.clone().into()).is_err() && moved == sent {
                    break;
                }
                sent += 1;
            }
            Err(e) => panic!("{e}"),
        }
        assert!(sent < 1000 && from.elapsed() < SOON * 4, "{sent}");
    }
    let limit = a.shared.config.queue_bytes[1];
    assert!(a.peers_status()[&2].queued_bytes <= limit + 64);
    a.send(2, Lane::Raft, Bytes::from_static(b"vote").into())
        .unwrap();
    // A busy machine takes its time to bring it there.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, lane, body) = next_frame(&b).await;
    assert_eq!((lane, body.len()), (Lane::Raft, b"vote".len()));
    assert_eq!(&body[..], b"vote");
    for _ in 0..sent {
        assert_eq!(next_frame(&b).await.1, Lane::Bulk);
    }
    until("empty", || a.peers_status()[&2].queued_bytes == 0).await;
}

#[tokio::test]
async fn small_frames_are_quick_while_bulk_flows() {
    let (a, b) = pair().await;
    let start = Instant::now();
    let flood = tokio::spawn({
        let a = a.clone();
        async move {
            let chunk = Bytes::from(vec![1; 1 << 20]);
            loop {
                let _ = a.send(2, Lane::Bulk, chunk.clone().into());
                tokio::task::yield_now().await;
            }
        }
    });
    let beat = tokio::spawn({
        let a = a.clone();
        async move {
            for _ in 0..200 {
                let now = start.elapsed().as_nanos() as u64;
                let f = Bytes::copy_from_slice(&now.to_le_bytes());
                a.send(2, Lane::Raft, f.into()).unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let mut late = Vec::new();
    let mut bulk = 0u64;
    while late.len() < 200 {
        let (_, lane, body) = next_frame(&b).await;
        match lane {
            Lane::Raft => {
                let sent = u64::from_le_bytes(body[..].try_into().unwrap());
                late.push(start.elapsed() - Duration::from_nanos(sent));
            }
            _ => bulk += body.len() as u64,
        }
    }
    flood.abort();
    beat.await.unwrap();
    late.sort();
    println!(
        "small frames beside {} MB/s of bulk: p50 {:?}, p99 {:?}, max {:?}",
        bulk / start.elapsed().as_millis() as u64 / 1000,
        late[100],
        late[197],
        late[199]
    );
    // The queue before them holds 128 MiB, so waiting behind it would show.
    assert!(bulk > 64 << 20, "bulk did not flow: {bulk}");
    assert!(late[100] < Duration::from_millis(50), "{late:?}");
    assert!(late[197] < Duration::from_millis(500), "{late:?}");
}

#[tokio::test]
async fn isolation_cuts_everything_and_ends() {
    let (a, b) = pair().await;
    a.set_isolated(true);
    until("cut", || {
        a.peers_status()[&2].up == [false; 3] && b.peers_status()[&1].up == [false; 3]
    })
    .await;
    let r = a.request(&addr(&b), Bytes::new(), SOON).await;
    assert_eq!(r, Err(NetError::Closed("cut off")));
    let r = b.request(&addr(&a), Bytes::new(), SOON).await;
    assert!(matches!(r, Err(NetError::Refused { .. })), "{r:?}");
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(a.peers_status()[&2].up, [false; 3]);
    assert_eq!(b.peers_status()[&1].up, [false; 3]);
    a.set_isolated(false);
    until("back", || all_up(&a, 2) && all_up(&b, 1)).await;
}

#[tokio::test]
async fn requests_are_answered_also_large_ones_or_not_at_all() {
    let (a, b) = pair().await;
    let serve = tokio::spawn({
        let b = b.clone();
        async move {
            while let Some(i) = b.recv().await {
                let Inbound::Request {
                    from_addr,
                    body,
                    reply,
                } = i
                else {
                    continue;
                };
                match &body[..] {
                    b"who" => reply.send(Bytes::from(from_addr)),
                    b"large" => reply.send(Bytes::from(vec![5; FRAME_MAX + 10_000_000])),
                    b"drop" => drop(reply),
                    b"never" => std::mem::forget(reply),
                    other => reply.send(Bytes::from(other.len().to_string())),
                }
            }
        }
    });
    let at = addr(&b);
    let ask = |q: Bytes| a.request(&at, q, SOON);
    let who = ask(Bytes::from_static(b"who")).await.unwrap();
    assert!(who.starts_with(b"127.0.0.1:"));
    let large = ask(Bytes::from_static(b"large")).await.unwrap();
    assert_eq!(large.len(), FRAME_MAX + 10_000_000);
    let r = ask(Bytes::from(vec![0; 5_000_000])).await.unwrap();
    assert_eq!(&r[..], b"5000000");
    let r = ask(Bytes::from_static(b"drop")).await;
    assert!(matches!(r, Err(NetError::NoAnswer { .. })), "{r:?}");
    let limit = Duration::from_millis(200);
    let r = a.request(&at, Bytes::from_static(b"never"), limit).await;
    assert!(
        matches!(r, Err(NetError::TimedOut { what: "answer", .. })),
        "{r:?}"
    );
    let r = ask(Bytes::from(vec![0; REQUEST_MAX + 1])).await;
    assert!(matches!(r, Err(NetError::TooLarge { .. })));

    // Without a runtime, by name, under an advertised address.
    let who = Identity {
        addr: "db9:4567".to_owned(),
        ..identity(0)
    };
    let by_name = format!("tcp://localhost:{}", b.local_addr().port());
    let blocking = {
        let (who, at) = (who.clone(), by_name.clone());
        move || {
            request_blocking(
                &at,
                &who,
                &Security::default(),
                Bytes::from_static(b"who"),
                SOON,
            )
        }
    };
    let r = tokio::task::spawn_blocking(blocking).await.unwrap();
    assert_eq!(r, Ok(Bytes::from_static(b"db9:4567")));

    // Too many at once are refused, and heard again when others are done.
    let held = b.shared.asking.acquire_many(64).await.unwrap();
    let r = ask(Bytes::from_static(b"who")).await;
    assert!(
        matches!(&r, Err(NetError::Rejected { refusal, .. }) if refusal.code == RefusalCode::Busy),
        "{r:?}"
    );
    drop(held);
    assert!(ask(Bytes::from_static(b"who")).await.is_ok());

    b.stop();
    assert!(tokio::time::timeout(SOON, serve).await.is_ok(), "recv ends");
    let r = a.request(&at, Bytes::from_static(b"who"), SOON).await;
    assert!(matches!(r, Err(NetError::Refused { .. })), "{r:?}");
}

/// Answers with `begin`, so many times `part` with a pause before each, and `end`.
fn drips(begin: &[u8], (part, times): (&[u8], usize), pause: Duration, end: &[u8]) -> String {
    let begin = [&answer(Ok(VERSION_MAX))[..], begin].concat();
    let (part, end) = (part.to_vec(), end.to_vec());
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut s, _) = l.accept().unwrap();
        let _ = s.read(&mut [0; 4096]);
        let _ = s.write_all(&begin);
        for _ in 0..times {
            std::thread::sleep(pause);
            if s.write_all(&part).is_err() {
                return;
            }
        }
        let _ = s.write_all(&end);
        while matches!(s.read(&mut [0; 4096]), Ok(n) if n > 0) {}
    });
    at
}

#[tokio::test]
async fn an_answer_that_flows_may_take_longer_than_one_may_take_to_begin() {
    let limit = Duration::from_secs(2);
    let ask = async |at: &str| {
        let (who, open) = (identity(0), Security::default());
        request(at, &who, &open, Bytes::new(), limit).await
    };
    let part = frame(FrameKind::Answer, 0, &[7; 1000]);
    let last = frame(FrameKind::Answer, 1, b"end");
    let pause = Duration::from_millis(150);
    let at = drips(&[], (&part, 20), pause, &last);
    let (slow, stops) = tokio::join!(ask(&at), async {
        let at = drips(&[], (&part, 3), pause, &[]);
        ask(&at).await.unwrap_err().to_string()
    });
    assert_eq!(slow.map(|b| b.len()), Ok(20_003));
    assert!(
        stops.contains("did not go on with its answer within 2s"),
        "{stops}"
    );
}

#[tokio::test]
async fn an_answer_without_an_end_is_given_up() {
    let limit = Duration::from_millis(50);
    // A byte at a time, and never a whole frame.
    let begin = &frame(FrameKind::Answer, 0, &[0; 100_000])[..FRAME_HEADER];
    let at = drips(begin, (&[0], 10_000), Duration::from_millis(5), &[]);
    let from = Instant::now();
    let (who, open) = (identity(0), Security::default());
    let r = request(&at, &who, &open, Bytes::new(), limit).await;
    assert!(matches!(r, Err(NetError::TimedOut { .. })), "{r:?}");
    assert!(from.elapsed() < SOON);
}

#[test]
fn asking_works_without_and_inside_a_runtime() {
    let at = fake(answer(Err(Refusal::evicted(1))), true);
    let r = request_blocking(&at, &identity(0), &Security::default(), Bytes::new(), SOON);
    assert!(matches!(r, Err(NetError::Rejected { .. })), "{r:?}");
    let at = fake(answer(Err(Refusal::evicted(1))), true);
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let r = rt.block_on(async {
        request_blocking(&at, &identity(0), &Security::default(), Bytes::new(), SOON)
    });
    assert!(matches!(r, Err(NetError::Rejected { .. })), "{r:?}");
    assert!(matches!(
        TcpNetwork::bind(config(1).0).map(drop),
        Err(BindError::NoRuntime)
    ));
}

#[tokio::test]
async fn a_node_without_an_id_takes_requests_only() {
    let (a, b) = (node(0), node(2));
    b.set_peers(peers(&[(7, &a)]));
    a.set_peers(peers(&[(2, &b)]));
    until("refusal", || {
        let s = &b.peers_status()[&7];
        s.last_error
            .as_deref()
            .is_some_and(|e| e.contains("is starting"))
    })
    .await;
    let at = a.local_addr();
    drop(a);
    let (mut c, _) = config(7);
    c.listen = at.to_string();
    let mut again = None;
    until("its port is free", || {
        again = TcpNetwork::bind(c.clone()).ok();
        again.is_some()
    })
    .await;
    let a = again.unwrap();
    a.set_peers(peers(&[(2, &b)]));
    until("up", || all_up(&a, 2) && all_up(&b, 7)).await;
    a.send(2, Lane::Raft, Bytes::from_static(b"x").into())
        .unwrap();
    assert_eq!(next_frame(&b).await.0, 7);
}

#[tokio::test]
async fn the_newest_connection_of_a_lane_is_the_lane() {
    let n = node(1);
    let hello = Hello::new(Purpose::Lane(Lane::Raft), identity(3)).encode();
    let at = n.local_addr();
    let open = |text: &'static [u8]| {
        let hello = hello.clone();
        tokio::task::spawn_blocking(move || {
            let mut s = TcpStream::connect(at).unwrap();
            s.set_read_timeout(Some(SOON)).unwrap();
            s.write_all(&hello).unwrap();
            let mut buf = BytesMut::new();
            let mut some = [0; 1000];
            while read_greeting(&mut buf).unwrap().is_none() {
                let n = s.read(&mut some).unwrap();
                buf.extend_from_slice(&some[..n]);
            }
            s.write_all(&frame(FrameKind::Data, 0, text)).unwrap();
            s
        })
    };
    let mut old = open(b"old").await.unwrap();
    assert_eq!(&next_frame(&n).await.2[..], b"old");
    let mut new = open(b"new").await.unwrap();
    assert_eq!(&next_frame(&n).await.2[..], b"new");
    let (end, pong) = tokio::task::spawn_blocking(move || {
        let end = old.read(&mut [0; 10]);
        new.write_all(&frame(FrameKind::Ping, 0, b"12345678"))
            .unwrap();
        let mut got = [0; 20];
        new.read_exact(&mut got).unwrap();
        (end, got)
    })
    .await
    .unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "the old one is closed");
    let pong = read_frame(&mut BytesMut::from(&pong[..])).unwrap().unwrap();
    assert_eq!(
        (pong.kind, &pong.body[..]),
        (FrameKind::Pong, &b"12345678"[..])
    );
}

/// A member that was restarted with a new log: for some seconds others still know the
/// one that was at its address before, and try it again and again.
#[tokio::test]
async fn a_link_meant_for_one_who_is_gone_does_not_end_the_good_one() {
    let (a, b) = pair().await;
    a.set_peers([(2, addr(&b)), (0x99, addr(&b))].into());
    let found_another = || {
        let status = a.peers_status();
        let why = status.get(&0x99).and_then(|s| s.last_error.as_ref());
        why.is_some_and(|why| why.contains("is now member 2"))
    };
    until("the wrong one was found there", found_another).await;
    while a.try_recv().is_some() {}
    // Many attempts long: they come every 100 ms at least.
    for i in 0..60u8 {
        for lane in Lane::ALL {
            let frame = Bytes::copy_from_slice(&[i, lane.index() as u8]);
            a.send(2, lane, frame.into()).expect("the good link is up");
        }
        for _ in Lane::ALL {
            let (_, lane, body) = next_frame(&b).await;
            assert_eq!(body[..], [i, lane.index() as u8]);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(all_up(&a, 2));
    while let Some(event) = a.try_recv() {
        assert!(
            !matches!(event, Inbound::Link { up: false, .. }),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn a_peer_that_sends_nonsense_back_is_named() {
    let at = fake(
        [answer(Ok(VERSION_MAX)), frame(FrameKind::Data, 0, b"x")].concat(),
        false,
    );
    let (c, events) = config(1);
    let a = TcpNetwork::bind(c).unwrap();
    a.set_peers([(77, at.clone())].into());
    until("lost", || {
        lock(&events).iter().any(|e| {
            matches!(e, TransportEvent::Lost { why: NetError::Misbehaved(m), .. }
                if m.addr == at && m.what == Misbehaviour::FrameUnexpected { kind: 1 })
        })
    })
    .await;
}

#[tokio::test]
async fn version_6_addresses_work_where_there_are_some() {
    let (mut c, _) = config(1);
    c.listen = "tcp://[::1]:0".to_owned();
    let n = match TcpNetwork::bind(c) {
        Ok(n) => n,
        Err(e) => {
            assert!(!std::path::Path::new("/proc/net/if_inet6").exists(), "{e}");
            return;
        }
    };
    let b = node(2);
    assert!(addr(&n).starts_with("[::1]:"));
    b.set_peers(peers(&[(1, &n)]));
    until("up", || all_up(&b, 1)).await;
}

#[test]
fn a_newer_lane_ends_all_older_ones_and_no_older_one_takes_it_back() {
    let table = InboundTable::default();
    let enter = || table.enter(SocketAddr::from(([10, 0, 0, 1], 9)));
    let enter = || enter().expect("room").0;
    let ids: Vec<u64> = (0..3).map(|_| enter()).collect();
    for id in &ids {
        table.wants(*id, 7, Lane::Bulk, 0);
    }
    let other = enter();
    table.wants(other, 7, Lane::Raft, 0);
    let is = |current: &AtomicU64, id| current.load(Ordering::Acquire) == id;
    let first = table.take_over(ids[0], 7, Lane::Bulk);
    assert!(is(&first, ids[0]));
    let newest = table.take_over(ids[2], 7, Lane::Bulk);
    assert!(is(&newest, ids[2]) && !is(&first, ids[0]));
    // It greeted before the newest one did; its bytes come late.
    let late = table.take_over(ids[1], 7, Lane::Bulk);
    assert!(!is(&late, ids[1]) && is(&newest, ids[2]));
    assert!(is(&table.take_over(other, 7, Lane::Raft), other));
}
