//! Replication events.

use dromon_binlog::hints::{
    Action, Catalog, Column, ForeignKey, Hints, KeyPart, Limits, TableName, TableSchema,
};
use dromon_binlog::{
    Checksum, Cut, Event, EventType, Format, Grouper, GtidEvent, GtidHint, GtidSet, Header,
    LogicalClock, Maker, Payload, Place, Query, TableMapParts, compress, cut_event, encode_event,
    format_for_replica, normalise_gtid, patch_clock, patch_gtid, version_bytes, with_checksum,
};

use super::Target;
use crate::bytes_in::Input;

/// A stream of events. The first byte, if odd: the rest are events with their
/// type, flags and the length of their body in front, and get a right header
/// and checksum; else the rest is a stream as it is. Its second bit: there are
/// checksums; its third: it is a connection.
pub const BINLOG: Target = Target {
    name: "binlog",
    run: binlog,
    seeds,
};

/// Longest event, and most raw bytes of a compressed one.
const MAX: u32 = 64 << 10;

fn format(checksum: Checksum) -> Format {
    let mut post_header_lens = vec![0; 171];
    post_header_lens[18..32].fill(8);
    Format {
        binlog_version: 4,
        server_version: version_bytes("10.11.19-MariaDB"),
        created: 0,
        post_header_lens,
        checksum: Some(checksum),
    }
}

fn header(kind: EventType, flags: u16) -> Header {
    Header {
        timestamp: 1,
        kind,
        server_id: 7,
        len: 0,
        end_pos: 0,
        flags,
    }
}

/// The format description, and what the input says as events.
fn sealed(mut input: Input<'_>, format: &Format) -> Vec<u8> {
    let own = Payload::Format(Box::new(format.clone()));
    let mut stream = encode_event(&header(EventType::FORMAT_DESCRIPTION, 0), &own, format);
    while !input.is_empty() {
        let (kind, flags) = (EventType(input.u8()), input.u16());
        let len = usize::from(input.u16());
        let body = Payload::Other(input.take(len));
        stream.extend(encode_event(&header(kind, flags), &body, format));
    }
    stream
}

fn binlog(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = input.u8();
    let checksum = match mode & 2 {
        0 => Checksum::Off,
        _ => Checksum::Crc32,
    };
    let stream = match mode & 1 {
        1 => sealed(input, &format(checksum)),
        _ => input.rest().to_vec(),
    };
    let mut grouper = match mode & 4 {
        0 => Grouper::of_file(),
        _ => Grouper::of_connection(),
    };
    let begin = grouper.at();
    let mut table = None;
    let catalog = catalog();
    let mut hints = Hints::new(LIMITS);
    loop {
        let at = grouper.at();
        let rest = &stream[(at - begin) as usize..];
        let Ok(Cut::Event(raw)) = cut_event(rest, at, MAX) else {
            break;
        };
        let Ok(seen) = grouper.event(raw) else { break };
        assert_eq!(grouper.at(), at + raw.len() as u64);
        assert!(grouper.settled() <= grouper.at());
        let format = grouper.format().cloned().unwrap_or_else(Format::unknown);
        if !hints.has_catalog() {
            hints.learn(catalog.clone());
        }
        if let Some(hint) = hints.event(&seen, &format) {
            if let Some(clock) = hint.clock {
                assert!((0..clock.sequence_number).contains(&clock.last_committed));
            }
            assert!(hint.barrier.is_none() || hint.commit_id.is_none());
        }
        one(&seen.event, &format, &mut table);
    }
}

/// Little, so that it runs out.
const LIMITS: Limits = Limits {
    history_keys: 20,
    table_keys: 4,
    transaction_keys: 16,
    tables: 3,
    bytes: MAX as usize,
    batch: 3,
    domains: 2,
};

/// Of the table that the seeds have: keys over columns of several types, and
/// over itself.
fn catalog() -> Catalog {
    let text = |name: &str| Some(format!("utf8mb4_{name}_ci"));
    let column = |name: char| Column {
        name: name.into(),
        kind: String::new(),
        collation: match name {
            'c' => text("general"),
            'i' => text("lithuanian"),
            _ => None,
        },
        generated: false,
    };
    let part = |column: &str, prefix| KeyPart {
        column: Some(column.into()),
        prefix,
    };
    let name = TableName::new("d", "t");
    let foreign = |column: &str, parent: &str| ForeignKey {
        columns: vec![column.into()],
        parent: name.clone(),
        parent_columns: vec![parent.into()],
        on_delete: Action::Refuse,
        on_update: Action::Change,
    };
    Catalog::new(vec![TableSchema {
        columns: ('a'..='i').map(column).collect(),
        unique: vec![
            vec![part("a", 0)],
            vec![part("b", 0), part("e", 0), part("f", 0)],
            vec![part("c", 1), part("g", 0), part("h", 0)],
            vec![part("d", 2)],
            vec![part("i", 0)],
        ],
        foreign: vec![foreign("g", "h"), foreign("a", "a")],
        opaque: false,
        name: name.clone(),
    }])
}

