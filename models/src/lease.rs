//! The primary lease: who was deposed does not count itself primary beside its successor.
//!
//! | step here | in the code |
//! |---|---|
//! | `Beat`, `Hear`, `Back` | heartbeats and their answers: `engine_tasks.rs`, `network.rs` |
//! | a lease from when the beat was sent | the leader's own lease: `engine_core.rs`, `order::lease` |
//! | `Elect` | a majority votes; voters refuse for `election_max` after they heard the leader |
//! | time | the monotonic clock; what is under way may take for ever |
//!
//! Safety does not rest on the lease; that two are never primary at once is what it is
//! for: a read with `wsrep_sync_wait=0` on a node that is primary is at most that old.

use stateright::{Model, Property};

const LEASE: u8 = 2;
/// Voters keep faith for at least as long as a lease is.
const FAITH: u8 = 3;
const END: u8 = 6;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The leader counts from the answer's arrival.
    FromTheAnswer,
    /// Voters vote for anybody at any time.
    VotesAtOnce,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

/// Three members; 0 leads, 1 wants to. The lease of 0 needs one other's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    /// Beats under way: to whom, when sent.
    beats: Vec<(usize, u8)>,
    /// Answers under way: when the beat was sent.
    answers: Vec<u8>,
    /// When members 1 and 2 last heard the leader.
    heard: [u8; 3],
    /// Until when the leader is primary.
    until: u8,
    elected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Beat(usize),
    Hear(usize),
    Back(usize),
    Elect,
}

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            beats: Vec::new(),
            answers: Vec::new(),
            heard: [0; 3],
            until: LEASE,
            elected: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.now < END {
            actions.push(Action::Tick);
        }
        if s.beats.len() + s.answers.len() < 3 {
            actions.extend([Action::Beat(1), Action::Beat(2)]);
        }
        actions.extend((0..s.beats.len()).map(Action::Hear));
        actions.extend((0..s.answers.len()).map(Action::Back));
        if !s.elected {
            actions.push(Action::Elect);
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Tick => s.now += 1,
            Action::Beat(to) => {
                s.beats.push((to, s.now));
                s.beats.sort_unstable();
            }
            Action::Hear(n) => {
                let (member, sent) = s.beats.remove(n);
                // Who has voted for another one does not answer any more.
                if !s.elected {
                    s.heard[member] = s.now;
                    s.answers.push(sent);
                    s.answers.sort_unstable();
                }
            }
            Action::Back(n) => {
                let sent = s.answers.remove(n);
                let from = match self.plant {
                    Some(Plant::FromTheAnswer) => s.now,
                    _ => sent,
                };
                s.until = s.until.max(from + LEASE);
            }
            Action::Elect => {
                let free = |m: usize| s.now >= s.heard[m] + FAITH;
                let votes = self.plant == Some(Plant::VotesAtOnce) || (free(1) && free(2));
                if !votes {
                    return None;
                }
                s.elected = true;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two are primary at once", |_: &Self, s: &State| {
                !s.elected || s.now >= s.until
            }),
            Property::sometimes("another leader is elected", |_, s: &State| s.elected),
            Property::sometimes("the lease is renewed", |_, s: &State| s.until > LEASE),
        ]
    }
}
