//! One node alone.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::{Meta, Outcome, Phase, Position};
use dromon_writeset::{Flags, KeyType, Uuid};

use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, row};
use crate::world::{World, run};

#[test]
fn commits_and_rolls_back() {
    run(1, "", |world| {
        let db = world.db(1);
        let end = db.set(row(1), 5);
        assert_eq!(end.seqno(), 2, "the first view has seqno 1");
        let mut t = db.begin();
        t.put(row(1), 7).expect("nobody else is here");
        t.rollback();
        assert_eq!(db.read(row(1)), 5);
        assert_eq!(db.increment(row(1)).seqno(), 3);
        assert_eq!(db.count("local_commits"), 2);
        assert_eq!(db.count("open_transactions"), 0);
        assert_eq!(world.settle().seqno, 3);
    });
}

#[test]
fn statements_in_isolation() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 5).is_committed());
        assert!(db.ddl(&Ddl::Add { table: 0, n: 10 }).is_committed());
        assert_eq!(db.read(row(1)), 15);
        let mut open = db.begin();
        open.put(row(1), 99).expect("nobody else is here");
        assert!(db.ddl(&Ddl::Truncate { table: 0 }).is_committed());
        assert!(open.aborted());
        assert_eq!(open.commit(), End::Deadlock);
        let fail = Ddl::Fail {
            table: 0,
            nodes: !0,
            text: "no such table\0".into(),
        };
        assert!(db.ddl(&fail).is_committed(), "alone, nobody disagrees");
        assert_eq!(world.settle().seqno, 5);
        assert_eq!(db.node().phase(), Phase::Joined);
        assert_eq!(db.returned(), [] as [Outcome; 0]);
    });
}

#[test]
fn a_pause_waits_for_those_inside_and_stops_the_others() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let inside = has_left(world, &db, 2);
        let pause = {
            let node = db.node().clone();
            std::thread::spawn(move || node.pause())
        };
        std::thread::sleep(Duration::from_millis(50));
        assert!(!pause.is_finished(), "one is not released yet");
        db.holds.open(Point::ClientLeft);
        assert!(inside.join().expect("no panic").is_committed());
        assert_eq!(pause.join().expect("no panic"), Some(3));
        assert_eq!(db.position().seqno, 3);
        assert!(world.state_file(1).contains("seqno:   3\n"));

        let held = sets(&db, 3);
        let statement = {
            let db = db.clone();
            std::thread::spawn(move || db.ddl(&Ddl::Truncate { table: 7 }))
        };
        let mut reads = db.begin();
        reads.lock(row(1)).expect("reading goes on");
        assert!(reads.commit().is_committed());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!held.is_finished() && !statement.is_finished());
        assert_eq!(db.position().seqno, 3, "nothing moves during a pause");
        db.node().resume();
        assert!(held.join().expect("no panic").is_committed());
        assert!(statement.join().expect("no panic").is_committed());
        assert!(world.state_file(1).contains("seqno:   -1\n"));
        assert_eq!(world.settle().seqno, 5);
    });
}

#[test]
fn options_are_read_and_set() {
    run(1, "gcs.fc_limit=77", |world| {
        let node = world.db(1).node().clone();
        assert!(node.options_text().contains("gcs.fc_limit = 77"));
        assert_eq!(node.settings().fc_limit, 77);
        node.set_options("gcs.fc_limit=5; repl.max_ws_size=1000")
            .expect("both may change at run time");
        assert_eq!(node.settings().fc_limit, 5);
        assert!(node.set_options("gcs.fc_limit=6;no.such=1").is_err());
        assert_eq!(
            node.settings().fc_limit,
            6,
            "items before the bad one count"
        );
        assert!(node.set_options("base_port=1").is_err());

        let db = world.db(1);
        let mut t = db.begin();
        for n in 0..200 {
            t.put(row(n), 1).expect("nobody else is here");
        }
        assert_eq!(t.commit(), End::TooLarge);
        assert!(db.set(row(0), 2).is_committed(), "its rows are free");
        assert_eq!(world.settle().seqno, 2);
    });
}

