//! A stream of another node that stands in the way of what the order has put before its
//! end, at a lock that no key names, is shelved where that is so.
//!
//! The stream comes from n1, what waits for it mostly from n2, and n3 is where it waits.

mod away;
mod between;
mod nulls;
mod refers;
mod standing;
mod unkeyed;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::{Outcome, Position, Trx};

use crate::chunks::{begin, commit, end, large};
use crate::membership::begin_join;
use crate::toy::holds::Point;
use crate::toy::{Copying, Db, Ddl, Disk, End, Entry, Key, Session, row};
use crate::world::{World, addrs, run};

/// Nobody is evicted and no lease is lost within these tests.
const PATIENT: &str = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
/// Who dies is soon evicted.
const HASTY: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
/// How many streams a node has shelved.
pub const COUNTER: &str = "dromon_streams_shelved";

/// On n3 whoever changes it needs row 1 too, which the stream has.
const BESIDE: u32 = 50;
const ELSEWHERE: Key = Key { table: 3, row: 1 };
const CREATE: Ddl = Ddl::Create { key: ELSEWHERE };

fn fragments(t: &mut Session, from: u32, n: u32) {
    for i in from..from + n {
        t.put(row(i), 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
    }
}

/// A stream of n1 has the rows 1 and 2 on all nodes, and nobody waits for it yet.
fn three(world: &World) -> (Arc<Db>, Arc<Db>, Arc<Db>, Session) {
    let (a, b, c) = (world.db(1), world.db(2), world.db(3));
    let mut t = a.begin();
    fragments(&mut t, 1, 2);
    world.settle();
    c.neighbour(row(BESIDE), row(1));
    (a, b, c, t)
}

/// `from` writes what has to wait on `at`.
fn waits(world: &World, from: &Arc<Db>, at: &Arc<Db>) {
    let before = at.waited();
    assert!(from.set(row(BESIDE), 5).is_committed());
    world.until("it waits for a stream", || at.waited() > before);
}

fn goes_on(world: &World, at: &Db) {
    world.until("what waited goes on", || at.read(row(BESIDE)) == 5);
}

/// Waits until the members have shelved so many.
fn are_shelved(world: &World, expected: &[i64]) {
    let mut found = Vec::new();
    world.until(&format!("{expected:?} streams are shelved"), || {
        found = world.members().iter().map(|d| d.count(COUNTER)).collect();
        // None comes back.
        found.iter().zip(expected).any(|(f, e)| f > e) || found == expected
    });
    assert_eq!(found, expected);
}

/// The stream of [`three`] is shelved on n3, as that of n2 had to wait.
fn shelve(world: &World) -> (Arc<Db>, Arc<Db>, Arc<Db>, Session) {
    let (a, b, c, t) = three(world);
    waits(world, &b, &c);
    goes_on(world, &c);
    are_shelved(world, &[0, 0, 1]);
    world.until("its fragments are gone", || c.streaming() == 0);
    assert_eq!((a.streaming(), b.streaming()), (1, 1));
    (a, b, c, t)
}

/// What waited on n3 goes on, while its server still has fragments to remove.
fn half_shelved(world: &World) -> (Arc<Db>, Arc<Db>, Arc<Db>, Session) {
    let (a, b, c, t) = three(world);
    c.holds.close(Point::RolledBack);
    waits(world, &b, &c);
    world.until("its rows are free", || {
        c.holds.waiting(Point::RolledBack) == 1
    });
    goes_on(world, &c);
    (a, b, c, t)
}

/// Nothing of any stream is left, and all nodes are equal.
fn all_is_over(world: &World) {
    world.until("nothing is left of the streams", || {
        world.members().iter().all(|d| d.streaming() == 0)
    });
    world.settle();
    for db in world.members() {
        assert_eq!(db.stat("dromon_large_open"), "", "on {}", db.name);
        assert_eq!((db.locked(), db.blocked()), (0, 0), "on {}", db.name);
    }
}

/// What each node has in these rows of table 0.
fn all_have(world: &World, expected: &[(u32, i64)]) {
    for db in world.members() {
        let found: Vec<_> = expected
            .iter()
            .map(|(n, _)| (*n, db.read(row(*n))))
            .collect();
        assert_eq!(found, expected, "on {}", db.name);
    }
}

/// A client of `db` sets a row, and is made to wait before that is ordered.
fn held_back(world: &World, db: &Arc<Db>, n: u32, value: i64) -> (JoinHandle<End>, Arc<Trx>) {
    let mut t = db.begin();
    t.put(row(n), value).expect("a free row");
    let trx = t.trx().expect("it wrote");
    let client = commit(t);
    world.until("it has to wait", || stage(&trx) == "Waiting");
    (client, trx)
}

fn stage(trx: &Trx) -> String {
    format!("{:?}", trx.lock().stage)
}

#[test]
fn what_waits_for_an_idle_stream_goes_on_and_the_stream_commits_later() {
    run(3, PATIENT, |world| {
        let (a, b, c, mut t) = shelve(world);
        fragments(&mut t, 10, 2);
        world.settle();
        assert_eq!(c.streaming(), 0, "what comes of it is left out");
        all_have(world, &[(1, 0), (10, 0), (BESIDE, 5)]);
        let whole = Entry::Rows(a.own().expect("a member"), t.id);
        let place = t.commit().seqno();
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (10, 1), (11, 1), (BESIDE, 5)]);
        assert_eq!(c.journal().get(&place), Some(&whole));
        // Now it stands in nobody's way.
        assert!(b.set(row(BESIDE), 6).is_committed());
        // To apply that, n3 takes row 1 from its clients.
        world.settle();
        assert!(c.set(row(1), 7).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 7), (BESIDE, 6)]);
        assert_eq!(c.waited(), 1);
        are_shelved(world, &[0, 0, 1]);
    });
}

