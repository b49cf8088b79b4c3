//! Starts that are refused, and what is said.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_node::grastate::STATE_FILE;
use dromon_node::{AskError, Phase, Position};
use dromon_writeset::Uuid;

use crate::toy::{Db, Disk, row};
use crate::world::{World, run};

#[test]
fn a_node_cut_off_at_start_is_cut_off_both_ways() {
    let options = "gmcast.isolate=1;pc.wait_prim_timeout=PT1S";
    run(1, options, |world| {
        let first = world.db(1);
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        let why = second.connect(&World::url(), false);
        let why = why.expect_err("it asks nobody");
        assert!(
            why.contains("this node is cut off (gmcast.isolate)"),
            "{why}"
        );
        second
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        let why = second.connect(&World::url(), false);
        let why = why.expect_err("n1 hears nobody");
        assert!(!why.contains("gmcast.isolate"), "{why}");
        assert_eq!((first.size(), second.node().phase()), (1, Phase::Closed));
        first
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        second.connect(&World::url(), false).expect("now it does");
        world.synced(&second);
        // In the address it works as well.
        let third = world.open(3, Disk::empty(), Position::UNDEFINED);
        third
            .node()
            .set_options("gmcast.isolate=0")
            .expect("an order at any time");
        let url = format!("{}?gmcast.isolate=1", World::url());
        let why = third.connect(&url, false).expect_err("it asks nobody");
        assert!(
            why.contains("this node is cut off (gmcast.isolate)"),
            "{why}"
        );
    });
}

/// With the peer, too: it would be in the clear where somebody has taken care that it is not.
#[test]
fn half_of_encryption_is_none() {
    run(1, "", |world| {
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        let set = |text: &str| {
            second
                .node()
                .set_options(text)
                .expect("one after the other")
        };
        set("socket.ssl_cert=/c");
        let why = second
            .connect(&World::url(), false)
            .expect_err("half of it");
        assert!(why.contains("only one is named"), "{why}");
        // Who says that it is meant so may.
        set("socket.ssl=no");
        second.connect(&World::url(), false).expect("in the clear");
        world.synced(&second);
    });
}

#[test]
fn an_address_that_names_only_this_node_is_refused_at_once() {
    run(1, "", |world| {
        let second = world.open(2, Disk::empty(), Position::UNDEFINED);
        for list in ["10.0.0.2:4567", "localhost,10.0.0.2"] {
            let began = Instant::now();
            let why = second.connect(&format!("gcomm://{list}"), false);
            let why = why.expect_err("there is nobody to ask");
            assert!(began.elapsed() < Duration::from_secs(5), "at once");
            let start = "wsrep_cluster_address names only this node itself (";
            assert!(why.starts_with(start), "{why}");
            assert!(why.contains("10.0.0.2:4567"), "{why}");
            assert_eq!(second.node().phase(), Phase::Closed);
        }
        second.connect(&World::url(), false).expect("n1 is there");
        world.synced(&second);
    });
}

/// It has been a member before: its own log knows whom to ask.
#[test]
fn a_member_that_names_only_itself_asks_those_in_its_log() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash(2);
        let again = world.open_again(2);
        again.connect("gcomm://10.0.0.2", false).expect("two run");
        world.synced(&again);
        world.settle();
        assert_eq!(again.read(row(1)), 1);
    });
}

/// Who forces it first loses what only the others have.
#[test]
fn a_founder_after_an_outage_is_told_to_start_all_as_usual() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        let again = world.open_again(3);
        let why = again.connect("gcomm://", true).expect_err("not safe");
        let words = [
            "set safe_to_bootstrap to 1 .",
            "start all nodes as usual",
            "gone for good",
        ];
        let at = words.map(|w| why.find(w));
        assert!(at[0].is_some() && at[0] < at[1] && at[1] < at[2], "{why}");
        for n in [1, 2] {
            assert!(why.contains(&World::addr(n)), "{why}");
        }
        // Where no log names others there is nobody to start.
        world.crash(3);
        world.lose_log(3);
        let again = world.open_again(3);
        let why = again.connect("gcomm://", true).expect_err("not safe");
        assert!(why.ends_with("set safe_to_bootstrap to 1 ."), "{why}");
    });
}

