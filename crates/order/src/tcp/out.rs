//! The own side of a link: one task per (peer, lane) that connects, greets,
//! writes what is queued, and begins again when it breaks. One that falls silent is replaced
//! as soon as a new one is answered (`life.rs`).

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::conn::{Deadline, FrameReader, ReadError, WriteList, greet};
use super::life::Signs;
use super::secure::{Stream, dial, prove};
use super::{DEFAULT_PORT, Shared, TransportEvent};
use crate::network::{Frame, Lane, NetError, SendError};
use crate::types::RaftId;
use crate::wire::{FrameKind, Hello, Misbehaviour, Purpose, RefusalCode};

/// Bytes handed to one round of writing; more frames wait for the next.
const ROUND_BYTES: usize = 1 << 20;

#[derive(Default)]
struct State {
    frames: VecDeque<Frame>,
    /// Bytes queued or being written.
    bytes: usize,
    up: bool,
    epoch: u64,
    last_error: Option<String>,
    /// The first and the last of the newest attempts that were refused because another run of this node is heard, if the
    /// last one was.
    displaced: Option<(Instant, Instant)>,
    /// Of the connection that stands.
    signs: Signs,
    /// Which run of the peer answered.
    instance: u64,
}

/// The queue of one (peer, lane).
pub(super) struct OutLink {
    peer: RaftId,
    lane: Lane,
    addr: String,
    state: Mutex<State>,
    wake: Notify,
    kick: Notify,
    /// The signs are to be looked at again.
    look: Notify,
}

impl OutLink {
    pub(super) fn new(peer: RaftId, lane: Lane, addr: String) -> Self {
        OutLink {
            peer,
            lane,
            addr,
            state: Mutex::default(),
            wake: Notify::new(),
            kick: Notify::new(),
            look: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, frame: Frame, limit: usize) -> Result<(), SendError> {
        let mut s = self.lock();
        let (to, lane) = (self.peer, self.lane);
        if !s.up {
            return Err(SendError::Disconnected { to, lane });
        }
        if s.bytes > 0 && s.bytes + frame.len() > limit {
            return Err(SendError::Full {
                to,
                lane,
                queued: s.bytes,
                limit,
            });
        }
        // An empty frame is not free.
        s.bytes += cost(&frame);
        s.frames.push_back(frame);
        drop(s);
        self.wake.notify_one();
        Ok(())
    }

    /// Tries at once if it waits to try again.
    pub(super) fn kick(&self) {
        self.kick.notify_one();
    }

    /// Up, bytes queued, last error.
    pub(super) fn status(&self) -> (bool, usize, Option<String>) {
        let s = self.lock();
        (s.up, s.bytes, s.last_error.clone())
    }

    /// See [`LinkStatus::displaced`](crate::network::LinkStatus::displaced).
    pub(super) fn displaced(&self) -> Option<Duration> {
        // Up to the last word, as this process may have stood since.
        self.lock().displaced.map(|(first, last)| last - first)
    }

    fn failed(&self, why: &NetError) {
        let is_taken =
            matches!(why, NetError::Rejected { refusal, .. } if refusal.code == RefusalCode::OwnId);
        let mut s = self.lock();
        s.displaced = match is_taken {
            true => {
                let now = Instant::now();
                Some((s.displaced.map_or(now, |(first, _)| first), now))
            }
            false => None,
        };
    }

    /// Which run of the peer is at the other end, if it is known and no answer has been
    /// missing for `limit`.
    pub(super) fn answers(&self, limit: Duration) -> Option<u64> {
        let s = self.lock();
        let lives = s.up && s.signs.silent(Instant::now()) < limit;
        (lives && s.instance != 0).then_some(s.instance)
    }

    fn open(&self, instance: u64) -> u64 {
        let mut s = self.lock();
        s.up = true;
        s.displaced = None;
        s.epoch += 1;
        s.signs = Signs::default();
        s.instance = instance;
        s.epoch
    }

    /// What is queued is dropped: the layer above sends again what matters.
    pub(super) fn close(&self, why: String) -> u64 {
        let mut s = self.lock();
        let dropped = std::mem::take(&mut s.frames);
        s.bytes = 0;
        s.up = false;
        s.last_error = Some(why);
        let epoch = s.epoch;
        drop(s);
        drop(dropped);
        epoch
    }

    /// What is written next, behind a ping if there is one.
    fn take_round(&self, ping: Option<u64>) -> (Vec<Frame>, usize) {
        let mut s = self.lock();
        if let Some(ping) = ping {
            s.signs.pinged(ping, Instant::now());
        }
        let mut round = Vec::new();
        let mut bytes = 0;
        while bytes < ROUND_BYTES
            && let Some(f) = s.frames.pop_front()
        {
            bytes += cost(&f);
            round.push(f);
        }
        s.signs.given(bytes);
        (round, bytes)
    }

    fn ponged(&self, ping: u64) {
        self.lock().signs.ponged(ping, Instant::now());
        self.look.notify_one();
    }

    fn stuck(&self) {
        self.lock().signs.stuck(Instant::now());
        self.look.notify_one();
    }

    /// See [`Signs::doubt`].
    pub(super) fn doubt(&self) {
        self.lock().signs.doubt();
        self.look.notify_one();
    }

    /// Waits until the connection counts as silent.
    async fn falls_silent(&self, limit: Duration, ping_every: Duration) {
        loop {
            let now = Instant::now();
            let at = self.lock().signs.silent_at(limit);
            if at.is_some_and(|at| at <= now) {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(at.unwrap_or(now + ping_every)) => {}
                () = self.look.notified() => {}
            }
        }
    }

    /// Waits until it does not any more.
    async fn speaks_again(&self, limit: Duration) {
        loop {
            let at = self.lock().signs.silent_at(limit);
            if at.is_none_or(|at| at > Instant::now()) {
                return;
            }
            self.look.notified().await;
        }
    }

    fn written(&self, bytes: usize) {
        let mut s = self.lock();
        s.bytes = s.bytes.saturating_sub(bytes);
    }
}

fn cost(f: &Frame) -> usize {
    f.len() + 64
}

/// Growing pauses with jitter: half to one and a half times the nominal one.
struct Backoff {
    random: u64,
    nominal: Duration,
    least: Duration,
    most: Duration,
}

impl Backoff {
    fn next(&mut self) -> Duration {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let factor = 0.5 + (z >> 11) as f64 / (1u64 << 53) as f64;
        let pause = self.nominal.mul_f64(factor);
        self.nominal = (self.nominal * 2).min(self.most);
        pause
    }

