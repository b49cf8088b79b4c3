//! Two primary components of one history: a node was forced to go on (`pc.bootstrap`) while
//! others of its cluster lived out of its reach and did so, too.
//!
//! Both acknowledge transactions, and neither hears the other's frames ([`dromon_order::incarnation`]).
//! Which one is to be given up only an operator can say. Until then nobody changes over by itself:
//! who comes between the two stays with the members of its own log, and each of the two looks now
//! and then whether there is another one. So they look for a cluster of their name that is of another
//! history, founded by mistake.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_order::{OrderStatus, RaftId, incarnation};
use dromon_writeset::{Seqno, Uuid};

use super::alone::Reached;
use super::service::Job;
use super::{ConnectError, Node, Phase, lock};
use crate::cluster::ClusterState;
use crate::durabilities::Told;
use crate::forks::LogEnd;
use crate::messages::{Answer, Position, Request, decode, encode};
use crate::options::Settings;

/// How long the members of the own log may take to elect a leader.
const ELECTS: Duration = Duration::from_secs(3);
/// Pause between two rounds of questions.
const AGAIN: Duration = Duration::from_millis(200);
/// How often it is looked for another primary component, in `evs.suspect_timeout`s.
const EVERY: u32 = 6;
/// How long one address may take to say who is there.
const ASK: Duration = Duration::from_secs(2);
/// How often the same is said.
const REPEATED: Duration = Duration::from_secs(3600);
/// Addresses of members of before that are remembered.
const FORMER: usize = 16;

/// What is to be done about two of them.
const GIVE_UP: &str = "One of them was forced to go on (pc.bootstrap, safe_to_bootstrap, pc.ignore_sb) while the other \
                       lived. Both acknowledge transactions, and they do not come together again: what one of the two \
                       has acknowledged since then has to be given up. Let clients write to one of them only, save \
                       from the other what is to be kept, then stop all nodes of that other one and start them one \
                       after the other: each takes a full copy of the one that is left";

/// What is there of the own log's members, beside a leader of another incarnation.
pub(super) enum OwnHalf {
    /// Nobody who goes on in its incarnation.
    Gone,
    /// The one at this address belongs to a primary component of it, and what is to be said.
    Primary(String, String),
    /// Such went on without that leader, and with this node's log they are a majority again: what
    /// is to be said if it goes on.
    Waits(String),
}

/// Where the log parted from that of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parted {
    /// The log's incarnation.
    pub ours: u32,
    /// The cluster's.
    pub theirs: u32,
}

/// `Some` if a log with this `end`, or the database at `seqno` beside it, has something that the
/// cluster in `state`, of whose leader the term is `term`, left behind.
pub(super) fn parted(
    end: Option<LogEnd>,
    term: u64,
    state: &ClusterState,
    seqno: Seqno,
) -> Option<Parted> {
    let parted = Parted {
        ours: end?.last.incarnation(),
        theirs: incarnation(term),
    };
    (parted.ours != parted.theirs && !state.forks().shares(end, seqno)).then_some(parted)
}

/// What this node knows of another primary component.
#[derive(Debug, Default)]
pub(super) struct Beside {
    looked: Option<Instant>,
    /// Where members are, and some of before, the newest last.
    known: VecDeque<String>,
    /// Who belongs to it.
    found: Vec<String>,
    told: Option<Instant>,
    /// Who belongs to one of another history, and of which.
    foreign: Vec<(String, Uuid)>,
    foreign_told: Option<Instant>,
    asking: Option<std::thread::JoinHandle<()>>,
}

impl Beside {
    /// Whether it is time to look.
    fn is_due(&mut self, now: Instant, every: Duration) -> bool {
        let due = self.looked.is_none_or(|at| now - at >= every);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// There are members at these addresses.
    fn learn<'a>(&mut self, members: impl ExactSizeIterator<Item = &'a String>) {
        let kept = FORMER + members.len();
        for addr in members {
            if !self.known.contains(addr) {
                self.known.push_back(addr.clone());
            }
        }
        let more = self.known.len().saturating_sub(kept);
        self.known.drain(..more);
    }

    /// Whom to ask: who is `listed` or was a member, and is none.
    fn places(&self, listed: Vec<String>, members: &BTreeSet<String>) -> Vec<String> {
        let mut places = Vec::new();
        for addr in listed.into_iter().chain(self.known.iter().cloned()) {
            if !members.contains(&addr) && !places.contains(&addr) {
                places.push(addr);
            }
        }
        places
    }

