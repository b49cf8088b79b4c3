//! A witness beside two data nodes: it votes, stores the log, and has no data.

use std::time::Duration;

use dromon_node::{ConnectError, Outcome, Phase, Position};
use dromon_order::logstore::LogStore;

use crate::alone::KEPT;
use crate::load::Load;
use crate::toy::holds::Point;
use crate::toy::{Ddl, row};
use crate::world::{World, addrs, run};

/// Nobody is evicted within a test, but elections come soon.
const PATIENT: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
/// Whoever is silent is evicted.
const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
/// The same, and a joiner does not ask for long.
const SHORT: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S;pc.wait_prim_timeout=PT5S";
/// The witness's place.
const W: usize = 5;

fn loaded(world: &World, on: &[usize]) -> Load {
    let mut load = Load::new(false);
    for n in on {
        load.add(&world.db(*n), 2, 5);
    }
    load.go_on(world, 10);
    load
}

/// Two data nodes and a witness that votes.
fn two_and_a_witness(world: &World) {
    world.join_witness(W);
    world.voters(3);
}

/// Node `n` reaches nobody, and goes on alone.
fn is_forced_on(world: &World, n: usize) {
    let db = world.db(n);
    world.until("it is non-primary", || {
        db.node().phase() == Phase::NonPrimary
    });
    db.node()
        .set_options("pc.bootstrap=yes")
        .expect("it reaches nobody");
    world.synced(&db);
    world.until("it is alone", || db.size() == 1);
}

fn data_leads(world: &World) -> usize {
    let mut at = 0;
    world.until("a data node leads", || {
        at = world.leader(&world.db(1));
        at != W
    });
    at
}

#[test]
fn it_is_a_member_and_a_voter_and_nobody_waits_for_it() {
    run(2, QUICK, |world| {
        two_and_a_witness(world);
        let one = world.db(1);
        assert_eq!(one.size(), 3, "members count it, as users of garbd expect");
        assert_eq!(one.stat("dromon_witnesses"), format!("n{W}"));
        assert_eq!(one.stat("cluster_weight"), "3");
        let mut load = loaded(world, &[1, 2]);
        // Silent, it is waited for by nobody: two logs of three are a majority.
        world.net.cut(&addrs(&[W]), &addrs(&[1, 2]));
        load.go_on(world, 30);
        world.until("it is dropped", || one.size() == 2);
        load.go_on(world, 10);
        world.net.heal();
        world.until("it is back", || one.size() == 3);
        world.voters(3);
        load.go_on(world, 10);
        load.verify(world);
        let witness = world.witness(W);
        let end = one.node().last_committed();
        world.until("it has the whole log", || witness.last_committed() == end);
    });
}

#[test]
fn it_never_gives_a_copy() {
    run(1, PATIENT, |world| {
        // Its name is what the joiner asks for first; its id comes first too.
        world.join_witness(W);
        world.voters(2);
        let two = world.open(2, crate::toy::Disk::empty(), Position::UNDEFINED);
        two.connect_from(&World::url(), &format!("n{W},"), false)
            .expect("the data node gives");
        world.synced(&two);
        assert_eq!(world.db(1).donations(), 1);
        world.voters(3);
        assert!(two.set(row(1), 1).is_committed());
        world.settle();
    });
}

#[test]
fn each_of_the_three_dies_and_comes_back() {
    run(2, QUICK, |world| {
        two_and_a_witness(world);
        let mut load = loaded(world, &[1, 2]);
        for n in [1, 2] {
            world.crash(n);
            let other = world.db(3 - n);
            load.go_on(world, 20);
            world.until("the dead one is dropped", || other.size() == 2);
            load.go_on(world, 10);
            let db = world.open_again(n);
            db.connect(&World::url(), false).expect("it is a member");
            world.synced(&db);
            world.voters(3);
            load.add(&db, 2, 10 + n as u64);
        }
        world.crash_witness(W);
        load.go_on(world, 20);
        let one = world.db(1);
        world.until("the dead witness is dropped", || one.size() == 2);
        load.go_on(world, 10);
        world.restart_witness(W);
        world.voters(3);
        load.go_on(world, 20);
        load.verify(world);
    });
}

