//! What is done to a run: when, to whom.
//!
//! The plan keeps a majority recoverable: a node loses its disk only while
//! every other one is whole, and members leave only while enough stay.

use std::time::Duration;

use crate::net::Cut;
use crate::rng::Rng;

/// Something that is done to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Processes die and come back after a while. With `power`, their disks
    /// forget what was not synced.
    Crash {
        /// Who.
        slots: Vec<usize>,
        /// Whether the machine dies too.
        power: bool,
        /// Until each is started again.
        down: Vec<Duration>,
    },
    /// A process dies and its disks are emptied.
    Wipe {
        /// Who.
        slot: usize,
        /// Whether the data of another cluster is put there instead, or that of a
        /// copy of a member that ran by itself, from about the same seqno.
        foreign: bool,
        /// Until it is started again.
        down: Duration,
    },
    /// A process gets no time for a while.
    Pause {
        /// Who.
        slot: usize,
        /// For how long.
        for_: Duration,
    },
    /// The clock of a process jumps forward, as after the sleep of a machine.
    ClockJump {
        /// Who.
        slot: usize,
        /// How far.
        by: Duration,
    },
    /// The clock of a process stands still for so long while the process runs,
    /// and is behind the others' from then on. That is a step backwards, as far
    /// as there is one: the monotonic clock does not turn back, and no other is
    /// read.
    ClockBack {
        /// Who.
        slot: usize,
        /// How far.
        by: Duration,
    },
    /// All processes die. A minority stays away for long; the others are left
    /// in peace, to show that they can do without.
    Outage {
        /// Whether the machines die too.
        power: bool,
        /// Until each is started again.
        down: Vec<Duration>,
    },
    /// One node loses the majority for good, and is told to go on without it.
    /// Those left behind come back later, with all they had.
    Force {
        /// Who goes on.
        slot: usize,
        /// For how long it is cut off before the others die.
        apart: Duration,
        /// Whether the machines of the others die too.
        power: bool,
        /// Until each of the others is started again, once it goes on.
        down: Vec<Duration>,
        /// One of the others, to be hurt.
        victim: usize,
        /// How.
        hurt: Hurt,
    },
    /// Some ways between nodes are cut, until they are all healed.
    Partition {
        /// From, to, how.
        cuts: Vec<(usize, usize, Cut)>,
        /// For how long.
        for_: Duration,
    },
    /// Connections between two nodes break, once.
    Break {
        /// One end.
        a: usize,
        /// The other.
        b: usize,
        /// Only this lane, by its number.
        lane: Option<usize>,
    },
    /// Disks become slow, or hang.
    SlowDisk {
        /// Who.
        slot: usize,
        /// By how much; what takes a second or longer is called hanging.
        extra: Duration,
        /// For how long.
        for_: Duration,
    },
    /// A database becomes slow at applying.
    SlowApply {
        /// Who.
        slot: usize,
        /// By how much, at most, for each event.
        extra: Duration,
        /// For how long.
        for_: Duration,
    },
    /// A way becomes slow.
    SlowLink {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// By how much.
        extra: Duration,
        /// For how long.
        for_: Duration,
    },
    /// A disk fails a write or a sync, once.
    DiskError {
        /// Who.
        slot: usize,
        /// Which of the next operations.
        nth: u64,
        /// A sync, or a write.
        sync: bool,
    },
    /// A disk takes no more for a while.
    FullDisk {
        /// Who.
        slot: usize,
        /// For how long.
        for_: Duration,
    },
    /// The membership changes while another node dies: a node leaves in good
    /// order, or comes back as a new one with empty disks.
    ChangeAndCrash {
        /// Who leaves or loses its disks.
        slot: usize,
        /// Whether it loses its disks.
        wipe: bool,
        /// Until it is started again.
        down: Duration,
        /// Who dies.
        victim: usize,
        /// How long after it was told to leave, or was started again.
        after: Duration,
        /// Whether the machine dies too.
        power: bool,
        /// Until the victim is started again.
        victim_down: Duration,
    },
    /// A node leaves in good order and comes back later.
    Leave {
        /// Who.
        slot: usize,
        /// Until it is started again.
        down: Duration,
    },
}

/// What befalls a node that comes back after a forced recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    /// Nothing.
    None,
    /// It dies again so long after it was started, and comes back.
    Dies(Duration),
    /// It is started when the one that went on has come to about its seqno.
    Meets,
}

/// What the plan must know of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// How many nodes there are.
    pub nodes: usize,
    /// Of these, how many run.
    pub running: usize,
    /// Whether all are synced members.
    pub whole: bool,
    /// Whether the node in the last slot has no database.
    pub witness: bool,
}

/// How long those who came back after an outage are left in peace.
const PEACE: (u64, u64) = (17_000, 20_000);

