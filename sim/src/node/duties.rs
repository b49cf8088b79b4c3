//! What a member does beside its transactions: answers, reports, notices that
//! it has caught up or lost the majority, comes back, and as leader cuts,
//! evicts and admits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use dromon_node::chain::{Compared, count};
use dromon_node::cluster::{CAUGHT_UP, ClusterState, MemberState};
use dromon_node::electors::Weighing;
use dromon_node::forks::{Forks, LogEnd};
use dromon_node::gone::gone;
use dromon_node::last_data;
use dromon_node::messages::{Answer, Control, Need, Position, Progress, Request, decode, encode};
use dromon_order::{Engine, NodeHandler, Order, OrderStatus, RaftId, Reply, incarnation};
use dromon_writeset::{Seqno, Uuid};
use tokio::time::Instant;

use super::start::{ask_counts, to_parts};
use super::{Ended, Inner, Phase, Session};
use crate::database::Image;
use crate::net::addr_of;
use crate::plant::Plant;
use crate::weights::{Weights, any, stream};

/// First byte of a question to the node.
pub(super) const QUESTION: u8 = 0;
/// First byte of a copy of a database.
pub(super) const COPY: u8 = 1;
/// How often a node outside looks whether the cluster goes on without it.
const WATCH: Duration = Duration::from_millis(700);
/// How often a witness that leads asks another to, and for how long that one may
/// have been silent.
const HAND_OVER_EVERY: Duration = Duration::from_millis(500);
/// A tick this late means that this node itself did not run.
const AWAY: Duration = Duration::from_millis(500);

/// The session as its order sees it.
pub(super) struct Handler(pub Weak<Session>);

impl NodeHandler for Handler {
    fn request(&self, _from: &str, body: Bytes, reply: Reply) {
        let Some(session) = self.0.upgrade() else {
            return;
        };
        match body.split_first() {
            Some((&QUESTION, rest)) => {
                if let Some(request) = decode::<Request>(rest)
                    && let Some(answer) = session.answer(request)
                {
                    reply.send(encode(&answer));
                }
            }
            Some((&COPY, rest)) => {
                if let Ok((joiner, image)) = postcard::from_bytes::<(Uuid, Image)>(rest)
                    && session.copy_came(joiner, image)
                {
                    reply.send(Bytes::from_static(b"taken"));
                }
            }
            _ => {}
        }
    }

    fn message(&self, _from: RaftId, body: Bytes) {
        if let (Some(session), Some(report)) = (self.0.upgrade(), decode::<Progress>(&body)) {
            session.reported(&mut session.inner(), report);
        }
    }

    fn tick(&self) -> Option<Bytes> {
        self.0.upgrade()?.tick()
    }

    fn status(&self, status: &OrderStatus) {
        let Some(session) = self.0.upgrade() else {
            return;
        };
        let leader = status.leader.as_ref();
        session.note(format_args!(
            "order: primary {} leader {} term {}{}",
            status.primary,
            leader.map_or("-", |(_, addr)| addr.as_str()),
            status.term,
            if status.is_leader { " (self)" } else { "" },
        ));
        session.primary_changed(status.primary);
    }

    fn position_lost(&self) {
        if let Some(session) = self.0.upgrade() {
            session.end(
                Ended::Again { log_is_gone: true },
                "the others have dropped the log this node needs",
            );
        }
    }
}

impl Session {
    fn answer(self: &Arc<Self>, request: Request) -> Option<Answer> {
        let engine = self.engine()?;
        let status = engine.status();
        let leader = status.leader.as_ref().map(|(_, addr)| addr.clone());
        Some(match request {
            Request::Probe => {
                let inner = self.inner();
                Answer::Info {
                    in_doubt: false,
                    uuid: self.uuid,
                    name: format!("n{}", self.host.slot),
                    primary: status.primary && inner.phase == Phase::Joined,
                    leader,
                    position: inner.state.position(),
                    members: status.members.addrs.into_values().collect(),
                    last: status.last,
                }
            }
            Request::Gone { raft_id } => gone(&status, raft_id),
            _ if !status.is_leader => Answer::NotLeader { leader },
            Request::State {
                position,
                log,
                sum,
                witness,
            } => self.state_for(engine, position, log, sum, witness),
            Request::Join(join) => {
                let inner = self.inner();
                let ahead =
                    join.need == Need::Log && join.position.seqno > inner.state.position().seqno;
                if inner.phase != Phase::Joined || ahead {
                    Answer::Refused("not yet".to_owned())
                } else {
                    drop(inner);
                    self.order(&Control::Join(join))
                }
            }
            Request::Leave { uuid, reason } => {
                if self.inner().phase != Phase::Joined {
                    return Some(Answer::Refused("not yet".to_owned()));
                }
                self.order(&Control::Leave { uuid, reason })
            }
        })
    }

