use super::*;

fn facts() -> Facts {
    Facts {
        server_id: 77,
        version: "10.11.19-MariaDB".into(),
        connection: 5,
        user: "repl".into(),
        admin: false,
        position: "0-1-9".into(),
        state: "0-2-7,0-1-9".into(),
        files: vec![
            Listed {
                name: "relay-bin.000001".into(),
                bytes: 1000,
            },
            Listed {
                name: "relay-bin.000002".into(),
                bytes: 300,
            },
        ],
        hosts: vec![Host {
            server_id: 3,
            host: "db3".into(),
            port: 3306,
        }],
        known: vec![Listing {
            host: Host {
                server_id: 9,
                host: "db9".into(),
                port: 3306,
            },
            connected: false,
            last_seen: 1_700_000_000,
            needs: "relay-bin.000001".into(),
            cut_off: false,
        }],
        now: 1_000_000,
        port: 3307,
        zstd: true,
        kind: Kind::MariaDb,
        lag_ms: Some(250),
        executed: String::new(),
        purged: String::new(),
        upstream: Some(Upstream {
            address: "[::1]:3306".into(),
            user: "relay".into(),
            connected: true,
            server_id: 1,
            file: "bin.000007".into(),
            position: 4711,
            ..Upstream::default()
        }),
        failure: None,
    }
}

/// What tools look for.
#[test]
fn as_a_replica_of_its_primary() {
    let status = |facts: &Facts, query: &str| -> BTreeMap<String, Option<String>> {
        let Reply::Table(table) = Session::new().query(query, facts) else {
            panic!("a table");
        };
        let cells = table.rows[0].iter().map(|cell| {
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            cell.as_ref().map(text)
        });
        assert_eq!(table.columns.len(), table.rows[0].len());
        table.columns.iter().cloned().zip(cells).collect()
    };
    let is = |facts: &Facts, query: &str, wanted: &[(&str, Option<&str>)]| {
        let have = status(facts, query);
        for (name, value) in wanted {
            assert_eq!(have[*name].as_deref(), *value, "{query}: {name}");
        }
    };
    let well = [
        ("Master_Host", Some("::1")),
        ("Master_Port", Some("3306")),
        ("Slave_IO_Running", Some("Yes")),
        ("Slave_SQL_Running", Some("Yes")),
        ("Seconds_Behind_Master", Some("0")),
        ("Last_IO_Error", Some("")),
        ("Gtid_IO_Pos", Some("0-1-9")),
        ("Read_Master_Log_Pos", Some("4711")),
        ("Relay_Log_Space", Some("1300")),
    ];
    is(&facts(), "SHOW SLAVE STATUS", &well);
    is(&facts(), "show all slaves status", &well);
    is(
        &facts(),
        "SHOW ALL REPLICAS STATUS",
        &[("Connection_name", Some(""))],
    );
    let mut away = facts();
    let up = away.upstream.as_mut().expect("it follows");
    up.connected = false;
    up.last_error = Some("gone".into());
    is(
        &away,
        "SHOW REPLICA STATUS",
        &[
            ("Slave_IO_Running", Some("Connecting")),
            ("Seconds_Behind_Master", None),
            ("Last_IO_Errno", Some("2013")),
            ("Last_IO_Error", Some("gone")),
        ],
    );
    // Storing has ended for good, whether or not the connection is there still.
    for connected in [true, false] {
        let mut failed = away.clone();
        failed.failure = Some("no space".into());
        failed.upstream.as_mut().expect("it follows").connected = connected;
        let stands = [
            ("Slave_IO_State", Some("")),
            ("Slave_IO_Running", Some("No")),
            ("Slave_SQL_Running", Some("No")),
            ("Seconds_Behind_Master", None),
            ("Last_IO_Errno", Some("0")),
            ("Last_IO_Error", Some("")),
            ("Last_Errno", Some("1026")),
            ("Last_Error", Some("no space")),
            ("Last_SQL_Errno", Some("1026")),
            ("Last_SQL_Error", Some("no space")),
        ];
        is(&failed, "SHOW SLAVE STATUS", &stands);
        is(&failed, "SHOW ALL SLAVES STATUS", &stands);
    }
    // Encrypted is not yet that the name was compared.
    for (encrypted, named) in [(false, false), (true, false), (true, true)] {
        let up = away.upstream.as_mut().expect("it follows");
        (up.encrypted, up.named) = (encrypted, named);
        let word = |is| Some(if is { "Yes" } else { "No" });
        let said = [
            ("Master_SSL_Allowed", word(encrypted)),
            ("Master_SSL_Verify_Server_Cert", word(named)),
        ];
        is(&away, "SHOW SLAVE STATUS", &said);
    }
    away.upstream = None;
    let Reply::Table(none) = Session::new().query("SHOW SLAVE STATUS", &away) else {
        panic!("a table");
    };
    assert!(none.rows.is_empty(), "it follows nobody");
}

