//! What is needed, who is known, who is forgotten.

use super::*;

/// Both clocks show this.
fn at(secs: u64) -> Now {
    Now {
        unix: secs,
        up: secs,
    }
}

#[test]
fn what_is_needed() {
    let mut r = Registry::new(60);
    assert_eq!(r.needed(0), None);
    r.begins(3, "db3", 3306, 1, 5, at(1000));
    r.begins(4, "db4", 3306, 2, 9, at(1000));
    assert_eq!(r.needed(0), Some((5, 3)));
    // Sent, but not for long.
    r.enters(3, 1, 6, at(1010));
    r.enters(3, 1, 7, at(1020));
    r.tick(at(1069), None);
    assert_eq!(r.needed(0), Some((5, 3)));
    r.tick(at(1070), None);
    assert_eq!(r.needed(0), Some((6, 3)));
    // Away: nothing moves.
    r.ends(3, 1, at(1075));
    r.tick(at(5000), None);
    assert_eq!(r.needed(0), Some((6, 3)));
    // Back: it says what it received, and may lose that again. It was sent the 7th file 55 s before
    // it went.
    r.begins(3, "db3", 3306, 7, 8, at(6000));
    assert_eq!(r.needed(0), Some((6, 3)));
    r.tick(at(6004), None);
    assert_eq!(r.needed(0), Some((6, 3)));
    r.tick(at(6005), None);
    assert_eq!(r.needed(0), Some((7, 3)));
    // A break of the connection is no reason either.
    r.begins(3, "db3", 3306, 8, 8, at(6030));
    r.tick(at(6059), None);
    assert_eq!(r.needed(0), Some((7, 3)));
    r.tick(at(6060), None);
    assert_eq!(r.needed(0), Some((8, 3)));
    // It has lost what it was sent.
    r.begins(3, "db3", 3306, 9, 5, at(6100));
    assert_eq!(r.needed(0), Some((5, 3)));
    r.enters(3, 9, 6, at(6100));
    r.enters(3, 9, 7, at(6101));
    r.enters(3, 9, 8, at(6102));
    r.begins(3, "db3", 3306, 7, 7, at(6103));
    r.tick(at(6200), None);
    assert_eq!(r.needed(0), Some((7, 3)), "the 8th is to be sent again");
    // What its former connection still says does not count.
    assert!(!r.is_current(3, 1) && r.is_current(3, 7));
    r.enters(3, 1, 99, at(6201));
    r.ends(3, 1, at(6202));
    r.tick(at(9999), None);
    assert_eq!(r.needed(0), Some((7, 3)));
    assert_eq!(r.hosts().len(), 2);
    // Forgotten only if away, and only if told.
    r.ends(4, 2, at(7000));
    assert!(r.tick(at(1 << 40), None).is_empty());
    assert_eq!(r.tick(at(7101), Some(100)), [4]);
    assert_eq!(r.known().len(), 1);
}

