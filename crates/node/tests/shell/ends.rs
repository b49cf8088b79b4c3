//! The end of a large transaction in chunks: its server removes all that it stored of them, which
//! may take seconds, and nobody is to wait for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chunks::{PATIENT, begin, commit, end, go_on, large, nothing_open};
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, row};
use crate::world::{World, run};

/// Those that apply what db2 sends.
fn others(world: &World) -> [Arc<Db>; 2] {
    [world.db(1), world.db(3)]
}

fn for_others(world: &World, f: impl FnMut(Arc<Db>)) {
    others(world).into_iter().for_each(f);
}

/// All have begun an end, and are not ready for it.
fn hold_the_end(world: &World) {
    world.until("the end is begun on both", || {
        let at = |db: &Arc<Db>| db.holds.waiting(Point::EndStart);
        others(world).iter().all(|db| at(db) == 1)
    });
}

/// A small one of each node.
fn small_ones_pass(world: &World) {
    for db in world.members() {
        let writes = db.clone();
        let client =
            std::thread::spawn(move || writes.set(row(9000 + writes.n as u32), 1).is_committed());
        world.until("a small one passes", || client.is_finished());
        assert!(client.join().expect("no panic"), "on {}", db.name);
    }
}

#[test]
fn it_is_begun_ahead_though_nobody_writes() {
    run(3, PATIENT, |world| {
        assert!(large(&world.db(2), 1, 1).commit().is_committed());
        nothing_open(world);
        for db in others(world) {
            assert_eq!(db.count("dromon_chunks_begun_ahead"), 1, "on {}", db.name);
        }
    });
}

#[test]
fn small_ones_pass_one_that_takes_its_time() {
    run(3, PATIENT, |world| {
        for_others(world, |db| db.holds.close(Point::EndStart));
        let client = commit(large(&world.db(2), 1, 1));
        hold_the_end(world);
        for db in world.members() {
            let open = db.stat("dromon_large_open");
            assert!(open.contains("3 of 3 chunks"), "{open} on {}", db.name);
        }
        small_ones_pass(world);
        assert!(!client.is_finished());
        for_others(world, |db| db.holds.open(Point::EndStart));
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn another_large_one_waits_for_it() {
    run(3, PATIENT, |world| {
        let two = world.db(2);
        for_others(world, |db| db.holds.close(Point::EndStart));
        let mut longer = large(&two, 1001, 1);
        for n in 2000..2400 {
            longer.put(row(n), 1).expect("a free row");
        }
        let first = begin(world, large(&two, 1, 1));
        let second = begin(world, longer);
        go_on(world);
        hold_the_end(world);
        std::thread::sleep(Duration::from_secs(1));
        small_ones_pass(world);
        assert!(!first.is_finished() && !second.is_finished());
        for_others(world, |db| db.holds.open(Point::EndStart));
        for client in [first, second] {
            assert!(end(client).is_committed());
        }
        nothing_open(world);
    });
}

/// A statement that came before it, and was not run yet when it was begun.
#[test]
fn who_throws_the_chunks_away_amid_it_does_not_hold_it_back() {
    run(3, PATIENT, |world| {
        let two = world.db(2);
        let mut t = two.begin();
        for n in 0..50 {
            t.put(row(n), 1).expect("a free row");
        }
        let client = begin(world, t);
        assert!(world.report.said("are applied in 2 chunks"));
        // Its first chunk, then its second one.
        for (held, next) in [
            (Point::ApplyStart, Point::ApplyLeft),
            (Point::ApplyLeft, Point::ApplyInCommit),
        ] {
            for_others(world, |db| db.holds.close(next));
            for_others(world, |db| db.holds.open(held));
            world.until("a chunk is held there", || {
                others(world).iter().all(|db| db.holds.waiting(next) == 1)
            });
        }
        for_others(world, |db| db.holds.close(Point::DdlRan));
        assert!(two.ddl(&Ddl::Add { table: 9, n: 1 }).is_committed());
        for_others(world, |db| db.holds.open(Point::ApplyInCommit));
        world.until("the end lies ahead, behind the statement", || {
            let ran = |db: &Arc<Db>| db.holds.waiting(Point::DdlRan) == 1;
            let begun = |db: &Arc<Db>| db.count("dromon_chunks_begun_ahead") == 1;
            others(world).iter().all(|db| ran(db) && begun(db))
        });
        for db in others(world) {
            db.throw_streaming_away();
            db.holds.open(Point::DdlRan);
        }
        // Nobody took over from who could not ask.
        let since = Instant::now();
        assert!(end(client).is_committed());
        assert!(since.elapsed() < Duration::from_secs(9));
        nothing_open(world);
        for db in others(world) {
            assert_eq!(db.read(row(29)), 1, "on {}", db.name);
        }
    });
}

/// As with a binary log, into which its server copies all of it.
#[test]
fn a_server_that_takes_its_time_with_an_own_one_stops_nobody() {
    let options =
        format!("{PATIENT};gcs.fc_limit=4;gcs.fc_single_primary=yes;dromon.stall_patience=PT0.3S");
    run(3, &options, |world| {
        let two = world.db(2);
        two.holds.close(Point::ClientInCommit);
        let client = commit(large(&two, 1, 1));
        world.until("the client is in commit order", || {
            two.holds.waiting(Point::ClientInCommit) == 1
        });
        // Thrice its patience; of its clients none commits meanwhile.
        let since = Instant::now();
        let mut n = 0;
        while since.elapsed() < Duration::from_secs(1) || n < 20 {
            n += 1;
            assert!(world.db(1).set(row(9000 + n), 1).is_committed());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(two.count("local_recv_queue") > 4);
        assert_eq!(two.count("flow_control_sent"), 0);
        two.holds.open(Point::ClientInCommit);
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}
