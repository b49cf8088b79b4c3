//! `dromon witness` without a cluster: what it refuses, how it waits and ends.

mod program;

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use program::Running;

/// Nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(20);

fn start(dir: &Path, args: &[&str]) -> Running {
    Running::start(dir, &[&["witness"], args].concat())
}

/// Waits for its end; answers the exit code and what it wrote.
fn ended(running: Running) -> (i32, String) {
    let (code, out, err) = running.ended(LIMIT);
    (code, out + &err)
}

fn terminate(pid: u32) {
    signal(pid, "-TERM");
}

fn signal(pid: u32, which: &str) {
    let sent = Command::new("kill")
        .args([which, &pid.to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

/// Waits until the file contains `words`.
fn said(file: &Path, words: &str) {
    let begin = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.contains(words) {
            return;
        }
        assert!(
            begin.elapsed() < LIMIT,
            "{words:?} was not said, but: {text}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port that nobody has; the system does not give it out again at once.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}

const NOBODY: &str = "gcomm://127.0.0.1:1";

#[test]
fn each_fault_has_its_words_and_exit_code() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    fs::create_dir(dir.join("server")).expect("created");
    fs::write(dir.join("server/grastate.dat"), "").expect("written");
    fs::write(dir.join("file"), "").expect("written");
    fs::write(dir.join("bad.cnf"), "group = g\nport = 9\n").expect("written");
    fs::write(dir.join("sst.cnf"), "sst = backup\n").expect("written");
    let well = ["-g", "g", "-a", NOBODY, "-w", "w"];
    let table: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec![], 2, "no cluster name is given. Write --group"),
        (vec!["-g", "g"], 2, "Write --address gcomm://"),
        (vec!["--sst", "x"], 2, "unexpected argument '--sst'"),
        (vec!["-c", "none.cnf"], 2, "none.cnf cannot be read"),
        (
            vec!["-c", "bad.cnf"],
            2,
            "bad.cnf, line 2: 'port' is not a setting",
        ),
        (vec!["-c", "sst.cnf"], 2, "mariadb-backup"),
        (
            vec!["-g", "g", "-a", "10.0.0.1", "-w", "w"],
            1,
            "--address: Invalid backend URI",
        ),
        (
            vec!["-g", "g", "-a", "gcomm://", "-w", "w"],
            1,
            "a witness has no data and cannot found a cluster",
        ),
        (
            [&well[..], &["-o", "gcs.fc_limitt=1"]].concat(),
            1,
            "--options: Unknown parameter 'gcs.fc_limitt'",
        ),
        (
            [&well[..], &["-o", "dromon.secret_file=none"]].concat(),
            1,
            "dromon.secret_file=none",
        ),
        (
            [&well[..], &["-l", "nowhere/w.log"]].concat(),
            1,
            "nowhere/w.log: No such file",
        ),
        (
            vec!["-g", "g", "-a", NOBODY, "-w", "server"],
            1,
            "is the data directory of a server (it has grastate.dat)",
        ),
        (
            vec!["-g", "g", "-a", NOBODY, "-w", "file"],
            1,
            "cannot be used",
        ),
    ];
    for (args, code, words) in table {
        let (exit, text) = ended(start(dir, &args));
        assert_eq!(exit, code, "{args:?} said: {text}");
        assert!(
            text.contains(words),
            "{args:?} should say {words:?} but said: {text}"
        );
        assert!(!text.contains("panicked"), "{args:?} said: {text}");
        if text.contains("--address") {
            assert!(!dir.join("w").exists(), "{args:?} made a directory");
            assert!(!text.contains("wsrep_node_address"), "{text}");
        }
    }
    let (exit, text) = ended(start(dir, &["-v"]));
    assert_eq!((exit, text.contains(env!("CARGO_PKG_VERSION"))), (0, true));
}

#[test]
fn it_waits_for_the_others_and_ends_when_told() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    let log = dir.join("w.log");
    let options = format!("gmcast.listen_addr=tcp://127.0.0.1:{}", free_port());
    fs::write(
        dir.join("w.cnf"),
        format!("group = g\naddress = {NOBODY}\noptions = {options}\nworkdir = w\nlog = w.log\n"),
    )
    .expect("written");
    let first = start(dir, &["--cfg", "w.cnf"]);
    said(&log, "is reached at 127.0.0.1:");
    said(&log, "My UUID");
    let (exit, text) = ended(start(dir, &["-c", "w.cnf", "-l", "second.log"]));
    assert_eq!(exit, 1, "{text}");
    assert!(text.contains("another witness runs in"), "{text}");
    terminate(first.child.id());
    let (exit, text) = ended(first);
    assert_eq!(exit, 0, "{text}");
    said(&log, "stopped; the log stays");
    assert!(!dir.join("w/grastate.dat").exists(), "it has no data");
}

#[test]
fn at_sighup_it_reads_the_secret_again() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    let (log, secret) = (dir.join("w.log"), dir.join("secret"));
    let write = |text: &str| {
        fs::write(&secret, text).expect("written");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("closed");
    };
    write("0123456789abcdef");
    let options = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{};dromon.secret_file={}",
        free_port(),
        secret.display()
    );
    let args = [
        "-g", "g", "-a", NOBODY, "-w", "w", "-l", "w.log", "-o", &options,
    ];
    let witness = start(dir, &args);
    said(&log, "My UUID");
    fs::rename(&log, dir.join("w.log.1")).expect("as logrotate does");
    write("short");
    signal(witness.child.id(), "-HUP");
    said(
        &log,
        "cannot be used, and what was in use stays: dromon.secret_file=",
    );
    write("fedcba9876543210");
    signal(witness.child.id(), "-HUP");
    said(&log, "were read again; new connections use them");
    terminate(witness.child.id());
    let (exit, text) = ended(witness);
    assert_eq!(exit, 0, "{text}");
}

