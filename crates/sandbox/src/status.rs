//! What the nodes say about themselves, and one sentence about all of it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::process::ProcessState;

/// The `wsrep_*` status variables of one node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WsrepStatus(BTreeMap<String, String>);

impl WsrepStatus {
    /// From rows of `SHOW GLOBAL STATUS LIKE 'wsrep_%'`.
    #[must_use]
    pub fn from_rows(rows: Vec<(String, String)>) -> Self {
        Self(
            rows.into_iter()
                .map(|(name, value)| (name.to_lowercase(), value))
                .collect(),
        )
    }

    /// A variable by its full name; empty if the server does not show it.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A variable as a number; none if it is missing or not a whole number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name).parse().ok()
    }

    /// `wsrep_local_state_comment`.
    #[must_use]
    pub fn state(&self) -> &str {
        self.get("wsrep_local_state_comment")
    }

    /// `wsrep_cluster_size`.
    #[must_use]
    pub fn size(&self) -> i64 {
        self.number("wsrep_cluster_size").unwrap_or(0)
    }

    /// `wsrep_last_committed`, -1 if unknown.
    #[must_use]
    pub fn last_committed(&self) -> i64 {
        self.number("wsrep_last_committed").unwrap_or(-1)
    }

    /// Seqno of `wsrep_se_checkpoint` (`uuid:seqno,gtid…`), the storage
    /// engine's position; none where the server does not show it.
    #[must_use]
    pub fn engine_checkpoint(&self) -> Option<i64> {
        let text = self.get("wsrep_se_checkpoint");
        let seqno = text.split_once(':')?.1;
        seqno
            .split(|c: char| !(c.is_ascii_digit() || c == '-'))
            .next()?
            .parse()
            .ok()
    }

    /// Part of the primary component.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.get("wsrep_cluster_status")
            .eq_ignore_ascii_case("primary")
    }

    /// Synced, ready and in the primary component: clients may use it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_writable() && self.state() == "Synced"
    }

    /// It takes writes, though it may not be one to choose for them: a donor, or one that is
    /// desynced, is not waited for.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let state = ["Synced", "Donor/Desynced"].contains(&self.state());
        self.is_primary() && state && self.get("wsrep_ready") == "ON"
    }
}

/// The process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessView {
    /// It runs.
    Running,
    /// It is held by SIGSTOP.
    Stopped,
    /// It ended without being asked to.
    Died,
    /// It was stopped by us, or never started.
    Down,
}

impl ProcessView {
    pub(crate) fn of(state: Option<ProcessState>) -> Self {
        match state {
            None => Self::Down,
            Some(ProcessState::Running) => Self::Running,
            Some(ProcessState::Stopped) => Self::Stopped,
            Some(ProcessState::Gone) => Self::Died,
        }
    }
}

/// One node's answer.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Node name.
    pub name: String,
    /// Process id, if it runs.
    pub pid: Option<i32>,
    /// Its process.
    pub process: ProcessView,
    /// Its variables; none if it did not answer in time.
    pub wsrep: Option<WsrepStatus>,
    /// Why there is no answer, in words.
    pub silence: Option<String>,
}

impl NodeStatus {
    /// The variables, if the node is usable by clients.
    #[must_use]
    pub fn usable(&self) -> Option<&WsrepStatus> {
        self.wsrep.as_ref().filter(|w| w.is_usable())
    }
}

/// The witness, as far as its process tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WitnessStatus {
    /// Its name among the members.
    pub name: String,
    /// Process id, if it runs.
    pub pid: Option<i32>,
    /// Its process.
    pub process: ProcessView,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

/// How well the cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every node is usable and they agree. Exit code 0.
    Good,
    /// Clients can write, but not everything is as it should be. Exit code 1.
    Degraded,
    /// No node can be written to, or the nodes disagree. Exit code 2.
    Bad,
}

