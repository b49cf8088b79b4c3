//! From the log to messages: each message of each origin exactly once, in the
//! order the origin numbered them, large ones put together again.
//!
//! The log may hold copies (an origin sends again when it does not know what
//! became of a message) and copies out of order (two leaders, one after the
//! other). The rule that makes one sequence of it looks at nothing but the log:
//!
//! > A message counts if its origin is registered and its number is one more
//! > than that of the origin's last message that counted. Otherwise it is as
//! > if it were not there.
//!
//! So the state is a number per origin and the pieces of payloads that have
//! not arrived in full. It is the same on every member at the same index, goes
//! into checkpoints ([`Sequencer::encode`]) and is compared ([`Sequencer::digest`]).
//!
//! An origin's identity must never be registered again once it was forgotten:
//! a copy from its first life, still on its way to the log, would count again.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use dromon_writeset::{Arrived, Kept, Uuid};
use twox_hash::XxHash3_64;

pub use crate::message::{CodecError, Committed, CommittedBody, Delivered, Part, RawMessage};

/// Names one half-arrived payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// Who sends it.
    pub origin: Uuid,
    /// Which of the origin's large messages.
    pub stream: u64,
}

/// The place outside of memory for large payloads could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pieces of a large message of {} cannot be {doing}: {why}; this node cannot deliver the message and must stop delivering", .key.origin)]
pub struct StoreError {
    /// Which payload.
    pub key: StreamKey,
    /// What failed: written, read.
    pub doing: &'static str,
    /// The operating system's words.
    pub why: String,
}

/// Where a piece came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceAt {
    /// The log's entry that holds it.
    pub index: u64,
    /// What its message is to the node.
    pub kind: u8,
}

/// Where payloads above a limit are collected instead of in memory, usually a
/// file per payload. Nothing in it outlives the process: after a start the
/// pieces come from the checkpoint and the log again.
pub trait PieceStore: Send {
    /// Adds `piece` behind those already there (the first call makes the place). `at`: where
    /// it lies in the log; `None` if it may not be there any more (it came with a checkpoint).
    fn append(
        &mut self,
        key: StreamKey,
        at: Option<PieceAt>,
        piece: &[u8],
    ) -> Result<(), StoreError>;

    /// Everything appended so far, in one (a mapped file wrapped into [`Bytes`],
    /// for instance).
    fn read(&self, key: StreamKey) -> Result<Bytes, StoreError>;

    /// All has come: the payload, and what was found out of it, if it is a write set and was
    /// looked at as it was appended. If what was found says that most was left where it lies
    /// ([`Arrived::kept`]), the bytes are what stands before that.
    fn finish(&mut self, key: StreamKey) -> Result<(Bytes, Option<Arrived>), StoreError> {
        Ok((self.read(key)?, None))
    }

    /// Forgets the payload. What `read` returned stays valid.
    fn discard(&mut self, key: StreamKey);
}

/// The store of a [`Sequencer`] whose limit is infinite: never asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl PieceStore for InMemory {
    fn append(&mut self, key: StreamKey, _: Option<PieceAt>, _: &[u8]) -> Result<(), StoreError> {
        Err(StoreError {
            key,
            doing: "written",
            why: "no store was given".to_owned(),
        })
    }

    fn read(&self, key: StreamKey) -> Result<Bytes, StoreError> {
        Err(StoreError {
            key,
            doing: "read",
            why: "no store was given".to_owned(),
        })
    }

    fn discard(&mut self, _: StreamKey) {}
}

/// Counts since this sequencer was made. Not part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequencerStats {
    /// Whole messages delivered, put-together ones included.
    pub delivered: u64,
    /// Pieces that counted.
    pub pieces: u64,
    /// Dropped: the number had already counted.
    pub duplicates: u64,
    /// Dropped: a number before it is missing.
    pub gaps: u64,
    /// Dropped: the origin is not registered.
    pub unregistered: u64,
    /// Dropped although their number counted: pieces that do not fit together.
    pub malformed: u64,
}

