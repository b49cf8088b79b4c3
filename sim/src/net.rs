//! The simulated network.
//!
//! Every pair of running nodes has one connection per lane and direction, with
//! a delay of its own: frames of one lane stay in order, lanes overtake one
//! another. A connection that breaks loses what is under way, as a socket
//! does, and is made again a little later. Faults are set per direction, so
//! partitions may be lopsided.
//!
//! Time is the world's: [`Net::advance`] moves what is due into the inboxes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dromon_order::{
    BoxFuture, Frame, Inbound, Lane, LinkStatus, NetError, Network, RaftId, Reply, SendError,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::rng::Rng;
use crate::shared::lock;

/// Frames under way or unread on one connection, in bytes.
const QUEUE_MAX: usize = 4 << 20;
/// How often connections are looked at, in microseconds.
const MAINTAIN_US: u64 = 5_000;
/// How long a connection stands although nothing gets through, in microseconds.
const SILENCE_US: u64 = 4_000_000;

/// Why a direction between two nodes does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Connections are closed and refused; both ends know.
    Closed,
    /// Everything is swallowed; nobody is told.
    Swallow,
    /// Nothing arrives until the cut is healed; then all of it does.
    Stall,
    /// A firewall swallows what comes to the listener: the sender's connections die, those of the other end stand, and
    /// what it asks for is answered.
    Unheard,
}

/// What happened on the network so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Frames that arrived.
    pub frames: u64,
    /// Frames that were lost.
    pub lost: u64,
    /// Connections that broke.
    pub breaks: u64,
}

/// The whole network. Clones are the same one.
#[derive(Clone)]
pub struct Net(Arc<Mutex<State>>);

/// Number of the request, who answers, who asked, the answer.
type Given = (u64, usize, usize, Option<Bytes>);
type Way = (usize, usize);
type ConnKey = (usize, usize, usize);

struct State {
    rng: Rng,
    now_us: u64,
    counter: u64,
    packets: BTreeMap<(u64, u64), Packet>,
    ports: Vec<Option<PortState>>,
    /// Where processes run.
    started: Vec<bool>,
    /// When each slot's process was last unplugged.
    unplugged_us: Vec<u64>,
    cuts: BTreeMap<Way, CutState>,
    delays: BTreeMap<Way, Delay>,
    conns: BTreeMap<ConnKey, Conn>,
    requests: BTreeMap<u64, oneshot::Sender<Option<Bytes>>>,
    /// Answers given since the last step. Apart, because an answer may be
    /// given (or dropped) while the network is locked.
    answers: Arc<Mutex<Vec<Given>>>,
    next_maintain_us: u64,
    stats: NetStats,
}

struct CutState {
    how: Cut,
    since_us: u64,
    /// Frames that wait for the end of a stall.
    held: Vec<Packet>,
    /// Whether a frame was swallowed.
    lost: bool,
}

#[derive(Clone, Copy)]
struct Delay {
    base_us: u64,
    jitter_us: u64,
    extra_us: u64,
}

struct Conn {
    up: bool,
    epoch: u64,
    retry_us: u64,
    last_due_us: u64,
    queued: usize,
}

struct PortState {
    birth: u64,
    id: RaftId,
    peers: BTreeMap<RaftId, String>,
    inbox: VecDeque<Inbound>,
    wake: Arc<Notify>,
    isolated: bool,
}

struct Packet {
    from: usize,
    to: usize,
    what: What,
}

enum What {
    Frame {
        to_birth: u64,
        from_id: RaftId,
        lane: Lane,
        epoch: u64,
        body: Bytes,
    },
    Request {
        number: u64,
        body: Bytes,
    },
    Answer {
        number: u64,
        body: Option<Bytes>,
    },
}

/// The address of the node in `slot`.
pub fn addr_of(slot: usize) -> String {
    format!("n{slot}:1")
}

/// The slot of the node at `addr`.
pub fn slot_of(addr: &str) -> Option<usize> {
    addr.strip_prefix('n')?.strip_suffix(":1")?.parse().ok()
}

impl Net {
    /// A network of `slots` nodes.
    pub fn new(seed: u64, slots: usize) -> Self {
        let mut rng = Rng::new(seed, &[0x6e65]);
        let mut delays = BTreeMap::new();
        for a in 0..slots {
            for b in 0..slots {
                let delay = Delay {
                    base_us: rng.range(200, 2_500),
                    jitter_us: rng.range(100, 4_000),
                    extra_us: 0,
                };
                delays.insert((a, b), delay);
            }
        }
        Net(Arc::new(Mutex::new(State {
            rng,
            now_us: 0,
            counter: 0,
            packets: BTreeMap::new(),
            ports: (0..slots).map(|_| None).collect(),
            started: vec![false; slots],
            unplugged_us: vec![0; slots],
            cuts: BTreeMap::new(),
            delays,
            conns: BTreeMap::new(),
            requests: BTreeMap::new(),
            answers: Arc::default(),
            next_maintain_us: 0,
            stats: NetStats::default(),
        })))
    }