    /// Those at `found` belong to another one. Answers what is news, or was last said long ago;
    /// `names` are history and incarnation here.
    fn heard(&mut self, found: Vec<String>, names: (Uuid, u32), now: Instant) -> Option<Told> {
        let before = std::mem::replace(&mut self.found, found);
        if self.found.is_empty() {
            let over = "no node of another primary component of this history answers any more";
            self.told = None;
            return (!before.is_empty()).then(|| Told::Note(over.into()));
        }
        if !is_news(&mut self.told, now) {
            return None;
        }
        let (history, incarnation) = names;
        Some(Told::Warning(format!(
            "there are two primary components of one history ({history}): that of this node (incarnation {incarnation}), \
             and another one at {}. {GIVE_UP}",
            self.found.join(", ")
        )))
    }

    /// The same of those that belong to a cluster of this name, each of this other history; `history` is that here.
    fn heard_foreign(
        &mut self,
        found: Vec<(String, Uuid)>,
        history: Uuid,
        now: Instant,
    ) -> Option<Told> {
        let before = std::mem::replace(&mut self.foreign, found);
        if self.foreign.is_empty() {
            let over = "no node of a cluster of this name and of another history answers any more";
            self.foreign_told = None;
            return (!before.is_empty()).then(|| Told::Note(over.into()));
        }
        if !is_news(&mut self.foreign_told, now) {
            return None;
        }
        let each = self.foreign.iter();
        let each: Vec<String> = each
            .map(|(at, of)| format!("{at} (history {of})"))
            .collect();
        Some(Told::Warning(format!(
            "there are two clusters of this name: this node's (history {history}), and another one, which was founded by itself, \
             at {}. Clients may write to both, and neither gets what the other acknowledges. If one of them was founded by \
             mistake (--wsrep-new-cluster on an empty data directory, for example), let clients write to the other one only, \
             save what is to be kept, then stop all nodes of that one and start them one after the other without \
             --wsrep-new-cluster: each takes a full copy of the one that is left. If both are wanted, give one of them another \
             wsrep_cluster_name, and take its nodes out of the wsrep_cluster_address here",
            each.join(", ")
        )))
    }
}

/// Whether what was `told` last is to be said again at `now`.
fn is_news(told: &mut Option<Instant>, now: Instant) -> bool {
    let news = told.is_none_or(|at| now - at >= REPEATED);
    if news {
        *told = Some(now);
    }
    news
}

/// Whether `members` know nobody with this `id`, if that is told, and nobody at `addr`.
fn leaves_out(members: &BTreeMap<RaftId, String>, id: Option<RaftId>, addr: &str) -> bool {
    let named = id.is_some_and(|id| members.contains_key(&id));
    !named && members.values().all(|at| at != addr)
}

