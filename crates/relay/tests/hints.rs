//! Hints beside the files: what was found out about a group is what a replica sees, or nothing is.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{append, event, format_event, gtid, gtid_event, query, statement, transaction};
use dromon_binlog::hints::{Catalog, Hints, Limits};
use dromon_binlog::{
    BinlogState, Checksum, EventType, GroupName, Grouper, Gtid, Payload, Position, Step,
    TableMapParts, gtid_flags,
};
use dromon_log::{Device, SimDevice};
use dromon_relay::pull::{Ingest, Offers, ReadTables, take};
use dromon_relay::serve::{Feed, Policy};
use dromon_relay::store::{
    Cursor, GroupKey, Next, Place, Said, Store, StoreOptions, View, Wanted, beside,
};
use dromon_relay::wire::Frames;
use proptest::prelude::*;

const CRC: Checksum = Checksum::Crc32;

fn open(device: &SimDevice) -> Store {
    let options = StoreOptions {
        file_max: 2000,
        tail_max: 1500,
        point_every: 300,
        ..StoreOptions::default()
    };
    let opened = Store::open(Arc::new(device.clone()), options, BinlogState::new());
    opened.expect("nothing is damaged").0
}

fn batch(said: Said) -> Option<u64> {
    match said {
        Said::Batch(id) => id,
        Said::Clock(clock) => panic!("MariaDB's groups have no {clock:?}"),
    }
}

/// What is known of each group, as a reader finds it that begins at the n-th.
fn found(view: &Arc<View>, from: usize) -> Vec<(Gtid, Option<Option<u64>>)> {
    let Some(file) = view.oldest() else {
        return Vec::new();
    };
    let mut cursor = Cursor::new(Arc::clone(view), Place { file, at: 4 });
    let mut grouper = Grouper::of_file();
    let mut reader = view.hints();
    let mut out = Vec::new();
    let mut n = 0;
    loop {
        match cursor.look().expect("readable") {
            Next::End => return out,
            Next::File(number) => {
                cursor.turn(Place {
                    file: number,
                    at: 4,
                });
                grouper = Grouper::of_file();
            }
            Next::Event(len) => {
                let seen = grouper.event(cursor.event(len)).expect("whole");
                if let Step::Begin(group) = seen.step
                    && let GroupName::MariaDb(gtid) = group.name
                {
                    n += 1;
                    if n > from {
                        let hint = reader.look(cursor.place(), GroupKey::Gtid(gtid));
                        out.push((gtid, hint.map(batch)));
                    }
                }
                cursor.pass(len);
            }
        }
    }
}

type Given = BTreeMap<u64, Option<Option<u64>>>;

/// Writes groups; gives what was said of each.
fn write(store: &mut Store, given: &mut Given, groups: &[(Option<Option<u64>>, usize, bool)]) {
    if store.format().is_none() {
        store.begin_file(&format_event(CRC)).expect("a good disk");
    }
    for (hint, size, flush) in groups {
        if store.is_full() {
            store.rotate().expect("a good disk");
        }
        let name = gtid(0, 1, given.len() as u64 + 1);
        append(store, &transaction(name, 1, *size, CRC), name).expect("a good disk");
        if let Some(id) = hint {
            store.hint(name, *id);
        }
        given.insert(name.seqno, *hint);
        if *flush {
            store.flush().expect("a good disk");
        }
    }
}

