//! What the server's client threads call, from the first key of a transaction to its
//! release.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dromon_gates::{Before, Seqno, WaitError};
use dromon_order::{Order, OrderError};
use dromon_writeset::{Flags, Header, KeyType};

use super::{Node, Phase, Sent, lock};
use crate::closed::{Passage, Touches};
use crate::cluster::{CHUNK_CLOSES, CHUNK_MIN};
use crate::database::{Meta, Outcome};
use crate::messages::{Control, Position, encode, kind};
use crate::spool::{Collected, Encoded, Sending};
use crate::trx::{Abandoned, Body, Kind, Stage, Trx};

/// Write sets of this size are named in the log, in bytes.
const LARGE: usize = 64 << 20;
/// Size of a chunk, as a power of two in bytes: 512 KiB take a server 4 to 30 ms.
const CHUNK_LOG2: u8 = 19;
/// So long a client waits at most for a table that a large one keeps to itself, as
/// it would by default for a row; then it gets error 1213.
const TABLE_PATIENCE: Duration = Duration::from_secs(50);
/// How often who waits for a statement looks whether this node still serves.
const DDL_LOOK: Duration = Duration::from_millis(50);

/// Keys as the server gives them: parts, and how strong.
pub type KeyParts<'a> = (&'a [&'a [u8]], KeyType);

/// What `repl.max_ws_size` (and the server's wsrep_max_ws_size) limits: what the
/// peer counts before it refuses, so that limits keep their meaning. Measured on
/// 26.4.23, to the byte: 8 for a key part, the data, and 184 for all headers.
fn counted_size(key_parts: usize, data: u64) -> u64 {
    data.saturating_add(184 + 8 * key_parts as u64)
}

impl Node {
    /// A new transaction object for the server's number `id`.
    pub fn begin(&self, id: u64) -> Arc<Trx> {
        self.look_for_undone();
        let escalation = usize::try_from(self.settings().key_escalation).unwrap_or(usize::MAX);
        let trx = Trx::local(id, Kind::Local, escalation);
        self.trxs.insert(trx.clone());
        trx
    }

    /// Adds a key.
    pub fn append_key(&self, trx: &Trx, parts: &[&[u8]], key_type: KeyType) -> Outcome {
        let mut body = trx.lock();
        match body.keys.add_names(parts, key_type) {
            Ok(()) => Outcome::Ok,
            Err(e) => {
                // The server may go on all the same.
                body.data.lacks(e.to_string());
                drop(body);
                self.error(&format!("transaction {}: {e}", trx.id));
                Outcome::NodeFail
            }
        }
    }

    /// Adds data; all of it together is what the others apply.
    pub fn append_data(&self, trx: &Trx, data: &[u8]) -> Outcome {
        match trx.lock().data.push(data, &self.spooler) {
            Ok(()) => Outcome::Ok,
            Err(e) => {
                self.error(&format!(
                    "transaction {}: its data cannot be kept in {}: {e}. It is rolled back; nothing else is \
                     touched. Make room there",
                    trx.id,
                    self.settings().base_dir.display()
                ));
                Outcome::SizeExceeded
            }
        }
    }

    pub(super) fn undefined_meta(&self, trx_id: u64, conn_id: u64) -> Meta {
        Meta {
            position: Position::UNDEFINED,
            source: self.shared().uuid,
            trx_id,
            conn_id,
            depends_on: -1,
        }
    }

    pub(super) fn serving(&self) -> bool {
        self.shared().phase == Phase::Joined
    }

    /// Orders and certifies a transaction, or a fragment of one.
    pub fn certify(&self, conn: u64, trx: &Arc<Trx>, flags: Flags, meta: &mut Meta) -> Outcome {
        *meta = self.undefined_meta(trx.id, conn);
        {
            let mut body = trx.lock();
            if body.must_abort {
                return Outcome::ConnFail;
            }
            body.flags = flags;
            body.conn = conn;
            body.stage = Stage::Waiting;
        }
        let outcome = self.certify_waiting(trx, meta);
        if outcome == Outcome::Ok {
            self.gates.enter_apply_local(meta.position.seqno);
        }
        outcome
    }

    pub(super) fn certify_waiting(&self, trx: &Arc<Trx>, meta: &mut Meta) -> Outcome {
        let unsent = |outcome| {
            let mut body = trx.lock();
            body.stage = Stage::Executing;
            if !std::mem::take(&mut body.refused) {
                return outcome;
            }
            if !body.must_abort {
                trx.waiter.clear();
            }
            Outcome::TrxFail
        };
        if !self.serving() {
            return unsent(Outcome::ConnFail);
        }
        if !self.wait_bulk(trx) {
            return unsent(Outcome::ConnFail);
        }
        let unsent_yet = self.unsent.enter();
        let (tag, sending) = loop {
            match self.wait_for_tables(trx) {
                Passage::Free | Passage::Behind(_) => {}
                Passage::Refused if self.serving() => return unsent(Outcome::TrxFail),
                Passage::Refused | Passage::Interrupted => return unsent(Outcome::ConnFail),
            }
            if !self.flow.wait(&trx.waiter, || self.flow_limits())
                || self
                    .gates
                    .wait_not_held(Seqno::MAX, &trx.waiter, true)
                    .is_err()
                || !self.wait_for_ddl(trx)
                || !self.wait_for_return(trx)
            {
                return unsent(Outcome::ConnFail);
            }
            match self.send(trx) {
                Ok(sent) => break sent,
                // A table was closed meanwhile, or the node was away.
                Err(Outcome::NotAllowed) => {}
                Err(outcome) => return unsent(outcome),
            }
        };
        drop(unsent_yet);
        self.wait_verdict(trx, true);
        drop(sending);
        let (stage, must_abort, ends) = {
            let mut body = trx.lock();
            match body.abandoned {
                None => {}
                Some(Abandoned::Spoilt) => {
                    body.abandoned = None;
                    body.stage = Stage::Executing;
                    body.data.lacks("its file was spoilt".into());
                    return Outcome::SizeExceeded;
                }
                Some(Abandoned::Sent) if !self.take_back(tag) => {
                    let conn = body.conn;
                    drop(body);
                    if trx.kind == Kind::Toi {
                        self.may_run_yet(conn);
                    }
                    return Outcome::NodeFail;
                }
                Some(_) => {
                    body.abandoned = None;
                    body.stage = Stage::Executing;
                    return Outcome::ConnFail;
                }
            }
            if body.stage == Stage::Chunked {
                // Its place is not known yet: the replay waits for it.
                self.will_be_replayed(trx, &body);
                let conn = body.conn;
                drop(body);
                let source = self.shared().uuid;
                self.warn(&format!(
                    "{} gives way to another node's, and runs again when its last chunk is ordered: until then this \
                     server holds back the commits of all its clients",
                    self.whose_transaction(source, trx.id, conn)
                ));
                return Outcome::BfAbort;
            }
            meta.position = Position {
                history: self.history(),
                seqno: body.seqno,
            };
            meta.depends_on = body.depends_on;
            (body.stage, body.must_abort, body.ends())
        };
        if stage == Stage::Failed {
            self.counters.local_cert_failures.fetch_add(1, Relaxed);
            return Outcome::TrxFail;
        }
        if must_abort {
            return self.give_way(trx, ends);
        }
        match self
            .gates
            .wait_not_held(meta.position.seqno, &trx.waiter, true)
        {
            Ok(()) => Outcome::Ok,
            Err(WaitError::Closed) => {
                // The others have it; this node leaves amid the pause, and has it when it is back.
                let mut body = trx.lock();
                self.gates.pass_commit(body.seqno);
                let (conn, seqno) = (body.conn, body.seqno);
                (body.seqno, body.stage) = (-1, Stage::Executing);
                drop(body);
                if trx.kind == Kind::Toi {
                    self.runs_elsewhere(conn, seqno);
                }
                meta.position = Position::UNDEFINED;
                meta.depends_on = -1;
                Outcome::NodeFail
            }
            Err(_) => self.give_way(trx, ends),
        }
    }

    /// Waits while a table is closed that `trx` needs (see `closed.rs`).
    fn wait_for_tables(&self, trx: &Trx) -> Passage {
        if !self.closed.any() {
            return Passage::Free;
        }
        let touches = {
            let body = trx.lock();
            Touches {
                changed: body.keys.changed_tables(),
                named: body.names(),
                streams: body.last_fragment >= 0,
                ends: body.ends(),
            }
        };
        self.closed.forget_ended(self.gates.released());
        let deadline = Instant::now() + TABLE_PATIENCE;
        trx.waits_for_table.store(true, Relaxed);
        let mut passage = self.closed.wait(&trx.waiter, &touches, deadline);
        if let Passage::Behind(end) = passage {
            let released = self
                .gates
                .wait_released(end, &trx.waiter, true, Some(deadline));
            passage = match released {
                // Too late: it tries its luck.
                Ok(()) | Err(WaitError::TimedOut) => Passage::Free,
                Err(_) => Passage::Interrupted,
            };
        }
        trx.waits_for_table.store(false, Relaxed);
        passage
    }

    /// The end of a streaming transaction would fail certification if a statement in
    /// total order isolation came before it unseen: waits until the last one known
    /// is through, the last thing before it is sent. Answers false if it was interrupted.
    fn wait_for_ddl(&self, trx: &Trx) -> bool {
        {
            let body = trx.lock();
            if body.last_fragment < 0 || !body.ends() {
                return true;
            }
        }
        let deadline = Instant::now() + TABLE_PATIENCE;
        while self.serving() {
            let ddl = self.newest_toi.load(Relaxed);
            let look = Some(Instant::now() + DDL_LOOK);
            match self.gates.wait_released(ddl, &trx.waiter, true, look) {
                Ok(()) => return true,
                // A node far behind may have one after the other before it.
                Err(WaitError::TimedOut) if Instant::now() >= deadline => return true,
                Err(WaitError::TimedOut) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// What was ordered before this node came back, and its appliers have not gone through yet, has
    /// not met the transactions that were open here: its own earlier write sets, whose rows were
    /// given back with their outcome unknown, and the view that ended its streams on the others.
    /// Certification does not know, as both are of this node. So whoever is in their way is
    /// interrupted before it is sent. Answers false then.
    fn wait_for_return(&self, trx: &Trx) -> bool {
        loop {
            // In this order: the phase is set behind the place.
            let serves = self.serving();
            let at = self.back_at.load(Relaxed);
            if !serves {
                return false;
            }
            if at == 0 {
                return true;
            }
            let look = Some(Instant::now() + DDL_LOOK);
            match self.gates.wait_released(at, &trx.waiter, true, look) {
                Ok(()) => {
                    // Unless it is away and back again by now.
                    let _ = self.back_at.compare_exchange(at, 0, Relaxed, Relaxed);
                }
                Err(WaitError::TimedOut) => {}
                Err(_) => return false,
            }
        }
    }

    /// Encodes a write set and hands it to the order; answers with its mark, and what says
    /// that a large one is on its way. `NotAllowed`: it has to wait, for a table or for what
    /// came before this node was back.
    fn send(&self, trx: &Arc<Trx>) -> Result<(u64, Option<Sending>), Outcome> {
        let order = self.order().ok_or(Outcome::ConnFail)?;
        let max = self.settings().max_ws_size;
        let source = self.shared().uuid;
        let mut body = trx.lock();
        if body.must_abort || body.refused {
            return Err(Outcome::ConnFail);
        }
        // Of an earlier try, which was not sent.
        body.abandoned = None;
        let counted = counted_size(body.keys.parts(), body.data.len());
        if counted > max {
            self.note(&format!(
                "connection {}: a write set of {counted} bytes is refused, as repl.max_ws_size is {max}; it is \
                 rolled back",
                body.conn
            ));
            return Err(Outcome::SizeExceeded);
        }
        let chunk = self.chunk_of(&body);
        let header = |last_seen| Header {
            flags: body.flags,
            source,
            trx_id: trx.id,
            conn_id: body.conn,
            last_seen,
            prev_fragment: body.last_fragment,
            chunk,
        };
        let before = *self.given_up();
        let (tag, last_seen) = self.register_pending(trx, body.last_fragment);
        // Whoever waited for something else may not know yet. What it has seen is
        // settled now: certification finds what comes from here on.
        if self.closed.any() && self.closed.stops(&body.names()) || self.back_at.load(Relaxed) != 0
        {
            lock(&self.pending).take(tag);
            return Err(Outcome::NotAllowed);
        }
        let encoded = body
            .data
            .encode(&header(last_seen), &body.keys, &self.spooler);
        let Encoded {
            whole: bytes,
            payload,
            sums,
        } = match encoded {
            Ok(encoded) => encoded,
            Err(e) => {
                lock(&self.pending).take(tag);
                self.error(&format!(
                    "transaction {} is not sent: {e}. It is rolled back; nothing else is touched",
                    trx.id
                ));
                return Err(Outcome::SizeExceeded);
            }
        };
        let c = &self.counters;
        c.replicated.fetch_add(1, Relaxed);
        c.replicated_bytes.fetch_add(bytes.len() as u64, Relaxed);
        c.repl_keys.fetch_add(body.keys.len() as u64, Relaxed);
        c.repl_keys_bytes
            .fetch_add(body.keys.bytes() as u64, Relaxed);
        c.repl_data_bytes.fetch_add(payload.len() as u64, Relaxed);
        let other = bytes
            .len()
            .saturating_sub(body.keys.bytes() + payload.len());
        c.repl_other_bytes.fetch_add(other as u64, Relaxed);
        // The data lies at the end of the write set: no second copy is kept.
        body.payload = payload;
        body.payload_sum = sums.map(|sums| sums.rest_sum);
        body.data = Collected::default();
        body.stage = Stage::Sent;
        let conn = body.conn;
        let large = bytes.len() >= LARGE;
        body.sent_at = large.then(Instant::now);
        drop(body);
        if large {
            self.note(&format!(
                "connection {conn}, transaction {}: a write set of {} MB goes out in pieces; others pass it",
                trx.id,
                bytes.len() >> 20
            ));
        }
        // Lost the cluster while waiting, and perhaps found it again: nothing was sent.
        let away = !self.serving() || self.back_at.load(Relaxed) != 0;
        if away && lock(&self.pending).take(tag).is_some() {
            return Err(Outcome::ConnFail);
        }

        let sending = self.spooler.sending(&bytes);
        let mut wait = Duration::from_millis(1);
        loop {
            let proposed = {
                let given_up = self.given_up();
                if *given_up != before {
                    // Lost and maybe found again meanwhile: nobody waits for it any more.
                    drop(given_up);
                    lock(&self.pending).take(tag);
                    return Err(Outcome::ConnFail);
                }
                match sums {
                    None => order.propose(kind::WRITE_SET, tag, bytes.clone()),
                    Some(sums) => order.propose_checked(kind::WRITE_SET, tag, bytes.clone(), sums),
                }
            };
            match proposed {
                Ok(_) => return Ok((tag, sending)),
                Err(OrderError::Full { .. }) if self.serving() => {
                    // Bounded: the order drains as a majority answers.
                    trx.waiter.wait(false, Some(Instant::now() + wait));
                    wait = (wait * 2).min(Duration::from_millis(50));
                }
                Err(OrderError::Spoilt) => {
                    self.own_spoilt(tag);
                    return Ok((tag, sending));
                }
                Err(e) => {
                    lock(&self.pending).take(tag);
                    self.note(&format!("transaction {} was not sent: {e}", trx.id));
                    return Err(Outcome::ConnFail);
                }
            }
        }
    }

    /// What the own write set `tag` has in its file is not what its client wrote. It was not
    /// ordered, and will not be.
    pub(super) fn own_spoilt(&self, tag: u64) {
        let sent = lock(&self.pending).take(tag);
        let Some(Sent { trx, .. }) = sent else { return };
        self.error(&format!(
            "transaction {}: what lies in its spool file in {} is not what was written there (its checksum differs). It \
             is rolled back; nothing of it is applied anywhere, nothing else is touched. Look after the disk and the \
             memory of this machine",
            trx.id,
            self.settings().base_dir.display()
        ));
        trx.lock().abandoned = Some(Abandoned::Spoilt);
        trx.waiter.wake();
    }

    fn given_up(&self) -> RwLockReadGuard<'_, u64> {
        self.given_up.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How large the chunks are in which others may apply so much data, as a
    /// power of two; 0: only whole.
    ///
    /// If it inserts into or deletes from a unique secondary index, the duplicate
    /// check locks neighbours (see `uniques.rs`), until the end. What comes between
    /// the chunks and needs one of them would wait for what comes after itself: so
    /// it closes its tables. Also if no key says so, in a table that has such an index: it may
    /// hold rows with a NULL there. And where rows are changed that no index finds: whoever applies such a one
    /// scans the table, and waits at all that others hold there.
    fn chunk_of(&self, body: &Body) -> u8 {
        let secondary = body.keys.secondary_tables();
        self.unique_tables.add(secondary.iter().copied());
        let (flags, data) = (body.flags, body.data.len());
        let least = self.settings().auto_stream_size;
        let plain = flags.starts() && flags.ends() && !flags.is_toi() && !flags.is_rollback();
        if least == 0 || data <= least || !plain {
            return 0;
        }
        let log2 = (least.ilog2() as u8).clamp(CHUNK_MIN, CHUNK_LOG2);
        let scans = flags.pa_unsafe() && body.keys.changes_by_digest();
        match scans || !secondary.is_empty() || self.unique_tables.any(&body.keys.made_tables()) {
            true => log2 | CHUNK_CLOSES,
            false => log2,
        }
    }

    /// Notes that a write set is on its way, and what it has seen: both in one
    /// step, so that no cut can pass between them.
    fn register_pending(&self, trx: &Arc<Trx>, last_fragment: Seqno) -> (u64, Seqno) {
        let mut pending = lock(&self.pending);
        pending.next_tag += 1;
        let tag = pending.next_tag;
        let last_seen = self.gates.released().max(last_fragment);
        pending.add(
            tag,
            Sent {
                trx: trx.clone(),
                last_seen,
            },
        );
        (tag, last_seen)
    }

    /// Waits until `trx` has its place, or can have none. One that is applied
    /// in chunks gives way meanwhile, if `yields`.
    pub(super) fn wait_verdict(&self, trx: &Trx, yields: bool) {
        loop {
            let interruptible = {
                let body = trx.lock();
                let chunked = body.stage == Stage::Chunked;
                let waits = body.stage == Stage::Sent || chunked;
                if !waits || body.abandoned.is_some() || (chunked && yields && body.must_abort) {
                    return;
                }
                chunked && yields
            };
            trx.waiter.wait(interruptible, None);
        }
    }

    /// The own write set `trx`, at `index` in the log, took its place; `passed`: what it
    /// depends on, or None if it failed. On the delivery thread.
    pub(super) fn own_delivered(&self, trx: &Trx, seqno: Seqno, index: u64, passed: Option<Seqno>) {
        let mut body = trx.lock();
        body.seqno = seqno;
        body.index = index;
        let (sent_at, conn) = (body.sent_at.take(), body.conn);
        body.depends_on = passed.unwrap_or(-1);
        body.stage = match passed {
            Some(_) => Stage::Certified,
            None => Stage::Failed,
        };
        drop(body);
        trx.waiter.wake();
        if let Some(sent_at) = sent_at {
            self.note(&format!(
                "connection {conn}, transaction {}: the large write set is ordered at seqno {seqno} after {:.1} s",
                trx.id,
                sent_at.elapsed().as_secs_f64()
            ));
        }
    }

    /// Waits for the turn of `trx` in commit order.
    pub fn commit_order_enter(&self, trx: &Arc<Trx>) -> Outcome {
        let (seqno, interruptible, failed, ends, is_toi) = {
            let body = trx.lock();
            if body.failed_alike {
                // It has had its turn when it ran again; the position must not go back to it.
                return Outcome::TrxFail;
            }
            let local = trx.kind == Kind::Local && body.stage == Stage::Certified;
            let left = body.stage == Stage::Left && body.depends_on >= 0 && body.ends();
            if left && trx.kind == Kind::Local {
                // A server does so when it has rolled back behind that. The others have it.
                let seqno = body.seqno;
                drop(body);
                self.leave_inconsistent(&format!(
                    "transaction {} at {} was rolled back here after it had left commit order (could its server not \
                     write to its binary log?). It is committed on the other nodes",
                    trx.id,
                    self.at(seqno)
                ));
                return Outcome::TrxFail;
            }
            let failed = trx.kind == Kind::Local && body.stage == Stage::Failed;
            let is_toi = body.flags.is_toi();
            (body.seqno, local, failed, body.ends(), is_toi)
        };
        if seqno < 0 {
            self.error(&format!(
                "transaction {} enters commit order without a place",
                trx.id
            ));
            return Outcome::NodeFail;
        }
        if !interruptible {
            self.begun_ahead_is_ready(seqno);
        }
        if !interruptible && !is_toi {
            // A statement takes its locks at its place.
            self.has_locks(seqno);
        }
        // Only clients can be ended, and not amid a fragment.
        let alone = interruptible && ends && self.db.has_binary_log();
        let before = match alone && !self.settings().binlog_groups {
            true => Before::Finished,
            false => Before::Left,
        };
        loop {
            // What failed moves the database's position too. Its locks are gone by
            // now; `certify` could not wait, as what comes before may need them.
            let not_held = match interruptible {
                true => Ok(()),
                false => self.gates.wait_not_held(seqno, &trx.waiter, failed),
            };
            let turn = not_held.and_then(|()| {
                let ended = interruptible || failed;
                self.gates
                    .wait_commit_turn(seqno, before, &trx.waiter, ended)
            });
            match turn {
                Ok(()) => {}
                // Who waits no longer has its place passed when it is released.
                Err(WaitError::Interrupted) if failed => match trx.lock().refused {
                    true => return Outcome::TrxFail,
                    // It was asked to give way before it failed.
                    false => {
                        trx.waiter.clear();
                        continue;
                    }
                },
                Err(WaitError::Interrupted) => return self.give_way(trx, ends),
                Err(_) => return Outcome::NodeFail,
            }
            // What began with its place still ahead may have begun before a pause.
            if interruptible || !self.gates.is_held(seqno) {
                break;
            }
        }
        if !interruptible && self.is_misplaced(seqno) {
            return Outcome::NodeFail;
        }
        let mut body = trx.lock();
        if interruptible && body.must_abort {
            drop(body);
            return self.give_way(trx, ends);
        }
        if body.stage != Stage::Failed {
            body.stage = Stage::Committing;
        }
        if interruptible && ends {
            self.client_enters(trx);
        }
        Outcome::Ok
    }

    /// Hands commit order on. `error`: what went wrong here, if anything.
    pub fn commit_order_leave(&self, trx: &Arc<Trx>, error: Option<&[u8]>) -> Outcome {
        let (seqno, flags) = {
            let body = trx.lock();
            (body.seqno, body.flags)
        };
        let outcome = match error {
            Some(text) if !text.is_empty() => self.vote(seqno, flags.is_toi(), text),
            _ => Outcome::Ok,
        };
        let failed_alike = error.is_some_and(|text| !text.is_empty()) && outcome == Outcome::Ok;
        {
            let mut body = trx.lock();
            body.stage = Stage::Left;
            body.failed_alike = failed_alike;
            if trx.kind == Kind::Local && body.ends() {
                body.thread = self.client_leaves(trx);
            }
        }
        self.gates.leave(seqno);
        outcome
    }

    /// The transaction is finished. Answers whether the object must be kept
    /// for the next fragment, and what to tell the server.
    pub fn release(&self, trx: &Arc<Trx>) -> (bool, Outcome) {
        self.client_is_done(trx);
        let mut body = trx.lock();
        let (seqno, stage) = (body.seqno, body.stage);
        if seqno >= 0 {
            if stage == Stage::Left {
                self.gates.release(seqno);
            } else {
                if body.is_fragment_that_passed() {
                    self.fragment_given_up(seqno);
                }
                self.gates.cancel(seqno);
            }
        }
        let committed = stage == Stage::Left && body.depends_on >= 0 && !body.failed_alike;
        if committed && body.ends() {
            self.counters.local_commits.fetch_add(1, Relaxed);
        }
        if committed && !body.ends() && !body.flags.is_rollback() {
            body.next_fragment();
            let outcome = if body.must_abort {
                Outcome::BfAbort
            } else {
                Outcome::Ok
            };
            return (true, outcome);
        }
        let streams = body.last_fragment >= 0 || body.flags.is_fragment();
        drop(body);
        self.closed.replayed(trx.id);
        self.trxs.remove(trx);
        if streams {
            self.end_stream(trx.id);
        }
        (false, Outcome::Ok)
    }

    /// Lets the node fall behind without slowing the others.
    pub fn desync(&self) -> Outcome {
        let Some(order) = self.order().filter(|_| self.serving()) else {
            return Outcome::ConnFail;
        };
        let (uuid, target) = {
            let mut shared = self.shared();
            shared.desyncs_asked += 1;
            shared.desyncs_open += 1;
            (shared.uuid, shared.desyncs_asked)
        };
        let message = encode(&Control::Desync { uuid });
        if order.propose(kind::CONTROL, 0, message).is_err() {
            self.desync_lost();
            return Outcome::ConnFail;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut shared = self.shared();
        while shared.desyncs_seen < target {
            if Instant::now() >= deadline || shared.phase != Phase::Joined {
                shared.desyncs_open = shared.desyncs_open.saturating_sub(1);
                drop(shared);
                // It may still be ordered: take it back behind it.
                let back = encode(&Control::Resync { uuid });
                let _ = order.propose(kind::CONTROL, 0, back);
                return Outcome::TrxFail;
            }
            shared = self.wait_shared(shared, deadline);
        }
        Outcome::Ok
    }

    /// A `Desync` was never ordered: nobody must wait for it, and it is not open.
    fn desync_lost(&self) {
        let mut shared = self.shared();
        shared.desyncs_seen += 1;
        shared.desyncs_open = shared.desyncs_open.saturating_sub(1);
        drop(shared);
        self.changed.notify_all();
    }

    /// Asks for the desyncs that are open: with this node's return the others have
    /// forgotten them, and would wait for one that stands still. Without a pause they are over if this node was
    /// `left_out`, as with Galera. Never blocks.
    pub(super) fn desync_again(&self, order: &Arc<dyn Order>, left_out: bool) {
        let keeps = !left_out || self.gates.paused_at().is_some();
        let (uuid, again, over) = {
            let mut shared = self.shared();
            // What has not taken its place yet comes behind the return.
            let coming = shared.desyncs_asked.saturating_sub(shared.desyncs_seen);
            let open = shared.desyncs_open.saturating_sub(coming);
            let (again, over) = if keeps { (open, 0) } else { (0, open) };
            shared.desyncs_open -= over;
            shared.desyncs_asked += again;
            shared.is_back_desynced = shared.desyncs_open > 0;
            (shared.uuid, again, over)
        };
        if over > 0 {
            self.note(
                "this node was left out while it was desynced (wsrep_desync); it is back, and no longer is: it takes \
                 part in flow control. To desync it again set wsrep_desync OFF and ON",
            );
        }
        for _ in 0..again {
            let message = encode(&Control::Desync { uuid });
            if order.propose(kind::CONTROL, 0, message).is_err() {
                // The order ends, and this node returns once more.
                self.shared().desyncs_seen += 1;
            }
        }
    }

    /// Ends one `desync`. Does not wait: the server is told when caught up. Never refused: the server would end
    /// itself. Members that cannot be told hear of it when this node is back.
    pub fn resync(&self) -> Outcome {
        let uuid = {
            let mut shared = self.shared();
            shared.desyncs_open = shared.desyncs_open.saturating_sub(1);
            shared.uuid
        };
        let Some(order) = self.order() else {
            return Outcome::Ok;
        };
        let message: Bytes = encode(&Control::Resync { uuid });
        if let Err(e) = order.propose(kind::CONTROL, 0, message) {
            self.note(&format!(
                "the others were not told that this node is no longer desynced: {e}"
            ));
        }
        Outcome::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::counted_size;

    /// The least limit that 26.4.23 lets pass for the same statements.
    #[test]
    fn write_sets_count_as_the_peers() {
        for (rows, data, least) in [(1, 134, 350), (2, 156, 380), (50, 1212, 1820)] {
            let parts = 3 + rows; // cluster, database, table
            assert_eq!(counted_size(parts, data), least, "{rows} rows inserted");
        }
        assert_eq!(counted_size(1, u64::MAX), u64::MAX);
    }
}
