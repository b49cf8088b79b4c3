//! Asks at one address after the other for the leader of a primary component.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dromon_order::{Start, incarnation};
use dromon_writeset::Uuid;

use super::connect::Found;
use super::connect_error::{still_looking, what_next};
use super::duties::Timings;
use super::halves::OwnHalf;
use super::search::{
    ALONE, LOOKING, Unanswered, may_be_missed, names_itself_alone, other_history, own_address_leads,
};
use super::service::from_parts;
use super::{ConnectError, Node, Phase};
use crate::chain::Compared;
use crate::cluster::ClusterState;
use crate::forks::LogEnd;
use crate::messages::{Answer, CheckpointParts, Need, Position, Request};
use crate::options::{ClusterAddress, Settings};

/// After so long nobody takes this node's own former process, which may have been the only one
/// with data, for one that can give a copy.
const FORMER: Duration = Duration::from_secs(2);
/// Between two rounds of asking.
const ROUND: Duration = Duration::from_millis(300);
/// Between two words of who finds nobody.
const TELL: Duration = Duration::from_secs(10);

/// What is looked for, and by whom.
struct Search<'s> {
    /// Of the cluster.
    name: &'s str,
    settings: &'s Settings,
    /// Where the database stands.
    position: Position,
    /// The own log may be gone on with.
    resume: bool,
    /// The own address.
    own: String,
    log: Option<LogEnd>,
    /// Of the own log, up to the position.
    sum: Option<u64>,
    began: Instant,
    ahead: RefCell<AheadOf>,
}

/// Who says that this node's database is ahead of the cluster.
///
/// A leader whose machine stood goes on by its clock, which stood too: for the rest of its lease it does not know that
/// others lead by now, and have more. So its word counts when it says so again, asked more than a lease later.
struct AheadOf {
    wait: Duration,
    /// Whose, in which term, and when the first word of that one came. One may have two addresses, and be asked at both.
    first: BTreeMap<(String, u64), Instant>,
    /// When the first of all came.
    since: Option<Instant>,
}

impl AheadOf {
    /// For leaders with such a lease.
    fn new(lease: Duration) -> Self {
        AheadOf {
            wait: (lease * 2).max(Duration::from_secs(2)),
            first: BTreeMap::new(),
            since: None,
        }
    }

    /// The one at `addr`, which leads in `term`, was asked at `asked` and said so at `now`. Whether that counts.
    fn said(&mut self, addr: &str, term: u64, asked: Instant, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let first = self.first.entry((addr.to_owned(), term)).or_insert(now);
        asked >= *first + self.wait
    }

    /// Whether a second word may come at `now`. Not for ever: leaders may change again and again.
    fn is_open(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now < since + self.wait * 2)
    }
}

/// One round of asking.
#[derive(Default)]
struct Round {
    /// Asked in this order; leaders that are named come to its end.
    candidates: Vec<String>,
    /// What each said that does not help.
    said: Vec<(String, String)>,
    /// Somebody may be the leader in a moment.
    awaited: bool,
    /// How many will say the same again.
    refusals: usize,
    /// One that leads cannot be joined by this build.
    never: Option<ConnectError>,
}

impl Round {
    fn missing(&self) -> String {
        let each = self.said.iter().map(|(addr, why)| format!("{addr}: {why}"));
        each.collect::<Vec<_>>().join("; ")
    }
}

/// What one that leads answered, beside its checkpoint.
struct Leader<'l> {
    addr: &'l str,
    /// The position that it was told.
    asked: Position,
    need: Need,
    compared: Compared,
    term: u64,
}

/// What came of the answer of one that leads.
enum Weighed {
    Found(Box<Found>),
    /// It does not help now, and why.
    Not(String),
    /// It is behind this node's database, if it says so again.
    Ahead(String),
    /// Nor later.
    Never(ConnectError),
    /// This one is of the own log's incarnation, and to be asked instead.
    Elsewhere(String),
    /// It is to be asked again.
    Again,
}

