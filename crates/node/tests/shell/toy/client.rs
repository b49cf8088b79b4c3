//! Clients: transactions as the server runs them against the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dromon_node::{Meta, Node, Outcome, Phase, Position, Trx};
use dromon_writeset::{Flags, KeyType, Seqno, Uuid};

use super::events;
use super::holds::Point;
use super::{Change, Db, Ddl, Entry, Inner, Key, Local, Owner, Stage, To};

/// How a transaction or statement ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Acknowledged. A transaction without changes has no place.
    Committed {
        seqno: Option<Seqno>,
        replayed: bool,
    },
    /// Rolled back: another one was first.
    Deadlock,
    /// Rolled back: no primary component.
    ConnFail,
    /// Nobody can say: the cluster was lost on the way.
    Unknown,
    /// Rolled back: too large.
    TooLarge,
    /// Rolled back: waited too long for a row.
    LockWait,
}

impl End {
    pub fn is_committed(&self) -> bool {
        matches!(self, End::Committed { .. })
    }

    /// The place of a committed transaction with changes.
    pub fn seqno(&self) -> Seqno {
        match self {
            End::Committed {
                seqno: Some(seqno), ..
            } => *seqno,
            other => panic!("{other:?} has no place"),
        }
    }
}

/// What the server hands in before a write set has a place.
fn no_meta() -> Meta {
    Meta {
        position: Position::UNDEFINED,
        source: Uuid::NIL,
        trx_id: u64::MAX,
        conn_id: u64::MAX,
        depends_on: -1,
    }
}

const WHOLE: Flags = Flags::from_bits(Flags::TRX_START.bits() | Flags::TRX_END.bits());
const LAST: Flags = Flags::from_bits(Flags::PA_UNSAFE.bits() | Flags::TRX_END.bits());

/// An open transaction. Dropped, it is rolled back like that of a client whose
/// connection breaks.
pub struct Session {
    db: Arc<Db>,
    pub id: u64,
    trx: Option<Arc<Trx>>,
    /// Changes since the last fragment.
    changes: Vec<Change>,
    own: BTreeMap<Key, i64>,
    tables: BTreeSet<u8>,
    fragments: Vec<Change>,
    /// Bytes that say nothing and go with the end.
    padding: usize,
    /// So many bytes come with each row of one that is not streamed.
    pub wide: usize,
    /// Its data cannot be kept, and its server does not look at that.
    pub is_refused: bool,
    /// It is not to be applied in parallel.
    pub is_serial: bool,
    /// Its server drops the provider's object at its end, and does not release it.
    pub forgets: bool,
    ended: bool,
}

impl Db {
    /// A client begins a transaction.
    pub fn begin(self: &Arc<Self>) -> Session {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.begin_as(id)
    }

    /// The same under a number that may be in use elsewhere.
    pub fn begin_as(self: &Arc<Self>, id: u64) -> Session {
        self.lock().locals.insert(
            id,
            Local {
                stage: Stage::Executing,
                tables: BTreeSet::new(),
                streaming: false,
                aborted_by: None,
                ending: false,
            },
        );
        Session {
            db: self.clone(),
            id,
            trx: None,
            changes: Vec::new(),
            own: BTreeMap::new(),
            tables: BTreeSet::new(),
            fragments: Vec::new(),
            padding: 0,
            wide: 0,
            is_refused: false,
            is_serial: false,
            forgets: false,
            ended: false,
        }
    }

    /// One transaction that sets a row.
    pub fn set(self: &Arc<Self>, key: Key, value: i64) -> End {
        let mut t = self.begin();
        match t.put(key, value) {
            Ok(()) => t.commit(),
            Err(end) => end,
        }
    }

    /// One transaction that adds one to a row.
    pub fn increment(self: &Arc<Self>, key: Key) -> End {
        let mut t = self.begin();
        match t.add(key, 1) {
            Ok(()) => t.commit(),
            Err(end) => end,
        }
    }

