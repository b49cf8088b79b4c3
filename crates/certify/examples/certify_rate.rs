//! Prints what certification costs: nanoseconds per write set, by its size.
//!
//! ```text
//! cargo run --release -p dromon-certify --example certify_rate
//! ```

use std::hint::black_box;
use std::time::Instant;

use dromon_certify::Certifier;
use dromon_writeset::{Flags, Header, KeyCollector, KeyType, Uuid, WriteSet, encode};

/// Write sets per measurement.
const WRITE_SETS: usize = 200_000;
/// How many write sets the index holds: purged at every 128th.
const HELD: i64 = 4096;
/// Rows of the table the keys are drawn from.
const ROWS: u64 = 10_000_000;

fn main() {
    println!("keys/ws  encode ns  decode ns  certify ns  passed %  index keys  index MB");
    for keys_per_ws in [1, 2, 5, 20, 100] {
        let count = WRITE_SETS / (1 + keys_per_ws / 10);
        let mut dice = 0x9e37_79b9_7f4a_7c15u64;

        let start = Instant::now();
        let encoded: Vec<_> = (1..=count as i64)
            .map(|seqno| {
                let mut keys = KeyCollector::new();
                for _ in 0..keys_per_ws {
                    // xorshift64: any spread of rows does.
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    let mut row = [0u8; 9];
                    row[1..].copy_from_slice(&(dice % ROWS).to_le_bytes());
                    keys.add(&[b"sbtest", b"sbtest1", &row], KeyType::Update)
                        .expect("three parts are not none");
                }
                let header = Header {
                    flags: Flags::TRX_START | Flags::TRX_END,
                    source: Uuid([dice as u8 % 3; 16]),
                    trx_id: seqno as u64,
                    conn_id: 7,
                    last_seen: (seqno - 10).max(0),
                    prev_fragment: -1,
                    chunk: 0,
                };
                encode(&header, &keys, &[0; 200])
            })
            .collect();
        let encode_ns = start.elapsed().as_nanos() as usize / count;

        let start = Instant::now();
        let decoded: Vec<_> = encoded
            .iter()
            .map(|b| WriteSet::decode(b.clone()).expect("just encoded"))
            .collect();
        let decode_ns = start.elapsed().as_nanos() as usize / count;

        let mut certifier = Certifier::new(0);
        let mut passed = 0;
        let start = Instant::now();
        for (i, ws) in decoded.iter().enumerate() {
            let seqno = i as i64 + 1;
            passed += usize::from(black_box(certifier.certify(seqno, ws)).passed());
            if seqno % 128 == 0 {
                certifier.purge(seqno - HELD);
            }
        }
        let certify_ns = start.elapsed().as_nanos() as usize / count;
        let stats = certifier.stats();
        println!(
            "{keys_per_ws:>7}  {encode_ns:>9}  {decode_ns:>9}  {certify_ns:>10}  {:>8.2}  {:>10}  {:>8.1}",
            100.0 * passed as f64 / count as f64,
            stats.keys,
            stats.memory_bytes as f64 / 1e6,
        );
    }
}