/// What it was sent long ago it may not have applied yet.
#[test]
fn what_is_applied() {
    let mut r = Registry::new(1000);
    let has = "0-1-7,1-3-9".parse().expect("a position");
    r.begins(3, "db3", 3306, 1, 5, at(0));
    r.comes_with(3, 1, &has, true);
    for file in 6..10 {
        r.enters(3, 1, file, at(file));
    }
    let by = |r: &Registry| {
        let known = &r.known()[&3];
        (known.needs, known.needs_by_applied(), known.applied_file())
    };
    r.take_changed();
    r.has_applied(3, 1, 6, at(500));
    assert_eq!(by(&r), (5, false, Some(6)), "it was sent a moment ago");
    assert!(!r.take_changed());
    // It was sent long ago, and its SQL thread stands.
    r.tick(at(1100), None);
    assert_eq!(by(&r), (6, true, Some(6)));
    assert!(r.take_changed());
    assert_eq!(r.needed(0), Some((6, 3)));
    assert_eq!(r.needed(6), Some((6, 3)));
    // What another connection of it was told is no answer of this one.
    r.has_applied(3, 7, 9, at(1100));
    assert_eq!(r.needed(0), Some((6, 3)));
    // So it is after a restart of the relay.
    let again = Registry::parse(&r.text(), 1000).expect("as written");
    assert_eq!(again.needed(0), Some((6, 3)));
    // It goes on, and what was sent since is kept as before.
    r.enters(3, 1, 10, at(1100));
    r.has_applied(3, 1, 8, at(1200));
    assert_eq!(by(&r), (8, true, Some(8)));
    r.has_applied(3, 1, 10, at(1300));
    assert_eq!(by(&r), (9, false, Some(10)));
    // Data of before: it goes back.
    r.has_applied(3, 1, 7, at(1400));
    assert_eq!(by(&r), (7, true, Some(7)));
    // A break of the connection changes nothing, and time goes on only while it is here.
    r.ends(3, 1, at(1500));
    r.tick(at(9000), None);
    assert_eq!(by(&r), (7, true, Some(7)));
    r.begins(3, "db3", 3306, 2, 10, at(9500));
    assert_eq!(by(&r), (7, true, Some(7)));
    // Its last answer is a thing of the past at some time, as what it was sent is.
    r.tick(at(10_399), None);
    assert_eq!(by(&r), (7, true, Some(7)));
    r.tick(at(10_400), None);
    assert_eq!(by(&r), (10, false, None));
    // What is gone is not needed; what it was sent since may help it.
    r.has_applied(3, 2, 4, at(10_500));
    assert_eq!((r.needed(4), r.needed(5)), (Some((4, 3)), Some((10, 3))));
    assert_eq!((r.cut_off(10).count(), r.cut_off(11).count()), (0, 1));
}

/// With a short `hold`, between two questions.
#[test]
fn an_answer_counts_till_the_next() {
    let mut r = Registry::new(1);
    r.begins(3, "db3", 3306, 1, 5, at(0));
    r.has_applied(3, 1, 5, at(1));
    r.enters(3, 1, 6, at(2));
    r.tick(at(600), None);
    assert_eq!(r.needed(0), Some((5, 3)));
    r.tick(at(601), None);
    assert_eq!(r.needed(0), Some((6, 3)), "it cannot be asked any more");
}

/// A relay that listens to both kinds of addresses at one port.
#[test]
fn an_address_of_the_older_kind() {
    let mut r = Registry::new(60);
    let mut comes = |from: &str| {
        r.begins(3, "", 0, 1, 5, at(0));
        let from = from.parse().expect("an address");
        r.at(3, 1, from, String::new());
        r.known()[&3].address.map(|a| a.to_string())
    };
    assert_eq!(comes("::ffff:10.0.0.3").as_deref(), Some("10.0.0.3"));
    assert_eq!(comes("2001:db8::3").as_deref(), Some("2001:db8::3"));
}

#[test]
fn who_is_asked() {
    let mut r = Registry::new(60);
    let here = IpAddr::from([127, 0, 0, 1]);
    let has: Position = "0-1-7,1-3-9,2-3-5".parse().expect("a position");
    for (id, by_gtid) in [(3, true), (4, true), (5, false), (6, true)] {
        r.begins(id, "", 0, id, 5, at(0));
        r.at(id, id, here, String::new());
        r.comes_with(id, id, &has, by_gtid);
    }
    r.ends(6, 6, at(1));
    r.begins(7, "", 0, 7, 5, at(1));
    let mut asks = |now| r.next_to_ask(at(now)).map(|(id, _)| id);
    // The others go by files, are away, or came from nobody knows where.
    assert_eq!([asks(10), asks(20), asks(30)], [Some(3), Some(4), None]);
    assert_eq!([asks(69), asks(70), asks(70)], [None, Some(3), None]);
    // Who comes again and again keeps nobody else from being asked.
    r.begins(3, "", 0, 8, 5, at(71));
    r.at(3, 8, here, String::new());
    r.comes_with(3, 8, &has, true);
    let mut asks = |now| r.next_to_ask(at(now)).map(|(id, _)| id);
    assert_eq!([asks(80), asks(81), asks(130)], [Some(4), None, Some(3)]);
    // What it has made itself it never applies.
    let known = &r.known()[&3];
    let applied = |text: &str| known.has_if_applied(text.parse().expect("a position"));
    let all = applied("0-1-5,2-1-8").to_string();
    assert_eq!(all, "0-1-5,1-3-9,2-1-8");
    assert_eq!(applied("1-1-10,2-1-4").to_string(), "1-1-10,2-3-5");
}

