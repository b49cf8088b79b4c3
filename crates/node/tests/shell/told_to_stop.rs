//! A server that is told to stop while it starts: nobody would call disconnect.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use dromon_node::{Phase, Position};

use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, row};
use crate::world::{World, run};

fn connects(db: &Arc<Db>) -> JoinHandle<Result<(), String>> {
    let db = db.clone();
    std::thread::spawn(move || db.connect(&World::url(), false))
}

/// Tells the server of `db` to stop once somebody says `when`: it must end while it is `doing` so.
fn is_told(world: &World, db: &Arc<Db>, when: &str, doing: &str) {
    let start = connects(db);
    world.until(when, || world.report.said(when));
    world.told_to_stop.store(true, Ordering::Relaxed);
    let why = start.join().expect("no panic").expect_err("told to stop");
    let words = format!("told to stop (SIGTERM) while this node was {doing}, so its start ends");
    assert!(why.contains(&words), "{why}");
    assert_eq!(db.node().phase(), Phase::Closed);
    world.told_to_stop.store(false, Ordering::Relaxed);
}

#[test]
fn one_that_waits_for_a_majority_ends_and_is_started_again() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let was = world.net.log_id(&World::addr(1));
        for n in 1..=3 {
            world.crash(n);
        }
        let (when, doing) = (
            "waits for a majority with",
            "waiting for a majority of the logs",
        );
        is_told(world, &world.open_again(1), when, doing);
        // Nothing was given up: its log is one of those that make the cluster.
        world.crash(1);
        let again = [1, 2, 3].map(|n| world.open_again(n));
        for start in again.each_ref().map(connects) {
            start.join().expect("no panic").expect("all are there");
        }
        for db in &again {
            world.synced(db);
        }
        assert_eq!(world.net.log_id(&World::addr(1)), was, "the same log");
        world.settle();
        assert_eq!(again[0].read(row(1)), 1);
    });
}

#[test]
fn one_that_looks_for_others_ends() {
    run(1, "pc.wait_prim_timeout=PT10M", |world| {
        world.crash(1);
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        let doing = "looking for a primary component";
        is_told(world, &second, doing, doing);
    });
}

#[test]
fn one_in_doubt_ends() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        let three = world.db(3);
        three.holds.close(Point::DdlRan);
        let add = Ddl::Add { table: 0, n: 100 };
        assert!(world.db(1).ddl(&add).is_committed());
        world.until("it has run there", || {
            three.holds.waiting(Point::DdlRan) == 1
        });
        for n in 1..=3 {
            world.crash(n);
        }
        let mut disk = world.crashed_disk(3);
        disk.position.seqno -= 1;
        let position = disk.position;
        let again = world.open(3, disk, position);
        let (when, doing) = (
            "waiting for a member that knows how the statement ended",
            "waiting for a member that knows how a statement ended",
        );
        is_told(world, &again, when, doing);
    });
}

/// What it would do is not begun at all.
#[test]
fn a_founder_ends_before_it_founds() {
    run(1, "", |world| {
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        world.told_to_stop.store(true, Ordering::Relaxed);
        let why = second.connect("gcomm://", true).expect_err("told to stop");
        assert!(why.contains("while this node was starting"), "{why}");
        world.told_to_stop.store(false, Ordering::Relaxed);
        second.connect(&World::url(), false).expect("n1 is there");
        world.synced(&second);
    });
}

/// Its client still connects, in `SET GLOBAL wsrep_cluster_address`, when its server has told it to leave already.
#[test]
fn who_has_left_amid_connecting_does_not_join() {
    run(3, "", |world| {
        let three = world.db(3);
        three.disconnect();
        world.net.hold_start(&three.addr);
        let connects = connects(&three);
        world.until("it starts", || world.net.holds_start(&three.addr));
        three.node().disconnect();
        world.net.let_start(&three.addr);
        let why = connects.join().expect("no panic").expect_err("it has left");
        assert!(why.contains("told to leave meanwhile"), "{why}");
        assert_eq!(three.node().phase(), Phase::Closed);
        assert_eq!(world.db(1).size(), 2);
    });
}
