//! What the node sees of the order: the [`Order`] trait, its data and its errors.
//!
//! Nothing here knows the consensus library. The engine in
//! [`engine`](crate::engine) is one implementation; another one can stand
//! behind the same trait.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use dromon_writeset::Uuid;
use serde::{Deserialize, Serialize};

use crate::checked::Sums;
use crate::sequencer::Committed;

/// A member's identity in the log: random, and as old as the member's log.
///
/// A node that loses its log (or never had a durable one) comes back under a
/// new id; reusing an old one would let it vote against what it has forgotten.
pub type RaftId = u64;

/// The place of an entry in the log and the leadership under which it was made.
///
/// Ordered as the consensus orders them: of two logs the one whose last entry is the
/// greater has all that was committed in the other.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogId {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// The leader that made the entry.
    pub leader: RaftId,
    /// Index in the log; the first entry after a bootstrap has index 1.
    pub index: u64,
}

impl LogId {
    /// The leadership under which the entry was made.
    pub const fn leadership(&self) -> Leadership {
        Leadership {
            term: self.term,
            leader: self.leader,
        }
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}/{}", self.term, self.leader, self.index)
    }
}

/// Who leads, and when. A term may have several leaders, one after the other: a node
/// of a higher id can take over the term that another one has won.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Leadership {
    /// In which term.
    pub term: u64,
    /// Who.
    pub leader: RaftId,
}

impl Leadership {
    /// The incarnation of the cluster that it belongs to.
    pub const fn incarnation(&self) -> u32 {
        incarnation(self.term)
    }
}

/// One member as the node wants it, or as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Where the member's order transport listens: `host:port`.
    pub addr: String,
    /// Whether the member counts for majorities. A non-voter stores the log too.
    pub voter: bool,
}

/// The members of the log at some place in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The entry that made it so; `None` before the first.
    pub log_id: Option<LogId>,
    /// Sets of voters: one, or two while a change is under way (an entry needs
    /// a majority in each of them).
    pub configs: Vec<std::collections::BTreeSet<RaftId>>,
    /// Every member's address, voters and others.
    pub addrs: BTreeMap<RaftId, String>,
}

impl Members {
    /// Whether `id` votes in any of the configurations.
    pub fn is_voter(&self, id: RaftId) -> bool {
        self.configs.iter().any(|c| c.contains(&id))
    }

    /// Every voter of every configuration, in id order.
    pub fn voters(&self) -> std::collections::BTreeSet<RaftId> {
        self.configs.iter().flatten().copied().collect()
    }
}

/// Everything a node needs to continue from one place of the log.
///
/// `sequencer` and `node` are opaque here: the encoded
/// [`Sequencer`](crate::sequencer::Sequencer) and the node's own state, both
/// as of just after the entry at `log_id` was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last entry contained in the state.
    pub log_id: LogId,
    /// The members as of that entry.
    pub members: Members,
    /// Encoded dedupe state; empty means a fresh one.
    pub sequencer: Bytes,
    /// The node's own state.
    pub node: Bytes,
}

/// How an engine begins.
#[derive(Clone, Debug)]
pub enum Start {
    /// Begin a new log of which this node is the only member.
    ///
    /// `genesis` is the node state of the first checkpoint (index 0), so that
    /// every later start and every joiner finds one. What the log held before
    /// is erased.
    Bootstrap {
        /// Node state before the first entry.
        genesis: Bytes,
        /// The term of the last entry of the log that this one replaces, if
        /// there was one: the new one is of a later incarnation.
        after: Option<u64>,
    },
    /// Begin an empty log just behind `checkpoint` and wait to be added by the
    /// leader. What the log held before is erased.
    Join {
        /// A member's checkpoint.
        checkpoint: Checkpoint,
        /// The leader's term now: the checkpoint may be of an earlier
        /// incarnation.
        term: u64,
    },
    /// Continue with the log as it is, from its newest checkpoint; everything
    /// committed behind the checkpoint is delivered again.
    Resume,
}

