//! A node dies around a statement in total order isolation, and its database
//! comes back with the effect but without the position.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::{Phase, Position};

use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, Key, row};
use crate::world::{World, addrs, run};

/// Nobody is evicted within these tests.
const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
/// Not the same if done twice.
const ADD: Ddl = Ddl::Add { table: 0, n: 100 };

/// What a crash leaves when the position was not flushed.
fn a_place_behind(mut disk: Disk) -> Disk {
    disk.position.seqno -= 1;
    disk
}

fn start(world: &World, n: usize, disk: Disk) -> Arc<Db> {
    let position = disk.position;
    world.open(n, disk, position)
}

fn connects(db: &Arc<Db>) -> JoinHandle<()> {
    let db = db.clone();
    std::thread::spawn(move || db.connect(&World::url(), false).expect("others come"))
}

fn has(world: &World, db: &Arc<Db>, value: i64) {
    world.until(&format!("{} has {value}", db.name), || {
        db.read(row(1)) == value
    });
}

fn ddl(db: &Arc<Db>) -> JoinHandle<End> {
    let db = db.clone();
    std::thread::spawn(move || db.ddl(&ADD))
}

#[test]
fn one_that_was_over_is_not_run_again() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        assert!(world.db(1).ddl(&ADD).is_committed());
        let three = world.db(3);
        has(world, &three, 105);
        world.until("it is over there", || {
            three.position() == world.db(1).position()
        });
        world.settle();
        let (log, copies) = (world.net.log_id(&three.addr), world.db(1).donations());
        world.crash(3);
        let again = start(world, 3, a_place_behind(world.crashed_disk(3)));
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 105, "once");
        assert_eq!(world.net.log_id(&again.addr), log);
        assert_eq!(world.db(1).donations() + world.db(2).donations(), copies);
        assert!(again.set(row(2), 1).is_committed());
        let one = world.db(1);
        world.until("it is everywhere", || one.read(row(2)) == 1);
    });
}

/// No position comes of the place of a fragment that is given up, and one may lie right before a statement.
#[test]
fn one_behind_what_moves_no_position_is_not_run_again() {
    behind_what_moves_no_position(false);
}

/// Nor if the marks were written over by another, right behind it.
#[test]
fn nor_if_another_one_follows() {
    behind_what_moves_no_position(true);
}

fn behind_what_moves_no_position(another: bool) {
    run(3, PATIENT, move |world| {
        let (one, three) = (world.db(1), world.db(3));
        let other = Key { table: 1, row: 1 };
        assert!(one.set(other, 5).is_committed());
        world.settle();
        let (log, copies) = (world.net.log_id(&three.addr), one.donations());
        three.holds.close(Point::ApplyStart);
        let mut t = three.begin();
        t.lock(row(7)).expect("a free row");
        t.put(row(2), 1).expect("a free row");
        let first = one.set(row(7), 5).seqno();
        world.until("the applier is held", || {
            three.holds.waiting(Point::ApplyStart) == 1
        });
        let trx = t.trx().expect("it wrote");
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("it has its place", || trx.lock().seqno == first + 1);
        let end = one.ddl(&Ddl::Add { table: 1, n: 100 });
        assert_eq!(end.seqno(), first + 2, "right behind it");
        three.holds.open(Point::ApplyStart);
        let end = fragment.join().expect("no panic");
        assert_eq!(end, Err(End::Deadlock), "given up");
        world.until("it has run there", || three.read(other) == 105);
        if another {
            // Nothing is in that table: the same if done twice.
            let end = one.ddl(&Ddl::Add { table: 2, n: 100 });
            world.until("it has run there, too", || {
                three.position().seqno >= end.seqno()
            });
        }
        world.settle();
        world.crash(3);
        let mut disk = world.crashed_disk(3);
        disk.position.seqno = first;
        let again = start(world, 3, disk);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert!(again.set(row(3), 1).is_committed());
        world.until("it is everywhere", || one.read(row(3)) == 1);
        assert_eq!(again.read(other), 105, "once");
        assert_eq!(world.net.log_id(&again.addr), log);
        assert_eq!(one.donations() + world.db(2).donations(), copies);
    });
}

