//! Who stands at the addresses of `wsrep_cluster_address`, asked by a founder.
//!
//! `--wsrep-new-cluster` stands in many a unit and container for good. A node that lost its disk
//! would found a second cluster under the name of the one that runs, and clients would write
//! to both.

use std::time::Instant;

use dromon_order::LogId;

use super::connect::Found;
use super::founding::{AGAIN, LOOK};
use super::search::{ASK, is_later, votes_alone};
use super::{AskError, ConnectError, LogSummary, Node};
use crate::cluster::ClusterState;
use crate::messages::{Answer, Need, Position, Request, decode, encode};
use crate::options::{ClusterAddress, Settings};

/// What the addresses told in one round.
#[derive(Debug, Default)]
struct Told {
    /// Belongs to a primary component: its address, and where that stands.
    primary: Option<(String, Position)>,
    /// Has data, and no majority (now).
    with_data: Option<(String, Position)>,
    /// May be there, and cannot be asked: why, and what to do.
    untold: Option<String>,
    /// Is about to go on without the others: its address, and what it says.
    going: Option<(String, String)>,
    /// May be there, and this host cannot look: why.
    unlooked: Option<String>,
    /// Is there, and will never answer: Galera, or one whose list of those allowed this node is not on.
    shut_out: Option<String>,
    /// Is just starting or stopping: who has data says so in a moment.
    starting: bool,
    /// All who have data.
    heard: Vec<Heard>,
}

/// What one that has data says of itself.
#[derive(Debug)]
struct Heard {
    addr: String,
    primary: bool,
    position: Position,
    /// Whether it knows who leads it.
    led: bool,
    /// Where the members of its log are.
    members: Vec<String>,
    /// The last entry of its log.
    last: LogId,
}

impl Heard {
    /// Whether it has more than `log`, of the same history, and that counts: one that alone votes was there for all
    /// that was acknowledged in its own incarnation.
    fn is_ahead_of(&self, log: &LogSummary) -> bool {
        self.last > log.last && (!votes_alone(log) || is_later(self.last.term, log))
    }
}

/// What is there for who founds with a log.
#[derive(Default)]
pub(super) struct Beside {
    /// To be joined instead.
    pub found: Option<Found>,
    /// Belongs to a primary component, one of whose members the log names: to be asked with those.
    pub also: Option<String>,
}

impl Told {
    /// Whether nothing would change by asking again.
    fn is_clear(&self) -> bool {
        let said = self.primary.is_some() || self.shut_out.is_some();
        let open = self.untold.is_some() || self.unlooked.is_some() || self.starting;
        said || self.with_data.is_none() && !open
    }
}

/// Whom `address` lists, without this node.
pub(super) fn others_listed(address: &ClusterAddress, settings: &Settings) -> Vec<String> {
    let listed = address.resolve(settings.base_port);
    let others = listed.iter().filter(|a| !settings.is_own(a));
    others.map(ToString::to_string).collect()
}