/// The incarnation of a cluster, counted up by every forced recovery
/// ([`Order::go_alone`]): the upper half of the term.
///
/// Engines of different incarnations do not listen to one another, so that
/// those a forced recovery left behind can neither depose its leader nor be
/// led by it; they must join anew.
pub const fn incarnation(term: u64) -> u32 {
    (term >> 32) as u32
}

/// Whether the leader waits a moment for more to write at once (`gather.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathering {
    /// Each batch is written as it comes.
    Never,
    /// Where it brings something.
    Always,
    /// The same, while the engine's thread has to wait for a core.
    Auto,
}

/// What the engine is told at start. Durations are positive; the network's
/// round trip should be well below `heartbeat`.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Separates clusters that share a network by mistake: peers with another
    /// name are refused.
    pub cluster: String,
    /// Id to take at [`Start::Bootstrap`] and [`Start::Join`]; must be fresh
    /// and random. [`Start::Resume`] keeps the one saved in the log.
    pub fresh_id: RaftId,
    /// The origin under which own messages travel; fresh at every start.
    pub origin: Uuid,
    /// Where the other members reach this node's transport: `host:port`.
    pub addr: String,
    /// How often a leader speaks to each member.
    pub heartbeat: Duration,
    /// A member that hears no leader for this long (at least) stands for election.
    pub election_min: Duration,
    /// The random upper bound that goes with `election_min`; larger than it.
    pub election_max: Duration,
    /// How long a leader counts as primary after a majority last answered it.
    /// Must be at most `election_min`.
    pub lease: Duration,
    /// How often [`NodeHandler::tick`] is called.
    pub tick: Duration,
    /// An own message that has not come back after this long is sent again.
    pub resend: Duration,
    /// Own messages waiting to be ordered, in bytes; above it `propose` refuses.
    pub pending_max: usize,
    /// Newest log entries kept in memory, in bytes, for delivery and for
    /// members that keep up; older ones are read from the log's files.
    pub cache_max: usize,
    /// What a leader has appended and its own disk has not stored yet, in bytes: above it,
    /// it takes nothing more for the moment.
    pub unstored_max: usize,
    /// Bodies above this travel in pieces of this size, in bytes.
    pub piece: usize,
    /// What part of the time pieces may take while others order small
    /// messages; 1 holds nothing back.
    pub bulk_share: f64,
    /// Whether this node, as leader, waits a moment for more to write at once.
    pub gather: Gathering,
    /// Seed of the random election times; `None` takes one from the system.
    /// The same seed, inputs and paused clock give the same run.
    pub seed: Option<u64>,
    /// Whether acknowledging an entry waits for the disk. If not, a restart
    /// must not use [`Start::Resume`].
    pub durable: bool,
    /// What of the log its files should not let go of: for who opens them.
    pub soon: dromon_log::SoonRead,
}

impl EngineConfig {
    /// The settings for a local network: heartbeats every 100 ms, elections
    /// after 1 to 2 s, lease 900 ms.
    pub fn lan(cluster: &str, fresh_id: RaftId, origin: Uuid, addr: &str) -> Self {
        EngineConfig {
            cluster: cluster.to_owned(),
            fresh_id,
            origin,
            addr: addr.to_owned(),
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(1000),
            election_max: Duration::from_millis(2000),
            lease: Duration::from_millis(900),
            tick: Duration::from_millis(100),
            resend: Duration::from_millis(1000),
            pending_max: 512 << 20,
            cache_max: 64 << 20,
            unstored_max: 64 << 20,
            piece: 64 << 10,
            bulk_share: 1.0,
            gather: Gathering::Never,
            seed: None,
            durable: true,
            soon: dromon_log::SoonRead::default(),
        }
    }
}

/// What the leader knows of one other member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Last index the member has stored durably, as far as the leader knows.
    pub matched: u64,
    /// How long the member has not answered; `None` if it never did.
    pub silent: Option<Duration>,
}

