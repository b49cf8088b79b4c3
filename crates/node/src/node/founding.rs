//! Founding a cluster, and what an edit of `grastate.dat` may do.
//!
//! Tools and operators write into that file: `safe_to_bootstrap: 1` on the most
//! advanced node after an outage, history and seqno of a backup. Both are taken
//! as requests. A seqno counts by itself only if this node wrote it when it
//! stopped cleanly ([`Marks::stopped`]); any other one is compared with what
//! the storage engine says. The flag counts unless a node that the own log or the address
//! list names ([`listed`](super::listed)) belongs to a primary component, or has more of the log.
//!
//! [`Marks::stopped`]: crate::ddl_marks::Marks::stopped

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_order::{Leadership, Start};

use super::alone::{Probed, ahead_of, other_primary};
use super::connect::{Found, random_u64, random_uuid};
use super::listed::Beside;
use super::search::{NO_MEMBER, has_other_voters, has_others, is_later, votes_alone};
use super::{ConnectError, LogSummary, Node, lock};
use crate::cluster::ClusterState;
use crate::grastate::GraState;
use crate::messages::{Need, Position};
use crate::options::{ClusterAddress, Settings};

/// How long a founder looks for a primary component of those that its log names, or else
/// its address list.
pub(super) const LOOK: Duration = Duration::from_secs(3);
/// Pause between two rounds of questions.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

/// Where Galera keeps write sets, beside the data.
const GALERA_CACHE: &str = "galera.cache";

/// What the state file says, as a start may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// No data that can be used.
    NoData,
    /// Nothing: the node is new, or its file was removed.
    Nothing,
    /// A history; where it stands nobody noted, as it ran.
    History,
    /// The position of this node's last orderly stop.
    OwnStop,
    /// A position that somebody else wrote.
    Position,
}

fn word(saved: GraState, stopped: Option<Position>, new: bool, has_log: impl Fn() -> bool) -> Word {
    if saved.uuid.is_nil() {
        return match saved.safe_to_bootstrap && (new || !has_log()) {
            true => Word::Nothing,
            false => Word::NoData,
        };
    }
    match in_file(saved) {
        p if !p.is_defined() => Word::History,
        p if stopped == Some(p) => Word::OwnStop,
        _ => Word::Position,
    }
}

fn in_file(saved: GraState) -> Position {
    Position {
        history: saved.uuid,
        seqno: saved.seqno,
    }
}

impl Node {
    /// What the database contains, as far as anybody can know.
    ///
    /// At the first connection of a process the word of the storage engine
    /// counts before the state file's, whether the server passes it on or is
    /// asked here. Only where that file has the position of the last orderly
    /// stop nobody is asked. One that says "no usable data" overrules all.
    pub(super) fn known_position(&self) -> Position {
        if self.setup.witness {
            return self.position_of_log();
        }
        let saved = self.saved();
        let file = in_file(saved);
        *lock(&self.engine_word) = None;
        self.wants_copy.store(false, Relaxed);
        self.engine_silent.store(false, Relaxed);
        if self.connected_before.swap(true, Relaxed) {
            // Where its log may have more than the database, the file does not say where that stands.
            let stopped = lock(&self.ddl_marks).stopped();
            let own = stopped.filter(|at| !file.is_defined() && at.history == file.history);
            return own.unwrap_or(file);
        }
        let log_dir = self.settings().log_dir.clone();
        let has_log = || !matches!(self.engines.inspect(&log_dir), Ok(None));
        let stopped = lock(&self.ddl_marks).stopped();
        let word = word(saved, stopped, self.never_saved(), has_log);
        if word == Word::Nothing && has_log() {
            self.wants_copy.store(true, Relaxed);
            self.note(
                "grastate.dat is gone, though there is a log: taken as the wish for a full copy, if a primary component \
                 answers. If none does, this node's data and log count as before",
            );
        }
        // Two libraries may have gone on from it side by side, under one history.
        if word == Word::Position && self.setup.data_dir.join(GALERA_CACHE).exists() && !has_log() {
            self.wants_copy.store(true, Relaxed);
            self.note(&format!(
                "the data here comes from Galera ({GALERA_CACHE} lies beside it, and there is no log of this library): if a \
                 primary component answers, this node takes a full copy of it. To found the cluster the data counts as \
                 it is"
            ));
        }
        let given = self.setup.position;
        let engine = match word {
            Word::NoData => return Position::UNDEFINED,
            _ if given.is_defined() => Ok(given),
            Word::OwnStop => return file,
            Word::Nothing if !has_log() => return Position::UNDEFINED,
            _ => self.ask_engine(),
        };
        let unknown = Position {
            history: saved.uuid,
            seqno: -1,
        };
        match engine {
            Ok(engine) if word == Word::Nothing || engine.history == saved.uuid => {
                if word == Word::Position && engine != file {
                    self.warn(&format!(
                        "grastate.dat says seqno {}, which this node did not write when it stopped, and the storage \
                         engine stands at {engine}. The engine's word counts: by the file's, what lies between would be \
                         {}. Nothing is lost, and nothing is to be done; to set a position by hand, restore the data \
                         that belongs to it",
                        file.seqno,
                        match file.seqno > engine.seqno {
                            true => "missing here without a word",
                            false => "applied twice",
                        }
                    ));
                }
                engine
            }
            Ok(engine) if !engine.is_defined() && word == Word::Position => {
                self.note(&format!(
                    "the storage engine has no position of its own; taking that of grastate.dat, {file}"
                ));
                file
            }
            Ok(engine) if engine.is_defined() => {
                self.warn(&format!(
                    "grastate.dat says that the data here belongs to history {}, but the storage engine stands at \
                     {engine}: it belongs to neither for certain. In a cluster that runs, this node takes a full copy",
                    saved.uuid
                ));
                *lock(&self.engine_word) = Some(engine);
                unknown
            }
            Err(why) if word == Word::Position && !has_log() => {
                self.note(&format!(
                    "the storage engine does not tell its position: {why}"
                ));
                file
            }
            Err(why) => {
                self.engine_was_silent(&why);
                unknown
            }
            _ => unknown,
        }
    }

