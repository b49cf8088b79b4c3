//! Events that MariaDB 10.11.19 wrote or sent, and one from the documentation
//! of its protocol: what they say, and that they can be written again alike.

mod support;

use dromon_binlog::{
    Cell, Checksum, ColumnType, Duplicates, Event, EventType, Format, Gtid, GtidHint, KeyColumn,
    Payload, StatusVar, Value, encode_event, gtid_flags, normalise_gtid, patch_gtid,
};
use support::{hex, mariadb};

const GTID_PLAIN: &str =
    "6825036ba2070000002a000000cd0100000800080400000000000003000000290000000000009559719b";
const GTID_COMMIT_ID: &str =
    "2c2b036ba2070000002c000000cf0100000800fc05000000000000030000000e400c00000000000014ed3e11";
const GTID_XA: &str = "2c2b036ba207000000360000003514000008001006000000000000030000004e5c0c00000000\
    0000010000000200673201ff49dfe745";
const GTID_ALTER: &str =
    "6c25036ba2070000002d0000007ea1030008004604000000000000030000002904450400000000000089aea10a";
const XA_PREPARE: &str =
    "2c2b036b260700000026000000481500000000000100000002000000000000006732ae4d39bd";
const XID_WITHOUT_CHECKSUM: &str = "9525036b10070000001b0000001207000000009b0a000000000000";
const GTID_LIST: &str = "6825036ba3070000005b0000005b01000000000400000009000000070000000a0000000000\
    000000000000070000000a000000000000000300000063000000ef0300000000000003000000070000000704000000\
    00000073c48359";
/// From the documentation's page on GTID_LIST_EVENT.
const GTID_LIST_DOCUMENTED: &str = "a4859e59a38c2700002b000000240100000000 01000000 00000000\
    8c270000 000e000000000000 a8f0d8b6";
const ROTATE_ARTIFICIAL: &str =
    "0000000004070000002800000000000000200004000000000000006d622e3030303036319253d511";
const HEARTBEAT: &str = "000000001b07000000200000008702000000006d622e30303030363155f86418";
/// id, id2 INT; g, p, l geometries; v VARCHAR(200) COMPRESSED; b BLOB
/// COMPRESSED; gen INT; name VARCHAR(30) in latin1_german2_ci; gv INT. Key: id.
const TABLE: &str = "6a25036b13070000006f000000f838010000001002000000000100017400046d697363000a0303\
    ffffff8d8c030f0308040404c900021e00fe0301010002053f0308051f0703000102041d0269640369643201670170\
    016c017601620367656e046e616d650267760801003941a51a";
/// Of a table of 16 numbers: four rows.
const WRITE_PACKED: &str = "8225036ba6070000006d000000600600000000650200000000010010ffff81ab789c458\
    c010ec030080261dbbfedcbcbc0b59d317089204000435ec5a36d716ceea1673370f95650018a58dbb002b5eafdfef0\
    d4ddf024e8674c9c5f897f59a74427c6e2178aaf425587be424a";
const QUERY_PACKED: &str = "8425036ba507000000a200000064180000000053000000000000000100002300000000\
    0001010000205400000000060373746404210021000800811d0a00000000000074008167789c25ca310ec0200c43d1\
    ab780489a1432f94960ca881a2900eb97d416cf6d3bf95c9184697305ec9562a8f50324a33742d95d4f1b02764e459\
    26d881154d986bd17e36b60fa3dad13e91048733693863fc016abd236f08e8c30c";
/// The first and only block of a file.
const FILE_BLOCK: &str =
    "fa90066b110100000027000000181a14000000030000003109780a3109790a32097a0ab0232c69";
