//! The engine's background tasks: what comes in from the network, own messages
//! on their way to the leader, read indexes, the membership, the status.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{
    AppendEntriesResponse, ReadPolicy, StreamAppendError, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use openraft::{ServerState, errors::Fatal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::candidate::Candidacy;
use crate::checked::{Check, in_place_of};
use crate::codec::{Wire, decode_message, encode_message};
use crate::engine_core::{Core, PendingRead, lock, peers_of};
use crate::engine_net::WINDOW;
use crate::intake::Intake;
use crate::membership::{LogEnd, Picture, Step, plan};
use crate::network::{Inbound, Lane};
use crate::raft_types::{AppendRequest, Message, Raft, RaftVote, TypeConfig, from_raft_members};
use crate::runtime::spawn;
use crate::stuck::{Seen, Stuck};
use crate::types::{Members, OrderError, OrderStatus, RaftId};

/// Bytes of own messages sent at once.
const FORWARD_BYTES: usize = 512 << 10;
/// Own messages sent and not yet seen in the order, at most.
const FORWARD_WINDOW: u64 = 4096;
/// How often the leader looks at the membership without being told.
const RECONCILE_PAUSE: Duration = Duration::from_millis(200);
/// The same while somebody that is gone is to be told.
const RECONCILE_LEAVERS: Duration = Duration::from_millis(25);
/// After a membership change that was refused.
const RECONCILE_RETRY: Duration = Duration::from_millis(100);

/// Takes what comes in and hands it to whom it concerns. Never waits on
/// anything but the network.
pub(crate) async fn route(core: Arc<Core>, raft: Raft, intake: mpsc::Sender<Intake>) {
    let mut followers = Followers::default();
    while let Some(inbound) = core.net.recv().await {
        match inbound {
            Inbound::Frame { from, lane, body } => match Wire::decode(body) {
                Ok((incarnation, wire)) if incarnation == core.incarnation() => {
                    core.hears(from);
                    on_frame(&core, &raft, &intake, &mut followers, from, lane, wire);
                }
                // A forced recovery parted us; it must join anew, or we must.
                Ok(_) => {}
                // The frame's checksum was right, so this peer speaks another
                // language; its session will time out and say so there.
                Err(_) => core.link_broke(from, lane),
            },
            Inbound::Request {
                from_addr,
                body,
                reply,
            } => core.handler.request(&from_addr, body, reply),
            Inbound::Link { peer, lane, up, .. } => {
                on_link(&core, &raft, peer, lane, up);
                if lane == Lane::Raft {
                    followers.answers_lost(&core, peer, up);
                }
            }
        }
    }
    if core.failure().is_none() {
        core.fail("the transport ended".to_owned());
    }
}

fn on_frame(
    core: &Arc<Core>,
    raft: &Raft,
    intake: &mpsc::Sender<Intake>,
    followers: &mut Followers,
    from: RaftId,
    lane: Lane,
    wire: Wire,
) {
    match wire {
        Wire::Append {
            session,
            seq,
            lease_us,
            addr,
            request,
        } => {
            let v = &request.vote;
            if !v.committed || v.leader_id.node_id != from {
                // Only a leader appends, and only in its own name.
                return;
            }
            let leadership = (v.leader_id.term, from);
            core.promised(leadership, Duration::from_micros(lease_us));
            is_at(core, from, &addr);
            if lane == Lane::Bulk {
                followers.append(core, raft, from, session, seq, request);
            } else {
                // While the consensus is busy, what it finds of them is enough: who asked has given up on the rest.
                let Ok(waits) = followers.heartbeats.clone().try_acquire_owned() else {
                    return;
                };
                let (core, raft) = (core.clone(), raft.clone());
                spawn(async move {
                    heartbeat(&core, &raft, from, session, seq, request).await;
                    drop(waits);
                });
            }
        }
        Wire::Appended {
            session,
            seq,
            result,
        } => core.append_answered(from, session, (seq, result)),
        Wire::Vote {
            id,
            pre,
            transfer,
            addr,
            vote,
            last,
        } => {
            is_at(core, from, &addr);
            let request = VoteRequest {
                vote,
                last_log_id: last,
                leadership_transfer: transfer,
            };
            let (core, raft) = (core.clone(), raft.clone());
            spawn(async move { answer_vote(&core, &raft, from, id, pre, request).await });
        }
        Wire::Voted {
            id,
            granted,
            vote,
            last,
        } => core.voted(
            id,
            VoteResponse {
                vote,
                vote_granted: granted,
                last_log_id: last,
            },
        ),
        Wire::TransferLeader { vote, to, last } => {
            let raft = raft.clone();
            spawn(async move {
                let request = TransferLeaderRequest::new(vote, to, last);
                // What came of it shows in who leads next.
                let _ = raft.handle_transfer_leader(request).await;
            });
        }
        Wire::PositionLost { vote } => {
            if is_current(raft, &vote) {
                core.handler.position_lost();
            }
        }
        Wire::Forward { round, messages } => {
            let batch = Intake {
                from,
                round,
                messages,
            };
            if intake.try_send(batch).is_err() {
                let _ = core.send(from, Lane::Raft, &Wire::Refused { round });
            }
        }
        Wire::Refused { round } => {
            if core.leader().is_some_and(|(id, _)| id == from) {
                core.outbox.refused(Some(round));
            }
        }
        Wire::ReadIndex { id } => {
            let (core, raft) = (core.clone(), raft.clone());
            spawn(async move {
                let index = confirmed_index(&core, &raft).await;
                let _ = core.send(from, Lane::Raft, &Wire::ReadIndexIs { id, index });
            });
        }
        Wire::ReadIndexIs { id, index } => core.read_index_is(id, index),
        Wire::AskTransfer { to } => {
            let core = core.clone();
            spawn(async move { hand_over(&core, Some(to).filter(|id| *id != 0)).await });
        }
        Wire::Cast(body) => core.handler.message(from, body),
    }
}

fn on_link(core: &Arc<Core>, raft: &Raft, peer: RaftId, lane: Lane, up: bool) {
    // Either way, what was under way before may be lost.
    core.link_broke(peer, lane);
    if lane == Lane::Bulk && core.outbox.lock().leader.is_some_and(|(id, _)| id == peer) {
        core.outbox.refused(None);
    }
    if lane == Lane::Bulk {
        core.hold_or_send();
    }
    if up && lane == Lane::Bulk {
        let raft = raft.clone();
        spawn(async move {
            // Only hastens what would be retried anyway.
            let _ = raft.trigger().reset_backoff([peer]).await;
        });
    }
}

/// Whether `vote` is that of the leadership this node knows.
fn is_current(raft: &Raft, vote: &RaftVote) -> bool {
    raft.metrics().borrow_watched().vote == *vote
}

/// Remembers where a leader, a candidate or somebody looked for is, so that it can be
/// answered.
pub(crate) fn is_at(core: &Arc<Core>, id: RaftId, addr: &str) {
    if addr.is_empty() {
        return;
    }
    let is_member = || core.other_members().contains(&id);
    let news = lock(&core.whereabouts).hear(id, addr, core.now(), is_member);
    if news {
        update_peers(core);
    }
}

/// Tells the transport whom to talk to.
fn update_peers(core: &Arc<Core>) {
    let members = match core.raft() {
        Some(raft) => from_raft_members(&raft.metrics().borrow_watched().membership_config),
        None => return,
    };
    core.forget_answers(&members);
    let status = core.net.peers_status();
    let up = |id, addr: &str| {
        let link = status.get(&id);
        link.is_some_and(|l| l.addr == addr && l.up[Lane::Raft.index()])
    };
    let mut peers = lock(&core.whereabouts).links(members.addrs, up, core.now(), patience(core));
    peers.remove(&core.id);
    core.net.set_peers(peers);
}

/// How long a word about somebody's address counts.
fn patience(core: &Core) -> Duration {
    core.config.election_min * 8
}

/// Heartbeats that wait for the consensus at once, at most.
const HEARTBEATS: usize = 64;

/// Leaders.
struct Followers {
    /// The newest append session of each.
    sessions: BTreeMap<RaftId, Followed>,
    /// Room for their heartbeats.
    heartbeats: Arc<Semaphore>,
}

impl Default for Followers {
    fn default() -> Self {
        Followers {
            sessions: BTreeMap::new(),
            heartbeats: Arc::new(Semaphore::new(HEARTBEATS)),
        }
    }
}

struct Followed {
    session: u64,
    requests: mpsc::Sender<AppendRequest>,
    /// Answers them. The consensus may take one more after its end.
    task: JoinHandle<()>,
}

impl Followers {
    fn append(
        &mut self,
        core: &Arc<Core>,
        raft: &Raft,
        from: RaftId,
        session: u64,
        seq: u64,
        request: AppendRequest,
    ) {
        let newest = self.sessions.get(&from).map(|f| f.session);
        if newest != Some(session) {
            if seq != 0 {
                // The beginning was lost with the link.
                return refuse(core, from, session);
            }
            let (tx, rx) = mpsc::channel(WINDOW * 2);
            let task = follow(core.clone(), raft.clone(), from, session, rx);
            let followed = Followed {
                session,
                requests: tx,
                task: core.supervise("append", task),
            };
            self.sessions.insert(from, followed);
            // Only a leader opens sessions, so there are few.
            self.sessions
                .retain(|id, f| *id == from || !f.task.is_finished());
        }
        if let Some(f) = self.sessions.get(&from)
            && (f.task.is_finished() || f.requests.try_send(request).is_err())
        {
            // It ended with an error, which was answered, or was lost.
            refuse(core, from, session);
        }
    }

    /// The way to `leader` broke, or is there again (`up`): answers may be lost,
    /// and are not said again.
    fn answers_lost(&self, core: &Core, leader: RaftId, up: bool) {
        if let Some(f) = self.sessions.get(&leader) {
            f.task.abort();
            if up {
                refuse(core, leader, f.session);
            }
        }
    }
}

/// Says that a session is at its end, with an answer to what was never asked: the
/// leader begins anew then. It knows by the number whether it has done so already.
fn refuse(core: &Core, leader: RaftId, session: u64) {
    if core.failure().is_some() {
        // Who is silent is evicted.
        return;
    }
    let answer = Wire::Appended {
        session,
        seq: u64::MAX,
        result: Ok(None),
    };
    // If it is lost, the next request is answered like this, or the link is made anew.
    let _ = core.send(leader, Lane::Raft, &answer);
}

/// Feeds one session of appends to the consensus and answers in order.
async fn follow(
    core: Arc<Core>,
    raft: Raft,
    from: RaftId,
    session: u64,
    requests: mpsc::Receiver<AppendRequest>,
) {
    let input = futures_util::stream::unfold(requests, |mut rx| async move {
        rx.recv().await.map(|request| (request, rx))
    });
    let mut answers = Box::pin(raft.stream_append(input));
    let mut seq = 0;
    while let Some(answer) = answers.next().await {
        let Ok(result) = answer else {
            // The consensus is dead; the status says so.
            return;
        };
        let answer = Wire::Appended {
            session,
            seq,
            result,
        };
        if core.send(from, Lane::Raft, &answer).is_err() {
            return;
        }
        seq += 1;
    }
}

async fn heartbeat(
    core: &Core,
    raft: &Raft,
    from: RaftId,
    session: u64,
    seq: u64,
    request: AppendRequest,
) {
    let prev = request.prev_log_id;
    let last = request.entries.last().map(|e| e.log_id).or(prev);
    let Ok(response) = raft.append_entries(request).await else {
        return;
    };
    let result = match (response, prev) {
        (AppendEntriesResponse::Conflict, Some(at)) => Err(StreamAppendError::Conflict(at)),
        (AppendEntriesResponse::Conflict, None) => return,
        (response, prev) => response.into_stream_result(prev, last),
    };
    let answer = Wire::Appended {
        session,
        seq,
        result,
    };
    let _ = core.send(from, Lane::Raft, &answer);
}

async fn answer_vote(
    core: &Core,
    raft: &Raft,
    from: RaftId,
    id: u64,
    pre: bool,
    request: VoteRequest<TypeConfig>,
) {
    let theirs = request.last_log_id;
    let outcome = if pre {
        raft.pre_vote(request).await
    } else {
        raft.vote(request).await
    };
    if let Ok(r) = outcome {
        if r.last_log_id > theirs {
            *lock(&core.needed) = Some(core.now());
        }
        // Another election would be the end of the one that is under way.
        let voted = pre && core.voted_slowly();
        let answer = Wire::Voted {
            id,
            granted: r.vote_granted && !voted,
            vote: r.vote,
            last: r.last_log_id,
        };
        let _ = core.send(from, Lane::Raft, &answer);
    }
}

/// Sends own messages to whoever leads.
pub(crate) async fn forward(core: Arc<Core>, intake: mpsc::Sender<Intake>) {
    let outbox = core.outbox.clone();
    loop {
        let (batch, deadline) = next_batch(&core);
        let Some((leader, round, messages)) = batch else {
            let again = deadline.map(|at| core.instant(at));
            tokio::select! {
                biased;
                () = outbox.wake.notified() => {}
                () = sleep_maybe(again) => {}
            }
            continue;
        };
        if leader == core.id {
            let batch = Intake {
                from: core.id,
                round,
                messages,
            };
            // Waiting here is fine: nothing else depends on this task.
            if intake.send(batch).await.is_err() {
                return;
            }
        } else {
            let wire = Wire::Forward { round, messages };
            // One lane for all: numbers must arrive in order.
            if core.send(leader, Lane::Bulk, &wire).is_err() {
                outbox.refused(Some(round));
            }
        }
    }
}

/// Compares a piece that was copied to be sent. If it would end what is not what it must be,
/// another one goes in its place.
fn compare(core: &Core, check: &Mutex<Check>, copied: &mut Message) {
    // Just encoded.
    let Ok(piece) = decode_message(copied) else {
        return;
    };
    if lock(check).take(&piece) {
        return core.outbox.lock().queue.sends(piece);
    }
    let other = in_place_of(&piece);
    *copied = encode_message(&other);
    core.outbox.lock().queue.sends(other);
    core.handler.spoilt(piece.kind, piece.tag);
}

type Batch = (RaftId, u64, Vec<Message>);

fn next_batch(core: &Core) -> (Option<Batch>, Option<Duration>) {
    let outbox = &core.outbox;
    let now = outbox.now();
    let mut s = outbox.lock();
    s.queue.on_timeout(now);
    let rewinds = s.queue.status().rewinds;
    let (high, seen) = s.sent_high;
    let full = seen == rewinds && high >= s.queue.confirmed() + FORWARD_WINDOW;
    let batch = if full {
        Vec::new()
    } else {
        s.queue.next_batch(FORWARD_BYTES, now)
    };
    let deadline = s.queue.next_deadline(now);
    match (s.leader, batch.last()) {
        (Some((leader, _)), Some(last)) => {
            s.sent_high = (last.oseq, rewinds);
            s.round += 1;
            let round = s.round;
            let checks: Vec<_> = batch.iter().map(|m| s.queue.check_of(m)).collect();
            drop(s);
            let mut messages: Vec<_> = batch.iter().map(encode_message).collect();
            for (at, check) in checks.into_iter().enumerate() {
                let Some(check) = check else { continue };
                compare(core, &check, &mut messages[at]);
            }
            (Some((leader, round, messages)), deadline)
        }
        _ => (None, deadline),
    }
}

async fn sleep_maybe(until: Option<Instant>) {
    match until {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An index confirmed by a majority, if this node leads.
async fn confirmed_index(core: &Core, raft: &Raft) -> Option<u64> {
    let question = core.question();
    let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
    // The library has asked a majority too, but takes answers to older appends
    // for answers to this question.
    let at = linearizer.read_log_id();
    let confirmed = core.confirmed(question, at.committed_leader_id().term);
    timeout(core.config.election_min, confirmed).await.ok()?;
    Some(at.index())
}

/// Questions under way. If the task ends before it has answers, the one that
/// takes its place asks again.
struct Reads(Arc<Core>, VecDeque<PendingRead>);

impl Drop for Reads {
    fn drop(&mut self) {
        lock(&self.0.reads).extend(self.1.drain(..));
    }
}

/// Answers who waits for a read index, all who wait at once with one question
/// to the leader. Who comes while a question is under way waits for the next.
pub(crate) async fn read_indexes(core: Arc<Core>, raft: Raft) {
    loop {
        let taken = std::mem::take(&mut *lock(&core.reads)).into();
        let mut batch = Reads(core.clone(), taken);
        if batch.1.is_empty() {
            core.reads_wake.notified().await;
            continue;
        }
        while !batch.1.is_empty() {
            if let Err(e) = core.alive() {
                batch.1.drain(..).for_each(|r| (r.done)(Err(e.clone())));
                break;
            }
            let last = batch.1.iter().map(|r| r.deadline).max();
            let attempt = core.config.election_min.min(Duration::from_secs(1));
            let until = (Instant::now() + attempt).min(last.unwrap_or_else(Instant::now));
            let answer = timeout_at(until, ask_index(&core, &raft)).await;
            if let Ok(Some(index)) = answer {
                batch.1.drain(..).for_each(|r| (r.done)(Ok(index)));
                break;
            }
            let now = Instant::now();
            for r in std::mem::take(&mut batch.1) {
                if r.deadline <= now {
                    (r.done)(Err(OrderError::NoMajority(r.timeout)));
                } else {
                    batch.1.push_back(r);
                }
            }
            if !batch.1.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn ask_index(core: &Core, raft: &Raft) -> Option<u64> {
    let (leader, _) = core.leader()?;
    if leader == core.id {
        return confirmed_index(core, raft).await;
    }
    let (id, answer) = core.expect_read();
    core.send(leader, Lane::Raft, &Wire::ReadIndex { id })
        .ok()?;
    answer.await.ok().flatten()
}

/// Calls the node's tick and casts what it says.
pub(crate) async fn tick(core: Arc<Core>) {
    loop {
        sleep(core.config.tick).await;
        core.ticks();
        if let Some(why) = core.storage.write_failed() {
            core.fail(why);
        }
        if let Some(body) = core.handler.tick() {
            core.cast(&Wire::Cast(body));
        }
    }
}

/// Watches leader, members and lease; tells the node, the transport and the
/// queue of own messages. While the lease stands it looks again at its end, so
/// whatever it was not told of counts soon.
pub(crate) async fn watch(core: Arc<Core>, raft: Raft) {
    let mut server = raft.server_metrics();
    let mut told: Option<OrderStatus> = None;
    let mut ended = false;
    loop {
        if let Err(fatal) = &raft.metrics().borrow_watched().running_state {
            core.fail(match fatal {
                Fatal::Panicked => "the consensus core panicked".to_owned(),
                other => other.to_string(),
            });
        } else if ended {
            core.fail("the consensus core ended".to_owned());
        }
        let leader = core.leader();
        {
            let now = core.outbox.now();
            let mut s = core.outbox.lock();
            if s.leader != leader {
                s.leader = leader;
                s.round_base = s.round + 1;
                s.queue.on_leader(leader, now);
                core.outbox.wake.notify_one();
            }
        }
        core.hold_or_send();
        let status = core.status();
        let news = told.as_ref().is_none_or(|old| {
            let key = |s: &OrderStatus| (s.primary, s.is_leader, s.term);
            key(old) != key(&status)
                || old.leader != status.leader
                || old.members != status.members
                || old.failed != status.failed
        });
        if news {
            update_peers(&core);
            core.desired_wake.notify_one();
            core.handler.status(&status);
            told = Some(status.clone());
        }
        if status.failed.is_some() {
            // Nothing changes any more.
            return;
        }
        let leads = raft.metrics().borrow_watched().state == ServerState::Leader;
        let again = if status.primary {
            Some(status.lease_left)
        } else if leads {
            // Waits for the first majority to answer.
            Some(core.config.heartbeat / 4)
        } else {
            None
        };
        let again = again.map(|d| Instant::now() + d.max(Duration::from_millis(1)));
        tokio::select! {
            biased;
            changed = server.changed() => ended = changed.is_err(),
            () = core.status_wake.notified() => {}
            () = sleep_maybe(again) => {}
        }
    }
}

/// Makes the membership what the node wants, while this node leads.
///
/// Also hands leadership over when the own disk hangs: the others commit
/// without this node, but it would not deliver what it orders. And when what it orders reaches nobody ([`Stuck`]).
pub(crate) async fn reconcile(core: Arc<Core>, raft: Raft) {
    let mut disk = (0, core.now());
    let mut stuck = Stuck::default();
    let mut led = Led::default();
    let mut candidacy = Candidacy::default();
    loop {
        let pause = sleep(match led.gone.is_empty() {
            true => RECONCILE_PAUSE,
            false => RECONCILE_LEAVERS,
        });
        tokio::select! {
            biased;
            () = core.desired_wake.notified() => {}
            () = pause => {}
        }
        while let Some(step) = next_step(&core, &raft, &mut led) {
            if !take_step(&core, &raft, step).await {
                sleep(RECONCILE_RETRY).await;
                break;
            }
        }
        look_for_others(&core, &raft);
        candidacy.look(&core, &raft);
        // Asking the leader to, as a follower, would only disturb the others.
        let leads = raft.metrics().borrow_watched().state == ServerState::Leader;
        if disk_hangs(&core, &mut disk) && leads {
            hand_over(&core, None).await;
        }
        let (near, append) = (core.config.election_min, core.config.piece);
        if stuck.look(core.now(), near, append, seen(&core, &raft)) {
            core.handler.reaches_nobody();
            hand_over(&core, None).await;
        }
    }
}

/// What this node sees of the other voters if it leads and all that it has is on its own disk.
fn seen(core: &Core, raft: &Raft) -> Option<Seen> {
    let (_, last, durable, committed, _) = core.storage.positions();
    let metrics = raft.metrics();
    let m = metrics.borrow_watched();
    if m.state != ServerState::Leader || durable < last.index {
        return None;
    }
    let members = from_raft_members(&m.membership_config);
    let peers = peers_of(&m);
    let voters = || peers.iter().filter(|(id, _)| members.is_voter(**id));
    let near = core.config.election_min;
    Some(Seen {
        last: last.index,
        committed,
        stored: voters().map(|(_, p)| p.matched).sum(),
        // Without a majority of the others nobody could take over, and this one would not go on leading.
        heard: members.configs.iter().all(|voters| {
            let is_heard = |id: &&RaftId| {
                let silent = peers.get(id).and_then(|p| p.silent);
                silent.is_some_and(|s| s < near)
            };
            voters.iter().filter(is_heard).count() > voters.len() / 2
        }),
    })
}

/// Whether nothing became durable for too long although something waits.
/// `seen` is the durable index and when it was last seen to move.
fn disk_hangs(core: &Core, seen: &mut (u64, Duration)) -> bool {
    let (_, last, durable, _, _) = core.storage.positions();
    let now = core.now();
    if durable != seen.0 || durable >= last.index {
        *seen = (durable, now);
        return false;
    }
    if now < seen.1 + core.config.election_min * 4 {
        return false;
    }
    // Not again at once if there is no heir.
    seen.1 = now;
    true
}

/// A term in which this node leads, and where the log ended when that was seen.
#[derive(Default)]
struct Led {
    term: u64,
    from: u64,
    end: LogEnd,
    /// Members that are not wanted, and since when.
    gone: BTreeMap<RaftId, Duration>,
}

fn next_step(core: &Core, raft: &Raft, led: &mut Led) -> Option<Step> {
    let metrics = raft.metrics();
    let m = metrics.borrow_watched();
    if m.state != ServerState::Leader || m.last_quorum_acked.is_none() {
        led.gone.clear();
        return None;
    }
    let last_log = m.last_log_index.unwrap_or(0);
    if led.term != m.current_term {
        *led = Led {
            term: m.current_term,
            from: last_log,
            end: LogEnd::default(),
            gone: BTreeMap::new(),
        };
    }
    let members = from_raft_members(&m.membership_config);
    let desired = lock(&core.desired);
    let now = core.now();
    led.gone
        .retain(|id, _| members.addrs.contains_key(id) && !desired.contains_key(id));
    let gone = members.addrs.keys().filter(|id| !desired.contains_key(id));
    // Nothing is wanted before the first wish.
    for id in gone.filter(|_| !desired.is_empty()) {
        led.gone.entry(*id).or_insert(now);
    }
    let gone_for = led
        .gone
        .iter()
        .map(|(id, at)| (*id, now.saturating_sub(*at)));
    plan(&Picture {
        me: core.id,
        stood_down: core.stood_down(),
        processed: core.processed(),
        led_from: led.from,
        members: &members,
        settled: m.membership_config.log_id() == m.committed_membership_config.log_id(),
        desired: &desired,
        peers: &peers_of(&m),
        gone_for: &gone_for.collect(),
        log_was: led
            .end
            .look(now, last_log, core.config.heartbeat, RECONCILE_PAUSE),
        fresh: core.config.election_min,
    })
}

/// Whether it worked.
async fn take_step(core: &Arc<Core>, raft: &Raft, step: Step) -> bool {
    match step {
        Step::HandOver(to) => {
            hand_over(core, Some(to)).await;
            false
        }
        Step::Change { changes, retain } => {
            // Ends by itself when the leadership does; the limit is for what
            // was not thought of.
            let limit = core.config.election_min * 8;
            matches!(
                timeout(limit, raft.change_membership(changes, retain)).await,
                Ok(Ok(_))
            )
        }
    }
}

/// Looks again whether the others are to be reached elsewhere.
fn look_for_others(core: &Arc<Core>, raft: &Raft) {
    // Not held below: whoever holds the other lock may look at the metrics.
    let config = raft.metrics().borrow_watched().membership_config.clone();
    let named = |id: &RaftId| Some(config.membership().get_node(id)?.addr.as_str());
    if lock(&core.whereabouts).unsettled(named, core.now(), patience(core)) {
        update_peers(core);
    }
}

/// Hands leadership to `to`, or to the most advanced other voter; a follower
/// asks the leader to.
pub(crate) async fn hand_over(core: &Arc<Core>, to: Option<RaftId>) {
    let Some(raft) = core.raft() else { return };
    let (leads, members, peers) = {
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        let members: Members = from_raft_members(&m.membership_config);
        (m.state == ServerState::Leader, members, peers_of(&m))
    };
    if !leads {
        if let Some((leader, _)) = core.leader() {
            let wire = Wire::AskTransfer {
                to: to.unwrap_or(0),
            };
            let _ = core.send(leader, Lane::Raft, &wire);
        }
        return;
    }
    let heir = match to {
        Some(id) => Some(id).filter(|id| members.is_voter(*id)),
        None => peers
            .iter()
            .filter(|(id, p)| {
                members.is_voter(**id) && p.silent.is_some_and(|s| s < core.config.election_min)
            })
            .max_by_key(|(_, p)| p.matched)
            .map(|(id, _)| *id),
    };
    if let Some(id) = heir
        && id != core.id
    {
        // An error means the consensus is dead, which the status says.
        let _ = raft.trigger().transfer_leader(id).await;
    }
}

/// Hands leadership over, if this node has it, and waits until it is gone.
pub(crate) async fn leave_the_lead(core: &Arc<Core>, raft: &Raft) {
    let leads = {
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        m.state == ServerState::Leader && m.running_state.is_ok()
    };
    if leads {
        hand_over(core, None).await;
        let gone = |m: &openraft::RaftMetrics<TypeConfig>| m.state != ServerState::Leader;
        // An error means that the consensus is dead, and so is its lead.
        let _ = raft.wait(None).metrics(gone, "not the leader").await;
    }
}
