//! The network as the engine sees it, real ([`tcp`](crate::tcp)) or simulated.
//!
//! What a [`Network`] promises, and what it does not:
//!
//! * Frames of one (sender, [`Lane`], receiver) arrive in the order sent, each
//!   at most once, unchanged.
//! * Whatever was on its way when a link broke may be lost. A break shows at
//!   both ends as an [`Inbound::Link`] of a new epoch or with `up == false`
//!   at the sender; the layer above sends again what matters.
//! * Lanes do not wait for one another: a vote passes any amount of bulk.
//! * Nothing blocks: `send` puts the frame into a queue that is bounded in
//!   bytes per (peer, lane), or says why not.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::types::{BoxFuture, RaftId, Reply};

/// Which of the parallel links to a peer a frame takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Small and urgent: votes, heartbeats, acknowledgements, forwarded
    /// proposals that are small.
    Raft,
    /// Everything heavy: log entries with their payload.
    Bulk,
    /// The node's own unordered messages.
    Node,
}

impl Lane {
    /// Every lane, in the order of their numbers.
    pub const ALL: [Lane; 3] = [Lane::Raft, Lane::Bulk, Lane::Node];

    /// The lane's number, also on the wire.
    pub fn index(self) -> usize {
        match self {
            Lane::Raft => 0,
            Lane::Bulk => 1,
            Lane::Node => 2,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lane::Raft => "raft",
            Lane::Bulk => "bulk",
            Lane::Node => "node",
        })
    }
}

/// One message for a peer, as the parts that lie one behind the other on the
/// wire: a header made for it and bodies that are not copied.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    parts: Vec<Bytes>,
    len: usize,
}

impl Frame {
    /// A frame of no bytes.
    pub fn new() -> Self {
        Frame::default()
    }

    /// Adds `part` at the end.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Bytes in all parts together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts, in order; none is empty.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The frame as its receiver sees it. Copies if there are several parts.
    pub fn to_bytes(&self) -> Bytes {
        if let [one] = self.parts.as_slice() {
            return one.clone();
        }
        let mut all = BytesMut::with_capacity(self.len);
        for p in &self.parts {
            all.extend_from_slice(p);
        }
        all.freeze()
    }
}

impl From<Bytes> for Frame {
    fn from(part: Bytes) -> Self {
        let mut f = Frame::new();
        f.push(part);
        f
    }
}

impl FromIterator<Bytes> for Frame {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut f = Frame::new();
        for p in parts {
            f.push(p);
        }
        f
    }
}

/// What comes out of the network.
#[derive(Debug)]
pub enum Inbound {
    /// A peer's frame.
    Frame {
        /// The peer, as it named itself when the link was made.
        from: RaftId,
        /// The lane it came on.
        lane: Lane,
        /// What was sent, in one piece.
        body: Bytes,
    },
    /// Somebody, member or not, asks.
    Request {
        /// The asker's advertised address, or where the connection came from.
        from_addr: String,
        /// The question.
        body: Bytes,
        /// Where the answer goes; dropped, the asker is told there is none.
        reply: Reply,
    },
    /// The own link to a peer changed. Several changes may come as one; a new
    /// epoch means that frames sent under an older one may be lost.
    Link {
        /// The other end.
        peer: RaftId,
        /// Which of the links.
        lane: Lane,
        /// Counts the times this link was made, from 1.
        epoch: u64,
        /// Whether it stands now.
        up: bool,
    },
}

/// A way that carries fewer bytes a second than this counts as a dead one.
pub(crate) const SLOWEST: u32 = 64 << 10;

/// Why a frame was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue to this peer is full.
    #[error(
        "{queued} bytes already wait for member {to:x} on the {lane} lane (limit {limit}); \
         the frame was not queued: the member or the way to it is slow"
    )]
    Full {
        /// The peer.
        to: RaftId,
        /// The lane.
        lane: Lane,
        /// Bytes that wait.
        queued: usize,
        /// The queue's limit.
        limit: usize,
    },
    /// There is no connection just now.
    #[error("there is no connection to member {to:x} on the {lane} lane; the frame was not queued")]
    Disconnected {
        /// The peer.
        to: RaftId,
        /// The lane.
        lane: Lane,
    },
    /// Nobody said where this peer is.
    #[error("no address is known for member {to:x}; the frame was not queued")]
    UnknownPeer {
        /// The peer.
        to: RaftId,
    },
    /// No frame may be as large.
    #[error(
        "a frame of {len} bytes for member {to:x} is above the limit of {limit}; it was not queued"
    )]
    TooLarge {
        /// The peer.
        to: RaftId,
        /// The frame's length.
        len: usize,
        /// The limit.
        limit: usize,
    },
}

