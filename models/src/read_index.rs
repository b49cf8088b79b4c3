//! The read index: what was acknowledged before the question is at or below the answer.
//!
//! | step here | in the code |
//! |---|---|
//! | `Append` with a mark | `order::confirm::Confirm::mark`, put on every append when it is made |
//! | `Take` | a member accepts an append unless it has promised a later term |
//! | `Answer` | `Confirm::accepted` with the term and the mark of the append |
//! | `Elect` | two members promise term 2 to the new leader |
//! | `Write` | the leader of term 2 has a majority for a write and acknowledges it |
//! | `Ask`, `Done` | `Confirm::ask`; `Confirm::confirmed` in `engine_tasks.rs`, the read index |
//!
//! Member 0 leads term 1, member 1 term 2. Appends and answers may be under way for ever.

use stateright::{Model, Property};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// An answer speaks for every question asked before it comes.
    CountsLateAnswers,
}

/// See the module's words.
pub struct TheModel {
    /// What is wrong with it.
    pub plant: Option<Plant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The highest term each member has promised.
    promised: [u8; 3],
    /// Appends of term 1 under way: to whom, mark.
    appends: Vec<(usize, u8)>,
    /// Answers to them under way: from whom, mark.
    answers: Vec<(usize, u8)>,
    /// Writes acknowledged in term 1, and in term 2.
    acknowledged: [u8; 2],
    /// Questions asked of the leader of term 1.
    asked: u8,
    /// Newest mark that each member has accepted.
    accepted: [Option<u8>; 3],
    /// The last question: the index it will get, and what was acknowledged when it came.
    open: Option<(u8, u8)>,
    /// The same of the last one answered.
    answered: Option<(u8, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Append(usize),
    Take(usize),
    Answer(usize),
    /// The leader of term 1 acknowledges a write: both others or one took it.
    WriteOld(usize),
    /// Members 1 and the other promise term 2.
    Elect(usize),
    WriteNew,
    Ask,
    Done,
}

const WRITES: u8 = 2;
const QUESTIONS: u8 = 2;

impl Model for TheModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            promised: [1; 3],
            appends: Vec::new(),
            answers: Vec::new(),
            acknowledged: [0; 2],
            asked: 0,
            accepted: [None; 3],
            open: None,
            answered: None,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        // Who has promised a later term does not lead any more.
        let leads = s.promised[0] == 1;
        if leads {
            if s.appends.len() + s.answers.len() < 3 {
                actions.extend([Action::Append(1), Action::Append(2)]);
            }
            if s.asked < QUESTIONS {
                actions.push(Action::Ask);
            }
            if s.open.is_some() {
                actions.push(Action::Done);
            }
            if s.acknowledged[0] < WRITES {
                actions.extend([Action::WriteOld(1), Action::WriteOld(2)]);
            }
        }
        actions.extend((0..s.appends.len()).map(Action::Take));
        actions.extend((0..s.answers.len()).map(Action::Answer));
        if s.promised[1] == 1 {
            actions.extend([Action::Elect(0), Action::Elect(2)]);
        } else if s.acknowledged[1] < WRITES {
            actions.push(Action::WriteNew);
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Append(to) => {
                s.appends.push((to, s.asked));
                s.appends.sort_unstable();
            }
            Action::Take(n) => {
                let (member, mark) = s.appends.remove(n);
                if s.promised[member] == 1 {
                    s.answers.push((member, mark));
                    s.answers.sort_unstable();
                }
            }
            Action::Answer(n) => {
                let (member, mark) = s.answers.remove(n);
                let worth = match self.plant {
                    Some(Plant::CountsLateAnswers) => s.asked,
                    None => mark,
                };
                s.accepted[member] = s.accepted[member].max(Some(worth));
            }
            Action::WriteOld(with) => {
                if s.promised[with] != 1 {
                    return None;
                }
                s.acknowledged[0] += 1;
            }
            Action::Elect(with) => {
                s.promised[1] = 2;
                s.promised[with] = 2;
            }
            Action::WriteNew => s.acknowledged[1] += 1,
            Action::Ask => {
                s.asked += 1;
                // What this leader knows to be committed; and what really was.
                let all = s.acknowledged[0] + s.acknowledged[1];
                s.open = Some((s.acknowledged[0], all));
            }
            Action::Done => {
                let heard = (1..3).any(|m| s.accepted[m].is_some_and(|mark| mark >= s.asked));
                if !heard {
                    return None;
                }
                s.answered = s.open.take();
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a read index is current", |_: &Self, s: &State| {
                s.answered.is_none_or(|(index, needed)| index >= needed)
            }),
            Property::sometimes("a question is answered", |_, s: &State| {
                s.answered.is_some()
            }),
            Property::sometimes(
                "a question is asked of a leader deposed since",
                |_, s: &State| s.acknowledged[1] > 0 && s.open.is_some(),
            ),
        ]
    }
}