/// A picture of the engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderStatus {
    /// This member's id.
    pub id: RaftId,
    /// Whether this node may count itself to the primary component now.
    /// Decides about waiting and refusing only; safety never depends on it.
    pub primary: bool,
    /// The leader this node follows, with its address.
    pub leader: Option<(RaftId, String)>,
    /// Whether this node leads and has been confirmed by a majority.
    pub is_leader: bool,
    /// The current term.
    pub term: u64,
    /// First index still in the own log.
    pub first_log: u64,
    /// The last entry in the own log, committed or not.
    pub last: LogId,
    /// Last index that the own log has durably.
    pub durable: u64,
    /// Last index known to be committed.
    pub committed: u64,
    /// Last index handed out by `next_committed`.
    pub delivered: u64,
    /// The members by the newest membership entry in the log, committed or not.
    pub members: Members,
    /// Members of the newest committed membership or of a later one: whoever leads
    /// next may need the answer of any of these.
    pub in_force: BTreeSet<RaftId>,
    /// Members this node, as leader, watches. Empty on followers.
    pub peers: BTreeMap<RaftId, PeerStatus>,
    /// What is left of the primary lease.
    pub lease_left: Duration,
    /// Own messages proposed and not yet delivered: how many.
    pub pending: usize,
    /// The same in bytes.
    pub pending_bytes: usize,
    /// How long this engine's thread waited for a core lately, on average, each
    /// time it had something to do. Zero unless [`Gathering::Auto`].
    pub core_wait: Duration,
    /// Messages that came while this node, as leader, waited for more to write.
    pub gathered: u64,
    /// What keeps the own log from going on as it should, in sentences; it goes on all the same.
    pub log_held_up: Option<String>,
    /// What the own log took to store something lately, if electing a leader takes so long that this may be why.
    pub log_too_slow: Option<Duration>,
    /// The last entry of the own log that another member needs and that cannot be read, and why.
    pub unreadable: Option<(u64, String)>,
    /// Why the engine is dead, if it is. Nothing revives it but a new start.
    pub failed: Option<String>,
}

impl OrderStatus {
    /// The leadership of this node, if it leads.
    pub const fn leads(&self) -> Leadership {
        Leadership {
            term: self.term,
            leader: self.id,
        }
    }
}

/// Why the order did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Too much of our own waits to be ordered.
    #[error(
        "{bytes} bytes of this node's messages wait to be ordered, more than the limit of {limit}; \
         nothing was sent: wait and try again"
    )]
    Full {
        /// Bytes waiting.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The engine was stopped.
    #[error("the ordering engine of this node was stopped; nothing more can be ordered by it")]
    Stopped,
    /// The engine died.
    #[error(
        "the ordering engine of this node failed ({0}); this node must leave the cluster and start again"
    )]
    Failed(String),
    /// No majority confirmed in time.
    #[error(
        "no majority confirmed within {0:?}; this node may be cut off from the primary component"
    )]
    NoMajority(Duration),
    /// A node did not answer in time.
    #[error("no answer from {addr} within {timeout:?}")]
    Timeout {
        /// Who was asked.
        addr: String,
        /// How long.
        timeout: Duration,
    },
    /// A node could not be reached or broke off.
    #[error("cannot talk to {addr}: {why}")]
    Unreachable {
        /// Who was asked.
        addr: String,
        /// What went wrong.
        why: String,
    },
    /// The entries asked for are gone from the log.
    #[error("the log of this node begins at index {first}, after the wanted index {wanted}")]
    Purged {
        /// First index wanted.
        wanted: u64,
        /// First index there is.
        first: u64,
    },
    /// The engine did not go on alone in time.
    #[error(
        "this node's ordering engine did not go on alone within {0:?}: its disk may hang. When the disk answers it still goes on alone; unless that is wanted, stop this server before another node is made primary"
    )]
    StillNotAlone(Duration),
    /// What going on alone was decided on is not so any more.
    #[error(
        "this node has heard of the others since it was looked at (it is primary again, or its term or the end of its log \
         is another one): it does not go on alone. Look again, and try again if it is still wanted"
    )]
    NotAsSeen,
    /// The log could not be used.
    #[error("the log of this node cannot be used: {0}")]
    Log(String),
    /// What the log has stored is not what was written to it.
    #[error("the log of this node is damaged: {0}")]
    Damaged(String),
    /// A body is not what it had to be.
    #[error(
        "what was to be sent is not what was handed in (its checksum differs); nothing was sent"
    )]
    Spoilt,
    /// What was asked makes no sense now.
    #[error("{0}")]
    Refused(String),
}

