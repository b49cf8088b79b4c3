//! Parts of the cluster that do not hear each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_node::{Outcome, Phase, Position};
use dromon_order::logstore::LogStore;

use crate::load::Load;
use crate::stands::hears;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, Session, row};
use crate::world::{World, addrs, run};

/// Nobody is evicted, but the lease runs out soon enough for a test.
const PATIENT: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
/// Whoever is silent is evicted.
pub const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";

fn lost(world: &World, db: &Db) {
    world.until(&format!("{} is non-primary", db.name), || {
        db.node().phase() == Phase::NonPrimary && !db.ready()
    });
    let said = "New COMPONENT: primary = no, bootstrap = no, my_idx = 0, memb_num = 1";
    assert!(
        world.report.times(&db.name, said) > 0,
        "readers of logs look for it"
    );
}

fn loaded(world: &World, streaming: bool) -> Load {
    let mut load = Load::new(streaming);
    for db in world.members() {
        load.add(&db, 2, 5);
    }
    load.go_on(world, 10);
    load
}

pub fn one_is_cut_off(options: &'static str, leader: bool) {
    run(3, options, move |world| {
        // An open streaming transaction of a node that is away keeps its rows
        // until that is evicted.
        let mut load = loaded(world, options == QUICK);
        let at = world.leader(&world.db(1));
        let n = if leader { at } else { at % 3 + 1 };
        let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
        let db = world.db(n);
        world.net.cut(&addrs(&[n]), &addrs(&others));
        lost(world, &db);
        assert_eq!(db.set(row(900), 1), End::ConnFail);
        let began = Instant::now();
        let (outcome, _) = db.node().sync_wait(Duration::from_secs(30));
        assert_eq!(outcome, Outcome::ConnFail);
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "it says so at once"
        );
        load.go_on(world, 20);
        if options == QUICK {
            world.until("the others drop it", || {
                others.iter().all(|o| world.db(*o).size() == 2)
            });
            load.go_on(world, 10);
        }
        world.net.heal();
        world.synced(&db);
        world.until("all three are members", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        load.go_on(world, 20);
        assert!(db.set(row(900), 2).is_committed());
        load.verify(world);
    });
}

/// A client is on its way to the order while its node loses the majority and comes back.
#[test]
fn what_comes_to_be_sent_only_after_the_way_back_is_not_sent() {
    const OPTIONS: &str =
        "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S;dromon.auto_stream_size=0";
    run(3, OPTIONS, |world| {
        let db = world.db(world.leader(&world.db(1)) % 3 + 1);
        let others: Vec<usize> = (1..=3).filter(|n| *n != db.n).collect();
        let mut t = db.begin();
        t.put(row(1), 7).expect("a free row");
        let trx = t.trx().expect("it wrote");
        let on_its_way = "goes out in pieces";
        world.report.hold(on_its_way);
        let client = std::thread::spawn(move || t.commit_padded(64 << 20));
        world.until("it is about to be sent", || world.report.said(on_its_way));
        world.net.cut(&addrs(&[db.n]), &addrs(&others));
        lost(world, &db);
        world.net.heal();
        world.synced(&db);
        // So it cannot take back what it sends.
        let body = trx.lock();
        world.report.let_go();
        let came = || others.iter().any(|n| world.db(*n).read(row(1)) != 0);
        assert!(!world.soon(came), "it is told that nothing was sent");
        drop(body);
        assert_eq!(client.join().expect("no panic"), End::ConnFail);
        assert!(db.set(row(1), 8).is_committed());
        world.settle();
        assert_eq!(world.db(others[0]).read(row(1)), 8);
    });
}

#[test]
fn a_follower_is_cut_off_and_returns() {
    one_is_cut_off(PATIENT, false);
}

#[test]
fn the_leader_is_cut_off_and_returns() {
    one_is_cut_off(PATIENT, true);
}

#[test]
fn an_evicted_node_joins_again_by_itself() {
    one_is_cut_off(QUICK, false);
}

