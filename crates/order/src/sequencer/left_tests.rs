//! What a store leaves where it lies.

use std::ops::Range;
use std::sync::Arc;

use dromon_writeset::{Arrival, Flags, Header, Keeper, KeyCollector};

use super::*;

const A: Uuid = Uuid([1; 16]);

fn piece(index: u64, i: u32, n: u32, body: &[u8]) -> Committed {
    Committed {
        index,
        term: 3,
        leader: Default::default(),
        body: CommittedBody::Message(RawMessage {
            origin: A,
            oseq: index,
            kind: 1,
            tag: 77,
            part: Part::Piece { stream: 1, i, n },
            body: Bytes::copy_from_slice(body),
        }),
    }
}

/// Says that all but the first byte was left where it lies.
struct Leaves(Vec<u8>);

#[derive(Debug)]
struct Rest(u64);

impl Keeper for Rest {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_to(&self, _: Range<u64>, _: &mut BytesMut) -> Result<(), String> {
        Err("nobody reads it here".into())
    }
}

impl PieceStore for Leaves {
    fn append(&mut self, _: StreamKey, _: Option<PieceAt>, piece: &[u8]) -> Result<(), StoreError> {
        self.0.extend_from_slice(piece);
        Ok(())
    }

    fn read(&self, _: StreamKey) -> Result<Bytes, StoreError> {
        Ok(Bytes::from(self.0.clone()))
    }

    fn finish(&mut self, _: StreamKey) -> Result<(Bytes, Option<Arrived>), StoreError> {
        let mut arrival = Arrival::new();
        arrival.take(&self.0);
        let rest = Arc::new(Rest(self.0.len() as u64 - 1));
        let left = arrival.finish().map(|a| a.left(Kept::by(rest)));
        Ok((Bytes::copy_from_slice(&self.0[..1]), left))
    }

    fn discard(&mut self, _: StreamKey) {}
}

#[test]
fn what_was_left_elsewhere_counts_with_all_its_bytes() {
    let header = Header {
        flags: Flags::TRX_START,
        source: A,
        trx_id: 1,
        conn_id: 1,
        last_seen: 0,
        prev_fragment: -1,
        chunk: 0,
    };
    let keys = KeyCollector::new();
    let whole = dromon_writeset::encode(&header, &keys, &[7; 50]);
    let mut s = Sequencer::with_store(Box::new(Leaves(Vec::new())), 5);
    s.register(A);
    let n = whole.len().div_ceil(50) as u32;
    let mut last = None;
    for (i, p) in whole.chunks(50).enumerate() {
        let i = i as u32;
        let at = u64::from(i) + 1;
        last = s.accept(&piece(at, i, n, p)).unwrap();
    }
    let last = last.expect("it is whole");
    assert_eq!((last.len, last.body.len()), (whole.len() as u64, 1));
    // One that does not have all of it is noticed.
    let mut s = Sequencer::with_store(Box::new(Leaves(Vec::new())), 5);
    s.register(A);
    s.accept(&piece(1, 0, 2, b"abcdef")).unwrap();
    let short = s.accept(&piece(2, 1, 2, b"ghi"));
    assert!(
        short
            .unwrap_err()
            .to_string()
            .contains("9 bytes were stored")
    );
}
