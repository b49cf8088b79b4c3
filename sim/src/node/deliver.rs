//! What is ordered: through the deterministic state, to the oracles, and into
//! the entries that wait to be applied.

use std::sync::Arc;
use std::time::Duration;

use dromon_certify::Verdict;
use dromon_node::cluster::{ClusterState, ClusterView, Event, MemberState};
use dromon_node::messages::{Control, LeaveReason, decode, encode, kind};
use dromon_node::retention::misses_somebody;
use dromon_order::{Committed, CommittedBody, Desired, Engine, Order, Sequencer};
use dromon_writeset::{Key, KeyCollector, KeyType, Payload, Seqno, Uuid, WriteSet};
use tokio::time::Instant;
use twox_hash::XxHash3_64;

use super::apply::NOT_NOW;
use super::{Ended, Entry, Fate, Inner, Mark, Phase, Session, Stage, Work};
use crate::database::Txn;
use crate::large;
use crate::oracle::{Oracle, Part, Placed};
use crate::plant::Plant;

/// How long who was evicted counts on where that is planted.
const HALF_REMOVED: Duration = Duration::from_millis(2500);
/// How often an evicted node looks whether its log has failed.
const EVICTED_LOOKS: Duration = Duration::from_millis(100);
/// What an engine says that died of a panic of one of its tasks.
pub(super) const PANICKED: &str = "panicked";
/// States are compared at every index that this divides, and at views.
const DIGEST_EVERY: u64 = 50;

