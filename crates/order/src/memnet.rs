//! A network in memory, for tests and simulations of the engine.
//!
//! A [`Hub`] is the whole network, a [`Port`] one node's way into it. Delays
//! come from a seeded generator and time from tokio's clock, so under a paused
//! clock the same seed gives the same run. Links can be cut with or without
//! the ends being told (a closed connection, or a firewall that swallows).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::network::{Frame, Inbound, Lane, LinkStatus, NetError, Network, SendError};
use crate::types::{BoxFuture, RaftId, Reply};

/// Frames waiting for one node, in bytes per (sender, lane).
const QUEUE_MAX: usize = 16 << 20;

/// How a pair of nodes cannot talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Connections are closed; both ends know.
    Closed,
    /// Everything is swallowed; nobody is told.
    Silent,
}

/// The whole network.
#[derive(Clone)]
pub struct Hub(Arc<Mutex<State>>);

struct State {
    rng: u64,
    delay: Duration,
    jitter: Duration,
    cuts: BTreeMap<(RaftId, RaftId), Cut>,
    /// What a way takes longer than the others.
    slow: BTreeMap<(RaftId, RaftId), Duration>,
    /// What a way carries on its bulk lane, in bytes a second, if that is little.
    narrow: BTreeMap<(RaftId, RaftId), u32>,
    /// Whom the others take for the copy of one that runs, and for how long.
    displaced: BTreeMap<RaftId, Duration>,
    /// Ways that take one frame less.
    refusing: BTreeSet<(RaftId, RaftId, usize)>,
    ports: BTreeMap<RaftId, PortState>,
    /// Orders what is due at the same moment.
    counter: u64,
}

struct PortState {
    addr: String,
    peers: BTreeMap<RaftId, String>,
    epochs: BTreeMap<RaftId, u64>,
    inbox: BTreeMap<(Instant, u64), Inbound>,
    /// When the last frame of (sender, lane) is due, and the bytes waiting.
    lanes: BTreeMap<(RaftId, usize), (Instant, usize)>,
    wake: Arc<Notify>,
    stopped: bool,
    /// Tells ports that were plugged in under the same id apart.
    birth: u64,
}

impl Hub {
    /// A network where a frame takes `delay` plus up to `jitter`.
    pub fn new(seed: u64, delay: Duration, jitter: Duration) -> Self {
        Hub(Arc::new(Mutex::new(State {
            rng: seed,
            delay,
            jitter,
            cuts: BTreeMap::new(),
            slow: BTreeMap::new(),
            narrow: BTreeMap::new(),
            displaced: BTreeMap::new(),
            refusing: BTreeSet::new(),
            ports: BTreeMap::new(),
            counter: 0,
        })))
    }

    /// Plugs a node in, in place of an earlier one with the same id.
    pub fn port(&self, id: RaftId, addr: &str) -> Arc<Port> {
        let mut s = self.lock();
        s.counter += 1;
        let birth = s.counter;
        if let Some(old) = s.ports.get(&id) {
            old.wake.notify_one();
        }
        s.ports.insert(
            id,
            PortState {
                addr: addr.to_owned(),
                peers: BTreeMap::new(),
                epochs: BTreeMap::new(),
                inbox: BTreeMap::new(),
                lanes: BTreeMap::new(),
                wake: Arc::new(Notify::new()),
                stopped: false,
                birth,
            },
        );
        let knowing: Vec<RaftId> = s
            .ports
            .iter()
            .filter(|(_, p)| p.peers.contains_key(&id))
            .map(|(other, _)| *other)
            .collect();
        for other in knowing {
            s.link(other, id, true);
        }
        drop(s);
        Arc::new(Port {
            hub: self.clone(),
            id,
            birth,
        })
    }

    /// Cuts every pair between `a` and `b`.
    pub fn cut(&self, a: &[RaftId], b: &[RaftId], how: Cut) {
        let mut s = self.lock();
        for &x in a {
            for &y in b {
                if x == y {
                    continue;
                }
                for (from, to) in [(x, y), (y, x)] {
                    s.cuts.insert((from, to), how);
                    s.drop_frames(from, to);
                    if how == Cut::Closed {
                        s.link(from, to, false);
                    }
                }
            }
        }
    }

