//! The positions of the gates, as a plain state machine.

use std::collections::BTreeSet;

/// The global total-order number; the first is 1.
pub type Seqno = i64;

/// How far each gate has got.
///
/// All methods are events in total order of the node's mutex; none blocks.
#[derive(Debug, Clone)]
pub struct Positions {
    ordered: Seqno,
    left: Seqno,
    released: Seqno,
    /// Seqnos above `left` that will pass the commit gate by themselves.
    cancelled: BTreeSet<Seqno>,
    /// Seqnos above `released` that are finished already.
    finished: BTreeSet<Seqno>,
    paused_at: Option<Seqno>,
    /// A second stop, independent of the pause.
    hold_at: Option<Seqno>,
    /// Statements and views that are not finished: nothing runs beside them.
    alone: BTreeSet<Seqno>,
    /// Rollbacks of streaming transactions that were begun, perhaps before what lies
    /// before them, and have not come to the point where they only wait for their turn.
    ahead: BTreeSet<Seqno>,
    active: BTreeSet<Seqno>,
    stats: ApplyStats,
}

/// What the apply gate saw since the last reset of the averages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ApplyStats {
    /// Seqnos that entered the apply gate.
    pub entered: u64,
    /// Of these, how many entered while a lower one had not left.
    pub out_of_order_entered: u64,
    /// Seqnos that left while a lower one was still inside.
    pub out_of_order_left: u64,
    /// Sum over entries of the distance from lowest to highest inside.
    pub window_sum: u64,
    /// How often an applier had to wait for a dependency.
    pub waits: u64,
}

impl Positions {
    /// Gates that stand at `position`: everything up to it is finished.
    pub fn new(position: Seqno) -> Self {
        Positions {
            ordered: position,
            left: position,
            released: position,
            cancelled: BTreeSet::new(),
            finished: BTreeSet::new(),
            paused_at: None,
            hold_at: None,
            alone: BTreeSet::new(),
            ahead: BTreeSet::new(),
            active: BTreeSet::new(),
            stats: ApplyStats::default(),
        }
    }

    /// Puts all gates at `position`, as after a state transfer. What was
    /// ordered above it stays ordered, and what passes by itself there does so
    /// still: nobody says that again. A pause survives.
    pub fn reset(&mut self, position: Seqno) {
        let ordered = self.ordered.max(position);
        let cancelled = self.cancelled.split_off(&(position + 1));
        let mut finished = self.finished.split_off(&(position + 1));
        finished.retain(|seqno| cancelled.contains(seqno));
        let (paused_at, stats) = (self.paused_at, self.stats);
        let alone = self.alone.split_off(&(position + 1));
        *self = Positions::new(position);
        self.alone = alone;
        (self.ordered, self.paused_at, self.stats) = (ordered, paused_at, stats);
        (self.cancelled, self.finished) = (cancelled, finished);
        while self.cancelled.remove(&(self.left + 1)) {
            self.left += 1;
        }
        self.advance_released();
    }

    /// The next seqno of the total order was delivered.
    pub fn ordered(&mut self, seqno: Seqno) {
        self.ordered = self.ordered.max(seqno);
    }

    /// Highest seqno delivered.
    pub fn last_ordered(&self) -> Seqno {
        self.ordered
    }

    /// Every seqno up to here has left the commit gate.
    pub fn left(&self) -> Seqno {
        self.left
    }

    /// Every seqno up to here is finished: what "last committed" means.
    pub fn released(&self) -> Seqno {
        self.released
    }

    /// Whether `seqno` is the next one through the commit gate.
    pub fn may_commit(&self, seqno: Seqno) -> bool {
        self.left + 1 == seqno
    }

    /// `seqno` leaves the commit gate. Answers whether it was its turn; if it
    /// was not, nothing changes.
    pub fn leave(&mut self, seqno: Seqno) -> bool {
        if !self.may_commit(seqno) {
            return false;
        }
        self.left = seqno;
        while self.cancelled.remove(&(self.left + 1)) {
            self.left += 1;
        }
        true
    }

    /// `seqno` is finished. It must have left the commit gate, or been
    /// cancelled.
    pub fn release(&mut self, seqno: Seqno) {
        if seqno <= self.released {
            return;
        }
        if self.active.remove(&seqno) && self.active.first().is_some_and(|&low| low < seqno) {
            self.stats.out_of_order_left += 1;
        }
        self.finished.insert(seqno);
        self.advance_released();
    }

    /// `seqno` has nothing to do: it passes both gates when its turn comes.
    pub fn cancel(&mut self, seqno: Seqno) {
        self.pass_commit(seqno);
        self.release(seqno);
        self.advance_released();
    }

    /// `seqno` passes the commit gate when its turn comes, but is never
    /// finished: the node is going down and must not claim to have it.
    pub fn pass_commit(&mut self, seqno: Seqno) {
        if seqno > self.left && !self.leave(seqno) {
            self.cancelled.insert(seqno);
        }
        self.active.remove(&seqno);
    }

