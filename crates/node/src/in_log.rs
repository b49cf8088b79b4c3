//! Large payloads that stay where they came: in the log. What each of them has where,
//! and from which index on the log is needed for that.
//!
//! ```text
//!   log     .. | piece 0 | small | piece 1 | piece 2 | small | piece 3 | ..
//!                |                 |
//!   here       header and keys    (index, offset) of each piece
//! ```
//!
//! As long as somebody holds one of them its log stays ([`LeftInLog::first`]), and what is
//! still to be read of it stays in the kernel's memory, if that has room ([`SoonRead`]).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use dromon_log::SoonRead;
use dromon_order::sequencer::{PieceAt, StreamKey};
use dromon_order::{Committed, CommittedBody, Part};
use dromon_writeset::{Keeper, Kept};

use crate::node::lock;

/// Pieces no further apart, in entries, are read in one go.
const NEAR: u64 = 64;
/// And so many bytes of them.
const RUN: u64 = 1 << 20;

/// Reads the entries of the log from one index to another, or some of them from the first on.
pub type ReadLog = Arc<dyn Fn(u64, u64) -> Result<Vec<Committed>, String> + Send + Sync>;

/// What is left in one log.
#[derive(Debug, Default)]
pub struct LeftInLog {
    all: Mutex<All>,
    soon: SoonRead,
}

#[derive(Debug, Default)]
struct All {
    next: u64,
    /// Where each begins, and what of it was read last.
    places: BTreeMap<u64, (u64, u64)>,
}

impl LeftInLog {
    /// The lowest index that is needed.
    pub fn first(&self) -> Option<u64> {
        let all = lock(&self.all);
        all.places.values().map(|(first, _)| *first).min()
    }

    /// From where on it is going to be read.
    pub fn soon(&self) -> &SoonRead {
        &self.soon
    }

    /// Something begins at `first`, and is needed until what this returns is dropped.
    pub fn hold(self: &Arc<Self>, first: u64) -> Hold {
        let mut all = lock(&self.all);
        let n = all.next;
        all.next += 1;
        all.places.insert(n, (first, first));
        self.tell(&all);
        Hold {
            n,
            of: self.clone(),
        }
    }

    fn tell(&self, all: &All) {
        let read = all.places.values().map(|(_, read)| *read);
        self.soon.set(read.min());
    }
}

/// See [`LeftInLog::hold`].
#[derive(Debug)]
pub struct Hold {
    n: u64,
    of: Arc<LeftInLog>,
}

impl Hold {
    /// What lies before `index` is not read any more, if all goes well.
    fn reached(&self, index: u64) {
        let mut all = lock(&self.of.all);
        if let Some((_, read)) = all.places.get_mut(&self.n).filter(|(_, r)| *r < index) {
            *read = index;
            self.of.tell(&all);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = lock(&self.of.all);
        all.places.remove(&self.n);
        self.of.tell(&all);
    }
}

/// A log that pieces can be read from again.
#[derive(Clone)]
pub struct PieceLog {
    /// How.
    pub read: ReadLog,
    /// What must stay in it.
    pub left: Arc<LeftInLog>,
}

impl PieceLog {
    /// For who only counts what comes, and reads nothing again.
    pub fn unread() -> Self {
        PieceLog {
            read: Arc::new(|_, _| Err("it was only counted".to_owned())),
            left: Arc::default(),
        }
    }
}

impl fmt::Debug for PieceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceLog")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// One message whose pieces are left in the log, but for its first bytes.
#[derive(Debug)]
pub struct LeftMessage {
    key: StreamKey,
    log: PieceLog,
    hold: Hold,
    /// So many bytes are collected at its front.
    front_len: u64,
    front: Vec<u8>,
    /// Index of each piece, and how many bytes came before it.
    pieces: Vec<(u64, u64)>,
    len: u64,
}

impl LeftMessage {
    /// A message whose first piece comes from `first`, and whose first `front_len` bytes
    /// are to be here.
    pub fn begin(key: StreamKey, log: &PieceLog, first: PieceAt, front_len: u64) -> Self {
        LeftMessage {
            key,
            log: log.clone(),
            hold: log.left.hold(first.index),
            front_len,
            front: Vec::new(),
            pieces: Vec::new(),
            len: 0,
        }
    }

    /// The next piece came from `at`.
    pub fn push(&mut self, at: PieceAt, piece: &[u8]) {
        let wanted = self.front_len.saturating_sub(self.len);
        let n = piece.len().min(wanted as usize);
        self.front.extend_from_slice(&piece[..n]);
        self.pieces.push((at.index, self.len));
        self.len += piece.len() as u64;
    }

    /// All that has come.
    pub fn read_all(&self) -> Result<Bytes, String> {
        self.read(0..self.len)
    }

    fn read(&self, range: Range<u64>) -> Result<Bytes, String> {
        let mut out = BytesMut::new();
        self.read_to(range, &mut out)?;
        Ok(out.freeze())
    }

