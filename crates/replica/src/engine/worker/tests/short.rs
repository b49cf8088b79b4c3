//! A target that runs out of something for a while.

use std::sync::atomic::Ordering;

use super::*;

/// Waits for more, and nothing of the unit is there.
fn waits(end: End) -> Waits {
    let End::Waits(waits) = end else {
        panic!("it must wait: {end:?}");
    };
    assert_eq!(waits.at.as_deref(), Some("0-1-1"), "{waits:?}");
    assert!(
        waits.why.contains("0-1-1 cannot be applied now") && waits.why.contains("Nothing of it is"),
        "{waits:?}"
    );
    waits
}

/// Rows are rolled back, not tried again at once, and applied when there is room.
#[test]
fn rows_wait_for_room() {
    for (code, what) in [
        (5, "memory"),
        (20, "disk"),
        (1021, "disk"),
        (1037, "memory"),
        (1038, "memory"),
        (1041, "memory"),
        (1114, "max_heap_table_size"),
        (1878, "disk"),
    ] {
        let insert = fails(code, 1);
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with("INSERT INTO `d`") => insert(),
            other => epoch(other),
        });
        let one = || unit(vec![rows("plain", &[(None, Some((1, Some("geheim"))))])]);
        let waits = waits(applied(&fake, &[], one()));
        assert!(waits.what.contains(what), "{waits:?}");
        // Who asks for the status need not log in.
        assert!(!waits.to_string().contains("geheim"), "{waits}");
        let done = fake.done();
        assert_eq!(done.len(), 3, "{done:?}");
        assert_eq!((done[0].as_str(), done[2].as_str()), ("BEGIN", "ROLLBACK"));
        assert_eq!(applied(&fake, &[], one()), End::Told);
    }
}

/// What says with the number of the server's system what is wanting. True: a DDL that says so has surely done nothing.
const FULL: [(u16, &str, bool); 9] = [
    (
        3,
        "Error writing file '/tmp/#sql/fd=54' (Errcode: 28 \"No space left on device\")",
        false,
    ),
    (
        3,
        "Error writing file './bin.000001' (Errcode: 28 \"No space left on device\")",
        false,
    ),
    (
        3,
        "Error writing file './d/t.frm' (Errcode: 28 \"No space left on device\")",
        true,
    ),
    (
        3,
        "Error writing file './d/#sql-alter-2322-16.MAD' (Errcode: 28 \"No space left on device\")",
        true,
    ),
    (
        1,
        "Can't create/write to file './d/t.TRG~' (Errcode: 28 \"No space left on device\")",
        true,
    ),
    (
        1026,
        "Error writing file 'bin' (errno: 28 \"No space left on device\")",
        false,
    ),
    (
        1030,
        "Got error 28 \"No space left on device\" from storage engine Aria",
        true,
    ),
    (
        1180,
        "Got error 28 \"No space left on device\" during COMMIT",
        false,
    ),
    (
        1296,
        "Got error 59 'Temp file write failure' from InnoDB",
        true,
    ),
];
/// The same, of something else.
const WRONG: [(u16, &str); 3] = [
    (
        1026,
        "Error writing file './d/t.MAD' (errno: 5 \"Input/output error\")",
    ),
    (
        1030,
        "Got error 122 \"Internal error < 0 (Not system error)\" from storage engine InnoDB",
    ),
    (
        1644,
        "Got error 28 \"No space left on device\" from storage engine Aria",
    ),
];

/// Says this once.
fn says(code: u16, text: &'static str) -> impl Fn() -> Option<Reply> + Send + Sync {
    let fails = fails(code, 1);
    move || fails().map(|_| Reply::Says(code, text))
}

/// A disk that is full is waited for, whatever says so; one that is broken is not.
#[test]
fn what_the_system_lacks() {
    let one = || unit(vec![rows("plain", &[(None, Some((1, Some("a"))))])]);
    for (code, text, _) in FULL {
        let insert = says(code, text);
        let fake = Fake::new(move |said| match said {
            _ if said.starts_with("INSERT INTO `d`") => insert(),
            other => epoch(other),
        });
        let waits = waits(applied(&fake, &[], one()));
        assert!(waits.what.contains("disk"), "{waits:?}");
        assert!(!fake.done().contains(&"COMMIT".to_owned()));
        assert_eq!(applied(&fake, &[], one()), End::Told);
        // Where there is a doubt the next session looks.
        let fake = Fake::new(move |said| match said {
            "COMMIT" => Some(Reply::Says(code, text)),
            other => epoch(other),
        });
        let end = applied(&fake, &[], one());
        assert!(
            matches!(&end, End::Waits(waits) if waits.at.is_none()),
            "{end:?}"
        );
    }
    for (code, text) in WRONG {
        let fake = Fake::new(move |said| match said {
            _ if said.starts_with("INSERT INTO `d`") => Some(Reply::Says(code, text)),
            other => epoch(other),
        });
        let end = applied(&fake, &[], one());
        assert!(matches!(&end, End::Fatal(_)), "{text}: {end:?}");
    }
}

