//! `pc.weight`: one member that outweighs all others votes alone, one of weight 0
//! does not vote.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::{Phase, Position};

use crate::load::Load;
use crate::toy::{Db, Disk, row};
use crate::votes::left_inconsistent;
use crate::world::{World, addrs, run};

const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
/// Long enough for a wrong majority to come about.
const LONG_ENOUGH: Duration = Duration::from_secs(4);

fn weigh(db: &Db, weight: u8) {
    let option = format!("pc.weight={weight}");
    db.node().set_options(&option).expect("it is an option");
}

/// Node 1 weighs more than the two others.
fn heavy(world: &World) -> Arc<Db> {
    let one = world.db(1);
    weigh(&one, 3);
    // It counts when the statement is over, unless that took too long.
    let late = world.report.said("but the votes are not as it says");
    assert!(late || one.stat("dromon_voters") == "1");
    assert_eq!(one.stat("cluster_weight"), "5");
    world.voters(1);
    assert!(
        world
            .report
            .said("n1 weighs more than all others together (3 of 5)")
    );
    one
}

/// Node `n`, which crashed, is started again with that weight in its configuration.
fn again(world: &World, n: usize, weight: u8) -> Arc<Db> {
    let db = world.open_again(n);
    weigh(&db, weight);
    db
}

fn non_primary(world: &World, ns: &[usize]) {
    for n in ns {
        let db = world.db(*n);
        world.until("it is non-primary", || {
            db.node().phase() == Phase::NonPrimary
        });
    }
}

#[test]
fn the_heavy_one_goes_on_without_the_others_and_they_come_back() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        let before = one.views().len();
        let mut load = Load::new(true);
        load.add(&one, 2, 4);
        load.go_on(world, 10);
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        world.net.cut(&addrs(&[2]), &addrs(&[3]));
        load.go_on(world, 10);
        non_primary(world, &[2, 3]);
        assert_eq!(world.db(2).stat("cluster_weight"), "0");
        world.until("the others are dropped", || one.size() == 1);
        assert_eq!(one.stat("cluster_weight"), "3");
        load.go_on(world, 20);
        let since = &one.views()[before..];
        assert!(since.iter().all(|v| v.primary), "{since:?}");
        world.net.heal();
        for n in [2, 3] {
            world.synced(&world.db(n));
        }
        world.until("all are members", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        world.voters(1);
        load.add(&world.db(2), 1, 5);
        load.go_on(world, 20);
        load.verify(world);
    });
}

#[test]
fn the_others_are_no_majority_without_the_heavy_one() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        // Whoever leads: that is over before the statement is.
        world.net.hand_over(&one.addr, &World::addr(2));
        heavy(world);
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        assert!(one.set(row(1), 1).is_committed());
        non_primary(world, &[2, 3]);
        std::thread::sleep(LONG_ENOUGH);
        non_primary(world, &[2, 3]);
        assert_eq!(one.node().phase(), Phase::Joined);
        world.net.heal();
        for n in [2, 3] {
            world.synced(&world.db(n));
        }
        world.settle();
        assert_eq!(world.db(3).read(row(1)), 1);
    });
}

#[test]
fn weights_change_and_the_votes_follow() {
    run(3, QUICK, |world| {
        let mut load = Load::new(true);
        for db in world.members() {
            load.add(&db, 1, 6);
        }
        let one = heavy(world);
        load.go_on(world, 10);
        // Another one is heavier still: it leads, and the first one has no vote.
        weigh(&world.db(2), 9);
        world.voters(1);
        assert_eq!(world.leader(&one), 2);
        load.go_on(world, 10);
        weigh(&world.db(2), 1);
        world.voters(1);
        assert_eq!(world.leader(&one), 1);
        load.go_on(world, 10);
        weigh(&one, 1);
        world.voters(3);
        assert!(
            world
                .report
                .said("pc.weight takes no member's vote any more")
        );
        load.go_on(world, 10);
        load.verify(world);
        // Two of three are a majority again.
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        non_primary(world, &[1]);
        let two = world.db(2);
        world.until("it is dropped", || two.size() == 2);
        assert!(two.set(row(1), 7).is_committed());
        world.net.heal();
        world.synced(&one);
        world.settle();
    });
}