impl Node {
    /// Looks for a primary component until `pc.wait_prim_timeout`, at `address`
    /// and at the `known` members of before.
    pub(super) fn find_cluster(
        &self,
        name: &str,
        address: &ClusterAddress,
        settings: &Settings,
        position: Position,
        resume: bool,
        known: &[String],
    ) -> Result<Found, ConnectError> {
        let known = match self.nodes_to_ask(address, settings, known) {
            // Of one node there is nobody to wait for.
            Err(e @ ConnectError::OnlyItself { .. }) if resume => {
                let own = self.log_with_others(position, settings, ALONE)?;
                return own.ok_or(e);
            }
            known => known?,
        };
        let search = Search {
            name,
            settings,
            position,
            resume,
            own: settings.advertised.to_string(),
            log: self.log_end_before(settings),
            sum: self.own_sum(position, settings),
            began: Instant::now(),
            ahead: RefCell::new(AheadOf::new(Timings::of(settings).lease)),
        };
        let mut told = Instant::now();
        let mut damage = None;
        loop {
            let mut round = Round {
                candidates: self.each_address(&known, settings),
                ..Round::default()
            };
            let others = round.candidates.len() > 1;
            if let Some(found) = self.ask_each(&search, &mut round, others)? {
                return Ok(found);
            }
            if round.refusals > 0 && round.refusals == round.said.len() {
                let all: Vec<String> = round.said.into_iter().map(|(_, why)| why).collect();
                return Err(ConnectError::Refused(all.join("; ")));
            }
            if matches!(self.phase(), Phase::Leaving | Phase::Closed) {
                return Err(ConnectError::Refused("told to leave meanwhile".into()));
            }
            // Another one may lead in a moment. If not, a component that the own log makes with others would be a second
            // one.
            if let Some(e) = round.never.take().filter(|_| !round.awaited) {
                return Err(e);
            }
            // Who leads others needs this node's log for nothing but its vote.
            if resume && !round.awaited && !round.said.is_empty() && damage.is_none() {
                match self.log_with_others(position, settings, search.began.elapsed()) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(ConnectError::Damaged(why)) => {
                        self.warn(&format!(
                            "this node's log is damaged and cannot help to form a primary component; waiting for one \
                             of the others: {why}"
                        ));
                        damage = Some(why);
                    }
                    Err(e) => return Err(e),
                }
            }
            let open = search.ahead.borrow().is_open(Instant::now());
            if search.began.elapsed() >= settings.wait_prim_timeout && !open {
                return Err(self.found_nobody(&search, round.missing(), damage));
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                self.note(&still_looking(&round.missing(), self.left_last()));
            }
            std::thread::sleep(ROUND);
        }
    }

    /// Asks all candidates, and whom they name. `others`: there is more than one address.
    fn ask_each(
        &self,
        search: &Search<'_>,
        round: &mut Round,
        others: bool,
    ) -> Result<Option<Found>, ConnectError> {
        let mut next = 0;
        while let Some(addr) = round.candidates.get(next).cloned() {
            next += 1;
            self.still_starting(LOOKING);
            self.unless_told_to_stop(LOOKING)?;
            // In doubt about its tables it goes on from no position of theirs.
            let asked = match self.starts_anew() {
                true => Position::UNDEFINED,
                false => search.position,
            };
            let request = Request::State {
                position: asked,
                log: search.log,
                sum: search.sum,
                witness: self.is_witness(),
            };
            let said = match self.ask(search.name, &addr, &request) {
                Ok(Answer::State {
                    need,
                    compared,
                    checkpoint,
                    term,
                }) => {
                    let leader = Leader {
                        addr: &addr,
                        asked,
                        need,
                        compared,
                        term,
                    };
                    match self.weigh(search, &leader, checkpoint)? {
                        Weighed::Found(found) => return Ok(Some(*found)),
                        Weighed::Not(why) => why,
                        Weighed::Ahead(why) => {
                            round.awaited = true;
                            why
                        }
                        Weighed::Never(e) => {
                            let why = e.to_string();
                            round.never = Some(e);
                            why
                        }
                        Weighed::Elsewhere(other) => {
                            round.awaited = true;
                            let why = format!("of another incarnation than {other}");
                            if !round.candidates.contains(&other) {
                                round.candidates.push(other);
                            }
                            why
                        }
                        Weighed::Again => {
                            round.candidates.push(addr);
                            continue;
                        }
                    }
                }
                Ok(Answer::NotLeader {
                    leader: Some(leader),
                }) if leader == search.own => own_address_leads(&search.own),
                Ok(Answer::NotLeader {
                    leader: Some(leader),
                }) => {
                    if !round.candidates.contains(&leader) {
                        round.candidates.push(leader);
                    }
                    "not the leader".into()
                }
                Ok(Answer::NotLeader { leader: None }) => "knows no primary component".into(),
                Ok(Answer::Refused(why)) => why,
                Ok(Answer::Wait(why)) => {
                    round.awaited = true;
                    why
                }
                Ok(_) => "gave an answer that does not fit the question".into(),
                Err(Unanswered { why, refused }) => {
                    // One that refuses says nothing of the others.
                    if refused && others {
                        self.tell_refused(&why);
                    }
                    round.refusals += usize::from(refused);
                    why
                }
            };
            round.said.push((addr, said));
        }
        Ok(None)
    }

    /// Whether this node can join by what a leader says, and how.
    fn weigh(
        &self,
        search: &Search<'_>,
        leader: &Leader<'_>,
        checkpoint: CheckpointParts,
    ) -> Result<Weighed, ConnectError> {
        let (position, addr) = (search.position, leader.addr);
        let Leader {
            need,
            compared,
            term,
            ..
        } = *leader;
        self.tell_compared(addr, position, search.sum, need, compared);
        let theirs = ClusterState::peek_of_any_build(&checkpoint.node);
        let theirs: Option<Uuid> = theirs.map(|at| at.history);
        // Its data stays as it is while its server runs: it goes on looking.
        if self.phase() == Phase::Rejoining
            && let Some(theirs) = theirs.filter(|h| *h != position.history)
        {
            return Ok(Weighed::Not(other_history(theirs, position)));
        }
        if (search.log).is_some_and(|log| log.last.incarnation() != incarnation(term)) {
            if let Some(why) = self.would_give_up_a_later_one(search, addr, term, theirs)? {
                return Ok(Weighed::Never(ConnectError::Refused(why)));
            }
            match self.own_half(search.name, search.settings, position, addr, term, theirs)? {
                OwnHalf::Gone => {}
                OwnHalf::Primary(other, words) => {
                    self.warn_now_and_then(&words);
                    return Ok(Weighed::Elsewhere(other));
                }
                OwnHalf::Waits(words) => {
                    let log = self.resumable_as_wanted(position, search.settings, may_be_missed);
                    if let Some(found) = log?.filter(|_| search.resume) {
                        self.warn_now_and_then(&words);
                        return Ok(Weighed::Found(Box::new(found)));
                    }
                }
            }
        }
        let log_start = checkpoint.log_id.2;
        let format = ClusterState::other_format(&checkpoint.node);
        let read = from_parts(checkpoint);
        // Its log is not gone on with: what only it has would be cut off, and nothing would tell later what the
        // database has beyond the cluster's.
        if need == Need::Copy
            && !compared.differs()
            && let Some((_, state)) = &read
        {
            let (asked, began) = (leader.asked, Instant::now());
            match self.last_before(search.name, addr, asked, search.log, state) {
                Ok(None) => {}
                Ok(Some(last)) => {
                    let position = asked.seqno;
                    let mut ahead = search.ahead.borrow_mut();
                    if ahead.said(addr, term, began, Instant::now()) {
                        return Err(ConnectError::Ahead { position, last });
                    }
                    let why = format!(
                        "its log ends at seqno {last}, and the database here stands at {position}, in the same history"
                    );
                    self.note_now_and_then(&format!(
                        "{addr}: {why}. It may have stood still and lead no more, so it is asked again"
                    ));
                    return Ok(Weighed::Ahead(why));
                }
                Err(why) => return Ok(Weighed::Not(why)),
            }
        }
        // A log that is no copy of theirs does not count there.
        if search.resume
            && !compared.differs()
            && let Some(found) =
                self.own_log_first(search.name, addr, term, theirs, position, search.settings)?
        {
            return Ok(Weighed::Found(Box::new(found)));
        }
        let Some((checkpoint, state)) = read else {
            return Ok(match format {
                Some(theirs) => Weighed::Never(ConnectError::LedByOtherBuild {
                    addr: addr.to_owned(),
                    theirs,
                    ours: ClusterState::FORMAT,
                }),
                None => Weighed::Not("its checkpoint cannot be read by this version".into()),
            });
        };
        if need == Need::Log && !self.is_witness() {
            let ours = self.need_with_streams(need, position, &state);
            let ours = self.need_with_marks(ours, position, search.log, term);
            if ours == Need::Copy {
                // Asked again: somebody must be there who gives one.
                return Ok(Weighed::Again);
            }
        }
        if need == Need::Copy
            && !self.is_witness()
            && search.began.elapsed() < FORMER
            && only_gives(&state, &search.own)
        {
            return Ok(Weighed::Not(
                "still counts this node's former process".into(),
            ));
        }
        let needs = match need {
            _ if self.is_witness() => "the log from here on",
            Need::Log => "the log from its position on",
            Need::Copy => "a full copy",
        };
        // Who joins again and cannot says so by itself, once a minute.
        if need == Need::Log || self.phase() != Phase::Rejoining {
            self.note(&format!(
                "connection established to {addr}; cluster at {}; this node needs {needs}",
                state.position(),
            ));
        }
        Ok(Weighed::Found(Box::new(Found {
            start: Start::Join { checkpoint, term },
            state,
            need,
            differs: compared.differs(),
            log_start,
            leader: Some(addr.to_owned()),
            counted_by: None,
            needs_others: false,
        })))
    }

    /// What is said when the time is over.
    fn found_nobody(
        &self,
        search: &Search<'_>,
        missing: String,
        damage: Option<String>,
    ) -> ConnectError {
        let settings = search.settings;
        let seconds = settings.wait_prim_timeout.as_secs();
        let log = self.look_into_log(settings).ok().flatten();
        if let Some(log) = log.filter(|log| search.resume && may_be_missed(log)) {
            let tried = format!("failed to reach primary view within {seconds} s: {missing}; ");
            if let Some(e) = self.of_other_build(&log, settings, &tried) {
                return e;
            }
        }
        match damage {
            Some(damage) => ConnectError::DamagedAlone {
                seconds,
                missing,
                damage,
            },
            None => ConnectError::NoPrimary {
                seconds,
                missing,
                next: what_next(self.left_last(), self.no_log_to_go_on_with(settings)),
                left_last: self.left_last(),
            },
        }
    }

    /// Why this node does not join the one at `addr`, which leads in `term`: it was forced on alone later than that one's
    /// incarnation began, and crashed. What was acknowledged here since then only people give up.
    fn would_give_up_a_later_one(
        &self,
        search: &Search<'_>,
        addr: &str,
        term: u64,
        theirs: Option<Uuid>,
    ) -> Result<Option<String>, ConnectError> {
        let position = search.position;
        let same = theirs == Some(position.history) && self.is_of_the_last_one(position);
        if !same || self.stopped_in_order().is_some() {
            return Ok(None);
        }
        let log = self.look_into_log(search.settings)?;
        let later = log
            .filter(names_itself_alone)
            .map(|log| log.end.last.incarnation());
        Ok(later.filter(|own| *own > incarnation(term)).map(|own| {
            format!(
                "{addr} leads incarnation {} of this node's data, and this node has gone on alone as a later one ({own}): it was \
                 forced to, and then crashed. To join means a full copy in place of the data, and what was acknowledged here \
                 since then would be lost. Nothing was changed. To give that up, set safe_to_bootstrap: 0 in grastate.dat and \
                 start this node again. To keep it and give up what the other one has acknowledged, stop all nodes of that \
                 other one, start this one first, then those, one after the other",
                incarnation(term)
            )
        }))
    }

    /// Whether this node was the last one that was stopped, and has data to found a cluster with.
    fn left_last(&self) -> bool {
        self.saved().safe_to_bootstrap && !self.is_witness()
    }
}