/// Nobody's log is gone on with then, so to start all as usual is of no use.
#[test]
fn after_a_crash_of_all_that_kept_their_logs_in_memory_the_engines_are_compared() {
    let options = "dromon.durability=memory;pc.wait_prim_timeout=PT1S";
    run(3, options, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        let again = world.open_again(3);
        for (url, founds) in [(World::url(), false), ("gcomm://".into(), true)] {
            let why = again.connect(&url, founds).expect_err("nobody is there");
            assert!(!why.contains("by themselves"), "{why}");
            assert!(
                why.contains("where the recovered position is highest"),
                "{why}"
            );
        }
        let note = "the log here is kept with dromon.durability=memory, or was";
        assert_eq!(world.report.times("n3", note), 1);
        // And that helps.
        world.edit_state_file(3, "safe_to_bootstrap", "1");
        let third = world.open_again(3);
        third.connect("gcomm://", true).expect("it was told to");
        world.synced(&third);
        for n in [1, 2] {
            let again = world.open_again(n);
            again.connect(&World::url(), false).expect("one is there");
            world.synced(&again);
        }
        world.settle();
        assert_eq!(world.db(1).read(row(1)), 1);
    });
}

/// The log of a node that comes back after a crash is damaged.
fn comes_back_damaged(world: &World, n: usize) -> Arc<Db> {
    let again = world.open_again(n);
    world.damage_log(n);
    again
}

#[test]
fn a_damaged_log_makes_room_for_a_copy_from_a_primary_component() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash(3);
        assert!(world.db(1).set(row(1), 2).is_committed());
        let donations = || world.db(1).donations() + world.db(2).donations();
        let before = donations();
        let again = comes_back_damaged(world, 3);
        again.connect(&World::url(), false).expect("two run");
        world.synced(&again);
        assert_eq!(donations(), before + 1, "a full copy, not the log alone");
        world.settle();
        assert_eq!(again.read(row(1)), 2);
        assert!(again.set(row(1), 3).is_committed());
    });
}

/// What its log had may be nowhere else: nobody is told to throw it away before the others.
#[test]
fn a_founder_with_a_damaged_log_is_told_to_start_the_others_first() {
    run(3, "pc.wait_prim_timeout=PT2S", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        world.edit_state_file(3, "safe_to_bootstrap", "1");
        let damaged = comes_back_damaged(world, 3);
        let why = damaged.connect("gcomm://", true).expect_err("damaged");
        let (start, move_away) = ("Start the other nodes first", "move them away and found");
        let (start, move_away) = (why.find(start), why.find(move_away));
        assert!(start.is_some() && start < move_away, "{why}");
        assert!(why.contains("keep a copy of the dromon-*.log"), "{why}");
        assert_eq!(why.matches("move").count(), 1, "{why}");
    });
}

/// It alone tells what the data may be.
#[test]
fn a_damaged_log_stays_until_the_data_is_marked() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash(3);
        let again = comes_back_damaged(world, 3);
        let file = world.data_dir(3).join(STATE_FILE);
        let away = file.with_extension("away");
        std::fs::rename(&file, &away).expect("it is renamed");
        std::fs::create_dir(&file).expect("in its place");
        let why = again.connect(&World::url(), false);
        let why = why.expect_err("it cannot be written");
        assert!(why.contains("cannot be written, and must say"), "{why}");
        assert!(!world.report.said("its files are now"), "set aside");
        std::fs::remove_dir(&file).expect("it is removed");
        std::fs::rename(&away, &file).expect("it is renamed back");
        again.connect(&World::url(), false).expect("two run");
        world.synced(&again);
        assert!(world.report.said("its files are now"), "set aside");
        world.settle();
        assert_eq!(again.read(row(1)), 1);
    });
}

