//! A node that is told to stop while it has work in hand, and waits for that in vain: what it
//! has not done when it leaves is not lost to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::Phase;
use dromon_writeset::Seqno;

use crate::chunks::{PATIENT, commit, end};
use crate::left::wide;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, End, State, row};
use crate::world::{World, run};

/// Nodes wait for a moment only.
fn with_little_time(world: &World) {
    *world.finish.lock().expect("nobody panicked") = Duration::from_secs(1);
}

fn stops(db: &Arc<Db>) -> JoinHandle<()> {
    let db = db.clone();
    std::thread::spawn(move || db.disconnect())
}

/// Node 3 starts again on what `before` left, whose engine tells the position.
fn comes_back(world: &World, before: &Db) {
    let disk = before.disk();
    let position = disk.position;
    let again = world.open(3, disk, position);
    again.connect(&World::url(), false).expect("it is a member");
    world.synced(&again);
    world.settle();
}

/// From `first` on up to its engine's position: who wakes late may still have done all of it.
fn has_all(db: &Db, first: Seqno) {
    let (at, journal) = (db.position().seqno, db.journal());
    assert!(at >= first);
    let lacks: Vec<Seqno> = (first..=at).filter(|s| !journal.contains_key(s)).collect();
    assert!(lacks.is_empty(), "at {at}, without {lacks:?}");
}

#[test]
fn what_depends_on_what_is_still_at_work_is_not_passed_over() {
    run(2, "", |world| {
        with_little_time(world);
        let (one, slow) = (world.db(1), world.join(3));
        world.voters(3);
        slow.leaves_early.store(true, Ordering::Relaxed);
        slow.holds.close(Point::ApplyLeft);
        let first = one.node().last_committed().seqno + 1;
        assert!(one.set(row(1), 1).is_committed());
        world.until("it has left commit order", || {
            slow.holds.waiting(Point::ApplyLeft) == 1
        });
        // The next one waits for it, and the third for its turn.
        assert!(one.set(row(1), 2).is_committed());
        slow.holds.close(Point::ApplyLocked);
        assert!(one.set(row(2), 3).is_committed());
        world.until("it is applied", || {
            slow.applying() == BTreeSet::from([first, first + 2])
        });
        slow.holds.open(Point::ApplyLocked);
        let stopped = stops(&slow);
        world.until("it gives up", || slow.state() == State::Disconnected);
        assert!(world.report.said("leaving before everything up to seqno"));
        slow.holds.open_all();
        stopped.join().expect("no panic");
        has_all(&slow, first);
        comes_back(world, &slow);
    });
}

#[test]
fn what_lies_in_the_log_alone_is_not_passed_over() {
    run(2, PATIENT, |world| {
        with_little_time(world);
        let one = world.db(1);
        let slow = world.joins_with(3, 1);
        world.voters(3);
        slow.leaves_early.store(true, Ordering::Relaxed);
        slow.holds.close(Point::ApplyStart);
        let first = one.node().last_committed().seqno + 1;
        assert!(one.set(row(5000), 1).is_committed());
        let large = commit(wide(&one, 1, 7));
        world.until("its first chunk waits there", || {
            slow.count("local_recv_queue") >= 1
        });
        assert!(one.set(row(5001), 1).is_committed());
        assert!(one.set(row(5000), 2).is_committed());
        world.until("all of it waits there", || {
            slow.count("local_recv_queue") >= 3
        });
        let stopped = stops(&slow);
        world.until("it closes its log", || slow.node().phase() == Phase::Closed);
        assert!(world.report.said("did not come back in time"));
        slow.holds.open_all();
        stopped.join().expect("no panic");
        has_all(&slow, first);
        assert!(!world.report.said("Inconsistency detected"));
        // Whatever became of it, it is the same everywhere.
        let _ = end(large);
        comes_back(world, &slow);
    });
}

/// Its server would send it again by itself if it were told that the connection was lost.
#[test]
fn a_statement_that_has_its_place_and_is_not_run_here_is_not_sent_again() {
    run(2, "", |world| {
        with_little_time(world);
        let (one, slow) = (world.db(1), world.join(3));
        world.voters(3);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        slow.leaves_early.store(true, Ordering::Relaxed);
        slow.holds.close(Point::ApplyStart);
        assert!(one.set(row(2), 1).is_committed());
        let client = {
            let slow = slow.clone();
            std::thread::spawn(move || slow.ddl(&Ddl::Add { table: 0, n: 1 }))
        };
        world.until("it has run on another one", || one.read(row(1)) == 2);
        let stopped = stops(&slow);
        assert_eq!(end(client), End::Unknown);
        assert!(
            world
                .report
                .said("runs on the other nodes, and not on this one")
        );
        slow.holds.open_all();
        stopped.join().expect("no panic");
        comes_back(world, &slow);
        assert_eq!(world.db(3).read(row(1)), 2);
    });
}

/// All are told to stop at once, and none of them can finish in time what it applies.
#[test]
fn of_all_that_are_told_to_stop_while_they_are_at_work_one_may_found() {
    run(1, "", |world| {
        with_little_time(world);
        let (one, all) = (world.db(1), [2, 3].map(|n| world.join(n)));
        world.voters(3);
        for db in &all {
            db.holds.close(Point::ApplyStart);
        }
        assert!(one.set(row(1), 1).is_committed());
        for db in &all {
            world.until("it is at it", || db.holds.waiting(Point::ApplyStart) == 1);
        }
        one.disconnect();
        let stopped = all.each_ref().map(stops);
        world.until("all are gone", || {
            let gone = |db: &Arc<Db>| db.node().phase() == Phase::Closed;
            all.iter().all(gone)
        });
        let flagged = |n: &usize| world.state_file(*n).contains("safe_to_bootstrap: 1");
        let flagged = || (1..=3).filter(flagged).collect::<Vec<usize>>();
        let last = flagged();
        assert!(last == [2] || last == [3], "{last:?}");
        for db in &all {
            db.holds.open_all();
        }
        for stop in stopped {
            stop.join().expect("no panic");
        }
        assert_eq!(flagged(), last);
    });
}
