//! Where to begin: the own log, or a primary component of others.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_order::{LogId, RaftId, Start, incarnation};
use dromon_writeset::{Seqno, Uuid};

use super::alone::Reached;
use super::connect::Found;
use super::halves::Parted;
use super::listed::others_listed;
use super::service::from_parts;
use super::{Aside, AskError, ConnectError, EngineError, LogSummary, Node};
use crate::cluster::ClusterState;
use crate::forks::{Forks, LogEnd};
use crate::gone::log_counts;
use crate::messages::{Answer, Need, Position, Request, decode, encode};
use crate::options::{ClusterAddress, Durability, Settings};

/// How long another node may take until its answer begins, and be silent amid it. (A
/// checkpoint is large, and the way may be slow.)
pub(super) const ASK: Duration = Duration::from_secs(3);

/// A log that is a majority by itself goes on after this long, although some of the
/// members it names do not answer: slow ones may have been forced to go on without it.
pub(super) const ALONE: Duration = Duration::from_secs(10);

/// Stands for the id of one that is asked by its address only.
pub(super) const NO_MEMBER: RaftId = 0;

/// Why a question got no answer.
pub(super) struct Unanswered {
    pub why: String,
    /// What is there refuses this node, or is none of its cluster: it will say the same again.
    pub refused: bool,
}

/// What a node does that has nobody to join yet.
pub(super) const LOOKING: &str = "looking for a primary component";

/// Whether others vote by this log.
pub(super) fn has_other_voters(log: &LogSummary) -> bool {
    log.voters.iter().any(|id| *id != log.id)
}

/// Whether others are members by this log, with a vote or without.
pub(super) fn has_others(log: &LogSummary) -> bool {
    has_other_voters(log) || log.members.keys().any(|id| *id != log.id)
}

/// Whether this log is a majority by itself.
pub(super) fn votes_alone(log: &LogSummary) -> bool {
    log.is_voter() && !has_other_voters(log)
}

/// Whether this log names nobody but its own node, which votes.
pub(super) fn names_itself_alone(log: &LogSummary) -> bool {
    votes_alone(log) && log.members.contains_key(&log.id) && !has_others(log)
}

/// Whether a log whose last entry is of `term` goes on in a later incarnation than
/// `log`: somebody was forced to go on. It need not be primary at this moment.
pub(super) fn is_later(term: u64, log: &LogSummary) -> bool {
    incarnation(term) > log.end.last.incarnation()
}

/// Whether a log may be one that a majority needs, or is a majority: it
/// votes, or is stored by a member that the others may just have given a vote.
/// The leader counts on that log from the moment it proposes so; who died
/// before that entry came would else wait for the leader, and the leader for it.
pub(super) fn may_be_missed(log: &LogSummary) -> bool {
    log.members.contains_key(&log.id) && has_others(log)
}

/// Whether this one's log is of another incarnation than that of the last node, which ends with `last`, or has as much.
fn is_parted(r: &Reached, last: LogId) -> bool {
    let as_much = (r.last.term, r.last.index) >= (last.term, last.index);
    r.last.index > 0 && (as_much || incarnation(r.last.term) != incarnation(last.term))
}

/// What is said then.
fn beside_the_last_one(r: &Reached, last: LogId) -> String {
    let (theirs, ours) = (incarnation(r.last.term), incarnation(last.term));
    format!(
        "{} has a log of the same data, of incarnation {theirs} (here {ours}), and this node's log names nobody else: one of the two was \
         forced to go on without the other, or is a clone of it. What only one of them has acknowledged has to be given up: \
         compare them (dromon log show), set safe_to_bootstrap: 0 in grastate.dat of the one to give up, start the other one \
         with --wsrep-new-cluster (galera_new_cluster does), then that one as usual.",
        r.addr
    )
}

/// What is said of a leader of another history by who has data and cannot change it now.
pub(super) fn other_history(theirs: Uuid, position: Position) -> String {
    format!(
        "leads a cluster of this name but of another history ({theirs}; this node's data is at {position}): it was founded \
         anew, or another one has taken the name. Only a restart of this node's server joins it, by a full copy in place \
         of the data"
    )
}