/// Its I/O thread comes again, and says what it received: behind what it had made others may have gone on.
#[test]
fn what_it_made_stays_made() {
    let mut r = Registry::new(60);
    let mut comes = |connection, has: &str, applied: &str| {
        let position = |text: &str| -> Position { text.parse().expect("a position") };
        r.begins(3, "", 0, connection, 5, at(0));
        r.comes_with(3, connection, &position(has), true);
        let known = &r.known()[&3];
        known.has_if_applied(position(applied)).to_string()
    };
    assert_eq!(comes(1, "1-3-9,2-3-5", "1-1-4"), "1-3-9,2-3-5");
    assert_eq!(comes(2, "1-1-12,2-3-5", "1-1-4"), "1-3-9,2-3-5");
    assert_eq!(comes(3, "1-1-9,2-3-6", "1-1-4"), "1-3-9,2-3-6");
    // It has lost that: its data are older ones.
    assert_eq!(comes(4, "1-1-8,2-3-6", "1-1-4"), "1-1-4,2-3-6");
    assert_eq!(comes(5, "1-1-12", "1-1-4"), "1-1-4");
}

/// The relay starts anew while the replica's SQL thread runs on: it comes with what it received.
#[test]
fn what_it_made_stays_made_over_a_start() {
    let position = |text: &str| text.parse::<Position>().expect("a position");
    let mut r = Registry::new(60);
    r.begins(3, "db 3", 3306, 1, 5, at(1000));
    assert!(r.take_changed());
    r.comes_with(3, 1, &position("0-3-100,1-3-7,2-1-9"), true);
    assert!(r.take_changed(), "it is to be written down");
    r.comes_with(3, 1, &position("0-1-110,1-3-7,2-1-9"), true);
    assert!(!r.take_changed(), "the same");
    let text = r.text();
    assert_eq!(text, "3 5 3306 1000 db 3\t0-3-100,1-3-7\n");
    let mut r = Registry::parse(&text, 60).expect("as written");
    assert_eq!(r.text(), text);
    assert_eq!(r.known()[&3].host, "db 3");
    r.begins(3, "db 3", 3306, 1, 5, at(2000));
    r.comes_with(3, 1, &position("0-1-120,1-3-7"), true);
    let has = r.known()[&3].has_if_applied(position("0-1-90"));
    assert_eq!(has.to_string(), "0-3-100,1-3-7");
    // It comes with less: that is lost, also for the next start.
    r.take_changed();
    r.comes_with(3, 1, &position("0-1-99"), true);
    assert!(r.take_changed());
    assert_eq!(r.text(), "3 5 3306 2000 db 3\n");
    assert!(Registry::parse("3 5 3306 7 h\t0-3", 60).is_err());
    // Of very many domains some are kept.
    let many: Vec<String> = (0..1000).map(|domain| format!("{domain}-3-1")).collect();
    r.comes_with(3, 1, &position(&many.join(",")), true);
    let r = Registry::parse(&r.text(), 60).expect("as written");
    let kept = r.known()[&3].has_if_applied(Position::new());
    assert_eq!(kept.iter().count(), OWN_KEPT);
}

