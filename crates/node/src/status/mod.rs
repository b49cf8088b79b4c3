//! Status variables under the names that tools read.
//!
//! [`Snapshot`] is filled by the node and turned into the peer's list of 56
//! variables, same names, order and types (read off a running 26.4.23), with
//! ours behind them. The server puts `wsrep_` in front. The numbers that need
//! memory (averages, windows, rates) are kept by the accumulators of this
//! module, which are plain data: time comes in from outside.

mod meters;

use std::borrow::Cow;

use dromon_writeset::{Seqno, Uuid};

pub use meters::{LatencyStat, Mean, PausedTime, QueueStat, Rate, WindowStat};

/// Variables that a monitor is to watch, and what they are while all is well. The size of the log is
/// watched too, but what is too much of it only the disk knows.
const WATCHED: [(&str, &str); 8] = [
    ("dromon_state_differs", ""),
    ("dromon_log_held", ""),
    ("dromon_quarantined", ""),
    ("dromon_slow", "false"),
    ("dromon_durability_differs", ""),
    ("dromon_other_primary", ""),
    ("dromon_binary_log", "true"),
    ("dromon_stays_out", ""),
];

/// How many of those among `vars` are not well: one number, as many exporters drop every text.
pub fn alarms(vars: &[(Cow<'static, str>, StatusValue)]) -> i64 {
    let is_alarm = |(name, value): &&(Cow<'static, str>, StatusValue)| {
        let watched = WATCHED.iter().find(|(watched, _)| watched == name);
        watched.is_some_and(|(_, well)| *value != StatusValue::Str((*well).into()))
    };
    vars.iter().filter(is_alarm).count() as i64
}

/// One status variable, without the `wsrep_` in front.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusVar {
    /// Lower-case name.
    pub name: Cow<'static, str>,
    /// Type and value.
    pub value: StatusValue,
}

/// Type and value of a status variable.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusValue {
    /// Text. Switches are the texts `true` and `false`.
    Str(String),
    /// Whole number.
    Int(i64),
    /// Decimal number; the server shows six digits.
    Double(f64),
}

/// State of a node, as `wsrep_local_state` and `wsrep_local_state_comment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LocalState {
    /// Not in a primary component, or not connected at all.
    #[default]
    Initialized,
    /// In the cluster, not yet asking for state.
    Joining,
    /// A copy or the missing write sets are on their way.
    JoiningReceiving,
    /// Has a state and catches up.
    Joined,
    /// Current.
    Synced,
    /// Gives its state to another, or was told to fall behind.
    Donor,
    /// Its data differs from the cluster's.
    Inconsistent,
    /// The library is closed.
    Destroyed,
}

impl LocalState {
    /// The number that health checks compare.
    pub fn code(self) -> i64 {
        match self {
            LocalState::Initialized | LocalState::Destroyed => 0,
            LocalState::Joining | LocalState::JoiningReceiving => 1,
            LocalState::Donor => 2,
            LocalState::Joined => 3,
            LocalState::Synced => 4,
            LocalState::Inconsistent => 5,
        }
    }

    /// The text that health checks and proxies compare, letter by letter.
    pub fn comment(self) -> &'static str {
        match self {
            LocalState::Initialized => "Initialized",
            LocalState::Joining => "Joining",
            LocalState::JoiningReceiving => "Joining: receiving State Transfer",
            LocalState::Joined => "Joined",
            LocalState::Synced => "Synced",
            LocalState::Donor => "Donor/Desynced",
            LocalState::Inconsistent => "Inconsistent",
            LocalState::Destroyed => "Destroyed",
        }
    }
}

/// Current length, extremes and mean of a queue, since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueFigures {
    /// Items now.
    pub current: u64,
    /// Most items.
    pub max: u64,
    /// Fewest items.
    pub min: u64,
    /// Mean over all changes of the length.
    pub avg: f64,
}

/// Order of passing a gate, since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowFigures {
    /// Part that entered while a lower seqno had not left, 0 to 1.
    pub oooe: f64,
    /// Part that left before a lower seqno, 0 to 1.
    pub oool: f64,
    /// Mean distance of the highest to the lowest seqno under way.
    pub window: f64,
}

