//! How long the log keeps what the database may still lose.

use std::time::Duration;

use dromon_node::Position;
use dromon_order::logstore::LogStore;

use crate::toy::{Disk, row};
use crate::world::{World, run};

const LIMIT: Duration = Duration::from_secs(120);

/// Node 2 comes and goes: two views, and a checkpoint at each.
fn views(world: &World) {
    world.join(2).disconnect();
    let one = world.db(1);
    world.until("the other one is gone", || one.size() == 1);
}

/// A node elsewhere that comes and goes all night.
#[test]
fn views_alone_leave_few_checkpoints() {
    run(1, "", LIMIT, |world| {
        let one = world.db(1);
        for n in 0..12 {
            assert!(one.set(row(n), 1).is_committed());
            views(world);
        }
        let there = world.copy_log(1).checkpoints().expect("they are listed");
        assert!((8..=15).contains(&there.len()), "{there:?}");
        world.crash(1);
        let one = world.open_again(1);
        one.connect("gcomm://", true).expect("its own log");
        world.synced(&one);
        assert_eq!(one.read(row(7)), 1);
        views(world);
    });
}

/// A node that is started again and again, and writes less in between than has to stay.
#[test]
fn the_log_that_a_start_finds_counts_towards_what_has_to_stay() {
    run(1, "gcache.size=8K", LIMIT, |world| {
        let one = world.db(1);
        for n in 0..20 {
            assert!(one.set(row(n), 1).is_committed());
        }
        views(world);
        let kept = one.count("dromon_log_last");
        for n in 20..200 {
            assert!(one.set(row(n), 1).is_committed());
        }
        // The next start begins there, and delivers next to nothing.
        views(world);
        world.crash(1);
        let one = world.open_again(1);
        one.connect("gcomm://", true).expect("its own log");
        world.synced(&one);
        // The database has kept all of it; that takes ten seconds to know.
        world.until("the log is shorter", || one.count("dromon_log_first") > 1);
        assert!(one.count("dromon_log_first") <= kept);
        assert_eq!(one.read(row(7)), 1);
    });
}

#[test]
fn the_log_is_shortened_only_behind_what_was_synced() {
    run(1, "gcache.size=0", LIMIT, |world| {
        let (one, addr) = (world.db(1), World::addr(1));
        for n in 0..20 {
            assert!(one.set(row(n), 1).is_committed());
        }
        let written = one.position().seqno;
        views(world);
        views(world);
        assert_eq!(
            one.stat("dromon_durable_seqno"),
            "-1",
            "ten seconds are not over"
        );
        assert_eq!(one.stat("dromon_log_first"), "1", "so nothing may go");
        world.until("it was synced", || {
            one.count("dromon_durable_seqno") >= written
        });
        assert!(world.net.syncs(&addr) >= 1);
        assert_eq!(
            one.stat("dromon_log_first"),
            "1",
            "a checkpoint must come first"
        );
        // At a checkpoint, unless the one that comes and goes still needs it.
        world.until("the log is shorter", || {
            views(world);
            one.count("dromon_log_first") > 20
        });
        assert_eq!(one.stat("dromon_log_held"), "");

        world.net.fail_syncs(&addr);
        world.until("a sync fails", || {
            one.stat("dromon_log_held") == "sync failed"
        });
        let (first, durable) = (
            one.count("dromon_log_first"),
            one.count("dromon_durable_seqno"),
        );
        let syncs = world.net.syncs(&addr);
        for _ in 0..3 {
            views(world);
        }
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(
            one.count("dromon_log_first"),
            first,
            "nothing goes any more"
        );
        assert_eq!(one.count("dromon_durable_seqno"), durable);
        assert_eq!(
            world.net.syncs(&addr),
            syncs,
            "a later success would prove nothing"
        );
        assert!(one.set(row(1), 2).is_committed(), "clients do not notice");
        world.settle();
        // The one at the stop succeeds, and proves nothing either.
        world.net.let_syncs(&addr);
        one.disconnect();
        let file = world.state_file(1);
        assert!(
            file.contains("seqno:   -1\n"),
            "the next start asks the engine: {file}"
        );
        assert!(
            world
                .report
                .said("a later sync does not tell what that lost")
        );
    });
}

#[test]
fn a_joiner_without_a_donor_does_not_hold_the_log_of_all() {
    let options = "gcache.size=0;dromon.log_max=0";
    run(1, options, LIMIT, |world| {
        let one = world.db(1);
        let waits = world.open(3, Disk::empty(), Position::UNDEFINED);
        waits
            .connect_from(&World::url(), "n4", false)
            .expect("there is a cluster");
        for n in 0..20 {
            assert!(one.set(row(n), 1).is_committed());
        }
        world.until("the log is shorter", || {
            world.join(2).disconnect();
            world.until("n2 is gone", || one.size() == 2);
            one.count("dromon_log_first") > 20
        });
        assert!(waits.returned().is_empty(), "it still waits");
        // Whom it wants comes.
        world.join(4);
        world.synced(&waits);
        world.settle();
    });
}
