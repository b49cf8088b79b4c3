//! What several tests need.
#![allow(dead_code)]

use dromon_binlog::{
    Checksum, EventType, Format, Gtid, GtidEvent, Header, Payload, Query, encode_event,
    version_bytes,
};

/// A format of this server.
pub fn format(version: &str, checksum: Option<Checksum>) -> Format {
    // Lengths of MariaDB 10.11 for the types that have a fixed part.
    let mut lens = vec![0; 171];
    let some = [
        (2, 13),
        (4, 8),
        (15, 235),
        (19, 8),
        (23, 8),
        (24, 8),
        (25, 8),
        (26, 2),
        (30, 10),
        (31, 10),
        (32, 10),
        (33, 25),
        (34, 25),
        (161, 4),
        (162, 19),
        (163, 4),
        (165, 13),
        (166, 8),
        (167, 8),
        (168, 8),
        (169, 10),
        (170, 10),
        (171, 10),
    ];
    for (kind, len) in some {
        lens[kind - 1] = len;
    }
    Format {
        binlog_version: 4,
        server_version: version_bytes(version),
        created: 77,
        post_header_lens: lens,
        checksum,
    }
}

/// Of MariaDB 10.11, with or without checksums.
pub fn mariadb(checksum: Checksum) -> Format {
    format("10.11.19-MariaDB-log", Some(checksum))
}

/// A header for [`encode_event`].
pub fn header(kind: EventType) -> Header {
    Header {
        timestamp: 1_700_000_000,
        kind,
        server_id: 7,
        len: 0,
        end_pos: 0,
        flags: 0,
    }
}

/// An event of this body.
pub fn event(kind: EventType, payload: &Payload<'_>, format: &Format) -> Vec<u8> {
    encode_event(&header(kind), payload, format)
}

/// A format description.
pub fn format_event(format: &Format) -> Vec<u8> {
    event(
        EventType::FORMAT_DESCRIPTION,
        &Payload::Format(Box::new(format.clone())),
        format,
    )
}

/// The beginning of a group.
pub fn gtid(seqno: u64, flags: u8) -> GtidEvent<'static> {
    GtidEvent {
        gtid: Gtid {
            domain: 3,
            server: 7,
            seqno,
        },
        flags,
        commit_id: None,
        xa: None,
        extra: None,
        tail: &[0; 6],
    }
}

/// A statement.
pub fn query(text: &str) -> Query<'_> {
    Query {
        thread_id: 5,
        exec_seconds: 0,
        error: 0,
        status: &[],
        database: b"t",
        stored: text.as_bytes(),
        compressed: false,
    }
}

/// Bytes from hexadecimal digits.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}
