//! What edits of `grastate.dat` do, and what they must not do.

use std::sync::Arc;

use dromon_node::{AskError, Phase, Position};
use dromon_order::logstore::{LogStore, Record, WriteOp};
use dromon_order::memlog::MemLog;
use dromon_writeset::Uuid;

use crate::load::Load;
use crate::net::Unheard;
use crate::toy::{Db, Ddl, Disk, row};
use crate::world::{World, addrs, run};

/// Nobody is evicted within these tests.
const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
const QUICK: &str = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT4S";
const FLAG: &str = "safe_to_bootstrap";

/// Starts node `n` again as no service manager does: only its storage engine,
/// which is asked, tells what it has.
fn open_unsaid(world: &World, n: usize, disk: Disk) -> Arc<Db> {
    world.net.tell(&World::addr(n), disk.position);
    world.open(n, disk, Position::UNDEFINED)
}

fn open_crashed(world: &World, n: usize) -> Arc<Db> {
    open_unsaid(world, n, world.crashed_disk(n))
}

const NEITHER: &str = "There is no grastate.dat either";

/// Writes rows `rows` on `db`.
pub fn write(db: &Arc<Db>, rows: std::ops::Range<u32>) {
    for n in rows {
        assert!(db.set(row(n), 7).is_committed(), "row {n}");
    }
}

fn has(world: &World, db: &Db, rows: std::ops::Range<u32>) {
    for n in rows {
        world.until(&format!("{} has row {n}", db.name), || db.read(row(n)) == 7);
    }
}

pub fn copies(world: &World) -> usize {
    world.members().iter().map(|d| d.donations()).sum()
}

#[test]
fn a_seqno_raised_after_a_crash_leaves_nothing_out() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        world.settle();
        let before = copies(world);
        let at = world.db(3).position();
        world.crash(3);
        write(&one, 10..40);
        world.edit_state_file(3, "seqno", &(at.seqno + 20).to_string());
        let again = open_crashed(world, 3);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        has(world, &again, 10..40);
        assert!(world.report.said("which this node did not write"));
        assert_eq!(copies(world), before);
        world.settle();
    });
}

#[test]
fn a_seqno_changed_after_an_orderly_stop_leaves_nothing_out() {
    run(2, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        world.settle();
        let before = copies(world);
        for (round, by) in [20, -3, 0].into_iter().enumerate() {
            let two = world.db(2);
            two.disconnect();
            let stopped = seqno_in_file(world, 2);
            assert!(stopped > 0);
            world.edit_state_file(2, "seqno", &(stopped + by).to_string());
            let rows = 10 * (round as u32 + 1);
            write(&one, rows..rows + 10);
            let again = match by {
                // As it was written: nobody asks the engine.
                0 => {
                    let history = Uuid([9; 16]);
                    world.net.tell(&two.addr, Position { history, seqno: 1 });
                    world.open(2, two.disk(), Position::UNDEFINED)
                }
                _ => open_unsaid(world, 2, two.disk()),
            };
            again.connect(&World::url(), false).expect("one is there");
            world.synced(&again);
            has(world, &again, rows..rows + 10);
            world.settle();
        }
        assert_eq!(copies(world), before, "all by the log");
    });
}

fn seqno_in_file(world: &World, n: usize) -> i64 {
    let text = world.state_file(n);
    let line = text.lines().find_map(|l| l.strip_prefix("seqno:"));
    line.and_then(|l| l.trim().parse().ok()).expect("a seqno")
}

#[test]
fn a_backup_with_its_position_written_by_hand_is_taken() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        let backup = Disk {
            position: world.settle(),
            ..one.disk()
        };
        write(&one, 10..20);
        world.settle();
        world.crash(3);
        write(&one, 20..30);
        let before = copies(world);
        // A new machine: no log, a file by hand, an engine that knows no position.
        world.open(3, Disk::empty(), Position::UNDEFINED);
        world.write_state_file(3, backup.position);
        world.net.tell(&World::addr(3), Position::UNDEFINED);
        let third = world.open(3, backup.clone(), Position::UNDEFINED);
        third.connect(&World::url(), false).expect("two are there");
        world.synced(&third);
        has(world, &third, 0..5);
        has(world, &third, 10..30);
        assert_eq!(copies(world), before, "by the log");
        world.settle();
    });
}

