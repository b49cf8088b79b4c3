//! Flow control: who waits for whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dromon_node::{Outcome, Phase};

use crate::membership::begin_join;
use crate::partition::QUICK;
use crate::toy::holds::Point;
use crate::toy::{Copying, Db, row};
use crate::votes::{left_inconsistent, starts_anew};
use crate::world::{World, addrs, run};

const TIGHT: &str = "gcs.fc_limit=4;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S";

/// Writes `n` rows one after the other; says how far it is.
fn writer(db: &Arc<Db>, n: u32) -> (Arc<AtomicU32>, std::thread::JoinHandle<()>) {
    let done = Arc::new(AtomicU32::new(0));
    let (db, count) = (db.clone(), done.clone());
    let thread = std::thread::spawn(move || {
        for i in 0..n {
            assert!(db.set(row(i), 1).is_committed());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (done, thread)
}

fn active(db: &Db) -> bool {
    db.stat("flow_control_active") == "true"
}

#[test]
fn a_slow_applier_stops_the_others() {
    run(3, TIGHT, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyStart);
        let (done, thread) = writer(&world.db(1), 60);
        world.stopped_by(&slow);
        for db in world.members() {
            assert_eq!(db.stat("dromon_waiting_for"), "n3", "on {}", db.name);
        }
        assert_eq!(slow.stat("flow_control_requested"), "true");
        let at = done.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        let later = done.load(Ordering::Relaxed);
        assert!(later < 60 && later <= at + 4, "{at}, then {later}");
        slow.holds.open(Point::ApplyStart);
        thread.join().expect("all of it commits");
        world.until("the wish has ended everywhere", || {
            world.members().iter().all(|db| !active(db))
        });
        assert_eq!(slow.stat("flow_control_requested"), "false");
        assert!(slow.count("flow_control_sent") >= 1);
        assert!(world.db(1).count("flow_control_recv") >= 1);
        assert!(world.db(1).count("flow_control_paused_ns") > 100_000_000);
        world.settle();
    });
}

/// As with the peer: not who waits for an answer.
#[test]
fn writers_that_are_stopped_are_the_send_queue() {
    run(2, TIGHT, |world| {
        let (first, slow) = (world.db(1), world.db(2));
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&first, 60);
        world.stopped_by(&slow);
        world.until("it waits", || first.count("local_send_queue") == 1);
        let more: Vec<_> = (100..103)
            .map(|n| {
                let first = first.clone();
                std::thread::spawn(move || assert!(first.set(row(n), 1).is_committed()))
            })
            .collect();
        world.until("all wait", || first.count("local_send_queue") == 4);
        assert_eq!(first.count("local_send_queue_max"), 4);
        slow.holds.open(Point::ApplyStart);
        for thread in more {
            thread.join().expect("it commits");
        }
        thread.join().expect("all of it commits");
        assert_eq!(first.count("local_send_queue"), 0);
        world.settle();
        first.node().reset_status();
        assert_eq!(first.count("local_send_queue_max"), 0);
        assert_eq!(first.stat("local_send_queue_avg"), "0");
    });
}

#[test]
fn an_applier_that_hesitates_stops_nobody() {
    let options = "gcs.fc_limit=4;gcs.fc_single_primary=yes;dromon.stall_patience=PT2S";
    run(3, options, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 60);
        thread.join().expect("nobody is in its way");
        assert!(slow.count("local_recv_queue") > 20);
        assert!(!active(&world.db(1)));
        assert_eq!(slow.count("flow_control_sent"), 0);
        // It has caught up in time.
        slow.holds.open(Point::ApplyStart);
        world.settle();
        assert_eq!(world.db(1).count("flow_control_recv"), 0);
        // What lasts stops them, also while nobody writes.
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 20);
        world.stopped_by(&slow);
        slow.holds.open(Point::ApplyStart);
        thread.join().expect("all of it commits");
        world.settle();
        assert_eq!(slow.count("flow_control_sent"), 1);
    });
}

