//! Files of one kind where another one is wanted: no start takes them for what a crash left.

use std::sync::Arc;

use dromon_binlog::BinlogState;
use dromon_log::{Device, SimDevice};
use dromon_relay::store::{Kind, Store, StoreError, StoreOptions, file_name};

use crate::common::format_event;
use crate::{CRC, options};

const MARK: &str = "dromon-relay.mark";

fn open(device: &SimDevice, kind: Kind) -> Result<Store, StoreError> {
    let options = StoreOptions { kind, ..options() };
    Store::open(Arc::new(device.clone()), options, BinlogState::new()).map(|(store, _)| store)
}

/// Three files without groups, and without what says how far they are on the disk.
fn three(kind: Kind) -> SimDevice {
    let device = SimDevice::new(3);
    let mut store = open(&device, kind).expect("empty");
    store.begin_file(&format_event(CRC)).expect("no faults");
    store.rotate().expect("no faults");
    store.rotate().expect("no faults");
    store.close().expect("no faults");
    device.remove(MARK).expect("there");
    device
}

/// All files with what is in them, but the mark of how far they are on the disk.
fn all(device: &SimDevice) -> Vec<(String, Option<Vec<u8>>)> {
    let mut names = device.list().expect("readable");
    names.retain(|name| name != MARK);
    names.sort_unstable();
    names
        .into_iter()
        .map(|n| (n.clone(), device.content(&n)))
        .collect()
}

/// As when the event files alone were copied.
#[test]
fn without_their_mark() {
    let device = three(Kind::MySql);
    device.remove("dromon-relay.mysql").expect("there");
    let before = all(&device);
    assert_eq!(before.len(), 3);
    for kind in [Kind::MySql, Kind::MariaDb, Kind::Mirror] {
        let error = open(&device, kind).err().expect("nobody knows which kind");
        assert!(matches!(error, StoreError::Unmarked { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("did not write relay-bin.000001"), "{said}");
        assert!(!said.contains("Set follow = gtid"), "{said}");
        assert_eq!(all(&device), before, "{kind:?}");
        device.remove(MARK).expect("made again");
    }
    device.create("dromon-relay.mysql").expect("no faults");
    open(&device, Kind::MySql).expect("as it says");
    // Of MariaDB there is none.
    let device = three(Kind::MariaDb);
    let before = all(&device);
    for kind in [Kind::MySql, Kind::Mirror] {
        let said = open(&device, kind).err().expect("another").to_string();
        assert!(said.contains("Set follow = gtid"), "{said}");
        assert_eq!(all(&device), before, "{kind:?}");
    }
}

#[test]
fn with_the_mark_of_others() {
    let device = three(Kind::MariaDb);
    device.create("dromon-relay.mysql").expect("no faults");
    let before = all(&device);
    let error = open(&device, Kind::MySql).err().expect("of MariaDB");
    assert!(
        matches!(&error, StoreError::Damaged { file, .. } if file == "relay-bin.000003"),
        "{error}"
    );
    assert_eq!(all(&device), before);
}

/// One file can have been begun when the power went, and was whole before that one was.
#[test]
fn two_without_a_beginning() {
    for cut in [0, 3, 50] {
        let device = three(Kind::MariaDb);
        for number in [2, 3] {
            let file = device.open(&file_name("relay-bin", number)).expect("there");
            file.set_len(cut).expect("cut");
        }
        let before = all(&device);
        let error = open(&device, Kind::MariaDb).err().expect("two");
        assert!(
            matches!(&error, StoreError::Damaged { file, .. } if file == "relay-bin.000002"),
            "{error}"
        );
        assert_eq!(all(&device), before, "cut at {cut}");
        device.remove("relay-bin.000003").expect("there");
        open(&device, Kind::MariaDb).expect("one");
    }
}
