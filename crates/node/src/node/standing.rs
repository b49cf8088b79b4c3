//! Clients that an applier may wait for in vain.
//!
//! A server has an applier abort whoever has a lock that it needs, when it asks for it. But who
//! queued for that lock before it may get it later, when somebody else rolls back (for a replay, or
//! as its stream is shelved), and a server tells that one only after its `innodb_lock_wait_timeout`. It
//! comes to its commit, and if it waits there for what lies behind the applier, all stand:
//!
//! ```text
//!   client, at its commit ── waits for ──> its place, a replay, the end of a stream, flow control
//!        ^                                                │ behind
//!        └──────── has a row for ── an applier  <─────────┘
//! ```
//!
//! So where the thread of the applier has slept for a while those clients give way: who has a place
//! runs again there, and who has none is told of a deadlock (error 1213).
//!
//! Who failed certification waits for its place, too, and its client may have a table by `LOCK TABLES`,
//! from which no server takes it. So it is told then, and its place is passed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_gates::Seqno;

use super::{Node, lock};
use crate::trx::{Kind, Stage, Trx};
use crate::working::Work;

/// So long an applier sleeps before those give way who have a place behind it, or wait for a table.
const PATIENCE: Duration = Duration::from_secs(1);
/// And all who wait without a place, or failed: most of them are in nobody's way.
const ALL: Duration = Duration::from_secs(3);
/// And those that are out in chunks: their node commits nothing until they are through again. An engine
/// that writes back its pages may have an applier sleep for some seconds, too.
const IN_CHUNKS: Duration = Duration::from_secs(10);

thread_local! {
    static THREAD: u32 = asked_number();
}

/// The system's number of this thread; 0: not known.
pub(super) fn this_thread() -> u32 {
    THREAD.with(|t| *t)
}

fn asked_number() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").ok();
    let name = link.as_deref().and_then(|l| l.file_name()?.to_str());
    name.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// How often a thread of this process, which sleeps now, has stopped running so far. None: it does not
/// sleep, or is not there, or no system of this kind.
fn runs(thread: u32) -> Option<u64> {
    slept(&std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?)
}

/// The same, of the kernel's words about a thread. One that has a core for itself stops seldom, and one
/// that waits for a disk (`D`) waits for no lock.
fn slept(status: &str) -> Option<u64> {
    let values = status.lines().filter_map(|l| l.split_once(':'));
    let state = values.clone().find(|(name, _)| *name == "State")?.1;
    let counts = values.filter(|(n, _)| n.ends_with("ctxt_switches"));
    let counts = counts.filter_map(|(_, v)| v.trim().parse::<u64>().ok());
    state.trim().starts_with('S').then(|| counts.sum())
}

impl Node {
    /// This thread takes locks for the write set at `seqno`.
    pub(super) fn work_begins(&self, seqno: Seqno) {
        let (thread, statement) = (this_thread(), false);
        lock(&self.working).begins(seqno, Work { thread, statement });
    }

    /// This thread runs the statement at `seqno`.
    pub(super) fn statement_begins(&self, seqno: Seqno) {
        let (thread, statement) = (this_thread(), true);
        lock(&self.working).begins(seqno, Work { thread, statement });
    }

    /// It has them.
    pub(super) fn work_ends(&self, seqno: Seqno) {
        lock(&self.working).ends(seqno);
    }

