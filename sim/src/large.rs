//! Large transactions: how often they come, and their payloads, which are
//! sequences of binlog events as a server makes them, so that the real code
//! finds where to cut.
//!
//! ```text
//!   ANNOTATE?  TABLE_MAP..  rows rows rows*      * the statement's last one
//!
//!   rows: header 19 | table 6 | flags 2 | transaction, operation | padding
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use crate::database::{Op, Txn};
use crate::rng::Rng;

const HEADER: usize = 19;
const TYPE_AT: usize = 4;
const LENGTH_AT: usize = 9;
const STMT_END: u8 = 1;
const TABLE_MAP: u8 = 19;
const UPDATE_ROWS: u8 = 24;
const ANNOTATE: u8 = 160;

/// How large transactions come, in the runs that have some.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// How many of 1000 transactions are large.
    pub permille: u64,
    /// Chunks have 2 to this many bytes, or a little more.
    pub chunk: u8,
    /// Pause before a node looks again whether to ask for a chunk, at most.
    pub pause: Duration,
    /// At how many of 1000 commits among the chunks of a transaction a server
    /// throws these away.
    pub thrown: u64,
    /// How often, of 1000 looks 10 ms apart, a node dies while one is open.
    pub struck: u64,
}

impl Large {
    /// Whether and how the run of `seed` has some. `always`: it has.
    pub fn draw(seed: u64, always: bool) -> Option<Self> {
        let mut rng = Rng::new(seed, &[0x1a49e]);
        (rng.chance(400) || always).then(|| Large {
            permille: rng.range(20, 200),
            chunk: rng.range(7, 8) as u8,
            pause: rng.ms(5, 120),
            thrown: [0, 2, 20][rng.below(3) as usize],
            struck: [0, 4, 12][rng.below(3) as usize],
        })
    }
}

/// The payload of `txn`, to be cut into chunks of 2 to `chunk` bytes: two or
/// three operations go into each.
pub fn encode(txn: &Txn, chunk: u8) -> Vec<u8> {
    let mut rng = Rng::new(txn.id, &[0x1a49e]);
    let mut out = Vec::new();
    let mut left = &txn.ops[..];
    while !left.is_empty() {
        let rows = rng.range(1, 7).min(left.len() as u64) as usize;
        let (ops, rest) = left.split_at(rows);
        left = rest;
        if rng.chance(500) {
            out.extend(event(ANNOTATE, b"UPDATE t"));
        }
        let tables: BTreeSet<u8> = ops.iter().map(table).collect();
        for table in tables {
            out.extend(event(TABLE_MAP, &[table, 0, 0, 0, 0, 0, 7, 7, 7]));
        }
        for (at, op) in ops.iter().enumerate() {
            let last = at + 1 == ops.len();
            let mut body = vec![table(op), 0, 0, 0, 0, 0, u8::from(last), 0];
            // In memory there is nothing that could fail.
            body.extend(postcard::to_allocvec(&(txn.id, *op)).unwrap_or_default());
            let padding = rng.range(1 << (chunk - 2), 1 << (chunk - 1));
            body.extend((0..padding).map(|_| rng.u64() as u8));
            out.extend(event(UPDATE_ROWS, &body));
        }
    }
    out
}

/// The whole transaction in a payload.
pub fn decode(payload: &[u8]) -> Result<Txn, &'static str> {
    let rows = rows(payload)?;
    let (id, _) = *rows.first().ok_or("it has no rows")?;
    Ok(Txn {
        id,
        ops: rows.into_iter().map(|(_, op)| op).collect(),
        filler: Vec::new(),
    })
}

/// What a server finds in a payload or in a chunk of one, each row with its
/// transaction. A row of a table that it was not told of is an error, and so is
/// a statement that does not end.
pub fn rows(events: &[u8]) -> Result<Vec<(u64, Op)>, &'static str> {
    let (mut at, mut open) = (0, BTreeSet::new());
    let mut found = Vec::new();
    while at < events.len() {
        let length = events.get(at + LENGTH_AT..at + LENGTH_AT + 4);
        let length = length.and_then(|l| l.try_into().ok()).ok_or("torn")?;
        let end = at + u32::from_le_bytes(length) as usize;
        let event = events.get(at..end).ok_or("torn")?;
        let body = event.get(HEADER..).ok_or("torn")?;
        match event[TYPE_AT] {
            TABLE_MAP => {
                open.insert(body[0]);
            }
            UPDATE_ROWS => {
                if !open.contains(&body[0]) {
                    return Err("rows of a table that is not open");
                }
                let row = postcard::take_from_bytes(&body[8..]).map_err(|_| "no row")?;
                found.push(row.0);
                if body[6] & STMT_END != 0 {
                    open.clear();
                }
            }
            _ => {}
        }
        at = end;
    }
    match open.is_empty() {
        true => Ok(found),
        false => Err("a statement is open at the end"),
    }
}

fn event(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut event = vec![0; HEADER];
    event[TYPE_AT] = kind;
    let length = (HEADER + body.len()) as u32;
    event[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
    event.extend_from_slice(body);
    event
}

fn table(op: &Op) -> u8 {
    1 + (op.key() % 3) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_writeset::Plan;

    #[test]
    fn the_real_plan_cuts_it_and_the_chunks_are_the_whole() {
        let mut most = 0;
        for id in 1..200 {
            let chunk = 7 + (id % 2) as u8;
            let ops: Vec<Op> = (0..6 + id as u32 % 10)
                .map(|key| Op::Bump { key, seen: 70 })
                .collect();
            let txn = Txn {
                id,
                ops,
                filler: Vec::new(),
            };
            let payload = encode(&txn, chunk);
            assert_eq!(decode(&payload).as_ref(), Ok(&txn));
            let plan = Plan::of(&payload, 1 << chunk).expect("rows only");
            let chunks = (0..plan.len()).map(|n| plan.chunk(&payload, n).expect("there"));
            let all: Vec<Op> = chunks
                .flat_map(|c| rows(&c).expect("right"))
                .map(|(of, op)| {
                    assert_eq!(of, id);
                    op
                })
                .collect();
            assert_eq!(all, txn.ops);
            most = most.max(plan.len());
        }
        assert!((5..=9).contains(&most), "{most}");
    }

    #[test]
    fn some_runs_have_large_ones_and_most_have_not() {
        let with = (0..1_000)
            .filter(|s| Large::draw(*s, false).is_some())
            .count();
        assert!((300..500).contains(&with), "{with}");
    }
}
