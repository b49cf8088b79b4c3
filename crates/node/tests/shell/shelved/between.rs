//! The end of a stream lies between the chunks of a large transaction, and both name a row that certification
//! lets both have: where all of the stream is applied there, it needs what the chunks have.

use super::refers::CHUNKS;
use super::*;
use crate::chunks::ROWS;

/// How a session names row 1.
type Names = fn(&mut Session);

fn changes(t: &mut Session) {
    t.put(row(1), 1).expect("a free row");
}

fn refers(t: &mut Session) {
    t.refers(row(1)).expect("nobody changes it");
}

/// A large one, whose first chunk `names` row 1.
fn naming(db: &Arc<Db>, names: Names) -> Session {
    let mut w = db.begin();
    names(&mut w);
    for n in 100..100 + ROWS {
        w.put(row(n), 5).expect("a free row");
    }
    w
}

/// What n3 says when it rolls back the chunks that it has.
const THROWN: &str = "it is in the way of a streaming transaction";

/// The stream of n1, the large one of n2, and a client of n1 that has written something else.
type Clients = [JoinHandle<End>; 3];

/// A stream of n1 names row 1 as the first of `names` does, and so does the large one of n2 that comes next, as the
/// second. n3 has applied its first chunk, with so many appliers, and `then` comes the stream's end, which n1 sends
/// before it knows of the large one.
fn end_between(world: &World, appliers: usize, names: [Names; 2], then: fn(&Db)) -> Clients {
    let c = world.joins_with(3, appliers);
    world.voters(3);
    let (a, b) = (world.db(1), world.db(2));
    let [stream_does, large_does] = names;
    let mut t = a.begin();
    t.put(row(2), 1).expect("a free row");
    stream_does(&mut t);
    let w = naming(&b, large_does);
    b.holds.close(Point::ApplyStart);
    t.fragment().expect("nobody is in its way");
    world.until("n3 has the fragment", || c.streaming() == 1);
    // It delivers nothing more for a while.
    let whole = "are applied whole by the other nodes";
    world.report.hold(whole);
    let mut other = a.begin();
    other.put(row(3), 1).expect("a free row");
    let other = std::thread::spawn(move || other.commit_padded(1 << 16));
    world.until("n1 stays", || world.report.times("n1", whole) == 1);
    let (first, second) = (t.trx().expect("it wrote"), w.trx().expect("it wrote"));
    let large = commit(w);
    world.until("the first chunk is ordered", || stage(&second) == "Chunked");
    world.until("n3 has applied it", || {
        c.count(COUNTER) == 1 && c.streaming() == 1
    });
    then(&c);
    let stream = commit(t);
    world.until("its end is on its way", || stage(&first) == "Sent");
    world.report.let_go();
    [stream, large, other]
}

fn all_commit(world: &World, clients: Clients) {
    world.db(2).holds.open(Point::ApplyStart);
    for client in clients {
        assert!(end(client).is_committed());
    }
    all_is_over(world);
    all_have(world, &[(1, 1), (2, 1), (3, 1), (100, 5), (99 + ROWS, 5)]);
    assert_eq!(world.report.times("n3", THROWN), 1);
}

fn goes_on_behind(appliers: usize, names: [Names; 2]) {
    run(2, CHUNKS, move |world| {
        let clients = end_between(world, appliers, names, |_| ());
        world.until("n3 has the stream", || world.db(3).read(row(2)) == 1);
        all_commit(world, clients);
    });
}

#[test]
fn the_end_of_a_stream_between_chunks_that_refer_to_its_row_goes_on() {
    goes_on_behind(4, [changes, refers]);
}

#[test]
fn the_end_of_a_stream_that_refers_to_a_row_of_the_chunks_goes_on() {
    goes_on_behind(4, [refers, changes]);
}

#[test]
fn with_one_applier_the_end_of_a_stream_between_chunks_goes_on() {
    goes_on_behind(1, [changes, refers]);
}

