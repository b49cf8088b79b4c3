//! A storage engine that was asked for its position and gave no answer.
//!
//! What keeps one from answering keeps them all at times: full disks, a server whose engine runs
//! already. Then no member has data that is known to be whole, and each would wait for a copy from
//! the others. So such a node's word about its data stays as it is until a donor is there: its log
//! votes meanwhile, and the next start asks the engine again. Only where a donor that it may ask
//! is heard, and is not the source of a large transaction under way, is the data given up.

use std::sync::atomic::Ordering::Relaxed;

use dromon_writeset::Uuid;

use super::connect::Found;
use super::{Node, Shared, lock};
use crate::cluster::Member;
use crate::donor;
use crate::grastate::STATE_FILE;
use crate::messages::Need;
use dromon_order::Start;

/// The command that tells what a storage engine has, of a server that is stopped. With its binary
/// log it could keep a later transaction without an earlier one, and the position would not tell.
pub const ASK_ENGINE: &str = "mariadbd --user=mysql --wsrep-recover --skip-log-bin --disable-log-error --skip-silent-startup";

/// What is told of such an engine where nobody can give a copy.
pub(super) fn unsaid() -> String {
    format!(
        "the storage engine did not tell its position (see above), and nobody can give this node a full copy now. Until \
         somebody can, its data and its log stay as they are. If all nodes say so (full disks, for example), mend that and \
         start them again as usual, without --wsrep-new-cluster; a server whose engine runs already \
         (wsrep_sst_method=mysqldump) is told its position by --wsrep-start-position=<what '{ASK_ENGINE}' says>. Do not \
         remove {STATE_FILE}, and do not set safe_to_bootstrap"
    )
}

impl Node {
    /// Nobody knows where the data here stands, as the engine did not say so, and why.
    pub(super) fn engine_was_silent(&self, why: &str) {
        // Told to stop, nobody waited for an answer.
        self.engine_silent.store(!self.db.told_to_stop(), Relaxed);
        self.note(&format!(
            "the storage engine does not tell its position: {why}"
        ));
    }

    /// Whether the data stays what it is until a donor is there, or, where the server runs, until that can take a copy: the
    /// own log goes on, and nothing is erased.
    pub(super) fn may_be_whole(&self, found: &Found) -> bool {
        (self.engine_silent.load(Relaxed) || self.was_up.load(Relaxed))
            && found.need == Need::Copy
            && matches!(found.start, Start::Resume)
    }

    /// A copy comes, or may come. From here on what lies here counts for nothing, also after a crash.
    pub(super) fn give_data_up(&self) -> Result<(), String> {
        if !self.save_inconsistent() {
            return Err(format!(
                "{STATE_FILE} in {} cannot be written, and must say that the data here awaits a full copy before the \
                 log is given up. Nothing was changed. Make it writable; then start this node again",
                self.settings().base_dir.display()
            ));
        }
        self.engine_silent.store(false, Relaxed);
        // What is noted of it must not be taken for the copy's.
        self.forget_lacking()
    }

    /// Whether this node keeps its data because nobody of `wanted` is heard who could give it a copy
    /// now. Not when it is given one: the donor may begin to write before that is delivered here.
    pub(super) fn waits_for_donor(&self, shared: &Shared, own: &Uuid, wanted: &str) -> bool {
        if !self.engine_silent.load(Relaxed) {
            return false;
        }
        let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
        let Some(joiner) = members.iter().find(|m| m.uuid == *own) else {
            return true;
        };
        let heard = |m: &&Member| m.can_give() && self.is_heard(&m.uuid);
        let chunks = lock(&self.chunks);
        let busy = |m: &Uuid| chunks.is_source(m);
        donor::choose(joiner, wanted, members.iter().filter(heard), busy).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_ask_an_engine_with_its_binary_log() {
        let said = unsaid();
        assert!(said.contains(ASK_ENGINE), "{said}");
        for option in ["--wsrep-recover", "--skip-log-bin"] {
            assert!(ASK_ENGINE.contains(option));
            assert_eq!(said.matches(option).count(), 1, "{said}");
        }
    }
}
