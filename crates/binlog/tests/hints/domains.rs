//! More domains than are followed.

use dromon_binlog::hints::{Catalog, Limits};

use crate::rules::{BIN, plain, row};
use crate::stream::{Stream, insert};

/// One domain more than are followed takes the hints of none. It has its own when another one rests.
#[test]
fn more_domains_than_are_followed() {
    let limits = Limits {
        domains: 3,
        ..Limits::default()
    };
    let mut s = Stream::new(vec![plain("t", BIN)], limits);
    s.hints.learn(Catalog::new(vec![plain("t", BIN)]));
    let mut n = 0;
    let mut one = |domain| {
        n += 1;
        let events = s.rows(&insert(0, row(n, &n.to_string(), 1)), None);
        let begin = s.begin_in(domain);
        s.group(begin, events).commit_id
    };
    for round in 0..50 {
        let ids = [1, 2, 3, 4].map(&mut one);
        let has = ids.map(|id| id.is_some());
        assert_eq!(
            has,
            [round > 0, round > 0, round > 0, false],
            "round {round}"
        );
    }
    for _ in 0..200 {
        assert!([2, 3].map(&mut one).iter().all(|id| id.is_some()));
    }
    assert_eq!((one(4), one(4).is_some()), (None, true));
    // The one that was put out finds no room, as nobody rests.
    assert_eq!([one(1), one(1)], [None, None]);
    assert!([2, 3, 4].map(&mut one).iter().all(|id| id.is_some()));
}