/// Of two voters none can be put out. The one that leads stays, and says what happened.
#[test]
fn a_log_that_went_back_in_time_is_sent_again_what_it_lost() {
    run(1, QUICK, |world| {
        world.join_witness(W);
        world.voters(2);
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        let older = world.copy_log(W);
        for value in 2..10 {
            assert!(one.set(row(1), value).is_committed());
        }
        world.until("the one with data leads", || world.leader(&one) == 1);
        world.crash_witness(W);
        world.put_log(W, older);
        world.restart_witness(W);
        world.until("it is told", || {
            world
                .report
                .times(&one.name, "went back in time: it lacks entry")
                == 1
        });
        assert!(one.set(row(1), 10).is_committed());
    });
}

/// Two witnesses are a majority without the only one that has data; without it
/// there is nothing to go on with.
#[test]
fn the_last_one_with_data_is_not_evicted() {
    run(1, QUICK, |world| {
        world.join_witness(W - 1);
        world.join_witness(W);
        world.voters(3);
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.net.cut(&addrs(&[1]), &addrs(&[W - 1, W]));
        let stays = "It is not evicted, as no other member that is heard has data";
        world.until("a witness leads and says why n1 stays", || {
            world.report.said(stays)
        });
        world.net.heal();
        world.until("n1 serves again", || one.set(row(2), 1).is_committed());
        assert_eq!(one.size(), 3);
        assert!(!world.report.said("was silent and is evicted"));
        let told = [W - 1, W].map(|n| world.report.times(&format!("n{n}"), stays));
        assert_eq!(told.iter().sum::<usize>(), 1, "once a minute: {told:?}");
    });
}

#[test]
fn what_only_it_has_reaches_the_other_data_node() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        // n2 hears nothing any more; n1 and the witness acknowledge.
        world.net.cut(&addrs(&[2]), &addrs(&[1, W]));
        for n in 2..=9 {
            world.until("n1 is acknowledged", || one.set(row(n), 7).is_committed());
        }
        world.crash(1);
        world.net.heal();
        let two = world.db(2);
        world.until("n2 has what was acknowledged", || {
            (2..=9).all(|n| two.read(row(n)) == 7)
        });
        world.synced(&two);
        world.until("n2 leads", || world.leader(&two) == 2);
        assert!(two.set(row(10), 1).is_committed());
    });
}

#[test]
fn it_hands_leadership_to_a_data_node() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        let mut load = loaded(world, &[1, 2]);
        let leader = data_leads(world);
        world.net.hand_over(&World::addr(leader), &World::addr(W));
        world.until("the witness hands over", || {
            world.report.said("this witness leads; handing")
        });
        data_leads(world);
        load.go_on(world, 20);
        load.verify(world);
    });
}

#[test]
fn after_a_total_outage_any_two_of_the_logs_go_on() {
    for first in [1, 2] {
        run(2, PATIENT, move |world| {
            two_and_a_witness(world);
            let load = loaded(world, &[1, 2]);
            for n in [1, 2] {
                world.crash(n);
            }
            world.crash_witness(W);
            drop(load);
            let opened = world.open_witness(W, false);
            let back = opened.clone();
            let thread = std::thread::spawn(move || back.connect("toys", &World::url(), "", false));
            world.until("it waits for the others", || {
                world.report.said("this witness's own log")
            });
            assert_ne!(opened.phase(), Phase::Joined);
            let db = world.open_again(first);
            db.connect(&World::url(), false).expect("two of three");
            thread.join().expect("no panic").expect("two of three");
            world.synced(&db);
            let had = db.disk().rows.len();
            assert!(had > 0 && db.set(row(90), 1).is_committed());
            let other = 3 - first;
            let late = world.open_again(other);
            late.connect(&World::url(), false).expect("all three");
            world.synced(&late);
            world.settle();
        });
    }
}

#[test]
fn a_log_that_was_left_behind_or_lost_or_damaged_is_taken_anew() {
    run(2, QUICK, |world| {
        two_and_a_witness(world);
        let mut load = loaded(world, &[1, 2]);
        let one = world.db(1);
        for how in ["left behind", "lost", "damaged"] {
            world.crash_witness(W);
            if how == "left behind" {
                world.until("the dead witness is dropped", || one.size() == 2);
            }
            if how == "damaged" {
                world.damage_log(W);
            }
            load.go_on(world, 10);
            let witness = world.open_witness(W, how == "lost");
            witness
                .connect("toys", &World::url(), "", false)
                .unwrap_or_else(|e| panic!("{how}: {e}"));
            world.until(how, || witness.is_primary());
            world.voters(3);
            load.go_on(world, 10);
        }
        load.verify(world);
    });
}