    /// One statement in total order isolation.
    pub fn ddl(&self, ddl: &Ddl) -> End {
        let conn = self.next_id.fetch_add(1, Ordering::Relaxed);
        let table = [ddl.table()];
        let parts: [&[u8]; 2] = [b"toy", &table];
        let data = postcard::to_allocvec(ddl).expect("plain data");
        let mut meta = no_meta();
        let node = self.node();
        let keys = [(&parts[..], KeyType::Exclusive)];
        match node.toi_start(conn, &keys, &data, WHOLE, &mut meta) {
            Outcome::Ok => {}
            other => {
                if meta.position != Position::UNDEFINED {
                    self.violation(format!("toi_start answered {other:?} at {}", meta.position));
                }
                return match other {
                    Outcome::ConnFail => End::ConnFail,
                    Outcome::NodeFail => End::Unknown,
                    other => {
                        self.violation(format!("toi_start answered {other:?}"));
                        End::Unknown
                    }
                };
            }
        }
        let seqno = meta.position.seqno;
        if node.last_committed().seqno != seqno - 1 || meta.depends_on != seqno - 1 {
            self.violation(format!(
                "the statement at {seqno} (depends on {}) begins at {}",
                meta.depends_on,
                node.last_committed()
            ));
        }
        let error = self.run_ddl(ddl, &meta);
        match node.toi_end(conn, error.as_deref().map(str::as_bytes)) {
            Outcome::Ok => End::Committed {
                seqno: Some(seqno),
                replayed: false,
            },
            Outcome::NodeFail if error.is_some() => End::Unknown,
            other => {
                self.violation(format!("toi_end answered {other:?} at {seqno}"));
                End::Unknown
            }
        }
    }

    /// A client whose streaming transaction the cluster has forgotten, since the view at `seqno`.
    pub(super) fn drop_streaming_client(&self, inner: &mut Inner, id: u64, seqno: Seqno) {
        let Some(local) = inner.locals.get_mut(&id) else {
            return;
        };
        if local.stage == Stage::Executing {
            local.stage = Stage::Aborted;
            local.tables.clear();
            inner.free(Owner::Local(id));
        } else {
            self.bf_abort(inner, id, seqno);
        }
    }

    /// The lock is taken: the client's rows are free again.
    fn roll_back(&self, inner: &mut Inner, id: u64, stage: Stage) {
        if let Some(local) = inner.locals.get_mut(&id) {
            local.stage = stage;
            local.tables.clear();
        }
        inner.free(Owner::Local(id));
        self.changed.notify_all();
    }
}

impl Session {
    fn node(&self) -> Arc<Node> {
        self.db.node().clone()
    }

    /// What the node holds of it, once something was written.
    pub fn trx(&self) -> Option<Arc<Trx>> {
        self.trx.clone()
    }

    fn handle(&mut self) -> Arc<Trx> {
        let node = self.node();
        let id = self.id;
        self.trx.get_or_insert_with(|| node.begin(id)).clone()
    }

    /// Locks a row without changing it: nothing of that is replicated.
    pub fn lock(&mut self, key: Key) -> Result<(), End> {
        match self.db.lock_row(self.id, key) {
            Ok(()) => Ok(()),
            Err(end) => Err(self.abort(end)),
        }
    }

    /// The value as this transaction sees it; 0 if there is none.
    pub fn get(&self, key: Key) -> i64 {
        self.own
            .get(&key)
            .copied()
            .unwrap_or_else(|| self.db.read(key))
    }

    /// Changes a row.
    pub fn put(&mut self, key: Key, value: i64) -> Result<(), End> {
        self.lock(key)?;
        self.tables.insert(key.table);
        self.append(key, KeyType::Update);
        self.changes.push(Change {
            key,
            to: To::Value(value),
        });
        self.own.insert(key, value);
        Ok(())
    }

    /// What it changes refers to a row, as a child to its parent: that has to stay as it is.
    pub fn refers(&mut self, key: Key) -> Result<(), End> {
        if let Err(end) = self.db.share_row(self.id, key) {
            return Err(self.abort(end));
        }
        self.tables.insert(key.table);
        self.append(key, KeyType::Reference);
        self.changes.push(Change { key, to: To::Same });
        Ok(())
    }