    fn advance_released(&mut self) {
        while self.released < self.left && self.finished.remove(&(self.released + 1)) {
            self.released += 1;
        }
        while self.alone.first().is_some_and(|&s| s <= self.released) {
            self.alone.pop_first();
        }
    }

    /// What has its place at `seqno`, and is to be delivered there, runs beside
    /// nothing else: a statement or a view.
    pub fn stands_alone(&mut self, seqno: Seqno) {
        if seqno > self.released {
            self.alone.insert(seqno);
        }
    }

    /// Whether what stands alone at `seqno` may begin: everything before it is
    /// finished, and no rollback that lies behind it is being carried out.
    pub fn may_stand_alone(&self, seqno: Seqno) -> bool {
        self.released >= seqno - 1 && self.is_quiet(seqno)
    }

    /// Whether no rollback that lies behind `seqno` is being carried out.
    pub fn is_quiet(&self, seqno: Seqno) -> bool {
        self.ahead.range(seqno + 1..).next().is_none()
    }

    /// Whether the rollback of a streaming transaction at `seqno` may be carried out
    /// now, all of whose fragments lie at or below `depends_on`. It passes what has
    /// not begun, and nothing that stands alone and has, nor a complete pause.
    pub fn may_begin_ahead(&self, seqno: Seqno, depends_on: Seqno) -> bool {
        let next = self.released + 1;
        let beside = next < seqno && self.alone.contains(&next);
        let stops = [self.paused_at, self.hold_at];
        let mut stops = stops.into_iter().flatten();
        let stopped = stops.any(|at| at < seqno && self.released >= at);
        self.released >= depends_on && !beside && !stopped
    }

    /// It is carried out from here on.
    pub fn begins_ahead(&mut self, seqno: Seqno) {
        self.ahead.insert(seqno);
    }

    /// It only waits for its turn from here on, or was given up. Answers whether that
    /// is news.
    pub fn is_carried_out(&mut self, seqno: Seqno) -> bool {
        self.ahead.remove(&seqno)
    }

    /// Whether an event that depends on `depends_on` may be applied.
    pub fn may_apply(&self, depends_on: Seqno) -> bool {
        self.released >= depends_on
    }

    /// `seqno` enters the apply gate; only for the statistics.
    pub fn entered(&mut self, seqno: Seqno, waited: bool) {
        if seqno <= self.released {
            return;
        }
        self.stats.entered += 1;
        self.stats.waits += u64::from(waited);
        if self.active.first().is_some_and(|&low| low < seqno) {
            self.stats.out_of_order_entered += 1;
        }
        self.active.insert(seqno);
        if let (Some(low), Some(high)) = (self.active.first(), self.active.last()) {
            self.stats.window_sum += (high - low + 1) as u64;
        }
    }

    /// `seqno` leaves the apply gate without being finished: it is taken back
    /// to be replayed.
    pub fn withdrawn(&mut self, seqno: Seqno) {
        self.active.remove(&seqno);
    }

    /// Stops the flow behind what is ordered now. The answer is the seqno to
    /// wait for; nothing above it starts until [`Positions::resume`].
    pub fn pause(&mut self) -> Seqno {
        let at = self.paused_at.unwrap_or(self.ordered);
        self.paused_at = Some(at);
        at
    }

    /// Ends the pause.
    pub fn resume(&mut self) {
        self.paused_at = None;
    }

    /// Stops the flow behind `seqno`, independently of a pause.
    pub fn hold(&mut self, seqno: Seqno) {
        self.hold_at = Some(seqno);
    }

    /// Ends the hold behind `seqno`, unless a newer one has taken its place.
    pub fn unhold(&mut self, seqno: Seqno) {
        if self.hold_at == Some(seqno) {
            self.hold_at = None;
        }
    }

    /// Where the flow is stopped, if it is.
    pub fn paused_at(&self) -> Option<Seqno> {
        self.paused_at
    }

    /// Whether an event after `position` must wait for the end of a pause.
    pub fn held(&self, seqno: Seqno) -> bool {
        let behind = |stop: Option<Seqno>| stop.is_some_and(|at| seqno > at);
        behind(self.paused_at) || behind(self.hold_at)
    }

    /// What the apply gate saw.
    pub fn stats(&self) -> ApplyStats {
        self.stats
    }

