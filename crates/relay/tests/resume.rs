//! Whatever breaks, whenever: what is stored is what the primary has, once.

mod common;

use common::breaks::{Follower, breaks, follow};
use common::{
    artificial_rotate, beginning, event, format_event, groups, gtid, gtid_event, read, statement,
    transaction,
};
use dromon_binlog::{
    BinlogState, Checkpoint, Checksum, EventType, Gtid, GtidList, Maker, Payload, Place, Rotate,
    gtid_flags,
};
use dromon_log::SimDevice;
use dromon_relay::pull::{Act, Ingest, IngestError, PullError, take};
use dromon_relay::store::{History, Store, StoreOptions};
use proptest::prelude::*;

/// Beyond 4 GiB events say 32 bits of their place, and a heartbeat of MariaDB says all of it: what is
/// acknowledged is behind what was there before.
#[test]
fn a_place_beyond_4_gib() {
    const CRC: Checksum = Checksum::Crc32;
    let (mut ingest, at) = (Ingest::new(), 5 << 30);
    let mut comes = |raw: &[u8]| {
        let taken = ingest.event(raw, &History::default(), None, None);
        let taken = taken.expect("a good primary");
        let (file, position) = ingest.place();
        (file.to_vec(), position, taken.heartbeat)
    };
    let maker = Maker {
        server_id: 1,
        timestamp: 0,
        checksum: CRC,
        place: Place::Nowhere,
    };
    comes(&artificial_rotate("f", 4, CRC));
    comes(&format_event(CRC));
    let beat = maker.heartbeat_long("f", at);
    assert_eq!(comes(&beat), (b"f".to_vec(), at, true));
    let mut begins = gtid_event(gtid(0, 1, 1), gtid_flags::TRANSACTIONAL, CRC);
    let (low, end) = (((at + 200) as u32).to_le_bytes(), begins.len() - 4);
    begins[13..17].copy_from_slice(&low);
    let crc = crc32fast::hash(&begins[..end]).to_le_bytes();
    begins[end..].copy_from_slice(&crc);
    assert_eq!(comes(&begins), (b"f".to_vec(), at + 200, false));
    // One that fits in 32 bits is as it was.
    comes(&artificial_rotate("g", 4, CRC));
    let beat = maker.heartbeat("g", 1000).expect("it fits");
    assert_eq!(comes(&beat), (b"g".to_vec(), 1000, true));
}

/// A primary that takes long to make its next file has said what that is called, and sends heartbeats of the one before
/// meanwhile: what is acknowledged is in that one. Nothing of the next one is known yet.
#[test]
fn a_heartbeat_before_the_next_file_is_made() {
    const CRC: Checksum = Checksum::Crc32;
    let mut ingest = Ingest::new();
    let mut comes = |raw: &[u8]| {
        let taken = ingest.event(raw, &History::default(), None, None);
        taken.expect("a good primary");
        let (file, position) = ingest.place();
        (String::from_utf8_lossy(file).into_owned(), position)
    };
    let maker = Maker {
        server_id: 1,
        timestamp: 0,
        checksum: CRC,
        place: Place::Nowhere,
    };
    comes(&artificial_rotate("f", 4, CRC));
    comes(&format_event(CRC));
    let rotate = Payload::Rotate(Rotate {
        file: b"g",
        position: 4,
    });
    let beat = maker.heartbeat("f", 1000).expect("it fits");
    comes(&event(EventType::ROTATE, 1, &rotate, CRC));
    assert_eq!(comes(&beat), ("f".to_owned(), 1000));
    assert_eq!(comes(&artificial_rotate("g", 4, CRC)), ("g".to_owned(), 4));
    let beat = maker.heartbeat("g", 300).expect("it fits");
    assert_eq!(comes(&beat), ("g".to_owned(), 300));
}

