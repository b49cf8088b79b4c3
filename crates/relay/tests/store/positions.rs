//! Who is served from which position, and what others are told.

use std::sync::Arc;

use dromon_binlog::BinlogState;
use dromon_log::SimDevice;
use dromon_relay::store::Store;

use crate::common::{append, format_event, gtid, transaction};
use crate::{CRC, Model, open, options};

/// Of a server that is not in the oldest list: it may have been there.
#[test]
fn before_the_beginning() {
    let start: BinlogState = "0-1-500".parse().expect("a state");
    let device = Arc::new(SimDevice::new(3));
    let (mut store, _) = Store::open(device, options(), start).expect("empty");
    store.begin_file(&format_event(CRC)).expect("no faults");
    let refused = |text: &str| {
        let position = text.parse().expect("a position");
        let found = store.view().find(&position).expect("readable");
        found.expect_err("it is not there").to_string()
    };
    let said = refused("0-3-400");
    assert!(said.contains("nothing before 0-1-500 any more"), "{said}");
    let said = refused("0-3-500");
    assert!(said.contains("transactions of its own"), "{said}");
}

/// A server that the relay's beginning does not name is the primary again later. What a replica has of it, from
/// before that beginning, is not a transaction of the replica's own: the relay says where it begins.
#[test]
fn before_the_beginning_and_back() {
    let start: BinlogState = "0-2-100,5-1-1".parse().expect("a state");
    let device = Arc::new(SimDevice::new(3));
    let (mut store, _) = Store::open(device, options(), start).expect("empty");
    let find = |store: &Store, text: &str| {
        let position = text.parse().expect("a position");
        store.view().find(&position).expect("readable")
    };
    let begins = |error: &str| error.contains("nothing before 0-2-100,5-1-1 any more");
    // Before anything has come.
    for old in ["0-1-90,5-1-1", "0-2-90,5-1-1"] {
        let said = find(&store, old).expect_err("older").to_string();
        assert!(begins(&said), "{said}");
    }
    for fits in ["0-2-100,5-1-1", "0-2-101,5-1-1", "0-1-101,5-1-1"] {
        let found = find(&store, fits).expect("not older");
        assert_eq!(found.begin, None, "there is no file yet");
    }
    store.begin_file(&format_event(CRC)).expect("no faults");
    let come = |store: &mut Store, all: &[(u32, u64)]| {
        for (server, seqno) in all {
            let name = gtid(0, *server, *seqno);
            append(store, &transaction(name, 0, 0, CRC), name).expect("no faults");
        }
        store.flush().expect("no faults");
    };
    come(&mut store, &[(2, 101), (2, 102)]);
    let said = find(&store, "0-1-90,5-1-1").expect_err("older").to_string();
    assert!(begins(&said), "{said}");
    // What is sent to one that has this, of what came later.
    let sent = |store: &mut Store, has: &str, later: &[(u32, u64)]| {
        let begin = find(store, has).expect("perhaps here").begin;
        let begin = begin.expect("a file");
        let (before, mut wanted) = (begin.state.mariadb, begin.wanted);
        let mut got = Vec::new();
        for (server, seqno) in [(2, 101), (2, 102)].iter().chain(later) {
            if before.get(0, *server).is_some_and(|had| had >= *seqno) {
                continue;
            }
            match wanted.takes(gtid(0, *server, *seqno)) {
                Ok(true) => got.push(*seqno),
                Ok(false) => {}
                Err(refused) => return Err((got, refused.to_string())),
            }
        }
        Ok(got)
    };
    let later = [(1, 160), (2, 161), (1, 162)];
    come(&mut store, &later);
    let (got, said) = sent(&mut store, "0-1-90,5-1-1", &later).expect_err("older");
    assert!(got.is_empty() && begins(&said), "{got:?} {said}");
    // One that has something of its own is told that.
    let (got, said) = sent(&mut store, "0-1-161,5-1-1", &later).expect_err("a fork");
    let own = |said: &str| said.contains("transactions of its own");
    assert!(got.is_empty() && own(&said), "{got:?} {said}");
    assert_eq!(
        sent(&mut store, "0-1-160,5-1-1", &later),
        Ok(vec![161, 162])
    );

    // Without gtid_strict_mode what has an old number may have come later.
    let start: BinlogState = "0-2-100,5-1-1".parse().expect("a state");
    let device = Arc::new(SimDevice::new(4));
    let (mut store, _) = Store::open(device, options(), start).expect("empty");
    store.begin_file(&format_event(CRC)).expect("no faults");
    come(&mut store, &[(2, 101), (2, 102)]);
    let later = [(1, 80), (1, 90), (1, 160)];
    come(&mut store, &later);
    let all = sent(&mut store, "0-1-90,5-1-1", &later);
    assert_eq!(all, Ok(vec![160]));
    let (got, said) = sent(&mut store, "0-1-91,5-1-1", &later).expect_err("a fork");
    assert!(got.is_empty() && own(&said), "{got:?} {said}");
}