/// A relay that was started again has no answer yet.
#[test]
fn what_was_needed_counts_as_an_answer() {
    let again = |asks: bool| {
        let mut r = Registry::parse("3 5 3306 1000 db3", 1).expect("a list");
        if asks {
            r.asks();
        }
        r.started(at(0));
        r.begins(3, "db3", 3306, 1, 8, at(100));
        r.tick(at(699), None);
        r
    };
    assert_eq!(
        again(false).needed(0),
        Some((8, 3)),
        "hold says what counts"
    );
    let mut r = again(true);
    assert_eq!(r.needed(0), Some((5, 3)));
    // Its answer counts instead, whatever it is.
    let mut asked = r.clone();
    asked.has_applied(3, 1, 7, at(699));
    assert_eq!(asked.needed(0), Some((7, 3)));
    // It is away for a while, and comes again: it is as if it had not been.
    r.ends(3, 1, at(699));
    r.begins(3, "db3", 3306, 2, 8, at(900));
    r.tick(at(900), None);
    assert_eq!(r.needed(0), Some((5, 3)));
    r.tick(at(901), None);
    assert_eq!(r.needed(0), Some((8, 3)), "as long as an answer");
    // One with older data needs what it lacks of them.
    let mut r = Registry::parse("3 5 3306 1000 db3", 1).expect("a list");
    r.asks();
    r.begins(3, "db3", 3306, 1, 4, at(100));
    r.enters(3, 1, 5, at(100));
    r.tick(at(200), None);
    assert_eq!(r.needed(0), Some((4, 3)));
}

/// The clock was ahead when the relay started, and was set right.
#[test]
fn a_clock_that_goes_back_holds_nothing() {
    let mut r = Registry::new(60);
    let at = |unix, up| Now { unix, up };
    r.started(at(2_200_000_000, 0));
    r.begins(3, "db3", 3306, 1, 5, at(2_200_000_000, 10));
    r.enters(3, 1, 6, at(2_200_000_001, 11));
    r.ends(3, 1, at(1_800_000_000, 20));
    assert_eq!(r.known()[&3].last_seen, 1_800_000_000);
    // It was away for 10 s.
    r.begins(3, "db3", 3306, 2, 6, at(1_800_000_010, 30));
    r.enters(3, 2, 7, at(1_800_000_011, 31));
    r.tick(at(1_800_000_060, 80), None);
    assert_eq!(r.needed(0), Some((5, 3)));
    r.tick(at(1_800_000_061, 81), None);
    assert_eq!(r.needed(0), Some((6, 3)));
    r.tick(at(1_800_000_071, 91), None);
    assert_eq!(r.needed(0), Some((7, 3)));
}

/// For one tick it is ahead.
#[test]
fn a_clock_that_jumps_forgets_nobody() {
    let mut r = Registry::new(60);
    let at = |unix, up| Now { unix, up };
    r.started(at(1_800_000_000, 0));
    r.begins(3, "db3", 3306, 1, 5, at(1_800_000_001, 1));
    r.begins(4, "db4", 3306, 2, 8, at(1_800_000_001, 1));
    r.enters(4, 2, 9, at(1_800_000_002, 2));
    r.ends(3, 1, at(1_800_000_003, 3));
    assert!(r.tick(at(2_200_000_000, 4), Some(1000)).is_empty());
    assert_eq!(r.known()[&4].needs, 8, "sent two seconds ago");
    assert!(r.tick(at(1_800_001_003, 1003), Some(1000)).is_empty());
    assert_eq!(r.tick(at(1_800_001_004, 1004), Some(1000)), [3]);
}

/// Beyond keep_size_hard also what a replica needs goes.
#[test]
fn what_is_gone_is_not_needed() {
    let mut r = Registry::new(60);
    r.begins(3, "db3", 3306, 1, 5, at(1000));
    r.begins(4, "db4", 3306, 2, 25, at(1000));
    r.ends(3, 1, at(1001));
    assert_eq!(r.needed(5), Some((5, 3)));
    assert_eq!(r.needed(6), Some((25, 4)), "nothing would help the other");
    assert_eq!(r.cut_off(6).map(|(id, _)| id).collect::<Vec<_>>(), [3]);
    assert_eq!(r.cut_off(5).count(), 0);
    // It was given a new copy of the data.
    r.begins(3, "db3", 3306, 3, 22, at(2000));
    assert_eq!((r.needed(20), r.cut_off(20).count()), (Some((22, 3)), 0));
    // One that was sent what is left can go on with that, wherever it stood before.
    r.enters(3, 3, 23, at(2001));
    r.ends(3, 3, at(2002));
    assert_eq!(r.needed(23), Some((23, 3)));
    assert_eq!(r.needed(24), Some((25, 4)));
}

