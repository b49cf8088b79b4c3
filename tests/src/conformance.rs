//! The script that runs MariaDB's tests, with an mtr that only says what one would.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// What mtr prints of two tests, one of which runs on servers that the other one leaves.
const PASSED: &str = "\
galera.one 'innodb'                      w1 [ pass ]    100
galera.two                               w2 [ pass ]    100
";

/// What the script says of such a run, and its exit code; `error_log` is one server's.
fn run(before: &str, after: &str, error_log: &str) -> Option<(i32, String)> {
    let said = [format!("{before}{PASSED}{after}")];
    run_tests(&["one", "two"], &said, error_log)
}

/// The same of these tests; mtr says one of `said` each time, and the last one from then on.
fn run_tests(tests: &[&str], said: &[String], error_log: &str) -> Option<(i32, String)> {
    if fs::metadata("/proc/self").expect("it is there").uid() != 0 {
        return None; // it runs as root only
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("libdromon.so"), "").expect("written");
    for (n, said) in said.iter().enumerate() {
        fs::write(path(&format!("said{n}")), said).expect("written");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("mtr counts there");
    fs::write(path("err"), error_log).expect("written");
    let mtr = r#"
        use File::Path; use File::Copy;
        my ($vardir) = map { /^--vardir=(.*)/ ? $1 : () } @ARGV;
        mkpath("$vardir/1/log");
        copy("err", "$vardir/1/log/mysqld.1.err");
        my $n = 0; $n++ while -e "done$n";
        open(my $done, ">", "done$n") or die "done$n: $!";
        $n-- until -e "said$n";
        open(my $said, "<", "said$n"); print <$said>;
    "#;
    fs::write(path("mtr"), mtr).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/run");
    let out = Command::new(script)
        .arg("--provider")
        .arg(path("libdromon.so"))
        .arg("--out")
        .arg(path("out"))
        .args(tests)
        .env("DROMON_MTR", dir.path())
        .output()
        .expect("it runs");
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text += &String::from_utf8_lossy(&out.stderr);
    Some((out.status.code().expect("it ends"), text))
}

fn block(line: &str) -> String {
    format!(
        "worker[1] ***Warnings generated in error logs during shutdown after running tests: galera.one\n\n{line}\n\n"
    )
}

const CRASH: &str = "261127 18:00:00 [ERROR] /usr/sbin/mariadbd got signal 11 ;\nAttempting backtrace. Include this in the bug report.";
const CALM: &str = "2026-11-27 18:00:00 0 [Warning] WSREP: a mere warning";

#[test]
fn whoever_crashes_while_mtr_stops_it_is_a_failure() {
    let end = "------------------------------------------------------------\n";
    for (before, after, failed) in [
        (String::new(), block(CRASH), 1),
        (block(CRASH), block(CRASH), 2),
        (block(CALM), block(CALM), 0),
        // What is not told there belongs to a test, which mtr judges.
        (format!("{CRASH}\n"), format!("{end}{CRASH}\n"), 0),
    ] {
        let Some((code, said)) = run(&before, &after, CALM) else {
            return;
        };
        let sum = format!("galera: 2 passed, {failed} failed, 0 skipped");
        assert!(said.contains(&sum), "{said}");
        assert_eq!(code == 0, failed == 0, "{said}");
        assert_eq!(said.matches("crashed: after galera.one").count(), failed);
    }
}

#[test]
fn a_panic_that_a_node_survives_is_a_failure_too() {
    for words in [
        "2026-11-27 18:00:00 0 [ERROR] WSREP: Panic in thread 'apply 1' at a.rs:1:2: no",
        "thread 'apply 1' panicked at a.rs:1:2:",
    ] {
        let Some((code, said)) = run("", "", words) else {
            return;
        };
        assert!(said.contains("galera: 2 passed, 1 failed"), "{said}");
        assert!(code == 1 && said.contains("panicked: "), "{said}");
    }
}

#[test]
fn a_crash_is_not_tried_again() {
    const RACY: &str = "MDEV-35511"; // in racy.txt
    let result = |how: &str| format!("galera.{RACY} 'innodb'     w1 [ {how} ]    100\n");
    let failed = |why: &str| format!("{}        Test ended at 2026\n\n{why}\n", result("fail"));
    for (why, sum) in [
        (
            "mysqltest: At line 3: query failed",
            "1 passed, 0 failed, 0 skipped, 1 further tries",
        ),
        (CRASH, "0 passed, 1 failed, 0 skipped, 0 further tries"),
        (
            "Server [mysqld.1 - pid: 7, winpid: 7, exit: 256] failed during test run",
            "0 passed, 1 failed, 0 skipped, 0 further tries",
        ),
    ] {
        let Some((code, said)) = run_tests(&[RACY], &[failed(why), result("pass")], CALM) else {
            return;
        };
        assert!(said.contains(&format!("galera: {sum}")), "{said}");
        assert_eq!(code == 0, sum.starts_with('1'), "{said}");
        assert_eq!(said.contains("which is no excuse"), code != 0, "{said}");
    }
}