fn groups() -> impl Strategy<Value = Vec<(Option<Option<u64>>, usize, bool)>> {
    let hint = proptest::option::weighted(0.8, proptest::option::of(1u64..50));
    proptest::collection::vec((hint, 0usize..150, any::<bool>()), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Each group has its own hint, from wherever one reads. After a kill or a power cut it has
    /// its own or none.
    #[test]
    fn its_own_or_none(first in groups(), second in groups(), power in any::<bool>(), seed: u64) {
        let device = SimDevice::new(seed);
        let mut store = open(&device);
        let mut given = Given::new();
        write(&mut store, &mut given, &first);
        store.flush().expect("a good disk");
        let view = store.view();
        for from in [0, 1, first.len() / 2, first.len()] {
            let expected: Vec<_> = given
                .iter()
                .skip(from)
                .map(|(seqno, hint)| (gtid(0, 1, *seqno), *hint))
                .collect();
            prop_assert_eq!(found(&view, from), expected);
        }
        // Some are not flushed when it ends.
        write(&mut store, &mut given, &second);
        drop(store);
        if power { device.crash(seed) } else { device.kill() }
        let mut store = open(&device);
        let kept = found(&store.view(), 0);
        for (name, hint) in &kept {
            prop_assert!(hint.is_none() || *hint == given[&name.seqno], "{}", name);
        }
        // What comes instead of what was lost has other hints.
        given.retain(|seqno, _| *seqno <= kept.len() as u64);
        let other: Vec<_> = first.iter().map(|(_, size, flush)| (Some(Some(99)), size + 1, *flush)).collect();
        let before = kept.len();
        write(&mut store, &mut given, &other);
        store.flush().expect("a good disk");
        let now = found(&store.view(), 0);
        prop_assert_eq!(now.len(), before + other.len());
        prop_assert_eq!(&now[..before], &kept[..]);
        prop_assert!(now[before..].iter().all(|(_, hint)| *hint == Some(Some(99))));
    }

    /// Whatever stands beside a file: nothing breaks, and no group has another one's hint.
    #[test]
    fn anything_beside(first in groups(), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20)) {
        let device = SimDevice::new(1);
        let mut store = open(&device);
        let mut given = Given::new();
        write(&mut store, &mut given, &first);
        store.flush().expect("a good disk");
        if let Ok(file) = device.open(&beside(1)) {
            let len = file.len().expect("there") as usize;
            let mut bytes = vec![0; len];
            file.read_at(&mut bytes, 0).expect("readable");
            for (at, xor) in flips {
                bytes[at % len] ^= xor;
            }
            file.write_at(&mut [std::io::IoSlice::new(&bytes)], 0).expect("writable");
        }
        for (name, hint) in found(&store.view(), first.len() / 3) {
            prop_assert!(hint.is_none() || hint == given[&name.seqno], "{}", name);
        }
    }
}

#[test]
fn files_that_were_moved_away_leave_nothing_behind() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let mut given = Given::new();
    write(&mut store, &mut given, &[(Some(Some(7)), 10, true); 3]);
    drop(store);
    for name in device.list().expect("listed") {
        if name.starts_with("relay-bin") || name.ends_with("mark") {
            device.remove(&name).expect("there");
        }
    }
    let mut store = open(&device);
    write(&mut store, &mut Given::new(), &[(None, 10, true); 3]);
    assert!(
        found(&store.view(), 0)
            .iter()
            .all(|(_, hint)| hint.is_none())
    );
}

/// The commit ids that a replica sees.
fn served(view: &Arc<View>, policy: Policy, checksum: Checksum) -> (Vec<Option<u64>>, u64) {
    let mut feed = Feed::new(9, checksum, true, Wanted::all(), 0);
    feed.policy(policy);
    feed.begin_file("relay-bin.000001");
    let start = Place { file: 1, at: 4 };
    let mut cursor = Cursor::new(Arc::clone(view), start);
    let mut reader = view.hints();
    while let Next::Event(len) = cursor.look().expect("readable") {
        let place = cursor.place();
        let hint = |key| reader.look(place, key);
        feed.event(cursor.event(len), hint).expect("fed");
        cursor.pass(len);
    }
    let mut frames = Frames::new(1 << 20);
    frames.feed(feed.out());
    let mut grouper = Grouper::of_connection();
    let mut ids = Vec::new();
    while let Some(packet) = frames.packet().expect("in order") {
        let seen = grouper.event(&packet[1..]).expect("checksums fit");
        if let Step::Begin(group) = seen.step {
            ids.push(group.commit_id);
        }
    }
    (ids, feed.joined())
}

