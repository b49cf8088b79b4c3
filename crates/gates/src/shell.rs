//! The blocking shell: server threads wait here for their turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::positions::{ApplyStats, Positions, Seqno};
use crate::waiter::Waiter;

/// Why a wait ended without its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitError {
    /// The waiter was interrupted: the transaction must give way.
    Interrupted,
    /// The deadline passed.
    TimedOut,
    /// The gates were closed: the node has left the cluster.
    Closed,
}

/// What must have become of everything before, for one to pass the commit gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// It has left the gate; its database may still be busy with it.
    Left,
    /// It is finished, too.
    Finished,
}

/// [`Positions`] with threads waiting on them.
///
/// Each wait registers its own [`Waiter`], so that a step wakes exactly the
/// threads it concerns.
#[derive(Debug)]
pub struct Gates {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    positions: Positions,
    commit: HashMap<Seqno, (Arc<Waiter>, Before)>,
    released: BTreeMap<Seqno, Vec<Arc<Waiter>>>,
    resumed: Vec<Arc<Waiter>>,
    closed: bool,
}

impl Gates {
    /// Gates at `position`.
    pub fn new(position: Seqno) -> Self {
        Gates {
            inner: Mutex::new(Inner {
                positions: Positions::new(position),
                commit: HashMap::new(),
                released: BTreeMap::new(),
                resumed: Vec::new(),
                closed: false,
            }),
        }
    }

    /// Puts all gates at `position` and opens them.
    pub fn reset(&self, position: Seqno) {
        let mut inner = self.lock();
        inner.positions.reset(position);
        inner.closed = false;
        inner.wake_all();
    }

    /// Puts all gates at `position` with nothing ordered above it: a new
    /// connection to the cluster begins.
    pub fn restart(&self, position: Seqno) {
        let mut inner = self.lock();
        let paused = inner.positions.paused_at().is_some();
        inner.positions = Positions::new(position);
        if paused {
            inner.positions.pause();
        }
        inner.closed = false;
        inner.wake_all();
    }

