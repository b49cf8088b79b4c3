//! Whole sessions, against a target that only answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dromon_binlog::{EventType, GtidEvent, Payload, XaName, XaPrepare, gtid_flags};
use dromon_relay::log::Log;

use super::{End, Progress, Settings, session};
use crate::compile::tests::query;
use crate::fake_target::{Fake, Reply, cell, settings};
use crate::source::tests::{event, gtid, started};

mod others;
mod xa;

/// Nothing takes so long.
const LONG: Duration = Duration::from_secs(60);

/// What a target answers at least, so that a session begins.
fn serves(text: &str) -> Option<Reply> {
    match text {
        _ if text.starts_with("SELECT epoch, ") => {
            Some(Reply::Row(["3", "0-1-4"].map(String::from).to_vec()))
        }
        _ if text.starts_with("SELECT epoch") => Some(cell("3")),
        _ if text.contains(" GET_LOCK(") => Some(cell("1")),
        _ if text.contains("PROCESSLIST WHERE ID IN (") => {
            let ids = text
                .split('(')
                .next_back()?
                .trim_end_matches(')')
                .split(',');
            Some(Reply::Rows(ids.map(|id| vec![id.into()]).collect()))
        }
        _ if text.starts_with("SELECT ") || text.starts_with("SHOW ") => Some(Reply::Nothing),
        _ => None,
    }
}

/// The same, of a channel that has no row until one is made.
fn serves_new() -> impl Fn(&str) -> Option<Reply> + Send + Sync + 'static {
    let made = AtomicBool::new(false);
    move |text| match text {
        _ if text.starts_with("INSERT INTO dromon_replica.position") => {
            made.store(true, Ordering::Release);
            None
        }
        _ if text.starts_with("SELECT epoch FROM") && !made.load(Ordering::Acquire) => {
            Some(Reply::Nothing)
        }
        text => serves(text),
    }
}

/// Whether it took the channel's row back.
fn took_back(target: &Fake) -> bool {
    let is = |text: &String| text.starts_with("DELETE FROM dromon_replica.position");
    target.said().iter().any(is)
}

/// A source that sends these.
fn sends(packets: Vec<Vec<u8>>) -> Fake {
    Fake::new(move |text| match text {
        _ if text.contains("@@GLOBAL.server_id") => {
            let cells = ["1", "10.11.18-MariaDB-log"];
            Some(Reply::Row(cells.map(str::to_owned).to_vec()))
        }
        "dump" => Some(Reply::Events(packets.clone())),
        _ if text.starts_with("SET ") => None,
        _ => Some(Reply::Nothing),
    })
}

/// A node of a cluster with these, which sends nothing.
fn node(all: &'static str, gtids: &'static str) -> Fake {
    let rows = |all: &[[&str; 2]]| {
        let rows = all.iter().map(|row| row.map(str::to_owned).to_vec());
        Some(Reply::Rows(rows.collect()))
    };
    Fake::new(move |text| match text {
        _ if text.contains("@@GLOBAL.server_id") => rows(&[["1", "10.11.18-MariaDB-log"]]),
        _ if text.contains("'wsrep_on'") => rows(&[["wsrep_on", "ON"]]),
        _ if text.contains("'wsrep_gtid_mode'") => rows(&[
            ["log_slave_updates", all],
            ["wsrep_gtid_mode", gtids],
            ["wsrep_provider", "/lib.so"],
        ]),
        "dump" => Some(Reply::Events(vec![started(0)])),
        _ if text.starts_with("SET ") => None,
        _ => Some(Reply::Nothing),
    })
}

/// A statement that commits by itself.
fn statement(seqno: u8, text: &str) -> [Vec<u8>; 2] {
    let text = query(text, "d");
    let flags = gtid_flags::STANDALONE | gtid_flags::DDL;
    [
        gtid(seqno, flags),
        event(EventType::QUERY, &Payload::Other(&text[19..])),
    ]
}