/// It was set while the server ran, so nothing but the node itself knows it.
#[test]
fn a_weight_outlives_an_eviction_and_what_nobody_heard() {
    run(4, QUICK, |world| {
        let weighs = |n: usize, weight: &str| {
            let db = world.db(n);
            world.until("all know it", || db.stat("cluster_weight") == weight);
        };
        let one = world.db(1);
        weigh(&one, 2);
        let rest = addrs(&[2, 3, 4]);
        weighs(2, "5");
        world.net.cut(&addrs(&[1]), &rest);
        world.until("it is dropped", || world.db(2).size() == 3);
        weighs(2, "3");
        world.net.heal();
        world.synced(&one);
        for n in 1..=4 {
            weighs(n, "5");
        }
        // While it is alone nobody can be told.
        world.net.cut(&addrs(&[1]), &rest);
        world.until("it is dropped", || world.db(2).size() == 3);
        weigh(&one, 1);
        world.net.heal();
        world.synced(&one);
        for n in 1..=4 {
            weighs(n, "4");
        }
        world.settle();
    });
}

#[test]
fn the_heavy_one_leaves_and_the_others_go_on() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        let mut load = Load::new(true);
        load.add(&world.db(2), 1, 4);
        load.add(&world.db(3), 1, 5);
        load.go_on(world, 10);
        one.disconnect();
        world.voters(2);
        load.go_on(world, 20);
        for n in [2, 3] {
            let db = world.db(n);
            assert_eq!(db.size(), 2);
        }
        one.connect(&World::url(), false).expect("two are there");
        world.synced(&one);
        // It still has its weight.
        world.voters(1);
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn the_heavy_one_is_put_out_and_the_others_go_on() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        let uuid = one.own().expect("it is a member");
        let two = world.db(2);
        let option = format!("evs.evict={uuid}");
        two.node().set_options(&option).expect("it is a member");
        world.until("it has left", || one.finals() == 1);
        one.disconnect();
        world.voters(2);
        assert!(two.set(row(1), 1).is_committed());
        one.connect(&World::url(), false).expect("two are there");
        world.synced(&one);
        world.voters(1);
        world.settle();
    });
}

/// It alone fails to apply something. The others are more, and that counts here.
#[test]
fn the_heavy_one_differs_and_is_voted_out() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        let two = world.db(2);
        one.fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
        assert!(two.set(row(2), 1).is_committed());
        left_inconsistent(world, &one);
        world.until("the others see it go", || two.size() == 2);
        // It does not hear of it any more.
        world.until("its vote is gone", || two.stat("dromon_voters") == "2");
        for n in 3..10 {
            assert!(two.set(row(n), 1).is_committed());
        }
        one.disconnect();
        let again = world.open(1, Disk::empty(), Position::UNDEFINED);
        weigh(&again, 3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        world.voters(1);
        assert_eq!(again.read(row(9)), 1);
        world.settle();
    });
}

#[test]
fn the_heavy_one_restarts_and_the_others_come_back_by_themselves() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        let mut load = Load::new(true);
        load.add(&one, 2, 4);
        load.go_on(world, 10);
        load.stop();
        world.crash(1);
        non_primary(world, &[2, 3]);
        let one = again(world, 1, 3);
        let was = world.net.log_id(&one.addr);
        one.connect(&World::url(), false)
            .expect("its own log is a majority");
        for n in [1, 2, 3] {
            world.synced(&world.db(n));
        }
        assert_eq!(world.net.log_id(&one.addr), was, "the same log");
        world.voters(1);
        assert!(world.db(3).set(row(77), 7).is_committed());
        load.verify(world);
    });
}

