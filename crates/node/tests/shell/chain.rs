//! A joiner's history is compared with the cluster's, not only its name.

use std::sync::Arc;

use dromon_node::{Phase, Position};
use dromon_order::memlog::MemLog;
use dromon_writeset::Uuid;

use crate::load::Load;
use crate::toy::{Db, Disk, row};
use crate::world::{World, run};

const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

/// What is said to who comes with another history.
const UNLIKE: &str = "not what the cluster has up to there";
/// And to who has no log that tells.
const UNPROVED: &str = "it cannot be compared";

/// Node 1 is copied, and the copy runs by itself for a while; what it has then.
/// Node 1 stands where it was copied, and does not run.
fn copied(world: &World) -> (Disk, MemLog) {
    let one = world.db(1);
    for n in 0..5 {
        assert!(one.set(row(n), 1).is_committed());
    }
    world.crash(1);
    let (disk, log) = (world.crashed_disk(1), world.copy_log(1));
    let copy = world.open_again(1);
    copy.connect("gcomm://", true).expect("its own log");
    world.synced(&copy);
    for n in 10..20 {
        assert!(copy.set(row(n), 7).is_committed());
    }
    world.crash(1);
    let apart = (world.crashed_disk(1), world.copy_log(1));
    assert_eq!(apart.0.position.history, disk.position.history);
    world.put_log(1, log);
    let position = disk.position;
    let one = world.open(1, disk, position);
    one.connect("gcomm://", true).expect("its own log");
    world.synced(&one);
    apart
}

/// The copy comes as node 2, and is given what node 1 has.
fn joins(world: &World, (disk, log): (Disk, MemLog)) {
    let one = world.db(1);
    assert!(one.position().seqno >= disk.position.seqno);
    let position = disk.position;
    // A state file came with it; a machine without one asks for a full copy anyway.
    world.open(2, Disk::empty(), Position::UNDEFINED);
    world.write_state_file(
        2,
        Position {
            seqno: -1,
            ..position
        },
    );
    let two = world.open(2, disk, position);
    world.put_log(2, log);
    two.connect(&World::url(), false).expect("one is there");
    world.synced(&two);
    assert_eq!(two.read(row(12)), one.read(row(12)), "what the cluster has");
    assert_eq!(one.donations(), 1, "by a full copy");
    assert!(world.report.said(UNLIKE));
    world.settle();
}

#[test]
fn a_copy_that_ran_by_itself_takes_a_full_copy() {
    run(1, PATIENT, |world| {
        let apart = copied(world);
        let one = world.db(1);
        for n in 10..60 {
            assert!(one.set(row(n), 8).is_committed());
        }
        joins(world, apart);
    });
}

#[test]
fn a_copy_that_got_just_as_far_takes_a_full_copy() {
    run(1, PATIENT, |world| {
        let apart = copied(world);
        let one = world.db(1);
        while one.position().seqno < apart.0.position.seqno {
            assert!(one.set(row(12), 8).is_committed());
        }
        assert_eq!(one.position(), apart.0.position, "by name and number");
        joins(world, apart);
    });
}

#[test]
fn a_copy_that_came_back_after_the_leader_had_restarted_takes_a_full_copy() {
    run(1, PATIENT, |world| {
        let apart = copied(world);
        let one = world.db(1);
        for n in 10..60 {
            assert!(one.set(row(n), 8).is_committed());
        }
        // It knows the newest sums only; that one it must count again.
        world.crash(1);
        let one = world.open_again(1);
        one.connect("gcomm://", true).expect("its own log");
        world.synced(&one);
        assert!(one.set(row(1), 8).is_committed());
        joins(world, apart);
    });
}

#[test]
fn who_was_away_comes_back_by_the_log() {
    run(3, QUICK, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        load.go_on(world, 20);
        let given = || (1..=2).map(|n| world.db(n).donations()).sum::<usize>();
        let before = given();
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.voters(2);
        load.go_on(world, 20);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        load.go_on(world, 10);
        load.verify(world);
        assert_eq!(given(), before, "no copy was needed");
        assert!(!world.report.said(UNLIKE) && !world.report.said(UNPROVED));
    });
}