    /// Ends every wait for a dependency or a released position with
    /// [`WaitError::Closed`]. The commit gate keeps working: what is ordered
    /// must still pass, whatever may be finished. A place that lies ahead will not be ordered any more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.positions.nothing_more_is_sure();
        inner.wake_all();
    }

    /// The same, and nothing behind `seqno` commits or is finished here: what lies there is dropped, and who has a
    /// place behind that would commit without it.
    pub fn close_at(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.positions.lowest_is_not_sure();
        inner.positions.end_at(seqno);
        inner.wake_all();
    }

    /// The node leaves, and `seqno` is not done here: its place is passed, and nothing behind it commits or is
    /// finished. Else the database's position would come to lie behind what it lacks.
    pub fn end_before(&self, seqno: Seqno) {
        self.close_at(seqno - 1);
        self.pass_commit(seqno);
    }

    /// The next seqno was delivered.
    pub fn ordered(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.ordered(seqno);
        if inner.positions.may_commit(seqno) {
            // It may have lain ahead, and wait.
            wake_due(inner);
        }
    }

    /// Highest seqno delivered.
    pub fn last_ordered(&self) -> Seqno {
        self.lock().positions.last_ordered()
    }

    /// Every seqno up to here is finished.
    pub fn released(&self) -> Seqno {
        self.lock().positions.released()
    }

    /// The newest finished one of which the database was told: see [`Positions::told`].
    pub fn told(&self) -> Seqno {
        self.lock().positions.told()
    }

    /// Every seqno up to here has left the commit gate.
    pub fn left(&self) -> Seqno {
        self.lock().positions.left()
    }

    /// Waits until `seqno` is delivered and next through the commit gate, and `before` is true of all
    /// before it. With `interruptible`, an interrupt of the waiter ends the wait.
    pub fn wait_commit_turn(
        &self,
        seqno: Seqno,
        before: Before,
        waiter: &Arc<Waiter>,
        interruptible: bool,
    ) -> Result<(), WaitError> {
        let mut inner = self.lock();
        loop {
            let delivered = seqno <= inner.positions.last_ordered();
            if inner.closed && (!delivered || inner.positions.is_beyond_end(seqno)) {
                inner.commit.remove(&seqno);
                return Err(WaitError::Closed);
            }
            if delivered && inner.may_enter(seqno, before) {
                inner.commit.remove(&seqno);
                return Ok(());
            }
            if interruptible && waiter.interrupted() {
                inner.commit.remove(&seqno);
                return Err(WaitError::Interrupted);
            }
            inner.commit.insert(seqno, (waiter.clone(), before));
            drop(inner);
            waiter.wait(interruptible, None);
            inner = self.lock();
        }
    }

    /// `seqno` leaves the commit gate; the next one may enter. Answers whether
    /// it was its turn.
    pub fn leave(&self, seqno: Seqno) -> bool {
        let mut inner = self.lock();
        let was_turn = inner.positions.leave(seqno);
        wake_due(inner);
        was_turn
    }

    /// `seqno` is finished: durable and visible in the database.
    pub fn release(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.release(seqno);
        wake_due(inner);
    }

    /// `seqno` leaves the commit gate and is finished, in one step; the database may not have been told.
    pub fn leave_and_release(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.leave(seqno);
        inner.positions.release_untold(seqno);
        wake_due(inner);
    }

    /// `seqno` has nothing to do: it passes when its turn comes.
    pub fn cancel(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.cancel(seqno);
        wake_due(inner);
    }

    /// `seqno` passes the commit gate when its turn comes, but is never
    /// finished here.
    pub fn pass_commit(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.pass_commit(seqno);
        wake_due(inner);
    }

    /// The lowest one that is not finished may never be: nobody waits for it at the commit gate.
    pub fn lowest_is_not_sure(&self) {
        let mut inner = self.lock();
        inner.positions.lowest_is_not_sure();
        wake_due(inner);
    }

    /// What has left the commit gate may never be finished here: nobody waits there for that.
    pub fn nothing_more_is_sure(&self) {
        let mut inner = self.lock();
        inner.positions.nothing_more_is_sure();
        wake_due(inner);
    }

    /// Enters the apply gate: waits until everything up to `depends_on` is
    /// finished.
    pub fn enter_apply(
        &self,
        seqno: Seqno,
        depends_on: Seqno,
        waiter: &Arc<Waiter>,
        interruptible: bool,
    ) -> Result<(), WaitError> {
        let waited = !self.lock().positions.may_apply(depends_on);
        if waited {
            self.wait_released(depends_on, waiter, interruptible, None)?;
        }
        self.lock().positions.entered(seqno, waited);
        Ok(())
    }

    /// Counts a local transaction into the apply gate; its locks are held
    /// already, so it has nothing to wait for.
    pub fn enter_apply_local(&self, seqno: Seqno) {
        self.lock().positions.entered(seqno, false);
    }

    /// Takes `seqno` back out of the apply gate, to be replayed.
    pub fn withdraw(&self, seqno: Seqno) {
        self.lock().positions.withdrawn(seqno);
    }

    /// Waits until everything up to `seqno` is finished.
    pub fn wait_released(
        &self,
        seqno: Seqno,
        waiter: &Arc<Waiter>,
        interruptible: bool,
        deadline: Option<Instant>,
    ) -> Result<(), WaitError> {
        let mut inner = self.lock();
        let mut timed_out = false;
        loop {
            let failure = if inner.positions.released() >= seqno {
                None
            } else if inner.closed {
                Some(WaitError::Closed)
            } else if interruptible && waiter.interrupted() {
                Some(WaitError::Interrupted)
            } else if timed_out {
                Some(WaitError::TimedOut)
            } else {
                inner
                    .released
                    .entry(seqno)
                    .or_default()
                    .push(waiter.clone());
                drop(inner);
                timed_out = !waiter.wait(interruptible, deadline);
                inner = self.lock();
                inner.forget_released(seqno, waiter);
                continue;
            };
            return failure.map_or(Ok(()), Err);
        }
    }

    /// Stops the flow behind what is ordered now and waits until that is
    /// finished. Answers the position.
    pub fn pause(&self, waiter: &Arc<Waiter>) -> Result<Seqno, WaitError> {
        let at = {
            let mut inner = self.lock();
            let at = inner.positions.pause();
            if inner.positions.ends_at().is_some() {
                inner.wake_resumed();
            }
            wake_due(inner);
            at
        };
        match self.wait_released(at, waiter, false, None) {
            // A reset meanwhile may have moved it.
            Ok(()) => Ok(self.paused_at().map_or(at, |now| now.max(at))),
            Err(e) => {
                self.resume();
                Err(e)
            }
        }
    }

    /// Ends the pause.
    pub fn resume(&self) {
        let mut inner = self.lock();
        inner.positions.resume();
        inner.wake_resumed();
    }

    /// Stops the flow behind `seqno`, independently of a pause. Called by
    /// delivery before anything behind it is delivered, it lets nothing slip
    /// through.
    pub fn hold(&self, seqno: Seqno) {
        self.lock().positions.hold(seqno);
    }

    /// Ends the hold behind `seqno`, unless a newer one has taken its place.
    pub fn unhold(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.positions.unhold(seqno);
        inner.wake_resumed();
    }

    /// Where the flow is stopped, if it is.
    pub fn paused_at(&self) -> Option<Seqno> {
        self.lock().positions.paused_at()
    }

    /// The node leaves: what a pause holds back, now or later, is never finished here, and whoever
    /// waits for that stops waiting.
    pub fn end_at_pause(&self) {
        let mut inner = self.lock();
        inner.positions.end_at_pause();
        inner.wake_resumed();
        wake_due(inner);
    }

    /// Where the node ends, if it left amid a pause, or has ended.
    pub fn ends_at(&self) -> Option<Seqno> {
        self.lock().positions.ends_at()
    }

    /// Whether `seqno` lies behind that.
    pub fn is_beyond_end(&self, seqno: Seqno) -> bool {
        self.lock().positions.is_beyond_end(seqno)
    }

    /// Whether something behind [`released`](Gates::released) is finished, and not only passed.
    pub fn is_finished_beyond(&self) -> bool {
        self.lock().positions.is_finished_beyond()
    }

    /// Waits while a pause holds `seqno` back. `Seqno::MAX` stands for
    /// something not ordered yet. [`WaitError::Closed`]: it never starts.
    pub fn wait_not_held(
        &self,
        seqno: Seqno,
        waiter: &Arc<Waiter>,
        interruptible: bool,
    ) -> Result<(), WaitError> {
        self.wait_while(seqno, waiter, interruptible, |p| p.held(seqno))
    }

    /// Waits while `seqno` lies behind a pause, whatever else holds it back: for what has no place, and
    /// must not be told amid a pause. [`WaitError::Closed`]: it never starts.
    pub fn wait_not_paused(&self, seqno: Seqno, waiter: &Arc<Waiter>) -> Result<(), WaitError> {
        self.wait_while(seqno, waiter, false, |p| p.paused_before(seqno))
    }

    fn wait_while(
        &self,
        seqno: Seqno,
        waiter: &Arc<Waiter>,
        interruptible: bool,
        stopped: impl Fn(&Positions) -> bool,
    ) -> Result<(), WaitError> {
        let mut inner = self.lock();
        loop {
            if inner.positions.is_beyond_end(seqno) {
                return Err(WaitError::Closed);
            }
            if !stopped(&inner.positions) || inner.closed {
                return Ok(());
            }
            if interruptible && waiter.interrupted() {
                return Err(WaitError::Interrupted);
            }
            inner.resumed.push(waiter.clone());
            drop(inner);
            waiter.wait(interruptible, None);
            inner = self.lock();
            inner.resumed.retain(|w| !Arc::ptr_eq(w, waiter));
        }
    }

    /// Whether a pause holds `seqno` back now, or for good.
    pub fn is_held(&self, seqno: Seqno) -> bool {
        let inner = self.lock();
        let held = inner.positions.held(seqno) && !inner.closed;
        held || inner.positions.is_beyond_end(seqno)
    }

    /// What the apply gate saw.
    pub fn stats(&self) -> ApplyStats {
        self.lock().positions.stats()
    }

    /// Zeroes the averages.
    pub fn reset_stats(&self) {
        self.lock().positions.reset_stats();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Positions change in single steps; a panic elsewhere leaves them valid.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes whom the newest step concerns, after the lock is free: a thread that wakes
/// takes it first of all.
fn wake_due(mut inner: MutexGuard<'_, Inner>) {
    let next = inner.positions.left() + 1;
    let commit = match inner.commit.get(&next) {
        Some((waiter, before)) if inner.may_enter(next, *before) => Some(waiter.clone()),
        _ => None,
    };
    let after = inner.positions.released() + 1;
    let due = match inner.released.first_key_value() {
        Some((first, _)) if *first < after => {
            let later = inner.released.split_off(&after);
            std::mem::replace(&mut inner.released, later)
        }
        _ => BTreeMap::new(),
    };
    drop(inner);
    for waiter in commit.into_iter().chain(due.into_values().flatten()) {
        waiter.wake();
    }
}

impl Inner {
    fn may_enter(&self, seqno: Seqno, before: Before) -> bool {
        match before {
            Before::Left => self.positions.left() + 1 >= seqno,
            Before::Finished => self.positions.is_alone(seqno),
        }
    }

    fn forget_released(&mut self, seqno: Seqno, waiter: &Arc<Waiter>) {
        if let Some(waiters) = self.released.get_mut(&seqno) {
            waiters.retain(|w| !Arc::ptr_eq(w, waiter));
            if waiters.is_empty() {
                self.released.remove(&seqno);
            }
        }
    }

    fn wake_resumed(&mut self) {
        for waiter in self.resumed.drain(..) {
            waiter.wake();
        }
    }

    fn wake_all(&mut self) {
        for (waiter, _) in self.commit.values() {
            waiter.wake();
        }
        for waiter in self.released.values().flatten() {
            waiter.wake();
        }
        for waiter in self.resumed.drain(..) {
            waiter.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    /// A thread that waits for the turn of `seqno` in commit order.
    fn waits(gates: &Arc<Gates>, seqno: Seqno) -> mpsc::Receiver<Result<(), WaitError>> {
        waits_for(gates, seqno, Before::Left)
    }

    fn waits_for(
        gates: &Arc<Gates>,
        seqno: Seqno,
        before: Before,
    ) -> mpsc::Receiver<Result<(), WaitError>> {
        let (tell, told) = mpsc::channel();
        let gates = gates.clone();
        thread::spawn(move || {
            let waiter = Arc::new(Waiter::new());
            let _ = tell.send(gates.wait_commit_turn(seqno, before, &waiter, false));
        });
        told
    }

    #[test]
    fn a_place_ahead_has_its_turn_when_it_is_delivered() {
        let gates = Arc::new(Gates::new(10));
        let told = waits(&gates, 12);
        gates.ordered(11);
        gates.leave_and_release(11);
        assert!(told.recv_timeout(SOON).is_err(), "12 is nobody's so far");
        assert_eq!(gates.pause(&Arc::new(Waiter::new())), Ok(11));
        gates.ordered(12);
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
        assert!(
            gates.is_held(12),
            "it began before the pause and lies behind it"
        );
        gates.resume();
        assert!(!gates.is_held(12));
    }

    #[test]
    fn a_place_ahead_is_given_up_when_nothing_is_delivered_any_more() {
        let gates = Arc::new(Gates::new(10));
        gates.ordered(11);
        let (behind, ahead) = (waits(&gates, 11), waits(&gates, 13));
        assert_eq!(behind.recv_timeout(LONG), Ok(Ok(())));
        assert!(ahead.recv_timeout(SOON).is_err());
        gates.close();
        assert_eq!(ahead.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
    }

    #[test]
    fn behind_the_end_nothing_commits_though_it_is_delivered() {
        let gates = Arc::new(Gates::new(10));
        (11..=13).for_each(|s| gates.ordered(s));
        let (last, behind) = (waits(&gates, 11), waits(&gates, 13));
        assert_eq!(last.recv_timeout(LONG), Ok(Ok(())));
        assert!(behind.recv_timeout(SOON).is_err());
        gates.close_at(11);
        assert_eq!(behind.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        gates.leave_and_release(11);
        // Nobody takes 12: it is dropped.
        gates.pass_commit(12);
        let later = waits(&gates, 13);
        assert_eq!(later.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        assert!(!gates.is_finished_beyond());
        gates.cancel(13);
        assert_eq!(gates.released(), 11);
        gates.restart(20);
        gates.ordered(21);
        assert_eq!(waits(&gates, 21).recv_timeout(LONG), Ok(Ok(())));
    }

    #[test]
    fn behind_what_is_not_done_nothing_commits() {
        let gates = Arc::new(Gates::new(99));
        (100..=103).for_each(|s| gates.ordered(s));
        let independent = waits(&gates, 102);
        // The last view has come, and 100 is still at work.
        gates.close_at(103);
        let waiter = Arc::new(Waiter::default());
        let depends = gates.enter_apply(101, 100, &waiter, false);
        assert_eq!(depends, Err(WaitError::Closed));
        gates.end_before(101);
        assert_eq!(independent.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        // 100 is finished after all.
        assert_eq!(waits(&gates, 100).recv_timeout(LONG), Ok(Ok(())));
        gates.leave_and_release(100);
        assert_eq!((gates.released(), gates.ends_at()), (100, Some(100)));
        assert_eq!(
            waits(&gates, 102).recv_timeout(LONG),
            Ok(Err(WaitError::Closed))
        );
        gates.pass_commit(102);
        assert!(!gates.is_finished_beyond());
    }

    #[test]
    fn one_may_wait_until_those_before_are_finished() {
        let gates = Arc::new(Gates::new(10));
        (11..=15).for_each(|s| gates.ordered(s));
        let alone = waits_for(&gates, 13, Before::Finished);
        gates.leave(11);
        gates.leave(12);
        gates.release(12);
        assert!(alone.recv_timeout(SOON).is_err(), "11 is not finished");
        gates.release(11);
        assert_eq!(alone.recv_timeout(LONG), Ok(Ok(())));
        gates.leave(13);
        assert_eq!(waits(&gates, 14).recv_timeout(LONG), Ok(Ok(())));
        gates.leave(14);
        let alone = waits_for(&gates, 15, Before::Finished);
        assert!(alone.recv_timeout(SOON).is_err());
        // The node ends, and what 15 waits for may never be finished.
        gates.close_at(15);
        assert_eq!(alone.recv_timeout(LONG), Ok(Ok(())));
        gates.restart(15);
        (16..=18).for_each(|s| gates.ordered(s));
        gates.leave(16);
        gates.leave(17);
        let alone = waits_for(&gates, 18, Before::Finished);
        assert!(alone.recv_timeout(SOON).is_err());
        gates.close_at(16);
        assert_eq!(alone.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
    }

    #[test]
    fn what_is_finished_out_of_turn_is_told() {
        let gates = Gates::new(10);
        (11..=14).for_each(|s| gates.ordered(s));
        gates.cancel(14);
        assert!(!gates.is_finished_beyond(), "it only passes");
        gates.pass_commit(11);
        gates.leave_and_release(12);
        assert_eq!(gates.released(), 10);
        assert!(gates.is_finished_beyond());
    }

    #[test]
    fn who_waits_for_the_end_of_a_pause_stops_when_the_node_leaves() {
        let gates = Arc::new(Gates::new(10));
        assert_eq!(gates.pause(&Arc::new(Waiter::new())), Ok(10));
        gates.ordered(11);
        let waits = |seqno| {
            let (tell, told) = mpsc::channel();
            let gates = gates.clone();
            thread::spawn(move || {
                let waiter = Arc::new(Waiter::new());
                let _ = tell.send(gates.wait_not_held(seqno, &waiter, false));
            });
            told
        };
        let (ordered, writer) = (waits(11), waits(Seqno::MAX));
        assert!(ordered.recv_timeout(SOON).is_err());
        gates.end_at_pause();
        assert_eq!(ordered.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        assert_eq!(writer.recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        assert_eq!(waits(10).recv_timeout(LONG), Ok(Ok(())));
        // Whatever comes then.
        gates.resume();
        gates.close();
        assert!(gates.is_held(11) && !gates.is_held(10));
        assert_eq!(waits(11).recv_timeout(LONG), Ok(Err(WaitError::Closed)));
        gates.leave_and_release(11);
        assert_eq!((gates.left(), gates.released()), (11, 10));
        // A new connection begins.
        gates.restart(10);
        gates.ordered(11);
        assert_eq!(waits(11).recv_timeout(LONG), Ok(Ok(())));
    }
}