    /// As if the last row had no key, and so a digest in its place.
    pub fn add_digest(&mut self, key: Key) {
        let trx = self.handle();
        let parts: [&[u8]; 3] = [b"toy", &[key.table], &[key.row as u8; 16]];
        let added = self.node().append_key(&trx, &parts, KeyType::Update);
        assert_eq!(added, Outcome::Ok);
    }

    fn append(&mut self, key: Key, key_type: KeyType) {
        let trx = self.handle();
        let row = key.row.to_be_bytes();
        let parts: [&[u8]; 3] = [b"toy", &[key.table], &row];
        let added = self.node().append_key(&trx, &parts, key_type);
        if added != Outcome::Ok {
            self.db.violation(format!("append_key answered {added:?}"));
        }
    }

    /// As if it had changed a row that it has not locked.
    pub fn touches(&mut self, key: Key) {
        self.append(key, KeyType::Update);
    }

    /// As if the last row had come into a unique index besides the primary one.
    pub fn add_unique(&mut self, key: Key) {
        self.add_made(1, key);
    }

    /// As if the last row were new, with a NULL in each such index.
    pub fn add_null(&mut self, key: Key) {
        self.add_made(0, key);
    }

    fn add_made(&mut self, index: u8, key: Key) {
        let trx = self.handle();
        let mut row = vec![index];
        row.extend(key.row.to_be_bytes());
        let parts: [&[u8]; 3] = [b"toy", &[key.table], &row];
        let added = self.node().append_key(&trx, &parts, KeyType::Exclusive);
        assert_eq!(added, Outcome::Ok);
    }

    /// Locks a row, reads it, writes it back `n` higher.
    pub fn add(&mut self, key: Key, n: i64) -> Result<(), End> {
        self.lock(key)?;
        let value = self.get(key) + n;
        self.put(key, value)
    }

    /// Whether another transaction has rolled this one back.
    pub fn aborted(&self) -> bool {
        let inner = self.db.lock();
        let local = inner.locals.get(&self.id);
        local.is_none_or(|l| l.stage == Stage::Aborted)
    }

    /// Its server forgets it without a word to the others.
    pub fn lose(mut self) {
        if let Some(local) = self.db.lock().locals.get_mut(&self.id) {
            local.streaming = false;
        }
        self.abort(End::Deadlock);
    }

    /// A client changes its mind.
    pub fn rollback(mut self) {
        self.abort(End::Deadlock);
    }

    /// Rolls back what has no place in the order.
    fn abort(&mut self, end: End) -> End {
        if std::mem::replace(&mut self.ended, true) {
            return end;
        }
        let mut inner = self.db.lock();
        let (told, streaming, by) = match inner.locals.get(&self.id) {
            Some(l) => (l.stage == Stage::Aborted, l.streaming, l.aborted_by),
            None => (true, false, None),
        };
        self.db.roll_back(&mut inner, self.id, Stage::Aborted);
        if let (Some(own), true) = (inner.own, streaming) {
            inner.adopted.insert((own, self.id));
        }
        // Whoever aborted an idle one has told the others already, and a
        // statement in isolation makes them see by themselves.
        if streaming && !told && by != Some(-1) {
            self.db.send_rollback(&mut inner, self.id);
        }
        inner.locals.remove(&self.id);
        drop(inner);
        self.release();
        end
    }

    fn release(&mut self) {
        if let Some(trx) = self.trx.take() {
            if self.forgets {
                return;
            }
            let (keep, outcome) = self.node().release(&trx);
            if keep || outcome != Outcome::Ok {
                self.db.violation(format!(
                    "release of {} at its end answered {keep}, {outcome:?}",
                    self.id
                ));
            }
        }
    }

    /// Enters the provider, unless another one was faster.
    fn go_in(&mut self, ending: bool) -> Result<Arc<Trx>, End> {
        self.db.retry_rollbacks();
        let trx = self.handle();
        let mut inner = self.db.lock();
        match inner.locals.get_mut(&self.id) {
            Some(local) if local.stage == Stage::Executing => {
                local.stage = Stage::InProvider;
                local.ending = ending;
                Ok(trx)
            }
            _ => {
                drop(inner);
                Err(self.abort(End::Deadlock))
            }
        }
    }