impl Node {
    /// Founding without a log: those that `address` lists are asked. `None`:
    /// nobody is in the way. Nodes that look for a cluster themselves, without data, are not, nor
    /// are addresses at which nobody or something else listens, and names that do not exist (yet).
    ///
    /// Only who has data of the cluster that runs there joins it: who has none may yet have a
    /// database that no cluster knows, and the copy would replace it.
    pub(super) fn found_listed(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
        resume: bool,
    ) -> Result<Option<Found>, ConnectError> {
        let others = others_listed(address, settings);
        if others.is_empty() {
            return Ok(None);
        }
        let until = Instant::now() + LOOK;
        let told = loop {
            // Who is silent takes all that time.
            let is_last = Instant::now() >= until;
            let told = self.told_by(name, &others);
            if told.is_clear() || is_last {
                break told;
            }
            std::thread::sleep(AGAIN);
        };
        let refused = |why| Err(ConnectError::Listed { why });
        if let Some((addr, theirs)) = &told.primary {
            return self
                .instead_of_founding(name, address, position, settings, resume, addr, theirs);
        }
        if let Some((addr, theirs)) = told.with_data {
            return refused(format!(
                "{addr}, which wsrep_cluster_address lists, has data of a cluster of this name (history {}, seqno {}) and \
                 waits for a majority of it: a cluster founded here would be a second one. To have that one back, start \
                 this node and the others of it without --wsrep-new-cluster. To found another one, stop that node first",
                theirs.history, theirs.seqno
            ));
        }
        let untold = told.untold.map(|why| {
            format!(
                "{why}. So a node of a cluster that runs may be there, and cannot be asked: mend that, or wait until it \
                 answers. If nobody is (what takes connections is a proxy, or a forwarded port, of a node that does not \
                 run yet), found this once with --wsrep-cluster-address=gcomm://, which asks nobody"
            )
        });
        // The unit of this node may start it before its network is up.
        let unlooked = told.unlooked.map(|why| {
            format!(
                "{why}. So this host could not look whether a node of a cluster that runs is there: start this node again \
                 when its resolver and its network are up. If nobody is there (no other node has a name yet, or a way to \
                 it), found this once with --wsrep-cluster-address=gcomm://, which asks nobody"
            )
        });
        let why = told.shut_out.or(untold).or(unlooked);
        why.map_or(Ok(None), refused)
    }

    /// Founding with a `log`, whose members are asked by themselves: also who is listed is. Nodes may have other
    /// addresses since, and other logs. A primary component of this history is joined, or the start is refused. So it is
    /// beside one that has more of the log and waits for its others: those went on without this node, and with a
    /// cluster founded here there would be two once they are back.
    pub(super) fn found_listed_too(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
        resume: bool,
        log: &LogSummary,
    ) -> Result<Beside, ConnectError> {
        let listed = others_listed(address, settings);
        let named = |addr: &String| {
            let mut members = log.members.iter();
            members.any(|(id, at)| *id != log.id && at == addr)
        };
        let of_log = ClusterState::peek_of_any_build(&log.checkpoint.node).map(|at| at.history);
        // The state file may be gone, and the log of another history than a backup that was put beside it.
        let saved = self.saved().uuid;
        let is_ours = |h: &&Heard| {
            let theirs = h.position.history;
            let known = of_log == Some(theirs) || [saved, position.history].contains(&theirs);
            known && !theirs.is_nil()
        };
        let until = Instant::now() + LOOK;
        let mut changes = false;
        loop {
            // Who is silent takes all that time.
            let is_last = Instant::now() >= until;
            let told = self.told_by(name, &listed);
            let ours: Vec<&Heard> = told.heard.iter().filter(is_ours).collect();
            let mut primary = ours.iter().filter(|h| h.primary);
            if let Some(h) = primary.find(|h| self.is_led(name, &h.addr, settings)) {
                if h.members.iter().any(named) {
                    // The log leads to it. Who is named need not be there any more.
                    let also = Some(h.addr.clone()).filter(|addr| !named(addr));
                    return Ok(Beside { also, found: None });
                }
                let (addr, theirs) = (&h.addr, &h.position);
                let found = self
                    .instead_of_founding(name, address, position, settings, resume, addr, theirs)?;
                return Ok(Beside { found, also: None });
            }
            let same = ours.iter().filter(|h| of_log == Some(h.position.history));
            let ahead = same.filter(|h| !named(&h.addr) && h.is_ahead_of(log));
            let ahead = ahead.max_by_key(|h| h.last);
            // Those that the log names are asked for that by themselves.
            let going = told.going.as_ref().filter(|(addr, _)| !named(addr));
            changes |= told.starting || ahead.is_some() || going.is_some();
            changes |= ours.iter().any(|h| h.primary || h.led);
            if changes && !is_last {
                std::thread::sleep(AGAIN);
                continue;
            }
            return match ahead {
                Some(h) => Err(ConnectError::MoreElsewhere {
                    addr: h.addr.clone(),
                    listed: true,
                    theirs: h.last,
                    ours: log.last,
                    no_log: self.no_log_to_go_on_with(settings),
                }),
                None => match going {
                    Some((addr, why)) => Err(ConnectError::Listed {
                        why: format!(
                            "{addr}, which wsrep_cluster_address lists, is about to go on without the others: {why}. Start this \
                             node again once that is over, without --wsrep-new-cluster"
                        ),
                    }),
                    None => Ok(Beside::default()),
                },
            };
        }
    }