    fn order(&self, control: &Control) -> Answer {
        if self.say(control) {
            Answer::Ok
        } else {
            Answer::Refused("it cannot be ordered now".to_owned())
        }
    }

    /// The newest checkpoint from which a database at `position` can go on, or
    /// the newest of all if it needs a copy.
    fn state_for(
        &self,
        engine: &Engine,
        position: Position,
        log: Option<LogEnd>,
        sum: Option<u64>,
        witness: bool,
    ) -> Answer {
        let status = engine.status();
        let inner = self.inner();
        if inner.phase != Phase::Joined {
            return Answer::Refused("it leads but has no state yet".to_owned());
        }
        // Who hears yes throws its own log away: only a majority may say so.
        if !status.primary {
            return Answer::Refused("it does not hear a majority now".to_owned());
        }
        let forks = match forks(engine, status.term) {
            Ok(forks) => forks,
            Err(why) => return Answer::Refused(why),
        };
        let now = inner.state.position();
        let unchecked = self.shared.planted_everywhere(Plant::ForkUnchecked);
        let same = position.is_defined()
            && position.history == now.history
            && (unchecked || forks.shares(log, position.seqno));
        if same && position.seqno > now.seqno {
            return Answer::Refused("not that far yet".to_owned());
        }
        let data = inner.state.members().any(|m| m.complete && !m.witness);
        let mark = inner
            .marks
            .iter()
            .rfind(|m| same && m.seqno <= position.seqno)
            .map(|m| m.index);
        let to = inner.index;
        drop(inner);
        // It would see by itself what the forks see.
        let unseen = unchecked || self.shared.planted_everywhere(Plant::ChainUnchecked);
        let sum = sum.filter(|_| !unseen);
        let compared = match (mark, sum) {
            (Some(index), Some(_)) => match sum_at(engine, index, to, position.seqno) {
                Ok(ours) => Compared::of(ours, sum),
                Err(why) => return Answer::Wait(why),
            },
            _ => Compared::Unknown,
        };
        let mark = mark.filter(|_| !compared.differs());
        if mark.is_none() && !witness && !data {
            return Answer::Refused("nobody has data to copy".to_owned());
        }
        match engine.load_checkpoint(mark) {
            Ok(Some(checkpoint)) => Answer::State {
                need: if mark.is_some() {
                    Need::Log
                } else {
                    Need::Copy
                },
                compared,
                checkpoint: to_parts(&checkpoint),
                term: status.term,
            },
            Ok(None) => Answer::Refused("there is no checkpoint".to_owned()),
            Err(e) => Answer::Refused(e.to_string()),
        }
    }

    fn reported(&self, inner: &mut Inner, report: Progress) {
        let newer = inner
            .reports
            .get(&report.uuid)
            .is_none_or(|(old, _)| old.number < report.number);
        if newer {
            inner.reports.insert(report.uuid, (report, Instant::now()));
        }
    }

    /// This node's report, and when due the duties of a member and a leader.
    fn tick(self: &Arc<Self>) -> Option<Bytes> {
        let engine = self.engine()?.clone();
        let status = engine.status();
        self.primary_changed(status.primary);
        let mut inner = self.inner();
        let now = Instant::now();
        let before = inner.last_tick.replace(now);
        if before.is_some_and(|at| now - at >= AWAY) {
            // It was this node that was away: the others are not to blame.
            for (_, heard) in inner.reports.values_mut() {
                *heard = now;
            }
            for known in inner.known.values_mut() {
                *known = now;
            }
            inner.stalled.forgive(now.into_std());
        }
        self.ask_synced(&mut inner);
        if !inner.half_removed.is_empty() {
            self.publish(&mut inner);
        }
        if status.is_leader && status.primary && inner.phase == Phase::Joined {
            self.lead(&mut inner, &status);
        } else {
            inner.stalled.look(now.into_std(), 0, std::iter::empty());
        }
        inner.joined.as_ref()?;
        let released = inner.positions.released();
        inner.report_number += 1;
        let report = Progress {
            uuid: self.uuid,
            ordered: inner.positions.last_ordered(),
            released,
            safe: inner
                .pending
                .values()
                .map(|p| p.last_seen)
                .fold(released, Seqno::min),
            needs_log: self.needs_log(&inner),
            queue: inner.entries.len() as u64,
            ready: 0,
            stop: false,
            number: inner.report_number,
            digest: (0, 0),
            durable: true,
        };
        self.reported(&mut inner, report.clone());
        Some(encode(&report))
    }

