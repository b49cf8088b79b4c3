//! Connecting to a cluster, or founding one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_order::{EngineConfig, LogId, NodeHandler, Order, Start};
use dromon_writeset::{Seqno, Uuid};

use super::alone::named;
use super::duties::{Handler, Timings};
pub(super) use super::ids::{incarnation_uuid, random_u64, random_uuid};
use super::linked::{has_moved, missing, unlinked};
use super::open::COPY_ASKED;
use super::search::Unanswered;
use super::{Delivered, EngineError, Node, Pending, Phase, Shared, lock};
use crate::cluster::ClusterState;
use crate::digests::Digests;
use crate::electors::Weighing;
use crate::messages::{Answer, Control, Join, Need, Position, Request, encode, kind};
use crate::options::{AddressError, ClusterAddress, HostPort, OptionError, Settings};
use crate::retention::Mark;

/// What those who were found at another address have to link up, before this node may be forced
/// to go on without them.
const FOR_LINKS: Duration = Duration::from_secs(10);

/// What to do about a damaged log.
const ONLY_PLACE: &str = "It may be the only place of what was acknowledged last. Start the other nodes first, then \
                          this one as usual (without --wsrep-new-cluster): once they form a primary component, it sets \
                          its log aside by itself and takes a full copy. Only if no other node is left: keep a copy of \
                          the dromon-*.log files, move them away and found the cluster here; it goes on with what its \
                          storage engine has";

