//! Events made by hand.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod breaks;

use std::sync::Arc;

use dromon_binlog::{
    BinlogState, Checksum, EventType, FILE_MAGIC, Format, GroupName, Grouper, Gtid, GtidEvent,
    Header, Payload, Query, Rotate, encode_event, flags, gtid_flags, version_bytes,
};
use dromon_log::SimDevice;
use dromon_relay::store::{Cursor, Next, Part, Place, Store, StoreError, StoreOptions, View};

pub fn format(checksum: Checksum) -> Format {
    let mut post_header_lens = vec![0; 171];
    post_header_lens[18..32].fill(8);
    Format {
        binlog_version: 4,
        server_version: version_bytes("10.11.19-MariaDB-log"),
        created: 0,
        post_header_lens,
        checksum: Some(checksum),
    }
}

pub fn event(
    kind: EventType,
    server_id: u32,
    payload: &Payload<'_>,
    checksum: Checksum,
) -> Vec<u8> {
    let header = Header {
        timestamp: 1000,
        kind,
        server_id,
        len: 0,
        end_pos: 0,
        flags: 0,
    };
    encode_event(&header, payload, &format(checksum))
}

pub fn format_event(checksum: Checksum) -> Vec<u8> {
    let payload = Payload::Format(Box::new(format(checksum)));
    event(EventType::FORMAT_DESCRIPTION, 1, &payload, checksum)
}

/// The same format description of a server that was started at this time.
pub fn created(format_event: &[u8], time: u32) -> Vec<u8> {
    let mut out = format_event.to_vec();
    out[19 + 52..19 + 56].copy_from_slice(&time.to_le_bytes());
    let end = out.len() - 4;
    let crc = crc32fast::hash(&out[..end]).to_le_bytes();
    out[end..].copy_from_slice(&crc);
    out
}

/// What a primary makes up at the beginning of a connection and of each file: the file's name, and
/// where in it the next event stands.
pub fn artificial_rotate(file: &str, position: u64, checksum: Checksum) -> Vec<u8> {
    let header = Header {
        timestamp: 0,
        kind: EventType::ROTATE,
        server_id: 1,
        len: 0,
        end_pos: 0,
        flags: flags::ARTIFICIAL,
    };
    let payload = Payload::Rotate(Rotate {
        position,
        file: file.as_bytes(),
    });
    encode_event(&header, &payload, &format(checksum))
}

/// A store on a simulated disk, which knows of nothing before.
pub fn open(device: &SimDevice, options: StoreOptions) -> Result<Store, StoreError> {
    Store::open(Arc::new(device.clone()), options, BinlogState::new()).map(|(store, _)| store)
}

pub fn gtid(domain: u32, server: u32, seqno: u64) -> Gtid {
    Gtid {
        domain,
        server,
        seqno,
    }
}

/// A transaction of so many events between its GTID and its end, each of so many bytes.
pub fn transaction(gtid: Gtid, events: usize, size: usize, checksum: Checksum) -> Vec<Vec<u8>> {
    let mut out = vec![gtid_event(gtid, gtid_flags::TRANSACTIONAL, checksum)];
    out.extend(changes(gtid.server, events, size, checksum));
    let end = Payload::Xid(gtid.seqno);
    out.push(event(EventType::XID, gtid.server, &end, checksum));
    out
}

/// So many events that stand within a transaction, each of so many bytes.
pub fn changes(
    server: u32,
    events: usize,
    size: usize,
    checksum: Checksum,
) -> impl Iterator<Item = Vec<u8>> {
    (0..events).map(move |n| {
        let text = vec![b'a' + (n % 26) as u8; size];
        let payload = Payload::Annotate(&text);
        event(EventType::ANNOTATE_ROWS, server, &payload, checksum)
    })
}

/// The same events, which have checksums, made at another time.
pub fn made(mut events: Vec<Vec<u8>>, time: u32) -> Vec<Vec<u8>> {
    for raw in &mut events {
        raw[..4].copy_from_slice(&time.to_le_bytes());
        let end = raw.len() - 4;
        let crc = crc32fast::hash(&raw[..end]);
        raw[end..].copy_from_slice(&crc.to_le_bytes());
    }
    events
}

/// A statement that stands alone.
pub fn statement(gtid: Gtid, text: &str, checksum: Checksum) -> Vec<Vec<u8>> {
    vec![
        gtid_event(gtid, gtid_flags::STANDALONE | gtid_flags::DDL, checksum),
        query(gtid.server, text, checksum),
    ]
}

/// A statement's event.
pub fn query(server: u32, text: &str, checksum: Checksum) -> Vec<u8> {
    let query = Query {
        thread_id: 1,
        exec_seconds: 0,
        error: 0,
        status: &[],
        database: b"d",
        stored: text.as_bytes(),
        compressed: false,
    };
    event(EventType::QUERY, server, &Payload::Query(query), checksum)
}