/// Many rows in one statement may need a file in a `tmpdir` that is too small for it: row by row none does, and
/// nothing is waited for. Where the disk is full for that, too, it is.
#[test]
fn a_folded_unit_on_a_full_tmpdir_goes_on_row_by_row() {
    let all: Vec<_> = (1..=3).map(|id| (None, Some((id, Some("a"))))).collect();
    let one = || unit(vec![rows("plain", &all)]);
    let folded =
        |said: &str| said.starts_with("INSERT INTO `d`") && said.matches("),(").count() > 1;
    for (code, text, _) in FULL {
        for for_all in [false, true] {
            let fake = Fake::new(move |said| match said {
                _ if folded(said) => Some(Reply::Says(code, text)),
                _ if for_all && said.starts_with("INSERT INTO `d`") => {
                    Some(Reply::Says(code, text))
                }
                other => epoch(other),
            });
            let end = applied(&fake, &[], one());
            let done = fake.done();
            let tried = done.iter().filter(|said| *said == "BEGIN").count();
            assert_eq!(tried, 2, "{text}: {done:?}");
            match for_all {
                false => {
                    assert_eq!(end, End::Told, "{text}: {done:?}");
                    let inserts = |said: &&String| said.starts_with("INSERT INTO `d`");
                    assert_eq!(done.iter().filter(inserts).count(), 4, "{done:?}");
                }
                true => assert!(waits(end).what.contains("disk"), "{text}"),
            }
        }
    }
    // More memory, or leave to ask, is not there for single rows either.
    let fake = Fake::new(move |said| match said {
        _ if folded(said) => Some(Reply::Fail(1041)),
        other => epoch(other),
    });
    waits(applied(&fake, &[], one()));
}

/// What could not be written of a DDL may be the last trace of what it has done: then it is for people.
#[test]
fn a_ddl_on_a_full_disk() {
    for (code, text, sure) in FULL {
        let alter = says(code, text);
        let fake = Fake::new(move |said| match said {
            "ALTER TABLE t ADD c INT" => alter(),
            "SHOW WARNINGS" => Some(Reply::Nothing),
            other => epoch(other),
        });
        let statements = ["ALTER TABLE t ADD c INT"];
        let one = alone(Alone::Statement, Ending::Statement, &statements);
        let end = applied(&fake, &[], one);
        match sure {
            true => assert!(waits(end).what.contains("disk"), "{text}"),
            false => {
                let End::Fatal(why) = &end else {
                    panic!("{text}: {end:?}");
                };
                let asks = why.contains("in_doubt = skip") && why.contains("SET doing = NULL");
                assert!(why.contains(text) && asks, "{why}");
                assert!(!why.contains("Nothing of it"), "{why}");
                // The next start asks.
                let tried = ["doing", "ALTER TABLE t ADD c INT", "ROLLBACK", "doing"];
                assert_eq!(steps(&fake), tried);
                let asks = |said: &String| said.contains("doing_binlog='!?'");
                assert_eq!(fake.done().iter().filter(|said| asks(said)).count(), 1);
            }
        }
    }
}

