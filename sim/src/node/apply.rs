//! From the order into the database: appliers under their dependencies, the
//! commit gate in seqno order, acknowledgements, and copies for joiners.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dromon_node::Position;
use dromon_node::messages::{Control, Need};
use dromon_order::Order;
use dromon_writeset::{Seqno, Uuid};
use tokio::time::Instant;

use super::duties::COPY;
use super::{Ended, Entry, Fate, Inner, Phase, Session, Stage, Work};
use crate::database::{Image, Uncommitted};
use crate::oracle::Place;
use crate::plant::Plant;

/// How long a donor waits for the joiner to take a copy.
const COPY_WAIT: Duration = Duration::from_secs(3);
/// How long a joiner waits for its copy.
const COPY_PATIENCE: Duration = Duration::from_secs(15);
/// A joiner that found no donor asks again after this long.
const DONOR_RETRY: Duration = Duration::from_millis(500);
/// A donor says that it has no copy to give at the moment.
pub(super) const NOT_NOW: i32 = -11;

impl Inner {
    /// An event took its place.
    pub(super) fn order(&mut self, seqno: Seqno, entry: Entry) {
        if self.witness {
            // Nothing to do for it.
            self.positions.leave(seqno);
            self.positions.release(seqno);
            return;
        }
        // A copy may contain what is only delivered after it came.
        if seqno > self.floor {
            self.entries.insert(seqno, entry);
        }
    }
}

impl Session {
    /// Hands out what may be applied and commits what is ready.
    pub(super) fn pump(self: &Arc<Self>, inner: &mut Inner) {
        if inner.held {
            return;
        }
        loop {
            self.catch_up_database(inner);
            self.hand_out(inner);
            let next = inner.positions.left() + 1;
            let entry = inner.entries.get(&next);
            // One that lies ahead may be ready, and have no place yet.
            let placed = next <= inner.positions.last_ordered();
            if !placed || entry.is_none_or(|e| e.stage != Stage::Ready) {
                break;
            }
            self.commit(inner, next);
        }
        self.begin_donations(inner);
    }

    /// Appliers take events in seqno order; each waits for the dependency of
    /// the one it has.
    fn hand_out(self: &Arc<Self>, inner: &mut Inner) {
        let mut busy = 0;
        let mut start = Vec::new();
        for (seqno, e) in &mut inner.entries {
            if busy == self.shared.settings.appliers {
                break;
            }
            match e.stage {
                Stage::Waiting => {
                    busy += 1;
                    if inner.positions.may_apply(e.depends_on) {
                        e.stage = Stage::Running;
                        start.push(*seqno);
                    }
                }
                Stage::Running | Stage::Ready if e.local.is_none() => busy += 1,
                _ => {}
            }
        }
        for seqno in start {
            let extra = self.host.applying.extra_ms();
            let pause = if inner.rng.chance(20) {
                inner.rng.ms(5, 60)
            } else {
                inner.rng.ms(0, 2)
            };
            let pause = pause + inner.rng.ms(0, extra);
            inner.positions.entered(seqno, false);
            self.run_for(seqno, pause);
        }
    }

