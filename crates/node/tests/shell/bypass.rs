//! Who comes back by the log hears a donor's word first, if its database wants
//! one (`wsrep_gtid_mode`): a transfer that leaves its tables alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dromon_node::{Outcome, Phase, Position};

use crate::load::Load;
use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Copying, Db, row};
use crate::world::{World, addrs, run};

/// Nobody is taken for dead because this machine is busy.
const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";

fn loaded(world: &World) -> Load {
    world.words.store(true, Ordering::Relaxed);
    let mut load = Load::new(true);
    for db in world.members() {
        load.add(&db, 1, 1);
    }
    load.go_on(world, 10);
    load
}

/// The server of node `n` stops and a new one begins to start.
fn restart(world: &World, n: usize) -> Arc<Db> {
    world.db(n).disconnect();
    world.open(n, world.db(n).disk(), Position::UNDEFINED)
}

fn given(world: &World, of: &[usize]) -> (usize, usize) {
    let dbs = of.iter().map(|n| world.db(*n));
    dbs.fold((0, 0), |(d, w), db| (d + db.donations(), w + db.words()))
}

#[test]
fn a_restarted_server_hears_a_donor_and_takes_the_rest_from_the_log() {
    run(3, "", |world| {
        let mut load = loaded(world);
        let (copies, _) = given(world, &[1, 2]);
        let again = restart(world, 3);
        load.go_on(world, 20);
        let from = again.position().seqno;
        again
            .connect_from(&World::url(), "nobody,n2", false)
            .expect("two are there");
        world.synced(&again);
        assert_eq!(again.word(), 2, "the wanted donor's");
        assert!(again.position().seqno > from + 20);
        assert_eq!(given(world, &[1, 2]), (copies, 1), "no copy was given");
        world.until("the donor is synced again", || {
            world.db(2).stat("local_state_comment") == "Synced"
        });

        // The same process: it has not forgotten.
        again.disconnect();
        load.go_on(world, 10);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.word(), 2);
        assert_eq!(given(world, &[1, 2]), (copies, 1));
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn a_killed_server_whose_log_still_counts_hears_a_donor() {
    run(3, PATIENT, |world| {
        world.words.store(true, Ordering::Relaxed);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let leader = world.leader(&world.db(1));
        let victim = if leader == 3 { 2 } else { 3 };
        world.crash(victim);
        // Nothing happens meanwhile: the view in which it is back is all it lacks.
        let disk = world.crashed_disk(victim);
        let position = disk.position;
        let again = world.open(victim, disk, position);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert!([1, 5 - victim].contains(&again.word()), "{}", again.word());
        assert!(again.set(row(2), 2).is_committed());
        world.settle();
    });
}

#[test]
fn after_an_outage_all_have_the_word_of_one() {
    run(3, PATIENT, |world| {
        let mut load = loaded(world);
        load.verify(world);
        for n in 1..=3 {
            world.crash(n);
        }
        let dbs: Vec<_> = (1..=3)
            .map(|n| {
                let disk = world.crashed_disk(n);
                let position = disk.position;
                world.open(n, disk, position)
            })
            .collect();
        std::thread::scope(|scope| {
            for db in &dbs {
                scope.spawn(|| db.connect(&World::url(), false).expect("all are there"));
            }
        });
        for db in &dbs {
            world.synced(db);
        }
        let words: Vec<_> = dbs.iter().map(|db| db.word()).collect();
        assert!(words.windows(2).all(|w| w[0] == w[1]), "{words:?}");
        world.settle();
    });
}

#[test]
fn a_donor_that_fails_is_followed_by_another() {
    run(3, "", |world| {
        let mut load = loaded(world);
        world.db(1).set_copying(Copying::DonorFails);
        let again = restart(world, 3);
        again
            .connect_from(&World::url(), "n1", false)
            .expect("two are there");
        world.synced(&again);
        assert_eq!(again.word(), 2);
        assert_eq!((world.db(1).words(), world.db(2).words()), (1, 1));
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn a_donor_may_leave_while_it_tells() {
    run(3, "", |world| {
        let mut load = loaded(world);
        let donor = world.db(1);
        donor.holds.close(Point::DonorPaused);
        let again = restart(world, 3);
        again
            .connect_from(&World::url(), "n1", false)
            .expect("two are there");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        let leaves = {
            let donor = donor.clone();
            std::thread::spawn(move || donor.disconnect())
        };
        world.synced(&again);
        assert_eq!(again.word(), 2);
        donor.holds.open(Point::DonorPaused);
        leaves.join().expect("no panic");
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn a_script_that_fails_costs_a_start_and_no_data() {
    run(3, "", |world| {
        let mut load = loaded(world);
        let (copies, _) = given(world, &[1, 2]);
        let fails = restart(world, 3);
        fails.set_copying(Copying::JoinerFails);
        fails.connect(&World::url(), false).expect("two are there");
        world.until("it gives up", || fails.returned().contains(&Outcome::Fatal));
        assert_eq!(fails.gave_up(), 1);
        fails.disconnect();
        // Its process has ended: the engine is asked where it stands.
        let at = fails.position();
        let again = world.open(3, fails.disk(), at);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert!([1, 2].contains(&again.word()));
        assert_eq!(given(world, &[1, 2]).0, copies, "no copy was needed");
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn who_is_alone_waits_for_nobody() {
    run(1, "", |world| {
        world.words.store(true, Ordering::Relaxed);
        assert!(world.db(1).set(row(1), 1).is_committed());
        let again = restart(world, 1);
        again.connect("gcomm://", true).expect("it was the last");
        world.synced(&again);
        assert_eq!(again.word(), 1);
        assert_eq!(again.read(row(1)), 1);
    });
}

/// n3 starts again, waits for the word of n2, and is removed by the others meanwhile.
fn removed_while_it_waits(world: &World) -> Arc<Db> {
    let again = restart(world, 3);
    world.db(2).holds.close(Point::DonorPaused);
    again
        .connect_from(&World::url(), "n2", false)
        .expect("two are there");
    world.until("the donor is at work", || {
        world.db(2).holds.waiting(Point::DonorPaused) == 1
    });
    world.until("the other sees it", || world.db(1).size() == 3);
    world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
    world.until("it is removed", || world.db(1).size() == 2);
    again
}

#[test]
fn who_is_removed_while_it_waits_for_a_word_gives_up() {
    run(3, QUICK, |world| {
        let mut load = loaded(world);
        let copies = given(world, &[1, 2]).0;
        let again = removed_while_it_waits(world);
        world.net.heal();
        world.until("it gives up", || again.returned().contains(&Outcome::Fatal));
        assert_eq!(again.gave_up(), 1);
        let kept = "nothing of theirs is lost; the data is untouched";
        assert_eq!(world.report.times("n3", kept), 1);
        world.db(2).holds.open(Point::DonorPaused);
        world.synced(&world.db(2));
        again.disconnect();
        // As after a crash: the server says where its engine stands.
        let (disk, position) = (again.disk(), again.position());
        let again = world.open(3, disk, position);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(given(world, &[1, 2]).0, copies, "by the log");
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn who_is_removed_and_has_its_word_returns() {
    run(3, QUICK, |world| {
        let mut load = loaded(world);
        let copies = given(world, &[1, 2]).0;
        let again = removed_while_it_waits(world);
        world.db(2).holds.open(Point::DonorPaused);
        world.until("the word is there", || again.word() == 2);
        world.until("it has its data", || {
            again.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        world.synced(&again);
        assert_eq!((again.gave_up(), again.word()), (0, 2));
        assert_eq!(given(world, &[1, 2]).0, copies, "by the log");
        load.go_on(world, 10);
        load.verify(world);
    });
}
