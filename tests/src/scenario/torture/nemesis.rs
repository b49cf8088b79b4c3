//! Faults in random order, each undone again.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dromon_sandbox::{Cluster, Start};

use super::{all_back, leader, shuffled, start_down};
use crate::harness::Case;
use crate::rng::Rng;

/// What can be done to a cluster of three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// One node, or two, held by SIGSTOP.
    Pause,
    /// One node, or two, killed.
    Kill,
    /// All killed at once.
    KillAll,
    /// One node cut off, or each from each, or one way only.
    Partition,
    /// All lose power at once.
    PowerCut,
}

impl Fault {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Kill,
        Self::Partition,
        Self::Pause,
        Self::PowerCut,
        Self::KillAll,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::KillAll => "kill-all",
            Self::Partition => "partition",
            Self::PowerCut => "power cut",
        }
    }
}

/// Causes faults and counts them.
pub struct Nemesis {
    faults: &'static [Fault],
    rng: Rng,
    next: usize,
    counts: BTreeMap<Fault, u32>,
    longest_back: Duration,
}

impl Nemesis {
    /// Each of `faults` comes in turn, its details at random.
    pub fn new(faults: &'static [Fault], seed: u64) -> Self {
        Self {
            faults,
            rng: Rng::new(seed),
            next: 0,
            counts: BTreeMap::new(),
            longest_back: Duration::ZERO,
        }
    }

    /// Faults until `end`, with quiet times in between, and at least one of
    /// each kind. Afterwards all nodes are back.
    pub fn rage(&mut self, case: &Case, cluster: &Cluster, end: Instant) -> anyhow::Result<()> {
        let at_least = self.faults.len();
        while Instant::now() < end || self.next < at_least {
            thread::sleep(Duration::from_millis(500 + self.rng.below(2500)));
            let fault = self.faults[self.next % self.faults.len()];
            self.next += 1;
            let what = self
                .cause(fault, case, cluster)
                .with_context(|| format!("fault {}: {}", self.next, fault.name()))?;
            let back =
                all_back(cluster).with_context(|| format!("after fault {}: {what}", self.next))?;
            self.longest_back = self.longest_back.max(back);
            *self.counts.entry(fault).or_default() += 1;
        }
        Ok(())
    }

    fn cause(&mut self, fault: Fault, case: &Case, cluster: &Cluster) -> anyhow::Result<String> {
        ensure!(cluster.running() == 3, "a node had ended by itself");
        let order = shuffled(cluster, &mut self.rng);
        // Who leads is the most interesting, every other time.
        let first = if self.rng.chance(50) {
            leader(cluster, &mut self.rng)?
        } else {
            order[0]
        };
        let second = *order.iter().find(|i| **i != first).expect("three nodes");
        let victims: Vec<usize> = if self.rng.chance(30) {
            vec![first, second]
        } else {
            vec![first]
        };
        let names = |all: &[usize]| -> String {
            let names: Vec<String> = all.iter().map(|i| cluster.node(*i).name()).collect();
            names.join(" and ")
        };
        let hold = Duration::from_millis(500 + self.rng.below(7500));
        Ok(match fault {
            Fault::Pause => {
                for v in &victims {
                    cluster.node(*v).pause()?;
                }
                thread::sleep(hold);
                for v in &victims {
                    cluster.node(*v).resume()?;
                }
                format!("{} held for {:.1} s", names(&victims), hold.as_secs_f64())
            }
            Fault::Kill => {
                for v in &victims {
                    cluster.node(*v).kill()?;
                }
                thread::sleep(hold);
                for v in &victims {
                    cluster.node(*v).start(Start::Join, &[])?;
                    thread::sleep(Duration::from_millis(self.rng.below(800)));
                }
                format!("{} killed", names(&victims))
            }
            Fault::KillAll => {
                cluster.kill_all()?;
                let order = start_down(cluster, &mut self.rng)?;
                format!("all killed, started as {}", order.join(", "))
            }
            Fault::Partition => {
                let network = case.network();
                let what = match self.rng.below(4) {
                    0 => {
                        for node in 0..3 {
                            network.cut_off(node)?;
                        }
                        "each node alone".to_string()
                    }
                    1 => {
                        network.cut_way(first, second)?;
                        format!(
                            "nothing came from {} to {}",
                            names(&[first]),
                            names(&[second])
                        )
                    }
                    2 => {
                        network.cut_way(first, second)?;
                        network.cut_way(second, first)?;
                        format!("nothing between {}", names(&[first, second]))
                    }
                    _ => {
                        network.cut_off(first)?;
                        format!("{} cut off", names(&[first]))
                    }
                };
                thread::sleep(hold);
                network.heal()?;
                format!("{what} for {:.1} s", hold.as_secs_f64())
            }
            Fault::PowerCut => {
                case.disks().power_cut(cluster)?;
                let order = start_down(cluster, &mut self.rng)?;
                format!("power cut, started as {}", order.join(", "))
            }
        })
    }
}

impl std::fmt::Display for Nemesis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list: Vec<String> = self
            .counts
            .iter()
            .map(|(fault, n)| format!("{n} times {}", fault.name()))
            .collect();
        write!(
            f,
            "{}; whole again within {:.1} s at most",
            list.join(", "),
            self.longest_back.as_secs_f64()
        )
    }
}
