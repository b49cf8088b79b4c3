//! What a relay makes and changes, and that nothing else changes.

mod support;

use dromon_binlog::{
    BinlogState, Checksum, Event, EventType, Format, Gtid, GtidEvent, GtidExtra, GtidHint,
    GtidList, LogicalClock, Maker, MySqlGtid, Payload, Place, Rotate, XaName, encode_event, flags,
    format_for_replica, gtid_extra, gtid_flags, has_room, normalise_gtid, patch_clock, patch_gtid,
    place, with_checksum,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{event, format, format_event, header, mariadb};

fn checksums() -> impl Strategy<Value = Checksum> {
    prop_oneof![Just(Checksum::Off), Just(Checksum::Crc32)]
}

fn maker(checksum: Checksum, place: Place) -> Maker {
    Maker {
        server_id: 9,
        timestamp: if place == Place::Nowhere {
            0
        } else {
            1_700_000_000
        },
        checksum,
        place,
    }
}

fn decode<'a>(raw: &'a [u8], f: &Format) -> (Event<'a>, Payload<'a>) {
    let event = Event::parse(raw, f.checksum()).unwrap();
    let payload = event.decode(f).unwrap();
    (event, payload)
}

/// A GTID event as a server writes it: padded only up to 19 bytes.
fn written(
    flags: u8,
    commit_id: Option<u64>,
    name: Option<&[u8]>,
    extra: Option<GtidExtra>,
    f: &Format,
) -> Vec<u8> {
    let gtid = GtidEvent {
        gtid: Gtid {
            domain: 1,
            server: 7,
            seqno: 99,
        },
        flags,
        commit_id,
        xa: name.map(|gtrid| XaName {
            format: 1,
            gtrid,
            bqual: b"b",
        }),
        extra,
        tail: &[],
    };
    event(EventType::GTID, &Payload::Gtid(gtid), f)
}