#[test]
fn patched_on_the_way() {
    for checksum in [CRC, Checksum::Off] {
        let device = SimDevice::new(1);
        let mut store = open(&device);
        let mut ingest = Ingest::new();
        let mut send = |store: &mut Store, raw: &[u8]| take(&mut ingest, store, raw).expect("good");
        send(&mut store, &format_event(CRC));
        // What the primary says, and what was found out.
        let all = [
            (Some(5), Some(Some(3))),
            (Some(5), Some(Some(3))),
            (None, Some(Some(3))),
            (None, None),
            (Some(3), None),
            (Some(3), None),
            (Some(6), Some(None)),
            (None, Some(Some(7))),
        ];
        for (n, (own, hint)) in all.iter().enumerate() {
            let name = gtid(0, 1, n as u64 + 1);
            let parts = Payload::Gtid(dromon_binlog::GtidEvent {
                gtid: name,
                flags: gtid_flags::TRANSACTIONAL,
                commit_id: *own,
                xa: None,
                extra: None,
                tail: &[],
            });
            send(&mut store, &event(EventType::GTID, 1, &parts, CRC));
            send(&mut store, &event(EventType::XID, 1, &Payload::Xid(1), CRC));
            if let Some(id) = hint {
                store.hint(name, *id);
            }
        }
        store.flush().expect("a good disk");
        let view = store.view();
        let own: Vec<_> = all.iter().map(|(own, _)| *own).collect();
        assert_eq!(served(&view, Policy::Pass, checksum), (own, 2));
        // The primary's own never looks like one of the relay's.
        let primarys = Some(3 | 1 << 63);
        let expected = vec![
            Some(3),
            Some(3),
            Some(3),
            None,
            primarys,
            primarys,
            None,
            Some(7),
        ];
        assert_eq!(served(&view, Policy::Group, checksum), (expected, 3));
    }
}

/// The primary is a relay with hints of its own, whose batch 5 stands beside a batch 5 of its primary: they
/// may conflict.
#[test]
fn batches_of_another_relay_stay_apart() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let mut ingest = Ingest::new();
    let mut send = |store: &mut Store, raw: &[u8]| take(&mut ingest, store, raw).expect("good");
    send(&mut store, &format_event(CRC));
    let foreign = 1 << 63;
    for (n, id) in [5, 5, 5 | foreign, 5 | foreign, 6 | foreign]
        .into_iter()
        .enumerate()
    {
        let parts = Payload::Gtid(dromon_binlog::GtidEvent {
            gtid: gtid(0, 1, n as u64 + 1),
            flags: gtid_flags::TRANSACTIONAL,
            commit_id: Some(id),
            xa: None,
            extra: None,
            tail: &[],
        });
        send(&mut store, &event(EventType::GTID, 1, &parts, CRC));
        send(&mut store, &event(EventType::XID, 1, &Payload::Xid(1), CRC));
    }
    store.flush().expect("a good disk");
    let (ids, joined) = served(&store.view(), Policy::Group, CRC);
    let all_foreign = |id: &Option<u64>| id.is_some_and(|id| id & foreign != 0);
    assert!(ids.iter().all(all_foreign), "{ids:?}");
    assert!(ids[0] == ids[1] && ids[2] == ids[3], "{ids:?}");
    assert!(ids[1] != ids[2] && ids[3] != ids[4], "{ids:?}");
    assert_eq!(joined, 2);
}

/// From the primary's events to the replica's: transactions that touch nothing in common go as one
/// batch, a DDL stands between.
#[test]
fn found_out_while_pulling() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let hints = Hints::behind(Limits::default(), Position::new());
    let mut ingest = Ingest::new().with_hints(hints);
    let mut send = |store: &mut Store, events: &[Vec<u8>]| {
        for raw in events {
            take(&mut ingest, store, raw).expect("a good primary");
        }
        store.flush().expect("a good disk");
    };
    send(&mut store, &[format_event(CRC)]);
    for seqno in 1..=8 {
        let name = gtid(0, 1, seqno);
        let group = match seqno {
            5 => statement(name, "CREATE TABLE t (a INT)", CRC),
            _ => {
                let parallel = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
                vec![
                    gtid_event(name, parallel, CRC),
                    event(EventType::XID, 1, &Payload::Xid(seqno), CRC),
                ]
            }
        };
        send(&mut store, &group);
    }
    let (ids, joined) = served(&store.view(), Policy::Group, CRC);
    let first = None;
    assert_eq!(
        ids,
        [
            first,
            Some(2),
            Some(2),
            Some(2),
            None,
            Some(6),
            Some(6),
            Some(6)
        ]
    );
    assert_eq!(joined, 4);
}

