//! Logs that another build has written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dromon_node::cluster::ClusterState;
use dromon_node::{Phase, Position};
use dromon_order::logstore::LogStore;

use crate::alone::{KEPT, QUICK, part, part_unflushed};
use crate::toy::holds::Point;
use crate::toy::{Db, Disk, Key, row};
use crate::world::{World, addrs, run};

const SOON: &str = "pc.wait_prim_timeout=PT1S";

/// After a crash of all, node 3 comes back under another build, and its engine lacks row 2.
fn comes_back(world: &World) -> Arc<Db> {
    assert!(world.db(1).set(row(1), 1).is_committed());
    world.settle();
    let flushed = world.db(3).disk();
    assert!(world.db(1).set(row(2), 2).is_committed());
    world.settle();
    for n in 1..=3 {
        world.crash(n);
    }
    world.edit_state_file(3, "safe_to_bootstrap", "1");
    let position = flushed.position;
    let db = world.open(3, flushed, position);
    world.net.of_other_build(&world.data_dir(3), true);
    db
}

/// It is refused, which names the build to start; its log, under that, still has everything.
fn is_refused(world: &World, url: &str, founds: bool, start: &str) {
    let db = comes_back(world);
    let log = world.copy_log(3).bytes();
    let why = db.connect(url, founds).expect_err("nobody can read it");
    assert!(why.starts_with(start), "{why}");
    let words = [
        "this node's log was written by another build",
        "Start this node with the build that wrote its log",
        "keep a copy of the dromon-*.log files",
    ];
    let at = words.map(|w| why.find(w));
    assert!(at[0].is_some() && at[0] < at[1] && at[1] < at[2], "{why}");
    assert_eq!(db.node().phase(), Phase::Closed);
    assert_eq!(world.copy_log(3).bytes(), log, "nothing was changed");
    world.net.of_other_build(&world.data_dir(3), false);
    let others = [1, 2].map(|n| world.open_again(n));
    std::thread::scope(|scope| {
        for db in others.iter().chain([&db]) {
            scope.spawn(|| db.connect(&World::url(), false).expect("all are there"));
        }
    });
    world.synced(&db);
    world.until("it is there again", || db.read(row(2)) == 2);
}

#[test]
fn the_flag_gives_up_no_log_of_another_build() {
    run(3, SOON, |world| {
        is_refused(world, "gcomm://", true, "this node's log was written");
    });
}

#[test]
fn who_waits_in_vain_with_such_a_log_hears_which_build_to_start() {
    run(3, SOON, |world| {
        let start = "failed to reach primary view within 1 s: ";
        is_refused(world, &World::url(), false, start);
    });
}

/// Both are upgraded before it meets the one that was forced to go on without it.
#[test]
fn a_log_of_another_build_that_has_more_than_the_forced_one_is_kept() {
    for flushed in [true, false] {
        run(3, QUICK, move |world| {
            let (one, disk) = match flushed {
                true => (part(world), world.crashed_disk(2)),
                false => part_unflushed(world),
            };
            let position = disk.position;
            let db = world.open(2, disk, position);
            let dir = world.data_dir(2);
            world.net.of_other_build(&dir, true);
            let log = world.copy_log(2);
            db.connect(&World::url(), false).expect("one is there");
            world.net.of_other_build(&dir, false);
            world.synced(&db);
            assert_eq!(db.read(row(12)), one.read(row(12)));
            assert_eq!(world.report.times("n2", KEPT), 1);
            let former = world.net.copy_log(&dir.join("former"));
            assert_eq!(former.bounds(), log.bounds());
        });
    }
}

