//! A forced recovery, as an operator does one: the others are dead, one node is
//! told to go on without them, and when it serves they are started again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{BOUND, World};
use crate::faults::{Fault, Hurt};
use crate::net::Cut;
use crate::oracle::Oracle;

/// How long the node may take to see that it is alone, and to go on.
const PATIENCE: Duration = Duration::from_secs(20);

/// A forced recovery that is under way.
pub(super) struct Forcing {
    slot: usize,
    others: Others,
    stage: Stage,
    /// When this stage began.
    since_us: u64,
    /// The processes of all when the others died.
    births: Vec<u64>,
    /// The process that goes on, and how many recoveries there were before.
    birth: u64,
    before: usize,
}

/// What becomes of the others: whether their machines die too, when each comes
/// back, and what befalls whom of them then.
type Others = (bool, Vec<Duration>, (usize, Hurt));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Cut off from the others, who go on for so long.
    Apart(Duration),
    /// The others are dead.
    Dark,
    /// It was told to go on.
    Told,
    /// The others come back.
    Gathering,
}

impl World {
    /// Begins a forced recovery by `slot`.
    pub(super) fn force(&mut self, slot: usize, apart: Duration, others: Others) {
        self.calm();
        for other in (0..self.machines.len()).filter(|o| *o != slot && !apart.is_zero()) {
            self.shared.net.cut(slot, other, Cut::Swallow);
            self.shared.net.cut(other, slot, Cut::Swallow);
        }
        self.forcing = Some(Forcing {
            slot,
            others,
            stage: Stage::Apart(apart),
            since_us: self.now(),
            births: self.machines.iter().map(|m| m.births).collect(),
            birth: self.machines[slot].births,
            before: self.shared.oracles().recoveries(),
        });
    }

    /// Whether `fault` may be done now. Until nobody is left in the old
    /// incarnation, the death of the one that goes on would bring the old one
    /// back: that is the operator's risk, and no promise is made about it.
    pub(super) fn may_be(&self, fault: &Fault) -> bool {
        // The log of one of two voters that is lost for good is an operator's case,
        // whoever else is on the way to be the third.
        if let Fault::Wipe { slot, .. }
        | Fault::ChangeAndCrash {
            slot, wipe: true, ..
        } = fault
            && !self.can_spare(*slot)
        {
            return false;
        }
        let Some(f) = &self.forcing else { return true };
        let other = |s: &usize| *s != f.slot;
        f.stage == Stage::Gathering
            && match fault {
                Fault::Crash { slots, .. } => slots.iter().all(other),
                Fault::Pause { slot, .. } | Fault::SlowDisk { slot, .. } => other(slot),
                Fault::Break { .. } | Fault::SlowApply { .. } => true,
                _ => false,
            }
    }

    fn can_spare(&self, slot: usize) -> bool {
        let id = self.machines[slot].host.raft_id.load(Ordering::Relaxed);
        self.shared.electorate().can_spare(id)
    }

