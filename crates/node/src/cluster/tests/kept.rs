//! How much of the past is remembered.

use dromon_writeset::KeyType;

use super::*;

/// A member reports nothing, so that nobody cuts, and the others write much.
#[test]
fn large_write_sets_are_forgotten_before_small_ones_would_be() {
    let mut f = Feed::of_three();
    f.state.keys_max = 1002;
    let mut most = 0;
    for row in 0..2_000 {
        let seen = f.state.position().seqno;
        assert!(f.passes(1, Part::Whole, write_set(1, seen, row)));
        most = most.max(f.state.certifier().stats().keys);
    }
    assert_eq!(most, 1002, "a thousand rows, their table and its database");
    let (last, floor) = (f.state.position().seqno, f.state.certifier().floor());
    assert_eq!(last - floor, 1000);
    // Who has not seen what is forgotten may try again.
    let fresh = 5_000;
    assert!(!f.passes(2, Part::Whole, write_set(2, floor - 1, fresh)));
    assert!(f.passes(2, Part::Whole, write_set(2, floor + 1, fresh)));
    assert!(!f.passes(3, Part::Whole, write_set(3, floor + 1, 1_999)));
    f.state.keys_max = 0;
    let seen = f.state.position().seqno;
    assert!(f.passes(1, Part::Whole, write_set(1, seen, 6_000)));
    let behind = f.state.position().seqno - f.state.certifier().floor();
    assert_eq!(
        behind, KEYS_KEPT,
        "who is this little behind is not refused"
    );
}

/// A write set of origin 1 with 600 keys in a table of its own.
fn of_many_keys(last_seen: Seqno, chunk: u8) -> Bytes {
    let mut keys = dromon_writeset::KeyCollector::new();
    for row in 0..600u64 {
        keys.add(&[b"db", b"many", &row.to_le_bytes()], KeyType::Update)
            .expect("a key of three parts");
    }
    let long = WriteSet::decode(long_write_set(1, last_seen, 0)).expect("just encoded");
    let header = dromon_writeset::Header {
        chunk,
        ..*long.header()
    };
    let payload = long.payload().here().expect("decoded whole");
    dromon_writeset::encode(&header, &keys, payload)
}

/// One with most of the keys that are remembered is being committed everywhere, so nobody has seen it.
#[test]
fn while_one_of_very_many_keys_commits_others_pass() {
    for chunk in [0, CHUNK_MIN] {
        let mut f = Feed::of_three();
        f.state.keys_max = 1000;
        f.state.certifier.set_listed_max(500);
        let seen = f.state.position().seqno;
        let events = f.part(1, Part::Whole, of_many_keys(seen, chunk));
        if chunk != 0 {
            let [Event::Chunk { chunked, .. }] = events.as_slice() else {
                panic!("not cut: {events:?}");
            };
            let (id, ahead) = (chunked.id, 0);
            assert!(f.state.certifier.counts_by_tables(&chunked.write_set));
            (1..=chunked.chunks()).for_each(|n| drop(f.send(2, &Control::Chunk { id, n, ahead })));
        }
        let end = f.state.position().seqno;
        assert!(!f.state.has_chunked());
        for row in 0..700 {
            assert!(
                f.passes(2, Part::Whole, write_set(2, end - 1, row)),
                "{row}"
            );
        }
        // What it changed is still known.
        assert!(f.state.certifier().floor() < end);
        let of_many = |seen| {
            let mut keys = dromon_writeset::KeyCollector::new();
            keys.add(&[b"db", b"many", b"row"], KeyType::Update)
                .expect("a key of three parts");
            let long = WriteSet::decode(write_set(3, seen, 0)).expect("just encoded");
            dromon_writeset::encode(long.header(), &keys, b"rows")
        };
        assert!(!f.passes(3, Part::Whole, of_many(end - 1)));
        assert!(f.passes(3, Part::Whole, of_many(end)));
    }
}