/// While the tables are not known, rows are given with the primary's commit ids.
#[test]
fn tables_that_are_not_known() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let hints = Hints::behind(Limits::default(), Position::new());
    let mut ingest = Ingest::new().with_hints(hints);
    let mut send = |store: &mut Store, events: &[Vec<u8>]| {
        for raw in events {
            take(&mut ingest, store, raw).expect("a good primary");
        }
    };
    send(&mut store, &[format_event(CRC)]);
    let map = TableMapParts {
        table_id: 10,
        database: b"d",
        table: b"t",
        types: &[3],
        meta: &[],
        nullable: &[1],
        optional: &[],
    };
    let map = Payload::TableMap(Box::new(map.table_map().expect("a table")));
    let rows = [10, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 7, 0, 0, 0];
    for (seqno, commit_id) in [(1, Some(4)), (2, Some(4)), (3, None)] {
        let parts = Payload::Gtid(dromon_binlog::GtidEvent {
            gtid: gtid(0, 1, seqno),
            flags: gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL,
            commit_id,
            xa: None,
            extra: None,
            tail: &[],
        });
        let group = [
            event(EventType::GTID, 1, &parts, CRC),
            event(EventType::TABLE_MAP, 1, &map, CRC),
            event(EventType::WRITE_ROWS_V1, 1, &Payload::Other(&rows), CRC),
            event(EventType::XID, 1, &Payload::Xid(seqno), CRC),
        ];
        send(&mut store, &group);
    }
    store.flush().expect("a good disk");
    let primarys = Some(4 | 1 << 63);
    let (ids, joined) = served(&store.view(), Policy::Group, CRC);
    assert_eq!((ids, joined), (vec![primarys, primarys, None], 1));
}

/// Statements are not looked into, though all tables are known: they have the primary's commit ids. What
/// was found out about stands between, and so does a DDL.
#[test]
fn statements_have_the_primarys_commit_ids() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let mut hints = Hints::behind(Limits::default(), Position::new());
    let here = Position::new();
    hints.offer(here.clone(), here, Catalog::new(Vec::new()));
    assert!(hints.has_catalog());
    let mut ingest = Ingest::new().with_hints(hints);
    let mut send = |store: &mut Store, raw: &[u8]| {
        let took = take(&mut ingest, store, raw).expect("a good primary");
        took.hinted.is_some_and(|hinted| hinted.statement)
    };
    send(&mut store, &format_event(CRC));
    let parallel = gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL;
    let ddl = gtid_flags::STANDALONE | gtid_flags::DDL;
    let update = Some("UPDATE t SET a = a + 1");
    let all = [
        (parallel, update),
        (parallel, update),
        (parallel, None),
        (parallel, update),
        (ddl, Some("CREATE TABLE u (a INT)")),
        (parallel, update),
    ];
    for (n, (flags, text)) in all.iter().enumerate() {
        let parts = Payload::Gtid(dromon_binlog::GtidEvent {
            gtid: gtid(0, 1, n as u64 + 1),
            flags: *flags,
            commit_id: Some(5),
            xa: None,
            extra: None,
            tail: &[],
        });
        send(&mut store, &event(EventType::GTID, 1, &parts, CRC));
        if let Some(text) = text {
            send(&mut store, &query(1, text, CRC));
        }
        if *flags == parallel {
            let end = event(EventType::XID, 1, &Payload::Xid(1), CRC);
            assert_eq!(send(&mut store, &end), text.is_some());
        }
    }
    store.flush().expect("a good disk");
    let own = Some(5 | 1 << 63);
    let (ids, joined) = served(&store.view(), Policy::Group, CRC);
    assert_eq!(ids, [own, own, Some(3), own, None, own]);
    assert_eq!(joined, 1);
}