    /// Goes on with the recovery that is under way.
    pub(super) fn drive_forcing(&mut self) {
        let Some(mut f) = self.forcing.take() else {
            return;
        };
        let now_us = self.now();
        let since = Duration::from_micros(now_us - f.since_us);
        let before = f.stage;
        let lives = self.machines[f.slot].births == f.birth;
        match f.stage {
            Stage::Apart(until) if since >= until => {
                for slot in (0..self.machines.len()).filter(|s| *s != f.slot) {
                    self.kill(slot, f.others.0);
                    self.machines[slot].start_at_us = None;
                }
                self.shared.net.heal();
                // One may have begun anew meanwhile.
                f.births = self.machines.iter().map(|m| m.births).collect();
                f.stage = Stage::Dark;
            }
            Stage::Dark => {
                let picture = self.picture_of(f.slot);
                if !lives || since > PATIENCE {
                    // It died or never had a state: the others come back as they are.
                    self.start_others(&f);
                    f.stage = Stage::Gathering;
                } else if picture.is_some_and(|p| !p.primary && p.complete)
                    && let Some(running) = &self.machines[f.slot].running
                {
                    let _inside = running.runtime.enter();
                    running.process.go_alone();
                    f.stage = Stage::Told;
                }
            }
            Stage::Told => {
                let begun = self.shared.oracles().recoveries() > f.before;
                let picture = self.picture_of(f.slot);
                if begun && picture.as_ref().is_some_and(|p| p.serves) {
                    self.start_others(&f);
                    f.stage = Stage::Gathering;
                } else if !lives && !begun && picture.is_some() {
                    // It died before it could begin anything.
                    self.shared.oracles().not_forked();
                    self.start_others(&f);
                    f.stage = Stage::Gathering;
                } else if since > PATIENCE && lives {
                    let what = format!(
                        "node {} was told to go on alone and does not within {PATIENCE:?}: {}",
                        f.slot,
                        picture.map(|p| p.text).unwrap_or_default()
                    );
                    self.shared.oracles().fire(Oracle::Standstill, what);
                }
            }
            Stage::Gathering => {
                self.meet(&f, since);
                self.start_others(&f);
                let all = 0..self.machines.len();
                let oracles = self.shared.oracles();
                let come = oracles.recoveries() == f.before
                    || all.into_iter().all(|slot| oracles.is_present(slot));
                if come {
                    return;
                }
            }
            Stage::Apart(_) => {}
        }
        if f.stage != before {
            self.shared
                .note(None, format_args!("forced recovery: {:?}", f.stage));
            f.since_us = now_us;
        }
        self.forcing = Some(f);
    }

    /// Starts the next of the others, once those before have left the old
    /// incarnation: several at once could be a majority of it, if the one that
    /// goes on does not answer for a moment. All of them, if nothing was begun.
    fn start_others(&mut self, f: &Forcing) {
        let now_us = self.now();
        let begun = self.shared.oracles().recoveries() > f.before;
        for slot in (0..self.machines.len()).filter(|s| *s != f.slot) {
            if self.machines[slot].births > f.births[slot] {
                if begun && !self.shared.oracles().is_present(slot) {
                    return;
                }
                continue;
            }
            if self.machines[slot].start_at_us.is_some() {
                return;
            }
            let at_us = now_us + f.others.1[slot].as_micros() as u64;
            let m = &mut self.machines[slot];
            m.start_at_us = Some(at_us);
            match f.others.2 {
                (victim, Hurt::Dies(after)) if victim == slot => {
                    let down = Duration::from_millis(300);
                    m.kill_at_us = Some((at_us + after.as_micros() as u64, f.others.0, down));
                }
                // See `meet`.
                (victim, Hurt::Meets) if victim == slot && begun => {
                    m.start_at_us = None;
                    return;
                }
                _ => {}
            }
            if begun {
                return;
            }
        }
    }

    /// Starts who is to come back when the one that went on has got as far as it,
    /// or does not within `PATIENCE`.
    fn meet(&mut self, f: &Forcing, since: Duration) {
        let (victim, hurt) = f.others.2;
        let m = &self.machines[victim];
        if hurt != Hurt::Meets || m.running.is_some() || m.start_at_us.is_some() {
            return;
        }
        let wanted = m.host.database().now.position.seqno;
        let at = self.picture_of(f.slot).map_or(wanted, |p| p.position.seqno);
        if at + 1 >= wanted || since > PATIENCE {
            self.machines[victim].start_at_us = Some(self.now());
        }
    }

    /// Waits until no recovery is under way any more.
    pub(super) fn finish_forcing(&mut self) {
        let end_us = self.now() + BOUND.as_micros() as u64;
        while self.forcing.is_some() && !self.violated() {
            self.step();
            if self.now() >= end_us {
                let what = format!("not all have left the old incarnation within {BOUND:?}");
                self.shared.oracles().fire(Oracle::Liveness, what);
            }
        }
    }
}
