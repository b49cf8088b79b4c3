//! Everything at once, from a seed. `TOY_SEED=n` runs one again; threads keep
//! it from being the same run, but the same things happen.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dromon_node::Outcome;

use crate::load::Load;
use crate::rng::Rng;
use crate::shelved::COUNTER;
use crate::toy::{Db, Ddl};
use crate::world::{World, run};

/// So many transactions commit at least amid what is done to them.
const LEAST_DONE: u64 = 50;

fn seed() -> u64 {
    let given = std::env::var("TOY_SEED").ok().and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |d| u64::from(d.subsec_nanos()))
    });
    eprintln!("TOY_SEED={seed}");
    seed
}

/// What a storm is for, beyond clients: whether it can be seen just now. Counters of a node that starts begin
/// anew, and lines are not kept for ever.
type Shown = fn(&World) -> bool;

fn clients_alone(_: &World) -> bool {
    true
}

fn shelved(world: &World) -> bool {
    world.members().iter().any(|db| db.count(COUNTER) > 0)
}

fn held_back(world: &World) -> bool {
    let held = |db: &Arc<Db>| db.count("dromon_bulk_held_ns") > 0;
    world.members().iter().any(held)
}

fn in_chunks(world: &World) -> bool {
    world.report.said("are applied in")
}

