//! The consensus library's network: its calls become frames to one member.
//!
//! Appends go in sessions. A session is one run of the library's request
//! stream: requests are numbered and sent without waiting, up to a window, and
//! answers come back in order. When an answer is an error, or out of order, or the
//! link breaks, or nothing comes for too long, the session ends and the library
//! begins another one from what the member is known to have.
//!
//! What is too long goes by what is on its way ([`SLOWEST`]), and begins anew with
//! each answer. A way that is only slow must not end sessions: the next one sends
//! the same again, behind what is still queued of the one before.
//!
//! A leader that hears nothing of a majority sends no appends ([`Core::deaf`]): those
//! who hear it would keep faith in it, and elect nobody who hears them.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use openraft::async_runtime::WatchReceiver;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::codec::Wire;
use crate::confirm::Question;
use crate::engine_core::{AppendAnswer, Core};
use crate::network::{Lane, SLOWEST, SendError};
use crate::raft_types::{AppendRequest, Node, RaftVote, TypeConfig};
use crate::runtime::VOTE_PATIENCE;
use crate::types::RaftId;

/// Appends of one session under way at once.
pub(crate) const WINDOW: usize = 64;
/// Their bytes; a single one may exceed it.
const WINDOW_BYTES: usize = 8 << 20;
/// An append says how long the lease lasts if, with it, no more bytes than these are on their
/// way.
const PROMISING: usize = 64 << 10;
/// How long to wait for room in the transport's queue before looking again.
const ROOM_PAUSE: Duration = Duration::from_millis(2);

type RaftError = RPCError<TypeConfig>;

/// Makes clients for members.
pub(crate) struct Clients(pub Arc<Core>);

impl RaftNetworkFactory<TypeConfig> for Clients {
    type Network = Client;

    async fn new_client(&mut self, target: RaftId, _: &Node) -> Client {
        self.client(target, Lane::Bulk)
    }

    async fn new_heartbeat_client(&mut self, target: RaftId, _: &Node) -> Client {
        self.client(target, Lane::Raft)
    }
}

impl Clients {
    fn client(&self, target: RaftId, lane: Lane) -> Client {
        Client {
            core: self.0.clone(),
            target,
            lane,
        }
    }
}

/// The way to one member.
pub(crate) struct Client {
    core: Arc<Core>,
    target: RaftId,
    /// Where appends go: heartbeats pass everything else.
    lane: Lane,
}

impl Client {
    fn unreachable(&self, why: impl ToString) -> RaftError {
        RPCError::Unreachable(Unreachable::from_string(why))
    }

    /// Asks again each `again`, as what was sent may be lost, until `timeout` is over or this node does not stand with this
    /// vote any more.
    async fn ask_vote(
        &self,
        rpc: VoteRequest<TypeConfig>,
        pre: bool,
        (again, timeout): (Duration, Duration),
    ) -> Result<VoteResponse<TypeConfig>, RaftError> {
        let (id, mut answer) = self.core.expect_vote();
        let wire = Wire::Vote {
            id,
            pre,
            transfer: rpc.leadership_transfer,
            addr: self.core.config.addr.clone(),
            vote: rpc.vote,
            last: rpc.last_log_id,
        };
        let until = Instant::now() + timeout;
        loop {
            let sent = self.core.send(self.target, Lane::Raft, &wire);
            if pre {
                sent.map_err(|e| self.unreachable(e))?;
            }
            let next = until.min(Instant::now() + again);
            match timeout_at(next, &mut answer).await {
                Ok(Ok(response)) => return Ok(response),
                // The consensus that asked is gone.
                Ok(Err(e)) => return Err(self.unreachable(e)),
                Err(_) => {}
            }
            if next == until || !self.stands_with(&rpc.vote) {
                return Err(self.unreachable(format!("no vote within {timeout:?}")));
            }
        }
    }

