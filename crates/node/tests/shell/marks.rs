//! Checkpoints that cannot be read any more, or not be saved.

use crate::partition::QUICK;
use crate::toy::row;
use crate::world::{World, run};

const UNREADABLE: &str = "cannot be read, so this node does without it";

/// Node 2 comes and goes: two views, and a checkpoint at each.
fn views(world: &World) {
    world.join(2).disconnect();
    let one = world.db(1);
    world.until("the other one is gone", || one.size() == 1);
}

#[test]
fn an_older_checkpoint_that_is_damaged_keeps_no_node_from_starting() {
    run(1, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        views(world);
        world.crash(1);
        let dir = world.data_dir(1);
        assert!(world.net.damage_checkpoints(&dir, |_| true) > 0);
        let again = world.open_again(1);
        let started = again.connect("gcomm://", true);
        started.expect("the log and its newest checkpoint are whole");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 1);
        assert!(again.set(row(2), 2).is_committed());
        assert!(world.report.times("n1", UNREADABLE) > 0);
    });
}

/// Node 3 is away; then as many checkpoints of the leader as `wanted` says are damaged, and it comes back.
/// By how many copies.
fn comes_back(world: &World, wanted: impl Fn(usize) -> bool) -> usize {
    let given = || (1..=2).map(|n| world.db(n).donations()).sum::<usize>();
    let one = world.db(1);
    assert!(one.set(row(1), 1).is_committed());
    world.settle();
    let before = given();
    world.crash(3);
    world.until("the others drop it", || {
        [1, 2].iter().all(|n| world.db(*n).size() == 2)
    });
    world.voters(2);
    assert!(one.set(row(2), 2).is_committed());
    let leader = world.leader(&one);
    let dir = world.data_dir(leader);
    assert!(world.net.damage_checkpoints(&dir, wanted) > 0);
    let again = world.open_again(3);
    again.connect(&World::url(), false).expect("two are there");
    world.synced(&again);
    world.settle();
    assert!(world.report.times(&format!("n{leader}"), UNREADABLE) > 0);
    given() - before
}

#[test]
fn who_would_begin_at_a_damaged_checkpoint_begins_at_an_older_one() {
    run(3, QUICK, |world| {
        assert_eq!(comes_back(world, |n| n > 0), 0, "by the log");
    });
}

#[test]
fn who_would_begin_at_a_damaged_checkpoint_takes_a_copy_if_there_is_no_other() {
    run(3, QUICK, |world| {
        assert_eq!(comes_back(world, |_| true), 1);
    });
}

#[test]
fn a_checkpoint_for_which_there_is_no_room_is_told_once_and_costs_nothing() {
    run(1, "", |world| {
        let one = world.db(1);
        let told = || world.report.times("n1", "no checkpoint at log index");
        world.net.fill_log(&World::addr(1));
        views(world);
        assert!(one.set(row(1), 1).is_committed());
        let before = told();
        assert!(before > 0);
        for n in 2..30 {
            assert!(one.set(row(n), 1).is_committed());
        }
        assert_eq!(told(), before, "not tried again and again");
        world.net.mend_log(&World::addr(1));
        views(world);
        assert!(one.set(row(1), 2).is_committed());
        assert_eq!(told(), before, "and the next one is saved");
    });
}
