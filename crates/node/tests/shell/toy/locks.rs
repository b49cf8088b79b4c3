//! Row and table locks, and who must give way.

use std::collections::BTreeSet;
use std::time::Instant;

use dromon_node::Outcome;
use dromon_writeset::Seqno;

use super::{Db, End, IDS, Inner, Key, Owner, Stage};

impl Inner {
    /// Who but `owner` holds what lies beside a row.
    fn beside(&self, key: Key, owner: Owner) -> Vec<Owner> {
        let next = self.neighbours.get(&key).into_iter().flatten();
        let held = next.filter_map(|k| self.locks.get(k).copied());
        held.filter(|o| *o != owner).collect()
    }
}

impl Db {
    /// A client takes a row, and its table in a way that only a statement in
    /// total order isolation minds.
    pub(super) fn lock_row(&self, id: u64, key: Key) -> Result<(), End> {
        let since = Instant::now();
        let mut inner = self.lock();
        loop {
            let Some(local) = inner.locals.get_mut(&id) else {
                return Err(End::Deadlock);
            };
            if local.stage == Stage::Aborted {
                return Err(End::Deadlock);
            }
            let under_ddl = inner.ddl.contains(&key.table);
            let owner = inner.locks.get(&key).copied();
            match owner {
                Some(Owner::Local(o)) if o == id => return Ok(()),
                None if !under_ddl => {
                    inner.locks.insert(key, Owner::Local(id));
                    if let Some(local) = inner.locals.get_mut(&id) {
                        local.tables.insert(key.table);
                    }
                    return Ok(());
                }
                _ => {}
            }
            if self.hangs(since) {
                self.violation(format!(
                    "transaction {id} waits for {key:?}, held by {owner:?}"
                ));
                return Err(End::LockWait);
            }
            inner = self.wait(inner);
        }
    }

    /// An ordered transaction needs what lies beside a row. Clients give way; the
    /// streaming transactions of others, whose fragments came first, do not.
    pub(super) fn pass_neighbours(&self, owner: Owner, seqno: Seqno, key: Key) {
        let since = Instant::now();
        let mut asked = BTreeSet::new();
        let mut counted = false;
        let mut inner = self.lock();
        loop {
            for holder in inner.beside(key, owner) {
                if let Owner::Local(victim) = holder
                    && asked.insert(victim)
                {
                    self.bf_abort(&mut inner, victim, seqno);
                }
            }
            let left = inner.beside(key, owner);
            let clients = left.iter().any(|o| matches!(o, Owner::Local(_)));
            let streams = left.iter().any(|o| matches!(o, Owner::Streaming(..)));
            if !clients && !streams {
                return;
            }
            if self.hangs(since) {
                self.violation(format!("seqno {seqno} waits beside {key:?} for ever"));
                return;
            }
            if streams && !std::mem::replace(&mut counted, true) {
                inner.waited += 1;
            }
            inner.blocked += usize::from(streams);
            inner = self.wait(inner);
            inner.blocked -= usize::from(streams);
        }
    }

    /// An ordered transaction takes a row. Clients give way.
    pub(super) fn lock_ordered(&self, owner: Owner, seqno: Seqno, key: Key) {
        let since = Instant::now();
        let mut asked = BTreeSet::new();
        let mut told = false;
        let mut inner = self.lock();
        loop {
            if inner.ddl.contains(&key.table) && !told {
                told = true;
                self.violation(format!(
                    "seqno {seqno} runs beside a statement in isolation on its table"
                ));
            }
            match inner.locks.get(&key).copied() {
                None => {
                    inner.locks.insert(key, owner);
                    if told {
                        let last: Vec<_> = inner.journal.iter().rev().take(12).collect();
                        let text = format!("seqno {seqno} got {key:?} after {last:?}");
                        self.report.line(&self.name, &text);
                    }
                    return;
                }
                Some(o) if o == owner => return,
                Some(Owner::Local(victim)) => {
                    if asked.insert(victim) {
                        self.bf_abort(&mut inner, victim, seqno);
                        continue;
                    }
                }
                Some(Owner::Streaming(source, id))
                    if id / IDS == self.n as u64 && Some(source) != inner.own =>
                {
                    inner.must_end.insert((source, id));
                }
                Some(other) if !told => {
                    told = true;
                    self.violation(format!(
                        "seqno {seqno} needs {key:?}, which {other:?} holds: a dependency is missing"
                    ));
                }
                Some(_) => {}
            }
            if self.hangs(since) {
                self.violation(format!("seqno {seqno} waits for {key:?} for ever"));
                return;
            }
            inner = self.wait(inner);
        }
    }