/// Of another file, with REPLACE, IGNORE 3 LINES and SET.
const LOAD_REPLACE: &str = "\
    f990066b120100000012010000a8191400000005000000010000000100001a000200000009000000350000000200\
    0000000101000020540000000006037374640421002100080064004c4f4144204441544120494e46494c4520272f\
    746d702f622f6c6f61642d7372762f612e74787427205245504c41434520494e544f205441424c45206074602046\
    49454c4453205445524d494e4154454420425920275c742720454e434c4f53454420425920272720455343415045\
    4420425920275c5c27204c494e4553205445524d494e4154454420425920275c6e272049474e4f52452033204c49\
    4e4553202028606964602c20406078602920534554206076603d636f6e6361742840782c2721272975bd6aa0";
const DELETE_FILE: &str = "2e92066b0b010000001b0000000441140000001d000000cc989848";

/// Verified, decoded, written again.
fn read<'a>(raw: &'a [u8], format: &Format) -> (Event<'a>, Payload<'a>) {
    let event = Event::parse(raw, format.checksum()).unwrap();
    let payload = event.decode(format).unwrap();
    assert_eq!(encode_event(event.header(), &payload, format), raw);
    (event, payload)
}

fn crc() -> Format {
    mariadb(Checksum::Crc32)
}

#[test]
fn gtids() {
    let plain = hex(GTID_PLAIN);
    let (event, payload) = read(&plain, &crc());
    assert_eq!(event.header().end_pos, 461);
    let Payload::Gtid(gtid) = payload else {
        panic!("a GTID");
    };
    assert_eq!(gtid.gtid.to_string(), "3-7-1032");
    let ddl = gtid_flags::STANDALONE | gtid_flags::ALLOW_PARALLEL | gtid_flags::DDL;
    assert_eq!(gtid.flags, ddl);
    assert_eq!((gtid.commit_id, gtid.xa, gtid.extra), (None, None, None));

    let raw = hex(GTID_COMMIT_ID);
    let Payload::Gtid(gtid) = read(&raw, &crc()).1 else {
        panic!("a GTID");
    };
    assert_eq!(gtid.commit_id, Some(3136));

    let raw = hex(GTID_XA);
    let Payload::Gtid(gtid) = read(&raw, &crc()).1 else {
        panic!("a GTID");
    };
    assert!(gtid.has(gtid_flags::PREPARED_XA));
    assert_eq!(gtid.commit_id, Some(3164));
    let xa = gtid.xa.unwrap();
    assert_eq!((xa.format, xa.gtrid, xa.bqual), (1, &b"g2"[..], &b""[..]));
    let extra = gtid.extra.unwrap();
    assert_eq!((extra.flags, extra.engines), (1, 255));

    let raw = hex(GTID_ALTER);
    let Payload::Gtid(gtid) = read(&raw, &crc()).1 else {
        panic!("a GTID");
    };
    assert_eq!(gtid.gtid.seqno, 1094);
    let extra = gtid.extra.unwrap();
    assert_eq!((extra.flags, extra.alter_begin), (4, 1093));

    // Cut off, even without looking at checksums.
    assert!(Event::parse(&plain[..plain.len() - 4], Checksum::Off).is_err());
}

/// With a commit id the event is what the server itself would write.
#[test]
fn hints() {
    let plain = hex(GTID_PLAIN);
    let event = Event::parse(&plain, Checksum::Crc32).unwrap();
    let mut roomy = normalise_gtid(&event).unwrap().into_owned();
    let hint = GtidHint {
        commit_id: Some(3136),
        flags: Some(gtid_flags::TRANSACTIONAL | gtid_flags::ALLOW_PARALLEL),
    };
    patch_gtid(&mut roomy, Checksum::Crc32, hint).unwrap();
    let theirs = hex(GTID_COMMIT_ID);
    assert_eq!(roomy.len(), theirs.len());
    // Commit id and layout; time, place, seqno and STANDALONE are another's.
    assert_eq!(roomy[32..40], theirs[32..40]);
    assert_eq!(roomy[31], theirs[31] | gtid_flags::STANDALONE);
}