/// A binlog that cannot be written because its disk is broken has no more of the statement than a full one.
#[test]
fn a_ddl_on_a_broken_disk() {
    for (code, text, sure) in [
        (
            1026,
            "Error writing file 'bin' (errno: 5 \"Input/output error\")",
            false,
        ),
        (
            1026,
            "Error writing file 'bin' (errno: 30 \"Read-only file system\")",
            false,
        ),
        (
            3,
            "Error writing file './bin.000001' (Errcode: 5 \"Input/output error\")",
            false,
        ),
        (
            27,
            "Can't sync file './bin.000001' to disk (Errcode: 5 \"Input/output error\")",
            false,
        ),
        (
            1180,
            "Got error 5 \"Input/output error\" during COMMIT",
            false,
        ),
        (
            3,
            "Error writing file './d/t.frm' (Errcode: 5 \"Input/output error\")",
            true,
        ),
        (
            1005,
            "Can't create table `d`.`t` (errno: 150 \"Foreign key constraint is incorrectly formed\")",
            true,
        ),
        (
            1030,
            "Got error 135 \"No more room in record file\" from storage engine MyISAM",
            true,
        ),
    ] {
        let fake = Fake::new(move |said| match said {
            "ALTER TABLE t ADD c INT" => Some(Reply::Says(code, text)),
            "SHOW WARNINGS" => Some(Reply::Nothing),
            other => epoch(other),
        });
        let statements = ["ALTER TABLE t ADD c INT"];
        let one = alone(Alone::Statement, Ending::Statement, &statements);
        let End::Fatal(why) = applied(&fake, &[], one) else {
            panic!("{text}: nothing is waited for");
        };
        assert!(why.contains(text), "{why}");
        assert_eq!(why.contains("Nothing of it is"), sure, "{why}");
        let asks = [
            "It may be done",
            "SHOW CREATE",
            "in_doubt = skip",
            "SET doing = NULL",
        ];
        for part in asks {
            assert_eq!(why.contains(part), !sure, "{part}: {why}");
        }
        assert!(!why.contains("Make room"), "{why}");
        // The next start asks.
        let asked = fake
            .done()
            .iter()
            .any(|said| said.contains("doing_binlog='!?'"));
        assert_eq!(asked, !sure, "{text}");
    }
}

/// Where that cannot be written down, no session follows that would find that it was not done.
#[test]
fn a_ddl_on_a_disk_that_is_full_for_all() {
    let text = FULL[5].1;
    for (first, code) in [("UPDATE", 1114), ("UPDATE", 1021), ("ROLLBACK", 2013)] {
        let altered = std::sync::atomic::AtomicBool::new(false);
        let fake = Fake::new(move |said| {
            if said == "ALTER TABLE t ADD c INT" {
                altered.store(true, Ordering::Relaxed);
                return Some(Reply::Says(1026, text));
            }
            match altered.load(Ordering::Relaxed) && said.starts_with(first) {
                true => Some(Reply::Fail(code)),
                false => epoch(said),
            }
        });
        let statements = ["ALTER TABLE t ADD c INT"];
        let one = alone(Alone::Statement, Ending::Statement, &statements);
        let end = applied(&fake, &[], one);
        assert!(
            matches!(&end, End::Fatal(why) if why.contains(text) && why.contains("SET doing_binlog = '!?'")),
            "{end:?}"
        );
    }
}

/// What a transaction did is taken back all the same.
#[test]
fn statements_wait_for_room() {
    for (code, text, _) in FULL {
        let update = says(code, text);
        let fake = Fake::new(move |said| match said {
            "UPDATE b" => update(),
            "SHOW WARNINGS" => Some(Reply::Nothing),
            other => epoch(other),
        });
        let statements = ["UPDATE a", "UPDATE b"];
        waits(applied(
            &fake,
            &[],
            alone(Alone::NotTransactional, Ending::Commit, &statements),
        ));
    }
}

/// A password keeps what the server quotes from the log, not what is wanting.
#[test]
fn who_has_a_password_waits_for_room() {
    let made = "CREATE USER u IDENTIFIED BY 'geheim'";
    let text = "Got error 28 \"No space left on device\" from storage engine Aria";
    let fake = Fake::new(move |said| match said {
        _ if said == made => Some(Reply::Says(1030, text)),
        "SHOW WARNINGS" => Some(Reply::Nothing),
        other => epoch(other),
    });
    let one = alone(Alone::Statement, Ending::Statement, &[made]);
    let waits = waits(applied(&fake, &[], one));
    assert!(
        waits.what.contains("disk") && !waits.why.contains("geheim"),
        "{waits:?}"
    );
}

/// A statement that commits by itself, and failed as a whole, leaves no doubt.
#[test]
fn a_ddl_waits_for_room() {
    let alter = fails(1114, 1);
    let fake = Fake::new(move |text| match text {
        "ALTER TABLE t ADD c INT" => alter(),
        "SHOW WARNINGS" => Some(Reply::Nothing),
        other => epoch(other),
    });
    let one = || {
        let statements = ["ALTER TABLE t ADD c INT"];
        alone(Alone::Statement, Ending::Statement, &statements)
    };
    let waits = waits(applied(&fake, &[], one()));
    assert!(waits.why.contains("ALTER TABLE"), "{waits:?}");
    let tried = ["doing", "ALTER TABLE t ADD c INT", "ROLLBACK", "undone"];
    assert_eq!(steps(&fake), tried);
    assert_eq!(applied(&fake, &[], one()), End::Told);
}

