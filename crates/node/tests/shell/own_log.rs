//! A node that starts again goes on with its own log as long as that counts.

use std::time::Duration;

use dromon_node::{AskError, Phase, Position};

use crate::chunks;
use crate::listed::{go_on_without, waits};
use crate::load::Load;
use crate::membership::begin_join;
use crate::net::lock;
use crate::toy::holds::Point;
use crate::toy::{Disk, row};
use crate::world::{World, addrs, run};

/// In a state file: no data that can be used.
const NIL: &str = "00000000-0000-0000-0000-000000000000";
/// Nobody is evicted within these tests.
const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

#[test]
fn it_keeps_its_log_while_the_others_count_it() {
    run(3, PATIENT, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        load.go_on(world, 10);
        let was = world.net.log_id(&World::addr(3));
        world.crash(3);
        load.go_on(world, 10);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(world.net.log_id(&World::addr(3)), was, "the same log");
        world.voters(3);
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// It counts as long as nobody knows that it does not.
#[test]
fn a_log_that_cannot_be_looked_into_is_not_erased() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let was = world.net.log_id(&World::addr(3));
        world.crash(3);
        let again = world.open_again(3);
        let dir = world.data_dir(3);
        world.net.shut_log(&dir, true);
        let refused = again.connect(&World::url(), false);
        let said = refused.expect_err("it may count").to_string();
        assert!(said.contains("Too many open files"), "{said}");
        world.net.shut_log(&dir, false);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(world.net.log_id(&World::addr(3)), was, "the same log");
        world.voters(3);
    });
}

#[test]
fn what_only_it_and_the_next_to_die_have_is_not_lost() {
    run(3, PATIENT, |world| {
        let (one, two) = (world.db(1), world.db(2));
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        // A majority without 3 acknowledges; 2 restarts; then 1 is gone.
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("one of the two leads", || world.leader(&one) != 3);
        for n in 10..40 {
            assert!(one.set(row(n), 5).is_committed());
        }
        let was = world.net.log_id(&two.addr);
        world.crash(2);
        let again = world.open_again(2);
        let joins = {
            let again = again.clone();
            std::thread::spawn(move || again.connect(&World::url(), false))
        };
        world.until("it runs again", || again.stat("dromon_log_last") != "0");
        world.crash(1);
        world.net.heal();
        joins.join().expect("no panic").expect("3 is there");
        assert_eq!(world.net.log_id(&two.addr), was, "the log that has them");
        world.synced(&again);
        assert!(again.set(row(2), 2).is_committed());
        for db in [again, world.db(3)] {
            for n in 10..40 {
                world.until("the rows are there", || db.read(row(n)) == 5);
            }
        }
    });
}

#[test]
fn it_gives_its_log_up_once_the_others_have_gone_on_without_it() {
    run(3, QUICK, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        let was = world.net.log_id(&World::addr(3));
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        // The view comes first, then the log's members follow it.
        world.voters(2);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_ne!(world.net.log_id(&World::addr(3)), was, "a new log");
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// The log, that is: an older one was put back beside the database, say.
#[test]
fn who_founds_on_a_log_that_has_less_founds_without_it() {
    run(1, QUICK, |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        let older = world.copy_log(1);
        assert!(one.set(row(1), 2).is_committed());
        world.settle();
        one.disconnect();
        world.put_log(1, older);
        let again = world.open(1, one.disk(), one.position());
        again.connect("gcomm://", true).expect("it founds");
        world.synced(&again);
        assert!(world.report.said("the own log is given up"));
        assert_eq!(again.read(row(1)), 2);
        assert!(again.set(row(1), 3).is_committed());
    });
}

/// It may name one that all others were once started with, or itself by another name.
#[test]
fn who_is_not_counted_any_more_comes_back_though_its_list_names_nobody_who_is_there() {
    run(3, QUICK, |world| {
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.voters(2);
        assert!(world.db(1).set(row(1), 1).is_committed());
        let again = world.open_again(3);
        let list = format!("gcomm://{}", World::addr(9));
        again.connect(&list, false).expect("its log names two");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 1);
    });
}

/// It waited for them with its own log, as they were not there yet when it started.
#[test]
fn who_waits_for_members_that_were_replaced_finds_those_that_are_listed() {
    run(3, QUICK, |world| {
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.voters(2);
        for n in [4, 5] {
            world.join(n);
        }
        for n in [1, 2] {
            world.db(n).disconnect();
        }
        assert!(world.db(4).set(row(1), 1).is_committed());
        let again = world.open_again(3);
        let others = [4, 5].map(World::addr);
        world.net.cut(std::slice::from_ref(&again.addr), &others);
        let connecting = {
            let (again, list) = (
                again.clone(),
                format!("gcomm://{},{}", others[0], others[1]),
            );
            std::thread::spawn(move || again.connect(&list, false))
        };
        world.until("it waits for a majority", || {
            world
                .report
                .said("still waiting for a majority of the logs")
        });
        world.net.heal();
        let joined = connecting.join().expect("no panic");
        joined.expect("two are there");
        world.until("it has what they have", || again.read(row(1)) == 1);
        world.until("it is one of three", || world.db(4).size() == 3);
    });
}