#[test]
fn a_desynced_one_stops_nobody() {
    run(3, TIGHT, |world| {
        let slow = world.db(3);
        let synced = slow.synced();
        assert_eq!(slow.node().desync(), Outcome::Ok);
        assert_eq!(slow.stat("local_state_comment"), "Donor/Desynced");
        assert_eq!(slow.stat("desync_count"), "1");
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 60);
        thread.join().expect("nobody is in its way");
        assert!(!active(&world.db(1)));
        assert!(slow.count("local_recv_queue") > 20);
        slow.holds.open(Point::ApplyStart);
        assert_eq!(slow.node().resync(), Outcome::Ok);
        world.until("it is told that it is synced", || {
            slow.synced() == synced + 1
        });
        world.settle();
    });
}

/// Its appliers are held.
#[test]
fn a_desync_survives_a_lost_majority() {
    let options = format!("{TIGHT};evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S");
    run(3, &options, |world| {
        let slow = world.db(3);
        assert_eq!(slow.node().desync(), Outcome::Ok);
        assert_eq!(slow.node().desync(), Outcome::Ok);
        assert_eq!(slow.node().resync(), Outcome::Ok);
        world.until("one is left", || slow.stat("desync_count") == "1");
        slow.holds.close(Point::ApplyStart);
        let synced = slow.synced();
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("it is non-primary", || {
            slow.node().phase() == Phase::NonPrimary
        });
        world.net.heal();
        world.until("it is back", || slow.node().phase() == Phase::Joined);
        world.until("it is desynced again", || {
            slow.stat("local_state_comment") == "Donor/Desynced"
        });
        assert_eq!(slow.stat("desync_count"), "1");
        let (_, thread) = writer(&world.db(1), 60);
        thread.join().expect("nobody is in its way");
        assert!(!active(&world.db(1)));
        assert_eq!(slow.stat("desync_count"), "1");
        slow.holds.open(Point::ApplyStart);
        // Desynced it serves, as before.
        world.until("its server may serve", || slow.synced() > synced);
        assert_eq!(slow.stat("desync_count"), "1");
        assert!(slow.set(row(900), 1).is_committed());
        assert_eq!(slow.node().resync(), Outcome::Ok);
        world.synced(&slow);
        assert_eq!(slow.stat("desync_count"), "0");
        world.settle();
    });
}

/// As with Galera: MariaDB's GAL-401.
#[test]
fn a_desync_ends_with_an_eviction() {
    run(3, &format!("{TIGHT};{QUICK}"), |world| {
        let odd = world.db(3);
        assert_eq!(odd.node().desync(), Outcome::Ok);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("the others drop it", || {
            [1, 2].iter().all(|n| world.db(*n).size() == 2)
        });
        world.net.heal();
        world.synced(&odd);
        assert_eq!(odd.stat("desync_count"), "0");
        assert_eq!(world.report.times("n3", "no longer is"), 1);
        // wsrep_desync is still ON.
        assert_eq!(odd.node().resync(), Outcome::Ok);
        world.settle();
        assert_eq!(odd.stat("local_state_comment"), "Synced");
    });
}

/// As with FLUSH TABLES WITH READ LOCK, which ends while the node is away: the desync is
/// forgotten then.
#[test]
fn a_paused_node_that_is_back_is_not_waited_for() {
    let options = format!("{TIGHT};evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S");
    run(3, &options, |world| {
        let paused = world.db(3);
        assert_eq!(paused.node().desync(), Outcome::Ok);
        assert!(paused.node().pause().is_some());
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("it is non-primary", || {
            paused.node().phase() == Phase::NonPrimary
        });
        // The session that held it is gone.
        assert_eq!(paused.node().resync(), Outcome::Ok);
        world.net.heal();
        world.until("it is back", || paused.node().phase() == Phase::Joined);
        let (_, thread) = writer(&world.db(1), 60);
        thread.join().expect("nobody is in its way");
        assert_eq!(paused.stat("local_state_comment"), "Joined");
        assert_eq!(paused.stat("desync_count"), "0");
        paused.node().resume();
        world.synced(&paused);
        world.settle();
    });
}

