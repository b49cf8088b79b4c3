//! What whoever started the process hears of the node: what its start waits for, and how it
//! stands in its cluster from then on.

use std::sync::atomic::Ordering::Relaxed;

use super::{Node, Phase, Shared, lock};
use crate::cluster::MemberState;
use crate::database::Standing;

impl Shared {
    /// The own state, as far as the server has heard of it. Back after a loss a node may be synced for the others
    /// long before its server is: that refuses its clients until what was ordered before is finished.
    pub(super) fn shown_state(&self) -> MemberState {
        match self.own_state {
            MemberState::Synced if !self.told_synced => MemberState::Joined,
            state => state,
        }
    }
}

impl Node {
    /// Says so if this node still starts, or stands otherwise than it was said last.
    pub(super) fn tell_standing(&self) {
        let (phase, state, gone) = {
            let shared = self.shared();
            let state = match self.is_witness() {
                true => shared.own_state, // it has no server
                false => shared.shown_state(),
            };
            (shared.phase, state, shared.own_leave)
        };
        if state == MemberState::Synced {
            self.was_synced.store(true, Relaxed);
        }
        let starts = !self.was_synced.load(Relaxed);
        let standing = match (phase, state) {
            (Phase::Inconsistent, _) => Standing::Inconsistent,
            // An operator has put it out.
            (Phase::Leaving, _) if gone => Standing::Gone,
            (Phase::Closed | Phase::Connecting | Phase::Leaving, _) => return,
            (Phase::NonPrimary | Phase::Rejoining, _) if starts => {
                return self.still_starting("waiting for the primary component");
            }
            (Phase::NonPrimary | Phase::Rejoining, _) => Standing::NonPrimary,
            (Phase::Joining | Phase::Joined, _) if starts => {
                return self.still_starting("catching up with the cluster");
            }
            (_, MemberState::Synced) => Standing::Synced,
            (_, MemberState::Donor) => Standing::Donor,
            (_, MemberState::Joiner | MemberState::Joined) => Standing::Joined,
        };
        self.stands(standing);
    }

    /// The last word of a node that has left.
    pub(super) fn tell_left(&self, inconsistent: bool) {
        self.stands(match inconsistent {
            true => Standing::Inconsistent,
            false => Standing::Gone,
        });
    }

    fn stands(&self, standing: Standing) {
        let told = lock(&self.standing_told).replace(standing);
        if told != Some(standing) {
            self.db.stands(standing);
        }
    }
}
