//! What a lent thread does: write sets, views, donations.

use std::collections::btree_map::Entry as BTreeEntry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dromon_node::cluster::chunked_id_of;
use dromon_node::{Applied, Applier, Meta, Outcome, Phase, Position, Trx, View};
use dromon_writeset::{Flags, Seqno, Uuid};

use super::events;
use super::holds::Point;
use super::{Change, Copying, Db, Ddl, Entry, Inner, Owner, Stage, State, StreamId, To};
use crate::net::lock;

/// What a chunk fails with whose transaction is thrown away amid it.
const KILLED: &str = "Query execution was interrupted, Error_code: 1317;\0";

/// One applier thread.
pub(super) struct Lent {
    pub db: Arc<Db>,
}

impl Applier for Lent {
    fn connected(&mut self, view: &View) -> bool {
        self.db.holds.pass(Point::Connecting);
        let mut inner = self.db.lock();
        let id = view
            .own
            .and_then(|i| view.members.get(i))
            .map(|member| member.uuid);
        if id.is_none() {
            self.db
                .violation(format!("connected to a view without this node: {view:?}"));
        }
        let fits = matches!(inner.state, State::Disconnected | State::Connected);
        if !fits || (inner.own.is_some() && inner.own != id) {
            self.db.violation(format!(
                "connected as {id:?} in state {:?}, known as {:?}",
                inner.state, inner.own
            ));
        }
        inner.state = State::Connected;
        inner.own = id;
        inner.connected_at = view.position.seqno;
        true
    }

    fn state_request(&mut self) -> Option<Vec<u8>> {
        let mut inner = self.db.lock();
        if inner.initialized {
            return Some(Vec::new()); // a running server cannot take a copy
        }
        self.db
            .expect_state(&inner, &[State::Connected], "asked for a copy");
        inner.state = State::Joiner;
        Some(format!("toy\0{}\0", self.db.addr).into_bytes())
    }

    fn view(&mut self, view: &View) -> bool {
        if view.primary {
            self.db.holds.pass(Point::Viewing);
            if self.db.refuses_views.load(Ordering::Relaxed) {
                return false;
            }
        }
        self.db.view(view);
        true
    }

    fn apply(&mut self, trx: &Arc<Trx>, flags: Flags, payload: &[u8], meta: &Meta) -> Applied {
        let db = &self.db;
        let seqno = meta.position.seqno;
        let ok = if seqno < 0 {
            db.shelve(flags, payload, meta)
        } else {
            let released = db.node().last_committed().seqno;
            if released < meta.depends_on {
                db.violation(format!(
                    "seqno {seqno} depends on {}, but only {released} is finished",
                    meta.depends_on
                ));
            }
            db.lock().applying.insert(seqno);
            db.holds.pass(Point::ApplyStart);
            if flags.ends() && !flags.starts() {
                db.holds.pass(Point::EndStart);
            }
            db.apply(trx, flags, payload, meta)
        };
        let mut inner = db.lock();
        inner.applying.remove(&seqno);
        let exit = inner.spare_appliers > 0;
        if exit {
            inner.spare_appliers -= 1;
        }
        Applied { ok, exit }
    }

