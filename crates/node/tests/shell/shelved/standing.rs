//! Clients that an applier may wait for, and who wait themselves before they are ordered.

use std::time::{Duration, Instant};

use super::{LIMIT, PATIENT, all_have, all_is_over, held_back, shelve};
use crate::chunks::end;
use crate::toy::End;
use crate::toy::holds::Point;
use crate::toy::row;
use crate::world::run;

/// A server asks a client to give way only when an applier comes to its lock, and not one that gets it
/// while the applier waits: behind the rollback of a stream that is shelved, or of one that runs again.
#[test]
fn who_waits_for_a_table_is_refused_where_an_applier_stands() {
    run(3, PATIENT, LIMIT, |world| {
        let (_, b, c, t) = shelve(world);
        let (patient, _) = held_back(world, &c, 70, 1);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!patient.is_finished(), "nobody is in need of it");
        c.holds.close(Point::ApplyStart);
        assert!(b.set(row(60), 1).is_committed());
        world.until("an applier stands", || {
            c.holds.waiting(Point::ApplyStart) > 0
        });
        let began = Instant::now();
        assert_eq!(end(patient), End::Deadlock);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "not at its patience's end"
        );
        c.holds.open(Point::ApplyStart);
        assert!(t.commit().is_committed());
        all_is_over(world);
        assert!(c.set(row(70), 2).is_committed(), "it may try again");
        world.settle();
        all_have(world, &[(1, 1), (60, 1), (70, 2)]);
        assert_eq!(world.report.times(&c.name, "needs a lock that a client"), 1);
    });
}

#[test]
fn so_is_who_waits_for_the_own_node_to_catch_up_but_much_later() {
    let options = "gcs.fc_limit=4;gcs.fc_single_primary=yes;evs.suspect_timeout=PT44S;evs.inactive_timeout=PT50S";
    run(2, options, LIMIT, |world| {
        let (a, b) = (world.db(1), world.db(2));
        b.holds.close(Point::ApplyStart);
        let writer = {
            let a = a.clone();
            std::thread::spawn(move || {
                (1..=20)
                    .take_while(|n| a.set(row(*n), 1).is_committed())
                    .count()
            })
        };
        world.stopped_by(&b);
        let (client, _) = held_back(world, &b, 70, 1);
        let began = Instant::now();
        assert_eq!(end(client), End::Deadlock);
        assert!(
            began.elapsed() > Duration::from_secs(4),
            "it may be a slow applier"
        );
        assert!(!writer.is_finished(), "nobody is refused elsewhere");
        b.holds.open(Point::ApplyStart);
        assert_eq!(writer.join().expect("no panic"), 20);
        assert!(b.set(row(70), 2).is_committed());
        world.settle();
        all_have(world, &[(1, 1), (20, 1), (70, 2)]);
    });
}