/// Servers whose numbers are out of order: what was read before a DDL is not taken as read behind it,
/// and what was read at a place that has not come is not taken before.
#[test]
fn tables_of_a_domain_out_of_order() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let mut ingest = Ingest::new().with_hints(Hints::behind(Limits::default(), Position::new()));
    let mut offers = Offers::default();
    take(&mut ingest, &mut store, &format_event(CRC)).expect("a good primary");
    let read = |at: &str| {
        let at: Position = at.parse().expect("a position");
        ReadTables {
            connection: 1,
            before: at.clone().into(),
            after: at.into(),
            catalog: Catalog::new(Vec::new()),
        }
    };
    // As the puller does. Gives whether the tables are known then.
    let mut comes = |offers: &mut Offers, name: Gtid, ddl: bool, read: Option<ReadTables>| {
        let group = match ddl {
            true => statement(name, "ALTER TABLE t ADD UNIQUE KEY (a)", CRC),
            false => transaction(name, 0, 0, CRC),
        };
        let mut unordered = false;
        for raw in &group {
            unordered |= take(&mut ingest, &mut store, raw).expect("good").unordered;
        }
        let hints = ingest.hints().expect("computed");
        if unordered {
            offers.unordered(hints, Limits::default(), store.state().position());
        }
        offers.take(read, hints, store.state());
        hints.has_catalog()
    };
    assert!(!comes(
        &mut offers,
        gtid(0, 1, 99),
        false,
        Some(read("0-1-100"))
    ));
    assert!(!comes(&mut offers, gtid(0, 2, 50), true, None));
    assert!(
        !comes(&mut offers, gtid(0, 1, 100), false, None),
        "it lacks the key"
    );
    assert!(!offers.waits());
    // Begun before, and come behind it.
    assert!(!comes(
        &mut offers,
        gtid(0, 1, 101),
        false,
        Some(read("0-1-101"))
    ));
    assert!(comes(
        &mut offers,
        gtid(0, 1, 102),
        false,
        Some(read("0-1-102"))
    ));
    // The second server's group is still to come, though its number is lower.
    assert!(!comes(
        &mut offers,
        gtid(0, 1, 103),
        true,
        Some(read("0-2-53"))
    ));
    assert!(!comes(&mut offers, gtid(0, 1, 104), false, None));
    assert!(offers.waits());
}

/// A domain that the primary does not name: it was dropped there if the primary wrote it itself and the relay had it
/// when tables were wanted. Of another server's, or of what came since, that cannot be said.
#[test]
fn tables_of_a_primary_that_names_a_domain_no_more() {
    for (wanted, has, used, lacks) in [
        ("0-1-9,5-1-7", "0-1-9,5-1-7", true, false),
        ("0-1-9", "0-1-9,5-1-1", false, true),
        ("0-1-9,5-2-7", "0-1-9,5-2-7", false, true),
        ("0-1-9,5-1-7,6-2-1", "0-1-9,5-1-7,6-2-1", false, true),
        // Domains that it names, or has had.
        ("0-1-10,5-1-7", "0-1-10,5-1-7", false, false),
        ("0-1-9,5-1-6", "0-1-9,5-1-7", false, false),
    ] {
        let parsed = |text: &str| text.parse::<Position>().expect("a position");
        let state = BinlogState::from_gtids(parsed(has).iter());
        let mut hints = Hints::behind(Limits::default(), parsed(has));
        let mut offers = Offers::default();
        let mut said = Vec::new();
        for _ in 0..4 {
            offers.wanted(1, || parsed(wanted));
            // Asked again, as tables are still wanted.
            offers.wanted(1, || parsed(has));
            let read = ReadTables {
                connection: 1,
                before: parsed("0-1-9").into(),
                after: parsed("0-1-9").into(),
                catalog: Catalog::new(Vec::new()),
            };
            said.push(offers.take(Some(read), &mut hints, &state));
            assert_eq!(hints.has_catalog(), used, "{wanted} {has}");
            assert!(!offers.waits() && !hints.has_offer());
        }
        let new: Vec<_> = said.iter().map(|said| said.as_ref().map(|s| s.1)).collect();
        let expected = lacks.then_some([None, None, Some(true), Some(false)]);
        assert_eq!(new, expected.unwrap_or_default(), "{wanted} {has}");
    }
}