    fn aborted_by(&self) -> Option<Seqno> {
        let inner = self.db.lock();
        inner.locals.get(&self.id).and_then(|l| l.aborted_by)
    }

    fn certify(&mut self, trx: &Arc<Trx>, flags: Flags, data: &[u8]) -> (Outcome, Meta) {
        let node = self.node();
        let appended = node.append_data(trx, data);
        let expected = match self.is_refused {
            true => Outcome::SizeExceeded,
            false => Outcome::Ok,
        };
        if appended != expected {
            self.db
                .violation(format!("append_data answered {appended:?}"));
        }
        let mut meta = no_meta();
        let outcome = node.certify(self.id, trx, flags, &mut meta);
        let placed = meta.position.is_defined();
        let right = match outcome {
            Outcome::Ok => placed && (0..meta.position.seqno).contains(&meta.depends_on),
            // Not ordered: its node has shelved a stream that names its tables.
            Outcome::TrxFail if !placed => {
                self.db.lock().unplaced += 1;
                true
            }
            Outcome::TrxFail => true,
            // While the others apply it in chunks it has no place of its own.
            Outcome::BfAbort => placed || data.len() > 1024,
            Outcome::ConnFail | Outcome::SizeExceeded | Outcome::NodeFail => !placed,
            _ => false,
        };
        if !right || meta.trx_id != self.id {
            self.db.violation(format!(
                "certify of {} answered {outcome:?}, {meta:?}",
                self.id
            ));
        }
        (outcome, meta)
    }

    /// What a refusal without a place means to the client.
    fn refused(&mut self, outcome: Outcome) -> End {
        let end = match outcome {
            Outcome::ConnFail if self.aborted_by().is_some() => End::Deadlock,
            Outcome::ConnFail => End::ConnFail,
            Outcome::SizeExceeded => End::TooLarge,
            _ => End::Unknown,
        };
        self.abort(end)
    }

    /// Sends what was changed so far as a fragment and goes on.
    pub fn fragment(&mut self) -> Result<Seqno, End> {
        self.fragment_of(0)
    }

    /// The same with so many bytes more, that say nothing.
    pub fn fragment_of(&mut self, padding: usize) -> Result<Seqno, End> {
        let trx = self.go_in(false)?;
        let first = self.fragments.is_empty();
        let flags = if first { Flags::TRX_START } else { Flags::NONE };
        let changes = std::mem::take(&mut self.changes);
        assert!(!changes.is_empty(), "a fragment without changes");
        let mut data = events::encode(&changes);
        data.extend(events::padding(padding));
        if let Some(local) = self.db.lock().locals.get_mut(&self.id) {
            local.streaming = true;
        }
        let (outcome, meta) = self.certify(&trx, flags, &data);
        let seqno = meta.position.seqno;
        if outcome != Outcome::Ok {
            if outcome == Outcome::BfAbort {
                self.db.violation("a fragment was to be replayed");
            }
            self.give_up(seqno);
            self.db.holds.pass(Point::FragmentRefused);
            return Err(match outcome {
                Outcome::TrxFail | Outcome::BfAbort => self.abort(End::Deadlock),
                other => self.refused(other),
            });
        }
        self.db.holds.pass(Point::ClientCertified);
        if self.aborted_by().is_some() {
            self.give_up(seqno);
            return Err(self.abort(End::Deadlock));
        }
        match self.node().commit_order_enter(&trx) {
            Outcome::Ok => {}
            Outcome::TrxFail => {
                self.give_up(seqno);
                return Err(self.abort(End::Deadlock));
            }
            other => {
                self.db
                    .violation(format!("a fragment enters commit order: {other:?}"));
                self.give_up(seqno);
                return Err(self.abort(End::Unknown));
            }
        }
        self.db.begin_section(seqno);
        {
            let mut inner = self.db.lock();
            let id = (meta.source, self.id);
            inner
                .disk
                .fragments
                .entry(id)
                .or_default()
                .extend_from_slice(&changes);
            let entry = Entry::Fragment(id.0, id.1);
            if let Err(why) = inner.advance(meta.position.history, seqno, entry) {
                self.db.violation(why);
            }
        }
        self.fragments.extend_from_slice(&changes);
        self.db.holds.pass(Point::ClientInCommit);
        self.db.end_section();
        let left = self.node().commit_order_leave(&trx, None);
        if left != Outcome::Ok {
            self.db
                .violation(format!("a fragment leaves commit order: {left:?}"));
        }
        self.db.holds.pass(Point::ClientLeft);
        let (keep, outcome) = self.node().release(&trx);
        let aborted = self.aborted_by().is_some();
        match (keep, outcome) {
            // An abort may come after the release has looked.
            (true, Outcome::Ok) => {}
            (true, Outcome::BfAbort) if aborted => return Err(self.abort(End::Deadlock)),
            other => self.db.violation(format!(
                "release of a fragment answered {other:?}, aborted: {aborted}"
            )),
        }
        let mut inner = self.db.lock();
        if let Some(local) = inner.locals.get_mut(&self.id) {
            if local.aborted_by.is_some() {
                drop(inner);
                return Err(self.abort(End::Deadlock));
            }
            local.stage = Stage::Executing;
        }
        Ok(seqno)
    }

