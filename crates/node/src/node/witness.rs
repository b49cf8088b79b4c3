//! A witness: a member that votes and stores the log, and has no database.
//!
//! It runs the same deterministic state as everybody, so it can do whatever a
//! leader must: admit, evict, cut, give a checkpoint and the log. Nothing of
//! that needs a database. What needs one (a copy, applying, a vote on an error,
//! a pause because appliers are behind) never comes to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::{QueueItem, Seqno};
use dromon_order::{Order, OrderStatus, RaftId, incarnation};
use dromon_writeset::Uuid;

use super::alone::{Forced, Reached};
use super::connect::Found;
use super::search::{ALONE, is_later, votes_alone};
use super::{ConnectError, Item, LogSummary, Node, Phase, lock};
use crate::cluster::{ChunkPart, ClusterState};
use crate::messages::{Need, Position};
use crate::options::{ClusterAddress, Durability, Settings};

/// A witness that leads looks this often for a data node to lead instead; twice
/// as long after each time that leadership came back to it.
const HAND_OVER_EVERY: Duration = Duration::from_millis(500);
/// And at least this often.
const HAND_OVER_MAX: Duration = Duration::from_secs(60);
/// Leadership that stayed away longer than this has not "come back".
const STAYED_AWAY: Duration = Duration::from_secs(120);
/// A data node that has been silent for longer is not asked to lead.
const SILENT: Duration = Duration::from_millis(500);
/// Nor one whose log is behind by more entries than this.
const BEHIND: u64 = 256;
/// Pause between two rounds of questions, and what it does meanwhile.
const AGAIN: Duration = Duration::from_millis(200);
const ASKS: &str = "asking whether others went on without this witness";
/// Who is there says so several times in such a time.
const SPEAKS: Duration = Duration::from_secs(1);

impl Node {
    /// Whether this node has no database.
    pub fn is_witness(&self) -> bool {
        self.setup.witness
    }

    /// Why the ordering engine is dead, if it is.
    pub fn engine_failure(&self) -> Option<String> {
        self.order().and_then(|o| o.status().failed)
    }

    /// Whether this node's departure was ordered: it left, or an operator
    /// evicted it.
    pub fn has_left(&self) -> bool {
        self.shared().own_leave
    }

    /// Whether this node is a member that hears a majority.
    pub fn is_primary(&self) -> bool {
        self.phase() == Phase::Joined && self.order().is_some_and(|o| o.status().primary)
    }

    /// From now on this witness, if it finds no majority when it connects, goes
    /// on without one (see [`crate::node`], forced recovery).
    pub fn force_primary(&self) {
        self.force_primary.store(true, Relaxed);
    }

    /// Does so, if that was asked for, or if a cluster is founded on a log that
    /// names others.
    pub(super) fn force_if_asked(&self) {
        if !self.force_primary.load(Relaxed) {
            return;
        }
        let (forced, by) = match self.setup.witness {
            true => (Forced::Asked, "--force-primary"),
            false => (Forced::Founding, "safe_to_bootstrap"),
        };
        match self.go_alone(forced) {
            // Those who made it a primary component meanwhile stay.
            Ok(_) => self.force_primary.store(false, Relaxed),
            Err(refused) => self.note_now_and_then(&format!("{by}: {}", refused.why)),
        }
    }

    /// Whether the member at `addr` is a witness.
    pub(super) fn knows_as_witness(&self, addr: &str) -> bool {
        let shared = self.shared();
        let mut members = shared.view.iter().flat_map(|v| &v.members);
        members.any(|m| m.witness && m.addr == addr)
    }

    /// Whether a member with data is complete and there: it may give a copy. One that is
    /// dead may be who asks for it now.
    pub(super) fn has_data_member(&self) -> bool {
        let shared = self.shared();
        let mut members = shared.view.iter().flat_map(|v| &v.members);
        members.any(|m| {
            let silent = || self.flow.silent(&m.uuid);
            let there = m.uuid == shared.uuid || silent().is_some_and(|s| s < SPEAKS);
            m.can_give() && there
        })
    }