fn said(reply: &Reply) -> String {
    match reply {
        Reply::Forget(name) => format!("forget {name}"),
        Reply::Ok => "ok".into(),
        Reply::Error(failure) => failure.to_string(),
        Reply::Table(table) => {
            let mut out = table.columns.join("|");
            for row in &table.rows {
                let cells: Vec<_> = row
                    .iter()
                    .map(|c| {
                        c.as_ref()
                            .map_or("NULL".into(), |c| String::from_utf8_lossy(c))
                    })
                    .collect();
                out.push_str(&format!(" / {}", cells.join("|")));
            }
            out
        }
    }
}

/// What a replica of 10.11 sends, in its order.
#[test]
fn what_a_replica_asks() {
    let mut session = Session::new();
    let facts = facts();
    for (query, expected) in [
        ("SELECT UNIX_TIMESTAMP()", "UNIX_TIMESTAMP() / 1000000"),
        (
            "SHOW VARIABLES LIKE 'SERVER_ID'",
            "Variable_name|Value / server_id|77",
        ),
        ("SET @master_heartbeat_period=30000001024", "ok"),
        (
            "SET @master_binlog_checksum= @@global.binlog_checksum",
            "ok",
        ),
        (
            "SELECT @master_binlog_checksum",
            "@master_binlog_checksum / CRC32",
        ),
        ("SET @mariadb_slave_capability=4", "ok"),
        (
            "SELECT @@GLOBAL.gtid_domain_id",
            "@@GLOBAL.gtid_domain_id / 0",
        ),
        ("SET @slave_connect_state='0-1-4'", "ok"),
        ("SET @slave_gtid_strict_mode=0", "ok"),
        ("SET @slave_gtid_ignore_duplicates=0", "ok"),
        (
            "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'",
            "Variable_name|Value",
        ),
    ] {
        assert_eq!(said(&session.query(query, &facts)), expected, "{query}");
    }
    let dump = Dump {
        position: 4,
        flags: 2,
        server_id: 3,
        file: Vec::new(),
    };
    let wants = session.dump(&dump).expect("a good replica");
    assert_eq!(
        wants,
        Wants {
            from: From::Gtid("0-1-4".parse().expect("a position")),
            until: None,
            checksum: Checksum::Crc32,
            annotate: true,
            non_block: false,
            heartbeat_ns: 30_000_001_024,
            server_id: 3,
            mariadb: true,
            lag: false,
            other_ways: false,
            channel: None,
        }
    );
    session.query("SET @slave_gtid_ignore_duplicates=1", &facts);
    assert!(session.dump(&dump).expect("a good replica").other_ways);
}

#[test]
fn up_to_a_position() {
    let mut session = Session::new();
    session.query(
        "SET @mariadb_slave_capability=4, @master_binlog_checksum='CRC32', @slave_connect_state='0-1-4', \
         @slave_until_gtid='0-1-9,3-2-7'",
        &facts(),
    );
    let dump = Dump {
        position: 4,
        flags: 0,
        server_id: 3,
        file: Vec::new(),
    };
    let wants = session.dump(&dump).expect("a good replica");
    assert_eq!(
        wants.until,
        Some("0-1-9,3-2-7".parse().expect("a position"))
    );
}

