//! `dromon status`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use dromon_sandbox::{Cluster, ClusterStatus, NodeStatus, ProcessView, Result, Verdict};

use crate::output::Output;
use crate::{output, place};

/// Options of `dromon status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It knows clusters that `dromon up` made on this machine, and no others: there watch wsrep_cluster_status,\nwsrep_ready, wsrep_cluster_size, wsrep_local_state_comment and wsrep_dromon_state_differs,\n_other_primary, _log_held, _log_bytes, _quarantined, _slow, _durability_differs, _binary_log and _stays_out on every node (docs/status.md).\n\nExit codes: 0 every node is Synced and they agree; 1 writable, but something is missing, is slow, or not set\nalike (dromon.durability); 2 no node can be written to, the nodes disagree or are two clusters by now, or\nthere is no cluster."
)]
pub struct Args {
    /// Where the cluster lies.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Milliseconds a node has to answer.
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = clap::value_parser!(u64).range(50..=60_000))]
    timeout_ms: u64,
}

/// Asks all nodes and prints what they say.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = place::choose(args.dir.as_deref());
    let cluster = match Cluster::open(&dir) {
        Ok(cluster) => cluster,
        Err(error) => {
            output::tell(format_args!("dromon: {error}"));
            let mut out = Output::new();
            if args.json {
                // A program that reads this wants the same document when there is nothing to ask.
                out.line(json(&ClusterStatus {
                    verdict: Verdict::Bad,
                    sentence: error.to_string(),
                    nodes: Vec::new(),
                    witness: None,
                }));
            }
            return Ok(out.end(2));
        }
    };
    let status = cluster.status(Duration::from_millis(args.timeout_ms));
    let mut out = Output::new();
    if args.json {
        out.line(json(&status));
    } else {
        out.text(table(&status));
    }
    Ok(out.end(match status.verdict {
        Verdict::Good => 0,
        Verdict::Degraded => 1,
        Verdict::Bad => 2,
    }))
}

fn json(status: &ClusterStatus) -> String {
    serde_json::to_string_pretty(status).expect("a status is plain data and always has a JSON form")
}

const HEAD: [&str; 8] = [
    "node",
    "state",
    "size",
    "status",
    "committed",
    "recv queue",
    "flow control",
    "uuid",
];

