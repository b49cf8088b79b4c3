//! What no rollback takes back, and what it does.

use super::*;

/// A transaction that makes temporary tables is one here, too; what it made goes before it is tried again.
#[test]
fn temporary_tables_within_a_transaction() {
    let create = "CREATE TEMPORARY TABLE tmp (a INT)";
    let there = "CREATE TEMPORARY TABLE IF NOT EXISTS old AS SELECT 1";
    let run = |drops: bool| {
        let last = fails(1213, usize::from(drops));
        let looks = Mutex::new(0);
        let fake = Fake::new(move |text| match text {
            "UPDATE acc SET v=2" => last(),
            // The first time after the table that was there.
            "SHOW WARNINGS" => {
                let mut looks = looks.lock().expect("nobody panics");
                *looks += 1;
                Some(match *looks % 2 {
                    1 => Reply::Row(["Note", "1050", "it exists"].map(String::from).to_vec()),
                    _ => Reply::Nothing,
                })
            }
            other => epoch(other),
        });
        let all = [create, there, "UPDATE acc SET v=1", "UPDATE acc SET v=2"];
        let unit = alone(Alone::NotTransactional, Ending::Xid, &all);
        assert_eq!(applied(&fake, &[], unit), End::Told);
        steps(&fake)
    };
    let once = [
        "BEGIN",
        create,
        there,
        "UPDATE acc SET v=1",
        "UPDATE acc SET v=2",
    ];
    let end = ["end", "COMMIT", "position", "COMMIT"];
    assert_eq!(run(false), [&["doing"][..], &once, &end].concat());
    let back = ["ROLLBACK", "DROP TEMPORARY TABLE IF EXISTS `tmp`"];
    let wanted = [&["doing"][..], &once, &back, &once, &end].concat();
    assert_eq!(run(true), wanted);
}

/// A session that ends amid what no rollback takes back leaves no doubt, if the target comes to its end.
#[test]
fn the_position_of_what_is_done_is_written_down() {
    for (kind, ending, text) in [
        (
            Alone::Statement,
            Ending::Statement,
            "ALTER TABLE m ADD c INT",
        ),
        (Alone::NotTransactional, Ending::Commit, "UPDATE m SET v=1"),
    ] {
        let ends: Arc<Mutex<Option<Arc<Shared>>>> = Arc::default();
        let of = Arc::clone(&ends);
        let fake = Fake::new(move |said| {
            if said == text
                && let Some(shared) = &*of.lock().expect("nobody panics")
            {
                shared.end(End::Told);
            }
            epoch(said)
        });
        let settings = settings(&fake, &[]);
        let shared = Arc::new(Shared::new(&settings, "0-1-4".into(), 64));
        *ends.lock().expect("nobody panics") = Some(Arc::clone(&shared));
        let worker = worker(settings, &shared, None);
        let unit = alone(kind, ending, &[text]);
        shared.lock().push(After::default(), Arc::new(unit));
        worker.run(&shared);
        assert_eq!(shared.take_end(), End::Told);
        let said = steps(&fake);
        assert_eq!(said[said.len() - 2..], ["position", "COMMIT"], "{said:?}");
        assert!(shared.lock().scheduler.is_empty(), "it has committed");
    }
}

/// With the source's GTIDs each rollback of it would be a group of its own.
#[test]
fn no_temporary_tables_with_chosen_gtids() {
    let fake = Fake::new(epoch);
    let all = ["CREATE TEMPORARY TABLE tmp (a INT)", "UPDATE acc SET v=1"];
    let unit = alone(Alone::NotTransactional, Ending::Xid, &all);
    let End::Fatal(why) = applied(&fake, &CHOSEN, unit) else {
        panic!("it must end");
    };
    assert!(why.contains("drops a temporary table"), "{why}");
    assert!(why.contains("Nothing of it"), "{why}");
    assert_eq!(steps(&fake), [""; 0]);
}

/// A statement that ended with this error on the source.
fn failed(text: &str, error: u16) -> Vec<u8> {
    let mut raw = query(text, "d");
    // Behind the header, the connection, the time and the length of the database.
    raw[28..30].copy_from_slice(&error.to_le_bytes());
    raw
}

