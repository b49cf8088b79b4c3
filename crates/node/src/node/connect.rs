//! Connecting to a cluster, or founding one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_order::{EngineConfig, NodeHandler, Order, Start};
use dromon_writeset::{Seqno, Uuid};

use super::connect_error::{ONLY_PLACE, log_in_words};
use super::duties::{Handler, Timings};
pub(super) use super::ids::{incarnation_uuid, random_u64, random_uuid};
use super::leave::told_to_leave;
use super::linked::{has_moved, missing, unlinked};
use super::search::Unanswered;
use super::{
    AskError, ConnectError, Delivered, EngineError, Item, Node, Pending, Phase, Shared, lock,
};
use crate::cluster::ClusterState;
use crate::digests::Digests;
use crate::electors::Weighing;
use crate::messages::{Answer, Control, Join, Need, Position, Request, encode, kind};
use crate::options::{ClusterAddress, HostPort, Settings};
use crate::retention::Mark;

/// What those who were found at another address have to link up, before this node may be forced
/// to go on without them.
const FOR_LINKS: Duration = Duration::from_secs(10);

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

/// How long no entry comes to who joins until it asks whether the others went on without it.
const STANDS: Duration = Duration::from_secs(6);

/// How long one address may take to say who is there.
const LOOK: Duration = Duration::from_secs(1);

