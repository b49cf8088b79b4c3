//! What happens when applying fails (contract B.9).

use std::sync::Arc;
use std::time::Duration;

use dromon_node::{Outcome, Phase, Position};

use crate::toy::{Db, Ddl, Disk, End, row};
use crate::world::{World, run};

const LIMIT: Duration = Duration::from_secs(60);

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
    run(1, "", LIMIT, move |world| {
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
    run(1, "", LIMIT, |world| {
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

#[test]
fn a_statement_that_fails_at_its_origin_only() {
    run(3, "", LIMIT, |world| {
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

#[test]
fn of_two_the_one_that_fails_leaves() {
    run(1, "", LIMIT, |world| {
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
    run(3, "", LIMIT, |world| {
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
    run(3, "gcs.vote_policy=1", LIMIT, |world| {
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
    run(3, "gcs.vote_policy=2", LIMIT, |world| {
        two_of_three_fail(world);
        left_inconsistent(world, &world.db(1));
        world.until("the others see it go", || world.db(2).size() == 2);
        assert!(world.db(2).set(row(3), 1).is_committed());
    });
}

#[test]
fn the_first_members_policy_counts_for_all() {
    run(1, "gcs.vote_policy=1", LIMIT, |world| {
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