#[test]
fn lists() {
    let raw = hex(GTID_LIST);
    let Payload::GtidList(list) = read(&raw, &crc()).1 else {
        panic!("a list");
    };
    // Not in the order of the domains, and written again as it was.
    let shown: Vec<_> = list.gtids.iter().map(Gtid::to_string).collect();
    assert_eq!(shown, ["9-7-10", "0-7-10", "3-99-1007", "3-7-1031"]);
    let position = list.state().position();
    assert_eq!(position.to_string(), "0-7-10,3-7-1031,9-7-10");

    let raw = hex(GTID_LIST_DOCUMENTED);
    let Payload::GtidList(list) = read(&raw, &crc()).1 else {
        panic!("a list");
    };
    assert_eq!(list.state().to_string(), "0-10124-3584");
}

#[test]
fn ends_of_transactions() {
    let raw = hex(XA_PREPARE);
    let Payload::XaPrepare(prepare) = read(&raw, &crc()).1 else {
        panic!("a prepare");
    };
    assert_eq!(
        (prepare.name.gtrid, prepare.name.bqual, prepare.one_phase),
        (&b"g2"[..], &b""[..], false)
    );
    let raw = hex(XID_WITHOUT_CHECKSUM);
    assert_eq!(read(&raw, &mariadb(Checksum::Off)).1, Payload::Xid(2715));
}

#[test]
fn what_a_primary_sends() {
    let raw = hex(ROTATE_ARTIFICIAL);
    let Payload::Rotate(rotate) = read(&raw, &crc()).1 else {
        panic!("a rotate");
    };
    assert_eq!((rotate.file, rotate.position), (&b"mb.000061"[..], 4));
    let raw = hex(HEARTBEAT);
    let Payload::Heartbeat(heartbeat) = read(&raw, &crc()).1 else {
        panic!("a heartbeat");
    };
    assert_eq!(
        (heartbeat.file, heartbeat.position),
        (&b"mb.000061"[..], 647)
    );
    // What we make is the same, byte for byte.
    let maker = dromon_binlog::Maker {
        server_id: 7,
        timestamp: 0,
        checksum: Checksum::Crc32,
        place: dromon_binlog::Place::Nowhere,
    };
    assert_eq!(maker.heartbeat("mb.000061", 647).unwrap(), raw);
    assert_eq!(maker.rotate("mb.000061", 4), hex(ROTATE_ARTIFICIAL));
}

#[test]
fn a_table() {
    let raw = hex(TABLE);
    let Payload::TableMap(map) = read(&raw, &crc()).1 else {
        panic!("a table");
    };
    assert_eq!((map.database, map.table), (&b"t"[..], &b"misc"[..]));
    let columns = map.columns().unwrap();
    let int = ColumnType::Int { bytes: 4 };
    let geometry = ColumnType::Geometry { len_bytes: 4 };
    let expected = [
        int,
        int,
        geometry,
        geometry,
        geometry,
        ColumnType::CompressedVarChar { bytes: 201 },
        ColumnType::CompressedBlob { len_bytes: 2 },
        int,
        ColumnType::VarChar { bytes: 30 },
        int,
    ];
    assert_eq!(columns, expected);
    assert!(!map.is_nullable(0) && map.is_nullable(1) && map.is_nullable(9));
    let metadata = map.metadata(&columns, crc().flavour()).unwrap();
    let names = metadata.names.unwrap().join(&b' ');
    assert_eq!(names, b"id id2 g p l v b gen name gv");
    let key = KeyColumn {
        column: 0,
        prefix: 0,
    };
    assert_eq!(metadata.primary_key, Some(vec![key]));
    assert_eq!(metadata.unsigned, Some(vec![false; 10]));
    assert_eq!(metadata.geometry_types, Some(vec![0, 1, 2]));
    let (binary, latin1, german) = (Some(63), Some(8), Some(31));
    let collations = [
        None, None, binary, binary, binary, latin1, binary, None, german, None,
    ];
    assert_eq!(metadata.collations, Some(collations.to_vec()));
}

