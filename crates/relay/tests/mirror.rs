//! A primary without GTIDs: whatever breaks, whenever, the relay's files become its own, byte for byte.

mod common;

use std::sync::Arc;

use common::breaks::{Follower, breaks, follow};
use common::{artificial_rotate, changes, event, query};
use dromon_binlog::{
    Checksum, EventType, FILE_MAGIC, Header, MySqlGtid, Payload, Rotate, flags, place,
};
use dromon_log::{Device, SimDevice};
use dromon_relay::pull::{Ingest, IngestError, PullError, take};
use dromon_relay::serve::Feed;
use dromon_relay::store::{
    Cursor, Kind, Next, Place, Store, StoreError, StoreOptions, View, Wanted,
};
use dromon_relay::wire::Frames;
use proptest::prelude::*;

const CRC: Checksum = Checksum::Crc32;

/// A primary: its files as they lie on its disk, and where events begin in them.
#[derive(Clone, Debug, Default)]
struct Primary {
    files: Vec<Vec<u8>>,
}

fn name(number: usize) -> String {
    format!("bin.{number:06}")
}

/// What becomes of a group of these numbers: with or without an anonymous GTID before it.
fn group(events: usize, size: usize, alone: bool, anonymous: bool) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    if anonymous {
        let gtid = Payload::MySqlGtid(MySqlGtid {
            flags: 1,
            source: [0; 16],
            number: 0,
            clock: None,
            commit: None,
            tail: &[],
            anonymous: true,
        });
        out.push(event(EventType::ANONYMOUS_GTID, 1, &gtid, CRC));
    }
    if alone {
        out.push(query(1, "CREATE TABLE t (a INT)", CRC));
        return out;
    }
    out.push(query(1, "BEGIN", CRC));
    out.extend(changes(1, events, size, CRC));
    out.push(event(EventType::XID, 1, &Payload::Xid(7), CRC));
    out
}

/// How a file ends.
#[derive(Clone, Copy, Debug)]
enum Last {
    Rotate,
    Stop,
    /// The primary was killed.
    Nothing,
}

impl Primary {
    fn add(&mut self, mut raw: Vec<u8>) {
        let file = self.files.last_mut().expect("a file");
        place(&mut raw, CRC, file.len() as u64).expect("it fits");
        file.extend_from_slice(&raw);
    }

    fn begin(&mut self) {
        self.files.push(FILE_MAGIC.to_vec());
        self.add(common::format_event(CRC));
    }

    fn end(&mut self, how: Last) {
        match how {
            Last::Rotate => {
                let next = name(self.files.len() + 1);
                let rotate = Payload::Rotate(Rotate {
                    position: 4,
                    file: next.as_bytes(),
                });
                self.add(event(EventType::ROTATE, 1, &rotate, CRC));
            }
            Last::Stop => self.add(event(EventType::STOP, 1, &Payload::Stop, CRC)),
            Last::Nothing => {}
        }
    }

    /// The events of a file, with their places.
    fn events(&self, number: usize) -> Vec<(usize, Vec<u8>)> {
        let file = &self.files[number - 1];
        let mut at = 4;
        let mut out = Vec::new();
        while at < file.len() {
            let len = u32::from_le_bytes(file[at + 9..at + 13].try_into().expect("4 bytes"));
            let end = at + len as usize;
            out.push((at, file[at..end].to_vec()));
            at = end;
        }
        out
    }

    /// What it sends to a replica that asks for what stands behind a byte of a file.
    fn send(&self, from: Option<Place>) -> Vec<Vec<u8>> {
        let from = from.unwrap_or(Place { file: 1, at: 4 });
        let mut out = Vec::new();
        for number in from.file as usize..=self.files.len() {
            let at = match number as u64 == from.file {
                true => from.at,
                false => 4,
            };
            out.push(artificial_rotate(&name(number), at, CRC));
            if at > 4 {
                // Made up: without a place.
                out.push(common::format_event(CRC));
            }
            let events = self.events(number);
            let rest = events
                .into_iter()
                .filter(|(begins, _)| *begins as u64 >= at);
            out.extend(rest.map(|(_, raw)| raw));
        }
        out
    }
}

fn last() -> impl Strategy<Value = Last> {
    prop_oneof![Just(Last::Rotate), Just(Last::Stop), Just(Last::Nothing)]
}

