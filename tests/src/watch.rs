//! What to show of servers that hang.

use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dromon_sandbox::{Cluster, Node};

use crate::load::Session;

/// Prints each node's state, its threads that do something, the row locks they
/// wait for and, of a node that is not usable, its log's end;
/// for a hang also writes the stacks of all its threads into its directory
/// (where gdb is installed).
pub fn report(cluster: &Cluster, hang: bool) {
    for node in cluster.nodes() {
        let status = Arc::clone(node).describe(Duration::from_secs(3));
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
        for line in inside(node) {
            println!("        {line}");
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

/// What the server's threads do, and which row locks they wait for.
fn inside(node: &Arc<Node>) -> Vec<String> {
    const THREADS: &str = "SELECT CONCAT('thread ', id, ': ', command, ' for ', IFNULL(time, 0), ' s, ', \
        IFNULL(state, ''), ': ', IFNULL(info, '')) FROM information_schema.processlist \
        WHERE command <> 'Sleep' AND id <> CONNECTION_ID()";
    const LOCKS: &str = "SELECT CONCAT('thread ', r.trx_mysql_thread_id, ' waits since ', r.trx_wait_started, \
        ' for a lock of thread ', b.trx_mysql_thread_id, ' on ', l.lock_table, ' ', IFNULL(l.lock_index, ''), \
        ' ', IFNULL(l.lock_data, '')) FROM information_schema.innodb_lock_waits w \
        JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id \
        JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id \
        JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id";
    // In a thread: a hung server may not answer at all.
    let (sender, receiver) = mpsc::channel();
    let node = Arc::clone(node);
    thread::spawn(move || {
        let lines = Session::open_within(&node, "", 0, Duration::from_secs(3))
            .ok()
            .map(|mut session| {
                [THREADS, LOCKS]
                    .into_iter()
                    .flat_map(|sql| session.rows::<String>(sql).unwrap_or_default())
                    .collect()
            });
        let _ = sender.send(lines); // the asker may have given up
    });
    receiver
        .recv_timeout(Duration::from_secs(8))
        .ok()
        .flatten()
        .unwrap_or_default()
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
