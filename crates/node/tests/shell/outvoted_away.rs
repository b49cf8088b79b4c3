//! What the members decide while one that has the rows is away.

use std::sync::Arc;

use dromon_node::ddl_marks::{MARKS_FILE, SLOT};
use dromon_node::{Phase, Position};

use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, row};
use crate::votes::left_inconsistent;
use crate::world::{World, run};

/// n3 has committed row 2, which fails on the other two: these have yet to come to it.
fn two_are_about_to_fail(world: &World) -> [Arc<Db>; 3] {
    let [a, b, odd] = [1, 2, 3].map(|n| world.db(n));
    for other in [&a, &b] {
        other.fail_at(row(2), "Error_code: 1062;\0");
        other.holds.close(Point::ApplyStart);
    }
    assert!(odd.set(row(2), 1).is_committed());
    for other in [&a, &b] {
        world.until("it is at it", || {
            other.holds.waiting(Point::ApplyStart) == 1
        });
    }
    [a, b, odd]
}

/// They come to it, and decide. Where that lies.
fn they_fail(world: &World, at: Position, others: [&Arc<Db>; 2]) {
    for other in others {
        other.holds.open(Point::ApplyStart);
    }
    let decided = format!("Vote on seqno {} decided", at.seqno);
    world.until("it is decided", || {
        others
            .iter()
            .all(|other| world.report.times(&other.name, &decided) > 0)
    });
    world.until("they go on", || {
        others
            .iter()
            .all(|other| other.node().last_committed().seqno >= at.seqno)
    });
}

/// Its next process takes a copy.
fn copies(world: &World, n: usize) {
    let again = world.open(n, Disk::empty(), Position::UNDEFINED);
    again.connect(&World::url(), false).expect("two are there");
    world.synced(&again);
    world.settle();
    assert_eq!(again.read(row(2)), 0, "as on the others");
}

#[test]
fn who_has_left_before_its_rows_were_voted_down_learns_of_it() {
    run(3, "", |world| {
        let [a, b, odd] = two_are_about_to_fail(world);
        let at = odd.position();
        odd.disconnect();
        they_fail(world, at, [&a, &b]);
        for n in 10..15 {
            assert!(a.set(row(n), 1).is_committed());
        }
        let again = world.open(3, odd.disk(), odd.position());
        again.connect(&World::url(), false).expect("two are there");
        left_inconsistent(world, &again);
        assert!(world.report.said("after this node had left"));
        again.disconnect();
        copies(world, 3);
    });
}

/// Killed, and all of them a moment later: whoever failed like the others goes on, and hears of it once more.
#[test]
fn so_does_one_that_was_killed_and_nobody_else_is_put_out_by_it() {
    run(3, QUICK, |world| {
        let [a, b, odd] = two_are_about_to_fail(world);
        let at = odd.position();
        world.crash(3);
        they_fail(world, at, [&a, &b]);
        assert!(a.position().seqno >= at.seqno && b.position().seqno >= at.seqno);
        let decided = format!("Vote on seqno {} decided", at.seqno);
        let heard: Vec<usize> = (1..=3)
            .map(|n| world.report.times(&format!("n{n}"), &decided))
            .collect();
        world.crash(1);
        world.crash(2);
        let all = [1, 2, 3].map(|n| world.open_again(n));
        std::thread::scope(|scope| {
            for db in &all {
                scope.spawn(|| db.connect(&World::url(), false).expect("all are there"));
            }
        });
        let [a, b, odd] = &all;
        left_inconsistent(world, odd);
        for other in [a, b] {
            world.synced(other);
            world.until("it has heard of the vote once more", || {
                world.report.times(&other.name, &decided) > heard[other.n - 1]
            });
        }
        world.until("two are left", || a.size() == 2);
        assert!(a.set(row(3), 1).is_committed());
        odd.disconnect();
        copies(world, 3);
        for other in [a, b] {
            assert_eq!(other.node().phase(), Phase::Joined);
        }
    });
}

/// A build from before has run on it, and notes nothing of the kind: nobody is put out then.
#[test]
fn without_its_notes_a_node_is_not_put_out() {
    run(3, QUICK, |world| {
        let [a, b, odd] = two_are_about_to_fail(world);
        let at = odd.position();
        odd.disconnect();
        they_fail(world, at, [&a, &b]);
        let decided = format!("Vote on seqno {} decided", at.seqno);
        let heard = world.report.times(&b.name, &decided);
        world.crash(2);
        let marks = world.data_dir(2).join(MARKS_FILE);
        let file = std::fs::File::options().write(true).open(marks);
        let cut = file.and_then(|file| file.set_len(2 * SLOT as u64));
        cut.expect("it is there");
        world.until("it is dropped", || a.size() == 1);
        let again = world.open_again(2);
        again.connect(&World::url(), false).expect("n1 is there");
        world.synced(&again);
        world.until("it has heard of the vote once more", || {
            world.report.times(&again.name, &decided) > heard
        });
        assert!(again.set(row(3), 1).is_committed());
        world.settle();
    });
}

/// The only one that is left fails a statement that was acknowledged elsewhere: whoever comes back with it keeps it,
/// and people are told.
#[test]
fn what_one_alone_has_failed_is_not_taken_from_who_has_it() {
    run(2, "", |world| {
        let [other, odd] = [1, 2].map(|n| world.db(n));
        other.holds.close(Point::ApplyStart);
        assert!(
            odd.ddl(&Ddl::Fail {
                table: 0,
                nodes: 1 << 1,
                text: "Error_code: 1030;\0".into(),
            })
            .is_committed()
        );
        world.until("it is at it", || {
            other.holds.waiting(Point::ApplyStart) == 1
        });
        let at = odd.position();
        odd.disconnect();
        world.until("it is gone", || {
            !other.stat("incoming_addresses").contains("10.0.0.2:")
        });
        other.holds.open(Point::ApplyStart);
        let decided = format!("Vote on seqno {} decided", at.seqno);
        world.until("it is decided", || {
            world.report.times(&other.name, &decided) > 0
        });
        let again = world.open(2, odd.disk(), odd.position());
        again.connect(&World::url(), false).expect("n1 is there");
        world.synced(&again);
        world.until("people are told", || {
            world
                .report
                .said("has succeeded here, and failed on those that were there")
        });
        assert!(again.set(row(3), 1).is_committed());
        assert_eq!(again.node().phase(), Phase::Joined);
    });
}

/// Those that voted it down are gone for good, and an operator goes on with what it has.
#[test]
fn who_is_founded_on_keeps_what_others_voted_down() {
    run(3, QUICK, |world| {
        let [a, b, odd] = two_are_about_to_fail(world);
        let at = odd.position();
        they_fail(world, at, [&a, &b]);
        left_inconsistent(world, &odd);
        for n in 1..=3 {
            world.crash(n);
        }
        world.edit_state_file(3, "uuid", &at.history.to_string());
        world.edit_state_file(3, "safe_to_bootstrap", "1");
        let again = world.open_again(3);
        again.connect("gcomm://", true).expect("it is forced");
        world.synced(&again);
        world.until("people are told", || {
            world
                .report
                .said("has succeeded here, and failed on those that were there")
        });
        assert!(again.set(row(3), 1).is_committed());
        assert_eq!(
            (again.node().phase(), again.read(row(2))),
            (Phase::Joined, 1)
        );
    });
}
