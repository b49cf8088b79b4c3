//! Large transactions that keep their tables to themselves, as they touch a unique
//! index besides the primary one, or rows that no index finds.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dromon_node::Phase;

use crate::chunks::{PATIENT, begin, commit, end, go_on, large, nothing_open};
use crate::toy::{Db, End, Key, Session, row};
use crate::world::{World, addrs, run};

/// One of db2 that has begun and closes table 0.
fn begun(world: &World) -> (Arc<Db>, JoinHandle<End>) {
    let db = world.db(2);
    let mut session = large(&db, 1, 1);
    session.add_unique(row(1));
    (db, begin_known(world, session))
}

/// Begins as [`begin`] does, and waits until all know.
fn begin_known(world: &World, session: Session) -> JoinHandle<End> {
    let client = begin(world, session);
    for db in world.members() {
        let name = db.name.clone();
        world.until(&format!("{name} knows"), || {
            db.stat("dromon_large_open").contains("chunks")
        });
    }
    client
}

fn change(db: &Arc<Db>, key: Key) -> JoinHandle<End> {
    let db = db.clone();
    std::thread::spawn(move || db.set(key, 5))
}

#[test]
fn who_changes_a_closed_table_waits_until_it_is_over() {
    run(3, PATIENT, |world| {
        let (db, client) = begun(world);
        // Of another node, and of its own.
        let waiting = [world.db(1), db.clone()].map(|db| change(&db, row(1000 + db.n as u32)));
        for n in 0..20 {
            let elsewhere = Key { table: 3, row: n };
            assert!(db.set(elsewhere, 1).is_committed());
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(!client.is_finished());
        assert!(!waiting.iter().any(JoinHandle::is_finished));
        go_on(world);
        assert!(end(client).is_committed());
        for waited in waiting {
            assert!(end(waited).is_committed());
        }
        nothing_open(world);
        for db in world.members() {
            assert_eq!(db.count("local_cert_failures"), 0, "on {}", db.name);
        }
        assert!(world.report.said("but for those that change its tables"));
    });
}

#[test]
fn two_of_them_on_one_table_come_one_after_the_other() {
    run(3, PATIENT, |world| {
        let (_, first) = begun(world);
        let mut second = large(&world.db(3), 500, 2);
        second.add_unique(row(500));
        let second = commit(second);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!second.is_finished());
        go_on(world);
        assert!(end(first).is_committed());
        assert!(end(second).is_committed());
        nothing_open(world);
        assert_eq!(world.db(1).read(row(500)), 2);
    });
}

#[test]
fn one_with_fragments_out_does_not_wait_but_fails() {
    run(3, PATIENT, |world| {
        let mut streaming = world.db(1).begin();
        streaming.put(row(1000), 9).expect("a free row");
        streaming.fragment().expect("nobody is in its way");
        let (_, client) = begun(world);
        streaming.put(row(1001), 9).expect("a free row");
        // Its fragment could hold what the large one needs on another node.
        let streaming = commit(streaming);
        world.until("it failed", || {
            world.db(1).count("local_cert_failures") == 1
        });
        go_on(world);
        assert_eq!(end(streaming), End::Deadlock);
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn who_waits_gives_way_to_the_large_one() {
    run(3, PATIENT, |world| {
        let other = world.db(1);
        let mut rival = other.begin();
        rival.put(row(1000), 9).expect("a free row");
        rival.lock(row(50)).expect("a free row");
        let (_, client) = begun(world);
        let rival = commit(rival);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!rival.is_finished());
        go_on(world);
        assert_eq!(end(rival), End::Deadlock);
        assert!(end(client).is_committed());
        nothing_open(world);
        assert_eq!(other.read(row(50)), 1);
        assert_eq!(other.read(row(1000)), 0);
    });
}

#[test]
fn who_waits_on_a_node_that_is_cut_off_is_told() {
    let options = "dromon.auto_stream_size=1K;evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
    run(3, options, |world| {
        let (_, client) = begun(world);
        let waiting = change(&world.db(1), row(1000));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        assert_eq!(end(waiting), End::ConnFail);
        world.net.heal();
        go_on(world);
        world.synced(&world.db(1));
        assert!(end(client).is_committed());
        nothing_open(world);
    });
}

#[test]
fn who_comes_when_its_node_is_back_waits_as_before() {
    let options = "dromon.auto_stream_size=1K;evs.suspect_timeout=PT5S;evs.inactive_timeout=PT6S";
    run(3, options, |world| {
        let (_, client) = begun(world);
        let cut = world.db(1);
        let waiting = change(&cut, row(1000));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        world.net.cut(&addrs(&[1]), &addrs(&[2, 3]));
        assert_eq!(end(waiting), End::ConnFail);
        world.net.heal();
        world.until("it is back", || cut.node().phase() == Phase::Joined);
        let waiting = change(&cut, row(1000));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        go_on(world);
        assert!(end(client).is_committed());
        assert!(end(waiting).is_committed());
        nothing_open(world);
        assert_eq!(cut.count("local_cert_failures"), 0);
    });
}

#[test]
fn one_with_nulls_closes_a_table_that_is_known_to_have_such_an_index() {
    run(3, PATIENT, |world| {
        let nulls = |value| {
            let mut session = large(&world.db(2), 1, value);
            session.add_null(row(1));
            begin(world, session)
        };
        let change = |n| change(&world.db(2), row(n));
        let client = nulls(1);
        assert!(end(change(1000)).is_committed(), "nothing is known yet");
        go_on(world);
        assert!(end(client).is_committed());
        nothing_open(world);
        // A small one of another node tells all.
        let mut small = world.db(3).begin();
        small.put(row(2000), 1).expect("a free row");
        small.add_unique(row(2000));
        assert!(small.commit().is_committed());
        world.settle();
        let client = nulls(2);
        let waiting = change(1001);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        go_on(world);
        assert!(end(client).is_committed());
        assert!(end(waiting).is_committed());
        nothing_open(world);
    });
}

#[test]
fn one_whose_rows_no_index_finds_closes_its_table() {
    run(3, PATIENT, |world| {
        let mut session = large(&world.db(2), 1, 1);
        session.add_digest(row(1));
        session.is_serial = true;
        let client = begin_known(world, session);
        let waiting = change(&world.db(2), row(1000));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        go_on(world);
        assert!(end(client).is_committed());
        assert!(end(waiting).is_committed());
        nothing_open(world);
        for db in world.members() {
            assert_eq!(db.count("local_cert_failures"), 0, "on {}", db.name);
        }
    });
}