    /// All has come: its front, and the rest. No rest: the front is all.
    pub fn finish(mut self) -> (Bytes, Option<Kept>) {
        let front = Bytes::from(std::mem::take(&mut self.front));
        let rest = (self.len >= self.front_len).then(|| Kept::by(Arc::new(Rest(self))));
        (front, rest)
    }

    /// Adds the bytes of the message in `range` to `out`.
    fn read_to(&self, range: Range<u64>, out: &mut BytesMut) -> Result<(), String> {
        if range.start > range.end || range.end > self.len {
            return Err(format!("it has {} bytes, not {range:?}", self.len));
        }
        let mut i = self.pieces.partition_point(|(_, at)| *at <= range.start);
        i = i.saturating_sub(1);
        let end = self.pieces.partition_point(|(_, at)| *at < range.end);
        let first = self.pieces.get(i).map_or(0, |(index, _)| *index);
        while i < end {
            let last = self.run(i, end);
            let before = i;
            for entry in (self.log.read)(self.pieces[i].0, self.pieces[last].0)? {
                if i <= last && entry.index == self.pieces[i].0 {
                    out.extend_from_slice(&self.part(i, entry, &range)?);
                    i += 1;
                }
            }
            if i == before {
                return Err(format!("log index {} is not there", self.pieces[i].0));
            }
        }
        self.hold.reached(first);
        Ok(())
    }

    /// The last of those from piece `i` on, below `end`, that are read together.
    fn run(&self, i: usize, end: usize) -> usize {
        let mut last = i;
        while let Some((index, at)) = self.pieces[..end].get(last + 1) {
            if *index - self.pieces[last].0 > NEAR || *at - self.pieces[i].1 >= RUN {
                break;
            }
            last += 1;
        }
        last
    }

    /// Piece `i`, which `entry` should hold, as far as it lies in `range`.
    fn part(&self, i: usize, entry: Committed, range: &Range<u64>) -> Result<Bytes, String> {
        let at = self.pieces[i].1;
        let len = self.pieces.get(i + 1).map_or(self.len, |(_, at)| *at) - at;
        let other = format!("log index {} holds something else", entry.index);
        let CommittedBody::Message(m) = entry.body else {
            return Err(other);
        };
        let is_it = matches!(m.part, Part::Piece { stream, i: n, .. }
            if stream == self.key.stream && n as usize == i);
        if !is_it || m.origin != self.key.origin || m.body.len() as u64 != len {
            return Err(other);
        }
        let from = range.start.max(at) - at;
        let to = range.end.min(at + len) - at;
        Ok(m.body.slice(from as usize..to as usize))
    }
}

/// What lies behind the front of a message.
#[derive(Debug)]
struct Rest(LeftMessage);

impl Keeper for Rest {
    fn len(&self) -> u64 {
        self.0.len - self.0.front_len
    }

