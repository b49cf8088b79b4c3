//! A log that another build has written: it may have what the database lacks, and this build cannot
//! tell.

use super::{ConnectError, LogSummary, Node, lock};
use crate::cluster::ClusterState;
use crate::messages::Position;
use crate::options::{Durability, Settings};

impl Node {
    /// Why a node with this log must not go on by its database alone: the log is of another build,
    /// and may have more, as the node was not stopped cleanly. `tried`: what came of looking for others.
    pub(super) fn of_other_build(
        &self,
        log: &LogSummary,
        settings: &Settings,
        tried: &str,
    ) -> Option<ConnectError> {
        let theirs = ClusterState::other_format(&log.checkpoint.node)?;
        // One that may have forgotten what it acknowledged is not gone on with by any build.
        let kept = log.durable && settings.durability == Durability::Majority;
        // A witness has no database that could lack anything, and leaves no mark of an orderly stop.
        let lacks = kept && !self.is_witness() && !self.stopped_in_order();
        lacks.then(|| ConnectError::OtherBuild {
            tried: tried.to_owned(),
            theirs,
            ours: ClusterState::FORMAT,
        })
    }

    /// Whether the state file stands as this node wrote it when it stopped cleanly, with all that its log had.
    fn stopped_in_order(&self) -> bool {
        let saved = self.saved();
        let at = Position {
            history: saved.uuid,
            seqno: saved.seqno,
        };
        at.is_defined() && lock(&self.ddl_marks).stopped_whole() == Some(at)
    }
}