/// As with FLUSH TABLES WITH READ LOCK on a node that is not synced: no desync is open for it.
#[test]
fn one_that_is_paused_while_it_is_away_is_not_synced_before_that_ends() {
    run(3, TIGHT, |world| {
        let paused = world.db(3);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("it is non-primary", || {
            paused.node().phase() == Phase::NonPrimary
        });
        assert!(paused.node().pause().is_some());
        world.net.heal();
        world.until("it is back", || paused.node().phase() == Phase::Joined);
        let (_, thread) = writer(&world.db(1), 60);
        thread.join().expect("nobody is in its way");
        assert_eq!(paused.stat("local_state_comment"), "Joined");
        paused.node().resume();
        world.synced(&paused);
        world.settle();
    });
}

/// It copies within the call (mysqldump), for a joiner that is gone by now.
#[test]
fn a_donor_whose_script_stands_stops_nobody() {
    run(3, &format!("{TIGHT};{QUICK}"), |world| {
        let (first, donor) = (world.db(1), world.db(2));
        donor.set_copying(Copying::DonorStays);
        donor.holds.close(Point::DonorCopies);
        let _joiner = begin_join(world, 4, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorCopies) == 1
        });
        world.crash(4);
        world.until("the joiner is put out", || first.size() == 3);
        let (done, stop) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let thread = {
            let (db, done, stop) = (first.clone(), done.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // On a starved machine one may be refused for a moment.
                    let n = u32::from(db.set(row(1), 1).is_committed());
                    done.fetch_add(n, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            })
        };
        // Who catches up is waited for after ten seconds.
        std::thread::sleep(Duration::from_millis(12_500));
        let at = done.load(Ordering::Relaxed);
        world.until("the others go on", || {
            done.load(Ordering::Relaxed) > at + 50
        });
        assert_eq!(donor.holds.waiting(Point::DonorCopies), 1);
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("no panic");
        donor.holds.open(Point::DonorCopies);
        world.synced(&donor);
        world.settle();
    });
}

/// It would be behind for ever.
#[test]
fn one_that_does_not_catch_up_stops_the_others_after_a_while() {
    run(3, TIGHT, |world| {
        let slow = world.db(3);
        assert_eq!(slow.node().desync(), Outcome::Ok);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 100);
        thread.join().expect("nobody is in its way");
        let begin = Instant::now();
        assert_eq!(slow.node().resync(), Outcome::Ok);
        world.until("it catches up", || {
            slow.stat("local_state_comment") == "Joined"
        });
        let (done, enough) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let thread = {
            let (db, done, enough) = (world.db(1), done.clone(), enough.clone());
            std::thread::spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    let n = done.fetch_add(1, Ordering::Relaxed);
                    assert!(db.set(row(n), 2).is_committed());
                }
            })
        };
        // Another one may have had too much for a moment.
        world.until("they wait for it", || {
            world.db(1).stat("dromon_waiting_for") == "n3"
        });
        assert!(begin.elapsed() > Duration::from_secs(9), "not at once");
        world.stopped_by(&slow);
        let at = done.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        assert!(done.load(Ordering::Relaxed) <= at + 4);
        slow.holds.open(Point::ApplyStart);
        world.synced(&slow);
        enough.store(true, Ordering::Relaxed);
        thread.join().expect("all of it commits");
        world.settle();
    });
}