#[test]
fn after_an_outage_the_heavy_one_is_needed_and_enough() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        let others = [2, 3].map(|n| again(world, n, 1));
        let joins = others
            .clone()
            .map(|db| std::thread::spawn(move || db.connect(&World::url(), false)));
        world.until("they wait for it", || {
            let text = "waits for a majority with: 10.0.0.1:4567";
            world.report.times("n2", text) > 0 && world.report.times("n3", text) > 0
        });
        std::thread::sleep(LONG_ENOUGH);
        assert!(others.iter().all(|db| !db.ready()), "without a vote");
        let one = again(world, 1, 3);
        one.connect(&World::url(), false).expect("it is enough");
        for join in joins {
            join.join().expect("no panic").expect("it is there");
        }
        for n in 1..=3 {
            world.synced(&world.db(n));
        }
        world.voters(1);
        assert!(world.db(2).set(row(2), 2).is_committed());
        world.settle();
        // And alone.
        for n in 1..=3 {
            world.crash(n);
        }
        let one = again(world, 1, 3);
        one.connect(&World::url(), false).expect("it is enough");
        assert!(world.report.said("is the only one that votes"));
        world.synced(&one);
        assert!(one.set(row(3), 3).is_committed());
        assert_eq!(one.read(row(2)), 2);
        let three = again(world, 3, 1);
        three.connect(&World::url(), false).expect("one is there");
        world.synced(&three);
        assert_eq!(three.read(row(3)), 3);
    });
}

#[test]
fn without_the_heavy_one_an_operator_goes_on() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        for n in 10..30 {
            assert!(one.set(row(n), 1).is_committed());
        }
        world.settle();
        world.crash(1);
        non_primary(world, &[2, 3]);
        let two = world.db(2);
        two.node()
            .set_options("pc.bootstrap=yes")
            .expect("the heavy one is dead");
        world.synced(&two);
        world.synced(&world.db(3));
        world.voters(2);
        assert!(two.set(row(1), 5).is_committed());
        // It is one of those that were left behind.
        let one = again(world, 1, 3);
        one.connect(&World::url(), false).expect("two are there");
        world.synced(&one);
        assert_eq!(one.read(row(1)), 5);
        world.voters(1);
        world.settle();
    });
}

#[test]
fn one_without_a_vote_is_founded_on_by_hand_only() {
    run(3, QUICK, |world| {
        let one = heavy(world);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        let two = again(world, 2, 1);
        let refused = two.connect("gcomm://", true).expect_err("not the last one");
        assert!(refused.contains("may not be safe"), "{refused}");
        world.edit_state_file(2, "safe_to_bootstrap", "1");
        let two = again(world, 2, 1);
        two.connect("gcomm://", true).expect("it was edited");
        assert!(world.report.said("What only they know is given up"));
        world.synced(&two);
        assert_eq!(two.read(row(1)), 1, "its own log went on");
        assert!(two.set(row(2), 2).is_committed());
        for n in [1, 3] {
            let db = again(world, n, 1);
            db.connect(&World::url(), false).expect("one is there");
            world.synced(&db);
            assert_eq!(db.read(row(2)), 2);
        }
        world.settle();
    });
}

#[test]
fn who_weighs_nothing_makes_no_majority() {
    run(3, QUICK, |world| {
        let (one, two) = (world.db(1), world.db(2));
        weigh(&two, 0);
        world.voters(2);
        assert!(world.report.said("who weighs nothing has no vote (n2)"));
        assert!(two.set(row(1), 1).is_committed());
        // Both that vote are here.
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3]));
        assert!(one.set(row(2), 2).is_committed());
        non_primary(world, &[2]);
        world.net.heal();
        world.synced(&two);
        world.until("all are members", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        world.voters(2);
        // Half of the votes is no majority, and neither half is the heavier one.
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        non_primary(world, &[1, 2, 3]);
        world.net.heal();
        for n in 1..=3 {
            world.synced(&world.db(n));
        }
        world.settle();
    });
}

/// Another one of weight 0 changes the votes as the first one does.
#[test]
fn two_weigh_nothing_and_one_of_them_something_again() {
    run(4, QUICK, |world| {
        let (two, three) = (world.db(2), world.db(3));
        // The statement is over when the votes are as it says, unless that took too long.
        let counts = |db: &Db, weight, voters: &str| {
            weigh(db, weight);
            let late = world.report.said("but the votes are not as it says");
            assert!(late || db.stat("dromon_voters") == voters);
            world.voters(voters.parse().expect("a number"));
        };
        counts(&two, 0, "3");
        assert!(world.report.said("has no vote (n2)"));
        counts(&three, 0, "2");
        assert!(world.report.said("has no vote (n2, n3)"));
        counts(&two, 1, "3");
        assert!(world.report.said("has no vote (n3)"));
        assert!(three.set(row(1), 1).is_committed());
        world.settle();
    });
}