    fn donate(&mut self, request: &[u8], position: Position, bypass: bool) -> bool {
        let db = &self.db;
        let addr = String::from_utf8_lossy(request);
        let addr = addr.trim_start_matches("toy\0").trim_end_matches('\0');
        let mut inner = db.lock();
        db.expect_state(
            &inner,
            &[State::Joined, State::Synced],
            "asked for a donation",
        );
        let at = inner.reached();
        if !bypass && (at.history != position.history || at.seqno < position.seqno) {
            db.violation(format!(
                "asked to donate {position}, but the engine stands at {at}"
            ));
        }
        if bypass {
            inner.words += 1;
        } else {
            inner.donations += 1;
        }
        let joiner = lock(&db.others)
            .iter()
            .rev()
            .find(|d| d.addr == addr)
            .cloned();
        let Some(joiner) = joiner else {
            db.violation(format!("asked to donate to {addr}, whom nobody knows"));
            return false;
        };
        inner.state = State::Donor;
        let copying = inner.copy;
        let word = inner.word;
        drop(inner);
        let donor = db.clone();
        if copying == Copying::DonorStays && !bypass {
            donor.copies_within(&joiner, position);
            return true;
        }
        std::thread::spawn(move || {
            if copying == Copying::DonorFails {
                donor.donor_done();
                donor.node().transfer_sent(Position::UNDEFINED, -255);
            } else if bypass {
                donor.holds.pass(Point::DonorPaused);
                joiner.hear(word, position);
                donor.donor_done();
                donor.node().transfer_sent(position, 0);
            } else if copying == Copying::DonorGoesOn {
                donor.holds.pass(Point::DonorCopies);
                let disk = donor.disk();
                joiner.take_copy(disk);
                donor.donor_done();
                donor.node().transfer_sent(position, 0);
            } else {
                donor.give_copy(&joiner);
            }
        });
        true
    }

    fn synced(&mut self) {
        let mut inner = self.db.lock();
        self.db.expect_state(
            &inner,
            &[
                State::Connected,
                State::Initialized,
                State::Joined,
                State::Synced,
            ],
            "told that it is synced",
        );
        inner.state = State::Synced;
        inner.ready = true;
        inner.synced += 1;
        drop(inner);
        self.db.changed.notify_all();
        self.db.retry_rollbacks();
    }

    fn give_up(&mut self) {
        let left = self.db.node().phase();
        if !matches!(left, Phase::Joining | Phase::Inconsistent) {
            self.db.violation(format!("gave up a copy as {left:?}"));
        }
        self.db.lock().gave_up += 1;
    }
}

impl Db {
    fn expect_state(&self, inner: &Inner, allowed: &[State], what: &str) {
        if !allowed.contains(&inner.state) {
            self.violation(format!("{what} in state {:?}", inner.state));
        }
    }

    fn donor_done(&self) {
        let mut inner = self.lock();
        if inner.state == State::Donor {
            inner.state = State::Joined;
        }
    }

    /// Copies everything while the node waits for it: what it reads first and last must fit.
    fn copies_within(self: &Arc<Self>, joiner: &Arc<Db>, position: Position) {
        let disk = self.disk();
        self.holds.pass(Point::DonorCopies);
        let now = self.disk();
        if now.rows != disk.rows || now.position != disk.position {
            self.violation(format!(
                "the copy at {position} is torn: {} before, {} now",
                disk.position, now.position
            ));
        }
        joiner.take_copy(disk);
        self.donor_done();
        self.node().transfer_sent(position, 0);
    }

    /// Copies everything at one position, as a server does behind its lock.
    fn give_copy(self: &Arc<Self>, joiner: &Arc<Db>) {
        self.holds.pass(Point::DonorCopies);
        let Some(at) = self.node().pause() else {
            self.donor_done();
            self.node().transfer_sent(Position::UNDEFINED, -255);
            return;
        };
        let (mut disk, reached) = {
            let inner = self.lock();
            (inner.disk.clone(), inner.reached())
        };
        // A fragment behind the pause may give its place up meanwhile.
        if disk.position.seqno > at || reached.seqno < at {
            self.violation(format!(
                "paused at {at}, but the engine stands at {} (or {reached})",
                disk.position
            ));
        }
        self.holds.pass(Point::DonorPaused);
        let moved = self.disk().rows != disk.rows || self.position() != disk.position;
        if moved {
            self.violation(format!("rows changed during the pause at {at}"));
        }
        // A server asks its own state whether it has paused the flow for its copy.
        self.expect_state(
            &self.lock(),
            &[State::Donor, State::Disconnected],
            "the lock for a copy is given back, and the flow stays paused,",
        );
        self.node().resume();
        // The word of the pause, unless the engine is further.
        disk.position.seqno = disk.position.seqno.max(at);
        let position = disk.position;
        joiner.take_copy(disk);
        self.donor_done();
        let sent = self.node().transfer_sent(position, 0);
        if sent != Outcome::Ok {
            self.report
                .line(&self.name, &format!("transfer_sent answered {sent:?}"));
        }
    }