/// What is said where the others take the one at this node's own address for their leader.
pub(super) fn own_address_leads(own: &str) -> String {
    format!(
        "not the leader; for it the leader is at {own}, which is this node's own address: it has not noticed yet that this \
         node was started anew, or another node has that address (wsrep_node_address)"
    )
}

/// What is said of the data beside a log that is gone on with.
fn data_at(position: Position, need: Need) -> String {
    match need {
        Need::Copy => "the data is to be copied anew".to_owned(),
        Need::Log => format!("database at {position}"),
    }
}

impl Node {
    pub(super) fn look_into_log(
        &self,
        settings: &Settings,
    ) -> Result<Option<LogSummary>, ConnectError> {
        let found = self.engines.inspect(&settings.log_dir);
        found.map_err(|e| match e {
            EngineError::Damaged(why) => ConnectError::Damaged(why),
            EngineError::Other(why) => ConnectError::Engine(why),
        })
    }

    /// Sets a damaged log aside, now that `leader` speaks for a majority that
    /// does not need it: what was acknowledged is there.
    pub(super) fn make_room(
        &self,
        settings: &Settings,
        why: &str,
        leader: &str,
    ) -> Result<(), ConnectError> {
        let names = self
            .engines
            .set_log_aside(&settings.log_dir, Aside::Damaged);
        let names = names.map_err(|e| {
            ConnectError::Engine(format!("{why} Its files could not be set aside: {e}"))
        })?;
        self.warn(&format!(
            "this node's log was damaged: {why} The others form a primary component without it (leader {leader}), \
             so nothing acknowledged is lost: its files are now {names} and can be deleted, and this node takes a \
             full copy. A bit that changed on a disk is a reason to check that disk"
        ));
        Ok(())
    }

    /// Sets the own log aside if others are members by it and it is of another history than
    /// the cluster that is joined: nobody there knows whether something acknowledged rests on it.
    /// Also if it is of another incarnation, and it or the data, which was at `stood`, has something
    /// that was left behind there: whoever was with it may have acknowledged that. The data need not have it,
    /// and a witness has none. `in_order`: up to there the log has what counts, as its node stopped in order.
    pub(super) fn keep_former_log(
        &self,
        settings: &Settings,
        found: &Found,
        stood: Position,
        in_order: Option<Position>,
    ) -> Result<(), ConnectError> {
        let theirs = found.state.position().history;
        let (Start::Join { term, .. }, Some(leader)) = (&found.start, &found.leader) else {
            return Ok(());
        };
        let mut log = match self.look_into_log(settings) {
            Ok(Some(log)) => log,
            // One that is damaged was seen to before, or counts for nothing.
            Ok(None) | Err(ConnectError::Damaged(_)) => return Ok(()),
            // Nobody has seen what it has: it must not be erased for that.
            Err(e) => return Err(e),
        };
        let Some(ours) = ClusterState::peek_of_any_build(&log.checkpoint.node) else {
            return Ok(());
        };
        let same = ours.history == theirs;
        // What it stored behind its own leave, others had by themselves then.
        let in_order = in_order.filter(|at| at.history == ours.history);
        log.goes_on &= in_order.is_none();
        let parted = match same {
            true => {
                // What stands for a witness's data is the cluster's.
                let stood = Some(stood).filter(|at| at.history == theirs && !self.is_witness());
                let all = [Some(ours), stood, in_order].into_iter().flatten();
                let seqno = all.map(|at| at.seqno).max().unwrap_or(ours.seqno);
                let at = Position { seqno, ..ours };
                self.left_behind(settings, &log, at, &found.state, leader, *term)
            }
            false => None,
        };
        if parted.is_none() && (same || !has_others(&log)) {
            return Ok(());
        }
        let others = match self.others_named(settings)? {
            others if others.is_empty() => "nobody".to_owned(),
            others => others.join(", "),
        };
        let names = self
            .engines
            .set_log_aside(&settings.log_dir, Aside::OtherHistory);
        let names = names.map_err(|e| {
            ConnectError::Engine(format!(
                "the cluster led by {leader} is of another {} than this node's log, and that log could not be set \
                 aside: {e}",
                match same {
                    true => "incarnation",
                    false => "history",
                }
            ))
        })?;
        if let Some(Parted { ours, theirs }) = parted {
            self.warn(&format!(
                "the cluster led by {leader} is of incarnation {theirs} of this history, and this node's log (with {others}) \
                 ended in incarnation {ours}: a node was forced to go on without the others, and what this log has beyond \
                 that is not in that cluster. {} The log is kept: its files are now {names}. If what is given up here is \
                 wanted, stop that cluster before any other node of this log starts: they have it, too. Else those files \
                 can be deleted",
                match found.need {
                    _ if self.is_witness() => "This witness follows that cluster.",
                    Need::Log => "This node's data is not beyond that, and follows that cluster.",
                    Need::Copy => "This node takes a full copy of that cluster in place of its data.",
                }
            ));
            return Ok(());
        }
        self.warn(&format!(
            "the cluster led by {leader} is of another history ({theirs}) than this node's log ({}, with {others}): it was \
             founded anew, by a backup or on an empty data directory, or another one has taken its name. {} The log is \
             kept: its files are now {names}. If that cluster was founded by mistake, start no other node of the former \
             one while it runs: they have what this one gives up. Else those files can be deleted",
            ours.history,
            match found.need {
                _ if self.is_witness() => "This witness follows it.",
                Need::Log => "This node's data is of that history, and follows it.",
                Need::Copy => "This node takes a full copy of it in place of its data.",
            }
        ));
        Ok(())
    }

