//! Sessions beside others: what came back, and who has begun, or gone.

use std::sync::Mutex;

use super::*;

/// Its number alone does not say that the target wrote it: another server may have that, or the target is an older copy.
#[test]
fn what_came_back_and_what_did_not() {
    let there = Some("0-1-8,0-2-99");
    for (log_bin, before, later, refused) in [
        ("1", there, there, None),
        // Written since.
        ("1", Some("0-1-4"), there, None),
        // It writes, but not that: told, and passed over.
        ("1", Some("0-1-6"), Some("0-1-6,0-2-99,1-1-99"), None),
        ("1", Some(""), Some(""), Some("0-1-5 comes next")),
        ("0", None, None, Some("writes no binlog")),
    ] {
        // A relay has a number of its own.
        let packets = several();
        let source = Fake::new(move |text| match text {
            _ if text.contains("@@GLOBAL.server_id") => {
                let cells = ["9", "10.11.18-MariaDB-log"];
                Some(Reply::Row(cells.map(str::to_owned).to_vec()))
            }
            "dump" => Some(Reply::Events(packets.clone())),
            _ if text.starts_with("SET ") => None,
            _ => Some(Reply::Nothing),
        });
        let asked = AtomicUsize::new(0);
        let target = Fake::new(move |text| match text {
            "SELECT @@log_bin" => Some(cell(log_bin)),
            "SELECT @@server_id" => Some(cell("1")),
            // Once before anything comes.
            "SELECT @@gtid_binlog_state" => {
                let state = match asked.fetch_add(1, Ordering::Relaxed) {
                    0 => before,
                    _ => later,
                };
                Some(state.map_or(Reply::Nothing, cell))
            }
            text => serves(text),
        });
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let running = Running::of(settings);
        let end = match refused {
            Some(_) => running.end(),
            None => {
                running.until(|| target.said().iter().any(|text| text.contains("'0-1-8'")));
                running.told_to_end()
            }
        };
        match (&end, refused) {
            (End::Told, None) => {}
            (End::Fatal(why), Some(says)) if why.contains(says) => {}
            _ => panic!("{before:?}, {later:?}: {end:?}"),
        }
        let said = target.said();
        assert!(
            !said
                .iter()
                .any(|text| text.starts_with("CREATE DATABASE a"))
        );
    }
}

