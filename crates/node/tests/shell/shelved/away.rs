//! Nodes that leave, die, give copies or join while a stream is shelved, or before it is.

use super::*;

/// The process stays, and so does what it knew of threads that it spares.
#[test]
fn a_node_that_comes_back_to_what_waits_has_a_thread_left_for_it() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        c.disconnect();
        // Each of them waits for the one before: more than there are threads.
        for n in 0..=5 {
            assert!(b.set(row(BESIDE), n).is_committed());
        }
        c.connect(&World::url(), false).expect("two are there");
        world.synced(&c);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

/// `away`: the stream commits before n3 is back.
fn starts_again(crash: bool, away: bool) {
    run(3, PATIENT, move |world| {
        let (_, b, _, mut t) = shelve(world);
        fragments(&mut t, 10, 1);
        world.settle();
        stop(world, crash);
        fragments(&mut t, 20, 1);
        let committed = |t: Session| assert!(t.commit().is_committed());
        if away {
            committed(t);
            start(world, crash);
        } else {
            let c = start(world, crash);
            world.settle();
            fragments(&mut t, 30, 1);
            // It is shelved as before, unless n3 took a copy with all that others have.
            let client = (c.streaming() == 0).then(|| held_back(world, &c, 60, 1).0);
            assert!(client.is_some() || !crash, "the own log counts");
            assert!(b.set(row(BESIDE), 6).is_committed());
            world.until("n3 goes on", || c.read(row(BESIDE)) == 6);
            if crash {
                assert_eq!(c.waited(), 0, "nothing of it is there");
            }
            committed(t);
            if let Some(client) = client {
                assert!(end(client).is_committed());
            }
        }
        all_is_over(world);
        let last = i64::from(!away);
        all_have(world, &[(1, 1), (2, 1), (10, 1), (20, 1), (30, last)]);
        assert!(world.db(3).set(row(1), 7).is_committed());
        all_is_over(world);
    });
}

#[test]
fn a_node_stops_with_one_shelved_that_commits_when_it_is_back() {
    starts_again(false, false);
}

#[test]
fn a_node_stops_with_one_shelved_that_commits_meanwhile() {
    starts_again(false, true);
}

#[test]
fn a_node_dies_with_one_shelved_that_commits_when_it_is_back() {
    starts_again(true, false);
}

#[test]
fn a_node_dies_with_one_shelved_that_commits_meanwhile() {
    starts_again(true, true);
}

/// n3 dies while its server rolls the stream back, which it has in its log again
/// afterwards.
fn dies_amid(point: Point) {
    run(3, PATIENT, move |world| {
        let (_, b, c, mut t) = three(world);
        c.holds.close(point);
        waits(world, &b, &c);
        world.until("the rollback has begun", || c.holds.waiting(point) == 1);
        world.crash(3);
        assert_eq!(world.crashed_disk(3).fragments.len(), 1);
        fragments(&mut t, 10, 1);
        let c = start(world, true);
        world.settle();
        assert_eq!((c.waited(), c.streaming()), (0, 0), "it is gone at once");
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (10, 1), (BESIDE, 5)]);
    });
}

#[test]
fn a_node_that_dies_before_the_rollback_does_it_when_it_is_back() {
    dies_amid(Point::RollsBack);
}

#[test]
fn a_node_that_dies_amid_the_rollback_does_it_again() {
    dies_amid(Point::RolledBack);
}

/// Nothing was ordered since what waited: the database lacks nothing but the view of its own
/// join, and its server knows nothing of the stream before it gets that.
#[test]
fn a_node_that_died_amid_the_rollback_and_lacks_nothing_does_it_again() {
    run(3, PATIENT, |world| {
        let (_, _, c, mut t) = half_shelved(world);
        world.until("it is finished", || {
            c.node().last_committed() == c.position()
        });
        world.crash(3);
        assert_eq!(world.crashed_disk(3).fragments.len(), 1);
        let c = start(world, true);
        world.until("it is rolled back", || c.streaming() == 0);
        assert_eq!(c.locked(), 0);
        fragments(&mut t, 10, 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (10, 1), (BESIDE, 5)]);
    });
}

