//! A write set that waits for a streaming transaction of another node, at a lock that
//! no key names, while that one's end could only come later.
//!
//! The stream comes from n3, the write set from n1, and n2 is where it waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dromon_node::Position;

use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, Key, Session, row};
use crate::world::{World, run};

const LIMIT: Duration = Duration::from_secs(90);
/// Nobody is evicted and no lease is lost while a test cuts the network.
const PATIENT: &str = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
/// Who dies is soon evicted.
const HASTY: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
/// Longer than it takes to ask for a doom, and to carry it out.
const LONG_ENOUGH: Duration = Duration::from_millis(3500);

/// What waits beside the row of the stream.
const BESIDE: u32 = 50;

fn fragments(t: &mut Session, from: u32, n: u32) {
    for i in from..from + n {
        t.put(row(i), 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
    }
}

/// n1 and n2, and a stream of n3 with the rows 1 and 2, applied everywhere. On n2
/// whoever changes row 50 needs row 1 as well.
fn three(world: &World) -> (Arc<Db>, Arc<Db>, Arc<Db>, Session) {
    let (a, b, c) = (world.db(1), world.db(2), world.db(3));
    let mut t = c.begin();
    fragments(&mut t, 1, 2);
    world.settle();
    b.neighbour(row(BESIDE), row(1));
    (a, b, c, t)
}

/// n1 changes row 50, and n2 waits with that.
fn waits(world: &World, a: &Arc<Db>, b: &Arc<Db>) -> i64 {
    let seqno = a.set(row(BESIDE), 5).seqno();
    world.until("n2 waits for the stream", || b.blocked() == 1);
    seqno
}

fn goes_on(world: &World, b: &Db) {
    world.until("n2 goes on", || b.read(row(BESIDE)) == 5);
}

/// How many dooms each member has seen.
fn dooms(world: &World) -> Vec<i64> {
    let members = world.members();
    let count = members.iter().map(|d| d.count("dromon_streams_doomed"));
    count.collect()
}

/// Nothing of any stream is left, and all nodes are equal.
fn all_is_over(world: &World) {
    world.until("nothing is left of the streams", || {
        world.members().iter().all(|d| d.streaming() == 0)
    });
    world.settle();
    for db in world.members() {
        assert_eq!(db.stat("dromon_large_open"), "", "on {}", db.name);
    }
}

fn commit(t: Session) -> JoinHandle<End> {
    std::thread::spawn(move || t.commit())
}

#[test]
fn an_idle_stream_that_others_wait_for_is_rolled_back() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        let seqno = waits(world, &a, &b);
        goes_on(world, &b);
        world.until("all have heard of it", || dooms(world) == [1, 1, 1]);
        for name in ["n1", "n2", "n3"] {
            let line = format!(
                "doomed at seqno {}, as the write set at {seqno} waits",
                seqno + 1
            );
            assert_eq!(world.report.times(name, &line), 1, "{line} on {name}");
        }
        assert!(c.stat("dromon_large_open").contains("doomed"));
        // Its rows are free but at its own node, whose server knows nothing so far.
        assert!(!t.aborted());
        assert!(b.set(row(2), 7).is_committed());
        world.until("the first who needs its row ends it", || t.aborted());
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        for db in [&a, &b, &c] {
            let rows = [1, 2, BESIDE].map(|r| db.read(row(r)));
            assert_eq!(rows, [0, 7, 5], "on {}", db.name);
        }
        assert_eq!(dooms(world), [1, 1, 1], "once");
    });
}

#[test]
fn its_client_gets_a_deadlock_at_its_next_call() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, mut t) = three(world);
        waits(world, &a, &b);
        goes_on(world, &b);
        world.until("all have heard of it", || dooms(world) == [1, 1, 1]);
        t.put(row(3), 1).expect("a free row");
        assert_eq!(t.fragment(), Err(End::Deadlock));
        all_is_over(world);
        // The same again, at its end.
        let (a, b, _, t) = three(world);
        assert!(a.set(row(BESIDE), 6).is_committed());
        world.until("n2 goes on", || b.read(row(BESIDE)) == 6);
        world.until("all have heard of it", || dooms(world) == [2, 2, 2]);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!(b.read(row(1)), 0);
    });
}

#[test]
fn a_rollback_that_is_ordered_already_comes_before_its_turn() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        // There the write set meets the client itself.
        c.neighbour(row(BESIDE), row(1));
        let began = Instant::now();
        assert!(a.set(row(BESIDE), 5).is_committed());
        goes_on(world, &b);
        let took = began.elapsed();
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!(dooms(world), [0, 0, 0], "after {took:?}");
        assert_eq!((b.read(row(1)), c.read(row(BESIDE))), (0, 5));
    });
}

