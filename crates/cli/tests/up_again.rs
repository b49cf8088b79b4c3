//! `dromon up` after one that failed: no whole cluster is taken for one, none is lost.

mod program;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use program::Running;

/// Making system tables and a server that cannot load its library take a while.
const LIMIT: Duration = Duration::from_secs(180);

fn dromon(dir: &Path, path: &str, args: &[&str]) -> (i32, String) {
    let (code, out, err) = Running::start_with(dir, args, &[("PATH", path)]).ended(LIMIT);
    (code, out + &err)
}

#[test]
fn a_first_start_that_failed_is_begun_anew() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the servers may enter");
    fs::write(dir.join("libdromon.so"), "no library").expect("written");
    let bin = dir.join("bin");
    fs::create_dir(&bin).expect("made");
    let stub = bin.join("openssl");
    fs::write(&stub, "#!/bin/sh\necho out of luck >&2\nexit 1\n").expect("written");
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).expect("it runs");
    let usual = std::env::var("PATH").expect("there is a PATH");
    let stubbed = format!("{}:{usual}", bin.display());
    let up = ["up", "--provider", "libdromon.so", "--dir", "c", "--nodes"];

    let (code, said) = dromon(dir, &stubbed, &[&up[..], &["2"]].concat());
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("out of luck") && said.contains("begins anew"),
        "{said}"
    );
    assert!(!dir.join("c/tls/secret").exists(), "it failed before");

    // Another number of nodes: nothing of the first attempt binds.
    let (code, said) = dromon(dir, &usual, &[&up[..], &["1"]].concat());
    assert!(
        said.contains("made anew") && said.contains("Starting 1 node in"),
        "{said}"
    );
    assert!(
        code == 1 && said.contains("Node db1 ended"),
        "the library is none: {said}"
    );
    assert!(dir.join("c/tls/secret").exists() && !dir.join("c/db2").exists());

    // Now it is whole, and is taken as it is.
    let (_, said) = dromon(dir, &usual, &up[..5]);
    assert!(
        said.contains("Starting the stopped cluster of 1 node"),
        "{said}"
    );
    // A removal that was interrupted: what has data is not made anew.
    let record = dir.join("c/cluster.json");
    let text = fs::read_to_string(&record).expect("it is there");
    let text = text.replace("\"complete\": true", "\"complete\": false");
    assert!(text.contains("\"complete\": false"), "{text}");
    fs::write(&record, text).expect("written");
    let state = dir.join("c/db1/data/grastate.dat");
    fs::write(&state, "version: 2.1\n").expect("written");
    let (code, said) = dromon(dir, &usual, &up[..5]);
    assert!(
        code == 1 && said.contains("Nothing was started or removed"),
        "{said}"
    );
    assert!(state.exists());
    let (code, said) = dromon(dir, &usual, &["down", "--purge", "--dir", "c"]);
    assert!(code == 0 && !dir.join("c").exists(), "{said}");
}

#[test]
fn a_strict_umask_closes_nothing_to_the_servers() {
    let home = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let dir = home.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the servers may enter");
    let provider = dir.join("libdromon.so");
    fs::write(&provider, "no library").expect("written");
    fs::set_permissions(&provider, fs::Permissions::from_mode(0o700)).expect("as it is built");
    let up = "up --provider libdromon.so --nodes 1 --witness --dir new/er/c";
    let up: Vec<&str> = up.split(' ').collect();
    let (code, out, err) = Running::start_under(dir, "077", &up).ended(LIMIT);
    let said = out + &err;
    assert!(code == 1 && said.contains("Node db1 ended"), "{said}");
    for (name, mode) in [
        ("new", 0o755),
        ("new/er", 0o755),
        ("new/er/c", 0o755),
        ("new/er/c/lib", 0o755),
        ("new/er/c/lib/libdromon.so", 0o755),
        ("new/er/c/lib/dromon", 0o755),
        ("new/er/c/tls/ca.pem", 0o644),
        ("new/er/c/tls/db1.pem", 0o644),
        ("new/er/c/tls/witness.pem", 0o644),
        ("new/er/c/tls/secret", 0o600),
        ("new/er/c/tls/db1.key", 0o600),
        ("new/er/c/cluster.json", 0o600),
    ] {
        let meta = fs::metadata(dir.join(name)).expect(name);
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
    }
    assert!(!said.contains("Permission denied"), "{said}");
    let down = ["down", "--purge", "--dir", "new/er/c"];
    let (code, out, err) = Running::start(dir, &down).ended(LIMIT);
    assert!(code == 0, "{out}{err}");
}
