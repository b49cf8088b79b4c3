//! Histories of list-append clients, and what is wrong with them.
//!
//! Each transaction reads whole lists and appends values that nobody else
//! appends. From the lists one can tell who overwrote whom, who saw whom, and so
//! which order the transactions must have had. The method is that of Elle
//! (Kingsbury and Alvaro: "Elle: Inferring Isolation Anomalies from Experimental
//! Observations", VLDB 2020).
//!
//! Pure: no clock, no server; what the clients saw goes in, anomalies come out.

mod check;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use check::check;

/// A list's name.
pub type Key = u64;
/// What is appended; no value is appended twice in a history.
pub type Value = u64;

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Append this value to this list.
    Append(Key, Value),
    /// The list as it was read.
    Read(Key, Vec<Value>),
}

/// What the client knows of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// COMMIT was acknowledged.
    Committed,
    /// It certainly did not commit: refused before COMMIT, or with an error that
    /// says so (1213, 1020).
    Failed,
    /// Lost connection, timeout or error 1180 at COMMIT: it may be there or not.
    Unknown,
}

/// One transaction as its client saw it.
#[derive(Debug, Clone)]
pub struct Txn {
    /// Client; its transactions follow one another.
    pub client: usize,
    /// Node it spoke to.
    pub node: usize,
    /// Before BEGIN was sent, in nanoseconds of one monotonic clock.
    pub invoked: u64,
    /// After the answer to COMMIT came; means nothing for [`Outcome::Unknown`].
    pub completed: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Its steps that were answered, and every append that was sent.
    pub ops: Vec<Op>,
}

/// All lists of one node when everything is over.
#[derive(Debug, Clone)]
pub struct Final {
    /// The node.
    pub node: usize,
    /// Its lists.
    pub lists: BTreeMap<Key, Vec<Value>>,
}

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// An acknowledged append is nowhere.
    LostWrite,
    /// Part of a transaction's appends is there, part is not.
    Torn,
    /// Nodes ended with different lists, or a read is no beginning of the list.
    Divergence,
    /// An append was done twice.
    Duplicate,
    /// A value that nobody appended.
    Unwritten,
    /// An append of a transaction that was reported as failed is visible.
    AbortedRead,
    /// A read ends amid another transaction's appends.
    IntermediateRead,
    /// A transaction does not see its own appends, or sees others' come in.
    Internal,
    /// A cycle of overwriting (write cycle).
    G0,
    /// A cycle of overwriting and seeing (circular information flow).
    G1c,
    /// Read, overwritten by another, and written all the same: a lost update.
    P4,
    /// A cycle with one anti-dependency (read skew).
    GSingle,
    /// A cycle that snapshot isolation forbids, with several anti-dependencies.
    SnapshotCycle,
    /// A client does not see what it saw or did before.
    NonMonotonic,
    /// What was acknowledged before the transaction began is not seen by it.
    StaleRead,
}

impl Anomaly {
    /// Short name, as in the literature where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Self::LostWrite => "lost committed write",
            Self::Torn => "torn transaction",
            Self::Divergence => "divergence",
            Self::Duplicate => "append done twice",
            Self::Unwritten => "value nobody wrote",
            Self::AbortedRead => "G1a aborted write visible",
            Self::IntermediateRead => "G1b intermediate read",
            Self::Internal => "internal inconsistency",
            Self::G0 => "G0 write cycle",
            Self::G1c => "G1c circular information flow",
            Self::P4 => "P4 lost update",
            Self::GSingle => "G-single read skew",
            Self::SnapshotCycle => "SI cycle",
            Self::NonMonotonic => "non-monotonic session",
            Self::StaleRead => "stale read (real time)",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
