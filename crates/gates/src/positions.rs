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
    /// Those of them of which the database was told nothing.
    untold: BTreeSet<Seqno>,
    told: Seqno,
    /// Seqnos above `released` that pass the commit gate and are never finished.
    passed: BTreeSet<Seqno>,
    /// What is not finished below this, or there, may never be.
    unsure_to: Seqno,
    paused_at: Option<Seqno>,
    /// A second stop, independent of the pause.
    hold_at: Option<Seqno>,
    /// The node leaves, and does not wait for the end of a pause.
    leaves: bool,
    /// Nothing above this is ever finished here: the pause amid which the node leaves, or where it has ended.
    ends_at: Option<Seqno>,
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
            untold: BTreeSet::new(),
            told: position,
            passed: BTreeSet::new(),
            unsure_to: 0,
            paused_at: None,
            hold_at: None,
            leaves: false,
            ends_at: None,
            active: BTreeSet::new(),
            stats: ApplyStats::default(),
        }
    }

    /// Puts all gates at `position`, as after a state transfer. What was
    /// ordered above it stays ordered, and what passes by itself there does so
    /// still: nobody says that again. A pause survives, and is never before `position`.
    pub fn reset(&mut self, position: Seqno) {
        let ordered = self.ordered.max(position);
        let cancelled = self.cancelled.split_off(&(position + 1));
        let mut finished = self.finished.split_off(&(position + 1));
        finished.retain(|seqno| cancelled.contains(seqno));
        let mut untold = self.untold.split_off(&(position + 1));
        untold.retain(|seqno| finished.contains(seqno));
        let passed = cancelled.iter().filter(|s| !finished.contains(s));
        let passed = passed.copied().collect();
        let not_before = |at: Option<Seqno>| at.map(|at| at.max(position));
        let (paused_at, stats) = (not_before(self.paused_at), self.stats);
        let (leaves, ends_at) = (self.leaves, not_before(self.ends_at));
        *self = Positions::new(position);
        (self.ordered, self.paused_at, self.stats) = (ordered, paused_at, stats);
        (self.leaves, self.ends_at) = (leaves, ends_at);
        (self.cancelled, self.finished, self.passed) = (cancelled, finished, passed);
        self.untold = untold;
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

    /// The newest of these of which the database was told: what it says of itself is that, or more.
    pub fn told(&self) -> Seqno {
        self.told
    }

    /// Whether `seqno` is the next one through the commit gate.
    pub fn may_commit(&self, seqno: Seqno) -> bool {
        self.left + 1 == seqno
    }

    /// Whether everything before `seqno` has left the commit gate and is finished, but for what is never
    /// finished here and what lies behind that.
    pub fn is_alone(&self, seqno: Seqno) -> bool {
        let end = self.ends_at.map(|at| at + 1);
        let passed = self.passed.first().copied();
        let unsure = (self.released < self.unsure_to).then_some(self.released + 1);
        let first_open = [Some(seqno), passed, unsure, end]
            .into_iter()
            .flatten()
            .min();
        self.left + 1 >= seqno && first_open.is_some_and(|first| self.released + 1 >= first)
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

    /// The same, and the database may not have been told.
    pub fn release_untold(&mut self, seqno: Seqno) {
        if seqno > self.released {
            self.untold.insert(seqno);
        }
        self.release(seqno);
    }

    /// `seqno` has nothing to do: it passes both gates when its turn comes.
    pub fn cancel(&mut self, seqno: Seqno) {
        self.pass(seqno);
        self.release_untold(seqno);
        self.advance_released();
    }

    /// `seqno` passes the commit gate when its turn comes, but is never
    /// finished: the node is going down and must not claim to have it.
    pub fn pass_commit(&mut self, seqno: Seqno) {
        if seqno > self.released && !self.finished.contains(&seqno) {
            self.passed.insert(seqno);
        }
        self.pass(seqno);
    }

    /// What is not finished now may never be, wherever it is.
    pub fn nothing_more_is_sure(&mut self) {
        self.unsure_to = Seqno::MAX;
    }

    /// The lowest one that is not finished now may never be.
    pub fn lowest_is_not_sure(&mut self) {
        self.unsure_to = self.unsure_to.max(self.released + 1);
    }

    fn pass(&mut self, seqno: Seqno) {
        if seqno > self.left && !self.leave(seqno) {
            self.cancelled.insert(seqno);
        }
        self.active.remove(&seqno);
    }

    fn advance_released(&mut self) {
        while self.released < self.left
            && !self.is_beyond_end(self.released + 1)
            && self.finished.remove(&(self.released + 1))
        {
            self.released += 1;
            self.passed.remove(&self.released);
            if !self.untold.remove(&self.released) {
                self.told = self.released;
            }
        }
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
        self.end_if_paused();
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

    /// The node leaves. What a pause holds back, now or later, never starts, and is never
    /// finished here, also if the pause ends.
    pub fn end_at_pause(&mut self) {
        self.leaves = true;
        self.end_if_paused();
    }

    /// The node has ended at `seqno`: nothing behind it is ever finished here.
    pub fn end_at(&mut self, seqno: Seqno) {
        self.ends_at = Some(self.ends_at.map_or(seqno, |at| at.min(seqno)));
    }

    /// Whether something behind `released` is finished, and not only passed.
    pub fn is_finished_beyond(&self) -> bool {
        self.finished.iter().any(|s| !self.cancelled.contains(s))
    }

    fn end_if_paused(&mut self) {
        if self.leaves && self.ends_at.is_none() {
            self.ends_at = self.paused_at;
        }
    }

    /// Where the node ends, if it left amid a pause.
    pub fn ends_at(&self) -> Option<Seqno> {
        self.ends_at
    }

    /// Whether `seqno` lies behind that.
    pub fn is_beyond_end(&self, seqno: Seqno) -> bool {
        self.ends_at.is_some_and(|at| seqno > at)
    }

    /// Where the flow is stopped, if it is.
    pub fn paused_at(&self) -> Option<Seqno> {
        self.paused_at
    }

    /// Whether `seqno` must wait for the end of a pause or a hold.
    pub fn held(&self, seqno: Seqno) -> bool {
        self.paused_before(seqno) || self.hold_at.is_some_and(|at| seqno > at)
    }

    /// Whether `seqno` must wait for the end of a pause. A hold does not count: what ends it may come
    /// behind.
    pub fn paused_before(&self, seqno: Seqno) -> bool {
        self.paused_at.is_some_and(|at| seqno > at)
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
    fn the_database_is_not_told_of_what_has_nothing_to_do() {
        let mut p = Positions::new(3);
        (4..=9).for_each(|s| p.ordered(s));
        assert_eq!(p.told(), 3);
        p.cancel(6);
        p.cancel(4);
        assert_eq!((p.released(), p.told()), (4, 3));
        assert!(p.leave(5));
        p.release(5);
        assert_eq!((p.released(), p.told()), (6, 5));
        assert!(p.leave(7));
        p.release_untold(7);
        assert_eq!((p.released(), p.told()), (7, 5));
        p.cancel(9);
        p.reset(8);
        assert_eq!((p.released(), p.told()), (9, 8), "a copy stands there");
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
    fn one_is_alone_when_all_before_are_finished_that_ever_will_be() {
        let mut p = Positions::new(0);
        (1..=9).for_each(|s| p.ordered(s));
        assert!(p.is_alone(1) && !p.is_alone(2));
        (1..=3).for_each(|s| assert!(p.leave(s)));
        assert!(p.may_commit(4) && !p.is_alone(4));
        p.release(2);
        p.release(3);
        assert!(!p.is_alone(4), "1 is not finished");
        p.release(1);
        assert!(p.is_alone(4));
        // Nobody will finish 5, so 6 and 8 need not wait for it, but for 4.
        assert!(p.leave(4));
        p.pass_commit(5);
        assert!(p.may_commit(6) && !p.is_alone(6));
        p.release(4);
        assert!(p.is_alone(6));
        assert!(p.leave(6));
        assert!(!p.is_alone(8), "7 has not had its turn");
        assert!(p.leave(7));
        assert!(p.is_alone(8));
        p.reset(7);
        assert!(p.is_alone(8));
        assert!(p.leave(8));
        assert!(!p.is_alone(9), "the copy has brought 5");
        p.end_at(7);
        assert!(p.is_alone(9), "8 is never finished");

        let mut p = Positions::new(0);
        (1..=3).for_each(|s| p.ordered(s));
        assert!(p.leave(1) && !p.is_alone(2));
        p.lowest_is_not_sure();
        assert!(p.is_alone(2) && !p.is_alone(3));
        p.release(1);
        assert!(p.leave(2) && !p.is_alone(3), "it was finished after all");
        p.release(2);
        p.pass_commit(3);
        p.ordered(4);
        assert!(p.is_alone(4), "nor does that hide what passes later");
    }

    /// One is passed amid others that are finished after all, and nobody knew that they would be.
    #[test]
    fn what_is_finished_after_all_does_not_hide_what_never_is() {
        let mut p = Positions::new(0);
        (1..=4).for_each(|s| p.ordered(s));
        p.lowest_is_not_sure();
        p.pass_commit(3);
        p.lowest_is_not_sure();
        for s in [1, 2] {
            assert!(p.leave(s));
            p.release(s);
        }
        assert!(p.may_commit(4) && p.is_alone(4));

        let mut p = Positions::new(0);
        (1..=5).for_each(|s| p.ordered(s));
        assert!(p.leave(1) && p.leave(2));
        p.nothing_more_is_sure();
        p.release(1);
        assert!(p.is_alone(3), "nor is 2");
        assert!(p.leave(3) && p.is_alone(4), "nor is anything");
        p.reset(4);
        assert!(p.leave(5) && !p.is_alone(6), "it begins anew");
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
        assert!(!p.paused_before(3), "it is no pause");
        p.unhold(2);
        assert!(!p.held(3));
    }

    #[test]
    fn a_node_that_leaves_amid_a_pause_ends_there() {
        let mut p = Positions::new(0);
        (1..=6).for_each(|s| p.ordered(s));
        assert!(p.leave(1));
        p.end_at_pause();
        assert_eq!(p.ends_at(), None, "nothing is paused");
        p.release(1);
        assert!(!p.is_beyond_end(6));
        (2..=4).for_each(|s| assert!(p.leave(s)));
        p.release(2);
        assert_eq!(p.pause(), 6);
        p.resume();
        assert_eq!(p.ends_at(), Some(6), "nor does it go on");
        p.ordered(7);
        assert!(p.is_beyond_end(7) && !p.is_beyond_end(6));
        // What comes before is finished.
        (3..=4).for_each(|s| p.release(s));
        (5..=8).for_each(|s| p.cancel(s));
        assert_eq!((p.left(), p.released()), (8, 6));
        p.reset(6);
        assert_eq!(p.released(), 6);
        assert_eq!(p.ends_at(), Some(6));
    }

    #[test]
    fn a_pause_is_never_before_what_the_database_has() {
        let mut p = Positions::new(3);
        p.pause();
        (4..=9).for_each(|s| p.ordered(s));
        p.reset(2);
        assert_eq!(p.paused_at(), Some(3), "it stays ahead");
        p.reset(7);
        assert_eq!((p.paused_at(), p.pause()), (Some(7), 7));
        assert!(p.held(8) && !p.held(7));
        p.end_at_pause();
        assert_eq!(p.ends_at(), Some(7));
        p.reset(6);
        assert_eq!((p.ends_at(), p.released()), (Some(7), 6));
        p.reset(8);
        assert_eq!((p.ends_at(), p.released()), (Some(8), 8));
    }

    #[test]
    fn a_node_that_is_paused_ends_at_the_pause() {
        let mut p = Positions::new(3);
        p.pause();
        (4..=5).for_each(|s| p.ordered(s));
        p.end_at_pause();
        p.pass_commit(4);
        p.cancel(5);
        assert_eq!((p.left(), p.released(), p.ends_at()), (5, 3, Some(3)));
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
            let mut nothing = vec![false; n as usize + 2];
            let prefix = |v: &Vec<bool>| (1..=n).take_while(|&s| v[s as usize]).count() as i64;
            for pick in picks {
                let s = 1 + (pick as i64) % n;
                let i = s as usize;
                if done[i] { continue; }
                if cancels[i % 40] && !left[i] {
                    p.cancel(s);
                    left[i] = true;
                    done[i] = true;
                    nothing[i] = true;
                } else if !left[i] {
                    let turn = prefix(&left) + 1 == s;
                    prop_assert_eq!(p.leave(s), turn);
                    left[i] = turn;
                } else {
                    p.release(s);
                    done[i] = true;
                }
                prop_assert_eq!(p.left(), prefix(&left));
                let released = prefix(&left).min(prefix(&done));
                prop_assert_eq!(p.released(), released);
                let told = (1..=released).rev().find(|&s| !nothing[s as usize]);
                prop_assert_eq!(p.told(), told.unwrap_or(0));
            }
        }
    }
}