    /// A statement in total order isolation takes a table; everybody who uses
    /// it gives way.
    pub(super) fn lock_table(&self, table: u8, seqno: Seqno) {
        let since = Instant::now();
        let mut asked = BTreeSet::new();
        let mut told = false;
        let mut inner = self.lock();
        inner.ddl.insert(table);
        let rolled_back = inner.streams_at_work.iter().find(|(_, at)| **at < 0);
        if let Some((stream, _)) = rolled_back {
            self.violation(format!(
                "the statement at seqno {seqno} runs beside the rollback of stream {stream:?}"
            ));
        }
        self.drop_streaming_on(&mut inner, table);
        loop {
            let users: Vec<u64> = inner
                .locals
                .iter()
                .filter(|(_, l)| l.tables.contains(&table))
                .map(|(id, _)| *id)
                .collect();
            for &victim in &users {
                if asked.insert(victim) {
                    self.bf_abort(&mut inner, victim, -1);
                }
            }
            let foreign = inner
                .locks
                .iter()
                .find(|(k, o)| k.table == table && !matches!(o, Owner::Local(_)))
                .map(|(k, o)| (*k, *o));
            if let Some((key, owner)) = foreign
                && !told
            {
                told = true;
                self.violation(format!(
                    "the statement at seqno {seqno} finds {key:?} held by {owner:?}"
                ));
            }
            let users = inner.locals.values().any(|l| l.tables.contains(&table));
            if !users {
                return;
            }
            if self.hangs(since) {
                self.violation(format!("the statement at seqno {seqno} waits for ever"));
                return;
            }
            inner = self.wait(inner);
        }
    }

    /// Every node drops the streaming transactions that a statement in total
    /// order isolation meets, without a word to the others.
    fn drop_streaming_on(&self, inner: &mut Inner, table: u8) {
        let own = inner.own;
        let met: Vec<_> = inner
            .disk
            .fragments
            .iter()
            .filter(|(_, changes)| changes.iter().any(|c| c.key.table == table))
            .map(|(k, _)| *k)
            .collect();
        for (source, id) in met {
            if Some(source) != own {
                // The server knows the remote number only, and says it. If a
                // local transaction has the same one, it suffers too.
                let _ = self.node().abort(-1, id);
            }
            inner.disk.fragments.remove(&(source, id));
            inner
                .locks
                .retain(|_, o| *o != Owner::Streaming(source, id));
        }
        self.changed.notify_all();
    }

    pub(super) fn unlock_table(&self, table: u8) {
        self.lock().ddl.remove(&table);
        self.changed.notify_all();
    }

    pub(super) fn unlock_owner(&self, owner: Owner) {
        self.lock().locks.retain(|_, o| *o != owner);
        self.changed.notify_all();
    }

    /// Asks the node whether `victim` may be aborted, and does it.
    pub(super) fn bf_abort(&self, inner: &mut Inner, victim: u64, bf: Seqno) {
        let Some(local) = inner.locals.get_mut(&victim) else {
            return;
        };
        if matches!(local.stage, Stage::Aborted | Stage::Ordered) || local.aborted_by.is_some() {
            return; // gives way already
        }
        let stage = local.stage;
        let (outcome, seqno) = self.node().abort(bf, victim);
        match (outcome, stage) {
            (Outcome::Ok, Stage::Executing) => {
                if seqno >= 0 {
                    self.violation(format!("idle transaction {victim} has seqno {seqno}"));
                }
                let streaming = local.streaming && bf >= 0;
                local.stage = Stage::Aborted;
                local.tables.clear();
                inner.locks.retain(|_, o| *o != Owner::Local(victim));
                if streaming {
                    self.send_rollback(inner, victim);
                }
                self.changed.notify_all();
            }
            (Outcome::Ok, Stage::Committing) if local.ending => {
                self.violation(format!(
                    "the node lets {bf} abort {victim}, which is inside commit order"
                ));
            }
            (Outcome::Ok, _) => local.aborted_by = Some(bf),
            // It will finish by itself, or gives way already.
            (Outcome::NotAllowed, _) => {}
            (other, _) => self.violation(format!("abort of {victim} answered {other:?}")),
        }
    }

    /// Tells the others to forget a streaming transaction, now or later.
    pub(super) fn send_rollback(&self, inner: &mut Inner, id: u64) {
        if self.node().rollback(id) != Outcome::Ok {
            inner.rollbacks.push(id);
        }
    }

    /// Sends what could not be sent before.
    pub(super) fn retry_rollbacks(&self) {
        let mut inner = self.lock();
        for id in std::mem::take(&mut inner.rollbacks) {
            self.send_rollback(&mut inner, id);
        }
    }
}