impl Session {
    /// Delivers until the order ends. `again`: entries that the newest
    /// checkpoint contains already and the database does not.
    pub(super) async fn deliver_all(self: Arc<Self>, again: Option<(u64, u64)>) {
        let Some(engine) = self.engine().cloned() else {
            return;
        };
        let pieces = self.piece_store();
        self.inner().state.set_piece_store(pieces, 0);
        if let Some((from, to)) = again {
            self.deliver_again(from, to);
        }
        self.publish(&mut self.inner());
        loop {
            engine.committed_ready().await;
            let batch = engine.next_committed(64, Duration::ZERO);
            if batch.is_empty() {
                if self.engine_died(&engine) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            for entry in &batch {
                if !self.inner().evicted {
                    self.deliver_one(entry);
                }
            }
            if self.inner().evicted {
                // The log goes on, as it may still count.
                engine.stand_down();
                while !self.engine_died(&engine) {
                    tokio::time::sleep(EVICTED_LOOKS).await;
                }
                return;
            }
            self.checkpoint_if_due();
            // Delivery takes a little time, and others get a turn.
            tokio::task::yield_now().await;
        }
    }

    /// Whether the engine has; then the session ends.
    fn engine_died(&self, engine: &Engine) -> bool {
        let Some(why) = engine.status().failed else {
            return false;
        };
        // No disk makes a task panic.
        if !self.host.disk_may_fail() || why.contains(PANICKED) {
            self.shared
                .unsound(self.host.slot, format_args!("the engine died: {why}"));
        }
        self.end(Ended::Exit(super::Exit::Died), "the engine died");
        true
    }

    /// Delivers from an older checkpoint up to the newest, and compares what
    /// comes out.
    fn deliver_again(self: &Arc<Self>, from: u64, to: u64) {
        let Some(engine) = self.engine() else { return };
        let mut next = from;
        while next <= to {
            match engine.read_log(next, to, 64 << 10) {
                Ok(entries) if !entries.is_empty() => {
                    for entry in &entries {
                        next = entry.index + 1;
                        self.deliver_one(entry);
                    }
                }
                other => {
                    let what = format_args!("the own log cannot be read at {next}: {other:?}");
                    return self.shared.unsound(self.host.slot, what);
                }
            }
        }
        let newest = engine.load_checkpoint(Some(to));
        let saved = newest.ok().flatten().and_then(|c| {
            let state = ClusterState::decode(&c.sequencer, &c.node).ok()?;
            Some(state.digest())
        });
        let now = self.inner().state.digest();
        if saved != Some(now) {
            let what = format!(
                "node {}: the log up to index {to} makes state {now:016x}, the checkpoint there has \
                 {saved:016x?}",
                self.host.slot
            );
            self.shared.oracles().fire(Oracle::StateDigest, what);
        }
    }

    fn deliver_one(self: &Arc<Self>, entry: &Committed) {
        let mut inner = self.inner();
        if entry.index != inner.index + 1 {
            let what = format_args!(
                "log index {} was handed out after {}",
                entry.index, inner.index
            );
            self.shared.unsound(self.host.slot, what);
        }
        inner.index = entry.index;
        inner.entries_since_checkpoint += 1;
        if let CommittedBody::Membership {
            voters,
            learners,
            configs,
        } = &entry.body
        {
            let ids = |m: &[(u64, String)]| m.iter().map(|(_, a)| a.clone()).collect::<Vec<_>>();
            self.note(format_args!(
                "index {}: voters {:?}, others {:?}",
                entry.index,
                ids(voters),
                ids(learners)
            ));
            if self.shared.oracles().is_present(self.host.slot) {
                let mut electorate = self.shared.electorate();
                electorate.voters(entry.index, configs.clone());
            }
        }
        let altered = self.plant(&mut inner, entry);
        let events = inner.state.deliver(altered.as_ref().unwrap_or(entry));
        for event in events {
            self.event(&mut inner, (entry.index, entry.term), event);
        }
        let at = inner.state.position().seqno;
        if inner.seqnos.last().is_none_or(|(_, s)| *s != at) {
            inner.seqnos.push((entry.index, at));
        }
        if entry.index.is_multiple_of(DIGEST_EVERY) {
            self.compare_state(&inner);
        }
        self.pump(&mut inner);
        drop(inner);
        self.changed.notify_waiters();
    }

    fn compare_state(&self, inner: &Inner) {
        let slot = self.host.slot;
        let wrong =
            self.shared.planted(Plant::AlteredDigest, slot) && inner.index.is_multiple_of(30);
        let digest = inner.state.digest() ^ u64::from(wrong);
        self.shared.count(|c| c.digests += 1);
        self.shared.oracles().digest(slot, inner.index, digest);
    }

    /// `at`: log index and term of the entry.
    fn event(self: &Arc<Self>, inner: &mut Inner, at: (u64, u64), event: Event) {
        let (index, term) = at;
        match event {
            Event::WriteSet {
                seqno,
                write_set,
                verdict,
                source,
                tag,
                ..
            } => self.write_set(inner, at, seqno, &write_set, &verdict, source, tag),
            Event::Chunk {
                seqno,
                chunked,
                part,
                depends_on,
            } => self.chunk(inner, at, (seqno, depends_on), chunked, part),
            Event::Ahead {
                place,
                chunked,
                part,
                depends_on,
            } => self.chunk_ahead(inner, at, (place, depends_on), chunked, part),
            Event::Nothing { first, last } => {
                self.note(format_args!("seqnos {first} to {last}: nobody's"));
                for seqno in first..=last {
                    self.nobody_placed(seqno);
                    inner.positions.ordered(seqno);
                    inner.positions.cancel(seqno);
                }
                self.shared
                    .count(|c| c.nobodys += (last - first + 1) as u64);
                self.pump(inner);
            }
            Event::View { view, joined, left } => {
                let seqno = view.position.seqno;
                inner.positions.ordered(seqno);
                self.view_placed(&view);
                let entry = Entry {
                    index,
                    term,
                    depends_on: seqno - 1,
                    stage: Stage::Waiting,
                    work: Work::View(view.members.iter().map(|m| m.uuid).collect()),
                    local: None,
                };
                inner.order(seqno, entry);
                inner.view_seen = true;
                for (member, reason) in &left {
                    inner.reports.remove(&member.uuid);
                    inner.known.remove(&member.uuid);
                    let counts_on = *reason == LeaveReason::Evicted
                        && self.shared.planted_everywhere(Plant::CutBehind);
                    if counts_on && !inner.forced_out.contains(&member.raft_id) {
                        inner.half_removed.insert(member.raft_id, Instant::now());
                    }
                    if member.uuid == self.uuid {
                        self.own_leave(inner, *reason);
                    }
                }
                for m in &view.members {
                    inner.known.entry(m.uuid).or_insert_with(Instant::now);
                }
                self.compare_state(inner);
                if let Some((uuid, need)) = joined {
                    self.own_join(inner, uuid, view, need);
                }
                self.publish(inner);
            }
            Event::Donate { donor, joiner, .. } if donor == self.uuid => {
                let seqno = inner.state.position().seqno;
                let member = inner.state.members().find(|m| m.uuid == joiner);
                if let Some(addr) = member.map(|m| m.addr.clone()) {
                    inner.donations.push((seqno, joiner, addr));
                }
            }
            Event::NoDonor { joiner } if joiner == self.uuid => inner.no_donor = true,
            Event::TransferEnded { joiner, error, .. } if joiner == self.uuid => match error {
                0 => {}
                NOT_NOW => inner.no_donor = true,
                _ => inner.transfer_failed = true,
            },
            Event::State { uuid, to, .. } => {
                self.publish(inner);
                if uuid == self.uuid {
                    self.note(format_args!("is {to:?}"));
                    inner.own_state = to;
                    inner.sync_asked = false;
                }
            }
            Event::Weight { .. } => self.publish(inner),
            Event::Corrupt { index, why } => {
                let what = format_args!("log index {index}: {why}");
                self.shared.unsound(self.host.slot, what);
            }
            _ => {}
        }
    }

    fn nobody_placed(&self, seqno: Seqno) {
        let placed = Placed {
            txn: None,
            keys: Vec::new(),
            event: 0,
            verdict: "nobody's".to_owned(),
            part: Part::None,
        };
        let mut oracles = self.shared.oracles();
        oracles.delivered(self.host.slot, seqno, placed);
    }

    fn view_placed(&self, view: &ClusterView) {
        let bytes = encode(view);
        let placed = Placed {
            txn: None,
            keys: Vec::new(),
            event: XxHash3_64::oneshot(&bytes),
            verdict: format!("view {} of {}", view.number, view.members.len()),
            part: Part::None,
        };
        let names: Vec<String> = view
            .members
            .iter()
            .map(|m| format!("{}{}", m.name, if m.complete { "" } else { "?" }))
            .collect();
        let seqno = view.position.seqno;
        self.note(format_args!(
            "seqno {seqno}: view {} of {}",
            view.number,
            names.join(" ")
        ));
        let mut oracles = self.shared.oracles();
        oracles.delivered(self.host.slot, seqno, placed);
    }

    #[allow(clippy::too_many_arguments)]
    fn write_set(
        self: &Arc<Self>,
        inner: &mut Inner,
        (index, term): (u64, u64),
        seqno: Seqno,
        write_set: &WriteSet,
        verdict: &Verdict,
        source: Uuid,
        tag: u64,
    ) {
        inner.positions.ordered(seqno);
        let Some(txn) = transaction(write_set) else {
            let what = format_args!("the payload at seqno {seqno} cannot be read");
            return self.shared.unsound(self.host.slot, what);
        };
        let passed = verdict.passed();
        if !(self.shared.planted(Plant::SkipSeqno, self.host.slot) && seqno % 101 == 0) {
            let header = write_set.header();
            let words = [
                header.trx_id,
                header.last_seen as u64,
                write_set.payload_sum(),
            ];
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let placed = Placed {
                txn: Some(txn.id),
                keys: if passed {
                    txn.ops.iter().map(|o| o.key()).collect()
                } else {
                    Vec::new()
                },
                event: XxHash3_64::oneshot_with_seed(index, &bytes),
                verdict: match verdict {
                    Verdict::Passed { depends_on } => format!("passed after {depends_on}"),
                    Verdict::Failed { reason } => format!("{reason:?}"),
                },
                part: Part::None,
            };
            self.note(format_args!(
                "seqno {seqno} at {index}: txn {} {}",
                txn.id,
                if passed {
                    placed.verdict.as_str()
                } else {
                    "failed"
                },
            ));
            let mut oracles = self.shared.oracles();
            oracles.delivered(self.host.slot, seqno, placed);
        }
        let local = if source == self.uuid {
            inner.pending.remove(&tag)
        } else {
            None
        };
        match (local, verdict) {
            (Some(local), Verdict::Failed { .. }) => {
                // The client rolls back; its place passes by itself.
                inner.positions.cancel(seqno);
                self.catch_up_database(inner);
                let _ = local.tell.send(Fate::Failed);
            }
            (local, verdict) => {
                let toi = write_set.flags().is_toi();
                let own_thread = local.is_some() && !toi;
                let entry = Entry {
                    index,
                    term,
                    depends_on: match verdict {
                        Verdict::Passed { depends_on } => *depends_on,
                        Verdict::Failed { .. } => seqno - 1,
                    },
                    stage: if own_thread {
                        Stage::Running
                    } else {
                        Stage::Waiting
                    },
                    work: match passed {
                        true => Work::Whole(txn),
                        false => Work::Nothing,
                    },
                    local,
                };
                inner.order(seqno, entry);
                if own_thread {
                    let pause = inner.rng.ms(0, 3);
                    self.run_for(seqno, pause);
                }
            }
        }
    }

    fn own_join(
        &self,
        inner: &mut Inner,
        uuid: Uuid,
        view: ClusterView,
        need: dromon_node::messages::Need,
    ) {
        if uuid != self.uuid {
            return;
        }
        let Some(member) = view.members.iter().find(|m| m.uuid == uuid).cloned() else {
            return;
        };
        inner.own_state = member.state;
        if inner.joined.is_none() {
            inner.joined = Some((view, need));
        } else if inner.phase == Phase::NonPrimary {
            // Back again; the data was never lost.
            inner.phase = Phase::Joined;
            inner.rejoin_asked = false;
            inner.sync_asked = false;
            // Clients come back when everything up to here is released: among
            // it may be what they sent before and gave up.
            inner.joined = Some((view, need));
            self.note(format_args!("is back"));
        }
    }

    fn own_leave(&self, inner: &mut Inner, reason: LeaveReason) {
        self.note(format_args!("own departure: {reason:?}"));
        if inner.state.members().any(|m| m.uuid == self.uuid) {
            // The other half of it follows at once.
            return;
        }
        inner.own_leave = Some(reason);
        // Nobody delivers what is sent from now on.
        self.abandon(inner);
        if reason == LeaveReason::Evicted
            && matches!(inner.phase, Phase::Joined | Phase::NonPrimary)
        {
            // Its log may be one of those that the others need, until they do
            // not name it any more: `watch_membership`.
            inner.evicted = true;
            inner.phase = Phase::NonPrimary;
        } else if inner.phase != Phase::Leaving && inner.ended.is_none() {
            inner.ended = Some(Ended::Again { log_is_gone: false });
            self.over.notify_one();
        }
    }

    /// Clients will not learn here what becomes of what they sent; what was not
    /// sent yet is taken back.
    pub(super) fn abandon(&self, inner: &mut Inner) {
        for (tag, pending) in std::mem::take(&mut inner.pending) {
            let engine = self.engine();
            if engine.is_some_and(|e| e.withdraw(kind::WRITE_SET, tag)) {
                self.shared.oracles().taken_back(pending.txn);
                self.shared.count(|c| c.taken_back += 1);
            } else {
                self.shared.count(|c| c.unknown += 1);
            }
        }
        // Those were sent.
        let large = std::mem::take(&mut inner.own_large).len() as u64;
        self.shared.count(|c| c.unknown += large);
    }

    /// Tells the order, and the oracle, whom the log should have as members.
    pub(super) fn publish(&self, inner: &mut Inner) {
        self.count_weighing(inner);
        let mut desired = inner.state.desired();
        desired.retain(|id, _| !inner.forced_out.contains(id));
        if self.shared.oracles().is_present(self.host.slot) {
            let voters = desired.iter().filter(|(_, d)| d.voter);
            let ids = voters.map(|(id, _)| *id).collect();
            self.shared.electorate().wanted(inner.index, ids);
        }
        let Some(engine) = self.engine() else { return };
        if self.shared.planted_everywhere(Plant::CutBehind) {
            // Most who leave are half removed for a moment only: not long
            // enough to cut the log behind them.
            inner
                .half_removed
                .retain(|_, at| at.elapsed() < HALF_REMOVED);
            for (id, addr) in engine.status().members.addrs {
                if inner.half_removed.contains_key(&id) {
                    desired.insert(id, Desired { addr, voter: true });
                }
            }
        }
        engine.set_desired(desired);
    }

    fn checkpoint_if_due(&self) {
        let mut inner = self.inner();
        let due = inner.view_seen
            || inner.entries_since_checkpoint >= self.shared.settings.checkpoint_entries;
        // What is open would be part of it whole.
        let open = inner.state.open_pieces_from().is_some() || inner.state.has_chunked();
        if !due || open {
            return;
        }
        let Some(engine) = self.engine() else { return };
        let (sequencer, node) = inner.state.encode();
        if engine
            .save_checkpoint(inner.index, sequencer, node)
            .is_err()
        {
            // The engine says why, and dies of it.
            return;
        }
        inner.view_seen = false;
        inner.entries_since_checkpoint = 0;
        let mark = Mark {
            index: inner.index,
            seqno: inner.state.position().seqno,
        };
        if inner.marks.back().is_none_or(|m| m.index < mark.index) {
            inner.marks.push_back(mark);
        }
        self.purge_log(&mut inner);
    }

    /// Drops what neither this database after a crash, nor a member behind, nor
    /// a joiner needs.
    fn purge_log(&self, inner: &mut Inner) {
        let Some(engine) = self.engine() else { return };
        let cuts_behind = self.shared.planted_everywhere(Plant::CutBehind);
        let heedless = cuts_behind || self.shared.planted_everywhere(Plant::LearnerErases);
        let view = inner.state.members().map(|m| m.raft_id);
        if !heedless && misses_somebody(&engine.status().in_force, view) {
            return;
        }
        let mut need = self.needs_log(inner);
        let half = inner.state.open_pieces_from();
        if let Some(first) = self.left.first().into_iter().chain(half).min() {
            need = need.min(first.saturating_sub(1));
        }
        for m in inner.state.members().filter(|m| m.uuid != self.uuid) {
            let said = inner.reports.get(&m.uuid).map(|(p, _)| p.needs_log);
            let starts = (m.state == MemberState::Joiner).then_some(m.log_start);
            let Some(index) = said.into_iter().chain(starts).min() else {
                return; // it has not said yet
            };
            need = need.min(index);
        }
        let retain = match cuts_behind {
            // Whoever is behind lacks what is cut.
            true => 0,
            false => self.shared.settings.retain_entries,
        };
        let floor = inner.index.saturating_sub(retain);
        let keep = inner
            .marks
            .iter()
            .rfind(|m| m.index <= need.min(floor))
            .map(|m| m.index);
        let Some(keep) = keep else { return };
        if inner.marks.front().is_some_and(|m| m.index == keep) {
            return;
        }
        if engine.purge_to(keep).is_ok() {
            inner.marks.retain(|m| m.index >= keep);
        }
    }

    /// The index of the newest checkpoint from which a restart could rebuild
    /// what the database would lose in a crash.
    pub(super) fn needs_log(&self, inner: &Inner) -> u64 {
        if self.witness {
            // Its restart begins at the newest one.
            return inner.marks.back().map_or(0, |m| m.index);
        }
        let durable = self.host.database().durable();
        let mark = inner.marks.iter().rfind(|m| m.seqno <= durable);
        mark.or(inner.marks.front()).map_or(0, |m| m.index)
    }

    /// The entry as a planted fault makes this node see it.
    fn plant(&self, inner: &mut Inner, entry: &Committed) -> Option<Committed> {
        let CommittedBody::Message(m) = &entry.body else {
            return None;
        };
        let slot = self.host.slot;
        let mut m = m.clone();
        if self.shared.planted_everywhere(Plant::DedupeOff) {
            if inner.renumbered.is_empty() {
                let (sequencer, _) = inner.state.encode();
                if let Ok(s) = Sequencer::decode(sequencer) {
                    inner.renumbered = s.origins().collect();
                }
            }
            // Those whose join is still to come begin with 1.
            let last = inner.renumbered.entry(m.origin).or_insert(0);
            *last += 1;
            m.oseq = *last;
        } else if self.shared.planted(Plant::SkipKeyType, slot)
            && m.kind == kind::WRITE_SET
            && m.part == dromon_order::Part::Whole
        {
            m.body = without_update_keys(&m.body)?;
        } else if self.shared.planted_everywhere(Plant::LocalCut) && m.kind == kind::CONTROL {
            let Some(Control::Cut { seqno }) = decode::<Control>(&m.body) else {
                return None;
            };
            let seqno = seqno.max(inner.positions.released().min(seqno + 40));
            m.body = encode(&Control::Cut { seqno });
        } else {
            return None;
        }
        Some(Committed {
            body: CommittedBody::Message(m),
            ..entry.clone()
        })
    }
}

/// What a write set carries, if that can be read.
fn transaction(write_set: &WriteSet) -> Option<Txn> {
    let payload = match write_set.payload() {
        Payload::Here(payload) => payload.clone(),
        Payload::Elsewhere(kept) => kept.read(0..kept.len()).ok()?,
    };
    match write_set.header().chunk {
        0 => postcard::from_bytes(&payload).ok(),
        _ => large::decode(&payload).ok(),
    }
}

/// The same write set, but without its UPDATE keys.
fn without_update_keys(body: &bytes::Bytes) -> Option<bytes::Bytes> {
    let write_set = WriteSet::decode(body.clone()).ok()?;
    let mut keys = KeyCollector::new();
    for key in write_set.keys().iter() {
        if key_type(&key) != KeyType::Update {
            let parts: Vec<Vec<u8>> = key
                .parts()
                .map(|p| p.printable().into_owned().into_bytes())
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            keys.add(&parts, key_type(&key)).ok()?;
        }
    }
    Some(dromon_writeset::encode(
        write_set.header(),
        &keys,
        write_set.payload().here()?,
    ))
}

fn key_type(key: &Key<'_>) -> KeyType {
    key.key_type
}