/// Numbers of [`next`]'s dice that stand for a kind of fault, for those who want
/// more of it than of others.
pub mod dice {
    /// [`super::Fault::Wipe`].
    pub const WIPE: u64 = 20;
    /// [`super::Fault::Partition`].
    pub const PARTITION: u64 = 43;
    /// [`super::Fault::ChangeAndCrash`].
    pub const CHANGE_AND_CRASH: u64 = 72;
    /// [`super::Fault::SlowApply`].
    pub const SLOW_APPLY: u64 = 81;
    /// [`super::Fault::Leave`].
    pub const LEAVE: u64 = 95;
}

/// The next fault, and the pause after it. Two of three are of those kinds in
/// `aim` (see [`dice`]), if there are some.
pub fn next(rng: &mut Rng, health: Health, aim: &[u64]) -> (Option<Fault>, Duration) {
    let n = health.nodes;
    let mut pause = rng.ms(100, 1_800);
    let slot = rng.below(n as u64) as usize;
    let thrown = if !aim.is_empty() && rng.chance(667) {
        rng.pick(aim).unwrap_or_default()
    } else {
        rng.below(106)
    };
    let fault = match thrown {
        0..16 => Some(Fault::Crash {
            slots: vec![slot],
            power: rng.chance(500),
            down: vec![rng.ms(50, 5_000)],
        }),
        16..20 => {
            let mut slots: Vec<usize> = (0..n).filter(|_| rng.chance(500)).collect();
            if rng.chance(300) {
                slots = (0..n).collect();
            }
            let down = slots.iter().map(|_| rng.ms(50, 4_000)).collect();
            Some(Fault::Crash {
                slots,
                power: rng.chance(600),
                down,
            })
        }
        20..28 if health.whole && n > 2 => Some(Fault::Wipe {
            slot,
            foreign: rng.chance(300),
            down: rng.ms(50, 3_000),
        }),
        28..39 => Some(Fault::Pause {
            slot,
            for_: rng.ms(50, 4_500),
        }),
        39..41 => Some(Fault::ClockJump {
            slot,
            by: rng.ms(20, 5_000),
        }),
        41..43 => Some(Fault::ClockBack {
            slot,
            by: rng.ms(20, 5_000),
        }),
        43..64 => Some(Fault::Partition {
            cuts: partition(rng, n),
            for_: rng.ms(150, 6_000),
        }),
        64..72 => Some(Fault::Break {
            a: slot,
            b: rng.below(n as u64) as usize,
            lane: rng.pick(&[None, Some(0), Some(1), Some(2)]).flatten(),
        }),
        72..76 if health.whole && n > 3 => {
            let wipe = rng.chance(500);
            let down = rng.ms(50, 2_000);
            Some(Fault::ChangeAndCrash {
                slot,
                wipe,
                down,
                victim: (slot + rng.range(1, n as u64 - 1) as usize) % n,
                after: rng.ms(0, if wipe { 600 } else { 250 }),
                power: rng.chance(500),
                victim_down: rng.ms(50, 3_000),
            })
        }
        76..81 => Some(Fault::SlowDisk {
            slot,
            extra: match rng.ms(20, 400) {
                most if most > Duration::from_millis(320) => most * 25,
                slow => slow,
            },
            for_: rng.ms(300, 4_000),
        }),
        81..85 => Some(Fault::SlowApply {
            slot,
            extra: rng.ms(20, 400),
            for_: rng.ms(300, 4_000),
        }),
        85..89 => Some(Fault::SlowLink {
            from: slot,
            to: rng.below(n as u64) as usize,
            extra: rng.ms(20, 500),
            for_: rng.ms(300, 4_000),
        }),
        89..91 => Some(Fault::FullDisk {
            slot,
            for_: rng.ms(50, 3_000),
        }),
        91..95 => Some(Fault::DiskError {
            slot,
            nth: rng.range(1, 6),
            sync: rng.chance(600),
        }),
        95..100 if health.whole && n > 3 => Some(Fault::Leave {
            slot,
            down: rng.ms(100, 3_000),
        }),
        100..102 if n > 2 => {
            pause = rng.ms(PEACE.0, PEACE.1);
            let mut down: Vec<Duration> = (0..n).map(|_| rng.ms(50, 2_000)).collect();
            let away = rng.range(1, (n as u64 - 1) / 2) as usize;
            for i in 0..away {
                down[(slot + i) % n] = pause + rng.ms(0, 8_000);
            }
            Some(Fault::Outage {
                power: rng.chance(500),
                down,
            })
        }
        102..106 if health.whole && n > 2 => {
            let data = n - usize::from(health.witness);
            let apart = if rng.chance(700) {
                rng.ms(100, 4_000)
            } else {
                Duration::ZERO
            };
            Some(Fault::Force {
                slot: slot % data,
                apart,
                power: rng.chance(500),
                down: (0..n).map(|_| rng.ms(50, 3_000)).collect(),
                victim: (slot % data + 1) % n,
                hurt: match rng.below(10) {
                    0..5 => Hurt::Dies(rng.ms(5, 400)),
                    5..9 => Hurt::Meets,
                    _ => Hurt::None,
                },
            })
        }
        _ => None,
    };
    (fault, pause)
}

