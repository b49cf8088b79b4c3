//! What to show of servers that hang.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dromon_sandbox::Cluster;

use crate::load::Session;

type Thread = (
    u64,
    Option<String>,
    Option<u64>,
    Option<String>,
    Option<String>,
);

/// Prints each node's state, its threads that do something and its log's end;
/// for a hang also writes the stacks of all its threads into its directory
/// (where gdb is installed).
pub fn report(cluster: &Cluster, hang: bool) {
    for node in cluster.nodes() {
        let status = std::sync::Arc::clone(node).describe(Duration::from_secs(3));
        println!(
            "    --- {}: {:?}{}",
            node.name(),
            status.process,
            status
                .silence
                .as_ref()
                .map(|s| format!(", {s}"))
                .unwrap_or_default()
        );
        let usable = status.usable().is_some();
        if let Some(wsrep) = status.wsrep {
            println!(
                "        {} at {}, {} to apply, cluster of {} ({})",
                wsrep.state(),
                wsrep.last_committed(),
                wsrep.get("wsrep_local_recv_queue"),
                wsrep.size(),
                wsrep.get("wsrep_cluster_status")
            );
        }
        // In a thread: a hung server may not answer at all.
        let (sender, receiver) = mpsc::channel();
        let asked = std::sync::Arc::clone(node);
        thread::spawn(move || {
            let threads = Session::open_within(&asked, "", 0, Duration::from_secs(3)).ok().and_then(|mut s| {
                s.rows::<Thread>(
                    "SELECT id, command, time, state, info FROM information_schema.processlist WHERE command <> 'Sleep' AND id <> CONNECTION_ID()",
                )
                .ok()
            });
            let _ = sender.send(threads); // the asker may have given up
        });
        for (id, command, time, state, info) in receiver
            .recv_timeout(Duration::from_secs(5))
            .ok()
            .flatten()
            .unwrap_or_default()
        {
            println!(
                "        thread {id}: {} for {} s, {}: {}",
                command.unwrap_or_default(),
                time.unwrap_or(0),
                state.unwrap_or_default(),
                info.unwrap_or_default()
            );
        }
        if let Some(process) = node.process().filter(|_| hang) {
            let file = node.record().dir.join("stacks.txt");
            if stacks(process.pid, &file) {
                println!("        stacks: {}", file.display());
            }
        }
        if !usable {
            println!("{}", node.log_tail(12));
        }
    }
}

fn stacks(pid: i32, file: &std::path::Path) -> bool {
    let Ok(out) = std::fs::File::create(file) else {
        return false;
    };
    Command::new("timeout")
        .args([
            "60",
            "gdb",
            "-p",
            &pid.to_string(),
            "-batch",
            "-ex",
            "thread apply all bt",
        ])
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
