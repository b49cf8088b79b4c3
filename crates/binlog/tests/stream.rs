//! Groups out of streams, against lists of groups that were written; and what
//! is left of a stream that was cut.

mod support;

use dromon_binlog::{
    Checksum, Cut, EVENT_MAX, Ending, Event, EventType, FILE_MAGIC, Format, GroupName, Grouper,
    GtidEvent, GtidList, Header, LogicalClock, MySqlGtid, Payload, Rotate, StartEncryption, Step,
    StreamError, XaName, XaPrepare, check_magic, cut_event, encode_event, flags,
    format_for_replica, gtid_flags, place, with_checksum,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{event, format, format_event, gtid, header, mariadb, query};

/// What is written into a stream.
#[derive(Clone, Copy, Debug)]
enum Item {
    Transaction {
        inside: usize,
    },
    NotTransactional {
        inside: usize,
        rollback: bool,
    },
    Ddl {
        annotated: bool,
    },
    XaPrepare {
        one_phase: bool,
    },
    /// With a list of the primary's own between its GTID and the rest.
    InAHole {
        inside: usize,
    },
    XaCommit,
    List,
    Heartbeat,
    Unfinished {
        inside: usize,
    },
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        (0usize..6).prop_map(|inside| Item::Transaction { inside }),
        (0usize..6, any::<bool>())
            .prop_map(|(inside, rollback)| Item::NotTransactional { inside, rollback }),
        any::<bool>().prop_map(|annotated| Item::Ddl { annotated }),
        any::<bool>().prop_map(|one_phase| Item::XaPrepare { one_phase }),
        (0usize..3).prop_map(|inside| Item::InAHole { inside }),
        Just(Item::XaCommit),
        Just(Item::List),
        Just(Item::Heartbeat),
        (0usize..3).prop_map(|inside| Item::Unfinished { inside }),
    ]
}

/// The events of an item, and how its group ends.
fn write(item: Item, seqno: u64, f: &Format) -> (Vec<Vec<u8>>, Option<Ending>) {
    let begin = |flags, xa| {
        let gtid = GtidEvent {
            xa,
            ..gtid(seqno, flags)
        };
        event(EventType::GTID, &Payload::Gtid(gtid), f)
    };
    let statement = |text| event(EventType::QUERY, &Payload::Query(query(text)), f);
    let annotate = || event(EventType::ANNOTATE_ROWS, &Payload::Annotate(b"x"), f);
    let name = XaName {
        format: 1,
        gtrid: b"x",
        bqual: b"",
    };
    let prepare = |one_phase| {
        let prepare = XaPrepare { name, one_phase };
        event(EventType::XA_PREPARE, &Payload::XaPrepare(prepare), f)
    };
    // Made for one replica, whatever is open.
    let artificial_list = || {
        let head = Header {
            flags: flags::ARTIFICIAL,
            ..header(EventType::GTID_LIST)
        };
        encode_event(&head, &Payload::GtidList(GtidList::default()), f)
    };
    let inner = |n| {
        let names = [
            "SAVEPOINT a",
            "insert into t values (1)",
            "ROLLBACK TO a",
            "commits",
        ];
        (0..n).map(move |i| match i % 5 {
            4 => annotate(),
            i => statement(names[i]),
        })
    };
    let mut events = Vec::new();
    let ending = match item {
        Item::Transaction { inside } => {
            events.push(begin(gtid_flags::TRANSACTIONAL, None));
            events.extend(inner(inside));
            events.push(event(EventType::XID, &Payload::Xid(seqno), f));
            Some(Ending::Xid)
        }
        Item::NotTransactional { inside, rollback } => {
            events.push(begin(gtid_flags::ALLOW_PARALLEL, None));
            events.extend(inner(inside));
            events.push(statement(if rollback { "ROLLBACK" } else { "COMMIT" }));
            Some(if rollback {
                Ending::Rollback
            } else {
                Ending::Commit
            })
        }
        Item::Ddl { annotated } => {
            events.push(begin(gtid_flags::STANDALONE | gtid_flags::DDL, None));
            if annotated {
                events.push(annotate());
            }
            events.push(statement("create table x(a int)"));
            Some(Ending::Statement)
        }
        Item::InAHole { inside } => {
            events.push(begin(gtid_flags::TRANSACTIONAL, None));
            events.push(artificial_list());
            events.extend(inner(inside));
            events.push(event(EventType::XID, &Payload::Xid(seqno), f));
            Some(Ending::Xid)
        }
        Item::XaPrepare { one_phase } => {
            events.push(begin(gtid_flags::PREPARED_XA, Some(name)));
            events.extend(inner(2));
            events.push(prepare(one_phase));
            Some(match one_phase {
                true => Ending::XaOnePhase,
                false => Ending::XaPrepare,
            })
        }
        Item::XaCommit => {
            events.push(begin(gtid_flags::COMPLETED_XA, Some(name)));
            events.push(statement("XA COMMIT X'78',X'',1"));
            Some(Ending::Statement)
        }
        Item::List => {
            let list = GtidList::default();
            events.push(event(EventType::GTID_LIST, &Payload::GtidList(list), f));
            None
        }
        Item::Heartbeat => {
            events.push(event(EventType::HEARTBEAT, &Payload::Other(b"name"), f));
            None
        }
        Item::Unfinished { inside } => {
            events.push(begin(gtid_flags::TRANSACTIONAL, None));
            events.extend(inner(inside));
            None
        }
    };
    (events, ending)
}