#[test]
fn before_and_after_a_connection() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let at = world.settle();
        db.disconnect();
        assert_eq!(db.finals(), 1);
        assert_eq!(
            db.views().last().map(|v| (v.number, v.own)),
            Some((-1, None))
        );
        let node = db.node();
        assert_eq!(node.phase(), Phase::Closed);
        assert_eq!(node.last_committed(), at);

        // A client that was not told yet.
        assert_eq!(db.set(row(1), 2), End::ConnFail);
        assert_eq!(db.ddl(&Ddl::Truncate { table: 0 }), End::ConnFail);
        let trx = node.begin(5);
        let key: [&[u8]; 1] = [b"x"];
        assert_eq!(node.append_key(&trx, &key, KeyType::Shared), Outcome::Ok);
        let mut meta = Meta {
            position: at,
            source: Uuid::NIL,
            trx_id: 0,
            conn_id: 0,
            depends_on: 0,
        };
        let certified = node.certify(1, &trx, Flags::TRX_START | Flags::TRX_END, &mut meta);
        assert_eq!(certified, Outcome::ConnFail);
        assert_eq!(meta.position, Position::UNDEFINED);
        assert_eq!(node.release(&trx), (false, Outcome::Ok));

        assert_ne!(node.rollback(5), Outcome::Ok, "the server queues it");
        assert_ne!(node.sync_wait(Duration::from_secs(1)).0, Outcome::Ok);
        assert_eq!(node.wait_for(at, None).0, Outcome::Ok);
        assert_ne!(node.desync(), Outcome::Ok);
        assert_eq!(node.resync(), Outcome::Ok);
        assert_eq!(node.transfer_sent(at, 0), Outcome::ConnFail);
        assert_eq!(node.transfer_received(at, 0), Outcome::ConnFail);
        assert_eq!(node.pause(), Some(at.seqno));
        node.resume();
        assert!(
            world
                .state_file(1)
                .contains(&format!("seqno:   {}\n", at.seqno))
        );
        assert!(world.state_file(1).contains("safe_to_bootstrap: 1"));
        node.disconnect(); // nothing to leave
        db.lend();
        db.join_threads();
        assert_eq!(db.returned().last(), Some(&Outcome::Fatal));
        assert!(!node.status().is_empty());
    });
}

#[test]
fn comes_back_again_and_again() {
    run(1, "", |world| {
        let db = world.db(1);
        for round in 1..=4 {
            assert!(db.increment(row(1)).is_committed());
            let before = world.settle();
            db.disconnect();
            assert_eq!(db.finals(), round);
            db.connect("gcomm://", true).expect("it was the last one");
            world.synced(&db);
            let after = world.settle();
            assert_eq!(after.history, before.history);
            assert_eq!(after.seqno, before.seqno + 1, "one view came");
            assert_eq!(db.read(row(1)), round as i64);
        }
        assert!(db.connect("gcomm://", true).is_err(), "connected already");
    });
}

#[test]
fn a_new_process_goes_on_where_the_old_one_stopped() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let at = world.settle();
        db.disconnect();
        let again = world.open(1, db.disk(), Position::UNDEFINED);
        assert_eq!(again.node().last_committed(), at);
        again.connect("gcomm://", true).expect("it stopped cleanly");
        world.synced(&again);
        assert!(again.set(row(2), 1).is_committed());
        let after = world.settle();
        assert_eq!(after.history, at.history);
        assert_eq!(after.seqno, at.seqno + 2);
    });
}