    /// The place of an own fragment will be passed without a position.
    fn give_up(&self, seqno: Seqno) {
        if seqno >= 0 {
            self.db.lock().may_skip.insert(seqno);
        }
    }

    /// Commits.
    pub fn commit(self) -> End {
        self.end(false)
    }

    /// The same with so many bytes more, that say nothing.
    pub fn commit_padded(mut self, padding: usize) -> End {
        self.padding = padding;
        self.end(false)
    }

    /// The same; what was changed since the last fragment travels with the end, as a server
    /// has it whose fragments are larger than a row.
    pub fn commit_with_rest(self) -> End {
        self.end(true)
    }

    fn end(mut self, with_rest: bool) -> End {
        if self.trx.is_none() {
            self.abort(End::Deadlock); // gives its locks back; nothing was sent
            return End::Committed {
                seqno: None,
                replayed: false,
            };
        }
        let streaming = !self.fragments.is_empty();
        if streaming
            && !with_rest
            && !self.changes.is_empty()
            && let Err(end) = self.fragment()
        {
            return end;
        }
        let trx = match self.go_in(true) {
            Ok(trx) => trx,
            Err(end) => return end,
        };
        let (flags, data) = if streaming {
            for table in self.tables.clone() {
                let parts: [&[u8]; 2] = [b"toy", &[table]];
                let _ = self.node().append_key(&trx, &parts, KeyType::Shared);
            }
            let rest = std::mem::take(&mut self.changes);
            let data = match rest.is_empty() {
                true => Vec::new(),
                false => events::encode(&rest),
            };
            self.fragments.extend(rest);
            (LAST, data)
        } else {
            let changes = std::mem::take(&mut self.changes);
            let mut data = events::encode_wide(&changes, self.wide);
            data.extend(events::padding(self.padding));
            match self.is_serial {
                true => (WHOLE | Flags::PA_UNSAFE, data),
                false => (WHOLE, data),
            }
        };
        let (outcome, meta) = self.certify(&trx, flags, &data);
        match outcome {
            Outcome::Ok => {}
            Outcome::TrxFail if !meta.position.is_defined() => return self.abort(End::Deadlock),
            Outcome::TrxFail => return self.pass_failed(&trx, &meta),
            Outcome::BfAbort => return self.replay(&trx, &meta, flags, &data),
            other => return self.refused(other),
        }
        self.db.holds.pass(Point::ClientCertified);
        if self.aborted_by().is_some() {
            return self.replay(&trx, &meta, flags, &data);
        }
        match self.node().commit_order_enter(&trx) {
            Outcome::Ok => self.finish(&trx, &meta, &data),
            Outcome::BfAbort => self.replay(&trx, &meta, flags, &data),
            // Its place is there, and not its turn.
            Outcome::NodeFail if self.db.leaves_early.load(Ordering::Relaxed) => {
                self.abort(End::Unknown)
            }
            other => {
                self.db
                    .violation(format!("{} enters commit order: {other:?}", self.id));
                self.abort(End::Unknown)
            }
        }
    }