struct Written {
    bytes: Vec<u8>,
    /// Begin, end, events and ending of each group.
    groups: Vec<(u64, u64, u64, Ending)>,
    /// Begins of groups without an end which something follows.
    abandoned: Vec<u64>,
    /// Ends of events behind which no group is open.
    whole: Vec<u64>,
    /// Ends of all events.
    ends: Vec<u64>,
}

/// A file of these items. What follows an unfinished group ends it.
fn file(items: &[Item], f: &Format) -> Written {
    let mut w = Written {
        bytes: FILE_MAGIC.to_vec(),
        groups: Vec::new(),
        abandoned: Vec::new(),
        whole: vec![4],
        ends: vec![4],
    };
    let mut open = None;
    let put = |w: &mut Written, mut raw: Vec<u8>, is_heartbeat: bool| {
        if !is_heartbeat {
            place(&mut raw, f.checksum(), w.bytes.len() as u64).unwrap();
        }
        w.bytes.extend(raw);
        w.ends.push(w.bytes.len() as u64);
    };
    put(&mut w, format_event(f), false);
    let end = w.bytes.len() as u64;
    w.whole.push(end);
    for (n, item) in items.iter().enumerate() {
        let (events, ending) = write(*item, n as u64 + 1, f);
        let begin = w.bytes.len() as u64;
        // What was made for one replica does not count.
        let made = u64::from(matches!(item, Item::InAHole { .. }));
        let count = events.len() as u64 - made;
        let heartbeat = matches!(item, Item::Heartbeat);
        // A heartbeat may stand anywhere; all else ends what is open.
        if !heartbeat && let Some(begin) = open.take() {
            w.abandoned.push(begin);
        }
        for raw in events {
            put(&mut w, raw, heartbeat);
            if ending.is_none() && !matches!(item, Item::Unfinished { .. }) && open.is_none() {
                let end = w.bytes.len() as u64;
                w.whole.push(end);
            }
        }
        let end = w.bytes.len() as u64;
        if let Some(ending) = ending {
            w.groups.push((begin, end, count, ending));
            w.whole.push(end);
        } else if matches!(item, Item::Unfinished { .. }) {
            open = Some(begin);
        }
    }
    w
}

fn checksums() -> impl Strategy<Value = Checksum> {
    prop_oneof![Just(Checksum::Off), Just(Checksum::Crc32)]
}

