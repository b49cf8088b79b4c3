//! What replicas get: from every position exactly what they lack, as a stream a replica can follow.

mod common;

use std::sync::Arc;

use common::{append, format_event, gtid, transaction};
use dromon_binlog::{
    BinlogState, Checksum, Event, EventType, Format, GroupName, Grouper, Gtid, Payload, Position,
    Step,
};
use dromon_log::SimDevice;
use dromon_relay::serve::{Feed, FeedError};
use dromon_relay::store::{Cursor, Next, Place, Store, StoreOptions, View, Wanted};
use dromon_relay::wire::Frames;
use proptest::prelude::*;

type Groups = Vec<(Gtid, usize)>;

/// Groups of two domains, in files.
fn store(groups: &[(u32, usize, usize)]) -> (Store, Groups) {
    let options = StoreOptions {
        file_max: 1200,
        tail_max: 900,
        point_every: 300,
        ..StoreOptions::default()
    };
    let device = Arc::new(SimDevice::new(5));
    let (mut store, _) = Store::open(device, options, BinlogState::new()).expect("empty");
    store
        .begin_file(&format_event(Checksum::Crc32))
        .expect("a good disk");
    let mut model = Vec::new();
    let mut next = [0; 2];
    for (domain, events, size) in groups {
        if store.is_full() {
            store.rotate().expect("a good disk");
        }
        next[*domain as usize] += 1;
        let name = gtid(*domain, 1, next[*domain as usize]);
        append(
            &mut store,
            &transaction(name, *events, *size, Checksum::Crc32),
            name,
        )
        .expect("a good disk");
        model.push((name, events + 2));
    }
    store.flush().expect("a good disk");
    (store, model)
}

/// Feeds until there is nothing more.
fn run(view: &Arc<View>, feed: &mut Feed, from: Place) -> Result<Vec<u8>, FeedError> {
    let mut cursor = Cursor::new(Arc::clone(view), from);
    loop {
        if feed.is_over() {
            return Ok(feed.out().to_vec());
        }
        match cursor.look().expect("readable") {
            Next::Event(len) => {
                feed.event(cursor.event(len), |_| None)?;
                cursor.pass(len);
            }
            Next::File(number) => {
                feed.next_file(&view.name(number))?;
                cursor.turn(Place {
                    file: number,
                    at: 4,
                });
            }
            Next::End => return Ok(feed.out().to_vec()),
        }
    }
}

/// What a replica sees: groups, names of files, kinds of events.
struct Seen {
    groups: Groups,
    files: Vec<String>,
    kinds: Vec<EventType>,
}