/// A position has a GTID for each domain that there ever was. All of it counts.
#[test]
fn positions_of_thousands_of_domains() {
    let of = |domains: u32| {
        let gtids: Vec<String> = (0..domains)
            .map(|n| format!("{n}-4294967295-18446744073709551615"))
            .collect();
        gtids.join(",")
    };
    let (has, until) = (of(8000), of(9000));
    for set in [
        // As a server asks, and as a relay does.
        vec![
            format!("SET @slave_connect_state='{has}'"),
            format!("SET @slave_until_gtid='{until}'"),
        ],
        vec![format!(
            "set @a=1, @slave_connect_state='{has}', @Slave_Until_GTID='{until}'"
        )],
    ] {
        let mut session = Session::new();
        session.query(
            "SET @mariadb_slave_capability=4, @master_binlog_checksum='CRC32'",
            &facts(),
        );
        for text in set {
            assert_eq!(session.query(&text, &facts()), Reply::Ok);
        }
        let dump = Dump {
            position: 4,
            flags: 0,
            server_id: 3,
            file: Vec::new(),
        };
        let wants = session.dump(&dump).expect("a good replica");
        assert_eq!(wants.from, From::Gtid(has.parse().expect("a position")));
        assert_eq!(wants.until, Some(until.parse().expect("a position")));
        // Nobody gets them sixty times at once.
        let many = format!(
            "SELECT {}",
            vec!["@slave_connect_state"; ITEMS_MAX].join(",")
        );
        assert!(said(&session.query(&many, &facts())).starts_with("error 1235"));
    }
    let other = format!("SET @a='{has}'");
    let refused = said(&Session::new().query(&other, &facts()));
    assert!(
        refused.contains(&format!("@a has {} bytes; {VALUE_MAX} are kept", has.len())),
        "{refused}"
    );
}

/// One statement must not make room for thousands of times its length.
#[test]
fn as_many_values_as_are_bounded() {
    let mut session = Session::new();
    let long = format!("SET @a='{}'", "a".repeat(VALUE_MAX));
    assert_eq!(session.query(&long, &facts()), Reply::Ok);
    let select = |n: usize| format!("SELECT {}", vec!["@a"; n].join(","));
    let Reply::Table(table) = session.query(&select(ITEMS_MAX), &facts()) else {
        panic!("a table");
    };
    assert_eq!(table.rows[0].len(), ITEMS_MAX);
    let Reply::Error(failure) = session.query(&select(ITEMS_MAX + 1), &facts()) else {
        panic!("refused");
    };
    assert_eq!(failure.code, errors::NOT_SUPPORTED);
}

/// What a replica of MySQL 5.6 sends, in its order.
#[test]
fn what_a_replica_of_mysql_asks() {
    let mut session = Session::of(Kind::Mirror);
    let facts = Facts {
        kind: Kind::Mirror,
        version: "5.6.24-log".into(),
        ..facts()
    };
    for (query, expected) in [
        ("SELECT UNIX_TIMESTAMP()", "UNIX_TIMESTAMP() / 1000000"),
        (
            "SHOW VARIABLES LIKE 'SERVER_ID'",
            "Variable_name|Value / server_id|77",
        ),
        ("SET @master_heartbeat_period= 1799999979520", "ok"),
        (
            "SET @master_binlog_checksum= @@global.binlog_checksum",
            "ok",
        ),
        (
            "SELECT @master_binlog_checksum",
            "@master_binlog_checksum / CRC32",
        ),
        ("SELECT @@GLOBAL.GTID_MODE", "@@GLOBAL.GTID_MODE / OFF"),
        (
            "SHOW VARIABLES LIKE 'SERVER_UUID'",
            "Variable_name|Value / server_uuid|64726f6d-6f6e-4072-8000-00000000004d",
        ),
        (
            "SET @slave_uuid= '5d4b6ec1-0000-11e5-8a2e-0800273b5b6c'",
            "ok",
        ),
    ] {
        assert_eq!(said(&session.query(query, &facts)), expected, "{query}");
    }
    let dump = Dump {
        position: 120,
        flags: 0,
        server_id: 3,
        file: b"mysql-bin.000007".to_vec(),
    };
    let wants = session.dump(&dump).expect("a good replica");
    assert_eq!(wants.from, From::File("mysql-bin.000007".into(), 120));
    // By GTID it cannot be served.
    session.query("SET @slave_connect_state='0-1-4'", &facts);
    let failure = session.dump(&dump).expect_err("by GTID");
    assert!(failure.message.contains("by file and byte only"));
}

