//! The real network: TCP, one connection per peer and lane in each direction.
//!
//! ```text
//!   send() ─> queue per (peer, lane) ─> link task ══ TCP ══> reader task ─> Inbox ─> recv()
//!             bounded in bytes          connects,            one per         bounded
//!                                       greets, writes       connection      per lane
//! ```
//!
//! Each node connects to each peer once per lane and only writes payload
//! there; what it reads comes on the connections that the peers made. So no
//! two ends ever argue about which connection to keep, and bulk has buffers
//! of its own all the way. Requests use a connection each.
//!
//! Everything runs as tasks in the runtime in which [`TcpNetwork::bind`] was
//! called; a current-thread one is enough.

mod accept;
mod aside;
mod conn;
#[cfg(test)]
mod copies_tests;
mod life;
#[cfg(test)]
mod life_tests;
mod listen;
mod names;
mod out;
#[cfg(test)]
mod presence_tests;
mod request;
mod secure;
#[cfg(test)]
mod secure_tests;
mod socket;
#[cfg(test)]
mod socket_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads_tests;
mod tls;
mod x509;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

pub use listen::BindError;
pub use names::addresses;
pub use request::{request, request_blocking, who_is_at};
pub use secure::{Security, SecurityConfig, SecurityError};
pub use socket::Brake;
pub use tls::TlsFiles;

use crate::address::parse_address;
use crate::engine_core::lock;
use crate::inbox::Inbox;
use crate::network::{Frame, Inbound, Lane, LinkStatus, NetError, Network, SendError};
use crate::types::{BoxFuture, RaftId};
use crate::wire::{FRAME_MAX, Hello, Identity, PeerMisbehaved, Refusal, RefusalCode};
use out::OutLink;

/// From when until when a certificate is valid, as it is shown.
pub(crate) fn certificate_dates(der: &[u8]) -> Option<(String, String)> {
    let facts = x509::facts(der)?;
    Some((x509::date(facts.from), x509::date(facts.until)))
}

/// The port where none is given.
pub const DEFAULT_PORT: u16 = 4567;
/// Longest question, in bytes.
pub const REQUEST_MAX: usize = 16 << 20;
/// Longest answer taken, in bytes.
pub const ANSWER_MAX: usize = 4 << 30;

/// Connections from others at once that have not greeted yet.
const GREETING_AT_ONCE: usize = 64;
/// Connections from others at once, in all.
const INBOUND_AT_ONCE: usize = 1024;
/// Questions of others at once; each may hold [`REQUEST_MAX`].
const ASKING_AT_ONCE: usize = 64;
/// Looks into the allowlist at once.
const ADMITTING_AT_ONCE: usize = 16;
/// Peers whose last sign of life is remembered.
const HEARD_MAX: usize = 1024;
/// How long an event that strangers can cause is not repeated.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// How many such events are passed on in that time.
const SAID_MAX: usize = 64;

/// Decides whether a node may come in, beyond protocol and cluster name.
pub type Admit = Arc<dyn Fn(&Hello, IpAddr) -> Result<(), Refusal> + Send + Sync>;
/// Takes note of what happens; must be quick.
pub type EventSink = Arc<dyn Fn(TransportEvent) + Send + Sync>;

