//! How far behind the source what is applied is. Without I/O and clocks.
//!
//! The source is asked now and then where it is. If the target has everything up to such an
//! answer, it has all that had been committed when the question was asked: it is at most as old
//! as the question. No clock of another machine is involved, and nothing is written for it.
//!
//! A relay that is asked says how far it is behind its own primary: its answer is one to a question
//! that was asked so much earlier.

use std::collections::VecDeque;

use dromon_binlog::Position;

/// Answers that are kept while the target is behind; older ones are thinned out above it.
const ANSWERS_MAX: usize = 512;

/// Answers of the source, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Staleness {
    /// Milliseconds of the question, and the answer.
    answers: VecDeque<(u64, Position)>,
    /// When the newest question was asked whose answer is applied.
    fresh: Option<u64>,
}

impl Staleness {
    /// The source, asked at this time, was here. Times are in milliseconds.
    pub fn answered(&mut self, asked_ms: u64, position: Position) {
        if self.answers.len() == ANSWERS_MAX {
            // Every second one: what is left says later that it is applied, never too early.
            let mut n = 0;
            self.answers.retain(|_| {
                n += 1;
                n % 2 == 0
            });
        }
        self.answers.push_back((asked_ms, position));
    }

    /// What is applied is less than it was: of what was reached nothing is known any more. Answers that
    /// were not reached say what they said.
    pub fn went_back(&mut self) {
        self.fresh = None;
    }

    /// How old what is applied is at most, in milliseconds; `None`: nothing is known yet.
    pub fn age_ms(&mut self, now_ms: u64, applied: &Position) -> Option<u64> {
        while let Some((asked, position)) = self.answers.front()
            && applied.covers(position)
        {
            // A relay may have fallen behind since.
            self.fresh = self.fresh.max(Some(*asked));
            self.answers.pop_front();
        }
        self.fresh.map(|fresh| now_ms.saturating_sub(fresh))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seqno: u64) -> Position {
        match seqno {
            0 => Position::new(),
            n => format!("0-1-{n}").parse().expect("a position"),
        }
    }

    #[test]
    fn as_old_as_the_newest_question_that_is_applied() {
        let mut s = Staleness::default();
        assert_eq!(s.age_ms(5, &at(3)), None);
        s.answered(10, at(3));
        s.answered(20, at(3));
        s.answered(30, at(5));
        assert_eq!(s.age_ms(40, &at(3)), Some(20));
        assert_eq!(s.age_ms(50, &at(4)), Some(30));
        assert_eq!(s.age_ms(60, &at(5)), Some(30));
    }

    /// What was reached before says nothing of what is there now.
    #[test]
    fn what_goes_back_is_not_young() {
        let mut s = Staleness::default();
        s.answered(10, at(3));
        s.answered(20, at(5));
        assert_eq!(s.age_ms(30, &at(3)), Some(20));
        s.went_back();
        assert_eq!(s.age_ms(40, &at(1)), None);
        assert_eq!(s.age_ms(50, &at(4)), None);
        assert_eq!(s.age_ms(60, &at(5)), Some(40));
    }

    /// Each answer that is applied bounds the age; one that says less takes nothing back.
    #[test]
    fn a_relay_that_falls_behind() {
        let mut s = Staleness::default();
        s.answered(100, at(3));
        s.answered(90, at(3));
        assert_eq!(s.age_ms(150, &at(3)), Some(50));
        // It is cut off: what it answers is always as old as the cut.
        s.answered(100, at(3));
        assert_eq!(s.age_ms(9000, &at(3)), Some(8900));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against the whole history: never younger than the truth, and the truth if nothing was
        /// thinned out.
        #[test]
        fn never_too_young(steps in prop::collection::vec((0u64..4, 0u64..4, any::<bool>()), 1..1500)) {
            let mut s = Staleness::default();
            let mut all: Vec<(u64, u64)> = Vec::new();
            let (mut source, mut applied) = (0, 0);
            for (now, (more, less, ask)) in steps.into_iter().enumerate() {
                let now = now as u64;
                source += more;
                applied = (applied + less).min(source);
                if ask {
                    s.answered(now, at(source));
                    all.push((now, source));
                }
                let truth = all.iter().rev().find(|a| a.1 <= applied).map(|a| now - a.0);
                let said = s.age_ms(now, &at(applied));
                prop_assert!(said.is_none() || truth.is_some() && said >= truth, "{said:?} {truth:?}");
                if all.len() < ANSWERS_MAX {
                    prop_assert_eq!(said, truth);
                }
            }
        }
    }
}