/// The way from one build to the next: no log has more than the one that founds. `load`: clients write until the last
/// one stops, so that the others still store what lies behind their own leave.
fn all_stop_and_come_back_under_another_build(load: bool) {
    run(2, "", move |world| {
        world.join_witness(5);
        world.voters(3);
        let first = world.db(1);
        assert!(first.set(row(1), 1).is_committed());
        world.settle();
        let over = AtomicBool::new(!load);
        std::thread::scope(|scope| {
            for n in 2..10 {
                let (first, over) = (&first, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        assert!(first.set(row(n), 1).is_committed());
                    }
                });
            }
            world.until("they write", || !load || first.position().seqno > 100);
            world.witness(5).disconnect();
            world.db(2).disconnect();
            over.store(true, Ordering::Relaxed);
        });
        first.disconnect();
        let open = |n: usize| {
            let (disk, position) = (world.db(n).disk(), world.db(n).position());
            let db = world.open(n, disk, position);
            world.net.of_other_build(&world.data_dir(n), true);
            db
        };
        let one = open(1);
        one.connect("gcomm://", true).expect("stopped cleanly");
        world.synced(&one);
        let two = open(2);
        two.connect(&World::url(), false).expect("one is there");
        world.synced(&two);
        let witness = world.open_witness(5, false);
        world.net.of_other_build(&world.data_dir(5), true);
        let joins = witness.connect("toys", &World::url(), "", false);
        joins.expect("they are there");
        for n in [1, 2, 5] {
            world.net.of_other_build(&world.data_dir(n), false);
        }
        world.voters(3);
        assert_eq!(two.read(row(1)), 1);
        // On a slow machine one may end before.
        let counted = world.report.said("left before the others confirmed");
        assert!(counted || !world.report.said(KEPT));
    });
}

#[test]
fn after_an_orderly_stop_of_all_no_log_of_another_build_is_kept() {
    all_stop_and_come_back_under_another_build(false);
}

#[test]
fn nor_if_clients_wrote_meanwhile() {
    all_stop_and_come_back_under_another_build(true);
}

/// It is not let go round until `pc.wait_prim_timeout`, which these nodes do not reach.
#[test]
fn who_finds_a_leader_of_another_build_hears_both_formats_and_the_way() {
    run(2, "pc.wait_prim_timeout=PT600S", |world| {
        let leader = World::addr(world.leader(&world.db(1)));
        world.net.runs_other_build(&leader);
        let db = world.open(3, Disk::empty(), Position::UNDEFINED);
        let refused = db.connect(&World::url(), false);
        let why = refused.expect_err("nobody can read what it gives");
        let ours = ClusterState::FORMAT;
        let words = [
            format!("{leader} leads the cluster and runs another build of the library"),
            format!("(format {}; this one has format {ours})", ours - 1),
            "Start this node with the build that runs there".to_owned(),
            "stop all nodes cleanly, install it on all".to_owned(),
        ];
        for words in words {
            assert!(why.contains(&words), "{why}");
        }
        assert_eq!(db.node().phase(), Phase::Closed);
    });
}

/// Then the database has all of it: the way from one build to the next.
#[test]
fn after_an_orderly_stop_another_build_founds() {
    run(1, "", |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let before = world.settle();
        db.disconnect();
        let position = db.position();
        let db = world.open(1, db.disk(), position);
        world.net.of_other_build(&world.data_dir(1), true);
        db.connect("gcomm://", true).expect("stopped cleanly");
        world.synced(&db);
        world.net.of_other_build(&world.data_dir(1), false);
        assert_eq!(db.read(row(1)), 1);
        assert_eq!(world.settle().history, before.history);
    });
}

