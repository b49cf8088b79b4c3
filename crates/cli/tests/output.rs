//! Output that cannot be written: no success is claimed, nothing panics, and no work is left undone.

mod unstarted;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use unstarted::cluster;

/// Runs it with these as output and standard error; the exit code.
fn code(dir: &Path, args: &[&str], out: Stdio, err: Stdio) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dromon"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    let status = command.stdout(out).stderr(err).status();
    status.expect("it runs").code()
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("it is there")
        .into()
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_full_disk_is_no_success_and_a_reader_that_left_no_failure() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    drop(cluster(dir));
    for args in [&["relay", "--settings"][..], &["replica", "--settings"]] {
        assert_eq!(code(dir, args, full(), Stdio::null()), Some(1), "{args:?}");
        assert_eq!(code(dir, args, closed(), closed()), Some(0), "{args:?}");
    }
    let down = ["down", "--dir", "nowhere"];
    assert_eq!(code(dir, &down, full(), Stdio::null()), Some(1));
    assert_eq!(code(dir, &down, closed(), closed()), Some(0));
    // Its node is down: that is exit code 2, printed or not.
    for args in [
        &["status", "--dir", "c"][..],
        &["status", "--json", "--dir", "c"],
    ] {
        assert_eq!(code(dir, args, full(), full()), Some(2), "{args:?}");
        assert_eq!(code(dir, args, closed(), closed()), Some(2), "{args:?}");
    }
    let purge = ["down", "--purge", "--dir", "c"];
    assert_eq!(
        code(dir, &purge, full(), closed()),
        Some(1),
        "it was not printed"
    );
    assert!(!dir.join("c").exists(), "and yet it was done");
}