fn seen(out: &[u8], checksum: Checksum) -> Seen {
    let mut frames = Frames::new(1 << 20);
    frames.set_sequence(1);
    frames.feed(out);
    let mut grouper = Grouper::of_connection();
    let mut all = Seen {
        groups: Vec::new(),
        files: Vec::new(),
        kinds: Vec::new(),
    };
    while let Some(packet) = frames.packet().expect("in order") {
        let (mark, raw) = packet.split_first().expect("a mark");
        assert_eq!(*mark, 0);
        let got = grouper.event(raw).expect("a stream that can be followed");
        assert_eq!(got.abandoned, None);
        let event: Event<'_> = got.event;
        if event.kind() != EventType::FORMAT_DESCRIPTION {
            assert_eq!(event.checksum(), checksum, "{}", event.kind());
        }
        all.kinds.push(event.kind());
        let format = grouper.format().cloned().unwrap_or_else(Format::unknown);
        if let Ok(Payload::Rotate(rotate)) = event.decode(&format) {
            all.files
                .push(String::from_utf8_lossy(rotate.file).into_owned());
        }
        match got.step {
            Step::Begin(group) => match group.name {
                GroupName::MariaDb(gtid) => all.groups.push((gtid, 1)),
                other => panic!("{other:?}"),
            },
            Step::Within | Step::End(..) => all.groups.last_mut().expect("it began").1 += 1,
            _ => {}
        }
    }
    assert!(frames.is_empty() && grouper.open().is_none());
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// A replica has the first so many groups of each domain, independently.
    #[test]
    fn what_it_lacks(
        groups in proptest::collection::vec((0u32..2, 0usize..4, 0usize..150), 1..25),
        have in (0usize..25, 0usize..25), crc: bool, annotate: bool
    ) {
        let (store, model) = store(&groups);
        let view = store.view();
        let mut position = Position::new();
        let mut lacks = Vec::new();
        let mut count = [0; 2];
        for (name, events) in &model {
            let n = &mut count[name.domain as usize];
            *n += 1;
            if *n <= if name.domain == 0 { have.0 } else { have.1 } {
                position.set(*name);
            } else {
                lacks.push((*name, if annotate { *events } else { 2 }));
            }
        }
        let checksum = if crc { Checksum::Crc32 } else { Checksum::Off };
        let found = view.find(&position).expect("readable").expect("nothing was purged");
        let begin = found.begin.expect("there is a file");
        let mut feed = Feed::new(9, checksum, annotate, begin.wanted, 1);
        let head = view.head(begin.place.file).expect("readable");
        let name = view.name(begin.place.file);
        feed.begin(&name, begin.place.at, &head.format_event, Some(&begin.state.mariadb)).expect("it fits");
        let out = run(&view, &mut feed, begin.place).expect("all there");
        let got = seen(&out, checksum);
        prop_assert_eq!(got.groups, lacks);
        let beginning = [EventType::ROTATE, EventType::FORMAT_DESCRIPTION, EventType::GTID_LIST];
        prop_assert_eq!(&got.kinds[..3], &beginning[..]);
        prop_assert_eq!(&got.files[0], &name);
        let end = view.end();
        prop_assert_eq!(got.files.last(), Some(&view.name(end.file)));
        feed.heartbeat("x", 5, 0);
    }

    /// Up to the first so many groups of a domain, or of both, and behind what it has.
    #[test]
    fn up_to_where_it_wants_to_stop(
        groups in proptest::collection::vec((0u32..2, 0usize..3, 0usize..100), 1..25),
        have in (0usize..20, 0usize..20), stop in (1u64..25, proptest::option::of(1u64..25))
    ) {
        let (store, model) = store(&groups);
        let view = store.view();
        let mut position = Position::new();
        let mut stops = Position::new();
        stops.set(gtid(0, 1, stop.0));
        if let Some(second) = stop.1 {
            stops.set(gtid(1, 1, second));
        }
        let mut wanted = Vec::new();
        let (mut count, mut last) = ([0; 2], [0; 2]);
        for (name, events) in &model {
            let d = name.domain as usize;
            count[d] += 1;
            last[d] = name.seqno;
            let up_to = stops.get(name.domain).map_or(0, |stop| stop.seqno);
            if count[d] <= if d == 0 { have.0 } else { have.1 } {
                position.set(*name);
            } else if name.seqno <= up_to {
                wanted.push((*name, *events));
            }
        }
        let found = view.find(&position).expect("readable").expect("nothing was purged");
        let begin = found.begin.expect("there is a file");
        let mut feed = Feed::new(9, Checksum::Crc32, true, begin.wanted, 1);
        let left = view.not_there(&stops, &position, begin.place, Some(&begin.state.mariadb));
        feed.has(position);
        feed.until(left);
        let head = view.head(begin.place.file).expect("readable");
        let name = view.name(begin.place.file);
        feed.begin(&name, begin.place.at, &head.format_event, Some(&begin.state.mariadb)).expect("it fits");
        let out = run(&view, &mut feed, begin.place).expect("all there");
        let got = seen(&out, Checksum::Crc32);
        prop_assert_eq!(got.groups, wanted);
        // It is told when all are there, and only then.
        let there = stops.iter().all(|stop| last[stop.domain as usize] >= stop.seqno);
        prop_assert_eq!(feed.is_over(), there);
        let lists = got.kinds.iter().filter(|kind| **kind == EventType::GTID_LIST).count();
        let files = got.files.len();
        prop_assert!(lists <= files + 1);
        if there {
            prop_assert_eq!(got.kinds.last(), Some(&EventType::GTID_LIST));
        }
    }

    /// By file and byte, from each event on.
    #[test]
    fn from_a_byte(groups in proptest::collection::vec((0u32..1, 0usize..2, 0usize..50), 1..8)) {
        let (store, model) = store(&groups);
        let view = store.view();
        let first = view.oldest().expect("there is one");
        let mut feed = Feed::new(9, Checksum::Crc32, true, Wanted::all(), 1);
        feed.begin_file(&view.name(first));
        let out = run(&view, &mut feed, Place { file: first, at: 4 }).expect("all there");
        prop_assert_eq!(seen(&out, Checksum::Crc32).groups, model);
    }
}

