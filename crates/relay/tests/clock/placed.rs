//! Hints found out while pulling, by a relay whose connections break, that is killed and loses power,
//! and that reads the primary's tables now and then.

use std::io::IoSlice;
use std::sync::Arc;

use dromon_binlog::Checksum;
use dromon_binlog::hints::{Hints, Limits};
use dromon_log::{Device, SimDevice};
use dromon_relay::pull::{Ingest, take};
use dromon_relay::serve::Policy;
use dromon_relay::store::{Place, Store, View, beside};
use proptest::prelude::*;

use crate::decoder::{self, Got};
use crate::model::{Does, Plan, Row, Style, check, plan};
use crate::primary::{Primary, catalog};
use crate::served::{open, served};

const CRC: Checksum = Checksum::Crc32;

/// Random enough.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

fn ingest(store: &Store, limits: Limits) -> Ingest {
    let end = store.end().unwrap_or_default().as_position();
    Ingest::mirroring("bin").with_hints(Hints::behind(limits, end))
}

/// Tables that were read while the primary went from one place to another, behind or before what has
/// come here. They are those of some moment between.
fn offer(primary: &Primary, ingest: &mut Ingest, come: usize, dice: &mut Dice) {
    let all = primary.done.len();
    let before = (come + dice.roll(4)).saturating_sub(1).min(all);
    let after = (before + dice.roll(4)).min(all);
    let at = before + dice.roll(after - before + 1);
    let changes = primary.done[..at].iter().filter(|d| d.does == Does::Ddl);
    let unique = changes.count() % 2 == 0;
    let hints = ingest.hints().expect("they are computed");
    hints.offer(
        primary.place(before).as_position(),
        primary.place(after).as_position(),
        catalog(unique),
    );
}

/// The primary's events as the decoder reads them, from a place on.
fn of_primary(primary: &Primary, from: Place) -> Vec<Vec<Got>> {
    let of = |number: usize| {
        let events = primary.events(number).into_iter();
        let at = if number as u64 == from.file {
            from.at
        } else {
            4
        };
        let behind = events.filter(|(begins, _)| *begins as u64 >= at);
        behind
            .map(|(_, raw)| decoder::event_of(&raw, true))
            .collect()
    };
    (from.file as usize..=primary.files.len()).map(of).collect()
}

/// What a replica gets from a place on: the primary's events, but for `last_committed`, which lets
/// no two run side by side that conflict.
fn fits(primary: &Primary, view: &Arc<View>, from: Place) -> Result<(), TestCaseError> {
    let wanted = of_primary(primary, from);
    for checksum in [CRC, Checksum::Off] {
        let got = served(view, from, Policy::LogicalClock, checksum);
        prop_assert_eq!(got.len(), wanted.len());
        for (n, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            let real: Vec<&Got> = got.iter().filter(|got| !got.made_up()).collect();
            // The format description of a file that is begun in its middle is made up.
            prop_assert_eq!(real.len(), wanted.len());
            for (got, wanted) in real.iter().zip(wanted) {
                let has = checksum == CRC;
                if got.kind != 15 && has {
                    prop_assert_eq!(got.but_the_clock(true), wanted.but_the_clock(true));
                } else if got.kind != 15 {
                    let len = wanted.raw.len() - 4;
                    // Its length differs as well.
                    prop_assert_eq!(
                        &got.but_the_clock(false)[13..],
                        &wanted.but_the_clock(false)[13..len]
                    );
                }
            }
            let clocks: Vec<Got> = got
                .iter()
                .filter(|got| got.clock.is_some())
                .cloned()
                .collect();
            check(&primary.of_file(from.file as usize + n), &clocks)?;
        }
    }
    // As the primary says, byte for byte.
    let passed = served(view, from, Policy::Pass, CRC);
    for (got, wanted) in passed.iter().zip(&wanted) {
        let real = got.iter().filter(|got| !got.made_up());
        prop_assert!(real.eq(wanted.iter()));
    }
    Ok(())
}

