//! Events of every kind round trip, and bytes of any kind do no harm.

mod support;

use dromon_binlog::{
    Checksum, CommitInfo, Duplicates, Event, EventType, FileBlock, Format, Gtid, GtidEvent,
    GtidExtra, GtidList, GtidSet, LoadQuery, LogicalClock, MySqlGtid, Payload, Query, Rotate,
    StartEncryption, TableMapParts, XaName, XaPrepare, compress, encode_event, gtid_flags,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{format, header, mariadb};

/// Those that have a reader.
const KINDS: [u8; 38] = [
    2, 3, 4, 9, 11, 15, 16, 17, 18, 19, 23, 24, 25, 27, 29, 30, 31, 32, 33, 34, 35, 38, 41, 160,
    161, 162, 163, 164, 165, 166, 167, 168, 169, 170, 171, 1, 40, 200,
];

fn checksums() -> impl Strategy<Value = Checksum> {
    prop_oneof![Just(Checksum::Off), Just(Checksum::Crc32)]
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..max)
}

/// Encodes, parses, decodes and compares; then encodes again.
fn round_trip(
    kind: EventType,
    payload: &Payload<'_>,
    format: &Format,
) -> Result<(), TestCaseError> {
    let raw = encode_event(&header(kind), payload, format);
    let event = Event::parse(&raw, format.checksum()).unwrap();
    prop_assert_eq!(event.kind(), kind);
    prop_assert_eq!(event.header().len as usize, raw.len());
    let decoded = event.decode(format).unwrap();
    // Compared as text: what is kept about places in the event may differ.
    prop_assert_eq!(&encode_event(event.header(), &decoded, format), &raw);
    let places = ["meta_at", "optional_at", "stored_at"];
    let shown = |p: &Payload<'_>| {
        let text = format!("{p:#?}");
        text.lines()
            .filter(|l| !places.iter().any(|place| l.contains(place)))
            .collect::<String>()
    };
    prop_assert_eq!(shown(&decoded), shown(payload));
    Ok(())
}

fn bits(n: usize) -> usize {
    n.div_ceil(8)
}

