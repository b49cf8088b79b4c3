//! Write sets there and back, and bytes that are none.

use bytes::{BufMut, Bytes, BytesMut};
use dromon_writeset::{
    DecodeError, Flags, HEADER_LEN, Head, Header, KeyCollector, KeyType, Keys, KeysError,
    PayloadSum, Uuid, WriteSet, encode, encode_chunks, encode_prefix, encoded_len, prefix_len,
    restamp,
};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        flags: Flags::TRX_START | Flags::TRX_END | Flags::PA_UNSAFE,
        source: Uuid(*b"0123456789abcdef"),
        trx_id: u64::MAX,
        conn_id: 0x0102_0304_0506_0708,
        last_seen: 77,
        prev_fragment: -1,
        chunk: 0,
    }
}

fn bytes_of(write_set: &WriteSet) -> &Bytes {
    write_set.payload().here().expect("it came with it")
}

fn keys() -> KeyCollector {
    let mut keys = KeyCollector::with_escalation(4);
    let add = |keys: &mut KeyCollector, parts: &[&[u8]], t| keys.add(parts, t).expect("parts");
    add(&mut keys, &[b"d", b"t", b"\x00\x01"], KeyType::Exclusive);
    add(&mut keys, &[b"d", b"t", &[9; 40]], KeyType::Update);
    add(&mut keys, &[b"d", b"t", b"a", b"b"], KeyType::Reference);
    add(&mut keys, &[b"d", b"child"], KeyType::Shared);
    add(&mut keys, &[b"e"], KeyType::Exclusive);
    for row in 0..6u8 {
        add(&mut keys, &[b"e", b"many", &[row]], KeyType::Update);
    }
    add(
        &mut keys,
        &[&[b'n'; 2000], b"long name", b"r"],
        KeyType::Update,
    );
    keys
}

/// The hexadecimal digits of one small write set: the format other builds read.
#[test]
fn the_format_is_pinned() {
    let mut keys = KeyCollector::new();
    keys.add(&[b"d", b"t", b"\x00\x07"], KeyType::Update)
        .expect("parts");
    let got: String = encode(&header(), &keys, b"pay")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(got, PINNED);
}

const PINNED: &str = concat!(
    "4457010049000000",
    "30313233343536373839616263646566",
    "ffffffffffffffff0807060504030201",
    "4d00000000000000ffffffffffffffff",
    "15000000000000000300000000000000",
    "b02fbe168f5dd4b21eecca58314d68a0d2905d85b876e67a",
    "010101000000",
    "02ff010064010074",
    "01000000120007",
    "706179",
);

#[test]
fn there_and_back() {
    let bytes = encode(&header(), &keys(), b"some payload");
    assert_eq!(bytes.len() as u64, encoded_len(&keys(), 12));
    let ws = WriteSet::decode(bytes.clone()).expect("just encoded");
    assert_eq!(*ws.header(), header());
    assert_eq!(ws.flags(), header().flags);
    assert_eq!(ws.keys().len(), keys().len());
    assert_eq!(&bytes_of(&ws)[..], b"some payload");
    assert_eq!(ws.payload_len(), 12);
    assert_eq!(ws.payload_offset(), prefix_len(&keys()));
    // Zero copy: the payload lies in the buffer that came.
    let range = bytes.as_ptr_range();
    assert!(range.contains(&bytes_of(&ws).as_ptr()));
}

#[test]
fn chunks_and_prefix_make_the_same_bytes() {
    let whole = encode(&header(), &keys(), b"abcdefgh");
    assert_eq!(
        whole,
        encode_chunks(&header(), &keys(), &[b"ab", b"", b"cdefg", b"h"])
    );
    let mut sum = PayloadSum::new();
    assert!(sum.is_empty());
    sum.update(b"abcd");
    sum.update(b"efgh");
    assert_eq!((sum.len(), sum.sum()), (8, PayloadSum::of(b"abcdefgh")));
    let prefix = encode_prefix(&header(), &keys(), sum.len(), sum.sum());
    assert_eq!(prefix[..], whole[..prefix.len()]);
    assert_eq!(whole[prefix.len()..], b"abcdefgh"[..]);
}

#[test]
fn no_keys_and_no_payload() {
    let none = KeyCollector::new();
    let ws = WriteSet::decode(encode(&header(), &none, b"")).expect("an END fragment");
    assert!(ws.keys().is_empty() && bytes_of(&ws).is_empty());
    assert_eq!(
        encode_chunks(&header(), &none, &[]),
        encode(&header(), &none, b"")
    );
}