fn gtid_in<'a>(raw: &'a [u8], f: &Format) -> GtidEvent<'a> {
    match decode(raw, f).1 {
        Payload::Gtid(gtid) => gtid,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn hints_in_place(
        flags: u8, first: Option<u64>, name in proptest::option::of(vec(any::<u8>(), 0..64)),
        extra in proptest::option::of((1u8..32, any::<u8>(), any::<u64>(), any::<u64>())),
        hints in vec((proptest::option::of(any::<u64>()), proptest::option::of(any::<u8>())), 0..6),
        checksum in checksums()
    ) {
        let f = mariadb(checksum);
        let xa = gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA;
        let flags = flags & !(xa | gtid_flags::GROUP_COMMIT_ID);
        let extra = extra.map(|(flags, engines, alter_begin, thread_id)| GtidExtra {
            flags,
            engines: if flags & gtid_extra::MULTI_ENGINE != 0 { engines } else { 0 },
            alter_begin: if flags & 12 != 0 { alter_begin } else { 0 },
            thread_id: if flags & gtid_extra::THREAD_ID != 0 { thread_id } else { 0 },
        });
        let raw = written(flags, first, name.as_deref(), extra, &f);
        let before = gtid_in(&raw, &f);

        let roomy = normalise_gtid(&Event::parse(&raw, checksum).unwrap()).unwrap().into_owned();
        let roomy_event = Event::parse(&roomy, checksum).unwrap();
        prop_assert!(has_room(&roomy_event).unwrap());
        // It says the same, and is at most 8 bytes longer.
        let now = gtid_in(&roomy, &f);
        prop_assert_eq!(GtidEvent { tail: &[], ..now }, GtidEvent { tail: &[], ..before });
        prop_assert!(roomy.len() >= raw.len() && roomy.len() <= raw.len() + 8);
        prop_assert_eq!(&*normalise_gtid(&roomy_event).unwrap(), &roomy[..]);

        let mut patched = roomy.clone();
        let mut model = GtidHint { commit_id: first, flags: Some(flags) };
        for (commit_id, flags) in hints {
            patch_gtid(&mut patched, checksum, GtidHint { commit_id, flags }).unwrap();
            model.commit_id = commit_id;
            model.flags = flags.or(model.flags);
            prop_assert_eq!(patched.len(), roomy.len());
            let after = gtid_in(&patched, &f);
            prop_assert_eq!(after.commit_id, commit_id);
            prop_assert_eq!((after.gtid, after.xa, after.extra), (before.gtid, before.xa, before.extra));
            let of_hint = GtidHint::FLAGS;
            prop_assert_eq!(after.flags & of_hint, model.flags.unwrap() & of_hint);
            let fixed = !(of_hint | gtid_flags::GROUP_COMMIT_ID);
            prop_assert_eq!(after.flags & fixed, before.flags & fixed);
        }
        // And back.
        patch_gtid(&mut patched, checksum, GtidHint { commit_id: first, flags: Some(before.flags) }).unwrap();
        prop_assert_eq!(patched, roomy);
    }

    /// Whatever stands there: the length stays, and nothing panics.
    #[test]
    fn hints_in_anything(body in vec(any::<u8>(), 0..60), commit_id: Option<u64>, flags: Option<u8>, kind in prop::sample::select(vec![162u8, 33, 34, 2])) {
        let f = mariadb(Checksum::Crc32);
        let raw = encode_event(&header(EventType(kind)), &Payload::Other(&body), &f);
        let event = Event::parse(&raw, Checksum::Crc32).unwrap();
        let mut roomy = normalise_gtid(&event).map_or_else(|_| raw.clone(), |r| r.into_owned());
        let before = roomy.clone();
        let clock = LogicalClock { last_committed: 3, sequence_number: 4 };
        let done = [
            patch_gtid(&mut roomy, Checksum::Crc32, GtidHint { commit_id, flags }).is_ok(),
            patch_clock(&mut roomy, Checksum::Crc32, clock).is_ok(),
        ];
        prop_assert_eq!(roomy.len(), before.len());
        prop_assert!(Event::parse(&roomy, Checksum::Crc32).is_ok());
        if done == [false, false] {
            prop_assert_eq!(roomy, before);
        }
    }

    #[test]
    fn clocks_in_place(number: u64, old: (i64, i64), new: (i64, i64), tail in vec(any::<u8>(), 0..6), checksum in checksums()) {
        let clock = |(last_committed, sequence_number)| LogicalClock { last_committed, sequence_number };
        let f = format("5.7.44", Some(checksum));
        let gtid = |c| MySqlGtid {
            flags: 1, source: [3; 16], number, clock: Some(clock(c)), commit: None, tail: &tail, anonymous: false,
        };
        let mut raw = event(EventType::MYSQL_GTID, &Payload::MySqlGtid(gtid(old)), &f);
        let expected = event(EventType::MYSQL_GTID, &Payload::MySqlGtid(gtid(new)), &f);
        patch_clock(&mut raw, checksum, clock(new)).unwrap();
        prop_assert_eq!(raw, expected);
    }

    #[test]
    fn other_places_and_checksums(text in vec(any::<u8>(), 0..60), at: u64, from in checksums(), to in checksums()) {
        let at = at >> 1;
        let mut raw = event(EventType::ANNOTATE_ROWS, &Payload::Annotate(&text), &mariadb(from));
        place(&mut raw, from, at).unwrap();
        let parsed = Event::parse(&raw, from).unwrap();
        prop_assert_eq!(parsed.header().end_pos, (at + raw.len() as u64) as u32);
        let other = with_checksum(&parsed, to).unwrap();
        let reparsed = Event::parse(&other, to).unwrap();
        prop_assert_eq!(reparsed.body(), &text[..]);
        prop_assert_eq!(reparsed.header().end_pos, parsed.header().end_pos);
        prop_assert_eq!(&*with_checksum(&reparsed, from).unwrap(), &raw[..]);
    }
}

