//! Streaming transactions (contract B.6).

use std::sync::Arc;
use std::time::Duration;

use dromon_node::Outcome;

use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, End, Key, Session, row};
use crate::world::{World, run};

const PATIENT: &str = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";

/// A streaming transaction with `n` fragments, each of one row.
fn stream(db: &Arc<Db>, from: u32, n: u32) -> Session {
    let mut t = db.begin();
    for i in from..from + n {
        t.put(row(i), 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
    }
    t
}

#[test]
fn one_node_commits_and_rolls_back_fragments() {
    run(1, "", |world| {
        let db = world.db(1);
        let t = stream(&db, 1, 3);
        assert_eq!((db.streaming(), db.read(row(1))), (1, 0));
        assert_eq!(t.commit().seqno(), 5);
        assert_eq!((db.streaming(), db.read(row(3))), (0, 1));
        let t = stream(&db, 10, 2);
        assert_eq!(db.streaming(), 1);
        t.rollback();
        // The rollback fragment comes back to its origin.
        world.until("the rollback fragment is applied", || db.streaming() == 0);
        assert_eq!(world.settle().seqno, 8);
        assert_eq!(db.read(row(10)), 0);
        assert_eq!(db.count("open_transactions"), 0);
    });
}

#[test]
fn fragments_reach_the_others() {
    run(3, "", |world| {
        let dbs = world.members();
        let committed = stream(&dbs[0], 1, 3);
        let rolled_back = stream(&dbs[1], 10, 3);
        let broken = stream(&dbs[2], 20, 1);
        world.settle();
        for db in &dbs {
            assert_eq!(db.streaming(), 3, "on {}", db.name);
            let open = db.stat("dromon_large_open");
            assert_eq!(open.matches(" fragments, ").count(), 3, "{open}");
            assert_eq!(open.matches("on n3: 1 fragments, ").count(), 1, "{open}");
            assert_eq!(open.matches("asked for").count(), 3, "{open}");
        }
        assert!(committed.commit().is_committed());
        rolled_back.rollback();
        drop(broken);
        world.until("all of them are through", || {
            dbs.iter().all(|d| d.streaming() == 0)
        });
        world.settle();
        assert_eq!((dbs[2].read(row(3)), dbs[2].read(row(10))), (1, 0));
        for db in &dbs {
            assert_eq!(db.stat("dromon_large_open"), "", "on {}", db.name);
        }
    });
}

#[test]
fn an_idle_streaming_transaction_gives_way() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        let mut t = stream(&db, 1, 2);
        t.lock(row(7)).expect("a free row");
        assert!(winner.set(row(7), 5).is_committed());
        world.until("it is aborted", || t.aborted());
        assert_eq!(t.commit(), End::Deadlock);
        world.until("it is rolled back everywhere", || {
            db.streaming() == 0 && winner.streaming() == 0
        });
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(7))), (0, 5));
    });
}

#[test]
fn a_fragment_that_waits_for_its_turn_gives_way() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        let mut t = stream(&db, 1, 1);
        db.holds.close(Point::ApplyStart);
        t.lock(row(7)).expect("a free row");
        t.put(row(2), 1).expect("a free row");
        let first = winner.set(row(7), 5).seqno();
        world.until("the applier is held", || {
            db.holds.waiting(Point::ApplyStart) == 1
        });
        let trx = t.trx().expect("it wrote");
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("the fragment is certified", || {
            trx.lock().seqno == first + 1
        });
        db.holds.open(Point::ApplyStart);
        let end = fragment.join().expect("no panic");
        assert_eq!(end, Err(End::Deadlock));
        world.until("it is rolled back everywhere", || {
            db.streaming() == 0 && winner.streaming() == 0
        });
        assert_eq!(world.settle().seqno, first + 2, "its place was passed");
        assert_eq!(db.read(row(7)), 5);
    });
}