    /// Zeroes the averages.
    pub fn reset_stats(&mut self) {
        self.stats = ApplyStats::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commit_order_is_strict() {
        let mut p = Positions::new(10);
        for s in 11..=13 {
            p.ordered(s);
        }
        assert!(!p.leave(12));
        assert!(p.leave(11));
        assert_eq!((p.left(), p.released()), (11, 10));
        assert!(p.leave(12));
        p.release(12);
        assert_eq!(p.released(), 10, "11 is not finished yet");
        p.release(11);
        assert_eq!(p.released(), 12);
    }

    #[test]
    fn cancelled_seqnos_pass_by_themselves() {
        let mut p = Positions::new(0);
        for s in 1..=4 {
            p.ordered(s);
        }
        p.cancel(2);
        p.cancel(3);
        assert_eq!((p.left(), p.released()), (0, 0));
        p.leave(1);
        assert_eq!(p.left(), 3);
        p.release(1);
        assert_eq!(p.released(), 3);
        assert!(p.may_commit(4));
    }

    #[test]
    fn what_passes_by_itself_does_so_after_a_copy_too() {
        let mut p = Positions::new(0);
        for s in 1..=9 {
            p.ordered(s);
        }
        [3, 5, 6, 8].into_iter().for_each(|s| p.cancel(s));
        p.reset(4);
        assert_eq!((p.left(), p.released(), p.last_ordered()), (6, 6, 9));
        assert!(p.leave(7));
        assert_eq!((p.left(), p.released()), (8, 6));
        p.release(7);
        assert_eq!(p.released(), 8);
    }

    #[test]
    fn pause_holds_only_what_comes_later() {
        let mut p = Positions::new(0);
        p.ordered(1);
        assert_eq!(p.pause(), 1);
        p.ordered(2);
        assert!(!p.held(1));
        assert!(p.held(2));
        assert_eq!(p.pause(), 1, "a second pause does not move the point");
        p.hold(2);
        p.resume();
        assert!(!p.held(2), "the hold is behind 2");
        assert!(p.held(3));
        p.unhold(1);
        assert!(p.held(3), "that was another hold");
        p.unhold(2);
        assert!(!p.held(3));
    }

    #[test]
    fn a_rollback_passes_what_has_not_begun() {
        let mut p = Positions::new(10);
        (11..=20).for_each(|s| p.ordered(s));
        p.stands_alone(13);
        assert!(
            !p.may_begin_ahead(20, 11),
            "a fragment of it is not applied"
        );
        p.leave(11);
        p.release(11);
        assert!(
            p.may_begin_ahead(20, 11),
            "12 is under way, 13 has not begun"
        );
        p.begins_ahead(20);
        p.leave(12);
        p.release(12);
        assert!(!p.may_stand_alone(13), "the rollback is being carried out");
        assert!(!p.may_begin_ahead(19, 11), "13 may begin at any time");
        assert!(p.is_carried_out(20));
        assert!(!p.is_carried_out(20));
        assert!(p.may_stand_alone(13));
        p.leave(13);
        p.release(13);
        assert!(p.may_begin_ahead(19, 11));
        p.begins_ahead(14);
        assert!(p.may_begin_ahead(15, 13) && p.is_quiet(14) && !p.is_quiet(13));
    }

    #[test]
    fn a_rollback_passes_a_pause_that_is_not_complete() {
        let mut p = Positions::new(10);
        (11..=12).for_each(|s| p.ordered(s));
        assert_eq!(p.pause(), 12);
        p.ordered(13);
        assert!(
            p.may_begin_ahead(13, 10),
            "what the pause waits for may need it"
        );
        for s in 11..=12 {
            p.leave(s);
            p.release(s);
        }
        assert!(!p.may_begin_ahead(13, 10), "now nothing moves");
        p.resume();
        p.hold(12);
        assert!(!p.may_begin_ahead(13, 10));
        p.unhold(12);
        assert!(p.may_begin_ahead(13, 10));
    }

    #[test]
    fn a_copy_brings_what_stood_alone_below_it() {
        let mut p = Positions::new(0);
        (1..=9).for_each(|s| p.ordered(s));
        p.stands_alone(3);
        p.stands_alone(7);
        p.begins_ahead(9);
        p.reset(6);
        assert!(p.is_quiet(0), "it belongs to the database before");
        assert!(!p.may_begin_ahead(9, 6), "7 is next");
        p.reset(7);
        assert!(p.may_begin_ahead(9, 6));
    }

    proptest! {
        /// Random schedules against the definition: `left` and `released` are
        /// the longest finished prefixes.
        #[test]
        fn positions_are_prefixes(n in 1i64..40, cancels in prop::collection::vec(any::<bool>(), 40), picks in prop::collection::vec(any::<u16>(), 400)) {
            let mut p = Positions::new(0);
            for s in 1..=n { p.ordered(s); }
            let mut left = vec![false; n as usize + 2];
            let mut done = vec![false; n as usize + 2];
            let prefix = |v: &Vec<bool>| (1..=n).take_while(|&s| v[s as usize]).count() as i64;
            for pick in picks {
                let s = 1 + (pick as i64) % n;
                let i = s as usize;
                if done[i] { continue; }
                if cancels[i % 40] && !left[i] {
                    p.cancel(s);
                    left[i] = true;
                    done[i] = true;
                } else if !left[i] {
                    let turn = prefix(&left) + 1 == s;
                    prop_assert_eq!(p.leave(s), turn);
                    left[i] = turn;
                } else {
                    p.release(s);
                    done[i] = true;
                }
                prop_assert_eq!(p.left(), prefix(&left));
                prop_assert_eq!(p.released(), prefix(&left).min(prefix(&done)));
            }
        }
    }
}