    /// What this `log`, or the data beside it, has that the cluster of its history left behind which `leader` leads
    /// in `term`; at least one of the two has what comes up to `at`. The cluster's log begins here with `state`.
    fn left_behind(
        &self,
        settings: &Settings,
        log: &LogSummary,
        at: Position,
        state: &ClusterState,
        leader: &str,
        term: u64,
    ) -> Option<Parted> {
        let end = log.end;
        let (ours, theirs) = (end.last.incarnation(), incarnation(term));
        // One that was begun for that cluster, and then nothing came, has nothing of its own.
        if ours == theirs || end.voted.incarnation() == theirs {
            return None;
        }
        let parted = Some(Parted { ours, theirs });
        // Where nobody can tell, the log stays.
        let Some(forks) = self.forks_of(state, leader, theirs) else {
            return parted;
        };
        let Some(last) = forks.parted_from(end).filter(|last| at.seqno <= *last) else {
            return parted;
        };
        // It may have more than its newest checkpoint and the data. What another build wrote nobody counts here; after an
        // orderly stop nothing behind its newest checkpoint counts.
        if ClusterState::other_format(&log.checkpoint.node).is_some() {
            return parted.filter(|_| log.goes_on);
        }
        let beyond = Position {
            seqno: last + 1,
            ..at
        };
        match self.log_sum(beyond, settings) {
            Ok(None) => None,
            Ok(Some(_)) | Err(_) => parted,
        }
    }

    /// Where the cluster that `leader` leads in this `incarnation` parted from others. The `state` that its log
    /// begins with here may be from before that.
    fn forks_of(&self, state: &ClusterState, leader: &str, incarnation: u32) -> Option<Forks> {
        let of_now = |forks: &&Forks| forks.last().incarnation() == incarnation;
        if let Some(forks) = Some(state.forks()).filter(of_now) {
            return Some(forks.clone());
        }
        // Who has nothing is given the newest.
        let request = Request::State {
            position: Position::UNDEFINED,
            log: None,
            sum: None,
            witness: true,
        };
        let cluster = self.shared().cluster.clone();
        let Ok(Answer::State { checkpoint, .. }) = self.ask(&cluster, leader, &request) else {
            return None;
        };
        let (_, newest) = from_parts(checkpoint)?;
        Some(newest.forks()).filter(of_now).cloned()
    }

