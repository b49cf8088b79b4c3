//! Disks under a log that hang or fail: progress counts, not pings.

use std::time::{Duration, Instant};

use dromon_node::{Meta, Outcome, Phase, Position};
use dromon_writeset::{Flags, KeyType, Uuid};

use crate::load::Load;
use crate::membership::begin_join;
use crate::toy::holds::Point;
use crate::toy::{Copying, Db, End, State, row};
use crate::world::{World, addrs, run};

/// Silence is judged much later than standing still.
const HANGS: &str = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT5S";

/// The disk of the leader, or of another node, hangs until the others have put
/// that node out.
fn hangs(leader: bool) {
    run(3, HANGS, move |world| {
        let mut load = Load::new(false);
        let at = world.leader(&world.db(1));
        let n = if leader { at } else { at % 3 + 1 };
        let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
        for o in &others {
            load.add(&world.db(*o), 2, 5);
        }
        load.go_on(world, 10);
        let db = world.db(n);
        world.net.hang_log(&db.addr);
        // The others have a majority, whoever leads.
        load.go_on(world, 20);
        world.until("the others put it out", || {
            others.iter().all(|o| world.db(*o).size() == 2)
        });
        let why = format!(
            "{} inactive: it answers, but its log has stored nothing",
            db.addr
        );
        assert!(world.report.said(&why), "{why}");
        load.go_on(world, 10);
        world.until("it does not serve any more", || !db.ready());
        assert!(!db.set(row(900), 1).is_committed());
        world.net.mend_log(&db.addr);
        world.synced(&db);
        world.until("all three are members", || {
            world.members().iter().all(|d| d.size() == 3)
        });
        assert!(db.set(row(900), 2).is_committed());
        load.verify(world);
    });
}

#[test]
fn a_follower_whose_disk_hangs_is_put_out_and_comes_back() {
    hangs(false);
}

#[test]
fn a_leader_whose_disk_hangs_is_put_out_and_comes_back() {
    hangs(true);
}

/// What its disk gives up only when it joins again is not applied before that, and so not twice.
#[test]
fn what_a_disk_that_hung_brings_late_is_applied_once() {
    run(3, HANGS, |world| {
        let at = world.leader(&world.db(1));
        let n = at % 3 + 1;
        let (writer, db) = (world.db(at), world.db(n));
        world.settle();
        db.holds.close(Point::ApplyStart);
        assert!(writer.increment(row(1)).is_committed());
        world.until("it applies", || db.applying().len() == 1);
        world.net.hang_log(&db.addr);
        for _ in 0..3 {
            assert!(writer.increment(row(1)).is_committed());
        }
        world.until("it joins again", || {
            world.report.times(&db.name, "joining them again") == 1
        });
        world.net.mend_log(&db.addr);
        // Nothing more comes to it from there.
        world.soon(|| db.applying().len() > 1);
        db.holds.open_all();
        world.until("it is back", || {
            world.report.times(&db.name, "joined the cluster again") == 1
        });
        world.synced(&db);
        assert!(db.increment(row(1)).is_committed());
        world.settle();
        assert!(world.members().iter().all(|d| d.read(row(1)) == 5));
    });
}

/// All hear one another, and the one log without which there is no majority stores nothing for a while.
#[test]
fn a_disk_that_is_late_costs_no_primary_component_and_is_named_when_it_is_too_late() {
    let options = "evs.suspect_timeout=PT5S;evs.inactive_timeout=PT30S";
    run(2, options, |world| {
        let at = world.leader(&world.db(1));
        let (leads, follows) = (world.db(at), world.db(3 - at));
        let writes = || {
            let db = leads.clone();
            std::thread::spawn(move || db.increment(row(1)))
        };
        world.settle();
        world.net.hang_log(&follows.addr);
        let written = writes();
        let since = Instant::now();
        world.until("the lease is over", || {
            since.elapsed() > Duration::from_secs(1)
        });
        while since.elapsed() < Duration::from_millis(3500) {
            for db in [&leads, &follows] {
                assert_eq!(db.node().phase(), Phase::Joined, "{:?}", since.elapsed());
                let (outcome, _) = db.node().sync_wait(Duration::from_millis(100));
                assert_ne!(outcome, Outcome::Ok, "nobody has confirmed it");
            }
        }
        world.net.mend_log(&follows.addr);
        assert!(written.join().expect("it ends").is_committed());
        world.settle();
        assert_eq!(world.report.times(&leads.name, "non-primary"), 0);

        world.net.hang_log(&follows.addr);
        let written = writes();
        world.until("both are non-primary", || {
            let lost = |db: &Db| db.node().phase() == Phase::NonPrimary;
            lost(&leads) && lost(&follows)
        });
        assert_eq!(written.join().expect("it ends"), End::Unknown);
        let named = format!("they are behind: {})", follows.name);
        for (db, who) in [
            (&leads, named.as_str()),
            (&follows, "this node's is one of them)"),
        ] {
            let what = "a majority is heard, but does not store";
            for says in [what, who] {
                // It is said after the phase has changed.
                world.until(says, || world.report.times(&db.name, says) == 1);
            }
        }
        world.net.mend_log(&follows.addr);
        world.synced(&leads);
        world.synced(&follows);
        assert!(leads.increment(row(2)).is_committed());
    });
}

