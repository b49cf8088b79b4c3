//! Forced recovery: a new history never mixes with the old one.
//!
//! | step here | in the code |
//! |---|---|
//! | `Alone` | `node::alone::go_alone`, `order::storage::Storage::go_alone`: the next incarnation |
//! | the incarnation | `order::storage::next_incarnation`, the upper half of the term |
//! | `Write` | an entry of a primary component: in the first one a majority, later all who joined its founder |
//! | `Follow` | replication; engines of other incarnations are not heard (`engine_tasks.rs`), and the consensus compares the place (incarnation, index) of the entry before |
//! | `Join` | a node asks for the state: by the log if `node::forks::Forks::shares` says so, else by a full copy (`service.rs`); only one whose leader hears a majority answers |
//!
//! An operator may force any node at any time, several at once included.

use stateright::{Model, Property};
use std::collections::BTreeSet;

const NODES: usize = 3;
const LOG: usize = 4;
const FORCED: u8 = 3;
const WRITES: u8 = 4;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Next incarnation = this one and 1.
    SameIncarnation,
    /// Next incarnation = this one and 1 + the id.
    StepById,
    /// The history is not compared, only how long the logs are.
    JoinsByLength,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

/// An entry: incarnation, and what was written.
type Entry = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    incarnation: u8,
    /// Which component it is a member of: 0, or the number of a forced recovery. The
    /// nodes themselves know the incarnation only.
    group: u8,
    log: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    /// Every log that was really written, as a whole.
    histories: BTreeSet<Vec<Entry>>,
    written: u8,
    forced: u8,
    /// Incarnations given out.
    given: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Alone(usize),
    /// This node leads its component and writes; in the first one with that other one.
    Write(usize, usize),
    /// The first follows the second.
    Follow(usize, usize),
    Join(usize, usize),
}

impl TheModel {
    fn next_incarnation(&self, s: &State, n: usize) -> u8 {
        let now = s.nodes[n].incarnation;
        match self.plant {
            Some(Plant::SameIncarnation) => now + 1,
            Some(Plant::StepById) => now + 1 + n as u8,
            // Drawn from 20 bits of a hash: here, one that nobody else has.
            _ => s.given + 1,
        }
    }
}

impl State {
    /// The nodes of a component.
    fn members(&self, group: u8) -> Vec<usize> {
        (0..NODES)
            .filter(|n| self.nodes[*n].group == group)
            .collect()
    }

    /// Whether this node can lead a primary component: a majority of the first one would
    /// elect it, or it is of a later one, whose members write together.
    fn is_primary(&self, n: usize) -> bool {
        let own = &self.nodes[n];
        let elects = |m: &usize| *m != n && beginning(&self.nodes[*m].log, &own.log);
        own.group > 0 || self.members(0).iter().any(elects)
    }
}

fn beginning(of: &[Entry], log: &[Entry]) -> bool {
    log.get(..of.len()) == Some(of)
}

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            incarnation: 0,
            group: 0,
            log: Vec::new(),
        };
        vec![State {
            nodes: [node.clone(), node.clone(), node],
            histories: BTreeSet::from([Vec::new()]),
            written: 0,
            forced: 0,
            given: 0,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for a in 0..NODES {
            if s.forced < FORCED {
                actions.push(Action::Alone(a));
            }
            for b in 0..NODES {
                if s.written < WRITES {
                    actions.push(Action::Write(a, b));
                }
                if a != b {
                    actions.push(Action::Follow(a, b));
                    actions.push(Action::Join(a, b));
                }
            }
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let before = s;
        let mut s = s.clone();
        match action {
            Action::Alone(n) => {
                let next = self.next_incarnation(&s, n);
                s.given = s.given.max(next);
                s.forced += 1;
                let node = &mut s.nodes[n];
                node.incarnation = next;
                node.group = s.forced;
                node.log.push((next, 0));
                s.histories.insert(node.log.clone());
            }
            Action::Write(a, b) => {
                let group = s.nodes[a].group;
                let mut to = s.members(group);
                if group == 0 {
                    to.retain(|n| *n == a || *n == b);
                }
                let leads = s.is_primary(a) && (group > 0) == (a == b);
                if !leads || to.iter().any(|n| s.nodes[*n] != s.nodes[a]) {
                    return None;
                }
                s.written += 1;
                let entry = (s.nodes[a].incarnation, s.written);
                for n in to {
                    s.nodes[n].log.push(entry);
                }
                s.histories.insert(s.nodes[a].log.clone());
            }
            Action::Follow(a, b) => {
                let leader = s.nodes[b].clone();
                let node = &mut s.nodes[a];
                let place = |log: &[Entry], n: usize| log.get(n).map(|e| e.0);
                let last = node.log.len().checked_sub(1)?;
                let joins = node.incarnation == leader.incarnation
                    && node.log.len() < leader.log.len()
                    && place(&node.log, last) == place(&leader.log, last);
                if !joins {
                    return None;
                }
                let more = leader.log[node.log.len()..].to_vec();
                node.log.extend(more);
            }
            Action::Join(a, b) => {
                if s.nodes[a].group == s.nodes[b].group || !s.is_primary(b) {
                    return None;
                }
                let leader = s.nodes[b].clone();
                let node = &mut s.nodes[a];
                let by_log = match self.plant {
                    Some(Plant::JoinsByLength) => node.log.len() <= leader.log.len(),
                    _ => beginning(&node.log, &leader.log),
                };
                if by_log {
                    let more = leader.log[node.log.len()..].to_vec();
                    node.log.extend(more);
                } else {
                    node.log = leader.log;
                }
                node.incarnation = leader.incarnation;
                node.group = leader.group;
            }
        }
        let fits = s.nodes.iter().all(|n| n.log.len() <= LOG);
        (fits && s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "what a node holds is the beginning of one history",
                |_: &Self, s: &State| {
                    let whole = |n: &Node| s.histories.iter().any(|h| beginning(&n.log, h));
                    s.nodes.iter().all(whole)
                },
            ),
            Property::sometimes("two histories go on side by side", |_, s: &State| {
                let parted =
                    |a: &Node, b: &Node| !beginning(&a.log, &b.log) && !beginning(&b.log, &a.log);
                parted(&s.nodes[0], &s.nodes[1])
            }),
            Property::sometimes("all come together again after that", |_, s: &State| {
                s.histories.len() > 3
                    && s.nodes[0].incarnation > 0
                    && s.nodes.iter().all(|n| *n == s.nodes[0])
            }),
        ]
    }
}