    fn reset(&mut self) {
        self.nominal = self.least;
    }
}

/// Keeps one link up until the task is aborted or the transport stops, also after a panic: nobody else would
/// connect to that peer again.
pub(super) async fn keep_on(shared: Arc<Shared>, link: Arc<OutLink>, seed: u64) {
    loop {
        let once = keep_up(shared.clone(), link.clone(), seed);
        if AssertUnwindSafe(once).catch_unwind().await.is_ok() {
            return;
        }
        // It may have stood: who uses it hears of its end.
        let was_up = link.status().0;
        let epoch = link.close("the task of this link panicked; it begins again".to_owned());
        if was_up {
            shared.inbox.link(link.peer, link.lane, epoch, false);
        }
        tokio::time::sleep(shared.config.retry_max).await;
    }
}

async fn keep_up(shared: Arc<Shared>, link: Arc<OutLink>, seed: u64) {
    let (peer, lane) = (link.peer, link.lane);
    let mut mode = shared.mode.subscribe();
    let mut backoff = Backoff {
        random: seed,
        nominal: shared.config.retry_min,
        least: shared.config.retry_min,
        most: shared.config.retry_max,
    };
    // The next connection, if it was made before the last one ended.
    let mut ready = None;
    loop {
        if mode.has_changed().unwrap_or(true) {
            // It was made before that.
            ready = None;
        }
        while mode.borrow_and_update().closed() {
            if mode.changed().await.is_err() {
                return;
            }
        }
        let made = match ready.take() {
            Some(made) => Ok(made),
            None => tokio::select! {
                made = establish(&shared, &link) => made,
                _ = mode.changed() => continue,
            },
        };
        match made {
            Ok(Made {
                stream,
                rest,
                instance,
            }) => {
                let since = Instant::now();
                let epoch = link.open(instance);
                shared.inbox.link(peer, lane, epoch, true);
                shared.event(TransportEvent::Connected {
                    peer,
                    lane,
                    addr: link.addr.clone(),
                    encrypted: stream.encrypted(),
                });
                let why = tokio::select! {
                    e = carry(&shared, &link, stream, rest) => e.into_net(&link.addr),
                    (made, silent) = replacement(&shared, &link) => {
                        ready = Some(made);
                        NetError::Silent { addr: link.addr.clone(), silent }
                    }
                    _ = mode.changed() => NetError::Closed("cut off or stopped"),
                };
                link.close(why.to_string());
                shared.inbox.link(peer, lane, epoch, false);
                shared.event(TransportEvent::Lost {
                    peer,
                    lane,
                    addr: link.addr.clone(),
                    why,
                });
                // A link that breaks as soon as it is made must not be made
                // in a tight circle.
                if since.elapsed() > shared.config.retry_max {
                    backoff.reset();
                }
                if ready.is_some() {
                    shared.doubt(peer);
                    continue;
                }
            }
            Err(why) => {
                link.failed(&why);
                let text = why.to_string();
                let itself = matches!(why, NetError::Itself { .. });
                let news = !itself && link.status().2.as_deref() != Some(&text);
                link.close(text);
                if news {
                    shared.event(TransportEvent::CannotConnect {
                        peer,
                        lane,
                        addr: link.addr.clone(),
                        why,
                    });
                }
            }
        }
        let pause = backoff.next();
        // A kick shortens the pause, but leaves the least one.
        let least = shared.config.retry_min / 2;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = async {
                tokio::time::sleep(least).await;
                link.kick.notified().await;
            } => {}
            _ = mode.changed() => {}
        }
    }
}

