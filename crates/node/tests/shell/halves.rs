//! Two primary components of one history: one part was forced to go on while the other lived.

use dromon_node::Phase;

use crate::toy::row;
use crate::world::{World, addrs, run};

const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
/// What is said by whoever hears of both.
const TWO: &str = "two primary components of one history";

/// The first of `count` is cut off and forced to go on; the others drop it. Both parts write, and
/// then reach each other again.
fn part(world: &World, count: usize) {
    for db in world.members() {
        assert!(db.set(row(db.n as u32), 1).is_committed());
    }
    world.settle();
    let (one, two) = (world.db(1), world.db(2));
    let others: Vec<usize> = (2..=count).collect();
    world.net.cut(&addrs(&[1]), &addrs(&others));
    let votes = others.len().to_string();
    world.until("the others drop it", || {
        others.iter().all(|n| {
            let db = world.db(*n);
            db.stat("dromon_voters") == votes && world.net.voters_settled(&db.addr)
        })
    });
    world.synced(&two);
    one.node()
        .set_options("pc.bootstrap=yes")
        .expect("it reaches nobody");
    world.synced(&one);
    world.until("it is alone", || one.size() == 1);
    for n in 10..30 {
        assert!(two.set(row(n), 7).is_committed());
        assert!(one.set(row(n), 8).is_committed());
    }
    for n in others {
        let db = world.db(n);
        world.until("it has what the others have", || db.read(row(29)) == 7);
    }
    world.net.heal();
}

#[test]
fn who_restarts_stays_with_the_members_of_its_log() {
    run(5, QUICK, |world| {
        part(world, 5);
        let was = world.net.log_id(&World::addr(5));
        world.crash(5);
        let again = world.open_again(5);
        again
            .connect(&World::url(), false)
            .expect("three are there");
        world.synced(&again);
        assert_eq!(again.read(row(12)), 7, "the majority's data");
        assert_eq!(world.net.log_id(&World::addr(5)), was, "the same log");
        assert!(world.report.times("n5", TWO) > 0);
        assert!(world.report.said("10.0.0.1:4567 leads one"));
        let two = world.db(2);
        assert!(two.set(row(40), 7).is_committed());
        world.until("it follows", || again.read(row(40)) == 7);
        assert_eq!(world.db(1).size(), 1);
    });
}

#[test]
fn who_restarts_under_another_build_stays_with_them_too() {
    run(5, QUICK, |world| {
        part(world, 5);
        world.crash(5);
        let again = world.open_again(5);
        let dir = world.data_dir(5);
        world.net.of_other_build(&dir, true);
        again
            .connect(&World::url(), false)
            .expect("three are there");
        world.net.of_other_build(&dir, false);
        world.synced(&again);
        assert_eq!(again.read(row(12)), 7, "the majority's data");
        assert!(world.report.times("n5", TWO) > 0);
    });
}

/// Of three the two that are left have no majority while one of them restarts.
#[test]
fn the_two_that_went_on_are_a_majority_again() {
    run(3, QUICK, |world| {
        part(world, 3);
        let two = world.db(2);
        let was = world.net.log_id(&World::addr(3));
        world.crash(3);
        world.until("it has no majority", || {
            two.node().phase() == Phase::NonPrimary
        });
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("one is there");
        for db in [&two, &again] {
            world.synced(db);
            assert_eq!(db.read(row(12)), 7, "their data");
        }
        assert_eq!(world.net.log_id(&World::addr(3)), was, "the same log");
        assert!(world.report.times("n3", TWO) > 0);
        assert!(two.set(row(40), 7).is_committed());
        assert_eq!(world.db(1).size(), 1);
    });
}

/// A running one that was cut off for long joins those again that it was with.
#[test]
fn who_joins_again_joins_those_of_its_own_incarnation() {
    run(5, QUICK, |world| {
        part(world, 5);
        let five = world.db(5);
        world.net.cut(&addrs(&[5]), &addrs(&[2, 3, 4]));
        world.until("the others drop it", || world.db(2).size() == 3);
        world.net.heal();
        world.synced(&five);
        world.until("all four are members", || five.size() == 4);
        assert_eq!(five.read(row(12)), 7, "the majority's data");
    });
}

#[test]
fn both_say_so_until_one_is_given_up() {
    run(3, QUICK, |world| {
        part(world, 3);
        let two = world.db(2);
        let shows = |n| world.db(n).stat("dromon_other_primary");
        world.until("the forced one hears of the others", || {
            shows(1) == "10.0.0.2:4567,10.0.0.3:4567"
        });
        world.until("they hear of it", || {
            [2, 3].iter().all(|n| shows(*n) == World::addr(1))
        });
        for n in ["n1", "n2", "n3"] {
            assert_eq!(world.report.times(n, TWO), 1, "{n}");
        }
        // The forced one is given up, by an operator: it would lose what it has acknowledged.
        world.crash(1);
        let refused = world.open_again(1);
        let why = refused
            .connect(&World::url(), false)
            .expect_err("not asked");
        assert!(
            why.to_string().contains("set safe_to_bootstrap: 0"),
            "{why}"
        );
        world.edit_state_file(1, "safe_to_bootstrap", "0");
        let again = world.open(1, refused.disk(), refused.position());
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(12)), 7, "the others' data");
        let kept = "The log is kept: its files are now";
        assert_eq!(world.report.times("n1", kept), 1);
        world.until("nobody names another one", || {
            (1..=3).all(|n| shows(n).is_empty())
        });
        assert_eq!(two.size(), 3);
        world.settle();
    });
}