    /// Inside commit order, with everything granted.
    fn finish(&mut self, trx: &Arc<Trx>, meta: &Meta, data: &[u8]) -> End {
        let seqno = meta.position.seqno;
        let id = (meta.source, self.id);
        self.db.begin_section(seqno);
        if !self.db.is_alone(seqno) {
            let text = format!(
                "{} is let in before all before {seqno} are finished",
                self.id
            );
            self.db.violation(text);
        }
        {
            let mut inner = self.db.lock();
            if let Some(local) = inner.locals.get_mut(&self.id) {
                local.stage = Stage::Committing;
                if let Some(by) = local.aborted_by {
                    self.db.violation(format!(
                        "{} was let into commit order although {by} aborted it",
                        self.id
                    ));
                }
            }
            let entry = if self.fragments.is_empty() {
                if let Ok(changes) = events::decode(data) {
                    inner.disk.install(&changes);
                }
                Entry::Rows(id.0, id.1)
            } else {
                inner.disk.fragments.remove(&id);
                inner.disk.install(&self.fragments);
                Entry::Commit(id.0, id.1)
            };
            if let Err(why) = inner.advance(meta.position.history, seqno, entry) {
                self.db.violation(why);
            }
        }
        self.db.holds.pass(Point::ClientInCommit);
        self.db.end_section();
        let left = self.node().commit_order_leave(trx, None);
        if left != Outcome::Ok {
            self.db
                .violation(format!("{} leaves commit order: {left:?}", self.id));
        }
        self.db.holds.pass(Point::ClientLeft);
        self.close();
        End::Committed {
            seqno: Some(seqno),
            replayed: false,
        }
    }

    /// Commits, and fails to write it down when its place is given on already, as a server may whose
    /// binary log is on a broken disk. Answers what it is told when it gives its place on once more.
    pub fn commit_undone(mut self) -> Outcome {
        let Ok(trx) = self.go_in(true) else {
            return Outcome::ConnFail;
        };
        let data = events::encode(&std::mem::take(&mut self.changes));
        assert_eq!(self.certify(&trx, WHOLE, &data).0, Outcome::Ok);
        assert_eq!(self.node().commit_order_enter(&trx), Outcome::Ok);
        assert_eq!(self.node().commit_order_leave(&trx, None), Outcome::Ok);
        let again = self.node().commit_order_enter(&trx);
        self.close();
        again
    }

    /// Passes certification and is rolled back before its commit, as by a server whose engine cannot prepare:
    /// its place is given on without an error.
    pub fn commit_rolled_back(mut self) {
        let trx = self.go_in(true).expect("it is let in");
        let data = events::encode(&std::mem::take(&mut self.changes));
        let (certified, meta) = self.certify(&trx, WHOLE, &data);
        assert_eq!(certified, Outcome::Ok);
        let node = self.node();
        assert_eq!(node.commit_order_enter(&trx), Outcome::Ok);
        let Position { history, seqno } = meta.position;
        let before = Position {
            history,
            seqno: seqno - 1,
        };
        let wait = || node.wait_for(before, Some(Duration::from_secs(i32::MAX as u64)));
        // Whoever else waits for that is no sign.
        std::thread::scope(|s| assert_eq!(s.spawn(wait).join().expect("no panic").0, Outcome::Ok));
        assert_eq!(node.phase(), Phase::Joined);
        wait();
        let _ = node.commit_order_leave(&trx, None);
        self.close();
    }

    /// The same, and never lets go of it: it tells its client of an error.
    pub fn commit_undone_in_silence(mut self) {
        let trx = self.go_in(true).expect("it is let in");
        let data = events::encode(&std::mem::take(&mut self.changes));
        assert_eq!(self.certify(&trx, WHOLE, &data).0, Outcome::Ok);
        assert_eq!(self.node().commit_order_enter(&trx), Outcome::Ok);
        assert_eq!(self.node().commit_order_leave(&trx, None), Outcome::Ok);
        self.ended = true;
        let mut inner = self.db.lock();
        self.db.roll_back(&mut inner, self.id, Stage::Aborted);
        inner.locals.remove(&self.id);
    }

