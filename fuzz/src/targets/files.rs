//! What stands in records, checkpoints and the small values, behind the log's checksums.

use bytes::Bytes;
use dromon_certify::Certifier;
use dromon_order::sequencer::Sequencer;
use dromon_order::{Committed, CommittedBody, Part, RawMessage, fuzzed};
use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid, WriteSet};
use twox_hash::XxHash3_64;

use super::{Target, stable};

/// The body of a record.
pub const LOG_ENTRY: Target = Target {
    name: "log_entry",
    run: |data| stable("a log entry", data, fuzzed::log_entry),
    seeds: fuzzed::log_entry_seeds,
};

/// A checkpoint's content.
pub const CHECKPOINT: Target = Target {
    name: "checkpoint",
    run: |data| stable("a checkpoint", data, fuzzed::checkpoint),
    seeds: fuzzed::checkpoint_seeds,
};

/// Vote, position, id.
pub const SMALL_STATE: Target = Target {
    name: "small_state",
    run: |data| stable("the small state", data, fuzzed::small_state),
    seeds: fuzzed::small_state_seeds,
};

/// The state of exactly-once delivery, with its checksum put right.
pub const SEQUENCER: Target = Target {
    name: "sequencer",
    run: |data| {
        let mut bytes = data.to_vec();
        if let Some((body, sum)) = bytes.split_last_chunk_mut::<4>() {
            *sum = crc32c::crc32c(body).to_le_bytes();
        }
        let Ok(mut state) = Sequencer::decode(Bytes::from(bytes)) else {
            return;
        };
        let encoded = state.encode().expect("in memory");
        let back = Sequencer::decode(encoded.clone()).expect("what was encoded can be read");
        assert_eq!(back.digest(), state.digest());
        assert_eq!(back.encode().expect("in memory"), encoded);
        // It goes on working.
        let origins: Vec<(Uuid, u64)> = state.origins().collect();
        for (origin, last) in origins {
            for part in [
                Part::Whole,
                Part::Piece {
                    stream: 1,
                    i: 1,
                    n: 3,
                },
            ] {
                let _ = state.accept(&message(origin, last.wrapping_add(1), part));
            }
        }
    },
    seeds: || {
        let mut s = Sequencer::new();
        let mut seeds = vec![s.encode().expect("in memory").to_vec()];
        for n in 1..3 {
            s.register(Uuid([n; 16]));
            let piece = Part::Piece {
                stream: 1,
                i: 0,
                n: 3,
            };
            let _ = s.accept(&message(Uuid([n; 16]), 1, piece));
            seeds.push(s.encode().expect("in memory").to_vec());
        }
        seeds
    },
};

fn message(origin: Uuid, oseq: u64, part: Part) -> Committed {
    Committed {
        index: 5,
        term: 1,
        leader: 1,
        body: CommittedBody::Message(RawMessage {
            origin,
            oseq,
            kind: 1,
            tag: 0,
            part,
            body: Bytes::from_static(b"a body"),
        }),
    }
}

/// The certification index, with its checksum put right.
pub const CERTIFIER: Target = Target {
    name: "certifier",
    run: |data| {
        let mut bytes = data.to_vec();
        if let Some((body, sum)) = bytes.split_last_chunk_mut::<8>() {
            *sum = XxHash3_64::oneshot(body).to_le_bytes();
        }
        let Ok(mut state) = Certifier::decode(&bytes) else {
            return;
        };
        assert_eq!(state.encode(), bytes, "equal states give equal bytes");
        let position = state.position();
        if position < i64::MAX - 2 {
            let _ = state.certify(position + 1, write_set(position).head());
            state.purge(position);
        }
    },
    seeds: || {
        let mut c = Certifier::new(0);
        let mut seeds = vec![c.encode().to_vec()];
        for seqno in 1..5 {
            let _ = c.certify(seqno, write_set(seqno - 1).head());
            seeds.push(c.encode().to_vec());
        }
        c.view(5);
        c.purge(2);
        seeds.push(c.encode().to_vec());
        seeds
    },
};

fn write_set(last_seen: i64) -> WriteSet {
    let mut keys = KeyCollector::new();
    keys.add(&[b"d", b"t", &[last_seen as u8]], KeyType::Exclusive)
        .expect("a key");
    let header = Header {
        flags: Flags::TRX_START | Flags::TRX_END,
        source: Uuid([last_seen as u8; 16]),
        trx_id: 1,
        conn_id: 2,
        last_seen,
        prev_fragment: -1,
        chunk: 0,
    };
    let bytes = dromon_writeset::encode(&header, &keys, b"data");
    WriteSet::decode(bytes).expect("what was encoded can be read")
}