/// Whoever is the only one left with an entry must not give it up.
#[test]
fn a_damaged_log_is_kept_while_no_others_form_a_primary_component() {
    run(3, "pc.wait_prim_timeout=PT2S", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in 1..=3 {
            world.crash(n);
        }
        let damaged = comes_back_damaged(world, 3);
        let began = Instant::now();
        let why = damaged.connect(&World::url(), false);
        let why = why.expect_err("nobody else runs");
        assert!(began.elapsed() < Duration::from_secs(12), "in time");
        let start = "this node's log is damaged, and no primary component of other nodes";
        assert!(why.starts_with(start), "{why}");
        assert!(why.contains("Start the other nodes first"), "{why}");
        let why = damaged.connect("gcomm://", true);
        why.expect_err("nor is a cluster founded on it");

        let mut others = Vec::new();
        for n in 1..=2 {
            others.push(world.open_again(n));
        }
        std::thread::scope(|scope| {
            for db in &others {
                scope.spawn(|| db.connect(&World::url(), false).expect("two of three"));
            }
        });
        for db in &others {
            world.synced(db);
        }
        damaged.connect(&World::url(), false).expect("now two run");
        world.synced(&damaged);
        world.settle();
        assert_eq!(damaged.read(row(1)), 1);
    });
}

#[test]
fn a_secret_that_cannot_be_used_changes_nothing_from_there_on() {
    run(1, "", |world| {
        let db = world.db(1);
        let node = db.node();
        let before = node.options_text();
        let e = node
            .set_options("gcs.fc_limit=33;dromon.secret_file=/refused;gcs.fc_factor=0.3")
            .expect_err("the file cannot be used");
        assert!(e.contains("dromon.secret_file=/refused"), "{e}");
        // As with any other item that is refused.
        let limit = |n| format!("gcs.fc_limit = {n}; ");
        assert!(before.contains(&limit(16)));
        assert_eq!(node.options_text(), before.replace(&limit(16), &limit(33)));
        assert_eq!(node.settings().secret_file, std::path::PathBuf::new());
        node.set_options("gcs.fc_limit=34;dromon.secret_file=/good")
            .expect("a file like any other");
        assert!(node.options_text().contains(&limit(34)));
        node.set_options("socket.ssl_reload=1").expect("read again");
        let e = node.set_options("socket.ssl_reload=maybe");
        assert!(e.is_err());
    });
}

#[test]
fn an_order_to_evict_nobody_is_refused() {
    run(2, "", |world| {
        let (one, two) = (world.db(1), world.db(2));
        let uuids = [&one, &two].map(|db| db.stat("gcomm_uuid"));
        let mistyped = format!("evs.evict={}", Uuid([7; 16]));
        let nobody = format!(
            "evs.evict: nobody was removed: {} is not a member. Members are {} (n1), {} (n2); each shows its own uuid in \
             wsrep_gcomm_uuid",
            Uuid([7; 16]),
            uuids[0],
            uuids[1]
        );
        assert_eq!(one.node().set_options(&mistyped), Err(nobody));

        let evict = format!("evs.evict={}", uuids[1]);
        let not_here = |name: &str| {
            Err(format!(
                "evs.evict: nobody was removed: {name} is not in a primary component now, and only members of one decide \
                 who is. Give the order on a node with wsrep_cluster_status=Primary"
            ))
        };
        world.net.cut(&[World::addr(1)], &[World::addr(2)]);
        world.until("n1 is non-primary", || {
            one.node().phase() == Phase::NonPrimary
        });
        assert_eq!(one.node().set_options(&evict), not_here("n1"));
        world.net.heal();
        world.synced(&one);
        world.synced(&two);
        // Each comes back on its own, and the other is alone for that long.
        world.until("both are members", || one.size() == 2 && two.size() == 2);

        two.disconnect();
        assert_eq!(two.node().set_options(&evict), not_here("n2"));
        assert_eq!(one.node().set_options("evs.evict="), Ok(()));
        two.connect(&World::url(), false).expect("n1 is there");
        world.synced(&two);
        world.settle();
    });
}

