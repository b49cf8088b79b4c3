//! Whether a majority has heard this leader since a question was asked.
//!
//! A read index is current if, after the question, a majority still took
//! appends of the leader's term: then no later leader can have been elected
//! before the question, and all that was acknowledged by then is in this
//! leader's log. What counts is when the append was *made* that an answer
//! belongs to, not when the answer came: one that was long under way proves
//! nothing. So every append carries a mark of the questions asked before it
//! was made, and the answer to it is worth that much.
//!
//! The consensus library judges by log positions instead: an answer that
//! covers a position counts for every append up to that position, also for a
//! later one without entries that nobody has answered.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{Members, RaftId};

/// A question asked, or as a mark: the last one asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question(u64);

/// See the module's words.
#[derive(Debug, Default)]
pub(crate) struct Confirm {
    last: Question,
    /// By member: the newest append it has accepted, by the term it was made
    /// in and the questions asked before.
    accepted: BTreeMap<RaftId, (u64, Question)>,
}

impl Confirm {
    /// Asks a question. Appends made from now on speak for it.
    pub fn ask(&mut self) -> Question {
        self.last.0 += 1;
        self.last
    }

    /// The mark for an append that is made now.
    pub fn mark(&self) -> Question {
        self.last
    }

    /// `member` has accepted an append made in `term` under `mark`. It may
    /// have refused the entries, but not the leader.
    pub fn accepted(&mut self, member: RaftId, term: u64, mark: Question) {
        let newest = self.accepted.entry(member).or_default();
        *newest = (term, mark).max(*newest);
    }

    /// Whether a majority of `members`, in which `me` leads in `term`, has
    /// accepted appends made after `question`.
    pub fn confirmed(&self, question: Question, term: u64, me: RaftId, members: &Members) -> bool {
        let heard = |id: &RaftId| {
            let newest = self.accepted.get(id);
            *id == me || newest.is_some_and(|(t, mark)| *t == term && *mark >= question)
        };
        let majority = |voters: &BTreeSet<RaftId>| {
            2 * voters.iter().filter(|id| heard(id)).count() > voters.len()
        };
        !members.configs.is_empty() && members.configs.iter().all(majority)
    }

    /// Forgets who is not in `members`.
    pub fn retain(&mut self, members: &Members) {
        self.accepted.retain(|id, _| members.is_voter(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(configs: &[&[RaftId]]) -> Members {
        Members {
            configs: configs
                .iter()
                .map(|c| c.iter().copied().collect())
                .collect(),
            ..Members::default()
        }
    }

    #[test]
    fn only_appends_made_after_the_question_count() {
        let all = members(&[&[1, 2, 3, 4, 5]]);
        let mut c = Confirm::default();
        let before = c.mark();
        let question = c.ask();
        for id in 2..=5 {
            c.accepted(id, 7, before);
        }
        assert!(!c.confirmed(question, 7, 1, &all));
        c.accepted(2, 7, c.mark());
        assert!(!c.confirmed(question, 7, 1, &all));
        // An old answer that comes late takes nothing back.
        c.accepted(2, 7, before);
        c.accepted(3, 7, c.mark());
        assert!(c.confirmed(question, 7, 1, &all));
        assert!(!c.confirmed(c.last, 7, 6, &all), "who leads is no voter");
        let next = c.ask();
        assert!(!c.confirmed(next, 7, 1, &all));
    }

    #[test]
    fn answers_of_other_terms_do_not_count() {
        let all = members(&[&[1, 2, 3]]);
        let mut c = Confirm::default();
        let question = c.ask();
        c.accepted(2, 6, c.mark());
        assert!(!c.confirmed(question, 7, 1, &all));
        c.accepted(2, 8, c.mark());
        assert!(!c.confirmed(question, 7, 1, &all));
        assert!(c.confirmed(question, 8, 1, &all));
    }

    #[test]
    fn each_set_of_voters_needs_its_majority() {
        let mut c = Confirm::default();
        let question = c.ask();
        assert!(c.confirmed(question, 1, 1, &members(&[&[1]])));
        assert!(!c.confirmed(question, 1, 1, &members(&[])));
        assert!(
            !c.confirmed(question, 1, 1, &members(&[&[1, 2]])),
            "half is not enough"
        );
        let both = members(&[&[1, 2, 3], &[3, 4, 5]]);
        c.accepted(2, 1, c.mark());
        c.accepted(4, 1, c.mark());
        assert!(!c.confirmed(question, 1, 1, &both));
        c.accepted(5, 1, c.mark());
        assert!(c.confirmed(question, 1, 1, &both));
        c.retain(&members(&[&[1, 2, 3]]));
        assert!(!c.confirmed(question, 1, 1, &both));
    }
}
