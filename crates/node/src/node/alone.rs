//! Forced recovery: this node goes on without a majority, because an operator
//! says so (`pc.bootstrap`) or has said so beforehand (`pc.ignore_sb`,
//! `pc.ignore_quorum`, `pc.weight`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dromon_order::{LogId, Order, OrderError, OrderStatus, RaftId, incarnation};
use dromon_writeset::Uuid;

use super::{AskError, Node, Phase, lock};
use crate::cluster::Member;
use crate::messages::{Answer, Control, Request, decode, encode, kind};

mod lost;
mod who;
use lost::Looks;
use who::{are_two, before, by_votes, by_weight, serves};

/// How long one member may take to say whether it is there: with encryption and the secret it takes
/// six round trips, and a lost packet a second more.
const ASK: Duration = Duration::from_secs(3);
/// How long its log may take to store that it is alone.
const STORE: Duration = Duration::from_secs(30);
/// How long this node may take to lead itself.
const LEAD: Duration = Duration::from_secs(5);

/// How often a node that waits for another one looks.
const LOOK: Duration = Duration::from_millis(200);

/// Of several with the same log that are told to go on alone, or do by their options, the one with the highest id
/// does: how long the others give each that comes before them. More than it needs to ask twice and store that.
const TURN: Duration = Duration::from_secs(2);

/// To who orders it on a node that the others removed, and that is not back.
const PUT_OUT: &str = "the others removed this node and went on without it; what they acknowledged since then is not \
                       here, and this node looks for them by itself to get it. If they can come back, start them: it \
                       joins them. If they are gone for good, that is lost, and what this node has goes on like this: \
                       stop this server, write safe_to_bootstrap: 1 into its grastate.dat, and start it with \
                       --wsrep-new-cluster (galera_new_cluster does)";
const STILL_GOING: &str = "an earlier forced recovery of this node still waits for its disk";

/// Why this node may go on alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forced {
    /// `pc.bootstrap`: now.
    Asked,
    /// By options, when the majority is lost.
    Lost,
    /// A cluster is founded on a log that names others.
    Founding,
}

/// Why a node does not go on alone.
pub(super) struct Refused {
    pub why: String,
    /// Another member is there with at least as much of the log: they may have a
    /// majority together soon.
    leads_on: bool,
}

impl<T: Into<String>> From<T> for Refused {
    fn from(why: T) -> Self {
        Refused {
            why: why.into(),
            leads_on: false,
        }
    }
}

/// The forced recovery that the engine was told to do and nobody has seen the end of: the
/// end may come later than is waited for.
#[derive(Debug, Default)]
pub(super) struct GoingAlone {
    attempt: Mutex<Option<Arc<Attempt>>>,
    looks: Looks,
}

/// See [`GoingAlone`].
#[derive(Debug)]
pub(super) struct Attempt {
    /// The incarnation that is to end.
    from: u32,
    /// Who is left behind. Those who join later are not.
    others: Vec<Uuid>,
    /// Nothing comes of it.
    failed: AtomicBool,
}

impl GoingAlone {
    fn is_open(&self) -> bool {
        let attempt = lock(&self.attempt);
        attempt.as_ref().is_some_and(|a| !a.failed.load(Acquire))
    }

    /// One begins in `term`; `None`: another one is open.
    fn begin(&self, term: u64, others: Vec<Uuid>) -> Option<Arc<Attempt>> {
        let mut attempt = lock(&self.attempt);
        if attempt.as_ref().is_some_and(|a| !a.failed.load(Acquire)) {
            return None;
        }
        let new = Arc::new(Attempt {
            from: incarnation(term),
            others,
            failed: AtomicBool::new(false),
        });
        *attempt = Some(new.clone());
        Some(new)
    }

    /// Whether this node, which is in `term`, may go on alone at any moment.
    fn is_near(&self, term: u64) -> bool {
        let attempt = lock(&self.attempt);
        let is_near = |a: &Arc<Attempt>| !a.failed.load(Acquire) && a.from == incarnation(term);
        attempt.as_ref().is_some_and(is_near)
    }