/// A server that was told to KILL one amid a trigger forgets the provider's object of a fragment that failed.
/// What is behind it goes on: it waits for its turn and gives way, fails certification, or passed, and the
/// server does not go in with it.
#[test]
fn a_failed_fragment_is_passed_though_its_server_never_releases_it() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        let goes_on = |row_of_both: u32| {
            world.until("it is rolled back everywhere", || {
                db.streaming() == 0 && winner.streaming() == 0
            });
            world.settle();
            assert_eq!(db.read(row(row_of_both)), 5);
            assert!(db.set(row(90), 1).is_committed());
        };
        let victim = |first: u32| {
            let mut t = stream(&db, first, 1);
            t.forgets = true;
            t.lock(row(first + 7)).expect("a free row");
            t.put(row(first + 1), 1).expect("a free row");
            t
        };
        // It waits for its turn.
        let mut t = victim(10);
        let trx = t.trx().expect("it wrote");
        db.holds.close(Point::ApplyStart);
        let first = winner.set(row(17), 5).seqno();
        world.until("the applier is held", || {
            db.holds.waiting(Point::ApplyStart) == 1
        });
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("the fragment is certified", || {
            trx.lock().seqno == first + 1
        });
        db.holds.open(Point::ApplyStart);
        assert_eq!(fragment.join().expect("no panic"), Err(End::Deadlock));
        goes_on(17);
        // It fails certification.
        let mut t = victim(20);
        t.put(row(29), 1).expect("a free row");
        db.holds.close(Point::ApplyStart);
        let _ = winner.set(row(29), 5).seqno();
        world.until("the applier is held", || {
            db.holds.waiting(Point::ApplyStart) == 1
        });
        assert_eq!(t.fragment(), Err(End::Deadlock));
        drop(t);
        db.holds.open(Point::ApplyStart);
        goes_on(29);
        // It has passed, and is aborted before it goes in.
        let mut t = victim(40);
        let trx = t.trx().expect("it wrote");
        db.holds.close(Point::ClientCertified);
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("the fragment has passed", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        let _ = winner.set(row(47), 5).seqno();
        world.until("it is aborted", || trx.lock().must_abort);
        db.holds.open(Point::ClientCertified);
        assert_eq!(fragment.join().expect("no panic"), Err(End::Deadlock));
        goes_on(47);
    });
}

#[test]
fn a_fragment_inside_commit_order_gives_way_afterwards() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        db.holds.close(Point::ClientInCommit);
        let mut t = db.begin();
        t.lock(row(7)).expect("a free row");
        t.put(row(1), 1).expect("a free row");
        let trx = t.trx().expect("it wrote");
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("the fragment is inside commit order", || {
            db.holds.waiting(Point::ClientInCommit) == 1
        });
        assert!(winner.set(row(7), 5).is_committed());
        world.until("the abort is noted", || trx.lock().must_abort);
        db.holds.open(Point::ClientInCommit);
        assert_eq!(fragment.join().expect("no panic"), Err(End::Deadlock));
        world.until("it is rolled back everywhere", || {
            db.streaming() == 0 && winner.streaming() == 0
        });
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(7))), (0, 5));
    });
}

#[test]
fn a_fragment_under_way_gives_way() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        let mut t = stream(&db, 1, 1);
        t.put(row(2), 1).expect("a free row");
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        world.net.cut(&[World::addr(1)], &[World::addr(2)]);
        let fragment = std::thread::spawn(move || t.fragment());
        world.until("it is sent", || format!("{:?}", trx.lock().stage) == "Sent");
        assert_eq!(db.node().abort(-1, id), (Outcome::Ok, -1));
        world.net.heal();
        assert_eq!(fragment.join().expect("no panic"), Err(End::Deadlock));
        world.until("it is rolled back everywhere", || {
            db.streaming() == 0 && winner.streaming() == 0
        });
        world.settle();
    });
}

/// Of two that touch nothing of each other, as far as anybody can tell.
#[test]
fn the_end_does_not_pass_a_statement_it_has_not_seen() {
    run(2, PATIENT, |world| {
        let (other, db) = (world.db(1), world.db(2));
        let mut t = stream(&db, 1, 1);
        let looked_at = Key { table: 1, row: 1 };
        t.lock(looked_at).expect("a free row");
        let trx = t.trx().expect("it wrote");
        world.settle();
        // The leader has the statement in its log when the end comes there.
        world.net.cut(&[World::addr(1)], &[World::addr(2)]);
        let commit = std::thread::spawn(move || t.commit());
        world.until("it is sent", || format!("{:?}", trx.lock().stage) == "Sent");
        let ddl = {
            let other = other.clone();
            std::thread::spawn(move || other.ddl(&Ddl::Truncate { table: 1 }))
        };
        std::thread::sleep(Duration::from_millis(300));
        world.net.heal();
        assert!(ddl.join().expect("no panic").is_committed());
        assert_eq!(commit.join().expect("no panic"), End::Deadlock);
        world.until("nothing is left of it", || {
            db.streaming() == 0 && other.streaming() == 0
        });
        world.settle();
        assert_eq!((db.read(row(1)), other.read(row(1))), (0, 0));
        // One that has seen it commits.
        assert!(stream(&db, 1, 2).commit().is_committed());
        world.settle();
        assert_eq!(other.read(row(2)), 1);
    });
}

