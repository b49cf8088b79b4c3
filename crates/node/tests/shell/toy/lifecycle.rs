//! Coming and going: connect, lend threads, leave.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dromon_node::Phase;
use dromon_writeset::Seqno;

use super::{Db, State};
use crate::net::lock;

use super::applier::Lent;

impl Db {
    /// Connects and lends threads: one until the engines run, then the rest.
    pub fn connect(self: &Arc<Self>, url: &str, bootstrap: bool) -> Result<(), String> {
        self.connect_from(url, "", bootstrap)
    }

    /// The same with a list of wanted donors.
    pub fn connect_from(
        self: &Arc<Self>,
        url: &str,
        donors: &str,
        bootstrap: bool,
    ) -> Result<(), String> {
        self.node()
            .connect("toys", url, donors, bootstrap)
            .map_err(|e| e.to_string())?;
        lock(&self.returned).clear();
        let finals = self.lock().finals;
        self.lend();
        let db = self.clone();
        let rest = std::thread::spawn(move || {
            let since = Instant::now();
            let mut inner = db.lock();
            while !inner.initialized || inner.state == State::Disconnected {
                let returned = lock(&db.returned).len();
                if inner.finals > finals || returned > 0 || db.hangs(since) {
                    return;
                }
                inner = db.wait(inner);
            }
            drop(inner);
            for _ in 1..db.applier_count() {
                db.lend();
            }
        });
        lock(&self.threads).push(rest);
        Ok(())
    }

    /// Lends one more thread.
    pub fn lend(self: &Arc<Self>) {
        let db = self.clone();
        let thread = std::thread::spawn(move || {
            let node = db.node().clone();
            let mut lent = Lent { db: db.clone() };
            let outcome = node.receive(&mut lent);
            lock(&db.returned).push(outcome);
            db.changed.notify_all();
        });
        lock(&self.threads).push(thread);
    }

    /// Leaves the cluster; every thread must come back, and the final view
    /// must have come exactly once.
    pub fn disconnect(self: &Arc<Self>) {
        let before = self.lock().finals;
        let brought_up = self.lock().initialized;
        let was = self.state();
        self.node().disconnect();
        self.join_threads();
        let finals = self.lock().finals;
        if brought_up && was != State::Disconnected && finals != before + 1 {
            self.violation(format!("{} final views for one departure", finals - before));
        }
        let mut inner = self.lock();
        inner.ready = false;
        inner.lost_primary = false;
    }

    /// Whether it was told to leave.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.node().phase(), Phase::Leaving | Phase::Closed)
    }

    /// Whether nothing before `seqno` is under way here, if there is a binary log to wait in.
    pub(super) fn is_alone(&self, seqno: Seqno) -> bool {
        let groups =
            !self.report.binary_log.load(Ordering::Relaxed) || self.node().settings().binlog_groups;
        groups
            || self.node().last_committed().seqno + 1 == seqno
            || self.leaves()
            || self.node().phase() == Phase::Inconsistent
    }

    /// Waits for the lent threads.
    pub fn join_threads(&self) {
        loop {
            let threads: Vec<_> = lock(&self.threads).drain(..).collect();
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                if thread.join().is_err() {
                    self.violation("a lent thread panicked");
                }
            }
        }
    }
}