/// Others went on without the only one that votes by its log; that names one that was about to join it, and is gone.
#[test]
fn who_alone_votes_by_its_log_does_not_go_on_beside_one_listed_that_went_on_without_it() {
    run(3, QUICK, |world| {
        lock(&world.own_options).insert(1, "pc.wait_prim_timeout=PT8S");
        let one = world.db(1);
        world.db(3).disconnect();
        world.voters(2);
        world.db(2).disconnect();
        world.voters(1);
        one.holds.close(Point::DonorCopies);
        begin_join(world, 4, "n1");
        world.until("it is amid its copy", || {
            one.holds.waiting(Point::DonorCopies) == 1 && one.size() == 2
        });
        assert_eq!(one.stat("dromon_voters"), "1");
        world.crash(4);
        world.crash(1);
        go_on_without(world);
        let (two, joins) = waits(world, 2);
        let one = world.open_again(1);
        let why = one.connect(&World::url(), false).expect_err("two has more");
        assert!(why.contains("failed to reach primary view"), "{why}");
        let three = world.open_again(3);
        three.connect(&World::url(), false).expect("they are two");
        joins.join().expect("no panic").expect("they are two");
        one.connect(&World::url(), false).expect("two are there");
        for db in [&one, &two, &three] {
            world.synced(db);
        }
        assert_eq!(one.read(row(8)), 7);
        world.settle();
    });
}

/// Another secret, or name of the cluster: those that it waits for run.
#[test]
fn who_waits_for_members_that_do_not_let_it_in_says_why() {
    run(3, QUICK, |world| {
        for n in 1..=3 {
            world.crash(n);
        }
        let again = world.open_again(3);
        world.net.speak_strangely(&World::addr(1), AskError::Barred);
        let connecting = {
            let again = again.clone();
            std::thread::spawn(move || again.connect(&World::url(), false))
        };
        // They come in the order of their logs' numbers, which are drawn.
        let missing = [(1, 2), (2, 1)]
            .map(|(a, b)| format!("missing nodes: 10.0.0.{a}:4567, 10.0.0.{b}:4567; if all were"));
        let shows = |db: &str| {
            let why = format!(". Not all of them are missing: {db}");
            let named = missing.iter().any(|words| world.report.said(words));
            named && world.report.said(&why)
        };
        world.until("it says which one is there", || shows("10.0.0.1:4567"));
        again.disconnect();
        connecting
            .join()
            .expect("no panic")
            .expect_err("told to leave");
    });
}

/// Node `n` dies with a state file that says: no data that can be used.
fn crash_without_data(world: &World, n: usize) {
    world.crash(n);
    world.edit_state_file(n, "uuid", NIL);
}

#[test]
fn without_data_it_keeps_its_log_while_the_others_count_it() {
    run(3, PATIENT, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        load.go_on(world, 10);
        let was = world.net.log_id(&World::addr(3));
        crash_without_data(world, 3);
        load.go_on(world, 10);
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(world.net.log_id(&World::addr(3)), was, "the same log");
        assert!(world.report.said("the data is to be copied anew"));
        world.voters(3);
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn without_data_its_log_still_makes_a_majority() {
    run(3, PATIENT, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        load.go_on(world, 10);
        // A statement that fails here and not elsewhere, and power is gone just then.
        world.crash(2);
        crash_without_data(world, 3);
        let one = world.db(1);
        world.until("the one left has no majority", || !one.ready());
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert!(again.set(row(77), 7).is_committed());
        let two = world.open_again(2);
        two.connect(&World::url(), false).expect("two are there");
        world.synced(&two);
        world.voters(3);
        load.verify(world);
    });
}

#[test]
fn a_database_older_than_its_log_takes_what_the_others_have() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        for n in 0..20 {
            assert!(one.set(row(n), 3).is_committed());
        }
        world.settle();
        // A backup from before the node was a member.
        let old = Disk {
            position: Position {
                seqno: 1,
                ..one.disk().position
            },
            ..Disk::empty()
        };
        let was = world.net.log_id(&World::addr(3));
        world.crash(3);
        let position = old.position;
        let again = world.open(3, old, position);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_ne!(
            world.net.log_id(&World::addr(3)),
            was,
            "its own began too late"
        );
        world.settle();
    });
}

