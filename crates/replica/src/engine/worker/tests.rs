//! Units against a target that only answers.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use dromon_binlog::{Ending, Format};

use super::*;
use crate::compile::tests::{block, load, query, rows, unit};
use crate::fake_target::{Fake, Reply, cell, settings};
use crate::schedule::After;
use crate::unit::{Alone, Form};

mod computed;
mod kept;
mod short;
mod told;

/// Runs a unit to its end. Gives [`End::Told`] if it has committed.
fn applied(fake: &Fake, lines: &[&str], unit: Unit) -> End {
    applied_beside(fake, lines, unit, None)
}

fn session(settings: &Settings) -> Session {
    let shared = Shared::new(settings, String::new(), 64);
    Session::of(crate::engine::begin::connect(settings, &shared).expect("a target"))
}

fn worker(settings: Settings, shared: &Arc<Shared>, in_doubt: Option<InDoubt>) -> Worker {
    let gtids = settings.source_gtid;
    Worker {
        number: 0,
        session: session(&settings),
        shared: Arc::clone(shared),
        channel: Channel::new("c"),
        settings,
        epoch: 1,
        log: Log::terminal(),
        collations: Collations::of([(33, "utf8mb3_general_ci".into(), "utf8mb3".into())]),
        packet_max: 1 << 20,
        allowed: 1 << 20,
        in_doubt,
        own: 2,
        node: false,
        gtids,
        progress: Arc::new(Progress::default()),
        waited: Duration::ZERO,
        behind: Vec::new(),
    }
}

/// The same, with a session of its own for what runs alone.
fn applied_beside(fake: &Fake, lines: &[&str], unit: Unit, alone: Option<Session>) -> End {
    applied_after(fake, lines, unit, alone, None)
}

/// The same, behind something that may have been done.
fn applied_after(
    fake: &Fake,
    lines: &[&str],
    unit: Unit,
    alone: Option<Session>,
    in_doubt: Option<InDoubt>,
) -> End {
    let settings = settings(fake, lines);
    let shared = Arc::new(Shared::new(&settings, "0-1-4".into(), 64));
    let worker = worker(settings, &shared, in_doubt);
    {
        let mut core = shared.lock();
        let keys = Arc::clone(&unit.keys);
        core.units.push_back(Arc::new(unit));
        core.scheduler.push(After::default(), keys);
    }
    if let Some(alone) = alone {
        shared.keep_alone(alone);
    }
    let watched = Arc::clone(&shared);
    let runs = thread::spawn(move || worker.run(&watched));
    while !shared.lock().has_ended() {
        if shared.lock().scheduler.is_empty() {
            shared.end(End::Told);
        }
        thread::sleep(Duration::from_millis(1));
    }
    runs.join().expect("no panic");
    shared.take_end()
}

/// One that runs alone, of these statements.
fn alone(alone: Alone, ending: Ending, statements: &[&str]) -> Unit {
    let events = statements.iter().map(|text| query(text, "d")).collect();
    let mut unit = unit(vec![events]);
    unit.alone = Some(alone);
    unit.transactions[0].ending = ending;
    let mut without = crate::compile::tests::table("m");
    without.transactional = false;
    let name = dromon_binlog::hints::TableName::new("d", "m");
    unit.tables = Arc::new(crate::catalog::Tables::of([(name, without)]));
    unit
}

/// What was done, with names for what is this replica's own.
fn steps(fake: &Fake) -> Vec<String> {
    let all = fake.done().into_iter().map(|text| {
        let own = text.strip_prefix("UPDATE dromon_replica.position SET ");
        match own.map(|own| (own.starts_with("doing=NULL"), own.contains(",NULL,"))) {
            _ if text.contains("SET doing_binlog=") => "end".into(),
            None => text,
            Some((true, _)) => "position".into(),
            Some((false, true)) => "undone".into(),
            Some((false, false)) => "doing".into(),
        }
    });
    let mut all: Vec<String> = all.collect();
    all.retain(|text| !text.starts_with("USE ") && !text.starts_with("SHOW "));
    all
}

