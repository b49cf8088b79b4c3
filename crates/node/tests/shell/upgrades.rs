//! Logs that another build has written.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::cluster::ClusterState;
use dromon_node::{Phase, Position};
use dromon_order::logstore::LogStore;

use crate::alone::{KEPT, QUICK, part, part_unflushed};
use crate::toy::{Db, Disk, row};
use crate::world::{World, run};

const LIMIT: Duration = Duration::from_secs(120);
const SOON: &str = "pc.wait_prim_timeout=PT1S";

/// After a crash of all, node 3 comes back under another build, and its engine lacks row 2.
fn comes_back(world: &World) -> Arc<Db> {
    assert!(world.db(1).set(row(1), 1).is_committed());
    world.settle();
    let flushed = world.db(3).disk();
    assert!(world.db(1).set(row(2), 2).is_committed());
    world.settle();
    for n in 1..=3 {
        world.crash(n);
    }
    world.edit_state_file(3, "safe_to_bootstrap", "1");
    let position = flushed.position;
    let db = world.open(3, flushed, position);
    world.net.of_other_build(&world.data_dir(3), true);
    db
}

/// It is refused, which names the build to start; its log, under that, still has everything.
fn is_refused(world: &World, url: &str, founds: bool, start: &str) {
    let db = comes_back(world);
    let log = world.copy_log(3).bytes();
    let why = db.connect(url, founds).expect_err("nobody can read it");
    assert!(why.starts_with(start), "{why}");
    let words = [
        "this node's log was written by another build",
        "Start this node with the build that wrote its log",
        "keep a copy of the dromon-*.log files",
    ];
    let at = words.map(|w| why.find(w));
    assert!(at[0].is_some() && at[0] < at[1] && at[1] < at[2], "{why}");
    assert_eq!(db.node().phase(), Phase::Closed);
    assert_eq!(world.copy_log(3).bytes(), log, "nothing was changed");
    world.net.of_other_build(&world.data_dir(3), false);
    let others = [1, 2].map(|n| world.open_again(n));
    std::thread::scope(|scope| {
        for db in others.iter().chain([&db]) {
            scope.spawn(|| db.connect(&World::url(), false).expect("all are there"));
        }
    });
    world.synced(&db);
    world.until("it is there again", || db.read(row(2)) == 2);
}

#[test]
fn the_flag_gives_up_no_log_of_another_build() {
    run(3, SOON, LIMIT, |world| {
        is_refused(world, "gcomm://", true, "this node's log was written");
    });
}

#[test]
fn who_waits_in_vain_with_such_a_log_hears_which_build_to_start() {
    run(3, SOON, LIMIT, |world| {
        let start = "failed to reach primary view within 1 s: ";
        is_refused(world, &World::url(), false, start);
    });
}

/// Both are upgraded before it meets the one that was forced to go on without it.
#[test]
fn a_log_of_another_build_that_has_more_than_the_forced_one_is_kept() {
    for flushed in [true, false] {
        run(3, QUICK, LIMIT, move |world| {
            let (one, disk) = match flushed {
                true => (part(world), world.crashed_disk(2)),
                false => part_unflushed(world),
            };
            let position = disk.position;
            let db = world.open(2, disk, position);
            let dir = world.data_dir(2);
            world.net.of_other_build(&dir, true);
            let log = world.copy_log(2);
            db.connect(&World::url(), false).expect("one is there");
            world.net.of_other_build(&dir, false);
            world.synced(&db);
            assert_eq!(db.read(row(12)), one.read(row(12)));
            assert_eq!(world.report.times("n2", KEPT), 1);
            let former = world.net.copy_log(&dir.join("former"));
            assert_eq!(former.bounds(), log.bounds());
        });
    }
}

/// The way from one build to the next: no log has more than the one that founds.
#[test]
fn after_an_orderly_stop_of_all_no_log_of_another_build_is_kept() {
    run(2, "", LIMIT, |world| {
        world.join_witness(5);
        world.voters(3);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.witness(5).disconnect();
        for n in [2, 1] {
            world.db(n).disconnect();
        }
        let open = |n: usize| {
            let (disk, position) = (world.db(n).disk(), world.db(n).position());
            let db = world.open(n, disk, position);
            world.net.of_other_build(&world.data_dir(n), true);
            db
        };
        let one = open(1);
        one.connect("gcomm://", true).expect("stopped cleanly");
        world.synced(&one);
        let two = open(2);
        two.connect(&World::url(), false).expect("one is there");
        world.synced(&two);
        let witness = world.open_witness(5, false);
        world.net.of_other_build(&world.data_dir(5), true);
        let joins = witness.connect("toys", &World::url(), "", false);
        joins.expect("they are there");
        for n in [1, 2, 5] {
            world.net.of_other_build(&world.data_dir(n), false);
        }
        world.voters(3);
        assert_eq!(two.read(row(1)), 1);
        assert!(!world.report.said(KEPT));
    });
}

/// It is not let go round until `pc.wait_prim_timeout`, which these nodes do not reach.
#[test]
fn who_finds_a_leader_of_another_build_hears_both_formats_and_the_way() {
    run(2, "pc.wait_prim_timeout=PT600S", LIMIT, |world| {
        let leader = World::addr(world.leader(&world.db(1)));
        world.net.runs_other_build(&leader);
        let db = world.open(3, Disk::empty(), Position::UNDEFINED);
        let refused = db.connect(&World::url(), false);
        let why = refused.expect_err("nobody can read what it gives");
        let ours = ClusterState::FORMAT;
        let words = [
            format!("{leader} leads the cluster and runs another build of the library"),
            format!("(format {}; this one has format {ours})", ours - 1),
            "Start this node with the build that runs there".to_owned(),
            "stop all nodes cleanly, install it on all".to_owned(),
        ];
        for words in words {
            assert!(why.contains(&words), "{why}");
        }
        assert_eq!(db.node().phase(), Phase::Closed);
    });
}

/// Then the database has all of it: the way from one build to the next.
#[test]
fn after_an_orderly_stop_another_build_founds() {
    run(1, "", LIMIT, |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 1).is_committed());
        let before = world.settle();
        db.disconnect();
        let position = db.position();
        let db = world.open(1, db.disk(), position);
        world.net.of_other_build(&world.data_dir(1), true);
        db.connect("gcomm://", true).expect("stopped cleanly");
        world.synced(&db);
        world.net.of_other_build(&world.data_dir(1), false);
        assert_eq!(db.read(row(1)), 1);
        assert_eq!(world.settle().history, before.history);
    });
}