fn primary() -> impl Strategy<Value = Primary> {
    let one = (0usize..4, 0usize..120, any::<bool>(), any::<bool>());
    let file = (proptest::collection::vec(one, 0..7), last());
    proptest::collection::vec(file, 1..4).prop_map(|files| {
        let mut primary = Primary::default();
        let count = files.len();
        for (n, (groups, last)) in files.into_iter().enumerate() {
            primary.begin();
            for (events, size, alone, anonymous) in groups {
                for raw in group(events, size, alone, anonymous) {
                    primary.add(raw);
                }
            }
            if n + 1 < count {
                primary.end(last);
            }
        }
        primary
    })
}

fn options() -> StoreOptions {
    StoreOptions {
        prefix: "bin".into(),
        point_every: 200,
        tail_max: 1000,
        kind: Kind::Mirror,
        // Files become as long as the primary's, whatever is set.
        file_max: 600,
        ..StoreOptions::default()
    }
}

fn open(device: &SimDevice) -> Result<Store, StoreError> {
    common::open(device, options())
}

fn stored(device: &SimDevice, number: usize) -> Vec<u8> {
    let file = device.open(&name(number)).expect("it is there");
    let mut bytes = vec![0; file.len().expect("readable") as usize];
    let n = file.read_at(&mut bytes, 0).expect("readable");
    assert_eq!(n, bytes.len());
    bytes
}