    fn ask_engine(&self) -> Result<Position, String> {
        let position = self.engines.recover_position(&self.setup.data_dir)?;
        self.note(&format!("the storage engine stands at {position}"));
        Ok(position)
    }

    /// Where a cluster begins that is founded here: with the own log if that
    /// leads on from `position`, else with a new one. Or where to join, if there
    /// is one already.
    pub(super) fn found_cluster(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
        resume: bool,
    ) -> Result<Found, ConnectError> {
        let saved = self.saved();
        if !saved.safe_to_bootstrap {
            // One that cannot be read names nobody.
            let named = self.others_named(settings).unwrap_or_default();
            let no_log = self.no_log_to_go_on_with(settings);
            return Err(ConnectError::NotSafe { named, no_log });
        }
        let log = self.look_into_log(settings)?;
        if saved.uuid.is_nil() && log.is_some() && !self.never_saved() {
            return Err(ConnectError::NoUsableData);
        }
        let of_other_build = (log.as_ref()).and_then(|log| self.of_other_build(log, settings, ""));
        let listed = match &log {
            None => Beside {
                found: self.found_listed(name, address, position, settings, resume)?,
                also: None,
            },
            Some(log) => self.found_listed_too(name, address, position, settings, resume, log)?,
        };
        if let Some(found) = listed.found {
            return Ok(found);
        }
        let others = log.filter(has_others);
        let also = listed.also.as_ref();
        if let Some(log) = &others
            && let Some(found) =
                self.found_beside(name, address, position, settings, resume, log, also)?
        {
            return Ok(found);
        }
        if let Some(refused) = of_other_build.filter(|_| resume) {
            return Err(refused);
        }
        if others.as_ref().is_some_and(has_other_voters) {
            self.may_found_alone(settings)?;
        }
        // A log that has what the engine lost is not given up because the engine could not be asked.
        let there_is_data = !saved.uuid.is_nil() || self.engine_silent.load(Relaxed);
        if there_is_data && position.seqno < 0 {
            return Err(match *lock(&self.engine_word) {
                Some(engine) => ConnectError::OtherData {
                    file: saved.uuid,
                    engine,
                },
                None => ConnectError::UnknownPosition {
                    history: saved.uuid,
                },
            });
        }
        if resume
            && position.is_defined()
            && let Some(found) = self.own_log(position, settings)?
        {
            return Ok(found);
        }
        let beside = others.filter(has_other_voters);
        let start = if position.is_defined() && resume && (saved.seqno >= 0 || beside.is_none()) {
            position
        } else if position.is_defined() {
            let history = random_uuid();
            let named = match self.others_named(settings)? {
                named if named.is_empty() => String::new(),
                named => format!("the log names other voters ({}), and ", named.join(", ")),
            };
            self.warn(&format!(
                "safe_to_bootstrap is 1: {named}the own log cannot be gone on with. What only the logs have is given up. The \
                 cluster goes on under a new history {history}; the others will take a full copy"
            ));
            Position {
                history,
                seqno: position.seqno,
            }
        } else {
            Position {
                history: random_uuid(),
                seqno: 0,
            }
        };
        self.note(&format!(
            "founding a cluster: history {}, last seqno {}",
            start.history, start.seqno
        ));
        // Logs of others that go on from the same history may part from this
        // one here: it is of a later incarnation. Without a log of its own,
        // nothing is known of theirs.
        let after = match self.own_log_end(settings) {
            _ if start.seqno == 0 => None,
            Some(end) => Some(end.last),
            None => Some(Leadership {
                term: u64::from(random_u64() as u32 >> 8) << 32,
                leader: 0,
            }),
        };
        let state = match after {
            Some(by) => ClusterState::genesis_after(start, by),
            None => ClusterState::genesis(start),
        };
        // The new log goes on from the old one's sum, if that tells it.
        let state = match self.own_sum(start, settings) {
            Some(sum) => state.with_sum(sum),
            None => state,
        };
        let (_, genesis) = state.encode();
        Ok(Found {
            start: Start::Bootstrap {
                genesis,
                after: after.map(|by| by.term),
            },
            state,
            need: Need::Log,
            differs: false,
            log_start: 0,
            leader: None,
            counted_by: None,
            needs_others: false,
        })
    }