    /// Addresses of the voters that the own log names beside this node; if there are
    /// none, of the members.
    pub(super) fn others_named(&self, settings: &Settings) -> Result<Vec<String>, ConnectError> {
        let summary = self.look_into_log(settings)?;
        let Some(summary) = summary else {
            return Ok(Vec::new());
        };
        let alone = !has_other_voters(&summary);
        let others = summary
            .members
            .iter()
            .filter(|(id, _)| **id != summary.id && (alone || summary.voters.contains(id)));
        Ok(others.map(|(_, addr)| addr.clone()).collect())
    }

    /// The own log, if it names others too and leads on from the database's
    /// position: after an outage the logs of a majority make a primary
    /// component again, whichever nodes come first. So does one that names nobody else, if its node was the last one.
    pub(super) fn log_with_others(
        &self,
        position: Position,
        settings: &Settings,
        looked: Duration,
    ) -> Result<Option<Found>, ConnectError> {
        let last_one = self.is_of_the_last_one(position);
        let fits = |log: &LogSummary| may_be_missed(log) || last_one && names_itself_alone(log);
        let found = self.resumable_as_is(position, settings, fits)?;
        if let Some(found) = &found {
            let log = self.look_into_log(settings)?;
            let log = log.filter(votes_alone);
            let alone = log.is_some();
            let history = found.state.position().history;
            if log.is_some_and(|log| self.is_left_behind(&log, history, settings, looked)) {
                return Ok(None);
            }
            let others = self.others_named(settings)?.join(", ");
            self.note(&format!(
                "no primary component answers; this node's own log (checkpoint at {}, {}) {}{others}",
                found.state.position(),
                data_at(position, found.need),
                match alone {
                    true if others.is_empty() => "names nobody else, as this node was the last one: it goes on with that",
                    true => "is the only one that votes, so it is a majority and goes on. Members without a vote: ",
                    false => "waits for a majority with: ",
                },
            ));
        }
        Ok(found)
    }

    /// Whether the data at `position` is that of the last node of a cluster, and its state file says so, which a tool
    /// that makes a clone removes, and an operator who gives this one up sets to 0. A running server that is told to
    /// look for others looks for others.
    pub(super) fn is_of_the_last_one(&self, position: Position) -> bool {
        let saved = self.saved();
        let same = position.is_defined() && saved.uuid == position.history;
        same && saved.safe_to_bootstrap && !self.is_witness() && !self.was_up.load(Relaxed)
    }

    /// Whether the members that `log`, which alone votes, names may have gone on without
    /// it, as an operator forced one to: nothing else would keep it from doing so too. The log need not name
    /// those any more, so who is listed and of the same `history` counts likewise. Where it names nobody, one of these that
    /// has as much is a clone; of two that were forced apart people choose one.
    fn is_left_behind(
        &self,
        log: &LogSummary,
        history: Uuid,
        settings: &Settings,
        looked: Duration,
    ) -> bool {
        // It ends before the search does.
        let patience = ALONE.min(settings.wait_prim_timeout / 2);
        let (cluster, address) = {
            let shared = self.shared();
            (shared.cluster.clone(), shared.address.clone())
        };
        let others = || log.members.iter().filter(|(id, _)| **id != log.id);
        let mut listed = self.each_address(&others_listed(&address, settings), settings);
        listed.retain(|addr| others().all(|(_, named)| named != addr));
        let asked = others().chain(listed.iter().map(|addr| (&NO_MEMBER, addr)));
        let mut probed = self.probe(&cluster, asked);
        let is_member = |id: RaftId| id != NO_MEMBER;
        let mut reached = std::mem::take(&mut probed.reached);
        let named = others().count();
        let all = match named {
            0 => reached.len() == listed.len(),
            _ => reached.iter().filter(|r| is_member(r.id)).count() == named,
        };
        reached.retain(|r| is_member(r.id) || r.history == history);
        if named == 0 {
            let parted = reached
                .iter()
                .find(|r| !r.primary && is_parted(r, log.last));
            let beside = parted.map(|r| beside_the_last_one(r, log.last));
            if let Some(why) = beside.or(probed.barred) {
                self.warn_now_and_then(&format!(
                    "{why} This node does not go on by itself meanwhile"
                ));
                return true;
            }
            // The network may not be up yet.
            let nowhere = !listed.is_empty() && probed.unlooked.len() == listed.len();
            if nowhere || !probed.looking.is_empty() {
                let looking = probed.looking.into_keys();
                let names: Vec<String> = looking.chain(probed.unlooked).collect();
                self.warn_now_and_then(&format!(
                    "names cannot be looked up here, or this host has no way there: {}. Nobody knows whether others went on \
                     without this node, which does not go on by itself meanwhile",
                    names.join(", ")
                ));
                return true;
            }
        }
        let mut terms = reached.iter().map(|r| r.last.term);
        reached.iter().any(|r| r.primary)
            || probed.going.is_some()
            || terms.any(|term| is_later(term, log))
            || !all && looked < patience
    }