/// The node could not get into the cluster.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A file of encryption or secret cannot be used.
    #[error("{0}")]
    Security(String),
    /// The cluster address is malformed.
    #[error("wsrep_cluster_address: {0}")]
    Address(#[from] AddressError),
    /// An option in it is wrong.
    #[error("wsrep_cluster_address: {0}")]
    Option(#[from] OptionError),
    /// A witness was told to found a cluster.
    #[error(
        "a witness has no data and cannot found a cluster. Nothing was changed. Name the data nodes in its address, for \
         example gcomm://10.0.0.1,10.0.0.2; the first data node founds the cluster (--wsrep-new-cluster)"
    )]
    NothingToFound,
    /// Already connected.
    #[error("this node is connected already; it must leave first")]
    Connected,
    /// Founding a new cluster here may lose data.
    #[error(
        "It may not be safe to bootstrap the cluster from this node. It was not the last one to leave the cluster \
         and may not contain all the updates. To force cluster bootstrap with this node, edit the grastate.dat file \
         manually and set safe_to_bootstrap to 1 .{}", rather(.named)
    )]
    NotSafe {
        /// The others that the own log names.
        named: Vec<String>,
    },
    /// Nobody knows what the database contains.
    #[error(
        "the data directory belongs to history {history}, but its position is unknown after a crash. Nothing was \
         changed. Run 'mariadbd --wsrep-recover' on it (systemd's galera_recovery does), then start with \
         --wsrep-start-position=<the recovered position>"
    )]
    UnknownPosition {
        /// The history in the state file.
        history: Uuid,
    },
    /// The state file and the storage engine speak of different data.
    #[error(
        "grastate.dat says that the data here belongs to history {file}, but the storage engine stands at {engine}: a \
         cluster founded here would pass one off as the other. Nothing was changed. Write uuid: {} into grastate.dat \
         (or remove the file: then the engine's word counts) and start again; to take a full copy of a running \
         cluster instead, start without --wsrep-new-cluster", .engine.history
    )]
    OtherData {
        /// The history in the state file.
        file: Uuid,
        /// What the engine says.
        engine: Position,
    },
    /// The state file says that the data is not whole, and founding was asked for.
    #[error(
        "grastate.dat has no history (uuid 00000000-…): a full copy did not come to its end here, or this node's data \
         differed from the others'. safe_to_bootstrap: 1 does not change that, so no cluster is founded: it could lack \
         transactions that were acknowledged. Nothing was changed. If this node was the last one to stop, or is all \
         that is left, keep a copy of its data and of its dromon-*.log files, look in its log for what it said when it \
         left, and remove grastate.dat: then the storage engine's word counts. Otherwise found the cluster on the node \
         that stopped last of those whose grastate.dat has a uuid, and start this one without --wsrep-new-cluster"
    )]
    NoUsableData,
    /// Founding was asked for, and another node's log has more.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but {addr}, which this node's log names as a member, runs and has \
         more of the log ({}; here {}): a cluster founded here could lose transactions \
         that were acknowledged. Nothing was changed. Start this node without --wsrep-new-cluster: the logs of a \
         majority form the cluster again by themselves. If a majority of the nodes is gone for good, stop that node \
         and found the cluster there (safe_to_bootstrap: 1 in its grastate.dat, galera_new_cluster), then start this \
         one as usual",
        named(*.theirs), named(*.ours)
    )]
    MoreElsewhere {
        /// Who has more.
        addr: String,
        /// The last entry there.
        theirs: LogId,
        /// And here.
        ours: LogId,
    },
    /// Founding was asked for, and a member may be there that cannot be asked.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but {0}. Nothing was changed. Started without --wsrep-new-cluster, this \
         node goes on with the others as soon as a majority of the logs is there"
    )]
    Untold(String),
    /// Founding was asked for, too few of the others answer, and the flag alone is not to do.
    #[error(
        "safe_to_bootstrap is 1 in grastate.dat, but this node's log names other voters ({}), of which too few answer \
         for a majority of the logs, and dromon.found_alone=no forbids to go on without them: they may have \
         transactions that were acknowledged and are not here. Nothing was changed. Start all nodes as usual, this one \
         too, without --wsrep-new-cluster: the logs of a majority form the cluster by themselves. Only if most of them \
         are gone for good, start this one with dromon.found_alone=yes and --wsrep-new-cluster", .0.join(", ")
    )]
    TooFewAnswer(Vec<String>),
    /// The ordering engine did not start.
    #[error("the ordering engine did not start: {0}")]
    Engine(String),
    /// The own log is damaged; the others may have what it had.
    #[error("this node's log is damaged: {0} {only}", only = ONLY_PLACE)]
    Damaged(String),
    /// The same, and no others are there.
    #[error(
        "this node's log is damaged, and no primary component of other nodes was reached within {seconds} s: \
         {missing}. It may be the only place of what was acknowledged last, so nothing was changed. Start the other \
         nodes first: once they form a primary component, this node sets its log aside by itself and takes a full \
         copy. The damage: {damage}"
    )]
    DamagedAlone {
        /// How long was tried.
        seconds: u64,
        /// What each address said last.
        missing: String,
        /// What is wrong with the log.
        damage: String,
    },
    /// All who were asked answered that this node will never get in, or it cannot go on here.
    #[error("{0}")]
    Refused(String),
    /// There is nobody to ask.
    #[error(
        "wsrep_cluster_address names only this node itself ({own}), so there is no other node to join. Nothing was \
         changed. Name the other nodes there; to found a new cluster on this one, start it with --wsrep-new-cluster \
         (galera_new_cluster does)"
    )]
    OnlyItself {
        /// What the list says.
        own: String,
    },
    /// Nobody answered in time.
    #[error(
        "failed to reach primary view within {seconds} s: {missing}. Nothing was changed here. {next}"
    )]
    NoPrimary {
        /// How long was tried.
        seconds: u64,
        /// What each address said last.
        missing: String,
        /// What to do now.
        next: &'static str,
    },
    /// The database is ahead of the log it should follow.
    #[error(
        "the database stands at seqno {position}, but the cluster's log ends at {last} in the same history: joining \
         would undo transactions. Nothing was changed. To give up what only this database has, {asked} and start it again: it \
         takes a full copy. Keep the dromon-*.log files, which tell what that is", asked = COPY_ASKED
    )]
    Ahead {
        /// The database's seqno.
        position: Seqno,
        /// The last one ordered before this node joined.
        last: Seqno,
    },
    /// The own log begins after what the database contains.
    #[error(
        "the database stands at seqno {position}, but this node's log begins only at {first}: what lies between is \
         missing here. Nothing was changed. Start the other nodes first, then this one: it takes a full copy. If they wait for \
         this one's log to make a majority, {asked} and start it again: its log then votes with theirs, and its data is copied \
         anew from one of them", asked = COPY_ASKED
    )]
    LogTooShort {
        /// The database's seqno.
        position: Seqno,
        /// The log's first.
        first: Seqno,
        /// A primary component of others is there.
        others: bool,
    },
    /// The others went on without this node's log.
    #[error("the others form a primary component without this node's log")]
    Evicted,
    /// Who leads cannot send what this node needs of the log.
    #[error("{0}")]
    LogGone(String),
    /// The leader refused to order the join for all that time.
    #[error("the cluster did not order this node's join within {seconds} s: {why}")]
    JoinRefused {
        /// How long was tried.
        seconds: u64,
        /// What it said last.
        why: String,
    },
    /// The process is to end, and nobody would call disconnect: its server does so once it has started.
    #[error(
        "the server was told to stop (SIGTERM) while this node was {0}, so its start ends here. Its data and its log stay \
         as they are now, and nothing acknowledged is given up: start it again as usual"
    )]
    ToldToStop(&'static str),
    /// The own log is of another build, and may have more than the database.
    #[error(
        "{tried}this node's log was written by another build of the library (format {theirs}; this one has format {ours}), and \
         the node was not stopped in order: what was acknowledged last may be in that log and nowhere else. Nothing was \
         changed. Start this node with the build that wrote its log, and the others likewise: after a crash of all they form \
         the cluster again by themselves, started as usual. Upgrade once it runs: stop all nodes in order first. Only to give up \
         what only this log has, keep a copy of the dromon-*.log files and move them away"
    )]
    OtherBuild {
        /// What came of looking for others, a sentence; none if that was not it.
        tried: String,
        /// The log's format.
        theirs: u8,
        /// This build's.
        ours: u8,
    },
    /// The join was not ordered in time.
    #[error("the cluster did not order this node's join within {0} s; try again")]
    JoinTimeout(u64),
}

