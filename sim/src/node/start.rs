//! From nothing to a session: continue the own log, found the cluster, or find
//! it and join; and in the end the way out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use dromon_gates::Positions;
use dromon_node::Position;
use dromon_node::chain::{Compared, of_log};
use dromon_node::cluster::{ClusterState, MemberState};
use dromon_node::electors::Weighing;
use dromon_node::forks::LogEnd;
use dromon_node::messages::{
    Answer, CheckpointParts, Control, Join, LeaveReason, Need, Request, decode, encode,
};
use dromon_node::stalled::Stalled;
use dromon_order::logstore::LogStore;
use dromon_order::{
    Checkpoint, Engine, EngineConfig, Gathering, Inspected, LogId, Members, NodeHandler, Order,
    RaftId, Start, incarnation, inspect,
};
use dromon_writeset::{Seqno, Uuid};
use tokio::sync::Notify;

use super::deliver::PANICKED;
use super::duties::Handler;
use super::{Ended, Exit, Inner, Mark, Phase, Process, Session};
use crate::database::Image;
use crate::disk::{Lies, SimStore};
use crate::net::addr_of;
use crate::plant::Plant;
use crate::rng::Rng;
use crate::shared::lock;
use crate::weights::Weights;

/// How long one question to another node may take.
const ASK: Duration = Duration::from_millis(1_000);
/// A log that is a majority by itself goes on after this long, whoever is silent. (The
/// server's node has more patience.)
const ALONE: Duration = Duration::from_secs(3);
/// How long a leaver waits for its departure to be ordered, and to be forgotten.
const LEAVE: Duration = Duration::from_secs(4);

/// How a session begins.
struct Found {
    start: Start,
    /// The state to deliver from.
    state: ClusterState,
    /// Log entries to read again before those that the engine hands out.
    again: Option<(u64, u64)>,
    marks: VecDeque<Mark>,
    need: Need,
    log_start: u64,
    raft_id: RaftId,
    /// Whether its own log says that it votes.
    votes: bool,
    /// Whether its own log names it as a member.
    named: bool,
    /// Whom to ask to order the join; `None`: this node orders it itself.
    ask: Option<String>,
}

/// What a node says of its data and its log.
#[derive(Clone, Copy)]
struct Own {
    position: Position,
    end: Option<LogEnd>,
    /// The running checksum of the history at the position.
    sum: Option<u64>,
}