    /// The last node of a cluster has gone on by itself, and its log ends with `last`: whether another one has that is listed, of
    /// the same `history`. Two that look at once do not see each other before that.
    pub(super) fn goes_on_beside(
        &self,
        cluster: &str,
        address: &ClusterAddress,
        settings: &Settings,
        history: Uuid,
        last: LogId,
    ) -> Option<String> {
        let listed = self.each_address(&others_listed(address, settings), settings);
        let asked = listed.iter().map(|addr| (&NO_MEMBER, addr));
        let reached = self.probe(cluster, asked).reached;
        let mut same = reached.iter().filter(|r| r.history == history);
        let other = same.find(|r| r.primary || is_parted(r, last))?;
        Some(beside_the_last_one(other, last))
    }

    /// The own log, if the leader at `addr` still counts it among the members'.
    ///
    /// Its vote stands for what it has acknowledged, and it may be one of only
    /// two copies of that: who erased it would bring the cluster one death
    /// nearer to losing it. One without a vote may be about to get it, whatever
    /// this node has heard of that. Once the members have gone on without it,
    /// nothing rests on it any more. So it is where that leader, in `term`, is of another incarnation, whomever it
    /// has not dropped yet: its frames would not be heard here. No answer means that it stays: an evicted
    /// node notices that later. One that is damaged, or of another history than
    /// `theirs`, does not count here; the caller finds out.
    pub(super) fn own_log_first(
        &self,
        name: &str,
        addr: &str,
        term: u64,
        theirs: Option<Uuid>,
        position: Position,
        settings: &Settings,
    ) -> Result<Option<Found>, ConnectError> {
        let found = match self.resumable_as_wanted(position, settings, has_others) {
            Err(ConnectError::Damaged(_)) => None,
            // It was not looked into: it may count, and must not be erased for that.
            found => found?,
        };
        let Some(found) = found else { return Ok(None) };
        if theirs.is_some_and(|theirs| theirs != found.state.position().history) {
            return Ok(None);
        }
        if found.need == Need::Copy && self.parted(name, addr, &found.state, settings) {
            return Ok(None);
        }
        let Some(log) = self.look_into_log(settings)? else {
            return Ok(None);
        };
        // One that was begun for that incarnation may have no entry of it yet.
        if log.end.voted.incarnation() != incarnation(term) {
            return Ok(None);
        }
        let gone = Request::Gone { raft_id: log.id };
        let counts = log_counts([addr.to_owned()], "", |addr| {
            self.ask(name, addr, &gone).ok()
        });
        let counts = match counts {
            Some(false) => return Ok(None),
            Some(true) => "counts",
            None if !may_be_missed(&log) => return Ok(None),
            None => "has not said whether it still counts",
        };
        self.note(&format!(
            "{addr} leads a primary component, and {counts} this node's own log (checkpoint at {}, {}): going on with \
             that",
            found.state.position(),
            data_at(position, found.need)
        ));
        Ok(Some(Found {
            counted_by: Some(addr.to_owned()),
            ..found
        }))
    }