    /// Somebody works on `seqno` for this long.
    pub(super) fn run_for(self: &Arc<Self>, seqno: Seqno, pause: Duration) {
        let session = self.clone();
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let mut inner = session.inner();
            if let Some(e) = inner.entries.get_mut(&seqno)
                && e.stage == Stage::Running
            {
                e.stage = Stage::Ready;
            }
            session.pump(&mut inner);
            drop(inner);
            session.changed.notify_waiters();
        });
    }

    /// The turn of `seqno` has come.
    fn commit(self: &Arc<Self>, inner: &mut Inner, seqno: Seqno) {
        let slot = self.host.slot;
        let Some(entry) = inner.entries.get_mut(&seqno) else {
            return;
        };
        entry.stage = Stage::Left;
        let history = inner.state.position().history;
        let skip = self.shared.planted(Plant::SkipApply, slot) && seqno % 97 == 0;
        {
            let mut db = self.host.database();
            let (txn, done) = match &entry.work {
                Work::Whole(txn) if !skip => (txn.id, db.now.commit(seqno, txn)),
                Work::Part(chunked, part) => self.part(&mut db, history, seqno, chunked, *part),
                Work::View(members) => {
                    db.now.pass(seqno);
                    // The server would roll them back, and take places for that.
                    let left = |rows: &Uncommitted| members.contains(&rows.source);
                    let mut oracles = self.shared.oracles();
                    oracles.uncommitted(slot, "at a view", &db.now.uncommitted, left);
                    (0, Ok(()))
                }
                Work::Whole(_) | Work::Nothing => {
                    db.now.pass(seqno);
                    (0, Ok(()))
                }
            };
            if let Err(lost) = done {
                let mut oracles = self.shared.oracles();
                oracles.lost_update(slot, seqno, txn, lost);
            }
            let chain = db.now.chain;
            self.shared.oracles().committed(slot, seqno, chain);
        }
        self.throw_away(inner);
        if !inner.positions.leave(seqno) {
            self.shared
                .unsound(slot, format_args!("seqno {seqno} left out of turn"));
        }
        self.catch_up_database(inner);
        if inner.rng.chance(200) {
            let pause = inner.rng.ms(1, 8);
            let session = self.clone();
            self.spawn(async move {
                tokio::time::sleep(pause).await;
                let mut inner = session.inner();
                session.release(&mut inner, seqno);
                session.pump(&mut inner);
                drop(inner);
                session.changed.notify_waiters();
            });
        } else {
            self.release(inner, seqno);
        }
    }

    /// Seqnos that passed the gate by themselves pass the database too.
    pub(super) fn catch_up_database(&self, inner: &Inner) {
        if inner.witness {
            return;
        }
        let mut db = self.host.database();
        while db.now.position.seqno < inner.positions.left() {
            let seqno = db.now.position.seqno + 1;
            db.now.pass(seqno);
            let chain = db.now.chain;
            let mut oracles = self.shared.oracles();
            oracles.committed(self.host.slot, seqno, chain);
        }
    }

    fn release(&self, inner: &mut Inner, seqno: Seqno) {
        let Some(entry) = inner.entries.remove(&seqno) else {
            return;
        };
        inner.positions.release(seqno);
        let Some(local) = entry.local else { return };
        if !self.shared.planted_everywhere(Plant::AckAtPropose) {
            let place = Some(Place {
                seqno,
                index: entry.index,
                term: entry.term,
            });
            let mut oracles = self.shared.oracles();
            oracles.acked(self.host.slot, local.txn, place);
            if let Some(engine) = self.engine() {
                let status = engine.status();
                let mut voters = local.voters;
                voters.extend(status.members.configs);
                let synced = |id| self.shared.synced(id);
                oracles.durable(self.host.slot, entry.index, status.id, &voters, synced);
            }
        }
        self.note(format_args!("acknowledges txn {} at {seqno}", local.txn));
        // A client that went away does not ask any more.
        let _ = local.tell.send(Fate::Committed);
    }

    /// Writes the database to its disk now and then.
    pub(super) async fn flush_database(self: Arc<Self>) {
        let every = self.shared.settings.flush;
        loop {
            let pause = {
                let rng = &mut self.inner().rng;
                rng.ms(every.as_millis() as u64 / 2, every.as_millis() as u64)
            };
            tokio::time::sleep(pause).await;
            self.host.database().flush();
        }
    }

    /// Brings the database from where it is to where events can be applied.
    pub(super) async fn bring_up(self: Arc<Self>, position: Position) {
        let joined = loop {
            if let Some(joined) = self.wait(COPY_PATIENCE, |i| i.joined.clone()).await {
                break joined;
            }
        };
        let (view, need) = joined;
        if self.witness {
            return self.bring_up_witness();
        }
        let joined_at = view.position.seqno;
        let same = position.history == view.position.history;
        self.shared.count(|c| {
            c.joins += 1;
            c.copies += u64::from(need == Need::Copy);
        });
        let alike = same && position.seqno + 1 == joined_at;
        let skips = self.shared.planted_everywhere(Plant::CopySkipped);
        if alike && (need == Need::Log || skips) {
            self.start_at(position.seqno);
        } else if need == Need::Log {
            self.start_at(position.seqno);
            self.propose_joined();
        } else {
            let Some(image) = self.take_copy().await else {
                return self.end(Ended::Again { log_is_gone: false }, "no copy came");
            };
            let seqno = image.position.seqno;
            if image.position.history != view.position.history {
                let what = format_args!("the copy is of history {}", image.position.history);
                self.shared.unsound(self.host.slot, what);
            }
            self.host.database().replace(image);
            self.start_at(seqno);
            self.propose_joined();
        }
    }

    fn bring_up_witness(&self) {
        let mut inner = self.inner();
        inner.held = false;
        if inner.phase == Phase::Joining {
            inner.phase = Phase::Joined;
        }
        drop(inner);
        self.changed.notify_waiters();
        self.propose_joined();
    }

    fn propose_joined(&self) {
        if !self.shared.planted(Plant::NeverJoined, self.host.slot) {
            self.say(&Control::Joined { uuid: self.uuid });
        }
    }

    /// The database stands at `seqno`: what it has is dropped, the rest flows.
    fn start_at(self: &Arc<Self>, seqno: Seqno) {
        let chain = self.host.database().now.chain;
        if seqno > 0 {
            let mut oracles = self.shared.oracles();
            oracles.committed(self.host.slot, seqno, chain);
        }
        let mut inner = self.inner();
        self.note(format_args!("database starts at {seqno}"));
        inner.positions.reset(seqno);
        inner.entries = inner.entries.split_off(&(seqno + 1));
        inner.held = false;
        inner.floor = seqno;
        if inner.phase == Phase::Joining {
            inner.phase = Phase::Joined;
        }
        self.pump(&mut inner);
        drop(inner);
        self.changed.notify_waiters();
    }

    /// A full copy from a donor.
    async fn take_copy(&self) -> Option<Image> {
        // What is there is overwritten piece by piece from now on.
        self.host.database().erase();
        let deadline = Instant::now() + COPY_PATIENCE;
        loop {
            {
                let mut inner = self.inner();
                inner.no_donor = false;
                inner.transfer_failed = false;
            }
            self.say(&Control::StateRequest {
                joiner: self.uuid,
                donors: String::new(),
                request: b"copy".to_vec(),
            });
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self
                .wait(left, |i| {
                    if let Some(image) = i.received.take() {
                        return Some(Some(image));
                    }
                    (i.no_donor || i.transfer_failed).then_some(None)
                })
                .await?;
            if answer.is_some() {
                return answer;
            }
            if self.inner().transfer_failed {
                return None;
            }
            tokio::time::sleep(DONOR_RETRY).await;
        }
    }

    /// A copy came in; answers whether it is wanted.
    pub(super) fn copy_came(&self, joiner: Uuid, image: Image) -> bool {
        let mut inner = self.inner();
        if joiner != self.uuid || !inner.held || inner.received.is_some() {
            return false;
        }
        inner.received = Some(image);
        drop(inner);
        self.changed.notify_waiters();
        true
    }

    /// Starts giving copies whose place has come.
    fn begin_donations(self: &Arc<Self>, inner: &mut Inner) {
        let released = inner.positions.released();
        let (due, later) = std::mem::take(&mut inner.donations)
            .into_iter()
            .partition(|(seqno, ..)| *seqno <= released);
        inner.donations = later;
        let due: Vec<(Seqno, Uuid, String)> = due;
        for (_, joiner, addr) in due {
            let pause = inner.rng.ms(30, 600);
            let session = self.clone();
            self.spawn(async move { session.donate(joiner, addr, pause).await });
        }
    }

    async fn donate(self: Arc<Self>, joiner: Uuid, addr: String, pause: Duration) {
        let (image, lacks) = {
            let inner = self.inner();
            let db = self.host.database();
            let is_open = |id| inner.state.chunked().any(|(c, _)| c.id == id);
            (db.now.clone(), db.lacks_at(db.now.position, is_open))
        };
        if lacks && !self.shared.planted_everywhere(Plant::LackingDonates) {
            self.note(format_args!("gives no copy now: it lacks chunks"));
            self.shared.count(|c| c.lacking += 1);
            self.say(&Control::StateSent {
                donor: self.uuid,
                joiner,
                position: Position::UNDEFINED,
                error: NOT_NOW,
                gaps: Vec::new(),
            });
            return;
        }
        let position = image.position;
        tokio::time::sleep(pause).await;
        let Ok(bytes) = postcard::to_allocvec(&(joiner, image)) else {
            return;
        };
        let body: Bytes = [&[COPY][..], &bytes].concat().into();
        let net = &self.shared.net;
        let answer = net.request(self.host.slot, &addr, body, COPY_WAIT).await;
        let taken = answer.is_ok_and(|b| b == b"taken"[..]);
        self.note(format_args!(
            "copy of {} to {addr}: {}",
            position.seqno,
            if taken { "taken" } else { "failed" }
        ));
        self.say(&Control::StateSent {
            donor: self.uuid,
            joiner,
            position: if taken { position } else { Position::UNDEFINED },
            error: if taken { 0 } else { -110 },
            gaps: Vec::new(),
        });
    }
}
