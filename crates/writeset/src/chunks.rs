//! How the payload of a large transaction is cut, so that others can apply it
//! piece by piece as if the server had streamed it.
//!
//! A payload is a sequence of binlog events, as the server made them:
//!
//! ```text
//!   statement 1: ANNOTATE  TABLE_MAP..  rows rows rows*     * the statement's last one: STMT_END
//!   SAVEPOINT
//!   statement 2: ANNOTATE  TABLE_MAP..  rows rows*
//! ```
//!
//! A cut falls only behind a rows event. If that one is not its statement's last,
//! the copy that is applied gets STMT_END, and the next chunk begins with all
//! table maps of the statement. Both matter: without the maps the server loses
//! the rows without a word, without STMT_END it keeps the tables open.
//!
//! Whoever holds the same bytes finds the same cuts.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::codec::PayloadSum;
use crate::events::{HEADER, LENGTH_AT, QUERY, TYPE_AT, begins_with, text_of};
use crate::payload::Kept;

/// Of a rows event: behind the header and the six bytes of the table's number.
const ROWS_FLAGS_AT: usize = HEADER + 6;
const STMT_END: u8 = 1;
/// So many bytes of a statement tell whether it is a savepoint: header, fixed part, status, name
/// of the database, 0, the word.
const SAVEPOINT_MAX: usize = HEADER + 13 + u16::MAX as usize + u8::MAX as usize + 1 + 10;

const TABLE_MAP: u8 = 19;
const ANNOTATE: u8 = 160;
/// Rows events of version 1: write, update, delete; plain and compressed.
const ROWS: [u8; 6] = [23, 24, 25, 166, 167, 168];

/// Why a payload can only be applied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WholeOnly {
    /// An event that carries more than rows, a statement say.
    #[error("it holds an event of type {0}, which must not be parted from the others")]
    Event(u8),
    /// The bytes are no sequence of events as expected.
    #[error("its bytes at {0} are no event as they are expected")]
    Shape(usize),
    /// There is no place to cut.
    #[error("it is no longer than one chunk")]
    Short,
}

/// One part of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    /// Table maps to be repeated before it.
    maps: Vec<Range<usize>>,
    body: Range<usize>,
    /// The byte of flags that gets STMT_END.
    ends_at: Option<usize>,
    /// The checksum of the body.
    sum: u64,
}

impl Chunk {
    /// Ends the statement in `out`: so many bytes of maps, then the body. None: the plan is of
    /// another payload.
    fn end(&self, maps: usize, out: &mut BytesMut) -> Option<()> {
        if let Some(at) = self.ends_at {
            *out.get_mut(maps + at - self.body.start)? |= STMT_END;
        }
        Some(())
    }
}

/// Where a payload is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    chunks: Vec<Chunk>,
}

impl Plan {
    /// Cuts `payload` into chunks of `target` bytes or a little more. Reads the
    /// events' headers only.
    pub fn of(payload: &[u8], target: usize) -> Result<Plan, WholeOnly> {
        let mut cutter = Cutter::new(target);
        cutter.take(payload);
        cutter.finish()
    }

    /// How many chunks there are, at least two.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Never: see [`Plan::len`].
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// How many bytes chunk `n` has; 0 if there is none.
    pub fn chunk_len(&self, n: usize) -> usize {
        let maps = |c: &Chunk| c.maps.iter().map(ExactSizeIterator::len).sum::<usize>();
        let chunk = self.chunks.get(n);
        chunk.map_or(0, |c| maps(c) + c.body.len())
    }

    /// Whether chunk `n` of `payload` has the bytes that the plan was made of: for who keeps it
    /// where it may be damaged. False if there is no such chunk.
    pub fn is_sound(&self, payload: &[u8], n: usize) -> bool {
        let chunk = self.chunks.get(n);
        let body = chunk.and_then(|c| Some((payload.get(c.body.clone())?, c.sum)));
        body.is_some_and(|(bytes, sum)| PayloadSum::of(bytes) == sum)
    }