#[test]
fn its_end_may_be_ordered_before_anybody_notices() {
    run(3, PATIENT, |world| {
        let (a, b, c, mut t) = three(world);
        c.holds.close(Point::ApplyStart);
        assert!(b.set(row(BESIDE), 5).is_committed());
        fragments(&mut t, 10, 1);
        let whole = Entry::Rows(a.own().expect("a member"), t.id);
        let place = t.commit().seqno();
        c.holds.open(Point::ApplyStart);
        goes_on(world, &c);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (10, 1), (BESIDE, 5)]);
        assert_eq!(c.journal().get(&place), Some(&whole));
        are_shelved(world, &[0, 0, 1]);
    });
}

#[test]
fn its_rollback_may_be_ordered_before_anybody_notices() {
    run(3, PATIENT, |world| {
        let (_, b, c, mut t) = three(world);
        c.holds.close(Point::ApplyStart);
        assert!(b.set(row(BESIDE), 5).is_committed());
        fragments(&mut t, 10, 1);
        t.rollback();
        world.until("n2 has the rollback", || b.streaming() == 0);
        c.holds.open(Point::ApplyStart);
        goes_on(world, &c);
        all_is_over(world);
        all_have(world, &[(1, 0), (10, 0), (BESIDE, 5)]);
    });
}

#[test]
fn its_client_rolls_it_back_later() {
    run(3, PATIENT, |world| {
        let (_, b, c, mut t) = shelve(world);
        fragments(&mut t, 10, 1);
        let (client, _) = held_back(world, &c, 60, 7);
        t.rollback();
        assert!(end(client).is_committed());
        all_is_over(world);
        assert!(b.set(row(1), 7).is_committed());
        assert!(c.set(row(2), 8).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 7), (2, 8), (10, 0), (BESIDE, 5), (60, 7)]);
        are_shelved(world, &[0, 0, 1]);
    });
}

#[test]
fn what_waits_for_two_streams_shelves_both_and_no_others() {
    run(3, PATIENT, |world| {
        let (a, b, c, mut t) = three(world);
        let mut more = b.begin();
        fragments(&mut more, 20, 2);
        let mut third = a.begin();
        third.put(ELSEWHERE, 1).expect("a free row");
        third.fragment().expect("nobody is in its way");
        world.settle();
        c.neighbour(row(BESIDE), row(20));
        waits(world, &a, &c);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 2]);
        assert_eq!(c.streaming(), 1, "nobody waits for one of another table");
        fragments(&mut more, 22, 1);
        fragments(&mut t, 10, 1);
        assert!(more.commit().is_committed());
        assert!(third.commit().is_committed());
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (10, 1), (20, 1), (22, 1), (BESIDE, 5)]);
        assert_eq!(c.read(ELSEWHERE), 1);
        are_shelved(world, &[0, 0, 2]);
    });
}