/// Runs one session from beginning to end.
pub(super) async fn session(process: &Arc<Process>) -> Ended {
    let slot = process.host.slot;
    let shared = process.shared.clone();
    let mut rng = process.rng();
    let lies = Lies {
        early: shared.planted_everywhere(Plant::EarlyDurable),
        deaf: shared.planted_everywhere(Plant::DeafToDisk),
    };
    let opened = SimStore::open(
        &process.host.device,
        process.host.speed.clone(),
        Rng::new(rng.u64(), &[]),
        lies,
    );
    let store = match opened {
        Ok(store) => store,
        Err(_) if process.host.disk_may_fail() => {
            return Ended::Exit(Exit::Died);
        }
        Err(e) => {
            shared.unsound(slot, format_args!("the log cannot be opened: {e}"));
            return Ended::Exit(Exit::Died);
        }
    };
    *lock(&process.host.truth) = store.truth().clone();
    if shared.planted_everywhere(Plant::JoinUnchecked) {
        let mut database = process.host.database();
        let position = &mut database.now.position;
        if position.is_defined() {
            position.history = history(shared.seed);
        }
    }
    let witness = shared.settings.is_witness(slot);
    let dyn_store: Arc<dyn LogStore> = store.clone();
    let log = match inspect(&dyn_store) {
        Ok(log) => log,
        Err(e) => {
            shared.unsound(slot, format_args!("the own log: {e}"));
            return Ended::Exit(Exit::Died);
        }
    };
    let position = match (&log, witness) {
        (_, false) => process.host.database().now.position,
        // What stands for its data: the newest checkpoint of its log.
        (Some(log), true) => {
            ClusterState::peek_position(&log.checkpoint.node).unwrap_or(Position::UNDEFINED)
        }
        (None, true) => Position::UNDEFINED,
    };
    // A copy that ran by itself has a log of its own, which counts nowhere.
    let claim = *lock(&process.host.claim);
    let end = claim.map(|c| c.end).or(log.as_ref().map(log_end));
    let sum = match (claim, witness) {
        (Some(claim), _) => Some(claim.sum),
        (None, true) => None,
        (None, false) => match of_log(&dyn_store, position, None) {
            Ok(sum) => sum,
            Err(e) => {
                shared.unsound(slot, format_args!("the own log: {e}"));
                return Ended::Exit(Exit::Died);
            }
        },
    };
    let own = Own { position, end, sum };
    let found = find(process, log.as_ref(), own, &mut rng).await;
    let mut found = match found {
        Ok(found) => found,
        Err(ended) => return ended,
    };
    // From here on the log is another one.
    *lock(&process.host.claim) = None;
    if let (Start::Join { term, .. }, Some(end), false) = (&found.start, end, witness)
        && end.last.incarnation() != incarnation(*term)
    {
        shared.count(|c| match found.need {
            Need::Log => c.old_by_log += 1,
            Need::Copy => c.old_by_copy += 1,
        });
    }
    let position = if witness {
        found.need = Need::Log;
        found.state.position()
    } else {
        let mut database = process.host.database();
        if !matches!(found.start, Start::Resume) {
            // The log that could repeat what the database would lose is erased.
            database.flush();
        }
        let late = shared.planted_everywhere(Plant::CopyLate);
        if found.need == Need::Copy && !late {
            // That log alone tells where the data is from.
            database.erase();
        }
        database.now.position
    };

    let uuid = uuid(&mut rng);
    let addr = addr_of(slot);
    let config = config(&shared, uuid, &addr, &found, rng.u64());
    let session = Arc::new(Session {
        witness,
        process: process.clone(),
        shared: shared.clone(),
        host: process.host.clone(),
        uuid,
        addr: addr.clone(),
        engine: OnceLock::new(),
        left: Arc::default(),
        store: Mutex::new(Some(store.clone())),
        inner: Mutex::new(Inner::new(&found, witness, &mut rng)),
        changed: Notify::new(),
        over: Notify::new(),
        tasks: Mutex::default(),
    });
    let found_synced = store.truth().synced();
    let had_synced = shared.log_opened(found.raft_id, store.truth().clone());
    if found_synced < had_synced && lies == Lies::default() {
        shared.unsound(
            slot,
            format_args!("the log ends at {found_synced}, but {had_synced} had been synced"),
        );
    }
    let port = shared.net.port(slot, found.raft_id);
    let handler: Arc<dyn NodeHandler> = Arc::new(Handler(Arc::downgrade(&session)));
    let start = found.start.clone();
    let started = Engine::start_in(config, dyn_store, port, handler, start).await;
    let engine = match started {
        Ok(engine) => engine,
        Err(e) => {
            if !process.host.disk_may_fail() || e.to_string().contains(PANICKED) {
                shared.unsound(slot, format_args!("the engine does not start: {e}"));
            }
            return Ended::Exit(Exit::Died);
        }
    };
    // Set once, here.
    let _ = session.engine.set(engine.clone());
    process.host.raft_id.store(found.raft_id, Ordering::Relaxed);
    lock(&process.inner).session = Some(session.clone());
    store.set_inline(false);
    if matches!(found.start, Start::Resume) {
        shared.count(|c| c.resumes += 1);
        match begin_state(&engine, &mut found, position) {
            Ok(true) => {}
            Ok(false) => {
                // A joiner that waited for a copy. A voter's log is kept as far
                // back as its database may fall.
                if found.votes {
                    shared.unsound(slot, format_args!("the log begins behind the database"));
                }
                session.end(
                    Ended::Again { log_is_gone: true },
                    "the database is older than the log",
                );
                return close(&session, &store, &engine).await;
            }
            Err(e) => shared.unsound(slot, format_args!("the own log: {e}")),
        }
    }
    session.note(format_args!(
        "session: {} as {:x}, database at {}, state at {}, need {:?}",
        match found.start {
            Start::Bootstrap { .. } => "founds",
            Start::Join { .. } => "joins",
            Start::Resume => "resumes",
        },
        found.raft_id,
        position.seqno,
        found.state.position().seqno,
        found.need,
    ));
    let between = !process.host.database().now.uncommitted.is_empty();
    shared.count(|c| c.between += u64::from(between));
    let (need, log_start) = (found.need, found.log_start);
    let (again, leader) = (found.again, found.ask.take());
    let term = match &found.start {
        Start::Join { term, .. } => *term,
        Start::Resume => end.map_or(0, |e| e.voted.max(e.last).term),
        Start::Bootstrap { .. } => 0,
    };
    let begins = session.inner().begin(found);
    shared.oracles().begins(slot, begins, incarnation(term));

    let join = Join {
        uuid,
        origin: uuid,
        name: format!("n{slot}"),
        incoming: String::new(),
        addr,
        raft_id: engine.status().id,
        segment: (slot % 2) as u8,
        weight: match shared.settings.weights {
            Some(_) => Weights::configured(shared.seed, slot),
            None => 1,
        },
        position,
        need,
        log_start,
        vote_policy: 0,
        witness,
        stateless: false,
    };
    session.spawn(store.clone().run());
    session.spawn(session.clone().deliver_all(again));
    session.spawn(session.clone().get_joined(join, leader));
    session.spawn(session.clone().bring_up(position));
    session.spawn(session.clone().flush_database());
    session.spawn(session.clone().watch_membership());
    session.spawn(session.clone().leave_when_asked());
    if let Some(weights) = shared.settings.weights {
        session.spawn(session.clone().weigh(weights));
    }
    if shared.settings.large.is_some() && !witness {
        session.spawn(session.clone().pace());
    }
    let clients = if witness { 0 } else { shared.settings.clients };
    for number in 0..clients {
        session.spawn(session.clone().client(number as u64));
    }
    session.over.notified().await;
    close(&session, &store, &engine).await
}

