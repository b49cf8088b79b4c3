use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

const GOOD: &[&str] = &[
    "primary = db1:3306",
    "user=repl",
    "dir = /d",
    "server_id = 7",
    "account = r1:secret",
];

fn settle(lines: &[&str]) -> Result<Config, ConfigError> {
    let mut given = Given::new(&RELAY);
    for (n, line) in lines.iter().enumerate() {
        given.line(line, format!("line {}", n + 1))?;
    }
    Config::settle(&given)
}

fn with(line: &str) -> Result<Config, ConfigError> {
    settle(&[GOOD, &[line]].concat())
}

#[test]
fn all_that_must_be_said() {
    let config = settle(GOOD).expect("enough");
    assert_eq!(config.listen, "127.0.0.1:3307");
    assert_eq!(config.source.dead_after, Duration::from_secs(5));
    assert_eq!(config.keep, Limits::default());
    for n in 0..GOOD.len() {
        let mut lines = GOOD.to_vec();
        let key = lines
            .remove(n)
            .split('=')
            .next()
            .expect("a key")
            .trim()
            .to_owned();
        let error = settle(&lines).expect_err(&key).to_string();
        assert!(
            error.starts_with(&format!("no {key} given. Write '{key} = ")),
            "{error}"
        );
    }
}

#[test]
fn comments_stand_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("relay.cnf");
    let read = |line: &str| {
        fs::write(&file, format!("# all of it\n  # and this\n{line}\n")).expect("writable");
        Given::read(&RELAY, &file).map_err(|e| e.to_string())
    };
    for line in [
        "dir = /d # main",
        "dir = /d\t#main",
        "log = # none",
        "dir=/d  # a#b",
    ] {
        let said = read(line).expect_err(line);
        assert!(
            said.contains("line 3") && said.contains("line of its own"),
            "{said}"
        );
        let key = &line[..3];
        assert!(said.contains(&format!("--set '{key}=…'")), "{said}");
    }
    for line in [
        "dir = /d#main",
        "dir =",
        "password = a #b",
        "account = a:b # c",
    ] {
        read(line).expect(line);
    }
    let mut given = Given::new(&RELAY);
    given
        .line("dir=/d # main", "--set".into())
        .expect("it is meant so");
}