/// Its log is needed, and its database is older than that: what is said must lead out.
#[test]
fn a_log_that_a_majority_needs_votes_though_its_database_is_too_old() {
    run(3, QUICK, |world| {
        for n in 0..20 {
            assert!(world.db(1).set(row(n), 3).is_committed());
        }
        let old = Disk {
            position: Position {
                seqno: 1,
                ..world.settle()
            },
            ..Disk::empty()
        };
        // 1 is gone for good.
        for n in 1..=3 {
            world.crash(n);
        }
        let whole = world.open_again(2);
        let waits = {
            let whole = whole.clone();
            std::thread::spawn(move || whole.connect(&World::url(), false))
        };
        world.until("it waits", || {
            world.report.times("n2", "waits for a majority") > 0
        });
        let backup = world.open(3, old.clone(), old.position);
        let why = backup.connect(&World::url(), false);
        let why = why.expect_err("it begins too late");
        let asked = "set uuid to 00000000-0000-0000-0000-000000000000 and safe_to_bootstrap to 0 in grastate.dat and start it again";
        for words in ["If they wait for this one's log", asked] {
            assert!(why.contains(words), "{why}");
        }
        world.crash(3);
        for (key, value) in [("uuid", NIL), ("safe_to_bootstrap", "0")] {
            world.edit_state_file(3, key, value);
        }
        let again = world.open(3, old.clone(), old.position);
        again.connect(&World::url(), false).expect("two of three");
        waits.join().expect("no panic").expect("two of three");
        world.synced(&again);
        world.until("it is copied", || again.read(row(19)) == 3);
    });
}

#[test]
fn whoever_started_it_hears_that_it_waits_and_that_it_catches_up() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in [1, 2, 3] {
            world.crash(n);
        }
        let told = |who: &str| world.report.times(who, "still starting: ");
        let before = told("n1");
        let over = || world.report.times("n1", "stands: Synced");
        let ups = over();
        let one = world.open_again(1);
        let joins = {
            let one = one.clone();
            std::thread::spawn(move || one.connect(&World::url(), false))
        };
        // Again and again, as it waits without limit.
        world.until("it is told three times", || told("n1") >= before + 3);
        let waits = "still starting: waiting for a majority of the logs";
        assert!(world.report.times("n1", waits) > 0);
        let two = world.open_again(2);
        two.connect(&World::url(), false).expect("one is there");
        joins.join().expect("no panic").expect("two is there");
        world.synced(&one);
        world.synced(&two);
        // One tick notices that it is up.
        std::thread::sleep(Duration::from_secs(1));
        let up = (told("n1"), told("n2"));
        // Twice, if a tick saw it give something to the other one in between.
        let synced = over();
        assert!(synced > ups, "it hears that its start is over");
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!((told("n1"), told("n2")), up, "nobody waits any more");
        assert_eq!(over(), synced, "nothing has changed since");
    });
}

/// What keeps one storage engine from telling its position (a full disk) keeps all of them.
#[test]
fn all_engines_that_say_nothing_cost_no_data() {
    run(3, PATIENT, |world| {
        for n in 10..20 {
            assert!(world.db(1).set(row(n), 5).is_committed());
        }
        world.settle();
        let start = |disks: Vec<Disk>| {
            let all: Vec<_> = (1..=3)
                .zip(disks)
                .map(|(n, disk)| world.open(n, disk, Position::UNDEFINED))
                .collect();
            std::thread::scope(|s| {
                let joins: Vec<_> = all
                    .iter()
                    .map(|db| s.spawn(|| db.connect(&World::url(), false)))
                    .collect();
                for join in joins {
                    join.join().expect("no panic").expect("three are there");
                }
            });
            all
        };
        (1..=3).for_each(|n| world.crash(n));
        let before: Vec<_> = (1..=3).map(|n| world.state_file(n)).collect();
        start((1..=3).map(|n| world.crashed_disk(n)).collect());
        world.until("each says that nobody can give it a copy", || {
            (1..=3).all(|n| {
                world
                    .report
                    .times(&format!("n{n}"), "no member can be donor now")
                    > 0
            })
        });
        (1..=3).for_each(|n| world.crash(n));
        let warning = "Warning: the storage engine did not tell its position";
        assert!((1..=3).all(|n| world.report.times(&format!("n{n}"), warning) == 1));
        for (n, before) in (1..=3).zip(before) {
            assert_eq!(world.state_file(n), before, "node {n}");
        }
        let disks: Vec<_> = (1..=3).map(|n| world.crashed_disk(n)).collect();
        for (n, disk) in (1..=3).zip(&disks) {
            world.net.tell(&World::addr(n), disk.position);
        }
        for db in start(disks) {
            world.synced(&db);
            for n in 10..20 {
                assert_eq!(db.read(row(n)), 5);
            }
        }
    });
}