    /// Whether the own log, at its newest checkpoint, is not of the cluster's history.
    /// Where there is data, its position was compared; here there is none.
    fn parted(&self, name: &str, addr: &str, own: &ClusterState, settings: &Settings) -> bool {
        let request = Request::State {
            position: own.position(),
            log: self.own_log_end(settings),
            sum: Some(own.sum()),
            witness: false,
        };
        match self.ask(name, addr, &request) {
            Ok(Answer::State { compared, .. }) => compared.differs(),
            // No answer means that the log stays.
            _ => false,
        }
    }

    /// The cluster's last seqno, if a database at `asked` of the same history is ahead of it; the error is why that is not known:
    /// `addr` leads, gives `state` to start from, and would have it take a full copy.
    pub(super) fn last_before(
        &self,
        name: &str,
        addr: &str,
        asked: Position,
        log: Option<LogEnd>,
        state: &ClusterState,
    ) -> Result<Option<Seqno>, String> {
        let at = state.position();
        let may_be = |at: Position| {
            let same = asked.is_defined() && asked.history == at.history;
            same && asked.seqno > at.seqno && state.forks().shares(log, asked.seqno)
        };
        if self.is_witness() || !may_be(at) {
            return Ok(None);
        }
        // More may have been ordered since that state.
        match self.ask(name, addr, &Request::Probe) {
            Ok(Answer::Info { position, .. }) => Ok(may_be(position).then_some(position.seqno)),
            Ok(_) => Err("did not say how far it is".to_owned()),
            Err(unanswered) => Err(unanswered.why),
        }
    }

    /// The own log to go on with; where a full copy is wished for, without the data.
    pub(super) fn resumable_as_wanted(
        &self,
        position: Position,
        settings: &Settings,
        fits: impl Fn(&LogSummary) -> bool,
    ) -> Result<Option<Found>, ConnectError> {
        match self.wants_copy.load(Relaxed) {
            true => self.resumable_for_copy(position, settings, fits),
            false => self.resumable_as_is(position, settings, fits),
        }
    }

    /// The own log to go on with, whether or not there is data that belongs to it.
    fn resumable_as_is(
        &self,
        position: Position,
        settings: &Settings,
        fits: impl Fn(&LogSummary) -> bool,
    ) -> Result<Option<Found>, ConnectError> {
        match position.is_defined() {
            true => self.resumable(position, settings, fits),
            false => self.resumable_for_copy(position, settings, fits),
        }
    }

    /// The own log, for its vote: what was stored in it others may count on,
    /// whatever became of the data, which is copied anew.
    fn resumable_for_copy(
        &self,
        position: Position,
        settings: &Settings,
        fits: impl Fn(&LogSummary) -> bool,
    ) -> Result<Option<Found>, ConnectError> {
        let log = self.look_into_log(settings)?;
        let at = log.and_then(|l| ClusterState::peek_position(&l.checkpoint.node));
        let own = |at: &Position| position.history.is_nil() || position.history == at.history;
        let Some(at) = at.filter(own) else {
            return Ok(None);
        };
        let found = self.resumable(at, settings, fits)?;
        Ok(found.map(|found| Found {
            need: Need::Copy,
            ..found
        }))
    }

