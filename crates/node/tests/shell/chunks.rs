//! Large transactions that the others apply in chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::{Outcome, Phase, Position};

use crate::membership::begin_join;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, Disk, End, Key, Session, row};
use crate::world::{World, run};

/// 100 rows make about four chunks.
pub const ROWS: u32 = 100;
pub const PATIENT: &str =
    "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";

/// A transaction that changes rows `from` and following.
pub fn large(db: &Arc<Db>, from: u32, value: i64) -> Session {
    let mut t = db.begin();
    for n in from..from + ROWS {
        t.put(row(n), value).expect("a free row");
    }
    t
}

pub fn commit(session: Session) -> JoinHandle<End> {
    std::thread::spawn(move || session.commit())
}

/// Those who would ask db2 for the next chunk do not apply.
fn hold_the_others(world: &World) {
    for other in world.members().iter().filter(|d| d.n != 2) {
        other.holds.close(Point::ApplyStart);
    }
}

/// Commits a large transaction of db2: its first chunk is ordered and no more.
pub fn begin(world: &World, session: Session) -> JoinHandle<End> {
    hold_the_others(world);
    let trx = session.trx().expect("it wrote");
    let client = commit(session);
    world.until("its first chunk is ordered", || {
        format!("{:?}", trx.lock().stage) == "Chunked"
    });
    client
}

/// One that has begun.
fn begun(world: &World) -> (Arc<Db>, JoinHandle<End>) {
    let db = world.db(2);
    let session = large(&db, 1, 1);
    let client = begin(world, session);
    (db, client)
}

/// `db` has committed the first chunk of what has begun, and the next one cannot begin
/// there: it comes when that is finished.
pub fn apply_the_first(world: &World, db: &Db) {
    db.holds.close(Point::ApplyLeft);
    db.holds.open(Point::ApplyStart);
    world.until("the first chunk is applied there", || {
        db.holds.waiting(Point::ApplyLeft) == 1
    });
    assert_eq!(db.streaming(), 1);
}

/// One that has begun and is asked to give way, by a rival of db1 that wants row 700.
fn giving_way(world: &World) -> (Arc<Db>, JoinHandle<End>, JoinHandle<End>) {
    let (winner, db) = (world.db(1), world.db(2));
    let mut t = large(&db, 1, 1);
    t.lock(row(700)).expect("a free row");
    let trx = t.trx().expect("it wrote");
    let client = begin(world, t);
    let rival = std::thread::spawn(move || winner.set(row(700), 5));
    world.until("it is asked to give way", || trx.lock().must_abort);
    (db, client, rival)
}

pub fn go_on(world: &World) {
    for db in world.members() {
        db.holds.open(Point::ApplyStart);
    }
}

pub fn end(client: JoinHandle<End>) -> End {
    client.join().expect("no panic")
}

pub fn nothing_open(world: &World) {
    world.settle();
    for db in world.members() {
        assert_eq!(db.streaming(), 0, "on {}", db.name);
    }
}

#[test]
fn a_large_transaction_takes_many_places() {
    run(3, PATIENT, |world| {
        let dbs = world.members();
        let before = world.settle().seqno;
        let seqno = large(&dbs[0], 1, 7).commit().seqno();
        assert!(seqno >= before + 4, "{seqno} after {before}");
        nothing_open(world);
        for n in [1, ROWS / 2, ROWS] {
            assert_eq!(dbs[2].read(row(n)), 7);
        }
        // A small one does not.
        let small = dbs[0].set(row(1), 8).seqno();
        assert_eq!(small, seqno + 1);
        assert!(world.report.said("are applied in"));
    });
}

#[test]
fn of_one_node_alone_it_is_whole() {
    run(1, PATIENT, |world| {
        let before = world.settle().seqno;
        assert_eq!(large(&world.db(1), 1, 7).commit().seqno(), before + 1);
    });
}

