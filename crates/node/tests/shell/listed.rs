//! Founders without a log that tells them of others, and data of another library.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::{AskError, Position};

use crate::edits::{copies, write};
use crate::net::Unheard;
use crate::toy::{Db, Disk, row};
use crate::world::{World, run};

const FLAG: &str = "safe_to_bootstrap";

fn fresh(world: &World, n: usize) -> Arc<Db> {
    world.open(n, Disk::empty(), Position::UNDEFINED)
}

/// Node 3 as it stands at `disk`, without a log; `flag`: told that it may found.
fn without_log(world: &World, disk: Disk, flag: &str) -> Arc<Db> {
    let at = disk.position;
    fresh(world, 3);
    world.write_state_file(3, at);
    world.edit_state_file(3, FLAG, flag);
    world.open(3, disk, at)
}

/// What node `n` has, all of which is finished.
fn disk_of(world: &World, n: usize) -> Disk {
    Disk {
        position: world.settle(),
        ..world.db(n).disk()
    }
}

fn refused(world: &World, db: &Arc<Db>, words: &str) {
    let why = db
        .connect(&World::url(), true)
        .expect_err("it does not found");
    assert!(why.contains(words), "{why}");
    assert!(!db.node().is_primary());
    world.crash(db.n);
}

/// The first node's start has the order to found for good, as containers have it, and its disk is new.
#[test]
fn who_lost_its_disk_does_not_found_a_second_cluster_beside_the_one_listed() {
    run(3, "", |world| {
        write(&world.db(1), 0..5);
        world.crash(1);
        world.until("the others go on", || {
            [2, 3].iter().all(|n| world.db(*n).size() == 2)
        });
        let empty = fresh(world, 1);
        refused(world, &empty, "start this node without --wsrep-new-cluster");
        world.join(1);
        world.settle();
    });
}

/// Nodes with other addresses, and other logs, have taken the places of all that the log of node 3 names: the
/// `newer` ones. What its engine has is older than their logs.
fn replaced(world: &World, newer: &[usize]) -> String {
    write(&world.db(1), 0..5);
    world.settle();
    world.crash(3);
    world.until("the others go on", || {
        [1, 2].iter().all(|n| world.db(*n).size() == 2)
    });
    for n in newer {
        world.join(*n);
    }
    for n in [1, 2] {
        world.db(n).disconnect();
    }
    let first = world.db(newer[0]);
    assert!(first.set(row(7), 7).is_committed());
    world.voters(newer.len());
    let list: Vec<_> = newer.iter().map(|n| World::addr(*n)).collect();
    format!("gcomm://{}", list.join(","))
}

/// Told so by its flag, or because its state file was removed: the way to a full copy, elsewhere.
#[test]
fn nor_does_who_has_a_log_of_members_that_are_gone() {
    for removed in [false, true] {
        run(3, "", move |world| {
            let list = replaced(world, &[4, 5]);
            match removed {
                true => world.remove_state_file(3),
                false => world.edit_state_file(3, FLAG, "1"),
            }
            let back = world.open_again(3);
            // Their logs begin behind what it has.
            let why = back.connect(&list, true).expect_err("they are there");
            assert!(why.contains("would be a second one"), "{why}");
            assert!(!back.node().is_primary());
            back.connect(&list, false).expect("as usual");
            world.synced(&back);
            world.until("it has what they have", || back.read(row(7)) == 7);
            world.until("it is one of three", || world.db(4).size() == 3);
        });
    }
}

/// The others are about to elect another one.
#[test]
fn nor_while_their_leader_has_just_died() {
    run(3, "", |world| {
        let list = replaced(world, &[4, 5, 6]);
        world.edit_state_file(3, FLAG, "1");
        let addr = world.db(4).stat("dromon_leader");
        let leader = [4, 5, 6].into_iter().find(|n| World::addr(*n) == addr);
        world.crash(leader.expect("one of them"));
        let back = world.open_again(3);
        // On a slow machine that takes them longer than it looks.
        let why = back.connect(&list, true).expect_err("they are there");
        assert!(why.contains("which wsrep_cluster_address lists"), "{why}");
        assert!(!back.node().is_primary());
        let alone = "safe_to_bootstrap was set while the log names other voters";
        assert!(!world.report.said(alone), "it does not even begin to");
    });
}

