//! Each fault the user can make: the message, the exit code, and no servers.

mod program;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use program::Running;

/// None of these may take longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs it; exit code and words must be these.
fn refused(dir: &Path, args: &[&str], code: i32, words: &[&str]) {
    let (exit, out, err) = Running::start(dir, args).ended(LIMIT);
    let text = out + &err;
    assert_eq!(exit, code, "{args:?} said: {text}");
    for word in words {
        assert!(
            text.contains(word),
            "{args:?} should say {word:?} but said: {text}"
        );
    }
    assert!(!text.contains("panicked"), "{args:?} said: {text}");
}

#[test]
fn a_measurement_that_makes_no_sense_is_refused() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    fs::write(dir.join("provider.so"), "").expect("written");
    fs::create_dir(dir.join("used")).expect("created");
    fs::write(dir.join("used/thesis.txt"), "x").expect("written");
    let table: &[(&[&str], i32, &[&str])] = &[
        (
            &["--rows", "10"],
            1,
            &["10 rows are too few", "--rows 1000"],
        ),
        (&["--load-data", "3G"], 1, &["wsrep_max_ws_size"]),
        (&["--load-data", "much"], 2, &["is not a size", "200M"]),
        (
            &["--load-data", "9M", "--rows", "5000"],
            2,
            &["cannot be used with"],
        ),
        (&["--offered", "1.5"], 1, &["--offered 1.5", "at most 1"]),
        (
            &["--offered", "0.4", "--closed"],
            2,
            &["cannot be used with"],
        ),
        (
            &["--offered", "0.4", "--sysbench"],
            2,
            &["cannot be used with"],
        ),
        (&["--rate", "0"], 1, &["transactions per second"]),
        (&["--modes", "whole,huge"], 2, &["no mode huge", "1000rows"]),
        (&["--modes", "10k,10240"], 1, &["named twice"]),
        (&["--clients", "2"], 1, &["cannot be spread over 3 nodes"]),
        (&["--before", "0"], 1, &["at least one second alone"]),
        (&["--nodes", "1"], 2, &["2..=9"]),
        (
            &["--out", "used"],
            1,
            &["thesis.txt", "nothing was touched"],
        ),
        (&["--out", "provider.so"], 1, &["is a file"]),
        (
            &["--provider", "gone.so"],
            1,
            &["no provider library at gone.so"],
        ),
        (
            &["--provider", "provider.so"],
            1,
            &["Two providers are called provider"],
        ),
        (
            &["--cluster", "used"],
            1,
            &["either --cluster or --provider"],
        ),
        (&["--", "datadir=/x"], 1, &["datadir", "use --dir"]),
        (
            &["--", "wsrep_provider_options=a=b"],
            1,
            &["PATH?OPTION=VALUE"],
        ),
    ];
    for (args, code, words) in table {
        let start = ["bench", "stall", "--provider", "provider.so"];
        refused(dir, &[&start[..], args].concat(), *code, words);
    }
    let alone: &[(&[&str], i32, &[&str])] = &[
        (&["bench"], 2, &["stall"]),
        (
            &["bench", "stall"],
            1,
            &["--provider PATH", "--cluster DIR"],
        ),
        (&["bench", "stall", "--provider", "=x"], 2, &["NAME=PATH"]),
        (
            &["bench", "stall", "--cluster", "used"],
            1,
            &["no cluster in"],
        ),
    ];
    for (args, code, words) in alone {
        refused(dir, args, *code, words);
    }
    let left = fs::read_dir(dir).expect("readable").count();
    assert_eq!(left, 2, "a refusal leaves nothing behind");
}

#[test]
fn a_catch_up_that_makes_no_sense_is_refused() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    fs::create_dir(dir.join("used")).expect("created");
    fs::write(dir.join("used/thesis.txt"), "x").expect("written");
    let table: &[(&[&str], i32, &[&str])] = &[
        (&["--workloads", "w7"], 2, &["no workload w7", "w1,w2"]),
        (&["--conditions", "fast"], 2, &["no condition fast"]),
        (&["--built-in", "serial"], 2, &["always measured"]),
        (&["--replica", "group"], 2, &["no mode group", "writeset:1"]),
        (&["--relay", "all"], 2, &["no policy all"]),
        (&["--threads", "0"], 1, &["0 threads", "from 1 to 256"]),
        (&["--threads", "8,8"], 1, &["8 is named twice"]),
        (&["--transactions", "1"], 1, &["--transactions 50"]),
        (&["--rows", "1"], 1, &["--rows 1000"]),
        (&["--limit", "0"], 2, &["1..=86400"]),
        (&["--out", "used"], 1, &["nothing was touched"]),
        (&["--resume"], 2, &["--out <DIR>"]),
        (
            &["--out", "used", "--resume"],
            1,
            &["run.json", "leave --resume out"],
        ),
        (&["--", "datadir=/x"], 1, &["datadir", "use --dir"]),
    ];
    for (args, code, words) in table {
        refused(
            dir,
            &[&["bench", "catchup"][..], args].concat(),
            *code,
            words,
        );
    }
    let left = fs::read_dir(dir).expect("readable").count();
    assert_eq!(left, 1, "a refusal leaves nothing behind");
}