/// Why there is no answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] crate::address::AddressError),
    /// The name has no address.
    #[error(
        "cannot resolve the host name in {addr}: {why}; check the name and this machine's resolver"
    )]
    Resolve {
        /// The address asked for.
        addr: String,
        /// What the resolver said.
        why: String,
        /// It is this host's resolver that failed: of the name it said nothing.
        here: bool,
    },
    /// Nobody listens there.
    #[error(
        "{addr} refused the connection: no node listens there; is it running, and is the port right?"
    )]
    Refused {
        /// Who was asked.
        addr: String,
    },
    /// The network has no way there.
    #[error("{addr} cannot be reached: {why}; check the network between the nodes")]
    Unreachable {
        /// Who was asked.
        addr: String,
        /// What the operating system said.
        why: String,
        /// This host has no way to anybody there: whether somebody is there it does not tell.
        here: bool,
    },
    /// This node had not what asking takes.
    #[error("{addr} could not be asked: {why}; this is about the node that asks")]
    NotAsked {
        /// Who was to be asked.
        addr: String,
        /// What is missing here.
        why: String,
    },
    /// Its name is still being looked up.
    #[error(
        "{addr} could not be asked: the resolver did not answer within {limit:?}; this is about the node that asks"
    )]
    Resolving {
        /// Who was to be asked.
        addr: String,
        /// The limit.
        limit: Duration,
    },
    /// It took too long.
    #[error(
        "{addr} did not {what} within {timeout:?}; it may be overloaded, stopped, or behind a firewall"
    )]
    TimedOut {
        /// Who was asked.
        addr: String,
        /// What did not happen in time: connect, greet, answer.
        what: &'static str,
        /// Whether it had taken the connection.
        taken: bool,
        /// The limit.
        timeout: Duration,
    },
    /// The other end is a node and says no.
    #[error("{addr} refused this node: {refusal}")]
    Rejected {
        /// Who was asked.
        addr: String,
        /// Why.
        refusal: crate::wire::Refusal,
    },
    /// A node of another raft id answered there.
    #[error(
        "{addr} is now member {found:x}, not {expected:x}: the node there lost its log or another took \
         its address; the new membership will name it"
    )]
    WrongPeer {
        /// Who was asked.
        addr: String,
        /// Who should have been there.
        expected: RaftId,
        /// Who is.
        found: RaftId,
    },
    /// It asked itself: a member that is no more was there.
    #[error("{addr} is this node itself")]
    Itself {
        /// Who was asked.
        addr: String,
    },
    /// Encryption did not come about.
    #[error("no encrypted connection to {addr}: {why}")]
    NotEncrypted {
        /// Who was asked.
        addr: String,
        /// Why, and what to do.
        why: String,
        /// Whether it answered in another protocol. A node without TLS says nothing.
        other_protocol: bool,
    },
    /// The two ends could not prove the cluster's secret to each other.
    #[error("no connection to {addr}: {why}")]
    NotProven {
        /// Who was asked.
        addr: String,
        /// Why, and what to do.
        why: &'static str,
    },
    /// What came back is not ours or is damaged.
    #[error(transparent)]
    Misbehaved(#[from] crate::wire::PeerMisbehaved),
    /// The connection ended early.
    #[error("{addr} closed the connection before it answered: {why}")]
    Broken {
        /// Who was asked.
        addr: String,
        /// What was seen.
        why: String,
    },
    /// The other end has no answer to this question.
    #[error(
        "{addr} took the request but gave no answer; it is stopping or does not know the question"
    )]
    NoAnswer {
        /// Who was asked.
        addr: String,
    },
    /// The request is above what may be sent.
    #[error("a request of {len} bytes is above the limit of {limit}; it was not sent")]
    TooLarge {
        /// The request's length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A connection carries nothing any more, and a new one would.
    #[error(
        "nothing came back from {addr} for {silent:.1?} on this connection, and a new one is answered: something on the way drops what the old one carries (a firewall that forgot it, one of several paths); the new one is used from now on"
    )]
    Silent {
        /// The other end.
        addr: String,
        /// How long an answer was missing.
        silent: Duration,
    },
    /// This node has cut itself off or stopped.
    #[error("this node's own transport is {0}; nothing was sent")]
    Closed(&'static str),
}