/// Stops everything and leaves the log in order.
async fn close(session: &Arc<Session>, store: &Arc<SimStore>, engine: &Arc<Engine>) -> Ended {
    for task in lock(&session.tasks).drain(..) {
        task.abort();
    }
    // The disk must work to the end.
    let disk = tokio::spawn(store.clone().run());
    store.set_inline(true);
    engine.stopped().await;
    disk.abort();
    session.shared.net.unplug(session.host.slot);
    // It is closed: nothing goes on with it if it has failed, however long the next session takes to come.
    *lock(&session.host.truth) = Arc::default();
    lock(&session.process.inner).session = None;
    *lock(&session.store) = None;
    let mut inner = session.inner();
    session.abandon(&mut inner);
    let ended = inner.ended.take();
    drop(inner);
    if matches!(ended, Some(Ended::Exit(Exit::Left))) {
        session.host.database().flush();
        session.host.left_cleanly.store(true, Ordering::Relaxed);
    }
    ended.unwrap_or(Ended::Exit(Exit::Died))
}

fn config(
    shared: &crate::shared::Shared,
    origin: Uuid,
    addr: &str,
    found: &Found,
    seed: u64,
) -> EngineConfig {
    let settings = &shared.settings;
    let election_min = settings.election_min();
    EngineConfig {
        heartbeat: election_min / 5,
        election_min,
        election_max: election_min * 5 / 4,
        lease: election_min * 9 / 10,
        tick: Duration::from_millis(100),
        resend: Duration::from_millis(400),
        cache_max: settings.cache,
        piece: settings.piece,
        gather: if settings.gathers {
            Gathering::Always
        } else {
            Gathering::Never
        },
        seed: Some(seed),
        ..EngineConfig::lan("sim", found.raft_id, origin, addr)
    }
}

/// A fresh identity.
pub(super) fn uuid(rng: &mut Rng) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rng.u64().to_le_bytes());
    bytes[8..].copy_from_slice(&rng.u64().to_le_bytes());
    Uuid(bytes)
}

/// The history of a run's cluster.
pub(crate) fn history(seed: u64) -> Uuid {
    uuid(&mut Rng::new(seed, &[0x415]))
}

/// How far a log got.
fn log_end(log: &Inspected) -> LogEnd {
    LogEnd {
        last: log.last.leadership(),
        voted: log.voted,
    }
}

