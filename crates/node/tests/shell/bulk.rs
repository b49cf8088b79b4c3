//! Fragments that a client asked for wait for the others' apply queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dromon_gates::Seqno;

use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, End, Session, row};
use crate::world::{World, addrs, run};

const PATIENT: &str = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
const CUT_OFF: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
/// One of it makes a client a large one.
const LARGE: usize = 300_000;
/// At most so long after an event a waiting fragment has heard of it: less than
/// it would wait at most.
const AT_ONCE: Duration = Duration::from_secs(4);

type Fragment = JoinHandle<(Session, Result<Seqno, End>, Instant)>;

/// Streams fragment `n` of a transaction.
fn stream(t: &mut Session, n: u32, bytes: usize) -> Result<Seqno, End> {
    t.put(row(n), 1)?;
    t.fragment_of(bytes)
}

/// `db` streams while n3 does not apply, until a fragment waits; `locks`: a row
/// that it holds.
fn waiting(world: &World, db: &Arc<Db>, locks: Option<u32>) -> Fragment {
    world.db(3).holds.close(Point::ApplyStart);
    let mut t = db.begin();
    if let Some(n) = locks {
        t.lock(row(n)).expect("a free row");
    }
    for n in 1.. {
        let thread = std::thread::spawn(move || {
            let end = stream(&mut t, n, LARGE);
            (t, end, Instant::now())
        });
        let waits = || db.count("dromon_bulk_waiting") == 1;
        world.until("it waits or has passed", || waits() || thread.is_finished());
        if waits() {
            assert!(n > 2, "two may be under way");
            return thread;
        }
        // n3 has only just joined, and may not have reported yet.
        let (session, end, _) = thread.join().expect("no panic");
        end.expect("nobody is in its way");
        t = session;
        std::thread::sleep(Duration::from_millis(100));
    }
    unreachable!("rows do not end")
}

fn go_on(world: &World) {
    world.db(3).holds.open(Point::ApplyStart);
}

fn nothing_open(world: &World) {
    world.until("all of them are through", || {
        world.members().iter().all(|d| d.streaming() == 0)
    });
    world.settle();
}

#[test]
fn a_fragment_waits_for_who_does_not_apply_and_small_ones_do_not() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, None);
        // Nothing of the small ones, here or elsewhere, waits for it.
        for n in 0..5 {
            for db in [world.db(1), world.db(2)] {
                let key = row(100 + 10 * db.n as u32 + n);
                assert!(db.set(key, 1).is_committed());
            }
        }
        // Nor does a statement, or who stops the flow.
        assert!(db.ddl(&Ddl::Add { table: 9, n: 1 }).is_committed());
        db.node().pause().expect("it has no place yet");
        db.node().resume();
        assert_eq!(db.stat("flow_control_active"), "false");
        assert!(!fragment.is_finished());
        go_on(world);
        let (mut t, end, _) = fragment.join().expect("no panic");
        assert!(end.is_ok(), "{end:?}");
        assert!(db.count("dromon_bulk_held_ns") > 1_000_000);
        let open = db.stat("dromon_large_open");
        assert!(open.contains("asked for, held back for "), "{open}");
        // The log tells of it from 1 MB on.
        for n in 1000..1003 {
            stream(&mut t, n, LARGE).expect("nobody is in its way");
        }
        assert!(t.commit().is_committed());
        nothing_open(world);
        let told = [" s, held back for ", "committed at seqno"];
        assert!(told.iter().all(|t| world.report.said(t)));
        assert_eq!(world.db(3).read(row(2)), 1);
        for db in world.members() {
            assert_eq!(db.count("dromon_streamed_asked_for"), 1);
            assert_eq!(db.count("dromon_streamed_automatic"), 0);
            assert_eq!(db.count("dromon_bulk_waiting"), 0);
        }
    });
}

#[test]
fn small_streaming_ones_do_not_wait() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        world.db(3).holds.close(Point::ApplyStart);
        let mut t = db.begin();
        for n in 1..11 {
            stream(&mut t, n, 10).expect("nobody is in its way");
        }
        assert!(t.commit().is_committed());
        assert_eq!(db.count("dromon_bulk_held_ns"), 0);
        go_on(world);
        nothing_open(world);
    });
}

#[test]
fn one_that_waits_gives_way_at_once() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, Some(700));
        let began = Instant::now();
        assert!(world.db(2).set(row(700), 5).is_committed());
        let (t, end, at) = fragment.join().expect("no panic");
        assert_eq!(end, Err(End::Deadlock));
        assert!(at - began < AT_ONCE, "{:?}", at - began);
        drop(t);
        go_on(world);
        nothing_open(world);
        assert_eq!((db.read(row(1)), db.read(row(700))), (0, 5));
    });
}

#[test]
fn a_statement_on_its_table_ends_one_that_waits() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, None);
        let issuer = world.db(2);
        let table = row(1).table;
        let ddl = std::thread::spawn(move || issuer.ddl(&Ddl::Truncate { table }));
        let (_, end, _) = fragment.join().expect("no panic");
        assert_eq!(end, Err(End::Deadlock));
        go_on(world);
        assert!(ddl.join().expect("no panic").is_committed());
        nothing_open(world);
    });
}

