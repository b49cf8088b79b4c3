//! The last node of a cluster comes back by itself: its log names nobody else.

use std::sync::Arc;
use std::time::Duration;

use dromon_node::{AskError, Phase, Position};

use crate::net::Unheard;
use crate::partition::QUICK;
use crate::toy::{Db, Disk, row};
use crate::world::{World, addrs, run};

const FLAG: &str = "safe_to_bootstrap";
const SHORT: &str = "pc.wait_prim_timeout=PT4S";

/// n2 and n3 have left in order, one after the other; n1 goes on alone. What those two had.
fn two_leave(world: &World) -> [Disk; 2] {
    let one = world.db(1);
    assert!(one.set(row(1), 1).is_committed());
    world.settle();
    let disks = [2, 3].map(|n| {
        let db = world.db(n);
        db.disconnect();
        db.disk()
    });
    world.until("it is the last one", || {
        one.size() == 1 && one.stat("dromon_voters") == "1" && world.net.voters_settled(&one.addr)
    });
    assert!(one.set(row(2), 2).is_committed());
    world.until("its state file says so", || {
        world.state_file(1).contains("safe_to_bootstrap: 1")
    });
    disks
}

/// The same; n1 dies, and n2 is forced to go on without it.
fn two_is_forced(world: &World) -> Arc<Db> {
    let [disk, _] = two_leave(world);
    world.crash(1);
    world.edit_state_file(2, FLAG, "1");
    let two = world.open(2, disk, Position::UNDEFINED);
    two.connect("gcomm://", true).expect("it is forced");
    world.synced(&two);
    two
}

/// Started as usual on what its engine had: nobody founds anything.
fn comes_back(world: &World, disk: Disk, position: Position, url: &str) -> Arc<Db> {
    let one = world.open(1, disk, position);
    one.connect(url, false).expect("its log is all");
    world.synced(&one);
    assert!(
        world
            .report
            .said("names nobody else, as this node was the last one")
            || one.size() > 1
    );
    one
}

#[test]
fn the_last_one_goes_on_by_itself_after_a_crash_and_the_others_join_it() {
    run(3, "", |world| {
        let disks = two_leave(world);
        world.crash(1);
        let mut disk = world.crashed_disk(1);
        // Its engine has lost what was committed last; the log has not.
        disk.position.seqno -= 1;
        disk.rows.remove(&row(2));
        let position = disk.position;
        let one = comes_back(world, disk, position, &World::url());
        assert_eq!(one.read(row(2)), 2);
        for (n, disk) in [2, 3].into_iter().zip(disks) {
            let db = world.open(n, disk, Position::UNDEFINED);
            db.connect(&World::url(), false).expect("n1 is there");
            world.synced(&db);
        }
        world.settle();
        assert_eq!(one.donations(), 0, "they follow by the log");
    });
}

/// Of a cluster of one node, whose address list names nobody else.
#[test]
fn so_does_the_only_one() {
    for stops in [true, false] {
        run(1, "", move |world| {
            let one = world.db(1);
            assert!(one.set(row(1), 1).is_committed());
            let (disk, position) = match stops {
                true => {
                    one.disconnect();
                    (one.disk(), one.position())
                }
                false => {
                    world.crash(1);
                    let disk = world.crashed_disk(1);
                    (disk.clone(), disk.position)
                }
            };
            let url = format!("gcomm://{}", World::addr(1));
            let again = comes_back(world, disk, position, &url);
            assert_eq!(again.read(row(1)), 1);
            assert!(again.set(row(2), 2).is_committed());
        });
    }
}

/// All were stopped in order, and all are started as usual, those that left first too early.
#[test]
fn the_one_that_was_stopped_last_goes_on_by_itself_and_the_others_wait_for_it() {
    run(3, "", |world| {
        let disks = two_leave(world);
        let one = world.db(1);
        one.disconnect();
        let (disk, position) = (one.disk(), one.position());
        let others: Vec<Arc<Db>> = [2, 3]
            .into_iter()
            .zip(disks)
            .map(|(n, disk)| world.open(n, disk, Position::UNDEFINED))
            .collect();
        std::thread::scope(|scope| {
            for db in &others {
                scope.spawn(|| db.connect(&World::url(), false).expect("n1 comes"));
            }
            comes_back(world, disk, position, &World::url());
        });
        for db in &others {
            world.synced(db);
        }
        world.settle();
    });
}

