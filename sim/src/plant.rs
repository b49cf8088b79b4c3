//! Planted faults: each breaks one promise, so that its oracle can be seen to
//! fire.

use std::fmt;
use std::str::FromStr;

use crate::faults::dice;

/// A fault to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The client is told "committed" when its write set is handed to the order.
    AckAtPropose,
    /// Logs call entries durable before they are.
    EarlyDurable,
    /// Logs call a failed write or sync success.
    DeafToDisk,
    /// Copies of a message in the log are delivered like new ones.
    DedupeOff,
    /// One node does not certify UPDATE keys.
    SkipKeyType,
    /// One node leaves out a seqno now and then.
    SkipSeqno,
    /// Read indexes are answered from what the node knows itself.
    LocalRead,
    /// A node that takes itself for the leader answers read indexes without
    /// asking the others whether it still is.
    LeaderRead,
    /// One node's state digest is wrong at every thirtieth comparison.
    AlteredDigest,
    /// Every node cuts its certification index where it has got to itself.
    LocalCut,
    /// Write sets are stamped when they are sent, not when they have read.
    LateStamp,
    /// One node skips a write set now and then when it applies.
    SkipApply,
    /// A node that comes back joins anew on the word of any leader, which costs
    /// its own log; several at once can erase a majority of logs.
    EraseFirst,
    /// A node joins by the log at its seqno, whatever history its data is of.
    JoinUnchecked,
    /// One node never says that it has a complete state.
    NeverJoined,
    /// Who comes back with a log waits until all members that it names run.
    WaitForAll,
    /// Nodes of an incarnation that a forced recovery has ended join by the log,
    /// wherever their data got to.
    ForkUnchecked,
    /// A node joins by the log at its seqno, whatever the checksum of its history
    /// is there.
    ChainUnchecked,
    /// A joiner that is to take a copy does not if its data stands at the seqno
    /// at which it came in.
    CopySkipped,
    /// A joiner that is to take a copy gives its data up only when that begins,
    /// its log before.
    CopyLate,
    /// Who comes back with the log of a member that had no vote yet waits for a
    /// primary component, which may wait for that log.
    LearnerWaits,
    /// Who comes back with the log of a member that had no vote yet joins anew
    /// without asking whether it counts. Logs are cut as by the next one, too:
    /// the one seed known stands on both.
    LearnerErases,
    /// Logs are cut at once behind members that are out of the view, though an
    /// agreement with them is still in force, as it is for long.
    CutBehind,
    /// The note that a database must get a large transaction whole is never made
    /// durable.
    LackingForgotten,
    /// Who comes back after a crash has forgotten the chunks that it had applied.
    ChunksLost,
    /// Databases keep the chunks of a large transaction that is rolled back.
    RollbackIgnored,
    /// The client of a large transaction lets go of its locks when the first
    /// chunk has its place.
    LocksDropped,
    /// A node whose database lacks chunks gives a copy of it.
    LackingDonates,
    /// What is thrown away when its end has its place already, and is not applied,
    /// is not known to be over there.
    EndMissed,
    /// One node asks for no chunks, and nobody does so in its place.
    AskerSilent,
    /// What a server throws away is back after a crash, if that comes soon.
    RowsComeBack,
    /// A witness that leads evicts the last member with data.
    EvictLastData,
    /// One node refuses whatever its clients write.
    RefusesWrites,
    /// One node never answers a read.
    ReadsUnanswered,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 34] = [
        Plant::AckAtPropose,
        Plant::EarlyDurable,
        Plant::DeafToDisk,
        Plant::DedupeOff,
        Plant::SkipKeyType,
        Plant::SkipSeqno,
        Plant::LocalRead,
        Plant::LeaderRead,
        Plant::AlteredDigest,
        Plant::LocalCut,
        Plant::LateStamp,
        Plant::SkipApply,
        Plant::EraseFirst,
        Plant::JoinUnchecked,
        Plant::NeverJoined,
        Plant::WaitForAll,
        Plant::ForkUnchecked,
        Plant::ChainUnchecked,
        Plant::CopySkipped,
        Plant::CopyLate,
        Plant::LearnerWaits,
        Plant::LearnerErases,
        Plant::CutBehind,
        Plant::LackingForgotten,
        Plant::ChunksLost,
        Plant::RollbackIgnored,
        Plant::LocksDropped,
        Plant::LackingDonates,
        Plant::EndMissed,
        Plant::AskerSilent,
        Plant::RowsComeBack,
        Plant::EvictLastData,
        Plant::RefusesWrites,
        Plant::ReadsUnanswered,
    ];

    /// Kinds of fault that show this one, which others would show in one of a
    /// thousand runs. See [`dice`].
    pub fn aim(self) -> &'static [u64] {
        match self {
            Plant::CutBehind => &[dice::CHANGE_AND_CRASH, dice::LEAVE, dice::PARTITION],
            Plant::EndMissed => &[dice::WIPE, dice::SLOW_APPLY],
            _ => &[],
        }
    }

    /// The slot on which faults of a single node are planted.
    pub const SLOT: usize = 1;

    fn name(self) -> &'static str {
        match self {
            Plant::AckAtPropose => "ack-at-propose",
            Plant::EarlyDurable => "early-durable",
            Plant::DeafToDisk => "deaf-to-disk",
            Plant::DedupeOff => "dedupe-off",
            Plant::SkipKeyType => "skip-key-type",
            Plant::SkipSeqno => "skip-seqno",
            Plant::LocalRead => "local-read",
            Plant::LeaderRead => "leader-read",
            Plant::AlteredDigest => "altered-digest",
            Plant::LocalCut => "local-cut",
            Plant::LateStamp => "late-stamp",
            Plant::SkipApply => "skip-apply",
            Plant::EraseFirst => "erase-first",
            Plant::JoinUnchecked => "join-unchecked",
            Plant::NeverJoined => "never-joined",
            Plant::WaitForAll => "wait-for-all",
            Plant::ForkUnchecked => "fork-unchecked",
            Plant::ChainUnchecked => "chain-unchecked",
            Plant::CopySkipped => "copy-skipped",
            Plant::CopyLate => "copy-late",
            Plant::LearnerWaits => "learner-waits",
            Plant::LearnerErases => "learner-erases",
            Plant::CutBehind => "cut-behind",
            Plant::LackingForgotten => "lacking-forgotten",
            Plant::ChunksLost => "chunks-lost",
            Plant::RollbackIgnored => "rollback-ignored",
            Plant::LocksDropped => "locks-dropped",
            Plant::LackingDonates => "lacking-donates",
            Plant::EndMissed => "end-missed",
            Plant::AskerSilent => "asker-silent",
            Plant::RowsComeBack => "rows-come-back",
            Plant::EvictLastData => "evict-last-data",
            Plant::RefusesWrites => "refuses-writes",
            Plant::ReadsUnanswered => "reads-unanswered",
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Plant::ALL.into_iter().find(|p| p.name() == s);
        found.ok_or_else(|| {
            let names: Vec<&str> = Plant::ALL.iter().map(|p| p.name()).collect();
            format!("there is no fault {s}; the faults are {}", names.join(", "))
        })
    }
}