/// Without strict mode numbers of several servers may be out of order: another server's say nothing of
/// whether the replica is where it is to stop.
#[test]
fn up_to_a_number_that_is_out_of_order() {
    // What the relay begins behind, what it has, what the replica has, until, what it gets, whether it is told.
    let log = "0-1-6 0-1-101 0-2-100 0-1-102 0-2-103";
    let cases = [
        ("", log, "0-1-6", "0-2-100", "0-1-101 0-2-100", true),
        ("", log, "0-1-101", "0-2-100", "0-2-100", true),
        ("", log, "0-2-100", "0-2-100", "", true),
        ("", log, "0-1-102", "0-2-100", "", true),
        ("", log, "0-2-103", "0-2-100", "", true),
        ("", log, "0-2-100", "0-1-101", "", true),
        ("", log, "0-1-6", "0-1-101", "0-1-101", true),
        // It is missing, and the server's own go on.
        ("", log, "0-1-6", "0-2-99", "0-1-101", true),
        // It has not come yet.
        ("", "0-1-6 0-1-101", "0-1-6", "0-2-100", "0-1-101", false),
        ("", "0-1-6 0-1-101", "0-1-101", "0-2-100", "", false),
        // The relay began behind it, or what it began behind is out of order.
        ("0-1-101", "0-1-102", "0-1-102", "0-2-100", "", true),
        ("0-1-101", "0-2-100", "0-1-101", "0-2-100", "0-2-100", true),
    ];
    let parsed = |text: &str| -> Vec<Gtid> {
        let parts = text.split_whitespace();
        parts.map(|gtid| gtid.parse().expect("a GTID")).collect()
    };
    for (before, log, has, until, gets, told) in cases {
        // With a file for each group, and all in one.
        for file_max in [1, 1 << 20] {
            let options = StoreOptions {
                file_max,
                ..StoreOptions::default()
            };
            let before = BinlogState::from_gtids(parsed(before));
            let device = Arc::new(SimDevice::new(5));
            let (mut store, _) = Store::open(device, options, before).expect("empty");
            let format = format_event(Checksum::Crc32);
            store.begin_file(&format).expect("a good disk");
            for name in parsed(log) {
                if store.is_full() {
                    store.rotate().expect("a good disk");
                }
                let group = transaction(name, 0, 0, Checksum::Crc32);
                append(&mut store, &group, name).expect("a good disk");
            }
            store.flush().expect("a good disk");
            let view = store.view();
            let (has, until) = (has.parse().expect("one"), until.parse().expect("one"));
            let found = view.find(&has).expect("readable").expect("all there");
            let begin = found.begin.expect("there is a file");
            let state = Some(&begin.state.mariadb);
            let left = view.not_there(&until, &has, begin.place, state);
            let what = format!("{log}: {has} until {until}, {left} left");
            let mut feed = Feed::new(9, Checksum::Crc32, true, begin.wanted, 1);
            feed.has(has);
            feed.until(left);
            let head = view.head(begin.place.file).expect("readable");
            feed.begin("f", begin.place.at, &head.format_event, state)
                .expect("it fits");
            let out = run(&view, &mut feed, begin.place).expect("all there");
            let got = seen(&out, Checksum::Crc32).groups.into_iter();
            let got: Vec<Gtid> = got.map(|(gtid, _)| gtid).collect();
            assert_eq!(got, parsed(gets), "{what}");
            assert_eq!(feed.is_over(), told, "{what}");
        }
    }
}