#[test]
fn a_large_one_is_put_together_again() {
    run(3, PATIENT, |world| {
        let (_, b, c, mut t) = three(world);
        let mut large = |n, mib: usize| {
            t.put(row(n), 1).expect("a free row");
            t.fragment_of(mib << 20).expect("nobody is in its way");
        };
        (100..103).for_each(|n| large(n, 1));
        world.settle();
        waits(world, &b, &c);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        // One of them alone lies in a file.
        large(110, 5);
        large(111, 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[1, 2, 100, 101, 102, 110, 111].map(|n| (n, 1)));
    });
}

/// What was changed since the last fragment comes with the end, which may have to wait as any
/// fragment.
#[test]
fn the_end_of_a_stream_may_have_to_wait_for_another() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        let mut more = b.begin();
        fragments(&mut more, 20, 1);
        world.settle();
        let before = c.waited();
        more.put(row(BESIDE), 5).expect("a free row");
        assert!(more.commit_with_rest().is_committed());
        world.until("its end waits for a stream", || c.waited() > before);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (20, 1), (BESIDE, 5)]);
    });
}

#[test]
fn the_whole_may_have_to_wait_for_another_stream() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = shelve(world);
        let mut more = b.begin();
        fragments(&mut more, 20, 1);
        world.settle();
        c.neighbour(row(1), row(20));
        assert!(t.commit().is_committed());
        are_shelved(world, &[0, 0, 2]);
        world.until("n3 has it", || c.read(row(2)) == 1);
        assert!(more.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (20, 1), (BESIDE, 5)]);
    });
}

/// It gave its own locks back, and others have what it needs next.
#[test]
fn a_client_of_its_own_that_runs_again_may_have_to_wait_for_a_stream() {
    run(3, PATIENT, |world| {
        let (a, c) = (world.db(1), world.db(3));
        c.neighbour(row(1), row(BESIDE));
        c.neighbour(row(BESIDE), row(1));
        c.holds.close(Point::ApplyStart);
        let mut own = c.begin();
        own.put(row(BESIDE), 5).expect("a free row");
        let trx = own.trx().expect("it wrote");
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.until("the fragment is on its way", || {
            c.holds.waiting(Point::ApplyStart) == 1
        });
        let client = commit(own);
        world.until("it lies behind", || stage(&trx) == "Certified");
        c.holds.open(Point::ApplyStart);
        let end = end(client);
        let replayed = matches!(end, End::Committed { replayed: true, .. });
        assert!(replayed, "{end:?}");
        assert_eq!(c.waited(), 1);
        are_shelved(world, &[0, 0, 1]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

#[test]
fn clients_of_its_own_wait_for_the_tables_of_the_stream() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = shelve(world);
        let (client, trx) = held_back(world, &c, 60, 7);
        // Its row is free there, and nowhere else.
        let (rival, _) = held_back(world, &c, 1, 9);
        for n in 0..20 {
            let key = Key {
                row: n,
                ..ELSEWHERE
            };
            assert!(c.set(key, 1).is_committed());
            assert!(b.set(row(70 + n), 1).is_committed());
        }
        assert_eq!(stage(&trx), "Waiting");
        assert!(!client.is_finished() && !rival.is_finished());
        assert!(t.commit().is_committed());
        assert!(end(client).is_committed());
        assert_eq!(end(rival), End::Deadlock);
        all_is_over(world);
        all_have(world, &[(1, 1), (60, 7), (70, 1), (BESIDE, 5)]);
    });
}

#[test]
fn streams_of_its_own_on_these_tables_fail() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        let mut open = [row(80), row(81), ELSEWHERE].map(|key| {
            let mut own = c.begin();
            own.put(key, 1).expect("a free row");
            own.fragment().expect("nobody is in its way");
            own
        });
        waits(world, &b, &c);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        // What they have on other nodes may be in the way of the stream.
        open[0].put(row(82), 1).expect("a free row");
        assert_eq!(open[0].fragment(), Err(End::Deadlock));
        let key = Key {
            row: 2,
            ..ELSEWHERE
        };
        open[2].put(key, 1).expect("a free row");
        open[2].fragment().expect("nobody is in its way");
        let [first, second, third] = open;
        drop(first);
        assert_eq!(second.commit(), End::Deadlock);
        assert!(third.commit().is_committed());
        world.until("they are rolled back", || b.streaming() == 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (80, 0), (81, 0), (82, 0)]);
        assert_eq!(b.read(key), 1);
    });
}

