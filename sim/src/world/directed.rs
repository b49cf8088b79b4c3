//! Carries out a plan of [`crate::directed`].

use super::{BOUND, World};
use crate::directed::{Directed, When};
use crate::oracle::Oracle;

impl World {
    /// Each step when its time has come. A step whose time never comes ends the run:
    /// it would show nothing.
    pub(super) fn direct(&mut self, plan: Directed) {
        for step in plan.steps() {
            let from_us = self.now();
            while !self.is_time(step.when, from_us) {
                if self.now() - from_us > BOUND.as_micros() as u64 {
                    let what = format!("{plan}: {:?} never came", step.when);
                    self.shared.oracles().fire(Oracle::Sound, what);
                }
                if self.violated() {
                    return;
                }
                self.step();
            }
            self.shared.note(None, format_args!("{:?}", step.fault));
            self.inflict(step.fault);
        }
    }

    fn is_time(&self, when: When, from_us: u64) -> bool {
        match when {
            When::After(pause) => self.now() - from_us >= pause.as_micros() as u64,
            When::GivenVote(slot) => {
                let Some(own) = self.picture_of(slot) else {
                    return false;
                };
                let votes_at = |p: &crate::node::Picture| p.voters.contains(&own.id);
                let leaders = (0..self.machines.len()).filter(|s| *s != slot);
                let mut leaders = leaders.filter_map(|s| self.picture_of(s));
                !votes_at(&own) && leaders.any(|p| p.leads.is_some() && votes_at(&p))
            }
        }
    }
}