/// What ended with an error on the source must end with it here, too; and what was cut off there is not
/// begun, whatever it would end with.
#[test]
fn statements_that_ended_with_an_error() {
    let run = |kind: Alone, ending: Ending, error: u16, here: Option<u16>, remains: bool| {
        let fake = Fake::new(move |text| match text {
            "INSERT INTO m SELECT 1" => here.map(Reply::Fail),
            "SHOW WARNINGS" if remains => {
                let row = ["Warning", "1196", "not all"].map(String::from);
                Some(Reply::Row(row.to_vec()))
            }
            "SHOW WARNINGS" => Some(Reply::Nothing),
            other => epoch(other),
        });
        let mut unit = unit(vec![vec![failed("INSERT INTO m SELECT 1", error)]]);
        unit.alone = Some(kind);
        unit.transactions[0].ending = ending;
        (applied(&fake, &[], unit), steps(&fake))
    };
    let fatal = |(end, said): (End, Vec<String>), parts: &[&str]| {
        let End::Fatal(why) = end else {
            panic!("it must end: {said:?}");
        };
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        assert!(!said.contains(&"COMMIT".to_owned()), "{said:?}");
        said
    };
    let of_rows = |error, here, remains| {
        run(
            Alone::NotTransactional,
            Ending::Commit,
            error,
            here,
            remains,
        )
    };
    assert_eq!(of_rows(1062, Some(1062), true).0, End::Told);
    let none = ["error 1062 on the source", "with none here"];
    let stays = [&none[..], &["parts of it are in the target"]].concat();
    fatal(of_rows(1062, None, true), &stays);
    fatal(
        of_rows(1062, None, false),
        &[&none[..], &["Nothing of it"]].concat(),
    );
    fatal(of_rows(1062, Some(1205), true), &["error 1205"]);
    // It has committed by itself: what is done next goes on behind it.
    let ddl = run(Alone::Statement, Ending::Statement, 1396, None, false);
    let said = fatal(ddl, &["error 1396 on the source", "1 of its 1 steps"]);
    assert!(!said.contains(&"undone".to_owned()), "{said:?}");
    for error in [1317, 1053, 1161, 1969] {
        let wanted = format!("cut off by error {error} on the source");
        let parts = [&wanted[..], "gtid_pos", "Nothing of it"];
        let said = fatal(of_rows(error, Some(error), false), &parts);
        assert_eq!(said, [""; 0]);
    }
}

/// What is in one transaction with the position is not written down: nothing of it can be in doubt. What
/// is not says that it came to its end.
#[test]
fn what_can_be_in_doubt() {
    let run = |events: Vec<Vec<u8>>, change: fn(&mut crate::catalog::TableInfo)| {
        let fake = Fake::new(epoch);
        let mut unit = unit(vec![events]);
        let mut info = crate::compile::tests::table("plain");
        change(&mut info);
        let name = dromon_binlog::hints::TableName::new("d", "plain");
        unit.tables = Arc::new(crate::catalog::Tables::of([(name, info)]));
        unit.alone = Some(Alone::NotTransactional);
        unit.transactions[0].ending = Ending::Commit;
        assert_eq!(applied(&fake, &[], unit), End::Told);
        let said = fake.said();
        let has = |part: &str| said.iter().any(|text| text.contains(part));
        (has("SET doing=IF"), has("CONCAT(doing_binlog,'.')"))
    };
    let insert = |table| rows(table, &[(None, Some((1, Some("a"))))]);
    let text = |text| vec![query(text, "d")];
    let same: fn(&mut crate::catalog::TableInfo) = |_| {};
    let stays: fn(&mut crate::catalog::TableInfo) = |table| {
        table.transactional = false;
        table.plain = false;
    };
    assert_eq!(run(insert("plain"), same), (false, false));
    assert_eq!(run(insert("plain"), stays), (true, false));
    assert_eq!(run(insert("unknown"), same), (true, false));
    let select = "INSERT INTO plain SELECT * FROM tmp";
    assert_eq!(run(text(select), same), (false, false));
    assert_eq!(run(text(select), stays), (true, true));
    for odd in ["CALL p()", "UPDATE `mySQL`.x SET a = 1"] {
        assert_eq!(run(text(odd), same), (true, true), "{odd}");
    }
    // Its end is in its own packet; with a GTID of its own it is no other group.
    let end = "UPDATE dromon_replica.position SET doing_binlog=CONCAT(doing_binlog,'.') WHERE doing='0-1-1' AND \
               doing_connection=1";
    let position = "UPDATE dromon_replica.position SET doing=NULL";
    let run = |lines: &[&str], wanted: &[&str]| {
        let fake = Fake::new(|text| match text {
            "SELECT @@last_gtid" => Some(cell("0-1-1")),
            other => epoch(other),
        });
        let update = alone(Alone::NotTransactional, Ending::Commit, &["UPDATE m -- x"]);
        assert_eq!(applied(&fake, lines, update), End::Told);
        assert!(in_order(&fake.said(), wanted), "{:?}", fake.said());
    };
    let update = ["BEGIN", "UPDATE m -- x"];
    let wanted = [&update[..], &[end, "COMMIT", position, "COMMIT"]].concat();
    run(&[], &wanted);
    let silent = "SET @dromon_log=@@sql_log_bin, SESSION sql_log_bin=0";
    let again = "SET SESSION sql_log_bin=@dromon_log";
    let wanted = [
        &update[..],
        &["COMMIT", silent, end, again, position, "COMMIT"],
    ]
    .concat();
    run(&CHOSEN, &wanted);
}

