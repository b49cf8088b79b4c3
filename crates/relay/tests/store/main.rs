//! The store against a naive model, with cuts, power cuts, failures and flipped bits.

#[path = "../common/mod.rs"]
mod common;
mod kinds;
mod positions;
mod tail;

use std::io;
use std::sync::Arc;

use common::{append, beginning, format_event, groups, gtid, read, transaction};
use dromon_binlog::{BinlogState, Checksum, Event, EventType, GroupName, Gtid};
use dromon_log::{Device, DirDevice, SimDevice};
use dromon_relay::store::{
    Cursor, Kind, Limits, Next, Part, Place, Store, StoreError, StoreOptions, file_name,
};
use proptest::prelude::*;

const CRC: Checksum = Checksum::Crc32;

fn options() -> StoreOptions {
    StoreOptions {
        file_max: 3000,
        tail_max: 2000,
        point_every: 300,
        ..StoreOptions::default()
    }
}

fn open(device: &SimDevice) -> Result<Store, StoreError> {
    Store::open(Arc::new(device.clone()), options(), BinlogState::new()).map(|(store, _)| store)
}

/// Writes groups; gives the model: their GTIDs and numbers of events, and how many are flushed.
#[derive(Clone, Debug)]
enum Step {
    Group {
        server: u32,
        events: usize,
        size: usize,
    },
    Abandoned {
        size: usize,
        flushed: bool,
    },
    Flush,
    Rotate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u32..3, 0usize..4, 0usize..200).prop_map(|(server, events, size)| Step::Group { server, events, size }),
        1 => (0usize..300, any::<bool>()).prop_map(|(size, flushed)| Step::Abandoned { size, flushed }),
        3 => Just(Step::Flush),
        1 => Just(Step::Rotate),
    ];
    proptest::collection::vec(step, 1..40)
}

#[derive(Default)]
struct Model {
    groups: Vec<(Gtid, usize)>,
    flushed: usize,
    next: u64,
}

impl Model {
    fn state(&self, n: usize) -> BinlogState {
        BinlogState::from_gtids(self.groups[..n].iter().map(|g| g.0))
    }

    /// A small group of `server` with so many events, where nothing fails.
    fn group(&mut self, store: &mut Store, server: u32, events: usize) {
        let size = 0;
        let group = Step::Group {
            server,
            events,
            size,
        };
        self.step(store, &group).expect("no faults");
    }

    /// One step; an error ends the store.
    fn step(&mut self, store: &mut Store, step: &Step) -> Result<(), StoreError> {
        if store.format().is_none() {
            store.begin_file(&format_event(CRC))?;
        }
        if store.is_full() {
            store.rotate()?;
            self.flushed = self.groups.len();
        }
        match step {
            Step::Group {
                server,
                events,
                size,
            } => {
                self.next += 1;
                let name = gtid(0, *server, self.next);
                // Counted first: an error may come after it was wholly written.
                self.groups.push((name, events + 2));
                append(store, &transaction(name, *events, *size, CRC), name)?;
            }
            Step::Abandoned { size, flushed } => {
                let name = gtid(0, 1, self.next + 1);
                let mut group = transaction(name, 2, *size, CRC);
                group.pop();
                for (n, raw) in group.into_iter().enumerate() {
                    let part = if n == 0 { Part::Begin } else { Part::Within };
                    store.append(raw, part)?;
                }
                assert!(store.in_group());
                if *flushed {
                    store.flush()?;
                    self.flushed = self.groups.len();
                }
                store.abandon()?;
            }
            Step::Flush => {
                store.flush()?;
                self.flushed = self.groups.len();
            }
            Step::Rotate => {
                store.rotate()?;
                self.flushed = self.groups.len();
            }
        }
        Ok(())
    }