/// systemd takes an end by SIGHUP for a clean one, and does not start it again.
#[test]
fn a_sighup_amid_its_start_does_not_end_it() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    let settings = dir.join("w.cnf");
    let made = Command::new("mkfifo").arg(&settings).status();
    assert!(made.expect("mkfifo runs").success());
    let witness = start(dir, &["--cfg", "w.cnf"]);
    // Opens when the witness has it open, and waits for what it says.
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(fs::File::options().write(true).open(settings)));
    let mut pipe = rx.recv_timeout(LIMIT).expect("it reads").expect("a pipe");
    signal(witness.child.id(), "-HUP");
    let options = format!("gmcast.listen_addr=tcp://127.0.0.1:{}", free_port());
    let text =
        format!("group = g\naddress = {NOBODY}\noptions = {options}\ndir = w\nlog = w.log\n");
    // Whoever has ended reads nothing, which is seen below.
    let _ = pipe.write_all(text.as_bytes());
    drop(pipe);
    said(&dir.join("w.log"), "My UUID");
    terminate(witness.child.id());
    let (exit, text) = ended(witness);
    assert_eq!(exit, 0, "{text}");
}

#[test]
fn a_daemon_whose_words_nobody_reads_stands_all_the_same() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    // Nobody ends it if the test fails: it gives up by itself.
    let options = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{};pc.wait_prim_timeout=PT60S",
        free_port()
    );
    let full = fs::File::options().write(true).open("/dev/full");
    let status = Command::new(env!("CARGO_BIN_EXE_dromon"))
        .args([
            "witness", "-d", "-g", "g", "-a", NOBODY, "-w", "w", "-l", "w.log",
        ])
        .args(["-o", &options])
        .current_dir(dir)
        .stdout(full.expect("there"))
        .status()
        .expect("it runs");
    said(&dir.join("w.log"), "My UUID");
    end_daemon(dir);
    assert_eq!(status.code(), Some(0));
}

/// Ends the witness that works in `dir`, of which nobody told the process.
fn end_daemon(dir: &Path) {
    let works = fs::canonicalize(dir).expect("there");
    for entry in fs::read_dir("/proc").expect("there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse::<u32>() else {
            continue;
        };
        if fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at == works) {
            terminate(pid);
        }
    }
    said(&dir.join("w.log"), "stopped; the log stays");
}

#[test]
fn with_a_limit_it_gives_up() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let options = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{};pc.wait_prim_timeout=PT1S",
        free_port()
    );
    let args = ["-g", "g", "-a", NOBODY, "-w", "w", "-o", &options];
    let (exit, text) = ended(start(home.path(), &args));
    assert_eq!(exit, 1, "{text}");
    assert!(
        text.contains("failed to reach primary view within 1 s: 127.0.0.1:1"),
        "{text}"
    );
    assert!(text.contains("the witness ends"), "{text}");
}

#[test]
fn a_daemon_says_its_process_and_goes_on_under_both_names() {
    daemon(start);
    daemon(|dir, args| {
        let garbd = dir.join("garbd");
        if !garbd.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dromon"), &garbd).expect("a link");
        }
        Running::start_as(&garbd, dir, args)
    });
}

fn daemon(start: impl Fn(&Path, &[&str]) -> Running) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    // Nobody ends it if the test fails: it gives up by itself.
    let options = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{};pc.wait_prim_timeout=PT60S",
        free_port()
    );
    let args = [
        "-d", "-g", "g", "-a", NOBODY, "-w", "w", "-l", "w.log", "-o", &options,
    ];
    let (exit, text) = ended(start(dir, &args));
    assert_eq!(exit, 0, "{text}");
    let pid = text.trim().strip_prefix("witness started, process ");
    let pid: u32 = pid.and_then(|p| p.parse().ok()).expect("a process id");
    said(&dir.join("w.log"), "My UUID");
    terminate(pid);
    said(&dir.join("w.log"), "stopped; the log stays");

    let args = ["-d", "-g", "g", "-a", "gcomm://", "-w", "w", "-l", "w.log"];
    let (exit, text) = ended(start(dir, &args));
    assert_eq!(exit, 1, "what is wrong is said before it leaves: {text}");
    assert!(text.contains("cannot found a cluster"), "{text}");
}