#[test]
fn it_leaves_and_is_not_missed() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        let mut load = loaded(world, &[1, 2]);
        world.witness(W).disconnect();
        world.voters(2);
        load.go_on(world, 10);
        load.verify(world);
        assert_eq!(world.db(1).size(), 2);
    });
}

#[test]
fn the_data_nodes_may_leave_and_return_while_it_stays() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let mut disks = Vec::new();
        for n in [1, 2] {
            let db = world.db(n);
            db.disconnect();
            disks.push((n, db.disk()));
        }
        let witness = world.witness(W);
        world.until("it is alone and primary", || witness.is_primary());
        assert!(!world.state_file(2).contains("safe_to_bootstrap: 1"));
        for (n, disk) in disks {
            let db = world.open(n, disk, Position::UNDEFINED);
            db.connect(&World::url(), false).expect("it stayed");
            world.synced(&db);
        }
        world.voters(3);
        assert!(world.db(2).set(row(2), 1).is_committed());
        world.settle();
    });
}

/// It was the last one, so its log is a majority by itself. While it is down a data node founds the
/// cluster: that one has not to come to it, nor is anybody else to find it beside that one.
#[test]
fn who_founds_while_it_is_down_is_joined_by_it() {
    for stops in [true, false] {
        run(2, PATIENT, move |world| {
            two_and_a_witness(world);
            assert!(world.db(1).set(row(1), 1).is_committed());
            world.settle();
            let disks = [1, 2].map(|n| {
                let db = world.db(n);
                db.disconnect();
                db.disk()
            });
            let witness = world.witness(W);
            world.until("it is alone and primary", || witness.is_primary());
            match stops {
                true => witness.disconnect(),
                false => world.crash_witness(W),
            }
            let [disk_of_one, disk_of_two] = disks;
            world.edit_state_file(2, "safe_to_bootstrap", "1");
            let two = world.open(2, disk_of_two, Position::UNDEFINED);
            two.connect(&World::url(), true).expect("it founds");
            world.synced(&two);
            assert!(two.set(row(2), 2).is_committed());
            world.restart_witness(W);
            world.until("it is in that cluster", || two.size() == 2);
            world.voters(2);
            assert!(two.set(row(3), 3).is_committed());
            let one = world.open(1, disk_of_one, Position::UNDEFINED);
            one.connect(&World::url(), false).expect("there is one");
            world.synced(&one);
            world.voters(3);
            assert!((1..=3).all(|n| one.read(row(n)) == n as i64));
            world.settle();
        });
    }
}

/// It was forced on, and died; the data node that its log keeps as a member was forced on meanwhile. Its address list
/// names others.
#[test]
fn whom_only_its_log_names_is_joined_by_it() {
    let options = format!("{QUICK};pc.wait_prim_timeout=PT6S");
    run(1, &options, |world| {
        world.join_witness(W);
        world.voters(2);
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        world.net.cut(&addrs(&[1]), &addrs(&[W]));
        world.crash_witness(W);
        let witness = world.open_witness(W, false);
        witness.force_primary();
        witness
            .connect("toys", &World::url(), "", false)
            .expect("told to");
        world.until("it is primary", || witness.is_primary());
        // As it starts again it makes the one with data a member of its log.
        world.crash_witness(W);
        world.restart_witness(W);
        world.until("it waits for n1", || {
            world.report.said("It is not evicted, as no other member")
        });
        world.crash_witness(W);
        is_forced_on(world, 1);
        world.net.heal();
        let witness = world.open_witness(W, false);
        let elsewhere = format!("gcomm://{}", addrs(&[2, 3]).join(","));
        witness
            .connect("toys", &elsewhere, "", false)
            .expect("its log names one that is there");
        world.until("it follows", || one.size() == 2);
        world.voters(2);
        assert!(one.set(row(2), 1).is_committed());
    });
}

#[test]
fn no_copy_comes_from_it_when_all_data_is_lost() {
    run(2, SHORT, |world| {
        two_and_a_witness(world);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in [1, 2] {
            world.db(n).disconnect();
        }
        let one = world.open(1, crate::toy::Disk::empty(), Position::UNDEFINED);
        let refused = one.connect(&World::url(), false);
        let why = refused.expect_err("nobody can give a copy");
        assert!(why.contains("have the log but no data"), "{why}");
        assert!(!one.ready(), "nothing is served that is not there");
    });
}