/// A payload of which some pieces have come.
struct Open {
    /// Index of the entry with the first piece.
    first_index: u64,
    kind: u8,
    tag: u64,
    /// The next piece wanted.
    next: u32,
    n: u32,
    /// Bytes so far.
    len: u64,
    /// Chain over the pieces, so that a digest need not read them again.
    chain: u64,
    /// The bytes, and where they came from, unless they lie in the store.
    held: Option<Vec<(Option<PieceAt>, Bytes)>>,
}

/// A payload of which all has come.
struct Whole {
    first_index: u64,
    len: u64,
    body: Bytes,
    arrived: Option<Arrived>,
}

#[derive(Default)]
struct Origin {
    /// The last number that counted; 0 before the first.
    last: u64,
    open: BTreeMap<u64, Open>,
}

/// Turns committed entries into delivered messages. See the module's words.
pub struct Sequencer {
    origins: BTreeMap<Uuid, Origin>,
    stats: SequencerStats,
    store: Box<dyn PieceStore>,
    /// Payloads with more bytes than this go to the store.
    spool_above: u64,
    #[cfg(test)]
    pub(crate) fault_accept_duplicates: bool,
}

impl Default for Sequencer {
    fn default() -> Self {
        Sequencer::new()
    }
}

impl fmt::Debug for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequencer")
            .field("origins", &self.origins.len())
            .field("open_bytes", &self.open_bytes())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Sequencer {
    /// A sequencer that knows no origin and keeps pieces in memory.
    pub fn new() -> Self {
        Self::with_store(Box::new(InMemory), u64::MAX)
    }

    /// Payloads that reach more than `spool_above` bytes are collected in
    /// `store`. Where they are makes no difference to the state.
    pub fn with_store(store: Box<dyn PieceStore>, spool_above: u64) -> Self {
        Sequencer {
            origins: BTreeMap::new(),
            stats: SequencerStats::default(),
            store,
            spool_above,
            #[cfg(test)]
            fault_accept_duplicates: false,
        }
    }

    /// From now on messages of `origin` count, beginning with number 1. False
    /// if it was registered already (nothing changes then).
    pub fn register(&mut self, origin: Uuid) -> bool {
        if self.origins.contains_key(&origin) {
            return false;
        }
        self.origins.insert(origin, Origin::default());
        true
    }

    /// From now on no message of `origin` counts; its half-arrived payloads
    /// are dropped. False if it was not registered.
    pub fn forget(&mut self, origin: Uuid) -> bool {
        let Some(gone) = self.origins.remove(&origin) else {
            return false;
        };
        for (stream, open) in gone.open {
            if open.held.is_none() {
                self.store.discard(StreamKey { origin, stream });
            }
        }
        true
    }

    /// What of `origin` has arrived in part is dropped, and what is still to come of it; its other messages
    /// count as before.
    pub fn drop_open(&mut self, origin: Uuid) {
        let Some(of) = self.origins.get_mut(&origin) else {
            return;
        };
        for (stream, open) in std::mem::take(&mut of.open) {
            if open.held.is_none() {
                self.store.discard(StreamKey { origin, stream });
            }
        }
    }

    /// The number of the last message of `origin` that counted (0: none yet);
    /// `None` if it is not registered.
    pub fn last(&self, origin: Uuid) -> Option<u64> {
        self.origins.get(&origin).map(|o| o.last)
    }

    /// The registered origins and their last numbers, in order of identity.
    pub fn origins(&self) -> impl Iterator<Item = (Uuid, u64)> + '_ {
        self.origins.iter().map(|(u, o)| (*u, o.last))
    }

    /// Takes the next entry. Returns the message that is complete with it, if
    /// there is one.
    ///
    /// An error means this node cannot go on delivering (the store failed);
    /// every later entry would be wrong.
    pub fn accept(&mut self, entry: &Committed) -> Result<Option<Delivered>, StoreError> {
        let CommittedBody::Message(m) = &entry.body else {
            return Ok(None);
        };
        let Some(origin) = self.origins.get_mut(&m.origin) else {
            self.stats.unregistered += 1;
            return Ok(None);
        };
        #[cfg(test)]
        let skip_check = self.fault_accept_duplicates;
        #[cfg(not(test))]
        let skip_check = false;
        if m.oseq <= origin.last && !skip_check {
            self.stats.duplicates += 1;
            return Ok(None);
        }
        if m.oseq > origin.last + 1 {
            self.stats.gaps += 1;
            return Ok(None);
        }
        origin.last = m.oseq;
        let whole = match m.part {
            Part::Whole => Whole {
                first_index: entry.index,
                len: m.body.len() as u64,
                body: m.body.clone(),
                arrived: None,
            },
            Part::Piece { stream, i, n } => {
                self.stats.pieces += 1;
                match self.add_piece(entry.index, m, stream, i, n)? {
                    Some(whole) => whole,
                    None => return Ok(None),
                }
            }
        };
        self.stats.delivered += 1;
        Ok(Some(Delivered {
            index: entry.index,
            from: whole.first_index,
            term: entry.term,
            origin: m.origin,
            kind: m.kind,
            tag: m.tag,
            len: whole.len,
            body: whole.body,
            arrived: whole.arrived,
        }))
    }

    /// Adds a piece; if it was the last one, returns the payload.
    fn add_piece(
        &mut self,
        index: u64,
        m: &RawMessage,
        stream: u64,
        i: u32,
        n: u32,
    ) -> Result<Option<Whole>, StoreError> {
        let key = StreamKey {
            origin: m.origin,
            stream,
        };
        let Some(origin) = self.origins.get_mut(&m.origin) else {
            return Ok(None);
        };
        let mut open = match origin.open.remove(&stream) {
            Some(o) => o,
            None => Open {
                first_index: index,
                kind: m.kind,
                tag: m.tag,
                next: 0,
                n,
                len: 0,
                chain: 0,
                held: Some(Vec::new()),
            },
        };
        // Numbers that count are without gaps, so pieces of a correct origin
        // fit. What does not fit is dropped on every member alike.
        if i != open.next || n != open.n || i >= n || m.kind != open.kind || m.tag != open.tag {
            self.stats.malformed += 1;
            if open.held.is_none() {
                self.store.discard(key);
            }
            return Ok(None);
        }
        open.next += 1;
        open.len += m.body.len() as u64;
        open.chain = XxHash3_64::oneshot_with_seed(open.chain, &m.body);
        let last = open.next == open.n;
        let at = Some(PieceAt {
            index,
            kind: m.kind,
        });
        let kept = match open.held.take() {
            // A payload that ends here is not worth a trip to the store.
            Some(mut held) if open.len <= self.spool_above || last => {
                held.push((at, m.body.clone()));
                Some(held)
            }
            Some(held) => {
                for (at, piece) in &held {
                    self.store.append(key, *at, piece)?;
                }
                self.store.append(key, at, &m.body)?;
                None
            }
            None => {
                self.store.append(key, at, &m.body)?;
                None
            }
        };
        if !last {
            open.held = kept;
            origin.open.insert(stream, open);
            return Ok(None);
        }
        let (body, arrived) = match kept {
            Some(held) => (concat(&held, open.len), None),
            None => {
                let (body, arrived) = self.store.finish(key)?;
                self.store.discard(key);
                let left = arrived.as_ref().and_then(Arrived::kept);
                let len = body.len() as u64 + left.map_or(0, Kept::len);
                if len != open.len {
                    return Err(StoreError {
                        key,
                        doing: "read",
                        why: format!("{} bytes were stored, {len} came back", open.len),
                    });
                }
                (body, arrived)
            }
        };
        Ok(Some(Whole {
            first_index: open.first_index,
            len: open.len,
            body,
            arrived,
        }))
    }

    /// The lowest index of an entry that belongs to a half-arrived payload:
    /// the log from there on is needed if this state is to be made again from
    /// an older one.
    pub fn open_pieces_from(&self) -> Option<u64> {
        self.origins
            .values()
            .flat_map(|o| o.open.values())
            .map(|o| o.first_index)
            .min()
    }

    /// Bytes of half-arrived payloads: about what [`encode`](Sequencer::encode)
    /// adds to a checkpoint. A good moment for a checkpoint is when it is small.
    pub fn open_bytes(&self) -> u64 {
        self.origins
            .values()
            .flat_map(|o| o.open.values())
            .map(|o| o.len)
            .sum()
    }

    /// Counts for the status.
    pub fn stats(&self) -> SequencerStats {
        self.stats
    }

    /// A hash of the state: equal on members that delivered the same entries.
    /// Does not read payloads again.
    pub fn digest(&self) -> u64 {
        let mut all = BytesMut::new();
        for (id, o) in &self.origins {
            put_origin(&mut all, id, o);
            for (stream, open) in &o.open {
                put_open(&mut all, *stream, open);
            }
        }
        XxHash3_64::oneshot(&all)
    }

    /// The state as canonical bytes with a checksum. Contains the half-arrived
    /// payloads, from the store too.
    ///
    /// Layout (little endian): `DSQ1`, count of origins; per origin: uuid, last
    /// number, count of open payloads; per payload: stream, first index, kind,
    /// tag, next, n, length, chain, then the bytes. CRC-32C of all that at the end.
    pub fn encode(&self) -> Result<Bytes, StoreError> {
        let mut out = BytesMut::with_capacity(64 + self.open_bytes() as usize);
        out.put_slice(STATE_MAGIC);
        out.put_u32_le(self.origins.len() as u32);
        for (id, o) in &self.origins {
            put_origin(&mut out, id, o);
            for (&stream, open) in &o.open {
                put_open(&mut out, stream, open);
                match &open.held {
                    Some(held) => held.iter().for_each(|(_, p)| out.put_slice(p)),
                    None => out.put_slice(&self.store.read(StreamKey {
                        origin: *id,
                        stream,
                    })?),
                }
            }
        }
        out.put_u32_le(crc32c::crc32c(&out));
        Ok(out.freeze())
    }

    /// Reads what [`encode`](Sequencer::encode) wrote, pieces in memory.
    /// Empty bytes are a sequencer without origins.
    pub fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let mut s = Sequencer::new();
        if bytes.is_empty() {
            return Ok(s);
        }
        s.origins = decode_state(bytes)?;
        Ok(s)
    }

    /// From now on payloads that reach more than `spool_above` bytes are
    /// collected in `store`; those already above it move there with their next
    /// piece. To be called before anything went to another store.
    pub fn set_store(&mut self, store: Box<dyn PieceStore>, spool_above: u64) {
        self.store = store;
        self.spool_above = spool_above;
    }
}