    /// From now on nothing that is sent from `from` to `to` arrives, and
    /// nobody is told; what is under way still arrives.
    pub fn mute(&self, from: RaftId, to: RaftId) {
        self.lock().cuts.insert((from, to), Cut::Silent);
    }

    /// From now on what is sent from `from` to `to` takes `extra` longer.
    pub fn slow(&self, from: RaftId, to: RaftId, extra: Duration) {
        self.lock().slow.insert((from, to), extra);
    }

    /// From now on the bulk lane carries so many bytes a second from `from` to `to`.
    pub fn narrow(&self, from: RaftId, to: RaftId, rate: u32) {
        self.lock().narrow.insert((from, to), rate);
    }

    /// Cuts `id` off from all others, which say that they have heard another running node of this identity for as long.
    pub fn displace(&self, id: RaftId, since: Duration) {
        let others: Vec<RaftId> = self.lock().ports.keys().copied().collect();
        self.cut(&[id], &others, Cut::Closed);
        self.lock().displaced.insert(id, since);
    }

    /// Undoes every cut.
    pub fn heal(&self) {
        let mut s = self.lock();
        s.displaced.clear();
        for (from, to) in std::mem::take(&mut s.cuts).into_keys() {
            s.link(from, to, true);
        }
    }

    /// Breaks the link between two nodes: what is under way is lost, and the
    /// link is there again at once.
    pub fn break_link(&self, a: RaftId, b: RaftId) {
        let mut s = self.lock();
        for (from, to) in [(a, b), (b, a)] {
            if !s.cuts.contains_key(&(from, to)) {
                s.drop_frames(from, to);
                s.link(from, to, true);
            }
        }
    }

    /// The next frame from `from` to `to` on this lane is refused, as on a link
    /// that is down; nobody is told of the link.
    pub fn refuse_next(&self, from: RaftId, to: RaftId, lane: Lane) {
        self.lock().refusing.insert((from, to, lane.index()));
    }