/// The GTID event of a phase of the XA transaction X'61',X'',1.
fn xa_gtid(gtid: &str, flags: u8) -> Vec<u8> {
    let of = Payload::Gtid(GtidEvent {
        gtid: gtid.parse().expect("a GTID"),
        flags,
        commit_id: None,
        xa: Some(XA),
        extra: None,
        tail: &[],
    });
    event(EventType::GTID, &of)
}

const XA: XaName<'_> = XaName {
    format: 1,
    gtrid: b"a",
    bqual: b"",
};

/// Its first phase: a statement. `flags`: whether all its tables have transactions.
fn xa_prepare(gtid: &str, flags: u8) -> Vec<Vec<u8>> {
    let text = |text| event(EventType::QUERY, &Payload::Other(&query(text, "d")[19..]));
    let prepare = Payload::XaPrepare(XaPrepare {
        name: XA,
        one_phase: false,
    });
    vec![
        xa_gtid(gtid, gtid_flags::PREPARED_XA | flags),
        text("DELETE FROM t WHERE grp = 5"),
        text("XA END X'61',X'',1"),
        event(EventType::XA_PREPARE, &prepare),
    ]
}

/// Its second one.
fn xa_second(gtid: &str, text: &str) -> Vec<Vec<u8>> {
    let flags = gtid_flags::COMPLETED_XA | gtid_flags::STANDALONE;
    vec![
        xa_gtid(gtid, flags),
        event(EventType::QUERY, &Payload::Other(&query(text, "")[19..])),
    ]
}

fn xa_commit(gtid: &str) -> Vec<Vec<u8>> {
    xa_second(gtid, "XA COMMIT X'61',X'',1")
}

/// Two statements, and two transactions that may become one.
fn several() -> Vec<Vec<u8>> {
    let flags = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
    let end = || event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0]));
    let mut packets = vec![started(0)];
    packets.extend(statement(5, "CREATE DATABASE a"));
    packets.extend(statement(6, "CREATE DATABASE b"));
    packets.extend([gtid(7, flags), end(), gtid(8, flags), end()]);
    packets
}

/// A session that runs.
struct Running {
    progress: Arc<Progress>,
    thread: JoinHandle<End>,
}

impl Running {
    fn new(fake: &Fake, lines: &[&str]) -> Running {
        Running::of(settings(fake, lines))
    }

    fn of(settings: Settings) -> Running {
        Running::saying(settings, Log::terminal())
    }

    fn saying(settings: Settings, log: Log) -> Running {
        let progress = Arc::new(Progress::default());
        let of = Arc::clone(&progress);
        let thread = thread::spawn(move || session(&settings, &log, &of));
        Running { progress, thread }
    }