/// All that can be done with an event.
fn one<'a>(event: &Event<'a>, format: &Format, table: &mut Option<dromon_binlog::TableMap<'a>>) {
    let with = |checksum| Format {
        checksum: Some(checksum),
        ..format.clone()
    };
    for checksum in [Checksum::Off, Checksum::Crc32] {
        if let Ok(changed) = with_checksum(event, checksum) {
            Event::parse(&changed, checksum).expect("it has the checksum asked for");
        }
    }
    let _ = format_for_replica(event, false);
    let Ok(payload) = event.decode(format) else {
        return;
    };
    let own = with(event.checksum());
    let again = encode_event(event.header(), &payload, &own);
    let read = Event::parse(&again, event.checksum()).expect("it was written just now");
    let twice = read.decode(&own).expect("what was read can be read again");
    assert_eq!(
        encode_event(event.header(), &twice, &own),
        again,
        "{} says it differently",
        event.kind()
    );
    match payload {
        Payload::TableMap(map) => {
            if let Ok(columns) = map.columns() {
                let _ = map.metadata(&columns, format.flavour());
            }
            *table = Some(*map);
        }
        Payload::Rows(rows) => {
            let columns = table.as_ref().and_then(|map| map.columns().ok());
            if let (Some(columns), Ok(data)) = (columns, rows.data(MAX as usize))
                && let Ok(rows) = rows.rows(&data, &columns)
            {
                for row in rows.flatten() {
                    let images = row.before.iter().chain(&row.after);
                    for (cell, column) in images.flat_map(|image| image.iter().zip(&columns)) {
                        if let Some(Ok(value)) = cell.value(*column, true, MAX as usize) {
                            let _ = value.to_string();
                        }
                    }
                }
            }
        }
        Payload::Query(query) => {
            let _ = query.text(MAX as usize);
            let _ = query.status().count();
        }
        Payload::Gtid(gtid) => hints(event, &gtid, format),
        Payload::MySqlGtid(_) => {
            let clock = LogicalClock {
                last_committed: 1,
                sequence_number: 2,
            };
            let mut raw = event.raw().to_vec();
            if patch_clock(&mut raw, event.checksum(), clock).is_ok() {
                Event::parse(&raw, event.checksum()).expect("its checksum was mended");
            }
        }
        Payload::GtidList(list) => {
            let state = list.state();
            let text = state.to_string();
            assert_eq!(text.parse().as_ref(), Ok(&state));
        }
        Payload::PreviousGtids(set) => {
            let mut bytes = Vec::new();
            set.encode(&mut bytes);
            assert_eq!(GtidSet::decode(&bytes).as_ref(), Ok(&set));
            assert_eq!(set.to_string().parse().as_ref(), Ok(&set));
        }
        _ => {}
    }
}

/// A hint changes nothing but the hint, and can be taken back.
fn hints(event: &Event<'_>, before: &GtidEvent<'_>, format: &Format) {
    let roomy = normalise_gtid(event)
        .expect("it is a GTID event")
        .into_owned();
    let mut raw = roomy.clone();
    for commit_id in [Some(5), None, before.commit_id] {
        let hint = GtidHint {
            commit_id,
            flags: None,
        };
        if patch_gtid(&mut raw, event.checksum(), hint).is_err() {
            assert_eq!(raw.len(), roomy.len());
            return;
        }
        let read = Event::parse(&raw, event.checksum()).expect("its checksum was mended");
        let Ok(Payload::Gtid(after)) = read.decode(format) else {
            panic!("it is a GTID event still");
        };
        assert_eq!(after.commit_id, commit_id);
        assert_eq!(
            (after.gtid, after.xa, after.extra),
            (before.gtid, before.xa, before.extra)
        );
    }
    assert_eq!(raw, roomy);
}