/// Fails so often, then passes.
fn fails(code: u16, times: usize) -> impl Fn() -> Option<Reply> + Send + Sync {
    let left = Mutex::new(times);
    move || {
        let mut left = left.lock().expect("nobody panics");
        let fails = *left > 0;
        *left = left.saturating_sub(1);
        fails.then_some(Reply::Fail(code))
    }
}

fn epoch(text: &str) -> Option<Reply> {
    text.starts_with("SELECT epoch").then(|| cell("1"))
}

/// A transaction that ended with ROLLBACK on the source, because not all of it could be taken back.
#[test]
fn a_rollback_remains_one() {
    let fake = Fake::new(epoch);
    let statements = ["INSERT INTO a VALUES (1)", "INSERT INTO m VALUES (1)"];
    let unit = alone(Alone::NotTransactional, Ending::Rollback, &statements);
    assert_eq!(applied(&fake, &[], unit), End::Told);
    let wanted = [
        "doing",
        "BEGIN",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO m VALUES (1)",
        "ROLLBACK",
        "position",
        "COMMIT",
    ];
    assert_eq!(steps(&fake), wanted);
    let fake = Fake::new(epoch);
    let unit = alone(Alone::NotTransactional, Ending::Commit, &statements);
    assert_eq!(applied(&fake, &[], unit), End::Told);
    assert!(!steps(&fake).contains(&"ROLLBACK".to_owned()));
}

/// What could be rolled back is tried again from its start, and from nothing else.
#[test]
fn a_second_try_begins_with_a_rollback() {
    let third = fails(1205, 1);
    let fake = Fake::new(move |text| match text {
        "UPDATE c" => third(),
        "SHOW WARNINGS" => Some(Reply::Nothing),
        other => epoch(other),
    });
    let unit = alone(
        Alone::NotTransactional,
        Ending::Commit,
        &["UPDATE a", "UPDATE b", "UPDATE c"],
    );
    assert_eq!(applied(&fake, &[], unit), End::Told);
    let once = ["BEGIN", "UPDATE a", "UPDATE b", "UPDATE c"];
    let wanted = [
        &["doing"][..],
        &once,
        &["ROLLBACK"],
        &once,
        &["end", "COMMIT", "position", "COMMIT"],
    ];
    assert_eq!(steps(&fake), wanted.concat());
}

/// Of what no rollback takes back nothing is done twice.
#[test]
fn no_second_try_of_what_remains() {
    let third = fails(1205, 1);
    let fake = Fake::new(move |text| match text {
        "UPDATE c" => third(),
        "SHOW WARNINGS" => Some(Reply::Row(vec![
            "Warning".into(),
            "1196".into(),
            "Some non-transactional changed tables couldn't be rolled back".into(),
        ])),
        other => epoch(other),
    });
    let unit = alone(
        Alone::NotTransactional,
        Ending::Commit,
        &["UPDATE a", "UPDATE b", "UPDATE c"],
    );
    let End::Fatal(why) = applied(&fake, &[], unit) else {
        panic!("it must end");
    };
    assert!(why.contains("parts of it are in the target"), "{why}");
    let said = steps(&fake);
    let times = |text: &str| said.iter().filter(|s| *s == text).count();
    assert_eq!((times("UPDATE a"), times("undone")), (1, 0), "{said:?}");
}

/// A statement that has committed by itself is not run again with the rows that follow it.
#[test]
fn statements_that_are_done_are_done() {
    let insert = fails(1205, 1);
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("BINLOG 'AAAA") && text.len() > 40 => insert(),
        other => epoch(other),
    });
    let mut events = vec![query("CREATE TABLE new AS SELECT 1", "d")];
    events.extend(rows("keyless", &[(None, Some((1, Some("a"))))]));
    let mut made = unit(vec![events]);
    made.alone = Some(Alone::Statement);
    assert_eq!(applied(&fake, &[], made), End::Told);
    let said = steps(&fake);
    let creates = said.iter().filter(|text| text.starts_with("CREATE"));
    assert_eq!(creates.count(), 1, "{said:?}");
}