    fn ask_synced(&self, inner: &mut Inner) {
        let joined_at = inner.joined.as_ref().map(|(v, _)| v.position.seqno);
        let released = inner.positions.released();
        let ready = inner.own_state == MemberState::Joined
            && inner.phase == Phase::Joined
            && !inner.held
            && !inner.sync_asked
            && inner.positions.last_ordered() - released <= CAUGHT_UP
            && joined_at.is_some_and(|at| released >= at);
        if ready {
            inner.sync_asked = self.say(&Control::Synced { uuid: self.uuid });
        }
    }

    /// Gives this member other weights, now and then.
    pub(super) async fn weigh(self: Arc<Self>, weights: Weights) {
        let mut label = [0; 8];
        label.copy_from_slice(&self.uuid.0[..8]);
        let slot = self.host.slot as u64;
        let mut rng = stream(self.shared.seed, &[slot, u64::from_le_bytes(label)]);
        loop {
            tokio::time::sleep(rng.ms(500, weights.pause.as_millis() as u64)).await;
            let weight = any(&mut rng);
            // Whoever counts nothing now may be the only one left: that is for an operator to mend.
            let wiped = self.shared.wiped.load(Ordering::Relaxed);
            if self.inner().phase == Phase::Joined && !wiped {
                self.note(format_args!("weighs {weight}"));
                self.shared.count(|c| c.weights += 1);
                let uuid = self.uuid;
                self.say(&Control::Weight { uuid, weight });
            }
        }
    }

    /// Counts, where the leader is, what the weights come to.
    pub(super) fn count_weighing(&self, inner: &mut Inner) {
        let weighing = Weighing::of(inner.state.members());
        let before = std::mem::replace(&mut inner.weighing, weighing.clone());
        if weighing == before || !self.engine().is_some_and(|e| e.status().is_leader) {
            return;
        }
        self.note(format_args!("votes: {weighing:?}"));
        self.shared.count(|c| match weighing {
            Weighing::Even => {}
            Weighing::Sole(_) => c.alone += 1,
            Weighing::NotTheWeightless(_) => c.weightless += 1,
        });
    }

    /// A witness that leads looks for a data node that can lead as well.
    fn hand_to_data(&self, inner: &mut Inner, status: &OrderStatus) {
        let now = Instant::now();
        if inner
            .handed_over
            .is_some_and(|at| now - at < HAND_OVER_EVERY)
        {
            return;
        }
        let voters = status.members.voters();
        let members = inner.state.members();
        let heir = members
            .filter(|m| m.complete && !m.witness && voters.contains(&m.raft_id))
            .filter_map(|m| Some((m.raft_id, status.peers.get(&m.raft_id)?)))
            .filter(|(_, p)| p.silent.is_some_and(|s| s < HAND_OVER_EVERY))
            .max_by_key(|(id, p)| (p.matched, *id))
            .map(|(id, _)| id);
        let (Some(id), Some(engine)) = (heir, self.engine()) else {
            return;
        };
        inner.handed_over = Some(now);
        engine.transfer_leader(Some(id));
    }

    fn lead(&self, inner: &mut Inner, status: &OrderStatus) {
        if self.witness {
            self.hand_to_data(inner, status);
        }
        let mut safe = Some(Seqno::MAX);
        for m in inner.state.members().filter(|m| m.complete && !m.witness) {
            let report = inner.reports.get(&m.uuid).map(|(r, _)| r.safe);
            safe = safe.zip(report).map(|(a, b)| a.min(b));
        }
        if let Some(seqno) = safe
            && seqno < Seqno::MAX
            && seqno - inner.cut_asked.max(inner.state.cut()) >= self.shared.settings.cut_step
        {
            inner.cut_asked = seqno;
            self.say(&Control::Cut { seqno });
        }
        let suspect = self.shared.settings.suspect;
        let now = Instant::now();
        let matched = status.peers.iter().map(|(id, p)| (*id, p.matched));
        inner
            .stalled
            .look(now.into_std(), status.committed, matched);
        let mut silent = Vec::new();
        for m in inner.state.members().filter(|m| m.uuid != self.uuid) {
            // Never heard of here: silent since it became known.
            let heard = inner.reports.get(&m.uuid).map(|(_, at)| *at);
            let Some(since) = heard.or(inner.known.get(&m.uuid).copied()) else {
                continue;
            };
            let order = status.peers.get(&m.raft_id).and_then(|p| p.silent);
            let for_long = order.map_or(now - since, |o| o.min(now - since));
            let stood = inner.stalled.for_long(now.into_std(), m.raft_id);
            let votes = status.members.is_voter(m.raft_id);
            if for_long >= suspect {
                silent.push((m.uuid, m.name.clone()));
            } else if votes && stood >= self.shared.settings.inactive() {
                silent.push((m.uuid, m.name.clone()));
                self.shared.count(|c| c.stood_still += 1);
            }
        }
        for m in inner.state.members() {
            inner.known.entry(m.uuid).or_insert(now);
        }
        let asked = |uuid: &Uuid| {
            let at = inner.evicting.get(uuid);
            at.is_some_and(|at| now - *at < suspect)
        };
        let is_silent = |uuid: &Uuid| silent.iter().any(|(s, _)| s == uuid);
        let kept = match self.shared.planted_everywhere(Plant::EvictLastData) {
            true => None,
            false => last_data::kept(inner.state.members(), is_silent, asked),
        };
        silent.retain(|(uuid, _)| !asked(uuid) && kept != Some(*uuid));
        for (uuid, name) in silent {
            inner.evicting.insert(uuid, now);
            self.note(format_args!("evicts {name}"));
            self.shared.count(|c| c.evictions += 1);
            let by = status.leads();
            self.say(&Control::Evict { uuid, by });
        }
    }