    /// What is there is a beginning of what was written, with all that was flushed.
    fn agrees(&self, store: &Store) {
        let view = store.view();
        let found = match view.oldest() {
            None => Vec::new(),
            Some(_) => groups(&read(&view, beginning(&view)).expect("it can be read")),
        };
        assert!(
            found.len() >= self.flushed,
            "{} of {} flushed",
            found.len(),
            self.flushed
        );
        assert_eq!(found[..], self.groups[..found.len()]);
        assert_eq!(view.state(), self.state(found.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Without faults: readers see what was flushed, from every position, and only that.
    #[test]
    fn reads_from_every_position(steps in steps(), reopen: bool) {
        let device = SimDevice::new(1);
        let mut store = open(&device).expect("empty");
        let mut model = Model::default();
        for step in &steps {
            model.step(&mut store, step).expect("no faults");
            let events = read(&store.view(), beginning(&store.view())).expect("readable");
            prop_assert_eq!(groups(&events).len(), model.flushed);
        }
        store.flush().expect("no faults");
        model.flushed = model.groups.len();
        if reopen {
            store.close().expect("no faults");
            device.kill();
            store = open(&device).expect("closed well");
        }
        model.agrees(&store);
        let view = store.view();
        for n in 0..=model.groups.len() {
            let position = model.state(n).position();
            let found = view.find(&position).expect("readable").expect("nothing was purged");
            prop_assert!(found.damage.is_none());
            let begin = found.begin.expect("there is a file");
            let before = view.before(begin.place).expect("readable");
            prop_assert_eq!(before, Some(begin.state.mariadb.position()));
            let inside = Place { at: begin.place.at + 1, ..begin.place };
            prop_assert!(view.before(inside).expect("readable").is_none());
            let mut wanted = begin.wanted;
            let mut events = common::groups_from(&view, begin.place);
            events.retain(|g| wanted.takes(g.0).expect("it is there"));
            prop_assert_eq!(&events[..], &model.groups[n..]);
        }
    }

    /// The power goes at any change, and anything unsynced may be lost or torn.
    #[test]
    fn power_cuts(steps in steps(), cut in 1u64..200, seed: u64) {
        let device = SimDevice::new(seed);
        device.power_off_after(cut);
        let mut model = Model::default();
        let mut boots = 0;
        if let Ok(mut store) = open(&device) {
            for step in &steps {
                if model.step(&mut store, step).is_err() {
                    break;
                }
            }
        }
        loop {
            device.crash(seed.wrapping_add(boots));
            // Again while it mends.
            if boots < 3 {
                device.power_off_after(1 + boots * 2);
            }
            boots += 1;
            match open(&device) {
                Ok(store) => {
                    model.agrees(&store);
                    break;
                }
                Err(StoreError::Io { .. } | StoreError::Ended(_)) if boots <= 3 => {}
                Err(error) => panic!("{error}"),
            }
        }
        // It goes on: what was lost comes again.
        device.kill();
        let mut store = open(&device).expect("mended");
        let there = match store.view().oldest() {
            None => 0,
            Some(_) => groups(&read(&store.view(), beginning(&store.view())).expect("readable")).len(),
        };
        model.groups.truncate(there);
        model.flushed = there;
        model.next = model.groups.last().map_or(0, |g| g.0.seqno);
        for step in &steps {
            model.step(&mut store, step).expect("no faults");
        }
        store.flush().expect("no faults");
        model.flushed = model.groups.len();
        model.agrees(&store);
    }

    /// A write or fsync fails once. Nothing is stored from then on, whatever is tried.
    #[test]
    fn a_failure_is_the_end(steps in steps(), n in 1u64..20, sync: bool, seed: u64) {
        let device = SimDevice::new(seed);
        let mut store = open(&device).expect("empty");
        match sync {
            true => device.fail_sync(n, io::ErrorKind::Other),
            false => device.fail_write(n, io::ErrorKind::StorageFull),
        }
        let mut model = Model::default();
        let mut steps = steps.iter();
        let failed = steps.by_ref().any(|step| model.step(&mut store, step).is_err());
        if failed {
            let seen = store.view().end();
            for step in steps {
                let again = Model::default().step(&mut store, step);
                prop_assert!(matches!(again, Err(StoreError::Ended(_))));
            }
            prop_assert!(matches!(store.flush(), Err(StoreError::Ended(_))));
            prop_assert_eq!(store.view().end(), seen);
            prop_assert!(store.view().failure().is_some());
            device.crash(seed);
            let store = open(&device).expect("what was flushed is whole");
            model.agrees(&store);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Started again after a failed write or fsync: what was not stored then can still be read, and is
    /// shown. So it must be on the disk by then, though nothing fails any more.
    #[test]
    fn what_a_restart_shows_is_stored(steps in steps(), n in 1u64..20, sync: bool, seed: u64) {
        let device = SimDevice::new(seed);
        let mut store = open(&device).expect("empty");
        match sync {
            true => device.fail_sync(n, io::ErrorKind::Other),
            false => device.fail_write(n, io::ErrorKind::StorageFull),
        }
        let mut model = Model::default();
        let failed = steps.iter().any(|step| model.step(&mut store, step).is_err());
        prop_assume!(failed);
        drop(store);
        device.kill();
        let store = open(&device).expect("a good disk");
        model.agrees(&store);
        let view = store.view();
        if view.oldest().is_some() {
            model.flushed = groups(&read(&view, beginning(&view)).expect("readable")).len();
        }
        drop(store);
        device.crash(seed);
        let store = open(&device).expect("what was shown is whole");
        model.agrees(&store);
    }
}

/// A file cut at every byte: the beginning that is whole groups remains, if that much was not
/// promised; else the damage is named.
#[test]
fn cut_at_every_byte() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for n in 0..6 {
        let group = Step::Group {
            server: 1 + n % 2,
            events: 2,
            size: 20,
        };
        model.step(&mut store, &group).expect("no faults");
    }
    store.flush().expect("no faults");
    let name = file_name("relay-bin", 1);
    let whole = device.content(&name).expect("there");
    for marked in [false, true] {
        for len in 0..whole.len() {
            let copy = device.fork();
            if !marked {
                copy.remove("dromon-relay.mark").expect("there");
            }
            let file = copy.open(&name).expect("there");
            file.set_len(len as u64).expect("cut");
            drop(file);
            match open(&copy) {
                Err(StoreError::Damaged { file, at, .. }) => {
                    assert!(
                        marked && file == name && at <= len as u64,
                        "byte {len}: {at}"
                    );
                }
                Err(error) => panic!("byte {len}: {error}"),
                Ok(store) => {
                    assert!(!marked, "byte {len}: what was flushed is missing");
                    Model {
                        groups: model.groups.clone(),
                        ..Model::default()
                    }
                    .agrees(&store);
                    let left = copy.content(&name).map_or(0, |c| c.len());
                    assert!(left <= len);
                }
            }
        }
    }
}

/// Every bit of two files. In the last one it is found when the store is opened, in others when
/// they are read; never is anything else given than was written.
#[test]
fn every_flipped_bit_is_found() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for n in 0..3 {
        let group = Step::Group {
            server: 1,
            events: 1,
            size: 10,
        };
        model.step(&mut store, &group).expect("no faults");
        if n == 1 {
            model.step(&mut store, &Step::Rotate).expect("no faults");
        }
    }
    store.flush().expect("no faults");
    drop(store);
    for number in 1..=2 {
        let name = file_name("relay-bin", number);
        let len = device.content(&name).expect("there").len();
        // The flag IN_USE of the format description is outside its checksum, as servers clear it in
        // place; replicas are sent it cleared.
        let in_use = (4 + 17) * 8;
        for bit in (0..len * 8).filter(|bit| *bit != in_use) {
            let copy = device.fork();
            assert!(copy.flip_bit(&name, (bit / 8) as u64, bit as u32));
            let store = match open(&copy) {
                Err(StoreError::Damaged { file, .. }) => {
                    assert_eq!(file, name, "bit {bit}");
                    continue;
                }
                Err(error) => panic!("bit {bit}: {error}"),
                Ok(store) => store,
            };
            assert_eq!(
                number, 1,
                "bit {bit} of the last file was not found at the start"
            );
            let read = common::try_read(&store.view(), beginning(&store.view()));
            let Err((error, events)) = read else {
                panic!("bit {bit} of {name} was not found");
            };
            assert!(error.contains(&name), "bit {bit}: {error}");
            let mut grouped = events;
            grouped.retain(|g| model.groups.contains(g));
            assert_eq!(grouped[..], model.groups[..grouped.len()], "bit {bit}");
        }
    }
}

#[test]
fn a_gap_between_files_is_named() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for _ in 0..3 {
        model.group(&mut store, 1, 0);
        model.step(&mut store, &Step::Rotate).expect("no faults");
    }
    drop(store);
    device.remove(&file_name("relay-bin", 2)).expect("there");
    let error = open(&device).err().expect("a gap").to_string();
    assert!(error.contains("relay-bin.000002 is missing"), "{error}");
    // As the message of a damaged file says: move it and all later ones away.
    for number in [3, 4] {
        device
            .remove(&file_name("relay-bin", number))
            .expect("there");
    }
    let (store, opened) =
        Store::open(Arc::new(device.clone()), options(), BinlogState::new()).expect("no gap");
    assert_eq!(opened.shorter.as_deref(), Some("relay-bin.000004"));
    assert_eq!(store.state().to_string(), "0-1-1");
}

/// Two files are damaged, and the later one was moved away, as the message says: what the other one had is not
/// taken for what a crash left. Nothing is changed.
#[test]
fn damage_in_what_was_not_the_last() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for _ in 0..3 {
        model.group(&mut store, 1, 2);
        model.group(&mut store, 2, 2);
        model.step(&mut store, &Step::Rotate).expect("no faults");
    }
    store.close().expect("no faults");
    for number in [3, 4] {
        device
            .remove(&file_name("relay-bin", number))
            .expect("there");
    }
    let here = |device: &SimDevice| -> Vec<_> {
        let names = device.list().expect("readable").into_iter();
        names.map(|n| (device.content(&n), n)).collect()
    };
    let name = file_name("relay-bin", 2);
    let len = device.content(&name).expect("there").len() as u64;
    for place in 0..len {
        let copy = device.fork();
        assert!(copy.flip_bit(&name, place, 1));
        let before = here(&copy);
        match open(&copy) {
            Err(StoreError::Damaged { file, at, .. }) => {
                assert!(file == name && at <= place, "byte {place}: {file}, {at}");
            }
            other => panic!("byte {place}: {:?}", other.map(|s| s.state().to_string())),
        }
        assert_eq!(here(&copy), before, "byte {place}");
    }
    let store = open(&device).expect("nothing is damaged");
    assert_eq!(store.state(), &model.state(4));
}

#[test]
fn purges_oldest_first_and_keeps_what_is_needed() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    for _ in 0..5 {
        model
            .step(
                &mut store,
                &Step::Group {
                    server: 1,
                    events: 1,
                    size: 100,
                },
            )
            .expect("no faults");
        model.step(&mut store, &Step::Rotate).expect("no faults");
    }
    let view = store.view();
    let limits = Limits {
        size: Some(1),
        ..Limits::default()
    };
    let purged = view.purge(limits, Some(3), 0);
    assert_eq!(purged.gone, ["relay-bin.000001", "relay-bin.000002"]);
    assert_eq!(purged.held, 3);
    assert!(purged.error.is_none());
    let position = model.state(1).position();
    let refused = view
        .find(&position)
        .expect("readable")
        .expect_err("purged")
        .to_string();
    assert!(
        refused.contains("nothing before 0-1-2 any more"),
        "{refused}"
    );
    let position = model.state(2).position();
    assert!(view.find(&position).expect("readable").is_ok());
    // One that cannot go stays, with all behind it; one that is gone already is none less.
    device.fail_sync(2, io::ErrorKind::Other);
    let purged = view.purge(limits, None, 0);
    assert_eq!(purged.gone, ["relay-bin.000003"]);
    let said = purged.error.expect("an error").to_string();
    assert!(said.contains("relay-bin.000004"), "{said}");
    assert_eq!(view.list().len(), 3);
    let purged = view.purge(limits, None, 0);
    assert_eq!((purged.gone.len(), purged.held), (2, 0));
    assert!(purged.error.is_none());
    drop(store);
    device.crash(1);
    let store = open(&device).expect("no gap");
    assert_eq!(store.view().list().len(), 1);
    assert_eq!(store.state(), &model.state(5));
}

