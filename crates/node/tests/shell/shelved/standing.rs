//! Clients that an applier may wait for, and who wait themselves before they are ordered.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dromon_node::Trx;

use super::{PATIENT, all_have, all_is_over, held_back, shelve};
use crate::chunks::{self, commit, end};
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, End, Key, Session, row};
use crate::world::{World, run};

/// A server asks a client to give way only when an applier comes to its lock, and not one that gets it
/// while the applier waits: behind the rollback of a stream that is shelved, or of one that runs again.
#[test]
fn who_waits_for_a_table_is_refused_where_an_applier_stands() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = shelve(world);
        let (patient, _) = held_back(world, &c, 70, 1);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!patient.is_finished(), "nobody is in need of it");
        c.holds.close_asleep(Point::ApplyStart);
        assert!(b.set(row(60), 1).is_committed());
        world.until("an applier stands", || {
            c.holds.waiting(Point::ApplyStart) > 0
        });
        let began = Instant::now();
        assert_eq!(end(patient), End::Deadlock);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "not at its patience's end"
        );
        c.holds.open(Point::ApplyStart);
        assert!(t.commit().is_committed());
        all_is_over(world);
        assert!(c.set(row(70), 2).is_committed(), "it may try again");
        world.settle();
        all_have(world, &[(1, 1), (60, 1), (70, 2)]);
        assert_eq!(
            world
                .report
                .times(&c.name, "waits for a lock that a client"),
            1
        );
    });
}

#[test]
fn so_is_who_waits_for_the_own_node_to_catch_up_but_later() {
    let options = "gcs.fc_limit=4;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S;evs.suspect_timeout=PT44S;evs.inactive_timeout=PT50S";
    run(2, options, |world| {
        let (a, b) = (world.db(1), world.db(2));
        b.holds.close_asleep(Point::ApplyStart);
        let began = Instant::now();
        let writer = {
            let a = a.clone();
            std::thread::spawn(move || {
                (1..=20)
                    .take_while(|n| a.set(row(*n), 1).is_committed())
                    .count()
            })
        };
        world.stopped_by(&b);
        let (client, _) = held_back(world, &b, 70, 1);
        assert_eq!(end(client), End::Deadlock);
        assert!(began.elapsed() > Duration::from_secs(3));
        assert!(!writer.is_finished(), "nobody is refused elsewhere");
        b.holds.open(Point::ApplyStart);
        assert_eq!(writer.join().expect("no panic"), 20);
        assert!(b.set(row(70), 2).is_committed());
        world.settle();
        all_have(world, &[(1, 1), (20, 1), (70, 2)]);
    });
}

/// n2, where the applier of what n1 wrote sleeps.
fn an_applier_stands(world: &World) -> Arc<Db> {
    let (a, b) = (world.db(1), world.db(2));
    b.holds.close_asleep(Point::ApplyStart);
    assert!(a.set(row(1), 1).is_committed());
    world.until("an applier stands", || {
        b.holds.waiting(Point::ApplyStart) > 0
    });
    b
}

/// It may have the row for which the applier waits.
#[test]
fn who_has_a_place_behind_an_applier_that_stands_runs_again_there() {
    run(2, PATIENT, |world| {
        let b = an_applier_stands(world);
        let mut t = b.begin();
        t.put(row(70), 1).expect("a free row");
        let client = commit(t);
        world.until("it gives its rows back", || b.locked() == 0);
        assert!(!client.is_finished());
        b.holds.open(Point::ApplyStart);
        let replayed = matches!(end(client), End::Committed { replayed: true, .. });
        assert!(replayed);
        world.settle();
        all_have(world, &[(1, 1), (70, 1)]);
    });
}

/// What its client has locked by LOCK TABLES stays locked until it hears of the failure.
fn hears_of_its_failure(world: &World, t: Session) {
    let trx = t.trx().expect("it wrote");
    let client = commit(t);
    world.until("it has failed", || {
        format!("{:?}", trx.lock().stage) == "Failed" || client.is_finished()
    });
    assert_eq!(end(client), End::Deadlock);
}

#[test]
fn who_failed_behind_an_applier_that_stands_is_told_before_its_place_comes() {
    run(2, PATIENT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        b.holds.close_asleep(Point::ApplyStart);
        let mut t = b.begin();
        t.put(row(1), 7).expect("a free row");
        let first = a.set(row(1), 1).seqno();
        world.until("an applier stands", || {
            b.holds.waiting(Point::ApplyStart) > 0
        });
        hears_of_its_failure(world, t);
        assert_eq!(b.holds.waiting(Point::ApplyStart), 1, "it still stands");
        b.holds.open(Point::ApplyStart);
        assert_eq!(b.set(row(2), 2).seqno(), first + 2);
        world.settle();
        all_have(world, &[(1, 1), (2, 2)]);
    });
}

#[test]
fn behind_a_statement_that_stands_too() {
    run(2, PATIENT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        assert!(a.set(row(1), 1).is_committed());
        world.settle();
        let mut t = b.begin();
        t.put(row(1), 7).expect("a free row");
        // What passed certification behind it has its turn there.
        let mut passes = b.begin();
        passes.put(Key { table: 2, row: 1 }, 1).expect("a free row");
        b.holds.close_asleep(Point::ApplyStart);
        let add = Ddl::Add { table: 0, n: 10 };
        assert!(a.ddl(&add).is_committed());
        world.until("an applier stands", || {
            b.holds.waiting(Point::ApplyStart) > 0
        });
        let passes = commit(passes);
        hears_of_its_failure(world, t);
        assert!(b.locked() > 0, "nobody runs again for that");
        b.holds.open(Point::ApplyStart);
        let replayed = matches!(end(passes), End::Committed { replayed: true, .. });
        assert!(!replayed);
        assert!(a.set(row(2), 2).is_committed(), "its place is passed");
        world.settle();
        all_have(world, &[(1, 11), (2, 2)]);
    });
}