    /// Plugs an engine in: member `id` at `slot`, in place of an earlier one.
    pub fn port(&self, slot: usize, id: RaftId) -> Arc<Port> {
        let mut s = self.lock();
        s.unplug(slot);
        s.counter += 1;
        let birth = s.counter;
        s.ports[slot] = Some(PortState {
            birth,
            id,
            peers: BTreeMap::new(),
            inbox: VecDeque::new(),
            wake: Arc::new(Notify::new()),
            isolated: false,
        });
        drop(s);
        Arc::new(Port {
            net: self.clone(),
            slot,
            birth,
        })
    }

    /// The process at `slot` is gone: its connections close.
    pub fn unplug(&self, slot: usize) {
        self.lock().unplug(slot);
    }

    /// Moves the clock to `now_us` and delivers what is due.
    pub fn advance(&self, now_us: u64) {
        let mut s = self.lock();
        s.now_us = now_us;
        let given = std::mem::take(&mut *lock(&s.answers));
        for (number, from, to, body) in given {
            if !s.closed(from, to) {
                let due = s.due(from, to);
                let what = What::Answer { number, body };
                s.put(due, Packet { from, to, what });
            }
        }
        while let Some(entry) = s.packets.first_entry() {
            if entry.key().0 > now_us {
                break;
            }
            let packet = entry.remove();
            s.arrive(packet);
        }
        if now_us >= s.next_maintain_us {
            s.next_maintain_us = now_us + MAINTAIN_US;
            s.maintain();
        }
    }

    /// Cuts one direction.
    pub fn cut(&self, from: usize, to: usize, how: Cut) {
        let mut s = self.lock();
        if from == to || s.cuts.contains_key(&(from, to)) {
            return;
        }
        if how != Cut::Stall {
            s.drop_frames(from, to, None);
        }
        let since_us = s.now_us;
        let state = CutState {
            how,
            since_us,
            held: Vec::new(),
            lost: false,
        };
        s.cuts.insert((from, to), state);
        if how == Cut::Closed {
            s.break_way(from, to);
            s.break_way(to, from);
        }
    }

    /// Undoes every cut.
    pub fn heal(&self) {
        let mut s = self.lock();
        for ((from, to), cut) in std::mem::take(&mut s.cuts) {
            if cut.lost {
                s.break_way(from, to);
            }
            let mut due = s.now_us;
            for packet in cut.held {
                due += 10;
                if let What::Frame { lane, .. } = &packet.what
                    && let Some(conn) = s.conns.get_mut(&(from, to, lane.index()))
                {
                    conn.last_due_us = conn.last_due_us.max(due);
                }
                s.put(due, packet);
            }
        }
    }

    /// Who may have answered something that `slot` asked after `since_us`, as
    /// far as the network goes. Right for what stands now: ways that were cut
    /// and healed in between count as open.
    pub fn may_have_answered(&self, slot: usize, since_us: u64) -> BTreeSet<usize> {
        let s = self.lock();
        let shut = |way| s.cuts.get(&way).is_some_and(|c| c.since_us < since_us);
        let ran = |other: usize| s.ports[other].is_some() || s.unplugged_us[other] >= since_us;
        (0..s.ports.len())
            .filter(|&o| o != slot && ran(o) && !shut((slot, o)) && !shut((o, slot)))
            .collect()
    }

    /// Breaks the connections between two nodes, some or all lanes; they are
    /// made again soon.
    pub fn break_link(&self, a: usize, b: usize, lane: Option<Lane>) {
        let mut s = self.lock();
        for (from, to) in [(a, b), (b, a)] {
            for l in Lane::ALL {
                if lane.is_none_or(|only| only == l) {
                    s.break_conn((from, to, l.index()));
                }
            }
        }
    }

    /// Whether a process runs at `addr`.
    pub fn is_started(&self, addr: &str) -> bool {
        let s = self.lock();
        slot_of(addr).is_some_and(|slot| s.started.get(slot).is_some_and(|up| *up))
    }

    /// A process runs at `slot`, or no longer; it may have no engine yet.
    pub fn set_started(&self, slot: usize, up: bool) {
        self.lock().started[slot] = up;
    }