    /// The bytes of chunk `n` of `payload`, which must be the one the plan was
    /// made of. None if there is no such chunk.
    pub fn chunk(&self, payload: &[u8], n: usize) -> Option<Bytes> {
        let chunk = self.chunks.get(n)?;
        let mut out = BytesMut::with_capacity(self.chunk_len(n));
        for map in &chunk.maps {
            out.extend_from_slice(payload.get(map.clone())?);
        }
        let maps = out.len();
        out.extend_from_slice(payload.get(chunk.body.clone())?);
        chunk.end(maps, &mut out)?;
        Some(out.freeze())
    }

    /// The bytes of chunk `n` of a payload that is elsewhere, compared with what the plan was
    /// made of. Reads what it needs, and no more.
    pub fn read_chunk(&self, payload: &Kept, n: usize) -> Result<Bytes, String> {
        let none = || format!("there is no chunk {n}");
        let chunk = self.chunks.get(n).ok_or_else(none)?;
        let mut out = BytesMut::with_capacity(self.chunk_len(n));
        for map in &chunk.maps {
            payload.read_to(map.start as u64..map.end as u64, &mut out)?;
        }
        let maps = out.len();
        payload.read_to(chunk.body.start as u64..chunk.body.end as u64, &mut out)?;
        if PayloadSum::of(&out[maps..]) != chunk.sum {
            return Err(format!(
                "the bytes of chunk {n} are not those that came (their checksum differs)"
            ));
        }
        chunk.end(maps, &mut out).ok_or_else(none)?;
        Ok(out.freeze())
    }
}

/// Chunks of 2 to this many bytes are the smallest, and up to [`CHUNK_MAX`] the largest.
pub const CHUNK_MIN: u8 = 7;
/// See [`CHUNK_MIN`].
pub const CHUNK_MAX: u8 = 24;

/// Finds the cuts of a payload as its bytes come, in pieces of any size.
#[derive(Debug)]
pub(crate) struct Cutter {
    target: usize,
    chunks: Vec<Chunk>,
    /// The table maps of the statement that is open, or was the last one.
    maps: Vec<Range<usize>>,
    /// Whether no statement is open.
    over: bool,
    /// The table maps before the chunk that has begun.
    begun: Vec<Range<usize>>,
    /// Where it begins.
    start: usize,
    /// A cut that counts if anything comes behind it.
    cut: Option<Chunk>,
    /// Of the chunk that has begun.
    sum: PayloadSum,
    /// Where the event begins that is coming.
    at: usize,
    /// How much of it has come.
    come: usize,
    /// Its first bytes, as many as are looked at.
    front: Vec<u8>,
    /// Its length, once that is known.
    length: Option<usize>,
    failed: Option<WholeOnly>,
}

impl Cutter {
    /// For chunks of `target` bytes or a little more.
    pub(crate) fn new(target: usize) -> Self {
        Cutter {
            target,
            chunks: Vec::new(),
            maps: Vec::new(),
            over: true,
            begun: Vec::new(),
            start: 0,
            cut: None,
            sum: PayloadSum::new(),
            at: 0,
            come: 0,
            front: Vec::new(),
            length: None,
            failed: None,
        }
    }

    /// Whether nothing has come that speaks against chunks.
    pub(crate) fn may_succeed(&self) -> bool {
        self.failed.is_none()
    }

