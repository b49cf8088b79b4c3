//! What happens when applying fails (contract B.9).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dromon_node::{Outcome, Phase, Position};

use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, Session, row};
use crate::world::{World, addrs, run};

/// `db` has left because its data differs: as a server sees it.
pub fn left_inconsistent(world: &World, db: &Arc<Db>) {
    world.until(&format!("{} leaves as inconsistent", db.name), || {
        db.node().phase() == Phase::Inconsistent && db.finals() == 1
    });
    db.join_threads();
    assert!(
        db.returned().iter().all(|r| *r != Outcome::NodeFail),
        "{:?}",
        db.returned()
    );
    assert_eq!(db.stat("local_state_comment"), "Inconsistent");
    let file = world.state_file(db.n);
    assert!(
        file.contains("uuid:    00000000-0000-0000-0000-000000000000"),
        "the next start must take a copy: {file}"
    );
    let views = db.views();
    let last: Vec<_> = views
        .iter()
        .rev()
        .take(2)
        .map(|v| v.members.len())
        .collect();
    assert_eq!(last, [0, 1], "alone, then final");
    assert_eq!(db.set(row(77), 1), End::ConnFail);
}

/// A new process in its place takes a copy.
pub fn starts_anew(world: &World, db: &Arc<Db>) {
    db.disconnect();
    let again = world.open(db.n, Disk::empty(), Position::UNDEFINED);
    again.connect(&World::url(), false).expect("two are there");
    world.synced(&again);
}

fn one_differs(appliers: usize) {
    run(1, "", move |world| {
        for n in [2, 3] {
            world.joins_with(n, appliers);
        }
        let odd = world.db(3);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let at = odd.position();
        odd.fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
        assert!(world.db(1).set(row(2), 1).is_committed());
        for n in 3..10 {
            assert!(world.db(2).set(row(n), 1).is_committed());
        }
        left_inconsistent(world, &odd);
        assert_eq!(
            odd.node().last_committed().seqno,
            at.seqno,
            "what failed is not finished"
        );
        world.until("the others see it go", || world.db(1).size() == 2);
        assert!(world.db(1).set(row(2), 2).is_committed());
        starts_anew(world, &odd);
        world.settle();
    });
}

/// Its client is certified behind what fails there.
#[test]
fn who_is_behind_what_fails_here_has_it_on_the_others() {
    for (appliers, binary_log) in [(1, false), (4, false), (4, true)] {
        run(1, "", move |world| {
            world.report.binary_log.store(binary_log, Relaxed);
            let odd = world.joins_with(2, appliers);
            let first = world.db(1);
            odd.fail_at(row(2), "Duplicate entry, Error_code: 1062;\0");
            odd.holds.close(Point::ApplyStart);
            assert!(first.set(row(2), 1).is_committed());
            let client = {
                let odd = odd.clone();
                std::thread::spawn(move || odd.set(row(5), 1))
            };
            world.until("it is ordered", || first.read(row(5)) == 1);
            odd.holds.open(Point::ApplyStart);
            left_inconsistent(world, &odd);
            assert!(client.join().expect("no panic").is_committed());
            starts_anew(world, &odd);
            world.settle();
            assert_eq!(first.read(row(5)), 1);
        });
    }
}

#[test]
fn one_fails_and_leaves() {
    one_differs(4);
}

#[test]
fn one_fails_and_leaves_with_one_applier() {
    one_differs(1);
}

#[test]
fn a_statement_that_fails_everywhere_is_no_problem() {
    run(1, "", |world| {
        for n in [2, 3] {
            world.joins_with(n, 1);
        }
        for db in world.members() {
            let fail = Ddl::Fail {
                table: 0,
                nodes: !0,
                text: "Error_code: 1050;\0".into(),
            };
            assert!(db.ddl(&fail).is_committed());
            assert!(db.set(row(1), db.n as i64).is_committed());
        }
        world.settle();
        for db in world.members() {
            assert_eq!(db.node().phase(), Phase::Joined);
        }
    });
}