#[test]
fn with_one_applier_nobody_is_left_for_the_rollback() {
    run(2, PATIENT, LIMIT, |world| {
        let db = world.joins_with(3, 1);
        world.voters(3);
        let (a, c) = (world.db(1), world.db(2));
        let mut t = c.begin();
        fragments(&mut t, 1, 1);
        world.settle();
        db.neighbour(row(BESIDE), row(1));
        assert!(a.set(row(BESIDE), 5).is_committed());
        world.until("it waits", || db.blocked() == 1);
        world.until("the doom is ordered", || dooms(world) == [1, 1, 1]);
        std::thread::sleep(LONG_ENOUGH);
        assert_eq!((db.blocked(), db.read(row(BESIDE))), (1, 0));
        // As if the server's timeout had come.
        db.no_neighbours();
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!(db.read(row(BESIDE)), 5);
    });
}

#[test]
fn what_the_stream_sent_meanwhile_is_left_out() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, mut t) = three(world);
        waits(world, &a, &b);
        fragments(&mut t, 10, 3);
        assert!(c.set(row(60), 1).is_committed());
        goes_on(world, &b);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!((b.read(row(11)), b.read(row(60))), (0, 1));
    });
}

#[test]
fn who_waits_for_several_streams_has_a_thread_for_each() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        let mut more = c.begin();
        fragments(&mut more, 20, 1);
        let mut third = a.begin();
        fragments(&mut third, 30, 1);
        world.settle();
        b.neighbour(row(BESIDE), row(20));
        b.neighbour(row(BESIDE), row(30));
        assert!(c.set(row(BESIDE), 5).is_committed());
        let others: Vec<_> = (70..76).map(|r| c.set(row(r), 1).seqno()).collect();
        goes_on(world, &b);
        for t in [t, more, third] {
            assert_eq!(t.commit(), End::Deadlock);
        }
        all_is_over(world);
        assert_eq!(dooms(world), [3, 3, 3]);
        assert_eq!(others.len(), 6);
        assert_eq!(b.appliers.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn the_doom_finds_the_end_on_its_way() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        let trx = t.trx().expect("it wrote");
        let others = [World::addr(1), World::addr(2)];
        world.net.cut(&others, &[World::addr(3)]);
        let commit = commit(t);
        world.until("it is sent", || format!("{:?}", trx.lock().stage) == "Sent");
        waits(world, &a, &b);
        goes_on(world, &b);
        world.net.heal();
        assert_eq!(commit.join().expect("no panic"), End::Deadlock);
        all_is_over(world);
        assert_eq!((c.read(row(1)), c.read(row(BESIDE))), (0, 5));
        assert_eq!(c.count("local_cert_failures"), 1);
    });
}

/// What has its end cannot be rolled back any more.
#[test]
fn the_end_comes_before_the_doom() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, t) = three(world);
        waits(world, &a, &b);
        assert!(t.commit().is_committed());
        std::thread::sleep(LONG_ENOUGH);
        assert_eq!(dooms(world), [0, 0, 0]);
        assert_eq!(b.blocked(), 1, "so far nothing helps");
        b.no_neighbours();
        all_is_over(world);
        assert_eq!((b.read(row(1)), b.read(row(BESIDE))), (1, 5));
    });
}

#[test]
fn its_node_dies_before_it_knows() {
    run(3, HASTY, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        let seqno = waits(world, &a, &b);
        goes_on(world, &b);
        world.until("n3 has passed it", || {
            c.node().last_committed().seqno > seqno
        });
        world.crash(3);
        drop(t);
        // The others take its rows before they have a view without it.
        assert!(a.set(row(1), 7).is_committed());
        assert!(b.set(row(2), 8).is_committed());
        world.until("it is gone", || a.size() == 2 && b.size() == 2);
        all_is_over(world);
        let c = world.open_again(3);
        c.connect(&World::url(), false).expect("it was a member");
        world.synced(&c);
        all_is_over(world);
        assert_eq!([1, 2, BESIDE].map(|r| c.read(row(r))), [7, 8, 5]);
    });
}

#[test]
fn who_took_part_starts_again_and_finds_it_rolled_back() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, t) = three(world);
        let seqno = waits(world, &a, &b);
        goes_on(world, &b);
        world.until("n2 has passed it", || {
            b.node().last_committed().seqno > seqno
        });
        world.crash(2);
        assert!(a.set(row(1), 7).is_committed());
        let b = world.open_again(2);
        b.connect(&World::url(), false).expect("it was a member");
        world.synced(&b);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!([1, 2, BESIDE].map(|r| b.read(row(r))), [7, 0, 5]);
    });
}