/// n3 dies with one shelved whose end is in its log and not in its database. It looks into that
/// log, hears that the others have gone on without it, and joins them anew: what it delivered
/// meanwhile tells nothing of its database.
#[test]
fn what_a_node_delivered_in_vain_ends_nothing_that_is_shelved() {
    run(3, HASTY, |world| {
        let (_, b, c, t) = shelve(world);
        c.holds.close(Point::ApplyStart);
        assert!(t.commit().is_committed());
        let views = || world.report.times("n3", "New COMPONENT");
        let before = views();
        let new = world.open(4, Disk::empty(), Position::UNDEFINED);
        new.connect_from(&World::url(), "n2", false)
            .expect("there is a cluster");
        world.synced(&new);
        new.disconnect();
        world.until("n3 has both views in its log", || views() >= before + 2);
        world.soon(|| false);
        world.crash(3);
        assert_eq!(world.crashed_disk(3).rows.get(&row(1)).copied(), None);
        world.net.cut(&addrs(&[3]), &addrs(&[1, 2]));
        world.until("n3 is evicted", || b.size() == 2);
        world.voters(2);
        let c = world.open_again(3);
        let joins = {
            let c = c.clone();
            std::thread::spawn(move || c.connect(&World::url(), false))
        };
        world.until("it waits for the others", || {
            world.report.said("waits for a majority with")
        });
        world.soon(|| false);
        world.net.heal();
        joins.join().expect("no panic").expect("two are there");
        assert!(world.report.said("went on without this node's log"));
        world.synced(&c);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

#[test]
fn who_has_one_shelved_gives_no_copy() {
    run(3, PATIENT, |world| {
        let (_, _, c, t) = shelve(world);
        let new = world.open(4, Disk::empty(), Position::UNDEFINED);
        new.connect_from(&World::url(), "n3", false)
            .expect("there is a cluster");
        world.until("it is asked for a copy", || {
            world.report.said("gives no copy now")
        });
        assert_eq!(c.donations(), 0);
        assert!(t.commit().is_committed());
        world.synced(&new);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

/// n4 asks n3 for a copy, and n3, which goes on meanwhile, shelves a stream before it makes the
/// copy; `ends`: that is over by then.
fn copied_amid(world: &World, ends: bool) -> Arc<Db> {
    let (_, b, c, t) = three(world);
    c.set_copying(Copying::DonorGoesOn);
    c.holds.close(Point::DonorCopies);
    let new = begin_join(world, 4, "n3");
    world.until("n3 is asked", || c.holds.waiting(Point::DonorCopies) == 1);
    waits(world, &b, &c);
    goes_on(world, &c);
    world.until("the stream is shelved", || {
        c.count(COUNTER) == 1 && c.streaming() == 0
    });
    if ends {
        assert!(t.commit().is_committed());
        world.until("n3 has all of it", || c.read(row(1)) == 1);
        c.holds.open(Point::DonorCopies);
    } else {
        c.holds.open(Point::DonorCopies);
        world.until("the joiner gives up", || {
            new.returned().contains(&Outcome::Fatal)
        });
        assert_eq!(new.gave_up(), 1);
        new.disconnect();
        world.until("the others see it go", || world.db(1).size() == 3);
        assert!(t.commit().is_committed());
    }
    new
}

#[test]
fn a_copy_made_while_its_donor_has_one_shelved_is_refused() {
    run(3, PATIENT, |world| {
        copied_amid(world, false);
        assert!(
            world
                .report
                .said("had set aside the large or streaming transaction")
        );
        world.settle();
        world.db(3).set_copying(Copying::Works);
        world.join(4);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

#[test]
fn a_copy_made_when_that_is_over_is_whole() {
    run(3, PATIENT, |world| {
        let new = copied_amid(world, true);
        world.synced(&new);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

#[test]
fn a_pause_for_a_copy_waits_until_it_would_be_whole() {
    run(3, PATIENT, |world| {
        let (_, b, c, t) = three(world);
        c.holds.close(Point::DonorCopies);
        let new = begin_join(world, 4, "n3");
        world.until("n3 is asked", || c.holds.waiting(Point::DonorCopies) == 1);
        waits(world, &b, &c);
        goes_on(world, &c);
        world.until("the stream is shelved", || c.count(COUNTER) == 1);
        c.holds.close(Point::DonorPaused);
        c.holds.open(Point::DonorCopies);
        assert!(t.commit().is_committed());
        world.until("n3 is paused", || c.holds.waiting(Point::DonorPaused) == 1);
        assert_eq!(c.read(row(1)), 1, "behind the end");
        c.holds.open(Point::DonorPaused);
        world.synced(&new);
        all_is_over(world);
        all_have(world, &[(1, 1), (2, 1), (BESIDE, 5)]);
    });
}

/// `donors`: what the joiner says whom it wants.
fn joins_meanwhile(donors: &'static str) {
    run(3, PATIENT, move |world| {
        let (_, _, c, mut t) = shelve(world);
        let new = world.open(4, Disk::empty(), Position::UNDEFINED);
        new.connect_from(&World::url(), donors, false)
            .expect("there is a cluster");
        world.synced(&new);
        assert_eq!((c.donations(), new.streaming()), (0, 1));
        fragments(&mut t, 10, 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        all_have(world, &[(1, 1), (10, 1), (BESIDE, 5)]);
    });
}

#[test]
fn a_joiner_takes_its_copy_from_another() {
    joins_meanwhile("n2");
}

#[test]
fn a_joiner_that_asks_it_first_takes_its_copy_from_another() {
    joins_meanwhile("n3,n2");
}

/// Checkpoints are taken at views: the newest one lies behind all that was ordered before
/// this.
fn checkpoint(world: &World) {
    world.join(4).disconnect();
    world.until("it is gone", || {
        let members = world.members();
        members.iter().all(|d| d.size() == members.len())
    });
    world.voters(world.members().len());
}

/// n3 comes, or comes back, amid a stream of n1 that began before the newest checkpoint; and
/// it is n3 where others wait for that stream.
fn comes_amid_a_stream(nodes: usize, comes: impl FnOnce(&World) -> Arc<Db> + Send + 'static) {
    run(nodes, PATIENT, move |world| {
        let (a, b) = (world.db(1), world.db(2));
        let mut t = a.begin();
        fragments(&mut t, 1, 2);
        world.settle();
        checkpoint(world);
        fragments(&mut t, 3, 1);
        world.settle();
        let c = comes(world);
        world.settle();
        assert_eq!(c.streaming(), 1);
        c.neighbour(row(BESIDE), row(1));
        fragments(&mut t, 10, 1);
        waits(world, &b, &c);
        goes_on(world, &c);
        are_shelved(world, &[0, 0, 1]);
        fragments(&mut t, 11, 1);
        assert!(t.commit().is_committed());
        all_is_over(world);
        let all = [1, 2, 3, 10, 11].map(|n| (n, 1));
        all_have(world, &all);
        all_have(world, &[(BESIDE, 5)]);
    });
}

#[test]
fn a_node_that_came_by_a_copy_shelves_what_began_before() {
    comes_amid_a_stream(2, |world| world.join(3));
}

#[test]
fn a_node_that_left_and_is_back_shelves_what_began_before() {
    comes_amid_a_stream(3, |world| {
        stop(world, false);
        start(world, false)
    });
}

#[test]
fn a_node_that_died_and_is_back_shelves_what_began_before() {
    comes_amid_a_stream(3, |world| {
        stop(world, true);
        start(world, true)
    });
}
