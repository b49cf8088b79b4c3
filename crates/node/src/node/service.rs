//! Answers and duties that may take time: threads beside the order thread. What may wait for a disk has one of
//! its own, as the others must not wait for that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_order::{Checkpoint, LogId, Members, Order, Reply, incarnation};

use super::{Node, Phase, lock};
use crate::chain::Compared;
use crate::cluster::ClusterState;
use crate::forks::{Forks, LogEnd};
use crate::gone::gone;
use crate::messages::{
    Answer, CheckpointParts, Control, Join, Need, Position, Request, encode, kind,
};
use crate::taken::refusal;

/// How many requests may wait; more are refused and asked again.
const WAITING_MAX: usize = 64;

/// How long a node that leads may take to deliver what it has, before who asks is told to ask again.
const DELIVERS: Duration = Duration::from_millis(300);

/// Work for the service thread.
pub(super) enum Job {
    Request {
        request: Request,
        reply: Reply,
    },
    Lease {
        primary: bool,
    },
    /// No majority for long: maybe the others went on without this node.
    Seek,
    /// Maybe there is another primary component.
    Beside,
    /// Others may go on without this node from now on.
    NotAlone,
    Stop,
}

impl Job {
    fn may_wait_for_a_disk(&self) -> bool {
        match self {
            Job::Request { request, .. } => matches!(request, Request::State { .. }),
            Job::NotAlone => true,
            Job::Lease { .. } | Job::Seek | Job::Beside | Job::Stop => false,
        }
    }
}

