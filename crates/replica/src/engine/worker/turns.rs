//! Where a worker waits for earlier units: to apply its own again, to do what that does last, to
//! commit it.

use std::sync::Condvar;
use std::time::{Duration, Instant};

use super::{INTERRUPTED, Trouble, Worker};
use crate::engine::shared::{Activity, TURNS};
use crate::schedule::{Executed, State};
use crate::unit::{Alone, Unit};

/// Why a unit that has executed must give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By its keys it conflicts with an earlier one that has not executed.
    Keys,
    /// An earlier one waits for a lock of it; who found that has named it.
    Lock,
}

impl Worker {
    /// Waits until it may be applied again.
    pub(super) fn wait_again(&self, n: u64) -> Result<(), Trouble> {
        let began = Instant::now();
        let mut core = self.shared.lock();
        core.restarting += 1;
        while !core.scheduler.may_restart(n) && !core.has_ended() {
            core = self
                .shared
                .wait(&self.shared.turns[n as usize % TURNS], core);
        }
        core.restarting -= 1;
        self.progress
            .counters
            .spent(Activity::Again, began.elapsed());
        if core.has_ended() {
            return Err(Trouble::Ended);
        }
        core.scheduler.restart(n);
        Ok(())
    }

    /// Waits until it may commit. Gives whom it must give way to instead.
    pub(super) fn turn(
        &self,
        n: u64,
        unit: &Unit,
        cost: Option<Duration>,
    ) -> Result<Option<(u64, Cause)>, Trouble> {
        let began = Instant::now();
        let turn = self.wait_turn(n, unit, cost);
        self.progress
            .counters
            .spent(Activity::Turn, began.elapsed());
        turn
    }

    fn wait_turn(
        &self,
        n: u64,
        unit: &Unit,
        cost: Option<Duration>,
    ) -> Result<Option<(u64, Cause)>, Trouble> {
        let mut core = self.shared.lock();
        if let Some(took) = cost {
            core.size.executed(unit.transactions.len(), took);
        }
        // Until it has executed only who waits for a lock of it can stop it.
        let cause = match core.scheduler.state(n) {
            Some(State::Doomed(_)) => Cause::Lock,
            _ => Cause::Keys,
        };
        if let Executed::GiveWay(by) = core.scheduler.executed(n) {
            return Ok(Some((by, cause)));
        }
        // A unit may wait for all before it to have executed.
        self.shared.start.notify_one();
        match core.halfway.is_empty() {
            false => self.shared.turns.iter().for_each(Condvar::notify_all),
            true => self.shared.wake_ready(&core),
        }
        // It is done for good, and the first: without its position it would be in doubt.
        let is_final = unit.alone.is_some_and(Alone::is_final);
        loop {
            if is_final && core.scheduler.commit(n) {
                return Ok(None);
            }
            if core.has_ended() {
                return Err(Trouble::Ended);
            }
            if let Some(State::Doomed(by)) = core.scheduler.state(n) {
                return Ok(Some((by, Cause::Lock)));
            }
            if core.scheduler.commit(n) {
                return Ok(None);
            }
            core = self
                .shared
                .wait(&self.shared.turns[n as usize % TURNS], core);
        }
    }

    /// Waits until what the unit does last may be done.
    pub(super) fn wait_last(&mut self, n: u64) -> Result<(), Trouble> {
        let began = Instant::now();
        let mut core = self.shared.lock();
        core.halfway.insert(n);
        let end = loop {
            if core.has_ended() {
                break Err(Trouble::Ended);
            }
            // An earlier one waits for a lock of it. What was sent to end it finds nothing to end.
            if let Some(State::Doomed(_)) = core.scheduler.state(n) {
                break Err(Trouble::Error(INTERRUPTED, "it held a lock".into()));
            }
            if core.scheduler.may_finish(n) {
                break Ok(());
            }
            core = self
                .shared
                .wait(&self.shared.turns[n as usize % TURNS], core);
        };
        core.halfway.remove(&n);
        drop(core);
        self.waited += began.elapsed();
        end
    }
}
