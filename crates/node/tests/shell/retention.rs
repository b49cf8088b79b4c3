//! How long the log keeps what the database may still lose.

use std::time::Duration;

use dromon_node::{Outcome, Phase, Position};
use dromon_order::logstore::LogStore;

use crate::toy::{Disk, row};
use crate::world::{World, addrs, run};

/// Node 2 comes and goes: two views, and a checkpoint at each.
fn views(world: &World) {
    world.join(2).disconnect();
    let one = world.db(1);
    world.until("the other one is gone", || one.size() == 1);
}

/// A node elsewhere that comes and goes all night.
#[test]
fn views_alone_leave_few_checkpoints() {
    run(1, "", |world| {
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
    run(1, "gcache.size=8K", |world| {
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
    run(1, "gcache.size=0", |world| {
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
    run(1, options, |world| {
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

/// Nobody is evicted while this runs, or soon.
const PATIENT: &str =
    "gcache.size=0;dromon.log_max=64K;evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
const QUICK: &str =
    "gcache.size=0;dromon.log_max=64K;evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

/// Node 3 stands for a backup, and the others write far more than `dromon.log_max`. Answers the
/// seqno at which it stands.
fn others_write_on(world: &World) -> i64 {
    let (one, stands) = (world.db(1), world.db(3));
    assert!(one.set(row(0), 1).is_committed());
    world.settle();
    assert_eq!(stands.node().desync(), Outcome::Ok);
    let at = stands.node().pause().expect("it is a member");
    let needs = one.count("dromon_log_last");
    for n in 0..1200 {
        assert!(one.set(row(n), 2).is_committed());
    }
    let bytes = one.count("dromon_log_bytes");
    assert!(bytes > 128 << 10, "{bytes}");
    let much = |who, said| world.report.times(who, said) == 1;
    world.until("they say so, once", || {
        let said = ") would need more than 65536 bytes of this node's log";
        let others = [1, 2].map(|n| world.db(n).name.clone());
        let n3 = |who: &String| {
            let lines = world.report.times(who, "Warning: member n3 (");
            lines == 1 && world.report.times(who, said) > 0
        };
        others.iter().all(n3)
            && much(
                "n3",
                "this node would need more than 65536 bytes of its log",
            )
    });
    let a_view = || {
        world.join(4).disconnect();
        world.until("n4 is gone", || one.size() == 3);
        // Views are log, too, and not all of it is known to be durable.
        std::thread::sleep(Duration::from_secs(1));
    };
    // What is durable is known after ten seconds.
    world.until("the log is shorter", || {
        a_view();
        one.count("dromon_log_first") > needs + 1000
    });
    world.until("it alone is named", || {
        a_view();
        (1..=3).all(|n| world.db(n).stat("dromon_log_held") == "n3")
    });
    assert!(one.count("dromon_log_bytes") < bytes);
    assert!(
        stands.count("dromon_log_first") <= needs,
        "what it needs is in its own log"
    );
    at
}

fn donations(world: &World) -> usize {
    [1, 2].iter().map(|n| world.db(*n).donations()).sum()
}

#[test]
fn a_member_that_is_paused_holds_the_log_of_all_up_to_a_limit() {
    run(3, PATIENT, |world| {
        others_write_on(world);
        let stands = world.db(3);
        stands.node().resume();
        assert_eq!(stands.node().resync(), Outcome::Ok);
        world.synced(&stands);
        world.until("nobody holds the log", || {
            let one = world.db(1);
            assert!(one.set(row(0), 3).is_committed());
            world.join(4).disconnect();
            world.until("n4 is gone", || one.size() == 3);
            // Views are log, too: what counts is that of the last seconds.
            std::thread::sleep(Duration::from_secs(1));
            [1, 2, 3]
                .iter()
                .all(|n| world.db(*n).stat("dromon_log_held").is_empty())
        });
        let said = ") needs no more of the log than usual again";
        // On a slow machine others needed more for a moment, too.
        assert_eq!(world.report.times("n1 Note: member n3", said), 1);
        world.settle();
    });
}

#[test]
fn killed_meanwhile_it_goes_on_with_its_own_log() {
    run(3, PATIENT, |world| {
        let at = others_write_on(world);
        let given = donations(world);
        world.crash(3);
        assert_eq!(world.crashed_disk(3).position.seqno, at);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(1199)), 2);
        assert_eq!(donations(world), given, "no copy");
        world.voters(3);
        world.settle();
    });
}

#[test]
fn removed_meanwhile_it_takes_a_copy() {
    run(3, QUICK, |world| {
        others_write_on(world);
        let given = donations(world);
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.voters(2);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(1199)), 2);
        assert_eq!(donations(world), given + 1, "a copy");
        world.settle();
    });
}

/// Nothing but its restart helps it, and that may take days.
#[test]
fn who_was_away_for_too_long_says_so_once() {
    run(3, QUICK, |world| {
        let (one, away) = (world.db(1), world.db(3));
        assert!(one.set(row(0), 1).is_committed());
        world.settle();
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2, 4]));
        world.until("it is removed", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        let at = one.count("dromon_log_last");
        world.until("the log is shorter", || {
            world.join(4).disconnect();
            world.until("n4 is gone", || one.size() == 2);
            std::thread::sleep(Duration::from_millis(500));
            one.count("dromon_log_first") > at
        });
        world.net.heal();
        world.until("it knows", || {
            away.stat("dromon_stays_out")
                .contains("needs a full copy, so its server must be restarted")
        });
        // What it goes on trying with is not changed under it.
        let refused = away.node().set_options("gmcast.segment=1");
        let why = refused.expect_err("it takes this option when it connects");
        assert!(why.contains("gmcast.segment"), "{why}");
        let taken = away.node().set_options("evs.inactive_timeout=PT9S");
        taken.expect("that may change at any time");
        std::thread::sleep(Duration::from_secs(9));
        let says = |text| world.report.times("n3", text);
        assert_eq!(says("this node needs a full copy"), 1);
        assert_eq!(says("connection established"), 0);
        away.disconnect();
    });
}

/// Its own leave comes to it, as leadership moves to one whose log has all.
#[test]
fn who_leaves_to_join_again_and_hears_of_it_comes_back() {
    let options = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(4, options, |world| {
        let (one, three) = (world.db(1), world.db(3));
        assert!(one.set(row(1), 1).is_committed());
        let before = led_by_a_late_one(world);
        world.net.heal();
        world.until("the third leaves", || {
            world.report.said("Nothing is wrong with the data here")
        });
        world.net.hand_over(&World::addr(2), &World::addr(1));
        world.until("it is back", || three.size() == 4 && three.ready());
        world.until("it writes", || three.set(row(3), 1).is_committed());
        assert_eq!(copies(world), before);
        assert!(three.returned().is_empty(), "{:?}", three.returned());
        world.settle();
    });
}

fn copies(world: &World) -> usize {
    world.members().iter().map(|d| d.donations()).sum()
}

/// The third is cut off; the second becomes a member by a copy meanwhile, and leads. Answers how many
/// copies were given by then.
fn led_by_a_late_one(world: &World) -> usize {
    let (one, two) = (world.db(1), world.db(2));
    world.settle();
    world.until("the first leads", || world.leader(&one) == 1);
    world.net.cut(&addrs(&[3]), &addrs(&[1, 2, 4]));
    two.disconnect();
    world.lose_log(2);
    world.remove_state_file(2);
    for n in 10..30 {
        assert!(one.set(row(n), 1).is_committed());
    }
    let two = world.open(2, Disk::empty(), Position::UNDEFINED);
    two.connect(&World::url(), false).expect("two are there");
    world.synced(&two);
    world.until("it has a vote", || one.stat("dromon_voters") == "4");
    let before = copies(world);
    world.net.hand_over(&World::addr(1), &World::addr(2));
    world.until("it leads", || world.leader(&one) == 2);
    before
}

/// Who leads became a member by a copy, while one was away that comes back by the log.
#[test]
fn a_leader_whose_log_begins_too_late_costs_nobody_its_data() {
    let options = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(4, options, |world| {
        let (one, three) = (world.db(1), world.db(3));
        assert!(one.set(row(1), 1).is_committed());
        let before = led_by_a_late_one(world);
        let two = world.db(2);
        world.net.heal();
        world.until("the third leaves and keeps its data", || {
            world
                .report
                .said("this node needs a full copy, so its server must be restarted")
        });
        assert_eq!(three.node().phase(), Phase::Rejoining);
        assert!(world.report.said("Nothing is wrong with the data here"));
        assert!(!world.state_file(3).contains("00000000-0000-0000"));
        assert!(two.set(row(2), 1).is_committed());
        world.net.hand_over(&World::addr(2), &World::addr(1));
        world.until("the first leads again", || world.leader(&one) == 1);
        world.until("it is back", || {
            three.size() == 4 && three.read(row(2)) == 1
        });
        assert!(three.set(row(3), 1).is_committed());
        assert_eq!(copies(world), before);
        world.settle();
    });
}

/// The same for one that its operator had leave, and tells to come back.
#[test]
fn who_is_told_to_connect_to_such_a_leader_keeps_what_it_has() {
    run(3, "", |world| {
        let (one, two, three) = (world.db(1), world.db(2), world.db(3));
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        three.disconnect();
        let file = world.state_file(3);
        two.disconnect();
        world.lose_log(2);
        world.remove_state_file(2);
        for n in 10..30 {
            assert!(one.set(row(n), 1).is_committed());
        }
        let two = world.open(2, Disk::empty(), Position::UNDEFINED);
        two.connect(&World::url(), false).expect("one is there");
        world.synced(&two);
        world.voters(2);
        world.net.hand_over(&World::addr(1), &World::addr(2));
        world.until("it leads", || world.leader(&one) == 2);
        let before = copies(world);
        let why = three.connect(&World::url(), false);
        let why = why.expect_err("it runs");
        assert!(why.contains("does not reach back to"), "{why}");
        assert!(why.contains("its server must be restarted"), "{why}");
        assert_eq!(world.state_file(3), file);
        world.net.hand_over(&World::addr(2), &World::addr(1));
        world.until("the first leads again", || world.leader(&one) == 1);
        three
            .connect(&World::url(), false)
            .expect("its log reaches back");
        world.synced(&three);
        assert_eq!(three.read(row(29)), 1);
        assert_eq!(copies(world), before);
        world.settle();
    });
}