impl Node {
    /// Who is there of the members that the own log names, where `addr` leads in `term`, in history
    /// `theirs`, and the log is of another incarnation.
    pub(super) fn own_half(
        &self,
        name: &str,
        settings: &Settings,
        position: Position,
        addr: &str,
        term: u64,
        theirs: Option<Uuid>,
    ) -> Result<OwnHalf, ConnectError> {
        let log = match self.look_into_log(settings) {
            Ok(Some(log)) => log,
            Ok(None) | Err(ConnectError::Damaged(_)) => return Ok(OwnHalf::Gone),
            Err(e) => return Err(e),
        };
        let ours = ClusterState::peek_of_any_build(&log.checkpoint.node).map(|at| at.history);
        let own = log.end.last.incarnation();
        let Some(ours) = ours.filter(|h| Some(*h) == theirs && own != incarnation(term)) else {
            return Ok(OwnHalf::Gone);
        };
        if !position.history.is_nil() && position.history != ours {
            return Ok(OwnHalf::Gone);
        }
        let until = Instant::now() + ELECTS;
        loop {
            let is_last = Instant::now() >= until;
            let others = log.members.iter().filter(|(id, _)| **id != log.id);
            let reached = self.probe(name, others).reached;
            // The log of one that has just joined that leader may not have come so far yet.
            let follows = |r: &Reached| r.leader.as_deref() == Some(addr);
            let is_own =
                |r: &&Reached| r.history == ours && incarnation(r.last.term) == own && !follows(r);
            let here: Vec<_> = reached.iter().filter(is_own).collect();
            let two = format!(
                "there are two primary components of one history ({ours}): {addr} leads one (incarnation {})",
                incarnation(term)
            );
            if let Some(r) = here.iter().find(|r| r.primary) {
                let words = format!(
                    "{two}, and {} belongs to the other ({own}), as this node's log does: this node stays with that. \
                     {GIVE_UP}",
                    r.addr
                );
                return Ok(OwnHalf::Primary(r.addr.clone(), words));
            }
            let Some(first) = here.first() else {
                return Ok(OwnHalf::Gone);
            };
            if is_last {
                // They went on without that leader: else the log would name it. It may have moved since, or be asked
                // by another name: where it was forced on it has kept its id.
                let id = self.engines.who_is_at(name, addr, ASK);
                let left_out = leaves_out(&log.members, id, addr);
                let ids = here.iter().map(|r| r.id).chain([log.id]);
                let votes = ids.filter(|id| log.voters.contains(id)).count();
                if !left_out || 2 * votes <= log.voters.len() {
                    return Ok(OwnHalf::Gone);
                }
                return Ok(OwnHalf::Waits(format!(
                    "{two}, and {} waits for the other ({own}), which went on without that and is a majority with this \
                     node's log: this node goes on with its log. {GIVE_UP}",
                    first.addr
                )));
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Has it looked for another primary component, if it is time for that. On the order thread.
    pub(super) fn look_beside(&self, status: &OrderStatus) {
        let primary = status.primary && self.phase() == Phase::Joined;
        let every = EVERY * self.settings().suspect_timeout;
        let due = primary && {
            let mut beside = lock(&self.beside);
            beside.learn(status.members.addrs.values());
            beside.is_due(Instant::now(), every)
        };
        if due && let Some(services) = self.services() {
            // A full queue only delays this.
            let _ = services.try_send(Job::Beside);
        }
    }

    /// Looks for it on a thread of its own, as who is silent takes its time. On the service thread.
    pub(super) fn ask_beside(self: &Arc<Self>) {
        let mut beside = lock(&self.beside);
        if beside.asking.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let node = self.clone();
        let thread = std::thread::Builder::new()
            .name("dromon-beside".into())
            .spawn(move || node.hears_beside());
        // Without one it is tried again.
        if let Ok(thread) = thread {
            beside.asking = Some(thread);
        }
    }

    /// Where nodes of another primary component of this history are, with commas.
    pub(super) fn named_beside(&self) -> String {
        match self.phase() {
            Phase::Joined => lock(&self.beside).found.join(","),
            _ => String::new(),
        }
    }

    /// Nobody is asked any more, and nothing is known.
    pub(super) fn end_beside(&self) {
        let beside = std::mem::take(&mut *lock(&self.beside));
        if let Some(thread) = beside.asking {
            let _ = thread.join();
        }
    }

    fn hears_beside(&self) {
        let Some(order) = self.order() else { return };
        let settings = self.settings();
        let (status, history, own) = (order.status(), self.history(), self.own_addr());
        let (cluster, mut members, uuids, address) = {
            let shared = self.shared();
            let seen = shared.view.iter().flat_map(|v| &v.members);
            let (uuids, addrs): (BTreeSet<Uuid>, BTreeSet<String>) =
                seen.map(|m| (m.uuid, m.addr.clone())).unzip();
            let (cluster, address) = (shared.cluster.clone(), shared.address.clone());
            (cluster, addrs, uuids, address)
        };
        members.extend(status.members.addrs.into_values());
        members.insert(own);
        let listed = address.resolve(settings.base_port);
        let listed = listed.iter().filter(|a| !settings.is_own(a));
        let listed: Vec<String> = listed.map(ToString::to_string).collect();
        let listed = self.each_address(&listed, &settings);
        let places = lock(&self.beside).places(listed, &members);
        let ours = incarnation(status.term);
        let answers = self.ask_all(&cluster, &places, &encode(&Request::Probe), ASK);
        let answers = answers.into_iter().map(|answer| decode(&answer.ok()?));
        let (mut found, mut foreign) = (Vec::new(), Vec::new());
        for (addr, answer) in places.into_iter().zip(answers) {
            let Some(Answer::Info {
                primary,
                position,
                last,
                uuid,
                leader,
                ..
            }) = answer
            else {
                continue;
            };
            let is_led_here = leader.is_some_and(|leader| members.contains(&leader));
            if !primary || uuids.contains(&uuid) || is_led_here {
                continue;
            }
            if position.history != history {
                foreign.push((addr, position.history));
            } else if incarnation(last.term) != ours {
                found.push(addr);
            }
        }
        foreign.retain(|(_, of)| !of.is_nil());
        // It may have changed over meanwhile.
        let now = order.status();
        if !now.primary || incarnation(now.term) != ours || self.phase() != Phase::Joined {
            return;
        }
        let told = {
            let (mut beside, now) = (lock(&self.beside), Instant::now());
            let two = beside.heard(found, (history, ours), now);
            [two, beside.heard_foreign(foreign, history, now)]
        };
        for told in told.into_iter().flatten() {
            match told {
                Told::Warning(text) => self.warn(&text),
                Told::Note(text) => self.note(&text),
            }
        }
    }

    pub(super) fn warn_now_and_then(&self, what: &str) {
        if lock(&self.told).again(what, Instant::now()) {
            self.warn(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use dromon_order::Leadership;

    use super::*;

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|a| (*a).to_owned()).collect()
    }

    #[test]
    fn who_has_moved_is_known_by_its_id() {
        let members = BTreeMap::from([(1, "a:4567".into()), (2, "b:4567".into())]);
        assert!(!leaves_out(&members, Some(1), "c:4567"), "it moved");
        assert!(!leaves_out(&members, Some(9), "b:4567"), "a new log there");
        assert!(!leaves_out(&members, None, "b:4567"));
        assert!(leaves_out(&members, Some(9), "c:4567"));
        assert!(leaves_out(&members, None, "c:4567"));
    }

    #[test]
    fn who_is_no_member_is_asked_and_who_was_one_is_remembered() {
        let mut beside = Beside::default();
        let mut places = |listed: &[&str], members: &[&str]| {
            let members = strings(members);
            beside.learn(members.iter());
            beside.places(strings(listed), &members.into_iter().collect())
        };
        assert!(places(&["a", "b"], &["a", "b", "c"]).is_empty());
        assert_eq!(places(&["a", "b"], &["a"]), ["b", "c"]);
        assert_eq!(places(&["a", "d"], &["a", "b"]), ["d", "c"]);
        for n in 0..2 * FORMER {
            places(&["a"], &["a", &format!("n{n}")]);
        }
        assert!(places(&["a"], &["a"]).len() <= FORMER + 1);
    }

    #[test]
    fn another_one_is_told_of_once_an_hour_and_when_it_is_gone() {
        let (mut beside, began) = (Beside::default(), Instant::now());
        let mut heard = |found: &[&str], s| {
            beside.heard(
                strings(found),
                (Uuid([7; 16]), 3),
                began + Duration::from_secs(s),
            )
        };
        assert_eq!(heard(&[], 0), None);
        let Some(Told::Warning(said)) = heard(&["b:1"], 30) else {
            panic!("it is news");
        };
        assert!(said.contains("(incarnation 3)") && said.contains("at b:1."));
        assert_eq!(heard(&["b:1", "c:1"], 60), None);
        assert!(matches!(heard(&["b:1"], 3630), Some(Told::Warning(_))));
        assert!(matches!(heard(&[], 3660), Some(Told::Note(_))));
        assert_eq!(heard(&[], 3690), None);
        assert!(matches!(heard(&["b:1"], 3720), Some(Told::Warning(_))));
    }

    #[test]
    fn of_another_cluster_of_the_name_the_same_is_told() {
        let (mut beside, began) = (Beside::default(), Instant::now());
        let mut heard = |found: &[&str], s| {
            let found = found.iter().map(|at| ((*at).to_owned(), Uuid([8; 16])));
            let at = began + Duration::from_secs(s);
            beside.heard_foreign(found.collect(), Uuid([7; 16]), at)
        };
        assert_eq!(heard(&[], 0), None);
        let Some(Told::Warning(said)) = heard(&["b:1"], 30) else {
            panic!("it is news");
        };
        assert!(said.contains("two clusters of this name"), "{said}");
        assert!(said.contains("b:1 (history 08080808-"), "{said}");
        assert_eq!(heard(&["b:1", "c:1"], 60), None);
        assert!(matches!(heard(&["b:1"], 3630), Some(Told::Warning(_))));
        assert!(matches!(heard(&[], 3660), Some(Told::Note(_))));
        assert_eq!(heard(&[], 3690), None);
    }

    #[test]
    fn it_is_looked_for_now_and_then() {
        let (mut beside, began) = (Beside::default(), Instant::now());
        let every = Duration::from_secs(30);
        let mut due = |s| beside.is_due(began + Duration::from_secs(s), every);
        assert!(due(0) && !due(29) && due(31) && !due(60) && due(61));
    }

    #[test]
    fn what_lies_beyond_the_fork_is_left_behind() {
        let by = |incarnation: u64| Leadership {
            term: (incarnation << 32) + 1,
            leader: 1,
        };
        let end = |incarnation| {
            let by = by(incarnation);
            Some(LogEnd {
                last: by,
                voted: by,
            })
        };
        let at = Position {
            history: Uuid([7; 16]),
            seqno: 10,
        };
        let state = ClusterState::genesis_after(at, by(0));
        let said = |end, seqno| parted(end, by(4).term, &state, seqno).map(|p| (p.ours, p.theirs));
        assert_eq!(said(end(4), 99), None, "of the same incarnation");
        assert_eq!(
            said(end(3), 5),
            Some((3, 4)),
            "nothing of it is known there"
        );
        assert_eq!(said(None, 5), None, "there is no log");
    }
}