#[test]
fn data_of_another_history_is_not_passed_off_by_a_uuid() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        world.settle();
        world.crash(3);
        let disk = world.crashed_disk(3);
        let other = Position {
            history: Uuid([9; 16]),
            ..disk.position
        };
        // Its data is of another history, and the file says of this one.
        world.edit_state_file(3, "seqno", &disk.position.seqno.to_string());
        world.net.tell(&World::addr(3), other);
        let before = copies(world);
        let again = world.open(3, disk, Position::UNDEFINED);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(copies(world), before + 1, "a full copy");
        world.settle();
    });
}

/// Put there with the server stopped in order, into the files that were there: the server's own word tells.
#[test]
fn data_of_another_history_in_the_same_files_is_not_taken_for_what_stopped() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        let before = copies(world);
        let three = world.db(3);
        three.disconnect();
        let other = Position {
            history: Uuid([9; 16]),
            seqno: 5,
        };
        let again = world.open(3, three.disk(), other);
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(copies(world), before + 1, "a full copy");
        world.settle();
    });
}

#[test]
fn no_cluster_is_founded_on_data_of_another_history() {
    run(2, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        outage(world, 2);
        let disk = world.crashed_disk(2);
        let engine = disk.position;
        world.edit_state_file(2, "uuid", &Uuid([9; 16]).to_string());
        world.edit_state_file(2, FLAG, "1");
        let edited = open_unsaid(world, 2, disk);
        let why = edited.connect("gcomm://", true);
        let why = why.expect_err("it is not what the file says");
        assert!(why.contains(&format!("stands at {engine}")), "{why}");
        assert!(
            why.contains(&format!("Write uuid: {}", engine.history)),
            "{why}"
        );
        assert!(why.contains("Nothing was changed"), "{why}");
    });
}

/// All of `world` die; nobody is there any more.
fn outage(world: &World, count: usize) {
    (1..=count).for_each(|n| world.crash(n));
}

#[test]
fn the_flag_does_not_found_a_second_primary_component() {
    run(3, PATIENT, |world| {
        let mut load = Load::new(true);
        load.add(&world.db(1), 2, 4);
        load.go_on(world, 10);
        world.crash(3);
        load.go_on(world, 10);
        world.edit_state_file(3, FLAG, "1");
        let again = open_crashed(world, 3);
        again.connect("gcomm://", true).expect("it joins the two");
        assert!(world.report.said("joining that one"));
        world.synced(&again);
        world.until("three are one cluster", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        load.go_on(world, 10);
        load.verify(world);
    });
}

/// As a restored snapshot of a volume is started, whose tool removes the file: it is to found another cluster.
#[test]
fn who_is_to_found_does_not_give_its_data_up_for_a_copy_of_the_cluster_its_log_names() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        let before = copies(world);
        world.crash(3);
        world.remove_state_file(3);
        let log = world.net.log_id(&World::addr(3));
        let again = open_crashed(world, 3);
        let why = again.connect("gcomm://", true);
        let why = why.expect_err("its data would be gone");
        for words in [
            "by a full copy only, in place of the data that is here",
            "start this node without --wsrep-new-cluster",
            "move dromon-*.log in ",
            "dromon.ddl.log and dromon.chunks.log in ",
            "Nothing was changed",
        ] {
            assert!(why.contains(words), "{why}");
        }
        assert!(!world.report.said("joining that one"));
        assert_eq!(copies(world), before);
        assert_eq!(again.read(row(1)), 7, "its data is there");
        assert_eq!(world.net.log_id(&World::addr(3)), log);
        // As it says.
        again.connect(&World::url(), false).expect("two are there");
        world.synced(&again);
        assert_eq!(copies(world), before + 1, "a full copy");
        world.settle();
    });
}

