//! Who must give way, at each stage of a transaction (contract B.4.5).
//!
//! The victim runs on n2, which never leads here; the winner comes from n1.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_node::{Meta, Outcome, Position};
use dromon_writeset::{Flags, KeyType, Uuid};

use crate::toy::holds::Point;
use crate::toy::{Db, End, Session, row};
use crate::world::{World, run};

/// Starts a client's commit in the background.
fn commit(session: Session) -> std::thread::JoinHandle<End> {
    std::thread::spawn(move || session.commit())
}

/// Waits until the node has the transaction at `stage`.
fn stage(world: &World, trx: &Arc<dromon_node::Trx>, stage: &str) {
    world.until(&format!("transaction {} is {stage}", trx.id), || {
        format!("{:?}", trx.lock().stage) == stage
    });
}

/// A transaction that writes `writes` and has locked `reads`.
fn open(db: &Arc<Db>, writes: u32, reads: u32) -> Session {
    let mut t = db.begin();
    t.lock(row(reads)).expect("a free row");
    t.put(row(writes), 1).expect("a free row");
    t
}

fn two_nodes(body: impl FnOnce(&World, Arc<Db>, Arc<Db>) + Send + 'static) {
    // Nobody is evicted and no lease is lost while a test cuts the network.
    let options = "evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(2, options, |world| {
        let (winner, victim) = (world.db(1), world.db(2));
        assert_eq!(world.leader(&winner), 1);
        body(world, winner, victim);
        world.settle();
        assert_eq!(world.db(2).count("open_transactions"), 0);
    });
}

#[test]
fn executing() {
    two_nodes(|world, winner, db| {
        let t = open(&db, 1, 1);
        assert!(winner.set(row(1), 5).is_committed());
        world.until("the idle victim is rolled back", || t.aborted());
        assert_eq!(t.commit(), End::Deadlock);
        world.settle();
        assert_eq!(db.read(row(1)), 5);
        assert_eq!(db.count("replicated"), 0, "nothing of it was sent");
    });
}

#[test]
fn executing_and_certified_all_the_same() {
    two_nodes(|_, _, db| {
        let node = db.node();
        let trx = node.begin(77);
        let key: [&[u8]; 2] = [b"toy", b"x"];
        assert_eq!(node.append_key(&trx, &key, KeyType::Exclusive), Outcome::Ok);
        assert_eq!(node.abort(99, 77), (Outcome::Ok, -1));
        assert_eq!(node.abort(100, 77), (Outcome::NotAllowed, -1), "once only");
        let mut meta = Meta {
            position: Position {
                history: Uuid([1; 16]),
                seqno: 9,
            },
            source: Uuid::NIL,
            trx_id: 1,
            conn_id: 1,
            depends_on: 9,
        };
        let flags = Flags::TRX_START | Flags::TRX_END;
        assert_eq!(node.certify(1, &trx, flags, &mut meta), Outcome::ConnFail);
        assert_eq!(meta.position, Position::UNDEFINED);
        assert_eq!((meta.depends_on, meta.trx_id), (-1, 77));
        assert_eq!(Some(meta.source), db.own());
        assert_eq!(node.release(&trx), (false, Outcome::Ok));
        assert_eq!(node.abort(99, 77), (Outcome::Ok, -1), "unknown by now");
    });
}

#[test]
fn waiting_for_flow_control() {
    let options = "gcs.fc_limit=2;gcs.fc_single_primary=yes;dromon.stall_patience=PT0S;evs.suspect_timeout=PT24S;evs.inactive_timeout=PT30S";
    run(2, options, |world| {
        let (winner, db) = (world.db(1), world.db(2));
        db.holds.close(Point::ApplyStart);
        let writer = std::thread::spawn({
            let winner = winner.clone();
            move || {
                for n in 0..20 {
                    assert!(winner.set(row(50 + n), 1).is_committed());
                }
            }
        });
        world.stopped_by(&db);
        let t = open(&db, 1, 2);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        let commit = commit(t);
        stage(world, &trx, "Waiting");
        assert_eq!(db.node().abort(1000, id), (Outcome::Ok, -1));
        // The server counts an abort that the toy was not told of as a loss
        // of the connection.
        assert_eq!(commit.join().expect("no panic"), End::ConnFail);
        db.holds.open(Point::ApplyStart);
        writer.join().expect("no panic");
        world.settle();
        assert_eq!(db.read(row(1)), 0);
        assert_eq!(db.count("replicated"), 0, "nothing of it was sent");
    });
}