/// A statement that fails on all three, n3 still at work on it; all have lost touch with each other before two could
/// decide.
fn cut_amid_a_vote(world: &World, killed: bool) {
    for n in [2, 3] {
        world.joins_with(n, 1);
    }
    world.voters(3);
    let [a, b, c] = [1, 2, 3].map(|n| world.db(n));
    for db in [&b, &c] {
        db.holds.close(Point::ApplyStart);
    }
    let fail = Ddl::Fail {
        table: 0,
        nodes: !0,
        text: "Error_code: 1050;\0".into(),
    };
    let client = {
        let a = a.clone();
        std::thread::spawn(move || a.ddl(&fail))
    };
    let said = |name: &str| world.report.said(&format!("Member {name} initiates vote"));
    world.until("one has said that it failed", || said("n1"));
    world.until("two are at it", || {
        let at_it = |db: &Arc<Db>| db.holds.waiting(Point::ApplyStart) == 1;
        at_it(&b) && at_it(&c)
    });
    let alone = |n| [World::addr(n)];
    world.net.cut(&alone(1), &[World::addr(2), World::addr(3)]);
    world.net.cut(&alone(2), &alone(3));
    let lost = |db: &Arc<Db>| db.node().phase() == Phase::NonPrimary;
    world.until("all have lost the others", || {
        lost(&a) && lost(&b) && lost(&c)
    });
    b.holds.open(Point::ApplyStart);
    world.until("it failed there, too", || said("n2"));
    if killed {
        c.holds.open(Point::ApplyStart);
        world.until("it failed there, too", || said("n3"));
        world.crash(3);
    }
    // Two of them know no more than before. Who waits does so for a majority: no member is at fault.
    std::thread::sleep(Duration::from_millis(if killed { 1500 } else { 10_500 }));
    assert!(!world.report.said("or stop that node"));
    world.net.heal();
    c.holds.open(Point::ApplyStart);
    client.join().expect("no panic");
    world.synced(&a);
    world.synced(&b);
    if killed {
        world
            .open_again(3)
            .connect(&World::url(), false)
            .expect("two are there");
    }
    world.synced(&world.db(3));
    world.settle();
    assert!(!world.report.said("Inconsistent"));
    for db in world.members() {
        assert_eq!(db.node().phase(), Phase::Joined, "{}", db.name);
        assert!(db.set(row(db.n as u32), 1).is_committed());
    }
    world.settle();
}

#[test]
fn a_vote_waits_for_the_majority() {
    run(1, "", |world| cut_amid_a_vote(world, false));
}

/// Its engine stands at the statement already, and nobody has said what its failure means.
#[test]
fn a_node_that_is_killed_amid_a_vote_takes_a_copy() {
    run(1, "", |world| {
        cut_amid_a_vote(world, true);
        assert!(
            world
                .report
                .said("which failed here; its storage engine counts it as done")
        );
    });
}

/// The same with rows that fail there alone.
#[test]
fn a_node_that_is_killed_amid_a_vote_on_rows_takes_a_copy() {
    run(3, "", |world| {
        let [a, b, c] = [1, 2, 3].map(|n| world.db(n));
        c.fail_at(row(2), "Error_code: 1114;\0");
        c.holds.close(Point::ApplyStart);
        assert!(a.set(row(2), 1).is_committed());
        world.until("n3 is at it", || c.holds.waiting(Point::ApplyStart) == 1);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("n3 is cut off", || c.node().phase() == Phase::NonPrimary);
        c.holds.open(Point::ApplyStart);
        world.until("it failed there", || {
            world.report.said("Member n3 initiates vote")
        });
        world.crash(3);
        world.net.heal();
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert!(world.report.said("which could not be applied here"));
        world.synced(&b);
        world.settle();
        assert_eq!(again.read(row(2)), 1);
    });
}