impl Node {
    /// Starts the service threads for one connection, and the one that syncs.
    pub(super) fn start_service(self: &Arc<Self>) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        *lock(&self.services) = Some(sender);
        let (to_disk, for_disk) = sync_channel(WAITING_MAX);
        self.serves("dromon-answers", for_disk, None)?;
        // It ends with the other one.
        self.serves("dromon-service", receiver, Some(to_disk))?;
        self.start_syncer()
    }

    /// A thread that does what comes; `to_disk`: but what may wait for a disk, which goes there.
    fn serves(
        self: &Arc<Self>,
        name: &str,
        jobs: Receiver<Job>,
        to_disk: Option<SyncSender<Job>>,
    ) -> std::io::Result<()> {
        let node = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                serve(&jobs, to_disk.as_ref(), |job| match node.upgrade() {
                    Some(node) => node.job(job),
                    None => false,
                });
            })?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    pub(super) fn services(&self) -> Option<SyncSender<Job>> {
        lock(&self.services).clone()
    }

    fn job(self: &Arc<Self>, job: Job) -> bool {
        match job {
            Job::Request { request, reply } => {
                reply.send(encode(&self.answer(request)));
                true
            }
            Job::Lease { primary } => {
                self.lease_changed(primary);
                true
            }
            Job::Seek => {
                self.seek_primary();
                true
            }
            Job::Beside => {
                self.ask_beside();
                true
            }
            Job::NotAlone => {
                self.save_not_alone();
                true
            }
            Job::Stop => false,
        }
    }

    fn answer(self: &Arc<Self>, request: Request) -> Answer {
        let Some(order) = self.order() else {
            let why = "this node is not connected".into();
            return match request {
                // A refusal is the word of a leader.
                Request::Gone { .. } => Answer::Wait(why),
                _ => Answer::Refused(why),
            };
        };
        match request {
            // Nobody goes on beside it, and what it is then is known soon.
            Request::Probe if self.is_going_alone(&order) => {
                Answer::Wait("this node is about to go on without a majority".into())
            }
            Request::Probe => self.info(&order),
            Request::State {
                position,
                log,
                sum,
                witness,
            } => self.state_for(&order, position, log, sum, witness),
            Request::Join(join) => self.lead_control(&order, Control::Join(join)),
            Request::Leave { uuid, reason } => {
                self.lead_control(&order, Control::Leave { uuid, reason })
            }
            Request::Gone { raft_id } => gone(&order.status(), raft_id),
        }
    }

    fn info(&self, order: &Arc<dyn Order>) -> Answer {
        let status = order.status();
        let shared = self.shared();
        let delivered = lock(&self.delivered).seqno;
        Answer::Info {
            // A witness knows of no statement what it did.
            in_doubt: shared.in_doubt || self.setup.witness,
            uuid: shared.uuid,
            name: self.setup.name.clone(),
            primary: status.primary && shared.view.is_some(),
            leader: status.leader.map(|(_, addr)| addr),
            position: Position {
                history: self.history(),
                seqno: delivered,
            },
            members: match status.failed {
                None => status.members.addrs.into_values().collect(),
                Some(_) => Vec::new(),
            },
            last: status.last,
        }
    }

    fn lead_control(&self, order: &Arc<dyn Order>, control: Control) -> Answer {
        let status = order.status();
        if !status.is_leader {
            return Answer::NotLeader {
                leader: status.leader.map(|(_, addr)| addr),
            };
        }
        if self.phase() != Phase::Joined {
            return Answer::Refused("this node leads but has no state yet".into());
        }
        if let Control::Join(join) = &control
            && let Some(why) = self.refuse_join(join)
        {
            return Answer::Refused(why);
        }
        match order.propose(kind::CONTROL, 0, encode(&control)) {
            Ok(_) => Answer::Ok,
            Err(e) => Answer::Refused(e.to_string()),
        }
    }

    fn refuse_join(&self, join: &Join) -> Option<String> {
        let history = self.history();
        let ahead = join.position.history == history
            && join.position.seqno > lock(&self.delivered).seqno
            && join.need == Need::Log;
        if ahead {
            return Some(format!(
                "your position {} is ahead of the cluster; joining would undo transactions",
                join.position
            ));
        }
        let shared = self.shared();
        let members = shared.view.iter().flat_map(|v| &v.members);
        refusal(members, &shared.uuid, join, |uuid| self.flow.silent(uuid))
    }

    /// The newest checkpoint from which a database at `position` can go on, or
    /// the newest of all if it needs a copy; an earlier one if streaming transactions
    /// were open there.
    fn state_for(
        self: &Arc<Self>,
        order: &Arc<dyn Order>,
        position: Position,
        log: Option<LogEnd>,
        sum: Option<u64>,
        witness: bool,
    ) -> Answer {
        let status = order.status();
        if !status.is_leader {
            return Answer::NotLeader {
                leader: status.leader.map(|(_, addr)| addr),
            };
        }
        if self.phase() != Phase::Joined {
            return Answer::Refused("this node leads but has no state to give".into());
        }
        // Who hears yes throws its own log away: only a majority may say so.
        if !status.primary {
            return Answer::Refused("this node leads but does not hear a majority now".into());
        }
        let forks = match self.forks(order, status.term) {
            Ok(forks) => forks,
            Err(why) => return Answer::Wait(why),
        };
        let same = position.is_defined()
            && position.history == self.history()
            && forks.shares(log, position.seqno);
        let mut ordered = lock(&self.delivered).seqno;
        if same && !witness && position.seqno > ordered {
            // What it has may lie in the log here and be on its way: only then it is known.
            let until = Instant::now() + DELIVERS;
            if self.seqno_at(status.last.index, until).is_none() {
                return Answer::Wait(
                    "this node leads but has not delivered all of its log yet".into(),
                );
            }
            ordered = lock(&self.delivered).seqno;
        }
        // Read first: from one that cannot be read nobody goes on, and an older one does as well.
        let begins = self.newest_mark(order, |m| {
            same && m.seqno <= position.seqno && position.seqno <= ordered
        });
        let mut begins = match begins {
            Ok(begins) => begins,
            Err(why) => return Answer::Refused(why),
        };
        if let Some((lost, _)) = &status.unreadable {
            // He could not be sent what lies behind it.
            begins = begins.filter(|checkpoint| checkpoint.log_id.index >= *lost);
        }
        let mut compared = Compared::Unknown;
        if let (Some(checkpoint), Some(_)) = (&begins, sum) {
            match self.sum_at(order, checkpoint.log_id.index, position.seqno) {
                Ok(Some(ours)) => compared = Compared::of(ours, sum),
                // He could not be sent what cannot be read.
                Ok(None) => begins = None,
                Err(why) => return Answer::Wait(why),
            }
        }
        let at = begins.filter(|_| !compared.differs());
        let need = if at.is_some() { Need::Log } else { Need::Copy };
        // Who goes for a copy gives its data up first.
        if need == Need::Copy && !witness && !self.has_data_member() {
            return Answer::Refused(
                "the members that are there have the log but no data (witnesses), so nobody can give the full copy that \
                 this node needs: start a data node first whose position the log reaches back to. If this node's data is \
                 whole and its own log is damaged, move its log away: then it goes on from the position of its data"
                    .into(),
            );
        }
        let checkpoint = match at {
            Some(at) => Ok(Some(at)),
            None => self.newest_mark(order, |_| true),
        };
        let checkpoint = checkpoint.and_then(|found| match found {
            Some(there) if !witness => self.before_streams(order, there).map(Some),
            found => Ok(found),
        });
        match checkpoint {
            Ok(Some(checkpoint)) => {
                lock(&self.promised).make(checkpoint.log_id.index, Instant::now());
                Answer::State {
                    need,
                    compared,
                    checkpoint: to_parts(&checkpoint),
                    term: status.term,
                }
            }
            Ok(None) => Answer::Refused("this node has no checkpoint that can be read".into()),
            Err(why) => Answer::Refused(why),
        }
    }
}