/// Whose thread fails amid that tries again.
#[test]
fn who_fails_to_join_again_by_a_mistake_tries_once_more() {
    run(3, QUICK, |world| {
        let db = world.db(world.leader(&world.db(1)) % 3 + 1);
        let others: Vec<usize> = (1..=3).filter(|n| *n != db.n).collect();
        world.net.cut(&addrs(&[db.n]), &addrs(&others));
        world.until("it is evicted", || world.db(others[0]).size() == 2);
        world.net.panic_at_start(&db.addr);
        world.net.heal();
        world.until("it is back", || world.db(others[0]).size() == 3);
        world.synced(&db);
        assert!(world.report.said("it failed at that"));
        assert!(db.set(row(1), 1).is_committed());
        world.settle();
    });
}

/// Silent nodes are replaced and evicted late, so that a busy machine does not
/// change what a test sees.
const SLOW: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";

#[test]
fn those_who_elect_a_new_leader_stay_primary() {
    elects_a_new_leader("");
}

/// A connection keeps its times: a leader is still replaced as late as before.
#[test]
fn they_stay_primary_whatever_is_set_meanwhile() {
    elects_a_new_leader("evs.suspect_timeout=PT1S");
}

fn elects_a_new_leader(set: &'static str) {
    run(3, SLOW, move |world| {
        let mut load = loaded(world, true);
        for db in world.members() {
            assert_eq!(db.node().set_options(set), Ok(()));
        }
        let said = "a silent member is removed after 7.8 s from now on";
        let told = [1, 2, 3].map(|n| world.report.times(&format!("n{n}"), said));
        let n = world.leader(&world.db(1));
        let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
        // One of them loses sight of the leader well before the other.
        for o in &others {
            world.net.cut(&addrs(&[n]), &addrs(&[*o]));
            std::thread::sleep(Duration::from_millis(1500));
        }
        lost(world, &world.db(n));
        load.go_on(world, 20);
        for o in &others {
            let who = format!("n{o} Note: this node has lost contact");
            assert!(!world.report.said(&who), "n{o} was non-primary");
        }
        assert_eq!(told, [usize::from(!set.is_empty()); 3]);
        world.net.heal();
        world.synced(&world.db(n));
        load.go_on(world, 20);
        load.verify(world);
    });
}

/// It is back and lacks next to nothing, but what it was at takes long, a change of a table say: until that is done
/// its server refuses its clients.
#[test]
fn who_is_back_is_not_shown_as_synced_before_its_server_serves() {
    run(3, SLOW, |world| {
        let db = world.db(world.leader(&world.db(1)) % 3 + 1);
        let others: Vec<usize> = (1..=3).filter(|o| *o != db.n).collect();
        world.synced(&db);
        let synced = || world.report.times(&db.name, "Shifting JOINED -> SYNCED");
        let before = synced();
        db.holds.close(Point::ApplyStart);
        assert!(world.db(others[0]).set(row(1), 1).is_committed());
        world.until("it is at it", || db.holds.waiting(Point::ApplyStart) == 1);
        world.net.cut(&addrs(&[db.n]), &addrs(&others));
        lost(world, &db);
        world.net.heal();
        world.until("it is synced for the others", || synced() > before);
        world.until("it is back", || db.node().phase() == Phase::Joined);
        assert!(!world.soon(|| db.stat("local_state_comment") == "Synced"));
        assert_eq!(db.stat("local_state"), "3");
        assert!(!db.ready());
        hears(world, db.n, "stands: Joined");
        db.holds.open(Point::ApplyStart);
        world.synced(&db);
        hears(world, db.n, "stands: Synced");
        world.settle();
    });
}

