//! Forced recovery: one node goes on without a majority.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::{AskError, Phase};
use dromon_order::logstore::LogStore;

use crate::load::Load;
use crate::membership::begin_join;
use crate::net::{Unheard, lock};
use crate::toy::holds::Point;
use crate::toy::{Db, Disk, row};
use crate::world::{World, run};

pub const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

/// What is said of a log that is not erased.
pub const KEPT: &str = "The log is kept: its files are now";

fn addrs(ns: &[usize]) -> Vec<String> {
    ns.iter().map(|n| World::addr(*n)).collect()
}

#[test]
fn with_ignore_sb_the_half_goes_on_and_no_client_notices() {
    run(2, QUICK, |world| {
        let one = world.db(1);
        one.node()
            .set_options("pc.ignore_sb=true")
            .expect("it is an option");
        let mut load = Load::new(true);
        load.add(&one, 3, 4);
        load.go_on(world, 10);
        world.net.cut(&addrs(&[1]), &addrs(&[2]));
        load.go_on(world, 20);
        assert_eq!(one.node().phase(), Phase::Joined);
        world.until("the other one is dropped", || one.size() == 1);
        let two = world.db(2);
        world.until("the other one knows", || {
            two.node().phase() == Phase::NonPrimary
        });
        load.go_on(world, 10);
        world.net.heal();
        world.synced(&two);
        world.until("both are members", || {
            world.members().iter().all(|d| d.size() == 2)
        });
        load.add(&two, 2, 7);
        load.go_on(world, 20);
        load.verify(world);
    });
}

/// The one with the higher id would go first, and has no such option.
#[test]
fn with_ignore_sb_one_of_the_half_goes_on_where_another_one_may_not() {
    run(4, QUICK, |world| {
        let [one, two] = [1, 2].map(|n| world.net.log_id(&World::addr(n)));
        let (goes, waits) = if one < two { (1, 2) } else { (2, 1) };
        let (goes, waits) = (world.db(goes), world.db(waits));
        let set = goes.node().set_options("pc.ignore_sb=true");
        set.expect("it is an option");
        assert!(goes.set(row(1), 1).is_committed());
        world.settle();
        world.net.cut(&addrs(&[1, 2]), &addrs(&[3, 4]));
        world.until("it goes on", || {
            world
                .report
                .times(&goes.name, "forced recovery (pc.ignore_sb")
                == 1
        });
        world.synced(&goes);
        assert!(goes.set(row(1), 2).is_committed());
        world.synced(&waits);
        world.until("both are members", || goes.size() == 2);
        world.net.heal();
        for db in world.members() {
            world.synced(&db);
        }
        world.settle();
        assert_eq!(world.db(4).read(row(1)), 2);
    });
}

/// The other one is there again when the half decides, and may be the one to lead.
#[test]
fn with_ignore_sb_no_client_notices_a_quick_restart() {
    run(2, QUICK, |world| {
        let one = world.db(1);
        one.node()
            .set_options("pc.ignore_sb=true")
            .expect("it is an option");
        let mut t = one.begin();
        for (n, delay) in (1..).zip([1300, 1500, 1700, 1900]) {
            t.put(row(n), 5).expect("a free row");
            t.fragment().expect("nobody is in its way");
            world.crash(2);
            std::thread::sleep(Duration::from_millis(delay));
            let again = world.open_again(2);
            again.connect(&World::url(), false).expect("one is there");
            world.synced(&again);
        }
        assert!(one.views().iter().all(|v| v.primary), "{:?}", one.views());
        assert!(t.commit().is_committed());
        world.settle();
        assert_eq!(world.db(2).read(row(4)), 5);
    });
}

#[test]
fn the_heavier_half_goes_on() {
    run(2, QUICK, |world| {
        world
            .db(2)
            .node()
            .set_options("pc.weight=2")
            .expect("it is an option");
        // It counts at once, whatever the other one knows of it.
        world.net.cut(&addrs(&[1]), &addrs(&[2]));
        world.until("the lighter one gives up", || {
            world.db(1).node().phase() == Phase::NonPrimary
        });
        world.until("the heavier one goes on", || world.db(2).size() == 1);
        assert!(world.db(2).set(row(1), 1).is_committed());
        world.net.heal();
        world.synced(&world.db(1));
        assert!(world.db(1).set(row(1), 2).is_committed());
        world.settle();
    });
}