#[test]
fn the_whole_comes_when_the_server_is_through_with_the_rollback() {
    run(3, PATIENT, |world| {
        let (_, _, c, mut t) = half_shelved(world);
        fragments(&mut t, 10, 1);
        assert!(t.commit().is_committed());
        assert!(!world.soon(|| c.read(row(1)) == 1), "too early");
        c.holds.open_all();
        all_is_over(world);
        all_have(world, &[(1, 1), (10, 1), (BESIDE, 5)]);
    });
}

#[test]
fn its_own_rollback_comes_when_the_server_is_through_with_the_other() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = half_shelved(world);
        t.rollback();
        world.until("n2 has it", || b.streaming() == 0);
        let at = b.position().seqno;
        // Meanwhile it may be passed, as nothing.
        world.soon(|| c.position().seqno == at);
        c.holds.open_all();
        all_is_over(world);
        all_have(world, &[(1, 0), (BESIDE, 5)]);
    });
}

#[test]
fn a_statement_comes_when_the_server_is_through_with_the_rollback() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = half_shelved(world);
        assert!(b.ddl(&CREATE).is_committed());
        assert!(!world.soon(|| c.read(ELSEWHERE) == 1), "too early");
        c.holds.open_all();
        world.until("it has run", || c.read(ELSEWHERE) == 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
    });
}

#[test]
fn the_view_without_its_origin_comes_when_the_server_is_through() {
    run(3, HASTY, |world| {
        let (_, b, c, t) = half_shelved(world);
        world.crash(1);
        drop(t);
        world.until("n1 is evicted", || b.size() == 2);
        assert!(!world.soon(|| c.size() == 2), "too early");
        c.holds.open_all();
        world.until("n3 knows", || c.size() == 2);
        all_is_over(world);
        all_have(world, &[(1, 0), (BESIDE, 5)]);
    });
}

#[test]
fn the_last_view_comes_when_the_server_is_through() {
    run(3, PATIENT, |world| {
        let (_, _, c, t) = half_shelved(world);
        let leaves = {
            let c = c.clone();
            std::thread::spawn(move || c.disconnect())
        };
        assert!(!world.soon(|| c.finals() > 0), "too early");
        c.holds.open_all();
        leaves.join().expect("no panic");
        assert!(t.commit().is_committed());
        all_is_over(world);
        let c = start(world, false);
        all_is_over(world);
        assert_eq!([1, 2, BESIDE].map(|n| c.read(row(n))), [1, 1, 5]);
    });
}

/// n3 stops, in order or not.
fn stop(world: &World, crash: bool) {
    match crash {
        true => world.crash(3),
        false => world.db(3).disconnect(),
    }
}

/// And begins again with what it had.
fn start(world: &World, crash: bool) -> Arc<Db> {
    let c = match crash {
        true => world.open_again(3),
        false => world.open(3, world.db(3).disk(), Position::UNDEFINED),
    };
    c.neighbour(row(BESIDE), row(1));
    c.connect(&World::url(), false).expect("two are there");
    world.synced(&c);
    c
}

#[test]
fn it_is_over_when_its_origin_is_gone() {
    run(3, HASTY, |world| {
        let (_, b, c, t) = shelve(world);
        let (client, _) = held_back(world, &c, 60, 7);
        world.crash(1);
        drop(t);
        world.until("n1 is evicted", || b.size() == 2 && c.size() == 2);
        // Nobody may have led for a while.
        let end = end(client);
        assert!(end.is_committed() || end == End::ConnFail, "{end:?}");
        let kept = if end.is_committed() { 7 } else { 0 };
        all_is_over(world);
        assert!(b.set(row(1), 7).is_committed());
        assert!(c.set(row(2), 8).is_committed());
        assert!(b.set(row(BESIDE), 6).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 7), (2, 8), (BESIDE, 6), (60, kept)]);
        // And so it is for its origin, when that is back.
        let a = world.open_again(1);
        a.connect(&World::url(), false).expect("two are there");
        world.synced(&a);
        all_is_over(world);
        all_have(world, &[(1, 7), (2, 8), (BESIDE, 6), (60, kept)]);
    });
}

