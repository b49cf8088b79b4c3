//! Hints with GTIDs of MySQL, in the relay's own files: its connections break and go on at another
//! primary with other files, it is killed and loses power, and it reads the primary's tables now and then.

use std::sync::Arc;

use dromon_binlog::hints::{Hints, Limits};
use dromon_binlog::{Checksum, GtidSet};
use dromon_log::{Device, SimDevice};
use dromon_relay::pull::{Ingest, take};
use dromon_relay::serve::{Feed, Policy};
use dromon_relay::store::{Cursor, Kind, Next, Place, Store, StoreOptions, View, beside};
use proptest::prelude::*;

use crate::decoder::{self, Got};
use crate::model::{Does, Done, Plan, Row, Style, conflict, plan};
use crate::placed::{Dice, limits};
use crate::primary::{COMMITTED, Primary, SOURCE, catalog, set};
use crate::served;

const CRC: Checksum = Checksum::Crc32;

fn open(device: &SimDevice) -> Store {
    // Files are split amid those of the primary.
    open_with(device, 3000)
}

pub fn open_with(device: &SimDevice, file_max: u64) -> Store {
    let options = StoreOptions {
        prefix: "relay-bin".into(),
        point_every: 300,
        tail_max: 1000,
        file_max,
        kind: Kind::MySql,
        ..StoreOptions::default()
    };
    let opened = Store::open(Arc::new(device.clone()), options, GtidSet::new());
    opened.expect("nothing is damaged").0
}

fn ingest(store: &Store, limits: Limits) -> Ingest {
    let hints = Hints::behind(limits, store.executed().clone());
    Ingest::of_mysql().with_hints(hints)
}

/// MySQL from 8.0 on says when a group was committed, to the microsecond.
#[test]
fn when_it_was_committed() {
    let plan = |modern, file| Plan {
        does: Does::Rows(vec![Row::N { x: 1 }]),
        style: Style::Serial,
        modern,
        file,
    };
    let time = 1_700_000_000;
    let (seconds, exact) = (u64::from(time) * 1000, COMMITTED / 1000);
    assert_eq!(exact, seconds + 123);
    for gtids in [true, false] {
        let mut primary = match gtids {
            true => Primary::with_gtids("8.0.36", 1),
            false => Primary::new("8.0.36"),
        };
        let says = [(true, false), (false, false), (true, false), (false, true)];
        says.iter()
            .for_each(|(modern, file)| primary.does(&plan(*modern, *file)));
        let (mut ingest, mut store) = match gtids {
            true => (Ingest::of_mysql(), open_with(&SimDevice::new(1), 1 << 20)),
            false => (Ingest::mirroring("bin"), served::open(&SimDevice::new(1))),
        };
        let mut group = 0;
        let mut seen = Vec::new();
        for raw in primary.send_behind(0) {
            take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
            let begins = raw[4] == 33 || raw[4] == 34;
            group += usize::from(begins);
            let made = ingest.made_ms(time);
            // All of a group, and nothing between.
            let modern = group > 0 && says[group - 1].0 && ![4, 15, 35].contains(&raw[4]);
            assert_eq!(
                made,
                if modern { exact } else { seconds },
                "{gtids} {group} {}",
                raw[4]
            );
            seen.push(made);
        }
        assert!(seen.contains(&exact) && seen.contains(&seconds));
        assert_eq!(group, says.len());
        ingest.interrupt();
        assert_eq!(ingest.made_ms(7), 7000);
    }
}

/// How many transactions have come.
fn come(store: &Store) -> usize {
    let count = |(begin, end): &(u64, u64)| (end - begin) as usize;
    let executed = store.executed();
    executed.iter().flat_map(|(_, list)| list).map(count).sum()
}

/// Tables that were read while the primary went on; they are those of some moment between.
fn offer(done: &[Done], ingest: &mut Ingest, come: usize, dice: &mut Dice) {
    let all = done.len();
    let before = (come + dice.roll(4)).saturating_sub(1).min(all);
    let after = (before + dice.roll(4)).min(all);
    let at = before + dice.roll(after - before + 1);
    let changes = done[..at].iter().filter(|d| d.does == Does::Ddl);
    let unique = changes.count() % 2 == 0;
    let hints = ingest.hints().expect("they are computed");
    hints.offer(set(before), set(after), catalog(unique));
}