#[test]
fn current_reads_end_when_the_node_is_non_primary() {
    run(3, PATIENT, |world| {
        for leader in [true, false] {
            let at = world.leader(&world.db(1));
            let n = if leader { at } else { at % 3 + 1 };
            let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
            let db = world.db(n);
            world.net.cut(&addrs(&[n]), &addrs(&others));
            // Whenever they began, they end together.
            let reads: Vec<_> = (0..8)
                .map(|_| {
                    std::thread::sleep(Duration::from_millis(125));
                    let db = db.clone();
                    std::thread::spawn(move || {
                        let (outcome, _) = db.node().sync_wait(Duration::from_secs(30));
                        (outcome, Instant::now())
                    })
                })
                .collect();
            lost(world, &db);
            let at = Instant::now();
            for read in reads {
                let (outcome, ended) = read.join().expect("it does not panic");
                assert_eq!(outcome, Outcome::ConnFail);
                let late = ended.saturating_duration_since(at);
                assert!(late < Duration::from_millis(500), "it ended after {late:?}");
            }
            world.net.heal();
            world.synced(&db);
        }
    });
}

/// Nor does what its clients have rolled back, and could not tell the others.
#[test]
fn current_reads_behind_a_rollback_end_when_the_node_is_non_primary() {
    run(3, PATIENT, |world| {
        let n = world.leader(&world.db(1)) % 3 + 1;
        let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
        let db = world.db(n);
        let mut stream = db.begin();
        stream.put(row(1), 1).expect("a free row");
        stream.fragment().expect("nobody is in its way");
        world.net.cut(&addrs(&[n]), &addrs(&others));
        stream.rollback();
        let read = {
            let db = db.clone();
            std::thread::spawn(move || {
                let (outcome, _) = db.node().sync_wait(Duration::from_secs(30));
                (outcome, Instant::now())
            })
        };
        lost(world, &db);
        let at = Instant::now();
        let (outcome, ended) = read.join().expect("it does not panic");
        assert_eq!(outcome, Outcome::ConnFail);
        let late = ended.saturating_duration_since(at);
        assert!(late < Duration::from_millis(500), "it ended after {late:?}");
        world.net.heal();
        world.synced(&db);
        world.settle();
    });
}

#[test]
fn nobody_has_a_majority() {
    run(3, PATIENT, |world| {
        let mut load = loaded(world, true);
        for n in 1..=3 {
            world.net.cut(&addrs(&[n]), &addrs(&[1, 2, 3]));
        }
        for db in world.members() {
            lost(world, &db);
        }
        assert_eq!(world.db(2).set(row(900), 1), End::ConnFail);
        world.net.heal();
        for db in world.members() {
            world.synced(&db);
        }
        load.go_on(world, 20);
        load.verify(world);
    });
}

/// The commit of one that is cut off in the middle of it.
fn commit_while_cut(world: &World, db: &Arc<Db>, key: u32) -> End {
    let n = db.n;
    let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
    let mut t = db.begin();
    t.put(row(key), 1).expect("a free row");
    world.net.cut(&addrs(&[n]), &addrs(&others));
    t.commit()
}

#[test]
fn a_commit_under_way_is_unknown_until_the_node_is_back() {
    run(3, PATIENT, |world| {
        for n in [1, 2] {
            let db = world.db(n);
            let end = commit_while_cut(world, &db, n as u32);
            assert_eq!(end, End::Unknown, "n{n} cannot know");
            world.net.heal();
            for db in world.members() {
                world.synced(&db);
            }
            world.settle();
            // Sent and never taken back: it is ordered in the end.
            for db in world.members() {
                assert_eq!(db.read(row(n as u32)), 1, "on {}", db.name);
            }
        }
    });
}

#[test]
fn a_statement_under_way_is_unknown_and_the_log_says_so() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 5).is_committed());
        world.settle();
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        assert_eq!(db.ddl(&Ddl::Add { table: 0, n: 1 }), End::Unknown);
        assert!(world.report.said("error 1205, which is no lock wait"));
        world.net.heal();
        for db in world.members() {
            world.synced(&db);
        }
        world.settle();
        for db in world.members() {
            assert_eq!(db.read(row(1)), 6, "on {}", db.name);
        }
    });
}