/// A boxed future, for the callers that live inside a runtime (the simulation).
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Called once with the outcome, on the order thread: must be quick.
pub type Done<T> = Box<dyn FnOnce(Result<T, OrderError>) + Send>;

/// How much longer than its timeout a blocking call waits for the engine to
/// say that the time is up, before it says so itself.
const GRACE: Duration = Duration::from_secs(2);

/// One total order among the members.
///
/// Every method may be called from any thread. Methods without a timeout do
/// not wait, except where they say that they wait for the disk. [`stop`] ends
/// the engine and waits; dropping the last handle ends it in the background.
///
/// [`stop`]: Order::stop
pub trait Order: Send + Sync {
    /// Enqueues a message of this node; returns how many this makes under this
    /// origin (1, 2, 3, …). It is delivered exactly once, on every member, this
    /// one included, however often leaders change; unless this node leaves
    /// before. Messages up to [`EngineConfig::piece`] bytes keep their order
    /// among themselves; they pass larger ones.
    ///
    /// The origin must be registered with the
    /// [`Sequencer`](crate::sequencer::Sequencer)s (its Join delivered) before
    /// the first call, or the message is dropped everywhere.
    fn propose(&self, kind: u8, tag: u64, body: Bytes) -> Result<u64, OrderError>;

    /// The same for a body that lies in a file, where it may change: it goes only if it is what
    /// `sums` say. A large one is compared as its pieces are sent; if it is something else, it is
    /// never delivered anywhere, and [`NodeHandler::spoilt`] is called instead.
    fn propose_checked(
        &self,
        kind: u8,
        tag: u64,
        body: Bytes,
        sums: Sums,
    ) -> Result<u64, OrderError>;

    /// Takes the own message of this `kind` and `tag` back; with a tag that several
    /// have, the first. True: it was never sent to anybody and is never delivered.
    /// False: there is none that waits unsent, so it may be ordered, now or later.
    ///
    /// Without a majority in reach, as far as this node knows (its lease, its
    /// links), what is proposed waits unsent; it is sent when there is one again.
    fn withdraw(&self, kind: u8, tag: u64) -> bool;

    /// Forgets every own message not yet delivered and continues under a new
    /// origin, numbering from 1. Those forgotten may still be ordered.
    fn set_origin(&self, origin: Uuid);

    /// Changes [`EngineConfig::bulk_share`].
    fn set_bulk_share(&self, share: f64);

    /// Whether the pieces of own large messages wait for now, as somebody lacks much of the log. Small
    /// ones go on.
    fn hold_pieces(&self, held: bool);

    /// The next committed entries in log order, without gaps, at most `max`;
    /// waits up to `timeout` for the first one. Only entries the own log has
    /// durably come out. For one caller: the delivery thread. After a stop or
    /// a failure (see the status) nothing comes any more.
    fn next_committed(&self, max: usize, timeout: Duration) -> Vec<Committed>;

    /// Resolves when `next_committed` has something to return. For callers
    /// inside the runtime, which must not block: await this, then call
    /// `next_committed` with a zero timeout.
    fn committed_ready(&self) -> BoxFuture<'static, ()>;