/// Its own node knows of the large one before, and has not applied its first chunk.
#[test]
fn whose_row_a_large_one_needs_that_is_known_does_not_send_the_end_of_a_stream() {
    run(2, CHUNKS, |world| {
        let (a, b, c) = one_applier(world);
        let mut t = a.begin();
        changes(&mut t);
        let w = naming(&b, refers);
        for db in [&a, &b] {
            db.holds.close(Point::ApplyStart);
        }
        t.fragment().expect("nobody is in its way");
        let large = commit(w);
        world.until("n1 is at the first chunk", || {
            a.holds.waiting(Point::ApplyStart) == 1
        });
        assert_eq!(t.commit(), End::Deadlock);
        for db in [&a, &b] {
            db.holds.open(Point::ApplyStart);
        }
        assert!(end(large).is_committed());
        all_is_over(world);
        all_have(world, &[(1, 0), (100, 5), (99 + ROWS, 5)]);
        assert!(c.set(row(1), 7).is_committed());
    });
}

/// n3 dies while it rolls back what it has of the chunks, which its server has in its log again afterwards.
fn dies_amid(point: Point) {
    run(2, CHUNKS, move |world| {
        let hold: fn(&Db) = match point {
            Point::RollsBack => |c| c.holds.close(Point::RollsBack),
            _ => |c| c.holds.close(Point::RolledBack),
        };
        let clients = end_between(world, 1, [changes, refers], hold);
        let c = world.db(3);
        world.until("the rollback has begun", || c.holds.waiting(point) == 1);
        world.crash(3);
        assert_eq!(world.crashed_disk(3).fragments.len(), 1);
        let c = world.open_again(3);
        c.appliers.store(1, std::sync::atomic::Ordering::Relaxed);
        c.connect(&World::url(), false).expect("two are there");
        world.synced(&c);
        world.until("n3 has the stream", || c.read(row(2)) == 1);
        all_commit(world, clients);
    });
}

#[test]
fn a_node_that_dies_before_it_has_rolled_back_the_chunks_does_it_when_it_is_back() {
    dies_amid(Point::RollsBack);
}

#[test]
fn a_node_that_dies_amid_the_rollback_of_the_chunks_does_it_again() {
    dies_amid(Point::RolledBack);
}

/// One after the other of one client: every third is a large one, the others are streams, and each names one row that
/// all of them name.
fn a_family(db: &Arc<Db>, client: u32, mut random: impl FnMut(u64) -> u64) {
    let own = 1000 * client;
    for n in 0..60 {
        let mut t = db.begin();
        let parent = row(1 + random(2) as u32);
        let named = match random(2) {
            0 => t.put(parent, 1),
            _ => t.refers(parent),
        };
        if named.is_err() {
            continue;
        }
        let written = match n % 3 {
            0 => (0..ROWS).all(|i| t.put(row(own + i), n).is_ok()),
            _ => {
                std::thread::sleep(Duration::from_millis(random(3)));
                t.put(row(own + 200), n).is_ok() && t.fragment().is_ok()
            }
        };
        if !written {
            continue;
        }
        let end = t.commit();
        assert!(end.is_committed() || end == End::Deadlock, "{end:?}");
    }
}

fn families(appliers: usize) {
    run(2, CHUNKS, move |world| {
        world.joins_with(3, appliers);
        world.voters(3);
        let clients: Vec<_> = (world.members().into_iter().zip(1u32..))
            .flat_map(|(db, n)| [(db.clone(), 10 * n), (db, 10 * n + 5)])
            .map(|(db, client)| {
                let mut rng = crate::rng::Rng::new(u64::from(client));
                std::thread::spawn(move || a_family(&db, client, |n| rng.below(n)))
            })
            .collect();
        for client in clients {
            client.join().expect("no panic");
        }
        all_is_over(world);
    });
}

#[test]
fn streams_and_large_ones_of_all_nodes_name_the_same_rows() {
    families(4);
}

#[test]
fn with_one_applier_streams_and_large_ones_of_all_nodes_name_the_same_rows() {
    families(1);
}