/// The lighter one becomes the heavier one: of that the other has all but the delivery.
#[test]
fn who_was_the_heavier_one_does_not_go_on_by_that() {
    run(3, QUICK, |world| {
        let (one, two) = (world.db(1), world.db(2));
        let weighs = |db: &Db, weight| {
            let set = db.node().set_options(&format!("pc.weight={weight}"));
            set.expect("it is an option");
        };
        weighs(&one, 2);
        world.until("all know it", || {
            let all = world.members();
            all.iter().all(|db| db.stat("cluster_weight") == "4")
        });
        // What it is told behind the view in which n3 leaves waits here.
        let stays = "no checkpoint at log index";
        world.report.hold(stays);
        world.net.fill_log(&one.addr);
        world.db(3).disconnect();
        world.voters(2);
        world.until("its delivery stands", || {
            world.report.times("n1", stays) == 1
        });
        weighs(&two, 4);
        assert_eq!(one.stat("cluster_weight"), "3");
        assert_eq!(two.stat("cluster_weight"), "6");
        world.net.cut(&addrs(&[1]), &addrs(&[2]));
        world.until("the heavier one goes on", || two.size() == 1);
        world.until("the other one does not", || {
            one.node().phase() == Phase::NonPrimary
        });
        assert_eq!(world.report.times("n1", "forced recovery"), 0);
        assert!(two.set(row(1), 1).is_committed());
        world.report.let_go();
        world.net.mend_log(&one.addr);
        world.net.heal();
        world.synced(&one);
        world.settle();
    });
}

/// Those of the numbers `joiners` join, and wait for `donor`, which is amid its first copy.
fn wait_for_copies(world: &World, donor: usize, at: Point, joiners: &[usize]) {
    let gives = world.db(donor);
    gives.holds.close(at);
    for n in joiners {
        begin_join(world, *n, &gives.name);
    }
    world.until("the donor is at work", || gives.holds.waiting(at) == 1);
    for n in [1, 2] {
        let db = world.db(n);
        world.until("all are members", || db.size() == 2 + joiners.len());
    }
    world.voters(2);
}

/// It weighs so much that either would be the heavier one with it, and reaches both.
#[test]
fn by_one_without_a_vote_neither_of_two_goes_on() {
    run(2, QUICK, |world| {
        lock(&world.own_options).insert(3, "pc.weight=2");
        wait_for_copies(world, 2, Point::DonorPaused, &[3]);
        let two = [1, 2].map(|n| world.db(n));
        for db in &two {
            assert_eq!(db.stat("cluster_weight"), "4");
        }
        world.net.cut(&addrs(&[1]), &addrs(&[2]));
        for db in &two {
            world.until("it is non-primary", || {
                db.node().phase() == Phase::NonPrimary
            });
        }
        assert!(!world.report.said("forced recovery"));
        for name in ["n1", "n2"] {
            assert_eq!(
                world
                    .report
                    .times(name, "here (weight 2) count for neither"),
                1
            );
        }
        world.net.heal();
        for db in &two {
            world.until("it is back", || db.node().phase() == Phase::Joined);
        }
        two[1].holds.open(Point::DonorPaused);
        for db in world.members() {
            world.synced(&db);
        }
        assert!(two[0].set(row(1), 1).is_committed());
        world.settle();
    });
}