#[test]
fn the_flag_is_refused_while_a_member_with_more_is_there() {
    run(3, PATIENT, |world| {
        let (one, two) = (world.db(1), world.db(2));
        write(&one, 0..5);
        world.settle();
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("one of the two leads", || world.leader(&one) != 3);
        write(&one, 10..40);
        world.until("two has them", || two.position() == one.position());
        outage(world, 3);
        world.net.heal();
        // The one that has everything waits for a majority.
        let waits = open_crashed(world, 2);
        let joins = {
            let waits = waits.clone();
            std::thread::spawn(move || waits.connect(&World::url(), false))
        };
        world.until("it runs", || waits.stat("dromon_log_last") != "0");
        world.edit_state_file(3, FLAG, "1");
        let flagged = open_crashed(world, 3);
        let why = flagged.connect("gcomm://", true);
        let why = why.expect_err("what the two acknowledged is not here");
        for words in [
            "10.0.0.2:4567",
            "has more of the log (term ",
            ", leader ",
            ", index ",
            "; here term ",
            "Nothing was changed",
            "Start this node without --wsrep-new-cluster",
        ] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(flagged.node().phase(), Phase::Closed);
        // As it says: the logs of the two make the cluster.
        flagged
            .connect(&World::url(), false)
            .expect("two are there");
        joins.join().expect("no panic").expect("two are there");
        for db in [waits, flagged] {
            world.synced(&db);
            has(world, &db, 10..40);
        }
    });
}

/// Adds `count` entries to `log` that `leader` made in a term that began behind it.
fn lead_on(log: &MemLog, leader: u64, count: u64) {
    let (_, next) = log.bounds();
    let last = log.read(next - 1..=next - 1, 1).expect("the last entry");
    // One that has been delivered already counts for nothing.
    let again = |n| Record {
        index: next + n,
        term: last[0].term + 1,
        leader,
        body: last[0].body.clone(),
    };
    let (tx, rx) = std::sync::mpsc::channel();
    let done = Box::new(move |stored: std::io::Result<()>| {
        let _ = tx.send(stored.is_ok());
    });
    log.submit(WriteOp::Append((0..count).map(again).collect()), done);
    assert_eq!(rx.recv(), Ok(true));
}

/// One node won a term and wrote to its own disk only; another one of a higher id took
/// the term over, and committed less.
#[test]
fn the_later_of_two_leaders_in_one_term_has_more() {
    run(5, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        outage(world, 5);
        for (n, leader, count) in [(1, 1, 9), (2, 2, 3)] {
            let log = world.copy_log(n);
            lead_on(&log, leader, count);
            world.put_log(n, log);
        }
        let follower = open_crashed(world, 2);
        let waits = {
            let follower = follower.clone();
            std::thread::spawn(move || follower.connect(&World::url(), false))
        };
        world.until("it runs", || follower.stat("dromon_log_last") != "0");
        world.edit_state_file(1, FLAG, "1");
        let first = open_crashed(world, 1);
        let why = first.connect("gcomm://", true);
        let why = why.expect_err("what the second leader committed is not here");
        for words in [
            "10.0.0.2:4567",
            ", leader 2, ",
            "; here term ",
            ", leader 1, ",
        ] {
            assert!(why.contains(words), "{why}");
        }
        // There it may be.
        follower.disconnect();
        let _ = waits.join();
        world.crash(2);
        world.edit_state_file(2, FLAG, "1");
        let follower = open_crashed(world, 2);
        follower.connect("gcomm://", true).expect("it has the most");
        first.connect(&World::url(), false).expect("one is there");
        world.synced(&first);
        has(world, &first, 0..5);
    });
}

#[test]
fn the_flag_is_refused_while_a_member_is_there_that_cannot_be_asked() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        outage(world, 3);
        world.edit_state_file(1, FLAG, "1");
        let flagged = open_crashed(world, 1);
        let unheard = [
            AskError::OtherVersion as Unheard,
            AskError::Barred,
            AskError::ShutOut,
            AskError::Silent,
        ];
        for error in unheard {
            world.net.speak_strangely(&World::addr(2), error);
            let why = flagged.connect("gcomm://", true);
            let why = why.expect_err("nobody knows what the other one has");
            for words in [
                "10.0.0.2:4567",
                "cannot be asked",
                "Stop that server",
                "Nothing was changed",
            ] {
                assert!(why.contains(words), "{why}");
            }
        }
        // It is gone, and something else has its address.
        world
            .net
            .speak_strangely(&World::addr(2), AskError::Refused);
        flagged.connect("gcomm://", true).expect("nobody is there");
        world.synced(&flagged);
        has(world, &flagged, 0..5);
    });
}

