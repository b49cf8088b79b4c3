//! Who gives to whom, and how that ends early.

use dromon_writeset::Uuid;

use super::{ClusterState, Event};
use crate::messages::Position;

impl ClusterState {
    /// Whether a donor is giving to this joiner.
    pub fn is_given_to(&self, joiner: &Uuid) -> bool {
        self.transfers.contains_key(joiner)
    }

    /// Ends some of the transfers, given by joiner and donor.
    pub(super) fn break_transfers(&mut self, ends: impl Fn(&Uuid, &Uuid) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        let broken: Vec<(Uuid, Uuid)> = self
            .transfers
            .iter()
            .filter(|(j, d)| ends(j, d))
            .map(|(&j, &d)| (j, d))
            .collect();
        for (joiner, donor) in broken {
            self.transfers.remove(&joiner);
            events.push(Event::TransferEnded {
                donor,
                joiner,
                position: Position::UNDEFINED,
                error: -libc_econnreset(),
                gaps: Vec::new(),
            });
            events.extend(self.donor_free(donor));
        }
        events
    }
}

/// ECONNRESET on Linux: what the joiner is told when its donor is gone.
const fn libc_econnreset() -> i32 {
    104
}
