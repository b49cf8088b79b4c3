//! A member whose log, or the way to it, takes less than the cluster writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::toy::{Db, row};
use crate::world::{World, run};

/// Bytes of a transaction.
const WIDE: usize = 100_000;
/// Bytes a second on the narrow way.
const RATE: u32 = 512 << 10;
/// As much as a member may lack (`retention.rs`).
const LAG: u64 = 4 << 20;

/// Writes until it is told to stop; counts what is committed.
struct Writer {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn begin(db: &Arc<Db>) -> Self {
        let (stop, done) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (db, end, count) = (db.clone(), stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            for n in (0..1000).cycle().take_while(|_| !end.load(Relaxed)) {
                let mut t = db.begin();
                t.put(row(n), 1).expect("a free row");
                t.wide = WIDE;
                assert!(t.commit().is_committed());
                count.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Writer { stop, done, thread }
    }

    fn bytes(&self) -> u64 {
        self.done.load(Relaxed) * WIDE as u64
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("all of it commits");
    }
}

/// The number of the one that leads, and of one that does not and is narrow from now on.
fn narrow(world: &World) -> (usize, usize) {
    let leader = world.leader(&world.db(1));
    let slow = leader % 3 + 1;
    let others: Vec<_> = (1..=3).filter(|n| *n != slow).map(World::addr).collect();
    world.net.narrow(&others, &World::addr(slow), RATE);
    (leader, slow)
}

#[test]
fn writers_go_at_its_pace_before_it_lacks_too_much() {
    run(3, "gcache.size=1M", |world| {
        let (leader, slow) = narrow(world);
        let name = world.db(slow).name.clone();
        let writer = Writer::begin(&world.db(leader));
        world.until("it is waited for", || {
            [1, 2, 3]
                .iter()
                .filter(|n| **n != slow)
                .all(|n| world.db(*n).stat("dromon_waiting_for") == name)
        });
        // It has no long queue: its log gets no more.
        assert!(world.db(slow).count("local_recv_queue") < 30);
        let before = writer.bytes();
        assert!(before >= LAG, "{before}");
        std::thread::sleep(Duration::from_secs(5));
        let meanwhile = writer.bytes() - before;
        let takes = 5 * u64::from(RATE);
        assert!(
            (takes / 2..takes + (1 << 20)).contains(&meanwhile),
            "{meanwhile} of {takes}"
        );
        writer.end();
        world
            .net
            .narrow(&[World::addr(leader)], &World::addr(slow), 1 << 30);
        world.settle();
        assert!(!world.report.said("is evicted"));
    });
}

/// Small ones keep the slow one between half of what it may lack and all of it.
#[test]
fn a_large_payload_has_its_turn_beside_small_ones() {
    run(3, "gcache.size=1M", |world| {
        let (leader, slow) = narrow(world);
        let writer = Writer::begin(&world.db(leader));
        let name = world.db(slow).name.clone();
        world.until("it is waited for", || {
            world.db(leader).stat("dromon_waiting_for") == name
        });
        let mut large = world.db(leader).begin();
        large.put(row(5000), 1).expect("a free row");
        large.wide = 600_000;
        let client = std::thread::spawn(move || large.commit());
        let began = Instant::now();
        world.until("it is committed", || client.is_finished());
        assert!(client.join().expect("no panic").is_committed());
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        writer.end();
        world
            .net
            .narrow(&[World::addr(leader)], &World::addr(slow), 1 << 30);
        world.settle();
    });
}

/// Who leads, and who left before nine megabytes were written.
fn much_is_written_without_one(world: &World) -> (usize, Arc<Db>) {
    let leader = world.leader(&world.db(1));
    let away = world.db(leader % 3 + 1);
    away.disconnect();
    for n in 0..90 {
        let mut t = world.db(leader).begin();
        t.put(row(n), 1).expect("a free row");
        t.wide = WIDE;
        assert!(t.commit().is_committed());
    }
    (leader, away)
}

/// Its own join lies behind all of that, and it has nothing to report before.
#[test]
fn who_joins_behind_much_log_on_a_narrow_way_is_not_evicted() {
    let options = "gcache.size=64M;evs.suspect_timeout=PT3S;evs.inactive_timeout=PT5S";
    run(3, options, |world| {
        let (_, away) = much_is_written_without_one(world);
        // For seventeen seconds.
        world.net.narrow_next(&away.addr, RATE);
        let began = Instant::now();
        let again = world.open(away.n, away.disk(), away.position());
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        let took = began.elapsed();
        assert!(took > Duration::from_secs(14), "{took:?}");
        assert_eq!(again.read(row(89)), 1);
        assert_eq!(again.size(), 3);
        assert!(!world.report.said("is evicted"));
    });
}

/// Its join lies behind all that it still lacks, and members pass over one of an incarnation that has left.
#[test]
fn who_is_evicted_before_its_join_has_reached_it_joins_as_another_one() {
    let options = "gcache.size=64M;evs.suspect_timeout=PT3S;evs.inactive_timeout=PT5S";
    run(3, options, |world| {
        let (leader, away) = much_is_written_without_one(world);
        world.net.narrow_next(&away.addr, RATE);
        let again = world.open(away.n, away.disk(), away.position());
        let connecting = {
            let again = again.clone();
            std::thread::spawn(move || again.connect(&World::url(), false))
        };
        world.until("its join is ordered", || world.db(leader).size() == 3);
        let voters = world.db(leader).count("dromon_voters");
        assert_eq!(voters, 2, "the log has not reached it");
        let others: Vec<String> = [1, 2, 3].map(|n| world.db(n).addr.clone()).into();
        let others: Vec<String> = others.into_iter().filter(|a| *a != again.addr).collect();
        world.net.cut(std::slice::from_ref(&again.addr), &others);
        world.until("it is evicted", || world.db(leader).size() == 2);
        world.net.heal();
        let joined = connecting.join().expect("no panic");
        joined.expect("two are there");
        world.synced(&again);
        assert!(world.report.said("joining them as a new member"));
        assert_eq!(again.read(row(89)), 1);
        assert_eq!(again.size(), 3);
    });
}

/// Nobody waits for it, and the log of the others is not to grow for ever.
#[test]
fn who_is_not_waited_for_and_falls_behind_is_evicted() {
    let options = "gcache.size=1M;dromon.log_max=5M;dromon.slow_node=quarantine;\
                   evs.suspect_timeout=PT2S;evs.inactive_timeout=PT3S";
    run(3, options, |world| {
        let (leader, slow) = narrow(world);
        let writer = Writer::begin(&world.db(leader));
        world.until("it is in quarantine", || {
            world
                .report
                .said("takes less than the cluster writes: it is in quarantine")
        });
        world.until("it says so itself", || {
            world.db(slow).stat("dromon_slow") == "true"
        });
        let why = "more than is kept for a member (gcache.size and dromon.log_max), and has come no nearer for 12 s";
        world.until("it is evicted", || world.report.said(why));
        world.until("its departure is ordered", || {
            world.db(leader).count("dromon_voters") == 2
        });
        writer.end();
    });
}