/// The disk is full when a file is to be begun, and still when the relay is started again.
#[test]
fn full_at_the_beginning_of_a_file() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    let group = Step::Group {
        server: 1,
        events: 1,
        size: 100,
    };
    for _ in 0..3 {
        model.step(&mut store, &group).expect("no faults");
        model.step(&mut store, &Step::Rotate).expect("no faults");
    }
    model.step(&mut store, &group).expect("no faults");
    model.step(&mut store, &Step::Flush).expect("no faults");
    // There is room for the name of the next file where this one ends, and for nothing of that one.
    let rotate = 19 + 8 + "relay-bin.000005".len() as u64 + 4;
    let used = |device: &SimDevice| -> u64 {
        let names = device.list().expect("readable");
        let len = |name: &String| device.content(name).map_or(0, |bytes| bytes.len() as u64);
        names.iter().map(len).sum()
    };
    device.set_capacity(Some(used(&device) + rotate));
    let full = store.rotate().expect_err("no room");
    assert!(full.is_full(), "{full}");
    for seed in 0..4 {
        drop(store);
        match seed {
            0 => device.kill(),
            _ => device.crash(seed),
        }
        store = open(&device).expect("what is here can be served");
        let failure = store.failure().expect("there is no room");
        assert!(failure.is_full(), "{failure}");
        assert!(store.view().failure().is_some(), "others are told");
        model.agrees(&store);
        assert!(store.flush().is_err() && store.rotate().is_err());
    }
    // Making room helps, and a new start.
    let limits = Limits {
        size: Some(1),
        ..Limits::default()
    };
    let purged = store.view().purge(limits, Some(3), 0);
    assert_eq!(purged.gone, ["relay-bin.000001", "relay-bin.000002"]);
    assert!(purged.error.is_none());
    drop(store);
    device.kill();
    let mut store = open(&device).expect("there is room");
    assert!(store.failure().is_none());
    let last = store.view().list().last().map(|file| file.name.clone());
    assert_eq!(last.as_deref(), Some("relay-bin.000005"));
    assert_eq!(store.state(), &model.state(4));
    model.step(&mut store, &group).expect("there is room");
    store.flush().expect("there is room");
}