/// They have all of the log, and an id of one or another is higher; but they never go on.
#[test]
fn who_goes_on_by_an_option_does_not_wait_for_those_that_take_a_copy() {
    for option in ["pc.weight=2", "pc.ignore_sb=true"] {
        run(2, QUICK, move |world| {
            let [one, two] = [1, 2].map(|n| world.net.log_id(&World::addr(n)));
            let (stays, dies) = if one < two { (1, 2) } else { (2, 1) };
            wait_for_copies(world, dies, Point::DonorCopies, &[3, 4, 5]);
            let one = world.db(stays);
            let set = one.node().set_options(option);
            set.expect("it is an option");
            if world.leader(&one) != stays {
                world.net.hand_over(&World::addr(dies), &one.addr);
            }
            world.until("it leads", || world.leader(&one) == stays);
            world.crash(dies);
            world.until("it goes on alone", || one.size() == 1);
            assert_eq!(one.node().phase(), Phase::Joined);
            assert!(one.set(row(1), 1).is_committed());
            assert!(one.views().iter().all(|v| v.primary), "{:?}", one.views());
            // Leaving takes long without a donor.
            for n in [3, 4, 5] {
                world.crash(n);
            }
        });
    }
}

/// One of them would, and the other one could make a majority with the lighter half before it notices.
#[test]
fn the_heavier_half_of_four_waits_for_the_others() {
    run(4, QUICK, |world| {
        for n in [1, 2] {
            let heavy = world.db(n);
            heavy
                .node()
                .set_options("pc.weight=2")
                .expect("it is an option");
            world.until("all know it", || {
                let all = world.members();
                all.iter()
                    .all(|db| db.stat("cluster_weight") == (4 + n).to_string())
            });
        }
        world.net.cut(&addrs(&[1, 2]), &addrs(&[3, 4]));
        for db in world.members() {
            world.until("it is non-primary", || {
                db.node().phase() == Phase::NonPrimary
            });
        }
        assert!(!world.report.said("forced recovery"));
        world.net.heal();
        for db in world.members() {
            world.synced(&db);
        }
        assert!(world.db(4).set(row(1), 1).is_committed());
        world.settle();
        assert!(world.members().iter().all(|db| db.size() == 4));
    });
}

#[test]
fn an_operator_makes_one_of_three_primary() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        let mut load = Load::new(true);
        for db in world.members() {
            load.add(&db, 1, 4);
        }
        load.go_on(world, 10);
        load.stop();
        world.settle();
        let copies = one.donations();
        world.crash(2);
        world.crash(3);
        world.until("it is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        one.node()
            .set_options("pc.bootstrap=yes")
            .expect("nobody else is there");
        world.synced(&one);
        world.until("it is alone", || one.size() == 1);
        assert!(one.set(row(1), 11).is_committed());
        for n in [2, 3] {
            let disk = world.crashed_disk(n);
            let position = disk.position;
            let again = world.open(n, disk, position);
            again.connect(&World::url(), false).expect("one is there");
            world.synced(&again);
            assert_eq!(again.read(row(1)), 11);
        }
        world.settle();
        assert_eq!(
            one.donations() + world.db(2).donations(),
            copies,
            "what they had was part of the common log: no copy was needed"
        );
        assert!(!world.report.said(KEPT), "nor are their logs");
    });
}

/// The others went on without it and then died; it has heard of that, and can join nobody.
#[test]
fn who_was_put_out_is_told_how_to_go_on_alone() {
    run(3, QUICK, |world| {
        let (one, two) = (world.db(1), world.db(2));
        assert!(one.set(row(1), 7).is_committed());
        let at = world.settle();
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        world.until("the others drop it", || two.size() == 2);
        world.synced(&two);
        assert!(two.set(row(5), 7).is_committed());
        let hears = "the others went on without this node; joining them again";
        world.report.hold(hears);
        world.net.heal();
        world.until("it hears so", || world.report.said(hears));
        world.crash(2);
        world.crash(3);
        world.report.let_go();
        assert_eq!(one.node().phase(), Phase::Rejoining);
        let refused = one.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("it is not what the others have");
        assert!(why.contains("what they acknowledged since then"), "{why}");
        // What it says is the way.
        assert!(why.contains("safe_to_bootstrap: 1 into"), "{why}");
        one.disconnect();
        world.edit_state_file(1, "safe_to_bootstrap", "1");
        let again = world.open(1, one.disk(), one.position());
        again.connect("gcomm://", true).expect("it was told to");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 7);
        assert_eq!(again.position().history, at.history, "its log goes on");
        assert!(again.set(row(1), 8).is_committed());
    });
}