    /// The own log to go on with, if it `fits` and the database is of its history.
    pub(super) fn resumable(
        &self,
        position: Position,
        settings: &Settings,
        fits: impl Fn(&LogSummary) -> bool,
    ) -> Result<Option<Found>, ConnectError> {
        if settings.durability != Durability::Majority {
            // One that is damaged is in nobody's way then.
            let told = self.forgetful_told.load(Relaxed);
            if !told && matches!(self.look_into_log(settings), Ok(Some(_))) {
                self.tell_forgetful();
            }
            return Ok(None);
        }
        if !position.is_defined() {
            return Ok(None);
        }
        let Some(summary) = self.look_into_log(settings)? else {
            return Ok(None);
        };
        if !summary.durable {
            self.tell_forgetful();
            return Ok(None);
        }
        let decoded = ClusterState::decode(&summary.checkpoint.sequencer, &summary.checkpoint.node);
        let state = match decoded {
            Ok(state) => state,
            Err(e) => {
                if !self.unread_told.swap(true, Relaxed) {
                    let why = match ClusterState::other_format(&summary.checkpoint.node) {
                        Some(format) => format!(
                            "another build wrote it (format {format}; this one has format {})",
                            ClusterState::FORMAT
                        ),
                        None => e.to_string(),
                    };
                    self.note(&format!("the log here is not gone on with: {why}"));
                }
                return Ok(None);
            }
        };
        if !fits(&summary) || state.position().history != position.history {
            return Ok(None);
        }
        Ok(Some(Found {
            start: Start::Resume,
            log_start: summary.checkpoint.log_id.index,
            state,
            need: Need::Log,
            differs: false,
            leader: None,
            counted_by: None,
            needs_others: !names_itself_alone(&summary),
        }))
    }

    fn tell_forgetful(&self) {
        if !self.forgetful_told.swap(true, Relaxed) {
            self.note(
                "the log here is kept with dromon.durability=memory, or was, and may have forgotten what it acknowledged: it is \
                 not gone on with",
            );
        }
    }