/// What a replica of MySQL 8.0.26 or later sends, with the plugin of semi-sync, in its order.
#[test]
fn what_a_newer_replica_of_mysql_asks() {
    let mut session = Session::of(Kind::MySql);
    let facts = Facts {
        kind: Kind::MySql,
        version: "8.4.3".into(),
        ..facts()
    };
    for (query, expected) in [
        ("SELECT UNIX_TIMESTAMP()", "UNIX_TIMESTAMP() / 1000000"),
        ("SELECT @@GLOBAL.SERVER_ID", "@@GLOBAL.SERVER_ID / 77"),
        (
            "SET @master_heartbeat_period = 30000000000, @source_heartbeat_period = 30000000000",
            "ok",
        ),
        (
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum",
            "ok",
        ),
        (
            "SELECT @source_binlog_checksum",
            "@source_binlog_checksum / CRC32",
        ),
        ("SELECT @@GLOBAL.GTID_MODE", "@@GLOBAL.GTID_MODE / ON"),
        (
            "SELECT @@GLOBAL.SERVER_UUID",
            "@@GLOBAL.SERVER_UUID / 64726f6d-6f6e-4072-8000-00000000004d",
        ),
        (
            "SET @slave_uuid = '5d4b6ec1-0000-11e5-8a2e-0800273b5b6c', @replica_uuid = '5d4b6ec1-0000-11e5-8a2e-0800273b5b6c'",
            "ok",
        ),
        // By this error it knows that it is to go on without.
        (
            "SELECT @@global.rpl_semi_sync_source_enabled",
            "error 1193: Unknown system variable 'rpl_semi_sync_source_enabled'",
        ),
    ] {
        assert_eq!(said(&session.query(query, &facts)), expected, "{query}");
    }
    let mut set = Vec::new();
    GtidSet::new().encode(&mut set);
    let dump = DumpGtid {
        // It knows the newer kind of heartbeats, too.
        flags: 2,
        server_id: 3,
        set,
    };
    let wants = Wants {
        from: From::Set(GtidSet::new()),
        until: None,
        checksum: Checksum::Crc32,
        annotate: true,
        non_block: false,
        heartbeat_ns: 30_000_000_000,
        server_id: 3,
        mariadb: false,
        lag: false,
        other_ways: false,
        channel: None,
    };
    assert_eq!(session.dump_gtid(&dump), Ok(wants.clone()));
    // A client that uses the newer names alone.
    let mut session = Session::of(Kind::MySql);
    session.query(
        "SET @source_binlog_checksum='CRC32', @source_heartbeat_period=30000000000",
        &facts,
    );
    assert_eq!(session.dump_gtid(&dump), Ok(wants));
}

#[test]
fn what_tools_ask() {
    let mut session = Session::new();
    let facts = facts();
    for (query, expected) in [
        (
            "select @@version_comment limit 1",
            "@@version_comment / dromon relay: a binlog server, read-only",
        ),
        (
            "SHOW MASTER STATUS;",
            "File|Position|Binlog_Do_DB|Binlog_Ignore_DB / relay-bin.000002|300||",
        ),
        (
            "show binary logs",
            "Log_name|File_size / relay-bin.000001|1000 / relay-bin.000002|300",
        ),
        (
            "SHOW SLAVE HOSTS",
            "Server_id|Host|Port|Master_id / 3|db3|3306|77",
        ),
        (
            "SHOW REPLICAS",
            "Server_Id|Host|Port|Source_Id|Replica_UUID / 3|db3|3306|77|",
        ),
        (
            "SHOW KNOWN REPLICAS",
            "Server_id|Host|Port|Connected|Last_seen_utc|Needed_file|Cut_off / 9|db9|3306|No|2023-11-14 22:13:20|relay-bin.000001|No",
        ),
        (
            "SELECT @@gtid_binlog_pos, @@global.gtid_binlog_state AS s",
            "@@gtid_binlog_pos|s / 0-1-9|0-2-7,0-1-9",
        ),
        (
            "SELECT @@gtid_binlog_pos, @@dromon_relay_lag_ms",
            "@@gtid_binlog_pos|@@dromon_relay_lag_ms / 0-1-9|250",
        ),
        (
            "/* hi */ SELECT @@global.read_only, VERSION() v",
            "@@global.read_only|v / 1|10.11.19-MariaDB",
        ),
        (
            "SHOW GLOBAL VARIABLES LIKE 'read\\_only'",
            "Variable_name|Value / read_only|ON",
        ),
        ("SET NAMES utf8mb4", "ok"),
        ("SET autocommit=0, @a := 'x', SESSION sql_mode=''", "ok"),
        ("SELECT @a, @b, NULL", "@a|@b|NULL / x|NULL|NULL"),
    ] {
        assert_eq!(said(&session.query(query, &facts)), expected, "{query}");
    }
}