    /// Founding, while the own log names others: these are asked first, and who is at `also`.
    /// `None`: nobody is in the way, and the own log cannot be gone on with.
    #[allow(clippy::too_many_arguments)]
    fn found_beside(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
        resume: bool,
        log: &LogSummary,
        also: Option<&String>,
    ) -> Result<Option<Found>, ConnectError> {
        let Probed {
            reached,
            untold,
            barred: _,
            silent,
            going,
            looking,
            unlooked: _,
        } = self.look_for_others(name, log, also);
        let ours = ClusterState::peek_position(&log.checkpoint.node);
        let ours = ours.map_or(position.history, |at| at.history);
        let untold_of = |why| ConnectError::Untold {
            why,
            no_log: self.no_log_to_go_on_with(settings),
        };
        if let Some(r) = (reached.iter()).find(|r| r.primary && r.history != ours) {
            return Err(untold_of(other_primary(r, ours)));
        }
        if let Some(r) = reached.iter().find(|r| r.primary) {
            let known: Vec<String> = reached.iter().map(|r| r.addr.clone()).collect();
            let found = self.find_cluster(name, address, settings, position, resume, &known)?;
            // What only this data has would be gone. Where no file says that it is that cluster's, it may be a clone
            // that is to found another one.
            if found.need != Need::Log && self.saved().uuid != r.history {
                return Err(ConnectError::Listed {
                    why: format!(
                        "{}, which this node's log names as a member, belongs to a primary component of that cluster \
                         (history {}), and this node, whose grastate.dat does not say that its data is of that \
                         history, could join it by a full copy only, in place of the data that is here. To join that \
                         one, start this node without --wsrep-new-cluster. To found another cluster of this data, give \
                         that another wsrep_cluster_name, move dromon-*.log in {} and dromon.ddl.log and \
                         dromon.chunks.log in {} away, and start it again",
                        r.addr,
                        r.history,
                        settings.log_dir.display(),
                        settings.base_dir.display()
                    ),
                });
            }
            self.note(&format!(
                "a cluster was to be founded here, but {} belongs to a primary component of the cluster that this \
                 node's log names: joining that one. Two of them would part for good",
                r.addr
            ));
            return Ok(Some(found));
        }
        // What only others have was not acknowledged if none of them votes, and none was
        // forced to go on.
        if let Some(r) = ahead_of(log.last, &reached)
            && (!votes_alone(log) || is_later(r.last.term, log))
        {
            return Err(ConnectError::MoreElsewhere {
                addr: r.addr.clone(),
                listed: r.id == NO_MEMBER,
                theirs: r.last,
                ours: log.last,
                no_log: self.no_log_to_go_on_with(settings),
            });
        }
        let going = going.map(|addr| {
            format!(
                "{addr} is about to go on alone, by an operator's order: a cluster founded here would be another one. \
                 Start this node without --wsrep-new-cluster when it has: it joins"
            )
        });
        let looking = looking.into_values().next();
        if let Some(why) = going.or(untold).or(silent).or(looking) {
            return Err(untold_of(why));
        }
        if !resume {
            return Ok(None);
        }
        // One without a vote may be all that is left: its data is whole.
        let named = |log: &LogSummary| log.members.contains_key(&log.id);
        let Some(found) = self.resumable(position, settings, named)? else {
            return Ok(None);
        };
        let reached = reached.iter().map(|r| r.id);
        let here = reached.chain([log.id]).filter(|id| log.voters.contains(id));
        let votes = here.count();
        if 2 * votes > log.voters.len() {
            self.note(&format!(
                "a cluster was to be founded here, but a majority of its logs is there ({votes} of {}): it goes on \
                 from these, as after any outage, and nothing is given up",
                log.voters.len()
            ));
            let needs_others = !votes_alone(log);
            return Ok(Some(Found {
                needs_others,
                ..found
            }));
        }
        self.may_found_alone(settings)?;
        // It was asked for: MariaDB's own tests do, and take a Warning for a failure.
        self.note(&format!(
            "safe_to_bootstrap was set while the log names other voters ({}), of which none that answers has more: \
             this node's own log (checkpoint at {}, database at {position}) goes on without them. What only they know \
             is given up",
            self.others_named(settings)?.join(", "),
            found.state.position()
        ));
        self.force_primary.store(true, Relaxed);
        Ok(Some(Found {
            needs_others: false,
            ..found
        }))
    }