/// What the transport is told at start.
#[derive(Clone)]
pub struct TcpConfig {
    /// Where to listen: `host`, `host:port`, `tcp://…`, `[v6]:port`; port 0
    /// takes a free one.
    pub listen: String,
    /// How this node introduces itself.
    pub who: Identity,
    /// Additional check of those who connect, such as the allowlist. Runs on
    /// a thread of its own and may block; whoever waits for it too long is told
    /// to try again.
    pub admit: Option<Admit>,
    /// Encryption, the cluster's secret, and the brake.
    pub security: Arc<Security>,
    /// Where events go.
    pub events: Option<EventSink>,
    /// How long resolving and connecting may take.
    pub connect_timeout: Duration,
    /// How long either end has for its greeting.
    pub greet_timeout: Duration,
    /// How long a peer has to send its question after the greeting.
    pub request_timeout: Duration,
    /// A connection whose bytes are not acknowledged for this long is dead.
    pub dead_after: Duration,
    /// A connection on which pings are not answered for this long is replaced, if a new one
    /// can be made.
    pub silent_after: Duration,
    /// Pause after the first failed attempt; doubled after each, with jitter.
    pub retry_min: Duration,
    /// Longest pause.
    pub retry_max: Duration,
    /// How often each own link asks for a sign of life.
    pub ping_every: Duration,
    /// Bytes that may wait per (peer, lane), by [`Lane::index`]. One frame
    /// always may.
    pub queue_bytes: [usize; 3],
    /// Seed of the jitter.
    pub seed: u64,
}

impl TcpConfig {
    /// The defaults for a local network.
    pub fn new(listen: impl Into<String>, who: Identity, seed: u64) -> Self {
        TcpConfig {
            listen: listen.into(),
            who,
            admit: None,
            security: Security::open(),
            events: None,
            connect_timeout: Duration::from_secs(3),
            greet_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(30),
            dead_after: Duration::from_secs(10),
            silent_after: Duration::from_secs(2),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(1),
            ping_every: Duration::from_millis(500),
            queue_bytes: [8 << 20, 128 << 20, 16 << 20],
            seed,
        }
    }
}

impl fmt::Debug for TcpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConfig")
            .field("listen", &self.listen)
            .field("cluster", &self.who.cluster)
            .field("raft_id", &self.who.raft_id)
            .finish_non_exhaustive()
    }
}

/// What happened on the network, for the log. Each shows as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportEvent {
    /// An own link was made.
    #[error("connection established to {peer:x} {}://{} ({lane} lane)", scheme(.encrypted), bare(.addr))]
    Connected {
        /// The other end.
        peer: RaftId,
        /// Which link.
        lane: Lane,
        /// Where.
        addr: String,
        /// With TLS.
        encrypted: bool,
    },
    /// An own link broke.
    #[error("connection to member {peer:x} at {addr} ({lane} lane) lost: {why}")]
    Lost {
        /// The other end.
        peer: RaftId,
        /// Which link.
        lane: Lane,
        /// Where.
        addr: String,
        /// How.
        why: NetError,
    },
    /// An own link cannot be made; said once per reason.
    #[error("cannot connect to member {peer:x} at {addr} ({lane} lane), will go on trying: {why}")]
    CannotConnect {
        /// The other end.
        peer: RaftId,
        /// Which link.
        lane: Lane,
        /// Where.
        addr: String,
        /// Why.
        why: NetError,
    },
    /// Somebody connected and was not let in.
    #[error("connection from {addr} refused, because {}", refused_words(.refusal))]
    Refused {
        /// Who.
        addr: String,
        /// What it was told; "it" is this node.
        refusal: Refusal,
    },
    /// Somebody connected without TLS.
    #[error(
        "connection from {addr} closed: it is not encrypted, but socket.ssl is on here; set it alike \
         on all nodes (socket.dynamic lets both in while you switch)"
    )]
    NotEncrypted {
        /// Who.
        addr: String,
    },
    /// Somebody's TLS did not come about.
    #[error("connection from {addr} closed: {why}")]
    TlsFailed {
        /// Who.
        addr: String,
        /// Why; "it" is the other end.
        why: String,
    },
    /// Somebody did not prove the cluster's secret.
    #[error("connection from {addr} closed before it learned anything: {why}")]
    NotProven {
        /// Who.
        addr: String,
        /// Why.
        why: &'static str,
    },
    /// Somebody sent what no node sends.
    #[error("connection closed: {0}")]
    Misbehaved(PeerMisbehaved),
    /// Somebody connected and said nothing.
    #[error(
        "{addr} connected and did not greet within {limit:?} (as Galera's nodes and garbd, which wait for a greeting); \
         the connection was closed"
    )]
    Silent {
        /// Who.
        addr: String,
        /// How long it had.
        limit: Duration,
    },
    /// Too many connections at once.
    #[error("connection from {addr} closed at once: too many connections are open")]
    TooMany {
        /// Who.
        addr: String,
    },
    /// Somebody had to go so that others can come in.
    #[error(
        "connection from {addr} closed: it had not greeted yet when too many such connections were \
         open, most of them from there"
    )]
    GaveWay {
        /// Who.
        addr: String,
    },
    /// The operating system gives no more connections.
    #[error("cannot take connections from other nodes just now: {why}; will go on trying")]
    CannotAccept {
        /// What it said.
        why: String,
    },
}