#[test]
fn who_is_here_is_not_forgotten_after_a_restart() {
    let mut r = Registry::new(60);
    r.started(at(1000));
    r.begins(3, "db3", 3306, 1, 5, at(1000));
    assert!(r.take_changed());
    let mut text = r.text();
    for now in (1001..100_000).step_by(100) {
        r.tick(at(now), Some(7000));
        if r.take_changed() {
            text = r.text();
        }
    }
    // The relay is killed, and comes back much later.
    let mut again = Registry::parse(&text, 60).expect("as written");
    assert!(
        again.known()[&3].last_seen > 96_000,
        "at most an hour old: {text}"
    );
    again.started(at(200_000));
    assert!(again.tick(at(207_000), Some(7000)).is_empty());
    assert_eq!(again.tick(at(207_001), Some(7000)), [3]);
}

fn name(name: &str) -> Called {
    Called::Name(name.into())
}

#[test]
fn a_name_that_looks_like_a_server_id() {
    let mut r = Registry::new(60);
    r.begins(10, "db10", 3306, 1, 5, at(1000));
    r.begins(11, "10", 3306, 2, 5, at(1000));
    r.ends(10, 1, at(1001));
    r.ends(11, 2, at(1001));
    let mut both = r.clone();
    let id = |forgotten: Result<(u32, Known), Unforgettable>| forgotten.map(|f| f.0);
    assert_eq!(id(r.forget(&name("10"), "me", at(1002))), Ok(11));
    assert_eq!(id(r.forget(&name("10"), "me", at(1002))), Ok(10), "no host");
    assert_eq!(id(both.forget(&Called::Id(10), "me", at(1002))), Ok(10));
    let none = both.forget(&Called::Id(10), "me", at(1002));
    assert_eq!(none, Err(Unforgettable::Unknown), "a number is no host");
}

/// After the relay's start all are away until they come back.
#[test]
fn not_forgotten_before_it_could_come_back() {
    let mut r = Registry::new(60);
    r.begins(3, "db3", 3306, 1, 5, at(900));
    r.begins(4, "db4", 3306, 2, 5, at(900));
    let mut r = Registry::parse(&r.text(), 60).expect("as written");
    r.started(at(1000));
    r.begins(4, "db4", 3306, 1, 5, at(1010));
    r.ends(4, 1, at(1020));
    for (now, left) in [(1000, 120), (1119, 1)] {
        let soon = r
            .forget(&Called::Id(3), "me", at(now))
            .expect_err("too soon");
        assert!(
            matches!(soon, Unforgettable::TooSoon(3, _, secs) if secs == left),
            "{soon:?}"
        );
    }
    assert!(r.known().contains_key(&3));
    // This one was here, and went.
    r.forget(&Called::Id(4), "me", at(1021))
        .expect("it is away");
    r.forget(&Called::Id(3), "me", at(1120))
        .expect("it is away");
}