/// Another log_bin, alone and with what changes it, and back.
#[test]
fn another_name_is_refused() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    let group = Step::Group {
        server: 1,
        events: 1,
        size: 100,
    };
    for step in [&group, &Step::Rotate, &group] {
        model.step(&mut store, step).expect("no faults");
    }
    store.close().expect("no faults");
    let here = || -> Vec<_> {
        let names = device.list().expect("readable").into_iter();
        names.map(|n| (device.content(&n), n)).collect()
    };
    let before = here();
    for kind in [Kind::MariaDb, Kind::Mirror, Kind::MySql] {
        let options = StoreOptions {
            prefix: "mysql-bin".into(),
            kind,
            ..options()
        };
        let opened = Store::open(Arc::new(device.clone()), options, BinlogState::new());
        let said = opened.err().expect("other files").to_string();
        assert!(said.contains("(relay-bin.000001)"), "{said}");
        assert!(said.contains("Set log_bin = relay-bin,"), "{said}");
        assert_eq!(here(), before);
    }
    // Without files nothing is in the way, nor is what is no file of events.
    let store = open(&device).expect("as before");
    model.agrees(&store);
    drop(store);
    for (_, name) in before {
        if name.starts_with("relay-bin") {
            device.remove(&name).expect("there");
        }
    }
    device.create("old.000001").expect("no faults");
    let options = StoreOptions {
        prefix: "mysql-bin".into(),
        kind: Kind::Mirror,
        ..options()
    };
    Store::open(Arc::new(device.clone()), options, BinlogState::new()).expect("no files");
}

