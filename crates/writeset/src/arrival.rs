//! A write set looked at while its pieces come.
//!
//! Whoever has all of a large one at last must check its payload and find where to cut
//! it before the next message can be delivered. Both take a walk through all of it: a
//! gigabyte takes a second or more where it lies in a file and others do the same on
//! the same machine. What comes in pieces is looked at piece by piece instead, while it is in memory
//! anyway.
//!
//! What was found is believed only for a write set with the same header, which holds
//! the checksum that the payload must have.

use crate::chunks::{CHUNK_MAX, CHUNK_MIN, Cutter, Plan, WholeOnly};
use crate::codec::{DecodeError, HEADER_LEN, Head, PayloadSum, RawHeader};
use crate::payload::Kept;

/// The bit of a header's `chunk` that is not part of the size.
const FREE: u8 = 0x80;

/// Looks at a write set as its bytes come.
#[derive(Debug)]
pub struct Arrival(State);

#[derive(Debug)]
enum State {
    /// Less than the header has come.
    Front(Vec<u8>),
    /// The header has; of the keys so many bytes are still to come.
    Behind(Box<Found>, u64),
    /// It is no write set.
    Other,
}

#[derive(Debug)]
struct Found {
    /// The header's checksum.
    sum: u64,
    /// Size of header and keys, in bytes.
    front: u64,
    payload: PayloadSum,
    /// The size of the chunks, as a power of two, and who looks for them.
    cutter: Option<(u8, Cutter)>,
}

/// What was found out of a write set that came in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The checksum of its header.
    sum: u64,
    /// Size in bytes and checksum of what came behind its keys.
    payload: (u64, u64),
    /// How it is cut into chunks of 2 to this many bytes.
    plan: Option<(u8, Result<Plan, WholeOnly>)>,
    /// Who has the payload, if only header and keys were collected.
    kept: Option<Kept>,
}

impl Default for Arrival {
    fn default() -> Self {
        Arrival::new()
    }
}

impl Arrival {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Arrival(State::Front(Vec::new()))
    }

    /// Takes the next bytes.
    pub fn take(&mut self, mut bytes: &[u8]) {
        if let State::Front(front) = &mut self.0 {
            let n = bytes.len().min(HEADER_LEN - front.len());
            front.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if front.len() < HEADER_LEN {
                return;
            }
            self.0 = match RawHeader::read(front) {
                Err(_) => State::Other,
                Ok(raw) => {
                    let log2 = raw.header.chunk & !FREE;
                    let found = Found {
                        sum: raw.sum,
                        front: raw.keys_len.saturating_add(HEADER_LEN as u64),
                        payload: PayloadSum::new(),
                        cutter: (CHUNK_MIN..=CHUNK_MAX)
                            .contains(&log2)
                            .then(|| (log2, Cutter::new(1 << log2))),
                    };
                    State::Behind(Box::new(found), raw.keys_len)
                }
            };
        }
        if let State::Behind(found, keys) = &mut self.0 {
            let n = usize::try_from(*keys).map_or(bytes.len(), |keys| keys.min(bytes.len()));
            *keys -= n as u64;
            bytes = &bytes[n..];
            found.payload.update(bytes);
            if let Some((_, cutter)) = &mut found.cutter {
                cutter.take(bytes);
            }
        }
    }

    /// Size of header and keys in bytes, once the header has come and is right.
    pub fn front_len(&self) -> Option<u64> {
        match &self.0 {
            State::Behind(found, _) => Some(found.front),
            State::Front(_) | State::Other => None,
        }
    }

    /// Whether it may turn out to be one that is applied in chunks.
    pub fn may_be_cut(&self) -> bool {
        match &self.0 {
            State::Behind(found, _) => found.cutter.as_ref().is_some_and(|(_, c)| c.may_succeed()),
            State::Front(_) | State::Other => false,
        }
    }

    /// All has come. None if that is no write set.
    pub fn finish(self) -> Option<Arrived> {
        let State::Behind(found, 0) = self.0 else {
            return None;
        };
        Some(Arrived {
            sum: found.sum,
            payload: (found.payload.len(), found.payload.sum()),
            plan: found.cutter.map(|(log2, c)| (log2, c.finish())),
            kept: None,
        })
    }
}

impl Arrived {
    /// Whether that is the write set that came, with the payload that its header names.
    pub fn is_of(&self, head: &Head) -> bool {
        self.sum == head.sum() && self.payload == (head.payload_len(), head.payload_sum())
    }

    /// The same, of which only header and keys were collected: `kept` is the payload.
    pub fn left(mut self, kept: Kept) -> Arrived {
        self.kept = Some(kept);
        self
    }

