//! Pauses amid large transactions: what has locks on its tables is to be over first.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dromon_node::{Node, Outcome, Phase, Position};

use crate::chunks::{PATIENT, begin, commit, end, go_on, large, nothing_open};
use crate::membership::begin_join;
use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Db, End, row};
use crate::world::{World, addrs, run};

/// A pause that is under way, or over: its position, and how long it took to come to that.
fn pause(db: &Arc<Db>) -> JoinHandle<(i64, Duration)> {
    let node = db.node().clone();
    std::thread::spawn(move || {
        let began = Instant::now();
        (node.pause().expect("a member"), began.elapsed())
    })
}

/// Whether `db` has told of a large transaction amid which it is paused.
fn told(world: &World, db: &Db) -> bool {
    let times = world.report.times(&db.name, "amid a large transaction");
    assert!(times <= 1, "said {times} times");
    times == 1
}

/// n2 has begun a large transaction, of which nothing more comes before others apply. It ends while `n` waits.
fn waits_for_the_end(n: usize) {
    run(3, PATIENT, move |world| {
        let client = begin(world, large(&world.db(2), 1, 1));
        let db = world.db(n);
        world.until("it is ordered there", || {
            n == 2 || db.holds.waiting(Point::ApplyStart) > 0
        });
        let pausing = pause(&db);
        // One that does not wait stops the flow by then.
        world.soon(|| pausing.is_finished());
        go_on(world);
        let (at, took) = pausing.join().expect("no panic");
        db.node().resume();
        let end = end(client).seqno();
        // It waits three seconds at most, and a machine may be slow.
        let in_time = took < Duration::from_secs(2);
        assert!(at >= end || !in_time, "paused at {at}, it ends at {end}");
        assert_eq!(told(world, &db), at < end);
        nothing_open(world);
    });
}

#[test]
fn a_pause_waits_until_what_is_applied_in_chunks_is_over() {
    waits_for_the_end(1);
}

#[test]
fn a_pause_at_its_origin_waits_until_it_is_over() {
    waits_for_the_end(2);
}

/// `db` does not wait for ever for what `client` commits.
fn does_not_wait_for_ever(world: &World, db: &Arc<Db>, client: JoinHandle<End>) {
    let (at, took) = pause(db).join().expect("no panic");
    let amid = told(world, db);
    assert!(!amid || took >= Duration::from_secs(2), "after {took:?}");
    // Within the first one.
    assert_eq!(db.node().pause(), Some(at));
    assert_eq!(told(world, db), amid, "said once");
    db.node().resume();
    go_on(world);
    // Others may have gone on without one that was not heard for long.
    assert_eq!(amid, at < end(client).seqno());
    nothing_open(world);
}

#[test]
fn a_pause_amid_chunks_is_told() {
    run(3, PATIENT, |world| {
        let [first, db, last] = [1, 2, 3].map(|n| world.db(n));
        let before = world.settle().seqno;
        // The others may not be far ahead of it.
        last.holds.close(Point::ApplyStart);
        let mut t = db.begin();
        for n in 1..=400 {
            t.put(row(n), 1).expect("a free row");
        }
        let client = commit(t);
        world.until("some of it is applied", || first.position().seqno > before);
        does_not_wait_for_ever(world, &first, client);
    });
}

#[test]
fn a_pause_at_the_origin_of_chunks_is_told() {
    run(3, PATIENT, |world| {
        let client = begin(world, large(&world.db(2), 1, 1));
        does_not_wait_for_ever(world, &world.db(2), client);
    });
}

/// What it is to be told comes before the copy, behind which alone its hold ends.
#[test]
fn who_is_yet_to_be_told_that_it_is_synced_gives_a_copy() {
    run(2, PATIENT, |world| {
        // Its only applier is busy until it has been chosen.
        let donor = world.joins_with(3, 1);
        assert_eq!(donor.node().desync(), Outcome::Ok);
        donor.holds.close(Point::ApplyStart);
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.until("its applier is busy", || {
            donor.holds.waiting(Point::ApplyStart) == 1
        });
        let joiner = begin_join(world, 4, "n3");
        world.until("it has a view with all of them", || world.db(1).size() == 4);
        std::thread::sleep(Duration::from_millis(1500));
        let chosen = || {
            world
                .report
                .times(&donor.name, "Selected 2.0 (n3) as donor")
        };
        assert_eq!(chosen(), 0);
        assert_eq!(donor.node().resync(), Outcome::Ok);
        world.until("it is chosen", || chosen() == 1);
        donor.holds.open(Point::ApplyStart);
        world.synced(&joiner);
        world.synced(&donor);
        assert!(donor.set(row(2), 1).is_committed());
        world.settle();
        assert_eq!((joiner.read(row(1)), joiner.read(row(2))), (1, 1));
    });
}