#[test]
fn small_ones_pass_a_large_one() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        for n in 0..20 {
            // Nothing of them waits for the chunk that the others do not apply.
            assert!(db.set(row(1000 + n), 1).is_committed());
        }
        assert!(!client.is_finished());
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn chunks_are_begun_before_their_place_and_small_ones_take_those_before() {
    run(3, PATIENT, |world| {
        let stop = Arc::new(AtomicBool::new(false));
        let small: Vec<JoinHandle<u32>> = (world.members().into_iter().zip(0u32..))
            .map(|(db, i)| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut n = 0;
                    while !stop.load(Relaxed) {
                        assert!(db.set(row(5000 + 1000 * i + n % 500), 1).is_committed());
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        let begun = || world.db(1).count("dromon_chunks_begun_ahead");
        let before = begun();
        // On a busy machine small ones may not come when they should.
        let mut written = 10;
        while written < 15 || begun() == before {
            assert!(large(&world.db(2), 1, written).commit().is_committed());
            written += 1;
        }
        stop.store(true, Relaxed);
        let passed: u32 = small.into_iter().map(|s| s.join().expect("no panic")).sum();
        nothing_open(world);
        assert!(passed > 0);
        assert_eq!(
            world.db(2).count("dromon_chunks_begun_ahead"),
            0,
            "it has the whole"
        );
        for n in [1, ROWS / 2, ROWS] {
            assert_eq!(world.db(3).read(row(n)), written - 1);
        }
    });
}

#[test]
fn many_at_once() {
    run(3, PATIENT, |world| {
        let mut clients = Vec::new();
        for (i, db) in world.members().iter().enumerate() {
            for j in 0..3 {
                clients.push(commit(large(db, 1 + (i as u32 * 3 + j) * ROWS, 5)));
            }
        }
        for client in clients {
            assert!(end(client).is_committed());
        }
        nothing_open(world);
    });
}

#[test]
fn whoever_changes_one_of_its_rows_meanwhile_fails() {
    run(3, PATIENT, |world| {
        let other = world.db(1);
        let mut rival = other.begin();
        rival.put(row(50), 9).expect("a free row");
        let (_, client) = begun(world);
        let rival = commit(rival);
        world.until("both are ordered", || {
            other.count("local_cert_failures") == 1
        });
        go_on(world);
        assert_eq!(end(rival), End::Deadlock);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert_eq!(other.read(row(50)), 1);
        assert!(other.set(row(50), 3).is_committed(), "now it is closed");
    });
}

#[test]
fn who_uses_a_table_of_which_it_has_too_many_rows_waits_for_its_end() {
    let options = format!("{PATIENT};dromon.key_escalation=50");
    run(3, &options, |world| {
        let (db, client) = begun(world);
        let other = world.db(1);
        world.until("db1 has it", || {
            other.count("dromon_streamed_automatic") == 1
        });
        let mut next = other.begin();
        next.put(row(500), 9).expect("a free row");
        let next = commit(next);
        // Its own node's clients met its locks.
        assert!(db.set(row(600), 8).is_committed());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!next.is_finished());
        go_on(world);
        assert!(end(client).is_committed());
        assert!(end(next).is_committed());
        nothing_open(world);
        assert_eq!(other.count("local_cert_failures"), 0);
        assert_eq!((db.read(row(1)), db.read(row(500))), (1, 9));
        assert!(other.set(row(1), 3).is_committed(), "now it is closed");
    });
}

#[test]
fn a_statement_on_its_table_comes_first() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        let table = row(1).table;
        let issuer = db.clone();
        let ddl = std::thread::spawn(move || issuer.ddl(&Ddl::Add { table, n: 1 }));
        world.until("the large one is told", || client.is_finished());
        go_on(world);
        assert_eq!(end(client), End::Deadlock);
        assert!(end(ddl).is_committed());
        nothing_open(world);
        assert_eq!(db.read(row(1)), 0);
    });
}

#[test]
fn a_statement_on_another_table_disturbs_nobody() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        let ddl = std::thread::spawn(move || db.ddl(&Ddl::Add { table: 9, n: 1 }));
        go_on(world);
        assert!(end(ddl).is_committed());
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

