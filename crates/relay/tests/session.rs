//! A relay's session as a replica against a relay's session as a primary, packet by packet, and
//! against primaries that answer otherwise.

use std::time::Duration;

use dromon_binlog::{Checksum, GtidSet};
use dromon_relay::pull::{Session, SessionError, Step, Wish, follow, sent};
use dromon_relay::serve::{self, Facts, From, Reply, Wants};
use dromon_relay::store::Kind;
use dromon_relay::wire::{
    AuthSwitch, Command, Dump, Failure, Frames, Greeting, Login, NATIVE_PASSWORD, PasswordHash,
    Register, TextResult, capabilities, error, ok, put_packet, put_result,
};

const SALT: [u8; 20] = *b"abcdefghijklmnopqrst";

fn wish() -> Wish {
    Wish {
        user: "repl".into(),
        password: "secret".into(),
        tls: false,
        server_id: 9,
        report_host: "relay".into(),
        report_port: 3307,
        heartbeat: Duration::from_secs(1),
        semi_sync: true,
        zstd: Some(3),
        position: "0-1-5,7-2-3".into(),
        file: None,
        executed: None,
        channel: None,
    }
}

fn greeting() -> Vec<u8> {
    let greeting = Greeting {
        version: "5.5.5-10.11.19-MariaDB".into(),
        connection: 3,
        salt: SALT,
        capabilities: capabilities::OURS,
        plugin: NATIVE_PASSWORD.into(),
    };
    greeting.encode()
}

fn facts() -> Facts {
    Facts {
        server_id: 1,
        version: "10.11.19-MariaDB".into(),
        zstd: true,
        ..Facts::default()
    }
}

/// What the other side does with a statement.
type Answerer<'a> = &'a mut dyn FnMut(&str) -> Reply;

/// Lets a session talk until it streams or fails. Gives the transcript and the last command.
fn talk(
    session: &mut Session,
    answerer: Answerer<'_>,
) -> Result<(Vec<String>, Vec<u8>), SessionError> {
    let mut said = Vec::new();
    let Step::Reply(login) = session.packet(&greeting())? else {
        panic!("a login is due");
    };
    let login = Login::decode(&login).expect("readable").expect("no TLS");
    assert!(PasswordHash::of(b"secret").admits(&login.reply, &SALT));
    assert_eq!(login.user, "repl");
    let mut step = session.packet(&ok())?;
    loop {
        let command = match step {
            Step::Stream(dump) => return Ok((said, dump)),
            Step::Send(command) => Command::decode(&command).expect("readable"),
            other => panic!("{other:?}"),
        };
        let mut out = Vec::new();
        match command {
            Command::Query(text) => {
                let text = String::from_utf8(text).expect("a text");
                said.push(text.clone());
                match answerer(&text) {
                    Reply::Ok => put_packet(&mut out, 1, &ok()),
                    Reply::Forget(name) => panic!("{name} is to be forgotten"),
                    Reply::Error(failure) => put_packet(&mut out, 1, &error(&failure)),
                    Reply::Table(table) => put_result(&mut out, 1, &table),
                };
            }
            Command::Register(register) => {
                let expected = Register {
                    server_id: 9,
                    host: "relay".into(),
                    port: 3307,
                };
                assert_eq!(register, expected);
                said.push("(register)".into());
                put_packet(&mut out, 1, &ok());
            }
            other => panic!("{other:?}"),
        }
        let mut frames = Frames::new(1 << 20);
        frames.set_sequence(1);
        frames.feed(&out);
        step = Step::Read;
        while let Some(packet) = frames.packet().expect("in order") {
            assert_eq!(step, Step::Read, "it waits for the whole answer");
            step = session.packet(&packet)?;
        }
    }
}