/// Whom its log names has died; those that came since are listed only, and have not dropped that one yet.
#[test]
fn who_founds_finds_a_primary_component_by_a_member_of_its_log_that_is_gone() {
    let patient = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
    run(3, patient, |world| {
        write(&world.db(2), 0..5);
        world.db(1).disconnect();
        world.voters(2);
        let third = world.db(3);
        third.disconnect();
        for n in [4, 5] {
            world.join(n);
        }
        world.voters(3);
        write(&world.db(4), 5..9);
        world.crash(2);
        for n in [4, 5] {
            world.until("another one leads", || {
                let db = world.db(n);
                db.stat("dromon_leader") != World::addr(2) && db.node().is_primary()
            });
        }
        world.edit_state_file(3, FLAG, "1");
        let back = world.open(3, third.disk(), third.position());
        let list = format!("gcomm://{},{}", World::addr(4), World::addr(5));
        back.connect(&list, true).expect("two are there");
        world.synced(&back);
        assert!(world.report.said("joining that one"));
        write(&world.db(4), 9..12);
        world.until("it gets that", || back.read(row(11)) == 7);
        world.settle();
    });
}

/// Node 1 is alone when its host dies; then 2 was told to go on, and 3 has joined it. All are dead now.
pub fn superseded(world: &World) {
    let (two, three) = (world.db(2), world.db(3));
    three.disconnect();
    world.voters(2);
    two.disconnect();
    world.voters(1);
    write(&world.db(1), 0..3);
    world.crash(1);
    go_on_without(world);
}

/// See [`superseded`].
pub fn go_on_without(world: &World) {
    let (two, three) = (world.db(2), world.db(3));
    world.edit_state_file(2, FLAG, "1");
    let two = world.open(2, two.disk(), two.position());
    two.connect(&World::url(), true).expect("it was told to");
    world.synced(&two);
    let three = world.open(3, three.disk(), three.position());
    three.connect(&World::url(), false).expect("one is there");
    world.synced(&three);
    world.voters(2);
    write(&two, 5..9);
    world.settle();
    world.crash(2);
    world.crash(3);
}

/// Node `n`, which crashed, waits with its log for the others.
pub fn waits(world: &World, n: usize) -> (Arc<Db>, JoinHandle<Result<(), String>>) {
    let db = world.open_again(n);
    let joins = {
        let db = db.clone();
        std::thread::spawn(move || db.connect(&World::url(), false))
    };
    world.until("it waits", || db.stat("dromon_log_last") != "0");
    (db, joins)
}

/// After a loss of power its unit, which has the order to found for good, starts it before most of them are back.
#[test]
fn whose_log_others_went_on_without_founds_nothing_beside_one_of_them_that_waits() {
    run(3, "", |world| {
        superseded(world);
        let (two, joins) = waits(world, 2);
        world.edit_state_file(1, FLAG, "1");
        let one = world.open_again(1);
        let why = one.connect(&World::url(), true).expect_err("two has more");
        for words in [
            "10.0.0.2:4567, which wsrep_cluster_address lists, runs and has more of the log",
            "Nothing was changed",
        ] {
            assert!(why.contains(words), "{why}");
        }
        assert!(!one.node().is_primary());
        let three = world.open_again(3);
        three.connect(&World::url(), false).expect("they are two");
        joins.join().expect("no panic").expect("they are two");
        one.connect(&World::url(), false).expect("as it says");
        for db in [&one, &two, &three] {
            world.synced(db);
        }
        assert_eq!(one.read(row(8)), 7);
        world.settle();
    });
}

/// The same while the others are without a majority.
#[test]
fn nor_beside_one_that_waits_for_the_others() {
    run(3, "pc.wait_prim_timeout=PT20S", |world| {
        write(&world.db(1), 0..5);
        world.settle();
        world.crash(1);
        world.crash(3);
        world.until("it has lost the majority", || {
            !world.db(2).node().is_primary()
        });
        refused(world, &fresh(world, 1), "waits for a majority");
        let third = world.open_again(3);
        third.connect(&World::url(), false).expect("they are two");
        world.synced(&third);
        world.synced(&world.db(2));
        world.settle();
    });
}

/// Its log was removed, and its data is of the cluster that runs.
#[test]
fn who_has_data_of_the_cluster_listed_joins_it() {
    run(3, "", |world| {
        write(&world.db(1), 0..5);
        let disk = disk_of(world, 3);
        world.crash(3);
        write(&world.db(1), 5..9);
        let third = without_log(world, disk, "1");
        third.connect(&World::url(), true).expect("it joins");
        assert!(
            world
                .report
                .said("of this data's history: joining that one")
        );
        world.synced(&third);
        world.settle();
    });
}

