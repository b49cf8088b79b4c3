//! What the target is told, to its words.

use super::*;
use crate::fake_target::{Fake, Reply, cell};

/// What the target's own settings must not do to what is applied.
#[test]
fn sessions_do_not_depend_on_the_target() {
    for set in [
        "system_versioning_alter_history=KEEP",
        "max_statement_time=0",
        "idle_transaction_timeout=0",
        "idle_write_transaction_timeout=0",
        "sql_safe_updates=0",
        // DEFAULT would be what the target has for its clients.
        "sql_select_limit=18446744073709551615",
        // Not NO_BACKSLASH_ESCAPES, nor ANSI_QUOTES.
        "sql_mode='STRICT_ALL_TABLES'",
        "autocommit=1",
        "lc_messages='en_US'",
    ] {
        assert!(ONCE.contains(set), "{set}");
    }
}

/// A name is the same in every session.
#[test]
fn names_of_channels() {
    let doing = Doing {
        gtid: "0-1-5".parse().expect("a GTID"),
        text: String::new(),
        connection: 3,
        binlog: String::new(),
    };
    for (name, wanted) in [
        ("of a shop", "channel='of a shop'"),
        ("a'b\\c", "channel=_utf8mb4 X'6127625C63'"),
        ("ä", "channel=_utf8mb4 X'C3A4'"),
    ] {
        let channel = Channel::new(name);
        let mut all: [Vec<u8>; 7] = Default::default();
        channel.put_move(&mut all[0], 3, None, "0-1-5");
        channel.put_slot(&mut all[1], 3, 0, "0-1-5", &Ahead::default());
        channel.put_save(&mut all[2], 3, "0-1-5");
        channel.put_undone(&mut all[3], 3);
        channel.put_doing(&mut all[4], 3, &doing);
        channel.put_done(&mut all[5], &doing);
        channel.put_decided(&mut all[6], "X'01'");
        for text in all.map(|text| String::from_utf8(text).expect("a text")) {
            let (_, found) = text.split_once("WHERE ").expect("a condition");
            assert!(found.contains(wanted), "{text}");
        }
        for text in [channel.lock_name(), channel.holders(), channel.row()] {
            assert!(text.is_ascii() && !text.contains('\\'), "{text}");
        }
    }
}

/// Whoever may look at positions does not see what was done.
#[test]
fn the_text_goes_with_what_is_done() {
    let channel = Channel::new("c");
    let text = |put: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        put(&mut out);
        String::from_utf8(out).expect("a text")
    };
    let moved = text(&|out| channel.put_move(out, 3, None, "0-1-5"));
    assert!(
        moved.contains("SET doing=NULL, doing_text=NULL, "),
        "{moved}"
    );
    let undone = text(&|out| channel.put_undone(out, 3));
    assert!(
        undone.contains("doing_text=IF(epoch=3,NULL,doing_text)"),
        "{undone}"
    );
    // What an older build left.
    let fake = Fake::new(stand);
    let said = begun(&fake, Order::Strict, false);
    let clears = |text: &String| text.contains("doing_text=IF(doing IS NULL,NULL,doing_text)");
    assert!(said.iter().any(clears), "{said:?}");
}

fn new(at: &Position) -> Start<'_> {
    Start { at, is_new: true }
}

fn begun(fake: &Fake, order: Order, logged: bool) -> Vec<String> {
    let mut client = Client::connect(&fake.account()).expect("a target");
    let start = Position::new();
    let stand = Channel::new("c").begin(&mut client, order, new(&start), logged);
    assert_eq!(stand.expect("answers").epoch, 3);
    fake.said()
}