/// Two appliers of `odd` are at rows 2 and 3, the first of which fails there. They go on until both have left
/// commit order, so the engine stands behind what failed, and nobody has been told how applying it ended. Then
/// `odd` is killed, and comes back.
fn killed_behind_what_failed(world: &World, odd: &Arc<Db>) {
    world.until("two are at it", || {
        odd.holds.waiting(Point::ApplyStart) == 2
    });
    odd.holds.close(Point::ApplyLeft);
    odd.holds.open(Point::ApplyStart);
    world.until("both have left commit order", || {
        odd.holds.waiting(Point::ApplyLeft) == 2
    });
    let file = world.state_file(odd.n);
    let nothing = file.contains("uuid:    00000000-0000-0000-0000-000000000000");
    assert!(
        nothing,
        "it is noted before the next one may commit: {file}"
    );
    world.crash(odd.n);
    let again = world.open_again(odd.n);
    odd.holds.open(Point::ApplyLeft);
    again.connect(&World::url(), false).expect("two are there");
    world.synced(&again);
    world.settle();
    assert_eq!((again.read(row(2)), again.read(row(3))), (1, 1));
}

#[test]
fn a_lost_vote_is_noted_before_the_next_one_commits() {
    run(3, "", |world| {
        let [a, c] = [1, 3].map(|n| world.db(n));
        c.fail_at(row(2), "Error_code: 1114;\0");
        c.holds.close(Point::ApplyStart);
        assert!(a.set(row(2), 1).is_committed());
        assert!(a.set(row(3), 1).is_committed());
        killed_behind_what_failed(world, &c);
    });
}

/// Of three, one that does not lead, the numbers of the others, and the first of these.
fn a_follower(world: &World) -> (Arc<Db>, Vec<usize>, Arc<Db>) {
    let leader = world.leader(&world.db(1));
    let odd = world.db(leader % 3 + 1);
    let others: Vec<usize> = (1..=3).filter(|n| *n != odd.n).collect();
    let first = world.db(others[0]);
    (odd, others, first)
}

/// Nobody is asked then.
#[test]
fn what_an_evicted_node_cannot_apply_is_noted_before_the_next_one_commits() {
    run(3, QUICK, |world| {
        let (odd, others, first) = a_follower(world);
        odd.fail_at(row(2), "Error_code: 1114;\0");
        odd.holds.close(Point::ApplyStart);
        assert!(first.set(row(2), 1).is_committed());
        assert!(first.set(row(3), 1).is_committed());
        world.until("two are at it", || {
            odd.holds.waiting(Point::ApplyStart) == 2
        });
        world.net.cut(&addrs(&[odd.n]), &addrs(&others));
        world.until("the others drop it", || first.size() == 2);
        assert!(first.set(row(10), 1).is_committed());
        world.net.heal();
        world.until("it wants to join again", || {
            odd.node().phase() == Phase::Rejoining
        });
        killed_behind_what_failed(world, &odd);
        assert!(world.report.said("failed here while catching up"));
    });
}

/// What it has committed failed on the others, and it comes to that when it is about to join them again.
#[test]
fn who_is_outvoted_as_it_joins_again_gets_its_last_view() {
    run(3, QUICK, |world| {
        let (odd, others, first) = a_follower(world);
        for n in &others {
            world.db(*n).fail_at(row(2), "Error_code: 1062;\0");
        }
        odd.holds.close(Point::ApplyStart);
        assert!(first.set(row(1), 1).is_committed());
        world.until("one is at it", || odd.holds.waiting(Point::ApplyStart) == 1);
        let client = {
            let odd = odd.clone();
            std::thread::spawn(move || odd.set(row(2), 1))
        };
        let decided =
            |n: &usize| world.db(*n).count("last_committed") > odd.count("last_committed") + 1;
        world.until("it is decided", || others.iter().all(decided));
        world.net.cut(&addrs(&[odd.n]), &addrs(&others));
        world.until("the others drop it", || first.size() == 2);
        assert!(first.set(row(10), 1).is_committed());
        world.net.heal();
        world.until("it wants to join again", || {
            odd.node().phase() == Phase::Rejoining
        });
        odd.holds.open_all();
        left_inconsistent(world, &odd);
        client.join().expect("it ends");
        starts_anew(world, &odd);
        world.settle();
    });
}

