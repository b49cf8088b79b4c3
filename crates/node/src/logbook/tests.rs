//! Entries and what the book says of them.

use super::*;
use bytes::Bytes;
use dromon_writeset::{Flags, Header, KeyCollector, KeyType};

use crate::messages::{Join, LeaveReason, encode};

const ORIGIN: Uuid = Uuid([7; 16]);

fn book() -> LogBook {
    let position = Position {
        history: Uuid([0xaa; 16]),
        seqno: 10,
    };
    let (sequencer, node) = ClusterState::genesis(position).encode();
    let checkpoint = Checkpoint {
        log_id: LogId::default(),
        members: dromon_order::Members::default(),
        sequencer,
        node,
    };
    let mut book = LogBook::new();
    book.start_at(&checkpoint).expect("it was just encoded");
    book
}

fn entry(index: u64, oseq: u64, kind: u8, part: Part, body: Bytes) -> (LogId, Committed) {
    let place = LogId {
        term: 3,
        leader: 1,
        index,
    };
    let body = CommittedBody::Message(RawMessage {
        origin: ORIGIN,
        oseq,
        kind,
        tag: 0,
        part,
        body,
    });
    let entry = Committed {
        index,
        term: 3,
        leader: 1,
        body,
    };
    (place, entry)
}

fn join() -> Bytes {
    encode(&Control::Join(Join {
        uuid: Uuid([1; 16]),
        origin: ORIGIN,
        name: "db1".into(),
        incoming: String::new(),
        addr: "10.0.0.1:4567".into(),
        raft_id: 5,
        segment: 0,
        weight: 1,
        vote_policy: 0,
        position: Position::UNDEFINED,
        need: Need::Log,
        log_start: 0,
        witness: false,
        stateless: false,
    }))
}

fn write_set() -> Bytes {
    write_set_of(0, b"data")
}

fn write_set_of(chunk: u8, payload: &[u8]) -> Bytes {
    let mut keys = KeyCollector::new();
    keys.add(&[b"d", b"t", b"row"], KeyType::Update)
        .expect("a key");
    let header = Header {
        flags: Flags::TRX_START | Flags::TRX_END,
        source: Uuid([1; 16]),
        trx_id: u64::MAX,
        conn_id: 8,
        last_seen: 11,
        prev_fragment: -1,
        chunk,
    };
    dromon_writeset::encode(&header, &keys, payload)
}

#[test]
fn entries_have_their_seqnos_names_and_meaning() {
    let mut book = book();
    let mut say = |index, oseq, kind, part, body: Bytes| {
        let len = body.len() as u64;
        let (place, entry) = entry(index, oseq, kind, part, body);
        book.entry(place, len, &entry)
    };
    let line = say(1, 1, kind::CONTROL, Part::Whole, join());
    assert_eq!((line.seqno, line.what.kind()), (Some(11), "control"));
    let text = line.what.to_string();
    assert!(text.contains("db1 (01010101-0101-0101-0101-010101010101) at 10.0.0.1:4567 joins"));
    assert!(text.ends_with("view 1 of db1, Joined to Synced"), "{text}");

    let line = say(2, 2, kind::WRITE_SET, Part::Whole, write_set());
    assert_eq!(line.seqno, Some(12));
    assert_eq!(line.from, Some((ORIGIN, Some("db1".into()), 2)));
    assert_eq!(
        line.what.to_string(),
        "passed, after 11; no transaction, connection 8, 1 key, 4 bytes of data, had seen 11, \
         TRX_START|TRX_END"
    );

    let line = say(3, 2, kind::WRITE_SET, Part::Whole, write_set());
    assert_eq!((line.seqno, line.what.kind()), (None, "copy"));

    let whole = write_set();
    let piece = |i| Part::Piece { stream: 1, i, n: 2 };
    let line = say(4, 3, kind::WRITE_SET, piece(0), whole.slice(..50));
    assert_eq!((line.seqno, &*line.what.to_string()), (None, "1 of 2"));
    let line = say(5, 4, kind::WRITE_SET, piece(1), whole.slice(50..));
    assert_eq!((line.seqno, line.what.kind()), (Some(13), "write set"));
    assert!(line.what.to_string().ends_with("in 2 pieces"));
    assert_eq!(line.damage, None);

    let mut bad = whole.to_vec();
    bad[100] ^= 1;
    let line = say(6, 5, kind::WRITE_SET, Part::Whole, bad.into());
    assert_eq!(line.what.kind(), "unreadable");
    assert!(line.damage.is_some_and(|why| why.contains("checksum")));

    let leave = Control::Leave {
        uuid: Uuid([1; 16]),
        reason: LeaveReason::Graceful,
    };
    let line = say(7, 6, kind::CONTROL, Part::Whole, encode(&leave));
    assert_eq!(line.from, Some((ORIGIN, Some("db1".into()), 6)));
    assert!(line.what.to_string().contains("leaves (Graceful)"));
}

#[test]
fn without_a_state_entries_are_taken_apart_and_no_more() {
    let mut book = LogBook::new();
    let (place, e) = entry(9, 7, kind::WRITE_SET, Part::Whole, write_set());
    let line = book.entry(place, 1, &e);
    assert_eq!(line.seqno, None);
    assert!(line.what.to_string().starts_with("no transaction"));
    let (place, e) = entry(10, 8, 77, Part::Whole, Bytes::new());
    let line = book.entry(place, 1, &e);
    assert!(line.damage.is_some_and(|why| why.contains("kind 77")));
}

/// Whether they may be cut into chunks or not, and of what is no write set, too.
#[test]
fn of_large_payloads_nothing_is_kept_and_damage_is_found() {
    let payload = vec![0x5a; SPOOL_ABOVE + 300_000];
    let mut damaged = write_set_of(0, &payload).to_vec();
    *damaged.last_mut().expect("bytes") ^= 1;
    let other = vec![0xff; SPOOL_ABOVE + 300_000];
    for (body, kind, damage) in [
        (write_set_of(0, &payload), kind::WRITE_SET, None),
        (write_set_of(22, &payload), kind::WRITE_SET, None),
        (damaged.into(), kind::WRITE_SET, Some("checksum")),
        (other.clone().into(), kind::WRITE_SET, Some("a write set")),
        (other.into(), kind::CONTROL, Some("a control message")),
    ] {
        let mut book = book();
        let (place, first) = entry(1, 1, kind::CONTROL, Part::Whole, join());
        book.entry(place, 1, &first);
        let n = body.len().div_ceil(65_536) as u32;
        let mut line = None;
        for (i, piece) in body.chunks(65_536).enumerate() {
            let (index, part) = (
                2 + i as u64,
                Part::Piece {
                    stream: 1,
                    i: i as u32,
                    n,
                },
            );
            let (place, e) = entry(index, index, kind, part, Bytes::copy_from_slice(piece));
            line = Some(book.entry(place, piece.len() as u64, &e));
        }
        let line = line.expect("there were some");
        match damage {
            Some(words) => {
                let why = line.damage.unwrap_or_default();
                assert!(why.contains(words), "{words}: {why}");
            }
            None => {
                let text = line.what.to_string();
                let size = format!("1 key, {} bytes of data", payload.len());
                assert_eq!((line.damage, line.seqno), (None, Some(12)), "{text}");
                assert!(
                    text.contains(&size) && text.ends_with(&format!("in {n} pieces")),
                    "{text}"
                );
            }
        }
    }
}