/// The majority goes on without the first, and then is lost; the first one is
/// forced to go on.
pub fn part(world: &World) -> Arc<Db> {
    for db in world.members() {
        assert!(db.set(row(db.n as u32), 1).is_committed());
    }
    world.settle();
    let (one, two) = (world.db(1), world.db(2));
    world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
    world.until("the others drop it", || two.size() == 2);
    world.synced(&two);
    for n in 10..30 {
        assert!(two.set(row(n), 7).is_committed());
    }
    world.crash(2);
    world.crash(3);
    world.net.heal();
    one.node()
        .set_options("pc.bootstrap=yes")
        .expect("nobody else is there");
    world.synced(&one);
    one
}

#[test]
fn who_has_more_than_the_forced_one_takes_a_copy() {
    run(3, QUICK, |world| {
        let one = part(world);
        // It gets as far as they did, and further, with other data.
        for n in 10..90 {
            assert!(one.set(row(n % 40), 8).is_committed());
        }
        let copies = one.donations();
        let disk = world.crashed_disk(2);
        let position = disk.position;
        assert!(
            position.seqno < one.position().seqno,
            "by numbers alone it could follow"
        );
        let again = world.open(2, disk, position);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(again.read(row(12)), 8, "the forced one's data");
        assert_eq!(one.donations(), copies + 1);
        assert_eq!(world.report.times("n2", KEPT), 1, "nobody else has that");
        world.settle();
    });
}

/// The first is forced on before the others drop it. What they acknowledged meanwhile the second has in its log only:
/// its engine is left with that.
pub fn part_unflushed(world: &World) -> (Arc<Db>, Disk) {
    let one = world.db(1);
    assert!(one.set(row(1), 1).is_committed());
    if world.leader(&one) == 1 {
        world.net.hand_over(&World::addr(1), &World::addr(3));
    }
    world.until("another one leads", || world.leader(&one) != 1);
    world.settle();
    let flushed = world.db(2).disk();
    world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
    for n in 10..15 {
        assert!(world.db(2).set(row(n), 7).is_committed());
    }
    world.crash(2);
    world.crash(3);
    world.until("it is non-primary", || {
        one.node().phase() == Phase::NonPrimary
    });
    one.node()
        .set_options("pc.bootstrap=yes")
        .expect("nobody else is there");
    world.synced(&one);
    world.net.heal();
    (one, flushed)
}

/// Its data follows; its log is the only copy of what others acknowledged with it.
#[test]
fn whose_log_alone_has_more_than_the_forced_one_keeps_that() {
    run(3, QUICK, |world| {
        let (one, flushed) = part_unflushed(world);
        let copies = one.donations();
        let position = flushed.position;
        let again = world.open(2, flushed, position);
        let log = world.copy_log(2);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(one.donations(), copies, "its data is all here");
        assert_eq!(again.read(row(12)), 0, "the forced one's data");
        assert_eq!(world.report.times("n2", KEPT), 1);
        let former = world.net.copy_log(&world.data_dir(2).join("former"));
        assert_eq!(former.bounds(), log.bounds());
        world.settle();
    });
}

#[test]
fn who_has_just_as_much_as_the_forced_one_takes_a_copy() {
    run(3, QUICK, |world| {
        let one = part(world);
        let disk = world.crashed_disk(2);
        let position = disk.position;
        while one.position().seqno < position.seqno {
            assert!(one.set(row(12), 8).is_committed());
        }
        assert_eq!(
            one.position(),
            position,
            "by name and number it lacks nothing"
        );
        let again = world.open(2, disk, position);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(again.read(row(12)), 8, "the forced one's data");
        world.settle();
    });
}

#[test]
fn who_began_the_new_log_and_died_takes_a_copy() {
    run(3, QUICK, |world| {
        let one = part(world);
        for n in 10..90 {
            assert!(one.set(row(n % 40), 8).is_committed());
        }
        let disk = world.crashed_disk(2);
        let position = disk.position;
        let again = world.open(2, disk, position);
        world.net.fail_start(&World::addr(2));
        let why = again.connect(&World::url(), false).expect_err("it fails");
        assert!(why.contains("the port is taken"), "{why}");
        world.crash(2);
        // Its log is of the new incarnation now, its data is not.
        let again = world.open(2, world.crashed_disk(2), position);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(again.read(row(12)), 8, "the forced one's data");
        world.settle();
    });
}