/// Whether nobody but the one at `own` could give a copy.
fn only_gives(state: &ClusterState, own: &str) -> bool {
    let mut donors = state.members().filter(|m| m.can_give()).peekable();
    donors.peek().is_some() && donors.all(|m| m.addr == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_this_node_is_ahead_counts_when_the_same_leader_says_so_again_later() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut ahead = AheadOf::new(Duration::from_millis(1500));
        assert!(!ahead.is_open(at(0)));
        assert!(!ahead.said("a", 7, at(0), at(100)));
        // It still has the rest of its lease.
        assert!(!ahead.said("a", 7, at(1600), at(1700)));
        assert!(ahead.is_open(at(3099)));
        // Its answer waited on the way.
        assert!(!ahead.said("a", 7, at(3099), at(9000)));
        assert!(ahead.said("a", 7, at(3100), at(3101)));
        // Another one, and one that was elected since, may have stood, too.
        assert!(!ahead.said("b", 7, at(9000), at(9000)));
        assert!(!ahead.said("b", 8, at(13_000), at(13_000)));
        assert!(ahead.said("b", 8, at(16_000), at(16_000)));
        assert!(!ahead.is_open(at(9000)), "nobody is waited for without end");
        // The same one, asked at its name and at its number in each round.
        let mut ahead = AheadOf::new(Duration::from_millis(1500));
        for ms in (0..3000).step_by(300) {
            for addr in ["name", "10.0.0.1"] {
                assert!(!ahead.said(addr, 7, at(ms), at(ms)));
            }
        }
        assert!(ahead.said("name", 7, at(3000), at(3000)));
        let short = AheadOf::new(Duration::from_millis(10));
        assert_eq!(short.wait, Duration::from_secs(2), "theirs may be longer");
    }
}