    /// Has clients give way that an applier may wait for in vain.
    pub(super) fn look_for_cycles(&self) {
        let released = self.gates.released();
        // Not under the lock, which each write set takes: that reads a file.
        let lowest = lock(&self.working).lowest(released);
        let runs = lowest.and_then(|w| runs(w.thread));
        let now = self.opened_at.elapsed();
        let stood = lock(&self.working).stood(released, runs, now);
        let Some((seqno, slept)) = stood.filter(|(_, slept)| *slept >= PATIENCE) else {
            return;
        };
        let mut gone = 0;
        for trx in self.trxs.all(|trx| trx.kind == Kind::Local) {
            gone += usize::from(match lowest.is_some_and(|w| w.statement) {
                false => self.gives_way_behind(&trx, seqno, slept),
                true => failed_behind(&trx, seqno, slept),
            });
        }
        if gone > 0 && lowest.is_some_and(|w| w.statement) {
            self.note_now_and_then(&format!(
                "the statement at seqno {seqno} waits for a lock that a client of this node may have, who failed certification \
                 behind it: such clients are told of a deadlock (error 1213) before their place comes"
            ));
        } else if gone > 0 {
            self.note_now_and_then(&format!(
                "the write set at seqno {seqno} waits for a lock that a client of this node may have, who is at its commit, \
                 or for the storage engine: such clients give way. Who has passed certification commits at its place; others are told of \
                 a deadlock (error 1213), and may try again"
            ));
        }
    }

    /// Has one give way to the applier at `seqno`, which has slept for so long, if it may be in its way.
    fn gives_way_behind(&self, trx: &Trx, seqno: Seqno, slept: Duration) -> bool {
        if failed_behind(trx, seqno, slept) {
            return true;
        }
        // The order waits for this: the next look finds who is busy now.
        let Some(mut body) = trx.try_lock() else {
            return false;
        };
        if body.must_abort || body.refused {
            return false;
        }
        match body.stage {
            Stage::Waiting if slept >= ALL || trx.waits_for_table.load(Relaxed) => {
                body.refused = true;
                trx.waiter.interrupt();
                true
            }
            // The end of one in chunks is still to come.
            Stage::Chunked if slept >= IN_CHUNKS => {
                drop(body);
                self.abort(seqno, trx.id);
                true
            }
            Stage::Certified if body.seqno > seqno => {
                drop(body);
                self.abort(seqno, trx.id);
                true
            }
            _ => false,
        }
    }
}

/// Has one that failed certification behind `seqno` wait for its place no longer. Its rows are free, but not what its client
/// has locked by `LOCK TABLES`: that is in the way until the client hears of the failure. The end of a stream has more to
/// do at its place.
fn failed_behind(trx: &Trx, seqno: Seqno, slept: Duration) -> bool {
    let Some(mut body) = trx.try_lock() else {
        return false;
    };
    let waits = body.stage == Stage::Failed && body.seqno > seqno && !body.refused;
    if slept < ALL || !waits || !body.ends() || body.last_fragment >= 0 {
        return false;
    }
    body.refused = true;
    trx.waiter.interrupt();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_does_not_run() {
        let (tell, told) = std::sync::mpsc::channel();
        let (wake, woken) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let _ = tell.send(this_thread());
            let _ = woken.recv();
            let _ = tell.send(0);
            let _ = woken.recv();
        });
        let thread = told.recv().expect("it runs");
        assert!(thread > 0 && thread != this_thread());
        std::thread::sleep(Duration::from_millis(100));
        let before = runs(thread).expect("it is there");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(runs(thread), Some(before));
        let _ = wake.send(());
        let _ = told.recv();
        std::thread::sleep(Duration::from_millis(100));
        assert!(runs(thread) > Some(before), "it has run");
        drop(wake);
        sleeper.join().expect("no panic");
        assert_eq!(runs(0), None);
    }

    #[test]
    fn who_computes_or_waits_for_a_disk_is_asked_to_give_way_by_nobody() {
        let status = |state: &str| {
            format!(
                "Name:\tmariadbd\nState:\t{state}\nThreads:\t9\nvoluntary_ctxt_switches:\t40\n\
                 nonvoluntary_ctxt_switches:\t2\n"
            )
        };
        assert_eq!(slept(&status("S (sleeping)")), Some(42));
        for state in ["R (running)", "D (disk sleep)"] {
            assert_eq!(slept(&status(state)), None);
        }
    }
}
