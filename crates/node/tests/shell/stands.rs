//! What whoever started the process hears of how the node stands.

use dromon_node::{Outcome, Phase};

use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Db, row};
use crate::votes::left_inconsistent;
use crate::world::{World, addrs, run};

/// Nobody is evicted, but the lease runs out soon enough for a test.
const PATIENT: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";

/// As one that is no member any more, and whose server knows.
pub fn shows_out(db: &Db) {
    for (name, shown) in [
        ("local_state", "0"),
        ("local_state_comment", "Initialized"),
        ("cluster_weight", "0"),
        ("desync_count", "0"),
        ("incoming_addresses", ""),
    ] {
        assert_eq!(db.stat(name), shown, "{name} on {}", db.name);
    }
}

/// Waits until node `n` has told this last.
pub fn hears(world: &World, n: usize, last: &str) {
    let told = || world.report.standings(&format!("n{n}"));
    world.until(&format!("{last} is n{n}'s last word"), || {
        told().last().is_some_and(|l| l == last)
    });
}

#[test]
fn one_that_is_outvoted_is_not_shown_as_synced() {
    run(3, "", |world| {
        let odd = world.db(3);
        hears(world, 3, "stands: Synced");
        odd.fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
        assert!(world.db(1).set(row(2), 1).is_committed());
        left_inconsistent(world, &odd);
        hears(world, 3, "stands: Inconsistent");
        odd.disconnect();
        hears(world, 3, "stands: Inconsistent");
        assert_eq!(odd.node().phase(), Phase::Closed);
        shows_out(&odd);
    });
}

/// It has something to finish first, and its server has the view of three.
#[test]
fn nor_is_one_that_leaves() {
    run(3, "", |world| {
        let (one, three) = (world.db(1), world.db(3));
        three.holds.close(Point::ApplyStart);
        assert!(one.set(row(2), 1).is_committed());
        world.until("it is at it", || {
            three.holds.waiting(Point::ApplyStart) == 1
        });
        assert_eq!(three.stat("cluster_weight"), "3");
        let leaving = std::thread::spawn({
            let three = three.clone();
            move || three.disconnect()
        });
        world.until("it leaves", || three.node().phase() == Phase::Leaving);
        assert_eq!(three.stat("local_state_comment"), "Initialized");
        assert_eq!(three.stat("cluster_weight"), "0");
        world.until("the others know", || one.size() == 2);
        assert_eq!(three.stat("local_state_comment"), "Initialized");
        assert_ne!(three.stat("incoming_addresses"), "", "as its server's view");
        three.holds.open(Point::ApplyStart);
        leaving.join().expect("it ends");
        shows_out(&three);
    });
}

/// Nothing would come after: it would be shown as one that catches up for good.
#[test]
fn the_start_of_one_that_turns_inconsistent_is_over() {
    run(3, PATIENT, |world| {
        world.settle();
        world.crash(3);
        assert!(world.db(1).set(row(2), 1).is_committed());
        let again = world.open_again(3);
        again.fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
        again.holds.close(Point::ApplyStart);
        again.connect(&World::url(), false).expect("two are there");
        hears(world, 3, "still starting: catching up with the cluster");
        again.holds.open(Point::ApplyStart);
        left_inconsistent(world, &again);
        hears(world, 3, "stands: Inconsistent");
    });
}

fn without_the_others(options: &'static str) {
    run(3, options, move |world| {
        let (others, alone) = (addrs(&[1, 2]), addrs(&[3]));
        let three = world.db(3);
        hears(world, 3, "stands: Synced");
        let before = world.report.standings("n3").len();
        world.net.cut(&alone, &others);
        hears(world, 3, "stands: NonPrimary");
        if options == QUICK {
            world.until("the others drop it", || world.db(1).size() == 2);
        }
        world.net.heal();
        world.synced(&three);
        hears(world, 3, "stands: Synced");
        let told = world.report.standings("n3").split_off(before);
        let starts = |t: &String| t.starts_with("still starting: ");
        assert!(!told.iter().any(starts), "it has been up: {told:?}");
        three.disconnect();
        hears(world, 3, "stands: Gone");
    });
}

#[test]
fn one_that_has_lost_the_others_is_not_shown_as_synced() {
    without_the_others(PATIENT);
}

#[test]
fn nor_is_one_that_they_went_on_without() {
    without_the_others(QUICK);
}

#[test]
fn a_desynced_one_is_shown_as_such() {
    run(2, "", |world| {
        let two = world.db(2);
        hears(world, 2, "stands: Synced");
        assert_eq!(two.node().desync(), Outcome::Ok);
        hears(world, 2, "stands: Donor");
        assert_eq!(two.node().resync(), Outcome::Ok);
        hears(world, 2, "stands: Synced");
    });
}