/// Its mark says that it need not be run again; files that the server changed for it, and did not sync, must be
/// there by then.
#[test]
fn one_whose_files_are_not_on_the_disk_is_not_over() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        let syncs = |n: usize| world.net.syncs(&World::addr(n));
        let before = [1, 2, 3].map(syncs);
        let copies = world.db(1).donations() + world.db(2).donations();
        world.net.fail_syncs(&World::addr(3));
        assert!(world.db(1).ddl(&ADD).is_committed());
        let three = world.db(3);
        has(world, &three, 105);
        world.until("it is over there", || {
            three.position() == world.db(1).position()
        });
        world.until("all have synced", || {
            (1..=3).all(|n| syncs(n) > before[n - 1])
        });
        let says = "could not be brought to the disk";
        world.until("n3 says so", || world.report.times("n3", says) == 1);
        world.crash(3);
        world.net.let_syncs(&World::addr(3));
        let again = start(world, 3, a_place_behind(world.crashed_disk(3)));
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 105, "as the others have it");
        let now = world.db(1).donations() + world.db(2).donations();
        assert_eq!(now, copies + 1, "nobody can tell without a copy");
    });
}

/// Without its own leftovers it would not have failed.
#[test]
fn one_that_fails_because_it_has_run_already_counts_as_done() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        assert!(one.ddl(&ADD).is_committed());
        assert!(one.ddl(&Ddl::Create { key: row(7) }).is_committed());
        world.settle();
        let copies = one.donations() + world.db(2).donations();
        world.crash(3);
        let disk = a_place_behind(a_place_behind(world.crashed_disk(3)));
        let again = start(world, 3, disk);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert!(world.report.said("it counts as done"));
        assert_eq!(again.read(row(7)), 1);
        assert_eq!(one.donations() + world.db(2).donations(), copies);
        // From now on an error is one, and all have it.
        assert!(one.ddl(&Ddl::Create { key: row(7) }).is_committed());
        world.until("it is over there", || again.position() == one.position());
        assert_eq!(again.node().phase(), Phase::Joined);
    });
}

#[test]
fn one_that_had_only_begun_costs_a_copy_and_no_vote() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        let three = world.db(3);
        let copies = world.db(1).donations() + world.db(2).donations();
        let log = world.net.log_id(&three.addr);
        three.holds.close(Point::DdlRan);
        assert!(world.db(1).ddl(&ADD).is_committed());
        world.until("it has run there", || {
            three.holds.waiting(Point::DdlRan) == 1
        });
        world.crash(3);
        let again = start(world, 3, a_place_behind(world.crashed_disk(3)));
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 105, "as the others have it");
        let now = world.db(1).donations() + world.db(2).donations();
        assert_eq!(now, copies + 1, "nobody can tell without a copy");
        assert_eq!(
            world.net.log_id(&again.addr),
            log,
            "its log counts all the while"
        );
        world.voters(3);
        assert!(again.ddl(&ADD).is_committed(), "and it goes on");
        has(world, &world.db(2), 205);
    });
}

/// It is over on n1 alone; n2 and n3 have run it.
fn all_die_amid_a_statement(world: &World) {
    assert!(world.db(1).set(row(1), 5).is_committed());
    world.settle();
    for n in [2, 3] {
        world.db(n).holds.close(Point::DdlRan);
    }
    assert!(world.db(1).ddl(&ADD).is_committed(), "acknowledged");
    for n in [2, 3] {
        let db = world.db(n);
        world.until("it has run there", || db.holds.waiting(Point::DdlRan) == 1);
    }
    (1..=3).for_each(|n| world.crash(n));
}

#[test]
fn of_all_that_died_the_one_that_knows_gives_the_copies() {
    run(3, PATIENT, |world| {
        all_die_amid_a_statement(world);
        let again = [2, 3, 1].map(|n| {
            let db = start(world, n, a_place_behind(world.crashed_disk(n)));
            let joins = connects(&db);
            // The one that knows comes last.
            std::thread::sleep(Duration::from_millis(700));
            (db, joins)
        });
        for (db, joins) in again {
            joins.join().expect("it is in");
            world.synced(&db);
            assert_eq!(db.read(row(1)), 105, "once on {}", db.name);
        }
        let copies: usize = (1..=3).map(|n| world.db(n).donations()).sum();
        assert_eq!(copies, 2);
    });
}

/// They were back first, so one of them leads, while the copy takes its time.
#[test]
fn who_leads_and_waits_for_a_copy_gives_leadership_to_who_has_the_data() {
    run(3, PATIENT, |world| {
        all_die_amid_a_statement(world);
        let begin = |n| {
            let db = start(world, n, a_place_behind(world.crashed_disk(n)));
            if n == 1 {
                db.holds.close(Point::DonorCopies);
            }
            let joins = connects(&db);
            (db, joins)
        };
        let [two, three] = [2, 3].map(begin);
        world.until("one of them leads", || world.leader(&two.0) != 1);
        let again = [two, three, begin(1)];
        let one = &again[2].0;
        world.until("it gives a copy", || {
            one.holds.waiting(Point::DonorCopies) == 1
        });
        world.until("it leads", || world.leader(one) == 1);
        assert!(world.report.said(
            "this node leads and waits for a copy of the data; handing leadership over to n1"
        ));
        one.holds.open(Point::DonorCopies);
        for (db, joins) in again {
            joins.join().expect("it is in");
            world.synced(&db);
            assert_eq!(db.read(row(1)), 105, "once on {}", db.name);
        }
    });
}