    fn read_to(&self, range: Range<u64>, out: &mut BytesMut) -> Result<(), String> {
        let front = self.0.front_len;
        (self.0).read_to(front + range.start..front + range.end, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dromon_order::RawMessage;
    use dromon_writeset::Uuid;

    const KEY: StreamKey = StreamKey {
        origin: Uuid([3; 16]),
        stream: 5,
    };

    fn entry(index: u64, i: u32, body: Bytes) -> Committed {
        Committed {
            index,
            term: 1,
            leader: Default::default(),
            body: CommittedBody::Message(RawMessage {
                origin: KEY.origin,
                oseq: index,
                kind: 0,
                tag: 0,
                part: Part::Piece {
                    stream: KEY.stream,
                    i,
                    n: 9,
                },
                body,
            }),
        }
    }

    type Entries = Arc<Mutex<BTreeMap<u64, Committed>>>;
    type Asked = Arc<Mutex<Vec<(u64, u64)>>>;

    /// Reads some of them at a time, and says what was asked for.
    fn log_of(entries: &Entries, some: usize) -> (PieceLog, Asked) {
        let asked = Asked::default();
        let (entries, told) = (entries.clone(), asked.clone());
        let read: ReadLog = Arc::new(move |from, to| {
            lock(&told).push((from, to));
            let entries = lock(&entries);
            Ok(entries
                .range(from..=to)
                .take(some)
                .map(|(_, e)| e.clone())
                .collect())
        });
        let left = Arc::default();
        (PieceLog { read, left }, asked)
    }

    fn at(index: u64) -> PieceAt {
        PieceAt { index, kind: 0 }
    }

    /// Nine pieces of ten bytes, every other entry; the last one far away.
    fn message(some: usize) -> (LeftMessage, Entries, Asked, Bytes) {
        let all: Bytes = (0..90u8).collect();
        let entries = Entries::default();
        let (log, asked) = log_of(&entries, some);
        let mut message = LeftMessage::begin(KEY, &log, at(100), 25);
        for i in 0..9u64 {
            let index = if i < 8 { 100 + 2 * i } else { 1000 };
            let piece = all.slice(10 * i as usize..10 * i as usize + 10);
            message.push(at(index), &piece);
            let mut entries = lock(&entries);
            entries.insert(index, entry(index, i as u32, piece));
            let blank = Committed {
                index: index + 1,
                term: 1,
                leader: Default::default(),
                body: CommittedBody::Blank,
            };
            entries.insert(index + 1, blank);
        }
        (message, entries, asked, all)
    }

    #[test]
    fn any_bytes_are_read_from_the_pieces_that_have_them() {
        for some in [1, 2, 3, 100] {
            let (message, _, asked, all) = message(some);
            assert_eq!(message.read_all().as_ref(), Ok(&all));
            let left = message.log.left.clone();
            let (front, rest) = message.finish();
            assert_eq!(front, all[..25]);
            let rest = rest.expect("more than its front");
            assert_eq!(rest.len(), 65);
            for from in 0..=65u64 {
                for to in from..=65 {
                    let bytes = all.slice(25 + from as usize..25 + to as usize);
                    assert_eq!(rest.read(from..to), Ok(bytes), "{from}..{to}");
                }
            }
            assert!(rest.read(0..66).is_err());
            lock(&asked).clear();
            assert!(rest.read(6..8).is_ok());
            assert_eq!(*lock(&asked), [(106, 106)], "nothing else is read");
            assert_eq!(left.first(), Some(100));
        }
        let (message, _, asked, _) = message(100);
        assert!(message.read_all().is_ok());
        assert_eq!(*lock(&asked), [(100, 114), (1000, 1000)]);
    }

    #[test]
    fn what_is_not_that_piece_is_an_error() {
        let (message, entries, _, all) = message(100);
        let spoil = |index, e: Option<Committed>| {
            let before = {
                let mut entries = lock(&entries);
                let before = entries.get(&index).cloned().expect("there");
                match e {
                    Some(e) => entries.insert(index, e),
                    None => entries.remove(&index),
                };
                before
            };
            let read = message.read(20..50);
            lock(&entries).insert(index, before);
            read
        };
        let piece = || all.slice(20..30);
        assert_eq!(
            spoil(104, Some(entry(104, 2, piece()))),
            Ok(all.slice(20..50))
        );
        for e in [
            None,
            Some(entry(104, 3, piece())),
            Some(entry(104, 2, all.slice(20..29))),
            Some(Committed {
                index: 104,
                term: 1,
                leader: Default::default(),
                body: CommittedBody::Blank,
            }),
        ] {
            assert!(spoil(104, e.clone()).is_err(), "{e:?}");
        }
        let mut other = entry(104, 2, piece());
        if let CommittedBody::Message(m) = &mut other.body {
            m.origin = Uuid([4; 16]);
        }
        assert!(spoil(104, Some(other)).is_err());
        assert!(spoil(102, None).is_ok(), "not read");
    }

    #[test]
    fn the_log_is_held_from_the_first_one_on_until_it_is_dropped() {
        let entries = Entries::default();
        let (log, _) = log_of(&entries, 9);
        assert_eq!((log.left.first(), log.left.soon().from()), (None, u64::MAX));
        let begin = |index| {
            let mut m = LeftMessage::begin(KEY, &log, at(index), 1);
            for i in 0..2u64 {
                let piece = Bytes::from_static(b"ab");
                m.push(at(index + i), &piece);
                lock(&entries).insert(index + i, entry(index + i, i as u32, piece));
            }
            m
        };
        let (one, other) = (begin(10), begin(20));
        assert_eq!((log.left.first(), log.left.soon().from()), (Some(10), 10));
        let (_, rest) = one.finish();
        let rest = rest.expect("more than its front");
        assert!(rest.read(2..3).is_ok());
        assert_eq!((log.left.first(), log.left.soon().from()), (Some(10), 11));
        assert!(rest.read(0..1).is_ok());
        assert_eq!(log.left.soon().from(), 11, "as a whole it is read once");
        let again = rest.clone();
        drop(rest);
        assert_eq!(log.left.first(), Some(10));
        drop(again);
        assert_eq!((log.left.first(), log.left.soon().from()), (Some(20), 20));
        drop(other);
        assert_eq!((log.left.first(), log.left.soon().from()), (None, u64::MAX));
    }

    #[test]
    fn one_that_ends_in_its_front_has_no_rest() {
        let (log, _) = log_of(&Entries::default(), 9);
        let mut m = LeftMessage::begin(KEY, &log, at(10), 30);
        m.push(at(10), b"abc");
        let (front, rest) = m.finish();
        assert_eq!((front, rest), (Bytes::from_static(b"abc"), None));
        assert_eq!(log.left.first(), None);
    }
}