/// The server may throw away for it what it has, by a lock that no key names.
#[test]
fn the_next_chunk_waits_for_a_statement_before_it() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        let (one, three) = (world.db(1), world.db(3));
        apply_the_first(world, &three);
        three.holds.close(Point::DdlRan);
        assert!(db.ddl(&Ddl::Add { table: 9, n: 1 }).is_committed());
        three.holds.open(Point::ApplyLeft);
        world.until("n3 has run the statement", || {
            three.holds.waiting(Point::DdlRan) == 1
        });
        one.holds.open(Point::ApplyStart);
        world.until("n1 is beyond the end", || one.streaming() == 0);
        world.until("n3 has all of that", || {
            three.stat("dromon_log_committed") == one.stat("dromon_log_committed")
        });
        std::thread::sleep(Duration::from_millis(300));
        let only = three.position().seqno;
        assert_eq!(three.applying().into_iter().collect::<Vec<_>>(), [only]);
        three.holds.open(Point::DdlRan);
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn what_a_server_throws_away_it_gets_whole() {
    run(3, PATIENT, |world| {
        let (_, client) = begun(world);
        let other = world.db(1);
        apply_the_first(world, &other);
        // As by a lock on a table that no key names.
        other.throw_streaming_away();
        assert_eq!(other.streaming(), 0);
        assert!(!client.is_finished());
        other.holds.open(Point::ApplyLeft);
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert_eq!(other.read(row(50)), 1);
        assert!(world.report.said("applied whole at its end"));
    });
}

/// An applier is at the next chunk, whose rows fail for that here and nowhere else.
#[test]
fn a_chunk_amid_which_the_server_throws_it_away_puts_nobody_out() {
    run(3, PATIENT, |world| {
        let (_, client) = begun(world);
        let other = world.db(1);
        apply_the_first(world, &other);
        other.holds.close(Point::ApplyStart);
        other.holds.open(Point::ApplyLeft);
        world.until("it is at the next chunk", || {
            other.holds.waiting(Point::ApplyStart) == 1
        });
        other.throw_streaming_away();
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert_eq!(other.node().phase(), Phase::Joined);
        assert_eq!(other.read(row(50)), 1, "the whole, at the end");
    });
}

#[test]
fn what_it_throws_away_counts_for_the_chunks_that_wait_behind() {
    run(3, PATIENT, |world| {
        let slow = world.db(3);
        slow.holds.close(Point::ApplyInCommit);
        let client = commit(large(&world.db(2), 1, 1));
        world.until("the first chunk is in its table", || {
            slow.holds.waiting(Point::ApplyInCommit) == 1
        });
        assert!(end(client).is_committed(), "the others are not held");
        // Its other appliers have the next chunks in hand, and wait.
        slow.throw_streaming_away();
        slow.holds.open(Point::ApplyInCommit);
        nothing_open(world);
        assert_eq!(slow.read(row(50)), 1);
    });
}

#[test]
fn who_lacks_chunks_gives_no_copy_meanwhile() {
    gives_none_meanwhile("n3");
}

/// The joiner asks n9 next, which is not there, and then n3 again.
#[test]
fn who_gave_no_copy_is_asked_again_though_the_list_is_strict() {
    gives_none_meanwhile("n3,n9");
}

/// n3 lacks chunks, and `donors` are wanted.
fn gives_none_meanwhile(donors: &'static str) {
    run(3, PATIENT, move |world| {
        let (_, client) = begun(world);
        let thrower = world.db(3);
        thrower.holds.open(Point::ApplyStart);
        world.until("the first chunk is applied there", || {
            thrower.streaming() == 1
        });
        thrower.throw_streaming_away();
        let joiner = world.open(4, Disk::empty(), Position::UNDEFINED);
        joiner
            .connect_from(&World::url(), donors, false)
            .expect("there is a cluster");
        world.until("it is asked for a copy", || {
            world.report.said("gives no copy now")
        });
        go_on(world);
        assert!(end(client).is_committed());
        world.synced(&joiner);
        nothing_open(world);
        assert_eq!(joiner.read(row(50)), 1);
    });
}