#[test]
fn the_one_with_less_is_not_forced_while_one_with_more_is_there() {
    run(3, QUICK, |world| {
        let (one, two) = (world.db(1), world.db(2));
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        world.until("the others drop it", || two.size() == 2);
        world.synced(&two);
        assert!(two.set(row(5), 7).is_committed());
        world.crash(3);
        world.until("nobody is primary", || {
            two.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        let refused = one.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the other one has more");
        assert!(why.contains("10.0.0.2:4567 has more of the log"), "{why}");
        two.node()
            .set_options("pc.bootstrap=yes")
            .expect("this one has everything");
        world.synced(&two);
        world.synced(&one);
        assert_eq!(one.read(row(5)), 7);
        world.settle();
    });
}

/// Its server runs on, and answers; but its log votes no more.
#[test]
fn who_goes_on_by_an_option_does_so_beside_one_whose_log_has_failed() {
    for option in ["pc.weight=2", "pc.ignore_sb=true"] {
        run(2, QUICK, move |world| {
            let (one, two) = (world.db(1), world.db(2));
            let set = one.node().set_options(option);
            set.expect("it is an option");
            if world.leader(&one) != 1 {
                world.net.hand_over(&two.addr, &one.addr);
            }
            world.until("it leads", || world.leader(&one) == 1);
            world.net.fail_log(&two.addr);
            assert!(one.set(row(1), 1).is_committed());
            world.until("it goes on alone", || one.size() == 1);
            assert!(one.views().iter().all(|v| v.primary), "{:?}", one.views());
            assert!(world.report.said("this node's ordering engine failed"));
        });
    }
}

/// What its log alone has is not given up for that.
#[test]
fn whose_disk_refuses_to_go_on_alone_says_so_and_still_answers() {
    run(3, QUICK, |world| {
        let (one, three) = (world.db(1), world.db(3));
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("the other two go on", || one.set(row(1), 7).is_committed());
        world.crash(2);
        for db in [&one, &three] {
            world.until("it is non-primary", || {
                db.node().phase() == Phase::NonPrimary
            });
        }
        world.net.fail_log(&one.addr);
        let failed = one.node().set_options("pc.bootstrap=yes");
        assert!(failed.expect_err("its disk").contains("the disk is broken"));
        let says = "this node's ordering engine failed";
        world.until("it says so", || world.report.times("n1", says) == 1);
        world.net.heal();
        let refused = three.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the first one has more");
        for words in ["10.0.0.1:4567 has more of the log", "Its log has failed"] {
            assert!(why.contains(words), "{why}");
        }
    });
}

/// It takes no clients, so nobody can give it the order.
#[test]
fn beside_one_that_waits_for_its_data_and_has_more_the_refusal_says_how_to_go_on() {
    let slow = "evs.suspect_timeout=PT9S;evs.inactive_timeout=PT12S";
    run(2, slow, |world| {
        wait_for_copies(world, 2, Point::DonorCopies, &[3]);
        let (one, two) = (world.db(1), world.db(2));
        if world.leader(&one) != 2 {
            world.net.hand_over(&one.addr, &two.addr);
        }
        world.until("the other one leads", || world.leader(&one) == 2);
        let end = |n| world.copy_log(n).bounds().1;
        // What is on its way would keep the next one back.
        world.until("all have the same, and nothing comes", || {
            let all = [1, 2, 3].map(end);
            std::thread::sleep(Duration::from_millis(300));
            all.iter().all(|e| *e == all[0]) && [1, 2, 3].map(end) == all
        });
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        let client = two.clone();
        std::thread::spawn(move || client.set(row(1), 7));
        world.until("only the joiner has it", || end(3) > end(1));
        world.crash(2);
        world.until("it is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        let refused = one.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the joiner has more");
        for words in [
            "10.0.0.3:4567 has more of the log",
            "Set it there, if that server takes clients",
            "start the members that had the votes",
            "stop that server and set this here again",
        ] {
            assert!(why.contains(words), "{why}");
        }
        // What it says is the way.
        world.crash(3);
        let set = one.node().set_options("pc.bootstrap=yes");
        set.expect("nobody else is there");
        world.synced(&one);
        assert!(one.set(row(1), 8).is_committed());
    });
}

#[test]
fn nobody_goes_on_by_an_order_while_a_member_is_there_that_cannot_be_asked() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        world.crash(2);
        world.crash(3);
        world.until("it is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        let unheard: [Unheard; 3] = [AskError::Barred, AskError::ShutOut, AskError::Silent];
        for error in unheard {
            world.net.speak_strangely(&World::addr(3), error);
            let refused = one.node().set_options("pc.bootstrap=yes");
            let why = refused.expect_err("nobody knows what it has");
            for words in [
                "10.0.0.3:4567 cannot",
                "cannot be asked",
                "Stop that server",
            ] {
                assert!(why.contains(words), "{why}");
            }
        }
        world
            .net
            .speak_strangely(&World::addr(3), AskError::Refused);
        one.node()
            .set_options("pc.bootstrap=yes")
            .expect("something else has its address");
        world.synced(&one);
    });
}