/// n1 has been left alone, with something still to be applied that the others had; it fails there. `witness`: n3 is
/// one, and has no say.
fn nobody_is_left_to_compare_with(witness: bool) {
    run(2, "", move |world| {
        let [a, b] = [1, 2].map(|n| world.db(n));
        if witness {
            world.join_witness(3);
        }
        a.holds.close(Point::ApplyStart);
        a.fail_at(row(2), "Error_code: 1114;\0");
        assert!(b.set(row(2), 1).is_committed());
        let (given, disk, position) = (a.donations(), b.disk(), b.position());
        b.disconnect();
        world.until("n1 knows that it is gone", || {
            !a.stat("incoming_addresses").contains("10.0.0.2:")
        });
        a.holds.open(Point::ApplyStart);
        world.until("n1 says what it lacks", || {
            world.report.times("n1", "its rows are missing here") == 1
        });
        assert!(a.set(row(3), 1).is_committed());
        assert!(!world.report.said("Member n1 initiates vote"));
        let again = world.open(2, disk, position);
        again.connect(&World::url(), false).expect("n1 is there");
        world.synced(&again);
        assert_eq!(a.donations(), given, "by the log");
        // What the line in the log warns of.
        assert_eq!((a.read(row(2)), again.read(row(2))), (0, 1));
        assert_eq!(again.read(row(3)), 1);
    });
}

#[test]
fn who_fails_alone_says_what_it_lacks() {
    nobody_is_left_to_compare_with(false);
}

#[test]
fn who_fails_beside_a_witness_alone_says_what_it_lacks() {
    nobody_is_left_to_compare_with(true);
}

/// What n1 and a witness have of n2's commit n1 cannot apply, and nobody else has its rows. `asked`: n1 asks while
/// n2 is still a member that does not answer.
fn nobody_is_put_out_for_rows_that_one_alone_lacks(asked: bool) {
    run(2, QUICK, move |world| {
        let [a, b] = [1, 2].map(|n| world.db(n));
        world.join_witness(3);
        world.voters(3);
        a.holds.close(Point::ApplyStart);
        a.fail_at(row(2), "Error_code: 1114;\0");
        assert!(b.set(row(2), 1).is_committed());
        world.until("it is at it", || a.holds.waiting(Point::ApplyStart) == 1);
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3]));
        let left_out = || !a.stat("incoming_addresses").contains("10.0.0.2:");
        if asked {
            assert!(!left_out());
            a.holds.open(Point::ApplyStart);
            world.until("n1 asks", || {
                world.report.times("n1", "Member n1 initiates vote") == 1
            });
        }
        world.until("n2 is left out", left_out);
        a.holds.open(Point::ApplyStart);
        world.until("n1 says what it lacks", || {
            world.report.times("n1", "its rows are missing here") == 1
        });
        world.net.heal();
        world.synced(&b);
        assert!(a.set(row(3), 1).is_committed());
        world.until("it goes on", || b.read(row(3)) == 1);
        assert_eq!((a.read(row(2)), b.read(row(2))), (0, 1));
        assert_eq!(b.node().phase(), Phase::Joined);
    });
}

#[test]
fn who_fails_beside_a_witness_does_not_put_out_the_one_that_has_the_rows() {
    nobody_is_put_out_for_rows_that_one_alone_lacks(false);
}

#[test]
fn nor_if_it_asked_before_that_one_was_left_out() {
    nobody_is_put_out_for_rows_that_one_alone_lacks(true);
}