proptest! {
    #[test]
    fn files(items in vec(item(), 0..20), checksum in checksums(), cut: usize, chunks in vec(1usize..200, 1..10)) {
        let written = file(&items, &mariadb(checksum));
        let cut = if cut % 3 == 0 { written.bytes.len() } else { 4 + cut % (written.bytes.len() - 3) };
        let cut = cut.min(written.bytes.len());
        let bytes = &written.bytes[..cut];
        check_magic(bytes).unwrap();
        // In pieces, as a file is read or a socket gives them.
        let mut grouper = Grouper::of_file();
        let mut sizes = chunks.iter().cycle();
        let (mut groups, mut abandoned, mut open) = (Vec::new(), Vec::new(), None);
        let mut known = 4;
        loop {
            let at = grouper.at() as usize;
            match cut_event(&bytes[at..known], at as u64, EVENT_MAX).unwrap() {
                Cut::More { need } => {
                    prop_assert!(at + need > known);
                    if known == cut {
                        break;
                    }
                    known = cut.min(known + sizes.next().unwrap());
                }
                Cut::Event(raw) => {
                    let seen = grouper.event(raw).unwrap();
                    prop_assert_eq!(seen.event.raw(), raw);
                    abandoned.extend(seen.abandoned.map(|g| g.begin));
                    match seen.step {
                        Step::Begin(group) => open = Some(group.begin),
                        Step::End(group, ending) | Step::Alone(group, ending) => {
                            prop_assert_eq!(group.bytes(), group.end - group.begin);
                            groups.push((group.begin, group.end, group.events, ending));
                            open = None;
                        }
                        Step::Within => prop_assert!(open.is_some()),
                        Step::Between => open = grouper.open().map(|g| g.begin),
                    }
                    prop_assert_eq!(grouper.open().map(|g| g.begin), open);
                }
            }
        }
        let upto = |ends: &[u64]| ends.iter().copied().filter(|e| *e <= cut as u64).max().unwrap();
        prop_assert_eq!(grouper.at(), upto(&written.ends));
        prop_assert_eq!(grouper.settled(), upto(&written.whole));
        let expected: Vec<_> = written.groups.iter().copied().filter(|g| g.1 <= cut as u64).collect();
        prop_assert_eq!(groups, expected);
        if cut == written.bytes.len() {
            prop_assert_eq!(abandoned, written.abandoned);
        }
    }

    /// Bytes changed anywhere are noticed where there are checksums, and what
    /// came before them stays.
    #[test]
    fn damage(items in vec(item(), 1..8), at: usize, change in 1u8..) {
        let written = file(&items, &mariadb(Checksum::Crc32));
        let mut bytes = written.bytes.clone();
        let at = 4 + at % (bytes.len() - 4);
        bytes[at] ^= change;
        let mut grouper = Grouper::of_file();
        let failed = loop {
            let here = grouper.at();
            match cut_event(&bytes[here as usize..], here, EVENT_MAX) {
                Ok(Cut::More { .. }) => break here < bytes.len() as u64,
                Ok(Cut::Event(raw)) => if grouper.event(raw).is_err() { break true },
                Err(_) => break true,
            }
        };
        // Whether a file is open is not covered by its checksum.
        prop_assert!(failed || at == 4 + 17 && change == 1);
        prop_assert!(grouper.settled() <= at as u64 || at == 4 + 17);
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..100), connection: bool) {
        let mut grouper = if connection { Grouper::of_connection() } else { Grouper::of_file() };
        match cut_event(&bytes, 0, 1000) {
            Ok(Cut::Event(event)) => prop_assert!(bytes.starts_with(event) && event.len() >= 19),
            Ok(Cut::More { need }) => prop_assert!(need > bytes.len() && need <= 1000),
            Err(error) => prop_assert!(bytes.len() >= 19, "{error}"),
        }
        // Without a right length, and a format description before, nothing is
        // taken; and nothing has changed.
        let before = grouper.at();
        let alone = bytes.get(9..13).map(|len| u32::from_le_bytes(len.try_into().unwrap()));
        if grouper.event(&bytes).is_ok() {
            prop_assert_eq!(alone, Some(bytes.len() as u32));
            prop_assert!(matches!(bytes[4], 4 | 15 | 27));
        } else {
            prop_assert_eq!((grouper.at(), grouper.settled()), (before, before));
            prop_assert!(grouper.open().is_none() && grouper.format().is_none());
        }
    }
}

