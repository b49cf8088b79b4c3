//! Large transactions whose payload stays in the log of those who apply it in chunks.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::chunks::{
    MORTAL, PATIENT, ROWS, apply_the_first, begin, commit, cut_off_amid_what_lies_ahead, end,
    go_on, large, nothing_open,
};
use crate::toy::holds::Point;
use crate::toy::{Db, Disk, End, Key, Session, row};
use crate::world::{World, run};
use dromon_node::{Phase, Position};

/// With so many bytes a row, a hundred rows do not travel in memory.
const WIDE: usize = 60_000;

pub fn wide(db: &Arc<Db>, from: u32, value: i64) -> Session {
    let mut t = large(db, from, value);
    t.wide = WIDE;
    t
}

/// One of db2 that has begun.
fn begun(world: &World) -> JoinHandle<End> {
    begin(world, wide(&world.db(2), 1, 1))
}

fn spools(world: &World, n: usize) -> u64 {
    world.net.spools(&World::addr(n))
}

/// All of its rows.
fn has(db: &Db, from: u32, value: i64) -> bool {
    (from..from + ROWS).all(|n| db.read(row(n)) == value)
}

#[test]
fn what_is_applied_in_chunks_lies_in_no_second_file() {
    run(3, PATIENT, |world| {
        let dbs = world.members();
        let small = {
            let db = dbs[2].clone();
            std::thread::spawn(move || {
                for n in 0..200 {
                    assert!(db.set(row(5000 + n), 1).is_committed());
                }
            })
        };
        assert!(wide(&dbs[0], 1, 7).commit().is_committed());
        assert!(wide(&dbs[0], 1, 8).commit().is_committed());
        small.join().expect("no panic");
        nothing_open(world);
        for n in [2, 3] {
            assert!(has(&world.db(n), 1, 8));
            assert_eq!(spools(world, n), 0, "on db{n}");
        }
        assert!(world.report.said("are applied in"));
    });
}

#[test]
fn pieces_of_any_size() {
    run(3, &format!("{PATIENT};dromon.piece_size=4096"), |world| {
        let clients: Vec<_> = (0..3u32)
            .map(|i| commit(wide(&world.db(1 + i as usize), 1 + i * ROWS, 2)))
            .collect();
        for client in clients {
            let end = end(client);
            assert!(end.is_committed(), "{end:?}");
        }
        nothing_open(world);
        for db in world.members() {
            assert!((0..3).all(|i| has(&db, 1 + i * ROWS, 2)), "on {}", db.name);
        }
    });
}

#[test]
fn one_of_two_that_meet_fails() {
    run(3, PATIENT, |world| {
        for value in 1..=3 {
            let clients = [1, 2].map(|n| commit(wide(&world.db(n), 1, 10 * value + n as i64)));
            let ends = clients.map(end);
            assert!(ends.iter().any(End::is_committed), "{ends:?}");
            nothing_open(world);
            let winner = world.db(3).read(row(1));
            assert!(world.members().iter().all(|db| has(db, 1, winner)));
        }
    });
}

#[test]
fn what_the_server_throws_away_is_put_together_from_the_log() {
    run(3, PATIENT, |world| {
        let client = begun(world);
        let other = world.db(1);
        apply_the_first(world, &other);
        other.throw_streaming_away();
        other.holds.open(Point::ApplyLeft);
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert!(has(&other, 1, 1));
        assert!(world.report.said("applied whole at its end"));
        assert_eq!((spools(world, 1), spools(world, 3)), (1, 0));
    });
}

#[test]
fn who_dies_amid_it_reads_it_from_its_own_log() {
    run(3, PATIENT, |world| {
        let client = begun(world);
        apply_the_first(world, &world.db(3));
        world.crash(3);
        let again = world.open_again(3);
        again.holds.close(Point::ApplyStart);
        again.connect(&World::url(), false).expect("two are there");
        go_on(world);
        assert!(end(client).is_committed());
        world.synced(&again);
        nothing_open(world);
        assert!(has(&again, 1, 1));
        assert_eq!(spools(world, 3), 0);
    });
}

#[test]
fn a_joiner_and_who_was_away_catch_up_through_it() {
    run(3, PATIENT, |world| {
        let away = world.db(3);
        away.disconnect();
        let clients: Vec<_> = (0..4u32)
            .map(|i| commit(wide(&world.db(1 + i as usize % 2), 1 + i * ROWS, 2)))
            .collect();
        let joiner = world.open(4, Disk::empty(), Position::UNDEFINED);
        joiner
            .connect_from(&World::url(), "", false)
            .expect("there is a cluster");
        away.connect(&World::url(), false).expect("two are there");
        for client in clients {
            assert!(end(client).is_committed());
        }
        world.synced(&away);
        world.synced(&joiner);
        nothing_open(world);
        for db in [away, joiner] {
            assert!((0..4).all(|i| has(&db, 1 + i * ROWS, 2)), "on {}", db.name);
        }
    });
}

#[test]
fn a_node_that_was_cut_off_goes_on_with_it() {
    run(3, MORTAL, |world| {
        cut_off_amid_what_lies_ahead(world, WIDE);
        world.until("it is evicted", || {
            world.report.said("was silent and is evicted")
        });
        let cut = world.db(1);
        world.net.heal();
        world.until("it is back", || {
            world.report.said("joined the cluster again")
        });
        world.synced(&cut);
        nothing_open(world);
        assert_eq!(cut.node().phase(), Phase::Joined);
        let key = Key {
            row: ROWS,
            ..row(1)
        };
        assert_eq!(cut.read(key), world.db(2).read(key));
    });
}