/// An operator gives it up for another one, or a tool has removed its state file, as of a clone.
#[test]
fn one_whose_state_file_does_not_say_that_it_was_the_last_founds_nothing() {
    for removed in [true, false] {
        run(3, SHORT, move |world| {
            two_leave(world);
            world.crash(1);
            let disk = world.crashed_disk(1);
            match removed {
                true => world.remove_state_file(1),
                false => world.edit_state_file(1, FLAG, "0"),
            }
            let position = disk.position;
            let one = world.open(1, disk, position);
            let why = one.connect(&World::url(), false).expect_err("nobody leads");
            assert!(
                why.to_string().contains("failed to reach primary view"),
                "{why}"
            );
        });
    }
}

/// n2 was forced to go on while n1 was down, and died as well; n1 is back first. What was acknowledged by n2 since then
/// only people give up.
#[test]
fn who_was_forced_on_and_crashed_gives_nothing_up_by_itself() {
    for keeps in [true, false] {
        let options = format!("{QUICK};{SHORT}");
        run(3, &options, move |world| {
            let two = two_is_forced(world);
            assert!(two.set(row(3), 3).is_committed());
            world.crash(2);
            let one = world.open_again(1);
            one.connect(&World::url(), false).expect("its log is all");
            world.synced(&one);
            let two = world.open_again(2);
            let why = two.connect(&World::url(), false).expect_err("it has more");
            let why = why.to_string();
            assert!(why.contains("gone on alone as a later one"), "{why}");
            let (disk, position) = (two.disk(), two.position());
            assert_eq!(two.read(row(3)), 3);
            let two = match keeps {
                true => {
                    one.disconnect();
                    let two = world.open(2, disk, position);
                    two.connect(&World::url(), false).expect("its log is all");
                    world.synced(&two);
                    let one = world.open(1, one.disk(), Position::UNDEFINED);
                    one.connect(&World::url(), false).expect("n2 leads");
                    world.synced(&one);
                    two
                }
                false => {
                    world.edit_state_file(2, FLAG, "0");
                    let two = world.open(2, disk, position);
                    two.connect(&World::url(), false).expect("n1 leads");
                    world.synced(&two);
                    two
                }
            };
            world.settle();
            let kept = match keeps {
                true => (0, 3),
                false => (2, 0),
            };
            assert_eq!((two.read(row(2)), two.read(row(3))), kept);
        });
    }
}

/// It hears nobody of those that it lists: they may have been forced on.
#[test]
fn it_looks_for_the_others_for_some_seconds_first() {
    let options = format!("{QUICK};pc.wait_prim_timeout=PT20S");
    run(3, &options, |world| {
        let two = two_is_forced(world);
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        let one = world.open_again(1);
        std::thread::scope(|scope| {
            scope.spawn(|| one.connect(&World::url(), false).expect("n2 leads"));
            std::thread::sleep(Duration::from_secs(2));
            assert_ne!(one.node().phase(), Phase::Joined);
            world.net.heal();
        });
        world.synced(&one);
        world.until("both are there", || two.size() == 2);
        world.settle();
    });
}

/// Each has its log alone, and none hears the other before both go on.
#[test]
fn of_two_that_were_forced_apart_and_come_back_at_once_no_more_than_one_is_primary() {
    let options = format!("{QUICK};{SHORT}");
    run(3, &options, |world| {
        let two = two_is_forced(world);
        assert!(two.set(row(3), 3).is_committed());
        world.crash(2);
        let both = [1, 2].map(|n| world.open_again(n));
        let results = std::thread::scope(|scope| {
            let connect = |db: &Arc<Db>| {
                let db = db.clone();
                scope.spawn(move || db.connect(&World::url(), false))
            };
            both.each_ref()
                .map(connect)
                .map(|started| started.join().expect("no panic"))
        });
        let refused: Vec<String> = results
            .into_iter()
            .filter_map(|result| Some(result.err()?.to_string()))
            .collect();
        for why in &refused {
            let told = ["names nobody else", "as a later one", "failed to reach"];
            assert!(told.iter().any(|t| why.contains(t)), "{why}");
        }
        if refused.is_empty() {
            // One of them came to the other.
            both.iter().for_each(|db| world.synced(db));
            world.settle();
        }
    });
}

/// Somebody is at an address that it lists, or that cannot be looked up: nobody knows whether that one was forced on.
#[test]
fn it_does_not_go_on_beside_who_cannot_be_asked() {
    for unheard in [
        AskError::Barred as Unheard,
        AskError::ShutOut,
        AskError::Resolving,
    ] {
        run(3, SHORT, move |world| {
            two_leave(world);
            world.crash(1);
            world.net.speak_strangely(&World::addr(2), unheard);
            let one = world.open_again(1);
            let why = one.connect(&World::url(), false).expect_err("nobody leads");
            let why = why.to_string();
            assert!(why.contains("failed to reach primary view"), "{why}");
            assert!(world.report.said("does not go on by itself meanwhile"));
        });
    }
}
