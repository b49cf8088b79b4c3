//! More waits for the appliers than is kept in memory.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dromon_node::Phase;

use crate::membership::begin_join;
use crate::toy::holds::Point;
use crate::toy::{Db, row};
use crate::world::{World, run};

/// Nobody waits for it.
const LOOSE: &str = "gcs.fc_limit=100000;dromon.stall_patience=PT60S";
/// More than are written to a file at a time.
const MANY: u32 = 2500;

/// Writes each of `n` rows; what is there counts up.
fn write(db: &Arc<Db>, n: u32, value: i64) {
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for i in (part..n).step_by(4) {
                    assert!(db.set(row(i), value).is_committed());
                }
            });
        }
    });
}

fn few_in_memory(world: &World) {
    world.queue_here.store(5, Ordering::Relaxed);
}

#[test]
fn who_waits_for_its_copy_has_what_comes_meanwhile_in_files() {
    run(2, LOOSE, |world| {
        few_in_memory(world);
        world.db(2).holds.close(Point::DonorCopies);
        let joiner = begin_join(world, 3, "n2");
        world.until("the donor is at work", || {
            world.db(2).holds.waiting(Point::DonorCopies) == 1
        });
        write(&world.db(1), MANY, 1);
        world.until("all of it waits there", || {
            joiner.count("local_recv_queue") >= i64::from(MANY)
        });
        assert!(joiner.count("dromon_recv_in_files") >= i64::from(MANY) - 10);
        let donor = world.db(2);
        let more = std::thread::spawn({
            let first = world.db(1);
            move || write(&first, MANY, 2)
        });
        donor.holds.open(Point::DonorCopies);
        world.synced(&joiner);
        more.join().expect("it writes");
        world.settle();
        assert_eq!((joiner.read(row(0)), joiner.read(row(MANY - 1))), (2, 2));
    });
}

#[test]
fn who_is_held_up_applies_all_that_lies_in_files_and_leaves_amid_it() {
    run(2, LOOSE, |world| {
        few_in_memory(world);
        let slow = world.join(3);
        slow.holds.close(Point::ApplyStart);
        write(&world.db(1), MANY, 1);
        world.until("all of it waits there", || {
            slow.count("local_recv_queue") >= i64::from(MANY) - 100
        });
        assert!(slow.count("dromon_recv_in_files") >= i64::from(MANY) - 110);
        slow.holds.open(Point::ApplyStart);
        world.settle();
        assert_eq!(slow.read(row(MANY - 1)), 1);
        slow.holds.close(Point::ApplyStart);
        write(&world.db(1), MANY, 2);
        let leaves = std::thread::spawn({
            let slow = slow.clone();
            move || slow.disconnect()
        });
        world.until("the others go on without it", || world.db(1).size() == 2);
        slow.holds.open(Point::ApplyStart);
        leaves.join().expect("it leaves");
        slow.connect(&World::url(), false).expect("it is a member");
        world.synced(&slow);
        world.settle();
        assert_eq!(slow.read(row(MANY - 1)), 2);
    });
}

/// The spool files of node `n` that this process has open.
fn spool_files(world: &World, n: usize) -> Vec<PathBuf> {
    let dir = world.data_dir(n);
    let is_spool =
        |path: &PathBuf| path.starts_with(&dir) && path.to_string_lossy().contains("dromon-spool-");
    let all = std::fs::read_dir("/proc/self/fd").expect("it lists what is open");
    let open = all.flatten().map(|fd| fd.path());
    open.filter(|fd| std::fs::read_link(fd).is_ok_and(|to| is_spool(&to)))
        .collect()
}

/// What lies in files at n3 cannot be read again, amid it; a client of its own has a place behind all of that.
fn loses_its_files(leaves: bool) {
    run(2, LOOSE, move |world| {
        few_in_memory(world);
        let (first, slow) = (world.db(1), world.join(3));
        slow.holds.close(Point::ApplyStart);
        write(&first, MANY, 1);
        world.until("all of it waits there", || {
            let begun = slow.holds.waiting(Point::ApplyStart) as i64;
            slow.count("local_recv_queue") + begun == i64::from(MANY)
        });
        let client = std::thread::spawn({
            let slow = slow.clone();
            move || slow.set(row(MANY), 1)
        });
        world.until("it has its place", || {
            first.count("local_recv_queue") == 0 && first.read(row(MANY)) == 1
        });
        // Its client has the last place, and what lies in files has those before.
        let in_files = slow.count("dromon_recv_in_files");
        let before = first.position().seqno - 1 - in_files;
        slow.leaves_early.store(true, Ordering::Relaxed);
        for file in spool_files(world, 3) {
            let file = OpenOptions::new().write(true).open(file);
            file.and_then(|f| f.set_len(0)).expect("it is open");
        }
        let goes = leaves.then(|| {
            let slow = slow.clone();
            std::thread::spawn(move || slow.disconnect())
        });
        if leaves {
            world.until("it leaves", || slow.node().phase() == Phase::Leaving);
        }
        slow.holds.open(Point::ApplyStart);
        let since = Instant::now();
        world.until("its client is told", || client.is_finished());
        assert!(!client.join().expect("it ends").is_committed());
        match goes {
            Some(goes) => {
                goes.join().expect("it ends");
                // What was at work still commits.
                assert_eq!(slow.position().seqno, before);
            }
            None => {
                assert_eq!(slow.node().phase(), Phase::Inconsistent);
                slow.disconnect();
            }
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "nobody is waited for"
        );
        assert_eq!(slow.finals(), 1);
        let again = world.join(3);
        assert_eq!(again.read(row(MANY - 1)), 1);
        world.settle();
    });
}

#[test]
fn who_loses_what_lies_in_files_lets_go_of_what_waits_behind_it() {
    loses_its_files(false);
}

#[test]
fn who_loses_what_lies_in_files_can_leave() {
    loses_its_files(true);
}

/// Each has its own in the log, too.
#[test]
fn who_is_behind_does_not_keep_a_file_for_each_payload() {
    const PAYLOADS: u32 = 24;
    run(2, LOOSE, |world| {
        let (first, slow) = (world.db(1), world.db(2));
        slow.holds.close(Point::ApplyStart);
        for n in 0..PAYLOADS {
            let mut t = first.begin();
            t.put(row(n), 7).expect("a free row");
            assert!(t.commit_padded(9 << 19).is_committed());
        }
        world.until("all of it waits there", || {
            slow.count("local_recv_queue") >= i64::from(PAYLOADS) - 4
        });
        // Some are closed a little later.
        world.until("few files are open", || spool_files(world, 2).len() <= 20);
        slow.holds.open(Point::ApplyStart);
        world.settle();
        assert!((0..PAYLOADS).all(|n| slow.read(row(n)) == 7));
    });
}
