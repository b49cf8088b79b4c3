//! Whatever breaks, whenever: what is stored is what the primary has, once.

mod common;

use std::sync::Arc;

use common::{beginning, event, format, format_event, groups, gtid, read, statement, transaction};
use dromon_binlog::{
    BinlogState, Checksum, EventType, Gtid, GtidList, Header, Maker, Payload, Place, Rotate,
    encode_event, flags,
};
use dromon_log::SimDevice;
use dromon_relay::pull::{Ingest, IngestError, PullError, take};
use dromon_relay::store::{Store, StoreError, StoreOptions};
use proptest::prelude::*;

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
        let artificial = |payload: &Payload<'_>, kind| {
            let header = Header {
                timestamp: 0,
                kind,
                server_id: 1,
                len: 0,
                end_pos: 0,
                flags: flags::ARTIFICIAL,
            };
            encode_event(&header, payload, &format(self.checksum))
        };
        let mut out = Vec::new();
        // Groups of a domain up to its last one taken are left out.
        let mut found: Vec<u32> = position.iter().map(|g| g.domain).collect();
        for (n, file) in self.files.iter().enumerate() {
            let name = format!("bin.{n}");
            let rotate = Payload::Rotate(Rotate {
                position: 4,
                file: name.as_bytes(),
            });
            out.push(artificial(&rotate, EventType::ROTATE));
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

fn open(device: &SimDevice) -> Result<Store, StoreError> {
    let options = StoreOptions {
        file_max: 1500,
        point_every: 200,
        tail_max: 1000,
        ..StoreOptions::default()
    };
    Store::open(Arc::new(device.clone()), options, BinlogState::new()).map(|(store, _)| store)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// Connections break after any event, the relay is killed or loses power at any moment.
    #[test]
    fn no_gap_no_double(
        primary in primary(),
        breaks in proptest::collection::vec((0usize..60, 1usize..8, 0u8..4, any::<u64>()), 0..12)
    ) {
        let device = SimDevice::new(7);
        let mut store = open(&device).expect("empty");
        let last = (usize::MAX, 3, 0, 0);
        let mut acknowledged = 0;
        for (after, flush_every, how, seed) in breaks.into_iter().chain([last]) {
            let mut ingest = Ingest::new();
            let sent = primary.send(store.state());
            for (n, event) in sent.iter().take(after).enumerate() {
                take(&mut ingest, &mut store, event).expect("a good primary and disk");
                if n % flush_every == 0 {
                    store.flush().expect("a good disk");
                    acknowledged = store.state().iter().map(|g| g.seqno).sum::<u64>();
                }
            }
            match how {
                0 => {
                    ingest.interrupt();
                    store.abandon().expect("a good disk");
                    store.flush().expect("a good disk");
                }
                1 => {
                    drop(store);
                    device.kill();
                    store = open(&device).expect("mended");
                }
                _ => {
                    drop(store);
                    device.crash(seed);
                    store = open(&device).expect("mended");
                }
            }
            prop_assert!(!store.in_group());
            let now = store.state().iter().map(|g| g.seqno).sum::<u64>();
            prop_assert!(now >= acknowledged, "what was flushed is there");
        }
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
    let mut store = open(&device).expect("empty");
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