/// As the server's node does it: ask for a primary component first, and go on
/// with the own log if that still votes there, or if nobody knows of one. A
/// witness goes on with its log before it asks.
async fn find(
    process: &Arc<Process>,
    log: Option<&Inspected>,
    mine: Own,
    rng: &mut Rng,
) -> Result<Found, Ended> {
    let gone = lock(&process.inner).log_is_gone;
    let left = process.host.left_cleanly.swap(false, Ordering::Relaxed);
    // Where weights decide, its vote may be the only one, or one of two.
    let left = left && process.shared.settings.weights.is_none();
    if let Some(log) = log.filter(|_| !gone && !left) {
        match own_log(log, mine.position) {
            Ok(Some(own)) => {
                let votes = own.votes;
                if votes && process.shared.settings.is_witness(process.host.slot) {
                    return Ok(own);
                }
                let erases = process.shared.planted_everywhere(Plant::EraseFirst);
                if let Some(found) = ask_around(process, mine, rng).await? {
                    let leader = found.ask.clone().unwrap_or_default();
                    let erases = erases
                        || !votes && process.shared.planted_everywhere(Plant::LearnerErases)
                        || !counts(process, leader, own.raft_id, own.named).await;
                    if erases {
                        return Ok(found);
                    }
                } else if !own.named {
                    return find_cluster(process, mine, rng).await;
                } else if process.shared.settings.weights.is_some() && votes_alone(log) {
                    return alone(process, log, own, mine, rng).await;
                }
                if !votes && process.shared.planted_everywhere(Plant::LearnerWaits) {
                    return find_cluster(process, mine, rng).await;
                }
                if process.shared.planted_everywhere(Plant::WaitForAll) {
                    wait_for_all(process, log).await;
                }
                return Ok(own);
            }
            Ok(None) => {}
            Err(e) => {
                process
                    .shared
                    .unsound(process.host.slot, format_args!("the own log: {e}"));
                return Err(Ended::Exit(Exit::Died));
            }
        }
    }
    if process.founder.swap(false, Ordering::Relaxed) {
        let history = history(process.shared.seed);
        let image = Image::genesis(history);
        let state = ClusterState::genesis(image.position);
        process.host.database().replace(image);
        let (_, genesis) = state.encode();
        return Ok(Found {
            start: Start::Bootstrap {
                genesis,
                after: None,
            },
            marks: VecDeque::from([Mark { index: 0, seqno: 0 }]),
            state,
            again: None,
            need: Need::Log,
            log_start: 0,
            raft_id: rng.u64().max(1),
            votes: false,
            named: false,
            ask: None,
        });
    }
    find_cluster(process, mine, rng).await
}

/// Whether the leader at `addr` counts this log, or does not say that it does
/// not, which by itself it may.
async fn counts(process: &Process, addr: String, raft_id: RaftId, named: bool) -> bool {
    match ask_counts(process, addr, raft_id).await {
        Some(counts) => counts,
        None => named,
    }
}

/// Whether the leader that `addr` is or names counts the log `raft_id`, if it says.
pub(super) async fn ask_counts(process: &Process, addr: String, raft_id: RaftId) -> Option<bool> {
    let request = Request::Gone { raft_id };
    let mut answer = ask(process, &addr, &request).await;
    if let Some(Answer::NotLeader {
        leader: Some(leader),
    }) = &answer
        && *leader != addr
    {
        answer = ask(process, leader, &request).await;
    }
    match answer? {
        Answer::Ok => Some(false),
        Answer::Refused(_) => Some(true),
        _ => None,
    }
}

/// Whether the log is a majority by itself.
fn votes_alone(log: &Inspected) -> bool {
    log.members.voters().into_iter().eq([log.id])
}

/// The own log, which is a majority by itself, once it seems that nobody was forced to
/// go on without it.
async fn alone(
    process: &Arc<Process>,
    log: &Inspected,
    own: Found,
    mine: Own,
    rng: &mut Rng,
) -> Result<Found, Ended> {
    let began = tokio::time::Instant::now();
    loop {
        let (mut silent, mut primary) = (false, false);
        for (_, addr) in log.members.addrs.iter().filter(|(id, _)| **id != log.id) {
            match ask(process, addr, &Request::Probe).await {
                // One that was forced to go on need not be primary at this moment.
                Some(Answer::Info {
                    primary: is, last, ..
                }) => primary |= is || incarnation(last.term) > incarnation(log.last.term),
                _ => silent = true,
            }
        }
        if !primary && (!silent || began.elapsed() >= ALONE) {
            return Ok(own);
        }
        if process.leave.load(Ordering::Relaxed) {
            return Err(Ended::Exit(Exit::Left));
        }
        tokio::time::sleep(rng.ms(150, 400)).await;
        if let Some(found) = ask_around(process, mine, rng).await? {
            let leader = found.ask.clone().unwrap_or_default();
            return match counts(process, leader, own.raft_id, own.named).await {
                true => Ok(own),
                false => Ok(found),
            };
        }
    }
}