    /// Whether both ways between two slots are open and not slowed down.
    pub fn is_clear(&self, a: usize, b: usize) -> bool {
        let s = self.lock();
        [(a, b), (b, a)].iter().all(|way| {
            !s.cuts.contains_key(way) && s.delays.get(way).is_none_or(|d| d.extra_us == 0)
        })
    }

    /// Makes one direction slower by `extra`.
    pub fn slow(&self, from: usize, to: usize, extra: Duration) {
        if let Some(d) = self.lock().delays.get_mut(&(from, to)) {
            d.extra_us = extra.as_micros() as u64;
        }
    }

    /// What happened so far.
    pub fn stats(&self) -> NetStats {
        self.lock().stats
    }

    /// Asks whoever runs at `addr`.
    pub fn request(
        &self,
        from: usize,
        addr: &str,
        body: Bytes,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Bytes, NetError>> {
        let (net, addr) = (self.clone(), addr.to_owned());
        Box::pin(async move {
            let refused = || NetError::Refused { addr: addr.clone() };
            let to = slot_of(&addr).ok_or_else(refused)?;
            let answer = {
                let mut s = net.lock();
                if s.closed(from, to) {
                    return Err(NetError::Unreachable {
                        addr,
                        why: "the simulated network is cut".to_owned(),
                        here: false,
                    });
                }
                if s.ports.get(to).is_none_or(|p| p.is_none()) {
                    return Err(refused());
                }
                let (tx, rx) = oneshot::channel();
                s.counter += 1;
                let number = s.counter;
                s.requests.retain(|_, tx| !tx.is_closed());
                s.requests.insert(number, tx);
                let due = s.due(from, to);
                let what = What::Request { number, body };
                s.put(due, Packet { from, to, what });
                rx
            };
            match timeout(limit, answer).await {
                Ok(Ok(Some(answer))) => Ok(answer),
                Ok(_) => Err(NetError::NoAnswer { addr }),
                Err(_) => Err(NetError::TimedOut {
                    addr,
                    what: "answer",
                    taken: true,
                    timeout: limit,
                }),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn put(&mut self, due_us: u64, packet: Packet) {
        self.counter += 1;
        self.packets.insert((due_us, self.counter), packet);
    }

    fn due(&mut self, from: usize, to: usize) -> u64 {
        let d = self.delays.get(&(from, to)).copied().unwrap_or(Delay {
            base_us: 1_000,
            jitter_us: 1_000,
            extra_us: 0,
        });
        // A few frames take much longer than the others.
        let hiccup = if self.rng.chance(4) {
            self.rng.range(5_000, 120_000)
        } else {
            0
        };
        self.now_us + d.base_us + d.extra_us + self.rng.below(d.jitter_us) + hiccup
    }

    fn runs(&self, slot: usize) -> bool {
        self.ports.get(slot).is_some_and(Option::is_some)
    }

    /// Whether connections between the two cannot be made or kept.
    fn closed(&self, a: usize, b: usize) -> bool {
        let apart = |slot: usize| {
            let port = self.ports.get(slot).and_then(Option::as_ref);
            port.is_some_and(|p| p.isolated)
        };
        let cut = |way| self.cuts.get(&way).is_some_and(|c| c.how == Cut::Closed);
        apart(a) || apart(b) || cut((a, b)) || cut((b, a))
    }

    /// Whether a connection from `a` to `b` that nothing passes has been given up.
    fn silent(&self, a: usize, b: usize) -> bool {
        let cut = |way, hows: &[Cut]| {
            let cut: Option<&CutState> = self.cuts.get(&way);
            cut.is_some_and(|c| hows.contains(&c.how) && self.now_us > c.since_us + SILENCE_US)
        };
        cut((a, b), &[Cut::Swallow, Cut::Unheard]) || cut((b, a), &[Cut::Swallow])
    }

    fn unplug(&mut self, slot: usize) {
        let Some(port) = self.ports[slot].take() else {
            return;
        };
        port.wake.notify_one();
        self.unplugged_us[slot] = self.now_us;
        for other in 0..self.ports.len() {
            self.drop_frames(slot, other, None);
            self.break_way(other, slot);
        }
        self.conns.retain(|(from, _, _), _| *from != slot);
    }

    fn drop_frames(&mut self, from: usize, to: usize, lane: Option<Lane>) {
        let before = self.packets.len();
        self.packets.retain(|_, p| {
            let this = match &p.what {
                What::Frame { lane: l, .. } => lane.is_none_or(|only| only == *l),
                _ => false,
            };
            !(this && p.from == from && p.to == to)
        });
        self.stats.lost += (before - self.packets.len()) as u64;
    }

    fn break_way(&mut self, from: usize, to: usize) {
        for lane in Lane::ALL {
            self.break_conn((from, to, lane.index()));
        }
    }

    /// What is under way is lost; the connection is made again after a while.
    fn break_conn(&mut self, key: ConnKey) {
        let retry_us = self.now_us + self.rng.range(2_000, 60_000);
        let lane = Lane::ALL[key.2];
        self.drop_frames(key.0, key.1, Some(lane));
        let Some(conn) = self.conns.get_mut(&key) else {
            return;
        };
        if !conn.up {
            return;
        }
        conn.up = false;
        conn.queued = 0;
        conn.retry_us = retry_us;
        let epoch = conn.epoch;
        self.stats.breaks += 1;
        self.tell(key, epoch, false);
    }

    /// Tells the sender's end how its connection stands.
    fn tell(&mut self, (from, to, lane): ConnKey, epoch: u64, up: bool) {
        let Some(port) = self.ports[from].as_mut() else {
            return;
        };
        let addr = addr_of(to);
        let named: Vec<RaftId> = port
            .peers
            .iter()
            .filter(|(_, a)| **a == addr)
            .map(|(id, _)| *id)
            .collect();
        for peer in named {
            port.inbox.push_back(Inbound::Link {
                peer,
                lane: Lane::ALL[lane],
                epoch,
                up,
            });
        }
        port.wake.notify_one();
    }

    /// Makes connections that should be there, gives up those that are dead.
    fn maintain(&mut self) {
        for from in 0..self.ports.len() {
            let Some(port) = self.ports[from].as_ref() else {
                continue;
            };
            let mut wanted: Vec<usize> = port.peers.values().filter_map(|a| slot_of(a)).collect();
            wanted.sort_unstable();
            wanted.dedup();
            for to in wanted {
                if to == from || to >= self.ports.len() {
                    continue;
                }
                let back = self.cuts.get(&(to, from));
                let cut = self.cuts.contains_key(&(from, to))
                    || back.is_some_and(|c| c.how != Cut::Unheard);
                let makeable = self.runs(to) && !cut && !self.closed(from, to);
                let dead = !self.runs(to) || self.closed(from, to) || self.silent(from, to);
                for lane in Lane::ALL {
                    let key = (from, to, lane.index());
                    let now_us = self.now_us;
                    let conn = self.conns.entry(key).or_insert(Conn {
                        up: false,
                        epoch: 0,
                        retry_us: now_us,
                        last_due_us: 0,
                        queued: 0,
                    });
                    if conn.up && dead {
                        self.break_conn(key);
                    } else if !conn.up && makeable && now_us >= conn.retry_us {
                        conn.up = true;
                        conn.epoch += 1;
                        conn.queued = 0;
                        let epoch = conn.epoch;
                        self.tell(key, epoch, true);
                    }
                }
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let (from, to) = (packet.from, packet.to);
        if let Some(cut) = self.cuts.get_mut(&(from, to)) {
            if cut.how == Cut::Stall {
                cut.held.push(packet);
                return;
            }
            // Only requests and answers come this far otherwise; they time out.
            if cut.how != Cut::Unheard || !matches!(packet.what, What::Answer { .. }) {
                return;
            }
        }
        match packet.what {
            What::Frame {
                to_birth,
                from_id,
                lane,
                epoch,
                body,
            } => {
                let conn = self.conns.get_mut(&(from, to, lane.index()));
                let standing = conn.filter(|c| c.up && c.epoch == epoch).map(|c| {
                    c.queued = c.queued.saturating_sub(body.len());
                });
                let port = self.ports[to].as_mut().filter(|p| p.birth == to_birth);
                let (Some(()), Some(port)) = (standing, port) else {
                    self.stats.lost += 1;
                    return;
                };
                self.stats.frames += 1;
                port.inbox.push_back(Inbound::Frame {
                    from: from_id,
                    lane,
                    body,
                });
                port.wake.notify_one();
            }
            What::Request { number, body } => {
                let given = self.answers.clone();
                let reply = Reply::new(move |answer| {
                    lock(&given).push((number, to, from, answer));
                });
                match self.ports[to].as_mut() {
                    Some(port) => {
                        port.inbox.push_back(Inbound::Request {
                            from_addr: addr_of(from),
                            body,
                            reply,
                        });
                        port.wake.notify_one();
                    }
                    None => drop(reply),
                }
            }
            What::Answer { number, body } => {
                if let Some(tx) = self.requests.remove(&number) {
                    // The asker may have given up.
                    let _ = tx.send(body);
                }
            }
        }
    }
}

/// One engine's way into a [`Net`].
pub struct Port {
    net: Net,
    slot: usize,
    birth: u64,
}

impl Port {
    fn live<'a>(&self, s: &'a mut State) -> Option<&'a mut PortState> {
        s.ports[self.slot]
            .as_mut()
            .filter(|p| p.birth == self.birth)
    }
}

impl Network for Port {
    fn send(&self, to: RaftId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let mut s = self.net.lock();
        let gone = SendError::Disconnected { to, lane };
        let Some(port) = self.live(&mut s) else {
            return Err(gone);
        };
        let from_id = port.id;
        let Some(slot) = port.peers.get(&to).and_then(|a| slot_of(a)) else {
            return Err(SendError::UnknownPeer { to });
        };
        let to_birth = match s.ports.get(slot).and_then(Option::as_ref) {
            Some(p) if p.id == to => p.birth,
            _ => return Err(gone),
        };
        let key = (self.slot, slot, lane.index());
        let due = s.due(self.slot, slot);
        let Some(conn) = s.conns.get_mut(&key).filter(|c| c.up) else {
            return Err(gone);
        };
        if conn.queued > 0 && conn.queued + frame.len() > QUEUE_MAX {
            return Err(SendError::Full {
                to,
                lane,
                queued: conn.queued,
                limit: QUEUE_MAX,
            });
        }
        conn.queued += frame.len();
        // Never before the one sent earlier.
        conn.last_due_us = conn.last_due_us.max(due);
        let (due, epoch) = (conn.last_due_us, conn.epoch);
        if let Some(cut) = s.cuts.get_mut(&(self.slot, slot))
            && matches!(cut.how, Cut::Swallow | Cut::Unheard)
        {
            cut.lost = true;
            s.stats.lost += 1;
            return Ok(());
        }
        let what = What::Frame {
            to_birth,
            from_id,
            lane,
            epoch,
            body: frame.to_bytes(),
        };
        let packet = Packet {
            from: self.slot,
            to: slot,
            what,
        };
        s.put(due, packet);
        Ok(())
    }

    fn set_peers(&self, peers: BTreeMap<RaftId, String>) {
        let mut s = self.net.lock();
        let Some(port) = self.live(&mut s) else {
            return;
        };
        if port.peers == peers {
            return;
        }
        let known = std::mem::replace(&mut port.peers, peers);
        let new: Vec<(RaftId, usize)> = port
            .peers
            .iter()
            .filter(|(id, _)| !known.contains_key(id))
            .filter_map(|(id, a)| Some((*id, slot_of(a)?)))
            .collect();
        // A new member at the place of an old one gets connections of its own.
        for (_, slot) in new {
            for lane in Lane::ALL {
                s.break_conn((self.slot, slot, lane.index()));
            }
        }
        s.next_maintain_us = 0;
    }

    fn recv(&self) -> BoxFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            loop {
                let wake = {
                    let mut s = self.net.lock();
                    let port = self.live(&mut s)?;
                    if let Some(what) = port.inbox.pop_front() {
                        return Some(what);
                    }
                    port.wake.clone()
                };
                wake.notified().await;
            }
        })
    }

    fn try_recv(&self) -> Option<Inbound> {
        let mut s = self.net.lock();
        self.live(&mut s)?.inbox.pop_front()
    }

    fn request(
        &self,
        addr: &str,
        body: Bytes,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Bytes, NetError>> {
        self.net.request(self.slot, addr, body, limit)
    }

    fn peers_status(&self) -> BTreeMap<RaftId, LinkStatus> {
        let mut s = self.net.lock();
        let peers = match self.live(&mut s) {
            Some(port) => port.peers.clone(),
            None => BTreeMap::new(),
        };
        let status = |addr: String| {
            let to = slot_of(&addr);
            let up = |lane: usize| {
                to.and_then(|to| s.conns.get(&(self.slot, to, lane)))
                    .is_some_and(|c| c.up)
            };
            LinkStatus {
                up: [up(0), up(1), up(2)],
                addr,
                ..LinkStatus::default()
            }
        };
        peers.into_iter().map(|(id, a)| (id, status(a))).collect()
    }

    fn set_isolated(&self, isolated: bool) {
        let mut s = self.net.lock();
        if let Some(port) = self.live(&mut s) {
            port.isolated = isolated;
        }
    }

    fn stop(&self) {
        let mut s = self.net.lock();
        if self.live(&mut s).is_some() {
            s.unplug(self.slot);
        }
    }
}