#[test]
fn what_the_engine_lost_in_a_crash_comes_from_the_own_log() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let flushed: Disk = db.disk();
        for n in 2..6 {
            assert!(db.set(row(n), 1).is_committed());
        }
        assert!(db.ddl(&Ddl::Add { table: 0, n: 10 }).is_committed());
        let mut t = db.begin();
        t.put(row(9), 1).expect("nobody else is here");
        t.fragment().expect("nobody else is here");
        let at = db.position();
        world.crash(1);
        drop(t);

        let lost = flushed.position;
        assert!(lost.seqno < at.seqno);
        let again = world.open(1, flushed, lost);
        again.connect("gcomm://", true).expect("alone it is safe");
        world.synced(&again);
        let after = world.settle();
        assert_eq!(after.history, at.history);
        assert_eq!(after.seqno, at.seqno + 1, "one view came");
        assert_eq!((again.read(row(1)), again.read(row(5))), (11, 11));
        assert_eq!(again.streaming(), 0, "its origin is gone");
        assert_eq!(again.read(row(9)), 0);
    });
}

#[test]
fn a_cluster_is_not_founded_where_it_may_lose_data() {
    run(2, "", |world| {
        let first = world.db(1);
        assert!(first.set(row(1), 1).is_committed());
        world.settle();
        let early = world.db(2);
        early.disconnect();
        assert!(first.set(row(2), 1).is_committed());
        let refused = early.connect("gcomm://", true);
        let text = refused.expect_err("n1 knows more");
        assert!(text.contains("may not be safe to bootstrap"), "{text}");
        assert!(text.contains("set safe_to_bootstrap to 1 ."), "{text}");
        first.disconnect();
        assert!(world.state_file(1).contains("safe_to_bootstrap: 1"));
        assert!(world.state_file(2).contains("safe_to_bootstrap: 0"));
        first
            .connect("gcomm://", true)
            .expect("it was the last one");
        world.synced(&first);
        early.connect(&World::url(), false).expect("n1 is back");
        world.synced(&early);
        world.settle();
        assert_eq!(early.read(row(2)), 1);
    });
}

/// The last view must come, whoever gives it: the one that brings it up, or the one that ends it. `same`: its server
/// lives, and connects again.
fn told_to_leave_while_it_is_brought_up(same: bool) {
    run(1, "", move |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        db.disconnect();
        let position = db.position();
        let db = world.open(1, db.disk(), position);
        db.holds.close(Point::Connecting);
        db.connect("gcomm://", true).expect("it was the last one");
        world.until("it is brought up", || {
            db.holds.waiting(Point::Connecting) == 1
        });
        let leaves = {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        world.until("it leaves", || db.node().phase() == Phase::Leaving);
        assert!(!world.soon(|| db.finals() > 0));
        db.holds.open(Point::Connecting);
        leaves.join().expect("no panic");
        assert_eq!(db.finals(), 1);
        assert_eq!(db.position(), position);
        let file = world.state_file(1);
        assert!(
            file.contains(&format!("seqno:   {}\n", position.seqno)),
            "{file}"
        );
        let db = match same {
            true => db,
            false => world.open(1, db.disk(), position),
        };
        db.connect("gcomm://", true).expect("nothing has changed");
        world.synced(&db);
        assert_eq!(db.read(row(1)), 1);
        assert!(db.set(row(1), 2).is_committed());
    });
}

#[test]
fn it_is_told_to_leave_while_it_is_brought_up() {
    told_to_leave_while_it_is_brought_up(false);
}

#[test]
fn it_is_told_to_leave_while_it_is_brought_up_and_connects_again() {
    told_to_leave_while_it_is_brought_up(true);
}