pub fn gtid_event(gtid: Gtid, flags: u8, checksum: Checksum) -> Vec<u8> {
    let payload = Payload::Gtid(GtidEvent {
        gtid,
        flags,
        commit_id: None,
        xa: None,
        extra: None,
        tail: &[0; 8],
    });
    event(EventType::GTID, gtid.server, &payload, checksum)
}

/// Appends a group.
pub fn append(store: &mut Store, group: &[Vec<u8>], gtid: Gtid) -> Result<(), StoreError> {
    for (n, raw) in group.iter().enumerate() {
        let part = match n {
            0 => Part::Begin,
            _ if n + 1 == group.len() => Part::End(GroupName::MariaDb(gtid), 1000),
            _ => Part::Within,
        };
        store.append(raw.clone(), part)?;
    }
    Ok(())
}

/// All events from a place on, each checked, with the places of their files in mind.
pub fn read(view: &Arc<View>, from: Place) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut cursor = Cursor::new(Arc::clone(view), from);
    let mut grouper = Grouper::of_file();
    let mut out = Vec::new();
    loop {
        match cursor.look()? {
            Next::End => return Ok(out),
            Next::File(number) => {
                cursor.turn(Place {
                    file: number,
                    at: 4,
                });
                grouper = Grouper::of_file();
            }
            Next::Event(len) => {
                let raw = cursor.event(len);
                grouper
                    .event(raw)
                    .expect("events are whole and in their places");
                out.push(raw.to_vec());
                cursor.pass(len);
            }
        }
    }
}

/// The first byte of the oldest file.
pub fn beginning(view: &View) -> Place {
    Place {
        file: view.oldest().unwrap_or(1),
        at: FILE_MAGIC.len() as u64,
    }
}

/// The GTIDs of the groups among events, and how many events each has.
pub fn groups(events: &[Vec<u8>]) -> Vec<(Gtid, usize)> {
    let mut out: Vec<(Gtid, usize)> = Vec::new();
    let mut grouper = Grouper::of_connection();
    for raw in events {
        let seen = grouper.event(raw).expect("a whole event");
        assert_eq!(seen.abandoned, None, "no group is left unfinished");
        match seen.step {
            dromon_binlog::Step::Begin(group) => {
                let dromon_binlog::GroupName::MariaDb(gtid) = group.name else {
                    panic!("a group without a name")
                };
                out.push((gtid, 1));
            }
            dromon_binlog::Step::Within | dromon_binlog::Step::End(..) => {
                out.last_mut().expect("it has begun").1 += 1;
            }
            _ => {}
        }
    }
    assert!(grouper.open().is_none(), "the last group is whole");
    out
}

/// The groups from a place on.
pub fn groups_from(view: &Arc<View>, from: Place) -> Vec<(Gtid, usize)> {
    let mut cursor = Cursor::new(Arc::clone(view), from);
    let mut events = Vec::new();
    loop {
        match cursor.look().expect("readable") {
            Next::End => return groups_of_any(&events),
            Next::File(number) => cursor.turn(Place {
                file: number,
                at: 4,
            }),
            Next::Event(len) => {
                events.push(cursor.event(len).to_vec());
                cursor.pass(len);
            }
        }
    }
}

/// As [`groups`], though no format description may come first.
fn groups_of_any(events: &[Vec<u8>]) -> Vec<(Gtid, usize)> {
    let mut all = vec![format_event(Checksum::Crc32)];
    all.extend_from_slice(events);
    groups(&all)
}

/// GTIDs, and the number of events of each group.
pub type Groups = Vec<(Gtid, usize)>;

/// As [`read`]: what could be read, as groups, when damage was met.
pub fn try_read(view: &Arc<View>, from: Place) -> Result<Groups, (String, Groups)> {
    let mut cursor = Cursor::new(Arc::clone(view), from);
    let mut grouper = Grouper::of_file();
    let mut whole = 0;
    let mut events = Vec::new();
    let mut finished = false;
    loop {
        let bad = |error: String, events: &[Vec<u8>]| Err((error, groups(events)));
        match cursor.look() {
            Err(error) => return bad(error.to_string(), &events[..whole]),
            Ok(Next::End) => return Ok(groups(&events)),
            Ok(Next::File(number)) => {
                if !finished {
                    let name = view.name(number - 1);
                    return bad(format!("{name} has no end"), &events[..whole]);
                }
                cursor.turn(Place {
                    file: number,
                    at: 4,
                });
                grouper = Grouper::of_file();
            }
            Ok(Next::Event(len)) => {
                let raw = cursor.event(len);
                match grouper.event(raw) {
                    Err(error) => {
                        let name = view.name(cursor.place().file);
                        return bad(format!("{name}: {error}"), &events[..whole]);
                    }
                    Ok(seen) => finished = seen.event.kind() == EventType::ROTATE,
                }
                events.push(raw.to_vec());
                if grouper.open().is_none() {
                    whole = events.len();
                }
                cursor.pass(len);
            }
        }
    }
}
