//! `pc.weight` at work: waiting until a new weight counts, and saying who votes
//! because of weights.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_order::{Committed, CommittedBody, Order, RaftId};
use dromon_writeset::Uuid;

use super::{Node, Phase, lock};
use crate::cluster::{ClusterState, Member};
use crate::electors::{Weighing, electors};
use crate::messages::{Control, decode, kind};

/// How long a statement that sets `pc.weight` waits until that is ordered.
const ORDERED: Duration = Duration::from_secs(2);
/// And until the votes are as it says.
const VOTES: Duration = Duration::from_secs(5);
/// The others are told again what this node weighs.
const AGAIN: Duration = Duration::from_secs(3);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes of the log read at a time.
const READ: usize = 4 << 20;

/// Whether an `entry` that another half may have delivered, and this one has not, may make both the heavier one, as
/// each sees it. Not the end of a member that is not here: that half has lost it, too. Who comes back weighs what it
/// did, and is no member only amid the delivery of that: of this node up to `begun`.
fn weighs(entry: &Committed, begun: u64, is_here: impl Fn(&Uuid) -> bool) -> bool {
    let message = match &entry.body {
        CommittedBody::Message(m) if m.kind == kind::CONTROL => m,
        _ => return false,
    };
    match decode(&message.body) {
        Some(Control::Leave { uuid, .. } | Control::Evict { uuid, .. }) => is_here(&uuid),
        Some(Control::Rejoin { .. }) => entry.index <= begun,
        Some(Control::Join(_) | Control::Weight { .. }) => true,
        Some(
            Control::StateRequest { .. }
            | Control::BypassRequest { .. }
            | Control::StateSent { .. }
            | Control::Joined { .. }
            | Control::Synced { .. }
            | Control::Desync { .. }
            | Control::Resync { .. }
            | Control::Cut { .. }
            | Control::Vote { .. }
            | Control::Chunk { .. },
        ) => false,
        // A piece of one.
        None => true,
    }
}

impl Node {
    /// Why nobody knows by this node's view who is the heavier half, as its log goes on behind `delivered`, up to
    /// `last`. Another one may have delivered that, if it is stored here; and if not, nobody has.
    pub(super) fn weighs_behind(
        &self,
        order: &Arc<dyn Order>,
        delivered: u64,
        last: u64,
        is_here: impl Fn(&Uuid) -> bool,
    ) -> Option<String> {
        let begun = order.status().delivered;
        let mut next = delivered + 1;
        while next <= last {
            let entries = match order.read_stored(next, last, READ) {
                Ok(entries) => entries,
                Err(e) => return Some(e.to_string()),
            };
            next = entries.last().map_or(next, |e| e.index) + 1;
            if let Some(entry) = entries.iter().find(|e| weighs(e, begun, &is_here)) {
                return Some(format!(
                    "entry {} of the log changes what the members weigh, or who they are, and has not come into force here; \
                     the others may go by it",
                    entry.index
                ));
            }
        }
        None
    }

    /// Tells the cluster what this node weighs now, and waits until that counts: who
    /// sets it and then cuts the others off means what he has set. Without a
    /// majority it cannot yet.
    pub(super) fn set_weight(&self, weight: u8) -> Result<(), String> {
        let (own, before) = {
            let shared = self.shared();
            let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
            (shared.uuid, Weighing::of(members.iter()))
        };
        *lock(&self.weight_told) = Some(Instant::now());
        // Refused, it is told again (`keep_weight`).
        let _ = self.order_control(Control::Weight { uuid: own, weight });
        if !self.wait_ordered(own, weight) {
            self.note(&format!(
                "pc.weight={weight} does not count yet: no majority took it within {} s. It will when there is one",
                ORDERED.as_secs()
            ));
        } else if !self.wait_votes(&before) {
            self.note(&format!(
                "pc.weight={weight} is known to all, but the votes are not as it says within {} s: a member that gets \
                 or loses its vote is silent or far behind. They will be when it is not",
                VOTES.as_secs()
            ));
        }
        Ok(())
    }

    /// Tells the others what this node weighs, if they know it otherwise: it was set while
    /// nobody could be told, or that was lost.
    pub(super) fn keep_weight(&self) {
        let weight = self.settings().weight;
        let own = {
            let shared = self.shared();
            let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
            let member = members.iter().find(|m| m.uuid == shared.uuid);
            if shared.phase != Phase::Joined || member.is_none_or(|m| m.weight == weight) {
                return;
            }
            shared.uuid
        };
        let mut told = lock(&self.weight_told);
        if told.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        *told = Some(Instant::now());
        // Refused, it is tried again.
        let _ = self.order_control(Control::Weight { uuid: own, weight });
    }

    fn wait_ordered(&self, own: Uuid, weight: u8) -> bool {
        let deadline = Instant::now() + ORDERED;
        let mut shared = self.shared();
        loop {
            let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
            let member = members.iter().find(|m| m.uuid == own);
            if shared.phase != Phase::Joined || member.is_none_or(|m| m.weight == weight) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            shared = self.wait_shared(shared, deadline);
        }
    }