/// As where all of a data directory was copied to a new machine. Nothing is known of such files.
#[test]
fn files_that_were_copied_since_are_refused_with_a_way_that_works() {
    run(2, "", |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        let at = world.settle();
        for n in [2, 1] {
            world.db(n).disconnect();
        }
        let disk = one.disk();
        let open = |other| {
            let db = world.open(1, disk.clone(), disk.position);
            world.net.of_other_build(&world.data_dir(1), other);
            db
        };
        world.exchange_data(1);
        let why = open(true).connect("gcomm://", true);
        let why = why.expect_err("whose files these are nobody knows");
        for words in [
            "the database's files are others since",
            "Start this node with the build that wrote its log, with --wsrep-new-cluster",
            "stop all nodes cleanly first",
        ] {
            assert!(why.contains(words), "{why}");
        }
        world.net.of_other_build(&world.data_dir(1), false);
        // What it says is the way.
        let own = open(false);
        own.connect("gcomm://", true).expect("its log goes on");
        world.synced(&own);
        own.disconnect();
        let disk = own.disk();
        let db = world.open(1, disk.clone(), disk.position);
        world.net.of_other_build(&world.data_dir(1), true);
        db.connect("gcomm://", true).expect("stopped cleanly");
        world.synced(&db);
        world.net.of_other_build(&world.data_dir(1), false);
        assert_eq!(db.read(row(1)), 1);
        assert_eq!(world.settle().history, at.history);
    });
}

/// Told to found under another build, it refuses; under its own it does, and has `row` in its log.
fn founds_with_its_log_alone(world: &World, row: Key, value: i64) {
    let before = world.db(1);
    let open = || {
        world.edit_state_file(1, "safe_to_bootstrap", "1");
        let (disk, position) = (before.disk(), before.disk().position);
        world.open(1, disk, position)
    };
    let other = open();
    let dir = world.data_dir(1);
    world.net.of_other_build(&dir, true);
    let why = other.connect("gcomm://", true).expect_err("it lacks a row");
    world.net.of_other_build(&dir, false);
    assert!(why.contains("was written by another build"), "{why}");
    let own = open();
    own.connect("gcomm://", true).expect("its log goes on");
    world.synced(&own);
    assert_eq!(own.read(row), value);
}

/// It stores what the others count on, and is not told any more that they have acknowledged it.
#[test]
fn a_stop_without_a_majority_does_not_say_that_the_database_has_all() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        if world.leader(&one) != 1 {
            let leader = World::addr(world.leader(&one));
            world.net.hand_over(&leader, &one.addr);
        }
        world.until("it leads", || world.leader(&one) == 1);
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        let end = world.copy_log(1).bounds().1;
        let client = {
            let one = one.clone();
            std::thread::spawn(move || one.set(row(2), 2))
        };
        world.until("it is stored", || world.copy_log(1).bounds().1 > end);
        for n in [2, 3] {
            world.crash(n);
        }
        world.until("it is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        one.disconnect();
        client.join().expect("no panic");
        assert!(world.state_file(1).contains("seqno:   -1\n"));
        founds_with_its_log_alone(world, row(2), 2);
    });
}

/// Nothing came behind what its database has.
#[test]
fn a_stop_without_a_majority_where_nothing_was_on_its_way_has_a_position() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        if world.leader(&one) == 1 {
            world.net.hand_over(&one.addr, &World::addr(2));
        }
        world.until("another one leads", || world.leader(&one) != 1);
        assert!(one.set(row(1), 1).is_committed());
        let at = world.settle();
        let end = |n| world.copy_log(n).bounds().1;
        world.until("all have the same, and nothing comes", || {
            let all = [1, 2, 3].map(end);
            std::thread::sleep(Duration::from_millis(300));
            all.iter().all(|e| *e == all[0]) && [1, 2, 3].map(end) == all
        });
        // Neither of them leads for a moment when the other one is dead.
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        for n in [2, 3] {
            world.crash(n);
        }
        world.until("it is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        one.disconnect();
        let file = world.state_file(1);
        assert!(file.contains(&format!("seqno:   {}\n", at.seqno)), "{file}");
        world.edit_state_file(1, "safe_to_bootstrap", "1");
        let again = world.open(1, one.disk(), Position::UNDEFINED);
        world.net.of_other_build(&world.data_dir(1), true);
        again.connect("gcomm://", true).expect("it has all");
        world.synced(&again);
        world.net.of_other_build(&world.data_dir(1), false);
        assert_eq!(again.read(row(1)), 1);
        assert_eq!(world.settle().history, at.history);
    });
}