proptest! {
    #[test]
    fn gtids(
        domain: u32, seqno: u64, flags: u8, commit_id: Option<u64>,
        xa in proptest::option::of((any::<u32>(), bytes(65), bytes(65))),
        extra in proptest::option::of((1u8..32, any::<u8>(), any::<u64>(), any::<u64>())),
        room in 0usize..12, checksum in checksums()
    ) {
        let mut flags = flags & !(gtid_flags::GROUP_COMMIT_ID | gtid_flags::PREPARED_XA | gtid_flags::COMPLETED_XA);
        if commit_id.is_some() {
            flags |= gtid_flags::GROUP_COMMIT_ID;
        }
        let xa = xa.as_ref().map(|(format, gtrid, bqual)| XaName { format: *format, gtrid, bqual });
        if xa.is_some() {
            flags |= if seqno % 2 == 0 { gtid_flags::PREPARED_XA } else { gtid_flags::COMPLETED_XA };
        }
        let extra = extra.map(|(flags, engines, alter_begin, thread_id)| GtidExtra {
            flags,
            engines: if flags & 1 != 0 { engines } else { 0 },
            alter_begin: if flags & 12 != 0 { alter_begin } else { 0 },
            thread_id: if flags & 16 != 0 { thread_id } else { 0 },
        });
        let zeros = [0; 20];
        let mut parts = 13 + commit_id.map_or(0, |_| 8);
        parts += xa.map_or(0, |x| 6 + x.gtrid.len() + x.bqual.len());
        parts += extra.map_or(0, |e| {
            1 + usize::from(e.flags & 1 != 0) + 8 * usize::from(e.flags & 12 != 0) + 8 * usize::from(e.flags & 16 != 0)
        });
        let tail = &zeros[..room.max(19usize.saturating_sub(parts))];
        let event = GtidEvent {
            gtid: Gtid { domain, server: 7, seqno },
            flags, commit_id, xa, extra, tail,
        };
        round_trip(EventType::GTID, &Payload::Gtid(event), &mariadb(checksum))?;
    }

    #[test]
    fn statements(
        thread_id: u32, exec_seconds: u32, error: u16, status in bytes(300),
        database in bytes(250), text in bytes(400), checksum in checksums()
    ) {
        let query = Query {
            thread_id, exec_seconds, error, status: &status, database: &database,
            stored: &text, compressed: false,
        };
        round_trip(EventType::QUERY, &Payload::Query(query), &mariadb(checksum))?;
        prop_assert_eq!(&query.text(1 << 20).unwrap()[..], &text[..]);
        let packed = compress(&text);
        let query = Query { stored: &packed, compressed: true, ..query };
        round_trip(EventType::QUERY_COMPRESSED, &Payload::Query(query), &mariadb(checksum))?;
        prop_assert_eq!(&query.text(1 << 20).unwrap()[..], &text[..]);
        // Any status is read to its end, or to an error.
        prop_assert!(query.status().count() <= status.len());
    }

    #[test]
    fn files_and_their_statements(
        file: u32, block in bytes(300), text in bytes(200), places in any::<(usize, usize)>(),
        duplicates in prop::sample::select(vec![Duplicates::Error, Duplicates::Ignore, Duplicates::Replace]),
        error: u16, status in bytes(100), database in bytes(60), checksum in checksums(), wrong in 3u8..
    ) {
        let format = mariadb(checksum);
        for kind in [EventType::BEGIN_LOAD_QUERY, EventType::APPEND_BLOCK] {
            round_trip(kind, &Payload::FileBlock(FileBlock { file, bytes: &block }), &format)?;
        }
        round_trip(EventType::DELETE_FILE, &Payload::DeleteFile(file), &format)?;
        let query = Query {
            thread_id: file, exec_seconds: 3, error, status: &status, database: &database,
            stored: &text, compressed: false,
        };
        let (a, b) = (places.0 % (text.len() + 1), places.1 % (text.len() + 1));
        let (begin, end) = (a.min(b), a.max(b));
        let load = LoadQuery {
            query, file, name_begin: begin as u32, name_end: end as u32, duplicates,
        };
        prop_assert_eq!(load.parts(), [&text[..begin], &text[begin..end], &text[end..]]);
        let kind = EventType::EXECUTE_LOAD_QUERY;
        round_trip(kind, &Payload::LoadQuery(load), &format)?;
        prop_assert!(load.status().flatten().eq(query.status().flatten()));
        // What no statement has there is an error that says where.
        let raw = encode_event(&header(kind), &Payload::LoadQuery(load), &mariadb(Checksum::Off));
        for (at, value) in [(17, end + 1), (21, text.len() + 1), (25, usize::from(wrong))] {
            let mut raw = raw.clone();
            let bytes = (value as u32).to_le_bytes();
            let len = if at == 25 { 1 } else { 4 };
            raw[19 + at..19 + at + len].copy_from_slice(&bytes[..len]);
            let event = Event::parse(&raw, Checksum::Off).unwrap();
            prop_assert_eq!(event.decode(&format).unwrap_err().offset, 19 + at);
        }
    }

    #[test]
    fn lists_and_files(
        gtids in vec((any::<u32>(), any::<u32>(), any::<u64>()), 0..20), flag in 0u32..16,
        position: u64, file in bytes(40), number: u64, key_version: u32, nonce: [u8; 12],
        checksum in checksums()
    ) {
        let format = mariadb(checksum);
        let gtids = gtids.into_iter().map(|(domain, server, seqno)| Gtid { domain, server, seqno });
        let list = GtidList { flags: flag << 28, gtids: gtids.collect() };
        round_trip(EventType::GTID_LIST, &Payload::GtidList(list), &format)?;
        let rotate = Rotate { position, file: &file };
        round_trip(EventType::ROTATE, &Payload::Rotate(rotate), &format)?;
        round_trip(EventType::XID, &Payload::Xid(number), &format)?;
        round_trip(EventType::STOP, &Payload::Stop, &format)?;
        round_trip(EventType::ANNOTATE_ROWS, &Payload::Annotate(&file), &format)?;
        round_trip(EventType::ROWS_QUERY, &Payload::Annotate(&file), &format)?;
        let start = StartEncryption { scheme: 1, key_version, nonce };
        round_trip(EventType::START_ENCRYPTION, &Payload::StartEncryption(start), &format)?;
        let name = XaName { format: key_version, gtrid: &file, bqual: &nonce };
        let prepare = XaPrepare { name, one_phase: flag % 2 == 0 };
        round_trip(EventType::XA_PREPARE, &Payload::XaPrepare(prepare), &format)?;
    }

    #[test]
    fn gtids_of_mysql(
        flags: u8, source: [u8; 16], number: u64, anonymous: bool,
        clock in proptest::option::of(any::<(i64, i64)>()),
        commit in proptest::option::of((0u64..1 << 55, proptest::option::of(0u64..1 << 56), any::<u64>(), proptest::option::of(0u32..1 << 31), any::<u32>())),
        ticket: u64, checksum in checksums(),
        sets in vec((any::<[u8; 16]>(), vec((0u64..1000, 1u64..1000), 0..5)), 0..5)
    ) {
        let clock = clock.map(|(last_committed, sequence_number)| LogicalClock { last_committed, sequence_number });
        let commit = commit.filter(|_| clock.is_some()).map(|(time, original_time, length, version, original)| CommitInfo {
            time, original_time, length,
            server_version: version,
            original_version: version.filter(|v| v % 2 == 0).map(|_| original),
        });
        let ticket = ticket.to_le_bytes();
        let tail: &[u8] = if commit.is_some_and(|c| c.server_version.is_some()) { &ticket } else { &[] };
        let gtid = MySqlGtid { flags, source, number, clock, commit, tail, anonymous };
        let kind = if anonymous { EventType::ANONYMOUS_GTID } else { EventType::MYSQL_GTID };
        let mysql = format("8.0.36", Some(checksum));
        round_trip(kind, &Payload::MySqlGtid(gtid), &mysql)?;
        let mut set = GtidSet::new();
        for (source, intervals) in sets {
            for (begin, len) in intervals {
                set.add_interval(source, begin, begin + len);
            }
        }
        round_trip(EventType::PREVIOUS_GTIDS, &Payload::PreviousGtids(set), &mysql)?;
    }

    #[test]
    fn formats(
        maria: bool, version in (0u32..13, 0u32..13, 0u32..13), created: u32, lens in bytes(180),
        checksum in checksums(), change in 1u8.., at: usize
    ) {
        let (major, minor, patch) = version;
        let suffix = if maria { "-MariaDB-log" } else { "-log" };
        let knows = version >= if maria { (5, 3, 0) } else { (5, 6, 1) };
        let mut format = format(&format!("{major}.{minor}.{patch}{suffix}"), knows.then_some(checksum));
        format.created = created;
        format.post_header_lens = lens;
        let write = |format: &Format| {
            let payload = Payload::Format(Box::new(format.clone()));
            encode_event(&header(EventType::FORMAT_DESCRIPTION), &payload, format)
        };
        let mut raw = write(&format);
        // A version too old for checksums knows few types.
        if !knows && format.post_header_lens.len() > 35 {
            prop_assert!(Format::decode(&raw).is_err());
            format.post_header_lens.truncate(35);
            raw = write(&format);
        }
        prop_assert_eq!(Format::decode(&raw).unwrap(), format.clone());
        let event = Event::parse(&raw, Checksum::Off).unwrap();
        let own = if knows { Checksum::Crc32 } else { Checksum::Off };
        prop_assert_eq!(event.checksum(), own);
        prop_assert_eq!(event.decode(&format), Ok(Payload::Format(Box::new(format.clone()))));
        prop_assert_eq!(Event::parse_sent(&raw, Checksum::Off), Ok(event));
        // Whether the file is open does not count.
        raw[17] ^= 1;
        prop_assert_eq!(Format::decode(&raw).unwrap(), format.clone());
        raw[17] ^= 1;
        // All else does, where there is a checksum, and with so many types
        // that no changed version makes a server of before checksums of it.
        if knows && format.post_header_lens.len() > 35 {
            let at = at % raw.len();
            raw[at] ^= change;
            let counts = at != 17 || change != 1;
            prop_assert_eq!(Format::decode(&raw).is_err(), counts);
            prop_assert_eq!(Event::parse(&raw, Checksum::Off).is_err(), counts && at != 4);
        }
    }

    #[test]
    fn tables_and_rows(
        table_id in 0u64..1 << 48, database in bytes(100), table in bytes(100), types in bytes(300),
        meta in bytes(300), optional in bytes(100), stored in bytes(100), which in 0usize..12,
        flags: u16, extra in bytes(20), checksum in checksums(), seed in bytes(80)
    ) {
        let format = mariadb(checksum);
        let nullable: Vec<u8> = seed.iter().cycle().copied().chain([0; 80]).take(bits(types.len())).collect();
        prop_assume!(nullable.len() == bits(types.len()));
        let parts = TableMapParts {
            table_id, database: &database, table: &table, types: &types, meta: &meta,
            nullable: &nullable, optional: &optional,
        };
        let map = parts.table_map().unwrap();
        round_trip(EventType::TABLE_MAP, &Payload::TableMap(Box::new(map)), &format)?;
        // Nonsense in it is an error or a value, not a panic.
        if let Ok(columns) = map.columns() {
            let _ = map.metadata(&columns, format.flavour());
        }
        let kind = EventType([23, 24, 25, 30, 31, 32, 166, 167, 168, 169, 170, 171][which]);
        let mut body = table_id.to_le_bytes()[..6].to_vec();
        body.extend(flags.to_le_bytes());
        if matches!(kind.0, 30..=32 | 169..=171) {
            body.extend((extra.len() as u16 + 2).to_le_bytes());
            body.extend(&extra);
        }
        let width = types.len().min(250);
        body.push(width as u8);
        let images = if matches!(kind.0, 24 | 31 | 167 | 170) { 2 } else { 1 };
        for _ in 0..images {
            body.extend(&nullable[..bits(width)]);
        }
        body.extend(&stored);
        let raw = encode_event(&header(kind), &Payload::Other(&body), &format);
        let event = Event::parse(&raw, checksum).unwrap();
        let payload = event.decode(&format).unwrap();
        prop_assert_eq!(&encode_event(event.header(), &payload, &format), &raw);
        let Payload::Rows(rows) = payload else { panic!("it carries rows") };
        prop_assert_eq!((rows.table_id, rows.flags, rows.width), (table_id, flags, width));
        prop_assert_eq!(rows.stored, &stored[..]);
    }

    /// What can be read can be written, and is then read alike.
    #[test]
    fn any_body(kind in prop::sample::select(&KINDS[..]), body in bytes(120), checksum in checksums(), lead in 0u8..4) {
        // Small numbers in front reach further into most formats.
        let mut body = body;
        body.iter_mut().take(usize::from(lead) * 4).for_each(|b| *b %= 4);
        let kind = EventType(kind);
        let format = mariadb(checksum);
        let raw = encode_event(&header(kind), &Payload::Other(&body), &format);
        let Ok(event) = Event::parse(&raw, checksum) else {
            prop_assert_eq!(kind, EventType::FORMAT_DESCRIPTION);
            return Ok(());
        };
        if let Ok(payload) = event.decode(&format) {
            let again = encode_event(event.header(), &payload, &format);
            let event = Event::parse(&again, checksum).unwrap();
            let payload = event.decode(&format).unwrap();
            prop_assert_eq!(encode_event(event.header(), &payload, &format), again);
        }
    }

    #[test]
    fn any_bytes(raw in bytes(80), checksum in checksums()) {
        // The chance that length and checksum fit is none.
        prop_assert!(Event::parse(&raw, Checksum::Crc32).is_err());
        let mut raw = raw;
        if raw.len() < 19 {
            prop_assert!(Event::parse_unverified(&raw, checksum).is_err());
            return Ok(());
        }
        let len = raw.len() as u32;
        raw[9..13].copy_from_slice(&len.to_le_bytes());
        let Ok(event) = Event::parse_unverified(&raw, checksum) else {
            let short = len < 23 && checksum == Checksum::Crc32;
            prop_assert!(short || raw[4] == 15);
            return Ok(());
        };
        prop_assert_eq!(event.body().len(), raw.len() - 19 - event.checksum().size());
        prop_assert_eq!(Event::parse(&raw, checksum).is_ok(), event.checksum() == Checksum::Off);
        if let Ok(payload) = event.decode(&mariadb(checksum)) {
            // What can be read can be written, no shorter than it was read.
            let own = mariadb(event.checksum());
            let again = encode_event(event.header(), &payload, &own);
            let read = Event::parse(&again, event.checksum()).unwrap();
            prop_assert_eq!(read.header().kind, event.kind());
            prop_assert!(read.decode(&own).is_ok());
        }
    }

    /// A checksum finds every changed byte, wherever it is.
    #[test]
    fn damage(text in bytes(60), at: usize, change in 1u8.., cut in 1usize..30) {
        let format = mariadb(Checksum::Crc32);
        let mut raw = encode_event(&header(EventType::ANNOTATE_ROWS), &Payload::Annotate(&text), &format);
        let at = at % raw.len();
        raw[at] ^= change;
        prop_assert!(Event::parse(&raw, Checksum::Crc32).is_err());
        raw[at] ^= change;
        prop_assert!(Event::parse(&raw, Checksum::Crc32).is_ok());
        prop_assert!(Event::parse(&raw[..raw.len().saturating_sub(cut)], Checksum::Crc32).is_err());
    }
}
