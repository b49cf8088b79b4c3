//! Hints beside mirrored files: each group has its own or none, whatever happens.

use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::{GroupName, Gtid, LogicalClock};
use dromon_log::{Device, SimDevice};
use dromon_relay::store::{
    Cursor, GroupKey, Next, Part, Place, Said, Store, View, beside, checksum_of,
};
use proptest::prelude::*;

use crate::decoder;
use crate::model::{Does, Plan, Row, Style};
use crate::primary::Primary;
use crate::served::open;

/// A group: `last_committed` that is said of it, its row, whether a file begins before it, and
/// whether all is flushed behind it.
type One = (Option<i64>, i32, bool, bool);

fn ones() -> impl Strategy<Value = Vec<One>> {
    let said = proptest::option::weighted(0.8, 1i64..50);
    let file = proptest::bool::weighted(0.1);
    proptest::collection::vec((said, 0i32..9, file, any::<bool>()), 1..60)
}

fn plan(one: &One) -> Plan {
    Plan {
        does: Does::Rows(vec![Row::N { x: one.1 }; 1 + one.1 as usize]),
        style: Style::Serial,
        modern: true,
        file: one.2,
    }
}

/// Appends what stands in the primary's files behind the store's end, and what is said of each group.
fn write(store: &mut Store, primary: &Primary, said: &[One]) {
    for (number, _) in primary.files.iter().enumerate() {
        let number = number as u64 + 1;
        let mut group = 0;
        for (at, raw) in primary.events(number as usize) {
            let end = store.end().unwrap_or_default();
            let kind = raw[4];
            let here = Place {
                file: number,
                at: at as u64,
            };
            // All before this group, in all files.
            group = match kind {
                34 => primary
                    .done
                    .iter()
                    .take_while(|d| (d.file as u64, d.begin) < (number, at))
                    .count(),
                _ => group,
            };
            match kind {
                _ if here < end => {}
                15 => store.begin_mirror(number, &raw).expect("a good disk"),
                34 => store.append(raw, Part::Begin).expect("a good disk"),
                16 => {
                    store
                        .append(raw, Part::End(GroupName::Nameless, 7))
                        .expect("a good disk");
                    if let Some(last_committed) = said[group].0 {
                        store.hint_clock(LogicalClock {
                            last_committed,
                            sequence_number: primary.done[group].sequence,
                        });
                    }
                    if said[group].3 {
                        store.flush().expect("a good disk");
                    }
                }
                4 | 35 => store.append_between(raw).expect("a good disk"),
                _ => store.append(raw, Part::Within).expect("a good disk"),
            }
        }
    }
}

/// What is known of each group, as a reader finds it that begins at the n-th.
fn found(view: &Arc<View>, from: usize) -> Vec<Option<i64>> {
    let Some(file) = view.oldest() else {
        return Vec::new();
    };
    let mut cursor = Cursor::new(Arc::clone(view), Place { file, at: 4 });
    let mut reader = view.hints();
    let mut out = Vec::new();
    let mut n = 0;
    loop {
        match cursor.look().expect("readable") {
            Next::End => return out,
            Next::File(file) => cursor.turn(Place { file, at: 4 }),
            Next::Event(len) => {
                let raw = cursor.event(len).to_vec();
                let got = decoder::event_of(&raw, true);
                if let Some((_, sequence)) = got.clock {
                    n += 1;
                    if n > from {
                        let key = GroupKey::First(checksum_of(&raw));
                        out.push(reader.look(cursor.place(), key).map(|said| match said {
                            Said::Clock(clock) => {
                                assert_eq!(clock.sequence_number, sequence);
                                clock.last_committed
                            }
                            Said::Batch(id) => panic!("a commit id {id:?}"),
                        }));
                    }
                }
                cursor.pass(len);
            }
        }
    }
}

