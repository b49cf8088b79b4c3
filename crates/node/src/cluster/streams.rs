//! Which streaming transactions are open, and where they began in the log.
//!
//! They decide nothing. But a database has them without their end, a copy of it too, and
//! a node that has to apply one of them whole (`held.rs`) needs all of its fragments: so it begins with a
//! state before the first one, as far as the log reaches back.
//!
//! ```text
//!   log       ●─────────────────●────────────f1───────●──────f2────────●─────
//!   state     checkpoint        checkpoint            checkpoint       checkpoint
//!                               begin here                             names f1
//! ```

use dromon_certify::FailReason;
use dromon_writeset::{Header, Seqno, Uuid};
use serde::{Deserialize, Serialize};

use super::ClusterState;

/// A streaming transaction that is open at a place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStream {
    /// The member that it comes from.
    pub source: Uuid,
    /// Its number there.
    pub trx_id: u64,
    /// Place of its first fragment.
    pub first: Seqno,
    /// Where that begins in the log: the index of its first piece.
    pub begins: u64,
}

impl ClusterState {
    /// Why a write set cannot be one that its node still stands by, whatever its keys say. No node sends
    /// such a one: it is on its way when the node loses touch, if anything is.
    ///
    /// Certification takes all that comes from one node for ordered by the row locks there. They are
    /// given back when it loses touch, and its streams are rolled back on the others then.
    pub(super) fn unlawful(&self, header: &Header) -> Option<FailReason> {
        let flags = header.flags;
        if flags.is_toi() || flags.is_rollback() {
            return None;
        }
        let id = (header.source, header.trx_id);
        if flags.is_followup_fragment() && !self.streams.contains_key(&id) {
            return Some(FailReason::NoStream);
        }
        let joined_at = self.members.get(&header.source)?.joined_at;
        let last_seen = header.last_seen;
        (last_seen < joined_at).then_some(FailReason::BeforeItsView {
            last_seen,
            joined_at,
        })
    }

    /// A write set took its place, and begins at index `from` of the log.
    pub(super) fn stream_placed(&mut self, seqno: Seqno, from: u64, header: &Header, passed: bool) {
        let flags = header.flags;
        let id = (header.source, header.trx_id);
        if flags.is_rollback() {
            self.streams.remove(&id);
        }
        // What failed ends nothing: its node sends the rollback.
        if !passed || !flags.is_fragment() {
            return;
        }
        if flags.starts() {
            let stream = OpenStream {
                source: header.source,
                trx_id: header.trx_id,
                first: seqno,
                begins: from,
            };
            self.streams.insert(id, stream);
        } else if flags.ends() {
            self.streams.remove(&id);
        }
    }

    /// Servers roll back what came from a member that is gone.
    pub(super) fn forget_streams_left(&mut self) {
        let members = &self.members;
        self.streams
            .retain(|(source, _), _| members.contains_key(source));
    }

    /// Those that are open: neither their end nor their rollback has its place.
    pub fn open_streams(&self) -> impl Iterator<Item = &OpenStream> {
        self.streams.values()
    }

    /// One of them, by its member and its number there.
    pub fn open_stream(&self, id: (Uuid, u64)) -> Option<&OpenStream> {
        self.streams.get(&id)
    }