#[test]
fn a_copy_counts_though_its_node_left_before_it_was_brought_up() {
    run(1, "", |world| {
        let at = "State transfer to n2 complete";
        let first = world.db(1);
        assert!(first.set(row(1), 1).is_committed());
        world.report.hold(at);
        let db = world.open(2, Disk::empty(), Position::UNDEFINED);
        db.connect(&World::url(), false).expect("one is there");
        world.until("it has its copy", || world.report.said(at));
        let leaves = {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        world.until("it leaves", || db.node().phase() == Phase::Leaving);
        world.report.let_go();
        leaves.join().expect("no panic");
        let file = world.state_file(2);
        let position = db.position();
        assert!(
            file.contains(&format!("seqno:   {}\n", position.seqno)),
            "{file}"
        );
        world.until("it is gone", || first.size() == 1);
        assert!(first.set(row(2), 1).is_committed());
        let given = first.donations();
        db.connect(&World::url(), false).expect("one is there");
        world.synced(&db);
        assert_eq!(first.donations(), given, "by its log");
        assert_eq!((db.read(row(1)), db.read(row(2))), (1, 1));
        world.settle();
    });
}

fn leaves(db: &Arc<Db>) -> JoinHandle<()> {
    let db = db.clone();
    std::thread::spawn(move || db.disconnect())
}

fn says(world: &World, n: usize, seqno: i64) {
    let file = world.state_file(n);
    assert!(file.contains(&format!("seqno:   {seqno}\n")), "{file}");
    assert!(file.contains("safe_to_bootstrap: 1"), "{file}");
}

/// A server opens its engines while its node gives it the first view, and may fail at that. `told`: it says that it
/// leaves before it refuses the view.
fn its_own_start_fails(told: bool) {
    run(1, "", move |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        db.disconnect();
        let position = db.position();
        let db = world.open(1, db.disk(), position);
        db.refuses_views.store(true, Relaxed);
        db.holds.close(Point::Viewing);
        db.connect("gcomm://", true).expect("it was the last one");
        world.until("it gets its first view", || {
            db.holds.waiting(Point::Viewing) == 1
        });
        if told {
            let leaves = leaves(&db);
            world.until("it leaves", || db.node().phase() == Phase::Leaving);
            db.holds.open(Point::Viewing);
            leaves.join().expect("no panic");
        } else {
            db.holds.open(Point::Viewing);
            world.until("its thread is back", || !db.returned().is_empty());
            db.disconnect();
        }
        assert_eq!(db.returned(), [Outcome::Fatal]);
        assert_eq!(db.finals(), 1);
        assert!(world.report.said("has ended its own start"));
        assert!(!world.report.said("Inconsistency"), "its data is as it was");
        says(world, 1, position.seqno);
        let again = world.open(1, db.disk(), Position::UNDEFINED);
        again.connect("gcomm://", true).expect("nothing is lost");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 1);
        assert!(again.set(row(1), 2).is_committed());
    });
}

#[test]
fn a_server_whose_own_start_fails_keeps_its_data() {
    its_own_start_fails(false);
}

#[test]
fn a_server_whose_own_start_fails_and_says_so_first_keeps_its_data() {
    its_own_start_fails(true);
}

#[test]
fn a_new_cluster_whose_first_start_fails_can_be_founded_again() {
    run(1, "", |world| {
        world.db(1).disconnect();
        let db = world.open(2, Disk::empty(), Position::UNDEFINED);
        db.refuses_views.store(true, Relaxed);
        db.connect("gcomm://", true).expect("a new cluster");
        world.until("its thread is back", || !db.returned().is_empty());
        db.disconnect();
        db.refuses_views.store(false, Relaxed);
        db.connect("gcomm://", true).expect("nothing has changed");
        world.synced(&db);
        assert!(db.set(row(1), 2).is_committed());
    });
}

/// A client has left commit order and is not finished; another one comes behind it.
fn one_behind_the_other(world: &World, db: &Arc<Db>) -> [JoinHandle<End>; 2] {
    [has_left(world, db, 1), sets(db, 2)]
}

/// A client that changes row `n`.
fn sets(db: &Arc<Db>, n: u32) -> JoinHandle<End> {
    let db = db.clone();
    std::thread::spawn(move || db.set(row(n), 2))
}

/// The same, held where it has left commit order and is not finished.
fn has_left(world: &World, db: &Arc<Db>, n: u32) -> JoinHandle<End> {
    db.holds.close(Point::ClientLeft);
    let client = sets(db, n);
    world.until("it has left commit order", || {
        db.holds.waiting(Point::ClientLeft) == 1
    });
    client
}