/// All that a replica is sent from a place on, as events.
fn fed(view: &Arc<View>, from: Place) -> Vec<Vec<u8>> {
    let mut feed = Feed::new(9, CRC, true, Wanted::all(), 0);
    feed.mirrors();
    let mut cursor = Cursor::new(Arc::clone(view), from);
    match from.at {
        4 => feed.begin_file(&view.name(from.file)),
        at => {
            let head = view.head(from.file).expect("readable");
            feed.begin(&view.name(from.file), at, &head.format_event, None)
                .expect("it fits");
        }
    }
    loop {
        match cursor.look().expect("readable") {
            Next::Event(len) => {
                feed.event(cursor.event(len), |_| None).expect("readable");
                cursor.pass(len);
            }
            Next::File(number) => {
                feed.next_file(&view.name(number)).expect("it follows");
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
    out
}

/// Without what a primary makes up.
fn real(events: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let is_real = |raw: &Vec<u8>| {
        let header = Header::decode(raw).expect("an event");
        header.end_pos != 0 && !header.has(flags::ARTIFICIAL)
    };
    events.into_iter().filter(is_real).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// Connections break after any event, the relay is killed or loses power at any moment.
    #[test]
    fn becomes_the_same(
        primary in primary(),
        breaks in breaks(40)
    ) {
        let device = SimDevice::new(7);
        let store = follow(&device, breaks, Follower {
            options: options(),
            ingest: || Ingest::mirroring("bin"),
            send: |store: &Store| primary.send(store.end()),
            flushed: |store: &Store| Some(store.view().end()).filter(|place| place.file > 0),
            has: Store::end,
        });
        for (n, file) in primary.files.iter().enumerate() {
            prop_assert_eq!(&stored(&device, n + 1), file, "file {}", n + 1);
        }
        // A replica gets what the primary would have sent, from wherever it comes.
        let view = store.view();
        for number in 1..=primary.files.len() {
            for (at, _) in primary.events(number).into_iter().step_by(3) {
                let from = Place { file: number as u64, at: at as u64 };
                prop_assert!(view.before(from).expect("readable").is_some());
                let wanted = real(primary.send(Some(from)));
                prop_assert_eq!(real(fed(&view, from)), wanted);
                prop_assert_eq!(Place::of_position(&from.as_position()), Some(from));
            }
        }
        prop_assert_eq!(view.lag_ms(&view.end().as_position()), 0);
        // Its last file is moved away: the one before is as whole as it was.
        let last = primary.files.len();
        let copy = device.fork();
        copy.remove(&name(last)).expect("it is there");
        open(&copy).expect("nothing is damaged");
        if last > 1 {
            prop_assert_eq!(&stored(&copy, last - 1), &primary.files[last - 2]);
        }
    }
}

/// Takes what a primary sends, and what came of it.
fn takes(store: &mut Store, events: &[Vec<u8>]) -> Result<(), PullError> {
    let mut ingest = Ingest::mirroring("bin");
    let mut all = events
        .iter()
        .map(|raw| take(&mut ingest, store, raw).map(drop));
    all.find(Result::is_err).unwrap_or(Ok(()))
}

fn of_two_files() -> Primary {
    let mut primary = Primary::default();
    for last in [Last::Rotate, Last::Nothing] {
        primary.begin();
        for raw in group(2, 50, false, false) {
            primary.add(raw);
        }
        primary.end(last);
    }
    primary
}

#[test]
fn what_does_not_fit_is_refused() {
    let primary = of_two_files();
    let whole = primary.send(None);
    let hole = |result: Result<(), PullError>| {
        let error = result.expect_err("a hole");
        let is_hole = matches!(error, PullError::Ingest(IngestError::Hole { .. }));
        assert!(is_hole, "{error}");
    };
    // An event is missing; one comes twice; it begins in the middle of a file.
    for wrong in [
        [&whole[..3], &whole[4..]].concat(),
        [&whole[..4], &whole[3..]].concat(),
        primary.send(Some(Place { file: 1, at: 300 })),
    ] {
        let mut store = open(&SimDevice::new(7)).expect("empty");
        hole(takes(&mut store, &wrong));
    }
    // A file is missing.
    let mut third = of_two_files();
    third.end(Last::Rotate);
    third.begin();
    let third = third.send(Some(Place { file: 3, at: 4 }));
    let mut store = open(&SimDevice::new(7)).expect("empty");
    hole(takes(&mut store, &[&whole[..6], &third].concat()));
    // The primary lost what it had sent.
    let mut store = open(&SimDevice::new(7)).expect("empty");
    takes(&mut store, &whole).expect("all of it");
    let mut shorter = primary.send(Some(Place { file: 2, at: 100 }));
    shorter.truncate(1);
    hole(takes(&mut store, &shorter));
    // Files of another name.
    let mut store = open(&SimDevice::new(7)).expect("empty");
    let mut ingest = Ingest::mirroring("mysql-bin");
    let error = take(&mut ingest, &mut store, &whole[0]).expect_err("another name");
    assert!(
        error.to_string().contains("bin.000001") && error.to_string().contains("log_bin"),
        "{error}"
    );
    // No checksums.
    let mut store = open(&SimDevice::new(7)).expect("empty");
    let error = takes(
        &mut store,
        &[whole[0].clone(), common::format_event(Checksum::Off)],
    )
    .expect_err("no checksums");
    assert!(error.to_string().contains("binlog_checksum"), "{error}");
}

/// Half of a group was too large for memory when the primary crashed. It goes on with its next file, and the
/// power goes: what was taken back does not come back.
#[test]
fn what_was_taken_back_stays_away() {
    let mut primary = Primary::default();
    primary.begin();
    for raw in group(1, 50, false, false) {
        primary.add(raw);
    }
    let mut crashed = primary.clone();
    for raw in group(1, 5 << 20, false, false).into_iter().take(2) {
        crashed.add(raw);
    }
    primary.begin();
    for seed in 0..12 {
        let device = SimDevice::new(seed);
        let mut store = open(&device).expect("empty");
        takes(&mut store, &crashed.send(None)).expect("all of it");
        assert!(store.in_group());
        store.abandon().expect("a good disk");
        let more = primary.send(store.end());
        takes(&mut store, &more).expect("all of it");
        drop(store);
        device.crash(seed);
        open(&device).expect("mended");
        for (n, file) in primary.files.iter().enumerate() {
            let found = stored(&device, n + 1);
            assert_eq!(found.len(), file.len(), "file {}, seed {seed}", n + 1);
            assert!(found == *file, "file {}, seed {seed}", n + 1);
        }
    }
}

/// A directory of one kind is not gone on with as the other.
#[test]
fn kinds_are_not_mixed() {
    let device = SimDevice::new(7);
    let mut store = open(&device).expect("empty");
    takes(&mut store, &of_two_files().send(None)).expect("all of it");
    store.close().expect("a good disk");
    let other = |device: &SimDevice| {
        let options = StoreOptions {
            kind: Kind::MariaDb,
            ..options()
        };
        common::open(device, options).map(drop)
    };
    let error = other(&device).expect_err("a mirror").to_string();
    assert!(error.contains("follow = file"), "{error}");
    open(&device).expect("as it was");
    // Nothing was stored in it yet: it may become the other.
    let device = SimDevice::new(7);
    open(&device).expect("empty");
    other(&device).expect("empty");
    open(&device).expect("empty");
}