const STATE_MAGIC: &[u8; 4] = b"DSQ1";

fn concat(parts: &[(Option<PieceAt>, Bytes)], len: u64) -> Bytes {
    if let [(_, one)] = parts {
        return one.clone();
    }
    let mut all = BytesMut::with_capacity(len as usize);
    parts.iter().for_each(|(_, p)| all.put_slice(p));
    all.freeze()
}

fn put_origin(out: &mut BytesMut, id: &Uuid, o: &Origin) {
    out.put_slice(&id.0);
    out.put_u64_le(o.last);
    out.put_u32_le(o.open.len() as u32);
}

fn put_open(out: &mut BytesMut, stream: u64, o: &Open) {
    out.put_u64_le(stream);
    out.put_u64_le(o.first_index);
    out.put_u8(o.kind);
    out.put_u64_le(o.tag);
    out.put_u32_le(o.next);
    out.put_u32_le(o.n);
    out.put_u64_le(o.len);
    out.put_u64_le(o.chain);
}

fn decode_state(bytes: Bytes) -> Result<BTreeMap<Uuid, Origin>, CodecError> {
    const WHAT: &str = "saved state of the sequencer";
    let len = bytes.len();
    let short = || CodecError::Short { what: WHAT, len };
    let bad = |why| CodecError::Inconsistent { what: WHAT, why };
    if len < STATE_MAGIC.len() + 8 {
        return Err(short());
    }
    let mut buf = bytes.slice(..len - 4);
    let sum = (&bytes[len - 4..]).get_u32_le();
    if crc32c::crc32c(&buf) != sum {
        return Err(bad("its checksum is wrong"));
    }
    let mut magic = [0; 4];
    buf.copy_to_slice(&mut magic);
    if &magic != STATE_MAGIC {
        return Err(CodecError::Unknown {
            what: WHAT,
            found: u32::from_le_bytes(magic).into(),
        });
    }
    let count = buf.get_u32_le();
    let mut origins = BTreeMap::new();
    for _ in 0..count {
        if buf.len() < 16 + 8 + 4 {
            return Err(short());
        }
        let mut id = Uuid::NIL;
        buf.copy_to_slice(&mut id.0);
        let mut o = Origin {
            last: buf.get_u64_le(),
            open: BTreeMap::new(),
        };
        for _ in 0..buf.get_u32_le() {
            if buf.len() < 8 + 8 + 1 + 8 + 4 + 4 + 8 + 8 {
                return Err(short());
            }
            let stream = buf.get_u64_le();
            let mut open = Open {
                first_index: buf.get_u64_le(),
                kind: buf.get_u8(),
                tag: buf.get_u64_le(),
                next: buf.get_u32_le(),
                n: buf.get_u32_le(),
                len: buf.get_u64_le(),
                chain: buf.get_u64_le(),
                held: None,
            };
            if open.len > buf.len() as u64 {
                return Err(short());
            }
            if open.next == 0 || open.next >= open.n {
                return Err(bad("a half-arrived payload has none or all of its pieces"));
            }
            // Fits: compared with the buffer's length above.
            let body = buf.split_to(open.len as usize);
            // A copy, so that a payload does not hold the whole checkpoint.
            open.held = Some(vec![(None, Bytes::copy_from_slice(&body))]);
            if o.open.last_key_value().is_some_and(|(k, _)| *k >= stream) {
                return Err(bad("its payloads are out of order"));
            }
            o.open.insert(stream, open);
        }
        if origins.last_key_value().is_some_and(|(k, _)| *k >= id) {
            return Err(bad("its origins are out of order"));
        }
        origins.insert(id, o);
    }
    if !buf.is_empty() {
        return Err(bad("bytes are left at its end"));
    }
    Ok(origins)
}