/// Planted: who has a log waits until all whom it names run.
async fn wait_for_all(process: &Process, log: &Inspected) {
    for (id, addr) in &log.members.addrs {
        while *id != log.id && !process.shared.net.is_started(addr) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The own log, if it is not only its own and of the database's history. One
/// without a vote counts too: the others may just have given it one.
fn own_log(info: &Inspected, position: Position) -> Result<Option<Found>, String> {
    let state = ClusterState::decode(&info.checkpoint.sequencer, &info.checkpoint.node)
        .map_err(|e| e.to_string())?;
    let votes = info.members.is_voter(info.id);
    // Without data it counts all the same, and the data is copied anew.
    let need = match position.is_defined() {
        true if state.position().history != position.history => return Ok(None),
        true => Need::Log,
        false => Need::Copy,
    };
    Ok(Some(Found {
        start: Start::Resume,
        log_start: info.checkpoint.log_id.index,
        marks: VecDeque::new(),
        state,
        again: None,
        need,
        raft_id: info.id,
        votes,
        named: votes || info.members.addrs.contains_key(&info.id),
        ask: None,
    }))
}

/// The state to deliver from when the log goes on: if the database stands
/// before the newest checkpoint, an older one, from which the log is read
/// again. False if there is none old enough.
fn begin_state(engine: &Engine, found: &mut Found, position: Position) -> Result<bool, String> {
    let say = |e: dromon_order::OrderError| e.to_string();
    for index in engine.checkpoints().map_err(say)? {
        let checkpoint = engine.load_checkpoint(Some(index)).map_err(say)?;
        let at = checkpoint.and_then(|c| ClusterState::peek_position(&c.node));
        let at = at.ok_or_else(|| format!("checkpoint {index} cannot be read"))?;
        found.marks.push_back(Mark {
            index,
            seqno: at.seqno,
        });
    }
    let newest = found.state.position();
    if !position.is_defined() || newest.seqno <= position.seqno {
        return Ok(true);
    }
    let Some(mark) = found.marks.iter().rfind(|m| m.seqno <= position.seqno) else {
        return Ok(false);
    };
    let loaded = engine.load_checkpoint(Some(mark.index)).map_err(say)?;
    let loaded = loaded.ok_or_else(|| format!("checkpoint {} is gone", mark.index))?;
    found.state =
        ClusterState::decode(&loaded.sequencer, &loaded.node).map_err(|e| e.to_string())?;
    found.again = Some((mark.index + 1, found.log_start));
    Ok(true)
}

/// Looks for the leader until it answers with a state to start from.
async fn find_cluster(process: &Arc<Process>, mine: Own, rng: &mut Rng) -> Result<Found, Ended> {
    loop {
        if process.leave.load(Ordering::Relaxed) {
            return Err(Ended::Exit(Exit::Left));
        }
        if let Some(found) = ask_around(process, mine, rng).await? {
            return Ok(found);
        }
        tokio::time::sleep(rng.ms(150, 400)).await;
    }
}

/// Asks every node once, and whom they name as the leader, for a state to start
/// from.
async fn ask_around(
    process: &Arc<Process>,
    mine: Own,
    rng: &mut Rng,
) -> Result<Option<Found>, Ended> {
    let slot = process.host.slot;
    let own = addr_of(slot);
    let others = (0..process.shared.settings.nodes).map(addr_of);
    let mut candidates: Vec<String> = others.filter(|a| *a != own).collect();
    let first = rng.below(candidates.len() as u64) as usize;
    candidates.rotate_left(first);
    let mut next = 0;
    while let Some(addr) = candidates.get(next).cloned() {
        next += 1;
        match ask(
            process,
            &addr,
            &Request::State {
                position: mine.position,
                log: mine.end,
                sum: mine.sum,
                witness: process.shared.settings.is_witness(slot),
            },
        )
        .await
        {
            Some(Answer::State {
                need,
                compared,
                checkpoint,
                term,
            }) => {
                let apart = mine.sum.is_some() && mine.sum == process.host.apart();
                match compared {
                    Compared::Differs { .. } if apart => process.shared.count(|c| c.unlike += 1),
                    Compared::Differs { ours, yours } => process.shared.unsound(
                        slot,
                        format_args!(
                            "its history up to {} is said not to be the cluster's: {ours:016x}, {yours:016x}",
                            mine.position.seqno
                        ),
                    ),
                    _ => {}
                }
                let Some((checkpoint, state)) = from_parts(checkpoint) else {
                    process
                        .shared
                        .unsound(slot, format_args!("the state from {addr} is unreadable"));
                    return Err(Ended::Exit(Exit::Died));
                };
                let index = checkpoint.log_id.index;
                return Ok(Some(Found {
                    start: Start::Join { checkpoint, term },
                    marks: VecDeque::from([Mark {
                        index,
                        seqno: state.position().seqno,
                    }]),
                    state,
                    again: None,
                    need,
                    log_start: index,
                    raft_id: rng.u64().max(1),
                    votes: false,
                    named: false,
                    ask: Some(addr),
                }));
            }
            Some(Answer::NotLeader {
                leader: Some(leader),
            }) => {
                // The leader next, if it was not asked yet.
                if let Some(at) = candidates[next..].iter().position(|a| *a == leader) {
                    candidates.swap(next, next + at);
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Asks another node; `None` if there is no answer.
pub(super) async fn ask(process: &Process, addr: &str, request: &Request) -> Option<Answer> {
    let mut body = vec![super::duties::QUESTION];
    body.extend_from_slice(&encode(request));
    let net = &process.shared.net;
    let answer = net.request(process.host.slot, addr, Bytes::from(body), ASK);
    decode(&answer.await.ok()?)
}

/// A checkpoint as it travels.
pub(super) fn to_parts(c: &Checkpoint) -> CheckpointParts {
    let id = |l: LogId| (l.term, l.leader, l.index);
    let configs = c.members.configs.iter();
    CheckpointParts {
        log_id: id(c.log_id),
        members_id: c.members.log_id.map(id),
        configs: configs.map(|s| s.iter().copied().collect()).collect(),
        addrs: c.members.addrs.clone().into_iter().collect(),
        sequencer: c.sequencer.to_vec(),
        node: c.node.to_vec(),
    }
}

fn from_parts(p: CheckpointParts) -> Option<(Checkpoint, ClusterState)> {
    let state = ClusterState::decode(&p.sequencer, &p.node).ok()?;
    let id = |(term, leader, index)| LogId {
        term,
        leader,
        index,
    };
    let configs = p.configs.into_iter();
    let checkpoint = Checkpoint {
        log_id: id(p.log_id),
        members: Members {
            log_id: p.members_id.map(id),
            configs: configs.map(|s| s.into_iter().collect()).collect(),
            addrs: p.addrs.into_iter().collect(),
        },
        sequencer: Bytes::from(p.sequencer),
        node: Bytes::from(p.node),
    };
    Some((checkpoint, state))
}

impl Inner {
    fn new(found: &Found, witness: bool, rng: &mut Rng) -> Inner {
        let at = found.state.position();
        // Draws nothing that others would have got.
        let large_rng = Rng::new(rng.clone().u64(), &[0x1a49e]);
        Inner {
            witness,
            rng: Rng::new(rng.u64(), &[]),
            phase: Phase::Joining,
            state: ClusterState::genesis(at),
            index: found.log_start,
            seqnos: Vec::new(),
            positions: Positions::new(at.seqno),
            entries: BTreeMap::new(),
            held: true,
            pending: BTreeMap::new(),
            next_tag: 0,
            large_rng,
            own_large: BTreeMap::new(),
            paces: BTreeMap::new(),
            locks: BTreeSet::new(),
            joins_by_leader: found.ask.is_some(),
            joined: None,
            own_state: MemberState::Joiner,
            own_leave: None,
            evicted: false,
            no_donor: false,
            transfer_failed: false,
            received: None,
            donations: Vec::new(),
            marks: VecDeque::new(),
            entries_since_checkpoint: 0,
            view_seen: false,
            reports: BTreeMap::new(),
            known: BTreeMap::new(),
            stalled: Stalled::default(),
            evicting: BTreeMap::new(),
            cut_asked: found.state.cut(),
            sync_asked: false,
            primary_lost: None,
            rejoin_asked: false,
            last_tick: None,
            floor: -1,
            report_number: 0,
            forced_out: BTreeSet::new(),
            half_removed: BTreeMap::new(),
            weighing: Weighing::default(),
            handed_over: None,
            renumbered: BTreeMap::new(),
            ended: None,
        }
    }

    /// Begins to deliver from `found`.
    fn begin(&mut self, found: Found) -> Seqno {
        self.marks = found.marks;
        self.index = found.again.map_or(found.log_start, |(from, _)| from - 1);
        self.cut_asked = found.state.cut();
        self.positions = Positions::new(found.state.position().seqno);
        self.state = found.state;
        self.state.position().seqno
    }
}

impl Session {
    /// Has the own join ordered.
    async fn get_joined(self: Arc<Self>, join: Join, leader: Option<String>) {
        let control = Control::Join(join.clone());
        let Some(mut asking) = leader else {
            // The first message of the own origin; the order repeats it.
            self.say(&control);
            return;
        };
        let limit = Duration::from_secs(12);
        let patience = tokio::time::Instant::now() + limit;
        loop {
            match ask(&self.process, &asking, &Request::Join(join.clone())).await {
                Some(Answer::NotLeader {
                    leader: Some(leader),
                }) if leader != self.addr => asking = leader,
                Some(Answer::Ok | Answer::Refused(_)) => {}
                _ => {
                    let nodes = self.shared.settings.nodes as u64;
                    asking = addr_of(self.inner().rng.below(nodes) as usize);
                }
            }
            let pause = self.inner().rng.ms(300, 900);
            if self
                .wait(pause, |i| i.joined.is_some().then_some(()))
                .await
                .is_some()
            {
                return;
            }
            if tokio::time::Instant::now() > patience {
                let ended = Ended::Again { log_is_gone: false };
                return self.end(ended, "nobody orders the join");
            }
        }
    }

    /// Leaves the cluster in good order when asked.
    async fn leave_when_asked(self: Arc<Self>) {
        while !self.process.leave.load(Ordering::Relaxed) {
            self.process.leave_wake.notified().await;
        }
        self.note(format_args!("leaves"));
        let alone = {
            let mut inner = self.inner();
            inner.phase = Phase::Leaving;
            inner.state.members().count() <= 1
        };
        let Some(engine) = self.engine().cloned() else {
            return;
        };
        // Clients first: their outcomes are on their way.
        self.wait(LEAVE, |i| i.pending.is_empty().then_some(()))
            .await;
        if !alone {
            let status = engine.status();
            let mut voters = status.members.voters().into_iter();
            if status.is_leader && voters.any(|id| id != status.id) {
                engine.transfer_leader(None);
                for _ in 0..60 {
                    if !engine.status().is_leader {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            self.say(&Control::Leave {
                uuid: self.uuid,
                reason: LeaveReason::Graceful,
            });
            self.wait(LEAVE, |i| i.own_leave.map(|_| ())).await;
            let applied = |i: &mut Inner| {
                let done = i.positions.released() >= i.state.position().seqno;
                (i.held || done).then_some(())
            };
            self.wait(LEAVE, applied).await;
            self.wait_gone(&engine).await;
        }
        self.end(Ended::Exit(Exit::Left), "left");
    }

    /// Waits until the others' log does not count this one any more.
    async fn wait_gone(&self, engine: &Engine) {
        let raft_id = engine.status().id;
        let deadline = tokio::time::Instant::now() + LEAVE;
        while tokio::time::Instant::now() < deadline {
            let status = engine.status();
            let leader = status.leader.filter(|(id, _)| *id != raft_id);
            let mut other = status.members.addrs.into_iter();
            let addr = leader
                .or_else(|| other.rfind(|(id, _)| *id != raft_id))
                .map(|(_, addr)| addr);
            let Some(addr) = addr else { return };
            if ask_counts(&self.process, addr, raft_id).await == Some(false) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
