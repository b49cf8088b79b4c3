//! A log that another build has written: it may have what the database lacks, and this build cannot
//! tell.

use super::search::has_others;
use super::{ConnectError, LogSummary, Node, lock};
use crate::cluster::ClusterState;
use crate::ddl_marks::MARKS_FILE;
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
        let lacks = kept && !self.is_witness() && self.stopped_in_order().is_none();
        lacks.then(|| ConnectError::OtherBuild {
            tried: tried.to_owned(),
            theirs,
            ours: ClusterState::FORMAT,
            has_seqno: self.saved().seqno >= 0,
            alone: !has_others(log),
        })
    }

    /// Where this node stopped cleanly, with all that its log had, if the state file stands as it wrote that. (A witness
    /// has no such file: all that came before its leave.)
    pub(super) fn stopped_in_order(&self) -> Option<Position> {
        let saved = self.saved();
        let file = Position {
            history: saved.uuid,
            seqno: saved.seqno,
        };
        let stopped = lock(&self.ddl_marks).stopped_whole();
        stopped.filter(|at| self.is_witness() || *at == file)
    }

    /// The log gets more from here on, on which others may rest: after a crash it is not as the node left it.
    pub(super) fn log_grows(&self) -> Result<(), ConnectError> {
        let noted = lock(&self.ddl_marks).log_grows();
        noted.map_err(|e| {
            ConnectError::Refused(format!(
                "{MARKS_FILE} in {} cannot be written: {e}. It says that the log here has nothing more than the database, \
                 which is over now. Make it writable; then start this node again",
                self.settings().base_dir.display()
            ))
        })
    }
}