/// Round trips to the other members, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Shortest.
    pub min: f64,
    /// Mean.
    pub avg: f64,
    /// Longest.
    pub max: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// How many were measured.
    pub samples: u64,
}

/// Everything a node shows about itself at one moment.
///
/// Counters count from the start of the library; averages, extremes and windows
/// from the last reset (`FLUSH STATUS`). The default is a node that has not
/// connected yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// History of this node's data; nil: none.
    pub local_state_uuid: Uuid,
    /// Replication protocol in use, -1 without a cluster.
    pub protocol_version: i64,
    /// Application protocol, -1 without a cluster.
    pub protocol_application: i64,
    /// Replicator protocol, -1 without a cluster.
    pub protocol_replicator: i64,
    /// Group protocol, -1 without a cluster.
    pub protocol_gcs: i64,
    /// Released position.
    pub last_committed: Seqno,
    /// Own write sets ordered.
    pub replicated: u64,
    /// Their bytes.
    pub replicated_bytes: u64,
    /// Keys in them.
    pub repl_keys: u64,
    /// Bytes of keys.
    pub repl_keys_bytes: u64,
    /// Bytes of payload.
    pub repl_data_bytes: u64,
    /// Bytes of everything else.
    pub repl_other_bytes: u64,
    /// Events received from the cluster, own ones included.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Own write sets committed.
    pub local_commits: u64,
    /// Own write sets that failed certification.
    pub local_cert_failures: u64,
    /// Own write sets replayed.
    pub local_replays: u64,
    /// Waiting to be sent.
    pub send_queue: QueueFigures,
    /// Received and not yet taken by an applier.
    pub recv_queue: QueueFigures,
    /// Lowest seqno a joiner can still get from this node's log, 0: none.
    pub local_cached_downto: Seqno,
    /// Nanoseconds own writers were held back by flow control.
    pub flow_control_paused_ns: u64,
    /// The same as part of the time since the last reset, 0 to 1.
    pub flow_control_paused: f64,
    /// How often this node asked the others to slow down.
    pub flow_control_sent: u64,
    /// How often anyone did.
    pub flow_control_recv: u64,
    /// Own writers are held back now.
    pub flow_control_active: bool,
    /// This node asks the others to slow down now.
    pub flow_control_requested: bool,
    /// Mean of seqno minus depends_on.
    pub cert_deps_distance: f64,
    /// The apply gate.
    pub apply: WindowFigures,
    /// How often the apply gate made someone wait.
    pub apply_waits: u64,
    /// The commit gate.
    pub commit: WindowFigures,
    /// State of this node.
    pub local_state: LocalState,
    /// Keys in the certification index.
    pub cert_index_size: u64,
    /// Current reads done.
    pub causal_reads: u64,
    /// Mean of seqno minus last_seen minus 1.
    pub cert_interval: f64,
    /// Transactions that hold something here.
    pub open_transactions: u64,
    /// Connections that hold something here.
    pub open_connections: u64,
    /// Client addresses of the members in view order, with commas.
    pub incoming_addresses: String,
    /// Sum of the members' weights.
    pub cluster_weight: u64,
    /// How often this node was desynced and not resynced.
    pub desync_count: u64,
    /// Members that answer late.
    pub evs_delayed: String,
    /// Who may not come back: nobody.
    pub evs_evict_list: String,
    /// Round trips to the other members.
    pub evs_repl_latency: Latency,
    /// State of the group layer, as `OPERATIONAL` or `CLOSED`.
    pub evs_state: String,
    /// This node's own uuid; nil: not connected.
    pub gcomm_uuid: Uuid,
    /// This node's segment.
    pub gmcast_segment: u8,
    /// Variables of our own, shown behind the others in this order. Their names
    /// begin with `dromon_`.
    pub extra: Vec<(Cow<'static, str>, StatusValue)>,
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot {
            local_state_uuid: Uuid::NIL,
            protocol_version: -1,
            protocol_application: -1,
            protocol_replicator: -1,
            protocol_gcs: -1,
            last_committed: -1,
            replicated: 0,
            replicated_bytes: 0,
            repl_keys: 0,
            repl_keys_bytes: 0,
            repl_data_bytes: 0,
            repl_other_bytes: 0,
            received: 0,
            received_bytes: 0,
            local_commits: 0,
            local_cert_failures: 0,
            local_replays: 0,
            send_queue: QueueFigures::default(),
            recv_queue: QueueFigures::default(),
            local_cached_downto: 0,
            flow_control_paused_ns: 0,
            flow_control_paused: 0.0,
            flow_control_sent: 0,
            flow_control_recv: 0,
            flow_control_active: false,
            flow_control_requested: false,
            cert_deps_distance: 0.0,
            apply: WindowFigures::default(),
            apply_waits: 0,
            commit: WindowFigures::default(),
            local_state: LocalState::Initialized,
            cert_index_size: 0,
            causal_reads: 0,
            cert_interval: 0.0,
            open_transactions: 0,
            open_connections: 0,
            incoming_addresses: String::new(),
            cluster_weight: 0,
            desync_count: 0,
            evs_delayed: String::new(),
            evs_evict_list: String::new(),
            evs_repl_latency: Latency::default(),
            evs_state: "CLOSED".into(),
            gcomm_uuid: Uuid::NIL,
            gmcast_segment: 0,
            extra: Vec::new(),
        }
    }
}