    /// Breaks the one connection over which `from` sends to `to` on this lane,
    /// of which only `from` is told: what is under way on it is lost, and it is
    /// there again at once.
    pub fn break_lane(&self, from: RaftId, to: RaftId, lane: Lane) {
        let mut s = self.lock();
        if let Some(p) = s.ports.get_mut(&to) {
            p.inbox.retain(|_, what| {
                !matches!(what, Inbound::Frame { from: f, lane: l, .. } if *f == from && *l == lane)
            });
            p.lanes.remove(&(from, lane.index()));
        }
        s.link_lane(from, to, lane, false);
        s.link_lane(from, to, lane, true);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn random(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
        // Generators, 2014).
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.rng ^ (self.rng >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn delay(&mut self) -> Duration {
        let jitter = self.jitter.as_micros() as u64;
        self.delay + Duration::from_micros(self.random() % (jitter + 1))
    }

    fn put(&mut self, to: RaftId, at: Instant, what: Inbound) {
        self.counter += 1;
        let n = self.counter;
        if let Some(p) = self.ports.get_mut(&to)
            && !p.stopped
        {
            p.inbox.insert((at, n), what);
            p.wake.notify_one();
        }
    }

    fn link(&mut self, at: RaftId, peer: RaftId, up: bool) {
        for lane in Lane::ALL {
            self.link_lane(at, peer, lane, up);
        }
    }

    fn link_lane(&mut self, at: RaftId, peer: RaftId, lane: Lane, up: bool) {
        let Some(p) = self.ports.get_mut(&at) else {
            return;
        };
        if !p.peers.contains_key(&peer) {
            return;
        }
        let epoch = p.epochs.entry(peer).or_default();
        *epoch += 1;
        let what = Inbound::Link {
            peer,
            lane,
            epoch: *epoch,
            up,
        };
        self.put(at, Instant::now(), what);
    }

    fn drop_frames(&mut self, from: RaftId, to: RaftId) {
        if let Some(p) = self.ports.get_mut(&to) {
            p.inbox
                .retain(|_, what| !matches!(what, Inbound::Frame { from: f, .. } if *f == from));
            p.lanes.retain(|(f, _), _| *f != from);
        }
    }

    fn reach(&self, from: RaftId, to: RaftId) -> Result<(), Cut> {
        match self.cuts.get(&(from, to)) {
            Some(how) => Err(*how),
            None if self.ports.get(&to).is_some_and(|p| !p.stopped) => Ok(()),
            None => Err(Cut::Closed),
        }
    }
}

/// One node's way into a [`Hub`].
pub struct Port {
    hub: Hub,
    id: RaftId,
    birth: u64,
}

impl State {
    /// The state of a port, unless it was stopped or replaced.
    fn live(&self, port: &Port) -> Option<&PortState> {
        let p = self.ports.get(&port.id)?;
        (p.birth == port.birth && !p.stopped).then_some(p)
    }

    fn live_mut(&mut self, port: &Port) -> Option<&mut PortState> {
        let p = self.ports.get_mut(&port.id)?;
        (p.birth == port.birth && !p.stopped).then_some(p)
    }
}

impl Network for Port {
    fn send(&self, to: RaftId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let mut s = self.hub.lock();
        if !s.live(self).is_some_and(|p| p.peers.contains_key(&to)) {
            return Err(SendError::UnknownPeer { to });
        }
        match s.reach(self.id, to) {
            Ok(()) => {}
            Err(Cut::Closed) => return Err(SendError::Disconnected { to, lane }),
            Err(Cut::Silent) => return Ok(()),
        }
        if s.refusing.remove(&(self.id, to, lane.index())) {
            return Err(SendError::Disconnected { to, lane });
        }
        let extra = s.slow.get(&(self.id, to)).copied().unwrap_or_default();
        let due = Instant::now() + s.delay() + extra;
        let (key, len) = ((self.id, lane.index()), frame.len());
        let narrow = s.narrow.get(&(self.id, to)).filter(|_| lane == Lane::Bulk);
        let takes = narrow.map_or(0.0, |rate| len as f64 / f64::from(*rate));
        let Some(p) = s.ports.get_mut(&to) else {
            return Err(SendError::Disconnected { to, lane });
        };
        let (last, queued) = p.lanes.entry(key).or_insert((due, 0));
        if *queued + len > QUEUE_MAX && *queued > 0 {
            return Err(SendError::Full {
                to,
                lane,
                queued: *queued,
                limit: QUEUE_MAX,
            });
        }
        *queued += len;
        // Never before the one sent earlier.
        *last = due.max(*last) + Duration::from_secs_f64(takes);
        let due = *last;
        let what = Inbound::Frame {
            from: self.id,
            lane,
            body: frame.to_bytes(),
        };
        s.put(to, due, what);
        Ok(())
    }

    fn set_peers(&self, peers: BTreeMap<RaftId, String>) {
        let mut s = self.hub.lock();
        let Some(p) = s.live_mut(self) else {
            return;
        };
        let before: BTreeSet<RaftId> = p.peers.keys().copied().collect();
        p.peers = peers;
        let new: Vec<RaftId> = p
            .peers
            .keys()
            .filter(|id| !before.contains(id))
            .copied()
            .collect();
        for peer in new {
            if s.reach(self.id, peer).is_ok() {
                s.link(self.id, peer, true);
            }
        }
    }

    fn recv(&self) -> BoxFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            loop {
                let (next, wake) = {
                    let s = self.hub.lock();
                    let p = s.live(self)?;
                    (p.inbox.keys().next().map(|(at, _)| *at), p.wake.clone())
                };
                if let Some(what) = self.try_recv() {
                    return Some(what);
                }
                match next {
                    Some(at) => tokio::select! {
                        biased;
                        () = wake.notified() => {}
                        () = sleep_until(at) => {}
                    },
                    None => wake.notified().await,
                }
            }
        })
    }

