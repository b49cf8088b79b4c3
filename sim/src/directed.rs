//! Plans of faults that nothing is drawn for: short ones, made for one sequence
//! of events that chance brings about too seldom.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::faults::Fault;
use crate::world::Config;

/// A plan that takes the place of the random one. It begins when all are synced
/// members; what it does not say is still drawn from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directed {
    /// A member that comes back is given its vote, dies before it hears of it, and
    /// is back while the leader still takes itself for primary.
    VoteUnheardShort,
    /// The same, but it is away until the leader, which needs its answer now, has
    /// lost the majority.
    VoteUnheardLong,
    /// Of two with data one leaves, and with it leadership goes to the witness,
    /// while the log of the other one stands still. That one is well again later;
    /// the first one comes back with an empty disk.
    LastDataStandsStill,
}

/// Something to do when its time has come, after what stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub when: When,
    /// What.
    pub fault: Fault,
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So long after the step before it.
    After(Duration),
    /// A leader's log says that the node in this slot votes, and the log there does
    /// not say so yet.
    GivenVote(usize),
}

impl Directed {
    /// All of them.
    pub const ALL: [Directed; 3] = [
        Directed::VoteUnheardShort,
        Directed::VoteUnheardLong,
        Directed::LastDataStandsStill,
    ];

    /// How many nodes it is for, and whether the last of them is a witness.
    pub fn nodes(self) -> (usize, bool) {
        match self {
            Directed::VoteUnheardShort | Directed::VoteUnheardLong => (2, false),
            Directed::LastDataStandsStill => (3, true),
        }
    }

    /// What is done. Node 0 has founded the cluster.
    pub fn steps(self) -> Vec<Step> {
        let ms = Duration::from_millis;
        match self {
            Directed::VoteUnheardShort => vote_unheard(ms(10)),
            Directed::VoteUnheardLong => vote_unheard(ms(2_000)),
            Directed::LastDataStandsStill => vec![
                Step {
                    when: When::After(ms(1_000)),
                    fault: Fault::SlowDisk {
                        slot: 1,
                        extra: ms(8_000),
                        for_: ms(9_000),
                    },
                },
                Step {
                    when: When::After(ms(300)),
                    fault: Fault::Leave {
                        slot: 0,
                        down: ms(20_000),
                    },
                },
                // Long enough for the log of the other one to be missed.
                Step {
                    when: When::After(ms(6_000)),
                    fault: Fault::Wipe {
                        slot: 0,
                        foreign: false,
                        down: ms(8_000),
                    },
                },
            ],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Directed::VoteUnheardShort => "vote-unheard-short",
            Directed::VoteUnheardLong => "vote-unheard-long",
            Directed::LastDataStandsStill => "last-data-stands-still",
        }
    }
}

impl Config {
    /// A plan instead of random faults, and as many nodes as it is for.
    pub fn directed(seed: u64, plan: Directed) -> Self {
        let (nodes, witness) = plan.nodes();
        Config {
            nodes,
            witness,
            directed: Some(plan),
            ..Config::new(seed)
        }
    }
}

fn vote_unheard(down: Duration) -> Vec<Step> {
    vec![
        Step {
            when: When::After(Duration::from_secs(1)),
            fault: Fault::Leave {
                slot: 1,
                down: Duration::from_millis(100),
            },
        },
        Step {
            when: When::GivenVote(1),
            fault: Fault::Crash {
                slots: vec![1],
                power: false,
                down: vec![down],
            },
        },
    ]
}

impl fmt::Display for Directed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Directed {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Directed::ALL.into_iter().find(|p| p.name() == s);
        found.ok_or_else(|| {
            let names: Vec<&str> = Directed::ALL.iter().map(|p| p.name()).collect();
            format!("there is no plan {s}; the plans are {}", names.join(", "))
        })
    }
}