impl Snapshot {
    /// The variables in the peer's order, then our own.
    pub fn vars(&self) -> Vec<StatusVar> {
        let mut out = List(Vec::with_capacity(56 + self.extra.len()));
        out.str("local_state_uuid", self.local_state_uuid);
        out.int("protocol_version", self.protocol_version);
        out.int("protocol_application", self.protocol_application);
        out.int("protocol_replicator", self.protocol_replicator);
        out.int("protocol_gcs", self.protocol_gcs);
        out.int("last_committed", self.last_committed);
        out.count("replicated", self.replicated);
        out.count("replicated_bytes", self.replicated_bytes);
        out.count("repl_keys", self.repl_keys);
        out.count("repl_keys_bytes", self.repl_keys_bytes);
        out.count("repl_data_bytes", self.repl_data_bytes);
        out.count("repl_other_bytes", self.repl_other_bytes);
        out.count("received", self.received);
        out.count("received_bytes", self.received_bytes);
        out.count("local_commits", self.local_commits);
        out.count("local_cert_failures", self.local_cert_failures);
        out.count("local_replays", self.local_replays);
        out.count("local_send_queue", self.send_queue.current);
        out.count("local_send_queue_max", self.send_queue.max);
        out.count("local_send_queue_min", self.send_queue.min);
        out.double("local_send_queue_avg", self.send_queue.avg);
        out.count("local_recv_queue", self.recv_queue.current);
        out.count("local_recv_queue_max", self.recv_queue.max);
        out.count("local_recv_queue_min", self.recv_queue.min);
        out.double("local_recv_queue_avg", self.recv_queue.avg);
        out.int("local_cached_downto", self.local_cached_downto);
        out.count("flow_control_paused_ns", self.flow_control_paused_ns);
        out.double("flow_control_paused", self.flow_control_paused);
        out.count("flow_control_sent", self.flow_control_sent);
        out.count("flow_control_recv", self.flow_control_recv);
        out.str("flow_control_active", self.flow_control_active);
        out.str("flow_control_requested", self.flow_control_requested);
        out.double("cert_deps_distance", self.cert_deps_distance);
        out.double("apply_oooe", self.apply.oooe);
        out.double("apply_oool", self.apply.oool);
        out.double("apply_window", self.apply.window);
        out.count("apply_waits", self.apply_waits);
        out.double("commit_oooe", self.commit.oooe);
        out.double("commit_oool", self.commit.oool);
        out.double("commit_window", self.commit.window);
        out.int("local_state", self.local_state.code());
        out.str("local_state_comment", self.local_state.comment());
        out.count("cert_index_size", self.cert_index_size);
        out.count("causal_reads", self.causal_reads);
        out.double("cert_interval", self.cert_interval);
        out.count("open_transactions", self.open_transactions);
        out.count("open_connections", self.open_connections);
        out.str("incoming_addresses", &self.incoming_addresses);
        out.str("cluster_weight", self.cluster_weight);
        out.str("desync_count", self.desync_count);
        out.str("evs_delayed", &self.evs_delayed);
        out.str("evs_evict_list", &self.evs_evict_list);
        out.str("evs_repl_latency", self.evs_repl_latency);
        out.str("evs_state", &self.evs_state);
        out.str("gcomm_uuid", self.gcomm_uuid);
        out.str("gmcast_segment", self.gmcast_segment);
        for (name, value) in &self.extra {
            out.0.push(StatusVar {
                name: name.clone(),
                value: value.clone(),
            });
        }
        out.0
    }
}