    /// Waits until those vote that are to vote by the weights, if these are others than
    /// `before`.
    fn wait_votes(&self, before: &Weighing) -> bool {
        let deadline = Instant::now() + VOTES;
        loop {
            let (weighing, wanted) = {
                let shared = self.shared();
                let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
                (Weighing::of(members.iter()), electors(members.iter()))
            };
            let Some(order) = self.order() else {
                return true;
            };
            let agreed: Vec<BTreeSet<RaftId>> = order.status().members.configs;
            if weighing == *before || self.phase() != Phase::Joined || agreed == [wanted] {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Says it when weights make others voters than before, and what becomes of what is
    /// acknowledged. On the delivery thread.
    pub(super) fn tell_weighing(&self, state: &ClusterState) {
        let own = {
            let shared = self.shared();
            shared.joined.is_some().then_some(shared.uuid)
        };
        // What was so before it joined is only history now.
        if own.is_none_or(|own| state.members().all(|m| m.uuid != own)) {
            return;
        }
        let weighing = Weighing::of(state.members());
        let before = std::mem::replace(&mut *lock(&self.weighing_told), weighing.clone());
        if weighing != before {
            self.note(&words(&weighing, state.members()));
        }
    }
}

/// What a weighing means, for the log.
fn words<'a>(weighing: &Weighing, members: impl Iterator<Item = &'a Member> + Clone) -> String {
    let names = |some: &dyn Fn(&Member) -> bool| -> String {
        let names = members.clone().filter(|m| some(m)).map(|m| &*m.name);
        names.collect::<Vec<_>>().join(", ")
    };
    match weighing {
        Weighing::Even => {
            "pc.weight takes no member's vote any more: each complete one has one, and commits are \
                           acknowledged once a majority of them has them on disk"
                .to_owned()
        }
        Weighing::Sole(uuid) => {
            let total: u64 = members.clone().map(|m| u64::from(m.weight)).sum();
            let weight = members.clone().find(|m| m.uuid == *uuid);
            let weight = weight.map_or(0, |m| m.weight);
            format!(
                "pc.weight: {} weighs more than all others together ({weight} of {total}), so it alone votes. Commits \
                 are acknowledged once on its disk; it goes on without the others, and they do not without it",
                names(&|m| m.uuid == *uuid)
            )
        }
        Weighing::NotTheWeightless(these) => format!(
            "pc.weight: who weighs nothing has no vote ({}). Commits are acknowledged once a majority of those that \
             vote has them on disk: {}",
            names(&|m| these.contains(&m.uuid)),
            names(&|m| weighing.votes(m))
        ),
    }
}

#[cfg(test)]
mod tests {
    use dromon_order::{Leadership, Part, RawMessage};

    use super::*;
    use crate::cluster::MemberState;
    use crate::cluster::tests::{join, member};
    use crate::messages::{LeaveReason, Need, Position, encode};

    fn said(weights: [u8; 3]) -> String {
        let mut members: Vec<Member> = (1..=3u8)
            .map(|n| member(n, &format!("n{n}"), MemberState::Synced))
            .collect();
        for (m, weight) in members.iter_mut().zip(weights) {
            m.weight = weight;
        }
        words(&Weighing::of(members.iter()), members.iter())
    }

    #[test]
    fn of_what_is_not_delivered_only_that_counts_which_the_other_half_may_go_by() {
        let entry = |control: &Control| Committed {
            index: 7,
            term: 1,
            leader: 1,
            body: CommittedBody::Message(RawMessage {
                origin: Uuid([1; 16]),
                oseq: 1,
                kind: kind::CONTROL,
                tag: 0,
                part: Part::Whole,
                body: encode(control),
            }),
        };
        let (here, gone) = (Uuid([1; 16]), Uuid([2; 16]));
        let counts = |control: Control| weighs(&entry(&control), 6, |uuid| *uuid == here);
        let (reason, by) = (LeaveReason::Graceful, Leadership::default());
        let weight = 4;
        assert!(counts(Control::Weight { uuid: gone, weight }));
        assert!(counts(join(3, Position::UNDEFINED, Need::Log)));
        for (uuid, ends) in [(here, true), (gone, false)] {
            assert_eq!(counts(Control::Leave { uuid, reason }), ends);
            assert_eq!(counts(Control::Evict { uuid, by }), ends);
        }
        assert!(!counts(Control::Synced { uuid: here }));
        let (uuid, released) = (gone, 3);
        let comes_back = Control::Rejoin { uuid, released };
        assert!(!counts(comes_back.clone()));
        assert!(weighs(&entry(&comes_back), 7, |_| false), "amid it");
        let mut piece = entry(&comes_back);
        if let CommittedBody::Message(m) = &mut piece.body {
            m.body = m.body.slice(..1);
        }
        assert!(weighs(&piece, 6, |_| false), "nobody can tell");
    }

    #[test]
    fn the_log_names_who_votes() {
        let sole = said([1, 4, 2]);
        assert!(
            sole.contains("n2 weighs more than all others together (4 of 7)"),
            "{sole}"
        );
        let without = said([1, 0, 1]);
        assert!(
            without.contains("has no vote (n2)") && without.ends_with("n1, n3"),
            "{without}"
        );
        assert!(said([1, 1, 1]).contains("takes no member's vote"));
    }
}