/// Events as the first mode takes them.
fn framed(events: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, body) in events {
        out.push(*kind);
        out.extend([0, 0]);
        out.extend((body.len() as u16).to_le_bytes());
        out.extend(body);
    }
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let f = format(Checksum::Off);
    let body = |kind: u8, payload: &Payload<'_>| {
        let mut out = Vec::new();
        payload.encode(EventType(kind), &f, &mut out);
        (kind, out)
    };
    let gtid = |flags: u8, parts: &[u8]| {
        let mut out = vec![9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, flags];
        out.extend(parts);
        out.resize(out.len().max(19), 0);
        (162, out)
    };
    let table = TableMapParts {
        table_id: 1,
        database: b"d",
        table: b"t",
        types: &[3, 246, 15, 252, 18, 19, 254, 16, 140],
        meta: &[10, 2, 20, 0, 2, 6, 3, 247, 1, 1, 1, 2],
        nullable: &[0xff, 1],
        optional: &[
            1, 1, 0x80, 4, 18, 1, b'a', 1, b'b', 1, b'c', 1, b'd', 1, b'e', 1, b'f', 1, b'g', 1,
            b'h', 1, b'i', 8, 1, 0, 2, 1, 8,
        ],
    };
    let table = Payload::TableMap(Box::new(table.table_map().expect("its parts fit")));
    let image: Vec<u8> = [
        &[0u8, 0][..],
        &[1, 0, 0, 0],
        &[0x80, 0, 0, 1, 5],
        &[2, b'h', b'i'],
        &[3, 0, b'a', b'b', b'c'],
        &[0x99, 0xb2, 0x7b, 0x7e, 0xfa, 0, 0, 9],
        &[0x80, 0x10, 0x83, 0, 7],
        &[1],
        &[1, 1],
        &[2, 0, 0, b'x'],
    ]
    .concat();
    let rows = |kind: u8, images: usize, packed: bool| {
        let mut out = vec![1, 0, 0, 0, 0, 0, 1, 0, 9];
        (0..images).for_each(|_| out.extend([0xff, 1]));
        let data = image.repeat(images);
        out.extend(if packed { compress(&data) } else { data });
        (kind, out)
    };
    let query = |text: &[u8], kind: u8| {
        let stored = if kind == 165 {
            compress(text)
        } else {
            text.to_vec()
        };
        let query = Query {
            thread_id: 1,
            exec_seconds: 0,
            error: 0,
            status: &[
                0, 0, 0, 0, 1, 6, 3, b's', b't', b'd', 12, 1, b'd', 0, 130, 2,
            ],
            database: b"d",
            stored: &stored,
            compressed: kind == 165,
        };
        body(kind, &Payload::Query(query))
    };
    let transaction = framed(&[
        gtid(12, &[]),
        (160, b"insert into t".to_vec()),
        body(19, &table),
        rows(23, 1, false),
        rows(24, 2, false),
        rows(168, 1, true),
        body(16, &Payload::Xid(7)),
    ]);
    let statements = framed(&[
        gtid(41, &[]),
        query(b"create table t(a int)", 2),
        gtid(
            0x4e,
            &[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, b'x', b'y', 1, 255],
        ),
        query(b"XA START X'78',X'79',1", 165),
        (
            38,
            [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0][..], b"xy"].concat(),
        ),
        gtid(41, &[4, 8, 0, 0, 0, 0, 0, 0, 0]),
        query(b"alter table t add b int", 2),
    ]);
    let mut mysql = vec![0; 25];
    mysql.push(2);
    mysql.extend([1; 16]);
    mysql.extend([1, 2, 3, 4, 5, 6, 7, 100]);
    let mysql = framed(&[
        (33, mysql),
        query(b"BEGIN", 2),
        body(16, &Payload::Xid(7)),
        (
            35,
            [
                &[1, 0, 0, 0, 0, 0, 0, 0][..],
                &[7; 16],
                &[1, 0, 0, 0, 0, 0, 0, 0],
                &[1, 0, 0, 0, 0, 0, 0, 0],
                &[2, 0, 0, 0, 0, 0, 0, 0],
            ]
            .concat(),
        ),
        (41, vec![1, 1, b'f', 2, 1, 4, 0]),
    ]);
    let files = framed(&[
        (163, [&[1u8, 0, 0, 0][..], &[1; 16]].concat()),
        (161, vec![1, 0, 0, 0, b'f']),
        (27, b"file".to_vec()),
        (4, b"\x04\0\0\0\0\0\0\0file".to_vec()),
        (164, vec![1; 17]),
    ]);
    let maker = Maker {
        server_id: 1,
        timestamp: 0,
        checksum: Checksum::Crc32,
        place: Place::Nowhere,
    };
    let mut plain = vec![4];
    plain.extend(maker.rotate("file", 4));
    plain.extend(maker.format(&format(Checksum::Crc32)));
    plain.extend(maker.stop());
    let mut all = vec![plain];
    for (n, framed) in [transaction, statements, mysql, files].iter().enumerate() {
        for mode in [1, 3] {
            all.push([&[mode | (n as u8 & 1) << 2], &framed[..]].concat());
        }
    }
    all
}