/// What to do rather than to force it, where there are others.
fn rather(named: &[String]) -> String {
    if named.is_empty() {
        return String::new();
    }
    format!(
        " Do not while they can still be started: this node's log names {} too, and what only they have would be lost. After \
         a crash or loss of power start all nodes as usual, this one too, without --wsrep-new-cluster (galera_new_cluster), in \
         any order: they form the cluster again by themselves. If all were stopped in order, found it on the one whose \
         grastate.dat says safe_to_bootstrap: 1. Only if most of them are gone for good, force it, while all that are left wait",
        named.join(", ")
    )
}

/// What a start does with the log that it finds.
#[derive(Clone, Copy)]
enum OwnLog<'a> {
    /// It goes on if the others still count it, or if nobody else answers.
    Resume,
    /// It counts for nothing: the others went on without it.
    Forget,
    /// It is damaged, as said: it makes room once others answer.
    SetAside(&'a str),
}

/// Where to begin, as some member or the own log says.
pub(super) struct Found {
    pub start: Start,
    pub state: ClusterState,
    pub need: Need,
    /// Its data is of another history under the same name: see [`crate::chain`].
    pub differs: bool,
    pub log_start: u64,
    pub leader: Option<String>,
    /// The own log goes on, and this leader counts it among the members'.
    pub counted_by: Option<String>,
    /// Others must come before there is a majority; they may take their time.
    pub needs_others: bool,
}

/// Joining may take so many times as long as it may without a sign of life, while what lies before
/// it in the log comes.
const LONG_LOG: u32 = 20;

/// How long one address may take to say who is there.
const LOOK: Duration = Duration::from_secs(1);

/// How often who waits looks whether its process is to end.
const LOOK_UP: Duration = Duration::from_millis(500);

/// What a node does whose join is not ordered yet.
const FOR_MAJORITY: &str = "waiting for a majority of the logs";