/// The replica has what comes only later; or something that never comes.
#[test]
fn a_relay_behind_its_replica() {
    let (mut store, model) = store(&[(0, 1, 10), (0, 1, 10)]);
    let view = store.view();
    for (has, fits) in [("0-1-3", true), ("0-9-5", false)] {
        let position = has.parse().expect("a position");
        let found = view.find(&position).expect("readable").expect("it waits");
        let begin = found.begin.expect("there is a file");
        let mut feed = Feed::new(9, Checksum::Crc32, true, begin.wanted, 1);
        let head = view.head(begin.place.file).expect("readable");
        feed.begin(
            "f",
            begin.place.at,
            &head.format_event,
            Some(&begin.state.mariadb),
        )
        .expect("it fits");
        let out = run(&view, &mut feed, begin.place).expect("nothing against it yet");
        assert!(seen(&out, Checksum::Crc32).groups.is_empty());
        let at = view.end();
        for seqno in if fits { 3..5 } else { 5..7 } {
            let name = gtid(0, 1, seqno);
            append(&mut store, &transaction(name, 0, 0, Checksum::Crc32), name)
                .expect("a good disk");
        }
        store.flush().expect("a good disk");
        let result = run(&view, &mut feed, at);
        match (fits, result) {
            (true, Ok(out)) => assert_eq!(seen(&out, Checksum::Crc32).groups, [(gtid(0, 1, 4), 2)]),
            (false, Err(FeedError::Refused(refused))) => {
                assert!(
                    refused.to_string().contains("The replica has 0-9-5"),
                    "{refused}"
                );
            }
            (_, other) => panic!("{has}: {other:?}"),
        }
    }
    assert_eq!(model.len(), 2);
}

/// The events are of second 1000. What the replica has in a domain that is not here is awaited, but
/// not by groups that were made after it had come.
#[test]
fn a_domain_that_begins_later() {
    for (came, fits) in [(999, false), (1000, true)] {
        let (mut store, _) = store(&[(0, 1, 10)]);
        let view = store.view();
        let position = "0-1-1,1-1-9".parse().expect("a position");
        let found = view.find(&position).expect("readable").expect("it waits");
        let begin = found.begin.expect("there is a file");
        let mut feed = Feed::new(9, Checksum::Crc32, true, begin.wanted, 1);
        feed.came(came);
        feed.now(1000);
        let head = view.head(begin.place.file).expect("readable");
        feed.begin(
            "f",
            begin.place.at,
            &head.format_event,
            Some(&begin.state.mariadb),
        )
        .expect("it fits");
        let name = gtid(1, 1, 1);
        append(&mut store, &transaction(name, 0, 0, Checksum::Crc32), name).expect("a good disk");
        store.flush().expect("a good disk");
        match (fits, run(&view, &mut feed, begin.place)) {
            (true, Ok(out)) => assert!(seen(&out, Checksum::Crc32).groups.is_empty()),
            (false, Err(FeedError::Refused(refused))) => {
                assert!(refused.to_string().contains("has 1-1-9"), "{refused}");
            }
            (_, other) => panic!("{came}: {other:?}"),
        }
    }
}

