//! Clients' transactions that have left commit order and that their server does not finish, and those that it has
//! undone before.
//!
//! With a binary log a server hands commit order on before that is written. If it cannot be written (EIO, a GTID that
//! `gtid_strict_mode` refuses) the server rolls back what the other nodes have, tells its client of an error, and tells
//! us nothing: it never releases the transaction. What comes behind may well be committed here, so a restart would take
//! this node's position for one that has all before it. It leaves as inconsistent, as soon as one of these shows it:
//!
//! * the thread that has left commit order begins something else,
//! * it waits for a client, or is gone, in two looks with a second between.
//!
//! A server that waits for room on a disk, or for a replica's acknowledgement, sleeps otherwise; a Warning tells.
//!
//! One that rolls back after it heard that certification passed, and before its commit, gives the place on without an
//! error. But then it waits inside commit order for all that is before it, to note its position, and only then: who
//! commits does not. That shows it.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dromon_gates::Seqno;

use super::standing::this_thread;
use super::{Node, lock};
use crate::trx::{Kind, Stage, Trx};

thread_local! {
    /// What this thread has brought through commit order, and has not finished: where, and its number there.
    static LEFT: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
    /// The same of what this thread has brought into commit order for its commit.
    static ENTERED: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// The threads of this process.
const TASKS: &str = "/proc/self/task";

/// Whether a thread among `tasks` waits for words of a client, or is not there any more.
fn is_over(tasks: &str, thread: u32) -> bool {
    let task = Path::new(tasks).join(thread.to_string());
    match std::fs::read_to_string(task.join("wchan")) {
        Ok(place) => is_poll(&place),
        // Some kernels have no word for where a thread sleeps: that alone says nothing of it.
        Err(e) => {
            let gone = || task.try_exists().is_ok_and(|there| !there);
            thread > 0 && e.kind() == ErrorKind::NotFound && gone()
        }
    }
}

/// Of the kernel's word for where a thread sleeps. A server waits for its clients by `poll`; `select` has the same
/// word, but a server that waits for room on a disk does not sleep there (tried).
fn is_poll(place: &str) -> bool {
    place.starts_with("poll_schedule_timeout")
}

impl Node {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// This thread is in commit order with `trx`, which passed certification and is to be committed.
    pub(super) fn client_enters(&self, trx: &Trx) {
        ENTERED.set(Some((self.identity(), trx.id)));
    }

    /// This thread has waited for all up to `seqno`: if it is in commit order right behind that, it has rolled back.
    pub(super) fn look_for_undone_inside(&self, seqno: Seqno) {
        let Some((_, id)) = ENTERED.get().filter(|(node, _)| *node == self.identity()) else {
            return;
        };
        let Some(trx) = self.trxs.get(id) else {
            return;
        };
        let conn = {
            let body = trx.lock();
            if body.stage != Stage::Committing || body.seqno != seqno + 1 {
                return;
            }
            body.conn
        };
        ENTERED.set(None);
        self.leave_inconsistent(&format!(
            "transaction {id} of connection {conn} at {} was rolled back here after it had passed certification. It is \
             committed on the other nodes",
            self.at(seqno + 1)
        ));
    }

    /// This thread hands commit order on for `trx`, which is committed on the other nodes. Answers its number.
    pub(super) fn client_leaves(&self, trx: &Trx) -> u32 {
        LEFT.set(Some((self.identity(), trx.id)));
        this_thread()
    }

    /// Its server has finished it.
    pub(super) fn client_is_done(&self, trx: &Trx) {
        if LEFT.get() == Some((self.identity(), trx.id)) {
            LEFT.set(None);
        }
    }

    /// This thread begins something: what it has brought through commit order before is done, or undone.
    pub(super) fn look_for_undone(&self) {
        let Some((node, id)) = LEFT.get() else {
            return;
        };
        if node != self.identity() {
            return;
        }
        LEFT.set(None);
        if let Some(trx) = self.trxs.get(id) {
            self.is_undone(&trx);
        }
    }

    fn is_undone(&self, trx: &Arc<Trx>) {
        let (conn, seqno) = {
            let body = trx.lock();
            if body.stage != Stage::Left || body.depends_on < 0 || !body.ends() {
                return;
            }
            (body.conn, body.seqno)
        };
        self.leave_inconsistent(&format!(
            "transaction {} of connection {conn} at {} was given up here after it had left commit order (its server \
             could not write it to its binary log: see the lines before). It is committed on the other nodes",
            trx.id,
            self.at(seqno)
        ));
    }

    /// Looks after a client of this node that has left commit order and is not finished: its server waits for a full
    /// disk of its binary log, say, or has undone it.
    pub(super) fn look_for_unfinished(&self) {
        let (released, ordered) = (self.gates.released(), self.gates.last_ordered());
        let now = self.opened_at.elapsed();
        let Some((seqno, tell)) = lock(&self.working).unfinished(released, ordered, now) else {
            return;
        };
        for trx in self.trxs.all(|trx| trx.kind == Kind::Local) {
            // The order waits for this thread.
            let Some((conn, thread)) = trx.try_lock().and_then(|body| {
                (body.stage == Stage::Left && body.seqno == seqno)
                    .then_some((body.conn, body.thread))
            }) else {
                continue;
            };
            // It may have been finished since the lock: so two looks.
            let over = is_over(TASKS, thread);
            let was_over = self.over.swap(if over { seqno } else { -1 }, Relaxed) == seqno;
            if over && was_over {
                self.is_undone(&trx);
            }
            if over || !tell {
                continue;
            }
            // What clients waited for may never come; the server is not worse off with groups.
            self.gates.lowest_is_not_sure();
            self.warn(&format!(
                "connection {conn}, transaction {}, at seqno {seqno} left commit order 10 s ago, and its server has not \
                 finished it since: perhaps the disk of the binary log is full, or a replica does not acknowledge (semi-sync). It is kept on the \
                 other nodes; here nothing behind it counts as committed, reads with wsrep_sync_wait wait, and in time \
                 flow control stops the writers of all nodes. Make room there; if that does not help, kill this server \
                 (SIGKILL), set uuid to 00000000-0000-0000-0000-000000000000 in its grastate.dat, and start it again: it takes \
                 a full copy, as what its server may have rolled back would be missing else",
                trx.id
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn the_kernels_words_for_a_poll() {
        for place in ["poll_schedule_timeout.constprop.0", "poll_schedule_timeout"] {
            assert!(is_poll(place));
        }
        for place in [
            "0",
            "",
            "futex_do_wait",
            "hrtimer_nanosleep",
            "do_epoll_wait",
        ] {
            assert!(!is_poll(place), "{place}");
        }
    }

    #[test]
    fn who_waits_for_a_client_is_known() {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(this_thread());
            poll(&mut [PollFd::new(&server, PollFlags::IN)], None).expect("a socket");
            // As in a wait for a lock.
            let (_held, never) = mpsc::channel::<()>();
            let _ = tell.send(0);
            let _ = never.recv_timeout(Duration::from_secs(3));
            let _ = tell.send(0);
        });
        let number = told.recv().expect("it runs");
        std::thread::sleep(Duration::from_millis(200));
        assert!(is_over(TASKS, number));
        drop(client);
        let _ = told.recv();
        std::thread::sleep(Duration::from_millis(200));
        assert!(!is_over(TASKS, number) && !is_over(TASKS, 0));
        let _ = told.recv();
        thread.join().expect("no panic");
        assert!(is_over(TASKS, number), "it is gone");
    }

    #[test]
    fn who_has_no_word_for_where_it_sleeps_is_not_gone() {
        let tasks = tempfile::tempdir().expect("a directory");
        let at = tasks.path().to_str().expect("words");
        std::fs::create_dir(tasks.path().join("7")).expect("room");
        assert!(!is_over(at, 7));
        assert!(is_over(at, 8));
    }
}