#[test]
fn sent_and_not_yet_ordered() {
    two_nodes(|world, _, db| {
        let (a, b) = ([World::addr(1)], [World::addr(2)]);
        let t = open(&db, 1, 2);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        world.net.cut(&a, &b);
        let commit = commit(t);
        stage(world, &trx, "Sent");
        assert_eq!(db.node().abort(-1, id), (Outcome::Ok, -1));
        world.net.heal();
        let end = commit.join().expect("no panic");
        assert!(
            matches!(end, End::Committed { replayed: true, .. }),
            "{end:?}"
        );
        world.settle();
        assert_eq!(db.read(row(1)), 1);
        assert_eq!(db.count("local_replays"), 1);
    });
}

/// What was right when it was sent.
#[test]
fn what_a_spool_file_has_spoilt_is_not_replayed() {
    two_nodes(|world, _, db| {
        let (a, b) = ([World::addr(1)], [World::addr(2)]);
        let t = open(&db, 1, 2);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        world.net.cut(&a, &b);
        let commit = std::thread::spawn(move || t.commit_padded(6 << 20));
        stage(world, &trx, "Sent");
        assert_eq!(db.node().abort(-1, id), (Outcome::Ok, -1));
        {
            let mut body = trx.lock();
            let mut spoilt = body.payload.to_vec();
            *spoilt.last_mut().expect("bytes") ^= 1;
            body.payload = spoilt.into();
        }
        world.net.heal();
        let end = commit.join().expect("no panic");
        assert!(
            matches!(end, End::Committed { replayed: true, .. }),
            "{end:?}"
        );
        assert!(world.report.said("is read from the log again"));
        world.settle();
        assert_eq!(db.read(row(1)), 1);
    });
}

/// The winner's write set comes into the log first, because the leader hears
/// it first.
fn beaten(world: &World, winner: &Arc<Db>) -> std::thread::JoinHandle<End> {
    let first = std::thread::spawn({
        let winner = winner.clone();
        move || winner.set(row(1), 5)
    });
    world.until("the winner's write set is in the log", || {
        winner.count("dromon_under_way") == 1
            && winner.count("dromon_log_last") > winner.count("dromon_log_committed")
    });
    first
}

#[test]
fn sent_and_beaten_to_it() {
    two_nodes(|world, winner, db| {
        let (a, b) = ([World::addr(1)], [World::addr(2)]);
        let t = open(&db, 1, 2);
        let trx = t.trx().expect("it wrote");
        world.net.cut(&a, &b);
        let loser = commit(t);
        stage(world, &trx, "Sent");
        let first = beaten(world, &winner);
        world.net.heal();
        assert!(first.join().expect("no panic").is_committed());
        assert_eq!(loser.join().expect("no panic"), End::Deadlock);
        world.settle();
        assert_eq!(db.read(row(1)), 5);
        assert_eq!(db.count("local_cert_failures"), 1);
        assert_eq!(db.count("local_replays"), 0);
    });
}

/// An applier of n2 is held at seqno s without locks; a local transaction gets
/// s+1 and waits behind it, holding a row that s needs.
fn behind_an_applier(world: &World, winner: &Arc<Db>, db: &Arc<Db>) -> (Session, i64) {
    db.holds.close(Point::ApplyStart);
    let t = open(db, 1, 2);
    let first = winner.set(row(2), 5).seqno();
    world.until("the applier is held", || {
        db.holds.waiting(Point::ApplyStart) == 1
    });
    (t, first)
}

#[test]
fn certified_and_waiting_for_its_turn() {
    two_nodes(|world, winner, db| {
        let (t, first) = behind_an_applier(world, &winner, &db);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        let commit = commit(t);
        stage(world, &trx, "Certified");
        let later = db.node().abort(first + 9, id);
        assert_eq!(
            later,
            (Outcome::NotAllowed, first + 1),
            "it is older than that one and will finish"
        );
        db.holds.open(Point::ApplyStart);
        let end = commit.join().expect("no panic");
        assert_eq!(
            end,
            End::Committed {
                seqno: Some(first + 1),
                replayed: true
            }
        );
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(2))), (1, 5));
    });
}