#[test]
fn quotes_around_a_value_in_a_file_are_not_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("relay.cnf");
    for (written, value) in [
        (r#""x""#, "x"),
        ("'x y'", "x y"),
        (r#""it's""#, "it's"),
        (r#""#, ""),
        (r#"""#, r#"""#),
        (r#""x' "#, r#""x'"#),
        (r#""a # b""#, "a # b"),
    ] {
        for key in ["password", "dir"] {
            fs::write(&file, format!("{key} = {written}\n")).expect("writable");
            let given = Given::read(&RELAY, &file).expect(written);
            let found = given.get(key).map_or("", |said| &said.value);
            assert_eq!(found, value, "{key} = {written}");
        }
    }
    let mut given = Given::new(&RELAY);
    let line = r#"password="x""#;
    given.line(line, "--set".into()).expect("a setting");
    let found = &given.get("password").expect("said").value;
    assert_eq!(found, r#""x""#, "the shell has taken its own away");
}

#[test]
fn defaults_can_be_written_or_are_empty() {
    for (key, _, default) in SETTINGS {
        let value = match default.strip_prefix('(') {
            Some(_) => "",
            None if default.is_empty() => continue,
            None => default,
        };
        let said = with(&format!("{key} = {value}")).expect(key);
        let unsaid = settle(GOOD).expect("enough");
        assert_eq!(format!("{said:?}"), format!("{unsaid:?}"), "{key}");
    }
    let said = [
        "keep_size = none",
        "keep_age = none",
        "keep_size_hard = none",
        "forget = never",
    ];
    let config = settle(&[GOOD, &said].concat()).expect("words for nothing");
    assert_eq!((config.keep, config.forget), (Limits::default(), None));
    assert_eq!(config.hold, Duration::from_secs(86400));
}

#[test]
fn units() {
    let config = with("keep_size = 10G").expect("a size");
    assert_eq!(config.keep.size, Some(10 << 30));
    let config = with("keep_age=7d").expect("a time");
    assert_eq!(config.keep.age, Some(7 * 86_400));
    assert_eq!(
        with("dead_after = 2500ms")
            .expect("a time")
            .source
            .dead_after
            .as_millis(),
        2500
    );
}

#[test]
fn refused_with_a_reason() {
    for (line, expected) in [
        (
            "primray = x",
            "'primray' is not a setting of a relay. It knows primary, user",
        ),
        ("hello", "line 6: this is not a setting; write key = value"),
        (
            "password hunter2",
            "line 6: 'password' has no = behind it; write password = value",
        ),
        (
            "password: hunter2=",
            "line 6: 'password' has no = behind it",
        ),
        ("server-id = 7", "'server-id' is not a setting of a relay"),
        ("keep_size = 10X", "line 6: keep_size = 10X: write a size"),
        ("keep_size = 0", "for no limit write none"),
        ("keep_size_hard = 0G", "for no limit write none"),
        ("keep_age = 999ms", "write 1s or more"),
        ("hold = 500ms", "write 1s or more"),
        ("forget = 1ms", "write 1s or more"),
        ("dead_after = 5", "write a time"),
        ("dead_after = 1s", "longer than heartbeat"),
        ("file_size = 1K", "between 4K and 3G"),
        ("file_size = 99999999999999999999T", "write a size"),
        ("server_id = 0", "above 0"),
        ("primary = db1", "primary = db1: write host:port"),
        ("primary = db1:33o6", "db1:33o6: the port must be a number"),
        ("primary = 2001:db8::1", "as in [2001:db8::1]:3306"),
        ("listen = 3307", "write address:port"),
        ("account = r2", "account: write name:password"),
        ("account = r2:", "may be empty"),
        (
            "account = r2:*zz70C0C06DEE42FD1618BB99005ADCA2EC9D1E19",
            "hexadecimal",
        ),
        ("admin = ops", "line 6: admin: write name:password"),
        (
            "admin = r1:other",
            "admin: 'r1' is an account of replicas, too",
        ),
        ("start = 0-1", "is no GTID"),
        ("semi_sync = maybe", "write on or off"),
        (
            "password_file = /nowhere/p",
            "password_file = /nowhere/p: No such file",
        ),
        ("log_bin = a/b", "without a directory"),
        ("policy = fast", "write pass, group or logical_clock"),
        ("policy = x:group", "write a number"),
        (
            "policy = logical_clock",
            "line 6: policy = logical_clock: it is for MySQL 5.7 and later",
        ),
        ("policy = 7:logical_clock", "For MariaDB (follow = gtid)"),
        ("http = 9307", "write address:port"),
        ("http = 127.0.0.1:93o7", "write address:port"),
        ("tls_required = on", "no tls_cert"),
        ("tls_cert = /nowhere/c", "there is no tls_key"),
        ("zstd = 10", "write off, or a level from 1 to 9"),
        ("zstd = 0", "write off, or a level"),
        ("follow = position", "write gtid, mysql_gtid or file"),
        ("watch_tls = on", "write off, ca or name"),
        ("watch_tls = ca", "there is no watch_tls_ca"),
        ("watch_tls_ca = /nowhere/ca", "it has no effect"),
        ("tls_client_ca = /nowhere/ca", "it has no effect"),
        ("primary_tls = on", "write off, ca or name"),
        ("primary_tls = ca", "there is no primary_tls_ca"),
        ("primary_tls_ca = /nowhere/ca", "it has no effect"),
    ] {
        let error = with(line).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

/// Another file than that of the settings: what it holds goes to the terminal, or to the journal.
#[test]
fn what_may_be_a_secret_is_not_repeated() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("accounts");
    for (line, secret) in [
        ("repl:hunter2", "hunter2"),
        ("repl:hunter2", "repl"),
        ("repl:hun=ter2", "hun"),
        ("hunter", "hunter"),
        ("c2VjcmV0cw==", "c2VjcmV0cw"),
        ("password hunter2", "hunter2"),
        ("password: hunter2=", "hunter2"),
        ("password:hunter2", "hunter2"),
        ("account r2:hunter2", "r2"),
        ("root:$6$salt$hash:19000:0::", "salt"),
    ] {
        fs::write(&file, format!("# who\n{line}\n")).expect("writable");
        let read = Given::read(&RELAY, &file);
        let error = read.expect_err(line).to_string();
        assert!(error.contains(", line 2: "), "{error}");
        let said = error.replace(&file.display().to_string(), "");
        assert!(!said.contains(secret), "{line}: {said}");
    }
}

#[test]
fn addresses_of_servers() {
    let primary = |address: &str| with(Box::leak(format!("primary = {address}").into_boxed_str()));
    for address in [
        "db1:3306",
        "db-1.example.org:3306",
        "my_db.example.org.:1",
        "10.0.0.1:65535",
        "127.1:03306",
        "xn--mller-kva.example:3306",
        "müller.example:3306",
        "[2001:db8::1]:3306",
        "[::ffff:10.0.0.1]:3306",
        "[fe80::1%2]:3306",
        // A socket takes them without brackets.
        "2001:db8::1:3306",
        "::1:33060",
        "fe80::1%eth0:3306",
    ] {
        let config = primary(address).expect(address);
        assert_eq!(config.source.address, address);
    }
    let brackets = "write an IPv6 address in brackets, and a port";
    for (address, why) in [
        ("db1:", "the port must be a number"),
        ("db1:0", "the port must be a number"),
        ("db1:65536", "the port must be a number"),
        ("db1:-1", "the port must be a number"),
        ("db1: 3306", "the port must be a number"),
        (":3306", "write host:port"),
        ("db1 :3306", "write host:port"),
        ("db1:3306,db2:3306", "write host:port"),
        ("tcp://db1:3306", "write host:port"),
        ("/run/mysqld/mysqld.sock", "write host:port"),
        ("::1", brackets),
        ("2001:db8::abcd", brackets),
        ("::ffff:10.0.0.1", brackets),
        ("fe80::1%eth0", brackets),
        ("[2001:db8::1]", brackets),
        ("[2001:db8::1]:0", brackets),
        ("[2001:db8::1]:33o6", brackets),
        ("[db1]:3306", brackets),
    ] {
        let error = primary(address).expect_err(address).to_string();
        let expected = format!("primary = {address}: {why}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn operators() {
    let accounts = |config: Config| -> Vec<_> {
        let accounts = config.serve.accounts.into_iter();
        accounts.map(|a| (a.name, a.admin)).collect()
    };
    let config = settle(&[&["admin = ops:secret"], GOOD].concat()).expect("good");
    assert_eq!(
        accounts(config),
        [("r1".into(), false), ("ops".into(), true)]
    );
    // Without one for replicas the relay serves nobody.
    let lines: Vec<_> = GOOD
        .iter()
        .filter(|l| !l.starts_with("account"))
        .chain(&["admin = ops:secret"])
        .copied()
        .collect();
    let error = settle(&lines).expect_err("no account").to_string();
    assert!(error.starts_with("no account given"), "{error}");
}

#[test]
fn mirrors() {
    let lines =
        |more: &[&'static str]| [GOOD, &["follow = file", "log_bin = mysql-bin"], more].concat();
    let config = settle(&lines(&["start = mysql-bin.000042"])).expect("a mirror");
    assert_eq!(config.store.kind, Kind::Mirror);
    assert_eq!(config.source.start_file, Some(42));
    assert_eq!(config.start, History::default());
    let config = settle(&lines(&[])).expect("a mirror");
    assert_eq!(config.source.start_file, None);
    for (line, expected) in [
        ("start = 0-1-7", "as mysql-bin.000001"),
        ("start = other.000001", "as mysql-bin.000001"),
        (
            "policy = group",
            "policy = group: it is for MariaDB's GTIDs; mirrored files (follow = file)",
        ),
        ("policy = 7:group", "later logical_clock"),
        ("watch_user = w", "no GTIDs to ask for"),
    ] {
        let error = settle(&lines(&[line])).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert_eq!(settle(GOOD).expect("enough").store.kind, Kind::MariaDb);
    assert_eq!(settle(GOOD).expect("enough").source.wish.zstd, Some(3));
    let off = with("zstd = off").expect("off");
    assert_eq!((off.source.wish.zstd, off.serve.zstd), (None, false));
}

#[test]
fn of_mysql() {
    const SET: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23";
    let with = |line| settle(&[GOOD, &["follow = mysql_gtid", line]].concat());
    let line = format!("start = {SET}");
    let config = with(Box::leak(line.into_boxed_str())).expect("of MySQL");
    assert_eq!(config.store.kind, Kind::MySql);
    assert_eq!(config.start.mysql.to_string(), SET);
    let config = with("policy = 7:logical_clock").expect("a policy");
    assert_eq!(config.serve.policies[&7], Policy::LogicalClock);
    assert!(config.hints());
    for (line, expected) in [
        ("start = 0-1-7", "no set of GTIDs of MySQL"),
        ("policy = group", "transactions of MySQL have no commit ids"),
        ("policy = 7:group", "Write pass, or for MySQL 5.7"),
        ("watch_user = w", "are not asked"),
    ] {
        let error = with(line).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn policies() {
    let lines = [
        GOOD,
        &["policy = group", "policy = 7:pass", "policy=8 : group"],
    ]
    .concat();
    let serve = settle(&lines).expect("policies").serve;
    assert_eq!(serve.policy, Policy::Group);
    let own = [(7, Policy::Pass), (8, Policy::Group)];
    assert_eq!(serve.policies, BTreeMap::from(own));
    assert!(!settle(GOOD).expect("enough").hints());
    assert!(with("policy = 7:group").expect("a policy").hints());
    let mirror = |line| settle(&[GOOD, &["follow = file", line]].concat()).expect("a policy");
    assert!(!mirror("policy = pass").hints());
    assert_eq!(
        mirror("policy = logical_clock").serve.policy,
        Policy::LogicalClock
    );
    let one = mirror("policy = 7:logical_clock");
    assert_eq!(one.serve.policies[&7], Policy::LogicalClock);
    assert!(one.hints());
}

#[test]
fn accounts_in_files_and_files_that_all_can_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, mode: u32, text: &str| {
        fs::write(place(name), text).expect("written");
        fs::set_permissions(place(name), fs::Permissions::from_mode(mode)).expect("changed");
    };
    write("accounts", 0o600, "# replicas\n\nr8:one\n r9:two:three \n");
    write("admins", 0o644, "ops:four\n");
    write("pw", 0o640, "five\n");
    let text = format!(
        "{}\naccount_file = {}\nadmin_file = {}\npassword_file = {}\n",
        GOOD.join("\n"),
        place("accounts"),
        place("admins"),
        place("pw")
    );
    write("relay.cnf", 0o644, &text);
    let read = || Given::read(&RELAY, Path::new(&place("relay.cnf"))).expect("readable");
    let config = Config::settle(&read()).expect("enough");
    let names = |admin: bool| -> Vec<String> {
        let accounts = config.serve.accounts.iter();
        let some = accounts.filter(|a| a.admin == admin);
        some.map(|a| a.name.clone()).collect()
    };
    assert!(
        names(false).ends_with(&["r8".into(), "r9".into()]),
        "{:?}",
        names(false)
    );
    assert_eq!(names(true), ["ops"]);
    // GOOD names an account, so the settings themselves hold a password.
    let warnings = read().exposed();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains(&place("admins")) && warnings[1].contains(&place("relay.cnf")));
    write("admins", 0o600, "ops:four\n");
    write("relay.cnf", 0o600, &text);
    assert!(read().exposed().is_empty());

    write("admins", 0o600, "\nops\n");
    let error = Config::settle(&read())
        .expect_err("no password")
        .to_string();
    let expected = format!("{}, line 2: admin: write name:password", place("admins"));
    assert_eq!(error, expected);
    fs::remove_file(place("accounts")).expect("removed");
    let error = Config::settle(&read()).expect_err("no file").to_string();
    assert!(
        error.contains("account_file = ") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn from_a_file_and_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let secret = dir.path().join("secret");
    fs::write(&secret, "pw\n").expect("written");
    let file = dir.path().join("relay.cnf");
    let text = format!(
        "# a relay\n\n{}\npassword_file = {}\n",
        GOOD.join("\n"),
        secret.display()
    );
    fs::write(&file, text).expect("written");
    let mut more = Given::new(&RELAY);
    more.line("server_id=9", "the command line".into())
        .expect("a setting");
    let given = Given::read(&RELAY, &file).expect("readable").and(more);
    let config = Config::settle(&given).expect("enough");
    assert_eq!(
        (config.serve.server_id, &config.source.wish.password[..]),
        (9, "pw")
    );
    assert!(matches!(
        Given::read(&RELAY, &dir.path().join("none")),
        Err(ConfigError::Unreadable { .. })
    ));
}