fn said(ones: &[One]) -> Vec<Option<i64>> {
    ones.iter().map(|one| one.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// From wherever one reads. After a kill or a power cut it has its own or none; what comes again
    /// instead of what was lost has what is said of it then.
    #[test]
    fn its_own_or_none(first in ones(), second in ones(), power in any::<bool>(), seed: u64) {
        let device = SimDevice::new(seed);
        let mut store = open(&device);
        let mut primary = Primary::after("5.7.44-log", &first.iter().map(plan).collect::<Vec<_>>());
        write(&mut store, &primary, &first);
        store.flush().expect("a good disk");
        let view = store.view();
        for from in [0, 1, first.len() / 2, first.len()] {
            prop_assert_eq!(found(&view, from), &said(&first)[from..]);
        }
        // The same after a restart.
        store.close().expect("a good disk");
        let mut store = open(&device);
        prop_assert_eq!(found(&store.view(), 0), said(&first));
        // Some are not flushed when it ends.
        for one in &second {
            primary.does(&plan(one));
        }
        let all = [&first[..], &second[..]].concat();
        write(&mut store, &primary, &all);
        drop(store);
        if power { device.crash(seed) } else { device.kill() }
        let mut store = open(&device);
        let kept = found(&store.view(), 0);
        prop_assert!(kept.len() >= first.len());
        for (n, hint) in kept.iter().enumerate() {
            prop_assert!(hint.is_none() || *hint == all[n].0, "{}", n);
        }
        let other: Vec<One> = all.iter().map(|one| (Some(99), one.1, one.2, true)).collect();
        write(&mut store, &primary, &other);
        let now = found(&store.view(), 0);
        prop_assert_eq!(now.len(), all.len());
        prop_assert_eq!(&now[..kept.len()], &kept[..]);
        prop_assert!(now[kept.len()..].iter().all(|hint| *hint == Some(99)));
    }

    /// Whatever stands beside a file: nothing breaks, and no group has another one's hint.
    #[test]
    fn anything_beside(first in ones(), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20)) {
        let device = SimDevice::new(1);
        let mut store = open(&device);
        let primary = Primary::after("5.7.44-log", &first.iter().map(plan).collect::<Vec<_>>());
        write(&mut store, &primary, &first);
        store.flush().expect("a good disk");
        if let Ok(file) = device.open(&beside(1)) {
            let len = file.len().expect("there") as usize;
            let mut bytes = vec![0; len];
            file.read_at(&mut bytes, 0).expect("readable");
            for (at, xor) in flips {
                bytes[at % len] ^= xor;
            }
            file.write_at(&mut [IoSlice::new(&bytes)], 0).expect("writable");
        }
        let from = first.len() / 3;
        for (hint, given) in found(&store.view(), from).iter().zip(&said(&first)[from..]) {
            prop_assert!(hint.is_none() || hint == given);
        }
    }
}

/// A record counts for the group at its place that begins with that very event, and no other.
#[test]
fn of_that_group_alone() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let one: One = (Some(7), 0, false, true);
    let primary = Primary::after("5.7.44-log", &[plan(&one), plan(&one)]);
    write(&mut store, &primary, &[one, one]);
    let view = store.view();
    let place = |n: usize| Place {
        file: 1,
        at: primary.done[n].begin as u64,
    };
    let first = |n: usize| {
        let events = primary.events(1);
        let of = events.iter().find(|(at, _)| *at == primary.done[n].begin);
        GroupKey::First(checksum_of(&of.expect("it is there").1))
    };
    let look = |place, key| view.hints().look(place, key);
    assert!(look(place(0), first(0)).is_some() && look(place(1), first(1)).is_some());
    for key in [
        first(1),
        GroupKey::First(0),
        GroupKey::Gtid(Gtid {
            domain: 0,
            server: 0,
            seqno: 1,
        }),
    ] {
        assert_eq!(look(place(0), key), None);
    }
    let elsewhere = Place {
        at: place(0).at + 1,
        ..place(0)
    };
    assert_eq!(look(elsewhere, first(0)), None);
    let elsewhere = Place {
        file: 2,
        ..place(0)
    };
    assert_eq!(look(elsewhere, first(0)), None);
}

#[test]
fn files_that_were_moved_away_leave_nothing_behind() {
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let some: One = (Some(7), 0, false, true);
    let primary = Primary::after("5.7.44-log", &[plan(&some), plan(&some), plan(&some)]);
    write(&mut store, &primary, &[some; 3]);
    assert_eq!(found(&store.view(), 0), [Some(7); 3]);
    drop(store);
    for name in device.list().expect("listed") {
        if name.starts_with("bin") || name.ends_with("mark") {
            device.remove(&name).expect("there");
        }
    }
    let mut store = open(&device);
    let none: One = (None, 0, false, true);
    write(&mut store, &primary, &[none; 3]);
    assert_eq!(found(&store.view(), 0), [None; 3]);
}
