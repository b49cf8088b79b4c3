//! What the node says about itself.

use std::borrow::Cow;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use dromon_gates::QueueStats;
use dromon_order::OrderStatus;
use dromon_writeset::Uuid;

use super::{Node, Phase, lock};
use crate::cluster::MemberState;
use crate::delayed::Seen;
use crate::digests::Difference;
use crate::durabilities::Told;
use crate::flow::FlowStats;
use crate::messages::Progress;
use crate::options::Durability;
use crate::status::{
    Latency, LocalState, QueueFigures, Snapshot, StatusValue, StatusVar, WindowFigures, alarms,
};

fn mean(sum: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { sum as f64 / n as f64 }
}

/// Least, mean, most, deviation and number of some round trips.
fn latency(seconds: &[f64]) -> Latency {
    if seconds.is_empty() {
        return Latency::default();
    }
    let n = seconds.len() as f64;
    let avg = seconds.iter().sum::<f64>() / n;
    let variance = seconds.iter().map(|s| (s - avg).powi(2)).sum::<f64>() / n;
    Latency {
        min: seconds.iter().copied().fold(f64::INFINITY, f64::min),
        avg,
        max: seconds.iter().copied().fold(0.0, f64::max),
        stddev: variance.sqrt(),
        samples: seconds.len() as u64,
    }
}

/// What two members that differ mean, for both logs.
fn difference_text(name: &str, uuid: &Uuid, d: &Difference) -> String {
    format!(
        "Inconsistency detected: at seqno {} the state that decides about write sets is not the same here (digest \
         {:016x}) and on member {name} ({uuid}, digest {:016x}); {} other members have this node's digest there and \
         {} have not. From there on the two may decide differently, so their tables may differ or come to. Nothing \
         was stopped, as neither can know which is right. Stop writing, compare the tables of all members (CHECKSUM \
         TABLE), stop the member that stands alone, remove its grastate.dat and nothing else (without the \
         dromon-*.log files too, a start position, as systemd passes one, would be believed) and start it again: it takes \
         a full copy. Keep copies of the logs of both; this is a defect to be reported",
        d.seqno, d.own, d.other, d.agree, d.differ
    )
}

impl Node {
    /// Every status variable, in the order tools expect.
    pub fn status(&self) -> Vec<StatusVar> {
        self.snapshot().vars()
    }

    /// Zeroes averages and extremes; counters go on.
    pub fn reset_status(&self) {
        self.engines.forget_memory_peak();
        self.queue.reset_stats();
        lock(&self.unsent.0).reset();
        self.gates.reset_stats();
        self.flow.reset_stats();
        let c = &self.counters;
        for counter in [&c.cert_distance_sum, &c.cert_interval_sum, &c.certified] {
            counter.store(0, Relaxed);
        }
    }

    fn local_state(&self) -> LocalState {
        let shared = self.shared();
        match shared.phase {
            Phase::Inconsistent => LocalState::Inconsistent,
            Phase::Closed
            | Phase::Connecting
            | Phase::NonPrimary
            | Phase::Rejoining
            | Phase::Leaving => LocalState::Initialized,
            // It is no member any more, and comes to that.
            Phase::Joining | Phase::Joined if shared.own_leave => LocalState::Initialized,
            Phase::Joining if shared.joined.is_none() => LocalState::Joining,
            Phase::Joining => LocalState::JoiningReceiving,
            Phase::Joined => match shared.shown_state() {
                MemberState::Joiner => LocalState::Joining,
                MemberState::Donor => LocalState::Donor,
                MemberState::Joined => LocalState::Joined,
                MemberState::Synced => LocalState::Synced,
            },
        }
    }

    /// Names of members; those that left have only their uuid.
    pub(super) fn names(&self, uuids: &[Uuid]) -> Vec<String> {
        let shared = self.shared();
        let members = shared.view.iter().flat_map(|v| &v.members);
        let known: Vec<_> = members.map(|m| (m.uuid, m.name.as_str())).collect();
        let name = |uuid: &Uuid| {
            let found = known.iter().find(|(u, _)| u == uuid);
            found.map_or_else(|| uuid.to_string(), |(_, name)| (*name).to_owned())
        };
        uuids.iter().map(name).collect()
    }

