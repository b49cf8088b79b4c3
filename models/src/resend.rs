//! Sending again: a message is ordered once, and none is lost.
//!
//! | step here | in the code |
//! |---|---|
//! | `Send` | `order::pending::Pending::next_batch`, from the first unconfirmed one on |
//! | `Arrive`, `Lose`, copies | a `Wire::Forward` under way; a broken link; `resend` run out |
//! | `Commit` | a majority has it: `storage.rs`, `apply` |
//! | `Elect` | another leader: it keeps what is committed, and any part of the rest |
//! | `Learn` | `Pending::committed`, the origin sees its own messages come out |
//! | `delivered` | `order::sequencer::Sequencer::accept` |

use stateright::{Model, Property};

/// Messages of the origin.
const MESSAGES: u8 = 3;
/// Longest log.
const LOG: usize = 5;
/// Batches under way at a time.
const UNDER_WAY: usize = 2;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// No check of the number at delivery.
    CountsCopies,
    /// Confirmed is what a leader took, not what came out.
    ForgetsEarly,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Batches: first and last number.
    under_way: Vec<(u8, u8)>,
    /// Numbers in the leader's log.
    log: Vec<u8>,
    committed: usize,
    /// The origin knows that everything up to here counted.
    confirmed: u8,
    elections: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The origin sends what is unconfirmed, up to this number.
    Send(u8),
    /// A batch reaches the leader; it may be under way a second time.
    Arrive {
        batch: usize,
        copy: bool,
    },
    Lose(usize),
    Commit,
    /// Another leader, whose log has this many entries.
    Elect(usize),
    /// The origin reads the committed log.
    Learn,
}

impl TheModel {
    /// What the committed log means to every member.
    fn delivered(&self, state: &State) -> Vec<u8> {
        let mut out = Vec::new();
        let mut last = 0;
        for n in &state.log[..state.committed] {
            if *n == last + 1 || self.plant == Some(Plant::CountsCopies) {
                last = *n;
                out.push(*n);
            }
        }
        out
    }
}

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            under_way: Vec::new(),
            log: Vec::new(),
            committed: 0,
            confirmed: 0,
            elections: 0,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.under_way.len() < UNDER_WAY {
            actions.extend((s.confirmed + 1..=MESSAGES).map(Action::Send));
        }
        for batch in 0..s.under_way.len() {
            actions.push(Action::Arrive { batch, copy: false });
            actions.push(Action::Arrive { batch, copy: true });
            actions.push(Action::Lose(batch));
        }
        if s.committed < s.log.len() {
            actions.push(Action::Commit);
        }
        if s.elections < 2 {
            actions.extend((s.committed..=s.log.len()).map(Action::Elect));
        }
        actions.push(Action::Learn);
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Send(to) => s.under_way.push((s.confirmed + 1, to)),
            Action::Arrive { batch, copy } => {
                let (from, to) = s.under_way[batch];
                if !copy {
                    s.under_way.remove(batch);
                }
                // A leader takes a batch whole.
                s.log.extend(from..=to);
                if s.log.len() > LOG {
                    return None;
                }
                if self.plant == Some(Plant::ForgetsEarly) {
                    s.confirmed = s.confirmed.max(to);
                }
            }
            Action::Lose(batch) => {
                s.under_way.remove(batch);
            }
            Action::Commit => s.committed += 1,
            Action::Elect(kept) => {
                s.log.truncate(kept);
                s.elections += 1;
            }
            Action::Learn => {
                let last = self.delivered(&s).last().copied().unwrap_or(0);
                s.confirmed = s.confirmed.max(last);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each message comes out once, in order", |m: &Self, s| {
                let out = m.delivered(s);
                out.iter().zip(1..).all(|(got, want)| *got == want)
            }),
            Property::always("what the origin forgets has come out", |m, s: &State| {
                m.delivered(s).len() >= usize::from(s.confirmed)
            }),
            Property::sometimes("all come out though a leader was lost", |m, s: &State| {
                s.elections == 2 && m.delivered(s).len() == usize::from(MESSAGES)
            }),
            Property::sometimes("a copy lies in the committed log", |m, s: &State| {
                s.committed > m.delivered(s).len()
            }),
        ]
    }
}