    /// Asks for an index such that everything acknowledged anywhere before
    /// this call is at or below it, as confirmed by a majority after the call.
    /// The outcome goes to `done`.
    fn read_index_then(&self, timeout: Duration, done: Done<u64>);

    /// [`read_index_then`](Order::read_index_then) for callers that may block.
    fn read_index(&self, timeout: Duration) -> Result<u64, OrderError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.read_index_then(
            timeout,
            Box::new(move |r| {
                let _ = tx.send(r);
            }),
        );
        match rx.recv_timeout(timeout + GRACE) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(OrderError::NoMajority(timeout)),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(OrderError::Stopped),
        }
    }

    /// Says which members there should be. Whoever leads makes it so, one
    /// change at a time, retrying for ever; a later call replaces the earlier.
    /// An empty map means nobody has said yet: nothing is changed. It is taken to
    /// follow from all entries handed out before the newest call that asked for
    /// more ([`next_committed`](Order::next_committed),
    /// [`committed_ready`](Order::committed_ready)); a leader does nothing about a
    /// wish that is older than its leadership or than the members' last change.
    fn set_desired(&self, members: BTreeMap<RaftId, Desired>);

    /// The member `id` was found at `addr`, wherever the log has it: it is tried there, if
    /// no link to it stands. For members only, and for some seconds.
    fn found_at(&self, id: RaftId, addr: &str);

    /// The other members to which a link stands, and at which address, whatever the log
    /// says.
    fn linked(&self) -> BTreeMap<RaftId, String>;

    /// How long the other members have refused this node, as they hear another running one of the same identity, and what
    /// one of them says. `None`: none does, or a link to one of them stands.
    fn displaced(&self) -> Option<(Duration, String)>;

    /// This node takes nothing more from the log: it was evicted, or stops. Its
    /// log still votes while the members count it; but whenever it leads, it hands
    /// the lead to another member and changes nothing itself. Until the engine ends.
    fn stand_down(&self);

    /// Saves the state after the entry at `index`, which must have been
    /// handed out by `next_committed` already. From the delivery thread; waits
    /// for the disk.
    fn save_checkpoint(&self, index: u64, sequencer: Bytes, node: Bytes) -> Result<(), OrderError>;

    /// Indexes of the checkpoints in the log, ascending.
    fn checkpoints(&self) -> Result<Vec<u64>, OrderError>;

    /// The newest checkpoint at or below `at_most`, or the newest of all.
    fn load_checkpoint(&self, at_most: Option<u64>) -> Result<Option<Checkpoint>, OrderError>;

    /// Bytes of the entries below `index` that the own log holds, about.
    fn log_bytes_before(&self, index: u64) -> u64;

    /// Drops the checkpoint at `index`, if there is one; never the newest.
    fn drop_checkpoint(&self, index: u64) -> Result<(), OrderError>;

    /// Drops log and checkpoints that are not needed any more to start from
    /// the newest checkpoint at or below `index`.
    fn purge_to(&self, index: u64) -> Result<(), OrderError>;

    /// Reads entries `from..=to` again from the log, at most about `max_bytes`
    /// (but at least one entry). Only what was committed may be asked for.
    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<Committed>, OrderError>;

    /// The same of what is stored, whether it was committed or not.
    fn read_stored(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Result<Vec<Committed>, OrderError>;

    /// The engine's state now.
    fn status(&self) -> OrderStatus;

    /// Asks the node at `addr`, member or not; its [`NodeHandler::request`]
    /// answers. The outcome goes to `done`.
    fn request_then(&self, addr: &str, body: Bytes, timeout: Duration, done: Done<Bytes>);

    /// [`request_then`](Order::request_then) for callers that may block.
    fn request(&self, addr: &str, body: Bytes, timeout: Duration) -> Result<Bytes, OrderError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.request_then(
            addr,
            body,
            timeout,
            Box::new(move |r| {
                let _ = tx.send(r);
            }),
        );
        match rx.recv_timeout(timeout + GRACE) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(OrderError::Timeout {
                addr: addr.to_owned(),
                timeout,
            }),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(OrderError::Stopped),
        }
    }

    /// Sends `body` to every other member, once, unordered, best effort.
    fn cast(&self, body: Bytes);

    /// Asks the leader (this node or another) to hand leadership to `to`, or
    /// to the most advanced other voter. Best effort; watch the status.
    fn transfer_leader(&self, to: Option<RaftId>);

    /// Makes this node the only member, without a majority's consent: a new
    /// incarnation of the cluster, which keeps everything in this node's log.
    /// Answers when that is durable. What others have and this log has not is
    /// given up; they have to join anew.
    ///
    /// `seen` is the status on which that was decided. If the node has become
    /// primary since, or its term or the end of its log is another one, it is part
    /// of something that lives: nothing is done ([`OrderError::NotAsSeen`]).
    ///
    /// Once it has gone on alone, it is all that is wanted of the members, and what
    /// [`set_desired`](Order::set_desired) says of those that were left behind does not
    /// count any more: they come back under other ids.
    fn go_alone_then(&self, seen: &OrderStatus, done: Done<()>);

    /// [`go_alone_then`](Order::go_alone_then), waiting for the answer. What is
    /// not done within `timeout` may still be done, or refused, later: `done` gets the
    /// answer first, and whenever it comes.
    fn go_alone(
        &self,
        seen: &OrderStatus,
        timeout: Duration,
        done: Done<()>,
    ) -> Result<(), OrderError> {
        let (tx, rx) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome: Result<(), OrderError>| {
            done(outcome.clone());
            // The asker waits below, or has given up.
            let _ = tx.send(outcome);
        });
        self.go_alone_then(seen, done);
        match rx.recv_timeout(timeout) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(OrderError::StillNotAlone(timeout)),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(OrderError::Stopped),
        }
    }

    /// Stops the engine, closes the log cleanly and waits for both.
    fn stop(&self);
}

