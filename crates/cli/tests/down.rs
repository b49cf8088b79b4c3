//! `dromon down` says how each server ended.

mod program;
mod unstarted;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dromon_sandbox::{Cluster, ProcessId};
use program::Running;
use unstarted::cluster;

const LIMIT: Duration = Duration::from_secs(60);
const CRASH: &str = "echo '[ERROR] /usr/sbin/mariadbd got signal 11 ;' >>\"$1\"; exit 1";

/// Puts a shell in the place of the server of the cluster's only node: told to end, it runs `script`.
fn with_server(cluster: &Cluster, script: &str) {
    let log = cluster.node(0).record().log;
    let ready = log.with_extension("ready");
    let mut child = Command::new("sh")
        .args([
            "-c",
            "trap \"$0\" TERM; : >\"$2\"; while :; do sleep 0.05; done",
        ])
        .args([script, &log.to_string_lossy(), &ready.to_string_lossy()])
        .stdin(Stdio::null())
        .spawn()
        .expect("a shell starts");
    let begin = Instant::now();
    while !ready.exists() {
        assert!(begin.elapsed() < LIMIT, "it never began");
        thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(ready).expect("it was there");
    let process = ProcessId::of(child.id().cast_signed()).expect("it runs");
    cluster
        .change_settings(|record| record.nodes[0].process = Some(process))
        .expect("recorded");
    // Reaped as soon as it ends, as init would.
    thread::spawn(move || child.wait());
}

fn down(dir: &Path) -> (i32, String) {
    down_so(dir, &[])
}

fn down_so(dir: &Path, options: &[&str]) -> (i32, String) {
    let (code, out, err) =
        Running::start(dir, &[&["down", "--dir", "c"], options].concat()).ended(LIMIT);
    (code, out + &err)
}

#[test]
fn a_server_that_crashes_while_it_stops_is_named() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    let cluster = cluster(dir);

    with_server(&cluster, "exit 0");
    let (code, said) = down(dir);
    assert!(code == 0 && said.contains("db1  stopped in"), "{said}");

    with_server(&cluster, CRASH);
    let (code, said) = down(dir);
    assert!(
        code == 1 && said.contains("db1  did not stop cleanly: it ended with signal 11"),
        "{said}"
    );
    assert!(said.contains("db1/error.log"), "{said}");

    // What the log said before is in the past.
    with_server(&cluster, "exit 0");
    let (code, said) = down(dir);
    assert!(code == 0 && said.contains("db1  stopped in"), "{said}");
}

/// The log is named as the place of the reason.
#[test]
fn what_a_purge_would_take_along_stays_if_a_log_says_why() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    let cluster = cluster(dir);

    with_server(&cluster, CRASH);
    let (code, said) = down_so(dir, &["--purge"]);
    assert!(code == 1 && said.contains("db1/error.log"), "{said}");
    let how = "To remove it all the same: dromon down --purge --dir c";
    assert!(said.contains(how), "{said}");
    let log = fs::read_to_string(dir.join("c/db1/error.log"));
    assert!(log.expect("it stays").contains("got signal 11"));

    let (code, said) = down_so(dir, &["--purge"]);
    assert!(code == 0 && said.contains("Removed "), "{said}");
    assert!(!dir.join("c").exists());
}

/// As on a full disk: what is down already asks for no room.
#[test]
fn what_is_down_is_not_written_of() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    drop(cluster(dir));
    let fresh = dir.join("c/cluster.json.new");
    fs::create_dir(&fresh).expect("nothing can be written there");
    let (code, said) = down(dir);
    assert!(code == 0 && said.contains("db1  was not running"), "{said}");
    fs::remove_dir(&fresh).expect("it stays");
    std::os::unix::fs::symlink("/dev/full", &fresh).expect("linked");
    let (code, said) = down_so(dir, &["--purge"]);
    assert!(code == 0 && said.contains("Removed "), "{said}");
    assert!(!dir.join("c").exists());
}

/// Somebody else has started a server on the node's data.
#[test]
fn what_was_started_by_hand_is_left_alone() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    let record = cluster(dir).node(0).record();
    fs::create_dir_all(&record.data_dir).expect("a data directory");
    let mut server = Command::new("sleep")
        .arg("600")
        .current_dir(&record.data_dir)
        .spawn()
        .expect("it runs");
    fs::write(record.dir.join("mysqld.pid"), server.id().to_string()).expect("room");
    let (code, said) = down(dir);
    let runs = server.try_wait().is_ok_and(|ended| ended.is_none());
    server.kill().expect("it is ours");
    server.wait().expect("it is ours");
    let says = format!(
        "db1  runs as process {}, which was not started",
        server.id()
    );
    assert!(code == 1 && said.contains(&says) && runs, "{said}");
    assert!(!said.contains("was not running"), "{said}");
}