/// A donor is there: then nobody goes by what the engine may have.
#[test]
fn an_engine_that_says_nothing_gets_a_copy() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        world.crash(3);
        let copies = || world.db(1).donations() + world.db(2).donations();
        let before = copies();
        let disk = world.crashed_disk(3);
        let again = world.open(3, disk, Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(copies(), before + 1);
        world.settle();
    });
}

/// A member that it is told not to ask is no donor.
#[test]
fn an_engine_that_says_nothing_costs_no_data_for_a_donor_that_is_not_asked() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        world.crash(3);
        let before = world.state_file(3);
        let copies = || world.db(1).donations() + world.db(2).donations();
        let given = copies();
        let again = world.open(3, world.crashed_disk(3), Position::UNDEFINED);
        let joins = again.connect_from(&World::url(), "nobody", false);
        joins.expect("two are there");
        world.until("it says that nobody gives", || in_vain(world) > 0);
        again.node().transfer_received(Position::UNDEFINED, -110);
        let ended = "the state transfer failed here (error -110); the data is untouched";
        world.until("its script has given up", || world.report.said(ended));
        world.crash(3);
        assert_eq!(world.state_file(3), before);
        let disk = world.crashed_disk(3);
        world.net.tell(&World::addr(3), disk.position);
        let again = world.open(3, disk, Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!((again.read(row(1)), copies()), (5, given));
        world.settle();
    });
}

/// The server's log lies on a disk that hangs just then.
#[test]
fn who_waits_for_a_donor_tells_its_status_also_while_its_log_takes_nothing() {
    run(3, PATIENT, |world| {
        world.crash(3);
        let again = world.open(3, world.crashed_disk(3), Position::UNDEFINED);
        world.report.hold("no member can be donor now");
        let joins = again.connect_from(&World::url(), "nobody", false);
        joins.expect("two are there");
        world.until("it is about to say so", || in_vain(world) > 0);
        let (tell, told) = std::sync::mpsc::channel();
        let asked = again.clone();
        std::thread::spawn(move || tell.send(asked.count("local_state")));
        let told = told.recv_timeout(Duration::from_secs(20));
        world.report.let_go();
        assert!(told.is_ok(), "it does not answer");
        again.node().transfer_received(Position::UNDEFINED, -110);
        let ended = "the state transfer failed here (error -110); the data is untouched";
        world.until("its script has given up", || world.report.said(ended));
        world.crash(3);
    });
}

fn in_vain(world: &World) -> usize {
    world.report.times("n3", "no member can be donor now")
}

/// Nor one that gives nothing now: the source of a large transaction.
#[test]
fn an_engine_that_says_nothing_costs_no_data_for_a_donor_that_is_busy() {
    run(3, chunks::PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        world.crash(3);
        let before = world.state_file(3);
        let given = world.db(2).donations();
        let client = chunks::begin(world, chunks::large(&world.db(2), 1, 7));
        let again = world.open(3, world.crashed_disk(3), Position::UNDEFINED);
        let joins = again.connect_from(&World::url(), "n2", false);
        joins.expect("two are there");
        world.until("it says that nobody gives", || in_vain(world) > 0);
        assert_eq!(world.state_file(3), before);
        chunks::go_on(world);
        assert!(chunks::end(client).is_committed());
        world.synced(&again);
        assert_eq!(world.db(2).donations(), given + 1);
        assert_eq!(again.read(row(1)), 7);
        world.settle();
    });
}

/// A machine was cloned: the log tells the clone that it is a member, and that one runs.
#[test]
fn who_is_the_copy_of_a_member_that_runs_does_not_wait_for_its_end() {
    let patient = "evs.suspect_timeout=PT60S;evs.inactive_timeout=PT60S";
    run(3, patient, |world| {
        world.voters(3);
        world.crash(2);
        let addr = World::addr(2);
        world.net.displace(&addr, Duration::from_secs(3600));
        let copy = world.open_again(2);
        let why = copy.connect(&World::url(), false);
        let why = why.expect_err("it takes nobody's place");
        assert!(
            why.starts_with("another runs. It has been so for 3600 s"),
            "{why}"
        );
        // Its former process may be heard for some seconds.
        world.crash(2);
        world.net.displace(&addr, Duration::from_secs(5));
        let again = world.open_again(2);
        let starts = again.clone();
        let starts = std::thread::spawn(move || starts.connect(&World::url(), false));
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(again.node().phase(), Phase::Joining);
        world.net.heal();
        let started = starts.join().expect("no panic");
        started.expect("it is the only one now");
        world.synced(&again);
        world.settle();
    });
}