/// The primary has dropped a domain, and a copy of its data has no position in that any more.
#[test]
fn a_domain_that_was_dropped() {
    let start: BinlogState = "0-1-500,5-1-10,7-1-3".parse().expect("a state");
    let device = Arc::new(SimDevice::new(3));
    let (mut store, _) = Store::open(device, options(), start).expect("empty");
    store.begin_file(&format_event(CRC)).expect("no faults");
    for seqno in 501..=905 {
        let name = gtid(0, 1, seqno);
        append(&mut store, &transaction(name, 0, 0, CRC), name).expect("no faults");
    }
    store.flush().expect("no faults");
    let find = |text: &str| {
        let position = text.parse().expect("a position");
        store.view().find(&position).expect("readable")
    };
    let refused = |text: &str| find(text).expect_err("it is not there").to_string();
    let said = refused("0-1-905,7-1-3");
    assert!(said.contains("the relay has had 5-1-10."), "{said}");
    let (_, all) = said.split_once("gtid_slave_pos='").expect("what helps");
    let (all, _) = all.split_once('\'').expect("a text");
    assert_eq!(all, "0-1-905,5-1-10,7-1-3");
    assert!(find(all).is_ok(), "with that it is served");
    // Who lacks more needs a copy.
    for lacks_more in ["0-1-400", "0-1-905,5-1-9", ""] {
        let said = refused(lacks_more);
        assert!(!said.contains("gtid_slave_pos"), "{said}");
        assert!(said.contains("It needs a new copy of the data"), "{said}");
    }
}

#[test]
fn strangers_and_replicas_ahead() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for _ in 0..5 {
        model.group(&mut store, 1, 0);
    }
    store.flush().expect("no faults");
    let find = |text: &str| {
        store
            .view()
            .find(&text.parse().expect("a position"))
            .expect("readable")
    };
    let refused = find("0-9-3").expect_err("a fork").to_string();
    assert!(refused.contains("The replica has 0-9-3"), "{refused}");
    // Ahead: waited for.
    let mut wanted = find("0-1-7").expect("ahead").begin.expect("a file").wanted;
    assert_eq!(wanted.ahead().collect::<Vec<_>>(), [gtid(0, 1, 7)]);
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 7)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 8)), Ok(true));
    // Ahead on another history.
    let mut wanted = find("0-2-7").expect("ahead").begin.expect("a file").wanted;
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(false));
    assert!(wanted.takes(gtid(0, 1, 7)).is_err());
    // A domain that is not here concerns others, until it begins: by then the relay had all that the
    // primary had when the replica came, or its first group was made later.
    let mut wanted = find("0-1-5,7-1-1")
        .expect("fits")
        .begin
        .expect("a file")
        .wanted;
    assert_eq!(wanted.takes(gtid(0, 1, 5)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(true));
    for later in [false, true] {
        let mut wanted = find("0-1-5,7-1-9000")
            .expect("fits")
            .begin
            .expect("a file")
            .wanted;
        match later {
            false => wanted.complete(store.state()).expect("no group of it"),
            true => wanted.passed(),
        }
        assert_eq!(wanted.ahead().count(), 0);
        assert_eq!(wanted.takes(gtid(0, 1, 5)), Ok(false));
        assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(true));
        let refused = wanted.takes(gtid(7, 1, 1)).expect_err("left out for long");
        assert!(refused.to_string().contains("7-1-9000"), "{refused}");
    }
    // What was there in time is found, though it was awaited.
    let mut wanted = find("0-1-7").expect("ahead").begin.expect("a file").wanted;
    assert!(wanted.clone().complete(store.state()).is_err(), "too late");
    let state = "0-1-7".parse().expect("a state");
    wanted.complete(&state).expect("it has come");
    assert_eq!(wanted.takes(gtid(0, 1, 5)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 7)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 8)), Ok(true));
}

/// A replica with several ways to one history has what another one brought: here it comes as late as the primary gets it.
#[test]
fn ahead_by_another_way() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for _ in 0..5 {
        model.group(&mut store, 1, 0);
    }
    store.flush().expect("no faults");
    let ahead = |text: &str| {
        let found = store.view().find(&text.parse().expect("a position"));
        let begin = found.expect("readable").expect("ahead").begin;
        let mut wanted = begin.expect("a file").wanted;
        wanted.has_other_ways();
        wanted
    };
    // Long after it came, and whatever was made since.
    let mut wanted = ahead("0-1-7,7-1-1");
    for _ in 0..2 {
        wanted.complete(store.state()).expect("it may come");
        wanted.passed();
        assert_eq!(wanted.ahead().count(), 2);
    }
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 7)), Ok(false));
    assert_eq!(wanted.takes(gtid(0, 1, 8)), Ok(true));
    assert_eq!(wanted.takes(gtid(7, 1, 1)), Ok(false));
    assert_eq!(wanted.takes(gtid(7, 1, 2)), Ok(true));
    // What the domain has passed without it never comes.
    let mut wanted = ahead("0-2-7");
    assert_eq!(wanted.takes(gtid(0, 1, 6)), Ok(false));
    let state = "0-1-7".parse().expect("a state");
    let refused = wanted.complete(&state).expect_err("a fork").to_string();
    assert!(refused.contains("The replica has 0-2-7"), "{refused}");
    assert!(wanted.takes(gtid(0, 1, 7)).is_err());
}