#[test]
fn the_flag_finds_the_majority_on_the_other_side_of_the_earth() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        outage(world, 3);
        let waits = open_crashed(world, 2);
        let joins = {
            let waits = waits.clone();
            std::thread::spawn(move || waits.connect(&World::url(), false))
        };
        world.until("it runs", || waits.stat("dromon_log_last") != "0");
        world.net.move_far(&World::addr(2));
        world.edit_state_file(1, FLAG, "1");
        let one = open_crashed(world, 1);
        one.connect("gcomm://", true).expect("two of three");
        joins.join().expect("no panic").expect("two of three");
        assert!(
            world
                .report
                .said("a majority of its logs is there (2 of 3)")
        );
        for db in [one, waits] {
            world.synced(&db);
        }
    });
}

#[test]
fn with_a_majority_there_the_flag_gives_nothing_up() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        let at = world.settle();
        outage(world, 3);
        let waits = open_crashed(world, 2);
        let joins = {
            let waits = waits.clone();
            std::thread::spawn(move || waits.connect(&World::url(), false))
        };
        world.until("it runs", || waits.stat("dromon_log_last") != "0");
        world.edit_state_file(1, FLAG, "1");
        let one = open_crashed(world, 1);
        one.connect("gcomm://", true).expect("two of three");
        joins.join().expect("no panic").expect("two of three");
        let three = open_crashed(world, 3);
        three.connect(&World::url(), false).expect("a majority");
        for db in [one, waits, three] {
            world.synced(&db);
            assert_eq!(db.position().history, at.history);
            has(world, &db, 0..5);
        }
        world.settle();
    });
}

/// What tools do after a full outage: the most advanced node gets the flag.
#[test]
fn the_flag_on_the_last_node_left_keeps_all_that_its_log_has() {
    run(3, QUICK, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        world.settle();
        let flushed = one.disk();
        write(&one, 10..40);
        let at = world.settle();
        outage(world, 3);
        // Its engine has lost what it had not flushed; nobody else is left.
        world.edit_state_file(1, FLAG, "1");
        let again = open_unsaid(world, 1, flushed);
        again.connect("gcomm://", true).expect("it was told to");
        world.synced(&again);
        has(world, &again, 10..40);
        assert!(world.report.said("safe_to_bootstrap was set while"));
        assert_eq!(again.position().history, at.history, "its log goes on");
        world.until("it is alone", || again.size() == 1);
        world.until("so it says in its file", || {
            world.state_file(1).contains("safe_to_bootstrap: 1")
        });
        write(&again, 50..60);
        for n in [2, 3] {
            let other = open_crashed(world, n);
            other.connect(&World::url(), false).expect("one is there");
            world.synced(&other);
            has(world, &other, 10..40);
            has(world, &other, 50..60);
        }
        world.settle();
    });
}

/// No file, and an engine that cannot be asked.
#[test]
fn a_log_is_not_given_up_because_nobody_can_ask_the_engine() {
    run(1, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        let at = world.settle();
        let flushed = Disk {
            position: at,
            ..one.disk()
        };
        write(&one, 10..40);
        let log = world.net.log_id(&one.addr);
        world.crash(1);
        world.remove_state_file(1);
        let again = world.open(1, flushed.clone(), Position::UNDEFINED);
        let why = again.connect("gcomm://", true).expect_err("who knows");
        for part in ["there is no grastate.dat", "its position is unknown"] {
            assert!(why.contains(part), "{why}");
        }
        world.net.tell(&again.addr, at);
        again.connect("gcomm://", true).expect("it is told");
        world.synced(&again);
        has(world, &again, 10..40);
        assert_eq!(again.position().history, at.history);
        assert_eq!(world.net.log_id(&again.addr), log);
    });
}