fn table(status: &ClusterStatus) -> String {
    let mut rows: Vec<[String; 8]> = vec![HEAD.map(String::from)];
    rows.extend(status.nodes.iter().map(row));
    let mut width = [0; 8];
    for row in &rows {
        for (w, cell) in width.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let mut out = format!("{}\n\n", status.sentence);
    for row in &rows {
        let line: Vec<String> = row
            .iter()
            .zip(width)
            .map(|(cell, w)| format!("{cell:<w$}"))
            .collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    if let Some(witness) = &status.witness {
        let process = match (witness.process, witness.pid) {
            (ProcessView::Running, Some(pid)) => format!("runs as process {pid}"),
            (ProcessView::Stopped, _) => "held by SIGSTOP".into(),
            (ProcessView::Died, _) => "ended unasked".into(),
            _ => "down".into(),
        };
        out.push_str(&format!(
            "{}: {process}, 127.0.0.1:{}; votes and stores the log, has no data\n",
            witness.name, witness.port
        ));
    }
    for large in large_transactions(&status.nodes) {
        out.push_str(&format!("under way: {large}\n"));
    }
    let lacks = |node: &&NodeStatus| {
        let wsrep = node.wsrep.as_ref();
        wsrep.is_some_and(|w| w.get("wsrep_dromon_binary_log") == "false")
    };
    let lacking: Vec<&str> = status
        .nodes
        .iter()
        .filter(lacks)
        .map(|n| &*n.name)
        .collect();
    if !lacking.is_empty() {
        out.push_str(&format!(
            "no binary log (log_bin) on {}: what was rolled back to a savepoint may reach the other nodes \
             (docs/guarantees.md); set it on all nodes\n",
            lacking.join(", ")
        ));
    }
    for node in &status.nodes {
        if let Some(why) = node
            .silence
            .as_ref()
            .filter(|_| node.process != ProcessView::Down)
        {
            out.push_str(&format!("{}: {why}\n", node.name));
        }
    }
    out
}

/// The large transactions under way. Every node knows those that began while it was
/// there; of its own clients' it alone knows how long they were held back.
fn large_transactions(nodes: &[NodeStatus]) -> Vec<&str> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for node in nodes {
        let Some(wsrep) = &node.wsrep else { continue };
        let list = wsrep.get("wsrep_dromon_large_open").split("; ");
        for entry in list.filter(|e| !e.is_empty()) {
            let whose = entry.split_once(": ").map_or("", |(whose, _)| whose);
            let is_own = whose.ends_with(&format!(" on {}", node.name));
            match all.iter_mut().find(|(w, _)| *w == whose) {
                None => all.push((whose, entry)),
                Some(known) if is_own => known.1 = entry,
                Some(_) => {}
            }
        }
    }
    all.into_iter().map(|(_, entry)| entry).collect()
}

fn row(node: &NodeStatus) -> [String; 8] {
    let Some(wsrep) = &node.wsrep else {
        let state = match node.process {
            ProcessView::Running => "no answer",
            ProcessView::Stopped => "held by SIGSTOP",
            ProcessView::Died => "ended",
            ProcessView::Down => "down",
        };
        let mut cells = [const { String::new() }; 8].map(|_| "-".to_string());
        cells[0].clone_from(&node.name);
        cells[1] = state.into();
        return cells;
    };
    let paused: f64 = wsrep
        .get("wsrep_flow_control_paused")
        .parse()
        .unwrap_or(0.0);
    let active = if wsrep.get("wsrep_flow_control_active") == "true" {
        "active, "
    } else {
        ""
    };
    [
        node.name.clone(),
        wsrep.state().to_string(),
        wsrep.size().to_string(),
        wsrep.get("wsrep_cluster_status").to_string(),
        wsrep.last_committed().to_string(),
        wsrep.get("wsrep_local_recv_queue").to_string(),
        format!("{active}paused {:.1}%", paused * 100.0),
        wsrep.get("wsrep_cluster_state_uuid").to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_sandbox::WsrepStatus;

    /// A node that runs and shows one variable.
    fn shows(name: &str, variable: &str, value: &str) -> NodeStatus {
        NodeStatus {
            name: name.into(),
            pid: Some(1),
            process: ProcessView::Running,
            wsrep: Some(WsrepStatus::from_rows(vec![(
                variable.into(),
                value.into(),
            )])),
            silence: None,
        }
    }

    #[test]
    fn large_ones_stand_once_as_their_own_node_tells_them() {
        let node = |name: &str, list: &str| shows(name, "wsrep_dromon_large_open", list);
        let one = "transaction 7 of connection 3 on db2: 4 fragments, 1.0 MB, 2.0 s, asked for";
        let held = format!("{one}, held back for 0.5 s");
        let two = "transaction 9 of connection 5 on db1: 1 of 4 chunks, 2.0 MB, 0.1 s, automatic";
        let nodes = [
            node("db1", one),
            node("db2", &format!("{two}; {held}")),
            node("db3", &format!("{two}; {one}; and 3 smaller ones")),
        ];
        let all = large_transactions(&nodes);
        assert_eq!(all, [&held, two, "and 3 smaller ones"]);
        assert_eq!(large_transactions(&[node("db1", "")]), [""; 0]);
    }

    #[test]
    fn servers_without_a_binary_log_are_named() {
        let node = |name: &str, has: &str| shows(name, "wsrep_dromon_binary_log", has);
        let text = |has: [&str; 2]| {
            let nodes = vec![node("db1", has[0]), node("db2", has[1])];
            table(&ClusterStatus::judge(nodes, None))
        };
        assert!(text(["false", "false"]).contains("no binary log (log_bin) on db1, db2: "));
        assert!(text(["true", "false"]).contains("no binary log (log_bin) on db2: "));
        // A peer's does not tell.
        assert!(!text(["true", ""]).contains("binary log"));
    }

    #[test]
    fn who_keeps_its_log_otherwise_is_named_once() {
        let node =
            |name: &str, differs: &str| shows(name, "wsrep_dromon_durability_differs", differs);
        let alike = vec![node("db1", ""), node("db2", "")];
        assert!(!table(&ClusterStatus::judge(alike, None)).contains("durability"));
        let mixed = vec![node("db1", "db2"), node("db2", "db1")];
        let text = table(&ClusterStatus::judge(mixed, None));
        assert_eq!(
            text.matches("dromon.durability of db2 is not that of db1")
                .count(),
            1
        );
        assert_eq!(text.matches("dromon.durability").count(), 1);
    }

    /// An orderly end by somebody else looks the same.
    #[test]
    fn who_ended_unasked_is_not_called_dead() {
        let ended = NodeStatus {
            name: "db1".into(),
            pid: None,
            process: ProcessView::Died,
            wsrep: None,
            silence: Some("its process has ended".into()),
        };
        let text = table(&ClusterStatus::judge(vec![ended], None));
        assert!(text.contains("\ndb1   ended  "), "{text}");
        assert!(text.contains("`dromon up` starts it again"), "{text}");
        assert!(!text.contains("died"), "{text}");
    }

    #[test]
    fn a_table_of_a_good_and_a_silent_node() {
        let rows = [
            ("wsrep_local_state_comment", "Synced"),
            ("wsrep_ready", "ON"),
            ("wsrep_cluster_size", "2"),
            ("wsrep_cluster_status", "Primary"),
            ("wsrep_last_committed", "17"),
            ("wsrep_local_recv_queue", "0"),
            ("wsrep_flow_control_paused", "0.015"),
            ("wsrep_cluster_state_uuid", "u"),
        ];
        let wsrep =
            WsrepStatus::from_rows(rows.map(|(k, v)| (k.to_string(), v.to_string())).to_vec());
        let db1 = NodeStatus {
            name: "db1".into(),
            pid: Some(1),
            process: ProcessView::Running,
            wsrep: Some(wsrep),
            silence: None,
        };
        let db2 = NodeStatus {
            name: "db2".into(),
            pid: Some(2),
            process: ProcessView::Running,
            wsrep: None,
            silence: Some("no answer within 2000 ms".into()),
        };
        let text = table(&ClusterStatus::judge(vec![db1, db2], None));
        let expected = "\
writable on 1 of 2 nodes: db2 does not answer (no answer within 2000 ms)

node  state      size  status   committed  recv queue  flow control  uuid
db1   Synced     2     Primary  17         0           paused 1.5%   u
db2   no answer  -     -        -          -           -             -
db2: no answer within 2000 ms
";
        assert_eq!(text, expected);
    }
}