#[test]
fn one_that_waits_ends_when_its_node_leaves() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, None);
        let began = Instant::now();
        let leaves = {
            let db = db.clone();
            std::thread::spawn(move || db.disconnect())
        };
        let (t, end, at) = fragment.join().expect("no panic");
        assert_eq!(end, Err(End::ConnFail));
        assert!(at - began < AT_ONCE, "{:?}", at - began);
        drop(t);
        go_on(world);
        leaves.join().expect("no panic");
        nothing_open(world);
    });
}

#[test]
fn one_that_waits_ends_when_its_node_is_cut_off() {
    run(3, CUT_OFF, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, None);
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        let (t, end, at) = fragment.join().expect("no panic");
        // Before that nobody is heard, so nobody is waited for: it may have been sent.
        assert!(matches!(end, Err(End::ConnFail | End::Unknown)), "{end:?}");
        world.until("n1 is non-primary", || !db.ready());
        assert!(at.elapsed() < AT_ONCE, "{:?}", at.elapsed());
        drop(t);
        go_on(world);
        world.net.heal();
        world.synced(&db);
        nothing_open(world);
    });
}

#[test]
fn who_is_gone_is_not_waited_for() {
    run(3, PATIENT, |world| {
        let db = world.db(1);
        let fragment = waiting(world, &db, None);
        let began = Instant::now();
        world.crash(3);
        let (t, end, at) = fragment.join().expect("no panic");
        assert!(end.is_ok(), "{end:?}");
        assert!(at - began < AT_ONCE, "{:?}", at - began);
        assert!(t.commit().is_committed());
        nothing_open(world);
    });
}

#[test]
fn who_is_desynced_is_not_waited_for() {
    run(3, PATIENT, |world| {
        let (db, slow) = (world.db(1), world.db(3));
        let fragment = waiting(world, &db, None);
        let began = Instant::now();
        assert_eq!(slow.node().desync(), dromon_node::Outcome::Ok);
        let (t, end, at) = fragment.join().expect("no panic");
        assert!(end.is_ok(), "{end:?}");
        assert!(at - began < AT_ONCE, "{:?}", at - began);
        assert!(t.commit().is_committed());
        go_on(world);
        assert_eq!(slow.node().resync(), dromon_node::Outcome::Ok);
        nothing_open(world);
    });
}

/// Streams fragments until `stop`, and commits; counts them.
fn streamer(
    db: &Arc<Db>,
    from: u32,
    bytes: usize,
    stop: &Arc<AtomicBool>,
) -> (Arc<AtomicU64>, JoinHandle<End>) {
    let done = Arc::new(AtomicU64::new(0));
    let (db, count, stop) = (db.clone(), done.clone(), stop.clone());
    let thread = std::thread::spawn(move || {
        let mut t = db.begin();
        for n in from.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if let Err(end) = stream(&mut t, n, bytes) {
                return end;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
        t.commit()
    });
    (done, thread)
}

#[test]
fn two_share_fairly() {
    for same in [true, false] {
        run(3, PATIENT, move |world| {
            // Applying takes a while, now and then.
            world.db(3).holds.jitter(7);
            let stop = Arc::new(AtomicBool::new(false));
            let other = if same { world.db(1) } else { world.db(2) };
            let (a, first) = streamer(&world.db(1), 10_000, LARGE, &stop);
            let (b, second) = streamer(&other, 20_000, LARGE, &stop);
            let of = |n: &Arc<AtomicU64>| n.load(Ordering::Relaxed);
            world.until("some have passed", || of(&a) + of(&b) >= 60);
            let (a, b) = (of(&a), of(&b));
            stop.store(true, Ordering::Relaxed);
            assert!(first.join().expect("no panic").is_committed());
            assert!(second.join().expect("no panic").is_committed());
            assert!(a.min(b) >= 20, "{a} and {b}");
            nothing_open(world);
        });
    }
}

#[test]
fn a_share_bounds_it_beside_small_ones() {
    let options = format!("{PATIENT};dromon.bulk_share=0.05");
    run(3, &options, |world| {
        let stop = Arc::new(AtomicBool::new(false));
        let small = {
            let (db, stop) = (world.db(2), stop.clone());
            std::thread::spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    // On a starved machine it may be refused for a moment.
                    let _ = db.set(row(1 + n % 50), 1);
                    n += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
            })
        };
        let db = world.db(1);
        // Less than a piece: those have a pace of their own.
        let (done, large) = streamer(&db, 10_000, 200_000, &stop);
        let held = |n| {
            world.until("some have passed", || done.load(Ordering::Relaxed) >= n);
            (db.count("dromon_bulk_held_ns"), Instant::now())
        };
        // The first ones are small.
        let ((before, from), (after, to)) = (held(4), held(12));
        stop.store(true, Ordering::Relaxed);
        small.join().expect("no panic");
        assert!(large.join().expect("no panic").is_committed());
        nothing_open(world);
        // Whatever else takes time on this machine, most of it is pauses.
        let part = (after - before) as f64 / (to - from).as_nanos() as f64;
        assert!(part > 0.6, "{part}");
    });
}
