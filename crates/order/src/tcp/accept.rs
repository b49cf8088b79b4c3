//! The other side: connections that others made to this node.

use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::aside::{aside, no_thread};
use super::conn::{FrameReader, ReadError, WriteList, read_message, tune, write_message};
use super::listen::BACKLOG;
use super::secure::{Stream, Turned, receive};
use super::socket::Socket;
use super::{REQUEST_MAX, Shared, TransportEvent};
use crate::network::{Frame, Lane};
use crate::types::Reply;
use crate::wire::{
    FrameKind, Hello, HelloAnswer, Identity, Misbehaviour, Purpose, Refusal, RefusalCode,
    VERSION_MAX, VERSION_MIN,
};

/// Pause before something is looked at or tried again of which nobody tells when it is over.
const AGAIN: Duration = Duration::from_millis(100);

/// Takes connections until the task is aborted. While this node is cut off nobody listens: to who
/// asks whether it is there it is as gone as without a network.
pub(super) async fn accept_all(shared: Arc<Shared>, listener: std::net::TcpListener) {
    let mut mode = shared.mode.subscribe();
    let socket = SockRef::from(&listener);
    loop {
        // A new one each time: the old one has seen its end.
        match listener.try_clone().and_then(TcpListener::from_std) {
            Ok(taking) => tokio::select! {
                () = take_all(&shared, &taking) => {}
                _ = mode.wait_for(|m| m.closed()) => {}
            },
            Err(e) => cannot_accept(&shared, &e).await,
        }
        // The port stays its own.
        let _ = socket.shutdown(Shutdown::Read);
        while shared.config.security.cut_off() {
            tokio::time::sleep(AGAIN).await;
        }
        // The other end of it is in `shared`.
        let _ = mode.wait_for(|m| !m.closed()).await;
        while let Err(e) = socket.listen(BACKLOG) {
            cannot_accept(&shared, &e).await;
        }
    }
}

/// Says so, and gives it time: not at full speed.
async fn cannot_accept(shared: &Shared, e: &std::io::Error) {
    say_cannot_accept(shared, e.to_string());
    tokio::time::sleep(AGAIN).await;
}

fn say_cannot_accept(shared: &Shared, why: String) {
    let here = IpAddr::from([0; 4]);
    shared.stranger_event(here, TransportEvent::CannotAccept { why });
}

/// The place of a connection. It is left however its task ends.
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.inbound.leave(self.id);
    }
}

/// Takes connections until one comes while this node is cut off.
async fn take_all(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(x) => x,
            Err(e) => {
                // Out of descriptors, or a connection that ended in the backlog.
                cannot_accept(shared, &e).await;
                continue;
            }
        };
        if shared.mode.borrow().closed() || shared.config.security.cut_off() {
            return;
        }
        let too_many = || {
            let addr = from.to_string();
            shared.stranger_event(from.ip(), TransportEvent::TooMany { addr });
        };
        let Some(stream) = Socket::new(stream, shared.config.security.brake()) else {
            too_many();
            continue;
        };
        let Some((id, gone)) = shared.inbound.enter(from) else {
            too_many();
            continue;
        };
        if let Some(gone) = gone {
            let addr = gone.to_string();
            shared.stranger_event(gone.ip(), TransportEvent::GaveWay { addr });
        }
        let place = Place {
            shared: shared.clone(),
            id,
        };
        let task = tokio::spawn(async move {
            serve(&place.shared, id, stream, from).await;
        });
        shared.inbound.set_task(id, task.abort_handle());
        // Isolation may have come between the look above and here.
        if shared.mode.borrow().closed() {
            shared.inbound.abort_all();
        }
    }
}