/// Log readers look for "connection established to ID tcp://ADDRESS".
fn bare(addr: &str) -> &str {
    addr.strip_prefix("tcp://").unwrap_or(addr)
}

fn scheme(encrypted: &bool) -> &'static str {
    if *encrypted { "ssl" } else { "tcp" }
}

/// The refusal is worded for the other end; here "it" must be named.
fn refused_words(r: &Refusal) -> String {
    match r.text.strip_prefix("its ") {
        Some(rest) => format!("this node's {rest}"),
        None => match r.text.strip_prefix("it ") {
            Some(rest) => format!("this node {rest}"),
            None => r.text.clone(),
        },
    }
}

/// Whether connections are wanted at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mode {
    isolated: bool,
    stopped: bool,
}

impl Mode {
    fn closed(self) -> bool {
        self.isolated || self.stopped
    }
}

/// Last sign of life and round trip of one peer.
struct Heard {
    base: Instant,
    /// Microseconds since `base`, plus one; 0 is never.
    at: AtomicU64,
    rtt_nanos: AtomicU64,
}

impl Heard {
    fn since(base: Instant) -> Heard {
        Heard {
            base,
            at: AtomicU64::new(0),
            rtt_nanos: AtomicU64::new(0),
        }
    }

    fn now(&self) {
        let t = self.base.elapsed().as_micros() as u64 + 1;
        self.at.store(t, Ordering::Relaxed);
    }

    fn rtt(&self, rtt: Duration) {
        self.rtt_nanos
            .store((rtt.as_nanos() as u64).max(1), Ordering::Relaxed);
    }

    fn silent(&self) -> Option<Duration> {
        let at = self.at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.base
                .elapsed()
                .saturating_sub(Duration::from_micros(at)),
        )
    }

    fn last_rtt(&self) -> Option<Duration> {
        match self.rtt_nanos.load(Ordering::Relaxed) {
            0 => None,
            n => Some(Duration::from_nanos(n)),
        }
    }
}

/// One connection that somebody made to this node.
struct InboundConn {
    from: SocketAddr,
    task: Option<AbortHandle>,
    greeted: bool,
    /// Whose lane it wants to be.
    wants: Option<(RaftId, Lane)>,
    /// Which run of that member it is of, see [`Hello::instance`].
    instance: u64,
    /// When a frame last came.
    heard: Arc<Heard>,
}

impl InboundConn {
    /// Whether it is of another run of its member, which was heard within `limit`.
    fn is_another(&self, instance: u64, limit: Duration) -> bool {
        let heard = self.heard.silent().is_some_and(|silent| silent < limit);
        heard && self.instance != 0 && self.instance != instance
    }
}

#[derive(Default)]
struct InboundState {
    next_id: u64,
    conns: HashMap<u64, InboundConn>,
    /// The connection that now is the lane.
    lanes: HashMap<(RaftId, Lane), (u64, Arc<AtomicU64>)>,
    homes: HashMap<RaftId, Home>,
}

/// The places of a peer, as far as known.
#[derive(Default)]
struct Home {
    /// Where it is looked for, or was found. Nobody moves it by a claim.
    named: Option<IpAddr>,
    /// Where somebody last came from who says to be it.
    seen: Option<IpAddr>,
}