/// The last files were moved away, as the message of a damaged one says, and the relay is killed or the
/// power goes while it starts.
#[test]
fn killed_after_files_were_moved_away() {
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    let mut model = Model::default();
    let group = Step::Group {
        server: 1,
        events: 1,
        size: 900,
    };
    for step in [&group, &Step::Rotate, &group, &Step::Rotate, &group] {
        model.step(&mut store, step).expect("no faults");
    }
    store.close().expect("no faults");
    for left in 0..3 {
        for (n, seed) in (1..).flat_map(|n| (0..8).map(move |seed| (n, seed))) {
            let copy = device.fork();
            for number in left + 1..=3 {
                copy.remove(&file_name("relay-bin", number)).expect("there");
            }
            copy.sync_dir().expect("no faults");
            copy.power_off_after(n);
            let begun = open(&copy).and_then(|mut store| match store.format() {
                None => store.begin_file(&format_event(CRC)),
                Some(_) => Ok(()),
            });
            if begun.is_ok() {
                break;
            }
            match seed {
                0 => copy.kill(),
                _ => copy.crash(seed),
            }
            let store = open(&copy).unwrap_or_else(|e| panic!("{left} files, change {n}: {e}"));
            let groups = model.groups[..left as usize].to_vec();
            Model {
                flushed: groups.len(),
                groups,
                ..Model::default()
            }
            .agrees(&store);
        }
    }
}