/// Node 2 comes back to node 1, which has restarted meanwhile and knows the newest sums only.
/// In between `then` is told how far the log reached when node 2 went.
fn away_while_the_leader_restarted(world: &World, then: impl FnOnce(i64)) {
    let one = world.db(1);
    for n in 0..5 {
        assert!(one.set(row(n), 1).is_committed());
    }
    world.settle();
    world.db(2).disconnect();
    world.until("it is alone", || one.size() == 1);
    world.voters(1);
    let reached = one.count("dromon_log_last");
    for n in 10..40 {
        assert!(one.set(row(n), 8).is_committed());
    }
    world.crash(1);
    let one = world.open_again(1);
    one.connect("gcomm://", true).expect("its own log");
    world.synced(&one);
    then(reached);
    let two = world.db(2);
    let (disk, position) = (two.disk(), two.position());
    let two = world.open(2, disk, position);
    two.connect(&World::url(), false).expect("one is there");
    world.synced(&two);
    assert_eq!(two.read(row(12)), 8);
    assert!(!world.report.said(UNLIKE) && !world.report.said(UNPROVED));
    world.settle();
}

#[test]
fn who_was_away_while_the_leader_restarted_comes_back_by_the_log() {
    run(2, PATIENT, |world| {
        away_while_the_leader_restarted(world, |_| {});
        assert_eq!(world.db(1).donations(), 0, "no copy was needed");
    });
}

#[test]
fn who_would_need_what_is_damaged_in_the_leaders_log_takes_a_full_copy() {
    run(2, PATIENT, |world| {
        away_while_the_leader_restarted(world, |reached| {
            // Above that the consensus reads, too, to find where they agree.
            let dir = world.data_dir(1);
            world.net.damage_records(&dir, 0..reached as u64);
        });
        assert_eq!(world.db(1).donations(), 1, "the log cannot be read");
        assert!(world.report.times("n1", "it takes a full copy") > 0);
    });
}

#[test]
fn who_has_no_log_is_believed_and_told_so() {
    run(2, PATIENT, |world| {
        let one = world.db(1);
        for n in 0..5 {
            assert!(one.set(row(n), 1).is_committed());
        }
        world.settle();
        let two = world.db(2);
        two.disconnect();
        world.until("it is alone", || one.size() == 1);
        assert!(one.set(row(9), 1).is_committed());
        world.lose_log(2);
        let before = one.donations();
        let (disk, position) = (two.disk(), two.position());
        let two = world.open(2, disk, position);
        two.connect(&World::url(), false).expect("one is there");
        world.synced(&two);
        assert_eq!(two.read(row(9)), 1);
        assert_eq!(one.donations(), before);
        assert!(world.report.said(UNPROVED));
        world.settle();
    });
}

/// A node that has neither a log nor anything else of this cluster's, at `position`.
fn stranger(world: &World, n: usize, disk: Disk, position: Position) -> Arc<Db> {
    world.open(n, Disk::empty(), Position::UNDEFINED);
    world.write_state_file(n, position);
    world.open(n, disk, position)
}

/// The cluster was founded on a node that was not the last one to stop: more is elsewhere.
#[test]
fn who_is_ahead_is_refused_before_it_gives_anything_up() {
    run(1, PATIENT, |world| {
        let one = world.db(1);
        for n in 0..5 {
            assert!(one.set(row(n), 1).is_committed());
        }
        let mut disk = one.disk();
        let last = disk.position.seqno;
        disk.position.seqno += 20;
        let position = disk.position;
        let two = stranger(world, 2, disk, position);
        let before = world.state_file(2);
        let why = two.connect(&World::url(), false).expect_err("it is ahead");
        let said = format!(
            "the database stands at seqno {}, but the cluster's log ends at {last}",
            position.seqno
        );
        assert!(why.starts_with(&said), "{why}");
        assert_eq!(two.node().phase(), Phase::Closed);
        assert_eq!(world.state_file(2), before, "nothing was given up");
        assert_eq!(two.position(), position);
        assert_eq!((one.donations(), one.size()), (0, 1));
        // The way out that the message names.
        world.edit_state_file(2, "uuid", &Uuid::NIL.to_string());
        let two = world.open(2, two.disk(), position);
        two.connect(&World::url(), false).expect("one is there");
        world.synced(&two);
        assert_eq!(one.donations(), 1);
        world.settle();
    });
}