    /// Before this index of the log none of them has begun.
    pub fn streams_from(&self) -> Option<u64> {
        self.streams.values().map(|s| s.begins).min()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dromon_certify::Verdict;
    use dromon_order::Part;
    use dromon_writeset::{Flags, KeyCollector, encode};

    use super::super::tests::Feed;
    use super::*;
    use crate::cluster::Event;
    use crate::messages::{Control, LeaveReason};

    const ROLLBACK: Flags = Flags::from_bits(Flags::ROLLBACK.bits() | Flags::PA_UNSAFE.bits());

    /// What member `origin` sends of its transaction `trx_id`, having seen all.
    fn sent(f: &Feed, origin: u8, trx_id: u64, flags: Flags) -> Bytes {
        let mut keys = KeyCollector::new();
        let row = trx_id.to_le_bytes();
        keys.add(&[b"db", b"t", &row], dromon_writeset::KeyType::Exclusive)
            .expect("a key of three parts");
        let header = Header {
            flags,
            source: Uuid([origin; 16]),
            trx_id,
            conn_id: 1,
            last_seen: f.state.position().seqno,
            prev_fragment: -1,
            chunk: 0,
        };
        encode(&header, &keys, b"rows")
    }

    /// It is ordered. Answers its place, and its index in the log.
    fn send(f: &mut Feed, origin: u8, trx_id: u64, flags: Flags) -> (Seqno, u64) {
        let body = sent(f, origin, trx_id, flags);
        f.part(origin, Part::Whole, body);
        (f.state.position().seqno, f.index)
    }

    /// Number, place and index of those that are open.
    fn open(f: &Feed) -> Vec<(u64, Seqno, u64)> {
        let all = f.state.open_streams();
        all.map(|s| (s.trx_id, s.first, s.begins)).collect()
    }

    #[test]
    fn one_is_open_from_its_first_fragment_to_its_end() {
        let mut f = Feed::of_three();
        let (first, begins) = send(&mut f, 1, 7, Flags::TRX_START);
        assert_eq!(open(&f), [(7, first, begins)]);
        let digest = f.state.digest();
        let (sequencer, node) = f.state.encode();
        f.state = ClusterState::decode(&sequencer, &node).expect("its own bytes");
        assert_eq!(
            (open(&f), f.state.digest()),
            (vec![(7, first, begins)], digest)
        );
        send(&mut f, 1, 7, Flags::NONE);
        send(&mut f, 1, 8, Flags::TRX_START | Flags::TRX_END);
        let later = send(&mut f, 1, 9, Flags::TRX_START);
        assert_eq!(open(&f), [(7, first, begins), (9, later.0, later.1)]);
        assert_eq!(f.state.streams_from(), Some(begins));
        assert!(f.state.open_stream((Uuid([2; 16]), 7)).is_none());
        send(&mut f, 1, 7, Flags::TRX_END | Flags::PA_UNSAFE);
        assert_eq!(f.state.streams_from(), Some(later.1));
        send(&mut f, 1, 9, ROLLBACK);
        assert_eq!((open(&f), f.state.streams_from()), (vec![], None));
    }

    #[test]
    fn what_fails_begins_none_and_ends_none() {
        let mut f = Feed::of_three();
        let stale = sent(&f, 1, 7, Flags::TRX_START);
        send(&mut f, 2, 7, Flags::TRX_START | Flags::TRX_END);
        f.part(1, Part::Whole, stale);
        assert_eq!(open(&f), []);
        let first = send(&mut f, 1, 8, Flags::TRX_START);
        let stale = sent(&f, 1, 8, Flags::TRX_END);
        send(&mut f, 2, 8, Flags::TRX_START | Flags::TRX_END);
        f.part(1, Part::Whole, stale);
        assert_eq!(open(&f), [(8, first.0, first.1)], "its rollback comes");
    }

    #[test]
    fn what_its_node_cannot_stand_by_any_more_fails() {
        let verdict = |f: &mut Feed, origin: u8, body: Bytes| {
            let events = f.part(origin, Part::Whole, body);
            let [Event::WriteSet { verdict, .. }] = events.as_slice() else {
                panic!("not a write set: {events:?}");
            };
            match verdict {
                Verdict::Passed { .. } => None,
                Verdict::Failed { reason } => Some(reason.clone()),
            }
        };
        let whole = Flags::TRX_START | Flags::TRX_END;
        let end = Flags::TRX_END | Flags::PA_UNSAFE;
        for part in [end, Flags::NONE] {
            let mut f = Feed::of_three();
            let keys = |f: &Feed| f.state.certifier().stats().keys;
            // Never begun, rolled back, or of a node that was away; and what it had sent before.
            let body = sent(&f, 1, 7, part);
            assert_eq!(verdict(&mut f, 1, body), Some(FailReason::NoStream));
            assert_eq!(keys(&f), 0, "it leaves no trace");
            for gone in [0, 1] {
                send(&mut f, 1, 7, Flags::TRX_START);
                let (other, before) = (sent(&f, 2, 7, part), sent(&f, 1, 8, whole));
                assert_eq!(verdict(&mut f, 2, other), Some(FailReason::NoStream));
                match gone {
                    0 => drop(send(&mut f, 1, 7, ROLLBACK)),
                    _ => {
                        let uuid = Uuid([1; 16]);
                        drop(f.send(2, &Control::Rejoin { uuid, released: 0 }));
                    }
                }
                let body = sent(&f, 1, 7, part);
                assert_eq!(verdict(&mut f, 1, body), Some(FailReason::NoStream));
                let why = verdict(&mut f, 1, before);
                let early = matches!(why, Some(FailReason::BeforeItsView { .. }));
                assert_eq!((why.is_some(), early), (gone == 1, gone == 1), "{why:?}");
                let body = sent(&f, 1, 9, whole);
                assert_eq!(verdict(&mut f, 1, body), None);
                // Its rollback, and statements, pass whatever they have seen.
                let body = sent(&f, 1, 7, ROLLBACK);
                assert_eq!(verdict(&mut f, 1, body), None);
            }
        }
    }

    #[test]
    fn one_that_comes_in_pieces_begins_with_the_first_of_them() {
        let mut f = Feed::of_three();
        let body = sent(&f, 1, 7, Flags::TRX_START);
        let (first, rest) = (body.slice(..20), body.slice(20..));
        let piece = |i| Part::Piece { stream: 1, i, n: 2 };
        f.part(1, piece(0), first);
        let begins = f.index;
        send(&mut f, 2, 1, Flags::TRX_START | Flags::TRX_END);
        f.part(1, piece(1), rest);
        assert_eq!(f.state.streams_from(), Some(begins));
    }

    #[test]
    fn it_ends_with_the_membership_of_its_node() {
        let mut f = Feed::of_three();
        send(&mut f, 1, 7, Flags::TRX_START);
        let left = send(&mut f, 2, 7, Flags::TRX_START);
        let uuid = Uuid([1; 16]);
        f.send(2, &Control::Rejoin { uuid, released: 0 });
        assert_eq!(open(&f), [(7, left.0, left.1)]);
        let uuid = Uuid([2; 16]);
        let reason = LeaveReason::Graceful;
        f.send(3, &Control::Leave { uuid, reason });
        assert_eq!(open(&f), []);
    }
}