/// The disk of the leader, or of another node, fails.
fn fails(leader: bool) {
    run(3, HANGS, move |world| {
        let mut load = Load::new(false);
        let at = world.leader(&world.db(1));
        let n = if leader { at } else { at % 3 + 1 };
        let others: Vec<usize> = (1..=3).filter(|o| *o != n).collect();
        for o in &others {
            load.add(&world.db(*o), 2, 5);
        }
        load.go_on(world, 10);
        let db = world.db(n);
        assert_eq!(db.node().desync(), Outcome::Ok);
        world.net.fail_log(&db.addr);
        load.go_on(world, 20);
        world.until("it says so", || {
            world.report.said("this node's ordering engine failed")
        });
        // The server ends itself where that is refused.
        assert_eq!(db.node().resync(), Outcome::Ok);
        world.until("it does not serve any more", || !db.ready());
        assert!(!db.set(row(900), 1).is_committed());
        world.until("the others put it out, though its process runs", || {
            others.iter().all(|o| world.db(*o).size() == 2)
        });
        // It is well again, but nobody has said so.
        world.net.mend_log(&db.addr);
        std::thread::sleep(Duration::from_secs(5));
        load.go_on(world, 10);
        assert!(!db.ready(), "a disk that failed once is not trusted");
        assert!(others.iter().all(|o| world.db(*o).size() == 2));
        // The operator starts the server again, on a disk that is well.
        world.crash(n);
        let again = world.open_again(n);
        again.connect(&World::url(), false).expect("it comes back");
        world.synced(&again);
        assert_eq!(again.node().phase(), Phase::Joined);
        assert!(again.set(row(900), 2).is_committed());
        load.verify(world);
    });
}

#[test]
fn a_follower_whose_disk_fails_is_put_out() {
    fails(false);
}

#[test]
fn a_leader_whose_disk_fails_is_put_out() {
    fails(true);
}

/// Its engine fails with its tick, which would otherwise see that the lease stays lost.
#[test]
fn a_node_that_panics_in_its_tick_serves_no_longer() {
    run(3, HANGS, |world| {
        let at = world.leader(&world.db(1));
        for n in [at % 3 + 1, at] {
            let db = world.db(n);
            assert!(db.set(row(1), n as i64).is_committed());
            world.net.panic_at_tick(&db.addr);
            world.until("it does not serve any more", || {
                !db.ready() && db.node().phase() == Phase::NonPrimary
            });
            let says = "this node's ordering engine failed: its tick task panicked";
            assert_eq!(world.report.times(&db.name, says), 1);
            assert!(!db.set(row(1), 0).is_committed());
            world.crash(n);
            let again = world.open_again(n);
            again.connect(&World::url(), false).expect("it comes back");
            world.synced(&again);
        }
        world.settle();
    });
}

/// Nobody is evicted within these tests.
const PATIENT: &str = "evs.suspect_timeout=PT14S;evs.inactive_timeout=PT20S";
/// A leave that nobody orders is waited for so long.
const LEAVE: Duration = Duration::from_secs(10);

/// `joiner`, which waits for a copy and whose disk has failed, gives up.
fn gives_up(world: &World, joiner: &Db) {
    let since = Instant::now();
    let works = world.db(2);
    world.until("it gives up", || {
        // Something for the disk to fail at.
        assert!(works.set(row(800), 1).is_committed());
        joiner.returned().contains(&Outcome::Fatal)
    });
    assert!(since.elapsed() < LEAVE, "{:?}", since.elapsed());
    assert_eq!(joiner.gave_up(), 1);
    for (says, times) in [
        ("this node's ordering engine failed: ", 2),
        ("nothing of theirs is lost; the data is unusable", 1),
    ] {
        assert_eq!(world.report.times(&joiner.name, says), times, "{says}");
    }
}

