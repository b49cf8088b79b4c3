//! Rows with a NULL in a unique index: no key of that index names them, and they go into the
//! gaps that a stream has locked there.

use super::*;

/// A stream of n1 that has row 1, and with it perhaps a gap of a unique index; n3, which has
/// one applier, needs row 1 for row `BESIDE`.
fn stream(world: &World, unique: bool) -> (Arc<Db>, Arc<Db>, Session) {
    let (a, b, c) = one_applier(world);
    let mut t = a.begin();
    t.put(row(1), 1).expect("a free row");
    match unique {
        true => t.add_unique(row(1)),
        false => t.add_null(row(1)),
    }
    t.fragment().expect("nobody is in its way");
    world.settle();
    (b, c, t)
}

#[test]
fn a_row_with_a_null_has_a_stream_shelved_that_may_hold_its_gap() {
    run(2, PATIENT, |world| {
        let (b, c, t) = stream(world, true);
        c.neighbour(row(BESIDE), row(1));
        let mut w = b.begin();
        w.put(row(BESIDE), 5).expect("a free row");
        w.add_null(row(BESIDE));
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
fn where_the_stream_holds_no_gap_nothing_is_shelved() {
    run(2, PATIENT, |world| {
        let (b, c, t) = stream(world, false);
        let mut w = b.begin();
        w.put(row(BESIDE), 5).expect("a free row");
        w.add_null(row(BESIDE));
        assert!(w.commit().is_committed());
        world.settle();
        assert_eq!(c.streaming(), 1);
        are_shelved(world, &[0, 0, 0]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

#[test]
fn chunks_with_nulls_have_it_shelved_too() {
    const OPTIONS: &str =
        "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(2, OPTIONS, |world| {
        let (b, c, t) = stream(world, true);
        c.neighbour(row(150), row(1));
        let mut w = large(&b, 100, 1);
        w.add_null(row(150));
        let client = commit(w);
        world.until("it is applied", || client.is_finished());
        assert!(end(client).is_committed());
        are_shelved(world, &[0, 0, 1]);
        assert_eq!(c.waited(), 0);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (150, 1)]);
    });
}