impl Node {
    /// Where a node begins for which the checkpoint `there` would do: the database that it
    /// goes on with, or gets, has what is open there of streaming transactions.
    fn before_streams(
        &self,
        order: &Arc<dyn Order>,
        there: Checkpoint,
    ) -> Result<Checkpoint, String> {
        let state = ClusterState::decode(&there.sequencer, &there.node);
        let Some(from) = state.map_err(|e| e.to_string())?.streams_from() else {
            return Ok(there);
        };
        let older = self.newest_mark(order, |m| m.index < from)?;
        Ok(older.unwrap_or(there))
    }

    /// Where this log parted from others, by its newest checkpoint.
    fn forks(&self, order: &Arc<dyn Order>, term: u64) -> Result<Forks, String> {
        let newest = self.newest_mark(order, |_| true)?;
        let newest = newest.ok_or("this node has no checkpoint that can be read")?;
        let state = ClusterState::decode(&newest.sequencer, &newest.node);
        let forks = state.map_err(|e| e.to_string())?.forks().clone();
        if forks.last().incarnation() == incarnation(term) {
            Ok(forks)
        } else {
            Err("this node has just begun a new incarnation of the cluster".into())
        }
    }
}

fn serve(
    receiver: &Receiver<Job>,
    to_disk: Option<&SyncSender<Job>>,
    mut work: impl FnMut(Job) -> bool,
) {
    while let Ok(job) = receiver.recv() {
        if let (Some(to_disk), true) = (to_disk, job.may_wait_for_a_disk()) {
            // If it is full, who asks is not answered and asks again.
            let _ = to_disk.try_send(job);
            continue;
        }
        // The hook has told of a panic; who asked asks again, and the next duty is done all the same.
        let ends = catch_unwind(AssertUnwindSafe(|| !work(job)));
        if ends.unwrap_or(false) {
            return;
        }
    }
}

fn to_parts(c: &Checkpoint) -> CheckpointParts {
    let id = |l: LogId| (l.term, l.leader, l.index);
    CheckpointParts {
        log_id: id(c.log_id),
        members_id: c.members.log_id.map(id),
        configs: c
            .members
            .configs
            .iter()
            .map(|s| s.iter().copied().collect())
            .collect(),
        addrs: c
            .members
            .addrs
            .iter()
            .map(|(&k, v)| (k, v.clone()))
            .collect(),
        sequencer: c.sequencer.to_vec(),
        node: c.node.to_vec(),
    }
}

/// The other way round; `None` if the state inside cannot be read.
pub(super) fn from_parts(p: CheckpointParts) -> Option<(Checkpoint, ClusterState)> {
    let state = ClusterState::decode(&p.sequencer, &p.node).ok()?;
    let id = |(term, leader, index)| LogId {
        term,
        leader,
        index,
    };
    let checkpoint = Checkpoint {
        log_id: id(p.log_id),
        members: Members {
            log_id: p.members_id.map(id),
            configs: p
                .configs
                .into_iter()
                .map(|s| s.into_iter().collect())
                .collect(),
            addrs: p.addrs.into_iter().collect(),
        },
        sequencer: Bytes::from(p.sequencer),
        node: Bytes::from(p.node),
    };
    Some((checkpoint, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_by_a_mistake_does_not_end_the_other_duties() {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        for job in [Job::Seek, Job::NotAlone, Job::Stop, Job::Seek] {
            sender.send(job).expect("room");
        }
        let mut done = 0;
        serve(&receiver, None, |job| {
            assert!(!matches!(job, Job::Seek), "a mistake");
            done += 1;
            !matches!(job, Job::Stop)
        });
        assert_eq!(done, 2, "the one behind it, and the end");
        assert!(receiver.try_recv().is_ok(), "nothing behind that");
    }

    #[test]
    fn who_loses_the_majority_does_not_wait_for_a_disk_that_hangs() {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        // Nobody takes anything from it.
        let (to_disk, _for_disk) = sync_channel(2);
        for job in [Job::NotAlone, Job::NotAlone, Job::NotAlone] {
            sender.send(job).expect("room");
        }
        for job in [Job::Lease { primary: false }, Job::Stop] {
            sender.send(job).expect("room");
        }
        let mut told = false;
        serve(&receiver, Some(&to_disk), |job| {
            told |= matches!(job, Job::Lease { primary: false });
            !matches!(job, Job::Stop)
        });
        assert!(told);
    }
}
