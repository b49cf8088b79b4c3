//! Coming, going, and getting the data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_node::{Outcome, Phase, Position};

use crate::load::Load;
use crate::net::lock;
use crate::toy::holds::Point;
use crate::toy::{Copying, Db, Disk, End, row};
use crate::world::{World, addrs, run};

fn loaded(world: &World, streaming: bool) -> Load {
    let mut load = Load::new(streaming);
    for db in world.members() {
        load.add(&db, 2, 1);
    }
    load.go_on(world, 10);
    load
}

#[test]
fn joins_by_copy_under_load() {
    run(2, "", |world| {
        let mut load = loaded(world, true);
        let before = [1, 2].map(|n| world.db(n).donations());
        let third = world.join(3);
        load.add(&third, 2, 2);
        load.go_on(world, 30);
        let after = [1, 2].map(|n| world.db(n).donations());
        let given = after.iter().sum::<usize>() - before.iter().sum::<usize>();
        assert_eq!(given, 1, "one of them gave a copy");
        assert_eq!(world.net.syncs_all(&third.addr), 1, "scripts sync nothing");
        load.verify(world);
        assert_eq!(third.views().first().map(|v| v.members.len()), None);
    });
}

#[test]
fn the_wanted_donor_gives_the_copy() {
    run(3, "", |world| {
        let before = [1, 2, 3].map(|n| world.db(n).donations());
        let fourth = world.open(4, Disk::empty(), Position::UNDEFINED);
        fourth
            .connect_from(&World::url(), "nobody,n2,", false)
            .expect("there is a cluster");
        world.synced(&fourth);
        let after = [1, 2, 3].map(|n| world.db(n).donations());
        assert_eq!(after, [before[0], before[1] + 1, before[2]]);
        assert!(world.report.said("state transfer from 'nobody,n2,'."));
        world.until("the donor is synced again", || {
            world.db(2).stat("local_state_comment") == "Synced"
        });
        world.settle();
    });
}

#[test]
fn two_join_at_once() {
    run(2, "", |world| {
        let mut load = loaded(world, false);
        std::thread::scope(|scope| {
            let third = scope.spawn(|| world.join(3));
            let fourth = scope.spawn(|| world.join(4));
            third.join().expect("n3 joins");
            fourth.join().expect("n4 joins");
        });
        load.go_on(world, 20);
        load.verify(world);
    });
}

#[test]
fn comes_back_by_log_under_load() {
    run(3, "", |world| {
        let mut load = loaded(world, true);
        let db = world.db(3);
        for round in 1..=3 {
            db.disconnect();
            assert_eq!(db.finals(), round);
            load.go_on(world, 20);
            let from = db.position();
            db.connect(&World::url(), false).expect("two are there");
            world.synced(&db);
            assert!(db.position().seqno > from.seqno + 20);
            load.go_on(world, 10);
        }
        load.verify(world);
    });
}

