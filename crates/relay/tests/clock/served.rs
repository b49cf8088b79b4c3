//! What a replica gets, as the decoder reads it.

use std::sync::Arc;

use dromon_binlog::{BinlogState, Checksum};
use dromon_log::SimDevice;
use dromon_relay::serve::{Feed, Policy};
use dromon_relay::store::{Cursor, Kind, Next, Place, Store, StoreOptions, View, Wanted};

use crate::decoder::{self, Got};

pub fn open(device: &SimDevice) -> Store {
    let options = StoreOptions {
        prefix: "bin".into(),
        point_every: 200,
        tail_max: 1000,
        kind: Kind::Mirror,
        ..StoreOptions::default()
    };
    let opened = Store::open(Arc::new(device.clone()), options, BinlogState::new());
    opened.expect("nothing is damaged").0
}

/// All that a replica is sent from a place on: packets, and how many groups counted as running beside
/// the one before.
fn sent(view: &Arc<View>, from: Place, policy: Policy, checksum: Checksum) -> (Vec<u8>, u64) {
    let mut feed = Feed::new(9, checksum, true, Wanted::all(), 0);
    feed.mirrors();
    feed.policy(policy);
    let mut cursor = Cursor::new(Arc::clone(view), from);
    let mut hints = view.hints();
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
                let place = cursor.place();
                let hint = |key| hints.look(place, key);
                feed.event(cursor.event(len), hint).expect("readable");
                cursor.pass(len);
            }
            Next::File(number) => {
                feed.next_file(&view.name(number)).expect("it follows");
                cursor.turn(Place {
                    file: number,
                    at: 4,
                });
            }
            Next::End => return (feed.out().to_vec(), feed.joined()),
        }
    }
}

/// The events that a replica is sent, of each file.
pub fn served(view: &Arc<View>, from: Place, policy: Policy, checksum: Checksum) -> Vec<Vec<Got>> {
    let (bytes, joined) = sent(view, from, policy, checksum);
    let packets = decoder::packets(&bytes, 0);
    let files = files(&packets, checksum == Checksum::Crc32);
    let clocks = files.iter().flatten().filter_map(|got| got.clock);
    let beside = clocks.filter(|(last, sequence)| (1..sequence - 1).contains(last));
    assert_eq!(joined, beside.count() as u64, "what is counted");
    files
}

/// Events, parted where another file begins. The first one that names a file is sent without a
/// checksum that could be told beforehand, here as all others.
pub fn files(packets: &[Vec<u8>], checksum: bool) -> Vec<Vec<Got>> {
    let mut files: Vec<Vec<Got>> = Vec::new();
    for packet in packets {
        let got = decoder::event(packet, checksum);
        if got.kind == 4 && got.made_up() {
            files.push(Vec::new());
        }
        files.last_mut().expect("a file is named first").push(got);
    }
    files
}