/// What counts as one place that connections come from: of IPv6, the network.
fn place(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

impl InboundState {
    /// Which connection without a greeting goes for one more from `newcomer`: the
    /// oldest from where most of them are. A peer's place is spared, except for a peer.
    fn gives_way(&self, newcomer: IpAddr) -> Option<u64> {
        let is_home = |ip: &IpAddr| {
            let mut homes = self.homes.values();
            homes.any(|home| [home.named, home.seen].contains(&Some(*ip)))
        };
        let mut places: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (id, c) in self.conns.iter().filter(|(_, c)| !c.greeted) {
            let (many, oldest) = places.entry(place(c.from.ip())).or_insert((0, *id));
            *many += 1;
            *oldest = (*oldest).min(*id);
        }
        let worst =
            |(ip, (many, oldest)): &(IpAddr, (usize, u64))| (!is_home(ip), *many, Reverse(*oldest));
        let (ip, (_, oldest)) = places.into_iter().max_by_key(worst)?;
        (!is_home(&ip) || is_home(&place(newcomer))).then_some(oldest)
    }
}

/// The connections that others made to this node.
#[derive(Default)]
struct InboundTable(Mutex<InboundState>);

impl InboundTable {
    fn lock(&self) -> MutexGuard<'_, InboundState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more, if there is one or can be made, and who had to go for it.
    fn enter(&self, from: SocketAddr) -> Option<(u64, Option<SocketAddr>)> {
        let mut s = self.lock();
        let greeting = s.conns.values().filter(|c| !c.greeted).count();
        let mut gone = None;
        if s.conns.len() >= INBOUND_AT_ONCE || greeting >= GREETING_AT_ONCE {
            let old = s.gives_way(from.ip())?;
            let old = s.conns.remove(&old)?;
            if let Some(task) = old.task {
                task.abort();
            }
            gone = Some(old.from);
        }
        s.next_id += 1;
        let id = s.next_id;
        let conn = InboundConn {
            from,
            task: None,
            greeted: false,
            wants: None,
            instance: 0,
            heard: Arc::new(Heard::since(Instant::now())),
        };
        s.conns.insert(id, conn);
        Some((id, gone))
    }

    /// The peer is looked for, or found, at `ip`; `None`: under a name.
    fn lives(&self, peer: RaftId, ip: Option<IpAddr>) {
        self.lock().homes.entry(peer).or_default().named = ip.map(place);
    }

    /// Who says to be the peer came from `ip`.
    fn was_seen(&self, peer: RaftId, ip: IpAddr) {
        self.lock().homes.entry(peer).or_default().seen = Some(place(ip));
    }

    /// Only these are peers.
    fn keep_homes(&self, is_peer: impl Fn(RaftId) -> bool) {
        self.lock().homes.retain(|id, _| is_peer(*id));
    }

    /// These are no peers any more. Who may come back greets anew: certificate, secret and list may be others by
    /// now.
    fn end_of(&self, gone: &[RaftId]) {
        let mut s = self.lock();
        s.lanes.retain(|(from, _), _| !gone.contains(from));
        let theirs = |c: &InboundConn| c.wants.is_some_and(|(from, _)| gone.contains(&from));
        for (_, c) in s.conns.extract_if(|_, c| theirs(c)) {
            if let Some(task) = c.task {
                task.abort();
            }
        }
    }

    fn set_task(&self, id: u64, task: AbortHandle) {
        // It may have ended already.
        if let Some(c) = self.lock().conns.get_mut(&id) {
            c.task = Some(task);
        }
    }

    fn greeted(&self, id: u64) {
        if let Some(c) = self.lock().conns.get_mut(&id) {
            c.greeted = true;
        }
    }

    /// `id` has greeted as a lane, and is it with its first frame. Takes note of each.
    fn wants(&self, id: u64, from: RaftId, lane: Lane, instance: u64) -> Arc<Heard> {
        match self.lock().conns.get_mut(&id) {
            Some(c) => {
                c.wants = Some((from, lane));
                c.instance = instance;
                c.heard.clone()
            }
            None => Arc::new(Heard::since(Instant::now())),
        }
    }

    /// Where another run of this member was heard within `limit`, on what are its lanes.
    fn another(&self, from: RaftId, instance: u64, limit: Duration) -> Option<SocketAddr> {
        let s = self.lock();
        let lanes = Lane::ALL
            .iter()
            .filter_map(|lane| s.lanes.get(&(from, *lane)));
        let mut conns = lanes.filter_map(|(id, _)| s.conns.get(id));
        conns
            .find(|c| c.is_another(instance, limit))
            .map(|c| c.from)
    }

    /// Makes `id` the lane and ends all that were made before it, also those that
    /// have not brought anything yet; the returned number is `id` for as long as
    /// it stays so, and never if a newer one has ended it.
    fn take_over(&self, id: u64, from: RaftId, lane: Lane) -> Arc<AtomicU64> {
        let mut s = self.lock();
        if !s.conns.contains_key(&id) {
            return Arc::new(AtomicU64::new(u64::MAX));
        }
        let older =
            |(i, c): (&u64, &InboundConn)| (*i < id && c.wants == Some((from, lane))).then_some(*i);
        let ended: Vec<u64> = s.conns.iter().filter_map(older).collect();
        for old in ended {
            if let Some(task) = s.conns.remove(&old).and_then(|c| c.task) {
                task.abort();
            }
        }
        let current = Arc::new(AtomicU64::new(id));
        if let Some((_, old)) = s.lanes.insert((from, lane), (id, current.clone())) {
            old.store(id, Ordering::Release);
        }
        current
    }

    fn leave(&self, id: u64) {
        let mut s = self.lock();
        s.conns.remove(&id);
        s.lanes.retain(|_, (i, _)| *i != id);
    }

    fn abort_all(&self) {
        let mut s = self.lock();
        s.lanes.clear();
        for (_, c) in s.conns.drain() {
            if let Some(task) = c.task {
                task.abort();
            }
        }
    }
}

/// What was said of an address: which event, and of a refusal, why.
type Said = (IpAddr, Discriminant<TransportEvent>, Option<RefusalCode>);

/// What all tasks share.
struct Shared {
    config: TcpConfig,
    /// See [`Hello::instance`].
    instance: u64,
    mode: watch::Sender<Mode>,
    inbox: Inbox,
    inbound: InboundTable,
    asking: Semaphore,
    /// Outlives a connection: a look that hangs keeps its place.
    admitting: Arc<Semaphore>,
    peers: Mutex<BTreeMap<RaftId, Peer>>,
    heard: Mutex<HashMap<RaftId, Arc<Heard>>>,
    /// When which kind of event about whom was last passed on.
    said: Mutex<HashMap<Said, Instant>>,
    base: Instant,
}

/// The own links to one peer.
struct Peer {
    addr: String,
    lanes: [Arc<OutLink>; 3],
    tasks: [AbortHandle; 3],
}

impl Shared {
    fn who(&self) -> &Identity {
        &self.config.who
    }

    fn event(&self, e: TransportEvent) {
        if let Some(sink) = &self.config.events {
            sink(e);
        }
    }

    /// An event that anybody can cause as often as they like: each kind once
    /// a minute per address.
    fn stranger_event(&self, from: IpAddr, e: TransportEvent) {
        if self.config.events.is_none() {
            return;
        }
        let now = Instant::now();
        {
            let mut said = lock(&self.said);
            said.retain(|_, at| now.duration_since(*at) < SAY_AGAIN);
            let code = match &e {
                TransportEvent::Refused { refusal, .. } => Some(refusal.code),
                _ => None,
            };
            let key = (from, discriminant(&e), code);
            if said.len() >= SAID_MAX || said.contains_key(&key) {
                return;
            }
            said.insert(key, now);
        }
        self.event(e);
    }

    fn heard(&self, peer: RaftId) -> Arc<Heard> {
        let fresh = || Arc::new(Heard::since(self.base));
        let mut all = lock(&self.heard);
        if all.len() >= HEARD_MAX && !all.contains_key(&peer) {
            return fresh();
        }
        all.entry(peer).or_insert_with(fresh).clone()
    }

    /// Where another run of this member than the one that connects is heard just now: the
    /// one is a copy of the other. What answers at the member's own address is the
    /// member; if nothing does, whoever was here first.
    fn another(&self, member: RaftId, instance: u64) -> Option<String> {
        if instance == 0 {
            return None;
        }
        let limit = self.config.silent_after;
        if let Some(peer) = lock(&self.peers).get(&member)
            && let Some(known) = peer.lanes.iter().find_map(|l| l.answers(limit))
        {
            return (known != instance).then(|| peer.addr.clone());
        }
        let at = self.inbound.another(member, instance, limit);
        at.map(|at| at.to_string())
    }

    /// A connection to this peer was silent while a new one is answered: the others are looked
    /// at more strictly.
    fn doubt(&self, peer: RaftId) {
        if let Some(p) = lock(&self.peers).get(&peer) {
            p.lanes.iter().for_each(|l| l.doubt());
        }
    }

    /// Somebody showed that it is there: if it is a peer, waiting links to it try
    /// at once.
    fn came(&self, from: RaftId, ip: IpAddr) {
        if let Some(p) = lock(&self.peers).get(&from) {
            p.lanes.iter().for_each(|l| l.kick());
            self.inbound.was_seen(from, ip);
        }
    }
}

/// The transport. See the module's words. Dropping it stops it.
pub struct TcpNetwork {
    shared: Arc<Shared>,
    runtime: Handle,
    local: SocketAddr,
    accepting: AbortHandle,
}

impl TcpNetwork {
    /// Listens and begins to take connections. To be called inside a tokio
    /// runtime that has I/O and time enabled.
    pub fn bind(config: TcpConfig) -> Result<Arc<TcpNetwork>, BindError> {
        let runtime = Handle::try_current().map_err(|_| BindError::NoRuntime)?;
        let other = |e: std::io::Error| BindError::Other {
            addr: config.listen.clone(),
            why: e.to_string(),
        };
        let listener = listen::listen(&config.listen, DEFAULT_PORT)?;
        let local = listener.local_addr().map_err(other)?;
        let shared = Arc::new(Shared {
            config,
            // Without random numbers it is not told from a copy.
            instance: getrandom::u64().unwrap_or(0),
            mode: watch::Sender::new(Mode::default()),
            inbox: Inbox::default(),
            inbound: InboundTable::default(),
            asking: Semaphore::new(ASKING_AT_ONCE),
            admitting: Arc::new(Semaphore::new(ADMITTING_AT_ONCE)),
            peers: Mutex::default(),
            heard: Mutex::default(),
            said: Mutex::default(),
            base: Instant::now(),
        });
        let accepting = runtime
            .spawn(accept::accept_all(shared.clone(), listener))
            .abort_handle();
        Ok(Arc::new(TcpNetwork {
            shared,
            runtime,
            local,
            accepting,
        }))
    }

    /// Where it listens; with the port taken if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn change_mode(&self, change: impl FnOnce(&mut Mode)) {
        self.shared.mode.send_modify(change);
        self.shared.inbound.abort_all();
    }
}