#[test]
fn events_of_our_own() {
    for checksum in [Checksum::Off, Checksum::Crc32] {
        let f = mariadb(checksum);
        let nowhere = maker(checksum, Place::Nowhere);
        let raw = nowhere.rotate("bin.000042", 4);
        let (event, payload) = decode(&raw, &f);
        let rotate = Rotate {
            position: 4,
            file: b"bin.000042",
        };
        assert_eq!(payload, Payload::Rotate(rotate));
        let head = event.header();
        assert_eq!((head.timestamp, head.end_pos), (0, 0));
        assert_eq!((head.flags, head.server_id), (flags::ARTIFICIAL, 9));
        assert_eq!(raw.len(), 19 + 8 + 10 + checksum.size());

        let raw = maker(checksum, Place::At(1000)).rotate("bin.000043", 4);
        let (event, _) = decode(&raw, &f);
        assert_eq!(event.header().flags, 0);
        assert_eq!(event.header().end_pos as usize, 1000 + raw.len());

        let raw = nowhere.heartbeat("bin.000042", 12345).unwrap();
        let (event, payload) = decode(&raw, &f);
        let Payload::Heartbeat(heartbeat) = payload else {
            panic!("{payload:?}");
        };
        assert_eq!(
            (heartbeat.file, heartbeat.position),
            (&b"bin.000042"[..], 12345)
        );
        let head = event.header();
        assert_eq!((head.flags, head.timestamp, head.end_pos), (0, 0, 12345));
        assert!(nowhere.heartbeat("bin.000042", 1 << 32).is_none());
        assert!(nowhere.heartbeat("bin.000042", 0).is_none());

        let raw = nowhere.heartbeat_long("bin.000042", 1 << 40);
        let (event, payload) = decode(&raw, &f);
        let Payload::Heartbeat(heartbeat) = payload else {
            panic!("{payload:?}");
        };
        assert_eq!(
            (heartbeat.file, heartbeat.position),
            (&b"bin.000042"[..], 1 << 40)
        );
        assert_eq!(event.header().end_pos, 0);

        let raw = nowhere.heartbeat_v2("bin.000042", 1 << 40);
        let Payload::Heartbeat(heartbeat) = decode(&raw, &f).1 else {
            panic!("a heartbeat");
        };
        assert_eq!(
            (heartbeat.file, heartbeat.position),
            (&b"bin.000042"[..], 1 << 40)
        );

        let state: BinlogState = "0-1-5,0-2-7,3-1-1".parse().unwrap();
        let raw = maker(checksum, Place::At(256)).gtid_list(&GtidList::of(&state));
        let Payload::GtidList(list) = decode(&raw, &f).1 else {
            panic!("a list");
        };
        assert_eq!(list.state(), state);
        let empty = nowhere.gtid_list(&GtidList::default());
        assert_eq!(empty.len(), 19 + 6 + checksum.size());

        let raw = maker(checksum, Place::At(77)).stop();
        assert_eq!(decode(&raw, &f).1, Payload::Stop);

        // A file of another checksum than the one it was made from.
        for of in [Checksum::Off, Checksum::Crc32] {
            let raw = maker(checksum, Place::At(4)).format(&mariadb(of));
            let Payload::Format(made) = decode(&raw, &f).1 else {
                panic!("a format");
            };
            assert_eq!(*made, f);
        }
        let mut old = format("5.5.62", None);
        old.post_header_lens.truncate(27);
        let raw = maker(Checksum::Off, Place::At(4)).format(&old);
        assert_eq!(Format::decode(&raw).unwrap(), old);
        assert_eq!(raw.len(), 19 + 57 + 27);
    }
}