async fn serve(shared: &Arc<Shared>, id: u64, stream: Socket, from: SocketAddr) {
    let addr = from.to_string();
    if tune(stream.tcp(), shared.config.dead_after).is_err() {
        // It is gone already.
        return;
    }
    let mut buf = BytesMut::new();
    let limit = shared.config.greet_timeout;
    let who = shared.who();
    let received = receive(&shared.config.security, stream, &who.cluster, &mut buf);
    let received = match timeout(limit, received).await {
        Ok(received) => received,
        Err(_) => {
            shared.stranger_event(from.ip(), TransportEvent::Silent { addr, limit });
            return;
        }
    };
    let received = received.and_then(|(stream, body)| {
        let hello = Hello::decode(body).and_then(|h| match h.purpose {
            Purpose::Lane(_) if h.who.raft_id == 0 => Err(Misbehaviour::GreetingMalformed(
                "a member's link needs its identity",
            )),
            _ => Ok(h),
        });
        Ok((stream, hello.map_err(Turned::Misbehaved)?))
    });
    let (mut stream, hello) = match received {
        Ok(x) => x,
        Err(turned) => {
            if let Some(event) = turned_away(addr, turned) {
                shared.stranger_event(from.ip(), event);
            }
            return;
        }
    };
    let asking = match hello.purpose {
        Purpose::Request => Some(shared.asking.try_acquire()),
        Purpose::Lane(_) => None,
    };
    let (verdict, admitted) = match &asking {
        Some(Err(_)) => {
            let why = "it is answering too many questions just now; try again";
            (Err(Refusal::new(RefusalCode::Busy, why)), false)
        }
        _ => match admit(shared, &hello, from.ip()).await {
            Ok(()) => (judge(shared, who, &hello), true),
            // That this is another cluster counts more, and its name is not told.
            Err(_) if hello.who.cluster != who.cluster => (Err(Refusal::other_cluster()), false),
            Err(refusal) => (Err(refusal), false),
        },
    };
    let refused = verdict.clone().err();
    // Who is not on the list, or was not looked for there, learns nothing about this node but whether the
    // cluster has the name that he said.
    let (who, instance) = match admitted {
        true => (who.clone(), shared.instance),
        false => (Identity::default(), 0),
    };
    let answer = HelloAnswer {
        versions: (VERSION_MIN, VERSION_MAX),
        who,
        verdict,
        instance,
    };
    let wrote = timeout(limit, async {
        stream.write_all(&answer.encode()).await?;
        stream.flush().await
    })
    .await;
    if let Some(refusal) = refused {
        // A former member at this node's own address is looked for there until it is forgotten.
        if !hello.is_of(shared.instance) {
            shared.stranger_event(from.ip(), TransportEvent::Refused { addr, refusal });
        }
        // Closing with unread bytes would throw the answer away.
        let _ = stream.shutdown().await;
        let _ = timeout(limit, async {
            let mut sink = [0; 1024];
            while matches!(stream.read(&mut sink).await, Ok(n) if n > 0) {}
        })
        .await;
        return;
    }
    if !matches!(wrote, Ok(Ok(()))) {
        return;
    }
    shared.inbound.greeted(id);
    let ended = match hello.purpose {
        Purpose::Lane(lane) => {
            shared.came(hello.who.raft_id, from.ip());
            serve_lane(shared, id, stream, buf, &hello, lane).await
        }
        Purpose::Request => serve_request(shared, stream, buf, &hello, &addr).await,
    };
    if let ReadError::Misbehaved(what) = ended {
        shared.stranger_event(from.ip(), TransportEvent::Misbehaved(what.by(addr)));
    }
}

/// What the log says about somebody who was sent away; `None`: nothing.
fn turned_away(addr: String, turned: Turned) -> Option<TransportEvent> {
    let not_proven = |addr, why| TransportEvent::NotProven { addr, why };
    Some(match turned {
        Turned::Gone => return None,
        Turned::Plain => TransportEvent::NotEncrypted { addr },
        Turned::Tls(why) => TransportEvent::TlsFailed { addr, why },
        Turned::SecretMissing => not_proven(
            addr,
            "it offers no proof of the cluster's secret; set dromon.secret_file on all nodes",
        ),
        Turned::SecretWrong => not_proven(
            addr,
            "it does not know this cluster's secret; if it is a node of yours, give it the same \
             file in dromon.secret_file and the same wsrep_cluster_name",
        ),
        Turned::SecretUnknown => not_proven(
            addr,
            "it asks for a secret that this node has not; set dromon.secret_file on all nodes",
        ),
        Turned::Misbehaved(what) => TransportEvent::Misbehaved(what.by(addr)),
    })
}

/// Asks the server's allowlist; before anything else, as any other refusal says who this is.
async fn admit(shared: &Shared, hello: &Hello, ip: IpAddr) -> Result<(), Refusal> {
    let Some(admit) = shared.config.admit.clone() else {
        return Ok(());
    };
    // It may read tables: not on the thread that keeps the cluster alive.
    let hello = hello.clone();
    let ip = ip.to_canonical();
    let admitting = shared.admitting.clone();
    let look = async {
        let turn = admitting.acquire_owned().await;
        let look = aside("dromon-admit", move || {
            let _turn = turn;
            admit(&hello, ip)
        });
        match look {
            Ok(look) => look.await.ok(),
            Err(e) => {
                say_cannot_accept(shared, no_thread(&e));
                None
            }
        }
    };
    // The answer has to come while the other end still waits for it.
    let limit = shared.config.greet_timeout * 2 / 3;
    let looked = timeout(limit, look).await.ok().flatten();
    looked.unwrap_or_else(|| {
        Err(Refusal::new(
            RefusalCode::Busy,
            "it could not check who connects; try again",
        ))
    })
}

