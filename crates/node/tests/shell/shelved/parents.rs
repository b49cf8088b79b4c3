//! Foreign keys: a row, and one of another transaction that names it, have locks against each other, and
//! certification lets both pass.

use super::*;

/// What takes `BESIDE` on n3, which has one applier, waits for row 1, which a stream of n1 has.
fn apart(world: &World, made: impl Fn(&mut Session), named: impl Fn(&mut Session)) {
    let (a, b, c) = one_applier(world);
    let mut t = a.begin();
    made(&mut t);
    t.fragment().expect("nobody is in its way");
    world.settle();
    c.neighbour(row(BESIDE), row(1));
    let mut w = b.begin();
    w.put(row(BESIDE), 5).expect("a free row");
    named(&mut w);
    assert!(w.commit().is_committed());
    goes_on(world, &c);
    are_shelved(world, &[0, 0, 1]);
    assert_eq!(c.waited(), 0);
    assert!(t.commit().is_committed());
    all_is_over(world);
    all_have(world, &[(1, 1), (BESIDE, 5)]);
}

#[test]
fn a_stream_with_the_parent_is_shelved_for_a_child() {
    run(2, PATIENT, LIMIT, |world| {
        let parent = |t: &mut Session| t.put(row(1), 1).expect("a free row");
        apart(world, parent, |w| w.refers(row(1)));
    });
}

#[test]
fn a_stream_with_a_child_is_shelved_for_the_parent() {
    run(2, PATIENT, LIMIT, |world| {
        let child = |t: &mut Session| {
            t.put(row(1), 1).expect("a free row");
            t.refers(row(BESIDE));
        };
        apart(world, child, |_| {});
    });
}