    /// Until this is so.
    fn until(&self, is: impl Fn() -> bool) {
        let began = Instant::now();
        while !is() {
            assert!(!self.thread.is_finished(), "it has ended");
            assert!(began.elapsed() < LONG, "it does not come to that");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// How it ends by itself.
    fn end(self) -> End {
        let began = Instant::now();
        while !self.thread.is_finished() {
            assert!(began.elapsed() < LONG, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().expect("no panic")
    }

    fn told_to_end(self) -> End {
        self.progress.tell_to_end();
        self.end()
    }
}

/// What its binlog lacks nobody misses: nothing is begun with that, and what runs is told.
#[test]
fn a_source_that_is_a_node_of_a_cluster() {
    let target = Fake::new(serves);
    let of = |source: &Fake, lines: &[&str]| Settings {
        source: crate::source::Source {
            address: source.account().address,
            ..settings(&target, lines).source
        },
        ..settings(&target, lines)
    };
    // It is new.
    let source = node("OFF", "ON");
    let new = Fake::new(serves_new());
    let mut first = of(&source, &["start=0-1-4"]);
    first.target = new.account();
    let end = Running::of(first).end();
    let refused = matches!(&end, End::Fatal(why) if why.contains("its log_slave_updates is OFF"));
    assert!(refused, "{end:?}");
    assert!(took_back(&new), "the next start may be another one");
    let dir = std::env::temp_dir().join(format!("dromon-node-{}", std::process::id()));
    for (all, gtids, says) in [
        ("OFF", "OFF", "goes on to be"),
        ("ON", "OFF", "Do not move to another one"),
    ] {
        let source = node(all, gtids);
        let _ = std::fs::remove_file(&dir);
        let log = Log::file(&dir).expect("writable");
        let said = || std::fs::read_to_string(&dir).expect("readable");
        // It stands where it begins, for how long nobody knows.
        let running = Running::saying(of(&source, &["start=0-1-4"]), log.clone());
        running.until(|| said().contains("Follows"));
        running.until(|| said().contains(says));
        let progress = Arc::clone(&running.progress);
        running.told_to_end();
        // Nor in the next session.
        let node = dromon_relay::pull::Node {
            all: all == "ON",
            common_gtids: gtids == "ON",
        };
        let address = source.account().address;
        let mut told = progress.told_of_source.lock().expect("nobody panics");
        node.warn(&address, &mut told.of_cluster, &log);
        assert_eq!(said().matches("is a node of a cluster").count(), 1);
    }
    std::fs::remove_file(&dir).expect("there");
    assert!(!took_back(&target));
}

/// What an earlier session of this process made, and came to nothing with, is new yet.
#[test]
fn a_channel_is_new_until_something_is_applied() {
    let (of_new, failed) = (serves_new(), AtomicBool::new(false));
    let target = Fake::new(move |text| match text {
        "SELECT @@max_allowed_packet" if !failed.swap(true, Ordering::AcqRel) => {
            Some(Reply::Fail(1205))
        }
        text => of_new(text),
    });
    let source = node("OFF", "ON");
    let mut settings = settings(&target, &["start=0-1-4"]);
    settings.source.address = source.account().address;
    let (log, progress) = (Log::terminal(), Arc::new(Progress::default()));
    let end = session(&settings, &log, &progress);
    assert!(matches!(end, End::Again(_)), "{end:?}");
    assert!(!took_back(&target));
    let of = Arc::clone(&progress);
    let thread = thread::spawn(move || session(&settings, &log, &of));
    let end = Running { progress, thread }.end();
    assert!(matches!(end, End::Fatal(_)), "{end:?}");
    assert!(took_back(&target), "{:?}", target.said());
}

/// It is not begun anew at a start that is left in the settings: what was applied would be once more.
#[test]
fn a_channel_whose_row_is_gone_ends_who_has_applied_on_it() {
    // What was applied by this process, of which epoch it is, and whether the table is there.
    for (units, epoch, table) in [
        (1, None, true),
        (1, Some(3), true),
        (1, Some(3), false),
        // It has found the row, and nothing has come since.
        (0, Some(3), true),
        (0, Some(3), false),
    ] {
        let new = serves_new();
        let target = Fake::new(move |text| match text {
            _ if !table && text.starts_with("SELECT epoch FROM") => Some(Reply::Fail(1146)),
            text => new(text),
        });
        let settings = settings(&target, &["start=0-1-4"]);
        let progress = Arc::new(Progress::default());
        progress.counters.units.store(units, Ordering::Relaxed);
        *progress.epoch.lock().expect("nobody panics") = epoch;
        let of = Arc::clone(&progress);
        let thread = thread::spawn(move || session(&settings, &Log::terminal(), &of));
        let end = Running { progress, thread }.end();
        let refused =
            matches!(&end, End::Fatal(why) if why.contains("is gone, or this is another target"));
        assert!(refused, "{units}, {epoch:?}, {table}: {end:?}");
        let made = |text: &String| text.starts_with("INSERT INTO dromon_replica.position");
        assert!(!target.said().iter().any(made), "{:?}", target.said());
    }
}

/// Who has a row goes on where it says, whatever start is given, and is told.
#[test]
fn a_start_that_is_passed_over() {
    let source = sends(vec![started(0)]);
    for (new, start, told) in [
        (false, "start=0-1-3", true),
        (false, "start=0-1-4", false),
        (true, "start=0-1-4", false),
    ] {
        let target = match new {
            true => Fake::new(serves_new()),
            false => Fake::new(serves),
        };
        let mut settings = settings(&target, &[start]);
        settings.source.address = source.account().address;
        let path = format!("dromon-start-{new}-{told}-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let _ = std::fs::remove_file(&path);
        let running = Running::saying(settings, Log::file(&path).expect("writable"));
        let said = || std::fs::read_to_string(&path).expect("readable");
        running.until(|| said().contains("Follows"));
        running.told_to_end();
        let text = said();
        assert_eq!(
            text.contains("start = 0-1-3 is not looked at"),
            told,
            "{text}"
        );
        assert_eq!(text.contains("goes on: behind 0-1-4"), told, "{text}");
        assert!(!took_back(&target));
        std::fs::remove_file(&path).expect("there");
    }
}

/// The data may be a newer copy: what lies between would be applied to it once more.
#[test]
fn a_start_that_the_channel_has_not_reached() {
    let source = sends(vec![started(0)]);
    let target = Fake::new(serves);
    let mut settings = settings(&target, &["start=0-1-9"]);
    settings.source.address = source.account().address;
    let end = Running::of(settings).end();
    let words = [
        "stands at '0-1-4'",
        "DELETE FROM dromon_replica.position WHERE channel = ",
    ];
    let refused = matches!(&end, End::Fatal(why) if words.iter().all(|word| why.contains(word)));
    assert!(refused, "{end:?}");
}

/// A target that does not let columns be made wider is told of once, not with each session.
#[test]
fn columns_that_stay_narrow() {
    let target = Fake::new(|text| match text {
        _ if text.contains("DATA_TYPE='text'") => Some(Reply::Row(
            ["position", "gtid_pos"].map(String::from).into(),
        )),
        _ if text.starts_with("SELECT GREATEST(") => Some(cell("65000")),
        _ if text.starts_with("ALTER TABLE IF EXISTS") => Some(Reply::Fail(1142)),
        // Each session ends here.
        _ if text.starts_with("SELECT epoch, ") => Some(Reply::Fail(1205)),
        text => serves(text),
    });
    let path = std::env::temp_dir().join(format!("dromon-narrow-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let log = Log::file(&path).expect("writable");
    let progress = Arc::new(Progress::default());
    for _ in 0..2 {
        let end = session(&settings(&target, &[]), &log, &progress);
        assert!(matches!(end, End::Again(_)), "{end:?}");
    }
    let text = std::fs::read_to_string(&path).expect("readable");
    assert_eq!(
        text.matches("are not made wider: error 1142").count(),
        1,
        "{text}"
    );
    std::fs::remove_file(&path).expect("there");
}

/// What the target's own threads apply is not applied beside them.
#[test]
fn the_targets_own_threads() {
    const COLUMNS: [&str; 5] = [
        "Connection_name",
        "Master_Host",
        "Master_Port",
        "Slave_SQL_Running",
        "Master_Server_Id",
    ];
    for (new, applies, says) in [
        (true, "Yes", "STOP SLAVE 'a' there"),
        (false, "Yes", "STOP SLAVE 'a' there"),
        (false, "No", "start with the server"),
    ] {
        let source = sends(vec![started(0)]);
        let address = source.account().address;
        let port = address.rsplit_once(':').expect("a port").1.to_owned();
        let of_new = serves_new();
        let target = Fake::new(move |text| match text {
            "SHOW ALL SLAVES STATUS" => {
                let row = ["a", "127.0.0.1", &port, applies, "1"].map(str::to_owned);
                Some(Reply::Named(&COLUMNS, vec![row.to_vec()]))
            }
            text if new => of_new(text),
            text => serves(text),
        });
        let mut settings = settings(&target, &["start=0-1-4"]);
        settings.source.address = address;
        let path = format!("dromon-threads-{new}-{applies}-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let _ = std::fs::remove_file(&path);
        let running = Running::saying(settings, Log::file(&path).expect("writable"));
        if applies == "Yes" {
            let end = running.end();
            let refused = matches!(&end, End::Fatal(why) if why.contains(says));
            assert!(refused, "{end:?}");
            assert_eq!(took_back(&target), new, "{:?}", target.said());
        } else {
            let said = || std::fs::read_to_string(&path).expect("readable");
            running.until(|| said().contains(says));
            running.told_to_end();
        }
        std::fs::remove_file(&path).expect("there");
    }
}

/// Connections of one session that a balancer has led to several servers.
#[test]
fn a_session_is_to_one_server() {
    let fake = Fake::new(|text| match serves(text) {
        Some(Reply::Rows(mut ids)) if text.contains("PROCESSLIST WHERE ID IN (") => {
            ids.remove(1);
            Some(Reply::Rows(ids))
        }
        other => other,
    });
    let end = Running::new(&fake, &["threads=2"]).end();
    assert!(
        matches!(&end, End::Fatal(why) if why.contains("several servers")),
        "{end:?}"
    );
}

/// There statements of other nodes end whoever stands in their way, which a lock of that kind may prevent.
#[test]
fn connections_that_apply_have_no_lock_on_a_node() {
    let fake = Fake::new(|text| match text {
        "SELECT @@log_bin" => Some(cell("1")),
        text if text.contains("'WSREP_ON'") => Some(cell("ON")),
        text => serves(text),
    });
    let lock = |number: usize| format!(" {number}'),10)");
    let has = |number: usize| fake.said().iter().any(|text| text.ends_with(&lock(number)));
    let running = Running::new(&fake, &["threads=2"]);
    // The watcher's is the last one.
    running.until(|| has(1024));
    running.told_to_end();
    assert!(has(1025) && !has(0) && !has(1));
}

/// The next session finds each connection of this one by its lock; a lock that is not free is that of
/// another replica.
#[test]
fn each_connection_has_a_lock() {
    let lock = |number: usize| {
        format!("SELECT GET_LOCK(CONCAT('dromon_replica ',MD5('default'),' {number}'),10)")
    };
    let locks = [1025, 0, 1, 1024].map(lock);
    let fake = Fake::new(serves);
    let running = Running::new(&fake, &["threads=2"]);
    running.until(|| locks.iter().all(|lock| fake.said().contains(lock)));
    // It may still be beginning: then its connections are cut.
    running.told_to_end();
    let said = fake.said();
    let at = |of: &str| said.iter().position(|text| text.contains(of));
    let looked = at("IS_USED_LOCK").expect("it looks for older ones");
    assert!(Some(looked) < at("GET_LOCK"), "older ones are ended first");
    for lock in locks {
        let fake = Fake::new(move |text| match text == lock {
            true => Some(cell("0")),
            false => serves(text),
        });
        let end = Running::new(&fake, &["threads=2"]).end();
        assert!(
            matches!(&end, End::Again(why) if why.contains("another replica")),
            "{end:?}"
        );
    }
}

/// Temporary tables that a source had before it was started anew belong to a session that ends behind all that was
/// planned before, and before anything else runs.
#[test]
fn a_source_that_is_started_anew() {
    const LOCK: &str = "SELECT GET_LOCK(CONCAT('dromon_replica ',MD5('default')),10)";
    let mut packets = vec![started(0)];
    packets.extend(statement(5, "CREATE TEMPORARY TABLE a (x INT)"));
    packets.extend(statement(6, "CREATE TEMPORARY TABLE b (x INT)"));
    packets.push(started(77));
    packets.extend(statement(7, "CREATE TEMPORARY TABLE c (x INT)"));
    packets.push(started(0));
    packets.extend(statement(8, "CREATE TEMPORARY TABLE d (x INT)"));
    let source = sends(packets);
    let target = Fake::new(|text| {
        if text.starts_with("CREATE TEMPORARY") {
            // Nobody who does not wait for it comes later.
            thread::sleep(Duration::from_millis(30));
        }
        serves(text)
    });
    let mut settings = settings(&target, &["threads=2"]);
    settings.source.address = source.account().address;
    let running = Running::of(settings);
    let done = |said: &[String]| {
        let steps = said.iter().filter_map(|text| match &text[..] {
            LOCK => Some("lock"),
            text => text
                .strip_prefix("CREATE TEMPORARY TABLE ")
                .map(|name| match &name[..1] {
                    "a" => "a",
                    "b" => "b",
                    "c" => "c",
                    _ => "d",
                }),
        });
        steps.collect::<Vec<_>>().concat()
    };
    running.until(|| done(&target.said()).ends_with('d'));
    let said = target.said();
    assert_eq!(done(&said), "lockablockcd");
    let at = |is: &dyn Fn(&String) -> bool| said.iter().rposition(is).expect("it was said");
    let again = at(&|text| text == LOCK);
    let committed = said[..again].iter().filter(|text| *text == "COMMIT");
    assert!(committed.count() >= 2, "{said:?}");
    running.told_to_end();
}

/// What a target has kept of an XA transaction is asked for with its name, which has quotes, after the
/// session's sql_mode is set; an error that stays ends the session for good.
#[test]
fn what_is_kept_and_cannot_be_read() {
    for (code, is_final) in [(1146, true), (1205, false)] {
        let packets = [vec![started(0)], xa_commit("0-1-5")].concat();
        let source = sends(packets);
        let target = Fake::new(move |text| match text {
            _ if text.contains("TABLE_NAME='prepared'") => Some(cell("1")),
            _ if text.starts_with("SELECT xid, COUNT(*)") => {
                let row = ["X'61',X'',1", "1", "0-1-3"].map(str::to_owned);
                Some(Reply::Row(row.to_vec()))
            }
            _ if text.starts_with("SELECT form, events") => Some(Reply::Fail(code)),
            text => serves(text),
        });
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let end = Running::of(settings).end();
        assert_eq!(matches!(&end, End::Fatal(_)), is_final, "{end:?}");
        let said = target.said();
        let at = |is: &dyn Fn(&str) -> bool| said.iter().position(|text| is(text));
        let asked = at(&|text| text.starts_with("SELECT form, events"));
        assert!(said[asked.expect("it is asked")].contains("xid='X\\'61"));
        // By the connection that asks: the first one that begins anything.
        let set = at(&|text| text.contains("sql_mode="));
        assert!(
            set.is_some() && set < at(&|text| text == "BEGIN"),
            "{said:?}"
        );
    }
}

/// Statements of an XA transaction are run if nothing was changed since its first phase. Else they are refused by name, as
/// is a rollback that does not take all of them back; and people are told how it does not come to that.
#[test]
fn statements_of_an_xa_transaction() {
    let whole = gtid_flags::TRANSACTIONAL;
    let xid = || event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0]));
    let another = || vec![gtid(6, whole), xid()];
    let commit = "XA COMMIT X'61',X'',1";
    let rollback = "XA ROLLBACK X'61',X'',1";
    let since =
        "(0-1-7), of which it logged statements, and others committed since its XA PREPARE (0-1-5)";
    let stays = "X'61',X'',1 (0-1-7; XA PREPARE 0-1-5), of which it logged statements, and not all of its tables";
    for (flags, between, second, says) in [
        (whole, vec![], commit, None),
        (0, vec![], commit, None),
        (whole, another(), commit, Some(since)),
        (whole, another(), rollback, None),
        (0, vec![], rollback, Some(stays)),
    ] {
        let packets = [
            vec![started(0)],
            xa_prepare("0-1-5", flags),
            between,
            xa_second("0-1-7", second),
        ];
        let source = sends(packets.concat());
        let target = Fake::new(serves);
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let path = format!("dromon-xa-{}-{flags}-{second}", std::process::id());
        let path = std::env::temp_dir().join(path.replace(' ', "-"));
        let _ = std::fs::remove_file(&path);
        let running = Running::saying(settings, Log::file(&path).expect("writable"));
        let at = |seqno: &str| {
            let position = format!("'0-1-{seqno}'");
            let moves = "UPDATE dromon_replica.position";
            let mut said = target.said().into_iter();
            said.any(|text| text.starts_with(moves) && text.contains(&position))
        };
        if let Some(says) = says {
            let end = running.end();
            let words = [
                says,
                "first statement: DELETE FROM t WHERE grp = 5",
                "binlog_format=ROW",
            ];
            let refused =
                matches!(&end, End::Fatal(why) if words.iter().all(|word| why.contains(word)));
            assert!(refused, "{end:?}");
            assert!(!at("7"));
        } else {
            running.until(|| at("7"));
            running.told_to_end();
        }
        let ran = target
            .said()
            .iter()
            .any(|text| text.starts_with("DELETE FROM t"));
        assert_eq!(ran, says.is_none() && second == commit);
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text.matches("it ends this replica").count(), 1, "{text}");
        std::fs::remove_file(&path).expect("there");
    }
}

/// What is ahead is known to replicas of the target before a commit writes over what they know it by; and
/// what is in doubt is looked for before anything comes into the binlog.
#[test]
fn replicas_of_the_target_know_what_is_ahead() {
    let on = "SET SESSION sql_log_bin=1, binlog_format=ROW, binlog_row_image=FULL";
    for (lines, wanted) in [
        (&["commit_order=group"][..], true),
        // A session before it had the other order.
        (&["commit_order=strict"], true),
        (&["commit_order=group", "binlog=off"], false),
    ] {
        let fake = Fake::new(|text| match text {
            "SELECT @@log_bin" | "SELECT @@global.server_id" => Some(cell("1")),
            _ if text.ends_with("COLUMN_NAME='ahead'") => {
                let tables = ["position", "commits"].map(|name| vec![name.to_owned()]);
                Some(Reply::Rows(tables.to_vec()))
            }
            _ if text.starts_with("SELECT 1 FROM dromon_replica.") => Some(cell("1")),
            _ if text.starts_with("SELECT epoch, ") => {
                let row = ["3", "0-1-4", "0-1-5", "ALTER", "9", "?"].map(str::to_owned);
                Some(Reply::Row(row.to_vec()))
            }
            _ if text.starts_with("SELECT gtid_pos, ahead FROM") => {
                let row = ["0-1-4", "0:6-7"].map(str::to_owned);
                Some(Reply::Row(row.to_vec()))
            }
            text => serves(text),
        });
        let running = Running::new(&fake, lines);
        // The watcher's is the last one.
        running.until(|| fake.said().iter().any(|text| text.ends_with(" 1024'),10)")));
        running.told_to_end();
        let mut said = fake.said();
        said.retain(|text| !text.starts_with("SELECT @@"));
        let at = |is: &dyn Fn(&str) -> bool| said.iter().position(|text| is(text));
        let told = at(&|text| text.starts_with(on));
        assert_eq!(told.is_some(), wanted, "{said:?}");
        let row = at(&|text| text.starts_with("UPDATE dromon_replica.position SET changed="));
        assert_eq!(row, told.map(|at| at + 1), "{said:?}");
        let keeps = at(&|text| text.contains("ahead='0:6-7'"));
        let looks = said
            .iter()
            .rposition(|text| text.starts_with("SELECT doing_binlog"));
        let applies = at(&|text| text.ends_with(" 0'),10)"));
        assert!(
            keeps.is_some() && keeps < looks && looks < applies,
            "{said:?}"
        );
        assert!(!wanted || looks < told && row < applies, "{said:?}");
    }
}

/// What cannot be applied ends the session behind all that came before it: so it says, and people put the position
/// behind it. Likewise what the source refuses: it may have the rest no more when it is asked again.
#[test]
fn what_came_before_is_applied_before_the_end() {
    let domain = Payload::Gtid(GtidEvent {
        gtid: "3-1-1".parse().expect("a GTID"),
        flags: gtid_flags::TRANSACTIONAL,
        commit_id: None,
        xa: None,
        extra: None,
        tail: &[],
    });
    let xid = event(EventType::XID, &Payload::Other(&[1, 0, 0, 0, 0, 0, 0, 0]));
    let incident = event(EventType::INCIDENT, &Payload::Other(b"\x01\0\0"));
    let group = &["commit_order=group"][..];
    let chosen = &["source_gtid=on", "merge=1"];
    for (last, lines, says) in [
        (xa_commit("0-1-9"), &[][..], "before this channel began"),
        (xa_commit("0-1-9"), group, "before this channel began"),
        (
            vec![event(EventType::GTID, &domain), xid],
            chosen,
            "binlog is at 3-2-9 already",
        ),
        (vec![incident.clone()], &[], "source sent an INCIDENT"),
        (vec![incident], group, "source sent an INCIDENT"),
        (statement(2, "DROP TABLE x").to_vec(), &[], "behind 0-1-8"),
    ] {
        let source = sends([several(), last].concat());
        let target = Fake::new(|text| match text {
            "SELECT @@log_bin" => Some(cell("1")),
            "SELECT @@gtid_binlog_pos" => Some(cell("3-2-9")),
            _ if text.starts_with("CREATE DATABASE") => {
                // Meanwhile all of it has come.
                thread::sleep(Duration::from_millis(100));
                None
            }
            text => serves(text),
        });
        let mut settings = settings(&target, lines);
        settings.source.address = source.account().address;
        let end = Running::of(settings).end();
        assert!(
            matches!(&end, End::Fatal(why) if why.contains(says)),
            "{end:?}"
        );
        let said = target.said();
        let position = |text: &String| {
            text.starts_with("UPDATE dromon_replica.position") && text.contains("'0-1-8'")
        };
        let at = said.iter().position(position);
        let at = at.unwrap_or_else(|| panic!("{lines:?}, {says}: {said:?}"));
        assert!(said[..at].contains(&"CREATE DATABASE b".to_owned()));
    }
}

/// The end of what is waited for need not come: a target that does not answer holds up nobody who is told to end,
/// and one that is gone is another end. Why it waits has been said.
#[test]
fn what_came_before_and_does_not_come_to_its_end() {
    for (answer, told) in [(Reply::Silence, true), (Reply::Events(Vec::new()), false)] {
        let incident = event(EventType::INCIDENT, &Payload::Other(b"\x01\0\0"));
        let source = sends([several(), vec![incident]].concat());
        let name = format!("dromon-refused-{}-{told}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let log = Log::file(&path).expect("writable");
        let said = || std::fs::read_to_string(&path).unwrap_or_default();
        let (seen, waits) = (path.clone(), answer.clone());
        let target = Fake::new(move |text| match text {
            "CREATE DATABASE a" => {
                let began = Instant::now();
                let said = || std::fs::read_to_string(&seen).unwrap_or_default();
                while !said().contains("applied first") && began.elapsed() < LONG {
                    thread::sleep(Duration::from_millis(1));
                }
                Some(waits.clone())
            }
            text => serves(text),
        });
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let running = Running::saying(settings, log);
        if told {
            running.until(|| said().contains("applied first"));
            assert_eq!(running.told_to_end(), End::Told);
        } else {
            let end = running.end();
            assert!(matches!(end, End::Again(_)), "{end:?}");
        }
        let said = said();
        std::fs::remove_file(&path).expect("there");
        assert!(said.contains("The source: the source sent an INCIDENT"));
        assert!(said.contains("applied first"), "{said}");
        assert!(!target.said().contains(&"CREATE DATABASE b".to_owned()));
    }
}