/// Nor does it if that cannot be written down either: the next session sees that it was not done.
#[test]
fn a_ddl_of_which_nothing_can_be_written_down_waits_for_room() {
    let (alter, undone, put) = (fails(1041, 1), fails(1041, 1), fails(1041, 1));
    let fake = Fake::new(move |text| match text {
        "ALTER TABLE t ADD c INT" => alter(),
        _ if text.contains("SET doing=IF(") && text.contains(",NULL,") => undone(),
        "SHOW WARNINGS" => Some(Reply::Nothing),
        other => epoch(other),
    });
    let one = || {
        let statements = ["ALTER TABLE t ADD c INT"];
        alone(Alone::Statement, Ending::Statement, &statements)
    };
    waits(applied(&fake, &[], one()));
    // It is known by then that nothing was done.
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("UPDATE dromon_replica.position SET doing=") => put(),
        other => epoch(other),
    });
    let one = one();
    let in_doubt = InDoubt {
        gtid: one.transactions[0].gtid,
        sure: true,
        steps: 0,
    };
    waits(applied_after(&fake, &[], one, None, Some(in_doubt)));
}

/// Nothing is begun as long as that cannot be written down.
#[test]
fn what_is_begun_waits_for_room() {
    let put = fails(1041, 1);
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("UPDATE dromon_replica.position SET doing=") => put(),
        other => epoch(other),
    });
    let statements = ["ALTER TABLE t ADD c INT"];
    let one = alone(Alone::Statement, Ending::Statement, &statements);
    waits(applied(&fake, &[], one));
    assert_eq!(steps(&fake), ["doing"]);
}

/// Of what no rollback takes back nothing is tried again by itself.
#[test]
fn parts_wait_for_people() {
    let fake = Fake::new(move |text| match text {
        "UPDATE b" => Some(Reply::Fail(1114)),
        "SHOW WARNINGS" => Some(Reply::Row(vec![
            "Warning".into(),
            "1196".into(),
            "Some non-transactional changed tables couldn't be rolled back".into(),
        ])),
        other => epoch(other),
    });
    let statements = ["UPDATE a", "UPDATE b"];
    let one = alone(Alone::NotTransactional, Ending::Commit, &statements);
    let end = applied(&fake, &[], one);
    assert!(
        matches!(&end, End::Fatal(why) if why.contains("parts of it are in the target")),
        "{end:?}"
    );
}

/// The same of a commit: what came of it is looked at when there is more.
#[test]
fn a_commit_waits_for_room() {
    let fake = Fake::new(move |text| match text {
        "COMMIT" => Some(Reply::Fail(1021)),
        other => epoch(other),
    });
    let one = unit(vec![rows("plain", &[(None, Some((1, Some("a"))))])]);
    let end = applied(&fake, &[], one);
    assert!(
        matches!(&end, End::Waits(waits) if waits.at.is_none() && waits.why.contains("0-1-1")),
        "{end:?}"
    );
}

/// A position that is longer than its column is so in the next session, too: people are told what to do.
#[test]
fn a_position_that_is_too_long() {
    let why = "Data too long for column 'gtid_pos' at row 1";
    for moves in [
        "UPDATE dromon_replica.position SET doing=NULL",
        "UPDATE dromon_replica.commits",
    ] {
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with(moves) => Some(Reply::Says(1406, why)),
            other => epoch(other),
        });
        let order = match moves.contains("commits") {
            true => "commit_order=group",
            false => "commit_order=strict",
        };
        let one = unit(vec![rows("plain", &[(None, Some((1, Some("a"))))])]);
        let end = applied(&fake, &[order], one);
        let End::Fatal(said) = end else {
            panic!("it must end: {end:?}");
        };
        for part in [why, "0-1-1", "Start again", "MODIFY gtid_pos MEDIUMTEXT"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!fake.done().contains(&"COMMIT".to_owned()));
    }
    // That of the target's binlog, before what no rollback takes back.
    let why = "Data too long for column 'doing_binlog' at row 1";
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("UPDATE dromon_replica.position SET doing=IF(")
            && text.contains("doing_binlog='") =>
        {
            Some(Reply::Says(1406, why))
        }
        other => epoch(other),
    });
    let ddl = alone(
        Alone::Statement,
        Ending::Statement,
        &["CREATE TABLE n (a INT)"],
    );
    let End::Fatal(said) = applied(&fake, &[], ddl) else {
        panic!("it must end");
    };
    for part in [why, "Start again", "MODIFY doing_binlog MEDIUMTEXT"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!fake.said().iter().any(|text| text.starts_with("CREATE")));
}