/// Behind what ends in a statement that is none, another one would be refused, and all of it be run again.
#[test]
fn what_may_be_several_statements_has_no_end_in_its_packet() {
    let fake = Fake::new(epoch);
    let insert = "INSERT INTO m VALUES(1); -- x";
    let insert = alone(Alone::NotTransactional, Ending::Commit, &[insert]);
    assert_eq!(applied(&fake, &[], insert), End::Told);
    let said = fake.said();
    assert!(said.iter().any(|text| text.contains("VALUES(1)")));
    assert!(!said.iter().any(|text| text.contains("CONCAT")), "{said:?}");
}

/// What is ended because an earlier one waits for its lock is counted as that, and named once.
#[test]
fn a_lock_is_counted_once() {
    let fake = Fake::new(epoch);
    let of = || {
        let mut settings = settings(&fake, &[]);
        settings.threads = crate::tune::Knob::fixed(2);
        settings
    };
    let shared = Arc::new(Shared::new(&of(), "0-1-4".into(), 64));
    let (earlier, later) = (worker(of(), &shared, None), worker(of(), &shared, None));
    let progress = Arc::clone(&later.progress);
    let update = |id| rows("plain", &[(Some((id, Some("a"))), Some((id, Some("b"))))]);
    let first = Arc::new(unit(vec![update(2)]));
    {
        let mut core = shared.lock();
        core.push(After::default(), Arc::clone(&first));
        assert_eq!(core.scheduler.start(), Some(1), "the earlier one has it");
        core.push(After::default(), Arc::new(unit(vec![update(1)])));
    }
    let watched = Arc::clone(&shared);
    let runs = thread::spawn(move || later.run(&watched));
    comes(|| shared.lock().scheduler.state(2) == Some(State::Executed));
    {
        let mut core = shared.lock();
        let killed = shared.blocks(&mut core, 1, 2, "a row".into());
        assert!(!killed, "there is no statement to be ended");
    }
    comes(|| shared.lock().restarting == 1);
    let turn = earlier.turn(1, &first, None);
    assert!(matches!(turn, Ok(None)), "it may commit");
    earlier.committed(1, Instant::now());
    comes(|| shared.lock().scheduler.is_empty());
    shared.end(End::Told);
    runs.join().expect("no panic");
    let counters = &progress.counters;
    let counted = [&counters.by_lock, &counters.by_keys, &counters.by_error]
        .map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(counted, [1, 0, 0]);
    let core = shared.lock();
    let named: Vec<_> = core
        .conflicts
        .iter()
        .map(|c| (c.how, &c.what[..]))
        .collect();
    assert_eq!(named, [("lock", "a row")]);
}

/// What follows a statement is neither of its client, which may have temporary tables, nor under its sql_mode.
#[test]
fn what_follows_a_statement_is_in_a_session_of_its_own() {
    let fake = Fake::new(epoch);
    let unit = alone(Alone::Within, Ending::Xid, &["UPDATE acc SET v=1"]);
    assert_eq!(applied(&fake, &[], unit), End::Told);
    let said = fake.said();
    let at = |what: &str| said.iter().position(|text| text.contains(what));
    let ran = at("UPDATE acc SET v=1").expect("it ran");
    let position = at("UPDATE dromon_replica.position").expect("it is moved");
    let cleaned = said[ran..position].iter();
    let mut cleaned = cleaned.filter(|text| text.starts_with("SET NAMES binary"));
    let cleaned = cleaned.next().expect("between them");
    assert!(cleaned.contains("pseudo_thread_id=0"), "{cleaned}");
}