/// A node spares an applier while streams of others hold rows there: then it must not give all
/// others to what lies ahead, nor take one back that what comes before that needs.
fn beside_the_spared_one(appliers: usize, fewer: usize) {
    run(2, PATIENT, move |world| {
        let c = world.joins_with(3, appliers);
        world.voters(3);
        let a = world.db(1);
        let mut stream = a.begin();
        stream.put(Key { table: 3, row: 1 }, 1).expect("a free row");
        stream.fragment().expect("nobody is in its way");
        world.settle();
        assert_eq!(c.streaming(), 1);
        c.holds.jitter(appliers as u64);
        let stop = Arc::new(AtomicBool::new(false));
        let small = [1, 2, 2].map(|of| {
            let (stop, db) = (stop.clone(), world.db(of));
            std::thread::spawn(move || {
                let from = 5000 + 1000 * of as u32;
                let mut n = 0;
                while !stop.load(Relaxed) {
                    // Two of them have the same rows.
                    let _ = db.set(row(from + n % 500), 1);
                    n += 1;
                }
            })
        });
        for i in 0..6 {
            let both =
                [(1, 1), (2, 500)].map(|(of, from)| commit(large(&world.db(of), from, 10 + i)));
            if i == 2 && fewer > 0 {
                c.fewer_appliers(fewer);
            }
            for client in both {
                assert!(end(client).is_committed());
            }
        }
        stop.store(true, Relaxed);
        for client in small {
            client.join().expect("no panic");
        }
        assert!(stream.commit().is_committed());
        nothing_open(world);
        assert_eq!((c.read(row(ROWS)), c.read(row(500))), (15, 15));
    });
}

#[test]
fn of_two_appliers_one_lies_ahead_at_most_beside_the_spared_one() {
    beside_the_spared_one(2, 0);
}

#[test]
fn of_three_appliers_not_all_lie_ahead_beside_the_spared_one() {
    beside_the_spared_one(3, 0);
}

#[test]
fn of_five_appliers_the_server_may_take_some_back_amid_large_ones() {
    beside_the_spared_one(5, 3);
}

#[test]
fn the_origin_asks_if_the_other_one_is_paused() {
    run(2, PATIENT, |world| {
        let other = world.db(2);
        assert_eq!(other.node().desync(), Outcome::Ok);
        world.until("it is desynced", || {
            other.stat("local_state_comment") == "Donor/Desynced"
        });
        other.node().pause().expect("nothing is under way here");
        assert!(large(&world.db(1), 1, 1).commit().is_committed());
        other.node().resume();
        assert_eq!(other.node().resync(), Outcome::Ok);
        world.synced(&other);
        nothing_open(world);
        assert_eq!(other.read(row(50)), 1);
    });
}