/// What the target computes for rows by BINLOG is as its own replica threads have it; what statements say is
/// in UTC. Rows with which nothing is computed leave the zone as it is.
#[test]
fn time_zones() {
    let fake = Fake::new(epoch);
    let one = |name: &str, id: i32| rows(name, &[(None, Some((id, Some("a"))))]);
    let mut mixed = unit(vec![
        one("child", 1),
        one("none", 1),
        one("zoned", 1),
        one("zoned", 2),
        one("none", 2),
        one("child", 2),
        one("none", 3),
    ]);
    let table = |name: &str, [plain, local]: [bool; 2]| {
        let info = crate::catalog::TableInfo {
            related: plain,
            plain,
            local,
            ..crate::compile::tests::table(name)
        };
        (dromon_binlog::hints::TableName::new("d", name), info)
    };
    mixed.tables = Arc::new(crate::catalog::Tables::of([
        table("child", [true, false]),
        table("none", [false, false]),
        table("zoned", [false, true]),
    ]));
    assert_eq!(applied(&fake, &[], mixed), End::Told);
    let said = fake.said().into_iter().filter_map(|text| {
        let word = ["INSERT", "BINLOG"].iter().find(|w| text.starts_with(*w));
        // That of the format description is one, too.
        match word.filter(|_| text.len() > 12) {
            Some(word) => Some((*word).to_owned()),
            None => text
                .contains("time_zone=")
                .then(|| text["SET ".len()..].to_owned()),
        }
    });
    let said: Vec<String> = said.skip_while(|text| text != "INSERT").collect();
    let wanted = [
        "INSERT",
        "BINLOG",
        "time_zone=@@global.time_zone",
        "BINLOG",
        "BINLOG",
        "BINLOG",
        "time_zone='+00:00'",
        "INSERT",
        "BINLOG",
    ];
    assert_eq!(said, wanted);
}

/// The time at which the source was started is not told amid a transaction: some targets would roll back what it has so far.
#[test]
fn the_target_is_not_told_of_a_start() {
    let fake = Fake::new(epoch);
    let mut of = unit(vec![
        rows("child", &[(None, Some((1, Some("a"))))]),
        rows("keyless", &[(None, Some((1, Some("a"))))]),
    ]);
    let raw = crate::compile::tests::started(77);
    let event = dromon_binlog::Event::parse_unverified(&raw, dromon_binlog::Checksum::Off);
    let form = Form::of(&event.expect("an event")).expect("a format description");
    assert_eq!(form.format.created, 77);
    let form = Arc::new(form);
    for transaction in &mut of.transactions {
        transaction.form = Arc::clone(&form);
    }
    assert_eq!(applied(&fake, &[], of), End::Told);
    let said = fake.said();
    let at = |begin: &str| said.iter().position(|text| text.starts_with(begin));
    let (begun, told) = (at("BEGIN"), at("BINLOG").expect("rows by BINLOG"));
    assert!(begun < Some(told), "{said:?}");
    let told = crate::compile::tests::binlog::events_of(said[told].as_bytes()).remove(0);
    let told = Format::decode(&told).expect("a format description");
    assert_eq!(told.created, 0);
}

/// The target would end the connection because of a user variable, again and again.
#[test]
fn user_variables_that_are_too_long() {
    let with = |value: &str| {
        let len = (value.len() as u32).to_le_bytes();
        let head = [1, 0, 0, 0, b'v', 0, 0, 33, 0, 0, 0];
        let variable = [&head[..], &len, value.as_bytes(), &[0]].concat();
        let text = "INSERT INTO m VALUES (@v)";
        let mut of = alone(Alone::Within, Ending::Xid, &[]);
        let events = [
            crate::compile::tests::event(14, &variable),
            query(text, "d"),
        ];
        of.transactions[0].events = events.into_iter().collect();
        let fake = Fake::new(epoch);
        (applied(&fake, &[], of), fake.said())
    };
    let (end, said) = with(&"'".repeat(600_000));
    let End::Fatal(why) = end else {
        panic!("{end:?}");
    };
    assert!(
        why.contains("raise its max_allowed_packet") && why.contains("Nothing of it"),
        "{why}"
    );
    assert!(!said.iter().any(|text| text.contains("SET @`v`=")));
    // Just as long as on the source is not too long.
    let (end, said) = with(&"x".repeat(1_000_000));
    assert_eq!(end, End::Told);
    assert!(
        said.iter()
            .any(|text| text.starts_with("SET @`v`=_utf8mb3'xxx"))
    );
}