/// A target that has taken the locks of a statement away while that waited says so when it is asked for the
/// next thing.
#[test]
fn what_fails_behind_a_statement_is_tried_again() {
    let run = |kind: Alone, code: u16| {
        let behind = fails(code, 1);
        let fake = Fake::new(move |text| match text.starts_with("SET NAMES binary") {
            true if text.contains("pseudo_thread_id=0") => behind(),
            _ => epoch(text),
        });
        let unit = alone(kind, Ending::Xid, &["UPDATE acc SET v=1"]);
        (applied(&fake, &[], unit), steps(&fake))
    };
    let once = ["BEGIN", "UPDATE acc SET v=1"];
    for code in [1213, 1317, 1969] {
        let (end, said) = run(Alone::Within, code);
        assert_eq!(end, End::Told);
        let again = [&["ROLLBACK"][..], &once, &["position", "COMMIT"]].concat();
        assert_eq!(said, [&once[..], &again].concat());
    }
    // It may have committed: a new session finds that out.
    let (end, said) = run(Alone::NotTransactional, 1213);
    assert!(matches!(end, End::Again(_)), "{end:?}");
    let wanted = [&["doing"][..], &once, &["end", "COMMIT"]].concat();
    assert_eq!(said, wanted);
}

/// The same, where the target's binlog is asked for what was done.
#[test]
fn what_fails_when_the_binlog_is_asked() {
    let asked = fails(1317, 1);
    let fake = Fake::new(move |text| match text {
        "SELECT @@last_gtid" => asked().or_else(|| Some(cell("0-1-1"))),
        other => epoch(other),
    });
    let unit = alone(Alone::NotTransactional, Ending::Commit, &["UPDATE m"]);
    let end = applied(&fake, &CHOSEN, unit);
    assert!(matches!(end, End::Again(_)), "{end:?}");
    let said = steps(&fake);
    assert!(!said.contains(&"position".to_owned()), "{said:?}");
}

/// Places to go back to are no statements on tables, whatever was left out between them.
#[test]
fn places_among_rows() {
    let places = |table: &str| {
        let mut events = vec![query("SAVEPOINT `a`", "d")];
        events.extend(rows(table, &[(None, Some((1, Some("a"))))]));
        events.push(query("INSERT INTO t VALUES (1)", "x"));
        events.push(query("ROLLBACK TO `a`", "d"));
        let mut unit = unit(vec![events]);
        unit.alone = Some(Alone::NotTransactional);
        unit.transactions[0].ending = Ending::Commit;
        let mut stays = crate::compile::tests::table("stays");
        (stays.transactional, stays.plain) = (false, false);
        let named = |info| (dromon_binlog::hints::TableName::new("d", table), info);
        let plain = crate::compile::tests::table("plain");
        unit.tables = Arc::new(crate::catalog::Tables::of([named(match table {
            "stays" => stays,
            _ => plain,
        })]));
        unit
    };
    let run = |lines: &[&str], table: &str| {
        let fake = Fake::new(epoch);
        (applied(&fake, lines, places(table)), steps(&fake))
    };
    let chosen = [&CHOSEN[..], &["without=x"]].concat();
    for lines in [&["without=x"][..], &chosen] {
        let (end, said) = run(lines, "plain");
        assert_eq!(end, End::Told);
        assert!(!said.contains(&"doing".to_owned()), "{said:?}");
        assert!(said.contains(&"SAVEPOINT `a`".to_owned()), "{said:?}");
        let lines = [lines, &["without=x,d"]].concat();
        let (end, said) = run(&lines, "plain");
        assert_eq!(
            (end, &said[..]),
            (
                End::Told,
                &["BEGIN", "position", "COMMIT"].map(String::from)[..]
            )
        );
    }
    let (end, _) = run(&["without=x"], "stays");
    assert_eq!(end, End::Told);
    // Behind rows that have gone into the binlog by themselves they would be a group of their own.
    let (end, said) = run(&chosen, "stays");
    assert!(matches!(end, End::Fatal(_)), "{said:?}");
    assert_eq!(said, [""; 0]);
}