/// There is no room for another file: readers are not told its name, and see all that is whole.
#[test]
fn no_next_file() {
    for n in 1.. {
        let device = SimDevice::new(3);
        let mut store = open(&device).expect("empty");
        let mut model = Model::default();
        let group = Step::Group {
            server: 1,
            events: 0,
            size: 0,
        };
        model.step(&mut store, &group).expect("no faults");
        device.fail_write(n, io::ErrorKind::StorageFull);
        if store.rotate().is_ok() {
            assert!(n > 6, "group, mark, rotate, mark, file, mark");
            break;
        }
        let view = store.view();
        if n > 5 {
            // The new file is there by then, and the mark is not.
            assert_eq!(view.list().len(), 2);
            continue;
        }
        assert_eq!(view.list().len(), 1);
        let mut cursor = Cursor::new(Arc::clone(&view), beginning(&view));
        while let Next::Event(len) = cursor.look().expect("readable") {
            let kind = Event::parse(cursor.event(len), CRC).expect("whole").kind();
            assert_ne!(kind, EventType::ROTATE, "write {n}");
            cursor.pass(len);
        }
        let seen = groups(&read(&view, beginning(&view)).expect("readable"));
        assert!(seen == model.groups || n < 3, "write {n}");
        drop(store);
        device.kill();
        model.flushed = seen.len();
        model.agrees(&open(&device).expect("a good disk"));
    }
}