/// What began when the others were known to be gone was never sent: its client
/// may try again, and nothing of it is done when they are back.
#[test]
fn what_is_refused_without_a_majority_is_not_done_later() {
    run(2, PATIENT, |world| {
        let add = Ddl::Add { table: 0, n: 100 };
        let mut expected = 5;
        assert!(world.db(1).set(row(1), expected).is_committed());
        for gone in [2, 1] {
            let stays = world.db(3 - gone);
            world.settle();
            world.crash(gone);
            // Its connections are closed; the lease stands for a while yet.
            let clients: Vec<_> = (0..2)
                .map(|n| {
                    let (db, add) = (stays.clone(), add.clone());
                    std::thread::spawn(move || match n {
                        0 => db.ddl(&add),
                        _ => db.set(row(2), 7),
                    })
                })
                .collect();
            for client in clients {
                assert_eq!(client.join().expect("no panic"), End::ConnFail);
            }
            lost(world, &stays);
            let disk = world.crashed_disk(gone);
            let position = disk.position;
            let again = world.open(gone, disk, position);
            again.connect(&World::url(), false).expect("a majority");
            world.synced(&again);
            world.synced(&stays);
            world.settle();
            for db in world.members() {
                let rows = (db.read(row(1)), db.read(row(2)));
                assert_eq!(rows, (expected, 0), "on {}", db.name);
            }
            assert!(stays.ddl(&add).is_committed());
            expected += 100;
            world.voters(2);
        }
    });
}

#[test]
fn a_streaming_transaction_elsewhere_survives() {
    run(3, PATIENT, |world| {
        let (away, stays) = (world.db(3), world.db(1));
        let mut streams = stays.begin();
        streams.put(row(1), 1).expect("a free row");
        streams.fragment().expect("nobody is in its way");
        let mut lost_one = away.begin();
        lost_one.put(row(2), 1).expect("a free row");
        lost_one.fragment().expect("nobody is in its way");
        world.settle();
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        lost(world, &away);
        streams.put(row(3), 1).expect("a free row");
        streams.fragment().expect("two of three are there");
        world.net.heal();
        world.synced(&away);
        assert!(streams.commit().is_committed());
        let end = lost_one.commit();
        assert!(!end.is_committed(), "its node was away: {end:?}");
        world.settle();
        for db in world.members() {
            assert_eq!(db.streaming(), 0, "on {}", db.name);
            assert_eq!((db.read(row(1)), db.read(row(2))), (1, 0), "on {}", db.name);
        }
    });
}

/// Its node is back, and has not got to the view that rolled it back on the others.
#[test]
fn a_streaming_transaction_does_not_end_before_its_node_knows_that_it_is_over() {
    run(3, PATIENT, |world| {
        let (away, stays) = (world.db(3), world.db(1));
        let mut lost_one = away.begin();
        lost_one.put(row(2), 1).expect("a free row");
        lost_one.fragment().expect("nobody is in its way");
        world.settle();
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        lost(world, &away);
        assert!(stays.set(row(9), 1).is_committed());
        away.holds.close(Point::ApplyStart);
        world.net.heal();
        world.until("it is back", || away.node().phase() == Phase::Joined);
        let ends = std::thread::spawn(move || lost_one.commit());
        assert!(!world.soon(|| ends.is_finished()));
        away.holds.open(Point::ApplyStart);
        let end = ends.join().expect("no panic");
        assert!(
            !end.is_committed(),
            "the others have rolled it back: {end:?}"
        );
        world.synced(&away);
        world.settle();
        for db in world.members() {
            assert_eq!(db.streaming(), 0, "on {}", db.name);
            assert_eq!(db.read(row(2)), 0, "on {}", db.name);
        }
    });
}

/// What a client of n3 sends is ordered by the others, and its node is cut off before it hears of that.
fn cut_off_amid(world: &World, client: impl FnOnce() -> End + Send + 'static) {
    let away = world.db(3);
    world.net.hang_log(&World::addr(1));
    world.net.hang_log(&World::addr(2));
    let sent = away.count("replicated");
    let client = std::thread::spawn(client);
    world.until("it is sent", || away.count("replicated") > sent);
    std::thread::sleep(Duration::from_millis(300));
    world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
    world.net.mend_log(&World::addr(1));
    world.net.mend_log(&World::addr(2));
    assert_eq!(client.join().expect("no panic"), End::Unknown);
}

