//! Row and table locks, and who must give way.

use std::collections::BTreeSet;
use std::sync::MutexGuard;
use std::time::Instant;

use dromon_node::Outcome;
use dromon_writeset::Seqno;

use super::{Change, Db, End, IDS, Inner, Key, Owner, Stage, To};

impl Inner {
    /// Who but `owner` holds what lies beside a row.
    fn beside(&self, key: Key, owner: Owner) -> Vec<Owner> {
        let next = self.neighbours.get(&key).into_iter().flatten();
        let held = next.filter_map(|k| self.locks.get(k).copied());
        held.filter(|o| *o != owner).collect()
    }

    /// Who but `owner` stands in its way at a row.
    fn in_the_way(&self, key: Key, to: To, owner: Owner) -> Vec<Owner> {
        let has = self.locks.get(&key).into_iter();
        let shares = match to {
            To::Value(_) => self.shared.get(&key),
            To::Same => None,
        };
        let all = has.chain(shares.into_iter().flatten()).copied();
        all.filter(|o| *o != owner).collect()
    }

    /// `owner` needs a row to stay as it is.
    pub(super) fn share(&mut self, key: Key, owner: Owner) {
        let of = self.shared.entry(key).or_default();
        if !of.contains(&owner) {
            of.push(owner);
        }
    }

    fn take(&mut self, key: Key, to: To, owner: Owner) {
        match to {
            To::Value(_) => {
                self.locks.insert(key, owner);
            }
            To::Same => self.share(key, owner),
        }
    }

    /// Whether `owner` has a row.
    pub(super) fn holds(&self, owner: Owner) -> bool {
        let shared = self.shared.values().flatten();
        self.locks.values().chain(shared).any(|o| *o == owner)
    }

    /// It gives all of them back.
    pub(super) fn free(&mut self, owner: Owner) {
        self.free_if(|o| *o == owner);
    }

    pub(super) fn free_if(&mut self, gives_back: impl Fn(&Owner) -> bool) {
        self.locks.retain(|_, o| !gives_back(o));
        self.shared.retain(|_, of| {
            of.retain(|o| !gives_back(o));
            !of.is_empty()
        });
    }
}

impl Db {
    /// A client takes a row, and its table in a way that only a statement in
    /// total order isolation minds.
    pub(super) fn lock_row(&self, id: u64, key: Key) -> Result<(), End> {
        self.take_row(id, key, To::Value(0))
    }

    /// The same, and it only needs the row to stay.
    pub(super) fn share_row(&self, id: u64, key: Key) -> Result<(), End> {
        self.take_row(id, key, To::Same)
    }

    fn take_row(&self, id: u64, key: Key, to: To) -> Result<(), End> {
        let (since, owner) = (Instant::now(), Owner::Local(id));
        let mut inner = self.lock();
        loop {
            let Some(local) = inner.locals.get_mut(&id) else {
                return Err(End::Deadlock);
            };
            if local.stage == Stage::Aborted {
                return Err(End::Deadlock);
            }
            if inner.locks.get(&key) == Some(&owner) {
                return Ok(());
            }
            let under_ddl = inner.ddl.contains(&key.table);
            let others = inner.in_the_way(key, to, owner);
            if others.is_empty() && !under_ddl {
                inner.take(key, to, owner);
                if let Some(local) = inner.locals.get_mut(&id) {
                    local.tables.insert(key.table);
                }
                return Ok(());
            }
            if self.hangs(since) {
                self.violation(format!(
                    "transaction {id} waits for {key:?}, held by {others:?}"
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
            inner = self.wait_for_stream(inner, streams, &mut counted);
        }
    }

    /// An ordered transaction takes a row. Clients give way. The streaming transactions of others, whose
    /// fragments came first, do not: certification lets pass who only refers to a row that such a one
    /// changed, and who changes one that it refers to.
    pub(super) fn lock_ordered(&self, owner: Owner, seqno: Seqno, change: &Change) {
        let Change { key, to } = *change;
        let since = Instant::now();
        let mut asked = BTreeSet::new();
        let (mut told, mut counted) = (false, false);
        let mut inner = self.lock();
        loop {
            if inner.ddl.contains(&key.table) && !told {
                told = true;
                self.violation(format!(
                    "seqno {seqno} runs beside a statement in isolation on its table"
                ));
            }
            if inner.locks.get(&key) == Some(&owner) {
                return;
            }
            let others = inner.in_the_way(key, to, owner);
            if others.is_empty() {
                inner.take(key, to, owner);
                if told {
                    let last: Vec<_> = inner.journal.iter().rev().take(12).collect();
                    let text = format!("seqno {seqno} got {key:?} after {last:?}");
                    self.report.line(&self.name, &text);
                }
                return;
            }
            let changed = matches!(to, To::Value(_)) && inner.locks.contains_key(&key);
            let (mut streams, mut again) = (false, false);
            for other in others {
                match other {
                    Owner::Local(victim) if asked.insert(victim) => {
                        self.bf_abort(&mut inner, victim, seqno);
                        again = true;
                    }
                    Owner::Local(_) => {}
                    Owner::Streaming(source, id)
                        if id / IDS == self.n as u64 && Some(source) != inner.own =>
                    {
                        inner.must_end.insert((source, id));
                    }
                    Owner::Streaming(..) if !changed => streams = true,
                    other if !told => {
                        told = true;
                        self.violation(format!(
                            "seqno {seqno} needs {key:?}, which {other:?} holds: a dependency is missing"
                        ));
                    }
                    _ => {}
                }
            }
            if again {
                continue;
            }
            if self.hangs(since) {
                self.violation(format!("seqno {seqno} waits for {key:?} for ever"));
                return;
            }
            inner = self.wait_for_stream(inner, streams, &mut counted);
        }
    }

    /// Waits, perhaps for a stream, which is `counted` once.
    fn wait_for_stream<'a>(
        &self,
        mut inner: MutexGuard<'a, Inner>,
        streams: bool,
        counted: &mut bool,
    ) -> MutexGuard<'a, Inner> {
        if streams && !std::mem::replace(counted, true) {
            inner.waited += 1;
        }
        inner.blocked += usize::from(streams);
        let mut inner = self.wait(inner);
        inner.blocked -= usize::from(streams);
        inner
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
            inner.free(Owner::Streaming(source, id));
        }
        self.changed.notify_all();
    }

    pub(super) fn unlock_table(&self, table: u8) {
        self.lock().ddl.remove(&table);
        self.changed.notify_all();
    }

    pub(super) fn unlock_owner(&self, owner: Owner) {
        self.lock().free(owner);
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
                inner.free(Owner::Local(victim));
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