/// What a refused start has made is gone, also at the target's replicas; what anybody has applied is not.
#[test]
fn a_new_channel_is_taken_back() {
    for (logged, slots, rows) in [
        (true, true, 1),
        (false, true, 1),
        (true, false, 1),
        (true, true, 0),
    ] {
        let fake = Fake::new(move |text| match text {
            COLUMNS if slots => {
                let row = |table: &str| vec![table.to_owned(), "ahead".to_owned()];
                Some(Reply::Rows(vec![row("position"), row("commits")]))
            }
            COLUMNS => Some(Reply::Nothing),
            _ if text.starts_with("DELETE FROM dromon_replica.position") => Some(Reply::Done(rows)),
            _ => None,
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let start = "0-1-4".parse().expect("a position");
        let gone = Channel::new("c").forget(&mut client, 3, &start, logged);
        assert_eq!(gone.expect("answers"), rows == 1);
        let said = fake.said();
        let at = |wanted: &str| said.iter().position(|text| text.contains(wanted));
        let deleted = at("DELETE FROM dromon_replica.position").expect("it is tried");
        for part in [
            "channel = 'c' AND",
            "epoch=3",
            "gtid_pos='0-1-4'",
            "IFNULL(ahead,'')=''",
            "doing IS NULL",
        ] {
            assert!(said[deleted].contains(part), "{said:?}");
        }
        assert_eq!(said[deleted].contains("NOT EXISTS"), slots, "{said:?}");
        assert_eq!(
            at("DELETE FROM dromon_replica.commits").is_some(),
            slots && rows == 1
        );
        let (on, off) = (at("sql_log_bin=1, binlog_format=ROW"), at("sql_log_bin=0"));
        assert_eq!(on.is_some_and(|on| on < deleted), logged, "{said:?}");
        assert_eq!(off.is_some_and(|off| off > deleted), logged, "{said:?}");
        assert!(at("COMMIT").is_some_and(|end| end > deleted), "{said:?}");
    }
}

/// The end of what a server was doing does not come to its replica, but its next commits do.
#[test]
fn what_is_behind_the_position_is_not_under_way() {
    for (gtid, is_under_way) in [("0-1-4", false), ("0-1-5", true), ("7-1-4", true)] {
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with("SELECT epoch, ") => {
                let row = ["3", "0-1-4", gtid, "ALTER", "9", "0-2-7", "", "c"].map(String::from);
                Some(Reply::Row(row.to_vec()))
            }
            other => stand(other),
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let (order, start) = (Order::Group(SLOTS), Position::new());
        let stand = Channel::new("c").begin(&mut client, order, new(&start), true);
        let doing = stand.expect("answers").doing.map(|doing| doing.gtid);
        assert_eq!(doing, is_under_way.then(|| gtid.parse().expect("a GTID")));
        let said = fake.said();
        let clears = said.iter().any(|text| text.contains(" doing=NULL"));
        assert_eq!(clears, !is_under_way, "{said:?}");
    }
}

fn stand(text: &str) -> Option<Reply> {
    let row = || Reply::Row(["3", "0-1-4"].map(String::from).to_vec());
    match text {
        _ if text.starts_with("SELECT epoch, ") => Some(row()),
        _ if text.starts_with("SELECT ") => Some(Reply::Nothing),
        _ => None,
    }
}

/// Two names that the target takes for the same are no one channel.
#[test]
fn a_name_that_is_spelled_otherwise() {
    for (there, fits) in [("c", true), ("C", false), ("c ", false), ("ć", false)] {
        let fake = Fake::new(move |text| match text {
            _ if text.starts_with("SELECT epoch, ") => {
                let row = ["3", "0-1-4", "0-1-5", "", "", "", "", there].map(String::from);
                Some(Reply::Row(row.to_vec()))
            }
            other => stand(other),
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let start = Position::new();
        let stand = Channel::new("c").begin(&mut client, Order::Strict, new(&start), false);
        let said = fake.said();
        assert_eq!(said.contains(&"COMMIT".to_owned()), fits, "{said:?}");
        match stand {
            Ok(_) => assert!(fits),
            Err(error) => assert!(
                !fits && error.to_string().contains("channel = c,"),
                "{error}"
            ),
        }
    }
}

/// Each connection that a session may have is found by the next one, and has a lock of its own.
#[test]
fn every_place_is_looked_at() {
    let all = (0..CONNECTIONS_MAX).flat_map(|n| [Place::Worker(n), Place::Reader(n)]);
    let all = all.chain([Place::Watcher, Place::Control]);
    let numbers: std::collections::BTreeSet<usize> = all.map(Place::number).collect();
    assert_eq!(numbers.len(), 2 * CONNECTIONS_MAX + 2);
    assert!(numbers.last() < Some(&(DIGITS * DIGITS)));
    let fake = Fake::new(|text| text.contains("GET_LOCK").then(|| cell("0")));
    let mut client = Client::connect(&fake.account()).expect("a target");
    let channel = Channel::new("c");
    let has = channel.hold(&mut client, Place::Reader(3));
    assert!(!has.expect("an answer"), "another one has it");
    let lock = "CONCAT('dromon_replica ',MD5('c'),' 515')";
    assert_eq!(fake.said(), [format!("SELECT GET_LOCK({lock},10)")]);
    let asks = channel.holders();
    assert!(
        asks.contains("IS_USED_LOCK(CONCAT('dromon_replica ',MD5('c'),' ',a.n+33*b.n)"),
        "{asks}"
    );
    assert!(
        asks.matches("SELECT 32 n").count() == 2 && !asks.contains("33 n"),
        "{asks}"
    );
}

/// Replicas of the target get what commits will change.
#[test]
fn rows_that_replicas_of_the_target_need() {
    let fake = Fake::new(stand);
    let said = begun(&fake, Order::Group(SLOTS), true);
    let at = |begin: &str| said.iter().position(|text| text.starts_with(begin));
    let on = at("SET SESSION sql_log_bin=1").expect("it is logged");
    let off = at("SET SESSION sql_log_bin=0").expect("no more than that");
    assert!(said[on].contains("binlog_format=ROW"), "{said:?}");
    for text in [
        "CREATE DATABASE",
        "CREATE TABLE IF NOT EXISTS dromon_replica.position",
        "CREATE TABLE IF NOT EXISTS dromon_replica.commits",
        "INSERT INTO dromon_replica.position",
        "INSERT INTO dromon_replica.commits",
    ] {
        assert!(
            (on..off).contains(&at(text).expect(text)),
            "{text}: {said:?}"
        );
    }
    assert!(at("BEGIN") > Some(off));
    // A commit of others is nobody's affair.
    let fake = Fake::new(stand);
    let said = begun(&fake, Order::Strict, false);
    assert!(!said.iter().any(|text| text.contains("sql_log_bin")));
    // What is there is not logged again.
    let fake = Fake::new(|text| match text {
        COLUMNS => Some(cell("position")),
        _ if text.starts_with("SELECT 1 FROM") => Some(cell("1")),
        _ => stand(text),
    });
    let said = begun(&fake, Order::Strict, true);
    assert!(!said.iter().any(|text| text.contains("sql_log_bin")));
}

/// A position that is too long is refused, wherever it is written: never cut. And tables that are made now take it.
#[test]
fn positions_are_not_cut() {
    let fake = Fake::new(stand);
    let said = begun(&fake, Order::Group(SLOTS), true);
    let writes: Vec<&String> = said
        .iter()
        .filter(|text| text.starts_with("INSERT"))
        .collect();
    assert_eq!(writes.len(), 3, "{said:?}");
    for text in writes {
        assert!(
            !text.contains("IGNORE") && text.contains("ON DUPLICATE KEY UPDATE"),
            "{text}"
        );
    }
    let makes = said.iter().filter(|text| text.contains(" TABLE "));
    for text in makes {
        for column in ["gtid_pos", "ahead", "doing_binlog"] {
            assert!(!text.contains(&format!("{column} TEXT")), "{text}");
        }
    }
}

/// What is asked of a target whose tables have these narrow columns, and on which the channel's position has so
/// many bytes.
fn widened(narrow: &[[&str; 2]], bytes: usize, start: &str, logged: bool) -> Vec<String> {
    let rows: Vec<Vec<String>> = narrow
        .iter()
        .map(|row| row.map(String::from).into())
        .collect();
    let fake = Fake::new(move |text| match text {
        NARROW if !rows.is_empty() => Some(Reply::Rows(rows.clone())),
        _ if text.starts_with("SELECT GREATEST(") => Some(cell(&bytes.to_string())),
        _ if text.starts_with("SELECT ") => Some(Reply::Nothing),
        _ => None,
    });
    let mut client = Client::connect(&fake.account()).expect("a target");
    let start = start.parse().expect("a position");
    let done = Channel::new("c").widen(&mut client, &start, logged);
    assert_eq!(done.expect("it may"), None);
    fake.said()
}

/// Tables of an older build are altered when a position is long, and only then: each ALTER is one for the
/// target's replicas, too.
#[test]
fn tables_of_an_older_build() {
    let both = [
        ["position", "gtid_pos"],
        ["position", "ahead"],
        ["commits", "gtid_pos"],
    ];
    assert_eq!(widened(&[], LONG, "", true), [NARROW]);
    let said = widened(&both, LONG - 1, "0-1-4", true);
    assert!(said.iter().all(|text| text.starts_with("SELECT ")));
    let domains: Vec<String> = (0..3000).map(|domain| format!("{domain}-1-4")).collect();
    for (bytes, start) in [(LONG, ""), (0, &domains.join(",")[..])] {
        let said = widened(&both, bytes, start, true);
        let at = |text: &str| said.iter().position(|said| said == text).expect(text);
        let on = at("SET SESSION sql_log_bin=1");
        let off = at("SET SESSION sql_log_bin=0");
        // Whoever follows the target, and has no such tables, must not end at it.
        let mut logged = said[on + 1..off].to_vec();
        logged.retain(|text| !text.starts_with("SELECT "));
        assert_eq!(logged, [WIDE, WIDE_SLOTS]);
        for text in [WIDE, WIDE_SLOTS] {
            assert!(text.starts_with("ALTER TABLE IF EXISTS "), "{text}");
        }
    }
    let said = widened(&both[..2], LONG, "", false);
    assert!(said.iter().any(|text| text == WIDE), "{said:?}");
    assert!(
        !said
            .iter()
            .any(|text| text == WIDE_SLOTS || text.contains("sql_log_bin"))
    );
}

/// One that does not let them be altered takes positions as long as it did, and logs no more than it should.
#[test]
fn a_target_that_refuses_to_alter_its_tables() {
    let fake = Fake::new(|text| match text {
        NARROW => Some(Reply::Row(
            ["position", "gtid_pos"].map(String::from).into(),
        )),
        _ if text.starts_with("SELECT ") => Some(cell("65000")),
        WIDE => Some(Reply::Fail(1205)),
        _ => None,
    });
    let mut client = Client::connect(&fake.account()).expect("a target");
    let widen = |client: &mut Client| Channel::new("c").widen(client, &Position::new(), true);
    let why = widen(&mut client)
        .expect("it goes on")
        .expect("and is told");
    assert!(why.contains("error 1205") && why.contains(WIDE), "{why}");
    assert!(
        fake.said()
            .contains(&"SET SESSION sql_log_bin=0".to_owned())
    );
    // One that goes away is none.
    let fake = Fake::new(|text| match text {
        NARROW => Some(Reply::Row(
            ["position", "gtid_pos"].map(String::from).into(),
        )),
        _ if text.starts_with("SELECT ") => Some(cell("65000")),
        WIDE => Some(Reply::Fail(1047)),
        _ => None,
    });
    let mut client = Client::connect(&fake.account()).expect("a target");
    assert!(widen(&mut client).is_err());
}

/// Replicas of the target have what commits wrote into slots: they get the row that has it now.
#[test]
fn what_replicas_of_the_target_must_not_forget() {
    for (own, number) in [("2", "server_id=1"), ("7", "server_id=2")] {
        let fake = Fake::new(move |text| match text {
            "SELECT @@global.server_id" => Some(cell(own)),
            _ => None,
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let stand = Stand {
            epoch: 3,
            position: "0-2-4,3-1-4".parse().expect("a position"),
            ahead: Ahead::default(),
            doing: None,
            slots: true,
        };
        let told = Channel::new("c").tell_replicas(&mut client, &stand);
        told.expect("it may");
        let said = fake.said();
        let [_, on, row, off] = &said[..] else {
            panic!("{said:?}");
        };
        for what in [
            "sql_log_bin=1",
            "binlog_row_image=FULL",
            "binlog_format=ROW",
            number,
        ] {
            assert!(on.contains(what), "{on}");
        }
        assert!(row.contains("SET changed=") && row.contains("WHERE epoch=3 AND channel = 'c'"));
        assert_eq!(off, "SET SESSION sql_log_bin=0, server_id=DEFAULT");
    }
}

/// Another process takes its row back beside one that begins: none is made of which the target's replicas do not hear, nor
/// one for a channel that was not new when it was looked whether that may begin.
#[test]
fn a_row_that_is_gone_meanwhile() {
    // Before it is looked whether the tables are there, or behind it.
    for (is_new, at_once) in [(false, true), (false, false), (true, false)] {
        let fake = Fake::new(move |text| match text {
            COLUMNS => Some(Reply::Row(["position", "ahead"].map(String::from).into())),
            _ if text.starts_with("SELECT 1 FROM") && !at_once => Some(cell("1")),
            _ if text.contains("epoch = epoch + 1") => Some(Reply::Done(0)),
            _ => stand(text),
        });
        let mut client = Client::connect(&fake.account()).expect("a target");
        let position = Position::new();
        let start = Start {
            at: &position,
            is_new,
        };
        let stand = Channel::new("c").begin(&mut client, Order::Strict, start, true);
        assert!(matches!(stand, Err(StandError::TakenBack)), "{stand:?}");
        let said = fake.said();
        let made = said.iter().any(|text| text.starts_with("INSERT"));
        assert!(!made && !said.contains(&"COMMIT".to_owned()), "{said:?}");
        assert_eq!(said.contains(&"ROLLBACK".to_owned()), !at_once, "{said:?}");
    }
}

/// What takes numbers of the target's own is written down, unlogged.
#[test]
fn what_is_made_by_numbers_of_the_target() {
    let seqno = std::sync::atomic::AtomicU64::new(1);
    let fake = Fake::new(move |text| match text {
        "SELECT @@last_gtid" => {
            let n = seqno.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(cell(&format!("0-2-{n}")))
        }
        _ if text.starts_with("SELECT @@server_id, ") => {
            Some(Reply::Row(["2", "", "", ""].map(String::from).to_vec()))
        }
        _ => stand(text),
    });
    let said = begun(&fake, Order::Strict, true);
    let at = |begin: &str| said.iter().position(|text| text.starts_with(begin));
    let kept = at("INSERT INTO dromon_replica.made").expect("it is kept");
    assert!(
        said[kept].contains("(2,0,1,0),(2,0,2,1),(2,0,3,2),(2,0,4,3)"),
        "{said:?}"
    );
    assert!(at("SET SESSION sql_log_bin=0") < at("CREATE TABLE IF NOT EXISTS dromon_replica.made"));
    let mut client = Client::connect(&fake.account()).expect("a target");
    let channel = Channel::new("c");
    channel.prepare_prepared(&mut client, true).expect("made");
    channel
        .forget(&mut client, 3, &Position::new(), true)
        .expect("gone");
    // By another server's number nothing is taken.
    for position in ["", "0-1-4"] {
        let stand = Stand {
            epoch: 3,
            position: position.parse().expect("a position"),
            ahead: Ahead::default(),
            doing: None,
            slots: true,
        };
        channel.tell_replicas(&mut client, &stand).expect("told");
    }
    let all = fake.said();
    let kept = all
        .iter()
        .filter(|text| text.starts_with("INSERT INTO dromon_replica.made"));
    assert_eq!(kept.count(), 4, "{all:?}");
}

/// So is what was made before something that the target refuses; and what it refuses is said.
#[test]
fn what_is_made_before_an_error() {
    let seqno = std::sync::atomic::AtomicU64::new(1);
    let fake = Fake::new(move |text| match text {
        "SELECT @@last_gtid" => {
            let n = seqno.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(cell(&format!("0-2-{n}")))
        }
        _ if text.starts_with("SELECT @@server_id, ") => {
            Some(Reply::Row(["2", "", "", ""].map(String::from).to_vec()))
        }
        TABLE => Some(Reply::Fail(1114)),
        _ => stand(text),
    });
    let mut client = Client::connect(&fake.account()).expect("a target");
    let start = Position::new();
    let stand = Channel::new("c").begin(&mut client, Order::Strict, new(&start), true);
    let says = matches!(&stand, Err(StandError::Client(error)) if error.code() == Some(1114));
    assert!(says, "{stand:?}");
    let said = fake.said();
    let at = |begin: &str| said.iter().position(|text| text.starts_with(begin));
    let kept = at("INSERT INTO dromon_replica.made").expect("it is kept");
    assert!(said[kept].contains("VALUES (2,0,1,0) ON"), "{said:?}");
    let off = at("SET SESSION sql_log_bin=0").expect("no more is logged");
    assert!(off < kept, "{said:?}");
}