#[test]
fn the_last_write_set_is_replayed() {
    run(2, PATIENT, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        let mut t = stream(&db, 1, 2);
        db.holds.close(Point::ApplyStart);
        t.lock(row(7)).expect("a free row");
        let first = winner.set(row(7), 5).seqno();
        world.until("the applier is held", || {
            db.holds.waiting(Point::ApplyStart) == 1
        });
        let trx = t.trx().expect("it wrote");
        let commit = std::thread::spawn(move || t.commit());
        world.until("the end is certified", || trx.lock().seqno == first + 1);
        db.holds.open(Point::ApplyStart);
        assert_eq!(
            commit.join().expect("no panic"),
            End::Committed {
                seqno: Some(first + 1),
                replayed: true
            }
        );
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(7))), (1, 5));
    });
}

#[test]
fn a_statement_in_isolation_ends_them_everywhere() {
    run(3, "", |world| {
        let dbs = world.members();
        let open: Vec<_> = dbs
            .iter()
            .map(|db| stream(db, db.n as u32 * 10, 2))
            .collect();
        let at = world.settle().seqno;
        assert!(dbs[1].ddl(&Ddl::Truncate { table: 0 }).is_committed());
        world.settle();
        for (t, db) in open.into_iter().zip(&dbs) {
            assert!(t.aborted(), "on {}", db.name);
            assert_eq!(t.commit(), End::Deadlock);
            assert_eq!(db.streaming(), 0, "on {}", db.name);
        }
        // Each told the others, who had found out by themselves.
        let end = at + 1 + dbs.len() as i64;
        world.until("the rollbacks are through", || {
            dbs.iter().all(|db| db.position().seqno == end)
        });
        assert_eq!(world.settle().seqno, end);
    });
}

/// The others do not see that the statement ends it: it has changed nothing there.
#[test]
fn a_statement_ends_one_that_only_looked_at_its_table() {
    let looked_at = Key { table: 1, row: 1 };
    run(3, PATIENT, move |world| {
        let dbs = world.members();
        let mut t = stream(&dbs[0], 1, 1);
        t.lock(looked_at).expect("a free row");
        world.settle();
        // Waits for the row, and changes it as soon as it is free.
        let next = {
            let db = dbs[0].clone();
            std::thread::spawn(move || {
                let mut next = db.begin();
                next.put(row(1), 7).expect("the row comes free");
                next.fragment().expect("nobody is in its way");
                next.commit()
            })
        };
        assert!(dbs[1].ddl(&Ddl::Truncate { table: 1 }).is_committed());
        assert!(next.join().expect("no panic").is_committed());
        assert_eq!(t.commit(), End::Deadlock);
        world.until("nothing is left of either", || {
            dbs.iter().all(|db| db.streaming() == 0)
        });
        world.settle();
        for db in &dbs {
            assert_eq!(db.read(row(1)), 7, "on {}", db.name);
            assert_eq!(db.stat("dromon_large_open"), "", "on {}", db.name);
        }
    });
}

#[test]
fn a_stream_that_its_server_forgets_is_rolled_back() {
    run(2, PATIENT, |world| {
        let (other, db) = (world.db(1), world.db(2));
        let t = stream(&db, 1, 1);
        world.settle();
        t.lose();
        world.until("it is rolled back everywhere", || {
            db.streaming() == 0 && other.streaming() == 0
        });
        world.settle();
    });
}