/// What a file begins with is sent before the primary looks in it for the place to go on.
#[test]
fn what_shows_that_the_place_was_found() {
    const CRC: Checksum = Checksum::Crc32;
    let mut store = common::open(&SimDevice::new(1), StoreOptions::default()).expect("empty");
    let mut ingest = Ingest::new();
    let list = Payload::GtidList(GtidList::default());
    let begins = Payload::Checkpoint(Checkpoint { file: b"f" });
    let head = [
        artificial_rotate("f", 4, CRC),
        format_event(CRC),
        event(EventType::GTID_LIST, 1, &list, CRC),
        event(EventType::BINLOG_CHECKPOINT, 1, &begins, CRC),
    ];
    let mut comes = |raw: &[u8]| take(&mut ingest, &mut store, raw).expect("a good primary");
    for raw in &head {
        assert!(!comes(raw).in_group);
    }
    for raw in transaction(gtid(0, 1, 1), 2, 9, CRC) {
        assert!(comes(&raw).in_group);
    }
}

/// A primary: its groups in files, as it would send them.
#[derive(Debug)]
struct Primary {
    files: Vec<Vec<(Gtid, Vec<Vec<u8>>)>>,
    checksum: Checksum,
}

impl Primary {
    fn all(&self) -> Vec<(Gtid, usize)> {
        let groups = self.files.iter().flatten();
        groups.map(|(gtid, events)| (*gtid, events.len())).collect()
    }

    /// What it sends to a replica that has everything up to the position.
    fn send(&self, state: &BinlogState) -> Vec<Vec<u8>> {
        let position = state.position();
        let mut out = Vec::new();
        // Groups of a domain up to its last one taken are left out.
        let mut found: Vec<u32> = position.iter().map(|g| g.domain).collect();
        for (n, file) in self.files.iter().enumerate() {
            let name = format!("bin.{n}");
            out.push(artificial_rotate(&name, 4, self.checksum));
            out.push(format_event(self.checksum));
            let list = Payload::GtidList(GtidList::default());
            out.push(event(EventType::GTID_LIST, 1, &list, self.checksum));
            let maker = Maker {
                server_id: 1,
                timestamp: 0,
                checksum: self.checksum,
                place: Place::Nowhere,
            };
            for (gtid, events) in file {
                if found.contains(&gtid.domain) {
                    if position.get(gtid.domain) == Some(*gtid) {
                        found.retain(|d| *d != gtid.domain);
                    }
                    continue;
                }
                out.extend(events.iter().cloned());
                out.push(maker.heartbeat("bin", 1000).expect("it fits"));
            }
            out.push(event(EventType::STOP, 1, &Payload::Stop, self.checksum));
        }
        out
    }
}

fn primary() -> impl Strategy<Value = Primary> {
    let group = (0u32..2, 1u32..3, 0usize..4, 0usize..120, any::<bool>());
    let files = proptest::collection::vec(proptest::collection::vec(group, 0..8), 1..4);
    (files, any::<bool>()).prop_map(|(files, crc)| {
        let checksum = if crc { Checksum::Crc32 } else { Checksum::Off };
        let mut next = [0u64; 2];
        let files = files
            .into_iter()
            .map(|file| {
                file.into_iter()
                    .map(|(domain, server, events, size, alone)| {
                        next[domain as usize] += 1;
                        let name = gtid(domain, server, next[domain as usize]);
                        let events = match alone {
                            true => statement(name, "CREATE TABLE t (a INT)", checksum),
                            false => transaction(name, events, size, checksum),
                        };
                        (name, events)
                    })
                    .collect()
            })
            .collect();
        Primary { files, checksum }
    })
}