    /// Whom this node, which is in `term`, left behind if it has gone on alone; said once.
    fn has_gone(&self, term: u64) -> Option<Vec<Uuid>> {
        let gone = |a: &mut Arc<Attempt>| !a.failed.load(Acquire) && a.from != incarnation(term);
        let attempt = lock(&self.attempt).take_if(gone);
        attempt.map(|a| a.others.clone())
    }

    /// Who was looked up in vain may be linked by now.
    pub(super) fn majority_is_back(&self) {
        self.looks.begin();
    }

    /// Another engine runs.
    pub(super) fn forget(&self) {
        *lock(&self.attempt) = None;
    }
}

impl Attempt {
    /// The engine's answer, however late.
    fn ended(&self, outcome: &Result<(), OrderError>) {
        self.failed.store(outcome.is_err(), Release);
    }

    /// The engine was not told.
    fn given_up(&self) {
        self.failed.store(true, Release);
    }
}

/// A member that answers.
pub(super) struct Reached {
    pub addr: String,
    pub id: RaftId,
    pub primary: bool,
    /// The last entry of its log.
    pub last: LogId,
    /// Its ordering engine has failed: its log neither votes nor goes on, and may have more all the same.
    pub failed: bool,
    /// Of its database.
    pub history: Uuid,
    /// Who leads it, as far as it knows.
    pub leader: Option<String>,
}

/// Who answers, of those that were asked.
pub(super) struct Probed {
    pub reached: Vec<Reached>,
    /// One that may be there and cannot be asked: why, and what to do.
    pub untold: Option<String>,
    /// The same, of one that is there and is not just starting.
    pub barred: Option<String>,
    /// The same of one that only does not speak, as the dead may not.
    pub silent: Option<String>,
    /// One that may go on alone at any moment.
    pub going: Option<String>,
    /// Those whose names are still being looked up: where, and why they cannot be asked and what to do.
    pub looking: BTreeMap<String, String>,
    /// Those for which this host looked in vain.
    pub unlooked: Vec<String>,
}

impl Probed {
    /// Those of `before` that do not answer any more.
    fn missing<'a>(&self, before: &'a [Reached]) -> Option<&'a Reached> {
        let is_here = |r: &Reached| self.reached.iter().any(|now| now.addr == r.addr);
        before.iter().find(|r| !is_here(r))
    }
}

/// Who of those `reached` has the most of the log, if that is more than `ours`.
pub(super) fn ahead_of(ours: LogId, reached: &[Reached]) -> Option<&Reached> {
    let most = reached.iter().max_by_key(|r| r.last)?;
    (most.last > ours).then_some(most)
}

/// Why nothing is forced while a member may be there that failed to answer with `error`.
/// `None`: nobody is there, or another one.
fn untold(error: &AskError) -> Option<String> {
    let (why, mend) = match error {
        AskError::Unreachable(_) | AskError::Unlooked(_) | AskError::Refused(_) => return None,
        AskError::OtherVersion(why) => (why, "start it with the version that runs here"),
        AskError::Silent(why) | AskError::Resolving(why) => (why, "wait until it answers"),
        AskError::Barred(why) | AskError::ShutOut(why) => (
            why,
            "mend that, at the end that it names (certificates: socket.ssl_*; the secret: dromon.secret_file; the list of \
             those allowed: mysql.wsrep_allowlist). If that address belongs to something else now, close the way from \
             here to it, as a rule of the firewall that rejects does",
        ),
    };
    Some(format!(
        "{why}. So a member may be there that has more of the log than this node, or is primary, and cannot be asked: \
         what it acknowledged could be lost. Stop that server and try again if it is to be given up, else {mend}"
    ))
}

