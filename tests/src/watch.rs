//! What to show of servers that hang.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dromon_sandbox::{Cluster, Node};

use crate::load::Session;

/// So many different stacks of a node are printed.
const STACKS_SHOWN: usize = 40;
/// And so many frames of each.
const FRAMES_SHOWN: usize = 14;

/// Prints each node's state, its threads that do something, the row locks they
/// wait for and, of a node that is not usable, its log's end; the stacks of its threads (where
/// gdb is installed), which it writes whole into the node's directory.
pub fn report(cluster: &Cluster) {
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
        show_stacks(node);
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

/// Prints what the threads of a node that runs are at.
fn show_stacks(node: &Node) {
    let Some(process) = node.process() else {
        return;
    };
    let file = node.record().dir.join("stacks.txt");
    if !stacks(process.pid, &file) {
        return;
    }
    println!("        stacks: {}", file.display());
    let Ok(text) = fs::read_to_string(&file) else {
        return;
    };
    for (stack, threads) in in_short(&text).into_iter().take(STACKS_SHOWN) {
        println!("        {threads} at {stack}");
    }
}

/// Reports a cluster whose stop takes longer than `limit`, until what this answers is dropped.
pub fn unless_over(cluster: &Arc<Cluster>, limit: Duration) -> mpsc::Sender<()> {
    let (over, is_over) = mpsc::channel();
    let cluster = Arc::clone(cluster);
    thread::spawn(move || {
        if is_over.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            println!("    stopping takes more than {} s:", limit.as_secs());
            report(&cluster);
        }
    });
    over
}

/// The different stacks of what gdb says of all threads, in one line each, the innermost frame first, and how many
/// threads have each. Those without a frame that has to do with replication or a statement are left out.
fn in_short(text: &str) -> BTreeMap<String, usize> {
    let mut stacks = BTreeMap::new();
    for thread in text.split("\nThread ").skip(1) {
        let frames = thread.lines().filter(|l| l.starts_with('#'));
        let names: Vec<&str> = frames.filter_map(name).filter(|n| tells(n)).collect();
        if names.iter().any(|n| told_of(n)) {
            let shown = names.len().min(FRAMES_SHOWN);
            *stacks.entry(names[..shown].join(" < ")).or_insert(0) += 1;
        }
    }
    stacks
}

/// The function of a frame, without its parameters: `#1  0x12 in a::b (c=1) at d.rs:3`.
fn name(frame: &str) -> Option<&str> {
    let rest = frame.split_once(' ')?.1.trim_start();
    let rest = rest.split_once(" in ").map_or(rest, |(_, name)| name);
    let end = rest.find([' ', '(', '<']).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|n| !n.is_empty() && !n.starts_with('{') && *n != "??")
}

fn tells(name: &str) -> bool {
    const DULL: &[&str] = &[
        "std::",
        "core::",
        "parking_lot",
        "__",
        "syscall",
        "start_thread",
    ];
    !DULL.iter().any(|d| name.starts_with(d))
}

fn told_of(name: &str) -> bool {
    ["dromon", "wsrep", "mysql_", "MDL_"]
        .iter()
        .any(|w| name.contains(w))
}

fn stacks(pid: i32, file: &Path) -> bool {
    let Ok(out) = fs::File::create(file) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_told_in_short() {
        let text = "\
[New LWP 1]\n
Thread 3 (Thread 0x7f (LWP 3) \"mariadbd\"):
#0  0x00007f01 in syscall () from /lib/libc.so.6
#1  0x00007f02 in std::sys::futex::wait (a=1) at x.rs:1
#2  dromon_gates::queue::ApplyQueue<T>::pop (self=0x1) at queue.rs:9
#3  0x00007f03 in wsrep_replication_process(THD*, void*) ()
#4  0x00007f04 in ?? ()

Thread 2 (Thread 0x7e (LWP 2) \"mariadbd\"):
#0  0x00007f01 in __poll () from /lib/libc.so.6
#1  dromon_gates::queue::ApplyQueue<T>::pop (self=0x1) at queue.rs:9
#2  0x00007f03 in wsrep_replication_process(THD*, void*) ()

Thread 1 (Thread 0x7d (LWP 1) \"mariadbd\"):
#0  0x00007f01 in poll () from /lib/libc.so.6
#1  0x00007f05 in main ()
";
        let told = "dromon_gates::queue::ApplyQueue < wsrep_replication_process";
        assert_eq!(in_short(text), BTreeMap::from([(told.to_owned(), 2)]));
    }
}