#[test]
fn the_last_in_line_asks_if_the_others_do_not() {
    run(3, PATIENT, |world| {
        // They would ask again when they have applied the first chunk.
        let (db, client) = begun(world);
        world.until("one is asked for ahead", || {
            let open = db.stat("dromon_large_open");
            open.contains("on n2: 2 of 3 chunks")
        });
        world.until("somebody is told", || {
            world.report.said("nothing came after 2 of its 3 chunks")
        });
        assert!(!client.is_finished());
        world.until("its client is told", || client.is_finished());
        assert_eq!(db.stat("dromon_large_open"), "");
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn it_gives_way_at_its_origin_and_runs_again_at_its_end() {
    run(3, PATIENT, |world| {
        let (db, client, rival) = giving_way(world);
        go_on(world);
        assert!(end(rival).is_committed());
        let end = end(client);
        assert!(
            matches!(end, End::Committed { replayed: true, .. }),
            "{end:?}"
        );
        nothing_open(world);
        assert_eq!((db.read(row(700)), db.read(row(1))), (5, 1));
    });
}

#[test]
fn giving_way_it_lets_nobody_take_its_rows_before_it_runs_again() {
    run(3, PATIENT, |world| {
        let (db, client, rival) = giving_way(world);
        let mut t = db.begin();
        t.add(row(1), 5).expect("a free row");
        let trx = t.trx().expect("it wrote");
        let next = commit(t);
        let stage = || format!("{:?}", trx.lock().stage);
        world.until("it wants to commit", || stage() != "Executing");
        assert!(!world.soon(|| stage() != "Waiting"), "it would be lost");
        go_on(world);
        assert!(end(rival).is_committed());
        let client = end(client);
        assert!(
            matches!(client, End::Committed { replayed: true, .. }),
            "{client:?}"
        );
        assert_eq!(end(next), End::Deadlock);
        nothing_open(world);
        assert_eq!((db.read(row(700)), db.read(row(1))), (5, 1));
    });
}

/// Its node is cut off while it waits to run again: the order says what came of it when the node is
/// back. A server that is told nothing ends.
#[test]
fn it_gives_way_and_its_node_is_cut_off() {
    run(3, "dromon.auto_stream_size=1K", |world| {
        let (db, client, rival) = giving_way(world);
        assert!(!world.soon(|| client.is_finished()));
        let others = [World::addr(1), World::addr(3)];
        world.net.cut(&[World::addr(2)], &others);
        world.until("it knows", || db.node().phase() == Phase::NonPrimary);
        assert!(!world.soon(|| client.is_finished()), "nobody knows yet");
        world.net.heal();
        go_on(world);
        assert!(end(rival).is_committed());
        let end = end(client);
        assert!(end == End::Deadlock || end.is_committed(), "{end:?}");
        world.synced(&db);
        nothing_open(world);
        let failed = i64::from(!end.is_committed());
        assert_eq!(db.count("local_cert_failures"), failed, "{end:?}");
        let rows = (db.read(row(700)), db.read(row(1)));
        assert_eq!(rows, (5, i64::from(end.is_committed())), "{end:?}");
    });
}

/// The same, and the others evict its node, which joins them again.
#[test]
fn it_gives_way_and_its_node_is_evicted() {
    run(3, MORTAL, |world| {
        let (db, client, rival) = giving_way(world);
        let others = [World::addr(1), World::addr(3)];
        world.net.cut(&[World::addr(2)], &others);
        world.until("it is evicted", || {
            world.report.said("was silent and is evicted")
        });
        go_on(world);
        assert!(end(rival).is_committed());
        world.net.heal();
        assert_eq!(end(client), End::Deadlock);
        world.synced(&db);
        nothing_open(world);
        assert_eq!((db.read(row(700)), db.read(row(1))), (5, 0));
    });
}

/// The same, and its node leaves in order.
#[test]
fn it_gives_way_and_its_node_leaves() {
    run(3, PATIENT, |world| {
        let (db, client, rival) = giving_way(world);
        let leaving = std::thread::spawn(move || db.disconnect());
        assert_eq!(end(client), End::Deadlock);
        go_on(world);
        assert!(end(rival).is_committed());
        leaving.join().expect("no panic");
        nothing_open(world);
        assert_eq!(world.db(1).read(row(1)), 0);
    });
}

#[test]
fn it_gives_way_and_loses_its_table_too() {
    run(3, PATIENT, |world| {
        let (db, client, rival) = giving_way(world);
        let (table, issuer) = (row(1).table, db.clone());
        let ddl = std::thread::spawn(move || issuer.ddl(&Ddl::Add { table, n: 0 }));
        go_on(world);
        assert!(end(rival).is_committed());
        assert!(end(ddl).is_committed());
        let end = end(client);
        assert!(
            matches!(end, End::Deadlock | End::Committed { .. }),
            "{end:?}"
        );
        nothing_open(world);
        let rows = (db.read(row(700)), db.read(row(1)));
        assert_eq!(rows, (5, i64::from(end.is_committed())), "{end:?}");
    });
}

#[test]
fn a_client_that_gives_up_leaves_no_lock() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        // The node leaves in order: its clients are let go first.
        let leaving = std::thread::spawn(move || db.disconnect());
        world.until("the client is told", || client.is_finished());
        go_on(world);
        assert!(!end(client).is_committed());
        leaving.join().expect("no panic");
        world.until("it is rolled back on the others", || {
            world.members().iter().all(|d| d.streaming() == 0)
        });
        world.settle();
        assert!(world.db(1).set(row(1), 4).is_committed());
        let db = world.db(2);
        db.connect(&World::url(), false).expect("two are there");
        world.synced(&db);
        nothing_open(world);
        assert_eq!(db.read(row(1)), 4);
    });
}