#[test]
fn nothing_overtakes_a_fragment_that_failed() {
    run(3, PATIENT, |world| {
        let (first, slow, origin) = (world.db(1), world.db(2), world.db(3));
        let (a, b) = (row(1), row(2));
        let mut t = origin.begin();
        t.put(a, 1).expect("a free row");
        t.fragment().expect("nobody is in its way");
        world.settle();

        // The next fragment meets a change that its node has not applied yet.
        origin.holds.close(Point::ApplyStart);
        origin.holds.close(Point::FragmentRefused);
        assert!(first.set(b, 5).is_committed());
        world.until("n2 has it", || slow.read(b) == 5);
        slow.holds.close(Point::ApplyStart);
        t.put(b, 1).expect("the applier is held");
        let refused = std::thread::spawn(move || t.fragment());
        // n1 rolls the transaction back there, which frees its row.
        world.until("n1 has rolled it back", || first.streaming() == 0);
        assert!(first.set(a, 7).is_committed());
        world.until("n2 has the failed fragment", || {
            slow.holds.waiting(Point::ApplyStart) >= 1
        });
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(
            slow.holds.waiting(Point::ApplyStart),
            1,
            "the change of the freed row must wait for the rollback"
        );
        for db in [&slow, &origin] {
            db.holds.open_all();
        }
        assert_eq!(refused.join().expect("no panic"), Err(End::Deadlock));
        world.until("it is rolled back everywhere", || {
            world.members().iter().all(|d| d.streaming() == 0)
        });
        world.settle();
        assert_eq!((slow.read(a), slow.read(b)), (7, 5));
    });
}

#[test]
fn a_fragment_is_not_applied_ahead_of_what_lies_before_it() {
    run(2, PATIENT, |world| {
        let (one, two) = (world.db(1), world.db(2));
        two.holds.close(Point::ApplyLocked);
        assert!(one.set(row(1), 5).is_committed());
        assert!(one.set(row(2), 5).is_committed());
        world.until("n2 applies both beside each other", || {
            two.holds.waiting(Point::ApplyLocked) == 2
        });
        // What lies before it may have to abort its transaction, and would wait for it.
        let t = stream(&one, 10, 1);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(two.streaming(), 0);
        assert_eq!(two.holds.waiting(Point::ApplyLocked), 2);
        two.holds.open_all();
        world.until("its turn has come", || two.streaming() == 1);
        assert!(t.commit().is_committed());
        world.settle();
        assert_eq!((two.read(row(2)), two.read(row(10))), (5, 1));
    });
}

const ELSEWHERE: Key = Key { table: 3, row: 1 };

/// A streaming transaction of `a`, and one of `b` that has changed a row elsewhere.
fn of_one_number(world: &World, a: &Arc<Db>, b: &Arc<Db>) -> (Session, Session) {
    let mut remote = a.begin_as(42);
    remote.put(row(1), 1).expect("a free row");
    remote.fragment().expect("nobody is in its way");
    world.settle();
    let mut local = b.begin_as(42);
    local.put(ELSEWHERE, 1).expect("a free row");
    (remote, local)
}

#[test]
fn the_number_of_a_remote_one_may_hit_a_local_one() {
    run(2, "", |world| {
        let (a, b) = (world.db(1), world.db(2));
        let (remote, local) = of_one_number(world, &a, &b);
        assert!(a.ddl(&Ddl::Truncate { table: 0 }).is_committed());
        world.settle();
        drop(remote);
        // Marked by mistake, it fails cleanly.
        assert_eq!(local.commit(), End::ConnFail);
        assert!(b.set(ELSEWHERE, 2).is_committed());
        world.settle();
    });
}

#[test]
fn the_number_of_a_remote_one_may_hit_a_local_streaming_one() {
    run(2, "", |world| {
        let (a, b) = (world.db(1), world.db(2));
        let (remote, mut local) = of_one_number(world, &a, &b);
        local.fragment().expect("nobody is in its way");
        assert!(a.ddl(&Ddl::Truncate { table: 0 }).is_committed());
        // Marked by mistake, it is rolled back elsewhere; its server knows nothing of
        // that, and gives it up for the first who needs its row.
        world.until("the row is free", || a.streaming() == 0);
        assert!(a.set(ELSEWHERE, 2).is_committed());
        world.settle();
        drop(remote);
        assert_eq!(local.commit(), End::Deadlock);
        world.until("nothing is left of it", || b.streaming() == 0);
        assert_eq!((a.read(ELSEWHERE), b.read(ELSEWHERE)), (2, 2));
    });
}
