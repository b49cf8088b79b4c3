//! At what pace the chunks of large transactions come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::chunks::{PATIENT, apply_the_first, begin, commit, end, go_on, nothing_open};
use crate::toy::holds::Point;
use crate::toy::{Db, Entry, Session, row};
use crate::world::{World, run};

/// An applier takes so long for a chunk, or for a small one.
const SLOW: Duration = Duration::from_millis(20);
/// 400 rows make some 16 chunks.
const MANY: u32 = 400;
/// So often it is tried on a starved machine.
const TRIES: u32 = 4;

fn many(db: &Arc<Db>, from: u32) -> Session {
    let mut t = db.begin();
    for n in from..from + MANY {
        t.put(row(n), 1).expect("a free row");
    }
    t
}

/// Chunks lie ahead only where small ones come in between.
fn small_ones(db: &Arc<Db>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (db, stop) = (db.clone(), stop.clone());
    std::thread::spawn(move || {
        for n in 0.. {
            if stop.load(Relaxed) {
                break;
            }
            // On a starved machine it may be refused for a moment.
            let _ = db.set(row(1 + n % 50), 1);
            std::thread::sleep(Duration::from_millis(5));
        }
    })
}

/// The sources of all chunks, in the order of their places.
fn chunks(db: &Db) -> Vec<Entry> {
    let journal = db.journal().into_values();
    journal
        .filter(|e| e.is_chunk() && matches!(e, Entry::Fragment(..)))
        .collect()
}

/// Everybody has heard of everybody: before that nobody is waited for.
fn heard() {
    std::thread::sleep(Duration::from_millis(1_200));
}

/// The member that asks for the next chunk of what db2 sends.
fn who_asks(world: &World) -> (Arc<Db>, Arc<Db>) {
    let (one, three) = (world.db(1), world.db(3));
    match one.own() < three.own() {
        true => (one, three),
        false => (three, one),
    }
}

/// What these have paused for a share: a twentieth makes it nineteen times what a chunk takes, if small ones come in
/// between. On a starved machine they may not.
fn paused(dbs: &[Arc<Db>]) -> Duration {
    let held = dbs.iter().map(|db| db.count("dromon_bulk_held_ns"));
    Duration::from_nanos(held.sum::<i64>() as u64)
}

#[test]
fn a_share_bounds_what_is_applied_in_chunks() {
    let options = format!("{PATIENT};dromon.bulk_share=0.05");
    run(3, &options, |world| {
        heard();
        let others = [world.db(1), world.db(3)];
        others.iter().for_each(|db| db.holds.slow(SLOW));
        let stop = Arc::new(AtomicBool::new(false));
        let small = small_ones(&world.db(2), &stop);
        let bounded = (1..=TRIES).any(|n| {
            let before = paused(&others);
            let client = commit(many(&world.db(2), n * 10_000));
            assert!(end(client).is_committed());
            paused(&others) - before > SLOW * 19
        });
        stop.store(true, Relaxed);
        small.join().expect("no panic");
        nothing_open(world);
        assert!(bounded);
    });
}

/// The one that asks has no part in applying them: it goes by the others.
#[test]
fn a_share_holds_where_who_asks_does_not_apply_them() {
    let options = format!("{PATIENT};dromon.bulk_share=0.05");
    run(3, &options, |world| {
        heard();
        let (asks, other) = who_asks(world);
        let asks_first = [asks.clone()];
        let bounded = (1..=TRIES).any(|n| {
            other.holds.slow(Duration::ZERO);
            let before = paused(&asks_first);
            let client = begin(world, many(&world.db(2), n * 10_000));
            apply_the_first(world, &asks);
            asks.throw_streaming_away();
            other.holds.slow(SLOW);
            let stop = Arc::new(AtomicBool::new(false));
            let small = small_ones(&world.db(2), &stop);
            asks.holds.open(Point::ApplyLeft);
            go_on(world);
            assert!(end(client).is_committed());
            stop.store(true, Relaxed);
            small.join().expect("no panic");
            nothing_open(world);
            paused(&asks_first) - before > SLOW * 10
        });
        assert!(bounded);
    });
}

#[test]
fn several_large_ones_take_turns() {
    run(3, PATIENT, |world| {
        heard();
        let first = begin(world, many(&world.db(2), 10_000));
        let second = begin(world, many(&world.db(2), 20_000));
        go_on(world);
        assert!(end(first).is_committed());
        assert!(end(second).is_committed());
        nothing_open(world);
        let order = chunks(&world.db(3));
        let one = &order[0];
        let of: Vec<bool> = order.iter().map(|e| e == one).collect();
        let (ones, all) = (of.iter().filter(|one| **one).count(), of.len());
        assert!(ones.abs_diff(all - ones) <= 1, "{ones} of {all}");
        let three = |w: &[bool]| w[0] == w[1] && w[1] == w[2];
        assert!(!of.windows(3).any(three), "{of:?}");
    });
}

/// One who does not get through with them is not left behind by more than four chunks, as long as he is heard: on a
/// starved machine he may not be.
#[test]
fn a_slow_one_is_not_left_behind() {
    run(3, PATIENT, |world| {
        heard();
        let (asks, slow) = who_asks(world);
        let waited = (1..=TRIES).any(|n| {
            let before = chunks(&asks).len();
            slow.holds.close(Point::ApplyInCommit);
            let client = commit(many(&world.db(2), n * 10_000));
            world.until("some have come", || chunks(&asks).len() >= before + 3);
            std::thread::sleep(Duration::from_millis(1_500));
            let came = chunks(&asks).len() - before;
            let waits = came <= 5 && !client.is_finished();
            slow.holds.open(Point::ApplyInCommit);
            assert!(end(client).is_committed());
            nothing_open(world);
            waits
        });
        assert!(waited);
    });
}