impl Node {
    /// Becomes a member of cluster `name`. Returns once the own join is
    /// ordered; appliers do the rest.
    pub fn connect(
        self: &Arc<Self>,
        name: &str,
        url: &str,
        donors: &str,
        bootstrap: bool,
    ) -> Result<(), ConnectError> {
        let ended = {
            let shared = self.shared();
            shared.final_delivered && shared.phase != Phase::Closed
        };
        if ended {
            // The server has seen the end, so it does not ask for it.
            self.disconnect();
        }
        if self.phase() != Phase::Closed {
            return Err(ConnectError::Connected);
        }
        let address = ClusterAddress::parse(url)?;
        {
            let mut options = lock(&self.options);
            let outcome = options.connect(&address)?;
            *self
                .settings
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner) =
                Arc::new(options.settings().clone());
            drop(options);
            for note in outcome.notes {
                self.note(&note.0);
            }
            for action in outcome.actions {
                self.act(action).map_err(ConnectError::Refused)?;
            }
        }
        self.secure(false).map_err(ConnectError::Security)?;
        let settings = self.settings();
        let position = self.known_position();
        let uuid = incarnation_uuid();
        let raft_id = random_u64();
        self.note(&format!("My UUID: {uuid}"));
        self.forget_sum();

        {
            let mut shared = self.shared();
            let donation_left = shared.donation_open || shared.donation_left;
            *shared = Shared::closed();
            (shared.phase, shared.donation_left) = (Phase::Connecting, donation_left);
            shared.uuid = uuid;
            shared.position = position;
            shared.donors = donors.to_owned();
            shared.cluster = name.to_owned();
            shared.address = address.clone();
        }
        self.look_at_marks(position);
        let connect = |position, log| {
            self.connect_as(
                name, &address, bootstrap, &settings, position, uuid, raft_id, log,
            )
        };
        let first = match self.forget_log.swap(false, Relaxed) {
            true => OwnLog::Forget,
            false => OwnLog::Resume,
        };
        let mut result = connect(position, first);
        if matches!(result, Err(ConnectError::Evicted)) {
            self.tries_again(
                "the others went on without this node's log; joining them as a new member",
            );
            result = connect(position, OwnLog::Forget);
        }
        if let Err(ConnectError::LogGone(why)) = &result {
            self.tries_again(&format!("{why}; asking once more where to begin"));
            result = connect(position, first);
        }
        if let Err(e @ ConnectError::LogTooShort { others: true, .. }) = &result {
            self.tries_again(&format!(
                "{e}. The others are there: joining them as a new member"
            ));
            result = connect(position, OwnLog::Forget);
        }
        if let Err(
            e @ (ConnectError::LogTooShort { others: false, .. } | ConnectError::Ahead { .. }),
        ) = &result
            && self.ends_force()
        {
            self.tries_again(&format!(
                "{e}. A cluster is to be founded here: the own log is given up"
            ));
            result = connect(position, OwnLog::Forget);
        }
        if let Err(ConnectError::Damaged(why)) = &result {
            // Without the log nothing tells whether the database belongs to the others' history.
            let why = why.clone();
            self.shared().position = Position::UNDEFINED;
            result = connect(Position::UNDEFINED, OwnLog::SetAside(&why));
        }
        self.ends_force();
        if result.is_ok() {
            // A witness was told to, once.
            self.force_primary.store(false, Relaxed);
        }
        if result.is_err() {
            if !self.was_up.load(Relaxed) {
                // Nothing has changed: the next try asks for the position again.
                self.connected_before.store(false, Relaxed);
            }
            self.close_engine();
            self.shared().phase = Phase::Closed;
        }
        result
    }

    /// One way to connect has failed, for that reason; another one follows.
    fn tries_again(&self, why: &str) {
        self.note(why);
        self.close_engine();
        let mut shared = self.shared();
        (shared.phase, shared.join_failed) = (Phase::Connecting, None);
    }

    #[allow(clippy::too_many_arguments)]
    fn connect_as(
        self: &Arc<Self>,
        name: &str,
        address: &ClusterAddress,
        bootstrap: bool,
        settings: &Settings,
        position: Position,
        uuid: Uuid,
        raft_id: u64,
        log: OwnLog<'_>,
    ) -> Result<(), ConnectError> {
        self.unless_told_to_stop("starting")?;
        let resume = matches!(log, OwnLog::Resume);
        let mut position = position;
        let mut found = if self.setup.witness && (bootstrap || address.founds()) {
            return Err(ConnectError::NothingToFound);
        } else if bootstrap || address.founds() {
            self.found_cluster(name, address, position, settings, resume)?
        } else if let Some(found) = self.witness_log(position, settings, resume)? {
            found
        } else {
            self.find_cluster(name, address, settings, position, resume, &[])?
        };
        self.settle(&mut found, &mut position);
        if matches!(found.start, Start::Bootstrap { .. }) && position.is_defined() {
            // What the database has is the beginning of the history founded here.
            position = found.state.position();
            self.shared().position = position;
        }
        let alone = found.leader.is_none() && !found.needs_others;
        let in_doubt = self.shared().in_doubt;
        let for_copy = matches!(found.start, Start::Resume) && found.need == Need::Copy;
        let position = if self.starts_anew() && found.leader.is_some() || for_copy {
            // Not to be gone on from: a full copy comes.
            self.shared().position = Position::UNDEFINED;
            Position::UNDEFINED
        } else {
            position
        };
        let config = self.engine_config(name, settings, uuid, raft_id);
        let addr = config.addr.clone();
        let keeps = self.may_be_whole(&found);
        if found.need == Need::Copy && !self.setup.witness && !keeps {
            // Unless it counts, the log is set aside or erased next. It alone tells that this data
            // may be of another incarnation: after a crash from then on nothing would.
            self.give_data_up().map_err(ConnectError::Refused)?;
        }
        if let (OwnLog::SetAside(why), Some(leader)) = (log, &found.leader) {
            self.make_room(settings, why, leader)?;
        }
        self.keep_former_log(settings, &found)?;
        self.reset_for(&found, false);
        let handler: Arc<dyn NodeHandler> = Arc::new(Handler {
            node: Arc::downgrade(self),
        });
        let order = self
            .engines
            .start(
                config,
                &settings.log_dir,
                &settings.listen.to_string(),
                found.start.clone(),
                handler,
            )
            .map_err(|e| match e {
                EngineError::Damaged(why) if found.leader.is_some() => ConnectError::Damaged(why),
                EngineError::Damaged(why) => ConnectError::Engine(format!("{why} {ONLY_PLACE}")),
                e => ConnectError::Engine(e.to_string()),
            })?;
        self.set_order(Some(order.clone()));
        self.start_service()
            .map_err(|e| ConnectError::Engine(e.to_string()))?;
        self.shared().phase = Phase::Joining;
        let mut join = Join {
            uuid,
            origin: uuid,
            name: self.setup.name.clone(),
            incoming: self.setup.incoming.clone(),
            addr,
            raft_id: order.status().id,
            segment: settings.segment,
            weight: settings.weight,
            position,
            need: found.need,
            log_start: found.log_start,
            vote_policy: settings.vote_policy,
            witness: self.setup.witness,
            stateless: settings.stateless,
        };
        self.shared().join = Some(join.clone());
        let (state, replay_to) = self.begin_state(
            &order,
            found.state,
            position,
            matches!(found.start, Start::Resume),
            found.counted_by.is_some(),
        )?;
        if state.position().seqno <= position.seqno {
            self.shared().base = Some(state.view());
        }
        self.start_delivery(&order, state, replay_to)
            .map_err(|e| ConnectError::Engine(e.to_string()))?;
        let listed = address.resolve(settings.base_port);
        if in_doubt
            && matches!(found.start, Start::Resume)
            && self.resolve_doubt(&order, name, &listed)? == Need::Copy
        {
            join.need = Need::Copy;
            join.position = Position::UNDEFINED;
            let mut shared = self.shared();
            shared.position = Position::UNDEFINED;
            shared.join = Some(join.clone());
        }
        let need = join.need;
        let limit = if found.leader.is_none() && !alone && !settings.wait_prim_timeout_given {
            // A majority of logs is needed: the others may take their time.
            Duration::from_secs(10 * 365 * 86_400)
        } else {
            settings.wait_prim_timeout.max(Duration::from_secs(10))
        };
        self.get_joined(&order, limit, join, found.leader, address, name)?;
        if self.went_alone.swap(false, Relaxed) {
            self.drop_others(&order, &self.others());
        }
        if self.setup.witness {
            self.bring_up_witness(uuid);
        } else if need == Need::Copy && keeps {
            // Until somebody is there who could give one.
        } else if need == Need::Copy {
            // Until the copy is here, what lies in the data directory is nothing.
            self.save_inconsistent();
        } else {
            self.save_running();
        }
        Ok(())
    }

    /// Starts the delivery thread.
    pub(super) fn start_delivery(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        state: ClusterState,
        again: Option<(u64, u64)>,
    ) -> std::io::Result<()> {
        let (node, order) = (self.clone(), order.clone());
        let thread = std::thread::Builder::new()
            .name(super::leave::DELIVERY.into())
            .spawn(move || {
                let run = || node.deliver_all(&order, state, again);
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                    node.inconsistent("the delivery thread failed; its message stands above");
                }
            })?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// The state to deliver from: if the database stands before the newest
    /// checkpoint, or a streaming transaction was open there, an older one, from which
    /// the log is read again up to the newest (the indexes answered).
    fn begin_state(
        &self,
        order: &Arc<dyn Order>,
        newest: ClusterState,
        position: Position,
        resume: bool,
        others: bool,
    ) -> Result<(ClusterState, Option<(u64, u64)>), ConnectError> {
        let marks = self.marks_found(order, newest.position().history)?;
        let before = marks
            .iter()
            .rev()
            .find(|m| m.seqno <= position.seqno)
            .copied();
        let newest_index = marks.back().map(|m| m.index);
        *lock(&self.checkpoints) = marks;
        let same = position.history == newest.position().history;
        if resume && same && position.seqno < newest.position().seqno && before.is_none() {
            return Err(ConnectError::LogTooShort {
                position: position.seqno,
                first: newest.position().seqno,
                others,
            });
        }
        let Some(to) = newest_index else {
            return Ok((newest, None));
        };
        let load = |index| -> Result<Option<ClusterState>, ConnectError> {
            let loaded = order.load_checkpoint(Some(index));
            let loaded = loaded.map_err(|e| ConnectError::Engine(e.to_string()))?;
            Ok(loaded.and_then(|c| ClusterState::decode(&c.sequencer, &c.node).ok()))
        };
        let (mut from, mut state) = (to, newest);
        let behind = same && position.seqno < state.position().seqno;
        if let Some(mark) = before.filter(|m| behind && m.index != to)
            && let Some(older) = load(mark.index)?
        {
            (from, state) = (mark.index, older);
        }
        // The database has what was open there of streaming transactions.
        if !self.setup.witness
            && let Some(index) = self.mark_before_streams(&state)
            && let Some(older) = load(index)?
        {
            (from, state) = (index, older);
        }
        if from == to {
            return Ok((state, None));
        }
        self.gates.restart(state.position().seqno);
        if same {
            self.queue.drop_through(position.seqno);
        }
        Ok((state, Some((from + 1, to))))
    }

    pub(super) fn engine_config(
        &self,
        name: &str,
        s: &Settings,
        uuid: Uuid,
        raft_id: u64,
    ) -> EngineConfig {
        let mut config = EngineConfig::lan(name, raft_id, uuid, &s.advertised.to_string());
        config.durable = s.durability == crate::options::Durability::Majority;
        config.soon = self.left_in_log.soon().clone();
        config.piece = s.piece_size;
        config.bulk_share = s.bulk_share;
        config.gather = s.gather;
        // A write set waits for its client, so there is at most one for each
        // connection; large ones lie in files.
        config.pending_max = 64 << 30;
        let timings = Timings::of(s);
        *lock(&self.timings) = timings;
        config.heartbeat = timings.heartbeat;
        config.lease = timings.lease;
        config.election_min = timings.election_min;
        config.election_max = timings.election_max;
        config
    }

    /// Everything of an earlier connection is forgotten; if the node joins `again`, all but
    /// what its appliers have.
    pub(super) fn reset_for(&self, found: &Found, again: bool) {
        let at = found.state.position();
        *lock(&self.history) = at.history;
        let waited: Vec<Seqno> = self.queue.clear().iter().map(|i| i.seqno).collect();
        self.forget_chunks(again.then_some(&waited));
        self.gates.restart(at.seqno);
        self.queue.reopen();
        lock(&self.streams).clear();
        self.forget_held();
        self.forget_bulk();
        self.going_alone.forget();
        // A forced recovery may begin below where this node was.
        self.newest_toi.store(0, Relaxed);
        self.newest_small.store(0, Relaxed);
        self.ready_ahead.store(0, Relaxed);
        self.queue.reset_stats();
        // Nothing is handed out until the database has a position.
        self.queue.hold_after(Seqno::MIN);
        {
            // Marks stay unique: a client of before may still hold one.
            let mut pending = lock(&self.pending);
            let next_tag = pending.next_tag;
            *pending = Pending {
                next_tag,
                ..Pending::default()
            };
        }
        {
            let mut delivered = lock(&self.delivered);
            // Who waits takes itself out of it.
            let waiting = delivered.waiting;
            *delivered = Delivered {
                seqno: at.seqno,
                waiting,
                ..Delivered::default()
            };
        }
        lock(&self.votes).clear();
        lock(&self.own_ballots).asked.clear();
        *lock(&self.checkpoints) = VecDeque::from([Mark {
            index: found.log_start,
            seqno: at.seqno,
            bytes_before: 0,
        }]);
        lock(&self.durable).restart();
        self.forget_recounts();
        *lock(&self.weighing_told) = Weighing::default();
        lock(&self.evicting).clear();
        *lock(&self.cut_asked) = found.state.cut();
        *lock(&self.digests) = Digests::default();
        *lock(&self.primary_lost) = None;
        self.engine_failed.store(false, Relaxed);
        self.flow.clear();
        lock(&self.holders).0.clear();
        *lock(&self.own_slow) = Default::default();
        self.closed.clear();
    }

    /// Has the own join ordered and waits until it is delivered here.
    pub(super) fn get_joined(
        &self,
        order: &Arc<dyn Order>,
        limit: Duration,
        join: Join,
        leader: Option<String>,
        address: &ClusterAddress,
        name: &str,
    ) -> Result<(), ConnectError> {
        let begun = Instant::now();
        let mut deadline = begun + limit;
        let mut delivered = lock(&self.delivered).index;
        let founding = leader.is_none();
        if founding {
            // The first message of the log, from its own origin.
            let first = encode(&Control::Join(join.clone()));
            order
                .propose(kind::CONTROL, 0, first)
                .map_err(|e| ConnectError::Engine(e.to_string()))?;
        }
        let mut asking = leader;
        let others = address.resolve(self.settings().base_port);
        let mut turn = 0;
        let mut told = Instant::now();
        let mut moved = None;
        let mut refused = None;
        loop {
            if let Some(addr) = &asking {
                let answer = self.ask(name, addr, &Request::Join(join.clone()));
                match answer {
                    Ok(Answer::Ok) => refused = None,
                    Ok(Answer::NotLeader {
                        leader: Some(leader),
                    }) => asking = Some(leader),
                    Ok(Answer::Refused(why)) => {
                        self.note_now_and_then(&format!(
                            "{addr} did not order this node's join yet: {why}"
                        ));
                        refused = Some(why);
                    }
                    other => {
                        // The join may be ordered already, whatever is there now.
                        if let Err(Unanswered { why, refused: true }) = &other {
                            self.tell_refused(why);
                        }
                        // A founder's address names nobody: ask the same again.
                        asking = others
                            .get(turn % others.len().max(1))
                            .map_or_else(|| asking.clone(), |a| Some(a.to_string()));
                        turn += 1;
                    }
                }
            }
            self.still_starting(FOR_MAJORITY);
            // The join lies behind all the log that this node needs, which may be much.
            let index = lock(&self.delivered).index;
            if index > delivered && begun.elapsed() < limit * LONG_LOG {
                delivered = index;
                deadline = Instant::now() + limit;
            }
            let again = Instant::now() + Duration::from_secs(2);
            let shared = loop {
                self.unless_told_to_stop(FOR_MAJORITY)?;
                let shared = self.shared();
                if shared.joined.is_some() {
                    break shared;
                }
                if let Some(why) = self.never_joins(shared.phase) {
                    return Err(ConnectError::Refused(why.into()));
                }
                if let Some(why) = &shared.join_failed {
                    return Err(ConnectError::LogGone(why.clone()));
                }
                let now = Instant::now();
                if now >= deadline {
                    let seconds = limit.as_secs();
                    return Err(match refused {
                        Some(why) => ConnectError::JoinRefused { seconds, why },
                        None => ConnectError::JoinTimeout(seconds),
                    });
                }
                if now >= again {
                    break shared;
                }
                drop(self.wait_shared(shared, again.min(deadline).min(now + LOOK_UP)));
            };
            if let Some((view, need)) = &shared.joined {
                let (at, position) = (view.position, shared.position);
                let follows = *need == Need::Log && position.history == at.history;
                if follows && position.seqno >= at.seqno {
                    return Err(ConnectError::Ahead {
                        position: position.seqno,
                        last: at.seqno - 1,
                    });
                }
                return Ok(());
            }
            drop(shared);
            let status = order.status();
            if asking.is_none() && !status.primary {
                if self.was_evicted(order) {
                    return Err(ConnectError::Evicted);
                }
                self.force_unless_moved(name, order, &others, &mut moved);
                if told.elapsed() >= Duration::from_secs(10) {
                    told = Instant::now();
                    let missing = missing(&status.members.addrs, status.id, &order.linked());
                    self.note(&format!(
                        "still waiting for a majority of the logs; {missing}"
                    ));
                }
            }
            if let Some(why) = order.status().failed {
                return Err(ConnectError::Engine(why));
            }
        }
    }

    /// Looks who is at those of `listed` to which no link stands: members that were started
    /// again elsewhere, which may look for this node at an old address, too.
    /// True: somebody is.
    fn look_for_moved(&self, name: &str, order: &Arc<dyn Order>, listed: &[HostPort]) -> bool {
        let mut found = false;
        let settings = self.settings();
        let others: Vec<_> = listed.iter().filter(|a| !settings.is_own(a)).collect();
        for addr in unlinked(&others, &order.linked()) {
            // Each that is silent takes its time.
            let ends =
                matches!(self.phase(), Phase::Leaving | Phase::Closed) || self.db.told_to_stop();
            if ends || order.status().primary {
                break;
            }
            if let Some(id) = self.engines.who_is_at(name, &addr, LOOK)
                && has_moved(id, &addr, &order.status().members.addrs, &order.linked())
            {
                order.found_at(id, &addr);
                found = true;
            }
        }
        found
    }

    /// Looks who moved, and goes on alone if that is asked for: not before those who were found had
    /// time for a link (`since`, the first time), as they may be a primary component.
    pub(super) fn force_unless_moved(
        &self,
        name: &str,
        order: &Arc<dyn Order>,
        listed: &[HostPort],
        since: &mut Option<Instant>,
    ) {
        let found = self.look_for_moved(name, order, listed);
        if self.db.told_to_stop() {
            return; // it may not have asked all of them
        }
        if !found || since.get_or_insert_with(Instant::now).elapsed() > FOR_LINKS {
            self.force_if_asked();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ahead_is_not_told_to_remove_the_log_that_proves_it() {
        let (position, last) = (120, 100);
        let said = ConnectError::Ahead { position, last }.to_string();
        assert!(said.contains(COPY_ASKED), "{said}");
        assert!(said.contains("Keep the dromon-*.log files"), "{said}");
        assert!(!said.contains("remove"), "{said}");
    }
}