#[test]
fn compression_is_agreed_on() {
    let mut session = Session::new();
    let off = Facts {
        zstd: false,
        ..facts()
    };
    let asked = "SHOW VARIABLES LIKE 'dromon_relay_zstd'";
    let table = "Variable_name|Value";
    assert_eq!(said(&session.query(asked, &off)), table);
    assert_eq!(
        said(&session.query(asked, &facts())),
        format!("{table} / dromon_relay_zstd|9")
    );
    for (value, level) in [("0", None), ("'x'", None), ("3", Some(3)), ("200", Some(9))] {
        assert_eq!(
            session.query(&format!("SET @dromon_relay_zstd={value}"), &facts()),
            Reply::Ok
        );
        assert_eq!(session.zstd(&facts()), level);
        assert_eq!(session.zstd(&off), None);
    }
}

#[test]
fn who_may_have_replicas_forgotten() {
    let mut session = Session::new();
    let (nobody, admin) = (
        facts(),
        Facts {
            admin: true,
            ..facts()
        },
    );
    for (query, name) in [
        ("FORGET REPLICA 7", Called::Id(7)),
        ("forget slave 7;", Called::Id(7)),
        ("FORGET REPLICA '7'", Called::Name("7".into())),
        ("FORGET REPLICA 'db-3'", Called::Name("db-3".into())),
        ("FORGET REPLICA db3", Called::Name("db3".into())),
    ] {
        let told = Reply::Forget(name);
        assert_eq!(session.query(query, &admin), told, "{query}");
        let denied = said(&session.query(query, &nobody));
        assert!(
            denied.starts_with("error 1227: Access denied")
                && denied.contains("setting admin")
                && denied.ends_with("'repl' is none of them. Nothing was forgotten"),
            "{denied}"
        );
    }
    for query in [
        "FORGET",
        "FORGET 7",
        "FORGET REPLICA",
        "FORGET REPLICA ''",
        "FORGET REPLICA 7.5",
        "FORGET REPLICA 4294967296",
        "FORGET REPLICA 7 8",
        "FORGET REPLICA db-3",
        "FORGET REPLICA @a",
    ] {
        let wrong = said(&session.query(query, &admin));
        assert!(
            wrong.starts_with("error 1064") && wrong.contains("write FORGET REPLICA 7"),
            "{query}: {wrong}"
        );
    }
}

#[test]
fn what_is_refused() {
    let mut session = Session::new();
    let facts = facts();
    for (query, expected) in [
        (
            "INSERT INTO t VALUES (1)",
            "error 1290: This is a dromon relay. It has no data and is read-only: INSERT is refused",
        ),
        ("set global read_only=0", "error 1290"),
        ("SET @@global.server_id=1", "error 1290"),
        ("SET PASSWORD='x'", "error 1290"),
        ("START SLAVE", "error 1290"),
        ("RESET MASTER", "error 1290"),
        ("SELECT * FROM mysql.user", "error 1235"),
        ("SELECT a", "error 1235"),
        (
            "SELECT @@nothing",
            "error 1193: Unknown system variable 'nothing'",
        ),
        ("SELECT SLEEP(1000)", "error 1235"),
        ("SHOW TABLES", "error 1235"),
        ("EXPLAIN x", "error 1235"),
        ("", "error 1064"),
        ("'", "error 1064"),
        ("SET @a", "error 1064"),
        ("SELECT", "error 1064"),
    ] {
        let said = said(&session.query(query, &facts));
        assert!(said.starts_with(expected), "{query}: {said}");
    }
    for n in 0..VARS_MAX {
        assert_eq!(session.query(&format!("SET @v{n}=1"), &facts), Reply::Ok);
    }
    let more = said(&session.query("SET @more=1", &facts));
    assert!(
        more.starts_with("error 1235") && more.contains("@more"),
        "{more}"
    );
}