#[test]
fn certified_and_not_yet_in_the_gate() {
    two_nodes(|world, winner, db| {
        let (t, first) = behind_an_applier(world, &winner, &db);
        db.holds.close(Point::ClientCertified);
        let trx = t.trx().expect("it wrote");
        let commit = commit(t);
        world.until("the client is certified", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        db.holds.open(Point::ApplyStart);
        world.until("the abort is noted", || trx.lock().must_abort);
        db.holds.open(Point::ClientCertified);
        let end = commit.join().expect("no panic");
        assert_eq!(
            end,
            End::Committed {
                seqno: Some(first + 1),
                replayed: true
            }
        );
    });
}

/// Its server rolls it back without a word to the node, and has it replayed later.
#[test]
fn aborted_before_the_gate_it_lets_nobody_take_its_row_before_the_replay() {
    two_nodes(|world, winner, db| {
        db.holds.close(Point::ApplyStart);
        db.holds.close(Point::ClientCertified);
        let mut t = db.begin();
        t.lock(row(2)).expect("a free row");
        t.add(row(1), 1).expect("a free row");
        assert!(winner.set(row(2), 5).is_committed());
        let trx = t.trx().expect("it wrote");
        let first = commit(t);
        world.until("the client is certified", || {
            db.holds.waiting(Point::ClientCertified) == 1
        });
        // What comes before gets the row, and its turn to commit does not come yet.
        db.holds.close(Point::ApplyLocked);
        db.holds.open(Point::ApplyStart);
        world.until("the abort is noted", || trx.lock().must_abort);
        db.holds.open(Point::ClientCertified);
        stage(world, &trx, "Replaying");
        // The row is free now, and holds the old value.
        let mut t = db.begin();
        t.add(row(1), 1).expect("a free row");
        let trx = t.trx().expect("it wrote");
        let second = commit(t);
        let is = || format!("{:?}", trx.lock().stage);
        world.until("it wants to commit", || is() != "Executing");
        let passes = world.soon(|| is() != "Waiting");
        assert!(!passes, "it would write what the first one writes");
        db.holds.open(Point::ApplyLocked);
        let first = first.join().expect("no panic");
        assert!(
            matches!(first, End::Committed { replayed: true, .. }),
            "{first:?}"
        );
        assert_eq!(second.join().expect("no panic"), End::Deadlock);
        assert!(db.increment(row(1)).is_committed());
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(2))), (2, 5));
    });
}

#[test]
fn inside_commit_order() {
    two_nodes(|world, winner, db| {
        db.holds.close(Point::ClientInCommit);
        let t = open(&db, 1, 2);
        let id = t.id;
        let commit = commit(t);
        world.until("the client is inside commit order", || {
            db.holds.waiting(Point::ClientInCommit) == 1
        });
        // It needs the row, asks, is refused, and waits its turn.
        let next = winner.set(row(2), 5).seqno();
        for bf in [-1, next, 1000] {
            let (outcome, seqno) = db.node().abort(bf, id);
            assert_eq!((outcome, seqno), (Outcome::NotAllowed, next - 1));
        }
        db.holds.open(Point::ClientInCommit);
        assert_eq!(
            commit.join().expect("no panic"),
            End::Committed {
                seqno: Some(next - 1),
                replayed: false
            }
        );
        world.settle();
        assert_eq!((db.read(row(1)), db.read(row(2))), (1, 5));
    });
}

#[test]
fn after_commit_order_and_before_release() {
    two_nodes(|world, winner, db| {
        db.holds.close(Point::ClientLeft);
        let t = open(&db, 1, 2);
        let id = t.id;
        let commit = commit(t);
        world.until("the client has left commit order", || {
            db.holds.waiting(Point::ClientLeft) == 1
        });
        let before = db.node().last_committed().seqno;
        assert_eq!(
            db.node().abort(-1, id),
            (Outcome::NotAllowed, before + 1),
            "it is through"
        );
        let next = winner.set(row(3), 5).seqno();
        assert_eq!(next, before + 2);
        world.until("the next one is installed", || db.read(row(3)) == 5);
        assert_eq!(
            db.node().last_committed().seqno,
            before,
            "left is not finished"
        );
        db.holds.open(Point::ClientLeft);
        assert!(commit.join().expect("no panic").is_committed());
    });
}