#[test]
fn where_no_cluster_can_be_asked_the_status_is_json_too() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    fs::create_dir(dir.join("broken")).expect("created");
    fs::write(dir.join("broken/cluster.json"), "{").expect("written");
    for (place, word) in [("none", "no cluster in"), ("broken", "cannot be read")] {
        let args = ["status", "--json", "--dir", place];
        let (exit, out, err) = Running::start(dir, &args).ended(LIMIT);
        assert_eq!(exit, 2, "{out}{err}");
        let said: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(said["verdict"], "bad", "{out}");
        assert_eq!(said["nodes"], serde_json::json!([]), "{out}");
        let sentence = said["sentence"].as_str().expect("words");
        assert!(sentence.contains(word), "{sentence}");
        assert!(err.contains(word), "{err}");
        // Without it there is a message, and nothing to read.
        let (exit, out, _) = Running::start(dir, &[args[0], args[2], args[3]]).ended(LIMIT);
        assert_eq!((exit, out.as_str()), (2, ""));
    }
}

#[test]
fn each_fault_has_its_message_and_exit_code() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path();
    fs::write(dir.join("provider.so"), "").expect("written");
    fs::create_dir(dir.join("used")).expect("created");
    fs::write(dir.join("used/thesis.txt"), "x").expect("written");
    fs::create_dir(dir.join("broken")).expect("created");
    fs::write(dir.join("broken/cluster.json"), "{").expect("written");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let long = format!("--dir={}", "x".repeat(120));

    let with = |more: &[&'static str]| -> Vec<String> {
        ["up", "--provider", "provider.so"]
            .iter()
            .chain(more)
            .map(|s| (*s).to_string())
            .collect()
    };
    let table: Vec<(Vec<String>, i32, Vec<&str>)> = vec![
        (with(&["--nodes", "0"]), 2, vec!["at least one node"]),
        (with(&["--nodes", "many"]), 2, vec!["write a number"]),
        (
            with(&["--sst-method", "scp"]),
            2,
            vec!["rsync, mariabackup or mysqldump"],
        ),
        (with(&["--port", "80"]), 2, vec!["80", "1024"]),
        (
            vec!["up".into(), "--provider".into(), "missing.so".into()],
            1,
            vec!["no provider library at missing.so", "cargo build"],
        ),
        (
            with(&["--dir", "used"]),
            1,
            vec!["thesis.txt", "nothing was touched"],
        ),
        (
            with(&["--dir", "broken"]),
            1,
            vec![
                "broken/cluster.json",
                "cannot be read",
                "broken/db*/data: keep the directory",
            ],
        ),
        (
            [with(&["--port"]), vec![port.clone()]].concat(),
            1,
            vec![port.as_str(), "another process listens", "(--port)"],
        ),
        (
            [with(&[]), vec![long]].concat(),
            1,
            vec!["too long", "107 bytes"],
        ),
        (
            with(&["--dir", "a#b"]),
            1,
            vec!["has '#' in it", "Nothing was made"],
        ),
        (with(&["--", "datadir=/x"]), 1, vec!["datadir", "use --dir"]),
        (
            with(&["--", "datad=/x"]),
            1,
            vec!["may take for datadir", "use --dir"],
        ),
        (
            with(&["--", "log_bin=/x/binlog"]),
            1,
            vec!["log_bin is an absolute path", "log_bin=binlog"],
        ),
        (
            with(&["--", "init_connect=SET x=1 # y"]),
            1,
            vec!["init_connect has a # in it", "in quotes"],
        ),
        (with(&["--", "a b=1"]), 2, vec!["not a server setting"]),
        (
            with(&["--witness"]),
            1,
            vec!["A witness works with Dromon's library only", "garbd"],
        ),
        (vec!["status".into()], 2, vec!["no cluster", "dromon up"]),
        (
            vec!["status".into(), "--dir".into(), "used".into()],
            2,
            vec!["no cluster in"],
        ),
        (vec!["down".into()], 0, vec!["Nothing to stop"]),
        (
            with(&["--timeout", "18446744073709551615"]),
            2,
            vec!["1..=86400"],
        ),
        (
            ["down", "--timeout", "18446744073709551615"]
                .map(Into::into)
                .into(),
            2,
            vec!["1..=86400"],
        ),
        (
            ["down", "--timeout", "0"].map(Into::into).into(),
            2,
            vec!["1..=86400"],
        ),
        (vec!["sideways".into()], 2, vec!["unrecognized subcommand"]),
    ];
    for (args, code, words) in table {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(dir, &args, code, &words);
    }
    let mut left: Vec<_> = fs::read_dir(dir)
        .expect("readable")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["broken", "provider.so", "used"],
        "a refusal leaves nothing behind"
    );
}
