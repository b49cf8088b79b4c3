//! Keeps the log as long as it is needed, and no longer: what is durable in the
//! database ([`Durable`]), who still needs what ([`retention`]), and the thread
//! that syncs.
//!
//! [`Durable`]: crate::durable::Durable

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dromon_gates::Seqno;
use dromon_order::{Order, OrderError, RaftId};

use super::{Node, Phase, lock};
use crate::cluster::{ClusterState, Member, MemberState};
use crate::durable::Held;
use crate::holders;
use crate::lags::{Lacks, place_of};
use crate::messages::Progress;
use crate::options::SlowNode;
use crate::quarantine::{Change, PATIENCE, Seen as Slow};
use crate::retention::{self, Limits, Need};

/// So much log is kept for an open streaming transaction that might have to be shelved,
/// here or by a node to come; no more than `dromon.log_max`.
const STREAM_LOG_MAX: u64 = 1 << 30;

/// How often it is looked for whom the log is long.
const HOLDERS_EVERY: Duration = Duration::from_secs(1);

/// How long the log stays for somebody who was told where to begin and is no member yet.
const PROMISED: Duration = Duration::from_secs(60);

/// The log that delivery began with.
pub(super) struct Found {
    /// Up to here it was looked at, whether it may go.
    looked: u64,
    /// Its newest checkpoint.
    newest: u64,
    /// The log bytes before that one.
    pub bytes_before: u64,
}