/// A leader whose machine stood says at first what was true before that.
#[test]
fn who_is_ahead_by_the_first_word_alone_is_not_refused() {
    // The longest lease there is.
    let patient = "evs.suspect_timeout=PT25S;evs.inactive_timeout=PT30S";
    run(1, patient, |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        let mut disk = one.disk();
        disk.rows.insert(row(2), 2);
        disk.position.seqno += 1;
        let position = disk.position;
        let two = stranger(world, 2, disk, position);
        let starts = two.clone();
        let starts = std::thread::spawn(move || starts.connect(&World::url(), false));
        let said = "so it is asked again";
        world.until("it is behind", || world.report.said(said));
        assert!(one.set(row(2), 2).is_committed());
        let connected = starts.join().expect("no panic");
        connected.expect("it has all of that");
        world.synced(&two);
        assert_eq!(one.donations(), 0);
        world.settle();
    });
}

/// Two of three were put back to an earlier moment, with their logs, and are there first: the third has what they
/// gave up. Its log must tell so, also when they have got further than it.
#[test]
fn who_is_ahead_of_members_that_were_put_back_keeps_its_log() {
    run(3, PATIENT, |world| {
        assert!(world.db(3).set(row(0), 1).is_committed());
        world.settle();
        let images = [1, 2].map(|n| {
            world.crash(n);
            let image = (world.crashed_disk(n), world.copy_log(n));
            let again = world.open_again(n);
            again
                .connect(&World::url(), false)
                .expect("the others are there");
            world.synced(&again);
            image
        });
        for n in 10..20 {
            assert!(world.db(3).set(row(n), 7).is_committed());
        }
        world.settle();
        let ahead = world.db(3).position().seqno;
        for n in [1, 2, 3] {
            world.crash(n);
        }
        let mut images = images.into_iter();
        let starts = [1, 2].map(|n| {
            let (disk, log) = images.next().expect("one of each");
            let position = disk.position;
            world.put_log(n, log);
            let db = world.open(n, disk, position);
            std::thread::spawn(move || db.connect(&World::url(), false))
        });
        for start in starts {
            start
                .join()
                .expect("no panic")
                .expect("they are a majority");
        }
        let one = world.db(1);
        world.synced(&one);
        world.synced(&world.db(2));
        assert!(one.set(row(10), 2).is_committed());
        assert!(one.position().seqno < ahead);
        let three = world.open_again(3);
        let why = three
            .connect(&World::url(), false)
            .expect_err("it is ahead");
        assert!(why.contains("but the cluster's log ends at"), "{why}");
        for n in 20..40 {
            assert!(one.set(row(n), 3).is_committed());
        }
        assert!(one.position().seqno > ahead);
        let three = world.open_again(3);
        three.connect(&World::url(), false).expect("they are there");
        world.synced(&three);
        assert!(world.report.said(UNLIKE), "its log was there to tell");
        assert_eq!((three.read(row(10)), three.read(row(11))), (2, 0));
        world.settle();
    });
}

/// The leader's log has what the node has; it is only not delivered there yet.
#[test]
fn who_seems_ahead_of_a_slow_leader_waits_and_comes_by_the_log() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        assert_eq!(world.leader(&one), 1);
        world.report.hold("async IST sender starting");
        let fourth = world.open(4, Disk::empty(), Position::UNDEFINED);
        let joins = std::thread::spawn(move || fourth.connect(&World::url(), false));
        let two = world.db(2);
        world.until("n1 stands at the join of n4", || two.size() == 4);
        assert!(two.set(row(1), 1).is_committed());
        let position = two.position();
        world.crash(2);
        let again = stranger(world, 2, world.crashed_disk(2), position);
        let back = {
            let again = again.clone();
            std::thread::spawn(move || again.connect(&World::url(), false))
        };
        assert!(!world.soon(|| back.is_finished()), "it asks again");
        world.report.let_go();
        assert_eq!(joins.join().expect("no panic"), Ok(()));
        assert_eq!(back.join().expect("no panic"), Ok(()));
        world.synced(&again);
        world.synced(&world.db(4));
        let copies = |n| world.report.times(n, "this node needs a full copy");
        assert_eq!((copies("n2"), copies("n4")), (1, 1), "when they came first");
        assert_eq!(again.read(row(1)), 1);
        world.settle();
    });
}