    /// Takes what comes next.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failed.is_none() {
            if let Some(chunk) = self.cut.take() {
                self.begin_behind(chunk);
            }
            let want = self.wanted();
            if self.front.len() < want {
                let n = bytes.len().min(want - self.front.len());
                self.front.extend_from_slice(&bytes[..n]);
                self.sum.update(&bytes[..n]);
                self.come += n;
                bytes = &bytes[n..];
                if let (None, Some(length)) = (self.length, self.front.get(LENGTH_AT..HEADER)) {
                    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
                    if length as usize <= HEADER {
                        self.failed = Some(WholeOnly::Shape(self.at));
                        return;
                    }
                    self.length = Some(length as usize);
                }
            }
            if let Some(length) = self.length {
                let n = bytes.len().min(length - self.come);
                // What is still wanted of the front is taken above.
                if self.front.len() >= self.wanted() {
                    self.sum.update(&bytes[..n]);
                    self.come += n;
                    bytes = &bytes[n..];
                }
                if self.come == length {
                    self.event(length);
                }
            }
        }
    }

    /// How many bytes of the event that is coming are looked at.
    fn wanted(&self) -> usize {
        match self.length {
            None => HEADER,
            Some(length) if self.front[TYPE_AT] == QUERY => length.min(SAVEPOINT_MAX),
            Some(length) => length.min(ROWS_FLAGS_AT + 1),
        }
    }

    /// The event that came is whole.
    fn event(&mut self, length: usize) {
        let (at, end) = (self.at, self.at + length);
        let front = std::mem::take(&mut self.front);
        match front[TYPE_AT] {
            ANNOTATE => {}
            QUERY if is_savepoint(&front) => {}
            TABLE_MAP => {
                if self.over {
                    self.maps.clear();
                    self.over = false;
                }
                self.maps.push(at..end);
            }
            t if ROWS.contains(&t) => match front.get(ROWS_FLAGS_AT) {
                Some(flags) if !self.over => {
                    self.over = flags & STMT_END != 0;
                    if end - self.start >= self.target {
                        self.cut = Some(Chunk {
                            maps: Vec::new(),
                            body: self.start..end,
                            ends_at: (!self.over).then_some(at + ROWS_FLAGS_AT),
                            sum: self.sum.sum(),
                        });
                    }
                }
                _ => self.failed = Some(WholeOnly::Shape(at)),
            },
            t => self.failed = Some(WholeOnly::Event(t)),
        }
        self.front = front;
        self.front.clear();
        (self.at, self.come, self.length) = (end, 0, None);
    }

    fn begin_behind(&mut self, mut chunk: Chunk) {
        chunk.maps = std::mem::take(&mut self.begun);
        if !self.over {
            self.begun.clone_from(&self.maps);
        }
        self.start = chunk.body.end;
        self.sum = PayloadSum::new();
        self.chunks.push(chunk);
    }

    /// Nothing comes any more.
    pub(crate) fn finish(mut self) -> Result<Plan, WholeOnly> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        if self.come > 0 || !self.over {
            return Err(WholeOnly::Shape(self.at));
        }
        if self.chunks.is_empty() {
            return Err(WholeOnly::Short);
        }
        self.chunks.push(Chunk {
            maps: self.begun,
            body: self.start..self.at,
            ends_at: None,
            sum: self.sum.sum(),
        });
        Ok(Plan {
            chunks: self.chunks,
        })
    }
}