    /// What was left elsewhere of it.
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Why that is not the payload that the header names, if it is not.
    pub(crate) fn check(&self, head: &Head) -> Result<(), DecodeError> {
        let (len, sum) = self.payload;
        if len != head.payload_len() {
            let keys = head.keys().byte_len() as u64;
            return Err(DecodeError::Length {
                keys,
                payload: head.payload_len(),
                have: (keys + len) as usize,
            });
        }
        if self.is_of(head) {
            return Ok(());
        }
        Err(DecodeError::Checksum {
            part: "payload",
            computed: sum,
            stored: head.payload_sum(),
        })
    }

    /// [`Plan::of`] the payload of the write set with this head, for chunks of 2 to the power of
    /// `log2` bytes. None if that was not looked for.
    pub fn plan(&self, head: &Head, log2: u8) -> Option<Result<Plan, WholeOnly>> {
        let (looked_for, plan) = self.plan.as_ref()?;
        (*looked_for == log2 && self.is_of(head)).then(|| plan.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    use super::*;
    use crate::{Flags, Header, Keeper, KeyCollector, KeyType, Uuid, WriteSet, encode};

    fn write_set(chunk: u8, rows: usize, payload: &[u8]) -> Bytes {
        let header = Header {
            flags: Flags::TRX_START | Flags::TRX_END,
            source: Uuid([1; 16]),
            trx_id: 7,
            conn_id: 8,
            last_seen: 9,
            prev_fragment: -1,
            chunk,
        };
        let mut keys = KeyCollector::new();
        for row in 0..rows {
            keys.add(&[b"d", b"t", &row.to_le_bytes()], KeyType::Exclusive)
                .expect("a key");
        }
        encode(&header, &keys, payload)
    }

    fn arrived(pieces: &[&[u8]]) -> Option<Arrived> {
        let mut arrival = Arrival::new();
        pieces.iter().for_each(|p| arrival.take(p));
        arrival.finish()
    }

    /// Rows of one table in events of 50 bytes.
    fn rows(n: usize) -> Vec<u8> {
        let event = |kind: u8, len: usize, flags: u8| {
            let mut e = vec![0; len];
            e[4] = kind;
            e[9..13].copy_from_slice(&(len as u32).to_le_bytes());
            if len > 25 {
                e[25] = flags;
            }
            e
        };
        let mut all = event(19, 22, 0);
        (1..=n).for_each(|i| all.extend(event(23, 50, u8::from(i == n))));
        all
    }

    proptest! {
        #[test]
        fn what_comes_in_pieces_is_what_came_at_once(
            payload in prop_oneof![
                (1..40usize).prop_map(rows),
                prop::collection::vec(any::<u8>(), 0..300),
            ],
            keys in 0..4usize,
            chunk in prop_oneof![Just(0u8), Just(7), Just(0x87), Just(60)],
            sizes in prop::collection::vec(1..90usize, 1..9),
        ) {
            let whole = write_set(chunk, keys, &payload);
            let mut pieces = Vec::new();
            let (mut rest, mut sizes) = (&whole[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let n = rest.len().min(*sizes.next().expect("for ever"));
                pieces.push(&rest[..n]);
                rest = &rest[n..];
            }
            let found = arrived(&pieces).expect("a write set");
            let expected = WriteSet::decode(whole.clone()).expect("right");
            prop_assert!(found.is_of(&expected));
            let plan = (chunk & 0x7f == 7).then(|| Plan::of(&payload, 128));
            prop_assert_eq!(found.plan(&expected, 7), plan);
            prop_assert_eq!(found.plan(&expected, 8), None);
            prop_assert_eq!(found.plan(&expected, 60), None);
            prop_assert_eq!(WriteSet::decode_arrived(whole, &found), Ok(expected));
        }
    }

    #[test]
    fn what_was_found_of_another_one_is_not_believed() {
        let (one, other) = (write_set(7, 2, &rows(9)), write_set(7, 2, &rows(8)));
        let mut damaged = one.to_vec();
        *damaged.last_mut().expect("bytes") ^= 1;
        // What came was damaged, and what is stored of it likewise.
        let found = arrived(&[&damaged]).expect("its header is right");
        assert!(matches!(
            WriteSet::decode_arrived(damaged.clone().into(), &found),
            Err(DecodeError::Checksum {
                part: "payload",
                ..
            })
        ));
        // Of another write set, or not all of this one, or more: this one is looked at itself.
        for found in [
            arrived(&[&other]),
            arrived(&[&one, b"x"]),
            arrived(&[&damaged]),
        ] {
            let found = found.expect("its header is right");
            let decoded = WriteSet::decode(one.clone()).expect("right");
            assert!(!found.is_of(&decoded));
            assert_eq!(found.plan(&decoded, 7), None);
            assert_eq!(WriteSet::decode_arrived(one.clone(), &found), Ok(decoded));
        }
    }

    /// Has it, and says which bytes were asked for.
    #[derive(Debug)]
    struct Shelf(Bytes, Mutex<Vec<Range<u64>>>);

    impl Keeper for Shelf {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_to(&self, range: Range<u64>, out: &mut BytesMut) -> Result<(), String> {
            self.1.lock().expect("no panic").push(range.clone());
            let bytes = self.0.get(range.start as usize..range.end as usize);
            out.extend_from_slice(bytes.ok_or("gone")?);
            Ok(())
        }
    }

    fn shelf(payload: &[u8]) -> (Arc<Shelf>, Kept) {
        let shelf = Arc::new(Shelf(Bytes::copy_from_slice(payload), Mutex::default()));
        (shelf.clone(), Kept::by(shelf))
    }

    #[test]
    fn of_what_was_left_elsewhere_only_chunks_are_read() {
        let payload = rows(20);
        let whole = write_set(7, 2, &payload);
        let front = whole.len() - payload.len();
        let mut arrival = Arrival::new();
        assert_eq!(arrival.front_len(), None);
        whole.chunks(60).for_each(|p| arrival.take(p));
        assert_eq!(arrival.front_len(), Some(front as u64));
        let (kept_by, kept) = shelf(&payload);
        assert!(arrival.may_be_cut());
        let found = arrival.finish().expect("a write set").left(kept.clone());
        let got = WriteSet::decode_arrived(whole.slice(..front), &found).expect("right");
        let expected = WriteSet::decode(whole.clone()).expect("right");
        assert_eq!(got.head(), expected.head());
        assert_eq!(got.payload().elsewhere(), Some(&kept));
        assert_eq!(got.payload().here(), None);
        let plan = found.plan(&got, 7).expect("looked for").expect("rows");
        assert!(kept_by.1.lock().expect("no panic").is_empty());
        for n in 0..plan.len() {
            let chunk = plan.chunk(&payload, n).expect("there");
            assert_eq!(plan.read_chunk(&kept, n), Ok(chunk));
        }
        let read = |r: &Range<u64>| r.end - r.start < payload.len() as u64 / 2;
        assert!(kept_by.1.lock().expect("no panic").iter().all(read));
        assert!(plan.read_chunk(&kept, plan.len()).is_err());
        // Of other bytes, and of too few, none is given.
        let mut other = payload.clone();
        *other.last_mut().expect("bytes") ^= 1;
        let last = plan.len() - 1;
        assert!(plan.read_chunk(&shelf(&other).1, last).is_err());
        assert!(plan.read_chunk(&shelf(&payload[..80]).1, last).is_err());
    }

    #[test]
    fn what_is_damaged_is_damaged_wherever_it_was_left() {
        let whole = write_set(7, 2, &rows(9));
        let front = whole.len() - rows(9).len();
        let mut damaged = whole.to_vec();
        *damaged.last_mut().expect("bytes") ^= 1;
        let shorter = whole.slice(..whole.len() - 1);
        for bytes in [Bytes::from(damaged), shorter] {
            let found = arrived(&[&bytes]).expect("its header is right");
            let left = found.left(shelf(&bytes[front..]).1);
            let elsewhere = WriteSet::decode_arrived(bytes.slice(..front), &left);
            assert_eq!(elsewhere, WriteSet::decode(bytes));
            assert!(elsewhere.is_err());
        }
    }

    #[test]
    fn what_is_no_write_set_is_nothing() {
        assert_eq!(arrived(&[]), None);
        let whole = write_set(7, 3, b"");
        assert_eq!(arrived(&[&whole[..HEADER_LEN - 1]]), None);
        assert_eq!(
            arrived(&[&whole[..whole.len() - 1]]),
            None,
            "keys are missing"
        );
        assert!(arrived(&[&whole]).is_some());
        assert_eq!(arrived(&[&[b'x'; 200], &whole]), None);
        // A statement, as CREATE TABLE ... SELECT begins with one.
        let mut statement = rows(9);
        statement[4] = 2;
        for (chunk, payload) in [(0, rows(9)), (7, statement)] {
            let mut arrival = Arrival::new();
            assert!(!arrival.may_be_cut());
            arrival.take(&write_set(chunk, 1, &payload));
            assert!(!arrival.may_be_cut(), "only as a whole");
        }
    }
}
