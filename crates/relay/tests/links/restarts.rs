//! What replicas are told of a restart of the primary.

use std::sync::Arc;

use dromon_binlog::{BinlogState, Checksum, Event, EventType, Format, Payload};
use dromon_log::SimDevice;
use dromon_relay::store::{Store, StoreOptions};

use super::beats::follows;
use super::common::{append, created, format_event, gtid, transaction};
use super::serve_view;

const CRC: Checksum = Checksum::Crc32;

/// What a replica gets that has this, up to the first transaction: the times of starts, and that one's seqno.
fn gets(address: &str, has: &str) -> (Vec<u32>, u64) {
    let mut raw = follows(address, &format!("@slave_connect_state='{has}'"));
    let mut starts = Vec::new();
    loop {
        let packet = raw.packet();
        let event = Event::parse(&packet[1..], CRC).expect("an event");
        if event.kind() == EventType::FORMAT_DESCRIPTION {
            let format = Format::of(&event).expect("one");
            starts.push(format.created);
        } else if let Ok(Payload::Gtid(of)) = event.decode(&Format::unknown()) {
            return (starts, of.gtid.seqno);
        }
    }
}

/// One that was away meanwhile is told it behind all that came before; one that has something of what follows is not,
/// as it may have made temporary tables since.
#[test]
fn who_was_away_is_told_of_a_restart() {
    let device = Arc::new(SimDevice::new(5));
    let opened = Store::open(device, StoreOptions::default(), BinlogState::new());
    let (mut store, _) = opened.expect("empty");
    for (first, started) in [(1, 76), (3, 77)] {
        let format = created(&format_event(CRC), started);
        store.begin_file(&format).expect("a good disk");
        for seqno in [first, first + 1] {
            let name = gtid(0, 1, seqno);
            append(&mut store, &transaction(name, 1, 9, CRC), name).expect("a good disk");
        }
    }
    store.rotate().expect("a good disk");
    let name = gtid(0, 1, 5);
    append(&mut store, &transaction(name, 1, 9, CRC), name).expect("a good disk");
    store.flush().expect("a good disk");
    let (address, ..) = serve_view(store.view(), None, false);
    for (has, wanted) in [
        ("", (vec![76], 1)),
        ("0-1-1", (vec![0], 2)),
        ("0-1-2", (vec![77], 3)),
        ("0-1-3", (vec![0], 4)),
        ("0-1-4", (vec![0], 5)),
    ] {
        assert_eq!(gets(&address, has), wanted, "{has}");
    }
}