/// The other side of a request: answers it once.
///
/// Dropped without an answer, the asker is told so at once.
pub struct Reply(Option<Box<dyn FnOnce(Option<Bytes>) + Send>>);

impl Reply {
    /// Makes a reply that hands the answer (or `None` when dropped) to `f`.
    pub fn new(f: impl FnOnce(Option<Bytes>) + Send + 'static) -> Self {
        Reply(Some(Box::new(f)))
    }

    /// Answers, from any thread.
    pub fn send(mut self, body: Bytes) {
        if let Some(f) = self.0.take() {
            f(Some(body));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f(None);
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// What the node does for the engine. Called on the order thread: every method
/// must be quick and must never block or call a blocking method of [`Order`].
pub trait NodeHandler: Send + Sync {
    /// A node (member or not) asks something.
    fn request(&self, from: &str, body: Bytes, reply: Reply);

    /// A member's [`Order::cast`] or tick came in.
    fn message(&self, from: RaftId, body: Bytes);

    /// Called every [`EngineConfig::tick`]; what it returns is cast to all
    /// other members.
    fn tick(&self) -> Option<Bytes>;

    /// The own message of this `kind` and `tag` was not what it had to be
    /// ([`Order::propose_checked`]): it is not ordered, now or later. Must not wait.
    fn spoilt(&self, _kind: u8, _tag: u64) {}

    /// This node leads, and `member` has not got entry `index` any more, which it had said was
    /// stored: its disk lost it, or its log was put back from a copy. It is sent again what it lacks.
    fn went_back(&self, _member: RaftId, _index: u64) {}

    /// This node leads, its heartbeats are answered, and nothing else of it was stored by anybody for long: it hands
    /// over. Must not wait.
    fn reaches_nobody(&self) {}

    /// The status changed in something else than counters and times.
    fn status(&self, status: &OrderStatus);

    /// The leader's log does not reach back to this node's position any more:
    /// the node must stop, transfer the state anew and start with
    /// [`Start::Join`]. May be called more than once.
    fn position_lost(&self);
}