    /// Hands an event to the appliers; a witness has none.
    pub(super) fn enqueue(&self, item: QueueItem<Item>) {
        let (seqno, ordered) = (item.seqno, item.ordered);
        if !self.setup.witness && !self.queue.push(item) && ordered {
            // Nobody takes it, and whoever has a later place must not wait for it.
            self.gates.pass_commit(seqno);
        }
    }

    /// Drops what waits for an applier, and passes its places.
    pub(super) fn drop_queued(&self) {
        for item in self.queue.clear() {
            if item.ordered {
                self.gates.pass_commit(item.seqno);
            } else if matches!(item.value, Item::Lost(_)) {
                self.pass_lost(item.seqno);
            }
        }
    }

    /// `seqno` was delivered: a part of a large transaction (where that began, which), or
    /// something else. A witness has nothing to do for it.
    pub(super) fn takes_place(&self, seqno: Seqno, part: Option<(Seqno, ChunkPart)>) {
        self.check_kept_ahead(seqno, part);
        self.gates.ordered(seqno);
        if self.setup.witness {
            self.gates.leave_and_release(seqno);
        }
    }

    /// What stands for a witness's data: the newest checkpoint of its own log.
    pub(super) fn position_of_log(&self) -> Position {
        let settings = self.settings();
        if settings.durability != Durability::Majority {
            return Position::UNDEFINED;
        }
        match self.engines.inspect(&settings.log_dir) {
            Ok(summary) => summary
                .filter(|s| s.durable)
                .and_then(|s| ClusterState::peek_position(&s.checkpoint.node))
                .unwrap_or(Position::UNDEFINED),
            // Found again, and set aside, when it is started.
            Err(why) => {
                self.warn(&format!(
                    "this witness's log cannot be used and cannot help to form a primary component; once the others \
                     form one, it takes the log anew: {why}"
                ));
                Position::UNDEFINED
            }
        }
    }

    /// A witness goes on with its own log before it looks for others to join: that log may
    /// be one of the two places of what was acknowledged last.
    pub(super) fn witness_log(
        &self,
        position: Position,
        settings: &Settings,
        resume: bool,
    ) -> Result<Option<Found>, ConnectError> {
        if !self.setup.witness || !resume {
            return Ok(None);
        }
        let found = self.resumable(position, settings, LogSummary::is_voter)?;
        if let Some(found) = &found {
            let others = self.others_named(settings)?;
            let log = self.look_into_log(settings)?;
            let others = match log.is_some_and(|log| votes_alone(&log)) {
                true => "nobody else".to_owned(),
                false => others.join(", "),
            };
            self.note(&format!(
                "this witness's own log (checkpoint at {}) goes on; a majority of its logs is needed, which are those of \
                 this witness and of: {others}",
                found.state.position()
            ));
        }
        Ok(found)
    }