/// The node is back, and has not applied its own write set whose outcome was unknown.
#[test]
fn who_took_a_row_after_an_unknown_outcome_gives_way_to_it() {
    run(3, PATIENT, |world| {
        let away = world.db(3);
        let first = away.clone();
        cut_off_amid(world, move || first.increment(row(1)));
        let mut second = away.begin();
        second.add(row(1), 1).expect("it is free");
        away.holds.close(Point::ApplyStart);
        world.until("the others have the first one", || {
            world.db(1).read(row(1)) == 1
        });
        world.net.heal();
        world.until("it is back", || away.node().phase() == Phase::Joined);
        let second = std::thread::spawn(move || second.commit());
        assert!(!world.soon(|| second.is_finished()));
        away.holds.open(Point::ApplyStart);
        let end = second.join().expect("no panic");
        assert!(
            !end.is_committed(),
            "it knew nothing of the first one: {end:?}"
        );
        world.synced(&away);
        world.settle();
        assert_eq!(away.read(row(1)), 1);
    });
}

/// Row 1 by a known fragment; then `last` of the same client is ordered, and its node is cut off
/// before it hears of that. `options`: whether the others evict it.
fn a_stream_of_unknown_outcome(
    options: &str,
    evicted: bool,
    last: impl FnOnce(Session) -> End + Send + 'static,
    expected: [i64; 2],
) {
    run(3, options, move |world| {
        let away = world.db(3);
        let mut client = away.begin();
        client.put(row(1), 1).expect("a free row");
        client.fragment().expect("nobody is in its way");
        world.settle();
        let before = world.db(1).node().last_committed().seqno;
        cut_off_amid(world, move || last(client));
        world.until("the others have it", || {
            world.db(1).node().last_committed().seqno > before
        });
        if evicted {
            world.until("the others drop it", || world.db(1).size() == 2);
        }
        world.net.heal();
        world.synced(&away);
        world.until("all of it has ended", || {
            world.members().iter().all(|d| d.streaming() == 0)
        });
        world.settle();
        for db in world.members() {
            let rows = [1, 2].map(|n| db.read(row(n)));
            assert_eq!(rows, expected, "on {}", db.name);
        }
        // Nothing of it is in anybody's way.
        for n in [1, 2] {
            assert!(away.set(row(n), 9).is_committed());
        }
        world.settle();
    });
}

#[test]
fn the_end_of_a_stream_whose_outcome_was_unknown_brings_all_of_it() {
    a_stream_of_unknown_outcome(PATIENT, false, Session::commit, [1, 0]);
}

#[test]
fn so_does_one_with_a_rest() {
    let last = |mut client: Session| {
        client.put(row(2), 1).expect("a free row");
        client.commit_with_rest()
    };
    a_stream_of_unknown_outcome(PATIENT, false, last, [1, 1]);
}

#[test]
fn so_it_does_where_the_others_have_evicted_its_node() {
    a_stream_of_unknown_outcome(QUICK, true, Session::commit, [1, 0]);
}

#[test]
fn a_fragment_whose_outcome_was_unknown_leaves_nothing() {
    let last = |mut client: Session| {
        client.put(row(2), 1).expect("a free row");
        match client.fragment() {
            Ok(at) => panic!("it has a place: {at}"),
            Err(end) => end,
        }
    };
    a_stream_of_unknown_outcome(PATIENT, false, last, [0, 0]);
}

#[test]
fn a_node_that_is_cut_off_can_leave_and_come_back() {
    run(3, PATIENT, |world| {
        let mut load = loaded(world, false);
        let db = world.db(3);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        lost(world, &db);
        db.disconnect();
        world.net.heal();
        load.go_on(world, 10);
        db.connect(&World::url(), false).expect("two are there");
        world.synced(&db);
        load.go_on(world, 10);
        load.verify(world);
    });
}