    fn take_copy(&self, disk: super::Disk) {
        let position = disk.position;
        {
            let mut inner = self.lock();
            if inner.state != State::Joiner {
                return; // it has given up
            }
            inner.disk = disk;
            inner.shelved.clear();
            inner.journal.clear();
            inner.initialized = true;
            inner.state = State::Initialized;
            recover_streaming(&mut inner);
        }
        self.changed.notify_all();
        let received = self.node().transfer_received(position, 0);
        if received != Outcome::Ok {
            self.report.line(
                &self.name,
                &format!("transfer_received answered {received:?}"),
            );
        }
    }

    /// The donor's script says what it takes for the word, and the position that
    /// it was told; the engines start from what lies on the own disk.
    fn hear(&self, word: usize, position: Position) {
        let fails = {
            let mut inner = self.lock();
            if inner.state != State::Joiner {
                return; // it has given up
            }
            let at = inner.disk.position;
            if at != position {
                self.violation(format!("told that it stands at {position}; it is {at}"));
            }
            let fails = inner.copy == Copying::JoinerFails;
            if !fails {
                inner.word = word;
                inner.initialized = true;
                inner.state = State::Initialized;
                recover_streaming(&mut inner);
            }
            fails
        };
        self.changed.notify_all();
        if fails {
            self.node().transfer_received(Position::UNDEFINED, -32);
        } else {
            let asked = self.node().last_committed();
            if asked != position {
                self.violation(format!("the node says {asked} to engines at {position}"));
            }
            self.node().transfer_received(position, 0);
        }
    }

    fn view(&self, view: &View) {
        let committed = self.node().last_committed();
        let mut inner = self.lock();
        inner.views.push(view.clone());
        // A lost primary component is told at once, and so is the end of a node
        // whose data is worth nothing; all else waits its turn.
        let at_once = !view.primary
            && (!view.members.is_empty()
                || self.node().phase() == Phase::Inconsistent
                || self.leaves_early.load(Ordering::Relaxed));
        if !at_once && !inner.applying.is_empty() {
            let what = format!("{view:?} while {:?} are applied", inner.applying);
            self.violation(what);
        }
        if !at_once && view.members.is_empty() && !inner.streams_at_work.is_empty() {
            // It lets go of all of them.
            let what = format!("{view:?} while {:?} are worked on", inner.streams_at_work);
            self.violation(what);
        }
        if view.primary {
            self.primary_view(&mut inner, view, committed);
        } else if view.members.is_empty() {
            inner.finals += 1;
            inner.recovered = false;
            inner.state = State::Disconnected;
            inner.ready = false;
            inner.own = None;
            inner.free_if(|o| matches!(o, Owner::Streaming(..)));
        } else {
            if inner.state == State::Joiner {
                self.violation("a non-primary view while a copy is on its way");
            }
            inner.state = State::Connected;
            inner.ready = false;
            inner.lost_primary = true;
        }
        drop(inner);
        self.changed.notify_all();
    }