/// Without its default database a statement that asks for it would be told another one.
#[test]
fn a_default_database_that_is_asked_for() {
    let run = |text: &str| {
        let fake = Fake::new(|text| match text {
            "USE `d`" => Some(Reply::Fail(NO_DATABASE)),
            other => epoch(other),
        });
        let unit = alone(Alone::Statement, Ending::Statement, &[text]);
        (applied(&fake, &[], unit), fake.said())
    };
    for text in [
        "CREATE TABLE shop.t AS SELECT DATABASE() d",
        r"CREATE TABLE shop.t AS SELECT '\', SCHEMA() d",
    ] {
        let (end, said) = run(text);
        let End::Fatal(why) = end else {
            panic!("{end:?}");
        };
        assert!(why.contains("DATABASE() or SCHEMA()"), "{why}");
        assert!(why.contains("Nothing of it is in the target"), "{why}");
        assert!(!said.contains(&text.to_owned()), "{said:?}");
    }
    // What it names without a database may be in the one that is left over.
    for text in [
        "CREATE TABLE shop.copy SELECT * FROM orders",
        "CREATE TABLE shop.copy LIKE orders",
    ] {
        let (end, said) = run(text);
        let End::Fatal(why) = end else {
            panic!("{end:?}");
        };
        assert!(why.contains("without their database"), "{why}");
        assert!(!said.contains(&text.to_owned()), "{said:?}");
    }
    for text in [
        "CREATE DATABASE other",
        "CREATE TABLE shop.copy LIKE shop.orders",
        "CREATE TABLE shop.schema (id INT)",
        "CREATE TABLE shop.t AS SELECT 'DATABASE()' d",
    ] {
        let (end, said) = run(text);
        assert_eq!(end, End::Told, "{text}");
        assert!(said.contains(&text.to_owned()), "{said:?}");
    }
}

/// A query killed by hand, or a deadlock, amid what is said only for the replica itself is no reason to stop.
#[test]
fn own_queries_that_fail_once() {
    let fails_once = |part: &'static str, code, lines: &[&str], kind, ending, text: &str| {
        let (fail, met) = (fails(code, 1), Arc::new(Mutex::new(false)));
        let seen = Arc::clone(&met);
        let fake = Fake::new(move |said| {
            let failed = said.contains(part).then(&fail).flatten();
            *seen.lock().expect("nobody panics") |= failed.is_some();
            failed.or_else(|| match said {
                "SELECT @@last_gtid" => Some(cell("0-1-1")),
                "SELECT @@gtid_binlog_pos" => Some(cell("0-1-0")),
                "SHOW WARNINGS" => Some(Reply::Nothing),
                "wrong" => Some(Reply::Fail(1064)),
                "busy" => Some(Reply::Fail(1213)),
                other => epoch(other),
            })
        });
        let end = applied(&fake, lines, alone(kind, ending, &[text]));
        assert!(*met.lock().expect("nobody panics"), "{part}");
        end
    };
    let (kind, ending) = (Alone::Statement, Ending::Statement);
    for part in [
        "SET @dromon_log=",
        "SELECT @@gtid_binlog_pos",
        "UPDATE dromon_replica.position SET doing=IF",
        "SET SESSION sql_log_bin=@dromon_log",
    ] {
        for code in [1317, 1213] {
            let end = fails_once(part, code, &CHOSEN, kind, ending, "ALTER TABLE m ADD c INT");
            assert_eq!(end, End::Told, "{part}");
        }
    }
    // What is wrong is said, not what came on top.
    let undone = ",NULL,doing), doing_text=";
    let end = fails_once(undone, 1213, &[], kind, ending, "wrong");
    let End::Fatal(why) = end else {
        panic!("{end:?}");
    };
    assert!(why.contains("1064"), "{why}");
    // What remains would not be known, nor whether all of it is still there: a new session looks.
    let text = "UPDATE acc SET v=1";
    let end = fails_once(
        "SELECT @@last_gtid",
        1213,
        &CHOSEN,
        Alone::Within,
        Ending::Xid,
        text,
    );
    assert!(matches!(end, End::Again(_)), "{end:?}");
    let kind = Alone::NotTransactional;
    let end = fails_once("SHOW WARNINGS", 1317, &[], kind, Ending::Commit, "busy");
    assert!(matches!(end, End::Again(_)), "{end:?}");
}