/// The queue of one that is waited for stays as long as it may be, while others write as fast as
/// they can: it serves all the same.
#[test]
fn who_is_waited_for_is_synced_also_where_much_may_wait() {
    let options = "gcs.fc_limit=200;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S";
    run(2, options, |world| {
        let slow = world.joins_with(3, 1);
        world.voters(3);
        assert_eq!(slow.node().desync(), Outcome::Ok);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 70);
        thread.join().expect("nobody is in its way");
        slow.holds.slow(Duration::from_millis(5));
        let enough = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..6)
            .map(|n| {
                let (db, enough) = (world.db(1), enough.clone());
                std::thread::spawn(move || {
                    while !enough.load(Ordering::Relaxed) {
                        assert!(db.set(row(1000 + n), 2).is_committed());
                        std::thread::sleep(Duration::from_millis(16));
                    }
                })
            })
            .collect();
        slow.holds.open(Point::ApplyStart);
        assert_eq!(slow.node().resync(), Outcome::Ok);
        let since = Instant::now();
        while slow.stat("local_state_comment") != "Synced" {
            assert!(
                since.elapsed() < Duration::from_secs(120),
                "it is never synced"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        enough.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("all of it commits");
        }
        world.settle();
    });
}

#[test]
fn a_wish_ends_with_the_desync_of_its_owner() {
    run(3, TIGHT, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 60);
        world.stopped_by(&slow);
        assert_eq!(slow.node().desync(), Outcome::Ok);
        thread.join().expect("nobody is in its way any more");
        slow.holds.open(Point::ApplyStart);
        assert_eq!(slow.node().resync(), Outcome::Ok);
        world.synced(&slow);
        world.settle();
    });
}

#[test]
fn a_wish_ends_with_the_departure_of_its_owner() {
    run(3, TIGHT, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 60);
        world.stopped_by(&slow);
        let leaves = {
            let slow = slow.clone();
            std::thread::spawn(move || slow.disconnect())
        };
        thread.join().expect("nobody is in its way any more");
        slow.holds.open(Point::ApplyStart);
        leaves.join().expect("no panic");
        slow.connect(&World::url(), false).expect("two are there");
        world.synced(&slow);
        world.settle();
    });
}

#[test]
fn desyncs_are_counted() {
    run(2, "", |world| {
        let db = world.db(2);
        let synced = db.synced();
        assert_eq!(db.node().desync(), Outcome::Ok);
        assert_eq!(db.node().desync(), Outcome::Ok);
        assert_eq!(db.stat("desync_count"), "2");
        assert_eq!(db.node().resync(), Outcome::Ok);
        world.until("one is taken back", || db.stat("desync_count") == "1");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(db.synced(), synced, "one is left");
        assert!(db.set(row(1), 1).is_committed(), "clients are served");
        assert_eq!(db.node().resync(), Outcome::Ok);
        world.until("it is synced again", || db.synced() == synced + 1);
        world.settle();
    });
}

#[test]
fn a_rollback_fragment_does_not_wait() {
    run(2, TIGHT, |world| {
        let (db, slow) = (world.db(1), world.db(2));
        let mut t = db.begin();
        t.put(row(900), 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&db, 30);
        world.stopped_by(&slow);
        t.rollback();
        world.until("the fragment came back", || db.streaming() == 0);
        slow.holds.open(Point::ApplyStart);
        thread.join().expect("all of it commits");
        world.settle();
    });
}

#[test]
fn the_server_takes_threads_back_but_the_last() {
    run(2, "", |world| {
        let (first, db) = (world.db(1), world.db(2));
        world.until("all threads are lent", || db.returned().is_empty());
        db.fewer_appliers(7);
        for n in 0..10 {
            assert!(first.set(row(n), 1).is_committed());
        }
        world.settle();
        assert_eq!(db.returned(), [Outcome::Ok; 3], "the last one stays");
        // More may come at any time.
        db.lend();
        db.lend();
        assert!(first.set(row(1), 2).is_committed());
        world.settle();
    });
}