/// It runs at its place, inside commit order.
#[test]
fn behind_a_statement_that_stands_at_its_place_too() {
    run(2, PATIENT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        assert!(a.set(row(1), 1).is_committed());
        world.settle();
        for (from, times) in [(&a, 1), (&b, 2)] {
            // Nothing that the statement asks to give way: that one comes later.
            b.holds.close_asleep(Point::DdlRan);
            let from = from.clone();
            let statement = std::thread::spawn(move || from.ddl(&Ddl::Add { table: 0, n: 10 }));
            world.until("it stands", || b.holds.waiting(Point::DdlRan) > 0);
            let mut t = b.begin();
            t.put(Key { table: 2, row: 1 }, 7).expect("a free row");
            t.touches(row(1));
            hears_of_its_failure(world, t);
            b.holds.open(Point::DdlRan);
            assert!(statement.join().expect("no panic").is_committed());
            assert!(a.set(row(2), 2).is_committed(), "its place is passed");
            world.settle();
            all_have(world, &[(1, 1 + 10 * times), (2, 2)]);
        }
    });
}

/// Its chunks wait until this node has applied the first of them, which lie behind the applier.
/// A client of `db` commits a large one, whose first chunk is ordered.
fn out_in_chunks(world: &World, db: &Arc<Db>) -> (Arc<Trx>, JoinHandle<End>) {
    // Who has just joined, and has not reported yet, is not waited for.
    std::thread::sleep(Duration::from_millis(500));
    let mut t = db.begin();
    for n in 100..400 {
        t.put(row(n), 1).expect("a free row");
    }
    let trx = t.trx().expect("it wrote");
    let client = commit(t);
    world.until("its first chunk is ordered", || {
        format!("{:?}", trx.lock().stage) == "Chunked"
    });
    (trx, client)
}

#[test]
fn so_does_a_large_one_that_is_out_in_chunks() {
    run(2, chunks::PATIENT, |world| {
        let b = an_applier_stands(world);
        let (trx, client) = out_in_chunks(world, &b);
        world.until("it gives its rows back", || b.locked() == 0);
        assert_eq!(format!("{:?}", trx.lock().stage), "Chunked");
        assert!(!client.is_finished());
        b.holds.open(Point::ApplyStart);
        let replayed = matches!(end(client), End::Committed { replayed: true, .. });
        assert!(replayed);
        world.settle();
        all_have(world, &[(1, 1), (100, 1), (399, 1)]);
    });
}

/// A storage engine that waits for its disk looks the same.
#[test]
fn but_not_behind_one_that_stands_for_a_moment() {
    run(2, chunks::PATIENT, |world| {
        let b = an_applier_stands(world);
        let (_, client) = out_in_chunks(world, &b);
        std::thread::sleep(Duration::from_secs(3));
        b.holds.open(Point::ApplyStart);
        let end = end(client);
        assert!(matches!(
            end,
            End::Committed {
                replayed: false,
                ..
            }
        ));
        world.settle();
        all_have(world, &[(1, 1), (100, 1), (399, 1)]);
    });
}

#[test]
fn a_fragment_behind_an_applier_that_stands_ends_its_stream() {
    run(2, PATIENT, |world| {
        let b = an_applier_stands(world);
        let mut t = b.begin();
        t.put(row(70), 1).expect("a free row");
        assert_eq!(t.fragment(), Err(End::Deadlock));
        b.holds.open(Point::ApplyStart);
        all_is_over(world);
        all_have(world, &[(1, 1), (70, 0)]);
    });
}

const DUPLICATE: &str = "Duplicate entry, Error_code: 1062;\0";

/// Keys do not tell of every duplicate: two write sets pass that no database takes both of.
#[test]
fn who_runs_again_and_fails_as_everywhere_is_told_so() {
    run(2, PATIENT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        for db in [&a, &b] {
            db.fail_at(row(70), DUPLICATE);
        }
        an_applier_stands(world);
        let mut t = b.begin();
        t.put(row(70), 1).expect("a free row");
        let client = commit(t);
        world.until("it gives its rows back", || b.locked() == 0);
        b.holds.open(Point::ApplyStart);
        let before = b.count("local_commits");
        assert_eq!(end(client), End::Deadlock, "it is committed nowhere");
        assert_eq!(b.count("local_commits"), before);
        world.settle();
        assert_eq!(world.members().len(), 2);
        all_have(world, &[(1, 1), (70, 0)]);
    });
}

/// A fragment that is rolled back at its origin, and fails on the others: all have the same.
fn given_up_and_failed(nodes: usize) {
    run(nodes, PATIENT, move |world| {
        let b = world.db(2);
        for n in 1..nodes {
            let n = if n == 2 { 3 } else { n };
            world.db(n).fail_at(row(70), DUPLICATE);
        }
        an_applier_stands(world);
        let mut t = b.begin();
        t.put(row(70), 1).expect("a free row");
        assert_eq!(t.fragment(), Err(End::Deadlock));
        b.holds.open(Point::ApplyStart);
        all_is_over(world);
        assert_eq!(world.members().len(), nodes);
        assert!(b.set(row(71), 1).is_committed());
        world.settle();
        all_have(world, &[(1, 1), (70, 0), (71, 1)]);
    });
}

#[test]
fn a_fragment_given_up_at_its_origin_may_fail_on_the_other_one() {
    given_up_and_failed(2);
}

#[test]
fn a_fragment_given_up_at_its_origin_may_fail_on_all_others() {
    given_up_and_failed(3);
}
