//! Hosts that say nothing at all, not even that nobody listens there: each question to them takes its
//! whole time.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::Phase;

use crate::toy::{Db, row};
use crate::world::{World, addrs, run};

const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

/// These lose their power.
fn lose(world: &World, ns: &[usize]) {
    for n in ns {
        world.crash(*n);
    }
    world.net.silence(&addrs(ns));
}

/// Node `n` waits for the answers of who is silent, and will go on waiting.
fn seeks(world: &World, n: usize) {
    let addr = World::addr(n);
    world.net.hold_questions(&addr);
    world.until("it asks whether the others went on", || {
        world.net.questions(&addr) > 0
    });
}

#[test]
fn who_has_more_and_asks_the_dead_still_says_so() {
    run(4, QUICK, |world| {
        let (one, two) = (world.db(1), world.db(2));
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3, 4]));
        world.until("the others drop it", || two.size() == 3);
        world.synced(&two);
        assert!(two.set(row(5), 7).is_committed());
        lose(world, &[3, 4]);
        world.until("nobody is primary", || {
            two.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        seeks(world, 2);
        let refused = one.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the other one has more");
        assert!(why.contains("10.0.0.2:4567 has more of the log"), "{why}");
        world.net.let_questions(&World::addr(2));
    });
}

#[test]
fn who_asks_the_dead_serves_as_soon_as_the_majority_is_back() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        lose(world, &[2, 3]);
        seeks(world, 1);
        world.net.end_silence(&World::addr(2));
        let two = world.open_again(2);
        two.connect(&World::url(), false).expect("a majority");
        world.synced(&one);
        assert!(
            world.net.questions(&World::addr(1)) > 0,
            "it still asks the one that is gone"
        );
        assert!(one.set(row(1), 1).is_committed());
        world.net.let_questions(&World::addr(1));
        world.synced(&two);
        world.settle();
    });
}

/// All are asked at the same time, and once.
#[test]
fn the_dead_are_asked_side_by_side_and_once() {
    run(4, QUICK, |world| {
        lose(world, &[2, 3, 4]);
        seeks(world, 1);
        let asked = || world.net.questions(&World::addr(1));
        world.until("it asks all", || asked() == 3);
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(asked(), 3, "not again before they answer");
        world.net.let_questions(&World::addr(1));
    });
}

/// Of four that have the same, the last two lose their power. The other two, the one whose log has
/// the higher id first.
fn halves(world: &World) -> [Arc<Db>; 2] {
    assert!(world.db(1).set(row(1), 1).is_committed());
    world.settle();
    lose(world, &[3, 4]);
    let mut left = [world.db(1), world.db(2)];
    for db in &left {
        world.until("it is non-primary", || {
            db.node().phase() == Phase::NonPrimary
        });
    }
    left.sort_by_key(|db| std::cmp::Reverse(world.net.log_id(&db.addr)));
    left
}

fn told(db: &Arc<Db>) -> std::thread::JoinHandle<Result<(), String>> {
    let node = db.node().clone();
    std::thread::spawn(move || node.set_options("pc.bootstrap=yes"))
}

#[test]
fn of_two_told_at_once_one_goes_on_alone() {
    run(4, QUICK, |world| {
        let left = halves(world);
        let both = left.each_ref().map(told);
        let [first, second] = both.map(|t| t.join().expect("no panic"));
        first.expect("it comes first");
        let why = second.expect_err("one is enough");
        assert!(
            why.contains("belongs to a primary component") || why.contains("is about to go on"),
            "{why}"
        );
        for db in &left {
            world.synced(db);
            world.until("they are two", || db.size() == 2);
        }
        assert!(left[1].set(row(1), 2).is_committed());
        world.settle();
    });
}

#[test]
fn who_hears_that_another_is_about_to_go_on_alone_does_not() {
    run(4, QUICK, |world| {
        let [first, second] = halves(world);
        let net = &world.net;
        net.hold_questions(&first.addr);
        let goes = told(&first);
        world.until("it has looked at the other one and asks the dead", || {
            net.has_probed(&first.addr, &second.addr) && net.probes(&first.addr, &World::addr(4))
        });
        // Once more before it goes on.
        net.silence(std::slice::from_ref(&second.addr));
        for n in [3, 4] {
            net.end_silence(&World::addr(n));
        }
        world.until("it looks again", || net.probes(&first.addr, &second.addr));
        let refused = second.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the first one may be primary at any moment");
        assert!(why.contains("is about to go on alone"), "{why}");
        net.let_questions(&first.addr);
        let refused = goes.join().expect("no panic");
        let why = refused.expect_err("nobody knows what the other one does");
        assert!(
            why.contains("answered a moment ago and does not now"),
            "{why}"
        );
        net.end_silence(&second.addr);
        told(&first).join().expect("no panic").expect("it goes on");
        world.synced(&first);
        world.synced(&second);
        world.settle();
    });
}