/// Its last view has no other member, as it is one without itself.
#[test]
fn of_two_the_one_that_has_left_is_not_alone() {
    run(2, "", |world| {
        let [other, odd] = [1, 2].map(|n| world.db(n));
        odd.holds.close(Point::ApplyStart);
        odd.fail_at(row(2), "Error_code: 1114;\0");
        assert!(other.set(row(2), 1).is_committed());
        let leaving = std::thread::spawn({
            let odd = odd.clone();
            move || odd.disconnect()
        });
        world.until("it has left", || other.size() == 1);
        world.until("it knows", || {
            !odd.stat("incoming_addresses").contains("10.0.0.2:")
        });
        odd.holds.open(Point::ApplyStart);
        leaving.join().expect("it ends");
        let file = world.state_file(2);
        assert!(
            file.contains("uuid:    00000000-0000-0000-0000-000000000000"),
            "the next start must take a copy: {file}"
        );
        assert!(other.set(row(3), 1).is_committed());
        let again = world.open(2, odd.disk(), odd.position());
        again.connect(&World::url(), false).expect("n1 is there");
        world.synced(&again);
        assert_eq!((again.read(row(2)), again.read(row(3))), (1, 1));
    });
}

#[test]
fn a_statement_that_fails_at_its_origin_only() {
    run(3, "", |world| {
        let origin = world.db(1);
        let fail = Ddl::Fail {
            table: 0,
            nodes: 1 << 1,
            text: "Error_code: 1030;\0".into(),
        };
        // Its client gets the statement's own error.
        origin.ddl(&fail);
        left_inconsistent(world, &origin);
        world.until("the others see it go", || world.db(2).size() == 2);
        assert!(world.db(2).set(row(3), 1).is_committed());
        starts_anew(world, &origin);
        world.settle();
    });
}

/// A statement fails at n1 while that is alone, and at the nodes `nodes`. Then n2 comes back by the log, behind `behind`
/// further write sets.
fn fails_while_the_other_is_away(world: &World, nodes: u32, behind: u32) -> [Arc<Db>; 2] {
    let [a, b] = [1, 2].map(|n| world.db(n));
    world.settle();
    b.disconnect();
    world.until("it is alone", || a.size() == 1);
    a.ddl(&Ddl::Fail {
        table: 0,
        nodes,
        text: "Error_code: 1050;\0".into(),
    });
    for n in 0..=behind {
        assert!(a.set(row(n), 1).is_committed());
    }
    let again = world.open(2, b.disk(), b.position());
    again.connect(&World::url(), false).expect("n1 is there");
    [a, again]
}

#[test]
fn what_failed_lawfully_while_one_was_away_costs_it_nothing() {
    for behind in [0, 300] {
        run(2, "", move |world| {
            let [a, b] = fails_while_the_other_is_away(world, !0, behind);
            world.synced(&b);
            assert_eq!(b.node().phase(), Phase::Joined);
            assert_eq!(a.donations(), 1, "as it joined first");
            assert!(b.set(row(1), 2).is_committed());
            world.settle();
        });
    }
}

#[test]
fn what_failed_for_its_own_reason_while_one_was_away_does_not_part_them() {
    run(2, "", |world| {
        let [_, b] = fails_while_the_other_is_away(world, 1 << 1, 0);
        left_inconsistent(world, &b);
    });
}

#[test]
fn who_waits_for_a_vote_says_for_whom() {
    run(2, "", |world| {
        let [a, b] = [1, 2].map(|n| world.db(n));
        b.node().pause().expect("a member");
        let client = {
            let a = a.clone();
            let fail = Ddl::Fail {
                table: 0,
                nodes: !0,
                text: "Error_code: 1050;\0".into(),
            };
            std::thread::spawn(move || a.ddl(&fail))
        };
        let waits = "wait behind it: n2";
        world.until("it says so", || world.report.said(waits));
        assert_eq!(world.report.times("n1", waits), 1);
        b.node().resume();
        assert!(client.join().expect("no panic").is_committed());
        world.settle();
    });
}

#[test]
fn of_two_the_one_that_fails_leaves() {
    run(1, "", |world| {
        let odd = world.joins_with(2, 1);
        odd.fail_at(row(2), "Error_code: 1062;\0");
        assert!(world.db(1).set(row(2), 1).is_committed());
        left_inconsistent(world, &odd);
        world.until("the other one is alone", || world.db(1).size() == 1);
        assert!(world.db(1).set(row(3), 1).is_committed());
        odd.disconnect();
        world.voters(1);
    });
}