/// The answers of all nodes and what they mean together.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterStatus {
    /// See [`Verdict`].
    pub verdict: Verdict,
    /// The verdict in words.
    pub sentence: String,
    /// One entry per node.
    pub nodes: Vec<NodeStatus>,
    /// The witness, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub witness: Option<WitnessStatus>,
}

impl ClusterStatus {
    /// Draws the conclusion from the nodes' answers.
    #[must_use]
    pub fn judge(nodes: Vec<NodeStatus>, witness: Option<WitnessStatus>) -> Self {
        let primary = primary(&nodes);
        let writable = primary.iter().filter(|(_, s)| s.is_writable()).count();
        let mut faults: Vec<String> = nodes.iter().flat_map(faults_of).collect();
        let count = nodes.len();
        faults.extend(witness.iter().filter_map(fault_of_witness));
        faults.extend(durability(&nodes));
        let members = count + usize::from(witness.is_some());
        let beside = match witness {
            Some(_) => " and the witness",
            None => "",
        };
        let joined = |parts: &[String]| parts.join("; ");
        let views = views(&primary);
        if views.len() > 1 {
            faults.push(format!(
                "the nodes do not know the same members: {}. Some may lag behind; look again, and stop writing if it stays",
                groups(&views)
            ));
        }
        let differs: Vec<String> = nodes.iter().filter_map(difference).collect();
        let others: Vec<String> = nodes.iter().filter_map(other_primary).collect();
        let (verdict, sentence) = if let Some(split) = disagreement(&primary) {
            (
                Verdict::Bad,
                format!("the nodes disagree: {split}. Stop writing and compare their data"),
            )
        } else if are_apart(&views) {
            (
                Verdict::Bad,
                format!(
                    "{} primary components: {}; stop writing: what one acknowledges the others do not have. \
                     Choose which goes on and stop the nodes of the others (docs/guarantees.md)",
                    number_word(views.len()),
                    groups(&views)
                ),
            )
        } else if !differs.is_empty() {
            (
                Verdict::Bad,
                format!(
                    "what decides about write sets differs: {}. Stop writing and compare the tables of all \
                     nodes; docs/status.md says how to go on",
                    joined(&differs)
                ),
            )
        } else if !others.is_empty() {
            (
                Verdict::Bad,
                format!(
                    "two primary components of one history, or there were a moment ago: {}. Both acknowledge, and what \
                     one acknowledges the other does not have. Stop writing and choose which goes on \
                     (docs/guarantees.md)",
                    joined(&others)
                ),
            )
        } else if writable == 0 {
            (
                Verdict::Bad,
                format!("no node can be written to: {}", joined(&faults)),
            )
        } else if !faults.is_empty() {
            (
                Verdict::Degraded,
                format!(
                    "writable on {writable} of {count} nodes: {}",
                    joined(&faults)
                ),
            )
        } else if let Some((name, status)) =
            primary.iter().find(|(_, s)| s.size() != as_i64(members))
        {
            let text = format!(
                "writable, but {name} sees a cluster of {} where {count} nodes{beside} run",
                status.size()
            );
            (Verdict::Degraded, text)
        } else {
            let slowest = primary
                .iter()
                .max_by_key(|(_, s)| s.number("wsrep_local_recv_queue").unwrap_or(0));
            let lag = slowest
                .filter(|(_, s)| s.number("wsrep_local_recv_queue").unwrap_or(0) > 0)
                .map(|(name, s)| {
                    format!(
                        "; {name} has {} write sets to apply",
                        s.get("wsrep_local_recv_queue")
                    )
                })
                .unwrap_or_default();
            let throttled = primary
                .iter()
                .any(|(_, s)| s.get("wsrep_flow_control_active") == "true");
            let pace = if throttled {
                "; flow control slows the writers now"
            } else {
                ""
            };
            (
                Verdict::Good,
                format!(
                    "writable, all {count} nodes Synced{}{lag}{pace}",
                    if witness.is_some() {
                        ", with the witness"
                    } else {
                        ""
                    }
                ),
            )
        };
        Self {
            verdict,
            sentence,
            nodes,
            witness,
        }
    }
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn disagreement(primary: &[(&str, &WsrepStatus)]) -> Option<String> {
    let (first, reference) = primary.first()?;
    let other = primary.iter().find(|(_, s)| {
        s.get("wsrep_cluster_state_uuid") != reference.get("wsrep_cluster_state_uuid")
    })?;
    Some(format!(
        "{first} and {} follow different histories",
        other.0
    ))
}

/// Whether nodes that are primary name different members. It may be for a moment only, as they do
/// not hear of a change at once.
pub(crate) fn members_differ(nodes: &[NodeStatus]) -> bool {
    views(&primary(nodes)).len() > 1
}

/// The nodes in a primary component, whatever their state: each vouches for what it says of the
/// members, and a donor of another component takes writes too.
fn primary(nodes: &[NodeStatus]) -> Vec<(&str, &WsrepStatus)> {
    let answers = nodes
        .iter()
        .filter_map(|n| Some((n.name.as_str(), n.wsrep.as_ref()?)));
    answers.filter(|(_, s)| s.is_primary()).collect()
}

/// Nodes that name the same members.
struct View<'a> {
    nodes: Vec<(&'a str, &'a WsrepStatus)>,
}