/// A connection in place of the one that stands, once that is silent and a new one is
/// answered, and how long it was silent. A node that stands still, or a way that is full, answers
/// no new one either, and its old one stays.
async fn replacement(shared: &Shared, link: &OutLink) -> (Made, Duration) {
    let c = &shared.config;
    loop {
        link.falls_silent(c.silent_after, c.ping_every).await;
        let made = tokio::select! {
            // Looked at first: after a pause of this process the answer may be there already.
            biased;
            () = link.speaks_again(c.silent_after) => continue,
            made = establish(shared, link) => made,
        };
        let Ok(made) = made else {
            tokio::time::sleep(c.retry_max).await;
            continue;
        };
        // A node that stood still and goes on answers both, in any order.
        tokio::select! {
            () = link.speaks_again(c.silent_after) => {}
            () = tokio::time::sleep(c.ping_every / 2) => {
                let silent = link.lock().signs.silent(Instant::now());
                return (made, silent);
            }
        }
    }
}

/// A connection that was greeted.
struct Made {
    stream: Stream,
    /// What was read behind the greeting.
    rest: BytesMut,
    instance: u64,
}

async fn establish(shared: &Shared, link: &OutLink) -> Result<Made, NetError> {
    let c = &shared.config;
    let connecting = Deadline::after(c.connect_timeout);
    let greeting = || Deadline::after(c.greet_timeout);
    let dialling = dial(
        &c.security,
        &link.addr,
        DEFAULT_PORT,
        c.dead_after,
        connecting,
        greeting,
    );
    let mut stream = dialling.await?;
    let mut hello = Hello::new(Purpose::Lane(link.lane), shared.who().clone());
    hello.instance = shared.instance;
    let deadline = greeting();
    let proving = prove(&c.security, &mut stream, &link.addr, &hello.who.cluster);
    deadline
        .bound(&link.addr, "prove the secret", proving)
        .await??;
    let asked = Instant::now();
    let (answer, rest) = greet(&mut stream, &link.addr, &hello, deadline).await?;
    if answer.who.raft_id != link.peer {
        return Err(NetError::WrongPeer {
            addr: link.addr.clone(),
            expected: link.peer,
            found: answer.who.raft_id,
        });
    }
    if let Ok(at) = stream.tcp().peer_addr() {
        shared.inbound.lives(link.peer, Some(at.ip()));
    }
    let heard = shared.heard(link.peer);
    heard.now();
    heard.rtt(asked.elapsed());
    Ok(Made {
        stream,
        rest,
        instance: answer.instance,
    })
}

