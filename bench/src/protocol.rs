//! What the measuring process and its nodes say to one another: one line of JSON
//! per message, commands on the node's standard input, reports on its output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::server::OrderSeen;

/// Precedes every report, because a provider may print to the same place.
pub const REPORT_PREFIX: &str = "dromon-bench-report ";

/// What a node is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Report once the node is synced and sees that many members.
    AwaitMembers { members: i32, limit_ms: u64 },
    /// Write for the warm-up and the measured time, then report.
    Go {
        warmup_ms: u64,
        measure_ms: u64,
        limit_ms: u64,
    },
    /// Report once everything up to this seqno is released.
    Drain { seqno: i64, limit_ms: u64 },
    /// Leave the group, unload the provider and end.
    Stop,
}

/// What a node says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// What it begins to do now.
    Phase(String),
    /// The provider is loaded and connected.
    Connected(Provider),
    /// As many members as asked for.
    Members,
    /// The writers have stopped.
    Measured(Box<Measured>),
    /// Everything up to the asked seqno is released.
    Drained(Box<Drained>),
    /// The provider is unloaded.
    Stopped,
    /// It cannot go on.
    Failed(String),
}

/// What the provider says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provider {
    pub name: String,
    pub version: String,
    pub vendor: String,
    /// What its option `dromon.durability` says, if it has one.
    pub durability: Option<String>,
}

/// Counts of one kind of end each, within the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    pub committed: u64,
    pub replayed: u64,
    pub certification_failed: u64,
    pub aborted: u64,
}

impl Ends {
    /// Adds another count.
    pub fn add(&mut self, other: &Ends) {
        self.committed += other.committed;
        self.replayed += other.replayed;
        self.certification_failed += other.certification_failed;
        self.aborted += other.aborted;
    }

    /// Transactions that committed, at once or by replay.
    pub fn successful(&self) -> u64 {
        self.committed + self.replayed
    }

    /// Transactions that did not.
    pub fn unsuccessful(&self) -> u64 {
        self.certification_failed + self.aborted
    }
}

/// Time of the threads of one name, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// On a core.
    pub cpu_ns: u64,
    /// Ready, but other threads had the cores.
    pub queued_ns: u64,
}

/// The measured time of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Its true length, nanoseconds.
    pub window_ns: u64,
    /// User and system time of the whole process in it, nanoseconds.
    pub cpu_ns: u64,
    /// Context switches of the whole process in it.
    pub switches: u64,
    /// The same CPU time by the threads' names, numbers at their ends left out.
    pub threads: BTreeMap<String, ThreadTime>,
    pub ends: Ends,
    /// Latencies of committed transactions: (nanoseconds, count), ascending.
    pub latencies: Vec<(u64, u64)>,
    /// The last seqno it saw in the commit order; none of its own is above.
    pub last_seqno: i64,
    /// The provider's status variables at the end.
    pub stats: BTreeMap<String, String>,
}

/// A node after draining.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drained {
    pub seen: OrderSeen,
    /// Violations of the contract, and the first few of them.
    pub violation_count: u64,
    pub violations: Vec<String>,
    /// Peak resident memory of the process, bytes.
    pub rss_max_bytes: u64,
}
