//! Two data nodes and a witness: nothing acknowledged is lost by the loss of any one.
//!
//! | step here | in the code |
//! |---|---|
//! | `Write` | the leader, which holds data, appends |
//! | `Store` | a member stores the entry durably and answers: the witness stores the log, too |
//! | `Acknowledge` | a majority of the three has it: `certify` answers |
//! | `Lose` | one member is gone for good, its disk with it |
//! | `Elect` | a majority of the voters votes for one whose log is not behind theirs |
//! | `HandOver` | the witness, elected, brings the data node up to date, then gives leadership to it |
//! | `serves` | a data node that leads takes reads and writes |

use stateright::{Model, Property};

const WITNESS: usize = 2;
const WRITES: u8 = 3;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// As an arbitrator that only counts.
    VotesWithoutStoring,
    /// Leadership goes to the data node whatever it has.
    HandsOverEarly,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

/// Logs: for each entry the term it was made in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    logs: [Vec<u8>; 3],
    /// What the witness says it has; it answers for it.
    claims: usize,
    term: u8,
    leader: usize,
    lost: Option<usize>,
    /// All entries that were acknowledged.
    acknowledged: Vec<u8>,
    handed_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Write,
    /// A follower stores the leader's next entry, or drops what the leader has not.
    Store(usize),
    Acknowledge,
    Lose(usize),
    Elect(usize),
    HandOver(usize),
}

impl State {
    fn up(&self, n: usize) -> bool {
        self.lost != Some(n)
    }

    /// Last term and length: what a voter compares.
    fn newness(&self, n: usize) -> (u8, usize) {
        (
            self.logs[n].last().copied().unwrap_or(0),
            self.logs[n].len(),
        )
    }
}

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            logs: [Vec::new(), Vec::new(), Vec::new()],
            claims: 0,
            term: 1,
            leader: 0,
            lost: None,
            acknowledged: Vec::new(),
            handed_over: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.leader != WITNESS && s.logs[s.leader].len() < usize::from(WRITES) {
            actions.push(Action::Write);
        }
        for n in (0..3).filter(|n| s.up(*n)) {
            if n != s.leader {
                actions.push(Action::Store(n));
                if s.term < 4 {
                    actions.push(Action::Elect(n));
                }
                if s.leader == WITNESS {
                    actions.push(Action::HandOver(n));
                }
            }
            if s.lost.is_none() {
                actions.push(Action::Lose(n));
            }
        }
        if s.acknowledged.len() < s.logs[s.leader].len() {
            actions.push(Action::Acknowledge);
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        let forgetful = self.plant == Some(Plant::VotesWithoutStoring);
        if !s.up(s.leader) && !matches!(action, Action::Elect(_) | Action::Lose(_)) {
            return None;
        }
        match action {
            Action::Write => {
                let term = s.term;
                s.logs[s.leader].push(term);
            }
            Action::Store(n) => {
                let leader = s.logs[s.leader].clone();
                if n == WITNESS && forgetful {
                    s.claims = leader.len();
                    return Some(s);
                }
                let same = (s.logs[n].iter().zip(&leader))
                    .take_while(|(a, b)| a == b)
                    .count();
                s.logs[n].truncate(same);
                let next = *leader.get(same)?;
                s.logs[n].push(next);
            }
            Action::Acknowledge => {
                let wanted = &s.logs[s.leader][..=s.acknowledged.len()];
                // Only entries of the own term are counted (raft 5.4.2).
                if wanted.last() != Some(&s.term) {
                    return None;
                }
                let has = |n: &usize| {
                    let claimed = *n == WITNESS && forgetful && s.claims >= wanted.len();
                    s.up(*n) && (s.logs[*n].starts_with(wanted) || claimed)
                };
                if (0..3).filter(has).count() < 2 {
                    return None;
                }
                s.acknowledged = wanted.to_vec();
            }
            Action::Lose(n) => s.lost = Some(n),
            Action::Elect(n) => {
                let votes = |v: &usize| {
                    let blind = *v == WITNESS && forgetful;
                    s.up(*v) && (blind || s.newness(*v) <= s.newness(n))
                };
                if n == WITNESS && forgetful || (0..3).filter(votes).count() < 2 {
                    return None;
                }
                s.term += 1;
                s.leader = n;
            }
            Action::HandOver(n) => {
                let whole = s.logs[n] == s.logs[WITNESS];
                if !whole && self.plant != Some(Plant::HandsOverEarly) {
                    return None;
                }
                if s.term == 4 {
                    return None;
                }
                s.term += 1;
                s.leader = n;
                s.handed_over = true;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "a data node that leads has all that was acknowledged",
                |_: &Self, s: &State| {
                    s.leader == WITNESS
                        || !s.up(s.leader)
                        || s.logs[s.leader].starts_with(&s.acknowledged)
                },
            ),
            Property::always("what was acknowledged survives the loss", |_, s: &State| {
                (0..3).any(|n| s.up(n) && s.logs[n].starts_with(&s.acknowledged))
            }),
            Property::sometimes(
                "a data node is lost, and the other one goes on",
                |_, s: &State| s.lost == Some(0) && s.leader == 1 && s.acknowledged.len() == 2,
            ),
            Property::sometimes("the witness hands over what only it had", |_, s: &State| {
                s.handed_over && s.lost == Some(0) && !s.acknowledged.is_empty()
            }),
        ]
    }
}