/// Writes what is queued and reads what comes back, until something breaks.
async fn carry(shared: &Shared, link: &OutLink, stream: Stream, rest: BytesMut) -> ReadError {
    let heard = shared.heard(link.peer);
    let started = Instant::now();
    let (read, mut write) = tokio::io::split(stream);
    let reading = async {
        let mut reader = FrameReader::new(read, rest);
        loop {
            match reader.next().await {
                Ok(f) if f.kind == FrameKind::Pong => {
                    let Ok(at) = <[u8; 8]>::try_from(&f.body[..]) else {
                        return ReadError::Misbehaved(Misbehaviour::FrameUnexpected {
                            kind: f.kind.code(),
                        });
                    };
                    let ping = u64::from_le_bytes(at);
                    link.ponged(ping);
                    heard.now();
                    // On the others it has waited behind what they carry.
                    if link.lane == Lane::Raft {
                        let sent = Duration::from_nanos(ping);
                        heard.rtt(started.elapsed().saturating_sub(sent));
                    }
                }
                Ok(f) => {
                    return ReadError::Misbehaved(Misbehaviour::FrameUnexpected {
                        kind: f.kind.code(),
                    });
                }
                Err(e) => return e,
            }
        }
    };
    let writing = async {
        let mut list = WriteList::default();
        let mut next_ping = Instant::now();
        loop {
            let now = Instant::now();
            let ping = (now >= next_ping).then(|| started.elapsed().as_nanos() as u64);
            let (round, bytes) = link.take_round(ping);
            if let Some(ping) = ping {
                let body = Bytes::copy_from_slice(&ping.to_le_bytes());
                list.add(FrameKind::Ping, 0, &Frame::from(body));
                next_ping = now + shared.config.ping_every;
            } else if round.is_empty() {
                tokio::select! {
                    () = link.wake.notified() => {}
                    () = tokio::time::sleep_until(next_ping) => {}
                }
                continue;
            }
            for f in &round {
                list.add(FrameKind::Data, 0, f);
            }
            let mut wrote = pin!(list.write_to(&mut write));
            let wrote = loop {
                tokio::select! {
                    wrote = &mut wrote => break wrote,
                    () = tokio::time::sleep(shared.config.ping_every) => link.stuck(),
                }
            };
            if let Err(e) = wrote {
                return ReadError::Io(e);
            }
            link.written(bytes);
        }
    };
    tokio::select! {
        e = reading => e,
        e = writing => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_vary_and_repeat_with_the_seed() {
        let ms = Duration::from_millis;
        let pauses = |seed| {
            let mut b = Backoff {
                random: seed,
                nominal: ms(50),
                least: ms(50),
                most: ms(1000),
            };
            let mut all: Vec<_> = (0..8).map(|_| b.next()).collect();
            b.reset();
            all.push(b.next());
            all
        };
        let a = pauses(1);
        assert_eq!(a, pauses(1));
        assert_ne!(a, pauses(2));
        for (i, nominal) in [50, 100, 200, 400, 800, 1000, 1000, 1000, 50]
            .into_iter()
            .enumerate()
        {
            assert!(
                a[i] >= ms(nominal) / 2 && a[i] <= ms(nominal) * 3 / 2,
                "{a:?}"
            );
        }
    }

    #[test]
    fn the_queue_is_bounded_and_closed_links_take_nothing() {
        let link = OutLink::new(7, Lane::Node, "x:1".to_owned());
        let frame = |n| Frame::from(Bytes::from(vec![0; n]));
        assert!(matches!(
            link.send(frame(1), 100),
            Err(SendError::Disconnected { to: 7, .. })
        ));
        assert_eq!(link.open(0), 1);
        assert_eq!(link.send(frame(1000), 200), Ok(()), "one may always wait");
        assert!(matches!(
            link.send(frame(1), 200),
            Err(SendError::Full { queued: 1064, .. })
        ));
        let (round, bytes) = link.take_round(None);
        assert_eq!((round.len(), bytes), (1, 1064));
        assert!(
            link.send(frame(1), 200).is_err(),
            "it is still being written"
        );
        link.written(bytes);
        assert_eq!(link.send(frame(1), 200), Ok(()));
        link.close("gone".to_owned());
        assert_eq!(link.status(), (false, 0, Some("gone".to_owned())));
        assert_eq!(link.open(0), 2);
        assert!(link.take_round(None).0.is_empty());
    }
}