/// Lets in or says why not.
fn judge(shared: &Shared, own: &Identity, hello: &Hello) -> Result<u16, Refusal> {
    let version = hello
        .common_version(VERSION_MIN, VERSION_MAX)
        .ok_or_else(|| {
            Refusal::no_common_version(
                (VERSION_MIN, VERSION_MAX),
                (hello.version_min, hello.version_max),
            )
        })?;
    if hello.who.cluster != own.cluster {
        return Err(Refusal::wrong_cluster(&own.cluster, &hello.who.cluster));
    }
    if own.raft_id != 0 && hello.who.raft_id == own.raft_id {
        return Err(Refusal::new(
            RefusalCode::OwnId,
            "it is the connecting node itself, or a copy of it with the same identity",
        ));
    }
    if own.raft_id == 0 && hello.purpose != Purpose::Request {
        return Err(Refusal::new(
            RefusalCode::Closed,
            "it is starting and takes no part in the cluster yet",
        ));
    }
    if let Purpose::Lane(_) = hello.purpose
        && let Some(at) = shared.another(hello.who.raft_id, hello.instance)
    {
        return Err(Refusal::two_of_one(hello.who.raft_id, &at));
    }
    Ok(version)
}

async fn serve_lane(
    shared: &Shared,
    id: u64,
    stream: Stream,
    rest: BytesMut,
    hello: &Hello,
    lane: Lane,
) -> ReadError {
    let from = hello.who.raft_id;
    let heard_here = shared.inbound.wants(id, from, lane, hello.instance);
    let heard = shared.heard(from);
    heard.now();
    let (read, mut write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, rest);
    let mut lane_is = None;
    loop {
        let f = match reader.next().await {
            Ok(f) => f,
            Err(e) => return e,
        };
        heard.now();
        heard_here.now();
        // The newest connection of a lane is the lane: what an older one still
        // holds must not come behind what this one brings. Newest by its first
        // frame: one that was meant for a member which was at this address before
        // ends after the greeting, and must not end the good one.
        let current = lane_is.get_or_insert_with(|| shared.inbound.take_over(id, from, lane));
        if current.load(Ordering::Acquire) != id {
            return ReadError::Closed { inside: false };
        }
        match f.kind {
            FrameKind::Data => {
                if !shared.inbox.frame(from, lane, f.body).await {
                    return ReadError::Closed { inside: false };
                }
            }
            FrameKind::Ping if f.body.len() == 8 => {
                let mut list = WriteList::default();
                list.add(FrameKind::Pong, 0, &Frame::from(f.body));
                if let Err(e) = list.write_to(&mut write).await {
                    return ReadError::Io(e);
                }
            }
            kind => {
                return ReadError::Misbehaved(Misbehaviour::FrameUnexpected { kind: kind.code() });
            }
        }
    }
}

async fn serve_request(
    shared: &Shared,
    stream: Stream,
    rest: BytesMut,
    hello: &Hello,
    addr: &str,
) -> ReadError {
    let (read, mut write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, rest);
    let asked = timeout(
        shared.config.request_timeout,
        read_message(&mut reader, FrameKind::Request, REQUEST_MAX),
    );
    let body = match asked.await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) | Err(_) => return ReadError::Closed { inside: false },
        Ok(Err(e)) => return e,
    };
    let (tx, rx) = oneshot::channel::<Option<Bytes>>();
    let reply = Reply::new(move |answer| {
        // Nobody may be waiting any more.
        let _ = tx.send(answer);
    });
    let from = if hello.who.addr.is_empty() {
        addr.to_owned()
    } else {
        hello.who.addr.clone()
    };
    // Refused for lack of room, the reply is dropped, which says "no answer".
    shared.inbox.request(from, body, reply);
    let answer = tokio::select! {
        answer = rx => answer.ok().flatten(),
        // The asker speaks no more; what comes is its end.
        next = reader.next() => return match next {
            Ok(f) => ReadError::Misbehaved(Misbehaviour::FrameUnexpected { kind: f.kind.code() }),
            Err(e) => e,
        },
    };
    let wrote = match answer {
        Some(body) => write_message(&mut write, FrameKind::Answer, body).await,
        None => {
            let mut list = WriteList::default();
            list.add(FrameKind::NoAnswer, 0, &Frame::new());
            list.write_to(&mut write).await
        }
    };
    match wrote {
        Ok(()) => ReadError::Closed { inside: false },
        Err(e) => ReadError::Io(e),
    }
}