/// Whose log names nobody else, and does not reach back to the backup.
#[test]
fn a_backup_on_the_last_node_founds_and_the_others_copy_it() {
    run(3, PATIENT, |world| {
        let at = world.db(1).position();
        write(&world.db(1), 0..5);
        world.settle();
        for n in [1, 2] {
            world.db(n).disconnect();
        }
        let three = world.db(3);
        world.until("it is alone", || {
            world.state_file(3).contains("safe_to_bootstrap: 1")
        });
        write(&three, 10..40);
        // Its place comes again in the cluster that is founded.
        let add = Ddl::Add { table: 7, n: 1 };
        assert!(three.ddl(&add).is_committed());
        three.disconnect();
        let backup = Disk {
            position: Position { seqno: 1, ..at },
            ..Disk::empty()
        };
        world.edit_state_file(3, "seqno", "1");
        world.exchange_data(3);
        let restored = open_unsaid(world, 3, backup);
        restored.connect("gcomm://", true).expect("it was told to");
        world.synced(&restored);
        assert_eq!(restored.read(row(1)), 0, "the backup's data");
        write(&restored, 50..60);
        let other = world.open(1, world.db(1).disk(), Position::UNDEFINED);
        other.connect(&World::url(), false).expect("one is there");
        world.synced(&other);
        has(world, &other, 50..60);
        assert_eq!(other.read(row(1)), 0, "the backup's data");
        world.settle();
        // On both, or on the one that founded alone: that is no error of a statement that is run again.
        let fails_on = |nodes| Ddl::Fail {
            table: 7,
            nodes,
            text: "Error_code: 1050;\0".into(),
        };
        for db in [&restored, &other] {
            assert!(db.ddl(&fails_on(!0)).is_committed());
        }
        world.settle();
        for db in [&restored, &other] {
            assert_eq!(db.node().phase(), Phase::Joined);
        }
        let _ = other.ddl(&fails_on(1 << 3));
        world.until("it is put out", || {
            restored.node().phase() == Phase::Inconsistent
        });
    });
}

/// The same with a log that does.
#[test]
fn who_restores_a_backup_beside_its_log_is_told_that_it_goes_on_from_there() {
    run(1, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        let at = world.settle();
        let backup = Disk {
            position: at,
            ..one.disk()
        };
        write(&one, 10..15);
        world.settle();
        one.disconnect();
        world.edit_state_file(1, "seqno", &at.seqno.to_string());
        world.exchange_data(1);
        let restored = open_unsaid(world, 1, backup);
        restored.connect("gcomm://", true).expect("it is the last");
        world.synced(&restored);
        has(world, &restored, 10..15);
        assert!(
            world
                .report
                .said("what it has behind that comes into the database again")
        );
    });
}

/// As a tool does that asks stopped engines and starts the most advanced one alone.
#[test]
fn the_flag_alone_founds_nothing_where_that_is_forbidden() {
    let options = format!("{QUICK};dromon.found_alone=no");
    run(3, &options, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        world.settle();
        let flushed = one.disk();
        write(&one, 10..40);
        let at = world.settle();
        outage(world, 3);
        world.edit_state_file(1, FLAG, "1");
        // Its log goes on from there; a backup that lies below it has none.
        let backup = Disk {
            position: Position { seqno: 1, ..at },
            ..Disk::empty()
        };
        for disk in [flushed, backup] {
            if disk.position.seqno == 1 {
                world.edit_state_file(1, "seqno", "1");
            }
            let alone = open_unsaid(world, 1, disk);
            let error = alone.connect("gcomm://", true).expect_err("it is alone");
            let text = error.to_string();
            assert!(
                text.contains("dromon.found_alone=no forbids") && text.contains(&World::addr(2)),
                "{text}"
            );
        }
        let again: Vec<_> = (1..=3).map(|n| open_crashed(world, n)).collect();
        let start = |db: &Arc<Db>| {
            let db = db.clone();
            std::thread::spawn(move || db.connect(&World::url(), false))
        };
        for start in again.iter().map(start).collect::<Vec<_>>() {
            start.join().expect("no panic").expect("all are there");
        }
        for db in &again {
            world.synced(db);
            has(world, db, 10..40);
        }
        assert_eq!(again[0].position().history, at.history);
    });
}

/// A backup whose position the own log does not reach back to.
#[test]
fn a_backup_older_than_the_own_log_founds_under_a_new_history() {
    run(3, QUICK, |world| {
        write(&world.db(1), 0..5);
        let at = world.settle();
        outage(world, 3);
        let backup = Disk {
            position: Position { seqno: 1, ..at },
            ..Disk::empty()
        };
        world.edit_state_file(3, "seqno", "1");
        world.edit_state_file(3, FLAG, "1");
        let restored = open_unsaid(world, 3, backup);
        restored.connect("gcomm://", true).expect("it was told to");
        world.synced(&restored);
        assert_ne!(restored.position().history, at.history);
        write(&restored, 50..60);
        let other = open_crashed(world, 1);
        other.connect(&World::url(), false).expect("one is there");
        world.synced(&other);
        has(world, &other, 50..60);
        assert_eq!(other.read(row(1)), 0, "the restored one's data");
        world.settle();
    });
}

