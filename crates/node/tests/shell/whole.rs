//! Large transactions that go whole, and what is said of them.

use crate::chunks::PATIENT;
use crate::toy::row;
use crate::world::run;

/// A row is not parted.
#[test]
fn one_long_row_goes_whole_and_that_is_said() {
    run(2, PATIENT, |world| {
        let says = "are applied whole by the other nodes";
        let db = world.db(1);
        let mut short = db.begin();
        short.wide = 500;
        short.put(row(1), 1).expect("a free row");
        assert!(short.commit().is_committed());
        assert_eq!(world.report.times("n1", says), 0, "it is no large one");
        let mut long = db.begin();
        long.wide = 50_000;
        long.put(row(2), 1).expect("a free row");
        assert!(long.commit().is_committed());
        world.settle();
        assert_eq!(world.report.times("n1", says), 1);
        assert!(world.report.said("a row is not parted"));
        assert_eq!(world.db(2).read(row(2)), 1);
    });
}