#[test]
fn formats_for_replicas() {
    let f = mariadb(Checksum::Crc32);
    let mut raw = format_event(&f);
    place(&mut raw, Checksum::Crc32, 4).unwrap();
    raw[17] |= flags::IN_USE as u8;
    let event = Event::parse(&raw, Checksum::Off).unwrap();
    let begun = format_for_replica(&event, true).unwrap();
    let parsed = Event::parse(&begun, Checksum::Off).unwrap();
    assert_eq!(parsed.header().flags, 0);
    assert_eq!(parsed.header().end_pos as usize, 4 + raw.len());
    assert_eq!(Format::decode(&begun).unwrap(), f);
    let middle = format_for_replica(&event, false).unwrap();
    let parsed = Event::parse(&middle, Checksum::Off).unwrap();
    assert_eq!(parsed.header().end_pos, 0);
    assert_eq!(
        Format::decode(&middle).unwrap(),
        Format {
            created: 0,
            ..f.clone()
        }
    );
    // For a replica that knows no checksums.
    let off = with_checksum(&event, Checksum::Off).unwrap();
    assert_eq!(Format::decode(&off).unwrap(), mariadb(Checksum::Off));
    assert_eq!(off.len(), raw.len());
    let mut old = format("5.5.62", None);
    old.post_header_lens.truncate(27);
    let raw = format_event(&old);
    let event = Event::parse(&raw, Checksum::Off).unwrap();
    assert_eq!(&*with_checksum(&event, Checksum::Off).unwrap(), &raw[..]);
    let error = with_checksum(&event, Checksum::Crc32).unwrap_err();
    assert!(error.to_string().contains("no checksums"), "{error}");
}

#[test]
fn room_is_needed() {
    let f = mariadb(Checksum::Crc32);
    let mut raw = written(gtid_flags::TRANSACTIONAL, None, None, None, &f);
    assert_eq!(raw.len(), 42);
    let before = raw.clone();
    let hint = GtidHint {
        commit_id: Some(1),
        flags: None,
    };
    let error = patch_gtid(&mut raw, Checksum::Crc32, hint).unwrap_err();
    assert!(error.to_string().contains("no room"), "{error}");
    assert_eq!(raw, before);
    let roomy = normalise_gtid(&Event::parse(&raw, Checksum::Crc32).unwrap())
        .unwrap()
        .into_owned();
    assert_eq!(roomy.len(), 44);

    // An event of a server that knows more than we do stays as it is.
    let extra = GtidExtra {
        flags: 64,
        ..GtidExtra::default()
    };
    let strange = written(0, None, None, Some(extra), &f);
    let event = Event::parse(&strange, Checksum::Crc32).unwrap();
    assert!(!has_room(&event).unwrap());
    assert_eq!(&*normalise_gtid(&event).unwrap(), &strange[..]);

    // One with a commit id keeps it, or gets another: none can be taken away.
    let mut strange = written(0, Some(5), None, Some(extra), &f);
    let event = Event::parse(&strange, Checksum::Crc32).unwrap();
    assert!(!has_room(&event).unwrap());
    assert_eq!(&*normalise_gtid(&event).unwrap(), &strange[..]);
    let hint = |commit_id| GtidHint {
        commit_id,
        flags: None,
    };
    let before = strange.clone();
    assert!(patch_gtid(&mut strange, Checksum::Crc32, hint(None)).is_err());
    assert_eq!(strange, before);
    patch_gtid(&mut strange, Checksum::Crc32, hint(Some(6))).unwrap();
    assert_eq!(gtid_in(&strange, &f).commit_id, Some(6));
}

/// Servers read 19 bytes without looking, so a shorter body is no GTID event,
/// whatever its flags would need.
#[test]
fn short_gtid_events_are_refused() {
    let f = mariadb(Checksum::Crc32);
    let hint = GtidHint {
        commit_id: None,
        flags: None,
    };
    for len in 0..19 {
        let body = &[0; 19][..len];
        let mut raw = encode_event(&header(EventType::GTID), &Payload::Other(body), &f);
        let event = Event::parse(&raw, Checksum::Crc32).unwrap();
        assert!(event.decode(&f).is_err(), "{len} bytes");
        assert!(has_room(&event).is_err() && normalise_gtid(&event).is_err());
        let before = raw.clone();
        assert!(patch_gtid(&mut raw, Checksum::Crc32, hint).is_err());
        assert_eq!(raw, before);
    }
}
