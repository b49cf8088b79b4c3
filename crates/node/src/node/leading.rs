//! What the leader does for all: it has the certification index shortened, and evicts who is gone or
//! stores too little.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_gates::Seqno;
use dromon_order::{Leadership, Order, OrderStatus, RaftId};
use dromon_writeset::Uuid;

use super::{Node, lock};
use crate::cluster::Member;
use crate::last_data;
use crate::messages::{Control, encode, kind};
use crate::options::Settings;
use crate::stalled::begins;

/// How often a leader says that the last member with data is silent.
const KEPT_TOLD: Duration = Duration::from_secs(60);
/// How many bytes of log a member may lack and have caught up.
const CAUGHT_UP: u64 = 1 << 20;
/// A member that has not reported yet may take so many times `evs.suspect_timeout`: its log answers, or does not.
const FIRST_REPORT: (u32, u32) = (60, 4);
/// The leader orders a cut when it has grown by this much,
const CUT_STEP: Seqno = 128;
/// or by anything if the index has more keys than this.
const CUT_KEYS: u64 = 100_000;

impl Node {
    /// What the leader does for all, at each look.
    pub(super) fn lead(&self, order: &Arc<dyn Order>) {
        self.alone_after_all(order);
        let Some(view) = self.shared().view.clone() else {
            return;
        };
        let own = self.shared().uuid;
        let counted: Vec<_> = view
            .members
            .iter()
            .filter(|m| m.complete && !m.witness)
            .map(|m| m.uuid)
            .collect();
        if let Some(safe) = self.flow.safe(&counted) {
            let many = self.counters.cert_closed.load(Relaxed) > CUT_KEYS;
            let step = if many { 1 } else { CUT_STEP };
            let mut cut = lock(&self.cut_asked);
            if safe - *cut >= step {
                *cut = safe;
                drop(cut);
                // The next report asks again if this one is lost.
                let _ = order.propose(kind::CONTROL, 0, encode(&Control::Cut { seqno: safe }));
            }
        }
        let settings = self.settings();
        let suspect = self.timings().evicts_after(settings.suspect_timeout);
        let status = order.status();
        let now = Instant::now();
        let matched = status.peers.iter().map(|(id, p)| (*id, p.matched));
        lock(&self.stalled).look(now, status.committed, matched);
        let committed = order.log_bytes_before(status.committed + 1);
        let lacks = |at| committed.saturating_sub(order.log_bytes_before(at + 1));
        // Its own join lies behind all the log that it lacks: it has nothing to report before.
        let is_fed = |m: &&Member| {
            let peer = status.peers.get(&m.raft_id);
            peer.is_some_and(|p| p.silent.is_some() && lacks(p.matched) > CAUGHT_UP)
        };
        let ids = view.members.iter().filter(|m| !is_fed(m));
        lock(&self.first_seen).look(now, ids.map(|m| (m.uuid, m.raft_id)));
        let behind = status
            .peers
            .iter()
            .filter(|(_, p)| p.matched < status.committed);
        let lacks = behind.map(|(id, p)| (*id, lacks(p.matched)));
        lock(&self.losing).look(now, self.log_limits().for_member(), lacks);
        let mut overdue = Vec::new();
        for m in view.members.iter().filter(|m| m.uuid != own) {
            let order_silent = status.peers.get(&m.raft_id).map(|p| p.silent);
            let reports_silent = self.flow.silent(&m.uuid);
            // Both the log and the reports must be silent; a joiner may not
            // have spoken yet.
            let silent = match (order_silent, reports_silent) {
                (Some(Some(a)), Some(b)) => a.min(b),
                (_, Some(b)) => b,
                (order, None) => {
                    let known = lock(&self.first_seen).known_for(now, m.uuid, m.raft_id);
                    let (answers, silent) = FIRST_REPORT;
                    match order.flatten() {
                        Some(a) if a < suspect => known / answers,
                        Some(a) => a / silent,
                        // It may still be starting.
                        None => known / silent,
                    }
                }
            };
            let why = match self.stores_too_little(now, m.raft_id, &status, &settings) {
                _ if silent >= suspect => format!("silent for {:.1} s", silent.as_secs_f64()),
                Some(why) => why,
                None => continue,
            };
            overdue.push((m, why));
        }
        self.evict(order, &view.members, &overdue, suspect, status.leads());
    }

    /// Orders that who is `overdue`, and why, be evicted; asked again after
    /// `suspect`.
    fn evict(
        &self,
        order: &Arc<dyn Order>,
        members: &[Member],
        overdue: &[(&Member, String)],
        suspect: Duration,
        by: Leadership,
    ) {
        let mut evicting = lock(&self.evicting);
        let asked = |uuid: &Uuid| evicting.get(uuid).is_some_and(|at| at.elapsed() < suspect);
        let silent = |uuid: &Uuid| overdue.iter().any(|(m, _)| m.uuid == *uuid);
        let kept = last_data::kept(members, silent, asked);
        let due: Vec<_> = overdue.iter().filter(|(m, _)| !asked(&m.uuid)).collect();
        for (m, why) in due {
            let who = format!("{} ({}) at {}", m.uuid, m.name, m.addr);
            if kept == Some(m.uuid) {
                self.keeps(m.uuid, &who, why);
                continue;
            }
            evicting.insert(m.uuid, Instant::now());
            self.note(&format!("declaring {who} inactive: {why}; it is evicted"));
            let leave = encode(&Control::Evict { uuid: m.uuid, by });
            let _ = order.propose(kind::CONTROL, 0, leave);
        }
    }

    /// Says, now and then, why a silent member is not evicted.
    fn keeps(&self, uuid: Uuid, who: &str, why: &str) {
        let mut told = lock(&self.kept_told);
        if told.is_some_and(|(last, at)| last == uuid && at.elapsed() < KEPT_TOLD) {
            return;
        }
        *told = Some((uuid, Instant::now()));
        self.note(&format!(
            "{who} is inactive: {why}. It is not evicted, as no other member that is heard has data: \
             nothing can be read or written before it is back. Start it again"
        ));
    }

    /// Why a member's log is worth no vote, if it stands still, or falls behind, for too long. One that is
    /// just beginning, or is given a checkpoint first, has four times as long to move, and need not gain.
    fn stores_too_little(
        &self,
        now: Instant,
        log: RaftId,
        status: &OrderStatus,
        settings: &Settings,
    ) -> Option<String> {
        let stood = lock(&self.stalled).for_long(now, log);
        let matched = status.peers.get(&log).map_or(0, |p| p.matched);
        let begins = begins(status.members.is_voter(log), matched, status.first_log);
        let patience = settings.inactive_timeout;
        if stood >= patience * if begins { 4 } else { 1 } {
            return Some(format!(
                "it answers, but its log has stored nothing for {:.1} s (evs.inactive_timeout): its disk hangs, or the \
                 way to it carries too little",
                stood.as_secs_f64()
            ));
        }
        let losing = lock(&self.losing).for_long(now, log);
        let (time, lacks) = losing.filter(|(time, _)| !begins && *time >= patience * 4)?;
        Some(format!(
            "its log lacks more than {lacks} bytes, more than is kept for a member (gcache.size and dromon.log_max), and \
             has come no nearer for {:.0} s (four times evs.inactive_timeout): its disk, or the way to it, takes less \
             than the cluster writes",
            time.as_secs_f64()
        ))
    }
}
