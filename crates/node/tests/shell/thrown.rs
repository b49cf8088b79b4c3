//! What a server threw away of a large transaction: amid a chunk, and what it has again after a crash.

use crate::chunks::{PATIENT, apply_the_first, begin, end, go_on, large, nothing_open};
use crate::toy::holds::Point;
use crate::toy::row;
use crate::world::{World, run};

/// The engine comes back from before that, with the first chunk and without what met the statement.
#[test]
fn what_a_server_has_again_of_it_is_rolled_back_before_the_whole_comes() {
    run(3, PATIENT, |world| {
        let client = begin(world, large(&world.db(2), 1, 1));
        let other = world.db(3);
        apply_the_first(world, &other);
        let before = other.disk();
        assert_eq!(before.fragments.len(), 1);
        other.throw_streaming_away();
        world.crash(3);
        let position = before.position;
        let other = world.open(3, before, position);
        other.connect(&World::url(), false).expect("two are there");
        world.synced(&other);
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert_eq!((other.read(row(1)), other.read(row(50))), (1, 1));
        assert_eq!(other.locked(), 0);
    });
}

/// An applier has the rows of the next chunk, and its turn comes next.
#[test]
fn a_chunk_that_has_its_rows_when_its_server_throws_it_away_lets_go_of_them() {
    run(3, PATIENT, |world| {
        let client = begin(world, large(&world.db(2), 1, 1));
        let other = world.db(3);
        apply_the_first(world, &other);
        other.holds.close(Point::ApplyLocked);
        other.holds.open(Point::ApplyLeft);
        world.until("the next chunk has its rows", || {
            other.holds.waiting(Point::ApplyLocked) == 1
        });
        other.throw_streaming_away();
        other.holds.open(Point::ApplyLocked);
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert!(world.report.said("has given up its transaction meanwhile"));
        assert_eq!((other.read(row(1)), other.read(row(50))), (1, 1));
        assert_eq!(other.locked(), 0);
    });
}
