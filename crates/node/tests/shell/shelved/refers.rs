//! A stream and a write set name the same row, and only one of them changes it: the other refers to it,
//! as a child to its parent. Certification lets both pass, and where the write set is applied it waits for
//! the stream.

use super::*;
use crate::chunks::ROWS;

pub const CHUNKS: &str =
    "dromon.auto_stream_size=1K;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";

/// A transaction that sets a row, and refers to another one.
fn child(db: &Arc<Db>, n: u32, parent: u32) -> Session {
    let mut t = db.begin();
    t.put(row(n), 5).expect("a free row");
    t.refers(row(parent)).expect("nobody changes it");
    t
}

/// A stream sends what it has, and before that is applied on n2 `then` commits there, with locks of its own.
fn behind(world: &World, mut stream: Session, then: Session) -> (Session, End) {
    let b = world.db(2);
    b.holds.close(Point::ApplyStart);
    stream.fragment().expect("nobody is in its way");
    world.until("the fragment is on its way", || {
        b.holds.waiting(Point::ApplyStart) == 1
    });
    let trx = then.trx().expect("it wrote");
    let client = commit(then);
    world.until("it lies behind", || {
        matches!(stage(&trx).as_str(), "Certified" | "Chunked")
    });
    b.holds.open(Point::ApplyStart);
    world.until("it commits", || client.is_finished());
    (stream, end(client))
}

/// The stream is shelved on n3 ahead of the write set, and on n2, whose client has waited for it. At its
/// own node it had to give way.
fn is_shelved_before(world: &World, stream: Session) {
    are_shelved(world, &[0, 1, 1]);
    assert_eq!([2, 3].map(|n| world.db(n).waited()), [1, 0]);
    assert_eq!(stream.commit(), End::Deadlock);
    all_is_over(world);
}

#[test]
fn with_one_applier_a_stream_is_shelved_before_a_child_of_what_it_changed() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        t.put(row(1), 1).expect("a free row");
        let (t, end) = behind(world, t, child(&b, BESIDE, 1));
        assert!(end.is_committed());
        goes_on(world, &c);
        is_shelved_before(world, t);
        all_have(world, &[(1, 0), (BESIDE, 5)]);
        assert!(b.set(row(1), 7).is_committed());
        all_is_over(world);
    });
}

#[test]
fn with_one_applier_a_stream_is_shelved_before_its_parent_changes() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut w = b.begin();
        w.put(row(BESIDE), 5).expect("a free row");
        let (t, end) = behind(world, child(&a, 1, BESIDE), w);
        assert!(end.is_committed());
        goes_on(world, &c);
        is_shelved_before(world, t);
        all_have(world, &[(1, 0), (BESIDE, 5)]);
    });
}

/// Its own node has its end on the way already: it does not give way there, and runs again.
#[test]
fn with_one_applier_what_was_shelved_commits_if_its_end_is_ordered_already() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        t.put(row(1), 1).expect("a free row");
        let w = child(&b, BESIDE, 1);
        for db in [&a, &b] {
            db.holds.close(Point::ApplyStart);
        }
        t.fragment().expect("nobody is in its way");
        let (first, second) = (t.trx().expect("it wrote"), w.trx().expect("it wrote"));
        let child = commit(w);
        world.until("it lies behind", || stage(&second) == "Certified");
        let stream = commit(t);
        world.until("its end lies behind both", || stage(&first) == "Certified");
        goes_on(world, &c);
        world.until("n3 has it whole", || c.read(row(1)) == 1);
        assert_eq!((c.count(COUNTER), c.waited()), (1, 0));
        for db in [&a, &b] {
            db.holds.open(Point::ApplyStart);
        }
        assert!(end(child).is_committed());
        assert!(end(stream).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}

/// The parent came with a later fragment, and a fragment is what waits.
#[test]
fn with_one_applier_a_stream_is_shelved_before_a_fragment_of_another() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        fragments(&mut t, 10, 1);
        world.settle();
        t.put(row(1), 1).expect("a free row");
        let mut other = child(&b, BESIDE, 1);
        b.holds.close(Point::ApplyStart);
        t.fragment().expect("nobody is in its way");
        world.until("the fragment is on its way", || {
            b.holds.waiting(Point::ApplyStart) == 1
        });
        let sent = std::thread::spawn(move || other.fragment());
        world.until("it is applied", || {
            c.streaming() == 1 && c.count(COUNTER) == 1
        });
        b.holds.open(Point::ApplyStart);
        let ordered = sent.join().expect("no panic");
        assert!(
            ordered.is_err(),
            "its own node had it give way: {ordered:?}"
        );
        assert_eq!(c.waited(), 0);
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        all_have(world, &[(1, 0), (10, 0), (BESIDE, 0)]);
    });
}

#[test]
fn with_one_applier_those_are_shelved_that_have_the_row_and_no_others() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        // Beside it: it refers to the same rows, or changes others.
        let mut beside = child(&b, 20, 2);
        beside.refers(row(3)).expect("nobody changes it");
        beside.fragment().expect("nobody is in its way");
        let mut t = child(&a, 1, 2);
        t.put(row(4), 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
        let mut w = child(&b, 60, 2);
        w.put(row(61), 1).expect("a free row");
        assert!(w.commit().is_committed());
        assert!(b.set(row(3 + 2), 1).is_committed());
        world.settle();
        assert_eq!(c.streaming(), 2);
        are_shelved(world, &[0, 0, 0]);
        t.put(row(6), 1).expect("a free row");
        let (t, end) = behind(world, t, child(&b, BESIDE, 6));
        assert!(end.is_committed());
        goes_on(world, &c);
        assert_eq!((c.count(COUNTER), c.streaming()), (1, 1));
        assert_eq!(c.waited(), 0);
        assert_eq!(t.commit(), End::Deadlock);
        // It is shelved on n2, too: streams of n2 on its table fail until it is over there, others wait.
        assert!(b.set(row(70), 1).is_committed());
        assert!(beside.commit().is_committed());
        all_is_over(world);
        all_have(
            world,
            &[(1, 0), (6, 0), (20, 5), (60, 5), (61, 1), (BESIDE, 5)],
        );
    });
}

