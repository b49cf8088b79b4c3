//! What this crate writes, read by another library (mysql_common), which reads
//! MySQL's formats. MariaDB's own events it does not know.

mod support;

use dromon_binlog::{
    Checksum, CommitInfo, EventType, GtidSet, LogicalClock, Maker, MySqlGtid, Payload, Place,
    TableMapParts, encode_event, patch_clock, with_checksum,
};
use mysql_common::binlog::consts::{BinlogChecksumAlg, BinlogVersion};
use mysql_common::binlog::events::{EventData, OptionalMetadataField, RowsEventData};
use mysql_common::binlog::{BinlogFile, EventStreamReader};
use mysql_common::packets::GnoInterval;
use proptest::prelude::*;
use support::{event, format, format_event, header, mariadb, query};

type Read = mysql_common::binlog::events::Event;

/// Reads a file of these events, verifying checksums.
fn read(events: &[Vec<u8>]) -> Vec<Read> {
    let mut file = dromon_binlog::FILE_MAGIC.to_vec();
    events.iter().for_each(|raw| file.extend(raw));
    BinlogFile::new(BinlogVersion::Version4, &file[..])
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

/// The first event behind a format description of MySQL 8.
fn read_one(raw: Vec<u8>, f: &dromon_binlog::Format) -> Read {
    read(&[format_event(f), raw]).remove(1)
}

fn mysql(checksum: Checksum) -> dromon_binlog::Format {
    let mut f = format("8.0.36", Some(checksum));
    f.post_header_lens.truncate(41);
    f
}

fn checksums() -> impl Strategy<Value = Checksum> {
    prop_oneof![Just(Checksum::Off), Just(Checksum::Crc32)]
}

proptest! {
    /// The hint for replicas of MySQL.
    #[test]
    fn logical_clocks(
        source: [u8; 16], number in 1u64..1 << 62, last in 0i64..1 << 62, own in 1i64..1 << 62,
        commit in proptest::option::of((0u64..1 << 55, proptest::option::of(0u64..1 << 55), 0u64..1 << 40)),
        checksum in checksums()
    ) {
        let f = mysql(checksum);
        let gtid = MySqlGtid {
            flags: 0, source, number,
            clock: Some(LogicalClock { last_committed: 1, sequence_number: 2 }),
            commit: commit.map(|(time, original_time, length)| CommitInfo {
                time, original_time, length, server_version: Some(80036), original_version: None,
            }),
            tail: &[], anonymous: false,
        };
        let mut raw = event(EventType::MYSQL_GTID, &Payload::MySqlGtid(gtid), &f);
        patch_clock(&mut raw, checksum, LogicalClock { last_committed: last, sequence_number: own }).unwrap();
        let read = read_one(raw, &f);
        let Some(EventData::GtidEvent(found)) = read.read_data().unwrap() else { panic!("{read:?}") };
        prop_assert_eq!(found.sid(), source);
        prop_assert_eq!(found.gno(), number);
        prop_assert_eq!(found.last_committed() as i64, last);
        prop_assert_eq!(found.sequence_number() as i64, own);
        if let Some((time, original, length)) = commit {
            prop_assert_eq!(found.immediate_commit_timestamp(), time);
            if let Some(original) = original {
                prop_assert_eq!(found.original_commit_timestamp(), original);
            }
            prop_assert_eq!(found.tx_length(), length);
        }
    }

    #[test]
    fn checksums_and_formats(text in "[a-z ]{1,80}", checksum in checksums()) {
        let f = mysql(checksum);
        let raw = event(EventType::QUERY, &Payload::Query(query(&text)), &f);
        let events = read(&[format_event(&f), raw]);
        let Some(EventData::FormatDescriptionEvent(found)) = events[0].read_data().unwrap() else { panic!("a format") };
        let version = found.server_version().into_owned();
        prop_assert_eq!(version.trim_end_matches('\0'), "8.0.36");
        let Some(EventData::QueryEvent(found)) = events[1].read_data().unwrap() else { panic!("a query") };
        prop_assert_eq!(found.query(), text.as_str());
        prop_assert_eq!(found.schema(), "t");
        let stored = events[1].checksum().map(u32::from_le_bytes);
        let theirs = events[1].calc_checksum(BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_CRC32);
        prop_assert_eq!(stored, (checksum == Checksum::Crc32).then_some(theirs));
    }
}

#[test]
fn rotates_and_changed_checksums() {
    for checksum in [Checksum::Off, Checksum::Crc32] {
        let other = match checksum {
            Checksum::Off => Checksum::Crc32,
            Checksum::Crc32 => Checksum::Off,
        };
        let f = mariadb(checksum);
        let maker = Maker {
            server_id: 3,
            timestamp: 0,
            checksum: other,
            place: Place::Nowhere,
        };
        // Made with one checksum, sent with another.
        let rotate = maker.rotate("bin.000077", 4);
        let parsed = dromon_binlog::Event::parse(&rotate, other).unwrap();
        let sent = with_checksum(&parsed, checksum).unwrap().into_owned();
        let read = read_one(sent, &f);
        let Some(EventData::RotateEvent(found)) = read.read_data().unwrap() else {
            panic!("a rotate");
        };
        assert_eq!(found.name(), "bin.000077");
        assert_eq!(found.position(), 4);
    }
}

#[test]
fn sets_of_gtids() {
    let f = mysql(Checksum::Crc32);
    let mut set = GtidSet::new();
    set.add_interval([2; 16], 3, 1000);
    set.add_interval([1; 16], 1, 5);
    set.add([1; 16], 7);
    assert_eq!(
        set.to_string(),
        "01010101-0101-0101-0101-010101010101:1-4:7,02020202-0202-0202-0202-020202020202:3-999"
    );
    let raw = event(
        EventType::PREVIOUS_GTIDS,
        &Payload::PreviousGtids(set.clone()),
        &f,
    );
    let made = Maker {
        server_id: 1,
        timestamp: 0,
        checksum: Checksum::Crc32,
        place: Place::Nowhere,
    }
    .previous_gtids(&set);
    let made = dromon_binlog::Event::parse(&made, Checksum::Crc32).unwrap();
    assert_eq!(made.decode(&f), Ok(Payload::PreviousGtids(set.clone())));
    let read = read_one(raw, &f);
    let Some(EventData::PreviousGtidsEvent(found)) = read.read_data().unwrap() else {
        panic!("a set");
    };
    let theirs: Vec<_> = found
        .sids()
        .iter()
        .map(|sid| (sid.uuid(), format!("{:?}", sid.intervals())))
        .collect();
    let ours: Vec<_> = set
        .iter()
        .map(|(source, intervals)| {
            let intervals: Vec<_> = intervals
                .iter()
                .map(|(begin, end)| GnoInterval::new(*begin, *end))
                .collect();
            (*source, format!("{intervals:?}"))
        })
        .collect();
    assert_eq!(theirs, ours);
}

#[test]
fn tables_and_rows() {
    let f = mysql(Checksum::Crc32);
    // id INT UNSIGNED, name VARCHAR(20), e ENUM; names, signs, key (name(5), id).
    let optional = [
        &[1, 1, 0x80][..],
        &[4, 10, 2, b'i', b'd', 4, b'n', b'a', b'm', b'e', 1, b'e'],
        &[9, 4, 1, 5, 0, 0],
        &[6, 5, 2, 1, b'x', 1, b'y'],
        &[2, 1, 45],
    ]
    .concat();
    let map = TableMapParts {
        table_id: 300,
        database: b"shop",
        table: b"items",
        types: &[3, 15, 254],
        meta: &[20, 0, 247, 1],
        nullable: &[6],
        optional: &optional,
    }
    .table_map()
    .unwrap();
    let columns = map.columns().unwrap();
    let ours = map.metadata(&columns, f.flavour()).unwrap();
    assert_eq!(ours.unsigned, Some(vec![true, false, false]));
    assert_eq!(ours.collations, Some(vec![None, Some(45), None]));
    assert_eq!(ours.enum_values, Some(vec![vec![&b"x"[..], b"y"]]));
    let names = ours.names.unwrap();
    let key = ours.primary_key.unwrap();
    let key: Vec<_> = key.iter().map(|k| (k.column as u64, k.prefix)).collect();
    assert_eq!(key, [(1, 5), (0, 0)]);

    let mut body = vec![44, 1, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0x07, 0x07];
    body.extend([0, 7, 0, 0, 0, 2, b'a', b'b', 1]);
    body.extend([6, 0xff, 0xff, 0xff, 0xff]);
    let update = encode_event(
        &header(EventType::UPDATE_ROWS_V2),
        &Payload::Other(&body),
        &f,
    );
    let table = event(EventType::TABLE_MAP, &Payload::TableMap(Box::new(map)), &f);

    let mut file = dromon_binlog::FILE_MAGIC.to_vec();
    for raw in [&format_event(&f), &table, &update] {
        file.extend(raw);
    }
    let mut theirs = EventStreamReader::new(BinlogVersion::Version4);
    let mut input = &file[4..];
    let first = theirs.read(&mut input).unwrap().unwrap();
    let data = first.read_data().unwrap();
    assert!(matches!(data, Some(EventData::FormatDescriptionEvent(_))));
    let second = theirs.read(&mut input).unwrap().unwrap();
    let Some(EventData::TableMapEvent(found)) = second.read_data().unwrap() else {
        panic!("a table");
    };
    assert_eq!(found.table_id(), 300);
    assert_eq!(found.columns_count(), 3);
    let mut seen = 0;
    for field in found.iter_optional_meta() {
        match field.unwrap() {
            OptionalMetadataField::ColumnName(list) => {
                let theirs: Vec<_> = list
                    .iter_names()
                    .map(|n| n.unwrap().name_raw().to_vec())
                    .collect();
                assert_eq!(theirs, names);
                seen += 1;
            }
            OptionalMetadataField::PrimaryKeyWithPrefix(theirs) => {
                let theirs: Vec<_> = theirs
                    .iter_keys()
                    .map(|k| k.unwrap())
                    .map(|k| (k.column_index(), k.prefix_length()))
                    .collect();
                assert_eq!(theirs, key);
                seen += 1;
            }
            _ => {}
        }
    }
    assert_eq!(seen, 2);
    let third = theirs.read(&mut input).unwrap().unwrap();
    let Some(EventData::RowsEvent(RowsEventData::UpdateRowsEvent(rows))) =
        third.read_data().unwrap()
    else {
        panic!("an update");
    };
    let rows: Vec<_> = rows.rows(&found).collect::<Result<_, _>>().unwrap();
    let shown = format!("{rows:?}");
    assert!(shown.contains("4294967295"), "{shown}");
    assert_eq!(rows.len(), 1);
}
