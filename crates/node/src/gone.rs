//! Whether a log still counts among the members'.
//!
//! Who hears that its log is gone gives it up, and its log may hold the second
//! of only two copies of something acknowledged (R10). So only the one may say
//! so that knows the newest agreement about the members: a leader whose majority
//! answers. A follower that lags may not have heard yet that the log came (back)
//! in.

use std::collections::{BTreeSet, VecDeque};

use dromon_order::{OrderStatus, RaftId};
use dromon_writeset::Uuid;

use crate::messages::{Answer, Request};

/// The answer to [`Request::Gone`](crate::messages::Request::Gone) of a node whose
/// order is in `status`: `Ok` if no agreement that may be in force names the log.
pub fn gone(status: &OrderStatus, raft_id: RaftId) -> Answer {
    if !status.is_leader {
        return Answer::NotLeader {
            leader: status.leader.as_ref().map(|(_, addr)| addr.clone()),
        };
    }
    if !status.primary {
        return Answer::Wait("this node leads but does not hear a majority now".into());
    }
    if status.members.addrs.contains_key(&raft_id) || status.in_force.contains(&raft_id) {
        return Answer::Refused("still a member".into());
    }
    Answer::Ok
}

/// Who says whether a log is gone, and is not of its cluster as that is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// Of this other history.
    History(Uuid),
    /// Of the same one: it was forced to go on, or those with the log were.
    Incarnation,
}

/// What the node at which `ask` asks says of the log `raft_id`, whose history is `history`.
///
/// A leader of another history knows no agreement of these members: it names the
/// log nowhere and would say that it is gone, whatever that holds. So a yes counts
/// only from who says that it is of the same history. One of another `incarnation`
/// than the log's knows nothing of what the members agreed since they parted; and
/// if it still names the log, nothing of it ever comes there.
pub fn heard(
    raft_id: RaftId,
    (history, incarnation): (Uuid, u32),
    mut ask: impl FnMut(&Request) -> Option<Answer>,
) -> Result<Option<Answer>, Apart> {
    let answer = ask(&Request::Gone { raft_id });
    let counts = matches!(answer, Some(Answer::Refused(_)));
    if answer != Some(Answer::Ok) && !counts {
        return Ok(answer);
    }
    match ask(&Request::Probe) {
        Some(Answer::Info { position, .. }) if position.history != history => {
            Err(Apart::History(position.history))
        }
        Some(Answer::Info { last, .. }) if last.leadership().incarnation() != incarnation => {
            Err(Apart::Incarnation)
        }
        Some(Answer::Info { .. }) => Ok(answer),
        // No log is given up for that.
        _ if counts => Ok(answer),
        _ => Ok(None),
    }
}