impl View<'_> {
    fn status(&self) -> &WsrepStatus {
        self.nodes[0].1
    }

    fn members(&self) -> Vec<&str> {
        self.status()
            .get("wsrep_incoming_addresses")
            .split(',')
            .collect()
    }

    /// Whether it counts a node of `other` among its members; none if the servers do not show it.
    fn counts(&self, other: &View<'_>) -> Option<bool> {
        let place = |s: &WsrepStatus| usize::try_from(s.number("wsrep_local_index")?).ok();
        let theirs = other.members();
        let mut addresses = other.nodes.iter().map(|(_, status)| {
            let address = theirs.get(place(status)?)?;
            (!address.is_empty()).then_some(*address)
        });
        let own = self.members();
        addresses.try_fold(false, |found, address| {
            Some(found || own.contains(&address?))
        })
    }
}

/// These nodes by the members they name; servers that do not number them are not compared.
fn views<'a>(primary: &[(&'a str, &'a WsrepStatus)]) -> Vec<View<'a>> {
    let key = |s: &'a WsrepStatus| {
        let names = [
            "wsrep_cluster_conf_id",
            "wsrep_cluster_size",
            "wsrep_incoming_addresses",
        ];
        names.map(|name| s.get(name))
    };
    let mut views: Vec<View<'a>> = Vec::new();
    for &(name, status) in primary.iter().filter(|(_, s)| !key(s)[0].is_empty()) {
        match views.iter_mut().find(|v| key(v.nodes[0].1) == key(status)) {
            Some(view) => view.nodes.push((name, status)),
            None => views.push(View {
                nodes: vec![(name, status)],
            }),
        }
    }
    views
}