impl Network for TcpNetwork {
    fn send(&self, to: RaftId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        if frame.len() > FRAME_MAX {
            return Err(SendError::TooLarge {
                to,
                len: frame.len(),
                limit: FRAME_MAX,
            });
        }
        if self.shared.config.security.cut_off() {
            return Err(SendError::Disconnected { to, lane });
        }
        let link = match lock(&self.shared.peers).get(&to) {
            Some(p) => p.lanes[lane.index()].clone(),
            None => return Err(SendError::UnknownPeer { to }),
        };
        link.send(frame, self.shared.config.queue_bytes[lane.index()])
    }

    fn set_peers(&self, mut wanted: BTreeMap<RaftId, String>) {
        wanted.remove(&self.shared.who().raft_id);
        let mut peers = lock(&self.shared.peers);
        if self.shared.mode.borrow().stopped {
            return;
        }
        let mut gone = Vec::new();
        peers.retain(|id, p| {
            let keep = wanted.get(id) == Some(&p.addr);
            if !keep {
                p.tasks.iter().for_each(AbortHandle::abort);
            }
            if !wanted.contains_key(id) {
                gone.push(*id);
            }
            keep
        });
        self.shared.inbound.end_of(&gone);
        lock(&self.shared.heard).retain(|id, _| wanted.contains_key(id));
        self.shared
            .inbound
            .keep_homes(|id| wanted.contains_key(&id));
        for (id, addr) in wanted {
            if peers.contains_key(&id) {
                continue;
            }
            // A name is known when a link to it stands.
            let ip = parse_address(&addr, DEFAULT_PORT).ok().and_then(|a| a.ip());
            self.shared.inbound.lives(id, ip);
            let lanes = Lane::ALL.map(|lane| Arc::new(OutLink::new(id, lane, addr.clone())));
            let tasks = [0, 1, 2].map(|i| {
                let link = lanes[i].clone();
                let seed = self.shared.config.seed ^ id.rotate_left(17) ^ i as u64;
                self.runtime
                    .spawn(out::keep_on(self.shared.clone(), link, seed))
                    .abort_handle()
            });
            peers.insert(id, Peer { addr, lanes, tasks });
        }
    }