/// Every change of every byte of the first header: it says how all others are
/// secured, so nothing may pass for it. (Of a heartbeat before it only the bytes
/// can tell whether it has a checksum, but none stands in a file.)
#[test]
fn damage_to_the_first_event() {
    let written = file(&[Item::Heartbeat], &mariadb(Checksum::Crc32));
    for at in 4..4 + 19 {
        for change in 1..=255 {
            let mut bytes = written.bytes.clone();
            bytes[at] ^= change;
            if (at, change) == (4 + 17, flags::IN_USE as u8) {
                continue;
            }
            let mut grouper = Grouper::of_file();
            if let Ok(Cut::Event(raw)) = cut_event(&bytes[4..], 4, EVENT_MAX) {
                assert!(grouper.event(raw).is_err(), "byte {at} changed by {change}");
            }
            assert_eq!(grouper.settled(), 4);
        }
    }
}

fn steps(events: &[Vec<u8>]) -> Vec<Step> {
    let mut grouper = Grouper::of_connection();
    events
        .iter()
        .map(|raw| grouper.event(raw).unwrap().step)
        .collect()
}

fn endings(steps: &[Step]) -> String {
    let show = |step: &Step| match step {
        Step::Between => "-".into(),
        Step::Begin(_) => "(".into(),
        Step::Within => ".".into(),
        Step::End(_, ending) => format!("{ending:?})"),
        Step::Alone(_, ending) => format!("({ending:?})"),
    };
    steps.iter().map(show).collect()
}

#[test]
fn groups_of_mysql() {
    let f = format("8.0.36", Some(Checksum::Crc32));
    let begin = |number| {
        let gtid = MySqlGtid {
            flags: 0,
            source: [7; 16],
            number,
            clock: Some(LogicalClock {
                last_committed: 1,
                sequence_number: 2,
            }),
            commit: None,
            tail: &[],
            anonymous: number == 0,
        };
        let kind = match number {
            0 => EventType::ANONYMOUS_GTID,
            _ => EventType::MYSQL_GTID,
        };
        event(kind, &Payload::MySqlGtid(gtid), &f)
    };
    let statement = |text| event(EventType::QUERY, &Payload::Query(query(text)), &f);
    let xid = || event(EventType::XID, &Payload::Xid(1), &f);
    let payload = event(EventType::TRANSACTION_PAYLOAD, &Payload::Other(b"zstd"), &f);
    let prepare = |one_phase| {
        let name = XaName {
            format: 1,
            gtrid: b"1",
            bqual: b"",
        };
        let prepare = XaPrepare { name, one_phase };
        event(EventType::XA_PREPARE, &Payload::XaPrepare(prepare), &f)
    };
    let events = [
        format_event(&f),
        begin(5),
        statement("BEGIN"),
        statement("insert into t values (1)"),
        xid(),
        begin(0),
        statement("create table t(a int)"),
        begin(6),
        payload,
        begin(7),
        statement("XA START X'31',X'',1"),
        statement("XA END X'31',X'',1"),
        prepare(false),
        begin(8),
        statement("XA START X'31',X'',1"),
        statement("XA END X'31',X'',1"),
        prepare(true),
    ];
    let steps = steps(&events);
    assert_eq!(
        endings(&steps),
        "-(..Xid)(Statement)(Payload)(..XaPrepare)(..XaOnePhase)"
    );
    let Step::End(group, _) = steps[4] else {
        panic!("the first group ends there");
    };
    assert_eq!(
        group.name,
        GroupName::MySql {
            source: [7; 16],
            number: 5
        }
    );
}

#[test]
fn groups_without_gtids() {
    let mut f = format("5.5.62-log", None);
    f.post_header_lens.truncate(27);
    let statement = |text| event(EventType::QUERY, &Payload::Query(query(text)), &f);
    let events = [
        format_event(&f),
        statement("create table t(a int)"),
        statement("BEGIN"),
        event(EventType::INTVAR, &Payload::Other(&[2; 9]), &f),
        statement("insert into t values (null)"),
        event(EventType::XID, &Payload::Xid(1), &f),
        event(EventType::INTVAR, &Payload::Other(&[2; 9]), &f),
        statement("insert into m values (null)"),
        event(EventType::STOP, &Payload::Stop, &f),
    ];
    let steps = steps(&events);
    assert_eq!(endings(&steps), "-(Statement)(..Xid)(Statement)-");
    let Step::Alone(group, _) = steps[1] else {
        panic!("a statement is a group");
    };
    assert_eq!(group.name, GroupName::Nameless);
}