/// The links between two halves are gone; `asked` is what either hears of the other's questions.
fn halves_ask(world: &World, asked: Unheard) -> Arc<Db> {
    let one = world.db(1);
    one.node()
        .set_options("pc.ignore_sb=true")
        .expect("it is an option");
    world.net.speak_strangely(&World::addr(2), asked);
    world.net.cut(&addrs(&[1]), &addrs(&[2]));
    one
}

#[test]
fn with_ignore_sb_the_half_does_not_go_on_beside_one_that_cannot_be_asked() {
    run(2, QUICK, |world| {
        let one = halves_ask(world, AskError::Barred);
        world.until("it gives up, or goes on", || {
            one.node().phase() == Phase::NonPrimary || one.size() == 1
        });
        assert_eq!(one.node().phase(), Phase::NonPrimary);
        assert!(
            world
                .report
                .said("not going on without a majority: 10.0.0.2:4567")
        );
        world.net.speak_plainly(&World::addr(2));
        world.net.heal();
        for db in world.members() {
            world.synced(&db);
        }
        world.settle();
    });
}

#[test]
fn with_ignore_sb_the_half_goes_on_where_the_other_hangs_or_is_another() {
    for asked in [AskError::Silent as Unheard, AskError::Refused] {
        run(2, QUICK, move |world| {
            let one = halves_ask(world, asked);
            world.until("the other one is dropped", || one.size() == 1);
            assert!(one.set(row(1), 1).is_committed());
        });
    }
}

/// Its name server is gone with the other one: the resolver gives up long after clients cannot wait any more.
#[test]
fn with_ignore_sb_the_half_goes_on_as_soon_as_its_resolver_has_given_up() {
    run(2, QUICK, |world| {
        let one = halves_ask(world, AskError::Resolving);
        world.until("its clients know", || {
            one.node().phase() == Phase::NonPrimary
        });
        let said = "It is asked again until the resolver has answered";
        world.until("it says what it waits for", || world.report.said(said));
        std::thread::sleep(Duration::from_secs(4));
        assert!(!one.node().is_primary(), "the other one may be there");
        world
            .net
            .speak_strangely(&World::addr(2), AskError::Unlooked);
        world.until("the other one is dropped", || one.size() == 1);
        world.synced(&one);
        assert!(one.set(row(1), 1).is_committed());
        world.net.speak_plainly(&World::addr(2));
        world.net.heal();
        world.synced(&world.db(2));
        world.settle();
    });
}

/// The other one is there after all: the wait for its name ends, and it is joined.
#[test]
fn with_ignore_sb_the_half_that_waits_for_its_resolver_joins_the_other_half() {
    run(2, QUICK, |world| {
        let one = halves_ask(world, AskError::Resolving);
        world.until("its clients know", || {
            one.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        world.net.speak_plainly(&World::addr(2));
        for db in world.members() {
            world.synced(&db);
        }
        assert!(!world.report.said("forced recovery"));
        world.settle();
    });
}