    fn primary_view(&self, inner: &mut Inner, view: &View, committed: Position) {
        let (seqno, history) = (view.position.seqno, view.position.history);
        if committed.seqno != seqno - 1 || committed.history != history {
            self.violation(format!(
                "the node says {committed} in the view at {history}:{seqno}"
            ));
        }
        let members: Vec<Uuid> = view.members.iter().map(|m| m.uuid).collect();
        if !members.is_sorted() {
            self.violation(format!("members out of order in {view:?}"));
        }
        self.settle_streaming(inner, &members, seqno);
        let entry = Entry::View(view.number, members);
        let at = inner.disk.position;
        if at.history.is_nil() || at.history != history {
            inner.disk.position = view.position;
            inner.journal.insert(seqno, entry);
        } else if inner.state == State::Connected
            && seqno < inner.connected_at
            && view.own.is_some()
        {
            // The view that starts the engines of a node that continues: a
            // place that was taken before, by something else. What a node
            // passed without its engine comes to no position of it.
            if at.seqno > seqno {
                self.violation(format!("{at} continues with {view:?}"));
            }
            inner.disk.position = view.position;
        } else if let Err(why) = inner.advance(history, seqno, entry) {
            self.violation(why);
        }
        inner.lost_primary = false;
        inner.last_primary = Some(view.clone());
        inner.initialized = true;
        if inner.state == State::Connected {
            recover_streaming(inner);
        }
        let joins = !matches!(inner.state, State::Synced | State::Donor | State::Joined);
        if joins && seqno >= inner.connected_at {
            inner.state = State::Joined;
        } else if inner.state == State::Connected {
            inner.state = State::Initialized;
        }
    }

    /// What becomes of unfinished streaming transactions at a primary view
    /// (contract B.6).
    fn settle_streaming(&self, inner: &mut Inner, members: &[Uuid], seqno: Seqno) {
        let same = inner.last_primary.as_ref().is_some_and(|last| {
            last.members
                .iter()
                .map(|m| m.uuid)
                .eq(members.iter().copied())
        });
        if same && !inner.lost_primary && inner.state != State::Connected {
            self.violation("two primary views with the same members in a row");
        }
        let gone: Vec<StreamId> = inner
            .disk
            .fragments
            .keys()
            .filter(|(source, _)| same || !members.contains(source))
            .copied()
            .collect();
        for (source, id) in gone {
            if let Some(at) = inner.streams_at_work.get(&(source, id)) {
                self.violation(format!("a view ends {id} of {source}, on which {at} works"));
            }
            inner.disk.fragments.remove(&(source, id));
            inner.free(Owner::Streaming(source, id));
        }
        let own_gone = inner.own.is_some_and(|own| same || !members.contains(&own));
        if own_gone {
            let streaming: Vec<u64> = inner
                .locals
                .iter()
                .filter(|(_, l)| l.streaming)
                .map(|(id, _)| *id)
                .collect();
            for id in streaming {
                self.drop_streaming_client(inner, id, seqno);
            }
        }
    }