    /// Notices a lost lease that lasts, and its return.
    fn primary_changed(self: &Arc<Self>, primary: bool) {
        let mut inner = self.inner();
        let grace = self.shared.settings.grace();
        if !primary {
            let since = *inner.primary_lost.get_or_insert_with(Instant::now);
            if inner.phase == Phase::Joined && since.elapsed() >= grace {
                inner.phase = Phase::NonPrimary;
                self.note(format_args!("is non-primary"));
                self.abandon(&mut inner);
            }
            return;
        }
        inner.primary_lost = None;
        if inner.phase == Phase::NonPrimary && !inner.evicted {
            self.rejoin(&mut inner);
        }
    }

    /// Comes back after a lost lease: an ordered leave and join in one. It
    /// serves again when that is delivered.
    fn rejoin(&self, inner: &mut Inner) {
        if inner.rejoin_asked {
            // The order delivers it in the end.
            return;
        }
        let released = inner.positions.released();
        inner.rejoin_asked = self.say(&Control::Rejoin {
            uuid: self.uuid,
            released,
        });
        self.note(format_args!("asks to come back"));
    }

    /// A node that is outside, or does not get in, finds out whether the
    /// cluster goes on without it; then it must begin with a new log.
    pub(super) async fn watch_membership(self: Arc<Self>) {
        let mut outside = 0;
        loop {
            tokio::time::sleep(WATCH).await;
            let Some(engine) = self.engine().cloned() else {
                return;
            };
            let status = engine.status();
            // A joiner is not a member before its join is ordered, and looks
            // after itself until then.
            let (waits, evicted) = {
                let inner = self.inner();
                let waits = inner.joins_by_leader && inner.joined.is_none();
                (waits, inner.evicted)
            };
            if !evicted {
                if status.primary || waits {
                    outside = 0;
                    continue;
                }
                outside += 1;
                if outside < 2 {
                    continue;
                }
            }
            let nodes = self.shared.settings.nodes as u64;
            let addr = addr_of(self.inner().rng.below(nodes) as usize);
            if addr == self.addr {
                continue;
            }
            if ask_counts(&self.process, addr, status.id).await == Some(false) {
                return self.end(
                    Ended::Again { log_is_gone: true },
                    "the cluster goes on without this node",
                );
            }
        }
    }
}

/// The sum at `seqno` in the own log, behind its checkpoint at `index`.
fn sum_at(engine: &Engine, index: u64, to: u64, seqno: Seqno) -> Result<u64, String> {
    let say = |e: dromon_order::OrderError| e.to_string();
    let checkpoint = engine.load_checkpoint(Some(index)).map_err(say)?;
    let checkpoint = checkpoint.ok_or("the checkpoint is gone")?;
    let state = ClusterState::decode(&checkpoint.sequencer, &checkpoint.node);
    let mut next = index + 1;
    let sum = count(state.map_err(|e| e.to_string())?, seqno, || {
        let entries = match next {
            _ if next > to => Vec::new(),
            _ => engine.read_log(next, to, 1 << 20).map_err(say)?,
        };
        next = entries.last().map_or(next, |e| e.index + 1);
        Ok(entries)
    })?;
    sum.ok_or_else(|| "the log does not reach there yet".to_owned())
}

/// Where this log parted from others, by its newest checkpoint.
fn forks(engine: &Engine, term: u64) -> Result<Forks, String> {
    let newest = engine.load_checkpoint(None).map_err(|e| e.to_string())?;
    let newest = newest.ok_or("there is no checkpoint")?;
    let state = ClusterState::decode(&newest.sequencer, &newest.node);
    let forks = state.map_err(|e| e.to_string())?.forks().clone();
    if forks.last().incarnation() == incarnation(term) {
        Ok(forks)
    } else {
        Err("it has just begun a new incarnation".to_owned())
    }
}