pub const MORTAL: &str = "dromon.auto_stream_size=1K;evs.suspect_timeout=PT3S";

/// Cuts db1 off while an applier of it has a chunk whose place lies ahead, of rows that are
/// so `wide`.
pub fn cut_off_amid_what_lies_ahead(world: &World, wide: usize) {
    let (cut, origin) = (world.db(1), world.db(2));
    let others = [World::addr(2), World::addr(3)];
    let stop = Arc::new(AtomicBool::new(false));
    // Small ones and large ones, one after the other, until it is done.
    let clients: Vec<JoinHandle<()>> = (0..2)
        .map(|i| {
            let (stop, db) = (stop.clone(), world.db(3));
            std::thread::spawn(move || {
                for n in (0..500).cycle().take_while(|_| !stop.load(Relaxed)) {
                    db.set(row(5000 + 1000 * i + n), 1);
                }
            })
        })
        .chain(std::iter::once({
            let (stop, db) = (stop.clone(), origin.clone());
            std::thread::spawn(move || {
                for value in (1..).take_while(|_| !stop.load(Relaxed)) {
                    let mut t = large(&db, 1, value);
                    t.wide = wide;
                    t.commit();
                }
            })
        }))
        .collect();
    let begun = || cut.count("dromon_chunks_begun_ahead");
    world.until("it is cut off with a place ahead", || {
        let before = begun();
        if !world.soon(|| begun() > before) {
            return false;
        }
        world.net.cut(&[World::addr(1)], &others);
        // What was on its way arrives.
        std::thread::sleep(Duration::from_millis(200));
        let ahead = !cut.applying().is_empty();
        if !ahead {
            world.net.heal();
        }
        ahead
    });
    stop.store(true, Relaxed);
    for client in clients {
        client.join().expect("no panic");
    }
}

#[test]
fn a_node_that_was_cut_off_ends_amid_what_lies_ahead() {
    run(3, MORTAL, |world| {
        cut_off_amid_what_lies_ahead(world, 0);
        let cut = world.db(1);
        world.until("it knows", || cut.node().phase() == Phase::NonPrimary);
        assert!(!cut.applying().is_empty(), "it waits for its place");
        cut.disconnect();
        world.net.heal();
        cut.connect(&World::url(), false).expect("two are there");
        world.synced(&cut);
        nothing_open(world);
    });
}

#[test]
fn a_node_that_was_cut_off_ends_though_it_is_heard_again_amid_that() {
    run(3, PATIENT, |world| {
        cut_off_amid_what_lies_ahead(world, 0);
        let cut = world.db(1);
        world.until("it knows", || cut.node().phase() == Phase::NonPrimary);
        cut.holds.close(Point::ApplyRefused);
        let leaving = {
            let cut = cut.clone();
            std::thread::spawn(move || cut.disconnect())
        };
        world.until("its place will not come", || {
            cut.holds.waiting(Point::ApplyRefused) == 1
        });
        world.net.heal();
        // What the others have comes, with that place.
        std::thread::sleep(Duration::from_secs(3));
        cut.holds.open(Point::ApplyRefused);
        leaving.join().expect("no panic");
        assert!(!world.report.said("Inconsistency"), "its data is sound");
        assert!(!world.report.said("did not come back in time"));
        cut.connect(&World::url(), false).expect("two are there");
        world.synced(&cut);
        nothing_open(world);
    });
}

#[test]
fn a_node_that_was_cut_off_goes_on_with_what_lay_ahead() {
    run(3, MORTAL, |world| {
        cut_off_amid_what_lies_ahead(world, 0);
        world.until("it is evicted", || {
            world.report.said("was silent and is evicted")
        });
        let cut = world.db(1);
        assert!(!cut.applying().is_empty(), "it waits for its place");
        world.net.heal();
        world.synced(&cut);
        world.until("it is back", || {
            world.report.said("joined the cluster again")
        });
        nothing_open(world);
    });
}