/// It is carried out, and its turn does not come.
#[test]
fn who_dies_with_it_half_done_does_it_again() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, t) = three(world);
        b.holds.close(Point::ApplyInCommit);
        let seqno = waits(world, &a, &b);
        world.until("it was carried out", || {
            b.holds.waiting(Point::ApplyInCommit) == 1 && b.blocked() == 0
        });
        world.crash(2);
        assert!(a.set(row(1), 7).is_committed());
        let b = world.open_again(2);
        assert!(b.position().seqno <= seqno);
        b.connect(&World::url(), false).expect("it was a member");
        world.synced(&b);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!([1, 2, BESIDE].map(|r| b.read(row(r))), [7, 0, 5]);
    });
}

#[test]
fn a_copy_of_its_node_is_rid_of_it() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        let seqno = waits(world, &a, &b);
        goes_on(world, &b);
        world.until("n3 has passed it", || {
            c.node().last_committed().seqno > seqno
        });
        let new = world.open(4, Disk::empty(), Position::UNDEFINED);
        new.connect_from(&World::url(), "n3", false)
            .expect("a place is free");
        world.synced(&new);
        assert_eq!(c.donations(), 1);
        assert_eq!(new.streaming(), 0);
        assert!(b.set(row(2), 7).is_committed());
        world.until("its row is needed at home", || t.aborted());
        all_is_over(world);
        assert_eq!([1, 2, BESIDE].map(|r| new.read(row(r))), [0, 7, 5]);
    });
}

#[test]
fn it_passes_statements_and_views_that_have_not_begun() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        waits(world, &a, &b);
        let elsewhere = Key { table: 1, row: 1 };
        let ddl = Ddl::Create { key: elsewhere };
        assert!(a.ddl(&ddl).is_committed());
        let new = world.open(4, Disk::empty(), Position::UNDEFINED);
        new.connect_from(&World::url(), "n1", false)
            .expect("a place is free");
        world.until("the others have the view", || a.size() == 4);
        goes_on(world, &b);
        world.synced(&new);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        for db in [&b, &c, &new] {
            let rows = [1, 2, BESIDE].map(|r| db.read(row(r)));
            assert_eq!((rows, db.read(elsewhere)), ([0, 0, 5], 1), "on {}", db.name);
        }
    });
}

#[test]
fn a_statement_on_its_own_table_ends_it_everywhere() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, c, t) = three(world);
        waits(world, &a, &b);
        assert!(a.ddl(&Ddl::Truncate { table: 0 }).is_committed());
        world.until("n2 goes on", || b.blocked() == 0);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!([1, BESIDE].map(|r| c.read(row(r))), [0, 0]);
    });
}

#[test]
fn a_statement_waits_for_a_rollback_that_has_begun() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, t) = three(world);
        b.holds.close(Point::RollsBack);
        waits(world, &a, &b);
        let elsewhere = Key { table: 1, row: 1 };
        assert!(a.ddl(&Ddl::Create { key: elsewhere }).is_committed());
        world.until("the rollback has begun", || {
            b.holds.waiting(Point::RollsBack) == 1
        });
        b.no_neighbours();
        goes_on(world, &b);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(b.read(elsewhere), 0, "nothing runs beside a statement");
        b.holds.open_all();
        world.until("it has run", || b.read(elsewhere) == 1);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
    });
}

#[test]
fn a_pause_that_waits_gets_what_it_needs() {
    run(3, PATIENT, LIMIT, |world| {
        let (a, b, _, t) = three(world);
        let seqno = waits(world, &a, &b);
        let pause = {
            let node = b.node().clone();
            std::thread::spawn(move || node.pause())
        };
        assert_eq!(pause.join().expect("no panic"), Some(seqno));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(b.position().seqno, seqno, "nothing moves during a pause");
        b.node().resume();
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        assert_eq!((b.read(row(1)), b.read(row(BESIDE))), (0, 5));
    });
}

#[test]
fn whoever_only_works_for_long_is_not_taken_for_stuck() {
    run(2, PATIENT, LIMIT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.settle();
        // It has its locks, and waits for a client in front of it.
        b.holds.close(Point::ClientInCommit);
        let local = {
            let b = b.clone();
            std::thread::spawn(move || b.set(row(2), 1))
        };
        world.until("the client is inside commit order", || {
            b.holds.waiting(Point::ClientInCommit) == 1
        });
        let behind = {
            let a = a.clone();
            std::thread::spawn(move || a.set(row(3), 1))
        };
        std::thread::sleep(LONG_ENOUGH);
        b.holds.open_all();
        assert!(local.join().expect("no panic").is_committed());
        assert!(behind.join().expect("no panic").is_committed());
        assert_eq!(dooms(world), [0, 0]);
        assert!(t.commit().is_committed());
        all_is_over(world);
    });
}