    /// Gives the rows back, then the object.
    fn close(&mut self) {
        self.ended = true;
        {
            let mut inner = self.db.lock();
            self.db.roll_back(&mut inner, self.id, Stage::Aborted);
            inner.locals.remove(&self.id);
        }
        self.release();
    }

    /// Gives the transaction its place although it failed.
    fn pass_failed(&mut self, trx: &Arc<Trx>, meta: &Meta) -> End {
        let Position { history, seqno } = meta.position;
        {
            let mut inner = self.db.lock();
            self.db.roll_back(&mut inner, self.id, Stage::Ordered);
        }
        let node = self.node();
        let entered = node.commit_order_enter(trx);
        if entered == Outcome::NodeFail && self.db.leaves() {
            // Behind a pause: the server moves no position, and lets go of it.
            self.close();
            return End::Deadlock;
        }
        if entered == Outcome::TrxFail && trx.lock().failed_alike {
            // It was there when it ran again: the server moves no position a second time.
            self.close();
            return End::Deadlock;
        }
        if entered == Outcome::TrxFail && trx.lock().refused {
            // Who waits before it waits for this client.
            self.give_up(seqno);
            self.close();
            return End::Deadlock;
        }
        if entered != Outcome::Ok {
            self.db
                .violation(format!("failed {} at {seqno} enters: {entered:?}", self.id));
        }
        let before = Position {
            history,
            seqno: seqno - 1,
        };
        let (waited, _) = node.wait_for(before, Some(Duration::from_secs(2_147_483_647)));
        if waited != Outcome::Ok {
            self.db
                .violation(format!("failed {} waits for {before}: {waited:?}", self.id));
        }
        self.db.begin_section(seqno);
        {
            let mut inner = self.db.lock();
            let id = (meta.source, self.id);
            inner.disk.fragments.remove(&id);
            if let Err(why) = inner.advance(history, seqno, Entry::Dummy(id.0, id.1)) {
                self.db.violation(why);
            }
        }
        self.db.end_section();
        let left = node.commit_order_leave(trx, None);
        if left != Outcome::Ok {
            self.db
                .violation(format!("failed {} leaves: {left:?}", self.id));
        }
        self.close();
        End::Deadlock
    }

    /// Rolls back and does everything again at its place.
    fn replay(&mut self, trx: &Arc<Trx>, meta: &Meta, flags: Flags, data: &[u8]) -> End {
        {
            let mut inner = self.db.lock();
            self.db.roll_back(&mut inner, self.id, Stage::Ordered);
        }
        let db = self.db.clone();
        let (mut applied, mut place) = (false, -1);
        let outcome = self.node().replay(trx, |trx, f, payload, m| {
            let moved = meta.position.is_defined() && m.position != meta.position;
            place = m.position.seqno;
            if f != flags || payload != data || moved {
                db.violation(format!(
                    "{meta:?} is replayed as {m:?}, flags {f:?}, {} of {} bytes",
                    payload.len(),
                    data.len()
                ));
            }
            applied = true;
            dromon_node::Applied {
                ok: db.apply(trx, f, payload, m),
                exit: false,
            }
        });
        match outcome {
            Outcome::Ok if applied => {
                self.close();
                End::Committed {
                    seqno: Some(place),
                    replayed: true,
                }
            }
            Outcome::TrxFail if meta.position.is_defined() => self.pass_failed(trx, meta),
            Outcome::TrxFail => {
                // The server knows of no place: it only lets go of it.
                self.give_up(trx.lock().seqno);
                self.close();
                End::Deadlock
            }
            Outcome::NodeFail if !applied && self.db.leaves() => {
                // A server that leaves anyway stops at this: others have it, and it lies behind a pause here.
                self.close();
                End::Unknown
            }
            other => {
                self.db.violation(format!(
                    "replay of {} answered {other:?}: a server would stop",
                    self.id
                ));
                self.close();
                End::Unknown
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abort(End::Deadlock);
    }
}
