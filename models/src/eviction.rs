//! Eviction: only who was silent to the leader that orders it is evicted.
//!
//! | step here | in the code |
//! |---|---|
//! | `Suspect` | `node::duties`: who leads proposes `Control::Evict { uuid, by }` |
//! | `Order` | the message becomes an entry, maybe much later and under another leader (resend) |
//! | the rule | `node::cluster::ClusterState::control`: void unless the entry is of that leadership |
//! | `Pause`, `Resume`, `Die` | what happens to nodes; a paused leader hears nobody |
//! | `Elect` | a later leadership (here: a term); a paused or dead node cannot win it |
//!
//! A node that was paused while it led finds everybody else silent when it goes on, before
//! it learns that it was deposed.

use stateright::{Model, Property};

const NODES: usize = 3;
const TERMS: u8 = 3;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The rule is left out.
    InAnyTerm,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    term: u8,
    leader: usize,
    up: [bool; NODES],
    dead: [bool; NODES],
    /// The term that each node believes it leads; 0: none.
    believes: [u8; NODES],
    /// Was paused while it led, and has not heard since.
    deaf: [bool; NODES],
    /// Messages under way: whom to evict, term.
    under_way: Vec<(usize, u8)>,
    /// Whom the leader of each term really found silent.
    silent: Vec<(usize, u8)>,
    /// Evicted: who, ordered in which term.
    evicted: Option<(usize, u8)>,
    pauses: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Pause(usize),
    Resume(usize),
    Die(usize),
    Elect(usize),
    /// A node that believes it leads finds another one silent.
    Suspect {
        by: usize,
        whom: usize,
    },
    Order(usize),
    /// A deposed leader learns it.
    Learn(usize),
}

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            term: 1,
            leader: 0,
            up: [true; NODES],
            dead: [false; NODES],
            believes: [1, 0, 0],
            deaf: [false; NODES],
            under_way: Vec::new(),
            silent: Vec::new(),
            evicted: None,
            pauses: 0,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for n in 0..NODES {
            if s.up[n] {
                if s.pauses < 2 {
                    actions.push(Action::Pause(n));
                }
                if !s.dead.contains(&true) {
                    actions.push(Action::Die(n));
                }
                if n != s.leader && s.term < TERMS {
                    actions.push(Action::Elect(n));
                }
                if s.believes[n] > 0 && s.believes[n] < s.term {
                    actions.push(Action::Learn(n));
                }
                for whom in (0..NODES).filter(|w| *w != n && s.believes[n] > 0) {
                    actions.push(Action::Suspect { by: n, whom });
                }
            } else if !s.dead[n] {
                actions.push(Action::Resume(n));
            }
        }
        actions.extend((0..s.under_way.len()).map(Action::Order));
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Pause(n) => {
                s.up[n] = false;
                s.deaf[n] = s.believes[n] > 0;
                s.pauses += 1;
            }
            Action::Resume(n) => s.up[n] = true,
            Action::Die(n) => {
                s.up[n] = false;
                s.dead[n] = true;
            }
            Action::Elect(n) => {
                // Nobody is elected while the leader is heard.
                if s.up[s.leader] || s.up.iter().filter(|u| **u).count() < 2 {
                    return None;
                }
                s.term += 1;
                s.leader = n;
                s.believes[n] = s.term;
            }
            Action::Suspect { by, whom } => {
                // Not heard: it is away, or the leader itself had been.
                if s.up[whom] && !s.deaf[by] || s.under_way.len() == 2 {
                    return None;
                }
                let found = (whom, s.believes[by]);
                if !s.under_way.contains(&found) {
                    s.under_way.push(found);
                    s.under_way.sort_unstable();
                }
                // With its term: what a deposed leader found says nothing of a later term.
                if !s.silent.contains(&found) {
                    s.silent.push(found);
                    s.silent.sort_unstable();
                }
            }
            Action::Order(n) => {
                // Nothing is ordered while nobody leads a majority.
                if !s.up[s.leader] || s.up.iter().filter(|u| **u).count() < 2 {
                    return None;
                }
                let (whom, term) = s.under_way.remove(n);
                if term == s.term || self.plant == Some(Plant::InAnyTerm) {
                    s.evicted.get_or_insert((whom, s.term));
                }
            }
            Action::Learn(n) => {
                s.believes[n] = 0;
                s.deaf[n] = false;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "who is evicted was silent to the leader that ordered it",
                |_: &Self, s: &State| s.evicted.is_none_or(|found| s.silent.contains(&found)),
            ),
            Property::sometimes("a dead node is evicted", |_, s: &State| {
                s.evicted.is_some_and(|(n, _)| s.dead[n])
            }),
            Property::sometimes("an eviction is void", |_, s: &State| {
                s.evicted.is_none() && s.under_way.is_empty() && !s.silent.is_empty() && s.term > 1
            }),
        ]
    }
}