/// Why nothing is forced here while `other` is primary in another history than `ours`.
pub(super) fn other_primary(other: &Reached, ours: Uuid) -> String {
    format!(
        "{} is primary in a cluster of this name, but of another history ({}; here {ours}), and two clusters of one name \
         must not run. To keep what is here, stop that one first and try again. To keep that one, start this node \
         without --wsrep-new-cluster: it takes a full copy of it",
        other.addr, other.history
    )
}

/// The end of a log in words: of two, the one that is the greater in this order has
/// more.
pub(super) fn named(last: LogId) -> String {
    format!(
        "term {}, leader {:x}, index {}",
        last.term, last.leader, last.index
    )
}

/// The other members, and where the log has them.
fn others_of(status: &OrderStatus) -> impl Iterator<Item = (&RaftId, &String)> {
    let members = status.members.addrs.iter();
    members.filter(|(id, _)| **id != status.id)
}

/// Where to ask, and who should be there: a link that stands tells that better than the log
/// does, which may have a member that moved, or another one in its place.
/// Where this node itself is now nobody else is (`own`).
fn places<'a>(
    named: impl Iterator<Item = (&'a RaftId, &'a String)>,
    linked: BTreeMap<RaftId, String>,
    own: &str,
) -> BTreeMap<String, RaftId> {
    let named = named.filter(|(_, addr)| *addr != own);
    let mut places: BTreeMap<_, _> = named.map(|(id, addr)| (addr.clone(), *id)).collect();
    places.extend(linked.into_iter().map(|(id, addr)| (addr, id)));
    places
}

impl Node {
    /// Whether options allow to go on when the majority is lost.
    pub(super) fn may_go_alone(&self) -> bool {
        if self.setup.witness {
            return false; // alone it serves nobody
        }
        let s = self.settings();
        let half_goes_on = s.ignore_sb || self.weights_differ() && self.two_vote();
        s.ignore_quorum || half_goes_on && !self.waits_for_one()
    }

    /// Whether this node and one other have the votes.
    fn two_vote(&self) -> bool {
        self.order().is_some_and(|order| are_two(&order.status()))
    }

    /// Whether another one alone votes: then half of the votes are never here.
    fn waits_for_one(&self) -> bool {
        self.order().is_some_and(|order| {
            let status = order.status();
            status.members.voters().len() == 1 && !status.members.is_voter(status.id)
        })
    }

    /// Whether one half of the members can be heavier than the other.
    fn weights_differ(&self) -> bool {
        let shared = self.shared();
        let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
        members.windows(2).any(|w| w[0].weight != w[1].weight)
    }