#[test]
fn a_connection_begins_with_a_rotate_of_either_kind() {
    for wanted in [Checksum::Off, Checksum::Crc32] {
        let f = mariadb(wanted);
        let rotate = Rotate {
            position: 4,
            file: b"bin.000007",
        };
        let mut head = header(EventType::ROTATE);
        head.flags = dromon_binlog::flags::ARTIFICIAL;
        let raw = dromon_binlog::encode_event(&head, &Payload::Rotate(rotate), &f);
        let mut grouper = Grouper::of_connection();
        let seen = grouper.event(&raw).unwrap();
        let Payload::Rotate(read) = seen.event.decode(&f).unwrap() else {
            panic!("it is a rotate");
        };
        assert_eq!(read, rotate);
        // Nothing else before the format.
        let gtid = event(EventType::GTID, &Payload::Gtid(gtid(1, 0)), &f);
        let error = grouper.event(&gtid).unwrap_err();
        assert!(matches!(error, StreamError::NoFormat { .. }), "{error}");
        grouper.event(&format_event(&f)).unwrap();
        grouper.event(&gtid).unwrap();
        assert!(grouper.interrupt().is_some());
        assert!(grouper.open().is_none() && grouper.format().is_none());
    }
}

/// A primary changes its format description while sending it. Where there are
/// no checksums it does not mend that event's own.
#[test]
fn a_stale_checksum_over_a_connection() {
    for wanted in [Checksum::Off, Checksum::Crc32] {
        let f = mariadb(wanted);
        let mut raw = format_event(&f);
        // It was not created by a start of the server.
        raw[19 + 52..19 + 56].fill(0);
        let file = Grouper::of_file().event(&raw);
        assert!(
            matches!(file, Err(StreamError::Event { .. })),
            "files are not changed"
        );
        let mut connection = Grouper::of_connection();
        let seen = connection.event(&raw);
        if wanted == Checksum::Crc32 {
            assert!(seen.is_err(), "there it would have been mended");
            continue;
        }
        let seen = seen.unwrap();
        assert_eq!(seen.event.raw(), raw);
        let own = Format { created: 0, ..f };
        assert_eq!(connection.format(), Some(&own));
        assert_eq!(
            seen.event.decode(&own),
            Ok(Payload::Format(Box::new(own.clone())))
        );
        // Whatever is made of it has a right one.
        for to in [Checksum::Off, Checksum::Crc32] {
            let sent = with_checksum(&seen.event, to).unwrap();
            Event::parse(&sent, to).unwrap();
        }
        let sent = format_for_replica(&seen.event, true).unwrap();
        Event::parse(&sent, Checksum::Off).unwrap();
        let mut stored = raw.clone();
        place(&mut stored, Checksum::Off, 4).unwrap();
        Grouper::of_file().event(&stored).unwrap();
        connection
            .event(&event(
                EventType::GTID,
                &Payload::Gtid(gtid(1, gtid_flags::TRANSACTIONAL)),
                &own,
            ))
            .unwrap();
        assert!(connection.open().is_some());
    }
}

/// A primary sends a list to a replica whose position is in a hole, and that
/// may be between a GTID and what follows it. Any other list ends what is open.
#[test]
fn a_list_within_a_group() {
    let f = mariadb(Checksum::Crc32);
    for artificial in [true, false] {
        let mut head = header(EventType::GTID_LIST);
        head.flags = if artificial { flags::ARTIFICIAL } else { 0 };
        let list = encode_event(&head, &Payload::GtidList(GtidList::default()), &f);
        let mut grouper = Grouper::of_connection();
        grouper.event(&format_event(&f)).unwrap();
        let first = gtid(9, gtid_flags::TRANSACTIONAL);
        let begin = event(EventType::GTID, &Payload::Gtid(first), &f);
        grouper.event(&begin).unwrap();
        let seen = grouper.event(&list).unwrap();
        assert_eq!(seen.step, Step::Between);
        assert_eq!(seen.abandoned.is_none(), artificial);
        let xid = event(EventType::XID, &Payload::Xid(1), &f);
        let (group, expected) = match grouper.event(&xid).unwrap().step {
            Step::End(group, Ending::Xid) => (group, GroupName::MariaDb(first.gtid)),
            Step::Alone(group, Ending::Xid) => (group, GroupName::Nameless),
            other => panic!("{other:?}"),
        };
        assert_eq!(group.name, expected);
        assert_eq!(group.name == GroupName::Nameless, !artificial);
    }
}