/// The only one with data comes back and needs a copy: its former process, which the others
/// keep as a member, gives none. So it keeps what it has.
#[test]
fn who_alone_has_data_gives_it_up_for_no_copy() {
    let options = format!("{QUICK};pc.wait_prim_timeout=PT6S");
    run(1, &options, |world| {
        world.join_witness(W - 1);
        world.join_witness(W);
        world.voters(3);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash(1);
        world.until("a witness leads", || {
            world.report.said("It is not evicted, as no other member")
        });
        let again = world.open_again(1);
        world.damage_log(1);
        let why = again.connect(&World::url(), false);
        let why = why.expect_err("nobody can give a copy");
        assert!(why.contains("move its log away"), "{why}");
        assert!(!world.report.said("this node's log was damaged"));
        // As it says.
        world.lose_log(1);
        let again = world.open_again(1);
        again
            .connect(&World::url(), false)
            .expect("its data counts");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 1);
        world.voters(3);
        assert!(again.set(row(2), 1).is_committed());
        assert_eq!(again.size(), 3);
    });
}

#[test]
fn it_does_not_vote_on_errors() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        let two = world.db(2);
        two.fail_at(row(3), "no such row");
        assert!(world.db(1).set(row(3), 1).is_committed());
        // One failed, one succeeded: success wins ties. With the witness's word
        // it would win as well, so what matters is that nobody waits for it.
        world.until("n2 is voted out", || {
            two.node().phase() == Phase::Inconsistent || two.node().phase() == Phase::Closed
        });
        let witness = world.witness(W);
        assert!(witness.is_primary());
        assert!(world.db(1).set(row(4), 1).is_committed());
        two.disconnect();
    });
}

#[test]
fn it_knows_of_no_statement_how_it_ended() {
    let options = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
    run(2, options, |world| {
        two_and_a_witness(world);
        let add = Ddl::Add { table: 0, n: 100 };
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        let two = world.db(2);
        two.holds.close(Point::DdlRan);
        assert!(world.db(1).ddl(&add).is_committed(), "acknowledged");
        world.until("it has run there", || two.holds.waiting(Point::DdlRan) == 1);
        for n in [1, 2] {
            world.crash(n);
        }
        // n2 cannot tell whether it ran, and the witness has no tables: n1 knows.
        let again = [2, 1].map(|n| {
            let mut disk = world.crashed_disk(n);
            disk.position.seqno -= 1;
            let position = disk.position;
            let db = world.open(n, disk, position);
            let joins = {
                let db = db.clone();
                std::thread::spawn(move || db.connect(&World::url(), false))
            };
            std::thread::sleep(Duration::from_secs(4));
            (db, joins)
        });
        for (db, joins) in again {
            joins.join().expect("no panic").expect("it is in");
            world.synced(&db);
            assert_eq!(db.read(row(1)), 105, "once on {}", db.name);
        }
        assert_eq!(world.db(1).donations(), 1);
    });
}

#[test]
fn the_last_log_goes_on_if_an_operator_says_so() {
    run(2, QUICK, |world| {
        two_and_a_witness(world);
        let one = world.db(1);
        // n2 falls behind for good: what comes now is in n1's log and the witness's.
        world.crash(2);
        world.until("n2 is dropped", || one.size() == 2);
        for n in 1..=5 {
            world.until("n1 is acknowledged", || one.set(row(n), 7).is_committed());
        }
        world.voters(2);
        // n1 is lost with its disk; the witness dies too.
        world.crash(1);
        world.crash_witness(W);
        let witness = world.open_witness(W, false);
        witness.force_primary();
        witness
            .connect("toys", &World::url(), "", false)
            .expect("told to");
        world.until("it is primary", || witness.is_primary());
        let two = world.open_again(2);
        two.connect(&World::url(), false).expect("it is a member");
        world.synced(&two);
        assert!(
            (1..=5).all(|n| two.read(row(n)) == 7),
            "all that was acknowledged came from the witness"
        );
        assert_eq!(two.size(), 2, "the lost one was dropped, not waited for");
        assert!(two.set(row(6), 1).is_committed());
    });
}