    fn try_recv(&self) -> Option<Inbound> {
        let mut s = self.hub.lock();
        let p = s.live_mut(self)?;
        let first = p.inbox.first_entry()?;
        if first.key().0 > Instant::now() {
            return None;
        }
        let what = first.remove();
        if let Inbound::Frame { from, lane, body } = &what
            && let Some((_, queued)) = p.lanes.get_mut(&(*from, lane.index()))
        {
            *queued = queued.saturating_sub(body.len());
        }
        Some(what)
    }

    fn request(
        &self,
        addr: &str,
        body: Bytes,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Bytes, NetError>> {
        let (hub, id, addr) = (self.hub.clone(), self.id, addr.to_owned());
        Box::pin(async move {
            let timed_out = |taken| NetError::TimedOut {
                addr: addr.clone(),
                what: "answer",
                taken,
                timeout: limit,
            };
            let (tx, rx) = oneshot::channel();
            let reached = {
                let s = hub.lock();
                let to = s.ports.iter().find(|(_, p)| p.addr == addr && !p.stopped);
                to.map(|(&to, _)| s.reach(id, to).map(|()| to))
            };
            let to = match reached {
                None => return Err(NetError::Refused { addr: addr.clone() }),
                Some(Err(_)) => {
                    sleep(limit).await;
                    return Err(timed_out(false));
                }
                Some(Ok(to)) => to,
            };
            {
                let mut s = hub.lock();
                let from_addr = s.ports.get(&id).map(|p| p.addr.clone()).unwrap_or_default();
                let due = Instant::now() + s.delay();
                let reply = Reply::new(move |answer| {
                    let _ = tx.send(answer);
                });
                s.put(
                    to,
                    due,
                    Inbound::Request {
                        from_addr,
                        body,
                        reply,
                    },
                );
            }
            match timeout(limit, rx).await {
                Ok(Ok(Some(answer))) => {
                    let back = hub.lock().delay();
                    sleep(back).await;
                    Ok(answer)
                }
                Ok(_) => Err(NetError::NoAnswer { addr: addr.clone() }),
                Err(_) => Err(timed_out(true)),
            }
        })
    }

    fn peers_status(&self) -> BTreeMap<RaftId, LinkStatus> {
        let s = self.hub.lock();
        let Some(p) = s.live(self) else {
            return BTreeMap::new();
        };
        p.peers
            .iter()
            .map(|(id, addr)| {
                // Of a silent cut nobody is told.
                let up = s.reach(self.id, *id) != Err(Cut::Closed);
                let lanes = s.ports.get(id).map(|p| &p.lanes);
                let from = (self.id, 0)..=(self.id, usize::MAX);
                let queued = lanes.map_or(0, |l| l.range(from).map(|(_, (_, n))| n).sum());
                (
                    *id,
                    LinkStatus {
                        addr: addr.clone(),
                        up: [up; 3],
                        queued_bytes: queued,
                        displaced: s.displaced.get(&self.id).copied(),
                        last_error: s.displaced.get(&self.id).map(|_| "another runs".to_owned()),
                        ..LinkStatus::default()
                    },
                )
            })
            .collect()
    }

    fn set_isolated(&self, isolated: bool) {
        let others: Vec<RaftId> = self.hub.lock().ports.keys().copied().collect();
        if isolated {
            self.hub.cut(&[self.id], &others, Cut::Closed);
        } else {
            let mut s = self.hub.lock();
            let mine: Vec<_> = s
                .cuts
                .keys()
                .filter(|(a, b)| *a == self.id || *b == self.id)
                .copied()
                .collect();
            for (from, to) in mine {
                s.cuts.remove(&(from, to));
                s.link(from, to, true);
            }
        }
    }

    fn stop(&self) {
        let mut s = self.hub.lock();
        let mut knowing = Vec::new();
        let Some(p) = s.live_mut(self) else {
            return;
        };
        p.stopped = true;
        p.inbox.clear();
        p.wake.notify_one();
        for (id, p) in &s.ports {
            if p.peers.contains_key(&self.id) {
                knowing.push(*id);
            }
        }
        for id in knowing {
            s.link(id, self.id, false);
        }
    }
}
