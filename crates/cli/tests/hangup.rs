//! `dromon relay` and `dromon replica` under SIGHUP, as logrotate sends it.

mod program;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use program::Running;

/// Nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(60);

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Waits until the file is there and has this text.
fn has(file: &Path, text: &str) {
    let begin = Instant::now();
    while !fs::read_to_string(file).is_ok_and(|said| said.contains(text)) {
        assert!(begin.elapsed() < LIMIT, "no {text:?} in {}", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_log_that_was_moved_away_is_made_again() {
    const RELAY: &[&str] = &[
        "relay",
        "--set",
        "dir=r",
        "--set",
        "server_id=9",
        "--set",
        "primary=127.0.0.1:1",
        "--set",
        "user=u",
        "--set",
        "account=a:b",
        "--set",
        "listen=127.0.0.1:0",
    ];
    const REPLICA: &[&str] = &[
        "replica",
        "--set",
        "source=127.0.0.1:1",
        "--set",
        "source_user=u",
        "--set",
        "server_id=9",
        "--set",
        "target=127.0.0.1:1",
        "--set",
        "target_user=u",
    ];
    for (args, last) in [(RELAY, "Ends, as told"), (REPLICA, "0 transactions")] {
        let home = tempfile::tempdir().expect("a temporary directory");
        let (log, old) = (home.path().join("log"), home.path().join("log.1"));
        let running = Running::start(home.path(), &[args, &["--set", "log=log"]].concat());
        let pid = running.child.id();
        // Nobody answers at the address. By then it listens to signals.
        has(&log, "127.0.0.1:1");
        fs::rename(&log, &old).expect("moved");
        signal(pid, "-HUP");
        has(&log, "");
        assert!(fs::read_to_string(&old).is_ok_and(|text| !text.is_empty()));
        signal(pid, "-TERM");
        let (code, out, err) = running.ended(LIMIT);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        let said = fs::read_to_string(&log).expect("made again");
        assert!(said.contains(last), "{args:?}: {said}");
    }
}