/// A session of the primary may say any time (SET TIMESTAMP): one that has not come yet is no proof
/// that a group was made after the replica came, which is merely ahead.
#[test]
fn a_group_that_says_tomorrow() {
    const NOW: u32 = 1_000_000;
    for (later, fits) in [(86400, true), (0, false)] {
        let (mut store, _) = store(&[(0, 1, 10)]);
        let view = store.view();
        let position = "0-1-6".parse().expect("a position");
        let found = view.find(&position).expect("readable").expect("it waits");
        let begin = found.begin.expect("there is a file");
        let mut feed = Feed::new(9, Checksum::Crc32, true, begin.wanted, 1);
        feed.came(NOW - 100);
        feed.now(NOW);
        let head = view.head(begin.place.file).expect("readable");
        let state = Some(&begin.state.mariadb);
        feed.begin("f", begin.place.at, &head.format_event, state)
            .expect("it fits");
        for seqno in 2..=7 {
            let name = gtid(0, 1, seqno);
            let time = NOW - 200 + if seqno == 3 { 200 + later } else { 0 };
            let group = common::made(transaction(name, 0, 0, Checksum::Crc32), time);
            append(&mut store, &group, name).expect("a good disk");
        }
        store.flush().expect("a good disk");
        match (fits, run(&view, &mut feed, begin.place)) {
            (true, Ok(out)) => {
                assert_eq!(seen(&out, Checksum::Crc32).groups, [(gtid(0, 1, 7), 2)]);
            }
            // This one says that it was made just now.
            (false, Err(FeedError::Refused(refused))) => {
                assert!(refused.to_string().contains("has 0-1-6"), "{refused}");
            }
            (_, other) => panic!("{later}: {other:?}"),
        }
    }
}

/// Where a replica believes to be: it stops at a heartbeat that says another file.
#[test]
fn a_heartbeat_behind_the_name_of_the_next_file() {
    let (mut store, _) = store(&[(0, 1, 10)]);
    store.rotate().expect("a good disk");
    let view = store.view();
    let mut feed = Feed::new(9, Checksum::Crc32, true, Wanted::all(), 1);
    feed.begin_file("relay-bin.000001");
    let mut cursor = Cursor::new(Arc::clone(&view), Place { file: 1, at: 4 });
    while let Next::Event(len) = cursor.look().expect("readable") {
        feed.event(cursor.event(len), |_| None).expect("all there");
        cursor.pass(len);
    }
    // The next file is not seen yet.
    feed.heartbeat("relay-bin.000001", cursor.place().at, 0);
    assert_eq!(
        last_heartbeat(feed.out()),
        ("relay-bin.000002".to_owned(), 4)
    );
    feed.next_file("relay-bin.000002").expect("it has an end");
    feed.heartbeat("relay-bin.000002", 99, 0);
    assert_eq!(
        last_heartbeat(feed.out()),
        ("relay-bin.000002".to_owned(), 99)
    );
}

/// A replica that is beyond 4 GiB in a file stops at a heartbeat that says less.
#[test]
fn a_heartbeat_beyond_4_gib() {
    let (file, at) = ("relay-bin.000001", (5 << 30) + 7);
    let mut feed = Feed::new(9, Checksum::Crc32, true, Wanted::all(), 1);
    feed.heartbeat(file, at, 0);
    assert_eq!(last_heartbeat(feed.out()), (file.to_owned(), at));
    let mut feed = Feed::new(9, Checksum::Crc32, true, Wanted::all(), 1);
    feed.is_mysql();
    feed.heartbeat(file, at, 0);
    assert!(feed.out().is_empty());
    feed.heartbeat(file, (1 << 32) - 1, 0);
    assert_eq!(last_heartbeat(feed.out()), (file.to_owned(), (1 << 32) - 1));
}

/// Of events with checksums.
fn last_heartbeat(out: &[u8]) -> (String, u64) {
    let mut frames = Frames::new(1 << 20);
    frames.any_sequence();
    frames.feed(out);
    let mut last = None;
    while let Some(packet) = frames.packet().expect("whole") {
        let event = Event::parse(&packet[1..], Checksum::Crc32).expect("an event");
        if let Ok(Payload::Heartbeat(beat)) = event.decode(&Format::unknown()) {
            let name = String::from_utf8_lossy(beat.file).into_owned();
            last = Some((name, beat.position));
        }
    }
    last.expect("there is one")
}

/// A file that was cut at the end of a group is no file that was ended.
#[test]
fn a_file_without_an_end() {
    let (mut store, _) = store(&[(0, 1, 10)]);
    store.rotate().expect("a good disk");
    let view = store.view();
    let mut feed = Feed::new(9, Checksum::Crc32, true, Wanted::all(), 1);
    feed.begin_file("f");
    assert_eq!(feed.next_file("g"), Err(FeedError::NoEnd));
    run(&view, &mut feed, Place { file: 1, at: 4 }).expect("it has an end");
}