#[test]
fn a_joiner_whose_disk_fails_while_nobody_gives_it_a_copy_gives_up() {
    run(3, PATIENT, |world| {
        let first = world.db(1);
        first.holds.close(Point::DonorPaused);
        let fourth = begin_join(world, 4, "n1");
        world.until("the donor is at work", || {
            first.holds.waiting(Point::DonorPaused) == 1
        });
        for n in [2, 3] {
            assert_eq!(world.db(n).node().desync(), Outcome::Ok);
        }
        let fifth = begin_join(world, 5, "");
        world.until("it waits", || {
            world.report.times("n5", "no member can be donor now") > 0
        });
        world.net.fail_log(&fifth.addr);
        gives_up(world, &fifth);
        fifth.disconnect();
        first.holds.open(Point::DonorPaused);
        world.synced(&fourth);
    });
}

/// The copy comes while the others are not heard; with them comes what the disk fails at. `above`:
/// the copy has more than what was delivered here.
fn fails_behind_its_copy(above: bool) {
    run(2, PATIENT, move |world| {
        let (first, donor) = (world.db(1), world.db(2));
        let point = match above {
            true => Point::DonorCopies,
            false => Point::DonorPaused,
        };
        donor.holds.close(point);
        if above {
            donor.set_copying(Copying::DonorGoesOn);
        }
        let joiner = begin_join(world, 3, "n2");
        world.until("the donor is at work", || donor.holds.waiting(point) == 1);
        world.voters(2);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        for n in 0..3 {
            assert!(first.set(row(n), 1).is_committed());
        }
        if above {
            world.until("the donor has it", || donor.read(row(2)) == 1);
        }
        donor.holds.open(point);
        world.until("the copy is there", || joiner.state() == State::Initialized);
        assert_eq!(joiner.read(row(2)) == 1, above);
        world.net.fail_log(&joiner.addr);
        world.net.heal();
        gives_up(world, &joiner);
        joiner.disconnect();
        world.synced(&donor);
    });
}

#[test]
fn a_joiner_whose_disk_fails_behind_a_copy_that_is_ahead_gives_up() {
    fails_behind_its_copy(true);
}

#[test]
fn a_joiner_whose_disk_fails_before_its_copy_is_known_to_be_whole_gives_up() {
    fails_behind_its_copy(false);
}

/// Its server waits for its engines to start, and the last view of an inconsistent node does not end that.
#[test]
fn a_joiner_that_cannot_deliver_what_comes_amid_its_copy_gives_up() {
    run(2, PATIENT, |world| {
        let (first, donor) = (world.db(1), world.db(2));
        donor.holds.close(Point::DonorPaused);
        let joiner = begin_join(world, 3, "n2");
        world.until("the donor is at work", || {
            donor.holds.waiting(Point::DonorPaused) == 1
        });
        let says = "Inconsistency detected: log entry";
        world.without_dir(3, || {
            let mut t = first.begin();
            t.put(row(1), 1).expect("a free row");
            assert!(t.commit_padded(5 << 20).is_committed());
            world.until("it cannot be kept there", || {
                world.report.times("n3", says) == 1
            });
        });
        world.until("it gives up", || {
            joiner.returned().contains(&Outcome::Fatal)
        });
        assert_eq!((joiner.gave_up(), joiner.finals()), (1, 1));
        world.until("the others know that it goes", || first.size() == 2);
        joiner.disconnect();
        donor.holds.open(Point::DonorPaused);
        world.synced(&donor);
        let again = world.join(3);
        assert_eq!(again.read(row(1)), 1);
        world.settle();
    });
}

/// The same before it has joined: its own log has what it cannot keep elsewhere.
#[test]
fn who_cannot_deliver_its_own_log_does_not_wait_to_be_joined() {
    run(3, PATIENT, |world| {
        world.settle();
        let old = world.db(3).disk();
        let mut t = world.db(1).begin();
        t.put(row(1), 1).expect("a free row");
        assert!(t.commit_padded(5 << 20).is_committed());
        world.settle();
        world.crash(3);
        let position = old.position;
        let again = world.open(3, old, position);
        let why = world.without_dir(3, || again.connect(&World::url(), false));
        let why = why.expect_err("it has no room");
        assert!(why.contains("inconsistent"), "{why}");
        let again = world.join(3);
        assert_eq!(again.read(row(1)), 1);
        world.settle();
    });
}

