//! Hosts that say nothing at all, not even that nobody listens there: each question to them takes its
//! whole time.

use std::time::Duration;

use dromon_node::Phase;

use crate::toy::row;
use crate::world::{World, addrs, run};

const LIMIT: Duration = Duration::from_secs(120);
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
    run(4, QUICK, LIMIT, |world| {
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
    run(3, QUICK, LIMIT, |world| {
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
    run(4, QUICK, LIMIT, |world| {
        lose(world, &[2, 3, 4]);
        seeks(world, 1);
        let asked = || world.net.questions(&World::addr(1));
        world.until("it asks all", || asked() == 3);
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(asked(), 3, "not again before they answer");
        world.net.let_questions(&World::addr(1));
    });
}