#[test]
fn a_relay_behind_a_relay() {
    let mut primary = serve::Session::new();
    let mut session = Session::new(wish());
    let (said, dump) =
        talk(&mut session, &mut |text| primary.query(text, &facts())).expect("they agree");
    assert_eq!(
        said,
        [
            "SELECT @@GLOBAL.server_id, @@GLOBAL.version",
            "SET @master_heartbeat_period=1000000000, @master_binlog_checksum=@@global.binlog_checksum, \
             @mariadb_slave_capability=4, @slave_connect_state='0-1-5,7-2-3', @slave_gtid_strict_mode=1, \
             @slave_gtid_ignore_duplicates=0, @dromon_relay_lag=1",
            "SHOW VARIABLES LIKE 'dromon_relay_zstd'",
            "SET @dromon_relay_zstd=3",
            "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'",
            "(register)",
        ]
    );
    let Ok(Command::Dump(dump)) = Command::decode(&dump) else {
        panic!("a dump is due");
    };
    let expected = Dump {
        position: 4,
        flags: 2,
        server_id: 9,
        file: Vec::new(),
    };
    assert_eq!(dump, expected);
    let wants = primary.dump(&dump).expect("a good replica");
    let expected = Wants {
        from: From::Gtid("0-1-5,7-2-3".parse().expect("a position")),
        until: None,
        checksum: Checksum::Crc32,
        annotate: true,
        non_block: false,
        heartbeat_ns: 1_000_000_000,
        server_id: 9,
        mariadb: true,
        lag: true,
        other_ways: false,
        channel: None,
    };
    assert_eq!(wants, expected);
    assert_eq!(session.primary().server_id, 1);
    assert!(!session.primary().semi_sync);
    assert_eq!(session.primary().zstd, Some(3));
    assert_eq!(primary.zstd(&facts()), Some(3));
}

/// Neither a server, which has no such variable, nor a relay that does not want to is asked.
#[test]
fn compression_if_both_want_it() {
    for (wanted, offered, agreed) in [
        (Some(9), true, Some(9)),
        (Some(1), true, Some(1)),
        (None, true, None),
        (Some(3), false, None),
    ] {
        let facts = Facts {
            zstd: offered,
            ..facts()
        };
        let mut primary = serve::Session::new();
        let mut session = Session::new(Wish {
            zstd: wanted,
            ..wish()
        });
        let (said, _) =
            talk(&mut session, &mut |text| primary.query(text, &facts)).expect("they agree");
        let asked = said.iter().any(|s| s.starts_with("SET @dromon_relay_zstd"));
        assert_eq!(asked, agreed.is_some());
        assert_eq!(session.primary().zstd, agreed);
        assert_eq!(primary.zstd(&facts), agreed);
    }
}

/// Behind a byte of a file, of MySQL.
#[test]
fn a_mirror_asks_by_file_and_byte() {
    let mysql = |mode: &'static str| {
        move |text: &str| {
            let one = |row: [&str; 2]| {
                let mut table = TextResult::new(&["a", "b"]);
                table.row(row.map(str::to_owned));
                Reply::Table(table)
            };
            match text {
                text if text.starts_with("SELECT") => one(["1", "5.6.24-log"]),
                "SHOW VARIABLES LIKE 'gtid_mode'" => one(["gtid_mode", mode]),
                text if text.starts_with("SHOW") => Reply::Table(TextResult::new(&["a", "b"])),
                text => {
                    assert!(!text.contains("slave_connect_state"), "{text}");
                    Reply::Ok
                }
            }
        }
    };
    let at = |file: &str, at| Wish {
        file: Some((file.into(), at)),
        ..wish()
    };
    for (file, place) in [("", 4), ("mysql-bin.000007", 120)] {
        let mut session = Session::new(at(file, place));
        let (_, dump) = talk(&mut session, &mut mysql("OFF")).expect("they agree");
        let expected = Dump {
            position: place as u32,
            flags: 2,
            server_id: 9,
            file: file.into(),
        };
        assert_eq!(Command::decode(&dump), Ok(Command::Dump(expected)));
    }
    let refused = |wish, mode| {
        let mut session = Session::new(wish);
        let error = talk(&mut session, &mut mysql(mode)).expect_err("refused");
        error.to_string()
    };
    let said = refused(at("", 4), "ON");
    assert!(said.contains("gtid_mode = ON"), "{said}");
    let said = refused(at("mysql-bin.000001", 5 << 30), "OFF");
    assert!(said.contains("beyond 4 GiB"), "{said}");
    let said = refused(wish(), "OFF");
    assert!(said.contains("set follow = file"), "{said}");
}