    /// Whether who leads the primary component of which `addr` says that it belongs to it says so, too: one that just
    /// left it, or lost the others, may not know yet.
    fn is_led(&self, name: &str, addr: &str, settings: &Settings) -> bool {
        let info = |addr: &str| match self.ask(name, addr, &Request::Probe) {
            Ok(Answer::Info {
                primary, leader, ..
            }) if primary => leader,
            _ => None,
        };
        let own = settings.advertised.to_string();
        let leader = info(addr).filter(|leader| *leader != own);
        leader.is_some_and(|leader| info(&leader).is_some_and(|of| of == leader))
    }

    /// A primary component is at `addr`, and stands at `theirs`: joining that, or a refusal.
    #[allow(clippy::too_many_arguments)]
    fn instead_of_founding(
        &self,
        name: &str,
        address: &ClusterAddress,
        position: Position,
        settings: &Settings,
        resume: bool,
        addr: &str,
        theirs: &Position,
    ) -> Result<Option<Found>, ConnectError> {
        if position.is_defined() && position.history == theirs.history {
            let known = [addr.to_owned()];
            let found = self.find_cluster(name, address, settings, position, resume, &known)?;
            if found.need == Need::Log {
                self.note(&format!(
                    "a cluster was to be founded here, but {addr}, which wsrep_cluster_address lists, belongs to a \
                     primary component of this data's history: joining that one. Two of them would part for good"
                ));
                return Ok(Some(found));
            }
        }
        // What only this data has would be gone.
        Err(ConnectError::Listed {
            why: format!(
                "{addr}, which wsrep_cluster_address lists, belongs to a primary component of a cluster of this name \
                 (history {}): a cluster founded here would be a second one. To join that one, start this node without \
                 --wsrep-new-cluster: it takes a full copy in place of the data that is here. To found another one, stop \
                 that one first, or give this one another wsrep_cluster_name",
                theirs.history
            ),
        })
    }

    fn told_by(&self, name: &str, others: &[String]) -> Told {
        let others = &self.each_address(others, &self.settings());
        let answers = self.ask_all(name, others, &encode(&Request::Probe), ASK);
        let own = self.shared().uuid;
        let mut told = Told::default();
        for (addr, answer) in others.iter().zip(answers) {
            match answer.map(|bytes| decode(&bytes)) {
                // The own address under another name.
                Ok(Some(Answer::Info { uuid, .. })) if uuid == own => {}
                Ok(Some(Answer::Info {
                    primary,
                    position,
                    leader,
                    members,
                    last,
                    ..
                })) => {
                    let place = match primary {
                        true => &mut told.primary,
                        false if position.history.is_nil() => continue,
                        false => &mut told.with_data,
                    };
                    *place = Some((addr.clone(), position));
                    told.heard.push(Heard {
                        addr: addr.clone(),
                        primary,
                        position,
                        led: leader.is_some(),
                        members,
                        last,
                    });
                }
                // About to go on without the others.
                Ok(Some(Answer::Wait(why))) => {
                    told.untold = Some(format!("{addr}: {why}"));
                    told.going = Some((addr.clone(), why));
                }
                Ok(_) => told.starting = true,
                Err(AskError::ShutOut(why)) => told.shut_out = Some(why),
                Err(AskError::OtherVersion(why)) => told.shut_out = Some(why),
                Err(AskError::Unreachable(_) | AskError::Refused(_)) => {}
                Err(AskError::Unlooked(why)) => told.unlooked = Some(why),
                Err(AskError::Resolving(why) | AskError::Barred(why) | AskError::Silent(why)) => {
                    told.untold = Some(why);
                }
            }
        }
        told
    }
}