#[test]
fn with_one_applier_a_stream_is_shelved_before_chunks_that_refer_to_its_rows() {
    run(2, CHUNKS, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        t.put(row(1), 1).expect("a free row");
        let mut w = large(&b, 100, 5);
        w.refers(row(1)).expect("nobody changes it");
        let (t, end) = behind(world, t, w);
        assert!(end.is_committed());
        world.until("it is applied", || c.read(row(100)) == 5);
        assert_eq!((c.count(COUNTER), c.waited()), (1, 0));
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        all_have(world, &[(1, 0), (100, 5), (99 + ROWS, 5)]);
    });
}

/// n3 has the fragment in its database, and what refers to its row comes when it is back.
fn after_a_start(crash: bool) {
    run(2, PATIENT, move |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        t.put(row(1), 1).expect("a free row");
        let w = child(&b, BESIDE, 1);
        b.holds.close(Point::ApplyStart);
        t.fragment().expect("nobody is in its way");
        world.until("n3 has it", || c.streaming() == 1);
        let trx = w.trx().expect("it wrote");
        stop(world, crash);
        let client = commit(w);
        world.until("it lies behind", || stage(&trx) == "Certified");
        b.holds.open(Point::ApplyStart);
        assert!(end(client).is_committed());
        let c = match crash {
            true => world.open_again(3),
            false => world.open(3, c.disk(), Position::UNDEFINED),
        };
        c.appliers.store(1, std::sync::atomic::Ordering::Relaxed);
        c.connect(&World::url(), false).expect("two are there");
        world.synced(&c);
        goes_on(world, &c);
        assert_eq!((c.count(COUNTER), c.waited()), (1, 0));
        assert_eq!(t.commit(), End::Deadlock);
        all_is_over(world);
        all_have(world, &[(1, 0), (BESIDE, 5)]);
    });
}

#[test]
fn with_one_applier_a_node_that_left_amid_the_stream_does_not_stand() {
    after_a_start(false);
}

#[test]
fn with_one_applier_a_node_that_died_amid_the_stream_does_not_stand() {
    after_a_start(true);
}

/// The end of a large one is asked for between the delivery of a stream's first fragment and its
/// application.
#[test]
fn of_two_appliers_none_is_given_to_what_lies_ahead_while_a_stream_is_on_its_way() {
    run(2, CHUNKS, |world| {
        let c = world.joins_with(3, 2);
        world.voters(3);
        let (a, b) = (world.db(1), world.db(2));
        c.neighbour(row(BESIDE), row(1));
        let mut w = b.begin();
        for n in 100..150 {
            w.put(row(n), 1).expect("a free row");
        }
        let large = begin(world, w);
        assert!(world.report.said("are applied in 2 chunks"));
        let both = [&a, &c];
        for (held, next) in [
            (Point::ApplyStart, Point::ApplyLeft),
            (Point::ApplyLeft, Point::ApplyInCommit),
        ] {
            both.iter().for_each(|db| db.holds.close(next));
            both.iter().for_each(|db| db.holds.open(held));
            world.until("a chunk is held there", || {
                both.iter().all(|db| db.holds.waiting(next) == 1)
            });
        }
        let had = c.count("received");
        let mut t = a.begin();
        let stream = std::thread::spawn(move || {
            fragments(&mut t, 1, 1);
            t
        });
        world.until("n3 knows of the stream", || c.count("received") > had);
        c.holds.close(Point::ApplyStart);
        a.holds.close(Point::EndStart);
        both.iter()
            .for_each(|db| db.holds.open(Point::ApplyInCommit));
        let begun = |db: &Db| db.count("dromon_chunks_begun_ahead");
        world.until("n1 has begun the end", || begun(&a) == 1);
        assert!(b.set(row(BESIDE), 5).is_committed());
        c.holds.open(Point::ApplyStart);
        goes_on(world, &c);
        assert_eq!(begun(&c), 0);
        a.holds.open(Point::EndStart);
        assert!(end(large).is_committed());
        let t = stream.join().expect("no panic");
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (100, 1), (149, 1), (BESIDE, 5)]);
    });
}

/// No key tells of what it waits for, so nothing is done ahead.
#[test]
fn where_no_applier_is_left_the_log_says_what_helps() {
    run(2, PATIENT, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        fragments(&mut t, 1, 1);
        world.settle();
        c.neighbour(row(BESIDE), row(1));
        waits(world, &b, &c);
        world.until("it says so", || {
            world.report.said("SET GLOBAL wsrep_slave_threads=2")
        });
        assert_eq!(c.read(row(BESIDE)), 0);
        c.lend();
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert_eq!(
            world.report.times("n3", "SET GLOBAL wsrep_slave_threads"),
            1
        );
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (BESIDE, 5)]);
    });
}