    /// Compares another member's state with this node's, and says what differs.
    pub(super) fn compare(&self, progress: &Progress) {
        let found = lock(&self.digests).reported(progress.uuid, progress.digest);
        let Some(difference) = found else { return };
        let name = self.names(&[progress.uuid]).join("");
        self.error(&difference_text(&name, &progress.uuid, &difference));
    }

    /// Whether this node's log waits for its disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.settings().durability == Durability::Majority
    }

    /// Says who keeps its log otherwise than this node, once all have told.
    pub(super) fn look_for_durability(&self) {
        let others: Vec<(Uuid, String)> = {
            let shared = self.shared();
            if shared.phase != Phase::Joined {
                return;
            }
            let members = shared.view.iter().flat_map(|v| &v.members);
            let others = members.filter(|m| m.uuid != shared.uuid);
            others.map(|m| (m.uuid, m.name.clone())).collect()
        };
        let durable =
            |(uuid, name): &(Uuid, String)| Some((name.clone(), self.flow.durable(uuid)?));
        let Some(others) = others.iter().map(durable).collect::<Option<Vec<_>>>() else {
            return;
        };
        let others = others
            .iter()
            .map(|(name, durable)| (name.as_str(), *durable));
        let told = lock(&self.durabilities).look(self.waits_for_disk(), others);
        match told {
            None => {}
            Some(Told::Warning(text)) => self.warn(&text),
            Some(Told::Note(text)) => self.note(&text),
        }
    }

    /// Notes which members' reports are late (`evs.delay_margin`).
    pub(super) fn look_for_delays(&self) {
        let (own, members) = {
            let shared = self.shared();
            let view = shared
                .view
                .as_ref()
                .filter(|_| shared.phase == Phase::Joined);
            (
                shared.uuid,
                view.map(|v| v.members.clone()).unwrap_or_default(),
            )
        };
        let others = members.into_iter().filter(|m| m.uuid != own);
        let seen = others.filter_map(|m| {
            let silent = self.flow.silent(&m.uuid)?;
            Some(Seen {
                uuid: m.uuid,
                addr: m.addr,
                silent,
            })
        });
        let seen = seen.collect();
        let settings = self.settings();
        // Reports are that far apart when nothing is wrong.
        let margin = settings.delay_margin + 2 * self.timings().heartbeat;
        let keep = settings.delayed_keep_period;
        lock(&self.delayed).look(Instant::now(), seen, margin, keep);
    }

    fn snapshot(&self) -> Snapshot {
        let get = |c: &AtomicU64| c.load(Relaxed);
        let c = &self.counters;
        let connected = self.order().is_some();
        let committed = self.last_committed();
        let queue = self.queue.stats();
        let apply = self.gates.stats();
        let flow = self.flow.stats();
        let send_queue = lock(&self.unsent.0).figures();
        // Each lock by itself: in the struct below it would last to its end.
        let evs_delayed = lock(&self.delayed).text();
        let cached_downto = lock(&self.checkpoints).front().map_or(0, |m| m.seqno + 1);
        let open_connections = lock(&self.toi).len() as u64;
        let certified = get(&c.certified);
        let fraction = |part: u64| mean(part, apply.entered);
        let (view, uuid, own, apart) = {
            let shared = self.shared();
            // Who compares what servers show finds these beside the view that its server has, to the end of that.
            let ended = shared.final_delivered || shared.phase == Phase::Closed;
            let view = shared.view.clone().filter(|_| !ended);
            let belongs = matches!(shared.phase, Phase::Joining | Phase::Joined);
            let apart = shared.own_leave || !belongs;
            let own = view
                .as_ref()
                .and_then(|v| v.members.iter().find(|m| m.uuid == shared.uuid).cloned());
            (view, shared.uuid, own, apart)
        };
        let members = view.map(|v| v.members).unwrap_or_default();
        let witnesses = members.iter().filter(|m| m.witness);
        let witnesses: Vec<_> = witnesses.map(|m| m.name.clone()).collect();
        let status = self.order().map(|o| o.status()).unwrap_or_default();
        let version = |v: i64| if connected { v } else { -1 };
        let primary = status.primary;
        let extra = self.own_variables(status, &flow, &queue, &witnesses);
        Snapshot {
            local_state_uuid: committed.history,
            protocol_version: version(11),
            protocol_application: version(4),
            protocol_replicator: version(11),
            protocol_gcs: version(5),
            last_committed: committed.seqno,
            replicated: get(&c.replicated),
            replicated_bytes: get(&c.replicated_bytes),
            repl_keys: get(&c.repl_keys),
            repl_keys_bytes: get(&c.repl_keys_bytes),
            repl_data_bytes: get(&c.repl_data_bytes),
            repl_other_bytes: get(&c.repl_other_bytes),
            received: get(&c.received),
            received_bytes: get(&c.received_bytes),
            local_commits: get(&c.local_commits),
            local_cert_failures: get(&c.local_cert_failures),
            local_replays: get(&c.local_replays),
            send_queue,
            recv_queue: QueueFigures {
                current: queue.len as u64,
                max: queue.max as u64,
                min: queue.min as u64,
                avg: mean(queue.sum, queue.samples),
            },
            local_cached_downto: cached_downto,
            flow_control_paused_ns: u64::try_from(flow.paused.as_nanos()).unwrap_or(u64::MAX),
            flow_control_paused: flow.paused_fraction,
            flow_control_sent: flow.sent,
            flow_control_recv: flow.received,
            flow_control_active: flow.active,
            flow_control_requested: flow.requested,
            cert_deps_distance: mean(get(&c.cert_distance_sum), certified),
            apply: WindowFigures {
                oooe: fraction(apply.out_of_order_entered),
                oool: fraction(apply.out_of_order_left),
                window: mean(apply.window_sum, apply.entered),
            },
            apply_waits: apply.waits,
            commit: WindowFigures {
                oooe: 0.0,
                oool: 0.0,
                window: if apply.entered > 0 { 1.0 } else { 0.0 },
            },
            local_state: self.local_state(),
            cert_index_size: get(&c.cert_index),
            causal_reads: get(&c.causal_reads),
            cert_interval: mean(get(&c.cert_interval_sum), certified),
            open_transactions: self.trxs.count() as u64,
            open_connections,
            incoming_addresses: members
                .iter()
                .map(|m| m.incoming.as_str())
                .collect::<Vec<_>>()
                .join(","),
            // Outside the primary component nobody weighs anything.
            cluster_weight: match apart {
                true => 0,
                false => members.iter().map(|m| u64::from(m.weight)).sum(),
            },
            desync_count: own.as_ref().map_or(0, |m| u64::from(m.desync)),
            evs_delayed,
            // Who was removed may join again.
            evs_evict_list: String::new(),
            evs_repl_latency: latency(&self.engines.round_trips()),
            evs_state: if primary { "OPERATIONAL" } else { "CLOSED" }.into(),
            gcomm_uuid: if connected { uuid } else { Default::default() },
            gmcast_segment: self.settings().segment,
            extra,
        }
    }

    /// What only this library tells.
    fn own_variables(
        &self,
        status: OrderStatus,
        flow: &FlowStats,
        queue: &QueueStats,
        witnesses: &[String],
    ) -> Vec<(Cow<'static, str>, StatusValue)> {
        let get = |c: &AtomicU64| c.load(Relaxed);
        let c = &self.counters;
        let text = StatusValue::Str;
        let memory = self.engines.memory();
        let log_bytes = self.order().map_or(0, |o| o.log_bytes_before(u64::MAX));
        // As above: each lock by itself.
        let newest = lock(&self.digests).newest();
        let state_digest = match newest {
            (..=0, _) => String::new(),
            (seqno, digest) => format!("{seqno}:{digest:016x}"),
        };
        let differing = lock(&self.digests).differing();
        let differs = self.names(&differing);
        let stays_out = self.shared().stays_out.clone().unwrap_or_default();
        let log_held_by = self.log_held_by();
        let durable_seqno = lock(&self.durable).seqno();
        let open_large = self.open_large();
        let chunks_ahead = self.count_ahead();
        let bulk_waiting = self.bulk_waiting();
        let under_way = lock(&self.pending).sent.len();
        let slow = lock(&self.own_slow).slow().next().is_some();
        let durability_differs = lock(&self.durabilities).differing().join(",");
        let mut all = vec![
            ("dromon_memory".into(), StatusValue::Int(memory.0 as i64)),
            (
                "dromon_under_way".into(),
                StatusValue::Int(under_way as i64),
            ),
            (
                "dromon_memory_peak".into(),
                StatusValue::Int(memory.1 as i64),
            ),
            (
                "dromon_leader".into(),
                text(status.leader.map(|(_, a)| a).unwrap_or_default()),
            ),
            ("dromon_term".into(), StatusValue::Int(status.term as i64)),
            (
                "dromon_voters".into(),
                StatusValue::Int(status.members.voters().len() as i64),
            ),
            (
                "dromon_log_first".into(),
                StatusValue::Int(status.first_log as i64),
            ),
            (
                "dromon_log_last".into(),
                StatusValue::Int(status.last.index as i64),
            ),
            (
                "dromon_log_committed".into(),
                StatusValue::Int(status.committed as i64),
            ),
            ("dromon_log_held".into(), text(log_held_by)),
            (
                "dromon_log_bytes".into(),
                StatusValue::Int(log_bytes as i64),
            ),
            (
                "dromon_durable_seqno".into(),
                StatusValue::Int(durable_seqno),
            ),
            (
                "dromon_core_wait_us".into(),
                StatusValue::Int(status.core_wait.as_micros() as i64),
            ),
            (
                "dromon_gathered".into(),
                StatusValue::Int(status.gathered as i64),
            ),
            ("dromon_large_open".into(), text(open_large)),
            (
                "dromon_streamed_automatic".into(),
                StatusValue::Int(get(&c.streamed_automatic) as i64),
            ),
            (
                "dromon_chunks_begun_ahead".into(),
                StatusValue::Int(get(&c.begun_ahead) as i64),
            ),
            (
                "dromon_chunks_ahead".into(),
                StatusValue::Int(chunks_ahead as i64),
            ),
            (
                "dromon_streamed_asked_for".into(),
                StatusValue::Int(get(&c.streamed_asked_for) as i64),
            ),
            (
                "dromon_streams_shelved".into(),
                StatusValue::Int(get(&c.streams_shelved) as i64),
            ),
            (
                "dromon_bulk_waiting".into(),
                StatusValue::Int(bulk_waiting as i64),
            ),
            (
                "dromon_bulk_held_ns".into(),
                StatusValue::Int(get(&c.bulk_held_ns) as i64),
            ),
            ("dromon_stays_out".into(), text(stays_out)),
            ("dromon_slow".into(), text(slow.to_string())),
            (
                "dromon_quarantined".into(),
                text(flow.quarantined.join(",")),
            ),
            (
                "dromon_waiting_for".into(),
                text(flow.waiting_for.join(",")),
            ),
            ("dromon_witnesses".into(), text(witnesses.join(","))),
            ("dromon_state_digest".into(), text(state_digest)),
            ("dromon_state_differs".into(), text(differs.join(","))),
            ("dromon_durability_differs".into(), text(durability_differs)),
            ("dromon_other_primary".into(), text(self.named_beside())),
            (
                "dromon_binary_log".into(),
                text(self.db.has_binary_log().to_string()),
            ),
            (
                "dromon_send_bytes".into(),
                StatusValue::Int(status.pending_bytes as i64),
            ),
            (
                "dromon_recv_bytes".into(),
                StatusValue::Int(queue.bytes as i64),
            ),
            (
                "dromon_recv_in_files".into(),
                StatusValue::Int(queue.away as i64),
            ),
        ];
        let alarms = StatusValue::Int(alarms(&all));
        all.push(("dromon_alarms".into(), alarms));
        all
    }
}