#[test]
fn a_log_that_is_held_up_is_told_of_once() {
    run(1, "", |world| {
        let db = world.db(1);
        for (round, n) in [(1, 10), (2, 20)] {
            world.net.hold_up_log(&db.addr);
            let told = |text| world.report.times(&db.name, text);
            world.until("it says why", || told("too many files are open") == round);
            for i in 0..n {
                assert!(db.set(row(1), i).is_committed());
            }
            assert!(db.ready());
            world.net.mend_log(&db.addr);
            world.until("and that it is over", || told("held up no more") == round);
            assert_eq!(told("too many files are open"), round);
        }
    });
}

/// A server certifies although `append_data` was refused.
#[test]
fn what_could_not_be_kept_is_not_sent() {
    run(3, "", |world| {
        let db = world.db(1);
        db.set(row(1), 1).seqno();
        let before = world.settle();
        let mut whole = db.begin();
        whole.put(row(2), 2).expect("a free row");
        whole.is_refused = true;
        let mut streams = db.begin();
        streams.put(row(3), 3).expect("a free row");
        streams.fragment().expect("nobody is in its way");
        streams.put(row(4), 4).expect("a free row");
        streams.is_refused = true;
        world.without_dir(1, || {
            assert_eq!(whole.commit_padded(5 << 20), End::TooLarge);
            assert_eq!(streams.fragment_of(5 << 20), Err(End::TooLarge));
        });
        drop(streams);
        let after = world.settle();
        let own = 2; // the first fragment, and that it is rolled back
        assert_eq!(after.seqno, before.seqno + own, "nothing else was ordered");
        let mut again = db.begin();
        again.put(row(2), 5).expect("a free row");
        assert!(again.commit_padded(5 << 20).is_committed());
        world.settle();
        for db in world.members() {
            assert_eq!((2..5).map(|n| db.read(row(n))).sum::<i64>(), 5);
        }
    });
}

/// The same with a key.
#[test]
fn without_all_of_its_keys_nothing_is_sent() {
    run(1, "", |world| {
        let db = world.db(1);
        let at = db.set(row(1), 1).seqno();
        let node = db.node();
        let trx = node.begin(1_000_000);
        let key: [&[u8]; 1] = [b"x"];
        assert_eq!(node.append_key(&trx, &key, KeyType::Shared), Outcome::Ok);
        assert_ne!(node.append_key(&trx, &[], KeyType::Shared), Outcome::Ok);
        let mut meta = Meta {
            position: Position::UNDEFINED,
            source: Uuid::NIL,
            trx_id: 0,
            conn_id: 0,
            depends_on: 0,
        };
        let certified = node.certify(1, &trx, Flags::TRX_START | Flags::TRX_END, &mut meta);
        assert_eq!(certified, Outcome::SizeExceeded);
        assert_eq!(meta.position, Position::UNDEFINED);
        assert_eq!(node.release(&trx), (false, Outcome::Ok));
        assert_eq!(world.settle().seqno, at);
    });
}

#[test]
fn what_a_killed_process_has_left_of_its_spool_files_is_removed() {
    run(1, "", |world| {
        let files = std::fs::read_dir(world.data_dir(1)).expect("there");
        let names = files.map(|f| f.expect("there").file_name());
        let names: Vec<_> = names.map(|n| n.into_string().expect("text")).collect();
        assert!(!names.is_empty(), "its state file");
        assert!(!names.iter().any(|n| n.contains("spool")), "{names:?}");
    });
}

/// A backup's pause comes just when the node hears that it was evicted.
#[test]
fn who_hears_of_its_eviction_can_be_paused_and_comes_back() {
    run(3, HANGS, |world| {
        let at = world.leader(&world.db(1));
        let (writer, db) = (world.db(at), world.db(at % 3 + 1));
        world.settle();
        world.net.hang_log(&db.addr);
        assert!(writer.set(row(1), 1).is_committed());
        world.until("it is put out", || writer.size() == 2);
        world.net.mend_log(&db.addr);
        let heard = format!("({}): it was silent and is evicted", db.name);
        world.until("it hears that", || {
            world.report.times(&db.name, &heard) == 1
        });
        let pause = {
            let node = db.node().clone();
            std::thread::spawn(move || node.pause())
        };
        world.until("nothing is in its way", || pause.is_finished());
        let stands = pause.join().expect("no panic");
        assert!(stands.is_none_or(|at| at <= db.position().seqno));
        db.node().resume();
        world.synced(&db);
        world.settle();
        assert_eq!(db.read(row(1)), 1);
    });
}