/// What their databases lack lies in their logs.
#[test]
fn who_leads_while_its_server_starts_stays_the_leader() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        (1..=3).for_each(|n| world.crash(n));
        let again = [1, 2, 3].map(|n| {
            let db = start(world, n, a_place_behind(world.crashed_disk(n)));
            db.holds.close(Point::Viewing);
            let joins = connects(&db);
            (db, joins)
        });
        for (db, _) in &again {
            world.until("its server is told", || {
                db.holds.waiting(Point::Viewing) == 1
            });
        }
        std::thread::sleep(Duration::from_secs(2));
        for (db, _) in &again {
            db.holds.open(Point::Viewing);
        }
        for (db, joins) in again {
            joins.join().expect("it is in");
            world.synced(&db);
        }
        assert!(!world.report.said("handing leadership over"));
    });
}

#[test]
fn if_nobody_knows_one_runs_it_again_and_the_others_copy() {
    run(3, PATIENT, |world| {
        assert!(world.db(1).set(row(1), 5).is_committed());
        world.settle();
        for n in 1..=3 {
            world.db(n).holds.close(Point::DdlRan);
        }
        let origin = ddl(&world.db(1));
        for n in 1..=3 {
            let db = world.db(n);
            world.until("it has run there", || db.holds.waiting(Point::DdlRan) == 1);
        }
        (1..=3).for_each(|n| world.crash(n));
        let again = [1, 2, 3].map(|n| {
            let mut disk = a_place_behind(world.crashed_disk(n));
            if n == 2 {
                // Its engine has undone it.
                disk.rows.insert(row(1), 5);
            }
            let db = start(world, n, disk);
            let joins = connects(&db);
            (db, joins)
        });
        let mut values = Vec::new();
        for (db, joins) in again {
            joins.join().expect("it is in");
            world.synced(&db);
            values.push(db.read(row(1)));
        }
        assert!(values[0] == 105 || values[0] == 205, "{values:?}");
        assert!(values.iter().all(|v| *v == values[0]), "alike: {values:?}");
        let copies: usize = (1..=3).map(|n| world.db(n).donations()).sum();
        assert_eq!(copies, 2);
        // It was never answered; its process is gone.
        drop(origin);
    });
}

/// The members have voted on it. Whose position is behind it hears so once more, and has failed there like them.
fn failed_everywhere(all: bool, behind: usize) {
    run(3, PATIENT, move |world| {
        let one = world.db(1);
        for _ in 0..3 {
            assert!(one.ddl(&Ddl::Create { key: row(7) }).is_committed());
        }
        world.settle();
        let last = one.position().seqno;
        world.until("the members have decided", || {
            world.report.said(&format!("Vote on seqno {last} decided"))
        });
        let copies = one.donations() + world.db(2).donations();
        let back: Vec<usize> = (if all { 1 } else { 3 }..=3).collect();
        back.iter().for_each(|n| world.crash(*n));
        let again: Vec<_> = back
            .iter()
            .map(|&n| {
                let disk = (0..behind).fold(world.crashed_disk(n), |d, _| a_place_behind(d));
                let db = start(world, n, disk);
                let joins = connects(&db);
                (db, joins)
            })
            .collect();
        for (db, joins) in again {
            joins.join().expect("it is in");
            world.synced(&db);
        }
        for n in 1..=3 {
            assert!(world.db(n).set(row(n as u32), 1).is_committed());
        }
        let last = world.db(3).position();
        for n in 1..=3 {
            let db = world.db(n);
            // Those who left over it would not be there.
            world.until("it has all", || db.position() == last);
            assert_eq!((db.node().phase(), db.size()), (Phase::Joined, 3));
        }
        let now = world.db(1).donations() + world.db(2).donations();
        assert_eq!(now, if all { 0 } else { copies }, "nobody needs a copy");
    });
}

#[test]
fn one_that_failed_everywhere_is_no_lost_vote_when_it_comes_again() {
    for behind in [0, 1, 2] {
        failed_everywhere(false, behind);
    }
}

#[test]
fn nor_for_all_after_an_outage() {
    for behind in [0, 1, 2] {
        failed_everywhere(true, behind);
    }
}