#[test]
fn dumps_that_are_refused() {
    let dump = Dump {
        position: 4,
        flags: 0,
        server_id: 3,
        file: b"relay-bin.000001".to_vec(),
    };
    for (sets, expected) in [
        ("SET @a=1", "MariaDB 10.0 and later"),
        (
            "SET @mariadb_slave_capability=3, @master_binlog_checksum='CRC32'",
            "MariaDB 10.0 and later",
        ),
        ("SET @mariadb_slave_capability=4", "knows no checksums"),
        (
            "SET @mariadb_slave_capability=4, @master_binlog_checksum='MD5'",
            "cannot be MD5",
        ),
        (
            "SET @mariadb_slave_capability=4, @master_binlog_checksum='NONE', @slave_connect_state='0-1'",
            "is no GTID",
        ),
        (
            "SET @mariadb_slave_capability=4, @master_binlog_checksum='NONE', @slave_connect_state='0-1-4', @slave_until_gtid='0-1'",
            "@slave_until_gtid",
        ),
    ] {
        let mut session = Session::new();
        assert_eq!(session.query(sets, &facts()), Reply::Ok);
        let failure = session.dump(&dump).expect_err(sets);
        assert_eq!(failure.code, errors::DUMP);
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
    let mut session = Session::new();
    session.query(
        "SET @mariadb_slave_capability=4, @master_binlog_checksum='NONE'",
        &facts(),
    );
    let wants = session.dump(&dump).expect("by file");
    assert_eq!(wants.from, From::File("relay-bin.000001".into(), 4));
    assert_eq!(wants.checksum, Checksum::Off);
}

#[test]
fn every_variable_listed_has_a_value() {
    assert!(VARIABLES.is_sorted());
    for name in VARIABLES {
        let of = |kind| Facts { kind, ..facts() };
        let has = |kind| system(name, &of(kind)).is_some();
        assert!(has(Kind::Mirror) || has(Kind::MySql), "{name}");
        // Those of MySQL's GTIDs are only there if there are some.
        let mysql = [
            "enforce_gtid_consistency",
            "gtid_executed",
            "gtid_owned",
            "gtid_purged",
        ];
        assert_eq!(
            has(Kind::MariaDb),
            !mysql.contains(name) && !["gtid_mode", "server_uuid"].contains(name)
        );
    }
}

#[test]
fn sets_of_mysql_are_told_by_files_of_mysql_only() {
    let executed = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23";
    let mysql = Facts {
        kind: Kind::MySql,
        executed: executed.into(),
        purged: format!("{executed}0"),
        ..facts()
    };
    let asked = |text: &str, facts: &Facts| said(&Session::new().query(text, facts));
    let both = asked("SELECT @@GLOBAL.gtid_executed, @@gtid_purged", &mysql);
    assert!(both.contains(&format!("{executed}|{executed}0")), "{both}");
    assert!(asked("SHOW MASTER STATUS", &mysql).contains(executed));
    for variable in ["gtid_executed", "gtid_purged"] {
        let none = asked(&format!("SELECT @@GLOBAL.{variable}"), &facts());
        assert!(none.contains("1193"), "{none}");
    }
}

/// Whoever has an account could ask for all memory, or all time, with one statement.
#[test]
fn long_statements_are_refused() {
    let like = |len: usize| format!("SHOW VARIABLES LIKE '{}'", "%".repeat(len));
    let set = |len: usize| format!("SET @x = '{}'", "x".repeat(len));
    for (taken, text) in [
        (true, like(PATTERN_MAX)),
        (false, like(PATTERN_MAX + 1)),
        (true, set(VALUE_MAX)),
        (false, ",".repeat(STATEMENT_MAX + 1)),
        (false, set(STATEMENT_MAX)),
        (false, format!("SET {}", ",".repeat(STATEMENT_MAX))),
        (false, format!("SELECT '{}'", "x".repeat(STATEMENT_MAX))),
    ] {
        let reply = Session::new().query(&text, &facts());
        let refused = match &reply {
            Reply::Error(failure) => failure.to_string(),
            _ => String::new(),
        };
        assert_eq!(refused.is_empty(), taken, "{} bytes: {refused}", text.len());
    }
}