#[test]
fn the_head_can_be_read_without_the_payload() {
    let whole = encode(&header(), &keys(), b"0123456789");
    let at = prefix_len(&keys());
    let full = WriteSet::decode(whole.clone()).expect("just encoded");
    for len in at..=whole.len() {
        let head = Head::decode(&whole.slice(..len)).expect("the head is there");
        assert_eq!(head, *full.head());
        assert_eq!(
            (head.payload_len(), head.payload_sum()),
            (10, PayloadSum::of(b"0123456789"))
        );
    }
    for len in 0..at {
        Head::decode(&whole.slice(..len)).expect_err("a part of the head is missing");
    }
}

#[test]
fn restamping_changes_last_seen_only() {
    let bytes = encode(&header(), &keys(), b"payload");
    let kept = bytes.clone();
    for shared in [true, false] {
        // A buffer of its own is changed in place, a shared one copied.
        let given = if shared {
            bytes.clone()
        } else {
            Bytes::from(bytes.to_vec())
        };
        let got = WriteSet::decode(restamp(given, 1234).expect("a write set")).expect("sealed");
        assert_eq!(
            *got.header(),
            Header {
                last_seen: 1234,
                ..header()
            }
        );
        assert_eq!(
            got.keys(),
            WriteSet::decode(kept.clone()).expect("as before").keys()
        );
        assert_eq!(&bytes_of(&got)[..], b"payload");
    }
    assert_eq!(bytes, kept);
    let mut damaged = bytes.to_vec();
    damaged[10] ^= 1;
    restamp(damaged.into(), 5).expect_err("damage is not sealed in");
}

#[test]
fn unknown_versions_are_named() {
    let mut bytes = encode(&header(), &keys(), b"").to_vec();
    bytes[2] = 9;
    let err = WriteSet::decode(bytes.into()).expect_err("version 9");
    assert_eq!(err, DecodeError::Version { found: 9 });
    assert!(err.to_string().contains("version 9") && err.to_string().contains("version 1"));

    let err = Keys::decode(Bytes::from_static(&[2, 5, 0, 0, 0, 0])).expect_err("format 2");
    assert_eq!(
        err,
        KeysError::UnknownVersion {
            format: 2,
            version: 5
        }
    );
    let text = err.to_string();
    assert!(text.contains("format 2 version 5") && text.contains("format 1 version 1"));
}

/// Every rule of the key format, broken once.
#[test]
fn malformed_keys_name_the_rule() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "preamble"),
        (b"\x01\x01\x00\x00\x00", "preamble"),
        (b"\x01\x01\x00\x00\x00\x00!", "bytes follow"),
        (b"\x01\x01\x01\x00\x00\x00", "inside a group"),
        (b"\x01\x01\xff\xff\xff\xff\x01", "inside a group"),
        (b"\x01\x01\x01\x00\x00\x00\x00\x00", "neither a database"),
        (b"\x01\x01\x01\x00\x00\x00\x03\x00", "neither a database"),
        (b"\x01\x01\x01\x00\x00\x00\x01\xff", "own key"),
        (b"\x01\x01\x01\x00\x00\x00\x01\x04", "own key"),
        (b"\x01\x01\x01\x00\x00\x00\x02\x05", "own key"),
        (
            b"\x01\x01\x01\x00\x00\x00\x01\x00\x02\x00x",
            "inside a name",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x01\x00\xff\xff1234",
            "inside a name",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x01\x00\x01\x04",
            "longer than 1024",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x02\xff\x00\x00\x00\x00\x01\x00",
            "before the rows",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x02\xff\x00\x00\x00\x00\x01\x00\x00\x00",
            "before a row",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x02\xff\x00\x00\x00\x00\x01\x00\x00\x00\x10a",
            "inside a row",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x02\xff\x00\x00\x00\x00\x01\x00\x00\x00\xc8",
            "longer than 24",
        ),
        (
            b"\x01\x01\x01\x00\x00\x00\x02\xff\x00\x00\x00\x00\x01\x00\x00\x00\x0ca",
            "before a row",
        ),
    ];
    for (bytes, rule) in cases {
        let err = Keys::decode(Bytes::from_static(bytes)).expect_err("malformed");
        assert!(
            matches!(err, KeysError::Malformed { .. }),
            "{bytes:?}: {err}"
        );
        assert!(err.to_string().contains(rule), "{bytes:?}: {err}");
    }
}

/// Any single changed bit is noticed, wherever it is.
#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = encode(&header(), &keys(), b"the payload");
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            WriteSet::decode(damaged.into()).expect_err("a bit was flipped");
        }
    }
    for len in 0..bytes.len() {
        WriteSet::decode(bytes.slice(..len)).expect_err("the end is missing");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    let err = WriteSet::decode(longer.into()).expect_err("something follows");
    assert!(matches!(err, DecodeError::Length { .. }), "{err}");
}