    /// Whether others of this history went on without this witness, although its log is a majority by itself: a data
    /// node founded the cluster, or was forced on, while the witness was down. That log need not name them any more,
    /// so those that the address list names are asked, too. Who does not answer is waited for a while: a witness that
    /// is alone serves nobody, and data nodes that are just starting would join it beside those others. The answer is
    /// where to look for them: nobody whom the list names need be there.
    pub(super) fn others_went_on(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
    ) -> Result<Option<Vec<String>>, ConnectError> {
        if !self.setup.witness || self.resumable(position, settings, votes_alone)?.is_none() {
            return Ok(None);
        }
        let Some(log) = self.look_into_log(settings)? else {
            return Ok(None);
        };
        let listed = address.resolve(settings.base_port);
        let listed = listed.iter().filter(|a| !settings.is_own(a));
        let listed: Vec<String> = listed.map(ToString::to_string).collect();
        let listed = self.each_address(&listed, settings).into_iter();
        let mut places: BTreeMap<String, RaftId> = listed.map(|addr| (addr, 0)).collect();
        let named = log.members.iter().filter(|(id, _)| **id != log.id);
        places.extend(named.map(|(id, addr)| (addr.clone(), *id)));
        let ended_in = log.end.last.incarnation();
        let went_on = |r: &&Reached| {
            let other = r.primary && incarnation(r.last.term) != ended_in;
            r.history == position.history && (other || is_later(r.last.term, &log))
        };
        let (began, mut told) = (Instant::now(), false);
        let patience = ALONE.min(settings.wait_prim_timeout / 2);
        loop {
            self.still_starting(ASKS);
            self.unless_told_to_stop(ASKS)?;
            if matches!(self.phase(), Phase::Leaving | Phase::Closed) {
                return Err(ConnectError::Refused("told to leave meanwhile".into()));
            }
            let probed = self.probe(name, places.iter().map(|(addr, id)| (id, addr)));
            if let Some(r) = probed.reached.iter().find(went_on) {
                self.note(&format!(
                    "{} went on in another incarnation of this history while this witness was down, so its own log \
                     does not count any more: joining those",
                    r.addr
                ));
                return Ok(Some(places.into_keys().collect()));
            }
            let all = probed.reached.len() == places.len();
            if probed.going.is_none() && all || began.elapsed() >= patience {
                let going = probed.going.map(|_| places.into_keys().collect());
                return Ok(going);
            }
            if !std::mem::replace(&mut told, true) {
                let asked: Vec<&str> = places.keys().map(String::as_str).collect();
                self.note(&format!(
                    "this witness's own log is a majority by itself; asking for up to {} s whether others went on \
                     without it: {}",
                    patience.as_secs(),
                    asked.join(", ")
                ));
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// A witness takes the checkpoint it was given for its data.
    pub(super) fn settle(&self, found: &mut Found, position: &mut Position) {
        if self.setup.witness {
            found.need = Need::Log;
            *position = found.state.position();
            self.shared().position = *position;
        }
    }

    /// A witness's join is ordered: there is nothing to bring up.
    pub(super) fn bring_up_witness(&self, uuid: Uuid) {
        {
            let mut shared = self.shared();
            if shared.phase == Phase::Joining {
                shared.phase = Phase::Joined;
            }
            shared.brought_up = true;
        }
        self.propose_joined(uuid);
        self.changed.notify_all();
    }

    /// A witness that leads looks for a data node that can lead as well: write
    /// sets then need not travel through the witness. So does who cannot send a member what
    /// that needs of the log, and who has no data yet. On the order thread.
    pub(super) fn hand_to_data(&self, order: &Arc<dyn Order>, status: &OrderStatus) {
        let now = Instant::now();
        let mut handed = lock(&self.handed_over);
        let wait = match *handed {
            Some((at, wait)) if now.duration_since(at) < wait => return,
            Some((at, wait)) if now.duration_since(at) < STAYED_AWAY => {
                (wait * 2).min(HAND_OVER_MAX)
            }
            _ => HAND_OVER_EVERY,
        };
        let Some((id, name)) = self.heir(status) else {
            return;
        };
        *handed = Some((now, wait));
        drop(handed);
        match &status.unreadable {
            Some((index, why)) => self.warn(&format!(
                "entry {index} of this node's log cannot be read, and another member needs it: {why} Handing leadership over to \
                 {name}, whose log may have it. Nothing acknowledged is lost; check the disk here. If it goes on, move this \
                 node's data away and start it anew: it takes a full copy"
            )),
            None => self.note(&format!(
                "{}; handing leadership over to {name}, which has data",
                match self.setup.witness {
                    true => "this witness leads",
                    false => "this node leads and waits for a copy of the data",
                }
            )),
        }
        order.transfer_leader(Some(id));
    }

    /// The data node whose log is closest to this one's.
    fn heir(&self, status: &OrderStatus) -> Option<(RaftId, String)> {
        let voters = status.members.voters();
        let shared = self.shared();
        let members = shared.view.iter().flat_map(|v| &v.members);
        members
            .filter(|m| m.complete && !m.witness && voters.contains(&m.raft_id))
            .filter(|m| m.raft_id != status.id)
            .filter_map(|m| {
                let peer = status.peers.get(&m.raft_id)?;
                let heard = peer.silent.is_some_and(|s| s < SILENT);
                let close = peer.matched + BEHIND >= status.last.index;
                (heard && close).then_some((peer.matched, m))
            })
            .max_by_key(|(matched, m)| (*matched, std::cmp::Reverse(m.uuid)))
            .map(|(_, m)| (m.raft_id, m.name.clone()))
    }
}
