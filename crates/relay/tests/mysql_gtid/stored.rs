//! Whatever breaks, and whoever becomes the primary: each group is stored once, in order, and every
//! replica gets exactly what it lacks.

use std::sync::Arc;

use dromon_binlog::{GtidSet, MySqlGtid, Payload};
use dromon_log::SimDevice;
use dromon_relay::pull::{Ingest, IngestError, PullError, take};
use dromon_relay::serve::{Feed, FeedError};
use dromon_relay::store::{
    Cursor, Kind, Limits, Next, Place, Refused, Store, StoreError, StoreOptions, View,
};
use dromon_relay::wire::Frames;
use proptest::prelude::*;

use crate::primary::{A, B, CRC, Got, Name, Primary, set};

fn options() -> StoreOptions {
    StoreOptions {
        prefix: "bin".into(),
        point_every: 300,
        tail_max: 1000,
        file_max: 2000,
        kind: Kind::MySql,
        ..StoreOptions::default()
    }
}

fn open_behind(device: &SimDevice, start: GtidSet) -> Result<Store, StoreError> {
    Store::open(Arc::new(device.clone()), options(), start).map(|(store, _)| store)
}

fn open(device: &SimDevice) -> Result<Store, StoreError> {
    open_behind(device, GtidSet::new())
}

/// All that is fed from a place on, as events.
fn fed(view: &Arc<View>, feed: &mut Feed, from: Place) -> Result<Vec<Vec<u8>>, FeedError> {
    let mut cursor = Cursor::new(Arc::clone(view), from);
    loop {
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
            Next::End => break,
        }
    }
    let mut frames = Frames::new(1 << 20);
    frames.feed(feed.out());
    let mut out = Vec::new();
    while let Some(packet) = frames.packet().expect("in order") {
        out.push(packet[1..].to_vec());
    }
    Ok(out)
}

/// What stands in the files, from the oldest on; each file alone.
fn files(view: &Arc<View>) -> Vec<Got> {
    let end = view.end().file + 1;
    let numbers = view.oldest().unwrap_or(end)..end;
    let of_file = |number| {
        let mut cursor = Cursor::new(
            Arc::clone(view),
            Place {
                file: number,
                at: 4,
            },
        );
        let mut events = Vec::new();
        while let Next::Event(len) = cursor.look().expect("readable") {
            events.push(cursor.event(len).to_vec());
            cursor.pass(len);
        }
        Got::of(&events)
    };
    numbers.map(of_file).collect()
}

/// A replica that has this set, begun as the server begins it: the feed, the place, and what it gets
/// at once.
fn replica(view: &Arc<View>, has: &GtidSet) -> Result<(Feed, Place, Got), Refused> {
    let begin = view.find_set(has).expect("readable")?.begin;
    let begin = begin.expect("there are files");
    let mut feed = Feed::new(9, CRC, true, begin.wanted, 0);
    let head = view.head(begin.place.file).expect("readable");
    let name = view.name(begin.place.file);
    feed.begin(&name, begin.place.at, &head.format_event, None)
        .expect("it fits");
    let events = fed(view, &mut feed, begin.place).expect("it fits");
    Ok((feed, begin.place, Got::of(&events)))
}

/// The first primary has the first so many groups, the second one all of them, in other files.
#[derive(Clone, Debug)]
struct Histories {
    first: Primary,
    second: Primary,
    names: Vec<Name>,
}

fn histories() -> impl Strategy<Value = Histories> {
    let one = (0usize..120, 0u8..5, 0u8..5);
    (proptest::collection::vec(one, 1..40), 0usize..40).prop_map(|(groups, by_first)| {
        let (mut first, mut second) = (Primary::new(1), Primary::new(2));
        let mut names = Vec::new();
        for (n, (size, cut_first, cut_second)) in groups.into_iter().enumerate() {
            let name = match n < by_first {
                true => (A, n as u64 + 1),
                false => (B, (n - by_first) as u64 + 1),
            };
            if n < by_first {
                if cut_first == 0 {
                    first.cut();
                }
                first.does(name, size);
            }
            if cut_second == 0 {
                second.cut();
            }
            second.does(name, size);
            names.push(name);
        }
        Histories {
            first,
            second,
            names,
        }
    })
}