/// Nothing is committed if the channel's row is gone.
#[test]
fn no_commit_without_a_position() {
    let fake = Fake::new(|text| {
        let moves = text.starts_with("UPDATE dromon_replica.position SET doing=NULL");
        match text {
            _ if moves => Some(Reply::Done(0)),
            _ if text.contains("ROW_COUNT()") => Some(Reply::Fail(OTHER_EPOCH)),
            _ if text.starts_with("SELECT epoch") => Some(Reply::Nothing),
            _ => None,
        }
    });
    let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
    let End::Fatal(why) = applied(&fake, &[], unit(vec![insert])) else {
        panic!("it must end");
    };
    assert!(why.contains("start = 0-1-4"), "{why}");
    assert!(!steps(&fake).contains(&"COMMIT".to_owned()));
}

/// The source's session was in a database that the target does not have.
#[test]
fn a_default_database_that_is_not_there() {
    let run = |text: &str| {
        let fake = Fake::new(|text| match text {
            "USE `d`" => Some(Reply::Fail(NO_DATABASE)),
            other => epoch(other),
        });
        let end = applied(
            &fake,
            &[],
            alone(Alone::Statement, Ending::Statement, &[text]),
        );
        (end, steps(&fake))
    };
    let (end, said) = run("ALTER TABLE shop.t ADD c INT");
    assert_eq!(end, End::Told);
    assert!(said.contains(&"ALTER TABLE shop.t ADD c INT".to_owned()));
    let (end, said) = run("ALTER TABLE t ADD c INT");
    assert!(matches!(end, End::Fatal(_)));
    assert!(!said.contains(&"ALTER TABLE t ADD c INT".to_owned()));
}

/// Temporary tables are there for all statements, whichever worker runs them.
#[test]
fn statements_have_a_session_of_their_own() {
    let (own, other) = (Fake::new(epoch), Fake::new(epoch));
    let text = "INSERT INTO t SELECT * FROM tmp";
    let beside = || Some(session(&settings(&other, &[])));
    let within = alone(Alone::Within, Ending::Xid, &[text]);
    assert_eq!(applied_beside(&own, &[], within, beside()), End::Told);
    let by_itself = alone(Alone::Statement, Ending::Statement, &[text]);
    assert_eq!(applied_beside(&own, &[], by_itself, beside()), End::Told);
    assert_eq!(steps(&own), [""; 0]);
    let ran = steps(&other).iter().filter(|step| *step == text).count();
    assert_eq!(ran, 2);
    // Rows go over the worker's own.
    let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
    let before = other.said().len();
    applied_beside(&own, &[], unit(vec![insert]), beside());
    assert!(steps(&own).contains(&"COMMIT".to_owned()));
    assert!(
        other.said()[before..]
            .iter()
            .all(|text| !text.starts_with("INSERT"))
    );
}

/// A row that is not as it was on the source is named, with what differs and what to do.
#[test]
fn a_row_with_other_values() {
    let fake = |found: Reply| {
        Fake::new(move |text| match text {
            _ if text.starts_with("UPDATE `d`") => Some(Reply::Done(0)),
            _ if text.starts_with("SELECT CONCAT_WS") => Some(found.clone()),
            other => epoch(other),
        })
    };
    let update = || {
        let change = (Some((1, Some("a"))), Some((1, Some("b"))));
        unit(vec![rows("plain", &[change])])
    };
    let said = |found, lines: &[&str]| match applied(&fake(found), lines, update()) {
        End::Fatal(why) => why,
        end => panic!("{end:?}"),
    };
    let why = said(cell("`v` is 'c' instead of 'a'"), &[]);
    let parts = [
        "the update of d.plain where `id`=1 (0-1-1) finds the row",
        "before: `v` is 'c' instead of 'a'. Nothing of it",
        "difference = repair",
        "copy the table anew",
    ];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    let why = said(Reply::Nothing, &[]);
    assert!(
        why.contains("(0-1-1): the row is missing on the target."),
        "{why}"
    );
    // Nothing differs any more, or it could not be asked.
    for found in [cell(""), Reply::Fail(1064)] {
        let why = said(found, &[]);
        assert!(why.contains("is missing, differs, or is already"), "{why}");
    }
    let fake = fake(cell("?"));
    assert_eq!(applied(&fake, &["difference=repair"], update()), End::Told);
    let done = fake.done();
    assert!(
        done.iter()
            .any(|text| text.starts_with("INSERT INTO `d`.`plain`")),
        "{done:?}"
    );
}

