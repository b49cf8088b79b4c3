//! Tables without any index: whoever applies a change of a row there looks at others until he has found
//! it, and waits where a stream has one of them.

use super::*;

const CHUNKS: &str =
    "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";

/// A stream of n1 that has row 1, which n3, with one applier, looks at for row `BESIDE`.
fn stream(world: &World) -> (Arc<Db>, Arc<Db>, Session) {
    let (a, b, c) = one_applier(world);
    let mut t = a.begin();
    fragments(&mut t, 1, 1);
    world.settle();
    (b, c, t)
}

#[test]
fn with_one_applier_a_stream_is_shelved_before_a_row_of_its_table_is_looked_for() {
    run(2, PATIENT, |world| {
        let (b, c, t) = stream(world);
        c.neighbour(row(BESIDE), row(1));
        let mut w = b.begin();
        w.put(row(BESIDE), 5).expect("a free row");
        w.add_digest(row(BESIDE));
        w.is_serial = true;
        assert!(w.commit().is_committed());
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert_eq!(c.waited(), 0);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

#[test]
fn with_one_applier_chunks_have_it_shelved_too() {
    run(2, CHUNKS, |world| {
        let (b, c, t) = stream(world);
        c.neighbour(row(150), row(1));
        let mut w = large(&b, 100, 1);
        w.add_digest(row(150));
        w.is_serial = true;
        let client = commit(w);
        world.until("it is applied", || client.is_finished());
        assert!(end(client).is_committed());
        are_shelved(world, &[0, 0, 1]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (150, 1)]);
    });
}

/// Cascades are not applied in parallel either, and find their rows; and some keys are as long.
#[test]
fn where_rows_have_keys_nothing_is_shelved() {
    run(2, PATIENT, |world| {
        let (b, c, t) = stream(world);
        let mut w = b.begin();
        w.put(row(BESIDE), 5).expect("a free row");
        w.is_serial = true;
        assert!(w.commit().is_committed());
        let mut w = b.begin();
        w.put(row(60), 5).expect("a free row");
        w.add_digest(row(60));
        assert!(w.commit().is_committed());
        world.settle();
        assert_eq!(c.streaming(), 1);
        are_shelved(world, &[0, 0, 0]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (60, 5), (BESIDE, 5)]);
    });
}