#[test]
fn failed_certification_waits_for_its_place() {
    two_nodes(|world, winner, db| {
        // The winner's change is ordered, but its applier has not come to the
        // row yet: the victim is certified against it and fails.
        db.holds.close(Point::ApplyStart);
        let t = open(&db, 1, 1);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        let first = winner.set(row(1), 5).seqno();
        let commit = commit(t);
        stage(world, &trx, "Failed");
        let (outcome, seqno) = db.node().abort(first, id);
        assert_eq!((outcome, seqno), (Outcome::NotAllowed, first + 1));
        db.holds.open(Point::ApplyStart);
        assert_eq!(commit.join().expect("no panic"), End::Deadlock);
        assert_eq!(world.settle().seqno, first + 1);
        assert_eq!(db.read(row(1)), 5);
    });
}

/// Who was asked to give way, and failed all the same, has its place to wait for, too.
#[test]
fn asked_to_give_way_and_failed_it_waits_for_its_place() {
    two_nodes(|world, winner, db| {
        let (a, b) = ([World::addr(1)], [World::addr(2)]);
        db.holds.close(Point::ApplyStart);
        let t = open(&db, 1, 2);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        world.net.cut(&a, &b);
        let loser = commit(t);
        stage(world, &trx, "Sent");
        assert_eq!(db.node().abort(-1, id), (Outcome::Ok, -1));
        let first = beaten(world, &winner);
        world.net.heal();
        let first = first.join().expect("no panic").seqno();
        stage(world, &trx, "Failed");
        assert!(!world.soon(|| loser.is_finished()));
        db.holds.open(Point::ApplyStart);
        assert_eq!(loser.join().expect("no panic"), End::Deadlock);
        assert_eq!(world.settle().seqno, first + 1);
        assert_eq!(db.position().seqno, first + 1, "its place is the last one");
        assert_eq!(db.read(row(1)), 5);
    });
}

/// Both look at the history and at what the node shares between its threads.
#[test]
fn replays_and_questions_do_not_wait_for_one_another() {
    two_nodes(|world, winner, db| {
        let over = Instant::now() + Duration::from_secs(2);
        let goes_on = move || Instant::now() < over;
        std::thread::scope(|s| {
            for n in 0..3 {
                let db = &db;
                s.spawn(move || {
                    while goes_on() {
                        let mut t = db.begin();
                        // Whoever has lost the row begins again.
                        if t.lock(row(2)).is_ok() && t.put(row(10 + n), 1).is_ok() {
                            let _ = t.commit();
                        }
                    }
                });
            }
            s.spawn(|| {
                while goes_on() {
                    let _ = winner.set(row(2), 5);
                }
            });
            for _ in 0..2 {
                s.spawn(|| {
                    while goes_on() {
                        assert!(world.net.is_answered(&World::addr(2)));
                    }
                });
            }
        });
        assert!(db.count("local_replays") > 0);
    });
}

#[test]
fn a_replay_is_not_aborted_again() {
    two_nodes(|world, winner, db| {
        let (t, first) = behind_an_applier(world, &winner, &db);
        db.holds.close(Point::ApplyLocked);
        let (id, trx) = (t.id, t.trx().expect("it wrote"));
        let commit = commit(t);
        stage(world, &trx, "Certified");
        db.holds.open(Point::ApplyStart);
        stage(world, &trx, "Replaying");
        for bf in [-1, first] {
            assert_eq!(db.node().abort(bf, id), (Outcome::NotAllowed, first + 1));
        }
        db.holds.open(Point::ApplyLocked);
        assert!(commit.join().expect("no panic").is_committed());
    });
}

#[test]
fn a_pause_holds_what_fails_behind_it() {
    two_nodes(|world, winner, db| {
        let (a, b) = ([World::addr(1)], [World::addr(2)]);
        let t = open(&db, 1, 2);
        let trx = t.trx().expect("it wrote");
        world.net.cut(&a, &b);
        let loser = commit(t);
        stage(world, &trx, "Sent");
        let first = beaten(world, &winner);
        let at = db.node().pause().expect("nothing is under way here");
        world.net.heal();
        assert!(first.join().expect("no panic").is_committed());
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(db.position().seqno, at, "nothing moves during a pause");
        assert!(!loser.is_finished());
        db.node().resume();
        assert_eq!(loser.join().expect("no panic"), End::Deadlock);
        world.settle();
        assert_eq!(db.read(row(1)), 5);
    });
}