/// What is said of an error that no repair takes away.
#[test]
fn what_a_repair_can_do() {
    let fails_with = |code: u16, text: &'static str| {
        let fake = Fake::new(move |said| match said.starts_with(text) {
            true => Some(Reply::Fail(code)),
            false => epoch(said),
        });
        let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
        match applied(&fake, &[], unit(vec![insert])) {
            End::Fatal(why) => why,
            other => panic!("{other:?}"),
        }
    };
    let why = fails_with(1062, "INSERT");
    assert!(why.contains("difference = repair"), "{why}");
    let why = fails_with(1142, "INSERT");
    assert!(
        !why.contains("repair") && why.contains("Nothing of it"),
        "{why}"
    );
}

/// LOAD DATA of one file.
fn loading(text: &str) -> Unit {
    let events = vec![block(true, 1, "1\n2\n3\n"), load(1, text, "d", &[], 0)];
    let mut unit = unit(vec![events]);
    unit.alone = Some(Alone::Within);
    unit
}

/// LOCAL leaves out what is there already. Only where the source did so, too, that is right.
#[test]
fn rows_of_a_file_that_are_left_out() {
    let fake = |warnings: Reply| {
        Fake::new(move |text| match text {
            "SHOW WARNINGS" => Some(warnings.clone()),
            _ if text.starts_with("LOAD") => Some(Reply::Ask("dromon")),
            other => epoch(other),
        })
    };
    let text = "LOAD DATA INFILE 'a' IGNORE INTO TABLE `t`";
    let ignoring = fake(Reply::Nothing);
    assert_eq!(applied(&ignoring, &[], loading(text)), End::Told);
    let wanted = [
        "BEGIN",
        "LOAD DATA LOCAL INFILE 'dromon' IGNORE INTO TABLE `t`",
        "file 1\n2\n3\n",
        "file ",
        "position",
        "COMMIT",
    ];
    assert_eq!(steps(&ignoring), wanted);
    let warning = ["Warning", "1062", "Duplicate entry '2' for key 'PRIMARY'"];
    let failing = fake(Reply::Row(warning.map(String::from).to_vec()));
    let text = text.replace("IGNORE ", "");
    for lines in [&[][..], &["difference=repair"]] {
        let End::Fatal(why) = applied(&failing, lines, loading(&text)) else {
            panic!("a row is missing");
        };
        assert!(
            why.contains("left out 1 rows") && why.contains("entry '2'"),
            "{why}"
        );
        assert!(
            why.contains("Nothing of it is in the target") && !why.contains("repair"),
            "{why}"
        );
        assert!(!steps(&failing).contains(&"COMMIT".to_owned()));
    }
}

/// A target that takes no files, and one that asks for another one.
#[test]
fn files_that_are_not_taken() {
    let fake = Fake::new(|text| match text {
        _ if text.starts_with("LOAD") => Some(Reply::Fail(4166)),
        other => epoch(other),
    });
    let text = "LOAD DATA INFILE 'a' INTO TABLE `t`";
    let End::Fatal(why) = applied(&fake, &[], loading(text)) else {
        panic!("it must end");
    };
    assert!(why.contains("local_infile = ON on the target"), "{why}");
    let fake = Fake::new(|text| match text {
        _ if text.starts_with("LOAD") => Some(Reply::Ask("/etc/passwd")),
        other => epoch(other),
    });
    let End::Again(why) = applied(&fake, &[], loading(text)) else {
        panic!("such a connection is not used");
    };
    assert!(why.contains("/etc/passwd"), "{why}");
    assert!(!fake.said().iter().any(|said| said.starts_with("file 1")));
}