fn statement_on_its_table(by: usize) {
    run(3, PATIENT, move |world| {
        let (_, _, c, t) = shelve(world);
        let (client, _) = held_back(world, &c, 60, 7);
        let ddl = Ddl::Truncate { table: 0 };
        assert!(world.db(by).ddl(&ddl).is_committed());
        assert_eq!(t.commit(), End::Deadlock);
        // It was aborted, or came behind.
        let end = end(client);
        assert!(end.is_committed() || end == End::Deadlock, "{end:?}");
        all_is_over(world);
        let kept = if end.is_committed() { 7 } else { 0 };
        all_have(world, &[(1, 0), (2, 0), (BESIDE, 0), (60, kept)]);
        assert!(c.set(row(1), 9).is_committed());
        all_is_over(world);
    });
}

#[test]
fn a_statement_of_another_node_ends_it() {
    statement_on_its_table(2);
}

#[test]
fn a_statement_of_the_node_itself_ends_it() {
    statement_on_its_table(3);
}

#[test]
fn a_statement_behind_what_waits_runs_in_its_turn() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        waits(world, &b, &c);
        assert!(b.ddl(&CREATE).is_committed());
        goes_on(world, &c);
        world.until("it has run", || c.read(ELSEWHERE) == 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
        are_shelved(world, &[0, 0, 1]);
    });
}

/// A pause waits for what waits for the stream.
#[test]
fn a_pause_gets_what_it_needs() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        waits(world, &b, &c);
        let at = b.position().seqno;
        assert_eq!(c.node().pause(), Some(at));
        assert_eq!(c.read(row(BESIDE)), 5);
        assert!(t.commit().is_committed());
        assert!(!world.soon(|| c.position().seqno > at), "it is paused");
        c.node().resume();
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

/// n3 has one applier: who waits there keeps the only one that could help it.
fn one_applier(world: &World) -> (Arc<Db>, Arc<Db>, Arc<Db>) {
    let c = world.joins_with(3, 1);
    world.voters(3);
    (world.db(1), world.db(2), c)
}

/// Changes a row that is in a unique index, too.
fn put_unique(t: &mut Session, key: Key, value: i64) {
    t.put(key, value).expect("a free row");
    t.add_unique(key);
}

#[test]
fn with_one_applier_it_is_shelved_before_anybody_waits() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        fragments(&mut t, 1, 2);
        world.settle();
        c.neighbour(row(BESIDE), row(1));
        let mut w = b.begin();
        put_unique(&mut w, row(BESIDE), 5);
        assert!(w.commit().is_committed());
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert_eq!(c.waited(), 0);
        fragments(&mut t, 10, 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (10, 1), (BESIDE, 5)]);
    });
}

#[test]
fn with_one_applier_nothing_is_shelved_without_need() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        assert!(b.set(row(BESIDE), 5).is_committed());
        let mut w = b.begin();
        put_unique(&mut w, ELSEWHERE, 1);
        assert!(w.commit().is_committed());
        world.settle();
        assert_eq!(c.streaming(), 1);
        are_shelved(world, &[0, 0, 0]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

/// What comes whole brings its unique keys from all its fragments.
#[test]
fn with_one_applier_the_whole_has_others_shelved() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let unique = |db: &Arc<Db>, n| {
            let mut t = db.begin();
            put_unique(&mut t, row(n), 1);
            t.fragment().expect("nobody is in its way");
            t
        };
        let first = unique(&a, 1);
        world.settle();
        let second = unique(&b, 20);
        world.settle();
        are_shelved(world, &[0, 0, 1]);
        c.neighbour(row(1), row(20));
        assert!(first.commit().is_committed());
        are_shelved(world, &[0, 0, 2]);
        assert_eq!(c.waited(), 0);
        assert!(second.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (20, 1)]);
    });
}