    /// Runs an ordered event: for an applier, or as the replay of a client's
    /// transaction. Answers whether the node may go on.
    pub(super) fn apply(&self, trx: &Arc<Trx>, flags: Flags, data: &[u8], meta: &Meta) -> bool {
        let seqno = meta.position.seqno;
        let id = (meta.source, meta.trx_id);
        if flags.is_toi() {
            return self.apply_ddl(trx, data, meta);
        }
        let dummy = flags.is_rollback();
        if dummy {
            // A failed write set, or a rollback: of whatever is here. What begins and
            // ends here has nothing here.
            let rolls_back = !flags.starts();
            if rolls_back {
                self.works_on(id, seqno);
            }
            let ok = self.in_order(trx, meta, |inner| {
                if rolls_back {
                    inner.adopted.remove(&id);
                }
                if rolls_back && inner.disk.fragments.remove(&id).is_some() {
                    let owner = Owner::Streaming(id.0, id.1);
                    inner.free(owner);
                }
                if flags.pa_unsafe() && !flags.ends() {
                    Entry::Rollback(id.0, id.1)
                } else {
                    Entry::Dummy(id.0, id.1)
                }
            });
            if rolls_back {
                self.worked_on(id);
            }
            return ok;
        }
        if flags.ends() && !flags.starts() {
            return self.apply_commit(trx, data, meta, id);
        }
        let changes = match events::decode(data) {
            Ok(changes) => changes,
            Err(why) => {
                let bytes = data.len();
                self.violation(format!("seqno {seqno}: {bytes} bytes are no rows: {why}"));
                return false;
            }
        };
        let fragment = !flags.ends();
        let streaming = Owner::Streaming(id.0, id.1);
        let (open, amid) = {
            let inner = self.lock();
            let open = inner.holds(streaming) || inner.disk.fragments.contains_key(&id);
            // The node looks whether it lacks this one when all that it depends on is finished.
            let thrown = inner.thrown.get(&id);
            (open, thrown.is_some_and(|at| meta.depends_on <= *at))
        };
        let owner = if fragment {
            streaming
        } else {
            Owner::Ordered(seqno)
        };
        if fragment && !flags.starts() && !open && !amid {
            self.violation(format!(
                "seqno {seqno} continues {id:?}, which is not open here"
            ));
        }
        if flags.starts() && open {
            self.violation(format!(
                "seqno {seqno} begins {id:?} ({flags:?}), which is open here"
            ));
        }
        self.goes_on(id, seqno);
        if fragment {
            self.works_on(id, seqno);
        }
        for change in &changes {
            self.pass_neighbours(owner, seqno, change.key);
            self.lock_ordered(owner, seqno, change);
        }
        let error = {
            let inner = self.lock();
            let failing = changes.iter().find_map(|c| inner.fails.get(&c.key));
            failing.cloned()
        };
        let ok = self.in_order_or_fail(trx, meta, |inner| {
            if fragment && inner.thrown.contains_key(&id) {
                // What it took since then is free as well.
                inner.free(owner);
                (Entry::Fragment(id.0, id.1), Some(KILLED.to_owned()))
            } else if fragment {
                let log = inner.disk.fragments.entry(id).or_default();
                log.extend_from_slice(&changes);
                (Entry::Fragment(id.0, id.1), error)
            } else {
                if error.is_none() {
                    inner.disk.install(&changes);
                }
                (Entry::Rows(id.0, id.1), error)
            }
        });
        if fragment {
            self.worked_on(id);
        } else {
            self.unlock_owner(owner);
        }
        ok
    }

    /// Nobody else works on a stream that an applier works on.
    fn works_on(&self, id: StreamId, seqno: Seqno) {
        let before = self.lock().streams_at_work.insert(id, seqno);
        if let Some(before) = before {
            self.violation(format!("{before} and {seqno} both work on stream {id:?}"));
        }
    }

    /// What took a row of a stream knew that this is over.
    fn goes_on(&self, id: StreamId, seqno: Seqno) {
        if self.lock().must_end.contains(&id) {
            self.violation(format!(
                "seqno {seqno} goes on with {id:?}, of which another one needed a row: a dependency was missing"
            ));
        }
    }

    fn worked_on(&self, id: StreamId) {
        self.lock().streams_at_work.remove(&id);
    }

    /// Rolls back what it has of a stream of another node, without a place: the rows are
    /// free at once, then the fragments leave the streaming log. The position stays.
    fn shelve(&self, flags: Flags, data: &[u8], meta: &Meta) -> bool {
        let id = (meta.source, meta.trx_id);
        let rollback = flags == Flags::ROLLBACK | Flags::PA_UNSAFE && data.is_empty();
        let whose = (meta.conn_id, meta.depends_on);
        if !rollback || whose != (u64::MAX, -1) {
            self.violation(format!(
                "{flags:?} with {} bytes and without a place: {meta:?}",
                data.len()
            ));
            return false;
        }
        self.works_on(id, -1);
        self.holds.pass(Point::RollsBack);
        {
            let mut inner = self.lock();
            let open = inner.disk.fragments.contains_key(&id);
            // A client that was let go without the majority may find its fragment in
            // the order later: that is applied, and shelved, as another node's.
            let mut own = inner.locals.get(&id.1).into_iter();
            let lives = own.any(|l| l.streaming && l.stage != Stage::Aborted);
            if inner.own == Some(id.0) && lives {
                self.violation(format!("its own client's stream {id:?} is shelved"));
            }
            if open && !inner.recovered {
                // A server knows nothing of it before that, and much of it afterwards.
                self.violation(format!("stream {id:?} is shelved before it is there"));
            }
            if !inner.ddl.is_empty() {
                let what = format!("stream {id:?} is shelved beside a statement");
                self.violation(what);
            }
            inner.shelved.insert(id);
            inner.adopted.remove(&id);
            let owner = Owner::Streaming(id.0, id.1);
            inner.free(owner);
        }
        self.changed.notify_all();
        self.holds.pass(Point::RolledBack);
        {
            let mut inner = self.lock();
            inner.disk.fragments.remove(&id);
            inner.streams_at_work.remove(&id);
        }
        true
    }