/// Asks one after another at `addrs`, and whom they name as their leader, but
/// never `own`: `Some(false)` if a leader says that the log is gone, `Some(true)`
/// if one says that it counts, `None` if none was found.
pub fn log_counts(
    addrs: impl IntoIterator<Item = String>,
    own: &str,
    mut ask: impl FnMut(&str) -> Option<Answer>,
) -> Option<bool> {
    let mut to_ask: VecDeque<String> = addrs.into_iter().collect();
    let mut asked = BTreeSet::from([own.to_owned()]);
    while let Some(addr) = to_ask.pop_front() {
        if !asked.insert(addr.clone()) {
            continue;
        }
        match ask(&addr) {
            Some(Answer::Ok) => return Some(false),
            Some(Answer::Refused(_)) => return Some(true),
            Some(Answer::NotLeader {
                leader: Some(leader),
            }) => to_ask.push_front(leader),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use dromon_order::{LogId, Members};

    use super::*;
    use crate::messages::Position;

    fn leader() -> OrderStatus {
        OrderStatus {
            id: 1,
            primary: true,
            is_leader: true,
            leader: Some((1, "n1".into())),
            members: Members {
                addrs: [(1, "n1".into()), (2, "n2".into())].into(),
                ..Members::default()
            },
            in_force: [1, 2, 3].into(),
            ..OrderStatus::default()
        }
    }

    #[test]
    fn only_a_leader_with_its_majority_says_that_a_log_is_gone() {
        assert_eq!(gone(&leader(), 4), Answer::Ok);
        let alone = OrderStatus {
            primary: false,
            ..leader()
        };
        assert!(matches!(gone(&alone, 4), Answer::Wait(_)));
        let follower = OrderStatus {
            is_leader: false,
            ..leader()
        };
        let to_leader = Answer::NotLeader {
            leader: Some("n1".into()),
        };
        assert_eq!(gone(&follower, 4), to_leader);
    }

    #[test]
    fn a_leader_of_another_history_does_not_say_that_a_log_is_gone() {
        const OURS: Uuid = Uuid([1; 16]);
        let hears_in = |incarnation, gone: Answer, history: Option<Uuid>| {
            heard(4, (OURS, incarnation), |request| match request {
                Request::Gone { raft_id: 4 } => Some(gone.clone()),
                Request::Probe => history.map(|history| Answer::Info {
                    in_doubt: false,
                    uuid: Uuid([9; 16]),
                    name: "n1".into(),
                    primary: true,
                    leader: Some("n1".into()),
                    position: Position { history, seqno: 7 },
                    members: vec!["n1".into()],
                    last: LogId::default(),
                }),
                other => panic!("asked {other:?}"),
            })
        };
        let hears = |gone, history| hears_in(0, gone, history);
        let theirs = Uuid([2; 16]);
        assert_eq!(hears(Answer::Ok, Some(OURS)), Ok(Some(Answer::Ok)));
        assert_eq!(hears(Answer::Ok, Some(theirs)), Err(Apart::History(theirs)));
        assert_eq!(hears_in(1, Answer::Ok, Some(OURS)), Err(Apart::Incarnation));
        assert_eq!(
            hears(Answer::Ok, None),
            Ok(None),
            "it does not say of which"
        );
        let member = Answer::Refused("still a member".into());
        assert_eq!(hears(member.clone(), None), Ok(Some(member.clone())));
        let said = Ok(Some(member.clone()));
        assert_eq!(hears(member.clone(), Some(OURS)), said);
        // It was forced on, and has not dropped the others yet.
        let apart = hears_in(1, member, Some(OURS));
        assert_eq!(apart, Err(Apart::Incarnation));
    }

    /// 3 is left out of the newest agreement, which the others may not have yet.
    #[test]
    fn whoever_an_agreement_in_force_names_counts() {
        for id in 1..=3 {
            assert!(matches!(gone(&leader(), id), Answer::Refused(_)), "{id}");
        }
    }

    #[test]
    fn the_leader_is_found_from_anybody() {
        let follower = |addr: &str| {
            let leader = Some(addr.to_owned());
            Some(Answer::NotLeader { leader })
        };
        let mut asked = Vec::new();
        let mut outcome = |answers: &dyn Fn(&str) -> Option<Answer>| {
            asked.clear();
            let addrs = ["n1", "n2", "n3", "own"].map(str::to_owned);
            let counts = log_counts(addrs, "own", |addr| {
                asked.push(addr.to_owned());
                answers(addr)
            });
            (counts, asked.join(" "))
        };
        let gone = outcome(&|addr| match addr {
            "n1" => follower("n3"),
            "n3" => Some(Answer::Ok),
            _ => None,
        });
        assert_eq!(gone, (Some(false), "n1 n3".into()));
        // They take each other, and this one, for the leader.
        let nobody = outcome(&|addr| match addr {
            "n1" => follower("n2"),
            "n2" => follower("n1"),
            _ => follower("own"),
        });
        assert_eq!(nobody, (None, "n1 n2 n3".into()));
        let member = outcome(&|addr| match addr {
            "n2" => Some(Answer::Refused("still a member".into())),
            _ => None,
        });
        assert_eq!(member, (Some(true), "n1 n2".into()));
        let not_now = outcome(&|_| Some(Answer::Wait("it is not connected".into())));
        assert_eq!(not_now, (None, "n1 n2 n3".into()));
    }
}