/// What a replica made on the target is there by numbers of the target's own. If nothing else is, the target wrote nothing,
/// in this session or in an earlier one; and what of it goes round itself is no harm.
#[test]
fn what_a_replica_made_is_not_what_the_target_wrote() {
    let own = || {
        statement(
            5,
            "CREATE TABLE IF NOT EXISTS dromon_replica.position (a INT)",
        )
    };
    let theirs = || statement(6, "CREATE DATABASE a");
    for (made, packets, refused) in [
        (true, own().to_vec(), false),
        (true, [own(), theirs()].concat(), true),
        // Made by an older build, which wrote nothing of it down.
        (false, [own(), theirs()].concat(), false),
    ] {
        let packets = [vec![started(0)], packets].concat();
        let source = Fake::new(move |text| match text {
            _ if text.contains("@@GLOBAL.server_id") => {
                let cells = ["9", "10.11.18-MariaDB-log"];
                Some(Reply::Row(cells.map(str::to_owned).to_vec()))
            }
            "dump" => Some(Reply::Events(packets.clone())),
            _ if text.starts_with("SET ") => None,
            _ => Some(Reply::Nothing),
        });
        let target = Fake::new(move |text| match text {
            "SELECT @@log_bin" | "SELECT @@server_id" => Some(cell("1")),
            "SELECT @@gtid_binlog_state" => Some(cell("0-1-5,0-2-4")),
            _ if text.starts_with("SELECT domain, seqno,") && made => {
                Some(Reply::Row(["0", "5", "0"].map(String::from).to_vec()))
            }
            text => serves(text),
        });
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let path = format!("dromon-made-{made}-{refused}-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let _ = std::fs::remove_file(&path);
        let running = Running::saying(settings, Log::file(&path).expect("writable"));
        if refused {
            let end = running.end();
            let says = matches!(&end, End::Fatal(why) if why.contains("0-1-6 comes next, and has the target's own"));
            assert!(says, "{end:?}");
        } else {
            let last = if made { "'0-1-5'" } else { "'0-1-6'" };
            running.until(|| target.said().iter().any(|text| text.contains(last)));
            running.told_to_end();
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        assert!(!text.contains("0-1-5 has the target's server_id"), "{text}");
        std::fs::remove_file(&path).expect("there");
    }
}

/// A target that counts on from a copy's gtid_slave_pos has written nothing by that, in the session that makes the tables there
/// and in the next one.
#[test]
fn a_copy_that_counts_on_has_written_nothing() {
    let packets = [vec![started(0)], statement(5, "CREATE DATABASE a").to_vec()].concat();
    let source = Fake::new(move |text| match text {
        _ if text.contains("@@GLOBAL.server_id") => {
            let cells = ["9", "10.11.18-MariaDB-log"];
            Some(Reply::Row(cells.map(str::to_owned).to_vec()))
        }
        "dump" => Some(Reply::Events(packets.clone())),
        _ if text.starts_with("SET ") => None,
        _ => Some(Reply::Nothing),
    });
    // Its newest own one, and the rows of what replicas made.
    let (newest, kept) = (AtomicUsize::new(4000), Mutex::new(Vec::new()));
    let target = Fake::new(move |text| {
        let own = || match newest.load(Ordering::Acquire) {
            4000 => String::new(),
            n => format!("0-1-{n}"),
        };
        match text {
            "SELECT @@log_bin" | "SELECT @@server_id" => Some(cell("1")),
            "SELECT @@gtid_binlog_state" | "SELECT @@last_gtid" => Some(cell(&own())),
            "SELECT @@GLOBAL.gtid_slave_pos" => Some(cell("0-1-4000")),
            _ if text.starts_with("SELECT @@server_id, ") => {
                let cells = ["1".to_owned(), own(), own(), "0-1-4000".to_owned()];
                let asked = text.split(", ").count();
                Some(Reply::Row(cells[..asked].to_vec()))
            }
            _ if text.starts_with("INSERT INTO dromon_replica.made") => {
                let (_, rows) = text.split_once("VALUES (").expect("rows");
                let (rows, _) = rows.split_once(") ON").expect("rows");
                let rows = rows.split("),(").map(|row| {
                    let cells = row.split(',').skip(1).map(str::to_owned);
                    cells.collect()
                });
                kept.lock().expect("nobody panics").extend(rows);
                None
            }
            _ if text.starts_with("SELECT domain, seqno,") => {
                Some(Reply::Rows(kept.lock().expect("nobody panics").clone()))
            }
            _ if text.starts_with("CREATE ") && !text.contains(".made ") => {
                newest.fetch_add(1, Ordering::AcqRel);
                None
            }
            text => serves(text),
        }
    });
    let mut settings = settings(&target, &[]);
    settings.source.address = source.account().address;
    for _ in 0..2 {
        let end = Running::of(settings.clone()).end();
        let says = matches!(&end, End::Fatal(why) if why.contains("0-1-5 comes next, and has the target's own"));
        assert!(says, "{end:?}");
    }
}

/// Nothing comes, and the target ends, or another one takes its place: nobody may take what is there for as new as before.
#[test]
fn a_target_that_goes_while_nothing_comes() {
    let source = sends(vec![started(0)]);
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let target = Fake::new(move |text| match is_gone.load(Ordering::Acquire) {
        // The connection ends.
        true => Some(Reply::Events(Vec::new())),
        false => serves(text),
    });
    let mut settings = settings(&target, &[]);
    settings.source.address = source.account().address;
    let running = Running::of(settings);
    running.until(|| {
        source
            .said()
            .iter()
            .any(|text| text.contains("slave_connect_state"))
    });
    gone.store(true, Ordering::Release);
    let end = running.end();
    assert!(matches!(end, End::Again(_)), "{end:?}");
}

/// Of two with one channel the older one ends, also if nothing is to be applied, and neither sees the other's connections.
#[test]
fn another_one_while_nothing_comes() {
    let source = sends(vec![started(0)]);
    let begun = Arc::new(AtomicBool::new(false));
    let has_begun = Arc::clone(&begun);
    let target = Fake::new(move |text| match text {
        _ if text.starts_with("SELECT epoch FROM") && has_begun.load(Ordering::Acquire) => {
            Some(cell("4"))
        }
        text => serves(text),
    });
    let mut settings = settings(&target, &[]);
    settings.source.address = source.account().address;
    let running = Running::of(settings);
    running.until(|| {
        let follows = |text: &String| text.contains("slave_connect_state");
        source.said().iter().any(follows)
    });
    begun.store(true, Ordering::Release);
    assert_eq!(running.end(), End::Fatal(crate::engine::ANOTHER.into()));
}

/// A node has another node's ALTER to apply: what is asked over a connection that waits for that is not answered. Who only
/// watches asks over none that does.
#[test]
fn a_node_that_lags_while_nothing_comes() {
    // A row that somebody has put back is no newer replica either.
    for epoch in ["3", "2"] {
        let source = sends(vec![started(0)]);
        let (lags, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (is_lagging, counted) = (Arc::clone(&lags), Arc::clone(&asked));
        let current = Mutex::new(true);
        let target = Fake::new(move |text| match text {
            _ if text.contains("'WSREP_ON'") => Some(cell("ON")),
            // The watcher's is the last connection of a session that asks anything.
            "SET SESSION wsrep_sync_wait=0" => {
                *current.lock().expect("nobody panics") = false;
                None
            }
            _ if text.starts_with("SELECT epoch FROM") && is_lagging.load(Ordering::Acquire) => {
                match *current.lock().expect("nobody panics") {
                    true => Some(Reply::Fail(1205)),
                    false => {
                        AtomicUsize::fetch_add(&counted, 1, Ordering::AcqRel);
                        Some(cell(epoch))
                    }
                }
            }
            text => serves(text),
        });
        let mut settings = settings(&target, &[]);
        settings.source.address = source.account().address;
        let running = Running::of(settings);
        running.until(|| {
            let follows = |text: &String| text.contains("slave_connect_state");
            source.said().iter().any(follows)
        });
        lags.store(true, Ordering::Release);
        running.until(|| asked.load(Ordering::Acquire) > 1);
        assert_eq!(running.told_to_end(), End::Told);
    }
}

/// Another process has made this channel, was refused, and takes its row back beside one that begins: that looks once more
/// whether a new channel may begin so.
#[test]
fn a_row_that_another_one_takes_back() {
    let gone = AtomicBool::new(false);
    let target = Fake::new(move |text| match text {
        "SELECT @@GLOBAL.gtid_slave_pos" => Some(cell("0-1-7")),
        _ if text.contains("epoch = epoch + 1") => {
            gone.store(true, Ordering::Release);
            Some(Reply::Done(0))
        }
        _ if text.starts_with("SELECT epoch FROM") && gone.load(Ordering::Acquire) => {
            Some(Reply::Nothing)
        }
        text => serves(text),
    });
    let (settings, progress) = (settings(&target, &[]), Arc::new(Progress::default()));
    let end = session(&settings, &Log::terminal(), &progress);
    let again = matches!(&end, End::Again(why) if why.contains("taken back the row"));
    assert!(again, "{end:?}");
    let end = session(&settings, &Log::terminal(), &progress);
    let refused = matches!(&end, End::Fatal(why) if why.contains("start is empty"));
    assert!(refused, "{end:?}");
}