    fn recv(&self) -> BoxFuture<'_, Option<Inbound>> {
        Box::pin(self.shared.inbox.recv())
    }

    fn try_recv(&self) -> Option<Inbound> {
        self.shared.inbox.try_recv()
    }

    fn request(
        &self,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, NetError>> {
        let who = self.shared.who().clone();
        let addr = addr.to_owned();
        let security = self.shared.config.security.clone();
        let mut mode = self.shared.mode.subscribe();
        Box::pin(async move {
            let closed = |m: Mode| if m.stopped { "stopped" } else { "cut off" };
            let now = *mode.borrow_and_update();
            if now.closed() {
                return Err(NetError::Closed(closed(now)));
            }
            tokio::select! {
                r = request::request(&addr, &who, &security, body, timeout) => r,
                ended = mode.wait_for(|m| m.closed()) => {
                    Err(NetError::Closed(ended.map_or("stopped", |m| closed(*m))))
                }
            }
        })
    }

    fn peers_status(&self) -> BTreeMap<RaftId, LinkStatus> {
        let peers = lock(&self.shared.peers);
        peers
            .iter()
            .map(|(id, p)| {
                let mut s = LinkStatus {
                    addr: p.addr.clone(),
                    ..LinkStatus::default()
                };
                for (i, link) in p.lanes.iter().enumerate() {
                    let (up, queued, error) = link.status();
                    s.up[i] = up;
                    s.queued_bytes += queued;
                    s.last_error = s.last_error.or(error);
                }
                let displaced: Option<Vec<_>> = p.lanes.iter().map(|l| l.displaced()).collect();
                s.displaced = displaced.and_then(|all| all.into_iter().min());
                let heard = self.shared.heard(*id);
                s.silent = heard.silent();
                s.rtt = heard.last_rtt();
                (*id, s)
            })
            .collect()
    }

    fn set_isolated(&self, isolated: bool) {
        self.change_mode(|m| m.isolated = isolated);
    }

    fn stop(&self) {
        self.change_mode(|m| m.stopped = true);
        self.accepting.abort();
        for (_, p) in std::mem::take(&mut *lock(&self.shared.peers)) {
            p.tasks.iter().for_each(AbortHandle::abort);
        }
        self.shared.inbox.close();
    }
}

impl Drop for TcpNetwork {
    fn drop(&mut self) {
        self.stop();
    }
}
