//! One node alone.

use std::time::Duration;

use dromon_node::Outcome;

use crate::toy::{Ddl, End, row};
use crate::world::run;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn commits_and_rolls_back() {
    run(1, "", LIMIT, |world| {
        let db = world.db(1);
        let end = db.set(row(1), 5);
        assert_eq!(end.seqno(), 2, "the first view has seqno 1");
        let mut t = db.begin();
        t.put(row(1), 7).expect("nobody else is here");
        t.rollback();
        assert_eq!(db.read(row(1)), 5);
        assert_eq!(db.increment(row(1)).seqno(), 3);
        assert_eq!(db.count("local_commits"), 2);
        assert_eq!(db.count("open_transactions"), 0);
        assert_eq!(world.settle().seqno, 3);
    });
}

#[test]
fn statements_in_isolation() {
    run(1, "", LIMIT, |world| {
        let db = world.db(1);
        assert!(db.set(row(1), 5).is_committed());
        assert!(db.ddl(&Ddl::Add { table: 0, n: 10 }).is_committed());
        assert_eq!(db.read(row(1)), 15);
        let mut open = db.begin();
        open.put(row(1), 99).expect("nobody else is here");
        assert!(db.ddl(&Ddl::Truncate { table: 0 }).is_committed());
        assert!(open.aborted());
        assert_eq!(open.commit(), End::Deadlock);
        let fail = Ddl::Fail {
            table: 0,
            nodes: !0,
            text: "no such table\0".into(),
        };
        assert!(db.ddl(&fail).is_committed(), "alone, nobody disagrees");
        assert_eq!(world.settle().seqno, 5);
        assert_eq!(db.node().phase(), dromon_node::Phase::Joined);
        assert_eq!(db.returned(), [] as [Outcome; 0]);
    });
}