/// Whether two of them are components of their own. One that only lags behind is counted
/// by those that are further.
fn are_apart(views: &[View<'_>]) -> bool {
    let apart =
        |a: &View<'_>, b: &View<'_>| !a.counts(b).unwrap_or(false) && !b.counts(a).unwrap_or(false);
    let pairs = views.iter().enumerate();
    pairs
        .into_iter()
        .any(|(i, a)| views[i + 1..].iter().any(|b| apart(a, b)))
}

fn groups(views: &[View<'_>]) -> String {
    let group = |v: &View<'_>| {
        let names: Vec<&str> = v.nodes.iter().map(|(name, _)| *name).collect();
        format!("{{{}}}", names.join(", "))
    };
    views.iter().map(group).collect::<Vec<_>>().join(", ")
}

fn number_word(count: usize) -> String {
    match count {
        2 => "two".into(),
        n => n.to_string(),
    }
}

/// What the node's library says about other members that decide otherwise.
fn difference(node: &NodeStatus) -> Option<String> {
    let others = node.wsrep.as_ref()?.get("wsrep_dromon_state_differs");
    (!others.is_empty()).then(|| format!("{} says it is not the same on {others}", node.name))
}

/// Who belongs to another primary component, as the node's library found last.
fn other_primary(node: &NodeStatus) -> Option<String> {
    let others = node.wsrep.as_ref()?.get("wsrep_dromon_other_primary");
    (!others.is_empty()).then(|| {
        format!(
            "{} hears of another one at {others} (wsrep_dromon_other_primary)",
            node.name
        )
    })
}

/// Whether members keep their logs otherwise than others, in the words of the first one
/// that says so.
fn durability(nodes: &[NodeStatus]) -> Option<String> {
    nodes.iter().find_map(|node| {
        let others = node.wsrep.as_ref()?.get("wsrep_dromon_durability_differs");
        (!others.is_empty()).then(|| {
            format!(
                "dromon.durability of {others} is not that of {}: what is acknowledged may be on fewer disks than a \
                 majority",
                node.name
            )
        })
    })
}

/// What of `wsrep_dromon_log_held` is no member's name.
const HELD_BY_ITSELF: [&str; 2] = ["sync failed", "clock set back"];

/// What is wrong with a node, and what it says is wrong elsewhere.
fn faults_of(node: &NodeStatus) -> Vec<String> {
    let mut faults: Vec<String> = fault(node).into_iter().collect();
    let Some(status) = &node.wsrep else {
        return faults;
    };
    let name = &node.name;
    let held = status.get("wsrep_dromon_log_held").split(',');
    let (causes, members): (Vec<_>, Vec<_>) = held
        .filter(|h| !h.is_empty())
        .partition(|h| HELD_BY_ITSELF.contains(h));
    for held in causes {
        faults.push(format!(
            "{name} cannot shorten its log ({held}), which grows"
        ));
    }
    if !members.is_empty() {
        faults.push(format!(
            "the log of {name} is long for {} (paused, desynced or behind)",
            members.join(",")
        ));
    }
    let quarantined = status.get("wsrep_dromon_quarantined");
    if !quarantined.is_empty() {
        faults.push(format!(
            "{name} does not wait for {quarantined}, which is too slow (quarantined)"
        ));
    }
    // Quarantined it keeps nobody waiting any more, and is slow all the same.
    if status.get("wsrep_dromon_slow") == "true" {
        faults.push(format!(
            "{name} has kept the others' writers waiting and has not caught up (wsrep_dromon_slow)"
        ));
    }
    faults
}

fn fault(node: &NodeStatus) -> Option<String> {
    let name = &node.name;
    match (node.process, &node.wsrep) {
        (ProcessView::Down, _) => Some(format!("{name} is down")),
        (ProcessView::Died, _) => Some(format!(
            "{name} ended unasked (its log may say why; `dromon up` starts it again)"
        )),
        (ProcessView::Stopped, _) => Some(format!("{name} is held by SIGSTOP")),
        (ProcessView::Running, None) => Some(format!(
            "{name} does not answer ({})",
            node.silence.as_deref().unwrap_or("no reason given")
        )),
        (ProcessView::Running, Some(status)) if status.is_usable() => None,
        (ProcessView::Running, Some(status)) if !status.is_primary() => {
            let why = match status.get("wsrep_dromon_stays_out") {
                "" => String::new(),
                why => format!(": {why}"),
            };
            Some(format!(
                "{name} is not in the primary component ({}){why}",
                status.state()
            ))
        }
        (ProcessView::Running, Some(status)) => {
            // The server rejects queries then, except with wsrep_dirty_reads.
            let rejects = match status.get("wsrep_ready") {
                "ON" => "",
                _ => " and takes no queries (wsrep_ready=OFF)",
            };
            Some(format!("{name} is {}{rejects}", status.state()))
        }
    }
}

fn fault_of_witness(witness: &WitnessStatus) -> Option<String> {
    let what = match witness.process {
        ProcessView::Running => return None,
        ProcessView::Down => "is down",
        ProcessView::Died => "ended unasked (its log may say why; `dromon up` starts it again)",
        ProcessView::Stopped => "is held by SIGSTOP",
    };
    Some(format!("the witness {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pairs: &[(&str, &str)]) -> WsrepStatus {
        let mut rows: Vec<(String, String)> = [
            ("wsrep_cluster_status", "Primary"),
            ("wsrep_ready", "ON"),
            ("wsrep_local_state_comment", "Synced"),
            ("wsrep_cluster_size", "3"),
            ("wsrep_cluster_state_uuid", "a"),
        ]
        .iter()
        .map(|(k, v)| ((*k).to_string(), (*v).to_string()))
        .collect();
        rows.extend(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_string(), (*v).to_string())),
        );
        WsrepStatus::from_rows(rows)
    }

    fn node(name: &str, process: ProcessView, wsrep: Option<WsrepStatus>) -> NodeStatus {
        let silence = wsrep.is_none().then(|| "timed out".to_string());
        NodeStatus {
            name: name.into(),
            pid: None,
            process,
            wsrep,
            silence,
        }
    }

    fn three(third: NodeStatus) -> ClusterStatus {
        let good = |name: &str| node(name, ProcessView::Running, Some(answer(&[])));
        ClusterStatus::judge(vec![good("db1"), good("db2"), third], None)
    }

    #[test]
    fn verdicts() {
        let running =
            |pairs: &[(&str, &str)]| node("db3", ProcessView::Running, Some(answer(pairs)));
        let cases: Vec<(NodeStatus, Verdict, &str)> = vec![
            (running(&[]), Verdict::Good, "writable, all 3 nodes Synced"),
            (
                running(&[("wsrep_local_recv_queue", "12")]),
                Verdict::Good,
                "writable, all 3 nodes Synced; db3 has 12 write sets to apply",
            ),
            (
                running(&[("wsrep_flow_control_active", "true")]),
                Verdict::Good,
                "writable, all 3 nodes Synced; flow control slows the writers now",
            ),
            (
                running(&[("wsrep_local_state_comment", "Donor/Desynced")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: db3 is Donor/Desynced",
            ),
            (
                running(&[
                    ("wsrep_local_state_comment", "Donor/Desynced"),
                    ("wsrep_ready", "OFF"),
                ]),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 is Donor/Desynced and takes no queries (wsrep_ready=OFF)",
            ),
            (
                running(&[("wsrep_ready", "OFF")]),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 is Synced and takes no queries (wsrep_ready=OFF)",
            ),
            (
                running(&[
                    ("wsrep_local_state_comment", "Donor/Desynced"),
                    ("wsrep_cluster_state_uuid", "b"),
                ]),
                Verdict::Bad,
                "the nodes disagree: db1 and db3 follow different histories. Stop writing and compare their data",
            ),
            (
                running(&[
                    ("wsrep_cluster_status", "non-Primary"),
                    ("wsrep_local_state_comment", "Initialized"),
                ]),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 is not in the primary component (Initialized)",
            ),
            (
                running(&[
                    ("wsrep_cluster_status", "non-Primary"),
                    ("wsrep_local_state_comment", "Initialized"),
                    ("wsrep_dromon_stays_out", "this node needs a full copy"),
                ]),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 is not in the primary component (Initialized): this node needs a full copy",
            ),
            (
                running(&[("wsrep_dromon_state_differs", "db1,db2")]),
                Verdict::Bad,
                "what decides about write sets differs: db3 says it is not the same on db1,db2. Stop writing and \
                 compare the tables of all nodes; docs/status.md says how to go on",
            ),
            (
                running(&[("wsrep_dromon_log_held", "sync failed")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: db3 cannot shorten its log (sync failed), which grows",
            ),
            (
                running(&[("wsrep_dromon_log_held", "clock set back,db1,db2")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: db3 cannot shorten its log (clock set back), which grows; the log of db3 is \
                 long for db1,db2 (paused, desynced or behind)",
            ),
            (
                running(&[("wsrep_dromon_quarantined", "db2")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: db3 does not wait for db2, which is too slow (quarantined)",
            ),
            (
                running(&[("wsrep_dromon_slow", "true")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: db3 has kept the others' writers waiting and has not caught up \
                 (wsrep_dromon_slow)",
            ),
            (
                running(&[("wsrep_dromon_slow", "false")]),
                Verdict::Good,
                "writable, all 3 nodes Synced",
            ),
            (
                running(&[("wsrep_dromon_other_primary", "h:1,h:2")]),
                Verdict::Bad,
                "two primary components of one history, or there were a moment ago: db3 hears of another one at h:1,h:2 \
                 (wsrep_dromon_other_primary). Both acknowledge, and what one acknowledges the other does not have. \
                 Stop writing and choose which goes on (docs/guarantees.md)",
            ),
            (
                running(&[("wsrep_dromon_durability_differs", "db1,db2")]),
                Verdict::Degraded,
                "writable on 3 of 3 nodes: dromon.durability of db1,db2 is not that of db3: what is acknowledged may be \
                 on fewer disks than a majority",
            ),
            (
                running(&[("wsrep_cluster_size", "2")]),
                Verdict::Degraded,
                "writable, but db3 sees a cluster of 2 where 3 nodes run",
            ),
            (
                node("db3", ProcessView::Down, None),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 is down",
            ),
            (
                node("db3", ProcessView::Running, None),
                Verdict::Degraded,
                "writable on 2 of 3 nodes: db3 does not answer (timed out)",
            ),
            (
                running(&[("wsrep_cluster_state_uuid", "b")]),
                Verdict::Bad,
                "the nodes disagree: db1 and db3 follow different histories. Stop writing and compare their data",
            ),
        ];
        for (third, verdict, sentence) in cases {
            let status = three(third);
            assert_eq!(
                (status.verdict, status.sentence.as_str()),
                (verdict, sentence)
            );
        }
        let donor = running(&[("wsrep_local_state_comment", "Donor/Desynced")]);
        let alone = ClusterStatus::judge(vec![donor], None);
        assert_eq!(
            (alone.verdict, alone.sentence.as_str()),
            (
                Verdict::Degraded,
                "writable on 1 of 1 nodes: db3 is Donor/Desynced"
            )
        );
        let all_gone = ClusterStatus::judge(vec![node("db1", ProcessView::Died, None)], None);
        assert_eq!(all_gone.verdict, Verdict::Bad);
        assert_eq!(
            all_gone.sentence,
            "no node can be written to: db1 ended unasked (its log may say why; `dromon up` starts it again)"
        );
    }

    #[test]
    fn two_primary_components_are_told_from_nodes_that_lag() {
        let judge = |answers: [&[(&str, &str)]; 3]| {
            let nodes = answers.iter().zip(["db1", "db2", "db3"]);
            let nodes = nodes.map(|(a, name)| node(name, ProcessView::Running, Some(answer(a))));
            let nodes: Vec<NodeStatus> = nodes.collect();
            let differ = members_differ(&nodes);
            let status = ClusterStatus::judge(nodes, None);
            (status.verdict, status.sentence, differ)
        };
        let bare = |size, conf| {
            [
                ("wsrep_cluster_size", size),
                ("wsrep_cluster_conf_id", conf),
            ]
        };
        let (verdict, said, differ) = judge([&bare("1", "7"), &bare("2", "4"), &bare("2", "4")]);
        assert_eq!((verdict, differ), (Verdict::Bad, true));
        assert!(
            said.starts_with("two primary components: {db1}, {db2, db3}; stop writing"),
            "{said}"
        );

        let with = |size, conf, members, own| {
            [
                ("wsrep_cluster_size", size),
                ("wsrep_cluster_conf_id", conf),
                ("wsrep_incoming_addresses", members),
                ("wsrep_local_index", own),
            ]
        };
        // The number of the view may be the same by chance.
        let (verdict, said, _) = judge([
            &with("1", "5", "h:1", "0"),
            &with("2", "5", "h:2,h:3", "0"),
            &with("2", "5", "h:2,h:3", "1"),
        ]);
        assert_eq!(verdict, Verdict::Bad, "{said}");
        // A donor, or one that is desynced, takes writes too.
        let mut donor = with("1", "5", "h:1", "0").to_vec();
        donor.push(("wsrep_local_state_comment", "Donor/Desynced"));
        let (verdict, said, differ) = judge([
            &donor,
            &with("2", "4", "h:2,h:3", "0"),
            &with("2", "4", "h:2,h:3", "1"),
        ]);
        assert_eq!((verdict, differ), (Verdict::Bad, true), "{said}");
        assert!(
            said.starts_with("two primary components: {db1}, {db2, db3}; stop writing"),
            "{said}"
        );
        // db3 has not applied up to the view in which db1 came.
        let (verdict, said, differ) = judge([
            &with("3", "5", "h:1,h:2,h:3", "0"),
            &with("3", "5", "h:1,h:2,h:3", "1"),
            &with("2", "4", "h:2,h:3", "1"),
        ]);
        assert_eq!((verdict, differ), (Verdict::Degraded, true), "{said}");
        assert!(said.contains("{db1, db2}, {db3}"), "{said}");
        let same = with("3", "5", "h:1,h:2,h:3", "0");
        assert!(!judge([&same, &same, &same]).2);
    }

    #[test]
    fn a_witness_counts_as_a_member_and_its_loss_is_said() {
        let judge = |process, size: &str| {
            let good = |name: &str| {
                let answer = answer(&[("wsrep_cluster_size", size)]);
                node(name, ProcessView::Running, Some(answer))
            };
            let witness = WitnessStatus {
                name: "witness".into(),
                pid: None,
                process,
                port: 1,
            };
            let status = ClusterStatus::judge(vec![good("db1"), good("db2")], Some(witness));
            (status.verdict, status.sentence)
        };
        let said = |verdict, text: &str| (verdict, text.to_string());
        assert_eq!(
            judge(ProcessView::Running, "3"),
            said(
                Verdict::Good,
                "writable, all 2 nodes Synced, with the witness"
            )
        );
        assert_eq!(
            judge(ProcessView::Running, "2"),
            said(
                Verdict::Degraded,
                "writable, but db1 sees a cluster of 2 where 2 nodes and the witness run"
            )
        );
        assert_eq!(
            judge(ProcessView::Died, "2"),
            said(
                Verdict::Degraded,
                "writable on 2 of 2 nodes: the witness ended unasked (its log may say why; `dromon up` starts it again)"
            )
        );
    }

    #[test]
    fn the_engines_position_is_read_with_and_without_a_gtid() {
        let seqno = |text: &str| answer(&[("wsrep_se_checkpoint", text)]).engine_checkpoint();
        assert_eq!(seqno("6f1c0a3e-0000-11ef-8000-000000000000:42"), Some(42));
        assert_eq!(
            seqno("6f1c0a3e-0000-11ef-8000-000000000000:42,0-1-7"),
            Some(42)
        );
        assert_eq!(seqno("00000000-0000-0000-0000-000000000000:-1"), Some(-1));
        assert_eq!(seqno(""), None);
    }
}