#[test]
fn an_inconsistent_node_fails_its_clients() {
    run(3, "", |world| {
        let odd = world.db(3);
        let mut open = odd.begin();
        open.put(row(5), 1).expect("a free row");
        odd.fail_at(row(2), "Error_code: 1062;\0");
        assert!(world.db(1).set(row(2), 1).is_committed());
        left_inconsistent(world, &odd);
        assert_eq!(open.commit(), End::ConnFail);
        assert_eq!(odd.ddl(&Ddl::Truncate { table: 0 }), End::ConnFail);
        let (outcome, _) = odd.node().sync_wait(Duration::from_secs(1));
        assert_ne!(outcome, Outcome::Ok);
        odd.disconnect();
        assert!(world.db(1).set(row(5), 2).is_committed());
        world.settle();
    });
}

/// Two of three fail alike at a row that the first one writes.
fn two_of_three_fail(world: &World) {
    let origin = world.db(1);
    for n in [2, 3] {
        world.db(n).fail_at(row(2), "Error_code: 1062;\0");
    }
    assert!(origin.set(row(2), 1).is_committed());
}

#[test]
fn with_policy_one_a_single_success_wins() {
    run(3, "gcs.vote_policy=1", |world| {
        two_of_three_fail(world);
        for n in [2, 3] {
            left_inconsistent(world, &world.db(n));
        }
        let origin = world.db(1);
        world.until("it is alone", || origin.size() == 1);
        assert_eq!(origin.node().phase(), Phase::Joined);
        assert!(origin.set(row(3), 1).is_committed());
        for n in [2, 3] {
            starts_anew(world, &world.db(n));
        }
        world.settle();
    });
}

#[test]
fn with_policy_two_a_single_success_loses() {
    run(3, "gcs.vote_policy=2", |world| {
        two_of_three_fail(world);
        left_inconsistent(world, &world.db(1));
        world.until("the others see it go", || world.db(2).size() == 2);
        assert!(world.db(2).set(row(3), 1).is_committed());
    });
}

#[test]
fn the_first_members_policy_counts_for_all() {
    run(1, "gcs.vote_policy=1", |world| {
        for n in [2, 3] {
            let db = world.open(n, Disk::empty(), Position::UNDEFINED);
            db.node()
                .set_options("gcs.vote_policy=0")
                .expect("it is not connected");
            db.connect(&World::url(), false).expect("one is there");
            world.synced(&db);
        }
        two_of_three_fail(world);
        for n in [2, 3] {
            left_inconsistent(world, &world.db(n));
        }
        let origin = world.db(1);
        assert!(origin.set(row(3), 1).is_committed());
    });
}

/// n2 has finished what fails on n3, and fails at the next one, of which n3 can say something only then. Each has
/// one applier. `third`: n1 is there, too.
fn each_fails_at_one(third: bool) {
    run(1, "", move |world| {
        let [a, b] = [2, 3].map(|n| world.joins_with(n, 1));
        let first = world.db(1);
        if !third {
            first.disconnect();
            world.until("it is gone", || a.size() == 2 && b.size() == 2);
        }
        b.holds.close(Point::ApplyStart);
        b.fail_at(row(1), "Error_code: 1062;\0");
        a.fail_at(row(2), "Error_code: 1032;\0");
        assert!(a.set(row(1), 1).is_committed());
        let second = {
            let b = b.clone();
            std::thread::spawn(move || b.set(row(2), 1))
        };
        world.until("the second one fails on n2", || {
            world.report.said("Member n2 initiates vote")
        });
        b.holds.open(Point::ApplyStart);
        left_inconsistent(world, &b);
        second.join().expect("no panic");
        let rest = if third {
            // n1 has it.
            left_inconsistent(world, &a);
            first
        } else {
            a
        };
        world.until("it is alone", || rest.size() == 1);
        assert_eq!(rest.node().phase(), Phase::Joined);
        assert!(rest.set(row(3), 1).is_committed());
    });
}