#[test]
fn compressed_rows() {
    let raw = hex(WRITE_PACKED);
    let (event, payload) = read(&raw, &crc());
    assert_eq!(event.kind(), EventType::WRITE_ROWS_COMPRESSED_V1);
    let Payload::Rows(rows) = payload else {
        panic!("rows");
    };
    let int = |bytes| ColumnType::Int { bytes };
    let bit = |bits| ColumnType::Bit { bits };
    let mut columns = vec![int(4)];
    for bytes in [1, 2, 3, 4, 8] {
        columns.extend([int(bytes), int(bytes)]);
    }
    columns.extend([ColumnType::Year, int(1), bit(1), bit(9), bit(64)]);
    let data = rows.data(1 << 20).unwrap();
    let rows: Vec<_> = rows
        .rows(&data, &columns)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(rows.len(), 4);
    let show = |n: usize| {
        let after = rows[n].after.as_ref().unwrap();
        let show = |at: usize, cell: &Cell<'_>| {
            // Every other number is unsigned.
            let unsigned = at.is_multiple_of(2);
            let value: Value<'_> = cell.value(columns[at], unsigned, 0).unwrap().unwrap();
            value.to_string()
        };
        let cells: Vec<_> = after
            .iter()
            .enumerate()
            .map(|(at, c)| show(at, c))
            .collect();
        cells.join(" ")
    };
    let ones = "1".repeat(64);
    assert_eq!(
        show(0),
        format!(
            "1 -128 255 -32768 65535 -8388608 16777215 -2147483648 4294967295 \
             -9223372036854775808 18446744073709551615 2155 1 b'1' b'100000001' b'{ones}'"
        )
    );
    assert!(show(2).starts_with("3 NULL NULL") && show(2).ends_with("NULL NULL"));
    let row = show(3);
    assert!(
        row.starts_with("4 -1 1 -1 1 -1 1 -1 1 -1 1 0000 1 b'1' b'11111111' b'1000"),
        "{row}"
    );
}

#[test]
fn a_compressed_statement() {
    let raw = hex(QUERY_PACKED);
    let Payload::Query(query) = read(&raw, &crc()).1 else {
        panic!("a statement");
    };
    assert_eq!(query.database, b"t");
    let text = query.text(1 << 20).unwrap();
    assert!(text.starts_with(b"create table oldtimes(id int primary key"));
    let status: Vec<_> = query.status().collect::<Result<_, _>>().unwrap();
    assert_eq!(status[0], StatusVar::Flags(1 << 24));
    assert!(status.contains(&StatusVar::Catalog(b"std")));
    assert!(status.contains(&StatusVar::Charset(33, 33, 8)));
    assert!(matches!(status.last(), Some(StatusVar::DdlXid(2589))));
}

#[test]
fn files_for_load_data() {
    let raw = hex(FILE_BLOCK);
    let (event, payload) = read(&raw, &crc());
    assert_eq!(event.kind(), EventType::BEGIN_LOAD_QUERY);
    let Payload::FileBlock(block) = payload else {
        panic!("a block");
    };
    assert_eq!((block.file, block.bytes), (3, &b"1\tx\n1\ty\n2\tz\n"[..]));
    let raw = hex(LOAD_REPLACE);
    let Payload::LoadQuery(load) = read(&raw, &crc()).1 else {
        panic!("a statement");
    };
    assert_eq!((load.file, load.duplicates), (2, Duplicates::Replace));
    let text = load.parts().map(String::from_utf8_lossy);
    assert_eq!(text[0], "LOAD DATA");
    assert_eq!(text[1], " INFILE '/tmp/b/load-srv/a.txt' REPLACE INTO");
    let behind = r" TABLE `t` FIELDS TERMINATED BY '\t' ENCLOSED BY '' ESCAPED BY '\\' LINES TERMINATED BY '\n' IGNORE 3 LINES  (`id`, @`x`) SET `v`=concat(@x,'!')";
    assert_eq!(text[2], behind);
    assert!(load.status().all(|var| var.is_ok()) && load.status().count() > 3);
    let raw = hex(DELETE_FILE);
    assert_eq!(read(&raw, &crc()).1, Payload::DeleteFile(29));
}