#[test]
fn who_cannot_ask_at_an_address_listed_says_so_and_asks_nobody_with_an_empty_list() {
    run(1, "", |world| {
        world.crash(1);
        let first = fresh(world, 1);
        for (error, words) in [
            (AskError::Barred as Unheard, "which asks nobody"),
            (AskError::Silent, "which asks nobody"),
            (AskError::ShutOut, "10.0.0.2:4567"),
            (AskError::OtherVersion, "10.0.0.2:4567"),
        ] {
            world.net.speak_strangely(&World::addr(2), error);
            let why = first.connect(&World::url(), true);
            let why = why.expect_err("somebody may be there");
            assert!(why.contains(words), "{why}");
        }
        first.connect("gcomm://", true).expect("nobody is asked");
        world.synced(&first);
    });
}

/// Another service, or a cluster of another name.
#[test]
fn who_is_refused_at_an_address_listed_founds() {
    run(1, "", |world| {
        world.crash(1);
        world
            .net
            .speak_strangely(&World::addr(2), AskError::Refused);
        let first = fresh(world, 1);
        first.connect(&World::url(), true).expect("nobody is there");
        world.synced(&first);
    });
}

/// Its unit starts it before its network is up.
#[test]
fn whose_host_cannot_look_founds_nothing_beside_the_cluster_listed() {
    let options = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
    run(3, options, |world| {
        write(&world.db(1), 0..5);
        world.crash(1);
        world.until("the others go on", || {
            [2, 3].iter().all(|n| world.db(*n).size() == 2)
        });
        for n in 1..=5 {
            let addr = World::addr(n);
            world.net.speak_strangely(&addr, AskError::Unlooked);
        }
        let words = "could not look whether a node of a cluster that runs is there";
        refused(world, &fresh(world, 1), words);
        // Its network comes up while it looks.
        let late = fresh(world, 1);
        let why = std::thread::scope(|scope| {
            let starts = scope.spawn(|| late.connect(&World::url(), true));
            std::thread::sleep(Duration::from_millis(500));
            for n in 1..=5 {
                world.net.speak_plainly(&World::addr(n));
            }
            starts.join().expect("no panic")
        });
        let why = why.expect_err("they are there");
        assert!(why.contains("start this node without"), "{why}");
        world.crash(1);
        // Nobody is asked with an empty list. The others say so when they look again.
        let second = fresh(world, 1);
        second.connect("gcomm://", true).expect("as it was told");
        world.synced(&second);
        let said = "there are two clusters of this name";
        world.until("they hear of it", || {
            let times = |n| world.report.times(n, said);
            ["n2", "n3"].iter().all(|n| times(n) == 1)
        });
        assert_eq!(world.db(2).stat("dromon_other_primary"), "");
        world.crash(1);
        world.join(1);
        world.settle();
    });
}

#[test]
fn who_finds_nobody_at_the_addresses_listed_founds_at_once() {
    run(1, "", |world| {
        world.crash(1);
        let first = fresh(world, 1);
        first.connect(&World::url(), true).expect("nobody is there");
        world.synced(&first);
        assert_eq!(first.size(), 1);
        world.join(2);
        world.settle();
    });
}

/// The change-over began on the wrong node: what only this one has would be gone.
#[test]
fn who_would_need_a_copy_to_join_is_refused_and_keeps_its_data() {
    run(2, "", |world| {
        write(&world.db(1), 0..5);
        let disk = disk_of(world, 2);
        let third = without_log(world, disk, "1");
        std::fs::write(world.data_dir(3).join("galera.cache"), "").expect("room");
        let before = world.state_file(3);
        refused(world, &third, "in place of the data that is here");
        assert_eq!(world.state_file(3), before);
        world.settle();
    });
}

/// It stands where the cluster's log reaches back to, and may have gone on there by itself.
#[test]
fn data_of_galera_without_a_log_takes_a_full_copy() {
    run(3, "", |world| {
        write(&world.db(1), 0..5);
        let disk = disk_of(world, 3);
        world.crash(3);
        write(&world.db(1), 5..9);
        let before = copies(world);
        let third = without_log(world, disk, "0");
        std::fs::write(world.data_dir(3).join("galera.cache"), "").expect("room");
        third.connect(&World::url(), false).expect("two are there");
        world.synced(&third);
        assert_eq!(copies(world), before + 1);
        world.settle();
    });
}