/// A busy machine gets as much time as it needs, within what the test may take.
fn until_shown(world: &World, seen: bool, shown: Shown) {
    while !(seen || shown(world)) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What an administrator does to a node that stays.
fn administer(db: &Arc<Db>, rng: &mut Rng) {
    match rng.below(5) {
        0 => {
            let end = db.ddl(&Ddl::Add { table: 9, n: 1 });
            assert!(end.is_committed(), "a statement on {}: {end:?}", db.name);
        }
        1 => {
            if db.node().pause().is_some() {
                std::thread::sleep(Duration::from_millis(rng.below(20)));
                db.node().resume();
            }
        }
        2 => {
            assert_eq!(db.node().desync(), Outcome::Ok, "on {}", db.name);
            std::thread::sleep(Duration::from_millis(rng.below(20)));
            assert_eq!(db.node().resync(), Outcome::Ok, "on {}", db.name);
        }
        3 => {
            let (outcome, _) = db.node().sync_wait(Duration::from_secs(20));
            assert_eq!(outcome, Outcome::Ok, "on {}", db.name);
        }
        _ => {
            let mut t = db.begin();
            let key = crate::toy::Key { table: 9, row: 1 };
            if t.put(key, 1).is_ok() && t.fragment().is_ok() {
                std::thread::sleep(Duration::from_millis(rng.below(20)));
                t.rollback();
            }
        }
    }
}

/// Clients and an administrator on each node, all at once, until `shown`; an
/// administrator rests for less than `rest_ms` between two things.
fn amid_administrators(
    world: &World,
    mut load: Load,
    seed: u64,
    (time, rest_ms): (Duration, u64),
    shown: Shown,
) {
    for db in world.members() {
        db.holds.jitter(seed + db.n as u64);
        load.add(&db, 4, seed);
    }
    let until = Instant::now() + time;
    // A busy machine gets as much time as it needs, within what the test may take.
    let enough = |load: &Load| Instant::now() >= until && load.done() > LEAST_DONE && shown(world);
    std::thread::scope(|scope| {
        for db in world.members() {
            let (load, enough) = (&load, &enough);
            scope.spawn(move || {
                let mut rng = Rng::new(seed ^ db.n as u64);
                while !enough(load) {
                    administer(&db, &mut rng);
                    std::thread::sleep(Duration::from_millis(rng.below(rest_ms)));
                }
            });
        }
    });
    load.verify(world);
}

#[test]
fn clients_and_administrators() {
    let seed = seed();
    run(3, "gcs.fc_limit=8", move |world| {
        world
            .report
            .binary_log
            .store(seed.is_multiple_of(2), Relaxed);
        let pace = (Duration::from_secs(5), 0);
        amid_administrators(world, Load::new(true), seed, pace, clients_alone);
    });
}

#[test]
fn streams_that_stand_in_the_way_among_clients_and_administrators() {
    let seed = seed();
    run(3, "gcs.fc_limit=8", move |world| {
        // One of two is left for what must not wait.
        world.db(2).fewer_appliers(2);
        let load = Load::new(true).with_neighbours();
        amid_administrators(world, load, seed, (Duration::from_secs(12), 50), shelved);
    });
}

#[test]
fn large_fragments_among_clients_and_administrators() {
    let seed = seed();
    let options = "gcs.fc_limit=8";
    run(3, options, move |world| {
        let load = Load::new(true).with_large_fragments();
        amid_administrators(world, load, seed, (Duration::from_secs(5), 20), held_back);
    });
}

#[test]
fn large_ones_among_clients_and_administrators() {
    let seed = seed();
    let options = "gcs.fc_limit=8;dromon.auto_stream_size=1K";
    run(3, options, move |world| {
        let load = Load::new(true).with_large();
        amid_administrators(world, load, seed, (Duration::from_secs(8), 50), in_chunks);
    });
}

#[test]
fn members_come_and_go() {
    let options = "gcs.fc_limit=16;evs.suspect_timeout=PT6S;evs.inactive_timeout=PT8S";
    come_and_go(options, Load::new(true), clients_alone);
}

#[test]
fn members_come_and_go_amid_streams_that_stand_in_the_way() {
    let options = "gcs.fc_limit=16;evs.suspect_timeout=PT6S;evs.inactive_timeout=PT8S";
    come_and_go(options, Load::new(true).with_neighbours(), shelved);
}

#[test]
fn members_come_and_go_amid_large_ones() {
    let options = "gcs.fc_limit=16;evs.suspect_timeout=PT6S;evs.inactive_timeout=PT8S;\
                   dromon.auto_stream_size=1K";
    come_and_go(options, Load::new(true).with_large(), in_chunks);
}

fn come_and_go(options: &str, mut load: Load, shown: Shown) {
    let seed = seed();
    run(3, options, move |world| {
        let mut rng = Rng::new(seed);
        for db in world.members() {
            db.holds.jitter(seed + db.n as u64);
            load.add(&db, 2, seed);
        }
        let mut seen = false;
        for round in 0..6 {
            load.go_on(world, 10);
            seen |= shown(world);
            let n = 1 + rng.below(3) as usize;
            match rng.below(4) {
                0 => leave_and_return(world, n),
                1 => restart(world, &mut load, n, seed + round),
                2 => copy_and_leave(world),
                _ => leader_leaves(world),
            }
        }
        load.go_on(world, 10);
        until_shown(world, seen, shown);
        load.verify(world);
    });
}

#[test]
fn the_network_comes_and_goes() {
    let options = "evs.suspect_timeout=PT4S;evs.inactive_timeout=PT5S";
    network_comes_and_goes(options, Load::new(true), clients_alone);
}

#[test]
fn the_network_comes_and_goes_amid_streams_that_stand_in_the_way() {
    let options = "evs.suspect_timeout=PT4S;evs.inactive_timeout=PT5S";
    network_comes_and_goes(options, Load::new(true).with_neighbours(), shelved);
}

#[test]
fn the_network_comes_and_goes_amid_large_ones() {
    let options = "evs.suspect_timeout=PT4S;evs.inactive_timeout=PT5S;dromon.auto_stream_size=1K";
    network_comes_and_goes(options, Load::new(true).with_large(), in_chunks);
}

#[test]
fn the_network_comes_and_goes_amid_large_fragments() {
    let options = "evs.suspect_timeout=PT4S;evs.inactive_timeout=PT5S;dromon.bulk_share=0.5";
    network_comes_and_goes(options, Load::new(true).with_large_fragments(), held_back);
}

fn network_comes_and_goes(options: &str, mut load: Load, shown: Shown) {
    let seed = seed();
    run(3, options, move |world| {
        let mut rng = Rng::new(seed);
        for db in world.members() {
            db.holds.jitter(seed + db.n as u64);
            load.add(&db, 3, seed);
        }
        let mut seen = false;
        for _ in 0..5 {
            load.go_on(world, 10);
            seen |= shown(world);
            let n = 1 + rng.below(3) as usize;
            let others: Vec<String> = (1..=3)
                .filter(|o| *o != n && !rng.one_in(3))
                .map(World::addr)
                .collect();
            world.net.cut(&[World::addr(n)], &others);
            // Most are too short to be noticed, some are not.
            let ms = if rng.one_in(3) { 3000 } else { 600 };
            std::thread::sleep(Duration::from_millis(rng.below(ms)));
            world.net.heal();
        }
        for db in world.members() {
            world.synced(&db);
        }
        load.go_on(world, 10);
        until_shown(world, seen, shown);
        load.verify(world);
    });
}

fn leave_and_return(world: &World, n: usize) {
    let db = world.db(n);
    db.disconnect();
    db.connect(&World::url(), false).expect("two are there");
    world.synced(&db);
}

fn restart(world: &World, load: &mut Load, n: usize, seed: u64) {
    let before = world.db(n);
    before.disconnect();
    let again = world.open(n, before.disk(), dromon_node::Position::UNDEFINED);
    again.connect(&World::url(), false).expect("two are there");
    world.synced(&again);
    load.add(&again, 2, seed);
}

fn copy_and_leave(world: &World) {
    let db = world.join(4);
    db.disconnect();
}

fn leader_leaves(world: &World) {
    let some = world.members()[0].clone();
    leave_and_return(world, world.leader(&some));
}