#[test]
fn two_that_fail_at_one_each_do_not_wait_for_each_other() {
    each_fails_at_one(false);
}

#[test]
fn two_of_three_that_fail_at_one_each_do_not_wait_for_each_other() {
    each_fails_at_one(true);
}

#[test]
fn a_paused_node_says_that_it_has_finished_what_came_before() {
    run(3, "", |world| {
        let [a, b, c] = [1, 2, 3].map(|n| world.db(n));
        b.holds.close(Point::ApplyStart);
        b.fail_at(row(1), "Error_code: 1062;\0");
        let end = a.set(row(1), 1);
        assert!(end.is_committed());
        assert_eq!(a.node().pause(), Some(end.seqno()));
        assert!(c.set(row(2), 1).is_committed());
        b.holds.open(Point::ApplyStart);
        left_inconsistent(world, &b);
        assert_eq!(a.read(row(2)), 0);
        a.node().resume();
        b.disconnect();
        world.settle();
    });
}

/// n2 and n3 have failed alike, and n1 has left over it. n2 is the last one, and is killed before its engine has that
/// place on its disk: it fails once more there, and hears of the vote once more.
#[test]
fn the_last_one_stays_when_a_vote_of_before_comes_again() {
    run(3, "", |world| {
        two_of_three_fail(world);
        left_inconsistent(world, &world.db(1));
        let (last, third) = (world.db(2), world.db(3));
        world.until("both have seen it go", || {
            [&last, &third].iter().all(|db| db.size() == 2)
        });
        third.disconnect();
        world.until("its log is all", || {
            last.stat("dromon_voters") == "1" && world.net.voters_settled(&last.addr)
        });
        world.until("it is alone", || last.size() == 1);
        let failed = third.position().seqno - 1;
        let decided = format!("Vote on seqno {failed} decided");
        let heard = || world.report.times("n2", &decided);
        let before = heard();
        world.crash(2);
        let mut disk = world.crashed_disk(2);
        disk.position.seqno = failed - 1;
        let position = disk.position;
        let again = world.open(2, disk, position);
        again.fail_at(row(2), "Error_code: 1062;\0");
        again.connect(&World::url(), true).expect("its log is all");
        world.synced(&again);
        assert!(again.set(row(3), 1).is_committed());
        world.until("the vote came again", || heard() > before);
        assert!(again.set(row(3), 2).is_committed());
        assert_eq!(again.node().phase(), Phase::Joined);
    });
}

/// The server's binary log could not be written: its engine rolled back what the others have, and its client goes on.
#[test]
fn who_goes_on_behind_what_its_server_has_undone_shows_that() {
    for statement in [false, true] {
        run(3, "", move |world| {
            world.report.binary_log.store(true, Relaxed);
            let odd = world.db(3);
            let at = world.settle().seqno;
            let mut t = odd.begin();
            t.put(row(1), 1).expect("a free row");
            t.commit_undone_in_silence();
            world.until("the others have it", || {
                world.db(1).position().seqno == at + 1 && world.db(2).position().seqno == at + 1
            });
            assert_eq!(odd.node().phase(), Phase::Joined);
            let behind = {
                let odd = odd.clone();
                std::thread::spawn(move || odd.set(row(7), 1))
            };
            world.until("the next one is ordered", || world.db(1).read(row(7)) == 1);
            // The thread of that client.
            match statement {
                true => drop(odd.ddl(&Ddl::Add { table: 9, n: 1 })),
                false => drop(odd.set(row(2), 1)),
            }
            left_inconsistent(world, &odd);
            assert!(
                world
                    .report
                    .said("was given up here after it had left commit order")
            );
            behind.join().expect("no panic");
            starts_anew(world, &odd);
            world.settle();
            assert_eq!(world.db(3).read(row(1)), 1);
        });
    }
}