#[test]
fn the_flag_makes_no_data_of_a_copy_that_did_not_end() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        world.settle();
        outage(world, 3);
        world.edit_state_file(3, "uuid", "00000000-0000-0000-0000-000000000000");
        world.edit_state_file(3, FLAG, "1");
        let three = world.open_again(3);
        let why = three.connect("gcomm://", true);
        let why = why.expect_err("nobody knows what is in it");
        assert!(why.contains("grastate.dat has no history"), "{why}");
        assert!(why.contains("Nothing was changed"), "{why}");
    });
}

#[test]
fn without_the_file_an_outage_ends_as_with_it() {
    run(3, PATIENT, |world| {
        write(&world.db(1), 0..5);
        let at = world.settle();
        outage(world, 3);
        let again = [1, 2, 3].map(|n| {
            world.remove_state_file(n);
            let db = open_crashed(world, n);
            let joins = {
                let db = db.clone();
                std::thread::spawn(move || db.connect(&World::url(), false))
            };
            (db, joins)
        });
        for (db, joins) in again {
            joins.join().expect("no panic").expect("all are there");
            world.synced(&db);
            assert_eq!(db.position().history, at.history);
            has(world, &db, 0..5);
        }
        world.settle();
    });
}

#[test]
fn a_removed_state_file_is_the_wish_for_a_full_copy() {
    run(3, PATIENT, |world| {
        let one = world.db(1);
        write(&one, 0..5);
        let mut copied = copies(world);
        let mut rows = 10;
        let mut again = |told: bool, crashes: bool| {
            let at = world.settle();
            let was = world.net.log_id(&World::addr(3));
            let disk = if crashes {
                world.crash(3);
                world.crashed_disk(3)
            } else {
                let three = world.db(3);
                three.disconnect();
                three.disk()
            };
            world.remove_state_file(3);
            write(&one, rows..rows + 10);
            // What a service manager passes on does not count either.
            let three = match told {
                true => world.open(3, disk, at),
                false => open_unsaid(world, 3, disk),
            };
            three.connect(&World::url(), false).expect("two are there");
            world.synced(&three);
            has(world, &three, rows..rows + 10);
            copied += 1;
            assert_eq!(copies(world), copied, "told {told}, crashed {crashes}");
            // Who only crashed is still counted by the others.
            let kept = world.net.log_id(&World::addr(3)) == was;
            assert_eq!(kept, crashes, "told {told}");
            rows += 10;
            three
        };
        again(false, false);
        again(true, false);
        again(false, true);
        let three = again(true, true);
        assert!(world.report.said("taken as the wish for a full copy"));
        // Once is enough.
        three.disconnect();
        write(&one, 100..105);
        three.connect(&World::url(), false).expect("two are there");
        world.synced(&three);
        has(world, &three, 100..105);
        assert_eq!(copies(world), copied, "by the log");
        world.settle();
        // With the log gone too it looks like a restored backup, which is believed. It is told.
        assert!(!world.report.said(NEITHER));
        three.disconnect();
        let (disk, at) = (three.disk(), three.position());
        world.remove_state_file(3);
        world.lose_log(3);
        let three = world.open(3, disk, at);
        three.connect(&World::url(), false).expect("two are there");
        world.synced(&three);
        assert_eq!(copies(world), copied, "believed");
        assert!(world.report.said("Warning: this node's data stands at"));
        assert!(world.report.said(NEITHER));
        // As it was told to.
        three.disconnect();
        let (disk, at) = (three.disk(), three.position());
        world.edit_state_file(3, "uuid", "00000000-0000-0000-0000-000000000000");
        world.edit_state_file(3, FLAG, "0");
        let three = world.open(3, disk, at);
        three.connect(&World::url(), false).expect("two are there");
        world.synced(&three);
        assert_eq!(copies(world), copied + 1);
        world.settle();
    });
}