/// With `wsrep_gtid_mode` its place would have had a GTID.
#[test]
fn a_server_that_counts_gtids_is_told_of_a_statement_that_it_does_not_count_again() {
    for counts in [false, true] {
        run(3, PATIENT, move |world| {
            world
                .words
                .store(counts, std::sync::atomic::Ordering::Relaxed);
            assert!(world.db(1).ddl(&ADD).is_committed());
            let (one, three) = (world.db(1), world.db(3));
            world.until("it is over there", || three.position() == one.position());
            world.settle();
            world.crash(3);
            let again = start(world, 3, a_place_behind(world.crashed_disk(3)));
            again.connect(&World::url(), false).expect("two are there");
            world.synced(&again);
            let told = world.report.said("Warning: wsrep_gtid_mode is on");
            assert_eq!(told, counts);
        });
    }
}

/// The one that is left founds, in doubt about its tables: its join is the first message of its log all the same.
#[test]
fn who_is_in_doubt_and_the_only_one_left_founds() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 5).is_committed());
        world.settle();
        one.holds.close(Point::DdlRan);
        let origin = ddl(&one);
        world.until("it has run", || one.holds.waiting(Point::DdlRan) == 1);
        world.crash(3);
        world.until("the others forget it", || {
            [1, 2].map(|n| world.report.times(&format!("n{n}"), "forgetting")) == [1, 1]
        });
        world.crash(2);
        world.crash(1);
        let disk = a_place_behind(world.crashed_disk(1));
        let position = disk.position;
        world.edit_state_file(1, "safe_to_bootstrap", "1");
        let again = world.open(1, disk, position);
        again.connect("gcomm://", true).expect("it was told to");
        world.synced(&again);
        assert_eq!(again.size(), 1);
        assert!(again.set(row(2), 1).is_committed());
        drop(origin);
    });
}

/// The cluster goes on by force without a statement of which the tables of one that comes back have the effect,
/// and its position does not tell.
#[test]
fn a_statement_that_was_given_up_by_force_costs_a_copy() {
    run(3, PATIENT, |world| {
        let leader = world.leader(&world.db(1));
        let forced = if leader == 1 { 2 } else { 1 };
        let (one, two) = (world.db(forced), world.db(6 - leader - forced));
        assert!(one.set(row(1), 5).is_committed());
        world.settle();
        let copies = one.donations();
        world.net.cut(&addrs(&[one.n]), &addrs(&[two.n, leader]));
        assert!(two.ddl(&ADD).is_committed());
        has(world, &two, 105);
        world.until("it knows that it is cut off", || {
            one.node().phase() == Phase::NonPrimary
        });
        world.crash(two.n);
        world.crash(leader);
        world.net.heal();
        one.node()
            .set_options("pc.bootstrap=yes")
            .expect("nobody else is there");
        world.synced(&one);
        let again = start(world, two.n, a_place_behind(world.crashed_disk(two.n)));
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 5);
        assert_eq!(one.donations(), copies + 1);
        assert!(again.ddl(&ADD).is_committed());
        has(world, &one, 105);
        world.settle();
    });
}

/// A backup from before a statement, and rows, that all nodes have since.
fn backed_up(world: &World) -> Disk {
    let one = world.db(1);
    assert!(one.set(row(1), 5).is_committed());
    let backup = Disk {
        position: world.settle(),
        ..one.disk()
    };
    assert!(one.ddl(&ADD).is_committed());
    assert!(one.set(row(2), 1).is_committed());
    world.settle();
    backup
}

/// It stands before a statement that the mark beside it, of the database that was there, calls done.
#[test]
fn a_backup_is_not_taken_for_what_has_the_statement_behind_it() {
    run(3, PATIENT, |world| {
        let backup = backed_up(world);
        let at = backup.position;
        world.crash(3);
        world.lose_log(3);
        world.exchange_data(3);
        world.write_state_file(3, at);
        let three = start(world, 3, backup);
        three.connect(&World::url(), false).expect("two are there");
        world.synced(&three);
        has(world, &three, 105);
        assert!(world.report.said("the database's files are others"));
        world.settle();
    });
}

#[test]
fn a_backup_on_the_only_node_gets_the_statement_from_the_log() {
    run(1, PATIENT, |world| {
        let backup = backed_up(world);
        let (one, at) = (world.db(1), backup.position);
        one.disconnect();
        world.exchange_data(1);
        // The file still has the position of the stop, which is not that of this data.
        world.net.tell(&one.addr, at);
        let again = world.open(1, backup, Position::UNDEFINED);
        again.connect("gcomm://", true).expect("it is the last one");
        world.synced(&again);
        has(world, &again, 105);
        assert_eq!(again.read(row(2)), 1);
    });
}