#[test]
fn with_a_binary_log_a_client_commits_when_all_before_are_finished() {
    run(1, "", |world| {
        world.report.binary_log.store(true, Relaxed);
        let db = world.db(1);
        let both = one_behind_the_other(world, &db);
        // It is ordered, and waits.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(db.holds.waiting(Point::ClientLeft), 1);
        db.holds.open(Point::ClientLeft);
        for client in both {
            assert!(client.join().expect("no panic").is_committed());
        }
    });
}

#[test]
fn in_groups_it_comes_when_they_have_left() {
    run(1, "dromon.binlog_groups=yes", |world| {
        world.report.binary_log.store(true, Relaxed);
        let db = world.db(1);
        let both = one_behind_the_other(world, &db);
        world.until("both have left commit order", || {
            db.holds.waiting(Point::ClientLeft) == 2
        });
        db.holds.open(Point::ClientLeft);
        for client in both {
            assert!(client.join().expect("no panic").is_committed());
        }
    });
}

/// One client is about to finish, and the write set of another one waits for the disk.
fn one_finishes_and_one_is_sent(world: &World, db: &Arc<Db>) -> [JoinHandle<End>; 2] {
    db.holds.close(Point::ClientLeft);
    let spawn = |n: u32| {
        let mut t = db.begin();
        t.put(row(n), 1).expect("a free row");
        let trx = t.trx().expect("it wrote");
        (trx, std::thread::spawn(move || t.commit()))
    };
    let (_, first) = spawn(1);
    world.until("it has left commit order", || {
        db.holds.waiting(Point::ClientLeft) == 1
    });
    db.holds.close(Point::ClientCertified);
    world.net.hang_log(&db.addr);
    let (trx, second) = spawn(2);
    world.until("the other one is sent", || {
        format!("{:?}", trx.lock().stage) == "Sent"
    });
    [first, second]
}

#[test]
fn who_stops_alone_stops_behind_its_last_client() {
    run(1, "", |world| {
        let db = world.db(1);
        let [first, second] = one_finishes_and_one_is_sent(world, &db);
        let leaves = leaves(&db);
        world.until("it leaves", || db.node().phase() == Phase::Leaving);
        world.net.mend_log(&db.addr);
        world.until("the other one has its place", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        db.holds.open(Point::ClientLeft);
        assert!(first.join().expect("no panic").is_committed());
        assert!(
            !world.soon(|| leaves.is_finished()),
            "one is not through yet"
        );
        db.holds.open(Point::ClientCertified);
        assert!(second.join().expect("no panic").is_committed());
        leaves.join().expect("no panic");
        says(world, 1, db.position().seqno);
        let again = world.open(1, db.disk(), Position::UNDEFINED);
        again.connect("gcomm://", true).expect("it stopped cleanly");
        world.synced(&again);
        assert_eq!((again.read(row(1)), again.read(row(2))), (1, 1));
    });
}

#[test]
fn what_has_no_place_when_its_only_node_stops_comes_with_the_next_start() {
    run(1, "", |world| {
        let db = world.db(1);
        let [first, second] = one_finishes_and_one_is_sent(world, &db);
        db.holds.open(Point::ClientLeft);
        assert!(first.join().expect("no panic").is_committed());
        let leaves = leaves(&db);
        assert_eq!(second.join().expect("no panic"), End::Unknown);
        world.net.mend_log(&db.addr);
        leaves.join().expect("no panic");
        says(world, 1, db.position().seqno);
        let again = world.open(1, db.disk(), Position::UNDEFINED);
        again.connect("gcomm://", true).expect("it stopped cleanly");
        world.synced(&again);
        world.settle();
        assert_eq!((again.read(row(1)), again.read(row(2))), (1, 1));
    });
}

/// It has no position yet: the server is told that this failed, and ends nothing.
#[test]
fn a_pause_before_there_is_a_position_holds_nothing() {
    run(1, "", |world| {
        let new = world.open(2, Disk::empty(), Position::UNDEFINED);
        assert_eq!(new.node().pause(), None);
        new.connect(&World::url(), false).expect("one is there");
        world.synced(&new);
        assert!(new.set(row(1), 1).is_committed());
        world.settle();
    });
}