/// The number of each group that a replica with this set is sent, and its first event.
fn served(view: &Arc<View>, has: &GtidSet, policy: Policy) -> Vec<(u64, Got)> {
    let found = view.find_set(has).expect("readable").expect("it is served");
    let begin = found.begin.expect("there are files");
    let mut feed = Feed::new(9, CRC, true, begin.wanted, 0);
    feed.is_mysql();
    feed.policy(policy);
    let head = view.head(begin.place.file).expect("readable");
    let name = view.name(begin.place.file);
    feed.begin(&name, begin.place.at, &head.format_event, None)
        .expect("it fits");
    let mut cursor = Cursor::new(Arc::clone(view), begin.place);
    let mut hints = view.hints();
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
            Next::End => break,
        }
    }
    let packets = decoder::packets(feed.out(), 0);
    let all = packets.iter().map(|packet| decoder::event(packet, true));
    let first = all.filter(|got| got.kind == 33).map(|got| {
        assert_eq!(got.raw[20..36], SOURCE);
        let number = got.raw[36..44].try_into().expect("8 bytes");
        (u64::from_le_bytes(number), got)
    });
    first.collect()
}

/// A replica with this set gets what it lacks, with numbers that let no two run side by side that
/// conflict, whether or not it waits where a file begins. Gives how many were changed.
fn fits(primaries: [&Primary; 2], view: &Arc<View>, has: &GtidSet) -> Result<usize, TestCaseError> {
    let done = &primaries[1].done;
    let lacks: Vec<u64> = (1..=done.len() as u64)
        .filter(|n| !has.contains(&SOURCE, *n))
        .collect();
    let got = served(view, has, Policy::LogicalClock);
    let own = served(view, has, Policy::Pass);
    let numbers = |of: &[(u64, Got)]| of.iter().map(|one| one.0).collect::<Vec<_>>();
    prop_assert_eq!(numbers(&got), lacks);
    prop_assert_eq!(numbers(&own), numbers(&got));
    let mut changed = 0;
    for ((number, got), (_, own)) in got.iter().zip(&own) {
        prop_assert_eq!(got.but_the_clock(true), own.but_the_clock(true));
        let (last, sequence) = got.clock.expect("it has numbers");
        let (own_last, own_sequence) = own.clock.expect("it has numbers");
        let n = *number as usize - 1;
        let by = |p: &Primary| {
            let of = p.done.get(n);
            of.is_some_and(|d| (d.last_committed, d.sequence) == (own_last, own_sequence))
        };
        prop_assert!(primaries.iter().any(|p| by(p)), "as a primary said");
        prop_assert_eq!(sequence, own_sequence);
        prop_assert!((0..sequence).contains(&last));
        prop_assert!(own_last == 0 || last <= own_last);
        changed += usize::from(last != own_last);
        // With 0 it waits for all.
        if last == 0 {
            continue;
        }
        for beside in 1..(sequence - last) as usize {
            let (one, two) = (&done[n - beside], &done[n]);
            prop_assert!(
                !conflict(&one.does, &two.does, two.unique),
                "{:?} beside {:?}, which has {}",
                one,
                two,
                last
            );
        }
    }
    Ok(changed)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn none_that_conflict_run_side_by_side(
        plans in proptest::collection::vec((plan(), proptest::bool::weighted(0.06)), 0..50),
        by_first in 0usize..50,
        breaks in proptest::collection::vec((any::<bool>(), 0usize..150, 1usize..8, 0u8..4, any::<u64>()), 0..6),
        limits in limits(), seed in 1u64.., modern: bool
    ) {
        // The second one has all, the first one the first so many; their files differ.
        let version = if modern { "8.0.36" } else { "5.7.44-log" };
        let mut first = Primary::with_gtids(version, 1);
        let mut second = Primary::with_gtids(version, 2);
        for (n, (plan, file)) in plans.iter().enumerate() {
            if n < by_first {
                first.does(plan);
            }
            second.does(&Plan { file: *file, ..plan.clone() });
        }
        let device = SimDevice::new(7);
        let mut dice = Dice(seed);
        let mut store = open(&device);
        let mut ingest_now = ingest(&store, limits);
        let last = (true, usize::MAX, 3, 0, 0);
        for (by_second, after, every, how, seed) in breaks.into_iter().chain([last]) {
            let has = come(&store);
            let primary = if by_second || has > first.done.len() { &second } else { &first };
            for (n, raw) in primary.send_behind(has).iter().take(after).enumerate() {
                take(&mut ingest_now, &mut store, raw).expect("a good primary and disk");
                if n % every == 0 {
                    store.flush().expect("a good disk");
                }
                let hints = ingest_now.hints().expect("they are computed");
                if !hints.has_catalog() && dice.roll(4) == 0 {
                    offer(&primary.done, &mut ingest_now, come(&store), &mut dice);
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
        if view.oldest().is_none() {
            return Ok(());
        }
        let all = second.done.len();
        fits([&first, &second], &view, &GtidSet::new())?;
        for _ in 0..4 {
            // Any transactions, also out of order.
            let mut has = set(dice.roll(all + 1));
            for _ in 0..dice.roll(6) {
                has.add(SOURCE, dice.roll(all + 1) as u64);
            }
            fits([&first, &second], &view, &has)?;
        }
        // Damage beside the files.
        for number in 1..=view.end().file {
            let Ok(file) = device.open(&beside(number)) else { continue };
            let mut bytes = vec![0; file.len().expect("there") as usize];
            file.read_at(&mut bytes, 0).expect("readable");
            for _ in 0..bytes.len().min(5) {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            file.write_at(&mut [std::io::IoSlice::new(&bytes)], 0).expect("writable");
        }
        fits([&first, &second], &view, &GtidSet::new())?;
    }
}

fn serial(id: i32, u: i32) -> Plan {
    Plan {
        does: Does::Rows(vec![Row::T { id, u }]),
        style: Style::Serial,
        modern: true,
        file: false,
    }
}

/// The numbers themselves: tables are known from the second transaction on, until the DDL.
#[test]
fn by_example() {
    let ddl = Plan {
        does: Does::Ddl,
        ..serial(0, 0)
    };
    let next = Plan {
        file: true,
        ..serial(9, 9)
    };
    let mut primary = Primary::with_gtids("5.7.44-log", 1);
    for plan in [
        serial(1, 1),
        serial(2, 2),
        serial(3, 3),
        serial(4, 4),
        serial(5, 3),
        ddl,
        serial(6, 7),
        serial(7, 7),
        // Another file.
        next,
        serial(10, 7),
        serial(11, 7),
    ] {
        primary.does(&plan);
    }
    let mut store = open(&SimDevice::new(1));
    let mut ingest = ingest(&store, Limits::default());
    let offers = |hints: &mut Hints, before, after| {
        hints.offer(set(before), set(after), catalog(after < 6));
    };
    for raw in primary.send_behind(0) {
        let (had, now) = (come(&store), {
            take(&mut ingest, &mut store, &raw).expect("a good primary and disk");
            come(&store)
        });
        let hints = ingest.hints().expect("they are computed");
        match now {
            1 if had == 0 => offers(hints, 1, 2),
            // It was read before the DDL, or begun to be.
            6 if had == 5 => {
                offers(hints, 5, 6);
                assert!(!hints.has_offer() && !hints.has_catalog());
                offers(hints, 6, 7);
            }
            _ => {}
        }
        assert_eq!(hints.has_catalog(), matches!(now, 2..=5 | 7..), "{now}");
    }
    store.flush().expect("a good disk");
    let view = store.view();
    let last = |has: &GtidSet| -> Vec<i64> {
        let got = served(&view, has, Policy::LogicalClock);
        got.iter()
            .map(|(_, g)| g.clock.expect("numbers").0)
            .collect()
    };
    assert_eq!(last(&GtidSet::new()), [0, 1, 2, 2, 3, 5, 6, 7, 0, 1, 1]);
    // What was read behind the DDL does not know u as unique; the one before it was a barrier to all.
    assert_eq!(last(&set(4)), [3, 5, 6, 7, 0, 1, 1]);
    let changed = fits([&primary, &primary], &view, &GtidSet::new());
    assert_eq!(changed.expect("none that conflict"), 3);
}

/// Tables of a server whose successor never sends what that had are not waited for.
#[test]
fn what_was_read_elsewhere_is_withdrawn() {
    let mut hints = Hints::behind(Limits::default(), set(5));
    hints.offer(set(5), set(7), catalog(true));
    assert!(hints.has_offer() && !hints.has_catalog());
    hints.withdraw();
    assert!(!hints.has_offer() && !hints.has_catalog());
    hints.offer(set(4), set(5), catalog(true));
    assert!(
        !hints.has_offer() && !hints.has_catalog(),
        "begun too early"
    );
    hints.offer(set(5), set(5), catalog(true));
    assert!(hints.has_catalog());
}