    /// The end of a streaming transaction.
    fn apply_commit(&self, trx: &Arc<Trx>, data: &[u8], meta: &Meta, id: StreamId) -> bool {
        let seqno = meta.position.seqno;
        let rest = match events::decode(data) {
            Ok(rest) => rest,
            Err(why) => {
                self.violation(format!("the rest at seqno {seqno} is no rows: {why}"));
                return false;
            }
        };
        let mut changes: Vec<Change> = {
            let inner = self.lock();
            inner.disk.fragments.get(&id).cloned().unwrap_or_default()
        };
        if changes.is_empty() {
            self.violation(format!(
                "seqno {seqno} commits {id:?}, which is not open here"
            ));
        }
        self.goes_on(id, seqno);
        self.works_on(id, seqno);
        let owner = Owner::Streaming(id.0, id.1);
        for change in &rest {
            self.pass_neighbours(owner, seqno, change.key);
        }
        // What its client did here was taken back, and is in none of the appliers' hands.
        if self.lock().adopted.remove(&id) {
            changes.clear();
        }
        changes.extend(rest);
        for change in &changes {
            self.lock_ordered(owner, seqno, change);
        }
        let ok = self.in_order(trx, meta, |inner| {
            inner.disk.fragments.remove(&id);
            inner.disk.install(&changes);
            Entry::Commit(id.0, id.1)
        });
        self.worked_on(id);
        self.unlock_owner(owner);
        ok
    }

    fn apply_ddl(&self, trx: &Arc<Trx>, data: &[u8], meta: &Meta) -> bool {
        let seqno = meta.position.seqno;
        let Ok(ddl) = postcard::from_bytes(data) else {
            self.violation(format!("seqno {seqno}: no statement in it"));
            return false;
        };
        if meta.depends_on != seqno - 1 {
            self.violation(format!(
                "the statement at {seqno} depends on {} only",
                meta.depends_on
            ));
        }
        if !self.enter(trx, seqno) {
            return false;
        }
        let error = self.run_ddl(&ddl, meta);
        self.leave(trx, seqno, error.as_deref())
    }

    /// Runs a statement inside commit order.
    pub(super) fn run_ddl(&self, ddl: &Ddl, meta: &Meta) -> Option<String> {
        let seqno = meta.position.seqno;
        self.begin_section(seqno);
        self.lock_table(ddl.table(), seqno);
        let error = {
            let mut inner = self.lock();
            if let Err(why) = inner.advance(meta.position.history, seqno, Entry::Ddl(meta.source)) {
                self.violation(why);
            }
            match ddl {
                Ddl::Add { table, n } => {
                    for (key, value) in inner.disk.rows.iter_mut() {
                        if key.table == *table {
                            *value += n;
                        }
                    }
                    None
                }
                Ddl::Truncate { table } => {
                    inner.disk.rows.retain(|key, _| key.table != *table);
                    None
                }
                Ddl::Create { key } => match inner.disk.rows.entry(*key) {
                    BTreeEntry::Occupied(_) => Some(format!("{key:?} exists")),
                    BTreeEntry::Vacant(place) => {
                        place.insert(1);
                        None
                    }
                },
                Ddl::Fail { nodes, text, .. } => (nodes & (1 << self.n) != 0).then(|| text.clone()),
            }
        };
        self.holds.pass(Point::DdlRan);
        self.unlock_table(ddl.table());
        self.end_section();
        error
    }

