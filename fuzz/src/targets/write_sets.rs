//! Write sets and their keys.

use std::ops::ControlFlow;

use bytes::Bytes;
use dromon_writeset::{
    Flags, HEADER_LEN, Head, Header, KeyCollector, KeyType, Keys, PayloadSum, Uuid, WriteSet,
    restamp,
};
use twox_hash::XxHash3_64;

use super::Target;
use crate::bytes_in::Input;

/// `WriteSet::decode` of any bytes. The first byte, if odd: put right checksums and lengths
/// into the header; the next two: for keys of so many bytes.
pub const WRITE_SET: Target = Target {
    name: "write_set",
    run: write_set,
    seeds,
};

/// The right lengths and checksums, for keys of `keys` bytes.
fn sealed(bytes: &[u8], keys: usize) -> Vec<u8> {
    let mut all = bytes.to_vec();
    if all.len() < HEADER_LEN {
        return all;
    }
    let keys = keys.min(all.len() - HEADER_LEN);
    let at = HEADER_LEN + keys;
    let mut put = |at: usize, n: u64| all[at..at + 8].copy_from_slice(&n.to_le_bytes());
    put(56, keys as u64);
    put(64, (bytes.len() - at) as u64);
    put(72, XxHash3_64::oneshot(&bytes[HEADER_LEN..at]));
    put(80, PayloadSum::of(&bytes[at..]));
    let sum = XxHash3_64::oneshot(&all[..88]);
    all[88..96].copy_from_slice(&sum.to_le_bytes());
    all
}

fn write_set(data: &[u8]) {
    let mut input = Input::new(data);
    let (seal, keys) = (input.u8() & 1 == 1, usize::from(input.u16()));
    let bytes = input.rest();
    let bytes = Bytes::from(match seal {
        true => sealed(bytes, keys),
        false => bytes.to_vec(),
    });
    let head = Head::decode(&bytes);
    let whole = WriteSet::decode(bytes.clone());
    let Ok(whole) = whole else { return };
    assert_eq!(head.as_ref(), Ok(whole.head()));
    walk(whole.keys());
    let other = restamp(bytes.clone(), 12345).expect("a header that can be read");
    let other = WriteSet::decode(other).expect("it was sealed again");
    let expected = Header {
        last_seen: 12345,
        ..*whole.header()
    };
    assert_eq!(*other.header(), expected);
    assert_eq!(
        (other.keys(), other.payload()),
        (whole.keys(), whole.payload())
    );
}

/// Every way through the keys agrees on how many there are.
fn walk(keys: &Keys) {
    let mut n = 0;
    for key in keys.iter() {
        let _ = (key.table_text(), key.row_text(), key.hash());
        n += 1;
    }
    assert_eq!(n, keys.len());
    let mut own = 0;
    let _ = keys.expand(|e| {
        own += usize::from(!e.key.prefix);
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(own, n);
}

/// Keys, data and a header made from the input, collected as a server does: what was
/// encoded is what is decoded.
pub const KEYS: Target = Target {
    name: "keys",
    run: |data| {
        let mut input = Input::new(data);
        let header = Header {
            flags: Flags::from_bits(input.u16().into()),
            source: Uuid([input.u8(); 16]),
            trx_id: input.u64(),
            conn_id: input.u64(),
            last_seen: input.u64() as i64,
            prev_fragment: input.u64() as i64,
            chunk: 0,
        };
        let payload = usize::from(input.u8());
        let payload = input.take(payload);
        let mut collector = KeyCollector::new();
        while !input.is_empty() {
            let parts = usize::from(input.u8() % 5);
            let kind = KeyType::ALL[usize::from(input.u8() % 4)];
            let parts: Vec<&[u8]> = (0..parts)
                .map(|_| {
                    // Sometimes longer than what travels raw.
                    let len = usize::from(input.u8());
                    input.take(len)
                })
                .collect();
            // Too few or too many parts are refused.
            let _ = collector.add(&parts, kind);
        }
        let bytes = dromon_writeset::encode(&header, &collector, payload);
        let back = WriteSet::decode(bytes).expect("what was encoded can be read");
        assert_eq!(*back.header(), header);
        assert_eq!(back.payload().here().map(|p| &p[..]), Some(payload));
        walk(back.keys());
        let keys = Bytes::from(sealed(data, usize::MAX));
        if let Ok(keys) = Keys::decode(keys.slice(keys.len().min(HEADER_LEN)..)) {
            walk(&keys);
        }
    },
    seeds,
};

fn seeds() -> Vec<Vec<u8>> {
    let header = Header {
        flags: Flags::TRX_START | Flags::TRX_END,
        source: Uuid([1; 16]),
        trx_id: 7,
        conn_id: 8,
        last_seen: 9,
        prev_fragment: -1,
        chunk: 0,
    };
    let mut seeds = Vec::new();
    for n in 0..4usize {
        let mut keys = KeyCollector::new();
        for row in 0..n {
            let long = vec![b'k'; 10 * n];
            let parts: [&[u8]; 4] = [b"db", b"table", &[row as u8; 4], &long];
            keys.add(&parts[..1 + n.min(3)], KeyType::ALL[row % 4])
                .expect("keys of a server");
        }
        let bytes = dromon_writeset::encode(&header, &keys, &vec![5; 20 * n]);
        let len = keys.bytes() as u16;
        for seal in [0, 1] {
            seeds.push([&[seal][..], &len.to_le_bytes(), &bytes].concat());
        }
    }
    seeds
}