struct List(Vec<StatusVar>);

impl List {
    fn push(&mut self, name: &'static str, value: StatusValue) {
        self.0.push(StatusVar {
            name: Cow::Borrowed(name),
            value,
        });
    }

    fn str(&mut self, name: &'static str, value: impl ToString) {
        self.push(name, StatusValue::Str(value.to_string()));
    }

    fn int(&mut self, name: &'static str, value: i64) {
        self.push(name, StatusValue::Int(value));
    }

    fn count(&mut self, name: &'static str, value: u64) {
        self.int(name, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn double(&mut self, name: &'static str, value: f64) {
        // What cannot be a number for a tool is 0 for it.
        let value = if value.is_finite() { value } else { 0.0 };
        self.push(name, StatusValue::Double(value));
    }
}

/// Five numbers with slashes: exporters split them there.
impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for seconds in [self.min, self.avg, self.max, self.stddev] {
            write!(f, "{}/", six_digits(seconds))?;
        }
        write!(f, "{}", self.samples)
    }
}

/// A number in at most six significant digits: `0`, `0.5`, `2.4e-07`.
///
/// The form of C's `%g`, which is what readers of these five numbers expect.
fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let scientific = format!("{value:.5e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |digits: &str| match digits.contains('.') {
        true => digits
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_string(),
        false => digits.to_string(),
    };
    if (-4..6).contains(&exponent) {
        trim(&format!("{value:.*}", (5 - exponent) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SHOW STATUS LIKE 'wsrep%'` of the peer, without `wsrep_`: name and type.
    const PEER: &str = "\
        local_state_uuid s, protocol_version i, protocol_application i, protocol_replicator i, \
        protocol_gcs i, last_committed i, replicated i, replicated_bytes i, repl_keys i, \
        repl_keys_bytes i, repl_data_bytes i, repl_other_bytes i, received i, received_bytes i, \
        local_commits i, local_cert_failures i, local_replays i, local_send_queue i, \
        local_send_queue_max i, local_send_queue_min i, local_send_queue_avg d, \
        local_recv_queue i, local_recv_queue_max i, local_recv_queue_min i, \
        local_recv_queue_avg d, local_cached_downto i, flow_control_paused_ns i, \
        flow_control_paused d, flow_control_sent i, flow_control_recv i, flow_control_active s, \
        flow_control_requested s, cert_deps_distance d, apply_oooe d, apply_oool d, \
        apply_window d, apply_waits i, commit_oooe d, commit_oool d, commit_window d, \
        local_state i, local_state_comment s, cert_index_size i, causal_reads i, \
        cert_interval d, open_transactions i, open_connections i, incoming_addresses s, \
        cluster_weight s, desync_count s, evs_delayed s, evs_evict_list s, evs_repl_latency s, \
        evs_state s, gcomm_uuid s, gmcast_segment s";

    #[test]
    fn names_order_and_types_are_the_peers() {
        let vars = Snapshot::default().vars();
        let shown: Vec<String> = vars
            .iter()
            .map(|v| {
                let kind = match v.value {
                    StatusValue::Str(_) => 's',
                    StatusValue::Int(_) => 'i',
                    StatusValue::Double(_) => 'd',
                };
                format!("{} {kind}", v.name)
            })
            .collect();
        assert_eq!(shown.join(", "), PEER);
        assert_eq!(vars.len(), 56);
    }

    #[test]
    fn values_land_under_their_names() {
        let snapshot = Snapshot {
            last_committed: 7,
            replicated: u64::MAX,
            flow_control_active: true,
            flow_control_paused: f64::NAN,
            local_state: LocalState::Donor,
            cluster_weight: 5,
            evs_repl_latency: Latency {
                min: 2.4e-7,
                avg: 1.446e-6,
                max: 0.25,
                stddev: 1.0 / 3.0,
                samples: 5,
            },
            extra: vec![("dromon_voters".into(), StatusValue::Int(3))],
            ..Snapshot::default()
        };
        let vars = snapshot.vars();
        let of = |name: &str| &vars.iter().find(|v| v.name == name).expect(name).value;
        let text = |t: &str| StatusValue::Str(t.into());
        assert_eq!(of("last_committed"), &StatusValue::Int(7));
        assert_eq!(of("replicated"), &StatusValue::Int(i64::MAX));
        assert_eq!(of("flow_control_active"), &text("true"));
        assert_eq!(of("flow_control_requested"), &text("false"));
        assert_eq!(of("flow_control_paused"), &StatusValue::Double(0.0));
        assert_eq!(of("local_state"), &StatusValue::Int(2));
        assert_eq!(of("local_state_comment"), &text("Donor/Desynced"));
        assert_eq!(of("cluster_weight"), &text("5"));
        let latency = "2.4e-07/1.446e-06/0.25/0.333333/5";
        assert_eq!(of("evs_repl_latency"), &text(latency));
        let last = vars.last().expect("not empty");
        assert_eq!(last.name, "dromon_voters");
        assert_eq!(last.value, StatusValue::Int(3));
    }

    /// All that the page tells monitors to watch, but for the size of the log.
    #[test]
    fn what_a_monitor_watches_is_counted_in_one_number() {
        let page = include_str!("../../../../docs/status.md");
        let table = page.split("| all is well if it is |").nth(1);
        let rows = table.expect("a table").lines().skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let cells: Vec<(&str, &str)> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(|c| c.trim().trim_matches('`')).collect();
                (cells[1].strip_prefix("wsrep_").expect("ours"), cells[2])
            })
            .filter(|(name, _)| !matches!(*name, "dromon_alarms" | "dromon_log_bytes"))
            .collect();
        let said = WATCHED.map(|(name, well)| (name, if well.is_empty() { "empty" } else { well }));
        assert_eq!(cells, said);

        let text = |t: &str| StatusValue::Str(t.into());
        let mut vars: Vec<(Cow<'static, str>, StatusValue)> = vec![
            ("dromon_waiting_for".into(), text("db2")),
            ("dromon_log_bytes".into(), StatusValue::Int(7)),
        ];
        vars.extend(WATCHED.map(|(name, well)| (name.into(), text(well))));
        assert_eq!(alarms(&vars), 0);
        for (n, bad) in [
            "db3",
            "sync failed",
            "db2",
            "true",
            "db3",
            "10.0.0.2:4567",
            "false",
            "it",
        ]
        .iter()
        .enumerate()
        {
            vars[2 + n].1 = text(bad);
            assert_eq!(alarms(&vars), 1 + n as i64, "{}", vars[2 + n].0);
        }
    }

    #[test]
    fn states_have_the_codes_and_texts_tools_compare() {
        for (state, code, comment) in [
            (LocalState::Initialized, 0, "Initialized"),
            (LocalState::Joining, 1, "Joining"),
            (
                LocalState::JoiningReceiving,
                1,
                "Joining: receiving State Transfer",
            ),
            (LocalState::Donor, 2, "Donor/Desynced"),
            (LocalState::Joined, 3, "Joined"),
            (LocalState::Synced, 4, "Synced"),
            (LocalState::Inconsistent, 5, "Inconsistent"),
            (LocalState::Destroyed, 0, "Destroyed"),
        ] {
            assert_eq!((state.code(), state.comment()), (code, comment));
        }
    }

    #[test]
    fn six_digits_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (100000.0, "100000"),
            (1e6, "1e+06"),
            (1234567.0, "1.23457e+06"),
            (999999.6, "1e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (4.95e-6, "4.95e-06"),
            (0.1 + 0.2, "0.3"),
            (2.0 / 3.0, "0.666667"),
            (-1.5, "-1.5"),
            (f64::INFINITY, "0"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }
}