#[test]
fn without_a_primary_component_nobody_joins() {
    let options = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S;pc.wait_prim_timeout=PT1S";
    run(3, options, |world| {
        world.db(3).disconnect();
        world.voters(2);
        world.net.cut(&addrs(&[1]), &addrs(&[2]));
        lost(world, &world.db(1));
        lost(world, &world.db(2));
        let refused = world.db(3).connect(&World::url(), false);
        refused.expect_err("there is no majority");
        assert_eq!(world.db(3).node().phase(), Phase::Closed);
        world.net.heal();
        world.synced(&world.db(1));
        world.synced(&world.db(2));
        world
            .db(3)
            .connect(&World::url(), false)
            .expect("now it is");
        world.synced(&world.db(3));
        world.settle();
    });
}

/// An empty server at `n`, which was a member, founds a cluster of its own.
fn founds_anew(world: &World, n: usize) -> Arc<Db> {
    world.crash(n);
    let empty = world.open(n, Disk::empty(), Position::UNDEFINED);
    empty.connect("gcomm://", true).expect("a new disk");
    world.synced(&empty);
    empty
}

#[test]
fn a_cluster_of_another_history_at_a_members_address_ends_no_wait() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        assert!(one.set(row(1), 1).is_committed());
        world.settle();
        let was = world.net.log_id(&World::addr(1));
        world.crash(3);
        let strange = founds_anew(world, 2);
        lost(world, &one);
        let told = |who: &str| {
            world
                .report
                .times(who, "of this name but of another history")
        };
        world.until("n1 asks it", || told("n1") > 0);
        // n3 waits with its own log, as it does not find that cluster before.
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3]));
        let again = world.open_again(3);
        again.connect(&World::url(), false).expect("one is there");
        for db in [&one, &again] {
            world.synced(db);
            assert_eq!(db.read(row(1)), 1, "on {}", db.name);
        }
        assert_eq!(world.net.log_id(&World::addr(1)), was, "the same log");
        assert!(!world.report.said("the others went on without this node"));
        strange.disconnect();
    });
}

#[test]
fn who_waits_with_its_log_does_not_give_it_up_for_another_history() {
    run(3, QUICK, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        let was = world.net.log_id(&World::addr(3));
        for n in [1, 3] {
            world.crash(n);
        }
        world.net.cut(&addrs(&[2]), &addrs(&[3]));
        let strange = founds_anew(world, 2);
        let again = world.open_again(3);
        let joins = {
            let again = again.clone();
            std::thread::spawn(move || again.connect(&World::url(), false))
        };
        let says = |text: &str| world.report.times("n3", text) > 0;
        world.until("n3 waits", || says("waits for a majority with"));
        world.net.heal();
        world.until("it asks", || says("of this name but of another history"));
        world.net.cut(&addrs(&[2]), &addrs(&[1, 3]));
        let one = world.open_again(1);
        one.connect(&World::url(), false).expect("n3 is there");
        joins.join().expect("no panic").expect("n1 is there");
        world.synced(&again);
        assert_eq!(world.net.log_id(&World::addr(3)), was, "the same log");
        assert_eq!(again.read(row(1)), 1);
        strange.disconnect();
    });
}

#[test]
fn who_joins_another_history_keeps_the_log_of_its_own() {
    run(3, QUICK, |world| {
        assert!(world.db(1).set(row(1), 1).is_committed());
        world.settle();
        for n in [1, 3] {
            world.crash(n);
        }
        let strange = founds_anew(world, 2);
        let dir = world.data_dir(3);
        let again = world.open_again(3);
        assert_ne!(dir, world.data_dir(3));
        let log = world.copy_log(3);
        again.connect(&World::url(), false).expect("n2 leads");
        world.synced(&again);
        assert_eq!(again.read(row(1)), 0, "a copy of n2");
        assert_eq!(strange.size(), 2);
        let former = world.net.copy_log(&world.data_dir(3).join("former"));
        assert_eq!(former.bounds(), log.bounds());
        assert!(
            world
                .report
                .said("is kept: its files are now the toy's memory")
        );
    });
}