/// A list that names somebody first who is none of this cluster.
const STRANGE_FIRST: &str = "gcomm://10.0.0.9:4567,10.0.0.1,10.0.0.2,10.0.0.3";
const STRANGE: &str = "10.0.0.9:4567";

#[test]
fn one_address_that_refuses_does_not_end_the_search_of_the_others() {
    run(3, "", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.net.speak_strangely(STRANGE, AskError::OtherVersion);
        world.crash(3);
        let again = world.open_again(3);
        again.connect(STRANGE_FIRST, false).expect("two are there");
        world.synced(&again);
        let told = "10.0.0.9:4567 cannot be asked so. Asking at the other addresses";
        assert_eq!(world.report.times("n3", told), 1);

        // Nor does it keep a majority of the logs apart.
        for n in 1..=3 {
            world.crash(n);
        }
        let both = [1, 2].map(|n| world.open_again(n));
        std::thread::scope(|scope| {
            for db in &both {
                scope.spawn(|| db.connect(STRANGE_FIRST, false).expect("two of three"));
            }
        });
        for db in &both {
            world.synced(db);
            assert_eq!(db.read(row(1)), 1, "on {}", db.name);
        }

        // Where all refuse, it is this node that is wrong.
        let alone = world.open_again(3);
        let began = Instant::now();
        for n in [1, 2] {
            world
                .net
                .speak_strangely(&World::addr(n), AskError::OtherVersion);
        }
        let list = "gcomm://10.0.0.9:4567,10.0.0.1,10.0.0.2";
        let why = alone.connect(list, false).expect_err("all refuse");
        assert!(began.elapsed() < Duration::from_secs(10), "at once");
        let all = [STRANGE, &World::addr(1), &World::addr(2)];
        let all = all.map(|addr| format!("{addr} cannot be asked so"));
        assert_eq!(why, all.join("; "));
        for n in [1, 2] {
            world.net.speak_plainly(&World::addr(n));
        }
    });
}

#[test]
fn an_evicted_node_comes_back_past_an_address_that_refuses() {
    let options = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
    run(3, options, |world| {
        world.crash(3);
        let db = world.open_again(3);
        db.connect(STRANGE_FIRST, false).expect("two are there");
        world.synced(&db);
        world.net.speak_strangely(STRANGE, AskError::OtherVersion);
        let here = [World::addr(1), World::addr(2)];
        world.net.cut(&[World::addr(3)], &here);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.until("it knows", || db.node().phase() == Phase::NonPrimary);
        world.net.heal();
        world.synced(&db);
        world.until("all are members", || world.db(1).size() == 3);
        assert!(world.report.said("joined the cluster again"));
    });
}

/// The one that gave the state is something else when the join is asked for.
#[test]
fn an_address_that_refuses_does_not_end_a_join() {
    run(2, "", |world| {
        let leader = World::addr(world.leader(&world.db(1)));
        let found = "connection established to";
        world.report.hold(found);
        let third = world.open(3, Disk::empty(), Position::UNDEFINED);
        let joins = {
            let third = third.clone();
            std::thread::spawn(move || third.connect(&World::url(), false))
        };
        world.until("it is found", || world.report.said(found));
        world.net.speak_strangely(&leader, AskError::OtherVersion);
        world.report.let_go();
        let told = "cannot be asked so. Asking at the other addresses";
        world.until("the join is refused", || {
            world.report.times("n3", told) > 0 || joins.is_finished()
        });
        world.net.speak_plainly(&leader);
        joins.join().expect("no panic").expect("it is back");
        world.synced(&third);
    });
}
