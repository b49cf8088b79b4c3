//! A storage engine that was asked for its position and gave no answer.
//!
//! What keeps one from answering keeps them all at times: full disks, a server whose engine runs
//! already. Then no member has data that is known to be whole, and each would wait for a copy from
//! the others. So such a node's word about its data stays as it is until a donor is there: its log
//! votes meanwhile, and the next start asks the engine again. Only where a donor is heard is the
//! data given up.

use std::sync::atomic::Ordering::Relaxed;

use dromon_writeset::Uuid;

use super::connect::Found;
use super::{Node, Shared};
use crate::cluster::MemberState;
use crate::grastate::STATE_FILE;
use crate::messages::Need;
use dromon_order::Start;

impl Node {
    /// Nobody knows where the data here stands, as the engine did not say so, and why.
    pub(super) fn engine_was_silent(&self, why: &str) {
        // Told to stop, nobody waited for an answer.
        self.engine_silent.store(!self.db.told_to_stop(), Relaxed);
        self.note(&format!(
            "the storage engine does not tell its position: {why}"
        ));
    }

    /// Nobody can give this node a copy, and it does not know what its data is.
    pub(super) fn tell_unsaid(&self) {
        self.warn(&format!(
            "the storage engine did not tell its position (see above), and nobody is there who could give this node a full \
             copy. Until somebody is, its data and its log stay as they are. If all nodes say so (full disks, for example), mend \
             that and start them again as usual, without --wsrep-new-cluster; a server whose engine runs already \
             (wsrep_sst_method=mysqldump) is told its position by --wsrep-start-position=<what mariadbd --wsrep-recover \
             says>. Do not remove {STATE_FILE}, and do not set safe_to_bootstrap"
        ));
    }

    /// Whether the data stays what it is until a donor is there: the own log goes on, and nothing
    /// is erased.
    pub(super) fn may_be_whole(&self, found: &Found) -> bool {
        self.engine_silent.load(Relaxed)
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

    /// Whether this node keeps its data because nobody is there who could give it a copy.
    pub(super) fn waits_for_donor(&self, shared: &Shared, own: &Uuid) -> bool {
        let members = shared.view.as_ref().map_or(&[][..], |v| &v.members);
        let can = |m: &crate::cluster::Member| {
            m.uuid != *own && m.state == MemberState::Synced && m.can_give()
        };
        let donor = members.iter().any(|m| can(m) && self.is_heard(&m.uuid));
        self.engine_silent.load(Relaxed) && !donor
    }
}