/// A backup's pause, while a node that runs waits for the others: it stands at its log's checkpoint then, its tables
/// do not.
#[test]
fn a_pause_before_the_tables_follow_notes_no_position() {
    run(3, "pc.wait_prim_timeout=PT10S", |world| {
        let three = world.db(3);
        for n in 0..5 {
            assert!(world.db(1).set(row(n), 1).is_committed());
        }
        world.settle();
        three.disconnect();
        let stopped = world.state_file(3);
        world.crash(1);
        world.crash(2);
        let waits = {
            let three = three.clone();
            std::thread::spawn(move || three.connect(&World::url(), false))
        };
        let when = "waits for a majority with";
        world.until(when, || world.report.said(when));
        let pausing = |node: Arc<Node>| std::thread::spawn(move || node.pause());
        // Of the log nothing may be read by then, so that there is nothing to wait for.
        let first = pausing(three.node().clone());
        if world.soon(|| first.is_finished()) {
            three.node().resume();
        }
        assert_eq!(world.state_file(3), stopped);
        // Mostly some of it is read, and who would apply that comes when this node is joined.
        let second = pausing(three.node().clone());
        world.soon(|| second.is_finished());
        assert_eq!(world.state_file(3), stopped);
        let joined = waits.join().expect("no panic");
        joined.expect_err("nobody is there");
        for pause in [first, second] {
            pause.join().expect("no panic");
        }
        three.node().resume();
        assert_eq!(world.state_file(3), stopped);
    });
}

/// A joiner that starts beside a founder whose engine takes long asks for its copy at once.
#[test]
fn a_founder_is_told_that_it_is_synced_before_it_gives_a_copy() {
    run(1, PATIENT, |world| {
        let before = world.db(1);
        before.disconnect();
        let founder = world.open(1, before.disk(), Position::UNDEFINED);
        founder.holds.close(Point::Viewing);
        founder.holds.close(Point::DonorPaused);
        founder.connect("gcomm://", true).expect("it goes on alone");
        let joiner = begin_join(world, 2, "");
        world.until("it is chosen", || {
            world.report.said("Selected 0.0 (n1) as donor")
        });
        assert!(!founder.ready());
        founder.holds.open(Point::Viewing);
        world.until("it gives", || {
            founder.holds.waiting(Point::DonorPaused) == 1
        });
        assert!(founder.ready(), "its clients need not wait for that");
        founder.holds.open(Point::DonorPaused);
        world.synced(&joiner);
        world.settle();
    });
}

/// Its position is no one's word once the node runs on.
#[test]
fn a_pause_that_ends_while_its_node_joins_again_leaves_no_position() {
    run(3, QUICK, |world| {
        let db = world.db(world.leader(&world.db(1)) % 3 + 1);
        let others: Vec<usize> = (1..=3).filter(|n| *n != db.n).collect();
        let first = world.db(others[0]);
        assert!(db.set(row(1), 1).is_committed());
        world.settle();
        let at = db.node().pause().expect("it is a member");
        let noted = |at: i64| world.state_file(db.n).contains(&format!("seqno:   {at}\n"));
        assert!(noted(at));
        world.net.cut(&addrs(&[db.n]), &addrs(&others));
        world.until("the others drop it", || first.size() == 2);
        world.net.heal();
        world.until("it wants to join again", || {
            db.node().phase() == Phase::Rejoining
        });
        db.node().resume();
        world.synced(&db);
        assert!(first.set(row(2), 1).is_committed());
        world.settle();
        assert!(noted(-1), "{}", world.state_file(db.n));
    });
}

/// Its server, which is no donor by then, may never end the pause of an rsync.
#[test]
fn who_was_disconnected_amid_a_copy_stays_so_while_that_pause_stands() {
    run(2, "", |world| {
        let donor = world.db(2);
        donor.holds.close(Point::DonorPaused);
        let lost = begin_join(world, 3, "n2");
        world.until("it is paused", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        donor.disconnect();
        world.until("the joiner gives up", || lost.gave_up() == 1);
        lost.disconnect();
        let why = donor.connect(&World::url(), false);
        let why = why.expect_err("nothing could be applied there");
        assert!(why.contains("still paused for that"), "{why}");
        donor.holds.open(Point::DonorPaused);
        world.until("it is let in", || {
            donor.connect(&World::url(), false).is_ok()
        });
        world.synced(&donor);
        assert!(donor.set(row(1), 1).is_committed());
        world.settle();
    });
}