    /// Makes this node a primary component of its own. False: it is in one, and nothing was forced.
    pub(super) fn go_alone(&self, forced: Forced) -> Result<bool, Refused> {
        // Between two attempts it has no engine, and in one it is not a member of what its log names.
        if self.phase() == Phase::Rejoining || lock(&self.delivered).stopped {
            return Err(PUT_OUT.into());
        }
        let order = self.order().ok_or("this node is not connected")?;
        let status = order.status();
        if status.primary {
            return Ok(false);
        }
        if self.going_alone.is_open() {
            return Err(STILL_GOING.into());
        }
        let complete = match self.phase() {
            Phase::Joined | Phase::NonPrimary => true,
            // Its log is all it has, or brings what its database lacks.
            Phase::Joining => self.setup.witness || forced == Forced::Founding,
            _ => false,
        };
        if !complete {
            return Err("this node has no complete state".into());
        }
        let own = status.last;
        let mut probed = self.who_is_there(&status, order.linked());
        if forced == Forced::Lost {
            self.going_alone.looks.weigh(&mut probed);
        }
        self.look_at(own, &probed, forced)?;
        let reached = probed.reached;
        if forced == Forced::Lost {
            self.allowed(&order, &status, &reached)?;
        }
        self.wait_turn(&status, &reached, forced)?;
        self.not_told_to_leave()?;
        let others = self.others();
        let attempt = self.going_alone.begin(status.term, others.clone());
        let attempt = attempt.ok_or(STILL_GOING)?;
        // Whoever looks here from now on hears of it. So of two that were told at the same time, one
        // at least hears of the other.
        let again = self.look_again(own, &reached, forced);
        if let Err(refused) = again.and_then(|()| self.not_told_to_leave()) {
            attempt.given_up();
            return Err(refused);
        }
        self.note(&format!(
            "forced recovery ({}): this node goes on alone as a new incarnation of the cluster, with its log up to \
             index {}. What members that are not reached ({}) have beyond it is given up; they take a full copy then",
            match forced {
                Forced::Asked if self.setup.witness => "--force-primary",
                Forced::Asked => "pc.bootstrap",
                Forced::Founding => "safe_to_bootstrap",
                Forced::Lost => "pc.ignore_sb, pc.ignore_quorum or pc.weight",
            },
            status.last.index,
            others_of(&status)
                .filter(|(id, _)| reached.iter().all(|r| r.id != **id))
                .count(),
        ));
        let done = Box::new(move |outcome| attempt.ended(&outcome));
        match order.go_alone(&status, STORE, done) {
            Ok(()) => {
                // Those who join from now on stay.
                self.going_alone.forget();
                self.drop_in_time(&order, &others);
            }
            Err(e) => {
                return Err(Refused {
                    why: e.to_string(),
                    // They were heard just now.
                    leads_on: e == OrderError::NotAsSeen,
                });
            }
        }
        Ok(true)
    }

    /// Whether this node may go on alone any moment, as others hear then.
    pub(super) fn is_going_alone(&self, order: &Arc<dyn Order>) -> bool {
        self.going_alone.is_near(order.status().term)
    }

    /// Why a node whose log ends with `own` does not go on alone beside those that were `probed`.
    fn look_at(&self, own: LogId, probed: &Probed, forced: Forced) -> Result<(), Refused> {
        let reached = &probed.reached;
        if let Some(r) = reached.iter().find(|r| r.primary) {
            let ours = self.history();
            return Err(Refused::from(match r.history == ours {
                true => format!(
                    "{} belongs to a primary component; this node joins it by itself",
                    r.addr
                ),
                false => other_primary(r, ours),
            }));
        }
        if let Some(r) = ahead_of(own, reached) {
            let why = format!(
                "{} has more of the log than this node ({}; here {}): going on here could lose acknowledged transactions. {}",
                r.addr,
                named(r.last),
                named(own),
                self.where_more_is(r),
            );
            return Err(Refused {
                why,
                leads_on: true,
            });
        }
        // By options it goes on because others are silent.
        let silent = probed.silent.as_ref().filter(|_| forced != Forced::Lost);
        let looking = probed.looking.values().next();
        if let Some(why) = probed.untold.as_ref().or(silent).or(looking) {
            // Who is just starting or ending is told otherwise soon.
            return Err(Refused {
                why: why.clone(),
                leads_on: true,
            });
        }
        if let Some(addr) = &probed.going {
            return Err(Refused {
                why: format!(
                    "{addr} is about to go on alone; both would be a primary component, and what one of them acknowledges \
                     would be lost. This node joins it by itself. If it does not go on, try again"
                ),
                leads_on: true,
            });
        }
        Ok(())
    }