    /// Whether this node is a candidate with this vote.
    fn stands_with(&self, vote: &RaftVote) -> bool {
        let Some(raft) = self.core.raft() else {
            return false;
        };
        let metrics = raft.metrics();
        let m = metrics.borrow_watched();
        m.running_state.is_ok() && m.vote == *vote
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        rpc: AppendRequest,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RaftError> {
        let mut answers = self
            .stream_append(Box::pin(stream::once(async { rpc })), option)
            .await?;
        match answers.next().await {
            Some(answer) => answer.map(AppendEntriesResponse::from),
            None => Err(RPCError::Unreachable(Unreachable::from_string(
                "the session ended without an answer",
            ))),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RaftError>>, RaftError>,
    >
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let session = Session::open(self.core.clone(), self.target, self.lane, input);
        Box::pin(async move {
            let answers: BoxStream<'s, _> =
                Box::pin(stream::unfold(Some(session), |state| async move {
                    state?.next().await
                }));
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RaftError> {
        // It has to be stored there.
        let times = (option.hard_ttl(), VOTE_PATIENCE);
        self.ask_vote(rpc, false, times).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RaftError> {
        let times = (option.hard_ttl(), option.hard_ttl());
        self.ask_vote(rpc, true, times).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        _: openraft::Snapshot<crate::raft_types::RaftLeader, RaftId, Node, ()>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        // There is nothing to send: the member must transfer the state anew
        // and will come back under another id.
        let wire = Wire::PositionLost { vote };
        let why = match self.core.send(self.target, Lane::Raft, &wire) {
            Ok(()) => "its position is not in the log any more; it was told so".to_owned(),
            Err(e) => e.to_string(),
        };
        Err(StreamingError::Unreachable(Unreachable::from_string(why)))
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<TypeConfig>, RaftError> {
        let wire = Wire::TransferLeader {
            vote: *req.from_leader(),
            to: *req.to_node_id(),
            last: req.last_log_id().copied(),
        };
        self.core
            .send(self.target, Lane::Raft, &wire)
            .map_err(|e| self.unreachable(e))?;
        // Whether it works out shows in who leads next.
        Ok(Ok(()))
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(self.core.config.heartbeat)))
    }
}

/// See the module's words.
struct Session<S> {
    core: Arc<Core>,
    to: RaftId,
    lane: Lane,
    id: u64,
    input: Option<S>,
    answers: mpsc::Receiver<AppendAnswer>,
    under_way: VecDeque<UnderWay>,
    bytes: usize,
    /// What was queued before this session, until its first answer.
    ahead: usize,
    /// The newest answer.
    answered: Option<Instant>,
    seq: u64,
    /// Made, but the transport had no room.
    stuck: Option<(Wire, Made)>,
    patience: Duration,
}

/// What an answer will be worth.
#[derive(Clone, Copy)]
struct Made {
    bytes: usize,
    term: u64,
    mark: Question,
}

/// Sent and not answered.
struct UnderWay {
    seq: u64,
    at: Instant,
    made: Made,
}

impl<S> Drop for Session<S> {
    fn drop(&mut self) {
        self.core.close_session(self.id);
    }
}

type Answer = Result<StreamAppendResult<TypeConfig>, RaftError>;

impl<S: Stream<Item = AppendRequest> + Unpin> Session<S> {
    fn open(core: Arc<Core>, to: RaftId, lane: Lane, input: S) -> Self {
        let (id, answers) = core.open_session(to, lane, WINDOW * 2);
        // A slow disk may take longer than an election; only a dead way is
        // meant here, and links report most of those themselves.
        let patience = (core.config.election_min * 4).max(Duration::from_secs(3));
        let ahead = match lane {
            Lane::Bulk => core
                .net
                .peers_status()
                .get(&to)
                .map_or(0, |l| l.queued_bytes),
            // Nothing heavy is before it.
            _ => 0,
        };
        Session {
            core,
            to,
            lane,
            id,
            input: Some(input),
            answers,
            under_way: VecDeque::new(),
            bytes: 0,
            ahead,
            answered: None,
            seq: 0,
            stuck: None,
            patience,
        }
    }

    /// The next answer, sending what may be sent meanwhile.
    async fn next(mut self) -> Option<(Answer, Option<Self>)> {
        loop {
            if let Err(e) = self.push_stuck() {
                return Some((Err(RPCError::Unreachable(Unreachable::new(&e))), None));
            }
            let idle = self.under_way.is_empty();
            if self.input.is_none() && idle && self.stuck.is_none() {
                return None;
            }
            let room = self.stuck.is_none()
                && self.under_way.len() < WINDOW
                && (idle || self.bytes < WINDOW_BYTES);
            let (deadline, patience) = self.deadline();
            let stuck = self.stuck.is_some();
            let Session { input, answers, .. } = &mut self;
            tokio::select! {
                biased;
                answer = answers.recv(), if !idle => {
                    return match answer {
                        Some(answer) => Some(self.take(answer)),
                        None => Some((Err(self.broken("the link broke")), None)),
                    };
                }
                request = next_of(input), if room && input.is_some() => match request {
                    Some(_) if self.core.lease_left().is_zero() && self.core.deaf() => {
                        return Some((Err(self.broken("nobody is heard, and others may be elected")), None));
                    }
                    Some(request) => self.make(request),
                    None => self.input = None,
                },
                () = sleep(ROOM_PAUSE), if stuck => {}
                () = sleep_until(deadline), if !idle => {
                    let why = format!("no answer within {patience:?}");
                    return Some((Err(self.broken(&why)), None));
                }
            }
        }
    }

    /// When to give up on the next answer, and how long it is waited for.
    fn deadline(&self) -> (Instant, Duration) {
        let Some(next) = self.under_way.front() else {
            return (Instant::now(), Duration::ZERO);
        };
        let bytes = (next.made.bytes + self.ahead) as f64;
        let patience = self.patience + Duration::from_secs_f64(bytes / f64::from(SLOWEST));
        let since = self.answered.map_or(next.at, |at| at.max(next.at));
        (since + patience, patience)
    }

    fn make(&mut self, request: AppendRequest) {
        let heartbeat = self.lane == Lane::Raft;
        let next = request.prev_log_id.map_or(0, |id| id.index + 1);
        if request.entries.is_empty() && self.core.storage.unreadable().is_lost(next) {
            let vote = request.vote;
            // It is said again with what comes next of this.
            let _ = self
                .core
                .send(self.to, Lane::Raft, &Wire::PositionLost { vote });
        }
        let made = Made {
            bytes: request.entries.iter().map(crate::storage::weight).sum(),
            term: request.vote.leader_id.term,
            mark: self.core.mark(),
        };
        let wire = Wire::Append {
            session: self.id,
            seq: self.seq,
            // What waits behind bulk is old when it arrives.
            lease_us: match heartbeat || self.bytes + self.ahead + made.bytes <= PROMISING {
                true => self.core.lease_left().as_micros() as u64,
                false => 0,
            },
            addr: if heartbeat {
                self.core.config.addr.clone()
            } else {
                String::new()
            },
            request,
        };
        self.stuck = Some((wire, made));
    }

    /// Sends what was made. Keeps it if there is no room just now.
    fn push_stuck(&mut self) -> Result<(), SendError> {
        let Some((wire, made)) = self.stuck.take() else {
            return Ok(());
        };
        match self.core.send(self.to, self.lane, &wire) {
            Ok(()) => {
                self.under_way.push_back(UnderWay {
                    seq: self.seq,
                    at: Instant::now(),
                    made,
                });
                self.bytes += made.bytes;
                self.seq += 1;
                Ok(())
            }
            Err(SendError::Full { .. }) => {
                self.stuck = Some((wire, made));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn take(mut self, (seq, result): AppendAnswer) -> (Answer, Option<Self>) {
        let made = match self.under_way.pop_front() {
            Some(sent) if sent.seq == seq => sent.made,
            // It has lost an answer or a request, and is there: nothing to wait for.
            _ => {
                let why = NetworkError::from_string(self.ended("an answer out of order"));
                return (Err(RPCError::Network(why)), None);
            }
        };
        self.bytes -= made.bytes;
        self.ahead = 0;
        self.answered = Some(Instant::now());
        if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
            self.core.accepted(self.to, made.term, made.mark);
        }
        if let Err(StreamAppendError::Conflict(at)) = &result {
            self.core.lacks(self.to, made.term, at.index);
        }
        let end = matches!(
            result,
            Err(StreamAppendError::Conflict(_) | StreamAppendError::HigherVote(_))
        );
        (Ok(result), (!end).then_some(self))
    }

    fn broken(&self, why: &str) -> RaftError {
        RPCError::Unreachable(Unreachable::from_string(self.ended(why)))
    }

    fn ended(&self, why: &str) -> String {
        format!("appends to member {:x} ended: {why}", self.to)
    }
}

async fn next_of<S: Stream<Item = AppendRequest> + Unpin>(
    input: &mut Option<S>,
) -> Option<AppendRequest> {
    input.as_mut()?.next().await
}
