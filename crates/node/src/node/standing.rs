//! Clients that must not wait any longer, as an applier may wait for them.
//!
//! A server has an applier abort whoever has a lock that it needs, when it asks for it. But who
//! queued for that lock before it may get it later, when somebody else rolls back (a replay, a
//! stream that is shelved), and no server tells that one to give way. It comes to its commit, and
//! if it waits there for the one that rolled back, or for this node to catch up, all three stand:
//!
//! ```text
//!   client, before it is ordered ── waits for ──> a replay, the end of a stream, flow control
//!        ^                                                │ lies behind
//!        └──────── needs a row of ── an applier  <────────┘
//! ```
//!
//! So a client that waits so is refused (a deadlock, error 1213) where the applier has stood for a while.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_gates::Seqno;

use super::{Node, lock};
use crate::trx::{Kind, Stage, Trx};

/// So long an applier stands before those are refused who wait for a table.
const TABLES: Duration = Duration::from_secs(1);
/// And all who wait: most of them are in nobody's way, and it may be a slow applier.
const ALL: Duration = Duration::from_secs(10);

impl Node {
    /// An applier, or a replay, takes locks for the write set at `seqno`.
    pub(super) fn work_begins(&self, seqno: Seqno, bytes: u64) {
        lock(&self.working).begins(seqno, bytes);
    }

    /// It has them.
    pub(super) fn work_ends(&self, seqno: Seqno) {
        lock(&self.working).ends(seqno);
    }

    /// Refuses clients that an applier may wait for in vain.
    pub(super) fn look_for_cycles(&self) {
        let now = self.opened_at.elapsed();
        let stood = lock(&self.working).stood(self.gates.released(), now);
        let Some((seqno, stood)) = stood.filter(|(_, stood)| *stood >= TABLES) else {
            return;
        };
        let mut refused = 0;
        for trx in self.trxs.all(|trx| trx.kind == Kind::Local) {
            refused += usize::from(Self::refuse(&trx, stood >= ALL));
        }
        if refused > 0 {
            self.note_now_and_then(&format!(
                "the write set at seqno {seqno} needs a lock that a client of this node may have, who waits before its commit: \
                 it is told of a deadlock (error 1213), as any that was in another's way, and may try again"
            ));
        }
    }

    /// Refuses one if it waits before it is sent: for a table, or for anything (`all`).
    fn refuse(trx: &Trx, all: bool) -> bool {
        let mut body = trx.lock();
        let due = body.stage == Stage::Waiting && !body.must_abort && !body.refused;
        if !due || !(all || trx.waits_for_table.load(Relaxed)) {
            return false;
        }
        body.refused = true;
        trx.waiter.interrupt();
        true
    }
}