/// A reader that has left a file does not keep its room on the disk.
#[test]
fn what_is_purged_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = DirDevice::open(dir.path()).expect("its own");
    let options = StoreOptions {
        tail_max: 0,
        ..options()
    };
    let (mut store, _) = Store::open(Arc::new(device), options, BinlogState::new()).expect("empty");
    let mut model = Model::default();
    let group = Step::Group {
        server: 1,
        events: 1,
        size: 100,
    };
    for step in [&group, &Step::Rotate, &group, &Step::Flush] {
        model.step(&mut store, step).expect("a good disk");
    }
    let view = store.view();
    let mut cursor = Cursor::new(Arc::clone(&view), beginning(&view));
    while let Next::Event(len) = cursor.look().expect("readable") {
        cursor.pass(len);
    }
    cursor.turn(Place { file: 2, at: 4 });
    let limits = Limits {
        size: Some(1),
        ..Limits::default()
    };
    assert_eq!(view.purge(limits, None, 0).gone, ["relay-bin.000001"]);
    let name = dir.path().join("relay-bin.000001");
    let kept = || {
        let open = std::fs::read_dir("/proc/self/fd").expect("readable");
        let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        open.filter(|path| path.starts_with(dir.path()))
            .collect::<Vec<_>>()
    };
    assert!(!kept().is_empty(), "the last file is open");
    let gone =
        |path: &std::path::PathBuf| path.to_string_lossy().starts_with(&*name.to_string_lossy());
    // A thread of its own closes it.
    let since = std::time::Instant::now();
    while let Some(path) = kept().into_iter().find(gone) {
        assert!(since.elapsed().as_secs() < 30, "{path:?} stays open");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A session may say any time (SET TIMESTAMP): keep_age goes by when something can have been made.
#[test]
fn the_age_of_what_says_any_time() {
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs();
    let (hour, year) = (3600, 365 * 86400);
    for said in [1, now + year] {
        for reopen in [false, true] {
            let device = SimDevice::new(3);
            let mut store = open(&device).expect("empty");
            store.begin_file(&format_event(CRC)).expect("no faults");
            // Three files; the last group of the second one says another time.
            for (n, time) in [now, now, said, now].into_iter().enumerate() {
                let (name, time) = (gtid(0, 1, n as u64 + 1), time as u32);
                let group = common::made(transaction(name, 0, 0, CRC), time);
                let end = Part::End(GroupName::MariaDb(name), time);
                for (raw, part) in group.into_iter().zip([Part::Begin, end]) {
                    store.append(raw, part).expect("no faults");
                }
                store.flush().expect("no faults");
                if n == 2 && reopen {
                    drop(store);
                    device.kill();
                    store = open(&device).expect("no faults");
                }
                if n != 1 {
                    store.rotate().expect("no faults");
                }
            }
            if reopen {
                drop(store);
                device.kill();
                store = open(&device).expect("no faults");
            }
            let limits = Limits {
                age: Some(hour),
                ..Limits::default()
            };
            let view = store.view();
            let gone = |now| view.purge(limits, None, now).gone.len();
            assert_eq!(gone(now + hour - 100), 0, "{said}, {reopen}: too early");
            assert_eq!(gone(now + hour + 100), 3, "{said}, {reopen}: in time");
        }
    }
}

/// How long something is lacking that was committed long before it came, or before the relay was
/// started.
#[test]
fn the_age_of_what_came_late() {
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs() as u32;
    let device = SimDevice::new(3);
    let mut store = open(&device).expect("empty");
    store.begin_file(&format_event(CRC)).expect("no faults");
    // The link was cut for an hour. The last statement took 100 s.
    let ages = [3600, 3500, 3400, 1000, 5, 105];
    for (n, age) in ages.iter().enumerate() {
        let name = gtid(0, 1, n as u64 + 1);
        let group = common::made(transaction(name, 1, 600, CRC), now - age);
        let last = group.len() - 1;
        for (n, raw) in group.into_iter().enumerate() {
            let part = match n {
                0 => Part::Begin,
                _ if n == last => Part::End(GroupName::MariaDb(name), now - age),
                _ => Part::Within,
            };
            store.append(raw, part).expect("no faults");
        }
        match n {
            1 | 3 => store.rotate().expect("no faults"),
            _ => store.flush().expect("no faults"),
        }
    }
    let lag = |store: &Store, has: u64| {
        let position = format!("0-1-{has}").parse().expect("a position");
        (store.view().lag_ms(&position) + 500) / 1000
    };
    let near = |lag: u64, age: u64| (age..age + 20).contains(&lag);
    for (has, age) in [(0, 3600), (1, 3500), (2, 3400), (3, 1000), (4, 5)] {
        let lag = lag(&store, has);
        assert!(near(lag, age), "0-1-{has}: {lag} s");
    }
    assert!(near(lag(&store, 5), 5), "not before the one before it");
    assert_eq!(lag(&store, 6), 0);
    store.close().expect("no faults");
    device.kill();
    let store = open(&device).expect("no faults");
    // Of the first file it is not known when it began; of others and of places in the last one it is.
    for (has, age) in [(2, 3500), (3, 3500), (4, 1000), (5, 5)] {
        let lag = lag(&store, has);
        assert!(near(lag, age), "0-1-{has} after a restart: {lag} s");
    }
    assert!(lag(&store, 0) >= 3600);
    assert_eq!(lag(&store, 6), 0);
}