/// By GTIDs of MySQL, of another relay and of servers that cannot be followed so.
#[test]
fn by_gtids_of_mysql() {
    const SET: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23";
    let set: GtidSet = SET.parse().expect("a set");
    let wish = || Wish {
        executed: Some(set.clone()),
        ..wish()
    };
    let facts = |kind, executed: &str| Facts {
        version: "5.7.44-log".into(),
        kind,
        executed: executed.into(),
        ..facts()
    };
    let mut primary = serve::Session::of(Kind::MySql);
    let mut session = Session::new(wish());
    let (said, dump) = talk(&mut session, &mut |text| {
        primary.query(text, &facts(Kind::MySql, &SET.replace("23", "99")))
    })
    .expect("they agree");
    assert_eq!(
        said,
        [
            "SELECT @@GLOBAL.server_id, @@GLOBAL.version",
            "SET @master_heartbeat_period=1000000000, @master_binlog_checksum=@@global.binlog_checksum, \
             @slave_uuid='64726f6d-6f6e-4072-8000-000000000009', @mariadb_slave_capability=4, @dromon_relay_lag=1",
            "SHOW VARIABLES LIKE 'dromon_relay_zstd'",
            "SET @dromon_relay_zstd=3",
            "SHOW VARIABLES LIKE 'rpl_semi_sync_%_enabled'",
            "SHOW VARIABLES LIKE 'gtid_mode'",
            "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed, @@GLOBAL.server_uuid",
            "(register)",
        ]
    );
    let Ok(Command::DumpGtid(dump)) = Command::decode(&dump) else {
        panic!("a dump by GTIDs is due");
    };
    assert_eq!((dump.flags, dump.server_id), (0, 9));
    let wants = primary.dump_gtid(&dump).expect("a good replica");
    assert_eq!(wants.from, From::Set(set.clone()));
    assert_eq!(wants.checksum, Checksum::Crc32);
    assert!(wants.lag && wants.mariadb && wants.annotate && !wants.non_block);
    // Without checksums nothing is sent, and a relay of another kind has no such GTIDs.
    let unasked = serve::Session::of(Kind::MySql).dump_gtid(&dump);
    assert!(
        unasked
            .expect_err("no checksums")
            .to_string()
            .contains("1236")
    );
    for (kind, follow) in [(Kind::MariaDb, "gtid"), (Kind::Mirror, "file")] {
        let error = serve::Session::of(kind).dump_gtid(&dump).expect_err(follow);
        let text = error.to_string();
        assert!(
            text.contains(&format!("(it has follow = {follow})")),
            "{text}"
        );
    }
    for (kind, executed, expected) in [
        (Kind::Mirror, "", "has OFF as its gtid_mode"),
        (Kind::MariaDb, "", "has nothing as its gtid_mode"),
        (
            Kind::MySql,
            "",
            "lacks transactions that the relay has: 3e11fa47",
        ),
        (
            Kind::MySql,
            "x",
            "gtid_executed cannot be read: 'x' is no set",
        ),
    ] {
        let mut primary = serve::Session::of(kind);
        let mut session = Session::new(wish());
        let error = talk(&mut session, &mut |text| {
            primary.query(text, &facts(kind, executed))
        });
        let text = error.expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

/// Whoever begins with a node of a cluster gets all of the cluster, or nothing.
#[test]
fn of_a_node_of_a_cluster() {
    let talks = |node: &[[&'static str; 2]], begins: bool| {
        let mut session = Session::new(wish()).begins(begins);
        let talked = talk(&mut session, &mut |text| {
            let mut table = TextResult::new(&["a", "b"]);
            let is_node = !node.is_empty();
            match text {
                _ if text.starts_with("SELECT") => {
                    table.row(["1".to_owned(), "10.11.19-MariaDB".to_owned()]);
                }
                _ if text.contains("'wsrep_on'") && is_node => {
                    table.row(["wsrep_on".to_owned(), "ON".to_owned()]);
                }
                _ if text.contains("'wsrep_provider'") => match node {
                    [["refused", _]] => return Reply::Error(Failure::new(1142, "no")),
                    _ => node
                        .iter()
                        .for_each(|row| table.row(row.map(str::to_owned))),
                },
                _ if text.starts_with("SET") => return Reply::Ok,
                _ => {}
            }
            Reply::Table(table)
        });
        let node = session.primary().node;
        talked.map(|(said, _)| (said.len(), node))
    };
    let alone = talks(&[], true).expect("no node");
    assert_eq!(alone.1, None);
    let own = [["log_slave_updates", "OFF"], ["wsrep_provider", "/lib.so"]];
    let error = talks(&own, true).expect_err("it would lack what others write");
    let text = error.to_string();
    for part in [
        "only what its own clients write",
        "wsrep_gtid_domain_id",
        "restart",
        "Nothing was taken",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (asked, node) = talks(&own, false).expect("it goes on");
    assert_eq!(asked, alone.0 + 1, "of one in no cluster no more is asked");
    assert!(!node.expect("a node").all);
    // Of what is not there, or not told, nothing is thought.
    let unknown: [&[[&str; 2]]; 3] = [
        &[["wsrep_provider", "none"], ["log_slave_updates", "OFF"]],
        &[["wsrep_provider", "/lib.so"]],
        &[["refused", ""]],
    ];
    for node in unknown {
        let (_, found) = talks(node, true).expect("it may be followed");
        assert!(found.is_none_or(|node| node.all && node.common_gtids));
    }
}

#[test]
fn semi_sync_if_both_want_it() {
    for (enabled, wanted) in [
        (Some("ON"), true),
        (Some("OFF"), true),
        (None, true),
        (Some("ON"), false),
    ] {
        let mut session = Session::new(Wish {
            semi_sync: wanted,
            ..wish()
        });
        let mut asked = false;
        talk(&mut session, &mut |text| {
            if text.starts_with("SHOW") {
                let mut table = TextResult::new(&["Variable_name", "Value"]);
                if let Some(enabled) = enabled {
                    table.row(["rpl_semi_sync_master_enabled".into(), enabled.into()]);
                }
                return Reply::Table(table);
            }
            asked |= text == "SET @rpl_semi_sync_slave=1";
            if text.starts_with("SELECT") {
                let mut table = TextResult::new(&["a", "b"]);
                table.row(["1".into(), "x".into()]);
                return Reply::Table(table);
            }
            Reply::Ok
        })
        .expect("they agree");
        // It may be switched on later.
        let agreed = enabled.is_some() && wanted;
        let primary = session.primary();
        assert_eq!((asked, primary.semi_sync), (agreed, agreed));
        assert_eq!(primary.semi_sync_on, agreed && enabled == Some("ON"));
    }
}

/// From 8.0.26 on MySQL has a plugin with other names; both may be there.
#[test]
fn semi_sync_of_mysql() {
    let switches = |all: &[(&str, &str)]| {
        let mut table = TextResult::new(&["Variable_name", "Value"]);
        for (name, value) in all {
            table.row([format!("rpl_semi_sync_{name}_enabled"), (*value).into()]);
        }
        Reply::Table(table)
    };
    let one = |row: [&str; 2]| {
        let mut table = TextResult::new(&["a", "b"]);
        table.row(row.map(str::to_owned));
        Reply::Table(table)
    };
    for (all, agreed, is_on) in [
        (&[("source", "ON")][..], true, true),
        (&[("master", "ON"), ("slave", "OFF")], true, true),
        (&[("replica", "ON"), ("source", "ON")], true, true),
        (&[("master", "OFF"), ("source", "ON")], true, true),
        (&[("source", "OFF")], true, false),
        (&[("replica", "ON"), ("source", "OFF")], true, false),
        // It can be a replica only.
        (&[("replica", "ON"), ("slave", "ON")], false, false),
        (&[], false, false),
    ] {
        for by_file in [true, false] {
            let mut session = Session::new(Wish {
                semi_sync: true,
                file: by_file.then(|| (String::new(), 4)),
                executed: (!by_file).then(GtidSet::new),
                ..wish()
            });
            let mut asked = false;
            talk(&mut session, &mut |text| match text {
                "SHOW VARIABLES LIKE 'rpl_semi_sync_%_enabled'" => switches(all),
                "SHOW VARIABLES LIKE 'gtid_mode'" => match by_file {
                    true => one(["gtid_mode", "OFF"]),
                    false => one(["gtid_mode", "ON"]),
                },
                text if text.contains("gtid_executed") => one(["", ""]),
                text if text.starts_with("SELECT") => one(["1", "8.4.3"]),
                text if text.starts_with("SHOW") => Reply::Table(TextResult::new(&["a", "b"])),
                text => {
                    asked |= text == "SET @rpl_semi_sync_slave=1, @rpl_semi_sync_replica=1";
                    Reply::Ok
                }
            })
            .expect("they agree");
            let primary = session.primary();
            let said = (asked, primary.semi_sync, primary.semi_sync_on);
            assert_eq!(said, (agreed, agreed, is_on), "{all:?}");
        }
    }
}

#[test]
fn refusals_say_what_was_asked() {
    let mut session = Session::new(wish());
    let refused = talk(
        &mut session,
        &mut |text| match text.contains("capability") {
            true => Reply::Error(Failure::new(1193, "Unknown system variable")),
            false => Reply::Table(TextResult::new(&["a", "b"])),
        },
    );
    // A table where ok is due is taken as done.
    let error = refused.expect_err("refused").to_string();
    assert_eq!(
        error,
        "The primary refused SET @master_heartbeat_period=1000000000, @master_binlog_checksum=@@global.binlog_checksum, \
         @mariadb_slave_capability=4, @slave_connect_state='0-1-5,7-2-3', @slave_gtid_strict_mode=1, \
         @slave_gtid_ignore_duplicates=0, @dromon_relay_lag=1: error 1193: Unknown system variable"
    );
    let mut session = Session::new(Wish {
        server_id: 1,
        ..wish()
    });
    let mut primary = serve::Session::new();
    let same = talk(&mut session, &mut |text| primary.query(text, &facts()));
    assert_eq!(same, Err(SessionError::SameServerId(1)));
}

#[test]
fn proofs() {
    // Asked again with another salt.
    let mut session = Session::new(wish());
    session.packet(&greeting()).expect("a greeting");
    let salt = [b'z'; 20];
    let switch = |plugin: &str| AuthSwitch {
        plugin: plugin.into(),
        salt: salt.to_vec(),
    };
    let Ok(Step::Reply(reply)) = session.packet(&switch(NATIVE_PASSWORD).encode()) else {
        panic!("a reply is due");
    };
    assert!(PasswordHash::of(b"secret").admits(&reply, &salt));
    // By a way that is not known.
    let mut session = Session::new(wish());
    session.packet(&greeting()).expect("a greeting");
    let error = session
        .packet(&switch("client_ed25519").encode())
        .expect_err("not offered")
        .to_string();
    assert!(
        error.contains("client_ed25519, which is not offered"),
        "{error}"
    );
    // In the words of MySQL, too: there another way is the default from 8.0 on.
    assert!(
        error.contains("IDENTIFIED WITH mysql_native_password BY"),
        "{error}"
    );
    // Not let in; not even greeted.
    let mut session = Session::new(wish());
    session.packet(&greeting()).expect("a greeting");
    let denied = error_packet(1045, "Access denied");
    assert!(
        session
            .packet(&denied)
            .expect_err("denied")
            .to_string()
            .contains("the login: error 1045")
    );
    let many = error_packet(1040, "Too many connections");
    let error = Session::new(wish())
        .packet(&many)
        .expect_err("full")
        .to_string();
    assert_eq!(
        error,
        "The primary refused the connection: error 1040: Too many connections"
    );
    assert!(Session::new(wish()).packet(b"HTTP/1.1 400").is_err());
}

fn error_packet(code: u16, text: &str) -> Vec<u8> {
    error(&Failure::new(code, text))
}

#[test]
fn packets_of_the_stream() {
    let plain = sent(&[0, 1, 2], false).expect("an event");
    assert_eq!((plain.event, plain.ack), (&[1, 2][..], false));
    let asked = sent(&[0, 0xef, 1, 7], true).expect("an event");
    assert_eq!((asked.event, asked.ack), (&[7][..], true));
    let not = sent(&[0, 0xef, 0, 7], true).expect("an event");
    assert!(!not.ack);
    assert!(sent(&[0, 7], true).is_err());
    let lost = sent(&error_packet(1236, "purged"), true)
        .expect_err("an error")
        .to_string();
    assert_eq!(
        lost,
        "The primary refused to send its binlog (on): error 1236: purged"
    );
    assert!(sent(&[0xfe, 0, 0, 0, 0], false).is_err());
    assert!(sent(&[], false).is_err());
}

/// As a server sends it: after each event that is to be acknowledged the numbers begin anew, at 1.
#[test]
fn numbers_begin_anew_after_an_event_that_is_to_be_acknowledged() {
    let mut bytes = Vec::new();
    for (sequence, ack, event) in [
        (1, 0, 10),
        (2, 0, 11),
        (3, 1, 12),
        (1, 0, 13),
        (2, 1, 14),
        (1, 1, 15),
        (1, 0, 16),
    ] {
        put_packet(&mut bytes, sequence, &[0, 0xef, ack, event]);
    }
    let mut frames = Frames::new(100);
    frames.set_sequence(1);
    frames.feed(&bytes);
    let mut got = Vec::new();
    while let Some(packet) = frames.packet().expect("the numbers are those of a server") {
        let sent = follow(&mut frames, &packet, true).expect("an event");
        got.push((sent.event[0], sent.ack));
    }
    let expected = [
        (10, false),
        (11, false),
        (12, true),
        (13, false),
        (14, true),
        (15, true),
        (16, false),
    ];
    assert_eq!(got, expected);
    // Without semi-sync nothing begins anew.
    let mut frames = Frames::new(100);
    follow(&mut frames, &[0, 0xef, 1, 7], false).expect("an event");
    assert_eq!(frames.sequence(), 0);
}