/// Who is at an address, as far as a failed question tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nobody.
    Nobody,
    /// Nobody was looked for: this host's resolver or network is not there (yet).
    Unlooked,
    /// Its name is still being looked up: the end of that tells.
    Resolving,
    /// Another program, or a node of another cluster.
    Other,
    /// Somebody took the connection and does not speak.
    Silent,
    /// Perhaps the one who was meant: nothing shows that it is not, and it does not tell.
    Untold,
}

impl NetError {
    /// Who is where the question went.
    pub fn presence(&self) -> Presence {
        use crate::wire::{Misbehaviour, RefusalCode};
        match self {
            NetError::Resolve { here: true, .. } | NetError::Unreachable { here: true, .. } => {
                Presence::Unlooked
            }
            NetError::Resolving { .. } => Presence::Resolving,
            NetError::Address(_)
            | NetError::Resolve { .. }
            | NetError::Refused { .. }
            | NetError::Unreachable { .. }
            | NetError::TimedOut { taken: false, .. }
            | NetError::Closed(_) => Presence::Nobody,
            NetError::TimedOut { taken: true, .. } | NetError::Silent { .. } => Presence::Silent,
            NetError::WrongPeer { .. }
            | NetError::Itself { .. }
            | NetError::NotEncrypted {
                other_protocol: true,
                ..
            } => Presence::Other,
            NetError::Rejected { refusal, .. } if refusal.code == RefusalCode::WrongCluster => {
                Presence::Other
            }
            NetError::Misbehaved(by) if matches!(by.what, Misbehaviour::NotDromon { .. }) => {
                Presence::Other
            }
            NetError::NotAsked { .. }
            | NetError::Rejected { .. }
            | NetError::NotEncrypted { .. }
            | NetError::NotProven { .. }
            | NetError::Misbehaved(_)
            | NetError::Broken { .. }
            | NetError::NoAnswer { .. }
            | NetError::TooLarge { .. } => Presence::Untold,
        }
    }
}

/// What is known of the links to one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Where the peer is looked for.
    pub addr: String,
    /// Which of the own links to it stand, by [`Lane::index`].
    pub up: [bool; 3],
    /// How long ago anything came from it; `None` if nothing ever did.
    pub silent: Option<Duration>,
    /// Round trip last measured, if it was.
    pub rtt: Option<Duration>,
    /// Bytes that wait to be sent, all lanes together.
    pub queued_bytes: usize,
    /// Why there is or was no connection, newest reason; a full sentence.
    pub last_error: Option<String>,
    /// How long it has refused this node, as it hears another running one of the same identity.
    pub displaced: Option<Duration>,
}

/// The way to the other members. Object safe; every method from any thread.
pub trait Network: Send + Sync + 'static {
    /// Queues `frame` for a peer named by [`set_peers`](Network::set_peers).
    /// Does not wait. What is queued may still be lost with its link.
    fn send(&self, to: RaftId, lane: Lane, frame: Frame) -> Result<(), SendError>;

    /// Says who the peers are and where. Links to others are closed; links to
    /// new ones are made and kept up, with growing pauses between attempts.
    fn set_peers(&self, peers: BTreeMap<RaftId, String>);

    /// The next thing that came in, urgent ones first; `None` once stopped.
    /// For one caller at a time. Dropping the future loses nothing.
    fn recv(&self) -> BoxFuture<'_, Option<Inbound>>;

    /// What [`recv`](Network::recv) would return at once, if anything.
    fn try_recv(&self) -> Option<Inbound>;

    /// Asks whoever listens at `addr`, over a connection of its own, and
    /// waits for the answer to begin, for `timeout` in all, and to go on,
    /// for as long each time.
    fn request(
        &self,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, NetError>>;

    /// The links to every peer.
    fn peers_status(&self) -> BTreeMap<RaftId, LinkStatus>;

    /// Cuts this node off (all connections dropped, none made or taken), or
    /// lets it back.
    fn set_isolated(&self, isolated: bool);

    /// Closes everything; `recv` then ends.
    fn stop(&self);
}