/// Whether a QUERY event is a savepoint: the only statement that the server
/// puts among rows and that says nothing about data.
fn is_savepoint(event: &[u8]) -> bool {
    text_of(event).is_some_and(|t| begins_with(t, b"SAVEPOINT "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::made::{event, query};
    use proptest::prelude::*;

    fn map(table: u8) -> Vec<u8> {
        event(TABLE_MAP, &[table, 0, 0, 0, 0, 0, 7, 7, 7])
    }

    fn rows(kind: u8, table: u8, last: bool, data: &[u8]) -> Vec<u8> {
        let mut body = vec![table, 0, 0, 0, 0, 0, u8::from(last), 0];
        body.extend_from_slice(data);
        event(kind, &body)
    }

    /// The end of the event at `at`, if it is whole.
    fn event_end(payload: &[u8], at: usize) -> Option<usize> {
        let length = payload.get(at + LENGTH_AT..at + LENGTH_AT + 4)?;
        let end = at + u32::from_le_bytes(length.try_into().ok()?) as usize;
        (end > at + HEADER && end <= payload.len()).then_some(end)
    }

    /// The plan of a payload that is there as a whole.
    fn naive(payload: &[u8], target: usize) -> Result<Plan, WholeOnly> {
        let (mut chunks, mut maps, mut begun) = (Vec::new(), Vec::new(), Vec::new());
        let (mut over, mut start, mut at) = (true, 0, 0);
        while at < payload.len() {
            let end = event_end(payload, at).ok_or(WholeOnly::Shape(at))?;
            match payload[at + TYPE_AT] {
                ANNOTATE => {}
                QUERY if is_savepoint(&payload[at..end]) => {}
                TABLE_MAP => {
                    if std::mem::take(&mut over) {
                        maps.clear();
                    }
                    maps.push(at..end);
                }
                t if ROWS.contains(&t) => {
                    let flags_at = at + ROWS_FLAGS_AT;
                    if over || flags_at >= end {
                        return Err(WholeOnly::Shape(at));
                    }
                    over = payload[flags_at] & STMT_END != 0;
                    if end - start >= target && end < payload.len() {
                        chunks.push(Chunk {
                            maps: std::mem::take(&mut begun),
                            body: start..end,
                            ends_at: (!over).then_some(flags_at),
                            sum: PayloadSum::of(&payload[start..end]),
                        });
                        if !over {
                            begun.clone_from(&maps);
                        }
                        start = end;
                    }
                }
                t => return Err(WholeOnly::Event(t)),
            }
            at = end;
        }
        if !over {
            return Err(WholeOnly::Shape(at));
        }
        if chunks.is_empty() {
            return Err(WholeOnly::Short);
        }
        chunks.push(Chunk {
            maps: begun,
            body: start..at,
            ends_at: None,
            sum: PayloadSum::of(&payload[start..at]),
        });
        Ok(Plan { chunks })
    }

    /// What a server does with a chunk: rows of tables it has been told of. Its
    /// answer are the rows; a row of an unknown table, or a statement that is
    /// open at the end, is an error.
    fn apply(chunk: &[u8]) -> Result<Vec<(u8, u8, Vec<u8>)>, String> {
        let (mut at, mut open) = (0, Vec::new());
        let mut found = Vec::new();
        while at < chunk.len() {
            let end = event_end(chunk, at).ok_or("torn")?;
            match chunk[at + TYPE_AT] {
                TABLE_MAP => open.push(chunk[at + HEADER]),
                t if ROWS.contains(&t) => {
                    let table = chunk[at + HEADER];
                    if !open.contains(&table) {
                        return Err(format!("rows of table {table}, which is not open"));
                    }
                    found.push((t, table, chunk[at + HEADER + 8..end].to_vec()));
                    if chunk[at + ROWS_FLAGS_AT] & STMT_END != 0 {
                        open.clear();
                    }
                }
                _ => {}
            }
            at = end;
        }
        match open.is_empty() {
            true => Ok(found),
            false => Err("a statement is open at the end".into()),
        }
    }

    #[test]
    fn a_statement_longer_than_a_chunk_is_ended_and_begun_again() {
        let mut payload = event(ANNOTATE, b"UPDATE t");
        payload.extend(map(1));
        payload.extend(map(2));
        for i in 0..10u8 {
            payload.extend(rows(24, 1 + i % 2, i == 9, &[i; 50]));
        }
        let plan = Plan::of(&payload, 200).expect("rows only");
        assert!(plan.len() > 2);
        let second = plan.chunk(&payload, 1).expect("there");
        let maps = [map(1), map(2)].concat();
        assert_eq!(&second[..maps.len()], &maps[..]);
        let all: Vec<_> = (0..plan.len())
            .flat_map(|n| apply(&plan.chunk(&payload, n).expect("there")).expect("right"))
            .collect();
        assert_eq!(all, apply(&payload).expect("right"));
        assert_eq!(plan.chunk(&payload, plan.len()), None);
        let sound = |p: &[u8]| {
            (0..=plan.len())
                .map(|n| plan.is_sound(p, n))
                .collect::<Vec<_>>()
        };
        let mut expected = vec![true; plan.len()];
        expected.push(false);
        assert_eq!(sound(&payload), expected);
        let mut damaged = payload.clone();
        damaged[plan.chunks[1].body.start + 30] ^= 4;
        expected[1] = false;
        assert_eq!(sound(&damaged), expected);
        damaged.truncate(plan.chunks[1].body.end - 1);
        expected[2..].fill(false);
        assert_eq!(sound(&damaged), expected);
    }

    #[test]
    fn what_is_not_rows_goes_whole() {
        let statement = || [map(1), rows(23, 1, true, &[1; 90])].concat();
        let plan = |middle: Vec<u8>| Plan::of(&[statement(), middle, statement()].concat(), 50);
        assert_eq!(plan(query("savepoint `a`")).map(|p| p.len()), Ok(2));
        assert_eq!(
            plan(query("CREATE TABLE t (a INT)")),
            Err(WholeOnly::Event(QUERY))
        );
        assert_eq!(plan(query("ROLLBACK TO a")), Err(WholeOnly::Event(QUERY)));
        assert_eq!(plan(event(162, &[0; 20])), Err(WholeOnly::Event(162)));
        assert_eq!(
            plan(rows(23, 1, true, &[])),
            Err(WholeOnly::Shape(statement().len())),
            "rows without a table map"
        );
        assert_eq!(Plan::of(&statement(), 1 << 20), Err(WholeOnly::Short));
        assert_eq!(Plan::of(&[], 10), Err(WholeOnly::Short));
        let torn = statement();
        assert!(matches!(
            Plan::of(&torn[..torn.len() - 1], 50),
            Err(WholeOnly::Shape(_))
        ));
        let open = [map(1), rows(23, 1, false, &[1; 90])].concat();
        assert_eq!(Plan::of(&open, 50), Err(WholeOnly::Shape(open.len())));
    }

    #[derive(Clone, Debug)]
    struct Statement {
        annotated: bool,
        savepoint: bool,
        tables: u8,
        rows: Vec<(u8, u8, usize)>,
    }

    fn statement() -> impl Strategy<Value = Statement> {
        let row = (0..6u8, any::<u8>(), 0..300usize);
        (
            any::<bool>(),
            any::<bool>(),
            1..4u8,
            prop::collection::vec(row, 1..20),
        )
            .prop_map(|(annotated, savepoint, tables, rows)| Statement {
                annotated,
                savepoint,
                tables,
                rows,
            })
    }

    fn payload(statements: &[Statement]) -> Vec<u8> {
        let mut out = Vec::new();
        for (i, s) in statements.iter().enumerate() {
            if s.annotated {
                out.extend(event(ANNOTATE, b"INSERT"));
            }
            for t in 0..s.tables {
                out.extend(map(i as u8 * 4 + t));
            }
            for (j, (kind, table, len)) in s.rows.iter().enumerate() {
                let table = i as u8 * 4 + table % s.tables;
                let last = j + 1 == s.rows.len();
                out.extend(rows(
                    ROWS[*kind as usize],
                    table,
                    last,
                    &vec![j as u8; *len],
                ));
            }
            if s.savepoint {
                out.extend(query("SAVEPOINT s"));
            }
        }
        out
    }

    proptest! {
        #[test]
        fn chunks_are_the_whole(statements in prop::collection::vec(statement(), 1..12), target in 1..3000usize) {
            let payload = payload(&statements);
            match Plan::of(&payload, target) {
                Ok(plan) => {
                    prop_assert!(plan.len() >= 2);
                    let mut all = Vec::new();
                    for n in 0..plan.len() {
                        let chunk = plan.chunk(&payload, n).expect("there");
                        prop_assert_eq!(chunk.len(), plan.chunk_len(n));
                        let body = plan.chunks[n].body.len();
                        prop_assert!(n + 1 == plan.len() || body >= target);
                        prop_assert!(body < target + 600, "{body}");
                        all.extend(apply(&chunk).map_err(TestCaseError::fail)?);
                    }
                    prop_assert_eq!(all, apply(&payload).map_err(TestCaseError::fail)?);
                }
                Err(e) => prop_assert_eq!(e, WholeOnly::Short),
            }
        }

        #[test]
        fn a_plan_is_the_naive_one_in_whatever_pieces_it_comes(
            statements in prop::collection::vec(statement(), 1..8),
            odd in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            less in 0..40usize,
            target in 1..2000usize,
            sizes in prop::collection::vec(1..120usize, 1..9),
        ) {
            let mut payload = payload(&statements);
            if let Some((at, byte)) = odd {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            if less < 20 {
                payload.truncate(payload.len().saturating_sub(less));
            }
            let mut cutter = Cutter::new(target);
            let (mut rest, mut sizes) = (&payload[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let n = rest.len().min(*sizes.next().expect("for ever"));
                cutter.take(&rest[..n]);
                rest = &rest[n..];
            }
            let naive = naive(&payload, target);
            prop_assert_eq!(cutter.finish(), naive.clone());
            prop_assert_eq!(Plan::of(&payload, target), naive);
        }

        #[test]
        fn any_bytes_are_cut_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..400), target in 1..100usize) {
            // Often enough something like an event.
            if bytes.len() > 30 {
                bytes[TYPE_AT] = TABLE_MAP;
                bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&25u32.to_le_bytes());
            }
            if let Ok(plan) = Plan::of(&bytes, target) {
                for n in 0..plan.len() {
                    prop_assert!(plan.chunk(&bytes, n).is_some());
                }
            }
        }
    }
}