#[test]
fn its_origin_is_evicted_and_the_others_roll_it_back() {
    run(3, MORTAL, |world| {
        let (_, client) = begun(world);
        world.crash(2);
        world.until("it is evicted", || {
            world.report.said("was silent and is evicted")
        });
        go_on(world);
        world.until("the first chunk is rolled back on the others", || {
            let mut members = world.members().into_iter();
            members.all(|d| d.streaming() == 0 && d.size() == 2)
        });
        world.settle();
        drop(client);
        assert!(world.db(1).set(row(1), 4).is_committed());
        let again = world.open(2, world.crashed_disk(2), Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        nothing_open(world);
        assert_eq!(again.read(row(1)), 4);
        assert_eq!(again.read(row(2)), 0);
    });
}

#[test]
fn its_origin_dies_and_the_others_finish_it() {
    run(3, PATIENT, |world| {
        let (_, client) = begun(world);
        world.crash(2);
        go_on(world);
        let others = [world.db(1), world.db(3)];
        world.until("it is committed on the others", || {
            others.iter().all(|d| d.read(row(ROWS)) == 1)
        });
        drop(client);
        let disk = world.crashed_disk(2);
        assert_eq!(disk.rows.get(&row(1)), None);
        let again = world.open(2, disk, Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        nothing_open(world);
        assert_eq!(again.read(row(1)), 1);
    });
}

#[test]
fn an_origin_that_died_between_the_chunks_and_the_end_gets_it_whole() {
    run(3, MORTAL, |world| {
        let db = world.db(2);
        // Its client never gets to its commit.
        db.holds.close(Point::ClientCertified);
        let client = commit(large(&db, 1, 1));
        world.until("its end is ordered", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        let others = [world.db(1), world.db(3)];
        world.until("the others have it", || {
            others.iter().all(|d| d.read(row(ROWS)) == 1)
        });
        world.crash(2);
        drop(client);
        assert_eq!(world.crashed_disk(2).rows.get(&row(1)), None);
        let again = world.open_again(2);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        nothing_open(world);
        assert_eq!(again.read(row(1)), 1);
        assert_eq!(again.read(row(ROWS)), 1);
    });
}

#[test]
fn a_joiner_takes_a_copy_while_one_is_under_way() {
    run(3, PATIENT, |world| {
        let (_, client) = begun(world);
        let donor = world.db(3);
        apply_the_first(world, &donor);
        donor.holds.close(Point::DonorPaused);
        donor.holds.open(Point::ApplyLeft);
        let joiner = begin_join(world, 4, "n3");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        assert_eq!(donor.streaming(), 1, "what it gives has the first chunk");
        donor.holds.open(Point::DonorPaused);
        world.synced(&joiner);
        assert_eq!(joiner.streaming(), 1);
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert!((1..=ROWS).all(|n| joiner.read(row(n)) == 1));
    });
}

#[test]
fn a_node_that_was_away_catches_up_through_chunks() {
    run(3, PATIENT, |world| {
        let db = world.db(3);
        db.disconnect();
        for i in 0..3u32 {
            let end = large(&world.db(1), 1 + i * ROWS, 3).commit();
            assert!(end.is_committed());
        }
        db.connect(&World::url(), false).expect("two are there");
        world.synced(&db);
        nothing_open(world);
        let key = Key {
            row: 3 * ROWS,
            ..row(1)
        };
        assert_eq!(db.read(key), 3);
    });
}

#[test]
fn told_to_give_way_before_its_first_chunk_it_does_not_wait_for_the_last() {
    run(3, PATIENT, |world| {
        let db = world.db(2);
        let t = large(&db, 1, 1);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        let others = [World::addr(1), World::addr(3)];
        world.net.cut(&[World::addr(2)], &others);
        let client = commit(t);
        world.until("it is sent", || format!("{:?}", trx.lock().stage) == "Sent");
        assert_eq!(db.node().abort(-1, id), (dromon_node::Outcome::Ok, -1));
        hold_the_others(world);
        world.net.heal();
        // Whoever waits for its rows gets them, with no chunk but the first.
        let mut next = db.begin();
        next.lock(row(1)).expect("it has given way");
        next.rollback();
        go_on(world);
        let end = end(client);
        assert!(
            matches!(end, End::Committed { replayed: true, .. }),
            "{end:?}"
        );
        nothing_open(world);
    });
}