/// How long the others may refuse this node as another run of a member: what is left of its own former process, which
/// they may still hear, is dead or silent long before.
const FORMER: Duration = Duration::from_secs(20);

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
        // A server that is no donor any more does not end it, and nothing could be applied.
        if self.copy_pause.load(Relaxed) && self.gates.paused_at().is_some() {
            return Err(ConnectError::Paused);
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
        self.forget_sum();

        {
            let mut shared = self.shared();
            let donation_left = shared.donation_open || shared.donation_left;
            *shared = Shared::closed();
            (shared.phase, shared.donation_left) = (Phase::Connecting, donation_left);
            shared.position = position;
            shared.donors = donors.to_owned();
            shared.cluster = name.to_owned();
            shared.address = address.clone();
        }
        self.look_at_marks(position);
        let connect = |position, log, known: &[String]| {
            // Each attempt is an incarnation, and makes a log, of its own: the one before may have joined, and left.
            let (uuid, raft_id) = (incarnation_uuid(), random_u64());
            self.note(&format!("My UUID: {uuid}"));
            self.shared().uuid = uuid;
            self.connect_as(
                name, &address, bootstrap, &settings, position, uuid, raft_id, log, known,
            )
        };
        let first = match self.forget_log.swap(false, Relaxed) {
            true => OwnLog::Forget,
            false => OwnLog::Resume,
        };
        let had_data = !self.saved().uuid.is_nil();
        // An attempt before may have given the data up.
        let position = || match had_data && self.saved().uuid.is_nil() {
            true => {
                self.shared().position = Position::UNDEFINED;
                Position::UNDEFINED
            }
            false => position,
        };
        let mut result = connect(position(), first, &[]);
        // The list may name nobody who is there.
        let mut known = Vec::new();
        if matches!(result, Err(ConnectError::Evicted)) {
            known = self.members_of_log();
            let again = self.tries_again(
                "the others went on without this node's log; joining them as a new member",
            );
            result = again.and_then(|()| connect(position(), OwnLog::Forget, &known));
        }
        if let Err(ConnectError::LogGone(why)) = &result {
            let again = self.tries_again(&format!("{why}; asking once more where to begin"));
            result = again.and_then(|()| connect(position(), first, &known));
        }
        if let Err(e @ ConnectError::LogTooShort { others: true, .. }) = &result {
            let again = self.tries_again(&format!(
                "{e}. The others are there: joining them as a new member"
            ));
            result = again.and_then(|()| connect(position(), OwnLog::Forget, &known));
        }
        if let Err(
            e @ (ConnectError::LogTooShort { others: false, .. } | ConnectError::Ahead { .. }),
        ) = &result
            && self.ends_force()
        {
            let again = self.tries_again(&format!(
                "{e}. A cluster is to be founded here: the own log is given up"
            ));
            result = again.and_then(|()| connect(position(), OwnLog::Forget, &known));
        }
        if let Err(ConnectError::Damaged(why)) = &result {
            // Without the log nothing tells whether the database belongs to the others' history.
            let why = why.clone();
            self.shared().position = Position::UNDEFINED;
            result = connect(Position::UNDEFINED, OwnLog::SetAside(&why), &known);
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
            // What was ordered amid it nobody applies, and a pause may wait for that.
            self.gates.close();
        }
        result
    }

    /// Where the members of the log are that is open, as it names them.
    pub(super) fn members_of_log(&self) -> Vec<String> {
        let addrs = self.order().map(|o| o.status().members.addrs);
        addrs.unwrap_or_default().into_values().collect()
    }

    /// One way to connect has failed, for that reason; another one follows.
    ///
    /// # Errors
    /// The node was told to leave meanwhile.
    fn tries_again(&self, why: &str) -> Result<(), ConnectError> {
        self.note(why);
        self.close_engine();
        {
            // What was delivered to the attempt before was about another incarnation.
            let mut shared = self.shared();
            (shared.joined, shared.view, shared.base) = (None, None, None);
            (shared.own_leave, shared.left) = (false, None);
            (shared.removed, shared.ends_at) = (false, None);
            (shared.sync_asked, shared.join_failed) = (false, None);
        }
        self.goes_on(Phase::Connecting)
    }

    /// The next step of connecting, unless the node was told to leave: nobody would tell it again.
    fn goes_on(&self, to: Phase) -> Result<(), ConnectError> {
        let mut shared = self.shared();
        if told_to_leave(shared.phase) {
            return Err(ConnectError::Refused("told to leave meanwhile".into()));
        }
        shared.phase = to;
        Ok(())
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
        known: &[String],
    ) -> Result<(), ConnectError> {
        self.unless_told_to_stop("starting")?;
        // Of an attempt that came to nothing: those who are joined now stay.
        self.went_alone.store(false, Relaxed);
        let resume = matches!(log, OwnLog::Resume);
        let mut position = position;
        let mut found = if self.setup.witness && (bootstrap || address.founds()) {
            return Err(ConnectError::NothingToFound);
        } else if bootstrap || address.founds() {
            self.found_cluster(name, address, position, settings, resume)?
        } else {
            let went_on = match resume {
                true => self.others_went_on(name, address, position, settings)?,
                false => None,
            };
            let resume = resume && went_on.is_none();
            let known = went_on.as_deref().unwrap_or(known);
            match self.witness_log(position, settings, resume)? {
                Some(found) => found,
                None => self.find_cluster(name, address, settings, position, resume, known)?,
            }
        };
        self.settle(&mut found, &mut position);
        if self.was_up.load(Relaxed)
            && matches!(found.start, Start::Join { .. })
            && let Some(why) = self.why_copy(&found, position)
        {
            // Only a start can take it. Beside a log that is begun for it nothing would tell any more of which
            // incarnation this data is.
            let damaged = match log {
                OwnLog::SetAside(why) => format!("this node's log is damaged: {why} "),
                OwnLog::Resume | OwnLog::Forget => String::new(),
            };
            return Err(ConnectError::Refused(format!(
                "{damaged}{why}. Nothing was changed: its data and its log are kept until then"
            )));
        }
        let stood = position;
        let founds = matches!(found.start, Start::Bootstrap { .. });
        self.forced_here
            .store(bootstrap || address.founds(), Relaxed);
        if founds && position.is_defined() {
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
        let in_order = self.stopped_in_order();
        if found.need == Need::Copy && !self.setup.witness && !keeps {
            // Unless it counts, the log is set aside or erased next. It alone tells that this data
            // may be of another incarnation: after a crash from then on nothing would.
            self.give_data_up().map_err(ConnectError::Refused)?;
        }
        if let (OwnLog::SetAside(why), Some(leader)) = (log, &found.leader) {
            self.make_room(settings, why, leader)?;
        }
        self.keep_former_log(settings, &found, stood, in_order)?;
        self.reset_for(&found, false);
        let resumes = matches!(found.start, Start::Resume);
        if resumes {
            self.log_grows()?;
        }
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
        if !resumes {
            // Not before there is a new one: a start that fails is tried again with the former log.
            self.log_grows()?;
        }
        if founds {
            // The former log is gone.
            self.founds_without_marks()?;
        }
        self.start_service()
            .map_err(|e| ConnectError::Engine(e.to_string()))?;
        self.goes_on(Phase::Joining)?;
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
        let by_itself = resumes && alone && !bootstrap && !address.founds() && !self.setup.witness;
        self.get_joined(&order, limit, join, found.leader, address, name)?;
        if by_itself {
            let last = order.status().last;
            let history = position.history;
            let beside = self.goes_on_beside(name, address, settings, history, last);
            if let Some(why) = beside {
                return Err(ConnectError::Refused(format!(
                    "{why} The database was not changed"
                )));
            }
        }
        if self.went_alone.swap(false, Relaxed) {
            self.forced_here.store(true, Relaxed);
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
        let waited = self
            .queue
            .clear()
            .filter(|i| matches!(i.value, Item::Chunk { .. }));
        let waited: Vec<Seqno> = waited.map(|i| i.seqno).collect();
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
        let mut deadline = Instant::now() + limit;
        let mut delivered = lock(&self.delivered).index;
        // Before that the others may not have taken this log in yet.
        let mut moved_at = None;
        let mut ordered_by = None;
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
                    Ok(Answer::Ok) => {
                        refused = None;
                        // One that is gone by now may have told nobody.
                        if ordered_by.as_ref() != Some(addr) {
                            (ordered_by, moved_at) = (Some(addr.clone()), Some(Instant::now()));
                        }
                    }
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
                        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
                        let others = self.each_address(&others, &self.settings());
                        // A founder's address names nobody: ask the same again.
                        asking = others
                            .get(turn % others.len().max(1))
                            .map_or_else(|| asking.clone(), |addr| Some(addr.clone()));
                        turn += 1;
                    }
                }
            }
            self.still_starting(FOR_MAJORITY);
            // The join lies behind all the log that this node needs, which may be much.
            let index = lock(&self.delivered).index;
            if index > delivered {
                (delivered, moved_at) = (index, Some(Instant::now()));
                if refused.is_none() {
                    deadline = Instant::now() + limit;
                }
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
                        None => {
                            let log = log_in_words(&order.status());
                            ConnectError::JoinTimeout { seconds, log }
                        }
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
            let stands = asking.is_none() || moved_at.is_some_and(|at| at.elapsed() >= STANDS);
            if stands && !status.primary && self.was_evicted(order) {
                return Err(ConnectError::Evicted);
            }
            if asking.is_none() && !status.primary {
                self.force_unless_moved(name, order, &others, &mut moved);
                if told.elapsed() >= Duration::from_secs(10) {
                    told = Instant::now();
                    let (addrs, linked) = (&status.members.addrs, order.linked());
                    let missing = missing(addrs, status.id, &linked);
                    let unlinked = addrs.iter().filter(|(id, _)| **id != status.id);
                    let unlinked = unlinked.filter(|(id, _)| !linked.contains_key(id));
                    let unlinked: Vec<String> = unlinked.map(|(_, addr)| addr.clone()).collect();
                    let why = self.who_keeps_out(name, &unlinked);
                    let why = why.map_or(String::new(), |why| {
                        format!(". Not all of them are missing: {why}")
                    });
                    self.note(&format!(
                        "still waiting for a majority of the logs; {missing}{why}"
                    ));
                }
            }
            if let Some(why) = order.status().failed {
                return Err(ConnectError::Engine(why));
            }
            if let Some((since, why)) = order.displaced().filter(|(since, _)| *since >= FORMER) {
                let seconds = since.as_secs();
                return Err(ConnectError::Copy { why, seconds });
            }
        }
    }

    /// Why one of those at `addrs` who are there does not let this node in, or cannot be asked.
    fn who_keeps_out(&self, name: &str, addrs: &[String]) -> Option<String> {
        let answers = self.ask_all(name, addrs, &encode(&Request::Probe), LOOK);
        answers.into_iter().find_map(|answer| match answer {
            Ok(_) | Err(AskError::Unreachable(_) | AskError::Unlooked(_) | AskError::Silent(_)) => {
                None
            }
            Err(
                AskError::Refused(why)
                | AskError::Resolving(why)
                | AskError::Barred(why)
                | AskError::ShutOut(why)
                | AskError::OtherVersion(why),
            ) => Some(why),
        })
    }

    /// Looks who is at those of `listed` to which no link stands: members that were started
    /// again elsewhere, which may look for this node at an old address, too.
    /// True: somebody is.
    fn look_for_moved(&self, name: &str, order: &Arc<dyn Order>, listed: &[HostPort]) -> bool {
        let mut found = false;
        let settings = self.settings();
        let others = listed.iter().filter(|a| !settings.is_own(a));
        let others: Vec<String> = others.map(ToString::to_string).collect();
        let others = self.each_address(&others, &settings);
        for addr in unlinked(others, &order.linked()) {
            // Each that is silent takes its time.
            let ends =
                matches!(self.phase(), Phase::Leaving | Phase::Closed) || self.db.told_to_stop();
            if ends || order.status().primary {
                break;
            }
            let at = self.engines.who_is_at(name, &addr, LOOK);
            let status = order.status();
            let (own, named) = (status.id, &status.members.addrs);
            if let Some(id) = at
                && has_moved(id, own, &addr, named, &order.linked())
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