impl Node {
    /// Starts the thread that syncs the database's directory: a sync may take
    /// as long as the disk likes, and nobody waits for it before the end.
    pub(super) fn start_syncer(self: &Arc<Self>) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel::<Seqno>(1);
        *lock(&self.syncer) = Some(sender);
        let node = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("dromon-sync".into())
            .spawn(move || {
                while let Ok(seqno) = receiver.recv() {
                    let Some(node) = node.upgrade() else { return };
                    let run = || node.sync_data(seqno);
                    if catch_unwind(AssertUnwindSafe(run)).is_err() {
                        lock(&node.durable).synced(seqno, false);
                    }
                }
            })?;
        Ok(())
    }

    /// Has all that the database wrote synced, for what was finished up to `seqno`.
    pub(super) fn sync_files(&self, seqno: Seqno) -> std::io::Result<()> {
        // One at a time: of two the system may tell only one that something is lost.
        let _one = lock(&self.syncs);
        let result = match self.setup.witness {
            true => Ok(()), // there is no database
            false => self.engines.sync_data(&self.setup.data_dir),
        };
        lock(&self.durable).synced(seqno, result.is_ok());
        result
    }

    fn sync_data(&self, seqno: Seqno) {
        let dir = &self.setup.data_dir;
        if let Err(e) = self.sync_files(seqno) {
            self.error(&format!(
                "the file system of {} could not be synced: {e}. What the database wrote there may not be on the \
                 disk, and no later sync would tell, so this node's log keeps everything from here on until the \
                 server is restarted, or this node is evicted and joins again. Nothing acknowledged is lost. Check that disk; then restart this server, with \
                 the machine if it is to be trusted again",
                dir.display()
            ));
        }
    }

    /// Notes what is finished, and has it synced when that would help.
    pub(super) fn follow_database(&self) {
        if !self.shared().brought_up {
            return;
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = self.opened_at.elapsed();
        let released = self.gates.released();
        let marks: Vec<Seqno> = lock(&self.checkpoints).iter().map(|m| m.seqno).collect();
        let (asked, was, held) = {
            let mut durable = lock(&self.durable);
            let was = durable.held();
            let asked = durable.tick(now, wall.unwrap_or_default(), released, |from, to| {
                marks.iter().any(|m| from < *m && *m <= to)
            });
            if let Some(seqno) = asked
                && !self.hand_to_syncer(seqno)
            {
                durable.not_begun();
            }
            (asked, was, durable.held())
        };
        if asked.is_none() && was != held && held == Some(Held::Clock) {
            self.warn(&format!(
                "the clock of this machine was set back by {:.0} s: until it has passed its old time, or this server \
                 is restarted, the database's background flush may stand still, so this node's log is not shortened. \
                 Nothing else depends on the clock",
                lock(&self.durable).behind().as_secs_f64()
            ));
        }
    }

    fn hand_to_syncer(&self, seqno: Seqno) -> bool {
        match &*lock(&self.syncer) {
            Some(sender) => !matches!(
                sender.try_send(seqno),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            ),
            None => false,
        }
    }

    pub(super) fn log_limits(&self) -> Limits {
        let settings = self.settings();
        Limits {
            floor: settings.log_retain,
            max: settings.log_max,
        }
    }

    /// Drops what nobody needs any more: not this node's database after a
    /// crash, not a member behind, not a joiner within `gcache.size`, not who may have to
    /// apply one of the streams that are open in `state` whole.
    pub(super) fn purge_log(&self, order: &Arc<dyn Order>, state: &ClusterState, bytes_now: u64) {
        let limits = self.log_limits();
        let Some(others) = self.needs_of_others(&order.status().in_force, state, bytes_now, limits)
        else {
            return;
        };
        if self.is_given_up(bytes_now, limits.max) {
            return;
        }
        let mut own = self.needs_log();
        let promised = lock(&self.promised).lowest(PROMISED, Instant::now());
        if let Some(index) = promised {
            own = own.min(index);
        }
        // What is applied in chunks is read from there, and the first pieces of what may be are in memory
        // only as long as they are few. So is what is queued without its payload.
        let half = state.open_pieces_from();
        let read = [&self.left_in_log, &self.queued_in_log].map(|left| left.first());
        if let Some(first) = read.into_iter().flatten().chain(half).min() {
            own = own.min(first.saturating_sub(1));
        }
        let (shelved, ending) = {
            let held = lock(&self.held);
            (held.needs_log(), held.ending())
        };
        let keep = {
            let marks = lock(&self.checkpoints);
            let open = state.open_streams().map(|s| s.begins).chain(ending);
            let most = STREAM_LOG_MAX.min(limits.max);
            let streams = retention::for_streams(&marks, bytes_now, shelved, open, most);
            own = own.min(streams.unwrap_or(own));
            retention::keep(&marks, bytes_now, own, &others, limits)
        };
        let Some(keep) = keep else { return };
        // Not under the lock: the order thread reads the marks, and this waits
        // for the disk.
        if let Err(e) = order.purge_to(keep) {
            if let OrderError::Damaged(why) = &e {
                // The next newer one will do.
                return self.forget_mark(keep, why);
            }
            self.warn(&format!(
                "the log could not be shortened to index {keep}: {e}"
            ));
            return;
        }
        lock(&self.checkpoints).retain(|m| m.index >= keep);
    }

    /// What the log has now, as delivery begins.
    pub(super) fn log_found(&self) -> Found {
        let marks = lock(&self.checkpoints);
        let newest = marks.back();
        Found {
            looked: marks.front().map_or(0, |m| m.index),
            newest: newest.map_or(0, |m| m.index),
            bytes_before: newest.map_or(0, |m| m.bytes_before),
        }
    }

    /// Shortens the log that was found, once the database is known not to need it any more:
    /// where little is written, no checkpoint may come to do it before the next start.
    pub(super) fn shorten_found(
        &self,
        order: &Arc<dyn Order>,
        found: &mut Found,
        state: &ClusterState,
        bytes_now: u64,
    ) {
        if found.looked >= found.newest {
            return;
        }
        let needs = self.needs_log();
        if needs > found.looked {
            found.looked = needs;
            self.purge_log(order, state, bytes_now);
        }
    }

    /// Whether this node is so far behind that it holds more log than
    /// `dromon.log_max`, though nobody waits for it: then it leaves. What is only
    /// not yet durable in its database does not count.
    fn is_given_up(&self, bytes_now: u64, max: u64) -> bool {
        let quarantine = self.settings().slow_node == SlowNode::Quarantine;
        let synced = {
            let shared = self.shared();
            shared.phase == Phase::Joined && shared.own_state == MemberState::Synced
        };
        let released = self.gates.released();
        let behind = {
            let marks = lock(&self.checkpoints);
            let from = retention::restart_from(&marks, released);
            retention::exceeds(&marks, bytes_now, from, max)
        };
        let given_up = quarantine && synced && behind && self.flow.own_stop();
        if given_up {
            self.inconsistent(&format!(
                "this node applies too slowly: it stands at seqno {released}, the cluster at {}, and the log between is \
                 more than dromon.log_max ({max} bytes). The others do not wait for it (dromon.slow_node=quarantine), so \
                 it is given up",
                self.gates.last_ordered()
            ));
        }
        given_up
    }

    /// Notices who lacks how much of the log that is delivered here: writers, and large payloads before
    /// them, go at the pace of a log that takes less than they bring.
    pub(super) fn look_for_lacks(&self, order: &Arc<dyn Order>) {
        let own = self.shared().uuid;
        let reports = self.flow.reports();
        let said = reports
            .iter()
            .map(|r| &r.progress)
            .filter(|p| p.uuid != own);
        let marks: Vec<_> = {
            let marks = lock(&self.checkpoints);
            marks.iter().map(|m| (m.index, m.seqno)).collect()
        };
        let (at, here, oldest) = {
            let delivered = lock(&self.delivered);
            let here = (delivered.index, delivered.seqno);
            let up_to = |p: &Progress| match p.ordered >= here.1 {
                true => here.0,
                false => place_of(&delivered.recent, &marks, p.ordered).unwrap_or(here.0),
            };
            let at: Vec<_> = said.map(|p| (p.uuid, p.ordered, up_to(p))).collect();
            let oldest = delivered.recent.front().copied();
            (at, here, oldest.unwrap_or(here))
        };
        let lacks = |from: u64, to: u64| match from < to {
            true => {
                (order.log_bytes_before(to + 1)).saturating_sub(order.log_bytes_before(from + 1))
            }
            false => 0,
        };
        // What it lacks itself is not in its log: as many bytes for a seqno as of late.
        let ahead = at.iter().map(|(_, ordered, _)| ordered - here.1).max();
        let each = lacks(oldest.0, here.0) as f64 / (here.1 - oldest.1).max(1) as f64;
        let own_lack = ahead.map_or(0.0, |n| n.max(0) as f64 * each) as u64;
        self.own_lack.store(own_lack, Relaxed);
        let lacks = at.into_iter().map(|(uuid, ordered, from)| Lacks {
            uuid,
            ordered,
            bytes: lacks(from, here.0),
        });
        let lacks: Vec<_> = lacks.collect();
        self.flow.set_lacks(&lacks, self.log_limits().lag());
        order.hold_pieces(self.flow.holds_payloads());
    }

    /// Notices who keeps this node's writers waiting for long.
    pub(super) fn look_for_slow(&self) {
        let (own, is_synced) = {
            let shared = self.shared();
            if shared.phase != Phase::Joined {
                return;
            }
            (shared.uuid, shared.own_state == MemberState::Synced)
        };
        let quarantine = self.settings().slow_node == SlowNode::Quarantine;
        self.flow.set_only_synced(quarantine);
        let mut seen = self.flow.look(self.flow_limits());
        let now = Instant::now();
        let passed = {
            let at = lock(&self.slow).1.replace(now);
            at.map_or(Duration::ZERO, |at| now - at)
        };
        // While it catches up it is not Synced, and nobody with quarantine waits for it.
        let itself = seen.iter().copied().filter(|s| s.uuid == own && is_synced);
        let (own_lack, lag) = (self.own_lack.load(Relaxed), self.log_limits().lag());
        let lacks_log = own_lack > lag;
        let itself = itself.map(|s| Slow {
            holds: s.holds || lacks_log,
            caught_up: s.caught_up && own_lack <= lag / 4,
            ..s
        });
        let itself: Vec<_> = itself.collect();
        let own_changes = lock(&self.own_slow).look(passed, &itself);
        for change in own_changes {
            match change {
                Change::Slow(_) => self.warn(&format!(
                    "this node has kept the others' writers waiting for {} s: {}. Those with \
                     dromon.slow_node=quarantine do not wait for it any more until it has caught up; it is Synced all the \
                     while, and reads here are old unless they wait (wsrep_sync_wait)",
                    PATIENCE.as_secs(),
                    match lacks_log {
                        true => "its log, or the way to it, takes less than the cluster writes",
                        false => "it applies too slowly",
                    }
                )),
                Change::CaughtUp(_) => self.note("this node has caught up with the others' writers"),
            }
        }
        // It always waits for itself.
        seen.retain(|s| s.uuid != own);
        let (changes, slow) = {
            let mut slow = lock(&self.slow);
            let changes = slow.0.look(passed, &seen);
            (changes, slow.0.slow().collect::<BTreeSet<_>>())
        };
        self.flow
            .set_quarantined(if quarantine { slow } else { BTreeSet::new() });
        for change in changes {
            match change {
                Change::Slow(uuid) => {
                    let name = self.names(&[uuid]).join("");
                    let (why, advice) = match self.flow.lacks_log(&uuid) {
                        true => (
                            "its log, or the way to it, takes less than the cluster writes",
                            "Look at the disk of its log and at its network",
                        ),
                        false => (
                            "it applies too slowly",
                            "Look at its disk and its running statements",
                        ),
                    };
                    let time = PATIENCE.as_secs();
                    self.warn(&match quarantine {
                        true => format!(
                            "member {name} ({uuid}) has kept this node's writers waiting for {time} s, as {why}: it is in \
                             quarantine, and not waited for until it has caught up (dromon.slow_node). It stores the log \
                             and counts for durability all the while; reads there are old unless they wait \
                             (wsrep_sync_wait)"
                        ),
                        false => format!(
                            "member {name} ({uuid}) has kept this node's writers waiting for {time} s: {why}. {advice}; \
                             dromon.slow_node=quarantine lets it fall behind instead"
                        ),
                    });
                }
                Change::CaughtUp(uuid) => {
                    let name = self.names(&[uuid]).join("");
                    self.note(&format!("member {name} ({uuid}) has caught up"));
                }
            }
        }
    }

    /// What every other member needs; `None` if one has not said yet, or is gone
    /// from the view and not yet from the log's members.
    fn needs_of_others(
        &self,
        in_force: &BTreeSet<RaftId>,
        state: &ClusterState,
        bytes_now: u64,
        limits: Limits,
    ) -> Option<Vec<Need>> {
        let (own, members) = {
            let shared = self.shared();
            let members = shared.view.as_ref().map(|v| v.members.clone());
            (shared.uuid, members.unwrap_or_default())
        };
        if retention::misses_somebody(in_force, members.iter().map(|m| m.raft_id)) {
            return None;
        }
        let reports = self.flow.reports();
        let mut needs = Vec::new();
        for m in members.iter().filter(|m| m.uuid != own) {
            let said = reports.iter().find(|r| r.progress.uuid == m.uuid);
            let joins = m.state == MemberState::Joiner;
            let starts = joins.then_some(m.log_start);
            let mut index = match (said.map(|r| r.progress.needs_log), starts) {
                (Some(a), Some(b)) => a.min(b),
                (a, b) => a.or(b)?,
            };
            let quarantined = self.flow.is_quarantined(&m.uuid);
            // Whatever it waits for may last, but for a copy.
            let copies = joins && state.is_given_to(&m.uuid);
            let reported = said.filter(|_| !copies);
            if let Some(said) = reported {
                let delivered = said.progress.ordered;
                let (marks, of) = (lock(&self.checkpoints), (index, quarantined));
                let lacks = retention::for_reported(&marks, bytes_now, of, delivered, limits);
                drop(marks);
                if lacks > index && !quarantined {
                    lock(&self.holders).0.cut_off(m.uuid);
                }
                index = lacks;
            }
            let quarantined = quarantined && reported.is_none();
            needs.push(Need { index, quarantined });
        }
        Some(needs)
    }

    /// The index of the newest checkpoint from which a restart could rebuild
    /// what the database may have lost.
    pub(super) fn needs_log(&self) -> u64 {
        let durable = lock(&self.durable).seqno();
        retention::restart_from(&lock(&self.checkpoints), durable)
    }

    /// Why the log is not shortened, in a word or two, and for whom it is long; empty: nothing holds it.
    pub(super) fn log_held_by(&self) -> String {
        let why = match lock(&self.durable).held() {
            Some(Held::Clock) => Some("clock set back"),
            Some(Held::SyncFailed) => Some("sync failed"),
            None => None,
        };
        let own = self.shared().uuid;
        let mut much = match self.order() {
            Some(_) => lock(&self.holders).0.much().to_vec(),
            None => Vec::new(),
        };
        much.retain(|uuid| why.is_none() || *uuid != own);
        let names = self.names(&much);
        let why = why.map(str::to_owned);
        why.into_iter().chain(names).collect::<Vec<_>>().join(",")
    }

    /// Notices for whom the log is long.
    pub(super) fn look_for_holders(&self, order: &Arc<dyn Order>) {
        {
            let (now, at) = (Instant::now(), &mut lock(&self.holders).1);
            if at.is_some_and(|at| now - at < HOLDERS_EVERY) {
                return;
            }
            *at = Some(now);
        }
        let (own, members) = {
            let shared = self.shared();
            let members = shared.view.as_ref().map(|v| v.members.clone());
            (shared.uuid, members.unwrap_or_default())
        };
        let first = lock(&self.checkpoints).front().map(|m| m.index);
        let all = order.log_bytes_before(u64::MAX);
        let reports = self.flow.reports();
        let needs = |m: &Member| {
            if m.uuid == own {
                return Some(self.needs_log());
            }
            let said = reports.iter().find(|r| r.progress.uuid == m.uuid)?;
            let starts = (m.state == MemberState::Joiner).then_some(m.log_start);
            let needs = said.progress.needs_log;
            Some(starts.map_or(needs, |starts| starts.min(needs)))
        };
        let others = members
            .iter()
            .filter(|m| !self.flow.is_quarantined(&m.uuid));
        let seen = others.filter_map(|m| {
            let index = needs(m)?;
            Some(holders::Seen {
                uuid: m.uuid,
                bytes: all.saturating_sub(order.log_bytes_before(index + 1)),
                reaches: first.is_some_and(|first| first <= index),
            })
        });
        let seen: Vec<_> = seen.collect();
        let limits = self.log_limits();
        let changes = lock(&self.holders).0.look(&seen, limits);
        for change in changes {
            let (holders::Change::Beyond(uuid) | holders::Change::Back(uuid)) = change;
            let Some(m) = members.iter().find(|m| m.uuid == uuid) else {
                continue;
            };
            let who = match uuid == own {
                true => "this node".to_owned(),
                false => format!("member {} ({uuid})", m.name),
            };
            if matches!(change, holders::Change::Back(_)) {
                self.note(&format!("{who} needs no more of the log than usual again"));
                continue;
            }
            let most = limits.for_member();
            self.warn(&match uuid == own {
                true => format!(
                    "this node would need more than {most} bytes of its log (gcache.size and dromon.log_max) if it were \
                     started again: {}. Its log (dromon-*.log) grows until that is over. The others keep for it no more \
                     than what it has not stored here: if it stops, or dies and is removed, before it has caught up, it \
                     takes a full copy",
                    self.why_it_needs_log()
                ),
                false => format!(
                    "{who} would need more than {most} bytes of this node's log (gcache.size and dromon.log_max) if it \
                     were started again: it is paused or desynced (FLUSH TABLES WITH READ LOCK, RSU, a backup, a copy \
                     that it gives or takes), or its database is behind, or its log takes less than the cluster writes. From \
                     here on no more is kept for it than what \
                     it has not stored itself{}: if it stops, or dies and is removed, before it has caught up, it takes \
                     a full copy. wsrep_dromon_log_held names it until then",
                    match m.state {
                        MemberState::Joiner => ", unless it is being given a copy",
                        _ => "",
                    }
                ),
            });
        }
    }

    /// What keeps the database from being durable further on.
    fn why_it_needs_log(&self) -> &'static str {
        match lock(&self.durable).held() {
            Some(Held::Clock) => return "the clock of this machine was set back",
            Some(Held::SyncFailed) => return "its file system could not be synced",
            None => {}
        }
        let shared = self.shared();
        match shared.own_state {
            MemberState::Joiner => "it has no complete state yet",
            _ if self.gates.paused_at().is_some() => {
                "it is paused (FLUSH TABLES WITH READ LOCK, BACKUP STAGE, RSU, a copy that it gives)"
            }
            MemberState::Donor => "it is desynced, or gives a copy, and is behind",
            _ => "its database is behind, or a statement there runs for long",
        }
    }
}