    /// What to do where `r` has more of the log.
    fn where_more_is(&self, r: &Reached) -> &'static str {
        if self.knows_as_witness(&r.addr) {
            return "It is a witness: stop its service and start it by hand with --force-primary, as the user that its service \
                    has (what root writes the service cannot read); this node joins it by itself. When this node is Synced, \
                    end it there and start the service again";
        }
        if r.failed {
            return "Its log has failed (a full disk, or one that is broken) and does not go on before that server is started \
                    again: do that, or, if what only its log has is to be given up, stop it and set this here again";
        }
        let shared = self.shared();
        let mut members = shared.view.iter().flat_map(|v| &v.members);
        // It may be complete by what it has more.
        match members.any(|m| m.raft_id == r.id && !m.complete) {
            true => {
                "Set it there, if that server takes clients. As far as this node knows it waits for its data, and then it \
                 cannot go on itself: start the members that had the votes, or, if what only its log has is to be given up, \
                 stop that server and set this here again"
            }
            false => "Set it there",
        }
    }

    /// Who waited for others may have been told to stop meanwhile, or left as inconsistent.
    fn not_told_to_leave(&self) -> Result<(), Refused> {
        match self.phase() {
            Phase::Joined | Phase::NonPrimary | Phase::Joining => Ok(()),
            _ => Err("this node is leaving".into()),
        }
    }

    /// Gives those that come before this node time to go on alone, as they may have been told, too, or have the
    /// options: nobody knows of another one's.
    fn wait_turn(
        &self,
        status: &OrderStatus,
        reached: &[Reached],
        forced: Forced,
    ) -> Result<(), Refused> {
        let own = status.last;
        let mut before: Vec<&Reached> = before(own, status.id, reached).collect();
        if forced == Forced::Lost {
            before.retain(|r| self.may_go_first(status, r));
        }
        let ids: BTreeSet<RaftId> = before.iter().map(|r| r.id).collect();
        let until = Instant::now() + ids.iter().map(|_| TURN).sum::<Duration>();
        let cluster = self.shared().cluster.clone();
        while Instant::now() < until && !matches!(self.phase(), Phase::Leaving | Phase::Closed) {
            std::thread::sleep(LOOK);
            let members = before.iter().map(|r| (&r.id, &r.addr));
            self.look_at(own, &self.probe(&cluster, members), forced)?;
        }
        Ok(())
    }

    /// Whether `other` may go on by its options before this node does. Should one go on that is not counted here,
    /// as it is complete since then, it is heard of like one that is told to.
    fn may_go_first(&self, status: &OrderStatus, other: &Reached) -> bool {
        let settings = self.settings();
        let by_votes = !settings.ignore_quorum && !settings.ignore_sb;
        let shared = self.shared();
        let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
        serves(members, other.id) && (!by_votes || status.members.is_voter(other.id))
    }

    /// Asks those that were `reached` once more, as asking those that are silent took time.
    fn look_again(&self, own: LogId, reached: &[Reached], forced: Forced) -> Result<(), Refused> {
        let cluster = self.shared().cluster.clone();
        let probed = self.probe(&cluster, reached.iter().map(|r| (&r.id, &r.addr)));
        self.look_at(own, &probed, forced)?;
        match probed.missing(reached) {
            None => Ok(()),
            Some(r) => Err(Refused {
                why: format!(
                    "{} answered a moment ago and does not now, so nobody knows whether it goes on alone. Try again: if it \
                     is gone, that is seen then",
                    r.addr
                ),
                leads_on: true,
            }),
        }
    }

    /// Whether the options allow it to those who reach one another.
    fn allowed(
        &self,
        order: &Arc<dyn Order>,
        status: &OrderStatus,
        reached: &[Reached],
    ) -> Result<(), Refused> {
        let settings = self.settings();
        if settings.ignore_quorum {
            return Ok(());
        }
        let votes_here = |id: RaftId| reached.iter().any(|r| r.id == id && !r.failed);
        let is_here = |id: &&RaftId| **id == status.id || votes_here(**id);
        let configs: Vec<(usize, usize)> = (status.members.configs.iter())
            .map(|voters| (voters.iter().filter(is_here).count(), voters.len()))
            .collect();
        by_votes(&configs, settings.ignore_sb)?;
        if settings.ignore_sb {
            return Ok(());
        }
        if !are_two(status) {
            return Err("by pc.weight only one of two that vote goes on".into());
        }
        // Before the view, which has all up to there.
        let delivered = lock(&self.delivered).index;
        let own = {
            let shared = self.shared();
            let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
            let votes = |m: &Member| status.members.is_voter(m.raft_id);
            let is_reached = |m: &Member| reached.iter().any(|r| r.addr == m.addr);
            by_weight(members, shared.uuid, votes, is_reached)?;
            shared.uuid
        };
        let unknown = self.weighs_behind(order, delivered, status.last.index, |uuid| *uuid == own);
        unknown.map_or(Ok(()), |why| {
            Err(Refused {
                why,
                // It may be delivered in a moment.
                leads_on: true,
            })
        })
    }

    fn who_is_there(&self, status: &OrderStatus, linked: BTreeMap<RaftId, String>) -> Probed {
        let cluster = self.shared().cluster.clone();
        let places = places(others_of(status), linked, &self.own_addr());
        self.probe(&cluster, places.iter().map(|(addr, id)| (id, addr)))
    }

    /// Those of `members` that answer, all asked at the same time.
    pub(super) fn probe<'a>(
        &self,
        cluster: &str,
        members: impl Iterator<Item = (&'a RaftId, &'a String)>,
    ) -> Probed {
        let (ids, addrs): (Vec<RaftId>, Vec<String>) =
            members.map(|(id, addr)| (*id, addr.clone())).unzip();
        let answers = self.ask_all(cluster, &addrs, &encode(&Request::Probe), ASK);
        let mut probed = Probed {
            reached: Vec::new(),
            untold: None,
            barred: None,
            silent: None,
            going: None,
            looking: BTreeMap::new(),
            unlooked: Vec::new(),
        };
        let own = self.shared().uuid;
        for ((id, addr), answer) in ids.into_iter().zip(addrs).zip(answers) {
            let answer = match answer {
                Ok(bytes) => decode(&bytes),
                Err(e) => {
                    let why = untold(&e);
                    match e {
                        AskError::Resolving(_) => {
                            probed.looking.extend(why.map(|why| (addr, why)));
                        }
                        AskError::Unlooked(_) => probed.unlooked.push(addr),
                        AskError::Silent(_) => probed.silent = probed.silent.or(why),
                        _ => {
                            probed.barred = probed.barred.or(why.clone());
                            probed.untold = probed.untold.or(why);
                        }
                    }
                    continue;
                }
            };
            match answer {
                // The address of one that is gone leads to this node now.
                Some(Answer::Info { uuid, .. }) if uuid == own => {}
                Some(Answer::Info {
                    primary,
                    last,
                    position,
                    leader,
                    members,
                    ..
                }) => probed.reached.push(Reached {
                    addr,
                    id,
                    primary,
                    last,
                    failed: members.is_empty(),
                    history: position.history,
                    leader,
                }),
                Some(Answer::Wait(_)) => probed.going = Some(addr),
                _ => {
                    let why = format!("{addr} is just starting or stopping");
                    probed.untold = probed.untold.or(untold(&AskError::Barred(why)));
                }
            }
        }
        probed
    }

    /// Drops the others if the engine has gone on alone later than was waited for.
    pub(super) fn alone_after_all(&self, order: &Arc<dyn Order>) {
        if let Some(others) = self.going_alone.has_gone(order.status().term) {
            self.drop_in_time(order, &others);
        }
    }

    /// Orders the eviction of `others`. Before the own join nothing tells here who they are, so who
    /// connects does it behind that.
    fn drop_in_time(&self, order: &Arc<dyn Order>, others: &[Uuid]) {
        let joined = self.shared().joined.is_some();
        match joined {
            true => self.drop_others(order, others),
            false => self.went_alone.store(true, Relaxed),
        }
    }

    /// The other members of the newest view.
    pub(super) fn others(&self) -> Vec<Uuid> {
        let shared = self.shared();
        let members = shared.view.iter().flat_map(|v| &v.members);
        members
            .map(|m| m.uuid)
            .filter(|u| *u != shared.uuid)
            .collect()
    }

    /// Orders the eviction of `others`.
    pub(super) fn drop_others(&self, order: &Arc<dyn Order>, others: &[Uuid]) {
        let until = Instant::now() + LEAD;
        let mut status = order.status();
        while !(status.is_leader && status.primary) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            status = order.status();
        }
        for uuid in others.iter().copied() {
            let by = status.leads();
            // If it is lost, silence evicts it.
            let evict = encode(&Control::Evict { uuid, by });
            let _ = order.propose(kind::CONTROL, 0, evict);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn at(term: u64, leader: u64, index: u64) -> LogId {
        LogId {
            term,
            leader,
            index,
        }
    }

    #[test]
    fn a_forced_recovery_that_is_refused_late_leaves_nothing_behind() {
        let (before, after) = (7, (1 << 32) + 7);
        let going = GoingAlone::default();
        let others = vec![Uuid([7; 16])];
        let attempt = going.begin(before, others.clone()).unwrap();
        assert!(going.is_open() && going.begin(before, others.clone()).is_none());
        assert!(going.has_gone(before).is_none(), "it leads the old ones");
        attempt.ended(&Err(OrderError::NotAsSeen));
        assert!(!going.is_open() && !going.is_near(before));
        assert!(going.has_gone(before + 1).is_none() && going.has_gone(after).is_none());
        // The next one is done, late.
        let attempt = going.begin(before, others.clone()).unwrap();
        attempt.ended(&Ok(()));
        assert!(going.has_gone(before).is_none() && going.is_open());
        assert!(going.is_near(before) && !going.is_near(after));
        assert_eq!(going.has_gone(after), Some(others));
        assert!(going.has_gone(after).is_none() && !going.is_open(), "once");
    }

    #[test]
    fn who_moved_is_asked_where_it_is_too_and_nobody_counts_twice_there() {
        let at = |all: &[(RaftId, &str)]| -> BTreeMap<RaftId, String> {
            all.iter().map(|(id, a)| (*id, (*a).to_owned())).collect()
        };
        let asked = |log, linked| -> Vec<_> {
            let all = places(at(log).iter(), at(linked), "a");
            all.into_iter().map(|(addr, id)| (id, addr)).collect()
        };
        let said = |all: &[(RaftId, &str)]| at(all).into_iter().collect::<Vec<_>>();
        let log = &[(2, "b"), (3, "c")];
        assert_eq!(asked(log, &[]), said(log));
        let moved = [(2, "b"), (3, "c"), (2, "d")].map(|(id, a)| (id, a.to_owned()));
        assert_eq!(asked(log, &[(2, "d"), (3, "c")]), moved);
        // One of two that swapped is gone: who is there is not the one, too.
        let swapped = [(2, "b"), (2, "c")].map(|(id, a)| (id, a.to_owned()));
        assert_eq!(asked(log, &[(2, "c")]), swapped);
        // Where the log has another one this node is itself.
        assert_eq!(asked(&[(2, "a"), (3, "c")], &[]), said(&[(3, "c")]));
    }

    #[test]
    fn the_later_leader_of_a_term_has_more_however_short() {
        let reached = |last| Reached {
            addr: String::new(),
            id: 1,
            primary: false,
            last,
            failed: false,
            history: Uuid::NIL,
            leader: None,
        };
        let (first, second) = (at(5, 1, 90), at(5, 2, 70));
        let ahead = |ours, theirs: &[LogId]| {
            let theirs: Vec<_> = theirs.iter().map(|id| reached(*id)).collect();
            ahead_of(ours, &theirs).map(|r| r.last)
        };
        assert_eq!(ahead(first, &[second]), Some(second));
        assert_eq!(ahead(second, &[first]), None);
        assert_eq!(ahead(at(4, 9, 99), &[first, second, first]), Some(second));
        assert_eq!(ahead(first, &[first]), None);
        assert_eq!(ahead(first, &[]), None);
    }
}