const CHOSEN: [&str; 2] = ["merge=1", "source_gtid=on"];
const SETS: [&str; 2] = [
    "SET SESSION sql_log_bin=1, gtid_domain_id=0, server_id=1",
    "SET SESSION gtid_seq_no=1",
];

/// Whether what is logged with the GTID of the source, and what is not, comes in this order.
fn in_order(said: &[String], wanted: &[&str]) -> bool {
    let mut rest = said.iter();
    wanted
        .iter()
        .all(|wanted| rest.any(|text| text.starts_with(wanted)))
}

/// The group of a transaction has the source's GTID, each time that it is tried.
#[test]
fn a_transaction_with_its_gtid() {
    let first = fails(1213, 1);
    let fake = Fake::new(move |text| match text {
        _ if text.starts_with("INSERT") => first(),
        other => epoch(other),
    });
    let insert = rows("plain", &[(None, Some((1, Some("a"))))]);
    assert_eq!(applied(&fake, &CHOSEN, unit(vec![insert])), End::Told);
    let once = [&SETS[..], &["BEGIN", "INSERT"]].concat();
    let wanted = [
        &once[..],
        &["ROLLBACK"],
        &once,
        &["UPDATE", "SET", "COMMIT"],
    ]
    .concat();
    assert!(in_order(&fake.said(), &wanted), "{:?}", fake.said());
}

/// A statement that commits by itself is the group, and its position is none.
#[test]
fn a_statement_with_its_gtid() {
    let run = |last: &'static str| {
        let fake = Fake::new(move |text| match text {
            "SELECT @@last_gtid" => Some(cell(last)),
            other => epoch(other),
        });
        let ddl = alone(Alone::Statement, Ending::Statement, &["CREATE TABLE n"]);
        assert_eq!(applied(&fake, &CHOSEN, ddl), End::Told);
        fake.said()
    };
    let position = "UPDATE dromon_replica.position SET doing=NULL";
    let unlogged = "SET SESSION sql_log_bin=0";
    let said = run("0-1-1");
    let wanted = [&SETS[..], &["CREATE TABLE n", unlogged, position]].concat();
    assert!(in_order(&said, &wanted), "{said:?}");
    // The target's binlog does not have it, as with a temporary table: the position has the GTID.
    let said = run("0-1-0");
    assert!(!in_order(&said, &wanted), "{said:?}");
    let wanted = [&SETS[..], &["CREATE TABLE n", position]].concat();
    assert!(in_order(&said, &wanted), "{said:?}");
}

/// Rows of tables without transactions are in the binlog when they end.
#[test]
fn tables_without_transactions_with_their_gtid() {
    let run = |second: &'static str| {
        let asked = Mutex::new(0);
        let fake = Fake::new(move |text| match text {
            "SELECT @@last_gtid" => {
                let mut asked = asked.lock().expect("nobody panics");
                *asked += 1;
                Some(cell(if *asked == 1 { "0-1-1" } else { second }))
            }
            "SHOW WARNINGS" => Some(Reply::Nothing),
            other => epoch(other),
        });
        let unit = alone(Alone::NotTransactional, Ending::Commit, &["UPDATE m"]);
        (applied(&fake, &CHOSEN, unit), fake.said())
    };
    let (end, said) = run("0-1-1");
    assert_eq!(end, End::Told);
    let wanted = [
        &SETS[..],
        &[
            "BEGIN",
            "UPDATE m",
            "COMMIT",
            "SET SESSION sql_log_bin=0",
            "UPDATE dromon_replica",
        ],
    ];
    assert!(in_order(&said, &wanted.concat()), "{said:?}");
    // Others were changed, too, and have the next one: all of it is there.
    let (end, said) = run("0-1-2");
    let End::Fatal(why) = end else {
        panic!("{end:?}")
    };
    let parts = ["several groups", "All of it", "at 0-1-2", "RESET MASTER"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    assert!(in_order(&said, &wanted.concat()), "{said:?}");
}