#[cfg(test)]
mod left_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    const A: Uuid = Uuid([1; 16]);
    const B: Uuid = Uuid([2; 16]);

    fn entry(index: u64, origin: Uuid, oseq: u64, part: Part, body: &[u8]) -> Committed {
        Committed {
            index,
            term: 3,
            leader: 1,
            body: CommittedBody::Message(RawMessage {
                origin,
                oseq,
                kind: 1,
                tag: 77,
                part,
                body: Bytes::copy_from_slice(body),
            }),
        }
    }

    fn piece(stream: u64, i: u32, n: u32) -> Part {
        Part::Piece { stream, i, n }
    }

    fn body(d: Option<Delivered>) -> Option<Vec<u8>> {
        d.map(|d| d.body.to_vec())
    }

    #[test]
    fn only_the_next_number_of_a_registered_origin_counts() {
        let mut s = Sequencer::new();
        let take = |s: &mut Sequencer, oseq| {
            body(s.accept(&entry(oseq, A, oseq, Part::Whole, b"x")).unwrap())
        };
        assert_eq!(take(&mut s, 1), None);
        assert!(s.register(A) && !s.register(A));
        assert_eq!(take(&mut s, 2), None);
        assert_eq!(take(&mut s, 1), Some(b"x".to_vec()));
        assert_eq!(take(&mut s, 1), None);
        assert_eq!(take(&mut s, 2), Some(b"x".to_vec()));
        assert_eq!(s.last(A), Some(2));
        assert!(s.forget(A) && !s.forget(A));
        assert_eq!(take(&mut s, 3), None);
        assert_eq!(
            s.stats(),
            SequencerStats {
                delivered: 2,
                duplicates: 1,
                gaps: 1,
                unregistered: 2,
                ..SequencerStats::default()
            }
        );
        let blank = Committed {
            index: 9,
            term: 1,
            leader: 1,
            body: CommittedBody::Blank,
        };
        assert_eq!(s.accept(&blank), Ok(None));
    }

    #[test]
    fn a_large_message_has_the_place_of_its_last_piece() {
        let mut s = Sequencer::new();
        s.register(A);
        s.register(B);
        let steps = [
            (10, A, 1, piece(1, 0, 2), None),
            (11, B, 1, piece(1, 0, 2), None),
            (12, A, 2, piece(2, 0, 1), Some("A2")),
            (13, A, 3, Part::Whole, Some("A3")),
            (14, A, 4, piece(1, 1, 2), Some("A1A4")),
        ];
        for (index, origin, oseq, part, want) in steps {
            let text = format!("{}{oseq}", if origin == A { "A" } else { "B" });
            let got = s
                .accept(&entry(index, origin, oseq, part, text.as_bytes()))
                .unwrap();
            if let Some(d) = &got {
                assert_eq!((d.index, d.term, d.tag), (index, 3, 77));
            }
            assert_eq!(body(got), want.map(|w: &str| w.as_bytes().to_vec()));
        }
        assert_eq!((s.open_pieces_from(), s.open_bytes()), (Some(11), 2));
        s.forget(B);
        assert_eq!((s.open_pieces_from(), s.open_bytes()), (None, 0));
    }

    #[test]
    fn pieces_that_do_not_fit_are_dropped_and_the_origin_goes_on() {
        let mut s = Sequencer::new();
        s.register(A);
        for (oseq, part) in [
            (1, piece(1, 1, 3)),
            (2, piece(2, 0, 3)),
            (3, piece(2, 1, 4)),
        ] {
            let got = s.accept(&entry(oseq, A, oseq, part, b"x")).unwrap();
            assert_eq!(got, None);
        }
        assert_eq!(s.stats().malformed, 2);
        assert_eq!(s.open_pieces_from(), None);
        let got = s.accept(&entry(4, A, 4, Part::Whole, b"y")).unwrap();
        assert_eq!(body(got), Some(b"y".to_vec()));
    }

    type Places = BTreeMap<StreamKey, Vec<u8>>;
    /// What is there, whether the disk is full, and where pieces came from.
    type Shelved = (Places, bool, Vec<Option<u64>>);

    #[derive(Clone, Default)]
    struct Shelf(Arc<Mutex<Shelved>>);

    impl PieceStore for Shelf {
        fn append(
            &mut self,
            key: StreamKey,
            at: Option<PieceAt>,
            piece: &[u8],
        ) -> Result<(), StoreError> {
            let mut me = self.0.lock().unwrap();
            if me.1 {
                return Err(StoreError {
                    key,
                    doing: "written",
                    why: "No space left on device".into(),
                });
            }
            me.0.entry(key).or_default().extend_from_slice(piece);
            me.2.push(at.map(|at| at.index));
            Ok(())
        }

        fn read(&self, key: StreamKey) -> Result<Bytes, StoreError> {
            Ok(Bytes::from(self.0.lock().unwrap().0[&key].clone()))
        }

        fn discard(&mut self, key: StreamKey) {
            self.0.lock().unwrap().0.remove(&key);
        }
    }

    #[test]
    fn where_pieces_are_kept_makes_no_difference() {
        let shelf = Shelf::default();
        let mut stored = Sequencer::with_store(Box::new(shelf.clone()), 5);
        let mut held = Sequencer::new();
        for s in [&mut stored, &mut held] {
            s.register(A);
            s.register(B);
        }
        for i in 0..4u32 {
            for (o, n) in [(A, 4), (B, 9)] {
                let e = entry(
                    u64::from(i) + 1,
                    o,
                    u64::from(i) + 1,
                    piece(1, i, n),
                    b"abc",
                );
                let (x, y) = (stored.accept(&e).unwrap(), held.accept(&e).unwrap());
                assert_eq!(x, y);
                if o == A && i == 3 {
                    assert_eq!(x.unwrap().body, Bytes::from_static(b"abcabcabcabc"));
                }
            }
            assert_eq!(stored.digest(), held.digest());
            assert_eq!(stored.encode(), held.encode());
        }
        assert_eq!(
            shelf.0.lock().unwrap().0.len(),
            1,
            "A's is gone, B's is there"
        );
        // Through bytes, and back to a store with the next piece.
        let mut again = Sequencer::decode(stored.encode().unwrap()).unwrap();
        assert_eq!(again.digest(), held.digest());
        let fresh = Shelf::default();
        again.set_store(Box::new(fresh.clone()), 5);
        let e = entry(5, B, 5, piece(1, 4, 9), b"abc");
        assert_eq!(again.accept(&e), held.accept(&e));
        assert_eq!(fresh.0.lock().unwrap().0.len(), 1);
        assert_eq!(again.encode(), held.encode());
        // What came with the checkpoint is not known to be in the log.
        assert_eq!(fresh.0.lock().unwrap().2, [None, Some(5)]);
        let at: Vec<u64> = shelf
            .0
            .lock()
            .unwrap()
            .2
            .iter()
            .flatten()
            .copied()
            .collect();
        assert_eq!(at, [1, 2, 1, 2, 3, 3, 4, 4], "each with its own place");
        stored.forget(B);
        assert!(shelf.0.lock().unwrap().0.is_empty());
        // A full disk is an error that names the origin.
        fresh.0.lock().unwrap().1 = true;
        let e = again.accept(&entry(6, B, 6, piece(1, 5, 9), b"abc"));
        let text = e.unwrap_err().to_string();
        assert!(
            text.contains("No space left") && text.contains(&B.to_string()),
            "{text}"
        );
    }

    #[test]
    fn damaged_state_is_refused() {
        let mut s = Sequencer::new();
        s.register(A);
        s.accept(&entry(1, A, 1, piece(1, 0, 2), b"abc")).unwrap();
        let good = s.encode().unwrap();
        for cut in 1..good.len() {
            assert!(Sequencer::decode(good.slice(..cut)).is_err());
        }
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            assert!(Sequencer::decode(Bytes::from(bad)).is_err());
        }
        let fresh = Sequencer::decode(Bytes::new()).unwrap();
        assert_eq!(fresh.digest(), Sequencer::new().digest());
        assert_ne!(fresh.digest(), s.digest());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_with_a_right_checksum_are_a_state_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0..3u8) {
            let mut all = STATE_MAGIC.to_vec();
            all.extend_from_slice(&u32::from(count).to_le_bytes());
            all.extend_from_slice(&bytes);
            all.extend_from_slice(&crc32c::crc32c(&all).to_le_bytes());
            let all = Bytes::from(all);
            if let Ok(s) = Sequencer::decode(all.clone()) {
                prop_assert_eq!(s.encode().unwrap(), all);
            }
        }
    }
}