/// It dies before it has dropped whom it went on without, and counts that log when it is back: the last one with data
/// is not evicted.
#[test]
fn the_last_log_is_not_waited_for_where_it_was_forced_on_and_died_at_once() {
    run(1, QUICK, |world| {
        world.join_witness(W);
        world.voters(2);
        let one = world.db(1);
        for n in 1..=5 {
            assert!(one.set(row(n), 7).is_committed());
        }
        world.settle();
        world.crash(1);
        world.crash_witness(W);
        let witness = world.open_witness(W, false);
        let slow = world.copy_log(W);
        slow.slow_down(Duration::from_millis(200));
        world.put_log(W, slow);
        witness.force_primary();
        let log = std::thread::scope(|scope| {
            scope.spawn(|| witness.connect("toys", &World::url(), "", false));
            let mut log = None;
            while log.is_none() {
                std::thread::sleep(Duration::from_millis(1));
                log = witness.is_primary().then(|| world.copy_log(W));
            }
            world.crash_witness(W);
            log.expect("it was primary")
        });
        let witness = world.open_witness(W, false);
        world.put_log(W, log);
        witness
            .connect("toys", &World::url(), "", false)
            .expect("it votes alone");
        world.until("it is primary", || witness.is_primary());
        let again = world.open_again(1);
        again
            .connect(&World::url(), false)
            .expect("the witness leads");
        world.synced(&again);
        assert!(!world.report.said("and counts this node's own log"));
        assert_eq!(again.read(row(5)), 7);
        assert!(again.set(row(6), 1).is_committed());
    });
}

/// A data node is forced on out of its reach, and lacks what was acknowledged with it.
#[test]
fn its_log_is_kept_where_one_that_lacks_some_of_it_was_forced_on() {
    for runs in [false, true] {
        run(2, PATIENT, move |world| {
            two_and_a_witness(world);
            let (one, two) = (world.db(1), world.db(2));
            assert!(one.set(row(1), 1).is_committed());
            world.settle();
            world.net.cut(&addrs(&[2]), &addrs(&[1, W]));
            for n in 2..=5 {
                world.until("n1 is acknowledged", || one.set(row(n), 7).is_committed());
            }
            world.crash(1);
            if !runs {
                world.crash_witness(W);
            }
            is_forced_on(world, 2);
            let log = world.copy_log(W);
            world.net.heal();
            if !runs {
                world.restart_witness(W);
            }
            world.until("it follows", || two.size() == 2);
            world.voters(2);
            assert!(world.witness(W).is_primary());
            assert_eq!(world.report.times(&format!("n{W}"), KEPT), 1);
            let former = world.net.copy_log(&world.data_dir(W).join("former"));
            assert_eq!(former.bounds(), log.bounds());
            assert!(two.set(row(6), 1).is_committed());
        });
    }
}

#[test]
fn a_log_that_has_no_more_than_the_forced_one_is_not_kept() {
    run(2, PATIENT, |world| {
        two_and_a_witness(world);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        world.crash_witness(W);
        world.crash(1);
        is_forced_on(world, 2);
        world.restart_witness(W);
        world.voters(2);
        assert_eq!(world.report.times(&format!("n{W}"), KEPT), 0);
    });
}

/// What it does when it is forced must not keep its service from starting afterwards.
#[test]
fn who_has_less_than_a_witness_is_told_how_it_goes_on() {
    run(2, QUICK, |world| {
        two_and_a_witness(world);
        let (one, two) = (world.db(1), world.db(2));
        world.net.cut(&addrs(&[1]), &addrs(&[2, W]));
        world.until("the others drop it, and its vote", || {
            two.size() == 2
                && two.stat("dromon_voters") == "2"
                && world.net.voters_settled(&two.addr)
        });
        world.until("it is acknowledged", || two.set(row(5), 7).is_committed());
        world.crash(2);
        let witness = world.witness(W);
        world.until("nobody is primary", || !witness.is_primary());
        world.net.heal();
        let refused = one.node().set_options("pc.bootstrap=yes");
        let why = refused.expect_err("the witness has more");
        for words in [
            "has more of the log",
            "It is a witness: stop its service and start it by hand with --force-primary, as the user that its service has",
            "When this node is Synced, end it there and start the service again",
        ] {
            assert!(why.contains(words), "{why}");
        }
    });
}

#[test]
fn it_cannot_found_a_cluster() {
    run(1, PATIENT, |world| {
        let witness = world.open_witness(W, true);
        for url in ["gcomm://", &World::url()] {
            let founding = url != "gcomm://";
            let refused = witness.connect("toys", url, "", founding);
            assert!(
                matches!(refused, Err(ConnectError::NothingToFound)),
                "{refused:?}"
            );
        }
        assert_eq!(witness.phase(), Phase::Closed);
        let (outcome, _) = world.db(1).node().sync_wait(Duration::from_secs(5));
        assert_eq!(outcome, Outcome::Ok);
    });
}