/// A statement that was to be rolled back changed tables without transactions on the target: that is
/// written down.
#[test]
fn tables_without_transactions_only_on_the_target() {
    let fake = Fake::new(|text| match text {
        "SELECT @@last_gtid" => Some(cell("0-1-1")),
        "SHOW WARNINGS" => Some(Reply::Nothing),
        other => epoch(other),
    });
    let within = alone(Alone::Within, Ending::Commit, &["UPDATE m"]);
    let End::Fatal(why) = applied(&fake, &CHOSEN, within) else {
        panic!("it must end");
    };
    assert!(
        why.contains("parts of it") && why.contains("in_doubt = skip"),
        "{why}"
    );
    let said = fake.said();
    let wanted = [
        "UPDATE m",
        "ROLLBACK",
        "UPDATE dromon_replica.position SET doing=",
    ];
    assert!(in_order(&said, &wanted), "{said:?}");
    assert!(!said.iter().any(|text| text == "COMMIT"), "{said:?}");
}

/// What would be several groups is not begun.
#[test]
fn no_several_groups_with_one_gtid() {
    let fake = Fake::new(epoch);
    let mut events = vec![query("CREATE TABLE new AS SELECT 1", "d")];
    events.extend(rows("keyless", &[(None, Some((1, Some("a"))))]));
    let mut made = unit(vec![events]);
    made.alone = Some(Alone::Statement);
    let two = alone(
        Alone::NotTransactional,
        Ending::Commit,
        &["UPDATE m", "UPDATE n"],
    );
    for unit in [made, two] {
        let End::Fatal(why) = applied(&fake, &CHOSEN, unit) else {
            panic!("it must end");
        };
        let parts = [
            "several groups",
            "only one can be 0-1-1",
            "gtid_seq_no = 1;",
            "Nothing of it",
        ];
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
    assert_eq!(steps(&fake), [""; 0]);
}

/// What was begun before is not said to be nothing.
#[test]
fn several_groups_that_were_begun() {
    let run = |sure: bool, steps: usize| {
        let two = alone(
            Alone::NotTransactional,
            Ending::Commit,
            &["UPDATE m", "UPDATE n"],
        );
        let in_doubt = InDoubt {
            gtid: two.transactions[0].gtid,
            sure,
            steps,
        };
        match applied_after(&Fake::new(epoch), &CHOSEN, two, None, Some(in_doubt)) {
            End::Fatal(why) => why,
            other => panic!("{other:?}"),
        }
    };
    let why = run(true, 1);
    assert!(why.contains("first 1 steps"), "{why}");
    assert!(why.contains("Start with source_gtid = off"), "{why}");
    let why = run(false, 0);
    assert!(why.contains("may be in the target"), "{why}");
    assert!(run(true, 0).contains("Nothing of it"));
}

/// What has its GTID for a part, too, is written down as such.
#[test]
fn what_may_be_done_in_part() {
    for (text, marked) in [
        ("DROP TABLE a,b", "'0-1-0~='"),
        ("DROP TABLE a", "'0-1-0='"),
    ] {
        let fake = Fake::new(|text| match text {
            "SELECT @@gtid_binlog_pos" => Some(cell("0-1-0")),
            "SELECT @@last_gtid" => Some(cell("0-1-1")),
            other => epoch(other),
        });
        let ddl = alone(Alone::Statement, Ending::Statement, &[text]);
        assert_eq!(applied(&fake, &CHOSEN, ddl), End::Told);
        let said = fake.said();
        assert!(said.iter().any(|text| text.contains(marked)), "{said:?}");
    }
}

/// Looks until it is so.
fn comes(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it does not come"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// A unit that has a row in common with one before it that executes: the other row is changed at once, this
/// one when that has executed. If it is in the way meanwhile, all of it is done again. Everybody is woken who
/// waits for that.
#[test]
fn what_is_in_common_waits() {
    for in_the_way in [false, true] {
        let fake = Fake::new(epoch);
        let of = || {
            let mut settings = settings(&fake, &[]);
            settings.threads = crate::tune::Knob::fixed(2);
            settings
        };
        let shared = Arc::new(Shared::new(&of(), "0-1-4".into(), 64));
        let (earlier, later) = (worker(of(), &shared, None), worker(of(), &shared, None));
        let update = |id| rows("plain", &[(Some((id, Some("a"))), Some((id, Some("b"))))]);
        let first = Arc::new(unit(vec![update(2)]));
        let mut second = unit(vec![update(1), update(2)]);
        second.last = vec![false, true];
        {
            let mut core = shared.lock();
            core.push(After::default(), Arc::clone(&first));
            assert_eq!(core.scheduler.start(), Some(1), "the earlier one has it");
            let last = After {
                last: 1,
                ..After::default()
            };
            core.push(last, Arc::new(second));
        }
        let watched = Arc::clone(&shared);
        let progress = Arc::clone(&later.progress);
        let runs = thread::spawn(move || later.run(&watched));
        let count = |part: &str| {
            let said = fake.said();
            said.iter().filter(|text| text.contains(part)).count()
        };
        comes(|| count("`id`=1 ") == 1 && shared.lock().halfway.contains(&2));
        if in_the_way {
            let mut core = shared.lock();
            let killed = shared.blocks(&mut core, 1, 2, "a row".into());
            drop(core);
            assert!(!killed, "there is no statement to be ended");
            comes(|| shared.lock().restarting == 1);
            assert_eq!(count("ROLLBACK"), 1);
        }
        assert_eq!(count("`id`=2 "), 0);
        let turn = earlier.turn(1, &first, None);
        assert!(matches!(turn, Ok(None)), "it may commit");
        if !in_the_way {
            comes(|| count("`id`=2 ") == 1);
        }
        earlier.committed(1, Instant::now());
        comes(|| shared.lock().scheduler.is_empty());
        shared.end(End::Told);
        runs.join().expect("no panic");
        let times = if in_the_way { 2 } else { 1 };
        assert_eq!((count("`id`=1 "), count("`id`=2 ")), (times, 1));
        assert!(shared.lock().halfway.is_empty());
        // Each by itself: neither is what the order of commits costs.
        let spent =
            |on: Activity| progress.counters.workers[on as usize].load(Ordering::Relaxed) > 0;
        assert!(spent(Activity::Last));
        assert_eq!(spent(Activity::Again), in_the_way);
    }
}

/// What may be read by others than who administers the target: positions, and what goes to the log.
#[test]
fn passwords_are_kept_to_the_statement() {
    const SECRET: &str = "geheim";
    let of_position = |text: &&String| text.contains("dromon_replica.position");
    for create in [
        "CREATE USER a IDENTIFIED BY 'geheim'",
        "EXECUTE IMMEDIATE \"CREATE USER a IDENTIFIED BY 'geheim'\"",
        "SET PASSWORD FOR a = 'geheim'",
    ] {
        let run = |code: Option<u16>| {
            let fake = Fake::new(move |text| match text {
                _ if text.starts_with("UPDATE ") => None,
                "SHOW WARNINGS" => Some(Reply::Nothing),
                _ if text.contains(SECRET) => code.map(Reply::Fail),
                other => epoch(other),
            });
            let unit = alone(Alone::Statement, Ending::Statement, &[create]);
            let end = applied(&fake, &[], unit);
            let said = fake.said();
            assert!(said.iter().any(|text| text == create), "{said:?}");
            let mut own = said.iter().filter(of_position);
            assert!(!own.any(|text| text.contains(SECRET)), "{said:?}");
            (end, said)
        };
        let (end, said) = run(None);
        assert_eq!(end, End::Told);
        let begins = said.iter().filter(of_position).any(|text| {
            let words = create.split(' ').next().expect("a word");
            text.contains(&format!("doing_text='{words}"))
        });
        assert!(begins, "{said:?}");
        let last = said.iter().rfind(of_position).expect("a position");
        assert!(last.contains("doing=NULL, doing_text=NULL"), "{last}");
        // The server quotes what it does not understand.
        let (End::Fatal(why), _) = run(Some(1064)) else {
            panic!("it must end");
        };
        assert!(why.contains("1064") && !why.contains(SECRET), "{why}");
    }
}
