//! Three nodes that write at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dromon_node::Outcome;

use crate::rng::Rng;
use crate::toy::holds::Point;
use crate::toy::{Db, Ddl, End, Key, row};
use crate::world::{World, run};

/// Lets `clients` threads on every node do `work` a number of times.
fn everywhere(world: &World, clients: u64, work: impl Fn(&Arc<Db>, &mut Rng) + Sync) {
    std::thread::scope(|scope| {
        for db in world.members() {
            for client in 0..clients {
                let (db, work) = (db.clone(), &work);
                scope.spawn(move || work(&db, &mut Rng::new(db.n as u64 * 100 + client)));
            }
        }
    });
}

#[test]
fn concurrent_increments_lose_nothing() {
    run(3, "", |world| {
        const ROWS: u32 = 3;
        let acknowledged: [AtomicI64; ROWS as usize] = Default::default();
        let refused = AtomicU64::new(0);
        everywhere(world, 4, |db, rng| {
            for _ in 0..25 {
                let n = rng.below(u64::from(ROWS)) as u32;
                match db.increment(row(n)) {
                    End::Committed { .. } => {
                        acknowledged[n as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    End::Deadlock => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    other => panic!("an increment ended as {other:?}"),
                }
            }
        });
        let position = world.settle();
        for db in world.members() {
            for n in 0..ROWS {
                let expected = acknowledged[n as usize].load(Ordering::Relaxed);
                assert_eq!(db.read(row(n)), expected, "row {n} on {}", db.name);
            }
            assert_eq!(db.count("last_committed"), position.seqno);
            assert_eq!(db.count("local_recv_queue"), 0);
            assert_eq!(db.count("local_send_queue"), 0);
            assert_eq!(db.count("dromon_under_way"), 0);
            assert_eq!(db.count("open_transactions"), 0);
        }
        let total: i64 = acknowledged.iter().map(|a| a.load(Ordering::Relaxed)).sum();
        assert_eq!(total as u64 + refused.load(Ordering::Relaxed), 300);
        assert!(total > 0, "nobody got through");
    });
}

#[test]
fn transfers_keep_the_sum() {
    run(3, "", |world| {
        const ACCOUNTS: u64 = 12;
        let first = world.db(1);
        for n in 0..ACCOUNTS as u32 {
            assert!(first.set(row(n), 100).is_committed());
        }
        world.settle();
        for db in world.members() {
            db.holds.jitter(db.n as u64);
        }
        everywhere(world, 3, |db, rng| {
            for _ in 0..15 {
                let (a, b) = (rng.below(ACCOUNTS) as u32, rng.below(ACCOUNTS) as u32);
                if a == b {
                    continue;
                }
                let mut t = db.begin();
                // In one order everywhere, so that clients do not block each
                // other for ever.
                let moved = t
                    .lock(row(a.min(b)))
                    .and_then(|()| t.lock(row(a.max(b))))
                    .and_then(|()| t.add(row(a), -1))
                    .and_then(|()| t.add(row(b), 1));
                if moved.is_ok() {
                    let end = t.commit();
                    assert!(
                        matches!(end, End::Committed { .. } | End::Deadlock),
                        "{end:?}"
                    );
                }
            }
        });
        world.settle();
        for db in world.members() {
            let sum: i64 = (0..ACCOUNTS as u32).map(|n| db.read(row(n))).sum();
            assert_eq!(sum, 100 * ACCOUNTS as i64, "on {}", db.name);
        }
    });
}

#[test]
fn statements_in_isolation_stop_everybody() {
    run(3, "", |world| {
        let added = AtomicI64::new(0);
        for n in 0..4 {
            assert!(world.db(1).set(row(n), 0).is_committed());
        }
        world.settle();
        let acknowledged = AtomicI64::new(0);
        everywhere(world, 3, |db, rng| {
            for i in 0..12 {
                if i % 6 == 3 {
                    let end = db.ddl(&Ddl::Add { table: 0, n: 1000 });
                    assert!(end.is_committed(), "{end:?}");
                    added.fetch_add(4000, Ordering::Relaxed);
                } else if db.increment(row(rng.below(4) as u32)).is_committed() {
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        world.settle();
        let expected = acknowledged.load(Ordering::Relaxed) + added.load(Ordering::Relaxed);
        for db in world.members() {
            let sum: i64 = (0..4).map(|n| db.read(row(n))).sum();
            assert_eq!(sum, expected, "on {}", db.name);
        }
    });
}

#[test]
fn a_statement_in_isolation_aborts_open_transactions_everywhere() {
    run(3, "", |world| {
        let dbs = world.members();
        let mut open = Vec::new();
        for db in &dbs {
            let mut writes = db.begin();
            writes.put(row(db.n as u32), 1).expect("a free row");
            let mut reads = db.begin();
            reads.lock(row(100 + db.n as u32)).expect("a free row");
            let mut elsewhere = db.begin();
            let other = crate::toy::Key {
                table: 9,
                row: db.n as u32,
            };
            elsewhere.put(other, 1).expect("a free row");
            open.push((writes, reads, elsewhere));
        }
        assert!(dbs[0].ddl(&Ddl::Truncate { table: 0 }).is_committed());
        world.settle();
        for (writes, reads, elsewhere) in open {
            assert!(writes.aborted() && reads.aborted() && !elsewhere.aborted());
            assert_eq!(writes.commit(), End::Deadlock);
            drop(reads);
            assert!(elsewhere.commit().is_committed(), "another table");
        }
        world.settle();
    });
}

/// The server maps tables that no key of its write set names: with a trigger that did nothing.
#[test]
fn rows_do_not_begin_ahead_of_a_statement_on_another_table() {
    run(3, "", |world| {
        let (one, two) = (world.db(1), world.db(2));
        two.holds.close(Point::DdlRan);
        assert!(one.ddl(&Ddl::Add { table: 0, n: 1 }).is_committed());
        world.until("it runs there", || two.holds.waiting(Point::DdlRan) == 1);
        two.holds.close(Point::ApplyStart);
        let received = two.count("received");
        assert!(one.set(Key { table: 1, row: 1 }, 5).is_committed());
        world.until("it is there", || two.count("received") > received);
        // Appliers are free: who may begin has begun by then.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(two.holds.waiting(Point::ApplyStart), 0, "it has begun");
        two.holds.open_all();
        world.settle();
        assert_eq!(two.read(Key { table: 1, row: 1 }), 5);
    });
}

#[test]
fn large_write_sets_travel_in_pieces() {
    run(3, "dromon.piece_size=4096", |world| {
        everywhere(world, 2, |db, rng| {
            for _ in 0..3 {
                let mut t = db.begin();
                let from = rng.below(4) as u32 * 500;
                let mut result = Ok(());
                for n in from..from + 1000 {
                    result = result.and_then(|()| t.add(row(n), 1));
                }
                if result.is_ok() {
                    let end = t.commit();
                    assert!(
                        matches!(end, End::Committed { .. } | End::Deadlock),
                        "{end:?}"
                    );
                }
                let _ = db.increment(row(9000));
            }
        });
        world.settle();
        let sum: i64 = (0..2500).map(|n| world.db(1).read(row(n))).sum();
        assert!(sum > 0 && sum % 1000 == 0, "all of a write set or nothing");
    });
}

#[test]
fn what_a_spool_file_has_spoilt_is_read_from_the_log() {
    run(3, "", |world| {
        let (db, other) = (world.db(1), world.db(2));
        world.net.spoil_next_spool(&other.addr);
        let mut t = db.begin();
        t.put(row(1), 7).expect("a free row");
        t.fragment_of(6 << 20).expect("nobody is in its way");
        t.put(row(2), 8).expect("a free row");
        assert!(t.commit().is_committed());
        world.settle();
        assert_eq!((other.read(row(1)), other.read(row(2))), (7, 8));
        assert!(world.report.said("is read from the log again"));
    });
}

/// The origin's: of what it reads there nothing is applied, on any node.
#[test]
fn what_a_spool_file_has_spoilt_at_its_origin_is_not_sent() {
    for options in ["", "dromon.piece_size=16M"] {
        run(3, options, |world| {
            let db = world.db(1);
            let before = db.set(row(1), 1).seqno();
            let spoilt = || world.net.spoil_next_spool(&db.addr);
            let mut whole = db.begin();
            whole.put(row(2), 2).expect("a free row");
            spoilt();
            assert_eq!(whole.commit_padded(6 << 20), End::TooLarge);
            let mut wide = db.begin();
            wide.wide = 1 << 20;
            for n in 10..16 {
                wide.put(row(n), 3).expect("a free row");
            }
            spoilt();
            assert_eq!(wide.commit(), End::TooLarge);
            let mut streams = db.begin();
            streams.put(row(3), 4).expect("a free row");
            spoilt();
            assert_eq!(streams.fragment_of(6 << 20), Err(End::TooLarge));
            drop(streams);
            assert!(world.report.said("is not what was written there"));
            // All go on, and so does it.
            let mut again = db.begin();
            again.put(row(2), 5).expect("a free row");
            assert!(again.commit_padded(6 << 20).is_committed());
            let mut wide = db.begin();
            wide.wide = 1 << 20;
            for n in 10..16 {
                wide.put(row(n), 6).expect("a free row");
            }
            assert!(wide.commit().is_committed());
            for db in world.members() {
                assert!(db.increment(row(20 + db.n as u32)).is_committed());
            }
            let after = world.settle();
            assert!(after.seqno > before);
            for db in world.members() {
                assert_eq!((db.read(row(2)), db.read(row(3))), (5, 0));
                assert_eq!((10..16).map(|n| db.read(row(n))).sum::<i64>(), 36);
                assert_eq!((21..24).map(|n| db.read(row(n))).sum::<i64>(), 3);
            }
        });
    }
}

#[test]
fn what_was_acknowledged_is_read_elsewhere() {
    run(3, "", |world| {
        let dbs = world.members();
        for db in &dbs {
            db.holds.jitter(7);
        }
        for i in 1..=20 {
            let writer = &dbs[i as usize % 3];
            let reader = &dbs[(i as usize + 1) % 3];
            let seqno = writer.set(row(1), i).seqno();
            let (outcome, position) = reader.node().sync_wait(Duration::from_secs(20));
            assert_eq!(outcome, Outcome::Ok);
            assert!(position.seqno >= seqno);
            assert_eq!(reader.read(row(1)), i, "read on {}", reader.name);
        }
    });
}

#[test]
fn a_current_read_waits_for_the_applier() {
    run(2, "", |world| {
        let (writer, reader) = (world.db(1), world.db(2));
        reader.holds.close(Point::ApplyLocked);
        let seqno = writer.set(row(1), 1).seqno();
        let (outcome, position) = reader.node().sync_wait(Duration::from_millis(300));
        assert_eq!(outcome, Outcome::TrxFail, "the applier is held");
        assert!(position.seqno < seqno);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| reader.node().sync_wait(Duration::from_secs(20)));
            reader.holds.open(Point::ApplyLocked);
            let (outcome, position) = waits.join().expect("it answers");
            assert_eq!(outcome, Outcome::Ok);
            assert!(position.seqno >= seqno);
        });
        let upto = dromon_node::Position {
            seqno,
            ..writer.position()
        };
        let (outcome, _) = reader.node().wait_for(upto, None);
        assert_eq!(outcome, Outcome::Ok);
        let stranger = dromon_node::Position {
            history: dromon_writeset::Uuid([1; 16]),
            seqno: 1,
        };
        let (outcome, _) = reader.node().wait_for(stranger, None);
        assert_eq!(outcome, Outcome::TrxMissing);
    });
}

/// A few write sets of many rows each: their keys are not kept until there are many write sets.
#[test]
fn keys_are_forgotten_when_there_are_many() {
    const ROWS: u32 = 5_000;
    const KEYS: i64 = 100_000;
    run(3, "dromon.auto_stream_size=0", |world| {
        let db = world.db(2);
        for from in (0..30 * ROWS).step_by(ROWS as usize) {
            let mut t = db.begin();
            for n in from..from + ROWS {
                t.put(row(n), 1).expect("a free row");
            }
            assert!(t.commit().is_committed());
        }
        world.settle();
        world.until("most are forgotten", || {
            let sizes = world
                .members()
                .into_iter()
                .map(|d| d.count("cert_index_size"));
            sizes.max().is_some_and(|most| most <= KEYS)
        });
    });
}
