//! Pauses: FLUSH TABLES WITH READ LOCK, BACKUP STAGE, a donor's, a statement with `wsrep_OSU_method=RSU`. Which of
//! them it is, the server does not say.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::{Seqno, Waiter};

use super::chunks::Whose;
use super::{Node, Phase, lock};
use crate::messages::Position;

/// How long a pause waits until no large transaction is in its way: one that is set aside, which a copy would lack,
/// or one that keeps locks on its tables, for which a statement would wait. Short, as clients may be stopped already.
const WHOLE_PATIENCE: Duration = Duration::from_secs(3);
/// How often it looks.
const WHOLE_LOOK: Duration = Duration::from_millis(100);

impl Node {
    /// Stops the flow; answers the position at which everything is finished.
    pub fn pause(&self) -> Option<Seqno> {
        let waiter = Node::waiter();
        let history = self.history();
        let deadline = Instant::now() + WHOLE_PATIENCE;
        // Within another pause nothing moves.
        let moves = self.gates.paused_at().is_none();
        let (position, holder) = loop {
            if moves {
                self.wait_tables_free(deadline);
            }
            let at = self.gates.pause(&waiter).ok()?;
            let position = Position { history, seqno: at };
            // A copy made now would be refused. What is set aside mostly ends soon.
            let copies = self.shared().donation_open;
            let lacks = copies && self.lacks_chunks(position);
            let holder = self.keeps_tables(at).filter(|_| moves);
            if !(lacks || holder.is_some()) || Instant::now() >= deadline {
                break (position, holder);
            }
            self.gates.resume();
            self.wait_a_moment(at + 1, &waiter);
        };
        let at = position.seqno;
        if at < 0 {
            // The server takes that for a failure, and does not end it.
            self.gates.resume();
            return None;
        }
        let gives = self.shared().donation_open;
        self.copy_pause.store(gives, Relaxed);
        if let Some((source, trx, conn)) = holder {
            self.note(&format!(
                "this server is paused at seqno {at} amid a large transaction: {}. It keeps metadata locks on its tables and \
                 goes on when the pause ends. If the pause is for a statement with wsrep_OSU_method=RSU on one of these \
                 tables, each waits for the other now: end that statement (KILL) and try it again later",
                self.whose_transaction(source, trx, conn)
            ));
        }
        if position.is_defined() && self.tables_follow() {
            self.save_position(position);
        }
        Some(at)
    }

    /// Whether the database stands where the gates do. Before it is brought up, and while it joins again, these stand at
    /// a checkpoint, and a copy may be on its way, so that what lies here is nothing.
    fn tables_follow(&self) -> bool {
        self.has_tables() && self.phase() != Phase::Rejoining
    }

    /// Whether there is a database that follows, or will again.
    fn has_tables(&self) -> bool {
        let shared = self.shared();
        shared.phase != Phase::Closed && shared.brought_up
    }

    /// Waits, until `deadline` at most, until a pause would leave no metadata locks behind.
    fn wait_tables_free(&self, deadline: Instant) {
        // Without a pause meanwhile: each one has all appliers finish what they have.
        while Instant::now() < deadline && self.keeps_tables(self.gates.last_ordered()).is_some() {
            std::thread::sleep(WHOLE_LOOK);
        }
    }

    fn wait_a_moment(&self, seqno: Seqno, waiter: &Arc<Waiter>) {
        let by = Some(Instant::now() + WHOLE_LOOK);
        let _ = self.gates.wait_released(seqno, waiter, false, by);
    }

    /// Whose metadata locks would stay through a pause at `at`. A copy does not mind, and while one is made here
    /// nobody is told: which pause is the copy's, the server does not say.
    fn keeps_tables(&self, at: Seqno) -> Option<Whose> {
        let minds = {
            let shared = self.shared();
            shared.phase == Phase::Joined && !shared.donation_open
        };
        let history = self.history();
        let keeps = || lock(&self.chunks).keeps_tables(history, at);
        minds.then(keeps).flatten()
    }

    /// Ends the pause.
    pub fn resume(&self) {
        // Also where it joins again by now: nobody else takes back what the pause wrote.
        if self.has_tables() {
            self.save_running();
        }
        self.copy_pause.store(false, Relaxed);
        self.gates.resume();
    }
}