    /// Why no cluster goes on with the log here after a crash of all, whatever the others have.
    pub(super) fn no_log_to_go_on_with(&self, settings: &Settings) -> Option<&'static str> {
        if self.is_witness() {
            return None; // it has no data to go on from instead
        }
        if settings.durability != Durability::Majority {
            return Some("dromon.durability=memory");
        }
        match self.look_into_log(settings) {
            Ok(Some(log)) if !log.durable => Some("it was kept with dromon.durability=memory"),
            Ok(None) if !self.saved().uuid.is_nil() => Some("there is none beside the data"),
            _ => None,
        }
    }

    /// Whom to ask for a primary component: the address list and the members
    /// known from before, without this node, or, if these are nobody, those that the
    /// own log names.
    pub(super) fn nodes_to_ask(
        &self,
        address: &ClusterAddress,
        settings: &Settings,
        known: &[String],
    ) -> Result<Vec<String>, ConnectError> {
        let listed = address.resolve(settings.base_port);
        let (own, others): (Vec<_>, Vec<_>) = listed.iter().partition(|a| settings.is_own(a));
        let mut ask: Vec<String> = others.iter().map(ToString::to_string).collect();
        let announced = settings.advertised.to_string();
        for addr in known {
            if *addr != announced && !ask.contains(addr) {
                ask.push(addr.clone());
            }
        }
        if !ask.is_empty() {
            return Ok(ask);
        }
        let named = self.others_named(settings)?;
        if named.is_empty() {
            let own: Vec<_> = own.iter().map(ToString::to_string).collect();
            return Err(ConnectError::OnlyItself {
                own: own.join(", "),
            });
        }
        self.note(&format!(
            "wsrep_cluster_address names no other node; asking those that the own log names: {}",
            named.join(", ")
        ));
        Ok(named)
    }

    /// How far the own log got. One that cannot be read is none.
    pub(super) fn own_log_end(&self, settings: &Settings) -> Option<LogEnd> {
        let summary = self.engines.inspect(&settings.log_dir).ok()??;
        Some(summary.end)
    }

    /// What this node, whose database stands at `position`, needs if its log is to begin
    /// with `state`.
    pub(super) fn need_with_streams(
        &self,
        need: Need,
        position: Position,
        state: &ClusterState,
    ) -> Need {
        if need != Need::Log || !self.lacks_fragments(position, state) {
            return need;
        }
        self.wants_copy.store(true, Relaxed);
        self.note(
            "a streaming transaction that is not over was shelved here, and the log from here on does not have all of \
             it: this database needs a full copy",
        );
        Need::Copy
    }

    /// The same where the others, in whose incarnation of the cluster the leader is of `term`, may lack a statement
    /// of this node's: its tables have the effect, and its position, below which they agree, does not tell.
    pub(super) fn need_with_marks(
        &self,
        need: Need,
        position: Position,
        log: Option<LogEnd>,
        term: u64,
    ) -> Need {
        let ours = log.map_or(0, |log| log.last.incarnation());
        if need != Need::Log || ours == incarnation(term) || !self.ran_beyond(position) {
            return need;
        }
        self.wants_copy.store(true, Relaxed);
        self.note(&format!(
            "this node ran a statement (DDL) beyond {position}, and the others have gone on as another incarnation of \
             the cluster since, in which it may never have been: this database needs a full copy",
        ));
        Need::Copy
    }

    /// Whether it joins others by a full copy, whatever its position.
    pub(super) fn starts_anew(&self) -> bool {
        self.shared().in_doubt || self.wants_copy.load(Relaxed)
    }

    pub(super) fn ask(
        &self,
        name: &str,
        addr: &str,
        request: &Request,
    ) -> Result<Answer, Unanswered> {
        let no = |why, refused| Unanswered { why, refused };
        match self.engines.ask(name, addr, encode(request), ASK) {
            Ok(bytes) => decode::<Answer>(&bytes)
                .ok_or_else(|| no("gave an unreadable answer".into(), false)),
            Err(AskError::Refused(why) | AskError::ShutOut(why) | AskError::OtherVersion(why)) => {
                Err(no(why, true))
            }
            Err(
                AskError::Unreachable(why)
                | AskError::Unlooked(why)
                | AskError::Resolving(why)
                | AskError::Barred(why)
                | AskError::Silent(why),
            ) => Err(no(why, false)),
        }
    }

    /// One address refuses this node, as `why` says, and there are others to ask.
    pub(super) fn tell_refused(&self, why: &str) {
        self.note_now_and_then(&format!("{why}. Asking at the other addresses"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dromon_order::{Checkpoint, LogId, Members, RaftId};

    use super::*;

    fn log(id: RaftId, voters: &[RaftId], members: &[RaftId]) -> LogSummary {
        let last = LogId {
            term: 1,
            leader: 1,
            index: 1,
        };
        let addrs: BTreeMap<RaftId, String> =
            members.iter().map(|id| (*id, format!("n{id}:1"))).collect();
        LogSummary {
            id,
            checkpoint: Checkpoint {
                log_id: LogId::default(),
                members: Members::default(),
                sequencer: Default::default(),
                node: Default::default(),
            },
            voters: voters.iter().copied().collect(),
            members: addrs,
            durable: true,
            goes_on: false,
            end: LogEnd {
                last: last.leadership(),
                voted: last.leadership(),
            },
            last,
        }
    }

    #[test]
    fn a_log_that_the_others_may_count_on_waits_with_them() {
        assert!(may_be_missed(&log(1, &[1, 2], &[1, 2])));
        assert!(
            may_be_missed(&log(2, &[1], &[1, 2])),
            "it may have been given a vote since"
        );
        assert!(!may_be_missed(&log(1, &[1], &[1])), "nobody else");
        let sole = log(1, &[1], &[1, 2]);
        assert!(may_be_missed(&sole), "it is all that a majority needs");
        assert!(votes_alone(&sole) && !votes_alone(&log(2, &[1], &[1, 2])));
        assert!(!votes_alone(&log(1, &[1, 2], &[1, 2])));
        assert!(is_later(1 << 32, &sole) && !is_later(u64::from(u32::MAX), &sole));
        let unnamed = log(3, &[1, 2], &[1, 2]);
        assert!(!may_be_missed(&unnamed), "not a member");
        assert!(has_others(&unnamed), "unless the leader says so");
    }
}