    /// Waits for the turn of an event, runs `install` in it, hands on.
    fn in_order(
        &self,
        trx: &Arc<Trx>,
        meta: &Meta,
        install: impl FnOnce(&mut Inner) -> Entry,
    ) -> bool {
        self.in_order_or_fail(trx, meta, |inner| (install(inner), None))
    }

    /// The same, and `install` says what failed.
    fn in_order_or_fail(
        &self,
        trx: &Arc<Trx>,
        meta: &Meta,
        install: impl FnOnce(&mut Inner) -> (Entry, Option<String>),
    ) -> bool {
        let seqno = meta.position.seqno;
        self.holds.pass(Point::ApplyLocked);
        if !self.enter(trx, seqno) {
            return false;
        }
        self.begin_section(seqno);
        let error = {
            let mut inner = self.lock();
            let (entry, error) = install(&mut inner);
            if let Err(why) = inner.advance(meta.position.history, seqno, entry) {
                self.violation(why);
            }
            error
        };
        self.holds.pass(Point::ApplyInCommit);
        self.end_section();
        let left = self.leave(trx, seqno, error.as_deref());
        self.holds.pass(Point::ApplyLeft);
        left
    }

    fn enter(&self, trx: &Arc<Trx>, seqno: Seqno) -> bool {
        let entered = self.node().commit_order_enter(trx);
        // What was begun ahead fails if its place never comes.
        let phase = self.node().phase();
        let early = self.leaves_early.load(Ordering::Relaxed);
        let ends = match early {
            true => matches!(phase, Phase::Leaving | Phase::Closed | Phase::Inconsistent),
            false => phase == Phase::Leaving && chunked_id_of(trx.id).is_some(),
        };
        if entered != Outcome::Ok && !(entered == Outcome::NodeFail && ends) {
            self.violation(format!(
                "seqno {seqno} was not let into commit order: {entered:?}"
            ));
        }
        if entered != Outcome::Ok {
            self.holds.pass(Point::ApplyRefused);
        }
        entered == Outcome::Ok
    }

    fn leave(&self, trx: &Arc<Trx>, seqno: Seqno, error: Option<&str>) -> bool {
        let left = self
            .node()
            .commit_order_leave(trx, error.map(str::as_bytes));
        match (left, error) {
            (Outcome::Ok, _) => true,
            (Outcome::NodeFail, Some(_)) => false,
            _ => {
                self.violation(format!("leaving commit order at {seqno}: {left:?}"));
                false
            }
        }
    }

    /// Only one at a time may be inside commit order.
    pub(super) fn begin_section(&self, seqno: Seqno) {
        let mut inner = self.lock();
        if let Some(other) = inner.in_commit.replace(seqno) {
            self.violation(format!("{seqno} and {other} are both inside commit order"));
        }
    }

    pub(super) fn end_section(&self) {
        self.lock().in_commit = None;
    }

    /// How many appliers to lend.
    pub(super) fn applier_count(&self) -> usize {
        self.appliers.load(Ordering::Relaxed).max(1)
    }
}

/// The rows of unfinished streaming transactions are locked again: once for each
/// connection, not when the primary component was lost for a while.
fn recover_streaming(inner: &mut Inner) {
    if std::mem::replace(&mut inner.recovered, true) {
        return;
    }
    let own = inner.own;
    let held: Vec<_> = inner
        .disk
        .fragments
        .iter()
        .filter(|((source, _), _)| Some(*source) != own)
        .flat_map(|(id, changes)| changes.iter().map(|c| (*c, *id)))
        .collect();
    for (change, (source, id)) in held {
        let owner = Owner::Streaming(source, id);
        match change.to {
            To::Value(_) => {
                inner.locks.entry(change.key).or_insert(owner);
            }
            To::Same => inner.share(change.key, owner),
        }
    }
}