fn breaks() -> impl Strategy<Value = Vec<(bool, usize, usize, u8, u64)>> {
    let one = (any::<bool>(), 0usize..80, 1usize..8, 0u8..5, any::<u64>());
    proptest::collection::vec(one, 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// Connections break after any event and go on at the one or the other primary; the relay is killed
    /// or loses power at any moment.
    #[test]
    fn each_group_once(
        histories in histories(), breaks in breaks(),
        replicas in proptest::collection::vec((any::<u64>(), 0usize..40), 1..6)
    ) {
        let Histories { first, second, names } = histories;
        let device = SimDevice::new(7);
        let mut store = open(&device).expect("empty");
        let mut ingest = Ingest::of_mysql();
        let mut flushed = GtidSet::new();
        let last = (true, usize::MAX, 3, 0, 0);
        for (by_second, after, every, how, seed) in breaks.into_iter().chain([last]) {
            let can = store.executed().is_subset(first.executed());
            let primary = if by_second || !can { &second } else { &first };
            for (n, raw) in primary.send(store.executed()).iter().take(after).enumerate() {
                take(&mut ingest, &mut store, raw).expect("a good primary and disk");
                if n % every == 0 {
                    store.flush().expect("a good disk");
                    flushed = store.executed().clone();
                }
            }
            match how {
                0..=2 => {
                    ingest.interrupt();
                    store.abandon().expect("a good disk");
                    store.flush().expect("a good disk");
                }
                how => {
                    drop(store);
                    match how {
                        3 => device.kill(),
                        _ => device.crash(seed),
                    }
                    store = open(&device).expect("mended");
                    ingest = Ingest::of_mysql();
                }
            }
            prop_assert!(!store.in_group());
            prop_assert!(flushed.is_subset(store.executed()), "what was flushed is there");
        }
        let view = store.view();
        let stored = files(&view);
        let all: Vec<Name> = stored.iter().flat_map(|f| f.names.clone()).collect();
        prop_assert_eq!(&all, &names);
        prop_assert_eq!(store.executed(), second.executed());
        // Each file says what came before, and has groups of one file of one primary: their logical
        // clocks are of one count.
        let mut before = 0;
        for file in &stored {
            prop_assert_eq!(&file.previous, &[(0, set(&names[..before]))]);
            prop_assert!(file.tags.windows(2).all(|w| w[0] == w[1]), "{:?}", file.tags);
            before += file.names.len();
        }
        // After a start it is all the same: files are not read through before that is needed.
        drop(store);
        let reopened = open(&device).expect("as it was");
        for view in [view, reopened.view()] {
            prop_assert_eq!(view.executed(), set(&names));
            prop_assert!(view.purged().is_empty());
            for (mask, prefix) in &replicas {
                let is_there = |n: usize| n < *prefix || n < 64 && mask >> n & 1 == 1;
                let has = |n: &usize| is_there(*n);
                let mut has: Vec<Name> = (0..names.len()).filter(has).map(|n| names[n]).collect();
                let lacks: Vec<Name> = names.iter().copied().filter(|g| !has.contains(g)).collect();
                // Of its own, of which nobody else has anything.
                has.push(([0xcc; 16], 3));
                let has = set(&has);
                let (_, place, got) = replica(&view, &has).expect("nothing is purged");
                prop_assert_eq!(&got.names, &lacks);
                for (groups, previous) in &got.previous {
                    // Those of the file, of which the replica lacks what it was given before.
                    let given = set(&lacks[..*groups]);
                    prop_assert!(previous.minus(&has).is_subset(&given));
                    prop_assert!(stored.iter().any(|f| &f.previous[0].1 == previous));
                }
                let mut before = Vec::new();
                let mut best = 0;
                for (n, file) in stored.iter().enumerate() {
                    if set(&before).is_subset(&has) {
                        best = n as u64 + 1;
                    }
                    before.extend(file.names.iter().copied());
                }
                prop_assert_eq!(place.file, best, "the last file that it can begin with");
                prop_assert!(got.started == 0 || got.files.len() > 1, "of the first file nobody says that the primary was started");
            }
        }
    }

    /// What was purged is not missing for those who have it, and named to the others.
    #[test]
    fn purged(histories in histories(), size in 0u64..6000, prefix in 0usize..40) {
        let Histories { second, names, .. } = histories;
        let start = set(&[(A, 1000), (A, 1001)]);
        let mut store = open_behind(&SimDevice::new(7), start.clone()).expect("empty");
        prop_assert_eq!(store.view().purged(), start.clone());
        let mut ingest = Ingest::of_mysql();
        for raw in second.send(&GtidSet::new()) {
            take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
        }
        store.flush().expect("a good disk");
        let view = store.view();
        let limits = Limits { size: Some(size), age: None, size_hard: None };
        let gone = view.purge(limits, None, 0).gone.len();
        let left: usize = files(&view).iter().map(|f| f.names.len()).sum();
        let mut purged = set(&names[..names.len() - left]);
        purged.unite(&start);
        prop_assert_eq!(view.purged(), purged.clone());
        let mut has = set(&names[..prefix.min(names.len())]);
        has.unite(&start);
        match replica(&view, &has) {
            Ok((_, _, got)) => {
                prop_assert!(purged.is_subset(&has));
                prop_assert_eq!(got.names, &names[prefix.min(names.len())..]);
            }
            Err(refused) => {
                prop_assert!(gone > 0);
                prop_assert!(!purged.is_subset(&has));
                let lacks = purged.minus(&has).to_string();
                let said = refused.to_string();
                let head: String = lacks.chars().take(60).collect();
                prop_assert!(said.contains("MASTER_AUTO_POSITION") && said.contains(&head), "{}", said);
                prop_assert!(!said.contains("  "), "{}", said);
            }
        }
        // Without what the relay was begun behind.
        prop_assert!(replica(&view, &GtidSet::new()).is_err());
    }
}

fn stored(primary: &Primary, device: &SimDevice) -> Store {
    let mut store = open(device).expect("empty");
    let mut ingest = Ingest::of_mysql();
    for raw in primary.send(&GtidSet::new()) {
        take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
    }
    store.flush().expect("a good disk");
    store
}

fn of(source: [u8; 16], numbers: std::ops::RangeInclusive<u64>) -> Vec<Name> {
    numbers.map(|n| (source, n)).collect()
}

/// Who lacks what was before the relay's beginning is told so, before there is a file, too.
#[test]
fn older_than_the_beginning() {
    let start = set(&of(A, 1..=5));
    let store = open_behind(&SimDevice::new(7), start.clone()).expect("empty");
    let find = |has| store.view().find_set(&has).expect("readable");
    assert_eq!(find(start).expect("it has that").begin, None);
    let refused = find(set(&of(A, 1..=3))).expect_err("older");
    let lacks = set(&of(A, 4..=5)).to_string();
    assert!(refused.to_string().contains(&lacks), "{refused}");
}

/// A replica that is ahead waits; it is refused when what it has turns out never to come.
#[test]
fn ahead_of_the_relay() {
    let mut primary = Primary::new(1);
    for name in of(A, 1..=5) {
        primary.does(name, 10);
    }
    let mut store = stored(&primary, &SimDevice::new(7));
    let view = store.view();
    let ahead = set(&of(A, 1..=7));
    let (mut feed, _, got) = replica(&view, &ahead).expect("it waits");
    assert!(got.names.is_empty());
    let awaited = feed.wanted().awaited(&view.state(), &view.executed());
    assert_eq!(awaited, set(&of(A, 6..=7)).to_string());
    assert!(feed.wanted().awaits());
    // It comes: nothing is wrong, and what follows is given.
    for name in of(A, 6..=8) {
        primary.does(name, 10);
    }
    let mut ingest = Ingest::of_mysql();
    for raw in primary.send(store.executed()) {
        take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
    }
    store.flush().expect("a good disk");
    let (mut late, _, got) = replica(&view, &ahead).expect("all is there");
    assert_eq!(got.names, of(A, 8..=8));
    for feed in [&mut feed, &mut late] {
        feed.complete_set(&view.executed()).expect("all has come");
    }
    // It never comes, of a server that is known: the text says which.
    let (mut feed, ..) = replica(&view, &set(&of(A, 1..=9))).expect("it waits");
    let error = feed.complete_set(&view.executed()).expect_err("never");
    let said = error.to_string();
    assert!(said.contains(&set(&of(A, 9..=9)).to_string()), "{said}");
    assert!(!said.contains("  "), "{said}");
    // Of one that is not: a replica's own, until groups of that server come.
    let mut has = set(&of(A, 1..=8));
    has.add(B, 1);
    let (mut feed, ..) = replica(&view, &has).expect("its own");
    feed.complete_set(&view.executed()).expect("its own");
    primary.does((B, 2), 10);
    let mut ingest = Ingest::of_mysql();
    for raw in primary.send(store.executed()) {
        take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
    }
    store.flush().expect("a good disk");
    let from = view.find_set(&set(&of(A, 1..=8))).expect("readable");
    let from = from.expect("here").begin.expect("a file").place;
    let head = view.head(from.file).expect("readable");
    feed.sent();
    feed.begin(&view.name(from.file), from.at, &head.format_event, None)
        .expect("it fits");
    let error = fed(&view, &mut feed, from).expect_err("never").to_string();
    assert!(error.contains(&set(&[(B, 1)]).to_string()), "{error}");
}

#[test]
fn what_cannot_be_stored() {
    let mut primary = Primary::new(1);
    for name in of(A, 1..=3) {
        primary.does(name, 10);
    }
    let all = primary.send(&GtidSet::new());
    // The same again.
    let mut store = stored(&primary, &SimDevice::new(7));
    let mut ingest = Ingest::of_mysql();
    let again = |ingest: &mut Ingest, store: &mut Store, events: &[Vec<u8>]| {
        events
            .iter()
            .try_for_each(|raw| take(ingest, store, raw).map(drop))
    };
    let error = again(&mut ingest, &mut store, &all).expect_err("the same again");
    let is_again = matches!(error, PullError::Ingest(IngestError::AgainOf { .. }));
    assert!(is_again, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1"),
        "{text}"
    );
    assert!(!store.in_group());
    // Without a GTID, and one that no transaction can have.
    let gtid = |number, anonymous| {
        let gtid = MySqlGtid {
            flags: 1,
            source: A,
            number,
            clock: None,
            commit: None,
            tail: &[],
            anonymous,
        };
        let kind = match anonymous {
            true => dromon_binlog::EventType::ANONYMOUS_GTID,
            false => dromon_binlog::EventType::MYSQL_GTID,
        };
        let header = dromon_binlog::Header {
            timestamp: 1,
            kind,
            server_id: 1,
            len: 0,
            end_pos: 0,
            flags: 0,
        };
        dromon_binlog::encode_event(
            &header,
            &Payload::MySqlGtid(gtid),
            &crate::primary::format(),
        )
    };
    for wrong in [
        gtid(9, true),
        gtid(0, false),
        gtid(u64::MAX, false),
        all[4].clone(),
    ] {
        let mut store = stored(&primary, &SimDevice::new(7));
        let mut ingest = Ingest::of_mysql();
        again(&mut ingest, &mut store, &all[..3]).expect("a head");
        let error = again(&mut ingest, &mut store, &[wrong]).expect_err("no GTID");
        let is_none = matches!(error, PullError::Ingest(IngestError::NotOfMySql));
        assert!(is_none, "{error}");
    }
}

/// A connection that goes on with the same file of the same primary begins no new one; any other does,
/// and says nothing of a start long ago.
#[test]
fn connections_and_files() {
    let mut primary = Primary::new(1);
    for name in of(A, 1..=2) {
        primary.does(name, 10);
    }
    let device = SimDevice::new(7);
    let mut store = open(&device).expect("empty");
    let mut ingest = Ingest::of_mysql();
    let mut number = 2;
    let mut goes_on = |ingest: &mut Ingest, store: &mut Store, cut: bool| {
        if cut {
            number += 1;
            primary.does((A, number), 10);
            primary.cut();
        }
        number += 1;
        primary.does((A, number), 10);
        ingest.interrupt();
        for raw in primary.send(store.executed()) {
            take(ingest, store, &raw).expect("a good primary and disk");
        }
        store.flush().expect("a good disk");
        files(&store.view()).len()
    };
    assert_eq!(goes_on(&mut ingest, &mut store, false), 1);
    assert_eq!(goes_on(&mut ingest, &mut store, false), 1, "the same file");
    assert_eq!(goes_on(&mut ingest, &mut store, true), 2, "its next one");
    assert_eq!(goes_on(&mut ingest, &mut store, false), 2);
    let mut ingest = Ingest::of_mysql();
    assert_eq!(
        goes_on(&mut ingest, &mut store, false),
        3,
        "the relay was started"
    );
    let started: Vec<usize> = files(&store.view()).iter().map(|f| f.started).collect();
    assert_eq!(started, [1, 1, 0]);
}

/// That a primary was restarted ends its connections. Replicas are told, to drop temporary tables; but
/// not again when a connection begins with a file that was begun before.
#[test]
fn a_primary_that_was_restarted() {
    let device = SimDevice::new(7);
    let mut store = open(&device).expect("empty");
    let mut ingest = Ingest::of_mysql();
    let mut primary = Primary::new(1);
    let mut other = Primary::new(2);
    for number in 1..=6 {
        primary.does((A, number), 10);
        other.does((A, number), 10);
        let from = match number {
            // Another server, which was started at any time, and back.
            5 => &other,
            _ => &primary,
        };
        for raw in from.send(store.executed()) {
            take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
        }
        ingest.interrupt();
        if number == 2 {
            // All that there was has come. It begins a file, and says so.
            primary.cut();
        }
    }
    store.flush().expect("a good disk");
    let files = files(&store.view());
    let told: Vec<_> = files.iter().map(|f| (f.names.len(), f.started)).collect();
    assert_eq!(told, [(2, 1), (2, 1), (1, 0), (1, 0)]);
}

/// A primary also says where it is behind groups that it leaves out, and goes on then. Taken for its end,
/// that would stop replicas which are ahead of the relay.
#[test]
fn only_the_end_is_the_end() {
    let mut primary = Primary::new(1);
    for name in of(A, 1..=3) {
        primary.does(name, 10);
    }
    let mut store = stored(&primary, &SimDevice::new(7));
    let mut ingest = Ingest::of_mysql();
    for more in 0..3 {
        for number in 0..more {
            primary.does((A, 10 * more + number), 10);
        }
        ingest.interrupt();
        let mut beats = 0;
        for raw in primary.send(store.executed()) {
            let took = take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
            beats += usize::from(took.heartbeat);
            assert!(!took.idle);
        }
        assert!(beats >= 3, "what it has is left out");
        for _ in 0..2 {
            let took = take(&mut ingest, &mut store, &primary.idle()).expect("there");
            assert!(took.heartbeat && took.idle);
        }
    }
}

/// A directory of one kind is not gone on with as another.
#[test]
fn kinds_are_not_mixed() {
    let mut primary = Primary::new(1);
    primary.does((A, 1), 10);
    let device = SimDevice::new(7);
    stored(&primary, &device).close().expect("a good disk");
    for kind in [Kind::MariaDb, Kind::Mirror] {
        let options = StoreOptions { kind, ..options() };
        let opened = Store::open(Arc::new(device.clone()), options, GtidSet::new()).map(drop);
        let error = opened.expect_err("of MySQL").to_string();
        assert!(error.contains("follow = mysql_gtid"), "{error}");
    }
    let store = open(&device).expect("as it was");
    assert_eq!(store.executed(), &set(&[(A, 1)]));
}