    /// Refuses what gives up the others' logs, if that is not to be done by the flag alone: tools set it, too.
    fn may_found_alone(&self, settings: &Settings) -> Result<(), ConnectError> {
        match settings.found_alone {
            true => Ok(()),
            false => Err(ConnectError::TooFewAnswer {
                named: self.others_named(settings)?,
                no_log: self.no_log_to_go_on_with(settings),
            }),
        }
    }

    /// Asks the other members of the own log, and who is at `also`, for a while, until one of them
    /// belongs to a primary component.
    fn look_for_others(&self, name: &str, log: &LogSummary, also: Option<&String>) -> Probed {
        let until = Instant::now() + LOOK;
        loop {
            // Who is silent takes all that time.
            let is_last = Instant::now() >= until;
            let others = log.members.iter().filter(|(id, _)| **id != log.id);
            let others = others.chain(also.map(|addr| (&NO_MEMBER, addr)));
            let probed = self.probe(name, others);
            if probed.reached.iter().any(|r| r.primary) || is_last {
                return probed;
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Founding goes on without the others no more; whether it was to, or did.
    pub(super) fn ends_force(&self) -> bool {
        let went = self.went_alone.swap(false, Relaxed) | self.founds_alone.swap(false, Relaxed);
        let asked = !self.setup.witness && self.force_primary.swap(false, Relaxed);
        went || asked
    }

    /// The own log, if it leads on from the database's position and has no
    /// other voter that could know more.
    fn own_log(
        &self,
        position: Position,
        settings: &Settings,
    ) -> Result<Option<Found>, ConnectError> {
        let alone = |log: &LogSummary| log.is_voter() && log.voters.len() == 1;
        let found = self.resumable(position, settings, alone)?;
        if let Some(found) = &found {
            self.founds_alone.store(true, Relaxed);
            self.note(&format!(
                "continuing the own log: checkpoint at {}, database at {position}",
                found.state.position()
            ));
            let saved = in_file(self.saved());
            if saved.is_defined() && lock(&self.ddl_marks).stopped() != Some(saved) {
                self.warn(&format!(
                    "grastate.dat has a position that this node did not write when it stopped, {saved}, and this node's own log \
                     goes on from where the storage engine stands, {position}: what it has behind that comes into the \
                     database again. If the data is a backup to which the cluster is to go back, stop this server, \
                     move dromon-*.log away from {}, restore the backup once more, and found the cluster again",
                    self.settings().log_dir.display()
                ));
            }
        }
        Ok(found.map(|found| Found {
            needs_others: false,
            ..found
        }))
    }
}

#[cfg(test)]
mod tests {
    use dromon_writeset::Uuid;

    use super::*;

    const A: Uuid = Uuid([1; 16]);

    fn file(uuid: Uuid, seqno: i64, safe_to_bootstrap: bool) -> GraState {
        GraState {
            uuid,
            seqno,
            safe_to_bootstrap,
        }
    }

    #[test]
    fn only_the_last_orderly_stop_counts_by_itself() {
        let stopped = Some(in_file(file(A, 7, false)));
        let says = |saved, stopped| word(saved, stopped, false, || true);
        assert_eq!(says(file(A, 7, false), stopped), Word::OwnStop);
        assert_eq!(says(file(A, 27, false), stopped), Word::Position);
        assert_eq!(says(file(A, 7, true), None), Word::Position);
        assert_eq!(says(file(A, -1, false), stopped), Word::History);
        let other = file(Uuid([2; 16]), 7, false);
        assert_eq!(says(other, stopped), Word::Position);
    }

    #[test]
    fn a_flag_makes_no_data_of_none() {
        let nil = |safe, new, has_log| word(file(Uuid::NIL, -1, safe), None, new, || has_log);
        assert_eq!(nil(true, true, false), Word::Nothing, "a new node");
        assert_eq!(nil(true, true, true), Word::Nothing, "its file is gone");
        assert_eq!(nil(true, false, false), Word::Nothing, "made by a tool");
        assert_eq!(nil(true, false, true), Word::NoData, "an edit");
        assert_eq!(nil(false, false, true), Word::NoData);
    }
}