/// It is no applier that waits.
#[test]
fn with_one_applier_a_client_that_runs_again_does_not_wait_for_ever() {
    run(2, PATIENT, |world| {
        let (a, _, c) = one_applier(world);
        c.neighbour(row(1), row(BESIDE));
        c.neighbour(row(BESIDE), row(1));
        c.holds.close(Point::ApplyStart);
        let mut own = c.begin();
        put_unique(&mut own, row(BESIDE), 5);
        let trx = own.trx().expect("it wrote");
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.until("the fragment is on its way", || {
            c.holds.waiting(Point::ApplyStart) == 1
        });
        let client = commit(own);
        world.until("it lies behind", || stage(&trx) == "Certified");
        c.holds.open(Point::ApplyStart);
        let end = end(client);
        let replayed = matches!(end, End::Committed { replayed: true, .. });
        assert!(replayed, "{end:?}");
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

/// The same, and the only applier has come to a view, which waits for that client.
#[test]
fn with_one_applier_at_a_view_a_client_that_runs_again_does_not_wait_for_ever() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        c.neighbour(row(1), row(BESIDE));
        c.neighbour(row(BESIDE), row(1));
        c.holds.close(Point::ApplyStart);
        let mut own = c.begin();
        own.put(row(BESIDE), 5).expect("a free row");
        let trx = own.trx().expect("it wrote");
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.until("the fragment is on its way", || {
            c.holds.waiting(Point::ApplyStart) == 1
        });
        let client = commit(own);
        world.until("it lies behind", || stage(&trx) == "Certified");
        b.disconnect();
        world.until("the view lies behind both", || a.size() == 2);
        c.holds.open(Point::ApplyStart);
        let end = end(client);
        let replayed = matches!(end, End::Committed { replayed: true, .. });
        assert!(replayed, "{end:?}");
        world.until("n3 has the view", || c.size() == 2);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

/// The chunks of a large one insert into unique indexes as any write set.
#[test]
fn with_one_applier_chunks_have_streams_shelved() {
    const OPTIONS: &str =
        "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(2, OPTIONS, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.settle();
        c.neighbour(row(150), row(1));
        let mut w = large(&b, 100, 1);
        w.add_unique(row(150));
        let client = commit(w);
        world.until("it is applied", || client.is_finished());
        assert!(end(client).is_committed());
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (150, 1)]);
    });
}

/// A large one keeps its table while it is applied in chunks, and the end of a stream that is
/// shelved brings rows to that table: applied whole, it would wait for what ends behind it.
#[test]
fn the_end_of_a_stream_waits_for_a_large_one_that_has_its_table() {
    const OPTIONS: &str =
        "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(3, OPTIONS, |world| {
        let (a, b, c, t) = shelve(world);
        c.neighbour(row(1), row(150));
        let mut w = large(&b, 100, 1);
        w.add_unique(row(150));
        let large = begin(world, w);
        // Before its node knows of it, it would be ordered, and fail.
        world.until("its first chunk is there", || {
            a.holds.waiting(Point::ApplyStart) > 0
        });
        let trx = t.trx().expect("it wrote");
        let stream = commit(t);
        world.until("its end has to wait", || stage(&trx) == "Waiting");
        for db in [&a, &c] {
            db.holds.open(Point::ApplyStart);
        }
        assert!(end(large).is_committed());
        assert!(end(stream).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (150, 1), (BESIDE, 5)]);
    });
}

/// A stream of n1 is applied on n3 by one of three threads, and the other two take what waits for
/// it: the first one is needed, though the server wants one back.
#[test]
fn the_thread_that_the_server_wants_back_may_be_the_last_idle_one() {
    run(2, PATIENT, |world| {
        let c = world.joins_with(3, 3);
        world.voters(3);
        world.until("all three threads are lent", || c.threads() == 4);
        let (a, b) = (world.db(1), world.db(2));
        c.neighbour(row(BESIDE), row(1));
        c.holds.close(Point::ApplyLeft);
        c.fewer_appliers(1);
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.until("its fragment is about to be finished", || {
            c.holds.waiting(Point::ApplyLeft) == 1
        });
        let had = c.count("received");
        assert!(b.set(row(BESIDE), 5).is_committed());
        assert!(b.set(row(60), 1).is_committed());
        world.until("all threads have something", || {
            c.count("received") >= had + 2 && c.count("local_recv_queue") == 0
        });
        c.holds.open(Point::ApplyLeft);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        assert_eq!(c.returned(), []);
    });
}