/// A server `undoes` what the others have: its node is put out, as `said`, and takes a copy.
fn is_undone_on_one(said: &'static str, undoes: impl FnOnce(Session) + Send + 'static) {
    run(3, "", move |world| {
        let odd = world.db(3);
        let at = world.settle().seqno;
        let mut t = odd.begin();
        t.put(row(1), 1).expect("a free row");
        undoes(t);
        left_inconsistent(world, &odd);
        assert!(world.report.times(&odd.name, said) > 0);
        for n in [1, 2] {
            let db = world.db(n);
            world.until("it is applied there", || db.read(row(1)) == 1);
            assert!(db.position().seqno > at);
        }
        starts_anew(world, &odd);
        world.settle();
        assert_eq!(world.db(3).read(row(1)), 1);
    });
}

/// The server's binary log could not be written, say: its engine rolled back what the others have.
#[test]
fn who_gives_its_place_on_twice_has_undone_what_the_others_have() {
    is_undone_on_one("after it had left commit order", |t| {
        assert_eq!(t.commit_undone(), Outcome::TrxFail);
    });
}

#[test]
fn what_is_rolled_back_between_certification_and_commit_puts_its_node_out() {
    let said = "was rolled back here after it had passed certification";
    is_undone_on_one(said, Session::commit_rolled_back);
}

/// Its server's engine rolled it back; the log has it, and nobody could give a copy.
#[test]
fn the_last_one_with_data_keeps_it_and_has_all_after_its_restart() {
    run(1, "", |world| {
        let last = world.db(1);
        assert!(last.set(row(1), 1).is_committed());
        let mut t = last.begin();
        t.put(row(2), 2).expect("a free row");
        assert_eq!(t.commit_undone(), Outcome::TrxFail);
        world.until("it ends", || {
            last.node().phase() == Phase::Inconsistent && last.finals() == 1
        });
        last.join_threads();
        assert!(world.report.said("keeps what it has"));
        let history = last.position().history;
        let file = world.state_file(1);
        assert!(file.contains(&format!("uuid:    {history}")), "{file}");
        assert!(file.contains("safe_to_bootstrap: 1"), "{file}");
        world.crash(1);
        let again = world.open_again(1);
        again.connect(&World::url(), true).expect("it founds");
        world.synced(&again);
        assert_eq!((again.read(row(1)), again.read(row(2))), (1, 2));
        assert!(again.set(row(3), 3).is_committed());
        world.settle();
    });
}

/// Else its database would have something that lies behind that: what it lacks would not come from the log.
#[test]
fn nobody_commits_behind_what_the_last_one_with_data_lacks() {
    run(1, "", |world| {
        world.report.binary_log.store(true, Relaxed);
        let last = world.db(1);
        last.leaves_early.store(true, Relaxed);
        let mut t = last.begin();
        t.put(row(1), 1).expect("a free row");
        t.commit_undone_in_silence();
        last.holds.close(Point::ClientCertified);
        let behind = {
            let last = last.clone();
            std::thread::spawn(move || last.set(row(2), 2))
        };
        world.until("it has its place", || {
            last.holds.waiting(Point::ClientCertified) == 1
        });
        last.holds.open(Point::ClientCertified);
        // The thread of the first client.
        assert!(!last.set(row(3), 3).is_committed());
        world.until("it ends", || {
            last.node().phase() == Phase::Inconsistent && last.finals() == 1
        });
        assert!(!behind.join().expect("no panic").is_committed());
        last.join_threads();
        world.crash(1);
        let again = world.open_again(1);
        again.connect(&World::url(), true).expect("it founds");
        world.synced(&again);
        assert_eq!((again.read(row(1)), again.read(row(2))), (1, 2));
        world.settle();
    });
}

#[test]
fn who_is_not_finished_for_long_is_told_of() {
    run(2, "", |world| {
        let db = world.db(2);
        db.holds.close(Point::ClientLeft);
        let client = {
            let db = db.clone();
            std::thread::spawn(move || db.set(row(1), 1))
        };
        let said = || world.report.times(&db.name, "left commit order 10 s ago");
        world.until("it is told", || said() > 0);
        db.holds.open(Point::ClientLeft);
        assert!(client.join().expect("no panic").is_committed());
        assert_eq!(said(), 1);
    });
}