#[test]
fn forgotten_as_told() {
    let mut r = Registry::new(60);
    r.begins(3, "db", 3306, 1, 5, at(1000));
    r.begins(4, "db", 3306, 2, 9, at(1000));
    r.begins(5, "other", 3306, 3, 7, at(1000));
    assert!(r.take_changed());
    let here = r
        .forget(&Called::Id(3), "me", at(1001))
        .expect_err("it is here");
    assert!(matches!(here, Unforgettable::Here(3, _)), "{here:?}");
    r.ends(3, 1, at(1002));
    r.ends(5, 3, at(1002));
    let several = r.forget(&name("db"), "me", at(1003));
    assert_eq!(several, Err(Unforgettable::Several(vec![3, 4])));
    let unknown = r.forget(&Called::Id(6), "me", at(1003));
    assert_eq!(unknown, Err(Unforgettable::Unknown));
    assert_eq!(r.known().len(), 3, "none was");
    r.set_held(Some((2, 3)));
    r.take_changed();
    let (id, known) = r.forget(&name("3"), "me", at(1004)).expect("it is away");
    assert_eq!((id, known.needs, r.held()), (3, 5, None));
    assert_eq!(r.needed(0), Some((7, 5)));
    assert!(r.take_changed(), "it is written down");
    r.forget(&name("other"), "you", at(1005))
        .expect("one of this name");
    let by = |f: &Forgotten| (f.server_id, f.needed, f.at, f.by.clone());
    let all: Vec<_> = r.forgotten().map(by).collect();
    assert_eq!(all, [(3, 5, 1004, "me".into()), (5, 7, 1005, "you".into())]);
    // It is no longer in the text, and known from where it begins if it comes back.
    assert_eq!(r.text().lines().count(), 1);
    r.begins(3, "db", 3306, 9, 8, at(2000));
    assert_eq!(r.needed(0), Some((8, 3)));
    for n in 0..100 {
        r.begins(1000 + n, "", 0, 5, 9, at(2000));
        r.ends(1000 + n, 5, at(2000));
        r.forget(&Called::Id(1000 + n), "me", at(2001))
            .expect("it is away");
    }
    assert_eq!(r.forgotten().count(), FORGOTTEN_MAX);
}

#[test]
fn no_more_are_known_than_there_may_be() {
    let max = u32::try_from(KNOWN_MAX).expect("a small number");
    let mut old = Registry::new(60);
    (0..max).for_each(|id| old.begins(id, "", 0, id, 5, at(100 + u64::from(id % 7))));
    let mut r = Registry::parse(&old.text(), 60).expect("as written");
    r.started(at(0));
    // Of those that were not here since the start the one goes that was seen first, then the next.
    for (id, gone) in [(max + 1, 0), (max + 2, 7), (max + 3, 14)] {
        r.begins(id, "", 0, id, 9, at(1000));
        r.ends(id, id, at(1000));
        assert_eq!(r.known().len(), KNOWN_MAX);
        assert!(!r.known().contains_key(&gone));
        let last = r.forgotten().last().expect("one was");
        assert_eq!((last.server_id, last.needed), (gone, 5));
        assert_eq!(last.by, Forgotten::BY_NUMBER);
    }
    assert_eq!(r.take_crowded(), (vec![0, 7, 14], 3));
    // One that is known comes back: nobody has to go.
    r.begins(1, "", 0, 1, 9, at(1001));
    assert_eq!(r.take_crowded(), (Vec::new(), 0));
    // Who is here stays, however many come.
    (2000..2000 + max).for_each(|id| r.begins(id, "", 0, id, 9, at(1002)));
    assert_eq!(r.known().len(), KNOWN_MAX + 1);
    assert!(r.known().values().all(|k| k.connection.is_some()));
    assert_eq!(r.take_crowded().0.len(), NAMED_MAX);
    // There is room again when they go.
    (2000..2010).for_each(|id| r.ends(id, id, at(1003)));
    r.begins(9000, "", 0, 1, 9, at(1004));
    assert_eq!(r.known().len(), KNOWN_MAX);
    assert!(r.known().contains_key(&1));
}

#[test]
fn kept_as_text() {
    let mut r = Registry::new(60);
    r.begins(3, "db 3\n", 3306, 1, 5, at(1000));
    r.begins(4, "", 0, 2, 9, at(1000));
    assert!(r.take_changed() && !r.take_changed());
    let text = r.text();
    let again = Registry::parse(&text, 60).expect("as written");
    assert_eq!(again.text(), text);
    assert_eq!(again.needed(0), r.needed(0));
    assert!(
        again.hosts().is_empty(),
        "nobody is connected after a restart"
    );
    assert!(Registry::parse("3 5 x 7 h", 60).is_err());
    assert!(Registry::parse("3 5", 60).is_err());
    assert!(Registry::parse("99999999999 5 1 1 h", 60).is_err());
}