#[test]
fn a_restarted_server_comes_back_by_log() {
    run(3, "", |world| {
        let mut load = loaded(world, true);
        world.db(3).disconnect();
        load.go_on(world, 20);
        let again = world.open(3, world.db(3).disk(), Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        load.add(&again, 1, 9);
        load.go_on(world, 20);
        load.verify(world);
    });
}

#[test]
fn the_leader_leaves_under_load() {
    run(3, "", |world| {
        let mut load = loaded(world, true);
        for _ in 0..2 {
            let leader = world.db(world.leader(&world.db(1)));
            leader.disconnect();
            assert_eq!(leader.state(), crate::toy::State::Disconnected);
            load.go_on(world, 20);
            let now = world.members()[0].clone();
            assert_ne!(world.leader(&now), leader.n);
            leader.connect(&World::url(), false).expect("two are there");
            world.synced(&leader);
        }
        load.verify(world);
    });
}

#[test]
fn all_leave_and_the_last_one_founds_again() {
    run(3, "", |world| {
        let mut load = loaded(world, false);
        load.verify(world);
        let dbs: Vec<_> = (1..=3).map(|n| world.db(n)).collect();
        for db in &dbs {
            db.disconnect();
        }
        let safe: Vec<_> = (1..=3)
            .map(|n| world.state_file(n).contains("safe_to_bootstrap: 1"))
            .collect();
        assert_eq!(safe, [false, false, true], "the last one knows everything");
        let history = dbs[2].position().history;
        dbs[2]
            .connect("gcomm://", true)
            .expect("it was the last one");
        world.synced(&dbs[2]);
        for db in &dbs[..2] {
            db.connect(&World::url(), false).expect("n3 is there");
            world.synced(db);
        }
        let mut load = loaded(world, false);
        load.stop();
        assert_eq!(world.settle().history, history);
    });
}

/// The view waits behind a pause, and those whom it brings may go on without this node.
#[test]
fn a_paused_node_that_others_join_may_not_found_any_more() {
    run(2, "", |world| {
        let flagged = || world.state_file(1).contains("safe_to_bootstrap: 1");
        let (first, other) = (world.db(1), world.db(2));
        other.disconnect();
        world.until("it may found", flagged);
        let at = first.node().pause().expect("it is a member");
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| other.connect(&World::url(), false));
            world.until("it votes", || first.count("dromon_voters") == 2);
            world.until("the flag is taken back", || !flagged());
            let file = world.state_file(1);
            assert!(file.contains(&format!("seqno:   {at}")), "{file}");
            first.node().resume();
            let joined = joiner.join().expect("no panic");
            joined.expect("by the log");
        });
        assert!(!flagged());
        world.settle();
    });
}