fn options() -> StoreOptions {
    StoreOptions {
        file_max: 1500,
        point_every: 200,
        tail_max: 1000,
        ..StoreOptions::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// Connections break after any event, the relay is killed or loses power at any moment.
    #[test]
    fn no_gap_no_double(
        primary in primary(),
        breaks in breaks(60)
    ) {
        let device = SimDevice::new(7);
        let groups_of = |store: &Store| store.state().iter().map(|g| g.seqno).sum::<u64>();
        let store = follow(&device, breaks, Follower {
            options: options(),
            ingest: Ingest::new,
            send: |store: &Store| primary.send(store.state()),
            flushed: groups_of,
            has: groups_of,
        });
        let view = store.view();
        let stored = match view.oldest() {
            None => Vec::new(),
            Some(_) => groups(&read(&view, beginning(&view)).expect("readable")),
        };
        prop_assert_eq!(stored, primary.all());
    }
}

#[test]
fn another_history_is_refused() {
    let device = SimDevice::new(7);
    let mut store = common::open(&device, options()).expect("empty");
    let crc = Checksum::Crc32;
    let mut ingest = Ingest::new();
    let send = |ingest: &mut Ingest, store: &mut Store, events: &[Vec<u8>]| {
        events
            .iter()
            .try_for_each(|e| take(ingest, store, e).map(drop))
    };
    send(&mut ingest, &mut store, &[format_event(crc)]).expect("a format");
    let one = transaction(gtid(0, 1, 5), 1, 10, crc);
    send(&mut ingest, &mut store, &one).expect("a group");
    let error = send(&mut ingest, &mut store, &one).expect_err("the same again");
    assert!(
        matches!(error, PullError::Ingest(IngestError::Again { .. })),
        "{error}"
    );
    let said = error.to_string();
    for part in [
        "sent 0-1-5,",
        "RESET MASTER",
        "numbers of server 1 went back",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!store.in_group());
    // Out of order, by another server: stored, and counted.
    let mut ingest = Ingest::new();
    send(&mut ingest, &mut store, &[format_event(crc)]).expect("a format");
    let late = transaction(gtid(0, 2, 3), 0, 0, crc);
    let took = take(&mut ingest, &mut store, &late[0]).expect("it is new");
    assert!(took.unordered);
    // Without a GTID.
    let mut ingest = Ingest::new();
    store.abandon().expect("a good disk");
    send(&mut ingest, &mut store, &[format_event(crc)]).expect("a format");
    let error = send(&mut ingest, &mut store, &one[1..]).expect_err("no GTID");
    assert!(
        matches!(error, PullError::Ingest(IngestError::Nameless)),
        "{error}"
    );
}

/// The time is the same, the file is not. What is told again, behind a break, is no news.
#[test]
fn two_starts_within_a_second() {
    const CRC: Checksum = Checksum::Crc32;
    let begins = common::created(&format_event(CRC), 77);
    let device = SimDevice::new(7);
    let mut store = common::open(&device, options()).expect("empty");
    let mut ingest = Ingest::new();
    for (n, (file, files)) in (1..).zip([("f.3", 1), ("f.4", 2), ("f.4", 2)]) {
        ingest.interrupt();
        let turns = artificial_rotate(file, 4, CRC);
        let group = transaction(gtid(0, 1, n), 1, 10, CRC);
        for raw in [turns, begins.clone()].iter().chain(&group) {
            take(&mut ingest, &mut store, raw).expect("a good primary");
        }
        store.flush().expect("a good disk");
        assert_eq!(store.view().list().len(), files, "{file}");
    }
}

/// A primary without checksums clears the time in a format description when the replica begins amid its
/// file, and does not mend the checksum behind it.
#[test]
fn a_stale_checksum_where_there_are_none() {
    const OFF: Checksum = Checksum::Off;
    // In front of the time: the common header, a number of 2 bytes and a version of 50.
    const CREATED: std::ops::Range<usize> = 19 + 52..19 + 56;
    let first = common::created(&format_event(OFF), 77);
    let mut again = first.clone();
    again[CREATED].fill(0);
    let device = SimDevice::new(7);
    let mut store = common::open(&device, options()).expect("empty");
    let mut ingest = Ingest::new();
    for (n, begins) in [(1, &first), (2, &again), (3, &again)] {
        ingest.interrupt();
        take(&mut ingest, &mut store, begins).expect("a good primary");
        for raw in transaction(gtid(0, 1, n), 1, 10, OFF) {
            take(&mut ingest, &mut store, &raw).expect("a good primary");
        }
    }
    store.flush().expect("a good disk");
    let view = store.view();
    let stored = groups(&read(&view, beginning(&view)).expect("readable"));
    assert_eq!(stored.len(), 3);
    assert_eq!(view.list().len(), 1, "it was started once");
    // A relay that has no file yet, and one that mirrors, which says what is wrong.
    let mut empty = Ingest::new();
    let taken = empty.event(&again, &History::default(), None, None);
    assert!(matches!(taken.expect("new").act, Act::File(_)));
    let mut mirrors = Ingest::mirroring("f");
    let state = History::default();
    let turns = artificial_rotate("f.000001", 4, OFF);
    mirrors.event(&turns, &state, None, None).expect("it fits");
    let error = mirrors.event(&again, &state, None, None);
    assert!(matches!(error, Err(IngestError::NoChecksums { .. })));
}