/// Puts a head with right checksums before any keys and payload.
fn sealed(keys: &[u8], keys_len: u64, payload_len: u64, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&encode(&header(), &KeyCollector::new(), b"")[..HEADER_LEN]);
    let sum = |b: &[u8]| PayloadSum::of(b).to_le_bytes();
    out[56..64].copy_from_slice(&keys_len.to_le_bytes());
    out[64..72].copy_from_slice(&payload_len.to_le_bytes());
    out[72..80].copy_from_slice(&sum(keys));
    out[80..88].copy_from_slice(&sum(payload));
    let header_sum = sum(&out[..88]);
    out[88..96].copy_from_slice(&header_sum);
    out.put_slice(keys);
    out.put_slice(payload);
    out.freeze()
}

#[test]
fn sealed_lengths_are_not_trusted() {
    let keys = encode(&header(), &keys(), b"").slice(HEADER_LEN..);
    let have = keys.len() as u64;
    WriteSet::decode(sealed(&keys, have, 2, b"ok")).expect("the helper makes write sets");
    for (keys_len, payload_len) in [
        (u64::MAX, u64::MAX),
        (u64::MAX, 2),
        (have, u64::MAX),
        (have + 3, 0),
        (have, 1),
        (have, 3),
        (i64::MAX as u64, 1),
    ] {
        let err = WriteSet::decode(sealed(&keys, keys_len, payload_len, b"ok"))
            .expect_err("wrong lengths");
        assert!(
            matches!(err, DecodeError::Length { .. }),
            "{keys_len} {payload_len}: {err}"
        );
    }
}

fn touch_all(head: &Head) {
    let mut listed = 0;
    for key in head.keys().iter() {
        let _ = (
            key.hash(),
            key.table_text(),
            key.row_text(),
            format!("{key:?}"),
        );
        listed += 1;
    }
    assert_eq!(listed, head.keys().len());
    let mut leaves = 0;
    let flow: std::ops::ControlFlow<()> = head.keys().expand(|e| {
        assert_eq!(e.hash, e.key.hash());
        leaves += usize::from(!e.key.prefix);
        std::ops::ControlFlow::Continue(())
    });
    assert!(flow.is_continue());
    assert_eq!(leaves, listed, "expansion sees every key");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        prop_assert!(WriteSet::decode(bytes.clone()).is_err());
        if let Ok(keys) = Keys::decode(bytes) {
            prop_assert_eq!(keys.iter().count(), keys.len());
        }
    }

    /// Random keys under right checksums: the parser stands alone.
    #[test]
    fn random_keys_under_a_seal(
        groups in 0u32..4,
        tail in prop::collection::vec(prop_oneof![3 => 0u8..6, 1 => any::<u8>()], 0..120),
    ) {
        let mut keys = vec![1, 1];
        keys.extend_from_slice(&groups.to_le_bytes());
        keys.extend_from_slice(&tail);
        let len = keys.len() as u64;
        if let Ok(ws) = WriteSet::decode(sealed(&keys, len, 0, b"")) {
            touch_all(&ws);
        }
    }

    /// A real write set with bytes changed, cut out or doubled, then sealed
    /// again, so that only the parser stands between it and the index.
    #[test]
    fn mutated_keys_under_a_seal(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 0..4),
    ) {
        let mut keys = encode(&header(), &keys(), b"").slice(HEADER_LEN..).to_vec();
        for (at, byte, how) in changes {
            let at = at.index(keys.len());
            match how {
                0 => keys[at] = byte,
                1 => drop(keys.drain(at..(at + byte as usize).min(keys.len() - 1).max(at))),
                _ => keys.insert(at, byte),
            }
        }
        let len = keys.len() as u64;
        if let Ok(ws) = WriteSet::decode(sealed(&keys, len, 0, b"")) {
            touch_all(&ws);
        }
    }

    #[test]
    fn any_header_and_payload_come_back(
        flags: u32, source: [u8; 16], trx_id: u64, conn_id: u64, last_seen: i64,
        prev_fragment: i64, chunk: u8, payload in prop::collection::vec(any::<u8>(), 0..400),
        cut in any::<prop::sample::Index>(),
    ) {
        let header = Header {
            flags: Flags::from_bits(flags), source: Uuid(source), trx_id, conn_id, last_seen,
            prev_fragment, chunk,
        };
        let at = cut.index(payload.len() + 1);
        let bytes = encode_chunks(&header, &keys(), &[&payload[..at], &payload[at..]]);
        let ws = WriteSet::decode(bytes).expect("just encoded");
        prop_assert_eq!(*ws.header(), header);
        prop_assert_eq!(&bytes_of(&ws)[..], &payload[..]);
        touch_all(&ws);
    }
}
