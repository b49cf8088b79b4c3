//! Faults aimed at large transactions: nodes die, or leave, between the chunks.

use std::time::Duration;

use super::World;
use crate::faults::Fault;
use crate::node::Picture;
use crate::rng::Rng;

/// How often the aim is taken, in microseconds.
const EVERY_US: u64 = 10_000;

impl World {
    /// In the runs that have large transactions: now and then, while one is open,
    /// its node or another one dies, or its node leaves.
    pub(super) fn aim_at_large(&mut self, rng: &mut Rng) {
        let Some(large) = self.shared.settings.large else {
            return;
        };
        if !self.now().is_multiple_of(EVERY_US) || !rng.chance(large.struck) {
            return;
        }
        let pictures = self.pictures();
        let slots_with = |what: fn(&Picture) -> bool| -> Vec<usize> {
            let all = pictures.iter().enumerate();
            let with = all.filter(|(_, p)| p.as_ref().is_some_and(what));
            with.map(|(slot, _)| slot).collect()
        };
        let (senders, others) = (slots_with(|p| p.sends), slots_with(|p| p.open));
        let sender = rng.chance(600);
        let slot = match sender {
            true => rng.pick(&senders),
            false => rng.pick(&others),
        };
        let (leaves, power) = (rng.chance(250), rng.chance(500));
        let down: Duration = rng.ms(50, 3_000);
        let Some(slot) = slot else { return };
        let health = self.health();
        let fault = if sender && leaves && health.whole && health.nodes > 3 {
            Fault::Leave { slot, down }
        } else {
            Fault::Crash {
                slots: vec![slot],
                power,
                down: vec![down],
            }
        };
        if self.may_be(&fault) {
            self.shared.note(None, format_args!("aimed: {fault:?}"));
            self.inflict(fault);
        }
    }
}