/// All are told at once, and one still applies while the others leave behind it.
#[test]
fn of_all_that_leave_at_once_one_may_found() {
    run(3, "", |world| {
        let [a, b, c] = [1, 2, 3].map(|n| world.db(n));
        a.holds.close(Point::ApplyStart);
        assert!(b.set(row(1), 1).is_committed());
        let leave = |db: &Arc<Db>| {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        let first = leave(&a);
        world.until("its leave is ordered", || b.size() == 2);
        b.disconnect();
        c.disconnect();
        // What it hears of that it has heard by now.
        std::thread::sleep(std::time::Duration::from_millis(500));
        a.holds.open(Point::ApplyStart);
        first.join().expect("no panic");
        let flagged = |n: &usize| world.state_file(*n).contains("safe_to_bootstrap: 1");
        let flagged: Vec<usize> = (1..=3).filter(flagged).collect();
        assert_eq!(flagged, [3]);
    });
}

#[test]
fn leaving_with_open_transactions() {
    run(3, "", |world| {
        let db = world.db(3);
        let mut idle = db.begin();
        idle.put(row(1), 1).expect("a free row");
        let mut reads = db.begin();
        reads.lock(row(2)).expect("a free row");
        let mut streams = db.begin();
        streams.put(row(3), 1).expect("a free row");
        streams.fragment().expect("nobody is in its way");
        // One that is being committed must get through.
        db.holds.close(Point::ClientCertified);
        let inside = {
            let db = db.clone();
            std::thread::spawn(move || db.set(row(4), 1))
        };
        world.until("a client is certified", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        let leaves = {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        world.until("the others have seen it go", || world.db(1).size() == 2);
        assert!(!leaves.is_finished(), "one is still on its way");
        db.holds.open(Point::ClientCertified);
        assert!(inside.join().expect("no panic").is_committed());
        leaves.join().expect("no panic");
        assert_eq!(world.db(1).read(row(4)), 1);
        assert_eq!(world.db(1).streaming(), 0, "its streaming ones are gone");

        assert_eq!(idle.commit(), End::ConnFail);
        assert!(world.db(1).set(row(2), 5).is_committed());
        db.connect(&World::url(), false).expect("two are there");
        world.synced(&db);
        assert!(reads.aborted(), "catching up needed its row");
        drop(reads);
        drop(streams);
        world.settle();
        assert_eq!(db.streaming(), 0);
        assert_eq!(db.read(row(1)), 0);
        assert_eq!(db.count("open_transactions"), 0);
    });
}

#[test]
fn those_waiting_for_flow_control_are_sent_away() {
    let options = "gcs.fc_limit=2;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S";
    run(3, options, |world| {
        let (slow, db) = (world.db(3), world.db(2));
        slow.holds.close(Point::ApplyStart);
        let writer = {
            let first = world.db(1);
            std::thread::spawn(move || {
                for n in 0..20 {
                    assert!(first.set(row(50 + n), 1).is_committed());
                }
            })
        };
        world.stopped_by(&slow);
        let waits = {
            let db = db.clone();
            std::thread::spawn(move || db.set(row(1), 1))
        };
        world.until("it waits", || db.count("open_transactions") == 1);
        std::thread::sleep(Duration::from_millis(20));
        db.disconnect();
        assert_eq!(waits.join().expect("no panic"), End::ConnFail);
        slow.holds.open(Point::ApplyStart);
        writer.join().expect("no panic");
        world.settle();
        assert_eq!(slow.read(row(1)), 0);
    });
}

#[test]
fn a_node_whose_pause_ends_while_it_leaves() {
    run(2, "", |world| {
        let db = world.db(2);
        assert!(db.node().pause().is_some());
        let waits = {
            let db = db.clone();
            std::thread::spawn(move || db.set(row(1), 1))
        };
        assert!(world.db(1).set(row(2), 1).is_committed());
        let leaves = {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        std::thread::sleep(Duration::from_millis(100));
        db.node().resume();
        leaves.join().expect("no panic");
        let end = waits.join().expect("no panic");
        assert!(
            matches!(end, End::ConnFail | End::Committed { .. }),
            "{end:?}"
        );
        world.settle();
        assert_eq!(world.db(1).read(row(1)), i64::from(end.is_committed()));
    });
}

/// n2 leaves while its server holds everything; nobody lets go before it is gone. `lost`: amid
/// a loss of the others, so that what n2 has on its way is ordered behind the pause.
fn paused_and_leaves(appliers: usize, lost: bool) {
    let options = "evs.suspect_timeout=PT8S;evs.inactive_timeout=PT9S";
    run(1, options, move |world| {
        let db = world.joins_with(2, appliers);
        world.voters(2);
        let first = world.db(1);
        let client = |key| {
            let db = db.clone();
            std::thread::spawn(move || db.set(key, 1))
        };
        if lost {
            world.net.cut(&addrs(&[1]), &addrs(&[2]));
        }
        let sent = client(row(3));
        if lost {
            world.until("it is on its way", || db.count("replicated") > 0);
        } else {
            world.until("it is committed", || sent.is_finished());
            world.settle();
        }
        let at = db.node().pause().expect("it is a member");
        let waits = client(row(1));
        world.net.heal();
        world.until("it is ordered", || first.read(row(3)) == 1);
        for n in [2, 4, 5, 6] {
            assert!(first.set(row(n), 1).is_committed());
        }
        db.disconnect();
        assert_eq!(db.finals(), 1);
        assert_eq!(waits.join().expect("no panic"), End::ConnFail);
        let end = sent.join().expect("no panic");
        assert_eq!((end.is_committed(), end == End::Unknown), (!lost, lost));
        assert_eq!(db.read(row(3)), i64::from(!lost));
        assert_eq!(db.node().last_committed().seqno, at);
        assert_eq!(db.position().seqno, at);
        let file = world.state_file(2);
        assert!(file.contains(&format!("seqno:   {at}\n")), "{file}");
        // The lock is given back when the server is about to end.
        db.node().resume();
        assert_eq!(world.state_file(2), file);
        world.until("it is gone", || first.size() == 1);
        let again = world.open(2, db.disk(), Position::UNDEFINED);
        again.connect(&World::url(), false).expect("one is there");
        world.synced(&again);
        assert_eq!(again.donations() + first.donations(), 1, "by its log");
        world.settle();
        assert_eq!(again.read(row(1)), 0);
        for n in 2..=6 {
            assert_eq!(again.read(row(n)), 1, "row {n}");
        }
    });
}

#[test]
fn a_paused_node_can_leave() {
    paused_and_leaves(4, false);
}

#[test]
fn a_paused_node_with_one_applier_can_leave() {
    paused_and_leaves(1, false);
}

#[test]
fn a_paused_node_can_leave_while_its_own_are_behind_the_pause() {
    paused_and_leaves(4, true);
}

/// Nothing of what is ordered behind its pause is finished there, so it cannot join again before it leaves.
#[test]
fn a_paused_node_that_was_evicted_can_leave() {
    run(3, QUICK, |world| {
        let db = world.db(world.leader(&world.db(1)) % 3 + 1);
        let others: Vec<usize> = (1..=3).filter(|n| *n != db.n).collect();
        let first = world.db(others[0]);
        assert!(db.set(row(1), 1).is_committed());
        world.settle();
        let at = db.node().pause().expect("it is a member");
        for n in 2..=9 {
            assert!(first.set(row(n), 1).is_committed());
        }
        world.until("they are ordered there", || {
            db.count("local_recv_queue") > 0
        });
        world.net.cut(&addrs(&[db.n]), &addrs(&others));
        world.until("the others drop it", || first.size() == 2);
        assert!(first.set(row(10), 1).is_committed());
        world.net.heal();
        world.until("it wants to join again", || {
            db.node().phase() == Phase::Rejoining
        });
        let began = Instant::now();
        db.disconnect();
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(db.node().last_committed().seqno, at);
        assert_eq!(db.position().seqno, at);
        let file = world.state_file(db.n);
        assert!(file.contains(&format!("seqno:   {at}\n")), "{file}");
        db.node().resume();
        let given = first.donations();
        let again = world.open(db.n, db.disk(), Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(first.donations(), given, "by its log");
        world.settle();
        for n in 1..=10 {
            assert_eq!(again.read(row(n)), 1, "row {n}");
        }
    });
}

/// Opens node `n` empty and connects it, without waiting for its data.
pub fn begin_join(world: &World, n: usize, donors: &str) -> Arc<Db> {
    let db = world.open(n, Disk::empty(), Position::UNDEFINED);
    db.connect_from(&World::url(), donors, false)
        .expect("there is a cluster");
    db
}

#[test]
fn a_failed_donation_hurts_the_joiner_only() {
    run(2, "", |world| {
        let mut load = loaded(world, false);
        let donor = world.db(2);
        donor.set_copying(Copying::DonorFails);
        let joiner = begin_join(world, 3, "n2");
        world.until("the joiner gives up", || {
            joiner.returned().contains(&Outcome::Fatal)
        });
        assert_eq!(joiner.gave_up(), 1);
        // Its process could have ended there: the others need not miss it first.
        world.until("the others see it go", || world.db(1).size() == 2);
        joiner.disconnect();
        world.synced(&donor);
        load.go_on(world, 10);
        donor.set_copying(Copying::Works);
        let again = world.join(3);
        load.add(&again, 1, 3);
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// The one with the lowest uuid would be chosen, but it has just died.
#[test]
fn a_copy_is_not_asked_of_a_dead_member() {
    let options = "evs.suspect_timeout=PT6S;evs.inactive_timeout=PT7S";
    run(3, options, |world| {
        world.crash(1);
        let joiner = world.join(4);
        assert_eq!(joiner.gave_up(), 0);
        world.until("the dead one is evicted", || joiner.size() == 3);
        world.settle();
    });
}

#[test]
fn a_joiner_can_leave_while_it_waits_for_its_copy() {
    run(2, "", |world| {
        let mut load = loaded(world, false);
        let donor = world.db(2);
        donor.holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 3, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        joiner.disconnect();
        assert_eq!(joiner.node().phase(), Phase::Closed);
        donor.holds.open(Point::DonorPaused);
        world.synced(&donor);
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// The server is told behind the pause: one that takes itself for no donor any more would never end it.
#[test]
fn a_donor_that_loses_the_others_amid_its_copy_ends_its_pause() {
    let options = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
    run(3, options, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        let donor = world.db(2);
        donor.holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 4, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3, 4]));
        world.until("it is non-primary", || {
            donor.node().phase() == Phase::NonPrimary
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(donor.ready(), "it is told behind the pause");
        world.net.heal();
        world.until("it is back", || donor.node().phase() == Phase::Joined);
        donor.holds.open(Point::DonorPaused);
        world.synced(&joiner);
        world.synced(&donor);
        assert!(world.db(1).set(row(2), 1).is_committed());
        world.settle();
        for db in [&donor, &joiner] {
            assert_eq!((db.read(row(1)), db.read(row(2))), (1, 1));
        }
    });
}

#[test]
fn a_donor_may_leave_while_it_gives() {
    run(3, "", |world| {
        let mut load = loaded(world, false);
        let donor = world.db(2);
        donor.holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 4, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        let leaves = {
            let donor = donor.clone();
            std::thread::spawn(move || donor.disconnect())
        };
        world.until("the others have seen it go", || world.db(1).size() == 3);
        donor.holds.open(Point::DonorPaused);
        leaves.join().expect("no panic");
        world.until("the joiner is through or gives up", || {
            joiner.ready() || joiner.returned().contains(&Outcome::Fatal)
        });
        if !joiner.ready() {
            joiner.disconnect();
        }
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// Its script goes on meanwhile, and its end is not that of the next one.
#[test]
fn a_donor_that_is_connected_anew_gives_no_copy_before_the_script_of_the_last_has_ended() {
    run(2, "", |world| {
        let donor = world.db(2);
        donor.set_copying(Copying::DonorGoesOn);
        donor.holds.close(Point::DonorCopies);
        let lost = begin_join(world, 3, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorCopies) == 1
        });
        donor.disconnect();
        world.until("the joiner gives up", || lost.gave_up() == 1);
        lost.disconnect();
        donor.connect(&World::url(), false).expect("one is there");
        world.synced(&donor);
        let given = donor.donations();
        let joiner = begin_join(world, 4, "n2");
        let says = "gives no copy now: the script of one that it gave before";
        world.until("it says so", || world.report.times("n2", says) == 1);
        assert_eq!(donor.donations(), given);
        donor.holds.open(Point::DonorCopies);
        world.synced(&joiner);
        assert_eq!(donor.donations(), given + 1);
        world.synced(&donor);
        world.settle();
    });
}

#[test]
fn a_donor_that_is_cut_off_for_a_moment_goes_on_giving() {
    let options = "evs.suspect_timeout=PT8S;evs.inactive_timeout=PT9S";
    run(3, options, |world| {
        let mut load = loaded(world, false);
        let donor = world.db(2);
        donor.holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 4, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        let others: Vec<_> = [1, 3, 4].map(World::addr).into();
        world.net.cut(&[World::addr(2)], &others);
        world.until("it is non-primary", || {
            donor.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        world.until("it is back", || donor.node().phase() == Phase::Joined);
        assert!(joiner.returned().is_empty(), "the joiner waits");
        donor.holds.open(Point::DonorPaused);
        world.synced(&joiner);
        world.synced(&donor);
        let copies: usize = world.members().iter().map(|d| d.donations()).sum();
        assert_eq!(copies, 3, "two to begin with, and this one");
        load.add(&joiner, 1, 3);
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// It copies within the call: nothing may commit there until that ends, whatever befalls the node.
#[test]
fn a_donor_that_is_evicted_and_back_changes_nothing_under_its_copy() {
    run(3, crate::partition::QUICK, |world| {
        let [first, donor] = [1, 2].map(|n| world.db(n));
        assert!(first.set(row(1), 1).is_committed());
        world.settle();
        donor.set_copying(Copying::DonorStays);
        donor.holds.close(Point::DonorCopies);
        let joiner = begin_join(world, 4, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorCopies) == 1
        });
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3, 4]));
        world.until("it is evicted", || {
            first.views().last().is_some_and(|v| v.members.len() < 4)
                && donor.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        assert!(first.set(row(1), 2).is_committed());
        world.until("it wants to come back", || {
            world.report.said("joining them again")
        });
        // It could be back by then, and at what the others have done meanwhile.
        let moved = || donor.read(row(1)) != 1 || donor.node().phase() == Phase::Joined;
        assert!(!(world.soon(moved) || world.soon(moved)));
        assert_eq!(donor.holds.waiting(Point::DonorCopies), 1);
        donor.holds.open(Point::DonorCopies);
        world.until("it is back", || donor.node().phase() == Phase::Joined);
        world.until("the joiner is through or gives up", || {
            joiner.ready() || joiner.returned().contains(&Outcome::Fatal)
        });
        if !joiner.ready() {
            joiner.disconnect();
        }
        world.synced(&donor);
        assert!(donor.set(row(2), 3).is_committed());
        world.settle();
    });
}

#[test]
fn a_joiner_without_a_free_donor_waits() {
    run(2, "", |world| {
        let (first, second) = (world.db(1), world.db(2));
        first.holds.close(Point::DonorPaused);
        let third = begin_join(world, 3, "n1");
        world.until("n1 is at work", || {
            first.holds.waiting(Point::DonorPaused) == 1
        });
        let fourth = begin_join(world, 4, "n1");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!fourth.ready() && fourth.returned().is_empty());
        assert!(second.set(row(1), 1).is_committed(), "life goes on");
        first.holds.open(Point::DonorPaused);
        world.synced(&third);
        world.synced(&fourth);
        world.settle();
    });
}

#[test]
fn a_joiner_that_wants_nobody_who_is_there_says_so() {
    run(2, "", |world| {
        let third = begin_join(world, 3, "db9");
        world.until("it is told whom it wants, and who is there", || {
            let said = "wsrep_sst_donor wants db9, synced are n1,n2;";
            world.report.times("n3", said) == 1
        });
        third.disconnect();
        world.settle();
    });
}

/// Nothing is given up for a copy that cannot be taken.
#[test]
fn a_running_server_that_needs_a_copy_says_so_and_keeps_all() {
    run(2, "", |world| {
        let stranger = world.open(3, Disk::empty(), Position::UNDEFINED);
        stranger
            .connect("gcomm://", true)
            .expect("a cluster of its own");
        world.synced(&stranger);
        assert!(stranger.set(row(1), 7).is_committed());
        stranger.disconnect();
        let at = stranger.position();
        let file = world.state_file(3);
        assert!(file.contains(&at.history.to_string()), "{file}");
        // It may try again.
        for _ in 0..2 {
            let why = stranger.connect(&World::url(), false);
            let why = why.expect_err("it runs");
            assert!(why.contains("but of another history"), "{why}");
            assert!(why.contains("Only a restart of this node's"), "{why}");
            assert!(why.contains("Nothing was changed"), "{why}");
            assert_eq!(world.state_file(3), file);
        }
        assert_eq!(world.db(1).size(), 2, "it asked nobody to take it in");
        assert_eq!(stranger.position(), at, "its data is untouched");
        assert!(world.db(1).set(row(1), 1).is_committed());
        stranger
            .connect("gcomm://", true)
            .expect("its log is there, too");
        world.synced(&stranger);
        assert_eq!(stranger.read(row(1)), 7);
        stranger.disconnect();
    });
}

/// Its server does not say that it leaves: it has seen the last view.
#[test]
fn who_was_put_out_by_an_operator_may_be_told_to_come_back() {
    run(3, "", |world| {
        let out = world.db(3);
        let alarms = out.count("dromon_alarms");
        let evict = format!("evs.evict={}", out.stat("gcomm_uuid"));
        assert_eq!(world.db(1).node().set_options(&evict), Ok(()));
        world.until("it has left", || out.finals() == 1);
        crate::stands::shows_out(&out);
        assert!(out.stat("dromon_stays_out").contains("operator evicted"));
        assert_eq!(out.count("dromon_alarms"), alarms + 1);
        assert_eq!(world.db(1).stat("evs_evict_list"), "", "nobody is barred");
        assert!(world.db(1).set(row(1), 1).is_committed());
        out.connect(&World::url(), false).expect("two are there");
        world.synced(&out);
        assert_eq!(out.stat("dromon_stays_out"), "");
        world.settle();
    });
}

/// Short enough for a test, long enough for a busy machine.
const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

#[test]
fn a_crashed_node_is_dropped_and_comes_back() {
    run(3, QUICK, |world| {
        let mut load = loaded(world, true);
        let flushed = world.db(3).disk();
        load.go_on(world, 20);
        world.crash(3);
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        load.go_on(world, 20);
        // Its engine had not flushed what it did last.
        let position = flushed.position;
        let again = world.open(3, flushed, position);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        load.add(&again, 1, 9);
        load.go_on(world, 20);
        load.verify(world);
    });
}

#[test]
fn a_crashed_node_is_back_before_it_is_missed() {
    let patient = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
    run(3, patient, |world| {
        let mut load = loaded(world, true);
        let victim = if world.leader(&world.db(1)) == 3 {
            2
        } else {
            3
        };
        world.crash(victim);
        let disk = {
            // The engine is gone: what its clients still do is not on disk.
            world.crashed_disk(victim)
        };
        let position = disk.position;
        let again = world.open(victim, disk, position);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(world.members()[0].size(), 3);
        load.go_on(world, 20);
        load.verify(world);
    });
}

/// n4 waits for a copy of n2, which is held at `point`, and is cut off from all others
/// until they have removed it.
fn joiner_is_removed(world: &World, point: Point) -> Arc<Db> {
    world.db(2).holds.close(point);
    let joiner = begin_join(world, 4, "n2");
    world.until("the donor is at work", || {
        world.db(2).holds.waiting(point) == 1
    });
    world.until("all know it", || world.db(1).size() == 4);
    world.net.cut(&addrs(&[4]), &addrs(&[1, 2, 3]));
    world.until("the others remove it", || {
        [1, 3].iter().all(|n| world.db(*n).size() == 3)
    });
    assert!(joiner.returned().is_empty(), "it waits");
    joiner
}

/// What such a joiner does once it hears of it.
fn gives_up(world: &World, joiner: &Arc<Db>) {
    world.until("the joiner gives up", || {
        joiner.returned().contains(&Outcome::Fatal)
    });
    assert_eq!(joiner.gave_up(), 1);
    let why = "the others removed this node from the cluster while it waited for a state transfer";
    assert_eq!(world.report.times("n4", why), 1);
    joiner.disconnect();
}

#[test]
fn a_joiner_that_is_evicted_while_it_waits_for_its_copy_gives_up() {
    run(3, QUICK, |world| {
        let mut load = loaded(world, false);
        let joiner = joiner_is_removed(world, Point::DonorPaused);
        world.net.heal();
        load.go_on(world, 10);
        gives_up(world, &joiner);
        world.db(2).holds.open(Point::DonorPaused);
        world.synced(&world.db(2));
        let again = world.join(4);
        load.add(&again, 1, 3);
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// The script's connection outlives the eviction, and the copy is ahead of all that is delivered.
#[test]
fn a_joiner_that_is_evicted_does_not_wait_behind_its_copy() {
    run(3, QUICK, |world| {
        let mut load = loaded(world, false);
        world.db(2).set_copying(Copying::DonorGoesOn);
        let joiner = joiner_is_removed(world, Point::DonorCopies);
        load.go_on(world, 10);
        world.db(2).holds.open(Point::DonorCopies);
        world.synced(&world.db(2));
        world.net.heal();
        gives_up(world, &joiner);
        load.verify(world);
    });
}

#[test]
fn a_joiner_that_an_operator_evicts_gives_up() {
    run(2, "", |world| {
        let mut load = loaded(world, false);
        world.db(2).holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 3, "n2");
        world.until("all know it", || world.db(1).size() == 3);
        let uuid = joiner.stat("gcomm_uuid");
        let evict = format!("evs.evict={uuid}");
        assert_eq!(world.db(1).node().set_options(&evict), Ok(()));
        world.until("the joiner gives up", || {
            joiner.returned().contains(&Outcome::Fatal)
        });
        assert_eq!(joiner.gave_up(), 1);
        assert_eq!(world.report.times("n3", "an operator evicted it"), 1);
        world.db(2).holds.open(Point::DonorPaused);
        joiner.disconnect();
        world.synced(&world.db(2));
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// Its configuration is a copy of that of a member which runs.
#[test]
fn who_announces_the_address_of_a_member_puts_nobody_out() {
    run(3, "pc.wait_prim_timeout=PT1S", |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let one = world.db(world.leader(&world.db(1)) % 3 + 1);
        let views = one.views().len();
        let addr = World::addr(one.n);
        lock(&world.own_addresses).insert(4, addr.clone());
        let copied = world.open(4, Disk::empty(), Position::UNDEFINED);
        let why = copied.connect(&World::url(), false);
        let why = why.expect_err("the address is taken");
        let said = format!(
            "the cluster did not order this node's join within 10 s: {addr} is the address of {}, a member",
            one.name
        );
        assert!(why.starts_with(&said), "{why}");
        assert!(why.contains("set wsrep_node_address"), "{why}");
        assert_eq!((one.size(), one.views().len()), (3, views));
        assert!(one.set(row(1), 2).is_committed());
        world.settle();
    });
}