/// `one` of `n` is heard and hears nobody, for longer than a cluster may stand still; and the pause after it.
pub fn deafen(one: usize, n: usize) -> (Option<Fault>, Duration) {
    let others = (0..n).filter(|b| *b != one);
    let fault = Fault::Partition {
        cuts: others.map(|b| (b, one, Cut::Unheard)).collect(),
        for_: Duration::from_secs(20),
    };
    (Some(fault), Duration::from_secs(30))
}

/// Cuts between nodes: one cut off, two sides, one direction only, a ring in
/// which everyone sees a majority but not the same one, or some ways at random.
fn partition(rng: &mut Rng, n: usize) -> Vec<(usize, usize, Cut)> {
    let how = rng
        .pick(&[Cut::Closed, Cut::Swallow, Cut::Swallow, Cut::Stall])
        .unwrap_or(Cut::Swallow);
    let mut cuts = Vec::new();
    let mut both = |a: usize, b: usize| {
        cuts.push((a, b, how));
        cuts.push((b, a, how));
    };
    let one = rng.below(n as u64) as usize;
    match rng.below(6) {
        0 => (0..n).filter(|b| *b != one).for_each(|b| both(one, b)),
        1 | 2 => {
            let side: Vec<bool> = (0..n).map(|_| rng.chance(500)).collect();
            for a in 0..n {
                for b in 0..a {
                    if side[a] != side[b] {
                        both(a, b);
                    }
                }
            }
        }
        3 => {
            // Only what it says, or only what it hears.
            let says = rng.chance(500);
            for b in (0..n).filter(|b| *b != one) {
                cuts.push(if says { (one, b, how) } else { (b, one, how) });
            }
        }
        4 => {
            for a in 0..n {
                both(a, (a + n / 2) % n);
            }
        }
        _ => {
            for a in 0..n {
                for b in 0..n {
                    if a != b && rng.chance(300) {
                        cuts.push((a, b, how));
                    }
                }
            }
        }
    }
    cuts.retain(|(a, b, _)| a != b);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_up_and_disks_are_lost_only_while_all_is_well() {
        let mut rng = Rng::new(1, &[]);
        let mut kinds = std::collections::BTreeSet::new();
        for i in 0..2_000 {
            let whole = i % 2 == 0;
            let health = Health {
                nodes: 5,
                running: 5,
                whole,
                witness: true,
            };
            let (fault, pause) = next(&mut rng, health, &[]);
            assert!(pause >= Duration::from_millis(100));
            let Some(fault) = fault else { continue };
            let name = format!("{fault:?}");
            kinds.insert(
                name.split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
            if matches!(fault, Fault::Wipe { .. } | Fault::Leave { .. }) {
                assert!(whole);
            }
            if let Fault::Force { slot, victim, .. } = &fault {
                assert!(whole && *slot != 4, "a witness has nothing to go on with");
                assert_ne!(slot, victim);
            }
            if let Fault::Outage { down, .. } = &fault {
                let away = down.iter().filter(|d| **d >= pause).count();
                assert!((1..=2).contains(&away));
            }
            if let Fault::ChangeAndCrash { slot, victim, .. } = fault {
                assert!(whole && slot != victim);
            }
        }
        assert_eq!(kinds.len(), 16, "{kinds:?}");
    }

    #[test]
    fn what_is_aimed_at_comes_up_more_often() {
        let health = Health {
            nodes: 5,
            running: 5,
            whole: true,
            witness: false,
        };
        let aimed = [
            (dice::WIPE, "Wipe"),
            (dice::PARTITION, "Partition"),
            (dice::CHANGE_AND_CRASH, "ChangeAndCrash"),
            (dice::SLOW_APPLY, "SlowApply"),
            (dice::LEAVE, "Leave"),
        ];
        for (thrown, name) in aimed {
            let mut rng = Rng::new(2, &[]);
            let drawn: Vec<Fault> = (0..300)
                .filter_map(|_| next(&mut rng, health, &[thrown]).0)
                .collect();
            let hits = drawn.iter().filter(|f| format!("{f:?}").starts_with(name));
            assert!(hits.count() > 180, "{name}");
            assert!(drawn.iter().any(|f| !format!("{f:?}").starts_with(name)));
        }
    }
}