pub fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![Just(4usize), Just(30), Just(10_000)].prop_map(|history_keys| Limits {
        history_keys,
        ..Limits::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn none_that_conflict_run_side_by_side(
        plans in proptest::collection::vec(plan(), 0..50),
        breaks in proptest::collection::vec((0usize..150, 1usize..8, 0u8..4, any::<u64>()), 0..5),
        limits in limits(), seed in 1u64.., modern: bool
    ) {
        let primary = Primary::after(if modern { "8.0.36" } else { "5.7.44-log" }, &plans);
        let device = SimDevice::new(7);
        let mut dice = Dice(seed);
        let mut store = open(&device);
        let mut ingest_now = ingest(&store, limits);
        for (after, every, how, seed) in breaks.into_iter().chain([(usize::MAX, 3, 0, 0)]) {
            let from = store.end().unwrap_or(Place { file: 1, at: 4 });
            for (n, raw) in primary.send(from).iter().take(after).enumerate() {
                take(&mut ingest_now, &mut store, raw).expect("a good primary and disk");
                if n % every == 0 {
                    store.flush().expect("a good disk");
                }
                let hints = ingest_now.hints().expect("they are computed");
                if !hints.has_catalog() && dice.roll(4) == 0 {
                    let end = store.end().unwrap_or_default();
                    let come = primary.done.iter().enumerate().filter(|(n, _)| primary.place(n + 1) <= end);
                    offer(&primary, &mut ingest_now, come.count(), &mut dice);
                }
            }
            match how {
                0 | 1 => {
                    ingest_now.interrupt();
                    store.abandon().expect("a good disk");
                    store.flush().expect("a good disk");
                    continue;
                }
                2 => {
                    drop(store);
                    device.kill();
                }
                _ => {
                    drop(store);
                    device.crash(seed);
                }
            }
            store = open(&device);
            ingest_now = ingest(&store, limits);
        }
        let view = store.view();
        for number in 1..=primary.files.len() as u64 {
            fits(&primary, &view, Place { file: number, at: 4 })?;
        }
        for done in primary.done.iter().step_by(7) {
            let at = done.begin as u64;
            fits(&primary, &view, Place { file: done.file as u64, at })?;
        }
        // Damage beside the files.
        for number in 1..=primary.files.len() as u64 {
            let Ok(file) = device.open(&beside(number)) else { continue };
            let mut bytes = vec![0; file.len().expect("there") as usize];
            file.read_at(&mut bytes, 0).expect("readable");
            for _ in 0..bytes.len().min(5) {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            file.write_at(&mut [IoSlice::new(&bytes)], 0).expect("writable");
        }
        fits(&primary, &view, Place { file: 1, at: 4 })?;
    }
}

/// The numbers themselves.
#[test]
fn by_example() {
    let t = |id, u| Does::Rows(vec![Row::T { id, u }]);
    let c = |id, pid| Does::Rows(vec![Row::C { id, pid }]);
    let n = || Does::Rows(vec![Row::N { x: 1 }]);
    let plan = |does, style, file| Plan {
        does,
        style,
        modern: true,
        file,
    };
    let serial = |does| plan(does, Style::Serial, false);
    let plans = [
        // Without tables all are barriers, which the primary knows better.
        serial(t(1, 1)),
        serial(t(2, 2)),
        plan(t(3, 3), Style::Knows(0), false),
        plan(t(4, 4), Style::Zero, false),
        // Tables are known.
        serial(t(5, 5)),
        serial(t(6, 6)),
        serial(t(7, 5)),
        serial(c(1, 6)),
        serial(n()),
        serial(n()),
        plan(c(2, 6), Style::Zero, false),
        plan(t(9, 9), Style::Knows(0), false),
        serial(Does::Statement),
        serial(t(8, 8)),
        serial(t(8, 9)),
        // They are not, any more.
        serial(Does::Ddl),
        serial(t(10, 10)),
        // Another file; tables are known from its second one on.
        plan(t(1, 1), Style::Serial, true),
        serial(t(2, 2)),
        serial(t(3, 3)),
        serial(t(4, 3)),
        serial(c(4, 3)),
    ];
    let primary = Primary::after("5.7.44-log", &plans);
    let device = SimDevice::new(1);
    let mut store = open(&device);
    let mut ingest = ingest(&store, Limits::default());
    for raw in primary.send(Place { file: 1, at: 4 }) {
        for (known, unique) in [(4, true), (18, false)] {
            let place = primary.place(known);
            if store.end() == Some(place) {
                let hints = ingest.hints().expect("they are computed");
                hints.offer(place.as_position(), place.as_position(), catalog(unique));
            }
        }
        take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
    }
    store.flush().expect("a good disk");
    let start = Place { file: 1, at: 4 };
    let files = served(&store.view(), start, Policy::LogicalClock, CRC);
    let clocks = |n: usize| -> Vec<i64> {
        let all = files[n].iter().filter_map(|got| got.clock);
        all.map(|(last, _)| last).collect()
    };
    let first = [
        // The primary's.
        0, 1, 1, 0, //
        // Not before the catalog, which settles all.
        4, 4, 5, 6, 4, 9, 6, // The primary knows more.
        1, //
        12, 13, 14, 15, 16,
    ];
    assert_eq!(clocks(0), first);
    assert_eq!(clocks(1), [0, 1, 1, 1, 3]);
    // Nobody has tables of the wrong kind: without the policy nothing is changed.
    let passed = served(&store.view(), start, Policy::Pass, CRC);
    let own: Vec<i64> = primary.done.iter().map(|d| d.last_committed).collect();
    let clocks = passed.iter().flatten().filter_map(|got| got.clock);
    assert_eq!(clocks.map(|(last, _)| last).collect::<Vec<_>>(), own);
}

/// A relay that goes on in the middle of a file knows nothing of what came before: what comes depends
/// on it.
#[test]
fn behind_a_restart() {
    let row = |id| Plan {
        does: Does::Rows(vec![Row::T { id, u: id }]),
        style: Style::Serial,
        modern: false,
        file: false,
    };
    let plans: Vec<Plan> = [1, 2, 3, 4, 5, 1, 6, 7].map(row).into();
    let primary = Primary::after("5.7.44-log", &plans);
    let device = SimDevice::new(1);
    for upto in [4, 8] {
        let mut store = open(&device);
        let mut ingest = ingest(&store, Limits::default());
        let here = store.end().unwrap_or(Place { file: 1, at: 4 });
        let hints = ingest.hints().expect("they are computed");
        hints.offer(here.as_position(), here.as_position(), catalog(true));
        for raw in primary.send(here) {
            if store.end() < Some(primary.place(upto)) {
                take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
            }
        }
        store.close().expect("a good disk");
    }
    let view = open(&device).view();
    let files = served(&view, Place { file: 1, at: 4 }, Policy::LogicalClock, CRC);
    let clocks: Vec<_> = files[0].iter().filter_map(|got| got.clock).collect();
    let expected = [
        (0, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (4, 5),
        (4, 6),
        (4, 7),
        (4, 8),
    ];
    assert_eq!(clocks, expected);
}