/// The others write, and leave, while its server holds everything.
#[test]
fn the_last_one_that_is_paused_does_not_say_that_its_database_has_all() {
    run(2, "", |world| {
        let one = world.db(1);
        one.node().pause().expect("it is a member");
        assert!(world.db(2).set(row(1), 1).is_committed());
        world.db(2).disconnect();
        world.voters(1);
        one.disconnect();
        let file = world.state_file(1);
        for words in ["seqno:   -1\n", "safe_to_bootstrap: 1"] {
            assert!(file.contains(words), "{file}");
        }
        one.node().resume();
        assert_eq!(world.state_file(1), file);
        founds_with_its_log_alone(world, row(1), 1);
    });
}

/// It has the position of the pause, as the others have what came behind it; but its database has not.
#[test]
fn nor_does_one_that_left_amid_a_pause() {
    run(2, "", |world| {
        let [one, two] = [1, 2].map(|n| world.db(n));
        let at = one.node().pause().expect("it is a member");
        assert!(two.set(row(1), 1).is_committed());
        one.disconnect();
        two.disconnect();
        let file = world.state_file(1);
        assert!(file.contains(&format!("seqno:   {at}\n")), "{file}");
        founds_with_its_log_alone(world, row(1), 1);
    });
}

/// Its server goes on, and connects again.
#[test]
fn who_was_paused_and_left_last_connects_again_with_what_it_has() {
    run(2, "", |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        one.node().pause().expect("it is a member");
        assert!(world.db(2).set(row(2), 1).is_committed());
        world.db(2).disconnect();
        world.voters(1);
        one.disconnect();
        one.node().resume();
        one.connect("gcomm://", true).expect("it was the last one");
        world.synced(&one);
        assert_eq!((one.read(row(1)), one.read(row(2))), (1, 1));
    });
}

/// What its engine lost in a crash was still to come from the log.
#[test]
fn a_founder_that_ends_before_it_is_brought_up_does_not_say_so_either() {
    run(1, "", |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        let flushed = one.disk();
        assert!(one.set(row(2), 2).is_committed());
        world.crash(1);
        let position = flushed.position;
        let again = world.open(1, flushed, position);
        again.holds.close(Point::Connecting);
        again.connect("gcomm://", true).expect("its log goes on");
        world.until("it is brought up", || {
            again.holds.waiting(Point::Connecting) == 1
        });
        let leaves = {
            let again = again.clone();
            std::thread::spawn(move || again.disconnect())
        };
        world.until("it leaves", || again.node().phase() == Phase::Leaving);
        again.holds.open(Point::Connecting);
        leaves.join().expect("no panic");
        assert_eq!(again.disk().position, position);
        let file = world.state_file(1);
        for words in ["seqno:   -1\n", "safe_to_bootstrap: 1"] {
            assert!(file.contains(words), "{file}");
        }
        founds_with_its_log_alone(world, row(2), 2);
    });
}

/// They are a majority by their own logs, which this build reads: the component that they would make is a second one.
#[test]
fn those_that_were_left_behind_form_no_component_beside_a_leader_of_another_build() {
    run(3, QUICK, |world| {
        let (one, _) = part_unflushed(world);
        world.net.runs_other_build(&one.addr);
        let others = [2, 3].map(|n| world.open_again(n));
        std::thread::scope(|scope| {
            for db in &others {
                scope.spawn(|| {
                    let refused = db.connect(&World::url(), false);
                    let why = refused.expect_err("nobody can read what it gives");
                    let words = "leads the cluster and runs another build of the library";
                    assert!(why.contains(words), "{why}");
                });
            }
        });
        assert!(!world.report.said("waits for a majority with"));
    });
}