#[test]
fn one_applier_is_enough() {
    run(1, "", |world| {
        let options = [2, 3].map(|n| world.joins_with(n, 1));
        let first = world.db(1);
        std::thread::scope(|scope| {
            for db in world.members() {
                scope.spawn(move || {
                    for n in 0..15 {
                        let _ = db.increment(row(n % 2));
                    }
                });
            }
        });
        assert_eq!(first.node().desync(), Outcome::Ok);
        assert_eq!(first.node().resync(), Outcome::Ok);
        for db in options {
            db.disconnect();
            db.connect(&World::url(), false).expect("two are there");
            world.synced(&db);
        }
        world.settle();
    });
}

const QUARANTINE: &str = "gcs.fc_limit=4;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S;dromon.slow_node=quarantine;\
                          gcache.size=0;dromon.log_max=2000";

#[test]
fn in_quarantine_nobody_waits_for_the_slow_one_until_it_has_caught_up() {
    let options = QUARANTINE.replace("log_max=2000", "log_max=1G");
    run(3, &options, |world| {
        let slow = world.db(3);
        // For a monitor that reads numbers only.
        let alarms = |n| world.db(n).count("dromon_alarms");
        let well = alarms(3);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 200);
        world.stopped_by(&slow);
        assert_eq!(world.db(1).stat("dromon_quarantined"), "");
        thread.join().expect("it goes on by itself");
        assert_eq!(world.db(1).stat("dromon_quarantined"), "n3");
        assert!(!active(&world.db(1)));
        world.until("it knows itself", || slow.stat("dromon_slow") == "true");
        assert_eq!(world.db(1).stat("dromon_slow"), "false");
        assert!(alarms(3) > well && alarms(1) > well);
        assert!(slow.count("local_recv_queue") > 100, "it is far behind");
        slow.holds.open(Point::ApplyStart);
        world.until("it counts again", || {
            world.db(1).stat("dromon_quarantined").is_empty() && slow.stat("dromon_slow") == "false"
        });
        world.until("no alarm is left", || {
            alarms(3) == well && alarms(1) == well
        });
        world.settle();
    });
}

#[test]
fn who_is_too_far_behind_is_given_up_and_takes_a_copy() {
    run(3, QUARANTINE, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyStart);
        let (_, thread) = writer(&world.db(1), 200);
        thread.join().expect("it goes on by itself");
        // Checkpoints come with views.
        world.join(4).disconnect();
        world.until("it gives itself up", || {
            slow.node().phase() == Phase::Inconsistent
        });
        slow.holds.open(Point::ApplyStart);
        left_inconsistent(world, &slow);
        world.until("the others see it go", || world.db(1).size() == 2);
        assert!(world.db(1).set(row(1), 9).is_committed());
        starts_anew(world, &slow);
        assert_eq!(world.db(3).read(row(1)), 9);
        world.settle();
    });
}

/// FLUSH TABLES WITH READ LOCK writes the position into the state file, and its end the history.
#[test]
fn the_end_of_a_pause_does_not_make_given_up_data_usable() {
    run(3, QUARANTINE, |world| {
        let paused = world.db(3);
        assert!(paused.node().pause().is_some());
        let (_, thread) = writer(&world.db(1), 200);
        thread.join().expect("it goes on by itself");
        // Checkpoints come with views.
        world.join(4).disconnect();
        world.until("it gives itself up", || {
            paused.node().phase() == Phase::Inconsistent
        });
        paused.node().resume();
        left_inconsistent(world, &paused);
        let file = world.state_file(3);
        for connected in [true, false] {
            // The server may ask for that at any time.
            let _ = paused.node().pause();
            assert_eq!(world.state_file(3), file, "paused, connected: {connected}");
            paused.node().resume();
            assert_eq!(world.state_file(3), file, "connected: {connected}");
            if connected {
                paused.disconnect();
            }
        }
        starts_anew(world, &paused);
        world.settle();
    });
}