/// Servers keep 64 bytes for each part of an XA name.
#[test]
fn long_xa_names_are_refused() {
    let f = mariadb(Checksum::Crc32);
    let long = [b'x'; 65];
    for (gtrid, bqual) in [(64, 64), (65, 0), (0, 65)] {
        let name = XaName {
            format: 1,
            gtrid: &long[..gtrid],
            bqual: &long[..bqual],
        };
        let gtid = GtidEvent {
            xa: Some(name),
            ..gtid(1, gtid_flags::PREPARED_XA)
        };
        let prepare = XaPrepare {
            name,
            one_phase: false,
        };
        let fits = gtrid.max(bqual) <= 64;
        for raw in [
            event(EventType::GTID, &Payload::Gtid(gtid), &f),
            event(EventType::XA_PREPARE, &Payload::XaPrepare(prepare), &f),
        ] {
            let mut grouper = Grouper::of_connection();
            grouper.event(&format_event(&f)).unwrap();
            assert_eq!(grouper.event(&raw).is_ok(), fits, "{gtrid} {bqual}");
            // After an error nothing has changed.
            assert!(fits || grouper.open().is_none());
        }
    }
}

#[test]
fn files_that_are_refused() {
    assert!(check_magic(&FILE_MAGIC).is_ok());
    assert!(check_magic(b"\xfebi").is_err());
    let error = check_magic(b"\xfdbinmore").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("The file begins with [fd, 62, 69, 6e]")
    );

    let f = mariadb(Checksum::Off);
    let mut grouper = Grouper::of_file();
    let mut first = format_event(&f);
    place(&mut first, Checksum::Off, 4).unwrap();
    grouper.event(&first).unwrap();
    let at = grouper.at();
    let start = StartEncryption {
        scheme: 1,
        key_version: 3,
        nonce: [1; 12],
    };
    let raw = event(
        EventType::START_ENCRYPTION,
        &Payload::StartEncryption(start),
        &f,
    );
    let error = grouper.event(&raw).unwrap_err();
    assert_eq!(
        error,
        StreamError::Encrypted {
            at: at + raw.len() as u64,
            key_version: 3
        }
    );
    // A connection goes on in clear.
    let mut connection = Grouper::of_connection();
    connection.event(&first).unwrap();
    assert_eq!(connection.event(&raw).unwrap().step, Step::Between);
    // After an error nothing has changed: the right event is taken.
    let mut stop = event(EventType::STOP, &Payload::Stop, &f);
    place(&mut stop, Checksum::Off, at + 1).unwrap();
    let error = grouper.event(&stop).unwrap_err();
    assert!(matches!(error, StreamError::Place { .. }), "{error}");
    assert_eq!(grouper.at(), at);
    place(&mut stop, Checksum::Off, at).unwrap();
    grouper.event(&stop).unwrap();
    assert_eq!(grouper.settled(), at + stop.len() as u64);

    let long = dromon_binlog::Header {
        len: 1001,
        ..header(EventType::QUERY)
    };
    let mut raw = Vec::new();
    long.encode(&mut raw);
    assert!(matches!(
        cut_event(&raw, 0, 1000),
        Err(StreamError::TooLong { len: 1001, .. })
    ));
    assert_eq!(cut_event(&raw, 0, 1001), Ok(Cut::More { need: 1001 }));
    assert_eq!(cut_event(&raw[..5], 0, 1001), Ok(Cut::More { need: 19 }));
}
